/*
 * process_rpc.c - the methods of process.Process.
 *
 * Start and Connect are streams: a watcher (process.h) turns output into events as fast as the client takes them. The
 * first event has the pid, the last one the exit status. Start ends the process with its own deadline; Connect's
 * deadline ends only the stream. SendInput and StreamInput answer when the process has taken the bytes, and SIGKILL
 * when it is dead, so a client that waits for the answer sees the effect.
 */
#include "guest/process_rpc.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/encode.h"
#include "base/limits.h"
#include "base/mem.h"
#include "guest/path.h"
#include "guest/process.h"
#include "guest/status.h"

/* ---- selectors ---- */

/* The process that a request names, or NULL and it was answered. */
static struct process *select_process(struct rpc *rpc, const json_t *request, enum process_which which)
{
    struct processes *all = rpc->guest->processes;
    const json_t *selector = NULL;
    struct err err;

    if (!json_take_object(request, "process", JSON_OPTIONAL, &selector, &err)) {
        rpc_fail_err(rpc, &err);
        return NULL;
    }
    if (json_has(selector, "tag")) {
        struct str tag;
        if (!json_take_str(selector, "tag", JSON_REQUIRED, &tag, &err)) {
            rpc_fail_err(rpc, &err);
            return NULL;
        }
        struct process *found = process_by_tag(all, tag, which);
        if (!found)
            rpc_fail(rpc, CONNECT_NOT_FOUND, "process with tag %.*s not found", STR_ARG(tag));
        return found;
    }
    int64_t pid = 0;
    if (!json_has(selector, "pid")) {
        rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "the process selector names neither a pid nor a tag");
        return NULL;
    }
    if (!json_take_int(selector, "pid", JSON_REQUIRED, 0, UINT32_MAX, &pid, &err)) {
        rpc_fail_err(rpc, &err);
        return NULL;
    }
    struct process *found = pid <= INT32_MAX ? process_by_pid(all, (pid_t)pid, which) : NULL;
    if (!found)
        rpc_fail(rpc, CONNECT_NOT_FOUND, "process with pid %lld not found", (long long)pid);
    return found;
}

/* ---- List ---- */

static void call_list(struct rpc *rpc, const json_t *request)
{
    struct buf body = buf_make(rpc->arena, LIMIT_CONFIG_BYTES + LIMIT_PROCESSES * (8ull * LIMIT_NAME_BYTES));
    struct json_out out = json_out_to(&body);

    (void)request;
    json_out_object(&out, NULL);
    json_out_array(&out, "processes");
    for (struct process *p = NULL; (p = process_next(rpc->guest->processes, p));) {
        json_out_object(&out, NULL);
        json_out_raw(&out, "config", process_config(p));
        json_out_int(&out, "pid", process_pid(p));
        if (process_tag(p))
            json_out_str(&out, "tag", str_from(process_tag(p)));
        json_out_end(&out);
    }
    json_out_end(&out);
    json_out_end(&out);
    rpc_reply(rpc, buf_str(&body));
}

/* ---- a stream of events ---- */

struct subscriber {
    struct process_watcher watcher;
    struct rpc *rpc;
    pid_t pid;
    uint64_t timeout_ms;
    bool has_pty, was_told; /* the start event is out */
    const char *command;    /* of a Start, for an error; NULL: a Connect */
};

static void send_start(struct subscriber *s)
{
    auto_buf struct buf event = buf_make(NULL, 256);
    size_t at = connect_begin(&event);

    buf_format(&event, "{\"event\":{\"start\":{\"pid\":%d", (int)s->pid);
    if (!s->watcher.is_undecided)
        buf_format(&event, ",\"offset\":%llu", (unsigned long long)s->watcher.offset);
    buf_add(&event, STR("}}}"));
    connect_end(&event, at, 0);
    rpc_send_envelopes(s->rpc, buf_str(&event));
    rpc_keep_alive(s->rpc, STR("{\"event\":{\"keepalive\":{}}}"));
}

/* `offset` is an extra field of ours, which SDKs ignore: a client that knows it can resume exactly. */
static void send_data(struct subscriber *s, enum output_stream stream, struct str bytes)
{
    static const char *const names[OUTPUT_STREAM_COUNT] = { "stdout", "stderr", "pty" };
    size_t size = base64_size(bytes.len);
    auto_buf struct buf event = buf_make(NULL, size + 256);
    size_t at = connect_begin(&event);

    buf_format(&event, "{\"event\":{\"data\":{\"%s\":\"", names[stream]);
    char *room = buf_reserve(&event, size + 128);
    buf_grew(&event, base64_encode(bytes, room));
    buf_format(&event, "\",\"offset\":%llu}}}", (unsigned long long)s->watcher.offset);
    connect_end(&event, at, 0);
    rpc_send_envelopes(s->rpc, buf_str(&event));
}

static void send_end(struct subscriber *s, int status)
{
    struct buf event = buf_make(s->rpc->arena, 512);
    struct str text = status_text(s->rpc->arena, status);
    int code = status_exit_code(status);
    struct json_out out = json_out_to(&event);

    json_out_object(&out, NULL);
    json_out_object(&out, "event");
    json_out_object(&out, "end");
    if (code)
        json_out_int(&out, "exitCode", code);
    if (WIFEXITED(status))
        json_out_bool(&out, "exited", true);
    json_out_str(&out, "status", text);
    if (code)
        json_out_str(&out, "error", text);
    json_out_end(&out);
    json_out_end(&out);
    json_out_end(&out);
    rpc_finish_with(s->rpc, buf_str(&event));
}

static void subscriber_step(struct process_watcher *watcher)
{
    struct subscriber *s = container_of(watcher, struct subscriber, watcher);
    enum output_stream stream;
    struct str bytes;
    int status;

    /* The client has gone and on_gone() follows: what it did not get is kept for the next watcher. */
    if (s->rpc->ex->gone || !process_has_started(watcher->process))
        return;
    if (!s->was_told) {
        s->pid = process_pid(watcher->process);
        send_start(s);
    }
    s->was_told = true;
    while (!rpc_is_full(s->rpc) && process_watcher_read(watcher, &stream, &bytes)) {
        send_data(s, stream, bytes);
        process_watcher_advance(watcher, bytes.len);
    }
    if (process_watcher_at_end(watcher, &status)) {
        process_unwatch(watcher);
        send_end(s, status);
    }
}

static void subscriber_cut(struct process_watcher *watcher, bool is_deadline)
{
    struct subscriber *s = container_of(watcher, struct subscriber, watcher);

    process_unwatch(watcher);
    if (is_deadline && !s->pid)
        rpc_fail(s->rpc, CONNECT_DEADLINE_EXCEEDED,
                 "context deadline exceeded: the sandbox did not start the command in %llu ms",
                 (unsigned long long)s->timeout_ms);
    else if (is_deadline)
        rpc_fail(s->rpc, CONNECT_DEADLINE_EXCEEDED,
                 "context deadline exceeded: process %d was killed after %llu ms, with all it had started and not "
                 "detached",
                 (int)s->pid, (unsigned long long)s->timeout_ms);
    else
        rpc_fail(s->rpc, CONNECT_RESOURCE_EXHAUSTED,
                 "this stream was too slow and held up others that watch process %d; connect again from offset %llu",
                 (int)s->pid, (unsigned long long)watcher->offset);
}

static enum connect_code start_code_of(const struct err *err)
{
    switch (err->kind) {
    case ERR_LIMIT:
        return CONNECT_RESOURCE_EXHAUSTED;
    case ERR_TIMEOUT:
        return CONNECT_DEADLINE_EXCEEDED;
    case ERR_UNAVAILABLE:
        return rpc_code_of(err->kind);
    default:
        return CONNECT_INVALID_ARGUMENT;
    }
}

static void fail_start(struct rpc *rpc, bool has_pty, const char *command, const struct err *err)
{
    rpc_fail(rpc, start_code_of(err),
             has_pty ? "error starting pty with command '%s': %s" : "error starting process '%s': %s", command,
             err->message);
}

static void subscriber_failed(struct process_watcher *watcher, const struct err *err)
{
    struct subscriber *s = container_of(watcher, struct subscriber, watcher);

    if (s->command)
        fail_start(s->rpc, s->has_pty, s->command, err);
    else
        rpc_fail(s->rpc, CONNECT_NOT_FOUND, "process with pid %d could not be started: %s", (int)s->pid, err->message);
}

static void on_subscriber_gone(struct rpc *rpc)
{
    struct subscriber *s = rpc->owner;

    process_unwatch(&s->watcher);
}

static void on_subscriber_drained(struct rpc *rpc)
{
    struct subscriber *s = rpc->owner;

    subscriber_step(&s->watcher);
}

/* Connect's deadline: the stream ends, the process does not. */
static void on_subscriber_deadline(struct rpc *rpc)
{
    struct subscriber *s = rpc->owner;

    process_unwatch(&s->watcher);
    rpc_fail(rpc, CONNECT_DEADLINE_EXCEEDED, "context deadline exceeded");
}

/* Start's deadline is the process's, set at the same time: it kills first and then reports. */
static void ignore_deadline(struct rpc *rpc)
{
    (void)rpc;
}

static struct subscriber *subscribe(struct rpc *rpc, struct process *p, bool has_deadline, const uint64_t *from)
{
    struct subscriber *s = ARENA_NEW(rpc->arena, struct subscriber);

    s->rpc = rpc;
    s->pid = process_pid(p);
    s->timeout_ms = rpc->timeout_ms;
    s->watcher.step = subscriber_step;
    s->watcher.cut = subscriber_cut;
    s->watcher.failed = subscriber_failed;
    s->watcher.has_deadline = has_deadline;
    rpc->owner = s;
    rpc->on_gone = on_subscriber_gone;
    rpc->on_drained = on_subscriber_drained;
    rpc->on_deadline = has_deadline ? ignore_deadline : on_subscriber_deadline;
    process_watch(p, &s->watcher, from);
    subscriber_step(&s->watcher);
    return s;
}

/* ---- Start ---- */

static bool take_text(const json_t *value, const char *what, size_t *bytes, struct str *out, struct err *err)
{
    if (!json_is_string(value))
        return err_set(err, ERR_INVALID, "'%s' must hold strings", what);
    *out = json_str(value);
    *bytes += out->len + 1;
    return *bytes <= LIMIT_ARGS_BYTES || err_set(err, ERR_LIMIT, "'%s' has more than %d bytes", what, LIMIT_ARGS_BYTES);
}

static bool decode_args(const json_t *process, struct arena *arena, struct process_want *want, struct err *err)
{
    const json_t *args = NULL;
    size_t bytes = 0;

    if (!json_take_array(process, "args", JSON_OPTIONAL, &args, err))
        return false;
    want->arg_count = json_array_size(args);
    if (want->arg_count > LIMIT_ARGS)
        return err_set(err, ERR_LIMIT, "more than %d arguments", LIMIT_ARGS);
    want->args = ARENA_ARRAY(arena, struct str, want->arg_count);
    for (size_t i = 0; i < want->arg_count; i++)
        if (!take_text(json_array_get(args, i), "args", &bytes, &want->args[i], err))
            return false;
    return true;
}

static bool decode_envs(const json_t *process, struct arena *arena, struct process_want *want, struct err *err)
{
    const json_t *envs = NULL;
    const char *name;
    json_t *value;
    size_t bytes = 0;

    if (!json_take_object(process, "envs", JSON_OPTIONAL, &envs, err))
        return false;
    if (json_object_size(envs) > LIMIT_ENV_PAIRS)
        return err_set(err, ERR_LIMIT, "more than %d variables", LIMIT_ENV_PAIRS);
    want->envs = ARENA_ARRAY(arena, struct guestlink_env, json_object_size(envs));
    json_object_foreach((json_t *)envs, name, value)
    {
        struct guestlink_env *env = &want->envs[want->env_count++];
        env->name = str_from(name);
        bytes += env->name.len;
        if (!env->name.len || str_has_char(env->name, '='))
            return err_set(err, ERR_INVALID, "'%.60s' cannot be the name of a variable", name);
        if (!take_text(value, "envs", &bytes, &env->value, err))
            return false;
    }
    return true;
}

static bool decode_size(const json_t *holder, struct process_want *want, struct err *err)
{
    const json_t *pty = NULL, *size = NULL;
    int64_t cols = 0, rows = 0;

    if (!json_take_object(holder, "pty", JSON_OPTIONAL, &pty, err))
        return false;
    if (!pty)
        return true;
    want->has_pty = true;
    if (!json_take_object(pty, "size", JSON_OPTIONAL, &size, err) ||
        !json_take_int(size, "cols", JSON_OPTIONAL, 0, UINT16_MAX, &cols, err) ||
        !json_take_int(size, "rows", JSON_OPTIONAL, 0, UINT16_MAX, &rows, err))
        return false;
    want->cols = (uint16_t)cols;
    want->rows = (uint16_t)rows;
    return true;
}

/* What List returns: the fields we know, as they were sent. */
static struct str echo_config(const json_t *process, struct arena *arena)
{
    static const char *const names[] = { "cmd", "args", "envs", "cwd" };
    struct buf text = buf_make(arena, LIMIT_RPC_BYTES * 6ull);
    struct json_out out = json_out_to(&text);

    json_out_object(&out, NULL);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!json_has(process, names[i]))
            continue;
        char *value = json_dumps(json_object_get(process, names[i]), JSON_COMPACT | JSON_ENCODE_ANY);
        json_out_raw(&out, names[i], value ? str_from(value) : STR("null"));
        free(value);
    }
    json_out_end(&out);
    return buf_str(&text);
}

static bool decode_start(const json_t *request, struct arena *arena, struct process_want *want, struct str *out_cwd,
                         struct err *err)
{
    const json_t *process = NULL;
    struct str tag;

    want->has_stdin = true;
    want->command = STR("");
    if (!json_take_object(request, "process", JSON_REQUIRED, &process, err) ||
        !json_take_str(process, "cmd", JSON_OPTIONAL, &want->command, err) || !decode_args(process, arena, want, err) ||
        !decode_envs(process, arena, want, err) || !json_take_str(process, "cwd", JSON_OPTIONAL, out_cwd, err) ||
        !json_take_bool(request, "stdin", JSON_OPTIONAL, &want->has_stdin, err) || !decode_size(request, want, err))
        return false;
    if (want->command.len > LIMIT_PATH_BYTES)
        return err_set(err, ERR_LIMIT, "the command is longer than %d bytes", LIMIT_PATH_BYTES);
    if (json_has(request, "tag")) {
        if (!json_take_str(request, "tag", JSON_REQUIRED, &tag, err))
            return false;
        if (tag.len > LIMIT_NAME_BYTES)
            return err_set(err, ERR_LIMIT, "the tag is longer than %d bytes", LIMIT_NAME_BYTES);
        want->tag = arena_text(arena, tag);
    }
    want->config = echo_config(process, arena);
    return true;
}

/* "cmd arg arg", as far as it fits, for an error. */
static const char *command_line(struct arena *arena, const struct process_want *want)
{
    struct buf text = buf_make(arena, 1024);

    buf_add(&text, str_of(want->command.at, MIN(want->command.len, 500)));
    for (size_t i = 0; i < want->arg_count && text.len + want->args[i].len < 1000; i++) {
        buf_add_char(&text, ' ');
        buf_add(&text, want->args[i]);
    }
    return arena_text(arena, buf_str(&text));
}

static void call_start(struct rpc *rpc, const json_t *request)
{
    struct process_want want = { .user = &rpc->user, .deadline_ms = rpc->timeout_ms };
    struct str cwd = STR("");
    struct stat st;
    struct err err;

    if (!decode_start(request, rpc->arena, &want, &cwd, &err) ||
        !path_resolve(rpc->arena, cwd, &rpc->user, rpc->guest->default_workdir, &want.cwd, &err)) {
        rpc_fail_request(rpc, &err);
        return;
    }
    if (stat(want.cwd, &st) < 0) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "cwd '%s' does not exist", want.cwd);
        return;
    }
    if (!cwd.len) /* a template's USER may not be let into its WORKDIR */
        want.cwd_else = arena_text(rpc->arena, rpc->user.home);
    struct process *p = process_start_new(rpc->guest->processes, &want, rpc->arena, &err);
    if (!p) {
        fail_start(rpc, want.has_pty, command_line(rpc->arena, &want), &err);
        return;
    }
    struct subscriber *s = subscribe(rpc, p, true, &(uint64_t){ 0 });
    s->has_pty = want.has_pty;
    s->command = command_line(rpc->arena, &want);
}

/* ---- Connect ---- */

static void call_connect(struct rpc *rpc, const json_t *request)
{
    struct process *p = select_process(rpc, request, PROCESS_KEPT);
    int64_t offset = 0;
    struct err err;

    if (!p)
        return;
    /* An extra field of ours: the offset to resume from. */
    if (!json_take_int(request, "offset", JSON_OPTIONAL, 0, INT64_MAX, &offset, &err)) {
        rpc_fail_err(rpc, &err);
        return;
    }
    (void)subscribe(rpc, p, false, json_has(request, "offset") ? &(uint64_t){ (uint64_t)offset } : NULL);
}

/* ---- SendInput and StreamInput ---- */

struct input {
    struct process_input input;
    struct rpc *rpc;
    unsigned char *room; /* the decoded bytes; StreamInput's are on the heap, because its arena may live for hours */
};

static bool decode_input(const json_t *holder, enum process_input_to *out_to, struct str *out_text, struct err *err)
{
    const json_t *input = NULL;

    if (!json_take_object(holder, "input", JSON_OPTIONAL, &input, err))
        return false;
    *out_to = json_has(input, "pty") ? PROCESS_PTY : PROCESS_STDIN;
    const char *name = *out_to == PROCESS_PTY ? "pty" : "stdin";
    if (!json_has(input, name))
        return err_set(err, ERR_NONE, "the input is neither stdin nor pty");
    return json_take_str(input, name, JSON_REQUIRED, out_text, err);
}

/* Decodes and writes. False if it has failed and was answered. */
static bool write_input(struct rpc *rpc, struct process *p, const json_t *holder, struct input *input)
{
    enum process_input_to to;
    struct str text;
    size_t len;
    struct err err;

    if (!decode_input(holder, &to, &text, &err)) {
        rpc_fail(rpc, err.kind == ERR_NONE ? CONNECT_UNIMPLEMENTED : rpc_code_of(err.kind), "%s", err.message);
        return false;
    }
    input->room = mem_new(text.len / 4 * 3 + 3);
    if (!base64_decode(text, input->room, &len)) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "the input is not base64");
        return false;
    }
    input->input.bytes = str_of(input->room, len);
    if (!process_write(p, to, &input->input, &err)) {
        rpc_fail(rpc, CONNECT_INTERNAL, "%s", err.message);
        return false;
    }
    return true;
}

static void on_input_gone(struct rpc *rpc)
{
    struct input *input = rpc->owner;

    process_input_cancel(&input->input);
    free(input->room);
}

static void on_sent(struct process_input *process_input, const struct err *err)
{
    struct input *input = container_of(process_input, struct input, input);

    if (err)
        rpc_fail(input->rpc, CONNECT_INTERNAL, "%s", err->message);
    else
        rpc_reply(input->rpc, STR("{}"));
}

static void call_send_input(struct rpc *rpc, const json_t *request)
{
    struct process *p = select_process(rpc, request, PROCESS_LIVE);

    if (!p)
        return;
    struct input *input = ARENA_NEW(rpc->arena, struct input);
    input->rpc = rpc;
    input->input.done = on_sent;
    rpc->owner = input;
    rpc->on_gone = on_input_gone;
    (void)!write_input(rpc, p, request, input);
}

/* One for the whole stream: the next message is read when the one before is written. */
struct input_stream {
    struct input input;
    pid_t pid; /* 0: no start yet. Looked up for each message: it may have ended. */
};

static void on_stream_input_sent(struct process_input *process_input, const struct err *err)
{
    struct input_stream *stream = container_of(process_input, struct input_stream, input.input);
    struct rpc *rpc = stream->input.rpc;

    free(stream->input.room);
    stream->input.room = NULL;
    if (err)
        rpc_fail(rpc, CONNECT_INTERNAL, "%s", err->message);
    else
        rpc_wait(rpc, false);
}

static void on_stream_input_gone(struct rpc *rpc)
{
    struct input_stream *stream = rpc->owner;

    process_input_cancel(&stream->input.input);
    free(stream->input.room);
}

static struct input_stream *input_stream_of(struct rpc *rpc)
{
    if (!rpc->owner) {
        struct input_stream *stream = ARENA_NEW(rpc->arena, struct input_stream);
        stream->input.rpc = rpc;
        stream->input.input.done = on_stream_input_sent;
        rpc->owner = stream;
        rpc->on_gone = on_stream_input_gone;
    }
    return rpc->owner;
}

static void call_stream_input(struct rpc *rpc, const json_t *message)
{
    struct input_stream *stream = input_stream_of(rpc);
    const json_t *event = NULL;
    struct err err;

    if (json_has(message, "keepalive"))
        return;
    bool is_start = json_has(message, "start");
    if (!json_take_object(message, is_start ? "start" : "data", JSON_OPTIONAL, &event, &err)) {
        rpc_fail_err(rpc, &err);
    } else if (!event) {
        rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "a message is neither start, data nor keepalive");
    } else if (is_start) {
        struct process *p = select_process(rpc, event, PROCESS_LIVE);
        if (p)
            stream->pid = process_pid(p);
    } else if (!stream->pid) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "data came before start");
    } else {
        struct process *p = process_by_pid(rpc->guest->processes, stream->pid, PROCESS_LIVE);
        if (!p) {
            rpc_fail(rpc, CONNECT_NOT_FOUND, "process with pid %d not found", (int)stream->pid);
            return;
        }
        rpc_wait(rpc, true);
        (void)!write_input(rpc, p, event, &stream->input);
    }
}

static void end_stream_input(struct rpc *rpc)
{
    rpc_reply(rpc, STR("{}"));
}

/* ---- CloseStdin, Update, SendSignal ---- */

static void call_close_stdin(struct rpc *rpc, const json_t *request)
{
    struct process *p = select_process(rpc, request, PROCESS_LIVE);
    struct err err;

    if (!p)
        return;
    if (process_close_input(p, &err))
        rpc_reply(rpc, STR("{}"));
    else
        rpc_fail(rpc, CONNECT_UNKNOWN, "%s", err.message);
}

static void call_update(struct rpc *rpc, const json_t *request)
{
    struct process *p = select_process(rpc, request, PROCESS_LIVE);
    struct process_want size = { 0 };
    struct err err;

    if (!p)
        return;
    if (!decode_size(request, &size, &err))
        rpc_fail_err(rpc, &err);
    else if (size.has_pty && !process_resize(p, size.cols, size.rows, &err))
        rpc_fail(rpc, CONNECT_INTERNAL, "%s", err.message);
    else
        rpc_reply(rpc, STR("{}"));
}

struct kill_wait {
    struct process_death death;
    struct rpc *rpc;
};

static void on_dead(struct process_death *death)
{
    rpc_reply(container_of(death, struct kill_wait, death)->rpc, STR("{}"));
}

static void on_kill_gone(struct rpc *rpc)
{
    struct kill_wait *wait = rpc->owner;

    process_death_cancel(&wait->death);
}

static void call_send_signal(struct rpc *rpc, const json_t *request)
{
    struct process *p = select_process(rpc, request, PROCESS_LIVE);
    const json_t *signal = json_object_get(request, "signal");

    if (!p)
        return;
    struct str name = json_is_string(signal) ? json_str(signal) : STR("");
    int64_t number = json_is_integer(signal) ? json_integer_value(signal) : 0;
    if (number == 15 || str_eq(name, STR("SIGNAL_SIGTERM"))) {
        process_terminate(p);
        rpc_reply(rpc, STR("{}"));
    } else if (number == 9 || str_eq(name, STR("SIGNAL_SIGKILL"))) {
        /* Answered when it is dead, so that a `kill -0` after it fails. */
        struct kill_wait *wait = ARENA_NEW(rpc->arena, struct kill_wait);
        wait->rpc = rpc;
        wait->death.done = on_dead;
        rpc->owner = wait;
        rpc->on_gone = on_kill_gone;
        process_kill(p, &wait->death);
    } else if (name.len) {
        rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "invalid signal: %.*s", STR_ARG(name));
    } else {
        rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "invalid signal: %lld", (long long)number);
    }
}

const struct rpc_method process_list = { "process.Process/List", RPC_UNARY, call_list, NULL };
const struct rpc_method process_start = { "process.Process/Start", RPC_SERVER_STREAM, call_start, NULL };
const struct rpc_method process_connect = { "process.Process/Connect", RPC_SERVER_STREAM, call_connect, NULL };
const struct rpc_method process_update = { "process.Process/Update", RPC_UNARY, call_update, NULL };
const struct rpc_method process_send_input = { "process.Process/SendInput", RPC_UNARY, call_send_input, NULL };
const struct rpc_method process_stream_input = { "process.Process/StreamInput", RPC_CLIENT_STREAM, call_stream_input,
                                                 end_stream_input };
const struct rpc_method process_close_stdin = { "process.Process/CloseStdin", RPC_UNARY, call_close_stdin, NULL };
const struct rpc_method process_send_signal = { "process.Process/SendSignal", RPC_UNARY, call_send_signal, NULL };
