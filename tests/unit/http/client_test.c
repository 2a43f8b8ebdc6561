#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "http/http.h"
#include "io/listen.h"
#include "io/pump.h"

/* The test plays the server, with plain sockets. */
static struct loop *loop;
static struct peer server;
static struct http_call *call;

static struct buf body;
static unsigned heads, ends, errors, drains, status;
static enum http_framing framing;
static struct err error;
static bool frees_on_head, frees_on_body, takes_stream;
static struct stream *idle;
static unsigned idle_ends;
static struct stream *taken_stream;

static void on_stream_input(struct stream *stream)
{
    (void)stream;
}

static void on_stream_end(struct stream *stream, const struct err *err)
{
    (void)stream;
    (void)err;
}

static const struct stream_events raw_events = { .on_input = on_stream_input, .on_end = on_stream_end };

static void drop_call(void)
{
    http_call_free(call);
    call = NULL;
}

static void on_head(struct http_call *c, const struct http_head *head)
{
    assert_ptr_equal(http_call_owner(c), &heads);
    heads++;
    status = head->status;
    framing = head->framing;
    if (frees_on_head)
        drop_call();
    if (takes_stream) {
        taken_stream = http_call_take_stream(c, &raw_events, NULL);
        call = NULL;
    }
}

static void on_body(struct http_call *c, struct str piece)
{
    (void)c;
    buf_add(&body, piece);
    if (frees_on_body)
        drop_call();
}

static void on_idle_end(struct stream *stream, const struct err *err)
{
    (void)stream;
    (void)err;
    idle_ends++;
}

static void on_idle_input(struct stream *stream)
{
    on_idle_end(stream, NULL);
}

static const struct stream_events idle_events = { .on_input = on_idle_input, .on_end = on_idle_end };

static void on_end(struct http_call *c)
{
    ends++;
    idle = http_call_take_idle(c, &idle_events, NULL);
}

static void on_error(struct http_call *c, const struct err *err)
{
    (void)c;
    errors++;
    error = *err;
}

static void on_drained(struct http_call *c)
{
    (void)c;
    drains++;
}

static const struct http_call_events events = { on_head, on_body, on_end, on_error, on_drained };

static int setup(void **state)
{
    (void)state;
    loop = loop_new();
    body = buf_make(NULL, SIZE_MAX / 4);
    heads = ends = errors = drains = 0;
    frees_on_head = frees_on_body = takes_stream = false;
    idle = NULL;
    idle_ends = 0;
    taken_stream = NULL;
    call = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_true(ends + errors <= 1);
    http_call_free(call);
    stream_free(taken_stream);
    stream_free(idle);
    loop_free(loop);
    peer_done(&server);
    buf_done(&body);
    return 0;
}

static void begin(enum http_method method, enum http_framing how)
{
    int fds[2];

    tcp_pair(fds);
    server = peer_make(fds[1]);
    call = http_call_new(loop, fds[0], false, STR("REQUEST\r\n\r\n"), method, how, &events, &heads);
}

/* The server's whole answer, then its end. */
static void answer(const char *text, bool closes)
{
    begin(HTTP_GET, HTTP_NO_BODY);
    PUMP_UNTIL(loop, peer_heard(&server, "REQUEST\r\n\r\n"));
    peer_say(&server, str_from(text));
    if (closes)
        peer_close(&server);
    PUMP_UNTIL(loop, ends + errors == 1);
}

static void a_body_of_known_length_ends_the_call(void **state)
{
    (void)state;
    answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false);
    assert_int_equal(ends, 1);
    assert_int_equal(status, 200);
    CHECK_STR(buf_str(&body), STR("hello"));
    assert_non_null(idle);
}

static void a_kept_connection_serves_the_next_call(void **state)
{
    (void)state;
    answer("HTTP/1.1 204 No Content\r\n\r\n", false);
    assert_non_null(idle);
    drop_call();
    ends = 0;
    call = http_call_again(loop, idle, STR("AGAIN\r\n\r\n"), HTTP_GET, HTTP_NO_BODY, &events, &heads);
    idle = NULL;
    PUMP_UNTIL(loop, peer_heard(&server, "AGAIN"));
    peer_say(&server, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    PUMP_UNTIL(loop, ends == 1);
    CHECK_STR(buf_str(&body), STR("hello"));
    assert_non_null(idle);
}

static void a_kept_connection_tells_its_end_while_nobody_uses_it(void **state)
{
    (void)state;
    answer("HTTP/1.1 204 No Content\r\n\r\n", false);
    assert_non_null(idle);
    assert_int_equal(idle_ends, 0);
    peer_say(&server, STR("nobody asked"));
    PUMP_UNTIL(loop, idle_ends == 1);
}

static void a_connection_with_something_left_over_is_not_kept(void **state)
{
    (void)state;
    answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nsmuggled", false);
    assert_int_equal(ends, 1);
    CHECK_STR(buf_str(&body), STR("hello"));
    assert_null(idle);
}

static void a_body_until_close_ends_with_the_connection(void **state)
{
    (void)state;
    answer("HTTP/1.0 200 OK\r\n\r\nhello", true);
    assert_int_equal(ends, 1);
    CHECK_STR(buf_str(&body), STR("hello"));
    assert_null(idle);
}

static void an_answer_to_head_has_no_body(void **state)
{
    (void)state;
    begin(HTTP_HEAD, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"));
    PUMP_UNTIL(loop, ends == 1);
    assert_non_null(idle);
}

static void a_body_that_ends_too_early_is_an_error(void **state)
{
    static const char *const cut[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cut); i++) {
        answer(cut[i], true);
        assert_int_equal(errors, 1);
        assert_int_equal(error.kind, ERR_UNAVAILABLE);
        assert_int_equal(body.len, 5);
        teardown(NULL);
        setup(NULL);
    }
    begin(HTTP_GET, HTTP_NO_BODY);
}

static void a_reset_is_not_an_end(void **state)
{
    (void)state;
    begin(HTTP_GET, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.0 200 OK\r\n\r\nhello"));
    PUMP_UNTIL(loop, body.len == 5);
    struct linger reset = { .l_onoff = 1 };
    assert_int_equal(setsockopt(server.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    peer_close(&server);
    PUMP_UNTIL(loop, errors == 1);
}

static void a_peer_that_never_answers_is_unavailable(void **state)
{
    (void)state;
    answer("", true);
    assert_int_equal(error.kind, ERR_UNAVAILABLE);
    assert_int_equal(heads, 0);
    teardown(NULL);
    setup(NULL);
    answer("HTTP/1.1 200 O", true);
    assert_int_equal(error.kind, ERR_UNAVAILABLE);
    assert_int_equal(heads, 0);
}

static void a_refused_connection_is_unavailable(void **state)
{
    int fds[2];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;

    (void)state;
    tcp_pair(fds);
    assert_int_equal(getsockname(fds[1], (struct sockaddr *)&at, &len), 0);
    close(fds[0]);
    server = peer_make(fds[1]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    (void)connect(fd, (struct sockaddr *)&at, sizeof at); /* nobody listens there */
    call = http_call_new(loop, fd, true, STR("REQUEST\r\n\r\n"), HTTP_GET, HTTP_NO_BODY, &events, &heads);
    PUMP_UNTIL(loop, errors == 1);
    assert_int_equal(error.kind, ERR_UNAVAILABLE);
}

static void malformed_answers_are_errors(void **state)
{
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\nA: b\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        answer(bad[i], false);
        assert_int_equal(errors, 1);
        assert_int_equal(error.kind, ERR_INVALID);
        teardown(NULL);
        setup(NULL);
    }
    begin(HTTP_GET, HTTP_NO_BODY);
}

static void interim_answers_are_skipped_but_not_for_ever(void **state)
{
    (void)state;
    answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
           "0\r\n\r\n",
           false);
    assert_int_equal(ends, 1);
    assert_int_equal(heads, 1);
    teardown(NULL);
    setup(NULL);
    begin(HTTP_GET, HTTP_NO_BODY);
    for (int i = 0; i < 17; i++)
        peer_say(&server, STR("HTTP/1.1 100 Continue\r\n\r\n"));
    PUMP_UNTIL(loop, errors == 1);
    assert_int_equal(error.kind, ERR_LIMIT);
}

static void a_request_body_is_framed_as_chosen(void **state)
{
    (void)state;
    begin(HTTP_POST, HTTP_CHUNKED);
    http_call_write(call, STR("hello"));
    http_call_write(call, STR(""));
    http_call_write(call, STR("0123456789abcdef"));
    http_call_finish(call);
    http_call_write(call, STR("too late"));
    PUMP_UNTIL(loop, peer_heard(&server, "0\r\n\r\n"));
    CHECK_STR(buf_str(&server.heard), STR("REQUEST\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"));
    drop_call();
    peer_done(&server);
    begin(HTTP_POST, HTTP_LENGTH);
    PUMP_UNTIL(loop, peer_heard(&server, "REQUEST\r\n\r\n")); /* the head does not wait for the body */
    http_call_write(call, STR("hello"));
    http_call_finish(call);
    PUMP_UNTIL(loop, peer_heard(&server, "REQUEST\r\n\r\nhello"));
}

static void an_answer_may_come_before_the_request_is_out(void **state)
{
    static char bulk[1 << 20];

    (void)state;
    begin(HTTP_POST, HTTP_LENGTH);
    while (!http_call_is_full(call))
        http_call_write(call, str_of(bulk, sizeof bulk));
    PUMP_UNTIL(loop, peer_heard(&server, "REQUEST"));
    peer_say(&server, STR("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"));
    peer_close(&server); /* with unread bytes: a reset follows the answer */
    PUMP_UNTIL(loop, ends == 1);
    assert_int_equal(status, 413);
    CHECK_STR(buf_str(&body), STR("big"));
    assert_null(idle);
    http_call_write(call, STR("nobody hears this"));
}

static void a_slow_server_makes_the_source_wait(void **state)
{
    static char bulk[1 << 20];

    (void)state;
    begin(HTTP_POST, HTTP_CHUNKED);
    while (!http_call_is_full(call))
        http_call_write(call, str_of(bulk, sizeof bulk));
    pump_some(loop);
    assert_int_equal(drains, 0);
    PUMP_UNTIL(loop, (peer_listen(&server), drains == 1));
    assert_false(http_call_is_full(call));
}

static void a_paused_answer_makes_the_server_wait(void **state)
{
    static char bulk[100000];
    size_t sent = 0;

    (void)state;
    begin(HTTP_GET, HTTP_NO_BODY);
    PUMP_UNTIL(loop, peer_heard(&server, "REQUEST")); /* or its close would be a reset */
    peer_say(&server, STR("HTTP/1.1 200 OK\r\n\r\n"));
    PUMP_UNTIL(loop, heads == 1);
    http_call_pause(call, true);
    for (int i = 0; i < 300; i++) {
        ssize_t n = write(server.fd, bulk, sizeof bulk);
        sent += n > 0 ? (size_t)n : 0;
        pump_turn(loop);
    }
    assert_true(sent < 300 * sizeof bulk);
    assert_int_equal(body.len, 0);
    peer_close(&server);
    pump_some(loop);
    assert_int_equal(ends + errors, 0);
    http_call_pause(call, false);
    PUMP_UNTIL(loop, ends == 1);
    assert_int_equal(body.len, sent);
}

static void what_arrived_before_a_reset_is_delivered_after_a_pause(void **state)
{
    (void)state;
    begin(HTTP_GET, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"));
    PUMP_UNTIL(loop, heads == 1);
    http_call_pause(call, true);
    peer_say(&server, STR("hello"));
    pump_some(loop);
    struct linger reset = { .l_onoff = 1 };
    assert_int_equal(setsockopt(server.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    peer_close(&server);
    pump_some(loop);
    assert_int_equal(ends + errors, 0);
    http_call_pause(call, false);
    PUMP_UNTIL(loop, ends == 1);
    CHECK_STR(buf_str(&body), STR("hello"));
}

static void an_upgrade_hands_over_the_stream_with_what_was_sent(void **state)
{
    (void)state;
    takes_stream = true;
    begin(HTTP_GET, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nearly"));
    PUMP_UNTIL(loop, taken_stream != NULL);
    CHECK_STR(buf_str(&taken_stream->in), STR("early"));
    peer_say(&server, STR(" late"));
    PUMP_UNTIL(loop, taken_stream->in.len == 10);
    stream_write(taken_stream, STR("raw"));
    PUMP_UNTIL(loop, peer_heard(&server, "raw"));
}

static void a_call_may_be_freed_from_its_callbacks(void **state)
{
    (void)state;
    frees_on_head = true;
    begin(HTTP_GET, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"));
    PUMP_UNTIL(loop, heads == 1);
    PUMP_UNTIL(loop, peer_is_closed(&server));
    teardown(NULL);
    setup(NULL);
    frees_on_body = true;
    begin(HTTP_GET, HTTP_NO_BODY);
    peer_say(&server, STR("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"));
    PUMP_UNTIL(loop, body.len == 5);
    PUMP_UNTIL(loop, peer_is_closed(&server));
    assert_int_equal(ends + errors, 0);
}

/* ---- waiting for a whole answer ---- */

static void fetch_collected(struct http_exchange *ex, struct str whole, const struct err *err)
{
    const struct http_field fields[] = { { STR_INIT("X-Seen"), ex->head.target } };

    assert_null(err);
    http_reply(ex, 201, fields, 1, whole);
}

static void fetch_request(struct http_exchange *ex, void *context)
{
    (void)context;
    if (!str_eq(ex->head.path, STR("/never")))
        http_collect(ex, 1000, fetch_collected);
}

static void *run_loop(void *argument)
{
    loop_run(argument);
    return NULL;
}

static void fetch_waits_for_the_whole_answer(void **state)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    char address[64];
    pthread_t thread;
    struct arena arena = { 0 };
    struct http_answer got;
    struct err err;

    (void)state;
    begin(HTTP_GET, HTTP_NO_BODY);
    struct loop *server_loop = loop_new();
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    struct str where = str_of(address, (size_t)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port)));
    struct http_server_config config = { .on_request = fetch_request };
    struct http_server *real = http_server_new(server_loop, fd, &config);
    assert_int_equal(pthread_create(&thread, NULL, run_loop, server_loop), 0);

    const struct http_field fields[] = { { STR_INIT("X-A"), STR_INIT("b") } };
    assert_true(http_fetch(&arena, where, STR("POST"), STR("/echo?x"), fields, 1, STR("some text"), 20000, &got, &err));
    assert_int_equal(got.status, 201);
    CHECK_STR(got.body, STR("some text"));
    CHECK_STR(*http_header(&got.head, STR("x-seen")), STR("/echo?x"));
    assert_false(http_fetch(&arena, where, STR("GET"), STR("/never"), NULL, 0, STR(""), 20, &got, &err));
    assert_int_equal(err.kind, ERR_TIMEOUT);
    assert_false(http_fetch(&arena, where, STR("GET"), STR("/a b"), NULL, 0, STR(""), 20000, &got, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_false(http_fetch(&arena, STR("localhost"), STR("GET"), STR("/"), NULL, 0, STR(""), 20000, &got, &err));
    assert_int_equal(err.kind, ERR_INVALID);

    loop_stop_soon(server_loop);
    pthread_join(thread, NULL);
    http_server_free(real);
    loop_free(server_loop);
    assert_false(http_fetch(&arena, where, STR("GET"), STR("/"), NULL, 0, STR(""), 20000, &got, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    arena_done(&arena);
}

#define CALLED(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

static size_t seen_last_turn, most_in_a_turn;

static void look_each_turn(struct timer *timer)
{
    most_in_a_turn = MAX(most_in_a_turn, body.len - seen_last_turn);
    seen_last_turn = body.len;
    timer_set(timer, loop, 0, look_each_turn);
}

static void an_answer_of_tiny_chunks_leaves_others_their_turn(void **state)
{
    enum { CHUNKS = 5000 };
    struct timer each_turn = { 0 };
    auto_buf struct buf flood = buf_make(NULL, 1 << 20);

    (void)state;
    begin(HTTP_GET, HTTP_NO_BODY);
    buf_add(&flood, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < CHUNKS; i++)
        buf_add(&flood, STR("1\r\nx\r\n"));
    buf_add(&flood, STR("0\r\n\r\n"));
    peer_say(&server, buf_str(&flood));
    (void)shutdown(server.fd, SHUT_WR); /* an end that is there already does not cut off what came before it */
    seen_last_turn = most_in_a_turn = 0;
    timer_set(&each_turn, loop, 0, look_each_turn);
    PUMP_UNTIL(loop, ends == 1);
    timer_clear(&each_turn);
    assert_int_equal(body.len, CHUNKS);
    /* A step when bytes come, and one at the end of the turn. */
    assert_in_range(most_in_a_turn, 1, 2 * LIMIT_TURN_PIECES);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest cases[] = {
        CALLED(a_body_of_known_length_ends_the_call),
        CALLED(a_kept_connection_serves_the_next_call),
        CALLED(a_kept_connection_tells_its_end_while_nobody_uses_it),
        CALLED(a_connection_with_something_left_over_is_not_kept),
        CALLED(a_body_until_close_ends_with_the_connection),
        CALLED(an_answer_to_head_has_no_body),
        CALLED(a_body_that_ends_too_early_is_an_error),
        CALLED(a_reset_is_not_an_end),
        CALLED(a_peer_that_never_answers_is_unavailable),
        CALLED(a_refused_connection_is_unavailable),
        CALLED(malformed_answers_are_errors),
        CALLED(interim_answers_are_skipped_but_not_for_ever),
        CALLED(a_request_body_is_framed_as_chosen),
        CALLED(an_answer_may_come_before_the_request_is_out),
        CALLED(a_slow_server_makes_the_source_wait),
        CALLED(a_paused_answer_makes_the_server_wait),
        CALLED(what_arrived_before_a_reset_is_delivered_after_a_pause),
        CALLED(an_upgrade_hands_over_the_stream_with_what_was_sent),
        CALLED(a_call_may_be_freed_from_its_callbacks),
        CALLED(an_answer_of_tiny_chunks_leaves_others_their_turn),
        CALLED(fetch_waits_for_the_whole_answer),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
