#include "io/dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/fd.h"
#include "io/address.h"

int dial_open(struct str address, struct err *err)
{
    struct sockaddr_storage to;
    socklen_t to_len;

    if (!address_parse(address, &to, &to_len, err))
        return -1;
    auto_close int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        (void)err_sys(err, "make a socket");
        return -1;
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* only for speed */
    if (connect(fd, (struct sockaddr *)&to, to_len) < 0 && errno != EINPROGRESS) {
        (void)err_sys(err, "connect to %.*s", STR_ARG(address));
        return -1;
    }
    return take_fd(&fd);
}

bool dial_loopback(int fd, uint16_t port, struct err *err)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* only for speed */
    int failed = connect(fd, (const struct sockaddr *)&to, sizeof to);
    /* Over loopback the handshake is complete when connect() returns: a second call gets the result without waiting. */
    if (failed && errno == EINPROGRESS)
        failed = connect(fd, (const struct sockaddr *)&to, sizeof to);
    if (failed && errno != EISCONN && errno != EALREADY && errno != EINPROGRESS)
        return err_sys(err, "connect to port %u", port);
    return true;
}
