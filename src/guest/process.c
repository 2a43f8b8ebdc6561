/*
 * process.c - the life of a process: an entry in one list, with a state that only enter() changes. Three kinds of
 * events advance it: its report (spawn.h) gives its pid and says whether the program was executed; SIGCHLD says that
 * its leader has exited; its pipes say when nothing more is printed. Each handler does its part and then calls
 * process_step(), which ends the process once nothing more can come.
 *
 * Until the first report gives the pid, the process cannot be looked up. If its deadline comes before that, its
 * watchers are told, and the entry stays (is_unwanted) until the report gives the pid to kill, or ends.
 */
#include "guest/process_inside.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/interpreter.h"
#include "guest/journal.h"
#include "guest/launch.h"
#include "guest/spawner.h"
#include "guest/tree.h"

static const unsigned may_become[] = {
    [STARTING] = BIT(RUNNING) | BIT(ENDED), /* ended: it could not be started */
    [RUNNING] = BIT(LINGERING),
    [LINGERING] = BIT(ENDED),
    [ENDED] = 0,
};

/* ---- the table ---- */

struct processes *processes_new(struct guest *guest)
{
    struct processes *all = NEW(struct processes);

    all->guest = guest;
    /* We reap orphans, and every command is one: the first child of each start exits. As pid 1 we get them anyway. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    return all;
}

static void dispose(void *object)
{
    struct process *p = object;

    output_done(&p->output);
    free(p->tag);
    free(p->command);
    free(p);
}

static void close_report(struct process *p)
{
    timer_clear(&p->start_wait);
    watch_free(take_ptr(&p->report_watch));
    fd_close(&p->report_fd);
}

static void drop_config(struct process *p)
{
    p->all->config_bytes -= p->config ? strlen(p->config) : 0;
    free(take_ptr(&p->config));
}

static void let_go(struct process *p)
{
    close_report(p);
    drop_config(p);
    timer_clear(&p->stall);
    timer_clear(&p->death_wait);
    timer_clear(&p->deadline);
    timer_clear(&p->forget);
    process_close_sources(p);
    process_end_input(p);
}

static void forget(struct process *p)
{
    struct processes *all = p->all;

    assert(p->state == ENDED && !p->watchers);
    let_go(p);
    *(p->previous ? &p->previous->next : &all->first) = p->next;
    *(p->next ? &p->next->previous : &all->last) = p->previous;
    all->count--;
    loop_retire(all->guest->loop, p, dispose);
}

void processes_free(struct processes *all)
{
    if (!all)
        return;
    for (struct process *p = all->first, *next; p; p = next) {
        next = p->next;
        let_go(p);
        dispose(p);
    }
    free(all);
}

static bool is_wanted(const struct process *p, enum process_which which)
{
    return p->child.pid && (which == PROCESS_KEPT || p->state != ENDED);
}

/* The newest first: a pid may be used again while its last holder is still kept. */
struct process *process_by_pid(struct processes *all, pid_t pid, enum process_which which)
{
    for (struct process *p = all->last; p; p = p->previous)
        if (p->child.pid == pid && is_wanted(p, which))
            return p;
    return NULL;
}

struct process *process_by_tag(struct processes *all, struct str tag, enum process_which which)
{
    for (struct process *p = all->last; p; p = p->previous)
        if (p->tag && str_eq(str_from(p->tag), tag) && is_wanted(p, which))
            return p;
    return NULL;
}

struct process *process_next(struct processes *all, struct process *after)
{
    struct process *p = after ? after->next : all->first;

    while (p && !is_wanted(p, PROCESS_LIVE))
        p = p->next;
    return p;
}

pid_t process_pid(const struct process *p)
{
    return p->child.pid;
}

bool process_has_started(const struct process *p)
{
    return p->state != STARTING;
}

const char *process_tag(const struct process *p)
{
    return p->tag;
}

struct str process_config(const struct process *p)
{
    return str_from(p->config);
}

/* ---- states ---- */

static void enter(struct process *p, enum process_state next)
{
    if (!(may_become[p->state] & BIT(next)))
        log_die("process %d: from state %d to %d", (int)p->child.pid, (int)p->state, (int)next);
    p->state = next;
}

static void on_forget(struct timer *timer)
{
    struct process *p = container_of(timer, struct process, forget);

    if (p->watchers) /* still being read */
        timer_set(&p->forget, p->all->guest->loop, LIMIT_RETAIN_MS, on_forget);
    else
        forget(p);
}

static void tell_deaths(struct process *p)
{
    timer_clear(&p->death_wait);
    while (p->deaths) {
        struct process_death *death = p->deaths;
        p->deaths = death->next;
        death->process = NULL;
        death->done(death);
    }
}

/* The pid is known and not reaped yet, so it cannot be another process's. */
static bool leader_is_there(const struct process *p)
{
    return p->child.pid && (p->state == STARTING || p->state == RUNNING) && !p->is_collected;
}

static void kill_tree(struct process *p)
{
    struct tree tree = { .leader = p->child.pid, .session = p->child.session, .leader_lives = leader_is_there(p) };

    tree_kill(p->all->guest->loop, &tree);
}

static void end(struct process *p)
{
    struct err gone;

    process_drain(p);
    enter(p, ENDED);
    journal_ended(p->all->guest->journal, p->child.pid, p->status, p->output.end);
    p->all->live--;
    process_close_sources(p);
    process_end_input(p);
    timer_clear(&p->deadline);
    timer_clear(&p->stall);
    (void)err_set(&gone, ERR_UNAVAILABLE, "the process has ended");
    process_fail_inputs(p, &gone);
    drop_config(p);
    timer_set(&p->forget, p->all->guest->loop, LIMIT_RETAIN_MS, on_forget);
    process_tell_watchers(p);
}

void process_step(struct process *p)
{
    if (p->state == LINGERING && (p->was_cut || !process_has_open_source(p)))
        end(p);
}

/* ---- the start ---- */

static void tell_failed(struct process_watcher *w, const struct err *err)
{
    for (struct process_watcher *next; w; w = next) {
        next = w->next;
        w->process = NULL;
        timer_clear(&w->attach);
        w->failed(w, err);
    }
}

/* The start has failed: remove the entry and tell its watchers. */
static void fail_start(struct process *p, const struct err *err)
{
    /*
     * If it was unwanted, the program may run already. Otherwise it is about to exit, unless it was stopped. Reaped
     * later.
     */
    if (p->is_unwanted && p->child.pid)
        kill_tree(p);
    else if (leader_is_there(p))
        (void)kill(p->child.pid, SIGKILL);
    enter(p, ENDED);
    p->all->live--;
    struct process_watcher *w = take_ptr(&p->watchers);
    tell_deaths(p);
    process_fail_inputs(p, err);
    forget(p);
    tell_failed(w, err);
}

/* It has taken too long. */
static void give_up_start(struct process *p, const struct err *err)
{
    if (p->child.pid) {
        fail_start(p, err);
        return;
    }
    p->is_unwanted = true;
    process_fail_inputs(p, err);
    tell_failed(take_ptr(&p->watchers), err);
}

/* An ended process no longer answers to a pid that is used again. */
static void evict_pid(struct processes *all, pid_t pid)
{
    for (struct process *p = all->first, *next; p; p = next) {
        next = p->next;
        if (p->child.pid == pid && p->state == ENDED && !p->watchers)
            forget(p);
    }
}

/* False if the start has failed and the process is gone. `collected`: a pid that was just reaped, or 0. */
static bool start_step(struct process *p, pid_t collected)
{
    struct spawn_child child = p->child;
    struct err err;

    enum spawn_outcome outcome = spawn_outcome(p->report_fd, &child, &err);
    if (child.pid && !p->child.pid)
        evict_pid(p->all, child.pid);
    p->child = child;
    p->is_collected |= child.pid && child.pid == collected;
    /* It cannot report any more, but the spawner may not have closed its end of the report yet. */
    if (outcome == SPAWN_UNKNOWN && p->is_collected)
        outcome = SPAWN_EXECUTED;
    if (p->is_unwanted && (child.pid || outcome == SPAWN_FAILED)) {
        (void)err_set(&err, ERR_TIMEOUT, "it came too late"); /* not shown to anyone */
        fail_start(p, &err);
        return false;
    }
    switch (outcome) {
    case SPAWN_UNKNOWN:
        break;
    case SPAWN_EXECUTED:
        close_report(p);
        enter(p, RUNNING);
        journal_started(p->all->guest->journal, p->child.pid, str_from(p->command));
        free(take_ptr(&p->command));
        process_tell_watchers(p);
        break;
    case SPAWN_FAILED:
        fail_start(p, &err);
        return false;
    }
    return true;
}

static void on_report(void *context, unsigned ready)
{
    (void)ready;
    (void)start_step(context, 0);
}

static void on_start_wait(struct timer *timer)
{
    struct process *p = container_of(timer, struct process, start_wait);
    struct err err;

    (void)err_set(&err, ERR_TIMEOUT,
                  "it could not start within %d ms: the sandbox is too busy, or a guest process stopped it",
                  LIMIT_SPAWN_MS);
    if (!p->child.pid && p->by_spawner)
        spawner_restart(p->all->guest->spawner); /* ends the report */
    give_up_start(p, &err);
}

/* The process whose leader was just reaped. Its report, even the one with its pid, may not have been read yet. */
static struct process *by_reaped(struct processes *all, pid_t pid)
{
    for (struct process *p = all->last; p; p = p->previous)
        if (p->child.pid == pid && leader_is_there(p)) {
            p->is_collected = true;
            return p->state != STARTING || start_step(p, pid) ? p : NULL;
        }
    for (struct process *p = all->first, *next; p; p = next) {
        next = p->next;
        if (p->state == STARTING && !p->child.pid && start_step(p, pid) && p->child.pid == pid)
            return p;
    }
    return NULL;
}

void processes_reap(struct processes *all)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        interpreter_reaped(all->guest->interpreter, pid, status);
        struct process *p = by_reaped(all, pid);
        if (!p)
            continue; /* an orphan of the sandbox, the first child of a start, the spawner, a start that has failed */
        p->status = status;
        enter(p, LINGERING);
        tell_deaths(p);
        process_step(p);
    }
}

/* ---- signals ---- */

static void on_death_wait(struct timer *timer)
{
    tell_deaths(container_of(timer, struct process, death_wait));
}

void process_terminate(struct process *p)
{
    p->was_cut = true;
    /* Once reaped, the pid may be another process's. */
    if (leader_is_there(p))
        (void)kill(p->child.pid, SIGTERM);
    process_step(p);
}

void process_kill(struct process *p, struct process_death *death)
{
    p->was_cut = true;
    kill_tree(p);
    if (death && leader_is_there(p)) {
        death->process = p;
        death->next = p->deaths;
        p->deaths = death;
        timer_set(&p->death_wait, p->all->guest->loop, LIMIT_KILL_WAIT_MS, on_death_wait);
    } else if (death) {
        death->process = NULL;
        death->done(death);
    }
    process_step(p);
}

void process_death_cancel(struct process_death *death)
{
    struct process *p = death->process;

    if (!p)
        return;
    struct process_death **at = &p->deaths;
    while (*at != death)
        at = &(*at)->next;
    *at = death->next;
    death->process = NULL;
}

static void on_deadline(struct timer *timer)
{
    struct process *p = container_of(timer, struct process, deadline);

    for (struct process_watcher *w = p->watchers, *next; w; w = next) {
        next = w->next;
        if (w->has_deadline)
            w->cut(w, true);
    }
    if (p->child.pid) {
        process_kill(p, NULL);
        return;
    }
    struct err err;
    (void)err_set(&err, ERR_TIMEOUT, "its deadline came before it had started");
    give_up_start(p, &err);
}

/* ---- starting ---- */

/* "cmd arg arg", up to LIMIT_LOG_TEXT_BYTES. */
static char *command_line(const struct process_want *want)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_LOG_TEXT_BYTES + 2); /* a byte more shows that it was cut */

    buf_add(&text, str_of(want->command.at, MIN(want->command.len, (size_t)LIMIT_LOG_TEXT_BYTES)));
    for (size_t i = 0; i < want->arg_count && text.len <= LIMIT_LOG_TEXT_BYTES; i++) {
        size_t room = LIMIT_LOG_TEXT_BYTES + 1 - text.len;
        buf_add_char(&text, ' ');
        buf_add(&text, str_of(want->args[i].at, MIN(want->args[i].len, room)));
    }
    return str_copy(buf_str(&text));
}

/* Takes the descriptors. */
static struct process *add_process(struct processes *all, const struct process_want *want, struct launch *launched)
{
    struct process *p = NEW(struct process);

    p->all = all;
    p->by_spawner = launched->by_spawner;
    p->report_fd = take_fd(&launched->report_fd);
    p->report_watch = watch_new(all->guest->loop, p->report_fd, on_report, p);
    watch_want(p->report_watch, WATCH_READ);
    timer_set(&p->start_wait, all->guest->loop, LIMIT_SPAWN_MS, on_start_wait);
    p->has_pty = want->has_pty;
    p->tag = want->tag ? mem_copy_text(want->tag) : NULL;
    p->config = str_copy(want->config);
    p->command = command_line(want);
    all->config_bytes += want->config.len;
    p->inputs_end = &p->inputs;
    p->in_fd = take_fd(&launched->in_fd);
    process_add_source(p, take_fd(&launched->out_fd), want->has_pty ? OUTPUT_PTY : OUTPUT_STDOUT);
    if (!want->has_pty)
        process_add_source(p, take_fd(&launched->err_fd), OUTPUT_STDERR);
    p->previous = all->last;
    *(all->last ? &all->last->next : &all->first) = p;
    all->last = p;
    all->count++;
    all->live++;
    if (want->deadline_ms)
        timer_set(&p->deadline, all->guest->loop, want->deadline_ms, on_deadline);
    return p;
}

/* Make room for one more, if need be by forgetting the process that ended first. */
static bool make_room(struct processes *all, struct err *err)
{
    struct process *p = all->first;

    if (all->count < LIMIT_PROCESSES)
        return true;
    while (p && (p->state != ENDED || p->watchers))
        p = p->next;
    if (!p)
        return err_set(err, ERR_LIMIT, "%d processes run already", LIMIT_PROCESSES);
    forget(p);
    return true;
}

/* An ended process no longer answers to a tag that is used again. */
static void evict_tag(struct processes *all, const char *tag)
{
    for (struct process *p = all->first, *next; p; p = next) {
        next = p->next;
        if (tag && p->tag && strcmp(p->tag, tag) == 0 && p->state == ENDED && !p->watchers)
            forget(p);
    }
}

struct process *process_start_new(struct processes *all, const struct process_want *want, struct arena *arena,
                                  struct err *err)
{
    auto_launch struct launch launched = LAUNCH_NONE;

    if (!make_room(all, err))
        return NULL;
    if (all->config_bytes + want->config.len > LIMIT_CONFIG_BYTES) {
        (void)err_set(err, ERR_LIMIT,
                      "the running processes have more than %d bytes of arguments and variables together",
                      LIMIT_CONFIG_BYTES);
        return NULL;
    }
    if (!launch(all->guest, want, arena, &launched, err))
        return NULL;
    evict_tag(all, want->tag);
    return add_process(all, want, &launched);
}
