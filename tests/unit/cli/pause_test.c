/* Pause, resume, fork and snapshots on the command line, against a server that answers as the API does. */
#include <stdlib.h>

#include "cli/cli.h"
#include "fake_server.h"
#include "test.h"

#define ANSWER(status, headers, body) STR_INIT("HTTP/1.1 " status "\r\n" headers "Connection: close\r\n\r\n" body)
#define JSON_TYPE "Content-Type: application/json\r\n"
#define CANNOT                                                                                                  \
    "cannot be paused with its memory: a process is being debugged. It keeps running. To keep its files only, " \
    "pause it with mode='filesystem' (--files-only on the command line)"

static const struct fake_rule rules[] = {
    { "POST /sandboxes/iaaa/pause ", ANSWER("204 No Content", "", "") },
    { "POST /sandboxes/iold/pause ",
      ANSWER("409 Conflict", JSON_TYPE, "{\"code\":409,\"message\":\"sandbox iold is paused already\"}") },
    { "POST /sandboxes/idebug/pause ",
      ANSWER("400 Bad Request", JSON_TYPE, "{\"code\":400,\"message\":\"" CANNOT "\"}") },
    { "POST /v2/sandboxes/iaaa/connect ", ANSWER("201 Created", JSON_TYPE, "{\"sandboxID\":\"iaaa\"}") },
    { "POST /v2/sandboxes/irun/connect ", ANSWER("200 OK", JSON_TYPE, "{\"sandboxID\":\"irun\"}") },
    { "POST /sandboxes/iaaa/fork ",
      ANSWER("201 Created", JSON_TYPE,
             "[{\"sandbox\":{\"sandboxID\":\"ione\"}},{\"sandbox\":{\"sandboxID\":\"itwo\"}}]") },
    { "POST /sandboxes/ihalf/fork ",
      ANSWER("201 Created", JSON_TYPE,
             "[{\"sandbox\":{\"sandboxID\":\"ione\"}},{\"error\":{\"code\":429,\"message\":\"too many sandboxes\"}},"
             "{\"sandbox\":{\"sandboxID\":\"ithree\"}}]") },
    { "POST /sandboxes/iodd/fork ", ANSWER("201 Created", JSON_TYPE, "[{}]") },
    { "POST /sandboxes/iaaa/snapshots ",
      ANSWER("201 Created", JSON_TYPE, "{\"snapshotID\":\"default/setup:v1\",\"names\":[\"default/setup\"]}") },
    { "GET /snapshots?limit=100 ",
      ANSWER("200 OK", JSON_TYPE "X-Next-Token: page+2\r\n",
             "[{\"snapshotID\":\"default/setup:v1\",\"names\":[\"default/setup\"],\"sandboxID\":\"iaaa\","
             "\"createdAt\":\"2020-01-01T00:00:00Z\",\"diskBytes\":20480,\"memoryBytes\":113246208,"
             "\"memoryRawBytes\":524288000}]") },
    { "GET /snapshots?limit=100&nextToken=page%2B2 ",
      ANSWER("200 OK", JSON_TYPE,
             "[{\"snapshotID\":\"abc:default\",\"names\":[],\"diskBytes\":1,\"memoryBytes\":0}]") },
    { "GET /snapshots?limit=100&sandboxID=inone ", ANSWER("200 OK", JSON_TYPE, "[]") },
    { "GET /snapshots?limit=100&name=setup ",
      ANSWER("200 OK", JSON_TYPE, "[{\"snapshotID\":\"default/setup:v1\"},{\"snapshotID\":\"default/setup:v2\"}]") },
    { "GET /snapshots?limit=100&name=default%2Fkept ",
      ANSWER("200 OK", JSON_TYPE, "[{\"snapshotID\":\"default/kept:v1\"},{\"snapshotID\":\"default/kept:v2\"}]") },
    { "GET /snapshots?limit=100&name=abc ", ANSWER("200 OK", JSON_TYPE, "[{\"snapshotID\":\"abc:default\"}]") },
    { "GET /snapshots?limit=100&name=used ",
      ANSWER("200 OK", JSON_TYPE, "[{\"snapshotID\":\"default/used:default\"}]") },
    { "GET /snapshots?limit=100&name=none ", ANSWER("200 OK", JSON_TYPE, "[]") },
    { "DELETE /templates/setup ", ANSWER("204 No Content", "", "") },
    { "DELETE /templates/abc ", ANSWER("204 No Content", "", "") },
    { "DELETE /templates/used ",
      ANSWER("400 Bad Request", JSON_TYPE, "{\"code\":400,\"message\":\"1 paused sandbox was made from it\"}") },
    { "GET /sandboxes/iaaa ",
      ANSWER(
          "200 OK", JSON_TYPE,
          "{\"sandboxID\":\"iaaa\",\"state\":\"paused\",\"pauseMode\":\"full\",\"endAt\":\"2026-01-02T03:04:05Z\"}") },
    { "GET /sandboxes/ifiles ",
      ANSWER("200 OK", JSON_TYPE, "{\"sandboxID\":\"ifiles\",\"state\":\"paused\",\"pauseMode\":\"filesystem\"}") },
    { NULL, { NULL, 0 } },
};

static struct fake_server server;
static const char *data;
static struct outcome outcome;

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

static void pause_keeps_the_memory_unless_told_otherwise(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "pause", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "iaaa\n");
    CHECK_HAS(outcome.note, "Paused, with its files and processes. To bring it back: ");
    CHECK_HAS(outcome.note, "cloister sandbox resume iaaa --data ");
    assert_true(fake_server_heard(&server, "{\"memory\":true}"));
    assert_false(fake_server_heard(&server, "{\"memory\":false}"));
    RUN(&outcome, "sandbox", "pause", "--data", data, "iaaa", "--files-only");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.note, "its processes have ended");
    assert_true(fake_server_heard(&server, "{\"memory\":false}"));
    RUN(&outcome, "sandbox", "pause", "--data", data, "iaaa", "--files-only", "--json");
    assert_string_equal(outcome.note, "");
    CHECK_HAS(outcome.out, "\"pauseMode\": \"filesystem\"");
    CHECK_HAS(outcome.out, "\"state\": \"paused\"");
}

static void pause_says_what_the_server_said(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "pause", "--data", data, "iold");
    assert_int_equal(outcome.exit_code, 5);
    CHECK_HAS(outcome.note, "iold is paused already");
    RUN(&outcome, "sandbox", "pause", "--data", data, "idebug");
    assert_int_equal(outcome.exit_code, 2);
    assert_string_equal(outcome.note, "cloister: " CANNOT "\n"); /* whole, with the advice at its end */
    RUN(&outcome, "sandbox", "pause", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
    RUN(&outcome, "sandbox", "pause", "--data", data, "iaaa", "--memory");
    assert_int_equal(outcome.exit_code, 2);
}

static void resume_tells_whether_it_slept(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "resume", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "iaaa\n");
    assert_string_equal(outcome.note, "");
    assert_true(fake_server_heard(&server, "\r\n\r\n{}"));
    RUN(&outcome, "sandbox", "resume", "--data", data, "iaaa", "--timeout", "60", "--reboot");
    assert_int_equal(outcome.exit_code, 0);
    assert_true(fake_server_heard(&server, "{\"timeout\":60,\"memory\":false}"));
    RUN(&outcome, "sandbox", "resume", "--data", data, "irun");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "irun\n");
    CHECK_HAS(outcome.note, "It was running already");
    RUN(&outcome, "sandbox", "resume", "--data", data, "iaaa", "--json");
    CHECK_HAS(outcome.out, "\"sandboxID\": \"iaaa\"");
    RUN(&outcome, "sandbox", "resume", "--data", data, "igone");
    assert_int_equal(outcome.exit_code, 4);
    RUN(&outcome, "sandbox", "resume", "--data", data, "iaaa", "--timeout", "soon");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "--timeout needs a number from 1 to 86400, not 'soon'");
}

static void fork_prints_the_ids_of_the_copies(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "fork", "--data", data, "iaaa", "--count", "2", "--timeout", "600");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "ione\nitwo\n");
    assert_true(fake_server_heard(&server, "{\"timeout\":600,\"count\":2}"));
    RUN(&outcome, "sandbox", "fork", "--data", data, "iaaa", "--json");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "\"sandboxID\": \"itwo\"");
    static const char *const bad[] = { "0", "101", "-1", "two", "" };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        RUN(&outcome, "sandbox", "fork", "--data", data, "iaaa", "--count", bad[i]);
        assert_int_equal(outcome.exit_code, 2);
    }
}

static void a_fork_that_half_failed_prints_what_was_made_and_fails(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "fork", "--data", data, "ihalf", "--count", "3");
    assert_int_equal(outcome.exit_code, 6);
    assert_string_equal(outcome.out, "ione\nithree\n");
    CHECK_HAS(outcome.note, "Copies made: 2 of 3.");
    CHECK_HAS(outcome.note, "too many sandboxes");
    RUN(&outcome, "sandbox", "fork", "--data", data, "ihalf", "--count", "3", "--json");
    assert_int_equal(outcome.exit_code, 6);
    assert_int_equal(outcome.out[0], '[');
    RUN(&outcome, "sandbox", "fork", "--data", data, "iodd");
    assert_int_equal(outcome.exit_code, 8);
    CHECK_HAS(outcome.note, "another version of Cloister");
}

static void snapshot_create_prints_what_a_create_takes(void **state)
{
    (void)state;
    RUN(&outcome, "snapshot", "create", "--data", data, "iaaa", "--name", "setup:v1");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "default/setup:v1\n");
    CHECK_HAS(outcome.note, "cloister sandbox create default/setup:v1 --data ");
    assert_true(fake_server_heard(&server, "{\"name\":\"setup:v1\",\"memory\":true}"));
    RUN(&outcome, "snapshot", "create", "--data", data, "iaaa", "--files-only", "--json");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "\"snapshotID\": \"default/setup:v1\"");
    assert_true(fake_server_heard(&server, "\r\n\r\n{\"memory\":false}"));
    RUN(&outcome, "snapshot", "create", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
    RUN(&outcome, "snapshot", "create", "--data", data, "iaaa", "--name", "");
    assert_int_equal(outcome.exit_code, 2);
}

static void snapshot_list_shows_sizes_and_their_sum(void **state)
{
    (void)state;
    RUN(&outcome, "snapshot", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "SNAPSHOT          SANDBOX  MADE");
    CHECK_HAS(outcome.out, " ago  20 KiB  108 MiB of 500 MiB\n");
    CHECK_HAS(outcome.out, "abc:default       -        - ");
    CHECK_HAS(outcome.out, "  1 KiB                   -\n");
    CHECK_HAS(outcome.note, "Together 109 MiB on disk; 392 MiB more if no memory were compressed.");
    RUN(&outcome, "snapshot", "list", "--data", data, "--json");
    assert_int_equal(outcome.out[0], '[');
    CHECK_HAS(outcome.out, "\"abc:default\"");
    assert_string_equal(outcome.note, "");
    RUN(&outcome, "snapshot", "list", "--data", data, "--sandbox", "inone");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "There are no snapshots of sandbox inone.\n");
    RUN(&outcome, "snapshot", "list", "--data", data, "iaaa");
    assert_int_equal(outcome.exit_code, 2);
}

static void snapshot_delete_prints_all_that_it_deletes(void **state)
{
    (void)state;
    RUN(&outcome, "snapshot", "delete", "--data", data, "setup");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "default/setup:v1\ndefault/setup:v2\n");
    RUN(&outcome, "snapshot", "delete", "--data", data, "setup", "--json");
    CHECK_HAS(outcome.out, "\"deleted\": [");
    CHECK_HAS(outcome.out, "\"default/setup:v2\"");
    RUN(&outcome, "snapshot", "delete", "--data", data, "used");
    assert_int_equal(outcome.exit_code, 5);
    CHECK_HAS(outcome.note, "was made from it");
    RUN(&outcome, "snapshot", "delete", "--data", data, "none"); /* perhaps a template */
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "there is no snapshot 'none'");
    assert_false(fake_server_heard(&server, "DELETE /templates/none"));
    RUN(&outcome, "snapshot", "delete", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
}

static void snapshot_delete_of_a_tag_spares_the_others(void **state)
{
    (void)state;
    RUN(&outcome, "snapshot", "delete", "--data", data, "default/kept:v2");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "a name is deleted with all its tags (2 here)");
    RUN(&outcome, "snapshot", "delete", "--data", data, "default/kept:v9");
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "there is no snapshot 'default/kept:v9'");
    RUN(&outcome, "snapshot", "delete", "--data", data, "default/kept:");
    assert_int_equal(outcome.exit_code, 4);
    assert_false(fake_server_heard(&server, "DELETE /templates/default%2Fkept"));
    /* What `snapshot list` and `snapshot create` print of one without a name. */
    RUN(&outcome, "snapshot", "delete", "--data", data, "abc:Default");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "abc:default\n");
}

static void info_says_what_a_pause_has_kept(void **state)
{
    (void)state;
    RUN(&outcome, "sandbox", "info", "--data", data, "iaaa");
    CHECK_HAS(outcome.out, "kept             files and processes\n");
    CHECK_HAS(outcome.out, "paused at        2026-01-02T03:04:05Z\n");
    CHECK_HAS(outcome.out, "ends at          -\n");
    RUN(&outcome, "sandbox", "info", "--data", data, "ifiles");
    CHECK_HAS(outcome.out, "kept             files\n");
}

static void the_noun_alone_teaches(void **state)
{
    (void)state;
    RUN(&outcome, "snapshot", "--help");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "A snapshot is a copy of a sandbox at one moment.");
    RUN(&outcome, "snapshot");
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "'snapshot' needs one more word: create, list, delete");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pause_keeps_the_memory_unless_told_otherwise),
        cmocka_unit_test(pause_says_what_the_server_said),
        cmocka_unit_test(resume_tells_whether_it_slept),
        cmocka_unit_test(fork_prints_the_ids_of_the_copies),
        cmocka_unit_test(a_fork_that_half_failed_prints_what_was_made_and_fails),
        cmocka_unit_test(snapshot_create_prints_what_a_create_takes),
        cmocka_unit_test(snapshot_list_shows_sizes_and_their_sum),
        cmocka_unit_test(snapshot_delete_prints_all_that_it_deletes),
        cmocka_unit_test(snapshot_delete_of_a_tag_spares_the_others),
        cmocka_unit_test(info_says_what_a_pause_has_kept),
        cmocka_unit_test(the_noun_alone_teaches),
    };

    unsetenv("E2B_API_KEY");
    unsetenv("E2B_API_URL");
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
