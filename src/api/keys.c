#include "api/request.h"

static void key_fields(struct json_out *json, const struct key_row *row)
{
    json_out_str(json, "id", row->id);
    json_out_str(json, "name", row->name);
    json_out_str(json, "teamID", row->team_id);
    json_out_str(json, "team", row->team_slug);
    json_out_object(json, "mask");
    json_out_str(json, "prefix", STR("e2b_"));
    json_out_int(json, "valueLength", 2 * STORE_KEY_BYTES);
    json_out_str(json, "maskedValuePrefix", row->mask_prefix);
    json_out_str(json, "maskedValueSuffix", row->mask_suffix);
    json_out_end(json);
    time_encode(json, "createdAt", row->created_us);
    json_out_null(json, "createdBy");
    if (row->last_used_us)
        time_encode(json, "lastUsed", row->last_used_us);
    else
        json_out_null(json, "lastUsed");
}

static bool name_decode(const struct request *rq, json_t **out_body, struct str *out_name, struct err *err)
{
    *out_body = json_parse_object(rq->body, err);
    return *out_body && json_take_str(*out_body, "name", JSON_REQUIRED, out_name, err);
}

/* Both lists: of the caller's team, and of all teams. */
static void answer_keys(struct request *rq, bool (*list)(const struct actions *, const struct caller *, struct arena *,
                                                         struct key_row **, size_t *, struct err *))
{
    struct key_row *rows;
    size_t count;
    struct err err;

    if (!list(rq->actions, &rq->caller, rq->arena, &rows, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        key_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
}

void api_key_list(struct request *rq)
{
    answer_keys(rq, action_key_list);
}

void api_key_list_all(struct request *rq)
{
    answer_keys(rq, action_key_list_all);
}

void api_key_create(struct request *rq)
{
    auto_json json_t *body = NULL;
    auto_wipe struct secret text = { 0 };
    struct key_row row;
    struct str name;
    struct err err;

    if (!name_decode(rq, &body, &name, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_key_create(rq->actions, &rq->caller, name, rq->arena, &row, &text, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    key_fields(&json, &row);
    json_out_str(&json, "key", secret_reveal(&text)); /* shown only here; the store has the hash */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void api_key_rename(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct key_row row;
    struct str name;
    struct err err;

    if (!name_decode(rq, &body, &name, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_key_rename(rq->actions, &rq->caller, rq->match.params[0], name, rq->arena, &row, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    key_fields(&json, &row);
    json_out_end(&json);
}

void api_key_revoke(struct request *rq)
{
    struct err err;

    if (action_key_revoke(rq->actions, &rq->caller, rq->match.params[0], &err))
        reply_empty(rq, 204);
    else
        reply_err(rq, &err);
}
