#include "api/request.h"

/* ---- how many sandboxes a team had running, over time ---- */

static void rate_encode(struct json_out *json, const char *name, double rate)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%.4f", rate);

    json_out_raw(json, name, str_of(text, (size_t)len));
}

static void moment_encode(struct json_out *json, int64_t at_us)
{
    time_encode(json, "timestamp", at_us);
    json_out_int(json, "timestampUnix", at_us / 1000000);
}

/* False: it is answered already. */
static bool metrics_of(struct request *rq, struct team_metric **out, size_t *out_count)
{
    int64_t start_us, end_us;
    struct err err;

    if (!span_decode(rq, &start_us, &end_us, &err)) {
        reply_invalid(rq, &err);
        return false;
    }
    if (!action_team_metrics(rq->actions, &rq->caller, rq->match.params[0], start_us, end_us, rq->arena, out, out_count,
                             &err)) {
        reply_err(rq, &err);
        return false;
    }
    return true;
}

void api_team_metrics(struct request *rq)
{
    struct team_metric *points;
    size_t count;

    if (!metrics_of(rq, &points, &count))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        moment_encode(&json, points[i].at_us);
        json_out_int(&json, "concurrentSandboxes", (int64_t)points[i].running);
        rate_encode(&json, "sandboxStartRate", points[i].starts_per_s);
        json_out_end(&json);
    }
    json_out_end(&json);
}

void api_team_metrics_max(struct request *rq)
{
    struct team_metric *points, most = { 0 };
    struct str metric = STR("");
    size_t count;
    struct err err;

    (void)!query(rq, STR("metric"), &metric);
    bool by_rate = str_eq(metric, STR("sandbox_start_rate"));
    if (!by_rate && !str_eq(metric, STR("concurrent_sandboxes"))) {
        (void)err_set(&err, ERR_INVALID, "'metric' must be concurrent_sandboxes or sandbox_start_rate");
        reply_invalid(rq, &err);
        return;
    }
    if (!metrics_of(rq, &points, &count))
        return;
    for (size_t i = 0; i < count; i++) {
        bool more = by_rate ? points[i].starts_per_s > most.starts_per_s : points[i].running > most.running;
        if (more || i == 0)
            most = points[i];
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    moment_encode(&json, most.at_us);
    rate_encode(&json, "value", by_rate ? most.starts_per_s : (double)most.running);
    json_out_end(&json);
}

/* ---- for administrators ---- */

void api_running_counts(struct request *rq)
{
    struct team_count *counts;
    size_t count;
    struct err err;

    if (!action_running_counts(rq->actions, &rq->caller, rq->arena, &counts, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    for (size_t i = 0; i < count; i++)
        json_out_int(&json, arena_text(rq->arena, counts[i].team_id), (int64_t)counts[i].running);
    json_out_end(&json);
}

void api_pool(struct request *rq)
{
    struct pool_figures figures;
    struct err err;

    if (!action_pool_figures(rq->actions, &rq->caller, &figures, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "most", figures.most);
    json_out_int(&json, "ready", figures.ready);
    json_out_int(&json, "withInterpreter", figures.warm);
    json_out_int(&json, "wanted", figures.wanted);
    json_out_int(&json, "kinds", figures.kinds);
    json_out_bool(&json, "memoryIsLow", figures.is_low);
    json_out_int(&json, "made", (int64_t)figures.made);
    json_out_int(&json, "failed", (int64_t)figures.failed);
    json_out_int(&json, "taken", (int64_t)figures.taken);
    json_out_int(&json, "missed", (int64_t)figures.missed);
    json_out_end(&json);
}

static void team_encode(struct json_out *json, const struct request *rq, const struct team_row *row)
{
    json_out_object(json, NULL);
    json_out_str(json, "teamID", row->id);
    json_out_str(json, "name", row->name);
    json_out_str(json, "slug", row->slug);
    json_out_str(json, "apiKey", STR("")); /* upstream makes a key at every listing; we do not */
    json_out_bool(json, "isDefault", row->is_default);
    json_out_int(json, "keyCount", row->key_count);
    json_out_int(json, "runningCount", (int64_t)action_team_running(rq->actions, row));
    json_out_end(json);
}

void api_team_list(struct request *rq)
{
    struct team_row *rows;
    size_t count;
    struct err err;

    if (!action_team_list(rq->actions, &rq->caller, rq->arena, &rows, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++)
        team_encode(&json, rq, &rows[i]);
    json_out_end(&json);
}

void api_team_create(struct request *rq)
{
    struct team_row row;
    struct str name;
    struct err err;
    auto_json json_t *body = json_parse_object(rq->body, &err);

    if (!body || !json_take_str(body, "name", JSON_REQUIRED, &name, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_team_create(rq->actions, &rq->caller, name, rq->arena, &row, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    team_encode(&json, rq, &row);
}

void api_team_delete(struct request *rq)
{
    struct str force = STR("false");
    struct team_end end;
    struct err err;

    (void)!query(rq, STR("force"), &force);
    if (!str_eq(force, STR("true")) && !str_eq(force, STR("false"))) {
        (void)err_set(&err, ERR_INVALID, "'force' must be true or false");
        reply_invalid(rq, &err);
        return;
    }
    if (!action_team_delete(rq->actions, &rq->caller, rq->match.params[0], str_eq(force, STR("true")), rq->arena, &end,
                            &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "revokedCount", (int64_t)end.revoked);
    json_out_int(&json, "killedCount", (int64_t)end.killed);
    json_out_int(&json, "deletedSnapshotCount", (int64_t)end.snapshots);
    json_out_int(&json, "deletedTemplateCount", (int64_t)end.templates);
    json_out_end(&json);
}

/* These routes name the team in the path; others in a header. */
static bool enter_team(struct request *rq)
{
    struct err err;

    if (action_caller_in_team(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &rq->caller, &err))
        return true;
    reply_err(rq, &err);
    return false;
}

void api_team_kill(struct request *rq)
{
    size_t killed, failed;
    struct err err;

    if (!enter_team(rq))
        return;
    if (!action_team_kill(rq->actions, &rq->caller, rq->arena, &killed, &failed, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "killedCount", (int64_t)killed);
    json_out_int(&json, "failedCount", (int64_t)failed);
    json_out_end(&json);
}

void api_team_key_create(struct request *rq)
{
    if (enter_team(rq))
        api_key_create(rq);
}

void api_team_key_revoke(struct request *rq)
{
    if (!enter_team(rq))
        return;
    rq->match.params[0] = rq->match.params[1];
    api_key_revoke(rq);
}
