/*
 * front_egress.h - front's side of its connection to egress: policies go there, reports come back.
 *
 * Threads    As said at each function; the rest on the loop.
 */
#ifndef DAEMON_FRONT_EGRESS_H
#define DAEMON_FRONT_EGRESS_H

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"
#include "privsep/channel.h"
#include "sandbox/sandbox.h"

struct front_egress;

struct front_egress *front_egress_new(struct loop *loop) must_use;
/* After the workers. NULL is fine. */
void front_egress_free(struct front_egress *egress);
/* The channel, for supervisor_take_peer(); it stays ours. */
struct channel *front_egress_channel(struct front_egress *egress);
/* A connection from inside a sandbox to mail; takes the descriptor. */
typedef void front_guest_fn(void *context, const char *sandbox_id, int fd);
void front_egress_guests_to(struct front_egress *egress, front_guest_fn *take, void *context);
/* From now on it may end. */
void front_egress_stop(struct front_egress *egress);
/* From now on reports are for these. */
void front_egress_report_to(struct front_egress *egress, struct sandboxes *sandboxes);

/* See struct sandboxes_config. Any thread: it does not wait. What egress does not get now it gets when it is back. */
void front_egress_send(struct front_egress *egress, const char *id, struct str policy);
/* A worker: it waits. ERR_UNAVAILABLE when egress is away. */
bool front_egress_apply(struct front_egress *egress, const char *id, struct str policy, struct err *err) must_use;

#endif
