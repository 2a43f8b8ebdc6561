/*
 * How it works: a queue of ids in the order of their ends. A child of the trash deletes the files first; the pages of their
 * directories are free to go then. When it has ended, the sandboxes whose files it has deleted are drained together, and
 * keeper removes their cgroups when the child that drains has ended. Not before: to remove a cgroup waits for those who write
 * to its files.
 *
 * A page of a directory is in the journal of the file system until its next commit, some seconds later, and cannot be taken
 * back before. Then it waits to be written, half a minute at most: v1 has that done and waits for it, v2 does not. So a sandbox
 * that still has pages afterwards is drained again, after a pause, a few times. Until then it waits in a second queue, `late`,
 * those that are due first at its head. Some pages stay all the same: those of a template that another sandbox has locked, for
 * instance.
 *
 * Files that take long to delete, millions of them or one of millions of extents, do not hold this up for long: OVERDUE_MS after
 * its end a sandbox is drained although its files may be there, and again while they are, a number of times.
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
    AT_ONCE = 16,              /* sandboxes for one child: 0.1 to 10 ms each */
    OVERDUE_MS = 10000,        /* the longest wait for the trash */
    EARLY_TRIES = 12,          /* while its files are there… */
    EARLY_PAUSE_MS = 5000,     /* …for a minute */
    QUICK_TRIES = 4,           /* journals are committed each five seconds… */
    PAUSE_MS = 2000,           /* …so the last of these is after that */
    TRIES_V2 = 8,              /* the kernel writes what has waited for 30 seconds, and looks each five… */
    LONG_PAUSE_MS = 10000,     /* …so the last try is after that */
    FEW_BYTES = 2 << 20,       /* blocks of directories; a template's pages that are not many */
    LEAVE_MOST = 64,           /* cgroups with many pages that are removed as they are at once… */
    LEAVE_EACH_MS = 60 * 1000, /* …and one more for each of these times */
    PATIENCE_MS = 30000,       /* on a busy machine: it has the lowest priority */
    END_MS = 500,              /* for the child to end with us */
};

struct drain {
    struct drain *next;
    char id[LIMIT_ID_BYTES];
    uint64_t round;       /* of the trash, which deletes its files */
    uint64_t due_ms;      /* in `late`: when it is drained again; before: even if its files are there */
    unsigned early_tries; /* while its files were there */
    unsigned tries;
    bool is_taken;   /* a child works on it… */
    bool is_drained; /* …and one has done so to the end */
    bool is_left;    /* it is removed with its pages */
};

struct drains {
    struct loop *loop;
    struct cgroups *cgroups;
    struct trash *trash;
    struct drain *first, **end;
    struct drain *late;
    unsigned count, taken; /* the child has the first `taken` */
    unsigned late_count;
    struct timer later;   /* set while there is a `late` one */
    struct timer overdue; /* set while one waits for the trash */
    drain_left_fn *left;
    void *context;
    unsigned leave;    /* cgroups that may be left as they are now, and… */
    uint64_t leave_ms; /* …when it was counted */
    pid_t pid;         /* 0: none */
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

bool drain_has_left(const struct cgroups *cgroups, const char *id)
{
    uint64_t bytes;
    struct err ignored;

    return usage_certain_pages(cgroups, id, &bytes, &ignored) && bytes;
}

/* Before it is removed. */
static void report_left(const struct drains *drains, const struct drain *drain)
{
    if (drain->is_drained && drain_has_left(drains->cgroups, drain->id))
        drains->left(drains->context, drain->id);
}

static void remove_late_at(struct drains *drains, struct drain **at)
{
    drains->late_count--;
    remove_cgroups(drains, unlink_at(drains, at));
}

/* ---- again ---- */

enum pages {
    PAGES_NONE,
    PAGES_UNSURE, /* none, or the kernel's figures are too old */
    PAGES_FEW,
    PAGES_MANY,
};

/*
 * What the kernel itself has does not count: it goes to the cgroup above when this one is removed, and a guest can have any
 * amount of it at its end, by asking for names that are not there.
 */
static enum pages look(const struct cgroups *cgroups, const char *id)
{
    struct usage_pages pages;
    struct err ignored; /* it is removed as it is */

    if (!usage_pages(cgroups, id, &pages, &ignored))
        return PAGES_NONE;
    if (!pages.bytes)
        return pages.is_sure ? PAGES_NONE : PAGES_UNSURE;
    return pages.listed > FEW_BYTES ? PAGES_MANY : PAGES_FEW;
}

/* True some times: this cgroup is removed with its pages. */
static bool may_leave(struct drains *drains)
{
    uint64_t now_ms = clock_mono_ms(), more = (now_ms - drains->leave_ms) / LEAVE_EACH_MS;

    drains->leave_ms += more * LEAVE_EACH_MS;
    drains->leave = (unsigned)MIN(drains->leave + more, (uint64_t)LEAVE_MOST);
    if (!drains->leave)
        return false;
    drains->leave--;
    return true;
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

static bool has_files(const struct drains *drains, const struct drain *drain)
{
    return drain->round > trash_rounds_over(drains->trash);
}

static uint64_t pause_of(const struct drain *drain)
{
    if (!drain->tries)
        return EARLY_PAUSE_MS;
    return drain->tries < QUICK_TRIES ? PAUSE_MS : LONG_PAUSE_MS;
}

static void drain_later(struct drains *drains, struct drain *drain)
{
    uint64_t now_ms = clock_mono_ms();
    struct drain **at = &drains->late;

    drain->due_ms = now_ms + pause_of(drain);
    while (*at && (*at)->due_ms <= drain->due_ms)
        at = &(*at)->next;
    drain->next = *at;
    *at = drain;
    if (++drains->late_count > QUEUE_MAX) {
        report_left(drains, drains->late);
        remove_late_at(drains, &drains->late);
    }
    timer_set(&drains->later, drains->loop, drains->late->due_ms > now_ms ? drains->late->due_ms - now_ms : 0,
              try_late);
}

/* Is it to be removed now? */
static bool is_over(const struct drains *drains, struct drain *drain)
{
    if (drain->is_left)
        return true;
    if (has_files(drains, drain) && drain->early_tries < EARLY_TRIES)
        drain->early_tries++;
    else
        drain->tries++;
    enum pages pages = look(drains->cgroups, drain->id);
    if (pages == PAGES_NONE || (pages == PAGES_UNSURE && drain->tries > 1))
        return true;
    if (drain->tries < (cgroups_report(drains->cgroups)->layout == CGROUP_V2 ? TRIES_V2 : QUICK_TRIES))
        return false;
    report_left(drains, drain);
    return true;
}

/* What was taken is removed, or waits for another try. */
static void finish_taken(struct drains *drains, bool is_drained)
{
    for (; drains->taken; drains->taken--) {
        struct drain *drain = drains->first;
        drain->is_drained |= drain->is_taken && is_drained;
        drain->is_taken = false;
        if (is_over(drains, drain)) {
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

    reclaim_kill(drains->pid, drains->pidfd);
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
    finish_taken(drains, how.si_code == CLD_EXITED); /* else it was killed, because it took too long */
    drain_next(drains);
}

bool drain_open(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text)
{
    return look(cgroups, id) != PAGES_NONE && cgroup_open_reclaim(cgroups, id, out_fd, out_text);
}

static void start_child(struct drains *drains, const int *fds, const char *const *texts, int count)
{
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&drains->pidfd,
                               .exit_signal = SIGCHLD };
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);

    if (pid == 0)
        reclaim_and_exit(keeper, fds, texts, count);
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

/* Is it for the child? */
static bool take(struct drains *drains, struct drain *drain, int *out_fd, const char **out_text)
{
    enum pages pages = look(drains->cgroups, drain->id);

    if (pages == PAGES_NONE || pages == PAGES_UNSURE)
        return false;
    /* Or this kernel takes nothing back. */
    drain->is_left =
        (pages == PAGES_MANY && may_leave(drains)) || !cgroup_open_drain(drains->cgroups, drain->id, out_fd, out_text);
    drain->is_taken = !drain->is_left;
    return drain->is_taken;
}

static void is_overdue(struct timer *timer)
{
    drain_next(container_of(timer, struct drains, overdue));
}

static void await_first(struct drains *drains)
{
    uint64_t now_ms = clock_mono_ms();

    if (drains->pid || !drains->first) /* child_ended() comes here again */
        return;
    timer_set(&drains->overdue, drains->loop, drains->first->due_ms > now_ms ? drains->first->due_ms - now_ms : 0,
              is_overdue);
}

static bool may_begin(const struct drains *drains, const struct drain *drain)
{
    return !has_files(drains, drain) || drain->due_ms <= clock_mono_ms();
}

static void drain_next(struct drains *drains)
{
    const char *texts[AT_ONCE];
    int fds[AT_ONCE], count = 0;

    while (!drains->pid && drains->first && may_begin(drains, drains->first)) {
        struct drain *drain = drains->first;
        for (; drain && may_begin(drains, drain) && drains->taken < AT_ONCE; drain = drain->next, drains->taken++)
            count += take(drains, drain, &fds[count], &texts[count]);
        if (count)
            start_child(drains, fds, texts, count);
        while (count)
            fd_close(&fds[--count]);
        if (!drains->pid)
            finish_taken(drains, false);
    }
    await_first(drains);
}

static void trash_emptied(void *context)
{
    drain_next(context);
}

/* ---- from outside ---- */

struct drains *drains_new(struct loop *loop, struct cgroups *cgroups, struct trash *trash, drain_left_fn *left,
                          void *context)
{
    struct drains *drains = NEW(struct drains);

    *drains = (struct drains){
        .loop = loop, .cgroups = cgroups, .trash = trash, .left = left, .context = context, .pidfd = -1
    };
    drains->end = &drains->first;
    drains->leave = LEAVE_MOST;
    drains->leave_ms = clock_mono_ms();
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
    timer_clear(&drains->overdue);
    watch_free(drains->watch);
    if (drains->pid) {
        reclaim_kill(drains->pid, drains->pidfd);
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
    drain->due_ms = clock_mono_ms() + OVERDUE_MS;
    append(&drains->end, drain);
    await_first(drains);
    if (++drains->count - drains->taken <= QUEUE_MAX)
        return;
    struct drain **at = &drains->first;
    for (unsigned i = 0; i < drains->taken; i++)
        at = &(*at)->next;
    report_left(drains, *at);
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
    reclaim_kill(drains->pid, drains->pidfd);
    (void)!fd_await(drains->pidfd, POLLIN, clock_mono_ms() + END_MS); /* if it needs longer, the start fails */
    child_ended(drains, 0);
    remove_late(drains, id);
}
