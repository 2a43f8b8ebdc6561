/*
 * One binary: the server in all its roles, and the command line that talks to it.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/roles.h"
#include "image/recipe.h"

static bool is(const char *word, const char *name)
{
    return word && strcmp(word, name) == 0;
}

/* Help for the commands in daemon/; `command` is the name in the table of cli/. */
static int show_help(const char *command)
{
    (void)cli_help(stdout, command);
    if (is(command, "serve")) {
        printf("\nOptions\n");
        config_help(stdout);
    }
    return 0;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (is(argv[i], "--help") || is(argv[i], "-h"))
            return true;
    return false;
}

/* Of `template build`: everything else is a Dockerfile, which cli/ builds. */
static bool is_recipe(const char *word)
{
    const char *name, *makes;

    for (size_t i = 0; word && recipe_at(i, &name, &makes); i++)
        if (is(word, name) || is(word, makes))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : NULL, *second = argc > 2 ? argv[2] : NULL;

    /* A peer that goes away is an error from write(2), not a signal. */
    (void)signal(SIGPIPE, SIG_IGN);

    if (is(first, "role") && argc == 4 && role_find(second))
        return role_run(role_find(second), argv[3]);
    cli_started_as(argv[0]);
    if (is(first, "help") && is(second, "serve") && argc == 3)
        return show_help("serve"); /* cli/ does not know its options */
    if (is(first, "serve"))
        return asks_for_help(argc - 2, argv + 2) ? show_help("serve") : keeper_main(argc - 2, argv + 2);
    if (is(first, "doctor"))
        return asks_for_help(argc - 2, argv + 2) ? show_help("doctor") : doctor_main(argc - 2, argv + 2);
    if (is(first, "template") && is(second, "build") && !asks_for_help(argc - 3, argv + 3) &&
        is_recipe(cli_first_word("template build", argc - 3, argv + 3)))
        return template_build_main(argc - 3, argv + 3);
    return cli_main(argc, argv, &(struct cli_facts){ .recipe_at = recipe_at });
}
