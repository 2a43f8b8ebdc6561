#include "policy/net_rules.h"

#include <string.h>

#include "base/hole.h"

const char *const net_rule_name[NET_RULE_COUNT] = {
    [NET_RULE_OPEN] = "nothing refuses it",
    [NET_RULE_ALLOW_NAME] = "allowed name",
    [NET_RULE_ALLOW_RANGE] = "allowed range",
    [NET_RULE_MAIL_PORT] = "mail port",
    [NET_RULE_OPERATOR] = "range that the operator denies",
    [NET_RULE_HOST] = "address of the host",
    [NET_RULE_NOT_PUBLIC] = "address that is not public",
    [NET_RULE_INTERNET_OFF] = "internet access is off",
    [NET_RULE_DENY_RANGE] = "denied range",
    [NET_RULE_NAME_NOT_ALLOWED] = "name that is not allowed",
    [NET_RULE_DNS_OFF] = "no DNS servers",
    [NET_RULE_PRIVATE_NAME] = "name of a private network",
};

/* ---- which addresses are public ---- */

/* clang-format off */
#define V4(a, b, c, d, bits) { NET_ADDRESS_V4(a, b, c, d), NET_V4_BITS + (bits) }
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
    return net_range_has(&nat64, address) ? net_address_of_v4(address->at + NET_V4_OFFSET) : *address;
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

bool net_operator_denies(const struct net_operator *ranges, const struct net_address *address)
{
    const struct net_address end = net_address_reached(address);

    return any_has(ranges->deny_count, ranges->deny, address) || any_has(ranges->deny_count, ranges->deny, &end);
}

static enum net_rule judge(const struct net_policy *policy, const struct net_operator *ranges,
                           const struct net_flow *flow)
{
    if (is_mail_port(flow->port))
        return NET_RULE_MAIL_PORT;
    if (net_operator_denies(ranges, &flow->to))
        return NET_RULE_OPERATOR;
    if (!any_has(ranges->allow_count, ranges->allow, &flow->to)) {
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

enum net_rule net_judge(const struct net_policy *policy, const struct net_operator *ranges, const struct net_flow *flow)
{
    enum net_rule rule = judge(policy, ranges, flow);

    return hole_is_open(net_rule_name[rule]) ? NET_RULE_OPEN : rule;
}

bool net_name_matters(const struct net_policy *policy, const struct net_operator *ranges, const struct net_flow *flow)
{
    if (policy->name_count == 0)
        return false;
    struct net_flow nameless = *flow;
    nameless.name = STR("");
    enum net_rule rule = net_judge(policy, ranges, &nameless);
    return rule == NET_RULE_INTERNET_OFF || rule == NET_RULE_DENY_RANGE;
}

static bool denies_everything(const struct net_policy *policy)
{
    /* No range but 0.0.0.0/0 has addresses of both families. */
    static const struct net_address v4 = NET_ADDRESS_V4(0, 0, 0, 0), v6 = { { 0x20 } };

    for (uint32_t i = 0; i < policy->deny_count; i++)
        if (net_range_has(&policy->deny[i], &v4) && net_range_has(&policy->deny[i], &v6))
            return true;
    return false;
}

static enum net_rule judge_name(const struct net_policy *policy, struct str name)
{
    if (policy->has_dns && policy->dns_count == 0)
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

/* ---- names of private networks ---- */

/* Is it this name, or below it? */
static bool is_within(struct str name, struct str zone)
{
    if (name.len < zone.len || !str_eq_nocase(str_of(name.at + (name.len - zone.len), zone.len), zone))
        return false;
    return name.len == zone.len || name.at[name.len - zone.len - 1] == '.';
}

static bool is_private_name(struct str name)
{
    /* RFC 6762 has local and, with RFC 8375 and ICANN's list, what networks use in its place. */
    static const char *const zones[] = { "local", "localhost", "internal", "home.arpa",
                                         "lan",   "intranet",  "corp",     "private" };

    if (name.len && !str_has_char(name, '.'))
        return true;
    for (size_t i = 0; i < COUNT_OF(zones); i++)
        if (is_within(name, str_from(zones[i])))
            return true;
    return false;
}

/* The policy's author has written it, or a "*." name above it. */
static bool is_named(const struct net_policy *policy, struct str name)
{
    struct str host = clean(name);

    for (uint32_t i = 0; host.len && i < policy->name_count; i++)
        if (fits(policy->names[i], host) > 1)
            return true;
    const struct net_transform *transform = net_transform_for(policy, name);
    return transform && fits(transform->host, host) > 1;
}

/* Cuts the last label off. False: there is none. */
static bool cut_last(struct str *name, struct str *out_label)
{
    size_t at = name->len;

    if (name->len == 0)
        return false;
    while (at && name->at[at - 1] != '.')
        at--;
    *out_label = str_of(name->at + at, name->len - at);
    name->len = at ? at - 1 : 0;
    return true;
}

/* A label that is one byte in decimal, or one hexadecimal digit. */
static bool label_number(struct str label, unsigned base, unsigned *out)
{
    static const char digits[] = "0123456789abcdef";
    unsigned number = 0;

    if (label.len == 0 || label.len > (base == 10 ? 3 : 1))
        return false;
    for (size_t i = 0; i < label.len; i++) {
        char c = label.at[i];
        if (c >= 'A' && c <= 'F')
            c = (char)(c - 'A' + 'a');
        const char *digit = memchr(digits, c, base);
        if (!digit)
            return false;
        number = number * base + (unsigned)(digit - digits);
    }
    *out = number;
    return number <= 255;
}

/*
 * The range of addresses that a name in the reverse zones is about, by its first and last one: as many labels as are
 * numbers, from the end. Names may be below it. False: it is no such name, or about all addresses.
 */
static bool reversed(struct str name, struct net_address *out_first, struct net_address *out_last)
{
    struct net_address first = { { 0 } }, last;
    struct str zone = STR("ip6.arpa"), label;
    unsigned base = 16, count = 0, number;

    if (is_within(name, STR("in-addr.arpa"))) {
        zone = STR("in-addr.arpa");
        base = 10;
        first = (struct net_address)NET_ADDRESS_V4(0, 0, 0, 0);
    } else if (!is_within(name, zone)) {
        return false;
    }
    last = first;
    memset(last.at + (base == 10 ? NET_V4_OFFSET : 0), 0xff, base == 10 ? 4 : 16);
    name.len -= MIN(name.len, zone.len + 1);
    while (count < (base == 10 ? 4u : 32u) && cut_last(&name, &label) && label_number(label, base, &number)) {
        if (base == 10) {
            first.at[NET_V4_OFFSET + count] = last.at[NET_V4_OFFSET + count] = (uint8_t)number;
        } else {
            unsigned shift = count % 2 ? 0 : 4;
            first.at[count / 2] = (uint8_t)(first.at[count / 2] | number << shift);
            last.at[count / 2] = (uint8_t)((last.at[count / 2] & ~(15u << shift)) | number << shift);
        }
        count++;
    }
    *out_first = first;
    *out_last = last;
    return count > 0;
}

/* All of the range from a to b. */
static bool operator_allows_both(const struct net_operator *ranges, const struct net_address *a,
                                 const struct net_address *b)
{
    if (net_operator_denies(ranges, a) || net_operator_denies(ranges, b))
        return false;
    for (uint32_t i = 0; i < ranges->allow_count; i++)
        if (net_range_has(&ranges->allow[i], a) && net_range_has(&ranges->allow[i], b))
            return true;
    return false;
}

static enum net_rule judge_private(const struct net_policy *policy, const struct net_operator *ranges, struct str name)
{
    struct net_address first, last;

    if (name.len && name.at[name.len - 1] == '.')
        name.len--;
    if (is_private_name(name))
        return is_named(policy, name) ? NET_RULE_OPEN : NET_RULE_PRIVATE_NAME;
    if (!reversed(name, &first, &last) || net_address_is_public(&first) || net_address_is_public(&last) ||
        operator_allows_both(ranges, &first, &last))
        return NET_RULE_OPEN;
    return NET_RULE_NOT_PUBLIC;
}

enum net_rule net_judge_private(const struct net_policy *policy, const struct net_operator *ranges, struct str name)
{
    enum net_rule rule = judge_private(policy, ranges, name);

    return hole_is_open(net_rule_name[rule]) ? NET_RULE_OPEN : rule;
}
