/*
 * pause.c - put a sandbox to sleep, bring it back, and copy a running one.
 */
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"

/* One POST about the sandbox that the command names. */
static bool post(struct cli *cli, const char *before, const char *after, const struct buf *body,
                 struct client_answer *out, struct err *err)
{
    auto_client struct client client = { 0 };
    struct str target;

    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    client.timeout_ms = CLIENT_PAUSE_MS;
    return client_target(cli, str_from(before), str_from(cli->words[0]), str_from(after), &target, err) &&
           client_call(&client, "POST", target, buf_str(body), out, err);
}

static bool timeout_write(struct json_out *json, const struct cli *cli, struct err *err)
{
    uint64_t timeout_s;

    if (!cli->timeout)
        return true;
    if (!args_number("timeout", cli->timeout, 1, LIMIT_TIMEOUT_S, &timeout_s, err))
        return false;
    json_out_int(json, "timeout", (int64_t)timeout_s);
    return true;
}

/* ---- pause ---- */

bool sandbox_pause_run(struct cli *cli, struct err *err)
{
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);

    json_out_object(&json, NULL);
    json_out_bool(&json, "memory", !cli->files_only);
    json_out_end(&json);
    if (!post(cli, "/sandboxes/", "/pause", &body, &answer, err))
        return err_wrap(err, "pause %.40s", cli->words[0]);
    json_decref(answer.json);
    if (cli->json) {
        auto_json json_t *done = json_pack("{s:s, s:s, s:s}", "sandboxID", cli->words[0], "state", "paused",
                                           "pauseMode", cli->files_only ? "filesystem" : "full");
        return client_print(cli, done);
    }
    fprintf(cli->out, "%s\n", cli->words[0]);
    fprintf(cli->note, "Paused, with its files%s. To bring it back: %s sandbox resume %s%s\n",
            cli->files_only ? "; its processes have ended" : " and processes", cli_program(), cli->words[0],
            cli_same_server(cli));
    return true;
}

/* ---- resume ---- */

bool sandbox_resume_run(struct cli *cli, struct err *err)
{
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct str id;

    json_out_object(&json, NULL);
    if (!timeout_write(&json, cli, err))
        return false;
    if (cli->reboot)
        json_out_bool(&json, "memory", false);
    json_out_end(&json);
    if (!post(cli, "/v2/sandboxes/", "/connect", &body, &answer, err))
        return err_wrap(err, "resume %.40s", cli->words[0]);
    auto_json json_t *sandbox = answer.json;
    if (answer.status != 201)
        fprintf(cli->note, "It was running already; nothing %s. It ends when asked for, or later.\n",
                cli->reboot ? "was restarted" : "had to be resumed");
    if (cli->json)
        return client_print(cli, sandbox);
    if (!json_take_str(sandbox, "sandboxID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    fprintf(cli->out, "%.*s\n", STR_ARG(id));
    return true;
}

/* ---- fork ---- */

/* An entry is a sandbox or an error, each copy on its own. */
static bool fork_entry(struct cli *cli, const json_t *entry, bool *out_made, struct err *err)
{
    const json_t *sandbox = NULL, *error = NULL;
    struct str id, message = STR("");
    int64_t code = 0;

    if (!json_take_object(entry, "sandbox", JSON_OPTIONAL, &sandbox, err) ||
        !json_take_object(entry, "error", JSON_OPTIONAL, &error, err))
        return client_misread(err);
    if (error) {
        *out_made = false;
        if (!json_take_int(error, "code", JSON_REQUIRED, 0, 999, &code, err) ||
            !json_take_str(error, "message", JSON_REQUIRED, &message, err))
            return client_misread(err);
        return client_refused(cli, client_kind_of((unsigned)code), message, err);
    }
    if (!sandbox) {
        (void)err_set(err, ERR_INTERNAL, "no 'sandbox' and no 'error'");
        return client_misread(err);
    }
    *out_made = true;
    if (!json_take_str(sandbox, "sandboxID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    if (!cli->json)
        fprintf(cli->out, "%.*s\n", STR_ARG(id));
    return true;
}

/* Copies that were made are printed, also if others were not. The last failure is reported. */
static bool fork_report(struct cli *cli, const json_t *list, struct err *err)
{
    const json_t *entry;
    size_t i, made = 0;
    bool fine = true;

    if (!json_is_array(list)) {
        (void)err_set(err, ERR_INTERNAL, "no list");
        return client_misread(err);
    }
    json_array_foreach(list, i, entry)
    {
        bool is_made = false;
        fine = fork_entry(cli, entry, &is_made, err) && fine;
        made += is_made;
    }
    if (!fine)
        fprintf(cli->note, "Copies made: %zu of %zu.\n", made, json_array_size(list));
    return fine;
}

bool sandbox_fork_run(struct cli *cli, struct err *err)
{
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    uint64_t count = 1;

    json_out_object(&json, NULL);
    if ((cli->count && !args_number("count", cli->count, 1, LIMIT_FORKS, &count, err)) ||
        !timeout_write(&json, cli, err))
        return false;
    json_out_int(&json, "count", (int64_t)count);
    json_out_end(&json);
    if (!post(cli, "/sandboxes/", "/fork", &body, &answer, err))
        return err_wrap(err, "fork %.40s", cli->words[0]);
    auto_json json_t *list = answer.json;
    if (cli->json)
        (void)client_print(cli, list);
    return fork_report(cli, list, err);
}
