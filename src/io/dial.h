/*
 * dial.h - start a TCP connection without waiting for it.
 */
#ifndef IO_DIAL_H
#define IO_DIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/*
 * "127.0.0.1:7070", "[::1]:7070": an address and a port, no names. Returns a non-blocking descriptor whose connect() is
 * under way (for stream_new_connecting), or -1.
 */
int dial_open(struct str address, struct err *err) must_use;

/*
 * Connect a non-blocking TCP socket, which may belong to another network namespace, to 127.0.0.1:port there. True when it
 * is connected or the connect is in progress: getpeername() tells which. A closed port is err->sys ECONNREFUSED.
 */
bool dial_loopback(int fd, uint16_t port, struct err *err) must_use;

#endif
