/*
 * websocket.h - WebSocket as bytes, the server's side. RFC 6455, read strictly.
 *
 * Refused, each with the status that a close has for it: frames without a mask, reserved bits (there are no extensions),
 * unknown kinds, lengths that are not in their shortest form, control frames in pieces or above 125 bytes, a message
 * inside another one, text that is not UTF-8, close codes that must not be sent, messages above the limit.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_WEBSOCKET_H
#define WIRE_WEBSOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

/* ---- the handshake ---- */

enum { WEBSOCKET_ACCEPT_BYTES = 28 + 1 };
/* Sec-WebSocket-Accept for the client's Sec-WebSocket-Key. False: the key is not 16 bytes in base64. */
bool websocket_accept(struct str key, char out[WEBSOCKET_ACCEPT_BYTES]) must_use;

/* ---- reading ---- */

enum websocket_kind {
    WEBSOCKET_TEXT = 1,
    WEBSOCKET_BINARY = 2,
    WEBSOCKET_CLOSE = 8,
    WEBSOCKET_PING = 9,
    WEBSOCKET_PONG = 10,
};

enum websocket_status {
    WEBSOCKET_NORMAL = 1000,
    WEBSOCKET_GOING_AWAY = 1001,
    WEBSOCKET_BROKEN = 1002,
    WEBSOCKET_UNSUPPORTED = 1003,
    WEBSOCKET_NO_STATUS = 1005, /* a close without one; never sent */
    WEBSOCKET_NOT_TEXT = 1007,
    WEBSOCKET_POLICY = 1008,
    WEBSOCKET_TOO_BIG = 1009,
    WEBSOCKET_TRY_LATER = 1013,
};

struct websocket_message {
    enum websocket_kind kind;
    struct str text; /* of a close: the reason */
    unsigned status; /* of a close */
};

enum websocket_step { WEBSOCKET_MORE, WEBSOCKET_DONE, WEBSOCKET_BAD };

struct websocket {
    /* private */
    struct buf message; /* the pieces so far */
    unsigned kind;      /* of the message that has begun; 0: none */
    unsigned char control[125];
};

enum { WEBSOCKET_HEAD_BYTES = 14 };

void websocket_init(struct websocket *ws);
void websocket_done(struct websocket *ws);

/*
 * Consumes the next message from *in, piece by piece. DONE: it is complete, and valid until the next call. MORE: all whole
 * frames are consumed, and the next one is not all there; a buffer of LIMIT_WEBSOCKET_BYTES and WEBSOCKET_HEAD_BYTES holds
 * it. BAD: *out_status is the one to close with, and nothing more can be read.
 */
enum websocket_step websocket_next(struct websocket *ws, struct str *in, struct websocket_message *out,
                                   unsigned *out_status, struct err *err) must_use;

/* ---- writing ---- */

/* A whole message in one frame. Control frames have 125 bytes at most. */
void websocket_write(struct buf *out, enum websocket_kind kind, struct str text);
/* The reason is cut to fit. status WEBSOCKET_NO_STATUS: without one. */
void websocket_write_close(struct buf *out, unsigned status, struct str reason);

#endif
