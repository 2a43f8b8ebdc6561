/*
 * frame.h - one message on a stream socket between two of our processes: a u32 length, then the bytes.
 *
 * Threads    Any; blocks until the deadline.
 * Failure    ERR_UNAVAILABLE: the other side has closed. ERR_TIMEOUT. ERR_LIMIT: longer than the cap; the connection cannot
 *            be used any more after any failure.
 */
#ifndef PRIVSEP_FRAME_H
#define PRIVSEP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

/* timeout_ms 0: for ever. */
bool frame_write(int fd, struct str bytes, uint64_t timeout_ms, struct err *err) must_use;
/* On the heap, the caller's. ERR_NOT_FOUND: the other side closed between two frames. */
bool frame_read(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, struct err *err) must_use;

/* The same with a descriptor beside the bytes, which stays the sender's; -1: none. Only unix sockets can do it. */
bool frame_write_fd(int fd, struct str bytes, int passed_fd, uint64_t timeout_ms, struct err *err) must_use;
/* *out_fd is the caller's; -1: none came. */
bool frame_read_fd(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, int *out_fd, struct err *err)
    must_use;

#endif
