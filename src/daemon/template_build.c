/*
 * `cloister template build NAME`: local, as root, outside every role. It runs Debian's own package scripts, which is why
 * it is a command of the machine's administrator and not a call of the API.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/data_dir.h"
#include "image/recipe.h"

/* On a terminal one line that moves; in a log a line per phase. */
struct meter {
    const char *name;
    bool is_terminal;
    char phase[80];
};

static void show_progress(void *context, unsigned percent, const char *phase)
{
    struct meter *meter = context;

    if (meter->is_terminal) {
        fprintf(stderr, "\r\033[K  %s template  %3u%%  %s", meter->name, percent, phase);
    } else if (strcmp(meter->phase, phase) != 0) {
        fprintf(stderr, "%s template: %s\n", meter->name, phase);
        (void)snprintf(meter->phase, sizeof meter->phase, "%s", phase);
    }
    fflush(stderr);
}

static bool build(const char *name, const struct config *config, bool again, struct err *err)
{
    if (geteuid() != 0)
        return err_set(err, ERR_DENIED, "building a template needs root: sudo cloister template build %s", name);

    auto_close int data_fd = data_dir_open(config->data, err);
    if (data_fd < 0)
        return false;
    struct meter meter = { .name = name, .is_terminal = isatty(STDERR_FILENO) };
    struct bootstrap_want want = { .again = again, .progress = show_progress, .progress_context = &meter };
    struct template made;
    bool ok = recipe_build(data_fd, name, &want, &made, err);
    if (meter.is_terminal)
        fputs("\r\033[K", stderr);
    if (!ok)
        return err_wrap(err, "build template %s", name);
    printf("template %s is ready (%s)\n", made.name, made.id);
    return true;
}

int template_build_main(int argc, char **argv)
{
    struct config config;
    struct err err;
    bool again = false;
    const char *name = NULL;
    char *rest[64];
    int rest_count = 0;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--again") == 0)
            again = true;
        else if (!name && argv[i][0] != '-' && (i == 0 || argv[i - 1][0] != '-' || strcmp(argv[i - 1], "--again") == 0))
            name = argv[i];
        else if (rest_count < (int)COUNT_OF(rest))
            rest[rest_count++] = argv[i];
    }
    bool ok = name ? config_load(rest_count, rest, &config, &err)
                   : err_set(&err, ERR_INVALID, "which template? There are recipes for: %s", recipe_names());
    if (!ok || !build(name, &config, again, &err))
        return cli_fail(&err);
    return 0;
}
