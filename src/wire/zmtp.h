/*
 * zmtp.h - ZeroMQ's wire protocol, ZMTP 3.0 (RFC 23), as bytes: the part that a client of a Jupyter kernel needs.
 *
 * Both sides send a greeting of 64 bytes and a READY command, then messages of one or more frames. Only the mechanism
 * NULL: the connection is loopback inside one sandbox, and Jupyter signs its messages itself.
 *
 * Pure: no I/O, no clock. What is decoded borrows from the input.
 */
#ifndef WIRE_ZMTP_H
#define WIRE_ZMTP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum {
    ZMTP_GREETING_BYTES = 64,
    ZMTP_FRAMES_MAX = 64, /* of one message; Jupyter sends 7, and one more for each binary buffer */
};

/* ---- writing ---- */

void zmtp_write_greeting(struct buf *out);
/* "DEALER" or "SUB"; the identity may be empty. */
void zmtp_write_ready(struct buf *out, struct str socket_type, struct str identity);
/* One message of `count` frames. */
void zmtp_write_message(struct buf *out, const struct str *frames, size_t count);
/* The answer to a PING command, whose frame body is given. */
void zmtp_write_pong(struct buf *out, struct str ping);

/* ---- reading ---- */

enum zmtp_parse {
    ZMTP_MORE, /* not all there yet: ask again with everything received so far */
    ZMTP_DONE,
    ZMTP_BAD, /* err says why */
};

/* The peer's greeting at the front of `in`; ZMTP_GREETING_BYTES belong to it. */
enum zmtp_parse zmtp_parse_greeting(struct str in, struct err *err) must_use;

struct zmtp_message {
    bool is_command; /* then one frame: a name with its length in front, and data */
    size_t count;
    struct str frames[ZMTP_FRAMES_MAX];
};

/* The message or command at the front of `in`; on ZMTP_DONE *out_used bytes belong to it. At most cap bytes in all. */
enum zmtp_parse zmtp_parse_message(struct str in, size_t cap, struct zmtp_message *out, size_t *out_used,
                                   struct err *err) must_use;

/* Is it the command of that name? */
bool zmtp_is_command(const struct zmtp_message *message, struct str name);

#endif
