/*
 * The end of a sandbox. The caller's part ends when its row has gone, with the event of its end: from then on no call finds it,
 * and no crash of a role brings it back, because the next front ends what keeper holds without a row. (After a power cut in the
 * next seconds a paused one may be there again.) The rest happens behind the answer, on the loop, which never waits:
 *
 *   1. cut    the proxy's connections, before the caller is answered (the answer comes through the same loop) and before
 *             anything inside dies: a client must not take a cut answer for a complete one
 *   2. wait   for workers that have the driver change it, WORK_MS at most
 *   3. stop   the driver kills everything inside. LIMIT_ENDS are under way at a time, the others wait in a queue
 *   4. gone   the driver says that nothing of it runs: only now its place is free
 *
 * If the row cannot be removed (a full disk), the worker has the driver kill it before it answers. state.c has the states.
 */
#include <limits.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/inside.h"

enum {
    RETRY_MS = 2000, /* between attempts to end a sandbox */
    CUT_MS = 5000,   /* for the loop to cut connections; it takes one turn unless the loop has ended */
    GONE_MS = 500,   /* for the kernel to end all inside. One that takes longer is slow, and nothing waits for it */
    ASK_MS = 10000,  /* poll interval for a slow one, if the driver's report was lost */
    WORK_MS = 1000,  /* for a worker that pauses it, or brings it back, to be done */
    KILL_MS = 2000,  /* how long a second kill waits for the first; longer only if keeper does not answer */
};

/*
 * A request to the driver, until it is answered. The loop's. It needs no reference: its sandbox is in the map until the answer
 * says that it is gone.
 */
struct stop {
    struct queue_link place; /* in the manager's `stops` */
    struct sandbox *sandbox; /* NULL: the manager has ended */
};

/* ---- connections ---- */

void sandbox_cut(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        if (sb->connections == CONNECTIONS_NONE)
            return;
    }
    if (all->config.on_unroutable)
        all->config.on_unroutable(all->config.context, sb->id);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    sb->connections = CONNECTIONS_NONE;
    pthread_cond_broadcast(&all->changed);
}

static void on_cut_task(struct loop_task *task)
{
    struct sandbox *sb = container_of(task, struct sandbox, cut_task);

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->cut_posted = false;
    }
    sandbox_cut(sb);
    sandbox_unref(sb);
}

void sandbox_cut_and_wait(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    if (sb->connections == CONNECTIONS_OPEN)
        sb->connections = CONNECTIONS_CUTTING;
    if (sb->connections == CONNECTIONS_CUTTING && !sb->cut_posted) {
        sb->cut_posted = true;
        sb->cut_task.fn = on_cut_task;
        sandbox_ref(sb);
        loop_post(all->config.loop, &sb->cut_task);
    }
    struct timespec until = clock_wait_until(CUT_MS);
    while (sb->connections != CONNECTIONS_NONE)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0)
            break; /* the loop has ended, and its connections with it */
}

/* ---- behind the answer, on the loop ---- */

/* Nothing of it runs any more. */
static void forget(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sandbox_enter(sb, SANDBOX_GONE);
        sandbox_strike_off(sb);
        left_ended(all->left, sb->id, sb->paying_team_id);
    }
    metrics_end(all->metrics, str_from(sb->id), clock_wall_us());
    logs_end(all->logs, str_from(sb->id), clock_wall_us());
    log_info("sandbox %s: gone (%s)", sb->id, sb->reason);
    sandbox_unref(sb); /* the map's */
}

/* The sweep asks the driver again. why NULL: it has killed everything inside, or does so when it is this one's turn. */
static void ask_later(struct sandbox *sb, const struct err *why)
{
    struct sandboxes *all = sb->all;
    bool was_slow;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        was_slow = sb->is_slow;
        sb->is_slow |= !why;
        sb->stop_failed |= why != NULL;
        sb->retry_ms = clock_mono_ms() + (why ? RETRY_MS : sb->exited ? 0 : ASK_MS);
        pthread_cond_broadcast(&all->changed);
        pthread_cond_broadcast(&all->place_freed);
    }
    if (why)
        log_warn("sandbox %s: not ended, will try again: %s", sb->id, err_text(why));
    else if (!was_slow)
        log_info("sandbox %s: killed; it is still being cleared away", sb->id);
    if (why || !was_slow)
        sandbox_send_policy(sb);
    sandboxes_look(all);
}

static void on_stopped(void *context, bool gone, const struct err *err)
{
    struct stop *stop = context;
    struct sandbox *sb = stop->sandbox;

    queue_leave(&stop->place);
    free(stop);
    if (!sb)
        return;
    struct sandboxes *all = sb->all;
    all->stop_count--;
    if (gone && !err)
        forget(sb);
    else
        ask_later(sb, err);
    stops_step(all);
}

static void stop_one(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    struct stop *stop = NEW(struct stop);
    bool is_slow;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        is_slow = sb->is_slow;
    }
    stop->sandbox = sb;
    queue_join(&all->stops, &stop->place);
    all->stop_count++;
    /* The driver may not hold this sandbox; it then answers that the sandbox is gone. */
    driver_stop(all->config.driver, sb->id, is_slow ? 0 : GONE_MS, on_stopped, stop);
}

void stops_add(struct sandbox *sb)
{
    queue_join(&sb->all->to_stop, &sb->stop_place);
}

static unsigned stops_of_team(const struct sandboxes *all, struct str team_id)
{
    unsigned count = 0;

    for (struct queue_link *link = all->stops.first; link; link = link->next)
        count += str_eq(container_of(link, struct stop, place)->sandbox->team_id, team_id);
    return count;
}

/* Of the team with the fewest under way: one that kills many does not hold up the others. NULL: none waits. */
static struct sandbox *next_to_stop(const struct sandboxes *all)
{
    struct sandbox *next = NULL;
    unsigned fewest = UINT_MAX;

    for (struct queue_link *link = all->to_stop.first; link && fewest; link = link->next) {
        struct sandbox *sb = container_of(link, struct sandbox, stop_place);
        unsigned count = stops_of_team(all, sb->team_id);
        if (count < fewest) {
            next = sb;
            fewest = count;
        }
    }
    return next;
}

void stops_step(struct sandboxes *all)
{
    struct sandbox *next;

    if (all->is_in_stops)
        return; /* a driver has answered before driver_stop() returned: the loop below goes on */
    all->is_in_stops = true;
    while (all->stop_count < LIMIT_ENDS && (next = next_to_stop(all))) {
        queue_leave(&next->stop_place);
        stop_one(next);
    }
    all->is_in_stops = false;
}

void stops_done(struct sandboxes *all)
{
    while (all->stops.first) {
        struct stop *stop = container_of(all->stops.first, struct stop, place);
        stop->sandbox = NULL; /* the channel to keeper still has to answer it */
        queue_leave(&stop->place);
    }
}

/*
 * A stop waits until a worker that pauses, resumes or copies the sandbox has its answer from the driver, WORK_MS at most: two
 * requests about one sandbox would cross. If it takes longer, the driver is told to stop it nevertheless; the worker then stops
 * what it may still have started.
 */
static bool waits_for_workers(struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    if (!sb->at_work)
        return false;
    sb->retry_ms = clock_mono_ms() + WORK_MS;
    return true;
}

void sandbox_work_done(struct sandbox *sb)
{
    sb->at_work--;
    if (sb->state == SANDBOX_KILLED && !sb->at_work && sb->retry_ms != UINT64_MAX) {
        sb->retry_ms = 0;
        sandboxes_look_locked(sb->all);
    }
    pthread_cond_broadcast(&sb->all->changed);
}

static void on_end_task(struct loop_task *task)
{
    struct sandbox *sb = container_of(task, struct sandbox, end_task);

    sandbox_cut(sb);
    if (waits_for_workers(sb)) {
        sandbox_send_policy(sb);
        sandboxes_look(sb->all);
        return;
    }
    if (sb->all->stop_count >= LIMIT_ENDS)
        sandbox_send_policy(sb);
    stops_add(sb);
    stops_step(sb->all);
}

/* ---- the caller's part ---- */

static bool remove_row(struct sandbox *sb, struct err *err)
{
    struct event_row event;
    struct arena arena;

    arena_init(&arena);
    if (sb->kept_us)
        event = record_killed(sb, sb->reason, &arena);
    bool ok = store_sandbox_remove(sb->all->config.store, str_from(sb->id), sb->kept_us ? &event : NULL, err);
    arena_done(&arena);
    return ok;
}

static void await_workers(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct timespec until = clock_wait_until(WORK_MS);

    while (sb->at_work)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0)
            break;
}

/*
 * Its row is still there, and would bring it back after a crash. So it is killed first. If the row stays nevertheless, the next
 * front removes it; but one that was paused is listed again then, and a resume says that it is lost.
 */
static bool stop_before_row(struct sandbox *sb, struct err *err)
{
    struct err store_err;
    bool gone;

    sandbox_cut_and_wait(sb);
    await_workers(sb);
    if (!driver_stop_wait(sb->all->config.driver, sb->id, GONE_MS, &gone, err))
        return false;
    if (!remove_row(sb, &store_err)) /* perhaps there is room again, now that it is gone */
        log_warn("sandbox %s: killed, but its row stays until the next start: %s", sb->id, err_text(&store_err));
    return true;
}

/* The sweep tries again. */
static void end_later(struct sandbox *sb)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->retry_ms = clock_mono_ms() + RETRY_MS;
        sb->stop_failed = true;
        sandbox_enter(sb, SANDBOX_STOPPING);
    }
    sandboxes_look(sb->all);
}

bool sandbox_end(struct sandbox *sb, struct err *err)
{
    struct sandboxes *all = sb->all;
    struct err store_err;

    if (!remove_row(sb, &store_err)) {
        log_warn("sandbox %s: its row cannot be removed before it is killed: %s", sb->id, err_text(&store_err));
        if (!stop_before_row(sb, err)) {
            end_later(sb);
            return err_wrap(err, "end sandbox %s", sb->id);
        }
    }
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    sandbox_enter(sb, SANDBOX_KILLED);
    sb->retry_ms = UINT64_MAX;
    sb->end_task.fn = on_end_task;
    loop_post(all->config.loop, &sb->end_task);
    return true;
}

void sandbox_await_gone(struct sandboxes *all, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct timespec until = clock_wait_until(GONE_MS);
    const struct sandbox *sb;

    while ((sb = map_get(&all->by_id, id)) && !sb->is_slow)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0)
            break;
}

bool sandboxes_are_ending(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    const struct sandbox *sb;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        if (sb->state >= SANDBOX_STOPPING && !sb->is_slow)
            return true;
    return false;
}

/* ---- kill ---- */

/*
 * Takes it into ENDING for the caller, once no other worker is at it. With the lock held; ERR_TIMEOUT when that takes too
 * long. *out_ours is false when the other worker has killed it.
 */
static bool claim_end(struct sandbox *sb, const char *reason, bool *out_ours, struct err *err)
{
    struct timespec until = clock_wait_until(KILL_MS);

    while (sb->state == SANDBOX_ENDING)
        if (pthread_cond_timedwait(&sb->all->changed, &sb->all->lock, &until) != 0)
            return err_set(err, ERR_TIMEOUT, "Sandbox \"%s\" is being killed", sb->id);
    *out_ours = sandbox_may_enter(sb->state, SANDBOX_ENDING);
    if (!*out_ours)
        return true;
    if (sb->state != SANDBOX_STOPPING)
        sb->reason = reason;
    sandbox_enter(sb, SANDBOX_ENDING);
    return true;
}

bool sandbox_kill(struct sandboxes *all, struct str team_id, struct str id, const char *reason, struct err *err)
{
    struct sandbox *sb;
    bool ours = false, ok;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sb = sandbox_of_team(all, team_id, id, err);
        if (!sb)
            return false;
        sandbox_ref(sb);
        ok = claim_end(sb, reason, &ours, err);
    }
    if (ok && ours)
        ok = sandbox_end(sb, err);
    sandbox_unref(sb);
    return ok;
}

/* With the lock held: the one that is paused for longest, since before then, with a reference; or NULL. */
static struct sandbox *paused_before(struct sandboxes *all, int64_t before_us, int64_t after_us)
{
    struct sandbox *sb, *first = NULL;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        if (sb->state == SANDBOX_PAUSED && sb->deadline_us < before_us && sb->deadline_us > after_us &&
            (!first || sb->deadline_us < first->deadline_us))
            first = sb;
    return first ? sandbox_ref(first) : NULL;
}

void sandboxes_kill_paused(struct sandboxes *all, int64_t before_us)
{
    int64_t after_us = INT64_MIN; /* one that cannot be ended does not keep the others */
    struct sandbox *sb;
    struct err err;
    bool ours, ok;

    while (!atomic_load(&all->is_stopping)) {
        {
            auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
            sb = paused_before(all, before_us, after_us);
            if (!sb)
                return;
            after_us = sb->deadline_us;
            ok = claim_end(sb, "retention", &ours, &err); /* it is PAUSED, and stays so until then */
        }
        if (ok && ours)
            ok = sandbox_end(sb, &err);
        if (ok)
            log_info("sandbox %s: ended, it was paused for longer than this server keeps them", sb->id);
        else
            log_warn("sandbox %s: paused for longer than this server keeps them, and not ended: %s", sb->id,
                     err_text(&err));
        sandbox_unref(sb);
    }
}

bool sandbox_seal(struct sandboxes *all, struct str team_id, struct str id, struct kept *out, struct err *err)
{
    struct sandbox *sb;
    struct err end_err;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sb = sandbox_of_team(all, team_id, id, err);
        if (!sb)
            return false;
        if (sb->state != SANDBOX_RUNNING) {
            (void)sandbox_not_running(sb, err);
            err->kind = ERR_CONFLICT;
            return false;
        }
        sandbox_ref(sb);
        sb->reason = "sealed";
        sandbox_enter(sb, SANDBOX_ENDING);
    }
    sandbox_cut_and_wait(sb);
    await_workers(sb);
    bool ok = driver_pause_call(all->config.driver, PAUSE_SEAL, sb->id, false, out, err);
    if (!ok && err->sys && err->kind != ERR_FULL)
        err->kind = ERR_INTERNAL;
    if (!sandbox_end(sb, &end_err))
        log_warn("sandbox %s: sealed and not ended, will try again: %s", sb->id, err_text(&end_err));
    else
        sandbox_await_gone(all, str_from(sb->id));
    sandbox_unref(sb);
    return ok;
}
