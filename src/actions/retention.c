/*
 * What nobody has used for as many days as the operator says goes: snapshots and paused sandboxes. Without those options all
 * is kept until somebody deletes it. A snapshot that sandboxes were made from is in use as long as one of them runs or is
 * paused. Each end is in the log, and is an event of the sandbox, as a kill is.
 */
#include "actions/actions.h"
#include "base/clock.h"
#include "base/log.h"

static int64_t days_ago_us(int64_t now_us, uint32_t days)
{
    return now_us - (int64_t)days * 24 * 3600 * 1000000;
}

static void sweep_snapshots(const struct actions *actions, int64_t now_us, struct arena *arena)
{
    int64_t before_us = days_ago_us(now_us, actions->retention.snapshot_days);
    struct snapshot_row *rows = NULL;
    size_t count = 0, gone = 0;
    struct err err;
    bool expired;

    if (!store_snapshot_unused(actions->store, before_us, now_us, arena, &rows, &count, &err)) {
        log_warn("retention: %s", err_text(&err));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct event_row event = sandbox_snapshot_deleted(&rows[i], now_us, arena);
        if (!store_snapshot_expire(actions->store, rows[i].kept_id, before_us, &event, &expired, &err)) {
            log_warn("snapshot %.*s: not deleted: %s", STR_ARG(rows[i].kept_id), err_text(&err));
        } else if (expired) {
            gone++;
            log_info("snapshot %.*s (%.*s:%.*s of sandbox %.*s): deleted, nobody has used it for %u days",
                     STR_ARG(rows[i].kept_id), STR_ARG(rows[i].name.len ? rows[i].name : rows[i].template_id),
                     STR_ARG(rows[i].tag), STR_ARG(rows[i].sandbox_id), actions->retention.snapshot_days);
        }
    }
    if (gone)
        snapshots_drop_removed(actions, arena);
}

void action_sweep_kept(const struct actions *actions)
{
    int64_t now_us = clock_wall_us();
    struct arena arena;

    if (actions->retention.paused_days)
        sandboxes_kill_paused(actions->sandboxes, days_ago_us(now_us, actions->retention.paused_days));
    if (!actions->retention.snapshot_days)
        return;
    arena_init(&arena);
    sweep_snapshots(actions, now_us, &arena);
    arena_done(&arena);
}
