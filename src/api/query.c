#include "api/request.h"
#include "base/clock.h"
#include "base/encode.h"

enum { PAGE_MOST = 100 };

bool query(const struct request *rq, struct str name, struct str *out)
{
    return http_query(&rq->ex->head, rq->arena, name, out) && out->len;
}

bool query_check(const struct request *rq, struct err *err)
{
    struct str decoded;

    return percent_decode(rq->arena, rq->ex->head.query, PERCENT_PLUS_IS_SPACE, &decoded) ||
           err_set(err, ERR_INVALID, "the query has a broken percent escape");
}

bool query_number(const struct request *rq, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                  struct err *err)
{
    struct str text;
    uint64_t number;

    if (!query(rq, str_from(name), &text))
        return true;
    if (!str_to_u64(text, most, &number) || number < least)
        return err_set(err, ERR_INVALID, "'%s' must be a whole number from %llu to %llu", name,
                       (unsigned long long)least, (unsigned long long)most);
    *out = number;
    return true;
}

/* ---- pages ---- */

bool query_limit(const struct request *rq, uint32_t *out, struct err *err)
{
    uint64_t limit = PAGE_MOST;
    struct str text;

    if (query(rq, STR("limit"), &text) && (!str_to_u64(text, PAGE_MOST, &limit) || limit == 0))
        return err_set(err, ERR_INVALID, "'limit' must be between 1 and %d", PAGE_MOST);
    *out = (uint32_t)limit;
    return true;
}

struct str token_encode(struct arena *arena, int64_t us, struct str id, bool is_ascending)
{
    char time[CLOCK_TEXT_BYTES];
    struct str plain =
        arena_format(arena, "%s__%.*s%s", clock_text(us, time), STR_ARG(id), is_ascending ? "__asc" : "");
    char *text = arena_alloc(arena, base64_size(plain.len));
    size_t len = base64_encode(plain, text);

    for (size_t i = 0; i < len; i++)
        text[i] = text[i] == '+' ? '-' : text[i] == '/' ? '_' : text[i];
    while (len && text[len - 1] == '=')
        len--;
    return str_of(text, len);
}

static bool take_part(struct str *rest, struct str *out)
{
    for (size_t i = 0; i + 1 < rest->len; i++) {
        if (rest->at[i] != '_' || rest->at[i + 1] != '_')
            continue;
        *out = str_of(rest->at, i);
        *rest = str_of(rest->at + i + 2, rest->len - i - 2);
        return true;
    }
    *out = *rest;
    *rest = STR("");
    return out->len > 0;
}

bool query_token(const struct request *rq, bool is_ascending, struct sandbox_mark *out, bool *out_there,
                 struct err *err)
{
    struct str token, time, id, order;
    struct sandbox_mark mark;
    size_t len;

    *out_there = query(rq, STR("nextToken"), &token);
    if (!*out_there)
        return true;
    unsigned char *plain = arena_alloc(rq->arena, token.len / 4 * 3 + 3);
    if (!base64_decode(token, plain, &len))
        return err_set(err, ERR_INVALID, "invalid next token");
    struct str rest = str_of(plain, len);
    if (!take_part(&rest, &time) || !clock_parse(time, &mark.started_us) || !take_part(&rest, &id))
        return err_set(err, ERR_INVALID, "invalid next token");
    bool says_ascending = take_part(&rest, &order) && str_eq(order, STR("asc"));
    if (rest.len || (!says_ascending && order.len) || says_ascending != is_ascending)
        return err_set(err, ERR_INVALID, "invalid next token");
    mark.id = id;
    *out = mark;
    return true;
}
