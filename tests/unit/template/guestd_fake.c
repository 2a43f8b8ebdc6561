#include "guestd_fake.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/lock.h"
#include "base/mem.h"
#include "test.h"
#include "wire/connect.h"
#include "wire/http1.h"
#include "wire/json.h"

struct serving {
    struct guestd_fake *fake;
    int fd;
};

static void note(struct guestd_fake *fake, const char *text)
{
    pthread_mutex_lock(&fake->lock);
    if (fake->asked_count < GUESTD_ASKED)
        snprintf(fake->asked[fake->asked_count++], sizeof fake->asked[0], "%s", text);
    pthread_mutex_unlock(&fake->lock);
}

static void describe(struct str user, const json_t *process, struct buf *out)
{
    const json_t *envs = json_object_get(process, "envs"), *cwd = json_object_get(process, "cwd"),
                 *args = json_object_get(process, "args");
    const char *name;
    json_t *value;

    buf_add(out, user);
    buf_format(out, "|%s|", cwd ? json_string_value(cwd) : "");
    json_object_foreach((json_t *)envs, name, value)
    {
        buf_format(out, "%s=%s,", name, json_string_value(value));
    }
    buf_format(out, "|%s", json_string_value(json_array_get(args, 2)));
}

static void say(int fd, struct str bytes)
{
    (void)!send(fd, bytes.at, bytes.len, MSG_NOSIGNAL);
}

static void say_forever(int fd, struct str head, struct str piece)
{
    for (say(fd, head); send(fd, piece.at, piece.len, MSG_NOSIGNAL) > 0;)
        ;
}

static void add_data(struct buf *out, const char *stream, const char *text)
{
    char room[4096];

    if (!text)
        return;
    size_t at = connect_begin(out), len = base64_encode(str_from(text), room);
    buf_format(out, "{\"event\":{\"data\":{\"%s\":\"%.*s\"}}}", stream, (int)len, room);
    connect_end(out, at, 0);
}

/* True: it goes on. */
static bool hang(struct guestd_fake *fake, int fd, const struct guestd_rule *rule)
{
    struct pollfd peer = { .fd = fd, .events = POLLIN };

    while (poll(&peer, 1, 10) == 0) {
        auto_unlock pthread_mutex_t *held = lock_mutex(&fake->lock);
        if (!rule->hangs)
            return true;
    }
    return false;
}

static void answer_start(struct guestd_fake *fake, int fd, const char *command)
{
    auto_buf struct buf out = buf_make(NULL, 1 << 20);
    static struct guestd_rule plain;
    struct guestd_rule *rule = &plain;
    bool hangs;
    int code;

    pthread_mutex_lock(&fake->lock);
    for (struct guestd_rule *at = fake->rules; at && at->has; at++)
        if (strstr(command, at->has)) {
            rule = at;
            break;
        }
    code = rule->fails ? (rule->fails--, 1) : rule->exit_code;
    hangs = rule->hangs;
    pthread_mutex_unlock(&fake->lock);
    buf_add(&out, STR("HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nConnection: close\r\n\r\n"));
    if (rule->refusal) {
        struct str message = str_from(rule->refusal), name;
        (void)str_cut(&message, '\n', &name);
        size_t at = connect_begin(&out);
        buf_format(&out, "{\"error\":{\"code\":\"%.*s\",\"message\":\"%.*s\"}}", STR_ARG(name), STR_ARG(message));
        connect_end(&out, at, CONNECT_END_STREAM);
        say(fd, buf_str(&out));
        return;
    }
    connect_write(&out, 0, STR("{\"event\":{\"start\":{\"pid\":7}}}"));
    add_data(&out, "stdout", rule->out);
    add_data(&out, "stderr", rule->err);
    if (hangs) {
        say(fd, buf_str(&out));
        if (!hang(fake, fd, rule))
            return;
        buf_clear(&out);
    }
    size_t at = connect_begin(&out);
    buf_format(&out, "{\"event\":{\"end\":{%s\"exited\":true,\"status\":\"exit status %d\"}}}",
               code ? "\"exitCode\":1," : "", code);
    connect_end(&out, at, 0);
    connect_write(&out, CONNECT_END_STREAM, STR("{}"));
    say(fd, buf_str(&out));
}

static void *serve(void *context)
{
    struct serving *serving = context;
    struct guestd_fake *fake = serving->fake;
    auto_buf struct buf in = buf_make(NULL, 8 << 20), text = buf_make(NULL, 64 * 1024);
    auto_free struct http_head *head = NEW(struct http_head);
    enum http_parse got = HTTP_MORE;
    size_t used = 0;
    struct err err;

    while (got == HTTP_MORE || in.len < used + head->length) {
        char *room = buf_reserve(&in, 65536);
        ssize_t n = room ? recv(serving->fd, room, 65536, 0) : -1;
        if (n <= 0)
            break;
        buf_grew(&in, (size_t)n);
        got = http_parse_request(buf_str(&in), head, &used, &err);
    }
    if (got == HTTP_DONE && str_eq(head->path, STR("/process.Process/Start"))) {
        struct str body = str_of(in.data + used + CONNECT_HEADER_BYTES, in.len - used - CONNECT_HEADER_BYTES);
        auto_json json_t *message = json_parse_object(body, &err);
        const struct str *auth = http_header(head, STR("authorization"));
        unsigned char name[200];
        size_t len = 0;
        assert_non_null(message);
        if (auth)
            assert_true(base64_decode(str_of(auth->at + 6, auth->len - 6), name, &len));
        describe(str_of(name, len ? len - 1 : 0), json_object_get(message, "process"), &text);
        buf_add_char(&text, '\0');
        note(fake, text.data);
        answer_start(fake, serving->fd, strrchr(text.data, '|') ? text.data : "");
    } else if (got == HTTP_DONE) {
        buf_format(&text, "copy|%.*s|%zu", STR_ARG(head->target), in.len - used);
        buf_add_char(&text, '\0');
        note(fake, text.data);
        if (strstr(text.data, "source=endless"))
            say_forever(serving->fd, STR("HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n"),
                        STR("4\r\nmore\r\n"));
        else if (strstr(text.data, "source=slow")) /* a head that does not end */
            say_forever(serving->fd, STR("HTTP/1.1 100 Continue\r\n\r\n"), STR("HTTP/1.1 100 Continue\r\n\r\n"));
        else
            say(serving->fd, strstr(text.data, "source=bad")
                                 ? STR("HTTP/1.1 400 Bad Request\r\nContent-Length: 54\r\n\r\n"
                                       "{\"code\":400,\"message\":\"source path does not exist: x\"}")
                                 : STR("HTTP/1.1 204 No Content\r\n\r\n"));
    }
    (void)close(serving->fd);
    free(serving);
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake->lock);
    fake->open--;
    pthread_cond_broadcast(&fake->changed); /* nothing of it is used below */
    return NULL;
}

static void *accept_all(void *context)
{
    struct guestd_fake *fake = context;

    for (;;) {
        int fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (fd < 0)
            return NULL;
        struct serving *serving = NEW(struct serving);
        *serving = (struct serving){ fake, fd };
        pthread_mutex_lock(&fake->lock);
        fake->open++;
        pthread_mutex_unlock(&fake->lock);
        assert_int_equal(pthread_create(&thread, NULL, serve, serving), 0);
        pthread_detach(thread);
    }
}

void guestd_fake_make(struct guestd_fake *fake)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;

    *fake = (struct guestd_fake){ .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->changed, NULL);
    assert_int_equal(bind(fake->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fake->listener, 64), 0);
    assert_int_equal(getsockname(fake->listener, (struct sockaddr *)&at, &size), 0);
    fake->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&fake->thread, NULL, accept_all, fake), 0);
}

void guestd_fake_drop(struct guestd_fake *fake)
{
    (void)shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    (void)close(fake->listener);
    pthread_mutex_lock(&fake->lock);
    while (fake->open)
        pthread_cond_wait(&fake->changed, &fake->lock);
    pthread_mutex_unlock(&fake->lock);
    pthread_cond_destroy(&fake->changed);
    pthread_mutex_destroy(&fake->lock);
}

void guestd_fake_go_on(struct guestd_fake *fake, struct guestd_rule *rule)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake->lock);

    rule->hangs = false;
}

unsigned guestd_fake_count(struct guestd_fake *fake, const char *text)
{
    unsigned count = 0;

    pthread_mutex_lock(&fake->lock);
    for (unsigned i = 0; i < fake->asked_count; i++)
        count += strstr(fake->asked[i], text) != NULL;
    pthread_mutex_unlock(&fake->lock);
    return count;
}
