/*
 * growth.h - finds the sandbox that makes the kernel grow when no list says which one it is.
 *
 * kernel_memory.c knows some things that the kernel holds for a guest and charges to nobody, and where they are listed.
 * There are others, and always one more. What they have in common is that the kernel's part of the memory stops growing
 * when the right sandbox stands still, and grows again when it goes on. So sandboxes are frozen, for milliseconds, until the
 * growth stops. The one at which it stops is thawed several times, at last while all others stand still. Only one with which
 * the growth comes and goes is ended.
 *
 * What it does not find: growth slower than a test can tell from what else the machine does, 20 MiB a second at first and
 * 4 MiB when a sixteenth of the machine's memory is lost, on a machine that does little else; and a guest that keeps still
 * after each freeze. If its freeze has always stopped the growth, such a guest is ended when an eighth is lost.
 *
 * Some file systems (XFS, ZFS) hold caches that no counter shows as such, and that grow with what guests do with files. There the
 * kernel is asked to shrink its caches before the first one is ended: if most of what was lost comes back, nobody is.
 *
 * Decides, and knows nothing of sandboxes, cgroups or loops: struct growth_ops does, so that tests have a machine of
 * their own.
 *
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_GROWTH_H
#define ISOLATION_NATIVE_GROWTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/limits.h"

/* Of the machine, in bytes. */
struct growth_sample {
    uint64_t at_us;
    int64_t kernel;    /* all that is neither free, nor a process's, nor a file's, nor could be taken back at once */
    int64_t uncharged; /* the same with what could be taken back, without what is charged to any cgroup */
};

struct growth_ops {
    /* exact: for a test. Otherwise what is charged may be some milliseconds old. */
    bool (*sample)(void *context, bool exact, struct growth_sample *out);
    /* The next that runs and may be frozen. False: that was the last. */
    bool (*next)(void *context, size_t *cursor, char out_id[LIMIT_ID_BYTES]);
    /* Its processor time since it began. False: it is gone. */
    bool (*cpu_us)(void *context, const char *id, uint64_t *out_us);
    /* Begins to. False: it is gone, or someone else has begun something with it. */
    bool (*freeze)(void *context, const char *id);
    bool (*is_frozen)(void *context, const char *id);
    void (*thaw)(void *context, const char *id); /* if it is there, and nobody else wants it frozen */
    /*
     * Begins to have the kernel give back what it could. False: nothing that guests' files make it hold would be missed by
     * `sample`, or it cannot be done.
     */
    bool (*shrink)(void *context);
    bool (*is_shrunk)(void *context);
    void (*end)(void *context, const char *id, uint64_t grown_bytes);
};

enum {
    GROWTH_LOOK_MS = 25,    /* a guest in C takes 325 MiB a second */
    GROWTH_SAMPLES = 320,   /* of eight seconds */
    GROWTH_SUSPECTS = 32,   /* room for so many at first */
    GROWTH_REMEMBERED = 16, /* those whose freeze stopped the growth */
};

enum growth_state {
    GROWTH_WATCHING,  /* nobody is suspected */
    GROWTH_COUNTING,  /* who uses the kernel's time? */
    GROWTH_FREEZING,  /* one is told to stand still, besides those that do */
    GROWTH_STILL,     /* …and does: has the growth stopped? */
    GROWTH_MOVING,    /* it alone was thawed: does the growth come back? */
    GROWTH_SHRINKING, /* it was, and is frozen again: is it all a cache that the kernel can do without? */
};

struct suspect {
    char id[LIMIT_ID_BYTES];
    uint64_t began_us, spent_us; /* on processors */
};

struct growth {
    const struct growth_ops *ops;
    void *context;
    uint64_t memory_bytes; /* the machine's */
    int64_t proof_least;   /* in one window; what each processor counts for itself must not look like it */
    enum growth_state state;
    uint64_t due_us; /* nothing to do before */
    /* watching */
    struct growth_sample low; /* the least of both since the growth was last explained */
    struct growth_sample samples[GROWTH_SAMPLES];
    unsigned sampled, newest;
    int64_t shrunk;
    uint64_t since_us;               /* it has not grown */
    uint64_t not_before_us, rest_us; /* no round… */
    int64_t not_below;               /* …unless so much is lost */
    unsigned several;                /* how many may have their part in it */
    /* a round */
    uint64_t round_began_us, round_until_us, step_until_us, count_until_us, window_us;
    uint64_t expected; /* bytes in a window, of one of them */
    int64_t lost;      /* beyond `low`, when it began */
    int64_t still_bytes;
    struct growth_sample before;
    struct suspect *suspects;
    size_t all, room, cursor;
    size_t count;                   /* the first ones of them are suspected */
    bool listed;                    /* all of them; what they spend is measured */
    size_t frozen;                  /* the first ones of them; the last of these, or the one behind them, is tested */
    size_t goes_on, stops;          /* so many were frozen when the growth went on, and when it did not; 0: not known */
    size_t awaited;                 /* of these: the first that may not stand still yet */
    bool stopped;                   /* the growth has, and now they are thawed one by one */
    int proofs;                     /* that it is the one that is thawed */
    unsigned tests;                 /* of that one */
    bool is_alone;                  /* all but the one that is tested are frozen */
    char acquitted[LIMIT_ID_BYTES]; /* the last one that was */
    bool found;                     /* one was ended in this round */
    uint64_t no_cache_until_us;     /* what is lost is no cache: known for a while */
    struct {
        char id[LIMIT_ID_BYTES];
        unsigned stops;
    } remembered[GROWTH_REMEMBERED]; /* in a row; one is forgotten when the growth goes on without it */
    unsigned forget;
};

void growth_init(struct growth *growth, const struct growth_ops *ops, void *context, uint64_t memory_bytes,
                 unsigned processors);
/* Thaws whatever it has frozen. */
void growth_done(struct growth *growth);
/* To be called when as many milliseconds are over as the last call has answered; earlier is fine. */
uint64_t growth_step(struct growth *growth, uint64_t now_us) must_use;

#endif
