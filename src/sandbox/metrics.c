#include "sandbox/metrics.h"

#include <assert.h>
#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "sandbox/inside.h"

static const int64_t SECOND_US = 1000000;

/* Samples in the order of time. Each is the mean of `span` added ones. */
struct series {
    struct sandbox_metric *at;
    size_t count, room;
    unsigned span, pending; /* pending: how many the last one is the mean of so far, 0 when it is complete */
};

struct history {
    struct history *next_ended; /* among the ended, the oldest first */
    char id[LIMIT_ID_BYTES];
    char team_id[STORE_UUID_BYTES];
    uint32_t cpu_count;
    int64_t started_us, seen_us, ended_us;
    uint64_t seen_cpu_us;
    struct sandbox_traffic traffic;
    struct sandbox_metric latest;
    struct sandbox_metric *recent; /* a ring of LIMIT_METRICS once it is full */
    size_t recent_count, recent_room, recent_first;
    struct series life;
};

struct metrics {
    pthread_mutex_t lock;
    struct map by_id;
    struct history *first_ended, **last_ended;
    size_t ended_count;
};

struct metrics *metrics_new(void)
{
    struct metrics *metrics = NEW(struct metrics);

    pthread_mutex_init(&metrics->lock, NULL);
    map_init(&metrics->by_id);
    metrics->last_ended = &metrics->first_ended;
    return metrics;
}

static void history_free(struct history *history)
{
    free(history->recent);
    free(history->life.at);
    free(history);
}

void metrics_free(struct metrics *metrics)
{
    struct history *history;

    if (!metrics)
        return;
    for (size_t i = 0; (history = map_next(&metrics->by_id, &i));)
        history_free(history);
    map_done(&metrics->by_id);
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

/* ---- samples ---- */

/* `into` is the mean of `weight` samples; adds one more. The time is that of the newest. */
static void blend(struct sandbox_metric *into, unsigned weight, const struct sandbox_metric *more)
{
    double share = 1.0 / (weight + 1);

#define BLEND(field) into->field += (__typeof__(into->field))(((double)more->field - (double)into->field) * share)
    BLEND(cpu_percent);
    BLEND(memory_cache_bytes);
    BLEND(memory_used_bytes);
    BLEND(disk_used_bytes);
#undef BLEND
    into->at_us = more->at_us;
    into->cpu_count = more->cpu_count;
    into->memory_total_bytes = more->memory_total_bytes;
    into->disk_total_bytes = more->disk_total_bytes;
    into->traffic = more->traffic; /* totals: the newest counts */
}

static void series_halve(struct series *series)
{
    for (size_t i = 0; i + 1 < series->count; i += 2) {
        struct sandbox_metric merged = series->at[i];
        blend(&merged, 1, &series->at[i + 1]);
        series->at[i / 2] = merged;
    }
    series->count /= 2;
    series->span *= 2;
}

/* Twice the room, up to LIMIT_METRICS: most sandboxes do not live long. */
static void make_room(struct sandbox_metric **at, size_t count, size_t *room)
{
    if (count < *room)
        return;
    *room = *room ? MIN(*room * 2, (size_t)LIMIT_METRICS) : 16;
    *at = mem_grow(*at, *room * sizeof **at);
}

static void series_add(struct series *series, const struct sandbox_metric *sample)
{
    if (series->pending) {
        blend(&series->at[series->count - 1], series->pending, sample);
    } else {
        if (series->count == LIMIT_METRICS)
            series_halve(series);
        make_room(&series->at, series->count, &series->room);
        series->at[series->count++] = *sample;
    }
    series->pending = (series->pending + 1) % series->span;
}

static void recent_add(struct history *history, const struct sandbox_metric *sample)
{
    if (history->recent_count == LIMIT_METRICS) {
        history->recent[history->recent_first] = *sample;
        history->recent_first = (history->recent_first + 1) % LIMIT_METRICS;
        return;
    }
    make_room(&history->recent, history->recent_count, &history->recent_room);
    history->recent[history->recent_count++] = *sample;
}

static const struct sandbox_metric *recent_at(const struct history *history, size_t i)
{
    return &history->recent[(history->recent_first + i) % history->recent_count];
}

/* The share of all its CPUs that it has used since the last sample, in percent. */
static double cpu_percent(const struct history *history, uint64_t cpu_us, int64_t now_us)
{
    int64_t passed_us = now_us - history->seen_us;

    /* The wall clock may be set back, and the CPU time of a process that ends between two samples may be lost. */
    if (passed_us <= 0 || cpu_us <= history->seen_cpu_us)
        return 0;
    double percent = 100.0 * (double)(cpu_us - history->seen_cpu_us) / (double)passed_us / history->cpu_count;
    return MIN(percent, 100.0);
}

/* ---- beginning, adding, ending ---- */

static void forget_oldest(struct metrics *metrics)
{
    struct history *oldest = metrics->first_ended;

    metrics->first_ended = oldest->next_ended;
    if (!metrics->first_ended)
        metrics->last_ended = &metrics->first_ended;
    metrics->ended_count--;
    (void)map_remove(&metrics->by_id, str_from(oldest->id));
    history_free(oldest);
}

void metrics_begin(struct metrics *metrics, struct str team_id, struct str id, uint32_t cpu_count, int64_t started_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    struct history *history = map_get(&metrics->by_id, id);

    if (history) { /* it was paused; its cgroup may be a new one, so that the first sample tells nothing about its CPUs */
        history->seen_us = started_us;
        history->seen_cpu_us = UINT64_MAX;
        return;
    }
    history = NEW(struct history);
    assert(id.len < sizeof history->id);
    memcpy(history->id, id.at, id.len);
    /* Team ids are UUIDs; a longer one would be cut and match none. */
    memcpy(history->team_id, team_id.at, MIN(team_id.len, sizeof history->team_id - 1));
    history->cpu_count = MAX(cpu_count, 1u);
    history->started_us = history->seen_us = started_us;
    history->life.span = 1;
    (void)map_put(&metrics->by_id, str_from(history->id), history);
}

static uint32_t add_capped(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

void metrics_add_traffic(struct metrics *metrics, struct str id, const struct sandbox_traffic *more)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    struct history *history = map_get(&metrics->by_id, id);

    if (!history || history->ended_us)
        return;
    struct sandbox_traffic *traffic = &history->traffic;
    traffic->bytes_in += more->bytes_in;
    traffic->bytes_out += more->bytes_out;
    traffic->connections = add_capped(traffic->connections, more->connections);
    traffic->refusals = add_capped(traffic->refusals, more->refusals);
    traffic->open = more->open;
    history->latest.traffic = *traffic;
}

void metrics_add(struct metrics *metrics, const struct stats *stats, int64_t now_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    struct history *history = map_get(&metrics->by_id, str_from(stats->id));

    if (!history || history->ended_us)
        return;
    history->latest = (struct sandbox_metric){
        .at_us = now_us,
        .cpu_percent = cpu_percent(history, stats->cpu_us, now_us),
        .cpu_count = history->cpu_count,
        .memory_used_bytes = stats->memory_used_bytes,
        .memory_cache_bytes = stats->memory_cache_bytes,
        .memory_total_bytes = stats->memory_limit_bytes,
        .disk_used_bytes = stats->disk_used_bytes,
        .disk_total_bytes = stats->disk_total_bytes,
        .traffic = history->traffic,
    };
    history->seen_us = now_us;
    history->seen_cpu_us = stats->cpu_us;
    recent_add(history, &history->latest);
    series_add(&history->life, &history->latest);
}

void metrics_end(struct metrics *metrics, struct str id, int64_t now_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    struct history *history = map_get(&metrics->by_id, id);

    while (metrics->first_ended && (metrics->ended_count >= LIMIT_METRICS_KEPT ||
                                    metrics->first_ended->ended_us < now_us - LIMIT_METRICS_KEPT_S * SECOND_US))
        forget_oldest(metrics);
    if (!history || history->ended_us)
        return;
    history->ended_us = now_us;
    *metrics->last_ended = history;
    metrics->last_ended = &history->next_ended;
    metrics->ended_count++;
}

/* ---- asking ---- */

/* Upstream's steps: a chart of a week does not need a sample every five seconds. */
int64_t sandbox_metric_step_us(int64_t span_us)
{
    static const struct {
        int64_t below_s, step_s;
    } steps[] = {
        { 3600, 5 }, { 6 * 3600, 30 }, { 12 * 3600, 60 }, { 24 * 3600, 120 }, { 7 * 24 * 3600, 300 },
    };

    for (size_t i = 0; i < COUNT_OF(steps); i++)
        if (span_us < steps[i].below_s * SECOND_US)
            return steps[i].step_s * SECOND_US;
    return 900 * SECOND_US;
}

struct answer {
    struct sandbox_metric *at;
    size_t count;
    int64_t start_us, end_us, step_us;
    int64_t bucket; /* of the last one */
    unsigned weight;
};

/* Merges samples of the same step. At the finest step nothing is merged: samples are about five seconds apart already. */
static void answer_add(struct answer *answer, const struct sandbox_metric *sample)
{
    int64_t bucket = (sample->at_us - answer->start_us) / answer->step_us;

    if (sample->at_us < answer->start_us || sample->at_us > answer->end_us)
        return;
    if (answer->count && bucket == answer->bucket && answer->step_us > 5 * SECOND_US) {
        blend(&answer->at[answer->count - 1], answer->weight++, sample);
        return;
    }
    answer->at[answer->count++] = *sample;
    answer->bucket = bucket;
    answer->weight = 1;
}

/* With the lock held. */
static struct history *find(struct metrics *metrics, struct str team_id, struct str id)
{
    struct history *history = map_get(&metrics->by_id, id);

    return history && str_eq(str_from(history->team_id), team_id) ? history : NULL;
}

void metrics_get(struct metrics *metrics, struct str team_id, struct str id, int64_t start_us, int64_t end_us,
                 struct arena *arena, struct sandbox_metric **out, size_t *out_count)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    const struct history *history = find(metrics, team_id, id);

    *out = NULL;
    *out_count = 0;
    if (!history || !history->recent_count)
        return;
    struct answer answer = {
        .start_us = start_us ? start_us : history->started_us,
        .end_us = end_us ? end_us : history->latest.at_us,
    };
    answer.step_us = sandbox_metric_step_us(answer.end_us - answer.start_us);
    answer.at = ARENA_ARRAY(arena, struct sandbox_metric, LIMIT_METRICS);
    if (history->life.span == 1 || recent_at(history, 0)->at_us <= answer.start_us) {
        for (size_t i = 0; i < history->recent_count; i++)
            answer_add(&answer, recent_at(history, i));
    } else {
        for (size_t i = 0; i < history->life.count; i++)
            answer_add(&answer, &history->life.at[i]);
    }
    *out = answer.at;
    *out_count = answer.count;
}

bool metrics_latest(struct metrics *metrics, struct str team_id, struct str id, struct sandbox_metric *out)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&metrics->lock);
    const struct history *history = find(metrics, team_id, id);

    if (!history || !history->recent_count)
        return false;
    *out = history->latest;
    return true;
}
