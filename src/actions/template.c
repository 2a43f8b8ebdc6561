/*
 * Finding a template by the name that a client gives. If the store does not know it, templates that were built since
 * the last look are added to the store, and the search is repeated once. An error names what does exist, or how to
 * build it.
 */
#include "actions/actions.h"
#include "base/log.h"

static bool is_word(struct str s, const char *extra)
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
    if (has_tag)
        ref.tag = rest;
    if ((has_space && !is_word(ref.space, "")) || !is_word(ref.alias, "") || (has_tag && !is_word(ref.tag, ".")))
        return err_set(err, ERR_INVALID, "'%.*s' is not a template reference: [namespace/]alias[:tag], of a-z 0-9 - _",
                       (int)MIN(text.len, (size_t)60), lower);
    *out = ref;
    return true;
}

static bool is_missing(const struct err *err)
{
    return err->kind == ERR_NOT_FOUND;
}

/* A snapshot is a template of its team: one layer more than what it was made from, and perhaps its processes. */
static bool by_snapshot(const struct actions *actions, const struct caller *caller, const struct template_ref *ref,
                        struct arena *arena, struct template_row *out, struct err *err)
{
    struct snapshot_row row;

    if (!store_snapshot_get(actions->store, str_from(caller->team_id), ref->alias, ref->tag, arena, &row, err))
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
        .kept_id = row.kept_id,
        .used_us = row.used_us,
    };
    return true;
}

/* The team's own: a template of this name, or a snapshot. */
static bool by_team(const struct actions *actions, const struct caller *caller, const struct template_ref *ref,
                    struct arena *arena, struct template_row *out, struct err *err)
{
    bool is_default = !ref->tag.len || str_eq(ref->tag, STR("default")); /* other templates have one build so far */

    return (is_default &&
            store_template_by_alias(actions->store, str_from(caller->team_id), ref->alias, arena, out, err)) ||
           ((!is_default || is_missing(err)) && by_snapshot(actions, caller, ref, arena, out, err));
}

/* A namespace is a team's slug. So far a caller can only use its own. */
static bool in_namespace(const struct actions *actions, const struct caller *caller, const struct template_ref *ref,
                         struct arena *arena, struct template_row *out, struct err *err)
{
    struct team_row team;

    if (!store_team_get(actions->store, str_from(caller->team_id), arena, &team, err))
        return false;
    if (!str_eq(team.slug, ref->space))
        return err_set(err, ERR_NOT_FOUND, "no such namespace");
    return by_team(actions, caller, ref, arena, out, err);
}

static bool look_up(const struct actions *actions, const struct caller *caller, const struct template_ref *ref,
                    struct arena *arena, struct template_row *out, struct err *err)
{
    if (ref->space.len)
        return in_namespace(actions, caller, ref, arena, out, err);
    if (by_team(actions, caller, ref, arena, out, err))
        return true;
    if (ref->tag.len && !str_eq(ref->tag, STR("default")))
        return false; /* by_team() has looked for the tag */
    return (is_missing(err) && store_template_by_alias(actions->store, STR(""), ref->alias, arena, out, err)) ||
           (is_missing(err) && store_template_get(actions->store, ref->alias, arena, out, err));
}

/* Templates that SDKs name by default, and the recipe that makes each. */
static const struct {
    struct str name;
    const char *recipe;
} makeable[] = {
    { STR_INIT("base"), "base" },
    { STR_INIT("code-interpreter-v1"), "code-interpreter" },
    { STR_INIT("code-interpreter"), "code-interpreter" },
};

/* For a template that is known but not built here: what to do about it. */
static bool explain_known(struct str ref, struct err *err)
{
    if (str_eq(ref, STR("mcp-gateway"))) /* the SDKs use this template when MCP servers are given */
        return !err_set(
            err, ERR_NOT_FOUND,
            "template 'mcp-gateway' is for MCP servers (mcp={…}, JS mcp: {…}), which are not available in this "
            "version of Cloister");
    for (size_t i = 0; i < COUNT_OF(makeable); i++) {
        if (!str_eq(ref, makeable[i].name))
            continue;
        (void)err_set(err, ERR_NOT_FOUND,
                      "template '%.*s' is not built yet; on the server's machine: sudo cloister template build %s",
                      STR_ARG(ref), makeable[i].recipe);
        return true;
    }
    return false;
}

/* The error lists the templates that do exist. */
static void explain_missing(const struct actions *actions, const struct caller *caller, struct str ref,
                            struct arena *arena, struct err *err)
{
    struct buf names = buf_make(arena, 54); /* so that the message is whole, unless the reference is long */
    struct template_row *list;
    size_t count, shown = 0;
    struct err ignored;

    if (explain_known(ref, err))
        return;
    if (!store_template_list(actions->store, str_from(caller->team_id), arena, &list, &count, &ignored))
        count = 0;
    for (size_t i = 0; i < count; i++, shown++) {
        struct str name = list[i].alias_count ? list[i].aliases[0] : list[i].id;
        if (names.len + name.len + 2 > names.cap)
            break;
        buf_format(&names, "%s%.*s", names.len ? ", " : "", STR_ARG(name));
    }
    (void)err_set(err, ERR_NOT_FOUND,
                  "template '%.*s' not found; there %s %.*s; on the server's machine: cloister template list",
                  (int)MIN(ref.len, (size_t)40), ref.at, shown > 1 ? "are" : "is", names.len ? (int)names.len : 8,
                  names.len ? names.data : "none yet");
}

/* Puts newly built templates into the store. False: there is no way to, or it failed. */
static bool refresh(const struct actions *actions)
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

    (void)refresh(actions);
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

/* A template of any owner. */
static bool find_any(const struct actions *actions, const struct caller *caller, struct str text, struct arena *arena,
                     struct template_row *out, struct err *err)
{
    struct template_ref ref;

    if (!template_ref_parse(text, arena, &ref, err))
        return false;
    if (look_up(actions, caller, &ref, arena, out, err))
        return true;
    if (is_missing(err) && refresh(actions) && look_up(actions, caller, &ref, arena, out, err))
        return true;
    if (is_missing(err))
        explain_missing(actions, caller, str_trim(text), arena, err);
    return false;
}

static bool is_foreign(const struct caller *caller, const struct template_row *row)
{
    return row->team_id.len && !str_eq(row->team_id, str_from(caller->team_id));
}

bool action_template_resolve(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_row *out, struct err *err)
{
    struct template_row row;

    if (!find_any(actions, caller, ref, arena, &row, err))
        return false;
    if (is_foreign(caller, &row)) {
        explain_missing(actions, caller, str_trim(ref), arena, err);
        return false;
    }
    *out = row;
    return true;
}

bool action_template_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                          struct template_row **out, size_t *out_count, struct err *err)
{
    (void)refresh(actions);
    return store_template_list(actions->store, str_from(caller->team_id), arena, out, out_count, err);
}
