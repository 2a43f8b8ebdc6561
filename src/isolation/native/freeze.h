/*
 * freeze.h - sandboxes that stand still: PAUSE_FREEZE and PAUSE_THAW, and taking memory back from what is frozen.
 *
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_FREEZE_H
#define ISOLATION_NATIVE_FREEZE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "io/loop.h"
#include "isolation/driver.h"

struct box;
struct native;
struct freeze_wait;

/* Of one box. */
struct ice {
    bool is_frozen;            /* everything inside stands still, or will as soon as the kernel lets go of it */
    struct freeze_wait *waits; /* requests to freeze that are not answered; none: it is not being frozen */
    struct timer look;
    uint64_t until_ms;
    uint64_t reclaim_ms; /* when its memory is due; 0: it is not */
};

/* The child that takes memory back, one for all boxes. */
struct reclaim {
    struct timer timer;
    pid_t pid; /* 0: none */
    int pidfd;
    struct watch *watch;
    char id[LIMIT_ID_BYTES]; /* of the box that it is at */
    uint64_t before_bytes;
};

/*
 * Freezes a box that is RUNNING. done() comes at once or later: frozen, or with an err, and then it runs as before. A
 * second freeze waits for the first.
 */
void box_freeze(struct box *box, driver_kept_fn *done, void *context);
/* Requests to freeze it that still wait fail with ERR_CONFLICT. */
bool box_thaw(struct box *box, struct err *err) must_use;
/* It was found frozen by a new keeper. */
void box_found_frozen(struct box *box);
/* It is being ended, or keeper is: requests to freeze it get this error. */
void box_forget_freeze(struct box *box, const struct err *why);

/* Nothing of it is left that could be frozen. */
void box_forget_ice(struct box *box);
/* No more memory is taken back from it: it is killed. */
void box_forget_reclaim(struct box *box);
/* The child that takes memory back is still at it: to remove its cgroup would wait for that. */
bool box_is_reclaimed(const struct box *box) must_use;

void reclaim_close(struct native *native);

/* driver_ops.freeze and .thaw */
void native_freeze(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
void native_thaw(struct driver *driver, const char *id, driver_kept_fn *done, void *context);

/*
 * In a fork of keeper: writes to these files, of cgroup_open_reclaim() or cgroup_open_drain(), at the lowest priority. Their
 * numbers ascend. All others are closed.
 */
no_return void reclaim_and_exit(pid_t keeper, const int *fds, const char *const *texts, int count);
/* Ends that fork. It notices between two pieces of work, so first it gets the priority that it had given up. */
void reclaim_kill(pid_t pid, int pidfd);

#endif
