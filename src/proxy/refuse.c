#include "proxy/refuse.h"

#include "base/limits.h"

static const struct http_field json_fields[] = {
    { STR_INIT("Content-Type"), STR_INIT("application/json; charset=utf-8") },
    { STR_INIT("Access-Control-Allow-Origin"), STR_INIT("*") },
};
/* The last field is for guestd's port and for requests without one; a user's service has a say in its own CORS. */
enum { WITHOUT_CORS = COUNT_OF(json_fields) - 1, WITH_CORS = COUNT_OF(json_fields) };

static const struct {
    unsigned status;
    const char *message;
} refusals[REFUSAL_COUNT] = {
    [REFUSE_NOT_FOUND] = { 502, "The sandbox was not found" },
    [REFUSE_CLOSED] = { 502, "The sandbox is running but port is not open" },
    [REFUSE_BROKEN] = { 502, "The connection to the sandbox ended before it answered" },
    [REFUSE_UNAVAILABLE] = { 503, "The sandbox cannot be reached right now" },
    [REFUSE_PRIVATE] = { 403, "The traffic access token is missing or wrong: send it as e2b-traffic-access-token" },
    [REFUSE_CROWDED] = { 429, "The sandbox has too many concurrent incoming connections" },
    [REFUSE_GREEDY] = { 429, "The sandboxes of this API key have too many concurrent incoming connections" },
    [REFUSE_FULL] = { 503, "The server has too many concurrent connections to sandboxes" },
};

void refuse(struct http_exchange *ex, const struct target *target, enum refusal why)
{
    if (target->port == GUESTD_PORT && target_is_preflight(&ex->head)) {
        grant_preflight(ex);
        return;
    }
    /* An id is [a-z0-9]+ and the messages are ours: nothing here wants escaping. */
    struct buf body = buf_make(&ex->arena, 512);
    buf_format(&body, "{\"sandboxId\":\"%s\",\"message\":\"%s\"", target->id, refusals[why].message);
    if (why == REFUSE_CLOSED)
        buf_format(&body, ",\"port\":%u", target->port);
    if (why == REFUSE_CROWDED)
        buf_format(&body, ",\"connectionLimit\":%d", LIMIT_EDGE_CONNECTIONS);
    buf_format(&body, ",\"code\":%u}", refusals[why].status);
    struct http_field fields[COUNT_OF(json_fields) + 2];
    size_t count = target->port == GUESTD_PORT ? WITH_CORS : WITHOUT_CORS;
    memcpy(fields, json_fields, count * sizeof *fields);
    if (why == REFUSE_FULL) { /* nothing has happened, and it is not the sandbox's fault */
        fields[count++] = (struct http_field){ STR("Should-Retry"), STR("true") };
        fields[count++] = (struct http_field){ STR("Retry-After"), STR("1") };
    }
    http_reply(ex, refusals[why].status, fields, count, buf_str(&body));
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
    struct http_field fields[COUNT_OF(json_fields) + 1];
    memcpy(fields, json_fields, sizeof json_fields);
    fields[COUNT_OF(json_fields)] = (struct http_field){ STR("Retry-After"), STR("1") };
    if (verdict == LINK_BUSY)
        http_reply(ex, 429, fields, COUNT_OF(fields),
                   STR("{\"code\":429,\"message\":\"too many wrong signatures lately, try again in a second\"}\n"));
    else
        http_reply(ex, 401, fields, WITH_CORS, STR("{\"code\":401,\"message\":\"invalid signature\"}\n"));
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
