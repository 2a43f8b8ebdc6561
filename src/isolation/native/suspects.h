/*
 * suspects.h - the machine, its sandboxes and its zygotes, as growth.h wants to see them.
 *
 * Threads    Keeper's one. A sample takes 20 us on cgroups v1, and up to 0.2 ms on v2, where it brings figures up to date.
 */
#ifndef ISOLATION_NATIVE_SUSPECTS_H
#define ISOLATION_NATIVE_SUSPECTS_H

#include "isolation/native/growth.h"

extern const struct growth_ops suspects_ops[]; /* for each view of kernel_memory.h; their context is struct native */

struct native;
/* Once more, those that could not be thawed after a test. */
void suspects_thaw_left(struct native *native);

#endif
