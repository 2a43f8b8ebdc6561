/*
 * pass.h - give descriptors to another process.
 */
#ifndef IO_PASS_H
#define IO_PASS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

/*
 * One message on a unix socket, with up to LIMIT_MESSAGE_FDS descriptors, which stay ours as well; 0 is fine. Does not
 * wait: sys is EAGAIN when there is no room.
 */
bool pass_fds(int socket_fd, struct str bytes, const int *fds, size_t count, struct err *err) must_use;

#endif
