#include "http2_client.h"

#include "base/limits.h"
#include "base/mem.h"
#include "handlers.h"
#include "http/inside.h"

static struct h2_client *client;
static struct buf head;
static bool trusts;

static void collected(struct http_exchange *ex, struct str whole, const struct err *err)
{
    if (err)
        collect_error = *err;
    http_reply(ex, err ? 413 : 200, NULL, 0, err ? STR("too large") : whole);
}

static const struct stream_events no_stream_events;

static void on_request(struct http_exchange *ex, void *context)
{
    take_request(ex, context);
    buf_clear(&head);
    buf_format(&head, "%.*s %.*s", STR_ARG(ex->head.method_text), STR_ARG(ex->head.target));
    for (size_t i = 0; i < ex->head.header_count; i++)
        buf_format(&head, "|%.*s: %.*s", STR_ARG(ex->head.headers[i].name), STR_ARG(ex->head.headers[i].value));
    if (trusts)
        http_trust(ex);
    if (is_at(ex, "/hello")) {
        const struct http_field fields[] = { { STR_INIT("Content-Type"), STR_INIT("text/plain") },
                                             { STR_INIT("Connection"), STR_INIT("close") },
                                             { STR_INIT("Keep-Alive"), STR_INIT("timeout=5") },
                                             { STR_INIT("Content-Length"), STR_INIT("999") } };
        http_reply(ex, 200, fields, 4, STR("hello"));
        http_reply(ex, 500, NULL, 0, STR("only the first counts"));
    } else if (is_at(ex, "/open")) {
        http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    } else if (is_at(ex, "/upgrade")) {
        assert_null(http_upgrade(ex, NULL, 0, &no_stream_events, NULL));
        http_reply(ex, 426, NULL, 0, STR(""));
    } else if (is_at(ex, "/abort")) {
        http_abort(ex);
    } else {
        answer_by_path(ex, collected);
    }
}

static struct h2_client *connect_client(void)
{
    int ends[2];

    tcp_pair(ends);
    server_adopt(server, ends[1], &http2_protocol);
    return h2_client_new(ends[0]);
}

static int setup(void **state)
{
    (void)state;
    server_begin(
        &(struct http_server_config){ .on_request = on_request, .context = &requests, .http2 = &http2_protocol });
    trusts = false;
    head = buf_make(NULL, SIZE_MAX / 4);
    client = connect_client();
    return 0;
}

/* The same with a server that is less patient, by a clock that the pump turns. */
static void use_config(void)
{
    server_again();
    h2_client_free(client);
    client = connect_client();
}

static int teardown(void **state)
{
    (void)state;
    server_done(requests);
    h2_client_free(client);
    buf_done(&head);
    return 0;
}

#define WAIT_FOR(condition) PUMP_UNTIL(loop, h2_turn(client) && (condition))

static struct h2_got *got(int32_t id)
{
    return h2_got(client, id);
}

static void let_go_on(void)
{
    for (int i = 0; i < 20; i++) {
        h2_turn(client);
        pump_turn(loop);
    }
    h2_turn(client);
}

static void expect_answer(int32_t id, const char *status, const char *text)
{
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->code, 0);
    assert_string_equal(got(id)->status, status);
    CHECK_STR(buf_str(&got(id)->body), str_from(text));
    assert_true(got(id)->ended);
    assert_int_equal(got(id)->empty_frames, 0);
}

/* The connection must not be hurt by what happened on it. */
static void expect_still_fine(void)
{
    expect_answer(h2_get(client, "/hello"), "200", "hello");
}

static void expect_reset(int32_t id, uint32_t code)
{
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->code, code);
    expect_still_fine();
}

static void expect_goaway(uint32_t code)
{
    WAIT_FOR(client->went_away);
    assert_int_equal(client->away_code, code);
    WAIT_FOR(client->ended || client->was_reset);
}

static bool has_field(int32_t id, const char *line)
{
    struct buf *fields = &got(id)->fields;

    return memmem(fields->data ? fields->data : "", fields->len, line, strlen(line));
}

/* ---- answers ---- */

static void a_request_is_answered(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/hello");
    expect_answer(id, "200", "hello");
    CHECK_STR(buf_str(&got(id)->fields), STR("content-type: text/plain\ncontent-length: 5\n"));
    assert_int_equal(gones, 1);
}

static void a_head_reads_as_if_it_had_come_by_http_1_1(void **state)
{
    (void)state;
    const nghttp2_nv pairs[] = {
        h2_pair(":method", "POST"),     h2_pair(":scheme", "https"), h2_pair(":path", "/collect?a=b"),
        h2_pair(":authority", "Ex:7"),  h2_pair("x-one", "1"),       h2_pair("cookie", "a=1"),
        h2_pair("te", "trailers"),      h2_pair("cookie", "b=2"),    h2_pair("host", "ex:7"),
        h2_pair("content-length", "3"),
    };
    client->body = STR("abc");
    expect_answer(h2_ask_with(client, pairs, COUNT_OF(pairs), true), "200", "abc");
    CHECK_STR(buf_str(&head),
              STR("POST /collect?a=b|host: Ex:7|x-one: 1|te: trailers|content-length: 3|cookie: a=1; b=2"));
}

static void a_body_of_unknown_length_reads_as_chunked(void **state)
{
    (void)state;
    client->body = STR("some");
    int32_t id = h2_ask(client, "POST", "/wait", true);
    WAIT_FOR(current);
    assert_int_equal(current->head.framing, HTTP_CHUNKED);
    http_collect(current, 100, collected);
    expect_answer(id, "200", "some");
    id = h2_ask(client, "POST", "/wait", false);
    WAIT_FOR(current);
    assert_int_equal(current->head.framing, HTTP_NO_BODY);
    http_collect(current, 100, collected);
    expect_answer(id, "200", "");
}

static void many_requests_are_served_at_once(void **state)
{
    int32_t ids[100];

    (void)state;
    for (int i = 0; i < 100; i++) {
        char path[32];
        snprintf(path, sizeof path, "/path?%d", 1000 + i);
        ids[i] = h2_get(client, i % 2 ? "/wait" : path);
    }
    for (int i = 0; i < 100; i += 2) {
        char text[8];
        snprintf(text, sizeof text, "%d", 1000 + i);
        expect_answer(ids[i], "200", text);
    }
    WAIT_FOR(requests == 100 && gones == 50);
}

static void a_streaming_answer_has_no_empty_frames(void **state)
{
    (void)state;
    expect_answer(h2_get(client, "/stream"), "200", "first second");
    int32_t id = h2_get(client, "/open");
    WAIT_FOR(got(id)->status[0]);
    for (int i = 0; i < 3; i++) {
        http_write(current, STR("x"));
        WAIT_FOR(got(id)->body.len == (size_t)i + 1);
    }
    http_end(current);
    expect_answer(id, "200", "xxx");
}

static void answers_without_a_body_end_with_their_head(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/empty");
    expect_answer(id, "204", "");
    assert_false(has_field(id, "content-length"));
    id = h2_ask(client, "HEAD", "/hello", false);
    expect_answer(id, "200", "");
    assert_true(has_field(id, "content-length: 5"));
    expect_answer(h2_ask(client, "HEAD", "/stream", false), "200", "");
}

static void a_file_is_sent(void **state)
{
    (void)state;
    expect_answer(h2_get(client, "/file"), "200", "2345678");
    expect_reset(h2_get(client, "/cut-file"), NGHTTP2_INTERNAL_ERROR);
}

static void a_large_answer_arrives_whole(void **state)
{
    (void)state;
    pump_size = 5000000;
    int32_t id = h2_get(client, "/pump");
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->body.len, 5000000);
    assert_int_equal(got(id)->code, 0);
}

static void a_header_that_cannot_be_sent_becomes_a_500(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/inject");
    expect_answer(id, "500", "{\"code\":500,\"message\":\"the answer could not be written\"}");
    assert_false(has_field(id, "set-cookie"));
    expect_still_fine();
}

static void an_upgrade_is_not_possible(void **state)
{
    (void)state;
    expect_answer(h2_get(client, "/upgrade"), "426", "");
}

/* ---- breaking off ---- */

static void an_abort_resets_its_own_stream_only(void **state)
{
    (void)state;
    int32_t other = h2_get(client, "/open");
    WAIT_FOR(got(other)->status[0]);
    struct http_exchange *ex = current;
    expect_reset(h2_get(client, "/abort"), NGHTTP2_INTERNAL_ERROR);
    assert_int_equal(gones, 2);
    http_write(ex, STR("still here"));
    http_end(ex);
    expect_answer(other, "200", "still here");
}

static void an_answer_with_the_wrong_length_is_reset(void **state)
{
    (void)state;
    expect_reset(h2_get(client, "/short"), NGHTTP2_INTERNAL_ERROR);
    expect_reset(h2_get(client, "/over"), NGHTTP2_INTERNAL_ERROR);
}

static void an_abort_after_part_of_an_answer_is_a_reset(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/open");
    WAIT_FOR(got(id)->status[0]);
    http_write(current, STR("part"));
    WAIT_FOR(got(id)->body.len == 4);
    http_abort(current);
    assert_int_equal(gones, 0); /* not from inside the call */
    expect_reset(id, NGHTTP2_INTERNAL_ERROR);
    assert_false(got(id)->ended);
}

static void an_abort_drops_what_has_come_of_the_body(void **state)
{
    (void)state;
    client->body = STR("abc");
    client->body_waits = true;
    for (int collects = 0; collects < 2; collects++) {
        client->body_sent = 0;
        int32_t id = h2_ask(client, "POST", "/wait", true);
        WAIT_FOR(current);
        let_go_on();
        if (collects)
            http_collect(current, 100, collected);
        else
            http_body_start(current);
        http_abort(current);
        expect_reset(id, NGHTTP2_INTERNAL_ERROR);
        assert_int_equal(body.len, 0);
        assert_int_equal(server->held, 0);
    }
}

static void a_client_that_cancels_has_gone(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/wait");
    WAIT_FOR(requests == 1);
    nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    WAIT_FOR(gones == 1);
    expect_still_fine();
}

static void a_request_that_is_reset_at_once_reaches_no_handler(void **state)
{
    (void)state;
    expect_still_fine();
    int32_t id = h2_get(client, "/wait");
    const uint8_t *bytes;
    ssize_t n;
    auto_buf struct buf both = buf_make(NULL, 10000);
    while ((n = nghttp2_session_mem_send(client->session, &bytes)) > 0)
        buf_add(&both, str_of(bytes, (size_t)n));
    buf_format(&both, "%c%c%c%c%c%c%c%c%c%c%c%c%c", 0, 0, 4, 3, 0, 0, 0, 0, id, 0, 0, 0, 8);
    h2_send_all(client, buf_str(&both));
    let_go_on();
    assert_int_equal(requests, 1);
    expect_still_fine();
}

static void a_client_that_closes_has_gone(void **state)
{
    (void)state;
    h2_get(client, "/wait");
    h2_get(client, "/open");
    WAIT_FOR(requests == 2);
    close(client->fd);
    client->fd = -1;
    PUMP_UNTIL(loop, gones == 2);
}

static void a_server_that_stops_resets_what_is_under_way(void **state)
{
    (void)state;
    int32_t id = h2_get(client, "/open");
    WAIT_FOR(got(id)->status[0]);
    http_server_free(server);
    server = NULL;
    WAIT_FOR(client->ended);
    assert_true(got(id)->closed);
    assert_int_equal(got(id)->code, NGHTTP2_INTERNAL_ERROR);
    assert_true(client->went_away);
    assert_int_equal(client->away_code, NGHTTP2_NO_ERROR);
    assert_int_equal(gones, 1);
}

/* ---- bodies ---- */

static void a_body_is_collected(void **state)
{
    char *large = mem_new(100001);

    (void)state;
    memset(large, 'a', 100001);
    client->body = str_of(large, 100000);
    int32_t id = h2_ask(client, "POST", "/collect", true);
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->body.len, 100000);
    client->body = str_of(large, 100001);
    expect_answer(h2_ask(client, "POST", "/collect", true), "413", "too large");
    assert_int_equal(collect_error.kind, ERR_LIMIT);
    expect_still_fine();
    assert_int_equal(server->lent, 0);
    free(large);
}

static void a_body_is_echoed_while_it_arrives(void **state)
{
    (void)state;
    client->body = STR("one");
    client->body_waits = true;
    int32_t id = h2_ask(client, "POST", "/echo", true);
    WAIT_FOR(got(id)->body.len == 3);
    client->body = STR("onetwo");
    client->body_waits = false;
    nghttp2_session_resume_data(client->session, id);
    expect_answer(id, "200", "onetwo");
    assert_int_equal(body_ends, 1);
}

static void trailers_end_a_body(void **state)
{
    (void)state;
    client->body = STR("abc");
    client->body_waits = true;
    int32_t id = h2_ask(client, "POST", "/echo", true);
    WAIT_FOR(got(id)->body.len == 3);
    nghttp2_nv trailer = h2_pair("x-sum", "6");
    nghttp2_submit_trailer(client->session, id, &trailer, 1);
    expect_answer(id, "200", "abc");
}

static void a_large_upload_arrives_whole(void **state)
{
    enum { SIZE = 3000000 };
    char *large = mem_new(SIZE);

    (void)state;
    for (int known = 0; known < 2; known++) {
        trusts = known;
        buf_clear(&body);
        client->body = str_of(large, SIZE);
        int32_t id = h2_ask(client, "POST", "/read", true);
        WAIT_FOR(body.len == SIZE && body_ends == (unsigned)known + 1);
        http_reply(current, 200, NULL, 0, STR("ok"));
        expect_answer(id, "200", "ok");
    }
    assert_int_equal(server->held, 0);
    free(large);
}

static void a_paused_body_stops_its_own_sender_only(void **state)
{
    enum { SIZE = 10000000 };
    char *large = mem_new(SIZE);

    (void)state;
    trusts = pauses_body = true;
    client->body = str_of(large, SIZE);
    int32_t id = h2_ask(client, "POST", "/read", true);
    WAIT_FOR(current);
    struct http_exchange *ex = current;
    let_go_on();
    assert_true(client->body_sent < 2 * LIMIT_HTTP2_WINDOW_KNOWN);
    size_t sent = client->body_sent;
    assert_true(body.len < sent);

    /* Another upload on the same connection is not stopped, though the first fills more than its window. */
    pauses_body = false;
    struct str first = client->body;
    client->body = STR("small");
    expect_answer(h2_ask(client, "POST", "/collect", true), "200", "small");
    client->body = first;
    client->body_sent = sent;

    http_body_pause(ex, false);
    WAIT_FOR(body.len == SIZE);
    http_reply(ex, 200, NULL, 0, STR("ok"));
    expect_answer(id, "200", "ok");
    assert_int_equal(server->held, 0);
    free(large);
}

/* How much of a body is under way when its owner takes nothing of it. */
static size_t sent_while_paused(const char *large, size_t size)
{
    client->body = str_of(large, size);
    pauses_body = true;
    int32_t id = h2_ask(client, "POST", "/read", true);
    WAIT_FOR(current);
    size_t before = 1;
    while (before != client->body_sent) {
        before = client->body_sent;
        let_go_on();
    }
    nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    WAIT_FOR(!current);
    return before;
}

static void larger_windows_are_for_few_known_clients(void **state)
{
    enum { SIZE = 3 * LIMIT_HTTP2_WINDOW_KNOWN };
    char *large = mem_new(SIZE);

    (void)state;
    assert_in_range(sent_while_paused(large, SIZE), LIMIT_HTTP2_WINDOW_STRANGER, 2 * LIMIT_HTTP2_WINDOW_STRANGER);
    trusts = true;
    server->wide_count = LIMIT_HTTP2_WIDE;
    assert_in_range(sent_while_paused(large, SIZE), LIMIT_HTTP2_WINDOW_STRANGER, 2 * LIMIT_HTTP2_WINDOW_STRANGER);
    server->wide_count = 0;
    assert_in_range(sent_while_paused(large, SIZE), LIMIT_HTTP2_WINDOW_KNOWN, 2 * LIMIT_HTTP2_WINDOW_KNOWN);
    assert_int_equal(server->wide_count, 1);
    close(client->fd);
    client->fd = -1;
    PUMP_UNTIL(loop, server->wide_count == 0);
    free(large);
}

static void a_body_that_nobody_wants_yet_is_bounded(void **state)
{
    char *large = mem_new(1 << 20);

    (void)state;
    client->body = str_of(large, 1 << 20);
    h2_ask(client, "POST", "/wait", true);
    WAIT_FOR(current);
    let_go_on();
    assert_int_equal(client->body_sent, LIMIT_HTTP2_WINDOW);
    http_abort(current);
    WAIT_FOR(gones == 1);
    expect_still_fine();
    assert_int_equal(server->held, 0);
    free(large);
}

/* Past the memory for held bodies, a body that nobody takes stops the connection's others: and no more than that. */
static void held_bodies_are_bounded(void **state)
{
    char *large = mem_new(1 << 20);
    int32_t ids[100];

    (void)state;
    server->held = LIMIT_HTTP2_HELD_ALL_BYTES; /* other connections have taken it all */
    client->body = str_of(large, 1 << 20);
    for (int i = 0; i < 20; i++) {
        ids[i] = h2_ask(client, "POST", "/wait", true);
        let_go_on();
        client->body_sent = 0;
    }
    for (int i = 0; i < 20; i++)
        nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, ids[i], NGHTTP2_CANCEL);
    WAIT_FOR(gones == 20);
    assert_int_equal(server->held, LIMIT_HTTP2_HELD_ALL_BYTES);
    server->held = 0;
    /* What was dropped with the streams has opened the connection's window again. */
    client->body = str_of(large, 90000);
    int32_t id = h2_ask(client, "POST", "/collect", true);
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->body.len, 90000);
    free(large);
}

static void an_early_answer_ends_a_long_upload_without_an_error(void **state)
{
    char *large = mem_new(4 << 20);

    (void)state;
    client->body = str_of(large, 4 << 20);
    int32_t id = h2_ask(client, "POST", "/hello", true);
    WAIT_FOR(got(id)->closed);
    assert_string_equal(got(id)->status, "200");
    CHECK_STR(buf_str(&got(id)->body), STR("hello"));
    assert_true(got(id)->ended);
    assert_int_equal(got(id)->code, NGHTTP2_NO_ERROR);
    assert_true(client->body_sent < 1 << 20);
    expect_still_fine();
    assert_int_equal(gones, 2);
    free(large);
}

static void a_short_unwanted_body_is_discarded(void **state)
{
    (void)state;
    client->body = STR("not wanted");
    expect_answer(h2_ask(client, "POST", "/hello", true), "200", "hello");
}

static void continue_is_sent_when_the_body_is_wanted(void **state)
{
    (void)state;
    const nghttp2_nv pairs[] = {
        h2_pair(":method", "POST"), h2_pair(":scheme", "https"),       h2_pair(":path", "/wait"),
        h2_pair(":authority", "x"), h2_pair("expect", "100-continue"),
    };
    client->body = STR("");
    client->body_waits = true;
    int32_t id = h2_ask_with(client, pairs, COUNT_OF(pairs), true);
    WAIT_FOR(current);
    let_go_on();
    assert_int_equal(got(id)->interim, 0);
    http_collect(current, 100, collected);
    WAIT_FOR(got(id)->interim == 1);
    client->body = STR("now");
    client->body_waits = false;
    nghttp2_session_resume_data(client->session, id);
    expect_answer(id, "200", "now");
}

/* ---- slow readers ---- */

static void a_slow_reader_of_one_stream_does_not_stop_the_others(void **state)
{
    (void)state;
    client->keeps_window = true;
    nghttp2_session_set_local_window_size(client->session, NGHTTP2_FLAG_NONE, 0, 10 << 20);
    pump_size = 10 << 20;
    int32_t id = h2_get(client, "/pump");
    WAIT_FOR(got(id)->body.len == 65535);
    let_go_on();
    assert_true(pumped <= 65535 + LIMIT_STREAM_BUFFER + 2 * sizeof pump_bytes); /* we hold no more */
    client->keeps_window = false;
    for (int i = 0; i < 5; i++)
        expect_still_fine();
    assert_int_equal(got(id)->body.len, 65535);
    nghttp2_session_consume(client->session, id, 65535);
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->body.len, 10 << 20);
}

static void a_client_that_reads_nothing_makes_us_hold_little(void **state)
{
    (void)state;
    /* Windows without end, but the kernel's buffers are full. */
    nghttp2_settings_entry window = { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff };
    nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, &window, 1);
    nghttp2_session_set_local_window_size(client->session, NGHTTP2_FLAG_NONE, 0, 0x7fffffff);
    pump_size = 200 << 20;
    int32_t id = h2_get(client, "/pump");
    h2_turn(client);
    client->is_deaf = true;
    size_t before = 1;
    for (int i = 0; i < 200 && before != pumped; i++) {
        before = pumped;
        let_go_on();
    }
    assert_true(pumped < 40 << 20); /* mostly the kernel's */
    assert_true(stream_queued(server->connections->stream) <= 2 * LIMIT_STREAM_BUFFER);
    assert_true(server->connections->http2 != NULL);
    nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    client->is_deaf = false;
    WAIT_FOR(gones == 1);
}

static void many_unread_answers_share_a_budget(void **state)
{
    size_t sizes[20] = { 0 };
    struct http_exchange *all[20];

    (void)state;
    client->keeps_window = true;
    nghttp2_settings_entry window = { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0 };
    nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, &window, 1);
    for (int i = 0; i < 20; i++) {
        int32_t id = h2_get(client, "/open");
        WAIT_FOR(got(id)->status[0]);
        all[i] = current;
        while (!http_is_full(all[i])) {
            http_write(all[i], str_of(pump_bytes, 10000));
            sizes[i] += 10000;
        }
    }
    assert_true(sizes[0] > LIMIT_STREAM_BUFFER);
    assert_true(sizes[19] <= LIMIT_HTTP2_UNSENT_EACH + 10000);
}

/* ---- requests that are refused ---- */

static void expect_refusal(const nghttp2_nv *pairs, size_t count, const char *status, const char *why)
{
    char text[200];
    int32_t id = h2_ask_with(client, pairs, count, false);

    snprintf(text, sizeof text, "{\"code\":%s,\"message\":\"%s\"}", status, why);
    expect_answer(id, status, text);
    assert_int_equal(requests, 0);
}

#define BASIC h2_pair(":method", "GET"), h2_pair(":scheme", "https"), h2_pair(":path", "/hello")

static void malformed_heads_are_refused_with_a_reason(void **state)
{
    (void)state;
    const nghttp2_nv differ[] = { BASIC, h2_pair(":authority", "a"), h2_pair("host", "b") };
    expect_refusal(differ, 5, "400", "Host and :authority differ");
    const nghttp2_nv twice[] = { BASIC, h2_pair("host", "a"), h2_pair("host", "a") };
    int32_t id = h2_ask_with(client, twice, 5, false); /* nghttp2 or we */
    WAIT_FOR(got(id)->closed);
    const nghttp2_nv no_host[] = { BASIC, h2_pair("x", "y") };
    id = h2_ask_with(client, no_host, 4, false);
    WAIT_FOR(got(id)->closed);
    const nghttp2_nv user[] = { BASIC, h2_pair(":authority", "user@host") };
    expect_refusal(user, 4, "400", "Host is not a host");
    const nghttp2_nv line[] = { BASIC, h2_pair(":authority", "a"), h2_pair("x", "a\r\nevil: b") };
    expect_refusal(line, 5, "400", "a header has a character that it must not have");
    const nghttp2_nv name[] = { BASIC, h2_pair(":authority", "a"), h2_pair("x y", "a") };
    expect_refusal(name, 5, "400", "a header has a character that it must not have");
    const nghttp2_nv scheme[] = { h2_pair(":method", "GET"), h2_pair(":scheme", "ftp"), h2_pair(":path", "/"),
                                  h2_pair(":authority", "a") };
    expect_refusal(scheme, 4, "400", "the scheme is neither https nor http");
    const nghttp2_nv connect[] = { h2_pair(":method", "CONNECT"), h2_pair(":authority", "a:443") };
    expect_refusal(connect, 2, "400", "CONNECT is not possible here");
    const nghttp2_nv fragment[] = { h2_pair(":method", "GET"), h2_pair(":scheme", "https"), h2_pair(":path", "/a#b"),
                                    h2_pair(":authority", "a") };
    expect_refusal(fragment, 4, "400", "the path has a character that must be percent-encoded");
    assert_int_equal(requests, 0);
    expect_still_fine();
}

static void what_nghttp2_finds_malformed_is_reset(void **state)
{
    static const char *const fields[][2] = {
        { "connection", "close" },
        { "transfer-encoding", "chunked" },
        { "upgrade", "websocket" },
        { "keep-alive", "timeout=5" },
        { "proxy-connection", "close" },
        { "te", "gzip" },
        { "content-length", "5" },
        { "content-length", "abc" },
        { ":path", "/again" },
        { ":protocol", "websocket" },
        { ":unknown", "x" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const nghttp2_nv pairs[] = { BASIC, h2_pair(":authority", "a"), h2_pair(fields[i][0], fields[i][1]) };
        int32_t id = h2_ask_with(client, pairs, 5, false);
        WAIT_FOR(got(id)->closed);
        assert_int_equal(got(id)->code, NGHTTP2_PROTOCOL_ERROR);
    }
    assert_int_equal(requests, 0);
    /* A length that the body does not have. */
    const nghttp2_nv shorter[] = { h2_pair(":method", "POST"), h2_pair(":scheme", "https"), h2_pair(":path", "/echo"),
                                   h2_pair(":authority", "a"), h2_pair("content-length", "2") };
    client->body = STR("abc");
    expect_reset(h2_ask_with(client, shorter, 5, true), NGHTTP2_PROTOCOL_ERROR);
}

static void heads_have_the_limits_of_http_1_1(void **state)
{
    (void)state;
    char *large = mem_new(LIMIT_HEAD_BYTES + 1), *path = mem_new(LIMIT_TARGET_BYTES + 2);
    memset(large, 'a', LIMIT_HEAD_BYTES);
    memset(path, 'a', LIMIT_TARGET_BYTES + 1);
    path[0] = '/';
    large[40000] = 0;
    const nghttp2_nv too_long[] = { BASIC, h2_pair(":authority", "a"), h2_pair("x", large), h2_pair("y", large) };
    expect_refusal(too_long, 6, "431", "the head is too long");
    const nghttp2_nv too_far[] = { h2_pair(":method", "GET"), h2_pair(":scheme", "https"), h2_pair(":path", path),
                                   h2_pair(":authority", "a") };
    expect_refusal(too_far, 4, "414", "the path and query are too long");
    nghttp2_nv many[LIMIT_HEADERS + 4] = { BASIC, h2_pair(":authority", "a") };
    for (size_t i = 4; i < COUNT_OF(many); i++)
        many[i] = h2_pair("x", "y");
    expect_refusal(many, COUNT_OF(many), "431", "too many headers");
    expect_answer(h2_ask_with(client, many, COUNT_OF(many) - 1, false), "200", "hello");
    free(large);
    free(path);
}

/* ---- floods ---- */

static void a_bomb_of_fields_ends_the_connection(void **state)
{
    (void)state;
    nghttp2_nv many[LIMIT_HTTP2_FIELDS + 5] = { BASIC, h2_pair(":authority", "a") };
    for (size_t i = 4; i < COUNT_OF(many); i++)
        many[i] = h2_pair("cookie", "y");
    h2_ask_with(client, many, COUNT_OF(many), false);
    expect_goaway(NGHTTP2_ENHANCE_YOUR_CALM);
    assert_int_equal(requests, 0);
}

static void expect_rapid_resets(unsigned most)
{
    unsigned asked = 0;

    while (!client->went_away) {
        for (int i = 0; i < 50; i++, asked++) {
            int32_t id = h2_get(client, "/wait");
            h2_turn(client);
            nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
        }
        h2_turn(client);
        pump_turn(loop);
        h2_turn(client);
        assert_true(asked <= most + 100);
    }
    assert_true(asked >= most);
    expect_goaway(NGHTTP2_ENHANCE_YOUR_CALM);
    PUMP_UNTIL(loop, gones == requests);
}

static void rapid_resets_end_the_connection(void **state)
{
    (void)state;
    use_config();
    expect_rapid_resets(LIMIT_HTTP2_RESETS);
}

/* The same when it is we who have to reset, because the client does something that is not allowed. */
static void resets_that_the_client_causes_count_too(void **state)
{
    (void)state;
    use_config();
    unsigned asked = 0;
    while (!client->went_away && asked < 2 * LIMIT_HTTP2_RESETS) {
        int32_t id = h2_get(client, "/wait");
        h2_turn(client);
        char update[13] = { 0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, (char)0xff, (char)0xff, (char)0xff }; /* too much */
        update[7] = (char)(id / 256);
        update[8] = (char)(id % 256);
        h2_send_all(client, str_of(update, sizeof update));
        asked++;
        pump_turn(loop);
        h2_turn(client);
    }
    assert_true(asked >= LIMIT_HTTP2_RESETS);
    expect_goaway(NGHTTP2_ENHANCE_YOUR_CALM);
}

/* Raw frames, many of them, in pieces that the server can read. */
static void flood_with(struct str frame, unsigned count)
{
    auto_buf struct buf many = buf_make(NULL, SIZE_MAX / 4);

    for (unsigned i = 0; i < count && !client->was_reset; i++) {
        buf_add(&many, frame);
        if (many.len < 4000)
            continue;
        h2_send_all(client, buf_str(&many));
        buf_clear(&many);
        pump_turn(loop);
        h2_turn(client);
    }
}

static bool ends_in_calm_down(const struct buf *heard)
{
    struct str all = buf_str(heard);

    return all.len >= 17 && str_starts(str_of(all.at + all.len - 17, 17), STR("\0\0\10\7")) && /* GOAWAY */
           str_ends(all, STR("\0\0\0\13"));
}

static void floods_of_useless_frames_end_the_connection(void **state)
{
    static const struct str frames[] = {
        STR_INIT("\0\0\10\6\0\0\0\0\0abcdefgh"),  /* PING */
        STR_INIT("\0\0\0\4\0\0\0\0\0"),           /* SETTINGS */
        STR_INIT("\0\0\5\2\0\0\0\0\7\0\0\0\0\1"), /* PRIORITY of an idle stream */
        STR_INIT("\0\0\4\10\0\0\0\0\0\0\0\0\1"),  /* WINDOW_UPDATE */
        STR_INIT("\0\0\4\x77\0\0\0\0\0abcd"),     /* of no known type */
    };

    (void)state;
    use_config();
    for (size_t i = 0; i < COUNT_OF(frames); i++) {
        h2_client_free(client);
        client = connect_client();
        expect_still_fine();
        client->is_deaf = true; /* its nghttp2 would mind the answers to what it has not sent */
        flood_with(frames[i], LIMIT_HTTP2_FRAMES / 2);
        assert_int_equal(server->connections->state, CONN_HEAD); /* not too soon */
        flood_with(frames[i], LIMIT_HTTP2_FRAMES);
        struct peer raw = peer_make(client->fd);
        PUMP_UNTIL(loop, peer_listen(&raw) && ends_in_calm_down(&raw.heard));
        buf_done(&raw.heard);
    }
}

static void a_flood_of_empty_data_ends_the_connection(void **state)
{
    (void)state;
    use_config();
    client->body = STR("");
    client->body_waits = true;
    int32_t id = h2_ask(client, "POST", "/read", true);
    WAIT_FOR(current);
    assert_int_equal(id, 1);
    flood_with(STR("\0\0\0\0\0\0\0\0\1"), LIMIT_HTTP2_FRAMES + 1000);
    expect_goaway(NGHTTP2_ENHANCE_YOUR_CALM);
    assert_int_equal(body_ends, 0);
}

static void a_flood_of_continuations_ends_the_connection(void **state)
{
    (void)state;
    use_config();
    expect_still_fine();
    h2_send_all(client, STR("\0\0\1\1\0\0\0\0\7\x82"));
    for (int i = 0; i <= LIMIT_HTTP2_CONTINUATIONS && !client->was_reset; i++)
        h2_send_all(client, STR("\0\0\0\11\0\0\0\0\7"));
    WAIT_FOR(client->went_away || client->was_reset || client->ended);
    assert_int_equal(requests, 1);
}

static void too_many_streams_at_once_are_refused(void **state)
{
    (void)state;
    expect_still_fine(); /* the client knows our settings */
    for (int i = 0; i < LIMIT_HTTP2_STREAMS + 50; i++)
        h2_get(client, "/wait");
    WAIT_FOR(requests == 1 + LIMIT_HTTP2_STREAMS);
    let_go_on();
    assert_int_equal(requests, 1 + LIMIT_HTTP2_STREAMS);
    http_reply(current, 200, NULL, 0, STR(""));
    WAIT_FOR(requests == 2 + LIMIT_HTTP2_STREAMS); /* the client has waited */
}

static void requests_of_all_connections_have_a_limit(void **state)
{
    (void)state;
    expect_still_fine();
    server->stream_count = LIMIT_HTTP2_EXCHANGES;
    int32_t id = h2_get(client, "/hello");
    expect_answer(id, "503", "{\"code\":503,\"message\":\"too many requests at once\"}");
    assert_true(has_field(id, "retry-after: 1"));
    server->stream_count = 0;
    expect_still_fine();
}

static void at_the_limit_a_client_that_does_not_take_its_answers_makes_room(void **state)
{
    (void)state;
    nghttp2_settings_entry window = { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0 };
    nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, &window, 1);
    int32_t id = h2_get(client, "/hello");
    WAIT_FOR(got(id)->status[0]);
    struct h2_client *slow = client;
    client = connect_client();
    server->stream_count += LIMIT_HTTP2_EXCHANGES - 1;
    expect_still_fine();
    server->stream_count -= LIMIT_HTTP2_EXCHANGES - 1;
    struct h2_client *fast = client;
    client = slow;
    WAIT_FOR(client->ended);
    assert_true(got(id)->closed);
    assert_int_equal(got(id)->code, NGHTTP2_INTERNAL_ERROR);
    h2_client_free(slow);
    client = fast;
}

static void bytes_that_are_not_http_2_close_the_connection(void **state)
{
    (void)state;
    h2_send_all(client, STR("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    client->is_deaf = true;
    PUMP_UNTIL(loop, !server->connections);
}

/* ---- patience ---- */

static void an_idle_connection_is_closed_in_order(void **state)
{
    (void)state;
    config.keepalive_ms = 500;
    use_config();
    expect_still_fine();
    expect_goaway(NGHTTP2_NO_ERROR);
    assert_true(client->ended);
    assert_false(client->was_reset);
    assert_int_equal(client->away_last, 1);
}

static void pings_do_not_keep_a_connection(void **state)
{
    (void)state;
    config.keepalive_ms = 500;
    use_config();
    expect_still_fine();
    for (int i = 0; i < 100 && !client->went_away; i++) {
        nghttp2_submit_ping(client->session, NGHTTP2_FLAG_NONE, NULL);
        let_go_on();
    }
    assert_true(client->pongs > 5);
    assert_true(client->went_away);
}

static void a_connection_without_a_request_is_closed(void **state)
{
    (void)state;
    config.head_ms = 300;
    use_config();
    expect_goaway(NGHTTP2_NO_ERROR);
}

static void a_head_that_does_not_end_ends_the_connection(void **state)
{
    (void)state;
    config.head_ms = 300;
    use_config();
    int32_t other = h2_get(client, "/open");
    WAIT_FOR(got(other)->status[0]);
    let_go_on();                                        /* nothing else may come between its frames */
    h2_send_all(client, STR("\0\0\1\1\0\0\0\0\7\x82")); /* HEADERS without END_HEADERS */
    expect_goaway(NGHTTP2_ENHANCE_YOUR_CALM);
    assert_int_equal(got(other)->code, NGHTTP2_INTERNAL_ERROR);
}

static void a_body_that_does_not_come_is_given_up(void **state)
{
    (void)state;
    config.body_idle_ms = 300;
    use_config();
    client->body = STR("abc");
    client->body_waits = true;
    int32_t id = h2_ask(client, "POST", "/collect", true), other = h2_get(client, "/open");
    WAIT_FOR(got(id)->ended);
    assert_string_equal(got(id)->status, "408");
    assert_string_equal(got(other)->status, "200");
    assert_false(got(other)->closed);
    expect_still_fine();
    client->body_sent = 0;
    id = h2_ask(client, "POST", "/echo", true);
    WAIT_FOR(got(id)->closed);
    assert_int_equal(got(id)->code, NGHTTP2_INTERNAL_ERROR);
    expect_still_fine();
}

static void a_window_that_stays_shut_resets_its_stream(void **state)
{
    (void)state;
    config.write_idle_ms = 300;
    use_config();
    nghttp2_settings_entry window = { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 10 };
    nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, &window, 1);
    client->keeps_window = true;
    pump_size = 1 << 20;
    int32_t id = h2_get(client, "/pump");
    WAIT_FOR(got(id)->body.len == 10);
    for (int i = 0; i < 100 && !got(id)->closed; i++) { /* a few bytes are not enough */
        nghttp2_session_consume_stream(client->session, id, got(id)->closed ? 0 : 5);
        let_go_on();
    }
    assert_true(got(id)->closed);
    assert_int_equal(got(id)->code, NGHTTP2_INTERNAL_ERROR);
    expect_answer(h2_get(client, "/empty"), "204", "");
}

/* ---- crowds and fairness ---- */

static void at_the_limit_an_idle_connection_makes_room(void **state)
{
    (void)state;
    config.connections_max = 1;
    use_config();
    expect_still_fine();
    struct h2_client *first = client;
    client = connect_client();
    expect_still_fine();
    struct h2_client *second = client;
    client = first;
    expect_goaway(NGHTTP2_NO_ERROR);
    h2_client_free(first);
    client = second;
}

static void a_connection_too_many_is_told_so(void **state)
{
    (void)state;
    config.connections_max = 1;
    use_config();
    h2_get(client, "/wait");
    WAIT_FOR(current);
    struct h2_client *first = client;
    client = connect_client();
    expect_goaway(NGHTTP2_NO_ERROR);
    assert_int_equal(client->away_last, 0);
    h2_client_free(client);
    client = first;
}

static unsigned seen_before_other;
static unsigned seen_all;

static void note_order(struct http_exchange *ex, void *context)
{
    if (str_eq(ex->head.path, STR("/empty")))
        seen_before_other = seen_all;
    seen_all++;
    on_request(ex, context);
}

static void a_crowd_of_requests_does_not_hold_up_other_connections(void **state)
{
    (void)state;
    config.on_request = note_order;
    use_config();
    seen_all = 0;
    struct h2_client *other = connect_client();
    for (int i = 0; i < 100; i++)
        h2_get(client, "/hello");
    h2_get(other, "/empty");
    h2_turn(client);
    h2_turn(other);
    WAIT_FOR(seen_all == 101);
    assert_true(seen_before_other < 20);
    h2_client_free(other);
}

static void a_crowd_of_requests_is_taken_a_few_at_a_time(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        h2_get(client, "/hello");
    while (gones < 100) {
        h2_turn(client);
        pump_turn(loop);
        assert_true(server->stream_count <= 2 * LIMIT_TURN_REQUESTS);
    }
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_request_is_answered),
        T(a_head_reads_as_if_it_had_come_by_http_1_1),
        T(a_body_of_unknown_length_reads_as_chunked),
        T(many_requests_are_served_at_once),
        T(a_streaming_answer_has_no_empty_frames),
        T(answers_without_a_body_end_with_their_head),
        T(a_file_is_sent),
        T(a_large_answer_arrives_whole),
        T(a_header_that_cannot_be_sent_becomes_a_500),
        T(an_upgrade_is_not_possible),
        T(an_abort_resets_its_own_stream_only),
        T(an_answer_with_the_wrong_length_is_reset),
        T(an_abort_after_part_of_an_answer_is_a_reset),
        T(an_abort_drops_what_has_come_of_the_body),
        T(a_client_that_cancels_has_gone),
        T(a_request_that_is_reset_at_once_reaches_no_handler),
        T(a_client_that_closes_has_gone),
        T(a_server_that_stops_resets_what_is_under_way),
        T(a_body_is_collected),
        T(a_body_is_echoed_while_it_arrives),
        T(trailers_end_a_body),
        T(a_large_upload_arrives_whole),
        T(a_paused_body_stops_its_own_sender_only),
        T(larger_windows_are_for_few_known_clients),
        T(a_body_that_nobody_wants_yet_is_bounded),
        T(held_bodies_are_bounded),
        T(an_early_answer_ends_a_long_upload_without_an_error),
        T(a_short_unwanted_body_is_discarded),
        T(continue_is_sent_when_the_body_is_wanted),
        T(a_slow_reader_of_one_stream_does_not_stop_the_others),
        T(a_client_that_reads_nothing_makes_us_hold_little),
        T(many_unread_answers_share_a_budget),
        T(malformed_heads_are_refused_with_a_reason),
        T(what_nghttp2_finds_malformed_is_reset),
        T(heads_have_the_limits_of_http_1_1),
        T(a_bomb_of_fields_ends_the_connection),
        T(rapid_resets_end_the_connection),
        T(resets_that_the_client_causes_count_too),
        T(floods_of_useless_frames_end_the_connection),
        T(a_flood_of_empty_data_ends_the_connection),
        T(a_flood_of_continuations_ends_the_connection),
        T(too_many_streams_at_once_are_refused),
        T(requests_of_all_connections_have_a_limit),
        T(at_the_limit_a_client_that_does_not_take_its_answers_makes_room),
        T(bytes_that_are_not_http_2_close_the_connection),
        T(an_idle_connection_is_closed_in_order),
        T(pings_do_not_keep_a_connection),
        T(a_connection_without_a_request_is_closed),
        T(a_head_that_does_not_end_ends_the_connection),
        T(a_body_that_does_not_come_is_given_up),
        T(a_window_that_stays_shut_resets_its_stream),
        T(at_the_limit_an_idle_connection_makes_room),
        T(a_connection_too_many_is_told_so),
        T(a_crowd_of_requests_does_not_hold_up_other_connections),
        T(a_crowd_of_requests_is_taken_a_few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
