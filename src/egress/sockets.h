/*
 * sockets.h - where a connection of a sandbox wants to go, and connections to there.
 */
#ifndef EGRESS_SOCKETS_H
#define EGRESS_SOCKETS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/attr.h"
#include "base/err.h"
#include "policy/net_policy.h"

/* The address that a guest has connected to. False: to our own socket, or it is gone already. */
bool socket_original(int fd, struct net_address *out, uint16_t *out_port) must_use;

/* False: it is of another family than IPv4 and IPv6. */
bool socket_address(const struct sockaddr_storage *from, struct net_address *out, uint16_t *out_port) must_use;

/* Tells addresses of this machine from others: asks the kernel for its route, each time (6 to 9 µs). */
struct host_probe {
    int fd; /* netlink */
};
struct host_probe host_probe_open(void);
void host_probe_close(struct host_probe *probe);
/* Also true if the kernel cannot be asked: what is not known to be outside is not dialed. */
bool host_probe_is_local(const struct host_probe *probe, const struct net_address *address);
/* False: this machine has no way to that address, as to all IPv6 addresses where it has IPv4 only. */
bool host_probe_has_route(const struct host_probe *probe, const struct net_address *address);

/* A socket that connects, with buffers of this size. Never waits. */
int socket_dial(const struct net_address *to, uint16_t port, int buffer_bytes, struct err *err) must_use;
/* Of each buffer that a sandbox's nth connection has with the kernel, half of what it holds; 0: as the kernel likes. */
int socket_budget(uint32_t nth);
void socket_limit(int fd, int bytes); /* 0: does nothing */
/* Closes by a reset. */
void socket_reset(int fd);

#endif
