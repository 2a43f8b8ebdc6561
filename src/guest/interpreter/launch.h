/*
 * launch.h - what interpreters of all kinds need to be started and to be seen dying.
 */
#ifndef GUEST_INTERPRETER_LAUNCH_H
#define GUEST_INTERPRETER_LAUNCH_H

#include <sys/types.h>

#include "guest/guest.h"

/* PATH and who one is; then the sandbox's variables; then `more`. The last one wins. "NAME=value", ended by NULL. */
char **launch_env(struct guest *guest, const struct user *user, const struct guestlink_env *more, size_t more_count,
                  struct arena *arena);

struct launch {
    const struct user *user;
    const char *const *argv; /* argv[0] is looked for in PATH unless it has a slash */
    char *const *env;
    const char *cwd;
    const char *cwd_else; /* where to go if the user may not enter cwd; NULL: it does not start then */
    int in_fd, out_fd, err_fd;
};

/*
 * As that user, in the limited cgroup, leading a session of its own. True: there is a child on its way; if it does not get
 * as far as the program it says why on err_fd and dies.
 */
bool launch_start(struct guest *guest, const struct launch *launch, struct arena *arena, pid_t *out_pid,
                  struct err *err) must_use;

/* Is there a file of that name to execute in PATH? */
bool launch_can(struct guest *guest, const char *command);

/* A descriptor that becomes readable when the process has died, or -1 if it has already. */
int launch_pidfd(pid_t pid);

/* "it ended with status 3", "it was killed by SIGSEGV"; status as wait(2) has it. */
void launch_explain(int status, char *room, size_t size);

#endif
