/*
 * template_disk.c - what a template is made of, what templates take on disk, and how to be rid of the rest.
 */
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"

static struct str text_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_string(value) ? json_str(value) : STR("-");
}

static uint64_t number_of(const json_t *object, const char *name)
{
    json_int_t number = json_integer_value(json_object_get(object, name));

    return number < 0 ? 0 : (uint64_t)number;
}

/* "1 sandbox", "2 sandboxes". */
static struct str counted(struct cli *cli, uint64_t count, const char *one, const char *many)
{
    return arena_format(&cli->arena, "%llu %s", (unsigned long long)count, count == 1 ? one : many);
}

/* ---- inspect ---- */

static void fact(struct table *table, const char *name, struct str value)
{
    table_row(table, (const struct str[]){ str_from(name), value });
}

static struct str names_of(struct cli *cli, const json_t *template)
{
    struct buf names = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    const json_t *name;
    size_t i;

    json_array_foreach(json_object_get(template, "names"), i, name)
    {
        buf_add(&names, i ? STR(", ") : STR(""));
        buf_add(&names, json_is_string(name) ? json_str(name) : STR("?"));
    }
    return names.len ? buf_str(&names) : STR("-");
}

static struct str size_of(struct cli *cli, const json_t *template)
{
    uint64_t all = 0, shared = 0;
    const json_t *layer;
    size_t i;

    json_array_foreach(json_object_get(template, "layers"), i, layer)
    {
        all += number_of(layer, "bytes");
        shared += json_is_true(json_object_get(layer, "shared")) ? number_of(layer, "bytes") : 0;
    }
    if (!shared)
        return text_bytes(&cli->arena, all);
    return arena_format(&cli->arena, "%.*s, of which %.*s are in other templates, too",
                        STR_ARG(text_bytes(&cli->arena, all)), STR_ARG(text_bytes(&cli->arena, shared)));
}

static struct str last_of(struct cli *cli, const json_t *last)
{
    struct str status = text_of(last, "status"), reason = text_of(last, "reason"), step = text_of(last, "step");
    struct str when = text_ago(&cli->arena, text_of(last, "createdAt"));

    if (str_eq(reason, STR("-")))
        return arena_format(&cli->arena, "%.*s, begun %.*s", STR_ARG(status), STR_ARG(when));
    return arena_format(&cli->arena, "%.*s, begun %.*s%s%.*s: %.*s", STR_ARG(status), STR_ARG(when),
                        str_eq(step, STR("-")) ? "" : ", in step ", str_eq(step, STR("-")) ? 0 : (int)step.len, step.at,
                        STR_ARG(reason));
}

static void facts(struct cli *cli, struct table *table, const json_t *template)
{
    const json_t *uses = json_object_get(template, "uses"), *last = json_object_get(template, "lastBuild");

    fact(table, "template", text_of(template, "templateID"));
    fact(table, "names", names_of(cli, template));
    fact(table, "visible to", json_is_true(json_object_get(template, "public")) ? STR("all teams") : STR("its team"));
    fact(table, "made", text_ago(&cli->arena, text_of(template, "createdAt")));
    fact(table, "CPUs", arena_format(&cli->arena, "%llu", (unsigned long long)number_of(template, "cpuCount")));
    fact(table, "memory", text_mib(&cli->arena, (int64_t)number_of(template, "memoryMB")));
    if (json_has(template, "startCmd"))
        fact(table, "start command", text_of(template, "startCmd"));
    if (json_has(template, "readyCmd"))
        fact(table, "ready command", text_of(template, "readyCmd"));
    if (json_is_true(json_object_get(template, "hasMemory")))
        fact(table, "starts with", STR("its processes, from an image of their memory"));
    fact(table, "used by",
         arena_format(&cli->arena, "%.*s, %.*s, %.*s",
                      STR_ARG(counted(cli, number_of(uses, "sandboxes"), "sandbox", "sandboxes")),
                      STR_ARG(counted(cli, number_of(uses, "snapshots"), "snapshot", "snapshots")),
                      STR_ARG(counted(cli, number_of(uses, "templates"), "template", "templates"))));
    if (last)
        fact(table, "last build", last_of(cli, last));
    if (!json_is_true(json_object_get(template, "ready")))
        fact(table, "layers",
             arena_format(&cli->arena, "no build with the tag %.*s is ready", STR_ARG(text_of(template, "tag"))));
    else if (json_has(template, "hasMemory"))
        fact(table, "size", size_of(cli, template));
}

static void print_tags(struct cli *cli, const json_t *tags)
{
    static const char *const heads[] = { "TAG", "BUILD", "SINCE", NULL };
    struct table table;
    const json_t *tag;
    size_t i;

    if (!json_array_size(tags))
        return;
    table_init(&table, &cli->arena, heads);
    json_array_foreach(tags, i, tag)
    {
        table_row(&table, (const struct str[]){ text_of(tag, "tag"), text_of(tag, "buildID"),
                                                text_ago(&cli->arena, text_of(tag, "assignedAt")) });
    }
    fprintf(cli->out, "\n");
    table_print(&table, cli->out, cli->is_colored, "");
}

static const struct {
    struct str origin;
    struct str text; /* of a layer without a text of its own */
} origins[] = {
    { STR_INIT("step"), STR_INIT("a step") },
    { STR_INIT("image"), STR_INIT("a layer of the image") },
    { STR_INIT("operator"), STR_INIT("a layer of a template of the operator") },
};

static struct str made_by(const json_t *layer)
{
    if (json_has(layer, "step"))
        return text_of(layer, "step");
    for (size_t i = 0; i < COUNT_OF(origins); i++)
        if (str_eq(text_of(layer, "origin"), origins[i].origin))
            return origins[i].text;
    return STR("a step of another team, or of a snapshot");
}

static struct str beginning(struct str text, size_t most)
{
    return str_of(text.at, MIN(text.len, most));
}

/* Of a template of another team it is not said. */
static struct str is_shared(const json_t *layer)
{
    if (!json_has(layer, "shared"))
        return STR("-");
    return json_is_true(json_object_get(layer, "shared")) ? STR("yes") : STR("no");
}

static void print_layers(struct cli *cli, const json_t *layers)
{
    static const char *const heads[] = { "LAYER", ">SIZE", "SHARED", "MADE BY", NULL };
    struct table table;
    const json_t *layer;
    size_t i;

    if (!json_array_size(layers))
        return;
    table_init(&table, &cli->arena, heads);
    json_array_foreach(layers, i, layer)
    {
        table_row(&table, (const struct str[]){ beginning(text_of(layer, "id"), 12),
                                                json_is_integer(json_object_get(layer, "bytes"))
                                                    ? text_bytes(&cli->arena, number_of(layer, "bytes"))
                                                    : STR("-"),
                                                is_shared(layer), beginning(made_by(layer), 200) });
    }
    fprintf(cli->out, "\n");
    table_print(&table, cli->out, cli->is_colored, "");
}

bool template_inspect_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "WHAT", "VALUE", NULL };
    auto_json json_t *template = NULL;
    struct table table;
    struct str target;

    if (!client_target(cli, STR("/templates/"), str_from(cli->words[0]), STR("/inspect"), &target, err) ||
        !client_get(cli, CLIENT_AS_CALLER, target, &template, err))
        return err_wrap(err, "template %.40s", cli->words[0]);
    if (!json_is_object(template))
        return client_misread(err);
    if (cli->json)
        return client_print(cli, template);
    table_init(&table, &cli->arena, heads);
    facts(cli, &table, template);
    table_print(&table, cli->out, cli->is_colored, "");
    print_tags(cli, json_object_get(template, "tags"));
    print_layers(cli, json_object_get(template, "layers"));
    return true;
}

/* ---- disk ---- */

static bool disk_row(struct cli *cli, struct table *table, const json_t *row, struct err *err)
{
    struct str id;

    if (!json_take_str(row, "templateID", JSON_REQUIRED, &id, err))
        return false;
    table_row(table,
              (const struct str[]){ json_has(row, "name") ? text_of(row, "name") : id,
                                    arena_format(&cli->arena, "%llu", (unsigned long long)number_of(row, "buildCount")),
                                    text_bytes(&cli->arena, number_of(row, "ownBytes")),
                                    text_bytes(&cli->arena, number_of(row, "sharedBytes")) });
    return true;
}

bool template_disk_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "TEMPLATE", ">BUILDS", ">OWN", ">SHARED", NULL };
    const bool is_operator = client_is_operator(cli);
    auto_json json_t *disk = NULL;
    struct arena *arena = &cli->arena;

    if (!client_get(cli, is_operator ? CLIENT_AS_ADMIN : CLIENT_AS_CALLER,
                    is_operator ? STR("/admin/template-disk") : STR("/template-disk"), &disk, err))
        return false;
    if (cli->json)
        return client_print(cli, disk);
    if (!client_print_list(cli, json_object_get(disk, "templates"), heads, disk_row, "There are no built templates.",
                           err))
        return err_wrap(err, "disk use of templates");
    fprintf(cli->out, "\nlayers of templates  %.*s\ncached steps         %.*s\nuploads              %.*s\n",
            STR_ARG(text_bytes(arena, number_of(disk, "templateBytes"))),
            STR_ARG(text_bytes(arena, number_of(disk, "cacheBytes"))),
            STR_ARG(text_bytes(arena, number_of(disk, "uploadBytes"))));
    if (is_operator)
        fprintf(cli->out, "downloads            %.*s\n", STR_ARG(text_bytes(arena, number_of(disk, "downloadBytes"))));
    fprintf(cli->out, "together             %.*s\n", STR_ARG(text_bytes(arena, number_of(disk, "totalBytes"))));
    return true;
}

/* ---- prune ---- */

static void pruned_line(struct cli *cli, const json_t *pruned, const char *name, const char *one, const char *many)
{
    const json_t *total = json_object_get(pruned, name);

    if (total)
        fprintf(cli->out, "%-22.*s %.*s\n", STR_ARG(counted(cli, number_of(total, "count"), one, many)),
                STR_ARG(text_bytes(&cli->arena, number_of(total, "bytes"))));
}

static bool print_pruned(struct cli *cli, const json_t *pruned)
{
    pruned_line(cli, pruned, "layers", "layer", "layers");
    pruned_line(cli, pruned, "uploads", "upload", "uploads");
    pruned_line(cli, pruned, "downloads", "download", "downloads");
    fprintf(cli->out, "%-22s %.*s\n", cli->dry_run ? "would be freed" : "freed",
            STR_ARG(text_bytes(&cli->arena, number_of(pruned, "freedBytes"))));
    if (number_of(pruned, "leftCount"))
        fprintf(cli->note, "%.*s are still to go: the server removes them in the next minutes.\n",
                STR_ARG(counted(cli, number_of(pruned, "leftCount"), "layer", "layers")));
    return true;
}

bool template_prune_run(struct cli *cli, struct err *err)
{
    const bool is_operator = client_is_operator(cli);
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };

    if (!client_open(&client, cli, is_operator ? CLIENT_AS_ADMIN : CLIENT_AS_CALLER, err) ||
        !client_call(&client, "POST", is_operator ? STR("/admin/template-prune") : STR("/template-prune"),
                     cli->dry_run ? STR("{\"dryRun\":true}") : STR("{}"), &answer, err))
        return err_wrap(err, "prune");
    auto_json json_t *pruned = answer.json;
    if (!json_is_object(pruned))
        return client_misread(err);
    return cli->json ? client_print(cli, pruned) : print_pruned(cli, pruned);
}
