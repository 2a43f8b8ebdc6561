/*
 * launch.h - starts the process of an interpreter, and explains how it ended.
 */
#ifndef GUEST_INTERPRETER_LAUNCH_H
#define GUEST_INTERPRETER_LAUNCH_H

#include <sys/types.h>

#include "guest/guest.h"

/* PATH, HOME, USER, LOGNAME, LANG; the sandbox's variables; `more`. The last one wins. "NAME=value", ended by NULL. */
char **launch_env(struct guest *guest, const struct user *user, const struct guestlink_env *more, size_t more_count,
                  struct arena *arena);

struct launch {
    const struct user *user;
    const char *const *argv; /* argv[0] is looked for in PATH unless it has a slash */
    char *const *env;
    const char *cwd;
    const char *cwd_else; /* used if the user may not enter cwd; NULL: then the start fails */
    int in_fd, out_fd, err_fd;
};

/*
 * As that user, in the limited cgroup, as leader of its own session. True: the child exists; if it cannot execute the
 * program it writes the reason to err_fd and exits.
 */
bool launch_start(struct guest *guest, const struct launch *launch, struct arena *arena, pid_t *out_pid,
                  struct err *err) must_use;

/* Is there an executable file of that name in PATH? */
bool launch_can(struct guest *guest, const char *command);

/* A descriptor that becomes readable when the process has ended, or -1 with errno. */
int launch_pidfd(pid_t pid);

/* "it ended with status 3", "it was killed by SIGSEGV"; status as in wait(2). */
void launch_explain(int status, char *room, size_t size);

#endif
