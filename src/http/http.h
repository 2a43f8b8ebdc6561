/*
 * http.h - HTTP on a loop: a server (HTTP/1.1, HTTP/2), a router, a client (HTTP/1.1).
 *
 * A server hands every request to one function as soon as its head is there. From then on the two sides are
 * independent: the body arrives in pieces while an answer may already be on its way, and either may be made to wait.
 *
 *     on_request(ex)            look at ex->head, set ex->events and ex->owner, then
 *       http_collect(…)         …to have the body in one piece (control calls), or
 *       http_body_start(ex)     …to get it by on_body() as it arrives (uploads, RPC streams, the proxy)
 *     http_reply(…)             a whole answer, or
 *     http_start(…), http_write(…)…, http_end(…)      one that streams, or
 *     http_abort(ex)            reset it, so that the client cannot take it for finished
 *
 * Callbacks  Come from the loop, never from inside one of these calls: after http_reply() or http_abort() the caller's
 *            own objects are still there, on_gone() follows when the turn ends. (http_server_free() is the exception.)
 * Half-close A client that closes its side before it has the whole answer has gone: that is how every SDK cancels. We
 *            notice without writing.
 * Ownership  The server owns the exchange. Its arena, head and strings live until on_gone() has returned, or until
 *            the last http_unref(), if there are references. After on_gone() every call here is a no-op, so an answer
 *            that comes from a worker too late is dropped.
 * Threads    The loop's, except that the arena may be used by the worker that holds the exchange meanwhile.
 * Slow peers The head has LIMIT_HEAD_MS, a body LIMIT_BODY_IDLE_MS between reads (only while we want to read it), a
 *            client for which bytes are queued and that takes fewer than LIMIT_WRITE_LEAST_BYTES of them in
 *            LIMIT_WRITE_IDLE_MS is gone; idle keep-alive LIMIT_KEEPALIVE_MS.
 * HTTP/2     Is spoken on connections that have agreed on it in their TLS handshake, if the server has `http2`. Handlers
 *            see no difference: ex->head reads as if it had come by HTTP/1.1, where a body of unknown length is
 *            HTTP_CHUNKED. http_abort() resets the exchange's own stream, http_upgrade() is NULL.
 * Crowds     At connections_max the connection that was idle for the longest is closed for a new one, connections
 *            without http_trust() first. When none is idle the new one gets a 503 that says to try again.
 */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"
#include "io/stream.h"
#include "wire/http1.h"

struct http_server;
struct http_exchange;

/* The owner of an exchange fills this in. Any member may be NULL. */
struct http_events {
    void (*on_body)(struct http_exchange *ex, struct str piece); /* use it now: it is gone afterwards */
    void (*on_body_end)(struct http_exchange *ex);
    void (*on_drained)(struct http_exchange *ex); /* what was written is with the kernel: write more */
    /*
     * The last call for this exchange: it was answered in full and the answer is with the kernel, or the client went
     * away, or we aborted. The owner lets go of it here. Exactly once, unless the exchange was upgraded.
     */
    void (*on_gone)(struct http_exchange *ex);
};

struct http_exchange {
    struct arena arena;
    struct http_head head; /* its strings live in the arena */
    struct loop *loop;
    const struct http_events *events;
    void *owner;
    /* The answer so far, for logs and tests. */
    unsigned status; /* 0: none yet */
    bool gone;
    /* private: see http/inside.h */
    void *connection;
    unsigned references;
};

struct http_protocol;
extern const struct http_protocol http2_protocol; /* in a library of its own, which brings nghttp2 */

typedef void http_request_fn(struct http_exchange *ex, void *context);

struct http_server_config {
    http_request_fn *on_request;
    void *context;
    /* A new connection, before anything was read: TLS may be put beneath it (io/tls.h). May be NULL. */
    void (*on_connection)(struct stream *stream, void *context);
    size_t collect_max;       /* 0: LIMIT_COLLECT_BYTES; see http_collect() */
    unsigned connections_max; /* 0: LIMIT_CONNECTIONS */
    /* Patience, in milliseconds; 0: the limit of the same name in base/limits.h. Tests shorten it. */
    uint64_t head_ms, body_idle_ms, write_idle_ms, keepalive_ms;
    uint64_t stranger_ms;              /* keep-alive of connections without http_trust(); 0: keepalive_ms */
    uint64_t linger_ms;                /* for a client to close after our last answer; 0: two seconds */
    const struct http_protocol *http2; /* &http2_protocol, or NULL: HTTP/1.1 only */
};

/* Takes the listening descriptor; -1 for a server that only adopts. */
struct http_server *http_server_new(struct loop *loop, int listen_fd, const struct http_server_config *config) must_use;
/* Stop accepting; exchanges under way are aborted; frees. */
void http_server_free(struct http_server *server);
/* Serve one connection that is already there (tests, guestd's unix sockets). Takes the descriptor. */
void http_server_adopt(struct http_server *server, int fd);
/* The same for a connection whose other end is known: http_label() of each of its exchanges. Copied, HTTP_LABEL_BYTES. */
enum { HTTP_LABEL_BYTES = 64 };
void http_server_adopt_as(struct http_server *server, int fd, const char *label);
const char *http_label(const struct http_exchange *ex); /* "" if there is none, or the exchange is gone */

/*
 * Authenticated. Sticky for the connection: long keep-alive, evicted last.
 */
void http_trust(struct http_exchange *ex);

/* The address at the other end. Untouched if there is none: the client has gone, or came by a unix socket. */
void http_peer(const struct http_exchange *ex, struct sockaddr_storage *out);
/* Did it come over TLS? False once the client has gone. */
bool http_is_tls(const struct http_exchange *ex);

/* ---- reading the body ---- */

/*
 * Begin to deliver the body by on_body / on_body_end (also when there is none). Sends 100 Continue if it was asked for.
 */
void http_body_start(struct http_exchange *ex);
/* Make the client wait (backpressure), or let it go on. */
void http_body_pause(struct http_exchange *ex, bool pause);
/* Instead of LIMIT_BODY_IDLE_MS; 0: for ever, for streams that may be silent for long. */
void http_body_patience(struct http_exchange *ex, uint64_t idle_ms);
/*
 * The whole body in the arena, then done(). More than cap bytes: done() with ERR_LIMIT (nothing was answered yet). When
 * the bodies of all exchanges that are not yet answered and freed pass the server's collect_max, those that were
 * started first are given up: done() with ERR_UNAVAILABLE. If the client goes away, on_gone() is called and not done().
 */
typedef void http_collected_fn(struct http_exchange *ex, struct str body, const struct err *err);
void http_collect(struct http_exchange *ex, size_t cap, http_collected_fn *done);
/*
 * Discard the rest of the body: up to LIMIT_DISCARD_BYTES are read, past that the connection closes after the answer.
 * The end of an answer does this too: on_body() is not called after it.
 */
void http_body_discard(struct http_exchange *ex);

/* ---- answering ---- */

struct http_field {
    struct str name, value;
};

/*
 * A whole answer. Content-Length is added; Content-Type and the like are fields (Content-Length, Transfer-Encoding and
 * Connection among them are left out: those are the server's). HEAD: the body is counted, not sent. The first answer to
 * an exchange counts, a second one is dropped.
 */
void http_reply(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                struct str body);

/* A streaming answer: with a known length, or chunked (HTTP/1.0 clients get it until close). */
#define HTTP_LENGTH_UNKNOWN UINT64_MAX
void http_start(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                uint64_t length);
void http_write(struct http_exchange *ex, struct str bytes); /* one chunk, when chunked; never buffered for long */
/* size bytes of a file without copying them through us; for answers with a length, once. Takes the descriptor. */
void http_send_file(struct http_exchange *ex, int file_fd, off_t offset, uint64_t size);
bool http_is_full(const struct http_exchange *ex); /* wait for on_drained() before writing more */
/* Done. With a known length that was not reached, this is an abort. */
void http_end(struct http_exchange *ex);
/* A reset, of the connection or of the HTTP/2 stream: no orderly end. on_gone() follows. */
void http_abort(struct http_exchange *ex);
/* The connection will not be used again after this answer. */
void http_close_after(struct http_exchange *ex);

/*
 * After a 101 (status line, fields and "Connection: Upgrade" are sent by this call): the connection stops being HTTP
 * and becomes the caller's stream, reading, with whatever the client has already sent in stream->in. The exchange is
 * gone afterwards (no on_gone()); its arena lives until this callback returns, or as long as it is referenced. NULL if
 * the exchange is gone or answered, came by HTTP/2, or if its request has a body that was not read to its end.
 */
struct stream *http_upgrade(struct http_exchange *ex, const struct http_field *fields, size_t field_count,
                            const struct stream_events *events, void *owner) must_use;

void http_ref(struct http_exchange *ex);
void http_unref(struct http_exchange *ex);

/* ---- passing messages on ---- */

/* Is the field of one connection, or written anew for the next one? Then it is not passed on. */
bool http_is_hop_field(const struct http_head *head, struct str name);
bool http_wants_upgrade(const struct http_head *request);
/* The fields of an answer that are passed on. Returns how many. */
size_t http_pass_fields(const struct http_head *answer, struct http_field out[LIMIT_HEADERS]);
/* The length that an answer announces. For HEAD it is that of GET's answer, and no body follows. */
uint64_t http_announced_length(const struct http_head *answer);

/* ---- router ---- */

/*
 * Works on the raw path: split at "/", match segment by segment, decode each captured segment once. So "%2F" inside a
 * segment is part of a name and never a separator. Leading slashes are collapsed ("//process.Process/Start"); an empty
 * segment elsewhere matches nothing. The first row that matches counts, so fixed segments stand before "{names}".
 */
enum { HTTP_ROUTE_PARAMS = 4 };

struct http_route {
    enum http_method method;
    const char *pattern; /* "/sandboxes/{id}/connect" */
    void *handler;       /* the caller's: a function or a row of its own table */
    unsigned flags;      /* the caller's */
    const char *help;    /* one line for docs and `cloister routes` */
};

struct http_match {
    const struct http_route *route; /* NULL: no such path, or not with that method */
    bool path_known;                /* the path exists; without a route, with other methods: 405, see `allow` */
    char allow[64];                 /* "GET, POST" when path_known */
    size_t param_count;
    struct str params[HTTP_ROUTE_PARAMS]; /* decoded, in the order of the pattern; in the arena */
};

/* False only for a path that is malformed (broken escape, zero byte): a 400. HEAD matches GET routes. */
bool http_route(const struct http_route *routes, size_t count, const struct http_head *head, struct arena *arena,
                struct http_match *out, struct err *err) must_use;

/* The decoded value of a query parameter ("+" is a space). False if it is absent or its escapes are broken. */
bool http_query(const struct http_head *head, struct arena *arena, struct str name, struct str *out_value) must_use;

/* ---- client ---- */

/*
 * One request on a connection of the caller's. The answer's body arrives in pieces. For the proxy (with a socket made
 * in a sandbox) and for the command line.
 */
struct http_call;

struct http_call_events {
    /* The head of the final answer (1xx other than 101 are skipped). Strings live as long as the call. */
    void (*on_head)(struct http_call *call, const struct http_head *head);
    void (*on_body)(struct http_call *call, struct str piece);
    void (*on_end)(struct http_call *call); /* complete and well-framed; the last callback */
    /*
     * It broke: before the head (err->kind UNAVAILABLE: the peer never answered) or in the middle (cut off, reset, or
     * not HTTP: err->kind INVALID or LIMIT). The last callback.
     */
    void (*on_error)(struct http_call *call, const struct err *err);
    void (*on_drained)(struct http_call *call); /* write more of the request body */
};

/*
 * Takes the descriptor: a connected socket, or one whose connect() is under way. `head` is a finished request head as
 * bytes (http_write_request_line … http_write_head_end), `framing` how its body will be sent.
 */
struct http_call *http_call_new(struct loop *loop, int fd, bool connecting, struct str head, enum http_method method,
                                enum http_framing framing, const struct http_call_events *events, void *owner) must_use;
/*
 * The same on a connection that http_call_take_idle() has given, or on a new stream that may have TLS beneath it and
 * whose `in` holds LIMIT_HEAD_BYTES at least.
 */
struct http_call *http_call_again(struct loop *loop, struct stream *idle, struct str head, enum http_method method,
                                  enum http_framing framing, const struct http_call_events *events, void *owner)
    must_use;
void *http_call_owner(const struct http_call *call);
void http_call_write(struct http_call *call, struct str bytes); /* request body; framed as chunks if so chosen */
void http_call_finish(struct http_call *call);                  /* request body is complete */
bool http_call_is_full(const struct http_call *call);
void http_call_pause(struct http_call *call, bool pause); /* of the answer's body */
/*
 * From here on the answer's body may be spliced to an exchange whose answer was started with the same length: on_body()
 * is not called for that part. on_end() or on_error() follows as always. The exchange lives as long as the call.
 */
void http_call_splice(struct http_call *call, struct http_exchange *ex);
/*
 * In or after on_end of a keep-alive answer whose request was finished: the connection for the next call, or NULL. It
 * is still reading: whatever comes before that call, bytes or the end, makes it useless.
 */
struct stream *http_call_take_idle(struct http_call *call, const struct stream_events *events, void *owner) must_use;
/* In or after on_head with status 101: the connection as a raw stream, reading; see `in` first. The call is freed. */
struct stream *http_call_take_stream(struct http_call *call, const struct stream_events *events, void *owner) must_use;
void http_call_free(struct http_call *call); /* closes; NULL is fine; from callbacks too */

/*
 * For programs that wait (the command line, tests): one request, whole answer, with a time limit. `address` is
 * "127.0.0.1:7070". The answer lives in the arena.
 */
struct http_answer {
    unsigned status;
    struct http_head head;
    struct str body;
};
bool http_fetch(struct arena *arena, struct str address, struct str method, struct str target,
                const struct http_field *fields, size_t field_count, struct str body, uint64_t timeout_ms,
                struct http_answer *out, struct err *err) must_use;

#endif
