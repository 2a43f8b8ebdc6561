/*
 * divert.h - sockets that get a sandbox's traffic to all addresses.
 *
 * Keeper makes them inside the sandbox's network namespace; its rules (isolation/native/network_rules.c) deliver to them
 * whatever is meant for an address outside: each TCP connection, and each datagram to port 53. Nothing is rewritten. A
 * connection that egress accepts has the address that the guest asked for as its own (getsockname(), not
 * SO_ORIGINAL_DST: there is no connection tracking), and an answer to a datagram is sent from the address that it was
 * sent to.
 */
#ifndef IO_DIVERT_H
#define IO_DIVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

/* In the order in which MESSAGE_NETWORK has them; that message has BIT(kind) set for each one it has. */
enum divert_kind {
    DIVERT_TCP4,
    DIVERT_TCP6,
    DIVERT_UDP4,
    DIVERT_UDP6,
    DIVERT_KINDS,
};

/*
 * A socket that does not block, bound at base/network.h's address; one for TCP listens. In the network namespace that we
 * are in, and with CAP_NET_ADMIN over it. -1: err says why, ERR_CONFLICT when a guest has taken that port.
 */
int divert_open(enum divert_kind kind, struct err *err) must_use;

/* Of a connection that was accepted: where its guest wanted to go. */
bool divert_destination(int fd, struct sockaddr_storage *out, struct err *err) must_use;
/* The guest has connected to egress's own socket: it was not diverted, and leads nowhere. */
bool divert_is_direct(const struct sockaddr_storage *destination) must_use;

/* Of a datagram: the guest's socket, and the server that it asked. */
struct divert_peer {
    struct sockaddr_storage guest, server;
};
/*
 * Returns the length of the datagram, which is longer than size when it was cut. -1 with errno, EAGAIN when there is none.
 */
ssize_t divert_receive(int fd, void *room, size_t size, struct divert_peer *out) must_use;
/* To the guest, as if the server had sent it. False with errno: EPERM when the guest is not where answers can go. */
bool divert_answer(int fd, struct str bytes, const struct divert_peer *to) must_use;

#endif
