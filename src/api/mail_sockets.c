/*
 * One socket is a stream, its subscriptions, and tasks that wait for a worker, one after the other:
 *
 *   subscribe     the worker looks up the inboxes as the caller; then the loop listens to them
 *   unsubscribe   on the loop, but in the same order
 *   event         the worker reads the message as the caller; then the loop sends it
 *   check         the worker only looks whether the key is still valid; with each ping
 *
 * Every task begins with the key: callers are not kept. A client that does not keep up (too many tasks or bytes wait) is
 * closed with "try again later": it connects again and lists what it has missed.
 *
 *   OPEN → CLOSING  our close is on its way, or the answer to the client's; no task runs any more
 *        → GONE     the stream is freed; the rest follows when no worker has the socket
 */
#include "api/mail_sockets.h"

#include <stdio.h>
#include <stdlib.h>

#include "api/mail_lobstermail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/websocket.h"

enum {
    LINGER_MS = 2000, /* for the client to answer our close */
    RETRY_MS = 200,   /* when the lane is full */
    OUT_BYTES = 1 << 20,
    REQUEST_ID_BYTES = 64,
    /* Of our own; those from 4000 on are for applications. */
    STATUS_UNAUTHENTICATED = 4401,
    STATUS_DENIED = 4403,
};

enum task_kind { TASK_SUBSCRIBE, TASK_UNSUBSCRIBE, TASK_EVENT, TASK_CHECK };

struct task {
    struct task *next;
    enum task_kind kind;
    struct mail_event event;
    char request_id[REQUEST_ID_BYTES];
    size_t count;
    char ids[][MAIL_INBOX_ID_BYTES];
};

struct subscription {
    struct mail_listener listener;
    struct socket *socket;
    struct subscription *next;
    char inbox_id[MAIL_INBOX_ID_BYTES];
};

enum socket_state { SOCKET_OPEN, SOCKET_CLOSING, SOCKET_GONE };

struct socket {
    struct mail_sockets *all;
    struct queue_link link;
    enum socket_state state;
    struct stream *stream;
    struct websocket reader;
    struct secret key; /* as the client has sent it; may be empty inside a sandbox */
    char sandbox_id[LIMIT_ID_BYTES];
    char owner[64]; /* whose share of the workers it uses */
    struct subscription *subscriptions;
    size_t subscription_count;
    struct task *first, *last; /* tasks that wait */
    size_t task_count;
    struct timer timer, retry;
    uint64_t heard_ms;  /* the last byte of the client */
    uint64_t second_ms; /* its messages are counted from here */
    unsigned messages;
    bool is_checking; /* a check waits already */
    /* What a worker has: the task, and what it leaves for the loop. */
    struct task *task;
    struct job job;
    struct arena arena;
    struct buf out;         /* frames */
    unsigned close_status;  /* 0: stays open */
    const char *close_text; /* why */
    char (*found)[MAIL_INBOX_ID_BYTES];
    size_t found_count;
};

struct mail_sockets {
    struct mail_sockets_config config;
    struct queue list;
    size_t count;
    struct queue leaving; /* GONE, and a worker has them */
};

struct mail_sockets *mail_sockets_new(const struct mail_sockets_config *config)
{
    struct mail_sockets *sockets = NEW(struct mail_sockets);

    sockets->config = *config;
    return sockets;
}

/* ---- ending ---- */

static void forget_subscriptions(struct socket *socket)
{
    struct subscription *subscription;

    while ((subscription = socket->subscriptions)) {
        socket->subscriptions = subscription->next;
        mail_events_leave(socket->all->config.events, &subscription->listener);
        free(subscription);
    }
    socket->subscription_count = 0;
}

static void forget_tasks(struct socket *socket)
{
    struct task *task;

    while ((task = socket->first)) {
        socket->first = task->next;
        free(task);
    }
    socket->task_count = 0;
}

static void socket_free(void *object)
{
    struct socket *socket = object;

    free(socket->task);
    websocket_done(&socket->reader);
    secret_wipe(&socket->key);
    arena_done(&socket->arena);
    free(socket);
}

/* No callback comes after this but that of a worker, if it has the socket. */
static void let_go(struct socket *socket)
{
    forget_subscriptions(socket);
    forget_tasks(socket);
    timer_clear(&socket->timer);
    timer_clear(&socket->retry);
    stream_free(take_ptr(&socket->stream));
    queue_leave(&socket->link);
    socket->all->count--;
    socket->state = SOCKET_GONE;
}

static void drop(struct socket *socket)
{
    bool is_free = !socket->task;

    if (socket->state == SOCKET_GONE)
        return;
    let_go(socket);
    if (is_free)
        loop_retire(socket->all->config.api->loop, socket, socket_free);
    else
        queue_join(&socket->all->leaving, &socket->link);
}

static void on_linger_over(struct timer *timer)
{
    drop(container_of(timer, struct socket, timer));
}

static void close_socket(struct socket *socket, unsigned status, const char *text)
{
    auto_buf struct buf out = buf_make(NULL, 256);

    if (socket->state != SOCKET_OPEN)
        return;
    socket->state = SOCKET_CLOSING;
    forget_subscriptions(socket);
    forget_tasks(socket);
    timer_clear(&socket->retry);
    websocket_write_close(&out, status, str_from(text));
    stream_write(socket->stream, buf_str(&out));
    stream_finish(socket->stream);
    timer_set(&socket->timer, socket->all->config.api->loop, LINGER_MS, on_linger_over);
}

void mail_sockets_free(struct mail_sockets *sockets)
{
    if (!sockets)
        return;
    for (struct queue_link *link = sockets->list.first, *next; link; link = next) {
        struct socket *socket = container_of(link, struct socket, link);
        next = link->next;
        let_go(socket);
        socket_free(socket); /* the workers are gone: none has it */
    }
    for (struct queue_link *link = sockets->leaving.first, *next; link; link = next) {
        next = link->next;
        socket_free(container_of(link, struct socket, link));
    }
    free(sockets);
}

/* ---- what we say ---- */

static void send_frames(struct socket *socket, struct str frames)
{
    if (socket->state != SOCKET_OPEN || !frames.len)
        return;
    if (stream_queued(socket->stream) > LIMIT_MAIL_SOCKET_BYTES) {
        drop(socket); /* a close would wait behind the rest */
        return;
    }
    stream_write(socket->stream, frames);
}

static struct json_out say_begin(struct buf *text, const char *type)
{
    struct json_out json = json_out_to(text);

    json_out_object(&json, NULL);
    json_out_str(&json, "type", str_from(type));
    return json;
}

static void say_end(struct json_out *json, struct buf *frames)
{
    json_out_end(json);
    if (!json->buf->overflowed)
        websocket_write(frames, WEBSOCKET_TEXT, buf_str(json->buf));
}

static void say_error(struct buf *frames, const char *request_id, const char *code, const char *message)
{
    auto_buf struct buf text = buf_make(NULL, 4096);
    struct json_out json = say_begin(&text, "error");

    if (request_id[0])
        json_out_str(&json, "id", str_from(request_id));
    json_out_str(&json, "code", str_from(code));
    json_out_str(&json, "message", str_from(message));
    say_end(&json, frames);
}

static void say_simple(struct socket *socket, const char *type)
{
    auto_buf struct buf text = buf_make(NULL, 256), frames = buf_make(NULL, 512);
    struct json_out json = say_begin(&text, type);

    say_end(&json, &frames);
    send_frames(socket, buf_str(&frames));
}

static void say_done(struct buf *frames, const char *type, const struct task *task, char (*ids)[MAIL_INBOX_ID_BYTES],
                     size_t count)
{
    auto_buf struct buf text = buf_make(NULL, 64 * 1024);
    struct json_out json = say_begin(&text, type);

    json_out_str(&json, "id", str_from(task->request_id));
    json_out_array(&json, "inbox_ids");
    for (size_t i = 0; i < count; i++)
        lm_id(&json, NULL, LM_INBOX, ids[i]);
    json_out_end(&json);
    say_end(&json, frames);
}

/* ---- on a worker ---- */

static const char *const event_names[MAIL_EVENT_KIND_COUNT] = {
    [MAIL_EVENT_RECEIVED] = "email.received",     [MAIL_EVENT_SENT] = "email.sent",
    [MAIL_EVENT_BOUNCED] = "email.bounced",       [MAIL_EVENT_QUARANTINED] = "email.quarantined",
    [MAIL_EVENT_PENDING] = "oversight.pending",   [MAIL_EVENT_APPROVED] = "oversight.approved",
    [MAIL_EVENT_REJECTED] = "oversight.rejected",
};

/* A message that the caller may not see, or that is gone, is no event. */
static void run_event(struct socket *socket, const struct mail_caller *caller)
{
    const struct mail_event *event = &socket->task->event;
    struct buf text = buf_make(&socket->arena, OUT_BYTES);
    struct mail_message message;
    struct err err;

    if (!action_mail_read(socket->all->config.api->actions, caller, str_from(event->inbox_id),
                          str_from(event->message_id), 0, &socket->arena, &message, &err)) {
        if (err.kind != ERR_NOT_FOUND && err.kind != ERR_DENIED) {
            log_error("mail socket: event of message %s is not told: %s", event->message_id, err_text(&err));
            say_error(&socket->out, "", "server_error", "an event could not be read: list the messages");
        }
        return;
    }
    struct json_out json = say_begin(&text, "event");
    json_out_str(&json, "event_type", str_from(event_names[event->kind]));
    lm_id(&json, "inbox_id", LM_INBOX, event->inbox_id);
    lm_time(&json, "timestamp", event->at_us);
    lm_email(&json, "data", &message, LM_NO_BODY);
    say_end(&json, &socket->out);
}

/* Its own, or one that it has a grant for: then it may list, and each use is in the inbox's audit. */
static bool may_listen(struct socket *socket, const struct mail_caller *caller, const char *inbox_id, struct err *err)
{
    const struct actions *actions = socket->all->config.api->actions;
    const struct mail_filter newest = {
        .inbound = true, .in_status = -1, .state = -1, .has_attachments = -1, .limit = 1
    };
    struct inbox_info inbox;
    struct mail_page page;

    if (action_inbox_get(actions, caller, str_from(inbox_id), &socket->arena, &inbox, err))
        return true;
    return err->kind == ERR_NOT_FOUND &&
           action_mail_list(actions, caller, str_from(inbox_id), &newest, &socket->arena, &page, err);
}

static void run_subscribe(struct socket *socket, const struct mail_caller *caller)
{
    const struct task *task = socket->task;
    struct err err;

    socket->found = arena_alloc_array(&socket->arena, task->count + 1, sizeof *socket->found);
    for (size_t i = 0; i < task->count; i++) {
        if (may_listen(socket, caller, task->ids[i], &err))
            memcpy(socket->found[socket->found_count++], task->ids[i], sizeof task->ids[i]);
        else if (err.kind == ERR_NOT_FOUND || err.kind == ERR_DENIED || err.kind == ERR_CONFLICT)
            say_error(&socket->out, task->request_id, err.kind == ERR_CONFLICT ? "conflict" : "not_found", err.message);
        else
            say_error(&socket->out, task->request_id, "server_error", "an inbox could not be looked up: try again");
    }
}

static bool know_caller(struct socket *socket, struct mail_caller *out, struct err *err)
{
    const struct actions *actions = socket->all->config.api->actions;
    struct str key = secret_reveal(&socket->key);

    return socket->sandbox_id[0] ? mail_caller_by_sandbox(actions, str_from(socket->sandbox_id), key, out, err)
                                 : mail_caller_by_key(actions, key, out, err);
}

static void run_task(struct job *job)
{
    struct socket *socket = container_of(job, struct socket, job);
    struct mail_caller caller = { 0 };
    struct err err;

    if (!know_caller(socket, &caller, &err)) {
        /* A failure of the store must not look like a wrong key; the client comes again. */
        socket->close_status = err.kind == ERR_DENIED ? STATUS_UNAUTHENTICATED : WEBSOCKET_TRY_LATER;
        socket->close_text = err.kind == ERR_DENIED ? "the key is no longer valid" : "the key could not be checked";
        return;
    }
    if (!mail_scope_allows(caller.scopes, MAIL_SCOPE_READ)) {
        socket->close_status = STATUS_DENIED;
        socket->close_text = "the key may no longer read";
    } else if (socket->task->kind == TASK_EVENT) {
        run_event(socket, &caller);
    } else if (socket->task->kind == TASK_SUBSCRIBE) {
        run_subscribe(socket, &caller);
    }
    mail_caller_wipe(&caller);
}

/* ---- tasks, on the loop ---- */

static void step(struct socket *socket);

static struct subscription **find(struct socket *socket, const char *inbox_id)
{
    struct subscription **at = &socket->subscriptions;

    while (*at && strcmp((*at)->inbox_id, inbox_id) != 0)
        at = &(*at)->next;
    return at;
}

static struct task *task_new(enum task_kind kind, size_t count)
{
    struct task *task = mem_new(sizeof *task + count * sizeof task->ids[0]);

    task->kind = kind;
    task->count = count;
    return task;
}

/* Takes the task. */
static void add_task(struct socket *socket, struct task *task)
{
    if (socket->task_count >= LIMIT_MAIL_SOCKET_TASKS) {
        free(task);
        close_socket(socket, WEBSOCKET_TRY_LATER, "too many events wait: connect again, and list");
        return;
    }
    if (socket->first)
        socket->last->next = task;
    else
        socket->first = task;
    socket->last = task;
    socket->task_count++;
    step(socket);
}

static void on_heard(struct mail_listener *listener, const struct mail_event *event)
{
    struct subscription *subscription = container_of(listener, struct subscription, listener);

    if (!event_names[event->kind] || !event->message_id[0])
        return;
    struct task *task = task_new(TASK_EVENT, 0);
    task->event = *event;
    add_task(subscription->socket, task);
}

static bool subscribe(struct socket *socket, const char *inbox_id, struct buf *frames)
{
    if (*find(socket, inbox_id))
        return true;
    struct subscription *subscription = NEW(struct subscription);
    subscription->listener.heard = on_heard;
    subscription->socket = socket;
    memcpy(subscription->inbox_id, inbox_id, sizeof subscription->inbox_id);
    if (socket->subscription_count >= LIMIT_MAIL_SOCKET_INBOXES ||
        !mail_events_listen(socket->all->config.events, inbox_id, &subscription->listener)) {
        free(subscription);
        say_error(frames, socket->task->request_id, "rate_limited", "too many subscriptions");
        return false;
    }
    subscription->next = socket->subscriptions;
    socket->subscriptions = subscription;
    socket->subscription_count++;
    return true;
}

static void unsubscribe(struct socket *socket, const struct task *task)
{
    auto_buf struct buf frames = buf_make(NULL, 64 * 1024);

    for (size_t i = 0; i < task->count; i++) {
        struct subscription **at = find(socket, task->ids[i]), *found = *at;
        if (!found)
            continue;
        *at = found->next;
        mail_events_leave(socket->all->config.events, &found->listener);
        free(found);
        socket->subscription_count--;
    }
    say_done(&frames, "unsubscribed", task, (char(*)[MAIL_INBOX_ID_BYTES])task->ids, task->count);
    send_frames(socket, buf_str(&frames));
}

static void subscribe_found(struct socket *socket)
{
    size_t count = 0;

    for (size_t i = 0; i < socket->found_count; i++)
        if (subscribe(socket, socket->found[i], &socket->out))
            memcpy(socket->found[count++], socket->found[i], sizeof socket->found[i]);
    say_done(&socket->out, "subscribed", socket->task, socket->found, count);
}

static void task_done(struct job *job)
{
    struct socket *socket = container_of(job, struct socket, job);

    if (socket->state == SOCKET_GONE) {
        queue_leave(&socket->link);
        socket_free(socket);
        return;
    }
    if (socket->close_status) {
        close_socket(socket, socket->close_status, socket->close_text);
    } else if (socket->state == SOCKET_OPEN) {
        if (socket->task->kind == TASK_SUBSCRIBE)
            subscribe_found(socket);
        if (!socket->out.overflowed)
            send_frames(socket, buf_str(&socket->out));
    }
    free(take_ptr(&socket->task));
    if (socket->state == SOCKET_GONE) { /* send_frames() has found it stuck */
        queue_leave(&socket->link);
        loop_retire(socket->all->config.api->loop, socket, socket_free);
    } else {
        step(socket);
    }
}

static void on_retry(struct timer *timer)
{
    step(container_of(timer, struct socket, retry));
}

static void step(struct socket *socket)
{
    while (socket->state == SOCKET_OPEN && !socket->task && socket->first) {
        struct task *task = socket->first, *next = task->next;
        enum task_kind kind = task->kind;
        if (kind != TASK_UNSUBSCRIBE) {
            arena_done(&socket->arena);
            socket->out = buf_make(&socket->arena, OUT_BYTES);
            socket->found_count = 0;
            socket->job = (struct job){ .run = run_task, .done = task_done };
            socket->task = task;
            if (!lane_run(socket->all->config.lane, str_from(socket->owner), 0, &socket->job)) {
                socket->task = NULL;
                timer_set(&socket->retry, socket->all->config.api->loop, RETRY_MS, on_retry);
                return;
            }
        }
        socket->first = next;
        socket->task_count--;
        if (kind == TASK_CHECK)
            socket->is_checking = false;
        if (kind == TASK_UNSUBSCRIBE) {
            unsubscribe(socket, task);
            free(task);
        }
    }
}

/* ---- what the client says ---- */

static bool request_decode(const json_t *body, enum task_kind kind, struct task **out, struct err *err)
{
    const json_t *list = NULL, *item;
    struct str id = STR("");
    size_t i;

    if (!json_take_str(body, "id", JSON_OPTIONAL, &id, err) ||
        !json_take_array(body, "inbox_ids", JSON_REQUIRED, &list, err))
        return false;
    if (id.len >= REQUEST_ID_BYTES)
        return err_set(err, ERR_INVALID, "'id' is too long");
    if (json_array_size(list) > LIMIT_MAIL_SOCKET_INBOXES)
        return err_set(err, ERR_INVALID, "'inbox_ids' has more than %d entries", LIMIT_MAIL_SOCKET_INBOXES);
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item) || !mail_inbox_id_valid(mail_id_plain(json_str(item), LM_INBOX)))
            return err_set(err, ERR_INVALID, "'inbox_ids' must be an array of ids such as ibx_…");
    }
    struct task *task = task_new(kind, json_array_size(list));
    memcpy(task->request_id, id.at, id.len);
    json_array_foreach(list, i, item)
    {
        struct str plain = mail_id_plain(json_str(item), LM_INBOX);
        memcpy(task->ids[i], plain.at, MIN(plain.len, sizeof task->ids[i] - 1));
    }
    *out = task;
    return true;
}

static void on_text(struct socket *socket, struct str text)
{
    auto_buf struct buf frames = buf_make(NULL, 4096);
    struct str type = STR("");
    struct task *task;
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (!body || !json_take_str(body, "type", JSON_REQUIRED, &type, &err)) {
        say_error(&frames, "", "invalid_request", err.message);
    } else if (str_eq(type, STR("ping"))) {
        say_simple(socket, "pong");
    } else if (str_eq(type, STR("subscribe")) || str_eq(type, STR("unsubscribe"))) {
        if (request_decode(body, str_eq(type, STR("subscribe")) ? TASK_SUBSCRIBE : TASK_UNSUBSCRIBE, &task, &err))
            add_task(socket, task);
        else
            say_error(&frames, "", "invalid_request", err.message);
    } else if (!str_eq(type, STR("pong"))) {
        say_error(&frames, "", "invalid_request", "'type' must be subscribe, unsubscribe, ping or pong");
    }
    send_frames(socket, buf_str(&frames));
}

static bool too_often(struct socket *socket)
{
    uint64_t now_ms = loop_now_ms(socket->all->config.api->loop);

    if (now_ms - socket->second_ms >= 1000) {
        socket->second_ms = now_ms;
        socket->messages = 0;
    }
    return ++socket->messages > LIMIT_MAIL_SOCKET_MESSAGES;
}

static void on_message(struct socket *socket, const struct websocket_message *message)
{
    auto_buf struct buf frames = buf_make(NULL, 256);

    if (too_often(socket)) {
        close_socket(socket, WEBSOCKET_POLICY, "too many messages in a second");
        return;
    }
    switch (message->kind) {
    case WEBSOCKET_TEXT:
        on_text(socket, message->text);
        break;
    case WEBSOCKET_BINARY:
        close_socket(socket, WEBSOCKET_UNSUPPORTED, "messages must be text");
        break;
    case WEBSOCKET_CLOSE:
        close_socket(socket, message->status, "");
        break;
    case WEBSOCKET_PING:
        websocket_write(&frames, WEBSOCKET_PONG, message->text);
        send_frames(socket, buf_str(&frames));
        break;
    case WEBSOCKET_PONG:
        break;
    }
}

static void read_input(struct socket *socket)
{
    struct buf *in = &socket->stream->in;
    struct websocket_message message;
    unsigned status;
    struct err err;

    socket->heard_ms = loop_now_ms(socket->all->config.api->loop);
    while (socket->state == SOCKET_OPEN) {
        struct str rest = buf_str(in);
        enum websocket_step got = websocket_next(&socket->reader, &rest, &message, &status, &err);
        buf_drop(in, in->len - rest.len);
        if (got == WEBSOCKET_MORE)
            return;
        if (got == WEBSOCKET_BAD)
            close_socket(socket, status, err.message);
        else
            on_message(socket, &message);
    }
    if (socket->state == SOCKET_CLOSING)
        buf_drop(in, in->len);
}

static void on_input(struct stream *stream)
{
    read_input(stream->owner);
}

static void on_end(struct stream *stream, const struct err *err)
{
    (void)err;
    drop(stream->owner);
}

/* ---- life ---- */

static void on_ping(struct timer *timer)
{
    struct socket *socket = container_of(timer, struct socket, timer);
    auto_buf struct buf frames = buf_make(NULL, 16);
    struct loop *loop = socket->all->config.api->loop;

    if (loop_now_ms(loop) - socket->heard_ms > LIMIT_MAIL_SOCKET_QUIET_MS) {
        drop(socket);
        return;
    }
    timer_set(timer, loop, LIMIT_MAIL_SOCKET_PING_MS, on_ping);
    /* That of the dialect, and that of WebSocket, which every client answers by itself. */
    websocket_write(&frames, WEBSOCKET_PING, STR(""));
    send_frames(socket, buf_str(&frames));
    say_simple(socket, "ping");
    if (socket->state == SOCKET_OPEN && !socket->is_checking) {
        socket->is_checking = true;
        add_task(socket, task_new(TASK_CHECK, 0));
    }
}

static size_t count_of(const struct mail_sockets *sockets, struct str owner)
{
    size_t count = 0;

    for (struct queue_link *link = sockets->list.first; link; link = link->next)
        count += str_eq(str_from(container_of(link, struct socket, link)->owner), owner);
    return count;
}

static void refuse(struct request *rq, unsigned status, const char *text)
{
    mail_reply_problem(rq, status, "%s", text);
    if (status == 429)
        reply_field(rq, STR("Retry-After"), STR("5"));
    mail_finish(rq);
}

void mail_socket_open(struct mail_sockets *sockets, struct request *rq, const char *accept)
{
    static const struct stream_events events = { .on_input = on_input, .on_end = on_end };
    const struct http_field fields[] = { { STR("Upgrade"), STR("websocket") },
                                         { STR("Sec-WebSocket-Accept"), str_from(accept) } };
    struct str owner = mail_lane_owner(rq);
    struct loop *loop = sockets->config.api->loop;

    if (sockets->count >= LIMIT_MAIL_SOCKETS || count_of(sockets, owner) >= LIMIT_MAIL_SOCKETS_EACH) {
        refuse(rq, 429, "too many WebSockets are open: close one first");
        return;
    }
    struct socket *socket = NEW(struct socket);
    if (!secret_set(&socket->key, mail_key_of(rq)) || rq->sandbox_id.len >= sizeof socket->sandbox_id) {
        free(socket);
        refuse(rq, 400, "the key is too long");
        return;
    }
    socket->all = sockets;
    memcpy(socket->sandbox_id, rq->sandbox_id.at, rq->sandbox_id.len);
    memcpy(socket->owner, owner.at, MIN(owner.len, sizeof socket->owner - 1));
    arena_init(&socket->arena);
    websocket_init(&socket->reader);
    socket->stream = http_upgrade(rq->ex, fields, COUNT_OF(fields), &events, socket);
    if (!socket->stream) {
        socket_free(socket);
        refuse(rq, 400, "a WebSocket needs HTTP/1.1 and a request without a body");
        return;
    }
    mail_release(rq);
    queue_join(&sockets->list, &socket->link);
    sockets->count++;
    timer_set(&socket->timer, loop, LIMIT_MAIL_SOCKET_PING_MS, on_ping);
    say_simple(socket, "authenticated");
    read_input(socket); /* what came with the handshake */
}
