/* A DNS server of our own on loopback answers as each case needs it. */
#include "egress/resolver.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "hand_clock.h"
#include "io/stream.h"
#include "test.h"
#include "wire/dns.h"

/* ---- the server ---- */

enum behaviour {
    ANSWER,
    SILENT,
    SILENT_FOR_ONE, /* silent.example */
    NO_SUCH_NAME,
    FAILURE,
    TRUNCATED,     /* over UDP; whole over TCP */
    TRUNCATED_TCP, /* over both */
    FORGED_FIRST,  /* wrong ids, then the right one */
    GARBAGE,
    TCP_CLOSES,
};

struct server {
    struct loop *loop;
    int udp, tcp;
    struct watch *udp_watch, *tcp_watch;
    struct stream *client; /* over TCP, one at a time */
    uint16_t port;
    enum behaviour behaviour;
    uint32_t ttl_s;
    unsigned asked, asked_tcp;
    uint16_t ports[8]; /* of those who asked */
    uint16_t ids[8];
};

static void write_answer(struct server *server, struct buf *out, const struct dns_question *q, bool over_tcp)
{
    struct dns_record record = { .name = str_from(q->name), .type = q->type, .ttl_s = server->ttl_s };
    struct dns_answer answer = { .count = 1, .records = &record, .ede = DNS_EDE_NONE };

    memcpy(record.address, (const uint8_t[]){ 192, 0, 2, over_tcp ? 2 : 1 }, 4);
    if (server->behaviour == NO_SUCH_NAME)
        answer = (struct dns_answer){ .code = DNS_NO_SUCH_NAME, .ede = DNS_EDE_NONE };
    if (server->behaviour == FAILURE)
        answer = (struct dns_answer){ .code = DNS_SERVER_FAILURE, .ede = DNS_EDE_NONE };
    dns_write_answer(out, q, &answer, 4096);
    if ((server->behaviour == TRUNCATED && !over_tcp) || server->behaviour == TRUNCATED_TCP)
        out->data[2] |= 2;
    if (server->behaviour == TCP_CLOSES)
        out->data[2] |= 2;
}

static void on_udp(void *context, unsigned ready)
{
    struct server *server = context;
    char room[4096];
    struct sockaddr_in from;
    socklen_t from_len = sizeof from;
    struct dns_question q;

    (void)ready;
    ssize_t len = recvfrom(server->udp, room, sizeof room, 0, (struct sockaddr *)&from, &from_len);
    if (len < 0)
        return;
    assert_int_equal(dns_question_parse(str_of(room, (size_t)len), &q), DNS_PARSED);
    assert_true(q.recursion_desired);
    if (server->asked < 8) {
        server->ports[server->asked] = from.sin_port;
        server->ids[server->asked] = q.id;
    }
    server->asked++;
    if (server->behaviour == SILENT || (server->behaviour == SILENT_FOR_ONE && strcmp(q.name, "silent.example") == 0))
        return;
    auto_buf struct buf out = buf_make(NULL, 65536);
    if (server->behaviour == GARBAGE)
        buf_add(&out, STR("garbage"));
    else
        write_answer(server, &out, &q, false);
    if (server->behaviour == FORGED_FIRST)
        for (int i = 1; i <= 3; i++) {
            out.data[0] = (char)(out.data[0] ^ i);
            out.data[out.len - 12] = 66; /* also another address */
            (void)!sendto(server->udp, out.data, out.len, 0, (struct sockaddr *)&from, from_len);
            out.data[0] = (char)(out.data[0] ^ i);
            buf_clear(&out);
            write_answer(server, &out, &q, false);
        }
    (void)!sendto(server->udp, out.data, out.len, 0, (struct sockaddr *)&from, from_len);
}

static void on_client_input(struct stream *stream)
{
    struct server *server = stream->owner;
    const unsigned char *at = (const unsigned char *)stream->in.data;
    struct dns_question q;

    if (stream->in.len < 2 || stream->in.len < 2 + ((size_t)at[0] << 8 | at[1]))
        return;
    assert_int_equal(stream->in.len, 2 + ((size_t)at[0] << 8 | at[1]));
    assert_int_equal(dns_question_parse(str_of(at + 2, stream->in.len - 2), &q), DNS_PARSED);
    buf_drop(&stream->in, stream->in.len);
    auto_buf struct buf out = buf_make(NULL, 65536);
    write_answer(server, &out, &q, true);
    const char size[2] = { (char)(out.len >> 8), (char)out.len };
    /* In three pieces. */
    stream_write(stream, str_of(size, 1));
    stream_write(stream, str_of(size + 1, 1));
    stream_write(stream, buf_str(&out));
}

static void on_client_end(struct stream *stream, const struct err *err)
{
    struct server *server = stream->owner;

    (void)err;
    stream_free(server->client);
    server->client = NULL;
}

static const struct stream_events client_events = { .on_input = on_client_input, .on_end = on_client_end };

static void on_tcp(void *context, unsigned ready)
{
    struct server *server = context;

    (void)ready;
    auto_close int fd = accept4(server->tcp, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    server->asked_tcp++;
    if (server->behaviour == TCP_CLOSES)
        return;
    stream_free(server->client);
    server->client = stream_new(server->loop, take_fd(&fd), 65536, &client_events, server);
    stream_read(server->client, true);
}

static void server_open(struct server *server, struct loop *loop)
{
    *server = (struct server){ .loop = loop, .ttl_s = 60 };
    for (;;) { /* until a port is free for both */
        struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof at;
        server->udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        server->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(server->udp, (struct sockaddr *)&at, sizeof at), 0);
        assert_int_equal(getsockname(server->udp, (struct sockaddr *)&at, &len), 0);
        server->port = ntohs(at.sin_port);
        if (bind(server->tcp, (struct sockaddr *)&at, sizeof at) == 0)
            break;
        fd_close(&server->udp);
        fd_close(&server->tcp);
    }
    assert_int_equal(listen(server->tcp, 8), 0);
    server->udp_watch = watch_new(loop, server->udp, on_udp, server);
    server->tcp_watch = watch_new(loop, server->tcp, on_tcp, server);
    watch_want(server->udp_watch, WATCH_READ);
    watch_want(server->tcp_watch, WATCH_READ);
}

static void server_close(struct server *server)
{
    watch_free(server->udp_watch);
    watch_free(server->tcp_watch);
    stream_free(server->client);
    fd_close(&server->udp);
    fd_close(&server->tcp);
}

/* ---- asking ---- */

struct world {
    struct loop *loop;
    struct server server, second;
    struct resolver *resolver;
    struct resolver_asker asker, other;
    struct timer patience, tick;
    unsigned waiting;
};

struct asked {
    struct world *world;
    struct resolver_question *question;
    bool done;
    enum dns_code code;
    uint32_t count, ttl_s;
    uint8_t last; /* byte of the address */
    enum dns_ede ede;
    char reason[128];
};

static void on_done(void *context, const struct dns_answer *answer)
{
    struct asked *asked = context;

    assert_false(asked->done);
    asked->done = true;
    asked->question = NULL;
    asked->code = answer->code;
    asked->count = answer->count;
    asked->ede = answer->ede;
    (void)snprintf(asked->reason, sizeof asked->reason, "%.*s", STR_ARG(answer->reason));
    if (answer->count) {
        asked->ttl_s = answer->records[0].ttl_s;
        asked->last = answer->records[answer->count - 1].address[3];
    }
    if (--asked->world->waiting == 0)
        loop_stop_soon(asked->world->loop);
}

static void ask(struct world *world, struct asked *asked, const char *name, uint16_t type)
{
    *asked = (struct asked){ .world = world };
    world->waiting++;
    asked->question = resolver_ask(world->resolver, &world->asker, str_from(name), type, on_done, asked);
    assert_false(asked->done); /* never from inside */
}

static void on_impatient(struct timer *timer)
{
    (void)timer;
    fail_msg("no answer in time");
}

/* Ten times faster than outside. */
static void on_tick(struct timer *timer)
{
    hand_clock_add(45);
    timer_set(timer, container_of(timer, struct world, tick)->loop, 50, on_tick); /* the loop has not seen the 45 yet */
}

static void run(struct world *world)
{
    timer_set(&world->patience, world->loop, 20000, on_impatient);
    timer_set(&world->tick, world->loop, 5, on_tick);
    loop_run(world->loop);
    timer_clear(&world->patience);
    timer_clear(&world->tick);
}

static void ask_one(struct world *world, struct asked *asked, const char *name, uint16_t type)
{
    ask(world, asked, name, type);
    run(world);
    assert_true(asked->done);
}

static void on_turn(struct timer *timer)
{
    loop_stop_soon(container_of(timer, struct world, patience)->loop);
}

/* One turn of the loop, so that it notices. */
static void skip_s(struct world *world, uint64_t seconds)
{
    hand_clock_add(seconds * 1000);
    timer_set(&world->patience, world->loop, 0, on_turn);
    loop_run(world->loop);
}

static void use(struct world *world, unsigned a, unsigned b)
{
    char text[256];

    (void)snprintf(text, sizeof text, "# of a test\noptions edns0\nnameserver 127.0.0.1:%u\n", a);
    if (b)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "\tnameserver\t127.0.0.1:%u # second\n", b);
    resolver_use(world->resolver, str_from(text));
}

static int begin(void **state)
{
    struct world *world = NEW(struct world);

    hand_clock_start();
    world->loop = loop_new();
    server_open(&world->server, world->loop);
    server_open(&world->second, world->loop);
    world->resolver = resolver_new(world->loop);
    use(world, world->server.port, 0);
    *state = world;
    return 0;
}

static int end(void **state)
{
    struct world *world = *state;

    resolver_free(world->resolver);
    server_close(&world->server);
    server_close(&world->second);
    loop_free(world->loop);
    hand_clock_end();
    free(world);
    return 0;
}

static void a_name_is_looked_up(void **state)
{
    struct world *world = *state;
    struct asked a;

    ask_one(world, &a, "Example.COM", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(a.count, 1);
    assert_int_equal(a.last, 1);
    assert_int_equal(world->server.asked, 1);
}

static void those_who_ask_for_the_same_share_one_question(void **state)
{
    struct world *world = *state;
    struct asked a[20], other;

    for (int i = 0; i < 20; i++)
        ask(world, &a[i], i % 2 ? "example.com" : "EXAMPLE.com", DNS_A);
    ask(world, &other, "example.com", DNS_AAAA);
    run(world);
    for (int i = 0; i < 20; i++)
        assert_int_equal(a[i].last, 1);
    assert_int_equal(world->server.asked, 2);
}

static void an_answer_is_kept_for_its_time(void **state)
{
    struct world *world = *state;
    struct asked a;

    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.ttl_s, 60);
    skip_s(world, 25);
    ask_one(world, &a, "example.com", DNS_A);
    assert_in_range(a.ttl_s, 30, 35);
    skip_s(world, 25);
    ask_one(world, &a, "example.com", DNS_A);
    assert_in_range(a.ttl_s, 5, 10);
    assert_int_equal(world->server.asked, 1);
    skip_s(world, 25);
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.ttl_s, 60);
    assert_int_equal(world->server.asked, 2);
}

static void an_answer_for_no_time_is_not_kept(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.ttl_s = 0;
    ask_one(world, &a, "example.com", DNS_A);
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(world->server.asked, 2);
}

static void other_servers_mean_other_answers(void **state)
{
    struct world *world = *state;
    struct asked a;

    ask_one(world, &a, "example.com", DNS_A);
    use(world, world->server.port, 0); /* the same again */
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(world->server.asked, 1);
    use(world, world->second.port, 0);
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(world->second.asked, 1);
}

static void a_missing_name_is_told(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = NO_SUCH_NAME;
    ask_one(world, &a, "missing.example", DNS_A);
    assert_int_equal(a.code, DNS_NO_SUCH_NAME);
    assert_int_equal(a.count, 0);
}

static void a_long_answer_comes_over_tcp(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = TRUNCATED;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(a.last, 2);
    assert_int_equal(world->server.asked, 1);
    assert_int_equal(world->server.asked_tcp, 1);
}

static void tcp_that_closes_or_is_cut_is_a_failure(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = TCP_CLOSES;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    assert_int_equal(world->server.asked_tcp, LIMIT_DNS_TRIES);
    world->server.behaviour = TRUNCATED_TCP;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
}

/* How many lines with this text are logged while the question is answered with a failure. */
static unsigned warnings(struct world *world, const char *name, const char *text)
{
    auto_close int log_fd = memfd_create("log", MFD_CLOEXEC);
    auto_close int kept_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    char log[4096];
    struct asked a;
    unsigned count = 0;

    assert_true(log_fd >= 0 && kept_fd >= 0);
    assert_true(dup2(log_fd, STDERR_FILENO) >= 0);
    ask_one(world, &a, name, DNS_A);
    assert_true(dup2(kept_fd, STDERR_FILENO) >= 0);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    ssize_t n = pread(log_fd, log, sizeof log - 1, 0);
    assert_true(n >= 0);
    log[n] = '\0';
    for (const char *at = log; (at = strstr(at, text)); at++)
        count++;
    return count;
}

static void servers_that_do_not_answer_are_named_in_the_log_once_a_minute(void **state)
{
    struct world *world = *state;
    char text[128];

    (void)snprintf(text, sizeof text, "no name server answers: 127.0.0.1:%u, 127.0.0.1:%u; --dns names others\n",
                   world->server.port, world->second.port);
    use(world, world->server.port, world->second.port);
    world->server.behaviour = world->second.behaviour = SILENT;
    assert_int_equal(warnings(world, "a.example", text), 1);
    assert_int_equal(warnings(world, "b.example", text), 0);
    skip_s(world, 60);
    assert_int_equal(warnings(world, "a.example", text), 1);
    /* New servers are another matter, and so are none. */
    use(world, world->second.port, 0);
    assert_int_equal(warnings(world, "a.example", "no name server answers: 127.0.0.1:"), 1);
    resolver_use(world->resolver, STR(""));
    assert_int_equal(warnings(world, "a.example", "no name server is known: "), 1);
}

static void a_name_that_a_server_is_silent_about_is_not_the_servers_fault(void **state)
{
    struct world *world = *state;
    struct asked other;

    world->server.behaviour = SILENT_FOR_ONE;
    ask(world, &other, "other.example", DNS_A);
    assert_int_equal(warnings(world, "silent.example", "no name server"), 0);
    assert_int_equal(other.code, DNS_FINE);
    /* A failure is an answer, too. */
    world->server.behaviour = FAILURE;
    assert_int_equal(warnings(world, "fails.example", "no name server"), 0);
    world->server.behaviour = SILENT;
    assert_int_equal(warnings(world, "silent.example", "no name server"), 1);
}

static void a_silent_server_is_given_up_before_a_libc_gives_up(void **state)
{
    struct world *world = *state;
    struct asked a;

    _Static_assert(LIMIT_DNS_TRIES * LIMIT_DNS_TRY_MS < 5000, "a libc waits for five seconds");
    world->server.behaviour = SILENT;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    assert_int_equal(a.ede, DNS_EDE_NETWORK);
    assert_string_equal(a.reason, "no DNS server of the host answered");
    assert_int_equal(world->server.asked, LIMIT_DNS_TRIES);
    /* A new port and a new id for each try: that all three are alike is not chance. */
    assert_false(world->server.ports[0] == world->server.ports[1] && world->server.ports[1] == world->server.ports[2]);
    assert_false(world->server.ids[0] == world->server.ids[1] && world->server.ids[1] == world->server.ids[2]);
    /* The failure was not kept. */
    world->server.behaviour = ANSWER;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
}

static void the_second_server_helps_out(void **state)
{
    struct world *world = *state;
    struct asked a;

    use(world, world->server.port, world->second.port);
    world->server.behaviour = FAILURE;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(world->second.asked, 1);
    use(world, world->server.port, 0);
    use(world, world->server.port, world->second.port); /* from the first one on again */
    world->server.behaviour = SILENT;
    ask_one(world, &a, "www.example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(world->second.asked, 2);
}

static void the_server_that_answered_last_is_asked_first(void **state)
{
    struct world *world = *state;
    struct asked a;

    use(world, world->server.port, world->second.port);
    world->server.behaviour = SILENT;
    ask_one(world, &a, "one.example.com", DNS_A);
    assert_int_equal(world->server.asked, 1);
    ask_one(world, &a, "two.example.com", DNS_A);
    ask_one(world, &a, "three.example.com", DNS_A);
    assert_int_equal(world->server.asked, 1); /* it cost time once */
    assert_int_equal(world->second.asked, 3);
    world->server.behaviour = ANSWER;
    world->second.behaviour = SILENT;
    ask_one(world, &a, "four.example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(world->server.asked, 2);
    ask_one(world, &a, "five.example.com", DNS_A);
    assert_int_equal(world->second.asked, 4);
}

static void a_server_that_fails_is_believed_if_it_is_the_only_one(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = FAILURE;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    assert_int_equal(world->server.asked, 1);
}

static void a_closed_port_is_noticed_at_once(void **state)
{
    struct world *world = *state;
    struct asked a;
    uint64_t began_ms = clock_mono_ms();

    use(world, world->second.port, 0);
    watch_free(world->second.udp_watch);
    world->second.udp_watch = NULL;
    fd_close(&world->second.udp);
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    assert_true(clock_mono_ms() - began_ms < LIMIT_DNS_TRIES * LIMIT_DNS_TRY_MS);
}

static void forged_answers_are_ignored(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = FORGED_FIRST;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(a.last, 1);
    assert_int_equal(world->server.asked, 1);
}

static void garbage_ends_as_a_failure(void **state)
{
    struct world *world = *state;
    struct asked a;

    world->server.behaviour = GARBAGE;
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
}

static void types_that_lead_around_the_rules_are_answered_empty(void **state)
{
    struct world *world = *state;
    struct asked a;

    ask_one(world, &a, "example.com", DNS_HTTPS);
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(a.count, 0);
    ask_one(world, &a, "example.com", DNS_SVCB);
    ask_one(world, &a, "example.com", 4711);
    assert_int_equal(world->server.asked, 0);
}

static void names_that_cannot_be_asked_for_do_not_exist(void **state)
{
    struct world *world = *state;
    struct asked a;
    char label[80];
    static const char *const rows[] = { "a..b", ".a", "a.", "a b", "a\\b", "b\xc3\xbc", "a:b" };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ask_one(world, &a, rows[i], DNS_A);
        assert_int_equal(a.code, DNS_NO_SUCH_NAME);
    }
    memset(label, 'a', 64);
    label[64] = '\0';
    ask_one(world, &a, label, DNS_A);
    assert_int_equal(a.code, DNS_NO_SUCH_NAME);
    assert_int_equal(world->server.asked, 0);
    ask_one(world, &a, "", DNS_NS); /* the root can */
    assert_int_equal(world->server.asked, 1);
}

static void without_servers_the_reason_is_told(void **state)
{
    struct world *world = *state;
    struct asked a;

    resolver_use(world->resolver,
                 STR("search example.com\nnameserver fe80::1%eth0\nnameserver dns.example\nnameserver"));
    ask_one(world, &a, "example.com", DNS_A);
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    assert_non_null(strstr(a.reason, "--dns"));
}

static void a_cancelled_question_is_not_answered(void **state)
{
    struct world *world = *state;
    struct asked a, b;

    ask(world, &a, "example.com", DNS_A);
    ask(world, &b, "example.com", DNS_A);
    resolver_cancel(a.question);
    world->waiting--;
    run(world);
    assert_false(a.done);
    assert_true(b.done);
    /* Also when the answer is there already and about to be told. */
    ask(world, &a, "example.com", DNS_A);
    ask(world, &b, "example.org", DNS_A);
    resolver_cancel(a.question);
    world->waiting--;
    run(world);
    assert_false(a.done);
}

struct pair {
    struct asked first, second;
};

static void on_done_cancel_the_other(void *context, const struct dns_answer *answer)
{
    struct pair *pair = context;

    (void)answer;
    resolver_cancel(pair->second.question);
    pair->first.done = true;
    loop_stop_soon(pair->first.world->loop);
}

static void a_question_may_be_cancelled_while_others_are_told(void **state)
{
    struct world *world = *state;
    struct pair pair = { .first = { .world = world }, .second = { .world = world } };

    struct resolver_question *first =
        resolver_ask(world->resolver, &world->asker, STR("example.com"), DNS_A, on_done_cancel_the_other, &pair);
    assert_non_null(first);
    pair.second.question =
        resolver_ask(world->resolver, &world->asker, STR("example.com"), DNS_A, on_done, &pair.second);
    run(world);
    assert_true(pair.first.done);
    assert_false(pair.second.done);
}

static void open_questions_end_with_the_resolver(void **state)
{
    struct world *world = *state;
    struct asked a, b;

    ask(world, &a, "example.com", DNS_A);
    ask(world, &b, "example.org", DNS_A);
    /* end() frees the resolver: a leak or a late call fails the test. */
}

static void many_names_stay_within_their_caps(void **state)
{
    struct world *world = *state;
    static struct asked all[LIMIT_DNS_ASKING + 100];
    unsigned failed = 0;

    world->server.behaviour = SILENT;
    for (unsigned i = 0; i < COUNT_OF(all); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "n%u.example", i);
        ask(world, &all[i], name, DNS_A);
    }
    world->waiting = 100; /* as many as there are too many are given up at once: the oldest */
    run(world);
    for (unsigned i = 0; i < COUNT_OF(all); i++)
        failed += all[i].done && all[i].code == DNS_SERVER_FAILURE && strstr(all[i].reason, "too many") && i < 100;
    assert_int_equal(failed, 100);
}

static void ask_for_another(struct world *world, struct asked *asked, const char *name)
{
    *asked = (struct asked){ .world = world };
    world->waiting++;
    asked->question = resolver_ask(world->resolver, &world->other, str_from(name), DNS_A, on_done, asked);
}

static void whoever_has_most_on_the_way_makes_room(void **state)
{
    struct world *world = *state;
    static struct asked all[LIMIT_DNS_ASKING], others[2];
    unsigned failed = 0;

    world->server.behaviour = SILENT;
    ask_for_another(world, &others[0], "oldest.example");
    for (unsigned i = 0; i < COUNT_OF(all); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "n%u.example", i);
        ask(world, &all[i], name, DNS_A);
    }
    ask_for_another(world, &others[1], "newest.example");
    assert_int_equal(world->other.count, 2);
    assert_int_equal(world->asker.count, LIMIT_DNS_ASKING - 2);
    world->waiting = 2;
    run(world);
    for (unsigned i = 0; i < COUNT_OF(all); i++)
        failed += all[i].done && i < 2;
    assert_int_equal(failed, 2);
    assert_false(others[0].done || others[1].done);
}

static void a_share_is_what_is_still_free(void **state)
{
    struct world *world = *state;
    static struct asked all[LIMIT_DNS_ASKING / 2];

    world->server.behaviour = SILENT;
    for (unsigned i = 0; i < COUNT_OF(all); i++) {
        char name[32];
        assert_true(resolver_has_share(world->resolver, &world->asker));
        (void)snprintf(name, sizeof name, "n%u.example", i);
        ask(world, &all[i], name, DNS_A);
    }
    assert_false(resolver_has_share(world->resolver, &world->asker));
    assert_true(resolver_has_share(world->resolver, &world->other));
}

static void a_lookup_counts_for_its_asker_until_it_is_answered(void **state)
{
    struct world *world = *state;
    struct asked a, b, c;

    world->server.behaviour = SILENT;
    ask(world, &a, "one.example", DNS_A);
    ask(world, &b, "two.example", DNS_A);
    ask_for_another(world, &c, "two.example"); /* is on its way already */
    assert_int_equal(world->asker.count, 2);
    assert_int_equal(world->other.count, 0);
    resolver_cancel(a.question);
    resolver_cancel(b.question);
    assert_int_equal(world->asker.count, 2);
    /* What nobody waits for ends with its asker. */
    resolver_asker_done(world->resolver, &world->asker);
    assert_int_equal(world->asker.count, 0);
    world->waiting = 1;
    run(world);
    assert_true(c.done);
    assert_int_equal(c.code, DNS_SERVER_FAILURE);

    world->server.behaviour = ANSWER;
    assert_false(resolver_knows(world->resolver, STR("three.example"), DNS_A));
    ask(world, &a, "three.example", DNS_A);
    assert_true(resolver_knows(world->resolver, STR("Three.example"), DNS_A));
    run(world);
    assert_int_equal(world->asker.count, 0);
    assert_true(resolver_knows(world->resolver, STR("three.example"), DNS_A));
    assert_false(resolver_knows(world->resolver, STR("three.example"), DNS_AAAA));
    skip_s(world, 61);
    assert_false(resolver_knows(world->resolver, STR("three.example"), DNS_A));
}

static void the_answer_used_longest_ago_is_forgotten_first(void **state)
{
    struct world *world = *state;
    static struct asked all[128]; /* more at once would not fit the server's socket */
    struct asked a;

    world->server.ttl_s = 86400;
    ask_one(world, &a, "old.example", DNS_A);
    ask_one(world, &a, "used.example", DNS_A);
    for (unsigned i = 0; i < LIMIT_DNS_CACHE; i += COUNT_OF(all)) {
        for (unsigned k = 0; k < COUNT_OF(all); k++) {
            char name[32];
            (void)snprintf(name, sizeof name, "n%u.example", i + k);
            ask(world, &all[k], name, DNS_A);
        }
        run(world);
        ask_one(world, &a, "used.example", DNS_A);
    }
    unsigned asked = world->server.asked;
    assert_int_equal(asked, LIMIT_DNS_CACHE + 2);
    ask_one(world, &a, "used.example", DNS_A);
    assert_int_equal(world->server.asked, asked);
    ask_one(world, &a, "old.example", DNS_A);
    assert_int_equal(world->server.asked, asked + 1);
}

#define WORLD_CASE(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest cases[] = {
        WORLD_CASE(a_name_is_looked_up),
        WORLD_CASE(those_who_ask_for_the_same_share_one_question),
        WORLD_CASE(an_answer_is_kept_for_its_time),
        WORLD_CASE(an_answer_for_no_time_is_not_kept),
        WORLD_CASE(other_servers_mean_other_answers),
        WORLD_CASE(a_missing_name_is_told),
        WORLD_CASE(a_long_answer_comes_over_tcp),
        WORLD_CASE(tcp_that_closes_or_is_cut_is_a_failure),
        WORLD_CASE(servers_that_do_not_answer_are_named_in_the_log_once_a_minute),
        WORLD_CASE(a_name_that_a_server_is_silent_about_is_not_the_servers_fault),
        WORLD_CASE(a_silent_server_is_given_up_before_a_libc_gives_up),
        WORLD_CASE(the_second_server_helps_out),
        WORLD_CASE(the_server_that_answered_last_is_asked_first),
        WORLD_CASE(a_server_that_fails_is_believed_if_it_is_the_only_one),
        WORLD_CASE(a_closed_port_is_noticed_at_once),
        WORLD_CASE(forged_answers_are_ignored),
        WORLD_CASE(garbage_ends_as_a_failure),
        WORLD_CASE(types_that_lead_around_the_rules_are_answered_empty),
        WORLD_CASE(names_that_cannot_be_asked_for_do_not_exist),
        WORLD_CASE(without_servers_the_reason_is_told),
        WORLD_CASE(a_cancelled_question_is_not_answered),
        WORLD_CASE(a_question_may_be_cancelled_while_others_are_told),
        WORLD_CASE(open_questions_end_with_the_resolver),
        WORLD_CASE(many_names_stay_within_their_caps),
        WORLD_CASE(whoever_has_most_on_the_way_makes_room),
        WORLD_CASE(a_share_is_what_is_still_free),
        WORLD_CASE(a_lookup_counts_for_its_asker_until_it_is_answered),
        WORLD_CASE(the_answer_used_longest_ago_is_forgotten_first),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
