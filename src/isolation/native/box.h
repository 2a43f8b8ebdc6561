/*
 * box.h - the sandboxes that the native driver holds, each a box, and how one ends.
 *
 * Made by start.c or adopt.c. Its pidfd reports its end, whatever the cause, and then it is freed.
 *
 * Ownership  A box is the driver's, in native->boxes, until box_clear() has cleared everything away.
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_BOX_H
#define ISOLATION_NATIVE_BOX_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/map.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/compress.h"
#include "isolation/native/drain.h"
#include "isolation/native/freeze.h"
#include "isolation/native/helper.h"
#include "isolation/native/kernel_memory.h"
#include "isolation/native/memory.h"
#include "isolation/native/mounts.h"
#include "isolation/native/native.h"
#include "isolation/native/network.h"
#include "isolation/native/options.h"
#include "isolation/native/state.h"
#include "isolation/native/trash.h"
#include "isolation/native/zygotes.h"

enum { BOX_SLOTS = LIMIT_SANDBOXES + LIMIT_POOL + 64 }; /* some more than may live, for those being cleared away */

/*
 * STARTING  not listed yet, or still as parked; a failure ends it, and so does a stop
 * RUNNING   pid 1 runs, or is frozen (freeze.h)
 * DOOMED    told to end, and waits until fewer others die (NATIVE_DYING); neither listed nor dialed any more
 * DYING     pid 1 has been killed and has not ended yet
 * CLEARING  pid 1 is gone; cgroups or directory are still to be removed, and the slot is not free
 * PARKED    only its directory is there (park.h), and it has no slot
 */
enum box_state { BOX_STARTING, BOX_RUNNING, BOX_DOOMED, BOX_DYING, BOX_CLEARING, BOX_PARKED };

struct box {
    struct native *native;
    char id[LIMIT_ID_BYTES];
    enum box_state state;
    enum held_state keep; /* HELD_PARKED…: when it ends, its directory stays and it is PARKED. Else HELD_RUNNING */
    struct park *park;    /* under way, or NULL */
    struct snapshot *snapshot; /* the same, until its files are copied */
    struct snapshot *seal;     /* its files become a layer when it has ended; NULL: they go */
    uint32_t slot;             /* BOX_SLOTS: none */
    pid_t pid;
    int pidfd;
    struct watch *watch;
    bool ran;              /* its end is reported */
    bool is_untouched;     /* resumed from its files: since then only guestd has run and written */
    enum exit_cause cause; /* why we end it; EXIT_PLAIN when we do not know better */
    struct wait *waits;    /* see box.c */
    unsigned wait_count;
    enum network_kind network;
    struct zygote *zygote; /* NULL: its interpreters start inside */
    struct zygote_given zygote_given;
    struct ice ice;
    struct start *start;             /* under way, or NULL */
    struct checkpoint *checkpoint;   /* the same */
    struct restore *restore;         /* the same */
    struct memory_park *memory_park; /* the same */
    struct options *options;         /* NULL: nothing hears which socket options are refused */
    struct tighten *tighten;         /* it has more memory than its limit for now; or NULL */
    struct timer retry;
    unsigned tries;
    struct box *next_doomed;
    bool is_left_frozen;      /* by a test (suspects.h); it is thawed as soon as that can be done */
    unsigned in_flight_looks; /* in a row (kernel_memory.h) */
    bool is_counted;          /* in native->dying… */
    struct timer slow;        /* …until it is gone or this is over */
};

#define NATIVE_ENTER "enter" /* the name of enter.so beside guestd */

struct native {
    struct memory memory;
    struct compress compress;
    bool is_stopping;
    struct driver driver;
    struct loop *loop;
    int data_fd, layers_fd, sandboxes_fd, snapshots_fd, trash_fd;
    int guestd_fd, enter_fd;    /* read-only: see open_guestd() in native.c */
    int netns_fd;               /* our own, to come back to */
    enum network_kind network;  /* what new sandboxes get… */
    struct network_rules rules; /* …by these, unless it is NETWORK_NONE */
    struct mounts mounts;
    struct cgroups *cgroups;
    struct sock_fprog filter;
    struct trash *trash;
    struct drains *drains;
    struct helpers *helpers;
    struct snapshot *snapshots;   /* being made */
    struct measure *measures;     /* under way */
    struct unpacking *unpackings; /* layers of images, being unpacked or waiting */
    void (*on_unused)(void *context);
    void *on_unused_context;
    struct zygotes *zygotes; /* may be NULL */
    struct map boxes;        /* by id */
    bool slot_taken[BOX_SLOTS];
    struct box *doomed, **doomed_end; /* in the order in which they were told to end */
    unsigned dying;
    struct kernel_memory kernel_memory;
    struct reclaim reclaim;
    uint32_t uid_base;
    char boot_id[BOOT_ID_BYTES];
    enum native_step fail_at, die_at;
    int child_gate_fd; /* for tests; -1: none */
};

static inline struct native *native_of(struct driver *driver)
{
    return container_of(driver, struct native, driver);
}

/* For tests: false, or the end of this process, at the step that they have named. */
bool native_reach(const struct native *native, enum native_step step, struct err *err) must_use;

/* For ids of its own, 65536 of them, that no process has as long as there are such; box_clear() gives it back. */
bool slot_take(struct native *native, uint32_t *out_slot, struct err *err) must_use;

struct box *box_new(struct native *native, const char *id) must_use; /* in no state, and not in native->boxes */
void box_free(void *object); /* answers requests that wait: keeper is stopping */
struct box *box_find(struct native *native, const char *id) must_use;

/* One that runs. NULL: there is none (ERR_NOT_FOUND), or it is frozen (ERR_CONFLICT). */
struct box *box_find_awake(struct native *native, const char *id, struct err *err) must_use;

/* RUNNING or DYING: either way its end comes by the pidfd. */
void box_watch(struct box *box, enum box_state state);
/* RUNNING becomes DYING, or DOOMED when enough others are dying. */
bool box_kill(struct box *box, struct err *err) must_use;
/* The same without a mark that it is dying: for one whose files are kept. */
bool box_end(struct box *box, struct err *err) must_use;
/* Something that takes a while is under way with it: err says what (ERR_CONFLICT). */
bool box_is_busy(const struct box *box, struct err *err) must_use;
/* One that is CLEARING and has no process: tries until all is gone, and then frees the slot and the box. */
void box_clear(struct box *box);
/* For a child of ours and for an adopted one alike. */
bool process_ended(int pidfd);
/* Tells the driver's owner: its cgroup is removed, and the kernel keeps memory for it. */
void box_left_pages(struct native *native, const char *id);

/* driver_ops.stop */
void native_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done, void *context);

#endif
