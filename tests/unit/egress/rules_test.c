/*
 * Header rules: the guest is a TLS client that trusts the sandbox's authority, and the rig's outside is the host, with TLS
 * of its own. The policy is open, and the host's name is looked up by the fake resolver.
 */
#include "egress/intercept.h"

#include <fcntl.h>
#include <stdlib.h>

#include "../io/test_certificate.h"
#include "hello.h"
#include "io/tls_authority.h"
#include "io/tls_key.h"
#include "rig.h"

#define HOST "api.example.com"

static struct rig rig;
static struct test_certificate certificate;
static struct tls_key *key;
static struct tls_server *host_tls;
static struct tls_client *guest_tls;
static uint32_t flows_max; /* 0: the rig's own */
static const uint8_t seed[TLS_SEED_BYTES] = { 7, 7, 7 };

/* One end of a TLS connection. */
struct side {
    struct stream *stream;
    struct buf got;
    unsigned ends, failures;
    struct err error;
};

static bool sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len,
                 struct err *err)
{
    (void)context;
    return tls_key_sign(key, want, out, out_len, err);
}

static void on_input(struct stream *stream)
{
    struct side *side = stream->owner;

    buf_add(&side->got, buf_str(&stream->in));
    buf_drop(&stream->in, stream->in.len);
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct side *side = stream->owner;

    if (err) {
        side->failures++;
        side->error = *err;
    } else {
        side->ends++;
    }
}

static const struct stream_events events = { .on_input = on_input, .on_end = on_end };

static struct net_header headers[] = { { STR_INIT("Authorization"), STR_INIT("Bearer s3cret") },
                                       { STR_INIT("X-Team"), STR_INIT("blue") } };
static struct net_transform transforms[] = { { STR_INIT(HOST), 2, headers } };

static struct net_policy with_rules(void)
{
    struct net_policy policy = { .internet = true, .transform_count = 1, .transforms = transforms };

    memcpy(policy.seed, seed, sizeof seed);
    return policy;
}

/* As front does it: from the seed, without asking egress. */
static void guest_trusts(const uint8_t authority_seed[TLS_SEED_BYTES])
{
    struct err err;
    struct tls_authority *authority = tls_authority_new(authority_seed, &err);
    struct str pem = tls_authority_pem(authority);

    tls_client_unref(take_ptr(&guest_tls));
    guest_tls = tls_client_new(rig.loop, &pem, &err);
    assert_non_null(guest_tls);
    tls_authority_free(authority);
}

static void begin_with(const char *names, const struct net_policy *policy)
{
    struct err err;
    struct egress_config config = { 0 };

    certificate = test_certificate_make("P-256", names);
    key = tls_key_read(str_from(certificate.key), &err);
    config.roots = str_from(certificate.chain);
    rig_begin(&rig, &config);
    /* Where rules apply is the rig's port, which is known only now. */
    egress_free(rig.egress);
    rig.config.tls_port = rig.port;
    if (flows_max)
        rig.config.flows_max = flows_max;
    rig.egress = egress_new(&rig.config);
    host_tls = tls_server_new(&(struct tls_server_config){ .loop = rig.loop, .sign = sign });
    struct str chain = str_from(certificate.chain);
    assert_true(tls_server_use(host_tls, &chain, 1, &err));

    guest_trusts(seed);
    rig_network(&rig, "one");
    rig_policy(&rig, "one", policy);
}

static void begin(void)
{
    struct net_policy policy = with_rules();

    begin_with("DNS:" HOST, &policy);
}

static void end(void)
{
    egress_free(rig.egress);
    rig.egress = NULL;
    pump_some(rig.loop);
    tls_server_free(host_tls);
    tls_client_unref(take_ptr(&guest_tls));
    rig_end(&rig);
    tls_key_free(key);
    free(certificate.key);
    free(certificate.chain);
}

static void side_done(struct side *side)
{
    stream_free(side->stream);
    buf_done(&side->got);
}

/* A guest that opens TLS for this name. */
static void connect_guest(struct side *guest, const char *name)
{
    struct peer plain = rig_guest(&rig);
    struct err err;

    *guest = (struct side){ .got = buf_make(NULL, 1 << 20) };
    guest->stream = stream_new(rig.loop, plain.fd, 65536, &events, guest);
    buf_done(&plain.heard);
    rig_no_delay(plain.fd);
    assert_true(tls_connect(guest_tls, guest->stream, name, &err));
    stream_read(guest->stream, true);
}

static void resolve_host(void)
{
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    assert_string_equal(fake_open->name, HOST);
    fake_answer(DNS_FINE, (const char[][4]){ { 127, 0, 0, 1 } }, 1);
}

static void accept_host(struct side *host)
{
    PUMP_UNTIL(rig.loop, rig_is_dialed(&rig));
    int fd = accept4(rig.outside_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    rig_no_delay(fd);
    *host = (struct side){ .got = buf_make(NULL, 1 << 20) };
    host->stream = stream_new(rig.loop, fd, 65536, &events, host);
    tls_accept(host_tls, host->stream);
    stream_read(host->stream, true);
}

/* The same by way of a proxy, which the rig's outside is first. */
static void accept_by_proxy(struct side *host)
{
    struct peer proxy = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_heard(&proxy, "\5\1"));
    peer_say(&proxy, STR("\5\0"));
    PUMP_UNTIL(rig.loop, peer_heard(&proxy, HOST)); /* by name */
    peer_say(&proxy, STR("\5\0\0\1\0\0\0\0\0\0"));
    /* What comes now is the host's: TLS through the proxy. */
    *host = (struct side){ .got = buf_make(NULL, 1 << 20) };
    host->stream = stream_new(rig.loop, dup(proxy.fd), 65536, &events, host);
    peer_done(&proxy);
    tls_accept(host_tls, host->stream);
    stream_read(host->stream, true);
}

static bool got(const struct side *side, const char *text)
{
    return memmem(side->got.data ? side->got.data : "", side->got.len, text, strlen(text));
}

static void headers_are_set_and_the_rest_is_as_the_guest_wrote_it(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("POST /v1/a%2Fb?x=1 HTTP/1.1\r\nHost: " HOST "\r\nauthorization: Bearer guess\r\n"
                                   "X-Other: kept\r\nConnection: keep-alive, X-Hop\r\nX-Hop: dropped\r\n"
                                   "Content-Length: 5\r\n\r\nhello"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "hello"));
    assert_true(got(&host, "POST /v1/a%2Fb?x=1 HTTP/1.1\r\nHost: " HOST "\r\n"));
    assert_true(got(&host, "\r\nAuthorization: Bearer s3cret\r\n"));
    assert_true(got(&host, "\r\nX-Team: blue\r\n"));
    assert_true(got(&host, "\r\nX-Other: kept\r\n"));
    assert_true(got(&host, "\r\nContent-Length: 5\r\n"));
    assert_false(got(&host, "guess"));
    assert_false(got(&host, "X-Hop"));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Answer: yes\r\n\r\nfine"));
    PUMP_UNTIL(rig.loop, got(&guest, "fine"));
    assert_true(got(&guest, "HTTP/1.1 200 OK\r\n"));
    assert_true(got(&guest, "\r\nX-Answer: yes\r\n"));
    assert_false(got(&guest, "s3cret"));

    /* The guest's connection lives on; the next request has a connection of its own to the host. */
    buf_clear(&guest.got);
    side_done(&host);
    stream_write(guest.stream, STR("GET /2 HTTP/1.1\r\nHost: " HOST ":"));
    char port[32];
    (void)snprintf(port, sizeof port, "%u\r\n\r\n", rig.port);
    stream_write(guest.stream, str_from(port));
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "GET /2 ") && got(&host, "Bearer s3cret"));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
    PUMP_UNTIL(rig.loop, got(&guest, "abc"));
    side_done(&host);
    side_done(&guest);
    PUMP_UNTIL(rig.loop, rig.made == 1);
    end();
}

static void answer_host(struct side *guest, struct side *host)
{
    accept_host(host);
    PUMP_UNTIL(rig.loop, got(host, "Bearer s3cret"));
    stream_write(host->stream, STR("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"));
    PUMP_UNTIL(rig.loop, got(guest, "fine"));
    side_done(host);
    buf_clear(&guest->got);
}

static void another_seed_is_for_new_connections(void **state)
{
    (void)state;
    static const uint8_t other_seed[TLS_SEED_BYTES] = { 8, 8, 8 };
    struct net_policy policy = with_rules();
    struct side old, late, fresh, host;
    begin();
    connect_guest(&old, HOST);
    stream_write(old.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    answer_host(&old, &host);

    memcpy(policy.seed, other_seed, sizeof other_seed);
    rig_policy(&rig, "one", &policy);
    connect_guest(&late, HOST); /* has not heard of it */
    PUMP_UNTIL(rig.loop, late.failures);
    assert_int_equal(late.got.len, 0);
    guest_trusts(other_seed);
    connect_guest(&fresh, HOST);
    stream_write(fresh.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    answer_host(&fresh, &host);

    /* The old connection goes on, and after it the old authority is gone. */
    stream_write(old.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    answer_host(&old, &host);
    side_done(&old);
    pump_some(rig.loop);
    stream_write(fresh.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    answer_host(&fresh, &host);
    side_done(&fresh);
    side_done(&late);
    end();
}

static void check_answer(const char *request, const char *status)
{
    struct side guest;

    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, str_from(request));
    resolve_host();
    PUMP_UNTIL(rig.loop, got(&guest, status));
    assert_false(rig_is_dialed(&rig));
    assert_false(got(&guest, "s3cret"));
    side_done(&guest);
    end();
}

static void a_request_for_another_host_is_refused(void **state)
{
    (void)state;
    check_answer("GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", "HTTP/1.1 421 ");
    check_answer("GET / HTTP/1.1\r\nHost: " HOST ".evil.net\r\n\r\n", "HTTP/1.1 421 ");
    check_answer("GET / HTTP/1.1\r\nHost: " HOST ":1\r\n\r\n", "HTTP/1.1 421 ");
    check_answer("GET / HTTP/1.0\r\n\r\n", " 421 ");
}

static void requests_that_would_show_the_headers_or_smuggle_are_refused(void **state)
{
    (void)state;
    check_answer("TRACE / HTTP/1.1\r\nHost: " HOST "\r\n\r\n", "HTTP/1.1 405 ");
    check_answer("GET / HTTP/1.1\r\nHost: " HOST "\r\nHost: evil.net\r\n\r\n", "HTTP/1.1 400 ");
    check_answer("POST / HTTP/1.1\r\nHost: " HOST
                 "\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 "HTTP/1.1 400 ");
    check_answer("GET http://evil.net/ HTTP/1.1\r\nHost: " HOST "\r\n\r\n", "HTTP/1.1 400 ");
    check_answer("GET / HTTP/1.1\nHost: " HOST "\n\n", "HTTP/1.1 400 ");
}

static void a_host_with_another_certificate_gets_nothing(void **state)
{
    (void)state;
    struct side guest, host;
    struct net_policy policy = with_rules();
    begin_with("DNS:other.example.com", &policy);
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&guest, "HTTP/1.1 502 "));
    assert_true(got(&guest, "hostname mismatch"));
    assert_int_equal(host.got.len, 0);
    side_done(&host);
    side_done(&guest);
    end();
}

static bool log_has(const char *line)
{
    for (uint32_t i = 0; i < rig.refusal_count; i++)
        if (rig.refusals[i].why == FLOWS_NO_ANSWER && strstr(rig.refusals[i].text, line))
            return true;
    return false;
}

/* The guest has this answer, and the log has this line. */
static void check_failed(struct side *guest, const char *status, const char *reason)
{
    char line[160];

    (void)snprintf(line, sizeof line, "request to " HOST " failed: %s", reason);
    PUMP_UNTIL(rig.loop, got(guest, status));
    if (!got(guest, reason))
        fail_msg("'%.*s' does not contain '%s'", STR_ARG(buf_str(&guest->got)), reason);
    PUMP_UNTIL(rig.loop, log_has(line));
}

static void ask_host(struct side *guest)
{
    connect_guest(guest, HOST);
    stream_write(guest->stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
}

static void a_host_that_does_not_accept_is_told(void **state)
{
    (void)state;
    struct side guest;
    begin();
    (void)shutdown(rig.outside_fd, SHUT_RDWR);
    ask_host(&guest);
    resolve_host();
    check_failed(&guest, "HTTP/1.1 502 ", "connect: Connection refused");
    assert_true(got(&guest, HOST " could not be reached: "));
    side_done(&guest);
    end();
}

static void a_host_that_is_silent_is_given_up(void **state)
{
    (void)state;
    static const char addresses[2][4] = { { 127, 0, 0, 8 }, { 127, 0, 0, 9 } };
    struct side guest;
    begin();
    struct rig_silent first = rig_silent(&rig, "127.0.0.8"), second = rig_silent(&rig, "127.0.0.9");
    rig.to = rig_address("198.51.100.200");
    ask_host(&guest);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, addresses, 2);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    pump_some(rig.loop);
    hand_clock_add(LIMIT_EGRESS_DIAL_MS - LIMIT_EGRESS_DIAL_ONE_MS - 1000);
    pump_some(rig.loop);
    assert_int_equal(guest.got.len, 0);
    hand_clock_add(1000);
    check_failed(&guest, "HTTP/1.1 504 ", "it did not accept a connection in time");
    side_done(&guest);
    rig_silent_done(&first);
    rig_silent_done(&second);
    end();
}

static void a_name_that_cannot_be_looked_up_is_told(void **state)
{
    (void)state;
    struct side guest;
    begin();
    ask_host(&guest);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_NO_SUCH_NAME, NULL, 0);
    check_failed(&guest, "HTTP/1.1 502 ", "its name leads nowhere");
    side_done(&guest);
    ask_host(&guest);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_SERVER_FAILURE, NULL, 0);
    check_failed(&guest, "HTTP/1.1 504 ", "no name server has answered");
    side_done(&guest);
    ask_host(&guest);
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    hand_clock_add(LIMIT_EGRESS_RESOLVE_MS);
    check_failed(&guest, "HTTP/1.1 504 ", "no name server has answered");
    assert_int_equal(fake_open_count, 0);
    assert_false(rig_is_dialed(&rig));
    side_done(&guest);
    end();
}

static void a_host_that_does_not_finish_its_handshake_is_given_up(void **state)
{
    enum { GUESTS = 8 * LIMIT_EGRESS_HANDSHAKES, LATE = GUESTS / 2 }; /* that one's turn would come after 40 seconds */
    static struct side guests[GUESTS];
    static struct peer hosts[GUESTS];

    (void)state;
    begin();
    for (int i = 0; i < GUESTS; i++) {
        ask_host(&guests[i]);
        if (i == 0)
            resolve_host(); /* then it is known */
        hosts[i] = rig_accept(&rig);
    }
    PUMP_UNTIL(rig.loop, guests[LATE].got.len || (hand_clock_add(100), false));
    check_failed(&guests[LATE], "HTTP/1.1 504 ", "too many TLS handshakes of this sandbox are before it");
    (void)peer_listen(&hosts[LATE]);
    assert_int_equal(hosts[LATE].heard.len, 0); /* it was connected, and waited for its turn */
    check_failed(&guests[0], "HTTP/1.1 502 ", "the TLS handshake took too long");
    for (int i = 0; i < GUESTS; i++) {
        side_done(&guests[i]);
        peer_done(&hosts[i]);
    }
    end();
}

static void a_host_that_does_not_answer_is_given_up(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("PUT / HTTP/1.1\r\nHost: " HOST "\r\nContent-Length: 4\r\n\r\nab"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "ab"));
    hand_clock_add(LIMIT_EGRESS_ANSWER_MS - 1000);
    pump_some(rig.loop);
    stream_write(guest.stream, STR("cd")); /* while the request goes on the host is not waited for */
    PUMP_UNTIL(rig.loop, got(&host, "abcd"));
    hand_clock_add(LIMIT_EGRESS_ANSWER_MS - 1000);
    pump_some(rig.loop);
    assert_int_equal(guest.got.len, 0);
    hand_clock_add(1000);
    check_failed(&guest, "HTTP/1.1 504 ", "it has sent nothing for 10 minutes");
    PUMP_UNTIL(rig.loop, host.failures + host.ends > 0);
    side_done(&host);

    /* An answer that has begun is not hurried. */
    stream_write(guest.stream, STR("GET /2 HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "GET /2 "));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nslow"));
    PUMP_UNTIL(rig.loop, got(&guest, "slow"));
    hand_clock_add(2 * LIMIT_EGRESS_ANSWER_MS);
    pump_some(rig.loop);
    stream_write(host.stream, STR("fine"));
    PUMP_UNTIL(rig.loop, got(&guest, "slowfine"));
    side_done(&host);
    side_done(&guest);
    end();
}

static void the_next_address_of_a_host_is_tried(void **state)
{
    (void)state;
    static const char addresses[3][4] = { { 127, 0, 0, 8 }, { 127, 0, 0, 9 }, { 127, 0, 0, 1 } };
    struct side guest, host;
    begin();
    struct rig_silent silent = rig_silent(&rig, "127.0.0.8"); /* and nothing listens at 127.0.0.9 */
    rig.to = rig_address("198.51.100.200");                   /* the guest's own idea */
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET /1 HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    PUMP_UNTIL(rig.loop, fake_open_count == 1);
    fake_answer(DNS_FINE, addresses, 3);
    pump_some(rig.loop);
    assert_false(rig_is_dialed(&rig));
    hand_clock_add(LIMIT_EGRESS_DIAL_ONE_MS);
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "GET /1 ") && got(&host, "Bearer s3cret"));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"));
    PUMP_UNTIL(rig.loop, got(&guest, "fine"));
    side_done(&host);

    /* The next request goes to the one that has accepted, and does not wait for the others. */
    stream_write(guest.stream, STR("GET /2 HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "GET /2 "));

    /* A new policy that denies the address that was reached cuts the request. */
    struct net_range reached = rig_range("127.0.0.1");
    struct net_policy policy = with_rules();
    policy.deny = &reached;
    policy.deny_count = 1;
    rig_policy(&rig, "one", &policy);
    PUMP_UNTIL(rig.loop, guest.failures + guest.ends > 0 && host.failures + host.ends > 0);
    side_done(&host);
    side_done(&guest);
    rig_silent_done(&silent);
    end();
}

static void the_next_address_is_tried_though_the_guest_chose_one_that_it_was_told(void **state)
{
    (void)state;
    static const char addresses[2][4] = { { 127, 0, 0, 9 }, { 127, 0, 0, 1 } }; /* nothing listens at the first */
    struct side guest, host;
    begin();
    for (int i = 0; i < 2; i++) {
        rig.to = rig_address(i ? "127.0.0.9" : "198.51.100.200");
        ask_host(&guest);
        if (i == 0) { /* then it is known, and not looked up again */
            PUMP_UNTIL(rig.loop, fake_open_count == 1);
            fake_answer(DNS_FINE, addresses, 2);
        }
        accept_host(&host);
        PUMP_UNTIL(rig.loop, got(&host, "Bearer s3cret"));
        assert_int_equal(fake_open_count, 0);
        side_done(&host);
        side_done(&guest);
    }
    end();
}

static void a_program_that_speaks_only_http2_is_refused_and_told_why(void **state)
{
    (void)state;
    begin();
    struct peer guest = rig_guest(&rig);
    auto_buf struct buf hello = hello_make_for(HOST, "h2");
    peer_say(&guest, buf_str(&hello));
    resolve_host();
    PUMP_UNTIL(rig.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, FLOWS_NO_HTTP1);
    assert_non_null(strstr(rig.refusals[0].text, HOST));
    assert_non_null(strstr(rig.refusals[0].text, "which need HTTP/1.1"));
    assert_int_equal(rig.made, 0);
    peer_done(&guest);
    end();
}

static void other_hosts_are_relayed_as_they_are(void **state)
{
    (void)state;
    struct side guest;
    begin();
    connect_guest(&guest, "www.example.com");
    /* The hello goes out as the guest wrote it, to where the guest wanted to go. */
    struct peer outside = rig_accept(&rig);
    PUMP_UNTIL(rig.loop, peer_heard(&outside, "www.example.com"));
    assert_int_equal(fake_open_count, 0);
    peer_done(&outside);
    side_done(&guest);
    end();
}

static void the_rules_do_not_grant_access(void **state)
{
    (void)state;
    struct net_range all = rig_range("0.0.0.0/0");
    struct net_policy policy = with_rules();
    struct side guest;
    policy.deny = &all;
    policy.deny_count = 1;
    begin_with("DNS:" HOST, &policy);
    connect_guest(&guest, HOST);
    PUMP_UNTIL(rig.loop, guest.failures == 1);
    assert_false(rig_is_dialed(&rig));
    side_done(&guest);
    end();
}

static void an_answer_that_breaks_off_does_not_look_complete(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "\r\n\r\n"));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
    PUMP_UNTIL(rig.loop, got(&guest, "abc"));
    stream_abort(host.stream);
    PUMP_UNTIL(rig.loop, guest.failures + guest.ends > 0);
    assert_int_equal(guest.failures, 1); /* no close_notify, no last chunk */
    assert_false(got(&guest, "0\r\n\r\n"));
    side_done(&host);
    side_done(&guest);
    end();
}

static void an_upgrade_becomes_a_relay(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET /ws HTTP/1.1\r\nHost: " HOST
                                   "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "Upgrade: websocket\r\n") && got(&host, "Bearer s3cret"));
    stream_write(host.stream, STR("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                                  "Sec-WebSocket-Accept: a\r\n\r\nfrom the host"));
    PUMP_UNTIL(rig.loop, got(&guest, "from the host"));
    assert_true(got(&guest, "Sec-WebSocket-Accept: a\r\n"));
    stream_write(guest.stream, STR("from the guest"));
    PUMP_UNTIL(rig.loop, got(&host, "from the guest"));
    egress_exited(rig.egress, "one");
    PUMP_UNTIL(rig.loop, host.failures + host.ends > 0 && guest.failures + guest.ends > 0);
    side_done(&host);
    side_done(&guest);
    end();
}

static void a_sandbox_that_ends_takes_its_requests_with_it(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "\r\n\r\n"));
    egress_exited(rig.egress, "one");
    PUMP_UNTIL(rig.loop, host.failures + host.ends > 0 && guest.failures + guest.ends > 0);
    side_done(&host);
    side_done(&guest);
    end();
}

static void connections_to_hosts_with_rules_are_limited(void **state)
{
    (void)state;
    static struct side guests[LIMIT_EGRESS_INTERCEPTS + 1];
    begin();
    for (int i = 0; i < LIMIT_EGRESS_INTERCEPTS; i++) {
        connect_guest(&guests[i], HOST);
        if (i == 0)
            resolve_host(); /* then it is known */
        stream_write(guests[i].stream, STR("TRACE / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
        PUMP_UNTIL(rig.loop, got(&guests[i], " 405 "));
    }
    struct side *last = &guests[LIMIT_EGRESS_INTERCEPTS];
    connect_guest(last, HOST);
    PUMP_UNTIL(rig.loop, last->failures == 1);
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_non_null(strstr(rig.refusals[0].text, "128 open connections to hosts with header rules at most"));
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_MANY_WITH_RULES);
    side_done(last);
    side_done(&guests[0]);
    PUMP_UNTIL(rig.loop, rig.open == LIMIT_EGRESS_INTERCEPTS - 1 || (hand_clock_add(1100), false));
    connect_guest(&guests[0], HOST); /* there is room again */
    stream_write(guests[0].stream, STR("TRACE / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    PUMP_UNTIL(rig.loop, got(&guests[0], " 405 "));
    for (int i = 0; i < LIMIT_EGRESS_INTERCEPTS; i++)
        side_done(&guests[i]);
    end();
}

/* Opens TLS for this name. True: and had an answer; false: was refused. Then it is closed. */
static bool is_accepted(const char *name)
{
    struct side guest;
    char request[128];

    connect_guest(&guest, name);
    (void)snprintf(request, sizeof request, "TRACE / HTTP/1.1\r\nHost: %s\r\n\r\n", name);
    stream_write(guest.stream, str_from(request));
    PUMP_UNTIL(rig.loop, ({
                   if (fake_open_count)
                       fake_answer(DNS_FINE, (const char[][4]){ { 127, 0, 0, 1 } }, 1);
                   got(&guest, " 405 ") || guest.failures;
               }));
    bool is_accepted = got(&guest, " 405 ");
    side_done(&guest);
    return is_accepted;
}

static void check_too_fast(const char *text)
{
    PUMP_UNTIL(rig.loop, rig.refusal_count > 0);
    assert_int_equal(rig.refusals[0].why, FLOWS_TOO_FAST_WITH_RULES);
    assert_non_null(strstr(rig.refusals[0].text, text));
}

static void handshakes_with_one_sandbox_are_limited(void **state)
{
    enum { TRIES = 3 * LIMIT_EGRESS_INTERCEPTS }; /* the clock goes on meanwhile */
    int accepted = 0;

    (void)state;
    begin();
    while (accepted < TRIES && is_accepted(HOST))
        accepted++;
    assert_in_range(accepted, LIMIT_EGRESS_INTERCEPTS, TRIES - 1);
    check_too_fast("refused: a sandbox may open 40 connections to hosts with header rules per second");
    hand_clock_add(1000);
    assert_true(is_accepted(HOST));
    end();
}

static void certificates_for_one_sandbox_are_limited(void **state)
{
    enum { TRIES = 3 * LIMIT_EGRESS_ISSUED };
    struct net_transform below = { STR_INIT("*.example.com"), 2, headers };
    struct net_policy policy = with_rules();
    char name[64] = HOST;
    int accepted = 0;

    (void)state;
    policy.transforms = &below;
    begin_with("DNS:" HOST, &policy);
    while (accepted < TRIES && is_accepted(name)) {
        accepted++;
        (void)snprintf(name, sizeof name, "host-%d.example.com", accepted);
    }
    assert_in_range(accepted, LIMIT_EGRESS_ISSUED, TRIES - 1);
    check_too_fast("refused: a sandbox may connect to 4 new hosts with header rules per second");
    assert_true(is_accepted("host-30.example.com")); /* one that it has */
    hand_clock_add(1000);
    assert_true(is_accepted("one-more.example.com"));
    end();
}

static void large_bodies_go_both_ways_with_backpressure(void **state)
{
    (void)state;
    enum { SIZE = 3 << 20 };
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    buf_done(&guest.got);
    guest.got = buf_make(NULL, SIZE + 4096);
    char *bytes = mem_new(SIZE);
    char head[128];
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)(i * 7 + (i >> 12));
    (void)snprintf(head, sizeof head, "PUT / HTTP/1.1\r\nHost: " HOST "\r\nContent-Length: %d\r\n\r\n", SIZE);
    stream_write_two(guest.stream, str_from(head), str_of(bytes, SIZE));
    resolve_host();
    accept_host(&host);
    buf_done(&host.got);
    host.got = buf_make(NULL, SIZE + 4096);
    PUMP_UNTIL(rig.loop, host.got.len > SIZE);
    assert_memory_equal(host.got.data + host.got.len - SIZE, bytes, SIZE);
    (void)snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", SIZE);
    stream_write_two(host.stream, str_from(head), str_of(bytes, SIZE));
    PUMP_UNTIL(rig.loop, guest.got.len > SIZE);
    assert_memory_equal(guest.got.data + guest.got.len - SIZE, bytes, SIZE);
    free(bytes);
    side_done(&host);
    side_done(&guest);
    end();
}

static void through_a_proxy_the_host_is_still_verified(void **state)
{
    (void)state;
    struct side guest, host;
    struct net_policy policy = with_rules();
    begin_with("DNS:" HOST, &policy);
    policy.proxy.host = STR("127.0.0.1");
    policy.proxy.port = rig.port;
    rig_policy(&rig, "one", &policy);
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    accept_by_proxy(&host);
    PUMP_UNTIL(rig.loop, got(&host, "Bearer s3cret"));
    stream_write(host.stream, STR("HTTP/1.1 204 No Content\r\n\r\n"));
    PUMP_UNTIL(rig.loop, got(&guest, "HTTP/1.1 204 "));
    side_done(&host);
    side_done(&guest);
    end();
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void begin_perhaps_by_proxy(bool by_proxy)
{
    struct net_policy policy = with_rules();

    begin_with("DNS:" HOST, &policy);
    if (!by_proxy)
        return;
    policy.proxy.host = STR("127.0.0.1");
    policy.proxy.port = rig.port;
    rig_policy(&rig, "one", &policy);
}

/* With a request under way. Returns how many descriptors egress has for it. */
static unsigned open_with_rules(struct side *guest, struct side *host, bool by_proxy)
{
    begin_perhaps_by_proxy(by_proxy);
    unsigned before = open_descriptors();
    connect_guest(guest, HOST);
    stream_write(guest->stream, STR("GET / HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    if (by_proxy)
        accept_by_proxy(host);
    else
        accept_host(host);
    PUMP_UNTIL(rig.loop, got(host, "Bearer s3cret"));
    return open_descriptors() - before - 2; /* the guest's and the host's own */
}

static void a_connection_with_rules_counts_as_the_descriptors_that_it_has(void **state)
{
    (void)state;
    for (int by_proxy = 0; by_proxy < 2; by_proxy++) {
        struct side guest, host;
        uint32_t places = by_proxy ? 3 : 2;
        flows_max = places + 1; /* one place is free for others then: half of all, before the last was taken */
        assert_int_equal(open_with_rules(&guest, &host, by_proxy), 2 * places);
        side_done(&host);
        side_done(&guest);
        end();

        flows_max = places;
        begin_perhaps_by_proxy(by_proxy);
        connect_guest(&guest, HOST);
        resolve_host();
        PUMP_UNTIL(rig.loop, guest.failures == 1);
        PUMP_UNTIL(rig.loop, rig.refusal_count == 1 || (hand_clock_add(1100), false));
        assert_int_equal(rig.refusals[0].why, FLOWS_TOO_MANY_OF_ALL);
        side_done(&guest);
        /* All of it was given back. */
        struct side again;
        connect_guest(&again, "www.example.com");
        struct peer outside = rig_accept(&rig);
        peer_done(&outside);
        side_done(&again);
        end();
    }
    flows_max = 0;
}

static void rules_without_a_seed_are_refused(void **state)
{
    (void)state;
    struct net_policy policy = with_rules();
    struct err err;
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    rig_begin(&rig, NULL);
    net_policy_pack(&packed, &policy);
    assert_false(egress_policy(rig.egress, "one", buf_str(&packed), &err)); /* the rig has no roots */
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    memset(policy.seed, 0, sizeof policy.seed);
    buf_clear(&packed);
    net_policy_pack(&packed, &policy);
    assert_false(egress_policy(rig.egress, "one", buf_str(&packed), &err));
    assert_int_equal(err.kind, ERR_INVALID);
    rig_end(&rig);
}

/* It has become the host's, say. */
static void an_address_is_judged_before_each_dial(void **state)
{
    (void)state;
    struct side guest, host;
    begin();
    connect_guest(&guest, HOST);
    stream_write(guest.stream, STR("GET /1 HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    resolve_host();
    accept_host(&host);
    PUMP_UNTIL(rig.loop, got(&host, "GET /1 "));
    stream_write(host.stream, STR("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"));
    PUMP_UNTIL(rig.loop, got(&guest, "fine"));
    side_done(&host);
    rig.ranges = rig_range("10.0.0.0/8");
    stream_write(guest.stream, STR("GET /2 HTTP/1.1\r\nHost: " HOST "\r\n\r\n"));
    PUMP_UNTIL(rig.loop, got(&guest, "HTTP/1.1 502 ") || rig_is_dialed(&rig));
    assert_false(rig_is_dialed(&rig));
    hand_clock_add(1100);
    PUMP_UNTIL(rig.loop, rig.refusal_count == 1);
    assert_int_equal(rig.refusals[0].why, NET_RULE_NOT_PUBLIC);
    side_done(&guest);
    end();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(an_address_is_judged_before_each_dial),
        CASE(headers_are_set_and_the_rest_is_as_the_guest_wrote_it),
        CASE(another_seed_is_for_new_connections),
        CASE(a_request_for_another_host_is_refused),
        CASE(requests_that_would_show_the_headers_or_smuggle_are_refused),
        CASE(a_host_with_another_certificate_gets_nothing),
        CASE(a_host_that_does_not_accept_is_told),
        CASE(a_host_that_is_silent_is_given_up),
        CASE(a_name_that_cannot_be_looked_up_is_told),
        CASE(a_host_that_does_not_finish_its_handshake_is_given_up),
        CASE(a_host_that_does_not_answer_is_given_up),
        CASE(the_next_address_of_a_host_is_tried),
        CASE(the_next_address_is_tried_though_the_guest_chose_one_that_it_was_told),
        CASE(a_program_that_speaks_only_http2_is_refused_and_told_why),
        CASE(other_hosts_are_relayed_as_they_are),
        CASE(the_rules_do_not_grant_access),
        CASE(an_answer_that_breaks_off_does_not_look_complete),
        CASE(an_upgrade_becomes_a_relay),
        CASE(a_sandbox_that_ends_takes_its_requests_with_it),
        CASE(connections_to_hosts_with_rules_are_limited),
        CASE(handshakes_with_one_sandbox_are_limited),
        CASE(certificates_for_one_sandbox_are_limited),
        CASE(large_bodies_go_both_ways_with_backpressure),
        CASE(through_a_proxy_the_host_is_still_verified),
        CASE(a_connection_with_rules_counts_as_the_descriptors_that_it_has),
        CASE(rules_without_a_seed_are_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
