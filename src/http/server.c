/*
 * Theory of operation
 *
 * A connection is in one of four states (enum conn_state). conn_step() moves it on until nothing more can be done with
 * the bytes at hand; every event (bytes, room to write, an end, a call of the owner's) leads to it. Calls that owners
 * make (http_reply, http_body_pause…) only note what is wanted: when they come from inside a callback the step that made
 * the callback carries on, otherwise a step follows when the turn ends. So no owner is called back from inside its own
 * call.
 *
 * An exchange has two sides that are independent of each other: the body (enum body_state) and the answer (enum
 * answer_state). It is over for its owner once the answer is with the kernel; for the connection once the body has been
 * read or dropped too. Only then the next request is looked at, so a client that sends requests and reads no answers
 * waits like any other.
 *
 * Crowds: a connection that owes nobody anything rests (conn_settle): it waits for a request, or its answer was given and
 * it is slow to take it or to end. At connections_max the one that has rested the longest goes, strangers first, and the
 * newcomer has its place. So it takes as many requests that are really under way to keep anybody out, and those are
 * bounded elsewhere: by keys, and by the edge's share.
 *
 * Closing: to close a socket while the client is still sending makes the kernel reset the connection, and the reset may
 * overtake our last answer. So we end our side, and read and drop until the client has ended its own (CONN_LINGER).
 */
#include <assert.h>
#include <stdio.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/http.h"
#include "io/listen.h"

enum {
    BODY_INPUT_BYTES = 256 * 1024,              /* as much as one read takes */
    HEAD_INPUT_BYTES = LIMIT_HEAD_BYTES + 4096, /* enough to see that a head is too large */
    EARLY_INPUT_BYTES = 4096,                   /* what comes before anybody wants it */
    LINGER_MS = 2000,
    REFUSALS_MOST = 64,    /* connections past the limit that are told so, at once */
    REQUESTS_PER_STEP = 4, /* sent all at once; then the other connections have their turn */
};

enum conn_state {
    CONN_HEAD,   /* waits for a request, or for the rest of its head */
    CONN_BUSY,   /* an exchange is under way */
    CONN_LINGER, /* the last answer is written; what still comes is dropped until the client has closed, too */
    CONN_CLOSED, /* the stream is gone; freed when the turn ends */
    CONN_STATE_COUNT,
};

static const unsigned conn_may_become[CONN_STATE_COUNT] = {
    [CONN_HEAD] = BIT(CONN_BUSY) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_BUSY] = BIT(CONN_HEAD) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_LINGER] = BIT(CONN_CLOSED),
};

enum body_state {
    BODY_WAITING,    /* nobody has asked for it yet */
    BODY_READING,    /* goes to on_body() */
    BODY_COLLECTING, /* goes to the arena */
    BODY_DISCARDING, /* nobody wants it */
    BODY_DONE,
};

enum answer_state {
    ANSWER_NONE,
    ANSWER_STARTED,
    ANSWER_ENDED,
};

/* Lists that are joined and left in no time, the longest waiting first. */
struct link {
    struct queue *in; /* NULL: in none */
    struct link *next, *previous;
};

struct queue {
    struct link *first, *last;
};

static void queue_leave(struct link *link)
{
    struct queue *queue = link->in;

    if (!queue)
        return;
    *(link->previous ? &link->previous->next : &queue->first) = link->next;
    *(link->next ? &link->next->previous : &queue->last) = link->previous;
    *link = (struct link){ 0 };
}

static void queue_join(struct queue *queue, struct link *link)
{
    queue_leave(link);
    *link = (struct link){ .in = queue, .previous = queue->last };
    *(queue->last ? &queue->last->next : &queue->first) = link;
    queue->last = link;
}

struct exchange {
    struct http_exchange outer;
    struct connection *connection; /* NULL once gone */
    bool told;                     /* on_gone() was called, or must not be */

    enum body_state body;
    bool body_paused, continue_owed;
    uint64_t body_left; /* with HTTP_LENGTH */
    struct http_chunks chunks;
    uint64_t discarded;
    uint64_t body_idle_ms; /* 0: no limit */
    http_collected_fn *collected;
    size_t collect_cap;
    bool collect_over, starved; /* it grew too large; or all together did, and this one has to go */
    struct buf collect;
    struct link collecting;
    struct http_server *lender; /* whose budget holds `lent` bytes for us; NULL when that is none */
    size_t lent;

    enum answer_state answer;
    bool chunked, has_length, bodiless, close_after;
    uint64_t answer_left; /* with has_length */
};

/* Since when we have been waiting for something, as long as a counter does not move, or hardly does. */
struct patience {
    bool waiting;
    uint64_t seen, since_ms;
};

struct connection {
    struct http_server *server;
    struct loop *loop;
    struct stream *stream;
    enum conn_state state;
    struct connection *next, *previous;
    struct exchange *ex;
    size_t scanned;    /* bytes of an unfinished head that were looked at */
    uint64_t requests; /* ever */
    bool stepping, drained;
    bool trusted;          /* see http_trust() */
    bool is_refused;       /* too many: it was only let in to be told so */
    struct link resting;   /* while it could make room for another */
    uint64_t rested_after; /* requests */
    struct timer soon, watchdog;
    struct patience idle, head, body, write, linger;
};

struct http_server {
    struct loop *loop;
    struct http_server_config config;
    struct listener *listener;
    struct connection *connections;
    unsigned connection_count, refused_count;
    struct queue strangers, known; /* connections that rest */
    struct queue collecting;       /* exchanges whose bodies are being collected */
    size_t lent;                   /* collected bytes of all exchanges, also of those whose client has gone */
    unsigned references;           /* our own, and of each exchange that we have lent to */
    struct exchange *spare;        /* the next head is parsed into it, so that it need not be copied */
    struct buf scratch;            /* heads of answers; their arenas may be with a worker */
};

static const struct http_events no_events;
static void conn_step(struct connection *c);

static struct exchange *exchange_of(const struct http_exchange *ex)
{
    return container_of(ex, struct exchange, outer);
}

static void conn_enter(struct connection *c, enum conn_state next)
{
    assert(conn_may_become[c->state] & BIT(next));
    c->state = next;
}

/* ---- the exchange's memory ---- */

static void server_dispose(void *object)
{
    struct http_server *server = object;

    buf_done(&server->scratch);
    free(server->spare);
    free(server);
}

static void server_unref(struct http_server *server)
{
    if (--server->references == 0)
        loop_retire(server->loop, server, server_dispose);
}

/* An exchange that a worker holds may outlive its server, so who owes keeps the lender. */
static void borrow(struct http_server *server, struct exchange *e, size_t size)
{
    if (!e->lender) {
        e->lender = server;
        server->references++;
    }
    e->lent += size;
    server->lent += size;
}

static void give_back(struct exchange *e)
{
    struct http_server *server = take_ptr(&e->lender);

    if (!server)
        return;
    server->lent -= e->lent;
    e->lent = 0;
    server_unref(server);
}

static void exchange_dispose(void *object)
{
    struct exchange *e = object;

    give_back(e);
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

/* From here on every call for it is a no-op. */
static void exchange_detach(struct exchange *e)
{
    queue_leave(&e->collecting);
    e->outer.gone = true;
    e->outer.connection = NULL;
    e->connection = NULL;
}

static void exchange_tell_gone(struct exchange *e)
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

/* Something is to be done: by the step that is running, or by one when the turn ends. */
static void poke(struct connection *c)
{
    if (!c->stepping)
        timer_set(&c->soon, c->loop, 0, on_soon);
}

static void conn_close(struct connection *c, bool as_reset)
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
    poke(c);
}

/* After the last answer: end our side, wait for theirs. */
static void conn_linger(struct connection *c)
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

static void conn_bury(struct connection *c)
{
    timer_clear(&c->soon);
    timer_clear(&c->watchdog);
    loop_retire(c->loop, c, free);
}

/* ---- heads of answers ---- */

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

/*
 * An answer of our own, outside of any handler: the connection ends with it. Clients repeat what failed with 502 or 503,
 * unless they are told not to; we know only of the latter that nothing has happened.
 */
static void refuse(struct connection *c, unsigned status, const char *message)
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

/* ---- the body ---- */

static bool body_is_unbounded(const struct exchange *e)
{
    /* Nothing of it was asked for, so the client may send it or not: what comes next could be read in two ways. */
    if (e->continue_owed)
        return true;
    return e->outer.head.framing == HTTP_LENGTH && e->body_left > LIMIT_DISCARD_BYTES;
}

static void discard_body(struct exchange *e)
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
        if (e->answer == ANSWER_NONE && e->connection->stream->in.len == 0)
            stream_write(e->connection->stream, STR("HTTP/1.1 100 Continue\r\n\r\n"));
    }
    poke(e->connection);
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
    poke(e->connection);
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
    e->collect_over = ex->head.framing == HTTP_LENGTH && e->body_left > cap;
    queue_join(&e->connection->server->collecting, &e->collecting);
    want_body(e, BODY_COLLECTING);
}

void http_body_discard(struct http_exchange *ex)
{
    if (ex->gone)
        return;
    discard_body(exchange_of(ex));
    poke(exchange_of(ex)->connection);
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
    give_back(e);
    discard_body(e);
    e->collected(&e->outer, STR(""), &err);
}

/*
 * All bodies together take too much. The one that has been coming for the longest makes room: who sends slowly, or keeps
 * the last byte back, must not be in the way of those who are done in no time.
 */
static void starve_oldest(struct http_server *server)
{
    struct exchange *e = container_of(server->collecting.first, struct exchange, collecting);

    queue_leave(&e->collecting);
    buf_done(&e->collect);
    give_back(e);
    e->starved = e->collect_over = true;
    poke(e->connection);
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
        borrow(server, e, piece.len);
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
        refuse(c, 400, err->message);
        break;
    case ANSWER_STARTED:
        conn_close(c, true);
        break;
    case ANSWER_ENDED:
        e->body = BODY_DONE;
        e->close_after = true;
        break;
    }
}

/* What is there of it, up to its end. Afterwards the exchange may be over. */
static void body_step(struct connection *c, struct exchange *e)
{
    struct buf *in = &c->stream->in;
    struct err err;

    while (c->ex == e && c->state == CONN_BUSY && c->stream && !e->body_paused) {
        if (e->body == BODY_WAITING || e->body == BODY_DONE)
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
        bool is_end = false;
        switch (e->outer.head.framing) {
        case HTTP_NO_BODY:
        case HTTP_UNTIL_CLOSE: /* not of requests */
            is_end = true;
            break;
        case HTTP_LENGTH:
            piece = str_of(rest.at, (size_t)MIN((uint64_t)rest.len, e->body_left));
            rest.len -= piece.len;
            e->body_left -= piece.len;
            is_end = e->body_left == 0;
            break;
        case HTTP_CHUNKED:
            switch (http_chunks_next(&e->chunks, &rest, &piece, &err)) {
            case HTTP_DONE:
                is_end = true;
                break;
            case HTTP_MORE:
                break;
            case HTTP_BAD:
                body_is_bad(c, e, &err);
                return;
            }
            break;
        }
        size_t used = in->len - rest.len;
        if (used == 0 && !is_end)
            return;
        body_piece(e, piece);
        if (c->state != CONN_BUSY || !c->stream)
            return;
        buf_drop(in, used);
        if (is_end && e->body != BODY_DONE)
            body_end(e);
    }
}

/* ---- the answer ---- */

static bool will_close(const struct exchange *e)
{
    return !e->outer.head.keep_alive || e->close_after || (e->body != BODY_DONE && body_is_unbounded(e));
}

static bool status_has_body(unsigned status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* The head as far as both kinds of answers share it. NULL: a field was malformed and a 500 has been sent instead. */
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
    refuse(c, 500, "the answer could not be written");
    return NULL;
}

static void answer_ended(struct exchange *e)
{
    e->answer = ANSWER_ENDED;
    discard_body(e);
    poke(e->connection);
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
        poke(c);
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
    poke(c);
}

/* May so many more bytes follow? Past the announced length they would be read as the next answer. */
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

/* Bytes are queued from outside a step: somebody must look whether the client takes them. */
static void watch_write(struct connection *c)
{
    if (!c->write.waiting && stream_queued(c->stream) > 0)
        poke(c);
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
        refuse(c, 502, "the answer to the upgrade could not be written");
        poke(c);
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

/* ---- the connection ---- */

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
    e->body_left = ex->head.length;
    e->body_idle_ms = c->server->config.body_idle_ms;
    e->continue_owed = ex->head.expect_continue && in->len == 0;
    if (ex->head.framing == HTTP_NO_BODY)
        e->body_left = 0;
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

    /* A head that trickles in byte by byte must not be parsed for each of them. */
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
        refuse(c, server->spare->outer.head.status, err.message);
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
    /* What failed to get out is not answered: the stream is about to tell. */
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

/* Where it rests, or NULL while it must not be disturbed. */
static struct queue *resting_place(const struct connection *c)
{
    const struct exchange *e = c->ex;
    struct http_server *server = c->server;

    if (c->state == CONN_CLOSED || c->is_refused)
        return NULL;
    if (c->state == CONN_BUSY && (e->answer != ANSWER_ENDED || (c->trusted && !e->told)))
        return NULL;
    return c->trusted ? &server->known : &server->strangers;
}

static void conn_settle(struct connection *c)
{
    struct queue *place = resting_place(c);

    if (c->resting.in == place && c->rested_after == c->requests)
        return;
    queue_leave(&c->resting);
    if (place)
        queue_join(place, &c->resting);
    c->rested_after = c->requests;
}

/* How much of its input we buffer: thousands of connections must not cost more than they are worth to us just now. */
static size_t input_room(const struct connection *c)
{
    const struct exchange *e = c->ex;

    if (c->state == CONN_BUSY && e->body != BODY_WAITING && e->body != BODY_DONE)
        return BODY_INPUT_BYTES;
    return c->state == CONN_HEAD && c->scanned > 0 ? HEAD_INPUT_BYTES : EARLY_INPUT_BYTES;
}

static void conn_watch(struct connection *c);

static void conn_step(struct connection *c)
{
    uint64_t stop_at = c->requests + REQUESTS_PER_STEP;

    if (c->stepping)
        return;
    c->stepping = true;
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
        conn_bury(c);
        return;
    }
    if (c->requests >= stop_at)
        poke(c);
    c->stream->in.cap = input_room(c);
    stream_read(c->stream, true); /* there may be room again */
    conn_settle(c);
    conn_watch(c);
}

/* ---- time limits ---- */

/* When patience ends: UINT64_MAX while there is nothing to wait for. Less than `least` is no progress. */
static uint64_t patience_end(struct patience *p, bool waiting, uint64_t counter, uint64_t least, uint64_t limit_ms,
                             uint64_t now)
{
    if (!waiting || !p->waiting || counter - p->seen >= least) {
        p->since_ms = now;
        p->seen = counter;
    }
    p->waiting = waiting;
    return waiting && limit_ms ? p->since_ms + limit_ms : UINT64_MAX;
}

struct deadlines {
    uint64_t idle, head, body, write, linger;
};

static struct deadlines conn_deadlines(struct connection *c)
{
    const struct http_server_config *config = &c->server->config;
    const struct exchange *e = c->ex;
    uint64_t now = loop_now_ms(c->loop);
    bool in_head = c->state == CONN_HEAD, is_busy = c->state == CONN_BUSY, has_input = c->stream->in.len > 0;
    bool wants_body = is_busy && e->body != BODY_WAITING && e->body != BODY_DONE && !e->body_paused;
    /* Who connects means to ask; only who has asked may rest. */
    uint64_t rest_ms = c->trusted ? config->keepalive_ms : config->stranger_ms;
    uint64_t idle_ms = c->requests ? rest_ms : config->head_ms;

    return (struct deadlines){
        .idle = patience_end(&c->idle, in_head && !has_input, c->requests, 1, idle_ms, now),
        .head = patience_end(&c->head, in_head && has_input, c->requests, 1, config->head_ms, now),
        .body = patience_end(&c->body, wants_body, c->stream->bytes_in, 1, is_busy ? e->body_idle_ms : 0, now),
        .write = patience_end(&c->write, is_busy && stream_queued(c->stream) > 0, c->stream->bytes_out,
                              LIMIT_WRITE_LEAST_BYTES, config->write_idle_ms, now),
        .linger = patience_end(&c->linger, c->state == CONN_LINGER, 0, 1, config->linger_ms, now),
    };
}

static void on_watchdog(struct timer *timer)
{
    struct connection *c = container_of(timer, struct connection, watchdog);
    struct deadlines due = conn_deadlines(c);
    uint64_t now = loop_now_ms(c->loop);

    if (due.idle <= now || due.linger <= now)
        conn_close(c, false);
    else if (due.head <= now)
        refuse(c, 408, "the head of the request did not arrive in time");
    else if (due.write <= now)
        conn_close(c, true);
    else if (due.body <= now && c->ex->answer == ANSWER_NONE)
        refuse(c, 408, "the body of the request did not arrive in time");
    else if (due.body <= now)
        conn_close(c, c->ex->answer != ANSWER_ENDED);
    conn_step(c);
}

/* Sets the watchdog to the nearest limit. One that would bark too early is left alone: it looks again when it does. */
static void conn_watch(struct connection *c)
{
    struct deadlines due = conn_deadlines(c);
    uint64_t now = loop_now_ms(c->loop);
    uint64_t first = MIN(MIN(due.idle, due.head), MIN(MIN(due.body, due.write), due.linger));

    if (first == UINT64_MAX || (timer_is_set(&c->watchdog) && c->watchdog.due_ms <= first))
        return;
    timer_set(&c->watchdog, c->loop, first > now ? first - now : 0, on_watchdog);
}

/* ---- what streams call ---- */

static void on_input(struct stream *stream)
{
    conn_step(stream->owner);
}

static void on_drained(struct stream *stream)
{
    struct connection *c = stream->owner;

    c->drained = true;
    c->write.waiting = false; /* it took everything: what is written next has all the time again */
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
        /* In the middle of an answer nobody shall take what went out for all of it. */
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

static const struct stream_events conn_events = {
    .on_input = on_input,
    .on_drained = on_drained,
    .on_end = on_end,
    .on_hangup = on_hangup,
};

/* ---- the server ---- */

/* At the limit: the one that has rested the longest goes, or else the body that has been coming for the longest. */
static bool make_room(struct http_server *server)
{
    struct link *resting = server->strangers.first ? server->strangers.first : server->known.first;
    struct link *collecting = server->collecting.first;
    struct connection *c;

    if (resting)
        c = container_of(resting, struct connection, resting);
    else if (collecting)
        c = container_of(collecting, struct exchange, collecting)->connection;
    else
        return false;
    conn_close(c, c->state == CONN_BUSY);
    conn_step(c);
    return true;
}

void http_server_adopt(struct http_server *server, int fd)
{
    bool is_refused = server->connection_count >= server->config.connections_max && !make_room(server);

    if (is_refused && server->refused_count >= REFUSALS_MOST) {
        fd_close(&fd);
        return;
    }
    struct connection *c = NEW(struct connection);
    c->is_refused = is_refused;
    c->server = server;
    c->loop = server->loop;
    c->stream = stream_new(server->loop, fd, EARLY_INPUT_BYTES, &conn_events, c);
    c->next = server->connections;
    if (c->next)
        c->next->previous = c;
    server->connections = c;
    *(is_refused ? &server->refused_count : &server->connection_count) += 1;
    if (is_refused)
        refuse(c, 503, "too many connections");
    stream_read(c->stream, true);
    conn_settle(c);
    conn_watch(c);
}

static void on_accepted(void *context, int fd)
{
    http_server_adopt(context, fd);
}

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    return value ? value : otherwise;
}

struct http_server *http_server_new(struct loop *loop, int listen_fd, const struct http_server_config *config)
{
    struct http_server *server = NEW(struct http_server);

    server->loop = loop;
    server->config = *config;
    server->config.connections_max = config->connections_max ? config->connections_max : LIMIT_CONNECTIONS;
    server->config.head_ms = or_default(config->head_ms, LIMIT_HEAD_MS);
    server->config.body_idle_ms = or_default(config->body_idle_ms, LIMIT_BODY_IDLE_MS);
    server->config.write_idle_ms = or_default(config->write_idle_ms, LIMIT_WRITE_IDLE_MS);
    server->config.keepalive_ms = or_default(config->keepalive_ms, LIMIT_KEEPALIVE_MS);
    server->config.stranger_ms = or_default(config->stranger_ms, server->config.keepalive_ms);
    server->config.linger_ms = or_default(config->linger_ms, LINGER_MS);
    server->config.collect_max = or_default(config->collect_max, LIMIT_COLLECT_BYTES);
    server->references = 1;
    server->scratch = buf_make(NULL, LIMIT_HEAD_BYTES);
    if (listen_fd >= 0)
        server->listener = listener_new(loop, listen_fd, on_accepted, server);
    return server;
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    listener_free(server->listener);
    while (server->connections) {
        struct connection *c = server->connections;
        bool is_busy = c->state == CONN_BUSY;
        conn_close(c, is_busy);
        conn_step(c); /* unless we are inside a step of its own, which then ends by itself */
    }
    server_unref(server);
}
