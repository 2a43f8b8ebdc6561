/*
 * network.h - sockets in the network of a sandbox, made from outside.
 *
 * A socket belongs to the network it was made in, whoever holds it and wherever. So keeper steps in, makes it, and steps
 * out again; if it cannot, it ends itself, because everything it did next would happen inside a guest's network.
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
 * Brings loopback up, and returns guestlink: two ends of one connection over it, the host's and guestd's. For a sandbox
 * that no guest runs in yet.
 */
bool network_link(int home_fd, int pidfd, int *out_host_fd, int *out_guest_fd, struct err *err) must_use;

#endif
