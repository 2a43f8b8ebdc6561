/*
 * start.h - a sandbox from its plan to guestd, as keeper makes it.
 */
#ifndef ISOLATION_NATIVE_START_H
#define ISOLATION_NATIVE_START_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

/* driver_ops.start: one that fails leaves nothing behind. */
bool native_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err) must_use;
/* driver_ops.start_later: also for plans that bring processes back. */
void native_start_later(struct driver *driver, const struct plan *plan, driver_started_fn *done, void *context);

#endif
