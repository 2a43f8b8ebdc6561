/*
 * Templates that teams build, and their builds.
 *
 * A template is a row with aliases and builds. A build is registered (WAITING), begun (BUILDING) and finished (READY or
 * ERROR); nothing leads back. Its tags are assigned when it is registered (build_tags.c), and mean it from the moment it is
 * ready: one update makes layers, context and tags usable together.
 *
 * A template that is removed loses its builds, aliases and tags at once. Its row stays, so that its id is never given out
 * again. What its builds kept on disk is then referred to by no row, and store_builds_unused() finds it.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/random.h"
#include "store/inside.h"

enum { TEMPLATE_ID_CHARS = 20 };

static const int64_t SECOND_US = 1000000;

static const struct str state_name[BUILD_STATE_COUNT] = {
    [BUILD_WAITING] = STR_INIT("waiting"),
    [BUILD_BUILDING] = STR_INIT("building"),
    [BUILD_READY] = STR_INIT("ready"),
    [BUILD_ERROR] = STR_INIT("error"),
};

/* ---- reading ---- */

const struct str *list_split(struct str text, struct arena *arena, uint32_t *out_count)
{
    uint32_t count = 0, room = text.len ? 1 : 0;

    for (size_t i = 0; i < text.len; i++)
        room += text.at[i] == ',';
    struct str *items = ARENA_ARRAY(arena, struct str, room), item;
    while (count < room && str_cut(&text, ',', &item))
        items[count++] = item;
    *out_count = count;
    return items;
}

struct str list_join(const struct str *items, uint32_t count, struct arena *arena)
{
    size_t bytes = 1;

    for (uint32_t i = 0; i < count; i++)
        bytes += items[i].len + 1;
    struct buf text = buf_make(arena, bytes);
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            buf_add_char(&text, ',');
        buf_add(&text, items[i]);
    }
    return buf_str(&text);
}

static struct str read_text(const struct sql_rows *rows, struct arena *arena, int column)
{
    return arena_copy(arena, sql_row_text(rows, column));
}

static struct build_context read_context(const struct sql_rows *rows, struct arena *arena, int column)
{
    return (struct build_context){ .user = read_text(rows, arena, column),
                                   .workdir = read_text(rows, arena, column + 1),
                                   .envs = read_text(rows, arena, column + 2) };
}

void build_read(const struct sql_rows *rows, struct arena *arena, struct build_row *out)
{
    struct str state = sql_row_text(rows, 3);

    *out = (struct build_row){
        .id = read_text(rows, arena, 0),
        .template_id = read_text(rows, arena, 1),
        .team_id = read_text(rows, arena, 2),
        .state = BUILD_ERROR,
        .reason = read_text(rows, arena, 4),
        .reason_step = read_text(rows, arena, 5),
        .cpu_count = (uint32_t)sql_row_int(rows, 6),
        .memory_mb = (uint32_t)sql_row_int(rows, 7),
        .disk_mb = (uint32_t)sql_row_int(rows, 8),
        .guestd_version = read_text(rows, arena, 9),
        .created_us = sql_row_int(rows, 10),
        .updated_us = sql_row_int(rows, 11),
        .finished_us = sql_row_int(rows, 12),
        .image = read_text(rows, arena, 15),
        .context = read_context(rows, arena, 16),
        .start_cmd = read_text(rows, arena, 19),
        .ready_cmd = read_text(rows, arena, 20),
        .start_context = read_context(rows, arena, 21),
        .from_template = read_text(rows, arena, 24),
    };
    for (int i = 0; i < BUILD_STATE_COUNT; i++)
        if (str_eq(state, state_name[i]))
            out->state = (enum build_state)i;
    out->tags = list_split(read_text(rows, arena, 13), arena, &out->tag_count);
    out->layers = list_split(read_text(rows, arena, 14), arena, &out->layer_count);
}

bool build_find(struct store *store, const char *query, const struct sql_value *args, size_t count, struct arena *arena,
                struct build_row *out, bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(store->sql, query, args, count, &rows, err) || !sql_next(&rows, out_there, err))
        return false;
    if (*out_there)
        build_read(&rows, arena, out);
    return true;
}

static bool no_build(struct str id, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no build '%.*s'", (int)MIN(id.len, (size_t)60), id.at);
}

static bool get_build(struct store *store, struct str id, struct arena *arena, struct build_row *out, struct err *err)
{
    bool there;

    return build_find(store, "SELECT " BUILD_COLUMNS " FROM builds b WHERE b.id = $1 AND b.node_id = $2",
                      SQL_ARGS(sql_text(id), sql_text(str_from(store->node_id))), arena, out, &there, err) &&
           (there || no_build(id, err));
}

bool store_build_get(struct store *store, struct str build_id, struct arena *arena, struct build_row *out,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return get_build(store, build_id, arena, out, err) || err_wrap(err, "find a build");
}

bool store_build_list(struct store *store, struct str template_id, int64_t before_us, struct str before_id,
                      uint32_t limit, struct arena *arena, struct build_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       "SELECT " BUILD_COLUMNS " FROM builds b WHERE b.template_id = $1 "
                       "AND ($2 = 0 OR b.created_us < $2 OR (b.created_us = $2 AND b.id > $3)) "
                       "ORDER BY b.created_us DESC, b.id LIMIT $4",
                       SQL_ARGS(sql_text(template_id), sql_int(before_us), sql_text(before_id), sql_int(limit)), &rows,
                       err) &&
            ROWS_READ(&rows, build_read, arena, out, out_count, err)) ||
           err_wrap(err, "list builds");
}

/* ---- templates ---- */

#define BUILT_COLUMNS \
    "t.id, t.team_id, m.slug, t.is_public, t.created_us, t.updated_us, t.spawned_us, t.spawn_count, t.build_count"
#define BUILT_FROM "FROM built_templates t JOIN teams m ON m.id = t.team_id "

static void built_read(const struct sql_rows *rows, struct arena *arena, struct built_template *out)
{
    *out = (struct built_template){
        .id = read_text(rows, arena, 0),
        .team_id = read_text(rows, arena, 1),
        .team_slug = read_text(rows, arena, 2),
        .is_public = sql_row_int(rows, 3) != 0,
        .created_us = sql_row_int(rows, 4),
        .updated_us = sql_row_int(rows, 5),
        .spawned_us = sql_row_int(rows, 6),
        .spawn_count = (uint64_t)sql_row_int(rows, 7),
        .build_count = (uint64_t)sql_row_int(rows, 8),
    };
}

/* Reads what is not in the row. */
static bool built_complete(struct store *store, struct arena *arena, struct built_template *row, struct err *err)
{
    struct str *aliases;
    size_t count;
    bool there;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(store->sql,
                        "SELECT alias FROM built_aliases WHERE template_id = $1 AND owner = $2 ORDER BY alias",
                        SQL_ARGS(sql_text(row->id), sql_text(row->team_id)), &rows, err) ||
            !ROWS_READ(&rows, text_read, arena, &aliases, &count, err))
            return false;
    }
    row->aliases = aliases;
    row->alias_count = (uint32_t)count;
    if (!ask_text(store,
                  "SELECT b.id FROM build_tags g JOIN builds b ON b.id = g.build_id WHERE g.template_id = $1 "
                  "AND g.tag = 'default' AND b.state = 'ready' ORDER BY g.assigned_us DESC LIMIT 1",
                  SQL_ARGS(sql_text(row->id)), arena, &row->default_build_id, &there, err) ||
        !build_find(store,
                    "SELECT " BUILD_COLUMNS " FROM build_tags g JOIN builds b ON b.id = g.build_id "
                    "WHERE g.template_id = $1 AND g.tag = 'default' ORDER BY g.assigned_us DESC LIMIT 1",
                    SQL_ARGS(sql_text(row->id)), arena, &row->newest, &there, err))
        return false;
    return there || build_find(store,
                               "SELECT " BUILD_COLUMNS
                               " FROM builds b WHERE b.template_id = $1 ORDER BY b.created_us DESC, b.id LIMIT 1",
                               SQL_ARGS(sql_text(row->id)), arena, &row->newest, &there, err);
}

static bool built_find(struct store *store, const char *query, const struct sql_value *args, size_t count,
                       struct arena *arena, struct built_template *out, bool *out_there, struct err *err)
{
    struct built_template row;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(store->sql, query, args, count, &rows, err) || !sql_next(&rows, out_there, err))
            return false;
        if (!*out_there)
            return true;
        built_read(&rows, arena, &row);
    }
    if (!built_complete(store, arena, &row, err))
        return false;
    *out = row;
    return true;
}

static bool no_template(struct str name, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no template '%.*s'", (int)MIN(name.len, (size_t)60), name.at);
}

static bool get_built(struct store *store, struct str id, struct arena *arena, struct built_template *out,
                      struct err *err)
{
    bool there;

    return built_find(store,
                      "SELECT " BUILT_COLUMNS " " BUILT_FROM "WHERE t.id = $1 AND t.node_id = $2 AND t.removed_us = 0",
                      SQL_ARGS(sql_text(id), sql_text(str_from(store->node_id))), arena, out, &there, err) &&
           (there || no_template(id, err));
}

bool store_built_get(struct store *store, struct str id, struct arena *arena, struct built_template *out,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return get_built(store, id, arena, out, err) || err_wrap(err, "find a template");
}

bool store_built_by_alias(struct store *store, struct str team_id, struct str alias, struct arena *arena,
                          struct built_template *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    bool there;

    return (built_find(store,
                       "SELECT " BUILT_COLUMNS " " BUILT_FROM "JOIN built_aliases a ON a.template_id = t.id "
                       "WHERE a.node_id = $1 AND a.owner = $2 AND a.alias = $3",
                       SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(team_id), sql_text(alias)), arena, out,
                       &there, err) &&
            (there || no_template(alias, err))) ||
           err_wrap(err, "find a template by its alias");
}

bool store_built_list(struct store *store, struct str team_id, struct arena *arena, struct built_template **out,
                      size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct built_template *list;
    size_t count;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(store->sql,
                        "SELECT " BUILT_COLUMNS " " BUILT_FROM "WHERE t.team_id = $1 AND t.node_id = $2 "
                        "AND t.removed_us = 0 ORDER BY t.created_us, t.id",
                        SQL_ARGS(sql_text(team_id), sql_text(str_from(store->node_id))), &rows, err) ||
            !ROWS_READ(&rows, built_read, arena, &list, &count, err))
            return err_wrap(err, "list templates");
    }
    for (size_t i = 0; i < count; i++)
        if (!built_complete(store, arena, &list[i], err))
            return err_wrap(err, "list templates");
    *out = list;
    *out_count = count;
    return true;
}

/* ---- registering ---- */

static bool shares_tag(const struct build_row *build, const struct str *tags, uint32_t count)
{
    for (uint32_t i = 0; i < build->tag_count; i++)
        for (uint32_t k = 0; k < count; k++)
            if (str_eq(build->tags[i], tags[k]))
                return true;
    return false;
}

/* Builds of a template in this state that share a tag. */
static bool sharing(struct store *store, struct str template_id, enum build_state state, const struct str *tags,
                    uint32_t tag_count, struct arena *arena, struct str **out_ids, size_t *out_count, struct err *err)
{
    struct build_row *list;
    size_t count, kept = 0;

    auto_rows struct sql_rows rows = { 0 };
    if (!sql_select(store->sql,
                    "SELECT " BUILD_COLUMNS " FROM builds b WHERE b.template_id = $1 AND b.state = $2 "
                    "AND b.node_id = $3 ORDER BY b.created_us, b.id",
                    SQL_ARGS(sql_text(template_id), sql_text(state_name[state]), sql_text(str_from(store->node_id))),
                    &rows, err) ||
        !ROWS_READ(&rows, build_read, arena, &list, &count, err))
        return false;
    struct str *ids = ARENA_ARRAY(arena, struct str, count);
    for (size_t i = 0; i < count; i++)
        if (shares_tag(&list[i], tags, tag_count))
            ids[kept++] = list[i].id;
    *out_ids = ids;
    *out_count = kept;
    return true;
}

static bool fail_build(struct store *store, struct str id, struct str reason, int64_t now_us, struct err *err)
{
    return sql_exec(store->sql,
                    "UPDATE builds SET state = 'error', reason = $1, updated_us = $2, finished_us = $2 WHERE id = $3",
                    SQL_ARGS(sql_text(reason), sql_int(now_us), sql_text(id)), err);
}

static bool expire(struct store *store, int64_t before_us, int64_t now_us, struct err *err)
{
    return sql_exec(store->sql,
                    "UPDATE builds SET state = 'error', reason = 'the build was registered and never started', "
                    "updated_us = $1, finished_us = $1 WHERE state = 'waiting' AND created_us < $2 AND node_id = $3",
                    SQL_ARGS(sql_int(now_us), sql_int(before_us), sql_text(str_from(store->node_id))), err);
}

static bool supersede(struct store *store, struct str template_id, const struct build_registration *want,
                      int64_t now_us, struct arena *arena, struct err *err)
{
    struct str *ids;
    size_t count;

    if (!expire(store, now_us - LIMIT_BUILD_WAITING_S * SECOND_US, now_us, err) ||
        !sharing(store, template_id, BUILD_WAITING, want->tags, want->tag_count, arena, &ids, &count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!fail_build(store, ids[i], STR("the build was superseded by a newer one of the same tag"), now_us, err))
            return false;
    return true;
}

static bool has_places(struct store *store, struct str team_id, struct err *err)
{
    struct sql_value team = sql_text(team_id), node = sql_text(str_from(store->node_id));
    uint64_t running, waiting;

    if (!ask_number(store, "SELECT COUNT(*) FROM builds WHERE team_id = $1 AND state = 'building' AND node_id = $2",
                    SQL_ARGS(team, node), &running, err) ||
        !ask_number(store, "SELECT COUNT(*) FROM builds WHERE team_id = $1 AND state = 'waiting' AND node_id = $2",
                    SQL_ARGS(team, node), &waiting, err))
        return false;
    if (running >= LIMIT_BUILDS_TEAM)
        return err_set(err, ERR_LIMIT,
                       "%llu builds of this team are running, the most at once: wait for one of them to end",
                       (unsigned long long)running);
    if (waiting >= LIMIT_BUILDS_WAITING)
        return err_set(
            err, ERR_LIMIT,
            "%llu builds of this team are registered and not started, the most at once: start them, or delete "
            "their templates",
            (unsigned long long)waiting);
    return true;
}

/* Old builds go when there are too many: the oldest ones that have ended and that no tag means. */
static bool prune(struct store *store, struct str template_id, struct err *err)
{
    uint64_t count;

    if (!ask_number(store, "SELECT COUNT(*) FROM builds WHERE template_id = $1", SQL_ARGS(sql_text(template_id)),
                    &count, err))
        return false;
    if (count < LIMIT_BUILDS_KEPT)
        return true;
    if (!sql_exec(store->sql,
                  "DELETE FROM builds WHERE id IN (SELECT b.id FROM builds b WHERE b.template_id = $1 "
                  "AND b.state IN ('ready', 'error') AND NOT EXISTS (SELECT 1 FROM build_tags g "
                  "WHERE g.build_id = b.id AND b.state = 'ready' AND NOT EXISTS (SELECT 1 FROM build_tags n "
                  "JOIN builds r ON r.id = n.build_id WHERE n.template_id = g.template_id AND n.tag = g.tag "
                  "AND n.assigned_us > g.assigned_us AND r.state = 'ready')) ORDER BY b.created_us, b.id LIMIT $2)",
                  SQL_ARGS(sql_text(template_id), sql_int((int64_t)(count - LIMIT_BUILDS_KEPT + 1))), err))
        return false;
    return sql_changed(store->sql) > 0 ||
           err_set(err, ERR_LIMIT,
                   "the template has %llu builds, each with a tag, the most that it may have: remove "
                   "tags that are not needed",
                   (unsigned long long)count);
}

static bool is_id_of_template(struct store *store, struct str alias, bool *out, struct err *err)
{
    uint64_t count;

    if (!ask_number(store,
                    "SELECT (SELECT COUNT(*) FROM built_templates WHERE id = $1) + (SELECT COUNT(*) FROM templates "
                    "WHERE id = $1) + (SELECT COUNT(*) FROM snapshots WHERE template_id = $1)",
                    SQL_ARGS(sql_text(alias)), &count, err))
        return false;
    *out = count > 0;
    return true;
}

static bool make_template(struct store *store, const struct build_registration *want, int64_t now_us,
                          struct arena *arena, struct str *out_id, struct err *err)
{
    struct sql_value node = sql_text(str_from(store->node_id));
    char id[TEMPLATE_ID_CHARS + 1];
    uint64_t count;
    bool is_id;

    if (!is_id_of_template(store, want->alias, &is_id, err) ||
        !ask_number(store,
                    "SELECT COUNT(*) FROM built_templates WHERE team_id = $1 AND node_id = $2 AND removed_us = 0",
                    SQL_ARGS(sql_text(want->team_id), node), &count, err))
        return false;
    if (is_id)
        return err_set(err, ERR_CONFLICT, "'%.*s' is the id of a template: choose another name",
                       (int)MIN(want->alias.len, (size_t)60), want->alias.at);
    if (count >= LIMIT_TEMPLATES_TEAM)
        return err_set(err, ERR_LIMIT,
                       "this team has %llu templates, the most that it may have: delete some that are not needed",
                       (unsigned long long)count);
    random_id(id, TEMPLATE_ID_CHARS);
    *out_id = arena_copy(arena, str_from(id));
    return sql_exec(store->sql,
                    "INSERT INTO built_templates (id, team_id, node_id, created_us, updated_us) "
                    "VALUES ($1, $2, $3, $4, $4)",
                    SQL_ARGS(sql_text(*out_id), sql_text(want->team_id), node, sql_int(now_us)), err) &&
           sql_exec(store->sql,
                    "INSERT INTO built_aliases (node_id, owner, alias, template_id) VALUES ($1, $2, $3, $4)",
                    SQL_ARGS(node, sql_text(want->team_id), sql_text(want->alias), sql_text(*out_id)), err);
}

static bool template_of_alias(struct store *store, const struct build_registration *want, int64_t now_us,
                              struct arena *arena, struct str *out_id, struct err *err)
{
    bool there;

    if (!ask_text(store, "SELECT template_id FROM built_aliases WHERE node_id = $1 AND owner = $2 AND alias = $3",
                  SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(want->team_id), sql_text(want->alias)), arena,
                  out_id, &there, err))
        return false;
    return there || make_template(store, want, now_us, arena, out_id, err);
}

static bool build_write(struct store *store, const struct build_registration *want, struct str template_id,
                        struct str id, int64_t now_us, struct arena *arena, struct err *err)
{
    return sql_exec(store->sql,
                    "INSERT INTO builds (id, template_id, team_id, node_id, state, cpu_count, memory_mb, "
                    "guestd_version, created_us, updated_us, tags) "
                    "VALUES ($1, $2, $3, $4, 'waiting', $5, $6, $7, $8, $8, $9)",
                    SQL_ARGS(sql_text(id), sql_text(template_id), sql_text(want->team_id),
                             sql_text(str_from(store->node_id)), sql_int(want->cpu_count), sql_int(want->memory_mb),
                             sql_text(want->guestd_version), sql_int(now_us),
                             sql_text(list_join(want->tags, want->tag_count, arena))),
                    err) &&
           tags_write(store, template_id, id, want->tags, want->tag_count, err) &&
           sql_exec(store->sql,
                    "UPDATE built_templates SET build_count = build_count + 1, updated_us = $1 WHERE id = $2",
                    SQL_ARGS(sql_int(now_us), sql_text(template_id)), err);
}

static bool register_build(struct store *store, const struct build_registration *want, struct arena *arena,
                           struct built_template *out_template, struct build_row *out_build, struct err *err)
{
    int64_t now_us = clock_wall_us();
    struct str template_id, build_id;
    char id[STORE_UUID_BYTES];

    random_uuid(id);
    build_id = arena_copy(arena, str_from(id));
    return template_of_alias(store, want, now_us, arena, &template_id, err) &&
           supersede(store, template_id, want, now_us, arena, err) && has_places(store, want->team_id, err) &&
           prune(store, template_id, err) && build_write(store, want, template_id, build_id, now_us, arena, err) &&
           get_built(store, template_id, arena, out_template, err) && get_build(store, build_id, arena, out_build, err);
}

bool store_build_register(struct store *store, const struct build_registration *want, struct arena *arena,
                          struct built_template *out_template, struct build_row *out_build, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct built_template template;
    struct build_row build;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "register a build");
    bool ok = register_build(store, want, arena, &template, &build, err);
    if (!sql_end(store->sql, ok, err))
        return err_wrap(err, "register a build");
    *out_template = template;
    *out_build = build;
    return true;
}

/* ---- the life of a build ---- */

bool store_build_begin(struct store *store, struct str build_id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_exec(store->sql,
                  "UPDATE builds SET state = 'building', updated_us = $1 WHERE id = $2 AND state = 'waiting' "
                  "AND node_id = $3",
                  SQL_ARGS(sql_int(clock_wall_us()), sql_text(build_id), sql_text(str_from(store->node_id))), err))
        return err_wrap(err, "begin a build");
    return sql_changed(store->sql) == 1 || err_set(err, ERR_CONFLICT, "build is not in waiting state");
}

static bool layers_write(struct store *store, const struct build_row *row, const struct build_row *before,
                         struct err *err)
{
    for (uint32_t i = 0; i < row->layer_count; i++)
        if (!sql_exec(store->sql,
                      "INSERT INTO build_layers (build_id, layer, template_id, team_id) VALUES ($1, $2, $3, $4) "
                      "ON CONFLICT DO NOTHING",
                      SQL_ARGS(sql_text(row->id), sql_text(row->layers[i]), sql_text(before->template_id),
                               sql_text(before->team_id)),
                      err))
            return false;
    return true;
}

static bool write_ready(struct store *store, const struct build_row *row, const struct build_row *before,
                        int64_t now_us, struct arena *arena, struct err *err)
{
    if (row->layer_count == 0 || row->layer_count > LIMIT_LAYERS)
        return err_set(err, ERR_INTERNAL, "a build of %u layers, where 1 to %d are possible", row->layer_count,
                       LIMIT_LAYERS);
    return sql_exec(store->sql,
                    "UPDATE builds SET state = 'ready', updated_us = $1, finished_us = $1, layers = $2, image = $3, "
                    "run_user = $4, run_workdir = $5, run_envs = $6, start_cmd = $7, ready_cmd = $8, start_user = $9, "
                    "start_workdir = $10, start_envs = $11, disk_mb = $12, guestd_version = $13, "
                    "from_template = $14 WHERE id = $15",
                    SQL_ARGS(sql_int(now_us), sql_text(list_join(row->layers, row->layer_count, arena)),
                             sql_text(row->image), sql_text(row->context.user), sql_text(row->context.workdir),
                             sql_text(row->context.envs), sql_text(row->start_cmd), sql_text(row->ready_cmd),
                             sql_text(row->start_context.user), sql_text(row->start_context.workdir),
                             sql_text(row->start_context.envs), sql_int(row->disk_mb), sql_text(row->guestd_version),
                             sql_text(row->from_template), sql_text(row->id)),
                    err) &&
           kept_write(
               store,
               &(struct kept_row){ .id = row->image,
                                   .team_id = before->team_id,
                                   .step = arena_format(arena, "START %.*s", (int)MIN(row->start_cmd.len, (size_t)4000),
                                                        row->start_cmd.at),
                                   .bytes = row->image_bytes,
                                   .layer_bytes = row->image_bytes },
               err) &&
           layers_write(store, row, before, err) && tags_ready(store, row->id, err);
}

static bool finish(struct store *store, const struct build_row *row, struct arena *arena, struct err *err)
{
    int64_t now_us = clock_wall_us();
    struct build_row before;

    if (!get_build(store, row->id, arena, &before, err))
        return false;
    if (before.state == BUILD_READY || before.state == BUILD_ERROR)
        return err_set(err, ERR_CONFLICT, "the build has ended already");
    if (row->state == BUILD_READY ? !write_ready(store, row, &before, now_us, arena, err)
                                  : !fail_build(store, row->id, row->reason, now_us, err) ||
                                        !sql_exec(store->sql, "UPDATE builds SET reason_step = $1 WHERE id = $2",
                                                  SQL_ARGS(sql_text(row->reason_step), sql_text(row->id)), err))
        return false;
    return sql_exec(store->sql, "UPDATE built_templates SET updated_us = $1 WHERE id = $2",
                    SQL_ARGS(sql_int(now_us), sql_text(before.template_id)), err);
}

bool store_build_finish(struct store *store, const struct build_row *row, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "finish a build");
    arena_init(&scratch);
    bool ok = finish(store, row, &scratch, err);
    arena_done(&scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "finish a build");
}

bool store_builds_cut_off(struct store *store, const char *reason, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql,
                    "UPDATE builds SET state = 'error', reason = $1, updated_us = $2, finished_us = $2 "
                    "WHERE state = 'building' AND node_id = $3",
                    SQL_ARGS(sql_text(str_from(reason)), sql_int(clock_wall_us()), sql_text(str_from(store->node_id))),
                    err) ||
           err_wrap(err, "end builds that were cut off");
}

bool store_builds_expire(struct store *store, int64_t before_us, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return expire(store, before_us, clock_wall_us(), err) || err_wrap(err, "end builds that were never started");
}

bool store_builds_running(struct store *store, struct str template_id, const struct str *tags, uint32_t tag_count,
                          struct arena *arena, struct str **out_ids, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sharing(store, template_id, BUILD_BUILDING, tags, tag_count, arena, out_ids, out_count, err) ||
           err_wrap(err, "list running builds");
}

bool store_builds_running_of_team(struct store *store, struct str team_id, struct arena *arena, struct str **out_ids,
                                  size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       "SELECT id FROM builds WHERE team_id = $1 AND state = 'building' AND node_id = $2 ORDER BY id",
                       SQL_ARGS(sql_text(team_id), sql_text(str_from(store->node_id))), &rows, err) &&
            ROWS_READ(&rows, text_read, arena, out_ids, out_count, err)) ||
           err_wrap(err, "list a team's running builds");
}

/* ---- changing a template ---- */

static bool claim_aliases(struct store *store, const struct built_template *template, struct err *err)
{
    for (uint32_t i = 0; i < template->alias_count; i++) {
        if (!sql_exec(
                store->sql,
                "INSERT INTO built_aliases (node_id, owner, alias, template_id) VALUES ($1, '', $2, $3) "
                "ON CONFLICT (node_id, owner, alias) DO UPDATE SET template_id = excluded.template_id "
                "WHERE built_aliases.template_id = excluded.template_id",
                SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(template->aliases[i]), sql_text(template->id)),
                err))
            return false;
        if (sql_changed(store->sql) != 1)
            return err_set(err, ERR_CONFLICT, "the name '%.*s' is taken by a public template of another team",
                           (int)MIN(template->aliases[i].len, (size_t)60), template->aliases[i].at);
    }
    return true;
}

static bool publish(struct store *store, struct str id, bool is_public, bool claim, struct arena *arena,
                    struct err *err)
{
    struct built_template template;

    if (!get_built(store, id, arena, &template, err) ||
        !sql_exec(store->sql, "UPDATE built_templates SET is_public = $1, updated_us = $2 WHERE id = $3",
                  SQL_ARGS(sql_int(is_public), sql_int(clock_wall_us()), sql_text(id)), err))
        return false;
    if (!is_public)
        return sql_exec(store->sql, "DELETE FROM built_aliases WHERE template_id = $1 AND owner = ''",
                        SQL_ARGS(sql_text(id)), err);
    return !claim || claim_aliases(store, &template, err);
}

bool store_built_publish(struct store *store, struct str id, bool is_public, bool claim, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "publish a template");
    arena_init(&scratch);
    bool ok = publish(store, id, is_public, claim, &scratch, err);
    arena_done(&scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "publish a template");
}

static bool remove_built(struct store *store, struct str id, struct arena *scratch, struct err *err)
{
    struct built_template template;
    struct sql_value key = sql_text(id);

    return get_built(store, id, scratch, &template, err) &&
           template_unused(store, id, template.team_id, scratch, err) &&
           sql_exec(store->sql, "UPDATE built_templates SET removed_us = $1 WHERE id = $2",
                    SQL_ARGS(sql_int(clock_wall_us()), key), err) &&
           sql_exec(store->sql, "DELETE FROM built_aliases WHERE template_id = $1", SQL_ARGS(key), err) &&
           sql_exec(store->sql, "DELETE FROM build_tags WHERE template_id = $1", SQL_ARGS(key), err) &&
           sql_exec(store->sql, "DELETE FROM builds WHERE template_id = $1", SQL_ARGS(key), err);
}

bool store_built_remove(struct store *store, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "remove a template");
    arena_init(&scratch);
    bool ok = remove_built(store, id, &scratch, err);
    arena_done(&scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove a template");
}

bool store_built_spawned(struct store *store, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql,
                    "UPDATE built_templates SET spawn_count = spawn_count + 1, spawned_us = $1 WHERE id = $2",
                    SQL_ARGS(sql_int(clock_wall_us()), sql_text(id)), err) ||
           err_wrap(err, "count a sandbox of a template");
}
