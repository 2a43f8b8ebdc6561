#include "base/buf.h"
#include "base/random.h"
#include "store/inside.h"

static const struct str state_name[SANDBOX_ROW_STATE_COUNT] = {
    [SANDBOX_ROW_STARTING] = STR_INIT("starting"), [SANDBOX_ROW_RUNNING] = STR_INIT("running"),
    [SANDBOX_ROW_PAUSING] = STR_INIT("pausing"),   [SANDBOX_ROW_PAUSED] = STR_INIT("paused"),
    [SANDBOX_ROW_RESUMING] = STR_INIT("resuming"), [SANDBOX_ROW_SNAPSHOTTING] = STR_INIT("snapshotting"),
};

enum { LAYERS_BYTES = LIMIT_LAYERS * 65 }; /* 64 hex digits and a comma each */

bool events_load(struct store *store, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, "SELECT MAX(at_us) FROM events", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    store->last_event_us = there ? sql_row_int(&rows, 0) : 0;
    return true;
}

bool event_insert(struct store *store, const struct event_row *event, struct err *err)
{
    char id[STORE_UUID_BYTES];

    if (!event)
        return true;
    random_uuid(id);
    store->last_event_us = MAX(event->at_us, store->last_event_us + 1);
    return sql_exec(store->sql,
                    "INSERT INTO events (id, type, sandbox_id, team_id, template_id, at_us, data) "
                    "VALUES ($1, $2, $3, $4, $5, $6, $7)",
                    SQL_ARGS(sql_text(str_from(id)), sql_text(event->type), sql_text(event->sandbox_id),
                             sql_text(event->team_id), sql_text(event->template_id), sql_int(store->last_event_us),
                             sql_text(event->data)),
                    err) &&
           tidy(store, err);
}

/* With the lock held. */
static bool insert(struct store *store, const struct sandbox_row *row, struct str state, struct err *err)
{
    auto_buf struct buf layers = buf_make(NULL, LAYERS_BYTES);

    for (uint32_t i = 0; i < row->layer_count; i++) {
        if (i)
            buf_add_char(&layers, ',');
        buf_add(&layers, row->layers[i]);
    }
    if (layers.overflowed)
        return err_set(err, ERR_INTERNAL, "sandbox %.*s has more than %d layers", STR_ARG(row->id), LIMIT_LAYERS);
    return sql_exec(
               store->sql,
               "INSERT INTO sandboxes (id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count, "
               "memory_mb, disk_mb, network, started_us, deadline_us, key_id, is_private, mask_host, https_ports, "
               "open_code, node_id, timeout_s, auto_pause, keep_memory, auto_resume, layers, default_user, "
               "default_workdir, revision) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, "
               "$16, "
               "$17, $18, $19, $20, $21, $22, $23, $24, $25, $26, 0)",
               SQL_ARGS(sql_text(row->id), sql_text(row->team_id), sql_text(row->template_id), sql_text(row->alias),
                        sql_text(row->guestd_version), sql_text(state), sql_text(row->metadata),
                        sql_int(row->cpu_count), sql_int(row->memory_mb), sql_int(row->disk_mb), sql_text(row->network),
                        sql_int(row->started_us), sql_int(row->deadline_us), sql_text(row->key_id),
                        sql_int(row->is_private), sql_text(row->mask_host), sql_text(row->https_ports),
                        sql_int(row->open_code), sql_text(str_from(store->node_id)), sql_int((int64_t)row->timeout_s),
                        sql_int(row->auto_pause), sql_int(row->keep_memory), sql_int(row->auto_resume),
                        sql_text(buf_str(&layers)), sql_text(row->default_user), sql_text(row->default_workdir)),
               err) ||
           err_wrap(err, "add sandbox %.*s", STR_ARG(row->id));
}

bool store_sandbox_add(struct store *store, const struct sandbox_row *row, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return insert(store, row, state_name[SANDBOX_ROW_STARTING], err);
}

bool store_sandbox_add_running(struct store *store, const struct sandbox_row *row, const struct event_row *event,
                               struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "add sandbox %.*s", STR_ARG(row->id));
    bool ok = insert(store, row, state_name[SANDBOX_ROW_RUNNING], err) && event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add sandbox %.*s", STR_ARG(row->id));
}

bool store_sandbox_ready(struct store *store, struct str id, int64_t started_us, int64_t deadline_us,
                         const struct event_row *event, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "sandbox %.*s is ready", STR_ARG(id));
    bool ok =
        sql_exec(store->sql, "UPDATE sandboxes SET state = 'running', started_us = $1, deadline_us = $2 WHERE id = $3",
                 SQL_ARGS(sql_int(started_us), sql_int(deadline_us), sql_text(id)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_INTERNAL, "the sandbox's row is missing");
    ok = ok && event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "sandbox %.*s is ready", STR_ARG(id));
}

bool store_sandbox_change(struct store *store, struct str id, const struct sandbox_change *change,
                          const struct event_row *event, struct err *err)
{
    bool is_paused = change->state == SANDBOX_ROW_PAUSED || change->state == SANDBOX_ROW_PAUSING;
    bool keep = change->state == SANDBOX_ROW_RESUMING;
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, change->state == SANDBOX_ROW_PAUSED ? SQL_DURABLE : SQL_LAZY, err))
        return err_wrap(err, "state of sandbox %.*s", STR_ARG(id));
    bool ok = sql_exec(store->sql,
                       "UPDATE sandboxes SET state = $1, started_us = CASE WHEN $2 = 0 THEN started_us ELSE $2 END, "
                       "deadline_us = CASE WHEN $3 = 0 THEN deadline_us ELSE $3 END, "
                       "revision = CASE WHEN $3 = 0 THEN revision ELSE $4 END, "
                       "has_memory = CASE WHEN $5 = 1 THEN has_memory ELSE $6 END, "
                       "was_silent = CASE WHEN $5 = 1 THEN was_silent ELSE $7 END, "
                       "envs = CASE WHEN $5 = 1 THEN envs ELSE $8 END WHERE id = $9",
                       SQL_ARGS(sql_text(state_name[change->state]), sql_int(change->started_us),
                                sql_int(change->deadline_us), sql_int(change->revision), sql_int(keep),
                                sql_int(is_paused && change->has_memory), sql_int(is_paused && change->was_silent),
                                sql_text(is_paused ? change->envs : STR("")), sql_text(id)),
                       err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "Sandbox \"%.*s\" does not exist or is not accessible", STR_ARG(id));
    ok = ok && event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "state of sandbox %.*s", STR_ARG(id));
}

bool store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                            const struct event_row *event, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "deadline of sandbox %.*s", STR_ARG(id));
    /* A later change may have been written first: then the deadline stays, and this one is an event all the same. */
    bool ok = sql_exec(store->sql,
                       "UPDATE sandboxes SET deadline_us = CASE WHEN revision < $1 THEN $2 ELSE deadline_us END, "
                       "revision = CASE WHEN revision < $1 THEN $1 ELSE revision END WHERE id = $3",
                       SQL_ARGS(sql_int(revision), sql_int(deadline_us), sql_text(id)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "Sandbox \"%.*s\" does not exist or is not accessible", STR_ARG(id));
    ok = ok && event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "deadline of sandbox %.*s", STR_ARG(id));
}

bool store_sandbox_network(struct store *store, struct str id, struct str network, const struct event_row *event,
                           struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "network of sandbox %.*s", STR_ARG(id));
    bool ok = sql_exec(store->sql, "UPDATE sandboxes SET network = $1 WHERE id = $2",
                       SQL_ARGS(sql_text(network), sql_text(id)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "Sandbox \"%.*s\" does not exist or is not accessible", STR_ARG(id));
    ok = ok && event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "network of sandbox %.*s", STR_ARG(id));
}

bool store_event_add(struct store *store, const struct event_row *event, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return event_insert(store, event, err) || err_wrap(err, "event of sandbox %.*s", STR_ARG(event->sandbox_id));
}

bool store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "remove sandbox %.*s", STR_ARG(id));
    bool ok = sql_exec(store->sql, "DELETE FROM sandboxes WHERE id = $1", SQL_ARGS(sql_text(id)), err) &&
              event_insert(store, event, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "remove sandbox %.*s", STR_ARG(id));
}

/* The schema lets no other name in. */
static enum sandbox_row_state state_read(struct str name)
{
    int state = SANDBOX_ROW_STATE_COUNT - 1;

    while (state > 0 && !str_eq(name, state_name[state]))
        state--;
    return (enum sandbox_row_state)state;
}

static void layers_read(struct str text, struct arena *arena, struct sandbox_row *out)
{
    struct str *layers = ARENA_ARRAY(arena, struct str, LIMIT_LAYERS);
    struct str one;

    out->layers = layers;
    while (text.len && out->layer_count < LIMIT_LAYERS && str_cut(&text, ',', &one))
        layers[out->layer_count++] = arena_copy(arena, one);
}

static void sandbox_read(const struct sql_rows *rows, struct arena *arena, struct sandbox_row *out)
{
    *out = (struct sandbox_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .team_id = arena_copy(arena, sql_row_text(rows, 1)),
        .template_id = arena_copy(arena, sql_row_text(rows, 2)),
        .alias = arena_copy(arena, sql_row_text(rows, 3)),
        .guestd_version = arena_copy(arena, sql_row_text(rows, 4)),
        .state = state_read(sql_row_text(rows, 5)),
        .metadata = arena_copy(arena, sql_row_text(rows, 6)),
        .cpu_count = (uint32_t)sql_row_int(rows, 7),
        .memory_mb = (uint32_t)sql_row_int(rows, 8),
        .disk_mb = (uint32_t)sql_row_int(rows, 9),
        .network = arena_copy(arena, sql_row_text(rows, 10)),
        .started_us = sql_row_int(rows, 11),
        .deadline_us = sql_row_int(rows, 12),
        .revision = sql_row_int(rows, 13),
        .key_id = arena_copy(arena, sql_row_text(rows, 14)),
        .is_private = sql_row_int(rows, 15) != 0,
        .mask_host = arena_copy(arena, sql_row_text(rows, 16)),
        .open_code = sql_row_int(rows, 17) != 0,
        .https_ports = arena_copy(arena, sql_row_text(rows, 18)),
        .timeout_s = (uint64_t)sql_row_int(rows, 19),
        .auto_pause = sql_row_int(rows, 20) != 0,
        .keep_memory = sql_row_int(rows, 21) != 0,
        .auto_resume = sql_row_int(rows, 22) != 0,
        .has_memory = sql_row_int(rows, 23) != 0,
        .was_silent = sql_row_int(rows, 24) != 0,
        .envs = arena_copy(arena, sql_row_text(rows, 25)),
        .default_user = arena_copy(arena, sql_row_text(rows, 27)),
        .default_workdir = arena_copy(arena, sql_row_text(rows, 28)),
    };
    layers_read(sql_row_text(rows, 26), arena, out);
}

bool store_sandbox_list(struct store *store, struct arena *arena, struct sandbox_row **out, size_t *out_count,
                        struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(
                store->sql,
                "SELECT id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count, memory_mb, "
                "disk_mb, network, started_us, deadline_us, revision, key_id, is_private, mask_host, open_code, "
                "https_ports, timeout_s, auto_pause, keep_memory, auto_resume, has_memory, was_silent, envs, "
                "layers, default_user, default_workdir FROM sandboxes WHERE node_id = $1 ORDER BY started_us, id",
                SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err) &&
            ROWS_READ(&rows, sandbox_read, arena, out, out_count, err)) ||
           err_wrap(err, "list sandboxes");
}
