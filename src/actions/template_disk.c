/*
 * What a template is made of, what templates take on disk, and how to be rid of the rest. A team is told about its own. Of others
 * that it may use it gets the sizes: ids of layers, and which of them it has too, would name the image below. What teams have in
 * common, and what was downloaded for all, is the operator's to see.
 */
#include "actions/build.h"
#include "base/limits.h"
#include "base/log.h"

/* ---- one template ---- */

static bool is_missing(const struct err *err)
{
    return err->kind == ERR_NOT_FOUND;
}

/* A template whose first build has failed has none, and can be looked at. */
static bool find_build(const struct actions *actions, const struct caller *caller, const struct template_found *found,
                       struct arena *arena, struct template_detail *out, struct err *err)
{
    out->has_build = template_build_of(actions, caller, found, arena, &out->row, err);
    if (out->has_build)
        return true;
    if (found->ref.tag.len || !is_missing(err))
        return false;
    out->row = (struct template_row){ .id = found->id,
                                      .team_id = found->built.team_id,
                                      .cpu_count = found->built.newest.cpu_count,
                                      .memory_mb = found->built.newest.memory_mb,
                                      .created_us = found->built.created_us,
                                      .alias_count = found->built.alias_count,
                                      .aliases = found->built.aliases,
                                      .is_public = found->is_public };
    return true;
}

static bool find_layers(const struct actions *actions, const struct caller *caller, struct arena *arena,
                        struct template_detail *out, struct err *err)
{
    if (!store_layer_list(actions->store, str_from(caller->team_id), out->row.id, out->row.layers, out->row.layer_count,
                          arena, &out->layers, err))
        return false;
    for (uint32_t i = 0; i < out->row.layer_count; i++)
        if (!out->row.build) /* its own are the operator's, too */
            out->layers[i].origin = LAYER_OPERATOR;
    return true;
}

/* Only for the owner: a reason quotes a step. */
static bool find_last(const struct actions *actions, const struct template_found *found, struct arena *arena,
                      struct template_detail *out, struct err *err)
{
    struct build_row *last;
    size_t count;

    if (found->kind != TEMPLATE_BUILT || !found->is_own)
        return true;
    if (!store_build_list(actions->store, found->id, 0, STR(""), 1, arena, &last, &count, err))
        return false;
    out->last = count ? last : NULL;
    return true;
}

static bool find_tags(const struct actions *actions, const struct template_found *found, struct arena *arena,
                      struct template_detail *out, struct err *err)
{
    const struct tag_filter filter = { .template_id = found->id, .newest_only = true, .limit = LIMIT_TAGS };

    return found->kind != TEMPLATE_BUILT || !out->is_whole ||
           store_tag_list(actions->store, &filter, arena, &out->tags, &out->tag_count, err);
}

bool action_template_inspect(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_detail *out, struct err *err)
{
    struct template_detail detail = { 0 };
    struct template_found found;

    if (!template_named(actions, caller, ref, arena, &found, err))
        return false;
    if (found.kind == TEMPLATE_SNAPSHOT)
        return err_set(err, ERR_INVALID, "'%.*s' is a snapshot: `cloister snapshot list` shows those",
                       (int)MIN(found.ref.alias.len, (size_t)60), found.ref.alias.at);
    detail.tag = found.ref.tag.len ? found.ref.tag : STR("default");
    detail.is_own = found.is_own;
    detail.is_built = found.kind == TEMPLATE_BUILT;
    detail.is_whole = found.is_own || caller->is_admin || !detail.is_built;
    detail.team_slug = detail.is_built ? found.built.team_slug : STR("");
    if (!find_build(actions, caller, &found, arena, &detail, err) ||
        !find_layers(actions, caller, arena, &detail, err) || !find_last(actions, &found, arena, &detail, err) ||
        !find_tags(actions, &found, arena, &detail, err) ||
        !store_template_uses(actions->store, str_from(caller->team_id), found.id, &detail.uses, err))
        return false;
    detail.row.is_public = found.is_public;
    *out = detail;
    return true;
}

/* ---- all of them ---- */

/* Without the role that has them there is nothing to say, and the rest is said all the same. */
static struct download_total downloads(const struct actions *actions, bool removes)
{
    struct download_total total = { 0 };
    struct err err;

    if (actions->puller && !actions->pull_stock(actions->puller, removes, &total, &err)) {
        log_warn("downloads of images: %s", err_text(&err));
        return (struct download_total){ 0 };
    }
    return total;
}

static bool scope(const struct caller *caller, bool all, struct str *out_team_id, struct err *err)
{
    if (all && !caller_need_admin(caller, err))
        return false;
    *out_team_id = all ? STR("") : str_from(caller->team_id);
    return true;
}

bool action_template_disk(const struct actions *actions, const struct caller *caller, bool all, struct arena *arena,
                          struct disk_report *out, struct err *err)
{
    struct disk_report report = { 0 };
    struct str team_id;

    if (!scope(caller, all, &team_id, err) || !store_build_disk(actions->store, team_id, arena, &report.builds, err))
        return false;
    if (actions->uploads)
        report.uploads = uploads_total(actions->uploads, team_id);
    if (all)
        report.downloads = downloads(actions, false);
    *out = report;
    return true;
}

bool action_template_prune(const struct actions *actions, const struct caller *caller, bool all, bool dry_run,
                           struct prune_report *out, struct err *err)
{
    struct prune_report report = { 0 };
    struct str team_id;

    if (!scope(caller, all, &team_id, err))
        return false;
    if (!actions->builder)
        return err_set(err, ERR_UNAVAILABLE, "template builds are not available");
    if (!actions->build_prune(actions->builder, team_id, dry_run, &report.cache, err))
        return false;
    if (actions->uploads)
        report.uploads = uploads_prune(actions->uploads, team_id, dry_run);
    if (all)
        report.downloads = downloads(actions, !dry_run);
    if (!dry_run)
        log_info("templates: pruned %llu steps, %llu layers, %llu uploads, %llu downloads",
                 (unsigned long long)report.cache.steps, (unsigned long long)report.cache.layers,
                 (unsigned long long)report.uploads.count, (unsigned long long)report.downloads.count);
    *out = report;
    return true;
}
