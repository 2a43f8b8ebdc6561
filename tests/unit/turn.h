/*
 * turn.h - runs a loop for a while. Tests that wait for something rather use PUMP_UNTIL() of io/pump.h.
 */
#ifndef TESTS_UNIT_TURN_H
#define TESTS_UNIT_TURN_H

#include "io/loop.h"

static inline void turn_stop_(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

/* 0: one turn, without waiting. */
static inline void turn_for(struct loop *loop, unsigned ms)
{
    struct timer timer = { 0 };

    timer_set(&timer, loop, ms, turn_stop_);
    loop_run(loop);
    timer_clear(&timer);
}

#endif
