#include "wire/http1.h"

#include <stdlib.h>

#include "test.h"

static struct http_head head; /* 4 KiB, so not on every stack */
static struct err err;

static enum http_parse request(struct str text)
{
    size_t used = 0;

    enum http_parse got = http_parse_request(text, &head, &used, &err);
    if (got == HTTP_DONE)
        assert_int_equal(used, text.len);
    return got;
}

static enum http_parse response(struct str text)
{
    size_t used;

    return http_parse_response(text, false, &head, &used, &err);
}

#define REFUSES(status_, text)                                                               \
    do {                                                                                     \
        if (request(STR(text)) != HTTP_BAD)                                                  \
            fail_msg("accepted: %s", text);                                                  \
        if (head.status != (status_))                                                        \
            fail_msg("status %u instead of %u: %s", head.status, (unsigned)(status_), text); \
    } while (0)
#define ACCEPTS(text)                                        \
    do {                                                     \
        if (request(STR(text)) != HTTP_DONE)                 \
            fail_msg("refused (%s): %s", err.message, text); \
    } while (0)

static void a_request_is_taken_apart(void **state)
{
    (void)state;
    ACCEPTS("POST /files?path=%2Fa&username=user HTTP/1.1\r\nhost: 127.0.0.1:7070\r\nX-Access-Token:\t tok en \r\n"
            "Content-Length: 12\r\nempty:\r\n\r\n");
    assert_int_equal(head.method, HTTP_POST);
    CHECK_STR(head.method_text, STR("POST"));
    CHECK_STR(head.target, STR("/files?path=%2Fa&username=user"));
    CHECK_STR(head.path, STR("/files"));
    CHECK_STR(head.query, STR("path=%2Fa&username=user"));
    assert_int_equal(head.minor, 1);
    assert_int_equal(head.header_count, 4);
    CHECK_STR(*http_header(&head, STR("x-access-token")), STR("tok en"));
    CHECK_STR(*http_header(&head, STR("Empty")), STR(""));
    assert_null(http_header(&head, STR("Accept")));
    assert_int_equal(head.framing, HTTP_LENGTH);
    assert_int_equal(head.length, 12);
    assert_true(head.keep_alive);
    assert_false(head.upgrade);
}

static void methods_are_told_apart_by_case(void **state)
{
    (void)state;
    ACCEPTS("get / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(head.method, HTTP_OTHER);
    ACCEPTS("PURGE / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(head.method, HTTP_OTHER);
    CHECK_STR(head.method_text, STR("PURGE"));
    ACCEPTS("DELETE / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(head.method, HTTP_DELETE);
}

static void empty_lines_before_a_request_are_skipped(void **state)
{
    (void)state;
    ACCEPTS("\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK_STR(head.path, STR("/"));
    REFUSES(400, "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
}

static void bytes_after_a_head_are_not_part_of_it(void **state)
{
    size_t used;

    (void)state;
    struct str two = STR("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(http_parse_request(two, &head, &used, &err), HTTP_DONE);
    assert_int_equal(used, two.len / 2);
}

static void every_part_of_a_head_asks_for_more(void **state)
{
    size_t used;

    (void)state;
    struct str whole = STR("\r\nGET /a?b HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n");
    for (size_t len = 0; len < whole.len; len++)
        assert_int_equal(http_parse_request(str_of(whole.at, len), &head, &used, &err), HTTP_MORE);
    whole = STR("HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
    for (size_t len = 0; len < whole.len; len++)
        assert_int_equal(http_parse_response(str_of(whole.at, len), false, &head, &used, &err), HTTP_MORE);
}

static void other_protocols_are_refused_before_their_first_line_ends(void **state)
{
    (void)state;
    REFUSES(400, "\x16\x03\x01\x02"); /* TLS */
    REFUSES(400, "\0");
    REFUSES(400, "AVERYVERYLONGMETHODTHATNOBODYKNOWS");
}

static void lengths_that_could_be_read_in_two_ways_are_refused(void **state)
{
    (void)state;
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"
    ACCEPTS(POST "Content-Length: 0\r\n\r\n");
    ACCEPTS(POST "Content-Length: 9223372036854775807\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5, 5\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5,5\r\n\r\n");
    REFUSES(400, POST "Content-Length: +5\r\n\r\n");
    REFUSES(400, POST "Content-Length: -5\r\n\r\n");
    REFUSES(400, POST "Content-Length: 0x5\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5 5\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5.0\r\n\r\n");
    REFUSES(400, POST "Content-Length:\r\n\r\n");
    REFUSES(400, POST "Content-Length: 9223372036854775808\r\n\r\n");
    REFUSES(400, POST "Content-Length: 18446744073709551621\r\n\r\n"); /* 5, after wrapping around */
}

static void codings_that_could_be_read_in_two_ways_are_refused(void **state)
{
    (void)state;
    ACCEPTS(POST "Transfer-Encoding: chunked\r\n\r\n");
    assert_int_equal(head.framing, HTTP_CHUNKED);
    ACCEPTS(POST "transfer-encoding:CHUNKED\r\n\r\n");
    REFUSES(400, POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: chunked, gzip\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: chunked, chunked\r\n\r\n");
    REFUSES(501, POST "Transfer-Encoding: gzip, chunked\r\n\r\n");
    REFUSES(501, POST "Transfer-Encoding: identity\r\n\r\n");
    REFUSES(501, POST "Transfer-Encoding: xchunked\r\n\r\n");
    REFUSES(501, POST "Transfer-Encoding: \"chunked\"\r\n\r\n");
    REFUSES(501, POST "Transfer-Encoding:\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding : chunked\r\n\r\n");
    REFUSES(400, POST "Transfer-Encoding: \x0b"
                      "chunked\r\n\r\n");
    REFUSES(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
}

static void malformed_headers_are_refused(void **state)
{
    (void)state;
#define GET "GET / HTTP/1.1\r\nHost: x\r\n"
    REFUSES(400, GET "A: b\r\n c\r\n\r\n"); /* folded */
    REFUSES(400, GET " A: b\r\n\r\n");
    REFUSES(400, GET "A : b\r\n\r\n"); /* space before the colon */
    REFUSES(400, GET "A\t: b\r\n\r\n");
    REFUSES(400, GET ": b\r\n\r\n"); /* no name */
    REFUSES(400, GET "A\r\n\r\n");   /* no colon */
    REFUSES(400, GET "A b: c\r\n\r\n");
    REFUSES(400, GET "A: b\0c\r\n\r\n");
    REFUSES(400, GET "A\0: b\r\n\r\n");
    REFUSES(400, GET "A: b\x7f\r\n\r\n");
    REFUSES(400, GET "A: b\rc\r\n\r\n"); /* bare CR */
    REFUSES(400, GET "A: b\r\r\n\r\n");
    REFUSES(400, GET "A: b\n\r\n"); /* bare LF */
    REFUSES(400, GET "A: b\nB: c\r\n\r\n");
    REFUSES(400, GET "A: b\r\n\n");
    REFUSES(400, "GET / HTTP/1.1\nHost: x\n\n");
    ACCEPTS(GET "A: \xc3\xa9\r\n\r\n");
}

static void malformed_request_lines_are_refused(void **state)
{
    (void)state;
    REFUSES(400, "GET /\r\n\r\n"); /* HTTP/0.9 */
    REFUSES(400, "GET\r\n\r\n");
    REFUSES(400, "GET  / HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET /  HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1 \r\nHost: x\r\n\r\n");
    REFUSES(400, "GET\t/\tHTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, " GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET / http/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1x\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET / HTTP/11\r\nHost: x\r\n\r\n");
    REFUSES(505, "GET / HTTP/1.2\r\nHost: x\r\n\r\n");
    REFUSES(505, "GET / HTTP/2.0\r\nHost: x\r\n\r\n");
    REFUSES(505, "PRI * HTTP/2.0\r\n\r\n"); /* the preface of HTTP/2 */
    REFUSES(400, "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET * HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n");
    REFUSES(400, "GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n");
    ACCEPTS("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK_STR(head.path, STR("*"));
    ACCEPTS("GET //process.Process/Start HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK_STR(head.path, STR("//process.Process/Start"));
}

static void a_host_must_be_there_once_and_be_one(void **state)
{
    (void)state;
    REFUSES(400, "GET / HTTP/1.1\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n");
    REFUSES(400, "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n");
    ACCEPTS("GET / HTTP/1.1\r\nHost: [::1]:7070\r\n\r\n");
    ACCEPTS("GET / HTTP/1.0\r\n\r\n");
}

static void keep_alive_follows_version_and_connection(void **state)
{
    (void)state;
    ACCEPTS(GET "\r\n");
    assert_true(head.keep_alive);
    ACCEPTS(GET "Connection: foo, Close\r\n\r\n");
    assert_false(head.keep_alive);
    ACCEPTS("GET / HTTP/1.0\r\n\r\n");
    assert_false(head.keep_alive);
    ACCEPTS("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    assert_true(head.keep_alive);
    ACCEPTS(GET "Connection: keep-alive\r\nConnection: close\r\n\r\n");
    assert_false(head.keep_alive);
    ACCEPTS(GET "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_true(head.upgrade);
    ACCEPTS(GET "Connection: Upgrade\r\n\r\n");
    assert_false(head.upgrade);
}

static void expectations_are_known_or_refused(void **state)
{
    (void)state;
    ACCEPTS(POST "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n");
    assert_true(head.expect_continue);
    ACCEPTS(POST "Expect: 100-continue\r\n\r\n"); /* no body, nothing to wait for */
    assert_false(head.expect_continue);
    ACCEPTS("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_false(head.expect_continue);
    REFUSES(417, POST "Expect: the-spanish-inquisition\r\n\r\n");
}

/* "GET /aaa… HTTP/1.1\r\nHost: x\r\nA: bbb…\r\n\r\n" */
static struct buf long_request(size_t target_bytes, size_t total_bytes)
{
    struct buf text = buf_make(NULL, 1 << 20);

    buf_add(&text, STR("GET /"));
    while (text.len < target_bytes + 4)
        buf_add_char(&text, 'a');
    buf_add(&text, STR(" HTTP/1.1\r\nHost: x\r\nA: "));
    while (text.len < total_bytes - 4)
        buf_add_char(&text, 'b');
    buf_add(&text, STR("\r\n\r\n"));
    return text;
}

static void heads_are_taken_up_to_the_cap_and_not_past_it(void **state)
{
    (void)state;
    auto_buf struct buf exact = long_request(10, LIMIT_HEAD_BYTES);
    assert_int_equal(request(buf_str(&exact)), HTTP_DONE);
    auto_buf struct buf over = long_request(10, LIMIT_HEAD_BYTES + 1);
    assert_int_equal(request(buf_str(&over)), HTTP_BAD);
    assert_int_equal(head.status, 431);
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_int_equal(request(str_of(over.data, LIMIT_HEAD_BYTES)), HTTP_BAD); /* it cannot end in time any more */
    assert_int_equal(request(str_of(over.data, LIMIT_HEAD_BYTES - 1)), HTTP_MORE);
}

static void targets_are_taken_up_to_the_cap_and_not_past_it(void **state)
{
    (void)state;
    auto_buf struct buf exact = long_request(LIMIT_TARGET_BYTES, LIMIT_TARGET_BYTES + 100);
    assert_int_equal(request(buf_str(&exact)), HTTP_DONE);
    assert_int_equal(head.target.len, LIMIT_TARGET_BYTES);
    auto_buf struct buf over = long_request(LIMIT_TARGET_BYTES + 1, LIMIT_TARGET_BYTES + 100);
    assert_int_equal(request(buf_str(&over)), HTTP_BAD);
    assert_int_equal(head.status, 414);
    assert_int_equal(request(str_of(over.data, LIMIT_TARGET_BYTES + 5)), HTTP_BAD); /* before its line has ended, too */
    assert_int_equal(head.status, 414);
}

static void headers_are_counted(void **state)
{
    (void)state;
    for (size_t count = LIMIT_HEADERS; count <= LIMIT_HEADERS + 1; count++) {
        auto_buf struct buf text = buf_make(NULL, LIMIT_HEAD_BYTES);
        buf_add(&text, STR("GET / HTTP/1.1\r\nHost: x\r\n"));
        for (size_t i = 1; i < count; i++)
            buf_add(&text, STR("a:b\r\n"));
        buf_add(&text, STR("\r\n"));
        assert_int_equal(request(buf_str(&text)), count == LIMIT_HEADERS ? HTTP_DONE : HTTP_BAD);
        if (count > LIMIT_HEADERS)
            assert_int_equal(head.status, 431);
    }
}

static void a_response_is_framed_by_its_status_and_headers(void **state)
{
    size_t used;

    (void)state;
    assert_int_equal(response(STR("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")), HTTP_DONE);
    assert_int_equal(head.status, 200);
    CHECK_STR(head.reason, STR("OK"));
    assert_int_equal(head.framing, HTTP_LENGTH);
    assert_true(head.keep_alive);
    assert_int_equal(response(STR("HTTP/1.0 200 OK\r\n\r\n")), HTTP_DONE);
    assert_int_equal(head.framing, HTTP_UNTIL_CLOSE);
    assert_false(head.keep_alive);
    assert_int_equal(response(STR("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n")), HTTP_DONE);
    assert_false(head.keep_alive);
    assert_int_equal(response(STR("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n")), HTTP_DONE);
    assert_int_equal(head.framing, HTTP_NO_BODY);
    assert_int_equal(response(STR("HTTP/1.1 304 \r\n\r\n")), HTTP_DONE);
    assert_int_equal(head.framing, HTTP_NO_BODY);
    assert_int_equal(response(STR("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")),
                     HTTP_DONE);
    assert_true(head.upgrade);
    assert_int_equal(response(STR("HTTP/1.1 200\r\n\r\n")), HTTP_DONE);
    CHECK_STR(head.reason, STR(""));
    struct str to_head = STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_int_equal(http_parse_response(to_head, true, &head, &used, &err), HTTP_DONE);
    assert_int_equal(head.framing, HTTP_NO_BODY);
}

static void malformed_responses_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "HTTP/1.1 200 OK\nA: b\n\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 O\001K\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: +5\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (response(str_from(bad[i])) != HTTP_BAD)
            fail_msg("accepted: %s", bad[i]);
}

/* ---- chunks ---- */

/* The body that `text` carries, in pieces of `step` bytes; what is left over goes to *out_rest. */
static enum http_parse unchunk(struct str text, size_t step, struct buf *body, size_t *out_rest)
{
    struct http_chunks chunks = { 0 };
    enum http_parse got = HTTP_MORE;

    while (text.len && got == HTTP_MORE) {
        struct str part = str_of(text.at, MIN(step, text.len)), data;
        size_t before = part.len;
        do {
            got = http_chunks_next(&chunks, &part, &data, &err);
            if (got != HTTP_BAD)
                buf_add(body, data);
        } while (got == HTTP_MORE && part.len);
        text = str_of(text.at + (before - part.len), text.len - (before - part.len));
    }
    *out_rest = text.len;
    return got;
}

static void chunks_are_joined_however_they_arrive(void **state)
{
    (void)state;
    struct str text =
        STR("5\r\nhello\r\n0000000000000001; a=\"b\"\r\n \r\nA\r\n0123456789\r\n0;last\r\nX-Sum: 1\r\nB:\r\n\r\nrest");
    for (size_t step = 1; step <= text.len; step++) {
        auto_buf struct buf body = buf_make(NULL, 1000);
        size_t rest;
        assert_int_equal(unchunk(text, step, &body, &rest), HTTP_DONE);
        CHECK_STR(buf_str(&body), STR("hello 0123456789"));
        assert_int_equal(rest, 4);
    }
}

static void a_body_ends_where_its_head_said(void **state)
{
    static const struct {
        enum http_framing framing;
        uint64_t length;
        const char *in, *data, *rest;
        enum http_parse want;
    } cases[] = {
        { HTTP_NO_BODY, 7, "next", "", "next", HTTP_DONE }, /* an answer to HEAD has a length and no body */
        { HTTP_LENGTH, 0, "next", "", "next", HTTP_DONE },
        { HTTP_LENGTH, 4, "bodynext", "body", "next", HTTP_DONE },
        { HTTP_LENGTH, 9, "body", "body", "", HTTP_MORE },
        { HTTP_LENGTH, 4, "", "", "", HTTP_MORE },
        { HTTP_CHUNKED, 0, "4\r\nbody\r\n", "body", "\r\n", HTTP_MORE },
        { HTTP_CHUNKED, 0, "0\r\n\r\nnext", "", "next", HTTP_DONE },
        { HTTP_CHUNKED, 0, "x\r\n", "", NULL, HTTP_BAD },
        { HTTP_UNTIL_CLOSE, 0, "body", "body", "", HTTP_MORE },
        { HTTP_UNTIL_CLOSE, 0, "", "", "", HTTP_MORE },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct http_head told = { .framing = cases[i].framing, .length = cases[i].length };
        struct http_body body = http_body_of(&told);
        struct str in = str_from(cases[i].in), data = STR("");
        assert_int_equal(http_body_next(&body, &in, &data, &err), cases[i].want);
        if (cases[i].want == HTTP_BAD)
            continue;
        CHECK_STR(data, str_from(cases[i].data));
        CHECK_STR(in, str_from(cases[i].rest));
    }
}

static void malformed_chunks_are_refused(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR_INIT("\r\nhello\r\n"),
        STR_INIT("5\nhello\r\n0\r\n\r\n"),
        STR_INIT("5\r\nhello\n0\r\n\r\n"),
        STR_INIT("5\r\nhello0\r\n\r\n"),
        STR_INIT("5\r\nhelloo\r\n0\r\n\r\n"),
        STR_INIT("0x5\r\nhello\r\n"),
        STR_INIT("+5\r\nhello\r\n"),
        STR_INIT("-5\r\n"),
        STR_INIT(" 5\r\nhello\r\n"),
        STR_INIT("5 \r\nhello\r\n"),
        STR_INIT("5 5\r\nhello\r\n"),
        STR_INIT("g\r\n"),
        STR_INIT("8000000000000000\r\n"),
        STR_INIT("10000000000000005\r\nhello\r\n"), /* 5, after wrapping around */
        STR_INIT("5;a\nb\r\nhello\r\n"),
        STR_INIT("5;a\0\r\nhello\r\n"),
        STR_INIT("5\r\rhello\r\n"),
        STR_INIT("0\r\n\n"),
        STR_INIT("0\n\n"),
        STR_INIT("0\r\n\rX"),
        STR_INIT("0\r\nA: b\n\r\n"),
        STR_INIT("0\r\n A: b\r\n\r\n"),
        STR_INIT("0\r\nA : b\r\n\r\n"),
        STR_INIT("0\r\n: b\r\n\r\n"),
        STR_INIT("0\r\nA: b\0\r\n\r\n"),
        STR_INIT("0\r\nA: b\rc\r\n\r\n"),
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        for (size_t step = 1; step <= bad[i].len; step++) {
            auto_buf struct buf body = buf_make(NULL, 1000);
            size_t rest;
            if (unchunk(bad[i], step, &body, &rest) != HTTP_BAD)
                fail_msg("accepted: %.*s", STR_ARG(bad[i]));
        }
    }
}

static void long_chunk_lines_and_trailers_are_refused(void **state)
{
    size_t rest;

    (void)state;
    auto_buf struct buf text = buf_make(NULL, 1 << 20), body = buf_make(NULL, 100);
    buf_add(&text, STR("1;"));
    while (text.len < LIMIT_CHUNK_LINE_BYTES)
        buf_add_char(&text, 'e');
    assert_int_equal(unchunk(buf_str(&text), 100, &body, &rest), HTTP_MORE);
    buf_add_char(&text, 'e');
    assert_int_equal(unchunk(buf_str(&text), 100, &body, &rest), HTTP_BAD);
    assert_int_equal(err.kind, ERR_LIMIT);
    /* Zeros in front do not make a size too large, but its line too long. */
    buf_clear(&text);
    while (text.len <= LIMIT_CHUNK_LINE_BYTES)
        buf_add_char(&text, '0');
    assert_int_equal(unchunk(buf_str(&text), 100, &body, &rest), HTTP_BAD);
    buf_clear(&text);
    buf_add(&text, STR("0\r\n"));
    while (text.len < LIMIT_HEAD_BYTES + 10)
        buf_add(&text, STR("a: b\r\n"));
    assert_int_equal(unchunk(buf_str(&text), 100, &body, &rest), HTTP_BAD);
    assert_int_equal(err.kind, ERR_LIMIT);
}

/* ---- writing ---- */

static void a_written_head_is_read_back(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    http_write_request_line(&out, STR("PUT"), STR("/a?b"));
    http_write_header(&out, STR("Host"), STR("x"));
    http_write_header_number(&out, STR("Content-Length"), UINT64_C(12345678901));
    http_write_head_end(&out);
    assert_false(out.overflowed);
    assert_int_equal(request(buf_str(&out)), HTTP_DONE);
    assert_int_equal(head.length, UINT64_C(12345678901));
    buf_clear(&out);
    http_write_status_line(&out, 404);
    http_write_head_end(&out);
    CHECK_STR(buf_str(&out), STR("HTTP/1.1 404 Not Found\r\n\r\n"));
}

static void nothing_can_be_injected_into_a_head(void **state)
{
    (void)state;
    static const struct str bad[][2] = {
        { STR_INIT("A"), STR_INIT("b\r\nC: d") }, { STR_INIT("A"), STR_INIT("b\nc") },
        { STR_INIT("A"), STR_INIT("b\0c") },      { STR_INIT("A"), STR_INIT("b\rc") },
        { STR_INIT("A\r\nB"), STR_INIT("c") },    { STR_INIT("A:"), STR_INIT("b") },
        { STR_INIT(""), STR_INIT("b") },          { STR_INIT("A b"), STR_INIT("c") },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        auto_buf struct buf out = buf_make(NULL, 1000);
        http_write_header(&out, bad[i][0], bad[i][1]);
        assert_true(out.overflowed);
    }
    static const struct str targets[] = { STR_INIT("/a b"), STR_INIT("/a\r\nB: c"), STR_INIT(""), STR_INIT("/\0") };
    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        auto_buf struct buf out = buf_make(NULL, 1000);
        http_write_request_line(&out, STR("GET"), targets[i]);
        assert_true(out.overflowed);
    }
}

static void a_head_moves_with_its_bytes(void **state)
{
    char copy[200];

    (void)state;
    static const char text[] = "GET /p?q HTTP/1.1\r\nHost: x\r\nEmpty:\r\n\r\n";
    size_t used;
    char *old = malloc(sizeof text);
    memcpy(old, text, sizeof text);
    assert_int_equal(http_parse_request(str_of(old, sizeof text - 1), &head, &used, &err), HTTP_DONE);
    memcpy(copy, old, used);
    http_head_move(&head, old, copy);
    free(old);
    CHECK_STR(head.path, STR("/p"));
    CHECK_STR(head.query, STR("q"));
    CHECK_STR(*http_header(&head, STR("host")), STR("x"));
    CHECK_STR(*http_header(&head, STR("empty")), STR(""));
}

static void a_chunk_line_is_hexadecimal(void **state)
{
    char room[HTTP_CHUNK_LINE_BYTES];

    (void)state;
    CHECK_STR(str_of(room, http_chunk_line(0x1a2b, room)), STR("1a2b\r\n"));
    assert_int_equal(http_chunk_line(UINT64_MAX, room), 18);
}

static void queries_are_walked_raw(void **state)
{
    struct str rest = STR("a=1&&b&c=x%3Dy=z&"), name, value;

    (void)state;
    assert_true(http_query_next(&rest, &name, &value));
    CHECK_STR(name, STR("a"));
    CHECK_STR(value, STR("1"));
    assert_true(http_query_next(&rest, &name, &value));
    CHECK_STR(name, STR("b"));
    CHECK_STR(value, STR(""));
    assert_true(http_query_next(&rest, &name, &value));
    CHECK_STR(name, STR("c"));
    CHECK_STR(value, STR("x%3Dy=z"));
    assert_false(http_query_next(&rest, &name, &value));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_request_is_taken_apart),
        CASE(methods_are_told_apart_by_case),
        CASE(empty_lines_before_a_request_are_skipped),
        CASE(bytes_after_a_head_are_not_part_of_it),
        CASE(every_part_of_a_head_asks_for_more),
        CASE(other_protocols_are_refused_before_their_first_line_ends),
        CASE(lengths_that_could_be_read_in_two_ways_are_refused),
        CASE(codings_that_could_be_read_in_two_ways_are_refused),
        CASE(malformed_headers_are_refused),
        CASE(malformed_request_lines_are_refused),
        CASE(a_host_must_be_there_once_and_be_one),
        CASE(keep_alive_follows_version_and_connection),
        CASE(expectations_are_known_or_refused),
        CASE(heads_are_taken_up_to_the_cap_and_not_past_it),
        CASE(targets_are_taken_up_to_the_cap_and_not_past_it),
        CASE(headers_are_counted),
        CASE(a_response_is_framed_by_its_status_and_headers),
        CASE(malformed_responses_are_refused),
        CASE(chunks_are_joined_however_they_arrive),
        CASE(a_body_ends_where_its_head_said),
        CASE(malformed_chunks_are_refused),
        CASE(long_chunk_lines_and_trailers_are_refused),
        CASE(a_written_head_is_read_back),
        CASE(nothing_can_be_injected_into_a_head),
        CASE(a_head_moves_with_its_bytes),
        CASE(a_chunk_line_is_hexadecimal),
        CASE(queries_are_walked_raw),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
