/*
 * Theory of operation
 *
 * A call is one request on one connection, and a state machine for the answer (enum call_state). As on the server,
 * call_step() advances it as far as the bytes at hand allow, and owners are called from the loop only.
 *
 * The two directions are independent: an answer may begin, and end, while the request's body is still being written. A
 * peer that answers and then stops reading makes our writes fail; the stream still delivers what it had sent before.
 */
#include <assert.h>

#include "base/limits.h"
#include "base/mem.h"
#include "http/inside.h"
#include "io/splice.h"

enum {
    INPUT_BYTES = 256 * 1024,
    INTERIM_MOST = 16, /* 1xx answers before the final one */
};

enum call_state {
    CALL_HEAD,     /* waits for the head of the answer */
    CALL_BODY,     /* on_head() was called, the body is coming */
    CALL_UPGRADED, /* 101: no longer HTTP, the owner takes the stream */
    CALL_OVER,     /* on_end() or on_error() was called */
};

struct http_call {
    struct loop *loop;
    struct stream *stream;
    const struct http_call_events *events;
    void *owner;
    enum call_state state;
    struct timer soon;
    bool stepping, freed, paused;
    bool peer_ended, peer_broke; /* nothing more comes; if it broke, `why` is the reason */
    struct err why;

    enum http_framing request_framing;
    bool to_head_request, request_finished;

    struct arena arena;
    struct http_head head;
    unsigned interim;
    size_t scanned; /* bytes of an unfinished head that were looked at */
    struct http_body body;
    unsigned pieces_left; /* of the body, in this step */
    struct http_exchange *splice_to;
};

static void call_step(struct http_call *call);

static void on_soon(struct timer *timer)
{
    call_step(container_of(timer, struct http_call, soon));
}

static void poke(struct http_call *call)
{
    if (!call->stepping && !call->freed)
        timer_set(&call->soon, call->loop, 0, on_soon);
}

static bool is_over(const struct http_call *call)
{
    return call->freed || call->state == CALL_OVER;
}

static void call_fail(struct http_call *call, const struct err *err)
{
    call->state = CALL_OVER;
    if (call->events->on_error)
        call->events->on_error(call, err);
}

static void call_end(struct http_call *call)
{
    call->state = CALL_OVER;
    if (call->events->on_end)
        call->events->on_end(call);
}

/* True if there may be more to do. */
static bool step_head(struct http_call *call)
{
    struct buf *in = &call->stream->in;
    size_t used;
    struct err err;

    if (in->len == 0 || (call->scanned > 0 && in->len < LIMIT_HEAD_BYTES &&
                         !memchr(in->data + call->scanned, '\n', in->len - call->scanned)))
        return false;
    switch (http_parse_response(buf_str(in), call->to_head_request, &call->head, &used, &err)) {
    case HTTP_MORE:
        call->scanned = in->len;
        return false;
    case HTTP_BAD:
        (void)err_wrap(&err, "read the answer's head");
        call_fail(call, &err);
        return false;
    case HTTP_DONE:
        break;
    }
    call->scanned = 0;
    if (call->head.status < 200 && call->head.status != 101) {
        buf_drop(in, used);
        if (++call->interim <= INTERIM_MOST)
            return true;
        (void)err_set(&err, ERR_LIMIT, "the answer has too many interim (1xx) heads");
        call_fail(call, &err);
        return false;
    }
    char *copy = arena_alloc(&call->arena, used);
    memcpy(copy, in->data, used);
    http_head_move(&call->head, in->data, copy);
    buf_drop(in, used);
    call->body = http_body_of(&call->head);
    call->state = call->head.status == 101 ? CALL_UPGRADED : CALL_BODY;
    if (call->events->on_head)
        call->events->on_head(call, &call->head);
    return true;
}

/* True while the kernel hands the body on. */
static bool is_spliced(struct http_call *call)
{
    struct stream *stream = call->stream;

    if (splice_is_on(stream))
        return true;
    if (!call->splice_to || stream->in.len || call->body.framing != HTTP_LENGTH || call->body.left < LIMIT_SPLICE_LEAST)
        return false;
    if (answer_splice(call->splice_to, stream, &call->body.left))
        return true;
    call->splice_to = NULL; /* not tried again for every piece */
    return false;
}

/* True if there may be more to do. */
static bool step_body(struct http_call *call)
{
    struct buf *in = &call->stream->in;
    struct str rest = buf_str(in), piece = STR("");
    struct err err;

    if (call->paused || is_spliced(call))
        return false;
    enum http_parse got = http_body_next(&call->body, &rest, &piece, &err);
    if (got == HTTP_BAD) {
        (void)err_wrap(&err, "read the answer's body");
        call_fail(call, &err);
        return false;
    }
    bool is_end = got == HTTP_DONE;
    if (call->body.framing == HTTP_UNTIL_CLOSE)
        is_end = call->peer_ended && !call->peer_broke; /* after a reset it is not complete */
    size_t used = in->len - rest.len;
    if (used == 0 && !is_end)
        return false;
    call->pieces_left--;
    if (piece.len && call->events->on_body)
        call->events->on_body(call, piece);
    if (is_over(call))
        return false;
    buf_drop(in, used);
    if (is_end) {
        call_end(call);
        return false;
    }
    return true;
}

/* The peer has gone before its answer was complete. */
static void tell_broken(struct http_call *call)
{
    bool in_head = call->state == CALL_HEAD;

    if (!call->peer_broke)
        (void)err_set(&call->why, ERR_UNAVAILABLE, "the peer closed the connection %s",
                      in_head ? "without an answer" : "in the middle of its answer");
    else if (in_head)
        call->why.kind = ERR_UNAVAILABLE;
    (void)err_wrap(&call->why, in_head ? "wait for an answer" : "read an answer");
    call_fail(call, &call->why);
}

static void call_step(struct http_call *call)
{
    if (call->stepping || call->freed)
        return;
    call->stepping = true;
    call->pieces_left = LIMIT_TURN_PIECES;
    for (bool again = true; again && !is_over(call) && call->pieces_left > 0;)
        again = call->state == CALL_HEAD ? step_head(call) : call->state == CALL_BODY ? step_body(call) : false;
    call->stepping = false;
    if (is_over(call))
        return;
    /* The rest of the input has its turn after the other streams'. */
    if (call->pieces_left == 0) {
        poke(call);
        return;
    }
    if (call->peer_ended && !(call->paused && call->state == CALL_BODY) && call->state != CALL_UPGRADED) {
        tell_broken(call);
        return;
    }
    /* What follows a 101 is for the stream's next owner. */
    stream_read(call->stream, call->state != CALL_UPGRADED);
}

static void on_input(struct stream *stream)
{
    struct http_call *call = stream->owner;

    if (!timer_is_set(&call->soon)) /* one step in each turn for a peer that floods us */
        call_step(call);
}

static void on_drained(struct stream *stream)
{
    struct http_call *call = stream->owner;

    if (!is_over(call) && !call->request_finished && call->events->on_drained)
        call->events->on_drained(call);
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct http_call *call = stream->owner;

    if (is_over(call))
        return;
    call->peer_ended = true;
    if (err) {
        call->peer_broke = true;
        call->why = *err;
    }
    call_step(call);
}

static const struct stream_events call_stream_events = {
    .on_input = on_input,
    .on_spliced = on_input,
    .on_drained = on_drained,
    .on_end = on_end,
};

struct http_call *http_call_again(struct loop *loop, struct stream *idle, struct str head, enum http_method method,
                                  enum http_framing framing, const struct http_call_events *events, void *owner)
{
    struct http_call *call = NEW(struct http_call);

    assert(framing != HTTP_UNTIL_CLOSE && idle->in.len == 0);
    call->loop = loop;
    call->events = events;
    call->owner = owner;
    call->request_framing = framing;
    call->request_finished = framing == HTTP_NO_BODY;
    call->to_head_request = method == HTTP_HEAD;
    call->stream = idle;
    idle->events = &call_stream_events;
    idle->owner = call;
    if (framing == HTTP_NO_BODY)
        stream_write(call->stream, head);
    else
        stream_queue(call->stream, head);
    stream_read(call->stream, true);
    return call;
}

struct http_call *http_call_new(struct loop *loop, int fd, bool connecting, struct str head, enum http_method method,
                                enum http_framing framing, const struct http_call_events *events, void *owner)
{
    struct stream *stream = connecting ? stream_new_connecting(loop, fd, INPUT_BYTES, &call_stream_events, NULL)
                                       : stream_new(loop, fd, INPUT_BYTES, &call_stream_events, NULL);

    return http_call_again(loop, stream, head, method, framing, events, owner);
}

void *http_call_owner(const struct http_call *call)
{
    return call->owner;
}

void http_call_write(struct http_call *call, struct str bytes)
{
    char line[HTTP_CHUNK_LINE_BYTES];

    if (is_over(call) || call->request_finished || bytes.len == 0)
        return;
    if (call->request_framing != HTTP_CHUNKED) {
        stream_write(call->stream, bytes);
        return;
    }
    size_t len = http_chunk_line(bytes.len, line);
    stream_write_many(call->stream, (struct str[]){ str_of(line, len), bytes, STR("\r\n") }, 3);
}

void http_call_finish(struct http_call *call)
{
    if (is_over(call) || call->request_finished)
        return;
    call->request_finished = true;
    if (call->request_framing == HTTP_CHUNKED)
        stream_write(call->stream, HTTP_LAST_CHUNK);
}

bool http_call_is_full(const struct http_call *call)
{
    return !is_over(call) && stream_is_full(call->stream);
}

void http_call_pause(struct http_call *call, bool pause)
{
    if (is_over(call) || call->paused == pause)
        return;
    call->paused = pause;
    poke(call);
}

void http_call_splice(struct http_call *call, struct http_exchange *ex)
{
    call->splice_to = ex;
}

struct stream *http_call_take_idle(struct http_call *call, const struct stream_events *events, void *owner)
{
    bool is_reusable = !call->freed && call->stream && call->state == CALL_OVER && call->head.status >= 200 &&
                       call->head.keep_alive && call->request_finished && !call->peer_ended &&
                       !stream_failed(call->stream) && stream_queued(call->stream) == 0 && call->stream->in.len == 0;

    if (!is_reusable)
        return NULL;
    struct stream *stream = take_ptr(&call->stream);
    stream->events = events;
    stream->owner = owner;
    return stream;
}

static void dispose(void *object)
{
    struct http_call *call = object;

    arena_done(&call->arena);
    free(call);
}

void http_call_free(struct http_call *call)
{
    if (!call || call->freed)
        return;
    call->freed = true;
    timer_clear(&call->soon);
    stream_free(take_ptr(&call->stream));
    loop_retire(call->loop, call, dispose);
}

struct stream *http_call_take_stream(struct http_call *call, const struct stream_events *events, void *owner)
{
    assert(!call->freed && call->state == CALL_UPGRADED);
    struct stream *stream = take_ptr(&call->stream);
    stream->events = events;
    stream->owner = owner;
    stream_read(stream, true);
    http_call_free(call);
    return stream;
}
