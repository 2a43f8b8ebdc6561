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

static void team_read(const struct sql_rows *rows, struct arena *arena, struct team_row *out)
{
    *out = (struct team_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .slug = arena_copy(arena, sql_row_text(rows, 1)),
        .name = arena_copy(arena, sql_row_text(rows, 2)),
        .is_default = sql_row_int(rows, 3) != 0,
    };
}

bool store_team_list(struct store *store, struct arena *arena, struct team_row **out, size_t *out_count,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, "SELECT id, slug, name, is_default FROM teams ORDER BY created_us, id", SQL_NO_ARGS,
                       &rows, err) &&
            ROWS_READ(&rows, team_read, arena, out, out_count, err)) ||
           err_wrap(err, "list teams");
}

bool store_team_get(struct store *store, struct str id, struct arena *arena, struct team_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, "SELECT id, slug, name, is_default FROM teams WHERE id = $1", SQL_ARGS(sql_text(id)),
                    &rows, err) ||
        !sql_next(&rows, &there, err))
        return err_wrap(err, "find a team");
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no team '%.*s'", (int)MIN(id.len, (size_t)36), id.at);
    team_read(&rows, arena, out);
    return true;
}
