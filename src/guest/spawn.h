/*
 * spawn.h - from a request's wishes to a running program.
 */
#ifndef GUEST_SPAWN_H
#define GUEST_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct spawn {
    const char *const *files; /* what to try to execute, in order, ended by NULL: one path, or one a PATH directory */
    char *const *argv, *const *envp;
    const char *cwd;
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t group_count;
    int in_fd, out_fd, err_fd; /* become 0, 1, 2; stay the caller's */
    bool takes_terminal;       /* in_fd is a terminal and becomes the controlling one */
    const int *cgroup_fds;     /* cgroup.procs files to enter; guestd itself stays outside the limits */
    size_t cgroup_count;
};

/*
 * The program runs (or has already failed to execute: it then says so on err_fd and exits with 127 or 126, as a shell
 * would have it). False when it could not even be tried: the sentence says which step failed. The child leads a session
 * of its own, which is how its whole tree can be found later.
 */
bool spawn_start(const struct spawn *spawn, pid_t *out_pid, struct err *err) must_use;

#endif
