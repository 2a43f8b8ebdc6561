/*
 * Finding a template by the name that a client gives. There are three kinds: those that were made on the server's machine
 * (for all teams, or of one), snapshots, and those that teams build. One search finds them all, so that create, exists, tags
 * and delete mean the same by a name. If there is none, templates that were made since the last look are added to the store,
 * and the search is repeated once. An error names what does exist, or how to build it.
 */
#include "actions/actions.h"
#include "base/log.h"

bool template_is_word(struct str s, const char *extra)
{
    if (s.len == 0 || s.len >= LIMIT_NAME_BYTES)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || (c && strchr(extra, c))))
            return false;
    }
    return true;
}

bool template_ref_parse(struct str text, struct arena *arena, struct template_ref *out, struct err *err)
{
    text = str_trim(text);
    char *lower = arena_text(arena, text);
    text_lower(lower, text.len);

    struct str rest = str_of(lower, text.len);
    struct template_ref ref = { 0 };
    bool has_space = str_has_char(rest, '/'), has_tag = str_has_char(rest, ':');
    if (has_space)
        (void)str_cut(&rest, '/', &ref.space);
    (void)str_cut(&rest, ':', &ref.alias);
    ref.space = str_trim(ref.space);
    ref.alias = str_trim(ref.alias);
    if (has_tag)
        ref.tag = str_trim(rest);
    if ((has_space && !template_is_word(ref.space, "")) || !template_is_word(ref.alias, "") ||
        (has_tag && !template_is_word(ref.tag, ".")))
        return err_set(err, ERR_INVALID, "'%.*s' is not a template reference: [namespace/]alias[:tag], of a-z 0-9 - _",
                       (int)MIN(text.len, (size_t)60), lower);
    *out = ref;
    return true;
}

bool caller_slug(const struct actions *actions, const struct caller *caller, struct arena *arena, struct str *out,
                 struct err *err)
{
    struct team_row team;

    if (!store_team_get(actions->store, str_from(caller->team_id), arena, &team, err))
        return false;
    *out = team.slug;
    return true;
}

static bool is_missing(const struct err *err)
{
    return err->kind == ERR_NOT_FOUND;
}

static bool is_default(struct str tag)
{
    return !tag.len || str_eq(tag, STR("default"));
}

/* ---- which template ---- */

static bool is_callers(const struct caller *caller, struct str team_id)
{
    return str_eq(team_id, str_from(caller->team_id));
}

static void found_row(const struct caller *caller, const struct template_row *row, struct template_found *out)
{
    out->kind = TEMPLATE_OPERATOR;
    out->row = *row;
    out->row.is_public = row->team_id.len == 0;
    out->id = row->id;
    out->is_public = out->row.is_public;
    out->is_own = is_callers(caller, row->team_id);
}

static void found_built(const struct caller *caller, const struct built_template *built, struct template_found *out)
{
    out->kind = TEMPLATE_BUILT;
    out->built = *built;
    out->id = built->id;
    out->is_public = built->is_public;
    out->is_own = is_callers(caller, built->team_id);
}

static bool by_built_alias(const struct actions *actions, const struct caller *caller, struct str team_id,
                           struct arena *arena, struct template_found *out, struct err *err)
{
    struct built_template built;

    if (!store_built_by_alias(actions->store, team_id, out->ref.alias, arena, &built, err))
        return false;
    found_built(caller, &built, out);
    return true;
}

/* Those of the server's machine have one build, which has no other tag. */
static bool by_row_alias(const struct actions *actions, const struct caller *caller, struct str team_id,
                         struct arena *arena, struct template_found *out, struct err *err)
{
    struct template_row row;

    if (!is_default(out->ref.tag))
        return err_set(err, ERR_NOT_FOUND, "no such tag");
    if (!store_template_by_alias(actions->store, team_id, out->ref.alias, arena, &row, err))
        return false;
    found_row(caller, &row, out);
    return true;
}

/* A name counts before an id: nobody else's id can be had by guessing, but a name may look like one. */
static bool by_snapshot(const struct actions *actions, const struct caller *caller, struct arena *arena,
                        struct template_found *out, struct err *err)
{
    struct snapshot_filter filter = { .team_id = str_from(caller->team_id), .name = out->ref.alias, .limit = 1 };
    struct snapshot_row *rows, row;
    size_t count;

    if (!store_snapshot_get(actions->store, filter.team_id, out->ref.alias, out->ref.tag, arena, &row, err)) {
        if (!is_missing(err) || !store_snapshot_list(actions->store, &filter, arena, &rows, &count, err))
            return false;
        if (!count)
            return err_set(err, ERR_NOT_FOUND, "there is no such snapshot");
        row = rows[0];
    }
    out->kind = TEMPLATE_SNAPSHOT;
    out->id = row.template_id;
    out->is_own = true;
    return true;
}

static bool by_team(const struct actions *actions, const struct caller *caller, struct arena *arena,
                    struct template_found *out, struct err *err)
{
    struct str team_id = str_from(caller->team_id);

    return by_built_alias(actions, caller, team_id, arena, out, err) ||
           (is_missing(err) && by_row_alias(actions, caller, team_id, arena, out, err)) ||
           (is_missing(err) && by_snapshot(actions, caller, arena, out, err));
}

/* A namespace is a team's slug. Of another team only public templates can be seen. */
static bool in_namespace(const struct actions *actions, const struct caller *caller, struct arena *arena,
                         struct template_found *out, struct err *err)
{
    struct team_row team;

    if (!store_team_by_slug(actions->store, out->ref.space, arena, &team, err))
        return false;
    if (is_callers(caller, team.id))
        return by_team(actions, caller, arena, out, err);
    if (!by_built_alias(actions, caller, team.id, arena, out, err))
        return false;
    return out->is_public || err_set(err, ERR_NOT_FOUND, "no such public template");
}

static bool by_id(const struct actions *actions, const struct caller *caller, struct arena *arena,
                  struct template_found *out, struct err *err)
{
    struct built_template built;
    struct template_row row;

    if (is_default(out->ref.tag) && store_template_get(actions->store, out->ref.alias, arena, &row, err)) {
        found_row(caller, &row, out);
        return out->is_own || out->is_public || err_set(err, ERR_NOT_FOUND, "of another team");
    }
    if ((is_default(out->ref.tag) && !is_missing(err)) ||
        !store_built_get(actions->store, out->ref.alias, arena, &built, err))
        return false;
    found_built(caller, &built, out);
    return out->is_own || out->is_public ||
           err_set(err, ERR_DENIED, "the template '%.*s' belongs to another team", STR_ARG(built.id));
}

static bool look_up(const struct actions *actions, const struct caller *caller, struct arena *arena,
                    struct template_found *out, struct err *err)
{
    if (out->ref.space.len)
        return in_namespace(actions, caller, arena, out, err);
    return by_team(actions, caller, arena, out, err) ||
           (is_missing(err) && by_row_alias(actions, caller, STR(""), arena, out, err)) ||
           (is_missing(err) && by_built_alias(actions, caller, STR(""), arena, out, err)) ||
           (is_missing(err) && by_id(actions, caller, arena, out, err));
}

/* Templates that SDKs name by default, and the recipe that makes each. */
static const struct {
    struct str name;
    const char *recipe;
} makeable[] = {
    { STR_INIT("base"), "base" },
    { STR_INIT("code-interpreter-v1"), "code-interpreter" },
};

/* For a template that is known but not built here: what to do about it. */
static bool explain_known(struct str ref, struct err *err)
{
    if (str_eq(ref, STR("mcp-gateway"))) /* the SDKs use this template when MCP servers are given */
        return !err_set(
            err, ERR_NOT_FOUND,
            "template 'mcp-gateway' is for MCP servers (mcp={…}, JS mcp: {…}), which are not available in this "
            "version of Cloister");
    if (str_eq(ref, STR("code-interpreter"))) /* as its recipe is called */
        return !err_set(err, ERR_NOT_FOUND, "template 'code-interpreter' not found: its name is code-interpreter-v1");
    for (size_t i = 0; i < COUNT_OF(makeable); i++) {
        if (!str_eq(ref, makeable[i].name))
            continue;
        (void)err_set(err, ERR_NOT_FOUND,
                      "template '%.*s' is not built yet. `make up` builds it once, in minutes. By hand: "
                      "sudo cloister template build %s [--data DIR]",
                      STR_ARG(ref), makeable[i].recipe);
        return true;
    }
    return false;
}

static bool add_name(struct buf *names, struct str name)
{
    if (names->len + name.len + 2 > names->cap)
        return false;
    buf_format(names, "%s%.*s", names->len ? ", " : "", STR_ARG(name));
    return true;
}

/* The error lists the templates that do exist, as many as fit: the team's own first. */
static void explain_missing(const struct actions *actions, const struct caller *caller, struct str ref,
                            struct arena *arena, struct err *err)
{
    struct buf names = buf_make(arena, 54); /* so that the message is whole, unless the reference is long */
    struct built_template *built;
    struct template_row *rows;
    size_t row_count, built_count, shown = 0;
    struct err ignored;

    if (explain_known(ref, err))
        return;
    if (!store_template_list(actions->store, str_from(caller->team_id), arena, &rows, &row_count, &ignored))
        row_count = 0;
    if (!store_built_list(actions->store, str_from(caller->team_id), arena, &built, &built_count, &ignored))
        built_count = 0;
    for (size_t i = 0; i < built_count; i++)
        shown += add_name(&names, built[i].alias_count ? built[i].aliases[0] : built[i].id);
    for (size_t i = 0; i < row_count; i++)
        shown += add_name(&names, rows[i].alias_count ? rows[i].aliases[0] : rows[i].id);
    bool has_more = shown < built_count + row_count;
    (void)err_set(err, ERR_NOT_FOUND, "template '%.*s' not found; there %s %.*s%s; cloister template list has all",
                  (int)MIN(ref.len, (size_t)40), ref.at, shown > 1 ? "are" : "is", names.len ? (int)names.len : 8,
                  names.len ? names.data : "none yet", has_more ? " and more" : "");
}

bool templates_refresh(const struct actions *actions)
{
    struct err err;

    if (!actions->refresh_templates)
        return false;
    if (actions->refresh_templates(actions->context, &err))
        return true;
    log_warn("templates: cannot look for new ones: %s", err_text(&err));
    return false;
}

bool template_is_for_all(const struct actions *actions, struct str name, struct arena *arena, bool *out,
                         struct err *err)
{
    struct template_row row;
    struct err ignored;

    (void)templates_refresh(actions);
    if (explain_known(name, &ignored) || store_template_by_alias(actions->store, STR(""), name, arena, &row, err)) {
        *out = true;
        return true;
    }
    if (is_missing(err) && store_template_get(actions->store, name, arena, &row, err)) {
        *out = row.team_id.len == 0;
        return true;
    }
    *out = false;
    return is_missing(err);
}

bool template_named(const struct actions *actions, const struct caller *caller, struct str text, struct arena *arena,
                    struct template_found *out, struct err *err)
{
    struct template_found found = { 0 };

    if (!template_ref_parse(text, arena, &found.ref, err))
        return false;
    if (!look_up(actions, caller, arena, &found, err) &&
        !(is_missing(err) && templates_refresh(actions) && look_up(actions, caller, arena, &found, err))) {
        if (is_missing(err))
            explain_missing(actions, caller, str_trim(text), arena, err);
        return false;
    }
    *out = found;
    return true;
}

/* ---- which build ---- */

/* A snapshot is a template of its team: one layer more than what it was made from, and perhaps its processes. */
static bool snapshot_build(const struct actions *actions, const struct caller *caller,
                           const struct template_found *found, struct arena *arena, struct template_row *out,
                           struct err *err)
{
    struct snapshot_row row;

    if (!store_snapshot_get(actions->store, str_from(caller->team_id), found->ref.alias, found->ref.tag, arena, &row,
                            err))
        return false;
    struct str *alias = ARENA_NEW(arena, struct str);
    *alias = row.name;
    *out = (struct template_row){
        .id = row.template_id,
        .team_id = row.team_id,
        .cpu_count = row.cpu_count,
        .memory_mb = row.memory_mb,
        .disk_mb = row.disk_mb,
        .guestd_version = row.guestd_version,
        .created_us = row.created_us,
        .layer_count = row.layer_count,
        .layers = row.layers,
        .alias_count = row.name.len ? 1 : 0,
        .aliases = alias,
        .image = row.has_memory ? row.kept_id : STR(""),
        .default_user = row.default_user,
        .default_workdir = row.default_workdir,
        .kept_id = row.kept_id,
        .used_us = row.used_us,
    };
    return true;
}

static bool tag_build(const struct actions *actions, const struct template_found *found, struct arena *arena,
                      struct template_row *out, struct err *err)
{
    const struct built_template *built = &found->built;
    struct str tag = is_default(found->ref.tag) ? STR("default") : found->ref.tag;
    struct build_row *build = ARENA_NEW(arena, struct build_row);

    if (!store_build_by_tag(actions->store, built->id, tag, arena, build, err))
        return is_missing(err) ? err_set(err, ERR_NOT_FOUND,
                                         "tag '%.*s' does not exist for template '%.*s', or its build is not ready",
                                         (int)MIN(tag.len, (size_t)50), tag.at,
                                         (int)MIN(found->ref.alias.len, (size_t)60), found->ref.alias.at)
                               : false;
    *out = (struct template_row){
        .id = built->id,
        .team_id = built->team_id,
        .cpu_count = build->cpu_count,
        .memory_mb = build->memory_mb,
        .disk_mb = build->disk_mb,
        .guestd_version = build->guestd_version,
        .created_us = built->created_us,
        .layer_count = build->layer_count,
        .layers = build->layers,
        .alias_count = built->alias_count,
        .aliases = built->aliases,
        .image = build->image,
        .default_user = build->context.user,
        .default_workdir = build->context.workdir,
        .build = build,
        .is_public = built->is_public,
    };
    return true;
}

bool template_build_of(const struct actions *actions, const struct caller *caller, const struct template_found *found,
                       struct arena *arena, struct template_row *out, struct err *err)
{
    switch (found->kind) {
    case TEMPLATE_BUILT:
        return tag_build(actions, found, arena, out, err);
    case TEMPLATE_SNAPSHOT:
        return snapshot_build(actions, caller, found, arena, out, err);
    case TEMPLATE_OPERATOR:
        break;
    }
    *out = found->row;
    return true;
}

bool action_template_resolve(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_row *out, struct err *err)
{
    struct str team_id = str_from(caller->team_id);
    struct template_found found;

    if (store_found_get(actions->store, team_id, ref, arena, out))
        return true;
    uint64_t version = store_version(actions->store);
    if (!template_named(actions, caller, ref, arena, &found, err))
        return false;
    if (template_build_of(actions, caller, &found, arena, out, err)) {
        if (found.kind == TEMPLATE_OPERATOR) /* others have more than such a row, and a create changes some of it */
            store_found_keep(actions->store, version, team_id, ref, out);
        return true;
    }
    if (is_missing(err) && found.kind == TEMPLATE_SNAPSHOT)
        explain_missing(actions, caller, str_trim(ref), arena, err);
    return false;
}
