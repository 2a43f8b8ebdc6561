/*
 * loop.h - an event loop: one thread that waits for descriptors, timers, signals and tasks from other threads.
 *
 * epoll for descriptors, a heap for timers. A watch or a timer that was stopped never fires again, even if it was
 * already due in this turn.
 *
 * Ownership  The caller owns its watches and timers, and stops them before it frees what their callbacks use.
 * Threads    Call everything from the loop's thread, except loop_post() and loop_stop_soon().
 * Freeing    A callback frees no object that its callers may still use; it passes it to loop_retire(), which frees it
 *            when the turn ends.
 */
#ifndef IO_LOOP_H
#define IO_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

struct loop;

struct loop *loop_new(void) must_use;
void loop_free(struct loop *loop);
void loop_run(struct loop *loop); /* until loop_stop_soon() */
void loop_stop_soon(struct loop *loop);
bool loop_is_here(const struct loop *loop);    /* is this the loop's thread? */
uint64_t loop_now_ms(const struct loop *loop); /* monotonic, as of this turn */

/* A descriptor. Level-triggered: fires again while the condition holds. */
enum {
    WATCH_READ = 1,
    WATCH_WRITE = 2,
    WATCH_HANGUP = 4, /* the peer has closed its side; there may still be bytes to read */
};
struct watch; /* opaque; NULL when not set */
typedef void watch_fn(void *context, unsigned ready);
/* Makes the descriptor non-blocking. It stays the caller's and must stay open while watched. */
struct watch *watch_new(struct loop *loop, int fd, watch_fn *fn, void *context) must_use;
void watch_want(struct watch *watch, unsigned events); /* 0 pauses it; an error is reported as all that is wanted */
void watch_free(struct watch *watch);                  /* at once; NULL is fine */

/* A timer. Embed it; a zeroed one is unset. */
struct timer {
    /* private */
    struct loop *loop;
    uint64_t due_ms;
    uint64_t seq; /* among equals, first set is first served */
    void (*fn)(struct timer *timer);
    size_t heap_index; /* 1-based; 0 when unset */
};
typedef void timer_fn(struct timer *timer);
/* Runs fn once, after_ms from now; 0 is at the end of this turn, outside the present callbacks. May be set again. */
void timer_set(struct timer *timer, struct loop *loop, uint64_t after_ms, timer_fn *fn);
void timer_clear(struct timer *timer); /* fine when unset */
static inline bool timer_is_set(const struct timer *timer)
{
    return timer->heap_index != 0;
}

/* From any thread: run fn on the loop, in the order of posting. The task's memory is the caller's until fn runs. */
struct loop_task {
    void (*fn)(struct loop_task *task);
    /* private */
    struct loop_task *next;
};
void loop_post(struct loop *loop, struct loop_task *task);

/* Free `object` with `free_fn` when this turn of the loop has ended. */
void loop_retire(struct loop *loop, void *object, void (*free_fn)(void *object));

/* Run fn on the loop when this signal arrives. For the one loop of a main program. */
typedef void signal_fn(void *context, int signal_number);
bool loop_on_signal(struct loop *loop, int signal_number, signal_fn *fn, void *context, struct err *err) must_use;

#endif
