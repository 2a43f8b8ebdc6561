/*
 * Templates: those that the operator has made, and those that teams build. Snapshots are templates to create and delete, and
 * stand in no list here.
 */
#include "api/builds.h"

/* Of one without a build that can be used: upstream's id for "none". */
#define NO_BUILD "00000000-0000-0000-0000-000000000000"

static void names_encode(struct json_out *json, struct arena *arena, const struct built_template *built)
{
    json_out_array(json, "names");
    for (uint32_t i = 0; i < built->alias_count; i++)
        json_out_str(json, NULL,
                     arena_format(arena, "%.*s/%.*s", STR_ARG(built->team_slug), STR_ARG(built->aliases[i])));
    json_out_end(json);
}

static void row_members(struct json_out *json, const struct template_row *row)
{
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
}

static void built_members(struct json_out *json, struct arena *arena, const struct built_template *built)
{
    const struct build_row *newest = &built->newest;

    json_out_str(json, "templateID", built->id);
    json_out_str(json, "buildID", built->default_build_id.len ? built->default_build_id : STR(NO_BUILD));
    json_out_int(json, "cpuCount", newest->cpu_count);
    json_out_int(json, "memoryMB", newest->memory_mb);
    json_out_int(json, "diskSizeMB", newest->disk_mb);
    json_out_bool(json, "public", built->is_public);
    json_out_array(json, "aliases");
    for (uint32_t i = 0; i < built->alias_count; i++)
        json_out_str(json, NULL, built->aliases[i]);
    json_out_end(json);
    names_encode(json, arena, built);
    time_encode(json, "createdAt", built->created_us);
    time_encode(json, "updatedAt", built->updated_us);
    json_out_null(json, "createdBy");
    if (built->spawned_us)
        time_encode(json, "lastSpawnedAt", built->spawned_us);
    else
        json_out_null(json, "lastSpawnedAt");
    json_out_int(json, "spawnCount", (int64_t)built->spawn_count);
    json_out_int(json, "buildCount", (int64_t)built->build_count);
    json_out_str(json, "envdVersion", built->default_build_id.len ? newest->guestd_version : STR(""));
    json_out_str(json, "buildStatus", build_state_name[newest->id.len ? newest->state : BUILD_ERROR]);
}

static void entry_members(struct json_out *json, struct arena *arena, const struct template_entry *entry)
{
    if (entry->built)
        built_members(json, arena, entry->built);
    else
        row_members(json, entry->row);
}

static void entry_encode(struct json_out *json, struct arena *arena, const struct template_entry *entry)
{
    json_out_object(json, NULL);
    entry_members(json, arena, entry);
    json_out_end(json);
}

/* ---- lists ---- */

static bool own_team(const struct request *rq, struct err *err)
{
    struct str team_id;

    return !query(rq, STR("teamID"), &team_id) || str_eq(team_id, str_from(rq->caller.team_id)) ||
           err_set(err, ERR_INVALID, "'teamID' is not the team of this API key");
}

void api_template_list(struct request *rq)
{
    struct template_entry *list;
    size_t count;
    struct err err;

    if (!own_team(rq, &err) || !action_template_entries(rq->actions, &rq->caller, rq->arena, &list, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = count; i > 0; i--) /* oldest first */
        entry_encode(&json, rq->arena, &list[i - 1]);
    json_out_end(&json);
}

static bool is_past(const struct template_entry *entry, const struct sandbox_mark *mark)
{
    return entry->created_us < mark->started_us ||
           (entry->created_us == mark->started_us && str_order(entry->id, mark->id) > 0);
}

void api_template_list_v2(struct request *rq)
{
    struct template_entry *list;
    struct sandbox_mark mark;
    size_t count, from = 0;
    uint32_t limit;
    bool has_mark;
    struct err err;

    if (!query_check(rq, &err) || !query_limit(rq, &limit, &err) || !query_token(rq, false, &mark, &has_mark, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!own_team(rq, &err) || !action_template_entries(rq->actions, &rq->caller, rq->arena, &list, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    while (has_mark && from < count && !is_past(&list[from], &mark))
        from++;
    size_t shown = MIN(count - from, (size_t)limit);
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = from; i < from + shown; i++)
        entry_encode(&json, rq->arena, &list[i]);
    json_out_end(&json);
    if (shown && from + shown < count) {
        const struct template_entry *last = &list[from + shown - 1];
        reply_field(rq, STR("X-Next-Token"), token_encode(rq->arena, last->created_us, last->id, false));
    }
}

static int by_id(const void *a, const void *b)
{
    return str_order(((const struct template_entry *)a)->id, ((const struct template_entry *)b)->id);
}

void api_template_defaults(struct request *rq)
{
    struct template_entry *list;
    size_t count;
    struct err err;

    if (!action_template_entries(rq->actions, &rq->caller, rq->arena, &list, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    if (count)
        qsort(list, count, sizeof *list, by_id);
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++)
        if (list[i].row && !list[i].row->team_id.len)
            entry_encode(&json, rq->arena, &list[i]);
    json_out_end(&json);
}

/* ---- one ---- */

static void build_encode(struct json_out *json, const struct build_row *row)
{
    json_out_object(json, NULL);
    json_out_str(json, "buildID", row->id);
    json_out_str(json, "status", build_state_name[row->state]);
    time_encode(json, "createdAt", row->created_us);
    time_encode(json, "updatedAt", row->updated_us);
    if (row->finished_us)
        time_encode(json, "finishedAt", row->finished_us);
    json_out_int(json, "cpuCount", row->cpu_count);
    json_out_int(json, "memoryMB", row->memory_mb);
    if (row->state == BUILD_READY) {
        json_out_int(json, "diskSizeMB", row->disk_mb);
        json_out_str(json, "envdVersion", row->guestd_version);
    }
    json_out_end(json);
}

void api_template_get(struct request *rq)
{
    struct sandbox_mark mark = { 0 };
    struct template_entry entry;
    struct build_row *builds;
    size_t count = 0;
    uint32_t limit;
    bool has_mark;
    struct err err;

    if (!query_check(rq, &err) || !query_limit(rq, &limit, &err) || !query_token(rq, false, &mark, &has_mark, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_template_get(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &entry, &err) ||
        (entry.built &&
         !action_template_builds(rq->actions, entry.built, has_mark ? mark.started_us : 0, has_mark ? mark.id : STR(""),
                                 limit + 1, rq->arena, &builds, &count, &err))) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    entry_members(&json, rq->arena, &entry);
    json_out_array(&json, "builds");
    for (size_t i = 0; i < MIN(count, (size_t)limit); i++)
        build_encode(&json, &builds[i]);
    json_out_end(&json);
    json_out_end(&json);
    if (count > limit)
        reply_field(rq, STR("X-Next-Token"),
                    token_encode(rq->arena, builds[limit - 1].created_us, builds[limit - 1].id, false));
}

void api_template_alias(struct request *rq)
{
    struct str id;
    bool is_public;
    struct err err;

    if (!action_template_exists(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &id, &is_public, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", id);
    json_out_bool(&json, "public", is_public);
    json_out_end(&json);
}

/* The older call of an administrator also gives the template a name without a namespace, when it is published. */
static bool patch(struct request *rq, bool claim, struct built_template *out)
{
    bool is_public = false;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !json_take_bool(body, "public", JSON_OPTIONAL, &is_public, &err)) {
        reply_invalid(rq, &err);
        return false;
    }
    if (action_template_publish(rq->actions, &rq->caller, rq->match.params[0],
                                json_has(body, "public") ? &is_public : NULL, claim, rq->arena, out, &err))
        return true;
    reply_err(rq, &err);
    return false;
}

void api_template_patch_v1(struct request *rq)
{
    struct built_template built;

    if (!patch(rq, true, &built))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_null(&json, NULL);
}

void api_template_patch_v2(struct request *rq)
{
    struct built_template built;

    if (!patch(rq, false, &built))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    names_encode(&json, rq->arena, &built);
    json_out_end(&json);
}

void api_template_delete(struct request *rq)
{
    struct err err;

    if (action_template_delete(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &err))
        reply_empty(rq, 204);
    else if (err.kind == ERR_CONFLICT) /* sandboxes are based on it */
        reply_problem(rq, 400, NULL, RETRY_UNSAID, str_from(err.message));
    else
        reply_err(rq, &err);
}
