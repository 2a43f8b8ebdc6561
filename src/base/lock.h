/*
 * lock.h - a mutex held until the scope ends.
 *
 *   auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
 *
 * The variable is not used by hand: its cleanup unlocks on every way out of the scope.
 */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H

#include <pthread.h>

static inline void lock_release_at(pthread_mutex_t **lock_at)
{
    (void)pthread_mutex_unlock(*lock_at);
}
#define auto_unlock __attribute__((cleanup(lock_release_at), unused))

static inline pthread_mutex_t *lock_mutex(pthread_mutex_t *lock)
{
    (void)pthread_mutex_lock(lock);
    return lock;
}

#endif
