/*
 * link.h - guestd's private door: SETUP and PING from the host.
 */
#ifndef GUEST_LINK_H
#define GUEST_LINK_H

#include "guest/guest.h"

/* Takes the connection to the host and serves it until it ends. There is no other, and guestd goes on without. */
void link_serve(struct guest *guest, int fd);

#endif
