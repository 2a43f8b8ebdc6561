/*
 * guest_client.h - the host's side of guestlink: send a message to guestd, wait for its answer.
 *
 * Threads    A worker: it waits.
 */
#ifndef SANDBOX_GUEST_CLIENT_H
#define SANDBOX_GUEST_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/guestlink.h"

/* SETUP, which includes LISTEN. until_ms is on clock_mono_ms(), ERR_TIMEOUT past it; guestd's own errors are passed on. */
bool guest_setup(int guestlink_fd, const struct guestlink_setup *setup, uint64_t until_ms, struct err *err) must_use;
/* LISTEN and NETWORK on a new link, which has room for both: does not wait. The answers are left for logs_begin(). */
bool guest_listen(int guestlink_fd, const struct guestlink_network *network, struct err *err) must_use;

#endif
