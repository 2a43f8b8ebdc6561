/*
 * WebSockets of LobsterMail's dialect, by a client that writes its own frames.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mail_served.h"
#include "wire/websocket.h"

#define OTHER_INBOX "01JMXK9F2A0000000000000002"
#define HANDSHAKE                                                                    \
    "GET /v1/ws?token=" KEY_LOBSTER " HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n" \
    "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

struct client {
    int fd;
    char room[1 << 16];
    size_t len;
    char text[1 << 15]; /* the last message */
    unsigned kind, status;
};

static void client_open(struct client *c, struct mail_served *s)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    char *colon = strchr(s->address, ':');

    *c = (struct client){ 0 };
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons((uint16_t)atoi(colon + 1));
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&at, sizeof at), 0);
}

/* False: the other side has closed. */
static bool more(struct client *c)
{
    struct pollfd ready = { .fd = c->fd, .events = POLLIN };

    if (poll(&ready, 1, 20000) != 1)
        fail_msg("nothing came; so far '%.*s'", (int)c->len, c->room);
    ssize_t got = recv(c->fd, c->room + c->len, sizeof c->room - c->len, 0);
    if (got <= 0)
        return false;
    c->len += (size_t)got;
    return true;
}

static void drop_front(struct client *c, size_t size)
{
    memmove(c->room, c->room + size, c->len - size);
    c->len -= size;
}

static const char *head_of(struct client *c)
{
    while (!memmem(c->room, c->len, "\r\n\r\n", 4))
        assert_true(more(c));
    size_t size = (size_t)((char *)memmem(c->room, c->len, "\r\n\r\n", 4) - c->room) + 4;
    memcpy(c->text, c->room, size);
    c->text[size] = '\0';
    drop_front(c, size);
    return c->text;
}

static void send_bytes(struct client *c, struct str bytes)
{
    assert_int_equal(send(c->fd, bytes.at, bytes.len, MSG_NOSIGNAL), (ssize_t)bytes.len);
}

static void send_frame(struct client *c, unsigned kind, struct str text)
{
    struct buf out = buf_make(NULL, 1 << 16);

    buf_add_char(&out, (char)(0x80 | kind));
    if (text.len < 126) {
        buf_add_char(&out, (char)(0x80 | text.len));
    } else {
        buf_add_char(&out, (char)(0x80 | 126));
        buf_add_char(&out, (char)(text.len >> 8));
        buf_add_char(&out, (char)text.len);
    }
    buf_add(&out, STR("\0\0\0\0"));
    buf_add(&out, text);
    send_bytes(c, buf_str(&out));
    buf_done(&out);
}

static void say(struct client *c, const char *text)
{
    send_frame(c, WEBSOCKET_TEXT, str_from(text));
}

/* The next message; "" when the other side has closed. Pings are left out. */
static const char *hear(struct client *c)
{
    for (;;) {
        const unsigned char *at = (const unsigned char *)c->room;
        size_t head = c->len < 2 ? 2 : (at[1] == 126 ? 4 : 2);
        size_t size = c->len < head ? 0 : head == 4 ? (size_t)at[2] << 8 | at[3] : at[1];
        if (c->len < head || c->len < head + size) {
            if (!more(c)) {
                c->text[0] = '\0';
                c->kind = 0;
                return c->text;
            }
            continue;
        }
        c->kind = at[0] & 0x0f;
        c->status = c->kind == WEBSOCKET_CLOSE && size >= 2 ? (unsigned)at[head] << 8 | at[head + 1] : 0;
        memcpy(c->text, c->room + head, size);
        c->text[size] = '\0';
        drop_front(c, head + size);
        if (c->kind != WEBSOCKET_PING)
            return c->text;
    }
}

static void hears(struct client *c, const char *part)
{
    const char *text = hear(c);

    if (!strstr(text, part))
        fail_msg("'%s' has no '%s'", text, part);
}

static void closed_with(struct client *c, unsigned status)
{
    (void)hear(c);
    assert_int_equal(c->kind, WEBSOCKET_CLOSE);
    assert_int_equal(c->status, status);
    close(c->fd);
}

static void join(struct client *c, struct mail_served *s)
{
    client_open(c, s);
    send_bytes(c, STR(HANDSHAKE));
    if (!strstr(head_of(c), "101 ") || !strstr(c->text, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
        fail_msg("%s", c->text);
    hears(c, "{\"type\":\"authenticated\"}");
}

struct told {
    struct loop_task task;
    struct mail_served *s;
    struct mail_event event;
    unsigned times;
    _Atomic bool done;
};

static void tell_now(struct loop_task *task)
{
    struct told *told = container_of(task, struct told, task);

    for (unsigned i = 0; i < told->times; i++)
        mail_api_heard(told->s->api, &told->event);
    told->done = true;
}

static void tell(struct mail_served *s, enum mail_event_kind kind, const char *inbox_id, unsigned times)
{
    struct told told = {
        .task.fn = tell_now, .s = s, .event = { .kind = kind, .at_us = 1700000000000000 }, .times = times
    };

    strcpy(told.event.inbox_id, inbox_id);
    strcpy(told.event.message_id, FAKE_MESSAGE);
    loop_post(s->rig.loop, &told.task);
    while (!told.done)
        usleep(100);
}

#define SUBSCRIBE "{\"type\":\"subscribe\",\"id\":\"req_1\",\"inbox_ids\":[\"ibx_" FAKE_INBOX "\"]}"

static void a_subscriber_gets_the_whole_message_without_its_text(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    fake.direction = MAIL_INBOUND;
    join(&c, s);
    say(&c, SUBSCRIBE);
    hears(&c, "{\"type\":\"subscribed\",\"id\":\"req_1\",\"inbox_ids\":[\"ibx_" FAKE_INBOX "\"]}");
    tell(s, MAIL_EVENT_RECEIVED, OTHER_INBOX, 1); /* not heard */
    tell(s, MAIL_EVENT_RECEIVED, FAKE_INBOX, 1);
    hears(&c,
          "\"event_type\":\"email.received\",\"inbox_id\":\"ibx_" FAKE_INBOX "\",\"timestamp\":\"2023-11-14T22:13:20");
    assert_non_null(strstr(c.text, "\"data\":{\"id\":\"eml_" FAKE_MESSAGE "\""));
    assert_non_null(strstr(c.text, "\"body\":null"));
    assert_non_null(strstr(fake.said, "read " FAKE_INBOX " " FAKE_MESSAGE " want=0"));
    /* Twice is once. */
    say(&c, SUBSCRIBE);
    hears(&c, "subscribed");
    tell(s, MAIL_EVENT_SENT, FAKE_INBOX, 1);
    hears(&c, "email.sent");
    say(&c, "{\"type\":\"ping\"}");
    hears(&c, "{\"type\":\"pong\"}");
    say(&c, "{\"type\":\"unsubscribe\",\"id\":\"req_2\",\"inbox_ids\":[\"" FAKE_INBOX "\"]}");
    hears(&c, "unsubscribed");
    tell(s, MAIL_EVENT_RECEIVED, FAKE_INBOX, 1);
    say(&c, "{\"type\":\"ping\"}");
    hears(&c, "{\"type\":\"pong\"}");
    send_frame(&c, WEBSOCKET_CLOSE, STR("\x03\xe8"));
    closed_with(&c, WEBSOCKET_NORMAL);
}

static void what_the_caller_may_not_read_is_no_event(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    join(&c, s);
    say(&c, SUBSCRIBE);
    hears(&c, "subscribed");
    fake.fail = (struct err){ .kind = ERR_NOT_FOUND, .message = "no such message" };
    tell(s, MAIL_EVENT_RECEIVED, FAKE_INBOX, 1);
    say(&c, "{\"type\":\"subscribe\",\"id\":\"req_3\",\"inbox_ids\":[\"ibx_" OTHER_INBOX "\"]}");
    hears(&c, "{\"type\":\"error\",\"id\":\"req_3\",\"code\":\"not_found\",\"message\":\"no such message\"}");
    hears(&c, "{\"type\":\"subscribed\",\"id\":\"req_3\",\"inbox_ids\":[]}");
    close(c.fd);
}

static void a_message_of_the_wrong_shape_is_an_error_and_no_end(void **state)
{
    static const char *const wrong[] = {
        "x",
        "[]",
        "{}",
        "{\"type\":7}",
        "{\"type\":\"dance\"}",
        "{\"type\":\"subscribe\"}",
        "{\"type\":\"subscribe\",\"inbox_ids\":7}",
        "{\"type\":\"subscribe\",\"inbox_ids\":[7]}",
        "{\"type\":\"subscribe\",\"inbox_ids\":[\"ibx_1\"]}",
        "{\"type\":\"subscribe\",\"inbox_ids\":[\"\"]}",
        ("{\"type\":\"subscribe\",\"inbox_ids\":[],"
         "\"id\":\"0123456789012345678901234567890123456789012345678901234567890123\"}"),
    };
    struct mail_served *s = *state;
    struct client c;

    join(&c, s);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        say(&c, wrong[i]);
        hears(&c, "\"code\":\"invalid_request\"");
    }
    say(&c, "{\"type\":\"pong\"}");
    send_frame(&c, WEBSOCKET_PING, STR("abc"));
    hears(&c, "abc");
    assert_int_equal(c.kind, WEBSOCKET_PONG);
    close(c.fd);
}

static void what_breaks_the_protocol_ends_the_socket(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    join(&c, s);
    send_bytes(&c, STR("\x81\x01x")); /* without a mask */
    closed_with(&c, WEBSOCKET_BROKEN);
    join(&c, s);
    send_frame(&c, WEBSOCKET_BINARY, STR("x"));
    closed_with(&c, WEBSOCKET_UNSUPPORTED);
    join(&c, s);
    send_bytes(&c, STR("\x81\xfe\xff\xff"));
    closed_with(&c, WEBSOCKET_TOO_BIG);
    join(&c, s);
    for (int i = 0; i <= LIMIT_MAIL_SOCKET_MESSAGES; i++)
        say(&c, "{\"type\":\"pong\"}");
    closed_with(&c, WEBSOCKET_POLICY);
}

static void a_handshake_that_is_none_is_refused(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    assert_int_equal(mail_ask(s, "GET", "/v1/ws", KEY_LOBSTER, NULL), 426);
    assert_string_equal(mail_text(s, "error"), "upgrade_required");
    assert_int_equal(mail_ask(s, "GET", "/v1/ws?token=lm_sk_live_wrong", NULL, NULL), 401);
    client_open(&c, s);
    send_bytes(&c, STR("GET /v1/ws?token=" KEY_LOBSTER " HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: "
                       "Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n\r\n"));
    assert_non_null(strstr(head_of(&c), "426 "));
    assert_non_null(strstr(c.text, "Sec-WebSocket-Version: 13"));
    close(c.fd);
    client_open(&c, s);
    send_bytes(&c, STR("GET /v1/ws?token=" KEY_LOBSTER " HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: "
                       "Upgrade\r\nSec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n\r\n"));
    assert_non_null(strstr(head_of(&c), "400 "));
    close(c.fd);
}

static void a_key_has_only_so_many(void **state)
{
    static struct client c[LIMIT_MAIL_SOCKETS_EACH], other;
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(c); i++)
        join(&c[i], s);
    client_open(&other, s);
    send_bytes(&other, STR(HANDSHAKE));
    assert_non_null(strstr(head_of(&other), "429 "));
    close(other.fd);
    close(c[0].fd);
    for (int tries = 0;; tries++) { /* until the server has seen that one has gone */
        client_open(&other, s);
        send_bytes(&other, STR(HANDSHAKE));
        if (strstr(head_of(&other), "101 "))
            break;
        close(other.fd);
        assert_true(tries < 1000);
        usleep(1000);
    }
    close(other.fd);
    for (size_t i = 1; i < COUNT_OF(c); i++)
        close(c[i].fd);
}

/* It connects again, and lists. */
static void a_client_that_does_not_keep_up_is_closed(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    join(&c, s);
    say(&c, SUBSCRIBE);
    hears(&c, "subscribed");
    tell(s, MAIL_EVENT_RECEIVED, FAKE_INBOX, LIMIT_MAIL_SOCKET_TASKS + 2); /* in one turn of the loop */
    for (int i = 0; i < 3 && hear(&c) && c.kind != WEBSOCKET_CLOSE;)
        i++; /* the first ones may have left before */
    assert_int_equal(c.kind, WEBSOCKET_CLOSE);
    assert_int_equal(c.status, WEBSOCKET_TRY_LATER);
    close(c.fd);
}

/* While a worker has its task, and when the server ends. */
static void a_client_may_leave_at_any_time(void **state)
{
    struct mail_served *s = *state;
    struct client c;

    for (int i = 0; i < 20; i++) {
        join(&c, s);
        say(&c, SUBSCRIBE);
        if (i % 2)
            hears(&c, "subscribed");
        if (i % 3 == 0)
            tell(s, MAIL_EVENT_RECEIVED, FAKE_INBOX, 5);
        close(c.fd);
    }
    join(&c, s);
    say(&c, SUBSCRIBE);
    hears(&c, "subscribed");
    close(c.fd);
}

static void a_ping_looks_whether_the_client_is_there_and_its_key_is_valid(void **state)
{
    struct mail_served *s = *state;
    struct client c, silent;

    rig_stand();
    join(&c, s);
    join(&silent, s);
    for (int i = 0; i < 4; i++) {
        rig_turn(&s->rig, LIMIT_MAIL_SOCKET_PING_MS + 1);
        hears(&c, "{\"type\":\"ping\"}");
        say(&c, "{\"type\":\"pong\"}");
        say(&c, "{\"type\":\"ping\"}"); /* so that we know that it was read */
        hears(&c, "{\"type\":\"pong\"}");
    }
    for (int i = 0; i < 2; i++)
        hears(&silent, "ping");
    assert_string_equal(hear(&silent), ""); /* cut */
    close(silent.fd);
    fake.no_key_is_valid = true;
    rig_turn(&s->rig, LIMIT_MAIL_SOCKET_PING_MS + 1);
    hears(&c, "{\"type\":\"ping\"}");
    closed_with(&c, 4401);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(a_subscriber_gets_the_whole_message_without_its_text),
        SERVED(what_the_caller_may_not_read_is_no_event),
        SERVED(a_message_of_the_wrong_shape_is_an_error_and_no_end),
        SERVED(what_breaks_the_protocol_ends_the_socket),
        SERVED(a_handshake_that_is_none_is_refused),
        SERVED(a_key_has_only_so_many),
        SERVED(a_client_that_does_not_keep_up_is_closed),
        SERVED(a_client_may_leave_at_any_time),
        SERVED(a_ping_looks_whether_the_client_is_there_and_its_key_is_valid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
