/*
 * handover.h - keeper's side of wire/handover.h: give descriptors to the guestd of a sandbox.
 *
 * Threads    Keeper's. No call waits for guestd: one that does not accept is ERR_UNAVAILABLE once a few handovers wait.
 */
#ifndef ISOLATION_NATIVE_HANDOVER_H
#define ISOLATION_NATIVE_HANDOVER_H

#include "base/attr.h"
#include "base/err.h"
#include "wire/handover.h"

/* The listening socket for guestd, in its network and named in the sandbox's directory; or -1. One from before is replaced. */
int handover_listen(int home_fd, int pidfd, int sandbox_fd, struct err *err) must_use;

/* The same in our own network, for a guestd that is about to be restored. It cannot be written to disk again with it… */
int handover_listen_here(int sandbox_fd, struct err *err) must_use;
/* …so when it runs it gets one in its own, in place of that. */
bool handover_replace(int home_fd, int pidfd, int sandbox_fd, struct err *err) must_use;

/* No guestd listens any more: its name goes. */
bool handover_forget(int sandbox_fd, struct err *err) must_use;

/* `fd` stays the caller's. */
bool handover_send(int sandbox_fd, enum handover_kind kind, int fd, struct err *err) must_use;

/*
 * Makes a new guestlink, gives one end to guestd and returns the other, the host's. Before guestd runs or later; a
 * sandbox in which guests run may cost keeper a quarter of a second here, no more (network.h).
 */
bool handover_link(int home_fd, int pidfd, int sandbox_fd, int *out_host_fd, struct err *err) must_use;

#endif
