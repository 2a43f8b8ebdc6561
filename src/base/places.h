/*
 * places.h - a number of places that threads take one at a time and wait for, shared fairly between owners.
 *
 * An owner has a part of the places at most. Threads without a place wait: first come first served within an owner, round
 * robin between owners. So an owner with slow work delays only itself. A lane (io/worker.h) is the same for jobs, which wait
 * without a thread; here threads wait, so an owner may have only a few of them waiting.
 *
 * Threads    Every function may be called from any thread; places_free() when no thread has a place or waits.
 */
#ifndef BASE_PLACES_H
#define BASE_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct places_rule {
    unsigned most;         /* that are taken at once */
    unsigned most_each;    /* the same by one owner */
    unsigned waiting_each; /* threads of one owner that wait */
};

struct places;
struct places *places_new(const struct places_rule *rule) must_use;
void places_free(struct places *places);

/*
 * Waits until `until_ms` by clock_mono_ms(). ERR_LIMIT: too many threads of this owner wait already; ERR_UNAVAILABLE: no
 * place came in time.
 */
bool places_take(struct places *places, struct str owner, uint64_t until_ms, struct err *err) must_use;
/* The next one in turn has the place when this returns. */
void places_give_back(struct places *places, struct str owner);

/* Threads that wait, of all owners: for tests. */
unsigned places_waiting(struct places *places);

#endif
