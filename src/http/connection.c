/*
 * Theory of operation
 *
 * A connection is in one of four states (enum conn_state). conn_step() advances it until nothing more can be done with
 * the bytes at hand; every event (bytes, room to write, an end, a call of the owner's) leads to it. Calls of owners
 * (http_reply, http_body_pause…) only record what is wanted: the step that called the owner goes on with it, or,
 * outside a step, one follows when the turn ends. So no owner is called back from inside its own call.
 *
 * What a step does with bytes is the protocol's business (http1.c, http2.c). Of many requests sent at once, or a body
 * in many small chunks, one step handles LIMIT_TURN_REQUESTS or LIMIT_TURN_PIECES; the next step follows in the next
 * turn, after the other connections had theirs.
 *
 * Closing: if we closed a socket while the client is still sending, the kernel would reset the connection, and the
 * client might lose our last answer. So we shut down our side, and read and discard until the client has closed
 * (CONN_LINGER).
 */
#include <assert.h>

#include "base/limits.h"
#include "http/inside.h"

static const unsigned conn_may_become[CONN_STATE_COUNT] = {
    [CONN_HEAD] = BIT(CONN_BUSY) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_BUSY] = BIT(CONN_HEAD) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_LINGER] = BIT(CONN_CLOSED),
};

static const struct http_events no_events;

void conn_enter(struct connection *c, enum conn_state next)
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

bool http_is_tls(const struct http_exchange *ex)
{
    const struct connection *c = exchange_of(ex)->connection;

    return c && c->stream && stream_is_tls(c->stream);
}

const char *http_label(const struct http_exchange *ex)
{
    const struct connection *c = exchange_of(ex)->connection;

    return c ? c->label : "";
}

void exchange_attach(struct connection *c, struct exchange *e, struct buf *input)
{
    struct http_exchange *ex = &e->outer;

    ex->loop = c->loop;
    ex->events = &no_events;
    ex->connection = c;
    ex->references = 1;
    e->connection = c;
    e->input = input;
    e->incoming = http_body_of(&ex->head);
    e->body_idle_ms = c->server->config.body_idle_ms;
    e->continue_owed = ex->head.expect_continue && input->len == 0;
    queue_join(&c->exchanges, &e->place);
}

void exchange_begin(struct connection *c, struct exchange *e)
{
    c->requests++;
    c->server->config.on_request(&e->outer, c->server->config.context);
}

void conn_due(struct connection *c, struct exchange *e)
{
    if (e->stream && !e->due.in)
        queue_join(&c->due, &e->due);
}

void exchange_poke(struct exchange *e)
{
    conn_due(e->connection, e);
    conn_poke(e->connection);
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

void exchange_release(struct connection *c, struct exchange *e)
{
    (void)c;
    queue_leave(&e->place);
    queue_leave(&e->due);
    exchange_tell_gone(e);
    http_unref(&e->outer);
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
        if (!c->protocol->goodbye(c) && as_reset)
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
    for (struct queue_link *link = c->exchanges.first; link; link = link->next)
        exchange_detach(container_of(link, struct exchange, place));
    conn_poke(c);
}

void conn_linger(struct connection *c)
{
    conn_enter(c, CONN_LINGER);
    stream_finish(c->stream);
}

static void conn_dispose(void *object)
{
    struct connection *c = object;

    c->protocol->free(c);
    free(c);
}

static void conn_retire(struct connection *c)
{
    timer_clear(&c->soon);
    timer_clear(&c->watchdog);
    loop_retire(c->loop, c, conn_dispose);
}

/* ---- one step after the other ---- */

void conn_step(struct connection *c)
{
    struct exchange *e;

    if (c->stepping)
        return;
    c->stepping = true;
    c->pieces_left = LIMIT_TURN_PIECES;
    c->requests_until = c->requests + LIMIT_TURN_REQUESTS;
    for (bool again = true; again && c->requests < c->requests_until;) {
        switch (c->state) {
        case CONN_HEAD:
        case CONN_BUSY:
            again = c->protocol->step(c);
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
    while ((c->state == CONN_LINGER || c->state == CONN_CLOSED) && (e = conn_first(c)))
        c->protocol->release(c, e);
    c->stepping = false;
    if (c->state == CONN_CLOSED) {
        conn_retire(c);
        return;
    }
    if (c->requests >= c->requests_until || c->pieces_left == 0)
        conn_poke(c);
    c->protocol->want_input(c);
    stream_read(c->stream, true); /* there may be room */
    server_settle(c);
    conn_watch(c);
}

/* ---- what streams call ---- */

/* With the first byte it is known what the TLS handshake has agreed on. */
static void choose_protocol(struct connection *c)
{
    const struct http_protocol *http2 = c->server->config.http2;

    if (c->is_chosen)
        return;
    c->is_chosen = true;
    if (http2 && c->state == CONN_HEAD && strcmp(stream_protocol(c->stream), "h2") == 0) {
        c->protocol = http2;
        c->protocol->begin(c);
    }
}

static void on_input(struct stream *stream)
{
    struct connection *c = stream->owner;

    choose_protocol(c);
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

    if (err)
        conn_close(c, c->state == CONN_BUSY);
    else
        c->protocol->ended(c);
    conn_step(c);
}

static bool is_answering(const struct connection *c)
{
    for (struct queue_link *link = c->exchanges.first; link; link = link->next)
        if (container_of(link, struct exchange, place)->answer != ANSWER_ENDED)
            return true;
    return false;
}

static void on_hangup(struct stream *stream)
{
    struct connection *c = stream->owner;

    if (c->state == CONN_BUSY && is_answering(c))
        conn_close(c, true);
    conn_step(c);
}

const struct stream_events conn_events = {
    .on_input = on_input,
    .on_drained = on_drained,
    .on_end = on_end,
    .on_hangup = on_hangup,
};
