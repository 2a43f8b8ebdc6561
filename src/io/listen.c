#include "io/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/address.h"

enum {
    BACKLOG = 1024,
    OUT_OF_DESCRIPTORS_MS = 100,
};

int listen_open(struct str address, struct err *err)
{
    struct sockaddr_storage at;
    socklen_t at_len;

    if (!address_parse(address, &at, &at_len, err))
        return -1;
    auto_close int fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        (void)err_sys(err, "make a socket");
        return -1;
    }
    /* A restart must not wait for the connections of the last run to time out. */
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, at_len) < 0 || listen(fd, BACKLOG) < 0) {
        if (errno == EADDRINUSE)
            (void)err_set(err, ERR_CONFLICT, "%.*s is in use, by a cloister that runs already or by another program",
                          STR_ARG(address));
        else
            (void)err_sys(err, "listen on %.*s", STR_ARG(address));
        return -1;
    }
    return take_fd(&fd);
}

struct listener {
    struct loop *loop;
    int fd;
    struct watch *watch;
    struct timer pause;
    unsigned a_turn;
    accepted_fn *accepted;
    void *context;
    bool is_off; /* also when it is freed */
    bool is_short;
};

static void accept_again(struct timer *timer)
{
    struct listener *listener = container_of(timer, struct listener, pause);

    watch_want(listener->watch, WATCH_READ);
}

static void on_ready(void *context, unsigned ready)
{
    struct listener *listener = context;

    (void)ready;
    for (unsigned i = 0; i < listener->a_turn && !listener->is_off; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            listener->is_short = false;
            listener->accepted(listener->context, fd);
            continue;
        }
        switch (errno) {
        case EAGAIN:
            return;
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
            /* The connection stays in the backlog and would wake the loop in every turn. */
            if (!listener->is_short)
                log_warn("listen: out of descriptors or memory: %s; new connections wait", strerror(errno));
            listener->is_short = true; /* logged once per shortage */
            watch_want(listener->watch, 0);
            timer_set(&listener->pause, listener->loop, OUT_OF_DESCRIPTORS_MS, accept_again);
            return;
        default:
            break; /* this connection failed before it was accepted; try the next one */
        }
    }
}

struct listener *listener_new(struct loop *loop, int fd, unsigned a_turn, accepted_fn *accepted, void *context)
{
    struct listener *listener = NEW(struct listener);
    int on = 1, idle_s = 60, every_s = 20, tries = 4;
    struct err err;

    if (!fd_set_nonblocking(fd, true, &err))
        log_die("listen: %s", err_text(&err));
    /*
     * Accepted sockets inherit these options, which saves five calls for each. A stream may be silent for hours;
     * keep-alive probes find peers that vanished without closing. Unix sockets refuse these options, which is fine.
     */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    listener->loop = loop;
    listener->fd = fd;
    listener->a_turn = a_turn;
    listener->accepted = accepted;
    listener->context = context;
    listener->watch = watch_new(loop, fd, on_ready, listener);
    watch_want(listener->watch, WATCH_READ);
    return listener;
}

void listener_accept(struct listener *listener, bool on)
{
    listener->is_off = !on;
    timer_clear(&listener->pause);
    watch_want(listener->watch, on ? WATCH_READ : 0);
}

void listener_free(struct listener *listener)
{
    if (!listener)
        return;
    listener_accept(listener, false);
    watch_free(listener->watch);
    fd_close(&listener->fd);
    loop_retire(listener->loop, listener, free);
}
