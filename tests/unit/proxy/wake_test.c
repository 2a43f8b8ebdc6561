#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "edge.h"
#include "test.h"

enum { GUESTD = 49983, CODE = 49999 };

#define NOT_FOUND "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox was not found\",\"code\":502}"
#define RESUMING(code) "{\"sandboxId\":\"ilive\",\"message\":\"The sandbox is still being resumed\",\"code\":" code "}"

static struct arena arena;
static struct service service;

/* Answers every request of a connection with its body. */
static void echo_body(struct service *s, int fd, unsigned nth)
{
    struct arena mine;
    char byte;
    (void)nth;
    while (recv(fd, &byte, 1, MSG_PEEK) == 1) {
        arena_init(&mine);
        struct str head = hear_head(fd, &mine);
        struct str body = has(head, "Content-Length: 5") ? hear_exactly(fd, &mine, 5) : STR("");
        s->seen++;
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", body.len);
        say_bytes(fd, body);
        arena_done(&mine);
    }
}

static int begin(const struct edge_options *options)
{
    arena_init(&arena);
    edge_start(options);
    service_start(&service, 0, echo_body);
    edge_sleep();
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    return begin(NULL);
}

static int set_up_private(void **state)
{
    (void)state;
    return begin(&(struct edge_options){ .traffic_token = "traffic" });
}

static int set_up_without_workers(void **state)
{
    (void)state;
    return begin(&(struct edge_options){ .no_workers = true });
}

static int tear_down(void **state)
{
    (void)state;
    edge_hold_wake(false);
    edge_stop();
    service_stop(&service);
    arena_done(&arena);
    return 0;
}

static void a_request_wakes_its_sandbox_and_goes_on(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "POST", "/x") "Content-Length: 5\r\n\r\nhello", service.port);
    check_answer(fd, &arena, 200, "hello");
    assert_int_equal(edge_wakes(), 1);
    say(fd, STRANGER("ilive", "POST", "/x") "Content-Length: 5\r\n\r\nagain", service.port);
    check_answer(fd, &arena, 200, "again");
    assert_int_equal(edge_wakes(), 1);
}

static void requests_that_come_meanwhile_join(void **state)
{
    int fds[8];
    (void)state;
    edge_hold_wake(true);
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        fds[i] = client_new();
        say(fds[i], STRANGER("ilive", "GET", "/") "\r\n", service.port);
    }
    edge_wait_handled(COUNT_OF(fds));
    edge_wait_wakes(1);
    assert_int_equal(service.seen, 0);
    /* The loop does not wait: others are served. */
    auto_close int fd = client_new();
    say(fd, "GET /sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check_answer(fd, &arena, 200, "the API's");
    edge_hold_wake(false);
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        assert_int_equal(hear_answer(fds[i], &arena).status, 200);
        close(fds[i]);
    }
    assert_int_equal(edge_wakes(), 1);
}

static void guestd_is_reached_with_the_token_only(void **state)
{
    struct service guestd;
    (void)state;
    service_start(&guestd, GUESTD, echo_body);
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "GET", "/health") "\r\n", GUESTD);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 403);
    assert_true(has(answer.body, "\"sandboxId\":\"ilive\"") && has(answer.body, "\"code\":403"));
    say(fd, STRANGER("ilive", "GET", "/health") "X-Access-Token: wrong\r\n\r\n", GUESTD);
    assert_int_equal(hear_answer(fd, &arena).status, 403);
    say(fd, STRANGER("ilive", "POST", "/execute") "Content-Length: 0\r\n\r\n", CODE);
    assert_int_equal(hear_answer(fd, &arena).status, 403);
    /* A browser asks first, without a token. */
    say(fd, STRANGER("ilive", "OPTIONS", "/health") "Origin: http://x\r\nAccess-Control-Request-Method: GET\r\n\r\n",
        GUESTD);
    assert_int_equal(hear_answer(fd, &arena).status, 204);
    assert_int_equal(edge_wakes(), 0);
    say(fd, TO("GET", "/health") "\r\n", GUESTD);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    assert_int_equal(edge_wakes(), 1);
    service_stop(&guestd);
}

static void a_private_one_is_woken_with_the_traffic_token_only(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 403);
    say(fd, STRANGER("ilive", "GET", "/") "E2B-Traffic-Access-Token: wrong\r\n\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 403);
    assert_int_equal(edge_wakes(), 0);
    say(fd, STRANGER("ilive", "GET", "/") "E2B-Traffic-Access-Token: traffic\r\n\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    assert_int_equal(edge_wakes(), 1);
}

static void a_wake_that_fails_says_why(void **state)
{
    static const struct {
        enum err_kind kind;
        unsigned status, on_guestd;
    } cases[] = {
        { ERR_NOT_FOUND, 502, 502 }, { ERR_CONFLICT, 502, 502 },    { ERR_TIMEOUT, 409, 503 },
        { ERR_LIMIT, 429, 429 },     { ERR_UNAVAILABLE, 503, 503 }, { ERR_INTERNAL, 503, 503 },
    };
    (void)state;
    auto_close int fd = client_new();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        edge_fail_wake(cases[i].kind);
        say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, cases[i].status);
        assert_int_equal(has(answer.body, "was not found"), cases[i].status == 502);
        say(fd, TO("GET", "/health") "\r\n", GUESTD);
        answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, cases[i].on_guestd);
        assert_int_equal(has(answer.body, "was not found"), cases[i].on_guestd == 502);
    }
    assert_int_equal(service.seen, 0);
    /* The next one tries again. */
    edge_fail_wake(ERR_NONE);
    say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
}

static void a_request_waits_for_a_minute_and_no_longer(void **state)
{
    (void)state;
    edge_hold_wake(true);
    edge_stand();
    auto_close int fd = client_new();
    auto_close int to_guestd = client_new();
    say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    say(to_guestd, TO("GET", "/health") "\r\n", GUESTD);
    edge_wait_handled(2);
    edge_wait_wakes(1);
    edge_turn(LIMIT_EDGE_WAKE_MS - 1);
    assert_int_equal(recv(fd, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT), -1);
    edge_turn(2);
    check_answer(fd, &arena, 409, RESUMING("409"));
    check_answer(to_guestd, &arena, 503, RESUMING("503"));
    /* The wake goes on, and the next request joins it. */
    say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    edge_wait_handled(3);
    edge_hold_wake(false);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    assert_int_equal(edge_wakes(), 1);
}

static void a_request_whose_sandbox_is_paused_again_waits_once_more(void **state)
{
    (void)state;
    edge_pause_again(2);
    auto_close int fd = client_new();
    say(fd, STRANGER("ilive", "POST", "/x") "Content-Length: 5\r\n\r\nhello", service.port);
    check_answer(fd, &arena, 200, "hello");
    assert_int_equal(edge_wakes(), 3);
}

static void a_client_that_leaves_is_forgotten(void **state)
{
    (void)state;
    edge_hold_wake(true);
    int gone = client_new();
    auto_close int fd = client_new();
    say(gone, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    say(fd, STRANGER("ilive", "GET", "/") "\r\n", service.port);
    edge_wait_handled(2);
    edge_wait_wakes(1);
    close(gone);
    edge_turn(0);
    edge_hold_wake(false);
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    assert_int_equal(service.seen, 1);
}

static void so_many_wait_for_one_sandbox_and_no_more(void **state)
{
    int fds[LIMIT_EDGE_WAKE_WAITING];
    (void)state;
    edge_hold_wake(true);
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        fds[i] = client_new();
        say(fds[i], TO("GET", "/") "\r\n", service.port);
    }
    edge_wait_handled(COUNT_OF(fds));
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 503);
    assert_true(has(answer.head, "Should-Retry: true") && has(answer.head, "Retry-After: 1"));
    close(fds[0]);
    edge_turn(0);
    for (unsigned tries = 0; answer.status == 503 && tries < 1000; tries++) {
        say(fd, TO("GET", "/") "\r\n", service.port);
        edge_wait_handled((unsigned)COUNT_OF(fds) + 2 + tries);
        char byte;
        if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
            break; /* it waits */
        answer = hear_answer(fd, &arena);
    }
    edge_hold_wake(false);
    for (size_t i = 1; i < COUNT_OF(fds); i++) {
        assert_int_equal(hear_answer(fds[i], &arena).status, 200);
        close(fds[i]);
    }
    assert_int_equal(hear_answer(fd, &arena).status, 200);
    assert_int_equal(edge_wakes(), 1);
}

static void without_workers_nothing_is_woken(void **state)
{
    (void)state;
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    check_answer(fd, &arena, 502, NOT_FOUND);
    assert_int_equal(edge_wakes(), 0);
}

static void the_edge_may_end_while_requests_wait(void **state)
{
    (void)state;
    edge_hold_wake(true);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    edge_wait_handled(1);
    edge_wait_wakes(1);
    /* tear_down() does the rest; it checks that all references were given back. */
}

#define WAKE_CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        WAKE_CASE(a_request_wakes_its_sandbox_and_goes_on),
        WAKE_CASE(requests_that_come_meanwhile_join),
        WAKE_CASE(guestd_is_reached_with_the_token_only),
        cmocka_unit_test_setup_teardown(a_private_one_is_woken_with_the_traffic_token_only, set_up_private, tear_down),
        WAKE_CASE(a_wake_that_fails_says_why),
        WAKE_CASE(a_request_waits_for_a_minute_and_no_longer),
        WAKE_CASE(a_request_whose_sandbox_is_paused_again_waits_once_more),
        WAKE_CASE(a_client_that_leaves_is_forgotten),
        WAKE_CASE(so_many_wait_for_one_sandbox_and_no_more),
        cmocka_unit_test_setup_teardown(without_workers_nothing_is_woken, set_up_without_workers, tear_down),
        WAKE_CASE(the_edge_may_end_while_requests_wait),
    };
    if (!edge_use_private_network())
        fprintf(stderr, "no network namespace of our own: using this machine's loopback and its port %d\n", GUESTD);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
