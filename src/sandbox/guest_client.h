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

/*
 * SETUP, which includes LISTEN, and with `resumed` RESUMED behind it, whose answer is left for logs_begin(). until_ms is on
 * clock_mono_ms(), ERR_TIMEOUT past it; guestd's own errors are passed on.
 */
bool guest_setup(int guestlink_fd, const struct guestlink_setup *setup, bool resumed, uint64_t until_ms,
                 struct err *err) must_use;
/* The two halves of it, for a caller that has something to do meanwhile. */
bool guest_setup_send(int guestlink_fd, const struct guestlink_setup *setup, bool resumed, uint64_t until_ms,
                      struct err *err) must_use;
bool guest_setup_await(int guestlink_fd, uint64_t until_ms, struct err *err) must_use;

enum guest_answer {
    GUEST_YES,
    GUEST_NO,     /* it answers, but with something else: an error, perhaps because it is older than the message */
    GUEST_SILENT, /* no answer in time, or the connection is broken */
};
/*
 * WARM, between driver_warm() and guest_setup(): the sandbox has an interpreter that waits for its first code. GUEST_NO
 * says why not: ERR_UNAVAILABLE and ERR_TIMEOUT are worth another driver_warm() and guest_warm() later, other kinds are
 * not. guestd answers within five seconds. After GUEST_SILENT with ERR_TIMEOUT guest_setup() works on the same link, and
 * skips an answer that comes late.
 */
enum guest_answer guest_warm(int guestlink_fd, uint64_t until_ms, struct err *err) must_use;
/* PREPARE on a new link, without LISTEN. The environment is in the arena. */
enum guest_answer guest_prepare(int guestlink_fd, uint64_t until_ms, struct arena *arena, struct guestlink_ready *out,
                                struct err *err) must_use;
/* RESUMED on such a link. */
enum guest_answer guest_resumed(int guestlink_fd, uint64_t until_ms, struct err *err) must_use;
/*
 * LISTEN and NETWORK on a new link, which has room for both, and with `resumed` RESUMED before them: does not wait. The
 * answers are left for logs_begin().
 */
bool guest_listen(int guestlink_fd, const struct guestlink_network *network, bool resumed, struct err *err) must_use;

#endif
