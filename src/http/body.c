/*
 * body.c - what the client sends after the head: given to the owner in pieces, collected, or discarded. Nothing is read
 * before the owner has chosen one of these.
 */
#include <assert.h>

#include "base/limits.h"
#include "http/inside.h"

bool body_is_unbounded(const struct exchange *e)
{
    /* Without our 100 Continue the client may or may not send the body: the next bytes could be read in two ways. */
    if (e->continue_owed)
        return true;
    return e->incoming.framing == HTTP_LENGTH && e->incoming.left > LIMIT_DISCARD_BYTES;
}

void body_discard(struct exchange *e)
{
    if (e->body == BODY_DONE || e->body == BODY_DISCARDING)
        return;
    e->body = BODY_DISCARDING;
    e->body_paused = false;
    if (body_is_unbounded(e)) {
        e->body = BODY_DONE;
        e->close_after = true;
    }
}

static void want_body(struct exchange *e, enum body_state how)
{
    assert(e->body == BODY_WAITING);
    e->body = how;
    if (e->continue_owed && !e->collect_over) {
        e->continue_owed = false;
        if (e->answer == ANSWER_NONE && e->input->len == 0)
            e->connection->protocol->send_continue(e);
    }
    exchange_poke(e);
}

void http_body_start(struct http_exchange *ex)
{
    struct exchange *e = exchange_of(ex);

    if (!ex->gone && e->body == BODY_WAITING)
        want_body(e, BODY_READING);
}

void http_body_pause(struct http_exchange *ex, bool pause)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->body_paused == pause || e->body == BODY_DISCARDING)
        return;
    e->body_paused = pause;
    exchange_poke(e);
}

void http_body_patience(struct http_exchange *ex, uint64_t idle_ms)
{
    exchange_of(ex)->body_idle_ms = idle_ms;
}

void http_collect(struct http_exchange *ex, size_t cap, http_collected_fn *done)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->body != BODY_WAITING)
        return;
    e->collected = done;
    e->collect_cap = cap;
    e->collect = buf_make(NULL, cap);
    e->collect_over = e->incoming.framing == HTTP_LENGTH && e->incoming.left > cap;
    queue_join(&e->connection->server->collecting, &e->collecting);
    want_body(e, BODY_COLLECTING);
}

void http_body_discard(struct http_exchange *ex)
{
    if (ex->gone)
        return;
    body_discard(exchange_of(ex));
    exchange_poke(exchange_of(ex));
}

static void collect_failed(struct exchange *e)
{
    struct err err;

    if (e->starved)
        (void)err_set(&err, ERR_UNAVAILABLE, "the server is reading too many request bodies at once");
    else
        (void)err_set(&err, ERR_LIMIT, "the request body is larger than %zu bytes", e->collect_cap);
    queue_leave(&e->collecting);
    buf_done(&e->collect);
    server_take_back(e);
    body_discard(e);
    e->collected(&e->outer, STR(""), &err);
}

/*
 * All bodies together take too much memory. The one that was started first is given up: a client that sends slowly, or
 * holds back the last byte, must not block the fast ones.
 */
static void starve_oldest(struct http_server *server)
{
    struct exchange *e = container_of(server->collecting.first, struct exchange, collecting);

    queue_leave(&e->collecting);
    buf_done(&e->collect);
    server_take_back(e);
    e->starved = e->collect_over = true;
    exchange_poke(e);
}

static void body_piece(struct exchange *e, struct str piece)
{
    struct http_server *server;

    if (piece.len == 0)
        return;
    switch (e->body) {
    case BODY_READING:
        if (e->outer.events->on_body)
            e->outer.events->on_body(&e->outer, piece);
        break;
    case BODY_COLLECTING:
        server = e->connection->server;
        buf_add(&e->collect, piece);
        server_lend(server, e, piece.len);
        e->collect_over = e->collect.overflowed;
        while (server->lent > server->config.collect_max && server->collecting.first)
            starve_oldest(server);
        break;
    case BODY_DISCARDING:
        e->discarded += piece.len;
        break;
    case BODY_WAITING:
    case BODY_DONE:
        break;
    }
}

static void body_end(struct exchange *e)
{
    enum body_state was = e->body;

    e->body = BODY_DONE;
    if (was == BODY_READING && e->outer.events->on_body_end) {
        e->outer.events->on_body_end(&e->outer);
    } else if (was == BODY_COLLECTING && e->collect_over) {
        collect_failed(e);
    } else if (was == BODY_COLLECTING) {
        queue_leave(&e->collecting);
        struct str whole = arena_copy(&e->outer.arena, buf_str(&e->collect));
        buf_done(&e->collect);
        e->collected(&e->outer, whole, NULL);
    }
}

static void body_is_bad(struct connection *c, struct exchange *e, const struct err *err)
{
    switch (e->answer) {
    case ANSWER_NONE:
        conn_refuse(c, e, 400, err->message);
        break;
    case ANSWER_STARTED:
        c->protocol->cut(c, e);
        break;
    case ANSWER_ENDED:
        e->body = BODY_DONE;
        e->close_after = true;
        break;
    }
}

void body_step(struct connection *c, struct exchange *e)
{
    struct buf *in = e->input;
    struct err err;

    while (c->state == CONN_BUSY && c->stream && !e->body_paused) {
        if (e->body == BODY_WAITING || e->body == BODY_DONE || c->pieces_left == 0)
            return;
        if (e->body == BODY_COLLECTING && e->collect_over) {
            collect_failed(e);
            continue;
        }
        if (e->body == BODY_DISCARDING && e->discarded > LIMIT_DISCARD_BYTES) {
            e->body = BODY_DONE;
            e->close_after = true;
            return;
        }
        struct str rest = buf_str(in), piece = STR("");
        enum http_parse got = http_body_next(&e->incoming, &rest, &piece, &err);
        if (got == HTTP_BAD) {
            body_is_bad(c, e, &err);
            return;
        }
        size_t used = in->len - rest.len;
        bool is_end = got == HTTP_DONE || (e->input_ended && rest.len == 0);
        if (used == 0 && !is_end)
            return;
        c->pieces_left--;
        e->body_bytes += used;
        body_piece(e, piece);
        if (c->state != CONN_BUSY || !c->stream)
            return;
        buf_drop(in, used);
        if (is_end && e->body != BODY_DONE)
            body_end(e);
    }
}
