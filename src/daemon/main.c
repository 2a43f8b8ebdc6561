/*
 * One binary: the server in all its roles, and the command line that talks to it.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "daemon/config.h"
#include "daemon/daemon.h"

static bool is(const char *word, const char *name)
{
    return word && strcmp(word, name) == 0;
}

/* Help for the commands that daemon/ takes itself; the words are the command's name in the table. */
static bool helped(int argc, char **argv, const char *command)
{
    for (int i = 0; i < argc; i++) {
        if (!is(argv[i], "--help") && !is(argv[i], "-h"))
            continue;
        (void)cli_help(stdout, command);
        if (is(command, "serve")) {
            printf("\nOptions:\n");
            config_help(stdout);
        }
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : NULL, *second = argc > 2 ? argv[2] : NULL;

    /* A peer that goes away is an error from write(2), never the end of us. */
    (void)signal(SIGPIPE, SIG_IGN);

    if (is(first, "role") && is(second, "front") && argc == 3)
        return front_main();
    if (is(first, "serve"))
        return helped(argc - 2, argv + 2, "serve") ? 0 : keeper_main(argc - 2, argv + 2);
    if (is(first, "doctor"))
        return helped(argc - 2, argv + 2, "doctor") ? 0 : doctor_main(argc - 2, argv + 2);
    if (is(first, "template") && is(second, "build"))
        return helped(argc - 3, argv + 3, "template build") ? 0 : template_build_main(argc - 3, argv + 3);
    return cli_main(argc, argv);
}
