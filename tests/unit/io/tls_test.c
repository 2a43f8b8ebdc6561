/*
 * Two streams with TLS, a client and a server, and between them a wire that the test moves bytes along: in pieces of any
 * size, changed, or cut off.
 */
#include "io/tls.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/limits.h"
#include "base/mem.h"
#include "io/filter.h"
#include "io/pump.h"
#include "io/splice.h"
#include "io/test_certificate.h"
#include "io/tls_inside.h"
#include "io/tls_key.h"

enum { IN_CAP = 64 * 1024 };

struct side {
    struct stream *stream;
    struct buf got;
    unsigned drains, ends, failures;
    struct err error;
    bool keeps_input;
};

static struct loop *loop;
static struct workers *workers;
static struct tls_server *server;
static struct tls_client *client;
static struct tls_key *keys[2];
static struct test_certificate certificates[2];
static size_t certificate_count;
static struct side near, far;    /* server, client */
static int wire[2];              /* the ends that the test holds: of the server's stream, of the client's */
static size_t piece;             /* bytes that the wire carries at a time; 0: as many as there are */
static struct buf on_the_way[2]; /* from the server, from the client */
static bool is_cut[2];
static unsigned signatures, handshakes_max;
static bool cannot_sign;

static void on_input(struct stream *s)
{
    struct side *side = s->owner;

    if (side->keeps_input)
        return;
    buf_add(&side->got, buf_str(&s->in));
    buf_drop(&s->in, s->in.len);
}

static void on_drained(struct stream *s)
{
    ((struct side *)s->owner)->drains++;
}

static void on_end(struct stream *s, const struct err *err)
{
    struct side *side = s->owner;

    if (err) {
        side->failures++;
        side->error = *err;
    } else {
        side->ends++;
    }
}

static void on_spliced(struct stream *s)
{
    (void)s;
}

static const struct stream_events events = {
    .on_input = on_input, .on_drained = on_drained, .on_end = on_end, .on_spliced = on_spliced
};

static bool sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len,
                 struct err *err)
{
    (void)context;
    __atomic_add_fetch(&signatures, 1, __ATOMIC_RELAXED);
    if (cannot_sign)
        return err_set(err, ERR_UNAVAILABLE, "the test says no");
    for (size_t i = 0; i < certificate_count; i++)
        if (memcmp(tls_key_id(keys[i]), want->key_id, TLS_KEY_ID_BYTES) == 0)
            return tls_key_sign(keys[i], want, out, out_len, err);
    return err_set(err, ERR_NOT_FOUND, "no such key");
}

static const char *const both[] = { "h2", "http/1.1", NULL };

static void begin_with(bool with_workers, const char *const *protocols, uint64_t handshake_ms)
{
    loop = loop_new();
    workers = with_workers ? workers_new(loop, 8) : NULL;
    server = tls_server_new(&(struct tls_server_config){ .loop = loop,
                                                         .workers = workers,
                                                         .protocols = protocols,
                                                         .sign = sign,
                                                         .handshake_ms = handshake_ms,
                                                         .handshakes_max = handshakes_max });
    piece = signatures = 0;
    on_the_way[0] = on_the_way[1] = buf_make(NULL, 1 << 20);
    certificate_count = 0;
    is_cut[0] = is_cut[1] = cannot_sign = false;
    near = far = (struct side){ .got = buf_make(NULL, SIZE_MAX / 4) };
    wire[0] = wire[1] = -1;
    client = NULL;
}

static void add_certificate(const char *kind, const char *names)
{
    struct str chains[2];
    struct err err;

    certificates[certificate_count] = test_certificate_make(kind, names);
    keys[certificate_count] = tls_key_read(str_from(certificates[certificate_count].key), &err);
    assert_non_null(keys[certificate_count]);
    certificate_count++;
    for (size_t i = 0; i < certificate_count; i++)
        chains[i] = str_from(certificates[i].chain);
    assert_true(tls_server_use(server, chains, certificate_count, &err));
}

static void begin(void)
{
    begin_with(false, both, 0);
    add_certificate("P-256", "DNS:a.test,DNS:*.a.test");
}

static void open_near(void)
{
    int fds[2];

    unix_pair(fds);
    wire[0] = fds[1];
    near.stream = stream_new(loop, fds[0], IN_CAP, &events, &near);
    tls_accept(server, near.stream);
    stream_read(near.stream, true);
}

static void open_far(const char *name, size_t trusted)
{
    struct str roots = str_from(certificates[trusted].chain);
    int fds[2];
    struct err err;

    unix_pair(fds);
    wire[1] = fds[1];
    client = tls_client_new(loop, &roots, &err);
    assert_non_null(client);
    far.stream = stream_new(loop, fds[0], IN_CAP, &events, &far);
    assert_true(tls_connect(client, far.stream, name, &err));
    stream_read(far.stream, true);
}

static void finish(void)
{
    stream_free(near.stream);
    stream_free(far.stream);
    workers_free(workers);
    loop_free(loop);
    tls_server_free(server);
    tls_client_unref(client);
    for (size_t i = 0; i < certificate_count; i++) {
        tls_key_free(keys[i]);
        test_certificate_done(&certificates[i]);
    }
    buf_done(&near.got);
    buf_done(&far.got);
    for (int i = 0; i < 2; i++) {
        buf_done(&on_the_way[i]);
        if (wire[i] >= 0)
            close(wire[i]);
    }
}

static void carry_one_way(int from)
{
    char bytes[100000];
    size_t most = piece ? piece : sizeof bytes;
    struct buf *late = &on_the_way[from];

    if (is_cut[from] || wire[from] < 0 || wire[1 - from] < 0)
        return;
    ssize_t n = late->len ? -1 : read(wire[from], bytes, most);
    if (n == 0) {
        (void)shutdown(wire[1 - from], SHUT_WR);
        is_cut[from] = true;
    } else if (n > 0) {
        buf_add(late, str_of(bytes, (size_t)n));
    }
    n = late->len ? write(wire[1 - from], late->data, late->len) : 0;
    if (n > 0)
        buf_drop(late, (size_t)n);
}

/* True, so that it can stand in a condition. */
static bool carry(void)
{
    carry_one_way(0);
    carry_one_way(1);
    return true;
}

static bool is_open(const struct stream *stream)
{
    return stream->filter->is_open;
}

static void connect_both(void)
{
    open_near();
    open_far("x.a.test", 0);
    stream_write(far.stream, STR("hello"));
    PUMP_UNTIL(loop, carry() && near.got.len == 5);
    CHECK_STR(buf_str(&near.got), STR("hello"));
    buf_clear(&near.got);
}

static char *pattern(size_t size)
{
    char *bytes = malloc(size);

    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    return bytes;
}

/* A turn of the loop without waiting: the bytes that a split wire brings are there already. */
static void quick_turn(void)
{
    struct timer timer = { 0 };

    pump_loop_ = loop;
    timer_set(&timer, loop, 0, pump_stop);
    loop_run(loop);
    timer_clear(&timer);
}

#define CARRY_UNTIL(condition)                           \
    for (unsigned turn_ = 0; !(condition); turn_++) {    \
        if (turn_ > 200000)                              \
            fail_msg("never came true: %s", #condition); \
        (void)carry();                                   \
        quick_turn();                                    \
    }

/* ---- cases ---- */

static void both_sides_talk_however_the_bytes_are_split(void **state)
{
    static const size_t pieces[] = { 1, 2, 5, 6, 1000, 16389, 0 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        size_t size = pieces[i] && pieces[i] < 1000 ? 3000 : 300000;
        auto_free char *bytes = pattern(size);
        begin();
        piece = pieces[i];
        open_near();
        open_far("x.a.test", 0);
        stream_write(far.stream, str_of(bytes, size));
        stream_finish(far.stream);
        CARRY_UNTIL(near.ends);
        CHECK_STR(buf_str(&near.got), str_of(bytes, size));
        stream_write(near.stream, str_of(bytes, size)); /* TLS has a half-close too */
        stream_finish(near.stream);
        CARRY_UNTIL(far.ends);
        CHECK_STR(buf_str(&far.got), str_of(bytes, size));
        assert_int_equal(near.failures + far.failures, 0);
        assert_string_equal(stream_protocol(near.stream), "");
        assert_true(stream_is_tls(near.stream));
        finish();
    }
}

static void the_handshake_runs_on_workers(void **state)
{
    (void)state;
    begin_with(true, both, 0);
    add_certificate("P-256", "DNS:a.test,DNS:*.a.test");
    connect_both();
    stream_write(near.stream, STR("welcome"));
    PUMP_UNTIL(loop, carry() && far.got.len == 7);
    assert_int_equal(signatures, 1);
    finish();
}

static void a_stream_that_is_freed_while_a_worker_has_it_leaves_nothing(void **state)
{
    (void)state;
    for (int turns = 0; turns < 12; turns++) {
        begin_with(true, both, 0);
        add_certificate("RSA", "DNS:*.a.test");
        open_near();
        open_far("x.a.test", 0);
        for (int i = 0; i < turns; i++) {
            (void)carry();
            pump_turn(loop);
        }
        stream_free(take_ptr(&near.stream));
        if (turns % 2)
            pump_some(loop);
        finish();
    }
}

static void another_first_byte_makes_it_plain(void **state)
{
    (void)state;
    begin();
    open_near();
    assert_int_equal(write(wire[0], "GET / HTTP/1.1\r\n", 16), 16);
    PUMP_UNTIL(loop, near.got.len == 16);
    assert_false(stream_is_tls(near.stream));
    stream_write(near.stream, STR("plain"));
    char room[5];
    assert_int_equal(read(wire[0], room, sizeof room), 5);
    finish();
}

static void a_stream_that_writes_first_is_plain(void **state)
{
    char room[16];

    (void)state;
    begin();
    open_near();
    stream_write(near.stream, STR("220 hello"));
    assert_int_equal(read(wire[0], room, sizeof room), 9);
    finish();
}

static void garbage_after_the_first_byte_fails_with_a_reason(void **state)
{
    const struct str garbage[] = {
        STR("\x16\x03\x01\xff\xff everything"),          /* a record of 64 KiB: more than there may be */
        STR("\x16\x03\x01\x00\x04\x01\xff\xff\xff"),     /* a hello of 16 MiB, in a small record */
        STR("\x16GET / HTTP/1.1\r\n\r\n and some more"), /* not TLS at all */
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(garbage); i++) {
        char room[64];
        begin();
        open_near();
        assert_int_equal(write(wire[0], garbage[i].at, garbage[i].len), (ssize_t)garbage[i].len);
        PUMP_UNTIL(loop, near.failures);
        assert_non_null(strstr(near.error.message, "TLS handshake failed"));
        ssize_t n = read(wire[0], room, sizeof room);
        assert_true(n == -1 || (n >= 7 && room[0] == 21)); /* OpenSSL says nothing to what is not TLS at all */
        assert_int_equal(near.got.len, 0);
        finish();
    }
}

static void a_handshake_has_limits(void **state)
{
    (void)state;
    /* Time: a byte now and then. */
    begin_with(false, both, 30);
    add_certificate("P-256", "DNS:a.test");
    open_near();
    assert_int_equal(write(wire[0], "\x16\x03", 2), 2);
    PUMP_UNTIL(loop, near.failures);
    assert_non_null(strstr(near.error.message, "took too long"));
    finish();

    /* Bytes: a hello in many small records that never ends. OpenSSL takes 128 KiB. */
    begin();
    open_near();
    char records[4096];
    for (size_t i = 0; i + 8 <= sizeof records; i += 8)
        memcpy(records + i, "\x16\x03\x01\x00\x03\x01\x00\xff", 8);
    memcpy(records, "\x16\x03\x01\x00\x04\x01\x01\xff\xff", 9); /* 128 KiB to come */
    memcpy(records + 9, "\x16\x03\x01\x0f\xf0", 5);
    for (int i = 0; i < 16 && !near.failures; i++) {
        (void)!write(wire[0], i ? records + 9 : records, i ? 5 + 0xff0 : 9);
        pump_some(loop);
    }
    assert_int_equal(near.failures, 1);
    assert_non_null(strstr(near.error.message, "too large"));
    finish();

    /* The same in one go: what has just come counts. */
    begin();
    open_near();
    char flood[40000];
    memcpy(flood, "\x16\x03\x01\x00\x04\x01\x01\xff\xff", 9);
    size_t len = 9;
    for (; len + 5 + 0xff0 <= sizeof flood; len += 5 + 0xff0) {
        memset(flood + len, 0, 5 + 0xff0);
        memcpy(flood + len, "\x16\x03\x01\x0f\xf0", 5);
    }
    assert_int_equal(write(wire[0], flood, len), (ssize_t)len);
    PUMP_UNTIL(loop, near.failures);
    assert_non_null(strstr(near.error.message, "too large"));
    finish();
}

/* ---- clients ---- */

/* A chain of this many certificates, each the same. */
static void pad_chain(unsigned count)
{
    auto_buf struct buf chain = buf_make(NULL, 1 << 20);
    struct err err;

    for (unsigned i = 0; i < count; i++)
        buf_add(&chain, str_from(certificates[0].chain));
    struct str pem = buf_str(&chain);
    assert_true(tls_server_use(server, &pem, 1, &err));
}

static void a_server_with_endless_certificates_is_refused(void **state)
{
    (void)state;
    begin();
    pad_chain(60);
    open_near();
    open_far("x.a.test", 0);
    PUMP_UNTIL(loop, carry() && (far.failures || is_open(far.stream)));
    assert_int_equal(far.failures, 1);
    assert_non_null(strstr(far.error.message, "excessive message size"));
    finish();

    begin();
    pad_chain(10);
    connect_both();
    finish();
}

static bool was_not_looked_at(SSL *ssl)
{
    return SSL_get_verify_depth(ssl) == LIMIT_TLS_PEER_CHAIN && SSL_get_verify_result(ssl) == X509_V_OK;
}

static void what_is_not_verified_costs_nothing(void **state)
{
    int fds[2], result;
    struct err err;

    (void)state;
    begin();
    unix_pair(fds);
    near.stream = stream_new(loop, fds[0], IN_CAP, &events, &near);
    tls_accept(server, near.stream);
    stream_read(near.stream, true);
    client = tls_client_new(loop, NULL, &err);
    SSL *ssl = SSL_new(client->context);
    SSL_set_fd(ssl, fds[1]);
    PUMP_UNTIL(loop, (result = SSL_connect(ssl)) == 1 || SSL_get_error(ssl, result) == SSL_ERROR_SSL);
    assert_int_equal(result, 1);
    assert_true(was_not_looked_at(ssl)); /* a chain that was built would have had an error: its root is unknown */
    SSL_free(ssl);
    close(fds[1]);
    finish();
}

static pthread_t verified_on;

static int note_thread(X509_STORE_CTX *store, void *argument)
{
    (void)store;
    (void)argument;
    verified_on = pthread_self();
    return 1;
}

/* As open_far(), on workers. */
static void open_far_for(const char *owner)
{
    int fds[2];
    struct err err;

    unix_pair(fds);
    wire[1] = fds[1];
    client = tls_client_new(loop, NULL, &err);
    tls_client_use_workers(client, workers);
    SSL_CTX_set_cert_verify_callback(client->context, note_thread, NULL);
    far.stream = stream_new(loop, fds[0], IN_CAP, &events, &far);
    const struct tls_connect_want want = { .name = "x.a.test", .owner = owner };
    assert_true(tls_connect_for(client, far.stream, &want, &err));
    stream_read(far.stream, true);
}

static void a_clients_handshake_runs_on_workers_if_it_has_some(void **state)
{
    (void)state;
    begin_with(true, both, 0);
    add_certificate("P-256", "DNS:*.a.test");
    open_near();
    verified_on = pthread_self();
    open_far_for("one");
    stream_write(far.stream, STR("hello"));
    PUMP_UNTIL(loop, carry() && near.got.len == 5);
    assert_false(pthread_equal(verified_on, pthread_self()));
    finish();
}

static void a_clients_stream_that_is_freed_while_a_worker_has_it_leaves_nothing(void **state)
{
    (void)state;
    for (int turns = 0; turns < 12; turns++) {
        begin_with(true, both, 0);
        add_certificate("P-256", "DNS:*.a.test");
        open_near();
        open_far_for("one");
        for (int i = 0; i < turns; i++) {
            (void)carry();
            pump_turn(loop);
        }
        stream_free(take_ptr(&far.stream));
        if (turns % 2)
            pump_some(loop);
        finish();
    }
}

static void a_client_lives_as_long_as_its_streams(void **state)
{
    (void)state;
    begin();
    open_near();
    open_far("x.a.test", 0);
    tls_client_unref(take_ptr(&client)); /* its owner has another one now */
    stream_write(far.stream, STR("hello"));
    PUMP_UNTIL(loop, carry() && near.got.len == 5);
    finish();
}

static void count_over(void *context)
{
    ++*(unsigned *)context;
}

static void the_end_of_a_handshake_is_told_once(void **state)
{
    enum { OPENED, FAILED, FREED };

    (void)state;
    for (int how = OPENED; how <= FREED; how++) {
        unsigned overs = 0;
        int fds[2];
        struct err err;
        begin();
        open_near();
        unix_pair(fds);
        wire[1] = fds[1];
        client = tls_client_new(loop, NULL, &err);
        far.stream = stream_new(loop, fds[0], IN_CAP, &events, &far);
        const struct tls_connect_want want = { .name = "x.a.test", .over = count_over, .context = &overs };
        assert_true(tls_connect_for(client, far.stream, &want, &err));
        stream_read(far.stream, true);
        pump_some(loop);
        assert_int_equal(overs, 0);
        if (how == OPENED)
            PUMP_UNTIL(loop, carry() && is_open(far.stream));
        if (how == FAILED) {
            assert_int_equal(write(wire[1], "HTTP/1.1 400 Bad Request\r\n\r\n", 28), 28);
            PUMP_UNTIL(loop, far.failures);
        }
        if (how == FREED)
            stream_free(take_ptr(&far.stream));
        assert_int_equal(overs, 1);
        stream_free(take_ptr(&far.stream));
        pump_some(loop);
        assert_int_equal(overs, 1);
        finish();
    }
}

static void an_ipv6_network_is_one_party(void **state)
{
    static const struct {
        int family;
        const char *address, *owner;
    } samples[] = {
        { AF_INET, "192.0.2.7", "192.0.2.7" },
        { AF_INET6, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::" },
        { AF_INET6, "2001:db8:1:2:ffff::1", "2001:db8:1:2::" },
        { AF_INET6, "2001:db8:1:3::1", "2001:db8:1:3::" },
        { AF_INET6, "::ffff:192.0.2.7", "192.0.2.7" },
        { AF_UNIX, "", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(samples); i++) {
        struct sockaddr_storage peer = { .ss_family = (sa_family_t)samples[i].family };
        char owner[TLS_OWNER_BYTES];
        if (samples[i].family == AF_INET)
            assert_int_equal(inet_pton(AF_INET, samples[i].address, &((struct sockaddr_in *)&peer)->sin_addr), 1);
        else if (samples[i].family == AF_INET6)
            assert_int_equal(inet_pton(AF_INET6, samples[i].address, &((struct sockaddr_in6 *)&peer)->sin6_addr), 1);
        tls_owner_of(&peer, owner);
        assert_string_equal(owner, samples[i].owner);
    }
}

static void the_oldest_handshake_makes_room(void **state)
{
    struct side late = { .got = buf_make(NULL, 1 << 20) };
    char hello[4096];
    ssize_t hello_len = 0;
    int fds[2];

    (void)state;
    handshakes_max = 1;
    begin();
    open_near();
    open_far("x.a.test", 0);
    PUMP_UNTIL(loop, (hello_len = read(wire[1], hello, sizeof hello)) > 0);
    assert_int_equal(write(wire[0], hello, (size_t)hello_len), hello_len);
    PUMP_UNTIL(loop, signatures == 1);
    pump_some(loop);
    assert_int_equal(near.failures, 0); /* it waits for the client's part */
    unix_pair(fds);
    late.stream = stream_new(loop, fds[0], IN_CAP, &events, &late);
    tls_accept(server, late.stream);
    stream_read(late.stream, true);
    assert_int_equal(write(fds[1], hello, (size_t)hello_len), hello_len);
    PUMP_UNTIL(loop, signatures == 2);
    assert_int_equal(near.failures, 1);
    assert_non_null(strstr(near.error.message, "too many TLS handshakes"));
    assert_int_equal(late.failures, 0);
    stream_free(late.stream);
    close(fds[1]);
    handshakes_max = 0;
    finish();
}

static void an_end_without_close_notify_is_a_failure(void **state)
{
    (void)state;
    begin();
    connect_both();
    stream_write(far.stream, STR("half of"));
    PUMP_UNTIL(loop, carry() && near.got.len == 7);
    (void)shutdown(wire[0], SHUT_WR); /* what anybody on the way can do */
    PUMP_UNTIL(loop, near.failures);
    assert_int_equal(near.ends, 0);
    assert_non_null(strstr(near.error.message, "close_notify"));
    finish();
}

static void a_changed_record_is_a_failure(void **state)
{
    char record[256];

    (void)state;
    begin();
    connect_both();
    stream_write(far.stream, STR("to be changed"));
    ssize_t n = -1;
    PUMP_UNTIL(loop, (n = read(wire[1], record, sizeof record)) > 0);
    record[n - 1] ^= 1;
    assert_int_equal(write(wire[0], record, (size_t)n), n);
    PUMP_UNTIL(loop, near.failures);
    assert_int_equal(near.got.len, 0);
    finish();
}

static void freeing_a_stream_tells_the_peer_that_it_was_all(void **state)
{
    (void)state;
    begin();
    connect_both();
    stream_write(near.stream, STR("all of it"));
    stream_free(take_ptr(&near.stream));
    PUMP_UNTIL(loop, carry() && far.ends + far.failures);
    assert_int_equal(far.ends, 1);
    CHECK_STR(buf_str(&far.got), STR("all of it"));
    finish();
}

static void aborting_a_stream_does_not_look_like_an_end(void **state)
{
    (void)state;
    begin();
    connect_both();
    stream_write(near.stream, STR("a part"));
    PUMP_UNTIL(loop, carry() && far.got.len == 6);
    stream_abort(near.stream);
    PUMP_UNTIL(loop, carry() && far.ends + far.failures);
    assert_int_equal(far.failures, 1);
    finish();
}

static void a_slow_reader_stops_the_writer(void **state)
{
    size_t size = 3 << 20;
    auto_free char *bytes = pattern(size);

    (void)state;
    begin();
    connect_both();
    far.keeps_input = true;
    stream_write(near.stream, str_of(bytes, size));
    for (int i = 0; i < 200; i++) {
        (void)carry();
        pump_turn(loop);
    }
    assert_int_equal(far.stream->in.len, IN_CAP); /* no more than its owner allows */
    assert_true(stream_is_full(near.stream));
    assert_int_equal(near.drains, 1); /* when the handshake was done */
    far.keeps_input = false;
    on_input(far.stream);
    stream_read(far.stream, true);
    PUMP_UNTIL(loop, carry() && far.got.len == size);
    CHECK_STR(buf_str(&far.got), str_of(bytes, size));
    PUMP_UNTIL(loop, near.drains == 2);
    assert_int_equal(stream_queued(near.stream), 0);
    finish();
}

static void a_reader_with_little_room_gets_everything(void **state)
{
    size_t size = 100000;
    auto_free char *bytes = pattern(size);

    (void)state;
    begin();
    connect_both();
    far.stream->in.cap = 100;
    stream_write(near.stream, str_of(bytes, size));
    PUMP_UNTIL(loop, carry() && far.got.len == size);
    CHECK_STR(buf_str(&far.got), str_of(bytes, size));
    finish();
}

static void files_are_copied_and_splices_refused(void **state)
{
    size_t size = 500000;
    auto_free char *bytes = pattern(size);
    char path[] = "/tmp/tls_test.XXXXXX";
    int file = mkstemp(path);
    uint64_t left = 10;

    (void)state;
    (void)unlink(path);
    assert_int_equal(write(file, bytes, size), (ssize_t)size);
    begin();
    connect_both();
    stream_write(near.stream, STR("before"));
    stream_send_file(near.stream, file, 0, size);
    stream_write(near.stream, STR("after"));
    PUMP_UNTIL(loop, carry() && far.got.len == 6 + size + 5);
    assert_memory_equal(far.got.data + 6, bytes, size);
    CHECK_STR(str_of(far.got.data + 6 + size, 5), STR("after"));
    assert_false(splice_start(near.stream, far.stream, &left));
    assert_int_equal(left, 10);
    finish();
}

static void the_name_picks_the_certificate(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        begin_with(false, both, 0);
        add_certificate("P-256", "DNS:*.a.test");
        add_certificate("RSA", "DNS:*.b.test");
        open_near();
        open_far(i ? "x.b.test" : "x.a.test", i);
        PUMP_UNTIL(loop, carry() && is_open(near.stream) && is_open(far.stream));
        finish();
    }
    /* A name that no certificate has gets the first one, and the client refuses that. */
    begin();
    open_near();
    open_far("x.c.test", 0);
    PUMP_UNTIL(loop, carry() && far.failures && near.failures);
    assert_non_null(strstr(far.error.message, "hostname mismatch"));
    finish();
}

static void every_kind_of_key_signs(void **state)
{
    static const char *const kinds[] = { "P-256", "P-384", "P-521", "RSA" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        begin_with(false, both, 0);
        add_certificate(kinds[i], "DNS:x.a.test");
        open_near();
        open_far("x.a.test", 0);
        PUMP_UNTIL(loop, carry() && is_open(near.stream) && is_open(far.stream));
        finish();
    }
}

static void an_unusable_certificate_changes_nothing(void **state)
{
    struct test_certificate odd = test_certificate_make("ED25519", "DNS:x.a.test");
    struct str chain = str_from(odd.chain), garbage = STR("-----BEGIN CERTIFICATE-----\nAAAA\n");
    struct err err;

    (void)state;
    begin();
    assert_false(tls_server_use(server, &chain, 1, &err));
    assert_non_null(strstr(err.message, "neither RSA nor ECDSA"));
    assert_false(tls_server_use(server, &garbage, 1, &err));
    assert_null(tls_key_read(str_from(odd.key), &err));
    assert_null(tls_key_read(STR("nothing"), &err));
    assert_string_equal(err.message, "there is no private key in PEM without a passphrase");
    assert_false(tls_key_fits(keys[0], chain, &err));
    assert_non_null(strstr(err.message, "not for this key"));
    connect_both();
    test_certificate_done(&odd);
    finish();
}

static void a_certificate_says_which_host_it_is_for(void **state)
{
    static const struct {
        const char *names, *first;
    } cases[] = {
        { "DNS:*.a.test", "*.a.test" },
        { "IP:192.0.2.1,DNS:b.test,DNS:a.test", "b.test" },
        { "IP:192.0.2.1", "" },
        { "DNS:a\x1b[31m.test", "" }, /* it goes into the log */
    };
    struct tls_chain_facts facts;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct test_certificate made = test_certificate_make("P-256", cases[i].names);
        assert_true(tls_chain_look(str_from(made.chain), "", &facts, &err));
        assert_string_equal(facts.first_name, cases[i].first);
        test_certificate_done(&made);
    }
}

static void a_key_signs_only_what_a_handshake_signs(void **state)
{
    unsigned char out[TLS_SIGNATURE_BYTES], block[256] = { 0 };
    size_t len;
    struct err err;

    (void)state;
    begin_with(false, both, 0);
    add_certificate("RSA", "DNS:x.a.test");
    struct tls_to_sign want = { .algorithm = TLS_RSA_PSS, .bytes = str_of(block, sizeof block) };
    memcpy(want.key_id, tls_key_id(keys[0]), TLS_KEY_ID_BYTES);
    block[255] = 0xbc;
    assert_false(tls_key_sign(keys[0], &want, out, &len, &err)); /* raw RSA would decrypt, too */
    want.algorithm = TLS_ECDSA;
    want.bytes = str_of(block, 32);
    assert_false(tls_key_sign(keys[0], &want, out, &len, &err));
    want.algorithm = TLS_RSA_PKCS1;
    want.bytes = str_of(block, 31);
    assert_false(tls_key_sign(keys[0], &want, out, &len, &err));
    want.bytes = str_of(block, 32);
    assert_true(tls_key_sign(keys[0], &want, out, &len, &err));
    assert_int_equal(len, 256);
    want.key_id[0] ^= 1;
    assert_false(tls_key_sign(keys[0], &want, out, &len, &err));
    finish();
}

static void a_signer_that_is_gone_fails_the_handshake_alone(void **state)
{
    (void)state;
    begin();
    cannot_sign = true;
    open_near();
    open_far("x.a.test", 0);
    PUMP_UNTIL(loop, carry() && near.failures && far.failures);
    assert_int_equal(near.ends, 0);
    finish();
}

static void without_a_certificate_there_is_no_tls(void **state)
{
    (void)state;
    begin_with(false, both, 0);
    open_near();
    assert_int_equal(write(wire[0], "\x16\x03\x01", 3), 3);
    PUMP_UNTIL(loop, near.got.len == 3);
    finish();
}

/* ---- with a client of OpenSSL's own ---- */

static SSL_SESSION *kept;
static const char *offer = ""; /* of protocols, as on the wire */
static char agreed[16];

/* One connection on a socket of its own; true if the session was resumed. `version` 0: any. */
static bool connect_once(int version, struct str write_after, unsigned key_updates)
{
    int fds[2];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl;
    int result;

    unix_pair(fds);
    near.stream = stream_new(loop, fds[0], IN_CAP, &events, &near);
    tls_accept(server, near.stream);
    stream_read(near.stream, true);
    ssl = SSL_new(context);
    if (version)
        (void)SSL_set_max_proto_version(ssl, version);
    SSL_set_fd(ssl, fds[1]);
    if (kept)
        SSL_set_session(ssl, kept);
    (void)SSL_set_alpn_protos(ssl, (const unsigned char *)offer, (unsigned)strlen(offer));
    PUMP_UNTIL(loop, (result = SSL_connect(ssl)) == 1 || SSL_get_error(ssl, result) == SSL_ERROR_SSL || near.failures);
    bool was_resumed = result == 1 && SSL_session_reused(ssl);
    if (result == 1) {
        char room[16];
        stream_write(near.stream, STR("hi"));
        PUMP_UNTIL(loop, SSL_read(ssl, room, sizeof room) == 2);
        SSL_SESSION_free(kept);
        kept = SSL_get1_session(ssl); /* with the ticket, which came before the data */
        (void)snprintf(agreed, sizeof agreed, "%s", stream_protocol(near.stream));
        for (unsigned i = 0; i < key_updates && !near.failures; i++) {
            assert_int_equal(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
            (void)SSL_do_handshake(ssl);
        }
        if (write_after.len) {
            (void)SSL_write(ssl, write_after.at, (int)write_after.len);
            PUMP_UNTIL(loop, near.got.len == write_after.len || near.failures);
        }
    } else {
        near.failures++;
    }
    (void)SSL_shutdown(ssl);
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fds[1]);
    stream_free(take_ptr(&near.stream));
    return was_resumed;
}

static void sessions_resume_until_the_ticket_keys_have_changed_twice(void **state)
{
    static const int versions[] = { TLS1_2_VERSION, TLS1_3_VERSION };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        hand_clock_start();
        begin();
        assert_false(connect_once(versions[i], STR(""), 0));
        assert_true(connect_once(versions[i], STR(""), 0));
        assert_int_equal(signatures, 1);
        hand_clock_add(LIMIT_TLS_TICKET_S * UINT64_C(1000) + 1);
        assert_true(connect_once(versions[i], STR(""), 0)); /* by the key before */
        SSL_SESSION *old = kept;
        SSL_SESSION_up_ref(old);
        assert_true(connect_once(versions[i], STR(""), 0)); /* by the ticket that replaced it */
        SSL_SESSION_free(kept);
        kept = old;
        hand_clock_add(2 * LIMIT_TLS_TICKET_S * UINT64_C(1000) + 1);
        assert_false(connect_once(versions[i], STR(""), 0));
        SSL_SESSION_free(take_ptr(&kept));
        finish();
        hand_clock_end();
    }
}

static void old_versions_are_refused(void **state)
{
    (void)state;
    begin();
    assert_false(connect_once(TLS1_1_VERSION, STR(""), 0));
    assert_true(near.failures > 0);
    SSL_SESSION_free(take_ptr(&kept));
    finish();
}

static void the_protocol_is_the_first_of_ours_that_the_client_offers(void **state)
{
    static const struct {
        const char *offer, *agreed;
    } samples[] = {
        { "\x02h2\x08http/1.1", "h2" },
        { "\x08http/1.1\x02h2", "h2" },
        { "\x08http/1.1", "http/1.1" },
        { "\x04imap", "" },
        { "", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(samples); i++) {
        begin();
        offer = samples[i].offer;
        (void)connect_once(0, STR(""), 0);
        assert_int_equal(near.failures, 0);
        assert_string_equal(agreed, samples[i].agreed);
        SSL_SESSION_free(take_ptr(&kept));
        finish();
    }
    offer = "";
}

static void a_flood_of_key_updates_ends(void **state)
{
    (void)state;
    begin();
    (void)connect_once(TLS1_3_VERSION, STR("data"), LIMIT_TLS_IDLE_RECORDS / 2);
    assert_int_equal(near.failures, 0);
    CHECK_STR(buf_str(&near.got), STR("data"));
    SSL_SESSION_free(take_ptr(&kept));
    finish();

    begin();
    (void)connect_once(TLS1_3_VERSION, STR("data"), 2 * LIMIT_TLS_IDLE_RECORDS);
    assert_int_equal(near.failures, 1);
    assert_non_null(strstr(near.error.message, "without data"));
    SSL_SESSION_free(take_ptr(&kept));
    finish();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(both_sides_talk_however_the_bytes_are_split),
        CASE(the_handshake_runs_on_workers),
        CASE(a_stream_that_is_freed_while_a_worker_has_it_leaves_nothing),
        CASE(another_first_byte_makes_it_plain),
        CASE(a_stream_that_writes_first_is_plain),
        CASE(garbage_after_the_first_byte_fails_with_a_reason),
        CASE(a_handshake_has_limits),
        CASE(a_server_with_endless_certificates_is_refused),
        CASE(what_is_not_verified_costs_nothing),
        CASE(a_clients_handshake_runs_on_workers_if_it_has_some),
        CASE(a_clients_stream_that_is_freed_while_a_worker_has_it_leaves_nothing),
        CASE(a_client_lives_as_long_as_its_streams),
        CASE(the_end_of_a_handshake_is_told_once),
        CASE(an_ipv6_network_is_one_party),
        CASE(the_oldest_handshake_makes_room),
        CASE(an_end_without_close_notify_is_a_failure),
        CASE(a_changed_record_is_a_failure),
        CASE(freeing_a_stream_tells_the_peer_that_it_was_all),
        CASE(aborting_a_stream_does_not_look_like_an_end),
        CASE(a_slow_reader_stops_the_writer),
        CASE(a_reader_with_little_room_gets_everything),
        CASE(files_are_copied_and_splices_refused),
        CASE(the_name_picks_the_certificate),
        CASE(every_kind_of_key_signs),
        CASE(an_unusable_certificate_changes_nothing),
        CASE(a_certificate_says_which_host_it_is_for),
        CASE(a_key_signs_only_what_a_handshake_signs),
        CASE(a_signer_that_is_gone_fails_the_handshake_alone),
        CASE(without_a_certificate_there_is_no_tls),
        CASE(sessions_resume_until_the_ticket_keys_have_changed_twice),
        CASE(old_versions_are_refused),
        CASE(the_protocol_is_the_first_of_ours_that_the_client_offers),
        CASE(a_flood_of_key_updates_ends),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
