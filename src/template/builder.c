/*
 * Builds, and their turns. builder_start() queues one; as many run as config.at_once says, each on a thread of its own, and
 * teams take turns: of those that wait, the first one of the team with the fewest that run is next. One turn is never a
 * team's that has all the others: a build may take an hour, which another team need not wait.
 *
 * A build's thread does all of it: what it begins with (base.c), the steps (steps.c), the start command (finalize.c). Its last
 * act is the row in state READY or ERROR. A cancelled one notices within BUILD_LOOK_MS, whatever it waits for.
 *
 * What nothing needs any more is dropped from time to time, and when no other build runs (sweep.c).
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "template/inside.h"

enum { STACK_BYTES = 512 * 1024 };

#define CANCELLED "build was cancelled"

/* ---- while it runs ---- */

bool build_fail(struct build *build, const char *format, ...)
{
    char room[BUILD_REASON_BYTES];
    va_list args;

    if (build->reason.len)
        return false;
    va_start(args, format);
    int len = vsnprintf(room, sizeof room, format, args);
    va_end(args);
    build->reason = arena_copy(&build->arena, str_of(room, MIN((size_t)MAX(len, 0), sizeof room - 1)));
    return false;
}

bool build_fail_err(struct build *build, const struct err *err)
{
    log_warn("build %.*s: %s", STR_ARG(build->want.build_id), err_text(err));
    if (err->kind == ERR_FULL)
        return build_fail(build, "the server's disk is full: %s", err->message);
    if (err->kind == ERR_INTERNAL || err->sys)
        return build_fail(build, "an internal error has ended the build %.*s: the server's log says more",
                          STR_ARG(build->want.build_id));
    return build_fail(build, "%s", err->message);
}

bool build_goes_on(struct build *build)
{
    struct builder *builder = build->builder;

    if (build->reason.len)
        return false;
    if (atomic_load(&build->is_cancelled)) {
        auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
        build->step[0] = '\0';
        return build_fail(build, "%s", build->why);
    }
    if (clock_mono_ms() >= build->until_ms)
        return build_fail(build, "the build takes longer than %d minutes", LIMIT_BUILD_MS / 60000);
    return true;
}

static void finish_failed(struct build *build)
{
    struct store *store = build->builder->config.store;
    struct build_row row = {
        .id = build->want.build_id, .state = BUILD_ERROR, .reason = build->reason, .reason_step = str_from(build->step)
    };
    struct err err;

    build_say(build, BUILD_LEVEL_ERROR, "Build failed: %.*s", STR_ARG(build->reason));
    log_flush(build); /* before the state: a client that sees it reads the log once more */
    if (!store_build_finish(store, &row, &err) && err.kind != ERR_NOT_FOUND)
        log_error("build %.*s: it has failed, which its row does not say: %s", STR_ARG(row.id), err_text(&err));
    log_info("build %.*s: failed: %.*s", STR_ARG(row.id), STR_ARG(row.reason));
}

/* Nobody else knows the image yet. */
static void drop_image(struct build *build, const struct build_row *row)
{
    struct err err;

    if (row->image.len && !sandbox_drop_snapshot(build->builder->config.sandboxes, row->image, &err))
        log_warn("build %.*s: its image stays until the next start: %s", STR_ARG(row->id), err_text(&err));
}

static struct replaced find_replaced(struct build *build)
{
    struct store *store = build->builder->config.store;
    struct build_row row;
    struct err ignored; /* it was deleted */

    if (!store_build_get(store, build->want.build_id, &build->arena, &row, &ignored))
        return (struct replaced){ 0 };
    return replaced_find(store, row.template_id, row.tags, row.tag_count, &build->arena);
}

static bool run_all(struct build *build, struct build_row *row, uint64_t since_ms)
{
    struct err err;

    build_say(build, BUILD_INFO, "Building template %.*s/%.*s", STR_ARG(build->want.template_id),
              STR_ARG(build->want.build_id));
    build->is_forced = build->want.force;
    if (!run_base(build) || !run_steps(build))
        return false;
    (void)snprintf(build->step, sizeof build->step, "finalize");
    (void)snprintf(build->prefix, sizeof build->prefix, "finalize");
    if (!run_finalize(build, row))
        return false;
    build->step[0] = '\0';
    build_say(build, BUILD_INFO, "Build finished, took %llus",
              (unsigned long long)((clock_mono_ms() - since_ms) / 1000));
    log_flush(build);
    const struct replaced replaced = find_replaced(build);
    if (build_goes_on(build) &&
        (store_build_finish(build->builder->config.store, row, &err) || build_fail_err(build, &err))) {
        replaced_retire(&replaced, build->builder->config.sandboxes, row->id);
        return true;
    }
    drop_image(build, row);
    return false;
}

static void run_build(struct build *build)
{
    struct build_row row = { .id = build->want.build_id,
                             .state = BUILD_READY,
                             .cpu_count = build->want.cpu_count,
                             .memory_mb = build->want.memory_mb,
                             .disk_mb = build->builder->config.disk_mb,
                             .guestd_version = str_from(build->builder->config.guestd_version) };
    uint64_t since_ms = clock_mono_ms();

    build->until_ms = since_ms + LIMIT_BUILD_MS;
    if (run_all(build, &row, since_ms))
        log_info("build %.*s: ready", STR_ARG(row.id));
    else
        finish_failed(build);
}

/* ---- turns ---- */

static void wipe(struct str text)
{
    if (text.len)
        explicit_bzero((char *)text.at, text.len); /* our own copy, in the build's arena */
}

static void build_free(struct build *build)
{
    struct registry_login *login = &build->want.login;

    wipe(login->user);
    wipe(login->password);
    wipe(login->key_id);
    wipe(login->key);
    wipe(login->account);
    log_done(build);
    build_let_go(build);
    map_done(&build->held);
    arena_done(&build->arena);
    free(build);
}

/* With the lock held. */
static void unlink_build(struct builder *builder, struct build *build)
{
    struct build **at = &builder->builds;

    while (*at != build)
        at = &(*at)->next;
    *at = build->next;
}

static uint32_t count_of_team(const struct builder *builder, struct str team_id, bool running_only)
{
    uint32_t count = 0;

    for (const struct build *build = builder->builds; build; build = build->next)
        count += str_eq(build->want.team_id, team_id) && (build->is_running || !running_only);
    return count;
}

static struct build *next_in_turn(const struct builder *builder)
{
    struct build *best = NULL;
    uint32_t least = MAX(builder->config.at_once, 2U) - 1; /* as many as a team may have */

    for (struct build *build = builder->builds; build; build = build->next) {
        if (build->is_running || build->is_beginning)
            continue;
        uint32_t running = count_of_team(builder, build->want.team_id, true);
        if (running < least) {
            best = build;
            least = running;
        }
    }
    return best;
}

static void *build_thread(void *context);

/* With the lock held: starts what has its turn. */
static void start_next(struct builder *builder)
{
    pthread_attr_t attr;

    while (!builder->is_stopping && builder->running < builder->config.at_once) {
        struct build *build = next_in_turn(builder);
        pthread_t thread;
        if (!build)
            return;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        bool ok = pthread_create(&thread, &attr, build_thread, build) == 0;
        pthread_attr_destroy(&attr);
        if (!ok) {
            log_error("build %.*s: no thread for it; it waits for the next one to end", STR_ARG(build->want.build_id));
            return;
        }
        build->is_running = true;
        build->began_us = clock_wall_us();
        builder->running++;
    }
}

/* ---- what nothing needs ---- */

/* With the lock held. False: somebody does it already, or it is too late. */
static bool begin_sweep(struct builder *builder)
{
    if (builder->is_sweeping || builder->is_stopping)
        return false;
    builder->is_sweeping = true;
    return true;
}

bool builder_tidy(struct builder *builder)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
        if (!begin_sweep(builder))
            return false;
    }
    bool more = unused_sweep(builder);
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
    builder->is_sweeping = false;
    pthread_cond_broadcast(&builder->changed); /* builder_free() may go on: nothing of the builder is used below */
    return more;
}

static void *build_thread(void *context)
{
    struct build *build = context;
    struct builder *builder = build->builder;
    sigset_t all;

    sigfillset(&all); /* signals are the loop's */
    (void)pthread_sigmask(SIG_SETMASK, &all, NULL);
    run_build(build);
    bool sweeps;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
        unlink_build(builder, build);
        sweeps = builder->running == 1 && begin_sweep(builder); /* of many, only the last: it reads all rows */
    }
    build_free(build);
    if (sweeps)
        (void)unused_sweep(builder);
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
    if (sweeps)
        builder->is_sweeping = false;
    builder->running--;
    start_next(builder);
    pthread_cond_broadcast(&builder->changed); /* builder_free() may go on: nothing of the builder is used below */
    return NULL;
}

/* ---- asked from outside ---- */

struct builder *builder_new(const struct builder_config *config, struct err *err)
{
    struct builder *builder = NEW(struct builder);
    pthread_condattr_t attr;

    if (!store_builds_cut_off(config->store, "the server was stopped during the build: start it again", err)) {
        free(builder);
        return NULL;
    }
    builder->config = *config;
    if (!builder->config.at_once)
        builder->config.at_once = LIMIT_BUILDS_AT_ONCE;
    if (!builder->config.per_team)
        builder->config.per_team = LIMIT_BUILDS_TEAM;
    if (!builder->config.bytes)
        builder->config.bytes = LIMIT_BUILD_BYTES;
    if (!builder->config.bytes_of_team)
        builder->config.bytes_of_team = LIMIT_BUILD_BYTES_TEAM;
    pthread_mutex_init(&builder->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&builder->changed, &attr);
    pthread_condattr_destroy(&attr);
    map_init(&builder->busy);
    holds_init(&builder->holds);
    return builder;
}

static void copy_strs(struct arena *arena, const struct str **list, uint32_t count)
{
    struct str *copy = ARENA_ARRAY(arena, struct str, count);

    for (uint32_t i = 0; i < count; i++)
        copy[i] = arena_copy(arena, (*list)[i]);
    *list = copy;
}

static void copy_want(struct arena *arena, const struct build_want *from, struct build_want *out)
{
    struct build_step *steps = ARENA_ARRAY(arena, struct build_step, from->step_count);

    *out = *from;
    for (struct str **text =
             (struct str *[]){ &out->build_id,       &out->template_id,   &out->team_id,       &out->from_image,
                               &out->from_build,     &out->from_text,     &out->from_snapshot, &out->from_tag,
                               &out->from_archive,   &out->archive_image, &out->from_error,    &out->login.user,
                               &out->login.password, &out->login.key_id,  &out->login.key,     &out->login.region,
                               &out->login.account,  &out->start_cmd,     &out->ready_cmd,     NULL };
         *text; text++)
        **text = arena_copy(arena, **text);
    copy_strs(arena, &out->from_layers, out->from_layer_count);
    for (uint32_t i = 0; i < from->step_count; i++) {
        steps[i] = from->steps[i];
        steps[i].type_text = arena_copy(arena, steps[i].type_text);
        steps[i].files_hash = arena_copy(arena, steps[i].files_hash);
        copy_strs(arena, &steps[i].args, steps[i].arg_count);
    }
    out->steps = steps;
}

/* With the lock held. */
static void mark_cancelled(struct build *build, const char *why)
{
    if (atomic_load(&build->is_cancelled))
        return;
    (void)snprintf(build->why, sizeof build->why, "%s", why);
    atomic_store(&build->is_cancelled, true);
}

/* It has no place in the list, and never had its turn. */
static void end_unrun(struct build *build)
{
    (void)!build_goes_on(build); /* which says why */
    finish_failed(build);
    build_free(build);
}

/* If it is in the list, before `before`; NULL: anywhere. */
static void cancel_before(struct builder *builder, struct str build_id, const char *why, const struct build *before)
{
    struct build *waiting = NULL;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
        for (struct build *build = builder->builds; build && build != before; build = build->next)
            if (str_eq(build->want.build_id, build_id)) {
                mark_cancelled(build, why);
                waiting = build->is_running || build->is_beginning ? NULL : build;
                break;
            }
        if (waiting)
            unlink_build(builder, waiting);
        pthread_cond_broadcast(&builder->changed);
    }
    if (waiting)
        end_unrun(waiting);
}

/* Those that the new one takes the place of. Of two that begin at the same time, the later in the list goes on. */
static bool cancel_others(struct builder *builder, const struct build *build, struct err *err)
{
    const struct build_want *want = &build->want;
    struct build_row row;
    struct str *ids;
    size_t count;
    struct arena arena;

    arena_init(&arena);
    bool ok = store_build_get(builder->config.store, want->build_id, &arena, &row, err) &&
              store_builds_running(builder->config.store, want->template_id, row.tags, row.tag_count, &arena, &ids,
                                   &count, err);
    for (size_t i = 0; ok && i < count; i++)
        if (!str_eq(ids[i], want->build_id))
            cancel_before(builder, ids[i], CANCELLED, build);
    arena_done(&arena);
    return ok;
}

/* A place in the list comes before the row says that it is being built: who cancels what the rows say finds it there. */
static bool take_place(struct builder *builder, struct build *build, struct err *err)
{
    const struct build_want *want = &build->want;
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
    struct build **at = &builder->builds;

    if (count_of_team(builder, want->team_id, false) >= builder->config.per_team)
        return err_set(err, ERR_LIMIT,
                       "%u builds of this team run or wait, which is as many as it may have: wait for one to end",
                       builder->config.per_team);
    for (; *at; at = &(*at)->next)
        if (str_eq((*at)->want.build_id, want->build_id))
            return err_set(err, ERR_CONFLICT, "build is not in waiting state");
    build->is_beginning = true;
    *at = build;
    return true;
}

static void leave_place(struct builder *builder, struct build *build)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    unlink_build(builder, build);
}

/* From its place on. False: it was cancelled meanwhile, and has no place any more. */
static bool await_turn(struct builder *builder, struct build *build)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    build->is_beginning = false;
    if (atomic_load(&build->is_cancelled)) {
        unlink_build(builder, build);
        return false;
    }
    start_next(builder);
    return true;
}

bool builder_start(struct builder *builder, const struct build_want *want, struct err *err)
{
    if (want->step_count > LIMIT_BUILD_STEPS)
        return err_set(err, ERR_LIMIT, "a recipe has at most %d steps", LIMIT_BUILD_STEPS);
    struct build *build = NEW(struct build);
    build->builder = builder;
    arena_init(&build->arena);
    map_init(&build->held);
    copy_want(&build->arena, want, &build->want);
    log_begin(build);
    if (!take_place(builder, build, err)) {
        build_free(build);
        return false;
    }
    if (!store_build_begin(builder->config.store, want->build_id, err)) {
        leave_place(builder, build);
        build_free(build);
        return false;
    }
    if (!cancel_others(builder, build, err)) {
        leave_place(builder, build);
        (void)build_fail_err(build, err);
        end_unrun(build);
        return false;
    }
    if (!await_turn(builder, build))
        end_unrun(build);
    return true;
}

void builder_cancel(struct builder *builder, struct str build_id, const char *why)
{
    cancel_before(builder, build_id, why, NULL);
}

void builder_stop(struct builder *builder)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    builder->is_stopping = true;
    for (struct build *build = builder->builds; build; build = build->next)
        mark_cancelled(build, "the server was stopped during the build: start it again");
    pthread_cond_broadcast(&builder->changed);
}

bool builder_is_busy(struct builder *builder)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    return builder->running > 0 || builder->is_sweeping || builder->prunes > 0;
}

void builder_free(struct builder *builder)
{
    if (!builder)
        return;
    builder_stop(builder);
    pthread_mutex_lock(&builder->lock);
    while (builder->running || builder->is_sweeping || builder->prunes)
        pthread_cond_wait(&builder->changed, &builder->lock);
    pthread_mutex_unlock(&builder->lock);
    for (struct build *build = builder->builds, *next; build; build = next) {
        next = build->next;
        end_unrun(build);
    }
    map_done(&builder->busy);
    holds_done(&builder->holds);
    pthread_cond_destroy(&builder->changed);
    pthread_mutex_destroy(&builder->lock);
    free(builder);
}
