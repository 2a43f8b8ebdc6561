/*
 * Theory of operation: scripts of recipes run package scripts from Debian, PyPI, npm and Maven Central, so they get what any
 * guest gets, a sandbox. Only a server has sandboxes. The operator's own may not run, and has rows and quotas that this is
 * none of. So there is a second server for the time of a build:
 *
 *   tmp/recipe-server       its data directory. It sees it in the place of the real one, by a mount in its own mount
 *                           namespace, because all its roles can reach that path. base's layers are mounted into it.
 *   cloister serve          on a loopback port of its own, without mail. It and its sandboxes are in a pid namespace, whose
 *                           first process is its guard: a child of ours, which ends when we do. Then nothing of it runs.
 *   POST /v3/templates      one build from base with one RUN step as root; its log is read until it is over.
 *   SIGTERM                 the server ends. Its one new layer becomes tmp/recipe-upper, and its directory goes. If it does
 *                           not end, all of it is killed, and the build fails: the next one removes the directory.
 *
 * Of the operator's options it has those that say which users and guestd to use and what a sandbox may reach, merged from
 * file and command line; it reads no file itself. It has no certificate, no mail and no limits on its one client, and by
 * default the internet, which an operator may leave to each create.
 *
 * Everything is below tmp/ until recipe.c seals the layer, so a crash at any moment leaves rubbish in tmp/ and no more.
 *
 * A machine may reach the internet only through a proxy that signs with a certificate of its own. What administrators have
 * put into /usr/local/share/ca-certificates goes along in the step's text, to /run, which is no part of a layer.
 */
#include "daemon/recipe_server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "http/http.h"
#include "isolation/native/native.h"
#include "wire/json.h"

#define SERVER_NAME "recipe-server" /* in tmp/ */
#define LOG_NAME "recipe-server-log"
#define CERTIFICATES "/usr/local/share/ca-certificates"

#ifndef RECIPE_SERVER_MS
#define RECIPE_SERVER_MS 60000 /* smaller in tests */
#endif

enum {
    START_MS = RECIPE_SERVER_MS,   /* until the server answers; it takes one or two seconds */
    STOP_MS = RECIPE_SERVER_MS,    /* until it has ended */
    KILL_MS = 5000,                /* and its guard, which has then killed the rest */
    CALL_MS = 60000,               /* of one API call */
    LOG_BYTES = 1024 * 1024,       /* of its own log: a few lines */
    LOOK_MS = 300,                 /* between looks at the log of a build, and */
    LOG_PAGE = 100,                /* how many lines one has at most */
    CERTIFICATE_BYTES = 64 * 1024, /* one file; a chain has 5,000 */
    CERTIFICATES_MAX = 100,        /* files */
    STEP_BYTES = 1024 * 1024,      /* of the step's text: the script has 15,000 */
    SCRIPT_CPUS = 2,
    SCRIPT_MEMORY_MB = 4096, /* pip and dpkg need less than one GiB; Maven some more */
};

struct running {
    pid_t pid;     /* of its guard; 0: none */
    bool in_order; /* it has ended, and was not killed */
    int port;
    struct arena arena;
    char key[128];
};

/* ---- the step ---- */

static void add_quoted(struct buf *out, const char *text)
{
    buf_add_char(out, '\'');
    for (; *text; text++)
        buf_format(out, *text == '\'' ? "'\\''" : "%c", *text);
    buf_add_char(out, '\'');
}

static int is_certificate(const struct dirent *entry)
{
    return str_ends(str_from(entry->d_name), STR(".crt"));
}

static void add_certificates(struct buf *out, const char *place)
{
    auto_close int dir_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent **list = NULL;
    int count = dir_fd < 0 ? 0 : scandir(place, &list, is_certificate, alphasort);

    for (int i = 0; i < count; i++) {
        auto_free char *text = NULL;
        struct err err;
        /* Only text that is one: it goes into a shell script. */
        if (i < CERTIFICATES_MAX && fd_read_file(dir_fd, list[i]->d_name, CERTIFICATE_BYTES, &text, NULL, &err) &&
            strstr(text, "-----BEGIN CERTIFICATE-----") && !strstr(text, "CLOISTER-END"))
            buf_format(out, "%s\n", text);
        free(list[i]);
    }
    free(list);
}

bool recipe_step_text(const struct recipe_job *job, const char *certificates, struct buf *out, struct err *err)
{
    static const char *const proxies[] = { "http_proxy", "https_proxy", "no_proxy" };

    buf_add(out, STR("mkdir -p /run/recipe\n"
                     "cat /etc/ssl/certs/ca-certificates.crt - >/run/recipe/ca.pem <<'CLOISTER-END'\n"));
    add_certificates(out, certificates);
    buf_add(out, STR("CLOISTER-END\n"
                     "export SSL_CERT_FILE=/run/recipe/ca.pem CURL_CA_BUNDLE=/run/recipe/ca.pem"
                     " PIP_CERT=/run/recipe/ca.pem NODE_EXTRA_CA_CERTS=/run/recipe/ca.pem\n"));
    for (size_t i = 0; i < COUNT_OF(proxies); i++) {
        const char *value = getenv(proxies[i]);
        if (!value || !*value)
            continue;
        buf_format(out, "export %s=", proxies[i]);
        add_quoted(out, value);
        buf_add_char(out, '\n');
    }
    buf_add(out, STR("export "));
    add_quoted(out, job->setting);
    buf_format(out, "\ncat >/run/recipe/script <<'CLOISTER-END'\n%s\nCLOISTER-END\nexec bash -eu /run/recipe/script\n",
               job->script);
    if (strstr(job->script, "\nCLOISTER-END"))
        return err_set(err, ERR_INTERNAL, "a recipe has the line that ends it");
    return !out->overflowed || err_set(err, ERR_LIMIT, "the certificates in %.60s are too large", certificates);
}

/* ---- the server's directory ---- */

static bool make_dirs(int tmp_fd, const struct template *base, int *out_fd, struct err *err)
{
    char path[LAYER_HEX_BYTES + 16];

    if (mkdirat(tmp_fd, SERVER_NAME, 0700) < 0)
        return err_sys(err, "make tmp/" SERVER_NAME);
    auto_close int fd = openat(tmp_fd, SERVER_NAME, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || mkdirat(fd, "layers", 0700) < 0 || mkdirat(fd, "templates", 0700) < 0)
        return err_sys(err, "make directories in tmp/" SERVER_NAME);
    for (uint32_t i = 0; i < base->layer_count; i++) {
        (void)snprintf(path, sizeof path, "layers/%s", base->layers[i]);
        if (mkdirat(fd, path, 0700) < 0)
            return err_sys(err, "make tmp/" SERVER_NAME "/%s", path);
    }
    if (!template_save(fd, base, err))
        return false;
    *out_fd = take_fd(&fd);
    return true;
}

static bool is_of_base(const struct template *base, const char *layer)
{
    for (uint32_t i = 0; i < base->layer_count; i++)
        if (strcmp(base->layers[i], layer) == 0)
            return true;
    return false;
}

/* The one layer that is new. */
static bool take_layer(int tmp_fd, int server_fd, const struct template *base, struct err *err)
{
    int layers_fd = openat(server_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = layers_fd < 0 ? NULL : fdopendir(layers_fd);
    char name[LAYER_HEX_BYTES] = "";
    unsigned count = 0;

    if (!dir) {
        fd_close(&layers_fd);
        return err_sys(err, "open tmp/" SERVER_NAME "/layers");
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && !is_of_base(base, entry->d_name)) {
            (void)snprintf(name, sizeof name, "%.*s", LAYER_HEX_BYTES - 1, entry->d_name);
            count++;
        }
    bool moved = count == 1 && renameat(layers_fd, name, tmp_fd, RECIPE_UPPER) == 0;
    if (!moved)
        (void)err_set(err, ERR_INTERNAL, "the script has left %u layers and not one", count);
    (void)closedir(dir);
    auto_close int upper_fd = moved ? openat(tmp_fd, RECIPE_UPPER, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (moved && upper_fd < 0)
        return err_sys(err, "open tmp/" RECIPE_UPPER);
    return moved && native_own_layer(upper_fd, err);
}

/* ---- the server ---- */

static no_return void give_up(const char *doing)
{
    (void)dprintf(2, "%s: %s\n", doing, strerror(errno));
    _exit(126);
}

/*
 * become_server() - between fork and `cloister serve`.
 *   user      root of the host, as any server's keeper     mounts   a private copy of the host's
 *   pids      those of its guard's namespace, in /proc too
 *   must      see its own directory in place of the real one before anything of it runs
 */
static no_return void become_server(const struct template *base, const char *data, const char **argv, int log_fd)
{
    char from[PATH_MAX + 128], to[PATH_MAX + 128], program[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)signal(SIGTTOU, SIG_DFL);
    if (len < 0 || null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        _exit(126);
    program[len] = '\0';
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        give_up("make a mount namespace");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        give_up("mount /proc");
    for (uint32_t i = 0; i < base->layer_count; i++) {
        (void)snprintf(from, sizeof from, "%s/layers/%s", data, base->layers[i]);
        (void)snprintf(to, sizeof to, "%s/tmp/" SERVER_NAME "/layers/%s", data, base->layers[i]);
        if (mount(from, to, NULL, MS_BIND, NULL) < 0)
            give_up("mount a layer of base");
    }
    (void)snprintf(from, sizeof from, "%s/tmp/" SERVER_NAME, data);
    if (mount(from, data, NULL, MS_BIND | MS_REC, NULL) < 0 || chdir("/") < 0)
        give_up("mount the directory of the server");
    (void)execv(program, (char *const *)argv); /* exec writes to neither */
    give_up("start the server");
}

/*
 * The server's parent, which ends it when we end, also if we are killed: a keeper that changes its ids, as it does to mount,
 * is no longer told of its parent's death. SIGTERM ends both. It is the first of its pid namespace, so that the kernel
 * kills every process there, sandboxes too, when it ends.
 */
static no_return void guard_server(const struct template *base, const char *data, const char **argv, int log_fd,
                                   int parent_fd)
{
    sigset_t watched, before;
    uint64_t until_ms = 0;
    pid_t ended;

    (void)setpgid(0, 0); /* the server ends its roles itself */
    (void)sigemptyset(&watched);
    (void)sigaddset(&watched, SIGTERM);
    (void)sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fd_await(parent_fd, POLLIN, 0))
        _exit(126); /* it ended before that */
    pid_t pid = fork();
    if (pid < 0)
        _exit(126);
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        become_server(base, data, argv, log_fd);
    }
    for (;;) {
        const struct timespec look = { .tv_nsec = 100 * 1000 * 1000 };
        if (sigtimedwait(&watched, NULL, &look) == SIGTERM) {
            (void)kill(pid, SIGTERM);
            until_ms = until_ms ? until_ms : clock_mono_ms() + STOP_MS;
        }
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) /* orphans of the namespace are our children, too */
            if (ended == pid)
                _exit(0);
        if (until_ms && clock_mono_ms() >= until_ms)
            _exit(1);
    }
}

static int free_port(void)
{
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) < 0 || getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        return -1;
    return ntohs(at.sin_port);
}

/* Of the operator's; an empty one is left out. */
static const struct {
    const char *name;
    size_t field;
} passed_on[] = {
    { "--user", offsetof(struct config, user) },
    { "--egress-user", offsetof(struct config, egress_user) },
    { "--signer-user", offsetof(struct config, signer_user) },
    { "--composer-user", offsetof(struct config, composer_user) },
    { "--webhooks-user", offsetof(struct config, webhooks_user) },
    { "--puller-user", offsetof(struct config, puller_user) },
    { "--egress-allow", offsetof(struct config, egress_allow) },
    { "--egress-deny", offsetof(struct config, egress_deny) },
    { "--dns", offsetof(struct config, dns) },
    { "--inside", offsetof(struct config, inside) },
};

static bool start_server(struct running *running, const struct recipe_server *want, const struct template *base,
                         int tmp_fd, struct err *err)
{
    const struct config *config = want->config;
    char data[PATH_MAX], guestd[PATH_MAX], listen[40], memory[16], cpus[16], rate[24];
    const char *const ours[] = {
        "cloister", "serve", "--config",       "/dev/null", "--data",     data,    "--listen",      listen,
        "--mail",   "off",   "--criu",         "off",       "--internet", "on",    "--memory",      memory,
        "--cpus",   cpus,    "--pids",         "4096",      "--timeout",  "86400", "--egress-rate", rate,
        "--log",    "info",  "--key-requests", "0",
    };
    const char *argv[COUNT_OF(ours) + 2 * COUNT_OF(passed_on) + 3];
    auto_close int log_fd = openat(tmp_fd, LOG_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t count = 0;

    running->port = free_port();
    if (log_fd < 0 || running->port < 0 || !realpath(config->data, data))
        return err_sys(err, "prepare a server");
    if (config->guestd[0] && !realpath(config->guestd, guestd)) /* it starts in / */
        return err_sys(err, "--guestd %.100s", config->guestd);
    (void)snprintf(listen, sizeof listen, "127.0.0.1:%d", running->port);
    (void)snprintf(memory, sizeof memory, "%d", SCRIPT_MEMORY_MB);
    (void)snprintf(cpus, sizeof cpus, "%d", SCRIPT_CPUS);
    (void)snprintf(rate, sizeof rate, "%llu", (unsigned long long)config->egress_rate_mb);
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        argv[count++] = ours[i];
    for (size_t i = 0; i < COUNT_OF(passed_on); i++) {
        const char *value = (const char *)config + passed_on[i].field;
        if (value[0]) {
            argv[count++] = passed_on[i].name;
            argv[count++] = value;
        }
    }
    if (config->guestd[0]) {
        argv[count++] = "--guestd";
        argv[count++] = guestd;
    }
    argv[count] = NULL;
    auto_close int self_fd = pidfd_open(getpid(), 0);
    struct clone_args args = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };
    if (self_fd < 0)
        return err_sys(err, "pidfd_open");
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        guard_server(base, data, argv, log_fd, self_fd);
    if (pid < 0)
        return err_sys(err, "make a process for the server");
    running->pid = pid;
    return true;
}

static bool has_ended(struct running *running)
{
    int status = 0;
    pid_t ended = running->pid > 1 ? waitpid(running->pid, &status, WNOHANG) : -1;

    if (ended != 0) {
        running->in_order = ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        running->pid = 0;
    }
    return running->pid == 0;
}

/* When this returns, nothing of the server runs: its guard ends last. False: it had to be killed. */
static bool stop_server(struct running *running)
{
    uint64_t until_ms = clock_mono_ms() + STOP_MS + KILL_MS;

    if (running->pid > 1)
        (void)kill(running->pid, SIGTERM);
    while (running->pid > 1 && !has_ended(running)) {
        if (clock_mono_ms() >= until_ms)
            (void)kill(running->pid, SIGKILL);
        (void)usleep(20 * 1000);
    }
    return running->in_order;
}

/* ---- calls ---- */

/* *out_json is the caller's to release. */
static bool call(struct running *running, const char *method, struct str target, struct str body, json_t **out_json,
                 struct err *err)
{
    char address[40];
    const struct http_field fields[] = {
        { STR("X-API-Key"), str_from(running->key) },
        { STR("Content-Type"), STR("application/json") },
    };
    struct http_answer answer;

    (void)snprintf(address, sizeof address, "127.0.0.1:%d", running->port);
    arena_done(&running->arena);
    arena_init(&running->arena);
    if (!http_fetch(&running->arena, str_from(address), str_from(method), target, fields, COUNT_OF(fields), body,
                    CALL_MS, &answer, err))
        return err_wrap(err, "ask the server of the build");
    if (answer.status < 200 || answer.status > 299)
        return err_set(err, ERR_UNAVAILABLE, "the server of the build answered %u: %.*s", answer.status,
                       (int)MIN(answer.body.len, (size_t)100), answer.body.at);
    *out_json = answer.body.len ? json_parse_large(answer.body, LIMIT_JSON_VALUES, err) : NULL;
    return *out_json || answer.body.len == 0;
}

/* The last line of its log. */
static bool does_not_start(int tmp_fd, struct err *err)
{
    auto_free char *text = NULL;
    struct err ignored;

    if (!fd_read_file(tmp_fd, LOG_NAME, LOG_BYTES, &text, NULL, &ignored))
        return err_set(err, ERR_UNAVAILABLE, "the server for the build does not start; see tmp/" LOG_NAME);
    size_t len = strlen(text);
    while (len && text[len - 1] == '\n')
        text[--len] = '\0';
    const char *line = strrchr(text, '\n');
    return err_set(err, ERR_UNAVAILABLE, "the server for the build does not start: %.110s",
                   len ? (line ? line + 1 : text) : "it does not say why");
}

/* It writes its key before it listens. */
static bool await_server(struct running *running, int tmp_fd, int server_fd, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + START_MS;

    for (;;) {
        auto_free char *key = NULL;
        auto_json json_t *json = NULL;
        struct err why;
        if (fd_read_file(server_fd, "api-key", sizeof running->key - 1, &key, NULL, &why)) {
            (void)snprintf(running->key, sizeof running->key, "%.*s", (int)strcspn(key, "\n"), key);
            if (call(running, "GET", STR("/templates"), STR(""), &json, &why))
                return true;
        }
        if (has_ended(running) || clock_mono_ms() >= until_ms)
            return does_not_start(tmp_fd, err);
        (void)usleep(50 * 1000);
    }
}

static bool begin_build(struct running *running, const struct recipe_job *job, char *out_target, size_t size,
                        struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, STEP_BYTES), body = buf_make(NULL, 2 * STEP_BYTES);
    struct json_out out = json_out_to(&body);
    auto_json json_t *made = NULL, *started = NULL;
    struct str template_id, build_id;

    json_out_object(&out, NULL);
    json_out_str(&out, "name", STR("recipe"));
    json_out_int(&out, "cpuCount", SCRIPT_CPUS);
    json_out_int(&out, "memoryMB", SCRIPT_MEMORY_MB);
    json_out_end(&out);
    if (!call(running, "POST", STR("/v3/templates"), buf_str(&body), &made, err) ||
        !json_take_str(made, "templateID", JSON_REQUIRED, &template_id, err) ||
        !json_take_str(made, "buildID", JSON_REQUIRED, &build_id, err) ||
        !recipe_step_text(job, CERTIFICATES, &text, err))
        return false;
    buf_clear(&body);
    out = json_out_to(&body);
    json_out_object(&out, NULL);
    json_out_str(&out, "fromTemplate", STR("base"));
    json_out_array(&out, "steps");
    json_out_object(&out, NULL);
    json_out_str(&out, "type", STR("RUN"));
    json_out_array(&out, "args");
    json_out_str(&out, NULL, buf_str(&text));
    json_out_str(&out, NULL, STR("root"));
    json_out_end(&out);
    json_out_end(&out);
    json_out_end(&out);
    json_out_end(&out);
    (void)snprintf(out_target, size, "/v2/templates/%.*s/builds/%.*s", STR_ARG(template_id), STR_ARG(build_id));
    if (!call(running, "POST", str_from(out_target), buf_str(&body), &started, err))
        return false;
    (void)snprintf(out_target, size, "/templates/%.*s/builds/%.*s/status", STR_ARG(template_id), STR_ARG(build_id));
    return true;
}

/* "[builder 1/1] [stdout]: text" is what the script prints; other lines are the builder's own. */
static void take_lines(const struct recipe_job *job, const json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        struct str text;
        struct err err;
        if (json_take_str(json_array_get(lines, i), "message", JSON_REQUIRED, &text, &err) &&
            (str_skip(&text, STR("[builder 1/1] [stdout]: ")) || str_skip(&text, STR("[builder 1/1] [stderr]: "))))
            job->line(job->context, text);
    }
}

/* A script that fails has said why. What else ends a build is told as it would have said it. */
static void take_reason(const struct recipe_job *job, const json_t *answer)
{
    const json_t *reason;
    struct str text;
    struct err err;
    char line[512];

    if (!json_take_object(answer, "reason", JSON_OPTIONAL, &reason, &err) || !reason ||
        !json_take_str(reason, "message", JSON_OPTIONAL, &text, &err) || str_starts(text, STR("failed to run command")))
        return;
    int len = snprintf(line, sizeof line, "E: %.*s", STR_ARG(text));
    job->line(job->context, str_of(line, MIN((size_t)len, sizeof line - 1)));
}

static bool await_build(struct running *running, const struct recipe_job *job, const char *target, bool *out_fine,
                        struct err *err)
{
    char page[300];
    size_t seen = 0;

    for (;;) {
        auto_json json_t *answer = NULL;
        const json_t *lines;
        struct str status;
        (void)snprintf(page, sizeof page, "%s?logsOffset=%zu&limit=%d", target, seen, LOG_PAGE);
        if (!call(running, "GET", str_from(page), STR(""), &answer, err) ||
            !json_take_str(answer, "status", JSON_REQUIRED, &status, err) ||
            !json_take_array(answer, "logEntries", JSON_REQUIRED, &lines, err))
            return err_wrap(err, "read the log of the build");
        size_t count = json_array_size(lines);
        take_lines(job, lines);
        seen += count;
        if (count == LOG_PAGE)
            continue; /* also after the end: all of it is read */
        if (str_eq(status, STR("ready")) || str_eq(status, STR("error"))) {
            *out_fine = str_eq(status, STR("ready"));
            take_reason(job, answer);
            return true;
        }
        (void)usleep(LOOK_MS * 1000);
    }
}

static bool run_build(const struct recipe_server *want, int tmp_fd, int server_fd, const struct recipe_job *job,
                      bool *out_fine, struct err *err)
{
    struct running running = { 0 };
    char target[256];

    arena_init(&running.arena);
    bool ok = start_server(&running, want, job->base, tmp_fd, err) && await_server(&running, tmp_fd, server_fd, err) &&
              begin_build(&running, job, target, sizeof target, err) &&
              await_build(&running, job, target, out_fine, err);
    bool in_order = stop_server(&running);
    arena_done(&running.arena);
    if (ok && !in_order)
        return err_set(err, ERR_UNAVAILABLE, "the server for the build did not end; see tmp/" LOG_NAME);
    return ok;
}

bool recipe_server_run(void *context, int data_fd, int tmp_fd, const struct recipe_job *job, bool *out_fine,
                       struct err *err)
{
    auto_close int server_fd = -1;

    (void)data_fd;
    if (!make_dirs(tmp_fd, job->base, &server_fd, err) || !run_build(context, tmp_fd, server_fd, job, out_fine, err))
        return false;
    if (*out_fine && !take_layer(tmp_fd, server_fd, job->base, err))
        return false;
    return remove_tree(tmp_fd, SERVER_NAME, err);
}
