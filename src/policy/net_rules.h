/*
 * net_rules.h - may this sandbox reach that address? Decisions without effects.
 *
 * In this order, the first that applies decides:
 *   1. a mail port (25, 465, 587)                          refused, whatever the rest says
 *   2. a range that the operator denies (--egress-deny)    refused, whatever the rest says
 *   3. an address of the host, or one that is not public   refused, unless the operator allows it (--egress-allow)
 *   4. a name that the sandbox may reach                   allowed
 *   5. a range that the sandbox may reach                  allowed
 *   6. no internet access, or a range that it must not     refused
 *   7. all else                                            allowed
 *
 * A range that the operator allows lifts rule 3 only: rules 4 to 7 follow.
 *
 * Public is what RFC 6890's registries do not reserve. Documentation ranges are ordinary addresses: nobody has them, so
 * tests can. An address 64:ff9b::a.b.c.d (NAT64) leads to a.b.c.d and is judged as that; 6to4 and Teredo, which could hide
 * an address in the same way, are not public at all.
 *
 * A DNS question is judged by its name alone, because egress answers it, whichever server was asked (net_judge_name()).
 * Where everything is denied, only allowed names may be looked up: a question is a message to whoever serves that name.
 */
#ifndef POLICY_NET_RULES_H
#define POLICY_NET_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/str.h"
#include "policy/net_policy.h"

/* The rule that decided. */
enum net_rule {
    NET_RULE_OPEN,        /* allowed: nothing refuses it */
    NET_RULE_ALLOW_NAME,  /* allowed */
    NET_RULE_ALLOW_RANGE, /* allowed */
    NET_RULE_MAIL_PORT,   /* refused from here on */
    NET_RULE_OPERATOR,    /* a range that the operator denies */
    NET_RULE_HOST,        /* an address of this machine */
    NET_RULE_NOT_PUBLIC,  /* private, link-local, metadata, carrier, loopback, multicast, unspecified… */
    NET_RULE_INTERNET_OFF,
    NET_RULE_DENY_RANGE,
    NET_RULE_NAME_NOT_ALLOWED, /* a DNS question for a name that no rule allows, while names are all that is allowed */
    NET_RULE_DNS_OFF,          /* a DNS question, while the policy has an empty list of DNS servers */
    NET_RULE_PRIVATE_NAME,     /* a name that belongs to private networks, and the policy does not have it */
    NET_RULE_COUNT,
};
/* For people: "denyOut has 203.0.113.0/24"-like sentences are made by egress from this and the flow. */
extern const char *const net_rule_name[NET_RULE_COUNT];

/* The operator's settings, for all sandboxes. */
struct net_operator {
    uint32_t allow_count;
    const struct net_range *allow; /* --egress-allow */
    uint32_t deny_count;
    const struct net_range *deny; /* --egress-deny */
};
/* Of the address itself, or of the one that packets to it end up at. */
bool net_operator_denies(const struct net_operator *ranges, const struct net_address *address) must_use;

struct net_flow {
    struct net_address to;
    uint16_t port;
    bool is_host; /* `to` is an address of this machine */
    /* That leads there: from SNI, Host or a DNS answer of ours; empty: not known. Any case, a trailing dot is fine. What
     * is no host name counts as not known. */
    struct str name;
};

static inline bool net_rule_allows(enum net_rule rule)
{
    return rule <= NET_RULE_ALLOW_RANGE;
}

enum net_rule net_judge(const struct net_policy *policy, const struct net_operator *ranges, const struct net_flow *flow)
    must_use;
/* Would a name change what net_judge() says of this flow? Then the caller finds it out first. */
bool net_name_matters(const struct net_policy *policy, const struct net_operator *ranges, const struct net_flow *flow)
    must_use;
/*
 * May this name be looked up at all? NET_RULE_OPEN, NET_RULE_ALLOW_NAME, or a refusal. A caller that gets a refusal lets
 * the question through all the same if the guest has sent it to one of the policy's DNS servers, as E2B does.
 */
enum net_rule net_judge_name(const struct net_policy *policy, struct str name) must_use;
/*
 * May this name be sent to the host's DNS servers? They may know names of the operator's own network. NET_RULE_OPEN, or:
 * NET_RULE_PRIVATE_NAME  a single label, or below local, localhost, internal, home.arpa, lan, intranet, corp or private;
 *                        unless the policy names it, in its names or as a transform's host. "*" alone names nothing.
 * NET_RULE_NOT_PUBLIC    the reverse name of an address that is not public, or of a range of them; unless the operator
 *                        allows it and does not deny it.
 */
enum net_rule net_judge_private(const struct net_policy *policy, const struct net_operator *ranges, struct str name)
    must_use;
/* One of the policy's DNS servers? They count only where names are allowed. */
bool net_is_dns_server(const struct net_policy *policy, const struct net_address *address) must_use;
/* Does one of the transforms apply to this host? The exact name first, then the longest "*." suffix. NULL: none. */
const struct net_transform *net_transform_for(const struct net_policy *policy, struct str host) must_use;
/* Is the name one of the policy's, or below one of its "*." names? */
bool net_name_is_allowed(const struct net_policy *policy, struct str name) must_use;
/* The address that packets to this one end up at: of NAT64's the IPv4 address inside, of others they themselves. */
struct net_address net_address_reached(const struct net_address *address) must_use;
/* Not private, link-local, metadata, carrier, loopback, multicast, unspecified, nor one of these inside IPv6. */
bool net_address_is_public(const struct net_address *address) must_use;

#endif
