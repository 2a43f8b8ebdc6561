/*
 * The log of a build, and the cache of steps.
 *
 * Lines are numbered from 0, so that a client which asks for the lines after those that it has costs no more than the new
 * ones. Times never go back.
 *
 * The cache leads from the key of a step to what the step has made. What the driver keeps for it is written down apart
 * (build_kept): rows of the cache and of builds come and go, and what none of them refers to is what can be dropped.
 */
#include "base/clock.h"
#include "base/encode.h"
#include "base/map.h"
#include "store/inside.h"

/* ---- logs ---- */

struct log_end {
    int64_t bytes, lines, last_us;
};

static bool log_end_read(struct store *store, struct str build_id, struct log_end *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, "SELECT log_bytes, log_lines, log_us FROM builds WHERE id = $1",
                    SQL_ARGS(sql_text(build_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no build '%.*s'", (int)MIN(build_id.len, (size_t)60), build_id.at);
    *out = (struct log_end){ sql_row_int(&rows, 0), sql_row_int(&rows, 1), sql_row_int(&rows, 2) };
    return true;
}

static struct str cut_line(struct str text)
{
    if (text.len <= LIMIT_BUILD_LINE_BYTES)
        return text;
    text.len = LIMIT_BUILD_LINE_BYTES;
    while (text.len > LIMIT_BUILD_LINE_BYTES - 3 && ((unsigned char)text.at[text.len] & 0xc0) == 0x80)
        text.len--; /* not in the middle of a character */
    return text;
}

static bool line_write(struct store *store, struct str build_id, struct log_end *end, const struct build_line *line,
                       struct err *err)
{
    struct build_line written = *line;

    if (end->bytes > LIMIT_BUILD_LOG_BYTES)
        return true; /* it was said */
    written.text = cut_line(line->text);
    end->bytes += (int64_t)written.text.len + 1;
    if (end->bytes > LIMIT_BUILD_LOG_BYTES) {
        written.level = BUILD_WARN;
        written.text = STR("The log has become too long: no more lines of this build are kept");
    }
    int64_t position = end->lines++;
    end->last_us = MAX(end->last_us, line->at_us ? line->at_us : clock_wall_us());
    return sql_exec(store->sql,
                    "INSERT INTO build_lines (build_id, position, at_us, level, step, line) "
                    "VALUES ($1, $2, $3, $4, $5, $6)",
                    SQL_ARGS(sql_text(build_id), sql_int(position), sql_int(end->last_us), sql_int(written.level),
                             sql_text(written.step), sql_text(written.text)),
                    err);
}

bool store_build_log(struct store *store, struct str build_id, const struct build_line *lines, uint32_t count,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct log_end end;

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "write a build's log");
    bool ok = log_end_read(store, build_id, &end, err);
    for (uint32_t i = 0; ok && i < count; i++)
        ok = line_write(store, build_id, &end, &lines[i], err);
    ok =
        ok && sql_exec(store->sql, "UPDATE builds SET log_bytes = $1, log_lines = $2, log_us = $3 WHERE id = $4",
                       SQL_ARGS(sql_int(end.bytes), sql_int(end.lines), sql_int(end.last_us), sql_text(build_id)), err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "write a build's log");
}

static void line_read(const struct sql_rows *rows, struct arena *arena, struct build_line *out)
{
    *out = (struct build_line){
        .at_us = sql_row_int(rows, 0),
        .level = (enum build_level)sql_row_int(rows, 1),
        .step = arena_copy(arena, sql_row_text(rows, 2)),
        .text = arena_copy(arena, sql_row_text(rows, 3)),
    };
}

#define LINES_OF                                                                                                \
    "SELECT at_us, level, step, line FROM build_lines WHERE build_id = $1 AND level >= $2 AND at_us >= $3 AND " \
    "($4 = 0 OR at_us <= $4) "

bool store_build_log_read(struct store *store, const struct build_log_filter *filter, struct arena *arena,
                          struct build_line **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    /* With all lines wanted, the offset is a position: nothing is counted. */
    bool by_position = filter->least == BUILD_DEBUG && !filter->newest_first && !filter->from_us;
    const char *query = by_position            ? LINES_OF "AND position >= $5 ORDER BY position LIMIT $6"
                        : filter->newest_first ? LINES_OF "ORDER BY position DESC LIMIT $5 OFFSET $6"
                                               : LINES_OF "ORDER BY position LIMIT $5 OFFSET $6";

    return (sql_select(store->sql, query,
                       SQL_ARGS(sql_text(filter->build_id), sql_int(filter->least), sql_int(filter->from_us),
                                sql_int(filter->to_us), sql_int(by_position ? filter->offset : filter->limit),
                                sql_int(by_position ? filter->limit : filter->offset)),
                       &rows, err) &&
            ROWS_READ(&rows, line_read, arena, out, out_count, err)) ||
           err_wrap(err, "read a build's log");
}

bool build_lines_tidy(struct store *store, int64_t now_us, struct err *err)
{
    return sql_exec(store->sql,
                    "DELETE FROM build_lines WHERE build_id IN (SELECT id FROM builds WHERE finished_us > 0 "
                    "AND finished_us < $1)",
                    SQL_ARGS(sql_int(now_us - LIMIT_BUILD_LOG_KEPT_S * INT64_C(1000000))), err);
}

/* ---- the cache ---- */

bool kept_write(struct store *store, const struct kept_row *row, struct err *err)
{
    return !row->id.len || sql_exec(store->sql,
                                    "INSERT INTO build_kept (kept_id, node_id, team_id, bytes, layer_bytes, step) "
                                    "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                                    SQL_ARGS(sql_text(row->id), sql_text(str_from(store->node_id)),
                                             sql_text(row->team_id), sql_int((int64_t)row->bytes),
                                             sql_int((int64_t)row->layer_bytes), sql_text(cut_line(row->step))),
                                    err);
}

static void step_read(const struct sql_rows *rows, struct arena *arena, struct cached_step *out)
{
    *out = (struct cached_step){
        .team_id = arena_copy(arena, sql_row_text(rows, 0)),
        .key = arena_copy(arena, sql_row_text(rows, 1)),
        .kept_id = arena_copy(arena, sql_row_text(rows, 2)),
        .context = { .user = arena_copy(arena, sql_row_text(rows, 4)),
                     .workdir = arena_copy(arena, sql_row_text(rows, 5)),
                     .envs = arena_copy(arena, sql_row_text(rows, 6)) },
        .bytes = (uint64_t)sql_row_int(rows, 7),
        .created_us = sql_row_int(rows, 8),
        .used_us = sql_row_int(rows, 9),
    };
    out->layers = list_split(arena_copy(arena, sql_row_text(rows, 3)), arena, &out->layer_count);
}

bool store_step_find(struct store *store, struct str team_id, struct str key, struct arena *arena,
                     struct cached_step *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct sql_value node = sql_text(str_from(store->node_id));
    struct cached_step row;
    bool there;

    {
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(
                store->sql,
                "SELECT team_id, step_key, kept_id, layers, run_user, run_workdir, run_envs, bytes, created_us, "
                "used_us FROM cached_steps WHERE node_id = $1 AND team_id = $2 AND step_key = $3",
                SQL_ARGS(node, sql_text(team_id), sql_text(key)), &rows, err) ||
            !sql_next(&rows, &there, err))
            return err_wrap(err, "find a step");
        if (!there)
            return err_set(err, ERR_NOT_FOUND, "there is no such step in the cache");
        step_read(&rows, arena, &row);
    }
    if (!sql_exec(store->sql,
                  "UPDATE cached_steps SET used_us = $1 WHERE node_id = $2 AND team_id = $3 AND step_key = $4",
                  SQL_ARGS(sql_int(clock_wall_us()), node, sql_text(team_id), sql_text(key)), err))
        return err_wrap(err, "note that a step was used");
    *out = row;
    return true;
}

static bool step_write(struct store *store, const struct cached_step *row, struct arena *scratch, struct err *err)
{
    int64_t now_us = clock_wall_us();

    return sql_exec(store->sql,
                    "INSERT INTO cached_steps (node_id, team_id, step_key, kept_id, layers, run_user, run_workdir, "
                    "run_envs, bytes, created_us, used_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10) "
                    "ON CONFLICT (node_id, team_id, step_key) DO UPDATE SET kept_id = excluded.kept_id, "
                    "layers = excluded.layers, run_user = excluded.run_user, run_workdir = excluded.run_workdir, "
                    "run_envs = excluded.run_envs, bytes = excluded.bytes, created_us = excluded.created_us, "
                    "used_us = excluded.used_us",
                    SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(row->team_id), sql_text(row->key),
                             sql_text(row->kept_id), sql_text(list_join(row->layers, row->layer_count, scratch)),
                             sql_text(row->context.user), sql_text(row->context.workdir), sql_text(row->context.envs),
                             sql_int((int64_t)row->bytes), sql_int(now_us)),
                    err) &&
           kept_write(store,
                      &(struct kept_row){ .id = row->kept_id,
                                          .team_id = row->team_id,
                                          .step = row->text,
                                          .bytes = row->bytes,
                                          .layer_bytes = row->layer_bytes },
                      err);
}

bool store_step_put(struct store *store, const struct cached_step *row, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;

    if (row->layer_count > LIMIT_LAYERS)
        return err_set(err, ERR_INTERNAL, "a step with %u layers, where %d are possible", row->layer_count,
                       LIMIT_LAYERS);
    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "keep a step");
    arena_init(&scratch);
    bool ok = step_write(store, row, &scratch, err);
    arena_done(&scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "keep a step");
}

/* ---- what can go ---- */

void note_ids(struct map *used, struct str list, struct arena *arena)
{
    struct str id;

    while (str_cut(&list, ',', &id)) {
        if (!id.len || map_get(used, id))
            continue;
        id = arena_copy(arena, id);
        (void)map_put(used, id, (void *)id.at);
    }
}

/* Puts what a query lists into the map: texts of ids, separated by commas. */
static bool note_used(struct store *store, const char *query, struct map *used, struct arena *arena, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, query, SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err))
        return false;
    for (;;) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            return true;
        note_ids(used, sql_row_text(&rows, 0), arena);
    }
}

bool note_holders(struct store *store, bool with_steps, struct map *used, struct arena *arena, struct err *err)
{
    static const char *const holders[] = {
        "SELECT layers FROM builds WHERE state = 'ready' AND node_id = $1",
        "SELECT image FROM builds WHERE state = 'ready' AND node_id = $1",
        "SELECT layers FROM snapshots WHERE node_id = $1",
        "SELECT layers FROM sandboxes WHERE node_id = $1",
        "SELECT layers FROM cached_steps WHERE node_id = $1",
        "SELECT kept_id FROM cached_steps WHERE node_id = $1",
    };

    for (size_t i = 0; i < COUNT_OF(holders) - (with_steps ? 0 : 2); i++)
        if (!note_used(store, holders[i], used, arena, err))
            return false;
    return true;
}

static bool find_unused(struct store *store, struct map *used, struct arena *scratch, struct arena *arena,
                        struct str **out, size_t *out_count, struct err *err)
{
    struct str *kept;
    size_t count, left = 0;

    if (!note_holders(store, true, used, scratch, err))
        return false;
    auto_rows struct sql_rows rows = { 0 };
    if (!sql_select(store->sql, "SELECT kept_id FROM build_kept WHERE node_id = $1 ORDER BY kept_id",
                    SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err) ||
        !ROWS_READ(&rows, text_read, arena, &kept, &count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!map_get(used, kept[i]))
            kept[left++] = kept[i];
    *out = kept;
    *out_count = left;
    return true;
}

bool store_builds_unused(struct store *store, int64_t before_us, struct arena *arena, struct str **out_kept_ids,
                         size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;
    struct map used;

    if (!sql_exec(store->sql, "DELETE FROM cached_steps WHERE node_id = $1 AND used_us < $2",
                  SQL_ARGS(sql_text(str_from(store->node_id)), sql_int(before_us)), err))
        return err_wrap(err, "remove old steps");
    arena_init(&scratch);
    map_init(&used);
    bool ok = find_unused(store, &used, &scratch, arena, out_kept_ids, out_count, err);
    map_done(&used);
    arena_done(&scratch);
    return ok || err_wrap(err, "look for what no build needs");
}

bool store_build_keep(struct store *store, struct str kept_id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "INSERT INTO build_kept (kept_id, node_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                    SQL_ARGS(sql_text(kept_id), sql_text(str_from(store->node_id))), err) ||
           err_wrap(err, "write down what is kept for a build");
}

bool store_build_measured(struct store *store, struct str kept_id, uint64_t layer_bytes, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql,
                    "UPDATE build_kept SET layer_bytes = $1 WHERE kept_id = $2 AND node_id = $3 AND layer_bytes = 0",
                    SQL_ARGS(sql_int((int64_t)layer_bytes), sql_text(kept_id), sql_text(str_from(store->node_id))),
                    err) ||
           err_wrap(err, "write down how large a layer is");
}

bool store_build_forget(struct store *store, struct str kept_id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "DELETE FROM build_kept WHERE kept_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(kept_id), sql_text(str_from(store->node_id))), err) ||
           err_wrap(err, "forget what was dropped");
}

/* ---- caps ---- */

bool store_build_bytes(struct store *store, struct str team_id, uint64_t *out_of_team, uint64_t *out_of_all,
                       struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct sql_value node = sql_text(str_from(store->node_id));

    return (ask_number(store, "SELECT COALESCE(SUM(bytes), 0) FROM build_kept WHERE node_id = $1 AND team_id = $2",
                       SQL_ARGS(node, sql_text(team_id)), out_of_team, err) &&
            ask_number(store, "SELECT COALESCE(SUM(bytes), 0) FROM build_kept WHERE node_id = $1", SQL_ARGS(node),
                       out_of_all, err)) ||
           err_wrap(err, "add up what builds take");
}

bool store_build_keeps(struct store *store, struct str kept_id, bool *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    uint64_t count;

    if (!ask_number(store, "SELECT COUNT(*) FROM build_kept WHERE kept_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(kept_id), sql_text(str_from(store->node_id))), &count, err))
        return err_wrap(err, "look for a layer of a build");
    *out = count > 0;
    return true;
}

struct eviction {
    struct store *store;
    struct str team_id;
    struct arena scratch;
    struct cached_step *steps; /* that may go, the oldest first */
    size_t step_count, gone;
};

static bool list_old_steps(struct eviction *eviction, int64_t before_us, struct err *err)
{
    struct store *store = eviction->store;
    auto_rows struct sql_rows rows = { 0 };
    struct map held;
    size_t left = 0;

    if (!sql_select(store->sql,
                    "SELECT team_id, step_key, kept_id, layers, '', '', '', bytes, created_us, used_us "
                    "FROM cached_steps WHERE node_id = $1 AND team_id = $2 AND used_us < $3 ORDER BY used_us, step_key",
                    SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(eviction->team_id), sql_int(before_us)),
                    &rows, err) ||
        !ROWS_READ(&rows, step_read, &eviction->scratch, &eviction->steps, &eviction->step_count, err))
        return false;
    map_init(&held);
    bool ok = note_holders(store, false, &held, &eviction->scratch, err);
    for (size_t i = 0; i < eviction->step_count; i++) {
        const struct cached_step *step = &eviction->steps[i];
        if (step->layer_count && !map_get(&held, step->layers[step->layer_count - 1]))
            eviction->steps[left++] = *step;
    }
    eviction->step_count = left;
    map_done(&held);
    return ok;
}

/* What the rows that are gone have left without use: nothing else, for a build that runs may be on that. */
static bool find_evicted(struct eviction *eviction, struct arena *arena, struct str **out, size_t *out_count,
                         uint64_t *out_bytes, struct err *err)
{
    struct map used;
    size_t count = 0;

    map_init(&used);
    bool ok = note_holders(eviction->store, true, &used, &eviction->scratch, err);
    *out = ARENA_ARRAY(arena, struct str, eviction->gone);
    *out_bytes = 0;
    for (size_t i = 0; i < eviction->gone; i++) {
        const struct cached_step *step = &eviction->steps[i];
        if (!step->kept_id.len || map_get(&used, step->kept_id))
            continue;
        (*out)[count++] = arena_copy(arena, step->kept_id);
        *out_bytes += step->bytes;
    }
    *out_count = count;
    map_done(&used);
    return ok;
}

static bool evict(struct eviction *eviction, int64_t before_us, uint64_t bytes, struct arena *arena, struct str **out,
                  size_t *out_count, struct err *err)
{
    struct store *store = eviction->store;
    uint64_t freed = 0;

    if (!list_old_steps(eviction, before_us, err))
        return false;
    *out_count = 0;
    /* Twice as many each time: a step is of use to those that follow it, and frees nothing before they are gone. */
    for (size_t most = 1; freed < bytes && eviction->gone < eviction->step_count; most *= 2) {
        for (; eviction->gone < MIN(most, eviction->step_count); eviction->gone++)
            if (!sql_exec(store->sql, "DELETE FROM cached_steps WHERE node_id = $1 AND team_id = $2 AND step_key = $3",
                          SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(eviction->team_id),
                                   sql_text(eviction->steps[eviction->gone].key)),
                          err))
                return false;
        if (!find_evicted(eviction, arena, out, out_count, &freed, err))
            return false;
    }
    return true;
}

bool store_steps_evict(struct store *store, struct str team_id, int64_t before_us, uint64_t bytes, struct arena *arena,
                       struct str **out_kept_ids, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct eviction eviction = { .store = store, .team_id = team_id };

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "make room for a build");
    arena_init(&eviction.scratch);
    bool ok = evict(&eviction, before_us, bytes, arena, out_kept_ids, out_count, err);
    arena_done(&eviction.scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "make room for a build");
}
