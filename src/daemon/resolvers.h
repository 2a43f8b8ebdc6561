/*
 * resolvers.h - tells egress which DNS servers this host uses.
 *
 * Egress may open no file, so keeper sends it the text of /etc/resolv.conf, and sends it again when the file changes.
 * Keeper does not parse it. While it is missing, unreadable or too long, the text that was read last counts.
 *
 * Threads    Keeper's loop.
 */
#ifndef DAEMON_RESOLVERS_H
#define DAEMON_RESOLVERS_H

#include <stdint.h>

#include "base/attr.h"
#include "io/loop.h"
#include "privsep/channel.h"

enum { RESOLVERS_LOOK_MS = 5000 }; /* a laptop changes networks; a stat() each time */

struct resolvers;

/* Looks at the file every look_ms. The path must outlive it. */
struct resolvers *resolvers_new(struct loop *loop, const char *path, uint64_t look_ms) must_use;
/* Sends the text to this channel, now and whenever it changes. NULL: to none. */
void resolvers_tell(struct resolvers *resolvers, struct channel *channel);
void resolvers_free(struct resolvers *resolvers); /* NULL is fine */

#endif
