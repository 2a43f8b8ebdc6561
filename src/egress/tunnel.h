/*
 * tunnel.h - a connection through the SOCKS5 proxy that a policy names (egressProxy).
 *
 * Looks the proxy up, connects, puts TLS beneath if the policy says so, and has the proxy connect to the destination. The
 * stream that comes out is the destination's. Everything that goes wrong ends in a failure: there is no way around the
 * proxy. The proxy is on the operator's side of the wall, so it is not dialed at an address that a sandbox could not reach
 * by itself (may_dial).
 *
 * Ownership  The tunnel owns its connection until done() gets it. The caller frees the tunnel, from done() too.
 * Threads    The loop's.
 */
#ifndef EGRESS_TUNNEL_H
#define EGRESS_TUNNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "egress/handshakes.h"
#include "egress/resolver.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/tls.h"
#include "policy/net_policy.h"

struct tunnel;
struct egress_sandbox; /* inside.h */

/*
 * A stream that reads nothing yet and has no owner, or NULL and the reason; ERR_LIMIT: the sandbox has asked too many
 * questions to look the proxy up. Once, never from inside tunnel_new().
 */
typedef void tunnel_done_fn(void *context, struct stream *stream, const struct err *err);

struct tunnel_want {
    struct loop *loop;
    struct egress_sandbox *sandbox; /* whose questions the proxy's name is one of */
    const struct net_proxy *proxy;  /* copied */
    struct tls_client *tls;         /* with proxy->tls: whom to trust… */
    struct handshakes *handshakes;  /* …and whose handshakes it is counted with */
    bool (*may_dial)(void *dial_context, const struct net_address *address, uint16_t port);
    void *dial_context;
    struct str name;       /* of the destination, for the proxy to look up; empty: */
    struct net_address to; /* …its address */
    uint16_t port;
    size_t in_cap;    /* of the stream */
    int buffer_bytes; /* for socket_dial() */
    tunnel_done_fn *done;
    void *context;
};

struct tunnel *tunnel_new(const struct tunnel_want *want) must_use;
void tunnel_free(struct tunnel *tunnel); /* no done(); NULL is fine */

#endif
