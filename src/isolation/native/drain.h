/*
 * drain.h - the memory that is charged to a sandbox's cgroup when all of its processes have ended.
 *
 * The kernel keeps a removed memory cgroup, 160 KiB of it, for as long as one page is charged to it. Pages of a sandbox's own
 * files go with the files. The blocks of its directories do not: they stay in the cache of the disk until memory is short. So
 * the memory cgroups of a sandbox outlive its directory (trash.h), and the kernel is told to take these pages back before they
 * are removed. That can take long, and a child does it, for some sandboxes at a time.
 *
 * A cgroup with many pages may be removed as it is: they can be those of a template, which this sandbox was the first to read,
 * and the next one wants them. They can also be a thousand directories, and nothing tells the two apart. So only some cgroups
 * are left like that, one a minute in the long run.
 *
 * The files of a parked sandbox stay, and its id must be free when it is parked. So park.c drains it by itself, before that,
 * however many pages it has.
 *
 * Ownership  The cgroups and the trash outlive it.
 * Threads    Keeper's one. drain_end() and drains_free() wait for the child, 500 ms at most; nothing else here waits.
 * Failure    The cgroups are removed also if the drain fails; if keeper ends before that, the next keeper removes them.
 */
#ifndef ISOLATION_NATIVE_DRAIN_H
#define ISOLATION_NATIVE_DRAIN_H

#include "base/attr.h"
#include "io/loop.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/trash.h"

struct drains;

/* The cgroups of this one are about to be removed, and pages stay that could not be taken back. */
typedef void drain_left_fn(void *context, const char *id);

struct drains *drains_new(struct loop *loop, struct cgroups *cgroups, struct trash *trash, drain_left_fn *left,
                          void *context) must_use;
void drains_free(struct drains *drains); /* removes what is left */

/* After cgroup_leave_memory(), and when the sandbox's directory is in the trash. */
void drain_add(struct drains *drains, const char *id);
/*
 * Removes its cgroups now, if there are any: another sandbox gets this id. Ids of the API are given once. It waits only if
 * the child is at work on this one.
 */
void drain_end(struct drains *drains, const char *id);

/*
 * For who drains a sandbox by itself: what to write into which file, as cgroup_open_reclaim(), which takes more than a drain
 * that can be tried again. False: nothing is to be taken back.
 */
bool drain_open(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text) must_use;
/* After a drain: do pages stay that could not be taken back? */
bool drain_has_left(const struct cgroups *cgroups, const char *id) must_use;

#endif
