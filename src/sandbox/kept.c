/* What outlives its sandbox: snapshots, which belong to the driver. And how much disk all that is kept takes. */
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "sandbox/inside.h"
#include "wire/json.h"

bool sandbox_drop_snapshot(struct sandboxes *all, struct str kept_id, struct err *err)
{
    char id[LAYER_ID_BYTES];

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        pool_drop_layer(all->pool, kept_id); /* it would keep the layer */
    }
    return str_to_path(kept_id, id, sizeof id, err) &&
           driver_pause_call(all->config.driver, PAUSE_DROP, id, false, NULL, err);
}

/* Returns false when the rest must be left for the next start. */
static bool drop_if_unknown(struct sandboxes *all, const char *id, struct err *err)
{
    bool is_known;

    if (!store_snapshot_is_known(all->config.store, str_from(id), &is_known, err))
        return false;
    if (is_known)
        return true;
    log_info("snapshot %s: left over, removing it", id);
    return driver_pause_call(all->config.driver, PAUSE_DROP, id, false, NULL, err);
}

void snapshots_drop_unknown(struct sandboxes *all)
{
    char after[LAYER_ID_BYTES] = "";
    struct kept page = { 0 };
    struct err err;
    bool ok = true;

    do {
        ok = driver_pause_call(all->config.driver, PAUSE_LIST, after, false, &page, &err);
        for (uint32_t i = 0; ok && i < page.layer_count; i++) {
            memcpy(after, page.layers[i], sizeof after);
            ok = drop_if_unknown(all, after, &err);
        }
    } while (ok && page.layer_count);
    if (!ok && err.kind != ERR_UNAVAILABLE)
        log_warn("snapshots that are left over stay until the next start: %s", err_text(&err));
}

enum { EVENT_BYTES = 4096 }; /* its name and tag are short */

struct event_row sandbox_snapshot_deleted(const struct snapshot_row *row, int64_t now_us, struct arena *arena)
{
    struct buf data = buf_make(arena, EVENT_BYTES);
    struct json_out json = json_out_to(&data);
    char time[CLOCK_TEXT_BYTES];

    json_out_object(&json, NULL);
    json_out_str(
        &json, "snapshot_id",
        arena_format(arena, "%.*s:%.*s", STR_ARG(row->name.len ? row->name : row->template_id), STR_ARG(row->tag)));
    json_out_str(&json, "delete_reason", STR("retention"));
    json_out_str(&json, "last_used_at", str_from(clock_text(row->used_us, time)));
    json_out_int(&json, "snapshot_bytes", (int64_t)(row->layer_bytes + row->image_bytes));
    json_out_end(&json);
    return (struct event_row){ .type = event_type_name[EVENT_SNAPSHOT_DELETED],
                               .sandbox_id = row->sandbox_id,
                               .team_id = row->team_id,
                               .template_id = row->template_id,
                               .at_us = now_us,
                               .data = buf_str(&data) };
}

/* ---- sizes ---- */

enum {
    MEASURE_AGAIN_MS = 20000, /* as long as memory may still be compressed */
    MEASURES_MAX = 100,       /* at once; each takes a process and reads directories */
};

/* With a reference, or NULL: one that is on disk and whose turn it is. */
static struct sandbox *next_to_measure(struct sandboxes *all, uint64_t now_ms)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb, *first = NULL;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        if (sb->state == SANDBOX_PAUSED && sb->held >= HELD_PARKED && sb->measure_ms <= now_ms &&
            (!first || sb->measure_ms < first->measure_ms))
            first = sb;
    return first ? sandbox_ref(first) : NULL;
}

void sandboxes_measure_paused(struct sandboxes *all)
{
    uint64_t now_ms = clock_mono_ms();
    struct sandbox *sb;
    struct kept kept;
    struct err err;

    for (int i = 0; i < MEASURES_MAX && !atomic_load(&all->is_stopping) && (sb = next_to_measure(all, now_ms)); i++) {
        bool ok = driver_pause_call(all->config.driver, PAUSE_MEASURE, sb->id, false, &kept, &err);
        {
            auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
            if (ok && sb->state == SANDBOX_PAUSED)
                sb->sizes = (struct sandbox_sizes){ .files_bytes = kept.layer_bytes,
                                                    .memory_bytes = kept.image_bytes,
                                                    .raw_bytes = kept.raw_bytes };
            sb->measure_ms = ok && kept.is_final ? UINT64_MAX : now_ms + MEASURE_AGAIN_MS;
        }
        if (!ok && err.kind != ERR_NOT_FOUND && err.kind != ERR_UNAVAILABLE)
            log_debug("sandbox %s: not measured: %s", sb->id, err_text(&err));
        sandbox_unref(sb);
    }
}

/* False when the rest must be left for the next time. */
static bool measure_snapshot(struct sandboxes *all, struct str kept_id, struct err *err)
{
    char id[LAYER_ID_BYTES];
    struct kept kept;

    if (!str_to_path(kept_id, id, sizeof id, err))
        return false;
    if (!driver_pause_call(all->config.driver, PAUSE_MEASURE, id, false, &kept, err))
        return err->kind == ERR_NOT_FOUND || err->kind == ERR_INVALID; /* it was deleted meanwhile, or is damaged */
    return !kept.is_final || !kept.image_bytes ||
           store_snapshot_measured(all->config.store, kept_id, kept.image_bytes, kept.raw_bytes, err);
}

void sandboxes_measure_snapshots(struct sandboxes *all)
{
    struct str *ids = NULL;
    size_t count = 0;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    bool ok = store_snapshot_unmeasured(all->config.store, MEASURES_MAX, &arena, &ids, &count, &err);
    for (size_t i = 0; ok && i < count && !atomic_load(&all->is_stopping); i++)
        ok = measure_snapshot(all, ids[i], &err);
    if (!ok && err.kind != ERR_UNAVAILABLE)
        log_debug("snapshots: not measured: %s", err_text(&err));
    arena_done(&arena);
}
