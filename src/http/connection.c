/*
 * Theory of operation
 *
 * A connection is in one of four states (enum conn_state). conn_step() advances it until nothing more can be done with
 * the bytes at hand; every event (bytes, room to write, an end, a call of the owner's) leads to it. Calls of owners
 * (http_reply, http_body_pause…) only record what is wanted: the step that called the owner goes on with it, or,
 * outside a step, one follows when the turn ends. So no owner is called back from inside its own call.
 *
 * The next request is parsed when the exchange before it is over, so a client that sends requests and reads no answers
 * has to wait. Of many requests sent at once, or a body in many small chunks, one step handles LIMIT_TURN_REQUESTS or
 * LIMIT_TURN_PIECES; the next step follows in the next turn, after the other connections had theirs.
 *
 * Closing: if we closed a socket while the client is still sending, the kernel would reset the connection, and the
 * client might lose our last answer. So we shut down our side, and read and discard until the client has closed
 * (CONN_LINGER).
 */
#include <assert.h>

#include "base/limits.h"
#include "http/inside.h"

enum { HEAD_INPUT_BYTES = LIMIT_HEAD_BYTES + 4096 }; /* enough to see that a head is too large */

static const unsigned conn_may_become[CONN_STATE_COUNT] = {
    [CONN_HEAD] = BIT(CONN_BUSY) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_BUSY] = BIT(CONN_HEAD) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_LINGER] = BIT(CONN_CLOSED),
};

static const struct http_events no_events;

static void conn_enter(struct connection *c, enum conn_state next)
{
    assert(conn_may_become[c->state] & BIT(next));
    c->state = next;
}

/* ---- the exchange ---- */

static void exchange_dispose(void *object)
{
    struct exchange *e = object;

    server_take_back(e);
    buf_done(&e->collect);
    arena_done(&e->outer.arena);
    free(e);
}

void http_ref(struct http_exchange *ex)
{
    ex->references++;
}

void http_unref(struct http_exchange *ex)
{
    assert(ex->references > 0);
    if (--ex->references == 0)
        loop_retire(ex->loop, exchange_of(ex), exchange_dispose);
}

void http_peer(const struct http_exchange *ex, struct sockaddr_storage *out)
{
    const struct connection *c = exchange_of(ex)->connection;

    if (c && c->stream)
        stream_peer(c->stream, out);
}

void exchange_detach(struct exchange *e)
{
    queue_leave(&e->collecting);
    e->outer.gone = true;
    e->outer.connection = NULL;
    e->connection = NULL;
}

void exchange_tell_gone(struct exchange *e)
{
    exchange_detach(e);
    if (e->told)
        return;
    e->told = true;
    if (e->outer.events->on_gone)
        e->outer.events->on_gone(&e->outer);
}

/* ---- closing ---- */

static void on_soon(struct timer *timer)
{
    conn_step(container_of(timer, struct connection, soon));
}

void conn_poke(struct connection *c)
{
    if (!c->stepping)
        timer_set(&c->soon, c->loop, 0, on_soon);
}

void conn_close(struct connection *c, bool as_reset)
{
    if (c->state == CONN_CLOSED)
        return;
    conn_enter(c, CONN_CLOSED);
    if (c->stream) {
        if (as_reset)
            stream_abort(c->stream);
        stream_free(take_ptr(&c->stream));
    }
    timer_clear(&c->watchdog);
    if (c->previous)
        c->previous->next = c->next;
    else
        c->server->connections = c->next;
    if (c->next)
        c->next->previous = c->previous;
    queue_leave(&c->resting);
    *(c->is_refused ? &c->server->refused_count : &c->server->connection_count) -= 1;
    if (c->ex)
        exchange_detach(c->ex);
    conn_poke(c);
}

void conn_linger(struct connection *c)
{
    conn_enter(c, CONN_LINGER);
    stream_finish(c->stream);
}

static void release_exchange(struct connection *c)
{
    struct exchange *e = take_ptr(&c->ex);

    exchange_tell_gone(e);
    http_unref(&e->outer);
}

static void conn_retire(struct connection *c)
{
    timer_clear(&c->soon);
    timer_clear(&c->watchdog);
    loop_retire(c->loop, c, free);
}

/* ---- one step after the other ---- */

static void exchange_begin(struct connection *c, struct exchange *e, size_t head_bytes)
{
    struct http_exchange *ex = &e->outer;
    struct buf *in = &c->stream->in;
    char *copy = arena_alloc(&ex->arena, head_bytes);

    memcpy(copy, in->data, head_bytes);
    http_head_move(&ex->head, in->data, copy);
    buf_drop(in, head_bytes);
    ex->loop = c->loop;
    ex->events = &no_events;
    ex->connection = c;
    ex->references = 1;
    e->connection = c;
    e->incoming = http_body_of(&ex->head);
    e->body_idle_ms = c->server->config.body_idle_ms;
    e->continue_owed = ex->head.expect_continue && in->len == 0;
    c->ex = e;
    c->scanned = 0;
    c->requests++;
    conn_enter(c, CONN_BUSY);
    c->server->config.on_request(ex, c->server->config.context);
}

/* True if the state has changed. */
static bool step_head(struct connection *c)
{
    struct http_server *server = c->server;
    struct buf *in = &c->stream->in;
    size_t used;
    struct err err;

    /* A head that arrives byte by byte must not be parsed again for each byte. */
    if (in->len == 0 ||
        (c->scanned > 0 && in->len < LIMIT_HEAD_BYTES && !memchr(in->data + c->scanned, '\n', in->len - c->scanned)))
        return false;
    if (!server->spare)
        server->spare = NEW(struct exchange);
    switch (http_parse_request(buf_str(in), &server->spare->outer.head, &used, &err)) {
    case HTTP_MORE:
        c->scanned = in->len;
        return false;
    case HTTP_BAD:
        conn_refuse(c, server->spare->outer.head.status, err.message);
        return true;
    case HTTP_DONE:
        exchange_begin(c, take_ptr(&server->spare), used);
        return true;
    }
    return false;
}

/* True if the state has changed. */
static bool step_exchange(struct connection *c)
{
    struct exchange *e = c->ex;

    body_step(c, e);
    if (c->state != CONN_BUSY)
        return true;
    if (c->drained) {
        c->drained = false;
        if (!e->outer.gone && e->answer == ANSWER_STARTED && e->outer.events->on_drained) {
            e->outer.events->on_drained(&e->outer);
            return true; /* look at everything again */
        }
    }
    /* If a write failed, the stream reports that next. */
    if (e->answer != ANSWER_ENDED || stream_queued(c->stream) > 0 || stream_failed(c->stream))
        return false;
    if (!e->told) {
        /* Its owner is done with it. We may still have a body to drop. */
        exchange_tell_gone(e);
        return true;
    }
    bool close = e->close_after || !e->outer.head.keep_alive;
    if (e->body != BODY_DONE && !close)
        return false;
    release_exchange(c);
    if (close) {
        conn_linger(c);
        return true;
    }
    conn_enter(c, CONN_HEAD);
    /* A connection that may now be idle for minutes keeps no buffer. */
    if (c->stream->in.len == 0)
        buf_done(&c->stream->in);
    return true;
}

/* How much of its input we buffer: little for the thousands that are idle. */
static size_t input_room(const struct connection *c)
{
    const struct exchange *e = c->ex;

    if (e && e->body != BODY_WAITING && e->body != BODY_DONE)
        return BODY_INPUT_BYTES;
    return c->state == CONN_HEAD && c->scanned > 0 ? HEAD_INPUT_BYTES : EARLY_INPUT_BYTES;
}

/* A body that is collected is of no use before it is complete. */
static size_t input_least(const struct connection *c)
{
    const struct exchange *e = c->ex;
    bool is_known = e && e->body == BODY_COLLECTING && e->incoming.framing == HTTP_LENGTH && e->incoming.left > 0;

    return is_known ? (size_t)MIN(e->incoming.left, (uint64_t)BODY_INPUT_BYTES) : 1;
}

void conn_step(struct connection *c)
{
    uint64_t stop_at = c->requests + LIMIT_TURN_REQUESTS;

    if (c->stepping)
        return;
    c->stepping = true;
    c->pieces_left = LIMIT_TURN_PIECES;
    for (bool again = true; again && c->requests < stop_at;) {
        switch (c->state) {
        case CONN_HEAD:
            again = step_head(c);
            break;
        case CONN_BUSY:
            again = step_exchange(c);
            break;
        case CONN_LINGER:
            buf_clear(&c->stream->in);
            again = false;
            break;
        case CONN_CLOSED:
        case CONN_STATE_COUNT:
            again = false;
            break;
        }
    }
    c->drained = false;
    if (c->ex && (c->state == CONN_LINGER || c->state == CONN_CLOSED))
        release_exchange(c);
    c->stepping = false;
    if (c->state == CONN_CLOSED) {
        conn_retire(c);
        return;
    }
    if (c->requests >= stop_at || c->pieces_left == 0)
        conn_poke(c);
    c->stream->in.cap = input_room(c);
    stream_read_least(c->stream, input_least(c));
    stream_read(c->stream, true); /* there may be room */
    server_settle(c);
    conn_watch(c);
}

/* ---- what streams call ---- */

static void on_input(struct stream *stream)
{
    struct connection *c = stream->owner;

    /*
     * If a step follows anyway when the turn ends, wait for it: a client that floods us must not get two in each turn.
     */
    if (!timer_is_set(&c->soon))
        conn_step(c);
}

static void on_drained(struct stream *stream)
{
    struct connection *c = stream->owner;

    c->drained = true;
    c->write.waiting = false; /* it took everything: the next write has its full time */
    conn_step(c);
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct connection *c = stream->owner;

    if (!err && c->state == CONN_BUSY && c->ex->answer == ANSWER_ENDED) {
        /* It may still be reading: let the rest of the answer out. */
        c->ex->close_after = true;
        c->ex->body = BODY_DONE;
    } else {
        /* In the middle of an answer: a reset, so that the client cannot take the part for the whole. */
        conn_close(c, c->state == CONN_BUSY);
    }
    conn_step(c);
}

static void on_hangup(struct stream *stream)
{
    struct connection *c = stream->owner;

    if (c->state == CONN_BUSY && c->ex->answer != ANSWER_ENDED)
        conn_close(c, true);
    conn_step(c);
}

const struct stream_events conn_events = {
    .on_input = on_input,
    .on_drained = on_drained,
    .on_end = on_end,
    .on_hangup = on_hangup,
};
