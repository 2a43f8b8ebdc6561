/*
 * intercept.h - requests to hosts that a policy has header rules for: TLS is ended here, the headers are set, and the
 * request goes on to the host over TLS of our own.
 *
 * The guest's side is a descriptor: bytes of the guest's TLS connection go in and out of it. The host is verified by its
 * name against the certificates that this machine trusts, whatever address the guest has connected to, so that what the
 * headers carry reaches that host alone. For the same reason a request for another host (Host is not the name that TLS
 * was asked for) is refused, and so is TRACE, which would show the headers to the guest.
 *
 * HTTP/1.1 both ways, read strictly (http/, wire/http1): requests are decoded and written anew. Each request has a
 * connection of its own to the host, at the first of its addresses that accepts. WebSocket and other upgrades become a
 * relay.
 *
 * A host that cannot be reached is answered for with 502 and the reason, one that takes too long with 504: so long for each
 * of connecting, the wait for a handshake's turn, the handshake, and the answer. An answer that has begun may be as slow as
 * any other connection.
 *
 * Ownership  The caller owns the interceptor and the descriptor that it gets. What `want` points to must outlive it.
 * Threads    The loop's.
 */
#ifndef EGRESS_INTERCEPT_H
#define EGRESS_INTERCEPT_H

#include "base/attr.h"
#include "base/err.h"
#include "egress/handshakes.h"
#include "egress/tunnel.h"
#include "io/loop.h"
#include "io/tls.h"
#include "policy/net_policy.h"

struct intercept;

struct intercept_want {
    struct loop *loop;
    struct tls_server *tls;              /* towards the guest; has a certificate for `name` */
    struct tls_client *trust;            /* towards the host… */
    struct handshakes *handshakes;       /* …and what handshakes with it are counted with */
    const char *name;                    /* copied */
    const struct net_address *addresses; /* of the host: ours, or judged; copied, LIMIT_EGRESS_TRIES at most */
    uint32_t address_count;              /* 0: its name leads nowhere… */
    bool is_late;                        /* …or no name server has answered */
    uint16_t port;
    int buffer_bytes; /* for socket_dial() */
    /* The rule that counts now, asked for each request; NULL: none any more. */
    const struct net_transform *(*rule)(void *context);
    /* Asked before each dial: is this address still one that the sandbox may reach? */
    bool (*may_dial)(void *context, const struct net_address *to);
    /* A request was answered with 502 or 504, for this reason. */
    void (*failed)(void *context, const struct err *err);
    /* Through a proxy: begins a tunnel to the host. NULL: connections are direct. */
    struct tunnel *(*tunnel)(void *context, tunnel_done_fn *done, void *done_context);
    void *context;
};

/* *out_fd is the guest's side, non-blocking. NULL: no descriptors are left. */
struct intercept *intercept_new(const struct intercept_want *want, int *out_fd, struct err *err) must_use;
void intercept_free(struct intercept *intercept); /* open requests are cut; NULL is fine */

#endif
