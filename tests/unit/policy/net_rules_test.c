#include "policy/net_rules.h"

#include <stdio.h>
#include <stdlib.h>

#include "addresses.h"
#include "test.h"

/* ---- which addresses are public ---- */

/* IANA's registries as text, 2025: what is not reachable from anywhere. And the first and last address of each. */
static const struct {
    const char *range, *first, *last;
} not_public[] = {
    { "0.0.0.0/8", "0.0.0.0", "0.255.255.255" },
    { "10.0.0.0/8", "10.0.0.0", "10.255.255.255" },
    { "100.64.0.0/10", "100.64.0.0", "100.127.255.255" },
    { "127.0.0.0/8", "127.0.0.0", "127.255.255.255" },
    { "168.63.129.16", "168.63.129.16", "168.63.129.16" },
    { "169.254.0.0/16", "169.254.0.0", "169.254.255.255" },
    { "172.16.0.0/12", "172.16.0.0", "172.31.255.255" },
    { "192.0.0.0/24", "192.0.0.0", "192.0.0.255" },
    { "192.88.99.0/24", "192.88.99.0", "192.88.99.255" },
    { "192.168.0.0/16", "192.168.0.0", "192.168.255.255" },
    { "198.18.0.0/15", "198.18.0.0", "198.19.255.255" },
    { "224.0.0.0/4", "224.0.0.0", "239.255.255.255" },
    { "240.0.0.0/4", "240.0.0.0", "255.255.255.255" },
    { "::/3", "::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" }, /* but for IPv4 and NAT64, below */
    { "2001::/23", "2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff" },
    { "2002::/16", "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff" },
    { "4000::/2", "4000::", "7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" },
    { "8000::/1", "8000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" },
};

static void step(struct net_address *a, int by)
{
    for (int i = 15; i >= 0; i--) {
        a->at[i] = (uint8_t)(a->at[i] + by);
        if (a->at[i] != (by > 0 ? 0 : 0xff))
            return;
    }
}

/* The oracle: NAT64 by its text, then a walk through the table above. */
static bool is_public_by_table(const struct net_address *a)
{
    struct net_address end = *a;
    struct net_range translated = range("64:ff9b::/96");

    if (net_range_has(&translated, a)) {
        end = address("0.0.0.0");
        memcpy(end.at + 12, a->at + 12, 4);
    }
    for (size_t i = 0; i < COUNT_OF(not_public); i++) {
        struct net_range r = range(not_public[i].range);
        if (net_range_has(&r, &end))
            return false;
    }
    return true;
}

static void reserved_ranges_are_not_public_from_end_to_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(not_public); i++) {
        struct net_address first = address(not_public[i].first), last = address(not_public[i].last);
        struct net_range r = range(not_public[i].range);
        assert_true(net_range_has(&r, &first));
        assert_true(net_range_has(&r, &last));
        if (net_address_is_public(&first) || net_address_is_public(&last))
            fail_msg("%s is public", not_public[i].range);
        /* The neighbours are what the table says of them. */
        step(&first, -1);
        step(&last, 1);
        if (net_address_is_public(&first) != is_public_by_table(&first) ||
            net_address_is_public(&last) != is_public_by_table(&last))
            fail_msg("the neighbours of %s", not_public[i].range);
    }
}

static void single_addresses_are_judged_one_by_one(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        bool is_public;
    } rows[] = {
        /* metadata services */
        { "169.254.169.254", false },
        { "100.100.100.200", false },
        { "192.0.0.192", false },
        { "168.63.129.16", false },
        { "168.63.129.15", true },
        { "168.63.129.17", true },
        { "fd00:ec2::254", false },
        { "fd20:ce::254", false },
        /* documentation is ordinary */
        { "192.0.2.1", true },
        { "198.51.100.1", true },
        { "203.0.113.1", true },
        { "2001:db8::1", true },
        { "3fff::1", true },
        /* neighbours */
        { "9.255.255.255", true },
        { "11.0.0.0", true },
        { "100.63.255.255", true },
        { "100.128.0.0", true },
        { "126.255.255.255", true },
        { "128.0.0.0", true },
        { "172.15.255.255", true },
        { "172.32.0.0", true },
        { "192.0.1.0", true },
        { "192.167.255.255", true },
        { "192.169.0.0", true },
        { "198.17.255.255", true },
        { "198.20.0.0", true },
        { "223.255.255.255", true },
        { "255.255.255.255", false },
        { "8.8.8.8", true },
        /* IPv6 */
        { "::", false },
        { "::1", false },
        { "::127.0.0.1", false }, /* IPv4-compatible */
        { "::8.8.8.8", false },
        { "fe80::1", false },
        { "fec0::1", false }, /* site-local */
        { "fc00::1", false },
        { "fdff::1", false },
        { "ff02::1", false },
        { "100::1", false }, /* discard */
        { "100:0:0:1::1", false },
        { "5f00::1", false },    /* SRv6 */
        { "2001::1", false },    /* Teredo */
        { "2001:2::1", false },  /* benchmarks */
        { "2001:10::1", false }, /* ORCHID */
        { "2001:20::1", false },
        { "2001:1::1", false }, /* PCP */
        { "2001:200::1", true },
        { "2606:4700:4700::1111", true },
        { "2a00:1450:4001::200e", true },
        { "1fff::1", false },
        { "4000::1", false },
        /* IPv4 inside IPv6 */
        { "::ffff:127.0.0.1", false },
        { "::ffff:169.254.169.254", false },
        { "::ffff:8.8.8.8", true },
        { "2002:7f00:1::", false },
        { "2002:808:808::1", false },
        { "64:ff9b::127.0.0.1", false },
        { "64:ff9b::10.0.0.1", false },
        { "64:ff9b::169.254.169.254", false },
        { "64:ff9b::8.8.8.8", true },
        { "64:ff9b::1:808:808", false }, /* not in the /96 */
        { "64:ff9b:1::8.8.8.8", false },
        { "64:ff9b:1:fffe::10.0.0.1", false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net_address a = address(rows[i].address);
        if (net_address_is_public(&a) != rows[i].is_public)
            fail_msg("%s: want public %d", rows[i].address, rows[i].is_public);
    }
}

static void random_addresses_agree_with_the_table(void **state)
{
    (void)state;
    static const char *const prefixes[] = { "::ffff:0:0", "64:ff9b::", "2001::", "2000::", "::" };

    srandom(12);
    for (int i = 0; i < 200000; i++) {
        struct net_address a = address(prefixes[i % 5]);
        int from = i % 5 < 2 ? 12 : i % 5 == 2 ? 2 : i % 5 == 3 ? 1 : 0;
        for (int k = from; k < 16; k++)
            a.at[k] = (uint8_t)random();
        if (net_address_is_public(&a) != is_public_by_table(&a)) {
            char text[NET_ADDRESS_TEXT];
            net_address_text(&a, text);
            fail_msg("%s", text);
        }
    }
}

/* ---- precedence ---- */

/* What E2B documents, and the header, said once more as nested questions. */
static enum net_rule expected(bool mail, bool barred, bool lifted, bool host, bool is_public, bool name, bool allowed,
                              bool internet, bool denied)
{
    if (mail)
        return NET_RULE_MAIL_PORT;
    if (barred)
        return NET_RULE_OPERATOR;
    if (host && !lifted)
        return NET_RULE_HOST;
    if (!is_public && !lifted)
        return NET_RULE_NOT_PUBLIC;
    if (name || allowed)
        return name ? NET_RULE_ALLOW_NAME : NET_RULE_ALLOW_RANGE;
    if (!internet || denied)
        return internet ? NET_RULE_DENY_RANGE : NET_RULE_INTERNET_OFF;
    return NET_RULE_OPEN;
}

static void every_combination_follows_the_documented_order(void **state)
{
    (void)state;
    unsigned seen[NET_RULE_COUNT] = { 0 };

    for (unsigned bits = 0; bits < 512; bits++) {
        bool mail = bits & 1, lifted = bits & 2, host = bits & 4, is_public = bits & 8, name = bits & 16,
             allowed = bits & 32, internet = bits & 64, denied = bits & 128, barred = bits & 256;
        const char *at = is_public ? "203.0.113.7" : "10.0.0.7", *net = is_public ? "203.0.113.0/24" : "10.0.0.0/8";
        struct net_range one = range(net), other = range("198.51.100.0/24");
        struct str names[] = { STR("other.example"), STR("*.example.com") };
        struct net_policy policy = {
            .internet = internet,
            .allow_count = 1,
            .allow = allowed ? &one : &other,
            .deny_count = 1,
            .deny = denied ? &one : &other,
            .name_count = 2,
            .names = names,
        };
        struct net_operator ranges = {
            .allow_count = 1, .allow = lifted ? &one : &other, .deny_count = 1, .deny = barred ? &one : &other
        };
        struct net_flow flow = { .to = address(at), .port = mail ? 587 : 443, .is_host = host };
        flow.name = name ? STR("www.example.com") : STR("www.example.net");
        enum net_rule want = expected(mail, barred, lifted, host, is_public, name, allowed, internet, denied);
        enum net_rule got = net_judge(&policy, &ranges, &flow);
        if (got != want)
            fail_msg("combination %u: got '%s', want '%s'", bits, net_rule_name[got], net_rule_name[want]);
        seen[got]++;
        /* A name matters if and only if it turns a refusal into leave. */
        enum net_rule with = expected(mail, barred, lifted, host, is_public, true, allowed, internet, denied);
        enum net_rule without = expected(mail, barred, lifted, host, is_public, false, allowed, internet, denied);
        assert_int_equal(net_name_matters(&policy, &ranges, &flow), net_rule_allows(with) != net_rule_allows(without));
        policy.name_count = 0;
        assert_int_equal(net_judge(&policy, &ranges, &flow), without);
        assert_false(net_name_matters(&policy, &ranges, &flow));
    }
    for (int rule = 0; rule <= NET_RULE_DENY_RANGE; rule++)
        if (!seen[rule])
            fail_msg("no combination led to '%s'", net_rule_name[rule]);
}

static void every_rule_has_a_name_and_refusals_come_last(void **state)
{
    (void)state;
    for (int rule = 0; rule < NET_RULE_COUNT; rule++) {
        assert_non_null(net_rule_name[rule]);
        assert_int_equal(net_rule_allows((enum net_rule)rule), rule <= NET_RULE_ALLOW_RANGE);
    }
}

static const struct net_operator nobody = { 0 };

static void mail_ports_never_leave(void **state)
{
    (void)state;
    struct net_range everything = range("0.0.0.0/0");
    struct net_policy policy = { .internet = true, .allow_count = 1, .allow = &everything };
    struct net_operator ranges = { .allow_count = 1, .allow = &everything };

    for (unsigned port = 0; port <= 65535; port++) {
        struct net_flow flow = { .to = address("203.0.113.7"), .port = (uint16_t)port };
        bool is_mail = port == 25 || port == 465 || port == 587;
        assert_int_equal(net_judge(&policy, &ranges, &flow), is_mail ? NET_RULE_MAIL_PORT : NET_RULE_ALLOW_RANGE);
    }
}

static void an_operators_range_lifts_one_rule_and_no_other(void **state)
{
    (void)state;
    struct net_range private = range("10.0.0.0/8");
    struct net_operator ranges = { .allow_count = 1, .allow = &private };
    struct net_policy off = { .internet = false }, on = { .internet = true };
    struct net_policy denied = { .internet = true, .deny_count = 1, .deny = &private };
    struct net_flow flow = { .to = address("10.1.2.3"), .port = 80 };

    assert_int_equal(net_judge(&on, &nobody, &flow), NET_RULE_NOT_PUBLIC);
    assert_int_equal(net_judge(&on, &ranges, &flow), NET_RULE_OPEN);
    assert_int_equal(net_judge(&off, &ranges, &flow), NET_RULE_INTERNET_OFF);
    assert_int_equal(net_judge(&denied, &ranges, &flow), NET_RULE_DENY_RANGE);
    flow.is_host = true;
    assert_int_equal(net_judge(&on, &nobody, &flow), NET_RULE_HOST);
    assert_int_equal(net_judge(&on, &ranges, &flow), NET_RULE_OPEN);
    flow.to = address("64:ff9b::10.1.2.3"); /* a gateway's 10.1.2.3 need not be ours */
    flow.is_host = false;
    assert_int_equal(net_judge(&on, &ranges, &flow), NET_RULE_NOT_PUBLIC);
}

static void translated_addresses_are_judged_as_what_they_lead_to(void **state)
{
    (void)state;
    struct net_range v4 = range("203.0.113.0/24"), v6 = range("::/0"), all = range("0.0.0.0/0");
    struct net_range prefix = range("64:ff9b::/96");
    struct net_flow flow = { .to = address("64:ff9b::203.0.113.9"), .port = 443 };
    struct net_policy denied = { .internet = true, .deny_count = 1, .deny = &v4 };
    struct net_policy prefix_denied = { .internet = true, .deny_count = 1, .deny = &prefix };
    struct net_policy allowed = { .internet = true, .allow_count = 1, .allow = &v4, .deny_count = 1, .deny = &all };
    struct net_policy v6_allowed = { .internet = true, .allow_count = 1, .allow = &v6, .deny_count = 1, .deny = &all };

    assert_int_equal(net_judge(&denied, &nobody, &flow), NET_RULE_DENY_RANGE);
    assert_int_equal(net_judge(&prefix_denied, &nobody, &flow), NET_RULE_DENY_RANGE);
    assert_int_equal(net_judge(&allowed, &nobody, &flow), NET_RULE_ALLOW_RANGE);
    assert_int_equal(net_judge(&v6_allowed, &nobody, &flow), NET_RULE_DENY_RANGE);
}

static void denying_everything_denies_ipv6_too(void **state)
{
    (void)state;
    struct net_range all = range("0.0.0.0/0");
    struct net_policy policy = { .internet = true, .deny_count = 1, .deny = &all };
    struct net_flow flow = { .to = address("2001:db8::1"), .port = 443 };

    assert_int_equal(net_judge(&policy, &nobody, &flow), NET_RULE_DENY_RANGE);
}

static void dns_servers_are_allowed_where_names_are(void **state)
{
    (void)state;
    struct net_range all = range("0.0.0.0/0");
    struct net_address servers[] = { address("198.51.100.53") };
    struct str name = STR("example.com");
    struct net_policy policy = { .internet = true,
                                 .deny_count = 1,
                                 .deny = &all,
                                 .name_count = 1,
                                 .names = &name,
                                 .has_dns = true,
                                 .dns_count = 1,
                                 .dns = servers };
    struct net_flow flow = { .to = servers[0], .port = 853 };

    assert_int_equal(net_judge(&policy, &nobody, &flow), NET_RULE_ALLOW_RANGE);
    flow.to = address("198.51.100.54");
    assert_int_equal(net_judge(&policy, &nobody, &flow), NET_RULE_DENY_RANGE);
    flow.to = servers[0];
    policy.name_count = 0;
    assert_int_equal(net_judge(&policy, &nobody, &flow), NET_RULE_DENY_RANGE);
}

/* ---- names ---- */

static void names_match_whole_or_below_a_star(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool allowed;
    } rows[] = {
        { "example.com", "example.com", true },
        { "example.com", "EXAMPLE.com", true },
        { "example.com", "example.com.", true },
        { "example.com", "example.com..", false },
        { "example.com", "www.example.com", false },
        { "example.com", "xexample.com", false },
        { "example.com", "example.com.evil.net", false },
        { "example.com", "example.co", false },
        { "example.com", "", false },
        { "example.com", ".", false },
        { "*.example.com", "www.example.com", true },
        { "*.example.com", "a.b.c.Example.Com.", true },
        { "*.example.com", "example.com", false },
        { "*.example.com", ".example.com", false },
        { "*.example.com", "..example.com", false },
        { "*.example.com", "xexample.com", false },
        { "*.example.com", "www.example.com.evil.net", false },
        { "*.example.com", "*.example.com", false },
        { "*.example.com", "evil.net/.example.com", false },
        { "*.example.com", "evil.net .example.com", false },
        { "*", "anything.example", true },
        { "*", "localhost", true },
        { "*", "192.0.2.1", false }, /* an address is no name */
        { "*", "[2001:db8::1]", false },
        { "*", "", false },
        { "xn--bcher-kva.example", "XN--bcher-KVA.example", true },
        { "xn--bcher-kva.example",
          "b\xc3\xbc"
          "cher.example",
          false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str pattern = str_from(rows[i].pattern);
        struct net_policy policy = { .name_count = 1, .names = &pattern };
        struct net_flow flow = { .to = address("203.0.113.7"), .port = 443, .name = str_from(rows[i].name) };
        if (net_name_is_allowed(&policy, flow.name) != rows[i].allowed)
            fail_msg("%s with %s: want %d", rows[i].name, rows[i].pattern, rows[i].allowed);
        assert_int_equal(net_judge(&policy, &nobody, &flow),
                         rows[i].allowed ? NET_RULE_ALLOW_NAME : NET_RULE_INTERNET_OFF);
    }
    struct str pattern = STR("*.example.com");
    struct net_policy policy = { .name_count = 1, .names = &pattern };
    assert_false(net_name_is_allowed(&policy, STR("evil.net\0.example.com")));
    assert_false(net_name_is_allowed(&policy, STR("www.example.com\0")));
}

static void a_question_is_judged_by_its_name(void **state)
{
    (void)state;
    struct net_range all = range("0.0.0.0/0"), v4_half = range("0.0.0.0/1"), v6 = range("::/0");
    struct str name = STR("*.example.com");
    struct net_address server = address("198.51.100.53");
    struct {
        struct net_policy policy;
        const char *name;
        enum net_rule want;
    } rows[] = {
        { { .internet = true }, "any.example", NET_RULE_OPEN },
        { { .internet = true }, "", NET_RULE_OPEN }, /* the root */
        { { .internet = false }, "any.example", NET_RULE_INTERNET_OFF },
        { { .internet = true, .deny_count = 1, .deny = &all }, "any.example", NET_RULE_DENY_RANGE },
        { { .internet = true, .deny_count = 1, .deny = &v4_half }, "any.example", NET_RULE_OPEN },
        { { .internet = true, .deny_count = 1, .deny = &v6 }, "any.example", NET_RULE_OPEN },
        { { .internet = false, .name_count = 1, .names = &name }, "a.example.com", NET_RULE_ALLOW_NAME },
        { { .internet = false, .name_count = 1, .names = &name }, "a.example.net", NET_RULE_NAME_NOT_ALLOWED },
        { { .internet = false, .name_count = 1, .names = &name }, "", NET_RULE_NAME_NOT_ALLOWED },
        { { .internet = true, .deny_count = 1, .deny = &all, .name_count = 1, .names = &name },
          "A.EXAMPLE.COM.",
          NET_RULE_ALLOW_NAME },
        { { .internet = true, .deny_count = 1, .deny = &all, .name_count = 1, .names = &name },
          "example.net",
          NET_RULE_NAME_NOT_ALLOWED },
        { { .internet = true, .name_count = 1, .names = &name }, "example.net", NET_RULE_OPEN },
        { { .internet = false, .allow_count = 1, .allow = &v4_half }, "any.example", NET_RULE_INTERNET_OFF },
        { { .internet = false, .name_count = 1, .names = &name, .has_dns = true }, "a.example.com", NET_RULE_DNS_OFF },
        { { .internet = false, .name_count = 1, .names = &name, .has_dns = true, .dns_count = 1, .dns = &server },
          "a.example.com",
          NET_RULE_ALLOW_NAME },
        { { .internet = true, .has_dns = true }, "any.example", NET_RULE_DNS_OFF },
        { { .internet = true, .has_dns = true, .dns_count = 1, .dns = &server }, "any.example", NET_RULE_OPEN },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        enum net_rule got = net_judge_name(&rows[i].policy, str_from(rows[i].name));
        if (got != rows[i].want)
            fail_msg("row %zu: got '%s', want '%s'", i, net_rule_name[got], net_rule_name[rows[i].want]);
    }
}

static void names_of_private_networks_are_not_asked_for(void **state)
{
    static const struct {
        const char *name;
        enum net_rule want;
    } rows[] = {
        { "example.com", NET_RULE_OPEN },
        { "", NET_RULE_OPEN }, /* the root */
        { "localhost", NET_RULE_PRIVATE_NAME },
        { "db", NET_RULE_PRIVATE_NAME },
        { "db.", NET_RULE_PRIVATE_NAME },
        { "printer.local", NET_RULE_PRIVATE_NAME },
        { "_ldap._tcp.dc.Corp.", NET_RULE_PRIVATE_NAME },
        { "metadata.google.internal", NET_RULE_PRIVATE_NAME },
        { "a.localhost", NET_RULE_PRIVATE_NAME },
        { "router.home.arpa", NET_RULE_PRIVATE_NAME },
        { "home.arpa", NET_RULE_PRIVATE_NAME },
        { "a.lan", NET_RULE_PRIVATE_NAME },
        { "a.intranet", NET_RULE_PRIVATE_NAME },
        { "a.private", NET_RULE_PRIVATE_NAME },
        { "internal.example.com", NET_RULE_OPEN },
        { "notlocal.xlocal", NET_RULE_OPEN },
        { "xhome.arpa", NET_RULE_OPEN },
        { "1.1.168.192.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "168.192.IN-ADDR.arpa.", NET_RULE_NOT_PUBLIC },
        { "lb._dns-sd._udp.0.1.168.192.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "0-127.1.168.192.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "1.0.0.127.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "10.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "9.0.1.10.in-addr.arpa", NET_RULE_OPEN }, /* the operator allows it */
        { "0.1.10.in-addr.arpa", NET_RULE_OPEN },
        { "1.10.in-addr.arpa", NET_RULE_NOT_PUBLIC },
        { "7.113.0.203.in-addr.arpa", NET_RULE_OPEN },
        { "192.in-addr.arpa", NET_RULE_OPEN }, /* some of it is public */
        { "in-addr.arpa", NET_RULE_OPEN },
        { "x.in-addr.arpa", NET_RULE_OPEN },
        { "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.F.ip6.arpa", NET_RULE_NOT_PUBLIC },
        { "8.e.f.ip6.arpa", NET_RULE_NOT_PUBLIC },
        { "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", NET_RULE_OPEN },
        { "1.0.0.2.ip6.arpa", NET_RULE_OPEN },
        { "ip6.arpa", NET_RULE_OPEN },
    };
    struct net_range allowed = range("10.1.0.0/24");
    struct net_operator ranges = { .allow_count = 1, .allow = &allowed };
    struct net_policy policy = { .internet = true };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        enum net_rule got = net_judge_private(&policy, &ranges, str_from(rows[i].name));
        if (got != rows[i].want)
            fail_msg("%s: got '%s', want '%s'", rows[i].name, net_rule_name[got], net_rule_name[rows[i].want]);
    }
    /* The policy can name them, but not by naming everything. */
    struct str names[] = { STR("*"), STR("*.corp"), STR("db") };
    struct net_transform transform = { STR("api.internal"), 0, NULL };
    policy = (struct net_policy){ .name_count = 3, .names = names, .transform_count = 1, .transforms = &transform };
    assert_int_equal(net_judge_private(&policy, &ranges, STR("a.corp")), NET_RULE_OPEN);
    assert_int_equal(net_judge_private(&policy, &ranges, STR("DB.")), NET_RULE_OPEN);
    assert_int_equal(net_judge_private(&policy, &ranges, STR("api.internal")), NET_RULE_OPEN);
    assert_int_equal(net_judge_private(&policy, &ranges, STR("b.internal")), NET_RULE_PRIVATE_NAME);
    assert_int_equal(net_judge_private(&policy, &ranges, STR("corp")), NET_RULE_PRIVATE_NAME);
}

static void what_the_operator_denies_no_other_address_leads_to(void **state)
{
    static const struct {
        const char *range, *to;
        bool is_denied;
    } rows[] = {
        { "203.0.113.0/24", "203.0.113.7", true },
        { "203.0.113.0/24", "::ffff:203.0.113.7", true },
        { "203.0.113.0/24", "64:ff9b::203.0.113.7", true }, /* NAT64 leads there */
        { "203.0.113.0/24", "203.0.114.7", false },
        { "64:ff9b::/96", "64:ff9b::198.51.100.7", true }, /* NAT64 itself, and not what it leads to */
        { "64:ff9b::/96", "198.51.100.7", false },
        { "2001:db8:64::/96", "2001:db8:64::c633:6407", true }, /* a network's own prefix for it */
        { "0.0.0.0/0", "2001:db8::1", true },
    };
    struct net_range everything = range("0.0.0.0/0"), six = range("::/0");
    struct net_range all[] = { everything, six };
    struct str names[] = { STR("*") };
    struct net_policy policy = { .internet = true, .allow_count = 2, .allow = all, .name_count = 1, .names = names };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net_range denied = range(rows[i].range);
        struct net_operator ranges = { .allow_count = 2, .allow = all, .deny_count = 1, .deny = &denied };
        struct net_flow flow = { .to = address(rows[i].to), .port = 443, .name = STR("www.example.com") };
        enum net_rule want = rows[i].is_denied ? NET_RULE_OPERATOR : NET_RULE_ALLOW_NAME;
        if (net_judge(&policy, &ranges, &flow) != want || net_name_matters(&policy, &ranges, &flow))
            fail_msg("%s denied: %s", rows[i].range, rows[i].to);
    }
    /* Nor is what it allows and denies at once looked up by its reverse name. */
    struct net_range ten = range("10.0.0.0/8"), part = range("10.1.0.0/16");
    struct net_operator ranges = { .allow_count = 1, .allow = &ten, .deny_count = 1, .deny = &part };
    assert_int_equal(net_judge_private(&policy, &ranges, STR("9.0.2.10.in-addr.arpa")), NET_RULE_OPEN);
    assert_int_equal(net_judge_private(&policy, &ranges, STR("9.0.1.10.in-addr.arpa")), NET_RULE_NOT_PUBLIC);
}

static void the_exact_transform_wins_then_the_longest(void **state)
{
    (void)state;
    struct net_transform transforms[] = {
        { STR("*.com"), 0, NULL },           { STR("*.example.com"), 0, NULL },
        { STR("api.example.com"), 0, NULL }, { STR("*.api.example.com"), 0, NULL },
        { STR("example.org"), 0, NULL },
    };
    struct net_policy policy = { .transform_count = COUNT_OF(transforms), .transforms = transforms };
    static const struct {
        const char *host;
        int want; /* -1: none */
    } rows[] = {
        { "api.example.com", 2 },
        { "API.example.com.", 2 },
        { "www.example.com", 1 },
        { "a.api.example.com", 3 },
        { "a.b.api.example.com", 3 },
        { "example.com", 0 },
        { "example.org", 4 },
        { "www.example.org", -1 },
        { "com", -1 },
        { "", -1 },
        { "192.0.2.1", -1 },
        { "api.example.com:443", -1 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct net_transform *got = net_transform_for(&policy, str_from(rows[i].host));
        assert_ptr_equal(got, rows[i].want < 0 ? NULL : &transforms[rows[i].want]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(reserved_ranges_are_not_public_from_end_to_end),
        CASE(single_addresses_are_judged_one_by_one),
        CASE(random_addresses_agree_with_the_table),
        CASE(every_combination_follows_the_documented_order),
        CASE(every_rule_has_a_name_and_refusals_come_last),
        CASE(mail_ports_never_leave),
        CASE(an_operators_range_lifts_one_rule_and_no_other),
        CASE(translated_addresses_are_judged_as_what_they_lead_to),
        CASE(denying_everything_denies_ipv6_too),
        CASE(dns_servers_are_allowed_where_names_are),
        CASE(names_match_whole_or_below_a_star),
        CASE(a_question_is_judged_by_its_name),
        CASE(names_of_private_networks_are_not_asked_for),
        CASE(what_the_operator_denies_no_other_address_leads_to),
        CASE(the_exact_transform_wins_then_the_longest),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
