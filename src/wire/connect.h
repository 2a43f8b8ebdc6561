/*
 * connect.h - the Connect RPC protocol with its JSON codec, as bytes: envelopes, codes, errors.
 *
 * A stream is a sequence of envelopes: flags (u8), length (u32, big-endian), that many bytes of JSON. An envelope may
 * begin and end anywhere within HTTP chunks. The last envelope carries CONNECT_END_STREAM, and a clean close always
 * follows one: {} or {"error":{"code","message"}}. A unary answer is bare JSON; a unary error is {"code","message"}
 * with the HTTP status of its code.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_CONNECT_H
#define WIRE_CONNECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

enum connect_code {
    CONNECT_OK = 0, /* not on the wire */
    CONNECT_CANCELED,
    CONNECT_UNKNOWN,
    CONNECT_INVALID_ARGUMENT,
    CONNECT_DEADLINE_EXCEEDED,
    CONNECT_NOT_FOUND,
    CONNECT_ALREADY_EXISTS,
    CONNECT_PERMISSION_DENIED,
    CONNECT_RESOURCE_EXHAUSTED,
    CONNECT_FAILED_PRECONDITION,
    CONNECT_ABORTED,
    CONNECT_OUT_OF_RANGE,
    CONNECT_UNIMPLEMENTED,
    CONNECT_INTERNAL,
    CONNECT_UNAVAILABLE,
    CONNECT_DATA_LOSS,
    CONNECT_UNAUTHENTICATED,
    CONNECT_CODE_COUNT,
};

/* "invalid_argument" and 400. */
struct str connect_code_name(enum connect_code code);
unsigned connect_code_status(enum connect_code code);
/* False for an unknown name. */
bool connect_code_parse(struct str name, enum connect_code *out_code) must_use;

enum {
    CONNECT_COMPRESSED = 1, /* never sent, never accepted: both SDKs abort on it */
    CONNECT_END_STREAM = 2,
    CONNECT_HEADER_BYTES = 5,
};

/* ---- writing ---- */

void connect_write(struct buf *out, unsigned flags, struct str payload);
/*
 * For a payload that is built in place: begin reserves the header, end fills it in with what was added since. Nothing
 * else may be added to or dropped from the buf in between.
 */
size_t connect_begin(struct buf *out);
void connect_end(struct buf *out, size_t begun_at, unsigned flags);
/* The end of a stream: {} or an error. */
void connect_write_end(struct buf *out, enum connect_code code, struct str message);
/* {"code":"…","message":"…"}: the body of a unary error. */
void connect_write_error(struct buf *out, enum connect_code code, struct str message);

/* ---- reading ---- */

/* Reads envelopes from a body that arrives in pieces of any size. */
struct connect_reader {
    struct buf partial; /* the envelope under way, header included */
    bool failed;        /* an error was returned: nothing more can be read */
};

void connect_reader_init(struct connect_reader *reader);
void connect_reader_done(struct connect_reader *reader);

enum connect_read {
    CONNECT_MORE,     /* all of *in is consumed and no envelope is complete */
    CONNECT_ENVELOPE, /* *out_payload is one, valid until the next call; call again, there may be more */
    CONNECT_BAD,      /* compressed, unknown flags, or longer than LIMIT_RPC_BYTES (ERR_LIMIT) */
};
enum connect_read connect_reader_next(struct connect_reader *reader, struct str *in, unsigned *out_flags,
                                      struct str *out_payload, struct err *err) must_use;
/* At the end of the body: is there half an envelope left? */
bool connect_reader_is_whole(const struct connect_reader *reader);

/* ---- headers ---- */

/*
 * Connect-Timeout-Ms: at most ten digits; a fraction is cut off, because old clients sent one. An empty text is no
 * timeout, 0.
 */
bool connect_timeout_parse(struct str text, uint64_t *out_ms, struct err *err) must_use;

#endif
