/*
 * exec.c - `cloister sandbox exec`: run a command in a sandbox as if it ran here.
 *
 * Theory of operation. The sandbox's access token comes from the API. Then one Start call goes to guestd through the
 * edge, addressed by headers like an SDK's, and its answer is a stream of Connect envelopes: start with the pid, data
 * in base64, end with the exit code, and a last envelope that closes the stream. Output is written as it comes. The
 * first interrupt asks the process to end (it would outlive the connection otherwise), the second one ends us.
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/ports.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "http/http.h"
#include "io/dial.h"
#include "io/loop.h"
#include "wire/connect.h"

#define SIGNAL_TIMEOUT_MS 5000

enum { EXIT_NOT_RUN = 125, EXIT_BY_SIGNAL = 128, EXIT_UNKNOWN_SIGNAL = 255 };

/* One command on its way. */
struct exec {
    struct cli *cli;
    struct client *client;
    struct loop *loop;
    struct http_call *call;
    struct connect_reader reader;
    struct str sandbox_id, access_token;
    unsigned status;    /* of the HTTP answer; 0: none yet */
    struct buf refusal; /* body of an answer that is not 200 */
    int64_t pid;        /* 0: not started */
    bool has_ended;     /* the end event was there: exit_code is true */
    int exit_code;
    unsigned interrupts;
    bool failed;
    struct err err;
};

static void finish(struct exec *exec)
{
    loop_stop_soon(exec->loop);
}

static void fail(struct exec *exec, const struct err *err)
{
    if (!exec->failed)
        exec->err = *err;
    exec->failed = true;
    finish(exec);
}

/* ---- events ---- */

/* What a shell would report. guestd names signals as Go does, and only these are common. */
static int signal_exit_code(struct str status)
{
    static const struct {
        struct str name;
        int number;
    } signals[] = {
        { STR_INIT("hangup"), SIGHUP },       { STR_INIT("interrupt"), SIGINT },
        { STR_INIT("quit"), SIGQUIT },        { STR_INIT("aborted"), SIGABRT },
        { STR_INIT("killed"), SIGKILL },      { STR_INIT("segmentation fault"), SIGSEGV },
        { STR_INIT("broken pipe"), SIGPIPE }, { STR_INIT("terminated"), SIGTERM },
    };

    if (!str_skip(&status, STR("signal: ")))
        return EXIT_UNKNOWN_SIGNAL;
    for (size_t i = 0; i < COUNT_OF(signals); i++)
        if (str_starts(status, signals[i].name))
            return EXIT_BY_SIGNAL + signals[i].number;
    return EXIT_UNKNOWN_SIGNAL;
}

static bool take_output(const json_t *data, const char *name, int fd, struct err *err)
{
    struct str text = STR("");
    size_t len;

    if (!json_take_str(data, name, JSON_OPTIONAL, &text, err))
        return false;
    if (text.len == 0)
        return true;
    auto_free unsigned char *bytes = mem_new(text.len / 4 * 3 + 3);
    if (!base64_decode(text, bytes, &len))
        return err_set(err, ERR_INTERNAL, "the sandbox sent output that is not base64");
    return fd_write_all(fd, str_of(bytes, len), err);
}

static bool take_event(struct exec *exec, struct str payload, struct err *err)
{
    auto_json json_t *message = json_parse_object(payload, err);
    const json_t *event = NULL, *start = NULL, *data = NULL, *end = NULL;

    if (!message || !json_take_object(message, "event", JSON_REQUIRED, &event, err) ||
        !json_take_object(event, "start", JSON_OPTIONAL, &start, err) ||
        !json_take_object(event, "data", JSON_OPTIONAL, &data, err) ||
        !json_take_object(event, "end", JSON_OPTIONAL, &end, err))
        return false;
    if (start && !json_take_int(start, "pid", JSON_OPTIONAL, 0, UINT32_MAX, &exec->pid, err))
        return false;
    if (data && (!take_output(data, "stdout", STDOUT_FILENO, err) || !take_output(data, "stderr", STDERR_FILENO, err)))
        return false;
    if (!end)
        return true;
    /* proto3 leaves out what is 0 or false: no exitCode is success, no exited is a signal. */
    bool exited = false;
    int64_t code = 0;
    struct str status = STR("");
    if (!json_take_bool(end, "exited", JSON_OPTIONAL, &exited, err) ||
        !json_take_int(end, "exitCode", JSON_OPTIONAL, INT32_MIN, INT32_MAX, &code, err) ||
        !json_take_str(end, "status", JSON_OPTIONAL, &status, err))
        return false;
    exec->exit_code = exited ? (int)(code & 0xff) : signal_exit_code(status);
    exec->has_ended = true;
    return true;
}

/* The last envelope: {} or {"error":{"code","message"}}. */
static bool take_end_of_stream(struct exec *exec, struct str payload, struct err *err)
{
    auto_json json_t *message = json_parse_object(payload, err);
    const json_t *error = NULL;
    struct str code = STR(""), text = STR("");
    enum connect_code number = CONNECT_UNKNOWN;

    if (!message || !json_take_object(message, "error", JSON_OPTIONAL, &error, err))
        return false;
    if (!error)
        return true;
    if (!json_take_str(error, "code", JSON_OPTIONAL, &code, err) ||
        !json_take_str(error, "message", JSON_OPTIONAL, &text, err))
        return false;
    (void)!connect_code_parse(code, &number); /* one we do not know stays unknown */
    return client_refused(exec->cli, client_kind_of(connect_code_status(number)), text, err);
}

static void terminate(struct exec *exec);

/* The reader of our output (head, a pager) has closed it: end the command, as a shell would, without a message. */
static void lose_reader(struct exec *exec)
{
    if (exec->pid)
        terminate(exec);
    exec->has_ended = true;
    exec->exit_code = EXIT_BY_SIGNAL + SIGPIPE;
    finish(exec);
}

static void on_head(struct http_call *call, const struct http_head *head)
{
    struct exec *exec = http_call_owner(call);

    exec->status = head->status;
}

static void on_body(struct http_call *call, struct str piece)
{
    struct exec *exec = http_call_owner(call);
    struct err err;

    if (exec->status != 200) {
        buf_add(&exec->refusal, piece);
        return;
    }
    for (;;) {
        unsigned flags;
        struct str payload;
        enum connect_read read = connect_reader_next(&exec->reader, &piece, &flags, &payload, &err);
        if (read == CONNECT_MORE)
            return;
        if (read == CONNECT_ENVELOPE &&
            (flags & CONNECT_END_STREAM ? take_end_of_stream(exec, payload, &err) : take_event(exec, payload, &err)))
            continue;
        if (err.sys == EPIPE)
            lose_reader(exec);
        else
            fail(exec, &err);
        return;
    }
}

static void on_end(struct http_call *call)
{
    struct exec *exec = http_call_owner(call);
    struct err err;

    if (exec->status != 200) {
        (void)client_error(exec->cli, exec->status, buf_str(&exec->refusal), &err);
        fail(exec, &err);
    }
    finish(exec);
}

static void on_error(struct http_call *call, const struct err *err)
{
    fail(http_call_owner(call), err);
}

static const struct http_call_events exec_events = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_error = on_error,
};

/* ---- requests ---- */

/* What every request to guestd carries. */
enum { GUEST_FIELDS = 6 };

static size_t guest_fields(const struct exec *exec, struct str content_type, struct http_field fields[GUEST_FIELDS])
{
    struct arena *arena = &exec->cli->arena;
    size_t count = 0;

    fields[count++] = (struct http_field){ STR("E2b-Sandbox-Id"), exec->sandbox_id };
    fields[count++] = (struct http_field){ STR("E2b-Sandbox-Port"), STR(PORT_TEXT(GUESTD_PORT)) };
    fields[count++] = (struct http_field){ STR("Connect-Protocol-Version"), STR("1") };
    fields[count++] = (struct http_field){ STR("Content-Type"), content_type };
    if (exec->access_token.len)
        fields[count++] = (struct http_field){ STR("X-Access-Token"), exec->access_token };
    if (exec->cli->user) {
        /* Basic, with the user's name and no password: how clients say whom to run as. */
        struct str pair = arena_format(arena, "%s:", exec->cli->user);
        char *room = arena_alloc(arena, base64_size(pair.len) + 1);
        size_t len = base64_encode(pair, room);
        fields[count++] =
            (struct http_field){ STR("Authorization"), arena_format(arena, "Basic %.*s", (int)len, room) };
    }
    return count;
}

/*
 * One word is a line for the shell, several are a command and its exact arguments. Both get the login environment that
 * the SDKs' commands have.
 */
static struct str start_message(struct exec *exec)
{
    struct cli *cli = exec->cli;
    struct buf body = buf_make(&cli->arena, LIMIT_RPC_BYTES);
    struct json_out out = json_out_to(&body);

    json_out_object(&out, NULL);
    json_out_object(&out, "process");
    json_out_str(&out, "cmd", STR("/bin/bash"));
    json_out_array(&out, "args");
    json_out_str(&out, NULL, STR("-l"));
    json_out_str(&out, NULL, STR("-c"));
    if (cli->word_count == 2) {
        json_out_str(&out, NULL, str_from(cli->words[1]));
    } else {
        json_out_str(&out, NULL, STR("exec \"$@\""));
        json_out_str(&out, NULL, STR("bash"));
        for (size_t i = 1; i < cli->word_count; i++)
            json_out_str(&out, NULL, str_from(cli->words[i]));
    }
    json_out_end(&out);
    json_out_object(&out, "envs");
    for (size_t i = 0; i < cli->env_count; i++) {
        struct str value = str_from(cli->envs[i]), name;
        (void)str_cut(&value, '=', &name);
        json_out_pair(&out, name, value);
    }
    json_out_end(&out);
    if (cli->cwd)
        json_out_str(&out, "cwd", str_from(cli->cwd));
    json_out_end(&out);
    json_out_bool(&out, "stdin", false);
    json_out_end(&out);
    return body.overflowed ? STR("") : buf_str(&body);
}

static bool start(struct exec *exec, struct err *err)
{
    struct arena *arena = &exec->cli->arena;
    struct str message = start_message(exec);
    struct buf head = buf_make(arena, LIMIT_HEAD_BYTES);
    struct buf body = buf_make(arena, LIMIT_RPC_BYTES + CONNECT_HEADER_BYTES);
    struct http_field fields[GUEST_FIELDS];
    size_t count = guest_fields(exec, STR("application/connect+json"), fields);

    connect_write(&body, 0, message);
    if (message.len == 0 || body.overflowed)
        return err_set(err, ERR_LIMIT, "the command line is too long");
    http_write_request_line(&head, STR("POST"), STR("/process.Process/Start"));
    http_write_header(&head, STR("Host"), str_from(exec->client->address));
    for (size_t i = 0; i < count; i++)
        http_write_header(&head, fields[i].name, fields[i].value);
    /* So that a connection on which nothing happens is seen to be alive. */
    http_write_header(&head, STR("Keepalive-Ping-Interval"), STR("50"));
    http_write_header_number(&head, STR("Content-Length"), body.len);
    http_write_head_end(&head);
    if (head.overflowed)
        return err_set(err, ERR_INVALID, "the user name cannot be sent in a header");

    int fd = dial_open(str_from(exec->client->address), err);
    if (fd < 0)
        return false;
    exec->call = http_call_new(exec->loop, fd, true, buf_str(&head), HTTP_POST, HTTP_LENGTH, &exec_events, exec);
    http_call_write(exec->call, buf_str(&body));
    http_call_finish(exec->call);
    return true;
}

/* Asks the process to end. Waits a moment for the call; the stream reports the exit. */
static void terminate(struct exec *exec)
{
    struct arena *arena = &exec->cli->arena;
    struct http_field fields[GUEST_FIELDS];
    size_t count = guest_fields(exec, STR("application/json"), fields);
    struct str body = arena_format(arena, "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGTERM\"}", (int)exec->pid);
    struct http_answer answer;
    struct err err;

    if (!http_fetch(arena, str_from(exec->client->address), STR("POST"), STR("/process.Process/SendSignal"), fields,
                    count, body, SIGNAL_TIMEOUT_MS, &answer, &err))
        fail(exec, &err);
}

static void on_interrupt(void *context, int signal_number)
{
    struct exec *exec = context;

    if (exec->interrupts++ == 0 && exec->pid) {
        terminate(exec);
        return;
    }
    exec->has_ended = true;
    exec->exit_code = EXIT_BY_SIGNAL + signal_number;
    finish(exec);
}

/* ---- the command ---- */

static bool fetch_token(struct exec *exec, struct err *err)
{
    struct cli *cli = exec->cli;
    struct client_answer answer = { 0 };
    struct str token = STR(""), target;

    if (!client_target(cli, STR("/sandboxes/"), exec->sandbox_id, STR(""), &target, err) ||
        !client_call(exec->client, "GET", target, STR(""), &answer, err))
        return err_wrap(err, "find the sandbox");
    auto_json json_t *sandbox = answer.json;
    if (!json_take_str(sandbox, "envdAccessToken", JSON_OPTIONAL, &token, err))
        return err_wrap(err, "find the sandbox");
    exec->access_token = arena_copy(&cli->arena, token);
    return true;
}

static bool run_to_the_end(struct exec *exec, struct err *err)
{
    if (!loop_on_signal(exec->loop, SIGINT, on_interrupt, exec, err) ||
        !loop_on_signal(exec->loop, SIGTERM, on_interrupt, exec, err) || !start(exec, err))
        return false;
    loop_run(exec->loop);
    if (exec->failed) {
        *err = exec->err;
        return false;
    }
    if (!exec->has_ended)
        return err_set(err, ERR_UNAVAILABLE, "the sandbox ended while the command ran");
    exec->cli->exit_code = exec->exit_code;
    return true;
}

/*
 * The edge says of a paused sandbox that there is none, and cuts what runs when one is paused. The API knows more. Without
 * an answer *err stays as it is.
 */
static bool explain_pause(struct exec *exec, struct err *err)
{
    struct cli *cli = exec->cli;
    struct client_answer answer = { 0 };
    struct str refusal = cli->refusal, state = STR(""), mode = STR(""), target;
    struct err why;

    bool known = client_target(cli, STR("/sandboxes/"), exec->sandbox_id, STR(""), &target, &why) &&
                 client_call(exec->client, "GET", target, STR(""), &answer, &why);
    auto_json json_t *sandbox = answer.json;
    cli->refusal = refusal;
    if (!known || !json_take_str(sandbox, "state", JSON_OPTIONAL, &state, &why) ||
        !json_take_str(sandbox, "pauseMode", JSON_OPTIONAL, &mode, &why) || !str_eq(state, STR("paused")))
        return false;
    struct str back =
        arena_format(&cli->arena, "%s sandbox resume %s%s", cli_program(), cli->words[0], cli_same_server(cli));
    struct str text =
        !exec->pid
            ? arena_format(&cli->arena, "sandbox %s is paused; to bring it back: %.*s", cli->words[0], STR_ARG(back))
        : str_eq(mode, STR("filesystem"))
            ? arena_format(&cli->arena, "sandbox %s was paused with its files only, and the command ended",
                           cli->words[0])
            : arena_format(&cli->arena, "sandbox %s was paused; the command goes on after: %.*s", cli->words[0],
                           STR_ARG(back));
    return client_refused(cli, ERR_UNAVAILABLE, text, err);
}

bool sandbox_exec_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct exec exec = { .cli = cli, .client = &client, .sandbox_id = str_from(cli->words[0]) };

    /* Any code may also be the command's own. 125 is unlikely, and docker uses it for the same purpose. */
    cli->exit_code = EXIT_NOT_RUN;
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err) || !fetch_token(&exec, err))
        return false;
    exec.loop = loop_new();
    exec.refusal = buf_make(&cli->arena, LIMIT_API_BODY_BYTES);
    connect_reader_init(&exec.reader);
    bool fine = run_to_the_end(&exec, err) || explain_pause(&exec, err);
    http_call_free(exec.call);
    connect_reader_done(&exec.reader);
    loop_free(exec.loop);
    return fine;
}
