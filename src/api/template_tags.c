/*
 * Tags: names for builds of a template. A history is kept, and the last four routes show it.
 */
#include "api/builds.h"

enum { GROUPS_MOST = 100, GROUPS_USUAL = 25, ASSIGNMENTS_MOST = 100, ASSIGNMENTS_USUAL = 50, SHOWN_USUAL = 6 };

/* ---- assign and remove ---- */

static bool change_decode(const struct request *rq, const json_t *body, const char *of, struct str *out_of,
                          const struct str **out_tags, uint32_t *out_count, struct err *err)
{
    return json_take_str(body, of, JSON_REQUIRED, out_of, err) &&
           texts_decode(body, "tags", rq->arena, out_tags, out_count, err);
}

void api_tags_assign(struct request *rq)
{
    const struct str *tags = NULL, *assigned;
    struct str target, build_id;
    uint32_t count;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !change_decode(rq, body, "target", &target, &tags, &count, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_tags_assign(rq->actions, &rq->caller, target, tags, count, rq->arena, &build_id, &assigned, &count,
                            &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    json_out_array(&json, "tags");
    for (uint32_t i = 0; i < count; i++)
        json_out_str(&json, NULL, assigned[i]);
    json_out_end(&json);
    json_out_str(&json, "buildID", build_id);
    json_out_end(&json);
}

void api_tags_remove(struct request *rq)
{
    const struct str *tags = NULL;
    struct str name;
    uint32_t count;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !change_decode(rq, body, "name", &name, &tags, &count, &err))
        reply_invalid(rq, &err);
    else if (!action_tags_remove(rq->actions, &rq->caller, name, tags, count, rq->arena, &err))
        reply_err(rq, &err);
    else
        reply_empty(rq, 204);
}

/* ---- what there is ---- */

/* Each tag once, by name. False, and answered, if that is not possible. */
static bool all_tags(struct request *rq, struct tag_row **out, size_t *out_count)
{
    const struct tag_filter filter = { .newest_only = true, .limit = LIMIT_TAGS };
    struct err err;

    if (action_tags_list(rq->actions, &rq->caller, rq->match.params[0], &filter, rq->arena, out, out_count, &err))
        return true;
    reply_err(rq, &err);
    return false;
}

void api_tags_list(struct request *rq)
{
    struct tag_row *tags;
    size_t count;

    if (!all_tags(rq, &tags, &count))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        json_out_str(&json, "tag", tags[i].tag);
        json_out_str(&json, "buildID", tags[i].build_id);
        time_encode(&json, "createdAt", tags[i].assigned_us);
        json_out_end(&json);
    }
    json_out_end(&json);
}

void api_tags_count(struct request *rq)
{
    struct tag_row *tags;
    size_t count;

    if (!all_tags(rq, &tags, &count))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "total", (int64_t)count);
    json_out_end(&json);
}

void api_tags_exists(struct request *rq)
{
    struct str text, tag;
    struct tag_filter filter = { .newest_only = true, .limit = 1 };
    struct tag_row *tags;
    size_t count;
    struct err err;

    if (!query(rq, STR("tag"), &text))
        text = STR("");
    if (!query_check(rq, &err) || !template_tag_parse(text, rq->arena, &tag, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    filter.tag = tag;
    if (!action_tags_list(rq->actions, &rq->caller, rq->match.params[0], &filter, rq->arena, &tags, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_bool(&json, "exists", count > 0);
    json_out_str(&json, "normalizedTag", tag);
    json_out_end(&json);
}

/* ---- history ---- */

static void assignment_encode(struct json_out *json, const struct tag_row *tag)
{
    json_out_object(json, NULL);
    json_out_str(json, "assignmentId", tag->id);
    json_out_str(json, "buildId", tag->build_id);
    time_encode(json, "assignedAt", tag->assigned_us);
    time_encode(json, "buildCreatedAt", tag->build_created_us);
    if (tag->build_finished_us)
        time_encode(json, "buildFinishedAt", tag->build_finished_us);
    else
        json_out_null(json, "buildFinishedAt");
    json_out_end(json);
}

static void cursor_encode(struct json_out *json, struct arena *arena, bool is_there, uint64_t cursor)
{
    if (is_there)
        json_out_str(json, "nextCursor", arena_format(arena, "%llu", (unsigned long long)cursor));
    else
        json_out_null(json, "nextCursor");
}

void api_tags_assignments(struct request *rq)
{
    struct tag_filter filter = { 0 };
    uint64_t limit = ASSIGNMENTS_USUAL, cursor = 0;
    struct tag_row *tags;
    struct str tag;
    size_t count;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "limit", 1, ASSIGNMENTS_MOST, &limit, &err) ||
        !query_number(rq, "cursor", 0, INT64_MAX, &cursor, &err) ||
        !template_tag_parse(rq->match.params[1], rq->arena, &tag, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    filter.tag = tag;
    filter.before_us = (int64_t)cursor;
    filter.limit = (uint32_t)limit + 1; /* one more shows whether there is another page */
    if (!action_tags_list(rq->actions, &rq->caller, rq->match.params[0], &filter, rq->arena, &tags, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    size_t shown = MIN(count, (size_t)limit);
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "data");
    for (size_t i = 0; i < shown; i++)
        assignment_encode(&json, &tags[i]);
    json_out_end(&json);
    cursor_encode(&json, rq->arena, count > shown, shown ? (uint64_t)tags[shown - 1].assigned_us : 0);
    json_out_end(&json);
}

static int by_time(const void *a, const void *b)
{
    const struct tag_row *left = a, *right = b;

    if (left->assigned_us != right->assigned_us)
        return left->assigned_us < right->assigned_us ? -1 : 1;
    return str_order(left->tag, right->tag);
}

static int by_time_down(const void *a, const void *b)
{
    return by_time(b, a);
}

static int by_name(const void *a, const void *b)
{
    return str_order(((const struct tag_row *)a)->tag, ((const struct tag_row *)b)->tag);
}

static int by_name_down(const void *a, const void *b)
{
    return by_name(b, a);
}

typedef int order_fn(const void *a, const void *b);

static const struct {
    struct str name;
    order_fn *order;
} orders[] = {
    { STR_INIT("latest_desc"), by_time_down },
    { STR_INIT("latest_asc"), by_time },
    { STR_INIT("name_asc"), by_name },
    { STR_INIT("name_desc"), by_name_down },
};

struct groups_query {
    uint64_t shown, limit, cursor; /* cursor: how many tags were on the pages before */
    order_fn *order;
    struct str search;
};

static bool groups_decode(const struct request *rq, struct groups_query *out, struct err *err)
{
    struct str sort;

    *out = (struct groups_query){ .shown = SHOWN_USUAL, .limit = GROUPS_USUAL };
    if (!query_check(rq, err) || !query_number(rq, "assignmentLimit", 1, ASSIGNMENTS_MOST, &out->shown, err) ||
        !query_number(rq, "tagsLimit", 1, GROUPS_MOST, &out->limit, err) ||
        !query_number(rq, "tagsCursor", 0, LIMIT_TAGS, &out->cursor, err))
        return false;
    if (!query(rq, STR("search"), &out->search))
        out->search = STR("");
    if (!query(rq, STR("sort"), &sort))
        sort = STR("latest_desc");
    for (size_t i = 0; i < COUNT_OF(orders); i++)
        if (str_eq(sort, orders[i].name))
            out->order = orders[i].order;
    return out->order || err_set(err, ERR_INVALID, "'sort' must be latest_desc, latest_asc, name_asc or name_desc");
}

static bool contains(struct str text, struct str part)
{
    for (size_t i = 0; i + part.len <= text.len; i++)
        if (str_eq_nocase(str_of(text.at + i, part.len), part))
            return true;
    return false;
}

static bool group_encode(struct request *rq, struct json_out *json, struct str tag, uint32_t shown, struct err *err)
{
    const struct tag_filter filter = { .tag = tag, .limit = shown + 1 };
    struct tag_row *rows;
    size_t count;

    if (!action_tags_list(rq->actions, &rq->caller, rq->match.params[0], &filter, rq->arena, &rows, &count, err))
        return false;
    json_out_object(json, NULL);
    json_out_str(json, "tag", tag);
    json_out_array(json, "assignments");
    for (size_t i = 0; i < MIN(count, (size_t)shown); i++)
        assignment_encode(json, &rows[i]);
    json_out_end(json);
    json_out_bool(json, "hasMore", count > shown);
    json_out_end(json);
    return true;
}

void api_tags_groups(struct request *rq)
{
    struct groups_query wanted;
    struct tag_row *tags;
    size_t count, kept = 0;
    struct err err;

    if (!groups_decode(rq, &wanted, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!all_tags(rq, &tags, &count))
        return;
    for (size_t i = 0; i < count; i++)
        if (contains(tags[i].tag, wanted.search))
            tags[kept++] = tags[i];
    if (kept)
        qsort(tags, kept, sizeof *tags, wanted.order);
    size_t from = MIN((size_t)wanted.cursor, kept), shown = MIN(kept - from, (size_t)wanted.limit);
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "tags");
    for (size_t i = from; i < from + shown; i++)
        if (!group_encode(rq, &json, tags[i].tag, (uint32_t)wanted.shown, &err)) {
            reply_err(rq, &err);
            return;
        }
    json_out_end(&json);
    cursor_encode(&json, rq->arena, from + shown < kept, from + shown);
    json_out_end(&json);
}
