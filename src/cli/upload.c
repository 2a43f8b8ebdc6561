/*
 * One PUT on a loop. The file is read a piece at a time, whenever the connection has room; so a server that is slow to write
 * makes us wait, and memory stays small. The answer may come early: a refusal ends the upload.
 */
#include "cli/upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "http/http.h"
#include "io/dial.h"
#include "io/loop.h"

enum {
    PIECE_BYTES = 256 * 1024,
    UPLOAD_IDLE_MS = 10 * 60 * 1000, /* the server lets uploads wait for their turn */
    TERMINAL_MS = 100,               /* between two looks of the progress line… */
    LINES_MS = 10000,                /* …and between lines of a log */
    ANSWER_BYTES = 64 * 1024,
};

struct upload {
    struct client *client;
    const struct upload_source *source;
    struct loop *loop;
    struct http_call *call;
    struct timer idle;
    char *piece;
    uint64_t sent;
    bool is_all_written, is_terminal, has_line;
    uint64_t said_ms;
    unsigned status; /* 0: no answer yet */
    struct buf answer;
    bool failed;
    struct err err;
};

/* ---- progress ---- */

static void say(struct upload *upload, bool is_over)
{
    struct cli *cli = upload->client->cli;
    uint64_t now_ms = clock_mono_ms();

    if (!is_over && now_ms < upload->said_ms + (upload->is_terminal ? TERMINAL_MS : LINES_MS))
        return;
    if (is_over && !upload->is_terminal && !upload->has_line)
        return; /* it was quick */
    upload->said_ms = now_ms;
    upload->has_line = true;
    struct str sent = text_bytes(&cli->arena, upload->sent), all = text_bytes(&cli->arena, upload->source->size);
    if (is_over && upload->is_terminal)
        fputs("\r\033[K", cli->note);
    else
        fprintf(cli->note, "%sUploading: %.*s of %.*s%s", upload->is_terminal ? "\r\033[K" : "", STR_ARG(sent),
                STR_ARG(all), upload->is_terminal ? "" : "\n");
    (void)fflush(cli->note);
}

/* ---- events ---- */

static void fail(struct upload *upload, const struct err *err)
{
    if (!upload->failed)
        upload->err = *err;
    upload->failed = true;
    loop_stop_soon(upload->loop);
}

static void on_idle(struct timer *timer)
{
    struct upload *upload = container_of(timer, struct upload, idle);
    struct err err;

    (void)err_set(&err, ERR_TIMEOUT, "the server takes no more of the upload");
    fail(upload, &err);
}

static void write_more(struct upload *upload)
{
    struct err err;
    size_t len;

    while (!upload->is_all_written && !upload->status && !http_call_is_full(upload->call)) {
        if (!upload->source->read(upload->source->context, upload->piece, PIECE_BYTES, &len, &err)) {
            fail(upload, &err);
            return;
        }
        http_call_write(upload->call, str_of(upload->piece, len));
        upload->sent += len;
        upload->is_all_written = upload->sent == upload->source->size;
    }
    if (upload->is_all_written)
        http_call_finish(upload->call);
    timer_set(&upload->idle, upload->loop, UPLOAD_IDLE_MS, on_idle);
    say(upload, false);
}

static void on_drained(struct http_call *call)
{
    struct upload *upload = http_call_owner(call);

    if (!upload->is_all_written)
        write_more(upload);
}

static void on_head(struct http_call *call, const struct http_head *head)
{
    struct upload *upload = http_call_owner(call);

    upload->status = head->status;
}

static void on_body(struct http_call *call, struct str piece)
{
    struct upload *upload = http_call_owner(call);

    buf_add(&upload->answer, piece);
}

static void on_end(struct http_call *call)
{
    struct upload *upload = http_call_owner(call);

    loop_stop_soon(upload->loop);
}

static void on_error(struct http_call *call, const struct err *err)
{
    struct upload *upload = http_call_owner(call);

    if (upload->status) /* a refusal that was not read to its end */
        loop_stop_soon(upload->loop);
    else
        fail(upload, err);
}

/* ---- the request ---- */

static bool path_of(struct str link, struct str *out, struct err *err)
{

    if (!str_skip(&link, STR("http://")) && !str_skip(&link, STR("https://")))
        return err_set(err, ERR_INTERNAL, "the server gave no link to upload to");
    const char *slash = link.len ? memchr(link.at, '/', link.len) : NULL;
    if (!slash)
        return err_set(err, ERR_INTERNAL, "the server gave no link to upload to");
    *out = str_of(slash, link.len - (size_t)(slash - link.at));
    return true;
}

static bool run(struct upload *upload, struct str head, struct err *err)
{
    static const struct http_call_events events = {
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_error = on_error,
        .on_drained = on_drained,
    };
    int fd = dial_open(str_from(upload->client->address), err);

    if (fd < 0)
        return false;
    upload->loop = loop_new();
    upload->call = http_call_new(upload->loop, fd, true, head, HTTP_OTHER, HTTP_LENGTH, &events, upload);
    write_more(upload);
    loop_run(upload->loop);
    timer_clear(&upload->idle);
    http_call_free(upload->call);
    loop_free(upload->loop);
    say(upload, true);
    if (upload->failed) {
        *err = upload->err;
        return err_wrap(err, "upload");
    }
    if (upload->status < 200 || upload->status > 299)
        return client_error(upload->client->cli, upload->status, buf_str(&upload->answer), err);
    return true;
}

bool upload_send(struct client *client, struct str link, const struct upload_source *source, struct err *err)
{
    struct buf head = buf_make(&client->cli->arena, LIMIT_HEAD_BYTES);
    auto_free char *piece = mem_new(PIECE_BYTES);
    struct upload upload = { .client = client,
                             .source = source,
                             .piece = piece,
                             .is_terminal = isatty(fileno(client->cli->note)),
                             .said_ms = clock_mono_ms(),
                             .answer = buf_make(&client->cli->arena, ANSWER_BYTES) };
    struct str target;

    if (!path_of(link, &target, err))
        return false;
    http_write_request_line(&head, STR("PUT"), target);
    http_write_header(&head, STR("Host"), str_from(client->address));
    http_write_header(&head, STR("Connection"), STR("close"));
    http_write_header_number(&head, STR("Content-Length"), source->size);
    http_write_head_end(&head);
    if (head.overflowed)
        return err_set(err, ERR_INTERNAL, "the server gave a link that cannot be used");
    return run(&upload, buf_str(&head), err);
}
