/* Templates on the command line, against a server that answers as the API does. */
#include <stdlib.h>

#include "cli/cli.h"
#include "fake_server.h"
#include "test.h"

#define ANSWER(status, headers, body) STR_INIT("HTTP/1.1 " status "\r\n" headers "Connection: close\r\n\r\n" body)
#define JSON_TYPE "Content-Type: application/json\r\n"
#define REFUSED(code, text) ANSWER(#code " No", JSON_TYPE, "{\"code\":" #code ",\"message\":\"" text "\"}")

static const struct fake_rule rules[] = {
    { "GET /templates/hello%3Av2/inspect ",
      ANSWER(
          "200 OK", JSON_TYPE,
          "{\"templateID\":\"abc\",\"names\":[\"default/hello\"],\"public\":false,\"own\":true,\"tag\":\"v2\","
          "\"ready\":true,\"cpuCount\":2,\"memoryMB\":1024,\"createdAt\":\"2020-01-01T00:00:00Z\",\"buildID\":\"b1\","
          "\"hasMemory\":true,\"startCmd\":\"serve\",\"readyCmd\":\"true\","
          "\"tags\":[{\"tag\":\"v2\",\"buildID\":\"b1\",\"assignedAt\":\"2020-01-01T00:00:00Z\"}],"
          "\"layers\":[{\"id\":\"00112233445566778899\",\"origin\":\"operator\",\"bytes\":null,\"shared\":true},"
          "{\"id\":\"aa\",\"origin\":\"image\",\"bytes\":4096,\"shared\":true},"
          "{\"id\":\"bb\",\"origin\":\"step\",\"bytes\":2048,\"step\":\"RUN echo \\u001b[31m\",\"shared\":false},"
          "{\"id\":\"cc\",\"origin\":\"other\",\"bytes\":1,\"shared\":false}],"
          "\"uses\":{\"sandboxes\":1,\"snapshots\":0,\"templates\":2},"
          "\"lastBuild\":{\"buildID\":\"b2\",\"status\":\"error\",\"reason\":\"exit status 3\",\"step\":\"4\","
          "\"createdAt\":\"2020-01-01T00:00:00Z\"}}") },
    { "GET /templates/hello/inspect ",
      ANSWER("200 OK", JSON_TYPE, "{\"templateID\":\"abc\",\"ready\":false,\"tag\":\"default\"}") },
    { "GET /templates/used/inspect ", ANSWER("200 OK", JSON_TYPE, "{\"templateID\":\"used\"}") },
    { "GET /templates/snap/inspect ", REFUSED(400, "'snap' is a snapshot") },
    { "DELETE /templates/hello ", ANSWER("204 No Content", "", "") },
    { "DELETE /templates/used ", REFUSED(400, "1 running sandbox was made from it") },
    { "POST /templates/tags ", ANSWER("201 Created", JSON_TYPE, "{\"tags\":[\"a\",\"b\"],\"buildID\":\"b1\"}") },
    { "GET /templates/hello/tags ", ANSWER("200 OK", JSON_TYPE, "[{\"tag\":\"a\"},{\"tag\":\"default\"}]") },
    { "DELETE /templates/tags ", ANSWER("204 No Content", "", "") },
    { "GET /templates ", ANSWER("200 OK", JSON_TYPE,
                                "[{\"templateID\":\"base1\",\"aliases\":[\"base\"],\"cpuCount\":2,\"memoryMB\":512},"
                                "{\"templateID\":\"abc\",\"aliases\":[\"hello\"],\"cpuCount\":1,\"memoryMB\":1024}]") },
    { "GET /template-disk ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"templates\":[{\"templateID\":\"abc\",\"name\":\"default/"
             "hello\",\"tags\":[\"default\",\"v2\",\"v3\",\"v4\"],"
             "\"tagCount\":7,\"buildCount\":3,\"ownBytes\":1048576,\"sharedBytes\":1048576}],"
             "\"templateBytes\":2097152,\"cacheBytes\":3145728,\"uploadBytes\":0,\"totalBytes\":5242880}") },
    { "GET /admin/template-disk ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"templates\":[],\"templateBytes\":0,\"cacheBytes\":0,\"uploadBytes\":0,\"downloadBytes\":1048576,"
             "\"totalBytes\":1048576}") },
    { "POST /template-prune ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"dryRun\":true,\"steps\":3,\"layers\":{\"count\":1,\"bytes\":1048576},"
             "\"uploads\":{\"count\":0,\"bytes\":0},\"leftCount\":0,\"freedBytes\":1048576}") },
    { "POST /admin/template-prune ",
      ANSWER("200 OK", JSON_TYPE,
             "{\"dryRun\":false,\"steps\":3,\"layers\":{\"count\":2,\"bytes\":1048576},"
             "\"uploads\":{\"count\":0,\"bytes\":0},\"downloads\":{\"count\":1,\"bytes\":1048576},"
             "\"leftCount\":5,\"freedBytes\":2097152}") },
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
    unsetenv("E2B_API_KEY");
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    unsetenv("E2B_API_KEY");
    unsetenv("E2B_API_URL");
    fake_server_stop(&server);
    fake_data_dir_remove(data);
    return 0;
}

/* From here on it is not the operator's command. */
static void take_key(void)
{
    setenv("E2B_API_KEY", "e2b_0123456789012345678901234567890123456789", 1);
    setenv("E2B_API_URL", server.url, 1);
}

static void inspect_shows_layers_tags_and_uses(void **state)
{
    (void)state;
    RUN(&outcome, "template", "inspect", "hello:v2", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "default/hello");
    CHECK_HAS(outcome.out, "1 sandbox, 0 snapshots, 2 templates");
    CHECK_HAS(outcome.out, "in step 4: exit status 3");
    CHECK_HAS(outcome.out, "its processes, from an image of their memory");
    CHECK_HAS(outcome.out, "001122334455  ");
    CHECK_HAS(outcome.out, "a layer of a template of the operator");
    CHECK_HAS(outcome.out, "a layer of the image");
    CHECK_HAS(outcome.out, "RUN echo ?[31m"); /* it does not control the terminal */
    CHECK_HAS(outcome.out, "a step of another team");
    RUN(&outcome, "template", "inspect", "hello:v2", "--data", data, "--json");
    CHECK_HAS(outcome.out, "\"startCmd\": \"serve\"");
    RUN(&outcome, "template", "inspect", "hello", "--data", data);
    CHECK_HAS(outcome.out, "no build with the tag default is ready");
    RUN(&outcome, "template", "inspect", "gone", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
}

static void list_has_tags_and_sizes(void **state)
{
    (void)state;
    RUN(&outcome, "template", "list", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "default, v2, v3 and 4 more");
    CHECK_HAS(outcome.out, "2 MiB");
    RUN(&outcome, "template", "list", "--data", data, "--json");
    CHECK_HAS(outcome.out, "\"ownBytes\": 1048576");
}

static void tags_are_given_and_removed(void **state)
{
    (void)state;
    RUN(&outcome, "template", "tag", "hello:v2", "a", "b", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "hello:a\nhello:b\n");
    assert_true(fake_server_heard(&server, "{\"target\":\"hello:v2\",\"tags\":[\"a\",\"b\"]}"));
    RUN(&outcome, "template", "untag", "hello", "a", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "hello:a\n");
    assert_true(fake_server_heard(&server, "{\"name\":\"hello\",\"tags\":[\"a\"]}"));
    RUN(&outcome, "template", "untag", "hello", "a", "nosuch", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
    CHECK_HAS(outcome.note, "hello has no tag nosuch");
    assert_false(fake_server_heard(&server, "\"nosuch\""));
    RUN(&outcome, "template", "untag", "gone", "a", "--data", data);
    assert_int_equal(outcome.exit_code, 4);
    RUN(&outcome, "template", "tag", "hello", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
}

static void delete_deletes_templates_and_nothing_else(void **state)
{
    (void)state;
    RUN(&outcome, "template", "delete", "hello", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.out, "abc\n");
    RUN(&outcome, "template", "delete", "hello", "--data", data, "--json");
    CHECK_HAS(outcome.out, "\"deleted\": \"abc\"");
    RUN(&outcome, "template", "delete", "used", "--data", data);
    assert_int_equal(outcome.exit_code, 5);
    CHECK_HAS(outcome.note, "1 running sandbox was made from it");
    RUN(&outcome, "template", "delete", "hello:v2", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
    CHECK_HAS(outcome.note, "template untag");
    RUN(&outcome, "template", "delete", "snap", "--data", data);
    assert_int_equal(outcome.exit_code, 2);
    assert_false(fake_server_heard(&server, "DELETE /templates/snap"));
}

static void disk_and_prune_are_of_the_keys_team_or_of_all(void **state)
{
    (void)state;
    RUN(&outcome, "template", "disk", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "downloads            1 MiB");
    RUN(&outcome, "template", "prune", "--data", data);
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "1 download             1 MiB");
    CHECK_HAS(outcome.out, "freed                  2 MiB");
    CHECK_HAS(outcome.note, "5 layers are still to go");
    take_key();
    RUN(&outcome, "template", "disk");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "default/hello");
    CHECK_HAS(outcome.out, "cached steps         3 MiB");
    assert_null(strstr(outcome.out, "downloads"));
    RUN(&outcome, "template", "prune", "--dry-run");
    assert_int_equal(outcome.exit_code, 0);
    CHECK_HAS(outcome.out, "would be freed         1 MiB");
    assert_true(fake_server_heard(&server, "{\"dryRun\":true}"));
    RUN(&outcome, "template", "prune", "--dry-run", "--json");
    CHECK_HAS(outcome.out, "\"steps\": 3");
}

#define TEMPLATE_CASE(name) cmocka_unit_test_setup_teardown(name, start_server, stop_server)

int main(void)
{
    const struct CMUnitTest cases[] = {
        TEMPLATE_CASE(inspect_shows_layers_tags_and_uses),
        TEMPLATE_CASE(list_has_tags_and_sizes),
        TEMPLATE_CASE(tags_are_given_and_removed),
        TEMPLATE_CASE(delete_deletes_templates_and_nothing_else),
        TEMPLATE_CASE(disk_and_prune_are_of_the_keys_team_or_of_all),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
