/*
 * Paused and back.
 *
 * A pause: guestd finishes what it has begun (PREPARE), the row says pausing, connections are cut, then the driver freezes
 * the sandbox (its memory is kept) or parks it (files only), and the row says paused, on disk. Only then the caller hears
 * of it. A step that fails is undone, and the sandbox runs on; after PARK there is no way back, but then the row says
 * pausing and the driver holds it parked, which means paused.
 *
 * What is frozen is written to disk behind the pause, one sandbox at a time and after a moment, because a thaw is a
 * hundred times as fast as a restore. Teams take turns: what one sandbox has taken, its team waits behind the others.
 * If it cannot be written it stays frozen. A resume that comes meanwhile waits.
 *
 * A resume: the row says resuming and keeps all that the pause has written; the driver thaws it, or starts it from its
 * files or its image; guestd answers; the row says running. If that fails it is frozen or parked again.
 *
 * One worker at a time does any of this (struct turns): further callers wait for it and get its result. A kill does not
 * wait for long. So after each step that waits, the worker looks whether the sandbox is still in the state that it has put
 * it in; if not, it leaves the rest to the loop (end.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/inside.h"

enum {
    BUSY_MS = 20,      /* between questions whether the driver is done with what a front before us has begun */
    PREPARE_MS = 2000, /* for guestd to prepare; births of interpreters take about a second */
    LINK_MS = 2000,    /* for other workers that talk to guestd to be done */
    WOKEN_S = 300,     /* the least that traffic gives a sandbox that it wakes */
    RESUME_ROUNDS = 3, /* as upstream */
};

/* ---- turns ---- */

void turn_begin(struct sandbox *sb, struct turns *turns)
{
    turns->begun++;
    sb->at_work++;
}

void turn_end(struct sandbox *sb, struct turns *turns, const struct err *err)
{
    turns->ended++;
    turns->err = err ? *err : (struct err){ 0 };
    sandbox_work_done(sb);
}

bool sandbox_await_change(struct sandbox *sb, const struct timespec *until, struct err *err)
{
    if (pthread_cond_timedwait(&sb->all->changed, &sb->all->lock, until) == 0)
        return true;
    return err_set(err, ERR_TIMEOUT, "Sandbox \"%s\" is %s, which takes too long", sb->id,
                   sb->is_writing ? "being written to disk" : sandbox_state_name(sb->state));
}

/* Waits for the end of the turn that is under way, and has its result. With the lock held. */
static bool join_turn(struct sandbox *sb, const struct turns *turns, const struct timespec *until, struct err *err)
{
    const uint64_t mine = turns->begun;

    while (turns->ended < mine)
        if (!sandbox_await_change(sb, until, err))
            return false;
    if (turns->ended > mine || turns->err.kind == ERR_NONE)
        return true; /* what came after it is another matter */
    *err = turns->err;
    return false;
}

static bool set_gone(const struct sandbox *sb, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "Sandbox \"%s\" does not exist or is not accessible", sb->id);
}

bool sandbox_is_still(struct sandbox *sb, enum sandbox_state state, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return sb->state == state || set_gone(sb, err);
}

static void set_held(struct sandbox *sb, enum held_state now)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sb->held = now;
    sb->write_ms = clock_mono_ms() + SANDBOX_WRITE_AFTER_MS;
    if (now == HELD_PARKED || now == HELD_PARKED_IMAGE)
        sb->exited = NULL; /* its processes have ended, and it has not */
}

static bool call(struct sandbox *sb, enum pause_call what, bool memory, struct err *err)
{
    return driver_pause_call(sb->all->config.driver, what, sb->id, memory, NULL, err);
}

/* Kinds that say something about the sandbox pass; errno and what we did wrong do not. */
static void kind_for_asker(struct err *err)
{
    if (err->kind != ERR_TIMEOUT && (err->sys || err->kind == ERR_DENIED))
        err->kind = ERR_INTERNAL;
}

bool sandbox_ask_held(struct sandbox *sb, unsigned *out)
{
    auto_free struct held *list = NULL;
    uint32_t count;
    struct err err;

    if (!driver_list(sb->all->config.driver, &list, &count, &err)) {
        log_warn("sandbox %s: not known how it is held: %s", sb->id, err_text(&err));
        return false;
    }
    *out = HELD_NOT;
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(list[i].id, sb->id))
            *out = list[i].state;
    return true;
}

/*
 * THAW. A front that died may have left the driver at work on it: waits until that is done, as long as it is in that state.
 * ERR_NOT_FOUND: it is parked, or not there.
 */
static bool thaw_when_done(struct sandbox *sb, enum sandbox_state state, unsigned most_ms, struct err *err)
{
    const struct timespec pause = { .tv_nsec = BUSY_MS * 1000000L };

    for (unsigned ms = 0; !call(sb, PAUSE_THAW, false, err); ms += BUSY_MS) {
        if (err->kind != ERR_CONFLICT || err->sys || ms >= most_ms || atomic_load(&sb->all->is_stopping) ||
            !sandbox_is_still(sb, state, err))
            return false;
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

void sandbox_forget_pause(struct sandbox *sb)
{
    if (sb->envs)
        explicit_bzero(sb->envs, strlen(sb->envs));
    free(take_ptr(&sb->envs));
    sb->has_memory = sb->was_silent = sb->stays_frozen = false;
    sb->sizes = (struct sandbox_sizes){ 0 };
    sb->measure_ms = 0;
}

/* ---- guestd ---- */

static void await_link(struct sandbox *sb)
{
    struct timespec until = clock_wait_until(LINK_MS);
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    while (sb->network_changing || sb->linking)
        if (pthread_cond_timedwait(&sb->all->changed, &sb->all->lock, &until) != 0)
            break; /* guestd gets two new links, of which the later one counts */
}

enum guest_answer sandbox_prepare(struct sandbox *sb, struct arena *arena, int *out_fd, struct guestlink_ready *out,
                                  struct err *err)
{
    auto_close int fd = -1;
    enum guest_answer answer = GUEST_SILENT;

    *out = (struct guestlink_ready){ 0 };
    await_link(sb);
    if (driver_link(sb->all->config.driver, sb->id, &fd, err))
        answer = guest_prepare(fd, clock_mono_ms() + PREPARE_MS, arena, out, err);
    *out_fd = take_fd(&fd);
    return answer;
}

/* What guestd tells its programs now. */
static void network_now(struct sandbox *sb, struct arena *arena, struct guestlink_network *out)
{
    struct net_policy network;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        (void)!sandbox_read_policy(sb, arena, &network); /* our own bytes; empty if there is none */
    }
    sandbox_describe_network(sb, &network, arena, out);
}

/* The link is its log's from now on, unless it was killed: then its log has ended, or is about to. */
static void begin_log(struct sandbox *sb, int *guestlink_fd)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    if (sb->state < SANDBOX_STOPPING)
        logs_begin(sb->all->logs, sb->team_id, str_from(sb->id), sb->started_us, take_fd(guestlink_fd));
}

static bool listen_again(struct sandbox *sb, int *guestlink_fd, bool resumed, struct err *err)
{
    struct guestlink_network network;
    struct arena arena;

    arena_init(&arena);
    network_now(sb, &arena, &network);
    bool ok = guest_listen(*guestlink_fd, &network, resumed, err);
    arena_done(&arena);
    if (ok)
        begin_log(sb, guestlink_fd);
    return ok;
}

/* A new link, and guestd answers on it. */
static bool tell_resumed(struct sandbox *sb, struct err *err)
{
    auto_close int fd = -1;

    /* GUEST_NO is fine: one that answers is there, and one that is older than RESUMED needs none. */
    return driver_link(sb->all->config.driver, sb->id, &fd, err) &&
           guest_resumed(fd, clock_mono_ms() + LIMIT_START_MS, err) != GUEST_SILENT &&
           listen_again(sb, &fd, false, err);
}

void sandbox_take_back(struct sandbox *sb, int guestlink_fd)
{
    auto_close int fd = guestlink_fd;
    struct err err;

    if (fd >= 0 && !listen_again(sb, &fd, true, &err))
        log_warn("sandbox %s: its commands are not logged until the server starts again: %s", sb->id, err_text(&err));
}

/* ---- pause ---- */

/* One pause on its way. */
struct pausing {
    struct sandbox *sb;
    const char *reason;
    bool memory;
    enum guest_answer answer;
    int guestlink_fd; /* -1: none */
    struct str envs;
    struct arena arena;
};

bool sandbox_may_pause(const struct sandbox *sb, struct err *err)
{
    const struct sandboxes *all = sb->all;
    const struct sandbox *other;
    unsigned total = 0, of_team = 0;

    for (size_t i = 0; (other = map_next(&all->by_id, &i));) {
        bool counts = other->state == SANDBOX_PAUSED || other->state == SANDBOX_PAUSING;
        total += counts;
        of_team += counts && str_eq(other->team_id, sb->team_id);
    }
    if (of_team >= LIMIT_PAUSED_PER_TEAM)
        return err_set(err, ERR_LIMIT, "%u sandboxes are paused, which is as many as a team may have: kill one first",
                       of_team);
    if (total >= LIMIT_PAUSED)
        return err_set(err, ERR_LIMIT, "%u sandboxes are paused, which is as many as this server holds: kill one first",
                       total);
    return true;
}

void sandbox_pause_enter(struct sandbox *sb, bool memory)
{
    sandbox_enter(sb, SANDBOX_PAUSING);
    sandbox_forget_pause(sb);
    sb->has_memory = memory;
    turn_begin(sb, &sb->pauses);
}

static struct sandbox_change change_to(const struct pausing *p, enum sandbox_row_state state)
{
    return (struct sandbox_change){
        .state = state,
        .has_memory = p->memory,
        .was_silent = p->memory && p->answer == GUEST_SILENT,
        .envs = p->envs,
    };
}

/* The row is paused, with the time of the pause as its deadline. */
static bool keep_paused(struct pausing *p, int64_t now_us, int64_t revision, struct err *err)
{
    struct sandbox_change change = change_to(p, SANDBOX_ROW_PAUSED);
    struct event_row event = record_paused(p->sb, p->reason, p->memory, &p->arena);

    change.deadline_us = now_us;
    change.revision = revision;
    return store_sandbox_change(p->sb->all->config.store, str_from(p->sb->id), &change, &event, err);
}

/* PAUSED from now on, unless it was killed. */
static bool enter_paused(struct pausing *p, enum held_state now, int64_t now_us, struct err *err)
{
    struct sandbox *sb = p->sb;
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sb->held = now;
    if (sb->state != SANDBOX_PAUSING)
        return set_gone(sb, err);
    if (now == HELD_PARKED)
        sb->exited = NULL;
    sb->has_memory = p->memory;
    sb->was_silent = p->memory && p->answer == GUEST_SILENT;
    sb->stays_frozen = p->answer != GUEST_YES; /* what guestd has not dropped cannot be written */
    sb->envs = p->envs.len ? str_copy(p->envs) : NULL;
    sb->write_ms = clock_mono_ms() + SANDBOX_WRITE_AFTER_MS;
    sb->deadline_us = sb->kept_us = now_us;
    sb->kept_revision = sb->revision;
    sandbox_enter(sb, SANDBOX_PAUSED);
    turn_end(sb, &sb->pauses, NULL);
    return true;
}

static int64_t next_revision(struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return ++sb->revision; /* a change of the deadline that is still on its way to the store comes too late */
}

/* Does the driver park it, though its answer did not come in time? Processes may take minutes to end. There is no way back. */
static bool is_parked_late(const struct pausing *p, const struct err *why)
{
    unsigned now;

    return !p->memory && why->kind == ERR_TIMEOUT && sandbox_ask_held(p->sb, &now) && now == HELD_PARKED;
}

/* Ends as PAUSED, or fails and the caller undoes it: *out_held says what the driver has made of it. */
static bool pause_steps(struct pausing *p, enum held_state *out_held, struct err *err)
{
    struct sandbox *sb = p->sb;
    struct store *store = sb->all->config.store;
    struct sandbox_change change = change_to(p, SANDBOX_ROW_PAUSING);

    if (!store_sandbox_change(store, str_from(sb->id), &change, NULL, err) ||
        !sandbox_is_still(sb, SANDBOX_PAUSING, err))
        return false;
    sandbox_cut_and_wait(sb);
    if (!call(sb, p->memory ? PAUSE_FREEZE : PAUSE_PARK, false, err) && !is_parked_late(p, err))
        return false;
    *out_held = p->memory ? HELD_FROZEN : HELD_PARKED;
    if (!sandbox_is_still(sb, SANDBOX_PAUSING, err))
        return false;
    int64_t now_us = clock_wall_us();
    if (!keep_paused(p, now_us, next_revision(sb), err)) {
        if (p->memory)
            return false;
        if (err->kind != ERR_NOT_FOUND) /* else it was killed just now, and has no row */
            log_warn("sandbox %s: paused, which its row does not say yet: %s", sb->id, err_text(err));
    }
    return enter_paused(p, *out_held, now_us, err);
}

/* After a pause that failed: it runs on. If it cannot even be thawed, it is paused after all. */
static void undo_pause(struct pausing *p, enum held_state now, const struct err *why)
{
    struct sandbox *sb = p->sb;
    struct sandboxes *all = sb->all;
    struct err err;

    if (now == HELD_FROZEN && sandbox_is_still(sb, SANDBOX_PAUSING, &err)) {
        if (!call(sb, PAUSE_THAW, false, &err)) {
            log_warn("sandbox %s: frozen and not thawed, so it stays paused: %s", sb->id, err_text(&err));
            if (enter_paused(p, now, clock_wall_us(), &err))
                return;
        }
    }
    if (sandbox_is_still(sb, SANDBOX_PAUSING, &err)) {
        sandbox_take_back(sb, take_fd(&p->guestlink_fd));
        if (!store_sandbox_change(all->config.store, str_from(sb->id),
                                  &(struct sandbox_change){ .state = SANDBOX_ROW_RUNNING }, NULL, &err) &&
            err.kind != ERR_NOT_FOUND) /* else it was killed just now, and has no row */
            log_warn("sandbox %s: runs on after a pause that failed, which its row does not say: %s", sb->id,
                     err_text(&err));
    }
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        if (sb->state == SANDBOX_PAUSING) {
            sandbox_forget_pause(sb);
            sb->held = HELD_RUNNING;
            sb->connections = CONNECTIONS_OPEN;
            sandbox_enter(sb, SANDBOX_RUNNING);
        }
        turn_end(sb, &sb->pauses, why);
    }
    sandboxes_look(all);
}

static void pausing_init(struct pausing *p, struct sandbox *sb, bool memory, const char *reason)
{
    *p = (struct pausing){ .sb = sb, .reason = reason, .memory = memory, .guestlink_fd = -1 };
    arena_init(&p->arena);
}

static void pausing_done(struct pausing *p)
{
    fd_close(&p->guestlink_fd);
    arena_done(&p->arena);
}

static void ask_guest(struct pausing *p, struct err *err)
{
    struct guestlink_ready ready;

    p->answer = sandbox_prepare(p->sb, &p->arena, &p->guestlink_fd, &ready, err);
    if (p->answer == GUEST_YES)
        p->envs = record_envs(ready.envs, ready.env_count, &p->arena);
}

/* guestd must answer where there is no other way to know its environment, and where the caller says so. */
static bool guest_is_fine(const struct pausing *p, bool must_answer, const struct err *why, struct err *err)
{
    if (p->answer == GUEST_YES || (p->memory && (p->answer == GUEST_NO || !must_answer)))
        return true;
    log_info("sandbox %s: not paused: %s", p->sb->id, err_text(why));
    if (p->answer == GUEST_NO)
        return err_set(err, ERR_UNAVAILABLE,
                       "the sandbox was started by an older version and cannot be paused without its memory");
    return err_set(err, ERR_UNAVAILABLE, "guestd does not answer: the sandbox was not paused and runs on");
}

static bool can_start_again(const struct pausing *p, struct err *err)
{
    return p->memory || p->sb->layer_count ||
           err_set(err, ERR_UNAVAILABLE,
                   "the sandbox was started by an older version and cannot be paused without its memory");
}

static bool pause_asked(struct sandbox *sb, const struct pause_want *want, struct err *err)
{
    enum held_state now = HELD_RUNNING;
    struct pausing p;
    struct err why;

    pausing_init(&p, sb, want->memory, want->reason);
    ask_guest(&p, &why);
    bool ok = guest_is_fine(&p, want->must_answer, &why, err) && can_start_again(&p, err) &&
              sandbox_is_still(sb, SANDBOX_PAUSING, err) && pause_steps(&p, &now, err);
    if (!ok) {
        kind_for_asker(err);
        undo_pause(&p, now, err);
    }
    pausing_done(&p);
    return ok || err_wrap(err, "pause sandbox %s", sb->id);
}

/* Takes the sandbox for a pause, or joins one: *out_ours. The caller gets a reference. */
static struct sandbox *begin_pause(struct sandboxes *all, struct str team_id, struct str id, bool memory,
                                   bool *out_ours, struct err *err)
{
    struct timespec until = clock_wait_until(SANDBOX_TURN_MS);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = sandbox_of_team(all, team_id, id, err);
    bool ok = sb != NULL, is_done = false;

    if (!sb)
        return NULL;
    sandbox_ref(sb);
    *out_ours = false;
    while (ok && !is_done) {
        switch (sb->state) {
        case SANDBOX_RUNNING:
            ok = sandbox_may_pause(sb, err);
            if (ok)
                sandbox_pause_enter(sb, memory);
            *out_ours = is_done = ok;
            break;
        case SANDBOX_PAUSING:
            is_done = ok = join_turn(sb, &sb->pauses, &until, err);
            break;
        case SANDBOX_SNAPSHOTTING:
        case SANDBOX_RESUMING:
            ok = sandbox_await_change(sb, &until, err);
            break;
        case SANDBOX_PAUSED:
            ok = err_set(err, ERR_CONFLICT, "Sandbox \"%s\" is already paused", sb->id);
            break;
        default:
            ok = set_gone(sb, err);
        }
    }
    if (ok)
        return sb;
    sandbox_unref(sb); /* perhaps the last one: it may be gone from the map by now */
    return NULL;
}

bool sandbox_pause(struct sandboxes *all, struct str team_id, struct str id, const struct pause_want *want,
                   struct err *err)
{
    bool ours;
    struct sandbox *sb = begin_pause(all, team_id, id, want->memory, &ours, err);

    if (!sb)
        return false;
    bool ok = !ours || pause_asked(sb, want, err);
    if (ok && ours) {
        log_info("sandbox %s: paused%s", sb->id, want->memory ? "" : ", files only");
        sandboxes_look(all); /* it may be written to disk soon */
    }
    sandbox_unref(sb);
    return ok;
}

/* A deadline is a deadline: if there is no other way, it is ended. */
static void end_due(struct sandbox *sb, const struct err *why)
{
    struct err err;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        turn_end(sb, &sb->pauses, why);
        if (sb->state != SANDBOX_PAUSING)
            return; /* a kill has come first */
        sandbox_enter(sb, SANDBOX_ENDING);
        sb->reason = "timeout";
    }
    log_warn("sandbox %s: ended at its deadline, because it cannot be paused: %s", sb->id, err_text(why));
    if (!sandbox_end(sb, &err))
        log_warn("sandbox %s: not ended, will try again: %s", sb->id, err_text(&err));
}

void sandbox_pause_due(struct sandbox *sb)
{
    enum held_state now = HELD_RUNNING;
    struct pausing p;
    struct err err = { 0 };

    pausing_init(&p, sb, sb->lifecycle.keep_memory, "timeout");
    ask_guest(&p, &err);
    bool ok = sandbox_is_still(sb, SANDBOX_PAUSING, &err) && can_start_again(&p, &err) && pause_steps(&p, &now, &err);
    if (!ok && p.memory && sandbox_is_still(sb, SANDBOX_PAUSING, &(struct err){ 0 })) {
        log_warn("sandbox %s: paused at its deadline without its memory: %s", sb->id, err_text(&err));
        p.memory = false;
        ok = can_start_again(&p, &err) && pause_steps(&p, &now, &err);
    }
    if (ok)
        log_info("sandbox %s: paused at its deadline%s", sb->id, p.memory ? "" : ", files only");
    else
        end_due(sb, &err);
    pausing_done(&p);
    sandboxes_look(sb->all);
}

/* ---- to disk, behind the pause ---- */

struct writing {
    struct job job;
    uint64_t began_ms;
    struct sandbox *sandbox; /* referenced; at_work counts us */
};

static void writing_run(struct job *job)
{
    struct sandbox *sb = container_of(job, struct writing, job)->sandbox;
    struct err err;
    bool ok = call(sb, PAUSE_PARK, true, &err);

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->is_writing = false;
        sb->stays_frozen = !ok;
        if (ok) {
            sb->held = HELD_PARKED_IMAGE;
            sb->exited = NULL;
            pthread_cond_broadcast(&sb->all->place_freed);
        }
        sandbox_work_done(sb);
    }
    if (ok)
        log_info("sandbox %s: written to disk", sb->id);
    else if (err.kind == ERR_UNAVAILABLE) /* on this machine none is written, which the log says at the start */
        log_info("sandbox %s: its memory stays in RAM and is lost at a reboot", sb->id);
    else if (err.kind != ERR_NOT_FOUND) /* killed meanwhile */
        log_warn("sandbox %s: its memory stays in RAM and is lost at a reboot: %s", sb->id,
                 err.sys || err.kind == ERR_INTERNAL ? err_text(&err) : err.message);
}

static void writing_free(struct writing *writing)
{
    if (writing)
        sandbox_unref(writing->sandbox);
    free(writing);
}

/* The team's, or the one that is least needed, which is then the team's. With the lock held. */
static struct writer *writer_of(struct sandboxes *all, struct str team_id)
{
    struct writer *oldest = all->writers;

    for (size_t i = 0; i < COUNT_OF(all->writers); i++) {
        if (str_eq(str_from(all->writers[i].team_id), team_id))
            return &all->writers[i];
        if (all->writers[i].after_ms < oldest->after_ms)
            oldest = &all->writers[i];
    }
    return oldest;
}

/* A dump that took long, or failed after long, lets the others go first for as long again. With the lock held. */
static void writer_ran(struct sandboxes *all, struct str team_id, uint64_t began_ms)
{
    struct writer *writer = writer_of(all, team_id);
    uint64_t now_ms = clock_mono_ms();

    (void)snprintf(writer->team_id, sizeof writer->team_id, "%.*s", STR_ARG(team_id));
    writer->after_ms = now_ms + (now_ms - began_ms);
}

/* When this one's turn is, compared with others. With the lock held. */
static uint64_t turn_of(struct sandboxes *all, const struct sandbox *sb)
{
    const struct writer *writer = writer_of(all, sb->team_id);

    return str_eq(str_from(writer->team_id), sb->team_id) ? MAX(writer->after_ms, sb->write_ms) : sb->write_ms;
}

static void writing_is_done(struct job *job)
{
    struct writing *writing = container_of(job, struct writing, job);
    struct sandboxes *all = writing->sandbox->all;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        all->writing = NULL;
        writer_ran(all, writing->sandbox->team_id, writing->began_ms);
    }
    writing_free(writing);
    sandboxes_look(all);
}

struct writing *writing_take(struct sandboxes *all, uint64_t now_ms, uint64_t *next_ms)
{
    struct sandbox *sb, *first = NULL;
    uint64_t first_ms = UINT64_MAX, turn_ms;

    if (all->writing || atomic_load(&all->is_stopping))
        return NULL; /* looks again when it is done */
    for (size_t i = 0; (sb = map_next(&all->by_id, &i));) {
        bool wants = sb->state == SANDBOX_PAUSED && sb->has_memory && sb->held == HELD_FROZEN && !sb->stays_frozen &&
                     !sb->exited;
        if (wants && sb->write_ms > now_ms) {
            *next_ms = MIN(*next_ms, sb->write_ms);
        } else if (wants && (turn_ms = turn_of(all, sb)) < first_ms) {
            first = sb;
            first_ms = turn_ms;
        }
    }
    if (!first)
        return NULL;
    first->is_writing = true;
    first->at_work++;
    all->writing = NEW(struct writing);
    *all->writing = (struct writing){ .job = { .run = writing_run, .done = writing_is_done },
                                      .began_ms = now_ms,
                                      .sandbox = sandbox_ref(first) };
    return all->writing;
}

void writing_begin(struct writing *writing)
{
    workers_run(writing->sandbox->all->config.workers, &writing->job);
}

void writing_done(struct sandboxes *all)
{
    writing_free(take_ptr(&all->writing));
}

/* ---- resume ---- */

/* One resume on its way. */
struct resuming {
    struct sandbox *sb;
    bool memory; /* its processes go on */
    uint64_t timeout_s;
    struct arena arena;
};

/* The driver holds it as frozen or parked; it is PAUSED again, unless it was killed. */
static void enter_paused_again(struct sandbox *sb, const struct err *why)
{
    struct sandboxes *all = sb->all;
    struct sandbox_change change = { .state = SANDBOX_ROW_PAUSED };
    struct arena arena;
    struct err err;

    arena_init(&arena);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        change.has_memory = sb->has_memory;
        change.was_silent = sb->was_silent;
        change.envs = sb->envs ? arena_copy(&arena, str_from(sb->envs)) : STR("");
        change.deadline_us = sb->deadline_us;
        change.revision = sb->revision;
    }
    if (!store_sandbox_change(all->config.store, str_from(sb->id), &change, NULL, &err) && err.kind != ERR_NOT_FOUND)
        log_warn("sandbox %s: paused again, which its row does not say: %s", sb->id, err_text(&err));
    arena_done(&arena);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    if (sb->state == SANDBOX_RESUMING)
        sandbox_enter(sb, SANDBOX_PAUSED);
    turn_end(sb, &sb->resumes, why);
}

static void set_memory(struct sandbox *sb, bool has_memory)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sb->has_memory = has_memory;
}

static enum held_state held_now(struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return sb->held;
}

/* Takes over how the driver holds it. False: it runs, or the driver does not say. */
static bool is_at_rest(struct sandbox *sb)
{
    unsigned now;

    if (!sandbox_ask_held(sb, &now) || now == HELD_NOT || now == HELD_RUNNING)
        return false;
    set_held(sb, (enum held_state)now);
    if (now == HELD_PARKED)
        set_memory(sb, false);
    return true;
}

/* The driver refuses a park of one that has just ended, and may have parked it by itself. */
static void park_again(struct sandbox *sb)
{
    struct err err;
    bool fine = call(sb, PAUSE_PARK, false, &err);

    if (is_at_rest(sb))
        return;
    if (fine)
        set_held(sb, HELD_PARKED_IMAGE); /* perhaps; the next resume tells */
    else
        log_warn("sandbox %s: not resumed, and not stopped either: %s", sb->id, err_text(&err));
}

/*
 * A resume that failed left it running, or perhaps running: it stands still again, with its memory if it had it. The
 * driver may have it on disk again by itself, with an image that is as good as before, and at any moment: so what a park has
 * made of it is asked, too.
 */
static void hold_again(struct resuming *r)
{
    struct sandbox *sb = r->sb;
    struct err err;

    if (held_now(sb) != HELD_RUNNING || is_at_rest(sb))
        return;
    if (r->memory && call(sb, PAUSE_FREEZE, false, &err))
        set_held(sb, HELD_FROZEN);
    else
        park_again(sb);
}

/* Its environment, from when it was paused. */
static void read_envs(struct resuming *r, struct guestlink_env **out, uint32_t *out_count)
{
    struct sandbox *sb = r->sb;
    struct err err;
    struct str text;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        text = sb->envs ? arena_copy(&r->arena, str_from(sb->envs)) : STR("");
    }
    *out = NULL;
    *out_count = 0;
    if (text.len && !record_read_envs(text, &r->arena, out, out_count, &err))
        log_warn("sandbox %s: resumed without its environment: %s", sb->id, err_text(&err));
}

static bool set_up_again(struct resuming *r, int guestlink_fd, struct err *err)
{
    auto_close int fd = guestlink_fd;
    struct sandbox *sb = r->sb;
    struct guestlink_env *envs;
    uint32_t env_count;

    read_envs(r, &envs, &env_count);
    if (!sandbox_set_guest_up(sb, envs, env_count, r->memory, fd, &r->arena, err))
        return false;
    begin_log(sb, &fd);
    sandbox_note_no_network(sb);
    return true;
}

/* From the disk. */
static bool start_again(struct resuming *r, struct err *err)
{
    struct sandbox *sb = r->sb;
    struct driver *driver = sb->all->config.driver;
    enum held_state before = held_now(sb);
    struct started started;
    struct plan plan;

    if (before <= HELD_FROZEN) { /* a reboot: its memory goes */
        if (!call(sb, PAUSE_PARK, false, err))
            return false;
        set_held(sb, HELD_PARKED);
        set_memory(sb, false);
    }
    if (!sandbox_is_still(sb, SANDBOX_RESUMING, err) ||
        !sandbox_plan(sb, r->memory ? PLAN_PARKED_IMAGE : PLAN_PARKED, STR(""), &plan, err))
        return false;
    if (!driver_start(driver, &plan, &started, err)) {
        if (err->kind == ERR_TIMEOUT)
            set_held(sb, HELD_RUNNING); /* perhaps */
        return false;
    }
    set_held(sb, HELD_RUNNING);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->has_network = started.has_network;
    }
    sandbox_send_policy(sb); /* before guestd answers: egress has it by the time of the first connection */
    return set_up_again(r, started.guestlink_fd, err);
}

static bool thaw(struct resuming *r, struct err *err)
{
    struct sandbox *sb = r->sb;

    if (!thaw_when_done(sb, SANDBOX_RESUMING, SANDBOX_TURN_MS, err))
        return false;
    set_held(sb, HELD_RUNNING);
    sandbox_send_policy(sb); /* egress may have forgotten it */
    return tell_resumed(sb, err);
}

/* A new run begins. */
static bool run_again(struct resuming *r, struct err *err)
{
    struct sandbox *sb = r->sb;
    struct sandboxes *all = sb->all;
    int64_t now_us = clock_wall_us(), deadline_us = now_us + (int64_t)r->timeout_s * 1000000;
    int64_t revision = next_revision(sb);
    struct event_row event = record_resumed(sb, r->memory, &r->arena);

    if (!store_sandbox_change(
            all->config.store, str_from(sb->id),
            &(struct sandbox_change){
                .state = SANDBOX_ROW_RUNNING, .started_us = now_us, .deadline_us = deadline_us, .revision = revision },
            &event, err))
        return false;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    if (sb->state != SANDBOX_RESUMING)
        return set_gone(sb, err);
    sb->started_us = now_us;
    sandbox_set_clock(sb, deadline_us);
    sb->kept_us = deadline_us;
    sb->kept_revision = revision;
    sb->connections = CONNECTIONS_OPEN;
    sandbox_forget_pause(sb);
    sandbox_enter(sb, SANDBOX_RUNNING); /* if it has exited, the sweep finds it */
    metrics_begin(all->metrics, sb->team_id, str_from(sb->id), sb->cpu_count, now_us);
    turn_end(sb, &sb->resumes, NULL);
    return true;
}

/* Killed while we were at it: what the driver has started since then is nobody's. */
static void leave(struct sandbox *sb, const struct err *why)
{
    struct err err;
    bool gone;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        turn_end(sb, &sb->resumes, why);
    }
    /* The loop's stop may have come before our start. Fine if nothing is there. */
    if (!driver_stop_wait(sb->all->config.driver, sb->id, 0, &gone, &err))
        log_warn("sandbox %s: killed, and perhaps it runs until the server starts again: %s", sb->id, err_text(&err));
}

/* Does the driver really not hold it? If in doubt it does: what ends a sandbox that is paused removes its files. */
static bool is_lost(struct sandbox *sb, const struct err *why)
{
    unsigned now;

    return why->kind == ERR_NOT_FOUND && !why->sys && sandbox_ask_held(sb, &now) && now == HELD_NOT;
}

static void end_lost(struct sandbox *sb, struct err *err)
{
    struct err why;

    log_warn("sandbox %s: paused, and the driver has lost it: %s", sb->id, err_text(err));
    (void)err_set(err, ERR_NOT_FOUND, "Sandbox \"%s\" was paused and is lost", sb->id);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        turn_end(sb, &sb->resumes, err);
        if (sb->state != SANDBOX_RESUMING)
            return;
        sandbox_enter(sb, SANDBOX_ENDING);
        sb->reason = "orphaned";
    }
    if (!sandbox_end(sb, &why))
        log_warn("sandbox %s: not ended, will try again: %s", sb->id, err_text(&why));
}

static void undo_resume(struct resuming *r, struct err *err)
{
    struct sandbox *sb = r->sb;
    struct err gone;

    if (!sandbox_is_still(sb, SANDBOX_RESUMING, &gone)) {
        leave(sb, err);
        return;
    }
    if (is_lost(sb, err)) {
        end_lost(sb, err);
        return;
    }
    if (err->kind == ERR_NOT_FOUND)
        err->kind = ERR_INTERNAL; /* something that it needs */
    kind_for_asker(err);
    hold_again(r);
    enter_paused_again(sb, err);
    sandboxes_look(sb->all); /* it is to be written to disk as before */
}

/*
 * A front before us may have died while the driver wrote it to disk: we have found it frozen, and it is parked by now. Is it
 * held in another way than we know, and is what is wanted there?
 */
static bool is_held_otherwise(const struct resuming *r, const struct err *why)
{
    unsigned now;

    if (why->kind != ERR_NOT_FOUND || why->sys || !sandbox_ask_held(r->sb, &now) || now == HELD_NOT ||
        now == held_now(r->sb))
        return false;
    set_held(r->sb, (enum held_state)now);
    if (now == HELD_PARKED)
        set_memory(r->sb, false);
    return !(r->memory && now == HELD_PARKED);
}

static bool bring_back(struct resuming *r, struct err *err)
{
    return r->memory && held_now(r->sb) <= HELD_FROZEN ? thaw(r, err) : start_again(r, err);
}

/* In RESUMING: brings it back, or it is paused as before. */
static bool resume(struct sandbox *sb, enum resume_how how, uint64_t timeout_s, struct err *err)
{
    struct resuming r = { .sb = sb, .timeout_s = timeout_s };

    arena_init(&r.arena);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        r.memory = sb->has_memory && how == RESUME_AS_KEPT;
        if (!r.memory || sb->held > HELD_FROZEN)
            sb->exited = NULL; /* what has exited are processes of before */
    }
    bool ok = store_sandbox_change(sb->all->config.store, str_from(sb->id),
                                   &(struct sandbox_change){ .state = SANDBOX_ROW_RESUMING }, NULL, err) &&
              sandbox_is_still(sb, SANDBOX_RESUMING, err) &&
              (bring_back(&r, err) || (is_held_otherwise(&r, err) && bring_back(&r, err))) && run_again(&r, err);
    if (!ok)
        undo_resume(&r, err);
    arena_done(&r.arena);
    if (!ok)
        return err_wrap(err, "resume sandbox %s", sb->id);
    log_info("sandbox %s: resumed%s", sb->id, r.memory ? "" : " from its files");
    sandboxes_look(sb->all);
    return true;
}

/* May it be resumed now, in this way? With the lock held, in PAUSED. */
static bool may_resume(const struct sandbox *sb, enum resume_how how, struct err *err)
{
    if (sb->was_silent && sb->has_memory && how != RESUME_REBOOT)
        return err_set(err, ERR_CONFLICT,
                       "guestd of sandbox \"%s\" did not answer when it was paused: resume it with a reboot", sb->id);
    if (!sb->layer_count && !(sb->has_memory && how == RESUME_AS_KEPT))
        return err_set(err, ERR_CONFLICT, "Sandbox \"%s\" was started by an older version and cannot reboot", sb->id);
    bool starts = sb->held > HELD_FROZEN || how == RESUME_REBOOT;
    return sandbox_has_place(sb, err) && (!starts || sandboxes_have_left_little(sb->all, sb->paying_team_id, err));
}

enum resume_turn {
    RESUME_FAILS,
    RESUME_OURS,   /* it is RESUMING, and this worker does it */
    RESUME_JOINED, /* another has brought it back */
    RESUME_RUNS,   /* it ran all the time */
};

/* With the lock held. */
static enum resume_turn begin_resume(struct sandbox *sb, enum resume_how how, struct err *err)
{
    struct timespec until = clock_wait_until(SANDBOX_TURN_MS), place_until = clock_wait_until(SANDBOX_PLACE_MS);
    bool joined = false, ok = true, no_place = false;
    struct err ignored;

    while (ok) {
        switch (sb->state) {
        case SANDBOX_RUNNING:
            return joined ? RESUME_JOINED : RESUME_RUNS;
        case SANDBOX_PAUSED:
            if (sb->is_writing) {
                ok = sandbox_await_change(sb, &until, err);
                break;
            }
            if (!no_place && sandbox_place_is_coming(sb)) {
                no_place = !sandbox_await_change(sb, &place_until, &ignored); /* may_resume() says so */
                break;
            }
            ok = may_resume(sb, how, err);
            if (!ok)
                break;
            sandbox_enter(sb, SANDBOX_RESUMING);
            turn_begin(sb, &sb->resumes);
            return RESUME_OURS;
        case SANDBOX_RESUMING:
            if (how == RESUME_REBOOT)
                ok = err_set(err, ERR_CONFLICT, "Sandbox \"%s\" is being resumed already", sb->id);
            else
                ok = joined = join_turn(sb, &sb->resumes, &until, err);
            break;
        case SANDBOX_PAUSING:
        case SANDBOX_SNAPSHOTTING:
            ok = sandbox_await_change(sb, &until, err);
            break;
        case SANDBOX_STOPPING:
        case SANDBOX_ENDING:
            ok = err_set(err, ERR_CONFLICT, "Sandbox \"%s\" is being killed", sb->id);
            break;
        default:
            ok = set_gone(sb, err);
        }
    }
    return RESUME_FAILS;
}

/* Paused, on the way there, or back. */
static bool is_leaving(struct sandbox *sb)
{
    static const unsigned states =
        BIT(SANDBOX_PAUSING) | BIT(SANDBOX_PAUSED) | BIT(SANDBOX_RESUMING) | BIT(SANDBOX_SNAPSHOTTING);
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return BIT(sb->state) & states;
}

/* *out_overtaken: it ran, and was paused before its deadline was extended. The caller may ask again. */
static bool try_resume(struct sandboxes *all, struct str team_id, struct str id, const struct resume_want *want,
                       struct arena *arena, struct sandbox_info *out, bool *out_resumed, bool *out_overtaken,
                       struct err *err)
{
    enum resume_turn turn;
    struct sandbox *sb;

    *out_overtaken = false;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sb = sandbox_of_team(all, team_id, id, err);
        if (!sb)
            return false;
        if (want->only_paused && sandbox_state_is_running(sb->state))
            return err_set(err, ERR_CONFLICT, "Sandbox \"%s\" is running", sb->id);
        sandbox_ref(sb);
        turn = begin_resume(sb, want->how, err);
        if (turn == RESUME_RUNS && want->only_paused) { /* the pause that we waited for has failed */
            (void)err_set(err, ERR_CONFLICT, "Sandbox \"%s\" is running", sb->id);
            turn = RESUME_FAILS;
        }
    }
    bool ok = turn != RESUME_FAILS;
    if (turn == RESUME_OURS)
        ok = resume(sb, want->how, want->timeout_s, err) && sandbox_get(all, team_id, id, arena, out, err);
    else if (ok) {
        ok = sandbox_set_deadline(all, team_id, id, want->timeout_s, DEADLINE_EXTEND, arena, out, err);
        *out_overtaken = !ok && is_leaving(sb);
    }
    sandbox_unref(sb);
    if (ok)
        *out_resumed = turn != RESUME_RUNS;
    return ok;
}

/*
 * The only failure that is repeated: the call has failed with a state that the sandbox does not stay in. What could not be
 * brought back is not tried a second time. A caller who wants a reboot, or to resume what is paused, is told.
 */
bool sandbox_resume(struct sandboxes *all, struct str team_id, struct str id, const struct resume_want *want,
                    struct arena *arena, struct sandbox_info *out, bool *out_resumed, struct err *err)
{
    uint64_t most = all->config.timeout_max_s;
    bool may_repeat = !want->only_paused && want->how != RESUME_REBOOT, overtaken;

    if (want->timeout_s > most)
        return err_set(err, ERR_INVALID, "the timeout must be between 0 and %llu seconds", (unsigned long long)most);
    for (int round = 1;; round++) {
        if (try_resume(all, team_id, id, want, arena, out, out_resumed, &overtaken, err))
            return true;
        if (!overtaken || !may_repeat || round == RESUME_ROUNDS)
            return false;
    }
}

/* ---- woken by traffic ---- */

struct sandbox *sandbox_find_sleeping(struct sandboxes *all, struct str id)
{
    static const unsigned asleep = BIT(SANDBOX_PAUSING) | BIT(SANDBOX_PAUSED) | BIT(SANDBOX_RESUMING);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = map_get(&all->by_id, id);

    return sb && (BIT(sb->state) & asleep) && sb->lifecycle.auto_resume && sb->has_memory && !sb->was_silent
               ? sandbox_ref(sb)
               : NULL;
}

uint64_t sandbox_woken_s(const struct sandbox *sb)
{
    return MIN(MAX(sb->timeout_s, (uint64_t)WOKEN_S), sb->all->config.timeout_max_s);
}

bool sandbox_wake(struct sandbox *sb, struct err *err)
{
    enum resume_turn turn;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        turn = begin_resume(sb, RESUME_AS_KEPT, err);
    }
    return turn == RESUME_OURS ? resume(sb, RESUME_AS_KEPT, sandbox_woken_s(sb), err) : turn != RESUME_FAILS;
}

/* ---- after a restart ---- */

static bool keep_running(struct sandbox *sb, struct err *err)
{
    struct sandbox_change change = { .state = SANDBOX_ROW_RUNNING };

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        if (sb->state != SANDBOX_RUNNING)
            return true;
        sandbox_forget_pause(sb);
        change.started_us = sb->started_us;
        change.deadline_us = sb->deadline_us;
        change.revision = ++sb->revision;
    }
    return store_sandbox_change(sb->all->config.store, str_from(sb->id), &change, NULL, err);
}

/* Neither frozen nor parked, or it was killed: ends the turn. */
static void pause_came_to_nothing(struct pausing *p)
{
    struct err why;

    (void)err_set(&why, ERR_UNAVAILABLE, "the server was started again: the sandbox was not paused");
    undo_pause(p, HELD_RUNNING, &why);
}

/* `why`: it was not thawed. */
static void enter_paused_after_all(struct pausing *p, struct err *why)
{
    struct sandbox *sb = p->sb;
    unsigned now;

    if (why->kind != ERR_NOT_FOUND || !sandbox_ask_held(sb, &now) || now <= HELD_FROZEN) {
        log_warn("sandbox %s: found frozen and not thawed, so it is paused: %s", sb->id, err_text(why));
        now = HELD_FROZEN;
    }
    p->memory = now == HELD_FROZEN || (p->memory && now != HELD_PARKED);
    int64_t now_us = clock_wall_us();
    if (!keep_paused(p, now_us, next_revision(sb), why) && why->kind != ERR_NOT_FOUND)
        log_warn("sandbox %s: paused, which its row does not say yet: %s", sb->id, err_text(why));
    if (enter_paused(p, now == HELD_NOT ? HELD_PARKED : (enum held_state)now, now_us, why))
        log_info("sandbox %s: paused", sb->id);
    else
        pause_came_to_nothing(p);
}

void sandbox_pause_again(struct sandbox *sb)
{
    struct err err, gone;
    struct pausing p;

    bool runs = thaw_when_done(sb, SANDBOX_PAUSING, LIMIT_PAUSE_MS, &err);
    if (!runs && atomic_load(&sb->all->is_stopping))
        return; /* the next front finds it as we have */
    pausing_init(&p, sb, true, "request");
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        p.memory = sb->has_memory;
        p.answer = sb->was_silent ? GUEST_SILENT : GUEST_YES;
        p.envs = sb->envs ? arena_copy(&p.arena, str_from(sb->envs)) : STR("");
        sandbox_forget_pause(sb);
    }
    if (runs || !sandbox_is_still(sb, SANDBOX_PAUSING, &gone))
        pause_came_to_nothing(&p);
    else
        enter_paused_after_all(&p, &err);
    pausing_done(&p);
    sandboxes_look(sb->all); /* its deadline may have passed, or it is to be written to disk */
}

void sandbox_resume_again(struct sandbox *sb)
{
    struct resuming r = { .sb = sb, .memory = true };
    auto_close int fd = -1;
    struct err err;

    if (!sandbox_begin_link(sb))
        return;
    arena_init(&r.arena);
    bool ok = driver_link(sb->all->config.driver, sb->id, &fd, &err) && set_up_again(&r, take_fd(&fd), &err) &&
              keep_running(sb, &err);
    arena_done(&r.arena);
    if (!ok)
        log_warn("sandbox %s: was being resumed when the server ended, and does not answer: %s", sb->id,
                 err_text(&err));
    sandbox_end_link(sb);
}
