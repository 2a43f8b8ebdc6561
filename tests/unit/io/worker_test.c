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

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_job_runs_once_and_is_done_on_the_loop),
        CASE(one_worker_runs_jobs_in_the_order_they_came),
        CASE(workers_end_whether_idle_or_never_started),
        CASE(a_second_thread_starts_when_the_first_is_busy),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
