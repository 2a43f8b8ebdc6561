/*
 * rig.h - egress with everything around it played by the test: guests, the outside, keeper and front.
 *
 * A sandbox's listening sockets are on 127.0.0.1, and rig.to is where the next connection says it wanted to go. The
 * operator allows 127.0.0.0/8, which is where the outside is.
 */
#ifndef TESTS_UNIT_EGRESS_RIG_H
#define TESTS_UNIT_EGRESS_RIG_H

#include <netinet/tcp.h>
#include <stdio.h>

#include "../io/pump.h"
#include "base/limits.h"
#include "base/pack.h"
#include "egress/egress.h"
#include "egress/flows.h"
#include "fake_resolver.h"

enum { RIG_REFUSALS = 64 };

struct rig {
    struct loop *loop;
    struct egress *egress;
    struct egress_config config;
    struct net_range ranges;
    int outside_fd; /* listens */
    struct net_address to;
    uint16_t port; /* of the outside */
    bool not_diverted, is_host;
    struct net_address host; /* one of the machine's addresses */
    bool front_is_slow, has_no_route;
    uint16_t guest_port; /* of the sandbox's socket */
    /* what was reported */
    uint64_t bytes_in, bytes_out;
    uint32_t made, refused, open, refusal_count;
    unsigned messages;
    char last_id[LIMIT_ID_BYTES];
    struct {
        unsigned why, count;
        uint16_t port;
        char text[LIMIT_FLOWS_TEXT_BYTES + 1];
    } refusals[RIG_REFUSALS];
};

static struct rig *rig_current_;

static const struct net_policy rig_open = { .internet = true };

static inline struct net_address rig_address(const char *text)
{
    struct net_address address;

    assert_true(net_address_parse(str_from(text), &address));
    return address;
}

static inline struct net_range rig_range(const char *text)
{
    struct net_range range;

    assert_true(net_range_parse(str_from(text), &range));
    return range;
}

static inline bool rig_original_(int fd, struct net_address *out, uint16_t *out_port)
{
    (void)fd;
    *out = rig_current_->to;
    *out_port = rig_current_->port;
    return !rig_current_->not_diverted;
}

static inline bool rig_is_host_(const struct net_address *address)
{
    return rig_current_->is_host || net_address_eq(address, &rig_current_->host);
}

static inline bool rig_has_route_(const struct net_address *address)
{
    (void)address;
    return !rig_current_->has_no_route;
}

static inline void rig_on_record_(void *context, const struct flows_record *record)
{
    struct rig *rig = context;

    memcpy(rig->last_id, record->id, sizeof rig->last_id);
    rig->bytes_in += record->bytes_in;
    rig->bytes_out += record->bytes_out;
    rig->made += record->made;
    rig->refused += record->refused;
    rig->open = record->open;
    for (uint32_t i = 0; i < record->refusal_count && rig->refusal_count < RIG_REFUSALS; i++) {
        const struct flows_refusal *refusal = &record->refusals[i];
        rig->refusals[rig->refusal_count].why = refusal->why;
        rig->refusals[rig->refusal_count].count = refusal->count;
        rig->refusals[rig->refusal_count].port = refusal->port;
        (void)snprintf(rig->refusals[rig->refusal_count].text, LIMIT_FLOWS_TEXT_BYTES + 1, "%.*s",
                       STR_ARG(refusal->text));
        rig->refusal_count++;
    }
}

static inline bool rig_may_report_(void *context)
{
    return !((struct rig *)context)->front_is_slow;
}

static inline void rig_on_report_(void *context, struct str flows)
{
    struct rig *rig = context;
    struct err err;

    rig->messages++;
    assert_true(flows_unpack(flows, rig_on_record_, rig, &err));
}

static inline int rig_listen_(int type, uint16_t *out_port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    if (type == SOCK_DGRAM) /* as divert_open() does */
        assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &(int){ 1 }, sizeof(int)), 0);
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 1024), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    *out_port = ntohs(at.sin_port);
    return fd;
}

static inline void rig_begin(struct rig *rig, const struct egress_config *more)
{
    *rig = (struct rig){ .ranges = rig_range("127.0.0.0/8"), .to = rig_address("127.0.0.1") };
    rig_current_ = rig;
    (void)signal(SIGPIPE, SIG_IGN);
    hand_clock_start();
    hand_clock_stand();
    rig->loop = loop_new();
    rig->outside_fd = rig_listen_(SOCK_STREAM, &rig->port);
    if (more)
        rig->config = *more;
    rig->config.resolver = fake_resolver;
    rig->config.loop = rig->loop;
    rig->config.ranges = (struct net_operator){ .allow_count = 1, .allow = &rig->ranges };
    if (!rig->config.flows_max)
        rig->config.flows_max = 10000;
    rig->config.report = rig_on_report_;
    rig->config.may_report = rig_may_report_;
    rig->config.context = rig;
    rig->config.original = rig_original_;
    rig->config.is_host = rig_is_host_;
    rig->config.has_route = rig_has_route_;
    rig->egress = egress_new(&rig->config);
}

static inline void rig_end(struct rig *rig)
{
    egress_free(rig->egress);
    pump_some(rig->loop);
    loop_free(rig->loop);
    (void)close(rig->outside_fd);
    hand_clock_end();
}

/* A sandbox with a socket for TCP over IPv4; rig->guest_port is its port. */
static inline void rig_network(struct rig *rig, const char *id)
{
    egress_network(rig->egress, id,
                   (int[]){ [DIVERT_TCP4] = rig_listen_(SOCK_STREAM, &rig->guest_port),
                            [DIVERT_TCP6] = -1,
                            [DIVERT_UDP4] = -1,
                            [DIVERT_UDP6] = -1 });
}

/* As keeper tells of a sandbox whose sockets it cannot make for now. */
static inline void rig_without_sockets(struct rig *rig, const char *id)
{
    egress_network(rig->egress, id, (int[DIVERT_KINDS]){ -1, -1, -1, -1 });
}

static inline void rig_network_dns(struct rig *rig, const char *id, uint16_t *out_udp_port)
{
    egress_network(rig->egress, id,
                   (int[]){ [DIVERT_TCP4] = rig_listen_(SOCK_STREAM, &rig->guest_port),
                            [DIVERT_TCP6] = -1,
                            [DIVERT_UDP4] = rig_listen_(SOCK_DGRAM, out_udp_port),
                            [DIVERT_UDP6] = -1 });
}

static inline void rig_policy(struct rig *rig, const char *id, const struct net_policy *policy)
{
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct err err;

    net_policy_pack(&packed, policy);
    if (!egress_policy(rig->egress, id, buf_str(&packed), &err))
        fail_msg("%s", err_text(&err));
}

static inline void rig_sandbox(struct rig *rig, const char *id)
{
    rig_network(rig, id);
    rig_policy(rig, id, &rig_open);
}

/* A guest's connection; its handshake is done by the kernel. */
static inline struct peer rig_guest(struct rig *rig)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(rig->guest_port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    set_nonblocking(fd);
    return peer_make(fd);
}

/* So many connections of guests to where nothing listens; each is reset. */
static inline void rig_lose(struct rig *rig, unsigned count)
{
    struct peer guests[LIMIT_EGRESS_INSIDE];

    for (unsigned done = 0; done < count; done += COUNT_OF(guests)) {
        for (size_t i = 0; i < COUNT_OF(guests); i++)
            guests[i] = rig_guest(rig);
        for (size_t i = 0; i < COUNT_OF(guests); i++) {
            PUMP_UNTIL(rig->loop, peer_is_closed(&guests[i]));
            assert_true(guests[i].was_reset);
            peer_done(&guests[i]);
        }
    }
}

static inline bool rig_is_dialed(struct rig *rig)
{
    struct pollfd waiting = { .fd = rig->outside_fd, .events = POLLIN };

    return poll(&waiting, 1, 0) == 1;
}

/* Without this an answer after a session ticket waits 40 ms of real time, and a test turns its loop faster than that. */
static inline void rig_no_delay(int fd)
{
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), 0);
}

/* The outside's end of the next connection. */
static inline struct peer rig_accept(struct rig *rig)
{
    PUMP_UNTIL(rig->loop, rig_is_dialed(rig));
    int fd = accept4(rig->outside_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    rig_no_delay(fd);
    return peer_make(fd);
}

/* Listens at this address and the outside's port, and its queue is full: a connection is neither accepted nor refused. */
struct rig_silent {
    int fd, filler;
};

static inline struct rig_silent rig_silent(struct rig *rig, const char *address)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(rig->port) };
    struct rig_silent silent = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                                 .filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };

    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    assert_int_equal(bind(silent.fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(silent.fd, 0), 0);
    assert_int_equal(connect(silent.filler, (struct sockaddr *)&at, sizeof at), 0);
    return silent;
}

static inline void rig_silent_done(struct rig_silent *silent)
{
    (void)close(silent->fd);
    (void)close(silent->filler);
}

#endif
