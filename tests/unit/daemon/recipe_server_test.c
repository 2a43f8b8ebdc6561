#include "daemon/recipe_server.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "test.h"

#define PEM "-----BEGIN CERTIFICATE-----\nCLOISTERTEST\n-----END CERTIFICATE-----\n"

static void put(int dir_fd, const char *name, const char *text)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    struct err err;

    assert_true(fd >= 0 && fd_write_all(fd, str_from(text), &err));
}

/* Runs a step here, with another directory for /run/recipe, and returns what it has printed. */
static char *run_step(const char *text, const char *place)
{
    auto_buf struct buf here = buf_make(NULL, 1 << 20);
    char command[400];
    struct err err;
    char *said;

    for (const char *at = text; *at;) {
        if (strncmp(at, "/run/recipe", 11) == 0) {
            buf_format(&here, "%s/run", place);
            at += 11;
        } else {
            buf_add_char(&here, *at++);
        }
    }
    auto_close int dir_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd = openat(dir_fd, "step", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd_write_all(fd, buf_str(&here), &err));
    (void)snprintf(command, sizeof command, "bash %s/step >%s/said 2>&1; echo status $? >>%s/said", place, place,
                   place);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    assert_true(fd_read_file(dir_fd, "said", 1 << 16, &said, NULL, &err));
    return said;
}

static void a_step_has_the_script_its_setting_proxies_and_certificates(void **state)
{
    char place[] = "/tmp/recipe-server-test-XXXXXX", certificates[64];
    const struct recipe_job job = {
        .script = "echo \"$KERNEL|$http_proxy|${https_proxy-none}\"\n"
                  "grep -c CLOISTERTEST \"$SSL_CERT_FILE\"\n"
                  "test \"$PIP_CERT\" = \"$SSL_CERT_FILE\"\n"
                  "cat << 'END'\nit's $HOME\nEND\n"
                  "false\necho not here",
        .setting = "KERNEL=1 2",
    };
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(place));
    auto_close int dir_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(dir_fd, "ca", 0755), 0);
    auto_close int ca_fd = openat(dir_fd, "ca", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put(ca_fd, "one.crt", PEM);
    put(ca_fd, "two.crt", PEM);
    put(ca_fd, "three.pem", PEM);                                              /* not by its name */
    put(ca_fd, "four.crt", "CLOISTERTEST: no certificate");                    /* nor this */
    put(ca_fd, "five.crt", PEM "CLOISTERTEST\nCLOISTER-END\ntouch /tmp/no\n"); /* nor what would end the text */
    (void)snprintf(certificates, sizeof certificates, "%s/ca", place);
    assert_int_equal(setenv("http_proxy", "http://it's:3128", 1), 0);
    assert_int_equal(unsetenv("https_proxy"), 0);
    if (!recipe_step_text(&job, certificates, &text, &err))
        fail_msg("%s", err_text(&err));
    buf_add_char(&text, '\0');
    auto_free char *said = run_step(text.data, place);
    assert_string_equal(said, "1 2|http://it's:3128|none\n2\nit's $HOME\nstatus 1\n");
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

static void a_script_that_would_end_early_is_refused(void **state)
{
    const struct recipe_job job = { .script = "echo one\nCLOISTER-END\necho two", .setting = "A=b" };
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    struct err err;

    (void)state;
    assert_false(recipe_step_text(&job, "/nonexistent", &text, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
}

/* ---- the server: this program again ---- */

#define NEW_LAYER "bbbb" /* that the server makes */

static const char *value_of(int argc, char **argv, const char *option)
{
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return argv[i + 1];
    _exit(3);
}

/* Answers everything alike, as if a build were ready at once. Its sandbox is in a session of its own and does not end. */
static no_return void serve(int argc, char **argv)
{
    static const char json[] = "{\"templateID\":\"t\",\"buildID\":\"b\",\"status\":\"ready\",\"logEntries\":[]}";
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const char *data = value_of(argc, argv, "--data"), *colon = strrchr(value_of(argc, argv, "--listen"), ':');
    int dir_fd = open(data, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char asked[65536];
    struct config config;
    struct err err;

    if (!config_load(argc - 2, argv + 2, &config, &err)) {
        (void)dprintf(1, "%s\n", err_text(&err));
        _exit(2);
    }
    (void)dprintf(1, "user=%s deny=%s dns=%s rate=%llu guestd=%s tls=%s requests=%llu internet=%s file=%s\n",
                  config.user, config.egress_deny, config.dns, (unsigned long long)config.egress_rate_mb, config.guestd,
                  config.tls_cert, (unsigned long long)config.key_requests, config.internet, config.file);
    at.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 5) < 0 ||
        mkdirat(dir_fd, "layers/" NEW_LAYER, 0700) < 0 || access("/proc/self/exe", F_OK) < 0)
        _exit(4);
    put(dir_fd, "api-key", "key\n");
    if (fork() == 0) {
        (void)setsid();
        (void)signal(SIGTERM, SIG_IGN);
        for (;;)
            (void)pause();
    }
    if (getenv("TEST_SERVER_STAYS"))
        (void)signal(SIGTERM, SIG_IGN);
    for (;;) {
        auto_close int peer = accept(fd, NULL, NULL);
        (void)!recv(peer, asked, sizeof asked, 0);
        (void)dprintf(peer, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", strlen(json),
                      json);
        (void)shutdown(peer, SHUT_WR);
        while (recv(peer, asked, sizeof asked, 0) > 0)
            ;
    }
}

static void ignore_line(void *context, struct str line)
{
    (void)context;
    (void)line;
}

struct run {
    char data[40];
    int data_fd, tmp_fd;
    bool ok, fine;
    struct err err;
};

static const struct config defaults = { .user = "cloister" };

static void run_recipe(struct run *run, const struct config *options)
{
    struct config config = *options;
    struct template base = { .layer_count = 1, .cpu_millis = 1000, .memory_bytes = 1 << 30, .created_us = 1 };
    const struct recipe_job job = { .script = "true", .setting = "A=b", .base = &base, .line = ignore_line };
    char layer[128];

    *run = (struct run){ .data = "/tmp/recipe-server-test-XXXXXX" };
    assert_non_null(mkdtemp(run->data));
    run->data_fd = open(run->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(base.id, sizeof base.id, "%020d", 1);
    (void)snprintf(base.name, sizeof base.name, "base");
    memset(base.layers[0], 'a', LAYER_HEX_BYTES - 1);
    memset(base.recipe, '0', LAYER_HEX_BYTES - 1);
    (void)snprintf(layer, sizeof layer, "layers/%s", base.layers[0]);
    assert_int_equal(mkdirat(run->data_fd, "tmp", 0700) | mkdirat(run->data_fd, "layers", 0700) |
                         mkdirat(run->data_fd, layer, 0700),
                     0);
    run->tmp_fd = openat(run->data_fd, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(config.data, sizeof config.data, "%s", run->data);
    struct recipe_server server = { .config = &config };
    run->ok = recipe_server_run(&server, run->data_fd, run->tmp_fd, &job, &run->fine, &run->err);
}

static void run_done(struct run *run)
{
    struct err err;

    fd_close(&run->tmp_fd);
    fd_close(&run->data_fd);
    assert_true(remove_tree(AT_FDCWD, run->data, &err));
}

/* Everything that the server starts inherits one end. */
static bool all_have_ended(int *fds)
{
    struct pollfd end = { .fd = fds[0], .events = POLLIN };

    (void)close(fds[1]);
    bool ended = poll(&end, 1, 0) == 1 && (end.revents & POLLHUP);
    (void)close(fds[0]);
    return ended;
}

static void a_server_that_ends_leaves_its_layer_and_no_sandbox(void **state)
{
    struct run run;
    int fds[2];

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(pipe(fds), 0); /* NOLINT(android-cloexec-pipe): it is for the server */
    run_recipe(&run, &defaults);
    assert_true(all_have_ended(fds));
    if (!run.ok)
        fail_msg("%s", err_text(&run.err));
    assert_true(run.fine);
    assert_int_equal(faccessat(run.tmp_fd, RECIPE_UPPER, F_OK, 0), 0);
    assert_int_equal(faccessat(run.tmp_fd, "recipe-server", F_OK, 0), -1);
    run_done(&run);
}

static void a_server_that_does_not_end_is_killed_with_its_sandbox_and_its_directory_stays(void **state)
{
    struct run run;
    int fds[2];

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(pipe(fds), 0); /* NOLINT(android-cloexec-pipe): it is for the server */
    assert_int_equal(setenv("TEST_SERVER_STAYS", "1", 1), 0);
    run_recipe(&run, &defaults);
    assert_int_equal(unsetenv("TEST_SERVER_STAYS"), 0);
    assert_true(all_have_ended(fds));
    assert_false(run.ok);
    assert_non_null(strstr(err_text(&run.err), "did not end"));
    assert_int_equal(faccessat(run.tmp_fd, RECIPE_UPPER, F_OK, 0), -1);
    assert_int_equal(faccessat(run.tmp_fd, "recipe-server/layers/" NEW_LAYER, F_OK, 0), 0);
    run_done(&run);
}

static void the_server_has_the_rules_of_the_operator_and_not_the_rest(void **state)
{
    const struct config config = {
        .user = "somebody",
        .egress_deny = "10.0.0.0/8,192.0.2.1/32",
        .dns = "192.0.2.53",
        .egress_rate_mb = 7,
        .guestd = "/dev/../dev/null",
        .tls_cert = "/tls.pem",
        .key_requests = 1,
        .internet = "off",
    };
    auto_free char *said = NULL;
    struct run run;

    (void)state;
    if (geteuid() != 0)
        skip();
    run_recipe(&run, &config);
    if (!run.ok)
        fail_msg("%s", err_text(&run.err));
    assert_true(fd_read_file(run.tmp_fd, "recipe-server-log", 1 << 16, &said, NULL, &run.err));
    assert_string_equal(said, "user=somebody deny=10.0.0.0/8,192.0.2.1/32 dns=192.0.2.53 rate=7 guestd=/dev/null tls= "
                              "requests=0 internet=on file=/dev/null\n");
    run_done(&run);
}

/* In a pid namespace, so that a signal to "all" would not leave it. A second one, whose first process has ended, has no more. */
static no_return void run_where_fork_fails(void)
{
    struct run run;

    pid_t inner = fork();
    if (inner == 0) {
        (void)alarm(20);
        if (unshare(CLONE_NEWPID) < 0)
            _exit(2);
        pid_t first = fork();
        if (first == 0)
            _exit(0);
        (void)waitpid(first, NULL, 0);
        run_recipe(&run, &defaults);
        bool right = !run.ok && strstr(err_text(&run.err), "make a process");
        run_done(&run);
        _exit(right ? 0 : 3);
    }
    int status = 0;
    (void)waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static void a_fork_that_fails_is_an_error_and_ends_nothing(void **state)
{
    int status = 0;

    (void)state;
    if (geteuid() != 0)
        skip();
    pid_t outer = fork();
    if (outer == 0) {
        if (unshare(CLONE_NEWPID) < 0)
            _exit(2);
        pid_t first = fork();
        if (first == 0)
            run_where_fork_fails();
        (void)waitpid(first, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
    }
    assert_int_equal(waitpid(outer, &status, 0), outer);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        serve(argc, argv);

    const struct CMUnitTest cases[] = {
        CASE(a_step_has_the_script_its_setting_proxies_and_certificates),
        CASE(a_script_that_would_end_early_is_refused),
        CASE(a_server_that_ends_leaves_its_layer_and_no_sandbox),
        CASE(a_server_that_does_not_end_is_killed_with_its_sandbox_and_its_directory_stays),
        CASE(the_server_has_the_rules_of_the_operator_and_not_the_rest),
        CASE(a_fork_that_fails_is_an_error_and_ends_nothing),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
