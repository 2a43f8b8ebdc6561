/*
 * network.h - the network of a sandbox, and sockets in it, made from outside.
 *
 * A socket belongs to the network namespace it was made in, whichever process holds it. So keeper enters the namespace,
 * makes the socket and leaves. If it cannot leave it aborts: all it did next would happen in a guest's network.
 *
 * `home_fd` is keeper's own network namespace, `pidfd` a process inside the sandbox.
 */
#ifndef ISOLATION_NATIVE_NETWORK_H
#define ISOLATION_NATIVE_NETWORK_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/divert.h"
#include "isolation/native/network_rules.h"

/* What this machine's kernel can give a sandbox. */
enum network_kind {
    NETWORK_NONE, /* loopback */
    NETWORK_IPV4,
    NETWORK_BOTH, /* and IPv6 */
    NETWORK_KIND_COUNT,
};

/*
 * Finds out by trying, in a namespace that is then dropped, and writes the rules for all sandboxes. When it is less than
 * NETWORK_BOTH, why says what the kernel refused.
 */
enum network_kind network_try(int home_fd, struct network_rules *out, struct err *why) must_use;
/* In the namespace that we are in, which is new: brings loopback up, and applies the rules; NULL: there are none. */
bool network_set_up(const struct network_rules *rules, struct err *err) must_use;

/* As driver_divert(). */
bool network_divert(int home_fd, int pidfd, enum network_kind kind, int out_fds[DIVERT_KINDS], struct err *err)
    must_use;

/* An unconnected TCP socket that does not block, or -1. */
int network_socket(int home_fd, int pidfd, struct err *err) must_use;
/* A unix socket of messages that does not block, without a name, or -1. */
int network_unix_socket(int home_fd, int pidfd, struct err *err) must_use;

/*
 * A new guestlink: two ends of one connection over the sandbox's loopback; the host's does not block.
 * Guests may be running. One that floods the loopback can make this take a quarter of a second and fail.
 */
bool network_link(int home_fd, int pidfd, int *out_host_fd, int *out_guest_fd, struct err *err) must_use;

#endif
