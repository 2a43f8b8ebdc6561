/*
 * dialer.h - a connection to the first of several addresses that accepts one.
 *
 * They are tried one after the other, and all together have LIMIT_EGRESS_DIAL_MS. Each but the last has
 * LIMIT_EGRESS_DIAL_ONE_MS of it, so that one that is silent leaves time for the others.
 *
 * Ownership  A struct dialer is part of what wants the connection. It is zero at first, and stopped before its memory goes.
 * Threads    The loop's.
 */
#ifndef EGRESS_DIALER_H
#define EGRESS_DIALER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "io/loop.h"
#include "policy/net_policy.h"

/* The descriptor is the callee's; -1 and why the last one failed: none has accepted. Once, perhaps in dialer_start(). */
typedef void dialer_done_fn(void *context, int fd, const struct err *err);

struct dialer_want {
    struct loop *loop;
    const struct net_address *addresses; /* copied; at most LIMIT_EGRESS_TRIES */
    uint32_t count;
    uint16_t port;
    int buffer_bytes; /* for socket_dial() */
    /* Asked before each dial; false: this one is left out. */
    bool (*may_dial)(void *context, const struct net_address *to);
    dialer_done_fn *done;
    void *context;
};

struct dialer {
    /* private */
    struct dialer_want want;
    struct net_address addresses[LIMIT_EGRESS_TRIES];
    uint32_t next;
    uint64_t until_ms;
    bool is_on;
    int fd;
    struct watch *watch;
    struct timer timer;
    struct err err;
};

void dialer_start(struct dialer *dialer, const struct dialer_want *want);
void dialer_stop(struct dialer *dialer); /* no done() any more; does nothing if it is not under way */

#endif
