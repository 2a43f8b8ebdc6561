#include "guest/answer.h"

#include <assert.h>
#include <stdarg.h>

#include "wire/json.h"

/* Adds to the caller's fields; returns how many there are now. */
static size_t with_cors(struct http_exchange *ex, struct http_field *all, const struct http_field *fields, size_t count)
{
    assert(count + 3 <= ANSWER_FIELDS_MAX);
    if (count)
        memcpy(all, fields, count * sizeof *fields);
    if (!http_header(&ex->head, STR("origin")))
        return count;
    all[count++] = (struct http_field){ STR("Access-Control-Allow-Origin"), STR("*") };
    all[count++] = (struct http_field){ STR("Vary"), STR("Origin") };
    all[count++] = (struct http_field){ STR("Access-Control-Expose-Headers"),
                                        STR("Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, "
                                            "Cache-Control, X-Content-Type-Options") };
    return count;
}

void answer(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t count, struct str body)
{
    struct http_field all[ANSWER_FIELDS_MAX];

    count = with_cors(ex, all, fields, count);
    http_reply(ex, status, all, count, body);
}

void answer_start(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t count,
                  uint64_t length)
{
    struct http_field all[ANSWER_FIELDS_MAX];

    count = with_cors(ex, all, fields, count);
    http_start(ex, status, all, count, length);
}

void answer_error(struct http_exchange *ex, unsigned status, const char *format, ...)
{
    static const struct http_field fields[] = {
        { STR_INIT("Content-Type"), STR_INIT("application/json; charset=utf-8") },
        { STR_INIT("X-Content-Type-Options"), STR_INIT("nosniff") },
    };
    char message[2 * LIMIT_PATH_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args); /* longer than any path we accept */
    va_end(args);
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);
    json_out_object(&out, NULL);
    json_out_int(&out, "code", status);
    json_out_str(&out, "message", str_from(message));
    json_out_end(&out);
    buf_add_char(&body, '\n');
    answer(ex, status, fields, COUNT_OF(fields), buf_str(&body));
}

void answer_no_route(struct http_exchange *ex, const struct http_match *match, answer_error_fn *error)
{
    if (match->path_known) {
        struct http_field allow = { STR("Allow"), str_from(match->allow) };
        answer(ex, 405, &allow, 1, STR(""));
        return;
    }
    error(ex, 404, "there is no %.*s %.*s", STR_ARG(ex->head.method_text), (int)MIN(ex->head.path.len, 200),
          ex->head.path.at);
}

bool answer_preflight(struct http_exchange *ex)
{
    const struct str *method = http_header(&ex->head, STR("access-control-request-method"));
    const struct str *asked = http_header(&ex->head, STR("access-control-request-headers"));

    if (ex->head.method != HTTP_OPTIONS || !method)
        return false;
    struct http_field fields[ANSWER_FIELDS_MAX];
    size_t count = 0;
    fields[count++] = (struct http_field){ STR("Access-Control-Allow-Methods"), *method };
    if (asked)
        fields[count++] = (struct http_field){ STR("Access-Control-Allow-Headers"), *asked };
    fields[count++] = (struct http_field){ STR("Access-Control-Max-Age"), STR("7200") };
    answer(ex, 204, fields, count, STR(""));
    return true;
}
