/*
 * trash.h - deleting what guests leave behind, without delaying other work.
 *
 * A guest can make a tree of any size and depth. It is moved into trash/ with one rename and deleted by a child process
 * at the lowest priority. Killed at any moment, the next one goes on.
 */
#ifndef ISOLATION_NATIVE_TRASH_H
#define ISOLATION_NATIVE_TRASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"

struct trash;

/* trash_fd stays the caller's and outlives the trash. What is in there already is deleted first. */
struct trash *trash_new(struct loop *loop, int trash_fd) must_use;
void trash_free(struct trash *trash); /* kills the child, and waits for it no longer than a moment */

bool trash_add(struct trash *trash, int dir_fd, const char *name, struct err *err) must_use;
/* Others have put something in there: delete it soon. */
void trash_empty(struct trash *trash);
/*
 * Children have numbers, from 1 on, and follow one another. trash_round() is that of the next one: it deletes what is added
 * now. done() is called when one has ended, or could not be started.
 */
uint64_t trash_round(const struct trash *trash);
uint64_t trash_rounds_over(const struct trash *trash);
void trash_on_round(struct trash *trash, void (*done)(void *context), void *context);
/* Nothing is left in there and no child runs; for tests. */
bool trash_idle(const struct trash *trash);

#endif
