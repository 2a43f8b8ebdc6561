/*
 * Theory of operation. A process is an entry in one list, with a state that enter() alone changes. Events move it: its
 * report (spawn.h) says who it is and whether the program runs, SIGCHLD that its leader has exited, its pipes what it
 * prints. Each event does its part and then calls process_step(), which ends the process once nothing more can come.
 *
 * The pid is known only with the first report. Until then nobody can find the entry. If its deadline comes before that,
 * its watchers are told, and the entry stays, unwanted, until the report says whom to kill or that there is nobody.
 */
#include "guest/process.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/interpreter.h"
#include "guest/journal.h"
#include "guest/launch.h"
#include "guest/spawner.h"
#include "guest/tree.h"

enum process_state {
    STARTING,  /* a child was asked for, which has not told yet whether it got as far as the program */
    RUNNING,   /* its leader lives */
    LINGERING, /* the leader has exited, somebody still holds the output open */
    ENDED,     /* the end is known and kept for whoever asks late */
};

static const unsigned may_become[] = {
    [STARTING] = BIT(RUNNING) | BIT(ENDED), /* ended: it could not be started */
    [RUNNING] = BIT(LINGERING),
    [LINGERING] = BIT(ENDED),
    [ENDED] = 0,
};

enum {
    SOURCES_MAX = 2,              /* stdout and stderr, or a terminal */
    READS_PER_TURN = 8,           /* then the others have their turn */
    DRAIN_BYTES_MAX = 256 * 1024, /* of a killed process: what a pipe can hold, however fast others keep writing */
    LITTLE_BYTES = 64 * 1024,     /* kept for each process when all together keep too much */
};

/* One of the descriptors that output comes from. */
struct source {
    struct process *process;
    enum output_stream stream;
    int fd; /* -1: at its end */
    struct watch *watch;
};

struct process {
    struct processes *all;
    struct process *next, *previous;
    struct spawn_child child; /* its leader */
    enum process_state state;
    int status;        /* as wait(2) has it, once the leader is gone */
    bool is_collected; /* the leader: its number may be somebody else's by now */
    bool was_cut;      /* signalled or timed out: its end does not wait for the output's */
    bool is_unwanted;  /* to be killed as soon as it is known who it is */
    bool by_spawner;   /* the spawner was asked for it */
    bool has_pty;
    char *tag, *config;
    char *command; /* for the journal; NULL once it was told */
    int report_fd; /* -1: its start is known */
    struct watch *report_watch;
    struct timer start_wait;

    struct source sources[SOURCES_MAX];
    size_t source_count;
    struct output output;
    struct process_watcher *watchers;
    bool is_paused; /* a watcher is a whole queue behind */
    struct timer stall;

    int in_fd; /* -1: none, or closed */
    struct watch *in_watch;
    struct process_input *inputs, **inputs_end;
    bool closes_input; /* once the inputs are written */

    struct process_death *deaths;
    struct timer death_wait, deadline, forget;
};

struct processes {
    struct guest *guest;
    struct process *first, *last;
    size_t count, live;
    size_t config_bytes; /* of all configs together */
};

/* Where output is read to before it is known how much there is. Untouched pages cost nothing. */
static char read_room[OUTPUT_BLOCK_BYTES];

static void process_step(struct process *p);
static void input_step(struct process *p);

/* ---- the table ---- */

struct processes *processes_new(struct guest *guest)
{
    struct processes *all = NEW(struct processes);

    all->guest = guest;
    /* Orphans are ours to collect, commands among them: each start's first child exits. As pid 1 we get them anyway. */
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

static void close_source(struct source *source)
{
    watch_free(take_ptr(&source->watch));
    fd_close(&source->fd);
}

static void close_input(struct process *p)
{
    watch_free(take_ptr(&p->in_watch));
    fd_close(&p->in_fd);
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
    for (size_t i = 0; i < p->source_count; i++)
        close_source(&p->sources[i]);
    close_input(p);
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

/* The newest first: a pid may be used again while the end of its last holder is still kept. */
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

    if (p->watchers) /* somebody is still reading its last output */
        timer_set(&p->forget, p->all->guest->loop, LIMIT_RETAIN_MS, on_forget);
    else
        forget(p);
}

/* A watcher may detach itself while it is told, but no other. */
static void tell_watchers(struct process *p)
{
    for (struct process_watcher *w = p->watchers, *next; w; w = next) {
        next = w->next;
        w->step(w);
    }
}

static void finish_input(struct process *p, const struct err *err)
{
    struct process_input *input = p->inputs;

    p->inputs = input->next;
    if (!p->inputs)
        p->inputs_end = &p->inputs;
    input->process = NULL;
    input->done(input, err);
}

static void fail_inputs(struct process *p, const struct err *err)
{
    while (p->inputs)
        finish_input(p, err);
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

/* Known and not collected yet: the number is still its own. */
static bool leader_is_there(const struct process *p)
{
    return p->child.pid && (p->state == STARTING || p->state == RUNNING) && !p->is_collected;
}

static void kill_tree(struct process *p)
{
    struct tree tree = { .leader = p->child.pid, .session = p->child.session, .leader_lives = leader_is_there(p) };

    tree_kill(p->all->guest->loop, &tree);
}

static bool has_open_source(const struct process *p)
{
    for (size_t i = 0; i < p->source_count; i++)
        if (p->sources[i].fd >= 0)
            return true;
    return false;
}

static void drain(struct process *p);

static void end(struct process *p)
{
    struct err gone;

    drain(p);
    enter(p, ENDED);
    journal_ended(p->all->guest->journal, p->child.pid, p->status, p->output.end);
    p->all->live--;
    for (size_t i = 0; i < p->source_count; i++)
        close_source(&p->sources[i]);
    close_input(p);
    timer_clear(&p->deadline);
    timer_clear(&p->stall);
    (void)err_set(&gone, ERR_UNAVAILABLE, "the process has ended");
    fail_inputs(p, &gone);
    drop_config(p);
    timer_set(&p->forget, p->all->guest->loop, LIMIT_RETAIN_MS, on_forget);
    tell_watchers(p);
}

static void process_step(struct process *p)
{
    if (p->state == LINGERING && (p->was_cut || !has_open_source(p)))
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

/* It never was a process to anybody but those who wait for its start. */
static void fail_start(struct process *p, const struct err *err)
{
    /* Unwanted, it may have got far. Otherwise it is about to exit, unless it was stopped. It is collected later. */
    if (p->is_unwanted && p->child.pid)
        kill_tree(p);
    else if (leader_is_there(p))
        (void)kill(p->child.pid, SIGKILL);
    enter(p, ENDED);
    p->all->live--;
    struct process_watcher *w = take_ptr(&p->watchers);
    tell_deaths(p);
    fail_inputs(p, err);
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
    fail_inputs(p, err);
    tell_failed(take_ptr(&p->watchers), err);
}

/* What an ended process has left under this pid no longer answers to it. */
static void evict_pid(struct processes *all, pid_t pid)
{
    for (struct process *p = all->first, *next; p; p = next) {
        next = p->next;
        if (p->child.pid == pid && p->state == ENDED && !p->watchers)
            forget(p);
    }
}

/* False if there was no start, and hence no process any more. `collected`: a pid that has just been reaped, or 0. */
static bool start_step(struct process *p, pid_t collected)
{
    struct spawn_child child = p->child;
    struct err err;

    enum spawn_outcome outcome = spawn_outcome(p->report_fd, &child, &err);
    if (child.pid && !p->child.pid)
        evict_pid(p->all, child.pid);
    p->child = child;
    p->is_collected |= child.pid && child.pid == collected;
    /* It has reported all it ever will; the spawner may not have closed its end of the report yet. */
    if (outcome == SPAWN_UNKNOWN && p->is_collected)
        outcome = SPAWN_EXECUTED;
    if (p->is_unwanted && (child.pid || outcome == SPAWN_FAILED)) {
        (void)err_set(&err, ERR_TIMEOUT, "it came too late"); /* and nobody reads it */
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
        tell_watchers(p);
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

    (void)err_set(&err, ERR_TIMEOUT, "the sandbox has kept it from starting for %d ms", LIMIT_SPAWN_MS);
    if (!p->child.pid && p->by_spawner)
        spawner_restart(p->all->guest->spawner); /* which ends its report */
    give_up_start(p, &err);
}

/* Whose leader has just been reaped. Its report may stand behind its death, even the part that says who it is. */
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

/* ---- output ---- */

/* Room for one more block. What has ended and is watched by nobody goes first, and the oldest of it before the rest. */
static void make_output_room(struct processes *all)
{
    for (struct process *p = all->first; p && output_total() + OUTPUT_BLOCK_BYTES > LIMIT_OUTPUT_BYTES; p = p->next)
        if (p->state == ENDED && !p->watchers)
            output_done(&p->output);
}

static size_t cap_of(const struct process *p)
{
    (void)p;
    return output_total() > LIMIT_OUTPUT_BYTES ? LITTLE_BYTES : LIMIT_RING_BYTES;
}

/* Would one more read push out what this watcher has not got yet? */
static bool holds_up(const struct process *p, const struct process_watcher *w)
{
    return output_unread(&p->output, w->offset) + 2 * OUTPUT_BLOCK_BYTES > cap_of(p);
}

/*
 * What a read may make the queue grow to. Nothing that a watcher has yet to get is pushed out: holds_up() sees to that
 * while the process lives, and what is drained at its end, which is little and comes once, goes on top.
 */
static size_t cap_of_read(const struct process *p)
{
    size_t cap = cap_of(p);

    for (const struct process_watcher *w = p->watchers; w; w = w->next)
        cap = MAX(cap, output_unread(&p->output, w->offset) + 2 * OUTPUT_BLOCK_BYTES);
    return cap;
}

static bool is_held_up(const struct process *p)
{
    for (const struct process_watcher *w = p->watchers; w; w = w->next)
        if (holds_up(p, w))
            return true;
    return false;
}

static void on_stall(struct timer *timer)
{
    struct process *p = container_of(timer, struct process, stall);
    bool others_wait = false;

    for (struct process_watcher *w = p->watchers; w; w = w->next)
        others_wait |= !holds_up(p, w);
    if (!others_wait) {
        /* All are slow: then so is the process. One of them may yet catch up and wait for the others. */
        timer_set(&p->stall, p->all->guest->loop, LIMIT_STALL_MS, on_stall);
        return;
    }
    for (struct process_watcher *w = p->watchers, *next; w; w = next) {
        next = w->next;
        if (holds_up(p, w))
            w->cut(w, false);
    }
}

static void on_attach(struct timer *timer)
{
    struct process_watcher *w = container_of(timer, struct process_watcher, attach);

    if (w->inherits)
        w->offset = w->process->output.begin;
    w->is_undecided = false;
    w->step(w);
}

static void decide_soon(struct process_watcher *w)
{
    timer_set(&w->attach, w->process->all->guest->loop, 0, on_attach);
}

/* Read, or leave it in the pipe and let the process wait. */
static void pause_if_held_up(struct process *p)
{
    bool pause = is_held_up(p);

    if (pause == p->is_paused || p->state == ENDED) /* which nothing holds up: whoever is slow may take its time */
        return;
    p->is_paused = pause;
    for (size_t i = 0; i < p->source_count; i++)
        if (p->sources[i].fd >= 0)
            watch_want(p->sources[i].watch, pause ? 0 : WATCH_READ);
    if (!pause) {
        timer_clear(&p->stall);
        return;
    }
    timer_set(&p->stall, p->all->guest->loop, LIMIT_STALL_MS, on_stall);
    /* Nobody waits for a decision: who is new and has much to read is let go on. */
    for (struct process_watcher *w = p->watchers; w; w = w->next)
        if (w->is_undecided)
            decide_soon(w);
}

/* What one read gives. False at the end of the source, or when there is no more for now. */
static bool read_source(struct process *p, struct source *source)
{
    ssize_t n;

    do
        n = read(source->fd, read_room, sizeof read_room);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        make_output_room(p->all);
        output_add(&p->output, source->stream, str_of(read_room, (size_t)n), cap_of_read(p));
        return n == sizeof read_room;
    }
    /* A terminal says EIO when the last program has closed it. */
    if (n == 0 || errno != EAGAIN)
        close_source(source);
    return false;
}

static void on_source(void *context, unsigned ready)
{
    struct source *source = context;
    struct process *p = source->process;

    (void)ready;
    for (int i = 0; i < READS_PER_TURN; i++) {
        pause_if_held_up(p);
        if (p->is_paused || !read_source(p, source))
            break;
        tell_watchers(p);
    }
    tell_watchers(p);
    process_step(p);
}

/* What is in the pipes of a process that is over. Nobody waits for more than that. */
static void drain(struct process *p)
{
    for (size_t i = 0; i < p->source_count; i++) {
        uint64_t stop_at = p->output.end + DRAIN_BYTES_MAX;
        while (p->sources[i].fd >= 0 && p->output.end < stop_at) {
            uint64_t before = p->output.end;
            (void)read_source(p, &p->sources[i]);
            if (p->output.end == before)
                break;
        }
    }
}

void process_watch(struct process *p, struct process_watcher *w, const uint64_t *from)
{
    w->process = p;
    w->next = p->watchers;
    p->watchers = w;
    w->is_undecided = !from && w->next;
    if (from)
        w->offset = MIN(*from, p->output.end);
    else
        w->offset = w->next ? p->output.end : p->output.begin;
    if (w->is_undecided)
        timer_set(&w->attach, p->all->guest->loop, LIMIT_ATTACH_MS, on_attach);
}

void process_unwatch(struct process_watcher *w)
{
    struct process *p = w->process;

    if (!p)
        return;
    timer_clear(&w->attach);
    struct process_watcher **at = &p->watchers, *after = NULL;
    for (; *at != w; at = &(*at)->next)
        after = *at;
    *at = w->next;
    w->process = NULL;
    if (after && after->is_undecided && !after->next && !w->is_done) {
        after->inherits = true;
        decide_soon(after);
    }
    pause_if_held_up(p);
}

bool process_watcher_read(struct process_watcher *w, enum output_stream *out_stream, struct str *out_bytes)
{
    return w->process && !w->is_undecided && output_read(&w->process->output, &w->offset, out_stream, out_bytes);
}

void process_watcher_advance(struct process_watcher *w, size_t bytes)
{
    w->offset += bytes;
    if (w->process->is_paused)
        pause_if_held_up(w->process);
}

bool process_watcher_at_end(struct process_watcher *w, int *out_status)
{
    struct process *p = w->process;

    if (!p || w->is_undecided || p->state != ENDED || w->offset < p->output.end)
        return false;
    w->is_done = true;
    *out_status = p->status;
    return true;
}

/* ---- input ---- */

static void on_input_ready(void *context, unsigned ready)
{
    (void)ready;
    input_step(context);
}

/* Write until the pipe is full or nothing is left. */
static void input_step(struct process *p)
{
    struct err err;

    while (p->inputs && p->in_fd >= 0) {
        struct process_input *input = p->inputs;
        ssize_t n = input->bytes.len ? write(p->in_fd, input->bytes.at, input->bytes.len) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!p->in_watch)
                p->in_watch = watch_new(p->all->guest->loop, p->in_fd, on_input_ready, p);
            watch_want(p->in_watch, WATCH_WRITE);
            return;
        }
        if (n < 0) {
            (void)err_sys(&err, p->has_pty ? "error writing to tty" : "error writing to stdin");
            finish_input(p, &err);
            continue;
        }
        input->bytes.at += n;
        input->bytes.len -= (size_t)n;
        if (!input->bytes.len)
            finish_input(p, NULL);
    }
    if (p->in_watch)
        watch_want(p->in_watch, 0);
    if (p->closes_input && !p->inputs)
        close_input(p);
}

bool process_write(struct process *p, enum process_input_to to, struct process_input *input, struct err *err)
{
    if (to == PROCESS_PTY && !p->has_pty)
        return err_set(err, ERR_INTERNAL, "error writing to tty: tty not assigned to process");
    if (to == PROCESS_STDIN && p->has_pty)
        return err_set(err, ERR_INTERNAL, "error writing to stdin: tty assigned to process");
    if (p->in_fd < 0 || p->closes_input)
        return err_set(err, ERR_INTERNAL, "error writing to stdin: stdin not enabled or closed");
    input->process = p;
    input->next = NULL;
    *p->inputs_end = input;
    p->inputs_end = &input->next;
    if (p->inputs == input)
        input_step(p);
    return true;
}

void process_input_cancel(struct process_input *input)
{
    struct process *p = input->process;

    if (!p)
        return;
    struct process_input **at = &p->inputs;
    while (*at != input)
        at = &(*at)->next;
    *at = input->next;
    if (!*at)
        p->inputs_end = at;
    input->process = NULL;
    input_step(p);
}

bool process_close_input(struct process *p, struct err *err)
{
    if (p->has_pty)
        return err_set(err, ERR_INTERNAL,
                       "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead");
    p->closes_input = true;
    input_step(p);
    return true;
}

bool process_resize(struct process *p, uint16_t cols, uint16_t rows, struct err *err)
{
    struct winsize size = { .ws_col = cols, .ws_row = rows };

    if (!p->has_pty || p->sources[0].fd < 0)
        return err_set(err, ERR_INTERNAL, "error resizing tty: tty not assigned to process");
    if (ioctl(p->sources[0].fd, TIOCSWINSZ, &size) < 0)
        return err_sys(err, "error resizing tty");
    return true;
}

/* ---- signals ---- */

static void on_death_wait(struct timer *timer)
{
    tell_deaths(container_of(timer, struct process, death_wait));
}

void process_terminate(struct process *p)
{
    p->was_cut = true;
    /* Once collected, the number may be somebody else's. */
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

/* "cmd arg arg", as much of it as is told. */
static char *command_line(const struct process_want *want)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_LOG_TEXT_BYTES + 2); /* a byte more, so that a cut is seen as one */

    buf_add(&text, str_of(want->command.at, MIN(want->command.len, (size_t)LIMIT_LOG_TEXT_BYTES)));
    for (size_t i = 0; i < want->arg_count && text.len <= LIMIT_LOG_TEXT_BYTES; i++) {
        size_t room = LIMIT_LOG_TEXT_BYTES + 1 - text.len;
        buf_add_char(&text, ' ');
        buf_add(&text, str_of(want->args[i].at, MIN(want->args[i].len, room)));
    }
    return str_copy(buf_str(&text));
}

static void add_source(struct process *p, int fd, enum output_stream stream)
{
    struct source *source = &p->sources[p->source_count++];

    source->process = p;
    source->stream = stream;
    source->fd = fd;
    source->watch = watch_new(p->all->guest->loop, fd, on_source, source);
    watch_want(source->watch, WATCH_READ);
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
    add_source(p, take_fd(&launched->out_fd), want->has_pty ? OUTPUT_PTY : OUTPUT_STDOUT);
    if (!want->has_pty)
        add_source(p, take_fd(&launched->err_fd), OUTPUT_STDERR);
    p->previous = all->last;
    *(all->last ? &all->last->next : &all->first) = p;
    all->last = p;
    all->count++;
    all->live++;
    if (want->deadline_ms)
        timer_set(&p->deadline, all->guest->loop, want->deadline_ms, on_deadline);
    return p;
}

/* Room for one more, if need be by forgetting the process that ended first. */
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

/* What an ended process has left under the new one's tag no longer answers to it. */
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
        (void)err_set(err, ERR_LIMIT, "what runs has %d bytes of arguments and variables together", LIMIT_CONFIG_BYTES);
        return NULL;
    }
    if (!launch(all->guest, want, arena, &launched, err))
        return NULL;
    evict_tag(all, want->tag);
    return add_process(all, want, &launched);
}
