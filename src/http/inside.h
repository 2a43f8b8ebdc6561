/*
 * inside.h - the server's own: a connection, the exchange on it, and how the files of this folder share them.
 *
 *     server.c      listens, lets in and makes room; memory that all bodies share
 *     connection.c  the life of one connection: a request's head, its exchange, the end
 *     body.c        what the client sends after the head
 *     answer.c      what we send
 *     patience.c    how long we wait, for what
 *
 * An exchange has two sides that are independent of each other: the body (enum body_state) and the answer (enum
 * answer_state). It is over for its owner once the answer is with the kernel; for the connection once the body has been
 * read or dropped too.
 */
#ifndef HTTP_INSIDE_H
#define HTTP_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/queue.h"
#include "http/http.h"

enum {
    BODY_INPUT_BYTES = 256 * 1024, /* the most that one read takes */
    EARLY_INPUT_BYTES = 4096,      /* before the body is wanted */
};

enum conn_state {
    CONN_HEAD,   /* waits for a request, or for the rest of its head */
    CONN_BUSY,   /* an exchange is under way */
    CONN_LINGER, /* the last answer is written; input is discarded until the client has closed */
    CONN_CLOSED, /* the stream is gone; freed when the turn ends */
    CONN_STATE_COUNT,
};

enum body_state {
    BODY_WAITING,    /* the owner has not chosen yet */
    BODY_READING,    /* goes to on_body() */
    BODY_COLLECTING, /* goes to the arena */
    BODY_DISCARDING, /* read and dropped */
    BODY_DONE,
};

enum answer_state {
    ANSWER_NONE,
    ANSWER_STARTED,
    ANSWER_ENDED,
};

struct exchange {
    struct http_exchange outer;
    struct connection *connection; /* NULL once gone */
    bool told;                     /* on_gone() was called, or must not be */

    enum body_state body;
    bool body_paused, continue_owed;
    struct http_body incoming;
    uint64_t discarded;
    uint64_t body_idle_ms; /* 0: no limit */
    http_collected_fn *collected;
    size_t collect_cap;
    bool collect_over, starved; /* it grew too large; or all together did, and this one is given up */
    struct buf collect;
    struct queue_link collecting;
    struct http_server *lender; /* whose budget holds `lent` bytes for us; NULL when that is none */
    size_t lent;

    enum answer_state answer;
    bool chunked, has_length, bodiless, close_after;
    bool is_spliced;      /* the rest of it comes from another stream */
    uint64_t answer_left; /* with has_length */
};

/* Since when a counter has not moved (enough) while we wait for it. */
struct patience {
    bool waiting;
    uint64_t seen, since_ms;
};

struct connection {
    struct http_server *server;
    struct loop *loop;
    struct stream *stream;
    enum conn_state state;
    struct connection *next, *previous;
    struct exchange *ex;
    size_t scanned;    /* bytes of an unfinished head that were looked at */
    uint64_t requests; /* ever */
    bool stepping, drained;
    unsigned pieces_left;      /* of a body, in this step */
    bool trusted;              /* see http_trust() */
    bool is_refused;           /* too many: it was only let in to be told so */
    struct queue_link resting; /* while it could make room for another */
    uint64_t rested_after;     /* requests */
    struct timer soon, watchdog;
    struct patience idle, head, body, write, linger;
};

struct http_server {
    struct loop *loop;
    struct http_server_config config;
    struct listener *listener;
    struct connection *connections;
    unsigned connection_count, refused_count;
    struct queue strangers, known; /* connections that may be closed for a new one */
    struct queue collecting;       /* exchanges whose bodies are being collected */
    size_t lent;                   /* collected bytes of all exchanges, also of those whose client has gone */
    unsigned references;           /* our own, and one for each exchange with lent bytes */
    struct exchange *spare;        /* the next head is parsed into it, so that it need not be copied */
    struct buf scratch;            /* heads of answers; their arenas may be with a worker */
};

static inline struct exchange *exchange_of(const struct http_exchange *ex)
{
    return container_of(ex, struct exchange, outer);
}

/* ---- server.c ---- */

/*
 * Counts bytes of a collected body for all exchanges together. The exchange holds the server until it gives them back.
 */
void server_lend(struct http_server *server, struct exchange *e, size_t size);
void server_take_back(struct exchange *e);
/* After every step: notes whether the connection may be closed for a new one. */
void server_settle(struct connection *c);

/* ---- connection.c ---- */

/* Advance it until nothing more can be done now. Every event leads here. */
void conn_step(struct connection *c);
/* There is something to do: for the step that is running, or for one when the turn ends. */
void conn_poke(struct connection *c);
void conn_close(struct connection *c, bool as_reset);
/* After the last answer: end our side, wait for theirs. */
void conn_linger(struct connection *c);
extern const struct stream_events conn_events;

/* From here on every call for it is a no-op. */
void exchange_detach(struct exchange *e);
void exchange_tell_gone(struct exchange *e);

/* ---- body.c ---- */

/* Handles the body bytes at hand, as far as the step's pieces_left goes. Afterwards the exchange may be over. */
void body_step(struct connection *c, struct exchange *e);
void body_discard(struct exchange *e);
/* Too much of it is left to discard, or its end is unknown: the connection has to close. */
bool body_is_unbounded(const struct exchange *e);

/* ---- answer.c ---- */

/*
 * An answer of our own, without a handler; the connection ends with it. Clients repeat a request that got 502 or 503,
 * unless told otherwise. Only with 503 do we know that the request had no effect.
 */
void conn_refuse(struct connection *c, unsigned status, const char *message);
/* The next *left bytes of the answer come from there by splice_start(). False: they have to be written. */
bool answer_splice(struct http_exchange *ex, struct stream *from, uint64_t *left) must_use;

/* ---- patience.c ---- */

/* Sets the watchdog to the nearest limit. */
void conn_watch(struct connection *c);

#endif
