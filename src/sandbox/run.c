/*
 * Commands in a sandbox, for the builder: the protocol of E2B's SDKs spoken by us, over a socket that the driver makes inside
 * the sandbox.
 *
 * A command is one call of process.Process/Start: a request with one Connect envelope, and an answer that is a stream of
 * them: start with the pid, data in base64, end with how it ended, and a last envelope that closes the stream, perhaps with
 * an error. HTTP/1.1, one connection each. The thread that runs it reads whenever something comes, and otherwise sleeps in
 * poll(2).
 *
 * What guestd sends is a guest's: each part has a cap, and what does not parse loses the connection and nothing else.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/ports.h"
#include "sandbox/inside.h"
#include "wire/connect.h"
#include "wire/http1.h"
#include "wire/json.h"

enum {
    DIAL_MS = 15000,          /* until there is a connection, with keeper in between */
    LOOK_MS = 200,            /* between looks whether the caller has given up */
    INPUT_BYTES = 64 * 1024,  /* read at a time */
    SEND_BYTES = 256 * 1024,  /* the same of an archive */
    ANSWER_BYTES = 64 * 1024, /* an error of guestd's */
    UNPACK_MS = 10 * 60000,   /* without progress of an archive */
};

/* ---- a connection ---- */

/* Shared by the caller and the loop's callback; the last one frees it. */
struct dial {
    struct loop_task task;
    struct driver *driver;
    char id[LIMIT_ID_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned references;
    bool is_over;
    int fd;
    struct err err;
};

static void dial_unref(struct dial *dial)
{
    bool is_last;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&dial->lock);
        is_last = --dial->references == 0;
    }
    if (!is_last)
        return;
    fd_close(&dial->fd);
    pthread_cond_destroy(&dial->changed);
    pthread_mutex_destroy(&dial->lock);
    free(dial);
}

static void dialed(void *context, int fd, const struct err *err)
{
    struct dial *dial = context;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&dial->lock);
        dial->is_over = true;
        dial->fd = fd;
        if (err)
            dial->err = *err;
        pthread_cond_broadcast(&dial->changed);
    }
    dial_unref(dial);
}

static void dial_on_loop(struct loop_task *task)
{
    struct dial *dial = container_of(task, struct dial, task);

    driver_dial(dial->driver, dial->id, GUESTD_PORT, dialed, dial);
}

static bool await_dial(struct sandboxes *all, struct dial *dial, int *out_fd, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&dial->lock);
    uint64_t until_ms = clock_mono_ms() + DIAL_MS;

    while (!dial->is_over) {
        struct timespec look;
        clock_gettime(CLOCK_MONOTONIC, &look);
        look.tv_nsec += LOOK_MS * 1000000L;
        look.tv_sec += look.tv_nsec / 1000000000L;
        look.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&dial->changed, &dial->lock, &look);
        if (!dial->is_over && (clock_mono_ms() > until_ms || atomic_load(&all->is_stopping)))
            return err_set(err, ERR_UNAVAILABLE, "there is no connection to the sandbox in time");
    }
    if (dial->fd < 0) {
        *err = dial->err;
        err->kind = ERR_UNAVAILABLE;
        return false;
    }
    *out_fd = take_fd(&dial->fd);
    return true;
}

static int connect_guest(struct sandboxes *all, struct str id, struct err *err)
{
    struct dial *dial = NEW(struct dial);
    pthread_condattr_t attr;
    int error = 0;
    socklen_t size = sizeof error;
    auto_close int fd = -1;

    *dial = (struct dial){ .driver = all->config.driver, .fd = -1, .references = 2, .task.fn = dial_on_loop };
    (void)snprintf(dial->id, sizeof dial->id, "%.*s", STR_ARG(id));
    pthread_mutex_init(&dial->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&dial->changed, &attr);
    pthread_condattr_destroy(&attr);
    loop_post(all->config.loop, &dial->task);
    bool ok = await_dial(all, dial, &fd, err);
    dial_unref(dial);
    if (!ok)
        return -1;
    if (!fd_await(fd, POLLOUT, clock_mono_ms() + DIAL_MS) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ||
        error) {
        errno = error ? error : ETIMEDOUT;
        (void)err_sys(err, "connect to guestd");
        err->kind = ERR_UNAVAILABLE;
        return -1;
    }
    return take_fd(&fd);
}

/* False: an errno, or the time is over, or the caller has given up. */
static bool send_some(int fd, struct str *bytes, struct err *err)
{
    ssize_t n = send(fd, bytes->at, bytes->len, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        (void)err_sys(err, "send to guestd");
        err->kind = ERR_UNAVAILABLE;
        return false;
    }
    if (n > 0)
        *bytes = str_of(bytes->at + n, bytes->len - (size_t)n);
    return true;
}

static bool send_whole(int fd, struct str bytes, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + DIAL_MS;

    while (bytes.len) {
        if (!send_some(fd, &bytes, err))
            return false;
        if (bytes.len && !fd_await(fd, POLLOUT, until_ms))
            return err_set(err, ERR_UNAVAILABLE, "guestd does not read");
    }
    return true;
}

/* The part that all requests have. */
static void write_head(struct sandboxes *all, struct str id, struct str target, struct str type, uint64_t length,
                       struct buf *out)
{
    char token[STORE_TOKEN_BYTES];

    store_access_token(all->config.store, id, token);
    http_write_request_line(out, STR("POST"), target);
    http_write_header(out, STR("Host"), STR("localhost"));
    http_write_header(out, STR("Content-Type"), type);
    http_write_header_number(out, STR("Content-Length"), length);
    http_write_header(out, STR("X-Access-Token"), str_from(token));
    explicit_bzero(token, sizeof token);
}

/* ---- answers ---- */

struct answer {
    bool has_head;
    unsigned status;
    struct http_body body;
    struct buf raw; /* received and not used yet */
};

enum answer_step { ANSWER_MORE, ANSWER_PIECE, ANSWER_END, ANSWER_BAD };

/* The next piece of the body that is in `raw`. *out_used: drop so much of it afterwards. */
static enum answer_step answer_next(struct answer *answer, struct str *out_piece, size_t *out_used, struct err *err)
{
    struct str rest = buf_str(&answer->raw);

    *out_used = 0;
    if (!answer->has_head) {
        auto_free struct http_head *head = NEW(struct http_head);
        switch (http_parse_response(rest, false, head, out_used, err)) {
        case HTTP_MORE:
            *out_used = 0;
            return ANSWER_MORE;
        case HTTP_BAD:
            return ANSWER_BAD;
        case HTTP_DONE:
            break;
        }
        answer->has_head = head->status >= 200;
        answer->status = head->status;
        answer->body = http_body_of(head);
        *out_piece = STR("");
        return ANSWER_PIECE;
    }
    *out_piece = STR("");
    enum http_parse got = http_body_next(&answer->body, &rest, out_piece, err);
    *out_used = answer->raw.len - rest.len;
    if (got == HTTP_BAD)
        return ANSWER_BAD;
    if (got == HTTP_DONE)
        return ANSWER_END;
    return *out_used ? ANSWER_PIECE : ANSWER_MORE;
}

/* ---- a command ---- */

struct run {
    int fd;
    struct answer answer;
    struct connect_reader reader;
    struct buf refusal; /* the body of an answer other than 200 */
    void (*output)(void *context, enum run_stream stream, struct str bytes);
    void *context;
    struct run_result result;
};

static void lose(struct run *run, const char *why)
{
    if (run->result.state != RUN_GOING)
        return;
    run->result.state = RUN_LOST;
    (void)snprintf(run->result.text, sizeof run->result.text, "%s", why);
}

static bool take_output(struct run *run, const json_t *data, const char *name, enum run_stream stream, struct err *err)
{
    struct str text = STR("");
    size_t len;

    if (!json_take_str(data, name, JSON_OPTIONAL, &text, err))
        return false;
    if (!text.len)
        return true;
    auto_free unsigned char *bytes = mem_new(text.len / 4 * 3 + 3);
    if (!base64_decode(text, bytes, &len))
        return err_set(err, ERR_INTERNAL, "guestd sent output that is not base64");
    if (run->output)
        run->output(run->context, stream, str_of(bytes, len));
    return true;
}

static bool take_end(struct run *run, const json_t *end, struct err *err)
{
    bool exited = false;
    int64_t code = 0;
    struct str status = STR("");

    /* proto3 leaves out what is 0 or false: no exitCode is success, no exited is a signal. */
    if (!json_take_bool(end, "exited", JSON_OPTIONAL, &exited, err) ||
        !json_take_int(end, "exitCode", JSON_OPTIONAL, INT32_MIN, INT32_MAX, &code, err) ||
        !json_take_str(end, "status", JSON_OPTIONAL, &status, err))
        return false;
    run->result.state = RUN_EXITED;
    run->result.exit_code = exited ? (int)code : -1;
    (void)snprintf(run->result.text, sizeof run->result.text, "%.*s", (int)MIN(status.len, (size_t)100), status.at);
    return true;
}

static bool take_event(struct run *run, struct str payload, struct err *err)
{
    auto_json json_t *message = json_parse_object(payload, err);
    const json_t *event = NULL, *data = NULL, *end = NULL;

    if (!message || !json_take_object(message, "event", JSON_REQUIRED, &event, err) ||
        !json_take_object(event, "data", JSON_OPTIONAL, &data, err) ||
        !json_take_object(event, "end", JSON_OPTIONAL, &end, err))
        return false;
    if (data &&
        (!take_output(run, data, "stdout", RUN_STDOUT, err) || !take_output(run, data, "stderr", RUN_STDERR, err)))
        return false;
    return !end || take_end(run, end, err);
}

/* {"code","message"}: guestd's error, as E2B's builder prints it. */
static void refuse(struct run *run, const json_t *error)
{
    struct str code = STR("unknown"), message = STR("");
    struct err ignored;

    if (run->result.state != RUN_GOING)
        return;
    (void)!json_take_str(error, "code", JSON_OPTIONAL, &code, &ignored);
    (void)!json_take_str(error, "message", JSON_OPTIONAL, &message, &ignored);
    run->result.state = RUN_REFUSED;
    (void)snprintf(run->result.text, sizeof run->result.text, "%.*s: %.*s", (int)MIN(code.len, (size_t)40), code.at,
                   (int)MIN(message.len, (size_t)200), message.len ? message.at : "");
}

static bool take_trailer(struct run *run, struct str payload, struct err *err)
{
    auto_json json_t *message = json_parse_object(payload, err);
    const json_t *error = NULL;

    if (!message || !json_take_object(message, "error", JSON_OPTIONAL, &error, err))
        return false;
    if (error)
        refuse(run, error);
    return true;
}

static bool take_piece(struct run *run, struct str piece, struct err *err)
{
    unsigned flags;
    struct str payload;

    if (run->answer.status != 200) {
        buf_add(&run->refusal, piece);
        return true;
    }
    while (piece.len) {
        switch (connect_reader_next(&run->reader, &piece, &flags, &payload, err)) {
        case CONNECT_MORE:
            return true;
        case CONNECT_BAD:
            return false;
        case CONNECT_ENVELOPE:
            if (!(flags & CONNECT_END_STREAM ? take_trailer(run, payload, err) : take_event(run, payload, err)))
                return false;
        }
    }
    return true;
}

static void take_refusal(struct run *run)
{
    struct err ignored;
    auto_json json_t *error = json_parse_object(buf_str(&run->refusal), &ignored);

    if (error)
        refuse(run, error);
}

static void step(struct run *run)
{
    struct err err;

    while (run->result.state == RUN_GOING) {
        struct str piece;
        size_t used;
        enum answer_step got = answer_next(&run->answer, &piece, &used, &err);
        if (got == ANSWER_MORE)
            return;
        if (got == ANSWER_BAD || !take_piece(run, piece, &err)) {
            lose(run, err.message);
            return;
        }
        buf_drop(&run->answer.raw, used);
        if (got == ANSWER_END) {
            if (run->answer.status != 200)
                take_refusal(run);
            lose(run, "the sandbox ended the connection");
        }
    }
}

/* All that the socket has, but not more than a turn's worth: other commands want theirs, too. */
static void receive(struct run *run)
{
    for (int i = 0; run->result.state == RUN_GOING && i < 16; i++) {
        char *room = buf_reserve(&run->answer.raw, INPUT_BYTES);
        ssize_t n = room ? recv(run->fd, room, INPUT_BYTES, MSG_DONTWAIT) : -1;
        if (n > 0) {
            buf_grew(&run->answer.raw, (size_t)n);
            step(run);
        } else if (n < 0 && room && (errno == EAGAIN || errno == EINTR)) {
            return;
        } else {
            lose(run, room ? "the sandbox has ended" : "guestd's answer is too long");
        }
    }
}

void runs_await(struct run *const *runs, size_t count, uint64_t until_ms)
{
    struct pollfd *fds = mem_new((count + 1) * sizeof *fds);
    uint64_t now_ms = clock_mono_ms();
    nfds_t used = 0;

    for (size_t i = 0; i < count; i++)
        if (runs[i] && runs[i]->result.state == RUN_GOING)
            fds[used++] = (struct pollfd){ .fd = runs[i]->fd, .events = POLLIN };
    int wait_ms = until_ms > now_ms ? (int)MIN(until_ms - now_ms, (uint64_t)INT32_MAX) : 0;
    (void)poll(fds, used, wait_ms);
    free(fds);
    for (size_t i = 0; i < count; i++)
        if (runs[i])
            receive(runs[i]);
}

const struct run_result *run_result(const struct run *run)
{
    return &run->result;
}

static void write_request(const struct run_want *want, struct buf *out)
{
    size_t at = connect_begin(out);
    struct json_out json = json_out_to(out);

    json_out_object(&json, NULL);
    json_out_object(&json, "process");
    json_out_str(&json, "cmd", want->shell.len ? want->shell : STR("/bin/bash"));
    json_out_array(&json, "args");
    json_out_str(&json, NULL, STR("-l"));
    json_out_str(&json, NULL, STR("-c"));
    json_out_str(&json, NULL, want->command);
    json_out_end(&json);
    json_out_object(&json, "envs");
    for (uint32_t i = 0; i < want->env_count; i++)
        json_out_pair(&json, want->envs[i].name, want->envs[i].value);
    json_out_end(&json);
    if (want->workdir.len)
        json_out_str(&json, "cwd", want->workdir);
    json_out_end(&json);
    json_out_bool(&json, "stdin", false);
    json_out_end(&json);
    connect_end(out, at, 0);
}

static void write_user(struct buf *out, struct str user)
{
    auto_buf struct buf plain = buf_make(NULL, LIMIT_NAME_BYTES * 8), text = buf_make(NULL, LIMIT_NAME_BYTES * 16);

    buf_add(&plain, user);
    buf_add_char(&plain, ':');
    buf_add(&text, STR("Basic "));
    char *room = buf_reserve(&text, base64_size(plain.len));
    if (plain.overflowed || !room) {
        out->overflowed = true;
        return;
    }
    buf_grew(&text, base64_encode(buf_str(&plain), room));
    http_write_header(out, STR("Authorization"), buf_str(&text));
}

struct run *run_begin(struct sandboxes *all, const struct run_want *want, struct err *err)
{
    auto_buf struct buf body = buf_make(NULL, LIMIT_RPC_BYTES), head = buf_make(NULL, LIMIT_HEAD_BYTES);

    write_request(want, &body);
    write_head(all, want->sandbox_id, STR("/process.Process/Start"), STR("application/connect+json"), body.len, &head);
    http_write_header(&head, STR("Connect-Protocol-Version"), STR("1"));
    if (want->user.len)
        write_user(&head, want->user);
    http_write_head_end(&head);
    if (body.overflowed || head.overflowed) {
        (void)err_set(err, ERR_LIMIT, "the command, its user or its environment is too long");
        return NULL;
    }
    auto_close int fd = connect_guest(all, want->sandbox_id, err);
    if (fd < 0 || !send_whole(fd, buf_str(&head), err) || !send_whole(fd, buf_str(&body), err))
        return NULL;
    struct run *run = NEW(struct run);
    *run = (struct run){ .fd = take_fd(&fd),
                         .answer.raw = buf_make(NULL, LIMIT_RPC_BYTES),
                         .refusal = buf_make(NULL, ANSWER_BYTES),
                         .output = want->output,
                         .context = want->context };
    connect_reader_init(&run->reader);
    return run;
}

void run_free(struct run *run)
{
    if (!run)
        return;
    fd_close(&run->fd);
    buf_done(&run->answer.raw);
    buf_done(&run->refusal);
    connect_reader_done(&run->reader);
    free(run);
}

/* ---- an archive ---- */

static void add_query(struct buf *out, const char *name, struct str value)
{
    auto_buf struct buf room = buf_make(NULL, 3 * LIMIT_PATH_BYTES);

    buf_format(out, "%c%s=", str_has_char(buf_str(out), '?') ? '&' : '?', name);
    percent_encode(&room, value);
    if (room.overflowed)
        out->overflowed = true;
    buf_add(out, buf_str(&room));
}

static bool go_on(const struct archive_want *want, uint64_t since_ms, struct err *err)
{
    uint64_t now_ms = clock_mono_ms();

    if (want->cancelled && want->cancelled(want->context))
        return err_set(err, ERR_CONFLICT, "the build was cancelled");
    if (now_ms > want->until_ms || now_ms > since_ms + UNPACK_MS)
        return err_set(err, ERR_TIMEOUT, "copying the files takes too long");
    return true;
}

/* True when guestd answers early: it has refused the rest. */
static bool answers_already(int fd)
{
    return fd_await(fd, POLLIN, 0);
}

static bool send_archive(const struct archive_want *want, int fd, struct err *err)
{
    auto_free char *room = mem_new(SEND_BYTES);
    uint64_t since_ms = clock_mono_ms();

    for (uint64_t at = 0; at < want->size && !answers_already(fd);) {
        ssize_t n = pread(want->fd, room, MIN(want->size - at, (uint64_t)SEND_BYTES), (off_t)at);
        if (n <= 0)
            return n < 0 ? err_sys(err, "read the archive") : err_set(err, ERR_INTERNAL, "the archive is cut short");
        at += (uint64_t)n;
        for (struct str rest = str_of(room, (size_t)n); rest.len;) {
            size_t before = rest.len;
            if (!send_some(fd, &rest, err))
                return answers_already(fd);
            since_ms = rest.len < before ? clock_mono_ms() : since_ms;
            if (rest.len && !fd_await(fd, POLLOUT, clock_mono_ms() + LOOK_MS) && !go_on(want, since_ms, err))
                return false;
        }
        if (!go_on(want, since_ms, err))
            return false;
    }
    return true;
}

static bool read_verdict(const struct archive_want *want, int fd, struct err *err)
{
    struct answer answer = { .raw = buf_make(NULL, 2 * ANSWER_BYTES) };
    auto_buf struct buf text = buf_make(NULL, ANSWER_BYTES);
    enum answer_step got = ANSWER_MORE;
    uint64_t since_ms = clock_mono_ms();
    bool ok = true;

    while (ok && got != ANSWER_END) {
        struct str piece = STR("");
        size_t used;
        got = answer_next(&answer, &piece, &used, err);
        buf_add(&text, piece);
        buf_drop(&answer.raw, used);
        ok = got != ANSWER_BAD && go_on(want, since_ms, err);
        if (ok && text.overflowed)
            ok = err_set(err, ERR_INVALID, "the sandbox's answer is longer than %d bytes", ANSWER_BYTES);
        if (!ok || got != ANSWER_MORE)
            continue;
        char *room = buf_reserve(&answer.raw, 4096);
        ssize_t n = room ? recv(fd, room, 4096, MSG_DONTWAIT) : 0;
        if (n > 0) {
            buf_grew(&answer.raw, (size_t)n);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            ok = err_set(err, ERR_UNAVAILABLE, "the sandbox ended while it unpacked the files");
        } else {
            (void)!fd_await(fd, POLLIN, clock_mono_ms() + LOOK_MS);
        }
    }
    buf_done(&answer.raw);
    if (!ok || answer.status / 100 == 2)
        return ok;
    struct err ignored;
    auto_json json_t *error = json_parse_object(buf_str(&text), &ignored);
    struct str message = STR("guestd gives no reason");
    if (error)
        (void)!json_take_str(error, "message", JSON_OPTIONAL, &message, &ignored);
    return err_set(err,
                   answer.status == 507   ? ERR_FULL
                   : answer.status >= 500 ? ERR_INTERNAL
                                          : ERR_INVALID,
                   "%.*s", (int)MIN(message.len, sizeof err->message), message.at);
}

bool sandbox_put_archive(struct sandboxes *all, const struct archive_want *want, struct err *err)
{
    auto_buf struct buf target = buf_make(NULL, LIMIT_HEAD_BYTES), head = buf_make(NULL, LIMIT_HEAD_BYTES);

    buf_add(&target, STR("/cloister/copy"));
    add_query(&target, "source", want->source);
    add_query(&target, "dest", want->dest);
    add_query(&target, "owner", want->owner);
    add_query(&target, "mode", want->mode);
    add_query(&target, "user", want->user);
    add_query(&target, "workdir", want->workdir);
    write_head(all, want->sandbox_id, buf_str(&target), STR("application/x-tar"), want->size, &head);
    http_write_head_end(&head);
    if (target.overflowed || head.overflowed)
        return err_set(err, ERR_LIMIT, "the paths of a COPY are too long");
    auto_close int fd = connect_guest(all, want->sandbox_id, err);
    return fd >= 0 && send_whole(fd, buf_str(&head), err) && send_archive(want, fd, err) && read_verdict(want, fd, err);
}
