/*
 * The sampler. Once a second it takes the sandboxes that were not measured for SAMPLE_MS, or never, and a worker asks the
 * driver about them, LIMIT_STATS at a time. So a new sandbox has its first sample within a second, and the work is spread.
 * The pause after a round is PAUSE_FACTOR times as long as the round: measuring takes at most a tenth of keeper's time,
 * however many sandboxes there are. Without sandboxes no timer runs.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/inside.h"

enum {
    TICK_MS = 1000,
    SAMPLE_MS = 5000,
    SLACK_MS = 200, /* ticks are late by some ms; the fifth should make a sample, not the sixth */
    PAUSE_FACTOR = 10,
};

struct round {
    struct job job;
    struct sandboxes *all;
    struct held *which;
    size_t count;
    uint64_t took_ms;
};

static void on_tick(struct timer *timer);

static void measure(struct sandboxes *all, const struct held *which, uint32_t count)
{
    struct stats stats[LIMIT_STATS];
    uint32_t found;
    struct err err;

    if (!driver_stats(all->config.driver, which, count, stats, &found, &err)) {
        log_warn("metrics: not measured: %s", err_text(&err));
        return;
    }
    int64_t now_us = clock_wall_us();
    for (uint32_t i = 0; i < found; i++)
        metrics_add(all->metrics, &stats[i], now_us);
}

static void round_run(struct job *job)
{
    struct round *round = container_of(job, struct round, job);
    uint64_t began_ms = clock_mono_ms();

    for (size_t i = 0; i < round->count; i += LIMIT_STATS)
        measure(round->all, round->which + i, (uint32_t)MIN(round->count - i, (size_t)LIMIT_STATS));
    round->took_ms = clock_mono_ms() - began_ms;
}

static void round_done(struct job *job)
{
    struct round *round = container_of(job, struct round, job);
    struct sandboxes *all = round->all;

    all->round = NULL;
    if (!all->sampler_stopped)
        timer_set(&all->sampler, all->config.loop, MAX((uint64_t)TICK_MS, round->took_ms * PAUSE_FACTOR), on_tick);
    free(round->which);
    free(round);
}

static void on_tick(struct timer *timer)
{
    struct sandboxes *all = container_of(timer, struct sandboxes, sampler);
    uint64_t now_ms = clock_mono_ms();
    struct round *round = NEW(struct round);
    size_t running = 0;
    struct sandbox *sb;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        round->which = mem_new((all->by_id.count + 1) * sizeof *round->which);
        for (size_t i = 0; (sb = map_next(&all->by_id, &i));) {
            if (sb->state != SANDBOX_RUNNING)
                continue;
            running++;
            if (sb->sampled_ms && now_ms - sb->sampled_ms < SAMPLE_MS - SLACK_MS)
                continue;
            sb->sampled_ms = now_ms;
            memcpy(round->which[round->count++].id, sb->id, sizeof sb->id);
        }
    }
    if (round->count) {
        round->job = (struct job){ .run = round_run, .done = round_done };
        round->all = all;
        all->round = round;
        workers_run(all->config.workers, &round->job);
        return;
    }
    free(round->which);
    free(round);
    if (running)
        timer_set(timer, all->config.loop, TICK_MS, on_tick);
}

void sampler_wake(struct sandboxes *all)
{
    if (!all->sampler_stopped && !all->round && !timer_is_set(&all->sampler))
        timer_set(&all->sampler, all->config.loop, 0, on_tick);
}

void sandboxes_stop_work(struct sandboxes *all)
{
    atomic_store(&all->is_stopping, true);
    all->sampler_stopped = true;
    timer_clear(&all->sampler);
}

bool sandboxes_is_stopping(const struct sandboxes *all)
{
    return atomic_load(&all->is_stopping);
}

void sampler_done(struct sandboxes *all)
{
    timer_clear(&all->sampler);
    if (all->round)
        free(all->round->which);
    free(all->round); /* the workers were freed before its done() */
    all->round = NULL;
}

/* ---- asking ---- */

void sandbox_metrics(struct sandboxes *all, struct str team_id, struct str id, int64_t start_us, int64_t end_us,
                     struct arena *arena, struct sandbox_metric **out, size_t *out_count)
{
    metrics_get(all->metrics, team_id, id, start_us, end_us, arena, out, out_count);
}

bool sandbox_metric_latest(struct sandboxes *all, struct str team_id, struct str id, struct sandbox_metric *out)
{
    return metrics_latest(all->metrics, team_id, id, out);
}
