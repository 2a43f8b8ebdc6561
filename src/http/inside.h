/*
 * inside.h - the server's own: a connection, the exchange on it, and how the files of this folder share them.
 *
 *     server.c      listens, lets in and makes room; memory that all bodies share
 *     connection.c  the life of one connection, in either protocol
 *     http1.c       HTTP/1.1: one exchange after the other, and how their bytes are framed
 *     http2.c       HTTP/2: many exchanges at once, by nghttp2; http2_head.c, http2_flood.c
 *     body.c        what the client sends after the head
 *     answer.c      what we send
 *     patience.c    how long we wait, for what
 *
 * The two protocols are two tables of functions (struct http_protocol); all else is written once.
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

/* Since when a counter has not moved (enough) while we wait for it. */
struct patience {
    bool waiting;
    uint64_t seen, since_ms;
};

struct exchange {
    struct http_exchange outer;
    struct connection *connection; /* NULL once gone */
    struct queue_link place;       /* among its connection's exchanges; stays there for a while after it is gone */
    struct queue_link due;         /* HTTP/2: among those that the next step looks at */
    struct http2_stream *stream;   /* HTTP/2: what carries it; NULL with HTTP/1.1 */
    bool told;                     /* on_gone() was called, or must not be */

    enum body_state body;
    bool body_paused, continue_owed;
    struct buf *input; /* what has come of the body: in the connection's buffer, or, with HTTP/2, in its own */
    bool input_ended;  /* HTTP/2: nothing follows that */
    struct http_body incoming;
    uint64_t body_bytes; /* taken from `input` so far */
    struct patience body_wait;
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
    bool is_spliced;        /* the rest of it comes from another stream */
    uint64_t answer_left;   /* with has_length */
    uint64_t written, sent; /* HTTP/2: bytes of the answer's body, and how many the client's windows have let out */
    struct patience write_wait;
};

struct connection {
    struct http_server *server;
    struct loop *loop;
    struct stream *stream;
    const struct http_protocol *protocol;
    bool is_chosen; /* the protocol does not change any more */
    enum conn_state state;
    struct connection *next, *previous;
    struct queue exchanges;  /* HTTP/1.1: one at most */
    struct queue due;        /* HTTP/2: those that something has happened to */
    struct http2 *http2;     /* HTTP/2: the session; NULL with HTTP/1.1 */
    size_t scanned;          /* HTTP/1.1: bytes of an unfinished head that were looked at */
    bool in_head;            /* HTTP/2: part of a head is there, the rest is not */
    uint64_t requests;       /* ever */
    uint64_t requests_until; /* the step ends */
    bool stepping, drained;
    unsigned pieces_left; /* of a body, in this step */
    bool trusted;         /* see http_trust() */
    char label[HTTP_LABEL_BYTES];
    bool is_refused;           /* too many: it was only let in to be told so */
    struct queue_link resting; /* while it could make room for another */
    uint64_t rested_after;     /* requests */
    struct timer soon, watchdog;
    struct patience idle, head, write, linger;
};

/*
 * What the protocols do differently. `c` has a stream in all of these. An exchange's functions are called while it is
 * not gone, unless they say otherwise.
 */
struct http_protocol {
    /* ---- a connection ---- */
    void (*begin)(struct connection *c);
    bool (*step)(struct connection *c);       /* in CONN_HEAD or CONN_BUSY: true if it may be called again at once */
    void (*want_input)(struct connection *c); /* how much of its input is read, and when we are woken for it */
    void (*ended)(struct connection *c);      /* the client has closed its side */
    void (*finish)(struct connection *c);     /* idle for too long: close it in order */
    bool (*goodbye)(struct connection *c);    /* it closes now: true if the client has been told, and needs no reset */
    void (*release)(struct connection *c, struct exchange *e); /* the connection is done with it, gone or not */
    void (*free)(struct connection *c);                        /* it is closed: without a stream */

    /* ---- an exchange ---- */
    /* The head of its answer, and all of the body if that is not NULL. False: a field cannot be sent, nothing was. */
    bool (*start)(struct exchange *e, const struct http_field *fields, size_t count, const struct str *whole);
    void (*write)(struct exchange *e, struct str bytes);
    void (*send_file)(struct exchange *e, int file_fd, off_t offset, uint64_t size); /* takes the descriptor */
    bool (*splice)(struct exchange *e, struct stream *from, uint64_t *left);
    bool (*is_full)(const struct exchange *e);
    void (*end)(struct exchange *e);
    /* Now, so that the client cannot take its answer for finished. It may be gone already. */
    void (*cut)(struct connection *c, struct exchange *e);
    /* With a whole answer of our own. `e` is NULL before there is an exchange: then the connection ends with it. */
    void (*refuse)(struct connection *c, struct exchange *e, unsigned status, const struct http_field *fields,
                   size_t count, struct str body);
    void (*send_continue)(struct exchange *e);
};
extern const struct http_protocol http1_protocol;

struct http_server {
    struct loop *loop;
    struct http_server_config config;
    struct listener *listener;
    struct connection *connections;
    unsigned connection_count, refused_count;
    struct queue strangers, known; /* connections that may be closed for a new one */
    struct queue collecting;       /* exchanges whose bodies are being collected */
    size_t lent;                   /* collected bytes of all exchanges, also of those whose client has gone */
    size_t held;                   /* HTTP/2: bytes of bodies that wait for their owners, see http2.c */
    unsigned stream_count;         /* HTTP/2: exchanges of all connections together */
    unsigned wide_count;           /* HTTP/2: connections with a larger window */
    unsigned references;           /* our own, and one for each exchange with lent bytes */
    struct exchange *spare;        /* the next head is parsed into it, so that it need not be copied */
    struct buf scratch;            /* heads of answers; their arenas may be with a worker */
};

static inline struct exchange *exchange_of(const struct http_exchange *ex)
{
    return container_of(ex, struct exchange, outer);
}

/* The only one with HTTP/1.1; NULL if there is none. */
static inline struct exchange *conn_first(const struct connection *c)
{
    return c->exchanges.first ? container_of(c->exchanges.first, struct exchange, place) : NULL;
}

/* ---- server.c ---- */

/* A connection that speaks this protocol; NULL: HTTP/1.1, or what its TLS handshake agrees on. Takes the descriptor. */
void server_adopt(struct http_server *server, int fd, const struct http_protocol *protocol);
/* May there be another exchange on a connection with HTTP/2? Closes a connection that rests, if that helps. */
bool server_has_room(struct http_server *server, const struct connection *c);
/* An unused exchange to parse a head into. */
struct exchange *server_spare(struct http_server *server);

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
void conn_due(struct connection *c, struct exchange *e); /* HTTP/2: the next step looks at it */
void conn_enter(struct connection *c, enum conn_state next);
void conn_close(struct connection *c, bool as_reset);
/* After the last answer: end our side, wait for theirs. */
void conn_linger(struct connection *c);
extern const struct stream_events conn_events;

/* An exchange whose head is complete becomes the connection's… */
void exchange_attach(struct connection *c, struct exchange *e, struct buf *input);
/* …and the handler's. */
void exchange_begin(struct connection *c, struct exchange *e);
void exchange_poke(struct exchange *e); /* conn_poke() for what has happened to this one */
/* From here on every call for it is a no-op. */
void exchange_detach(struct exchange *e);
void exchange_tell_gone(struct exchange *e);
void exchange_release(struct connection *c, struct exchange *e); /* it leaves the connection */

/* ---- body.c ---- */

/* Handles the body bytes at hand, as far as the step's pieces_left goes. Afterwards the exchange may be over. */
void body_step(struct connection *c, struct exchange *e);
void body_discard(struct exchange *e);
/* Too much of it is left to discard, or its end is unknown: the connection has to close. */
bool body_is_unbounded(const struct exchange *e);

/* ---- answer.c ---- */

/*
 * An answer of our own, without a handler; with HTTP/1.1, or without an exchange, the connection ends with it. Clients
 * repeat a request that got 502 or 503, unless told otherwise. Only with 503 do we know that the request had no effect.
 */
void conn_refuse(struct connection *c, struct exchange *e, unsigned status, const char *message);
bool answer_has_body(unsigned status);
/* The next *left bytes of the answer come from there by splice_start(). False: they have to be written. */
bool answer_splice(struct http_exchange *ex, struct stream *from, uint64_t *left) must_use;

/* ---- patience.c ---- */

/* Sets the watchdog to the nearest limit of the connection and of its first exchange… */
void conn_watch(struct connection *c);
/* …and, with HTTP/2, of each exchange that something has happened to. */
void exchange_watch(struct connection *c, struct exchange *e);

#endif
