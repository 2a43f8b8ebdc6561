/*
 * link.h - guestlink: the connection on which the host sets guestd up and is told what runs.
 */
#ifndef GUEST_LINK_H
#define GUEST_LINK_H

#include "guest/guest.h"

/* Takes a new connection to the host, in place of the one before, and serves it until it ends. */
void link_serve(struct guest *guest, int fd);

/*
 * Writes to /etc what SETUP said about the network, once. A quarter of a megabyte and a millisecond, mostly for the bundle of
 * certificates: so not in a create, but with the first request. If that is a cell, an interpreter that waits gets ready for it
 * meanwhile. Nothing that could read these files runs before they are written.
 */
void link_tell_network(struct guest *guest);

#endif
