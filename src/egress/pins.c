#include "egress/pins.h"

#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"
#include "policy/net_rules.h"

struct pin {
    struct net_address address;
    uint64_t hold_ms, until_ms;
    char *name;
    uint64_t judged_by; /* the number of a policy, or 0… */
    bool is_allowed;    /* …and whether that one allows the name */
};

void pins_done(struct pins *pins)
{
    for (uint32_t i = 0; i < pins->count; i++)
        free(pins->list[i].name);
    free(pins->list);
    *pins = (struct pins){ 0 };
}

static struct pin *find(const struct pins *pins, struct str name, const struct net_address *address)
{
    for (uint32_t i = 0; i < pins->count; i++)
        if (net_address_eq(&pins->list[i].address, address) && str_eq(str_from(pins->list[i].name), name))
            return &pins->list[i];
    return NULL;
}

/* The pin that ends first, of those of the address; of all, if it is NULL. */
static struct pin *first_to_end(const struct pins *pins, const struct net_address *address, uint32_t *out_count)
{
    struct pin *first = NULL;

    *out_count = 0;
    for (uint32_t i = 0; i < pins->count; i++) {
        struct pin *pin = &pins->list[i];
        if (address && !net_address_eq(&pin->address, address))
            continue;
        (*out_count)++;
        if (!first || pin->until_ms < first->until_ms)
            first = pin;
    }
    return first;
}

/* A free place, or that of the pin that ends first. */
static struct pin *place(struct pins *pins, const struct net_address *address)
{
    uint32_t count;
    struct pin *first = first_to_end(pins, address, &count);

    if (count < LIMIT_EGRESS_PIN_NAMES && pins->count == LIMIT_EGRESS_PINS)
        first = first_to_end(pins, NULL, &count);
    if (count >= LIMIT_EGRESS_PIN_NAMES) {
        free(first->name);
        return first;
    }
    if (pins->count == pins->room) {
        pins->room = pins->room ? 2 * pins->room : 4;
        pins->list = mem_grow(pins->list, pins->room * sizeof *pins->list);
    }
    return &pins->list[pins->count++];
}

void pins_add(struct pins *pins, struct str name, const struct net_address *address, uint32_t ttl_s, uint64_t now_ms)
{
    struct pin *pin = find(pins, name, address);

    if (!pin) {
        pin = place(pins, address);
        *pin = (struct pin){ .address = *address, .name = str_copy(name) };
    }
    pin->hold_ms = MAX((uint64_t)ttl_s * 1000, (uint64_t)LIMIT_EGRESS_PIN_MS);
    pin->until_ms = now_ms + pin->hold_ms;
}

void pins_use(struct pins *pins, const struct net_address *address, uint64_t now_ms)
{
    for (uint32_t i = 0; i < pins->count; i++)
        if (pins->list[i].until_ms > now_ms && net_address_eq(&pins->list[i].address, address))
            pins->list[i].until_ms = now_ms + pins->list[i].hold_ms;
}

bool pins_have(const struct pins *pins, struct str name, const struct net_address *address, uint64_t now_ms)
{
    const struct pin *pin = find(pins, name, address);

    return pin && pin->until_ms > now_ms;
}

bool pins_next_address(const struct pins *pins, struct str name, uint64_t now_ms, uint32_t *at, struct net_address *out)
{
    while (*at < pins->count) {
        const struct pin *pin = &pins->list[(*at)++];
        if (pin->until_ms > now_ms && str_eq(str_from(pin->name), name)) {
            *out = pin->address;
            return true;
        }
    }
    return false;
}

static bool is_live(const struct pin *pin, const struct net_address *address, uint64_t now_ms)
{
    return pin->until_ms > now_ms && net_address_eq(&pin->address, address);
}

uint32_t pins_count(const struct pins *pins, const struct net_address *address, uint64_t now_ms)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pins->count; i++)
        count += is_live(&pins->list[i], address, now_ms);
    return count;
}

struct str pins_any_name(const struct pins *pins, const struct net_address *address, uint64_t now_ms)
{
    for (uint32_t i = 0; i < pins->count; i++)
        if (is_live(&pins->list[i], address, now_ms))
            return str_from(pins->list[i].name);
    return STR("");
}

struct str pins_best_name(struct pins *pins, const struct net_address *address, uint64_t now_ms,
                          const struct net_policy *policy, uint64_t policy_number)
{
    for (uint32_t i = 0; i < pins->count; i++) {
        struct pin *pin = &pins->list[i];
        if (!is_live(pin, address, now_ms))
            continue;
        if (pin->judged_by != policy_number)
            pin->is_allowed = net_name_is_allowed(policy, str_from(pin->name));
        pin->judged_by = policy_number;
        if (pin->is_allowed)
            return str_from(pin->name);
    }
    return pins_any_name(pins, address, now_ms);
}
