/*
 * addresses.h - addresses and ranges from text that is known to be right.
 */
#ifndef TESTS_UNIT_POLICY_ADDRESSES_H
#define TESTS_UNIT_POLICY_ADDRESSES_H

#include "policy/net_policy.h"
#include "test.h"

static inline struct net_address address(const char *text)
{
    struct net_address out;

    if (!net_address_parse(str_from(text), &out))
        fail_msg("%s is an address", text);
    return out;
}

static inline struct net_range range(const char *text)
{
    struct net_range out;

    if (!net_range_parse(str_from(text), &out))
        fail_msg("%s is a range", text);
    return out;
}

#endif
