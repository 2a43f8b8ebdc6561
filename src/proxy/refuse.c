#include "proxy/refuse.h"

#include "base/limits.h"

static const struct http_field json_fields[] = {
    { STR_INIT("Content-Type"), STR_INIT("application/json; charset=utf-8") },
    { STR_INIT("Access-Control-Allow-Origin"), STR_INIT("*") },
};
/* The last field is for guestd's port and for requests without a port. A user's service sets its own CORS fields. */
enum { WITHOUT_CORS = COUNT_OF(json_fields) - 1, WITH_CORS = COUNT_OF(json_fields) };

/* May the client try again? Without an answer to that it repeats every 429 and 5xx. */
enum retry {
    RETRY_UNSAID,
    RETRY_NO,  /* the request may have had an effect, or the next try will fail too */
    RETRY_YES, /* the request had no effect, and the cause is temporary */
};

static const struct {
    unsigned status;
    enum retry retry;
    const char *message;
} refusals[REFUSAL_COUNT] = {
    [REFUSE_NOT_FOUND] = { 502, RETRY_NO, "The sandbox was not found" },
    [REFUSE_CLOSED] = { 502, RETRY_NO, "The sandbox is running but port is not open" }, /* after several attempts */
    [REFUSE_BROKEN] = { 502, RETRY_NO, "The connection to the sandbox ended before it answered" },
    [REFUSE_UNAVAILABLE] = { 503, RETRY_YES, "The sandbox cannot be reached right now" },
    [REFUSE_PRIVATE] = { 403, RETRY_UNSAID,
                         "The traffic access token is missing or wrong: send it as e2b-traffic-access-token" },
    /* These are limits, not rates: waiting does not help while the connections are held. */
    [REFUSE_CROWDED] = { 429, RETRY_NO, "The sandbox has too many concurrent incoming connections" },
    [REFUSE_STRANGERS] = { 429, RETRY_NO,
                           "The sandbox has too many concurrent incoming connections without an access token" },
    [REFUSE_GREEDY] = { 429, RETRY_NO, "The sandboxes of this API key have too many concurrent incoming connections" },
    [REFUSE_FULL] = { 503, RETRY_YES, "The server has too many concurrent connections to sandboxes" },
    [REFUSE_ASLEEP] = { 403, RETRY_UNSAID,
                        "The sandbox is paused, and only a request with its access token (X-Access-Token) wakes it" },
    [REFUSE_RESUMING] = { 409, RETRY_UNSAID, "The sandbox is still being resumed" },
    [REFUSE_RESUMING_GUESTD] = { 503, RETRY_YES, "The sandbox is still being resumed" },
    [REFUSE_CROWDED_ASLEEP] = { 503, RETRY_YES, "Too many requests wait for sandboxes to be resumed" },
    [REFUSE_NO_ROOM] = { 429, RETRY_NO,
                         "The sandbox is paused and cannot be resumed now: as many sandboxes run as are allowed" },
};

enum { RETRY_FIELDS = 2 };

static size_t add_retry(struct http_field *fields, size_t count, enum retry retry)
{
    if (retry == RETRY_UNSAID)
        return count;
    fields[count++] = (struct http_field){ STR("Should-Retry"), retry == RETRY_YES ? STR("true") : STR("false") };
    if (retry == RETRY_YES)
        fields[count++] = (struct http_field){ STR("Retry-After"), STR("1") };
    return count;
}

void refuse(struct http_exchange *ex, const struct target *target, enum refusal why)
{
    if (target->port == GUESTD_PORT && target_is_preflight(&ex->head)) {
        grant_preflight(ex);
        return;
    }
    /* An id is [a-z0-9]+ and the messages are ours: nothing needs escaping. */
    struct buf body = buf_make(&ex->arena, 512);
    buf_format(&body, "{\"sandboxId\":\"%s\",\"message\":\"%s\"", target->id, refusals[why].message);
    if (why == REFUSE_CLOSED)
        buf_format(&body, ",\"port\":%u", target->port);
    if (why == REFUSE_CROWDED)
        buf_format(&body, ",\"connectionLimit\":%d", LIMIT_EDGE_CONNECTIONS);
    if (why == REFUSE_STRANGERS)
        buf_format(&body, ",\"connectionLimit\":%d", LIMIT_EDGE_STRANGERS);
    buf_format(&body, ",\"code\":%u}", refusals[why].status);
    struct http_field fields[COUNT_OF(json_fields) + RETRY_FIELDS];
    size_t count = target->port == GUESTD_PORT ? WITH_CORS : WITHOUT_CORS;
    memcpy(fields, json_fields, count * sizeof *fields);
    count = add_retry(fields, count, refusals[why].retry);
    http_reply(ex, refusals[why].status, fields, count, buf_str(&body));
}

void refuse_token(struct http_exchange *ex, const struct target *target)
{
    bool is_code = target->port == GUESTD_CODE_PORT;
    struct http_field fields[5] = { { STR("Content-Type"), STR("text/plain; charset=utf-8") } };
    size_t count = 1;

    if (!is_code) {
        fields[0].value = STR("application/json; charset=utf-8");
        fields[count++] = (struct http_field){ STR("X-Content-Type-Options"), STR("nosniff") };
    }
    if (http_header(&ex->head, STR("Origin"))) {
        fields[count++] = (struct http_field){ STR("Access-Control-Allow-Origin"), STR("*") };
        fields[count++] = (struct http_field){ STR("Vary"), STR("Origin") };
        fields[count++] = (struct http_field){ STR("Access-Control-Expose-Headers"),
                                               STR("Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, "
                                                   "Cache-Control, X-Content-Type-Options") };
    }
    http_reply(ex, 401, fields, count,
               is_code ? STR("unauthorized access, please provide a valid access token")
                       : STR("{\"code\":401,\"message\":\"unauthorized access, please provide a valid access token or "
                             "method signing if supported\"}\n"));
}

void refuse_unroutable(struct http_exchange *ex, enum target_verdict verdict)
{
    static const struct http_field text_fields[] = {
        { STR_INIT("Content-Type"), STR_INIT("text/plain; charset=utf-8") },
        { STR_INIT("Access-Control-Allow-Origin"), STR_INIT("*") },
    };
    http_reply(ex, 400, text_fields, COUNT_OF(text_fields), str_from(target_complaint(verdict)));
}

void refuse_link(struct http_exchange *ex, enum links_verdict verdict)
{
    struct http_field fields[COUNT_OF(json_fields) + RETRY_FIELDS];
    memcpy(fields, json_fields, sizeof json_fields);
    size_t count = add_retry(fields, WITH_CORS, RETRY_YES);
    if (verdict == LINK_BUSY)
        http_reply(ex, 429, fields, count,
                   STR("{\"code\":429,\"message\":\"too many wrong signatures from this address, try again in a "
                       "second\"}\n"));
    else
        http_reply(ex, 401, fields, WITH_CORS,
                   STR("{\"code\":401,\"message\":\"invalid signature, or its sandbox is no longer running\"}\n"));
}

void refuse_control_path(struct http_exchange *ex, struct str path)
{
    struct buf body = buf_make(&ex->arena, 512);
    buf_format(&body,
               "{\"message\":\"This route is not available from outside the sandbox\",\"path\":\"%.*s\",\"code\":404}",
               STR_ARG(path));
    http_reply(ex, 404, json_fields, WITH_CORS, buf_str(&body));
}

void grant_preflight(struct http_exchange *ex)
{
    const struct str *wanted = http_header(&ex->head, STR("Access-Control-Request-Headers"));
    const struct http_field fields[] = {
        { STR_INIT("Access-Control-Allow-Origin"), STR_INIT("*") },
        { STR_INIT("Access-Control-Allow-Methods"), STR_INIT("HEAD, GET, POST, PUT, PATCH, DELETE") },
        { STR_INIT("Access-Control-Max-Age"), STR_INIT("7200") },
        { STR_INIT("Access-Control-Allow-Headers"), wanted ? *wanted : STR("*") },
    };
    http_reply(ex, 204, fields, COUNT_OF(fields), STR(""));
}
