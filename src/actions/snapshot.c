/*
 * Snapshots: kept copies of sandboxes, which are templates of the team that made them.
 *
 * A snapshot is in two places: the driver has its bytes, the store has its row. It is made in this order and removed in
 * the other, so that a row never names bytes that are not there. Bytes without a row go when front starts again. Whatever a call could not drop (keeper was away, the
 * server ended) stays in the store as removed, and the next call that makes or removes a snapshot drops it.
 */
#include "actions/actions.h"
#include "actions/build.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"

static struct snapshot_caps caps_of(const struct actions *actions)
{
    const struct snapshot_caps *given = &actions->snapshots;
    const uint64_t bytes = given->bytes ? given->bytes : LIMIT_SNAPSHOT_BYTES;

    return (struct snapshot_caps){ .of_team = given->of_team ? given->of_team : LIMIT_SNAPSHOTS_TEAM,
                                   .of_all = given->of_all ? given->of_all : LIMIT_SNAPSHOTS,
                                   .bytes = bytes,
                                   .bytes_of_team = bytes / LIMIT_SNAPSHOT_SHARE };
}

bool snapshots_have_room(const struct actions *actions, struct str team_id, struct err *err)
{
    struct snapshot_caps caps = caps_of(actions);

    caps.of_team = caps.of_all = UINT64_MAX;
    return store_snapshot_room(actions->store, team_id, &caps, err);
}

void snapshots_drop_removed(const struct actions *actions, struct arena *arena)
{
    struct str *kept_ids;
    size_t count;
    struct err err;

    if (!store_snapshot_removed(actions->store, arena, &kept_ids, &count, &err)) {
        log_warn("snapshots: cannot look for removed ones: %s", err_text(&err));
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (!sandbox_drop_snapshot(actions->sandboxes, kept_ids[i], &err) ||
            !store_snapshot_forget(actions->store, kept_ids[i], &err))
            log_warn("snapshot %.*s: removed, but its files are still there: %s", STR_ARG(kept_ids[i]), err_text(&err));
}

static void describe(const struct snapshot_row *row, struct str slug, struct arena *arena, struct snapshot_info *out)
{
    *out = (struct snapshot_info){ .row = *row };
    if (row->name.len) {
        out->name = arena_format(arena, "%.*s/%.*s", STR_ARG(slug), STR_ARG(row->name));
        out->id = arena_format(arena, "%.*s:%.*s", STR_ARG(out->name), STR_ARG(row->tag));
    } else {
        out->id = arena_format(arena, "%.*s:%.*s", STR_ARG(row->template_id), STR_ARG(row->tag));
    }
}

static bool ref_of_name(struct str text, struct arena *arena, struct template_ref *out, struct err *err)
{
    return template_ref_parse(text, arena, out, err) ||
           err_set(err, ERR_INVALID,
                   "'name' must be [namespace/]name[:tag], of a-z 0-9 - _, each at most %d characters, not '%.*s'",
                   LIMIT_NAME_BYTES - 1, (int)MIN(text.len, (size_t)60), text.at);
}

/* ---- create ---- */

static bool name_parse(const struct actions *actions, const struct caller *caller, struct str text, struct str slug,
                       struct arena *arena, struct template_ref *out, struct err *err)
{
    struct built_template built;
    bool is_taken;

    if (!text.len) {
        *out = (struct template_ref){ 0 };
        return true;
    }
    if (!ref_of_name(text, arena, out, err))
        return false;
    if (out->space.len && !str_eq(out->space, slug))
        return err_set(err, ERR_INVALID, "'name': '%.*s' is not the namespace of this API key's team, which is '%.*s'",
                       (int)MIN(out->space.len, (size_t)40), out->space.at, (int)MIN(slug.len, (size_t)40), slug.at);
    if (is_uuid(out->tag)) /* a build's id looks like that elsewhere */
        return err_set(err, ERR_INVALID, "'name': the tag of a snapshot must not be a UUID");
    /* A create of that template would find the snapshot instead. */
    if (!template_is_for_all(actions, out->alias, arena, &is_taken, err))
        return false;
    if (!is_taken) {
        is_taken = store_built_by_alias(actions->store, str_from(caller->team_id), out->alias, arena, &built, err);
        if (!is_taken && err->kind != ERR_NOT_FOUND)
            return false;
    }
    return !is_taken || err_set(err, ERR_INVALID, "'name': '%.*s' is the name of a template; choose another name",
                                (int)MIN(out->alias.len, (size_t)60), out->alias.at);
}

bool action_snapshot_create(const struct actions *actions, const struct caller *caller, struct str sandbox_id,
                            struct str name, bool memory, struct arena *arena, struct snapshot_info *out,
                            struct err *err)
{
    struct str team_id = str_from(caller->team_id);
    const struct snapshot_caps caps = caps_of(actions);
    struct snapshot_row row = { 0 };
    struct template_ref ref;
    struct sandbox_info source;
    const struct str *layers;
    uint32_t layer_count;
    struct kept kept;
    struct str slug;
    struct err drop_err;

    if (!caller_slug(actions, caller, arena, &slug, err) || !name_parse(actions, caller, name, slug, arena, &ref, err))
        return false;
    snapshots_drop_removed(actions, arena); /* before its bytes are counted */
    if (!store_snapshot_room(actions->store, team_id, &caps, err) ||
        !sandbox_snapshot(actions->sandboxes, team_id, sandbox_id, memory, arena, &kept, &source, &layer_count, &layers,
                          err))
        return false;
    row = (struct snapshot_row){ .name = ref.alias,
                                 .tag = ref.tag,
                                 .team_id = team_id,
                                 .sandbox_id = source.id,
                                 .source_template_id = source.template_id,
                                 .cpu_count = source.cpu_count,
                                 .memory_mb = source.memory_mb,
                                 .disk_mb = source.disk_mb,
                                 .guestd_version = source.guestd_version,
                                 .created_us = clock_wall_us(),
                                 .layer_count = layer_count,
                                 .layers = layers,
                                 .kept_id = arena_copy(arena, str_from(kept.id)),
                                 .default_user = source.default_user,
                                 .default_workdir = source.default_workdir,
                                 .has_memory = kept.has_image,
                                 .layer_bytes = kept.layer_bytes,
                                 .image_bytes = kept.image_bytes };
    if (!store_snapshot_add(actions->store, &row, &caps, arena, &row, err)) {
        if (!sandbox_drop_snapshot(actions->sandboxes, row.kept_id, &drop_err))
            log_warn("snapshot %s: could not be recorded, and its files are still there: %s", kept.id,
                     err_text(&drop_err));
        return false;
    }
    snapshots_drop_removed(actions, arena); /* what it has replaced */
    describe(&row, slug, arena, out);
    return true;
}

/* ---- list ---- */

bool action_snapshot_list(const struct actions *actions, const struct caller *caller, const struct snapshot_filter *of,
                          struct arena *arena, struct snapshot_info **out, size_t *out_count, struct err *err)
{
    struct snapshot_filter filter = *of;
    struct snapshot_row *rows;
    struct template_ref ref;
    struct str slug;
    size_t count;

    if (!caller_slug(actions, caller, arena, &slug, err))
        return false;
    filter.team_id = str_from(caller->team_id);
    if (of->name.len) {
        if (!ref_of_name(of->name, arena, &ref, err))
            return false;
        if (ref.space.len && !str_eq(ref.space, slug)) {
            *out_count = 0; /* the caller has none there */
            return true;
        }
        filter.name = ref.alias;
        filter.tag = ref.tag;
    }
    if (!store_snapshot_list(actions->store, &filter, arena, &rows, &count, err))
        return false;
    struct snapshot_info *list = ARENA_ARRAY(arena, struct snapshot_info, count);
    for (size_t i = 0; i < count; i++)
        describe(&rows[i], slug, arena, &list[i]);
    *out = list;
    *out_count = count;
    return true;
}

/* ---- delete ---- */

bool snapshot_delete(const struct actions *actions, const struct caller *caller, struct str template_id,
                     struct arena *arena, struct err *err)
{
    if (!store_snapshot_remove(actions->store, str_from(caller->team_id), template_id, err))
        return false;
    log_info("snapshot %.*s: deleted, with all its tags", STR_ARG(template_id));
    snapshots_drop_removed(actions, arena);
    return true;
}

bool snapshots_delete_all(const struct actions *actions, struct str team_id, struct arena *arena, size_t *out_count,
                          struct err *err)
{
    struct snapshot_filter filter = { .team_id = team_id, .limit = LIMIT_SNAPSHOTS_TEAM };
    struct snapshot_row *rows;
    size_t count, deleted = 0;

    do {
        if (!store_snapshot_list(actions->store, &filter, arena, &rows, &count, err))
            return false;
        for (size_t i = 0; i < count; i++) {
            /* Builds of one name go together. */
            if (!store_snapshot_remove(actions->store, team_id, rows[i].template_id, err) && err->kind != ERR_NOT_FOUND)
                return false;
            deleted++;
        }
    } while (count);
    snapshots_drop_removed(actions, arena);
    *out_count = deleted;
    return true;
}
