/*
 * What a team does with its templates besides building them: list, describe, publish, tag, delete. Each finds the template
 * by template_named(), so all of them mean the same by a name. Only the owner may change one.
 */
#include "actions/build.h"
#include "base/encode.h"
#include "base/limits.h"
#include "base/log.h"

/* ---- list ---- */

static int newest_first(const void *a, const void *b)
{
    const struct template_entry *left = a, *right = b;

    if (left->created_us != right->created_us)
        return left->created_us > right->created_us ? -1 : 1;
    return str_order(left->id, right->id);
}

bool action_template_entries(const struct actions *actions, const struct caller *caller, struct arena *arena,
                             struct template_entry **out, size_t *out_count, struct err *err)
{
    struct built_template *built;
    struct template_row *rows;
    size_t row_count, built_count, count = 0;

    (void)templates_refresh(actions);
    if (!store_template_list(actions->store, str_from(caller->team_id), arena, &rows, &row_count, err) ||
        !store_built_list(actions->store, str_from(caller->team_id), arena, &built, &built_count, err))
        return false;
    struct template_entry *list = ARENA_ARRAY(arena, struct template_entry, row_count + built_count);
    for (size_t i = 0; i < row_count; i++)
        list[count++] = (struct template_entry){ .row = &rows[i], .id = rows[i].id, .created_us = rows[i].created_us };
    for (size_t i = 0; i < built_count; i++)
        list[count++] =
            (struct template_entry){ .built = &built[i], .id = built[i].id, .created_us = built[i].created_us };
    if (count)
        qsort(list, count, sizeof *list, newest_first);
    *out = list;
    *out_count = count;
    return true;
}

/* ---- one ---- */

/* The caller's own, of those that can be changed. */
static bool own_built(const struct template_found *found, struct err *err)
{
    if (found->kind == TEMPLATE_SNAPSHOT)
        return err_set(err, ERR_INVALID,
                       "'%.*s' is a snapshot: it cannot be published, and its tags stay as they were made",
                       (int)MIN(found->ref.alias.len, (size_t)60), found->ref.alias.at);
    if (found->kind == TEMPLATE_OPERATOR)
        return err_set(err, ERR_DENIED, "'%.*s' is a template that the operator has built",
                       (int)MIN(found->ref.alias.len, (size_t)60), found->ref.alias.at);
    return found->is_own || err_set(err, ERR_DENIED, "the template '%.*s' belongs to another team",
                                    (int)MIN(found->ref.alias.len, (size_t)60), found->ref.alias.at);
}

/* A namespace other than the caller's own is refused where clients expect a 400 for it. */
static bool own_space(const struct actions *actions, const struct caller *caller, struct str text, struct arena *arena,
                      struct template_ref *out, struct err *err)
{
    struct str slug;

    if (!template_ref_parse(text, arena, out, err))
        return false;
    if (!out->space.len)
        return true;
    if (!caller_slug(actions, caller, arena, &slug, err))
        return false;
    return str_eq(out->space, slug) ||
           err_set(err, ERR_INVALID, "'%.*s' is not the namespace of this API key's team, which is '%.*s'",
                   (int)MIN(out->space.len, (size_t)40), out->space.at, (int)MIN(slug.len, (size_t)40), slug.at);
}

bool action_template_get(const struct actions *actions, const struct caller *caller, struct str ref,
                         struct arena *arena, struct template_entry *out, struct err *err)
{
    struct template_found found;

    if (!template_named(actions, caller, ref, arena, &found, err))
        return false;
    if (found.kind == TEMPLATE_SNAPSHOT)
        return err_set(err, ERR_NOT_FOUND, "'%.*s' is a snapshot: GET /snapshots describes those",
                       (int)MIN(found.ref.alias.len, (size_t)60), found.ref.alias.at);
    if (found.kind == TEMPLATE_BUILT && !own_built(&found, err))
        return false;
    struct template_found *kept = ARENA_NEW(arena, struct template_found);
    *kept = found;
    *out = (struct template_entry){ .id = kept->id };
    if (kept->kind == TEMPLATE_BUILT) {
        out->built = &kept->built;
        out->created_us = kept->built.created_us;
    } else {
        out->row = &kept->row;
        out->created_us = kept->row.created_us;
    }
    return true;
}

bool action_template_builds(const struct actions *actions, const struct built_template *template, int64_t before_us,
                            struct str before_id, uint32_t limit, struct arena *arena, struct build_row **out,
                            size_t *out_count, struct err *err)
{
    return store_build_list(actions->store, template->id, before_us, before_id, limit, arena, out, out_count, err);
}

bool action_template_exists(const struct actions *actions, const struct caller *caller, struct str ref,
                            struct arena *arena, struct str *out_id, bool *out_public, struct err *err)
{
    struct template_found found;
    struct template_row build;
    struct template_ref parsed;

    if (!own_space(actions, caller, ref, arena, &parsed, err) ||
        !template_named(actions, caller, ref, arena, &found, err) ||
        (parsed.tag.len && !template_build_of(actions, caller, &found, arena, &build, err)))
        return false;
    *out_id = found.id;
    *out_public = found.is_public;
    return true;
}

/* A name for all teams must not take the place of one that the operator has given. */
static bool names_are_free(const struct actions *actions, const struct built_template *template, struct arena *arena,
                           struct err *err)
{
    bool is_taken;

    for (uint32_t i = 0; i < template->alias_count; i++) {
        if (!template_is_for_all(actions, template->aliases[i], arena, &is_taken, err))
            return false;
        if (is_taken)
            return err_set(err, ERR_CONFLICT, "the name '%.*s' is taken by a template of the operator",
                           (int)MIN(template->aliases[i].len, (size_t)60), template->aliases[i].at);
    }
    return true;
}

bool action_template_publish(const struct actions *actions, const struct caller *caller, struct str ref,
                             const bool *is_public, bool claim, struct arena *arena, struct built_template *out,
                             struct err *err)
{
    struct template_found found;

    /* Else whoever comes first has `node` and `python`, and everybody's next sandbox of that name is theirs. */
    claim = claim && caller->is_admin;
    if (!template_named(actions, caller, ref, arena, &found, err) || !own_built(&found, err))
        return false;
    if (is_public && ((*is_public && claim && !names_are_free(actions, &found.built, arena, err)) ||
                      !store_built_publish(actions->store, found.id, *is_public, claim, err)))
        return false;
    *out = found.built;
    return true;
}

/* ---- delete ---- */

static void cancel(const struct actions *actions, const struct build_row *builds, size_t count)
{
    /* Those that waited, too: one may have begun since they were listed. */
    for (size_t i = 0; i < count && actions->builder; i++)
        if (builds[i].state == BUILD_BUILDING || builds[i].state == BUILD_WAITING)
            actions->build_cancel(actions->builder, builds[i].id, "build was cancelled");
}

/* Its running builds are cancelled after their rows are gone: what they have made then belongs to nobody and is dropped. */
static bool delete_built(const struct actions *actions, struct str id, struct arena *arena, struct err *err)
{
    struct build_row *builds;
    size_t count;

    if (!store_build_list(actions->store, id, 0, STR(""), LIMIT_BUILDS_KEPT, arena, &builds, &count, err) ||
        !store_built_remove(actions->store, id, err))
        return false;
    cancel(actions, builds, count);
    for (size_t i = 0; i < count; i++)
        if (builds[i].state == BUILD_READY)
            sandboxes_retire(actions->sandboxes, builds[i].layers, builds[i].layer_count);
    log_info("template %.*s: deleted, with %zu builds", STR_ARG(id), count);
    return true;
}

bool action_template_delete(const struct actions *actions, const struct caller *caller, struct str text,
                            struct arena *arena, struct err *err)
{
    struct template_found found;
    struct template_ref ref;
    struct str slug;

    if (!template_ref_parse(text, arena, &ref, err) || !caller_slug(actions, caller, arena, &slug, err))
        return false;
    if (ref.space.len && !str_eq(ref.space, slug))
        return err_set(err, ERR_DENIED, "the namespace '%.*s' is not the one of this API key's team",
                       (int)MIN(ref.space.len, (size_t)40), ref.space.at);
    if (!template_named(actions, caller, ref.alias, arena, &found, err))
        return err->kind == ERR_NOT_FOUND ? err_set(err, ERR_NOT_FOUND, "there is no template and no snapshot '%.*s'",
                                                    (int)MIN(ref.alias.len, (size_t)60), ref.alias.at)
                                          : false;
    switch (found.kind) {
    case TEMPLATE_SNAPSHOT:
        return snapshot_delete(actions, caller, found.id, arena, err);
    case TEMPLATE_BUILT:
        return own_built(&found, err) && delete_built(actions, found.id, arena, err);
    case TEMPLATE_OPERATOR:
        break;
    }
    return err_set(err, ERR_DENIED,
                   "'%.*s' is a template that the operator has built: deleting those is not possible over the API yet",
                   (int)MIN(ref.alias.len, (size_t)60), ref.alias.at);
}

bool templates_delete_all(const struct actions *actions, struct str team_id, struct arena *arena, size_t *out_count,
                          struct err *err)
{
    struct built_template *list;
    size_t count;

    if (!store_built_list(actions->store, team_id, arena, &list, &count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!delete_built(actions, list[i].id, arena, err) && err->kind != ERR_NOT_FOUND)
            return false;
    *out_count = count;
    return true;
}

/* ---- tags ---- */

bool template_tag_parse(struct str text, struct arena *arena, struct str *out, struct err *err)
{
    text = str_trim(text);
    char *lower = arena_text(arena, text);
    text_lower(lower, text.len);

    struct str tag = str_of(lower, text.len);
    if (!template_is_word(tag, "."))
        return err_set(err, ERR_INVALID, "'%.*s' is not a tag: a-z 0-9 - _ . are possible, at most %d of them",
                       (int)MIN(tag.len, (size_t)60), tag.at, LIMIT_NAME_BYTES - 1);
    if (is_uuid(tag))
        return err_set(err, ERR_INVALID, "a tag must not be a UUID: it would name a build");
    *out = tag;
    return true;
}

static bool tags_parse(const struct str *texts, uint32_t count, struct arena *arena, const struct str **out,
                       uint32_t *out_count, struct err *err)
{
    struct str *tags = ARENA_ARRAY(arena, struct str, count), one;
    uint32_t kept = 0;

    if (count == 0)
        return err_set(err, ERR_INVALID, "at least one tag must be given");
    if (count > LIMIT_TAGS_CALL)
        return err_set(err, ERR_INVALID, "at most %d tags can be given", LIMIT_TAGS_CALL);
    for (uint32_t i = 0; i < count; i++) {
        bool is_known = false;
        if (!template_tag_parse(texts[i], arena, &one, err))
            return false;
        for (uint32_t k = 0; k < kept; k++)
            is_known = is_known || str_eq(tags[k], one);
        if (!is_known)
            tags[kept++] = one;
    }
    *out = tags;
    *out_count = kept;
    return true;
}

bool action_tags_assign(const struct actions *actions, const struct caller *caller, struct str target,
                        const struct str *tags, uint32_t count, struct arena *arena, struct str *out_build_id,
                        const struct str **out_tags, uint32_t *out_count, struct err *err)
{
    struct template_found found;
    struct template_row build;
    struct template_ref ref;

    if (!own_space(actions, caller, target, arena, &ref, err) ||
        !tags_parse(tags, count, arena, out_tags, out_count, err) ||
        !template_named(actions, caller, target, arena, &found, err) || !own_built(&found, err) ||
        !template_build_of(actions, caller, &found, arena, &build, err))
        return false;
    const struct replaced replaced = replaced_find(actions->store, found.id, *out_tags, *out_count, arena);
    if (!store_tag_assign(actions->store, found.id, build.build->id, *out_tags, *out_count, err))
        return false;
    replaced_retire(&replaced, actions->sandboxes, build.build->id);
    *out_build_id = build.build->id;
    return true;
}

bool action_tags_remove(const struct actions *actions, const struct caller *caller, struct str name,
                        const struct str *texts, uint32_t count, struct arena *arena, struct err *err)
{
    struct template_found found;
    const struct str *tags;
    struct template_ref ref;

    if (!own_space(actions, caller, name, arena, &ref, err) || !tags_parse(texts, count, arena, &tags, &count, err))
        return false;
    if (ref.tag.len)
        return err_set(err, ERR_INVALID, "'name' must be a template without a tag");
    for (uint32_t i = 0; i < count; i++)
        if (str_eq(tags[i], STR("default")))
            return err_set(err, ERR_INVALID,
                           "the tag 'default' cannot be removed; tag another build as default, or delete the template");
    if (!template_named(actions, caller, name, arena, &found, err) || !own_built(&found, err))
        return false;
    const struct replaced replaced = replaced_find(actions->store, found.id, tags, count, arena);
    if (!store_tag_remove(actions->store, found.id, tags, count, err))
        return false;
    replaced_retire(&replaced, actions->sandboxes, STR(""));
    return true;
}

/* What clients need is a UUID; a snapshot's build has another id, which it is derived from. */
static struct str uuid_of(struct str kept_id, struct arena *arena)
{
    char hex[STORE_HASH_BYTES];

    store_secret_hash(kept_id, hex);
    return arena_format(arena, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 12, hex + 15, hex + 18);
}

static bool snapshot_tags(const struct actions *actions, const struct caller *caller,
                          const struct template_found *found, const struct tag_filter *filter, struct arena *arena,
                          struct tag_row **out, size_t *out_count, struct err *err)
{
    struct snapshot_filter of = {
        .team_id = str_from(caller->team_id), .name = found->id, .tag = filter->tag, .limit = LIMIT_SNAPSHOTS_TEAM
    };
    struct snapshot_row *rows;
    size_t count, kept = 0;

    if (!store_snapshot_list(actions->store, &of, arena, &rows, &count, err))
        return false;
    struct tag_row *tags = ARENA_ARRAY(arena, struct tag_row, count);
    for (size_t i = 0; i < count && kept < filter->limit; i++)
        if (!filter->before_us || rows[i].created_us < filter->before_us)
            tags[kept++] = (struct tag_row){ .id = uuid_of(rows[i].kept_id, arena),
                                             .tag = rows[i].tag,
                                             .build_id = uuid_of(rows[i].kept_id, arena),
                                             .assigned_us = rows[i].created_us,
                                             .build_created_us = rows[i].created_us,
                                             .build_finished_us = rows[i].created_us };
    *out = tags;
    *out_count = kept;
    return true;
}

bool action_tags_list(const struct actions *actions, const struct caller *caller, struct str ref,
                      const struct tag_filter *filter, struct arena *arena, struct tag_row **out, size_t *out_count,
                      struct err *err)
{
    struct tag_filter of = *filter;
    struct template_found found;

    if (!template_named(actions, caller, ref, arena, &found, err))
        return false;
    if (found.kind == TEMPLATE_SNAPSHOT)
        return snapshot_tags(actions, caller, &found, filter, arena, out, out_count, err);
    if (!own_built(&found, err))
        return false;
    of.template_id = found.id;
    return store_tag_list(actions->store, &of, arena, out, out_count, err);
}
