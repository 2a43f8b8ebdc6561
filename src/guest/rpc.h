/*
 * rpc.h - Connect RPC on an HTTP exchange: content types, deadlines, users, envelopes, errors.
 *
 * A method is a row (struct rpc_method). Its call() gets the decoded request and answers now or later:
 *
 *   unary           rpc_reply() or rpc_fail(), once
 *   server stream   rpc_send()…, then rpc_finish() or rpc_fail()
 *   client stream   call() for every message as it arrives, end() after the last; then as unary, in envelopes
 *
 * Every error of a stream, even the first, is HTTP 200 and an end-of-stream envelope: SDKs look only there.
 *
 * Ownership  The rpc lives in the arena of its exchange, until on_gone() has returned. JSON given to call() is freed
 *            when call() returns.
 */
#ifndef GUEST_RPC_H
#define GUEST_RPC_H

#include <stdbool.h>

#include "guest/guest.h"
#include "wire/connect.h"
#include "wire/json.h"

struct rpc;

enum rpc_kind {
    RPC_UNARY,
    RPC_SERVER_STREAM,
    RPC_CLIENT_STREAM,
};

struct rpc_method {
    const char *name; /* "process.Process/Start" */
    enum rpc_kind kind;
    void (*call)(struct rpc *rpc, const json_t *request);
    void (*end)(struct rpc *rpc); /* client streams only */
};

struct rpc {
    struct guest *guest;
    struct http_exchange *ex;
    const struct rpc_method *method;
    struct arena *arena; /* the exchange's */
    struct user user;
    uint64_t timeout_ms;           /* Connect-Timeout-Ms; 0: none */
    uint64_t keepalive_ms;         /* of streams */
    void *owner;                   /* the method's */
    struct http_field extra_field; /* of a unary answer; empty: none */

    /* The method may set these when it does not answer at once. */
    void (*on_gone)(struct rpc *rpc);     /* answered in full, or the client left */
    void (*on_drained)(struct rpc *rpc);  /* rpc_is_full() no longer holds */
    void (*on_deadline)(struct rpc *rpc); /* instead of failing with deadline_exceeded */

    /* private */
    struct timer deadline, keepalive;
    struct str keepalive_event;
    bool is_answered, has_started;
    struct connect_reader reader;
    struct buf held; /* of a client stream's body, while it waits */
    bool is_waiting, body_ended, in_calls;
    size_t answer_bytes, input_bytes; /* its part of the guest's */
};

/* Take a request for this method. */
void rpc_begin(struct guest *guest, struct http_exchange *ex, const struct rpc_method *method);

/*
 * Unary and client streams: the one answer, JSON text. A large answer fails if clients have not yet taken
 * LIMIT_ANSWERS_BYTES of earlier ones.
 */
void rpc_reply(struct rpc *rpc, struct str json);

/* Server streams: one message. The head goes out with the first. */
void rpc_send(struct rpc *rpc, struct str json);
/* The same for envelopes that are built already. */
void rpc_send_envelopes(struct rpc *rpc, struct str envelopes);
bool rpc_is_full(const struct rpc *rpc);
/* From now on: a message to send whenever nothing else was sent for keepalive_ms. Literal text. */
void rpc_keep_alive(struct rpc *rpc, struct str json);
void rpc_finish(struct rpc *rpc);
/* A last message and the end in one write: the client wakes once. */
void rpc_finish_with(struct rpc *rpc, struct str json);

/* Any kind, any time before the answer is complete. */
void rpc_fail(struct rpc *rpc, enum connect_code code, const char *format, ...) printf_like(3, 4);
/* With the code for the error's kind. */
void rpc_fail_err(struct rpc *rpc, const struct err *err);
/*
 * The same for errors in the request itself: ERR_LIMIT is then invalid_argument. SDKs take resource_exhausted for a
 * rate limit and tell people to try again, but a request that is too large will fail again.
 */
void rpc_fail_request(struct rpc *rpc, const struct err *err);
enum connect_code rpc_code_of(enum err_kind kind);

/* Client streams: stop calling call(), and make the client wait (backpressure), or go on. */
void rpc_wait(struct rpc *rpc, bool wait);

/* proto3 JSON allows both spellings of a name: looks for "watcherId", then for "watcher_id". */
const json_t *rpc_field(const json_t *object, const char *camel, const char *snake);

#endif
