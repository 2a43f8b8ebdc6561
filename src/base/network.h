/*
 * network.h - the network inside a sandbox, in numbers that several programs need.
 *
 * A sandbox has loopback and nothing else. isolation/native/network_rules.c says how traffic to other addresses gets to
 * egress; all sandboxes are alike.
 */
#ifndef BASE_NETWORK_H
#define BASE_NETWORK_H

/*
 * The sandbox's own addresses. 192.0.0.0/29 is set aside for hosts that have no IPv4 of their own (RFC 7335), so no
 * network that a user wants to reach has it, and programs take it for an ordinary address. The IPv6 address is a unique
 * local one (RFC 4193): resolvers then prefer IPv4, which more hosts can reach the Internet with.
 */
#define NETWORK_OWN_IPV4 "192.0.0.2"
#define NETWORK_OWN_IPV6 "fd63:6c6f:6973::2"

/* In resolv.conf. Questions to any other server, too, are answered by egress. */
#define NETWORK_NAMESERVER "192.0.0.1"

/*
 * The addresses of names that stay inside (--inside), the first of LIMIT_INSIDE: 192.0.0.64/26. They are in the block of
 * protocol assignments (RFC 6890), which is not public, and IANA has assigned none of them.
 */
#define NETWORK_INSIDE_IPV4 "192.0.0.64"

/*
 * Where egress's sockets are bound. Port 1 is the one that guests cannot have anyway (guestlink, isolation/native/
 * network.c): a wildcard bind of a guest conflicts with any address of the same port.
 */
#define NETWORK_EGRESS_IPV4 "127.77.0.1"
#define NETWORK_EGRESS_IPV6 "fd63:6c6f:6973::1"
enum { NETWORK_EGRESS_PORT = 1, NETWORK_DNS_PORT = 53 };

#endif
