/*
 * process_output.c - what a process prints: read from its pipes or its terminal into a bounded queue (output.h), from
 * which watchers read at their own pace.
 *
 * Reading stops while a watcher is a whole queue behind; then the process waits, as on any pipe (backpressure). A
 * watcher that holds up others for LIMIT_STALL_MS is cut. A watcher that attaches while others watch is undecided for
 * LIMIT_ATTACH_MS, until it is known whether the others were its own client's broken connections: see process.h.
 */
#include <errno.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "guest/process_inside.h"

enum {
    READS_PER_TURN = 8,           /* then the others have their turn */
    DRAIN_BYTES_MAX = 256 * 1024, /* of a killed process: what a pipe holds, even if others keep writing */
    LITTLE_BYTES = 64 * 1024,     /* kept for each process when all together keep too much */
};

/* Output is read to here first. Untouched pages cost nothing. */
static char read_room[OUTPUT_BLOCK_BYTES];

/* ---- reading ---- */

static void close_source(struct source *source)
{
    watch_free(take_ptr(&source->watch));
    fd_close(&source->fd);
}

void process_close_sources(struct process *p)
{
    for (size_t i = 0; i < p->source_count; i++)
        close_source(&p->sources[i]);
}

bool process_has_open_source(const struct process *p)
{
    for (size_t i = 0; i < p->source_count; i++)
        if (p->sources[i].fd >= 0)
            return true;
    return false;
}

void process_tell_watchers(struct process *p)
{
    for (struct process_watcher *w = p->watchers, *next; w; w = next) {
        next = w->next;
        w->step(w);
    }
}

/* Room for one more block: drops output of ended processes without watchers, the oldest first. */
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

/* Would one more read drop what this watcher has not read yet? */
static bool holds_up(const struct process *p, const struct process_watcher *w)
{
    return output_unread(&p->output, w->offset) + 2 * OUTPUT_BLOCK_BYTES > cap_of(p);
}

/*
 * The size that a read may grow the queue to. Bytes that a watcher has not read are never dropped: while the process
 * lives, holds_up() prevents it; what is drained at its end is little, and the queue grows for it.
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
        /* All are slow, so the process waits. One of them may still catch up, and then the others hold it up. */
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

/* Stop reading while a watcher is a whole queue behind: the process waits. */
static void pause_if_held_up(struct process *p)
{
    bool pause = is_held_up(p);

    if (pause == p->is_paused || p->state == ENDED) /* an ended process waits for no watcher */
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
    /* A full queue must not wait for a decision: let undecided watchers read. */
    for (struct process_watcher *w = p->watchers; w; w = w->next)
        if (w->is_undecided)
            decide_soon(w);
}

/* One read. False at the end of the source, or when there is no more for now. */
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
    /* A terminal returns EIO when the last program has closed it. */
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
        process_tell_watchers(p);
    }
    process_tell_watchers(p);
    process_step(p);
}

void process_drain(struct process *p)
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

void process_add_source(struct process *p, int fd, enum output_stream stream)
{
    struct source *source = &p->sources[p->source_count++];

    source->process = p;
    source->stream = stream;
    source->fd = fd;
    source->watch = watch_new(p->all->guest->loop, fd, on_source, source);
    watch_want(source->watch, WATCH_READ);
}

/* ---- watching ---- */

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
