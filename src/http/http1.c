/*
 * http1.c - HTTP/1.1 on a connection: one exchange after the other.
 *
 * The next request is parsed when the exchange before it is over, so a client that sends requests and reads no answers
 * has to wait. How the end of an answer is marked (a length, chunks, the end of the connection) is decided when its
 * head is written.
 */
#include <assert.h>

#include "base/fd.h"
#include "base/header_kind.h"
#include "base/limits.h"
#include "http/inside.h"
#include "io/splice.h"

enum { HEAD_INPUT_BYTES = LIMIT_HEAD_BYTES + 4096 }; /* enough to see that a head is too large */

/* ---- requests ---- */

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
    struct exchange *e = server_spare(server);
    switch (http_parse_request(buf_str(in), &e->outer.head, &used, &err)) {
    case HTTP_MORE:
        c->scanned = in->len;
        return false;
    case HTTP_BAD:
        conn_refuse(c, NULL, e->outer.head.status, err.message);
        return true;
    case HTTP_DONE:
        break;
    }
    server->spare = NULL;
    char *copy = arena_alloc(&e->outer.arena, used);
    memcpy(copy, in->data, used);
    http_head_move(&e->outer.head, in->data, copy);
    buf_drop(in, used);
    c->scanned = 0;
    exchange_attach(c, e, in);
    conn_enter(c, CONN_BUSY);
    exchange_begin(c, e);
    return true;
}

/* True if the state has changed. */
static bool step_exchange(struct connection *c)
{
    struct exchange *e = conn_first(c);

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
    exchange_release(c, e);
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

static bool step(struct connection *c)
{
    return c->state == CONN_HEAD ? step_head(c) : step_exchange(c);
}

/* How much of its input we buffer: little for the thousands that are idle. */
static size_t input_room(const struct connection *c)
{
    const struct exchange *e = conn_first(c);

    if (e && e->body != BODY_WAITING && e->body != BODY_DONE)
        return BODY_INPUT_BYTES;
    return c->state == CONN_HEAD && c->scanned > 0 ? HEAD_INPUT_BYTES : EARLY_INPUT_BYTES;
}

/* A body that is collected is of no use before it is complete. */
static size_t input_least(const struct connection *c)
{
    const struct exchange *e = conn_first(c);
    bool is_known = e && e->body == BODY_COLLECTING && e->incoming.framing == HTTP_LENGTH && e->incoming.left > 0;

    return is_known ? (size_t)MIN(e->incoming.left, (uint64_t)BODY_INPUT_BYTES) : 1;
}

static void want_input(struct connection *c)
{
    c->stream->in.cap = input_room(c);
    stream_read_least(c->stream, input_least(c));
}

/* ---- the end of a connection ---- */

static void ended(struct connection *c)
{
    struct exchange *e = conn_first(c);

    if (c->state == CONN_BUSY && e->answer == ANSWER_ENDED) {
        /* It may still be reading: let the rest of the answer out. */
        e->close_after = true;
        e->body = BODY_DONE;
    } else {
        /* In the middle of an answer: a reset, so that the client cannot take the part for the whole. */
        conn_close(c, c->state == CONN_BUSY);
    }
}

static void finish(struct connection *c)
{
    conn_close(c, false);
}

static void begin_or_free(struct connection *c)
{
    (void)c;
}

static bool goodbye(struct connection *c)
{
    (void)c;
    return false;
}

/* ---- answers ---- */

static struct buf *head_begin(struct http_server *server, unsigned status, const struct http_field *fields,
                              size_t count)
{
    struct buf *out = &server->scratch;

    buf_clear(out);
    http_write_status_line(out, status);
    for (size_t i = 0; i < count; i++)
        if (!header_is(fields[i].name, HEADER_WRITTEN))
            http_write_header(out, fields[i].name, fields[i].value);
    return out;
}

static void refuse(struct connection *c, struct exchange *e, unsigned status, const struct http_field *fields,
                   size_t count, struct str body)
{
    struct buf *head = head_begin(c->server, status, fields, count);

    (void)e;
    http_write_header_number(head, STR("Content-Length"), body.len);
    http_write_header(head, STR("Connection"), STR("close"));
    http_write_head_end(head);
    stream_write_two(c->stream, buf_str(head), body);
    conn_linger(c);
}

static bool will_close(const struct exchange *e)
{
    return !e->outer.head.keep_alive || e->close_after || (e->body != BODY_DONE && body_is_unbounded(e));
}

static bool start(struct exchange *e, const struct http_field *fields, size_t count, const struct str *whole)
{
    unsigned status = e->outer.status;
    bool is_http_1_0 = e->outer.head.minor == 0;
    struct connection *c = e->connection;

    e->chunked = !e->has_length && !e->bodiless && !is_http_1_0;
    if (!e->has_length && !e->bodiless && is_http_1_0)
        e->close_after = true;

    struct buf *out = head_begin(c->server, status, fields, count);
    if (e->has_length && answer_has_body(status))
        http_write_header_number(out, STR("Content-Length"), e->answer_left);
    if (e->chunked)
        http_write_header(out, STR("Transfer-Encoding"), STR("chunked"));
    if (will_close(e))
        http_write_header(out, STR("Connection"), STR("close"));
    else if (is_http_1_0)
        http_write_header(out, STR("Connection"), STR("keep-alive"));
    http_write_head_end(out);
    if (out->overflowed)
        return false;
    if (whole)
        stream_write_two(c->stream, buf_str(out), e->bodiless ? STR("") : *whole);
    else
        stream_queue(c->stream, buf_str(out));
    return true;
}

/* Bytes were queued outside a step: have the next step set the write deadline. */
static void watch_write(struct connection *c)
{
    if (!c->write.waiting && stream_queued(c->stream) > 0)
        conn_poke(c);
}

static void write_piece(struct exchange *e, struct str bytes)
{
    struct stream *stream = e->connection->stream;
    char line[HTTP_CHUNK_LINE_BYTES];

    if (e->chunked) {
        size_t len = http_chunk_line(bytes.len, line);
        stream_write_many(stream, (struct str[]){ str_of(line, len), bytes, STR("\r\n") }, 3);
    } else {
        stream_write(stream, bytes);
    }
    watch_write(e->connection);
}

static void send_file(struct exchange *e, int file_fd, off_t offset, uint64_t size)
{
    stream_send_file(e->connection->stream, file_fd, offset, size);
    watch_write(e->connection);
}

static bool splice_from(struct exchange *e, struct stream *from, uint64_t *left)
{
    return splice_start(from, e->connection->stream, left);
}

static bool is_full(const struct exchange *e)
{
    return stream_is_full(e->connection->stream);
}

static void end(struct exchange *e)
{
    if (e->chunked)
        stream_write(e->connection->stream, HTTP_LAST_CHUNK);
}

static void cut(struct connection *c, struct exchange *e)
{
    (void)e;
    conn_close(c, true);
}

static void send_continue(struct exchange *e)
{
    stream_write(e->connection->stream, STR("HTTP/1.1 100 Continue\r\n\r\n"));
}

const struct http_protocol http1_protocol = {
    .begin = begin_or_free,
    .step = step,
    .want_input = want_input,
    .ended = ended,
    .finish = finish,
    .goodbye = goodbye,
    .release = exchange_release,
    .free = begin_or_free,
    .start = start,
    .write = write_piece,
    .send_file = send_file,
    .splice = splice_from,
    .is_full = is_full,
    .end = end,
    .cut = cut,
    .refuse = refuse,
    .send_continue = send_continue,
};

/* ---- upgrades ---- */

struct stream *http_upgrade(struct http_exchange *ex, const struct http_field *fields, size_t field_count,
                            const struct stream_events *events, void *owner)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->stream || e->answer != ANSWER_NONE || (e->body != BODY_DONE && ex->head.framing != HTTP_NO_BODY))
        return NULL;
    struct connection *c = e->connection;
    struct buf *head = head_begin(c->server, 101, fields, field_count);
    http_write_header(head, STR("Connection"), STR("Upgrade"));
    http_write_head_end(head);
    if (head->overflowed) {
        conn_refuse(c, e, 502, "the answer to the upgrade could not be written");
        conn_poke(c);
        return NULL;
    }
    struct stream *stream = take_ptr(&c->stream);
    stream_write(stream, buf_str(head));
    stream->events = events;
    stream->owner = owner;
    stream->in.cap = BODY_INPUT_BYTES;
    stream_read(stream, true);
    ex->status = 101;
    e->told = true;
    conn_close(c, false);
    return stream;
}
