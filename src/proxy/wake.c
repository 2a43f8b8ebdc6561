#include "proxy/wake.h"

#include <stdio.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/queue.h"
#include "proxy/refuse.h"

struct wakes {
    struct loop *loop;
    wake_go_fn *go;
    void *context;
    struct lane *lane; /* NULL: there are no workers, so nothing can be woken */
    struct map by_id;
    struct wake *first;
    unsigned waiting; /* requests, of all sandboxes */
};

/* A sandbox that is being woken. */
struct wake {
    struct wakes *wakes; /* NULL: they are gone, and the job's end frees this */
    struct wake *next, **at;
    char id[LIMIT_ID_BYTES];
    struct sandbox *sandbox;
    struct job job;
    bool ok; /* the job's result */
    struct err err;
    struct queue waiters;
    unsigned waiting;
};

/* A request that waits; in its exchange's arena. */
struct waiter {
    struct queue_link place;
    struct wake *wake;
    struct http_exchange *ex;
    struct target target;
    uint64_t until_ms;
    struct timer timer;
};

struct wakes *wakes_new(struct loop *loop, wake_go_fn *go, void *context)
{
    struct wakes *wakes = NEW(struct wakes);

    *wakes = (struct wakes){ .loop = loop, .go = go, .context = context };
    map_init(&wakes->by_id);
    return wakes;
}

void wakes_use_workers(struct wakes *wakes, struct workers *workers)
{
    wakes->lane = lane_new(workers, &(struct lane_rule){
                                        .most = LIMIT_WAKES,
                                        .most_each = LIMIT_WAKES_PER_KEY,
                                        .waiting_each = LIMIT_WAKES_WAITING,
                                        .weight_each = 0, /* jobs have no weight */
                                    });
}

/* ---- waiters ---- */

static const struct http_events no_events = { 0 };

/* It waits no longer. The exchange is without an owner afterwards. */
static void waiter_leave(struct waiter *waiter, struct wakes *wakes)
{
    timer_clear(&waiter->timer);
    queue_leave(&waiter->place);
    waiter->wake->waiting--;
    wakes->waiting--;
    waiter->ex->events = &no_events;
    waiter->ex->owner = NULL;
}

static void wake_drop(struct wake *wake)
{
    map_remove(&wake->wakes->by_id, str_from(wake->id));
    *wake->at = wake->next;
    if (wake->next)
        wake->next->at = wake->at;
    wake->wakes = NULL;
}

static void wake_free(struct wake *wake)
{
    sandbox_unref(wake->sandbox);
    free(wake);
}

/* Its client has left. If it was the last one and the wake waits for its turn, nobody needs the sandbox any more. */
static void on_gone(struct http_exchange *ex)
{
    struct waiter *waiter = ex->owner;
    struct wake *wake = waiter->wake;

    waiter_leave(waiter, wake->wakes);
    if (wake->waiting == 0 && lane_leave(wake->wakes->lane, &wake->job)) {
        wake_drop(wake);
        wake_free(wake);
    }
}

static const struct http_events waiting_events = { .on_gone = on_gone };

/* On guestd's port a client would take a 409 for guestd's own answer. */
static enum refusal still_resuming(const struct target *target)
{
    return target->port == GUESTD_PORT ? REFUSE_RESUMING_GUESTD : REFUSE_RESUMING;
}

/* The sandbox goes on resuming: the next request may find it awake. */
static void on_late(struct timer *timer)
{
    struct waiter *waiter = container_of(timer, struct waiter, timer);

    waiter_leave(waiter, waiter->wake->wakes);
    refuse(waiter->ex, &waiter->target, still_resuming(&waiter->target));
}

static void wait_for(struct wake *wake, struct http_exchange *ex, const struct target *target, uint64_t until_ms)
{
    struct waiter *waiter = ARENA_NEW(&ex->arena, struct waiter);
    uint64_t now_ms = loop_now_ms(wake->wakes->loop);

    *waiter = (struct waiter){ .wake = wake, .ex = ex, .target = *target };
    waiter->until_ms = until_ms ? until_ms : now_ms + LIMIT_EDGE_WAKE_MS;
    queue_join(&wake->waiters, &waiter->place);
    wake->waiting++;
    wake->wakes->waiting++;
    ex->events = &waiting_events;
    ex->owner = waiter;
    timer_set(&waiter->timer, wake->wakes->loop, waiter->until_ms > now_ms ? waiter->until_ms - now_ms : 0, on_late);
}

/* ---- the job ---- */

static void run_wake(struct job *job)
{
    struct wake *wake = container_of(job, struct wake, job);

    wake->ok = sandbox_wake(wake->sandbox, &wake->err);
}

/* A sandbox that only a reboot can bring back, or that is being killed, is not there as far as traffic is concerned. */
static enum refusal reason(const struct err *err, const struct target *target)
{
    switch (err->kind) {
    case ERR_NOT_FOUND:
    case ERR_CONFLICT:
        return REFUSE_NOT_FOUND;
    case ERR_TIMEOUT:
        return still_resuming(target);
    case ERR_LIMIT:
        return REFUSE_NO_ROOM;
    default:
        return REFUSE_UNAVAILABLE;
    }
}

/* It is out of the map by now: a request whose sandbox was paused again begins another wake. */
static void answer_all(struct wake *wake, struct wakes *wakes)
{
    struct queue_link *link;

    while ((link = wake->waiters.first)) {
        struct waiter *waiter = container_of(link, struct waiter, place);
        waiter_leave(waiter, wakes);
        if (wake->ok)
            wakes->go(wakes->context, waiter->ex, &waiter->target, waiter->until_ms);
        else
            refuse(waiter->ex, &waiter->target, reason(&wake->err, &waiter->target));
    }
}

static void wake_done(struct job *job)
{
    struct wake *wake = container_of(job, struct wake, job);
    struct wakes *wakes = wake->wakes;

    if (wakes) {
        if (!wake->ok)
            log_warn("edge: sandbox %s: traffic could not wake it: %s", wake->id, err_text(&wake->err));
        wake_drop(wake);
        answer_all(wake, wakes);
    }
    wake_free(wake);
}

/* Takes the reference, if there is a place for it. */
static struct wake *wake_begin(struct wakes *wakes, struct sandbox *sandbox)
{
    struct wake *wake = NEW(struct wake);

    *wake = (struct wake){ .wakes = wakes, .sandbox = sandbox, .next = wakes->first, .at = &wakes->first };
    wake->job = (struct job){ .run = run_wake, .done = wake_done };
    snprintf(wake->id, sizeof wake->id, "%s", sandbox_id(sandbox));
    if (!lane_run(wakes->lane, str_from(sandbox_key_id(sandbox)), 0, &wake->job)) {
        free(wake);
        return NULL;
    }
    if (wake->next)
        wake->next->at = &wake->next;
    wakes->first = wake;
    map_put(&wakes->by_id, str_from(wake->id), wake);
    return wake;
}

void wakes_add(struct wakes *wakes, struct sandbox *sandbox, struct http_exchange *ex, const struct target *target,
               uint64_t until_ms)
{
    struct wake *wake = map_get(&wakes->by_id, str_from(target->id));

    if (!wakes->lane) {
        refuse(ex, target, REFUSE_NOT_FOUND);
    } else if (wakes->waiting >= LIMIT_EDGE_WAKE_ALL || (wake && wake->waiting >= LIMIT_EDGE_WAKE_WAITING)) {
        refuse(ex, target, REFUSE_CROWDED_ASLEEP);
    } else if (wake) {
        wait_for(wake, ex, target, until_ms);
    } else if ((wake = wake_begin(wakes, sandbox))) {
        wait_for(wake, ex, target, until_ms);
        return; /* it has the reference */
    } else {
        refuse(ex, target, REFUSE_CROWDED_ASLEEP);
    }
    sandbox_unref(sandbox);
}

void wakes_free(struct wakes *wakes)
{
    if (!wakes)
        return;
    for (struct wake *wake = wakes->first, *next; wake; wake = next) {
        next = wake->next;
        for (struct queue_link *link; (link = wake->waiters.first);)
            waiter_leave(container_of(link, struct waiter, place), wakes);
        wake_drop(wake); /* the end of its job frees it, if the loop still runs */
    }
    map_done(&wakes->by_id);
    free(wakes);
}
