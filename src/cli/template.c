/*
 * template.c - what sandboxes can start from.
 */
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"

static const char *const template_heads[] = { "TEMPLATE", "NAMES", ">CPUS", ">MEMORY", "MADE", NULL };

static bool template_row(struct cli *cli, struct table *table, const json_t *template, struct err *err)
{
    struct str id, created = STR("");
    int64_t cpus = 0, memory_mib = 0;
    const json_t *aliases = NULL, *alias;
    struct buf names = buf_make(&cli->arena, 4096);
    size_t i;

    if (!json_take_str(template, "templateID", JSON_REQUIRED, &id, err) ||
        !json_take_array(template, "aliases", JSON_OPTIONAL, &aliases, err) ||
        !json_take_int(template, "cpuCount", JSON_OPTIONAL, 0, INT32_MAX, &cpus, err) ||
        !json_take_int(template, "memoryMB", JSON_OPTIONAL, 0, INT32_MAX, &memory_mib, err) ||
        !json_take_str(template, "createdAt", JSON_OPTIONAL, &created, err))
        return false;
    json_array_foreach(aliases, i, alias)
    {
        buf_add(&names, i ? STR(", ") : STR(""));
        buf_add(&names, json_is_string(alias) ? json_str(alias) : STR("?"));
    }
    table_row(table, (const struct str[]){ id, buf_str(&names), arena_format(&cli->arena, "%d", (int)cpus),
                                           text_mib(&cli->arena, memory_mib), text_ago(&cli->arena, created) });
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

    for (size_t i = 0; cli->facts && cli->facts->recipe_at(i, &name, &makes); i++)
        if (!is_there(templates, makes))
            fprintf(cli->note, "Not built yet: %s. To build it: %s template build %s%s\n", makes, cli_program_as_root(),
                    name, cli->url ? "" : cli_same_server(cli));
}

bool template_list_run(struct cli *cli, struct err *err)
{
    auto_json json_t *templates = NULL;

    if (!client_get(cli, CLIENT_AS_CALLER, STR("/templates"), &templates, err))
        return false;
    if (!client_print_list(cli, templates, template_heads, template_row, "There are no templates.", err))
        return err_wrap(err, "list templates");
    if (!cli->json)
        note_unbuilt(cli, templates);
    return true;
}
