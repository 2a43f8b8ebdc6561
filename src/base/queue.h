/*
 * queue.h - a list of things that wait, first come first served. Each holds its link, so that joining and leaving take
 * no memory and no search.
 *
 * Ownership  None: a thing is taken out before it is freed. A zeroed queue is empty, a zeroed link is in no queue.
 * Threads    As the queue's owner says.
 */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stddef.h>

struct queue_link {
    struct queue *in; /* NULL: in none */
    struct queue_link *next, *previous;
};

struct queue {
    struct queue_link *first, *last;
};

static inline void queue_leave(struct queue_link *link) /* fine when it is in none */
{
    struct queue *queue = link->in;

    if (!queue)
        return;
    *(link->previous ? &link->previous->next : &queue->first) = link->next;
    *(link->next ? &link->next->previous : &queue->last) = link->previous;
    *link = (struct queue_link){ 0 };
}

static inline void queue_join(struct queue *queue, struct queue_link *link) /* as the last; leaves another before */
{
    queue_leave(link);
    *link = (struct queue_link){ .in = queue, .previous = queue->last };
    *(queue->last ? &queue->last->next : &queue->first) = link;
    queue->last = link;
}

#endif
