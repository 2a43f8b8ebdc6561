/*
 * restore.h - brings the processes of a sandbox back from an image, by CRIU: a start with PLAN_PARKED_IMAGE or PLAN_IMAGE.
 *
 * Threads    Keeper's one. Nothing here waits: a helper does the work.
 */
#ifndef ISOLATION_NATIVE_RESTORE_H
#define ISOLATION_NATIVE_RESTORE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

struct box;
struct restore;

/*
 * For a box that is STARTING, with a slot: sandbox_fd is its directory, with upper/, an empty work/ and a record; claim_fd
 * is from state_claim(), and the helper holds it from then on; image_fd is the image. All descriptors stay the caller's. done() comes later, unless this is false: then its cgroup is made or not,
 * and it has no process. After a failure too the caller clears the box away.
 */
struct restore_from {
    const struct plan *plan;
    int sandbox_fd, claim_fd, image_fd;
};
typedef void restore_fn(void *context, struct box *box, int link_fd, const struct err *err);
bool box_restore(struct box *box, const struct restore_from *from, restore_fn *done, void *context, struct err *err)
    must_use;
/* The box goes: done() gets this. */
void restore_forget(struct box *box, const struct err *why);

#endif
