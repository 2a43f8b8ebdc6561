/*
 * pins.h - which names lead to which addresses, for one sandbox: what egress has answered it.
 *
 * A connection has an address and no name. A pin tells which names the sandbox has looked up for that address. It holds
 * for the record's time, for LIMIT_EGRESS_PIN_MS at least, and as long again after each use: programs keep an address for
 * longer than DNS allows.
 */
#ifndef EGRESS_PINS_H
#define EGRESS_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "policy/net_policy.h"

struct pin;

/* A zeroed one has none. */
struct pins {
    struct pin *list;
    uint32_t count, room;
};

void pins_done(struct pins *pins);
/* Beyond LIMIT_EGRESS_PINS, or LIMIT_EGRESS_PIN_NAMES of this address, the one that ends first makes room. */
void pins_add(struct pins *pins, struct str name, const struct net_address *address, uint32_t ttl_s, uint64_t now_ms);
/* The address is in use: its pins hold longer. */
void pins_use(struct pins *pins, const struct net_address *address, uint64_t now_ms);
bool pins_have(const struct pins *pins, struct str name, const struct net_address *address, uint64_t now_ms);
/* The next address that the name leads to; *at is 0 at first. False: there is no other. */
bool pins_next_address(const struct pins *pins, struct str name, uint64_t now_ms, uint32_t *at,
                       struct net_address *out);
/* So many names lead to the address, as far as is known: up to LIMIT_EGRESS_PIN_NAMES. */
uint32_t pins_count(const struct pins *pins, const struct net_address *address, uint64_t now_ms);
/* Any name of the address, or "". It lives until a pin is added. */
struct str pins_any_name(const struct pins *pins, const struct net_address *address, uint64_t now_ms);
/*
 * The same, but first of all one that the policy allows. `policy_number` is another for each policy and not 0: a pin is
 * compared with a policy once, because there may be a thousand names in it and a thousand connections ask.
 */
struct str pins_best_name(struct pins *pins, const struct net_address *address, uint64_t now_ms,
                          const struct net_policy *policy, uint64_t policy_number);

#endif
