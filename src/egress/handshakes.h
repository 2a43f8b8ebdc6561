/*
 * handshakes.h - TLS handshakes of one sandbox towards the outside: so many at once and per second. The others wait.
 *
 * Egress has one thread, and what a server sends decides what a handshake costs it: up to milliseconds.
 *
 * Ownership  A struct handshake is part of what wants one, and leaves by handshake_end() before its memory goes.
 * Threads    The loop's.
 */
#ifndef EGRESS_HANDSHAKES_H
#define EGRESS_HANDSHAKES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/queue.h"
#include "base/quota.h"
#include "io/loop.h"

struct handshakes {
    struct loop *loop;
    uint32_t under_way;
    struct quota rate;
    struct queue waiting; /* first come, first served */
    struct timer timer;   /* set: some may begin then */
};

struct handshake {
    struct handshakes *of;   /* NULL: it has neither begun nor waits */
    struct queue_link place; /* while it waits */
    void (*go)(struct handshake *handshake);
};

void handshakes_init(struct handshakes *handshakes, struct loop *loop);
void handshakes_done(struct handshakes *handshakes); /* all have ended */

/* Calls go() when it may begin, never from inside. */
void handshake_begin(struct handshake *handshake, struct handshakes *of, void (*go)(struct handshake *handshake));
bool handshake_waits(const struct handshake *handshake);
bool handshake_has_begun(const struct handshake *handshake);
/* It is over, or not wanted any more. Does nothing if there is none. */
void handshake_end(struct handshake *handshake);

#endif
