#include "api/request.h"

/* A template has one build so far, without an id: this is upstream's id for "none". */
#define NO_BUILD "00000000-0000-0000-0000-000000000000"

static void template_encode(struct json_out *json, const struct template_row *row)
{
    json_out_object(json, NULL);
    json_out_str(json, "templateID", row->id);
    json_out_str(json, "buildID", STR(NO_BUILD));
    json_out_int(json, "cpuCount", row->cpu_count);
    json_out_int(json, "memoryMB", row->memory_mb);
    json_out_int(json, "diskSizeMB", row->disk_mb);
    json_out_bool(json, "public", row->team_id.len == 0);
    for (int names = 0; names < 2; names++) {
        json_out_array(json, names ? "names" : "aliases");
        for (uint32_t i = 0; i < row->alias_count; i++)
            json_out_str(json, NULL, row->aliases[i]);
        json_out_end(json);
    }
    time_encode(json, "createdAt", row->created_us);
    time_encode(json, "updatedAt", row->created_us);
    json_out_null(json, "createdBy");
    json_out_null(json, "lastSpawnedAt");
    json_out_int(json, "spawnCount", 0);
    json_out_int(json, "buildCount", 1);
    json_out_str(json, "envdVersion", row->guestd_version);
    json_out_str(json, "buildStatus", STR("ready"));
    json_out_end(json);
}

void api_template_list(struct request *rq)
{
    struct template_row *rows;
    size_t count;
    struct str team_id;
    struct err err;

    if (http_query(&rq->ex->head, rq->arena, STR("teamID"), &team_id) && team_id.len &&
        !str_eq(team_id, str_from(rq->caller.team_id))) {
        reply_problem(rq, 400, NULL, RETRY_UNSAID, STR("'teamID' is not the team of this API key"));
        return;
    }
    if (!action_template_list(rq->actions, &rq->caller, rq->arena, &rows, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++)
        template_encode(&json, &rows[i]);
    json_out_end(&json);
}

void api_template_alias(struct request *rq)
{
    struct template_row row;
    struct err err;

    if (!action_template_resolve(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &row, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", row.id);
    json_out_bool(&json, "public", row.team_id.len == 0);
    json_out_end(&json);
}
