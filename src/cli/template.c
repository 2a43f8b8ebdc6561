/*
 * template.c - what sandboxes can start from: list, tag, delete. template_disk.c has what looks into them.
 */
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"

static const char *const template_heads[] = { "TEMPLATE", "NAMES", "TAGS", ">CPUS", ">MEMORY", ">SIZE", "MADE", NULL };

/* ---- list ---- */

enum { TAGS_SHOWN = 3 }; /* in a list: one with more would be wider than the screen */

static struct str joined(struct cli *cli, const json_t *list, size_t most)
{
    struct buf text = buf_make(&cli->arena, 4096);
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (i == most)
            break;
        buf_add(&text, i ? STR(", ") : STR(""));
        buf_add(&text, json_is_string(item) ? json_str(item) : STR("?"));
    }
    return buf_str(&text);
}

static struct str tags_text(struct cli *cli, const json_t *template)
{
    const json_t *tags = json_object_get(template, "tags");
    int64_t count = json_integer_value(json_object_get(template, "tagCount"));
    struct str text = joined(cli, tags, TAGS_SHOWN);
    int64_t shown = (int64_t)MIN(json_array_size(tags), (size_t)TAGS_SHOWN);

    count = MAX(count, (int64_t)json_array_size(tags));
    if (count > shown)
        return arena_format(&cli->arena, "%.*s and %lld more", STR_ARG(text), (long long)(count - shown));
    if (text.len)
        return text;
    /* No sandbox can be made from it yet, unless it is the operator's: these have no tags. */
    const json_t *status = json_object_get(template, "buildStatus");
    bool is_ready = !json_is_string(status) || str_eq(json_str(status), STR("ready"));
    return is_ready ? STR("-") : arena_format(&cli->arena, "- (build: %.*s)", STR_ARG(json_str(status)));
}

static bool template_row(struct cli *cli, struct table *table, const json_t *template, struct err *err)
{
    struct str id, created = STR(""), size = STR("-");
    int64_t cpus = 0, memory_mib = 0, own = 0, shared = 0;
    const json_t *aliases = NULL;

    if (!json_take_str(template, "templateID", JSON_REQUIRED, &id, err) ||
        !json_take_array(template, "aliases", JSON_OPTIONAL, &aliases, err) ||
        !json_take_int(template, "cpuCount", JSON_OPTIONAL, 0, INT32_MAX, &cpus, err) ||
        !json_take_int(template, "memoryMB", JSON_OPTIONAL, 0, INT32_MAX, &memory_mib, err) ||
        !json_take_int(template, "ownBytes", JSON_OPTIONAL, 0, INT64_MAX / 2, &own, err) ||
        !json_take_int(template, "sharedBytes", JSON_OPTIONAL, 0, INT64_MAX / 2, &shared, err) ||
        !json_take_str(template, "createdAt", JSON_OPTIONAL, &created, err))
        return false;
    if (json_has(template, "ownBytes"))
        size = text_bytes(&cli->arena, (uint64_t)(own + shared));
    table_row(table, (const struct str[]){ id, joined(cli, aliases, SIZE_MAX), tags_text(cli, template),
                                           arena_format(&cli->arena, "%d", (int)cpus),
                                           text_mib(&cli->arena, memory_mib), size, text_ago(&cli->arena, created) });
    return true;
}

static bool is_there(const json_t *templates, const char *name)
{
    const json_t *template, *alias;
    size_t i, j;

    json_array_foreach(templates, i, template)
    {
        json_array_foreach(json_object_get(template, "aliases"), j, alias)
        {
            if (json_is_string(alias) && str_eq(json_str(alias), str_from(name)))
                return true;
        }
    }
    return false;
}

/* A note for people, not part of the list: templates that could be built here. */
static void note_unbuilt(struct cli *cli, const json_t *templates)
{
    const char *name, *makes;
    bool is_elsewhere = client_is_elsewhere(cli);

    for (size_t i = 0; cli->facts && cli->facts->recipe_at(i, &name, &makes); i++)
        if (!is_there(templates, makes))
            fprintf(cli->note, "Not built yet: %s. To build it%s: %s template build %s%s\n", makes,
                    is_elsewhere ? ", on the machine of that server and with the --data DIR that it has" : "",
                    cli_program_as_root(), name, is_elsewhere || cli->url ? "" : cli_same_server(cli));
}

static const json_t *row_of(const json_t *rows, const json_t *template)
{
    const json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        if (json_equal(json_object_get(row, "templateID"), json_object_get(template, "templateID")))
            return row;
    }
    return NULL;
}

/* Both lists are in the same order, but for the operator's templates, which only the first has. */
static void add_sizes(json_t *templates, const json_t *disk)
{
    static const char *const members[] = { "tags", "tagCount", "ownBytes", "sharedBytes" };
    const json_t *rows = json_object_get(disk, "templates"), *row;
    json_t *template;
    size_t i;

    json_array_foreach(templates, i, template)
    {
        if (!json_is_object(template) || !(row = row_of(rows, template)))
            continue;
        for (size_t k = 0; k < COUNT_OF(members); k++)
            (void)json_object_set(template, members[k], json_object_get(row, members[k]));
    }
}

bool template_list_run(struct cli *cli, struct err *err)
{
    auto_json json_t *templates = NULL, *disk = NULL;

    if (!client_get(cli, CLIENT_AS_CALLER, STR("/templates"), &templates, err))
        return false;
    if (!client_get(cli, CLIENT_AS_CALLER, STR("/template-disk"), &disk, err) && err->kind != ERR_NOT_FOUND)
        return false; /* an older server does not know it */
    add_sizes(templates, disk);
    if (!client_print_list(cli, templates, template_heads, template_row, "There are no templates.", err))
        return err_wrap(err, "list templates");
    if (!cli->json)
        note_unbuilt(cli, templates);
    return true;
}

/* ---- tags ---- */

static bool change_tags(struct cli *cli, const char *method, const char *of, json_t **out, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);

    json_out_object(&json, NULL);
    json_out_str(&json, of, str_from(cli->words[0]));
    json_out_array(&json, "tags");
    for (size_t i = 1; i < cli->word_count; i++)
        json_out_str(&json, NULL, str_from(cli->words[i]));
    json_out_end(&json);
    json_out_end(&json);
    if (body.overflowed)
        return err_set(err, ERR_LIMIT, "these are too many tags for one call");
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err) ||
        !client_call(&client, method, STR("/templates/tags"), buf_str(&body), &answer, err))
        return err_wrap(err, "template %.40s", cli->words[0]);
    *out = answer.json;
    return true;
}

bool template_tag_run(struct cli *cli, struct err *err)
{
    auto_json json_t *tagged = NULL;
    const json_t *tag;
    size_t i;

    if (!change_tags(cli, "POST", "target", &tagged, err))
        return false;
    if (cli->json)
        return client_print(cli, tagged);
    struct str rest = str_from(cli->words[0]), name;
    (void)str_cut(&rest, ':', &name);
    json_array_foreach(json_object_get(tagged, "tags"), i, tag)
    {
        fprintf(cli->out, "%.*s:%s\n", STR_ARG(name), json_is_string(tag) ? json_string_value(tag) : "?");
    }
    return true;
}

/* The API takes a tag that is not there for one that is removed already. A person has mistyped it. */
static bool check_tags(struct cli *cli, struct err *err)
{
    auto_json json_t *tags = NULL;
    struct str target;
    const json_t *row;
    size_t k;

    if (!client_target(cli, STR("/templates/"), str_from(cli->words[0]), STR("/tags"), &target, err) ||
        !client_get(cli, CLIENT_AS_CALLER, target, &tags, err))
        return err_wrap(err, "template %.40s", cli->words[0]);
    for (size_t i = 1; i < cli->word_count; i++) {
        bool is_there = false;
        json_array_foreach(tags, k, row)
        {
            const char *tag = json_string_value(json_object_get(row, "tag"));
            is_there |= tag && strcmp(tag, cli->words[i]) == 0;
        }
        if (!is_there)
            return err_set(err, ERR_NOT_FOUND,
                           "%.40s has no tag %.40s, and nothing is removed; `%s template inspect %.40s` lists its tags",
                           cli->words[0], cli->words[i], cli_program(), cli->words[0]);
    }
    return true;
}

bool template_untag_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL, *tags = json_array();

    if (!check_tags(cli, err) || !change_tags(cli, "DELETE", "name", &answer, err))
        return false;
    for (size_t i = 1; i < cli->word_count; i++) {
        (void)json_array_append_new(tags, json_string(cli->words[i]));
        if (!cli->json)
            fprintf(cli->out, "%s:%s\n", cli->words[0], cli->words[i]);
    }
    if (!cli->json)
        return true;
    auto_json json_t *done = json_pack("{s:O}", "removed", tags);
    return client_print(cli, done);
}

/* ---- delete ---- */

/* The API deletes snapshots by the same call, and ignores a tag: what it does not say is asked before. */
bool template_delete_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct str name = str_from(cli->words[0]), target, id;

    if (str_has_char(name, ':'))
        return err_set(err, ERR_INVALID,
                       "a template is deleted with all its tags, so give it without one; `%s template untag` removes a "
                       "tag alone",
                       cli_program());
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err) ||
        !client_target(cli, STR("/templates/"), name, STR("/inspect"), &target, err) ||
        !client_call(&client, "GET", target, STR(""), &answer, err))
        return err_wrap(err, "delete template %.40s", cli->words[0]);
    auto_json json_t *template = answer.json;
    if (!json_take_str(template, "templateID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    if (!client_target(cli, STR("/templates/"), name, STR(""), &target, err) ||
        !client_call(&client, "DELETE", target, STR(""), &answer, err)) {
        if (err->kind == ERR_INVALID)
            err->kind = ERR_CONFLICT; /* of a name that is fine: sandboxes were made from it */
        return err_wrap(err, "delete template %.40s", cli->words[0]);
    }
    json_decref(answer.json);
    if (cli->json) {
        auto_json json_t *done = json_pack("{s:s%}", "deleted", id.at, id.len);
        return client_print(cli, done);
    }
    fprintf(cli->out, "%.*s\n", STR_ARG(id));
    return true;
}
