/*
 * tighten.h - a sandbox that came back with more memory than its limit gets the limit back.
 *
 * Pages that processes have shared are several after a restore, and guestd's are charged beside them, so all of it may not fit
 * at first. A helper tries again until it fits: the kernel may have to take memory back for it, which takes time.
 *
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_TIGHTEN_H
#define ISOLATION_NATIVE_TIGHTEN_H

#include "isolation/native/cgroup.h"

struct box;

/* As long as the sandbox runs. `limits` are those that it should have. */
void tighten_later(struct box *box, const struct cgroup_limits *limits);
void tighten_forget(struct box *box);

#endif
