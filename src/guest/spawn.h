/*
 * spawn.h - forks a child and turns it into a program.
 *
 * guestd never waits for the child. Before execve() the sandbox's root can stop it, its cgroup can starve it, and a
 * disk can delay it. So a start has two parts: the fork, and a report of how far the child has got (spawn_outcome()).
 *
 * Children are forked from guestd and then moved to the user's cgroups. That move is slow (see spawner.h), so it is
 * used only for interpreters, and for commands when there is no spawner.
 */
#ifndef GUEST_SPAWN_H
#define GUEST_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

enum spawn_session {
    SPAWN_MEMBER,   /* in a session of its own whose leader is gone: for commands */
    SPAWN_LEADER,   /* leads its session */
    SPAWN_TERMINAL, /* leads it, and in_fd becomes the controlling terminal */
};

struct spawn {
    const char *const *files; /* to try in order, ended by NULL: one path, or one for each PATH directory */
    char *const *argv, *const *envp;
    const char *cwd;
    const char *cwd_else; /* used if the user may not enter cwd; NULL: the start fails */
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
 * A command. It reports on report_fd, the write end of a non-blocking pipe. The caller must close report_fd right away:
 * the end of the pipe is part of the outcome. False when there is no child.
 */
bool spawn_command(const struct spawn *spawn, int report_fd, struct err *err) must_use;

/* For the spawner's first child: makes the session and forks the second child. Returns fork's errno, or 0. */
int spawn_second(const struct spawn *spawn, int report_fd);

/*
 * An interpreter: *out_pid is its pid, to be signalled and reaped. If it cannot start, it writes why to err_fd and
 * exits with 126.
 */
bool spawn_leader(const struct spawn *spawn, pid_t *out_pid, struct err *err) must_use;

struct spawn_child {
    pid_t pid; /* 0: not known yet; we signal and reap it */
    pid_t session;
};

enum spawn_outcome {
    SPAWN_UNKNOWN,  /* not there yet; its pid may be known */
    SPAWN_EXECUTED, /* it runs; or there was nothing to execute, then it has said so on err_fd and exits with 127 or
                       126, as a shell would have it; or it was killed */
    SPAWN_FAILED,   /* before execve(); the error names the step. If it has a pid, it exits now. */
};
/* Fills *child in as soon as the pid is known; pass the same *child each time. */
enum spawn_outcome spawn_outcome(int report_fd, struct spawn_child *child, struct err *err);

#endif
