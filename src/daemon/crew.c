#include "daemon/crew.h"

#include <errno.h>
#include <pthread.h>

#include "base/mem.h"

enum { STACK_BYTES = 2 << 20 }; /* address space; libcurl and OpenSSL use a tenth of it */

struct member {
    struct crew *crew;
    uint32_t number;
};

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t has_changed;
    uint32_t count;
    uint32_t idle;  /* of them */
    uint64_t round; /* how often there was work */
    void (*work)(void *context, uint32_t thread);
    void *context;
    struct member members[CREW_MOST];
};

static void *member_main(void *context)
{
    const struct member *member = context;
    struct crew *crew = member->crew;

    pthread_mutex_lock(&crew->lock);
    for (uint64_t done = 0;; done++) {
        crew->idle++;
        pthread_cond_broadcast(&crew->has_changed);
        while (crew->round == done)
            pthread_cond_wait(&crew->has_changed, &crew->lock);
        pthread_mutex_unlock(&crew->lock);
        crew->work(crew->context, member->number);
        pthread_mutex_lock(&crew->lock);
    }
    return NULL;
}

static void wait_until_idle(struct crew *crew)
{
    while (crew->idle < crew->count)
        pthread_cond_wait(&crew->has_changed, &crew->lock);
}

static bool start(struct crew *crew, struct member *member, struct err *err)
{
    pthread_attr_t attributes;
    pthread_t thread;

    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, member_main, member);
    (void)pthread_attr_destroy(&attributes);
    if (failed)
        return err_sys_num(err, failed, "start a thread");
    crew->count++;
    return true;
}

struct crew *crew_new(uint32_t count, struct err *err)
{
    struct crew *crew = NEW(struct crew);

    (void)pthread_mutex_init(&crew->lock, NULL);
    (void)pthread_cond_init(&crew->has_changed, NULL);
    for (uint32_t i = 0; i < MIN(count, (uint32_t)CREW_MOST); i++) {
        crew->members[i] = (struct member){ .crew = crew, .number = i + 1 };
        if (!start(crew, &crew->members[i], err))
            return NULL; /* the process ends; those that run have what they need */
    }
    pthread_mutex_lock(&crew->lock);
    wait_until_idle(crew);
    pthread_mutex_unlock(&crew->lock);
    return crew;
}

void crew_work(struct crew *crew, void (*work)(void *context, uint32_t thread), void *context)
{
    pthread_mutex_lock(&crew->lock);
    crew->work = work;
    crew->context = context;
    crew->idle = 0;
    crew->round++;
    pthread_cond_broadcast(&crew->has_changed);
    pthread_mutex_unlock(&crew->lock);
    work(context, 0);
    pthread_mutex_lock(&crew->lock);
    wait_until_idle(crew);
    pthread_mutex_unlock(&crew->lock);
}
