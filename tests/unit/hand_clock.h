/*
 * hand_clock.h - a clock that a test turns, so that deadlines and timers run at once.
 *
 * From hand_clock_start() on, the time of this process is the machine's plus what the test has added. After
 * hand_clock_stand() it stands still, and moves only when it is turned: then a test can also say what happens one
 * millisecond before a deadline. Loops notice when they wake: hand_clock_turn() wakes the one it is given.
 *
 * Ownership  One source file of a test program includes this; the others call that file's own functions.
 */
#ifndef TESTS_UNIT_HAND_CLOCK_H
#define TESTS_UNIT_HAND_CLOCK_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/attr.h"
#include "base/clock.h"
#include "io/loop.h"

static _Atomic uint64_t hand_clock_ahead_us, hand_clock_stood_us; /* stood: when it was stopped, or 0 */
static _Atomic int64_t hand_clock_wall_us;                        /* the other clock at that moment */
static _Atomic int64_t hand_clock_set_us;                         /* how far somebody has set it */

static inline uint64_t hand_clock_machine_us(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline uint64_t hand_clock_mono(void)
{
    uint64_t stood_us = hand_clock_stood_us;

    return hand_clock_ahead_us + (stood_us ? stood_us : hand_clock_machine_us(CLOCK_MONOTONIC));
}

static inline int64_t hand_clock_wall(void)
{
    int64_t now_us = hand_clock_stood_us ? hand_clock_wall_us : (int64_t)hand_clock_machine_us(CLOCK_REALTIME);

    return now_us + (int64_t)hand_clock_ahead_us + hand_clock_set_us;
}

static const struct clock_source hand_clock_source = { hand_clock_mono, hand_clock_wall };

/* Before a loop or a thread is started: the clock must not go back while one runs. */
static inline void hand_clock_start(void)
{
    hand_clock_ahead_us = hand_clock_stood_us = 0;
    hand_clock_set_us = 0;
    clock_use(&hand_clock_source);
}

static inline void hand_clock_stand(void)
{
    hand_clock_wall_us = (int64_t)hand_clock_machine_us(CLOCK_REALTIME);
    hand_clock_stood_us = hand_clock_machine_us(CLOCK_MONOTONIC);
}

static inline bool hand_clock_stands(void)
{
    return hand_clock_stood_us != 0;
}

/* When the loops are gone. */
static inline void hand_clock_end(void)
{
    clock_use(NULL);
    hand_clock_stood_us = 0;
}

static inline void hand_clock_add(uint64_t ms)
{
    hand_clock_ahead_us += ms * 1000;
}

/* The time of day alone, as by an operator or NTP; also back. */
static inline void hand_clock_set_wall(int64_t us)
{
    hand_clock_set_us += us;
}

struct hand_clock_wake {
    struct loop_task task;
    sem_t done;
};

static inline void hand_clock_woken(struct loop_task *task)
{
    sem_post(&container_of(task, struct hand_clock_wake, task)->done);
}

/* From another thread than the loop's: returns when the loop has taken two turns, so that due timers have run. */
static inline void hand_clock_turn(struct loop *loop, uint64_t ms)
{
    hand_clock_add(ms);
    for (int i = 0; i < 2; i++) {
        struct hand_clock_wake wake = { .task.fn = hand_clock_woken };
        sem_init(&wake.done, 0, 0);
        loop_post(loop, &wake.task);
        while (sem_wait(&wake.done) < 0)
            ; /* a signal */
        sem_destroy(&wake.done);
    }
}

#endif
