/*
 * Why guestlink is TCP, and how it is made.
 *
 * Whoever has the other end of a unix socket can attach descriptors to what it says. A reader that did not ask for them
 * closes them by reading, and closing a guest's descriptor (a TCP socket with SO_LINGER and unsent data) takes as long
 * as the guest likes: one sandbox would stop front for all. A TCP connection carries bytes and nothing else.
 *
 * It is made whole before the first program inside is executed: listen, connect, accept, and no listener is left. Raw
 * sockets and TCP_REPAIR are out of a guest's reach, so nobody inside can speak on it or take its place. Not even the
 * template's zygote, who may enter the sandboxes of her template (zygotes.h), can be there before: until guestd is executed
 * what runs inside is a copy of keeper, not dumpable, and the kernel lets nobody but the host's root into the namespaces of
 * such a process. The addresses of both ends are compared nevertheless.
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

enum {
    /*
     * Both ends have this port, at different addresses, so that it is the only one that a guest cannot bind: a random
     * one would be guestd's own at times, or the one that a user wants. Nobody wants tcpmux.
     */
    LINK_PORT = 1,
    LINK_HOST = INADDR_LOOPBACK + 1, /* 127.0.0.2 */
    LINK_GUEST = INADDR_LOOPBACK,
    /*
     * A handshake on loopback is over before connect() returns, unless other guests flood this CPU's queue of packets,
     * which all loopbacks share: then one is dropped and would come again after a second. Keeper does not wait for that.
     * Any guest can be behind it, so a link that fails is no reason to take a template's zygote away (zygote_bar()).
     */
    LINK_TRY_MS = 100,
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

static bool loopback_up(struct err *err)
{
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };

    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        return err_sys(err, "bring lo up");
    return true;
}

static struct sockaddr_in address_of(in_addr_t host)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(LINK_PORT), .sin_addr.s_addr = htonl(host) };
}

static bool peer_is(int fd, const struct sockaddr_in *want)
{
    struct sockaddr_in peer = { 0 };
    socklen_t len = sizeof peer;

    return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && len == sizeof peer && peer.sin_family == AF_INET &&
           peer.sin_port == want->sin_port && peer.sin_addr.s_addr == want->sin_addr.s_addr;
}

static bool hurry(int fd, struct err *err)
{
    const int on = 1;

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        return err_sys(err, "TCP_NODELAY");
    return true;
}

/*
 * The host's end is cut, not closed in order: nobody waits for its last words, and what TCP would remember of an orderly
 * end makes the kernel search the whole machine's connections when it takes the namespace apart.
 */
static bool end_at_once(int fd, struct err *err)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };

    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) < 0)
        return err_sys(err, "SO_LINGER");
    return true;
}

/* ERR_TIMEOUT: a packet was lost, try again. */
static bool join(int *out_host_fd, int *out_guest_fd, struct err *err)
{
    const struct sockaddr_in host = address_of(LINK_HOST), guest = address_of(LINK_GUEST);
    auto_close int listen_fd = tcp_socket(err);
    if (listen_fd < 0)
        return false;
    auto_close int host_fd = tcp_socket(err);
    if (host_fd < 0)
        return false;

    if (bind(listen_fd, (const struct sockaddr *)&guest, sizeof guest) < 0 || listen(listen_fd, 1) < 0)
        return err_sys(err, "listen");
    if (bind(host_fd, (const struct sockaddr *)&host, sizeof host) < 0 ||
        (connect(host_fd, (const struct sockaddr *)&guest, sizeof guest) < 0 && errno != EINPROGRESS))
        return err_sys(err, "connect");
    if (!fd_await(listen_fd, POLLIN, clock_mono_ms() + LINK_TRY_MS))
        return err_set(err, ERR_TIMEOUT, "the sandbox's loopback does not answer");
    auto_close int guest_fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (guest_fd < 0)
        return err_sys(err, "accept");
    if (!peer_is(guest_fd, &host) || !peer_is(host_fd, &guest))
        return err_set(err, ERR_CONFLICT, "somebody else is in the sandbox already");
    if (!hurry(host_fd, err) || !hurry(guest_fd, err) || !end_at_once(host_fd, err))
        return false;
    *out_host_fd = take_fd(&host_fd);
    *out_guest_fd = take_fd(&guest_fd);
    return true;
}

static bool join_in_time(int *out_host_fd, int *out_guest_fd, struct err *err)
{
    for (int i = 0; i < LINK_TRIES; i++) {
        if (join(out_host_fd, out_guest_fd, err))
            return true;
        if (err->kind != ERR_TIMEOUT)
            return false;
    }
    return false;
}

bool network_link(int home_fd, int pidfd, int *out_host_fd, int *out_guest_fd, struct err *err)
{
    if (!enter(pidfd, err))
        return false;
    bool ok = loopback_up(err) && join_in_time(out_host_fd, out_guest_fd, err);
    leave(home_fd);
    return ok || err_wrap(err, "make guestlink");
}
