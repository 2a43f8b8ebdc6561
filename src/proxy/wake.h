/*
 * wake.h - requests that wait until their paused sandbox has resumed.
 *
 * The first request for a sleeping sandbox has a worker wake it. Those that come meanwhile join. When the sandbox runs,
 * each of them goes on as if it had just come; when it does not, each gets an answer that says why. A request waits for
 * LIMIT_EDGE_WAKE_MS at most, also if its sandbox is paused again before its turn and it has to wait once more. The number of those that wait is limited, for one sandbox and in all.
 *
 * Ownership  An exchange that waits is ours until `go` is called with it, or it is answered. One whose client leaves
 *            is forgotten.
 * Threads    The loop's. Only sandbox_wake() runs on a worker.
 */
#ifndef PROXY_WAKE_H
#define PROXY_WAKE_H

#include "http/http.h"
#include "io/worker.h"
#include "proxy/target.h"
#include "sandbox/sandbox.h"

struct wakes;
/* The sandbox runs: find it again and pass the request on. until_ms: for wakes_add(), if it was paused again. */
typedef void wake_go_fn(void *context, struct http_exchange *ex, const struct target *target, uint64_t until_ms);

struct wakes *wakes_new(struct loop *loop, wake_go_fn *go, void *context) must_use;
/* Once, before the first wakes_add(). */
void wakes_use_workers(struct wakes *wakes, struct workers *workers);
/* With workers: after them. What waits is forgotten. */
void wakes_free(struct wakes *wakes);

/* The caller has checked that this request may wake it. Takes the reference. until_ms: 0 for a new request. */
void wakes_add(struct wakes *wakes, struct sandbox *sandbox, struct http_exchange *ex, const struct target *target,
               uint64_t until_ms);

#endif
