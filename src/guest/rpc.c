/*
 * rpc.c - one call: check the headers, collect or stream the body, parse each message, call the method, and write its
 * answer as JSON or as envelopes. A deadline and a keep-alive timer run meanwhile.
 */
#include "guest/rpc.h"

#include <assert.h>
#include <stdarg.h>

#include "guest/answer.h"
#include "guest/api.h"

enum {
    KEEPALIVE_DEFAULT_S = 90,
    SMALL_BYTES = 64 * 1024, /* every connection may hold this much, even if all together hold too much */
    INPUT_MOST_BYTES =
        (LIMIT_RPC_BYTES - 1024) / 4 * 3, /* of SendInput: base64, and a kilobyte for the JSON around it */
};

#define CONTENT_UNARY STR("application/json")
#define CONTENT_STREAM STR("application/connect+json") /* exactly: SDKs compare the whole value */

static bool is_stream(const struct rpc *rpc)
{
    return rpc->method->kind != RPC_UNARY;
}

/* ---- answering ---- */

static void done_answering(struct rpc *rpc)
{
    rpc->is_answered = true;
    timer_clear(&rpc->deadline);
    timer_clear(&rpc->keepalive);
}

static void start_stream(struct rpc *rpc)
{
    struct http_field type = { STR("Content-Type"), CONTENT_STREAM };

    if (rpc->has_started)
        return;
    rpc->has_started = true;
    answer_start(rpc->ex, 200, &type, 1, HTTP_LENGTH_UNKNOWN);
}

static void end_stream(struct rpc *rpc, struct str envelopes)
{
    start_stream(rpc);
    done_answering(rpc);
    http_write(rpc->ex, envelopes);
    http_end(rpc->ex);
}

void rpc_reply(struct rpc *rpc, struct str json)
{
    const struct http_field fields[] = { { STR("Content-Type"), CONTENT_UNARY }, rpc->extra_field };

    if (rpc->is_answered)
        return;
    if (json.len > SMALL_BYTES && rpc->guest->answer_bytes + json.len > LIMIT_ANSWERS_BYTES) {
        rpc_fail(rpc, CONNECT_RESOURCE_EXHAUSTED, "clients have not yet read %zu bytes of earlier answers",
                 rpc->guest->answer_bytes);
        return;
    }
    rpc->answer_bytes = json.len;
    rpc->guest->answer_bytes += json.len;
    if (!is_stream(rpc)) {
        done_answering(rpc);
        answer(rpc->ex, 200, fields, rpc->extra_field.name.len ? 2 : 1, json);
        return;
    }
    rpc_finish_with(rpc, json);
}

static void on_keepalive(struct timer *timer)
{
    struct rpc *rpc = container_of(timer, struct rpc, keepalive);

    rpc_send(rpc, rpc->keepalive_event);
}

void rpc_keep_alive(struct rpc *rpc, struct str json)
{
    rpc->keepalive_event = json;
    timer_set(&rpc->keepalive, rpc->guest->loop, rpc->keepalive_ms, on_keepalive);
}

void rpc_send_envelopes(struct rpc *rpc, struct str envelopes)
{
    if (rpc->is_answered)
        return;
    start_stream(rpc);
    http_write(rpc->ex, envelopes);
    if (rpc->keepalive_event.len)
        timer_set(&rpc->keepalive, rpc->guest->loop, rpc->keepalive_ms, on_keepalive);
}

void rpc_send(struct rpc *rpc, struct str json)
{
    auto_buf struct buf out = buf_make(NULL, json.len + CONNECT_HEADER_BYTES);

    connect_write(&out, 0, json);
    rpc_send_envelopes(rpc, buf_str(&out));
}

bool rpc_is_full(const struct rpc *rpc)
{
    return http_is_full(rpc->ex);
}

void rpc_finish(struct rpc *rpc)
{
    struct buf out = buf_make(rpc->arena, 64);

    if (rpc->is_answered)
        return;
    connect_write_end(&out, CONNECT_OK, STR(""));
    end_stream(rpc, buf_str(&out));
}

void rpc_finish_with(struct rpc *rpc, struct str json)
{
    struct buf out = buf_make(rpc->arena, json.len + 64);

    if (rpc->is_answered)
        return;
    connect_write(&out, 0, json);
    connect_write_end(&out, CONNECT_OK, STR(""));
    end_stream(rpc, buf_str(&out));
}

static void fail_text(struct rpc *rpc, enum connect_code code, struct str message)
{
    struct buf out = buf_make(rpc->arena, LIMIT_RPC_BYTES);

    if (rpc->is_answered)
        return;
    if (is_stream(rpc)) {
        connect_write_end(&out, code, message);
        end_stream(rpc, buf_str(&out));
        return;
    }
    struct http_field type = { STR("Content-Type"), CONTENT_UNARY };
    connect_write_error(&out, code, message);
    done_answering(rpc);
    answer(rpc->ex, connect_code_status(code), &type, 1, buf_str(&out));
}

void rpc_fail(struct rpc *rpc, enum connect_code code, const char *format, ...)
{
    char message[2 * LIMIT_PATH_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args); /* longer than any path we accept */
    va_end(args);
    fail_text(rpc, code, str_from(message));
}

enum connect_code rpc_code_of(enum err_kind kind)
{
    static const enum connect_code codes[ERR_KIND_COUNT] = {
        [ERR_NONE] = CONNECT_INTERNAL,
        [ERR_INVALID] = CONNECT_INVALID_ARGUMENT,
        [ERR_DENIED] = CONNECT_PERMISSION_DENIED,
        [ERR_NOT_FOUND] = CONNECT_NOT_FOUND,
        [ERR_CONFLICT] = CONNECT_ALREADY_EXISTS,
        [ERR_LIMIT] = CONNECT_RESOURCE_EXHAUSTED,
        [ERR_TIMEOUT] = CONNECT_DEADLINE_EXCEEDED,
        /* Never `unavailable`: SDKs take it to mean that the sandbox is gone. */
        [ERR_UNAVAILABLE] = CONNECT_INTERNAL,
        [ERR_FULL] = CONNECT_RESOURCE_EXHAUSTED,
        [ERR_INTERNAL] = CONNECT_INTERNAL,
    };

    return codes[kind];
}

void rpc_fail_err(struct rpc *rpc, const struct err *err)
{
    fail_text(rpc, rpc_code_of(err->kind), str_from(err->message));
}

void rpc_fail_request(struct rpc *rpc, const struct err *err)
{
    fail_text(rpc, rpc_code_of(err->kind == ERR_LIMIT ? ERR_INVALID : err->kind), str_from(err->message));
}

/* ---- requests ---- */

const json_t *rpc_field(const json_t *object, const char *camel, const char *snake)
{
    const json_t *value = json_object_get(object, camel);

    if (!value || json_is_null(value))
        value = json_object_get(object, snake);
    return value && !json_is_null(value) ? value : NULL;
}

static void on_deadline(struct timer *timer)
{
    struct rpc *rpc = container_of(timer, struct rpc, deadline);

    if (rpc->on_deadline)
        rpc->on_deadline(rpc);
    else
        rpc_fail(rpc, CONNECT_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void call_with(struct rpc *rpc, struct str message)
{
    struct err err;
    auto_json json_t *request = json_parse_object(message, &err);

    if (request)
        rpc->method->call(rpc, request);
    else
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "unmarshal message: %s", err.message);
}

static void on_collected(struct http_exchange *ex, struct str body, const struct err *err)
{
    struct rpc *rpc = ex->owner;
    struct err why;

    if (err && err->kind == ERR_LIMIT) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "%s; one message takes %d bytes of input", err->message,
                 INPUT_MOST_BYTES);
        return;
    }
    if (err) {
        rpc_fail(rpc, CONNECT_RESOURCE_EXHAUSTED, "%s", err->message); /* too much at once */
        return;
    }
    if (rpc->is_answered)
        return; /* the deadline came first */
    if (!is_stream(rpc)) {
        call_with(rpc, body);
        return;
    }
    struct str payload;
    unsigned flags;
    enum connect_read got = connect_reader_next(&rpc->reader, &body, &flags, &payload, &why);
    if (got == CONNECT_BAD)
        rpc_fail_request(rpc, &why);
    else if (got == CONNECT_MORE || flags || body.len)
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "protocol error: the request must be exactly one message");
    else
        call_with(rpc, payload);
}

/* ---- client streams ---- */

/* Updates the sum of held input. False if that is too much, and the call has failed. */
static bool count_input(struct rpc *rpc)
{
    size_t now = rpc->held.len + rpc->reader.partial.len;

    rpc->guest->input_bytes += now - rpc->input_bytes;
    rpc->input_bytes = now;
    if (now <= SMALL_BYTES || rpc->guest->input_bytes <= LIMIT_INPUT_BYTES)
        return true;
    rpc_fail(rpc, CONNECT_RESOURCE_EXHAUSTED, "processes have not yet read %zu bytes of input",
             rpc->guest->input_bytes);
    return false;
}

static void stop_reading(struct rpc *rpc)
{
    buf_done(&rpc->held);
    http_body_discard(rpc->ex);
}

/* Calls the method for each complete message, until it asks to wait or answers. */
static void call_each(struct rpc *rpc, struct str bytes)
{
    struct str payload;
    unsigned flags;
    struct err err;

    rpc->in_calls = true;
    while (!rpc->is_answered && !rpc->is_waiting) {
        enum connect_read got = connect_reader_next(&rpc->reader, &bytes, &flags, &payload, &err);
        if (got == CONNECT_MORE)
            break;
        if (got == CONNECT_BAD)
            rpc_fail_request(rpc, &err);
        else if (flags & CONNECT_END_STREAM)
            continue; /* clients should not send one; harmless */
        else
            call_with(rpc, payload);
    }
    rpc->in_calls = false;
    if (rpc->is_answered) {
        stop_reading(rpc);
        return;
    }
    if (bytes.len)
        buf_add(&rpc->held, bytes);
    if (count_input(rpc))
        http_body_pause(rpc->ex, rpc->is_waiting);
    else
        stop_reading(rpc);
}

static void client_stream_step(struct rpc *rpc)
{
    if (rpc->is_waiting || rpc->is_answered || rpc->in_calls)
        return;
    if (rpc->held.len) {
        auto_buf struct buf held = rpc->held;
        rpc->held = buf_make(NULL, held.cap);
        call_each(rpc, buf_str(&held));
    }
    if (rpc->is_waiting || rpc->is_answered || !rpc->body_ended)
        return;
    if (!connect_reader_is_whole(&rpc->reader))
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "protocol error: the request ends in the middle of a message");
    else
        rpc->method->end(rpc);
}

void rpc_wait(struct rpc *rpc, bool wait)
{
    rpc->is_waiting = wait;
    if (rpc->in_calls)
        return;
    http_body_pause(rpc->ex, wait);
    client_stream_step(rpc);
}

static void on_body(struct http_exchange *ex, struct str piece)
{
    struct rpc *rpc = ex->owner;

    if (rpc->is_answered)
        return;
    if (rpc->is_waiting)
        buf_add(&rpc->held, piece);
    else
        call_each(rpc, piece);
    if (rpc->held.overflowed)
        rpc_fail(rpc, CONNECT_RESOURCE_EXHAUSTED, "too much input at once");
    (void)count_input(rpc);
}

static void on_body_end(struct http_exchange *ex)
{
    struct rpc *rpc = ex->owner;

    rpc->body_ended = true;
    client_stream_step(rpc);
}

/* ---- the exchange ---- */

static void on_drained(struct http_exchange *ex)
{
    struct rpc *rpc = ex->owner;

    if (rpc->on_drained && !rpc->is_answered)
        rpc->on_drained(rpc);
}

static void on_gone(struct http_exchange *ex)
{
    struct rpc *rpc = ex->owner;

    done_answering(rpc);
    if (rpc->on_gone)
        rpc->on_gone(rpc);
    connect_reader_done(&rpc->reader);
    buf_done(&rpc->held);
    (void)count_input(rpc);
    rpc->guest->answer_bytes -= rpc->answer_bytes;
}

static const struct http_events exchange_events = {
    .on_body = on_body,
    .on_body_end = on_body_end,
    .on_drained = on_drained,
    .on_gone = on_gone,
};

/* "application/json", perhaps with a charset, which can only be UTF-8. */
static bool is_content_type(const struct http_head *head, struct str want)
{
    const struct str *type = http_header(head, STR("content-type"));
    struct str rest, value;

    if (!type)
        return false;
    rest = *type;
    return str_cut(&rest, ';', &value) && str_eq_nocase(str_trim(value), want);
}

static struct str header_or_empty(const struct http_head *head, struct str name)
{
    const struct str *value = http_header(head, name);

    return value ? *value : STR("");
}

static uint64_t keepalive_ms(const struct http_head *head)
{
    uint64_t seconds = 0;

    if (!str_to_u64(header_or_empty(head, STR("keepalive-ping-interval")), 24 * 3600, &seconds) || seconds == 0)
        seconds = KEEPALIVE_DEFAULT_S;
    return seconds * 1000;
}

/* In upstream's order. */
static bool check_headers(struct rpc *rpc)
{
    const struct http_head *head = &rpc->ex->head;
    struct err err;

    struct str version = header_or_empty(head, STR("connect-protocol-version"));
    if (version.len && !str_eq(version, STR("1"))) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "connect-protocol-version must be \"1\": got \"%.*s\"",
                 STR_ARG(version));
        return false;
    }
    struct str encoding =
        header_or_empty(head, is_stream(rpc) ? STR("connect-content-encoding") : STR("content-encoding"));
    if (encoding.len && !str_eq_nocase(encoding, STR("identity"))) {
        rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "unknown compression \"%.*s\": supported encodings are identity",
                 STR_ARG(encoding));
        return false;
    }
    if (!api_user(rpc->guest, rpc->ex, &rpc->user, &err)) {
        rpc_fail(rpc, CONNECT_UNAUTHENTICATED, "%s", err.message);
        return false;
    }
    if (!connect_timeout_parse(header_or_empty(head, STR("connect-timeout-ms")), &rpc->timeout_ms, &err)) {
        rpc_fail_err(rpc, &err);
        return false;
    }
    return true;
}

void rpc_begin(struct guest *guest, struct http_exchange *ex, const struct rpc_method *method)
{
    struct rpc *rpc = ARENA_NEW(&ex->arena, struct rpc);
    bool stream = method->kind != RPC_UNARY;

    if (!is_content_type(&ex->head, stream ? CONTENT_STREAM : CONTENT_UNARY)) {
        struct http_field accept = { STR("Accept-Post"), stream ? CONTENT_STREAM : CONTENT_UNARY };
        answer(ex, 415, &accept, 1, STR(""));
        return;
    }
    rpc->guest = guest;
    rpc->ex = ex;
    rpc->method = method;
    rpc->arena = &ex->arena;
    rpc->keepalive_ms = keepalive_ms(&ex->head);
    rpc->held = buf_make(NULL, LIMIT_RPC_BYTES);
    connect_reader_init(&rpc->reader);
    ex->owner = rpc;
    ex->events = &exchange_events;
    if (!check_headers(rpc))
        return;
    if (rpc->timeout_ms)
        timer_set(&rpc->deadline, guest->loop, rpc->timeout_ms, on_deadline);
    if (method->kind == RPC_CLIENT_STREAM) {
        http_body_patience(ex, 0); /* a person may be typing: only the deadline bounds it */
        http_body_start(ex);
        return;
    }
    http_collect(ex, LIMIT_RPC_BYTES + CONNECT_HEADER_BYTES, on_collected);
}
