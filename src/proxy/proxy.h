/*
 * proxy.h - the edge: requests to any port of any sandbox.
 *
 * Finds the sandbox that a request is for, has the driver make a socket inside, and passes request and answer on as
 * they come: bodies of any length, answers before the request has ended, server-sent events, WebSockets. A request for a
 * paused sandbox that traffic may wake waits until it runs (wake.h). A request that cannot be passed on gets an answer that
 * SDKs know (refuse.h).
 *
 * Ownership  The exchange stays http's. The proxy must outlive the server that feeds it.
 * Threads    The loop's.
 */
#ifndef PROXY_PROXY_H
#define PROXY_PROXY_H

#include <stdbool.h>

#include "base/attr.h"
#include "http/http.h"
#include "io/loop.h"
#include "io/worker.h"
#include "sandbox/sandbox.h"

struct proxy;

struct proxy *proxy_new(struct loop *loop, struct sandboxes *sandboxes) must_use;
/* Requests and tunnels at once, into all sandboxes together, instead of LIMIT_EDGE_SHARE. Tests lower it. */
void proxy_limit(struct proxy *proxy, unsigned forwards_max);
/* The same for the sandboxes that one key has made, instead of LIMIT_EDGE_KEY. */
void proxy_limit_key(struct proxy *proxy, unsigned forwards_max);
/*
 * TLS handshakes with services inside sandboxes run on these, and paused sandboxes are woken on them. Without them
 * handshakes run on the loop, and traffic wakes nothing (tests). Once.
 */
void proxy_use_workers(struct proxy *proxy, struct workers *workers);
/* Cuts everything that is still open. With workers: after them. */
void proxy_free(struct proxy *proxy);

/* Is this request for a sandbox, by its head alone? All other requests are the API's. */
bool proxy_is_edge(const struct proxy *proxy, const struct http_head *head);
/* As http_request_fn does: takes the exchange over. */
void proxy_handle(struct proxy *proxy, struct http_exchange *ex);

/* The sandbox is gone: reset what is open with it, so that no client takes part of an answer for the whole. */
void proxy_cut(struct proxy *proxy, const char *sandbox_id);

#endif
