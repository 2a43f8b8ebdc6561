#include "io/worker.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"

struct workers {
    struct loop *loop;
    unsigned threads_max;
    pthread_t *threads;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t wake;
    struct job *first, *last;
    unsigned queued, running, waiting, started;
    bool stopping;
};

static void job_is_done(struct loop_task *task)
{
    struct job *job = container_of(task, struct job, task);

    job->done(job);
}

static void *work(void *argument)
{
    struct workers *workers = argument;

    (void)pthread_mutex_lock(&workers->lock);
    while (!workers->stopping) {
        struct job *job = workers->first;
        if (!job) {
            workers->waiting++;
            (void)pthread_cond_wait(&workers->wake, &workers->lock);
            workers->waiting--;
            continue;
        }
        workers->first = job->next;
        if (!workers->first)
            workers->last = NULL;
        workers->queued--;
        workers->running++;
        (void)pthread_mutex_unlock(&workers->lock);
        job->run(job);
        job->task.fn = job_is_done;
        loop_post(job->loop, &job->task);
        (void)pthread_mutex_lock(&workers->lock);
        workers->running--;
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

    /* Signals are the loop's: a worker must not be the thread that gets them. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&workers->threads[workers->started], NULL, work, workers);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure == 0)
        workers->started++;
    else if (workers->started == 0)
        log_die("worker: no thread can be started: %s", strerror(failure));
    /* else the job waits for one of those that run */
}

unsigned workers_busy(struct workers *workers)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&workers->lock);

    return workers->queued + workers->running;
}

void workers_run(struct workers *workers, struct job *job)
{
    job->loop = workers->loop;
    job->next = NULL;
    auto_unlock pthread_mutex_t *held = lock_mutex(&workers->lock);
    if (workers->last)
        workers->last->next = job;
    else
        workers->first = job;
    workers->last = job;
    workers->queued++;
    if (workers->queued > workers->waiting && workers->started < workers->threads_max)
        start_thread(workers);
    (void)pthread_cond_signal(&workers->wake);
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
    (void)pthread_cond_destroy(&workers->wake);
    (void)pthread_mutex_destroy(&workers->lock);
    free(workers->threads);
    free(workers);
}
