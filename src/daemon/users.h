/*
 * users.h - the system user that roles run as.
 */
#ifndef DAEMON_USERS_H
#define DAEMON_USERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* ERR_NOT_FOUND says how to make the user. ERR_DENIED for root. */
bool role_user(const char *name, uid_t *out_uid, gid_t *out_gid, struct err *err) must_use;

#endif
