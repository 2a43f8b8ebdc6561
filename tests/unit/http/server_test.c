#include "handlers.h"

#include <stdio.h>
#include <sys/ioctl.h>

static struct peer client;
static int served_fd; /* the other end, which is the server's */

static struct stream *upgraded;
static struct buf upgraded_got;
static bool keeps_collected;
static struct http_exchange *kept; /* as a worker would */

static void collected(struct http_exchange *ex, struct str whole, const struct err *err)
{
    if (err) {
        collect_error = *err;
        http_reply(ex, err->kind == ERR_LIMIT ? 413 : 503, NULL, 0, STR("too large"));
        return;
    }
    if (keeps_collected) {
        kept = ex;
        http_ref(ex);
        return;
    }
    http_reply(ex, 200, NULL, 0, whole);
}

static void on_upgraded_input(struct stream *stream)
{
    buf_add(&upgraded_got, buf_str(&stream->in));
    buf_drop(&stream->in, stream->in.len);
}

static void on_upgraded_end(struct stream *stream, const struct err *err)
{
    (void)stream;
    (void)err;
}

static const struct stream_events upgraded_events = { .on_input = on_upgraded_input, .on_end = on_upgraded_end };

static void on_request(struct http_exchange *ex, void *context)
{
    take_request(ex, context);
    if (is_at(ex, "/hello")) {
        const struct http_field fields[] = { { STR_INIT("Content-Type"), STR_INIT("text/plain") },
                                             { STR_INIT("Content-Length"), STR_INIT("999") } };
        http_reply(ex, 200, fields, 2, STR("hello"));
        http_reply(ex, 500, NULL, 0, STR("only the first counts"));
    } else if (is_at(ex, "/known")) {
        http_trust(ex);
        http_reply(ex, 200, NULL, 0, STR("welcome"));
    } else if (is_at(ex, "/upgrade")) {
        const struct http_field fields[] = { { STR_INIT("Upgrade"), STR_INIT("echo") } };
        upgraded = http_upgrade(ex, fields, 1, &upgraded_events, NULL);
        if (upgraded)
            on_upgraded_input(upgraded);
        current = NULL;
    } else {
        answer_by_path(ex, collected);
    }
}

static void connect_client(void)
{
    int ends[2];

    tcp_pair(ends);
    client = peer_make(ends[0]);
    served_fd = ends[1];
    http_server_adopt(server, ends[1]);
}

static int setup(void **state)
{
    (void)state;
    server_begin(&(struct http_server_config){ .on_request = on_request, .context = &requests });
    one_at_a_time = true;
    keeps_collected = false;
    kept = NULL;
    upgraded = NULL;
    upgraded_got = buf_make(NULL, SIZE_MAX / 4);
    connect_client();
    return 0;
}

/* The same with a server that is less patient, by a clock that the pump turns. */
static void use_config(void)
{
    server_again();
    peer_done(&client);
    connect_client();
}

static int teardown(void **state)
{
    (void)state;
    stream_free(upgraded);
    server_done(requests - (upgraded ? 1 : 0));
    peer_done(&client);
    buf_done(&upgraded_got);
    return 0;
}

static void say(struct str text)
{
    peer_say(&client, text);
}

static bool heard(const char *text)
{
    return peer_heard(&client, text);
}

static void forget(void)
{
    buf_clear(&client.heard);
}

#define HEARS_EXACTLY(text)                                                         \
    do {                                                                            \
        PUMP_UNTIL(loop, peer_listen(&client) && client.heard.len >= strlen(text)); \
        CHECK_STR(buf_str(&client.heard), str_from(text));                          \
        forget();                                                                   \
    } while (0)

/* ---- answers ---- */

static void a_connection_serves_one_request_after_another(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        say(STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
        HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
    }
    PUMP_UNTIL(loop, gones == 3);
}

static void requests_sent_at_once_are_answered_in_order(void **state)
{
    (void)state;
    auto_buf struct buf all = buf_make(NULL, 1 << 20), expected = buf_make(NULL, 1 << 20);
    for (int i = 0; i < 100; i++) {
        buf_format(&all, "GET /path?%d HTTP/1.1\r\nHost: x\r\n\r\n", 1000 + i);
        buf_format(&expected, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n%d", 1000 + i);
    }
    say(buf_str(&all));
    PUMP_UNTIL(loop, peer_listen(&client) && client.heard.len >= expected.len);
    CHECK_STR(buf_str(&client.heard), buf_str(&expected));
    PUMP_UNTIL(loop, gones == 100); /* the owner of the last may hear of it a turn later than the client */
}

/* ---- fairness ---- */

/* Two connections whose requests are all there before the server looks at either. */
static struct peer second_client(void)
{
    int ends[2];

    tcp_pair(ends);
    http_server_adopt(server, ends[1]);
    return peer_make(ends[0]);
}

static unsigned others_before_hello, others;

static void count_before_hello(struct http_exchange *ex, void *context)
{
    if (str_eq(ex->head.path, STR("/hello")))
        others_before_hello = others;
    others++;
    on_request(ex, context);
}

static void count_pieces_before_hello(struct http_exchange *ex, struct str piece)
{
    (void)ex;
    others += (unsigned)piece.len;
    buf_add(&body, piece);
}

static const struct http_events counting_events = { count_pieces_before_hello, on_body_end, on_drained, on_gone };

static void read_counting(struct http_exchange *ex, void *context)
{
    if (str_eq(ex->head.path, STR("/hello"))) {
        others_before_hello = others;
        on_request(ex, context);
        return;
    }
    requests++;
    current = ex;
    ex->events = &counting_events;
    echoes = true; /* on_body_end() ends the answer */
    http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    http_body_start(ex);
}

static void a_flood_of_requests_leaves_others_their_turn(void **state)
{
    auto_buf struct buf flood = buf_make(NULL, 1 << 20);

    (void)state;
    config.on_request = count_before_hello;
    use_config();
    for (int i = 0; i < 100; i++)
        buf_format(&flood, "GET /path?%d HTTP/1.1\r\nHost: x\r\n\r\n", i);
    others = others_before_hello = 0;
    struct peer other = second_client();
    say(buf_str(&flood));
    peer_say(&other, STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_heard(&other, "hello") && gones == 101);
    /* One step of the flood when its bytes come, another at the end of that turn: no more than that comes first. */
    assert_in_range(others_before_hello, 0, 2 * LIMIT_TURN_REQUESTS);
    peer_done(&other);
}

static void a_body_of_tiny_chunks_leaves_others_their_turn(void **state)
{
    enum { CHUNKS = 5000 };
    auto_buf struct buf flood = buf_make(NULL, 1 << 20);

    (void)state;
    config.on_request = read_counting;
    use_config();
    buf_add(&flood, STR("POST /pieces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < CHUNKS; i++)
        buf_add(&flood, STR("1\r\nx\r\n"));
    buf_add(&flood, STR("0\r\n\r\n"));
    others = others_before_hello = 0;
    struct peer other = second_client();
    say(buf_str(&flood));
    peer_say(&other, STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_listen(&client) && peer_heard(&other, "hello") && gones == 2);
    assert_int_equal(body.len, CHUNKS); /* nothing is lost over it */
    assert_in_range(others_before_hello, 0, 2 * LIMIT_TURN_PIECES);
    peer_done(&other);
}

static void the_next_request_waits_for_the_answer_to_the_first(void **state)
{
    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    pump_some(loop);
    assert_int_equal(requests, 1);
    http_reply(current, 200, NULL, 0, STR("one"));
    assert_int_equal(gones, 0); /* never from inside a call */
    PUMP_UNTIL(loop, heard("one") && heard("hello"));
}

static void a_request_may_arrive_byte_by_byte(void **state)
{
    struct str text = STR("\r\nPOST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                          "4\r\nwiki\r\n5;x\r\npedia\r\n0\r\nT: r\r\n\r\n");

    (void)state;
    for (size_t i = 0; i < text.len; i++) {
        say(str_of(text.at + i, 1));
        pump_turn(loop);
    }
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nwikipedia");
}

static void head_and_no_content_carry_no_body(void **state)
{
    (void)state;
    say(STR("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n");
    say(STR("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\n\r\n");
    say(STR("HEAD /file HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n");
    say(STR("GET /empty HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 204 No Content\r\n\r\n");
}

static void old_clients_get_their_answer_until_close(void **state)
{
    (void)state;
    say(STR("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    HEARS_EXACTLY(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello");
    say(STR("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
    CHECK_STR(buf_str(&client.heard), STR("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst second"));
}

static void close_is_said_and_done(void **state)
{
    (void)state;
    say(STR("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
    assert_true(heard("Connection: close\r\n\r\nhello"));
    assert_int_equal(requests, 1);
}

static void a_stream_is_chunked(void **state)
{
    (void)state;
    say(STR("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n6\r\nsecond\r\n0\r\n\r\n");
}

static void the_head_of_a_stream_goes_out_at_once(void **state)
{
    (void)state;
    say(STR("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    PUMP_UNTIL(loop, heard("\r\n\r\n"));
    say(STR("3\r\none\r\n"));
    PUMP_UNTIL(loop, heard("3\r\none\r\n"));
    say(STR("0\r\n\r\n"));
    PUMP_UNTIL(loop, heard("\r\n0\r\n\r\n"));
    PUMP_UNTIL(loop, gones == 1);
}

static void a_file_is_sent_whole_or_visibly_not(void **state)
{
    (void)state;
    say(STR("GET /file HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n2345678");
    say(STR("GET /cut-file HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.was_reset);
}

static void an_answer_that_breaks_its_promise_is_reset(void **state)
{
    static const char *const paths[] = { "/short", "/over" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        auto_buf struct buf text = buf_make(NULL, 1000);
        buf_format(&text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i]);
        say(buf_str(&text));
        PUMP_UNTIL(loop, peer_is_closed(&client));
        assert_true(client.was_reset);
        peer_done(&client);
        connect_client();
    }
    PUMP_UNTIL(loop, gones == 2);
}

static void an_abort_cannot_be_taken_for_an_end(void **state)
{
    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    http_start(current, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    http_write(current, STR("half"));
    PUMP_UNTIL(loop, heard("4\r\nhalf\r\n"));
    http_abort(current);
    assert_non_null(current); /* on_gone() follows, not from inside the call */
    PUMP_UNTIL(loop, gones == 1);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.was_reset);
    assert_false(heard("0\r\n\r\n"));
}

static void a_field_cannot_smuggle_another(void **state)
{
    (void)state;
    say(STR("GET /inject HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 500 "));
    assert_false(heard("Set-Cookie"));
}

static void a_slow_reader_makes_the_source_wait(void **state)
{
    (void)state;
    pump_size = 20 << 20;
    say(STR("GET /pump HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    pump_some(loop);
    assert_true(pumped < pump_size);
    size_t before = pumped;
    pump_some(loop);
    assert_int_equal(pumped, before);
    PUMP_UNTIL(loop, heard("\r\n0\r\n\r\n"));
    assert_true(drains > 0);
    assert_true(client.heard.len > pump_size);
    PUMP_UNTIL(loop, gones == 1);
}

/* ---- bodies ---- */

static void a_body_is_collected(void **state)
{
    (void)state;
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello world"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world");
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\n\r\n"));
    HEARS_EXACTLY("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void a_body_past_the_cap_is_refused_and_the_refusal_arrives(void **state)
{
    static char bulk[1 << 20];
    size_t sent = 0;

    (void)state;
    memset(bulk, 'x', sizeof bulk);
    /* The client goes on sending for long before it reads: a reset would overtake the answer. */
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"));
    PUMP_UNTIL(loop, ({
                   ssize_t n = sent < sizeof bulk ? write(client.fd, bulk, MIN(sizeof bulk - sent, (size_t)70000)) : 0;
                   sent += n > 0 ? (size_t)n : 0;
                   sent == sizeof bulk;
               }));
    pump_some(loop);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
    assert_true(heard("HTTP/1.1 413 "));
    assert_true(heard("Connection: close\r\n\r\ntoo large"));
    assert_int_equal(collect_error.kind, ERR_LIMIT);
}

static void a_chunked_body_past_the_cap_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    buf_add(&text, STR("POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n186a1\r\n"));
    for (int i = 0; i < 0x186a1; i++) /* one more than it takes */
        buf_add_char(&text, 'x');
    say(buf_str(&text));
    PUMP_UNTIL(loop, heard("HTTP/1.1 413 "));
    /* It was small enough to be read to its end, so the connection goes on. */
    say(STR("\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
}

static void a_small_unread_body_is_dropped_and_the_connection_goes_on(void **state)
{
    (void)state;
    say(STR("POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234"));
    PUMP_UNTIL(loop, heard("hello"));
    assert_false(heard("close"));
    PUMP_UNTIL(loop, gones == 1); /* its owner need not wait for the rest */
    forget();
    say(STR("56789GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
}

static void a_large_unread_body_closes_the_connection(void **state)
{
    (void)state;
    say(STR("POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"));
    PUMP_UNTIL(loop, heard("Connection: close\r\n\r\nhello"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
}

static void an_endless_unread_body_closes_the_connection(void **state)
{
    static char chunk[0x1000 + 2];

    (void)state;
    memset(chunk, 'x', sizeof chunk - 2);
    memcpy(chunk + sizeof chunk - 2, "\r\n", 2);
    say(STR("POST /hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
    PUMP_UNTIL(loop, ({
                   if (write(client.fd, "1000\r\n", 6) == 6)
                       (void)!write(client.fd, chunk, sizeof chunk);
                   peer_is_closed(&client);
               }));
}

static void an_answer_may_end_before_the_body_does(void **state)
{
    (void)state;
    say(STR("POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"));
    PUMP_UNTIL(loop, body.len == 3);
    http_reply(current, 404, NULL, 0, STR("no such process"));
    PUMP_UNTIL(loop, gones == 1);
    PUMP_UNTIL(loop, heard("no such process"));
    forget();
    say(STR("3\r\ntwo\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
    assert_int_equal(body.len, 3); /* what came later was dropped */
    assert_int_equal(body_ends, 0);
}

static void continue_is_said_when_the_body_is_wanted(void **state)
{
    (void)state;
    say(STR("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    pump_some(loop);
    assert_true(peer_listen(&client));
    assert_int_equal(client.heard.len, 0);
    http_body_start(current);
    HEARS_EXACTLY("HTTP/1.1 100 Continue\r\n\r\n");
    say(STR("12345"));
    PUMP_UNTIL(loop, body_ends == 1);
    http_reply(current, 200, NULL, 0, STR("thanks"));
    PUMP_UNTIL(loop, heard("thanks"));
}

static void continue_is_not_said_for_what_is_refused(void **state)
{
    (void)state;
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_false(heard("100 Continue"));
    assert_true(heard("HTTP/1.1 413 "));
    assert_true(heard("Connection: close"));
}

static void a_paused_body_makes_the_client_wait(void **state)
{
    static char bulk[100000];
    size_t sent = 0, total = 24 << 20;

    (void)state;
    pauses_body = true;
    auto_buf struct buf head = buf_make(NULL, 1000);
    buf_format(&head, "POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", total);
    say(buf_str(&head));
    for (int i = 0; i < 300; i++) {
        ssize_t n = write(client.fd, bulk, MIN(sizeof bulk, total - sent));
        sent += n > 0 ? (size_t)n : 0;
        pump_turn(loop);
    }
    assert_true(sent < total);
    size_t before = body.len;
    pump_some(loop);
    assert_int_equal(body.len, before);
    pauses_body = false;
    http_body_pause(current, false);
    PUMP_UNTIL(loop, ({
                   ssize_t n = sent < total ? write(client.fd, bulk, MIN(sizeof bulk, total - sent)) : 0;
                   sent += n > 0 ? (size_t)n : 0;
                   body.len == total;
               }));
    assert_int_equal(body_ends, 1);
    http_reply(current, 200, NULL, 0, STR("all"));
    PUMP_UNTIL(loop, heard("all"));
}

static void bodies_have_a_budget_and_the_slowest_makes_room(void **state)
{
    static char bulk[30000];

    (void)state;
    config.collect_max = 2 * sizeof bulk;
    use_config();
    struct peer slow = client;
    peer_say(&slow, STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 30001\r\n\r\n"));
    peer_say(&slow, str_of(bulk, sizeof bulk)); /* one byte is kept back */
    PUMP_UNTIL(loop, requests == 1);
    pump_some(loop);
    connect_client();
    for (int i = 0; i < 3; i++) {
        say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n"));
        say(str_of(bulk, sizeof bulk));
        PUMP_UNTIL(loop, heard("200 OK") && client.heard.len > sizeof bulk);
        forget();
    }
    assert_false(peer_heard(&slow, "HTTP/1.1")); /* what was answered is given back: there was room */
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 30001\r\n\r\n"));
    say(str_of(bulk, sizeof bulk));
    say(STR("x"));
    PUMP_UNTIL(loop, heard("200 OK"));
    PUMP_UNTIL(loop, peer_heard(&slow, "HTTP/1.1 503 "));
    assert_int_equal(collect_error.kind, ERR_UNAVAILABLE);
    /* The unsent byte is dropped when it comes, and the connection goes on. */
    peer_say(&slow, STR("xGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, peer_heard(&slow, "hello"));
    peer_done(&slow);
}

static void a_body_past_the_budget_by_itself_is_given_up(void **state)
{
    (void)state;
    config.collect_max = 10;
    use_config();
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n12345678901"));
    PUMP_UNTIL(loop, heard("HTTP/1.1 503 "));
    forget();
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n"));
    PUMP_UNTIL(loop, heard("HTTP/1.1 503 "));
    forget();
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1234567890"));
    PUMP_UNTIL(loop, heard("1234567890"));
}

static void a_budget_counts_what_a_worker_still_holds(void **state)
{
    (void)state;
    config.collect_max = 10;
    use_config();
    keeps_collected = true;
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1234567890"));
    PUMP_UNTIL(loop, kept != NULL);
    struct http_exchange *ex = kept;
    keeps_collected = false;
    peer_done(&client);
    PUMP_UNTIL(loop, gones == 1);
    connect_client();
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"));
    PUMP_UNTIL(loop, heard("HTTP/1.1 503 "));
    forget();
    http_unref(ex);
    pump_some(loop);
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"));
    PUMP_UNTIL(loop, heard("HTTP/1.1 200 "));

    /* It may even outlive the server. */
    keeps_collected = true;
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1234567890"));
    PUMP_UNTIL(loop, kept != ex);
    http_server_free(server);
    server = NULL;
    pump_some(loop);
    http_unref(kept);
    pump_some(loop);
}

/* ---- protocol errors ---- */

static void malformed_requests_are_answered_and_closed(void **state)
{
    static const struct {
        const char *text, *answer;
    } table[] = {
        { "GET / HTTP/1.1\nHost: x\n\n", "HTTP/1.1 400 Bad Request\r\n" },
        { "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n" },
        { "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 400 " },
        { "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501 Not Implemented\r\n" },
        { "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 505 " },
        { "\x16\x03\x01", "HTTP/1.1 400 " },
        { "POST / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n", "HTTP/1.1 417 " },
        { "POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello", "HTTP/1.1 400 " },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        say(str_from(table[i].text));
        PUMP_UNTIL(loop, peer_is_closed(&client));
        assert_true(client.ended);
        assert_true(heard(table[i].answer));
        assert_true(heard("Content-Type: application/json"));
        assert_true(heard("{\"code\":"));
        assert_true(heard("Connection: close\r\n"));
        peer_done(&client);
        connect_client();
    }
}

static void heads_that_are_too_large_are_answered(void **state)
{
    (void)state;
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    buf_add(&text, STR("GET /"));
    while (text.len < LIMIT_TARGET_BYTES + 100)
        buf_add_char(&text, 'a');
    buf_add(&text, STR(" HTTP/1.1\r\n"));
    say(buf_str(&text));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 414 "));
    peer_done(&client);
    connect_client();
    buf_clear(&text);
    buf_add(&text, STR("GET / HTTP/1.1\r\nHost: x\r\n"));
    for (int i = 0; i < LIMIT_HEADERS; i++)
        buf_add(&text, STR("a: b\r\n"));
    say(buf_str(&text));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 431 "));
    peer_done(&client);
    connect_client();
    buf_clear(&text);
    buf_add(&text, STR("GET / HTTP/1.1\r\nHost: x\r\na: "));
    while (text.len < LIMIT_HEAD_BYTES)
        buf_add_char(&text, 'a');
    say(buf_str(&text));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 431 "));
}

static void a_body_that_breaks_after_the_answer_does_not_hurt_the_answer(void **state)
{
    (void)state;
    say(STR("POST /hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
    assert_true(heard("hello"));
}

/* ---- clients that go ---- */

static void a_client_that_goes_is_noticed_without_writing(void **state)
{
    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    peer_close(&client);
    PUMP_UNTIL(loop, gones == 1);
}

static void a_client_that_goes_with_its_body_unread_is_noticed(void **state)
{
    static char bulk[10000];

    (void)state;
    pauses_body = true;
    say(STR("POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"));
    /* More than we buffer, so that we have stopped reading; but not so much that the kernel cannot pass on the end. */
    for (int i = 0; i < 30; i++) {
        say(str_of(bulk, sizeof bulk));
        pump_turn(loop);
    }
    assert_int_equal(gones, 0);
    peer_close(&client);
    PUMP_UNTIL(loop, gones == 1);
}

static void a_client_that_goes_while_we_only_write_is_noticed(void **state)
{
    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    http_start(current, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    http_write(current, STR("event"));
    PUMP_UNTIL(loop, heard("event"));
    shutdown(client.fd, SHUT_WR);
    PUMP_UNTIL(loop, gones == 1);
}

static void a_client_that_goes_in_the_middle_of_a_head_leaves_nothing(void **state)
{
    (void)state;
    say(STR("GET /hello HT"));
    pump_some(loop);
    peer_close(&client);
    pump_some(loop);
    assert_int_equal(requests, 0);
}

static void a_client_that_half_closes_still_gets_what_was_answered_at_once(void **state)
{
    (void)state;
    say(STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    shutdown(client.fd, SHUT_WR);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("hello"));
}

static void an_exchange_outlives_its_client_while_it_is_referenced(void **state)
{
    (void)state;
    say(STR("GET /wait?name=value HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    struct http_exchange *ex = current; /* a worker has it now */
    http_ref(ex);
    peer_close(&client);
    PUMP_UNTIL(loop, gones == 1);
    pump_some(loop);
    CHECK_STR(ex->head.query, STR("name=value"));
    assert_non_null(arena_alloc(&ex->arena, 100));
    http_reply(ex, 200, NULL, 0, STR("too late"));
    http_unref(ex);
}

static void what_comes_before_it_is_wanted_is_left_to_the_kernel(void **state)
{
    static const struct str request = STR_INIT("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    size_t sent = 0, before;
    int unread = 0, unsent = 0;

    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    /* Small buffers: each request that waits in them is answered in the end. */
    assert_int_equal(setsockopt(client.fd, SOL_SOCKET, SO_SNDBUF, &(int){ 64 * 1024 }, sizeof(int)), 0);
    assert_int_equal(setsockopt(served_fd, SOL_SOCKET, SO_RCVBUF, &(int){ 64 * 1024 }, sizeof(int)), 0);
    do {
        before = sent;
        for (ssize_t n; (n = write(client.fd, request.at, request.len)) > 0;)
            sent += (size_t)n;
        pump_some(loop);
    } while (sent > before);
    assert_int_equal(ioctl(served_fd, FIONREAD, &unread), 0);
    assert_int_equal(ioctl(client.fd, TIOCOUTQ, &unsent), 0);
    assert_true(sent < (size_t)unread + (size_t)unsent + 64 * 1024);
    assert_int_equal(requests, 1);
    http_reply(current, 200, NULL, 0, STR("at last"));
    PUMP_UNTIL(loop, heard("at last") && heard("hello"));
    PUMP_UNTIL(loop, peer_listen(&client) && ioctl(served_fd, FIONREAD, &unread) == 0 && unread == 0);
}

/* ---- upgrades ---- */

static void an_upgrade_hands_over_the_stream_with_what_was_sent(void **state)
{
    (void)state;
    say(STR("GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly"));
    PUMP_UNTIL(loop, upgraded != NULL);
    HEARS_EXACTLY("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
    say(STR(" and late"));
    PUMP_UNTIL(loop, upgraded_got.len == 14);
    CHECK_STR(buf_str(&upgraded_got), STR("early and late"));
    stream_write(upgraded, STR("back"));
    HEARS_EXACTLY("back");
}

/* ---- limits ---- */

static void a_head_that_trickles_is_refused(void **state)
{
    (void)state;
    config.head_ms = 30;
    use_config();
    say(STR("GET /hello HTTP/1.1\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 408 Request Timeout\r\n"));
}

static void idle_connections_are_closed_without_a_word(void **state)
{
    (void)state;
    config.head_ms = 20;
    config.keepalive_ms = 30;
    use_config();
    PUMP_UNTIL(loop, peer_is_closed(&client)); /* never asked anything */
    assert_int_equal(client.heard.len, 0);
    peer_done(&client);
    connect_client();
    say(STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
    forget();
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.ended);
    assert_int_equal(client.heard.len, 0);
}

static void a_body_that_stops_is_refused(void **state)
{
    (void)state;
    config.body_idle_ms = 30;
    use_config();
    say(STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 408 "));
    PUMP_UNTIL(loop, gones == 1);
}

static void a_body_may_be_given_all_the_time_in_the_world(void **state)
{
    (void)state;
    config.body_idle_ms = 5;
    use_config();
    say(STR("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"));
    PUMP_UNTIL(loop, requests == 1);
    http_body_patience(current, 0);
    http_body_start(current);
    pump_some(loop);
    pump_some(loop);
    say(STR("67890"));
    PUMP_UNTIL(loop, body_ends == 1);
    http_reply(current, 200, NULL, 0, STR("thanks"));
    PUMP_UNTIL(loop, heard("thanks"));
}

static void a_body_that_nobody_reads_yet_has_time(void **state)
{
    (void)state;
    config.body_idle_ms = 5;
    use_config();
    pauses_body = true;
    say(STR("POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"));
    PUMP_UNTIL(loop, body.len == 5);
    pump_some(loop);
    pump_some(loop);
    assert_int_equal(gones, 0);
}

static void a_client_that_takes_nothing_is_dropped(void **state)
{
    (void)state;
    config.write_idle_ms = 50;
    use_config();
    pump_size = 64 << 20;
    say(STR("GET /pump HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, gones == 1);
    assert_true(pumped < pump_size);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.was_reset);
}

static void hand_on(struct http_call *call, struct str piece)
{
    (void)call;
    http_write(current, piece);
}

/* As much as fits. */
static size_t push_piece(struct peer *peer)
{
    static char piece[65536];
    ssize_t n = write(peer->fd, piece, sizeof piece);

    return n > 0 ? (size_t)n : 0;
}

static void a_client_that_takes_nothing_of_what_is_spliced_is_dropped(void **state)
{
    static const struct http_call_events hand_on_events = { .on_body = hand_on };
    size_t size = 64 << 20, pushed = 0;
    int ends[2];

    (void)state;
    config.write_idle_ms = 50;
    config.head_ms = config.keepalive_ms = 1 << 30; /* no other patience is in play */
    use_config();
    tcp_pair(ends);
    struct peer service = peer_make(ends[1]);
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    struct http_call *call = http_call_new(loop, ends[0], false, STR("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), HTTP_GET,
                                           HTTP_NO_BODY, &hand_on_events, NULL);
    http_start(current, 200, NULL, 0, size);
    http_call_splice(call, current);
    peer_say(&service, STR("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n"));
    /* A service that takes its time is none of the client's fault. */
    for (int i = 0; i < 10; i++)
        pump_some(loop);
    assert_int_equal(gones, 0);
    PUMP_UNTIL(loop, (pushed += push_piece(&service), gones == 1));
    assert_true(pushed < size);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.was_reset);
    http_call_free(call);
    peer_done(&service);
}

static void a_client_that_hardly_takes_anything_is_dropped(void **state)
{
    int ends[2], small = 4096;
    char bytes[256];

    (void)state;
    config.write_idle_ms = 50;
    use_config();
    peer_done(&client);
    tcp_pair(ends);
    assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    client = peer_make(ends[0]);
    http_server_adopt(server, ends[1]);
    pump_size = 64 << 20;
    say(STR("GET /pump HTTP/1.1\r\nHost: x\r\n\r\n"));
    /* A turn is a millisecond: some ten kilobytes in the time in which it should be sixty-four. */
    PUMP_UNTIL(loop, read(client.fd, bytes, sizeof bytes) == 0 || gones == 1);
    assert_true(pumped < pump_size);
}

static void a_waiting_exchange_is_not_hurried(void **state)
{
    (void)state;
    config.head_ms = config.body_idle_ms = config.write_idle_ms = config.keepalive_ms = 5;
    use_config();
    say(STR("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"));
    PUMP_UNTIL(loop, requests == 1);
    pump_some(loop);
    pump_some(loop);
    assert_int_equal(gones, 0);
    http_reply(current, 200, NULL, 0, STR("at last"));
    PUMP_UNTIL(loop, heard("at last"));
}

static void a_client_that_never_closes_is_closed(void **state)
{
    (void)state;
    config.linger_ms = 20;
    use_config();
    say(STR("GET /hello HTTP/1.0\r\n\r\n"));
    PUMP_UNTIL(loop, peer_is_closed(&client));
    /* Our end is gone altogether once it lingered: writing to it is answered by a reset, and at once without Nagle. */
    assert_int_equal(setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), 0);
    PUMP_UNTIL(loop, write(client.fd, "x", 1) < 0);
}

static void connections_past_the_limit_are_told(void **state)
{
    (void)state;
    config.connections_max = 1;
    use_config();
    struct peer first = client;
    peer_say(&first, STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    connect_client();
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(heard("HTTP/1.1 503 Service Unavailable\r\n"));
    assert_true(heard("Should-Retry: true\r\nRetry-After: 1\r\n"));
    http_reply(current, 200, NULL, 0, STR("answered"));
    PUMP_UNTIL(loop, peer_heard(&first, "answered"));
    peer_done(&client);
    /* Its place is free again once it is gone. */
    peer_done(&first);
    pump_some(loop);
    connect_client();
    say(STR("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, heard("hello"));
}

static void ask(struct peer *peer, const char *path, const char *answer)
{
    char text[100];

    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    buf_clear(&peer->heard);
    peer_say(peer, str_from(text));
    PUMP_UNTIL(loop, peer_heard(peer, answer));
}

static struct peer another(void)
{
    connect_client();
    return client;
}

static void at_the_limit_who_has_been_idle_for_the_longest_makes_room(void **state)
{
    (void)state;
    config.connections_max = 2;
    use_config();
    struct peer first = client, second = another();
    ask(&first, "/hello", "hello");
    ask(&second, "/hello", "hello");
    ask(&first, "/hello", "hello");
    struct peer third = another();
    PUMP_UNTIL(loop, peer_is_closed(&second));
    ask(&third, "/hello", "hello");
    ask(&first, "/hello", "hello");
    /* Half a head is no reason to stay, and neither is a body that nobody waits for. */
    peer_say(&third, STR("GET /hello HTT"));
    ask(&first, "/hello", "hello");
    struct peer fourth = another();
    PUMP_UNTIL(loop, peer_is_closed(&third));
    peer_say(&first, STR("POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"));
    PUMP_UNTIL(loop, gones == requests && peer_heard(&first, "hello"));
    ask(&fourth, "/hello", "hello");
    client = another();
    PUMP_UNTIL(loop, peer_is_closed(&first));
    ask(&fourth, "/hello", "hello");
    ask(&client, "/hello", "hello");
    peer_done(&first);
    peer_done(&second);
    peer_done(&third);
    peer_done(&fourth);
}

static void strangers_make_room_before_those_who_are_known(void **state)
{
    (void)state;
    config.connections_max = 2;
    use_config();
    struct peer known = client;
    ask(&known, "/known", "welcome");
    for (int i = 0; i < 5; i++) {
        struct peer stranger = another();
        ask(&stranger, "/hello", "hello");
        client = another();
        PUMP_UNTIL(loop, peer_is_closed(&stranger));
        peer_done(&stranger);
        peer_done(&client);
        pump_some(loop);
    }
    ask(&known, "/known", "welcome");
    /* With nobody else left, it goes as well. */
    struct peer busy = another();
    peer_say(&busy, STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, current && str_eq(current->head.path, STR("/wait")));
    client = another();
    PUMP_UNTIL(loop, peer_is_closed(&known));
    ask(&client, "/hello", "hello");
    peer_done(&known);
    peer_done(&busy);
}

static void a_body_that_is_slow_to_come_makes_room_when_nobody_rests(void **state)
{
    (void)state;
    config.connections_max = 1;
    use_config();
    struct peer slow = client;
    peer_say(&slow, STR("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1234"));
    PUMP_UNTIL(loop, requests == 1);
    client = another();
    PUMP_UNTIL(loop, peer_is_closed(&slow));
    ask(&client, "/hello", "hello");
    peer_done(&slow);
}

static void strangers_may_not_rest_as_long_as_those_who_are_known(void **state)
{
    (void)state;
    config.stranger_ms = 20;
    use_config();
    struct peer known = client, stranger = another();
    ask(&known, "/known", "welcome");
    ask(&stranger, "/hello", "hello");
    PUMP_UNTIL(loop, peer_is_closed(&stranger));
    pump_some(loop);
    ask(&known, "/hello", "hello");
    peer_done(&stranger);
    client = known;
}

static void freeing_the_server_aborts_what_is_under_way(void **state)
{
    (void)state;
    say(STR("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    PUMP_UNTIL(loop, requests == 1);
    http_server_free(server);
    server = NULL;
    assert_int_equal(gones, 1);
    PUMP_UNTIL(loop, peer_is_closed(&client));
    assert_true(client.was_reset);
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest cases[] = {
        SERVED(a_connection_serves_one_request_after_another),
        SERVED(requests_sent_at_once_are_answered_in_order),
        SERVED(a_flood_of_requests_leaves_others_their_turn),
        SERVED(a_body_of_tiny_chunks_leaves_others_their_turn),
        SERVED(the_next_request_waits_for_the_answer_to_the_first),
        SERVED(a_request_may_arrive_byte_by_byte),
        SERVED(head_and_no_content_carry_no_body),
        SERVED(old_clients_get_their_answer_until_close),
        SERVED(close_is_said_and_done),
        SERVED(a_stream_is_chunked),
        SERVED(the_head_of_a_stream_goes_out_at_once),
        SERVED(a_file_is_sent_whole_or_visibly_not),
        SERVED(an_answer_that_breaks_its_promise_is_reset),
        SERVED(an_abort_cannot_be_taken_for_an_end),
        SERVED(a_field_cannot_smuggle_another),
        SERVED(a_slow_reader_makes_the_source_wait),
        SERVED(a_body_is_collected),
        SERVED(a_body_past_the_cap_is_refused_and_the_refusal_arrives),
        SERVED(a_chunked_body_past_the_cap_is_refused),
        SERVED(a_small_unread_body_is_dropped_and_the_connection_goes_on),
        SERVED(a_large_unread_body_closes_the_connection),
        SERVED(an_endless_unread_body_closes_the_connection),
        SERVED(an_answer_may_end_before_the_body_does),
        SERVED(continue_is_said_when_the_body_is_wanted),
        SERVED(continue_is_not_said_for_what_is_refused),
        SERVED(a_paused_body_makes_the_client_wait),
        SERVED(bodies_have_a_budget_and_the_slowest_makes_room),
        SERVED(a_body_past_the_budget_by_itself_is_given_up),
        SERVED(a_budget_counts_what_a_worker_still_holds),
        SERVED(malformed_requests_are_answered_and_closed),
        SERVED(heads_that_are_too_large_are_answered),
        SERVED(a_body_that_breaks_after_the_answer_does_not_hurt_the_answer),
        SERVED(a_client_that_goes_is_noticed_without_writing),
        SERVED(a_client_that_goes_with_its_body_unread_is_noticed),
        SERVED(a_client_that_goes_while_we_only_write_is_noticed),
        SERVED(a_client_that_goes_in_the_middle_of_a_head_leaves_nothing),
        SERVED(a_client_that_half_closes_still_gets_what_was_answered_at_once),
        SERVED(an_exchange_outlives_its_client_while_it_is_referenced),
        SERVED(what_comes_before_it_is_wanted_is_left_to_the_kernel),
        SERVED(an_upgrade_hands_over_the_stream_with_what_was_sent),
        SERVED(a_head_that_trickles_is_refused),
        SERVED(idle_connections_are_closed_without_a_word),
        SERVED(a_body_that_stops_is_refused),
        SERVED(a_body_may_be_given_all_the_time_in_the_world),
        SERVED(a_body_that_nobody_reads_yet_has_time),
        SERVED(a_client_that_takes_nothing_is_dropped),
        SERVED(a_client_that_takes_nothing_of_what_is_spliced_is_dropped),
        SERVED(a_client_that_hardly_takes_anything_is_dropped),
        SERVED(a_waiting_exchange_is_not_hurried),
        SERVED(a_client_that_never_closes_is_closed),
        SERVED(connections_past_the_limit_are_told),
        SERVED(at_the_limit_who_has_been_idle_for_the_longest_makes_room),
        SERVED(strangers_make_room_before_those_who_are_known),
        SERVED(a_body_that_is_slow_to_come_makes_room_when_nobody_rests),
        SERVED(strangers_may_not_rest_as_long_as_those_who_are_known),
        SERVED(freeing_the_server_aborts_what_is_under_way),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
