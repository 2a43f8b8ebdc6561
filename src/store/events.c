#include "store/inside.h"

const struct str event_type_name[EVENT_TYPE_COUNT] = {
    [EVENT_CREATED] = STR_INIT("sandbox.lifecycle.created"),
    [EVENT_UPDATED] = STR_INIT("sandbox.lifecycle.updated"),
    [EVENT_PAUSED] = STR_INIT("sandbox.lifecycle.paused"),
    [EVENT_RESUMED] = STR_INIT("sandbox.lifecycle.resumed"),
    [EVENT_CHECKPOINTED] = STR_INIT("sandbox.lifecycle.checkpointed"),
    [EVENT_KILLED] = STR_INIT("sandbox.lifecycle.killed"),
    [EVENT_REFUSED] = STR_INIT("sandbox.network.refused"),
    [EVENT_SNAPSHOT_DELETED] = STR_INIT("sandbox.snapshot.deleted"),
};

#define EVENT_COLUMNS "id, type, sandbox_id, team_id, template_id, at_us, data"

/* A type that is not wanted is replaced by "", which no event has: so one query serves every choice. */
#define FIND                                                   \
    "SELECT " EVENT_COLUMNS " FROM events WHERE team_id = $1 " \
    "AND at_us >= $2 AND at_us <= $3 AND type IN ($4, $5, $6, $7, $8, $9, $10, $11) "
#define ORDERED(order, limit, offset) "ORDER BY at_us" order " LIMIT " limit " OFFSET " offset

/* [of one sandbox?][oldest first?] */
static const char *const find_queries[2][2] = {
    { FIND ORDERED(" DESC", "$12", "$13"), FIND ORDERED("", "$12", "$13") },
    { FIND "AND sandbox_id = $12 " ORDERED(" DESC", "$13", "$14"),
      FIND "AND sandbox_id = $12 " ORDERED("", "$13", "$14") },
};

static struct sql_value type_or_none(const struct event_filter *filter, enum event_type type)
{
    return sql_text(!filter->types || filter->types & BIT(type) ? event_type_name[type] : STR(""));
}

/* Columns as in EVENT_COLUMNS. */
static void event_read(const struct sql_rows *rows, struct arena *arena, struct event_row *out)
{
    *out = (struct event_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .type = arena_copy(arena, sql_row_text(rows, 1)),
        .sandbox_id = arena_copy(arena, sql_row_text(rows, 2)),
        .team_id = arena_copy(arena, sql_row_text(rows, 3)),
        .template_id = arena_copy(arena, sql_row_text(rows, 4)),
        .at_us = sql_row_int(rows, 5),
        .data = arena_copy(arena, sql_row_text(rows, 6)),
    };
}

bool store_event_find(struct store *store, const struct event_filter *filter, struct arena *arena,
                      struct event_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    const bool of_sandbox = filter->sandbox_id.len > 0;
    struct sql_value args[14] = {
        sql_text(filter->team_id),
        sql_int(filter->from_us),
        sql_int(filter->to_us ? filter->to_us : INT64_MAX),
        type_or_none(filter, EVENT_CREATED),
        type_or_none(filter, EVENT_UPDATED),
        type_or_none(filter, EVENT_PAUSED),
        type_or_none(filter, EVENT_RESUMED),
        type_or_none(filter, EVENT_CHECKPOINTED),
        type_or_none(filter, EVENT_KILLED),
        type_or_none(filter, EVENT_REFUSED),
        type_or_none(filter, EVENT_SNAPSHOT_DELETED),
    };
    size_t arg_count = 11;

    if (of_sandbox)
        args[arg_count++] = sql_text(filter->sandbox_id);
    args[arg_count++] = sql_int(filter->limit);
    args[arg_count++] = sql_int(filter->offset);
    return (sql_select(store->sql, find_queries[of_sandbox][filter->oldest_first], args, arg_count, &rows, err) &&
            ROWS_READ(&rows, event_read, arena, out, out_count, err)) ||
           err_wrap(err, "find events");
}

bool store_event_list(struct store *store, struct str sandbox_id, struct arena *arena, struct event_row **out,
                      size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, "SELECT " EVENT_COLUMNS " FROM events WHERE sandbox_id = $1 ORDER BY at_us, id",
                       SQL_ARGS(sql_text(sandbox_id)), &rows, err) &&
            ROWS_READ(&rows, event_read, arena, out, out_count, err)) ||
           err_wrap(err, "list events");
}

static void event_count_read(const struct sql_rows *rows, struct arena *arena, struct event_count *out)
{
    (void)arena; /* numbers only */
    *out = (struct event_count){
        .step = sql_row_int(rows, 0),
        .created = (uint64_t)sql_row_int(rows, 1),
        .killed = (uint64_t)sql_row_int(rows, 2),
    };
}

bool store_event_count(struct store *store, struct str team_id, int64_t from_us, int64_t step_us, struct arena *arena,
                       struct event_count **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       "SELECT (at_us - $1) / $2 AS step, "
                       "SUM(CASE WHEN type = 'sandbox.lifecycle.created' THEN 1 ELSE 0 END), "
                       "SUM(CASE WHEN type = 'sandbox.lifecycle.killed' THEN 1 ELSE 0 END) "
                       "FROM events WHERE at_us >= $1 AND team_id = $3 GROUP BY step ORDER BY step",
                       SQL_ARGS(sql_int(from_us), sql_int(step_us), sql_text(team_id)), &rows, err) &&
            ROWS_READ(&rows, event_count_read, arena, out, out_count, err)) ||
           err_wrap(err, "count events");
}
