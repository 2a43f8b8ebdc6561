#include "io/divert.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/network.h"

#ifndef IPV6_TRANSPARENT /* newer than some C libraries */
#define IPV6_TRANSPARENT 75
#endif

static bool is_ipv6(enum divert_kind kind)
{
    return kind == DIVERT_TCP6 || kind == DIVERT_UDP6;
}

static bool is_tcp(enum divert_kind kind)
{
    return kind == DIVERT_TCP4 || kind == DIVERT_TCP6;
}

static struct sockaddr_storage own_address(bool ipv6, socklen_t *out_len)
{
    struct sockaddr_storage address = { .ss_family = ipv6 ? AF_INET6 : AF_INET };
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    int parsed;

    if (ipv6) {
        six->sin6_port = htons(NETWORK_EGRESS_PORT);
        parsed = inet_pton(AF_INET6, NETWORK_EGRESS_IPV6, &six->sin6_addr);
    } else {
        four->sin_port = htons(NETWORK_EGRESS_PORT);
        parsed = inet_pton(AF_INET, NETWORK_EGRESS_IPV4, &four->sin_addr);
    }
    assert(parsed == 1);
    (void)parsed;
    *out_len = ipv6 ? sizeof *six : sizeof *four;
    return address;
}

struct option {
    int level, name; /* name 0: none */
};

/* TRANSPARENT: without it the rules deliver nothing to the socket, and it could not answer from a foreign address. */
static const struct option options_of[DIVERT_KINDS][4] = {
    [DIVERT_TCP4] = { { IPPROTO_IP, IP_TRANSPARENT },
                      { SOL_SOCKET, SO_REUSEADDR }, /* connections of an earlier socket must not hold the port */
                      { IPPROTO_TCP, TCP_NODELAY } },
    [DIVERT_TCP6] = { { IPPROTO_IPV6, IPV6_TRANSPARENT }, { SOL_SOCKET, SO_REUSEADDR }, { IPPROTO_TCP, TCP_NODELAY } },
    [DIVERT_UDP4] = { { IPPROTO_IP, IP_TRANSPARENT }, { IPPROTO_IP, IP_PKTINFO } },
    [DIVERT_UDP6] = { { IPPROTO_IPV6, IPV6_TRANSPARENT }, { IPPROTO_IPV6, IPV6_RECVPKTINFO } },
};

/* The first is for root, and beyond what net.core has for all: 208 KiB on older kernels. */
static bool set_buffer(int fd, int forced, int plain, int bytes)
{
    return setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0 ||
           setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes) == 0;
}

static bool set_options(int fd, enum divert_kind kind, struct err *err)
{
    const int on = 1, send_bytes = LIMIT_DIVERT_SEND, receive_bytes = LIMIT_DIVERT_RECEIVE;

    for (const struct option *option = options_of[kind]; option->name; option++)
        if (setsockopt(fd, option->level, option->name, &on, sizeof on) < 0)
            return err_sys(err, "set option %d of a sandbox's socket", option->name);
    /* Accepted connections inherit these, also that the kernel leaves them as they are. */
    if (is_tcp(kind) && (!set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receive_bytes) ||
                         !set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, send_bytes)))
        return err_sys(err, "set the buffers of a sandbox's socket");
    return true;
}

int divert_open(enum divert_kind kind, struct err *err)
{
    socklen_t len;
    struct sockaddr_storage at = own_address(is_ipv6(kind), &len);
    auto_close int fd =
        socket(at.ss_family, (is_tcp(kind) ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        (void)err_sys(err, "make a socket in the sandbox");
        return -1;
    }
    if (!set_options(fd, kind, err))
        return -1;
    if (bind(fd, (const struct sockaddr *)&at, len) < 0 || (is_tcp(kind) && listen(fd, LIMIT_BACKLOG) < 0)) {
        if (errno == EADDRINUSE)
            (void)err_set(err, ERR_CONFLICT, "a program in the sandbox uses port %d", NETWORK_EGRESS_PORT);
        else
            (void)err_sys(err, "bind a socket in the sandbox");
        return -1;
    }
    return take_fd(&fd);
}

bool divert_destination(int fd, struct sockaddr_storage *out, struct err *err)
{
    struct sockaddr_storage found = { 0 };
    socklen_t len = sizeof found;

    if (getsockname(fd, (struct sockaddr *)&found, &len) < 0)
        return err_sys(err, "ask for the address that a guest wanted");
    *out = found;
    return true;
}

bool divert_is_direct(const struct sockaddr_storage *destination)
{
    socklen_t len;
    struct sockaddr_storage own = own_address(destination->ss_family == AF_INET6, &len);
    const struct sockaddr_in *four = (const struct sockaddr_in *)destination;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)destination;

    if (destination->ss_family == AF_INET6)
        return memcmp(&six->sin6_addr, &((const struct sockaddr_in6 *)&own)->sin6_addr, sizeof six->sin6_addr) == 0;
    return four->sin_addr.s_addr == ((const struct sockaddr_in *)&own)->sin_addr.s_addr;
}

/* ---- datagrams ---- */

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

/* Only port 53 is diverted, so the server's port need not be asked for. */
static bool server_of(const struct cmsghdr *header, struct sockaddr_storage *out)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    struct in_pktinfo info4;
    struct in6_pktinfo info6;

    *out = (struct sockaddr_storage){ 0 };
    if (header && header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO) {
        memcpy(&info4, CMSG_DATA(header), sizeof info4);
        *four = (struct sockaddr_in){ .sin_family = AF_INET,
                                      .sin_port = htons(NETWORK_DNS_PORT),
                                      .sin_addr = info4.ipi_addr };
        return true;
    }
    if (header && header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO) {
        memcpy(&info6, CMSG_DATA(header), sizeof info6);
        *six = (struct sockaddr_in6){ .sin6_family = AF_INET6,
                                      .sin6_port = htons(NETWORK_DNS_PORT),
                                      .sin6_addr = info6.ipi6_addr };
        return true;
    }
    return false;
}

ssize_t divert_receive(int fd, void *room, size_t size, struct divert_peer *out)
{
    union control control = { 0 };
    struct iovec piece = { .iov_base = room, .iov_len = size };
    struct msghdr message = { .msg_name = &out->guest,
                              .msg_namelen = sizeof out->guest,
                              .msg_iov = &piece,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    ssize_t n;

    do {
        n = recvmsg(fd, &message, MSG_TRUNC | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n >= 0 && !server_of(CMSG_FIRSTHDR(&message), &out->server)) {
        errno = EPROTO; /* the socket was not made by divert_open() */
        return -1;
    }
    return n;
}

bool divert_answer(int fd, struct str bytes, const struct divert_peer *to)
{
    bool ipv6 = to->server.ss_family == AF_INET6;
    /* Without an interface: any, which is lo. */
    const struct in_pktinfo info4 = { .ipi_spec_dst = ((const struct sockaddr_in *)&to->server)->sin_addr };
    const struct in6_pktinfo info6 = { .ipi6_addr = ((const struct sockaddr_in6 *)&to->server)->sin6_addr };
    size_t info_len = ipv6 ? sizeof info6 : sizeof info4;
    union control control = { 0 };
    struct sockaddr_storage guest = to->guest;
    struct iovec piece = { .iov_base = (void *)(uintptr_t)bytes.at, .iov_len = bytes.len }; /* it is only read */
    struct msghdr message = { .msg_name = &guest,
                              .msg_namelen = ipv6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
                              .msg_iov = &piece,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = CMSG_SPACE(info_len) };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
    header->cmsg_type = ipv6 ? IPV6_PKTINFO : IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(info_len);
    memcpy(CMSG_DATA(header), ipv6 ? (const void *)&info6 : (const void *)&info4, info_len);
    ssize_t n;
    do {
        n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}
