/*
 * How a sandbox ends. Its pid 1 is killed; the kernel then kills all of the pid namespace, and the pidfd reports the end
 * of pid 1 when all are gone, for a child of ours and for an adopted one alike.
 *
 * A guest decides how long that takes: the dying process frees, say, an open and unlinked file of millions of extents, for
 * minutes. Keeper has one thread and never waits. Requests to stop are kept in the box and answered from the pidfd or from
 * a timer, whichever comes first; slot, cgroups and directory stay taken until the real end; and the state says `dying`, so
 * that the next keeper does not list the sandbox as running.
 *
 * Each sandbox has a BPF program, its seccomp filter, which is freed when it ends. seccomp.c says why a thousand must not be
 * freed at once: NATIVE_DYING die at a time, and the others wait in a queue. One that takes longer than SLOW_MS no longer
 * counts: otherwise a few guests could keep all others from ending. If keeper ends first, the next one finds those in the
 * queue marked, and ends them.
 */
#include "isolation/native/box.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/checkpoint.h"
#include "isolation/native/park.h"
#include "isolation/native/restore.h"
#include "isolation/native/snapshot.h"
#include "isolation/native/start.h"
#include "isolation/native/tighten.h"

enum {
    WAITS_MAX = 64, /* requests that wait for the end of one sandbox; further ones are answered at once: not gone */
    CLEAR_RETRY_MS = 10,
    SLOW_MS = 1000,
    CLEAR_TRIES = 500,    /* then the slot is lost until keeper starts again, and the log says so… */
    CLEAR_SLOW_MS = 1000, /* …unless its files are kept: then there is a try each second until all is gone */
};

/* A request to stop a box, until it is answered. */
struct wait {
    struct wait *next;
    struct box *box;
    struct timer patience;
    driver_stopped_fn *done;
    void *context;
};

/* ---- boxes and slots ---- */

/*
 * Does a process have ids of it? Of root and of the user: each sandbox has processes of the one, nearly all of the other.
 * Nothing that ran in one of our slots can be left when it is free. This is a second look, and it finds the sandboxes of
 * another server on this machine, which has the same ids: they are left alone.
 */
static bool slot_has_processes(const struct native *native, uint32_t slot)
{
    static const uint32_t users[] = { 0, 1000 };

    for (size_t i = 0; i < COUNT_OF(users); i++) {
        errno = 0; /* -1 is a priority too */
        (void)getpriority(PRIO_USER, native->uid_base + slot * NATIVE_UIDS + users[i]);
        if (errno != ESRCH)
            return true;
    }
    return false;
}

bool slot_take(struct native *native, uint32_t *out_slot, struct err *err)
{
    uint32_t found = BOX_SLOTS;

    for (uint32_t slot = 0; slot < BOX_SLOTS; slot++) {
        if (native->slot_taken[slot])
            continue;
        found = slot;
        if (!slot_has_processes(native, slot))
            break;
    }
    if (found == BOX_SLOTS)
        return err_set(err, ERR_LIMIT, "there are %d sandboxes already", BOX_SLOTS);
    native->slot_taken[found] = true;
    *out_slot = found;
    return true;
}

struct box *box_new(struct native *native, const char *id)
{
    struct box *box = NEW(struct box);

    drain_end(native->drains, id);
    box->native = native;
    box->pidfd = -1;
    (void)snprintf(box->id, sizeof box->id, "%s", id);
    return box;
}

/* Out of the list before done() is called, which may ask again. */
static void wait_over(struct wait *wait, bool gone, const struct err *err)
{
    struct wait **at = &wait->box->waits;

    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    wait->box->wait_count--;
    timer_clear(&wait->patience);
    wait->done(wait->context, gone, err);
    free(wait);
}

void box_free(void *object)
{
    struct box *box = object;
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "keeper is stopping");
    for (struct wait *wait = box->waits, *next; wait; wait = next) {
        next = wait->next;
        wait_over(wait, false, &err);
    }
    options_forget(box);
    start_forget(box, &err);
    restore_forget(box, &err);
    checkpoint_forget(box, &err);
    box_forget_freeze(box, &err); /* before the next two, which may wait for it */
    park_lost(box, &err);
    snapshot_lost(box, &err);
    seal_lost(box, &err);
    tighten_forget(box);
    timer_clear(&box->retry);
    timer_clear(&box->slow);
    watch_free(box->watch);
    fd_close(&box->pidfd);
    zygote_unref(box->zygote);
    free(box);
}

struct box *box_find(struct native *native, const char *id)
{
    return map_get(&native->boxes, str_from(id));
}

struct box *box_find_awake(struct native *native, const char *id, struct err *err)
{
    struct box *box = box_find(native, id);

    if (!box || box->state != BOX_RUNNING) {
        (void)err_set(err, ERR_NOT_FOUND, "there is no sandbox %s", id);
        return NULL;
    }
    if (box->ice.is_frozen) {
        (void)err_set(err, ERR_CONFLICT, "sandbox %s is paused", id);
        return NULL;
    }
    return box;
}

bool box_is_busy(const struct box *box, struct err *err)
{
    bool is_written = box->park || box->memory_park || box->checkpoint;

    if (box->snapshot)
        (void)err_set(err, ERR_CONFLICT, "a snapshot of sandbox %s is being made", box->id);
    else if (box->restore || box->start)
        (void)err_set(err, ERR_CONFLICT, "sandbox %s is coming back", box->id);
    else if (is_written)
        (void)err_set(err, ERR_CONFLICT, "sandbox %s is being written to disk", box->id);
    return is_written || box->snapshot || box->restore || box->start;
}

/* ---- the end of a sandbox ---- */

/*
 * A start that was cut short may have left somebody who could still put something into its cgroup. ENOENT: its directory
 * has gone already, and who makes something of it has gone before.
 */
static bool claim(const struct box *box, int *out_fd, struct err *err)
{
    auto_close int fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT || err_sys(err, "open sandboxes/%s", box->id);
    return state_claim(fd, out_fd, err);
}

/* Removes cgroups (those of memory soon) and, unless it is kept, the directory. False: something is still in use, try again. */
static bool clear_remains(struct box *box, struct err *err)
{
    struct native *native = box->native;
    const char *id = box->id;
    auto_close int claim_fd = -1;

    if (!claim(box, &claim_fd, err)) {
        (void)cgroup_kill(native->cgroups, id);
        return false;
    }
    if (box->keep != HELD_RUNNING)
        return park_clear(box, err);
    seal_take_files(box);
    /* The directory first: a crash between the two leaves a cgroup without a record, which the next start sweeps. */
    if (!trash_add(native->trash, native->sandboxes_fd, id, err))
        return false;
    if (cgroup_leave_memory(native->cgroups, id, err)) {
        drain_add(native->drains, id);
        return true;
    }
    (void)cgroup_kill(native->cgroups, id); /* all of it should be dead; make sure */
    return false;
}

static void clear_again(struct timer *timer)
{
    box_clear(container_of(timer, struct box, retry));
}

void box_clear(struct box *box)
{
    struct native *native = box->native;
    struct err err;

    if (box_is_reclaimed(box)) { /* it was killed with the box, and ends in a moment */
        timer_set(&box->retry, native->loop, CLEAR_RETRY_MS, clear_again);
        return;
    }
    if (box->keep != HELD_RUNNING && park_drain(box))
        return;
    if (!clear_remains(box, &err)) {
        if (++box->tries < CLEAR_TRIES) {
            timer_set(&box->retry, native->loop, CLEAR_RETRY_MS, clear_again);
            return;
        }
        /* What is kept can be started again, so nothing of it may be left. */
        bool goes_on = box->keep != HELD_RUNNING;
        if (!goes_on || box->tries == CLEAR_TRIES)
            log_error("native: sandbox %s: cannot remove its files or cgroup; next attempt %s: %s", box->id,
                      goes_on ? "in a second, and each second" : "at server restart", err_text(&err));
        if (goes_on) {
            timer_set(&box->retry, native->loop, CLEAR_SLOW_MS, clear_again);
            return;
        }
    } else if (box->slot < BOX_SLOTS) {
        native->slot_taken[box->slot] = false; /* only now can nothing with these ids run any more */
    }
    zygote_unref(take_ptr(&box->zygote)); /* now: the box may be freed after native->zygotes */
    if (box->keep != HELD_RUNNING) {
        box->slot = BOX_SLOTS;
        box->tries = 0;
        park_cleared(box);
        return;
    }
    (void)err_set(&err, ERR_NOT_FOUND, "sandbox %s has ended", box->id);
    park_lost(box, &err); /* it was stopped on its way there */
    (void)map_remove(&native->boxes, str_from(box->id));
    loop_retire(native->loop, box, box_free);
}

static void box_reap(struct box *box)
{
    siginfo_t how;

    /* ECHILD for an adopted one: its parent reaps it. */
    (void)waitid((idtype_t)P_PIDFD, (id_t)box->pidfd, &how, WEXITED | WNOHANG);
    watch_free(box->watch);
    box->watch = NULL;
    options_forget(box);
    fd_close(&box->pidfd);
    box->pid = 0;
}

static bool strike(struct box *box, struct err *err);

static void end_freeze(struct box *box)
{
    struct err err;

    (void)err_set(&err, ERR_NOT_FOUND, "sandbox %s has ended", box->id);
    box_forget_freeze(box, &err);
    box_forget_reclaim(box);
}

/* It is gone or takes long: the next in the queue is killed. */
static void stop_counting(struct box *box)
{
    struct native *native = box->native;
    struct err err;

    if (!box->is_counted)
        return;
    box->is_counted = false;
    timer_clear(&box->slow);
    native->dying--;
    while (native->doomed && native->dying < NATIVE_DYING) {
        struct box *next = native->doomed;
        native->doomed = next->next_doomed;
        if (!native->doomed)
            native->doomed_end = &native->doomed;
        if (!strike(next, &err)) {
            next->state = BOX_RUNNING; /* the next request to stop it tries again */
            log_error("native: %s", err_text(&err));
        }
    }
}

static void on_slow(struct timer *timer)
{
    stop_counting(container_of(timer, struct box, slow));
}

static bool strike(struct box *box, struct err *err)
{
    box->state = BOX_DYING;
    if (pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return err_sys(err, "kill sandbox %s", box->id);
    cgroup_let_die(box->native->cgroups, box->id); /* it may be frozen, for a pause or for a test (suspects.h) */
    end_freeze(box);
    box->is_counted = true;
    box->native->dying++;
    timer_set(&box->slow, box->native->loop, SLOW_MS, on_slow);
    return true;
}

static void wait_for_turn(struct box *box)
{
    struct native *native = box->native;

    box->state = BOX_DOOMED;
    box->next_doomed = NULL;
    *native->doomed_end = box;
    native->doomed_end = &box->next_doomed;
}

/* It ended before it was killed. */
static void leave_queue(struct box *box)
{
    struct native *native = box->native;
    struct box **at = &native->doomed;

    while (*at != box)
        at = &(*at)->next_doomed;
    *at = box->next_doomed;
    if (native->doomed_end == &box->next_doomed)
        native->doomed_end = at;
}

/* Its pid 1 has ended. */
static void box_gone(struct box *box)
{
    struct native *native = box->native;
    char id[LIMIT_ID_BYTES];

    memcpy(id, box->id, sizeof id);
    bool is_as_before = box->state == BOX_RUNNING && box->is_untouched && !box->memory_park && !box->checkpoint;
    bool ran = box->ran && box->keep == HELD_RUNNING && !box->seal; /* who had it parked or sealed knows */
    struct err ended, ignored;
    /* If we ended it, that is the cause, even if it was short of memory before. */
    enum exit_cause cause =
        box->state == BOX_RUNNING && cgroup_guestd_oom_kills(native->cgroups, id) ? EXIT_NO_MEMORY : box->cause;
    box_reap(box);
    if (box->state == BOX_DOOMED)
        leave_queue(box);
    box->state = BOX_CLEARING;
    end_freeze(box);
    tighten_forget(box);
    stop_counting(box);
    while (box->waits)
        wait_over(box->waits, true, NULL);
    (void)err_set(&ended, ERR_NOT_FOUND, "sandbox %s has ended", id);
    checkpoint_forget(box, &ended);
    if (box->keep == HELD_RUNNING)
        park_lost(box, &ended);
    snapshot_lost(box, &ended);
    /*
     * guestd did not come up: its files are what they were. Also if front has asked for a park, because it sees guestd's
     * connection end before we see its process end; it finds the sandbox parked when it looks again.
     */
    if (is_as_before && !box_is_busy(box, &ignored))
        box->keep = HELD_PARKED;
    (void)!native_reach(native, NATIVE_AT_PARK_GONE, &ignored);
    box_clear(box);
    if (ran && native->driver.exited)
        native->driver.exited(native->driver.exited_context, id, cause);
}

void box_left_pages(struct native *native, const char *id)
{
    log_debug(
        "native: the cgroup of sandbox %s is gone, and the kernel keeps memory for it: others hold pages that it read",
        id);
    if (native->driver.exited)
        native->driver.exited(native->driver.exited_context, id, EXIT_LEFT_PAGES);
}

bool process_ended(int pidfd)
{
    return fd_await(pidfd, POLLIN, 0);
}

static void process_ready(void *context, unsigned ready)
{
    struct box *box = context;

    (void)ready;
    if ((box->state == BOX_RUNNING || box->state == BOX_DOOMED || box->state == BOX_DYING) && process_ended(box->pidfd))
        box_gone(box);
}

void box_watch(struct box *box, enum box_state state)
{
    box->state = state;
    box->watch = watch_new(box->native->loop, box->pidfd, process_ready, box);
    watch_want(box->watch, WATCH_READ);
    kernel_memory_watch(box->native);
}

static bool mark_dying(const struct box *box, struct err *err)
{
    auto_close int sandbox_fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct state state;

    if (sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", box->id);
    if (!state_read(sandbox_fd, &state, err))
        return false;
    state.dying = true;
    return state_rewrite(sandbox_fd, &state, err);
}

static void try_mark_dying(const struct box *box)
{
    struct err err;

    if (!mark_dying(box, &err))
        log_warn("native: sandbox %s: not marked as dying: %s", box->id, err_text(&err));
}

bool box_kill(struct box *box, struct err *err)
{
    /* In this order: if keeper dies in between, the next one kills it again instead of listing it as running. */
    try_mark_dying(box);
    return box_end(box, err);
}

bool box_end(struct box *box, struct err *err)
{
    if (box->native->dying < NATIVE_DYING)
        return strike(box, err) || (box->state = BOX_RUNNING, false);
    wait_for_turn(box);
    return true;
}

static void patience_over(struct timer *timer)
{
    wait_over(container_of(timer, struct wait, patience), false, NULL);
}

void native_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);
    struct err err;

    if (box && (box->restore || box->start)) { /* its start fails, and it is cleared away, or is parked again */
        (void)err_set(&err, ERR_CONFLICT, "sandbox %s was ended while it %s", id,
                      box->restore ? "came back" : "started");
        start_forget(box, &err);
        restore_forget(box, &err);
        box = box_find(native, id);
    }
    if (box && box->state == BOX_PARKED) {
        bool gone = park_discard(box, &err);
        done(context, gone, gone ? NULL : &err);
        return;
    }
    if (box && box->keep != HELD_RUNNING) { /* it is on its way there */
        box->keep = HELD_RUNNING;
        try_mark_dying(box);
    }
    if (!box || box->state == BOX_CLEARING) {
        done(context, true, NULL); /* no process of it is left */
    } else if (box->state == BOX_RUNNING && !box_kill(box, &err)) {
        done(context, false, &err);
    } else if (box->wait_count == WAITS_MAX) {
        done(context, false, NULL);
    } else {
        struct wait *wait = NEW(struct wait);
        *wait = (struct wait){ .next = box->waits, .box = box, .done = done, .context = context };
        box->waits = wait;
        box->wait_count++;
        timer_set(&wait->patience, native->loop, patience_ms, patience_over);
    }
}
