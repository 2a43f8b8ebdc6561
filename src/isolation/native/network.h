/*
 * network.h - sockets in the network of a sandbox, made from outside.
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

/* An unconnected TCP socket that does not block, or -1. */
int network_socket(int home_fd, int pidfd, struct err *err) must_use;

/*
 * A new guestlink: two ends of one connection over the sandbox's loopback, which is brought up; the host's does not block.
 * Guests may be running. One that floods the loopback can make this take a quarter of a second and fail.
 */
bool network_link(int home_fd, int pidfd, int *out_host_fd, int *out_guest_fd, struct err *err) must_use;

#endif
