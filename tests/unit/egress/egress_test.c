#include "egress/egress.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/limits.h"
#include "base/network.h"
#include "egress/sockets.h"
#include "rig.h"

static struct rig rig;

static void a_guest_reaches_the_outside_and_both_ways_are_counted(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    peer_say(&guest, STR("hello"));
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "hello"));
    peer_say(&outside, STR("good day"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "good day"));
    PUMP_UNTIL(rig.loop, rig.bytes_in == 8);
    assert_string_equal(rig.last_id, "one");
    assert_int_equal(rig.bytes_out, 5);
    assert_int_equal(rig.made, 1);
    assert_int_equal(rig.open, 1);
    assert_int_equal(rig.refused, 0);
    peer_done(&guest);
    PUMP_UNTIL(rig.loop, peer_is_closed(&outside));
    assert_true(outside.ended);
    peer_done(&outside);
    PUMP_UNTIL(rig.loop, rig.open == 0);
    rig_end(&rig);
}

static void nothing_is_accepted_before_both_sockets_and_policy_are_there(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_network(&rig, "one");
    struct peer first = rig_guest(&rig);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    rig_policy(&rig, "one", &rig_open);
    struct peer outside = rig_accept(&rig);
    peer_done(&outside);

    rig_policy(&rig, "two", &rig_open);
    rig_network(&rig, "two");
    struct peer second = rig_guest(&rig);
    outside = rig_accept(&rig);
    peer_done(&outside);
    peer_done(&first);
    peer_done(&second);
    rig_end(&rig);
}

static void without_a_policy_everything_is_refused_after_a_while(void **state)
{
    uint16_t udp_port;
    struct err err;

    (void)state;
    rig_begin(&rig, NULL);
    rig_network_dns(&rig, "one", &udp_port);
    assert_false(egress_policy(rig.egress, "one", STR("nonsense"), &err));
    struct peer guest = rig_guest(&rig);
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest)); /* it may still come */
    hand_clock_add(LIMIT_EGRESS_POLICY_MS);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    assert_false(rig_is_dialed(&rig));
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, FLOWS_NO_POLICY);
    assert_non_null(strstr(rig.refusals[0].text, "network rules are not in force yet"));
    peer_done(&guest);

    rig_policy(&rig, "one", &rig_open);
    guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    peer_done(&outside);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_policy_without_sockets_is_forgotten_after_a_while(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_policy(&rig, "one", &rig_open);
    hand_clock_add(LIMIT_EGRESS_EARLY_MS);
    pump_some(rig.loop);
    rig_network(&rig, "one");
    struct peer guest = rig_guest(&rig);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    peer_done(&guest);
    rig_end(&rig);
}

static void the_policy_of_a_sandbox_whose_sockets_come_late_is_kept(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_policy(&rig, "one", &rig_open);
    rig_without_sockets(&rig, "one");
    rig_without_sockets(&rig, "two"); /* before its policy */
    rig_policy(&rig, "two", &rig_open);
    hand_clock_add(2 * LIMIT_EGRESS_EARLY_MS);
    pump_some(rig.loop);
    for (int i = 0; i < 2; i++) {
        rig_network(&rig, i ? "two" : "one");
        struct peer guest = rig_guest(&rig);
        struct peer outside = rig_accept(&rig);
        peer_done(&guest);
        peer_done(&outside);
    }
    rig_end(&rig);
}

static void policies_without_sockets_are_bounded(void **state)
{
    char id[LIMIT_ID_BYTES];

    (void)state;
    rig_begin(&rig, NULL);
    for (int i = 0; i <= LIMIT_SANDBOXES; i++) {
        (void)snprintf(id, sizeof id, "s%d", i);
        rig_policy(&rig, id, &rig_open);
    }
    rig_network(&rig, "s0"); /* the oldest has gone */
    struct peer guest = rig_guest(&rig);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    peer_done(&guest);
    rig_network(&rig, "s1");
    guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_policy_that_does_not_decode_changes_nothing(void **state)
{
    struct err err;

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    assert_false(egress_policy(rig.egress, "one", STR("nonsense"), &err));
    assert_int_equal(err.kind, ERR_INVALID);
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void check_refused(unsigned why, const char *text)
{
    unsigned before = rig.refusal_count;
    struct peer guest = rig_guest(&rig);

    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    assert_false(rig_is_dialed(&rig));
    PUMP_UNTIL(rig.loop, rig.refusal_count == before + 1);
    assert_int_equal(rig.refusals[before].why, why);
    if (!strstr(rig.refusals[before].text, text))
        fail_msg("'%s' does not contain '%s'", rig.refusals[before].text, text);
    peer_done(&guest);
}

static void a_refused_connection_is_reset_at_once_and_reported_with_its_rule(void **state)
{
    struct net_range denied = rig_range("203.0.113.0/24");

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    uint16_t port = rig.port;
    rig.to = rig_address("10.1.2.3");
    check_refused(NET_RULE_NOT_PUBLIC, "connection to 10.1.2.3 port");
    rig.to = rig_address("fe80::1");
    check_refused(NET_RULE_NOT_PUBLIC, "fe80::1");
    rig.to = rig_address("203.0.113.7");
    rig.is_host = true;
    check_refused(NET_RULE_HOST, "the machine that Cloister runs on");
    rig.is_host = false;
    rig.port = 25;
    check_refused(NET_RULE_MAIL_PORT, "mail");
    rig.port = port;
    rig_policy(&rig, "one", &(struct net_policy){ .internet = true, .deny_count = 1, .deny = &denied });
    check_refused(NET_RULE_DENY_RANGE, "denyOut has 203.0.113.0/24");
    rig_policy(&rig, "one", &(struct net_policy){ .internet = false });
    check_refused(NET_RULE_INTERNET_OFF, "no internet access");
    rig.not_diverted = true;
    check_refused(FLOWS_NOT_DIVERTED, "Cloister's own");
    assert_int_equal(rig.refused, 7);
    assert_int_equal(rig.made, 0);
    rig_end(&rig);
}

static void an_address_that_leads_back_to_this_machine_is_refused(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    rig.host = rig_address("203.0.113.9");
    rig.to = rig_address("203.0.113.9");
    check_refused(NET_RULE_HOST, "an address of the machine that Cloister runs on");
    rig.to = rig_address("64:ff9b::203.0.113.9");
    check_refused(NET_RULE_HOST, "an address of the machine that Cloister runs on");
    rig_end(&rig);
}

static void refusals_that_are_alike_are_one_record_and_the_rest_is_counted(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    for (int i = 0; i < 100; i++) {
        char address[32];
        (void)snprintf(address, sizeof address, "10.0.0.%d", i / 2);
        rig.to = rig_address(address);
        struct peer guest = rig_guest(&rig);
        PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
        peer_done(&guest);
    }
    PUMP_UNTIL(rig.loop, rig.refused == 100);
    assert_int_equal(rig.messages, 1);
    assert_int_equal(rig.refusal_count, LIMIT_FLOWS_REFUSALS);
    assert_int_equal(rig.refusals[0].count, 2);
    rig_end(&rig);
}

static void a_front_that_is_slow_gets_the_sums_later(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    rig.front_is_slow = true;
    rig.to = rig_address("10.0.0.1");
    for (int i = 0; i < 3; i++) {
        struct peer guest = rig_guest(&rig);
        PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
        peer_done(&guest);
        hand_clock_add(3000);
        pump_some(rig.loop);
    }
    assert_int_equal(rig.messages, 0);
    rig.front_is_slow = false;
    PUMP_UNTIL(rig.loop, rig.messages == 1);
    assert_int_equal(rig.refused, 3);
    assert_int_equal(rig.refusals[0].count, 3);
    rig_end(&rig);
}

static void a_closed_port_outside_is_a_reset_inside(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    (void)close(rig.outside_fd);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_reset_passes_through_both_ways(void **state)
{
    const struct linger none = { .l_onoff = 1 };

    (void)state;
    for (int side = 0; side < 2; side++) {
        rig_begin(&rig, NULL);
        rig_sandbox(&rig, "one");
        struct peer guest = rig_guest(&rig);
        struct peer outside = rig_accept(&rig);
        pump_some(rig.loop);
        struct peer *gone = side ? &guest : &outside, *other = side ? &outside : &guest;
        assert_int_equal(setsockopt(gone->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
        peer_close(gone);
        PUMP_UNTIL(rig.loop, peer_is_closed(other));
        assert_true(other->was_reset);
        peer_done(&guest);
        peer_done(&outside);
        rig_end(&rig);
    }
}

/* An egress with one sandbox, in a process of its own that runs until it is killed. */
static no_return void be_egress(int guest_fd, uint16_t outside_port)
{
    rig_begin(&rig, NULL);
    (void)close(rig.outside_fd);
    rig.port = outside_port;
    egress_network(rig.egress, "one",
                   (int[]){ [DIVERT_TCP4] = guest_fd, [DIVERT_TCP6] = -1, [DIVERT_UDP4] = -1, [DIVERT_UDP6] = -1 });
    rig_policy(&rig, "one", &rig_open);
    for (;;)
        pump_turn(rig.loop);
}

static void a_killed_egress_does_not_make_a_cut_transfer_look_complete(void **state)
{
    struct rig plain = { 0 };
    int guest_fd = rig_listen_(SOCK_STREAM, &plain.guest_port), status;

    (void)state;
    plain.outside_fd = rig_listen_(SOCK_STREAM, &plain.port);
    pid_t child = fork();
    if (child == 0)
        be_egress(guest_fd, plain.port);
    (void)close(guest_fd);
    struct peer guest = rig_guest(&plain);
    struct pollfd waiting = { .fd = plain.outside_fd, .events = POLLIN };
    assert_int_equal(poll(&waiting, 1, 10000), 1);
    struct peer outside = rig_accept(&plain);
    peer_say(&outside, STR("half of"));
    unsigned waited_ms = 0; /* the bound only ends a test that hangs */
    for (; waited_ms < 20000 && !peer_heard(&guest, "half of"); waited_ms++)
        (void)usleep(1000);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (waited_ms == 20000)
        fail_msg("what the outside said has not arrived within 20 seconds");
    assert_true(peer_is_closed(&guest) && guest.was_reset);
    assert_true(peer_is_closed(&outside) && outside.was_reset);
    peer_done(&guest);
    peer_done(&outside);
    (void)close(plain.outside_fd);
}

static void a_guest_that_has_sent_all_still_gets_its_answer(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    peer_say(&guest, STR("question"));
    shutdown(guest.fd, SHUT_WR);
    struct peer outside = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&outside));
    assert_true(outside.ended && peer_heard(&outside, "question"));
    hand_clock_add(LIMIT_EGRESS_HALF_MS - 1000);
    pump_some(rig.loop);
    peer_say(&outside, STR("answer"));
    peer_close(&outside);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.ended && peer_heard(&guest, "answer"));
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_connection_that_is_quiet_for_hours_stays_and_one_without_end_does_not(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_IDLE_MS - 60000);
    pump_some(rig.loop);
    peer_say(&guest, STR("still here"));
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "still here"));
    hand_clock_add(LIMIT_EGRESS_IDLE_MS - 60000);
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    hand_clock_add(61000);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&outside));
    assert_true(guest.was_reset && outside.was_reset);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_new_policy_cuts_what_it_does_not_allow_and_nothing_else(void **state)
{
    struct net_range denied = rig_range("127.0.0.1/32");

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    rig.to = rig_address("127.0.0.2");
    struct peer other = rig_guest(&rig);
    pump_some(rig.loop);
    rig_policy(&rig, "one", &rig_open);
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    rig_policy(&rig, "one", &(struct net_policy){ .internet = true, .deny_count = 1, .deny = &denied });
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&outside));
    assert_true(guest.was_reset && outside.was_reset);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, NET_RULE_DENY_RANGE);
    peer_done(&guest);
    peer_done(&outside);
    peer_done(&other);
    rig_end(&rig);
}

static void the_end_of_a_sandbox_closes_all_of_it_and_only_of_it(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    rig_sandbox(&rig, "two");
    struct peer guest2 = rig_guest(&rig);
    struct peer outside2 = rig_accept(&rig);
    pump_some(rig.loop);
    peer_say(&guest, STR("last words"));
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "last words"));
    egress_exited(rig.egress, "one");
    assert_int_equal(rig.bytes_out, 10); /* said at once */
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&outside));
    assert_true(guest.was_reset && outside.was_reset);
    peer_say(&guest2, STR("and I"));
    PUMP_UNTIL(rig.loop, peer_heard(&outside2, "and I"));
    egress_exited(rig.egress, "unknown");
    peer_done(&guest);
    peer_done(&outside);
    peer_done(&guest2);
    peer_done(&outside2);
    rig_end(&rig);
}

/* How many of the guests' connections are still open. */
static unsigned count_open(struct peer *guests, unsigned count)
{
    unsigned open = 0;

    for (unsigned i = 0; i < count; i++)
        open += !peer_is_closed(&guests[i]);
    return open;
}

static void one_sandbox_cannot_take_all_connections(void **state)
{
    enum { ALL = 30, TRIES = 50 };
    struct peer guests[TRIES], others[TRIES];

    (void)state;
    rig_begin(&rig, &(struct egress_config){ .flows_max = ALL });
    rig_sandbox(&rig, "one");
    for (int i = 0; i < TRIES; i++)
        guests[i] = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, count_open(guests, TRIES) == ALL / 2);
    PUMP_UNTIL(rig.loop, rig.refused == TRIES - ALL / 2);
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_MANY_OF_ALL);
    assert_non_null(strstr(rig.refusals[0].text, "together have 30 open connections at most"));
    rig_sandbox(&rig, "two");
    for (int i = 0; i < TRIES; i++)
        others[i] = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, rig.refused == 2 * TRIES - ALL / 2 - 8);
    assert_int_equal(count_open(others, TRIES), 8);
    assert_int_equal(count_open(guests, TRIES), ALL / 2);
    for (int i = 0; i < TRIES; i++)
        peer_done(&guests[i]);
    /* What has become free can be used again. */
    pump_some(rig.loop);
    for (int i = 0; i < TRIES; i++)
        peer_done(&others[i]);
    rig_end(&rig);
}

static void connections_leave_descriptors_for_all_else(void **state)
{
    struct rlimit before, few;
    const rlim_t pipes = 2 * LIMIT_SPLICE_PIPES, own = 20;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    for (rlim_t limit = 256; limit <= MIN(before.rlim_max, (rlim_t)65536); limit += 1000) {
        uint32_t sandboxes = limit % 2000 < 1000 ? 10 : LIMIT_SANDBOXES;
        few.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        rlim_t all = (rlim_t)DIVERT_KINDS * sandboxes + pipes + LIMIT_DNS_ASKING + own;
        rlim_t flows = egress_flows_max(sandboxes);
        if (all + 200 < limit) {
            assert_true(all + 2 * flows <= limit);
            assert_true(all + 2 * flows >= limit - 50); /* and leave none unused */
        } else {
            assert_in_range(flows, LIMIT_EGRESS_FLOWS_LEAST, 100);
        }
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void the_cap_of_one_sandbox_is_told_even_when_it_has_fewer_by_then(void **state)
{
    static struct peer guests[LIMIT_EGRESS_FLOWS + 1];
    struct rlimit descriptors;

    (void)state;
    /* Three for each connection: the guest's, and both of egress. */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &descriptors), 0);
    descriptors.rlim_cur = MIN(descriptors.rlim_max, (rlim_t)4096);
    if (descriptors.rlim_cur < 4096 || setrlimit(RLIMIT_NOFILE, &descriptors) < 0)
        skip();
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    for (int i = 0; i <= LIMIT_EGRESS_FLOWS; i++) {
        guests[i] = rig_guest(&rig);
        pump_turn(rig.loop);
    }
    rig.front_is_slow = true;
    PUMP_UNTIL(rig.loop, peer_is_closed(&guests[LIMIT_EGRESS_FLOWS]));
    for (int i = 0; i <= LIMIT_EGRESS_FLOWS; i++)
        peer_done(&guests[i]);
    pump_some(rig.loop);
    rig.front_is_slow = false;
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_MANY);
    assert_non_null(strstr(rig.refusals[0].text, "a sandbox has 1024 open connections at most"));
    rig_end(&rig);
}

/* Each may keep a port of the machine for a minute. */
static void a_sandbox_may_not_open_connections_without_end(void **state)
{
    enum { MORE = 1024 };

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "two");
    uint16_t port_of_two = rig.guest_port;
    rig_sandbox(&rig, "one");
    uint64_t began_us = hand_clock_mono();
    rig.to = rig_address("127.0.0.9");
    rig_lose(&rig, LIMIT_EGRESS_NEW_BURST + MORE);
    rig.to = rig_address("127.0.0.1");
    uint64_t refilled = (hand_clock_mono() - began_us) * LIMIT_EGRESS_NEW_S / 1000000;
    assert_true(refilled + 1 < MORE);
    PUMP_UNTIL(rig.loop, rig.refused >= MORE - refilled - 1);
    assert_true(rig.refused <= MORE);
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_FAST);
    assert_non_null(strstr(rig.refusals[0].text, "100 connections per second, after 4096 at once"));

    uint16_t port_of_one = rig.guest_port;
    rig.guest_port = port_of_two; /* the others go on… */
    struct peer guest = rig_guest(&rig), outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    hand_clock_add(1000); /* …and so does this one, a second later */
    rig.guest_port = port_of_one;
    guest = rig_guest(&rig);
    outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

/* Connections of the sandbox at rig.guest_port, none of them diverted, until it has no credit: some of the last are left. */
struct storm {
    struct peer guests[64];
    unsigned taken; /* of them, and of all before */
};

static unsigned count_reset(struct storm *storm)
{
    unsigned count = 0;

    for (size_t i = 0; i < COUNT_OF(storm->guests); i++)
        count += peer_is_closed(&storm->guests[i]);
    return count;
}

static void storm_end(struct storm *storm)
{
    for (size_t i = 0; i < COUNT_OF(storm->guests); i++)
        peer_done(&storm->guests[i]);
}

static struct storm storm_until_paused(void)
{
    struct storm storm = { 0 };

    rig.not_diverted = true;
    for (;;) {
        for (size_t i = 0; i < COUNT_OF(storm.guests); i++)
            storm.guests[i] = rig_guest(&rig);
        pump_some(rig.loop); /* shorter than a pause */
        unsigned taken = count_reset(&storm);
        storm.taken += taken;
        rig.not_diverted = taken == COUNT_OF(storm.guests);
        if (!rig.not_diverted)
            return storm;
        storm_end(&storm);
        assert_true(storm.taken < 2 * LIMIT_EGRESS_TAKEN_BURST);
    }
}

static void check_paused(struct storm *storm)
{
    unsigned taken = count_reset(storm);

    assert_in_range(taken, 0, COUNT_OF(storm->guests) - 1);
    pump_some(rig.loop);
    assert_int_equal(count_reset(storm), taken);
}

/* The kernel has accepted them all, so that they cost egress something whatever becomes of them. */
static void a_storm_of_connections_is_taken_in_at_a_rate_and_others_do_not_wait(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "two");
    uint16_t port_of_two = rig.guest_port;
    rig_sandbox(&rig, "one");
    uint64_t began_us = hand_clock_mono();
    struct storm storm = storm_until_paused();
    uint64_t credit = LIMIT_EGRESS_TAKEN_BURST + (hand_clock_mono() - began_us) * LIMIT_EGRESS_TAKEN_S / 1000000;
    assert_in_range(storm.taken, LIMIT_EGRESS_TAKEN_BURST, credit + 1);

    rig.guest_port = port_of_two;
    struct peer guest = rig_guest(&rig), outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    check_paused(&storm);
    /* What has waited is served, and the log says why it had to. */
    storm.taken -= count_reset(&storm);
    rig.not_diverted = true;
    hand_clock_add(LIMIT_EGRESS_PAUSE_MS);
    PUMP_UNTIL(rig.loop, count_reset(&storm) == COUNT_OF(storm.guests));
    PUMP_UNTIL(rig.loop, rig.refused == storm.taken + COUNT_OF(storm.guests)); /* to wait is not to be refused */
    uint32_t paused = 0;
    while (rig.refusals[paused].why != FLOWS_PAUSED && paused < rig.refusal_count)
        paused++;
    assert_in_range(paused, 1, rig.refusal_count - 1);
    assert_string_equal(
        rig.refusals[paused].text,
        "connections and DNS questions wait: of one sandbox 500 per second are taken, after 8192 at once");
    storm_end(&storm);
    rig_end(&rig);
}

static void a_sandbox_may_end_or_get_new_sockets_while_it_is_paused(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    for (int i = 0; i < 2; i++) {
        rig_sandbox(&rig, "one");
        struct storm storm = storm_until_paused();
        if (i == 0)
            egress_exited(rig.egress, "one");
        rig_sandbox(&rig, "one"); /* after its end it is another one, with all credit */
        struct peer guest = rig_guest(&rig), outside = rig_accept(&rig);
        hand_clock_add(LIMIT_EGRESS_PAUSE_MS);
        pump_some(rig.loop);
        assert_int_equal(count_reset(&storm), COUNT_OF(storm.guests)); /* its socket is gone */
        peer_done(&guest);
        peer_done(&outside);
        storm_end(&storm);
    }
    rig_sandbox(&rig, "two");
    struct storm storm = storm_until_paused();
    rig_end(&rig); /* egress ends; the next one has all credit, too */
    storm_end(&storm);
}

/* So many are accepted in a turn, and what else there is is served between them. */
static void one_sandbox_has_a_bounded_part_of_a_turn(void **state)
{
    struct storm storm = { 0 };

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    pump_some(rig.loop);
    rig.not_diverted = true;
    for (size_t i = 0; i < COUNT_OF(storm.guests); i++)
        storm.guests[i] = rig_guest(&rig);
    loop_stop_soon(rig.loop); /* a turn */
    loop_run(rig.loop);
    assert_in_range(count_reset(&storm), 1, LIMIT_EGRESS_TURN);
    PUMP_UNTIL(rig.loop, count_reset(&storm) == COUNT_OF(storm.guests));
    storm_end(&storm);
    rig_end(&rig);
}

/* What is on its way to a guest that does not read, with an outside that sends for ever. */
static size_t fill(struct peer *outside)
{
    static char bytes[65536];
    size_t sent = 0;
    unsigned quiet = 0;

    while (quiet < 50) {
        ssize_t n = send(outside->fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        quiet = n > 0 ? 0 : quiet + 1;
        pump_turn(rig.loop);
    }
    return sent;
}

static void many_connections_have_small_buffers(void **state)
{
    enum { COUNT = LIMIT_EGRESS_LARGE + 1 };
    struct peer guests[COUNT], outsides[COUNT];
    const int least = 4096;

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    for (int i = 0; i < COUNT; i++) {
        guests[i] = rig_guest(&rig);
        outsides[i] = rig_accept(&rig);
        /* Not the test's own ends. */
        assert_int_equal(setsockopt(guests[i].fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
        assert_int_equal(setsockopt(outsides[i].fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    }
    size_t last = fill(&outsides[COUNT - 1]), first = fill(&outsides[0]);
    assert_true(last < first && last < 512 * 1024);
    for (int i = 0; i < COUNT; i++) {
        peer_done(&guests[i]);
        peer_done(&outsides[i]);
    }
    rig_end(&rig);
}

static void all_connections_together_have_little_memory(void **state)
{
    enum { BUFFERS = 4, DOUBLED = 2 };
    uint64_t bytes = 0;
    int before = INT_MAX;

    (void)state;
    for (uint32_t i = 1; i <= LIMIT_EGRESS_FLOWS; i++) {
        int each = socket_budget(i);
        assert_true((each == 0) == (i <= LIMIT_EGRESS_LARGE));
        assert_true(each == 0 || each <= before);
        before = each ? each : before;
        bytes += (uint64_t)each * BUFFERS * DOUBLED;
    }
    assert_in_range(bytes, 1 << 20, 90 << 20);
}

/* Either way, and both of egress's sockets. */
static void the_next_of_many_connections_has_smaller_buffers(void **state)
{
    enum { COUNT = 129 };
    struct peer guests[COUNT], outsides[COUNT];
    const int least = 4096;

    (void)state;
    rig_begin(&rig, NULL);
    rig_sandbox(&rig, "one");
    for (int i = 0; i < COUNT; i++) {
        guests[i] = rig_guest(&rig);
        outsides[i] = rig_accept(&rig);
        assert_int_equal(setsockopt(guests[i].fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
        assert_int_equal(setsockopt(guests[i].fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
        assert_int_equal(setsockopt(outsides[i].fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
        assert_int_equal(setsockopt(outsides[i].fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    }
    size_t in = fill(&outsides[COUNT - 1]), in_before = fill(&outsides[LIMIT_EGRESS_LARGE]);
    size_t out = fill(&guests[COUNT - 1]), out_before = fill(&guests[LIMIT_EGRESS_LARGE]);
    assert_true(in < in_before && in < 192 * 1024);
    assert_true(out < out_before && out < 192 * 1024);
    for (int i = 0; i < COUNT; i++) {
        peer_done(&guests[i]);
        peer_done(&outsides[i]);
    }
    rig_end(&rig);
}

static void bandwidth_is_limited_to_the_rate(void **state)
{
    size_t size = 4 << 20, sent = 0;
    char *bytes = calloc(1, size);

    (void)state;
    assert_non_null(bytes);
    rig_begin(&rig, &(struct egress_config){ .bytes_per_s = 1 << 20 });
    rig_sandbox(&rig, "one");
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    uint64_t began_ms = loop_now_ms(rig.loop);
    PUMP_UNTIL(rig.loop, ({
                   ssize_t n = send(outside.fd, bytes, MIN(size - sent, (size_t)65536), MSG_NOSIGNAL);
                   sent += n > 0 ? (size_t)n : 0;
                   peer_listen(&guest) && guest.heard.len == size;
               }));
    /* Each turn is a millisecond of the clock. The burst is a quarter of a second, the last pieces may be a debt. */
    uint64_t took_ms = loop_now_ms(rig.loop) - began_ms;
    assert_in_range(took_ms, 2500, 4500);
    free(bytes);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void the_kernel_knows_addresses_of_this_machine(void **state)
{
    struct net_address address = rig_address("127.0.0.1");

    (void)state;
    struct host_probe probe = host_probe_open();
    assert_true(host_probe_is_local(&probe, &address));
    address = rig_address("203.0.113.77");
    assert_false(host_probe_is_local(&probe, &address));
    address = rig_address("127.0.0.1");
    assert_true(host_probe_is_local(&probe, &address));
    assert_true(host_probe_has_route(&probe, &address));
    host_probe_close(&probe);
    host_probe_close(&probe);
    assert_false(host_probe_has_route(&probe, &address));
    assert_true(host_probe_is_local(&probe, &address)); /* nobody can be asked */
}

static void a_connection_leads_to_its_own_address_unless_that_is_our_socket(void **state)
{
    struct sockaddr_in ours = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ends[2];
    struct net_address to, here = rig_address("127.0.0.1");
    uint16_t port;

    (void)state;
    tcp_pair(ends);
    assert_true(socket_original(ends[1], &to, &port));
    assert_true(net_address_eq(&to, &here) && port > 0);
    assert_int_equal(inet_pton(AF_INET, NETWORK_EGRESS_IPV4, &ours.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&ours, sizeof ours), 0);
    assert_false(socket_original(fd, &to, &port));
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_guest_reaches_the_outside_and_both_ways_are_counted),
        CASE(nothing_is_accepted_before_both_sockets_and_policy_are_there),
        CASE(without_a_policy_everything_is_refused_after_a_while),
        CASE(a_policy_without_sockets_is_forgotten_after_a_while),
        CASE(the_policy_of_a_sandbox_whose_sockets_come_late_is_kept),
        CASE(policies_without_sockets_are_bounded),
        CASE(a_policy_that_does_not_decode_changes_nothing),
        CASE(a_refused_connection_is_reset_at_once_and_reported_with_its_rule),
        CASE(an_address_that_leads_back_to_this_machine_is_refused),
        CASE(refusals_that_are_alike_are_one_record_and_the_rest_is_counted),
        CASE(a_front_that_is_slow_gets_the_sums_later),
        CASE(a_closed_port_outside_is_a_reset_inside),
        CASE(a_reset_passes_through_both_ways),
        CASE(a_killed_egress_does_not_make_a_cut_transfer_look_complete),
        CASE(a_guest_that_has_sent_all_still_gets_its_answer),
        CASE(a_connection_that_is_quiet_for_hours_stays_and_one_without_end_does_not),
        CASE(a_new_policy_cuts_what_it_does_not_allow_and_nothing_else),
        CASE(the_end_of_a_sandbox_closes_all_of_it_and_only_of_it),
        CASE(one_sandbox_cannot_take_all_connections),
        CASE(connections_leave_descriptors_for_all_else),
        CASE(the_cap_of_one_sandbox_is_told_even_when_it_has_fewer_by_then),
        CASE(all_connections_together_have_little_memory),
        CASE(the_next_of_many_connections_has_smaller_buffers),
        CASE(a_sandbox_may_not_open_connections_without_end),
        CASE(a_storm_of_connections_is_taken_in_at_a_rate_and_others_do_not_wait),
        CASE(a_sandbox_may_end_or_get_new_sockets_while_it_is_paused),
        CASE(one_sandbox_has_a_bounded_part_of_a_turn),
        CASE(many_connections_have_small_buffers),
        CASE(bandwidth_is_limited_to_the_rate),
        CASE(the_kernel_knows_addresses_of_this_machine),
        CASE(a_connection_leads_to_its_own_address_unless_that_is_our_socket),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
