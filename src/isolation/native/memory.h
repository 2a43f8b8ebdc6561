/*
 * memory.h - can this machine write the memory of sandboxes to disk? And PAUSE_PARK with memory.
 *
 * It can where CRIU is there (criu.h), and where a test at keeper's start has worked.
 *
 * Threads    Keeper's one. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_MEMORY_H
#define ISOLATION_NATIVE_MEMORY_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "isolation/native/image.h"

struct box;
struct native;

struct memory {
    int tools_fd;   /* CRIU's root; -1: it cannot… */
    int known_fd;   /* for criu.h: a sealed memfd, once a test has worked; -1: none */
    struct err why; /* …because of this: ERR_UNAVAILABLE, without sys */
    struct image_origin origin;
    struct helper *test; /* under way, or NULL */
    unsigned tests;      /* that were begun */
    int learning_fd;     /* of the test under way: becomes known_fd */
    bool has_failed;     /* the last one that ended */
    struct timer again;
    uint64_t dump_ms; /* how long a dump may take: LIMIT_DUMP_MS, but for tests */
};

/*
 * `tools` is the path of CRIU's root; NULL: memory is not to be written. Never fails: then it is off, and the log says why.
 * The test goes on behind it. Until it ends memory counts as working: a call that fails leaves its sandbox as it was.
 * A test that fails is made again a few times: a machine that has just booted may be too busy for it.
 */
void memory_open(struct native *native, const char *tools);
void memory_close(struct native *native);
bool memory_works(const struct native *native, struct err *err) must_use;

/* A box that is RUNNING, frozen or not: its image is made, then it is parked. As box_park() otherwise. */
void memory_park(struct box *box, driver_kept_fn *done, void *context);

#endif
