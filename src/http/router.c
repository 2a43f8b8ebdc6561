/*
 * router.c - finds the row of a table of routes that a request's method and path match.
 */
#include <stdio.h>

#include "base/encode.h"
#include "http/http.h"

/* Segment by segment; a "{name}" takes any one segment that is not empty. The params are raw still. */
static bool matches(struct str pattern, struct str path, struct http_match *out)
{
    struct str want, have;

    out->param_count = 0;
    while (str_cut(&pattern, '/', &want)) {
        if (!str_cut(&path, '/', &have))
            return false;
        if (str_starts(want, STR("{"))) {
            if (have.len == 0 || out->param_count == HTTP_ROUTE_PARAMS)
                return false;
            out->params[out->param_count++] = have;
        } else if (!str_eq(want, have)) {
            return false;
        }
    }
    return !path.at; /* nothing left over */
}

static void add_allowed(struct http_match *out, const char *method)
{
    size_t len = strlen(out->allow);

    /* Two rows may share a method where one pattern has a fixed segment and the other a name. */
    if (!strstr(out->allow, method))
        (void)snprintf(out->allow + len, sizeof out->allow - len, "%s%s", len ? ", " : "", method);
}

static bool decode(struct arena *arena, struct str raw, struct str *out, struct err *err)
{
    if (!percent_decode(arena, raw, PERCENT_PLUS_IS_PLUS, out))
        return err_set(err, ERR_INVALID, "the path has a broken percent escape");
    if (str_has_char(*out, '\0'))
        return err_set(err, ERR_INVALID, "the path has a zero byte in it");
    return true;
}

bool http_route(const struct http_route *routes, size_t count, const struct http_head *head, struct arena *arena,
                struct http_match *out, struct err *err)
{
    struct str path = head->path, whole;
    enum http_method method = head->method == HTTP_HEAD ? HTTP_GET : head->method;
    struct http_match found = { 0 }, candidate;

    /* A broken escape is an error even if no route has this path. */
    if (!decode(arena, path, &whole, err))
        return false;
    while (str_skip(&path, STR("/")))
        ;
    for (size_t i = 0; i < count; i++) {
        struct str pattern = str_from(routes[i].pattern);
        (void)str_skip(&pattern, STR("/"));
        if (!matches(pattern, path, &candidate))
            continue;
        if (!found.route && (routes[i].method == head->method || routes[i].method == method)) {
            found.route = &routes[i];
            found.param_count = candidate.param_count;
            memcpy(found.params, candidate.params, sizeof found.params);
        }
        found.path_known = true;
        add_allowed(&found, http_method_name[routes[i].method]);
    }
    for (size_t i = 0; i < found.param_count; i++)
        if (!decode(arena, found.params[i], &found.params[i], err))
            return false;
    *out = found;
    return true;
}

bool http_query(const struct http_head *head, struct arena *arena, struct str name, struct str *out_value)
{
    struct str rest = head->query, raw_name, raw_value, decoded;

    while (http_query_next(&rest, &raw_name, &raw_value))
        if (percent_decode(arena, raw_name, PERCENT_PLUS_IS_SPACE, &decoded) && str_eq(decoded, name))
            return percent_decode(arena, raw_value, PERCENT_PLUS_IS_SPACE, out_value);
    return false;
}
