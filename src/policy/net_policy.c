#include "policy/net_policy.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/header_kind.h"
#include "base/limits.h"

/* The first byte of a packed policy. The store keeps packed policies, so a new layout gets a new number. */
enum { PACKED_VERSION = 1 };

/* ---- addresses ---- */

struct net_address net_address_of_v4(const void *four_bytes)
{
    struct net_address out = NET_ADDRESS_V4(0, 0, 0, 0);

    memcpy(out.at + NET_V4_OFFSET, four_bytes, sizeof out.at - NET_V4_OFFSET);
    return out;
}

bool net_address_is_v4(const struct net_address *address)
{
    static const struct net_address v4 = NET_ADDRESS_V4(0, 0, 0, 0);

    return memcmp(address->at, v4.at, NET_V4_OFFSET) == 0;
}

struct str net_address_bytes(const struct net_address *address)
{
    size_t skipped = net_address_is_v4(address) ? NET_V4_OFFSET : 0;

    return str_of(address->at + skipped, sizeof address->at - skipped);
}

bool net_address_eq(const struct net_address *a, const struct net_address *b)
{
    return memcmp(a->at, b->at, sizeof a->at) == 0;
}

/* `out_written_v4`: the text has dots and no colon, so "/BITS" counts from the IPv4 address. */
static bool parse_address(struct str text, struct net_address *out, bool *out_written_v4)
{
    char room[INET6_ADDRSTRLEN];
    struct net_address address = NET_ADDRESS_V4(0, 0, 0, 0);

    if (text.len == 0 || text.len >= sizeof room || str_has_char(text, '\0'))
        return false;
    memcpy(room, text.at, text.len);
    room[text.len] = '\0';
    if (str_has_char(text, ':')) {
        if (inet_pton(AF_INET6, room, address.at) != 1)
            return false;
        *out_written_v4 = false;
    } else {
        if (inet_pton(AF_INET, room, address.at + NET_V4_OFFSET) != 1)
            return false;
        *out_written_v4 = true;
    }
    *out = address;
    return true;
}

bool net_address_parse(struct str text, struct net_address *out)
{
    bool written_v4;

    return parse_address(text, out, &written_v4);
}

static void clear_host_bits(struct net_range *range)
{
    for (unsigned byte = 0; byte < sizeof range->address.at; byte++) {
        unsigned kept = range->bits > byte * 8 ? MIN(range->bits - byte * 8, 8u) : 0;
        range->address.at[byte] &= (uint8_t)(0xff00 >> kept);
    }
}

bool net_range_parse(struct str text, struct net_range *out)
{
    struct str head, rest = text;
    struct net_range range;
    bool written_v4;
    uint64_t bits;

    if (!str_cut(&rest, '/', &head) || !parse_address(head, &range.address, &written_v4))
        return false;
    if (!rest.at) {
        range.bits = 128;
    } else {
        if (rest.len > 3 || (rest.len > 1 && rest.at[0] == '0') || !str_to_u64(rest, written_v4 ? 32 : 128, &bits))
            return false;
        range.bits = (uint8_t)(bits + (written_v4 ? NET_V4_BITS : 0));
    }
    clear_host_bits(&range);
    *out = range;
    return true;
}

void net_address_text(const struct net_address *address, char out[NET_ADDRESS_TEXT])
{
    struct str bytes = net_address_bytes(address);

    if (!inet_ntop(net_address_is_v4(address) ? AF_INET : AF_INET6, bytes.at, out, NET_ADDRESS_TEXT))
        out[0] = '\0';
}

/* The range is inside ::ffff:0:0/96. */
static bool range_is_v4(const struct net_range *range)
{
    return range->bits >= NET_V4_BITS && net_address_is_v4(&range->address);
}

void net_range_text(const struct net_range *range, char out[NET_RANGE_TEXT])
{
    net_address_text(&range->address, out);
    if (range->bits != 128) {
        size_t len = strlen(out);
        (void)snprintf(out + len, NET_RANGE_TEXT - len, "/%d", range->bits - (range_is_v4(range) ? NET_V4_BITS : 0));
    }
}

bool net_range_is_everything(const struct net_range *range)
{
    return range_is_v4(range) && range->bits == NET_V4_BITS;
}

bool net_range_has(const struct net_range *range, const struct net_address *address)
{
    unsigned whole = range->bits / 8, left = range->bits % 8;

    if (net_range_is_everything(range))
        return true;
    if (range_is_v4(range) != net_address_is_v4(address))
        return false;
    if (memcmp(range->address.at, address->at, whole) != 0)
        return false;
    return left == 0 || ((range->address.at[whole] ^ address->at[whole]) & (0xff00 >> left) & 0xff) == 0;
}

/* ---- names ---- */

static bool is_label_char(char c)
{
    return char_is_alnum(c) || c == '-' || c == '_';
}

bool net_name_is_valid(struct str name)
{
    size_t label = 0; /* bytes of the present label */
    bool numeric = true;

    if (name.len == 0 || name.len > LIMIT_NET_NAME_BYTES)
        return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        if (c == '.') {
            if (label == 0 || name.at[i - 1] == '-')
                return false;
            label = 0;
            numeric = true;
            continue;
        }
        if (!is_label_char(c) || (c == '-' && label == 0) || ++label > 63)
            return false;
        numeric = numeric && char_is_digit(c);
    }
    /* "192.0.2.1" and "0x7f.1" are addresses to some programs; no top-level domain begins with a digit. */
    if (label == 0 || name.at[name.len - 1] == '-' || numeric)
        return false;
    return !char_is_digit(name.at[name.len - label]);
}

bool net_name_parse(struct arena *arena, struct str text, struct str *out)
{
    struct str name = text;

    if (!str_eq(text, STR("*"))) {
        if (name.len > 1 && name.at[name.len - 1] == '.')
            name.len--;
        struct str below = name;
        (void)str_skip(&below, STR("*."));
        if (!net_name_is_valid(below))
            return false;
    }
    struct str copy = arena_copy(arena, name);
    text_lower((char *)copy.at, copy.len);
    *out = copy;
    return true;
}

static bool is_lower(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.at[i] != char_lower(name.at[i]))
            return false;
    return true;
}

/* A policy's own form: a name in lower case, perhaps with "*." in front. */
static bool pattern_is_valid(struct str pattern)
{
    (void)str_skip(&pattern, STR("*."));
    return net_name_is_valid(pattern) && is_lower(pattern);
}

/* ---- headers ---- */

/* RFC 9110 section 5.5, with bytes above 0x7f let through. */
static bool is_field_value(struct str value)
{
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.at[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* Says where a message ends, how long its connection lives, or which host it is for: no rule may set it. */
static bool header_is_fixed(struct str name)
{
    return header_is(name, HEADER_HOP | HEADER_WRITTEN | HEADER_OF_REQUEST);
}

bool net_value_has_placeholder(struct str value)
{
    static const struct str opening = STR_INIT("${e2b.");

    return value.len >= opening.len && memmem(value.at, value.len, opening.at, opening.len);
}

bool net_policy_has_seed(const struct net_policy *policy)
{
    static const uint8_t none[NET_SEED_BYTES];

    return memcmp(policy->seed, none, sizeof none) != 0;
}

bool net_proxy_eq(const struct net_proxy *a, const struct net_proxy *b)
{
    return str_eq(a->host, b->host) && a->port == b->port && str_eq(a->username, b->username) &&
           str_eq(a->password, b->password) && a->tls == b->tls && str_eq(a->server_name, b->server_name) &&
           str_eq(a->ca_pem, b->ca_pem);
}

/* ---- check ---- */

static bool check_ranges(const char *what, uint32_t count, const struct net_range *ranges, struct err *err)
{
    if (count > LIMIT_NET_RANGES)
        return err_set(err, ERR_INVALID, "%s has %u addresses and ranges, at most %d", what, count, LIMIT_NET_RANGES);
    for (uint32_t i = 0; i < count; i++) {
        struct net_range clean = ranges[i];
        if (clean.bits > 128)
            return err_set(err, ERR_INVALID, "%s has a range of %u bits", what, clean.bits);
        clear_host_bits(&clean);
        if (!net_address_eq(&clean.address, &ranges[i].address))
            return err_set(err, ERR_INVALID, "%s has a range with bits behind its first %u", what, clean.bits);
    }
    return true;
}

static bool check_transform(const struct net_transform *transform, struct err *err)
{
    if (transform->host.len > LIMIT_NET_TRANSFORM_HOST_BYTES || !pattern_is_valid(transform->host))
        return err_set(err, ERR_INVALID, "a rule's host must be a name or \"*.name\" of at most %d characters",
                       LIMIT_NET_TRANSFORM_HOST_BYTES);
    if (transform->header_count > LIMIT_NET_HEADERS)
        return err_set(err, ERR_INVALID, "a rule sets %u headers, at most %d", transform->header_count,
                       LIMIT_NET_HEADERS);
    for (uint32_t i = 0; i < transform->header_count; i++) {
        const struct net_header *header = &transform->headers[i];
        if (header->name.len > LIMIT_NET_HEADER_NAME_BYTES || !str_is_token(header->name))
            return err_set(err, ERR_INVALID, "a rule's header name must be a token of at most %d characters",
                           LIMIT_NET_HEADER_NAME_BYTES);
        if (header_is_fixed(header->name))
            return err_set(err, ERR_INVALID, "a rule cannot set the header %.*s", STR_ARG(header->name));
        if (header->value.len > LIMIT_NET_HEADER_VALUE_BYTES || !is_field_value(header->value))
            return err_set(err, ERR_INVALID,
                           "the value of header %.*s must be at most %d characters, without control characters",
                           STR_ARG(header->name), LIMIT_NET_HEADER_VALUE_BYTES);
        for (uint32_t k = 0; k < i; k++)
            if (str_eq_nocase(header->name, transform->headers[k].name))
                return err_set(err, ERR_INVALID, "a rule sets the header %.*s twice", STR_ARG(header->name));
    }
    return true;
}

static bool check_transforms(const struct net_policy *policy, struct err *err)
{
    if (policy->transform_count > LIMIT_NET_TRANSFORMS)
        return err_set(err, ERR_INVALID, "there are rules for %u hosts, at most %d", policy->transform_count,
                       LIMIT_NET_TRANSFORMS);
    for (uint32_t i = 0; i < policy->transform_count; i++) {
        if (!check_transform(&policy->transforms[i], err))
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (str_eq(policy->transforms[i].host, policy->transforms[k].host))
                return err_set(err, ERR_INVALID, "there are two rules for %.*s", STR_ARG(policy->transforms[i].host));
    }
    return true;
}

static bool is_host(struct str host)
{
    struct net_address address;

    return net_name_is_valid(host) || net_address_parse(host, &address);
}

static bool check_proxy(const struct net_proxy *proxy, struct err *err)
{
    if (proxy->host.len == 0) {
        if (proxy->port || proxy->username.len || proxy->password.len || proxy->tls || proxy->server_name.len ||
            proxy->ca_pem.len)
            return err_set(err, ERR_INVALID, "the egress proxy has settings and no address");
        return true;
    }
    if (!is_host(proxy->host) || proxy->port == 0)
        return err_set(err, ERR_INVALID, "the egress proxy's address must be HOST:PORT");
    if (proxy->username.len > LIMIT_NET_PROXY_BYTES || proxy->password.len > LIMIT_NET_PROXY_BYTES)
        return err_set(err, ERR_INVALID, "the egress proxy's user name and password have at most %d bytes each",
                       LIMIT_NET_PROXY_BYTES);
    if (proxy->password.len && !proxy->username.len)
        return err_set(err, ERR_INVALID, "the egress proxy has a password and no user name");
    if (!proxy->tls && (proxy->server_name.len || proxy->ca_pem.len))
        return err_set(err, ERR_INVALID, "the egress proxy has settings for TLS and TLS is off");
    if (proxy->server_name.len && !is_host(proxy->server_name))
        return err_set(err, ERR_INVALID, "the egress proxy's server name is not a host name");
    if (proxy->ca_pem.len > LIMIT_NET_CA_BYTES)
        return err_set(err, ERR_INVALID, "the egress proxy's CA certificate has %zu bytes, at most %d",
                       proxy->ca_pem.len, LIMIT_NET_CA_BYTES);
    if (str_has_char(proxy->ca_pem, '\0') ||
        (proxy->ca_pem.len && !memmem(proxy->ca_pem.at, proxy->ca_pem.len, "-----BEGIN CERTIFICATE-----", 27)))
        return err_set(err, ERR_INVALID, "the egress proxy's CA certificate is not in PEM format");
    return true;
}

bool net_policy_check(const struct net_policy *policy, struct err *err)
{
    if (!check_ranges("the list of allowed destinations", policy->allow_count, policy->allow, err) ||
        !check_ranges("the list of denied destinations", policy->deny_count, policy->deny, err))
        return false;
    if (policy->name_count > LIMIT_NET_NAMES)
        return err_set(err, ERR_INVALID, "the list of allowed destinations has %u names, at most %d",
                       policy->name_count, LIMIT_NET_NAMES);
    for (uint32_t i = 0; i < policy->name_count; i++)
        if (!str_eq(policy->names[i], STR("*")) && !pattern_is_valid(policy->names[i]))
            return err_set(err, ERR_INVALID,
                           "an allowed name must be \"name\", \"*.name\" or \"*\", in ASCII (xn--… for other scripts)");
    if (policy->dns_count > LIMIT_NET_DNS)
        return err_set(err, ERR_INVALID, "there are %u DNS servers, at most %d", policy->dns_count, LIMIT_NET_DNS);
    if (policy->dns_count && !policy->has_dns)
        return err_set(err, ERR_INVALID, "there are DNS servers in a policy that does not set them");
    if (!check_transforms(policy, err) || !check_proxy(&policy->proxy, err))
        return false;

    auto_buf struct buf packed = buf_make(NULL, LIMIT_NET_POLICY_BYTES);
    net_policy_pack(&packed, policy);
    if (packed.overflowed)
        return err_set(err, ERR_INVALID, "all network rules of a sandbox together have at most %d bytes",
                       LIMIT_NET_POLICY_BYTES);
    return true;
}

/* ---- bytes ---- */

static void pack_address(struct buf *out, const struct net_address *address)
{
    buf_add(out, str_of(address->at, sizeof address->at));
}

static void unpack_address(struct unpack *in, struct net_address *out)
{
    for (size_t i = 0; i < sizeof out->at; i++)
        out->at[i] = unpack_u8(in);
}

static void pack_ranges(struct buf *out, uint32_t count, const struct net_range *ranges)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_address(out, &ranges[i].address);
        pack_u8(out, ranges[i].bits);
    }
}

static struct net_range *unpack_ranges(struct unpack *in, struct arena *arena, uint32_t *out_count)
{
    uint32_t count = unpack_count(in, LIMIT_NET_RANGES);
    struct net_range *ranges = ARENA_ARRAY(arena, struct net_range, count);

    for (uint32_t i = 0; i < count; i++) {
        unpack_address(in, &ranges[i].address);
        ranges[i].bits = unpack_u8(in);
    }
    *out_count = count;
    return ranges;
}

static struct str unpack_copy(struct unpack *in, struct arena *arena, size_t max)
{
    return arena_copy(arena, unpack_str(in, max));
}

static void pack_proxy(struct buf *out, const struct net_proxy *proxy)
{
    pack_str(out, proxy->host);
    pack_u16(out, proxy->port);
    pack_str(out, proxy->username);
    pack_str(out, proxy->password);
    pack_bool(out, proxy->tls);
    pack_str(out, proxy->server_name);
    pack_str(out, proxy->ca_pem);
}

static void unpack_proxy(struct unpack *in, struct arena *arena, struct net_proxy *out)
{
    out->host = unpack_copy(in, arena, LIMIT_NET_PROXY_BYTES);
    out->port = unpack_u16(in);
    out->username = unpack_copy(in, arena, LIMIT_NET_PROXY_BYTES);
    out->password = unpack_copy(in, arena, LIMIT_NET_PROXY_BYTES);
    out->tls = unpack_bool(in);
    out->server_name = unpack_copy(in, arena, LIMIT_NET_PROXY_BYTES);
    out->ca_pem = unpack_copy(in, arena, LIMIT_NET_CA_BYTES);
}

void net_policy_pack(struct buf *out, const struct net_policy *policy)
{
    pack_u8(out, PACKED_VERSION);
    pack_bool(out, policy->internet);
    pack_ranges(out, policy->allow_count, policy->allow);
    pack_ranges(out, policy->deny_count, policy->deny);
    pack_u32(out, policy->name_count);
    for (uint32_t i = 0; i < policy->name_count; i++)
        pack_str(out, policy->names[i]);
    pack_bool(out, policy->has_dns);
    pack_u32(out, policy->dns_count);
    for (uint32_t i = 0; i < policy->dns_count; i++)
        pack_address(out, &policy->dns[i]);
    pack_u32(out, policy->transform_count);
    for (uint32_t i = 0; i < policy->transform_count; i++) {
        const struct net_transform *transform = &policy->transforms[i];
        pack_str(out, transform->host);
        pack_u32(out, transform->header_count);
        for (uint32_t k = 0; k < transform->header_count; k++) {
            pack_str(out, transform->headers[k].name);
            pack_str(out, transform->headers[k].value);
        }
    }
    buf_add(out, str_of(policy->seed, sizeof policy->seed));
    pack_proxy(out, &policy->proxy);
}

void net_policy_unpack(struct unpack *in, struct arena *arena, struct net_policy *out)
{
    *out = (struct net_policy){ 0 };
    if (unpack_u8(in) != PACKED_VERSION)
        in->failed = true;
    out->internet = unpack_bool(in);
    out->allow = unpack_ranges(in, arena, &out->allow_count);
    out->deny = unpack_ranges(in, arena, &out->deny_count);
    out->name_count = unpack_count(in, LIMIT_NET_NAMES);
    out->names = ARENA_ARRAY(arena, struct str, out->name_count);
    for (uint32_t i = 0; i < out->name_count; i++)
        out->names[i] = unpack_copy(in, arena, LIMIT_NET_NAME_BYTES + 2);
    out->has_dns = unpack_bool(in);
    out->dns_count = unpack_count(in, LIMIT_NET_DNS);
    out->dns = ARENA_ARRAY(arena, struct net_address, out->dns_count);
    for (uint32_t i = 0; i < out->dns_count; i++)
        unpack_address(in, &out->dns[i]);
    out->transform_count = unpack_count(in, LIMIT_NET_TRANSFORMS);
    out->transforms = ARENA_ARRAY(arena, struct net_transform, out->transform_count);
    for (uint32_t i = 0; i < out->transform_count; i++) {
        struct net_transform *transform = &out->transforms[i];
        transform->host = unpack_copy(in, arena, LIMIT_NET_TRANSFORM_HOST_BYTES);
        transform->header_count = unpack_count(in, LIMIT_NET_HEADERS);
        transform->headers = ARENA_ARRAY(arena, struct net_header, transform->header_count);
        for (uint32_t k = 0; k < transform->header_count; k++) {
            transform->headers[k].name = unpack_copy(in, arena, LIMIT_NET_HEADER_NAME_BYTES);
            transform->headers[k].value = unpack_copy(in, arena, LIMIT_NET_HEADER_VALUE_BYTES);
        }
    }
    for (size_t i = 0; i < sizeof out->seed; i++)
        out->seed[i] = unpack_u8(in);
    unpack_proxy(in, arena, &out->proxy);
}
