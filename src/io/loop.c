/*
 * One turn of the loop:
 *
 *   wait      epoll_wait() returns when a descriptor is ready, a thread or a signal handler has written to wake_fd, or
 *             the nearest timer is due
 *   dispatch  ready watches fire; wake_fd's own watch runs posted tasks and signal callbacks
 *   timers    due timers run, from a heap of embedded timers; those set meanwhile wait for the next turn
 *   free      retired objects are freed
 *
 * What one epoll_wait() returns is a batch. A watch that a callback pauses or frees is also taken out of the rest of
 * the batch: it cannot fire any more, and its descriptor may be closed and the number used again at once.
 */
#include "io/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"

enum { BATCH = 256 }; /* descriptors served per turn; the kernel keeps the rest for the next one */

struct watch {
    struct loop *loop;
    int fd;
    unsigned wanted; /* 0: not in epoll's set */
    watch_fn *fn;
    void *context;
};

struct retired {
    void *object;
    void (*free_fn)(void *object);
};

struct signal_watch {
    int number;
    signal_fn *fn;
    void *context;
    struct signal_watch *next;
};

struct loop {
    int epoll_fd, wake_fd;
    struct watch *wake;
    uint64_t now_ms;
    _Atomic pthread_t thread; /* read by any thread that asks whether it is this one */

    struct epoll_event batch[BATCH]; /* data.ptr is the watch, or NULL once it was taken out */
    int batch_at, batch_len;
    size_t watches;

    struct timer **heap; /* 1-based; the parent of i is i / 2 */
    size_t heap_len, heap_room;
    uint64_t timer_seq;

    struct retired *retired;
    size_t retired_len, retired_room;
    struct signal_watch *signals;
    bool is_stopped; /* leave loop_run() when this turn ends */

    pthread_mutex_t lock; /* guards posted_… */
    struct loop_task *posted_first, *posted_last;
    atomic_bool stopping;
};

/* ---- timers ---- */

static bool earlier(const struct timer *a, const struct timer *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->seq < b->seq;
}

static void heap_put(struct loop *loop, size_t i, struct timer *timer)
{
    loop->heap[i] = timer;
    timer->heap_index = i;
}

static void heap_up(struct loop *loop, size_t i, struct timer *timer)
{
    for (; i > 1 && earlier(timer, loop->heap[i / 2]); i /= 2)
        heap_put(loop, i, loop->heap[i / 2]);
    heap_put(loop, i, timer);
}

static void heap_down(struct loop *loop, size_t i, struct timer *timer)
{
    for (size_t child; (child = 2 * i) <= loop->heap_len; i = child) {
        if (child < loop->heap_len && earlier(loop->heap[child + 1], loop->heap[child]))
            child++;
        if (!earlier(loop->heap[child], timer))
            break;
        heap_put(loop, i, loop->heap[child]);
    }
    heap_put(loop, i, timer);
}

void timer_clear(struct timer *timer)
{
    struct loop *loop = timer->loop;
    size_t i = timer->heap_index;

    if (i == 0)
        return;
    struct timer *last = loop->heap[loop->heap_len--];
    timer->heap_index = 0;
    if (last == timer)
        return;
    if (i > 1 && earlier(last, loop->heap[i / 2]))
        heap_up(loop, i, last);
    else
        heap_down(loop, i, last);
}

void timer_set(struct timer *timer, struct loop *loop, uint64_t after_ms, timer_fn *fn)
{
    timer_clear(timer);
    timer->loop = loop;
    timer->due_ms = loop->now_ms + after_ms;
    timer->seq = ++loop->timer_seq;
    timer->fn = fn;
    if (loop->heap_len + 1 >= loop->heap_room) {
        loop->heap_room = loop->heap_room ? 2 * loop->heap_room : 64;
        loop->heap = mem_grow(loop->heap, loop->heap_room * sizeof *loop->heap);
    }
    heap_up(loop, ++loop->heap_len, timer);
}

static void run_due_timers(struct loop *loop)
{
    uint64_t now = loop->now_ms, newest = loop->timer_seq;

    /* Those that callbacks set meanwhile sort behind, and wait for the next turn. */
    while (loop->heap_len && loop->heap[1]->due_ms <= now && loop->heap[1]->seq <= newest) {
        struct timer *timer = loop->heap[1];
        timer_clear(timer);
        timer->fn(timer);
    }
}

/* ---- turns ---- */

static void free_retired(struct loop *loop)
{
    /* By index: freeing one object may retire another. */
    for (size_t i = 0; i < loop->retired_len; i++) {
        struct retired one = loop->retired[i];
        one.free_fn(one.object);
    }
    loop->retired_len = 0;
}

void loop_retire(struct loop *loop, void *object, void (*free_fn)(void *object))
{
    if (loop->retired_len == loop->retired_room) {
        loop->retired_room = loop->retired_room ? 2 * loop->retired_room : 32;
        loop->retired = mem_grow(loop->retired, loop->retired_room * sizeof *loop->retired);
    }
    loop->retired[loop->retired_len++] = (struct retired){ object, free_fn };
}

static int wait_ms(const struct loop *loop)
{
    if (loop->heap_len == 0)
        return -1;
    uint64_t due_ms = loop->heap[1]->due_ms;
    return due_ms <= loop->now_ms ? 0 : (int)MIN(due_ms - loop->now_ms, (uint64_t)INT_MAX);
}

static void dispatch(struct loop *loop)
{
    for (loop->batch_at = 0; loop->batch_at < loop->batch_len; loop->batch_at++) {
        struct watch *watch = loop->batch[loop->batch_at].data.ptr;
        uint32_t events = loop->batch[loop->batch_at].events;
        if (!watch)
            continue;
        unsigned ready = (events & EPOLLIN ? WATCH_READ : 0u) | (events & EPOLLOUT ? WATCH_WRITE : 0u) |
                         (events & EPOLLRDHUP ? WATCH_HANGUP : 0u);
        ready &= watch->wanted; /* an earlier callback of this batch may have changed it */
        /* The kernel reports these unasked. Whatever the owner waits for, trying it returns the error or the end. */
        if (events & EPOLLERR || (events & EPOLLHUP && !ready))
            ready = watch->wanted;
        if (ready)
            watch->fn(watch->context, ready);
    }
    loop->batch_len = 0;
}

void loop_run(struct loop *loop)
{
    loop->thread = pthread_self();
    loop->now_ms = clock_mono_ms();
    loop->is_stopped = false;
    free_retired(loop);
    while (!loop->is_stopped) {
        int count = epoll_wait(loop->epoll_fd, loop->batch, BATCH, wait_ms(loop));
        if (count < 0 && errno != EINTR)
            log_die("loop: epoll_wait: %s", strerror(errno));
        loop->batch_len = MAX(count, 0);
        loop->now_ms = clock_mono_ms();
        dispatch(loop);
        run_due_timers(loop);
        free_retired(loop);
    }
}

bool loop_is_here(const struct loop *loop)
{
    return pthread_equal(loop->thread, pthread_self());
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return loop->now_ms;
}

/* ---- descriptors ---- */

struct watch *watch_new(struct loop *loop, int fd, watch_fn *fn, void *context)
{
    struct watch *watch = NEW(struct watch);

    *watch = (struct watch){ .loop = loop, .fd = fd, .fn = fn, .context = context };
    (void)ioctl(fd, FIONBIO, &(int){ 1 }); /* a bad descriptor is found by watch_want() */
    loop->watches++;
    return watch;
}

void watch_want(struct watch *watch, unsigned events)
{
    struct loop *loop = watch->loop;
    struct epoll_event event = {
        .events = (events & WATCH_READ ? EPOLLIN : 0u) | (events & WATCH_WRITE ? EPOLLOUT : 0u) |
                  (events & WATCH_HANGUP ? EPOLLRDHUP : 0u),
        .data.ptr = watch,
    };

    if (watch->wanted == events)
        return;
    /* A paused watch leaves the set: the kernel would go on reporting errors and hang-ups. */
    int change = events == 0 ? EPOLL_CTL_DEL : watch->wanted == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    /*
     * A descriptor that cannot be waited for, is watched twice or was closed while watched is a mistake of ours. Going
     * on is no choice: epoll keeps a description that a child of ours still holds, and would report a freed watch.
     * ENOMEM and ENOSPC end us too: nothing would serve the descriptor.
     */
    if (epoll_ctl(loop->epoll_fd, change, watch->fd, &event) < 0)
        log_die("loop: watch descriptor %d: %s", watch->fd, strerror(errno));
    watch->wanted = events;
    for (int i = loop->batch_at; events == 0 && i < loop->batch_len; i++)
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
}

void watch_free(struct watch *watch)
{
    if (!watch)
        return;
    watch_want(watch, 0);
    watch->loop->watches--;
    free(watch);
}

/* ---- tasks and signals ---- */

/* From any thread, and from a signal handler. */
static void wake(const struct loop *loop)
{
    (void)!write(loop->wake_fd, &(uint64_t){ 1 }, sizeof(uint64_t)); /* fails only when a wake-up is pending anyway */
}

void loop_post(struct loop *loop, struct loop_task *task)
{
    task->next = NULL;
    (void)pthread_mutex_lock(&loop->lock);
    bool is_first = !loop->posted_first;
    *(is_first ? &loop->posted_first : &loop->posted_last->next) = task;
    loop->posted_last = task;
    (void)pthread_mutex_unlock(&loop->lock);
    if (is_first)
        wake(loop);
}

void loop_stop_soon(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
}

/* A handler may do no more than note the signal. Plain handlers and no signalfd: children would inherit its mask. */
static struct loop *_Atomic signal_loop;
static _Atomic uint64_t signals_pending;

static void note_signal(int number)
{
    int saved = errno;

    atomic_fetch_or(&signals_pending, UINT64_C(1) << (number - 1));
    wake(signal_loop);
    errno = saved;
}

static void run_signals(struct loop *loop)
{
    uint64_t pending = loop->signals ? atomic_exchange(&signals_pending, 0) : 0;

    for (struct signal_watch *s = loop->signals; s && pending; s = s->next)
        if (pending & UINT64_C(1) << (s->number - 1))
            s->fn(s->context, s->number);
}

bool loop_on_signal(struct loop *loop, int signal_number, signal_fn *fn, void *context, struct err *err)
{
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART };

    assert(!signal_loop || signal_loop == loop);
    signal_loop = loop;
    if (sigaction(signal_number, &action, NULL) < 0)
        return err_sys(err, "watch for signal %d", signal_number);
    struct signal_watch *watch = NEW(struct signal_watch);
    *watch = (struct signal_watch){ signal_number, fn, context, loop->signals };
    loop->signals = watch;
    return true;
}

static void on_wake(void *context, unsigned ready)
{
    struct loop *loop = context;
    uint64_t count;

    (void)ready;
    (void)!read(loop->wake_fd, &count, sizeof count); /* before the queue is taken, or a post could be missed */
    (void)pthread_mutex_lock(&loop->lock);
    struct loop_task *task = loop->posted_first;
    loop->posted_first = loop->posted_last = NULL;
    (void)pthread_mutex_unlock(&loop->lock);
    while (task) {
        struct loop_task *next = task->next; /* the task's memory is its owner's once fn runs */
        task->fn(task);
        task = next;
    }
    run_signals(loop);
    if (atomic_exchange(&loop->stopping, false))
        loop->is_stopped = true;
}

/* ---- the loop ---- */

struct loop *loop_new(void)
{
    struct loop *loop = NEW(struct loop);

    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll_fd < 0 || loop->wake_fd < 0)
        log_die("loop: make an event loop: %s", strerror(errno));
    (void)pthread_mutex_init(&loop->lock, NULL);
    loop->now_ms = clock_mono_ms();
    loop->thread = pthread_self();
    loop->wake = watch_new(loop, loop->wake_fd, on_wake, loop);
    watch_want(loop->wake, WATCH_READ);
    return loop;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    free_retired(loop);
    watch_free(loop->wake);
    if (loop->watches)
        log_die("loop: freed while %zu descriptors are still watched", loop->watches);
    for (struct signal_watch *s = loop->signals, *next; s; s = next) {
        next = s->next;
        (void)signal(s->number, SIG_DFL);
        free(s);
    }
    if (signal_loop == loop)
        signal_loop = NULL; /* no handler is left that would use it */
    fd_close(&loop->wake_fd);
    fd_close(&loop->epoll_fd);
    (void)pthread_mutex_destroy(&loop->lock);
    /* Timers that are still set belong to others; they must not find a heap that is gone. */
    for (size_t i = 1; i <= loop->heap_len; i++)
        loop->heap[i]->heap_index = 0;
    free(loop->heap);
    free(loop->retired);
    free(loop);
}
