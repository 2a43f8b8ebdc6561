/*
 * remote.h - the driver that a role has: the same calls, each sent to keeper.
 */
#ifndef ISOLATION_REMOTE_H
#define ISOLATION_REMOTE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"
#include "privsep/channel.h"

/* The channel stays the caller's and must outlive the driver. */
struct driver *remote_driver_new(struct channel *channel) must_use;

/* For the channel's event handler: EXITED and OPTION become the driver's exited() and refused(); UNPACK is answered. False means malformed. */
bool remote_driver_event(struct driver *driver, enum message_type type, struct str payload, struct message_fds *fds,
                         struct err *err) must_use;

#endif
