/*
 * A place is handed over, never left for whoever wakes first: places_give_back() chooses the next thread, counts the place as
 * its own and wakes it. A thread that comes later cannot get in between.
 */
#include "base/places.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/queue.h"

/* Exists while it has places or threads that wait. */
struct owner {
    struct str id; /* a copy that it owns */
    unsigned taken, waiting;
    struct queue waiters;
    struct queue_link turn; /* in the queue of turns while some wait */
};

/* On the stack of a thread that waits. */
struct waiter {
    struct queue_link link;
    pthread_cond_t wake;
    bool has_place;
};

struct places {
    struct places_rule rule;
    pthread_mutex_t lock; /* over all below */
    unsigned taken, waiting;
    struct map owners;
    struct queue turns; /* owners whose threads wait, least recently served first */
};

struct places *places_new(const struct places_rule *rule)
{
    struct places *places = NEW(struct places);

    places->rule = *rule;
    (void)pthread_mutex_init(&places->lock, NULL);
    map_init(&places->owners);
    return places;
}

void places_free(struct places *places)
{
    if (!places)
        return;
    map_done(&places->owners);
    (void)pthread_mutex_destroy(&places->lock);
    free(places);
}

/* ---- with the lock ---- */

static struct owner *owner_of(struct places *places, struct str id)
{
    struct owner *owner = map_get(&places->owners, id);

    if (!owner) {
        char *copy = mem_new(id.len + 1);
        owner = NEW(struct owner);
        if (id.len)
            memcpy(copy, id.at, id.len);
        owner->id = str_of(copy, id.len);
        (void)map_put(&places->owners, owner->id, owner);
    }
    return owner;
}

static void drop_if_unused(struct places *places, struct owner *owner)
{
    if (owner->taken || owner->waiting)
        return;
    (void)map_remove(&places->owners, owner->id);
    free((char *)owner->id.at);
    free(owner);
}

static void count_place(struct places *places, struct owner *owner)
{
    places->taken++;
    owner->taken++;
}

static void stop_waiting(struct places *places, struct owner *owner, struct waiter *waiter)
{
    queue_leave(&waiter->link);
    places->waiting--;
    if (!--owner->waiting)
        queue_leave(&owner->turn);
}

/* A free place goes to the next owner that is below its limit. */
static void hand_over(struct places *places)
{
    if (places->taken >= places->rule.most)
        return;
    for (struct queue_link *turn = places->turns.first; turn; turn = turn->next) {
        struct owner *owner = container_of(turn, struct owner, turn);
        if (owner->taken >= places->rule.most_each)
            continue;
        struct waiter *waiter = container_of(owner->waiters.first, struct waiter, link);
        queue_join(&places->turns, turn); /* last from here on */
        stop_waiting(places, owner, waiter);
        count_place(places, owner);
        waiter->has_place = true;
        (void)pthread_cond_signal(&waiter->wake);
        return;
    }
}

static bool wait_for_place(struct places *places, struct owner *owner, uint64_t until_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000) * 1000000 };
    struct waiter waiter = { 0 };
    pthread_condattr_t attributes;
    int failure = 0;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&waiter.wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    if (!owner->waiting++)
        queue_join(&places->turns, &owner->turn);
    places->waiting++;
    queue_join(&owner->waiters, &waiter.link);
    while (!waiter.has_place && failure == 0)
        failure = pthread_cond_timedwait(&waiter.wake, &places->lock, &until);
    if (!waiter.has_place)
        stop_waiting(places, owner, &waiter);
    (void)pthread_cond_destroy(&waiter.wake);
    return waiter.has_place;
}

/* ---- for all ---- */

bool places_take(struct places *places, struct str owner_id, uint64_t until_ms, struct err *err)
{
    const struct places_rule *rule = &places->rule;
    auto_unlock pthread_mutex_t *held = lock_mutex(&places->lock);
    struct owner *owner = owner_of(places, owner_id);
    bool fine = true;

    if (places->taken < rule->most && owner->taken < rule->most_each && !owner->waiting)
        count_place(places, owner);
    else if (owner->waiting >= rule->waiting_each)
        fine = err_set(err, ERR_LIMIT, "%u requests of the same kind are waiting already; try again in a moment",
                       owner->waiting);
    else if (!wait_for_place(places, owner, until_ms))
        fine = err_set(err, ERR_UNAVAILABLE, "no place was free in time; try again in a moment");
    drop_if_unused(places, owner);
    return fine;
}

void places_give_back(struct places *places, struct str owner_id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&places->lock);
    struct owner *owner = owner_of(places, owner_id);

    places->taken--;
    owner->taken--;
    hand_over(places);
    drop_if_unused(places, owner);
}

unsigned places_waiting(struct places *places)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&places->lock);

    return places->waiting;
}
