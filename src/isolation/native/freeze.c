/*
 * How it works. The kernel freezes a cgroup in its own time: each process stops on its way back to user space, after half a
 * millisecond as a rule. We write to the freezer and look every millisecond. A process that waits inside the kernel for
 * something that does not come (a dead network file system) cannot be stopped: after FREEZE_MS the sandbox is thawed again
 * and the request fails.
 *
 * The freezer is the only record. A keeper that starts again reads there which of its sandboxes are frozen.
 *
 * What is frozen keeps its memory. After RECLAIM_AFTER_MS the kernel is asked to take back what it can: pages of files, and
 * the rest where the machine has swap. That takes long, so a child does it, for one sandbox at a time, and it is killed when
 * its sandbox is thawed. Not at once: a sandbox that is resumed soon wants these pages, and one that is written to disk needs
 * them until then.
 */
#include "isolation/native/freeze.h"

#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/usage.h"

enum {
    FREEZE_MS = 3000, /* a busy machine needs 15 */
    LOOK_FIRST_MS = 1,
    LOOK_LATER_MS = 20, /* …once it takes longer than this */
    RECLAIM_AFTER_MS = 5000,
    END_MS = 500, /* for the child to end with us */
};

struct freeze_wait {
    struct freeze_wait *next;
    driver_kept_fn *done;
    void *context;
};

/* ---- memory ---- */

static void reclaim_next(struct native *native);

static void reclaim_due(struct timer *timer)
{
    reclaim_next(container_of(timer, struct native, reclaim.timer));
}

static void reclaim_ended(void *context, unsigned ready)
{
    struct native *native = context;
    struct reclaim *reclaim = &native->reclaim;
    struct box *box = box_find(native, reclaim->id);
    struct usage usage;
    struct err err;
    siginfo_t how = { 0 };

    (void)ready;
    /* ECHILD: it was reaped elsewhere, and has ended too. */
    if (waitid((idtype_t)P_PIDFD, (id_t)reclaim->pidfd, &how, WEXITED | WNOHANG) == 0 && how.si_pid == 0)
        return;
    if (box && usage_read(native->cgroups, box->id, box->pid, &usage, &err))
        log_debug("native: sandbox %s is frozen; its memory was %llu KiB and is %llu KiB", box->id,
                  (unsigned long long)reclaim->before_bytes >> 10,
                  (unsigned long long)(usage.memory_used_bytes + usage.memory_cache_bytes) >> 10);
    watch_free(take_ptr(&reclaim->watch));
    fd_close(&reclaim->pidfd);
    reclaim->pid = 0;
    reclaim->id[0] = '\0';
    reclaim_next(native);
}

/* With all of keeper's power: it writes to these files, and nothing else. */
no_return void reclaim_and_exit(pid_t keeper, const int *fds, const char *const *texts, int count)
{
    int from = 3;

    /* If keeper died before it was set, we have another parent. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != keeper)
        _exit(1);
    /* Nothing else of keeper's stays open: not its lock, not its sockets to other roles. Their numbers ascend. */
    for (int i = 0; i < count; i++) {
        if (fds[i] < from || (fds[i] > from && close_range((unsigned)from, (unsigned)fds[i] - 1, 0) < 0))
            _exit(1);
        from = fds[i] + 1;
    }
    if (close_range((unsigned)from, ~0u, 0) < 0)
        _exit(1);
    (void)setpriority(PRIO_PROCESS, 0, 19); /* not before: the next keeper waits for that lock */
    for (int i = 0; i < count; i++)
        (void)!write(fds[i], texts[i], strlen(texts[i])); /* EAGAIN: there was less than we asked for, as always */
    _exit(0);
}

void reclaim_kill(pid_t pid, int pidfd)
{
    (void)setpriority(PRIO_PROCESS, (id_t)pid, 0);    /* ours and not reaped */
    (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0); /* or it has ended just now */
}

static void reclaim_start(struct native *native, struct box *box)
{
    struct reclaim *reclaim = &native->reclaim;
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&reclaim->pidfd,
                               .exit_signal = SIGCHLD };
    auto_close int fd = -1;
    const char *text;
    struct usage usage = { 0 };
    struct err err;

    if (!cgroup_open_reclaim(native->cgroups, box->id, &fd, &text)) {
        log_debug("native: sandbox %s is frozen and keeps its memory: this kernel does not take it back", box->id);
        return;
    }
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        reclaim_and_exit(keeper, &fd, &text, 1);
    if (pid < 0) {
        reclaim->pidfd = -1;
        log_debug("native: sandbox %s is frozen and keeps its memory: %s", box->id, strerror(errno));
        return;
    }
    if (usage_read(native->cgroups, box->id, box->pid, &usage, &err))
        reclaim->before_bytes = usage.memory_used_bytes + usage.memory_cache_bytes;
    reclaim->pid = pid;
    memcpy(reclaim->id, box->id, sizeof reclaim->id);
    reclaim->watch = watch_new(native->loop, reclaim->pidfd, reclaim_ended, native);
    watch_want(reclaim->watch, WATCH_READ);
}

static void reclaim_next(struct native *native)
{
    uint64_t now_ms = clock_mono_ms(), next_ms = UINT64_MAX;
    struct err ignored;
    struct box *box;

    if (native->reclaim.pid)
        return; /* reclaim_ended() comes here again */
    timer_clear(&native->reclaim.timer);
    for (size_t i = 0; (box = map_next(&native->boxes, &i)) && !native->reclaim.pid;) {
        if (!box->ice.is_frozen || !box->ice.reclaim_ms)
            continue;
        if (box->ice.reclaim_ms <= now_ms && box_is_busy(box, &ignored))
            box->ice.reclaim_ms = now_ms + RECLAIM_AFTER_MS; /* what is being written to disk is read from there */
        if (box->ice.reclaim_ms > now_ms) {
            next_ms = MIN(next_ms, box->ice.reclaim_ms);
            continue;
        }
        box->ice.reclaim_ms = 0;
        if (box->state == BOX_RUNNING)
            reclaim_start(native, box);
    }
    if (!native->reclaim.pid && next_ms != UINT64_MAX)
        timer_set(&native->reclaim.timer, native->loop, next_ms - now_ms, reclaim_due);
}

static void reclaim_want(struct box *box)
{
    struct native *native = box->native;

    box->ice.reclaim_ms = clock_mono_ms() + RECLAIM_AFTER_MS;
    if (!native->reclaim.pid && !timer_is_set(&native->reclaim.timer))
        timer_set(&native->reclaim.timer, native->loop, RECLAIM_AFTER_MS, reclaim_due);
}

void box_forget_reclaim(struct box *box)
{
    struct reclaim *reclaim = &box->native->reclaim;

    box->ice.reclaim_ms = 0;
    if (box_is_reclaimed(box))
        reclaim_kill(reclaim->pid, reclaim->pidfd);
}

bool box_is_reclaimed(const struct box *box)
{
    const struct reclaim *reclaim = &box->native->reclaim;

    return reclaim->pid && !strcmp(reclaim->id, box->id);
}

void reclaim_close(struct native *native)
{
    struct reclaim *reclaim = &native->reclaim;

    timer_clear(&reclaim->timer);
    watch_free(take_ptr(&reclaim->watch));
    if (reclaim->pid) {
        reclaim_kill(reclaim->pid, reclaim->pidfd);
        (void)!fd_await(reclaim->pidfd, POLLIN, clock_mono_ms() + END_MS);
        (void)waitid((idtype_t)P_PIDFD, (id_t)reclaim->pidfd, NULL, WEXITED | WNOHANG);
    }
    fd_close(&reclaim->pidfd);
}

/* ---- freeze and thaw ---- */

/* The list is taken first: a done() may ask again. */
static void answer_all(struct box *box, const struct err *err)
{
    struct freeze_wait *wait = take_ptr(&box->ice.waits);

    timer_clear(&box->ice.look);
    while (wait) {
        struct freeze_wait *next = wait->next;
        wait->done(wait->context, NULL, err);
        free(wait);
        wait = next;
    }
}

void box_forget_freeze(struct box *box, const struct err *why)
{
    answer_all(box, why);
}

/* It goes on as if it had not been asked. */
static void give_up(struct box *box, const struct err *why)
{
    struct err err;

    if (!cgroup_freeze(box->native->cgroups, box->id, false, &err))
        log_error("native: sandbox %s is partly frozen: %s", box->id, err_text(&err));
    answer_all(box, why);
}

static void look(struct timer *timer)
{
    struct box *box = container_of(timer, struct box, ice.look);
    struct cgroups *cgroups = box->native->cgroups;
    uint64_t now_ms = clock_mono_ms();
    bool is_slow = box->ice.until_ms - now_ms < FREEZE_MS - LOOK_LATER_MS;
    enum cgroup_ice ice;
    struct err err;

    if (!cgroup_read_ice(cgroups, box->id, &ice, &err)) {
        give_up(box, &err);
    } else if (ice == CGROUP_FROZEN) {
        box->ice.is_frozen = true;
        reclaim_want(box);
        answer_all(box, NULL);
    } else if (now_ms >= box->ice.until_ms) {
        (void)err_set(
            &err, ERR_TIMEOUT,
            "the sandbox cannot be paused now: a process in it waits inside the kernel and did not stop in %d "
            "seconds; try again later",
            FREEZE_MS / 1000);
        give_up(box, &err);
    } else if (is_slow &&
               !cgroup_freeze(cgroups, box->id, true, &err)) { /* again: v1 can miss one that is being born */
        give_up(box, &err);
    } else {
        timer_set(&box->ice.look, box->native->loop, is_slow ? LOOK_LATER_MS : LOOK_FIRST_MS, look);
    }
}

void box_freeze(struct box *box, driver_kept_fn *done, void *context)
{
    struct freeze_wait *wait;
    bool is_first = !box->ice.waits;
    struct err err;

    if (box->ice.is_frozen) {
        done(context, NULL, NULL);
        return;
    }
    if (is_first && !cgroup_freeze(box->native->cgroups, box->id, true, &err)) {
        done(context, NULL, &err);
        return;
    }
    wait = NEW(struct freeze_wait);
    *wait = (struct freeze_wait){ .next = box->ice.waits, .done = done, .context = context };
    box->ice.waits = wait;
    if (!is_first)
        return;
    box->ice.until_ms = clock_mono_ms() + FREEZE_MS;
    look(&box->ice.look);
}

bool box_thaw(struct box *box, struct err *err)
{
    struct err why;

    if (!box->ice.is_frozen && !box->ice.waits)
        return true;
    if (!cgroup_freeze(box->native->cgroups, box->id, false, err))
        return err_wrap(err, "resume sandbox %s", box->id);
    box->ice.is_frozen = false;
    /* guestd has closed its socket before the pause (guest/pause.h), and gets another. */
    box->zygote_given = (struct zygote_given){ 0 };
    box_forget_reclaim(box);
    (void)err_set(&why, ERR_CONFLICT, "sandbox %s was resumed before it was paused", box->id);
    answer_all(box, &why);
    return true;
}

void box_forget_ice(struct box *box)
{
    box->ice.is_frozen = false;
    box_forget_reclaim(box);
}

void box_found_frozen(struct box *box)
{
    box->ice.is_frozen = true;
    reclaim_want(box);
}

void native_freeze(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct box *box = box_find(native_of(driver), id);
    struct err err;

    if (box && box->state == BOX_RUNNING && !box_is_busy(box, &err)) {
        box_freeze(box, done, context);
        return;
    }
    if (!box || box->state != BOX_RUNNING)
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    done(context, NULL, &err);
}

void native_thaw(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct box *box = box_find(native_of(driver), id);
    struct err err;
    bool fine = box && box->state == BOX_RUNNING ? !box_is_busy(box, &err) && box_thaw(box, &err)
                                                 : err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);

    done(context, NULL, fine ? NULL : &err);
}
