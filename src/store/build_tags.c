/*
 * Tags of builds. Each assignment is a row that is never changed. A tag means the newest one whose build is ready, so it
 * goes on to mean the build before while a new one is made, and after it has failed. newest_tags has that one of each tag: a
 * list of tags does not read their history, which can be a hundred times as long.
 */
#include "base/clock.h"
#include "base/random.h"
#include "store/inside.h"

static bool is_uuid(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? s.at[i] != '-' : !s.at[i] || !strchr("0123456789abcdef", s.at[i]))
            return false;
    return s.len == STORE_UUID_BYTES - 1;
}

static void tag_read(const struct sql_rows *rows, struct arena *arena, struct tag_row *out)
{
    *out = (struct tag_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tag = arena_copy(arena, sql_row_text(rows, 1)),
        .build_id = arena_copy(arena, sql_row_text(rows, 2)),
        .assigned_us = sql_row_int(rows, 3),
        .build_created_us = sql_row_int(rows, 4),
        .build_finished_us = sql_row_int(rows, 5),
    };
}

#define TAG_SELECT "SELECT g.id, g.tag, g.build_id, g.assigned_us, b.created_us, b.finished_us FROM "

bool store_tag_list(struct store *store, const struct tag_filter *filter, struct arena *arena, struct tag_row **out,
                    size_t *out_count, struct err *err)
{
    static const char all[] = TAG_SELECT
        "build_tags g JOIN builds b ON b.id = g.build_id WHERE g.template_id = $1 AND b.state = 'ready' "
        "AND ($2 = '' OR g.tag = $2) AND ($3 = 0 OR g.assigned_us < $3) ORDER BY g.tag, g.assigned_us DESC LIMIT $4";
    /* CROSS JOIN: in this order, because SQLite does not know how much of the history is not the newest. */
    static const char newest[] = TAG_SELECT
        "newest_tags n CROSS JOIN build_tags g CROSS JOIN builds b WHERE n.template_id = $1 AND ($2 = '' OR n.tag = "
        "$2) "
        "AND g.template_id = n.template_id AND g.tag = n.tag AND g.assigned_us = n.assigned_us AND b.id = g.build_id "
        "AND ($3 = 0 OR n.assigned_us < $3) ORDER BY n.tag LIMIT $4";
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, filter->newest_only ? newest : all,
                       SQL_ARGS(sql_text(filter->template_id), sql_text(filter->tag), sql_int(filter->before_us),
                                sql_int(filter->limit)),
                       &rows, err) &&
            ROWS_READ(&rows, tag_read, arena, out, out_count, err)) ||
           err_wrap(err, "list tags");
}

bool store_build_by_tag(struct store *store, struct str template_id, struct str tag, struct arena *arena,
                        struct build_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct sql_value node = sql_text(str_from(store->node_id));
    bool there;

    if (!tag.len)
        tag = STR("default");
    if (is_uuid(tag) ? !build_find(store,
                                   "SELECT " BUILD_COLUMNS " FROM builds b WHERE b.template_id = $1 AND b.id = $2 "
                                   "AND b.state = 'ready' AND b.node_id = $3",
                                   SQL_ARGS(sql_text(template_id), sql_text(tag), node), arena, out, &there, err)
                     : !build_find(store,
                                   "SELECT " BUILD_COLUMNS " FROM build_tags g JOIN builds b ON b.id = g.build_id "
                                   "WHERE g.template_id = $1 AND g.tag = $2 AND b.state = 'ready' AND b.node_id = $3 "
                                   "ORDER BY g.assigned_us DESC LIMIT 1",
                                   SQL_ARGS(sql_text(template_id), sql_text(tag), node), arena, out, &there, err))
        return err_wrap(err, "find a build by its tag");
    return there || err_set(err, ERR_NOT_FOUND, "there is no ready build with the tag '%.*s'",
                            (int)MIN(tag.len, (size_t)60), tag.at);
}

bool tags_write(struct store *store, struct str template_id, struct str build_id, const struct str *tags,
                uint32_t count, struct err *err)
{
    struct sql_value template = sql_text(template_id);
    uint64_t last_us, total;

    if (!ask_number(store, "SELECT COALESCE(MAX(assigned_us), 0) FROM build_tags WHERE template_id = $1",
                    SQL_ARGS(template), &last_us, err))
        return false;
    int64_t at_us = MAX(clock_wall_us(), (int64_t)last_us + 1);
    for (uint32_t i = 0; i < count; i++) {
        char id[STORE_UUID_BYTES];
        random_uuid(id);
        if (!sql_exec(
                store->sql,
                "INSERT INTO build_tags (id, template_id, tag, build_id, assigned_us) VALUES ($1, $2, $3, $4, $5)",
                SQL_ARGS(sql_text(str_from(id)), template, sql_text(tags[i]), sql_text(build_id), sql_int(at_us + i)),
                err))
            return false;
    }
    if (!ask_number(store, "SELECT COUNT(DISTINCT tag) FROM build_tags WHERE template_id = $1", SQL_ARGS(template),
                    &total, err))
        return false;
    return total <= LIMIT_TAGS ||
           err_set(err, ERR_LIMIT, "a template has at most %d tags: remove some that are not needed", LIMIT_TAGS);
}

#define NEWEST_INSERT                                                                                         \
    "INSERT INTO newest_tags (template_id, tag, assigned_us) SELECT template_id, tag, MAX(assigned_us) FROM " \
    "build_tags "
#define NEWEST_REPLACE                                                                                            \
    " GROUP BY template_id, tag ON CONFLICT (template_id, tag) DO UPDATE SET assigned_us = excluded.assigned_us " \
    "WHERE excluded.assigned_us > newest_tags.assigned_us"

bool tags_ready(struct store *store, struct str build_id, struct err *err)
{
    return sql_exec(store->sql, NEWEST_INSERT "WHERE build_id = $1" NEWEST_REPLACE, SQL_ARGS(sql_text(build_id)), err);
}

/* Its last assignment is to a ready build. */
static bool tag_ready(struct store *store, struct str template_id, struct str tag, struct err *err)
{
    return sql_exec(store->sql, NEWEST_INSERT "WHERE template_id = $1 AND tag = $2" NEWEST_REPLACE,
                    SQL_ARGS(sql_text(template_id), sql_text(tag)), err);
}

/* The older ones are history, of which so much is kept. */
static bool history_cut(struct store *store, struct str template_id, struct str tag, struct err *err)
{
    return sql_exec(store->sql,
                    "DELETE FROM build_tags WHERE id IN (SELECT g.id FROM build_tags g JOIN builds b "
                    "ON b.id = g.build_id WHERE g.template_id = $1 AND g.tag = $2 AND b.state = 'ready' "
                    "ORDER BY g.assigned_us DESC LIMIT 1000000 OFFSET $3)",
                    SQL_ARGS(sql_text(template_id), sql_text(tag), sql_int(LIMIT_TAG_HISTORY)), err);
}

bool store_tag_assign(struct store *store, struct str template_id, struct str build_id, const struct str *tags,
                      uint32_t count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    uint64_t ready;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "assign tags");
    bool ok = ask_number(store, "SELECT COUNT(*) FROM builds WHERE id = $1 AND template_id = $2 AND state = 'ready'",
                         SQL_ARGS(sql_text(build_id), sql_text(template_id)), &ready, err);
    if (ok && !ready)
        ok = err_set(err, ERR_NOT_FOUND, "there is no ready build '%.*s'", (int)MIN(build_id.len, (size_t)60),
                     build_id.at);
    ok = ok && tags_write(store, template_id, build_id, tags, count, err);
    for (uint32_t i = 0; ok && i < count; i++)
        ok = tag_ready(store, template_id, tags[i], err) && history_cut(store, template_id, tags[i], err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "assign tags");
}

bool store_tag_remove(struct store *store, struct str template_id, const struct str *tags, uint32_t count,
                      struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "remove tags");
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++)
        ok = sql_exec(store->sql, "DELETE FROM build_tags WHERE template_id = $1 AND tag = $2",
                      SQL_ARGS(sql_text(template_id), sql_text(tags[i])), err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove tags");
}
