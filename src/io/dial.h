/*
 * dial.h - begin to connect.
 */
#ifndef IO_DIAL_H
#define IO_DIAL_H

#include "base/err.h"
#include "base/str.h"

/*
 * "127.0.0.1:7070", "[::1]:7070": an address and a port, no names. Returns a non-blocking descriptor whose connect() is
 * under way (for stream_new_connecting), or -1.
 */
int dial_open(struct str address, struct err *err) must_use;

#endif
