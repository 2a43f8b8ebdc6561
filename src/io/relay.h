/*
 * relay.h - copies between two streams, in both directions: tunnels.
 *
 * Stops reading one side while the other side's queue is full (backpressure). The orderly end of one side is passed on,
 * and the other side may go on sending; if it sends nothing for LIMIT_RELAY_LINGER_MS, both end. That, and a failure of one
 * side, is a reset.
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
/* A stream's owner before may have read from it, and may have been told of its end. */
void relay_join(struct relay *relay, struct stream *a, struct stream *b);

/* Before relay_join(), for relays that are not as above. */
struct relay_tuning {
    /*
     * So many bytes have come from a and from b since the last call. False: read no more until relay_resume(). May be
     * NULL. The last call comes before done(), or is relay_account()'s.
     */
    bool (*moved)(void *context, uint64_t from_a, uint64_t from_b);
    uint64_t linger_ms; /* instead of LIMIT_RELAY_LINGER_MS */
    size_t queued_most; /* unsent bytes of one side before the other is not read any more */
    bool may_splice;    /* while many bytes come at once… */
    /* …and the relays of one owner have a fair share of the pipes for it: zero at first, outlives them; may be NULL. */
    uint32_t *splice_share;
};
void relay_tune(struct relay *relay, const struct relay_tuning *tuning);
void relay_resume(struct relay *relay);
void relay_account(struct relay *relay);               /* calls moved() for what has come since its last call */
uint64_t relay_progress_ms(const struct relay *relay); /* loop time of the last byte, either way */
/* Close both sides so that neither can take it for an orderly end. No done(). */
void relay_abort(struct relay *relay);
void relay_free(struct relay *relay); /* closes both sides, no done(); NULL is fine */

#endif
