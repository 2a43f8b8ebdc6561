/*
 * Names that stay inside. The table is the operator's and does not change while egress runs.
 */
#include "base/hole.h"
#include "egress/inside.h"

const struct egress_service *egress_service_named(const struct egress *egress, struct str name)
{
    if (hole_is_open("names inside are not asked for"))
        return NULL;
    for (uint32_t i = 0; i < egress->config.service_count; i++)
        if (str_eq_nocase(str_from(egress->config.services[i].name), name))
            return &egress->config.services[i];
    return NULL;
}

const struct egress_service *egress_service_at(const struct egress *egress, const struct net_address *address)
{
    for (uint32_t i = 0; i < egress->config.service_count; i++)
        if (net_address_eq(&egress->config.services[i].address, address))
            return &egress->config.services[i];
    return NULL;
}

const struct egress_service *egress_service_on(const struct egress *egress, const struct egress_service *any,
                                               uint16_t port)
{
    for (uint32_t i = 0; i < egress->config.service_count; i++) {
        const struct egress_service *service = &egress->config.services[i];
        if (service->port == port && net_address_eq(&service->address, &any->address))
            return service;
    }
    return hole_is_open("ports of names inside") ? any : NULL;
}
