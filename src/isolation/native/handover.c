/*
 * How it works, and why it is made this way.
 *
 * The socket that guestd listens on has a name on the host, in the sandbox's directory, which is root's (0700). Unix
 * sockets are found by their inode whatever the network or mount namespace, so keeper can connect to it from outside at
 * any time, and a new keeper as well. A guest cannot: the file is in none of its mounts, and guestd is not dumpable, so
 * /proc/1/fd is closed to the guest's root. There is nothing inside to impersonate, to flood or to hold. The socket is made
 * in the sandbox's network namespace, where /proc/net/unix shows that it is there: a socket of another namespace could not
 * be written into an image of guestd's memory.
 *
 * Turned down: an abstract name inside the sandbox, with guestd checking that its peer has no pid there (any guest can
 * fill the queue, and can hang guestd with descriptors that are slow to close); a secret over loopback TCP (carries no
 * descriptors, and has the same queue); pidfd_getfd() on guestd (a hostile guestd chooses the file that keeper must then
 * close).
 *
 * Keeper only sends. Its socket is shut for receiving before it connects: a descriptor that guestd sends back is refused
 * by the kernel, so keeper never has to close one, which could take as long as a guest likes.
 *
 * A guestd that comes back from a memory image, or a copy of one, gets a new listening socket in the place of the old.
 */
#include "isolation/native/handover.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "io/pass.h"
#include "isolation/native/network.h"

#define SOCKET_NAME "guestd.socket"

enum { WAITING_MAX = 8 }; /* handovers that guestd has not accepted yet */

/* By way of the directory's descriptor: the path of the data directory may be longer than a socket's name. */
static struct sockaddr_un address_in(int sandbox_fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    (void)snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" SOCKET_NAME, sandbox_fd);
    return address;
}

/* Takes the socket. */
static int listen_in(int sandbox_fd, int socket_fd, struct err *err)
{
    const struct sockaddr_un address = address_in(sandbox_fd);
    auto_close int fd = socket_fd;

    if (fd < 0)
        return -1;
    if (!handover_forget(sandbox_fd, err))
        return -1;
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, WAITING_MAX) < 0) {
        (void)err_sys(err, "make guestd's socket");
        return -1;
    }
    return take_fd(&fd);
}

int handover_listen(int home_fd, int pidfd, int sandbox_fd, struct err *err)
{
    return listen_in(sandbox_fd, network_unix_socket(home_fd, pidfd, err), err);
}

int handover_listen_here(int sandbox_fd, struct err *err)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        (void)err_sys(err, "make a socket for guestd");
    return listen_in(sandbox_fd, fd, err);
}

bool handover_forget(int sandbox_fd, struct err *err)
{
    return unlinkat(sandbox_fd, SOCKET_NAME, 0) == 0 || errno == ENOENT || err_sys(err, "remove " SOCKET_NAME);
}

/* A connection to what guestd listens on. */
static int connect_in(int sandbox_fd, struct err *err)
{
    const struct sockaddr_un address = address_in(sandbox_fd);
    auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || shutdown(fd, SHUT_RD) < 0) {
        (void)err_sys(err, "make a socket to guestd");
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return take_fd(&fd);
    if (errno == EAGAIN)
        (void)err_set(err, ERR_UNAVAILABLE, "guestd does not accept");
    else
        (void)err_sys(err, "connect to guestd");
    return -1;
}

static bool send_on(int socket_fd, enum handover_kind kind, int fd, struct err *err)
{
    const struct handover message = { .kind = kind };

    return pass_fds(socket_fd, str_of(&message, sizeof message), &fd, 1, err) || err_wrap(err, "hand over to guestd");
}

bool handover_replace(int home_fd, int pidfd, int sandbox_fd, struct err *err)
{
    auto_close int socket_fd = connect_in(sandbox_fd, err); /* first: the name will lead to the new one */
    if (socket_fd < 0)
        return false;
    auto_close int listen_fd = handover_listen(home_fd, pidfd, sandbox_fd, err);
    return listen_fd >= 0 && send_on(socket_fd, HANDOVER_LISTENER, listen_fd, err);
}

bool handover_send(int sandbox_fd, enum handover_kind kind, int fd, struct err *err)
{
    auto_close int socket_fd = connect_in(sandbox_fd, err);

    return socket_fd >= 0 && send_on(socket_fd, kind, fd, err);
}

bool handover_link(int home_fd, int pidfd, int sandbox_fd, int *out_host_fd, struct err *err)
{
    auto_close int host_fd = -1, guest_fd = -1;

    if (!network_link(home_fd, pidfd, &host_fd, &guest_fd, err) ||
        !handover_send(sandbox_fd, HANDOVER_LINK, guest_fd, err))
        return err_wrap(err, "make guestlink");
    *out_host_fd = take_fd(&host_fd);
    return true;
}
