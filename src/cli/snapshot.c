/*
 * snapshot.c - copies of sandboxes that are kept: create, list, delete.
 */
#include "base/encode.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/sizes.h"
#include "cli/text.h"

static const char *const snapshot_heads[] = { "SNAPSHOT", "SANDBOX", "MADE", ">FILES", ">MEMORY", NULL };

/* ---- create ---- */

bool snapshot_create_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct str id, target;

    json_out_object(&json, NULL);
    if (cli->name)
        json_out_str(&json, "name", str_from(cli->name));
    json_out_bool(&json, "memory", !cli->files_only);
    json_out_end(&json);
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    client.timeout_ms = CLIENT_PAUSE_MS;
    if (!client_target(cli, STR("/sandboxes/"), str_from(cli->words[0]), STR("/snapshots"), &target, err) ||
        !client_call(&client, "POST", target, buf_str(&body), &answer, err))
        return err_wrap(err, "snapshot of %.40s", cli->words[0]);
    auto_json json_t *made = answer.json;
    if (cli->json)
        return client_print(cli, made);
    if (!json_take_str(made, "snapshotID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    fprintf(cli->out, "%.*s\n", STR_ARG(id));
    fprintf(cli->note, "To make a sandbox from it: %s sandbox create %.*s%s\n", cli_program(), STR_ARG(id),
            cli_same_server(cli));
    return true;
}

/* ---- list ---- */

static bool snapshot_row(struct cli *cli, struct table *table, const json_t *snapshot, struct err *err)
{
    struct str id, sandbox = STR("-"), made = STR("");
    struct sizes sizes;

    if (!json_take_str(snapshot, "snapshotID", JSON_REQUIRED, &id, err) ||
        !json_take_str(snapshot, "sandboxID", JSON_OPTIONAL, &sandbox, err) ||
        !json_take_str(snapshot, "createdAt", JSON_OPTIONAL, &made, err) || !sizes_take(snapshot, &sizes, err))
        return false;
    table_row(table,
              (const struct str[]){ id, sandbox, text_ago(&cli->arena, made), text_bytes(&cli->arena, sizes.files),
                                    sizes_memory_text(&cli->arena, &sizes) });
    return true;
}

bool snapshot_list_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct buf target = buf_make(&cli->arena, LIMIT_TARGET_BYTES);

    buf_add(&target, STR("/snapshots?limit=100"));
    if (cli->sandbox) {
        buf_add(&target, STR("&sandboxID="));
        percent_encode(&target, str_from(cli->sandbox));
    }
    if (target.overflowed)
        return err_set(err, ERR_LIMIT, "the id %.40s… is too long", cli->sandbox);
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    auto_json json_t *list = client_get_pages(&client, buf_str(&target), err);
    const char *none = cli->sandbox
                           ? arena_format(&cli->arena, "There are no snapshots of sandbox %s.", cli->sandbox).at
                           : "There are no snapshots.";
    if (!list || !client_print_list(cli, list, snapshot_heads, snapshot_row, none, err))
        return err_wrap(err, "list snapshots");
    return cli->json || sizes_note(cli, list, "Together", err);
}

/* ---- delete ---- */

static struct str tag_of(struct str id)
{
    struct str name;

    (void)str_cut(&id, ':', &name);
    return id;
}

/* All builds of the name that the command names, with whatever tag. */
static json_t *fetch_builds(struct client *client, struct str name, struct err *err)
{
    struct buf target = buf_make(&client->cli->arena, LIMIT_TARGET_BYTES);

    buf_add(&target, STR("/snapshots?limit=100&name="));
    percent_encode(&target, name);
    if (target.overflowed) {
        (void)err_set(err, ERR_LIMIT, "the name %.40s… is too long", client->cli->words[0]);
        return NULL;
    }
    return client_get_pages(client, buf_str(&target), err);
}

/*
 * The API deletes a name with all its tags, whichever was named: so a tag is fine only where it is the only one. And it deletes
 * templates in the same way.
 */
static bool check_tag(struct cli *cli, const json_t *builds, struct str tag, struct err *err)
{
    bool has_tag = strchr(cli->words[0], ':'), is_there = false;
    const json_t *build;
    struct str id;
    size_t i;

    if (!json_array_size(builds))
        return err_set(err, ERR_NOT_FOUND, "there is no snapshot '%.60s' (%.60s snapshot list); nothing was deleted",
                       cli->words[0], cli_program());
    if (!has_tag)
        return true;
    json_array_foreach(builds, i, build)
    {
        if (!json_take_str(build, "snapshotID", JSON_REQUIRED, &id, err))
            return client_misread(err);
        is_there |= str_eq_nocase(tag_of(id), tag);
    }
    if (!is_there)
        return err_set(err, ERR_NOT_FOUND, "there is no snapshot '%.60s'; nothing was deleted", cli->words[0]);
    return json_array_size(builds) == 1 ||
           err_set(err, ERR_INVALID,
                   "a name is deleted with all its tags (%zu here), so give it without one; nothing was deleted",
                   json_array_size(builds));
}

static bool print_deleted(struct cli *cli, const json_t *builds, struct err *err)
{
    auto_json json_t *ids = json_array();
    const json_t *build;
    struct str id;
    size_t i;

    json_array_foreach(builds, i, build)
    {
        if (!json_take_str(build, "snapshotID", JSON_REQUIRED, &id, err))
            return client_misread(err);
        if (cli->json)
            (void)json_array_append(ids, json_object_get(build, "snapshotID"));
        else
            fprintf(cli->out, "%.*s\n", STR_ARG(id));
    }
    if (!cli->json)
        return true;
    auto_json json_t *done = json_pack("{s:O}", "deleted", ids);
    return client_print(cli, done);
}

bool snapshot_delete_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct str rest = str_from(cli->words[0]), name, target;

    (void)str_cut(&rest, ':', &name);
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err))
        return false;
    auto_json json_t *builds = fetch_builds(&client, name, err);
    if (!builds || !check_tag(cli, builds, rest, err))
        return err_wrap(err, "delete snapshot %.40s", cli->words[0]);
    if (!client_target(cli, STR("/templates/"), name, STR(""), &target, err) ||
        !client_call(&client, "DELETE", target, STR(""), &answer, err)) {
        if (err->kind == ERR_INVALID)
            err->kind = ERR_CONFLICT; /* of a name that is fine: sandboxes were made from it */
        return err_wrap(err, "delete snapshot %.40s", cli->words[0]);
    }
    json_decref(answer.json);
    return print_deleted(cli, builds, err);
}
