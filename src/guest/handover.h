/*
 * handover.h - guestd's side of wire/handover.h: takes descriptors from keeper, at any time.
 */
#ifndef GUEST_HANDOVER_H
#define GUEST_HANDOVER_H

#include "guest/guest.h"

/* Takes the listening socket that guestd was started with. */
void handover_serve(struct guest *guest, int listen_fd);
/* Takes what keeper has handed over until now, and the loop has not come to yet. May replace guestlink. */
void handover_take_pending(struct guest *guest);

#endif
