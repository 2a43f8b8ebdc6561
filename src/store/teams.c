#include "base/clock.h"
#include "base/random.h"
#include "store/inside.h"

bool teams_load(struct store *store, struct err *err)
{
    char id[STORE_UUID_BYTES];
    bool there;

    random_uuid(id);
    if (!sql_exec(store->sql,
                  "INSERT INTO teams (id, slug, name, is_default, created_us) VALUES ($1, 'default', 'Default', 1, $2) "
                  "ON CONFLICT (slug) DO NOTHING",
                  SQL_ARGS(sql_text(str_from(id)), sql_int(clock_wall_us())), err))
        return false;
    auto_rows struct sql_rows rows = { 0 };
    if (!sql_select(store->sql, "SELECT id FROM teams WHERE is_default = 1", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    struct str found = there ? sql_row_text(&rows, 0) : STR("");
    return str_to_path(found, store->default_team, sizeof store->default_team, err) ||
           err_wrap(err, "find the default team");
}

struct str store_team_default(const struct store *store)
{
    return str_from(store->default_team);
}

#define TEAM_SELECT                                                                                           \
    "SELECT t.id, t.slug, t.name, t.is_default, (SELECT COUNT(*) FROM api_keys k WHERE k.team_id = t.id AND " \
    "k.revoked_us IS NULL) FROM teams t "

static void team_read(const struct sql_rows *rows, struct arena *arena, struct team_row *out)
{
    *out = (struct team_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .slug = arena_copy(arena, sql_row_text(rows, 1)),
        .name = arena_copy(arena, sql_row_text(rows, 2)),
        .is_default = sql_row_int(rows, 3) != 0,
        .key_count = (uint32_t)sql_row_int(rows, 4),
    };
}

bool store_team_list(struct store *store, struct arena *arena, struct team_row **out, size_t *out_count,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, TEAM_SELECT "ORDER BY t.created_us, t.id", SQL_NO_ARGS, &rows, err) &&
            ROWS_READ(&rows, team_read, arena, out, out_count, err)) ||
           err_wrap(err, "list teams");
}

/* The caller holds the lock. */
static bool team_find(struct store *store, const char *query, struct str id, struct arena *arena, struct team_row *out,
                      struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, query, SQL_ARGS(sql_text(id)), &rows, err) || !sql_next(&rows, &there, err))
        return err_wrap(err, "find a team");
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no team '%.*s'", (int)MIN(id.len, (size_t)36), id.at);
    team_read(&rows, arena, out);
    return true;
}

static bool team_get(struct store *store, struct str id, struct arena *arena, struct team_row *out, struct err *err)
{
    return team_find(store, TEAM_SELECT "WHERE t.id = $1", id, arena, out, err);
}

bool store_team_by_slug(struct store *store, struct str slug, struct arena *arena, struct team_row *out,
                        struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return team_find(store, TEAM_SELECT "WHERE t.slug = $1", slug, arena, out, err);
}

bool store_team_get(struct store *store, struct str id, struct arena *arena, struct team_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return team_get(store, id, arena, out, err);
}

bool store_team_add(struct store *store, struct str slug, struct arena *arena, struct team_row *out, struct err *err)
{
    char id[STORE_UUID_BYTES];

    random_uuid(id);
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a team");
    bool ok = sql_exec(store->sql,
                       "INSERT INTO teams (id, slug, name, is_default, created_us) VALUES ($1, $2, $2, 0, $3) "
                       "ON CONFLICT (slug) DO NOTHING",
                       SQL_ARGS(sql_text(str_from(id)), sql_text(slug), sql_int(clock_wall_us())), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_CONFLICT, "there is a team '%.*s' already", (int)MIN(slug.len, (size_t)60), slug.at);
    ok = ok && team_get(store, str_from(id), arena, out, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add a team");
}

/* A team that has any of these is not removed; `what` tells the caller. */
static const struct {
    const char *query, *what;
} team_has[] = {
    { "SELECT COUNT(*) FROM api_keys WHERE team_id = $1 AND revoked_us IS NULL", "API key(s): revoke them first" },
    { "SELECT COUNT(*) FROM sandboxes WHERE team_id = $1",
      "sandbox(es) that start, run or end: try again in a moment" },
    { "SELECT COUNT(*) FROM templates WHERE team_id = $1", "template(s): delete them first" },
    { "SELECT COUNT(*) FROM snapshots WHERE team_id = $1 AND removed = 0", "snapshot(s): delete them first" },
    { "SELECT COUNT(*) FROM built_templates WHERE team_id = $1 AND removed_us = 0", "template(s): delete them first" },
};

static bool team_is_empty(struct store *store, struct str id, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(team_has); i++) {
        auto_rows struct sql_rows rows = { 0 };
        bool there;
        if (!sql_select(store->sql, team_has[i].query, SQL_ARGS(sql_text(id)), &rows, err) ||
            !sql_next(&rows, &there, err))
            return false;
        int64_t count = there ? sql_row_int(&rows, 0) : 0;
        if (count)
            return err_set(err, ERR_CONFLICT, "the team has %lld %s", (long long)count, team_has[i].what);
    }
    return true;
}

bool store_team_remove(struct store *store, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "remove a team");
    bool ok = team_is_empty(store, id, err) &&
              sql_exec(store->sql, "DELETE FROM api_keys WHERE team_id = $1", SQL_ARGS(sql_text(id)), err) &&
              sql_exec(store->sql, "DELETE FROM built_templates WHERE team_id = $1", SQL_ARGS(sql_text(id)), err) &&
              sql_exec(store->sql, "DELETE FROM cached_steps WHERE team_id = $1", SQL_ARGS(sql_text(id)), err) &&
              sql_exec(store->sql, "DELETE FROM teams WHERE id = $1 AND is_default = 0", SQL_ARGS(sql_text(id)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "there is no team '%.*s' to remove", (int)MIN(id.len, (size_t)36), id.at);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove a team");
}
