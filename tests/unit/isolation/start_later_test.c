/*
 * Starts that keeper does not wait for: several at once, and what may happen to one on its way. A gate, a pipe that the
 * children read from, makes them as slow as a case wants.
 */
#include "isolation/native/start.h"

#include "native_world.h"

struct starting {
    struct loop *loop; /* NULL: it is not run for this answer */
    bool is_answered;
    int fd; /* guestlink; -1: it failed */
    struct err err;
};

static void note_started(void *context, const struct started *started, const struct err *err)
{
    struct starting *starting = context;

    assert_false(starting->is_answered);
    starting->is_answered = true;
    starting->fd = started ? started->guestlink_fd : -1;
    if (err)
        starting->err = *err;
    if (starting->loop)
        loop_stop_soon(starting->loop);
}

static void begin(struct world *world, const struct plan *plan, struct starting *starting)
{
    *starting = (struct starting){ .fd = -1 };
    world->driver->ops->start_later(world->driver, plan, note_started, starting);
}

static void await(struct world *world, struct starting *starting)
{
    starting->loop = world->loop;
    while (!starting->is_answered)
        loop_run(world->loop);
}

static void await_fine(struct world *world, struct starting *starting)
{
    await(world, starting);
    if (starting->fd < 0)
        fail_msg("%s", err_text(&starting->err));
}

/* Children wait at it, and one goes on for each byte. */
static void shut_gate(struct world *world, int gate[2])
{
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    native_gate_children(world->driver, gate[0]);
}

static void let_go(const int gate[2], size_t count)
{
    assert_int_equal(write(gate[1], "gogogogo", count), (ssize_t)count);
}

static void open_gate(struct world *world, int gate[2])
{
    if (world->driver)
        native_gate_children(world->driver, -1);
    fd_close(&gate[0]);
    fd_close(&gate[1]);
}

static void two_starts_at_once_both_succeed(void **state)
{
    struct world *world = *state;
    struct plan one = a_plan("sandbox1"), two = a_plan("sandbox2");
    struct starting first, second;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &one, &first);
    begin(world, &two, &second);
    turn_for(world->loop, 50);
    assert_false(first.is_answered || second.is_answered);
    assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
    assert_int_equal(state_of(world, "sandbox2"), HELD_STATE_COUNT);
    let_go(gate, 2);
    await_fine(world, &first);
    await_fine(world, &second);
    open_gate(world, gate);
    check_says(first.fd, "ping", "pong");
    check_says(second.fd, "ping", "pong");
    assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
    assert_int_equal(state_of(world, "sandbox2"), HELD_RUNNING);
    fd_close(&first.fd);
    fd_close(&second.fd);
    assert_true(stop(world, "sandbox1") && stop(world, "sandbox2"));
    assert_int_equal(world->exits, 2);
    check_at_rest(world);
}

static void others_are_served_while_a_child_is_slow(void **state)
{
    struct world *world = *state;
    struct plan slow = a_plan("slow"), other = a_plan("other"), last = a_plan("last");
    struct starting starting;
    struct held which = { .id = "other" };
    struct stats stats;
    uint32_t count;
    struct err err;
    int gate[2];

    (void)close(start(world, &other));
    shut_gate(world, gate);
    begin(world, &slow, &starting);
    native_gate_children(world->driver, -1);
    turn_for(world->loop, 50);

    auto_close int link_fd = -1;
    assert_true(driver_link(world->driver, "other", &link_fd, &err));
    check_says(link_fd, "ping", "pong");
    assert_true(driver_stats(world->driver, &which, 1, &stats, &count, &err));
    assert_int_equal(count, 1);
    assert_false(driver_link(world->driver, "slow", &link_fd, &err)); /* it is not there yet */
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_int_equal(freeze(world, "slow"), ERR_NOT_FOUND);
    struct starting quick;
    begin(world, &last, &quick);
    await_fine(world, &quick);
    check_says(quick.fd, "ping", "pong");
    assert_true(stop(world, "other"));
    assert_false(starting.is_answered);

    let_go(gate, 1);
    await_fine(world, &starting);
    open_gate(world, gate);
    check_says(starting.fd, "ping", "pong");
    fd_close(&starting.fd);
    fd_close(&quick.fd);
    assert_true(stop(world, "slow") && stop(world, "last"));
    check_at_rest(world);
}

static void a_second_start_of_the_same_is_refused(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct starting first, second;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &plan, &first);
    begin(world, &plan, &second);
    assert_true(second.is_answered);
    assert_int_equal(second.err.kind, ERR_CONFLICT);
    let_go(gate, 1);
    await_fine(world, &first);
    open_gate(world, gate);
    fd_close(&first.fd);
}

static void a_stop_ends_a_start_under_way(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct starting starting;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &plan, &starting);
    turn_for(world->loop, 20);
    assert_true(stop(world, "sandbox1"));
    assert_true(starting.is_answered);
    assert_int_equal(starting.err.kind, ERR_CONFLICT);
    open_gate(world, gate);
    check_at_rest(world);
    /* At other moments, too: it has started by then, or it has not. */
    for (unsigned turns = 0; turns < 12; turns++) {
        begin(world, &plan, &starting);
        for (unsigned i = 0; i < turns && !starting.is_answered; i++)
            turn_for(world->loop, 1);
        assert_true(stop(world, "sandbox1"));
        assert_true(starting.is_answered);
        fd_close(&starting.fd);
    }
    check_at_rest(world);
}

static void a_start_that_fails_at_any_step_leaves_nothing(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1"), other = a_plan("other");
    struct starting starting, beside;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &other, &beside);
    native_gate_children(world->driver, -1);
    for (int step = NATIVE_NOWHERE + 1; step < NATIVE_STEP_COUNT; step++) {
        native_fail_at(world->driver, (enum native_step)step);
        begin(world, &plan, &starting);
        await(world, &starting);
        if (!strstr(starting.err.message, "on purpose"))
            fail_msg("step %d: %s", step, err_text(&starting.err));
        assert_true(stop(world, "sandbox1"));
        for (int i = 0; i < 300 && exists(world, "sandboxes/sandbox1"); i++)
            turn_for(world->loop, 10);
        assert_false(exists(world, "sandboxes/sandbox1"));
    }
    native_fail_at(world->driver, NATIVE_NOWHERE);
    let_go(gate, 1);
    await_fine(world, &beside); /* it knows nothing of all this */
    open_gate(world, gate);
    check_says(beside.fd, "ping", "pong");
    fd_close(&beside.fd);
    assert_int_equal(world->exits, 0); /* what never ran does not exit */
    assert_true(stop(world, "other"));
    check_at_rest(world);
}

static void a_child_that_is_stopped_or_killed_is_noticed(void **state)
{
    static const struct {
        int signal;
        const char *says;
    } cases[] = { { SIGSTOP, "stopped by a signal" }, { SIGKILL, "ended without a message" } };
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct starting starting;
    int gate[2];

    shut_gate(world, gate);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        begin(world, &plan, &starting);
        assert_int_equal(kill(native_pid_of(world->driver, "sandbox1"), cases[i].signal), 0);
        await(world, &starting);
        if (!strstr(err_text(&starting.err), cases[i].says))
            fail_msg("%s", err_text(&starting.err));
        check_at_rest(world);
    }
    open_gate(world, gate);
}

/* ---- of what was parked ---- */

static struct plan parked_plan(struct world *world, const char *id)
{
    struct plan plan = a_plan(id);

    (void)close(start(world, &plan));
    assert_int_equal(park(world, id), ERR_NONE);
    plan.from = PLAN_PARKED;
    return plan;
}

static void check_comes_back(struct world *world, const struct plan *plan)
{
    struct starting starting;

    /* For a moment what is left of the last start is in the way. */
    for (int i = 0; i < 300; i++) {
        begin(world, plan, &starting);
        await(world, &starting);
        if (starting.fd >= 0 || starting.err.kind != ERR_CONFLICT)
            break;
        turn_for(world->loop, 10);
    }
    if (starting.fd < 0)
        fail_msg("%s", err_text(&starting.err));
    check_says(starting.fd, "ping", "pong");
    assert_int_equal(state_of(world, plan->id), HELD_RUNNING);
    fd_close(&starting.fd);
}

static void a_start_that_is_cancelled_leaves_it_parked(void **state)
{
    struct world *world = *state;
    struct plan plan = parked_plan(world, "sandbox1"), fresh = a_plan("sandbox2");
    struct starting starting, beside, again;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &plan, &starting);
    begin(world, &fresh, &beside);
    turn_for(world->loop, 20);
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    begin(world, &plan, &again);
    assert_true(again.is_answered);
    assert_int_equal(again.err.kind, ERR_CONFLICT);
    world->driver->ops->start_cancel(world->driver, "sandbox1");
    world->driver->ops->start_cancel(world->driver, "sandbox2");
    world->driver->ops->start_cancel(world->driver, "nothing");
    assert_true(starting.is_answered && beside.is_answered);
    assert_int_equal(starting.err.kind, ERR_UNAVAILABLE);
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    open_gate(world, gate);
    check_comes_back(world, &plan);
    world->driver->ops->start_cancel(world->driver, "sandbox1"); /* too late: it runs */
    assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
    assert_true(stop(world, "sandbox1"));
    check_at_rest(world);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
}

static void a_stop_of_what_comes_back_discards_it(void **state)
{
    struct world *world = *state;
    struct plan plan = parked_plan(world, "sandbox1");
    struct starting starting;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &plan, &starting);
    turn_for(world->loop, 20);
    assert_true(stop(world, "sandbox1"));
    assert_true(starting.is_answered && starting.fd < 0);
    open_gate(world, gate);
    check_at_rest(world);
    assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
}

static void what_was_parked_stays_so_if_its_start_fails_at_any_step(void **state)
{
    struct world *world = *state;
    struct plan plan = parked_plan(world, "sandbox1");

    for (int step = NATIVE_NOWHERE + 1; step < NATIVE_STEP_COUNT; step++) {
        struct starting starting;
        native_fail_at(world->driver, (enum native_step)step);
        begin(world, &plan, &starting);
        await(world, &starting);
        if (!strstr(starting.err.message, "on purpose"))
            fail_msg("step %d: %s", step, err_text(&starting.err));
        assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
        check_at_rest(world);
    }
    native_fail_at(world->driver, NATIVE_NOWHERE);
    check_comes_back(world, &plan);
}

/* ---- the end of keeper ---- */

static void a_driver_that_is_freed_answers_and_the_next_one_clears_up(void **state)
{
    struct world *world = *state;
    struct plan plan = parked_plan(world, "sandbox1"), fresh = a_plan("sandbox2");
    struct starting starting, beside;
    int gate[2];

    shut_gate(world, gate);
    begin(world, &plan, &starting);
    begin(world, &fresh, &beside);
    turn_for(world->loop, 20);
    driver_free(world->driver);
    world->driver = NULL;
    assert_true(starting.is_answered && beside.is_answered);
    assert_int_equal(starting.err.kind, ERR_UNAVAILABLE);
    assert_int_equal(beside.err.kind, ERR_UNAVAILABLE);
    open_gate(world, gate);
    new_driver(world);
    check_at_rest(world);
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    assert_int_equal(state_of(world, "sandbox2"), HELD_STATE_COUNT);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 1);
    check_comes_back(world, &plan);
}

/* One that waits at a gate which nobody opens, and one that comes to the step. */
static void start_two(struct world *world)
{
    struct plan slow = a_plan("slow"), plan = a_plan("sandbox1");
    struct starting starting, beside;
    int gate[2];

    plan.from = PLAN_PARKED;
    shut_gate(world, gate);
    begin(world, &slow, &beside);
    native_gate_children(world->driver, -1);
    begin(world, &plan, &starting);
    await(world, &starting);
}

static void a_keeper_killed_at_any_step_leaves_nothing_half_made(void **state)
{
    struct world *world = *state;
    struct plan plan = parked_plan(world, "sandbox1");

    for (int step = NATIVE_AT_LINK; step <= NATIVE_AT_GO; step++) {
        killed_at(world, (enum native_step)step, start_two);
        assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
        assert_int_equal(state_of(world, "slow"), HELD_STATE_COUNT);
        check_at_rest(world);
        assert_int_equal(count_names(world->data_fd, "sandboxes"), 1);
    }
    check_comes_back(world, &plan);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        NATIVE_CASE(two_starts_at_once_both_succeed),
        NATIVE_CASE(others_are_served_while_a_child_is_slow),
        NATIVE_CASE(a_second_start_of_the_same_is_refused),
        NATIVE_CASE(a_stop_ends_a_start_under_way),
        NATIVE_CASE(a_start_that_fails_at_any_step_leaves_nothing),
        NATIVE_CASE(a_child_that_is_stopped_or_killed_is_noticed),
        NATIVE_CASE(a_start_that_is_cancelled_leaves_it_parked),
        NATIVE_CASE(a_stop_of_what_comes_back_discards_it),
        NATIVE_CASE(what_was_parked_stays_so_if_its_start_fails_at_any_step),
        NATIVE_CASE(a_driver_that_is_freed_answers_and_the_next_one_clears_up),
        NATIVE_CASE(a_keeper_killed_at_any_step_leaves_nothing_half_made),
    };

    return run_cases(cases, COUNT_OF(cases), argc, argv);
}
