#include "egress/pins.h"

#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"

struct pin {
    struct net_address address;
    uint64_t hold_ms, until_ms;
    char *name;
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

/* A free place, or that of the pin that ends first. */
static struct pin *place(struct pins *pins)
{
    struct pin *first = pins->list;

    if (pins->count == LIMIT_EGRESS_PINS) {
        for (uint32_t i = 1; i < pins->count; i++)
            if (pins->list[i].until_ms < first->until_ms)
                first = &pins->list[i];
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
        pin = place(pins);
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

bool pins_next(const struct pins *pins, const struct net_address *address, uint64_t now_ms, uint32_t *cursor,
               struct str *out_name)
{
    while (*cursor < pins->count) {
        const struct pin *pin = &pins->list[(*cursor)++];
        if (pin->until_ms > now_ms && net_address_eq(&pin->address, address)) {
            *out_name = str_from(pin->name);
            return true;
        }
    }
    return false;
}
