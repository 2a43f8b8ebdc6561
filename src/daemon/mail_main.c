/*
 * The program cloister-mail: the roles that need large libraries, to read and make mail, to call webhooks and to
 * get images from registries. Keeper starts it as `cloister-mail role NAME LEVEL`, like the roles of cloister; their rows in roles.c say who they run as and who their peers are.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/attr.h"
#include "daemon/roles.h"
#include "mail/compose.h"

static const struct role_row rows[] = {
    { .name = "webhooks",
      .main = webhooks_main,
      .prepare = webhooks_prepare,
      .grants = { GRANT_EGRESS, GRANT_ROOTS },
      .calls = webhooks_calls },
    { .name = "puller",
      .main = puller_main,
      .prepare = puller_prepare,
      .grants = { GRANT_BLOBS, GRANT_PULLER, GRANT_EGRESS, GRANT_ROOTS },
      .directory = GRANT_BLOBS,
      .readable = puller_readable,
      .calls = puller_calls },
    { .name = "composer", .main = composer_main, .prepare = composer_prepare, .calls = composer_calls },
};

int main(int argc, char **argv)
{
    /* A peer that goes away is an error from write(2), not a signal. */
    (void)signal(SIGPIPE, SIG_IGN);

    for (size_t i = 0; argc == 4 && strcmp(argv[1], "role") == 0 && i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, argv[2]) == 0)
            _exit(role_run(&rows[i],
                           argv[3])); /* no destructors of libraries: the leak check of test builds needs ptrace */
    (void)fprintf(stderr, "cloister-mail is a part of cloister: `cloister serve` starts it\n");
    return 2;
}
