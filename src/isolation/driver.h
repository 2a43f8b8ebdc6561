/*
 * driver.h - what can hold a sandbox: native namespaces now, a microVM later. Tests have a fake.
 *
 * Keeper owns a native driver. Front owns a remote one, which has the same calls and sends each of them to keeper. Code
 * above takes a struct driver and cannot tell the difference. ops.h says how to add a call.
 *
 * Threads    Keeper and the drivers it owns have one thread. Of the remote driver, start, stop_wait, list, link, warm,
 *            stats, and the calls of a pause wait for an answer and are for workers; stop, dial and listen never wait and are
 *            for the loop. How long the end of a sandbox takes is up to its guest, so no loop may wait for it.
 * Failure    A start that fails leaves nothing behind: no mount, no cgroup, no process, no directory; or leaves a
 *            process that has been killed, and is cleared away by itself once that has died.
 * Lifetime   Sandboxes outlive a driver: what one process started, the next one finds again with list.
 */
#ifndef ISOLATION_DRIVER_H
#define ISOLATION_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/divert.h"
#include "isolation/plan.h"
#include "isolation/stats.h"

struct driver;

struct started {
    int guestlink_fd; /* guestlink, connected to guestd; the caller's */
    bool has_network; /* false: this machine cannot give it one, and doctor says why */
};

/*
 * What a snapshot has become on disk: layers/<id>, the upper as a layer, and snapshots/<id>/ with a list of all its layers
 * and the image of its processes.
 */
struct kept {
    char id[LAYER_ID_BYTES];
    bool has_image;
    uint64_t layer_bytes, image_bytes;
    uint64_t raw_bytes; /* of a MEASURE: what image_bytes was before it was compressed */
    bool is_final;      /* the same: it is not compressed later */
    /*
     * Lowest first, `id` last: the layers of a sandbox made from it. Not always the sandbox's own and one more: long
     * chains are made shorter.
     */
    uint32_t layer_count;
    char layers[LIMIT_LAYERS][LAYER_ID_BYTES];
};

/* An archive that becomes a layer on top of others. */
struct unpack_want {
    char chain[LAYER_ID_BYTES];                /* the new layer's id. If it exists, nothing is unpacked */
    char diff[LAYER_ID_BYTES];                 /* SHA-256 of the tar archive */
    uint32_t layer_count;                      /* below it; may be 0 */
    char layers[LIMIT_LAYERS][LAYER_ID_BYTES]; /* lowest first */
    uint64_t most_bytes;                       /* of the unpacked files together */
};

/* Where to listen inside a sandbox. */
struct listen_at {
    uint32_t address; /* IPv4, in host byte order; one of 127.0.0.0/8 */
    uint16_t port;    /* not 0 */
    uint16_t backlog; /* 1 to LIMIT_BACKLOG connections may wait to be accepted */
};

/*
 * fd is a non-blocking TCP socket made inside the sandbox, and is the receiver's. Or it is -1, and err says why:
 * ERR_NOT_FOUND for no such sandbox.
 */
typedef void driver_socket_fn(void *context, int fd, const struct err *err);
/* The answer to a start that comes later. */
typedef void driver_started_fn(void *context, const struct started *started, const struct err *err);
/*
 * Everything inside was killed, or will be when it is its turn, if many are dying. gone says whether it has ended; if not,
 * exited() follows when it has. With an err nothing was killed.
 */
typedef void driver_stopped_fn(void *context, bool gone, const struct err *err);
/*
 * Whoever asked for a layer sends a message with the descriptor of its archive to this socket, which is borrowed. The confined
 * child that unpacks it is at the other end: keeper itself never holds a descriptor of front's, because front could make it
 * wait when it closes that.
 */
typedef void driver_offer_fn(void *context, int socket_fd);
/* The answer to a call of a pause. `kept` is of a snapshot, a list or a measure. With an err the sandbox is as it was before the call. */
typedef void driver_kept_fn(void *context, const struct kept *kept, const struct err *err);
enum exit_cause {
    EXIT_PLAIN,         /* it was stopped, or its pid 1 ended */
    EXIT_NO_MEMORY,     /* guestd used more than its own memory limit, and the kernel killed it */
    EXIT_OPEN_FILES,    /* its processes had more files open than it may have, and keeper stopped it */
    EXIT_IN_FLIGHT,     /* too many descriptors were on their way over its unix sockets, and keeper stopped it */
    EXIT_KERNEL_MEMORY, /* it made the kernel hold more memory beyond its limit than it may, and keeper stopped it */
    EXIT_LEFT_PAGES, /* no end: its cgroup is removed, and the kernel keeps memory for it, because others hold pages of it */
    EXIT_CAUSE_COUNT,
};
/*
 * The sandbox is gone. Called once for each, on the driver's loop, also for those that driver_stop() ended. With EXIT_LEFT_PAGES
 * it says something else: of a sandbox that is gone, perhaps once more; of one that is parked, each time perhaps, and it stays.
 */
typedef void driver_exited_fn(void *context, const char *id, enum exit_cause cause);

struct socket_option {
    uint32_t level, name;
};
/*
 * A guest has asked for a socket option that sandboxes do not have. Called once for each option of a sandbox, for the first
 * few, with the context of exited().
 */
typedef void driver_refused_fn(void *context, const char *id, const struct socket_option *option);

/*
 * The calls of a pause:
 *   FREEZE      every process inside stands still, guestd too (the cgroup freezer); it is held in memory. Fine if it does
 *               already. Its memory may be reclaimed afterwards.
 *   THAW        and goes on. Fine if it runs.
 *   PARK        everything inside is ended and only the disk has it: its upper, and with `memory` an image of its
 *               processes. It may run or be frozen before; it is PARKED afterwards, needs no process, no memory and no
 *               cgroup, and outlives a restart of the machine. driver_start() with plan.from brings it back, driver_stop()
 *               discards it.
 *   SNAPSHOT    a copy on disk of its upper and with `memory` of its processes; it stands still meanwhile and then goes on
 *               as before.
 *   SEAL        everything inside is ended, and its upper becomes a layer as it is, without a copy; the sandbox is gone
 *               afterwards. The answer is as of SNAPSHOT. If the call fails, the sandbox is gone too, and nothing is kept.
 *   COPY        a snapshot with memory for sandboxes that are made from it now: as they do, it ends with the machine, so
 *               nothing waits for the disk. DROP it when they run.
 *   DROP        removes a snapshot; `id` is its. Fine if there is none. Its layer goes when no sandbox and no other
 *               snapshot is made of it.
 *   MEASURE     what a parked sandbox or a snapshot takes on disk: layer_bytes are of the sandbox's upper. May take a while.
 *   LIST        kept->layers are the ids of the snapshots after `id` (empty: of the first ones), in order, as many as fit;
 *               none: there are no more.
 *
 * A frozen sandbox cannot be dialed, listened in or linked to (ERR_CONFLICT); it can be measured and stopped.
 *
 * ERR_NOT_FOUND: the driver holds no such sandbox. ERR_TIMEOUT: one of its processes waits inside the kernel and cannot be
 * frozen now; it goes on as before. ERR_CONFLICT: it was thawed before it stood still. ERR_INVALID: its processes cannot be
 * written to disk; err says which and what else is possible; it goes on as before. ERR_UNAVAILABLE without sys: this machine
 * cannot (no freezer, no CRIU); err says why. ERR_FULL: the disk.
 */
enum pause_call {
    PAUSE_FREEZE,
    PAUSE_THAW,
    PAUSE_PARK,
    PAUSE_SNAPSHOT,
    PAUSE_SEAL,
    PAUSE_COPY,
    PAUSE_DROP,
    PAUSE_LIST,
    PAUSE_MEASURE,
    PAUSE_CALL_COUNT
};

struct driver_ops {
    const char *name;
    bool (*start)(struct driver *driver, const struct plan *plan, struct started *out, struct err *err);
    /* The same for keeper, which never waits; takes any plan. NULL: start() never takes long. */
    void (*start_later)(struct driver *driver, const struct plan *plan, driver_started_fn *done, void *context);
    /*
     * Nothing waits any more for an answer that start_later() still owes: the start fails, what was parked is parked again,
     * and it is answered at once. A start that cannot be taken back goes on. NULL: none can.
     */
    void (*start_cancel)(struct driver *driver, const char *id);
    void (*stop)(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done, void *context);
    /* NULL for a driver that has no worker threads. */
    bool (*stop_wait)(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone, struct err *err);
    /* A heap array, the caller's to free. */
    bool (*list)(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err);
    bool (*link)(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err);
    /* NULL for a driver that has no zygotes. */
    bool (*warm)(struct driver *driver, const char *id, struct err *err);
    /* `out` has room for `count`, which is at most LIMIT_STATS; sandboxes that the driver does not hold are left out. */
    bool (*stats)(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                  uint32_t *out_count, struct err *err);
    void (*dial)(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done, void *context);
    void (*listen)(struct driver *driver, const char *id, const struct listen_at *at, driver_socket_fn *done,
                   void *context);
    /*
     * The calls of a pause. Keeper's driver answers later; the remote driver has the …_wait() forms, for workers. NULL
     * for a driver that cannot.
     */
    void (*freeze)(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
    void (*thaw)(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
    void (*park)(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context);
    void (*snapshot)(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context);
    void (*seal)(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
    void (*copy)(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
    void (*drop)(struct driver *driver, const char *snapshot, driver_kept_fn *done, void *context);
    void (*list_snapshots)(struct driver *driver, const char *after, driver_kept_fn *done, void *context);
    void (*measure)(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
    bool (*pause_wait)(struct driver *driver, enum pause_call call, const char *id, bool memory, struct kept *out,
                       struct err *err);
    /*
     * The layer of an archive, a regular file with gzip, zstd or plain tar. `kept` is as of a snapshot without memory.
     * Keeper's driver answers later, and asks for the archive before, unless the layer is there; unpack_wait() is for
     * workers, and the descriptor stays theirs. NULL for a driver that cannot.
     */
    void (*unpack)(struct driver *driver, const struct unpack_want *want, driver_offer_fn *offer, driver_kept_fn *done,
                   void *context);
    bool (*unpack_wait)(struct driver *driver, const struct unpack_want *want, int archive_fd, struct kept *out,
                        struct err *err);
    /* NULL for a remote driver: keeper gives these sockets to egress and to no other. */
    bool (*divert)(struct driver *driver, const char *id, int out_fds[DIVERT_KINDS], struct err *err);
    void (*free)(struct driver *driver); /* lets go; sandboxes keep running */
};

struct driver {
    const struct driver_ops *ops;
    driver_exited_fn *exited;   /* may be NULL */
    driver_refused_fn *refused; /* may be NULL */
    void *exited_context;
};

/* Returns when guestd has been started inside. It may still be setting itself up; guestlink takes messages already. */
static inline must_use bool driver_start(struct driver *driver, const struct plan *plan, struct started *out,
                                         struct err *err)
{
    return driver->ops->start(driver, plan, out, err);
}

/*
 * Kills everything inside at once, and answers when it is gone (also if it was gone before) or when patience_ms have
 * passed: a guest can make the kernel work for minutes on its exit. From the kill on it cannot be listed or dialed. The
 * answer may come before this returns; a second stop is fine.
 */
static inline void driver_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                               void *context)
{
    driver->ops->stop(driver, id, patience_ms, done, context);
}

/* The same for a worker, which waits for the answer. */
static inline must_use bool driver_stop_wait(struct driver *driver, const char *id, uint32_t patience_ms,
                                             bool *out_gone, struct err *err)
{
    return driver->ops->stop_wait(driver, id, patience_ms, out_gone, err);
}

static inline must_use bool driver_list(struct driver *driver, struct held **out_held, uint32_t *out_count,
                                        struct err *err)
{
    return driver->ops->list(driver, out_held, out_count, err);
}

/*
 * A new guestlink, in place of the one before, which guestd closes. Also for a sandbox that an earlier driver started.
 * ERR_UNAVAILABLE when guestd does not accept it.
 */
static inline must_use bool driver_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    return driver->ops->link(driver, id, out_guestlink_fd, err);
}

/*
 * The zygote of the sandbox's template is warm, and guestd can ask it for interpreters: it can be told to (GUESTLINK_WARM).
 * ERR_UNAVAILABLE: not now; a zygote that did not run is being started, which takes some seconds. ERR_INVALID: this sandbox
 * will have none.
 */
static inline must_use bool driver_warm(struct driver *driver, const char *id, struct err *err)
{
    if (!driver->ops->warm)
        return err_set(err, ERR_INVALID, "this driver has no zygotes");
    return driver->ops->warm(driver, id, err);
}

/* What these sandboxes use, in the order of `which`. */
static inline must_use bool driver_stats(struct driver *driver, const struct held *which, uint32_t count,
                                         struct stats *out, uint32_t *out_count, struct err *err)
{
    return driver->ops->stats(driver, which, count, out, out_count, err);
}

/* The socket is connected to 127.0.0.1:port, or on its way. When nothing listens there, err has sys ECONNREFUSED. */
static inline void driver_dial(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done,
                               void *context)
{
    driver->ops->dial(driver, id, port, done, context);
}

/*
 * The socket listens at that address and port inside the sandbox; the receiver accepts the guest's connections. When the
 * port is in use there, err is ERR_CONFLICT. The socket keeps the sandbox's network namespace, and reports nothing when
 * the sandbox ends: close it then.
 */
static inline void driver_listen(struct driver *driver, const char *id, const struct listen_at *at,
                                 driver_socket_fn *done, void *context)
{
    driver->ops->listen(driver, id, at, done, context);
}

/*
 * New sockets inside the sandbox that get what leaves it (io/divert.h); -1 where it has none of that kind. They keep its
 * network namespace, as above. ERR_CONFLICT when a guest has taken their port, or when those of an earlier call are still
 * open; ERR_UNAVAILABLE when the sandbox has no network.
 */
static inline must_use bool driver_divert(struct driver *driver, const char *id, int out_fds[DIVERT_KINDS],
                                          struct err *err)
{
    return driver->ops->divert(driver, id, out_fds, err);
}

/* On a worker: one of the calls of a pause, see enum pause_call. `out` is what SNAPSHOT, LIST and MEASURE give, and may be NULL. */
static inline must_use bool driver_pause_call(struct driver *driver, enum pause_call call, const char *id, bool memory,
                                              struct kept *out, struct err *err)
{
    if (!driver->ops->pause_wait)
        return err_set(err, ERR_UNAVAILABLE, "this driver cannot pause a sandbox");
    return driver->ops->pause_wait(driver, call, id, memory, out, err);
}

/*
 * On a worker: makes a layer of an archive of the OCI image format, whiteouts and all. A confined child unpacks it: nothing
 * outside of the new layer can be written. ERR_INVALID: a damaged archive, a wrong sum, an entry that is not allowed; err
 * names it. ERR_LIMIT: more than most_bytes. ERR_FULL. PAUSE_DROP removes it.
 */
static inline must_use bool driver_unpack(struct driver *driver, const struct unpack_want *want, int archive_fd,
                                          struct kept *out, struct err *err)
{
    if (!driver->ops->unpack_wait)
        return err_set(err, ERR_UNAVAILABLE, "this driver cannot unpack images");
    return driver->ops->unpack_wait(driver, want, archive_fd, out, err);
}

static inline void driver_free(struct driver *driver)
{
    if (driver)
        driver->ops->free(driver);
}

#endif
