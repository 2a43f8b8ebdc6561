/*
 * mcp.c - `cloister mcp`: the Model Context Protocol on standard input and output, for clients that start a program.
 *
 * Each line of the input is a message of JSON-RPC. It is sent to the server's /mcp, and the answer is one line of the
 * output. The server does everything else. The key is an inbox's own, never the admin token.
 */
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"

/* The key of the environment goes to the address of the environment, as with the services' own clients. */
static bool open_client(struct client *client, struct cli *cli, struct err *err)
{
    const char *key = getenv("MULTIMAIL_API_KEY"), *url = getenv("MULTIMAIL_API_URL");

    if (!key || !key[0]) {
        key = getenv("LOBSTERMAIL_TOKEN");
        url = getenv("LOBSTERMAIL_API_URL");
    }
    if (cli->url)
        url = cli->url;
    if (!key || !key[0])
        return err_set(err, ERR_INVALID,
                       "set MULTIMAIL_API_KEY or LOBSTERMAIL_TOKEN to a key of an inbox; `%s env` prints both",
                       cli_program_as_root());
    if (!url || !url[0])
        return err_set(err, ERR_INVALID, "set MULTIMAIL_API_URL or LOBSTERMAIL_API_URL, or give --url");
    client->cli = cli;
    client->is_by_url = true;
    client->timeout_ms = CLIENT_CALL_MS;
    client->credential_name = STR("Authorization");
    client->credential_from = "the mail key of the environment";
    struct str bearer = arena_format(&cli->arena, "Bearer %s", key);
    if (!secret_set(&client->credential, bearer))
        return err_set(err, ERR_INVALID, "the mail key of the environment is too long");
    return client_parse_url(str_from(url), client->address, err);
}

/* A client that waits for an answer must get one. */
static void answer_failure(struct cli *cli, struct str line, const struct err *why)
{
    struct buf out = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&out);
    struct err ignored;
    auto_json json_t *message = json_parse_large(line, LIMIT_JSON_VALUES, &ignored);
    const json_t *id = json_object_get(message, "id");

    if (message && !id)
        return; /* a notification */
    json_out_object(&json, NULL);
    json_out_str(&json, "jsonrpc", STR("2.0"));
    if (json_is_string(id))
        json_out_str(&json, "id", json_str(id));
    else if (json_is_integer(id))
        json_out_int(&json, "id", json_integer_value(id));
    else
        json_out_null(&json, "id");
    json_out_object(&json, "error");
    json_out_int(&json, "code", message ? -32603 : -32700);
    json_out_str(&json, "message", str_from(why->message));
    json_out_end(&json);
    json_out_end(&json);
    fprintf(cli->out, "%.*s\n", STR_ARG(buf_str(&out)));
}

static void forward(struct client *client, struct str line)
{
    struct cli *cli = client->cli;
    struct client_answer answer = { 0 };
    struct err err;

    auto_json json_t *message = json_parse_large(line, LIMIT_JSON_VALUES, &err);
    if (!message) {
        (void)err_set(&err, ERR_INVALID, "this line is not JSON");
        answer_failure(cli, line, &err);
        return;
    }
    if (!client_call(client, "POST", STR("/mcp"), line, &answer, &err)) {
        answer_failure(cli, line, &err);
        return;
    }
    if (!answer.json)
        return;
    char *text = json_dumps(answer.json, JSON_COMPACT);
    fprintf(cli->out, "%s\n", text ? text : "null");
    free(text);
    json_decref(answer.json);
}

bool mcp_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    char *line = NULL;
    size_t room = 0;
    ssize_t len;

    if (!open_client(&client, cli, err))
        return false;
    while ((len = getline(&line, &room, stdin)) >= 0) {
        struct str message = str_trim(str_of(line, (size_t)len));
        if (message.len)
            forward(&client, message);
        if (fflush(cli->out) != 0)
            break;               /* nobody reads any more */
        arena_done(&cli->arena); /* each message has it to itself */
    }
    free(line);
    return true;
}
