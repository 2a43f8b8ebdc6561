/*
 * What builds are on, and what can be dropped.
 *
 * The driver keeps a layer for as long as it is told to. Rows of the store say what is needed: builds, snapshots, sandboxes and
 * steps of the cache. They may all go while a build is between two steps on such a layer, or has just found it. So a build
 * holds each layer that it is on, in memory, from before it uses it until the build's end.
 *
 * One lock is around "find a row and hold its layers" and around "look for what no row refers to, leave out what is held, and
 * mark the rest as doomed". Layers are dropped after that, without the lock. A doomed one has no row, and gets none: who writes
 * rows holds what is in them. Only a build that unpacks the same layer of an image again can want it: it waits until it is gone.
 *
 * A hold does not keep a snapshot, which goes when its team deletes it. A layer on top of it keeps its layers. A build that has
 * none yet, and finds them gone, says so (base_is_there()).
 *
 * After a crash nothing is held, and no build runs.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "template/inside.h"

enum {
    CACHE_KEPT_S = 14 * 24 * 3600, /* a step that no build has used for this long is made anew */
    SWEEP_MOST = 256,              /* layers of one turn: keeper has other things to do, too */
    PRUNE_MS = 60 * 1000,          /* the caller waits */
};

/* One layer. It is there while builds hold it, or while it is doomed. */
struct hold {
    char id[LAYER_ID_BYTES];
    uint32_t builds;
    bool is_doomed;
};

void holds_init(struct holds *holds)
{
    pthread_mutex_init(&holds->lock, NULL);
    pthread_cond_init(&holds->changed, NULL);
    map_init(&holds->by_id);
}

void holds_done(struct holds *holds)
{
    map_done(&holds->by_id); /* nobody holds anything any more */
    pthread_cond_destroy(&holds->changed);
    pthread_mutex_destroy(&holds->lock);
}

/* ---- with the lock held ---- */

static struct hold *hold_of(struct holds *holds, struct str id)
{
    struct hold *hold = map_get(&holds->by_id, id);

    if (hold)
        return hold;
    hold = NEW(struct hold);
    memcpy(hold->id, id.at, MIN(id.len, sizeof hold->id - 1));
    (void)map_put(&holds->by_id, str_from(hold->id), hold);
    return hold;
}

static void drop_if_free(struct holds *holds, struct hold *hold)
{
    if (hold->builds || hold->is_doomed)
        return;
    (void)map_remove(&holds->by_id, str_from(hold->id));
    free(hold);
}

static void hold_one(struct build *build, struct str id)
{
    struct holds *holds = &build->builder->holds;

    if (id.len >= LAYER_ID_BYTES || map_get(&build->held, id))
        return; /* too long: no layer has such an id */
    struct hold *hold = hold_of(holds, id);
    while (hold->is_doomed) {
        pthread_cond_wait(&holds->changed, &holds->lock);
        hold = hold_of(holds, id);
    }
    hold->builds++;
    (void)map_put(&build->held, str_from(hold->id), hold);
}

void layers_hold(struct build *build, const struct str *layers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hold_one(build, layers[i]);
}

bool layer_is_held(void *context, struct str id)
{
    struct builder *builder = context;

    return map_get(&builder->holds.by_id, id) != NULL;
}

size_t layers_doom(struct builder *builder, struct str *ids, size_t count, size_t most)
{
    size_t kept = 0;

    for (size_t i = 0; i < count && kept < most; i++) {
        if (ids[i].len >= LAYER_ID_BYTES || layer_is_held(builder, ids[i]))
            continue; /* in use, or another one is about to drop it */
        hold_of(&builder->holds, ids[i])->is_doomed = true;
        ids[kept++] = ids[i];
    }
    return kept;
}

/* ---- without it ---- */

void build_let_go(struct build *build)
{
    struct holds *holds = &build->builder->holds;
    auto_unlock pthread_mutex_t *held = lock_mutex(&holds->lock);
    struct hold *hold;

    for (size_t i = 0; (hold = map_next(&build->held, &i));) {
        hold->builds--;
        drop_if_free(holds, hold);
    }
    map_done(&build->held);
    map_init(&build->held);
}

static void undoom(struct builder *builder, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->holds.lock);
    struct hold *hold = map_get(&builder->holds.by_id, id);

    hold->is_doomed = false;
    drop_if_free(&builder->holds, hold); /* nobody could hold it, but some may wait to */
    pthread_cond_broadcast(&builder->holds.changed);
}

bool layers_drop(struct builder *builder, const struct str *ids, size_t count, uint64_t until_ms, size_t *out_dropped,
                 struct err *err)
{
    bool ok = true, goes_on = true;
    struct err why;

    *out_dropped = 0;
    for (size_t i = 0; i < count; i++) {
        if (goes_on && clock_mono_ms() < until_ms) {
            if (sandbox_drop_snapshot(builder->config.sandboxes, ids[i], &why) &&
                store_build_forget(builder->config.store, ids[i], &why)) {
                ++*out_dropped;
            } else {
                goes_on = why.kind != ERR_UNAVAILABLE; /* of all of them */
                if (ok)
                    *err = why;
                ok = false;
            }
        }
        undoom(builder, ids[i]);
    }
    return ok;
}

/* ---- what is too old, or was left behind ---- */

static bool doom_unused(struct builder *builder, struct arena *arena, struct str **out, size_t *out_count,
                        bool *out_more, struct err *err)
{
    const int64_t before_us = clock_wall_us() - CACHE_KEPT_S * INT64_C(1000000);
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->holds.lock);
    size_t count;

    if (!store_builds_unused(builder->config.store, before_us, arena, out, &count, err))
        return false;
    *out_count = layers_doom(builder, *out, count, SWEEP_MOST);
    *out_more = *out_count == SWEEP_MOST;
    return true;
}

bool unused_sweep(struct builder *builder)
{
    struct str *ids;
    size_t count = 0, dropped;
    bool more = false;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    bool ok = doom_unused(builder, &arena, &ids, &count, &more, &err) &&
              layers_drop(builder, ids, count, UINT64_MAX, &dropped, &err);
    if (!ok && err.kind != ERR_UNAVAILABLE)
        log_warn("builds: layers that nothing needs stay for now: %s", err_text(&err));
    arena_done(&arena);
    return ok && more;
}

/* ---- what somebody wants to be rid of ---- */

static bool doom_pruned(struct builder *builder, const struct cache_prune *want, struct arena *arena,
                        struct cache_pruned *out, size_t *out_doomed, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->holds.lock);

    if (!store_cache_prune(builder->config.store, want, arena, out, err))
        return false;
    *out_doomed = want->dry_run ? 0 : layers_doom(builder, out->kept_ids, out->count, out->count);
    return true;
}

static bool prune(struct builder *builder, const struct cache_prune *want, struct pruned *out, struct err *err)
{
    struct cache_pruned pruned;
    size_t doomed, dropped;
    struct arena arena;

    arena_init(&arena);
    bool ok = doom_pruned(builder, want, &arena, &pruned, &doomed, err) &&
              layers_drop(builder, pruned.kept_ids, doomed, clock_mono_ms() + PRUNE_MS, &dropped, err);
    if (ok)
        *out = (struct pruned){
            .steps = pruned.steps, .layers = pruned.count, .bytes = pruned.bytes, .left = doomed - dropped
        };
    arena_done(&arena);
    return ok;
}

bool builder_prune(struct builder *builder, struct str team_id, bool dry_run, struct pruned *out, struct err *err)
{
    const struct cache_prune want = {
        .team_id = team_id, .dry_run = dry_run, .is_held = layer_is_held, .context = builder
    };

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
        if (builder->is_stopping)
            return err_set(err, ERR_UNAVAILABLE, "the server is stopping");
        builder->prunes++;
    }
    bool ok = prune(builder, &want, out, err);
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
    builder->prunes--;
    pthread_cond_broadcast(&builder->changed); /* builder_free() may go on: nothing of the builder is used below */
    return ok;
}
