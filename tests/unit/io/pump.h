/*
 * pump.h - run a loop from a test, and play the peer with plain sockets.
 *
 * No test waits for a fixed time: it pumps the loop until something is true. The bound only ends a test that hangs. A
 * turn takes a millisecond; while a hand_clock stands, a millisecond of that clock, so that timers run at once.
 */
#ifndef TESTS_UNIT_IO_PUMP_H
#define TESTS_UNIT_IO_PUMP_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "hand_clock.h"
#include "io/loop.h"
#include "test.h"

/* Turns are many in little time when the machine is idle, and few in much time when it is not: it takes both to give up. */
enum { PUMP_MOST = 20000, PUMP_MOST_US = 2000000 };

static struct loop *pump_loop_;

static inline void pump_stop(struct timer *timer)
{
    (void)timer;
    loop_stop_soon(pump_loop_);
}

static inline void pump_turn(struct loop *loop)
{
    struct timer timer = { 0 };

    pump_loop_ = loop;
    timer_set(&timer, loop, 1, pump_stop);
    if (hand_clock_stands())
        hand_clock_add(1);
    loop_run(loop);
    timer_clear(&timer);
}

#define PUMP_UNTIL(loop, condition)                                                                       \
    for (uint64_t turn_ = 0, began_us_ = hand_clock_machine_us(CLOCK_MONOTONIC); !(condition); turn_++) { \
        if (turn_ > PUMP_MOST && hand_clock_machine_us(CLOCK_MONOTONIC) - began_us_ > PUMP_MOST_US)       \
            fail_msg("never came true: %s", #condition);                                                  \
        pump_turn(loop);                                                                                  \
    }

/* Enough turns for anything that was going to happen. */
static inline void pump_some(struct loop *loop)
{
    for (int i = 0; i < 20; i++)
        pump_turn(loop);
}

static inline void set_nonblocking(int fd)
{
    assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

/* Two ends of a TCP connection over loopback; both non-blocking. */
static inline void tcp_pair(int ends[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(listening, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &len), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(ends[0], (struct sockaddr *)&at, sizeof at), 0);
    ends[1] = accept(listening, NULL, NULL);
    assert_true(ends[1] >= 0);
    close(listening);
    for (int i = 0; i < 2; i++) {
        set_nonblocking(ends[i]);
        /* Or a second write waits for the acknowledgement of the first: 40 real milliseconds, while our clock runs faster. */
        assert_int_equal(setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), 0);
    }
}

static inline void unix_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
}

/* The test's own end of a connection. */
struct peer {
    int fd;
    struct buf heard;
    bool ended, was_reset;
};

static inline struct peer peer_make(int fd)
{
    return (struct peer){ .fd = fd, .heard = buf_make(NULL, SIZE_MAX / 4) };
}

static inline void peer_close(struct peer *peer)
{
    if (peer->fd >= 0)
        close(peer->fd);
    peer->fd = -1;
}

static inline void peer_done(struct peer *peer)
{
    peer_close(peer);
    buf_done(&peer->heard);
}

/* Take what is there. True, so that it can stand in a condition. */
static inline bool peer_listen(struct peer *peer)
{
    while (peer->fd >= 0 && !peer->ended && !peer->was_reset) {
        char *room = buf_reserve(&peer->heard, 65536);
        ssize_t n = read(peer->fd, room, 65536);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            peer->was_reset = true;
        else if (n == 0)
            peer->ended = true;
        else
            buf_grew(&peer->heard, (size_t)n);
    }
    return true;
}

static inline bool peer_heard(struct peer *peer, const char *text)
{
    return peer_listen(peer) && memmem(peer->heard.data ? peer->heard.data : "", peer->heard.len, text, strlen(text));
}

static inline bool peer_is_closed(struct peer *peer)
{
    return peer_listen(peer) && (peer->ended || peer->was_reset);
}

static inline void peer_say(struct peer *peer, struct str text)
{
    assert_int_equal(write(peer->fd, text.at, text.len), (ssize_t)text.len);
}

#endif
