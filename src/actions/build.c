/*
 * A build, from its registration to its end: register → upload what COPY needs → start → status until it is over.
 *
 * The store has the row; the builder moves it on. What is wrong with a recipe is found out after the start was accepted, as
 * clients expect: the build fails with a reason, and the call does not. So a source that does not exist ends the build here,
 * by the same rows that the builder would write.
 */
#include "actions/build.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"

enum { DEFAULT_CPUS = 2, DEFAULT_MEMORY_MB = 1024, MOST_CPUS = 32, LEAST_MEMORY_MB = 128 };

static const int64_t SECOND_US = 1000000;

/* ---- register ---- */

/* What a sandbox may have here: the operator's limit, if there is one. */
static uint32_t most_cpus(const struct actions *actions)
{
    return actions->cpus_most ? MIN(actions->cpus_most, (uint32_t)LIMIT_BUILD_CPUS) : LIMIT_BUILD_CPUS;
}

static uint32_t most_memory_mb(const struct actions *actions)
{
    return actions->memory_mb_most ? MIN(actions->memory_mb_most, (uint32_t)LIMIT_BUILD_MEMORY_MB)
                                   : LIMIT_BUILD_MEMORY_MB;
}

/* The texts are E2B's. */
static bool size_check(const struct actions *actions, uint32_t cpu_count, uint32_t memory_mb, struct err *err)
{
    if (cpu_count < 1)
        return err_set(err, ERR_INVALID, "CPU count must be at least 1");
    if (cpu_count > MOST_CPUS)
        return err_set(err, ERR_INVALID, "CPU count must be at most %d", MOST_CPUS);
    if (cpu_count != 1 && cpu_count % 2 != 0)
        return err_set(err, ERR_INVALID, "CPU count must be 1 or an even number");
    if (memory_mb < LEAST_MEMORY_MB)
        return err_set(err, ERR_INVALID, "Memory must be at least %d MiB", LEAST_MEMORY_MB);
    if (memory_mb % 2 != 0)
        return err_set(err, ERR_INVALID, "Memory must be divisible by 2");
    if (cpu_count > most_cpus(actions))
        return err_set(err, ERR_INVALID, "CPU count can't be higher than %u, the most that a sandbox may have here",
                       most_cpus(actions));
    if (memory_mb > most_memory_mb(actions))
        return err_set(err, ERR_INVALID, "Memory can't be higher than %u MiB, the most that a sandbox may have here",
                       most_memory_mb(actions));
    return true;
}

static bool name_check(const struct actions *actions, const struct caller *caller, struct str text, struct arena *arena,
                       struct template_ref *out, struct err *err)
{
    struct snapshot_filter same = { .team_id = str_from(caller->team_id), .limit = 1 };
    struct snapshot_row *rows;
    struct str slug;
    size_t count;

    if (!str_trim(text).len)
        return err_set(err, ERR_INVALID, "Name is required");
    if (text.len > LIMIT_BUILD_NAME_BYTES)
        return err_set(err, ERR_INVALID, "the name must have at most %d characters", LIMIT_BUILD_NAME_BYTES);
    if (!template_ref_parse(text, arena, out, err) || !caller_slug(actions, caller, arena, &slug, err))
        return false;
    if (out->space.len && !str_eq(out->space, slug))
        return err_set(err, ERR_INVALID, "'%.*s' is not the namespace of this API key's team, which is '%.*s'",
                       (int)MIN(out->space.len, (size_t)40), out->space.at, (int)MIN(slug.len, (size_t)40), slug.at);
    same.name = out->alias;
    if (!store_snapshot_list(actions->store, &same, arena, &rows, &count, err))
        return false;
    /* An id is refused by the store. */
    return !count || str_eq(rows[0].template_id, out->alias) ||
           err_set(err, ERR_DENIED, "'%.*s' is the name of a snapshot of this team: choose another name",
                   (int)MIN(out->alias.len, (size_t)60), out->alias.at);
}

static bool has(const struct str *list, uint32_t count, struct str wanted)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_eq(list[i], wanted))
            return true;
    return false;
}

/* The tag in the name and those beside it, each once, in their order; `default` if there are none. */
static bool tags_of(const struct build_order *order, struct str tag, struct arena *arena, struct str **out,
                    uint32_t *out_count, struct err *err)
{
    struct str *tags = ARENA_ARRAY(arena, struct str, (size_t)order->tag_count + 1), one;
    uint32_t count = 0;

    if (order->tag_count > LIMIT_TAGS_CALL)
        return err_set(err, ERR_INVALID, "at most %d tags can be given", LIMIT_TAGS_CALL);
    if (tag.len && !str_eq(tag, STR("default"))) {
        if (!template_tag_parse(tag, arena, &one, err))
            return false;
        tags[count++] = one;
    }
    for (uint32_t i = 0; i < order->tag_count; i++) {
        if (!template_tag_parse(order->tags[i], arena, &one, err))
            return false;
        if (!has(tags, count, one))
            tags[count++] = one;
    }
    if (count == 0)
        tags[count++] = STR("default");
    *out = tags;
    *out_count = count;
    return true;
}

/* Sandboxes have no disks of a fixed size: each can fill what the machine's has. So that is what must be free. */
static bool disk_check(const struct actions *actions, uint32_t free_mb, struct err *err)
{
    uint64_t room;

    if (!free_mb || !actions->uploads)
        return true;
    if (!uploads_room(actions->uploads, &room, err))
        return false;
    return room >> 20 >= free_mb ||
           err_set(err, ERR_INVALID, "minFreeDiskMb is %u, but this server's disk has %" PRIu64 " MiB free", free_mb,
                   room >> 20);
}

bool action_build_register(const struct actions *actions, const struct caller *caller, const struct build_order *order,
                           struct arena *arena, struct built_template *out_template, struct build_row *out_build,
                           struct err *err)
{
    struct build_registration want = {
        .team_id = str_from(caller->team_id),
        .cpu_count = order->cpu_count ? order->cpu_count : MIN((uint32_t)DEFAULT_CPUS, most_cpus(actions)),
        .memory_mb =
            order->memory_mb ? order->memory_mb : MIN((uint32_t)DEFAULT_MEMORY_MB, most_memory_mb(actions) & ~1u),
        .guestd_version = STR(GUESTD_API_VERSION)
    };
    struct template_ref ref;
    struct str *tags;

    if (!name_check(actions, caller, order->name, arena, &ref, err) ||
        !tags_of(order, ref.tag, arena, &tags, &want.tag_count, err) ||
        !size_check(actions, want.cpu_count, want.memory_mb, err) || !disk_check(actions, order->free_disk_mb, err))
        return false;
    want.alias = ref.alias;
    want.tags = tags;
    return store_build_register(actions->store, &want, arena, out_template, out_build, err);
}

/* ---- upload ---- */

static bool hash_check(struct str hash, struct err *err)
{
    bool ok = hash.len == 64;

    for (size_t i = 0; ok && i < hash.len; i++)
        ok = char_is_digit(hash.at[i]) || (hash.at[i] >= 'a' && hash.at[i] <= 'f');
    return ok || err_set(err, ERR_INVALID, "Invalid files hash");
}

bool action_upload_link(const struct actions *actions, const struct caller *caller, struct str template_id,
                        struct str hash, struct arena *arena, struct upload_link *out, struct err *err)
{
    struct str team_id = str_from(caller->team_id);
    const int64_t until_s = clock_wall_us() / SECOND_US + LIMIT_UPLOAD_LINK_S;
    struct built_template template;
    char token[STORE_TOKEN_BYTES];

    if (!hash_check(hash, err) || !store_built_get(actions->store, template_id, arena, &template, err))
        return false;
    if (!str_eq(template.team_id, team_id))
        return err_set(err, ERR_NOT_FOUND, "there is no template '%.*s'", (int)MIN(template_id.len, (size_t)60),
                       template_id.at);
    if (!actions->uploads)
        return err_set(err, ERR_UNAVAILABLE, "template builds are not available: files cannot be uploaded");
    *out = (struct upload_link){
        .is_present = upload_exists(actions->uploads, team_id, hash),
        .team_id = team_id,
        .expires = arena_format(arena, "%lld", (long long)until_s),
    };
    store_upload_token(actions->store, team_id, hash, out->expires, token);
    out->token = arena_copy(arena, str_from(token));
    return true;
}

bool action_upload_begin(const struct actions *actions, struct str team_id, struct str hash, uint64_t size,
                         struct upload **out, struct err *err)
{
    if (!actions->uploads)
        return err_set(err, ERR_UNAVAILABLE, "template builds are not available: files cannot be uploaded");
    return upload_begin(actions->uploads, team_id, hash, size, out, err);
}

bool action_upload_check(const struct actions *actions, struct str team_id, struct str hash, struct str expires,
                         struct str token, struct err *err)
{
    char want[STORE_TOKEN_BYTES];
    struct secret signature = { 0 };
    uint64_t until_s;

    store_upload_token(actions->store, team_id, hash, expires, want);
    bool is_signed = secret_set(&signature, str_from(want)) && secret_eq(&signature, token);
    secret_wipe(&signature);
    if (!is_signed || !str_to_u64(expires, INT64_MAX, &until_s))
        return err_set(err, ERR_DENIED, "the signature of this link is wrong: ask for a new link");
    return (uint64_t)(clock_wall_us() / SECOND_US) < until_s ||
           err_set(err, ERR_DENIED, "this link has expired: ask for a new one");
}

/* ---- start ---- */

bool is_uuid(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = char_lower(s.at[i]);
        if (i == 8 || i == 13 || i == 18 || i == 23 ? c != '-' : !char_is_digit(c) && !(c >= 'a' && c <= 'f'))
            return false;
    }
    return s.len == STORE_UUID_BYTES - 1;
}

/* unknown: what one that does not exist, or not of this template, is. */
static bool own_build(const struct actions *actions, const struct caller *caller, struct str template_id,
                      struct str build_id, enum err_kind unknown, struct arena *arena, struct build_row *out,
                      struct err *err)
{
    char *id = arena_text(arena, build_id);

    if (!is_uuid(build_id))
        return err_set(err, ERR_INVALID, "Invalid build id");
    text_lower(id, build_id.len);
    bool there = store_build_get(actions->store, str_of(id, build_id.len), arena, out, err);
    if (!there && err->kind != ERR_NOT_FOUND)
        return false;
    if (!there || !str_eq(out->template_id, template_id))
        return err_set(err, unknown, "Build '%.*s' not found", STR_ARG(build_id));
    return str_eq(out->team_id, str_from(caller->team_id)) ||
           err_set(err, ERR_DENIED, "this build belongs to another team");
}

/* The build fails before the builder has seen it. */
static bool fail_at_base(const struct actions *actions, const struct build_row *row, struct str reason,
                         struct arena *arena, struct err *err)
{
    const struct build_row end = { .id = row->id, .state = BUILD_ERROR, .reason = reason, .reason_step = STR("base") };
    const struct build_line lines[] = {
        { .level = BUILD_INFO,
          .text = arena_format(arena, "Building template %.*s/%.*s", STR_ARG(row->template_id), STR_ARG(row->id)) },
        { .level = BUILD_LEVEL_ERROR,
          .step = STR_INIT("base"),
          .text = arena_format(arena, "Build failed: %.*s", STR_ARG(reason)) },
    };

    if (!store_build_begin(actions->store, row->id, err))
        return err->kind == ERR_CONFLICT ? err_set(err, ERR_INVALID, "build is not in waiting state") : false;
    return store_build_log(actions->store, row->id, lines, COUNT_OF(lines), err) &&
           store_build_finish(actions->store, &end, err);
}

/* fromImage of E2B's own base image, whatever its tag. */
static bool is_base_image(struct str image)
{
    image = str_trim(image);
    return (str_skip(&image, STR("docker.io/")) || true) && str_skip(&image, STR("e2bdev/base")) &&
           (!image.len || image.at[0] == ':');
}

/* tag: of a snapshot. */
static void take_source(const struct template_row *source, struct str tag, struct build_want *want)
{
    if (source->build) {
        want->from_build = source->build->id;
    } else if (source->kept_id.len) { /* its layers may be others, or gone, when the build has its turn */
        want->from_snapshot = source->id;
        want->from_tag = tag;
    } else {
        want->from_layer_count = source->layer_count;
        want->from_layers = source->layers;
    }
}

/* *out_reason: why there is no such source; empty if there is. */
static bool find_source(const struct actions *actions, const struct caller *caller, const struct build_recipe *recipe,
                        struct arena *arena, struct build_want *want, struct str *out_reason, struct err *err)
{
    struct template_found found;
    struct template_row source;
    struct str name = str_trim(recipe->from_template);

    *out_reason = STR("");
    if (recipe->from_archive.len) {
        want->from_archive = recipe->from_archive;
        want->archive_image = recipe->archive_image;
        return true;
    }
    if (recipe->from_image.len) {
        want->from_image = recipe->from_image;
        /* Without it the image map decides; with it the image is what it was made from. */
        if (is_base_image(recipe->from_image) &&
            action_template_resolve(actions, caller, STR("base"), arena, &source, err) && !source.build)
            take_source(&source, STR(""), want);
        return true;
    }
    want->from_text = recipe->from_template;
    bool is_found = template_named(actions, caller, name, arena, &found, err);
    if (is_found && template_build_of(actions, caller, &found, arena, &source, err)) {
        take_source(&source, found.ref.tag, want);
        return true;
    }
    if (err->kind != ERR_NOT_FOUND && err->kind != ERR_INVALID && err->kind != ERR_DENIED)
        return false;
    *out_reason = is_found ? arena_copy(arena, str_from(err->message))
                           : arena_format(arena, "template '%.*s' not found", (int)MIN(name.len, (size_t)200), name.at);
    return true;
}

static bool start(const struct actions *actions, const struct build_want *want, struct err *err)
{
    if (actions->build_start(actions->builder, want, err))
        return true;
    return err->kind == ERR_CONFLICT ? err_set(err, ERR_INVALID, "build is not in waiting state") : false;
}

bool action_build_start(const struct actions *actions, const struct caller *caller, struct str template_id,
                        struct str build_id, const struct build_recipe *recipe, struct arena *arena, struct err *err)
{
    struct build_row row;
    struct str reason;

    if (!own_build(actions, caller, template_id, build_id, ERR_NOT_FOUND, arena, &row, err))
        return false;
    if (row.state != BUILD_WAITING)
        return err_set(err, ERR_INVALID, "build is not in waiting state");
    if (!actions->builder)
        return err_set(err, ERR_UNAVAILABLE, "template builds are not available");
    if (!!recipe->from_image.len + !!recipe->from_template.len + !!recipe->from_archive.len != 1) {
        reason = STR("exactly one of fromImage and fromTemplate must be given"); /* E2B's text; fromArchive is ours */
        return fail_at_base(actions, &row, reason, arena, err) ? err_set(err, ERR_INVALID, "%s", reason.at) : false;
    }
    struct build_want want = { .build_id = row.id,
                               .template_id = row.template_id,
                               .team_id = row.team_id,
                               .dialect = recipe->dialect,
                               .login = recipe->login,
                               .force = recipe->force,
                               .start_cmd = recipe->start_cmd,
                               .ready_cmd = recipe->ready_cmd,
                               .step_count = recipe->step_count,
                               .steps = recipe->steps,
                               .cpu_count = row.cpu_count,
                               .memory_mb = row.memory_mb };
    if (recipe->from_archive.len && !hash_check(recipe->from_archive, err))
        return fail_at_base(actions, &row, STR("Invalid files hash"), arena, err);
    if (!find_source(actions, caller, recipe, arena, &want, &reason, err))
        return false;
    return reason.len ? fail_at_base(actions, &row, reason, arena, err) : start(actions, &want, err);
}

/* ---- status ---- */

bool action_build_status(const struct actions *actions, const struct caller *caller, struct str template_id,
                         struct str build_id, const struct build_log_filter *filter, struct arena *arena,
                         struct build_status *out, struct err *err)
{
    struct build_log_filter of = *filter;
    struct build_status status = { 0 };

    if (!own_build(actions, caller, template_id, build_id, ERR_INVALID, arena, &status.row, err))
        return false;
    /* Seen here, because who has forgotten to start it asks here. */
    const int64_t since_us = clock_wall_us() - LIMIT_BUILD_WAITING_S * SECOND_US;
    if (status.row.state == BUILD_WAITING && status.row.created_us < since_us &&
        (!store_builds_expire(actions->store, since_us, err) ||
         !own_build(actions, caller, template_id, build_id, ERR_INVALID, arena, &status.row, err)))
        return false;
    of.build_id = status.row.id;
    /* After the row: when that says that it has ended, no line is missing. */
    if (of.limit && !store_build_log_read(actions->store, &of, arena, &status.lines, &status.line_count, err))
        return false;
    *out = status;
    return true;
}

bool action_build_cancel(const struct actions *actions, const struct caller *caller, struct str template_id,
                         struct str build_id, struct arena *arena, struct err *err)
{
    struct build_row row;

    if (!own_build(actions, caller, template_id, build_id, ERR_NOT_FOUND, arena, &row, err))
        return false;
    if (row.state != BUILD_BUILDING)
        return err_set(err, ERR_CONFLICT, "the build does not run");
    if (actions->builder)
        actions->build_cancel(actions->builder, row.id, "build was cancelled");
    return true;
}

bool action_builds_cancel(const struct actions *actions, const struct caller *caller, struct arena *arena,
                          size_t *out_cancelled, struct err *err)
{
    struct str *ids;
    size_t count;

    if (!caller_need_admin(caller, err) ||
        !store_builds_running_of_team(actions->store, str_from(caller->team_id), arena, &ids, &count, err))
        return false;
    for (size_t i = 0; i < count && actions->builder; i++)
        actions->build_cancel(actions->builder, ids[i], "cancelled by admin");
    *out_cancelled = actions->builder ? count : 0;
    return true;
}
