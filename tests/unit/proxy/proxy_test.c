#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "edge.h"
#include "test.h"

enum { GUESTD = 49983, CODE = 49999 };

static struct arena arena;

static int begin(const struct edge_options *options)
{
    arena_init(&arena);
    edge_start(options);
    return 0;
}

/* Defines a function for cmocka that starts an edge with these options. */
#define SET_UP(name, ...)                                    \
    static int name(void **state)                            \
    {                                                        \
        (void)state;                                         \
        return begin(&(struct edge_options){ __VA_ARGS__ }); \
    }

static int set_up(void **state)
{
    (void)state;
    return begin(NULL);
}

SET_UP(set_up_with_slow_driver, .dial_later = true)

SET_UP(set_up_without_sandbox_inside, .dial_gone = true)

SET_UP(set_up_with_room_for_eight, .forwards_max = 8)

SET_UP(set_up_with_room_for_two, .forwards_max = 2)

static int tear_down(void **state)
{
    (void)state;
    edge_stop();
    arena_done(&arena);
    return 0;
}

static void wait_until_seen(struct service *service, unsigned long least)
{
    for (int i = 0; i < 30000 && service->seen < least; i++)
        usleep(1000);
    assert_true(service->seen >= least);
}

/* ---- services ---- */

/* Answers every request of a connection with the request's own head. */
static void echo_head(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char byte;
    (void)nth;
    while (recv(fd, &byte, 1, MSG_PEEK) == 1) {
        arena_init(&mine);
        struct str head = hear_head(fd, &mine);
        service->seen++;
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", head.len);
        say_bytes(fd, head);
        arena_done(&mine);
    }
}

/* Answers with the bytes that follow the request's head until "!" comes, chunk framing and all. */
static void echo_raw_body(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char text[4096];
    size_t len = 0;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    while (len < sizeof text && recv(fd, text + len, 1, 0) == 1) {
        service->seen++;
        if (text[len++] == '!')
            break;
    }
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len);
    say_bytes(fd, str_of(text, len));
}

/* ---- where requests go ---- */

static void a_request_without_a_sandbox_is_the_apis(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, "GET /sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check_answer(fd, &arena, 200, "the API's");
}

static void what_cannot_be_routed_is_refused_in_the_known_words(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: ilive\r\n\r\n");
    check_answer(fd, &arena, 400, "missing header\n");
    say(fd, "GET / HTTP/1.1\r\nHost: 80-i_x.example.com\r\n\r\n");
    check_answer(fd, &arena, 400, "Invalid sandbox ID\n");
    say(fd, "GET / HTTP/1.1\r\nHost: 0-ilive.example.com\r\n\r\n");
    check_answer(fd, &arena, 400, "Invalid sandbox port\n");
}

static void an_unknown_sandbox_is_a_502_that_says_so(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, "GET /health HTTP/1.1\r\nHost: 49983-inone-6532622b.example.com\r\n\r\n");
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 502);
    CHECK_STR(answer.body, STR("{\"sandboxId\":\"inone\",\"message\":\"The sandbox was not found\",\"code\":502}"));
    assert_true(has(answer.head, "content-type: application/json; charset=utf-8\r\n"));
    assert_true(has(answer.head, "access-control-allow-origin: *\r\n"));
    /* a body that nobody reads does not get in the way of the next request */
    say(fd, "POST /x HTTP/1.1\r\nHost: 80-inone.example.com\r\nContent-Length: 5\r\n\r\nhello");
    answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 502);
    assert_false(has(answer.head, "access-control"));
    say(fd, "GET /health HTTP/1.1\r\nHost: 49983-inone.example.com\r\n\r\n");
    assert_int_equal(hear_answer(fd, &arena).status, 502);
}

static void a_driver_that_knows_no_such_sandbox_is_the_same_502(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, TO("GET", "/health") "\r\n", GUESTD);
    check_answer(fd, &arena, 502, "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}");
}

/* So many attempts at a closed port were made, and the edge knows that the last one failed. */
static void wait_until_refused(unsigned dials)
{
    edge_wait_dials(dials);
    edge_turn(0);
}

static void a_closed_port_is_a_502_that_says_so(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    uint16_t port = free_port();
    char want[200];
    edge_stand();
    say(fd, TO("GET", "/") "\r\n", port);
    for (unsigned i = 1; i < LIMIT_EDGE_DIALS; i++) { /* with a longer pause after each */
        wait_until_refused(i);
        edge_turn(i * LIMIT_EDGE_DIAL_PAUSE_MS - 1);
        assert_int_equal(edge_dials(), i);
        edge_turn(1);
    }
    snprintf(want, sizeof want,
             "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox is running but port is not "
             "open\",\"port\":%u,\"code\":502}",
             port);
    check_answer(fd, &arena, 502, want);
    assert_int_equal(edge_dials(), LIMIT_EDGE_DIALS);
    /* guestd is there or it is not */
    say(fd, TO("GET", "/health") "\r\n", GUESTD);
    check_answer(fd, &arena, 502,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox is running but port is not "
                 "open\",\"port\":49983,\"code\":502}");
    assert_int_equal(edge_dials(), LIMIT_EDGE_DIALS + 1);
}

static void a_port_that_opens_a_little_late_is_reached(void **state)
{
    (void)state;
    struct service service;
    uint16_t port = free_port();
    auto_close int fd = client_new();
    edge_stand();
    say(fd, TO("POST", "/") "Content-Length: 0\r\n\r\n", port);
    wait_until_refused(1);
    service_start(&service, port, echo_head);
    edge_turn(LIMIT_EDGE_DIAL_PAUSE_MS);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    service_stop(&service);
}

static void control_paths_do_not_exist_outside(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, TO("POST", "//x/../in%%69t/?a=b") "Content-Length: 2\r\n\r\n{}", GUESTD);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 404);
    CHECK_STR(answer.body,
              STR("{\"message\":\"This route is not available from outside the sandbox\",\"path\":\"/init\","
                  "\"code\":404}"));
    /* the sandbox need not exist, and only guestd's port has them */
    say(fd, "GET /freeze HTTP/1.1\r\nHost: 49983-inone.example.com\r\n\r\n");
    assert_int_equal(hear_answer(fd, &arena).status, 404);
    struct service service;
    service_start(&service, 0, echo_head);
    say(fd, TO("GET", "/init") "\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    service_stop(&service);
}

static void preflights_that_cannot_be_routed_are_granted(void **state)
{
    (void)state;
    static const char *const hosts[] = { "localhost", "49983-inone.example.com", "49983-ilive.example.com" };
    auto_close int fd = client_new();
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        say(fd,
            "OPTIONS /files HTTP/1.1\r\nHost: %s\r\nOrigin: http://page\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: e2b-sandbox-id,x-access-token\r\n\r\n",
            hosts[i]);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 204);
        assert_true(has(answer.head, "access-control-allow-origin: *\r\n"));
        assert_true(has(answer.head, "access-control-allow-headers: e2b-sandbox-id,x-access-token\r\n"));
        assert_true(has(answer.head, "access-control-max-age: 7200\r\n"));
    }
}

/* ---- what is passed on ---- */

static void the_service_sees_the_request_without_our_connections_business(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_head);
    auto_close int fd = client_new();
    say(fd,
        TO("PATCH",
           "///a//b?q=1&r=%%2F") "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
                                 "Proxy-Authorization: a\r\nX-Forwarded-For: 1.2.3.4\r\nforwarded: for=1\r\n"
                                 "X-Forwarded-Proto: https\r\nCookie: a=b\r\nCookie: c=d\r\nX-Empty:\r\n\r\n",
        service.port);
    struct answer answer = hear_answer(fd, &arena);
    char want[512];
    snprintf(want, sizeof want,
             "PATCH /a//b?q=1&r=%%2F HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: ilive\r\nE2b-Sandbox-Port: %u\r\n"
             "Cookie: a=b\r\nCookie: c=d\r\nX-Empty: \r\nConnection: close\r\n\r\n",
             service.port);
    CHECK_STR(answer.body, str_from(want));
    service_stop(&service);
}

static void what_proves_the_caller_to_us_is_not_shown_to_services(void **state)
{
    static const uint16_t ports[] = { 0, GUESTD, CODE };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ports); i++) {
        struct service service;
        service_start(&service, ports[i], echo_head);
        auto_close int fd = client_new();
        /* By host name, because an API key beside the routing headers means the API. */
        say(fd,
            "GET /x HTTP/1.1\r\nHost: %u-ilive.example.com\r\nx-api-key: e2b_1\r\nX-Admin-Token: 2\r\n"
            "X-TEAM-ID: 3\r\nX-Access-Token: ilives-token\r\nAuthorization: Bearer 5\r\nX-API-Keys: 6\r\n\r\n",
            service.port);
        struct answer answer = hear_answer(fd, &arena);
        assert_false(has(answer.body, "x-api-key:") || has(answer.body, "x-admin-token") ||
                     has(answer.body, "x-team-id"));
        assert_int_equal(has(answer.body, "x-access-token: ilives-token\r\n"), ports[i] != 0);
        assert_true(has(answer.body, "authorization: bearer 5\r\n") && has(answer.body, "x-api-keys: 6\r\n"));
        service_stop(&service);
    }
}

static void a_service_is_reached_by_its_host_name_too(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_head);
    auto_close int fd = client_new();
    say(fd, "GET / HTTP/1.1\r\nHost: %u-ilive.example.com:7070\r\n\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    char want[64];
    snprintf(want, sizeof want, "\r\nHost: %u-ilive.example.com:7070\r\n", service.port);
    assert_true(has(answer.body, want));
    service_stop(&service);
}

static void a_chunked_body_arrives_as_chunks_and_a_counted_one_as_it_is(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_raw_body);
    auto_close int fd = client_new();
    say(fd, TO("POST", "/") "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nd!\r\n0\r\n\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_true(has(answer.body, "3\r\nabc\r\n") || has(answer.body, "4\r\nabcd") || has(answer.body, "5\r\nabcd!"));
    say(fd, TO("PUT", "/") "Content-Length: 5\r\n\r\nabcd!", service.port);
    check_answer(fd, &arena, 200, "abcd!");
    service_stop(&service);
}

static void the_edge_itself_says_100_continue(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_raw_body);
    auto_close int fd = client_new();
    say(fd, TO("PUT", "/") "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n", service.port);
    assert_true(has(hear_head(fd, &arena), "HTTP/1.1 100 "));
    say(fd, "ab!");
    check_answer(fd, &arena, 200, "ab!");
    service_stop(&service);
}

static void answer_with_everything(struct service *service, int fd, unsigned nth)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-A: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n", /* to HEAD */
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\nuntil the end",
        ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n"),
        "HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n",
    };
    struct arena mine;
    (void)service;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    say_bytes(fd, str_from(answers[nth]));
}

static void answers_of_every_framing_arrive(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, answer_with_everything);
    auto_close int fd = client_new();
    say(fd, TO("HEAD", "/") "\r\n", service.port);
    struct str head = hear_head(fd, &arena);
    assert_true(has(head, "HTTP/1.1 200 ") && has(head, "content-length: 7\r\n") && has(head, "x-a: 1\r\n"));
    assert_true(has(head, "set-cookie: a\r\n") && has(head, "set-cookie: b\r\n"));
    say(fd, TO("GET", "/") "\r\n", service.port);
    head = hear_head(fd, &arena);
    assert_true(has(head, "HTTP/1.1 204 ") && !has(head, "transfer-encoding"));
    say(fd, TO("GET", "/") "\r\n", service.port);
    head = hear_head(fd, &arena);
    assert_true(has(head, "HTTP/1.1 304 ") && has(head, "etag: \"x\"") && !has(head, "transfer-encoding"));
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_true(answer.chunked && !has(answer.head, "x-hop"));
    CHECK_STR(answer.body, STR("until the end"));
    say(fd, TO("GET", "/") "\r\n", service.port);
    check_answer(fd, &arena, 200, "last");
    say(fd, TO("GET", "/") "\r\n", service.port);
    check_answer(fd, &arena, 599, "");
    assert_int_equal(service.accepted, 6);
    service_stop(&service);
}

static void two_requests_in_one_go_are_answered_in_order(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_head);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/first") "\r\n" TO("GET", "/second") "\r\n", service.port, service.port);
    assert_true(has(hear_answer(fd, &arena).body, "GET /first "));
    assert_true(has(hear_answer(fd, &arena).body, "GET /second "));
    service_stop(&service);
}

/* ---- streams ---- */

static void two_events_a_signal_apart(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n");
    while (!service->seen)
        usleep(1000);
    say(fd, "7\r\ndata: 2\r\n0\r\n\r\n");
}

static void events_arrive_as_they_are_sent(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, two_events_a_signal_apart);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    (void)hear_head(fd, &arena);
    CHECK_STR(hear_exactly(fd, &arena, 12), STR("7\r\ndata: 1\r\n"));
    service.seen = 1; /* not before: the first one was not held back for the second */
    CHECK_STR(hear_exactly(fd, &arena, 17), STR("7\r\ndata: 2\r\n0\r\n\r\n"));
    service_stop(&service);
}

/* Answers at once and whole, and reads what comes until the other side closes. */
static void answer_early(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char piece[65536];
    ssize_t n;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    say(fd, "HTTP/1.1 413 No\r\nContent-Length: 8\r\n\r\ntoo much");
    while ((n = recv(fd, piece, sizeof piece, 0)) > 0)
        service->seen += (unsigned long)n;
}

static void an_answer_may_come_before_the_request_has_ended(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, answer_early);
    auto_close int fd = client_new();
    say(fd, TO("POST", "/") "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", service.port);
    check_answer(fd, &arena, 413, "too much");
    service_stop(&service);
}

/* Half of the answer, then a look at the request's body, then the other half. */
static void answer_around_the_body(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    (void)nth;
    (void)service;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
    (void)hear_exactly(fd, &mine, 4);
    say(fd, "half");
    arena_done(&mine);
}

static void both_directions_stream_at_once(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, answer_around_the_body);
    auto_close int fd = client_new();
    say(fd, TO("POST", "/") "Content-Length: 4\r\n\r\n", service.port);
    (void)hear_head(fd, &arena);
    CHECK_STR(hear_exactly(fd, &arena, 4), STR("half"));
    say(fd, "body");
    CHECK_STR(hear_exactly(fd, &arena, 4), STR("half"));
    service_stop(&service);
}

enum { MUCH = 64 << 20 };

/* No two pages of it are alike. */
static char much_at(size_t i)
{
    return (char)((i * 2654435761u) >> 16);
}

static void pour_out(struct service *service, int fd, unsigned nth)
{
    static char piece[65536];
    struct arena mine;
    (void)nth;
    arena_init(&mine);
    bool is_half = has(hear_head(fd, &mine), "GET /half ");
    arena_done(&mine);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", MUCH);
    for (size_t sent = 0; sent < (is_half ? MUCH / 2 : MUCH); sent += sizeof piece) {
        for (size_t i = 0; i < sizeof piece; i++)
            piece[i] = much_at(sent + i);
        struct str rest = str_of(piece, sizeof piece);
        while (rest.len) {
            ssize_t n = send(fd, rest.at, rest.len, MSG_NOSIGNAL);
            if (n <= 0)
                return; /* they have gone */
            rest = str_of(rest.at + n, rest.len - (size_t)n);
        }
        service->seen += sizeof piece;
    }
}

static void check_much(struct str got)
{
    for (size_t i = 0; i < got.len; i++) {
        if (got.at[i] != much_at(i))
            fail_msg("byte %zu is another", i);
    }
}

static unsigned long settled(struct service *service)
{
    unsigned long before;
    do {
        before = service->seen;
        usleep(200000);
    } while (service->seen != before);
    return before;
}

static void a_slow_client_makes_the_service_wait(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, pour_out);
    int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    wait_until_seen(&service, 1);
    /* What is out of the service's hands by now sits in kernels' buffers, and a little in ours. */
    assert_true(settled(&service) < MUCH / 2);
    (void)hear_head(fd, &arena);
    check_much(hear_exactly(fd, &arena, MUCH));
    close(fd);
    service_stop(&service);
    assert_int_equal(service.seen, MUCH);
}

static void a_large_answer_that_breaks_off_cannot_be_taken_for_whole(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, pour_out);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/half") "\r\n", service.port);
    (void)hear_head(fd, &arena);
    struct str got = hear_all(fd, &arena, &error);
    assert_int_equal(error, ECONNRESET);
    assert_true(got.len <= MUCH / 2);
    check_much(got);
    service_stop(&service);
}

static void a_large_answer_ends_with_its_client_or_its_sandbox(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, pour_out);
    int leaving = client_new();
    say(leaving, TO("GET", "/") "\r\n", service.port);
    (void)hear_head(leaving, &arena);
    (void)hear_exactly(leaving, &arena, MUCH / 8);
    close(leaving);
    /* It serves one after the other: that this one is served shows that the first one's end was seen inside. */
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    (void)hear_head(fd, &arena);
    check_much(hear_exactly(fd, &arena, MUCH / 8));
    edge_kill();
    assert_true(hear_all(fd, &arena, &error).len < MUCH);
    assert_int_equal(error, ECONNRESET);
    service_stop(&service);
}

static void swallow_on_signal(struct service *service, int fd, unsigned nth)
{
    static char piece[65536];
    struct arena mine;
    size_t got = 0;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    while (!service->seen)
        usleep(1000);
    while (got < MUCH) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%s", got == MUCH ? "ok" : "no");
}

static void a_slow_service_makes_the_client_wait(void **state)
{
    (void)state;
    static char piece[65536];
    struct service service;
    size_t sent = 0;
    service_start(&service, 0, swallow_on_signal);
    auto_close int fd = client_new();
    say(fd, TO("POST", "/") "Content-Length: %d\r\n\r\n", service.port, MUCH);
    for (int quiet = 0; sent < MUCH && quiet < 20;) {
        ssize_t n = send(fd, piece, MIN(sizeof piece, MUCH - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            sent += (size_t)n;
            quiet = 0;
        } else {
            quiet++;
            usleep(10000);
        }
    }
    assert_true(sent < MUCH / 2);
    service.seen = 1;
    for (; sent < MUCH; sent += MIN(sizeof piece, MUCH - sent))
        say_bytes(fd, str_of(piece, MIN(sizeof piece, MUCH - sent)));
    check_answer(fd, &arena, 200, "ok");
    service_stop(&service);
}

/* ---- ends that are not orderly ---- */

static void promise_more_than_is_sent(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    (void)service;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    arena_done(&mine);
    if (nth == 0)
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    else if (nth == 1)
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    else if (nth == 2)
        say(fd, "HTTP/9 what?\r\n\r\n");
    /* and the next one closes without a word */
}

static void an_answer_that_breaks_off_cannot_be_taken_for_whole(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, promise_more_than_is_sent);
    for (int i = 0; i < 2; i++) {
        auto_close int fd = client_new();
        say(fd, TO("GET", "/") "\r\n", service.port);
        struct str all = hear_all(fd, &arena, &error);
        assert_int_equal(error, ECONNRESET);
        assert_false(has(all, "\r\n0\r\n\r\n"));
    }
    for (int i = 0; i < 2; i++) {
        auto_close int fd = client_new();
        say(fd, TO("GET", "/") "\r\n", service.port);
        check_answer(fd, &arena, 502,
                     "{\"sandboxId\":\"ilive\",\"message\":\"The connection to the sandbox ended before it "
                     "answered\",\"code\":502}");
    }
    service_stop(&service);
}

/* Begins an answer that never ends; `seen` counts 1 at the beginning and 2 when the other side has gone. */
static void begin_and_wait(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char byte;
    (void)nth;
    arena_init(&mine);
    struct str head = hear_head(fd, &mine);
    if (!has(head, "GET /silent"))
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nstart\r\n");
    arena_done(&mine);
    service->seen++;
    if (recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN)
        service->seen++;
}

static void a_client_that_leaves_ends_the_request_inside(void **state)
{
    (void)state;
    struct service service;
    static const char *const paths[] = { "/stream", "/silent" };
    service_start(&service, 0, begin_and_wait);
    for (unsigned i = 0; i < COUNT_OF(paths); i++) {
        int fd = client_new();
        say(fd, "GET %s HTTP/1.1\r\nHost: %u-ilive.x\r\n\r\n", paths[i], service.port);
        wait_until_seen(&service, 2 * i + 1);
        close(fd);
        wait_until_seen(&service, 2 * i + 2);
    }
    service_stop(&service);
}

static void a_client_that_leaves_before_a_port_opens_leaves_nothing_behind(void **state)
{
    (void)state;
    edge_stand();
    for (unsigned i = 0; i < 4;
         i++) { /* at once, while the driver is asked, while we pause, after the second attempt */
        unsigned dials = edge_dials();
        int fd = client_new();
        say(fd, TO("POST", "/") "Content-Length: 5\r\n\r\nhello", free_port());
        if (i >= 1)
            edge_wait_handled(i + 1);
        if (i >= 2)
            wait_until_refused(dials + 1);
        if (i >= 3) {
            edge_turn(LIMIT_EDGE_DIAL_PAUSE_MS);
            wait_until_refused(dials + 2);
        }
        close(fd);
        edge_turn(0);
    }
}

static void killing_a_sandbox_resets_its_streams(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, begin_and_wait);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/stream") "\r\n", service.port);
    (void)hear_head(fd, &arena);
    CHECK_STR(hear_exactly(fd, &arena, 10), STR("5\r\nstart\r\n"));
    edge_kill();
    struct str rest = hear_all(fd, &arena, &error);
    assert_int_equal(error, ECONNRESET);
    assert_int_equal(rest.len, 0);
    wait_until_seen(&service, 2);
    auto_close int next = client_new();
    say(next, TO("GET", "/stream") "\r\n", service.port);
    check_answer(next, &arena, 502, "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}");
    service_stop(&service);
}

static void killing_a_sandbox_answers_those_who_still_wait(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, begin_and_wait);
    auto_close int asking = client_new();
    auto_close int reaching = client_new();
    say(asking, TO("GET", "/silent") "\r\n", service.port);
    say(reaching, TO("GET", "/") "\r\n", free_port());
    wait_until_seen(&service, 1);
    edge_kill();
    check_answer(asking, &arena, 502,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}");
    check_answer(reaching, &arena, 502,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}");
    wait_until_seen(&service, 2);
    service_stop(&service);
}

static void one_sandbox_cannot_take_all_connections(void **state)
{
    (void)state;
    static int fds[LIMIT_EDGE_CONNECTIONS];
    struct service service;
    /* One is accepted and the others wait in the backlog: all of them count. */
    service_start(&service, 0, begin_and_wait);
    for (unsigned i = 0; i < LIMIT_EDGE_CONNECTIONS; i++) {
        fds[i] = client_new();
        say(fds[i], TO("GET", "/silent") "\r\n", service.port);
    }
    edge_wait_handled(LIMIT_EDGE_CONNECTIONS);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    check_answer(fd, &arena, 429,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox has too many concurrent incoming "
                 "connections\",\"connectionLimit\":512,\"code\":429}");
    edge_kill();
    for (unsigned i = 0; i < LIMIT_EDGE_CONNECTIONS; i++)
        close(fds[i]);
    shutdown(service.listen_fd, SHUT_RDWR);
    service_stop(&service);
}

static void all_sandboxes_together_leave_room_for_the_api(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, begin_and_wait);
    int first = client_new(), second = client_new();
    say(first, TO("GET", "/silent") "\r\n", service.port);
    say(second, TO("GET", "/silent") "\r\n", service.port);
    edge_wait_handled(2);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 503);
    assert_true(has(answer.head, "should-retry: true\r\nretry-after: 1\r\n"));
    say(fd, "GET /sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check_answer(fd, &arena, 200, "the API's");
    edge_kill();
    close(first);
    close(second);
    shutdown(service.listen_fd, SHUT_RDWR);
    service_stop(&service);
}

/* ---- strangers ---- */

static void shout_back(struct service *service, int fd, unsigned nth);

#define NO_TOKEN                                                                                                 \
    "{\"code\":401,\"message\":\"unauthorized access, please provide a valid access token or method signing if " \
    "supported\"}\n"

static void a_request_that_needs_a_token_is_refused_before_its_body_and_before_guestd(void **state)
{
    static const char *const tokens[] = { "", "X-Access-Token: wrong\r\n", "X-Access-Token: ilives-tokem\r\n" };
    static const char *const paths[] = { "/process.Process/Start", "/nowhere", "//metrics" };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        for (size_t k = 0; k < COUNT_OF(paths); k++) {
            auto_close int fd = client_new();
            say(fd, STRANGER("ilive", "POST", "%s") "%sContent-Length: 100\r\n\r\nhalf", paths[k], GUESTD, tokens[i]);
            struct answer answer = hear_answer(fd, &arena);
            assert_int_equal(answer.status, 401);
            CHECK_STR(answer.body, STR(NO_TOKEN));
            assert_true(has(answer.head, "\r\nX-Content-Type-Options: nosniff\r\n"));
            assert_false(has(answer.head, "Access-Control"));
        }
        auto_close int fd = client_new();
        say(fd, STRANGER("ilive", "POST", "/execute") "%sOrigin: x\r\nContent-Length: 100\r\n\r\nhalf", CODE,
            tokens[i]);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 401);
        CHECK_STR(answer.body, STR("unauthorized access, please provide a valid access token"));
        assert_true(has(answer.head, "\r\nAccess-Control-Allow-Origin: *\r\nVary: Origin\r\n"));
    }
    assert_int_equal(edge_dials(), 0);
}

static void what_guestd_tells_everybody_is_asked_without_a_token(void **state)
{
    (void)state;
    struct service guestd, code;
    service_start(&guestd, GUESTD, echo_head);
    service_start(&code, CODE, echo_head);
    static const char *const open[][2] = { { "GET", "/health" },
                                           { "GET", "/files?path=x" },
                                           { "POST", "/files?path=x" } };
    for (size_t i = 0; i < COUNT_OF(open); i++) {
        auto_close int fd = client_new();
        say(fd, STRANGER("ilive", "%s", "%s") "Content-Length: 0\r\n\r\n", open[i][0], open[i][1], GUESTD);
        assert_int_equal(hear_answer(fd, &arena).status, 200);
    }
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "OPTIONS", "/process.Process/Start") "Access-Control-Request-Method: POST\r\n\r\n",
        GUESTD);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    say(fd, STRANGER("ilive", "GET", "/contexts") "\r\n", CODE);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    service_stop(&code);
    service_stop(&guestd);
}

static void take_all_and_say_nothing(struct service *service, int fd, unsigned nth)
{
    char bytes[4096];
    (void)service;
    (void)nth;
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
}

static void half_bodies_of_strangers_keep_nobody_out(void **state)
{
    (void)state;
    static int fds[LIMIT_EDGE_STRANGERS];
    struct service silent, echo;
    service_start(&silent, 0, take_all_and_say_nothing);
    service_start(&echo, 0, echo_head);
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++) {
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "POST", "/") "Content-Length: 10\r\n\r\nhalf", silent.port);
    }
    edge_wait_handled(LIMIT_EDGE_STRANGERS);
    auto_close int owner = client_new(), stranger = client_new();
    say(owner, TO("GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(owner, &arena).status, 200);
    /* The one that we have waited for longest makes room for another. */
    say(stranger, STRANGER("ilive", "GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(stranger, &arena).status, 200);
    check_answer(fds[0], &arena, 429,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox has too many concurrent incoming connections "
                 "without an access token\",\"connectionLimit\":192,\"code\":429}");
    edge_kill();
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++)
        close(fds[i]);
    shutdown(silent.listen_fd, SHUT_RDWR);
    service_stop(&echo);
    service_stop(&silent);
}

static void whole_requests_of_strangers_leave_places_to_the_owner(void **state)
{
    (void)state;
    static int fds[LIMIT_EDGE_STRANGERS];
    struct service silent, echo;
    service_start(&silent, 0, begin_and_wait);
    service_start(&echo, 0, echo_head);
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++) {
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "GET", "/silent") "\r\n", silent.port);
    }
    edge_wait_handled(LIMIT_EDGE_STRANGERS);
    auto_close int owner = client_new(), stranger = client_new(), other = client_new();
    /* The service may be at work for each of them: none is cut for one more of the same sandbox. */
    say(stranger, STRANGER("ilive", "GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(stranger, &arena).status, 429);
    say(owner, TO("GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(owner, &arena).status, 200);
    say(other, STRANGER("iother", "GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(other, &arena).status, 200);
    edge_kill();
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++)
        close(fds[i]);
    shutdown(silent.listen_fd, SHUT_RDWR);
    service_stop(&echo);
    service_stop(&silent);
}

/* People publish links: whoever has one must not be able to keep the owner out, least of all once it has expired. */
static void half_bodies_with_links_keep_nobody_out(void **state)
{
    static const char *const expirations[] = { "", "&signature_expiration=1600000000", "&signature_expiration=soon" };
    static int fds[LIMIT_EDGE_CONNECTIONS];
    (void)state;
    for (size_t k = 0; k < COUNT_OF(expirations); k++) {
        struct service guestd, echo;
        unsigned before = edge_handled();
        service_start(&guestd, GUESTD, take_all_and_say_nothing);
        service_start(&echo, 0, echo_head);
        for (unsigned i = 0; i < LIMIT_EDGE_CONNECTIONS; i++) {
            fds[i] = client_new();
            say(fds[i],
                STRANGER("ilive", "POST", "/files?path=%%2Fa+b&signature=v1_right%s") "Content-Length: 10\r\n\r\nhalf",
                expirations[k], GUESTD);
        }
        edge_wait_handled(before + LIMIT_EDGE_CONNECTIONS);
        auto_close int owner = client_new(), stranger = client_new();
        say(owner, TO("GET", "/") "\r\n", echo.port);
        assert_int_equal(hear_answer(owner, &arena).status, 200);
        /* The oldest have made room, and those who are left still do. */
        assert_int_equal(hear_answer(fds[0], &arena).status, 429);
        say(stranger, STRANGER("ilive", "GET", "/") "\r\n", echo.port);
        assert_int_equal(hear_answer(stranger, &arena).status, 200);
        for (unsigned i = 0; i < LIMIT_EDGE_CONNECTIONS; i++)
            close(fds[i]);
        shutdown(guestd.listen_fd, SHUT_RDWR);
        service_stop(&echo);
        service_stop(&guestd);
    }
}

static void strangers_leave_places_to_links(void **state)
{
    (void)state;
    static int fds[LIMIT_EDGE_STRANGERS];
    char link[96];
    struct service silent, guestd;
    service_start(&silent, 0, begin_and_wait);
    service_start(&guestd, GUESTD, echo_head);
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++) {
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "GET", "/silent") "\r\n", silent.port);
    }
    edge_wait_handled(LIMIT_EDGE_STRANGERS);
    auto_close int good = client_new(), expired = client_new();
    snprintf(link, sizeof link, "/files?path=%%2Fa+b&signature=v1_right&signature_expiration=%lld",
             (long long)clock_wall_us() / 1000000 + 60);
    say(good, STRANGER("ilive", "GET", "%s") "\r\n", link, GUESTD);
    assert_int_equal(hear_answer(good, &arena).status, 200);
    say(expired,
        STRANGER("ilive", "GET", "/files?path=%%2Fa+b&signature=v1_right&signature_expiration=1600000000") "\r\n",
        GUESTD);
    assert_int_equal(hear_answer(expired, &arena).status, 429);
    edge_kill();
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++)
        close(fds[i]);
    shutdown(silent.listen_fd, SHUT_RDWR);
    service_stop(&guestd);
    service_stop(&silent);
}

/* guestd takes 256 connections at a port, fewer than the edge does. */
static void strangers_leave_connections_of_guestd_to_the_owner(void **state)
{
    enum { OWNERS = LIMIT_EDGE_GUESTD - LIMIT_EDGE_STRANGERS + 8 };
    (void)state;
    static int fds[LIMIT_EDGE_STRANGERS], owners[OWNERS];
    struct service code;
    service_start(&code, CODE, begin_and_wait);
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++) {
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "GET", "/silent") "\r\n", CODE);
    }
    edge_wait_handled(LIMIT_EDGE_STRANGERS);
    for (unsigned i = 0; i < OWNERS; i++) {
        owners[i] = client_new();
        say(owners[i], TO("POST", "/execute") "Content-Length: 0\r\n\r\n", CODE);
        edge_wait_handled(LIMIT_EDGE_STRANGERS + i + 1);
    }
    /* The oldest strangers have gone, one for each owner too many. */
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(hear_answer(fds[i], &arena).status, 429);
    edge_kill();
    for (unsigned i = 0; i < LIMIT_EDGE_STRANGERS; i++)
        close(fds[i]);
    for (unsigned i = 0; i < OWNERS; i++)
        close(owners[i]);
    shutdown(code.listen_fd, SHUT_RDWR);
    service_stop(&code);
}

static void strangers_of_one_sandbox_leave_places_to_those_of_another(void **state)
{
    (void)state;
    struct service silent, echo;
    int fds[4];
    service_start(&silent, 0, begin_and_wait);
    service_start(&echo, 0, echo_head);
    for (unsigned i = 0; i < COUNT_OF(fds); i++) { /* half of all that there are */
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "GET", "/silent") "\r\n", silent.port);
        edge_wait_handled(i + 1);
    }
    auto_close int stranger = client_new(), other = client_new();
    say(stranger, STRANGER("ilive", "GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(stranger, &arena).status, 503);
    /* The oldest goes: its sandbox has more than its share. */
    say(other, STRANGER("iother", "GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(other, &arena).status, 200);
    assert_int_equal(hear_answer(fds[0], &arena).status, 429);
    close(fds[0]);

    /* Those who have shown a token get all places, strangers' too. */
    int owners[8];
    for (unsigned i = 0; i < COUNT_OF(owners); i++) {
        owners[i] = client_new();
        say(owners[i], TO("GET", "/silent") "\r\n", silent.port);
    }
    for (unsigned i = 1; i < COUNT_OF(fds); i++) {
        assert_int_equal(hear_answer(fds[i], &arena).status, 429);
        close(fds[i]);
    }
    auto_close int late = client_new();
    say(late, TO("GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(late, &arena).status, 503);
    edge_kill();
    for (unsigned i = 0; i < COUNT_OF(owners); i++)
        close(owners[i]);
    shutdown(silent.listen_fd, SHUT_RDWR);
    service_stop(&echo);
    service_stop(&silent);
}

static void a_tunnel_of_a_stranger_makes_room_for_the_owner(void **state)
{
    (void)state;
    struct service silent;
    struct service echo;
    int error;
    service_start(&silent, 0, shout_back);
    service_start(&echo, 0, echo_head);
    auto_close int tunnel = client_new();
    say(tunnel,
        STRANGER("ilive", "GET", "/ws") "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n",
        silent.port);
    assert_true(has(hear_head(tunnel, &arena), "HTTP/1.1 101 "));
    CHECK_STR(hear_exactly(tunnel, &arena, 5), STR("hello"));
    auto_close int first = client_new(), second = client_new();
    struct service slow;
    service_start(&slow, 0, begin_and_wait);
    say(first, TO("GET", "/silent") "\r\n", slow.port);
    wait_until_seen(&slow, 1);
    say(second, TO("GET", "/") "\r\n", echo.port);
    assert_int_equal(hear_answer(second, &arena).status, 200);
    (void)hear_all(tunnel, &arena, &error);
    assert_int_equal(error, ECONNRESET);
    edge_kill();
    shutdown(slow.listen_fd, SHUT_RDWR);
    service_stop(&slow);
    service_stop(&echo);
    service_stop(&silent);
}

/* ---- tunnels ---- */

static void shout_back(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char piece[4096];
    ssize_t n;
    (void)nth;
    arena_init(&mine);
    struct str head = hear_head(fd, &mine);
    bool asked = has(head, "\r\nConnection: Upgrade\r\n") && has(head, "\r\nUpgrade: websocket\r\n") &&
                 has(head, "\r\nSec-WebSocket-Key: abc\r\n");
    say(fd,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        "xyz\r\n\r\n%s",
        asked ? "hello" : "what?");
    arena_done(&mine);
    while ((n = recv(fd, piece, sizeof piece, 0)) > 0) {
        service->seen += (unsigned long)n;
        say_bytes(fd, str_of(piece, (size_t)n));
    }
    if (n == 0)
        say(fd, "bye");
}

static int open_tunnel(struct service *service)
{
    int fd = client_new();
    say(fd,
        TO("GET", "/ws") "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\nearly",
        service->port);
    struct str head = hear_head(fd, &arena);
    assert_true(has(head, "HTTP/1.1 101 ") && has(head, "\r\nUpgrade: websocket\r\n") &&
                has(head, "\r\nConnection: Upgrade\r\n") && has(head, "\r\nSec-WebSocket-Accept: xyz\r\n"));
    CHECK_STR(hear_exactly(fd, &arena, 10), STR("helloearly"));
    return fd;
}

static void a_websocket_carries_bytes_both_ways_to_the_orderly_end(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, shout_back);
    auto_close int fd = open_tunnel(&service);
    say_bytes(fd, STR("\x81\x00\xff"));
    CHECK_STR(hear_exactly(fd, &arena, 3), STR("\x81\x00\xff"));
    shutdown(fd, SHUT_WR);
    CHECK_STR(hear_all(fd, &arena, &error), STR("bye"));
    assert_int_equal(error, 0);
    service_stop(&service);
}

static void killing_a_sandbox_resets_its_tunnels(void **state)
{
    (void)state;
    struct service service;
    int error;
    service_start(&service, 0, shout_back);
    auto_close int fd = open_tunnel(&service);
    edge_kill();
    (void)hear_all(fd, &arena, &error);
    assert_int_equal(error, ECONNRESET);
    service_stop(&service);
}

/* ---- kept connections ---- */

static void requests_to_guestd_share_a_connection(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    for (int i = 0; i < 3; i++) {
        say(fd, TO("GET", "/health") "\r\n", GUESTD);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 200);
        assert_false(has(answer.body, "connection:"));
    }
    auto_close int other = client_new();
    say(other, TO("GET", "/health") "\r\n", GUESTD);
    assert_int_equal(hear_answer(other, &arena).status, 200);
    assert_int_equal(guestd.accepted, 1);
    assert_int_equal(edge_dials(), 1);
    edge_kill(); /* closes what is kept: the service would wait for more otherwise */
    service_stop(&guestd);
}

/* The first connection answers once; what comes on it later is read and left unanswered. */
static void answer_once(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    arena_init(&mine);
    for (unsigned i = 0; i < 2; i++) {
        struct str head = hear_head(fd, &mine);
        size_t length = has(head, "content-length: 5\r\n") ? 5 : 0;
        struct str body = hear_exactly(fd, &mine, length);
        service->seen++;
        if (nth == 0 && i == 1)
            break;
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", body.len);
        say_bytes(fd, body);
        if (nth == 1)
            break;
    }
    arena_done(&mine);
}

static void a_dead_kept_connection_is_replaced(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, answer_once);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", GUESTD);
    check_answer(fd, &arena, 200, "");
    say(fd, TO("POST", "/") "Content-Length: 5\r\n\r\nagain", GUESTD);
    check_answer(fd, &arena, 200, "again");
    assert_int_equal(guestd.accepted, 2);
    assert_int_equal(guestd.seen, 3);
    service_stop(&guestd);
}

static void swallow_then_close(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    (void)service;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    (void)hear_head(fd, &mine);
    (void)hear_exactly(fd, &mine, LIMIT_EDGE_REPLAY_BYTES + 1);
    arena_done(&mine);
}

static void a_request_that_is_no_longer_in_hand_is_not_repeated(void **state)
{
    (void)state;
    static char body[LIMIT_EDGE_REPLAY_BYTES + 1];
    struct service guestd;
    service_start(&guestd, GUESTD, swallow_then_close);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", GUESTD);
    check_answer(fd, &arena, 200, "");
    say(fd, TO("POST", "/") "Content-Length: %zu\r\n\r\n", GUESTD, sizeof body);
    say_bytes(fd, str_of(body, sizeof body));
    assert_int_equal(hear_answer(fd, &arena).status, 502);
    assert_int_equal(guestd.accepted, 1);
    service_stop(&guestd);
}

/* ---- small requests to guestd ---- */

/* Says how much came with the first read, and reads no more; "!" ends what it waits for. */
static void answer_first_read(struct service *service, int fd, unsigned nth)
{
    char text[16384];
    ssize_t n;
    (void)nth;
    while ((n = recv(fd, text, sizeof text, 0)) > 0) {
        bool is_whole = memchr(text, '!', (size_t)n);
        service->seen++;
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n%s", is_whole ? "whole" : "parts");
    }
}

static void a_small_request_reaches_guestd_in_one_piece(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, answer_first_read);
    auto_close int fd = client_new();
    for (int i = 0; i < 3; i++) { /* on a new connection inside, then on a kept one */
        say(fd, TO("POST", "/files") "Content-Length: 600\r\n\r\n", GUESTD);
        edge_turn(0);
        for (int piece = 0; piece < 3; piece++) {
            assert_int_equal(guestd.seen, 2 * i);
            say(fd, "%199d%c", piece, piece == 2 ? '!' : '.');
            edge_turn(0);
        }
        check_answer(fd, &arena, 200, "whole");
        /* What is shorter than the body was is seen too. */
        say(fd, TO("GET", "/") "\r\n", GUESTD);
        check_answer(fd, &arena, 200, "parts");
    }
    assert_int_equal(guestd.accepted, 1);
    service_stop(&guestd);
}

static void input_that_is_used_as_it_comes_is_not_held_back(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_raw_body);
    auto_close int fd = client_new();
    say(fd, TO("POST", "/process.Process/StreamInput") "Content-Length: 9\r\n\r\n", GUESTD);
    say(fd, "four");
    wait_until_seen(&guestd, 4);
    say(fd, "five!");
    check_answer(fd, &arena, 200, "fourfive!");
    service_stop(&guestd);
}

static void a_request_that_never_gets_whole_leaves_nothing_behind(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_raw_body);
    int leaving = client_new();
    auto_close int waiting = client_new();
    say(leaving, TO("POST", "/files") "Content-Length: 9\r\n\r\nhalf", GUESTD);
    say(waiting, TO("POST", "/files") "Content-Length: 9\r\n\r\nhalf", GUESTD);
    close(leaving);
    edge_turn(0);
    edge_kill();
    check_answer(waiting, &arena, 502,
                 "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}");
    assert_int_equal(guestd.accepted, 0);
    service_stop(&guestd);
}

/* ---- signed links ---- */

#define LINK(method, query) method " " query " HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define NOBODY_SIGNED "{\"code\":401,\"message\":\"invalid signature, or its sandbox is no longer running\"}\n"

static void a_signed_link_finds_its_sandbox_and_is_remembered(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    for (int i = 0; i < 3; i++) {
        say(fd, LINK("GET", "//files?path=%%2Fa+b&signature=v1_right"));
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 200);
        assert_true(has(answer.body, "GET /files?path=%2Fa+b&signature=v1_right HTTP/1.1"));
    }
    assert_int_equal(edge_searches(), 1);
    service_stop(&guestd);
}

static void a_remembered_link_does_not_outlive_its_sandbox(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    say(fd, LINK("GET", "/files?path=%%2Fa+b&signature=v1_right"));
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    edge_kill();
    say(fd, LINK("GET", "/files?path=%%2Fa+b&signature=v1_right"));
    check_answer(fd, &arena, 401, NOBODY_SIGNED);
    service_stop(&guestd);
}

static void a_link_that_nobody_here_signed_is_refused(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, LINK("GET", "/files?path=%%2Fa+b&signature=v1_wrong"));
    check_answer(fd, &arena, 401, NOBODY_SIGNED);
    say(fd, LINK("POST", "/files?path=%%2Fa+b&signature=v1_right")); /* for reading only */
    check_answer(fd, &arena, 401, NOBODY_SIGNED);
    /* Without a signature, or with another verb, it is no link. */
    say(fd, LINK("GET", "/files?path=%%2Fa+b"));
    check_answer(fd, &arena, 200, "the API's");
    say(fd, LINK("DELETE", "/files?signature=v1_right"));
    check_answer(fd, &arena, 200, "the API's");
    assert_int_equal(edge_searches(), 2);
}

enum { MISSES = LIMIT_LINK_TRIES / EDGE_TRIES };

/* Guesses until it is told to stop: how often that is in a second is bounded, how long it takes to get there is not. */
static bool guess(int fd, const char *headers)
{
    for (int i = 0; i < 20 * MISSES; i++) {
        say(fd, "GET /files?path=x&signature=v1_%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n", i, headers);
        struct answer answer = hear_answer(fd, &arena);
        bool busy = answer.status == 429;
        assert_int_equal(has(answer.head, "Should-Retry: true\r\nRetry-After: 1"), busy);
        if (busy)
            return true;
        assert_int_equal(answer.status, 401);
    }
    return false;
}

static void guessing_signatures_is_bounded(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    assert_true(guess(fd, ""));
}

static void who_guesses_keeps_nobody_else_from_their_files(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int guesser = client_new_from("127.0.0.2"), other = client_new();
    for (int i = 0; i < 5; i++) {
        assert_true(guess(guesser, ""));
        say(other, LINK("GET", "/files?path=%%2Fa+b&signature=v1_right%d"), i); /* none is remembered */
        assert_int_equal(hear_answer(other, &arena).status, 200);
        say(other, LINK("GET", "/files?path=x&signature=v1_wrong"));
        assert_int_equal(hear_answer(other, &arena).status, 401);
    }
    service_stop(&guestd);
}

static void behind_a_proxy_of_this_machine_the_client_is_who_it_says(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    assert_true(guess(fd, "X-Forwarded-For: 198.51.100.7, 203.0.113.1\r\n"));
    /* The last one counts; what stands before it is only what the client says. */
    say(fd, "GET /files?path=x&signature=v1_x HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 203.0.113.2\r\n\r\n");
    assert_int_equal(hear_answer(fd, &arena).status, 401);
    say(fd, LINK("GET", "/files?path=x&signature=v1_x"));
    assert_int_equal(hear_answer(fd, &arena).status, 401);
}

static void what_is_no_signature_costs_nothing_and_is_not_counted(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    for (int i = 0; i < 3 * MISSES; i++) {
        say(fd, LINK("GET", "/files?path=x&signature=%d"), i);
        assert_int_equal(hear_answer(fd, &arena).status, 401);
    }
}

/* ---- access tokens ---- */

#define TOKEN(method, path, token) method " " path " HTTP/1.1\r\nHost: localhost\r\nX-Access-Token: " token "\r\n"

static void a_call_that_carries_a_token_finds_its_sandbox(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    static const char *const paths[] = { "//files?path=x", "/files", "/health", "/process.Process/Start" };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        say(fd, TOKEN("GET", "%s", "ilives-token") "\r\n", paths[i]);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 200);
        assert_true(has(answer.body, "X-Access-Token: ilives-token")); /* guestd checks it again */
    }
    service_stop(&guestd);
}

static void a_token_that_nobody_has_is_answered_as_one_whose_sandbox_has_ended(void **state)
{
    static const char body[] = "{\"sandboxId\":\"\",\"message\":\"The sandbox was not found\",\"code\":502}";
    (void)state;
    auto_close int fd = client_new();
    say(fd, TOKEN("GET", "/health", "nobodys") "\r\n");
    check_answer(fd, &arena, 502, body);
    edge_kill();
    say(fd, TOKEN("GET", "/health", "ilives-token") "\r\n");
    check_answer(fd, &arena, 502, body);
}

static void wrong_tokens_keep_nobody_out(void **state)
{
    (void)state;
    struct service guestd;
    service_start(&guestd, GUESTD, echo_head);
    auto_close int guesser = client_new_from("127.0.0.2"), other = client_new();
    for (int i = 0; i < 3 * MISSES; i++) {
        say(guesser, TOKEN("GET", "/health", "%d") "\r\n", i);
        assert_int_equal(hear_answer(guesser, &arena).status, 502);
        if (i % MISSES)
            continue;
        say(other, TOKEN("GET", "/files?path=x", "ilives-token") "\r\n");
        assert_int_equal(hear_answer(other, &arena).status, 200);
    }
    service_stop(&guestd);
}

static void a_token_says_nothing_about_calls_of_the_api(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, TOKEN("GET", "/sandboxes", "ilives-token") "\r\n");
    check_answer(fd, &arena, 200, "the API's");
    say(fd, TOKEN("GET", "/health", "ilives-token") "X-API-Key: e2b_0\r\n\r\n");
    check_answer(fd, &arena, 200, "the API's");
    say(fd, TOKEN("GET", "/health", "") "\r\n");
    check_answer(fd, &arena, 200, "the API's");
    /* Who says which sandbox is meant, means it. */
    say(fd, TOKEN("GET", "/health", "ilives-token") "E2b-Sandbox-Id: inone\r\nE2b-Sandbox-Port: 49983\r\n\r\n");
    check_answer(fd, &arena, 502, "{\"sandboxId\":\"inone\",\"message\":\"The sandbox was not found\",\"code\":502}");
}

/* ---- private sandboxes, masked names ---- */

SET_UP(set_up_private, .traffic_token = "open sesame")

SET_UP(set_up_open_code, .open_code = true)

static void a_sandbox_with_open_code_runs_code_without_a_token(void **state)
{
    (void)state;
    struct service code;
    service_start(&code, CODE, echo_head);
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "POST", "/execute") "Content-Length: 0\r\n\r\n", CODE);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    auto_close int other = client_new();
    say(other, STRANGER("ilive", "POST", "/process.Process/Start") "Content-Length: 2\r\n\r\n{}", GUESTD);
    assert_int_equal(hear_answer(other, &arena).status, 401);
    assert_int_equal(edge_code_notes(), 1); /* so that others like it are prepared for code */
    service_stop(&code);
}

SET_UP(set_up_masked, .mask_host = "inner.example.com:${PORT}")

static void a_private_sandbox_wants_the_traffic_token(void **state)
{
    (void)state;
    struct service service, guestd;
    service_start(&service, 0, echo_head);
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 403);
    assert_true(has(answer.body, "\"sandboxId\":\"ilive\"") && has(answer.body, "\"code\":403"));
    say(fd, TO("GET", "/") "E2B-Traffic-Access-Token: wrong\r\n\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 403);
    assert_int_equal(service.seen, 0);
    say(fd, TO("GET", "/") "E2B-Traffic-Access-Token: open sesame\r\n\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    /* guestd has its own token. */
    say(fd, TO("GET", "/") "\r\n", GUESTD);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    service_stop(&guestd);
    service_stop(&service);
}

static void a_masked_service_sees_another_host(void **state)
{
    (void)state;
    struct service service, guestd;
    char want[64];
    service_start(&service, 0, echo_head);
    service_start(&guestd, GUESTD, echo_head);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "X-Forwarded-Host: liar\r\n\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    snprintf(want, sizeof want, "\r\nHost: inner.example.com:%u\r\n", service.port);
    assert_true(has(answer.body, want));
    assert_true(has(answer.body, "\r\nX-Forwarded-Host: x\r\n"));
    assert_false(has(answer.body, "liar"));
    say(fd, TO("GET", "/") "\r\n", GUESTD);
    assert_true(has(hear_answer(fd, &arena).body, "\r\nHost: x\r\n"));
    service_stop(&guestd);
    service_stop(&service);
}

/* ---- shares ---- */

SET_UP(set_up_with_few_for_a_key, .key_id = "k1", .key_forwards_max = 2)

SET_UP(set_up_with_few_for_a_key_but_no_key, .key_forwards_max = 1)

/* Says nothing until the client has gone. */
static void keep_waiting(struct service *service, int fd, unsigned nth)
{
    struct arena mine;
    char byte;
    (void)nth;
    arena_init(&mine);
    (void)hear_head(fd, &mine);
    service->seen++;
    (void)recv(fd, &byte, 1, 0);
    arena_done(&mine);
}

static void one_key_cannot_take_all_connections(void **state)
{
    (void)state;
    struct service first, second, quick;
    service_start(&first, 0, keep_waiting);
    service_start(&second, 0, keep_waiting);
    service_start(&quick, 0, echo_head);
    int fds[] = { client_new(), client_new() };
    say(fds[0], TO("GET", "/") "\r\n", first.port);
    say(fds[1], TO("GET", "/") "\r\n", second.port);
    wait_until_seen(&first, 1);
    wait_until_seen(&second, 1);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", quick.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 429);
    assert_true(has(answer.body, "of this API key"));
    assert_true(has(answer.head, "Should-Retry: false"));
    assert_false(has(answer.head, "Retry-After"));
    /* One leaves, and there is room again. */
    close(fds[0]);
    unsigned status = 429;
    for (int i = 0; i < 200 && status == 429; i++) {
        usleep(10000);
        say(fd, TO("GET", "/") "\r\n", quick.port);
        status = hear_answer(fd, &arena).status;
    }
    assert_int_equal(status, 200);
    close(fds[1]);
    service_stop(&quick);
    service_stop(&second);
    service_stop(&first);
}

static void what_an_administrator_has_made_has_no_share(void **state)
{
    (void)state;
    struct service slow, quick;
    service_start(&slow, 0, keep_waiting);
    service_start(&quick, 0, echo_head);
    int waiting = client_new();
    say(waiting, TO("GET", "/") "\r\n", slow.port);
    wait_until_seen(&slow, 1);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", quick.port);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    close(waiting);
    service_stop(&quick);
    service_stop(&slow);
}

#define EDGE_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        EDGE_CASE(a_request_without_a_sandbox_is_the_apis),
        EDGE_CASE(what_cannot_be_routed_is_refused_in_the_known_words),
        EDGE_CASE(an_unknown_sandbox_is_a_502_that_says_so),
        cmocka_unit_test_setup_teardown(a_driver_that_knows_no_such_sandbox_is_the_same_502,
                                        set_up_without_sandbox_inside, tear_down),
        EDGE_CASE(a_closed_port_is_a_502_that_says_so),
        EDGE_CASE(a_port_that_opens_a_little_late_is_reached),
        EDGE_CASE(control_paths_do_not_exist_outside),
        EDGE_CASE(preflights_that_cannot_be_routed_are_granted),
        EDGE_CASE(the_service_sees_the_request_without_our_connections_business),
        EDGE_CASE(what_proves_the_caller_to_us_is_not_shown_to_services),
        cmocka_unit_test_setup_teardown(a_service_is_reached_by_its_host_name_too, set_up_with_slow_driver, tear_down),
        EDGE_CASE(a_chunked_body_arrives_as_chunks_and_a_counted_one_as_it_is),
        EDGE_CASE(the_edge_itself_says_100_continue),
        EDGE_CASE(answers_of_every_framing_arrive),
        EDGE_CASE(two_requests_in_one_go_are_answered_in_order),
        EDGE_CASE(events_arrive_as_they_are_sent),
        EDGE_CASE(an_answer_may_come_before_the_request_has_ended),
        EDGE_CASE(both_directions_stream_at_once),
        EDGE_CASE(a_slow_client_makes_the_service_wait),
        EDGE_CASE(a_large_answer_that_breaks_off_cannot_be_taken_for_whole),
        EDGE_CASE(a_large_answer_ends_with_its_client_or_its_sandbox),
        EDGE_CASE(a_slow_service_makes_the_client_wait),
        EDGE_CASE(an_answer_that_breaks_off_cannot_be_taken_for_whole),
        EDGE_CASE(a_client_that_leaves_ends_the_request_inside),
        cmocka_unit_test_setup_teardown(a_client_that_leaves_before_a_port_opens_leaves_nothing_behind,
                                        set_up_with_slow_driver, tear_down),
        cmocka_unit_test_setup_teardown(killing_a_sandbox_resets_its_streams, set_up_with_slow_driver, tear_down),
        cmocka_unit_test_setup_teardown(killing_a_sandbox_answers_those_who_still_wait, set_up_with_slow_driver,
                                        tear_down),
        EDGE_CASE(one_sandbox_cannot_take_all_connections),
        EDGE_CASE(a_request_that_needs_a_token_is_refused_before_its_body_and_before_guestd),
        EDGE_CASE(what_guestd_tells_everybody_is_asked_without_a_token),
        EDGE_CASE(half_bodies_of_strangers_keep_nobody_out),
        EDGE_CASE(whole_requests_of_strangers_leave_places_to_the_owner),
        EDGE_CASE(half_bodies_with_links_keep_nobody_out),
        EDGE_CASE(strangers_leave_connections_of_guestd_to_the_owner),
        EDGE_CASE(strangers_leave_places_to_links),
        cmocka_unit_test_setup_teardown(strangers_of_one_sandbox_leave_places_to_those_of_another,
                                        set_up_with_room_for_eight, tear_down),
        cmocka_unit_test_setup_teardown(a_tunnel_of_a_stranger_makes_room_for_the_owner, set_up_with_room_for_two,
                                        tear_down),
        cmocka_unit_test_setup_teardown(all_sandboxes_together_leave_room_for_the_api, set_up_with_room_for_two,
                                        tear_down),
        EDGE_CASE(a_websocket_carries_bytes_both_ways_to_the_orderly_end),
        EDGE_CASE(killing_a_sandbox_resets_its_tunnels),
        EDGE_CASE(requests_to_guestd_share_a_connection),
        EDGE_CASE(a_dead_kept_connection_is_replaced),
        cmocka_unit_test_setup_teardown(a_request_that_is_no_longer_in_hand_is_not_repeated, set_up_with_slow_driver,
                                        tear_down),
        EDGE_CASE(a_small_request_reaches_guestd_in_one_piece),
        EDGE_CASE(input_that_is_used_as_it_comes_is_not_held_back),
        EDGE_CASE(a_request_that_never_gets_whole_leaves_nothing_behind),
        EDGE_CASE(a_signed_link_finds_its_sandbox_and_is_remembered),
        EDGE_CASE(a_remembered_link_does_not_outlive_its_sandbox),
        EDGE_CASE(a_link_that_nobody_here_signed_is_refused),
        EDGE_CASE(a_call_that_carries_a_token_finds_its_sandbox),
        EDGE_CASE(a_token_that_nobody_has_is_answered_as_one_whose_sandbox_has_ended),
        EDGE_CASE(wrong_tokens_keep_nobody_out),
        EDGE_CASE(a_token_says_nothing_about_calls_of_the_api),
        EDGE_CASE(guessing_signatures_is_bounded),
        EDGE_CASE(who_guesses_keeps_nobody_else_from_their_files),
        EDGE_CASE(behind_a_proxy_of_this_machine_the_client_is_who_it_says),
        EDGE_CASE(what_is_no_signature_costs_nothing_and_is_not_counted),
        cmocka_unit_test_setup_teardown(one_key_cannot_take_all_connections, set_up_with_few_for_a_key, tear_down),
        cmocka_unit_test_setup_teardown(what_an_administrator_has_made_has_no_share,
                                        set_up_with_few_for_a_key_but_no_key, tear_down),
        cmocka_unit_test_setup_teardown(a_sandbox_with_open_code_runs_code_without_a_token, set_up_open_code,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_private_sandbox_wants_the_traffic_token, set_up_private, tear_down),
        cmocka_unit_test_setup_teardown(a_masked_service_sees_another_host, set_up_masked, tear_down),
    };
    if (!edge_use_private_network())
        fprintf(stderr, "no network namespace of our own: using this machine's loopback and its port %d\n", GUESTD);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
