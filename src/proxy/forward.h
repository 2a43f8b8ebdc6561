/*
 * forward.h - one request on its way into a sandbox, and its answer on the way back.
 *
 *   gathering   a small body for guestd is collected first, so that it goes in with the head in one piece
 *   reaching    a connection into the sandbox is being made
 *   asking      the request is being sent; no byte of an answer yet
 *   answering   the head of the answer has been passed on: from here on a failure can only reset the client's
 *               connection
 *   tunnelling  the service answered 101: bytes in both directions (io/relay.h)
 *   done        nothing inside the sandbox is held; the client may still be taking its answer
 *
 * Bodies are not buffered: bytes go out from the buffer they were read into, large answers of a known length by splice
 * (io/splice.h), and a slow side makes the other wait (backpressure).
 *
 * Ownership  A forward belongs to its peer (one sandbox's share of the edge) and frees itself when its exchange is
 *            gone.
 */
#ifndef PROXY_FORWARD_H
#define PROXY_FORWARD_H

#include <stdint.h>

#include "base/limits.h"
#include "http/http.h"
#include "proxy/admit.h"
#include "proxy/target.h"
#include "sandbox/sandbox.h"

struct proxy;
struct forward;

/* An idle connection to guestd. It stays on the loop. */
struct idle {
    struct stream *stream;
    uint64_t since_ms;
};

/* Open requests and tunnels: all, those of outsiders, and of these those of strangers (admit.h). */
struct places {
    unsigned all, outsiders, strangers;
};

/* What the edge has open with one sandbox. */
struct peer {
    struct peer *next, **at; /* in the proxy's list: the next one, and the pointer to us */
    char id[LIMIT_ID_BYTES];
    struct proxy *proxy;
    struct owner *owner;      /* whose sandbox it is; NULL: an administrator's */
    struct forward *forwards; /* a list, the newest first */
    struct places places;
    unsigned references;               /* forwards, and walks of the list */
    struct idle idle[LIMIT_EDGE_IDLE]; /* the oldest first */
    unsigned idle_count;
};

/* How many forwards have a place at this port. */
unsigned forward_count_at(const struct peer *peer, uint16_t port);

/* Takes the reference to the sandbox. */
void forward_start(struct peer *peer, struct sandbox *sandbox, struct http_exchange *ex, const struct target *target,
                   enum admission admission);
/*
 * The outsider to evict, or NULL: the oldest stranger that we only wait for (its request is incomplete, or its answer
 * is complete, so nothing in the sandbox works for it); with `or_any`, else the oldest stranger; else the same among
 * links. Only those at `port`, unless it is 0.
 */
struct forward *forward_outsider(const struct peer *peer, uint16_t port, bool or_any);
/* Frees its place at once. A client without an answer is told that there are too many; any other is cut off. */
void forward_evict(struct forward *f);
/*
 * The sandbox is gone. A client that has part of an answer gets a reset, so that it cannot take it for the whole; a
 * client that still waits is told that there is no such sandbox. May free the peer.
 */
void forward_cut_all(struct peer *peer);

/* ---- peers: see proxy.c ---- */

/* A kept connection that is probably still good, or NULL. */
struct stream *peer_take_idle(struct peer *peer);
/* The call is over: keep its connection, if it can be used again and there are not too many. */
void peer_keep_idle(struct peer *peer, struct http_call *call);
/* Puts TLS beneath a new stream into the sandbox. The service's certificate is not verified: it is the user's own. */
bool peer_add_tls(struct peer *peer, struct stream *stream, struct err *err) must_use;
void peer_ref(struct peer *peer);
void peer_unref(struct peer *peer); /* may free the peer */
void peer_take_place(struct peer *peer, enum admission admission);
void peer_give_place(struct peer *peer, enum admission admission);
struct loop *peer_loop(const struct peer *peer);

#endif
