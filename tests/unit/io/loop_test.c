#include "io/loop.h"

#include <pthread.h>
#include <stdlib.h>

#include "io/pump.h"

static struct loop *loop;

static int setup(void **state)
{
    (void)state;
    loop = loop_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    loop_free(loop);
    return 0;
}

/* ---- timers ---- */

static struct timer timers[100];
static unsigned fired[100], fired_count;

static void note_timer(struct timer *timer)
{
    fired[fired_count++] = (unsigned)(timer - timers);
}

static void timers_fire_in_the_order_of_their_time(void **state)
{
    (void)state;
    fired_count = 0;
    for (unsigned i = 0; i < 40; i++)
        timer_set(&timers[i], loop, (i * 7) % 40, note_timer);
    PUMP_UNTIL(loop, fired_count == 40);
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(fired[i] * 7 % 40, i);
        assert_false(timer_is_set(&timers[i]));
    }
}

static void timers_of_the_same_time_fire_in_the_order_they_were_set(void **state)
{
    (void)state;
    fired_count = 0;
    for (unsigned i = 0; i < 50; i++)
        timer_set(&timers[i], loop, 2, note_timer);
    PUMP_UNTIL(loop, fired_count == 50);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(fired[i], i);
}

static void clear_the_next(struct timer *timer)
{
    note_timer(timer);
    timer_clear(timer + 1);
}

static void a_cleared_timer_does_not_fire_even_if_it_is_due(void **state)
{
    (void)state;
    fired_count = 0;
    timer_set(&timers[0], loop, 1, clear_the_next);
    timer_set(&timers[1], loop, 1, note_timer);
    timer_set(&timers[2], loop, 1, note_timer);
    PUMP_UNTIL(loop, fired_count == 2);
    pump_some(loop);
    assert_int_equal(fired_count, 2);
    assert_int_equal(fired[1], 2);
    timer_clear(&timers[1]); /* twice is fine */
}

static void set_again_now(struct timer *timer)
{
    note_timer(timer);
    if (fired_count < 90)
        timer_set(timer, loop, 0, set_again_now);
}

static unsigned pipe_readable;

static void note_readable(void *context, unsigned ready)
{
    (void)context;
    assert_int_equal(ready, WATCH_READ);
    pipe_readable++;
}

static void a_timer_that_sets_itself_to_now_starves_nobody(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    struct watch *watch = watch_new(loop, ends[0], note_readable, NULL);
    watch_want(watch, WATCH_READ);
    fired_count = pipe_readable = 0;
    timer_set(&timers[0], loop, 0, set_again_now);
    PUMP_UNTIL(loop, fired_count == 90);
    assert_true(pipe_readable >= 80); /* level-triggered: about once a turn */
    watch_free(watch);
    close(ends[0]);
    close(ends[1]);
}

static void moving_a_timer_moves_it(void **state)
{
    (void)state;
    fired_count = 0;
    timer_set(&timers[0], loop, 1, note_timer);
    timer_set(&timers[1], loop, 3, note_timer);
    timer_set(&timers[0], loop, 6, note_timer);
    PUMP_UNTIL(loop, fired_count == 2);
    assert_int_equal(fired[0], 1);
}

static void timers_go_by_the_clock_that_is_in_place(void **state)
{
    (void)state;
    hand_clock_start();
    hand_clock_stand();
    fired_count = 0;
    pump_turn(loop); /* the loop's time is as of its last turn */
    uint64_t began_ms = loop_now_ms(loop);
    timer_set(&timers[0], loop, 3600 * 1000, note_timer);
    hand_clock_add(3600 * 1000 - 2);
    pump_turn(loop); /* another millisecond */
    assert_int_equal(fired_count, 0);
    assert_int_equal(loop_now_ms(loop), began_ms + 3600 * 1000 - 1);
    pump_turn(loop);
    assert_int_equal(fired_count, 1);
    hand_clock_end();
}

static void random_sets_and_clears_keep_the_heap_in_order(void **state)
{
    static uint64_t due[100];
    unsigned expected = 0;

    (void)state;
    srand(7);
    fired_count = 0;
    for (unsigned round = 0; round < 2000; round++) {
        unsigned i = (unsigned)rand() % 100;
        if (rand() % 3 == 0) {
            timer_clear(&timers[i]);
        } else {
            due[i] = (uint64_t)(rand() % 20);
            timer_set(&timers[i], loop, due[i], note_timer);
        }
    }
    for (unsigned i = 0; i < 100; i++)
        expected += timer_is_set(&timers[i]);
    PUMP_UNTIL(loop, fired_count == expected);
    for (unsigned i = 1; i < expected; i++)
        assert_true(due[fired[i - 1]] <= due[fired[i]]);
}

/* ---- watches ---- */

static struct watch *watch_a, *watch_b;
static unsigned calls_a, calls_b;

static void free_the_other(void *context, unsigned ready)
{
    (void)ready;
    if (context == &watch_a) {
        calls_a++;
        watch_free(watch_b);
        watch_b = NULL;
        watch_want(watch_a, 0);
    } else {
        calls_b++;
        watch_free(watch_a);
        watch_a = NULL;
        watch_want(watch_b, 0);
    }
}

static void a_freed_watch_never_fires_even_if_it_is_ready(void **state)
{
    int a[2], b[2];

    (void)state;
    assert_int_equal(pipe2(a, O_NONBLOCK), 0);
    assert_int_equal(pipe2(b, O_NONBLOCK), 0);
    assert_int_equal(write(a[1], "x", 1) + write(b[1], "x", 1), 2);
    calls_a = calls_b = 0;
    watch_a = watch_new(loop, a[0], free_the_other, &watch_a);
    watch_b = watch_new(loop, b[0], free_the_other, &watch_b);
    watch_want(watch_a, WATCH_READ);
    watch_want(watch_b, WATCH_READ);
    pump_some(loop);
    assert_int_equal(calls_a + calls_b, 1);
    watch_free(watch_a);
    watch_free(watch_b);
    for (int i = 0; i < 2; i++)
        close(a[i]), close(b[i]);
}

static int reused_fd = -1, reused_writer = -1;

static void close_and_open_again(void *context, unsigned ready)
{
    int *fds = context, fresh[2];

    (void)ready;
    calls_a++;
    watch_free(watch_b);
    close(fds[0]);
    assert_int_equal(pipe2(fresh, O_NONBLOCK), 0); /* gets the number that was just closed */
    reused_fd = fresh[0];
    reused_writer = fresh[1];
    watch_b = watch_new(loop, fresh[0], note_readable, NULL);
    watch_want(watch_b, WATCH_READ);
    watch_want(watch_a, 0);
}

static void an_event_for_a_closed_descriptor_does_not_reach_the_next_of_its_number(void **state)
{
    int a[2], b[2];

    (void)state;
    assert_int_equal(pipe2(a, O_NONBLOCK), 0);
    assert_int_equal(pipe2(b, O_NONBLOCK), 0);
    assert_int_equal(write(a[1], "x", 1) + write(b[1], "x", 1), 2);
    calls_a = pipe_readable = 0;
    /* Both are ready in one turn; whichever comes first in the kernel's list, b's number must not be told. */
    watch_a = watch_new(loop, a[0], close_and_open_again, b);
    watch_b = watch_new(loop, b[0], note_readable, NULL);
    watch_want(watch_a, WATCH_READ);
    watch_want(watch_b, WATCH_READ);
    pump_turn(loop);
    unsigned before = pipe_readable;
    assert_int_equal(calls_a, 1);
    assert_int_equal(reused_fd, b[0]);
    pump_some(loop);
    assert_int_equal(pipe_readable, before);
    assert_int_equal(write(reused_writer, "x", 1), 1);
    PUMP_UNTIL(loop, pipe_readable > before);
    watch_free(watch_a);
    watch_free(watch_b);
    close(a[0]), close(a[1]), close(b[1]), close(reused_fd), close(reused_writer);
}

static unsigned ready_seen;

static void note_ready(void *context, unsigned ready)
{
    (void)context;
    ready_seen |= ready;
}

static void a_reset_wakes_whoever_waits(void **state)
{
    (void)state;
    for (unsigned want = 1; want <= 7; want++) {
        int ends[2];
        tcp_pair(ends);
        struct watch *watch = watch_new(loop, ends[0], note_ready, NULL);
        watch_want(watch, want);
        pump_turn(loop);
        ready_seen = 0;
        struct linger reset = { .l_onoff = 1 };
        assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        close(ends[1]);
        PUMP_UNTIL(loop, ready_seen == want);
        watch_free(watch);
        close(ends[0]);
    }
}

/* A pipe reports nothing but EPOLLHUP to its reader and EPOLLERR to its writer. */
static void the_end_of_a_pipe_wakes_either_side(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
        struct watch *watch = watch_new(loop, ends[side], note_ready, NULL);
        unsigned want = side == 0 ? WATCH_READ | WATCH_HANGUP : WATCH_HANGUP;
        watch_want(watch, want);
        ready_seen = 0;
        pump_some(loop);
        assert_int_equal(ready_seen, 0);
        close(ends[!side]);
        PUMP_UNTIL(loop, ready_seen == want);
        watch_want(watch, 0);
        ready_seen = 0;
        pump_some(loop);
        assert_int_equal(ready_seen, 0); /* not even that, while it is paused */
        watch_free(watch);
        close(ends[side]);
    }
}

static void pause_the_other(void *context, unsigned ready)
{
    (void)ready;
    calls_a++;
    watch_want(context == &watch_a ? watch_b : watch_a, 0);
}

static void a_paused_watch_does_not_fire_even_if_it_is_ready(void **state)
{
    int a[2], b[2];

    (void)state;
    assert_int_equal(pipe2(a, O_NONBLOCK), 0);
    assert_int_equal(pipe2(b, O_NONBLOCK), 0);
    assert_int_equal(write(a[1], "x", 1) + write(b[1], "x", 1), 2);
    watch_a = watch_new(loop, a[0], pause_the_other, &watch_a);
    watch_b = watch_new(loop, b[0], pause_the_other, &watch_b);
    watch_want(watch_a, WATCH_READ);
    watch_want(watch_b, WATCH_READ);
    calls_a = 0;
    loop_stop_soon(loop); /* one turn */
    loop_run(loop);
    assert_int_equal(calls_a, 1);
    watch_free(watch_a);
    watch_free(watch_b);
    for (int i = 0; i < 2; i++)
        close(a[i]), close(b[i]);
}

static void a_half_closed_peer_is_a_hangup(void **state)
{
    int ends[2];

    (void)state;
    tcp_pair(ends);
    struct watch *watch = watch_new(loop, ends[0], note_ready, NULL);
    watch_want(watch, WATCH_HANGUP);
    ready_seen = 0;
    assert_int_equal(write(ends[1], "x", 1), 1);
    pump_some(loop);
    assert_int_equal(ready_seen, 0);
    shutdown(ends[1], SHUT_WR);
    PUMP_UNTIL(loop, ready_seen == WATCH_HANGUP);
    watch_free(watch);
    close(ends[0]), close(ends[1]);
}

/* ---- tasks and retirement ---- */

static struct loop_task tasks[1000];
static unsigned tasks_run;

static void note_task(struct loop_task *task)
{
    assert_true(loop_is_here(loop));
    assert_int_equal(task - tasks, tasks_run);
    tasks_run++;
}

static void *post_all(void *argument)
{
    assert_false(loop_is_here(loop));
    for (unsigned i = 0; i < COUNT_OF(tasks); i++) {
        tasks[i].fn = note_task;
        loop_post(loop, &tasks[i]);
    }
    return argument;
}

static void tasks_posted_by_a_thread_run_in_order(void **state)
{
    pthread_t thread;

    (void)state;
    tasks_run = 0;
    assert_int_equal(pthread_create(&thread, NULL, post_all, NULL), 0);
    PUMP_UNTIL(loop, tasks_run == COUNT_OF(tasks));
    pthread_join(thread, NULL);
}

static unsigned freed_objects;

static void note_freed(void *object)
{
    freed_objects++;
    if (object == &freed_objects)
        loop_retire(loop, &tasks_run, note_freed); /* freeing one thing may retire another */
}

static unsigned freed_when_the_callback_ended;

static void retire_something(struct timer *timer)
{
    (void)timer;
    loop_retire(loop, &freed_objects, note_freed);
    freed_when_the_callback_ended = freed_objects;
}

static void what_is_retired_is_freed_when_the_turn_ends(void **state)
{
    (void)state;
    freed_objects = 0;
    timer_set(&timers[0], loop, 0, retire_something);
    PUMP_UNTIL(loop, freed_objects == 2);
    assert_int_equal(freed_when_the_callback_ended, 0);
    loop_retire(loop, &tasks_run, note_freed); /* also what nobody turns for any more */
    loop_free(loop);
    assert_int_equal(freed_objects, 3);
    loop = loop_new();
}

static int signal_seen;

static void note_signal(void *context, int number)
{
    (void)context;
    signal_seen = number;
}

static void signals_arrive_on_the_loop(void **state)
{
    struct err err;

    (void)state;
    assert_true(loop_on_signal(loop, SIGUSR1, note_signal, NULL, &err));
    assert_int_equal(raise(SIGUSR1), 0);
    PUMP_UNTIL(loop, signal_seen == SIGUSR1);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(timers_fire_in_the_order_of_their_time, setup, teardown),
        cmocka_unit_test_setup_teardown(timers_of_the_same_time_fire_in_the_order_they_were_set, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cleared_timer_does_not_fire_even_if_it_is_due, setup, teardown),
        cmocka_unit_test_setup_teardown(a_timer_that_sets_itself_to_now_starves_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(moving_a_timer_moves_it, setup, teardown),
        cmocka_unit_test_setup_teardown(timers_go_by_the_clock_that_is_in_place, setup, teardown),
        cmocka_unit_test_setup_teardown(random_sets_and_clears_keep_the_heap_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_freed_watch_never_fires_even_if_it_is_ready, setup, teardown),
        cmocka_unit_test_setup_teardown(an_event_for_a_closed_descriptor_does_not_reach_the_next_of_its_number, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_reset_wakes_whoever_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_of_a_pipe_wakes_either_side, setup, teardown),
        cmocka_unit_test_setup_teardown(a_paused_watch_does_not_fire_even_if_it_is_ready, setup, teardown),
        cmocka_unit_test_setup_teardown(a_half_closed_peer_is_a_hangup, setup, teardown),
        cmocka_unit_test_setup_teardown(tasks_posted_by_a_thread_run_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_retired_is_freed_when_the_turn_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(signals_arrive_on_the_loop, setup, teardown),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
