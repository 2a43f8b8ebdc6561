/*
 * relay.h - copies between two streams, in both directions: tunnels.
 *
 * Stops reading one side while the other side's queue is full (backpressure). The orderly end of one side is passed on,
 * and the other side may go on sending; if it sends nothing for LIMIT_RELAY_LINGER_MS, the relay ends. A failure of one
 * side ends both.
 *
 *     relay = relay_new(loop, done, context)
 *     a = …a stream made with &relay_events and owner relay…, b likewise
 *     relay_join(relay, a, b)
 *
 * Ownership  The relay owns the streams once they are joined. The caller frees the relay, from done() too.
 */
#ifndef IO_RELAY_H
#define IO_RELAY_H

#include "base/attr.h"
#include "io/loop.h"
#include "io/stream.h"

struct relay;

extern const struct stream_events relay_events;

typedef void relay_done_fn(void *context); /* both sides have ended, or one failed; the last call */
struct relay *relay_new(struct loop *loop, relay_done_fn *done, void *context) must_use;
void relay_join(struct relay *relay, struct stream *a, struct stream *b);
/* Close both sides so that neither can take it for an orderly end. No done(). */
void relay_abort(struct relay *relay);
void relay_free(struct relay *relay); /* closes both sides, no done(); NULL is fine */

#endif
