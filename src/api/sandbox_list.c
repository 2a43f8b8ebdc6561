/*
 * Listing. Filters are in the query. A metadata filter has an encoding of its own: k=v&k=v with each part
 * percent-encoded, the whole percent-encoded again, and once more because it is a query parameter.
 */
#include "api/request.h"
#include "base/clock.h"
#include "base/encode.h"

static bool states_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    struct str list, state;

    if (!query(rq, STR("state"), &list)) {
        filter->running = filter->paused = true;
        return true;
    }
    while (str_cut(&list, ',', &state)) {
        if (str_eq(state, STR("running")))
            filter->running = true;
        else if (str_eq(state, STR("paused")))
            filter->paused = true;
        else
            return err_set(err, ERR_INVALID, "'state' has '%.*s': running and paused are possible",
                           (int)MIN(state.len, (size_t)40), state.at);
    }
    return true;
}

static bool unescape(struct arena *arena, struct str text, struct str *out, struct err *err)
{
    return percent_decode(arena, text, PERCENT_PLUS_IS_SPACE, out) ||
           err_set(err, ERR_INVALID, "'metadata' has a broken percent escape");
}

static bool metadata_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    struct pair *pairs = ARENA_ARRAY(rq->arena, struct pair, LIMIT_METADATA_PAIRS);
    struct str text, part;
    uint32_t count = 0;

    if (!query(rq, STR("metadata"), &text))
        return true;
    if (!unescape(rq->arena, text, &text, err))
        return false;
    while (str_cut(&text, '&', &part)) {
        struct str name, value = part;
        (void)str_cut(&value, '=', &name);
        if (!value.at || str_has_char(value, '='))
            return err_set(err, ERR_INVALID, "'metadata' must be name=value pairs joined by &, each percent-encoded");
        if (count == LIMIT_METADATA_PAIRS)
            return err_set(err, ERR_INVALID, "'metadata' has more than %d pairs", LIMIT_METADATA_PAIRS);
        if (!unescape(rq->arena, name, &pairs[count].name, err) ||
            !unescape(rq->arena, value, &pairs[count].value, err))
            return false;
        count++;
    }
    filter->metadata = pairs;
    filter->metadata_count = count;
    return true;
}

static bool order_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    struct str order;

    if (!query(rq, STR("order"), &order) || str_eq(order, STR("desc")))
        return true;
    filter->oldest_first = str_eq(order, STR("asc"));
    return filter->oldest_first || err_set(err, ERR_INVALID, "'order' must be asc or desc");
}

static bool template_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    if (!query(rq, STR("template"), &filter->template_ref))
        return true;
    return !str_has_char(filter->template_ref, ':') || err_set(err, ERR_INVALID, "'template' must not have a tag");
}

static bool token_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    struct sandbox_mark *mark = ARENA_NEW(rq->arena, struct sandbox_mark);
    bool there;

    if (!query_token(rq, filter->oldest_first, mark, &there, err))
        return false;
    filter->after = there ? mark : NULL;
    return true;
}

static bool started_after_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    struct str text;

    if (!query(rq, STR("startedAfter"), &text))
        return true;
    return clock_parse(text, &filter->started_after_us) ||
           err_set(err, ERR_INVALID, "'startedAfter' must be a time such as 2026-01-05T10:00:00Z");
}

static bool filter_decode(const struct request *rq, struct sandbox_filter *filter, struct err *err)
{
    return query_check(rq, err) && states_decode(rq, filter, err) && metadata_decode(rq, filter, err) &&
           order_decode(rq, filter, err) && template_decode(rq, filter, err) && started_after_decode(rq, filter, err) &&
           query_limit(rq, &filter->limit, err) && token_decode(rq, filter, err);
}

/* ---- handlers ---- */

static void rows_encode(struct request *rq, const struct sandbox_page *page)
{
    struct json_out json = reply_json(rq, 200);

    json_out_array(&json, NULL);
    for (size_t i = 0; i < page->count; i++)
        sandbox_row_encode(&json, &page->rows[i]);
    json_out_end(&json);
}

void api_sandbox_list_v1(struct request *rq)
{
    struct sandbox_filter filter = { .running = true };
    struct sandbox_page page;
    struct err err;

    if (!query_check(rq, &err) || !metadata_decode(rq, &filter, &err))
        reply_invalid(rq, &err);
    else if (!action_sandbox_list(rq->actions, &rq->caller, &filter, rq->arena, &page, &err))
        reply_err(rq, &err);
    else
        rows_encode(rq, &page);
}

void api_sandbox_list_v2(struct request *rq)
{
    struct sandbox_filter filter = { 0 };
    struct sandbox_page page;
    struct err err;

    if (!filter_decode(rq, &filter, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_sandbox_list(rq->actions, &rq->caller, &filter, rq->arena, &page, &err)) {
        reply_err(rq, &err);
        return;
    }
    rows_encode(rq, &page);
    if (filter.running)
        reply_field(rq, STR("X-Total-Running"), arena_format(rq->arena, "%zu", page.running_total));
    /* Only if there is more: clients stop when it is absent. */
    if (page.more) {
        const struct sandbox_info *last = &page.rows[page.count - 1];
        reply_field(rq, STR("X-Next-Token"), token_encode(rq->arena, last->started_us, last->id, filter.oldest_first));
    }
}
