#include "policy/net_policy.h"

#include <stdio.h>

#include "addresses.h"
#include "base/limits.h"
#include "test.h"

static void addresses_are_parsed_and_printed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *printed;
        bool v4;
    } rows[] = {
        { "192.0.2.1", "192.0.2.1", true },
        { "0.0.0.0", "0.0.0.0", true },
        { "255.255.255.255", "255.255.255.255", true },
        { "2001:DB8::1", "2001:db8::1", false },
        { "::", "::", false },
        { "::1", "::1", false },
        { "::ffff:192.0.2.1", "192.0.2.1", true },
        { "::ffff:c000:201", "192.0.2.1", true },
        { "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net_address got = address(rows[i].text);
        char text[NET_ADDRESS_TEXT];
        net_address_text(&got, text);
        assert_string_equal(text, rows[i].printed);
        assert_int_equal(net_address_is_v4(&got), rows[i].v4);
    }
}

static void what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "192.0.2",
        "192.0.2.1.1",
        "192.0.2.256",
        "0192.0.2.1",
        "192.0.2.01",
        " 192.0.2.1",
        "192.0.2.1 ",
        "0x7f.1",
        "2130706433",
        "127.1",
        "::ffff:192.0.2",
        "fe80::1%lo",
        "[::1]",
        ":::",
        "1:2:3:4:5:6:7",
        "g::",
        "192.0.2.1/24",
        "example.com",
        "::1/128",
        "*",
        "192.0.2.1:80",
        "1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:16:17:18:19:20",
    };
    struct net_address out;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (net_address_parse(str_from(rows[i]), &out))
            fail_msg("'%s' was taken for an address", rows[i]);
    assert_false(net_address_parse(STR("192.0.2.1\0"), &out));
}

static void ranges_are_parsed_and_their_host_bits_cleared(void **state)
{
    (void)state;
    static const struct {
        const char *text, *printed;
        int bits;
    } rows[] = {
        { "192.0.2.1", "192.0.2.1", 128 },
        { "192.0.2.1/32", "192.0.2.1", 128 },
        { "10.1.2.3/8", "10.0.0.0/8", 104 },
        { "255.255.255.255/1", "128.0.0.0/1", 97 },
        { "203.0.113.77/27", "203.0.113.64/27", 123 },
        { "0.0.0.0/0", "0.0.0.0/0", 96 },
        { "1.2.3.4/0", "0.0.0.0/0", 96 },
        { "::/0", "::/0", 0 },
        { "::1/0", "::/0", 0 },
        { "2001:db8:ffff::1/33", "2001:db8:8000::/33", 33 },
        { "2001:db8::1/128", "2001:db8::1", 128 },
        { "::ffff:10.1.2.3/104", "10.0.0.0/8", 104 },
        { "::ffff:0:0/95", "::fffe:0:0/95", 95 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net_range got = range(rows[i].text);
        char text[NET_RANGE_TEXT];
        net_range_text(&got, text);
        assert_string_equal(text, rows[i].printed);
        assert_int_equal(got.bits, rows[i].bits);
    }
}

static void what_is_no_range_is_refused(void **state)
{
    (void)state;
    static const char *const rows[] = { "",
                                        "/",
                                        "/8",
                                        "10.0.0.0/",
                                        "10.0.0.0/33",
                                        "10.0.0.0/08",
                                        "10.0.0.0/8/",
                                        "10.0.0.0/8/8",
                                        "10.0.0.0/-1",
                                        "::/129",
                                        "::/0128",
                                        "::/00",
                                        "10.0.0.0/+8",
                                        "10.0.0.0 /8",
                                        "10/8",
                                        "10.0.0.0/8 ",
                                        "::/1000",
                                        "example.com/8" };
    struct net_range out;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (net_range_parse(str_from(rows[i]), &out))
            fail_msg("'%s' was taken for a range", rows[i]);
}

static void a_range_has_what_is_in_it(void **state)
{
    (void)state;
    static const struct {
        const char *range, *address;
        bool has;
    } rows[] = {
        { "10.0.0.0/8", "10.255.255.255", true },
        { "10.0.0.0/8", "11.0.0.0", false },
        { "10.0.0.0/8", "9.255.255.255", false },
        { "192.0.2.0/25", "192.0.2.127", true },
        { "192.0.2.0/25", "192.0.2.128", false },
        { "192.0.2.1", "192.0.2.1", true },
        { "192.0.2.1", "192.0.2.0", false },
        { "128.0.0.0/1", "128.0.0.0", true },
        { "128.0.0.0/1", "127.255.255.255", false },
        { "2001:db8::/32", "2001:db8:ffff::", true },
        { "2001:db8::/32", "2001:db9::", false },
        /* "Everything", as E2B's clients write it, has IPv6 addresses too. */
        { "0.0.0.0/0", "192.0.2.1", true },
        { "0.0.0.0/0", "2001:db8::1", true },
        { "0.0.0.0/0", "::", true },
        /* All other ranges keep to their family. */
        { "::/0", "2001:db8::1", true },
        { "::/0", "192.0.2.1", false },
        { "::/1", "192.0.2.1", false },
        { "::fffe:0:0/95", "192.0.2.1", false },
        { "::fffe:0:0/95", "::fffe:1:2", true },
        { "0.0.0.0/1", "::", false },
        { "0.0.0.0/1", "::1", false },
        { "::ffff:10.0.0.0/104", "10.1.1.1", true },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net_range r = range(rows[i].range);
        struct net_address a = address(rows[i].address);
        if (net_range_has(&r, &a) != rows[i].has)
            fail_msg("%s in %s: want %d", rows[i].address, rows[i].range, rows[i].has);
    }
}

/* The slow way, bit by bit. */
static bool has_by_bits(const struct net_range *r, const struct net_address *a)
{
    for (unsigned bit = 0; bit < r->bits; bit++)
        if ((r->address.at[bit / 8] >> (7 - bit % 8) & 1) != (a->at[bit / 8] >> (7 - bit % 8) & 1))
            return false;
    return true;
}

static void every_prefix_length_is_compared_bit_by_bit(void **state)
{
    (void)state;
    struct net_address base = address("2001:db8:5a5a:a5a5:1234:5678:9abc:def1");

    for (unsigned bits = 0; bits <= 128; bits++) {
        char text[NET_RANGE_TEXT];
        (void)snprintf(text, sizeof text, "2001:db8:5a5a:a5a5:1234:5678:9abc:def1/%u", bits);
        struct net_range r = range(text);
        for (unsigned flip = 0; flip < 128; flip++) {
            struct net_address a = base;
            a.at[flip / 8] ^= (uint8_t)(0x80 >> flip % 8);
            assert_int_equal(net_range_has(&r, &a), has_by_bits(&r, &a));
            assert_int_equal(net_range_has(&r, &a), flip >= bits);
        }
        assert_true(net_range_has(&r, &base));
    }
}

static void names_are_brought_into_one_form(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want; /* NULL: refused */
    } rows[] = {
        { "example.com", "example.com" },
        { "Example.COM.", "example.com" },
        { "*.Example.com", "*.example.com" },
        { "*.example.com.", "*.example.com" },
        { "*", "*" },
        { "localhost", "localhost" },
        { "_acme-challenge.example.com", "_acme-challenge.example.com" },
        { "xn--bcher-kva.example", "xn--bcher-kva.example" },
        { "a-b.c", "a-b.c" },
        { "1.2.3.4.example", "1.2.3.4.example" },
        { "", NULL },
        { ".", NULL },
        { "*.", NULL },
        { "**", NULL },
        { "**.example.com", NULL },
        { "*.*.example.com", NULL },
        { "a.*.example.com", NULL },
        { "*example.com", NULL },
        { "example..com", NULL },
        { ".example.com", NULL },
        { "example.com..", NULL },
        { "exa mple.com", NULL },
        { "exa\tmple.com", NULL },
        { "-a.example.com", NULL },
        { "a-.example.com", NULL },
        { "example.com-", NULL },
        { "b\xc3\xbc"
          "cher.example",
          NULL },
        { "192.0.2.1", NULL },
        { "192.0.2.1.", NULL },
        { "192.0.2", NULL },
        { "0x7f.0x1", NULL },
        { "2001:db8::1", NULL },
        { "example.com:80", NULL },
        { "example.com/", NULL },
        { "example.c0m", "example.c0m" },
    };
    struct arena arena;
    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str got = STR("untouched");
        bool ok = net_name_parse(&arena, str_from(rows[i].text), &got);
        if (ok != (rows[i].want != NULL))
            fail_msg("'%s' was %s", rows[i].text, ok ? "taken" : "refused");
        CHECK_STR(got, rows[i].want ? str_from(rows[i].want) : STR("untouched"));
    }
    struct str out;
    assert_false(net_name_parse(&arena, STR("a\0.example.com"), &out));
    arena_done(&arena);
}

static void labels_and_names_have_their_length(void **state)
{
    (void)state;
    char text[300];

    memset(text, 'a', sizeof text);
    assert_true(net_name_is_valid(str_of(text, 63)));
    assert_false(net_name_is_valid(str_of(text, 64)));
    for (size_t i = 49; i < sizeof text; i += 50)
        text[i] = '.';
    assert_true(net_name_is_valid(str_of(text, 253)));
    assert_false(net_name_is_valid(str_of(text, 254)));
}

static void placeholders_are_found(void **state)
{
    (void)state;
    assert_true(net_value_has_placeholder(STR("Bearer ${e2b.secrets.openai}")));
    assert_true(net_value_has_placeholder(STR("${e2b.identity.tokens.aws}")));
    assert_true(net_value_has_placeholder(STR("${e2b.secrets.cut")));
    assert_false(net_value_has_placeholder(STR("${e2b")));
    assert_false(net_value_has_placeholder(STR("$ {e2b.secrets.a}")));
    assert_false(net_value_has_placeholder(STR("")));
}

/* A policy that uses every field. The arrays live as long as the program. */
static struct net_policy full_policy(void)
{
    static struct net_range allow[2], deny[1];
    static struct str names[] = { STR_INIT("example.com"), STR_INIT("*.example.org"), STR_INIT("*") };
    static struct net_address dns[2];
    static struct net_header headers[] = { { STR_INIT("Authorization"), STR_INIT("Bearer t") },
                                           { STR_INIT("X-Empty"), STR_INIT("") } };
    static struct net_transform transforms[] = { { STR_INIT("api.example.com"), 2, headers },
                                                 { STR_INIT("*.example.org"), 0, NULL } };

    allow[0] = range("192.0.2.0/24");
    allow[1] = range("2001:db8::/32");
    deny[0] = range("0.0.0.0/0");
    dns[0] = address("198.51.100.53");
    dns[1] = address("2001:db8::53");
    return (struct net_policy){
        .internet = true,
        .allow_count = 2,
        .allow = allow,
        .deny_count = 1,
        .deny = deny,
        .name_count = 3,
        .names = names,
        .has_dns = true,
        .dns_count = 2,
        .dns = dns,
        .transform_count = 2,
        .transforms = transforms,
        .seed = { 1, 2, 3, [31] = 32 },
        .proxy = { .host = STR("proxy.example.net"),
                   .port = 1080,
                   .username = STR("u"),
                   .password = STR("p"),
                   .tls = true,
                   .server_name = STR("other.example.net"),
                   .ca_pem = STR("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n") },
    };
}

static void a_policy_survives_packing(void **state)
{
    (void)state;
    struct net_policy policy = full_policy(), back;
    struct err err;
    struct arena arena;

    assert_true(net_policy_check(&policy, &err));
    auto_buf struct buf bytes = buf_make(NULL, LIMIT_NET_POLICY_BYTES);
    net_policy_pack(&bytes, &policy);
    assert_false(bytes.overflowed);
    arena_init(&arena);
    struct unpack in = unpack_from(buf_str(&bytes));
    net_policy_unpack(&in, &arena, &back);
    assert_true(unpack_done(&in, &err));
    assert_true(net_policy_check(&back, &err));
    auto_buf struct buf again = buf_make(NULL, LIMIT_NET_POLICY_BYTES);
    net_policy_pack(&again, &back);
    CHECK_STR(buf_str(&again), buf_str(&bytes));
    assert_true(back.internet && back.has_dns && back.proxy.tls);
    assert_int_equal(back.proxy.port, 1080);
    assert_true(net_policy_has_seed(&back));
    assert_memory_equal(back.seed, policy.seed, sizeof back.seed);
    CHECK_STR(back.transforms[0].headers[0].value, STR("Bearer t"));
    CHECK_STR(back.names[1], STR("*.example.org"));
    /* Copied, not borrowed. */
    memset(bytes.data, 'x', bytes.len);
    CHECK_STR(back.proxy.server_name, STR("other.example.net"));
    arena_done(&arena);
}

static void bytes_that_are_cut_or_longer_are_refused(void **state)
{
    (void)state;
    struct net_policy policy = full_policy(), back;
    struct err err;
    struct arena arena;
    auto_buf struct buf bytes = buf_make(NULL, LIMIT_NET_POLICY_BYTES);

    net_policy_pack(&bytes, &policy);
    buf_add_char(&bytes, 'x');
    arena_init(&arena);
    for (size_t len = 0; len <= bytes.len; len++) {
        struct unpack in = unpack_from(str_of(bytes.data, len));
        net_policy_unpack(&in, &arena, &back);
        assert_int_equal(unpack_done(&in, &err), len == bytes.len - 1);
    }
    bytes.data[0]++; /* another version */
    struct unpack in = unpack_from(str_of(bytes.data, bytes.len - 1));
    net_policy_unpack(&in, &arena, &back);
    assert_false(unpack_done(&in, &err));
    arena_done(&arena);
}

static void counts_beyond_the_caps_are_refused_before_memory_is_made(void **state)
{
    (void)state;
    struct net_policy back;
    struct err err;
    struct arena arena;

    arena_init(&arena);
    auto_buf struct buf bytes = buf_make(NULL, 64);
    pack_u8(&bytes, 1);
    pack_bool(&bytes, true);
    pack_u32(&bytes, UINT32_MAX);
    struct unpack in = unpack_from(buf_str(&bytes));
    net_policy_unpack(&in, &arena, &back);
    assert_false(unpack_done(&in, &err));
    assert_true(arena.used < 4096);
    arena_done(&arena);
}

/* Each change alone makes the policy wrong, and the error says where. */
static void wrong(const char *want, void (*change)(struct net_policy *policy))
{
    struct net_policy policy = full_policy();
    struct err err = { 0 };

    change(&policy);
    if (net_policy_check(&policy, &err))
        fail_msg("accepted; wanted an error with '%s'", want);
    assert_int_equal(err.kind, ERR_INVALID);
    if (!strstr(err.message, want))
        fail_msg("'%s' has no '%s'", err.message, want);
}

static char long_text[LIMIT_NET_CA_BYTES + 1];
static struct net_transform one_transform;
static struct net_header some_headers[LIMIT_NET_HEADERS + 1];

static void set_header(struct net_policy *policy, struct str name, struct str value)
{
    some_headers[0] = (struct net_header){ name, value };
    one_transform = (struct net_transform){ STR("example.com"), 1, some_headers };
    policy->transforms = &one_transform;
    policy->transform_count = 1;
}
static void set_host(struct net_policy *policy, struct str host)
{
    one_transform = (struct net_transform){ host, 0, NULL };
    policy->transforms = &one_transform;
    policy->transform_count = 1;
}
static void many_ranges(struct net_policy *policy)
{
    policy->deny_count = LIMIT_NET_RANGES + 1;
}
static void host_bits(struct net_policy *policy)
{
    static struct net_range r;
    r = range("10.0.0.0/8");
    r.address.at[15] = 1;
    policy->allow = &r;
    policy->allow_count = 1;
}
static void odd_bits(struct net_policy *policy)
{
    static struct net_range r;
    r = range("10.0.0.0/8");
    r.bits = 129;
    policy->deny = &r;
}
static void many_names(struct net_policy *policy)
{
    policy->name_count = LIMIT_NET_NAMES + 1;
}
static void upper_name(struct net_policy *policy)
{
    static struct str name = STR_INIT("Example.com");
    policy->names = &name;
    policy->name_count = 1;
}
static void many_dns(struct net_policy *policy)
{
    policy->dns_count = LIMIT_NET_DNS + 1;
}
static void unset_dns(struct net_policy *policy)
{
    policy->has_dns = false;
}
static void many_transforms(struct net_policy *policy)
{
    policy->transform_count = LIMIT_NET_TRANSFORMS + 1;
}
static void same_hosts(struct net_policy *policy)
{
    static struct net_transform two[] = { { STR_INIT("a.b"), 0, NULL }, { STR_INIT("a.b"), 0, NULL } };
    policy->transforms = two;
}
static void star_host(struct net_policy *policy)
{
    set_host(policy, STR("*"));
}
static void upper_host(struct net_policy *policy)
{
    set_host(policy, STR("*.Example.com"));
}
static void long_host(struct net_policy *policy)
{
    memset(long_text, 'a', 200);
    long_text[60] = long_text[120] = '.';
    set_host(policy, str_of(long_text, LIMIT_NET_TRANSFORM_HOST_BYTES + 1));
}
static void many_headers(struct net_policy *policy)
{
    set_header(policy, STR("A"), STR(""));
    one_transform.header_count = LIMIT_NET_HEADERS + 1;
}
static void no_header_name(struct net_policy *policy)
{
    set_header(policy, STR(""), STR(""));
}
static void spaced_header_name(struct net_policy *policy)
{
    set_header(policy, STR("A B"), STR(""));
}
static void long_header_name(struct net_policy *policy)
{
    memset(long_text, 'a', 200);
    set_header(policy, str_of(long_text, LIMIT_NET_HEADER_NAME_BYTES + 1), STR(""));
}
static void framing_header(struct net_policy *policy)
{
    set_header(policy, STR("transfer-ENCODING"), STR("chunked"));
}
static void host_header(struct net_policy *policy)
{
    set_header(policy, STR("host"), STR("example.org"));
}
static void split_header_value(struct net_policy *policy)
{
    set_header(policy, STR("A"), STR("b\r\nC: d"));
}
static void zero_header_value(struct net_policy *policy)
{
    set_header(policy, STR("A"), STR("b\0c"));
}
static void long_header_value(struct net_policy *policy)
{
    memset(long_text, 'a', sizeof long_text);
    set_header(policy, STR("A"), str_of(long_text, LIMIT_NET_HEADER_VALUE_BYTES + 1));
}
static void same_headers(struct net_policy *policy)
{
    set_header(policy, STR("A"), STR("1"));
    some_headers[1] = (struct net_header){ STR("a"), STR("2") };
    one_transform.header_count = 2;
}
static void no_proxy_host(struct net_policy *policy)
{
    policy->proxy.host = STR("");
}
static void no_proxy_port(struct net_policy *policy)
{
    policy->proxy.port = 0;
}
static void odd_proxy_host(struct net_policy *policy)
{
    policy->proxy.host = STR("a b");
}
static void no_proxy_user(struct net_policy *policy)
{
    policy->proxy.username = STR("");
}
static void long_proxy_password(struct net_policy *policy)
{
    policy->proxy.password = str_of(long_text, LIMIT_NET_PROXY_BYTES + 1);
}
static void plain_proxy(struct net_policy *policy)
{
    policy->proxy.tls = false;
}
static void odd_server_name(struct net_policy *policy)
{
    policy->proxy.server_name = STR("*.example.com");
}
static void no_pem(struct net_policy *policy)
{
    policy->proxy.ca_pem = STR("hello");
}
static void long_pem(struct net_policy *policy)
{
    policy->proxy.ca_pem = str_of(long_text, sizeof long_text);
}
static void too_large_together(struct net_policy *policy)
{
    static struct net_transform many[LIMIT_NET_TRANSFORMS];
    static const char letters[LIMIT_NET_HEADERS + 1] = "abcdefghijklmnopqrst";

    memset(long_text, 'a', sizeof long_text);
    for (int k = 0; k < LIMIT_NET_HEADERS; k++)
        some_headers[k] =
            (struct net_header){ str_of(&letters[k], 1), str_of(long_text, LIMIT_NET_HEADER_VALUE_BYTES) };
    for (int i = 0; i < LIMIT_NET_TRANSFORMS; i++)
        many[i] = (struct net_transform){ str_of(&letters[i], 1), LIMIT_NET_HEADERS, some_headers };
    policy->transforms = many;
    policy->transform_count = LIMIT_NET_TRANSFORMS;
}

static void each_wrong_field_is_named(void **state)
{
    (void)state;
    wrong("denied destinations has 1025", many_ranges);
    wrong("allowed destinations has a range with bits behind", host_bits);
    wrong("range of 129 bits", odd_bits);
    wrong("1025 names", many_names);
    wrong("an allowed name must be", upper_name);
    wrong("11 DNS servers", many_dns);
    wrong("DNS servers in a policy that does not set them", unset_dns);
    wrong("rules for 11 hosts", many_transforms);
    wrong("two rules for a.b", same_hosts);
    wrong("a rule's host", star_host);
    wrong("a rule's host", upper_host);
    wrong("a rule's host", long_host);
    wrong("21 headers", many_headers);
    wrong("header name", no_header_name);
    wrong("header name", spaced_header_name);
    wrong("header name", long_header_name);
    wrong("cannot set the header transfer-ENCODING", framing_header);
    wrong("cannot set the header host", host_header);
    wrong("value of header A", split_header_value);
    wrong("value of header A", zero_header_value);
    wrong("value of header A", long_header_value);
    wrong("header a twice", same_headers);
    wrong("no address", no_proxy_host);
    wrong("HOST:PORT", no_proxy_port);
    wrong("HOST:PORT", odd_proxy_host);
    wrong("no user name", no_proxy_user);
    wrong("at most 255 bytes", long_proxy_password);
    wrong("TLS is off", plain_proxy);
    wrong("server name", odd_server_name);
    wrong("PEM", no_pem);
    wrong("8193 bytes", long_pem);
    wrong("together have at most 61440 bytes", too_large_together);
}

static void an_empty_policy_is_well_formed(void **state)
{
    (void)state;
    struct net_policy policy = { .internet = true };
    struct err err;

    assert_true(net_policy_check(&policy, &err));
    assert_false(net_policy_has_seed(&policy));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(addresses_are_parsed_and_printed),
        CASE(what_is_no_address_is_refused),
        CASE(ranges_are_parsed_and_their_host_bits_cleared),
        CASE(what_is_no_range_is_refused),
        CASE(a_range_has_what_is_in_it),
        CASE(every_prefix_length_is_compared_bit_by_bit),
        CASE(names_are_brought_into_one_form),
        CASE(labels_and_names_have_their_length),
        CASE(placeholders_are_found),
        CASE(a_policy_survives_packing),
        CASE(bytes_that_are_cut_or_longer_are_refused),
        CASE(counts_beyond_the_caps_are_refused_before_memory_is_made),
        CASE(each_wrong_field_is_named),
        CASE(an_empty_policy_is_well_formed),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
