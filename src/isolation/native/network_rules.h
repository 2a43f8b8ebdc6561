/*
 * network_rules.h - what a sandbox's network namespace has besides loopback: an address, a route and rules that send
 * what leaves to egress.
 *
 * The bytes for the kernel are the same for all sandboxes and are written once.
 */
#ifndef ISOLATION_NATIVE_NETWORK_RULES_H
#define ISOLATION_NATIVE_NETWORK_RULES_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/native/netlink.h"

struct network_rules {
    struct netlink routes, filter;
};

void network_rules_init(struct network_rules *rules, bool ipv6);
void network_rules_done(struct network_rules *rules);

/* In the network namespace that we are in, which must be new: brings loopback up too. */
bool network_rules_apply(const struct network_rules *rules, struct err *err) must_use;

#endif
