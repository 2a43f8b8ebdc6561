/*
 * Copies of a running sandbox: a snapshot on disk, and a fork, which is a snapshot and sandboxes made from it.
 *
 * The sandbox is SNAPSHOTTING meanwhile: it stays routable and keeps its connections, which stand still as it does. With
 * memory guestd prepares first, as for a pause, and takes up again what it has dropped when the driver has answered.
 *
 * A copy has a new id and a new token before anything of it can be reached: guestd of a copy opens its ports with the
 * SETUP that sandbox_create() sends.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/inside.h"

enum { FORKS_AT_ONCE = 4 }; /* of one call: each has a worker, and reads an image from the disk */

/* ---- snapshot ---- */

/* May it be copied now, as far as its team is concerned? With the lock held. */
static bool has_turn(const struct sandbox *sb)
{
    const struct sandbox *other;
    unsigned of_team = 0;

    for (size_t i = 0; (other = map_next(&sb->all->by_id, &i));)
        of_team += other->state == SANDBOX_SNAPSHOTTING && str_eq(other->team_id, sb->team_id);
    return of_team < LIMIT_COPIES_PER_TEAM;
}

static bool await_turn(struct sandbox *sb, const struct timespec *until, struct err *err)
{
    return pthread_cond_timedwait(&sb->all->changed, &sb->all->lock, until) == 0 ||
           err_set(err, ERR_TIMEOUT, "%d sandboxes of the team are being copied, which takes too long",
                   LIMIT_COPIES_PER_TEAM);
}

static struct sandbox *begin_snapshot(struct sandboxes *all, struct str team_id, struct str id, struct err *err)
{
    struct timespec until = clock_wait_until(SANDBOX_TURN_MS);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = sandbox_of_team(all, team_id, id, err);
    bool ok = sb != NULL;

    if (!sb)
        return NULL;
    sandbox_ref(sb);
    while (ok && (sb->state == SANDBOX_SNAPSHOTTING || (sb->state == SANDBOX_RUNNING && !has_turn(sb))))
        ok = sb->state == SANDBOX_RUNNING ? await_turn(sb, &until, err) : sandbox_await_change(sb, &until, err);
    if (ok && sb->state != SANDBOX_RUNNING) {
        ok = sandbox_not_running(sb, err);
        err->kind = ERR_CONFLICT;
    }
    if (ok) {
        sandbox_enter(sb, SANDBOX_SNAPSHOTTING);
        sb->at_work++;
        return sb;
    }
    sandbox_unref(sb); /* perhaps the last one: it may be gone from the map by now */
    return NULL;
}

/* It runs on, or was killed meanwhile. */
static bool end_snapshot(struct sandbox *sb, struct err *err)
{
    struct sandboxes *all = sb->all;
    bool ok;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        ok = sb->state == SANDBOX_SNAPSHOTTING;
        if (ok)
            sandbox_enter(sb, SANDBOX_RUNNING);
        sandbox_work_done(sb);
    }
    sandboxes_look(all); /* its deadline may have passed, or its processes ended */
    return ok || err_set(err, ERR_NOT_FOUND, "Sandbox \"%s\" does not exist or is not accessible", sb->id);
}

static void drop(struct sandboxes *all, const struct kept *kept)
{
    struct err err;

    if (!driver_pause_call(all->config.driver, PAUSE_DROP, kept->id, false, NULL, &err))
        log_warn("snapshot %s: not removed: %s", kept->id, err_text(&err));
}

static bool prepare(struct sandbox *sb, struct arena *arena, int *out_fd, struct guestlink_ready *out, struct err *err)
{
    struct err why;

    if (sandbox_prepare(sb, arena, out_fd, out, &why) == GUEST_YES)
        return true;
    log_info("sandbox %s: no snapshot of its memory: %s", sb->id, err_text(&why));
    return err_set(err, ERR_UNAVAILABLE, "guestd does not answer: there is no snapshot, and the sandbox runs on");
}

/* In SNAPSHOTTING. */
static bool copy(struct sandbox *sb, enum pause_call call, bool memory, struct arena *arena, struct kept *out,
                 struct guestlink_ready *ready, struct err *err)
{
    const struct sandboxes_config *config = &sb->all->config;
    struct event_row event;
    int guestlink_fd = -1;
    struct err store_err;

    *ready = (struct guestlink_ready){ 0 };
    *out = (struct kept){ 0 };
    if (!sb->is_temporary &&
        !store_sandbox_change(config->store, str_from(sb->id),
                              &(struct sandbox_change){ .state = SANDBOX_ROW_SNAPSHOTTING }, NULL, err))
        return false;
    bool ok = (!(memory || call == PAUSE_COPY) || prepare(sb, arena, &guestlink_fd, ready, err)) &&
              sandbox_is_still(sb, SANDBOX_SNAPSHOTTING, err) &&
              driver_pause_call(config->driver, call, sb->id, memory, out, err);
    if (!sandbox_is_still(sb, SANDBOX_SNAPSHOTTING, &store_err)) {
        fd_close(&guestlink_fd);
        return ok; /* its row goes, and end_snapshot() says so */
    }
    sandbox_take_back(sb, guestlink_fd);
    if (sb->is_temporary)
        return ok;
    if (ok)
        event = record_checkpointed(sb, out, arena);
    if (!store_sandbox_change(config->store, str_from(sb->id), &(struct sandbox_change){ .state = SANDBOX_ROW_RUNNING },
                              ok ? &event : NULL, &store_err) &&
        store_err.kind != ERR_NOT_FOUND) /* else it was killed just now, and has no row */
        log_warn("sandbox %s: runs on after a snapshot, which its row does not say: %s", sb->id, err_text(&store_err));
    return ok;
}

/* The layers of a sandbox that is made from it. */
static void list_layers(const struct kept *kept, struct arena *arena, uint32_t *out_count, const struct str **out)
{
    struct str *layers = ARENA_ARRAY(arena, struct str, kept->layer_count);

    for (uint32_t i = 0; i < kept->layer_count; i++)
        layers[i] = arena_copy(arena, str_from(kept->layers[i]));
    *out = layers;
    *out_count = kept->layer_count;
}

/* Lends the sandbox: the caller unrefs it. */
static struct sandbox *take_snapshot(struct sandboxes *all, struct str team_id, struct str id, enum pause_call call,
                                     bool memory, struct arena *arena, struct kept *out, struct guestlink_ready *ready,
                                     struct err *err)
{
    struct sandbox *sb = begin_snapshot(all, team_id, id, err);
    struct err gone;

    if (!sb)
        return NULL;
    bool ok = copy(sb, call, memory, arena, out, ready, err);
    if (!end_snapshot(sb, &gone)) {
        if (ok)
            drop(all, out);
        *err = gone;
        ok = false;
    }
    if (ok)
        return sb;
    if (err->sys)
        err->kind = ERR_INTERNAL;
    (void)err_wrap(err, "copy sandbox %s", sb->id);
    sandbox_unref(sb);
    return NULL;
}

bool sandbox_snapshot(struct sandboxes *all, struct str team_id, struct str id, bool memory, struct arena *arena,
                      struct kept *out, struct sandbox_info *out_info, uint32_t *out_layer_count,
                      const struct str **out_layers, struct err *err)
{
    struct guestlink_ready ready;
    struct sandbox *sb = take_snapshot(all, team_id, id, PAUSE_SNAPSHOT, memory, arena, out, &ready, err);

    if (!sb)
        return false;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sandbox_describe(sb, arena, out_info);
    }
    list_layers(out, arena, out_layer_count, out_layers);
    log_info("sandbox %s: copied to snapshot %s%s", sb->id, out->id, out->has_image ? "" : ", files only");
    sandbox_unref(sb);
    return true;
}

/* ---- fork ---- */

/*
 * The copies of one call. The calling worker makes them, and up to FORKS_AT_ONCE - 1 other workers help it, from a lane: each takes the
 * next number until there is none. The caller waits only for helpers that have begun, so that workers that all fork cannot
 * wait for each other. A helper that comes later finds nothing to do, and frees what is left.
 */
struct forks {
    struct sandboxes *all;
    atomic_uint references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t count, next, busy;
    const struct sandbox_want *want; /* the caller's, as long as `busy` or it is at work */
    struct arena *arena;             /* the same; under the lock */
    struct fork_result *out;         /* the same */
};

struct helper {
    struct job job;
    struct forks *forks;
    struct helper *next, **at; /* among all->helpers: the workers may end before it has its turn */
};

static void forks_unref(struct forks *forks)
{
    if (atomic_fetch_sub(&forks->references, 1) > 1)
        return;
    pthread_cond_destroy(&forks->changed);
    pthread_mutex_destroy(&forks->lock);
    free(forks);
}

static void copy_info(const struct sandbox_info *from, struct arena *arena, struct sandbox_info *out)
{
    struct pair *metadata = ARENA_ARRAY(arena, struct pair, from->metadata_count);

    *out = *from;
    out->id = arena_copy(arena, from->id);
    out->team_id = arena_copy(arena, from->team_id);
    out->template_id = arena_copy(arena, from->template_id);
    out->alias = arena_copy(arena, from->alias);
    out->guestd_version = arena_copy(arena, from->guestd_version);
    out->access_token = arena_copy(arena, from->access_token);
    out->traffic_token = arena_copy(arena, from->traffic_token);
    out->mask_host = arena_copy(arena, from->mask_host);
    out->default_user = arena_copy(arena, from->default_user);
    out->default_workdir = arena_copy(arena, from->default_workdir);
    for (uint32_t i = 0; i < from->metadata_count; i++)
        metadata[i] =
            (struct pair){ arena_copy(arena, from->metadata[i].name), arena_copy(arena, from->metadata[i].value) };
    out->metadata = metadata;
    out->network = (struct net_policy){ 0 }; /* as in lists */
    out->https_port_count = 0;
    out->https_ports = NULL;
}

/* Makes copies until none is left to make. */
static void make_forks(struct forks *forks)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&forks->lock);

    forks->busy++;
    while (forks->next < forks->count) {
        struct fork_result *result = &forks->out[forks->next++];
        struct sandbox_info info;
        struct arena arena;
        struct err err;
        arena_init(&arena);
        pthread_mutex_unlock(&forks->lock);
        bool ok = sandbox_create(forks->all, forks->want, &arena, &info, &err);
        pthread_mutex_lock(&forks->lock);
        *result = (struct fork_result){ .ok = ok };
        if (ok)
            copy_info(&info, forks->arena, &result->info);
        else
            result->err = err;
        arena_done(&arena);
    }
    forks->busy--;
    pthread_cond_broadcast(&forks->changed);
}

static void helper_run(struct job *job)
{
    make_forks(container_of(job, struct helper, job)->forks);
}

static void helper_free(struct helper *helper)
{
    forks_unref(helper->forks);
    free(helper);
}

static void helper_done(struct job *job)
{
    struct helper *helper = container_of(job, struct helper, job);

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&helper->forks->all->lock);
        *helper->at = helper->next;
        if (helper->next)
            helper->next->at = helper->at;
    }
    helper_free(helper);
}

struct lane *forking_lane(struct workers *workers)
{
    return lane_new(workers, &(struct lane_rule){ .most = LIMIT_FORK_HELPERS,
                                                  .most_each = LIMIT_FORK_HELPERS_PER_KEY,
                                                  .waiting_each = LIMIT_STARTS_PER_KEY * (FORKS_AT_ONCE - 1) });
}

static void ask_for_help(struct sandboxes *all, struct forks *forks)
{
    struct helper *helper = NEW(struct helper);

    *helper = (struct helper){ .job = { .run = helper_run, .done = helper_done }, .forks = forks };
    atomic_fetch_add(&forks->references, 1);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        helper->next = all->helpers;
        helper->at = &all->helpers;
        if (helper->next)
            helper->next->at = &helper->next;
        all->helpers = helper;
    }
    if (!lane_run(all->forking, forks->want->key_id, 0, &helper->job))
        helper_done(&helper->job); /* the caller makes them all */
}

void forks_done(struct sandboxes *all)
{
    for (struct helper *helper = take_ptr(&all->helpers), *next; helper; helper = next) {
        next = helper->next;
        helper_free(helper);
    }
}

static void fork_all(struct sandboxes *all, const struct sandbox_want *want, uint32_t count, struct arena *arena,
                     struct fork_result *out)
{
    struct forks *forks = NEW(struct forks);

    *forks = (struct forks){ .all = all, .count = count, .want = want, .arena = arena, .out = out };
    atomic_init(&forks->references, 1);
    pthread_mutex_init(&forks->lock, NULL);
    pthread_cond_init(&forks->changed, NULL);
    for (uint32_t i = 1; i < MIN(count, (uint32_t)FORKS_AT_ONCE); i++)
        ask_for_help(all, forks);
    make_forks(forks);
    pthread_mutex_lock(&forks->lock);
    while (forks->busy)
        pthread_cond_wait(&forks->changed, &forks->lock);
    pthread_mutex_unlock(&forks->lock);
    forks_unref(forks);
}

/* What the copies have in common with it. */
static void want_like(struct sandbox *sb, struct arena *arena, struct sandbox_want *out)
{
    *out = (struct sandbox_want){
        .team_id = sb->team_id,
        .template_id = sb->template_id,
        .alias = sb->alias,
        .guestd_version = sb->guestd_version,
        .cpu_count = sb->cpu_count,
        .memory_mb = sb->memory_mb,
        .disk_mb = sb->disk_mb,
        .metadata_count = sb->metadata_count,
        .metadata = sb->metadata,
        .is_private = sb->traffic_token.len > 0,
        .mask_host = sb->mask_host,
        .https_port_count = sb->https_port_count,
        .https_ports = sb->https_ports,
        .open_code = sb->open_code,
        .lifecycle = sb->lifecycle,
        .default_user = sb->default_user,
        .default_workdir = sb->default_workdir,
    };
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
    (void)!sandbox_read_policy(sb, arena, &out->network); /* our own bytes; empty if there is none */
}

static bool may_fork(const struct sandboxes *all, uint32_t count, uint64_t timeout_s, struct err *err)
{
    const struct sandboxes_config *config = &all->config;
    unsigned most = config->per_key_max ? MIN(config->per_key_max, config->sandboxes_max) : config->sandboxes_max;

    if (count < 1 || count > LIMIT_FORKS)
        return err_set(err, ERR_INVALID, "a fork makes between 1 and %d copies", LIMIT_FORKS);
    if (count >= most) /* the original runs, too */
        return err_set(err, ERR_INVALID, "%u copies are more than may run at once", count);
    if (timeout_s < 1 || timeout_s > config->timeout_max_s)
        return err_set(err, ERR_INVALID, "the timeout must be between 1 and %llu seconds",
                       (unsigned long long)config->timeout_max_s);
    return true;
}

bool sandbox_fork(struct sandboxes *all, struct str team_id, struct str id, uint32_t count, uint64_t timeout_s,
                  struct str key_id, struct arena *arena, struct fork_result *out, struct err *err)
{
    struct guestlink_ready ready;
    struct sandbox_want want;
    struct kept kept;

    if (!may_fork(all, count, timeout_s, err))
        return false;
    struct sandbox *sb = take_snapshot(all, team_id, id, PAUSE_COPY, false, arena, &kept, &ready, err);
    if (!sb)
        return false;
    want_like(sb, arena, &want);
    struct pair *envs = ARENA_ARRAY(arena, struct pair, ready.env_count);
    for (uint32_t i = 0; i < ready.env_count; i++)
        envs[i] = (struct pair){ ready.envs[i].name, ready.envs[i].value };
    want.envs = envs;
    want.env_count = ready.env_count;
    want.timeout_s = timeout_s;
    want.key_id = key_id;
    want.image = str_from(kept.id);
    list_layers(&kept, arena, &want.layer_count, &want.layers);
    fork_all(all, &want, count, arena, out);
    for (uint32_t i = 0; i < count; i++)
        if (out[i].ok)
            log_info("sandbox %.*s: forked from %s", STR_ARG(out[i].info.id), sb->id);
    drop(all, &kept); /* the sandboxes that were made hold its layer */
    sandbox_unref(sb);
    return true;
}
