#include "base/limits.h"
#include "base/mem.h"
#include "http/http.h"
#include "io/dial.h"

enum { FETCH_BODY_BYTES = 64 << 20 }; /* an answer that is kept in memory: listings, not downloads */

struct fetch {
    struct loop *loop;
    struct arena *arena;
    struct http_answer answer;
    struct buf body;
    struct err *err;
    struct timer limit;
    bool succeeded;
};

static void on_head(struct http_call *call, const struct http_head *head)
{
    struct fetch *fetch = http_call_owner(call);
    struct http_head *copy = &fetch->answer.head;

    /* The call's own strings die with the call. */
    *copy = *head;
    copy->reason = arena_copy(fetch->arena, head->reason);
    for (size_t i = 0; i < head->header_count; i++) {
        copy->headers[i].name = arena_copy(fetch->arena, head->headers[i].name);
        copy->headers[i].value = arena_copy(fetch->arena, head->headers[i].value);
    }
    fetch->answer.status = head->status;
}

static void on_body(struct http_call *call, struct str piece)
{
    struct fetch *fetch = http_call_owner(call);

    buf_add(&fetch->body, piece);
    if (fetch->body.overflowed)
        loop_stop_soon(fetch->loop);
}

static void on_end(struct http_call *call)
{
    struct fetch *fetch = http_call_owner(call);

    fetch->succeeded = true;
    loop_stop_soon(fetch->loop);
}

static void on_error(struct http_call *call, const struct err *err)
{
    struct fetch *fetch = http_call_owner(call);

    *fetch->err = *err;
    loop_stop_soon(fetch->loop);
}

static void on_limit(struct timer *timer)
{
    struct fetch *fetch = container_of(timer, struct fetch, limit);

    (void)err_set(fetch->err, ERR_TIMEOUT, "no answer within the time limit");
    loop_stop_soon(fetch->loop);
}

static const struct http_call_events fetch_events = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_error = on_error,
};

static bool write_head(struct buf *out, struct str address, struct str method, struct str target,
                       const struct http_field *fields, size_t field_count, struct str body, struct err *err)
{
    http_write_request_line(out, method, target);
    http_write_header(out, STR("Host"), address);
    http_write_header(out, STR("Connection"), STR("close"));
    for (size_t i = 0; i < field_count; i++)
        http_write_header(out, fields[i].name, fields[i].value);
    if (body.at)
        http_write_header_number(out, STR("Content-Length"), body.len);
    http_write_head_end(out);
    return !out->overflowed ||
           err_set(err, ERR_INVALID, "the request has a method, path or header that cannot be sent");
}

bool http_fetch(struct arena *arena, struct str address, struct str method, struct str target,
                const struct http_field *fields, size_t field_count, struct str body, uint64_t timeout_ms,
                struct http_answer *out, struct err *err)
{
    struct buf head = buf_make(arena, LIMIT_HEAD_BYTES);
    auto_buf struct buf answer_body = buf_make(NULL, FETCH_BODY_BYTES);

    if (!write_head(&head, address, method, target, fields, field_count, body, err))
        return false;
    int fd = dial_open(address, err);
    if (fd < 0)
        return false;
    struct fetch *fetch = ARENA_NEW(arena, struct fetch); /* a head is too large for the stack of a thread */
    *fetch = (struct fetch){ .loop = loop_new(), .arena = arena, .body = answer_body, .err = err };
    enum http_method kind = str_eq(method, STR("HEAD")) ? HTTP_HEAD : HTTP_OTHER;
    struct http_call *call =
        http_call_new(fetch->loop, fd, true, buf_str(&head), kind, HTTP_LENGTH, &fetch_events, fetch);
    http_call_write(call, body);
    http_call_finish(call);
    timer_set(&fetch->limit, fetch->loop, timeout_ms, on_limit);
    loop_run(fetch->loop);
    timer_clear(&fetch->limit);
    http_call_free(call);
    loop_free(fetch->loop);

    answer_body = fetch->body; /* freed on the way out */
    if (answer_body.overflowed)
        return err_set(err, ERR_LIMIT, "the answer is larger than %d bytes", FETCH_BODY_BYTES);
    if (!fetch->succeeded)
        return err_wrap(err, "%.*s %.*s", STR_ARG(method), STR_ARG(target));
    *out = fetch->answer;
    out->body = arena_copy(arena, buf_str(&answer_body));
    return true;
}
