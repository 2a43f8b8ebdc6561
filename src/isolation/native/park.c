/*
 * How a sandbox is parked, and why nothing is lost if keeper or the machine dies in between:
 *
 *   freeze   everything inside stands still, so that what is synced next is all there is
 *   mark     a helper syncs the file system and then replaces the record: `held` says that the files outlive the process.
 *            Overlay is mounted volatile, which syncs nothing by itself. Until the record has its name the sandbox runs
 *            (frozen; who asked thaws it), from then on it is parked
 *   kill     as any other sandbox is, but without a mark that it is dying
 *   drain    the end of pid 1 is reported: a helper has the kernel take back the pages of the files, which would keep the
 *            memory cgroup in the kernel (drain.h). Now, because just after the sync they can be taken back, and because the
 *            cgroup's name must be free when the sandbox is resumed. It takes 1 to 2 ms
 *   clear    cgroups, socket and work directory go, the directory stays, the slot is free
 *
 * Where the machine has no freezer, the guest may write between mark and kill. A second sync at the end is for that; a power
 * cut in between leaves what a power cut leaves of any disk.
 *
 * A start from a parked sandbox leaves `held` in the record until guestd runs (start.c): a record that says parked and has a
 * process is one of a park or a start that was cut short. A new keeper ends that process, syncs, and has it parked.
 */
#include "isolation/native/park.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/handover.h"
#include "isolation/native/helper.h"

enum {
    SYNC_MS = 300000, /* of gigabytes that other sandboxes have written, on a slow disk */
    DRAIN_MS = 5000,  /* on a busy machine; then the helper is killed and the cgroup removed as it is */
};

struct park {
    struct box *box;
    enum held_state as;
    driver_kept_fn *done; /* NULL: nobody waits */
    void *context;
    struct helper *helper;
    struct state record;
    int sandbox_fd;
    bool was_frozen;          /* before we asked */
    bool needs_sync;          /* at the end */
    bool only_syncs;          /* for the helper: leave the record alone */
    bool is_drained;          /* or being drained, or not worth it */
    int reclaim_fd;           /* while it is being drained: where to write… */
    const char *reclaim_text; /* …and what; NULL: it was not drained */
};

static void park_free(struct park *park)
{
    helper_cancel(park->helper);
    fd_close(&park->sandbox_fd);
    fd_close(&park->reclaim_fd);
    park->box->park = NULL;
    free(park);
}

/* After the box is in its new state: done() may ask for the next. */
static void answer(struct park *park, const struct err *err)
{
    driver_kept_fn *done = park->done;
    void *context = park->context;

    park_free(park);
    if (done)
        done(context, NULL, err);
}

/* It goes on as before. */
static void give_up(struct park *park, const struct err *why)
{
    struct box *box = park->box;
    struct err err;

    if (!park->was_frozen && !box_thaw(box, &err))
        log_error("native: sandbox %s stays frozen: %s", box->id, err_text(&err));
    answer(park, why);
}

/* ---- the helper ---- */

static bool sync_and_mark(struct helper_voice *voice, void *context, struct err *err)
{
    const struct park *park = context;

    (void)voice;
    if (syncfs(park->sandbox_fd) < 0)
        return err_sys(err, "sync the files of sandbox %s", park->box->id);
    /* In this order: what the mark is for, that the record says running and the image before this is gone, is on disk now. */
    return park->only_syncs ||
           (state_unmark_resumed(park->sandbox_fd, err) && state_replace(park->sandbox_fd, &park->record, err));
}

static bool start_helper(struct park *park, bool only_syncs,
                         void (*ended)(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err),
                         struct err *err)
{
    const struct helper_job job = { .work = sync_and_mark,
                                    .ended = ended,
                                    .context = park,
                                    .dirs = { { park->sandbox_fd, HELPER_CHANGE } },
                                    .dir_count = 1,
                                    .patience_ms = SYNC_MS };

    park->only_syncs = only_syncs;
    park->helper = helper_start(park->box->native->helpers, &job, err);
    return park->helper != NULL;
}

/* ---- the steps ---- */

/* The record must not say parked of one that runs on: the next keeper would end it. */
static void unmark(struct park *park)
{
    struct err err;

    park->record.held = HELD_RUNNING;
    if (!state_rewrite(park->sandbox_fd, &park->record, &err))
        log_error("native: sandbox %s runs, and its record may say that it is parked: %s", park->box->id,
                  err_text(&err));
}

static void marked(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct park *park = context;
    struct box *box = park->box;
    struct err why;

    (void)figures;
    park->helper = NULL;
    if (err) {
        if (box->state == BOX_RUNNING) /* the helper may have failed after the record had its name */
            unmark(park);
        give_up(park, err);
        return;
    }
    if (box->state != BOX_RUNNING)
        return; /* it was told to end meanwhile, and is not kept: box_gone() answers */
    box->keep = park->as;
    if (native_reach(box->native, NATIVE_AT_PARK_MARK, &why) && box_end(box, &why)) {
        (void)!native_reach(box->native, NATIVE_AT_PARK_KILL, &why);
        return; /* box_gone() goes on */
    }
    box->keep = HELD_RUNNING; /* it cannot be killed, so it is not parked */
    unmark(park);
    give_up(park, &why);
}

static void frozen(void *context, const struct kept *kept, const struct err *err)
{
    struct park *park = context;
    struct err why;

    (void)kept;
    if (err && (err->kind != ERR_UNAVAILABLE || park->box->native->is_stopping)) {
        answer(park, err);
        return;
    }
    park->needs_sync = err != NULL; /* there is no freezer */
    if (!native_reach(park->box->native, NATIVE_AT_PARK_FREEZE, &why) || !start_helper(park, false, marked, &why))
        give_up(park, &why);
}

static struct park *park_new(struct box *box, enum held_state as)
{
    struct park *park = NEW(struct park);

    *park = (struct park){ .box = box, .as = as, .sandbox_fd = -1, .reclaim_fd = -1 };
    box->park = park;
    return park;
}

static bool open_record(struct park *park, struct err *err)
{
    park->sandbox_fd =
        openat(park->box->native->sandboxes_fd, park->box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (park->sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", park->box->id);
    if (!state_read(park->sandbox_fd, &park->record, err))
        return false;
    if (!park->record.layer_count)
        return err_set(err, ERR_INVALID, "an older server started this sandbox: it cannot be kept on disk");
    park->record.held = park->as;
    return true;
}

void box_park(struct box *box, enum held_state as, driver_kept_fn *done, void *context)
{
    struct park *park = park_new(box, as);
    struct err err;

    park->done = done;
    park->context = context;
    park->was_frozen = box->ice.is_frozen;
    if (open_record(park, &err))
        box_freeze(box, frozen, park);
    else
        answer(park, &err);
}

void park_await(struct box *box, driver_kept_fn *done, void *context)
{
    struct park *park = park_new(box, box->keep);

    park->done = done;
    park->context = context;
}

/* ---- the end ---- */

static bool take_memory_back(struct helper_voice *voice, void *context, struct err *err)
{
    const struct park *park = context;

    (void)voice;
    (void)err;
    (void)!write(park->reclaim_fd, park->reclaim_text, strlen(park->reclaim_text)); /* EAGAIN: less than we asked for */
    return true;
}

static void drained(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct park *park = context;

    (void)figures;
    park->helper = NULL;
    fd_close(&park->reclaim_fd);
    if (err)
        log_debug("native: memory of sandbox %s is not taken back: %s", park->box->id, err_text(err));
    box_clear(park->box);
}

bool park_drain(struct box *box)
{
    struct native *native = box->native;
    struct park *park = box->park;
    struct err err;

    if (!park || park->is_drained)
        return false;
    park->is_drained = true;
    if (!drain_open(native->cgroups, box->id, &park->reclaim_fd, &park->reclaim_text))
        return false;
    const struct helper_job job = { .work = take_memory_back,
                                    .ended = drained,
                                    .context = park,
                                    .dirs = { { park->reclaim_fd, HELPER_HOLD } },
                                    .dir_count = 1,
                                    .ends_late = true, /* to remove the cgroup would wait for it */
                                    .patience_ms = DRAIN_MS };
    park->helper = helper_start(native->helpers, &job, &err);
    if (park->helper)
        return true;
    fd_close(&park->reclaim_fd);
    log_debug("native: memory of sandbox %s is not taken back: %s", box->id, err_text(&err));
    return false;
}

/*
 * The record has no process and no slot any more, and says what this keeper says. Before the slot is free: a new keeper
 * must not take it for this sandbox when another one has it.
 */
static bool forget_process(int sandbox_fd, enum held_state held, struct err *err)
{
    struct state state;

    if (!state_read(sandbox_fd, &state, err))
        return false;
    state.held = held;
    state.pid = 0;
    state.slot = BOX_SLOTS;
    return state_rewrite(sandbox_fd, &state, err);
}

static bool was_drained(const struct park *park)
{
    return park && park->reclaim_text;
}

bool park_clear(struct box *box, struct err *err)
{
    struct native *native = box->native;
    auto_close int fd = openat(native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open sandboxes/%s", box->id);
    /* A volatile overlay does not take its work directory a second time. */
    if (!trash_add(native->trash, fd, "work", err) || !handover_forget(fd, err))
        return false;
    bool has_left = was_drained(box->park) && drain_has_left(native->cgroups, box->id);
    if (cgroup_remove(native->cgroups, box->id, err)) {
        if (has_left)
            box_left_pages(native, box->id);
        return forget_process(fd, box->keep, err);
    }
    (void)cgroup_kill(native->cgroups, box->id);
    return false;
}

static void discard(struct box *box)
{
    struct err err;

    (void)err_set(&err, ERR_NOT_FOUND, "sandbox %s has ended", box->id);
    park_lost(box, &err);
    if (!park_discard(box, &err))
        log_error("native: sandbox %s: cannot remove its files; next attempt at server restart: %s", box->id,
                  err_text(&err));
}

/* If it has one: it is compressed when nobody resumes it for a while. */
static void note_image(const struct box *box)
{
    if (box->keep == HELD_PARKED_IMAGE)
        compress_note(box->native, box->id);
}

static void rest(struct box *box)
{
    struct err err;

    (void)!native_reach(box->native, NATIVE_AT_PARK_CLEAR, &err);
    if (box->keep == HELD_RUNNING) { /* it was told to end during the last sync */
        discard(box);
        return;
    }
    box->state = BOX_PARKED;
    box->ran = false;
    box->cause = EXIT_PLAIN;
    box->zygote_given = (struct zygote_given){ 0 };
    box_forget_ice(box);
    note_image(box);
    if (box->park)
        answer(box->park, NULL);
}

static void synced(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct park *park = context;

    (void)figures;
    park->helper = NULL;
    if (err) /* the kernel writes it later, as it does with what any program writes */
        log_warn("native: sandbox %s is parked, but a power cut now would damage it: %s", park->box->id, err_text(err));
    rest(park->box);
}

void park_cleared(struct box *box)
{
    struct park *park = box->park;
    struct err err;

    if (!park || !park->needs_sync)
        rest(box);
    else if (!start_helper(park, true, synced, &err))
        synced(park, NULL, &err);
}

void park_hurry(struct box *box)
{
    struct park *park = box->park;

    if (box->state == BOX_CLEARING && park && park->helper && park->only_syncs && !park->done)
        rest(box);
}

void park_lost(struct box *box, const struct err *why)
{
    if (box->park)
        answer(box->park, why);
}

bool park_discard(struct box *box, struct err *err)
{
    struct native *native = box->native;

    compress_forget(native, box->id);
    if (!trash_add(native->trash, native->sandboxes_fd, box->id, err))
        return false;
    (void)map_remove(&native->boxes, str_from(box->id));
    loop_retire(native->loop, box, box_free);
    return true;
}

void park_found(struct box *box, const struct state *state)
{
    struct native *native = box->native;
    /* By the record; by its cgroup too, which must be gone before it is started again, whatever the record says. */
    bool is_cut_short = (state->slot != BOX_SLOTS && !strcmp(state->boot_id, native->boot_id)) ||
                        cgroup_is_there(native->cgroups, box->id);
    struct err err;

    box->keep = state->held;
    box->slot = BOX_SLOTS;
    (void)map_put(&native->boxes, str_from(box->id), box);
    if (!is_cut_short) {
        box->state = BOX_PARKED;
        note_image(box);
        return;
    }
    log_info("native: sandbox %s was being parked or resumed when keeper ended: it is parked", box->id);
    struct park *park = park_new(box, state->held);
    park->needs_sync = state->pid != 0;
    park->is_drained = true; /* not now: it may be resumed at once, and what is not synced cannot be taken back */
    if (!open_record(park, &err)) {
        log_warn("native: %s", err_text(&err));
        park_free(park);
    }
    /* Its ids stay taken while it dies. */
    if (state->slot < BOX_SLOTS && !native->slot_taken[state->slot]) {
        native->slot_taken[state->slot] = true;
        box->slot = state->slot;
    }
    (void)cgroup_kill(native->cgroups, box->id);
    box->state = BOX_CLEARING;
    box_clear(box);
}

void native_park(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context)
{
    struct box *box = box_find(native_of(driver), id);
    struct err err;

    if (box && box->state == BOX_PARKED) {
        done(context, NULL, NULL);
        return;
    }
    if (box && box->state == BOX_CLEARING && box->keep != HELD_RUNNING && !box->park) {
        park_await(box, done, context);
        return;
    }
    if (!box || box->state != BOX_RUNNING)
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    else if (box_is_busy(box, &err))
        ;
    else {
        if (memory)
            memory_park(box, done, context);
        else
            box_park(box, HELD_PARKED, done, context);
        return;
    }
    done(context, NULL, &err);
}
