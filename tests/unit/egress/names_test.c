/* Connections that a name allows, and DNS. 127.0.0.1 is the outside; 127.0.0.9 is where nothing listens. */
#include "egress/egress.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "hello.h"
#include "rig.h"

static struct rig rig;
static uint16_t udp_port;

static const char here[1][4] = { { 127, 0, 0, 1 } };

/* Only good.example and what is below other.example. */
static void allow_names(void)
{
    struct str names[] = { STR("good.example"), STR("*.other.example") };
    struct net_range all = rig_range("0.0.0.0/0");

    rig_policy(
        &rig, "one",
        &(struct net_policy){ .internet = true, .name_count = 2, .names = names, .deny_count = 1, .deny = &all });
}

static void begin(void)
{
    rig_begin(&rig, NULL);
    rig_network_dns(&rig, "one", &udp_port);
    allow_names();
    fake_asked = 0;
}

static void say_hello(struct peer *guest, const char *name)
{
    auto_buf struct buf hello = hello_make(name);

    peer_say(guest, buf_str(&hello));
}

/* ---- DNS, as a guest sends it ---- */

static struct buf question_bytes(const char *name, uint16_t type)
{
    struct buf out = buf_make(NULL, 1024);

    dns_write_question(&out, 7, str_from(name), type);
    return out;
}

static int ask_udp(const char *name, uint16_t type)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(udp_port) };
    auto_buf struct buf question = question_bytes(name, type);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(send(fd, question.data, question.len, 0), (ssize_t)question.len);
    return fd;
}

/* Returns the code of the answer, and how many records it has. Closes the socket. */
static unsigned hear_udp(int fd, unsigned *out_records)
{
    uint8_t room[4096];
    ssize_t n = -1;

    PUMP_UNTIL(rig.loop, (n = recv(fd, room, sizeof room, 0)) >= 0);
    assert_true(n >= 12 && room[1] == 7);
    *out_records = room[7];
    (void)close(fd);
    return room[3] & 15;
}

static void look_up(const char *name, const char (*addresses)[4], uint32_t count)
{
    unsigned records;
    int fd = ask_udp(name, DNS_A);

    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, addresses, count);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    assert_int_equal(records, count);
}

static struct peer ask_tcp(void)
{
    rig.port = 53;
    return rig_guest(&rig);
}

static void say_question(struct peer *guest, const char *name)
{
    auto_buf struct buf question = question_bytes(name, DNS_A);
    char length[2] = { 0, (char)question.len };

    peer_say(guest, str_of(length, 2));
    peer_say(guest, buf_str(&question));
}

static void add_questions(struct buf *out, const char *name, int count)
{
    auto_buf struct buf question = question_bytes(name, DNS_A);

    for (int i = 0; i < count; i++) {
        pack_u16(out, (uint16_t)question.len);
        buf_add(out, buf_str(&question));
    }
}

/* ---- connections ---- */

static void a_name_in_a_hello_allows_and_is_resolved_by_us(void **state)
{
    (void)state;
    begin();
    rig.to = rig_address("198.51.100.200"); /* the guest's own idea */
    struct peer guest = rig_guest(&rig);
    pump_some(rig.loop);
    assert_int_equal(fake_asked, 0);
    say_hello(&guest, "Good.Example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, "good.example");
    assert_int_equal(fake_open->type, DNS_A);
    fake_answer(DNS_FINE, here, 1);
    struct peer outside = rig_accept(&rig);
    auto_buf struct buf hello = hello_make("Good.Example");
    PUMP_UNTIL(rig.loop, peer_listen(&outside) && outside.heard.len == hello.len);
    assert_memory_equal(outside.heard.data, hello.data, hello.len); /* unchanged */
    peer_say(&outside, STR("welcome"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "welcome"));
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_hello_in_pieces_is_waited_for(void **state)
{
    auto_buf struct buf hello = hello_make("a.b.other.example");

    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    for (size_t i = 0; i < hello.len; i++) {
        assert_int_equal(fake_asked, 0);
        peer_say(&guest, str_of(hello.data + i, 1));
        pump_turn(rig.loop);
        pump_turn(rig.loop);
    }
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, here, 1);
    struct peer outside = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_listen(&outside) && outside.heard.len == hello.len);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void check_refused(struct peer *guest, unsigned why, const char *text)
{
    unsigned before = rig.refusal_count;

    PUMP_UNTIL(rig.loop, peer_is_closed(guest));
    assert_true(guest->was_reset);
    assert_false(rig_is_dialed(&rig));
    PUMP_UNTIL(rig.loop, rig.refusal_count == before + 1);
    assert_int_equal(rig.refusals[before].why, why);
    if (!strstr(rig.refusals[before].text, text))
        fail_msg("'%s' does not contain '%s'", rig.refusals[before].text, text);
    peer_done(guest);
}

static void a_name_that_is_not_allowed_is_refused_at_once(void **state)
{
    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "evil.example");
    check_refused(&guest, NET_RULE_DENY_RANGE, "connection to evil.example (127.0.0.1) port");
    guest = rig_guest(&rig);
    peer_say(&guest, STR("GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"));
    check_refused(&guest, NET_RULE_DENY_RANGE, "other.example");
    assert_int_equal(fake_asked, 0);
    rig_end(&rig);
}

static void a_name_that_leads_to_a_private_address_is_refused(void **state)
{
    static const char inside[2][4] = { { 10, 0, 0, 1 }, { (char)169, (char)254, (char)169, (char)254 } };

    (void)state;
    begin();
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, inside, 2);
    check_refused(&guest, NET_RULE_NOT_PUBLIC, "good.example (169.254.169.254)");
    rig_end(&rig);
}

static void a_name_that_does_not_exist_is_a_reset(void **state)
{
    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_resolver_that_never_answers_is_given_up(void **state)
{
    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    hand_clock_add(LIMIT_EGRESS_RESOLVE_MS);
    check_refused(&guest, FLOWS_NO_LOOKUP, "its name cannot be looked up: there was no answer in time");
    assert_int_equal(fake_open_count, 0); /* cancelled */
    rig_end(&rig);
}

static void name_servers_that_fail_are_named_in_the_log(void **state)
{
    unsigned records;
    char text[256];
    int fds[3];

    (void)state;
    begin();
    uint16_t port = rig.port;
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_SERVER_FAILURE, NULL, 0);
    (void)snprintf(text, sizeof text,
                   "connection to good.example (127.0.0.1) port %u failed: its name cannot be looked up: " FAKE_FAILURE,
                   port);
    check_refused(&guest, FLOWS_NO_LOOKUP, text);
    /* A program that asks again and again makes one line a second. */
    for (int i = 0; i < 3; i++) {
        fds[i] = ask_udp("good.example", DNS_A);
        PUMP_UNTIL(rig.loop, fake_open_count == 1);
        fake_answer(DNS_SERVER_FAILURE, NULL, 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(hear_udp(fds[i], &records), DNS_SERVER_FAILURE);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 2);
    assert_int_equal(rig.refusals[1].why, FLOWS_NO_LOOKUP);
    assert_int_equal(rig.refusals[1].count, 3);
    assert_string_equal(rig.refusals[1].text, "DNS question for good.example failed: " FAKE_FAILURE);
    rig_end(&rig);
}

static void the_next_address_of_a_name_is_tried(void **state)
{
    static const char two[2][4] = { { 127, 0, 0, 9 }, { 127, 0, 0, 1 } };

    (void)state;
    begin();
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, two, 2);
    struct peer outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void an_address_that_is_silent_does_not_use_up_the_time_of_the_next(void **state)
{
    static const char two[2][4] = { { 127, 0, 0, 9 }, { 127, 0, 0, 1 } };

    (void)state;
    begin();
    struct rig_silent silent = rig_silent(&rig, "127.0.0.9");
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, two, 2);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    struct peer outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_silent_done(&silent);
    rig_end(&rig);
}

static void an_address_that_a_new_policy_denies_is_not_tried_next(void **state)
{
    static const char two[2][4] = { { 127, 0, 0, 9 }, { 127, 0, 0, 1 } };

    (void)state;
    begin();
    struct rig_silent silent = rig_silent(&rig, "127.0.0.9");
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, two, 2);
    pump_some(rig.loop);
    /* What is being dialed stays allowed, by its address. */
    struct net_range all = rig_range("0.0.0.0/0"), first = rig_range("127.0.0.9");
    rig_policy(
        &rig, "one",
        &(struct net_policy){ .internet = true, .allow_count = 1, .allow = &first, .deny_count = 1, .deny = &all });
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) || rig_is_dialed(&rig));
    assert_false(rig_is_dialed(&rig));
    peer_done(&guest);
    rig_silent_done(&silent);
    rig_end(&rig);
}

static void silent_addresses_have_one_deadline_together(void **state)
{
    static const char two[2][4] = { { 127, 0, 0, 9 }, { 127, 0, 0, 10 } };

    (void)state;
    begin();
    struct rig_silent first = rig_silent(&rig, "127.0.0.9"), second = rig_silent(&rig, "127.0.0.10");
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, two, 2);
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_DIAL_MS - LIMIT_EGRESS_DIAL_ONE_MS - 1000);
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest)); /* the last one has what is left */
    hand_clock_add(1000);
    pump_some(rig.loop);
    assert_true(peer_is_closed(&guest) && guest.was_reset);
    peer_done(&guest);
    rig_silent_done(&first);
    rig_silent_done(&second);
    rig_end(&rig);
}

static void a_refusal_names_a_host_only_if_it_is_certain(void **state)
{
    (void)state;
    begin();
    struct net_policy open = { .internet = true }, closed = { 0 };
    uint16_t port = rig.port;
    rig_policy(&rig, "one", &open);
    look_up("first.example", here, 1);
    rig_policy(&rig, "one", &closed);
    rig.port = 9001;
    struct peer guest = rig_guest(&rig);
    check_refused(&guest, NET_RULE_INTERNET_OFF, "connection to first.example (127.0.0.1) port 9001 refused");

    /* Now the address has two names, and either may be meant. */
    rig_policy(&rig, "one", &open);
    look_up("second.example", here, 1);
    rig_policy(&rig, "one", &closed);
    guest = rig_guest(&rig);
    check_refused(&guest, NET_RULE_INTERNET_OFF, "connection to 127.0.0.1 (one of 2 names) port 9001 refused");

    /* Unless the program says which. */
    allow_names();
    guest = rig_guest(&rig);
    say_hello(&guest, "second.example");
    check_refused(&guest, NET_RULE_DENY_RANGE, "connection to second.example (127.0.0.1) port 9001 refused");

    /* A connection that was judged by one of them, and is cut by a new policy. */
    look_up("good.example", here, 1);
    rig.port = port;
    guest = rig_guest(&rig);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_QUIET_MS + 1);
    struct peer outside = rig_accept(&rig);
    rig_policy(&rig, "one", &closed);
    check_refused(&guest, NET_RULE_INTERNET_OFF, "connection to 127.0.0.1 (one of 3 names) port ");
    peer_done(&outside);
    rig_end(&rig);
}

static void a_looked_up_name_needs_no_second_look_up(void **state)
{
    (void)state;
    begin();
    look_up("good.example", here, 1);
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "good.example");
    struct peer outside = rig_accept(&rig);
    assert_int_equal(fake_asked, 1);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_server_that_speaks_first_is_reached_by_the_looked_up_name(void **state)
{
    (void)state;
    begin();
    look_up("good.example", here, 1);
    struct peer guest = rig_guest(&rig); /* says nothing */
    struct peer outside = rig_accept(&rig);
    peer_say(&outside, STR("220 hello"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "220 hello"));
    peer_done(&guest);
    peer_done(&outside);
    /* ssh speaks, and does not say whom to. */
    guest = rig_guest(&rig);
    peer_say(&guest, STR("SSH-2.0-test\r\n"));
    outside = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "SSH-2.0-test\r\n"));
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void the_name_that_a_guest_shows_wins_over_the_looked_up_one(void **state)
{
    (void)state;
    begin();
    look_up("good.example", here, 1);
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "evil.example");
    check_refused(&guest, NET_RULE_DENY_RANGE, "evil.example");
    /* Without a name in it, the looked-up one counts. */
    guest = rig_guest(&rig);
    say_hello(&guest, NULL);
    struct peer outside = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_guest_that_says_nothing_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_NAME_MS);
    check_refused(&guest, NET_RULE_DENY_RANGE, "127.0.0.1");
    rig_end(&rig);
}

static void a_pinned_name_of_another_sandbox_does_not_count(void **state)
{
    (void)state;
    begin();
    look_up("good.example", here, 1);
    rig_network(&rig, "two");
    struct net_range all = rig_range("0.0.0.0/0");
    struct str names[] = { STR("good.example") };
    rig_policy(
        &rig, "two",
        &(struct net_policy){ .internet = true, .name_count = 1, .names = names, .deny_count = 1, .deny = &all });
    struct peer guest = rig_guest(&rig);
    peer_say(&guest, STR("SSH-2.0-test\r\n"));
    check_refused(&guest, NET_RULE_DENY_RANGE, "127.0.0.1");
    rig_end(&rig);
}

static void a_new_policy_keeps_what_a_looked_up_name_allows(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    rig_network_dns(&rig, "one", &udp_port);
    rig_policy(&rig, "one", &rig_open);
    look_up("good.example", here, 1);
    struct peer guest = rig_guest(&rig);
    struct peer outside = rig_accept(&rig);
    pump_some(rig.loop);
    allow_names();
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    peer_say(&guest, STR("still"));
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "still"));
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

static void a_half_closed_guest_whose_name_is_known_gets_its_answer(void **state)
{
    (void)state;
    begin();
    look_up("good.example", here, 1);
    struct peer guest = rig_guest(&rig);
    peer_say(&guest, STR("q\n"));
    shutdown(guest.fd, SHUT_WR);
    struct peer outside = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&outside));
    assert_true(outside.ended && peer_heard(&outside, "q\n"));
    peer_say(&outside, STR("a"));
    peer_close(&outside);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.ended && peer_heard(&guest, "a"));
    peer_done(&guest);
    peer_done(&outside);
    rig_end(&rig);
}

/* ---- questions ---- */

static void a_name_that_is_not_allowed_is_answered_at_once_and_not_asked(void **state)
{
    unsigned records;

    (void)state;
    begin();
    assert_int_equal(hear_udp(ask_udp("evil.example", DNS_A), &records), DNS_NO_SUCH_NAME);
    assert_int_equal(fake_asked, 0);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, NET_RULE_NAME_NOT_ALLOWED);
    assert_string_equal(rig.refusals[0].text,
                        "DNS question for evil.example refused: allowOut does not have this name");
    rig_end(&rig);
}

static void an_allowed_server_does_not_make_a_name_allowed(void **state)
{
    struct net_range server = rig_range("127.0.0.1/32");
    struct net_address dns = rig_address("127.0.0.1");
    struct str names[] = { STR("good.example") };
    unsigned records;

    (void)state;
    begin();
    rig_policy(&rig, "one", &(struct net_policy){ .allow_count = 1, .allow = &server });
    assert_int_equal(hear_udp(ask_udp("secret.evil.example", DNS_A), &records), DNS_NO_SUCH_NAME);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, NET_RULE_INTERNET_OFF);
    struct peer guest = ask_tcp();
    say_question(&guest, "secret.evil.example");
    PUMP_UNTIL(rig.loop, peer_listen(&guest) && guest.heard.len > 2 + 3);
    assert_int_equal(guest.heard.data[5] & 15, DNS_NO_SUCH_NAME);
    peer_done(&guest);
    assert_int_equal(fake_asked, 0);
    /* The policy's own servers may be asked for any name, if names are allowed at all. */
    rig_policy(&rig, "one", &(struct net_policy){ .has_dns = true, .dns_count = 1, .dns = &dns });
    assert_int_equal(hear_udp(ask_udp("secret.evil.example", DNS_A), &records), DNS_NO_SUCH_NAME);
    rig_policy(&rig, "one",
               &(struct net_policy){ .name_count = 1, .names = names, .has_dns = true, .dns_count = 1, .dns = &dns });
    assert_int_equal(fake_asked, 0);
    int fd = ask_udp("any.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, here, 1);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    rig_end(&rig);
}

static void addresses_that_are_not_public_are_left_out_of_answers(void **state)
{
    unsigned records;

    (void)state;
    begin();
    rig_policy(&rig, "one", &rig_open);
    int fd = ask_udp("rebind.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { 10, 0, 0, 1 }, { (char)198, 51, 100, 7 }, { 127, 0, 0, 1 } }, 3);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    assert_int_equal(records, 2); /* the rig's operator allows the last one */

    fd = ask_udp("metadata.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { (char)169, (char)254, (char)169, (char)254 } }, 1);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    assert_int_equal(records, 0);
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, NET_RULE_NOT_PUBLIC);
    assert_non_null(strstr(rig.refusals[0].text, "metadata.example"));

    rig.is_host = true;
    rig.ranges = rig_range("192.168.0.0/16");
    fd = ask_udp("host.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { (char)198, 51, 100, 7 } }, 1);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    assert_int_equal(records, 0);
    rig_end(&rig);
}

static void names_of_private_networks_are_answered_at_once_and_not_asked(void **state)
{
    static const char *const names[] = { "db", "db.corp", "metadata.google.internal", "1.1.168.192.in-addr.arpa" };
    struct str all[] = { STR("*"), STR("*.corp") };
    unsigned records;

    (void)state;
    begin();
    rig_policy(&rig, "one", &rig_open);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_int_equal(hear_udp(ask_udp(names[i], i == 3 ? DNS_PTR : DNS_A), &records), DNS_NO_SUCH_NAME);
    PUMP_UNTIL(rig.loop, rig.refusal_count == COUNT_OF(names));
    assert_int_equal(rig.refusals[0].why, NET_RULE_PRIVATE_NAME);
    assert_int_equal(rig.refusals[3].why, NET_RULE_NOT_PUBLIC);
    /* Nor does a connection make us ask. */
    rig_policy(&rig, "one", &(struct net_policy){ .name_count = 2, .names = all });
    rig.to = rig_address("198.51.100.200");
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "metadata.google.internal");
    check_refused(&guest, NET_RULE_PRIVATE_NAME, "metadata.google.internal");
    assert_int_equal(fake_asked, 0);
    /* What the policy names is asked for, and what the operator allows. */
    int fd = ask_udp("db.corp", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, here, 1);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    rig_policy(&rig, "one", &rig_open);
    fd = ask_udp("1.0.0.127.in-addr.arpa", DNS_PTR);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
    assert_int_equal(hear_udp(fd, &records), DNS_NO_SUCH_NAME);
    rig_end(&rig);
}

static void aliases_that_lead_to_no_public_address_are_left_out(void **state)
{
    struct dns_record chain[] = {
        { .name = STR("www.example"), .type = DNS_CNAME, .ttl_s = 60, .target = STR("db7.corp") },
        { .name = STR("db7.corp"), .type = DNS_A, .ttl_s = 60, .address = { 10, 0, 0, 1 } },
    };
    unsigned records;

    (void)state;
    begin();
    rig_policy(&rig, "one", &rig_open);
    for (int i = 0; i < 2; i++) {
        int fd = ask_udp("www.example", DNS_A);
        PUMP_UNTIL(rig.loop, fake_open_count == 1);
        fake_answer_records(DNS_FINE, chain, 2);
        assert_int_equal(hear_udp(fd, &records), DNS_FINE);
        assert_int_equal(records, i == 0 ? 0 : 2);
        chain[1].address[0] = 127; /* the rig's operator allows it */
    }
    rig_end(&rig);
}

static void addresses_without_a_route_are_left_out_of_answers(void **state)
{
    unsigned records;

    (void)state;
    begin();
    rig.has_no_route = true;
    int fd = ask_udp("good.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, here, 1);
    assert_int_equal(hear_udp(fd, &records), DNS_FINE);
    assert_int_equal(records, 0);
    pump_some(rig.loop);
    assert_int_equal(rig.refused, 0);
    rig_end(&rig);
}

static void noise_is_not_answered_and_nonsense_is(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = 0 };
    const uint8_t status_request[12] = { 0, 7, 0x10 };
    unsigned records;

    (void)state;
    begin();
    at.sin_port = htons(udp_port);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(send(fd, "x", 1, 0), 1);
    char large[LIMIT_EGRESS_QUESTION_BYTES + 1] = { 0 };
    assert_int_equal(send(fd, large, sizeof large, 0), (ssize_t)sizeof large);
    pump_some(rig.loop);
    assert_int_equal(recv(fd, large, sizeof large, 0), -1);
    assert_int_equal(send(fd, status_request, sizeof status_request, 0), 12);
    assert_int_equal(hear_udp(fd, &records), DNS_NOT_IMPLEMENTED);
    rig_end(&rig);
}

static void questions_are_limited_at_once_and_per_second(void **state)
{
    unsigned refused = 0, records;
    int fds[LIMIT_EGRESS_QUESTIONS + 10];

    (void)state;
    begin();
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        fds[i] = ask_udp("good.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == LIMIT_EGRESS_QUESTIONS);
    PUMP_UNTIL(rig.loop, rig.refused == 10);
    while (fake_open_count)
        fake_answer(DNS_FINE, here, 1);
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        refused += hear_udp(fds[i], &records) == DNS_REFUSED;
    assert_int_equal(refused, 10);
    /* Now one after the other, faster than the rate. */
    unsigned fine = 0;
    for (int i = 0; i < 400; i++) {
        int fd = ask_udp("evil.example", DNS_A);
        fine += hear_udp(fd, &records) == DNS_NO_SUCH_NAME;
    }
    assert_in_range(fine, 100, 399);
    rig_end(&rig);
}

/* A flood of datagrams, no matter what they are, and questions over TCP: neither is read while there is no credit. */
static void a_flood_of_questions_is_read_at_a_rate_and_the_rest_waits(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    unsigned sent = 0, records;

    (void)state;
    begin();
    at.sin_port = htons(udp_port);
    struct peer guest = ask_tcp();
    pump_some(rig.loop); /* it is accepted */
    int noise = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(noise, (struct sockaddr *)&at, sizeof at), 0);
    uint64_t began_us = hand_clock_mono();
    for (int unread = 0; unread < 64;) { /* so many wait: they are not read any more */
        for (int i = 0; i < 32; i++)
            sent += send(noise, "x", 1, 0) == 1;
        pump_turn(rig.loop);
        uint64_t read = LIMIT_EGRESS_TAKEN_BURST + (hand_clock_mono() - began_us) * LIMIT_EGRESS_TAKEN_S / 1000000;
        unread = (int)sent - (int)read;
    }
    int fd = ask_udp("evil.example", DNS_A);
    say_question(&guest, "evil.example");
    struct peer late = ask_tcp(); /* they have one quota with connections */
    say_question(&late, "evil.example");
    pump_some(rig.loop);
    char room[512];
    assert_int_equal(recv(fd, room, sizeof room, 0), -1);
    assert_true(peer_listen(&guest) && guest.heard.len == 0);
    assert_true(peer_listen(&late) && late.heard.len == 0);
    hand_clock_add(1000);
    assert_int_equal(hear_udp(fd, &records), DNS_NO_SUCH_NAME);
    PUMP_UNTIL(rig.loop, peer_listen(&guest) && guest.heard.len);
    PUMP_UNTIL(rig.loop, peer_listen(&late) && late.heard.len);
    (void)close(noise);
    peer_done(&guest);
    peer_done(&late);
    rig_end(&rig);
}

static void names_of_connections_are_questions_of_the_sandbox(void **state)
{
    struct peer guests[LIMIT_EGRESS_QUESTIONS];
    unsigned records;
    char name[32];

    (void)state;
    begin();
    rig.to = rig_address("198.51.100.200");
    for (unsigned i = 0; i < COUNT_OF(guests); i++) {
        guests[i] = rig_guest(&rig);
        (void)snprintf(name, sizeof name, "n%u.other.example", i);
        say_hello(&guests[i], name);
        PUMP_UNTIL(rig.loop, fake_asked == i + 1);
    }
    struct peer guest = rig_guest(&rig);
    say_hello(&guest, "one.other.example");
    check_refused(&guest, FLOWS_TOO_MANY_QUESTIONS, "one.other.example (198.51.100.200) port");
    assert_int_equal(hear_udp(ask_udp("good.example", DNS_A), &records), DNS_REFUSED);
    /* The names are still on their way to a server when the guest has gone. */
    for (unsigned i = 0; i < COUNT_OF(guests); i++) {
        const struct linger reset = { .l_onoff = 1 };
        assert_int_equal(setsockopt(guests[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        peer_done(&guests[i]);
    }
    PUMP_UNTIL(rig.loop, fake_open_count == 0);
    assert_int_equal(hear_udp(ask_udp("good.example", DNS_A), &records), DNS_REFUSED);
    assert_int_equal(fake_asked, LIMIT_EGRESS_QUESTIONS);
    rig_end(&rig);
}

static void names_of_connections_are_limited_per_second(void **state)
{
    unsigned asked;

    (void)state;
    begin();
    rig.to = rig_address("198.51.100.200");
    for (asked = 0; asked < 4 * LIMIT_EGRESS_QUESTIONS_S; asked++) {
        struct peer guest = rig_guest(&rig);
        say_hello(&guest, "good.example");
        PUMP_UNTIL(rig.loop, fake_open_count == 1 || peer_is_closed(&guest));
        if (fake_open_count == 1)
            fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
        PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
        peer_done(&guest);
    }
    assert_in_range(fake_asked, LIMIT_EGRESS_QUESTIONS_S, asked - 1);
    PUMP_UNTIL(rig.loop, rig.refused == asked - fake_asked);
    rig_end(&rig);
}

static void a_sandbox_without_a_share_of_the_resolver_asks_nothing(void **state)
{
    unsigned records;

    (void)state;
    begin();
    fake_has_no_share = true;
    assert_int_equal(hear_udp(ask_udp("good.example", DNS_A), &records), DNS_REFUSED);
    fake_has_no_share = false;
    assert_int_equal(fake_asked, 0);
    rig_end(&rig);
}

static void questions_over_tcp_are_answered_one_after_the_other(void **state)
{
    (void)state;
    begin();
    rig.to = rig_address("8.8.8.8");
    struct peer guest = ask_tcp();
    say_question(&guest, "good.example");
    say_question(&guest, "a.other.example");
    say_question(&guest, "evil.example");
    shutdown(guest.fd, SHUT_WR);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, "good.example");
    pump_some(rig.loop);
    assert_int_equal(fake_asked, 1);
    fake_answer(DNS_FINE, here, 1);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, "a.other.example");
    fake_answer(DNS_FINE, here, 1);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.ended);
    const uint8_t *at = (const uint8_t *)guest.heard.data;
    unsigned codes[4], count = 0;
    for (size_t i = 0; i < guest.heard.len; i += 2 + (size_t)(at[i] << 8 | at[i + 1]))
        codes[count++] = at[i + 5] & 15;
    assert_int_equal(count, 3);
    assert_true(codes[0] == DNS_FINE && codes[1] == DNS_FINE && codes[2] == DNS_NO_SUCH_NAME);
    peer_done(&guest);
    rig_end(&rig);
}

static void many_questions_in_one_packet_do_not_nest(void **state)
{
    auto_buf struct buf many = buf_make(NULL, 1 << 20);

    (void)state;
    begin();
    add_questions(&many, "e.example", 2000);
    struct peer guest = ask_tcp();
    peer_say(&guest, buf_str(&many));
    shutdown(guest.fd, SHUT_WR);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    PUMP_UNTIL(rig.loop, rig.refused == 2000);
    peer_done(&guest);
    rig_end(&rig);
}

static unsigned answers_heard(struct peer *guest)
{
    unsigned count = 0;

    peer_listen(guest);
    const uint8_t *at = (const uint8_t *)guest->heard.data;
    for (size_t i = 0; i + 2 <= guest->heard.len; count++)
        i += 2 + (size_t)(at[i] << 8 | at[i + 1]);
    return count;
}

/* Egress has one thread: while it answers one guest, it serves nobody. */
static void many_questions_on_a_connection_have_many_turns(void **state)
{
    auto_buf struct buf many = buf_make(NULL, 1 << 20);

    (void)state;
    begin();
    add_questions(&many, "e.example", 2000);
    struct peer guest = ask_tcp();
    peer_say(&guest, buf_str(&many));
    for (int i = 0; i < 10; i++)
        pump_turn(rig.loop);
    assert_in_range(answers_heard(&guest), 1, 100);
    PUMP_UNTIL(rig.loop, answers_heard(&guest) == 2000);
    peer_done(&guest);
    rig_end(&rig);
}

static struct peer ask_tcp_with_room(int bytes)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(rig.guest_port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    rig.port = 53;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    set_nonblocking(fd);
    return peer_make(fd);
}

/* Turns until nothing more is asked; each question has an answer of 2 KiB. */
static void answer_all_at_length(void)
{
    struct dns_record records[LIMIT_DNS_RECORDS];

    for (size_t i = 0; i < COUNT_OF(records); i++)
        records[i] = (struct dns_record){
            .name = STR("good.example"), .type = DNS_A, .ttl_s = 300, .address = { 127, 0, 0, 1 }
        };
    for (int quiet = 0; quiet < 50; quiet++) {
        pump_turn(rig.loop);
        if (fake_open_count == 0)
            continue;
        fake_answer_records(DNS_FINE, records, COUNT_OF(records));
        quiet = 0;
    }
}

static void answers_that_are_not_read_stop_the_next_question(void **state)
{
    struct peer others[40];
    auto_buf struct buf many = buf_make(NULL, 1 << 20);

    (void)state;
    begin();
    rig_policy(&rig, "one", &rig_open);
    for (size_t i = 0; i < COUNT_OF(others); i++) /* past 32 the kernel's buffers are small */
        others[i] = ask_tcp();
    pump_some(rig.loop);
    struct peer guest = ask_tcp_with_room(4096);
    add_questions(&many, "good.example", 120);
    peer_say(&guest, buf_str(&many));
    answer_all_at_length();
    assert_in_range(fake_asked, 1, 100);
    for (int i = 0; i < 200 && fake_asked < 120; i++) {
        peer_listen(&guest);
        answer_all_at_length();
    }
    PUMP_UNTIL(rig.loop, answers_heard(&guest) == 120);

    /* One that never reads is closed. */
    struct peer idle = ask_tcp_with_room(4096);
    many.len = 0;
    add_questions(&many, "good.example", 120);
    hand_clock_add(10000); /* the rate */
    peer_say(&idle, buf_str(&many));
    answer_all_at_length();
    pump_some(rig.loop);
    assert_in_range(fake_asked, 121, 220);
    PUMP_UNTIL(rig.loop, rig.open == COUNT_OF(others) + 2);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        peer_done(&others[i]);
    peer_done(&guest);
    PUMP_UNTIL(rig.loop, rig.open == 1);
    hand_clock_add(LIMIT_EGRESS_ASK_MS);
    PUMP_UNTIL(rig.loop, rig.open == 0);
    peer_done(&idle);
    rig_end(&rig);
}

static void connections_for_dns_are_limited(void **state)
{
    struct peer guests[LIMIT_EGRESS_DNS_STREAMS];

    (void)state;
    begin();
    rig.to = rig_address("192.0.0.1");
    for (size_t i = 0; i < COUNT_OF(guests); i++)
        guests[i] = ask_tcp();
    struct peer next = ask_tcp();
    check_refused(&next, FLOWS_TOO_MANY_QUESTIONS, "64 connections for them");
    assert_int_equal(rig.open, COUNT_OF(guests));
    for (size_t i = 0; i < COUNT_OF(guests); i++)
        assert_false(peer_is_closed(&guests[i]));
    peer_done(&guests[0]);
    PUMP_UNTIL(rig.loop, rig.open == COUNT_OF(guests) - 1);
    guests[0] = ask_tcp();
    say_question(&guests[0], "evil.example");
    PUMP_UNTIL(rig.loop, answers_heard(&guests[0]) == 1);
    for (size_t i = 0; i < COUNT_OF(guests); i++)
        peer_done(&guests[i]);
    rig_end(&rig);
}

static void a_connection_for_dns_that_is_too_long_or_too_slow_is_closed(void **state)
{
    (void)state;
    begin();
    struct peer guest = ask_tcp();
    peer_say(&guest, STR("\xff\xff"));
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    peer_done(&guest);
    guest = rig_guest(&rig);
    peer_say(&guest, STR("\0"));
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    hand_clock_add(LIMIT_EGRESS_ASK_MS);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    peer_done(&guest);
    rig_end(&rig);
}

static void a_sandbox_that_ends_takes_its_questions_with_it(void **state)
{
    (void)state;
    begin();
    int fd = ask_udp("good.example", DNS_A);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    struct peer guest = ask_tcp();
    say_question(&guest, "good.example");
    PUMP_UNTIL(rig.loop, fake_open_count == 2);
    egress_exited(rig.egress, "one");
    assert_int_equal(fake_open_count, 0);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    peer_done(&guest);
    (void)close(fd);
    rig_end(&rig);
}

/* ---- names that stay inside ---- */

/* Mail's ports too, if the operator says so. The service is the outside's socket. */
static struct egress_service services[3] = {
    { .name = "mirror.internal", .port = 80 },
    { .name = "mirror.internal", .port = 25 },
    { .name = "other.internal", .port = 443 },
};

static void begin_inside(const struct net_policy *policy)
{
    rig_begin(&rig, &(struct egress_config){ .services = services, .service_count = 3 });
    for (int i = 0; i < 3; i++) {
        services[i].address = rig_address(i < 2 ? "192.0.0.64" : "192.0.0.65");
        services[i].to = rig_address("127.0.0.1");
        services[i].to_port = rig.port;
    }
    rig.ranges = rig_range("192.0.2.0/24"); /* not loopback: only the table leads there */
    rig_network_dns(&rig, "one", &udp_port);
    rig_policy(&rig, "one", policy);
    fake_asked = 0;
}

static struct peer connect_to(const char *address, uint16_t port)
{
    rig.to = rig_address(address);
    rig.port = port;
    return rig_guest(&rig);
}

static void a_name_that_stays_inside_is_answered_here(void **state)
{
    struct str names[] = { STR("good.example") };
    struct net_range all = rig_range("0.0.0.0/0");
    /* dnsServers that is an empty list stops all other questions. */
    const struct net_policy policies[] = {
        { .internet = true },
        { .internet = false },
        { .deny_count = 1, .deny = &all, .name_count = 1, .names = names, .has_dns = true },
        { .internet = true, .has_dns = true },
    };
    unsigned records;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        begin_inside(&policies[i]);
        assert_int_equal(hear_udp(ask_udp("Mirror.internal", DNS_A), &records), DNS_FINE);
        assert_int_equal(records, 1);
        assert_int_equal(hear_udp(ask_udp("mirror.internal", DNS_AAAA), &records), DNS_FINE);
        assert_int_equal(records, 0);
        assert_int_equal(hear_udp(ask_udp("mirror.internal", DNS_TXT), &records), DNS_FINE);
        assert_int_equal(records, 0);
        assert_int_equal(hear_udp(ask_udp("a.mirror.internal", DNS_A), &records), DNS_NO_SUCH_NAME);
        if (policies[i].has_dns)
            assert_int_equal(hear_udp(ask_udp("good.example", DNS_A), &records), DNS_NO_SUCH_NAME);
        assert_int_equal(fake_asked, 0);
        rig_end(&rig);
    }
}

static void questions_for_a_name_that_stays_inside_are_not_limited(void **state)
{
    unsigned records;

    (void)state;
    begin_inside(&rig_open);
    for (int i = 0; i < 3 * LIMIT_EGRESS_QUESTIONS_S; i++)
        assert_int_equal(hear_udp(ask_udp("mirror.internal", DNS_A), &records), DNS_FINE);
    look_up("good.example", (const char[][4]){ { (char)192, 0, 2, 1 } }, 1); /* nor do they use the others' rate up */
    assert_int_equal(rig.refused, 0);
    rig_end(&rig);
}

static void every_policy_reaches_a_name_that_stays_inside(void **state)
{
    struct str names[] = { STR("good.example") };
    struct net_range all = rig_range("0.0.0.0/0");
    const struct net_policy policies[] = {
        { .internet = true },
        { .internet = false },
        { .internet = true, .deny_count = 1, .deny = &all },
        { .internet = false, .name_count = 1, .names = names },
        { .internet = true, .proxy = { .host = STR("192.0.2.80"), .port = 1080 } },
    };
    static const uint16_t ports[] = { 80, 25 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(policies) * COUNT_OF(ports); i++) {
        begin_inside(&policies[i / COUNT_OF(ports)]);
        struct peer guest = connect_to("192.0.0.64", ports[i % COUNT_OF(ports)]);
        struct peer service = rig_accept(&rig); /* which may speak first */
        peer_say(&service, STR("220 hello"));
        PUMP_UNTIL(rig.loop, peer_heard(&guest, "220 hello"));
        peer_say(&guest, STR("thanks"));
        PUMP_UNTIL(rig.loop, peer_heard(&service, "thanks"));
        PUMP_UNTIL(rig.loop, rig.made == 1 && rig.open == 1 && rig.bytes_in == 9 && rig.bytes_out == 6);
        assert_int_equal(rig.refused, 0);
        peer_done(&guest);
        peer_done(&service);
        rig_end(&rig);
    }
}

static void other_ports_of_a_name_that_stays_inside_are_refused(void **state)
{
    static const uint16_t ports[] = { 443, 465, 587, 1 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ports); i++) {
        begin_inside(&rig_open);
        struct peer guest = connect_to("192.0.0.64", ports[i]);
        check_refused(&guest, FLOWS_NO_SERVICE, "connection to mirror.internal (192.0.0.64) port ");
        assert_non_null(strstr(rig.refusals[0].text, "--inside"));
        /* Nor does the address after the last, or the same in NAT64. */
        guest = connect_to("192.0.0.66", 80);
        check_refused(&guest, NET_RULE_NOT_PUBLIC, "192.0.0.66");
        guest = connect_to("64:ff9b::192.0.0.64", 80);
        check_refused(&guest, NET_RULE_NOT_PUBLIC, "64:ff9b::");
        rig_end(&rig);
    }
}

static void a_new_policy_does_not_cut_a_name_that_stays_inside(void **state)
{
    (void)state;
    begin_inside(&rig_open);
    struct peer guest = connect_to("192.0.0.64", 80), service = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, rig.made == 1);
    rig_policy(&rig, "one", &(struct net_policy){ .internet = false });
    rig_policy(&rig, "one",
               &(struct net_policy){ .internet = true, .proxy = { .host = STR("192.0.2.80"), .port = 1080 } });
    pump_some(rig.loop);
    peer_say(&guest, STR("still"));
    PUMP_UNTIL(rig.loop, peer_heard(&service, "still"));
    egress_exited(rig.egress, "one");
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&service));
    assert_true(guest.was_reset);
    peer_done(&guest);
    peer_done(&service);
    rig_end(&rig);
}

static void one_that_ends_does_not_reach_a_name_that_stays_inside(void **state)
{
    (void)state;
    struct err err;
    begin_inside(&rig_open);
    struct peer guest = connect_to("192.0.0.64", 80), service = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, rig.made == 1);
    assert_true(egress_policy(rig.egress, "one", STR(""), &err));
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&service));
    peer_done(&guest);
    peer_done(&service);
    guest = connect_to("192.0.0.64", 80);
    check_refused(&guest, FLOWS_NO_POLICY, "192.0.0.64");
    assert_true(egress_policy(rig.egress, "unknown", STR(""), &err));
    rig_end(&rig);
}

/* Nobody else may say where such a name leads: neither its allowOut, nor the name servers, nor the guest's address. */
static void an_allowed_name_that_stays_inside_leads_to_its_service(void **state)
{
    struct str names[] = { STR("other.internal") };

    (void)state;
    begin_inside(&(struct net_policy){ .internet = false, .name_count = 1, .names = names });
    struct peer guest = connect_to("198.51.100.200", 443);
    say_hello(&guest, "Other.internal");
    struct peer service = rig_accept(&rig);
    peer_done(&guest);
    peer_done(&service);
    guest = connect_to("198.51.100.200", 8443);
    say_hello(&guest, "other.internal");
    check_refused(&guest, FLOWS_NO_SERVICE, "other.internal (198.51.100.200) port 8443");
    assert_int_equal(fake_asked, 0);
    rig_end(&rig);
}

/* A service may take a hundred connections, and all sandboxes share them. */
static void connections_to_services_are_limited(void **state)
{
    struct peer guests[LIMIT_EGRESS_INSIDE], served[LIMIT_EGRESS_INSIDE];

    (void)state;
    begin_inside(&rig_open);
    for (size_t i = 0; i < COUNT_OF(guests); i++) {
        guests[i] = i % 2 ? connect_to("192.0.0.64", 80) : connect_to("192.0.0.65", 443);
        served[i] = rig_accept(&rig);
    }
    struct peer next = connect_to("192.0.0.64", 80);
    check_refused(&next, FLOWS_TOO_MANY_INSIDE,
                  "connection to mirror.internal (192.0.0.64) port 80 refused: a sandbox has 64");
    peer_say(&guests[1], STR("still"));
    PUMP_UNTIL(rig.loop, peer_heard(&served[1], "still"));
    for (size_t i = 0; i < COUNT_OF(guests); i++) {
        peer_done(&guests[i]);
        peer_done(&served[i]);
    }
    PUMP_UNTIL(rig.loop, rig.open == 0);
    for (size_t i = 0; i < COUNT_OF(guests); i++) { /* each is given back */
        guests[i] = connect_to("192.0.0.64", 80);
        served[i] = rig_accept(&rig);
    }
    for (size_t i = 0; i < COUNT_OF(guests); i++) {
        peer_done(&guests[i]);
        peer_done(&served[i]);
    }
    rig_end(&rig);
}

/* The text of a refusal of this kind, or NULL. */
static const char *refusal_of(enum flows_why why)
{
    for (size_t i = 0; i < rig.refusal_count; i++)
        if (rig.refusals[i].why == why)
            return rig.refusals[i].text;
    return NULL;
}

static void the_log_does_not_tell_where_a_service_is(void **state)
{
    (void)state;
    begin_inside(&rig_open);
    services[0].to = rig_address("127.0.0.9");
    rig.to = rig_address("192.0.0.64");
    rig.port = 80;
    rig_lose(&rig, LIMIT_EGRESS_NEW_BURST + 1024);
    PUMP_UNTIL(rig.loop, refusal_of(FLOWS_TOO_FAST)); /* beside those that nobody accepted */
    assert_non_null(strstr(refusal_of(FLOWS_TOO_FAST), "connection to 192.0.0.64 port 80 refused"));
    rig_end(&rig);
}

/* The line does not name the operator's address. */
static void a_service_that_does_not_listen_is_a_reset_and_a_line_in_the_log(void **state)
{
    (void)state;
    begin_inside(&rig_open);
    services[0].to = rig_address("127.0.0.9");
    struct peer guest = connect_to("192.0.0.64", 80);
    check_refused(&guest, FLOWS_SERVICE_FAILED, "");
    assert_string_equal(rig.refusals[0].text,
                        "service mirror.internal:80 (--inside) failed: connect: Connection refused");
    rig_end(&rig);
}

static void an_outside_that_does_not_listen_makes_no_line(void **state)
{
    (void)state;
    begin_inside(&rig_open);
    rig.ranges = rig_range("127.0.0.0/8");
    struct peer guest = connect_to("127.0.0.9", 80);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    PUMP_UNTIL(rig.loop, rig.messages);
    assert_int_equal(rig.refused, 0);
    peer_done(&guest);
    rig_end(&rig);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_name_in_a_hello_allows_and_is_resolved_by_us),
        CASE(a_hello_in_pieces_is_waited_for),
        CASE(a_name_that_is_not_allowed_is_refused_at_once),
        CASE(a_name_that_leads_to_a_private_address_is_refused),
        CASE(a_name_that_does_not_exist_is_a_reset),
        CASE(a_resolver_that_never_answers_is_given_up),
        CASE(name_servers_that_fail_are_named_in_the_log),
        CASE(the_next_address_of_a_name_is_tried),
        CASE(an_address_that_is_silent_does_not_use_up_the_time_of_the_next),
        CASE(an_address_that_a_new_policy_denies_is_not_tried_next),
        CASE(silent_addresses_have_one_deadline_together),
        CASE(a_refusal_names_a_host_only_if_it_is_certain),
        CASE(a_looked_up_name_needs_no_second_look_up),
        CASE(a_server_that_speaks_first_is_reached_by_the_looked_up_name),
        CASE(the_name_that_a_guest_shows_wins_over_the_looked_up_one),
        CASE(a_guest_that_says_nothing_is_not_waited_for_for_ever),
        CASE(a_pinned_name_of_another_sandbox_does_not_count),
        CASE(a_new_policy_keeps_what_a_looked_up_name_allows),
        CASE(a_half_closed_guest_whose_name_is_known_gets_its_answer),
        CASE(a_name_that_is_not_allowed_is_answered_at_once_and_not_asked),
        CASE(an_allowed_server_does_not_make_a_name_allowed),
        CASE(addresses_that_are_not_public_are_left_out_of_answers),
        CASE(names_of_private_networks_are_answered_at_once_and_not_asked),
        CASE(aliases_that_lead_to_no_public_address_are_left_out),
        CASE(addresses_without_a_route_are_left_out_of_answers),
        CASE(noise_is_not_answered_and_nonsense_is),
        CASE(questions_are_limited_at_once_and_per_second),
        CASE(a_flood_of_questions_is_read_at_a_rate_and_the_rest_waits),
        CASE(names_of_connections_are_questions_of_the_sandbox),
        CASE(names_of_connections_are_limited_per_second),
        CASE(a_sandbox_without_a_share_of_the_resolver_asks_nothing),
        CASE(questions_over_tcp_are_answered_one_after_the_other),
        CASE(many_questions_in_one_packet_do_not_nest),
        CASE(many_questions_on_a_connection_have_many_turns),
        CASE(answers_that_are_not_read_stop_the_next_question),
        CASE(connections_for_dns_are_limited),
        CASE(a_connection_for_dns_that_is_too_long_or_too_slow_is_closed),
        CASE(a_sandbox_that_ends_takes_its_questions_with_it),
        CASE(a_name_that_stays_inside_is_answered_here),
        CASE(questions_for_a_name_that_stays_inside_are_not_limited),
        CASE(every_policy_reaches_a_name_that_stays_inside),
        CASE(other_ports_of_a_name_that_stays_inside_are_refused),
        CASE(a_new_policy_does_not_cut_a_name_that_stays_inside),
        CASE(one_that_ends_does_not_reach_a_name_that_stays_inside),
        CASE(an_allowed_name_that_stays_inside_leads_to_its_service),
        CASE(connections_to_services_are_limited),
        CASE(the_log_does_not_tell_where_a_service_is),
        CASE(a_service_that_does_not_listen_is_a_reset_and_a_line_in_the_log),
        CASE(an_outside_that_does_not_listen_makes_no_line),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
