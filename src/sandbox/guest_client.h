/*
 * guest_client.h - the host's side of guestlink: say something to guestd, wait for its answer.
 *
 * Threads    A worker: it waits.
 */
#ifndef SANDBOX_GUEST_CLIENT_H
#define SANDBOX_GUEST_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/guestlink.h"

/* until_ms is on clock_mono_ms(). ERR_TIMEOUT past it; what guestd objects to comes back as it said it. */
bool guest_setup(int guestlink_fd, const struct guestlink_setup *setup, uint64_t until_ms, struct err *err) must_use;
/* LISTEN; does not wait: the answer, and what guestd tells after it, is for whoever reads the descriptor next. */
bool guest_listen(int guestlink_fd, uint64_t until_ms, struct err *err) must_use;

#endif
