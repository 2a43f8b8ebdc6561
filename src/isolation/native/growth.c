/*
 * How it works. Every GROWTH_LOOK_MS the kernel's part of the memory is measured. When it has grown by TRIGGER beyond what is
 * charged to cgroups, and grows still, a round begins:
 *
 *   COUNTING  Each sandbox's processor time, twice: without it nobody takes memory. Time in the kernel alone would be less to
 *             look at, but kernels guess it from what runs at each tick of their clock, and a guest can work between ticks.
 *   FREEZING  The one with the most of it is frozen,
 *   STILL     and for `window_us` we look. If the growth goes on, it stays frozen and as many again follow, so that several
 *             sandboxes that work together are found too.
 *   MOVING    When the growth has stopped, halving has told at which of them it stops. This one is thawed. If it brings the
 *             growth back, it is frozen and thawed again, and ended when the growth has come and gone with it PROOFS times
 *             oftener than not: what else the machine does makes the kernel's part grow and shrink too. The last proofs
 *             count only while all other sandboxes stand still.
 *
 * Where file systems have caches that look like the kernel's own memory, SHRINKING is between the last proof and the end.
 * At the end of a round all that are left are thawed. A window is so long that the growth in it is proof_least, or more where the
 * kernel's part is restless. Guests disturb each other by these windows only while the kernel's part grows and nobody can
 * say why; a round that finds nobody is followed by a rest, each longer than the last. If the growth stopped in a round, but
 * nobody brought it back, it may be of several, each with a part: the next round looks for smaller parts.
 */
#include "isolation/native/growth.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define TRIGGER (64ll << 20)
#define MOVE (32ll << 20) /* that much must have come lately: then it grows still */
/* In one window. On a quiet machine what else goes on is a tenth of it. */
#define PROOF_MOST (32ll << 20)

enum {
    US = 1000, /* in a millisecond */
    MOVE_MS = 200,
    COUNT_MS = 40, /* ten ticks of a slow kernel's clock */
    COUNT_MOST_MS = 400,
    COUNT_SLICE_US = 1000,
    SPENT_LEAST_US = 300, /* of COUNT_MS: less takes no memory worth looking for */
    FREEZE_MS = 100,      /* a busy machine needs 15; a call that reads a large directory is not left before its end */
    WINDOW_LEAST_MS = 20,
    ROUND_MS = 3000, /* and as many windows; then all are thawed but one that is about to be found */
    ROUND_WINDOWS = 8,
    TESTS_MOST = 24, /* of that one */
    REST_LEAST_MS = 200,
    REST_MOST_MS = 60000,
    DRIFT_MS = 600000, /* so long without growth: it was the machine's own, and stays */
    PROOFS = 7,
    PROOFS_ALONE = 4, /* so many, and the rest while everybody else stands still */
    ACQUITTED = -2,
    RESTLESS = 4, /* a proof is so many times what the kernel's part has shrunk by between two looks */
    SEVERAL_MOST = 8,
    STOPS_MANY = 12,
    SHRINK_MS = 10000,
    SHRINK_LOOK_MS = 10,
    CACHE_MS = 600000, /* so long it is known that what is lost is no cache */
    CACHE_PART = 32,   /* of the machine's memory: after so much more a cache is dropped again */
};

/* The longest window. To stand still for a second harms a sandbox less than a machine without memory does. */
static const struct {
    unsigned part; /* of the machine's memory that is lost */
    unsigned window_ms;
} patience[] = { { 16, 1000 }, { 192, 250 }, { 0, 120 } };
enum { EMERGENCY_PART = 8 };

static int64_t grown(const struct growth_sample *from, const struct growth_sample *to)
{
    int64_t kernel = to->kernel - from->kernel, uncharged = to->uncharged - from->uncharged;

    return MAX(0, MIN(kernel, uncharged));
}

void growth_init(struct growth *growth, const struct growth_ops *ops, void *context, uint64_t memory_bytes,
                 unsigned processors)
{
    *growth = (struct growth){ .ops = ops,
                               .context = context,
                               .memory_bytes = memory_bytes,
                               .proof_least = (int64_t)MAX(2u, (processors + 1) / 2) << 20,
                               .several = 1,
                               .low = { .kernel = INT64_MAX, .uncharged = INT64_MAX } };
}

static void thaw_all(struct growth *growth)
{
    while (growth->frozen)
        growth->ops->thaw(growth->context, growth->suspects[--growth->frozen].id);
}

static void forget_suspects(struct growth *growth)
{
    thaw_all(growth);
    free(take_ptr(&growth->suspects));
    growth->all = growth->count = growth->room = 0;
}

void growth_done(struct growth *growth)
{
    forget_suspects(growth);
    growth->state = GROWTH_WATCHING;
}

/* ---- a round ---- */

/* After one that has found nobody, suspects run for at least so many times as long. */
enum { REST_TIMES = 9 };

static uint64_t end_round(struct growth *growth, uint64_t now_us)
{
    uint64_t longer_us = MIN(MAX(growth->rest_us * 2, REST_LEAST_MS * US), REST_MOST_MS * (uint64_t)US);

    forget_suspects(growth);
    growth->state = GROWTH_WATCHING;
    growth->rest_us = growth->found ? 0 : longer_us;
    growth->not_before_us = growth->found ? 0 : now_us + MAX(longer_us, (now_us - growth->round_began_us) * REST_TIMES);
    growth->not_below = growth->lost + growth->lost / 4;
    growth->several = growth->stopped && !growth->found ? MIN(growth->several * 2, (unsigned)SEVERAL_MOST) : 1;
    growth->sampled = 0; /* what was measured meanwhile is not how it grows when all run */
    return GROWTH_LOOK_MS;
}

/* The one behind the frozen. If it is gone, so is its place. */
static bool freeze_one(struct growth *growth)
{
    struct suspect *suspect = &growth->suspects[growth->frozen];

    if (growth->ops->freeze(growth->context, suspect->id)) {
        growth->frozen++;
        return true;
    }
    memmove(suspect, suspect + 1, (--growth->all - growth->frozen) * sizeof *suspect);
    return false;
}

/* Until so many are frozen, or all that are left but `but`. */
static void freeze_up_to(struct growth *growth, size_t count, size_t but)
{
    while (growth->frozen < MIN(count, growth->all - but))
        (void)freeze_one(growth);
}

static uint64_t await_freeze(struct growth *growth, uint64_t now_us, size_t from)
{
    growth->awaited = from;
    growth->state = GROWTH_FREEZING;
    growth->step_until_us = now_us + FREEZE_MS * US;
    return 1;
}

/* As many as there are already. */
static uint64_t freeze_next(struct growth *growth, uint64_t now_us)
{
    size_t from = growth->frozen, most = growth->count;

    if (from < most)
        freeze_up_to(growth, MIN(most, from + MAX((size_t)1, from)), 0);
    if (growth->frozen > from)
        return await_freeze(growth, now_us, from);
    log_debug("native: the kernel's memory grows, and no sandbox is the cause");
    return end_round(growth, now_us);
}

static uint64_t begin_window(struct growth *growth, enum growth_state state, uint64_t now_us)
{
    if (!growth->ops->sample(growth->context, true, &growth->before))
        return end_round(growth, now_us);
    growth->state = state;
    return growth->window_us / US;
}

/* One that cannot be frozen in time is treated as if it were: it may be inside the very call that takes the memory. */
static uint64_t freezing(struct growth *growth, uint64_t now_us)
{
    while (growth->awaited < growth->frozen &&
           growth->ops->is_frozen(growth->context, growth->suspects[growth->awaited].id))
        growth->awaited++;
    if (growth->awaited < growth->frozen && now_us < growth->step_until_us)
        return 1;
    return begin_window(growth, GROWTH_STILL, now_us);
}

static unsigned *stops_of(struct growth *growth, const char *id, bool add)
{
    for (unsigned i = 0; i < GROWTH_REMEMBERED; i++)
        if (!strcmp(growth->remembered[i].id, id))
            return &growth->remembered[i].stops;
    if (!add)
        return NULL;
    unsigned i = growth->forget++ % GROWTH_REMEMBERED;
    memcpy(growth->remembered[i].id, id, LIMIT_ID_BYTES);
    growth->remembered[i].stops = 0;
    return &growth->remembered[i].stops;
}

/* The last of the frozen stays; the others have stood still for long enough. */
static void leave_last(struct growth *growth)
{
    const struct suspect last = growth->suspects[--growth->frozen];

    thaw_all(growth);
    growth->suspects[growth->frozen++] = last;
}

/* The last of the frozen: thawed while the others stand still. */
static uint64_t thaw_last(struct growth *growth, uint64_t now_us)
{
    growth->ops->thaw(growth->context, growth->suspects[--growth->frozen].id);
    return begin_window(growth, GROWTH_MOVING, now_us);
}

static uint64_t end_last(struct growth *growth, uint64_t now_us, const struct growth_sample *now)
{
    const char *id = growth->suspects[--growth->frozen].id;

    growth->found = true;
    growth->ops->thaw(growth->context, id);
    growth->ops->end(growth->context, id, (uint64_t)grown(&growth->low, now));
    return end_round(growth, now_us); /* others that had a part in it are found in the next one */
}

/* The last of the frozen is the one, unless it is all a cache. */
static uint64_t convict_last(struct growth *growth, uint64_t now_us, const struct growth_sample *now)
{
    if (now_us < growth->no_cache_until_us || !growth->ops->shrink(growth->context))
        return end_last(growth, now_us, now);
    leave_last(growth);
    growth->lost = grown(&growth->low, now);
    growth->state = GROWTH_SHRINKING;
    growth->step_until_us = now_us + SHRINK_MS * US;
    return SHRINK_LOOK_MS;
}

static uint64_t shrinking(struct growth *growth, uint64_t now_us)
{
    struct growth_sample now;

    if (now_us < growth->step_until_us && !growth->ops->is_shrunk(growth->context))
        return SHRINK_LOOK_MS;
    if (!growth->ops->sample(growth->context, true, &now))
        return end_round(growth, now_us);
    int64_t left = grown(&growth->low, &now);
    if (left >= growth->lost / 2) {
        growth->no_cache_until_us = now_us + CACHE_MS * (uint64_t)US;
        return end_last(growth, now_us, &now);
    }
    log_info("native: the kernel held %" PRId64
             " MiB more for files of sandboxes, and was made to drop it: no sandbox is ended",
             (growth->lost - left) >> 20);
    if (left < TRIGGER)
        growth->low = now;
    growth->lost = left + (int64_t)(growth->memory_bytes / CACHE_PART);
    (void)end_round(growth, now_us);
    growth->not_before_us = now_us + REST_MOST_MS * (uint64_t)US;
    return GROWTH_LOOK_MS;
}

/* The last of the frozen: has its freeze been the end of the growth too often? */
static bool stops_too_often(struct growth *growth, const struct growth_sample *now)
{
    const char *id = growth->suspects[growth->frozen - 1].id;
    bool is_emergency = (uint64_t)grown(&growth->low, now) > growth->memory_bytes / EMERGENCY_PART;

    return ++*stops_of(growth, id, true) >= STOPS_MANY && is_emergency;
}

static void forget_stops(struct growth *growth)
{
    unsigned *stops = stops_of(growth, growth->suspects[growth->frozen - 1].id, false);

    if (stops)
        *stops = 0;
}

/* The kernel's part grew by at least a third of what one suspect does in a window. */
static bool is_growth(const struct growth *growth, int64_t bytes)
{
    return bytes > 0 && (uint64_t)bytes * 3 >= growth->expected;
}

static bool end_window(struct growth *growth, struct growth_sample *out_now, int64_t *out_bytes)
{
    if (!growth->ops->sample(growth->context, true, out_now))
        return false;
    uint64_t took_us = MAX(out_now->at_us - growth->before.at_us, growth->window_us);
    *out_bytes = grown(&growth->before, out_now) * (int64_t)growth->window_us / (int64_t)took_us;
    return true;
}

/* So that exactly so many are frozen. */
static uint64_t set_frozen(struct growth *growth, uint64_t now_us, size_t count)
{
    size_t from = growth->frozen;

    freeze_up_to(growth, count, 0);
    while (growth->frozen > count)
        growth->ops->thaw(growth->context, growth->suspects[--growth->frozen].id);
    return growth->frozen > from ? await_freeze(growth, now_us, from) : begin_window(growth, GROWTH_STILL, now_us);
}

/* The growth goes on while `goes_on` are frozen, and not while `stops` are: so it is one in between. */
static uint64_t narrow(struct growth *growth, uint64_t now_us, const struct growth_sample *now)
{
    size_t middle = growth->goes_on + (growth->stops - growth->goes_on) / 2;

    if (growth->stops > growth->goes_on + 1)
        return set_frozen(growth, now_us, middle);
    if (growth->frozen != growth->stops)
        return growth->frozen < growth->all ? set_frozen(growth, now_us, growth->stops) : end_round(growth, now_us);
    growth->stopped = true;
    return stops_too_often(growth, now) ? convict_last(growth, now_us, now) : thaw_last(growth, now_us);
}

static uint64_t still(struct growth *growth, uint64_t now_us)
{
    struct growth_sample now;

    if (!end_window(growth, &now, &growth->still_bytes) || !growth->frozen)
        return end_round(growth, now_us);
    if (growth->stopped)
        return thaw_last(growth, now_us);
    if (is_growth(growth, growth->still_bytes)) {
        forget_stops(growth);
        growth->goes_on = growth->frozen;
    } else {
        growth->stops = growth->frozen;
    }
    if (now_us >= growth->round_until_us)
        return end_round(growth, now_us);
    return growth->stops ? narrow(growth, now_us, &now) : freeze_next(growth, now_us);
}

/*
 * The one behind the frozen is the last to be tested, and from now on everybody else stands still, also those that were never
 * suspected: one of them might take memory only while it sees this one run, to have it ended.
 */
static uint64_t go_alone(struct growth *growth, uint64_t now_us)
{
    const struct suspect accused = growth->suspects[growth->frozen];
    size_t from = growth->frozen;

    memmove(&growth->suspects[from], &growth->suspects[from + 1], (growth->all - from - 1) * sizeof accused);
    growth->suspects[growth->all - 1] = accused;
    growth->is_alone = true;
    freeze_up_to(growth, growth->all, 1);
    return freeze_one(growth) ? await_freeze(growth, now_us, from) : end_round(growth, now_us);
}

/* It is not the one, or it knows when it is tested. If others have to run for it to be one, it is suspected last from now on. */
static uint64_t acquit(struct growth *growth, uint64_t now_us, bool is_open)
{
    const char *id = growth->suspects[growth->frozen].id;

    log_debug("native: %s: %d of %d proofs", id, growth->proofs, PROOFS);
    if (is_open)
        ++*stops_of(growth, id, true);
    if (growth->is_alone)
        memcpy(growth->acquitted, id, sizeof growth->acquitted);
    return end_round(growth, now_us);
}

/* The one behind the frozen is thawed. */
static uint64_t moving(struct growth *growth, uint64_t now_us)
{
    struct growth_sample now;
    int64_t bytes;

    if (!end_window(growth, &now, &bytes))
        return end_round(growth, now_us);
    bool came_and_went = !is_growth(growth, growth->still_bytes) && is_growth(growth, bytes - growth->still_bytes);
    growth->proofs += came_and_went ? 1 : -1;
    bool is_open = growth->proofs < PROOFS && growth->proofs > (growth->is_alone ? PROOFS_ALONE - 2 : ACQUITTED);
    if (is_open && growth->proofs == PROOFS_ALONE && !growth->is_alone)
        return go_alone(growth, now_us);
    if ((is_open && ++growth->tests == TESTS_MOST) || (!is_open && growth->proofs < PROOFS))
        return acquit(growth, now_us, is_open);
    if (!freeze_one(growth))
        return end_round(growth, now_us);
    return is_open ? await_freeze(growth, now_us, growth->frozen - 1) : convict_last(growth, now_us, &now);
}

/* ---- suspects ---- */

static int by_time(const void *a, const void *b)
{
    const struct suspect *left = a, *right = b;

    return (left->spent_us < right->spent_us) - (left->spent_us > right->spent_us);
}

static bool list_some(struct growth *growth, uint64_t until_us)
{
    struct suspect found = { 0 };

    while (clock_mono_us() < until_us) {
        if (!growth->ops->next(growth->context, &growth->cursor, found.id))
            return false;
        if (!growth->ops->cpu_us(growth->context, found.id, &found.began_us))
            continue;
        if (growth->all == growth->room) {
            growth->room = growth->room ? growth->room * 2 : GROWTH_SUSPECTS;
            growth->suspects = mem_grow(growth->suspects, growth->room * sizeof *growth->suspects);
        }
        growth->suspects[growth->all++] = found;
    }
    return true;
}

static bool measure_some(struct growth *growth, uint64_t until_us)
{
    for (; clock_mono_us() < until_us; growth->cursor++) {
        uint64_t now_us;
        if (growth->cursor == growth->all)
            return false;
        struct suspect *suspect = &growth->suspects[growth->cursor];
        if (growth->ops->cpu_us(growth->context, suspect->id, &now_us) && now_us > suspect->began_us)
            suspect->spent_us = now_us - suspect->began_us;
    }
    return true;
}

/* The one that was acquitted when it ran alone comes last, so that it does not always hide another. */
static void sort_suspects(struct growth *growth)
{
    struct suspect last;

    qsort(growth->suspects, growth->all, sizeof *growth->suspects, by_time);
    while (growth->count < growth->all && growth->suspects[growth->count].spent_us >= SPENT_LEAST_US)
        growth->count++;
    for (size_t i = 0; i + 1 < growth->count; i++)
        if (!strcmp(growth->suspects[i].id, growth->acquitted)) {
            last = growth->suspects[i];
            memmove(&growth->suspects[i], &growth->suspects[i + 1], (growth->count - i - 1) * sizeof last);
            growth->suspects[growth->count - 1] = last;
            return;
        }
}

/* Twice through all of them. */
static uint64_t counting(struct growth *growth, uint64_t now_us)
{
    uint64_t until_us = clock_mono_us() + COUNT_SLICE_US;

    if (now_us < growth->step_until_us)
        return 1 + (growth->step_until_us - now_us) / US;
    if (growth->listed ? measure_some(growth, until_us) : list_some(growth, until_us))
        return 1;
    growth->cursor = 0;
    if (growth->listed && growth->all)
        sort_suspects(growth);
    /* On a busy machine it may be that nobody ran meanwhile. */
    if (!growth->listed || (!growth->count && growth->all && now_us < growth->count_until_us)) {
        growth->listed = true;
        growth->step_until_us = now_us + COUNT_MS * US;
        return COUNT_MS;
    }
    return freeze_next(growth, now_us);
}

/* ---- watching ---- */

static uint64_t longest_window_us(const struct growth *growth, int64_t lost)
{
    for (size_t i = 0;; i++)
        if (!patience[i].part || (uint64_t)lost > growth->memory_bytes / patience[i].part)
            return (uint64_t)patience[i].window_ms * US;
}

/* How fast it grows, by the last MOVE of it and not by one jump; 0: it does not. */
static uint64_t bytes_per_s(const struct growth *growth, const struct growth_sample *now)
{
    for (unsigned i = 1; i < growth->sampled; i++) {
        const struct growth_sample *then = &growth->samples[(growth->newest + GROWTH_SAMPLES - i) % GROWTH_SAMPLES];
        int64_t bytes = grown(then, now);
        if (bytes >= MOVE && now->at_us >= then->at_us + MOVE_MS * US)
            return (uint64_t)bytes * 1000000 / (now->at_us - then->at_us);
    }
    return 0;
}

/* The most by which the kernel's part has shrunk from one look to the next, lately. */
static void note_shrinking(struct growth *growth, const struct growth_sample *now)
{
    const struct growth_sample *then = &growth->samples[growth->newest];
    int64_t shrunk = growth->sampled ? then->kernel - now->kernel : 0;

    growth->shrunk = MAX(growth->shrunk - growth->shrunk / 128, MIN(shrunk, PROOF_MOST / RESTLESS));
}

static uint64_t watching(struct growth *growth, uint64_t now_us)
{
    struct growth_sample now;

    if (!growth->ops->sample(growth->context, false, &now))
        return GROWTH_LOOK_MS;
    growth->low.kernel = MIN(growth->low.kernel, now.kernel);
    growth->low.uncharged = MIN(growth->low.uncharged, now.uncharged);
    note_shrinking(growth, &now);
    growth->newest = (growth->newest + 1) % GROWTH_SAMPLES;
    growth->samples[growth->newest] = now;
    growth->sampled = MIN(growth->sampled + 1, GROWTH_SAMPLES);
    int64_t lost = grown(&growth->low, &now);
    uint64_t rate = lost < TRIGGER ? 0 : bytes_per_s(growth, &now);
    if (lost < TRIGGER || rate)
        growth->since_us = now_us;
    if (now_us - growth->since_us > DRIFT_MS * (uint64_t)US)
        growth->low = now;
    /* A rest is over sooner if much more is lost meanwhile. */
    if (!rate || (now_us < growth->not_before_us && lost < growth->not_below))
        return GROWTH_LOOK_MS;
    uint64_t proof = (uint64_t)MAX(MIN(growth->shrunk * RESTLESS, PROOF_MOST), growth->proof_least);
    uint64_t window_us = MAX(proof * growth->several * 1000000 / rate, WINDOW_LEAST_MS * US);
    if (window_us > longest_window_us(growth, lost))
        return GROWTH_LOOK_MS;
    growth->lost = lost;
    growth->window_us = window_us;
    growth->expected = rate * window_us / 1000000 / growth->several;
    growth->round_began_us = now_us;
    growth->round_until_us = now_us + ROUND_MS * (uint64_t)US + ROUND_WINDOWS * window_us;
    growth->count_until_us = now_us + COUNT_MOST_MS * US;
    growth->step_until_us = 0;
    growth->cursor = 0;
    growth->proofs = 0;
    growth->tests = 0;
    growth->goes_on = growth->stops = 0;
    growth->listed = growth->stopped = growth->found = growth->is_alone = false;
    growth->state = GROWTH_COUNTING;
    log_debug("native: the kernel's memory grows by %" PRIu64 " MiB a second, %" PRId64 " MiB so far: who is it?",
              rate >> 20, lost >> 20);
    return counting(growth, now_us);
}

uint64_t growth_step(struct growth *growth, uint64_t now_us)
{
    static uint64_t (*const steps[])(struct growth * growth, uint64_t now_us) = {
        [GROWTH_WATCHING] = watching, [GROWTH_COUNTING] = counting, [GROWTH_FREEZING] = freezing,
        [GROWTH_STILL] = still,       [GROWTH_MOVING] = moving,     [GROWTH_SHRINKING] = shrinking,
    };
    uint64_t pause_ms;

    if (now_us < growth->due_us)
        return 1 + (growth->due_us - now_us - 1) / US;
    pause_ms = steps[growth->state](growth, now_us);
    growth->due_us = now_us + pause_ms * US;
    return pause_ms;
}
