/*
 * Answers and errors. One table turns a kind of error into a status and says whether the request may be repeated.
 */
#include "api/request.h"
#include "base/log.h"
#include "base/random.h"

enum {
    REPLY_BYTES = 64 << 20, /* the list without pages: a thousand sandboxes, each with as much metadata as allowed */
    REFERENCE_CHARS = 8,
};

static const struct {
    unsigned status;
    const char *slug;
    enum retry retry;
} of_kind[ERR_KIND_COUNT] = {
    [ERR_NONE] = { 500, "internal_server_error", RETRY_UNSAID },
    [ERR_INVALID] = { 400, NULL, RETRY_UNSAID },
    [ERR_DENIED] = { 403, NULL, RETRY_UNSAID },
    [ERR_NOT_FOUND] = { 404, NULL, RETRY_UNSAID },
    [ERR_CONFLICT] = { 409, NULL, RETRY_UNSAID },
    [ERR_LIMIT] = { 429, NULL, RETRY_NO }, /* a limit, not a rate: waiting a second does not help */
    [ERR_TIMEOUT] = { 504, NULL, RETRY_NO },
    [ERR_UNAVAILABLE] = { 503, NULL, RETRY_YES },
    [ERR_FULL] = { 507, "insufficient_storage", RETRY_NO }, /* the operator has to free space first */
    [ERR_INTERNAL] = { 500, "internal_server_error", RETRY_UNSAID },
};

unsigned reply_status_of(enum err_kind kind)
{
    return of_kind[kind].status;
}

static void reset(struct request *rq, unsigned status)
{
    rq->reply = (struct reply){ .status = status, .body = buf_make(rq->arena, REPLY_BYTES) };
}

void reply_field(struct request *rq, struct str name, struct str value)
{
    struct reply *reply = &rq->reply;

    if (reply->field_count < REPLY_FIELDS)
        reply->fields[reply->field_count++] = (struct http_field){ name, value };
}

void reply_empty(struct request *rq, unsigned status)
{
    reset(rq, status);
}

struct json_out reply_json(struct request *rq, unsigned status)
{
    reset(rq, status);
    reply_field(rq, STR("Content-Type"), STR("application/json; charset=utf-8"));
    return json_out_to(&rq->reply.body);
}

void reply_problem(struct request *rq, unsigned status, const char *slug, enum retry retry, struct str message)
{
    struct json_out json = reply_json(rq, status);

    json_out_object(&json, NULL);
    json_out_int(&json, "code", status);
    json_out_str(&json, "message", message);
    if (slug)
        json_out_str(&json, "error_code", str_from(slug));
    json_out_end(&json);
    if (retry == RETRY_NO)
        reply_field(rq, STR("Should-Retry"), STR("false"));
    if (retry == RETRY_YES) {
        reply_field(rq, STR("Should-Retry"), STR("true"));
        reply_field(rq, STR("Retry-After"), STR("1"));
    }
}

struct str request_shown(const struct request *rq)
{
    const struct http_route *route = rq->match.route;
    struct str path = rq->ex->head.path;

    if (route && strstr(route->pattern, "{token}"))
        return str_from(route->pattern);
    return str_of(path.at, MIN(path.len, (size_t)200));
}

struct str reply_reference(struct request *rq, const char *what, const struct err *err)
{
    const struct http_head *head = &rq->ex->head;
    char reference[REFERENCE_CHARS + 1];

    random_id(reference, REFERENCE_CHARS);
    log_error("api: [%s] %.*s %.*s: %s", reference, STR_ARG(head->method_text), STR_ARG(request_shown(rq)),
              err_text(err));
    return arena_format(rq->arena, "%s (reference %s in the server's log)", what, reference);
}

void reply_err(struct request *rq, const struct err *err)
{
    struct str message = str_from(err->message);

    if (err->kind == ERR_INTERNAL || err->kind == ERR_NONE)
        message = reply_reference(rq, "something went wrong on the server", err);
    reply_problem(rq, of_kind[err->kind].status, of_kind[err->kind].slug, of_kind[err->kind].retry, message);
}

void reply_copy_err(struct request *rq, const struct err *err)
{
    if (err->kind == ERR_UNAVAILABLE)
        reply_problem(rq, 503, NULL, RETRY_NO, str_from(err->message));
    else
        reply_err(rq, err);
}

void reply_invalid(struct request *rq, const struct err *err)
{
    if (err->kind != ERR_INVALID && err->kind != ERR_LIMIT) {
        reply_err(rq, err);
        return;
    }
    /* Also for ERR_LIMIT: a body that is nested too deep or too long is malformed, and 429 would ask to try later. */
    reply_problem(rq, 400, NULL, RETRY_UNSAID, arena_format(rq->arena, "validation error: %s", err->message));
}
