/*
 * team.c - teams: create, list, delete.
 */
#include "cli/team.h"

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/text.h"

static const char *const team_heads[] = { "NAME", "ID", ">KEYS", ">RUNNING", NULL };

static bool team_row(struct cli *cli, struct table *table, const json_t *team, struct err *err)
{
    struct str name, id;
    int64_t keys, running;

    if (!json_take_str(team, "slug", JSON_REQUIRED, &name, err) ||
        !json_take_str(team, "teamID", JSON_REQUIRED, &id, err) ||
        !json_take_int(team, "keyCount", JSON_REQUIRED, 0, INT64_MAX, &keys, err) ||
        !json_take_int(team, "runningCount", JSON_REQUIRED, 0, INT64_MAX, &running, err))
        return false;
    table_row(table, (const struct str[]){ name, id, arena_format(&cli->arena, "%lld", (long long)keys),
                                           arena_format(&cli->arena, "%lld", (long long)running) });
    return true;
}

bool team_list_run(struct cli *cli, struct err *err)
{
    auto_json json_t *teams = NULL;

    if (!client_get(cli, CLIENT_AS_ADMIN, STR("/teams"), &teams, err))
        return false;
    return client_print_list(cli, teams, team_heads, team_row, "There are no teams.", err) ||
           err_wrap(err, "list teams");
}

bool team_create_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);
    struct str id;

    json_out_object(&out, NULL);
    json_out_str(&out, "name", str_from(cli->words[0]));
    json_out_end(&out);
    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) ||
        !client_call(&client, "POST", STR("/admin/teams"), buf_str(&body), &answer, err))
        return false;
    auto_json json_t *team = answer.json;
    if (!json_take_str(team, "teamID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    if (cli->json)
        return client_print(cli, team);
    fprintf(cli->out, "%.*s\n", STR_ARG(id));
    fprintf(cli->note, "It has no key yet. To make one: %s key create NAME --team %s%s\n", cli_program_as_root(),
            cli->words[0], cli_same_server(cli));
    return true;
}

bool team_target(struct client *client, struct str name_or_id, const char *after, struct str *out_target,
                 struct err *err)
{
    struct cli *cli = client->cli;
    struct client_answer answer = { 0 };
    struct str id, name, found = STR("");
    const json_t *team;
    size_t i;

    if (!client_call(client, "GET", STR("/teams"), STR(""), &answer, err))
        return false;
    auto_json json_t *teams = answer.json;
    json_array_foreach(teams, i, team)
    {
        if (!json_take_str(team, "teamID", JSON_REQUIRED, &id, err) ||
            !json_take_str(team, "slug", JSON_REQUIRED, &name, err))
            return client_misread(err);
        /* An id wins over a name: another team may have this id as its name. */
        if (str_eq(id, name_or_id) || (found.len == 0 && str_eq(name, name_or_id)))
            found = id;
    }
    if (found.len == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no team '%.*s'; `%s team list%.60s` shows them",
                       (int)MIN(name_or_id.len, (size_t)40), name_or_id.at, cli_program_as_root(),
                       cli_same_server(cli));
    return client_target(cli, STR("/admin/teams/"), found, str_from(after), out_target, err);
}

bool team_delete_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct str target = STR("");
    int64_t revoked, killed;

    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) ||
        !team_target(&client, str_from(cli->words[0]), cli->force ? "?force=true" : "", &target, err) ||
        !client_call(&client, "DELETE", target, STR(""), &answer, err))
        return false;
    auto_json json_t *end = answer.json;
    if (!json_take_int(end, "revokedCount", JSON_REQUIRED, 0, INT64_MAX, &revoked, err) ||
        !json_take_int(end, "killedCount", JSON_REQUIRED, 0, INT64_MAX, &killed, err))
        return client_misread(err);
    fprintf(cli->note, "Team %s is deleted; keys revoked: %lld, sandboxes killed: %lld.\n", cli->words[0],
            (long long)revoked, (long long)killed);
    return true;
}
