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
/* Beyond LIMIT_EGRESS_PINS the one that ends first makes room. */
void pins_add(struct pins *pins, struct str name, const struct net_address *address, uint32_t ttl_s, uint64_t now_ms);
/* The address is in use: its pins hold longer. */
void pins_use(struct pins *pins, const struct net_address *address, uint64_t now_ms);
bool pins_have(const struct pins *pins, struct str name, const struct net_address *address, uint64_t now_ms);
/* Walk: `for (uint32_t i = 0; pins_next(pins, address, now_ms, &i, &name);)`. The name lives until a pin is added. */
bool pins_next(const struct pins *pins, const struct net_address *address, uint64_t now_ms, uint32_t *cursor,
               struct str *out_name);

#endif
