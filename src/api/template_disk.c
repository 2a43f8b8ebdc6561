/*
 * What templates are made of and take on disk. Routes of our own: upstream has none for it.
 */
#include "api/builds.h"

static void text_or_nothing(struct json_out *json, const char *name, struct str text)
{
    if (text.len)
        json_out_str(json, name, text);
}

/* ---- one template ---- */

static const struct str origin_name[] = {
    [LAYER_OTHER] = STR_INIT("other"),
    [LAYER_STEP] = STR_INIT("step"),
    [LAYER_IMAGE] = STR_INIT("image"),
    [LAYER_OPERATOR] = STR_INIT("operator"),
};

static void layers_encode(struct json_out *json, const struct template_detail *detail)
{
    json_out_array(json, "layers");
    for (uint32_t i = 0; i < detail->row.layer_count; i++) {
        const struct layer_row *layer = &detail->layers[i];
        json_out_object(json, NULL);
        if (detail->is_whole)
            json_out_str(json, "id", layer->id);
        json_out_str(json, "origin", origin_name[layer->origin]);
        if (layer->is_known)
            json_out_int(json, "bytes", (int64_t)layer->bytes);
        else
            json_out_null(json, "bytes");
        text_or_nothing(json, "step", layer->step);
        if (detail->is_whole)
            json_out_bool(json, "shared", layer->is_shared);
        json_out_end(json);
    }
    json_out_end(json);
}

static void names_encode(struct json_out *json, struct arena *arena, const struct template_detail *detail)
{
    const struct template_row *row = &detail->row;

    json_out_array(json, "names");
    for (uint32_t i = 0; i < row->alias_count; i++)
        json_out_str(json, NULL,
                     detail->is_built
                         ? arena_format(arena, "%.*s/%.*s", STR_ARG(detail->team_slug), STR_ARG(row->aliases[i]))
                         : row->aliases[i]);
    json_out_end(json);
}

static void tags_encode(struct json_out *json, const struct template_detail *detail)
{
    json_out_array(json, "tags");
    for (size_t i = 0; i < detail->tag_count; i++) {
        json_out_object(json, NULL);
        json_out_str(json, "tag", detail->tags[i].tag);
        json_out_str(json, "buildID", detail->tags[i].build_id);
        time_encode(json, "assignedAt", detail->tags[i].assigned_us);
        json_out_end(json);
    }
    json_out_end(json);
}

static void last_encode(struct json_out *json, const struct build_row *last)
{
    if (!last)
        return;
    json_out_object(json, "lastBuild");
    json_out_str(json, "buildID", last->id);
    json_out_str(json, "status", build_state_name[last->state]);
    text_or_nothing(json, "reason", last->reason);
    text_or_nothing(json, "step", last->reason_step);
    time_encode(json, "createdAt", last->created_us);
    if (last->finished_us)
        time_encode(json, "finishedAt", last->finished_us);
    json_out_end(json);
}

static void build_encode(struct json_out *json, const struct template_detail *detail)
{
    const struct build_row *build = detail->row.build;

    if (!build)
        return;
    if (detail->is_whole)
        json_out_str(json, "buildID", build->id);
    json_out_bool(json, "hasMemory", build->image.len > 0);
    if (!detail->is_own)
        return;
    text_or_nothing(json, "startCmd", build->start_cmd);
    text_or_nothing(json, "readyCmd", build->ready_cmd);
    text_or_nothing(json, "fromTemplateID", build->from_template);
}

void api_template_inspect(struct request *rq)
{
    struct template_detail detail;
    struct err err;

    if (!action_template_inspect(rq->actions, &rq->caller, rq->match.params[0], rq->arena, &detail, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", detail.row.id);
    names_encode(&json, rq->arena, &detail);
    json_out_bool(&json, "public", detail.row.is_public);
    json_out_bool(&json, "own", detail.is_own);
    json_out_str(&json, "tag", detail.tag);
    json_out_bool(&json, "ready", detail.has_build);
    json_out_int(&json, "cpuCount", detail.row.cpu_count);
    json_out_int(&json, "memoryMB", detail.row.memory_mb);
    time_encode(&json, "createdAt", detail.row.created_us);
    build_encode(&json, &detail);
    tags_encode(&json, &detail);
    layers_encode(&json, &detail);
    json_out_object(&json, "uses");
    json_out_int(&json, "sandboxes", (int64_t)detail.uses.sandboxes);
    json_out_int(&json, "snapshots", (int64_t)detail.uses.snapshots);
    json_out_int(&json, "templates", (int64_t)detail.uses.templates);
    json_out_end(&json);
    last_encode(&json, detail.last);
    json_out_end(&json);
}

/* ---- all of them ---- */

static void disk_encode(struct json_out *json, struct arena *arena, const struct template_disk *disk)
{
    json_out_object(json, NULL);
    json_out_str(json, "templateID", disk->id);
    if (disk->alias.len)
        json_out_str(json, "name", arena_format(arena, "%.*s/%.*s", STR_ARG(disk->team_slug), STR_ARG(disk->alias)));
    json_out_bool(json, "public", disk->is_public);
    json_out_array(json, "tags");
    for (size_t i = 0; i < MIN(disk->tag_count, (uint64_t)STORE_DISK_TAGS); i++)
        json_out_str(json, NULL, disk->tags[i]);
    json_out_end(json);
    json_out_int(json, "tagCount", (int64_t)disk->tag_count);
    json_out_int(json, "buildCount", (int64_t)disk->build_count);
    json_out_int(json, "ownBytes", (int64_t)disk->own_bytes);
    json_out_int(json, "sharedBytes", (int64_t)disk->shared_bytes);
    json_out_end(json);
}

static void disk(struct request *rq, bool all)
{
    struct disk_report report;
    struct err err;

    if (!action_template_disk(rq->actions, &rq->caller, all, rq->arena, &report, &err)) {
        reply_err(rq, &err);
        return;
    }
    const struct build_disk *builds = &report.builds;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "templates");
    for (size_t i = 0; i < builds->count; i++)
        disk_encode(&json, rq->arena, &builds->templates[i]);
    json_out_end(&json);
    json_out_int(&json, "templateBytes", (int64_t)builds->template_bytes);
    json_out_int(&json, "cacheBytes", (int64_t)builds->cache_bytes);
    json_out_int(&json, "uploadBytes", (int64_t)report.uploads.bytes);
    if (all)
        json_out_int(&json, "downloadBytes", (int64_t)report.downloads.bytes);
    json_out_int(
        &json, "totalBytes",
        (int64_t)(builds->template_bytes + builds->cache_bytes + report.uploads.bytes + report.downloads.bytes));
    json_out_end(&json);
}

void api_template_disk(struct request *rq)
{
    disk(rq, false);
}

void api_template_disk_all(struct request *rq)
{
    disk(rq, true);
}

static void total_encode(struct json_out *json, const char *name, uint64_t count, uint64_t bytes)
{
    json_out_object(json, name);
    json_out_int(json, "count", (int64_t)count);
    json_out_int(json, "bytes", (int64_t)bytes);
    json_out_end(json);
}

static void prune(struct request *rq, bool all)
{
    struct prune_report report;
    bool dry_run = false;
    struct err err;

    auto_json json_t *body = body_object(rq, &err);
    if (!body || !json_take_bool(body, "dryRun", JSON_OPTIONAL, &dry_run, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!action_template_prune(rq->actions, &rq->caller, all, dry_run, &report, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_bool(&json, "dryRun", dry_run);
    json_out_int(&json, "steps", (int64_t)report.cache.steps);
    total_encode(&json, "layers", report.cache.layers, report.cache.bytes);
    total_encode(&json, "uploads", report.uploads.count, report.uploads.bytes);
    if (all)
        total_encode(&json, "downloads", report.downloads.count, report.downloads.bytes);
    json_out_int(&json, "leftCount", (int64_t)report.cache.left);
    json_out_int(&json, "freedBytes", (int64_t)(report.cache.bytes + report.uploads.bytes + report.downloads.bytes));
    json_out_end(&json);
}

void api_template_prune(struct request *rq)
{
    prune(rq, false);
}

void api_template_prune_all(struct request *rq)
{
    prune(rq, true);
}
