/*
 * inside.h - what the files of egress/ share.
 *
 *   egress.c  the sandboxes: their sockets, policies and ends
 */
#ifndef EGRESS_INSIDE_H
#define EGRESS_INSIDE_H

#include "base/arena.h"
#include "base/map.h"
#include "base/queue.h"
#include "egress/egress.h"

struct egress {
    struct egress_config config;
    struct map sandboxes;   /* id → struct outbound */
    struct queue strangers; /* those with a policy and no sockets yet, the oldest first */
    uint32_t stranger_count;
    struct timer forget; /* strangers that have waited too long */
};

/* What egress has of one sandbox. */
struct outbound {
    struct egress *egress;
    char id[LIMIT_ID_BYTES];
    int sockets[EGRESS_SOCKETS]; /* -1: none */
    bool has_network, has_policy;
    struct arena arena; /* of the policy */
    struct net_policy policy;
    struct queue_link stranger; /* in egress->strangers… */
    uint64_t since_ms;          /* …since then */
};

#endif
