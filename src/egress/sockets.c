#include "egress/sockets.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/limits.h"
#include "io/divert.h"

/*
 * The outside may vanish without a word, behind a NAT that has forgotten the connection: probes find that out within
 * five minutes, and keep the NAT from forgetting.
 */
enum { PROBE_AFTER_S = 120, PROBE_EVERY_S = 30, PROBES = 6 };

enum { ANSWER_BYTES = 1024 }; /* about a route: 100 are usual; what is longer is cut, and its end is not read */

bool socket_address(const struct sockaddr_storage *from, struct net_address *out, uint16_t *out_port)
{
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;
        *out = net_address_of_v4(&v4->sin_addr);
        *out_port = ntohs(v4->sin_port);
        return true;
    }
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)from;
        memcpy(out->at, &v6->sin6_addr, sizeof out->at);
        *out_port = ntohs(v6->sin6_port);
        return true;
    }
    return false;
}

static socklen_t to_sockaddr(const struct net_address *from, uint16_t port, struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){ 0 };
    if (net_address_is_v4(from)) {
        struct sockaddr_in *v4 = (void *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, net_address_bytes(from).at, sizeof v4->sin_addr);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (void *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    memcpy(&v6->sin6_addr, from->at, sizeof v6->sin6_addr);
    return sizeof *v6;
}

bool socket_original(int fd, struct net_address *out, uint16_t *out_port)
{
    struct sockaddr_storage destination;
    struct err err;

    return divert_destination(fd, &destination, &err) && !divert_is_direct(&destination) &&
           socket_address(&destination, out, out_port);
}

struct host_probe host_probe_open(void)
{
    return (struct host_probe){ .fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE) };
}

void host_probe_close(struct host_probe *probe)
{
    fd_close(&probe->fd);
}

/* What the kernel would do with a packet to an address. */
enum route {
    ROUTE_UNKNOWN, /* it could not be asked */
    ROUTE_NONE,
    ROUTE_OUT,
    ROUTE_HERE, /* to this machine: its addresses, ranges of loopback, local routes, broadcast and multicast */
};

static enum route route_of_type(unsigned type)
{
    switch (type) {
    case RTN_UNICAST:
        return ROUTE_OUT;
    case RTN_BLACKHOLE:
    case RTN_UNREACHABLE:
    case RTN_PROHIBIT:
    case RTN_THROW:
        return ROUTE_NONE;
    default:
        return ROUTE_HERE;
    }
}

static ssize_t send_question(const struct host_probe *probe, const struct net_address *address, uint32_t number)
{
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
        struct rtattr to;
        uint8_t bytes[sizeof address->at];
    } question = { 0 };
    struct str bytes = net_address_bytes(address);

    question.head = (struct nlmsghdr){ .nlmsg_len = (uint32_t)(offsetof(typeof(question), bytes) + bytes.len),
                                       .nlmsg_type = RTM_GETROUTE,
                                       .nlmsg_flags = NLM_F_REQUEST,
                                       .nlmsg_seq = number };
    question.route = (struct rtmsg){ .rtm_family = net_address_is_v4(address) ? AF_INET : AF_INET6,
                                     .rtm_dst_len = (uint8_t)(bytes.len * 8) };
    question.to = (struct rtattr){ .rta_len = (uint16_t)RTA_LENGTH(bytes.len), .rta_type = RTA_DST };
    memcpy(question.bytes, bytes.at, bytes.len);
    return send(probe->fd, &question, question.head.nlmsg_len, MSG_DONTWAIT);
}

/* The kernel answers before send() returns, so there is nothing to wait for. */
static enum route find_route(const struct host_probe *probe, const struct net_address *address)
{
    static uint32_t number; /* of the question */
    union {
        struct nlmsghdr head;
        char bytes[ANSWER_BYTES];
    } answer;

    if (send_question(probe, address, ++number) < 0)
        return ROUTE_UNKNOWN;
    for (ssize_t n; (n = recv(probe->fd, &answer, sizeof answer, MSG_DONTWAIT)) >= (ssize_t)sizeof answer.head;) {
        if (answer.head.nlmsg_seq != number)
            continue; /* to an earlier question */
        if (answer.head.nlmsg_type == NLMSG_ERROR)
            return ROUTE_NONE;
        if (answer.head.nlmsg_type != RTM_NEWROUTE || n < (ssize_t)NLMSG_LENGTH(sizeof(struct rtmsg)))
            return ROUTE_UNKNOWN;
        return route_of_type(((const struct rtmsg *)NLMSG_DATA(&answer.head))->rtm_type);
    }
    return ROUTE_UNKNOWN;
}

bool host_probe_is_local(const struct host_probe *probe, const struct net_address *address)
{
    enum route route = find_route(probe, address);

    return route == ROUTE_HERE || route == ROUTE_UNKNOWN;
}

bool host_probe_has_route(const struct host_probe *probe, const struct net_address *address)
{
    enum route route = find_route(probe, address);

    return route == ROUTE_OUT || route == ROUTE_HERE;
}

int socket_dial(const struct net_address *to, uint16_t port, int buffer_bytes, struct err *err)
{
    const int on = 1, after_s = PROBE_AFTER_S, every_s = PROBE_EVERY_S, probes = PROBES;
    struct sockaddr_storage at;
    socklen_t len = to_sockaddr(to, port, &at);
    auto_close int fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        (void)err_sys(err, "make a socket");
        return -1;
    }
    /* None of these is needed for it to work. */
    socket_limit(fd, buffer_bytes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after_s, sizeof after_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (connect(fd, (struct sockaddr *)&at, len) < 0 && errno != EINPROGRESS) {
        (void)err_sys(err, "connect");
        return -1;
    }
    return take_fd(&fd);
}

int socket_budget(uint32_t nth)
{
    /* The kernel doubles these. A connection has four: send and receive, towards the guest and the outside. */
    static const struct {
        uint32_t past;
        int bytes;
    } steps[] = { { 512, 4 * 1024 }, { 128, 8 * 1024 }, { 32, 32 * 1024 }, { LIMIT_EGRESS_LARGE, 128 * 1024 } };

    for (size_t i = 0; i < COUNT_OF(steps); i++)
        if (nth > steps[i].past)
            return steps[i].bytes;
    return 0;
}

void socket_limit(int fd, int bytes)
{
    if (bytes == 0)
        return;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void socket_reset(int fd)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    fd_close(&fd);
}
