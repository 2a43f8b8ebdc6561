/*
 * Snapshots. A snapshot's id is a template reference: a create takes it as it is, and so does the route that deletes a
 * template.
 */
#include "api/request.h"
#include "base/clock.h"

/* Clients know the first two fields. The others say where it is from and what it takes on disk. */
static void snapshot_encode(struct json_out *json, const struct snapshot_info *info)
{
    char time[CLOCK_TEXT_BYTES];

    json_out_object(json, NULL);
    json_out_str(json, "snapshotID", info->id);
    json_out_array(json, "names");
    if (info->name.len)
        json_out_str(json, NULL, info->name);
    json_out_end(json);
    json_out_str(json, "sandboxID", info->row.sandbox_id);
    json_out_str(json, "createdAt", str_from(clock_text(info->row.created_us, time)));
    json_out_int(json, "diskBytes", (int64_t)info->row.layer_bytes);
    json_out_int(json, "memoryBytes", (int64_t)info->row.image_bytes);
    json_out_int(json, "memoryRawBytes", (int64_t)(info->row.raw_bytes ? info->row.raw_bytes : info->row.image_bytes));
    json_out_end(json);
}

void api_snapshot_create(struct request *rq)
{
    struct snapshot_info info;
    struct str id, name = STR("");
    bool memory = true;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !json_take_str(body, "name", JSON_OPTIONAL, &name, &err) ||
        !json_take_bool(body, "memory", JSON_OPTIONAL, &memory, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_snapshot_create(rq->actions, &rq->caller, id, name, memory, rq->arena, &info, &err)) {
        reply_copy_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    snapshot_encode(&json, &info);
}

static bool filter_decode(const struct request *rq, struct snapshot_filter *filter, struct err *err)
{
    struct sandbox_mark mark;
    bool there;

    if (!query_check(rq, err) || !query_limit(rq, &filter->limit, err) || !query_token(rq, false, &mark, &there, err))
        return false;
    if (there) {
        filter->before_us = mark.started_us;
        filter->before_id = mark.id;
    }
    if (!query(rq, STR("name"), &filter->name))
        filter->name = STR("");
    if (!query(rq, STR("sandboxID"), &filter->sandbox_id)) {
        filter->sandbox_id = STR("");
        return true;
    }
    return sandbox_id_decode(filter->sandbox_id, &filter->sandbox_id, err);
}

void api_snapshot_list(struct request *rq)
{
    struct snapshot_filter filter = { 0 };
    struct snapshot_info *list;
    size_t count;
    struct err err;

    if (!filter_decode(rq, &filter, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    size_t wanted = filter.limit++; /* one more shows whether there is another page */
    if (!action_snapshot_list(rq->actions, &rq->caller, &filter, rq->arena, &list, &count, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < MIN(count, wanted); i++)
        snapshot_encode(&json, &list[i]);
    json_out_end(&json);
    if (count > wanted) {
        const struct snapshot_row *last = &list[wanted - 1].row;
        reply_field(rq, STR("X-Next-Token"), token_encode(rq->arena, last->created_us, last->kept_id, false));
    }
}
