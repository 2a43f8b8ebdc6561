/*
 * strays.h - forks of a zygote that get stuck on their way into a sandbox.
 *
 * Until guestd has moved it, such a fork counts as the zygote's, and the root of the sandbox can already stop it. It would stay in
 * the zygote's cgroup, which all sandboxes of the template share, until the sandbox ends. So every few seconds keeper kills the
 * processes there that are in a sandbox and were there at the last look. A fork needs milliseconds.
 *
 * Threads    Keeper's. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_STRAYS_H
#define ISOLATION_NATIVE_STRAYS_H

#include "base/attr.h"
#include "io/loop.h"
#include "isolation/native/cgroup.h"

struct strays;

/* Looks from now on. `cgroup` is borrowed. */
struct strays *strays_new(struct loop *loop, const struct cgroups *cgroups, const char *cgroup, pid_t zygote) must_use;
void strays_free(struct strays *strays); /* NULL is fine */

#endif
