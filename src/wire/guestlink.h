/*
 * guestlink.h - what the host says to guestd, and guestd to the host.
 *
 * A TCP connection over the sandbox's loopback, of which keeper makes both ends (isolation/native/network.c). It can be
 * made again at any time; a new one replaces the old. Each message is a u32 length and a body; the body is a u8 type and
 * packed fields, and must be consumed whole. guestd answers WARM with WARMED, PREPARE with READY or ERROR, each other
 * message but TAKEN with OK or ERROR.
 *
 *   WARM    before SETUP: an interpreter is made that waits for the first code (docs/interpreter.md). WARMED may come
 *           while other messages are answered, but always before the answer to SETUP: if that is sent first, the
 *           interpreter is still on its way, and WARMED says so. After SETUP WARM is refused
 *   SETUP   which sandbox this is and how it behaves; includes LISTEN. Sent once at start, and again after every resume or
 *           clone: the last one counts
 *   PING    is guestd there?
 *   NETWORK  what the sandbox can reach, and whom to trust there; it has changed since SETUP
 *   LISTEN  from now on guestd sends LOG by itself on this connection, beginning with the one that was not taken before
 *   PREPARE  it will be frozen, perhaps written to disk: guestd finishes what it has begun (interpreters that start),
 *           drops what cannot be kept (watches, the zygote's socket) and answers READY with its environment
 *   RESUMED  it goes on, or the pause was given up: guestd takes up again what PREPARE dropped. After a restore a SETUP
 *           comes first, with a new id and token for a copy
 *   TAKEN   the answer to a LOG; guestd sends the next one after it
 */
#ifndef WIRE_GUESTLINK_H
#define WIRE_GUESTLINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/secret.h"
#include "base/str.h"

enum guestlink_type {
    GUESTLINK_SETUP = 1,
    GUESTLINK_PING = 2,
    GUESTLINK_LISTEN = 3,
    GUESTLINK_TAKEN = 4,
    GUESTLINK_NETWORK = 5,
    GUESTLINK_PREPARE = 6,
    GUESTLINK_RESUMED = 7,
    GUESTLINK_WARM = 8,
    GUESTLINK_OK = 64,
    GUESTLINK_ERROR = 65,
    GUESTLINK_LOG = 66,
    GUESTLINK_READY = 67,  /* the answer to PREPARE: the environment that SETUP gave, as in guestlink_setup */
    GUESTLINK_WARMED = 68, /* the answer to WARM, and to nothing else: the interpreter waits, or why there is none */
};

/* The certificate that programs in the sandbox must trust, because egress ends TLS with it for hosts with header rules. */
struct guestlink_authority {
    struct str pem; /* LIMIT_AUTHORITY_BYTES; empty: none */
    uint32_t hash;  /* of its subject, as OpenSSL names files in a directory of certificates */
};

/* What programs in the sandbox can reach. guest/network.h says what each makes of /etc. */
enum guestlink_reach {
    GUESTLINK_NOTHING,
    GUESTLINK_OUTSIDE, /* something at least, perhaps everything */
    GUESTLINK_INSIDE,  /* names that stay inside, and nothing else */
    GUESTLINK_REACH_COUNT,
};

struct guestlink_network {
    enum guestlink_reach reach;
    struct str inside; /* with GUESTLINK_INSIDE: the names, each with a newline; LIMIT_INSIDE_BYTES */
    struct guestlink_authority authority;
};

struct guestlink_env {
    struct str name, value;
};

struct guestlink_ready {
    uint32_t env_count;
    struct guestlink_env *envs; /* LIMIT_ENV_PAIRS, LIMIT_ENV_BYTES in all */
};

struct guestlink_setup {
    struct str sandbox_id;
    struct str template_id;
    struct str access_token; /* empty: everything is open */
    bool open_code;          /* run_code needs no token */
    struct str default_user;
    struct str default_workdir; /* empty: the user's home */
    struct guestlink_network network;
    uint32_t env_count;
    struct guestlink_env *envs; /* LIMIT_ENV_PAIRS, LIMIT_ENV_BYTES in all */
};

enum guestlink_log_kind {
    GUESTLINK_LOG_STARTED = 1, /* text: the command */
    GUESTLINK_LOG_ENDED,       /* text: how, in words */
    GUESTLINK_LOG_KIND_END,
};

/* Something that happened to a process that was started through the API. */
struct guestlink_log_line {
    enum guestlink_log_kind kind;
    int64_t at_us;
    uint32_t pid;
    int32_t exit_code;     /* ended: -1 for a signal */
    uint64_t output_bytes; /* ended: what it has written */
    struct str text;       /* UTF-8, LIMIT_LOG_TEXT_BYTES at most */
};

struct guestlink_log {
    uint32_t dropped; /* lines that could not be told before these */
    uint32_t line_count;
    struct guestlink_log_line *lines; /* LIMIT_LOG_BATCH at most */
};

enum { GUESTLINK_HEADER_BYTES = 4 };

/* With the length in front, ready to be sent. Check out->overflowed. */
void guestlink_write_setup(struct buf *out, const struct guestlink_setup *setup);
void guestlink_write_simple(struct buf *out,
                            enum guestlink_type type); /* PING, LISTEN, TAKEN, PREPARE, RESUMED, WARM, OK */
void guestlink_write_network(struct buf *out, const struct guestlink_network *network);
void guestlink_write_log(struct buf *out, const struct guestlink_log *log);
void guestlink_write_ready(struct buf *out, const struct guestlink_ready *ready);
void guestlink_write_error(struct buf *out, const struct err *err);
void guestlink_write_warmed(struct buf *out, const struct err *err); /* NULL: the interpreter waits */

struct guestlink_message {
    enum guestlink_type type;
    struct guestlink_setup setup;     /* with SETUP; strings borrow from the body, envs live in the arena */
    struct guestlink_log log;         /* with LOG; the same */
    struct err error;                 /* with ERROR; with WARMED too, where ERR_NONE means that there is none */
    struct guestlink_network network; /* with NETWORK; the same */
    struct guestlink_ready ready;     /* with READY; the same */
};

/* Length of the body from the first four bytes; more than LIMIT_GUESTLINK_BYTES or none is refused. */
bool guestlink_body_length(const unsigned char header[GUESTLINK_HEADER_BYTES], uint32_t *out_length, struct err *err)
    must_use;
bool guestlink_read(struct str body, struct arena *arena, struct guestlink_message *out, struct err *err) must_use;

#endif
