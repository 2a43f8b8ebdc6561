/*
 * serve.h - keeper's side of the driver: carries out what roles ask for, and tells front about exits, and egress about
 * networks.
 *
 * Threads    Keeper's loop.
 * Failure    A request that does not decode is malformed and ends its sender (serve_request() is false). One that decodes
 *            and asks for something impossible is answered with an error.
 */
#ifndef ISOLATION_SERVE_H
#define ISOLATION_SERVE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"
#include "privsep/channel.h"

struct serve;

/* The most that the operator lets one sandbox have, and how many there may be. No plan of front's goes beyond. */
struct serve_limits {
    uint64_t memory_bytes;
    uint32_t cpu_millis, pids;
    uint32_t sandboxes;
};

/* Sets the driver's exit function; the driver stays the caller's and must outlive this. */
struct serve *serve_new(struct loop *loop, struct driver *driver, const struct serve_limits *limits) must_use;
void serve_free(struct serve *serve);

/* Exits are told to this channel from now on: a new front's. */
void serve_tell_exits(struct serve *serve, struct channel *channel);
/* A new egress's: it gets the sockets of every sandbox that runs (MESSAGE_NETWORK), of each new one, and exits. */
void serve_tell_networks(struct serve *serve, struct channel *channel);
/* Before the channel is freed: it gets no exits, no networks and no late answers any more. */
void serve_leave(struct serve *serve, struct channel *channel);

/* For a channel's request handler: the operations in ops.h. Other types are malformed here. */
bool serve_request(struct serve *serve, struct channel *channel, enum message_type type, uint32_t id,
                   struct str payload, struct err *err) must_use;

#endif
