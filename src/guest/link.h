/*
 * link.h - guestlink: the connection on which the host sets guestd up and is told what runs.
 */
#ifndef GUEST_LINK_H
#define GUEST_LINK_H

#include "guest/guest.h"

/* Takes a new connection to the host, in place of the one before, and serves it until it ends. */
void link_serve(struct guest *guest, int fd);

#endif
