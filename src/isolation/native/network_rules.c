/*
 * How a packet gets from a guest to egress, which holds sockets that keeper made in the sandbox's namespace.
 *
 * The namespace has no device but lo. A route says that every address in the world is local, on lo, so that a packet to
 * 198.51.100.7 port 443 does not leave: it comes back in on lo, with its destination unchanged. There `tproxy` gives it to
 * egress's listening socket, whatever the port. The socket that egress accepts has the original destination as its own
 * address: getsockname() tells it. There is no NAT and no connection tracking, and so no kernel memory that a guest could
 * fill with flows, and nothing to take apart when the namespace goes. Written as nft would, for IPv4:
 *
 *   ip addr add 192.0.0.2/32 dev lo
 *   ip route add local default dev lo src 192.0.0.2
 *   table ip cloister {
 *     chain output { type filter hook output priority filter; policy drop;
 *       meta l4proto tcp accept                     stays inside, or goes to egress, below
 *       ip daddr 127.0.0.0/8 accept                 what stays inside
 *       udp sport 1 udp sport set 53                egress's answers come from the port that was asked
 *       ip daddr 192.0.0.2 accept                   the same, and egress's answers
 *       udp dport 53 accept                         to egress, below
 *     }
 *     chain input { type filter hook prerouting priority filter; policy drop;
 *       ip daddr 127.0.0.0/8 accept
 *       ip daddr 192.0.0.2 accept
 *       tproxy to 127.77.0.1:1 accept               to egress's socket, TCP or UDP; no such socket: the next rule
 *       meta l4proto tcp reject with tcp reset      egress does not run
 *       reject with icmp port-unreachable           the same, for a DNS question
 *     }
 *   }
 *
 * A program that sends anything else (UDP but DNS, multicast) gets EPERM from send(): what the output hook drops, the
 * sender hears of at once. TCP without egress is ECONNREFUSED.
 *
 * The price: while a guest is connected to port 443 of some address, egress's end has port 443 inside, and a guest's server
 * that binds 0.0.0.0:443 needs SO_REUSEADDR, as most servers have.
 *
 * Nothing here keeps a guest in: that there is no other device does. A guest that got around these rules would talk to
 * itself.
 *
 * Turned down: `redirect` instead of tproxy. It needs connection tracking: an entry of kernel memory for each flow, which
 * no cgroup counts; minutes of it for each UDP port that a guest sends from; and a table that all sandboxes share.
 */
#include "isolation/native/network_rules.h"

#include <arpa/inet.h>
#include <assert.h>
#include <linux/if_addr.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter_ipv4.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <string.h>

#include "base/hole.h"
#include "base/network.h"

enum { LO = 1 }; /* its number, in every network namespace */

#define TABLE "cloister"

/* What differs between IPv4 and IPv6. */
struct family {
    uint8_t af, nf;
    const char *own, *egress;
    uint8_t address_bytes;
    uint8_t destination;      /* where it is in the header */
    uint8_t loopback_bytes;   /* of the destination, that say it is loopback */
    uint8_t loopback[16];     /* … */
    uint8_t port_unreachable; /* the code of that ICMP message */
};

static const struct family ipv4 = {
    .af = AF_INET,
    .nf = NFPROTO_IPV4,
    .own = NETWORK_OWN_IPV4,
    .egress = NETWORK_EGRESS_IPV4,
    .address_bytes = 4,
    .destination = 16,
    .loopback_bytes = 1,
    .loopback = { 127 },
    .port_unreachable = ICMP_PORT_UNREACH,
};

static const struct family ipv6 = {
    .af = AF_INET6,
    .nf = NFPROTO_IPV6,
    .own = NETWORK_OWN_IPV6,
    .egress = NETWORK_EGRESS_IPV6,
    .address_bytes = 16,
    .destination = 24,
    .loopback_bytes = 16,
    .loopback = { [15] = 1 },
    .port_unreachable = 4, /* ICMP6_DST_UNREACH_NOPORT */
};

/* An address as bytes. */
struct address {
    uint8_t at[16];
};

static struct address parse(const struct family *family, const char *text)
{
    struct address address = { 0 };
    int parsed = inet_pton(family->af, text, address.at);

    assert(parsed == 1);
    (void)parsed;
    return address;
}

/* ---- addresses and routes ---- */

static void add_link_up(struct netlink *batch)
{
    const struct ifinfomsg lo = { .ifi_index = LO, .ifi_flags = IFF_UP, .ifi_change = IFF_UP };

    netlink_message(batch, RTM_NEWLINK, 0, &lo, sizeof lo);
}

static void add_address(struct netlink *batch, const struct family *family)
{
    const struct ifaddrmsg head = { .ifa_family = family->af,
                                    .ifa_prefixlen = (uint8_t)(family->address_bytes * 8),
                                    .ifa_scope = RT_SCOPE_UNIVERSE,
                                    .ifa_index = LO };
    struct address own = parse(family, family->own);

    netlink_message(batch, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    netlink_attr(batch, IFA_LOCAL, own.at, family->address_bytes);
    netlink_attr(batch, IFA_ADDRESS, own.at, family->address_bytes);
    /*
     * An IPv6 address becomes local a moment later, in a task of the kernel's. Until then the route below makes it local
     * like any other, but for a route to its network, which would win and lose the packets. Nor are neighbours asked
     * whether they have the address: lo has none.
     */
    if (family->af == AF_INET6)
        netlink_u32(batch, IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE);
}

static void add_route(struct netlink *batch, const struct family *family)
{
    const struct rtmsg head = { .rtm_family = family->af,
                                .rtm_table = RT_TABLE_MAIN,
                                .rtm_protocol = RTPROT_STATIC,
                                .rtm_scope = RT_SCOPE_HOST,
                                .rtm_type = RTN_LOCAL };
    struct address own = parse(family, family->own);

    netlink_message(batch, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    netlink_u32(batch, RTA_OIF, LO);
    netlink_attr(batch, RTA_PREFSRC, own.at, family->address_bytes);
}

/* ---- nft: a rule is a list of expressions ---- */

/* The one in work, and the nests that end with it. */
struct rule {
    struct netlink *batch;
    size_t list;
};

struct expression {
    struct netlink *batch;
    size_t element, data;
};

static void add_nft(struct netlink *batch, const struct family *family, uint16_t type, uint16_t flags)
{
    const struct nfgenmsg head = { .nfgen_family = family->nf, .version = NFNETLINK_V0 };

    netlink_message(batch, NFNL_SUBSYS_NFTABLES << 8 | type, flags, &head, sizeof head);
}

static void add_boundary(struct netlink *batch, uint16_t type)
{
    const struct nfgenmsg head = { .version = NFNETLINK_V0, .res_id = htons(NFNL_SUBSYS_NFTABLES) };

    netlink_message(batch, type, 0, &head, sizeof head);
}

static void add_table(struct netlink *batch, const struct family *family)
{
    add_nft(batch, family, NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL);
    netlink_text(batch, NFTA_TABLE_NAME, TABLE);
}

static void add_chain(struct netlink *batch, const struct family *family, const char *name, uint32_t hook)
{
    add_nft(batch, family, NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL);
    netlink_text(batch, NFTA_CHAIN_TABLE, TABLE);
    netlink_text(batch, NFTA_CHAIN_NAME, name);
    size_t nest = netlink_nest(batch, NFTA_CHAIN_HOOK);
    netlink_be32(batch, NFTA_HOOK_HOOKNUM, hook);
    netlink_be32(batch, NFTA_HOOK_PRIORITY, NF_IP_PRI_FILTER);
    netlink_nest_end(batch, nest);
    netlink_be32(batch, NFTA_CHAIN_POLICY, hole_is_open("nothing but TCP and DNS") ? NF_ACCEPT : NF_DROP);
    netlink_text(batch, NFTA_CHAIN_TYPE, "filter");
}

static struct rule begin_rule(struct netlink *batch, const struct family *family, const char *chain)
{
    add_nft(batch, family, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
    netlink_text(batch, NFTA_RULE_TABLE, TABLE);
    netlink_text(batch, NFTA_RULE_CHAIN, chain);
    return (struct rule){ .batch = batch, .list = netlink_nest(batch, NFTA_RULE_EXPRESSIONS) };
}

static void end_rule(struct rule *rule)
{
    netlink_nest_end(rule->batch, rule->list);
}

static struct expression begin(struct rule *rule, const char *name)
{
    struct expression expression = { .batch = rule->batch, .element = netlink_nest(rule->batch, NFTA_LIST_ELEM) };

    netlink_text(rule->batch, NFTA_EXPR_NAME, name);
    expression.data = netlink_nest(rule->batch, NFTA_EXPR_DATA);
    return expression;
}

static void end(struct expression *expression)
{
    netlink_nest_end(expression->batch, expression->data);
    netlink_nest_end(expression->batch, expression->element);
}

static void add_data(struct netlink *batch, uint16_t type, const void *data, size_t len)
{
    size_t nest = netlink_nest(batch, type);

    netlink_attr(batch, NFTA_DATA_VALUE, data, len);
    netlink_nest_end(batch, nest);
}

/* ---- expressions; each works on register 1 unless it says otherwise ---- */

static void is_equal(struct rule *rule, const void *data, size_t len)
{
    struct expression compare = begin(rule, "cmp");

    netlink_be32(rule->batch, NFTA_CMP_SREG, NFT_REG_1);
    netlink_be32(rule->batch, NFTA_CMP_OP, NFT_CMP_EQ);
    add_data(rule->batch, NFTA_CMP_DATA, data, len);
    end(&compare);
}

static void load(struct rule *rule, uint32_t header, uint32_t offset, uint32_t len)
{
    struct expression payload = begin(rule, "payload");

    netlink_be32(rule->batch, NFTA_PAYLOAD_DREG, NFT_REG_1);
    netlink_be32(rule->batch, NFTA_PAYLOAD_BASE, header);
    netlink_be32(rule->batch, NFTA_PAYLOAD_OFFSET, offset);
    netlink_be32(rule->batch, NFTA_PAYLOAD_LEN, len);
    end(&payload);
}

static void put(struct rule *rule, uint32_t to, const void *data, size_t len)
{
    struct expression immediate = begin(rule, "immediate");

    netlink_be32(rule->batch, NFTA_IMMEDIATE_DREG, to);
    add_data(rule->batch, NFTA_IMMEDIATE_DATA, data, len);
    end(&immediate);
}

static void to_destination(struct rule *rule, const struct family *family, const void *address, uint32_t bytes)
{
    load(rule, NFT_PAYLOAD_NETWORK_HEADER, family->destination, bytes);
    is_equal(rule, address, bytes);
}

static void of_protocol(struct rule *rule, uint8_t protocol)
{
    struct expression meta = begin(rule, "meta");

    netlink_be32(rule->batch, NFTA_META_DREG, NFT_REG_1);
    netlink_be32(rule->batch, NFTA_META_KEY, NFT_META_L4PROTO);
    end(&meta);
    is_equal(rule, &protocol, sizeof protocol);
}

enum { SOURCE_PORT = 0, DESTINATION_PORT = 2, PORT_BYTES = 2, UDP_CHECKSUM = 6 };

static void of_port(struct rule *rule, uint32_t which, uint16_t port)
{
    const uint16_t value = htons(port);

    load(rule, NFT_PAYLOAD_TRANSPORT_HEADER, which, PORT_BYTES);
    is_equal(rule, &value, sizeof value);
}

static void set_udp_port(struct rule *rule, uint32_t which, uint16_t port)
{
    const uint16_t value = htons(port);

    put(rule, NFT_REG_1, &value, sizeof value);
    struct expression payload = begin(rule, "payload");
    netlink_be32(rule->batch, NFTA_PAYLOAD_SREG, NFT_REG_1);
    netlink_be32(rule->batch, NFTA_PAYLOAD_BASE, NFT_PAYLOAD_TRANSPORT_HEADER);
    netlink_be32(rule->batch, NFTA_PAYLOAD_OFFSET, which);
    netlink_be32(rule->batch, NFTA_PAYLOAD_LEN, PORT_BYTES);
    netlink_be32(rule->batch, NFTA_PAYLOAD_CSUM_TYPE, NFT_PAYLOAD_CSUM_INET);
    netlink_be32(rule->batch, NFTA_PAYLOAD_CSUM_OFFSET, UDP_CHECKSUM);
    end(&payload);
}

static void to_egress(struct rule *rule, const struct family *family)
{
    const uint16_t port = htons(NETWORK_EGRESS_PORT);
    struct address address = parse(family, family->egress);

    put(rule, NFT_REG_1, address.at, family->address_bytes);
    put(rule, NFT_REG_2, &port, sizeof port);
    struct expression tproxy = begin(rule, "tproxy");
    netlink_be32(rule->batch, NFTA_TPROXY_FAMILY, family->nf);
    netlink_be32(rule->batch, NFTA_TPROXY_REG_ADDR, NFT_REG_1);
    netlink_be32(rule->batch, NFTA_TPROXY_REG_PORT, NFT_REG_2);
    end(&tproxy);
}

static void reject(struct rule *rule, uint32_t type, uint8_t icmp_code)
{
    struct expression reject = begin(rule, "reject");

    netlink_be32(rule->batch, NFTA_REJECT_TYPE, type);
    netlink_attr(rule->batch, NFTA_REJECT_ICMP_CODE, &icmp_code, sizeof icmp_code);
    end(&reject);
}

static void accept_it(struct rule *rule)
{
    struct expression immediate = begin(rule, "immediate");

    netlink_be32(rule->batch, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t data = netlink_nest(rule->batch, NFTA_IMMEDIATE_DATA);
    size_t verdict = netlink_nest(rule->batch, NFTA_DATA_VERDICT);
    netlink_be32(rule->batch, NFTA_VERDICT_CODE, NF_ACCEPT);
    netlink_nest_end(rule->batch, verdict);
    netlink_nest_end(rule->batch, data);
    end(&immediate);
}

/* ---- the rules, in the order of the comment at the top ---- */

static void accept_inside(struct netlink *batch, const struct family *family, const char *chain)
{
    struct rule rule = begin_rule(batch, family, chain);

    to_destination(&rule, family, family->loopback, family->loopback_bytes);
    accept_it(&rule);
    end_rule(&rule);
}

static void accept_own(struct netlink *batch, const struct family *family, const char *chain)
{
    struct address own = parse(family, family->own);
    struct rule rule = begin_rule(batch, family, chain);

    to_destination(&rule, family, own.at, family->address_bytes);
    accept_it(&rule);
    end_rule(&rule);
}

static void add_output(struct netlink *batch, const struct family *family)
{
    static const char chain[] = "output";
    struct rule rule;

    add_chain(batch, family, chain, NF_INET_LOCAL_OUT);
    rule = begin_rule(batch, family, chain);
    of_protocol(&rule, IPPROTO_TCP);
    accept_it(&rule);
    end_rule(&rule);

    accept_inside(batch, family, chain);

    rule = begin_rule(batch, family, chain);
    of_protocol(&rule, IPPROTO_UDP);
    of_port(&rule, SOURCE_PORT, NETWORK_EGRESS_PORT);
    set_udp_port(&rule, SOURCE_PORT, NETWORK_DNS_PORT);
    end_rule(&rule);

    accept_own(batch, family, chain);

    rule = begin_rule(batch, family, chain);
    of_protocol(&rule, IPPROTO_UDP);
    of_port(&rule, DESTINATION_PORT, NETWORK_DNS_PORT);
    accept_it(&rule);
    end_rule(&rule);
}

static void add_input(struct netlink *batch, const struct family *family)
{
    static const char chain[] = "input";
    struct rule rule;

    add_chain(batch, family, chain, NF_INET_PRE_ROUTING);
    accept_inside(batch, family, chain);
    accept_own(batch, family, chain);

    rule = begin_rule(batch, family, chain);
    to_egress(&rule, family);
    accept_it(&rule);
    end_rule(&rule);

    rule = begin_rule(batch, family, chain);
    of_protocol(&rule, IPPROTO_TCP);
    reject(&rule, NFT_REJECT_TCP_RST, 0);
    end_rule(&rule);

    rule = begin_rule(batch, family, chain);
    reject(&rule, NFT_REJECT_ICMP_UNREACH, family->port_unreachable);
    end_rule(&rule);
}

void network_rules_init(struct network_rules *rules, bool with_ipv6)
{
    const struct family *families[] = { &ipv4, &ipv6 };

    netlink_init(&rules->routes, NETLINK_ROUTE);
    netlink_init(&rules->filter, NETLINK_NETFILTER);
    add_link_up(&rules->routes);
    add_boundary(&rules->filter, NFNL_MSG_BATCH_BEGIN);
    for (size_t i = 0; i < (with_ipv6 ? 2 : 1); i++) {
        add_address(&rules->routes, families[i]);
        add_route(&rules->routes, families[i]);
        add_table(&rules->filter, families[i]);
        add_output(&rules->filter, families[i]);
        add_input(&rules->filter, families[i]);
    }
    netlink_ask_answer(&rules->routes);
    netlink_ask_answer(&rules->filter);
    add_boundary(&rules->filter, NFNL_MSG_BATCH_END);
}

void network_rules_done(struct network_rules *rules)
{
    netlink_done(&rules->routes);
    netlink_done(&rules->filter);
}

bool network_rules_apply(const struct network_rules *rules, struct err *err)
{
    /* The rules first: at no time is there a route without them. */
    return netlink_send(&rules->filter, err) && netlink_send(&rules->routes, err);
}
