#include "policy/net_rules.h"

#include <string.h>

#include "base/hole.h"

const char *const net_rule_name[NET_RULE_COUNT] = {
    [NET_RULE_OPEN] = "nothing refuses it",
    [NET_RULE_ALLOW_NAME] = "allowed name",
    [NET_RULE_ALLOW_RANGE] = "allowed range",
    [NET_RULE_MAIL_PORT] = "mail port",
    [NET_RULE_HOST] = "address of the host",
    [NET_RULE_NOT_PUBLIC] = "address that is not public",
    [NET_RULE_INTERNET_OFF] = "internet access is off",
    [NET_RULE_DENY_RANGE] = "denied range",
    [NET_RULE_NAME_NOT_ALLOWED] = "name that is not allowed",
    [NET_RULE_DNS_OFF] = "no DNS servers",
};

/* ---- which addresses are public ---- */

/* clang-format off */
#define V4(a, b, c, d, bits) { { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d } }, 96 + (bits) }
#define V6(a, b, c, d, e, f, bits) { { { a, b, c, d, e, f } }, bits }
/* clang-format on */

/* From IANA's IPv4 special-purpose registry, without the documentation ranges. */
static const struct net_range reserved_v4[] = {
    V4(0, 0, 0, 0, 8),        /* this network; Linux takes 0.0.0.0 for 127.0.0.1 */
    V4(10, 0, 0, 0, 8),       /* private */
    V4(100, 64, 0, 0, 10),    /* carriers' own, and some clouds' metadata */
    V4(127, 0, 0, 0, 8),      /* loopback */
    V4(168, 63, 129, 16, 32), /* in no registry: what Azure's machines get their keys and settings from */
    V4(169, 254, 0, 0, 16),   /* link-local, and most clouds' metadata */
    V4(172, 16, 0, 0, 12),    /* private */
    V4(192, 0, 0, 0, 24),     /* protocol assignments: DS-Lite, PCP and TURN near the host, Oracle's metadata */
    V4(192, 88, 99, 0, 24),   /* 6to4 relays, withdrawn */
    V4(192, 168, 0, 0, 16),   /* private */
    V4(198, 18, 0, 0, 15),    /* benchmarks between networks of one owner */
    V4(224, 0, 0, 0, 4),      /* multicast */
    V4(240, 0, 0, 0, 4),      /* reserved, and broadcast */
};

/* All of IPv6 that is routed between networks. */
static const struct net_range unicast_v6 = V6(0x20, 0, 0, 0, 0, 0, 3);
/* Inside it, from IANA's IPv6 special-purpose registry, without the documentation ranges. */
static const struct net_range reserved_v6[] = {
    V6(0x20, 0x01, 0, 0, 0, 0, 23), /* protocol assignments: Teredo, benchmarks, ORCHID, PCP and TURN near the host */
    V6(0x20, 0x02, 0, 0, 0, 0, 16), /* 6to4: an IPv4 address in bits 16 to 47 */
};
/* NAT64: the last 32 bits are an IPv4 address. Its sister for local use, 64:ff9b:1::/48, is not public. */
static const struct net_range nat64 = V6(0, 0x64, 0xff, 0x9b, 0, 0, 96);

static bool any_has(uint32_t count, const struct net_range *ranges, const struct net_address *address)
{
    for (uint32_t i = 0; i < count; i++)
        if (net_range_has(&ranges[i], address))
            return true;
    return false;
}

struct net_address net_address_reached(const struct net_address *address)
{
    struct net_address v4 = { { [10] = 0xff, [11] = 0xff } };

    if (!net_range_has(&nat64, address))
        return *address;
    memcpy(v4.at + 12, address->at + 12, 4);
    return v4;
}

bool net_address_is_public(const struct net_address *address)
{
    const struct net_address end = net_address_reached(address);

    if (net_address_is_v4(&end))
        return !any_has(COUNT_OF(reserved_v4), reserved_v4, &end);
    return net_range_has(&unicast_v6, &end) && !any_has(COUNT_OF(reserved_v6), reserved_v6, &end);
}

/* ---- names ---- */

/* The name without a trailing dot; empty when it is no host name. */
static struct str clean(struct str name)
{
    if (name.len && name.at[name.len - 1] == '.')
        name.len--;
    return net_name_is_valid(name) ? name : STR("");
}

/* How well a pattern of a policy fits: 0 not at all, else more for a longer one, most for the name itself. */
static size_t fits(struct str pattern, struct str name)
{
    if (str_eq(pattern, STR("*")))
        return 1;
    if (!str_skip(&pattern, STR("*")))
        return str_eq_nocase(pattern, name) ? SIZE_MAX : 0;
    /* pattern is ".example.com" now: a name below it is longer. */
    if (name.len <= pattern.len)
        return 0;
    return str_eq_nocase(str_of(name.at + (name.len - pattern.len), pattern.len), pattern) ? pattern.len : 0;
}

bool net_name_is_allowed(const struct net_policy *policy, struct str name)
{
    struct str host = clean(name);

    for (uint32_t i = 0; host.len && i < policy->name_count; i++)
        if (fits(policy->names[i], host))
            return true;
    return false;
}

const struct net_transform *net_transform_for(const struct net_policy *policy, struct str host)
{
    const struct net_transform *best = NULL;
    size_t best_fit = 0;
    struct str name = clean(host);

    for (uint32_t i = 0; name.len && i < policy->transform_count; i++) {
        size_t fit = fits(policy->transforms[i].host, name);
        if (fit > best_fit) {
            best_fit = fit;
            best = &policy->transforms[i];
        }
    }
    return best;
}

/* ---- decisions ---- */

static bool is_mail_port(uint16_t port)
{
    return port == 25 || port == 465 || port == 587;
}

/* The policy's DNS servers count as allowed where names are allowed: without them, E2B's sandboxes look nothing up. */
bool net_is_dns_server(const struct net_policy *policy, const struct net_address *address)
{
    for (uint32_t i = 0; policy->name_count && i < policy->dns_count; i++)
        if (net_address_eq(&policy->dns[i], address))
            return true;
    return false;
}

static enum net_rule judge(const struct net_policy *policy, const struct net_operator *house,
                           const struct net_flow *flow)
{
    if (is_mail_port(flow->port))
        return NET_RULE_MAIL_PORT;
    if (!any_has(house->allow_count, house->allow, &flow->to)) {
        if (flow->is_host)
            return NET_RULE_HOST;
        if (!net_address_is_public(&flow->to))
            return NET_RULE_NOT_PUBLIC;
    }
    if (net_name_is_allowed(policy, flow->name))
        return NET_RULE_ALLOW_NAME;
    const struct net_address end = net_address_reached(&flow->to);
    if (any_has(policy->allow_count, policy->allow, &end) || net_is_dns_server(policy, &end))
        return NET_RULE_ALLOW_RANGE;
    if (!policy->internet)
        return NET_RULE_INTERNET_OFF;
    if (any_has(policy->deny_count, policy->deny, &end) || any_has(policy->deny_count, policy->deny, &flow->to))
        return NET_RULE_DENY_RANGE;
    return NET_RULE_OPEN;
}

enum net_rule net_judge(const struct net_policy *policy, const struct net_operator *house, const struct net_flow *flow)
{
    enum net_rule rule = judge(policy, house, flow);

    return hole_is_open(net_rule_name[rule]) ? NET_RULE_OPEN : rule;
}

bool net_name_matters(const struct net_policy *policy, const struct net_operator *house, const struct net_flow *flow)
{
    if (policy->name_count == 0)
        return false;
    struct net_flow nameless = *flow;
    nameless.name = STR("");
    enum net_rule rule = net_judge(policy, house, &nameless);
    return rule == NET_RULE_INTERNET_OFF || rule == NET_RULE_DENY_RANGE;
}

static bool denies_everything(const struct net_policy *policy)
{
    /* No range but 0.0.0.0/0 has addresses of both families. */
    static const struct net_address v4 = { { [10] = 0xff, [11] = 0xff } }, v6 = { { 0x20 } };

    for (uint32_t i = 0; i < policy->deny_count; i++)
        if (net_range_has(&policy->deny[i], &v4) && net_range_has(&policy->deny[i], &v6))
            return true;
    return false;
}

static enum net_rule judge_name(const struct net_policy *policy, struct str name)
{
    if (policy->name_count && policy->has_dns && policy->dns_count == 0)
        return NET_RULE_DNS_OFF;
    if (net_name_is_allowed(policy, name))
        return NET_RULE_ALLOW_NAME;
    if (policy->internet && !denies_everything(policy))
        return NET_RULE_OPEN;
    if (policy->name_count)
        return NET_RULE_NAME_NOT_ALLOWED;
    return policy->internet ? NET_RULE_DENY_RANGE : NET_RULE_INTERNET_OFF;
}

enum net_rule net_judge_name(const struct net_policy *policy, struct str name)
{
    enum net_rule rule = judge_name(policy, name);

    return hole_is_open(net_rule_name[rule]) ? NET_RULE_OPEN : rule;
}
