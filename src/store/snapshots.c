/*
 * Snapshots: what a team has kept of its sandboxes. A row is a build; the builds of one name share a template id, and
 * each has a tag. The newest build of a tag replaces the one before.
 *
 * A row leaves in two steps, because its bytes are the driver's: first it is marked as removed (no request finds it from
 * then on), then, when the driver has dropped what it kept, it is forgotten. What a crash leaves in between is found by
 * store_snapshot_removed().
 *
 * The bytes are on one node's disk, so each node sees its own snapshots.
 */
#include "base/buf.h"
#include "base/random.h"
#include "store/inside.h"

#define SNAPSHOT_COLUMNS                                                                                           \
    "kept_id, template_id, name, tag, team_id, sandbox_id, source_template_id, cpu_count, memory_mb, disk_mb, "    \
    "guestd_version, created_us, layers, has_memory, layer_bytes, image_bytes, used_us, raw_bytes, default_user, " \
    "default_workdir"

enum {
    TEMPLATE_ID_CHARS = 20,
    LAYERS_TEXT_BYTES = LIMIT_LAYERS * 65,
    USED_SHOWN = 3, /* sandboxes that an error names: what a message has room for */
};

/* ---- reading ---- */

static void layers_read(struct str list, struct arena *arena, struct snapshot_row *out)
{
    struct str *layers = ARENA_ARRAY(arena, struct str, LIMIT_LAYERS);
    struct str layer;
    uint32_t count = 0;

    while (count < LIMIT_LAYERS && str_cut(&list, ',', &layer))
        layers[count++] = layer;
    out->layers = layers;
    out->layer_count = count;
}

static void snapshot_read(const struct sql_rows *rows, struct arena *arena, struct snapshot_row *out)
{
    *out = (struct snapshot_row){
        .kept_id = arena_copy(arena, sql_row_text(rows, 0)),
        .template_id = arena_copy(arena, sql_row_text(rows, 1)),
        .name = arena_copy(arena, sql_row_text(rows, 2)),
        .tag = arena_copy(arena, sql_row_text(rows, 3)),
        .team_id = arena_copy(arena, sql_row_text(rows, 4)),
        .sandbox_id = arena_copy(arena, sql_row_text(rows, 5)),
        .source_template_id = arena_copy(arena, sql_row_text(rows, 6)),
        .cpu_count = (uint32_t)sql_row_int(rows, 7),
        .memory_mb = (uint32_t)sql_row_int(rows, 8),
        .disk_mb = (uint32_t)sql_row_int(rows, 9),
        .guestd_version = arena_copy(arena, sql_row_text(rows, 10)),
        .created_us = sql_row_int(rows, 11),
        .has_memory = sql_row_int(rows, 13) != 0,
        .layer_bytes = (uint64_t)sql_row_int(rows, 14),
        .image_bytes = (uint64_t)sql_row_int(rows, 15),
        .used_us = sql_row_int(rows, 16),
        .raw_bytes = (uint64_t)sql_row_int(rows, 17),
        .default_user = arena_copy(arena, sql_row_text(rows, 18)),
        .default_workdir = arena_copy(arena, sql_row_text(rows, 19)),
    };
    layers_read(arena_copy(arena, sql_row_text(rows, 12)), arena, out);
}

bool store_snapshot_list(struct store *store, const struct snapshot_filter *filter, struct arena *arena,
                         struct snapshot_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       "SELECT " SNAPSHOT_COLUMNS " FROM snapshots WHERE team_id = $1 AND node_id = $2 "
                       "AND removed = 0 AND ($3 = '' OR sandbox_id = $3) "
                       "AND ($4 = '' OR name = $4 OR template_id = $4) AND ($5 = '' OR tag = $5) "
                       "AND ($6 = 0 OR created_us < $6 OR (created_us = $6 AND kept_id > $7)) "
                       "ORDER BY created_us DESC, kept_id LIMIT $8",
                       SQL_ARGS(sql_text(filter->team_id), sql_text(str_from(store->node_id)),
                                sql_text(filter->sandbox_id), sql_text(filter->name), sql_text(filter->tag),
                                sql_int(filter->before_us), sql_text(filter->before_id), sql_int(filter->limit)),
                       &rows, err) &&
            ROWS_READ(&rows, snapshot_read, arena, out, out_count, err)) ||
           err_wrap(err, "list snapshots");
}

/* A name counts before an id: nobody else's id can be had by guessing, but a name may look like one. */
bool store_snapshot_get(struct store *store, struct str team_id, struct str id_or_name, struct str tag,
                        struct arena *arena, struct snapshot_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql,
                    "SELECT " SNAPSHOT_COLUMNS " FROM snapshots WHERE team_id = $1 AND node_id = $2 AND removed = 0 "
                    "AND (name = $3 OR template_id = $3) AND tag = $4 "
                    "ORDER BY CASE WHEN name = $3 THEN 0 ELSE 1 END, created_us DESC LIMIT 1",
                    SQL_ARGS(sql_text(team_id), sql_text(str_from(store->node_id)), sql_text(id_or_name),
                             sql_text(tag.len ? tag : STR("default"))),
                    &rows, err) ||
        !sql_next(&rows, &there, err))
        return err_wrap(err, "find a snapshot");
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no snapshot '%.*s'", (int)MIN(id_or_name.len, (size_t)60),
                       id_or_name.at);
    snapshot_read(&rows, arena, out);
    return true;
}

/* ---- limits ---- */

static bool has_room(struct store *store, struct str team_id, const struct snapshot_caps *caps, uint64_t more_bytes,
                     struct err *err)
{
    struct sql_value node_id = sql_text(str_from(store->node_id));
    uint64_t of_team, of_all, bytes, bytes_of_team;

    if (!ask_number(store, "SELECT COUNT(*) FROM snapshots WHERE team_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(team_id), node_id), &of_team, err) ||
        !ask_number(store, "SELECT COUNT(*) FROM snapshots WHERE node_id = $1", SQL_ARGS(node_id), &of_all, err) ||
        !ask_number(store, "SELECT COALESCE(SUM(layer_bytes + image_bytes), 0) FROM snapshots WHERE node_id = $1",
                    SQL_ARGS(node_id), &bytes, err) ||
        !ask_number(store,
                    "SELECT COALESCE(SUM(layer_bytes + image_bytes), 0) FROM snapshots "
                    "WHERE team_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(team_id), node_id), &bytes_of_team, err))
        return err_wrap(err, "count snapshots");
    if (of_team >= caps->of_team)
        return err_set(err, ERR_LIMIT,
                       "this team has %llu snapshots, the most that it may have: delete some that are not needed",
                       (unsigned long long)of_team);
    if (of_all >= caps->of_all)
        return err_set(err, ERR_LIMIT,
                       "the server has %llu snapshots, the most that it keeps: delete some that are not needed",
                       (unsigned long long)of_all);
    if (bytes >= caps->bytes || more_bytes > caps->bytes - bytes)
        return err_set(err, ERR_LIMIT, "the server's snapshots take %llu of %llu MB: delete some that are not needed",
                       (unsigned long long)(bytes >> 20), (unsigned long long)(caps->bytes >> 20));
    if (bytes_of_team >= caps->bytes_of_team || more_bytes > caps->bytes_of_team - bytes_of_team)
        return err_set(
            err, ERR_LIMIT,
            "the team's snapshots take %llu of the %llu MB that it may have: delete some that are not needed",
            (unsigned long long)(bytes_of_team >> 20), (unsigned long long)(caps->bytes_of_team >> 20));
    return true;
}

bool store_snapshot_room(struct store *store, struct str team_id, const struct snapshot_caps *caps, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return has_room(store, team_id, caps, 1, err);
}

/* ---- writing ---- */

/* The template of this name, or a new one. */
static bool template_of(struct store *store, const struct snapshot_row *row, struct arena *arena, struct str *out,
                        struct err *err)
{
    char id[TEMPLATE_ID_CHARS + 1];
    bool there = false;

    if (row->name.len &&
        !ask_text(store,
                  "SELECT template_id FROM snapshots WHERE team_id = $1 AND node_id = $2 AND name = $3 "
                  "AND removed = 0 LIMIT 1",
                  SQL_ARGS(sql_text(row->team_id), sql_text(str_from(store->node_id)), sql_text(row->name)), arena, out,
                  &there, err))
        return false;
    if (there)
        return true;
    random_id(id, TEMPLATE_ID_CHARS);
    *out = arena_copy(arena, str_from(id));
    return true;
}

static bool layers_text(const struct snapshot_row *row, struct arena *arena, struct str *out, struct err *err)
{
    struct buf text = buf_make(arena, LAYERS_TEXT_BYTES);

    for (uint32_t i = 0; i < row->layer_count; i++)
        buf_format(&text, "%s%.*s", i ? "," : "", STR_ARG(row->layers[i]));
    if (row->layer_count == 0 || row->layer_count > LIMIT_LAYERS || text.overflowed)
        return err_set(err, ERR_INTERNAL, "a snapshot of %u layers, where 1 to %d are possible", row->layer_count,
                       LIMIT_LAYERS);
    *out = buf_str(&text);
    return true;
}

static bool snapshot_write(struct store *store, const struct snapshot_row *row, struct str layers, struct err *err)
{
    return sql_exec(store->sql, "UPDATE snapshots SET removed = 1 WHERE template_id = $1 AND tag = $2 AND node_id = $3",
                    SQL_ARGS(sql_text(row->template_id), sql_text(row->tag), sql_text(str_from(store->node_id))),
                    err) &&
           sql_exec(store->sql,
                    "INSERT INTO snapshots (" SNAPSHOT_COLUMNS ", node_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, "
                    "$9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)",
                    SQL_ARGS(sql_text(row->kept_id), sql_text(row->template_id), sql_text(row->name),
                             sql_text(row->tag), sql_text(row->team_id), sql_text(row->sandbox_id),
                             sql_text(row->source_template_id), sql_int(row->cpu_count), sql_int(row->memory_mb),
                             sql_int(row->disk_mb), sql_text(row->guestd_version), sql_int(row->created_us),
                             sql_text(layers), sql_int(row->has_memory), sql_int((int64_t)row->layer_bytes),
                             sql_int((int64_t)row->image_bytes), sql_int(row->created_us),
                             sql_int((int64_t)row->raw_bytes), sql_text(row->default_user),
                             sql_text(row->default_workdir), sql_text(str_from(store->node_id))),
                    err);
}

bool store_snapshot_add(struct store *store, const struct snapshot_row *row, const struct snapshot_caps *caps,
                        struct arena *arena, struct snapshot_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct snapshot_row made = *row;
    struct str layers;

    if (!made.tag.len)
        made.tag = STR("default");
    if (!layers_text(row, arena, &layers, err) || !sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a snapshot");
    bool ok = has_room(store, row->team_id, caps, row->layer_bytes + row->image_bytes, err) &&
              template_of(store, row, arena, &made.template_id, err) && snapshot_write(store, &made, layers, err);
    if (!sql_end(store->sql, ok, err))
        return err_wrap(err, "add a snapshot");
    *out = made;
    return true;
}

/* With the lock held. Names some of them, so that the caller knows what to kill. */
static bool refuse_used(struct store *store, struct str template_id, struct str team_id, uint64_t used,
                        struct arena *scratch, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct buf ids = buf_make(scratch, USED_SHOWN * (LIMIT_ID_BYTES + 2));
    bool there;

    if (!sql_select(store->sql, "SELECT id FROM sandboxes WHERE template_id = $1 AND team_id = $2 ORDER BY id LIMIT $3",
                    SQL_ARGS(sql_text(template_id), sql_text(team_id), sql_int(USED_SHOWN)), &rows, err))
        return false;
    for (;;) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            break;
        buf_format(&ids, "%s%.*s", ids.len ? ", " : "", STR_ARG(sql_row_text(&rows, 0)));
    }
    return err_set(err, ERR_CONFLICT, "%llu running or paused sandbox%s made from it (%.*s%s); kill %s first",
                   (unsigned long long)used, used == 1 ? " was" : "es were", (int)ids.len, ids.data,
                   used > USED_SHOWN ? ", …" : "", used == 1 ? "it" : "them");
}

bool template_unused(struct store *store, struct str template_id, struct str team_id, struct arena *scratch,
                     struct err *err)
{
    uint64_t used;

    if (!ask_number(store, "SELECT COUNT(*) FROM sandboxes WHERE template_id = $1 AND team_id = $2",
                    SQL_ARGS(sql_text(template_id), sql_text(team_id)), &used, err))
        return false;
    return !used || refuse_used(store, template_id, team_id, used, scratch, err);
}

static bool mark_removed(struct store *store, struct str team_id, struct str id_or_name, struct arena *scratch,
                         struct err *err)
{
    struct sql_value node_id = sql_text(str_from(store->node_id));
    struct str template_id;
    bool there;

    if (!ask_text(store,
                  "SELECT template_id FROM snapshots WHERE team_id = $1 AND node_id = $2 AND removed = 0 "
                  "AND (name = $3 OR template_id = $3) ORDER BY CASE WHEN name = $3 THEN 0 ELSE 1 END LIMIT 1",
                  SQL_ARGS(sql_text(team_id), node_id, sql_text(id_or_name)), scratch, &template_id, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no snapshot '%.*s'", (int)MIN(id_or_name.len, (size_t)60),
                       id_or_name.at);
    if (!template_unused(store, template_id, team_id, scratch, err))
        return false;
    return sql_exec(store->sql, "UPDATE snapshots SET removed = 1 WHERE template_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(template_id), node_id), err);
}

bool store_snapshot_remove(struct store *store, struct str team_id, struct str id_or_name, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct arena scratch;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "remove a snapshot");
    arena_init(&scratch);
    bool ok = mark_removed(store, team_id, id_or_name, &scratch, err);
    arena_done(&scratch);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove a snapshot");
}

/* ---- what nobody uses ---- */

bool store_snapshot_use(struct store *store, struct str kept_id, int64_t now_us, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "UPDATE snapshots SET used_us = $1 WHERE kept_id = $2 AND used_us < $1",
                    SQL_ARGS(sql_int(now_us), sql_text(kept_id)), err) ||
           err_wrap(err, "note the use of a snapshot");
}

#define IS_IN_USE "EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.template_id = snapshots.template_id)"

bool store_snapshot_unused(struct store *store, int64_t before_us, int64_t now_us, struct arena *arena,
                           struct snapshot_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    struct sql_value node_id = sql_text(str_from(store->node_id));

    return (sql_exec(store->sql,
                     "UPDATE snapshots SET used_us = $1 WHERE node_id = $2 AND removed = 0 "
                     "AND (used_us = 0 OR (used_us < $3 AND " IS_IN_USE "))",
                     SQL_ARGS(sql_int(now_us), node_id, sql_int(now_us - STORE_USE_US)), err) &&
            sql_select(store->sql,
                       "SELECT " SNAPSHOT_COLUMNS " FROM snapshots WHERE node_id = $1 AND removed = 0 "
                       "AND used_us < $2 ORDER BY kept_id",
                       SQL_ARGS(node_id, sql_int(before_us)), &rows, err) &&
            ROWS_READ(&rows, snapshot_read, arena, out, out_count, err)) ||
           err_wrap(err, "look for snapshots that nobody uses");
}

bool store_snapshot_expire(struct store *store, struct str kept_id, int64_t before_us, const struct event_row *event,
                           bool *out_expired, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    uint64_t count = 0;

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "expire a snapshot");
    bool ok = ask_number(store,
                         "SELECT COUNT(*) FROM snapshots WHERE kept_id = $1 AND removed = 0 AND used_us < $2 "
                         "AND NOT " IS_IN_USE,
                         SQL_ARGS(sql_text(kept_id), sql_int(before_us)), &count, err);
    if (ok && count)
        ok = sql_exec(store->sql, "UPDATE snapshots SET removed = 1 WHERE kept_id = $1", SQL_ARGS(sql_text(kept_id)),
                      err) &&
             event_insert(store, event, err);
    if (!sql_end(store->sql, ok, err))
        return err_wrap(err, "expire a snapshot");
    *out_expired = count > 0;
    return true;
}

/* ---- what is removed ---- */

bool store_snapshot_removed(struct store *store, struct arena *arena, struct str **out_kept_ids, size_t *out_count,
                            struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, "SELECT kept_id FROM snapshots WHERE removed = 1 AND node_id = $1 ORDER BY kept_id",
                       SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err) &&
            ROWS_READ(&rows, text_read, arena, out_kept_ids, out_count, err)) ||
           err_wrap(err, "list removed snapshots");
}

bool store_snapshot_unmeasured(struct store *store, uint32_t limit, struct arena *arena, struct str **out_kept_ids,
                               size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       "SELECT kept_id FROM snapshots WHERE node_id = $1 AND removed = 0 AND has_memory = 1 "
                       "AND raw_bytes = 0 ORDER BY created_us, kept_id LIMIT $2",
                       SQL_ARGS(sql_text(str_from(store->node_id)), sql_int(limit)), &rows, err) &&
            ROWS_READ(&rows, text_read, arena, out_kept_ids, out_count, err)) ||
           err_wrap(err, "list snapshots that were not measured");
}

bool store_snapshot_measured(struct store *store, struct str kept_id, uint64_t image_bytes, uint64_t raw_bytes,
                             struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "UPDATE snapshots SET image_bytes = $1, raw_bytes = $2 WHERE kept_id = $3",
                    SQL_ARGS(sql_int((int64_t)image_bytes), sql_int((int64_t)raw_bytes), sql_text(kept_id)), err) ||
           err_wrap(err, "write what a snapshot takes");
}

bool store_snapshot_is_known(struct store *store, struct str kept_id, bool *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    uint64_t count;

    if (!ask_number(store,
                    "SELECT (SELECT COUNT(*) FROM snapshots WHERE kept_id = $1) + "
                    "(SELECT COUNT(*) FROM build_kept WHERE kept_id = $1)",
                    SQL_ARGS(sql_text(kept_id)), &count, err))
        return err_wrap(err, "look for a snapshot");
    *out = count > 0;
    return true;
}

bool store_snapshot_forget(struct store *store, struct str kept_id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "DELETE FROM snapshots WHERE kept_id = $1 AND removed = 1", SQL_ARGS(sql_text(kept_id)),
                    err) ||
           err_wrap(err, "forget a snapshot");
}
