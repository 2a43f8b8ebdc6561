/*
 * guestd: pid 1 of a sandbox.
 *
 *   guestd --handover-fd 3 --cgroup-fd 4 [--cgroup-fd 5 …] [--port 49983] [--code-port 49999]
 *                                                                  as keeper starts it
 *   guestd --port 49983                                            by hand, outside a sandbox: no host, no token
 *
 * On another port than the usual one it serves no run_code unless --code-port is given, so that several can run at once.
 */
#include <errno.h>
#include <linux/close_range.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/ports.h"
#include "guest/guest.h"
#include "guest/handover.h"
#include "guest/interpreter/interpreter.h"
#include "guest/journal.h"
#include "guest/process.h"
#include "guest/spawner.h"
#include "guest/watch.h"
#include "io/listen.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define MAX_FD 1048576

enum { WORKERS_MAX = 2, NOBODY = 65534 };

struct options {
    int handover_fd; /* -1: none */
    int cgroup_fds[GUEST_CGROUPS_MAX];
    size_t cgroup_count;
    unsigned port;
    unsigned code_port; /* 0: none */
};

static bool parse_options(int argc, char **argv, struct options *out, struct err *err)
{
    *out = (struct options){ .handover_fd = -1, .port = GUESTD_PORT };
    for (int i = 1; i < argc; i += 2) {
        struct str name = str_from(argv[i]);
        uint64_t value = 0;
        if (i + 1 >= argc || !str_to_u64(str_from(argv[i + 1]), MAX_FD, &value))
            return err_set(err, ERR_INVALID, "%s wants a number", argv[i]);
        if (str_eq(name, STR("--handover-fd")))
            out->handover_fd = (int)value;
        else if (str_eq(name, STR("--port")) && value > 0 && value <= UINT16_MAX)
            out->port = (unsigned)value;
        else if (str_eq(name, STR("--code-port")) && value > 0 && value <= UINT16_MAX)
            out->code_port = (unsigned)value;
        else if (str_eq(name, STR("--cgroup-fd")) && out->cgroup_count < GUEST_CGROUPS_MAX)
            out->cgroup_fds[out->cgroup_count++] = (int)value;
        else
            return err_set(err, ERR_INVALID, "%s %s makes no sense here", argv[i], argv[i + 1]);
    }
    if (!out->code_port && out->port == GUESTD_PORT)
        out->code_port = INTERPRETER_PORT;
    return true;
}

static void on_child(void *context, int signal_number)
{
    struct guest *guest = context;

    (void)signal_number;
    spawner_check(guest->spawner);
    processes_reap(guest->processes);
}

/* Started by hand: like upstream's debug mode, open to all. */
static const struct guestlink_setup by_hand = {
    .sandbox_id = STR_INIT(""),
    .template_id = STR_INIT(""),
    .access_token = STR_INIT(""),
    .default_user = STR_INIT("user"),
    .default_workdir = STR_INIT(""),
    .network = { .reach = GUESTLINK_OUTSIDE }, /* whatever this machine has */
};

static int listen_at(unsigned port, struct err *err)
{
    char address[32];

    (void)snprintf(address, sizeof address, "0.0.0.0:%u", port);
    return listen_open(str_from(address), err);
}

static bool start(struct guest *guest, const struct options *options, struct err *err)
{
    int listen_fd = listen_at(options->port, err);
    if (listen_fd < 0)
        return false;
    struct http_server_config config = {
        .on_request = guest_serve,
        .context = guest,
        .collect_max = LIMIT_GUEST_COLLECT_BYTES,
        .connections_max = LIMIT_GUEST_CONNECTIONS,
    };
    guest->server = http_server_new(guest->loop, listen_fd, &config);
    int code_fd = options->code_port ? listen_at(options->code_port, err) : -1;
    if (options->code_port && code_fd < 0)
        return false;
    if (code_fd >= 0)
        guest->interpreter = interpreter_new(guest, code_fd);
    if (!loop_on_signal(guest->loop, SIGCHLD, on_child, guest, err))
        return false;
    if (options->handover_fd >= 0)
        handover_serve(guest, options->handover_fd);
    else
        guest_set_up(guest, &by_hand);
    return true;
}

int main(int argc, char **argv)
{
    struct options options;
    struct err err;

    log_setup("guestd", LOG_WARN);
    if (!parse_options(argc, argv, &options, &err)) {
        (void)fprintf(stderr, "guestd: %s\n", err.message);
        return 2;
    }
    /*
     * The guest's root has our uid. Not being dumpable is what keeps it from attaching a debugger to us, from reading
     * the access token in our memory and from opening our descriptors through /proc, guestlink among them.
     */
    (void)prctl(PR_SET_DUMPABLE, 0);
    /*
     * A process with the same three user ids and three group ids may set our limits (prlimit), and leave us without
     * descriptors or memory. So one of our group ids is that of nobody. Children get their own ids.
     */
    (void)!setresgid((gid_t)-1, (gid_t)-1, NOBODY);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(022);
    /* A child gets its own three and nothing else. */
    if (close_range(0, ~0u, CLOSE_RANGE_CLOEXEC) < 0) {
        (void)fprintf(stderr, "guestd: close_range: %s\n", strerror(errno));
        return 1;
    }
    /* Times are printed in UTC; without this the C library would go and parse files of the guest to find that out. */
    (void)setenv("TZDIR", "/dev/null", 1);
    (void)setenv("TZ", "UTC0", 1);
    /* One arena for all threads, and large blocks go back to the kernel at once: we are idle nearly all the time. */
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 128 * 1024);

    struct guest guest = { .loop = loop_new() };
    guest.workers = workers_new(guest.loop, WORKERS_MAX);
    guest.users = users_new("/etc");
    guest.processes = processes_new(&guest);
    guest.watchers = watchers_new(&guest);
    guest.journal = journal_new(guest.loop);
    guest.cgroup_count = options.cgroup_count;
    memcpy(guest.cgroup_fds, options.cgroup_fds, sizeof options.cgroup_fds);
    guest.spawner = spawner_new(guest.loop, guest.cgroup_fds, guest.cgroup_count);
    const char *path = getenv("PATH");
    guest.path_env = path && *path ? path : DEFAULT_PATH;
    arena_init(&guest.setup_arena);
    if (!start(&guest, &options, &err)) {
        (void)fprintf(stderr, "guestd: %s\n", err_text(&err));
        return 1;
    }
    loop_run(guest.loop);
    return 0;
}
