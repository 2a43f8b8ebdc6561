/* The outside of the rig plays the proxy. */
#include "egress/tunnel.h"

#include <stdlib.h>

#include "../io/test_certificate.h"
#include "io/tls_key.h"
#include "rig.h"

static struct rig rig;

static struct net_policy proxied(void)
{
    return (struct net_policy){ .internet = true, .proxy = { .host = STR("127.0.0.1"), .port = rig.port } };
}

static void begin(const struct net_policy *policy)
{
    rig_network(&rig, "one");
    rig_policy(&rig, "one", policy);
    rig.to = rig_address("198.51.100.7"); /* where nothing may be dialed */
}

/* All that the proxy heard, from the first byte on. */
static bool heard(struct peer *peer, struct str bytes)
{
    return peer_listen(peer) && str_eq(buf_str(&peer->heard), bytes);
}

static struct str connect_request(const char *kind_and_address, size_t len, char *room)
{
    memcpy(room, "\5\1\0", 3);
    memcpy(room + 3, kind_and_address, len);
    room[3 + len] = (char)(rig.port >> 8);
    room[3 + len + 1] = (char)rig.port;
    return str_of(room, 3 + len + 2);
}

static void check_refused(struct peer *guest, const char *text)
{
    unsigned before = rig.refusal_count;

    PUMP_UNTIL(rig.loop, peer_is_closed(guest));
    assert_true(guest->was_reset);
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count > before);
    assert_int_equal(rig.refusals[before].why, FLOWS_PROXY);
    if (!strstr(rig.refusals[before].text, text))
        fail_msg("'%s' has no '%s'", rig.refusals[before].text, text);
    assert_null(strstr(rig.refusals[before].text, "s3cret"));
}

static void a_connection_goes_through_the_proxy(void **state)
{
    (void)state;
    char room[300];
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    buf_clear(&proxy.heard);
    peer_say(&guest, STR("early")); /* waits until there is a way */
    peer_say(&proxy, STR("\5\0"));
    PUMP_UNTIL(rig.loop, heard(&proxy, connect_request("\1\xc6\x33\x64\7", 5, room)));
    buf_clear(&proxy.heard);
    peer_say(&proxy, STR("\5\0\0\1\0\0\0\0\0\0hello")); /* the server's first bytes come with the answer */
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "hello") && heard(&proxy, STR("early")));
    assert_int_equal(guest.heard.len, 5);
    PUMP_UNTIL(rig.loop, rig.made == 1);
    peer_done(&proxy);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    peer_done(&guest);
    rig_end(&rig);
}

static void the_proxy_gets_the_password_and_the_sandbox_does_not(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.username = STR("user");
    policy.proxy.password = STR("s3cret");
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\2\0\2")));
    peer_say(&proxy, STR("\5\2"));
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\2\0\2\1\4user\6s3cret")));
    peer_say(&proxy, STR("\1\1")); /* wrong */
    check_refused(&guest, "does not accept this user name");
    assert_int_equal(guest.heard.len, 0);
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_name_that_allows_is_what_the_proxy_gets(void **state)
{
    (void)state;
    char room[300];
    struct net_range all = rig_range("0.0.0.0/0");
    struct str name = STR("*.example.com");
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.deny = &all;
    policy.deny_count = 1;
    policy.names = &name;
    policy.name_count = 1;
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    peer_say(&guest, STR("GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n"));
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, "www.example.com");
    fake_answer(DNS_FINE, (const char[][4]){ { (char)198, 51, 100, 9 } }, 1);
    struct peer proxy = rig_accept(&rig);
    peer_say(&proxy, STR("\5\0"));
    connect_request("\3\x0fwww.example.com", 17, room + 3);
    memcpy(room, "\5\1\0", 3);
    PUMP_UNTIL(rig.loop, heard(&proxy, str_of(room, 3 + 3 + 17 + 2)));
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

static void what_the_rules_refuse_does_not_reach_the_proxy(void **state)
{
    (void)state;
    struct net_range deny = rig_range("198.51.100.0/24");
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.deny = &deny;
    policy.deny_count = 1;
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_false(rig_is_dialed(&rig));
    peer_done(&guest);
    rig_end(&rig);
}

static void the_proxys_own_name_is_looked_up(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.host = STR("proxy.example.net");
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, "proxy.example.net");
    /* The first address is private, the second is the rig's outside. */
    fake_answer(DNS_FINE, (const char[][4]){ { 10, 0, 0, 1 }, { 127, 0, 0, 1 } }, 2);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    peer_done(&proxy);
    check_refused(&guest, "closed the connection");
    peer_done(&guest);
    rig_end(&rig);
}

static void a_proxy_at_a_private_address_is_refused(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.host = STR("proxy.example.net");
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { (char)169, (char)254, (char)169, (char)254 } }, 1);
    PUMP_UNTIL(rig.loop, fake_open_count == 1); /* now IPv6 */
    assert_int_equal(fake_open->type, DNS_AAAA);
    fake_answer(DNS_FINE, NULL, 0);
    check_refused(&guest, "not one that sandboxes may reach");
    peer_done(&guest);
    policy.proxy.host = STR("10.1.2.3");
    rig_policy(&rig, "one", &policy);
    guest = rig_guest(&rig);
    check_refused(&guest, "not one that sandboxes may reach");
    peer_done(&guest);
    rig_end(&rig);
}

static void a_proxy_at_a_name_that_stays_inside_is_its_service(void **state)
{
    (void)state;
    static struct egress_service service = { .name = "socks.internal", .port = 1080 };
    rig_begin(&rig, &(struct egress_config){ .services = &service, .service_count = 1 });
    service.address = rig_address("192.0.0.64");
    service.to = rig_address("127.0.0.1");
    service.to_port = rig.port;
    rig.ranges = rig_range("192.0.2.0/24"); /* not loopback: only the table leads there */
    fake_asked = 0;
    struct net_policy policy = { .internet = true, .proxy = { .host = STR("socks.internal"), .port = 1080 } };
    begin(&policy);
    struct peer guest = rig_guest(&rig), proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    peer_done(&proxy);
    peer_done(&guest);
    policy.proxy.port = 1081;
    rig_policy(&rig, "one", &policy);
    hand_clock_add(1100);
    pump_some(rig.loop);
    guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    rig.refusal_count = 0;
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_non_null(strstr(rig.refusals[0].text, "--inside does not have this port"));
    assert_false(rig_is_dialed(&rig));
    assert_int_equal(fake_asked, 0);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_proxy_that_nobody_knows_is_a_failure(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.host = STR("proxy.example.net");
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
    check_refused(&guest, "leads nowhere");
    peer_done(&guest);
    rig_end(&rig);
}

static void the_proxys_own_name_is_one_of_the_sandboxs_questions(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.host = STR("proxy.example.net");
    begin(&policy);
    fake_asked = 0;
    fake_has_no_share = true;
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_MANY_QUESTIONS);
    assert_int_equal(fake_asked, 0);
    peer_done(&guest);
    /* An answer that is there already costs nothing. */
    fake_knows = true;
    guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { 127, 0, 0, 1 } }, 1);
    struct peer proxy = rig_accept(&rig);
    fake_knows = fake_has_no_share = false;
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

static void a_silent_proxy_is_given_up(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    hand_clock_add(LIMIT_EGRESS_DIAL_MS);
    check_refused(&guest, "took too long");
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

static void the_next_address_of_a_silent_proxy_is_tried(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.host = STR("proxy.example.net");
    begin(&policy);
    struct rig_silent silent = rig_silent(&rig, "127.0.0.9");
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, (const char[][4]){ { 127, 0, 0, 9 }, { 127, 0, 0, 1 } }, 2);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    /* One that has answered is not given up for another address; but it has only the time that is left. */
    peer_say(&proxy, STR("\5"));
    hand_clock_add(LIMIT_EGRESS_DIAL_MS - LIMIT_EGRESS_DIAL_ONE_MS);
    check_refused(&guest, "took too long");
    peer_done(&proxy);
    peer_done(&guest);
    rig_silent_done(&silent);
    rig_end(&rig);
}

static void a_guest_that_goes_takes_its_tunnel_along(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, heard(&proxy, STR("\5\1\0")));
    egress_exited(rig.egress, "one");
    PUMP_UNTIL(rig.loop, peer_is_closed(&proxy) && peer_is_closed(&guest));
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

static void another_proxy_cuts_what_goes_through_the_old_one(void **state)
{
    (void)state;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    begin(&policy);
    struct peer guest = rig_guest(&rig);
    struct peer proxy = rig_accept(&rig);
    peer_say(&proxy, STR("\5\0"));
    peer_say(&proxy, STR("\5\0\0\1\0\0\0\0\0\0hello"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "hello"));
    rig_policy(&rig, "one", &policy); /* the same again */
    pump_some(rig.loop);
    assert_false(peer_is_closed(&guest));
    policy.proxy.username = STR("user");
    rig_policy(&rig, "one", &policy);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest) && peer_is_closed(&proxy));
    peer_done(&proxy);
    peer_done(&guest);
    rig_end(&rig);
}

/* ---- TLS ---- */

static struct test_certificate certificate;
static struct tls_key *key;
static struct tls_server *tls;
static struct stream *proxy_stream;
static struct buf proxy_got;

static bool sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len,
                 struct err *err)
{
    (void)context;
    return tls_key_sign(key, want, out, out_len, err);
}

static void on_proxy_input(struct stream *stream)
{
    buf_add(&proxy_got, buf_str(&stream->in));
    buf_drop(&stream->in, stream->in.len);
}

static void on_proxy_end(struct stream *stream, const struct err *err)
{
    (void)stream;
    (void)err;
}

static const struct stream_events proxy_events = { .on_input = on_proxy_input, .on_end = on_proxy_end };

static void begin_tls(struct net_policy *policy, const char *server_name)
{
    struct err err;

    certificate = test_certificate_make("P-256", "DNS:proxy.example.net");
    key = tls_key_read(str_from(certificate.key), &err);
    tls = tls_server_new(&(struct tls_server_config){ .loop = rig.loop, .sign = sign });
    struct str chain = str_from(certificate.chain);
    assert_true(tls_server_use(tls, &chain, 1, &err));
    proxy_got = buf_make(NULL, 65536);
    *policy = proxied();
    policy->proxy.tls = true;
    policy->proxy.server_name = str_from(server_name);
    policy->proxy.ca_pem = str_from(certificate.chain);
    begin(policy);
}

static void accept_tls(void)
{
    PUMP_UNTIL(rig.loop, rig_is_dialed(&rig));
    int fd = accept4(rig.outside_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    rig_no_delay(fd);
    proxy_stream = stream_new(rig.loop, fd, 65536, &proxy_events, NULL);
    tls_accept(tls, proxy_stream);
    stream_read(proxy_stream, true);
}

static void end_tls(void)
{
    stream_free(proxy_stream);
    egress_free(rig.egress);
    rig.egress = NULL;
    pump_some(rig.loop);
    tls_server_free(tls);
    rig_end(&rig);
    tls_key_free(key);
    free(certificate.key);
    free(certificate.chain);
    buf_done(&proxy_got);
}

static void a_proxy_with_tls_is_verified_and_used(void **state)
{
    (void)state;
    struct net_policy policy;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    struct peer guest = rig_guest(&rig);
    accept_tls();
    PUMP_UNTIL(rig.loop, str_eq(buf_str(&proxy_got), STR("\5\1\0")));
    stream_write(proxy_stream, STR("\5\0"));
    PUMP_UNTIL(rig.loop, proxy_got.len == 3 + 10);
    stream_write(proxy_stream, STR("\5\0\0\1\0\0\0\0\0\0hello"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "hello"));
    buf_clear(&proxy_got);
    peer_say(&guest, STR("good day"));
    PUMP_UNTIL(rig.loop, str_eq(buf_str(&proxy_got), STR("good day")));
    peer_done(&guest);
    end_tls();
}

/* A new front sends every policy again, while connections to the proxy are under way. */
static void the_same_policy_again_disturbs_nothing(void **state)
{
    static const char here[1][4] = { { 127, 0, 0, 1 } };

    (void)state;
    struct net_policy policy;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    policy.proxy.host = STR("proxy.example.net");
    rig_policy(&rig, "one", &policy);
    struct peer guest = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, fake_open_count == 1); /* the proxy is looked up */
    rig_policy(&rig, "one", &policy);
    fake_answer(DNS_FINE, here, 1);
    accept_tls();
    rig_policy(&rig, "one", &policy);
    PUMP_UNTIL(rig.loop, str_eq(buf_str(&proxy_got), STR("\5\1\0")));
    rig_policy(&rig, "one", &policy);
    stream_write(proxy_stream, STR("\5\0"));
    PUMP_UNTIL(rig.loop, proxy_got.len == 3 + 10);
    stream_write(proxy_stream, STR("\5\0\0\1\0\0\0\0\0\0hello"));
    PUMP_UNTIL(rig.loop, peer_heard(&guest, "hello"));
    peer_done(&guest);
    end_tls();
}

static void a_proxy_with_another_name_is_not_used(void **state)
{
    (void)state;
    struct net_policy policy;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "other.example.net");
    struct peer guest = rig_guest(&rig);
    accept_tls();
    check_refused(&guest, "hostname mismatch");
    assert_int_equal(proxy_got.len, 0); /* not a byte of SOCKS */
    peer_done(&guest);
    end_tls();
}

static void a_proxy_that_speaks_plainly_is_not_used(void **state)
{
    (void)state;
    struct net_policy policy;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    struct peer guest = rig_guest(&rig);
    struct peer plain = rig_accept(&rig);
    peer_say(&plain, STR("\5\0\5\0\0\1\0\0\0\0\0\0hello"));
    check_refused(&guest, "the egress proxy");
    assert_int_equal(guest.heard.len, 0);
    peer_done(&guest);
    peer_done(&plain);
    proxy_stream = NULL;
    end_tls();
}

/* Takes what has been dialed and hangs up: a handshake that fails. */
static unsigned hang_up_on_all(void)
{
    unsigned count = 0;

    for (int fd; (fd = accept4(rig.outside_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; count++)
        close(fd);
    return count;
}

static void handshakes_wait_for_their_turn(void **state)
{
    enum { GUESTS = LIMIT_EGRESS_HANDSHAKES_S + LIMIT_EGRESS_HANDSHAKES };
    struct peer guests[GUESTS];
    struct net_policy policy;
    unsigned seen = 0;

    (void)state;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    proxy_stream = NULL;
    for (unsigned i = 0; i < GUESTS; i++)
        guests[i] = rig_guest(&rig);
    for (int i = 0; i < 2; i++)
        pump_some(rig.loop);
    seen = hang_up_on_all();
    assert_int_equal(seen, LIMIT_EGRESS_HANDSHAKES); /* the others wait for these */
    for (int i = 0; i < 4; i++) {                    /* 20 ms each */
        pump_some(rig.loop);
        seen += hang_up_on_all();
    }
    assert_in_range(seen, LIMIT_EGRESS_HANDSHAKES_S, LIMIT_EGRESS_HANDSHAKES_S + 4); /* and now for time to pass */
    hand_clock_add(1000);
    PUMP_UNTIL(rig.loop, (seen += hang_up_on_all()) == GUESTS);
    for (unsigned i = 0; i < GUESTS; i++)
        PUMP_UNTIL(rig.loop, peer_is_closed(&guests[i]));
    for (unsigned i = 0; i < GUESTS; i++)
        peer_done(&guests[i]);
    end_tls();
}

static void a_handshake_that_waits_too_long_is_told(void **state)
{
    struct peer guests[LIMIT_EGRESS_HANDSHAKES + 1];
    struct net_policy policy;

    (void)state;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    proxy_stream = NULL;
    for (size_t i = 0; i < COUNT_OF(guests); i++) {
        guests[i] = rig_guest(&rig);
        pump_some(rig.loop);
    }
    hand_clock_add(LIMIT_EGRESS_DIAL_MS);
    PUMP_UNTIL(rig.loop, peer_is_closed(&guests[LIMIT_EGRESS_HANDSHAKES]));
    hand_clock_add(1100);
    bool is_told = false;
    PUMP_UNTIL(rig.loop, rig.refusal_count > 0);
    for (uint32_t i = 0; i < rig.refusal_count; i++)
        is_told |= strstr(rig.refusals[i].text, "too many TLS handshakes") != NULL;
    assert_true(is_told);
    for (size_t i = 0; i < COUNT_OF(guests); i++)
        peer_done(&guests[i]);
    end_tls();
}

/* With another certificate for the proxy: whom to trust is made anew while handshakes are under way and others wait. */
static void a_new_policy_cuts_handshakes_under_way(void **state)
{
    struct peer guests[LIMIT_EGRESS_HANDSHAKES + 2];
    struct net_policy policy;

    (void)state;
    rig_begin(&rig, NULL);
    begin_tls(&policy, "proxy.example.net");
    proxy_stream = NULL;
    for (size_t i = 0; i < COUNT_OF(guests); i++)
        guests[i] = rig_guest(&rig);
    PUMP_UNTIL(rig.loop, rig_is_dialed(&rig));
    pump_some(rig.loop);
    struct test_certificate other = test_certificate_make("P-256", "DNS:proxy.example.net");
    policy.proxy.ca_pem = str_from(other.chain);
    rig_policy(&rig, "one", &policy);
    for (size_t i = 0; i < COUNT_OF(guests); i++) {
        PUMP_UNTIL(rig.loop, peer_is_closed(&guests[i]));
        peer_done(&guests[i]);
    }
    (void)hang_up_on_all();
    struct peer guest = rig_guest(&rig); /* there is room again */
    PUMP_UNTIL(rig.loop, rig_is_dialed(&rig));
    peer_done(&guest);
    test_certificate_done(&other);
    end_tls();
}

static void a_certificate_that_is_none_is_told(void **state)
{
    (void)state;
    struct err err;
    rig_begin(&rig, NULL);
    struct net_policy policy = proxied();
    policy.proxy.tls = true;
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    net_policy_pack(&packed, &policy);
    assert_false(egress_policy(rig.egress, "one", buf_str(&packed), &err)); /* the rig has no roots */
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    policy.proxy.ca_pem = STR("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    buf_clear(&packed);
    net_policy_pack(&packed, &policy);
    assert_false(egress_policy(rig.egress, "one", buf_str(&packed), &err));
    assert_int_equal(err.kind, ERR_INVALID);
    rig_end(&rig);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_connection_goes_through_the_proxy),
        CASE(the_proxy_gets_the_password_and_the_sandbox_does_not),
        CASE(a_name_that_allows_is_what_the_proxy_gets),
        CASE(what_the_rules_refuse_does_not_reach_the_proxy),
        CASE(the_proxys_own_name_is_looked_up),
        CASE(a_proxy_at_a_private_address_is_refused),
        CASE(a_proxy_at_a_name_that_stays_inside_is_its_service),
        CASE(a_proxy_that_nobody_knows_is_a_failure),
        CASE(the_proxys_own_name_is_one_of_the_sandboxs_questions),
        CASE(a_silent_proxy_is_given_up),
        CASE(a_guest_that_goes_takes_its_tunnel_along),
        CASE(another_proxy_cuts_what_goes_through_the_old_one),
        CASE(a_proxy_with_tls_is_verified_and_used),
        CASE(the_same_policy_again_disturbs_nothing),
        CASE(a_proxy_with_another_name_is_not_used),
        CASE(a_proxy_that_speaks_plainly_is_not_used),
        CASE(handshakes_wait_for_their_turn),
        CASE(a_handshake_that_waits_too_long_is_told),
        CASE(a_new_policy_cuts_handshakes_under_way),
        CASE(a_certificate_that_is_none_is_told),
        CASE(the_next_address_of_a_silent_proxy_is_tried),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
