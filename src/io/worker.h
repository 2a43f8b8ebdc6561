/*
 * worker.h - a pool of threads for calls that may block.
 *
 * A control call is a job. run() executes on a worker and may block on the store, on keeper or on a disk; done() then
 * executes on the loop.
 *
 * A lane is a queue for jobs that a caller can make slow. It limits how many of its jobs have a worker at once, in all
 * and per owner. The rest wait in the lane and use no worker: first come first served within an owner, round robin
 * between owners. So other jobs always find a worker, and an owner with slow jobs delays only itself.
 *
 * Threads    Every function may be called from any thread.
 */
#ifndef IO_WORKER_H
#define IO_WORKER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/queue.h"
#include "base/str.h"
#include "io/loop.h"

struct lane_owner;

struct job {
    void (*run)(struct job *job);  /* on a worker */
    void (*done)(struct job *job); /* then on the loop; the job's memory is the caller's again */
    /* private */
    struct loop *loop;
    struct loop_task task;
    struct queue_link place;  /* among the workers' jobs, or its owner's while it waits in a lane */
    struct lane_owner *owner; /* in a lane */
    size_t weight;
};

struct workers; /* starts threads as jobs arrive */
struct workers *workers_new(struct loop *loop, unsigned threads_max) must_use;
/* Waits for jobs that run. Jobs that have not started are dropped without done(). */
void workers_free(struct workers *workers);
unsigned workers_busy(struct workers *workers); /* jobs that wait or run */
void workers_run(struct workers *workers, struct job *job);

struct lane_rule {
    unsigned most;         /* jobs that have a worker at once, or are next to get one */
    unsigned most_each;    /* the same for one owner */
    unsigned waiting_each; /* jobs of one owner that wait */
    size_t weight_each;    /* their total weight */
    size_t total_each;     /* the same with those that have a worker; one alone may weigh more. 0: any */
};

struct lane; /* lives as long as its workers */
struct lane *lane_new(struct workers *workers, const struct lane_rule *rule) must_use;
/* `weight`: memory that the job holds. False: this owner has too many waiting, and nothing was done. */
bool lane_run(struct lane *lane, struct str owner, size_t weight, struct job *job) must_use;
/* True: it was waiting and will not run; its memory is the caller's again and done() is not called. */
bool lane_leave(struct lane *lane, struct job *job) must_use;

#endif
