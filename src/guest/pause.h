/*
 * pause.h - what guestd does before the sandbox stands still, and when it goes on.
 *
 * A paused sandbox may be written to disk, and guestd holds things that cannot: inotify watches, the socket to the zygote
 * outside, interpreters that are on their way in from there. They are dropped before and taken up again afterwards.
 * Commands, terminals and interpreters stay as they are.
 *
 * Threads    The loop's.
 */
#ifndef GUEST_PAUSE_H
#define GUEST_PAUSE_H

#include "guest/guest.h"

/* Calls ready() when all is dropped: at once if nothing is on its way in, else after a second at most. May be repeated. */
void pause_prepare(struct guest *guest, void (*ready)(struct guest *guest));
/* It goes on, or the pause was given up. Fine without a pause. */
void pause_resumed(struct guest *guest);

#endif
