/*
 * start.h - a sandbox from its plan to guestd, as keeper makes it.
 *
 * Failure    A start that fails at any step leaves nothing behind. A parked sandbox is parked again.
 */
#ifndef ISOLATION_NATIVE_START_H
#define ISOLATION_NATIVE_START_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

struct box;

/* driver_ops.start: waits for the child, for tests and tools that have nothing else to do. */
bool native_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err) must_use;
/* driver_ops.start_later: never waits; also for plans that bring processes back. */
void native_start_later(struct driver *driver, const struct plan *plan, driver_started_fn *done, void *context);
/* driver_ops.start_cancel */
void native_start_cancel(struct driver *driver, const char *id);
/* If one is under way that does not bring processes back: it fails for this reason. */
void start_forget(struct box *box, const struct err *why);

#endif
