/*
 * worker.h - threads that may wait.
 *
 * A control call is a job: run() on a worker reads from top to bottom and may wait for the store, for keeper or for a
 * disk; done() follows on the loop.
 */
#ifndef IO_WORKER_H
#define IO_WORKER_H

#include "io/loop.h"

struct job {
    void (*run)(struct job *job);  /* on a worker */
    void (*done)(struct job *job); /* then on the loop; the job's memory is the caller's again */
    /* private */
    struct loop *loop;
    struct loop_task task;
    struct job *next;
};

struct workers; /* threads start when the first jobs come */
struct workers *workers_new(struct loop *loop, unsigned threads_max) must_use;
/* Waits for what runs; jobs that did not start are dropped without done(). */
void workers_free(struct workers *workers);
unsigned workers_busy(struct workers *workers); /* jobs that wait or run */
void workers_run(struct workers *workers, struct job *job);

#endif
