#include "api/request.h"
#include "base/encode.h"

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
