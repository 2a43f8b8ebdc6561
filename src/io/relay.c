/*
 * Each direction copies, until many bytes come at once. Then it is a bulk splice of SPLICE_BYTES, and of as many again
 * while that goes on. A splice that is off for lack of speed makes it copy again.
 */
#include "io/relay.h"

#include "base/limits.h"
#include "base/mem.h"
#include "io/splice.h"

enum { SPLICE_BYTES = 1 << 20 }; /* in one splice; then moved() is told */

struct side {
    struct stream *stream;
    bool ended;           /* sends nothing more */
    bool told_end;        /* …and the other side was told */
    uint64_t told;        /* bytes that moved() was told */
    uint64_t splice_left; /* of the present splice */
};

struct relay {
    struct loop *loop;
    struct side sides[2];
    relay_done_fn *done;
    void *context;
    struct relay_tuning tuning;
    struct timer later; /* set once a side has ended */
    bool over, paused;
};

struct relay *relay_new(struct loop *loop, relay_done_fn *done, void *context)
{
    struct relay *relay = NEW(struct relay);
    relay->loop = loop;
    relay->done = done;
    relay->context = context;
    relay->tuning = (struct relay_tuning){ .linger_ms = LIMIT_RELAY_LINGER_MS, .queued_most = LIMIT_STREAM_BUFFER };
    return relay;
}

void relay_tune(struct relay *relay, const struct relay_tuning *tuning)
{
    relay->tuning = *tuning;
}

void relay_free(struct relay *relay)
{
    if (!relay)
        return;
    timer_clear(&relay->later);
    stream_free(relay->sides[0].stream);
    stream_free(relay->sides[1].stream);
    loop_retire(relay->loop, relay, free);
}

static void abort_streams(struct relay *relay)
{
    for (unsigned i = 0; i < 2; i++) {
        if (relay->sides[i].stream)
            stream_abort(relay->sides[i].stream);
    }
}

void relay_abort(struct relay *relay)
{
    relay->over = true;
    timer_clear(&relay->later);
    abort_streams(relay);
}

void relay_account(struct relay *relay)
{
    struct side *a = &relay->sides[0], *b = &relay->sides[1];
    if (!relay->tuning.moved || !a->stream || !b->stream)
        return;
    uint64_t from_a = a->stream->bytes_in - a->told, from_b = b->stream->bytes_in - b->told;
    a->told += from_a;
    b->told += from_b;
    if (from_a || from_b)
        relay->paused = !relay->tuning.moved(relay->context, from_a, from_b);
}

static void finish(struct relay *relay)
{
    if (relay->over)
        return;
    relay->over = true;
    timer_clear(&relay->later);
    relay_account(relay);
    relay->done(relay->context);
}

uint64_t relay_progress_ms(const struct relay *relay)
{
    return MAX(relay->sides[0].stream->progress_ms, relay->sides[1].stream->progress_ms);
}

static void on_linger(struct timer *timer)
{
    struct relay *relay = container_of(timer, struct relay, later);
    uint64_t quiet_ms = loop_now_ms(relay->loop) - relay_progress_ms(relay);
    if (quiet_ms >= relay->tuning.linger_ms) {
        abort_streams(relay); /* what is cut must not look complete */
        finish(relay);
        return;
    }
    timer_set(&relay->later, relay->loop, relay->tuning.linger_ms - quiet_ms, on_linger);
}

static void begin_splice(struct relay *relay, struct side *from, struct side *to)
{
    from->splice_left = SPLICE_BYTES;
    /* else we go on copying */
    (void)!splice_bulk(from->stream, to->stream, &from->splice_left, relay->tuning.splice_share);
}

/* Pass on what `from` has sent, as far as `to` takes it. */
static void carry(struct relay *relay, struct side *from, struct side *to)
{
    bool is_full = stream_queued(to->stream) > relay->tuning.queued_most;

    if (splice_is_on(from->stream)) {
        stream_read(from->stream, !relay->paused);
        return;
    }
    if (from->stream->in.len && !is_full) {
        stream_write(to->stream, buf_str(&from->stream->in));
        buf_drop(&from->stream->in, from->stream->in.len);
        is_full = stream_queued(to->stream) > relay->tuning.queued_most;
    }
    if (from->ended) {
        if (!from->stream->in.len && !from->told_end) {
            from->told_end = true;
            stream_finish(to->stream);
        }
        return;
    }
    if (relay->tuning.may_splice && stream_is_bulk(from->stream) && !from->stream->in.len && !is_full)
        begin_splice(relay, from, to);
    stream_read(from->stream, !is_full && !relay->paused);
}

static void step(struct relay *relay)
{
    struct side *a = &relay->sides[0], *b = &relay->sides[1];
    if (relay->over || !a->stream || !b->stream)
        return;
    relay_account(relay);
    carry(relay, a, b);
    carry(relay, b, a);
    if (a->told_end && b->told_end && !stream_queued(a->stream) && !stream_queued(b->stream))
        finish(relay);
    else if ((a->ended || b->ended) && !timer_is_set(&relay->later))
        timer_set(&relay->later, relay->loop, relay->tuning.linger_ms, on_linger);
}

void relay_resume(struct relay *relay)
{
    relay->paused = false;
    step(relay);
}

static void on_stream(struct stream *stream)
{
    step(stream->owner);
}

static void on_stream_end(struct stream *stream, const struct err *err)
{
    struct relay *relay = stream->owner;
    relay->sides[stream == relay->sides[1].stream].ended = true;
    if (err) {
        abort_streams(relay);
        finish(relay);
        return;
    }
    step(relay);
}

const struct stream_events relay_events = {
    .on_input = on_stream,
    .on_drained = on_stream,
    .on_end = on_stream_end,
    .on_spliced = on_stream,
};

void relay_join(struct relay *relay, struct stream *a, struct stream *b)
{
    relay->sides[0] = (struct side){ .stream = a, .ended = a->ended };
    relay->sides[1] = (struct side){ .stream = b, .ended = b->ended };
    step(relay); /* either may have bytes that came with the heads */
}
