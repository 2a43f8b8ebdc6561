#include "io/worker.h"

#include <pthread.h>

#include "io/pump.h"

struct counted_job {
    struct job job;
    unsigned number;
};

static struct loop *loop;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned run_count, done_count, order_of_runs[200];

static void run(struct job *job)
{
    assert_false(loop_is_here(loop));
    pthread_mutex_lock(&lock);
    order_of_runs[run_count++] = container_of(job, struct counted_job, job)->number;
    pthread_mutex_unlock(&lock);
}

static void done(struct job *job)
{
    (void)job;
    assert_true(loop_is_here(loop));
    done_count++;
}

static struct counted_job jobs[200];

static void run_jobs(unsigned threads)
{
    loop = loop_new();
    run_count = done_count = 0;
    struct workers *workers = workers_new(loop, threads);
    for (unsigned i = 0; i < COUNT_OF(jobs); i++) {
        jobs[i] = (struct counted_job){ .job = { .run = run, .done = done }, .number = i };
        workers_run(workers, &jobs[i].job);
    }
    PUMP_UNTIL(loop, done_count == COUNT_OF(jobs));
    workers_free(workers);
    loop_free(loop);
}

static void every_job_runs_once_and_is_done_on_the_loop(void **state)
{
    (void)state;
    run_jobs(4);
    assert_int_equal(run_count, COUNT_OF(jobs));
}

static void one_worker_runs_jobs_in_the_order_they_came(void **state)
{
    (void)state;
    run_jobs(1);
    for (unsigned i = 0; i < COUNT_OF(jobs); i++)
        assert_int_equal(order_of_runs[i], i);
}

static int gate[2];

static void wait_for_the_gate(struct job *job)
{
    char byte;

    assert_int_equal(read(gate[0], &byte, 1), 1);
    run(job);
}

static void workers_end_whether_idle_or_never_started(void **state)
{
    (void)state;
    run_jobs(3);
    loop = loop_new();
    workers_free(workers_new(loop, 3));
    workers_free(NULL);
    loop_free(loop);
}

static void a_second_thread_starts_when_the_first_is_busy(void **state)
{
    (void)state;
    loop = loop_new();
    run_count = done_count = 0;
    assert_int_equal(pipe(gate), 0);
    struct workers *workers = workers_new(loop, 2);
    jobs[0].job = (struct job){ .run = wait_for_the_gate, .done = done };
    jobs[1].job = (struct job){ .run = run, .done = done };
    workers_run(workers, &jobs[0].job);
    workers_run(workers, &jobs[1].job);
    PUMP_UNTIL(loop, done_count == 1); /* while the other still waits */
    assert_int_equal(write(gate[1], "x", 1), 1);
    PUMP_UNTIL(loop, done_count == 2);
    workers_free(workers);
    loop_free(loop);
    close(gate[0]), close(gate[1]);
}

/* ---- lanes ---- */

static const struct lane_rule narrow = { .most = 3, .most_each = 2, .waiting_each = 4, .weight_each = 100 };

static unsigned seen_running(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = run_count;
    pthread_mutex_unlock(&lock);
    return count;
}

static void run_and_wait_for_the_gate(struct job *job)
{
    char byte;

    run(job);
    assert_int_equal(read(gate[0], &byte, 1), 1);
}

static void open_gate(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_int_equal(write(gate[1], "x", 1), 1);
}

static struct workers *lane_set_up(struct lane **out_lane)
{
    loop = loop_new();
    run_count = done_count = 0;
    assert_int_equal(pipe(gate), 0);
    struct workers *workers = workers_new(loop, 8);
    *out_lane = lane_new(workers, &narrow);
    return workers;
}

static void lane_tear_down(struct workers *workers)
{
    workers_free(workers);
    loop_free(loop);
    close(gate[0]), close(gate[1]);
}

static bool put(struct lane *lane, const char *owner, unsigned number, size_t weight)
{
    jobs[number] = (struct counted_job){ .job = { .run = run_and_wait_for_the_gate, .done = done }, .number = number };
    return lane_run(lane, str_from(owner), weight, &jobs[number].job);
}

static void an_owner_has_its_share_of_a_lane_and_the_others_theirs(void **state)
{
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_true(put(lane, "a", i, 0)); /* two go, two wait */
    PUMP_UNTIL(loop, seen_running() == 2);
    assert_true(put(lane, "b", 4, 0));
    PUMP_UNTIL(loop, seen_running() == 3);
    assert_int_equal(order_of_runs[2], 4);
    assert_true(put(lane, "b", 5, 0)); /* b might have two, but the lane has only three */
    pump_some(loop);
    assert_int_equal(seen_running(), 3);
    assert_int_equal(workers_busy(workers), 6);
    /* What is in no lane finds a worker. */
    jobs[6].job = (struct job){ .run = run, .done = done };
    workers_run(workers, &jobs[6].job);
    PUMP_UNTIL(loop, done_count == 1);
    open_gate(6);
    PUMP_UNTIL(loop, done_count == 7);
    PUMP_UNTIL(loop, workers_busy(workers) == 0); /* done() may come a moment before the worker is free */
    lane_tear_down(workers);
}

static void what_waits_in_a_lane_goes_on_in_the_order_it_came(void **state)
{
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        assert_true(put(lane, "a", i, 0));
    for (unsigned i = 0; i < 4; i++) {
        PUMP_UNTIL(loop, seen_running() == 2 + i);
        open_gate(1);
        PUMP_UNTIL(loop, seen_running() == 3 + i);
        assert_int_equal(order_of_runs[2 + i], 2 + i);
    }
    open_gate(2);
    PUMP_UNTIL(loop, done_count == 6);
    lane_tear_down(workers);
}

static void a_job_leaves_a_lane_only_while_it_waits(void **state)
{
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        assert_true(put(lane, "a", i, 0));
    assert_true(lane_leave(lane, &jobs[3].job)); /* from the middle, */
    assert_false(lane_leave(lane, &jobs[3].job));
    assert_true(lane_leave(lane, &jobs[4].job)); /* and from the end */
    PUMP_UNTIL(loop, seen_running() == 2);
    assert_false(lane_leave(lane, &jobs[0].job));
    assert_true(put(lane, "a", 5, 0));
    open_gate(4);
    PUMP_UNTIL(loop, done_count == 4);
    assert_false(lane_leave(lane, &jobs[0].job));
    assert_int_equal(order_of_runs[2] + order_of_runs[3], 2 + 5);
    lane_tear_down(workers);
}

static void what_an_owner_has_waiting_is_bounded_by_number_and_by_weight(void **state)
{
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    assert_true(put(lane, "a", 0, 1000) && put(lane, "a", 1, 1000)); /* these do not wait */
    assert_true(put(lane, "a", 2, 60));
    assert_false(put(lane, "a", 3, 41));
    assert_true(put(lane, "a", 3, 40));
    assert_true(put(lane, "a", 4, 0) && put(lane, "a", 5, 0));
    assert_false(put(lane, "a", 6, 0)); /* four wait */
    assert_true(put(lane, "b", 6, 0));
    open_gate(7);
    PUMP_UNTIL(loop, done_count == 7);
    PUMP_UNTIL(loop, workers_busy(workers) == 0); /* a job leaves its lane a moment after done() */
    assert_true(put(lane, "a", 0, 1000));         /* as if nothing had been */
    open_gate(1);
    PUMP_UNTIL(loop, done_count == 8);
    lane_tear_down(workers);
}

static void what_an_owner_has_at_work_counts_where_the_lane_says_so(void **state)
{
    const struct lane_rule heavy = {
        .most = 3, .most_each = 2, .waiting_each = 4, .weight_each = 100, .total_each = 100
    };
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    lane = lane_new(workers, &heavy);
    assert_true(put(lane, "a", 0, 1000)); /* alone it may weigh as much as it likes */
    assert_false(put(lane, "a", 1, 1));
    assert_true(put(lane, "a", 1, 0));
    assert_true(put(lane, "b", 2, 60));
    assert_false(put(lane, "b", 3, 41));
    assert_true(put(lane, "b", 3, 40)); /* waits: the lane has three */
    assert_false(put(lane, "b", 4, 1));
    assert_true(lane_leave(lane, &jobs[3].job));
    assert_true(put(lane, "b", 3, 40));
    open_gate(4);
    PUMP_UNTIL(loop, done_count == 4);
    PUMP_UNTIL(loop, workers_busy(workers) == 0);
    assert_true(put(lane, "a", 0, 1000)); /* as if nothing had been */
    open_gate(1);
    PUMP_UNTIL(loop, done_count == 5);
    lane_tear_down(workers);
}

static void workers_end_while_jobs_wait_in_a_lane(void **state)
{
    struct lane *lane;
    struct workers *workers = lane_set_up(&lane);

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        assert_true(put(lane, "a", i, 0));
    PUMP_UNTIL(loop, seen_running() == 2);
    open_gate(6);
    lane_tear_down(workers);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_job_runs_once_and_is_done_on_the_loop),
        CASE(one_worker_runs_jobs_in_the_order_they_came),
        CASE(workers_end_whether_idle_or_never_started),
        CASE(a_second_thread_starts_when_the_first_is_busy),
        CASE(an_owner_has_its_share_of_a_lane_and_the_others_theirs),
        CASE(what_waits_in_a_lane_goes_on_in_the_order_it_came),
        CASE(a_job_leaves_a_lane_only_while_it_waits),
        CASE(what_an_owner_has_waiting_is_bounded_by_number_and_by_weight),
        CASE(what_an_owner_has_at_work_counts_where_the_lane_says_so),
        CASE(workers_end_while_jobs_wait_in_a_lane),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
