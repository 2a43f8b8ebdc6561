/*
 * key.c - API keys: create, list, revoke. The server stores hashes, so a key is shown only once. Keys belong to teams;
 * the operator sees those of all teams.
 */
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/team.h"
#include "cli/text.h"

enum { REVOKE_IDS_SHOWN = 2 };

static const char *const key_heads[] = { "ID", "NAME", "TEAM", "KEY", "CREATED", "LAST USED", NULL };

static bool key_row(struct cli *cli, struct table *table, const json_t *key, struct err *err)
{
    struct str id, name, team, created = STR(""), used = STR(""), prefix = STR("e2b_"), first = STR(""), last = STR("");
    const json_t *mask = NULL;

    if (!json_take_str(key, "id", JSON_REQUIRED, &id, err) || !json_take_str(key, "name", JSON_REQUIRED, &name, err) ||
        !json_take_str(key, "team", JSON_REQUIRED, &team, err) ||
        !json_take_str(key, "createdAt", JSON_OPTIONAL, &created, err) ||
        !json_take_str(key, "lastUsed", JSON_OPTIONAL, &used, err) ||
        !json_take_object(key, "mask", JSON_OPTIONAL, &mask, err))
        return false;
    if (mask && (!json_take_str(mask, "prefix", JSON_OPTIONAL, &prefix, err) ||
                 !json_take_str(mask, "maskedValuePrefix", JSON_OPTIONAL, &first, err) ||
                 !json_take_str(mask, "maskedValueSuffix", JSON_OPTIONAL, &last, err)))
        return false;
    struct str masked = arena_format(&cli->arena, "%.*s%.*s…%.*s", STR_ARG(prefix), STR_ARG(first), STR_ARG(last));
    table_row(table, (const struct str[]){ id, name, team, masked, text_ago(&cli->arena, created),
                                           text_ago(&cli->arena, used) });
    return true;
}

bool key_list_run(struct cli *cli, struct err *err)
{
    auto_json json_t *keys = NULL;

    if (!client_get(cli, CLIENT_AS_ADMIN, STR("/admin/api-keys"), &keys, err))
        return false;
    struct str empty = arena_format(&cli->arena, "There are no API keys. `%s key create NAME%s` makes one.",
                                    cli_program_as_root(), cli_same_server(cli));
    return client_print_list(cli, keys, key_heads, key_row, empty.at, err) || err_wrap(err, "list keys");
}

bool key_create_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);
    struct str name = cli->word_count ? str_from(cli->words[0]) : STR("cli"), target = STR("/api-keys");

    json_out_object(&out, NULL);
    json_out_str(&out, "name", name);
    json_out_end(&out);
    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) ||
        (cli->team && !team_target(&client, str_from(cli->team), "/api-keys", &target, err)) ||
        !client_call(&client, "POST", target, buf_str(&body), &answer, err))
        return false;
    auto_json json_t *key = answer.json;
    struct str id, value;
    if (!json_take_str(key, "id", JSON_REQUIRED, &id, err) || !json_take_str(key, "key", JSON_REQUIRED, &value, err))
        return client_misread(err);
    if (cli->json)
        return client_print(cli, key);
    fprintf(cli->out, "%.*s\n", STR_ARG(value));
    fprintf(cli->note, "Store it now: it is not shown again. To revoke it: %s key revoke %.*s%s\n",
            cli_program_as_root(), STR_ARG(id), cli_same_server(cli));
    return true;
}

/* The key with this id, or else the only one with this name. */
static const json_t *find_key(struct cli *cli, const json_t *keys, struct str word, struct err *err)
{
    struct buf ids = buf_make(&cli->arena, sizeof err->message);
    struct str id, name;
    const json_t *key, *found = NULL;
    size_t i, count = 0;

    json_array_foreach(keys, i, key)
    {
        if (!json_take_str(key, "id", JSON_REQUIRED, &id, err) ||
            !json_take_str(key, "name", JSON_REQUIRED, &name, err)) {
            (void)client_misread(err);
            return NULL;
        }
        if (str_eq(id, word))
            return key;
        if (!str_eq(name, word))
            continue;
        /* As many ids as fit into the message. */
        if (count < REVOKE_IDS_SHOWN)
            buf_format(&ids, "%s%.*s", count ? ", " : "", STR_ARG(id));
        found = key;
        count++;
    }
    if (count == 0)
        (void)err_set(err, ERR_NOT_FOUND, "no key has the id or the name '%.40s'; `%s key list%.50s` shows them",
                      cli->words[0], cli_program_as_root(), cli_same_server(cli));
    if (count > 1)
        (void)err_set(err, ERR_CONFLICT, "%zu keys are named '%.20s'; use the id of one: %.*s%s", count, cli->words[0],
                      STR_ARG(buf_str(&ids)), count > REVOKE_IDS_SHOWN ? ", …" : "");
    return count == 1 ? found : NULL;
}

bool key_revoke_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer listed = { 0 }, answer = { 0 };
    struct str id, team_id, of_team, target;

    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) ||
        !client_call(&client, "GET", STR("/admin/api-keys"), STR(""), &listed, err))
        return false;
    auto_json json_t *keys = listed.json;
    const json_t *key = find_key(cli, keys, str_from(cli->words[0]), err);
    if (!key)
        return false;
    if (!json_take_str(key, "id", JSON_REQUIRED, &id, err) ||
        !json_take_str(key, "teamID", JSON_REQUIRED, &team_id, err))
        return err_wrap(err, "list keys");
    if (!client_target(cli, STR("/admin/teams/"), team_id, STR("/api-keys/"), &of_team, err) ||
        !client_target(cli, of_team, id, STR(""), &target, err) ||
        !client_call(&client, "DELETE", target, STR(""), &answer, err))
        return false;
    json_decref(answer.json);
    fprintf(cli->note, "Key %s is revoked.\n", cli->words[0]);
    return true;
}
