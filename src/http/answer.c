/*
 * answer.c - what we send: whole answers, streams, files, upgrades, and refusals of our own. How the end of an answer
 * is marked (a length, chunks, the end of the connection) is decided when its head is written.
 */
#include <assert.h>
#include <stdio.h>

#include "base/fd.h"
#include "base/log.h"
#include "http/inside.h"
#include "io/splice.h"

/* ---- heads ---- */

static bool is_ours(struct str name)
{
    return str_eq_nocase(name, STR("Connection")) || str_eq_nocase(name, STR("Content-Length")) ||
           str_eq_nocase(name, STR("Transfer-Encoding"));
}

static struct buf *head_begin(struct http_server *server, unsigned status, const struct http_field *fields,
                              size_t count)
{
    struct buf *out = &server->scratch;

    buf_clear(out);
    http_write_status_line(out, status);
    for (size_t i = 0; i < count; i++)
        if (!is_ours(fields[i].name))
            http_write_header(out, fields[i].name, fields[i].value);
    return out;
}

void conn_refuse(struct connection *c, unsigned status, const char *message)
{
    char body[256];
    int len = snprintf(body, sizeof body, "{\"code\":%u,\"message\":\"%s\"}", status, message);
    const struct http_field fields[] = {
        { STR_INIT("Content-Type"), STR_INIT("application/json; charset=utf-8") },
        { STR_INIT("Should-Retry"), status == 503 ? STR("true") : STR("false") },
        { STR_INIT("Retry-After"), STR_INIT("1") },
    };
    size_t count = status == 503 ? 3 : status == 502 ? 2 : 1;
    struct buf *head = head_begin(c->server, status, fields, count);

    assert(len > 0 && (size_t)len < sizeof body);
    http_write_header_number(head, STR("Content-Length"), (uint64_t)len);
    http_write_header(head, STR("Connection"), STR("close"));
    http_write_head_end(head);
    stream_write_two(c->stream, buf_str(head), str_of(body, (size_t)len));
    if (c->ex) {
        c->ex->outer.status = status;
        exchange_detach(c->ex);
    }
    conn_linger(c);
}

/* ---- what owners call ---- */

static bool will_close(const struct exchange *e)
{
    return !e->outer.head.keep_alive || e->close_after || (e->body != BODY_DONE && body_is_unbounded(e));
}

static bool status_has_body(unsigned status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* The head of a whole or streaming answer. NULL: a field was malformed and a 500 has been sent instead. */
static struct buf *answer_head(struct exchange *e, unsigned status, const struct http_field *fields, size_t count,
                               uint64_t length)
{
    bool has_body = status_has_body(status), is_http_1_0 = e->outer.head.minor == 0;
    struct connection *c = e->connection;

    e->outer.status = status;
    e->bodiless = !has_body || e->outer.head.method == HTTP_HEAD;
    e->has_length = length != HTTP_LENGTH_UNKNOWN;
    e->answer_left = length;
    e->chunked = !e->has_length && !e->bodiless && !is_http_1_0;
    if (!e->has_length && !e->bodiless && is_http_1_0)
        e->close_after = true;

    struct buf *out = head_begin(c->server, status, fields, count);
    if (e->has_length && has_body)
        http_write_header_number(out, STR("Content-Length"), length);
    if (e->chunked)
        http_write_header(out, STR("Transfer-Encoding"), STR("chunked"));
    if (will_close(e))
        http_write_header(out, STR("Connection"), STR("close"));
    else if (is_http_1_0)
        http_write_header(out, STR("Connection"), STR("keep-alive"));
    http_write_head_end(out);
    if (!out->overflowed)
        return out;
    log_error("http: an answer with status %u has a header that cannot be sent", status);
    conn_refuse(c, 500, "the answer could not be written");
    return NULL;
}

static void answer_ended(struct exchange *e)
{
    e->answer = ANSWER_ENDED;
    body_discard(e);
    conn_poke(e->connection);
}

void http_reply(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                struct str body)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->answer != ANSWER_NONE)
        return;
    struct connection *c = e->connection;
    struct buf *head = answer_head(e, status, fields, field_count, body.len);
    if (!head) {
        conn_poke(c);
        return;
    }
    stream_write_two(c->stream, buf_str(head), e->bodiless ? STR("") : body);
    answer_ended(e);
}

void http_start(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                uint64_t length)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->answer != ANSWER_NONE)
        return;
    struct connection *c = e->connection;
    struct buf *head = answer_head(e, status, fields, field_count, length);
    if (head) {
        stream_queue(c->stream, buf_str(head));
        e->answer = ANSWER_STARTED;
    }
    conn_poke(c);
}

/* May so many more bytes follow? The client would read bytes past the announced length as the next answer. */
static bool answer_takes(struct exchange *e, uint64_t size)
{
    if (e->outer.gone || e->answer != ANSWER_STARTED)
        return false;
    if (e->has_length && size > e->answer_left) {
        log_error("http: an answer is longer than its announced length");
        conn_close(e->connection, true);
        return false;
    }
    if (e->has_length)
        e->answer_left -= size;
    return !e->bodiless && size > 0;
}

/* Bytes were queued outside a step: have the next step set the write deadline. */
static void watch_write(struct connection *c)
{
    if (!c->write.waiting && stream_queued(c->stream) > 0)
        conn_poke(c);
}

void http_write(struct http_exchange *ex, struct str bytes)
{
    struct exchange *e = exchange_of(ex);
    char line[HTTP_CHUNK_LINE_BYTES];

    if (!answer_takes(e, bytes.len))
        return;
    struct stream *stream = e->connection->stream;
    if (e->chunked) {
        size_t len = http_chunk_line(bytes.len, line);
        stream_write_many(stream, (struct str[]){ str_of(line, len), bytes, STR("\r\n") }, 3);
    } else {
        stream_write(stream, bytes);
    }
    watch_write(e->connection);
}

void http_send_file(struct http_exchange *ex, int file_fd, off_t offset, uint64_t size)
{
    struct exchange *e = exchange_of(ex);
    auto_close int file = file_fd;

    assert(ex->gone || e->answer != ANSWER_STARTED || !e->chunked);
    if (!answer_takes(e, size))
        return;
    stream_send_file(e->connection->stream, take_fd(&file), offset, size);
    watch_write(e->connection);
}

bool answer_splice(struct http_exchange *ex, struct stream *from, uint64_t *left)
{
    struct exchange *e = exchange_of(ex);
    uint64_t size = *left;

    if (ex->gone || e->answer != ANSWER_STARTED || !e->has_length || e->bodiless || size > e->answer_left ||
        !splice_start(from, e->connection->stream, left))
        return false;
    e->answer_left -= size;
    e->is_spliced = true;
    conn_poke(e->connection);
    return true;
}

bool http_is_full(const struct http_exchange *ex)
{
    return !ex->gone && stream_is_full(exchange_of(ex)->connection->stream);
}

void http_end(struct http_exchange *ex)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->answer != ANSWER_STARTED)
        return;
    if (e->has_length && e->answer_left > 0 && !e->bodiless) {
        http_abort(ex);
        return;
    }
    if (e->chunked)
        stream_write(e->connection->stream, HTTP_LAST_CHUNK);
    answer_ended(e);
}

void http_abort(struct http_exchange *ex)
{
    if (!ex->gone)
        conn_close(exchange_of(ex)->connection, true);
}

void http_trust(struct http_exchange *ex)
{
    if (!ex->gone)
        exchange_of(ex)->connection->trusted = true;
}

void http_close_after(struct http_exchange *ex)
{
    exchange_of(ex)->close_after = true;
}

struct stream *http_upgrade(struct http_exchange *ex, const struct http_field *fields, size_t field_count,
                            const struct stream_events *events, void *owner)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->answer != ANSWER_NONE || (e->body != BODY_DONE && ex->head.framing != HTTP_NO_BODY))
        return NULL;
    struct connection *c = e->connection;
    struct buf *head = head_begin(c->server, 101, fields, field_count);
    http_write_header(head, STR("Connection"), STR("Upgrade"));
    http_write_head_end(head);
    if (head->overflowed) {
        conn_refuse(c, 502, "the answer to the upgrade could not be written");
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
