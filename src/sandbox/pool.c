/*
 * The pool: sandboxes that were started before a create asked for them. A create takes one of its kind, tells its guestd whose
 * it is, and writes its row; what takes long has happened before.
 *
 * A kind is what cannot be changed once a sandbox has started: its layers, CPUs and memory. A template that was built again has
 * other layers, so it is another kind: nothing of the old one is given out. A kind begins with the first create that would
 * have used it, or when one is expected, and its demand sets how many wait:
 *
 *   up      to the number of creates within RECENT_MS, at once
 *   down    by half for each SHRINK_MS in which that many were not asked for, but not below LEAST
 *   gone    after FORGET_MS without a create, or when its template was built again or deleted. If another tag still means the
 *           old build, the next create of it begins anew
 *
 * One that waits is a struct sandbox in state STARTING that is in no map of the manager: no call finds it, no limit counts it,
 * and it has no row. So the next front ends those that this one leaves, as all that keeper holds and the store does not know.
 * No client has seen its id, and its token depends on the id only, so it needs no other when it is taken.
 *
 * Once clients have run code in one of a kind, a Python interpreter is made in each that waits (GUESTLINK_WARM), one after the
 * other. It cannot be taken meanwhile, so the last one of a kind is left alone.
 *
 * When all kinds together want more than the pool may have, each gets LEAST, the last used ones first, and of the rest a part in
 * proportion (share_out()). Starts and ends go by the same shares, so that none undoes the other.
 *
 * Workers start, warm and end them, a few at a time. tick() on the loop decides which, under the manager's lock. Creates need
 * the processors for themselves, so refills wait (refill_from_ms()): until the create that took one is over, and for a rest
 * without a create. A kind of which less than half is left does not rest, but has one start at a time while creates go on. Below a
 * quarter every free job starts one: a create that finds none takes longer than one beside a start.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"
#include "sandbox/guest_client.h"
#include "sandbox/inside.h"

enum {
    LEAST = 2,
    RECENT_MS = 1000,
    REST_MS = 20,
    SHRINK_MS = 30 * 1000,
    FORGET_MS = 10 * 60 * 1000,
    LOOK_MS = 5000,        /* between looks at the machine's memory while some wait */
    RETRY_FIRST_MS = 1000, /* after a start or an interpreter that failed; doubled each time… */
    RETRY_MAX_MS = 60 * 1000,
    WARM_MS = 6000,       /* for one interpreter; guestd gives up after five seconds */
    WARM_TRIES = 4,       /* of one sandbox: the pause after a failure is for all of its kind, so it may not go on */
    WARM_AGAIN_MS = 5000, /* before the second; doubled each time, as in guestd (zygote_client.c) */
    GONE_MS = 500,        /* for one that is ended: if the server stops, it should leave nothing */
    AT_ONCE = 2,          /* jobs under way, with a worker each; at most one of them warms */
    BYTES_EACH = 4 << 20, /* what one takes, with a warm interpreter: 1.1 MB and 3 */
    KINDS = 32,           /* the one that was not used for longest is forgotten for another… */
    KINDS_OF_TEAM = 8,    /* …and of those that only one team has asked for, the same */
    SHARE = 32,           /* --pool auto: the pool has a part of the machine's memory, 1 of so many… */
    SHARE_LOW = 10,       /* …and no pool has anything when less than 1 of so many is available… */
    SHARE_ENOUGH = 8,     /* …until it is this much again */
};

/* In the pool's by_id from before its start until it is taken or freed. */
struct pooled {
    struct queue_link place; /* in its kind's ready; in none while a job has it */
    struct kind *kind;
    struct sandbox *sandbox;
    int guestlink_fd;
    bool has_exited;
    bool is_warm;           /* an interpreter waits in it */
    bool cannot_warm;       /* it will have none */
    unsigned warm_failures; /* although the zygote was warm… */
    uint64_t warm_at_ms;    /* …so guestd does not ask it again before this */
};

/* When to try again what has failed. */
struct again {
    uint64_t at_ms, pause_ms; /* pause_ms 0: it has not failed */
};

struct kind {
    struct queue_link place;
    struct arena arena;
    uint32_t cpu_count, memory_mb, layer_count;
    struct str *layers;
    struct queue ready; /* struct pooled */
    unsigned ready_count;
    unsigned making;                /* jobs that have one of it, and will make it ready */
    unsigned target;                /* how many should be ready… */
    unsigned share;                 /* …and how many of them fit */
    char team_id[STORE_UUID_BYTES]; /* the only one that has asked; empty: several have, or it was expected */
    unsigned recent;                /* creates since recent_ms */
    uint64_t recent_ms;
    uint64_t shrink_ms; /* the target is halved then, unless it is asked for before */
    uint64_t used_ms;   /* the last create */
    struct again start, warm;
    bool is_dropped; /* a layer of it is being removed */
    bool uses_code;  /* clients have run code in one */
};

enum pool_work { WORK_START, WORK_WARM, WORK_END };

struct pool_job {
    struct job job;
    struct pool *pool;
    bool is_under_way;
    enum pool_work work;
    struct kind *kind;  /* of a start or a warm-up; it stays while `making` counts this */
    struct pooled *one; /* of a warm-up or an end */
};

struct pool {
    struct sandboxes *all;
    unsigned most;
    int meminfo_fd; /* borrowed; -1: there is none */
    struct queue kinds;
    struct map by_id; /* struct pooled */
    unsigned total;   /* ready, or in a job */
    struct pool_job jobs[AT_ONCE];
    struct timer timer;
    struct loop_task task;
    bool is_posted, is_low, is_closed;
    uint64_t look_ms;
    struct pool_figures figures;
};

/* ---- kinds ---- */

static struct kind *next_kind(struct queue_link *link)
{
    return link ? container_of(link, struct kind, place) : NULL;
}

static struct pooled *next_ready(struct queue_link *link)
{
    return link ? container_of(link, struct pooled, place) : NULL;
}

static struct pooled *first_ready(const struct kind *kind)
{
    return next_ready(kind->ready.first);
}

static bool has_layers(const struct kind *kind, const struct str *layers, uint32_t layer_count)
{
    if (kind->layer_count != layer_count)
        return false;
    for (uint32_t i = layer_count; i > 0; i--) /* the topmost differ first */
        if (!str_eq(kind->layers[i - 1], layers[i - 1]))
            return false;
    return true;
}

static bool is_of_kind(const struct kind *kind, const struct sandbox_want *want)
{
    return kind->cpu_count == want->cpu_count && kind->memory_mb == want->memory_mb &&
           has_layers(kind, want->layers, want->layer_count);
}

static struct kind *find_kind(struct pool *pool, const struct sandbox_want *want)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (is_of_kind(kind, want))
            return kind;
    return NULL;
}

static struct kind *find_or_add_kind(struct pool *pool, const struct sandbox_want *want)
{
    struct kind *kind = find_kind(pool, want);

    if (kind)
        return kind;
    kind = NEW(struct kind);
    arena_init(&kind->arena);
    kind->cpu_count = want->cpu_count;
    kind->memory_mb = want->memory_mb;
    kind->layer_count = want->layer_count;
    kind->layers = sandbox_copy_layers(&kind->arena, want->layers, want->layer_count);
    if (want->team_id.len)
        memcpy(kind->team_id, want->team_id.at, MIN(want->team_id.len, sizeof kind->team_id - 1)); /* UUIDs: they fit */
    queue_join(&pool->kinds, &kind->place);
    return kind;
}

/* If there are `most`, of its team or in all, the one goes that was not used for longest. */
static void forget_oldest(struct pool *pool, const struct kind *newest, bool of_team, unsigned most)
{
    struct kind *oldest = NULL;
    unsigned count = 0;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        if (kind == newest || !kind->target || (of_team && strcmp(kind->team_id, newest->team_id) != 0))
            continue;
        count++;
        if (!oldest || kind->used_ms < oldest->used_ms)
            oldest = kind;
    }
    if (oldest && count >= most)
        oldest->target = 0;
}

/* For a kind that is new. Those of its team first: then those of others need not go. */
static void make_room(struct pool *pool, const struct kind *newest)
{
    if (newest->team_id[0])
        forget_oldest(pool, newest, true, KINDS_OF_TEAM);
    forget_oldest(pool, newest, false, KINDS);
}

static void free_kind(struct kind *kind)
{
    queue_leave(&kind->place);
    arena_done(&kind->arena);
    free(kind);
}

static void free_pooled(struct pool *pool, struct pooled *one)
{
    (void)map_remove(&pool->by_id, str_from(one->sandbox->id));
    fd_close(&one->guestlink_fd);
    sandbox_unref(one->sandbox);
    free(one);
}

static void join_ready(struct pooled *one)
{
    queue_join(&one->kind->ready, &one->place);
    one->kind->ready_count++;
}

static void leave_ready(struct pooled *one)
{
    queue_leave(&one->place);
    one->kind->ready_count--;
}

/* The best one: with an interpreter, if there is such a one. */
static struct pooled *best_ready(const struct kind *kind)
{
    for (struct pooled *one = first_ready(kind); one && kind->uses_code; one = next_ready(one->place.next))
        if (one->is_warm)
            return one;
    return first_ready(kind);
}

/* ---- how many ---- */

static void note_demand(struct pool *pool, struct kind *kind, uint64_t now_ms)
{
    if (now_ms - kind->recent_ms > RECENT_MS) {
        kind->recent = 0;
        kind->recent_ms = now_ms;
    }
    kind->recent++;
    kind->used_ms = now_ms;
    if (kind->recent >= kind->target)
        kind->shrink_ms = now_ms + SHRINK_MS;
    kind->target = MIN(MAX(kind->target, MAX(kind->recent, (unsigned)LEAST)), pool->most);
}

static void lower_demand(struct kind *kind, uint64_t now_ms)
{
    if (kind->is_dropped || now_ms >= kind->used_ms + FORGET_MS) {
        kind->target = 0;
    } else if (now_ms >= kind->shrink_ms && kind->target > LEAST) {
        kind->target = MAX(kind->target / 2, (unsigned)LEAST);
        kind->shrink_ms = now_ms + SHRINK_MS;
    }
}

/* The last used one of those without a share yet. */
static struct kind *next_to_share(const struct pool *pool)
{
    struct kind *found = NULL;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (!kind->share && kind->target && (!found || kind->used_ms > found->used_ms))
            found = kind;
    return found;
}

static void share_out(struct pool *pool)
{
    unsigned left = pool->is_low || pool->is_closed ? 0 : pool->most, more = 0;
    struct kind *kind;

    for (kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        kind->share = 0;
    while (left && (kind = next_to_share(pool))) {
        kind->share = MIN(MIN(kind->target, (unsigned)LEAST), left);
        left -= kind->share;
        more += kind->target - kind->share;
    }
    for (kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (kind->share)
            kind->share += more <= left ? kind->target - kind->share : (kind->target - kind->share) * left / more;
}

/* A line of /proc/meminfo, in bytes; 0: it is not there. */
static uint64_t meminfo_bytes(struct str text, struct str name)
{
    struct str line, number;
    uint64_t kib;

    while (str_cut(&text, '\n', &line)) {
        if (!str_skip(&line, name))
            continue;
        line = str_trim(line);
        return str_cut(&line, ' ', &number) && str_to_u64(number, UINT64_MAX >> 10, &kib) ? kib << 10 : 0;
    }
    return 0;
}

static bool read_memory(int fd, uint64_t *out_total, uint64_t *out_available)
{
    char text[4096];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text, 0);

    if (n <= 0)
        return false;
    *out_total = meminfo_bytes(str_of(text, (size_t)n), STR("MemTotal:"));
    *out_available = meminfo_bytes(str_of(text, (size_t)n), STR("MemAvailable:"));
    return *out_total > 0;
}

bool sandboxes_memory_is_low(const struct sandboxes *all)
{
    uint64_t total, available;

    return read_memory(all->config.meminfo_fd, &total, &available) && available < total / SHARE_LOW;
}

static void look_at_memory(struct pool *pool, uint64_t now_ms)
{
    uint64_t total, available;

    if (now_ms < pool->look_ms)
        return;
    pool->look_ms = now_ms + LOOK_MS;
    bool is_low = read_memory(pool->meminfo_fd, &total, &available) &&
                  available < total / (pool->is_low ? SHARE_ENOUGH : SHARE_LOW);
    if (is_low != pool->is_low)
        log_info("pool: %s", is_low ? "emptied, the machine is short of memory" : "there is memory again");
    pool->is_low = is_low;
}

/* ---- a worker's part ---- */

/* True if it is the first time in a row. What fails during a pause may have the same cause: it makes the pause no longer. */
static bool fail(struct again *again)
{
    bool is_first = again->pause_ms == 0;

    if (!is_first && clock_mono_ms() < again->at_ms)
        return false;
    again->pause_ms = is_first ? RETRY_FIRST_MS : MIN(again->pause_ms * 2, (uint64_t)RETRY_MAX_MS);
    again->at_ms = clock_mono_ms() + again->pause_ms;
    return is_first;
}

static struct pooled *new_pooled(struct pool *pool, struct kind *kind)
{
    struct pooled *one = NEW(struct pooled);
    struct sandbox *sb = sandbox_new_named(pool->all);

    sb->cpu_count = kind->cpu_count;
    sb->memory_mb = kind->memory_mb;
    sb->layer_count = kind->layer_count;
    sb->layers = sandbox_copy_layers(&sb->arena, kind->layers, kind->layer_count);
    one->kind = kind;
    one->sandbox = sb;
    one->guestlink_fd = -1;
    auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
    (void)map_put(&pool->by_id, str_from(sb->id), one); /* pool_exited() finds it */
    return one;
}

static void start_one(struct pool *pool, struct kind *kind)
{
    struct pooled *one = new_pooled(pool, kind);
    struct started started;
    struct plan plan;
    struct err err, ignored;
    bool gone;

    bool ok = sandbox_plan(one->sandbox, PLAN_NEW, STR(""), &plan, &err) &&
              driver_start(pool->all->config.driver, &plan, &started, &err);
    if (ok) {
        one->guestlink_fd = started.guestlink_fd;
        one->sandbox->has_network = started.has_network;
    } else if (!driver_stop_wait(pool->all->config.driver, one->sandbox->id, 0, &gone, &ignored)) {
        log_debug("pool: what is left of sandbox %s is ended by the next front", one->sandbox->id);
    }
    auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
    kind->making--;
    if (ok && !one->has_exited) {
        kind->start.pause_ms = 0;
        pool->figures.made++;
        join_ready(one); /* if it is not wanted any more, the next tick ends it */
        return;
    }
    if (ok)
        (void)err_set(&err, ERR_UNAVAILABLE, "the sandbox ended as it started");
    if (fail(&kind->start))
        log_warn("pool: no sandbox could be prepared, will try again: %s", err_text(&err));
    pool->figures.failed++;
    pool->total--;
    free_pooled(pool, one);
}

static void warm_one(struct pool *pool, struct pooled *one)
{
    struct kind *kind = one->kind;
    struct err err;

    bool has_zygote = driver_warm(pool->all->config.driver, one->sandbox->id, &err);
    bool ok = has_zygote && guest_warm(one->guestlink_fd, clock_mono_ms() + WARM_MS, &err) == GUEST_YES;
    auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
    kind->making--;
    if (one->has_exited) {
        if (fail(&kind->warm))
            log_warn("pool: sandbox %s ended while an interpreter was made in it", one->sandbox->id);
        pool->figures.failed++;
        pool->total--;
        free_pooled(pool, one);
        return;
    }
    one->is_warm = ok;
    if (ok) {
        kind->warm.pause_ms = 0;
    } else {
        log_debug("pool: no interpreter waits in sandbox %s: %s", one->sandbox->id, err_text(&err));
        if (has_zygote)
            one->warm_at_ms = clock_mono_ms() + (WARM_AGAIN_MS << one->warm_failures++);
        one->cannot_warm = (err.kind != ERR_UNAVAILABLE && err.kind != ERR_TIMEOUT) || one->warm_failures == WARM_TRIES;
        (void)fail(&kind->warm); /* the zygote may take some seconds to warm up itself */
    }
    join_ready(one);
}

static void end_one(struct pool *pool, struct pooled *one)
{
    struct err err;
    bool gone;

    bool ok = driver_stop_wait(pool->all->config.driver, one->sandbox->id, GONE_MS, &gone, &err);
    if (!ok) /* keeper cannot end anything, so front is about to end too */
        log_debug("pool: sandbox %s is left to the next front: %s", one->sandbox->id, err_text(&err));
    auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
    pool->total--;
    free_pooled(pool, one);
}

static void job_run(struct job *job)
{
    struct pool_job *self = container_of(job, struct pool_job, job);

    if (self->work == WORK_START)
        start_one(self->pool, self->kind);
    else if (self->work == WORK_WARM)
        warm_one(self->pool, take_ptr(&self->one));
    else
        end_one(self->pool, take_ptr(&self->one));
}

static void tick(struct pool *pool);

static void job_done(struct job *job)
{
    struct pool_job *self = container_of(job, struct pool_job, job);

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&self->pool->all->lock);
        self->is_under_way = false;
    }
    tick(self->pool);
}

/* ---- deciding ---- */

static unsigned count_jobs(const struct pool *pool, enum pool_work work)
{
    unsigned count = 0;

    for (size_t i = 0; i < AT_ONCE; i++)
        count += pool->jobs[i].is_under_way && pool->jobs[i].work == work;
    return count;
}

static unsigned have(const struct kind *kind)
{
    return kind->ready_count + kind->making;
}

/* When one more of a kind that lacks some may be started. */
static uint64_t refill_from_ms(const struct kind *kind)
{
    bool may_not_rest = have(kind) * (kind->making ? 4 : 2) < kind->share;
    uint64_t from_ms = may_not_rest || !kind->ready_count ? 0 : kind->used_ms + REST_MS;

    return kind->start.pause_ms ? MAX(from_ms, kind->start.at_ms) : from_ms;
}

/* The kind that has the smallest part of its share, if one of it is to be started. *next_ms: when to look again. */
static struct kind *choose_start(const struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    struct kind *found = NULL;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        if (have(kind) >= kind->share)
            continue;
        uint64_t from_ms = refill_from_ms(kind);
        if (from_ms > now_ms)
            *next_ms = MIN(*next_ms, from_ms);
        else if (!found || have(kind) * found->share < have(found) * kind->share)
            found = kind;
    }
    return found;
}

/* The oldest of a kind that has more than its share. */
static struct pooled *choose_end(const struct pool *pool)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (kind->ready_count > kind->share)
            return first_ready(kind);
    return NULL;
}

static struct pooled *choose_warm(const struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    if (pool->is_closed || count_jobs(pool, WORK_WARM))
        return NULL;
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        if (!kind->uses_code || (kind->ready_count < 2 && kind->share > 1))
            continue;
        for (struct pooled *one = first_ready(kind); one; one = next_ready(one->place.next)) {
            if (one->is_warm || one->cannot_warm)
                continue;
            uint64_t at_ms = MAX(kind->warm.pause_ms ? kind->warm.at_ms : 0, one->warm_at_ms);
            if (at_ms <= now_ms)
                return one;
            *next_ms = MIN(*next_ms, at_ms);
        }
    }
    return NULL;
}

static struct pool_job *free_job(struct pool *pool)
{
    for (size_t i = 0; i < AT_ONCE; i++)
        if (!pool->jobs[i].is_under_way)
            return &pool->jobs[i];
    return NULL;
}

static void lower_all(struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    struct kind *next;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next) {
        next = next_kind(kind->place.next);
        lower_demand(kind, now_ms);
        if (kind->target)
            *next_ms = MIN(*next_ms, kind->target > LEAST ? kind->shrink_ms : kind->used_ms + FORGET_MS);
        else if (!kind->ready_count && !kind->making) /* else job_done() looks again */
            free_kind(kind);
    }
}

/* The next thing to do, in a job that is ready to run; NULL: nothing now. With the lock held. */
static struct pool_job *choose(struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    struct pool_job *job = free_job(pool);

    if (!job)
        return NULL; /* job_done() looks again */
    *job = (struct pool_job){ .job = { .run = job_run, .done = job_done }, .pool = pool };
    struct kind *kind = choose_start(pool, now_ms, next_ms);
    if (kind && pool->total < pool->most) {
        job->work = WORK_START;
        job->kind = kind;
        kind->making++;
        pool->total++;
    } else if ((job->one = choose_end(pool))) {
        job->work = WORK_END;
        leave_ready(job->one);
    } else if ((job->one = choose_warm(pool, now_ms, next_ms))) {
        job->work = WORK_WARM;
        job->kind = job->one->kind;
        job->kind->making++;
        leave_ready(job->one);
    } else {
        return NULL;
    }
    job->is_under_way = true;
    return job;
}

static void on_timer(struct timer *timer)
{
    tick(container_of(timer, struct pool, timer));
}

/* On the loop. */
static void tick(struct pool *pool)
{
    struct sandboxes *all = pool->all;
    uint64_t now_ms = clock_mono_ms(), next_ms = UINT64_MAX;
    struct pool_job *jobs[AT_ONCE] = { NULL };

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        if (atomic_load(&all->is_stopping))
            return; /* there are no workers any more */
        if (!pool->is_closed)
            look_at_memory(pool, now_ms);
        lower_all(pool, now_ms, &next_ms);
        share_out(pool);
        for (size_t i = 0; i < AT_ONCE; i++)
            jobs[i] = choose(pool, now_ms, &next_ms);
        if (pool->is_closed)
            next_ms = UINT64_MAX; /* job_done() looks again until it is empty */
        else if (pool->total || pool->is_low)
            next_ms = MIN(next_ms, pool->look_ms);
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        if (jobs[i])
            workers_run(all->config.workers, &jobs[i]->job);
    if (next_ms == UINT64_MAX)
        timer_clear(&pool->timer);
    else
        timer_set(&pool->timer, all->config.loop, next_ms > now_ms ? next_ms - now_ms : 0, on_timer);
}

static void on_task(struct loop_task *task)
{
    struct pool *pool = container_of(task, struct pool, task);

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
        pool->is_posted = false;
    }
    tick(pool);
}

/* With the lock held. */
static void look_again(struct pool *pool)
{
    if (pool->is_posted || atomic_load(&pool->all->is_stopping))
        return;
    pool->is_posted = true;
    pool->task.fn = on_task;
    loop_post(pool->all->config.loop, &pool->task);
}

/* ---- for the manager ---- */

struct pool *pool_new(struct sandboxes *all)
{
    struct pool *pool = NEW(struct pool);
    uint64_t total, available;

    pool->all = all;
    pool->most = all->config.pool_most;
    pool->meminfo_fd = all->config.pool_most ? all->config.meminfo_fd : -1;
    if (all->config.pool_is_auto && read_memory(pool->meminfo_fd, &total, &available))
        pool->most = (unsigned)MIN((uint64_t)pool->most, total / SHARE / BYTES_EACH);
    map_init(&pool->by_id);
    return pool;
}

void pool_free(struct pool *pool)
{
    struct kind *kind, *next;
    struct pooled *one;

    timer_clear(&pool->timer);
    for (kind = next_kind(pool->kinds.first); kind; kind = next) {
        next = next_kind(kind->place.next);
        while ((one = first_ready(kind))) {
            leave_ready(one);
            free_pooled(pool, one);
        }
        free_kind(kind);
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        if (pool->jobs[i].one) /* the workers were freed before its job */
            free_pooled(pool, pool->jobs[i].one);
    map_done(&pool->by_id);
    free(pool);
}

struct sandbox *pool_take(struct pool *pool, const struct sandbox_want *want, int *out_guestlink_fd)
{
    if (!pool->most || pool->is_closed || want->image.len || want->is_temporary)
        return NULL;
    struct kind *kind = find_or_add_kind(pool, want);
    if (kind->is_dropped)
        return NULL;
    if (!str_eq(str_from(kind->team_id), want->team_id))
        kind->team_id[0] = '\0';
    if (!kind->target)
        make_room(pool, kind);
    note_demand(pool, kind, clock_mono_ms());
    struct pooled *one = best_ready(kind);
    if (!one) {
        pool->figures.missed++;
        look_again(pool);
        return NULL;
    }
    pool->figures.taken++;
    pool->total--;
    leave_ready(one);
    struct sandbox *sb = sandbox_ref(one->sandbox);
    *out_guestlink_fd = take_fd(&one->guestlink_fd);
    free_pooled(pool, one);
    return sb;
}

void pool_taken(struct pool *pool)
{
    look_again(pool);
}

bool pool_exited(struct pool *pool, struct str id)
{
    struct pooled *one = map_get(&pool->by_id, id);

    if (!one)
        return false;
    one->has_exited = true;
    if (!one->place.in)
        return true; /* the job that has it looks */
    if (fail(&one->kind->start))
        log_warn("pool: sandbox %s ended while it waited", one->sandbox->id);
    leave_ready(one);
    pool->total--;
    pool->figures.failed++;
    free_pooled(pool, one);
    look_again(pool);
    return true;
}

void pool_drop_layer(struct pool *pool, struct str layer)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        for (uint32_t i = 0; i < kind->layer_count && !kind->is_dropped; i++)
            kind->is_dropped = str_eq(kind->layers[i], layer);
    look_again(pool);
}

/* ---- for others ---- */

void sandboxes_expect(struct sandboxes *all, const struct sandbox_want *want, bool code)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct pool *pool = all->pool;

    if (!pool->most || pool->is_closed)
        return;
    struct kind *kind = find_or_add_kind(pool, want);
    kind->target = MIN(MAX(kind->target, (unsigned)LEAST), pool->most);
    kind->used_ms = clock_mono_ms();
    kind->uses_code |= code;
    look_again(pool);
}

void sandboxes_retire(struct sandboxes *all, const struct str *layers, uint32_t layer_count)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    for (struct kind *kind = next_kind(all->pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (has_layers(kind, layers, layer_count))
            kind->target = 0;
    look_again(all->pool);
}

void sandbox_note_code(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;
    const struct sandbox_want want = {
        .layer_count = sb->layer_count, .layers = sb->layers, .cpu_count = sb->cpu_count, .memory_mb = sb->memory_mb
    };

    if (atomic_exchange(&sb->noted_code, true))
        return;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct kind *kind = find_kind(all->pool, &want);
    if (!kind || kind->uses_code)
        return;
    kind->uses_code = true;
    look_again(all->pool);
}

void sandboxes_close_pool(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    all->pool->is_closed = true;
    look_again(all->pool);
}

bool sandboxes_pool_is_empty(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    return all->pool->total == 0;
}

struct pool_figures sandboxes_pool_figures(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct pool *pool = all->pool;
    struct pool_figures figures = pool->figures;

    figures.most = pool->most;
    figures.is_low = pool->is_low;
    figures.ready = figures.warm = figures.wanted = figures.kinds = 0;
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        figures.kinds++;
        figures.ready += kind->ready_count;
        figures.wanted += kind->share;
        for (struct pooled *one = first_ready(kind); one; one = next_ready(one->place.next))
            figures.warm += one->is_warm;
    }
    return figures;
}
