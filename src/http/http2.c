/*
 * http2.c - theory of operation.
 *
 * nghttp2 reads and writes the frames. It does no I/O: a step gives it the connection's input, looks at every exchange
 * that something has happened to (the connection's `due` queue), and sends the frames that nghttp2 then has for us.
 * nghttp2's callbacks only take notes: owners are called from the step, never from inside nghttp2. So a request that is
 * reset by the same input that brought it never reaches a handler.
 *
 * A head is written down as an HTTP/1.1 head and parsed as one: see http2_head.h.
 *
 * Bodies: what arrives waits in the stream's `in` until its owner takes it, and only then is the stream's window opened
 * again; so a paused body stops its own sender. The connection's window is opened at once, up to LIMIT_HTTP2_HELD_BYTES
 * (`held`); what is past that is `owed`, and opens the connection's window when it is taken.
 *
 * Answers: bytes wait in the stream's `out` until nghttp2 asks for them, which it does when the client's windows have
 * room, stream by stream in turn. Frames that the kernel does not take wait in the connection's stream; when that is
 * full, nghttp2 is not asked for more, and is given no more input. An answer counts as taken once its last frame is
 * made.
 *
 * Crowds: of many requests in one piece of input, LIMIT_TURN_REQUESTS are taken (`waiting`), and handled, before nghttp2
 * goes on with the rest.
 *
 * An exchange leaves when nghttp2 has closed its stream: both sides have ended, or either has reset it. An answer that
 * is complete before the request's body is: the body is discarded as with HTTP/1.1, and where HTTP/1.1 closes the
 * connection, we reset the stream with NO_ERROR (RFC 9113, 8.1). All other resets of ours have an error code, because
 * clients read NO_ERROR as a good end.
 */
#include <assert.h>
#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/header_kind.h"
#include "base/limits.h"
#include "base/log.h"
#include "http/http2_flood.h"
#include "http/http2_head.h"
#include "http/inside.h"

enum {
    INPUT_BYTES = 64 * 1024,                /* the most that nghttp2 gets in one step */
    TURN_SEND_BYTES = 1024 * 1024,          /* then the other connections have their turn */
    OUT_MOST = 128 * 1024 * 1024,           /* as a stream's: a source that ignores http_is_full() is broken */
    IN_MOST = 2 * LIMIT_HTTP2_WINDOW_KNOWN, /* a window that grows while bytes are on their way */
};

struct http2_stream {
    struct exchange *exchange;
    int32_t id;
    struct buf in;
    int32_t window;
    size_t owed; /* of `in`: the connection's window is opened when it is taken. The others are `held` */
    struct buf out;
    int file_fd; /* being sent after `out`, or -1 */
    off_t file_at;
    uint64_t file_left;
    bool has_begun;    /* the handler has it, or it was refused */
    bool out_ended;    /* nothing follows `out` and the file */
    bool is_deferred;  /* nghttp2 asks again only after nghttp2_session_resume_data() */
    bool is_drained;   /* `out` is empty again */
    bool has_sent_end; /* the last frame is made */
    bool was_cut;      /* by us */
    bool is_closed;    /* for nghttp2 */
};

struct http2 {
    nghttp2_session *session;
    size_t allocated; /* by nghttp2 */
    struct http2_head head;
    struct http2_flood flood;
    size_t looked_at; /* bytes of the connection's input that `flood` has seen */
    unsigned waiting; /* requests that no handler has yet */
    size_t held;      /* bytes in streams' `in` that the connection's window does not count */
    size_t unsent;    /* bytes in all streams' `out` */
    bool is_wide;     /* its window has been made larger */
    bool is_broken;   /* nghttp2 has failed: it must not be used any more */
};

/* ---- nghttp2's memory ---- */

struct allocation {
    size_t size;
    _Alignas(max_align_t) unsigned char bytes[];
};

static void free_counted(void *at, void *user_data)
{
    struct http2 *h = user_data;

    if (!at)
        return;
    struct allocation *a = container_of(at, struct allocation, bytes);
    h->allocated -= a->size;
    free(a);
}

static void *realloc_counted(void *at, size_t size, void *user_data)
{
    struct http2 *h = user_data;
    struct allocation *old = at ? container_of(at, struct allocation, bytes) : NULL;
    size_t had = old ? old->size : 0;

    if (size > LIMIT_HTTP2_SESSION_BYTES || h->allocated - had + size > LIMIT_HTTP2_SESSION_BYTES)
        return NULL;
    struct allocation *a = mem_grow(old, sizeof *a + size);
    a->size = size;
    h->allocated += size - had;
    return a->bytes;
}

static void *malloc_counted(size_t size, void *user_data)
{
    return realloc_counted(NULL, size, user_data);
}

static void *calloc_counted(size_t count, size_t size, void *user_data)
{
    size_t total;
    void *at = __builtin_mul_overflow(count, size, &total) ? NULL : malloc_counted(total, user_data);

    if (at)
        memset(at, 0, total);
    return at;
}

/* ---- small things ---- */

static bool is_open(const struct connection *c)
{
    return c->state == CONN_HEAD || c->state == CONN_BUSY;
}

/* What nghttp2 returns when it is out of memory, say. The step then closes the connection. */
static void check(struct connection *c, int result)
{
    if (nghttp2_is_fatal(result))
        c->http2->is_broken = true;
}

static struct http2_stream *stream_by_id(struct connection *c, int32_t id)
{
    return nghttp2_session_get_stream_user_data(c->http2->session, id);
}

static void reset_stream(struct connection *c, struct http2_stream *s, uint32_t code)
{
    s->was_cut = true;
    check(c, nghttp2_submit_rst_stream(c->http2->session, NGHTTP2_FLAG_NONE, s->id, code));
    conn_poke(c);
}

/* No more requests, and a last frame that says why; the step lets the connection go when that is out. */
static void terminate(struct connection *c, uint32_t code)
{
    check(c, nghttp2_session_terminate_session(c->http2->session, code));
}

static void calm_down(struct connection *c, const char *too_many)
{
    log_debug("http: an HTTP/2 connection is closed: its client has sent too many %s", too_many);
    terminate(c, NGHTTP2_ENHANCE_YOUR_CALM);
}

/* ---- windows ---- */

/* `size` bytes have left the stream's `in`. */
static void give_back(struct connection *c, struct http2_stream *s, size_t size)
{
    struct http2 *h = c->http2;
    size_t owed = MIN(size, s->owed), held = size - owed;

    s->owed -= owed;
    h->held -= held;
    c->server->held -= held;
    if (h->is_broken || size == 0)
        return;
    if (!s->is_closed)
        check(c, nghttp2_session_consume_stream(h->session, s->id, size));
    if (owed)
        check(c, nghttp2_session_consume_connection(h->session, owed));
}

/* A wanted body may have more under way than one that nobody has asked for, and that of a known client most. */
static void widen(struct connection *c, struct http2_stream *s)
{
    struct http2 *h = c->http2;
    const struct exchange *e = s->exchange;

    if (e->input_ended || (e->body != BODY_READING && e->body != BODY_COLLECTING))
        return;
    if (c->trusted && !h->is_wide && c->server->wide_count < LIMIT_HTTP2_WIDE) {
        h->is_wide = true;
        c->server->wide_count++;
        check(c, nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, LIMIT_HTTP2_WINDOW_KNOWN));
    }
    int32_t window = h->is_wide ? LIMIT_HTTP2_WINDOW_KNOWN : LIMIT_HTTP2_WINDOW_STRANGER;
    if (s->window < window)
        check(c, nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, s->id, window));
    s->window = MAX(s->window, window);
}

/* ---- what nghttp2 calls: notes are taken ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct connection *c = user_data;

    (void)session;
    (void)frame;
    http2_head_begin(&c->http2->head);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
                     const uint8_t *value, size_t value_len, uint8_t flags, void *user_data)
{
    struct connection *c = user_data;
    struct http2_head *head = &c->http2->head;

    (void)session;
    (void)frame;
    (void)flags;
    if (head->fields < LIMIT_HTTP2_FIELDS)
        http2_head_add(head, str_of(name, name_len), str_of(value, value_len));
    else if (head->fields++ == LIMIT_HTTP2_FIELDS)
        calm_down(c, "fields in one head");
    /* Another request, and those before it have not had their turn: the rest of the input waits. */
    return head->fields == 1 && c->http2->waiting >= LIMIT_TURN_REQUESTS ? NGHTTP2_ERR_PAUSE : 0;
}

/* nghttp2 would leave the field out, and a request without it may mean something else. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
                             const uint8_t *value, size_t value_len, uint8_t flags, void *user_data)
{
    struct connection *c = user_data;

    http2_head_refuse(&c->http2->head, 400, "a header has a character that it must not have");
    (void)on_header(session, frame, name, name_len, value, value_len, flags, user_data);
    return 0;
}

static void request_came(struct connection *c, const nghttp2_frame *frame)
{
    struct http2 *h = c->http2;
    bool has_body = !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM);
    bool has_room = server_has_room(c->server, c);
    struct exchange *e = server_spare(c->server);
    struct http2_stream *s = NEW(struct http2_stream);
    struct err err;

    c->server->spare = NULL;
    c->server->stream_count++;
    s->exchange = e;
    s->id = frame->hd.stream_id;
    s->in = buf_make(NULL, IN_MOST);
    s->out = buf_make(NULL, OUT_MOST);
    s->file_fd = -1;
    s->window = LIMIT_HTTP2_WINDOW;
    e->stream = s;
    bool is_good = http2_head_finish(&h->head, has_body, &e->outer.arena, &e->outer.head, &err);
    http2_head_done(&h->head);
    exchange_attach(c, e, &s->in);
    if (has_body && e->incoming.framing != HTTP_LENGTH)
        e->incoming.framing = HTTP_UNTIL_CLOSE; /* of the stream; DATA frames have no chunks inside */
    e->input_ended = !has_body;
    conn_due(c, e);
    check(c, nghttp2_session_set_stream_user_data(h->session, s->id, s));
    s->has_begun = !is_good || !has_room;
    h->waiting += !s->has_begun;
    if (!is_good)
        conn_refuse(c, e, e->outer.head.status, err.message);
    else if (!has_room)
        conn_refuse(c, e, 503, "too many requests at once");
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct connection *c = user_data;
    bool is_headers = frame->hd.type == NGHTTP2_HEADERS;

    (void)session;
    if (is_headers && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        request_came(c, frame);
        return 0;
    }
    if (is_headers) /* trailers: checked by nghttp2 and otherwise ignored, as with HTTP/1.1 */
        http2_head_done(&c->http2->head);
    struct http2_stream *s = is_headers || frame->hd.type == NGHTTP2_DATA ? stream_by_id(c, frame->hd.stream_id) : NULL;
    if (s && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) {
        s->exchange->input_ended = true;
        conn_due(c, s->exchange);
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                   void *user_data)
{
    struct connection *c = user_data;
    struct http2 *h = c->http2;
    struct http2_stream *s = stream_by_id(c, id);

    (void)flags;
    if (!s || s->was_cut) {
        check(c, nghttp2_session_consume(session, id, len));
        return 0;
    }
    buf_add(&s->in, str_of(data, len));
    if (s->in.overflowed)
        return NGHTTP2_ERR_CALLBACK_FAILURE; /* nghttp2 would have let more in than the window */
    conn_due(c, s->exchange);
    if (h->held + len > LIMIT_HTTP2_HELD_BYTES || c->server->held + len > LIMIT_HTTP2_HELD_ALL_BYTES) {
        s->owed += len;
        return 0;
    }
    h->held += len;
    c->server->held += len;
    check(c, nghttp2_session_consume_connection(session, len));
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user_data)
{
    struct connection *c = user_data;
    struct http2_stream *s = stream_by_id(c, id);

    (void)session;
    if (!s)
        return 0;
    s->is_closed = true;
    conn_due(c, s->exchange);
    bool is_early = code != NGHTTP2_NO_ERROR || !s->has_sent_end;
    const char *too_many =
        is_early && !s->was_cut ? http2_flood_reset(&c->http2->flood, c->trusted, loop_now_ms(c->loop)) : NULL;
    if (too_many)
        calm_down(c, too_many);
    return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct connection *c = user_data;

    (void)session;
    if (frame->hd.type == NGHTTP2_DATA)
        http2_flood_useful(&c->http2->flood);
    if ((frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS) ||
        !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    struct http2_stream *s = stream_by_id(c, frame->hd.stream_id);
    if (s) {
        s->has_sent_end = true;
        conn_due(c, s->exchange);
    }
    return 0;
}

/* Bytes of the file, which may have become shorter. */
static ssize_t read_file(struct http2_stream *s, uint8_t *room, size_t len)
{
    ssize_t n;

    do
        n = pread(s->file_fd, room, (size_t)MIN((uint64_t)len, s->file_left), s->file_at);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* resets the stream: INTERNAL_ERROR */
    s->file_at += n;
    s->file_left -= (uint64_t)n;
    if (s->file_left == 0)
        fd_close(&s->file_fd);
    return n;
}

static ssize_t read_out(struct connection *c, struct http2_stream *s, uint8_t *room, size_t len)
{
    size_t n = MIN(len, s->out.len);

    if (n == 0)
        return read_file(s, room, len);
    memcpy(room, s->out.data, n);
    buf_drop(&s->out, n);
    c->http2->unsent -= n;
    if (s->out.len == 0)
        buf_done(&s->out);
    return (ssize_t)n;
}

/* nghttp2 wants to send DATA, and the windows have room for so many bytes. */
static ssize_t on_read(nghttp2_session *session, int32_t id, uint8_t *room, size_t len, uint32_t *flags,
                       nghttp2_data_source *source, void *user_data)
{
    struct connection *c = user_data;
    struct http2_stream *s = source->ptr;
    struct exchange *e = s->exchange;
    ssize_t n = 0;

    (void)session;
    (void)id;
    if (s->out.len || s->file_fd >= 0)
        n = read_out(c, s, room, len);
    if (n < 0)
        return n;
    e->sent += (uint64_t)n;
    if (s->out.len || s->file_fd >= 0)
        return n;
    if (s->out_ended) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        return n;
    }
    if (n == 0) { /* never an empty frame: clients count them */
        s->is_deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    s->is_drained = true;
    conn_due(c, e);
    return n;
}

/* ---- an exchange's turn ---- */

static void release(struct connection *c, struct exchange *e)
{
    struct http2_stream *s = take_ptr(&e->stream);

    if (!s->is_closed)
        c->http2->is_broken = true; /* nghttp2 still has it: the connection ends */
    c->http2->waiting -= !s->has_begun;
    s->is_closed = true;
    exchange_release(c, e);
    give_back(c, s, s->in.len);
    c->http2->unsent -= s->out.len;
    c->server->stream_count--;
    buf_done(&s->in);
    buf_done(&s->out);
    fd_close(&s->file_fd);
    free(s);
}

static void run_body(struct connection *c, struct http2_stream *s)
{
    struct exchange *e = s->exchange;
    size_t before = s->in.len;

    widen(c, s);
    body_step(c, e);
    if (!is_open(c))
        return;
    if (e->body == BODY_DONE)
        buf_clear(&s->in);
    give_back(c, s, before - s->in.len);
    if (s->in.len == 0)
        buf_done(&s->in);
    else if (c->pieces_left == 0)
        conn_due(c, e); /* the rest has its turn after the other connections' */
}

static void run(struct connection *c, struct http2_stream *s)
{
    struct exchange *e = s->exchange;

    if (!s->has_begun && !s->is_closed) {
        s->has_begun = true;
        c->http2->waiting--;
        http2_flood_useful(&c->http2->flood);
        exchange_begin(c, e);
    }
    if (is_open(c) && !s->is_closed)
        run_body(c, s);
    if (is_open(c) && s->is_drained) {
        s->is_drained = false;
        e->write_wait.waiting = false; /* it took everything: the next write has its full time */
        c->pieces_left -= c->pieces_left > 0;
        if (!e->outer.gone && e->answer == ANSWER_STARTED && e->outer.events->on_drained)
            e->outer.events->on_drained(&e->outer);
    }
    if (!is_open(c))
        return;
    bool is_answered = e->answer == ANSWER_ENDED && s->has_sent_end;
    if (is_answered || e->outer.gone)
        exchange_tell_gone(e);
    if (is_answered && e->close_after && !e->input_ended && !s->was_cut)
        reset_stream(c, s, NGHTTP2_NO_ERROR);
    if (s->is_closed)
        release(c, e);
    else
        exchange_watch(c, e);
}

/* ---- a step ---- */

/* Not while the client does not read, or has requests that have not had their turn. */
static bool may_feed(const struct connection *c)
{
    return c->stream->in.len > 0 && !stream_is_full(c->stream) && c->http2->waiting < LIMIT_TURN_REQUESTS;
}

/* False: the connection has to be closed. */
static bool feed(struct connection *c)
{
    struct http2 *h = c->http2;
    struct buf *in = &c->stream->in;

    if (!may_feed(c))
        return true;
    struct str fresh = str_of(in->data + h->looked_at, in->len - h->looked_at);
    const char *too_many = http2_flood_look(&h->flood, fresh, loop_now_ms(c->loop));
    if (too_many)
        calm_down(c, too_many);
    ssize_t n = nghttp2_session_mem_recv(h->session, (const uint8_t *)in->data, in->len);
    if (n < 0) {
        h->is_broken = true;
        return false;
    }
    buf_drop(in, (size_t)n);
    h->looked_at = in->len;
    return !h->is_broken;
}

static void run_due(struct connection *c)
{
    struct queue_link *link;

    while (is_open(c) && c->pieces_left > 0 && c->requests < c->requests_until && (link = c->due.first)) {
        queue_leave(link);
        run(c, container_of(link, struct exchange, due)->stream);
    }
}

/* Hands the stream the frames that are to be sent, as long as there is room. */
static void send_frames(struct connection *c)
{
    struct http2 *h = c->http2;
    const uint8_t *frame;
    size_t total = 0;
    ssize_t n = 0;

    while (!h->is_broken && total < TURN_SEND_BYTES && !stream_is_full(c->stream) &&
           (n = nghttp2_session_mem_send(h->session, &frame)) > 0) {
        stream_queue(c->stream, str_of(frame, (size_t)n));
        total += (size_t)n;
        if (stream_is_full(c->stream))
            stream_write(c->stream, STR("")); /* the kernel may take it at once */
    }
    if (n < 0)
        h->is_broken = true;
    if (total >= TURN_SEND_BYTES)
        c->pieces_left = 0;
    if (total)
        stream_write(c->stream, STR(""));
}

static void settle(struct connection *c)
{
    enum conn_state state = c->exchanges.first ? CONN_BUSY : CONN_HEAD;

    if (is_open(c) && c->state != state)
        conn_enter(c, state);
}

static bool step(struct connection *c)
{
    struct http2 *h = c->http2;

    bool has_input = feed(c);
    settle(c);
    if (has_input)
        run_due(c);
    if (!is_open(c))
        return true;
    send_frames(c);
    settle(c);
    c->in_head = c->stream->in.len == 0 && http2_flood_in_head(&h->flood); /* else it is we who are late */
    if (h->is_broken) {
        conn_close(c, true);
        return true;
    }
    if (!nghttp2_session_want_read(h->session) && !nghttp2_session_want_write(h->session)) {
        conn_linger(c);
        return true;
    }
    return c->pieces_left > 0 && (c->due.first || may_feed(c));
}

static void want_input(struct connection *c)
{
    c->stream->in.cap = c->state == CONN_BUSY ? INPUT_BYTES : EARLY_INPUT_BYTES;
    if (c->stream->in.len == 0)
        buf_done(&c->stream->in);
}

/* ---- the beginning and the end of a connection ---- */

static void begin(struct connection *c)
{
    struct http2 *h = NEW(struct http2);
    nghttp2_mem memory = { h, malloc_counted, free_counted, calloc_counted, realloc_counted };
    const nghttp2_settings_entry settings[] = {
        { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, LIMIT_HTTP2_STREAMS },
        { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, LIMIT_HEAD_BYTES },
        { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, LIMIT_HTTP2_WINDOW },
    };
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;

    c->http2 = h;
    http2_head_begin(&h->head);
    http2_flood_begin(&h->flood);
    if (nghttp2_session_callbacks_new(&callbacks) || nghttp2_option_new(&option))
        log_die("http: out of memory");
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(callbacks, on_invalid_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_outbound_ack(option, LIMIT_HTTP2_ACKS);
#ifdef HAVE_NGHTTP2_RESET_LIMIT /* newer versions have a limit of their own, which is lower than ours */
    nghttp2_option_set_stream_reset_rate_limit(option, LIMIT_HTTP2_RESETS * LIMIT_HTTP2_RESETS_TRUST,
                                               LIMIT_HTTP2_RESETS_PER_S * LIMIT_HTTP2_RESETS_TRUST);
#endif
    if (nghttp2_session_server_new3(&h->session, callbacks, c, option, &memory))
        log_die("http: out of memory");
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    check(c, nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings, COUNT_OF(settings)));
    check(c, nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, LIMIT_HTTP2_WINDOW_STRANGER));
    conn_poke(c);
}

static void free_session(struct connection *c)
{
    nghttp2_session_del(c->http2->session);
    http2_head_done(&c->http2->head);
    free(c->http2);
}

static void ended(struct connection *c)
{
    conn_close(c, c->state == CONN_BUSY);
}

/* Resets what is under way, so that no client takes part of an answer for the whole, and says that this is the end. */
static void farewell(struct connection *c, uint32_t code)
{
    struct http2 *h = c->http2;

    for (struct queue_link *link = c->exchanges.first; link && !h->is_broken; link = link->next) {
        struct http2_stream *s = container_of(link, struct exchange, place)->stream;
        if (!s->has_sent_end && !s->was_cut && !s->is_closed)
            check(c, nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_INTERNAL_ERROR));
    }
    send_frames(c); /* after terminate() nghttp2 sends nothing else */
    if (!h->is_broken)
        terminate(c, code);
    send_frames(c);
}

static void finish(struct connection *c)
{
    farewell(c, NGHTTP2_NO_ERROR);
    conn_linger(c);
}

static bool goodbye(struct connection *c)
{
    struct http2 *h = c->http2;

    farewell(c, NGHTTP2_NO_ERROR);
    c->server->wide_count -= h->is_wide;
    h->is_wide = false;
    return !h->is_broken && !stream_failed(c->stream) && stream_queued(c->stream) == 0;
}

/* ---- answers ---- */

/* nghttp2 copies both, and makes the name lower case. */
static nghttp2_nv pair(struct str name, struct str value)
{
    return (nghttp2_nv){ (uint8_t *)name.at, (uint8_t *)value.at, name.len, value.len, NGHTTP2_NV_FLAG_NONE };
}

/* Without `has_body` the head is all there is. False: a field cannot be sent. */
static bool submit(struct connection *c, struct http2_stream *s, unsigned status, const struct http_field *fields,
                   size_t count, uint64_t length, bool has_body)
{
    nghttp2_nv pairs[LIMIT_HEADERS + 2];
    nghttp2_data_provider provider = { .source.ptr = s, .read_callback = on_read };
    char digits[8], number[24];
    struct buf *rules = &c->server->scratch; /* what HTTP/1.1 would not send is not sent here either */
    size_t used = 0;

    buf_clear(rules);
    int len = snprintf(digits, sizeof digits, "%u", status);
    pairs[used++] = pair(STR(":status"), str_of(digits, (size_t)len));
    for (size_t i = 0; i < count; i++) {
        if (header_is(fields[i].name, HEADER_WRITTEN | HEADER_HTTP2_NO_ANSWER))
            continue;
        http_write_header(rules, fields[i].name, fields[i].value);
        if (used == LIMIT_HEADERS + 1)
            return false;
        pairs[used++] = pair(fields[i].name, fields[i].value);
    }
    if (rules->overflowed)
        return false;
    if (length != HTTP_LENGTH_UNKNOWN && answer_has_body(status)) {
        len = snprintf(number, sizeof number, "%llu", (unsigned long long)length);
        pairs[used++] = pair(STR("content-length"), str_of(number, (size_t)len));
    }
    /* If the stream is closed already, the step is about to notice. */
    check(c, nghttp2_submit_response(c->http2->session, s->id, pairs, used, has_body ? &provider : NULL));
    return true;
}

static void add_out(struct connection *c, struct exchange *e, struct str bytes)
{
    struct http2_stream *s = e->stream;

    buf_add(&s->out, bytes);
    c->http2->unsent += bytes.len;
    e->written += bytes.len;
}

static void resume(struct connection *c, struct http2_stream *s)
{
    if (!s->is_deferred)
        return;
    s->is_deferred = false;
    check(c, nghttp2_session_resume_data(c->http2->session, s->id));
}

static bool start(struct exchange *e, const struct http_field *fields, size_t count, const struct str *whole)
{
    struct http2_stream *s = e->stream;
    uint64_t length = e->has_length ? e->answer_left : HTTP_LENGTH_UNKNOWN;
    bool has_body = !e->bodiless && !(whole && whole->len == 0);

    if (!submit(e->connection, s, e->outer.status, fields, count, length, has_body))
        return false;
    if (whole) {
        s->out_ended = true;
        if (has_body)
            add_out(e->connection, e, *whole);
    }
    return true;
}

static void write_piece(struct exchange *e, struct str bytes)
{
    struct http2_stream *s = e->stream;
    struct connection *c = e->connection;

    if (s->out.len + bytes.len > OUT_MOST) {
        c->protocol->cut(c, e);
        return;
    }
    add_out(c, e, bytes);
    resume(c, s);
    exchange_poke(e);
}

static void send_file(struct exchange *e, int file_fd, off_t offset, uint64_t size)
{
    struct http2_stream *s = e->stream;

    assert(s->file_fd < 0); /* one at a time */
    s->file_fd = file_fd;
    s->file_at = offset;
    s->file_left = size;
    e->written += size;
    resume(e->connection, s);
    exchange_poke(e);
}

static bool splice_from(struct exchange *e, struct stream *from, uint64_t *left)
{
    (void)e;
    (void)from;
    (void)left;
    return false; /* the bytes go into frames */
}

static bool is_full(const struct exchange *e)
{
    const struct http2_stream *s = e->stream;
    bool is_crowded = e->connection->http2->unsent > LIMIT_HTTP2_UNSENT_BYTES;

    return s->out.len > (is_crowded ? (size_t)LIMIT_HTTP2_UNSENT_EACH : (size_t)LIMIT_STREAM_BUFFER) || s->file_fd >= 0;
}

static void end(struct exchange *e)
{
    e->stream->out_ended = true;
    resume(e->connection, e->stream);
}

static void cut(struct connection *c, struct exchange *e)
{
    struct http2_stream *s = e->stream;

    if (s->was_cut || s->is_closed)
        return;
    reset_stream(c, s, NGHTTP2_INTERNAL_ERROR);
    exchange_detach(e);
    e->body = BODY_DONE; /* what has come of it is dropped: its owner is about to be told that it is gone */
    conn_due(c, e);
}

static void refuse(struct connection *c, struct exchange *e, unsigned status, const struct http_field *fields,
                   size_t count, struct str body)
{
    if (!e) {
        farewell(c, status == 503 ? NGHTTP2_NO_ERROR : NGHTTP2_ENHANCE_YOUR_CALM);
        conn_linger(c);
        return;
    }
    bool has_body = e->outer.head.method != HTTP_HEAD;
    (void)submit(c, e->stream, status, fields, count, body.len, has_body); /* fields of our own can be sent */
    e->stream->out_ended = true;
    if (has_body)
        add_out(c, e, body);
    e->answer = ANSWER_ENDED;
    body_discard(e);
    conn_due(c, e);
    conn_poke(c);
}

static void send_continue(struct exchange *e)
{
    struct connection *c = e->connection;
    nghttp2_nv status = pair(STR(":status"), STR("100"));

    check(c, nghttp2_submit_headers(c->http2->session, NGHTTP2_FLAG_NONE, e->stream->id, NULL, &status, 1, NULL));
}

const struct http_protocol http2_protocol = {
    .begin = begin,
    .step = step,
    .want_input = want_input,
    .ended = ended,
    .finish = finish,
    .goodbye = goodbye,
    .release = release,
    .free = free_session,
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
