/*
 * sandbox.c - list, logs and kill. exec.c has the command that runs something, pause.c what puts one to sleep.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/sizes.h"
#include "cli/text.h"

static const char *const sandbox_heads[] = { "SANDBOX", "TEMPLATE", "STATE", ">AGE", ">ENDS IN",
                                             ">CPUS",   ">MEMORY",  ">DISK", NULL };

static json_t *fetch_sandboxes(struct client *client, struct err *err)
{
    return client_get_pages(client, STR("/v2/sandboxes?limit=100"), err);
}

static struct str span_between(struct cli *cli, struct str from, struct str to)
{
    int64_t from_us = clock_wall_us(), to_us = from_us;

    if ((from.len && !clock_parse(from, &from_us)) || (to.len && !clock_parse(to, &to_us)))
        return STR("-");
    return text_span(&cli->arena, to_us - from_us);
}

static bool sandbox_row(struct cli *cli, struct table *table, const json_t *sandbox, struct err *err)
{
    struct str id, template, state, started, ends, alias = STR("");
    int64_t cpus = 0, memory_mib = 0;
    struct sizes sizes;

    if (!json_take_str(sandbox, "sandboxID", JSON_REQUIRED, &id, err) ||
        !json_take_str(sandbox, "templateID", JSON_REQUIRED, &template, err) ||
        !json_take_str(sandbox, "alias", JSON_OPTIONAL, &alias, err) ||
        !json_take_str(sandbox, "state", JSON_REQUIRED, &state, err) ||
        !json_take_str(sandbox, "startedAt", JSON_REQUIRED, &started, err) ||
        !json_take_str(sandbox, "endAt", JSON_REQUIRED, &ends, err) ||
        !json_take_int(sandbox, "cpuCount", JSON_OPTIONAL, 0, INT32_MAX, &cpus, err) ||
        !json_take_int(sandbox, "memoryMB", JSON_OPTIONAL, 0, INT32_MAX, &memory_mib, err) ||
        !sizes_take(sandbox, &sizes, err))
        return false;
    bool is_running = str_eq(state, STR("running"));
    table_row(table,
              (const struct str[]){ id, alias.len ? alias : template, state, span_between(cli, started, STR("")),
                                    is_running ? span_between(cli, STR(""), ends) : STR("-"),
                                    arena_format(&cli->arena, "%d", (int)cpus), text_mib(&cli->arena, memory_mib),
                                    sizes.is_known ? text_bytes(&cli->arena, sizes.files + sizes.memory) : STR("-") });
    return true;
}

bool sandbox_list_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };

    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    auto_json json_t *sandboxes = fetch_sandboxes(&client, err);
    if (!sandboxes)
        return err_wrap(err, "list sandboxes");
    return (client_print_list(cli, sandboxes, sandbox_heads, sandbox_row, "No sandbox is running or paused.", err) &&
            (cli->json || sizes_note(cli, sandboxes, "Paused sandboxes take", err))) ||
           err_wrap(err, "list sandboxes");
}

/* ---- logs ---- */

/* A line about a process says which one only with its command. */
static bool log_row(struct cli *cli, struct table *table, const json_t *line, struct err *err)
{
    const json_t *fields = NULL;
    struct str time, level, message, command = STR("");

    if (!json_take_str(line, "timestamp", JSON_REQUIRED, &time, err) ||
        !json_take_str(line, "level", JSON_REQUIRED, &level, err) ||
        !json_take_str(line, "message", JSON_REQUIRED, &message, err) ||
        !json_take_object(line, "fields", JSON_OPTIONAL, &fields, err) ||
        (fields && !json_take_str(fields, "command", JSON_OPTIONAL, &command, err)))
        return false;
    if (command.len)
        message = arena_format(&cli->arena, "%.*s: %.*s", STR_ARG(message), STR_ARG(command));
    table_row(table, (const struct str[]){ time, level, message });
    return true;
}

bool sandbox_logs_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "TIME", "LEVEL", "TEXT", NULL };
    json_t *answer = NULL;
    struct str target;

    /* The newest lines, which the server sends newest first. */
    if (!client_target(cli, STR("/v2/sandboxes/"), str_from(cli->words[0]), STR("/logs"), &target, err) ||
        !client_get(cli, CLIENT_AS_CALLER, target, &answer, err))
        return err_wrap(err, "log of sandbox %.40s", cli->words[0]);
    auto_json json_t *logs = answer;
    const json_t *newest_first = json_object_get(logs, "logs");
    size_t count = json_array_size(newest_first);
    if (!json_is_array(newest_first))
        return err_set(err, ERR_INTERNAL, "the server's log of a sandbox is not a list");
    /* Every sandbox's log begins with its start. */
    if (!count)
        return err_set(err, ERR_NOT_FOUND,
                       "no log of '%.40s': there was no such sandbox of this team in the last 7 days", cli->words[0]);
    auto_json json_t *lines = json_array();
    for (size_t i = count; i > 0; i--)
        if (json_array_append(lines, json_array_get(newest_first, i - 1)) != 0)
            return err_set(err, ERR_INTERNAL, "the server's answer cannot be copied");
    return client_print_list(cli, lines, heads, log_row, "", err);
}

/* ---- kill ---- */

static bool kill_one(struct client *client, struct str id, struct err *err)
{
    struct client_answer answer = { 0 };
    struct str target;

    if (!client_target(client->cli, STR("/sandboxes/"), id, STR(""), &target, err) ||
        !client_call(client, "DELETE", target, STR(""), &answer, err))
        return err_wrap(err, "kill %.*s", (int)MIN(id.len, 40u), id.at);
    json_decref(answer.json);
    fprintf(client->cli->out, "%.*s\n", STR_ARG(id));
    return true;
}

static void tell_ended(struct cli *cli, int64_t count)
{
    fprintf(cli->note, "Sandboxes ended: %lld.\n", (long long)count);
}

static bool kill_team(struct client *client, const json_t *team, int64_t *io_killed, int64_t *io_failed,
                      struct err *err)
{
    struct client_answer answer = { 0 };
    int64_t killed, failed;
    struct str id, target;

    if (!json_take_str(team, "teamID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    if (!client_target(client->cli, STR("/admin/teams/"), id, STR("/sandboxes/kill"), &target, err) ||
        !client_call(client, "POST", target, STR(""), &answer, err))
        return false;
    auto_json json_t *end = answer.json;
    if (!json_take_int(end, "killedCount", JSON_REQUIRED, 0, INT64_MAX / 2, &killed, err) ||
        !json_take_int(end, "failedCount", JSON_REQUIRED, 0, INT64_MAX / 2, &failed, err))
        return client_misread(err);
    *io_killed += killed;
    *io_failed += failed;
    return true;
}

static bool kill_all_teams(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    int64_t killed = 0, failed = 0;
    const json_t *team;
    size_t i;

    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) ||
        !client_call(&client, "GET", STR("/teams"), STR(""), &answer, err))
        return false;
    auto_json json_t *teams = answer.json;
    bool fine = true;
    json_array_foreach(teams, i, team)
    {
        struct err why;
        if (kill_team(&client, team, &killed, &failed, &why) || why.kind == ERR_NOT_FOUND) /* deleted meanwhile */
            continue;
        *err = why;
        fine = false;
    }
    tell_ended(cli, killed);
    if (fine && failed)
        return err_set(err, ERR_INTERNAL, "%lld could not be ended; see the server's log. The server tries again",
                       (long long)failed);
    return fine;
}

bool sandbox_kill_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };

    if (!cli->all && !cli->word_count)
        return err_set(err, ERR_INVALID, "no sandbox named: give one or more ids, or --all");
    if (cli->all && cli->word_count)
        return err_set(err, ERR_INVALID, "give either ids or --all, not both; nothing was killed");
    if (cli->all && client_is_operator(cli))
        return kill_all_teams(cli, err);
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    /* After a failure go on with the others; the last failure is reported. */
    bool fine = true;
    for (size_t i = 0; i < cli->word_count; i++)
        fine = kill_one(&client, str_from(cli->words[i]), err) && fine;
    if (!cli->all)
        return fine;
    auto_json json_t *sandboxes = fetch_sandboxes(&client, err);
    if (!sandboxes)
        return err_wrap(err, "list sandboxes");
    const json_t *sandbox;
    size_t i;
    int64_t ended = 0;
    json_array_foreach(sandboxes, i, sandbox)
    {
        struct str id;
        struct err why;
        if (!json_take_str(sandbox, "sandboxID", JSON_REQUIRED, &id, err))
            return client_misread(err);
        if (kill_one(&client, id, &why)) {
            ended++;
        } else if (why.kind != ERR_NOT_FOUND) { /* one that has ended meanwhile counts as killed */
            *err = why;
            fine = false;
        }
    }
    tell_ended(cli, ended);
    return fine;
}
