/*
 * networks.h - keeper tells egress about the networks of sandboxes: new sockets for each, and its end.
 *
 * Threads    Keeper's loop. Sockets for a thousand sandboxes are made a few at a time.
 * Failure    A sandbox whose sockets cannot be made because a guest has taken their port is tried again, with pauses, and
 *            is without network until then. It is logged once, when the second try has failed too.
 */
#ifndef ISOLATION_NETWORKS_H
#define ISOLATION_NETWORKS_H

#include "base/attr.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "privsep/channel.h"

struct networks;

struct networks *networks_new(struct loop *loop, struct driver *driver) must_use;
void networks_free(struct networks *networks); /* NULL is fine */

/* A new egress, which gets the sockets of all sandboxes. NULL: there is none any more. */
void networks_tell(struct networks *networks, struct channel *egress);
struct channel *networks_told(const struct networks *networks) must_use;

void networks_started(struct networks *networks, const char *id);
/* The payload of MESSAGE_EXITED. */
void networks_exited(struct networks *networks, const char *id, struct str payload);

#endif
