/*
 * net_policy.h - what one sandbox may reach: plain data.
 *
 * Front makes it from what the API's caller asked for, keeps it in the store, and sends it to egress, which unpacks it,
 * checks it as untrusted input, and judges every connection by it (net_rules.h). The same bytes are the store's.
 *
 * Ownership  Everything that a policy points to is in the arena that it was made or unpacked in.
 */
#ifndef POLICY_NET_POLICY_H
#define POLICY_NET_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/pack.h"
#include "base/str.h"

/* An IPv6 address in network byte order; an IPv4 address a.b.c.d is ::ffff:a.b.c.d. */
struct net_address {
    uint8_t at[16];
};
enum { NET_V4_OFFSET = 12, NET_V4_BITS = 96 }; /* what stands in front of an IPv4 address */
/* clang-format off */
#define NET_ADDRESS_V4(a, b, c, d) { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d } } /* an initialiser */
/* clang-format on */

/*
 * The first `bits` bits of the address count, the rest are zero. 10.0.0.0/8 has NET_V4_BITS + 8 bits. A range has addresses of one
 * family only, with one exception: 0.0.0.0/0 has every address, IPv6 too, because E2B's clients write it for "everything".
 */
struct net_range {
    struct net_address address;
    uint8_t bits;
};

struct net_header {
    struct str name, value;
};

/* Headers to set on each request to a host. */
struct net_transform {
    struct str host; /* "example.com", or "*.example.com" for every name below it; lower case */
    uint32_t header_count;
    struct net_header *headers;
};

/* A SOCKS5 proxy that every TCP connection goes through. */
struct net_proxy {
    struct str host; /* name or address; empty: no proxy */
    uint16_t port;
    struct str username, password; /* empty: none */
    bool tls;
    struct str server_name; /* to verify; empty: host */
    struct str ca_pem;      /* trusted instead of the system's roots; empty: those */
};

enum { NET_SEED_BYTES = 32 };

struct net_policy {
    bool internet; /* false: as if all addresses were in `deny` */
    uint32_t allow_count, deny_count, name_count, dns_count, transform_count;
    struct net_range *allow, *deny; /* allow wins */
    struct str *names;              /* allowed too: "example.com", "*.example.com", "*"; lower case */
    bool has_dns;                   /* the list below was given: if it is empty, programs can look no name up… */
    struct net_address *dns;        /* …else these are allowed too, if there are names */
    struct net_transform *transforms;
    /* What the sandbox's own authority is made from (io/tls_authority.h), for the hosts of the transforms. All zero: none. */
    uint8_t seed[NET_SEED_BYTES];
    struct net_proxy proxy;
};

/* "192.0.2.1", "2001:db8::1", with "/BITS" for a range; host bits of a range are cleared. False: it is neither. */
bool net_address_parse(struct str text, struct net_address *out) must_use;
bool net_range_parse(struct str text, struct net_range *out) must_use;
enum { NET_ADDRESS_TEXT = 46, NET_RANGE_TEXT = NET_ADDRESS_TEXT + 4 };
/* As people write it: an IPv4 address with dots, a range of one address without "/BITS". */
void net_address_text(const struct net_address *address, char out[NET_ADDRESS_TEXT]);
void net_range_text(const struct net_range *range, char out[NET_RANGE_TEXT]);
bool net_range_has(const struct net_range *range, const struct net_address *address);
bool net_range_is_everything(const struct net_range *range); /* 0.0.0.0/0 */
struct net_address net_address_of_v4(const void *four_bytes);
bool net_address_is_v4(const struct net_address *address);
/* As sockets and DNS have it: four bytes of an IPv4 address, else all sixteen. */
struct str net_address_bytes(const struct net_address *address);
bool net_address_eq(const struct net_address *a, const struct net_address *b);

/*
 * A host name in ASCII, of any case, without a trailing dot: not an address, and no "*". A name in another script is
 * written as A-labels ("xn--…").
 */
bool net_name_is_valid(struct str name);
/* A host name as a policy has it: lower case, without a trailing dot, in the arena. "*." in front, and "*" alone, stay. */
bool net_name_parse(struct arena *arena, struct str text, struct str *out) must_use;

/* Does a header's value have a "${e2b.…}" in it, which stands for a secret or a token of the sandbox's identity? */
bool net_value_has_placeholder(struct str value);

bool net_policy_has_seed(const struct net_policy *policy);
bool net_proxy_eq(const struct net_proxy *a, const struct net_proxy *b);

/* Every field is in range and well-formed, and the whole fits a message; err names the first that is not, as ERR_INVALID. */
bool net_policy_check(const struct net_policy *policy, struct err *err) must_use;
void net_policy_pack(struct buf *out, const struct net_policy *policy);
/* The caller ends with unpack_done() and net_policy_check(). Text is copied into the arena. */
void net_policy_unpack(struct unpack *in, struct arena *arena, struct net_policy *out);

#endif
