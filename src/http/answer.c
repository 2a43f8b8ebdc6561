/*
 * answer.c - what we send: whole answers, streams, files, and refusals of our own. The protocols write it.
 */
#include <assert.h>
#include <stdio.h>

#include "base/fd.h"
#include "base/log.h"
#include "http/inside.h"

bool answer_has_body(unsigned status)
{
    return status >= 200 && status != 204 && status != 304;
}

void conn_refuse(struct connection *c, struct exchange *e, unsigned status, const char *message)
{
    char body[256];
    int len = snprintf(body, sizeof body, "{\"code\":%u,\"message\":\"%s\"}", status, message);
    const struct http_field fields[] = {
        { STR_INIT("Content-Type"), STR_INIT("application/json; charset=utf-8") },
        { STR_INIT("Should-Retry"), status == 503 ? STR("true") : STR("false") },
        { STR_INIT("Retry-After"), STR_INIT("1") },
    };
    size_t count = status == 503 ? 3 : status == 502 ? 2 : 1;

    assert(len > 0 && (size_t)len < sizeof body);
    c->protocol->refuse(c, e, status, fields, count, str_of(body, (size_t)len));
    if (e) {
        e->outer.status = status;
        exchange_detach(e);
    }
}

/* ---- what owners call ---- */

static const struct http_protocol *protocol_of(const struct exchange *e)
{
    return e->connection->protocol;
}

/* The head of a whole or streaming answer. False: a field was malformed and a 500 has been sent instead. */
static bool answer_start(struct exchange *e, unsigned status, const struct http_field *fields, size_t count,
                         uint64_t length, const struct str *whole)
{
    struct connection *c = e->connection;

    e->outer.status = status;
    e->bodiless = !answer_has_body(status) || e->outer.head.method == HTTP_HEAD;
    e->has_length = length != HTTP_LENGTH_UNKNOWN;
    e->answer_left = length;
    if (c->protocol->start(e, fields, count, whole))
        return true;
    log_error("http: an answer with status %u has a header that cannot be sent", status);
    exchange_poke(e);
    conn_refuse(c, e, 500, "the answer could not be written");
    return false;
}

static void answer_ended(struct exchange *e)
{
    e->answer = ANSWER_ENDED;
    body_discard(e);
    exchange_poke(e);
}

void http_reply(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                struct str body)
{
    struct exchange *e = exchange_of(ex);

    if (!ex->gone && e->answer == ANSWER_NONE && answer_start(e, status, fields, field_count, body.len, &body))
        answer_ended(e);
}

void http_start(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t field_count,
                uint64_t length)
{
    struct exchange *e = exchange_of(ex);

    if (ex->gone || e->answer != ANSWER_NONE || !answer_start(e, status, fields, field_count, length, NULL))
        return;
    e->answer = ANSWER_STARTED;
    exchange_poke(e);
}

/* May so many more bytes follow? The client would read bytes past the announced length as the next answer. */
static bool answer_takes(struct exchange *e, uint64_t size)
{
    if (e->outer.gone || e->answer != ANSWER_STARTED)
        return false;
    if (e->has_length && size > e->answer_left) {
        log_error("http: an answer is longer than its announced length");
        http_abort(&e->outer);
        return false;
    }
    if (e->has_length)
        e->answer_left -= size;
    return !e->bodiless && size > 0;
}

void http_write(struct http_exchange *ex, struct str bytes)
{
    struct exchange *e = exchange_of(ex);

    if (answer_takes(e, bytes.len))
        protocol_of(e)->write(e, bytes);
}

void http_send_file(struct http_exchange *ex, int file_fd, off_t offset, uint64_t size)
{
    struct exchange *e = exchange_of(ex);
    auto_close int file = file_fd;

    assert(ex->gone || e->answer != ANSWER_STARTED || !e->chunked);
    if (answer_takes(e, size))
        protocol_of(e)->send_file(e, take_fd(&file), offset, size);
}

bool answer_splice(struct http_exchange *ex, struct stream *from, uint64_t *left)
{
    struct exchange *e = exchange_of(ex);
    uint64_t size = *left;

    if (ex->gone || e->answer != ANSWER_STARTED || !e->has_length || e->bodiless || size > e->answer_left ||
        !protocol_of(e)->splice(e, from, left))
        return false;
    e->answer_left -= size;
    e->is_spliced = true;
    conn_poke(e->connection);
    return true;
}

bool http_is_full(const struct http_exchange *ex)
{
    const struct exchange *e = exchange_of(ex);

    return !ex->gone && protocol_of(e)->is_full(e);
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
    protocol_of(e)->end(e);
    answer_ended(e);
}

void http_abort(struct http_exchange *ex)
{
    struct exchange *e = exchange_of(ex);

    if (!ex->gone)
        protocol_of(e)->cut(e->connection, e);
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
