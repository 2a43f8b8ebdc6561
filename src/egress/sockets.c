#include "egress/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

enum { PROBE_PORT = 9 }; /* no packet is sent to it */

static const uint8_t v4_prefix[12] = { [10] = 0xff, [11] = 0xff };

struct net_address socket_address_v4(const void *four_bytes)
{
    struct net_address out;

    memcpy(out.at, v4_prefix, sizeof v4_prefix);
    memcpy(out.at + sizeof v4_prefix, four_bytes, sizeof out.at - sizeof v4_prefix);
    return out;
}

bool socket_address(const struct sockaddr_storage *from, struct net_address *out, uint16_t *out_port)
{
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;
        *out = socket_address_v4(&v4->sin_addr);
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
        memcpy(&v4->sin_addr, from->at + sizeof v4_prefix, sizeof v4->sin_addr);
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
    return (struct host_probe){ .fd4 = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                                .fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) };
}

void host_probe_close(struct host_probe *probe)
{
    fd_close(&probe->fd4);
    fd_close(&probe->fd6);
}

/* Nothing is sent. */
static bool aim(int fd, const struct net_address *address)
{
    struct sockaddr_storage to;
    socklen_t len = to_sockaddr(address, PROBE_PORT, &to);

    /* Or the address of the last probe stays. */
    (void)connect(fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr));
    return connect(fd, (struct sockaddr *)&to, len) == 0;
}

static int fd_for(const struct host_probe *probe, const struct net_address *address)
{
    return net_address_is_v4(address) ? probe->fd4 : probe->fd6;
}

/*
 * A datagram socket that is "connected" has the address that its packets would come from. For an address of this machine
 * the kernel chooses that address itself. An address without a route cannot be connected to, and is none of ours.
 */
bool host_probe_is_local(const struct host_probe *probe, const struct net_address *address)
{
    int fd = fd_for(probe, address);
    struct sockaddr_storage from = { 0 };
    socklen_t len = sizeof from;
    struct net_address source;
    uint16_t port;

    return aim(fd, address) && getsockname(fd, (struct sockaddr *)&from, &len) == 0 &&
           socket_address(&from, &source, &port) && net_address_eq(&source, address);
}

bool host_probe_has_route(const struct host_probe *probe, const struct net_address *address)
{
    return aim(fd_for(probe, address), address);
}

int socket_dial(const struct net_address *to, uint16_t port, struct err *err)
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

void socket_keep_small(int fd)
{
    const int bytes = LIMIT_EGRESS_SMALL_BUFFER;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void socket_reset(int fd)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    fd_close(&fd);
}
