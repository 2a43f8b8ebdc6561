/*
 * The pool: sandboxes that were started before anybody asked for one. A create takes one of its kind, tells its guestd whose
 * it is, and writes its row; what takes long has happened before.
 *
 * A kind is what cannot be changed once a sandbox has started: its layers, CPUs and memory. A template that was built again has
 * other layers, so it is another kind: nothing of the old one is given out. A kind begins with the first create that would
 * have used it, or when one is expected, and its demand sets how many wait:
 *
 *   up      to the number of creates within RECENT_MS, at once
 *   down    by half for each SHRINK_MS in which that many were not asked for, but not below LEAST
 *   gone    after FORGET_MS without a create
 *
 * One that waits is a struct sandbox in state STARTING that is in no map of the manager: no call finds it, no limit counts it,
 * and it has no row. So the next front ends those that this one leaves, as all that keeper holds and the store does not know.
 * Its id was never told to anybody, and its token depends on the id only, so it needs no other when it is taken.
 *
 * Once clients have run code in one of a kind, a Python interpreter is made in each that waits (GUESTLINK_WARM).
 *
 * Workers start and end them, a few at a time. tick() on the loop decides which, under the manager's lock. Refills wait for a
 * short rest after a create, because a burst needs the processors for itself, unless the kind is running dry.
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
    RETRY_FIRST_MS = 1000, /* after a start that failed; doubled each time… */
    RETRY_MAX_MS = 60 * 1000,
    WARM_AGAIN_MS = 1000, /* a zygote takes some seconds to warm up */
    WARM_MS = 6000,       /* for one interpreter; guestd gives up after five seconds */
    GONE_MS = 500,        /* for one that is ended: if the server stops, it should leave nothing */
    AT_ONCE = 2,          /* starts and ends under way; a worker each */
    BYTES_EACH = 4 << 20, /* what one takes, with a warm interpreter: 1.1 MB and 3 */
    SHARE = 32,           /* the pool has a part of the machine's memory: 1 of so many… */
    SHARE_LOW = 10,       /* …and nothing when less than 1 of so many is available */
};

struct pooled {
    struct queue_link place; /* in its kind's ready */
    struct kind *kind;
    struct sandbox *sandbox;
    int guestlink_fd;
    bool is_warm;  /* an interpreter waits in it */
    bool has_none; /* it will have none: that has failed, or cannot be */
};

struct kind {
    struct queue_link place;
    struct arena arena;
    uint32_t cpu_count, memory_mb, layer_count;
    struct str *layers;
    struct queue ready; /* struct pooled */
    unsigned ready_count, making;
    unsigned target; /* how many should be ready */
    unsigned recent; /* creates since recent_ms */
    uint64_t recent_ms;
    uint64_t shrink_ms;                /* the target is halved then, unless it is asked for before */
    uint64_t used_ms;                  /* the last create */
    uint64_t retry_ms, retry_pause_ms; /* after a start that failed */
    bool is_dropped;                   /* a layer of it is being removed */
    bool uses_code;                    /* clients have run code in one: an interpreter waits in each */
    uint64_t warm_ms;                  /* the zygote is asked for again then */
};

/* A worker's part: starts one, ends one, or has an interpreter made in one. */
struct pool_job {
    struct job job;
    struct pool *pool;
    bool is_under_way;
    struct kind *kind;      /* to start one of; it stays while `making` counts this */
    struct pooled *ending;  /* to end */
    struct pooled *warming; /* one of that kind, to have an interpreter made in */
    bool warms;
};

struct pool {
    struct sandboxes *all;
    unsigned most;
    int meminfo_fd; /* borrowed; -1: there is none */
    struct queue kinds;
    struct map by_id; /* struct pooled: those that are ready */
    unsigned total;   /* ready or on their way */
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

static bool is_of_kind(const struct kind *kind, const struct sandbox_want *want)
{
    if (kind->cpu_count != want->cpu_count || kind->memory_mb != want->memory_mb ||
        kind->layer_count != want->layer_count)
        return false;
    for (uint32_t i = kind->layer_count; i > 0; i--) /* the topmost differ first */
        if (!str_eq(kind->layers[i - 1], want->layers[i - 1]))
            return false;
    return true;
}

static struct kind *find_kind(struct pool *pool, const struct sandbox_want *want)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        if (is_of_kind(kind, want))
            return kind;
    return NULL;
}

static void copy_layers(struct arena *arena, const struct str *layers, uint32_t count, struct str **out)
{
    *out = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++)
        (*out)[i] = arena_copy(arena, layers[i]);
}

static struct kind *add_kind(struct pool *pool, const struct sandbox_want *want)
{
    struct kind *kind = NEW(struct kind);

    arena_init(&kind->arena);
    kind->cpu_count = want->cpu_count;
    kind->memory_mb = want->memory_mb;
    kind->layer_count = want->layer_count;
    copy_layers(&kind->arena, want->layers, want->layer_count, &kind->layers);
    queue_join(&pool->kinds, &kind->place);
    return kind;
}

static void free_kind(struct kind *kind)
{
    queue_leave(&kind->place);
    arena_done(&kind->arena);
    free(kind);
}

/* Of one that is not ready any more. */
static void free_pooled(struct pooled *one)
{
    fd_close(&one->guestlink_fd);
    sandbox_unref(one->sandbox);
    free(one);
}

static void join_ready(struct pool *pool, struct pooled *one)
{
    queue_join(&one->kind->ready, &one->place);
    one->kind->ready_count++;
    (void)map_put(&pool->by_id, str_from(one->sandbox->id), one);
}

static void leave_ready(struct pool *pool, struct pooled *one)
{
    queue_leave(&one->place);
    one->kind->ready_count--;
    (void)map_remove(&pool->by_id, str_from(one->sandbox->id));
}

static struct pooled *next_ready(struct queue_link *link)
{
    return link ? container_of(link, struct pooled, place) : NULL;
}

static struct pooled *first_ready(const struct kind *kind)
{
    return next_ready(kind->ready.first);
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

/* A line of /proc/meminfo, in bytes; 0: it is not there. */
static uint64_t meminfo_bytes(struct str text, struct str name)
{
    struct str line;
    uint64_t kib;

    while (str_cut(&text, '\n', &line)) {
        if (!str_skip(&line, name))
            continue;
        line = str_trim(line);
        struct str number;
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

static void look_at_memory(struct pool *pool, uint64_t now_ms)
{
    uint64_t total, available;

    if (now_ms < pool->look_ms)
        return;
    pool->look_ms = now_ms + LOOK_MS;
    bool is_low = read_memory(pool->meminfo_fd, &total, &available) && available < total / SHARE_LOW;
    if (is_low != pool->is_low)
        log_info("pool: %s", is_low ? "emptied, the machine is short of memory" : "filled again, there is memory");
    pool->is_low = is_low;
}

/* ---- a worker's part ---- */

static struct pooled *start_one(struct pool *pool, const struct kind *kind, struct err *err)
{
    struct sandboxes *all = pool->all;
    struct started started;
    struct plan plan;
    struct sandbox *sb = sandbox_new_named(all);

    sb->cpu_count = kind->cpu_count;
    sb->memory_mb = kind->memory_mb;
    sb->layer_count = kind->layer_count;
    copy_layers(&sb->arena, kind->layers, kind->layer_count, &sb->layers);
    if (!sandbox_plan(sb, PLAN_NEW, STR(""), &plan, err) || !driver_start(all->config.driver, &plan, &started, err)) {
        sandbox_unref(sb);
        return NULL;
    }
    sb->has_network = started.has_network;
    struct pooled *one = NEW(struct pooled);
    one->sandbox = sb;
    one->guestlink_fd = started.guestlink_fd;
    return one;
}

/* Returns when to ask for the zygote again; 0: it is there. */
static uint64_t warm_one(struct pool *pool, struct pooled *one)
{
    struct err err;

    if (!driver_warm(pool->all->config.driver, one->sandbox->id, &err)) {
        one->has_none = err.kind != ERR_UNAVAILABLE;
        return clock_mono_ms() + WARM_AGAIN_MS;
    }
    one->is_warm = guest_warm(one->guestlink_fd, clock_mono_ms() + WARM_MS, &err) == GUEST_YES;
    if (!one->is_warm)
        log_debug("pool: no interpreter waits in sandbox %s: %s", one->sandbox->id, err_text(&err));
    one->has_none = !one->is_warm;
    return 0;
}

static void end_one(struct pool *pool, struct pooled *one)
{
    struct err err;
    bool gone;

    /* If this fails, keeper cannot end anything, and front is about to end too. */
    if (!driver_stop_wait(pool->all->config.driver, one->sandbox->id, GONE_MS, &gone, &err))
        log_warn("pool: sandbox %s is left over until the next start: %s", one->sandbox->id, err_text(&err));
    free_pooled(one);
}

static void start_failed(struct kind *kind, const struct err *err)
{
    bool is_first = kind->retry_pause_ms == 0;

    kind->retry_pause_ms = is_first ? RETRY_FIRST_MS : MIN(kind->retry_pause_ms * 2, (uint64_t)RETRY_MAX_MS);
    kind->retry_ms = clock_mono_ms() + kind->retry_pause_ms;
    if (is_first)
        log_warn("pool: no sandbox could be prepared, will try again: %s", err_text(err));
}

static void job_run(struct job *job)
{
    struct pool_job *self = container_of(job, struct pool_job, job);
    struct pool *pool = self->pool;
    struct err err;

    if (self->ending) {
        end_one(pool, take_ptr(&self->ending));
        auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
        pool->total--;
        pthread_cond_broadcast(&pool->all->changed);
        return;
    }
    struct pooled *one = self->warming ? self->warming : start_one(pool, self->kind, &err);
    uint64_t warm_ms = one && self->warms ? warm_one(pool, one) : 0;
    auto_unlock pthread_mutex_t *held = lock_mutex(&pool->all->lock);
    self->kind->making--;
    self->kind->warm_ms = MAX(self->kind->warm_ms, warm_ms);
    if (one) {
        one->kind = self->kind;
        self->kind->retry_pause_ms = 0;
        pool->figures.made += !self->warming;
        self->warming = NULL;
        join_ready(pool, one); /* if it is not wanted any more, the next tick ends it */
    } else {
        pool->total--;
        pool->figures.failed++;
        start_failed(self->kind, &err);
    }
    self->kind = NULL;
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

/* Something to start, of the kind that has the smallest part of what it should have. *next_ms: when to look again. */
static struct kind *choose_start(struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    struct kind *found = NULL;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        unsigned have = kind->ready_count + kind->making;
        if (have >= kind->target)
            continue;
        uint64_t from_ms = have * 2 < kind->target ? 0 : kind->used_ms + REST_MS;
        from_ms = kind->retry_pause_ms ? MAX(from_ms, kind->retry_ms) : from_ms;
        if (from_ms > now_ms)
            *next_ms = MIN(*next_ms, from_ms);
        else if (!found || have * found->target < (found->ready_count + found->making) * kind->target)
            found = kind;
    }
    return found;
}

/* The oldest of a kind that has too many, or, to make room for another, of the kind whose last create is longest ago. */
static struct pooled *choose_end(const struct pool *pool, const struct kind *for_kind)
{
    struct kind *found = NULL;

    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next)) {
        if (kind->ready_count > kind->target)
            return first_ready(kind);
        if (for_kind && kind != for_kind && kind->ready_count && kind->used_ms < for_kind->used_ms &&
            (!found || kind->used_ms < found->used_ms))
            found = kind;
    }
    return found ? first_ready(found) : NULL;
}

static struct pooled *choose_warm(const struct pool *pool, uint64_t now_ms, uint64_t *next_ms)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        for (struct pooled *one = first_ready(kind); one && kind->uses_code; one = next_ready(one->place.next)) {
            if (one->is_warm || one->has_none)
                continue;
            if (kind->warm_ms <= now_ms)
                return one;
            *next_ms = MIN(*next_ms, kind->warm_ms);
            break;
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
        if (pool->is_low || pool->is_closed)
            kind->target = 0;
        if (kind->target > LEAST)
            *next_ms = MIN(*next_ms, kind->shrink_ms);
        else if (kind->target)
            *next_ms = MIN(*next_ms, kind->used_ms + FORGET_MS);
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
    struct kind *kind = pool->is_closed ? NULL : choose_start(pool, now_ms, next_ms);
    if (kind && pool->total < pool->most) {
        job->kind = kind;
        job->warms = kind->uses_code && kind->warm_ms <= now_ms;
        kind->making++;
        pool->total++;
    } else if ((job->ending = choose_end(pool, kind))) {
        leave_ready(pool, job->ending);
    } else if (!pool->is_closed && (job->warming = choose_warm(pool, now_ms, next_ms))) {
        job->kind = job->warming->kind;
        job->warms = true;
        leave_ready(pool, job->warming);
        job->kind->making++;
    } else {
        return NULL;
    }
    job->is_under_way = true;
    return job;
}

/* On the loop. */
static void on_timer(struct timer *timer)
{
    tick(container_of(timer, struct pool, timer));
}

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
        for (size_t i = 0; i < AT_ONCE; i++)
            jobs[i] = choose(pool, now_ms, &next_ms);
        if (pool->total || pool->is_low)
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
    if (read_memory(pool->meminfo_fd, &total, &available))
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
            leave_ready(pool, one);
            free_pooled(one);
        }
        free_kind(kind);
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        if (pool->jobs[i].ending || pool->jobs[i].warming) /* its job was dropped */
            free_pooled(pool->jobs[i].ending ? pool->jobs[i].ending : pool->jobs[i].warming);
    map_done(&pool->by_id);
    free(pool);
}

struct sandbox *pool_take(struct pool *pool, const struct sandbox_want *want, int *out_guestlink_fd)
{
    if (!pool->most || pool->is_closed || want->image.len || want->is_temporary)
        return NULL;
    struct kind *kind = find_kind(pool, want);
    if (kind && kind->is_dropped)
        return NULL;
    if (!kind)
        kind = add_kind(pool, want);
    note_demand(pool, kind, clock_mono_ms());
    look_again(pool);
    struct pooled *one = best_ready(kind);
    if (!one) {
        pool->figures.missed++;
        return NULL;
    }
    pool->figures.taken++;
    leave_ready(pool, one);
    pool->total--;
    struct sandbox *sb = take_ptr(&one->sandbox);
    *out_guestlink_fd = take_fd(&one->guestlink_fd);
    free(one);
    return sb;
}

void sandboxes_expect(struct sandboxes *all, const struct sandbox_want *want, bool code)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct pool *pool = all->pool;

    if (!pool->most || pool->is_closed)
        return;
    struct kind *kind = find_kind(pool, want);
    if (!kind)
        kind = add_kind(pool, want);
    kind->target = MIN(MAX(kind->target, (unsigned)LEAST), pool->most);
    kind->used_ms = clock_mono_ms();
    kind->uses_code |= code;
    look_again(pool);
}

void pool_drop_layer(struct pool *pool, struct str layer)
{
    for (struct kind *kind = next_kind(pool->kinds.first); kind; kind = next_kind(kind->place.next))
        for (uint32_t i = 0; i < kind->layer_count && !kind->is_dropped; i++)
            kind->is_dropped = str_eq(kind->layers[i], layer);
    look_again(pool);
}

void sandbox_note_code(struct sandbox *sb)
{
    struct sandboxes *all = sb->all;

    if (atomic_exchange(&sb->noted_code, true))
        return;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct kind *kind = find_kind(all->pool, &(struct sandbox_want){ .layer_count = sb->layer_count,
                                                                     .layers = sb->layers,
                                                                     .cpu_count = sb->cpu_count,
                                                                     .memory_mb = sb->memory_mb });
    if (!kind || kind->uses_code)
        return;
    kind->uses_code = true;
    look_again(all->pool);
}

bool pool_exited(struct pool *pool, struct str id)
{
    struct pooled *one = map_get(&pool->by_id, id);

    if (!one)
        return false;
    log_warn("pool: sandbox %s ended while it waited", one->sandbox->id);
    leave_ready(pool, one);
    pool->total--;
    pool->figures.failed++;
    free_pooled(one);
    look_again(pool);
    return true;
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
        for (struct pooled *one = first_ready(kind); one; one = next_ready(one->place.next))
            figures.warm += one->is_warm;
        figures.ready += kind->ready_count;
        figures.wanted += kind->target;
    }
    return figures;
}
