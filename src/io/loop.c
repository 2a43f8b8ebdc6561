/*
 * One turn of the loop, on top of libuv's phases:
 *
 *   prepare   free what was retired, then decide how long to wait: until the nearest timer, or not at all
 *   poll      watches fire, posted tasks run, signals arrive
 *   check     due timers run, then what was retired is freed
 *
 * libuv's own timer only bounds the wait; which timers are due is decided here, from a heap of embedded timers. So
 * clearing one is a removal from the heap and takes effect at once, and a timer that is set to "now" by a callback runs
 * at the end of the same turn without ever starving the descriptors.
 */
#include "io/loop.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#include "base/log.h"
#include "base/mem.h"

struct retired {
    void *object;
    void (*free_fn)(void *object);
};

struct signal_watch {
    uv_signal_t handle;
    signal_fn *fn;
    void *context;
    struct signal_watch *next;
};

struct loop {
    uv_loop_t uv;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t awake;          /* active while a timer is already due: keeps poll from waiting */
    uv_timer_t alarm;         /* ends poll when the nearest timer is due */
    uint64_t alarm_ms;        /* what the alarm is set to, 0 when it is not */
    _Atomic pthread_t thread; /* read by any thread that asks whether it is this one */

    struct timer **heap; /* 1-based; the parent of i is i / 2 */
    size_t heap_len, heap_room;
    uint64_t timer_seq;

    struct retired *retired;
    size_t retired_len, retired_room;
    size_t watches;
    struct signal_watch *signals;

    uv_async_t wake;
    pthread_mutex_t lock; /* over what other threads touch: */
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
    timer->due_ms = uv_now(&loop->uv) + after_ms;
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
    uint64_t now = uv_now(&loop->uv), newest = loop->timer_seq;

    /* Those that callbacks set meanwhile sort behind, and wait for the next turn. */
    while (loop->heap_len && loop->heap[1]->due_ms <= now && loop->heap[1]->seq <= newest) {
        struct timer *timer = loop->heap[1];
        timer_clear(timer);
        timer->fn(timer);
    }
}

static void on_alarm(uv_timer_t *alarm)
{
    struct loop *loop = alarm->data;

    loop->alarm_ms = 0; /* it has ended the wait; the check phase does the rest */
}

/* ---- turns ---- */

static void on_awake(uv_idle_t *idle)
{
    (void)idle;
}

static void free_retired(struct loop *loop)
{
    /* By index: freeing one thing may retire another. */
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

static void on_prepare(uv_prepare_t *prepare)
{
    struct loop *loop = prepare->data;

    free_retired(loop);
    uint64_t now = uv_now(&loop->uv), due = loop->heap_len ? loop->heap[1]->due_ms : UINT64_MAX;
    if (due <= now) {
        (void)uv_idle_start(&loop->awake, on_awake);
        return;
    }
    (void)uv_idle_stop(&loop->awake);
    /* An alarm that is too early only costs an empty turn; moving it for every change of the heap costs more. */
    if (due != UINT64_MAX && (loop->alarm_ms == 0 || due < loop->alarm_ms)) {
        (void)uv_timer_start(&loop->alarm, on_alarm, due - now, 0);
        loop->alarm_ms = due;
    }
}

static void on_check(uv_check_t *check)
{
    struct loop *loop = check->data;

    run_due_timers(loop);
    free_retired(loop);
}

static void on_wake(uv_async_t *wake)
{
    struct loop *loop = wake->data;

    (void)pthread_mutex_lock(&loop->lock);
    struct loop_task *task = loop->posted_first;
    loop->posted_first = loop->posted_last = NULL;
    (void)pthread_mutex_unlock(&loop->lock);
    while (task) {
        struct loop_task *next = task->next; /* the task's memory is its owner's once fn runs */
        task->fn(task);
        task = next;
    }
    if (atomic_exchange(&loop->stopping, false))
        uv_stop(&loop->uv);
}

void loop_post(struct loop *loop, struct loop_task *task)
{
    task->next = NULL;
    (void)pthread_mutex_lock(&loop->lock);
    if (loop->posted_last)
        loop->posted_last->next = task;
    else
        loop->posted_first = task;
    loop->posted_last = task;
    (void)pthread_mutex_unlock(&loop->lock);
    (void)uv_async_send(&loop->wake);
}

struct loop *loop_new(void)
{
    struct loop *loop = NEW(struct loop);

    if (uv_loop_init(&loop->uv) < 0 || uv_async_init(&loop->uv, &loop->wake, on_wake) < 0)
        log_die("loop: no descriptors left for an event loop");
    (void)pthread_mutex_init(&loop->lock, NULL);
    (void)uv_prepare_init(&loop->uv, &loop->prepare);
    (void)uv_check_init(&loop->uv, &loop->check);
    (void)uv_idle_init(&loop->uv, &loop->awake);
    (void)uv_timer_init(&loop->uv, &loop->alarm);
    loop->wake.data = loop->prepare.data = loop->check.data = loop->alarm.data = loop;
    (void)uv_prepare_start(&loop->prepare, on_prepare);
    (void)uv_check_start(&loop->check, on_check);
    loop->thread = pthread_self();
    return loop;
}

static void on_signal_closed(uv_handle_t *handle)
{
    free(container_of(handle, struct signal_watch, handle));
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    free_retired(loop);
    if (loop->watches)
        log_die("loop: freed while %zu descriptors are still watched", loop->watches);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_close((uv_handle_t *)&loop->prepare, NULL);
    uv_close((uv_handle_t *)&loop->check, NULL);
    uv_close((uv_handle_t *)&loop->awake, NULL);
    uv_close((uv_handle_t *)&loop->alarm, NULL);
    for (struct signal_watch *s = loop->signals; s; s = s->next)
        uv_close((uv_handle_t *)&s->handle, on_signal_closed);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT); /* only the closing is left to do */
    if (uv_loop_close(&loop->uv) < 0)
        log_die("loop: a handle was left open");
    (void)pthread_mutex_destroy(&loop->lock);
    /* Timers that are still set belong to others; they must not find a heap that is gone. */
    for (size_t i = 1; i <= loop->heap_len; i++)
        loop->heap[i]->heap_index = 0;
    free(loop->heap);
    free(loop->retired);
    free(loop);
}

void loop_run(struct loop *loop)
{
    loop->thread = pthread_self();
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT); /* the wake handle keeps it running until uv_stop() */
}

void loop_stop_soon(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    (void)uv_async_send(&loop->wake);
}

bool loop_is_here(const struct loop *loop)
{
    return pthread_equal(loop->thread, pthread_self());
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return uv_now(&loop->uv);
}

/* ---- descriptors ---- */

struct watch {
    uv_poll_t poll;
    struct loop *loop;
    watch_fn *fn;
    void *context;
    unsigned wanted;
    bool freed;
};

static void on_poll(uv_poll_t *poll, int status, int events);

static void start_polling(struct watch *watch)
{
    int events = (watch->wanted & WATCH_READ ? UV_READABLE : 0) | (watch->wanted & WATCH_WRITE ? UV_WRITABLE : 0) |
                 (watch->wanted & WATCH_HANGUP ? UV_DISCONNECT : 0);
    int status = uv_poll_start(&watch->poll, events, on_poll);

    if (status < 0)
        log_die("loop: watch a descriptor: %s", uv_strerror(status));
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = container_of(poll, struct watch, poll);
    unsigned ready = (events & UV_READABLE ? WATCH_READ : 0u) | (events & UV_WRITABLE ? WATCH_WRITE : 0u) |
                     (events & UV_DISCONNECT ? WATCH_HANGUP : 0u);

    /* An error on the descriptor: whatever its owner waits for, trying it will tell. */
    if (status < 0 || ready == 0)
        ready = watch->wanted;
    watch->fn(watch->context, ready);
    /* libuv stops polling on an error. An owner who still waits wants to hear of it again. */
    if (!watch->freed && watch->wanted && !uv_is_active((uv_handle_t *)&watch->poll))
        start_polling(watch);
}

struct watch *watch_new(struct loop *loop, int fd, watch_fn *fn, void *context)
{
    struct watch *watch = NEW(struct watch);
    int status = uv_poll_init(&loop->uv, &watch->poll, fd);

    /* Not a thing to wait for, or watched already: either is our own mistake. */
    if (status < 0)
        log_die("loop: watch descriptor %d: %s", fd, uv_strerror(status));
    watch->loop = loop;
    watch->fn = fn;
    watch->context = context;
    loop->watches++;
    return watch;
}

void watch_want(struct watch *watch, unsigned events)
{
    assert(!watch->freed);
    if (watch->wanted == events)
        return;
    watch->wanted = events;
    if (events)
        start_polling(watch);
    else
        (void)uv_poll_stop(&watch->poll);
}

static void on_watch_closed(uv_handle_t *handle)
{
    free(container_of(handle, struct watch, poll));
}

void watch_free(struct watch *watch)
{
    if (!watch)
        return;
    assert(!watch->freed);
    watch->freed = true;
    watch->loop->watches--;
    /* Takes the descriptor out of epoll now, pending events included, so its number may be used again at once. */
    (void)uv_poll_stop(&watch->poll);
    uv_close((uv_handle_t *)&watch->poll, on_watch_closed);
}

/* ---- signals ---- */

static void on_uv_signal(uv_signal_t *handle, int signal_number)
{
    struct signal_watch *watch = container_of(handle, struct signal_watch, handle);

    watch->fn(watch->context, signal_number);
}

bool loop_on_signal(struct loop *loop, int signal_number, signal_fn *fn, void *context, struct err *err)
{
    struct signal_watch *watch = NEW(struct signal_watch);

    watch->fn = fn;
    watch->context = context;
    int status = uv_signal_init(&loop->uv, &watch->handle);
    if (status < 0) {
        free(watch);
        return err_sys_num(err, -status, "watch for signals");
    }
    watch->next = loop->signals;
    loop->signals = watch;
    status = uv_signal_start(&watch->handle, on_uv_signal, signal_number);
    if (status < 0)
        return err_sys_num(err, -status, "watch for signal %d", signal_number);
    return true;
}
