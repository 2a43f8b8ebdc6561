/*
 * park.h - sandboxes of which only the disk has anything: PAUSE_PARK, and what is left of a sandbox that is parked.
 *
 * A parked sandbox is a box that is PARKED and the directory sandboxes/<id>/ with state, upper/ and, if its processes were
 * written too, image/. It has no process, cgroup, mount, slot or work directory. native_start() brings it back by its plan's
 * `from`, native_stop() discards it, and a new keeper finds it whatever has happened to the machine.
 *
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_PARK_H
#define ISOLATION_NATIVE_PARK_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"
#include "isolation/native/state.h"

struct box;

/*
 * A box that is RUNNING, frozen or not, becomes PARKED: `as` is HELD_PARKED, or HELD_PARKED_IMAGE when its image is there
 * already. done() comes later: it is parked and on disk; or err, and it is as it was before.
 */
void box_park(struct box *box, enum held_state as, driver_kept_fn *done, void *context);

/*
 * Of one that came from there and whose start has failed: done() comes when it is PARKED again, so that whoever hears of
 * the failure can start it at once in another way. With an err: it has ended for good meanwhile.
 */
void park_await(struct box *box, driver_kept_fn *done, void *context);

/* What box.c calls. */
/* Its memory is being taken back: box_clear() is called again when that is over. False: it is over, or not worth it. */
bool park_drain(struct box *box) must_use;
bool park_clear(struct box *box, struct err *err) must_use; /* all but the directory; false: try again */
void park_cleared(struct box *box);                         /* and it becomes PARKED, now or later */
void park_lost(struct box *box, const struct err *why);     /* it ends for good: a park under way fails */
/* One that is to start again: only what its last keeper left undone is being synced, and nobody waits for that. */
void park_hurry(struct box *box);
bool park_discard(struct box *box, struct err *err) must_use; /* one that is PARKED: it is gone */

/*
 * By a new keeper, of one that is not in native->boxes: its record says that it is parked. What may still run of it, from
 * a park or a start that was cut short, is ended.
 */
void park_found(struct box *box, const struct state *state);

/* driver_ops.park */
void native_park(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context);

#endif
