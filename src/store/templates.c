/*
 * A template is a row, its layers in order, and its aliases. An alias belongs to an owner: a team's id, or '' when every
 * team may use it.
 */
#include "store/inside.h"

#define TEMPLATE_COLUMNS "t.id, t.team_id, t.cpu_count, t.memory_mb, t.disk_mb, t.guestd_version, t.created_us"

static bool texts_read(struct sql *sql, const char *query, struct str template_id, struct arena *arena,
                       const struct str **out, uint32_t *out_count, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct str *texts;
    size_t count;

    if (!sql_select(sql, query, SQL_ARGS(sql_text(template_id)), &rows, err) ||
        !ROWS_READ(&rows, text_read, arena, &texts, &count, err))
        return false;
    *out = texts;
    *out_count = (uint32_t)count;
    return true;
}

/* Reads the layers and aliases of a row. */
static bool template_complete(struct sql *sql, struct arena *arena, struct template_row *row, struct err *err)
{
    return texts_read(sql, "SELECT layer FROM template_layers WHERE template_id = $1 ORDER BY position", row->id, arena,
                      &row->layers, &row->layer_count, err) &&
           texts_read(sql, "SELECT alias FROM template_aliases WHERE template_id = $1 ORDER BY alias", row->id, arena,
                      &row->aliases, &row->alias_count, err);
}

static void template_read(const struct sql_rows *rows, struct arena *arena, struct template_row *out)
{
    *out = (struct template_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .team_id = arena_copy(arena, sql_row_text(rows, 1)),
        .cpu_count = (uint32_t)sql_row_int(rows, 2),
        .memory_mb = (uint32_t)sql_row_int(rows, 3),
        .disk_mb = (uint32_t)sql_row_int(rows, 4),
        .guestd_version = arena_copy(arena, sql_row_text(rows, 5)),
        .created_us = sql_row_int(rows, 6),
    };
}

/* At most one row; *out_there says whether. */
static bool template_find(struct sql *sql, const char *query, const struct sql_value *args, size_t count,
                          struct arena *arena, struct template_row *out, bool *out_there, struct err *err)
{
    struct template_row row;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(sql, query, args, count, &rows, err) || !sql_next(&rows, out_there, err))
            return false;
        if (!*out_there)
            return true;
        template_read(&rows, arena, &row);
    }
    if (!template_complete(sql, arena, &row, err))
        return false;
    *out = row;
    return true;
}

static bool by_id(struct sql *sql, struct str id, struct arena *arena, struct template_row *out, bool *out_there,
                  struct err *err)
{
    return template_find(sql, "SELECT " TEMPLATE_COLUMNS " FROM templates t WHERE t.id = $1", SQL_ARGS(sql_text(id)),
                         arena, out, out_there, err);
}

bool store_template_get(struct store *store, struct str id, struct arena *arena, struct template_row *out,
                        struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    bool there;

    if (!by_id(store->sql, id, arena, out, &there, err))
        return err_wrap(err, "find a template");
    return there || err_set(err, ERR_NOT_FOUND, "there is no template '%.*s'", (int)MIN(id.len, (size_t)60), id.at);
}

bool store_template_by_alias(struct store *store, struct str team_id, struct str alias, struct arena *arena,
                             struct template_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    bool there;

    if (!template_find(store->sql,
                       "SELECT " TEMPLATE_COLUMNS " FROM templates t JOIN template_aliases a ON a.template_id = t.id "
                       "WHERE a.owner = $1 AND a.alias = $2",
                       SQL_ARGS(sql_text(team_id), sql_text(alias)), arena, out, &there, err))
        return err_wrap(err, "find a template by its alias");
    return there ||
           err_set(err, ERR_NOT_FOUND, "there is no template '%.*s'", (int)MIN(alias.len, (size_t)60), alias.at);
}

bool store_template_list(struct store *store, struct str team_id, struct arena *arena, struct template_row **out,
                         size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct template_row *list;
    size_t count;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(store->sql,
                        "SELECT " TEMPLATE_COLUMNS " FROM templates t WHERE t.team_id IS NULL OR t.team_id = $1 "
                        "ORDER BY t.created_us, t.id",
                        SQL_ARGS(sql_text(team_id)), &rows, err) ||
            !ROWS_READ(&rows, template_read, arena, &list, &count, err))
            return err_wrap(err, "list templates");
    }
    for (size_t i = 0; i < count; i++)
        if (!template_complete(store->sql, arena, &list[i], err))
            return err_wrap(err, "list templates");
    *out = list;
    *out_count = count;
    return true;
}

/* ---- writing ---- */

static bool has_text(const struct str *texts, size_t count, struct str wanted)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(texts[i], wanted))
            return true;
    return false;
}

/* Aliases have no order of their own; layers do. */
static bool same_template(const struct template_row *a, const struct template_row *b)
{
    if (!str_eq(a->team_id, b->team_id) || a->cpu_count != b->cpu_count || a->memory_mb != b->memory_mb ||
        a->disk_mb != b->disk_mb || !str_eq(a->guestd_version, b->guestd_version) || a->created_us != b->created_us ||
        a->layer_count != b->layer_count || a->alias_count != b->alias_count)
        return false;
    for (uint32_t i = 0; i < a->layer_count; i++)
        if (!str_eq(a->layers[i], b->layers[i]))
            return false;
    for (uint32_t i = 0; i < a->alias_count; i++)
        if (!has_text(b->aliases, b->alias_count, a->aliases[i]))
            return false;
    return true;
}

static bool template_write(struct store *store, const struct template_row *row, struct err *err)
{
    struct sql *sql = store->sql;

    if (!sql_exec(sql,
                  "INSERT INTO templates (id, team_id, cpu_count, memory_mb, disk_mb, guestd_version, created_us, "
                  "node_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO UPDATE SET "
                  "team_id = excluded.team_id, cpu_count = excluded.cpu_count, memory_mb = excluded.memory_mb, "
                  "disk_mb = excluded.disk_mb, guestd_version = excluded.guestd_version, "
                  "created_us = excluded.created_us, node_id = excluded.node_id",
                  SQL_ARGS(sql_text(row->id), sql_text_or_null(row->team_id), sql_int(row->cpu_count),
                           sql_int(row->memory_mb), sql_int(row->disk_mb), sql_text(row->guestd_version),
                           sql_int(row->created_us), sql_text(str_from(store->node_id))),
                  err) ||
        !sql_exec(sql, "DELETE FROM template_layers WHERE template_id = $1", SQL_ARGS(sql_text(row->id)), err) ||
        !sql_exec(sql, "DELETE FROM template_aliases WHERE template_id = $1", SQL_ARGS(sql_text(row->id)), err))
        return false;
    for (uint32_t i = 0; i < row->layer_count; i++)
        if (!sql_exec(sql, "INSERT INTO template_layers (template_id, position, layer) VALUES ($1, $2, $3)",
                      SQL_ARGS(sql_text(row->id), sql_int(i), sql_text(row->layers[i])), err))
            return false;
    for (uint32_t i = 0; i < row->alias_count; i++)
        if (!sql_exec(sql,
                      "INSERT INTO template_aliases (owner, alias, template_id) VALUES ($1, $2, $3) "
                      "ON CONFLICT (owner, alias) DO UPDATE SET template_id = excluded.template_id",
                      SQL_ARGS(sql_text(row->team_id), sql_text(row->aliases[i]), sql_text(row->id)), err))
            return false;
    return true;
}

bool store_template_put(struct store *store, const struct template_row *row, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct template_row old = { 0 };
    struct arena scratch;
    bool there;

    /* Called at every start and for each unknown name: without this check each call would cost an fsync. */
    arena_init(&scratch);
    /* One that another node has put is put again: it is this node's from now on. */
    bool ok =
        template_find(store->sql, "SELECT " TEMPLATE_COLUMNS " FROM templates t WHERE t.id = $1 AND t.node_id = $2",
                      SQL_ARGS(sql_text(row->id), sql_text(str_from(store->node_id))), &scratch, &old, &there, err);
    bool same = ok && there && same_template(&old, row);
    arena_done(&scratch);
    if (same)
        return true;
    if (!ok || !sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "put template %.*s", STR_ARG(row->id));
    ok = template_write(store, row, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "put template %.*s", STR_ARG(row->id));
}

/* With the lock held. */
static bool template_remove(struct store *store, struct str id, struct err *err)
{
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "remove a template");
    bool ok = sql_exec(store->sql, "DELETE FROM templates WHERE id = $1", SQL_ARGS(sql_text(id)), err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove a template");
}

bool store_template_remove(struct store *store, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return template_remove(store, id, err);
}

static bool templates_of_node(struct store *store, struct arena *arena, struct str **out, size_t *out_count,
                              struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, "SELECT id FROM templates WHERE node_id = $1",
                       SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err) &&
            ROWS_READ(&rows, text_read, arena, out, out_count, err)) ||
           err_wrap(err, "list this node's templates");
}

bool store_template_keep(struct store *store, const struct str *ids, size_t count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;
    struct str *known;
    size_t known_count;

    arena_init(&scratch);
    bool ok = templates_of_node(store, &scratch, &known, &known_count, err);
    for (size_t i = 0; ok && i < known_count; i++)
        ok = has_text(ids, count, known[i]) || template_remove(store, known[i], err);
    arena_done(&scratch);
    return ok;
}
