/*
 * http_fuzz.h - a real server on a real loop, fed through a socket: it may answer what it likes, but it must not crash,
 * leak, hang or tell an owner twice that an exchange is gone.
 *
 * The first byte says how the input is cut into writes and how the client leaves; the handlers answer by path.
 */
#ifndef TESTS_FUZZ_HTTP_FUZZ_H
#define TESTS_FUZZ_HTTP_FUZZ_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "http/inside.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { TURNS_MOST = 4000, IDLE_TURNS = 3 };

static struct loop *loop;
static unsigned open_exchanges;
static struct http_exchange *kept;

static void on_body(struct http_exchange *ex, struct str piece)
{
    http_write(ex, piece);
    if (piece.at[0] == 'p')
        http_body_pause(ex, true);
    if (piece.at[0] == 'q')
        http_abort(ex);
}

static void on_body_end(struct http_exchange *ex)
{
    http_end(ex);
}

static void on_drained(struct http_exchange *ex)
{
    http_body_pause(ex, false);
}

static void on_gone(struct http_exchange *ex)
{
    if (open_exchanges-- == 0 || ex->owner != &loop)
        abort();
    ex->owner = NULL;
    if (kept == ex) {
        kept = NULL;
        http_unref(ex);
    }
}

static const struct http_events events = { on_body, on_body_end, on_drained, on_gone };

static void collected(struct http_exchange *ex, struct str body, const struct err *err)
{
    http_reply(ex, err ? 413 : 200, NULL, 0, body);
}

static void on_upgraded_input(struct stream *stream)
{
    stream_write(stream, buf_str(&stream->in));
    buf_drop(&stream->in, stream->in.len);
}

static void on_upgraded_end(struct stream *stream, const struct err *err)
{
    (void)err;
    stream_free(stream);
}

static const struct stream_events upgraded_events = { .on_input = on_upgraded_input, .on_end = on_upgraded_end };

static void on_request(struct http_exchange *ex, void *context)
{
    (void)context;
    open_exchanges++;
    ex->events = &events;
    ex->owner = &loop;
    switch (ex->head.path.len > 1 ? ex->head.path.at[1] : 0) {
    case 'c':
        http_collect(ex, 1000, collected);
        break;
    case 'e':
        http_body_start(ex);
        http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
        break;
    case 'f':
        http_start(ex, 206, NULL, 0, 10);
        http_send_file(ex, open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 0, 10);
        http_end(ex);
        break;
    case 'l':
        http_start(ex, 200, NULL, 0, 10);
        http_write(ex, ex->head.query);
        http_end(ex);
        break;
    case 'a':
        http_abort(ex);
        break;
    case 'k': /* somebody holds on to it */
        if (!kept) {
            kept = ex;
            http_ref(ex);
        }
        http_body_start(ex);
        http_reply(ex, 200, NULL, 0, STR("kept"));
        break;
    case 'u': {
        struct stream *stream = http_upgrade(ex, NULL, 0, &upgraded_events, NULL);
        if (stream) {
            open_exchanges--;
            on_upgraded_input(stream);
        } else {
            http_reply(ex, 400, NULL, 0, STR(""));
        }
        break;
    }
    default: {
        struct http_field field = { STR_INIT("X-Query"), ex->head.query };
        http_reply(ex, 200, &field, 1, ex->head.path);
    }
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    (void)signal(SIGPIPE, SIG_IGN);
    log_setup("fuzz", LOG_LEVEL_COUNT);
    return 0;
}

static void stop(struct timer *timer)
{
    (void)timer;
    loop_stop_soon(loop);
}

static void turn(void)
{
    struct timer timer = { 0 };

    timer_set(&timer, loop, 0, stop);
    loop_run(loop);
    timer_clear(&timer);
}

/* Takes all answers; false once the server has closed. */
static bool listen_to(int fd)
{
    char room[65536];
    ssize_t n;

    while ((n = read(fd, room, sizeof room)) > 0)
        ;
    return n != 0;
}

/* `preface` is sent before the input. */
static void fuzz_server(const struct http_protocol *protocol, struct str preface, const unsigned char *data,
                        size_t size)
{
    int ends[2];

    if (size < 1 || size > 1 << 17)
        return;
    unsigned how = data[0];
    size_t at = 1, step = how & 7 ? (size_t)1 << (2 * (how & 7)) : size;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        abort();
    loop = loop_new();
    struct http_server_config config = { .on_request = on_request };
    struct http_server *server = http_server_new(loop, -1, &config);
    server_adopt(server, ends[1], protocol);
    if (write(ends[0], preface.at, preface.len) != (ssize_t)preface.len)
        abort();

    bool is_open = true;
    for (unsigned turns = 0, idle = 0; is_open && idle < IDLE_TURNS; turns++) {
        if (turns > TURNS_MOST && step > 16)
            abort(); /* it makes no progress */
        ssize_t n = at < size ? write(ends[0], data + at, MIN(step, size - at)) : -1;
        at += n > 0 ? (size_t)n : 0;
        idle = n > 0 ? 0 : idle + 1;
        if (at == size && (how & 8))
            (void)shutdown(ends[0], SHUT_WR);
        turn();
        if (!(how & 16)) /* or it never reads */
            is_open = listen_to(ends[0]);
    }
    (void)close(ends[0]);
    for (int i = 0; i < IDLE_TURNS; i++)
        turn();
    http_server_free(server);
    if (open_exchanges)
        abort();
    loop_free(loop);
}

#endif
