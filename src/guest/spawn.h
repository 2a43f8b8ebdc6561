/*
 * spawn.h - from a request's wishes to a running program.
 *
 * We never wait for the child. On its way to execve() the sandbox's root can stop it, the limits of the cgroup it has
 * just joined can starve it, a disk can hold it up; all of that is the guest's to suffer, not guestd's. So a start has
 * two parts: there is a child (spawn_start), and how far it has got (spawn_outcome).
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
    const char *cwd_else; /* where to go if the user may not enter cwd; NULL: that is a failure */
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
 * A child is on its way to the program: *out_pid is its number from here on, to be signalled and collected. It leads a
 * session of its own, which is how its whole tree can be found later. False when there is no child.
 *
 * *out_report_fd becomes readable when the outcome is known; it is the caller's to close. With NULL for it the child
 * says on err_fd what went wrong and exits with 126.
 */
bool spawn_start(const struct spawn *spawn, pid_t *out_pid, int *out_report_fd, struct err *err) must_use;

enum spawn_outcome {
    SPAWN_UNKNOWN,  /* not there yet */
    SPAWN_EXECUTED, /* it runs; or there was nothing to execute, then it has said so on err_fd and exits with 127 or
                       126, as a shell would have it; or somebody has killed it */
    SPAWN_FAILED,   /* it could not even be tried: the sentence says which step failed. It is about to exit. */
};
enum spawn_outcome spawn_outcome(int report_fd, struct err *err);

#endif
