/*
 * spawn.h - from a request to a running program.
 *
 * We never wait for the child. On its way to execve() the sandbox's root can stop it, the limits of its cgroup can
 * starve it, a disk can hold it up; all of that is the guest's to suffer, not guestd's. So a start has two parts: it
 * was begun, and how far it has got (spawn_outcome).
 *
 * What starts here is forked from guestd and then moved to the user's cgroups. That move is slow, see spawner.h: it is
 * for interpreters, and for commands when there is no spawner.
 */
#ifndef GUEST_SPAWN_H
#define GUEST_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

enum spawn_session {
    SPAWN_MEMBER,   /* in a session of its own, whose leader is gone: what a command expects */
    SPAWN_LEADER,   /* leads its session */
    SPAWN_TERMINAL, /* leads it, and in_fd becomes the controlling terminal */
};

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
    enum spawn_session session;
    const int *cgroup_fds; /* cgroup.procs files to enter; guestd itself stays outside the limits */
    size_t cgroup_count;
};

/*
 * A command: what becomes of it is told on report_fd, the write end of a pipe that does not block. It stays the
 * caller's; close it right away, because its end is part of the outcome. False when there is no child.
 */
bool spawn_command(const struct spawn *spawn, int report_fd, struct err *err) must_use;

/* For a first child that was made by other means: the session and the second one. Returns an errno of fork, or 0. */
int spawn_second(const struct spawn *spawn, int report_fd);

/*
 * An interpreter: *out_pid is its number from here on, to be signalled and collected. If it cannot start it says so on
 * err_fd and exits with 126.
 */
bool spawn_leader(const struct spawn *spawn, pid_t *out_pid, struct err *err) must_use;

struct spawn_child {
    pid_t pid; /* 0: not known yet; later to be signalled and collected by us */
    pid_t session;
};

enum spawn_outcome {
    SPAWN_UNKNOWN,  /* not there yet; its pid may be known */
    SPAWN_EXECUTED, /* it runs; or there was nothing to execute, then it has said so on err_fd and exits with 127 or
                       126, as a shell would have it; or somebody has killed it */
    SPAWN_FAILED, /* it could not even be tried: the sentence says which step failed. If it has a pid, it exits now. */
};
/* *child is filled as soon as it is known who it is; give it as it was before. */
enum spawn_outcome spawn_outcome(int report_fd, struct spawn_child *child, struct err *err);

#endif
