/*
 * reach.h - a connection to a port inside a sandbox.
 *
 *   asking       the driver makes a socket inside the sandbox and begins to connect it to 127.0.0.1:port there
 *   connecting   usually done at once; takes longer if the service's backlog is full
 *   pausing      nothing listens yet: a service that was just started gets a little time
 *
 * Only 127.0.0.1: the driver's sockets are IPv4, so a service that listens on ::1 alone is not reached.
 *
 * Ownership  The caller's, until reach_free(); that may happen at any time, from the callback too.
 */
#ifndef PROXY_REACH_H
#define PROXY_REACH_H

#include <stdint.h>

#include "base/attr.h"
#include "io/loop.h"
#include "sandbox/sandbox.h" /* for struct driver */

enum reach_outcome {
    REACH_OPEN,        /* fd is connected, non-blocking, the receiver's */
    REACH_CLOSED,      /* the sandbox runs, nothing listens at that port */
    REACH_GONE,        /* there is no such sandbox any more */
    REACH_UNAVAILABLE, /* the driver does not answer right now */
};
typedef void reach_done_fn(void *context, enum reach_outcome outcome, int fd);

struct reach;
/* `attempts` at least 1: how often to try before the port counts as closed. */
struct reach *reach_new(struct loop *loop, struct driver *driver, const char *id, uint16_t port, unsigned attempts,
                        reach_done_fn *done, void *context) must_use;
void reach_go(struct reach *reach);   /* once; done() may be called before it returns */
void reach_free(struct reach *reach); /* no done() afterwards; NULL is fine */

#endif
