#include "io/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

/* Exists while the owner has jobs in the lane, running or waiting. */
struct lane_owner {
    struct lane *lane;
    struct str id; /* a copy that it owns */
    unsigned running, waiting;
    size_t weight; /* of those that wait */
    size_t total;  /* of all */
    struct queue jobs;
    struct queue_link turn; /* in the lane's queue while some wait */
};

struct lane {
    struct workers *workers;
    struct lane_rule rule;
    unsigned running;
    struct map owners;
    struct queue turns; /* owners whose jobs wait, least recently served first */
    struct lane *next;
};

struct workers {
    struct loop *loop;
    unsigned threads_max;
    pthread_t *threads;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t wake;
    struct queue jobs;
    unsigned queued, running, waiting, started;
    unsigned in_lanes; /* jobs that wait in a lane */
    struct lane *lanes;
    bool stopping;
};

static void job_is_done(struct loop_task *task)
{
    struct job *job = container_of(task, struct job, task);

    job->done(job);
}

static struct job *first_of(const struct queue *jobs)
{
    return jobs->first ? container_of(jobs->first, struct job, place) : NULL;
}

static void enqueue(struct workers *workers, struct job *job);

/* ---- lanes; all with the lock held ---- */

static void owner_free(struct lane_owner *owner)
{
    free((char *)owner->id.at);
    free(owner);
}

static void owner_drop_if_unused(struct lane_owner *owner)
{
    if (owner->running || owner->waiting)
        return;
    (void)map_remove(&owner->lane->owners, owner->id);
    owner_free(owner);
}

static struct lane_owner *owner_of(struct lane *lane, struct str id)
{
    struct lane_owner *owner = map_get(&lane->owners, id);

    if (!owner) {
        owner = NEW(struct lane_owner);
        owner->lane = lane;
        char *copy = mem_new(id.len + 1);
        if (id.len)
            memcpy(copy, id.at, id.len);
        owner->id = str_of(copy, id.len);
        (void)map_put(&lane->owners, owner->id, owner);
    }
    return owner;
}

static void job_wait(struct lane_owner *owner, struct job *job)
{
    if (!owner->waiting++)
        queue_join(&owner->lane->turns, &owner->turn);
    queue_join(&owner->jobs, &job->place);
    owner->weight += job->weight;
    owner->lane->workers->in_lanes++;
}

static void job_stop_waiting(struct lane_owner *owner, struct job *job)
{
    queue_leave(&job->place);
    owner->weight -= job->weight;
    owner->lane->workers->in_lanes--;
    if (!--owner->waiting)
        queue_leave(&owner->turn);
}

static void job_go(struct lane_owner *owner, struct job *job)
{
    owner->running++;
    owner->lane->running++;
    enqueue(owner->lane->workers, job);
}

/* Start a job of the next owner that is below its limit, if the lane is below its own. */
static void lane_go_on(struct lane *lane)
{
    if (lane->running >= lane->rule.most)
        return;
    for (struct queue_link *turn = lane->turns.first; turn; turn = turn->next) {
        struct lane_owner *owner = container_of(turn, struct lane_owner, turn);
        if (owner->running >= lane->rule.most_each)
            continue;
        struct job *job = first_of(&owner->jobs);
        queue_join(&lane->turns, turn); /* last from here on */
        job_stop_waiting(owner, job);
        job_go(owner, job);
        return;
    }
}

static void owner_job_ended(struct lane_owner *owner, size_t weight)
{
    struct lane *lane = owner->lane;

    owner->running--;
    owner->total -= weight;
    lane->running--;
    lane_go_on(lane);
    owner_drop_if_unused(owner);
}

static void lane_free(struct lane *lane)
{
    struct lane_owner *owner;

    for (size_t i = 0; (owner = map_next(&lane->owners, &i));)
        owner_free(owner);
    map_done(&lane->owners);
    free(lane);
}

/* ---- threads ---- */

static void *work(void *argument)
{
    struct workers *workers = argument;

    (void)pthread_mutex_lock(&workers->lock);
    while (!workers->stopping) {
        struct job *job = first_of(&workers->jobs);
        if (!job) {
            workers->waiting++;
            (void)pthread_cond_wait(&workers->wake, &workers->lock);
            workers->waiting--;
            continue;
        }
        queue_leave(&job->place);
        workers->queued--;
        workers->running++;
        (void)pthread_mutex_unlock(&workers->lock);
        struct lane_owner *owner = job->owner;
        size_t weight = job->weight;
        job->run(job);
        job->task.fn = job_is_done;
        loop_post(job->loop, &job->task);
        (void)pthread_mutex_lock(&workers->lock);
        workers->running--;
        if (owner)
            owner_job_ended(owner, weight);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return NULL;
}

struct workers *workers_new(struct loop *loop, unsigned threads_max)
{
    struct workers *workers = NEW(struct workers);

    workers->loop = loop;
    workers->threads_max = threads_max ? threads_max : 1;
    workers->threads = mem_new(workers->threads_max * sizeof *workers->threads);
    (void)pthread_mutex_init(&workers->lock, NULL);
    (void)pthread_cond_init(&workers->wake, NULL);
    return workers;
}

/* With the lock held. */
static void start_thread(struct workers *workers)
{
    sigset_t all, before;

    /* Signals are handled by the loop's thread: workers block them all. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&workers->threads[workers->started], NULL, work, workers);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure == 0)
        workers->started++;
    else if (workers->started == 0)
        log_die("worker: cannot start a thread: %s", strerror(failure));
    /* else the job waits for a thread that runs already */
}

unsigned workers_busy(struct workers *workers)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&workers->lock);

    return workers->queued + workers->running + workers->in_lanes;
}

/* With the lock held. */
static void enqueue(struct workers *workers, struct job *job)
{
    queue_join(&workers->jobs, &job->place);
    workers->queued++;
    if (workers->queued > workers->waiting && workers->started < workers->threads_max)
        start_thread(workers);
    (void)pthread_cond_signal(&workers->wake);
}

void workers_run(struct workers *workers, struct job *job)
{
    job->loop = workers->loop;
    job->place = (struct queue_link){ 0 };
    job->owner = NULL;
    auto_unlock pthread_mutex_t *held = lock_mutex(&workers->lock);
    enqueue(workers, job);
}

struct lane *lane_new(struct workers *workers, const struct lane_rule *rule)
{
    struct lane *lane = NEW(struct lane);

    lane->workers = workers;
    lane->rule = *rule;
    map_init(&lane->owners);
    auto_unlock pthread_mutex_t *held = lock_mutex(&workers->lock);
    lane->next = workers->lanes;
    workers->lanes = lane;
    return lane;
}

static bool is_too_heavy(const struct lane_owner *owner, size_t weight)
{
    size_t most = owner->lane->rule.total_each;

    return most && owner->total && weight > most - MIN(owner->total, most);
}

bool lane_run(struct lane *lane, struct str owner_id, size_t weight, struct job *job)
{
    const struct lane_rule *rule = &lane->rule;
    auto_unlock pthread_mutex_t *held = lock_mutex(&lane->workers->lock);
    struct lane_owner *owner = owner_of(lane, owner_id);
    bool may_go = lane->running < rule->most && owner->running < rule->most_each && !owner->waiting;

    if ((!may_go && (owner->waiting >= rule->waiting_each || weight > rule->weight_each - owner->weight)) ||
        is_too_heavy(owner, weight)) {
        owner_drop_if_unused(owner);
        return false;
    }
    job->loop = lane->workers->loop;
    job->owner = owner;
    job->weight = weight;
    owner->total += weight;
    job->place = (struct queue_link){ 0 };
    if (may_go)
        job_go(owner, job);
    else
        job_wait(owner, job);
    return true;
}

bool lane_leave(struct lane *lane, struct job *job)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&lane->workers->lock);
    struct lane_owner *owner = job->owner;

    if (!job->place.in || job->place.in == &lane->workers->jobs)
        return false; /* it runs, or is next to */
    job_stop_waiting(owner, job);
    owner->total -= job->weight;
    owner_drop_if_unused(owner);
    return true;
}

void workers_free(struct workers *workers)
{
    if (!workers)
        return;
    (void)pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    (void)pthread_cond_broadcast(&workers->wake);
    (void)pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->started; i++)
        (void)pthread_join(workers->threads[i], NULL);
    for (struct lane *lane = workers->lanes, *next; lane; lane = next) {
        next = lane->next;
        lane_free(lane);
    }
    (void)pthread_cond_destroy(&workers->wake);
    (void)pthread_mutex_destroy(&workers->lock);
    free(workers->threads);
    free(workers);
}
