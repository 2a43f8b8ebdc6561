/*
 * Why guestlink is TCP, and how it is made.
 *
 * The peer on a unix socket can attach descriptors to what it sends. A receiver that did not ask for them closes them by
 * reading, and closing a guest's descriptor (a TCP socket with SO_LINGER and unsent data) takes as long as the guest
 * likes: one sandbox would stop front for all. A TCP connection carries bytes and nothing else.
 *
 * Keeper makes both ends inside the sandbox's network and then gives one to guestd (handover.c), so no listener is left.
 * Guests may be running by then. One of them can connect to the listener in the moment that it exists, but not from the
 * address that keeper's own end is bound to: keeper accepts that peer and closes any other. Raw sockets and TCP_REPAIR
 * are out of a guest's reach, so a connection that is made cannot be taken over.
 */
#include "isolation/native/network.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"

enum {
    /*
     * Both ends have this port, at two addresses of 127.0.0.0/8 chosen for each link. So it is the only port that a
     * guest cannot bind: a random one would be guestd's own at times, or the one that a user wants. Port 1 is tcpmux,
     * which is not in use anywhere. Where a guest has taken it at all addresses, any port has to do.
     */
    LINK_PORT = 1,
    ANY_PORT = 0,
    LINK_WAITING = 4, /* connections on the listener */
    /*
     * A handshake on loopback is over before connect() returns, unless guests flood this CPU's queue of packets, which
     * all loopbacks share: then one is lost and would be sent again after a second. Keeper tries again sooner, a few
     * times and for a quarter of a second in all. Any guest can be behind it, so a link that fails is no reason to take a
     * template's zygote away (zygote_bar()).
     */
    LINK_TRY_MS = 50,
    LINK_TRIES = 5,
};

static bool enter(int pidfd, struct err *err)
{
    if (setns(pidfd, CLONE_NEWNET) < 0)
        return err_sys(err, "enter the sandbox's network");
    return true;
}

static void leave(int home_fd)
{
    if (setns(home_fd, CLONE_NEWNET) < 0) {
        log_error("native: cannot return from a sandbox's network: %s", strerror(errno));
        abort();
    }
}

static int tcp_socket(struct err *err)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        (void)err_sys(err, "make a socket in the sandbox");
    return fd;
}

int network_socket(int home_fd, int pidfd, struct err *err)
{
    if (!enter(pidfd, err))
        return -1;
    int fd = tcp_socket(err);
    leave(home_fd);
    return fd;
}

int network_unix_socket(int home_fd, int pidfd, struct err *err)
{
    if (!enter(pidfd, err))
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        (void)err_sys(err, "make a unix socket in the sandbox");
    leave(home_fd);
    return fd;
}

/* ---- set-up ---- */

static bool loopback_up(struct err *err)
{
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };

    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        return err_sys(err, "bring lo up");
    return true;
}

bool network_set_up(const struct network_rules *rules, struct err *err)
{
    return (rules ? network_rules_apply(rules, err) : loopback_up(err)) || err_wrap(err, "set up the network");
}

static bool try_rules(int home_fd, struct network_rules *out, bool ipv6, struct err *err)
{
    network_rules_init(out, ipv6);
    if (unshare(CLONE_NEWNET) < 0)
        return err_sys(err, "make a network namespace");
    bool ok = network_rules_apply(out, err);
    leave(home_fd); /* the namespace goes: nothing else holds it */
    return ok;
}

enum network_kind network_try(int home_fd, struct network_rules *out, struct err *why)
{
    struct err without_ipv6;

    if (try_rules(home_fd, out, true, why))
        return NETWORK_BOTH;
    network_rules_done(out);
    if (try_rules(home_fd, out, false, &without_ipv6))
        return NETWORK_IPV4;
    network_rules_done(out);
    *why = without_ipv6;
    return NETWORK_NONE;
}

/* ---- egress's sockets ---- */

static bool divert_all(enum network_kind kind, int out_fds[DIVERT_KINDS], struct err *err)
{
    for (int i = 0; i < DIVERT_KINDS; i++) {
        if (kind != NETWORK_BOTH && (i == DIVERT_TCP6 || i == DIVERT_UDP6))
            continue;
        out_fds[i] = divert_open((enum divert_kind)i, err);
        if (out_fds[i] < 0)
            return false;
    }
    return true;
}

bool network_divert(int home_fd, int pidfd, enum network_kind kind, int out_fds[DIVERT_KINDS], struct err *err)
{
    if (kind == NETWORK_NONE)
        return err_set(err, ERR_UNAVAILABLE, "the sandbox has no network");
    if (!enter(pidfd, err))
        return false;
    int fds[DIVERT_KINDS] = { -1, -1, -1, -1 };
    bool ok = divert_all(kind, fds, err);
    leave(home_fd);
    for (int i = 0; i < DIVERT_KINDS; i++) {
        if (ok)
            out_fds[i] = fds[i];
        else
            fd_close(&fds[i]);
    }
    return ok;
}

/* ---- guestlink ---- */

/* At an address of 127.0.0.0/8 that is neither 127.0.0.1, where guests serve, nor the last one, which is broadcast. */
static bool bind_somewhere(int fd, uint16_t port, struct sockaddr_in *out_address, struct err *err)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t len = sizeof address;
    uint32_t host;

    random_bytes(&host, sizeof host);
    address.sin_addr.s_addr = htonl((INADDR_LOOPBACK & 0xff000000) | (1 + host % 0xfe) << 16 | (host >> 16));
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        getsockname(fd, (struct sockaddr *)out_address, &len) < 0)
        return err_sys(err, "bind guestlink");
    return true;
}

/*
 * Small messages leave at once; an accepted socket has the options of its listener. The host's end is reset when it is
 * closed: no one reads data after close, and what TCP would remember of an orderly end makes the kernel search the
 * whole machine's connections when it takes the namespace apart.
 */
static bool set_options(int listen_fd, int host_fd, struct err *err)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };
    const int on = 1;

    if (setsockopt(host_fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) < 0 ||
        setsockopt(host_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 ||
        setsockopt(listen_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        return err_sys(err, "set the options of guestlink");
    return true;
}

/* The connection from that address and no other; ERR_TIMEOUT if it does not come. */
static int accept_from(int listen_fd, const struct sockaddr_in *want, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + LINK_TRY_MS;

    do {
        struct sockaddr_in peer = { 0 };
        socklen_t len = sizeof peer;
        auto_close int fd = accept4(listen_fd, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
        if (fd >= 0 && peer.sin_port == want->sin_port && peer.sin_addr.s_addr == want->sin_addr.s_addr)
            return take_fd(&fd);
        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            (void)err_sys(err, "accept");
            return -1;
        }
    } while (fd_await(listen_fd, POLLIN, until_ms) && clock_mono_ms() < until_ms);
    (void)err_set(err, ERR_TIMEOUT, "the sandbox's loopback does not answer");
    return -1;
}

static bool join(uint16_t port, int *out_host_fd, int *out_guest_fd, struct err *err)
{
    struct sockaddr_in host, guest;
    auto_close int listen_fd = tcp_socket(err);
    if (listen_fd < 0)
        return false;
    auto_close int host_fd = tcp_socket(err);
    if (host_fd < 0)
        return false;

    if (!bind_somewhere(listen_fd, port, &guest, err) || !bind_somewhere(host_fd, port, &host, err) ||
        !set_options(listen_fd, host_fd, err))
        return false;
    if (listen(listen_fd, LINK_WAITING) < 0)
        return err_sys(err, "listen");
    if (connect(host_fd, (const struct sockaddr *)&guest, sizeof guest) < 0 && errno != EINPROGRESS)
        return err_sys(err, "connect");
    auto_close int guest_fd = accept_from(listen_fd, &host, err);
    if (guest_fd < 0)
        return false;
    *out_host_fd = take_fd(&host_fd);
    *out_guest_fd = take_fd(&guest_fd);
    return true;
}

static bool join_in_time(int *out_host_fd, int *out_guest_fd, struct err *err)
{
    uint16_t port = LINK_PORT;

    for (int i = 0; i < LINK_TRIES; i++) {
        if (join(port, out_host_fd, out_guest_fd, err))
            return true;
        if (err->sys == EADDRINUSE)
            port = ANY_PORT;
        else if (err->kind != ERR_TIMEOUT)
            return false;
    }
    return false;
}

bool network_link(int home_fd, int pidfd, int *out_host_fd, int *out_guest_fd, struct err *err)
{
    if (!enter(pidfd, err))
        return false;
    bool ok = join_in_time(out_host_fd, out_guest_fd, err);
    leave(home_fd);
    return ok;
}
