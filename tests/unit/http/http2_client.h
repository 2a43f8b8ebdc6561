/*
 * http2_client.h - a client that speaks HTTP/2 by nghttp2, for tests. It keeps what every stream has brought.
 */
#ifndef TESTS_UNIT_HTTP_HTTP2_CLIENT_H
#define TESTS_UNIT_HTTP_HTTP2_CLIENT_H

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/pump.h"

enum { H2_STREAMS = 1400 };

struct h2_got {
    char status[4];
    unsigned interim;  /* 1xx heads */
    struct buf fields; /* "name: value\n"… of the final head */
    struct buf body;
    bool ended, closed;
    uint32_t code;         /* with closed */
    unsigned empty_frames; /* DATA without bytes and without END_STREAM */
};

struct h2_client {
    int fd;
    nghttp2_session *session;
    struct h2_got got[H2_STREAMS];
    bool went_away, ended, was_reset;
    uint32_t away_code;
    int32_t away_last;
    unsigned pongs;
    bool keeps_window; /* does not open its windows again */
    bool is_deaf;      /* does not read */
    /* The request body of the stream that has one. */
    struct str body;
    size_t body_sent;
    bool body_waits;   /* more of it may come */
    struct buf unsent; /* what the socket had no room for: how much that is differs between machines */
};

static inline struct h2_got *h2_got(struct h2_client *client, int32_t id)
{
    assert_true(id > 0 && id / 2 < H2_STREAMS);
    return &client->got[id / 2];
}

static inline int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                               size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *user_data)
{
    struct h2_got *got = h2_got(user_data, frame->hd.stream_id);
    struct str n = str_of(name, name_len), v = str_of(value, value_len);

    (void)session;
    (void)flags;
    if (!str_eq(n, STR(":status"))) {
        buf_format(&got->fields, "%.*s: %.*s\n", STR_ARG(n), STR_ARG(v));
    } else if (str_starts(v, STR("1"))) {
        got->interim++;
    } else {
        assert_int_equal(v.len, 3);
        memcpy(got->status, v.at, 3);
    }
    return 0;
}

static inline int h2_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                             void *user_data)
{
    struct h2_client *client = user_data;

    (void)flags;
    buf_add(&h2_got(client, id)->body, str_of(data, len));
    return client->keeps_window ? 0 : nghttp2_session_consume(session, id, len);
}

static inline int h2_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct h2_client *client = user_data;
    bool is_end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;

    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_DATA:
        if (frame->hd.length == 0 && !is_end)
            h2_got(client, frame->hd.stream_id)->empty_frames++;
        h2_got(client, frame->hd.stream_id)->ended |= is_end;
        break;
    case NGHTTP2_HEADERS:
        h2_got(client, frame->hd.stream_id)->ended |= is_end;
        break;
    case NGHTTP2_GOAWAY:
        client->went_away = true;
        client->away_code = frame->goaway.error_code;
        client->away_last = frame->goaway.last_stream_id;
        break;
    case NGHTTP2_PING:
        client->pongs++;
        break;
    default:
        break;
    }
    return 0;
}

static inline int h2_on_close(nghttp2_session *session, int32_t id, uint32_t code, void *user_data)
{
    struct h2_got *got = h2_got(user_data, id);

    (void)session;
    got->closed = true;
    got->code = code;
    return 0;
}

static inline struct h2_client *h2_client_new(int fd)
{
    struct h2_client *client = calloc(1, sizeof *client);
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;

    client->fd = fd;
    client->unsent = buf_make(NULL, SIZE_MAX / 4);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)); /* a clock that stands ends no delay */
    for (int i = 0; i < H2_STREAMS; i++) {
        client->got[i].fields = buf_make(NULL, SIZE_MAX / 4);
        client->got[i].body = buf_make(NULL, SIZE_MAX / 4);
    }
    assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
    assert_int_equal(nghttp2_option_new(&option), 0);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, h2_on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, h2_on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, h2_on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, h2_on_close);
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_http_messaging(option, 1);                  /* it must be able to send nonsense… */
    nghttp2_option_set_max_send_header_block_length(option, 1 << 20); /* …and much of it */
    assert_int_equal(nghttp2_session_client_new2(&client->session, callbacks, client, option), 0);
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    assert_int_equal(nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, NULL, 0), 0);
    return client;
}

static inline void h2_client_free(struct h2_client *client)
{
    if (!client)
        return;
    nghttp2_session_del(client->session);
    for (int i = 0; i < H2_STREAMS; i++) {
        buf_done(&client->got[i].fields);
        buf_done(&client->got[i].body);
    }
    buf_done(&client->unsent);
    if (client->fd >= 0)
        close(client->fd);
    free(client);
}

static inline void h2_flush(struct h2_client *client)
{
    while (client->unsent.len && !client->was_reset) {
        ssize_t n = write(client->fd, client->unsent.data, client->unsent.len);
        if (n < 0 && errno == EAGAIN)
            return; /* the next turn goes on, once the server has read */
        if (n < 0)
            client->was_reset = true;
        else
            buf_drop(&client->unsent, (size_t)n);
    }
}

static inline void h2_send_all(struct h2_client *client, struct str bytes)
{
    buf_add(&client->unsent, bytes);
    h2_flush(client);
}

/* Send what there is to send, take what is there. True, so that it can stand in a condition. */
static inline bool h2_turn(struct h2_client *client)
{
    const uint8_t *bytes;
    uint8_t room[65536];
    ssize_t n;

    h2_flush(client);
    while (!client->was_reset && !client->unsent.len && (n = nghttp2_session_mem_send(client->session, &bytes)) > 0)
        h2_send_all(client, str_of(bytes, (size_t)n));
    while (!client->is_deaf && !client->ended && !client->was_reset) {
        n = read(client->fd, room, sizeof room);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            client->was_reset = true;
        else if (n == 0)
            client->ended = true;
        else
            assert_int_equal(nghttp2_session_mem_recv(client->session, room, (size_t)n), n);
    }
    return true;
}

static inline ssize_t h2_read_body(nghttp2_session *session, int32_t id, uint8_t *room, size_t len, uint32_t *flags,
                                   nghttp2_data_source *source, void *user_data)
{
    struct h2_client *client = user_data;
    size_t n = MIN(len, client->body.len - client->body_sent);

    (void)session;
    (void)id;
    (void)source;
    if (n == 0 && client->body_waits)
        return NGHTTP2_ERR_DEFERRED;
    memcpy(room, client->body.at + client->body_sent, n);
    client->body_sent += n;
    if (client->body_sent == client->body.len && !client->body_waits)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)n;
}

static inline nghttp2_nv h2_pair(const char *name, const char *value)
{
    return (nghttp2_nv){ (uint8_t *)name, (uint8_t *)value, strlen(name), strlen(value), NGHTTP2_NV_FLAG_NONE };
}

/* A request with these fields, and with client->body if has_body. */
static inline int32_t h2_ask_with(struct h2_client *client, const nghttp2_nv *pairs, size_t count, bool has_body)
{
    nghttp2_data_provider provider = { .read_callback = h2_read_body };
    int32_t id = nghttp2_submit_request(client->session, NULL, pairs, count, has_body ? &provider : NULL, NULL);

    assert_true(id > 0);
    client->body_sent = 0;
    return id;
}

static inline int32_t h2_ask(struct h2_client *client, const char *method, const char *path, bool has_body)
{
    const nghttp2_nv pairs[] = {
        h2_pair(":method", method),
        h2_pair(":scheme", "https"),
        h2_pair(":authority", "x"),
        h2_pair(":path", path),
    };

    return h2_ask_with(client, pairs, 4, has_body);
}

static inline int32_t h2_get(struct h2_client *client, const char *path)
{
    return h2_ask(client, "GET", path, false);
}

#endif
