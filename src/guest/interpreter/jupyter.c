/*
 * How it works: a connection file tells the kernel five loopback ports and a key. We connect to three of them,
 * retrying while the kernel starts: shell (requests and replies), control (interrupts while shell is busy) and iopub
 * (output). The kernel is ready when it has answered a kernel_info_request on shell and a message about that request
 * has come on iopub: what a kernel publishes before our subscription has arrived is lost.
 *
 * A cell is one execute_request. Its output carries its message id. It is done when iopub has reported "idle" for that
 * id, because all its output comes before that, and shell has replied, because some kernels report errors only there.
 * Variables for one cell are set and restored by silent requests around it (dialect.h).
 *
 * "Kernel" is Jupyter's word for an interpreter; here it never means Linux.
 */
#include "guest/interpreter/jupyter.h"

#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "guest/interpreter/dialect.h"
#include "guest/interpreter/kernel_process.h"
#include "guest/interpreter/launch.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/pipes.h"
#include "guest/tree.h"
#include "io/dial.h"
#include "io/stream.h"
#include "wire/json.h"
#include "wire/zmtp.h"

enum {
    UUID_BYTES = 37,
    RETRY_MS = 25,        /* between two attempts to connect or to get an answer */
    START_MS = 60000,     /* for the whole start: a JVM on a busy machine */
    LATE_RESULT_MS = 40,  /* see struct dialect */
    ANSWER_MS = 1000,     /* for the reply on shell after "idle" on iopub */
    SILENCE_MS = 6000,    /* of a kernel that accepts connections and does not answer: start another one */
    DEAF_MS = 10000,      /* after the reply on shell: some kernels publish nothing on iopub about it */
    DELIMITER_FRAMES = 5, /* signature, header, parent, metadata, content follow "<IDS|MSG>" */
};

enum channel_kind {
    SHELL = KERNEL_SHELL,
    CONTROL = KERNEL_CONTROL,
    IOPUB = KERNEL_IOPUB,
    CHANNELS,
};

enum channel_state {
    CLOSED,   /* not connected */
    GREETING, /* our greeting is sent */
    READYING, /* the kernel's has come */
    OPEN,
};

struct channel {
    struct jupyter_engine *engine;
    enum channel_kind kind;
    enum channel_state state;
    struct stream *stream;
    struct timer retry;
};

struct jupyter_engine {
    struct engine engine;
    struct guest *guest;
    const struct dialect *dialect; /* NULL: a language whose variables we cannot set */
    bool interrupts_by_message;
    struct kernel_process process;
    struct watch *death;
    struct pipes pipes;
    char session[UUID_BYTES];
    struct channel channels[CHANNELS];
    struct timer start_limit, probe;
    bool is_ready, is_dead;
    bool shell_answered;
    uint64_t answered_ms;
    char probe_id[UUID_BYTES];

    /* The cell that runs. */
    bool is_running, was_accepted, has_error, has_result, is_idle, was_answered;
    struct timer answer_limit;
    char cell_id[UUID_BYTES];
    long long cells_run;
    struct buf restore; /* code that restores its variables; empty: nothing to do */
};

/* ---- messages out ---- */

static void sign(const struct jupyter_engine *e, const struct str *parts, size_t count, char out_hex[65])
{
    crypto_auth_hmacsha256_state state;
    unsigned char mac[crypto_auth_hmacsha256_BYTES];

    (void)crypto_auth_hmacsha256_init(&state, (const unsigned char *)e->process.key, KERNEL_KEY_BYTES);
    for (size_t i = 0; i < count; i++)
        (void)crypto_auth_hmacsha256_update(&state, (const unsigned char *)parts[i].at, parts[i].len);
    (void)crypto_auth_hmacsha256_final(&state, mac);
    (void)hex_text(str_of(mac, sizeof mac), out_hex);
}

/* Several requests may have the same id, so that an answer to any of them is recognised. */
static void send_message(struct jupyter_engine *e, enum channel_kind to, const char *type, struct str content,
                         const char *id)
{
    struct channel *channel = &e->channels[to];
    auto_buf struct buf header = buf_make(NULL, 4096), wire = buf_make(NULL, 3 * LIMIT_FRAME_BYTES);
    char time[CLOCK_TEXT_BYTES], signature[65];

    if (channel->state != OPEN)
        return;
    struct json_out out = json_out_to(&header);
    json_out_object(&out, NULL);
    json_out_str(&out, "msg_id", str_from(id));
    json_out_str(&out, "session", str_from(e->session));
    json_out_str(&out, "username", STR("user"));
    json_out_str(&out, "date", str_from(clock_text(clock_wall_us(), time)));
    json_out_str(&out, "msg_type", str_from(type));
    json_out_str(&out, "version", STR("5.3"));
    json_out_end(&out);
    struct str parts[] = { buf_str(&header), STR("{}"), STR("{}"), content };
    sign(e, parts, COUNT_OF(parts), signature);
    struct str frames[] = { STR("<IDS|MSG>"), str_from(signature), parts[0], parts[1], parts[2], parts[3] };
    zmtp_write_message(&wire, frames, COUNT_OF(frames));
    stream_write(channel->stream, buf_str(&wire));
}

static void send_code(struct jupyter_engine *e, struct str code, bool silent, char out_id[UUID_BYTES])
{
    auto_buf struct buf content = buf_make(NULL, LIMIT_FRAME_BYTES);
    struct json_out out = json_out_to(&content);

    json_out_object(&out, NULL);
    json_out_str(&out, "code", code);
    json_out_bool(&out, "silent", silent);
    json_out_bool(&out, "store_history", !silent);
    json_out_object(&out, "user_expressions");
    json_out_end(&out);
    json_out_bool(&out, "allow_stdin", false);
    json_out_bool(&out, "stop_on_error", false); /* otherwise the kernel drops the next cell after a failed one */
    json_out_end(&out);
    random_uuid(out_id);
    send_message(e, SHELL, "execute_request", buf_str(&content), out_id);
}

/* ---- death of the process ---- */

static void close_channel(struct channel *channel)
{
    stream_free(take_ptr(&channel->stream));
    timer_clear(&channel->retry);
    channel->state = CLOSED;
}

static void engine_died(struct jupyter_engine *e, const char *why)
{
    if (e->is_dead)
        return;
    e->is_dead = true;
    watch_free(take_ptr(&e->death));
    timer_clear(&e->start_limit);
    timer_clear(&e->probe);
    timer_clear(&e->answer_limit);
    kernel_process_remove_file(&e->process);
    if (e->is_ready)
        pipes_drain(&e->pipes);
    e->engine.events->on_died(&e->engine, why);
}

static void on_death(void *context, unsigned ready)
{
    struct jupyter_engine *e = context;
    siginfo_t info = { 0 };
    char why[128] = "it ended";

    (void)ready;
    /* If it has been reaped already, the status is lost. */
    if (waitid(P_PIDFD, (id_t)e->process.pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
        launch_explain(info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status, why, sizeof why);
    engine_died(e, why);
}

static void on_start_limit(struct timer *timer)
{
    engine_died(container_of(timer, struct jupyter_engine, start_limit), "it did not answer in time");
}

/* ---- getting ready ---- */

static void on_probe(struct timer *timer);

static void set_globals(struct jupyter_engine *e)
{
    auto_buf struct buf code = buf_make(NULL, LIMIT_API_BODY_BYTES);
    struct arena arena;
    char ignored[UUID_BYTES];

    arena_init(&arena);
    for (size_t i = 0; i < e->guest->env_count; i++)
        dialect_add_set(&code, e->dialect, e->guest->envs[i].name, e->guest->envs[i].value, &arena);
    arena_done(&arena);
    send_code(e, buf_str(&code), true, ignored);
}

static void become_ready(struct jupyter_engine *e)
{
    if (e->is_ready)
        return;
    e->is_ready = true;
    if (e->dialect && e->dialect->needs_globals)
        set_globals(e);
    timer_clear(&e->start_limit);
    timer_clear(&e->probe);
    kernel_process_remove_file(&e->process);
    e->engine.events->on_ready(&e->engine);
}

/* Repeated: what is published about a request before our subscription to iopub has arrived is lost. */
static void send_probe(struct jupyter_engine *e)
{
    if (e->shell_answered && loop_now_ms(e->guest->loop) - e->answered_ms > DEAF_MS) {
        become_ready(e);
        return;
    }
    send_message(e, SHELL, "kernel_info_request", STR("{}"), e->probe_id);
    timer_set(&e->probe, e->guest->loop, 8 * RETRY_MS, on_probe);
}

static void on_probe(struct timer *timer)
{
    send_probe(container_of(timer, struct jupyter_engine, probe));
}

static void channel_opened(struct channel *channel)
{
    struct jupyter_engine *e = channel->engine;

    for (size_t i = 0; i < CHANNELS; i++)
        if (e->channels[i].state != OPEN)
            return;
    if (e->is_ready)
        return;
    timer_set(&e->probe, e->guest->loop, e->dialect ? e->dialect->settle_ms : 0, on_probe);
    timer_set(&e->start_limit, e->guest->loop, SILENCE_MS, on_start_limit);
}

/* ---- messages in ---- */

static void emit_line(struct jupyter_engine *e, enum engine_line kind, const struct buf *line)
{
    if (!line->overflowed)
        e->engine.events->on_line(&e->engine, kind, buf_str(line));
}

/* Some kernels do not announce that they run a cell: then its first message counts as that. */
static void accept_cell(struct jupyter_engine *e, long long number)
{
    auto_buf struct buf line = buf_make(NULL, 256);

    if (e->was_accepted)
        return;
    e->was_accepted = true;
    e->cells_run++;
    line_add_count(&line, number ? number : e->cells_run);
    emit_line(e, ENGINE_LINE_ACCEPTED, &line);
}

static void emit_error(struct jupyter_engine *e, struct str name, struct str value, struct str traceback)
{
    auto_buf struct buf line = buf_make(NULL, LIMIT_FRAME_BYTES);

    if (e->has_error)
        return;
    e->has_error = true;
    accept_cell(e, 0);
    line_add_error(&line, name, value, traceback);
    emit_line(e, ENGINE_LINE_ERROR, &line);
}

static struct str text_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_string(value) ? json_str(value) : STR("");
}

static void take_error(struct jupyter_engine *e, const json_t *content)
{
    auto_buf struct buf traceback = buf_make(NULL, LIMIT_FRAME_BYTES);
    const json_t *lines = json_object_get(content, "traceback"), *line;
    size_t i;

    json_array_foreach((json_t *)lines, i, line)
    {
        if (i)
            buf_add_char(&traceback, '\n');
        if (json_is_string(line))
            buf_add(&traceback, json_str(line));
    }
    emit_error(e, text_of(content, "ename"), text_of(content, "evalue"), buf_str(&traceback));
}

static void finish_cell(struct jupyter_engine *e)
{
    char ignored[UUID_BYTES];

    timer_clear(&e->answer_limit);
    accept_cell(e, 0);
    e->is_running = false;
    if (e->restore.len)
        send_code(e, buf_str(&e->restore), true, ignored); /* the kernel runs it before the next cell */
    buf_clear(&e->restore);
    e->engine.events->on_done(&e->engine);
}

static void on_answer_limit(struct timer *timer)
{
    finish_cell(container_of(timer, struct jupyter_engine, answer_limit));
}

static void finish_if_done(struct jupyter_engine *e)
{
    bool may_still_come = e->dialect && e->dialect->results_come_late && !e->has_result && !e->has_error;

    if (e->is_idle && e->was_answered && may_still_come)
        timer_set(&e->answer_limit, e->guest->loop, LATE_RESULT_MS, on_answer_limit);
    else if (e->is_idle && e->was_answered)
        finish_cell(e);
    else if (e->is_idle)
        timer_set(&e->answer_limit, e->guest->loop, ANSWER_MS, on_answer_limit);
}

/* The Java kernel sends every plain value as HTML. Without markup it becomes text, which clients look for. */
static void text_from_html(json_t *bundle)
{
    json_t *html = json_object_get(bundle, "text/html");

    if (!json_is_string(html) || json_object_get(bundle, "text/plain") || strpbrk(json_string_value(html), "<&"))
        return;
    (void)json_object_set(bundle, "text/plain", html);
    (void)json_object_del(bundle, "text/html");
}

static void take_output(struct jupyter_engine *e, struct str type, const json_t *content)
{
    auto_buf struct buf line = buf_make(NULL, 3 * LIMIT_FRAME_BYTES);

    if (str_eq(type, STR("status"))) {
        e->is_idle |= str_eq(text_of(content, "execution_state"), STR("idle"));
        finish_if_done(e);
    } else if (str_eq(type, STR("execute_input"))) {
        accept_cell(e, json_integer_value(json_object_get(content, "execution_count")));
    } else if (str_eq(type, STR("stream"))) {
        accept_cell(e, 0);
        bool is_stderr = str_eq(text_of(content, "name"), STR("stderr"));
        line_add_stream(&line, is_stderr ? LINE_STDERR : LINE_STDOUT, text_of(content, "text"), clock_wall_us());
        emit_line(e, ENGINE_LINE_OUTPUT, &line);
    } else if (str_eq(type, STR("display_data")) || str_eq(type, STR("execute_result"))) {
        accept_cell(e, 0);
        text_from_html(json_object_get(content, "data"));
        line_add_result(&line, json_object_get(content, "data"), str_eq(type, STR("execute_result")));
        emit_line(e, ENGINE_LINE_OUTPUT, &line);
        e->has_result |= str_eq(type, STR("execute_result"));
        finish_if_done(e);
    } else if (str_eq(type, STR("error"))) {
        take_error(e, content);
    }
}

static void take_answer(struct jupyter_engine *e, const json_t *content)
{
    struct str status = text_of(content, "status");

    if (str_eq(status, STR("error")))
        take_error(e, content);
    else if (str_starts(status, STR("abort")))
        emit_error(e, STR("ExecutionAborted"), STR("Execution was aborted"), STR(""));
    e->was_answered = true;
    finish_if_done(e);
}

static void take_message(struct channel *channel, struct str type, struct str parent_id, const json_t *content)
{
    struct jupyter_engine *e = channel->engine;

    if (!e->is_ready && str_eq(parent_id, str_from(e->probe_id))) {
        if (channel->kind == SHELL && !e->shell_answered) {
            e->shell_answered = true;
            e->answered_ms = loop_now_ms(e->guest->loop);
        }
        if (channel->kind == IOPUB && e->shell_answered)
            become_ready(e);
    } else if (e->is_running && str_eq(parent_id, str_from(e->cell_id))) {
        if (channel->kind == IOPUB)
            take_output(e, type, content);
        else if (str_eq(type, STR("execute_reply")))
            take_answer(e, content);
    }
}

/* "<IDS|MSG>", signature, header, parent, metadata, content. A message with a wrong signature is ignored. */
static void decode_message(struct channel *channel, const struct zmtp_message *message)
{
    struct jupyter_engine *e = channel->engine;
    struct err ignored;
    char signature[65];
    size_t i = 0;

    while (i < message->count && !str_eq(message->frames[i], STR("<IDS|MSG>")))
        i++;
    if (message->count < i + 1 + DELIMITER_FRAMES)
        return;
    sign(e, &message->frames[i + 2], 4, signature);
    if (message->frames[i + 1].len != 64 || sodium_memcmp(signature, message->frames[i + 1].at, 64) != 0)
        return;
    auto_json json_t *header = json_parse_object(message->frames[i + 2], &ignored);
    auto_json json_t *parent = json_parse_object(message->frames[i + 3], &ignored);
    struct str parent_id = text_of(parent, "msg_id");
    bool is_ours = str_eq(parent_id, str_from(e->is_ready ? e->cell_id : e->probe_id));
    if (!header || !is_ours)
        return;
    auto_json json_t *content = json_parse_large(message->frames[i + 5], LIMIT_JSON_LARGE_VALUES, &ignored);
    if (json_is_object(content))
        take_message(channel, text_of(header, "msg_type"), parent_id, content);
}

/* ---- channels ---- */

static void channel_dial(struct channel *channel);

static void on_retry(struct timer *timer)
{
    channel_dial(container_of(timer, struct channel, retry));
}

static void send_ready(struct channel *channel)
{
    auto_buf struct buf out = buf_make(NULL, 4096);

    zmtp_write_ready(&out, channel->kind == IOPUB ? STR("SUB") : STR("DEALER"),
                     channel->kind == IOPUB ? STR("") : str_from(channel->engine->session));
    if (channel->kind == IOPUB)
        zmtp_write_message(&out, (struct str[]){ STR("\1") }, 1); /* everything */
    stream_write(channel->stream, buf_str(&out));
}

static void take_command(struct channel *channel, const struct zmtp_message *message)
{
    auto_buf struct buf out = buf_make(NULL, 4096);

    if (channel->state == READYING && zmtp_is_command(message, STR("READY"))) {
        channel->state = OPEN;
        channel_opened(channel);
    } else if (zmtp_is_command(message, STR("PING"))) {
        zmtp_write_pong(&out, message->frames[0]);
        stream_write(channel->stream, buf_str(&out));
    }
}

static void kill_tree(struct jupyter_engine *e)
{
    tree_kill(e->guest->loop,
              &(struct tree){ .leader = e->process.pid, .session = e->process.pid, .leader_lives = !e->is_dead });
}

static void channel_broken(struct channel *channel)
{
    struct jupyter_engine *e = channel->engine;

    close_channel(channel);
    if (!e->is_ready && !e->is_dead)
        timer_set(&channel->retry, e->guest->loop, RETRY_MS, on_retry);
    else if (!e->is_dead)
        kill_tree(e); /* it cannot be reached any more; its death comes by the pidfd */
}

static void on_input(struct stream *stream)
{
    struct channel *channel = stream->owner;
    struct zmtp_message message;
    struct err err;
    size_t used;

    if (channel->state == GREETING) {
        enum zmtp_parse greeted = zmtp_parse_greeting(buf_str(&stream->in), &err);
        if (greeted == ZMTP_BAD)
            channel_broken(channel);
        if (greeted != ZMTP_DONE)
            return;
        buf_drop(&stream->in, ZMTP_GREETING_BYTES);
        channel->state = READYING;
        send_ready(channel);
    }
    while (channel->stream == stream && stream->in.len) {
        enum zmtp_parse parsed = zmtp_parse_message(buf_str(&stream->in), LIMIT_FRAME_BYTES, &message, &used, &err);
        if (parsed == ZMTP_BAD)
            channel_broken(channel);
        if (parsed != ZMTP_DONE)
            return;
        if (message.is_command) {
            take_command(channel, &message);
        } else {
            if (channel->kind == IOPUB && channel->engine->is_ready)
                pipes_drain(&channel->engine->pipes);
            decode_message(channel, &message);
        }
        if (channel->stream == stream)
            buf_drop(&stream->in, used);
    }
}

static void on_end(struct stream *stream, const struct err *err)
{
    (void)err;
    channel_broken(stream->owner);
}

static const struct stream_events channel_events = { .on_input = on_input, .on_end = on_end };

static void channel_dial(struct channel *channel)
{
    struct jupyter_engine *e = channel->engine;
    auto_buf struct buf out = buf_make(NULL, 4096);
    char address[32];
    struct err ignored;

    (void)snprintf(address, sizeof address, "127.0.0.1:%u", e->process.ports[channel->kind]);
    int fd = dial_open(str_from(address), &ignored);
    if (fd < 0) {
        timer_set(&channel->retry, e->guest->loop, RETRY_MS, on_retry);
        return;
    }
    channel->state = GREETING;
    channel->stream = stream_new_connecting(e->guest->loop, fd, LIMIT_FRAME_BYTES + 4096, &channel_events, channel);
    zmtp_write_greeting(&out);
    stream_write(channel->stream, buf_str(&out));
    stream_read(channel->stream, true);
}

/* ---- starting ---- */

/* Output outside of Jupyter's protocol, as of a subprocess. Output during the start is dropped. */
static void on_pipe_line(struct pipes *pipes, struct str line)
{
    struct jupyter_engine *e = container_of(pipes, struct jupyter_engine, pipes);

    if (e->is_ready)
        e->engine.events->on_line(&e->engine, ENGINE_LINE_PRINTED, line);
}

/* ---- the engine ---- */

static void run(struct engine *engine, const struct engine_code *code)
{
    struct jupyter_engine *e = container_of(engine, struct jupyter_engine, engine);
    auto_buf struct buf set = buf_make(NULL, LIMIT_API_BODY_BYTES);
    struct arena arena;
    char ignored[UUID_BYTES];

    e->is_running = true;
    e->was_accepted = e->has_error = e->has_result = e->is_idle = e->was_answered = false;
    arena_init(&arena);
    for (size_t i = 0; e->dialect && i < code->env_count; i++) {
        struct str name = code->envs[i].name;
        const struct guestlink_env *global = NULL;
        for (size_t j = 0; j < e->guest->env_count; j++)
            if (str_eq(e->guest->envs[j].name, name))
                global = &e->guest->envs[j];
        dialect_add_set(&set, e->dialect, name, code->envs[i].value, &arena);
        if (global)
            dialect_add_set(&e->restore, e->dialect, name, global->value, &arena);
        else
            dialect_add_unset(&e->restore, e->dialect, name, &arena);
    }
    arena_done(&arena);
    if (set.len)
        send_code(e, buf_str(&set), true, ignored);
    send_code(e, code->code, false, e->cell_id);
}

static void interrupt(struct engine *engine)
{
    struct jupyter_engine *e = container_of(engine, struct jupyter_engine, engine);
    char id[UUID_BYTES];

    random_uuid(id);
    if (e->interrupts_by_message)
        send_message(e, CONTROL, "interrupt_request", STR("{}"), id);
    else if (!e->is_dead)
        (void)kill(-e->process.pid, SIGINT);
}

static void pause_reading(struct engine *engine, bool pause)
{
    struct jupyter_engine *e = container_of(engine, struct jupyter_engine, engine);

    pipes_pause(&e->pipes, pause);
    if (e->channels[IOPUB].stream)
        stream_read(e->channels[IOPUB].stream, !pause);
}

static void dispose(void *object)
{
    struct jupyter_engine *e = object;

    buf_done(&e->restore);
    free(e);
}

static void engine_end(struct engine *engine)
{
    struct jupyter_engine *e = container_of(engine, struct jupyter_engine, engine);

    if (e->process.pid)
        kill_tree(e);
    e->is_dead = true;
    watch_free(take_ptr(&e->death));
    timer_clear(&e->start_limit);
    timer_clear(&e->probe);
    timer_clear(&e->answer_limit);
    for (size_t i = 0; i < CHANNELS; i++)
        close_channel(&e->channels[i]);
    pipes_close(&e->pipes);
    kernel_process_done(&e->process);
    loop_retire(e->guest->loop, e, dispose);
}

static const struct engine_kind kind = {
    .run = run, .interrupt = interrupt, .pause = pause_reading, .free = engine_end
};

static bool start(struct jupyter_engine *e, const struct user *user, const struct kernelspec *spec,
                  const struct engine_want *want, struct err *err)
{
    int theirs[2];

    if (!pipes_open(&e->pipes, e->guest->loop, on_pipe_line, theirs, err))
        return false;
    bool started = kernel_process_start(&e->process, e->guest, user, spec, want->cwd, theirs, err);
    fd_close(&theirs[0]);
    fd_close(&theirs[1]);
    return started;
}

struct engine *jupyter_engine_new(struct guest *guest, const struct user *user, const struct kernelspec *spec,
                                  const struct engine_want *want, struct err *err)
{
    struct jupyter_engine *e = NEW(struct jupyter_engine);

    e->engine = (struct engine){ .kind = &kind, .events = want->events, .owner = want->owner };
    e->guest = guest;
    e->dialect = dialect_find(spec->language);
    e->interrupts_by_message = spec->interrupts_by_message;
    kernel_process_init(&e->process);
    e->pipes.ends[0].fd = e->pipes.ends[1].fd = -1;
    e->restore = buf_make(NULL, LIMIT_API_BODY_BYTES);
    random_uuid(e->session);
    random_uuid(e->probe_id);
    if (!start(e, user, spec, want, err)) {
        engine_end(&e->engine);
        return NULL;
    }
    e->death = watch_new(guest->loop, e->process.pidfd, on_death, e);
    watch_want(e->death, WATCH_READ);
    timer_set(&e->start_limit, guest->loop, START_MS, on_start_limit);
    for (size_t i = 0; i < CHANNELS; i++) {
        e->channels[i] = (struct channel){ .engine = e, .kind = (enum channel_kind)i };
        timer_set(&e->channels[i].retry, guest->loop, RETRY_MS, on_retry);
    }
    return &e->engine;
}
