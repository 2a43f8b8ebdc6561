/*
 * worker.h - threads that may wait.
 *
 * A control call is a job: run() on a worker reads from top to bottom and may wait for the store, for keeper or for a
 * disk; done() follows on the loop.
 *
 * A lane is for jobs that may wait long because of somebody: of all its jobs only so many have a worker at once, and of
 * one owner's fewer still. The others wait in the lane, which takes no worker, each owner's in the order they came; when
 * one can go on the owners take turns. So there is always a worker for what is not in the lane, and whoever makes their
 * own jobs slow has only their own jobs wait.
 *
 * Threads    Every function from any thread.
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

struct workers; /* threads start when the first jobs come */
struct workers *workers_new(struct loop *loop, unsigned threads_max) must_use;
/* Waits for what runs; jobs that did not start are dropped without done(). */
void workers_free(struct workers *workers);
unsigned workers_busy(struct workers *workers); /* jobs that wait or run */
void workers_run(struct workers *workers, struct job *job);

struct lane_rule {
    unsigned most;         /* jobs that have a worker at once, or are next to get one */
    unsigned most_each;    /* of one owner's */
    unsigned waiting_each; /* that wait for it, of one owner's */
    size_t weight_each;    /* what those may weigh together */
};

struct lane; /* lives as long as its workers */
struct lane *lane_new(struct workers *workers, const struct lane_rule *rule) must_use;
/* `weight`: what keeping the job costs while it waits. False, and nothing happened: too many of this owner's wait. */
bool lane_run(struct lane *lane, struct str owner, size_t weight, struct job *job) must_use;
/* True: it was still waiting, will not run, and its memory is the caller's again, without done(). */
bool lane_leave(struct lane *lane, struct job *job) must_use;

#endif
