/*
 * role.h - starts one of our processes as an unprivileged user.
 *
 * A role is this same program or another one of ours, executed anew so that it has no copy of keeper's memory, as an
 * unprivileged user, with no capability, a cleaned environment, and these descriptors:
 *   0 1     /dev/null
 *   2       as keeper's, for the log
 *   3       its end of the channel to keeper, or the connection that keeper gives it instead
 *   4 ..    what keeper hands it, in the order of role_want.fds
 *
 * It has a session of its own, so keeper's terminal is not its terminal, and it cannot put input there.
 * A role dies with keeper: by a signal, and by end of file on its channel if it has one.
 */
#ifndef PRIVSEP_ROLE_H
#define PRIVSEP_ROLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"

enum { ROLE_CHANNEL_FD = 3, ROLE_FIRST_FD = 4, ROLE_FDS_MAX = 16, ROLE_ARGS_MAX = 16 };

struct role_want {
    const char *name;        /* "front": it is started as `cloister role front` */
    const char *const *args; /* more arguments, ended by NULL; may be NULL */
    uid_t uid;               /* our own uid and gid: the user is not switched */
    gid_t gid;
    const int *program;    /* an open program; NULL: ourselves */
    const int *connection; /* descriptor 3; NULL: a new channel to keeper */
    const int *fds;        /* all of them stay the caller's */
    uint32_t fd_count;
};

struct role {
    pid_t pid;
    int pidfd;      /* readable when it has ended; reap it */
    int channel_fd; /* our end, for channel_new(); -1 with a connection */
};

/* Returns when the new program has been executed, or with the error of the step that failed. */
bool role_start(const struct role_want *want, struct role *out, struct err *err) must_use;

#endif
