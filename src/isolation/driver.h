/*
 * driver.h - what can hold a sandbox: native namespaces now, a microVM later, a fake for tests.
 *
 * Keeper owns a native driver. Front owns a remote one, which has the same calls and sends each of them to keeper.
 * What sits above takes a struct driver and cannot tell the difference.
 *
 * Threads    Keeper and the drivers it owns have one thread. Of the remote driver, start, stop, list and stats wait
 *            for an answer and are for workers; dial never waits and is for the loop.
 * Failure    A start that fails leaves nothing behind: no mount, no cgroup, no process, no directory.
 * Lifetime   Sandboxes outlive a driver: what one process started, the next one finds again with list.
 */
#ifndef ISOLATION_DRIVER_H
#define ISOLATION_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/plan.h"
#include "isolation/stats.h"

struct driver;

struct started {
    int guestlink_fd; /* connected to guestd's private door; the caller's */
};

/*
 * fd is a non-blocking TCP socket made inside the sandbox, connected to 127.0.0.1:port there or on its way, the
 * receiver's. Or -1 and err says why: ERR_NOT_FOUND for no such sandbox, sys ECONNREFUSED when nobody listens.
 */
typedef void driver_dialed_fn(void *context, int fd, const struct err *err);
/* The sandbox is gone, whoever ended it. Called once for each, on the driver's loop. */
typedef void driver_exited_fn(void *context, const char *id);

struct driver_ops {
    const char *name;
    bool (*start)(struct driver *driver, const struct plan *plan, struct started *out, struct err *err);
    bool (*stop)(struct driver *driver, const char *id, struct err *err);
    /* A heap array, the caller's to free. */
    bool (*list)(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err);
    /* Room for `count`, which is at most LIMIT_STATS; those that it does not hold are left out. */
    bool (*stats)(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                  uint32_t *out_count, struct err *err);
    void (*dial)(struct driver *driver, const char *id, uint16_t port, driver_dialed_fn *done, void *context);
    void (*free)(struct driver *driver); /* lets go; sandboxes keep running */
};

struct driver {
    const struct driver_ops *ops;
    driver_exited_fn *exited; /* may be NULL */
    void *exited_context;
};

/* Returns once guestd runs inside; it may still be setting itself up, its door is open. */
static inline must_use bool driver_start(struct driver *driver, const struct plan *plan, struct started *out,
                                         struct err *err)
{
    return driver->ops->start(driver, plan, out, err);
}

/* Ends everything inside at once. True also when it was gone already. On return nothing inside runs any more. */
static inline must_use bool driver_stop(struct driver *driver, const char *id, struct err *err)
{
    return driver->ops->stop(driver, id, err);
}

static inline must_use bool driver_list(struct driver *driver, struct held **out_held, uint32_t *out_count,
                                        struct err *err)
{
    return driver->ops->list(driver, out_held, out_count, err);
}

/* What these use, in the order of asking. */
static inline must_use bool driver_stats(struct driver *driver, const struct held *which, uint32_t count,
                                         struct stats *out, uint32_t *out_count, struct err *err)
{
    return driver->ops->stats(driver, which, count, out, out_count, err);
}

static inline void driver_dial(struct driver *driver, const char *id, uint16_t port, driver_dialed_fn *done,
                               void *context)
{
    driver->ops->dial(driver, id, port, done, context);
}

static inline void driver_free(struct driver *driver)
{
    if (driver)
        driver->ops->free(driver);
}

#endif
