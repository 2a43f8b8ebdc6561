#include "cli/cli.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/client.h"
#include "fake_server.h"
#include "test.h"

static struct outcome outcome;

/* ---- without a server ---- */

static void help_lists_every_command_and_teaches_each(void **state)
{
    static const char *const names[] = {
        "serve",           "env",           "doctor",           "sandbox list", "sandbox exec",    "sandbox kill",
        "sandbox create",  "sandbox info",  "sandbox network",  "sandbox logs", "team create",     "team list",
        "team delete",     "key create",    "key list",         "key revoke",   "template list",   "template build",
        "template import", "sandbox pause", "sandbox resume",   "sandbox fork", "snapshot create", "snapshot list",
        "snapshot delete", "version",       "template inspect", "template tag", "template untag",  "template delete",
        "template disk",   "template prune"
    };

    (void)state;
    RUN(&outcome, "--help");
    assert_int_equal(outcome.exit_code, 0);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        CHECK_HAS(outcome.out, names[i]);
    RUN(&outcome, "help", "sandbox", "exec");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "cloister sandbox exec [-u USER]");
    CHECK_HAS(outcome.out, "-e, --env NAME=VALUE");
    RUN(&outcome, "sandbox", "exec", "--help");
    CHECK_HAS(outcome.out, "cloister sandbox exec [-u USER]");
    RUN(&outcome, "help", "key");
    CHECK_HAS(outcome.out, "cloister key revoke ID");
    RUN(&outcome, "help", "key", "list");
    CHECK_HAS(outcome.out, "not E2B_API_URL");
    RUN(&outcome, "help", "team", "create");
    CHECK_HAS(outcome.out, "1 to 63 characters");
    CHECK_HAS(outcome.out, "not E2B_API_URL");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char words[32], example[48], *verb;
        snprintf(words, sizeof words, "%s", names[i]);
        snprintf(example, sizeof example, "cloister %s", names[i]);
        verb = strchr(words, ' ');
        if (verb)
            *verb++ = '\0';
        RUN(&outcome, "help", words, verb);
        assert_int_equal(outcome.exit_code, 0);
        /* The synopsis is the first line; what comes after it has to show the command in use. */
        CHECK_HAS(strchr(outcome.out, '\n'), example);
    }
    RUN(&outcome, "help", "exit-codes");
    CHECK_HAS(outcome.out, "  4  not found");
}

static void a_noun_alone_has_help_of_its_own(void **state)
{
    static const char *const nouns[] = { "sandbox", "team", "key", "template" };
    static const char *const spellings[] = { "--help", "-h", "help" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(nouns); i++) {
        char list[48];
        static struct outcome asked;
        snprintf(list, sizeof list, "\ncloister %s list [--json]\n    ", nouns[i]);
        RUN(&asked, "help", nouns[i]);
        assert_int_equal(asked.exit_code, 0);
        CHECK_HAS(asked.out, list);
        CHECK_HAS(asked.out, "\nFor example\n  ");
        for (size_t j = 0; j < COUNT_OF(spellings); j++) {
            RUN(&outcome, nouns[i], spellings[j]);
            assert_int_equal(outcome.exit_code, 0);
            assert_string_equal(outcome.out, asked.out);
        }
    }
}

static void advice_names_the_program_as_it_was_started(void **state)
{
    const char *const list[] = { "sandbox", "list", "--data", "/nowhere/at/all", NULL };
    const char *const help[] = { "help", "serve", NULL };
    char here[] = "/tmp/cloister-test-XXXXXX", file[64];
    char *path = strdup(getenv("PATH"));

    (void)state;
    assert_non_null(mkdtemp(here));
    snprintf(file, sizeof file, "%s/cloister", here);
    FILE *made = fopen(file, "w");
    assert_non_null(made);
    fclose(made);
    assert_int_equal(chmod(file, 0755), 0);

    run_cli_as(&outcome, file, list);
    CHECK_HAS(outcome.note, file);
    CHECK_HAS(outcome.note, " serve --data /nowhere/at/all` starts one");
    run_cli_as(&outcome, file, help);
    char example[96];
    snprintf(example, sizeof example, "  sudo %s serve\n", file);
    CHECK_HAS(outcome.out, example);
    CHECK_HAS(outcome.out, "/etc/cloister/cloister.conf"); /* not a command */

    /* Found by its plain name, it is called by it; so is one that a shell has found. */
    setenv("PATH", here, 1);
    run_cli_as(&outcome, file, help);
    CHECK_HAS(outcome.out, "  sudo cloister serve\n");
    run_cli_as(&outcome, "cloister", help);
    CHECK_HAS(outcome.out, "  sudo cloister serve\n");
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(here), 0);
}

static void without_a_command_the_help_goes_to_standard_error(void **state)
{
    (void)state;
    run_cli(&outcome, (const char *const[]){ NULL });
    assert_int_equal(outcome.exit_code, 2);
    assert_string_equal(outcome.out, "");
    CHECK_HAS(outcome.note, "To begin: start the server");
}

static void mistyped_commands_get_a_suggestion(void **state)
{
    (void)state;
    RUN(&outcome, "sandbx", "list");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "there is no command 'sandbx list'; did you mean 'sandbox list'?");
    RUN(&outcome, "sandbox");
    CHECK_HAS(outcome.note,
              "'sandbox' needs one more word: list, create, info, logs, network, exec, pause, resume, fork, kill");
    RUN(&outcome, "sandbox", "fly");
    CHECK_HAS(
        outcome.note,
        "there is no 'sandbox fly'; there are list, create, info, logs, network, exec, pause, resume, fork, kill");
    RUN(&outcome, "teleport");
    CHECK_HAS(outcome.note, "there is no command 'teleport'; `cloister help` lists them");
    RUN(&outcome, "sanbox", "--help");
    CHECK_HAS(outcome.note, "there is no command 'sanbox'; did you mean 'sandbox'?");
    RUN(&outcome, "exec", "ID");
    CHECK_HAS(outcome.note, "there is no command 'exec'; did you mean sandbox exec?");
    RUN(&outcome, "list");
    CHECK_HAS(outcome.note, "did you mean one of: sandbox list, snapshot list, team list, key list, template list?");
    RUN(&outcome, "help", "srve");
    CHECK_HAS(outcome.note, "did you mean 'serve'?");
}

static void exit_codes_are_all_different(void **state)
{
    (void)state;
    for (int a = 0; a < ERR_KIND_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_int_not_equal(cli_exit_code((enum err_kind)a), cli_exit_code((enum err_kind)b));
    assert_int_equal(cli_exit_code(ERR_NONE), 0);
}

static void urls_become_addresses(void **state)
{
    static const struct {
        const char *url, *want;
    } cases[] = {
        { "http://127.0.0.1:7070", "127.0.0.1:7070" },
        { "http://127.0.0.1:7070/", "127.0.0.1:7070" },
        { "HTTP://localhost:7070", "127.0.0.1:7070" },
        { "http://localhost", "127.0.0.1:80" },
        { "http://10.0.0.1", "10.0.0.1:80" },
        { "http://[::1]:7070", "[::1]:7070" },
        { "http://[::1]", "[::1]:80" },
        { "https://127.0.0.1", NULL },
        { "127.0.0.1:7070", NULL },
        { "http://example.com", NULL },
        { "http://localhost.example.com", NULL },
        { "http://", NULL },
        { "http://127.0.0.1:7070/base", NULL },
        { "http://127.0.0.1:99999", NULL },
        { "http://user@127.0.0.1:80", NULL },
    };
    char address[CLIENT_ADDRESS_BYTES];
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        bool parsed = client_parse_url(str_from(cases[i].url), address, &err);
        if (parsed != (cases[i].want != NULL))
            fail_msg("%s: %s", cases[i].url, parsed ? address : err.message);
        if (parsed)
            assert_string_equal(address, cases[i].want);
    }
}

static void env_prints_lines_for_eval(void **state)
{
    const char *data = fake_data_dir("0.0.0.0:7071");

    (void)state;
    RUN(&outcome, "env", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "export E2B_API_URL=http://127.0.0.1:7071\n"
                                     "export E2B_SANDBOX_URL=http://127.0.0.1:7071\n"
                                     "export E2B_API_KEY=e2b_0123456789012345678901234567890123456789\n");
    RUN(&outcome, "env", "--data", data, "--json");
    CHECK_HAS(outcome.out, "{\"E2B_API_URL\":\"http://127.0.0.1:7071\"");
    fake_data_dir_remove(data);
}

static void env_names_the_domain_and_its_certificates(void **state)
{
    const char *data = fake_data_dir("127.0.0.1:7071\ncloister.localhost:7071");
    auto_close int dir_fd = open(data, O_RDONLY | O_DIRECTORY);
    char want[PATH_MAX];
    struct err err;

    (void)state;
    assert_int_equal(mkdirat(dir_fd, "tls", 0755), 0);
    assert_true(fd_replace_file(dir_fd, "tls/ca-bundle.pem", STR("x"), 0644, &err));
    RUN(&outcome, "env", "--data", data);
    (void)snprintf(want, sizeof want,
                   "export E2B_DOMAIN=cloister.localhost:7071\n"
                   "export SSL_CERT_FILE=%s/tls/ca-bundle.pem\n"
                   "export REQUESTS_CA_BUNDLE=%s/tls/ca-bundle.pem\n"
                   "export CURL_CA_BUNDLE=%s/tls/ca-bundle.pem\n"
                   "export NODE_EXTRA_CA_CERTS=%s/tls/ca-bundle.pem\n",
                   data, data, data, data);
    CHECK_HAS(outcome.out, want);
    RUN(&outcome, "env", "--data", data, "--url", "http://192.0.2.1:7070");
    assert_null(strstr(outcome.out, "E2B_DOMAIN")); /* a domain of this machine */
    (void)unlinkat(dir_fd, "tls/ca-bundle.pem", 0);
    (void)unlinkat(dir_fd, "tls", AT_REMOVEDIR);
    fake_data_dir_remove(data);
}

static void env_has_lines_for_mail_when_there_is_a_first_inbox(void **state)
{
    const char *data = fake_data_dir("0.0.0.0:7071");
    auto_close int dir_fd = open(data, O_RDONLY | O_DIRECTORY);
    struct err err;

    (void)state;
    assert_true(fd_replace_file(dir_fd, "multimail-key", STR("mm_live_1\n"), 0600, &err) &&
                fd_replace_file(dir_fd, "lobstermail-token", STR("lm_sk_live_2\n"), 0600, &err));
    RUN(&outcome, "env", "--data", data);
    CHECK_HAS(outcome.out, "export MULTIMAIL_API_URL=http://127.0.0.1:7071\n"
                           "export MULTIMAIL_API_KEY=mm_live_1\n"
                           "export LOBSTERMAIL_API_URL=http://127.0.0.1:7071\n"
                           "export LOBSTERMAIL_TOKEN=lm_sk_live_2\n");
    /* The next start had --mail off. */
    assert_true(
        fd_replace_file(dir_fd, "server", STR("127.0.0.1:7071\ncloister.localhost:7071\nmail off\n"), 0644, &err));
    RUN(&outcome, "env", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_null(strstr(outcome.out, "MAIL"));
    (void)unlinkat(dir_fd, "multimail-key", 0);
    (void)unlinkat(dir_fd, "lobstermail-token", 0);
    fake_data_dir_remove(data);
}

static void env_says_what_to_do_when_no_server_has_run(void **state)
{
    (void)state;
    RUN(&outcome, "env", "--data", "/nowhere/at/all");
    assert_int_equal(outcome.exit_code, 4);
    assert_string_equal(outcome.out, "");
    CHECK_HAS(outcome.note, "no server has run in /nowhere/at/all yet; `");
    CHECK_HAS(outcome.note, "cloister serve --data /nowhere/at/all` starts one");
}

static void env_warns_when_no_server_answers(void **state)
{
    const char *data = fake_data_dir("127.0.0.1:1");

    (void)state;
    RUN(&outcome, "env", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "export E2B_API_URL=http://127.0.0.1:1\n");
    CHECK_HAS(outcome.note, "warning: no server answers at 127.0.0.1:1, the last address of /tmp/");
    CHECK_HAS(outcome.note, "cloister serve --data /tmp/");
    CHECK_HAS(outcome.note, " --listen 127.0.0.1:1` starts one\n");
    fake_data_dir_remove(data);
}

static void advice_to_start_the_server_names_the_address_that_it_had(void **state)
{
    static const struct {
        const char *server, *advice;
    } rows[] = {
        { "0.0.0.0:1", " --listen 0.0.0.0:1` starts one" },
        { "[::]:1", " --listen [::]:1` starts one" },
        { "127.0.0.1:1", " --listen 127.0.0.1:1` starts one" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *data = fake_data_dir(rows[i].server);
        RUN(&outcome, "sandbox", "list", "--data", data);
        assert_int_equal(outcome.exit_code, 8);
        CHECK_HAS(outcome.note, rows[i].advice);
        fake_data_dir_remove(data);
    }
}

static void a_server_that_is_not_there_is_exit_code_8(void **state)
{
    const char *data = fake_data_dir("127.0.0.1:1");

    (void)state;
    RUN(&outcome, "sandbox", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 8);
    CHECK_HAS(outcome.note, "no server answers at 127.0.0.1:1; `");
    CHECK_HAS(outcome.note, "cloister serve --data /tmp/");
    RUN(&outcome, "sandbox", "list", "--url", "http://127.0.0.1:2", "--data", data);
    assert_int_equal(outcome.exit_code, 8);
    CHECK_HAS(outcome.note, "no server answers at 127.0.0.1:2, which --url names: ");
    fake_data_dir_remove(data);
}

/* ---- with one ---- */

#define ANSWER(status, headers, body) STR_INIT("HTTP/1.1 " status "\r\n" headers "Connection: close\r\n\r\n" body)
/* Longer than a struct err has room for. */
#define LONG_MESSAGE                                                                                \
    "validation error: 'network.allowOut' (allow_out in Python) has the domain pypi.org: also set " \
    "allow_internet_access to false (--no-internet) or denyOut to 0.0.0.0/0"
#define JSON_TYPE "Content-Type: application/json\r\n"

static const struct fake_rule rules[] = {
    { "GET /v2/sandboxes?limit=100 ",
      ANSWER(
          "200 OK", JSON_TYPE "X-Next-Token: page+2\r\n",
          "[{\"sandboxID\":\"iaaa\",\"templateID\":\"t1\",\"alias\":\"base\",\"clientID\":\"x\",\"state\":\"running\","
          "\"startedAt\":\"2020-01-01T00:00:00Z\",\"endAt\":\"2020-01-01T00:05:00Z\",\"cpuCount\":2,"
          "\"memoryMB\":512,\"diskSizeMB\":0,\"envdVersion\":\"0.6.4\"}]") },
    { "GET /v2/sandboxes?limit=100&nextToken=page%2B2 ",
      ANSWER(
          "200 OK", JSON_TYPE,
          "[{\"sandboxID\":\"ibbb\",\"templateID\":\"t2\",\"clientID\":\"x\",\"state\":\"paused\","
          "\"startedAt\":\"2020-01-01T00:00:00Z\",\"endAt\":\"2020-01-01T00:05:00Z\",\"cpuCount\":1,"
          "\"memoryMB\":2048,\"diskSizeMB\":0,\"diskBytes\":1048576,\"memoryBytes\":4194304,\"memoryRawBytes\":9437184,"
          "\"envdVersion\":\"0.6.4\"}]") },
    { "POST /v2/sandboxes ", ANSWER("201 Created", JSON_TYPE, "{\"sandboxID\":\"inew\"}") },
    { "GET /sandboxes/iaaa ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"sandboxID\":\"iaaa\",\"templateID\":\"t1\",\"alias\":\"base\",\"state\":\"running\","
             "\"startedAt\":\"2020-01-01T00:00:00Z\",\"endAt\":\"2020-01-01T00:05:00Z\",\"cpuCount\":2,"
             "\"memoryMB\":512,\"allowInternetAccess\":false,\"network\":{\"allowOut\":[\"1.1.1.1\",\"a.example\"],"
             "\"denyOut\":[\"0.0.0.0/0\"],\"dnsServers\":[],\"rules\":{\"a.example\":[]},"
             "\"egressProxy\":{\"address\":\"p.example:1080\"},\"allowPublicTraffic\":false,"
             "\"httpsPorts\":[443,8443]}}") },
    { "GET /v2/sandboxes/iaaa/logs ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"logs\":[{\"timestamp\":\"2020-01-01T00:00:02Z\",\"level\":\"warn\",\"message\":\"re\\u001bfused\","
             "\"fields\":{\"event_type\":\"network_refused\"}},"
             "{\"timestamp\":\"2020-01-01T00:00:01Z\",\"level\":\"info\",\"message\":\"Process with pid 7 started\","
             "\"fields\":{\"command\":\"/bin/true\"}}]}") },
    { "GET /v2/sandboxes/inone/logs ", ANSWER("200 OK", JSON_TYPE, "{\"logs\":[]}") },
    { "GET /sandboxes/ibbb ", ANSWER("200 OK", JSON_TYPE, "{\"sandboxID\":\"ibbb\",\"allowInternetAccess\":true}") },
    { "PUT /sandboxes/ibbb/network ", ANSWER("204 No Content", "", "") },
    { "PUT /sandboxes/iaaa/network ",
      ANSWER("400 Bad Request", JSON_TYPE, "{\"code\":400,\"message\":\"" LONG_MESSAGE "\"}") },
    { "DELETE /sandboxes/iaaa ", ANSWER("204 No Content", "", "") },
    { "DELETE /sandboxes/ibbb ", ANSWER("204 No Content", "", "") },
    { "GET /admin/api-keys ",
      ANSWER("200 OK", JSON_TYPE,
             "[{\"id\":\"k1\",\"name\":\"ci\",\"teamID\":\"u1\",\"team\":\"default\",\"createdAt\":\"2020-01-01T00:00:"
             "00Z\",\"lastUsed\":null,\"mask\":{"
             "\"prefix\":\"e2b_\",\"valueLength\":40,\"maskedValuePrefix\":\"ab\",\"maskedValueSuffix\":\"cdef\"}},"
             "{\"id\":\"k2\",\"name\":\"new\",\"teamID\":\"u2\",\"team\":\"lab\"},"
             "{\"id\":\"k3\",\"name\":\"twin\",\"teamID\":\"u1\",\"team\":\"default\"},"
             "{\"id\":\"k4\",\"name\":\"twin\",\"teamID\":\"u1\",\"team\":\"default\"},"
             "{\"id\":\"k5\",\"name\":\"k4\",\"teamID\":\"u1\",\"team\":\"default\"}]") },
    { "GET /teams ",
      ANSWER("200 OK", JSON_TYPE,
             "[{\"teamID\":\"u1\",\"slug\":\"default\",\"name\":\"Default\",\"keyCount\":4,\"runningCount\":2},"
             "{\"teamID\":\"u2\",\"slug\":\"lab\",\"name\":\"lab\",\"keyCount\":1,\"runningCount\":0},"
             "{\"teamID\":\"u3\",\"slug\":\"u2\",\"name\":\"u2\",\"keyCount\":0,\"runningCount\":0}]") },
    { "POST /admin/teams/u1/sandboxes/kill ", ANSWER("200 OK", JSON_TYPE, "{\"killedCount\":3,\"failedCount\":0}") },
    { "POST /admin/teams/u2/sandboxes/kill ", ANSWER("200 OK", JSON_TYPE, "{\"killedCount\":2,\"failedCount\":1}") },
    { "POST /admin/teams ", ANSWER("201 Created", JSON_TYPE, "{\"teamID\":\"u4\",\"slug\":\"new\"}") },
    { "POST /admin/teams/u2/api-keys ",
      ANSWER("201 Created", JSON_TYPE, "{\"id\":\"k6\",\"name\":\"ci\",\"key\":\"e2b_aa00\"}") },
    { "DELETE /admin/teams/u2 ",
      ANSWER("409 Conflict", JSON_TYPE, "{\"code\":409,\"message\":\"team 'lab' has 1 key\"}") },
    { "DELETE /admin/teams/u2?force=true ", ANSWER("200 OK", JSON_TYPE, "{\"revokedCount\":1,\"killedCount\":2}") },
    { "POST /api-keys ", ANSWER("201 Created", JSON_TYPE, "{\"id\":\"k2\",\"name\":\"new\",\"key\":\"e2b_ff00\"}") },
    { "DELETE /admin/teams/u2/api-keys/k2 ", ANSWER("204 No Content", "", "") },
    { "DELETE /admin/teams/u1/api-keys/k4 ", ANSWER("204 No Content", "", "") },
    { "GET /templates ",
      ANSWER("200 OK", JSON_TYPE,
             "[{\"templateID\":\"t1\",\"aliases\":[\"base\",\"std\"],\"cpuCount\":2,\"memoryMB\":1024,"
             "\"createdAt\":\"2020-01-01T00:00:00Z\"},"
             "{\"templateID\":\"t2\",\"aliases\":[\"mine\"],\"cpuCount\":2,\"memoryMB\":1024,\"buildStatus\":\"error\"}"
             "]") },
    { NULL, { NULL, 0 } },
};

static struct fake_server server;
static const char *data;

static int start_server(void **state)
{
    (void)state;
    fake_server_start(&server, rules);
    data = fake_data_dir(server.address);
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    fake_server_stop(&server);
    fake_data_dir_remove(data);
    return 0;
}

static void sandbox_list_follows_pages_into_one_table(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "SANDBOX  TEMPLATE  STATE ");
    CHECK_HAS(outcome.out, "iaaa     base      running ");
    CHECK_HAS(outcome.out, "ibbb     t2        paused ");
    CHECK_HAS(outcome.out, "512 MiB      -\n");
    CHECK_HAS(outcome.out, "2 GiB  5 MiB\n");
    CHECK_HAS(outcome.note, "Paused sandboxes take 5 MiB on disk; 5 MiB more if no memory were compressed.\n");
    assert_true(fake_server_heard(&server, "X-API-Key: e2b_0123456789012345678901234567890123456789"));
    RUN(&outcome, "sandbox", "list", "--data", data, "--json");
    CHECK_HAS(outcome.out, "\"sandboxID\": \"ibbb\"");
    assert_int_equal(outcome.out[0], '[');
}

static void sandbox_create_sends_its_rules_and_prints_the_id(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "create", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "inew\n");
    assert_true(fake_server_heard(&server, "{\"templateID\":\"base\",\"network\":{}}"));
    RUN(&outcome, "sandbox", "create", "mine", "--data", data, "--timeout", "60", "--no-internet", "--allow-out",
        "pypi.org", "--allow-out=1.1.1.1", "--deny-out", "10.0.0.0/8", "--json");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "\"sandboxID\": \"inew\"");
    assert_true(fake_server_heard(&server, "{\"templateID\":\"mine\",\"timeout\":60,\"allow_internet_access\":false,"
                                           "\"network\":{\"allowOut\":[\"pypi.org\",\"1.1.1.1\"],"
                                           "\"denyOut\":[\"10.0.0.0/8\"]}}"));
    RUN(&outcome, "sandbox", "create", "--data", data, "--internet");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "{\"templateID\":\"base\",\"allow_internet_access\":true,"
                                           "\"network\":{}}"));
    RUN(&outcome, "sandbox", "create", "--data", data, "--internet", "--no-internet");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "--internet and --no-internet contradict each other");
    RUN(&outcome, "sandbox", "create", "--data", data, "--timeout", "soon");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "--timeout needs a number from 1 to 86400, not 'soon'");
    RUN(&outcome, "sandbox", "create", "--data", data, "--allow-out", "");
    assert_int_equal(outcome.exit_code, 2);
}

static void sandbox_logs_prints_the_oldest_line_first(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "logs", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "\n2020-01-01T00:00:01Z  info   Process with pid 7 started: /bin/true\n"
                           "2020-01-01T00:00:02Z  warn   re?fused\n");
    RUN(&outcome, "sandbox", "logs", "--data", data, "iaaa", "--json");
    assert_int_equal(outcome.exit_code, 0);
    const char *first = strstr(outcome.out, "\"level\": \"info\"");
    assert_true(first && strstr(first, "\"level\": \"warn\""));
    assert_int_equal(outcome.out[0], '[');
    RUN(&outcome, "sandbox", "logs", "--data", data, "inone");
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "no log of 'inone'");
}

static void a_long_message_of_the_servers_is_printed_whole(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "network", "--data", data, "iaaa", "--allow-out", "pypi.org");
    assert_int_equal(outcome.exit_code, 2);
    assert_string_equal(outcome.note, "cloister: " LONG_MESSAGE "\n");
}

static void sandbox_info_shows_the_network_rules(void **state)
{
    static const char *const lines[] = {
        "sandbox          iaaa\n",
        "internet access  off\n",
        "allowed out      1.1.1.1, a.example\n",
        "denied out       0.0.0.0/0\n",
        "DNS servers      none\n",
        "headers set for  a.example\n",
        "egress proxy     p.example:1080\n",
        "ports are        private: they need the traffic token\n",
        "ports with TLS   443, 8443\n",
        "memory           512 MiB\n",
    };

    (void)state;
    RUN(&outcome, "sandbox", "info", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 0);
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        CHECK_HAS(outcome.out, lines[i]);
    RUN(&outcome, "sandbox", "info", "--data", data, "iaaa", "--json");
    CHECK_HAS(outcome.out, "\"allowInternetAccess\": false");
    RUN(&outcome, "sandbox", "info", "--data", data, "inone");
    assert_int_equal(outcome.exit_code, 4);
}

static void sandbox_network_shows_and_replaces(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "internet access  on\n");
    CHECK_HAS(outcome.out, "allowed out      -\n");
    assert_false(fake_server_heard(&server, "PUT /sandboxes/ibbb/network"));
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--reset");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "PUT /sandboxes/ibbb/network"));
    assert_true(fake_server_heard(&server, "\r\n\r\n{}"));
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--no-internet", "--deny-out", "192.0.2.1");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "{\"allow_internet_access\":false,\"denyOut\":[\"192.0.2.1\"]}"));
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--internet");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "\r\n\r\n{\"allow_internet_access\":true}"));
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--internet", "--no-internet");
    assert_int_equal(outcome.exit_code, 2);
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--internet", "--reset");
    assert_int_equal(outcome.exit_code, 2);
    RUN(&outcome, "sandbox", "network", "--data", data, "ibbb", "--no-internet", "--reset");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "--reset removes all rules");
}

static void sandbox_kill_prints_the_ids_it_ended(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "kill", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "iaaa\n");
    setenv("E2B_API_URL", server.url, 1);
    setenv("E2B_API_KEY", "e2b_aa", 1);
    RUN(&outcome, "sandbox", "kill", "--all");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "iaaa\nibbb\n");
    CHECK_HAS(outcome.note, "Sandboxes ended: 2.\n");
    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
}

static void sandbox_kill_all_without_a_key_ends_those_of_all_teams(void **state)
{
    static const struct fake_rule empty[] = {
        { "GET /teams ", ANSWER("200 OK", JSON_TYPE, "[{\"teamID\":\"u1\",\"slug\":\"default\"}]") },
        { "POST /admin/teams/u1/sandboxes/kill ",
          ANSWER("200 OK", JSON_TYPE, "{\"killedCount\":0,\"failedCount\":0}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server other;

    (void)state;
    RUN(&outcome, "sandbox", "kill", "--data", data, "--all");
    assert_true(fake_server_heard(&server, "POST /admin/teams/u1/sandboxes/kill "));
    assert_true(fake_server_heard(&server, "POST /admin/teams/u2/sandboxes/kill "));
    CHECK_HAS(outcome.note, "Sandboxes ended: 5.\n"); /* u3 was deleted meanwhile */
    CHECK_HAS(outcome.note, "1 could not be ended");
    assert_int_equal(outcome.exit_code, 1);

    fake_server_start(&other, empty);
    RUN(&outcome, "sandbox", "kill", "--all", "--data", data, "--url", other.url);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "");
    assert_string_equal(outcome.note, "Sandboxes ended: 0.\n");
    assert_true(fake_server_heard(&other, "X-Admin-Token: the-admin-token"));
    fake_server_stop(&other);
}

/* A server from before teams, still running after an upgrade. */
static void a_server_of_another_version_is_called_that(void **state)
{
    static const struct fake_rule old[] = {
        { "GET /teams ", ANSWER("200 OK", JSON_TYPE, "[{\"teamID\":\"u1\",\"name\":\"Default\"}]") },
        { "GET /admin/api-keys ",
          ANSWER("404 Not Found", JSON_TYPE, "{\"code\":404,\"message\":\"no route GET /admin/api-keys\"}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server other;

    (void)state;
    fake_server_start(&other, old);
    RUN(&outcome, "key", "list", "--data", data, "--url", other.url);
    assert_int_equal(outcome.exit_code, 8);
    CHECK_HAS(outcome.note, "runs another version of Cloister, without GET /admin/api-keys; restart it");
    RUN(&outcome, "team", "list", "--data", data, "--url", other.url);
    assert_int_equal(outcome.exit_code, 8);
    CHECK_HAS(outcome.note, "runs another version of Cloister ('slug' is required in its answer); restart it");
    RUN(&outcome, "key", "create", "ci", "--team", "lab", "--data", data, "--url", other.url);
    CHECK_HAS(outcome.note, "restart it");
    fake_server_stop(&other);
}

static void sandbox_kill_goes_on_after_one_that_is_gone(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "kill", "--data", data, "inone", "ibbb");
    assert_int_equal(outcome.exit_code, 4);
    assert_string_equal(outcome.out, "ibbb\n");
    CHECK_HAS(outcome.note, "no such thing");
}

static void sandbox_kill_needs_ids_or_all_but_not_both(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "kill", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
    RUN(&outcome, "sandbox", "kill", "--data", data, "--all", "iaaa");
    assert_int_equal(outcome.exit_code, 2);
}

static void an_id_cannot_leave_its_place_in_the_path(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "kill", "--data", data, "../api-keys/k2");
    assert_int_equal(outcome.exit_code, 4);
    assert_true(fake_server_heard(&server, "DELETE /sandboxes/..%2Fapi-keys%2Fk2 "));
}

static void key_commands_show_the_admin_token(void **state)
{
    (void)state;
    RUN(&outcome, "key", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "k1  ci    default  e2b_ab…cdef");
    CHECK_HAS(outcome.out, "k2  new   lab ");
    assert_true(fake_server_heard(&server, "X-Admin-Token: the-admin-token"));
    RUN(&outcome, "key", "create", "new", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "e2b_ff00\n");
    CHECK_HAS(outcome.note, "k2");
    assert_true(fake_server_heard(&server, "{\"name\":\"new\"}"));
    RUN(&outcome, "key", "revoke", "k2", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    RUN(&outcome, "key", "revoke", "k9", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
}

static void a_key_is_revoked_by_its_name_too(void **state)
{
    (void)state;
    RUN(&outcome, "key", "revoke", "new", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "DELETE /admin/teams/u2/api-keys/k2 "));
    RUN(&outcome, "key", "revoke", "twin", "--data", data);
    assert_int_equal(outcome.exit_code, 5);
    CHECK_HAS(outcome.note, "2 keys are named 'twin'; use the id of one: k3, k4\n");
    assert_false(fake_server_heard(&server, "DELETE /admin/teams/u1/api-keys/k3 "));
    /* An id is one key's alone, whatever somebody has named another. */
    RUN(&outcome, "key", "revoke", "k4", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "DELETE /admin/teams/u1/api-keys/k4 "));
    RUN(&outcome, "key", "revoke", "nobody", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "no key has the id or the name 'nobody'");
    CHECK_HAS(outcome.note, "cloister key list --data /tmp/");
}

static void teams_are_made_listed_and_deleted(void **state)
{
    (void)state;
    RUN(&outcome, "team", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "NAME     ID  KEYS  RUNNING\n");
    CHECK_HAS(outcome.out, "default  u1     4        2\n");
    assert_true(fake_server_heard(&server, "X-Admin-Token: the-admin-token"));
    RUN(&outcome, "team", "list", "--json", "--data", data);
    CHECK_HAS(outcome.out, "\"slug\": \"lab\"");
    RUN(&outcome, "team", "create", "new", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "u4\n");
    CHECK_HAS(outcome.note, "cloister key create NAME --team new --data /tmp/");
    RUN(&outcome, "team", "delete", "lab", "--data", data);
    assert_int_equal(outcome.exit_code, 5);
    CHECK_HAS(outcome.note, "team 'lab' has 1 key");
    RUN(&outcome, "team", "delete", "lab", "--force", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.note, "Team lab is deleted; keys revoked: 1, sandboxes killed: 2.");
    RUN(&outcome, "team", "delete", "nobody", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "there is no team 'nobody'; `");
    CHECK_HAS(outcome.note, "cloister team list --data /tmp/");
}

static void a_key_is_made_for_the_team_that_is_named(void **state)
{
    (void)state;
    RUN(&outcome, "key", "create", "ci", "--team", "lab", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "e2b_aa00\n");
    /* An id is one team's alone, whatever another is named. */
    RUN(&outcome, "key", "create", "ci", "--team", "u2", "--data", data);
    assert_string_equal(outcome.out, "e2b_aa00\n");
    RUN(&outcome, "key", "create", "ci", "--team", "nobody", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "there is no team 'nobody'");
}

static void template_list_says_what_else_could_be_built(void **state)
{
    (void)state;
    RUN(&outcome, "template", "list", "--data", data);
    CHECK_HAS(outcome.note, "Not built yet: tools-v1. To build it: ");
    CHECK_HAS(outcome.note, "cloister template build tools --data ");
    setenv("E2B_API_URL", server.url, 1);
    setenv("E2B_API_KEY", "e2b_aa", 1);
    RUN(&outcome, "template", "list");
    CHECK_HAS(outcome.note, "To build it, on the machine of that server and with the --data DIR that it has: ");
    CHECK_HAS(outcome.note, "cloister template build tools\n");
    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
    assert_null(strstr(outcome.note, "build base"));
    assert_null(strstr(outcome.out, "tools"));
}

static void template_list_names_aliases(void **state)
{
    (void)state;
    RUN(&outcome, "template", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "t1        base, std  -                    2   1 GiB     -  ");
    CHECK_HAS(outcome.out, "t2        mine       - (build: error)     2   1 GiB     -  ");
}

static void variables_are_enough_without_a_data_directory(void **state)
{
    (void)state;
    setenv("E2B_API_URL", server.url, 1);
    setenv("E2B_API_KEY", "e2b_aa", 1);
    RUN(&outcome, "template", "list");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "X-API-Key: e2b_aa\r\n"));
    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
}

/* Somebody else's server, named by the environment of whoever runs the command. */
static void credentials_of_a_data_directory_go_only_to_its_server(void **state)
{
    static const struct fake_rule none[] = { { NULL, { NULL, 0 } } };
    struct fake_server stranger;

    (void)state;
    fake_server_start(&stranger, none);
    setenv("E2B_API_URL", stranger.url, 1);
    assert_null(client_url(&(struct cli){ 0 }, CLIENT_AS_ADMIN));
    assert_null(client_url(&(struct cli){ 0 }, CLIENT_AS_CALLER));
    /* A key of the environment takes the admin token nowhere. */
    setenv("E2B_API_KEY", "e2b_aa", 1);
    assert_null(client_url(&(struct cli){ 0 }, CLIENT_AS_ADMIN));
    assert_string_equal(client_url(&(struct cli){ 0 }, CLIENT_AS_CALLER), stranger.url);
    assert_null(client_url(&(struct cli){ .data = data }, CLIENT_AS_CALLER));
    RUN(&outcome, "key", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    RUN(&outcome, "sandbox", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_false(fake_server_heard(&stranger, "HTTP/1.1"));
    RUN(&outcome, "sandbox", "list");
    assert_true(fake_server_heard(&stranger, "X-API-Key: e2b_aa\r\n"));
    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
    /* Said aloud it is meant. */
    RUN(&outcome, "key", "list", "--data", data, "--url", stranger.url);
    assert_true(fake_server_heard(&stranger, "X-Admin-Token: the-admin-token\r\n"));
    fake_server_stop(&stranger);
}

static void a_refusal_names_the_server_and_where_the_credential_came_from(void **state)
{
    static const struct fake_rule refusing[] = {
        { "GET ", ANSWER("401 Unauthorized", JSON_TYPE, "{\"code\":401,\"message\":\"wrong\"}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server stranger;
    char text[128];

    (void)state;
    fake_server_start(&stranger, refusing);
    RUN(&outcome, "key", "list", "--data", data, "--url", stranger.url);
    assert_int_equal(outcome.exit_code, 3);
    (void)snprintf(text, sizeof text, "the server at %s refuses the admin token of %s\n", stranger.address, data);
    CHECK_HAS(outcome.note, text);
    RUN(&outcome, "sandbox", "list", "--data", data, "--url", stranger.url);
    (void)snprintf(text, sizeof text, "the server at %s refuses the API key of %s\n", stranger.address, data);
    CHECK_HAS(outcome.note, text);
    setenv("E2B_API_KEY", "e2b_aa", 1);
    RUN(&outcome, "sandbox", "list", "--url", stranger.url);
    CHECK_HAS(outcome.note, "refuses the key in E2B_API_KEY\n");
    unsetenv("E2B_API_KEY");
    fake_server_stop(&stranger);
}

int main(void)
{
    const struct CMUnitTest alone[] = {
        CASE(help_lists_every_command_and_teaches_each),
        CASE(a_noun_alone_has_help_of_its_own),
        CASE(advice_names_the_program_as_it_was_started),
        CASE(without_a_command_the_help_goes_to_standard_error),
        CASE(mistyped_commands_get_a_suggestion),
        CASE(exit_codes_are_all_different),
        CASE(urls_become_addresses),
        CASE(env_prints_lines_for_eval),
        CASE(env_names_the_domain_and_its_certificates),
        CASE(env_has_lines_for_mail_when_there_is_a_first_inbox),
        CASE(env_says_what_to_do_when_no_server_has_run),
        CASE(env_warns_when_no_server_answers),
        CASE(advice_to_start_the_server_names_the_address_that_it_had),
        CASE(a_server_that_is_not_there_is_exit_code_8),
    };
    const struct CMUnitTest with_server[] = {
        CASE(sandbox_list_follows_pages_into_one_table),
        CASE(sandbox_create_sends_its_rules_and_prints_the_id),
        CASE(sandbox_logs_prints_the_oldest_line_first),
        CASE(a_long_message_of_the_servers_is_printed_whole),
        CASE(sandbox_info_shows_the_network_rules),
        CASE(sandbox_network_shows_and_replaces),
        CASE(sandbox_kill_prints_the_ids_it_ended),
        CASE(sandbox_kill_all_without_a_key_ends_those_of_all_teams),
        CASE(a_server_of_another_version_is_called_that),
        CASE(sandbox_kill_goes_on_after_one_that_is_gone),
        CASE(sandbox_kill_needs_ids_or_all_but_not_both),
        CASE(an_id_cannot_leave_its_place_in_the_path),
        CASE(key_commands_show_the_admin_token),
        CASE(a_key_is_revoked_by_its_name_too),
        CASE(a_key_is_made_for_the_team_that_is_named),
        CASE(teams_are_made_listed_and_deleted),
        CASE(template_list_names_aliases),
        CASE(template_list_says_what_else_could_be_built),
        CASE(variables_are_enough_without_a_data_directory),
        CASE(credentials_of_a_data_directory_go_only_to_its_server),
        CASE(a_refusal_names_the_server_and_where_the_credential_came_from),
    };

    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
    int failed = cmocka_run_group_tests(alone, NULL, NULL);
    return failed + cmocka_run_group_tests(with_server, start_server, stop_server);
}
