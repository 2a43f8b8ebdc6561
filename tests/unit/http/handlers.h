/*
 * handlers.h - a server for tests of both protocols: it answers by path, and notes what its exchanges told their owner.
 */
#ifndef TESTS_UNIT_HTTP_HANDLERS_H
#define TESTS_UNIT_HTTP_HANDLERS_H

#include <stdlib.h>

#include "base/limits.h"
#include "http/http.h"
#include "io/pump.h"

static struct loop *loop;
static struct http_server *server;
static struct http_server_config config;

static struct http_exchange *current; /* the newest that is not gone */
static bool one_at_a_time;            /* `current` is the only one, as with HTTP/1.1 */
static unsigned requests, gones, body_ends, drains;
static struct buf body;
static bool pauses_body, echoes;
static size_t pumped, pump_size;
static struct err collect_error;

static bool is_at(const struct http_exchange *ex, const char *path)
{
    return str_eq(ex->head.path, str_from(path));
}

static void on_body(struct http_exchange *ex, struct str piece)
{
    if (one_at_a_time)
        assert_ptr_equal(ex, current);
    buf_add(&body, piece);
    if (pauses_body)
        http_body_pause(ex, true);
    if (echoes || is_at(ex, "/echo"))
        http_write(ex, piece);
}

static void on_body_end(struct http_exchange *ex)
{
    body_ends++;
    if (echoes || is_at(ex, "/echo"))
        http_end(ex);
}

static char pump_bytes[50000];

static void pump(struct http_exchange *ex)
{
    while (pumped < pump_size && !http_is_full(ex)) {
        size_t size = MIN(sizeof pump_bytes, pump_size - pumped);
        http_write(ex, str_of(pump_bytes, size));
        pumped += size;
    }
    if (pumped == pump_size)
        http_end(ex);
}

static void on_drained(struct http_exchange *ex)
{
    drains++;
    if (is_at(ex, "/pump"))
        pump(ex);
}

static void on_gone(struct http_exchange *ex)
{
    assert_true(ex->gone);
    gones++;
    if (current == ex)
        current = NULL;
    /* Whatever is called now does nothing. */
    http_reply(ex, 200, NULL, 0, STR("late"));
    http_write(ex, STR("late"));
    http_end(ex);
    http_abort(ex);
    http_body_pause(ex, true);
    assert_false(http_is_full(ex));
}

static const struct http_events events = { on_body, on_body_end, on_drained, on_gone };

static int file_with(const char *text)
{
    char path[] = "/tmp/http_test.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)unlink(path);
    return fd;
}

/* A new request. Its owner is the one above. */
static void take_request(struct http_exchange *ex, void *context)
{
    assert_ptr_equal(context, &requests);
    requests++;
    current = ex;
    ex->events = &events;
}

/* The paths that the tests of both protocols use. A request for /wait is answered later, by the test. */
static void answer_by_path(struct http_exchange *ex, http_collected_fn *collected)
{
    if (is_at(ex, "/path")) {
        http_reply(ex, 200, NULL, 0, ex->head.query);
    } else if (is_at(ex, "/empty")) {
        http_reply(ex, 204, NULL, 0, STR(""));
    } else if (is_at(ex, "/collect")) {
        http_collect(ex, 100000, collected);
    } else if (is_at(ex, "/read")) {
        http_body_start(ex);
    } else if (is_at(ex, "/echo")) {
        http_body_start(ex);
        http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    } else if (is_at(ex, "/stream")) {
        http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
        http_write(ex, STR("first "));
        http_write(ex, STR(""));
        http_write(ex, STR("second"));
        http_end(ex);
    } else if (is_at(ex, "/pump")) {
        http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
        pump(ex);
    } else if (is_at(ex, "/short")) {
        http_start(ex, 200, NULL, 0, 10);
        http_write(ex, STR("123456789"));
        http_end(ex);
    } else if (is_at(ex, "/over")) {
        http_start(ex, 200, NULL, 0, 3);
        http_write(ex, STR("1234"));
    } else if (is_at(ex, "/file")) {
        http_start(ex, 200, NULL, 0, 7);
        http_send_file(ex, file_with("0123456789"), 2, 7);
        http_end(ex);
    } else if (is_at(ex, "/cut-file")) {
        http_start(ex, 200, NULL, 0, 11);
        http_send_file(ex, file_with("0123456789"), 0, 11);
        http_end(ex);
    } else if (is_at(ex, "/inject")) {
        const struct http_field fields[] = { { STR_INIT("X-Name"), STR_INIT("a\r\nSet-Cookie: b") } };
        http_reply(ex, 200, fields, 1, STR("hello"));
    } else {
        assert_true(is_at(ex, "/wait"));
    }
}

static void server_begin(const struct http_server_config *with)
{
    loop = loop_new();
    config = *with;
    server = http_server_new(loop, -1, &config);
    current = NULL;
    requests = gones = body_ends = drains = 0;
    pauses_body = echoes = false;
    pumped = pump_size = 0;
    collect_error.kind = ERR_NONE;
    body = buf_make(NULL, SIZE_MAX / 4);
}

/* With `config` as the test has changed it, and a clock that the pump turns. */
static void server_again(void)
{
    hand_clock_start();
    hand_clock_stand();
    http_server_free(server);
    server = http_server_new(loop, -1, &config);
}

static void server_done(unsigned gones_wanted)
{
    http_server_free(server);
    assert_int_equal(gones, gones_wanted); /* exactly once each */
    loop_free(loop);
    hand_clock_end();
    buf_done(&body);
}

#endif
