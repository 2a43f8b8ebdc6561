/*
 * The end of a sandbox: its connections are cut, the driver kills everything inside, and its row goes. state.c has the states.
 */
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/inside.h"

enum {
    RETRY_MS = 2000, /* between attempts to end a sandbox */
    CUT_MS = 5000,   /* for the loop to cut connections; it takes one turn unless the loop has ended */
    GONE_MS = 500,   /* how long a kill waits for the end: workers are too few to wait longer for a guest's exit */
    ASK_MS = 10000,  /* poll interval for a KILLED sandbox, if the driver's report was lost */
    WORK_MS = 1000,  /* how long a kill waits for a worker that pauses it, or brings it back */
    KILL_MS = 2000,  /* how long a second kill waits for the first; longer only if keeper does not answer */
};

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

    sandbox_cut(sb);
    sandbox_unref(sb);
}

struct timespec mono_after(unsigned ms)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    return at;
}

void sandbox_cut_and_wait(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    if (sb->connections == CONNECTIONS_OPEN) {
        sb->connections = CONNECTIONS_CUTTING;
        sb->cut_task.fn = on_cut_task;
        sandbox_ref(sb);
        loop_post(all->config.loop, &sb->cut_task);
    }
    struct timespec until = mono_after(CUT_MS);
    while (sb->connections != CONNECTIONS_NONE)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0)
            break; /* the loop has ended, and its connections with it */
}

/*
 * A worker that pauses, resumes or copies it sees that it was killed when the driver has answered. Waits for that: the
 * driver has then nothing else to do with it. If the driver takes long, it is told to stop it nevertheless; the worker
 * stops what it may still have started afterwards.
 */
static void await_workers(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct timespec until = mono_after(WORK_MS);

    while (sb->at_work)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0)
            break;
}

/* The sweep does the rest later. `killed`: everything inside is dead. */
static void end_later(struct sandbox *sb, bool killed)
{
    struct sandboxes *all = sb->all;
    bool first;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        first = killed && sb->state == SANDBOX_ENDING;
        sb->retry_ms = clock_mono_ms() + (killed ? sb->exited ? 0 : ASK_MS : RETRY_MS);
        sandbox_enter(sb, killed || sb->state == SANDBOX_REAPING ? SANDBOX_KILLED : SANDBOX_STOPPING);
    }
    if (first)
        log_info("sandbox %s: killed; the kernel is still clearing it away", sb->id);
    sandboxes_look(all);
}

bool sandbox_end(struct sandbox *sb, struct err *err)
{
    struct sandboxes *all = sb->all;
    struct event_row event;
    struct arena arena;
    struct err store_err;
    bool gone = true;

    sandbox_cut_and_wait(sb);
    await_workers(sb);
    /* The driver may not hold this sandbox; it then answers that the sandbox is gone. */
    uint32_t patience_ms = sb->state == SANDBOX_REAPING ? 0 : GONE_MS;
    if (!driver_stop_wait(all->config.driver, sb->id, patience_ms, &gone, err)) {
        end_later(sb, false);
        return err_wrap(err, "end sandbox %s", sb->id);
    }
    if (!gone) {
        end_later(sb, true);
        return true;
    }
    arena_init(&arena);
    if (sb->kept_us)
        event = record_killed(sb, sb->reason, &arena);
    if (!store_sandbox_remove(all->config.store, str_from(sb->id), sb->kept_us ? &event : NULL, &store_err))
        log_warn("sandbox %s: gone, but its row stays until the next start: %s", sb->id, err_text(&store_err));
    arena_done(&arena);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sandbox_enter(sb, SANDBOX_GONE);
        sandbox_strike_off(sb);
    }
    metrics_end(all->metrics, str_from(sb->id), clock_wall_us());
    logs_end(all->logs, str_from(sb->id), clock_wall_us());
    log_info("sandbox %s: gone (%s)", sb->id, sb->reason);
    sandbox_unref(sb); /* the map's */
    return true;
}

/*
 * Takes it into ENDING for the caller, once no other worker is at it. With the lock held; ERR_TIMEOUT when that takes too
 * long. *out_ours is false when the other worker has killed it.
 */
static bool claim_end(struct sandbox *sb, const char *reason, bool *out_ours, struct err *err)
{
    struct timespec until = mono_after(KILL_MS);

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
    bool ours = false;

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
        if (!claim_end(sb, "sealed", &ours, err) || !ours) {
            sandbox_unref(sb);
            return err_set(err, ERR_CONFLICT, "sandbox %.*s is being killed", STR_ARG(id));
        }
    }
    sandbox_cut_and_wait(sb);
    await_workers(sb);
    bool ok = driver_pause_call(all->config.driver, PAUSE_SEAL, sb->id, false, out, err);
    if (!ok && err->sys && err->kind != ERR_FULL)
        err->kind = ERR_INTERNAL;
    if (!sandbox_end(sb, &end_err))
        log_warn("sandbox %s: sealed and not ended, will try again: %s", sb->id, err_text(&end_err));
    sandbox_unref(sb);
    return ok;
}
