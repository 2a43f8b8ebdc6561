/*
 * pass.h - send descriptors to another process over a unix socket.
 */
#ifndef IO_PASS_H
#define IO_PASS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

/*
 * Sends one message with up to LIMIT_MESSAGE_FDS descriptors, or none. The caller keeps its own copies. Never blocks:
 * err->sys is EAGAIN when the socket is full.
 */
bool pass_fds(int socket_fd, struct str bytes, const int *fds, size_t count, struct err *err) must_use;

#endif
