#include "isolation/native/suspects.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "isolation/native/box.h"
#include "isolation/native/usage.h"

enum {
    ZYGOTES_FROM = 1 << 30, /* of a cursor: those below are boxes */
    CHARGED_MS = 1000,      /* how old the figure may be… */
};
#define CHARGED_MOVE (4ll << 20) /* …unless the kernel's part has moved by this */

static bool sample(struct native *native, enum kernel_memory_view view, bool exact, struct growth_sample *out)
{
    struct kernel_memory *memory = &native->kernel_memory;
    struct kernel_charged *charged = &memory->charged[view];
    struct kernel_part part;
    struct err ignored;

    if (!kernel_memory_part(memory->meminfo_fd, &part))
        return false;
    int64_t bytes = (int64_t)(view == KERNEL_MEMORY_NAMED ? part.named_bytes : part.held_bytes);
    *out = (struct growth_sample){ .at_us = clock_mono_us(), .kernel = bytes };
    if (exact || out->at_us - charged->at_us > CHARGED_MS * 1000 || llabs(bytes - charged->kernel) > CHARGED_MOVE) {
        *charged = (struct kernel_charged){ .at_us = out->at_us, .kernel = bytes };
        if (!usage_charged_kernel(native->cgroups, memory->top, &charged->bytes, &ignored))
            charged->bytes = 0; /* this kernel charges none */
    }
    out->uncharged = bytes + (int64_t)part.reclaimable_bytes - (int64_t)charged->bytes;
    return true;
}

static bool sample_named(void *context, bool exact, struct growth_sample *out)
{
    return sample(context, KERNEL_MEMORY_NAMED, exact, out);
}

static bool sample_all(void *context, bool exact, struct growth_sample *out)
{
    return sample(context, KERNEL_MEMORY_ALL, exact, out);
}

/* Nobody else has frozen it, or is about to. */
static struct box *find_free(struct native *native, const char *id)
{
    struct box *box = box_find(native, id);
    struct err ignored;

    return box && box->state == BOX_RUNNING && !box->ice.is_frozen && !box->ice.waits && !box_is_busy(box, &ignored)
               ? box
               : NULL;
}

static bool next(void *context, size_t *cursor, char out_id[LIMIT_ID_BYTES])
{
    struct native *native = context;
    const char *id = NULL;
    struct box *box;

    while (*cursor < ZYGOTES_FROM && !id) {
        if (!(box = map_next(&native->boxes, cursor)))
            *cursor = ZYGOTES_FROM;
        else if (find_free(native, box->id))
            id = box->id;
    }
    if (!id && !(id = zygotes_nth(native->zygotes, (*cursor)++ - ZYGOTES_FROM)))
        return false;
    (void)memcpy(out_id, id, strnlen(id, LIMIT_ID_BYTES - 1) + 1);
    return true;
}

static bool cpu_us(void *context, const char *id, uint64_t *out_us)
{
    struct native *native = context;
    struct err ignored; /* it has gone */

    return usage_cpu_us(native->cgroups, id, out_us, &ignored);
}

static bool freeze(void *context, const char *id)
{
    struct native *native = context;
    struct zygote *zygote = zygotes_find(native->zygotes, id);
    struct err ignored;

    if ((!zygote && !find_free(native, id)) || !cgroup_freeze(native->cgroups, id, true, &ignored))
        return false;
    zygote_stand(zygote, true);
    return true;
}

/* Told again meanwhile: v1 can miss a process that is being born. */
static bool is_frozen(void *context, const char *id)
{
    struct native *native = context;
    enum cgroup_ice ice;
    struct err ignored;

    if (!cgroup_read_ice(native->cgroups, id, &ice, &ignored) || ice == CGROUP_FROZEN)
        return true;
    (void)!cgroup_freeze(native->cgroups, id, true, &ignored);
    return false;
}

static bool try_thaw(struct native *native, const char *id)
{
    struct err err;

    if (cgroup_freeze(native->cgroups, id, false, &err) || err.sys == ENOENT || err.kind == ERR_UNAVAILABLE)
        return true;
    log_error("native: sandbox %s stands still for a moment longer: %s", id, err_text(&err));
    return false;
}

/* Also one that was killed meanwhile: on v1 it dies when it is thawed. */
static void thaw(void *context, const char *id)
{
    struct native *native = context;
    struct box *box = box_find(native, id);

    zygote_stand(zygotes_find(native->zygotes, id), false);
    if ((box && (box->ice.is_frozen || box->ice.waits)) || try_thaw(native, id) || !box)
        return;
    box->is_left_frozen = native->kernel_memory.left_frozen = true;
}

void suspects_thaw_left(struct native *native)
{
    bool *left = &native->kernel_memory.left_frozen;
    struct box *box;

    if (!*left)
        return;
    *left = false;
    for (size_t i = 0; (box = map_next(&native->boxes, &i));) {
        if (box->is_left_frozen && (box->ice.is_frozen || box->ice.waits || try_thaw(native, box->id)))
            box->is_left_frozen = false;
        *left = *left || box->is_left_frozen;
    }
}

static void end(void *context, const char *id, uint64_t grown_bytes)
{
    struct native *native = context;
    struct box *box = box_find(native, id);

    char why[128];

    (void)snprintf(why, sizeof why,
                   "it has the kernel hold %" PRIu64 " MiB beyond all limits, and more whenever it runs",
                   grown_bytes >> 20);
    if (box && box->state == BOX_RUNNING)
        kernel_memory_end(box, EXIT_KERNEL_MEMORY, why);
    else
        zygote_bar(zygotes_find(native->zygotes, id), why);
}

/* ---- caches ---- */

/* Theirs are counted as reclaimable: nothing that is lost here is a cache. */
static bool counts_its_caches(int data_fd)
{
    struct statfs fs;

    return fstatfs(data_fd, &fs) == 0 &&
           (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == TMPFS_MAGIC);
}

/* False: it is still at it. */
static bool is_shrunk(void *context)
{
    struct native *native = context;
    int *fd = &native->kernel_memory.shrink_fd;

    if (*fd >= 0 && !process_ended(*fd))
        return false;
    (void)waitid((idtype_t)P_PIDFD, (id_t)*fd, NULL, WEXITED | WNOHANG); /* ECHILD: it was reaped elsewhere */
    fd_close(fd);
    return true;
}

/* Slabs of the whole machine, those that can be freed: seconds. */
static bool shrink(void *context)
{
    struct native *native = context;
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&native->kernel_memory.shrink_fd,
                               .exit_signal = SIGCHLD };
    const char *text = "2";

    if (counts_its_caches(native->data_fd) || !is_shrunk(native))
        return false;
    auto_close int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        reclaim_and_exit(keeper, &fd, &text, 1);
    if (pid < 0)
        native->kernel_memory.shrink_fd = -1;
    return pid > 0;
}

#define OPS(how)                                                                                               \
    {                                                                                                          \
        .sample = how, .next = next, .cpu_us = cpu_us, .freeze = freeze, .is_frozen = is_frozen, .thaw = thaw, \
        .shrink = shrink, .is_shrunk = is_shrunk, .end = end,                                                  \
    }

const struct growth_ops suspects_ops[] = {
    [KERNEL_MEMORY_NAMED] = OPS(sample_named), [KERNEL_MEMORY_ALL] = OPS(sample_all)
};
