/*
 * How it works: a queue of ids in the order of their ends. A child of the trash deletes the files first; the pages of their
 * directories are free to go then. When it has ended, the sandboxes whose files it has deleted are drained together, and
 * keeper removes their cgroups when the child that drains has ended. Not before: to remove a cgroup waits for those who write
 * to its files.
 *
 * A page of a directory is in the journal of the file system until its next commit, some seconds later, and cannot be taken
 * back before. So a sandbox that still has pages afterwards is drained again, after a pause, a few times. Until then it waits in
 * a second queue, `late`.
 *
 * If sandboxes end faster than this, a queue is full. Then the first in it is removed as it is. A removed cgroup with pages takes
 * as much memory as one that waits, and for longer; so there is room for all sandboxes of a server.
 */
#include "isolation/native/drain.h"

#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/freeze.h"
#include "isolation/native/usage.h"

enum {
    QUEUE_MAX = LIMIT_SANDBOXES + LIMIT_POOL,
    AT_ONCE = 16,           /* sandboxes for one child: 1 to 40 ms each */
    TRIES = 4,              /* journals are committed each five seconds… */
    PAUSE_MS = 2000,        /* …so the last try is after that */
    STAT_BYTES = 8192,      /* of memory.stat */
    LITTLE_BYTES = 2 << 20, /* blocks of directories, and the kernel's objects for files */
    PATIENCE_MS = 30000,    /* on a busy machine: it has the lowest priority */
    END_MS = 500,           /* for the child to end with us */
};

struct drain {
    struct drain *next;
    char id[LIMIT_ID_BYTES];
    uint64_t round;  /* of the trash, which deletes its files */
    uint64_t due_ms; /* while it is in `late` */
    unsigned tries;
};

struct drains {
    struct loop *loop;
    struct cgroups *cgroups;
    struct trash *trash;
    struct drain *first, **end;
    struct drain *late, **late_end;
    unsigned count, taken; /* the child has the first `taken` */
    unsigned late_count;
    struct timer later; /* set while there is a `late` one */
    pid_t pid;          /* 0: none */
    int pidfd;
    struct watch *watch;
    struct timer patience;
};

/* ---- the queue ---- */

/* Out of the queue that `at` is in. */
static struct drain *unlink_at(struct drains *drains, struct drain **at)
{
    struct drain *drain = *at;

    *at = drain->next;
    if (drains->end == &drain->next)
        drains->end = at;
    if (drains->late_end == &drain->next)
        drains->late_end = at;
    return drain;
}

static void append(struct drain ***end, struct drain *drain)
{
    drain->next = NULL;
    **end = drain;
    *end = &drain->next;
}

static void remove_cgroups(struct drains *drains, struct drain *drain)
{
    struct err err;

    if (!cgroup_remove(drains->cgroups, drain->id, &err))
        log_error("native: sandbox %s: cannot remove its cgroup; next attempt at server restart: %s", drain->id,
                  err_text(&err));
    free(drain);
}

static void remove_at(struct drains *drains, struct drain **at)
{
    drains->count--;
    remove_cgroups(drains, unlink_at(drains, at));
}

static void remove_late_at(struct drains *drains, struct drain **at)
{
    drains->late_count--;
    remove_cgroups(drains, unlink_at(drains, at));
}

/* ---- again ---- */

/* False: nothing is charged to it, or so much that it is to stay. Then it is removed as it is. */
static bool has_little(const struct cgroups *cgroups, const char *id)
{
    uint64_t bytes;
    struct err ignored; /* it is removed as it is */

    return cgroup_memory_used(cgroups, id, &bytes, &ignored) && bytes && bytes <= LITTLE_BYTES;
}

static bool has_pages(const struct drains *drains, const char *id)
{
    bool is_v2 = cgroups_report(drains->cgroups)->layout == CGROUP_V2;
    char room[STAT_BYTES];
    uint64_t cache;
    struct str text;
    struct err ignored; /* as above */

    return has_little(drains->cgroups, id) &&
           cgroup_read(drains->cgroups, id, CGROUP_MEMORY, "memory.stat", room, sizeof room, &text, &ignored) &&
           usage_field(text, is_v2 ? STR("file") : STR("total_cache"), &cache) && cache;
}

static void drain_next(struct drains *drains);

static void try_late(struct timer *timer)
{
    struct drains *drains = container_of(timer, struct drains, later);
    uint64_t now_ms = clock_mono_ms();

    while (drains->late && drains->late->due_ms <= now_ms) {
        drains->late_count--;
        append(&drains->end, unlink_at(drains, &drains->late));
        drains->count++;
    }
    if (drains->late)
        timer_set(&drains->later, drains->loop, drains->late->due_ms - now_ms, try_late);
    drain_next(drains);
}

static void drain_later(struct drains *drains, struct drain *drain)
{
    drain->due_ms = clock_mono_ms() + PAUSE_MS;
    if (!drains->late)
        timer_set(&drains->later, drains->loop, PAUSE_MS, try_late);
    append(&drains->late_end, drain);
    if (++drains->late_count > QUEUE_MAX)
        remove_late_at(drains, &drains->late);
}

/* What the child had is removed, or waits for another try. */
static void finish_taken(struct drains *drains)
{
    for (; drains->taken; drains->taken--) {
        struct drain *drain = drains->first;
        if (++drain->tries >= TRIES || !has_pages(drains, drain->id)) {
            remove_at(drains, &drains->first);
        } else {
            drains->count--;
            drain_later(drains, unlink_at(drains, &drains->first));
        }
    }
}

/* ---- the child ---- */

static void impatient(struct timer *timer)
{
    struct drains *drains = container_of(timer, struct drains, patience);

    (void)pidfd_send_signal(drains->pidfd, SIGKILL, NULL, 0); /* or it has ended just now */
}

static void child_ended(void *context, unsigned ready)
{
    struct drains *drains = context;
    siginfo_t how = { 0 };

    (void)ready;
    /* ECHILD: it was reaped elsewhere, and has ended too. */
    if (waitid((idtype_t)P_PIDFD, (id_t)drains->pidfd, &how, WEXITED | WNOHANG) == 0 && how.si_pid == 0)
        return;
    timer_clear(&drains->patience);
    watch_free(take_ptr(&drains->watch));
    fd_close(&drains->pidfd);
    drains->pid = 0;
    finish_taken(drains);
    drain_next(drains);
}

bool drain_open(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text)
{
    return has_little(cgroups, id) && cgroup_open_reclaim(cgroups, id, out_fd, out_text);
}

static void start_child(struct drains *drains, const int *fds, const char *const *texts, int count)
{
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&drains->pidfd,
                               .exit_signal = SIGCHLD };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);

    if (pid == 0)
        reclaim_and_exit(fds, texts, count);
    if (pid < 0) {
        drains->pidfd = -1;
        log_debug("native: memory of ended sandboxes is not taken back: %s", strerror(errno));
        return;
    }
    drains->pid = pid;
    drains->watch = watch_new(drains->loop, drains->pidfd, child_ended, drains);
    watch_want(drains->watch, WATCH_READ);
    timer_set(&drains->patience, drains->loop, PATIENCE_MS, impatient);
}

static void drain_next(struct drains *drains)
{
    const char *texts[AT_ONCE];
    int fds[AT_ONCE], count = 0;
    uint64_t round = trash_rounds_over(drains->trash);

    while (!drains->pid && drains->first && drains->first->round <= round) {
        const struct drain *drain = drains->first;
        for (; drain && drain->round <= round && drains->taken < AT_ONCE; drain = drain->next, drains->taken++)
            if (drain_open(drains->cgroups, drain->id, &fds[count], &texts[count]))
                count++;
        if (count)
            start_child(drains, fds, texts, count);
        while (count)
            fd_close(&fds[--count]);
        for (; !drains->pid && drains->taken; drains->taken--)
            remove_at(drains, &drains->first);
    }
}

static void trash_emptied(void *context)
{
    drain_next(context);
}

/* ---- from outside ---- */

struct drains *drains_new(struct loop *loop, struct cgroups *cgroups, struct trash *trash)
{
    struct drains *drains = NEW(struct drains);

    *drains = (struct drains){ .loop = loop, .cgroups = cgroups, .trash = trash, .pidfd = -1 };
    drains->end = &drains->first;
    drains->late_end = &drains->late;
    trash_on_round(trash, trash_emptied, drains);
    return drains;
}

void drains_free(struct drains *drains)
{
    bool is_busy = false;

    if (!drains)
        return;
    trash_on_round(drains->trash, NULL, NULL);
    timer_clear(&drains->patience);
    timer_clear(&drains->later);
    watch_free(drains->watch);
    if (drains->pid) {
        (void)pidfd_send_signal(drains->pidfd, SIGKILL, NULL, 0);
        is_busy = !fd_await(drains->pidfd, POLLIN, clock_mono_ms() + END_MS);
        (void)waitid((idtype_t)P_PIDFD, (id_t)drains->pidfd, NULL, WEXITED | WNOHANG);
    }
    for (; is_busy && drains->taken; drains->taken--) { /* the next keeper removes them */
        struct drain *drain = drains->first;
        drains->first = drain->next;
        free(drain);
    }
    while (drains->first)
        remove_at(drains, &drains->first);
    while (drains->late)
        remove_late_at(drains, &drains->late);
    fd_close(&drains->pidfd);
    free(drains);
}

void drain_add(struct drains *drains, const char *id)
{
    struct drain *drain = NEW(struct drain);

    memcpy(drain->id, id, MIN(strlen(id), sizeof drain->id - 1));
    drain->round = trash_round(drains->trash);
    append(&drains->end, drain);
    if (++drains->count - drains->taken <= QUEUE_MAX)
        return;
    struct drain **at = &drains->first;
    for (unsigned i = 0; i < drains->taken; i++)
        at = &(*at)->next;
    remove_at(drains, at);
}

static void remove_late(struct drains *drains, const char *id)
{
    struct drain **at = &drains->late;

    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    if (*at)
        remove_late_at(drains, at);
}

void drain_end(struct drains *drains, const char *id)
{
    struct drain **at = &drains->first;
    unsigned before = 0;

    remove_late(drains, id);
    for (; *at && strcmp((*at)->id, id) != 0; at = &(*at)->next)
        before++;
    if (!*at)
        return;
    if (before >= drains->taken) {
        remove_at(drains, at);
        return;
    }
    (void)pidfd_send_signal(drains->pidfd, SIGKILL, NULL, 0);
    (void)!fd_await(drains->pidfd, POLLIN, clock_mono_ms() + END_MS); /* if it needs longer, the start fails */
    child_ended(drains, 0);
    remove_late(drains, id);
}
