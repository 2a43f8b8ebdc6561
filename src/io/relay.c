#include "io/relay.h"

#include "base/limits.h"
#include "base/mem.h"

struct side {
    struct stream *stream;
    bool ended;    /* sends nothing more */
    bool told_end; /* …and the other side was told */
};

struct relay {
    struct loop *loop;
    struct side sides[2];
    relay_done_fn *done;
    void *context;
    struct timer later; /* set once a side has ended */
    bool over;
};

struct relay *relay_new(struct loop *loop, relay_done_fn *done, void *context)
{
    struct relay *relay = NEW(struct relay);
    relay->loop = loop;
    relay->done = done;
    relay->context = context;
    return relay;
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

static void finish(struct relay *relay)
{
    if (relay->over)
        return;
    relay->over = true;
    timer_clear(&relay->later);
    relay->done(relay->context);
}

static void on_linger(struct timer *timer)
{
    struct relay *relay = container_of(timer, struct relay, later);
    uint64_t last_ms = MAX(relay->sides[0].stream->progress_ms, relay->sides[1].stream->progress_ms);
    uint64_t quiet_ms = loop_now_ms(relay->loop) - last_ms;
    if (quiet_ms >= LIMIT_RELAY_LINGER_MS)
        finish(relay);
    else
        timer_set(&relay->later, relay->loop, LIMIT_RELAY_LINGER_MS - quiet_ms, on_linger);
}

/* Pass on what `from` has sent, as far as `to` takes it. */
static void carry(struct side *from, struct side *to)
{
    if (from->stream->in.len && !stream_is_full(to->stream)) {
        stream_write(to->stream, buf_str(&from->stream->in));
        buf_drop(&from->stream->in, from->stream->in.len);
    }
    if (from->ended) {
        if (!from->stream->in.len && !from->told_end) {
            from->told_end = true;
            stream_finish(to->stream);
        }
        return;
    }
    stream_read(from->stream, !stream_is_full(to->stream));
}

static void step(struct relay *relay)
{
    struct side *a = &relay->sides[0], *b = &relay->sides[1];
    if (relay->over || !a->stream || !b->stream)
        return;
    carry(a, b);
    carry(b, a);
    if (a->told_end && b->told_end && !stream_queued(a->stream) && !stream_queued(b->stream))
        finish(relay);
    else if ((a->ended || b->ended) && !timer_is_set(&relay->later))
        timer_set(&relay->later, relay->loop, LIMIT_RELAY_LINGER_MS, on_linger);
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
};

void relay_join(struct relay *relay, struct stream *a, struct stream *b)
{
    relay->sides[0].stream = a;
    relay->sides[1].stream = b;
    step(relay); /* either may have bytes that came with the heads */
}
