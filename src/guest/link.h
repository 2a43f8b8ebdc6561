/*
 * link.h - guestd's private door: SETUP and PING from the host.
 */
#ifndef GUEST_LINK_H
#define GUEST_LINK_H

#include "guest/guest.h"

/* Takes the listening unix socket and serves it until the end. */
void link_serve(struct guest *guest, int listen_fd);

#endif
