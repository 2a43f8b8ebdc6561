/*
 * Builds of templates: register, link to upload, start, status, logs. Clients parse only the status that they expect (202,
 * 201, 200), and read a body wherever Content-Length is not 0.
 */
#include "api/builds.h"

#include <string.h>

#include "base/clock.h"

enum { LINES_MOST = 100 };

const struct str build_state_name[BUILD_STATE_COUNT] = {
    [BUILD_WAITING] = STR_INIT("waiting"),
    [BUILD_BUILDING] = STR_INIT("building"),
    [BUILD_READY] = STR_INIT("ready"),
    [BUILD_ERROR] = STR_INIT("error"),
};

static const struct str level_name[] = {
    [BUILD_DEBUG] = STR_INIT("debug"),
    [BUILD_INFO] = STR_INIT("info"),
    [BUILD_WARN] = STR_INIT("warn"),
    [BUILD_LEVEL_ERROR] = STR_INIT("error"),
};

/* ---- register ---- */

static bool own_team(const struct request *rq, const json_t *body, struct err *err)
{
    struct str team_id = STR("");

    if (!json_take_str(body, "teamID", JSON_OPTIONAL, &team_id, err))
        return false;
    return !team_id.len || str_starts(team_id, STR("prj_")) || str_eq(team_id, str_from(rq->caller.team_id)) ||
           err_set(err, ERR_INVALID, "'teamID' is not the team of this API key");
}

static bool order_decode(const struct request *rq, const json_t *body, struct build_order *out, struct err *err)
{
    int64_t cpus = 0, memory_mb = 0, disk_mb = 0;
    struct build_order order = { 0 };

    if (!json_take_str(body, "name", JSON_OPTIONAL, &order.name, err) ||
        (!order.name.len && !json_take_str(body, "alias", JSON_OPTIONAL, &order.name, err)) ||
        !texts_decode(body, "tags", rq->arena, &order.tags, &order.tag_count, err) ||
        !json_take_int(body, "cpuCount", JSON_OPTIONAL, INT32_MIN, INT32_MAX, &cpus, err) ||
        !json_take_int(body, "memoryMB", JSON_OPTIONAL, INT32_MIN, INT32_MAX, &memory_mb, err) ||
        !json_take_int(body, "minFreeDiskMb", JSON_OPTIONAL, 0, INT32_MAX, &disk_mb, err) || !own_team(rq, body, err))
        return false;
    if (json_has(body, "cpuCount") && cpus < 1)
        return err_set(err, ERR_INVALID, "CPU count must be at least 1");
    if (json_has(body, "memoryMB") && memory_mb < 128)
        return err_set(err, ERR_INVALID, "Memory must be at least 128 MiB");
    order.cpu_count = (uint32_t)cpus;
    order.memory_mb = (uint32_t)memory_mb;
    order.free_disk_mb = (uint32_t)disk_mb;
    *out = order;
    return true;
}

void api_build_register(struct request *rq)
{
    struct built_template template;
    struct build_order order;
    struct build_row build;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !order_decode(rq, body, &order, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_build_register(rq->actions, &rq->caller, &order, rq->arena, &template, &build, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 202);
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", template.id);
    json_out_str(&json, "buildID", build.id);
    json_out_bool(&json, "public", template.is_public);
    json_out_array(&json, "aliases");
    for (uint32_t i = 0; i < template.alias_count; i++)
        json_out_str(&json, NULL, template.aliases[i]);
    json_out_end(&json);
    json_out_array(&json, "names");
    for (uint32_t i = 0; i < template.alias_count; i++)
        json_out_str(&json, NULL,
                     arena_format(rq->arena, "%.*s/%.*s", STR_ARG(template.team_slug), STR_ARG(template.aliases[i])));
    json_out_end(&json);
    json_out_array(&json, "tags");
    for (uint32_t i = 0; i < build.tag_count; i++)
        json_out_str(&json, NULL, build.tags[i]);
    json_out_end(&json);
    json_out_end(&json);
}

/* ---- files ---- */

void api_build_files(struct request *rq)
{
    struct upload_link link;
    struct err err;

    if (!action_upload_link(rq->actions, &rq->caller, rq->match.params[0], rq->match.params[1], rq->arena, &link,
                            &err)) {
        reply_copy_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    json_out_bool(&json, "present", link.is_present);
    /* Also of one that is there: clients may be told to upload it again. */
    json_out_str(&json, "url", upload_url(rq, rq->match.params[1], &link));
    json_out_end(&json);
}

/* ---- start ---- */

static void wipe(struct str text)
{
    if (text.len)
        explicit_bzero((char *)(uintptr_t)text.at, text.len);
}

/* The builder has a copy, which it wipes itself. */
static void wipe_login(const struct request *rq, const struct registry_login *login)
{
    if (login->kind == LOGIN_NONE)
        return;
    wipe(login->user);
    wipe(login->password);
    wipe(login->key_id);
    wipe(login->key);
    wipe(login->account);
    wipe(rq->body);
}

void api_build_start(struct request *rq)
{
    const struct str *agent = http_header(&rq->ex->head, STR("User-Agent"));
    struct build_recipe recipe;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !recipe_decode(body, rq->arena, &recipe, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    recipe.dialect = dialect_of(agent ? *agent : STR(""));
    /* Never to be repeated: the second try would find it started. */
    if (action_build_start(rq->actions, &rq->caller, rq->match.params[0], rq->match.params[1], &recipe, rq->arena,
                           &err))
        reply_empty(rq, 202);
    else
        reply_copy_err(rq, &err);
    wipe_login(rq, &recipe.login);
}

/* ---- status and logs ---- */

static bool query_level(const struct request *rq, enum build_level *out, struct err *err)
{
    struct str text;

    if (!query(rq, STR("level"), &text))
        return true;
    for (size_t i = 0; i < COUNT_OF(level_name); i++)
        if (str_eq(text, level_name[i])) {
            *out = (enum build_level)i;
            return true;
        }
    return err_set(err, ERR_INVALID, "'level' must be debug, info, warn or error");
}

static void line_encode(struct json_out *json, const struct build_line *line)
{
    json_out_object(json, NULL);
    time_encode(json, "timestamp", line->at_us);
    json_out_str(json, "message", line->text);
    json_out_str(json, "level", level_name[line->level]);
    if (line->step.len)
        json_out_str(json, "step", line->step);
    json_out_end(json);
}

/* Its lines are those of this page that are about the step which failed. */
static void reason_encode(struct json_out *json, const struct build_status *status)
{
    const struct build_row *row = &status->row;

    json_out_object(json, "reason");
    json_out_str(json, "message", row->reason.len ? row->reason : STR("the build has failed"));
    if (row->reason_step.len)
        json_out_str(json, "step", row->reason_step);
    json_out_array(json, "logEntries");
    for (size_t i = 0; i < status->line_count; i++)
        if (status->lines[i].level >= BUILD_WARN && row->reason_step.len &&
            str_eq(status->lines[i].step, row->reason_step))
            line_encode(json, &status->lines[i]);
    json_out_end(json);
    json_out_end(json);
}

void api_build_status(struct request *rq)
{
    struct build_log_filter filter = { 0 };
    uint64_t offset = 0, limit = LINES_MOST;
    struct build_status status;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "logsOffset", 0, INT32_MAX, &offset, &err) ||
        !query_number(rq, "limit", 0, LINES_MOST, &limit, &err) || !query_level(rq, &filter.least, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    filter.offset = (uint32_t)offset;
    filter.limit = (uint32_t)limit;
    if (!action_build_status(rq->actions, &rq->caller, rq->match.params[0], rq->match.params[1], &filter, rq->arena,
                             &status, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", status.row.template_id);
    json_out_str(&json, "buildID", status.row.id);
    json_out_str(&json, "status", build_state_name[status.row.state]);
    json_out_array(&json, "logs"); /* of the first version: nobody reads it, and all require it */
    json_out_end(&json);
    json_out_array(&json, "logEntries");
    for (size_t i = 0; i < status.line_count; i++)
        line_encode(&json, &status.lines[i]);
    json_out_end(&json);
    if (status.row.state == BUILD_ERROR)
        reason_encode(&json, &status);
    json_out_end(&json);
}

static bool logs_decode(const struct request *rq, struct build_log_filter *out, struct err *err)
{
    struct str direction = STR("forward");
    uint64_t cursor_ms = 0;

    if (!query_check(rq, err) || !query_limit(rq, &out->limit, err) || !query_level(rq, &out->least, err) ||
        !query_number(rq, "cursor", 0, INT64_MAX / 2000, &cursor_ms, err))
        return false;
    if (query(rq, STR("direction"), &direction) && !str_eq(direction, STR("forward")) &&
        !str_eq(direction, STR("backward")))
        return err_set(err, ERR_INVALID, "'direction' must be forward or backward");
    out->newest_first = str_eq(direction, STR("backward"));
    if (out->newest_first && cursor_ms)
        out->to_us = (int64_t)cursor_ms * 1000 + 999; /* the whole millisecond */
    else
        out->from_us = (int64_t)cursor_ms * 1000;
    return true;
}

void api_build_logs(struct request *rq)
{
    struct build_log_filter filter = { 0 };
    struct build_status status;
    struct err err;

    if (!logs_decode(rq, &filter, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_build_status(rq->actions, &rq->caller, rq->match.params[0], rq->match.params[1], &filter, rq->arena,
                             &status, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "logs");
    for (size_t i = 0; i < status.line_count; i++)
        line_encode(&json, &status.lines[i]);
    json_out_end(&json);
    json_out_end(&json);
}

/* ---- others ---- */

/* Our own: E2B's clients have no way to cancel a build. */
void api_build_cancel(struct request *rq)
{
    struct err err;

    if (action_build_cancel(rq->actions, &rq->caller, rq->match.params[0], rq->match.params[1], rq->arena, &err))
        reply_empty(rq, 204);
    else
        reply_copy_err(rq, &err);
}

void api_builds_cancel(struct request *rq)
{
    struct caller there;
    size_t cancelled;
    struct err err;

    if (!action_caller_in_team(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &there, &err) ||
        !action_builds_cancel(rq->actions, &there, rq->arena, &cancelled, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "cancelledCount", (int64_t)cancelled);
    json_out_int(&json, "failedCount", 0);
    json_out_end(&json);
}

/* The first versions had clients build the image and push it to a registry of the service. */
void api_build_gone(struct request *rq)
{
    reply_problem(rq, 410, NULL, RETRY_UNSAID,
                  STR("building a template by docker push is not possible any more: update, then use "
                      "`e2b template create` or Template.build() of an SDK"));
}
