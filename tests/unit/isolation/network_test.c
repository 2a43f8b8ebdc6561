/* The rules of a sandbox's network, and egress's sockets in it, in a network namespace of our own. Needs root. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/network.h"
#include "io/divert.h"
#include "isolation/native/network_rules.h"
#include "test.h"

enum { AT_ONCE_MS = 10000 }; /* "at once", on a machine that is very busy: what is not, takes for ever */

static int home_fd = -1;
static int egress[DIVERT_KINDS];

static void close_egress(void)
{
    for (int kind = 0; kind < DIVERT_KINDS; kind++)
        fd_close(&egress[kind]);
}

static void open_egress(void)
{
    struct err err;

    for (int kind = 0; kind < DIVERT_KINDS; kind++) {
        egress[kind] = divert_open((enum divert_kind)kind, &err);
        if (egress[kind] < 0)
            fail_msg("socket %d: %s", kind, err_text(&err));
    }
}

static int enter(bool ipv6)
{
    struct network_rules rules;
    struct err err;

    home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    assert_true(home_fd >= 0);
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    network_rules_init(&rules, ipv6);
    if (!network_rules_apply(&rules, &err))
        fail_msg("%s", err_text(&err));
    network_rules_done(&rules);
    for (int kind = 0; kind < DIVERT_KINDS; kind++)
        egress[kind] = -1;
    return 0;
}

static int enter_namespace(void **state)
{
    (void)state;
    return enter(true);
}

static int enter_ipv4_namespace(void **state)
{
    (void)state;
    return enter(false);
}

static int leave_namespace(void **state)
{
    (void)state;
    close_egress();
    assert_int_equal(setns(home_fd, CLONE_NEWNET), 0);
    fd_close(&home_fd);
    return 0;
}

static struct sockaddr_storage address(const char *text, uint16_t port, socklen_t *out_len)
{
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;

    if (strchr(text, ':')) {
        *six = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
        assert_int_equal(inet_pton(AF_INET6, text, &six->sin6_addr), 1);
        *out_len = sizeof *six;
    } else {
        *four = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
        assert_int_equal(inet_pton(AF_INET, text, &four->sin_addr), 1);
        *out_len = sizeof *four;
    }
    return address;
}

static void check_address(const struct sockaddr_storage *got, const char *want, uint16_t want_port)
{
    char text[INET6_ADDRSTRLEN];
    const struct sockaddr_in *four = (const struct sockaddr_in *)got;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)got;
    bool ipv6 = got->ss_family == AF_INET6;

    assert_non_null(inet_ntop(got->ss_family, ipv6 ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr,
                              text, sizeof text));
    assert_string_equal(text, want);
    assert_int_equal(ntohs(ipv6 ? six->sin6_port : four->sin_port), want_port);
}

/* A guest's socket, on its way to there; -1 with errno, at once. */
static int dial(int type, const char *text, uint16_t port)
{
    socklen_t len;
    struct sockaddr_storage to = address(text, port, &len);
    auto_close int fd = socket(to.ss_family, type | SOCK_CLOEXEC, 0);
    struct timeval soon = { .tv_sec = AT_ONCE_MS / 1000 };

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
    if (connect(fd, (const struct sockaddr *)&to, len) < 0)
        return -1; /* EINPROGRESS: it took longer than the time above */
    return take_fd(&fd);
}

static int accept_on(enum divert_kind kind)
{
    struct pollfd ready = { .fd = egress[kind], .events = POLLIN };

    assert_int_equal(poll(&ready, 1, AT_ONCE_MS), 1);
    int fd = accept4(egress[kind], NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void each_connection_reaches_egress_with_the_address_it_was_meant_for(void **state)
{
    static const struct {
        const char *to;
        uint16_t port;
        enum divert_kind kind;
        const char *seen, *from;
    } cases[] = {
        { "198.51.100.7", 443, DIVERT_TCP4, "198.51.100.7", NETWORK_OWN_IPV4 },
        { "192.0.2.1", 53, DIVERT_TCP4, "192.0.2.1", NETWORK_OWN_IPV4 },
        { "169.254.169.254", 80, DIVERT_TCP4, "169.254.169.254", NETWORK_OWN_IPV4 },
        { "10.0.0.1", 1, DIVERT_TCP4, "10.0.0.1", NETWORK_OWN_IPV4 },
        { NETWORK_NAMESERVER, 53, DIVERT_TCP4, NETWORK_NAMESERVER, NETWORK_OWN_IPV4 },
        { "2001:db8::7", 443, DIVERT_TCP6, "2001:db8::7", NETWORK_OWN_IPV6 },
        { "::ffff:198.51.100.7", 8080, DIVERT_TCP4, "198.51.100.7", NULL },
    };

    (void)state;
    open_egress();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct sockaddr_storage seen;
        socklen_t len = sizeof seen;
        struct err err;
        char byte = 0;
        auto_close int guest_fd = dial(SOCK_STREAM, cases[i].to, cases[i].port);
        if (guest_fd < 0)
            fail_msg("connect to %s: %s", cases[i].to, strerror(errno));
        auto_close int fd = accept_on(cases[i].kind);
        assert_true(divert_destination(fd, &seen, &err));
        check_address(&seen, cases[i].seen, cases[i].port);
        assert_false(divert_is_direct(&seen));
        assert_int_equal(write(guest_fd, "q", 1), 1);
        assert_int_equal(read(fd, &byte, 1), 1);
        assert_int_equal(write(fd, "a", 1), 1);
        assert_int_equal(read(guest_fd, &byte, 1), 1);
        assert_int_equal(byte, 'a');
        assert_int_equal(getsockname(guest_fd, (struct sockaddr *)&seen, &len), 0);
        if (cases[i].from) {
            assert_int_equal(getpeername(fd, (struct sockaddr *)&seen, &len), 0);
            check_address(&seen, cases[i].from,
                          ntohs(seen.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&seen)->sin6_port
                                                           : ((struct sockaddr_in *)&seen)->sin_port));
        }
    }
}

static void an_answer_comes_from_the_server_that_was_asked(void **state)
{
    static const struct {
        const char *server;
        enum divert_kind kind;
        const char *seen;
    } cases[] = {
        { NETWORK_NAMESERVER, DIVERT_UDP4, NETWORK_NAMESERVER },
        { "192.0.2.53", DIVERT_UDP4, "192.0.2.53" },
        { "2001:db8::53", DIVERT_UDP6, "2001:db8::53" },
        { "::ffff:192.0.2.53", DIVERT_UDP4, "192.0.2.53" },
    };
    char room[64];

    (void)state;
    open_egress();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct divert_peer peer;
        /* Connected, as resolvers do: answers from elsewhere are not taken. */
        auto_close int guest_fd = dial(SOCK_DGRAM, cases[i].server, 53);
        assert_true(guest_fd >= 0);
        assert_int_equal(send(guest_fd, "question", 8, 0), 8);
        assert_int_equal(divert_receive(egress[cases[i].kind], room, 4, &peer), 8);
        check_address(&peer.server, cases[i].seen, 53);
        assert_true(divert_answer(egress[cases[i].kind], STR("answer"), &peer));
        assert_int_equal(recv(guest_fd, room, sizeof room, 0), 6);
        assert_memory_equal(room, "answer", 6);
        assert_int_equal(divert_receive(egress[cases[i].kind], room, sizeof room, &peer), -1);
        assert_int_equal(errno, EAGAIN);
    }
}

/* The errno of connecting, sending and waiting for an answer; 0 if one came. */
static int try_it(int type, const char *to, uint16_t port)
{
    char byte;
    auto_close int fd = dial(type, to, port);

    if (fd < 0 || send(fd, "q", 1, MSG_NOSIGNAL) < 0 || recv(fd, &byte, 1, 0) < 0)
        return errno;
    return 0;
}

static void what_cannot_leave_fails_at_once(void **state)
{
    static const struct {
        int type;
        const char *to;
        uint16_t port;
        int want;
    } cases[] = {
        /* Without egress. */
        { SOCK_STREAM, "198.51.100.7", 443, ECONNREFUSED },
        { SOCK_STREAM, "2001:db8::7", 443, ECONNREFUSED },
        { SOCK_DGRAM, "192.0.2.53", 53, ECONNREFUSED },
        { SOCK_DGRAM, "2001:db8::53", 53, ECONNREFUSED },
        /* With it too: no UDP but DNS. */
        { SOCK_DGRAM, "198.51.100.7", 443, EPERM },
        { SOCK_DGRAM, "2001:db8::7", 443, EPERM },
        { SOCK_DGRAM, "::ffff:198.51.100.7", 443, EPERM },
        { SOCK_DGRAM, "224.0.0.251", 5353, EPERM },
        { SOCK_STREAM, "224.0.0.251", 80, ENETUNREACH },
        { SOCK_STREAM, "255.255.255.255", 80, ENETUNREACH },
        { SOCK_STREAM, "127.0.0.1", 80, ECONNREFUSED },
        { SOCK_STREAM, "0.0.0.0", 80, ECONNREFUSED },
        { SOCK_STREAM, "::1", 80, ECONNREFUSED },
        { SOCK_STREAM, NETWORK_OWN_IPV4, 80, ECONNREFUSED },
        { SOCK_STREAM, NETWORK_OWN_IPV6, 80, ECONNREFUSED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int got = try_it(cases[i].type, cases[i].to, cases[i].port);
        if (got != cases[i].want)
            fail_msg("%s port %u: %s", cases[i].to, cases[i].port, strerror(got));
    }
    open_egress();
    for (size_t i = 4; i < COUNT_OF(cases); i++)
        assert_int_equal(try_it(cases[i].type, cases[i].to, cases[i].port), cases[i].want);
}

static int serve_at(int type, const char *text, uint16_t port, bool reuse)
{
    socklen_t len;
    struct sockaddr_storage at = address(text, port, &len);
    const int on = 1;
    auto_close int fd = socket(at.ss_family, type | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (reuse)
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    if (bind(fd, (const struct sockaddr *)&at, len) < 0 || (type == SOCK_STREAM && listen(fd, 8) < 0))
        return -1;
    return take_fd(&fd);
}

static void guests_have_the_ports_that_they_want(void **state)
{
    (void)state;
    open_egress();
    auto_close int out_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    assert_true(out_fd >= 0);
    auto_close int accepted_fd = accept_on(DIVERT_TCP4);
    assert_true(accepted_fd >= 0);

    /* A server of a guest's own gets what is meant for it, and none of what is meant for the same port elsewhere. */
    auto_close int https_fd = serve_at(SOCK_STREAM, "0.0.0.0", 443, true);
    assert_true(https_fd >= 0);
    auto_close int inside_fd = dial(SOCK_STREAM, "127.0.0.1", 443);
    assert_true(inside_fd >= 0);
    auto_close int own_fd = dial(SOCK_STREAM, NETWORK_OWN_IPV4, 443);
    assert_true(own_fd >= 0);
    for (int i = 0; i < 2; i++) {
        auto_close int fd = accept4(https_fd, NULL, NULL, SOCK_CLOEXEC);
        assert_true(fd >= 0);
    }
    auto_close int again_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    assert_true(again_fd >= 0);
    auto_close int again_accepted_fd = accept_on(DIVERT_TCP4);
    assert_true(again_accepted_fd >= 0);

    auto_close int dns_fd = serve_at(SOCK_DGRAM, "0.0.0.0", 53, false);
    assert_true(dns_fd >= 0);
    auto_close int ask_fd = dial(SOCK_DGRAM, "192.0.2.53", 53);
    assert_int_equal(send(ask_fd, "q", 1, 0), 1);
    struct divert_peer peer;
    char byte;
    assert_int_equal(divert_receive(egress[DIVERT_UDP4], &byte, 1, &peer), 1);
    auto_close int local_fd = dial(SOCK_DGRAM, "127.0.0.1", 53);
    assert_int_equal(send(local_fd, "l", 1, 0), 1);
    assert_int_equal(recv(dns_fd, &byte, 1, MSG_DONTWAIT), 1);
    assert_int_equal(byte, 'l');
}

/* While egress is down, a server of a guest's own must not get what is meant for others. */
static void without_egress_a_guests_server_gets_nothing_of_it(void **state)
{
    (void)state;
    auto_close int any_fd = serve_at(SOCK_STREAM, "0.0.0.0", 443, true);
    assert_true(any_fd >= 0);
    assert_int_equal(try_it(SOCK_STREAM, "198.51.100.7", 443), ECONNREFUSED);
    auto_close int dns_fd = serve_at(SOCK_DGRAM, "0.0.0.0", 53, false);
    assert_true(dns_fd >= 0);
    assert_int_equal(try_it(SOCK_DGRAM, "192.0.2.53", 53), ECONNREFUSED);
}

static void a_guest_in_egresss_place_is_a_conflict_and_gets_nothing(void **state)
{
    struct err err;

    (void)state;
    {
        auto_close int taken_fd = serve_at(SOCK_STREAM, NETWORK_EGRESS_IPV4, NETWORK_EGRESS_PORT, true);
        assert_true(taken_fd >= 0);
        assert_int_equal(divert_open(DIVERT_TCP4, &err), -1);
        assert_int_equal(err.kind, ERR_CONFLICT);
        /* It lacks IP_TRANSPARENT, which needs a capability that guests do not have. */
        assert_int_equal(try_it(SOCK_STREAM, "198.51.100.7", 443), ECONNREFUSED);
    }
    open_egress();
    assert_int_equal(serve_at(SOCK_STREAM, NETWORK_EGRESS_IPV4, NETWORK_EGRESS_PORT, true), -1);
    assert_int_equal(errno, EADDRINUSE);
}

static void a_guest_that_connects_to_egress_itself_is_told_apart(void **state)
{
    static const char *const at[] = { NETWORK_EGRESS_IPV4, NETWORK_EGRESS_IPV6 };

    (void)state;
    open_egress();
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage seen;
        struct err err;
        auto_close int guest_fd = dial(SOCK_STREAM, at[i], NETWORK_EGRESS_PORT);
        assert_true(guest_fd >= 0);
        auto_close int fd = accept_on(i ? DIVERT_TCP6 : DIVERT_TCP4);
        assert_true(divert_destination(fd, &seen, &err));
        assert_true(divert_is_direct(&seen));
    }
}

/* Connections of an egress that was killed do not keep the next one from its port. */
static void egress_can_be_replaced_at_any_time(void **state)
{
    (void)state;
    open_egress();
    auto_close int guest_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    assert_true(guest_fd >= 0);
    int accepted_fd = accept_on(DIVERT_TCP4);
    auto_close int waiting_fd = dial(SOCK_STREAM, "198.51.100.8", 443);
    assert_true(waiting_fd >= 0);
    close_egress();
    fd_close(&accepted_fd);
    open_egress();
    auto_close int next_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    assert_true(next_fd >= 0);
    auto_close int next_accepted_fd = accept_on(DIVERT_TCP4);
    assert_true(next_accepted_fd >= 0);
}

/* A guest fills what egress does not read: this much and no more is egress's memory. */
static void a_connections_buffers_do_not_grow(void **state)
{
    static char bytes[1 << 20];
    struct timespec moment = { .tv_nsec = 1000000 };
    int buffer, waiting = 0;
    socklen_t len = sizeof buffer;

    (void)state;
    open_egress();
    auto_close int guest_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    auto_close int fd = accept_on(DIVERT_TCP4);
    for (int i = 0; i < 300; i++) { /* fast for a while, which makes the kernel give a connection more */
        assert_true(send(guest_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0);
        while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            continue;
        assert_int_equal(nanosleep(&moment, NULL), 0);
        while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            continue;
    }
    while (send(guest_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    assert_int_equal(ioctl(fd, FIONREAD, &waiting), 0);
    assert_in_range(waiting, 1, 2 * LIMIT_DIVERT_RECEIVE);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, &len), 0);
    assert_int_equal(buffer, 2 * LIMIT_DIVERT_RECEIVE);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &len), 0);
    assert_int_equal(buffer, 2 * LIMIT_DIVERT_SEND);
}

static void flows_cost_no_connection_tracking(void **state)
{
    (void)state;
    open_egress();
    for (int i = 0; i < 50; i++) {
        auto_close int fd = dial(SOCK_DGRAM, "192.0.2.53", 53);
        assert_int_equal(send(fd, "q", 1, 0), 1);
        auto_close int tcp_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
        assert_true(tcp_fd >= 0);
    }
    auto_close int fd = open("/proc/self/net/nf_conntrack", O_RDONLY | O_CLOEXEC);
    char text[256];
    if (fd >= 0) /* else this kernel has none at all */
        assert_int_equal(read(fd, text, sizeof text), 0);
}

static void without_ipv6_ipv4_works_and_ipv6_fails_at_once(void **state)
{
    struct err err;

    (void)state;
    egress[DIVERT_TCP4] = divert_open(DIVERT_TCP4, &err);
    auto_close int guest_fd = dial(SOCK_STREAM, "198.51.100.7", 443);
    assert_true(guest_fd >= 0);
    auto_close int fd = accept_on(DIVERT_TCP4);
    assert_true(fd >= 0);
    assert_int_equal(try_it(SOCK_STREAM, "2001:db8::7", 443), ENETUNREACH);
    assert_int_equal(try_it(SOCK_DGRAM, "2001:db8::53", 53), ENETUNREACH);
}

#define IN_NAMESPACE(function) cmocka_unit_test_setup_teardown(function, enter_namespace, leave_namespace)

int main(void)
{
    if (geteuid() != 0) {
        (void)fprintf(stderr, "needs root\n");
        return 77;
    }
    const struct CMUnitTest cases[] = {
        IN_NAMESPACE(each_connection_reaches_egress_with_the_address_it_was_meant_for),
        IN_NAMESPACE(an_answer_comes_from_the_server_that_was_asked),
        IN_NAMESPACE(what_cannot_leave_fails_at_once),
        IN_NAMESPACE(guests_have_the_ports_that_they_want),
        IN_NAMESPACE(without_egress_a_guests_server_gets_nothing_of_it),
        IN_NAMESPACE(a_guest_in_egresss_place_is_a_conflict_and_gets_nothing),
        IN_NAMESPACE(a_guest_that_connects_to_egress_itself_is_told_apart),
        IN_NAMESPACE(egress_can_be_replaced_at_any_time),
        IN_NAMESPACE(a_connections_buffers_do_not_grow),
        IN_NAMESPACE(flows_cost_no_connection_tracking),
        cmocka_unit_test_setup_teardown(without_ipv6_ipv4_works_and_ipv6_fails_at_once, enter_ipv4_namespace,
                                        leave_namespace),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
