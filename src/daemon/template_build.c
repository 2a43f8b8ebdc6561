/*
 * `cloister template build NAME`: local, as root, outside every role. It writes to the data directory itself, so it is a
 * command for the administrator of the machine and not an API call.
 *
 * What runs programs from elsewhere is kept apart from the host: base in namespaces (image/build.c), recipes in a sandbox
 * (recipe_server.c).
 *
 * A child builds, in a process group of its own with everything it starts, so that an interrupt reaches only the
 * parent. The parent then kills the child and its descendants, waits until all have ended, and removes what was
 * half-made.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/cli.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/data_dir.h"
#include "daemon/recipe_server.h"
#include "image/layers.h"
#include "image/recipe.h"

enum {
    CHILDREN_BYTES = 64 * 1024, /* of pids; children beyond it are killed once others have ended */
    END_LOOK_MS = 20,
    END_TRIES = 1000, /* 20 seconds to end by themselves */
};

/* Progress: on a terminal one line that is rewritten; in a log a line per phase and per ten percent. */
struct meter {
    const char *name;
    bool is_terminal;
    char phase[80];
    unsigned tenth;
};

static void show_progress(void *context, unsigned percent, const char *phase)
{
    struct meter *meter = context;

    if (meter->is_terminal) {
        fprintf(stderr, "\r\033[K  %s template  %3u%%  %s", meter->name, percent, phase);
    } else if (strcmp(meter->phase, phase) != 0 || percent / 10 != meter->tenth) {
        fprintf(stderr, "%s template: %3u%% %s\n", meter->name, percent, phase);
        meter->tenth = percent / 10;
        (void)snprintf(meter->phase, sizeof meter->phase, "%s", phase);
    }
    fflush(stderr);
}

static bool build(const char *name, int data_fd, bool again, struct recipe_server *server, struct err *err)
{
    const struct recipe_place place = { recipe_server_run, server };
    struct meter meter = { .name = name, .is_terminal = isatty(STDERR_FILENO) };
    struct bootstrap_want want = { .again = again, .progress = show_progress, .progress_context = &meter };
    struct template made;
    bool ok = recipe_build(data_fd, name, &want, &place, &made, err);

    if (meter.is_terminal)
        fputs("\r\033[K", stderr);
    if (!ok)
        return err_wrap(err, "build template %s", name);
    printf("template %s is ready (%s)\n", made.name, made.id);
    return true;
}

static no_return void build_and_exit(const char *name, int data_fd, bool again, struct recipe_server *server)
{
    struct err err;

    /* Without this a terminal with `stty tostop` stops the child, which is not in its foreground process group. */
    (void)signal(SIGTTOU, SIG_IGN);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    exit(build(name, data_fd, again, server, &err) ? 0 : cli_fail(&err));
}

/* Kills our children. We are the subreaper, so they include processes whose own parents have ended. */
static void kill_children(void)
{
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    if (!fd_read_file(AT_FDCWD, "/proc/thread-self/children", CHILDREN_BYTES, &text, &len, &err))
        return; /* a kernel without that list: the process group was killed all the same */
    struct str rest = str_of(text, len), word;
    uint64_t pid;
    while (str_cut(&rest, ' ', &word))
        if (str_to_u64(word, INT32_MAX, &pid) && pid > 1)
            (void)kill((pid_t)pid, SIGKILL);
}

/*
 * Ends all our descendants, whatever groups they are in, and waits until they have ended. They get time first: a server
 * that runs a recipe ends its sandbox. group: the builder's while it is not reaped, else 0.
 */
static void end_children(pid_t group)
{
    for (int tries = 0; tries < END_TRIES; tries++) {
        pid_t ended;
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (ended < 0 && errno == ECHILD)
            return;
        (void)usleep(END_LOOK_MS * 1000);
    }
    if (group > 1)
        (void)kill(-group, SIGKILL);
    do {
        kill_children();
    } while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
}

static int interrupted(const char *name, const struct config *config, int data_fd, int signal_number)
{
    struct err err;
    auto_close int lock_fd = -1;

    /* Removing a GiB of small files may take a minute. A second interrupt ends us at once. */
    fprintf(stderr,
            "%sInterrupted; removing the unfinished files. (Interrupt again to leave that to the next build.)\n",
            isatty(STDERR_FILENO) ? "\r\033[K" : "");
    if (!layers_prepare(data_fd, &lock_fd, &err)) {
        (void)err_wrap(&err, "remove what the interrupted build has left");
        return cli_fail(&err);
    }
    fprintf(stderr,
            "Nothing of it is left, and the templates are unchanged. To start over:\n"
            "  %s template build %s --data %s\n",
            cli_program_as_root(), name, config->data);
    return 128 + signal_number;
}

/* nohup ignores SIGHUP, and a shell ignores SIGINT for commands started with `&`: then the build must go on. */
static bool is_ignored(int number)
{
    struct sigaction now;

    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static int build_watched(const char *name, const struct config *config, bool again, struct recipe_server *server)
{
    struct err err;
    sigset_t watched, before;
    siginfo_t info;
    int status = 0;

    if (geteuid() != 0) {
        (void)err_set(&err, ERR_DENIED, "building a template needs root: %s template build %.40s",
                      cli_program_as_root(), name);
        return cli_fail(&err);
    }
    auto_close int data_fd = data_dir_open(config->data, &err);
    if (data_fd < 0)
        return cli_fail(&err);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)sigemptyset(&watched);
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    for (size_t i = 0; i < COUNT_OF(signals); i++)
        if (!is_ignored(signals[i]))
            (void)sigaddset(&watched, signals[i]);
    (void)sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    pid_t pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        build_and_exit(name, data_fd, again, server);
    }
    if (pid < 0) {
        (void)err_sys(&err, "fork");
        return cli_fail(&err);
    }
    (void)setpgid(pid, pid); /* parent and child both do it, so that it is done before either goes on */
    for (;;) {
        int got = sigwaitinfo(&watched, &info);
        if (got > 0 && got != SIGCHLD) {
            (void)kill(-pid, SIGTERM);
            end_children(pid);
            (void)sigprocmask(SIG_SETMASK, &before, NULL);
            return interrupted(name, config, data_fd, got);
        }
        /* SIGCHLD does not say which child has ended; adopted orphans are children, too. */
        pid_t ended;
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
            if (ended == pid) {
                end_children(0); /* if it was killed, its server is still ending */
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            }
    }
}

int template_build_main(int argc, char **argv)
{
    struct config config;
    struct err err;
    bool again = false;
    const char *name = cli_first_word("template build", argc, argv);
    auto_free char **rest = mem_new(((size_t)argc + 1) * sizeof *rest);
    int rest_count = 0;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--again") == 0)
            again = true;
        else if (argv[i] != name)
            rest[rest_count++] = argv[i];
    }
    if (!config_load(rest_count, rest, &config, &err))
        return cli_fail(&err);
    if (!name) {
        (void)err_set(&err, ERR_INVALID, "no template named; there are recipes for: %s", recipe_names());
        return cli_fail(&err);
    }
    struct recipe_server server = { .config = &config };
    return build_watched(name, &config, again, &server);
}
