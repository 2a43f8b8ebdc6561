/*
 * Marks, timers and rates of inboxes in use, over rows and a dispatcher that the test plays.
 */
#include "actions/mail_inside.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../hand_clock.h"
#include "../test.h"

static const char id_a[] = "01ARZ3NDEKTSV4RRFFQ69G5FAV", id_b[] = "01ARZ3NDEKTSV4RRFFQ69G5FAW";

struct fixture {
    struct mail_setup setup;
    struct actions actions;
};

/* ---- rows and dispatcher ---- */

static struct row {
    char id[MAIL_INBOX_ID_BYTES];
    bool is_dirty;
    int64_t next_us;
    uint32_t pending;
    unsigned marks; /* written so far */
    atomic_uint turns;
} rows[LIMIT_MAIL_SWEEP + 10];
static bool rows_fail;

static atomic_uint turns;
static const char *stuck_id;    /* a turn of this inbox lasts until this is posted… */
static sem_t is_free, is_stuck; /* …and has begun when this is */
static struct mail_tick tick;
static enum err_kind turn_error;
static void (*during_turn)(struct fixture *f); /* something that happens at the same time */
static struct fixture *now;

static struct row *row_of(const char *id)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].id, id) == 0)
            return &rows[i];
    fail_msg("no row %s", id);
    return NULL;
}

bool mail_row_dirty(const struct actions *actions, const char *inbox_id, struct err *err)
{
    (void)actions;
    if (rows_fail)
        return err_set(err, ERR_FULL, "the disk is full");
    row_of(inbox_id)->is_dirty = true;
    row_of(inbox_id)->marks++;
    return true;
}

bool mail_row_idle(const struct actions *actions, const char *inbox_id, const struct mail_tick *found, struct err *err)
{
    struct row *row = row_of(inbox_id);

    (void)actions;
    if (rows_fail)
        return err_set(err, ERR_FULL, "the disk is full");
    row->is_dirty = false;
    row->next_us = found->next_us;
    row->pending = found->pending;
    return true;
}

bool mail_rows_due(const struct actions *actions, int64_t now_us, bool dirty, uint32_t limit, struct arena *arena,
                   struct mail_row_due **out, size_t *out_count, int64_t *out_next_us, struct err *err)
{
    (void)actions;
    if (rows_fail)
        return err_set(err, ERR_FULL, "the disk is full");
    *out = ARENA_ARRAY(arena, struct mail_row_due, COUNT_OF(rows));
    *out_count = 0;
    *out_next_us = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool due = rows[i].next_us && rows[i].next_us <= now_us;
        if ((dirty ? rows[i].is_dirty : due && !rows[i].is_dirty) && *out_count < limit)
            memcpy((*out)[(*out_count)++].id, rows[i].id, sizeof rows[i].id);
        if (rows[i].next_us > now_us && (!*out_next_us || rows[i].next_us < *out_next_us))
            *out_next_us = rows[i].next_us;
    }
    return true;
}

bool dispatch_turn(const struct actions *actions, const char *inbox_id, const char *message_id, enum mail_state *state,
                   struct mail_tick *out, struct err *err)
{
    struct mail_tick found = tick; /* what the worker said, before anything else happens */

    (void)actions;
    assert_true(row_of(inbox_id)->is_dirty); /* nothing changes in an inbox whose row has no mark */
    turns++;
    row_of(inbox_id)->turns++;
    if (stuck_id && strcmp(inbox_id, stuck_id) == 0) {
        (void)sem_post(&is_stuck);
        (void)sem_wait(&is_free);
    }
    if (during_turn)
        during_turn(now);
    if (turn_error)
        return err_set(err, turn_error, "not now");
    if (message_id && state)
        *state = MAIL_SENT;
    *out = found;
    return true;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    hand_clock_start();
    hand_clock_stand();
    memset(rows, 0, sizeof rows);
    strcpy(rows[0].id, id_a);
    strcpy(rows[1].id, id_b);
    for (unsigned i = 2; i < COUNT_OF(rows); i++)
        snprintf(rows[i].id, sizeof rows[i].id, "01ARZ3NDEKTSV4RRFF%08u", i);
    rows_fail = false;
    turns = 0;
    tick = (struct mail_tick){ 0 };
    turn_error = ERR_NONE;
    during_turn = NULL;
    stuck_id = NULL;
    (void)sem_init(&is_free, 0, 0);
    (void)sem_init(&is_stuck, 0, 0);
    f->setup.busy = mail_busy_new();
    f->setup.sends_per_minute = 20;
    f->actions.mail = &f->setup;
    now = f;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    mail_busy_free(f->setup.busy);
    free(f);
    hand_clock_end();
    return 0;
}

static void change(struct fixture *f, const char *id, int64_t next_us)
{
    struct busy_inbox *inbox;
    struct err err;

    assert_true(busy_begin(&f->actions, id, &inbox, &err));
    busy_end(&f->actions, inbox, next_us);
}

static void run_tick(struct fixture *f)
{
    (void)action_mail_tick(&f->actions, clock_wall_us());
}

/* ---- marks ---- */

static void the_row_is_marked_once_and_cleared_when_the_inbox_is_quiet(void **state)
{
    struct fixture *f = *state;

    run_tick(f); /* the first one looks at all that have the mark */
    for (int i = 0; i < 5; i++)
        change(f, id_a, 0);
    assert_int_equal(rows[0].marks, 1);
    run_tick(f);
    assert_true(rows[0].is_dirty); /* too early */
    tick = (struct mail_tick){ .pending = 5, .next_us = clock_wall_us() + 60000000 };
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
    assert_int_equal(rows[0].pending, 5);
    assert_int_equal(rows[0].next_us, tick.next_us);
    assert_int_equal(turns, 1);
    change(f, id_a, 0);
    assert_int_equal(rows[0].marks, 2);
}

static void a_change_that_cannot_be_marked_does_not_begin(void **state)
{
    struct fixture *f = *state;
    struct busy_inbox *inbox;
    struct err err;

    rows_fail = true;
    assert_false(busy_begin(&f->actions, id_a, &inbox, &err));
    assert_int_equal(err.kind, ERR_FULL);
    rows_fail = false;
    change(f, id_a, 0);
    assert_true(rows[0].is_dirty);
}

static void begin_and_end(struct fixture *f)
{
    during_turn = NULL;
    change(f, id_a, 0);
}

static void a_change_during_the_tick_keeps_the_mark(void **state)
{
    struct fixture *f = *state;

    change(f, id_a, 0);
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    during_turn = begin_and_end; /* begins after the worker has answered, and ends before the row is written */
    run_tick(f);
    assert_true(rows[0].is_dirty);
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
}

static void an_inbox_in_use_keeps_the_mark(void **state)
{
    struct fixture *f = *state;
    struct busy_inbox *inbox;
    struct err err;

    run_tick(f); /* the first one looks at all that have the mark */
    assert_true(busy_begin(&f->actions, id_a, &inbox, &err));
    hand_clock_add(10 * LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_int_equal(turns, 0);
    assert_true(rows[0].is_dirty);
    busy_end(&f->actions, inbox, 0);
}

static struct busy_inbox *under_way;

static void end_it(struct fixture *f)
{
    during_turn = NULL;
    busy_end(&f->actions, under_way, 0); /* it has no timer to tell of: the worker has */
}

static void a_change_that_ends_during_the_tick_keeps_the_mark(void **state)
{
    struct fixture *f = *state;
    struct err err;

    run_tick(f);
    change(f, id_a, clock_wall_us());
    assert_true(busy_begin(&f->actions, id_a, &under_way, &err));
    during_turn = end_it; /* began before the tick, is made after the worker has answered */
    run_tick(f);
    assert_int_equal(turns, 1);
    assert_true(rows[0].is_dirty);
    tick.next_us = clock_wall_us() + 60000000;
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
    assert_int_equal(rows[0].next_us, tick.next_us);
}

/* ---- timers ---- */

static void a_timer_runs_though_the_inbox_is_not_quiet(void **state)
{
    struct fixture *f = *state;

    run_tick(f); /* the first one looks at all that have the mark */
    change(f, id_a, clock_wall_us() + 500000);
    run_tick(f);
    assert_int_equal(turns, 0);
    hand_clock_add(501);
    run_tick(f);
    assert_int_equal(turns, 1);
}

static void a_timer_in_a_row_runs_when_its_time_has_come(void **state)
{
    struct fixture *f = *state;

    rows[1].next_us = clock_wall_us() + 5000000;
    run_tick(f);
    hand_clock_add(4999);
    run_tick(f);
    assert_int_equal(turns, 0);
    hand_clock_add(1);
    run_tick(f);
    assert_int_equal(turns, 1);
    assert_false(rows[1].is_dirty);
    assert_int_equal(rows[1].next_us, 0);
    hand_clock_add(60000);
    run_tick(f);
    assert_int_equal(turns, 1);
}

static void a_timer_that_a_tick_has_found_is_kept(void **state)
{
    struct fixture *f = *state;

    run_tick(f);
    tick.next_us = clock_wall_us() + 10000000;
    change(f, id_a, 0);
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_int_equal(rows[0].next_us, tick.next_us);
    tick.next_us = 0;
    hand_clock_add(8000);
    run_tick(f);
    assert_int_equal(turns, 2);
    assert_int_equal(rows[0].next_us, 0);
}

static void more_timers_than_one_tick_takes_are_not_forgotten(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i].next_us = clock_wall_us();
    run_tick(f);
    assert_int_equal(turns, LIMIT_MAIL_SWEEP);
    run_tick(f);
    assert_int_equal(turns, COUNT_OF(rows));
}

static void inboxes_that_are_always_due_leave_turns_to_others(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i].next_us = clock_wall_us();
    tick.queued = 1; /* each has more than leaves in one turn */
    run_tick(f);
    run_tick(f);
    run_tick(f);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_in_range(rows[i].turns, 1, 3);
}

static void *tick_in_thread(void *context)
{
    run_tick(context);
    return NULL;
}

static void a_tick_that_waits_for_a_stuck_inbox_leaves_the_others_to_the_next_one(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;

    for (size_t i = 0; i < 10; i++)
        rows[i].next_us = clock_wall_us();
    stuck_id = id_a;
    assert_int_equal(pthread_create(&thread, NULL, tick_in_thread, f), 0);
    (void)sem_wait(&is_stuck);
    run_tick(f);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(rows[i].turns, 1); /* also the stuck one: nobody else waits for it */
    hand_clock_add(60000);
    change(f, id_b, clock_wall_us());
    run_tick(f); /* nor later */
    assert_int_equal(rows[0].turns, 1);
    assert_int_equal(rows[1].turns, 2);
    assert_true(rows[0].is_dirty);
    stuck_id = NULL;
    (void)sem_post(&is_free);
    (void)pthread_join(thread, NULL);
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
}

static void an_inbox_from_which_somebody_sends_holds_up_no_tick(void **state)
{
    struct fixture *f = *state;
    struct busy_inbox *inbox;
    struct err err;

    run_tick(f);
    assert_true(busy_begin(&f->actions, id_a, &inbox, &err));
    busy_stop(inbox);
    change(f, id_a, clock_wall_us());
    change(f, id_b, clock_wall_us());
    run_tick(f);
    assert_int_equal(rows[0].turns, 0);
    assert_int_equal(rows[1].turns, 1);
    busy_go(inbox);
    busy_end(&f->actions, inbox, 0);
    run_tick(f);
    assert_int_equal(rows[0].turns, 1);
}

static void a_recipient_that_does_not_answer_is_waited_for_by_one(void **state)
{
    struct fixture *f = *state;

    assert_true(busy_arrival_begins(&f->actions, id_a, false));
    assert_true(busy_arrival_begins(&f->actions, id_a, false)); /* it has only begun */
    busy_arrival_ends(&f->actions, id_a, true);
    hand_clock_add(LIMIT_MAIL_SLOW_MS);
    assert_false(busy_arrival_begins(&f->actions, id_a, false));
    assert_true(busy_arrival_begins(&f->actions, id_b, false));
    assert_true(busy_arrival_begins(&f->actions, id_a, true)); /* somebody who waits for this one may wait */
    busy_arrival_ends(&f->actions, id_a, false);
    assert_false(busy_arrival_begins(&f->actions, id_a, true)); /* …but not when it has not answered */
    hand_clock_add(LIMIT_INBOX_CALL_MS);
    busy_arrival_ends(&f->actions, id_a, true);
    assert_true(busy_arrival_begins(&f->actions, id_a, false));
    hand_clock_add(LIMIT_INBOX_CALL_MS);
    busy_arrival_ends(&f->actions, id_a, false);
    run_tick(f); /* it is remembered */
    hand_clock_add(LIMIT_MAIL_AWAY_MS - 1);
    assert_false(busy_arrival_begins(&f->actions, id_a, true));
    hand_clock_add(1);
    assert_true(busy_arrival_begins(&f->actions, id_a, false));
    busy_arrival_ends(&f->actions, id_a, true);
    assert_true(busy_arrival_begins(&f->actions, id_a, false));
    busy_arrival_ends(&f->actions, id_a, false); /* its worker has died at once */
    hand_clock_add(1000);
    assert_true(busy_arrival_begins(&f->actions, id_a, false));
    busy_arrival_ends(&f->actions, id_a, true);
    busy_arrival_ends(&f->actions, id_b, true);
}

static void inboxes_in_use_when_the_server_stopped_are_looked_at(void **state)
{
    struct fixture *f = *state;

    rows[1].is_dirty = true;
    run_tick(f);
    assert_int_equal(turns, 1);
    assert_false(rows[1].is_dirty);
}

static void rows_that_cannot_be_read_are_read_later(void **state)
{
    struct fixture *f = *state;

    rows[1].is_dirty = true;
    rows[0].next_us = clock_wall_us();
    rows_fail = true;
    run_tick(f);
    assert_int_equal(turns, 0);
    rows_fail = false;
    run_tick(f);
    assert_int_equal(turns, 2);
}

/* ---- failures ---- */

static void a_turn_that_fails_is_repeated_with_growing_pauses(void **state)
{
    struct fixture *f = *state;

    turn_error = ERR_UNAVAILABLE;
    mail_dispatch(&f->actions, id_a);
    assert_int_equal(turns, 1);
    run_tick(f);
    assert_int_equal(turns, 1);
    hand_clock_add(1000);
    run_tick(f);
    assert_int_equal(turns, 2);
    hand_clock_add(1000);
    run_tick(f);
    assert_int_equal(turns, 2); /* two seconds now */
    hand_clock_add(1000);
    run_tick(f);
    assert_int_equal(turns, 3);
    for (int i = 0; i < 20; i++) {
        hand_clock_add(LIMIT_MAIL_RETRY_MS);
        run_tick(f);
    }
    assert_int_equal(turns, 23);
    assert_true(rows[0].is_dirty);
    turn_error = ERR_NONE;
    hand_clock_add(LIMIT_MAIL_RETRY_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
}

static void one_inbox_that_fails_does_not_stop_another(void **state)
{
    struct fixture *f = *state;

    turn_error = ERR_INTERNAL;
    mail_dispatch(&f->actions, id_a);
    turn_error = ERR_NONE;
    change(f, id_b, clock_wall_us());
    run_tick(f);
    assert_false(rows[1].is_dirty);
    assert_true(rows[0].is_dirty);
}

static void what_is_still_queued_goes_on_at_the_next_tick(void **state)
{
    struct fixture *f = *state;

    tick.queued = 3;
    mail_dispatch(&f->actions, id_a);
    run_tick(f);
    assert_int_equal(turns, 2);
    assert_true(rows[0].is_dirty);
    tick.queued = 0;
    run_tick(f);
    assert_int_equal(turns, 3);
    assert_false(rows[0].is_dirty);
}

/* ---- rates ---- */

static void a_loop_of_sends_meets_the_limit_and_waits_for_it(void **state)
{
    struct fixture *f = *state;
    uint32_t retry_s = 0;

    for (int i = 0; i < 20; i++)
        assert_true(busy_may_send(&f->actions, id_a, &retry_s));
    assert_false(busy_may_send(&f->actions, id_a, &retry_s));
    assert_in_range(retry_s, 1, 60);
    assert_true(busy_may_send(&f->actions, id_b, &retry_s)); /* one inbox does not spend another's */
    assert_false(busy_may_send(&f->actions, id_a, &retry_s));
    hand_clock_add((uint64_t)retry_s * 1000);
    assert_true(busy_may_send(&f->actions, id_a, &retry_s));
    assert_false(busy_may_send(&f->actions, id_a, &retry_s));
}

static void forgetting_an_idle_inbox_does_not_refill_its_rate(void **state)
{
    struct fixture *f = *state;
    uint32_t retry_s;

    for (int i = 0; i < 20; i++)
        assert_true(busy_may_send(&f->actions, id_a, &retry_s));
    run_tick(f);
    assert_false(busy_may_send(&f->actions, id_a, &retry_s));
    hand_clock_add(61000);
    run_tick(f); /* forgets it: the bucket is full again */
    for (int i = 0; i < 20; i++)
        assert_true(busy_may_send(&f->actions, id_a, &retry_s));
    assert_false(busy_may_send(&f->actions, id_a, &retry_s));
}

/* ---- many threads ---- */

static void *change_often(void *context)
{
    struct fixture *f = context;

    for (int i = 0; i < 500; i++) {
        change(f, i % 2 ? id_a : id_b, 0);
        if (i % 50 == 0)
            run_tick(f);
    }
    return NULL;
}

static void threads_leave_no_mark_behind(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[4];

    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, change_often, f), 0);
    for (int i = 0; i < 20; i++) {
        hand_clock_add(LIMIT_MAIL_QUIET_MS);
        run_tick(f);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
    hand_clock_add(LIMIT_MAIL_QUIET_MS);
    run_tick(f);
    assert_false(rows[0].is_dirty);
    assert_false(rows[1].is_dirty);
}

#define RUN(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(the_row_is_marked_once_and_cleared_when_the_inbox_is_quiet),
        RUN(a_change_that_cannot_be_marked_does_not_begin),
        RUN(a_change_during_the_tick_keeps_the_mark),
        RUN(a_change_that_ends_during_the_tick_keeps_the_mark),
        RUN(an_inbox_in_use_keeps_the_mark),
        RUN(a_timer_runs_though_the_inbox_is_not_quiet),
        RUN(a_timer_in_a_row_runs_when_its_time_has_come),
        RUN(a_timer_that_a_tick_has_found_is_kept),
        RUN(more_timers_than_one_tick_takes_are_not_forgotten),
        RUN(inboxes_that_are_always_due_leave_turns_to_others),
        RUN(a_tick_that_waits_for_a_stuck_inbox_leaves_the_others_to_the_next_one),
        RUN(an_inbox_from_which_somebody_sends_holds_up_no_tick),
        RUN(a_recipient_that_does_not_answer_is_waited_for_by_one),
        RUN(inboxes_in_use_when_the_server_stopped_are_looked_at),
        RUN(rows_that_cannot_be_read_are_read_later),
        RUN(a_turn_that_fails_is_repeated_with_growing_pauses),
        RUN(one_inbox_that_fails_does_not_stop_another),
        RUN(what_is_still_queued_goes_on_at_the_next_tick),
        RUN(a_loop_of_sends_meets_the_limit_and_waits_for_it),
        RUN(forgetting_an_idle_inbox_does_not_refill_its_rate),
        RUN(threads_leave_no_mark_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
