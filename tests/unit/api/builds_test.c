#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "built.h"

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define FROM_IMAGE "{\"fromImage\":\"debian:stable\"}"

/* ---- register ---- */

static const char *text_at(struct served *s, const char *name, size_t i)
{
    return json_string_value(json_array_get(json_object_get(s->last, name), i));
}

static size_t size_of(struct served *s, const char *name)
{
    return json_array_size(json_object_get(s->last, name));
}

static void a_build_is_registered_under_its_name(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids first = built_register(b, "{\"name\":\" My-Template \"}");

    assert_int_equal(strlen(first.template_id), 20);
    assert_int_equal(strlen(first.build_id), 36);
    assert_true(json_is_false(json_object_get(s->last, "public")));
    assert_int_equal(size_of(s, "aliases"), 1);
    assert_string_equal(text_at(s, "aliases", 0), "my-template");
    assert_string_equal(text_at(s, "names", 0), "default/my-template");
    assert_int_equal(size_of(s, "tags"), 1);
    assert_string_equal(text_at(s, "tags", 0), "default");

    struct built_ids second = built_register(b, "{\"name\":\"default/my-template:V1\",\"tags\":[\"x\",\"v1\",\"x\"],"
                                                "\"cpuCount\":4,\"memoryMB\":2048,\"minFreeDiskMb\":1,\"other\":{}}");
    assert_string_equal(first.template_id, second.template_id);
    assert_string_not_equal(first.build_id, second.build_id);
    assert_int_equal(size_of(s, "tags"), 2);
    assert_string_equal(text_at(s, "tags", 0), "v1");
    assert_string_equal(text_at(s, "tags", 1), "x");
    built_register(b, "{\"alias\":\"by-alias\",\"name\":null}");
    assert_string_equal(text_at(s, "aliases", 0), "by-alias");
    built_register(b, "{\"name\":\"by-alias:default\",\"tags\":[\"v1\"]}");
    assert_int_equal(size_of(s, "tags"), 1);
    assert_string_equal(text_at(s, "tags", 0), "v1");
}

static void bad_registrations_are_refused(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"known\"}");
    const struct {
        const char *body;
        unsigned status;
        const char *message;
    } bad[] = {
        { "{}", 400, "Name is required" },
        { "{\"name\":\"\"}", 400, "Name is required" },
        { "{\"name\":\"  \"}", 400, "Name is required" },
        { "{\"name\":7}", 400, "validation error" },
        { "{\"name\":\"a b\"}", 400, "not a template reference" },
        { "{\"name\":\"a/b/c\"}", 400, "not a template reference" },
        { "{\"name\":\"a:\"}", 400, "not a template reference" },
        { "{\"name\":\"ä\"}", 400, "not a template reference" },
        { "{\"name\":\"other/a\"}", 400, "not the namespace" },
        { "{\"name\":\"a:00000000-0000-4000-8000-000000000000\"}", 400, "UUID" },
        { "{\"name\":\"a\",\"tags\":[\"00000000-0000-4000-8000-00000000000A\"]}", 400, "UUID" },
        { "{\"name\":\"a\",\"tags\":[\"b/c\"]}", 400, "not a tag" },
        { "{\"name\":\"a\",\"tags\":[\"b:c\"]}", 400, "not a tag" },
        { "{\"name\":\"a\",\"tags\":[\"\"]}", 400, "not a tag" },
        { "{\"name\":\"a\",\"tags\":[1]}", 400, "'tags'" },
        { "{\"name\":\"a\",\"tags\":\"x\"}", 400, "'tags'" },
        { "{\"name\":\"a\",\"cpuCount\":0}", 400, "CPU count must be at least 1" },
        { "{\"name\":\"a\",\"cpuCount\":-4}", 400, "CPU count must be at least 1" },
        { "{\"name\":\"a\",\"cpuCount\":33}", 400, "CPU count must be at most 32" },
        { "{\"name\":\"a\",\"cpuCount\":3}", 400, "CPU count must be 1 or an even number" },
        { "{\"name\":\"a\",\"cpuCount\":16}", 400, "CPU count can't be higher than 8" },
        { "{\"name\":\"a\",\"memoryMB\":127}", 400, "validation error: Memory must be at least 128 MiB" },
        { "{\"name\":\"a\",\"memoryMB\":129}", 400, "Memory must be divisible by 2" },
        { "{\"name\":\"a\",\"memoryMB\":8194}", 400, "Memory can't be higher than 8192" },
        { "{\"name\":\"a\",\"minFreeDiskMb\":-1}", 400, "minFreeDiskMb" },
        { "{\"name\":\"a\",\"minFreeDiskMb\":2147483647}", 400,
          "minFreeDiskMb is 2147483647, but this server's disk has" },
        { "{\"name\":\"a\",\"teamID\":\"00000000-0000-4000-8000-000000000000\"}", 400, "teamID" },
        { "[]", 400, "validation error" },
        { "{\"name\":", 400, "validation error" },
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = CALL(s, "POST", "/v3/templates", bad[i].body);
        check_error(s, &answer, bad[i].status, bad[i].message);
    }
    struct http_answer answer = CALL(s, "POST", "/v3/templates", built_path(b, "{\"name\":\"%s\"}", ids.template_id));
    check_error(s, &answer, 409, "is the id of a template");
    answer = CALL(s, "POST", "/v3/templates", "{\"name\":\"tbase\"}");
    check_error(s, &answer, 409, "is the id of a template");
    answer = CALL(s, "POST", "/v3/templates", built_path(b, "{\"name\":\"%0129d\"}", 0));
    check_error(s, &answer, 400, "128");
    answer = served_call_bare(s, "POST", "/v3/templates", "{\"name\":\"a\"}", NULL, 0);
    check_error(s, &answer, 401, NULL);
    /* The name of a snapshot is taken, too. */
    const char *sandbox = served_create(s, "{\"templateID\":\"base\"}");
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", sandbox, "/snapshots"), "{\"name\":\"snap\"}");
    assert_int_equal(answer.status, 201);
    answer = CALL(s, "POST", "/v3/templates", "{\"name\":\"snap\"}");
    check_error(s, &answer, 403, "name of a snapshot");
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", sandbox, "/snapshots"), "{\"name\":\"known\"}");
    check_error(s, &answer, 400, "is the name of a template");
}

static void the_operators_limit_is_known_when_a_build_is_registered(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    s->actions.cpus_most = 1;
    s->actions.memory_mb_most = 512;
    struct http_answer answer = CALL(s, "POST", "/v3/templates", "{\"name\":\"a\",\"cpuCount\":2,\"memoryMB\":512}");
    check_error(s, &answer, 400, "CPU count can't be higher than 1");
    answer = CALL(s, "POST", "/v3/templates", "{\"name\":\"a\",\"cpuCount\":1,\"memoryMB\":1024}");
    check_error(s, &answer, 400, "Memory can't be higher than 512 MiB");
    /* What is not said is as much as there may be. */
    assert_int_equal(CALL(s, "POST", "/v3/templates", "{\"name\":\"a\"}").status, 202);
    s->actions.cpus_most = s->actions.memory_mb_most = 0;
}

static void too_many_builds_are_refused_for_good(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    for (int i = 0; i < LIMIT_BUILDS_TEAM; i++) {
        struct built_ids ids = built_register(b, built_path(b, "{\"name\":\"n%d\"}", i));
        assert_int_equal(built_start(b, ids, FROM_IMAGE).status, 202);
    }
    struct http_answer answer = CALL(s, "POST", "/v3/templates", "{\"name\":\"more\"}");
    check_error(s, &answer, 429, "are running");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
}

/* ---- uploads ---- */

static const char *link_of(struct built *b, struct built_ids ids, const char *hash, bool want_present)
{
    struct served *s = &b->served;
    struct http_answer answer = CALL(s, "GET", built_path(b, "/templates/%s/files/%s", ids.template_id, hash), NULL);

    if (answer.status != 201)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    assert_int_equal(json_is_true(json_object_get(s->last, "present")), want_present);
    const char *prefix = built_path(b, "http://%s/template-files/", s->address);
    assert_memory_equal(got_text(s, "url"), prefix, strlen(prefix));
    return built_path(b, "%s", got_text(s, "url") + strlen("http://") + strlen(s->address));
}

static void an_archive_is_uploaded_by_its_link(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}"), other = built_register(b, "{\"name\":\"api\"}");
    const char *link = link_of(b, ids, HASH_A, false);
    char *large = arena_alloc(&s->rig.arena, 3 << 20);
    uint64_t size;
    int fd;

    memset(large, 'x', (3 << 20) - 1);
    struct http_answer answer = served_call_bare(s, "PUT", link, large, NULL, 0);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.len, 0);
    assert_string_equal(answer_header(s, &answer, "Content-Length"), "0");
    link = link_of(b, ids, HASH_A, true);
    link_of(b, other, HASH_A, true); /* of the team, not of the template */
    link_of(b, ids, HASH_B, false);
    struct str team = store_team_default(s->rig.disk.store);
    MUST(upload_open(s->actions.uploads, team, STR(HASH_A), &fd, &size, &err));
    assert_int_equal(size, (3 << 20) - 1);
    auto_free char *back = NULL;
    size_t len;
    MUST(fd_read_all(fd, 4 << 20, &back, &len, &err));
    assert_memory_equal(back, large, len);
    close(fd);
    /* Again, as forceUpload does; and a small one. */
    assert_int_equal(served_call_bare(s, "PUT", link, "tiny", NULL, 0).status, 200);
    MUST(upload_open(s->actions.uploads, team, STR(HASH_A), &fd, &size, &err));
    assert_int_equal(size, 4);
    close(fd);
}

static void a_link_is_for_one_archive_and_one_time(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    char *link = arena_text(&s->rig.arena, str_from(link_of(b, ids, HASH_A, false)));
    char team[64], old[STORE_TOKEN_BYTES];

    snprintf(team, sizeof team, "%.*s", STR_ARG(store_team_default(s->rig.disk.store)));
    char *hash = strstr(link, HASH_A);
    memset(hash, 'b', 64);
    struct http_answer answer = served_call_bare(s, "PUT", link, "x", NULL, 0);
    check_error(s, &answer, 403, "signature");
    memset(hash, 'a', 64);
    char *expires = strstr(link, "expires=") + strlen("expires=");
    expires[9] = expires[9] == '9' ? '8' : (char)(expires[9] + 1);
    answer = served_call_bare(s, "PUT", link, "x", NULL, 0);
    check_error(s, &answer, 403, "signature");
    store_upload_token(s->rig.disk.store, str_from(team), STR(HASH_A), STR("1000"), old);
    answer = served_call_bare(s, "PUT", built_path(b, "/template-files/%s/%s?expires=1000&token=%s", team, HASH_A, old),
                              "x", NULL, 0);
    check_error(s, &answer, 403, "expired");
    answer = served_call_bare(s, "PUT", built_path(b, "/template-files/%s/%s", team, HASH_A), "x", NULL, 0);
    check_error(s, &answer, 403, NULL);
    answer = CALL(s, "PUT", built_path(b, "/template-files/%s/%s?expires=9999999999&token=00", team, HASH_A), "x");
    check_error(s, &answer, 403, "signature"); /* a key does not help */
    answer = CALL(s, "GET", built_path(b, "/template-files/%s/%s", team, HASH_A), NULL);
    check_error(s, &answer, 405, NULL);
    link_of(b, ids, HASH_A, false);
}

static void an_upload_needs_its_exact_length(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const char *link = link_of(b, ids, HASH_A, false), *got;

    got = served_raw(s, str_from(built_path(b,
                                            "PUT %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                            "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
                                            link)));
    assert_memory_equal(got, "HTTP/1.1 411 ", strlen("HTTP/1.1 411 "));
    got = served_raw(s, str_from(built_path(b, "PUT %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", link)));
    assert_memory_equal(got, "HTTP/1.1 411 ", strlen("HTTP/1.1 411 "));
    got = served_raw(s, str_from(built_path(b,
                                            "PUT %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                            "Content-Length: 99999999999\r\n\r\nabc",
                                            link)));
    assert_memory_equal(got, "HTTP/1.1 413 ", strlen("HTTP/1.1 413 "));
    got = served_raw(s, str_from(built_path(
                            b, "PUT %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", link)));
    assert_memory_equal(got, "HTTP/1.1 400 ", strlen("HTTP/1.1 400 "));
    /* Cut short: nothing is left of it. */
    int fd = served_connect(s);
    MUST(fd_write_all(
        fd, str_from(built_path(b, "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc", link)), &err));
    usleep(100000);
    close(fd);
    for (int i = 0; i < 200; i++) {
        char command[128];
        snprintf(command, sizeof command, "test -z \"$(ls -A %s)\"", b->dir);
        if (i && system(command) == 0)
            break;
        assert_int_not_equal(i, 199);
        usleep(20000);
    }
    link_of(b, ids, HASH_A, false);
}

/* Clients that send nothing take all places of the team; one more waits, and has its turn when one of them has gone. */
static void more_uploads_than_are_read_at_once_wait_for_their_turn(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const char *idle = built_path(b, "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
                                  link_of(b, ids, HASH_A, false)),
               *link = link_of(b, ids, HASH_B, false);
    char room[64] = { 0 };
    int fds[LIMIT_UPLOADS_AT_ONCE_TEAM], last;

    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        fds[i] = served_connect(s);
        MUST(fd_write_all(fds[i], str_from(idle), &err));
    }
    usleep(200000);
    last = served_connect(s);
    MUST(fd_write_all(last, str_from(built_path(b, "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", link)),
                      &err));
    usleep(200000);
    assert_int_equal(recv(last, room, sizeof room - 1, MSG_DONTWAIT), -1);
    link_of(b, ids, HASH_B, false);
    close(fds[0]);
    assert_true(recv(last, room, sizeof room - 1, 0) > 0);
    assert_memory_equal(room, "HTTP/1.1 200 ", strlen("HTTP/1.1 200 "));
    link_of(b, ids, HASH_B, true);
    close(last);
    for (size_t i = 1; i < COUNT_OF(fds); i++)
        close(fds[i]);
}

static void links_are_for_a_teams_own_templates_and_whole_hashes(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const char *stranger = built_stranger(b, "other");
    static const char *const bad[] = { "abc", "..%2F..%2Fetc",
                                       "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer =
            CALL(s, "GET", built_path(b, "/templates/%s/files/%s", ids.template_id, bad[i]), NULL);
        check_error(s, &answer, 400, "Invalid files hash");
    }
    struct http_answer answer = CALL(s, "GET", "/templates/nope/files/" HASH_A, NULL);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "GET", "/templates/tbase/files/" HASH_A, NULL);
    check_error(s, &answer, 404, NULL);
    answer = built_as(b, stranger, "GET", built_path(b, "/templates/%s/files/%s", ids.template_id, HASH_A), NULL);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "DELETE", built_path(b, "/templates/%s", ids.template_id), NULL);
    assert_int_equal(answer.status, 204);
    answer = CALL(s, "GET", built_path(b, "/templates/%s/files/%s", ids.template_id, HASH_A), NULL);
    check_error(s, &answer, 404, NULL);
}

static void a_link_leads_to_where_the_client_has_come_from(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const char *path = built_path(b, "/templates/%s/files/%s", ids.template_id, HASH_A);

    CALL_WITH(s, "GET", path, NULL, { STR("X-Forwarded-Host"), STR("api.example.org, inner") },
              { STR("X-Forwarded-Proto"), STR("https") });
    assert_memory_equal(got_text(s, "url"), "https://api.example.org/template-files/", 39);
    CALL_WITH(s, "GET", path, NULL, { STR("X-Forwarded-Host"), STR("evil/\"><x") },
              { STR("X-Forwarded-Proto"), STR("javascript") });
    assert_memory_equal(got_text(s, "url"), "http://127.0.0.1:", 17);
}

/* ---- start ---- */

static void a_recipe_reaches_the_builder(void **state)
{
    struct built *b = *state;
    struct built_ids ids = built_register(b, "{\"name\":\"web\",\"cpuCount\":1,\"memoryMB\":512}");
    struct http_answer answer = built_start(
        b, ids,
        "{\"fromImage\":\"debian:12\",\"force\":true,\"startCmd\":\"serve\",\"readyCmd\":\"sleep 1\","
        "\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"},\"steps\":["
        "{\"type\":\"copy\",\"args\":[\"a\",\"b\",\"\",\"\"],\"force\":true,\"filesHash\":\"" HASH_A
        "\",\"forceUpload\":true,\"gzip\":false},"
        "{\"type\":\"ADD\",\"args\":[]},{\"type\":\"Run\",\"args\":[\"ls\",\"root\"]},{\"type\":\"USER\",\"args\":["
        "\"u\"]},"
        "{\"type\":\"WORKDIR\",\"args\":[\"/\"]},{\"type\":\"ARG\",\"args\":[\"A\",\"1\"]},{\"type\":\"env\"},"
        "{\"type\":\"HEALTHCHECK\",\"args\":[\"x\"]}]}");
    static const enum step_type types[] = { STEP_COPY,    STEP_COPY, STEP_RUN, STEP_USER,
                                            STEP_WORKDIR, STEP_ENV,  STEP_ENV, STEP_UNKNOWN };

    assert_int_equal(answer.status, 202);
    assert_int_equal(answer.body.len, 0);
    assert_string_equal(answer_header(&b->served, &answer, "Content-Length"), "0");
    assert_int_equal(b->starts, 1);
    CHECK_STR(b->want.build_id, str_from(ids.build_id));
    CHECK_STR(b->want.from_image, STR("debian:12"));
    assert_int_equal(b->want.from_layer_count, 0);
    assert_true(b->want.force);
    CHECK_STR(b->want.start_cmd, STR("serve"));
    CHECK_STR(b->want.ready_cmd, STR("sleep 1"));
    assert_int_equal(b->want.login.kind, LOGIN_BASIC);
    CHECK_STR(b->want.login.password, STR("p"));
    assert_int_equal(b->want.cpu_count, 1);
    assert_int_equal(b->want.memory_mb, 512);
    assert_int_equal(b->want.step_count, COUNT_OF(types));
    for (size_t i = 0; i < COUNT_OF(types); i++)
        assert_int_equal(b->want.steps[i].type, types[i]);
    CHECK_STR(b->want.steps[0].files_hash, STR(HASH_A));
    assert_true(b->want.steps[0].force);
    assert_false(b->want.steps[2].force);
    assert_int_equal(b->want.steps[2].arg_count, 2);
    CHECK_STR(b->want.steps[2].args[1], STR("root"));
    CHECK_STR(b->want.steps[7].type_text, STR("HEALTHCHECK"));

    CALL(&b->served, "GET", built_path(b, "/templates/%s/builds/%s/status", ids.template_id, ids.build_id), NULL);
    assert_string_equal(got_text(&b->served, "status"), "building");
    answer = built_start(b, ids, FROM_IMAGE);
    check_error(&b->served, &answer, 400, "build is not in waiting state");
}

static void the_user_agent_says_how_old_the_sdk_is(void **state)
{
    struct built *b = *state;
    static const struct {
        struct str agent;
        enum build_dialect dialect;
    } agents[] = {
        { STR_INIT("e2b-js-sdk/2.51.0"), DIALECT_2_1 },
        { STR_INIT("e2b-js-sdk/2.49.0 e2b-cli/2.19.0"), DIALECT_2_1 },
        { STR_INIT("e2b-python-sdk/2.3.0"), DIALECT_2_1 },
        { STR_INIT("e2b-python-sdk/2.2.9"), DIALECT_2_0 },
        { STR_INIT("e2b-js-sdk/1.9.1"), DIALECT_2_0 },
        { STR_INIT("e2b-js-sdk/x.y"), DIALECT_2_1 },
        { STR_INIT("curl/8"), DIALECT_2_1 },
    };

    for (size_t i = 0; i < COUNT_OF(agents); i++) {
        struct built_ids ids = built_register(b, built_path(b, "{\"name\":\"n%zu\"}", i));
        struct http_answer answer =
            CALL_WITH(&b->served, "POST", built_path(b, "/v2/templates/%s/builds/%s", ids.template_id, ids.build_id),
                      FROM_IMAGE, { STR("User-Agent"), agents[i].agent });
        assert_int_equal(answer.status, 202);
        assert_int_equal(b->want.dialect, agents[i].dialect);
    }
}

static void sources_are_found_as_create_finds_them(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids parent = built_make(b, "{\"name\":\"parent\",\"tags\":[\"default\",\"v1\"]}"),
                     child = built_register(b, "{\"name\":\"c1\"}");

    assert_int_equal(built_start(b, child, "{\"fromTemplate\":\"Parent:v1\"}").status, 202);
    CHECK_STR(b->want.from_build, str_from(parent.build_id));
    CHECK_STR(b->want.from_text, STR("Parent:v1"));
    /* One without builds: its layers. */
    child = built_register(b, "{\"name\":\"c2\"}");
    assert_int_equal(built_start(b, child, "{\"fromTemplate\":\"base\",\"fromImageRegistry\":{\"type\":\"?\"}}").status,
                     202);
    assert_int_equal(b->want.from_build.len, 0);
    assert_int_equal(b->want.from_layer_count, 1);
    /* E2B's base image is the template base, unless the image map knows better. */
    child = built_register(b, "{\"name\":\"c3\"}");
    assert_int_equal(built_start(b, child, "{\"fromImage\":\"e2bdev/base:latest\"}").status, 202);
    CHECK_STR(b->want.from_image, STR("e2bdev/base:latest"));
    assert_int_equal(b->want.from_layer_count, 1);
    child = built_register(b, "{\"name\":\"c4\"}");
    assert_int_equal(built_start(b, child, "{\"fromImage\":\"e2bdev/baseline\"}").status, 202);
    assert_int_equal(b->want.from_layer_count, 0);
    /* An archive that was uploaded, and an image in it. */
    child = built_register(b, "{\"name\":\"c6\"}");
    assert_int_equal(built_start(b, child, "{\"fromArchive\":\"" HASH_A "\",\"fromArchiveImage\":\"x:1\"}").status,
                     202);
    CHECK_STR(b->want.from_archive, STR(HASH_A));
    CHECK_STR(b->want.archive_image, STR("x:1"));
    assert_int_equal(b->want.from_image.len + b->want.from_build.len + b->want.from_layer_count, 0);
    /* A snapshot, which the build looks for again when it has its turn. */
    const char *sandbox = served_create(s, "{\"templateID\":\"base\"}");
    CALL(s, "POST", served_path(s, "/sandboxes/", sandbox, "/snapshots"), "{\"name\":\"snap:v1\"}");
    child = built_register(b, "{\"name\":\"c5\"}");
    assert_int_equal(built_start(b, child, "{\"fromTemplate\":\"snap:v1\"}").status, 202);
    assert_int_equal(b->want.from_layer_count, 0);
    struct snapshot_row row;
    MUST(store_snapshot_get(s->rig.disk.store, store_team_default(s->rig.disk.store), b->want.from_snapshot,
                            b->want.from_tag, &s->rig.arena, &row, &err));
    CHECK_STR(row.name, STR("snap"));
    CHECK_STR(row.tag, STR("v1"));
}

static void check_failed(struct built *b, struct built_ids ids, const char *message)
{
    struct served *s = &b->served;

    CALL(s, "GET", built_path(b, "/templates/%s/builds/%s/status", ids.template_id, ids.build_id), NULL);
    assert_string_equal(got_text(s, "status"), "error");
    const json_t *reason = json_object_get(s->last, "reason");
    assert_string_equal(json_string_value(json_object_get(reason, "step")), "base");
    if (!strstr(json_string_value(json_object_get(reason, "message")), message))
        fail_msg("'%s' has no '%s'", json_string_value(json_object_get(reason, "message")), message);
}

static void a_source_that_is_not_there_fails_the_build_and_not_the_call(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *stranger = built_stranger(b, "other");
    struct built_ids secret = built_make(b, "{\"name\":\"secret\"}");
    static const struct {
        const char *source, *message;
    } sources[] = {
        { "nope", "template 'nope' not found" },
        { "a b", "template 'a b' not found" },
        { "secret:v9", "tag 'v9' does not exist for template 'secret'" },
        { "c", "tag 'default' does not exist for template 'c'" }, /* itself: it has no ready build */
    };

    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        struct built_ids ids = built_register(b, "{\"name\":\"c\"}");
        assert_int_equal(built_start(b, ids, built_path(b, "{\"fromTemplate\":\"%s\"}", sources[i].source)).status,
                         202);
        check_failed(b, ids, sources[i].message);
        /* The line is in the log, and in the reason. */
        assert_int_equal(size_of(s, "logEntries"), 2);
        assert_int_equal(json_array_size(json_object_get(json_object_get(s->last, "reason"), "logEntries")), 1);
    }
    int starts = b->starts;
    /* Another team's private one, by name and by id. */
    built_as(b, stranger, "POST", "/v3/templates", "{\"name\":\"mine\"}");
    struct built_ids theirs = { built_path(b, "%s", got_text(s, "templateID")),
                                built_path(b, "%s", got_text(s, "buildID")) };
    assert_int_equal(built_as(b, stranger, "POST",
                              built_path(b, "/v2/templates/%s/builds/%s", theirs.template_id, theirs.build_id),
                              built_path(b, "{\"fromTemplate\":\"%s\"}", secret.template_id))
                         .status,
                     202);
    built_as(b, stranger, "GET", built_path(b, "/templates/%s/builds/%s/status", theirs.template_id, theirs.build_id),
             NULL);
    assert_string_equal(got_text(s, "status"), "error");
    assert_int_equal(b->starts, starts);
    /* None or both sources: the build has failed, and the call too. */
    static const char *const bodies[] = { "{}", "{\"fromImage\":\"a\",\"fromTemplate\":\"b\"}",
                                          "{\"fromImage\":\"\",\"fromTemplate\":\"\"}",
                                          "{\"fromImage\":\"a\",\"fromArchive\":\"" HASH_A "\"}" };
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct built_ids ids = built_register(b, "{\"name\":\"c\"}");
        struct http_answer answer = built_start(b, ids, bodies[i]);
        check_error(s, &answer, 400, "exactly one of fromImage and fromTemplate");
        check_failed(b, ids, "exactly one of");
    }
    struct built_ids ids = built_register(b, "{\"name\":\"c\"}");
    assert_int_equal(built_start(b, ids, "{\"fromArchive\":\"../../etc/passwd\"}").status, 202);
    check_failed(b, ids, "Invalid files hash");
}

static void bad_starts_are_refused(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *stranger = built_stranger(b, "other");
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}"), other = built_register(b, "{\"name\":\"api\"}");
    const char *path = built_path(b, "/v2/templates/%s/builds/%s", ids.template_id, ids.build_id);
    static const char *const bad[] = {
        "[]",
        "{\"fromImage\":1}",
        "{\"fromImage\":\"a\",\"force\":\"yes\"}",
        "{\"fromImage\":\"a\",\"steps\":{}}",
        "{\"fromImage\":\"a\",\"steps\":[1]}",
        "{\"fromImage\":\"a\",\"steps\":[{}]}",
        "{\"fromImage\":\"a\",\"steps\":[{\"type\":1}]}",
        "{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\",\"args\":[1]}]}",
        "{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\",\"args\":\"ls\"}]}",
        "{\"fromImage\":\"a\",\"steps\":[{\"type\":\"COPY\",\"filesHash\":1}]}",
        "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"ftp\"}}",
        "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\"}}",
        "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"aws\",\"awsRegion\":\"u\"}}",
        "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"gcp\"}}",
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = CALL(s, "POST", path, bad[i]);
        check_error(s, &answer, 400, "validation error");
    }
    struct http_answer answer =
        CALL(s, "POST", built_path(b, "/v2/templates/%s/builds/abc", ids.template_id), FROM_IMAGE);
    check_error(s, &answer, 400, "Invalid build id");
    answer = CALL(s, "POST", built_path(b, "/v2/templates/%s/builds/%s", other.template_id, ids.build_id), FROM_IMAGE);
    check_error(s, &answer, 404, NULL);
    answer =
        CALL(s, "POST", built_path(b, "/v2/templates/%s/builds/00000000-0000-4000-8000-000000000000", ids.template_id),
             FROM_IMAGE);
    check_error(s, &answer, 404, "not found");
    answer = built_as(b, stranger, "POST", path, FROM_IMAGE);
    check_error(s, &answer, 403, NULL);
    b->refuse = (struct err){ .kind = ERR_LIMIT, .message = "too many builds of this team" };
    answer = CALL(s, "POST", path, FROM_IMAGE);
    check_error(s, &answer, 429, "too many builds");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    b->refuse = (struct err){ 0 };
    s->actions.builder = NULL;
    answer = CALL(s, "POST", path, FROM_IMAGE);
    check_error(s, &answer, 503, "template builds are not available");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    s->actions.builder = (struct builder *)b;
    assert_int_equal(CALL(s, "POST", path, FROM_IMAGE).status, 202);
    /* As many steps as there may be, and one more. */
    struct buf many = buf_make(&s->rig.arena, 1 << 20);
    buf_add(&many, STR("{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\"}"));
    for (int i = 1; i < LIMIT_BUILD_STEPS; i++)
        buf_add(&many, STR(",{\"type\":\"RUN\"}"));
    char *fits = arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%.*s]}", (int)many.len, many.data));
    assert_int_equal(built_start(b, other, built_path(b, "%s", "{}")).status, 400); /* fails the build */
    other = built_register(b, "{\"name\":\"api\"}");
    char *more =
        arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%.*s,{\"type\":\"RUN\"}]}", (int)many.len, many.data));
    answer = built_start(b, other, more);
    check_error(s, &answer, 400, "at most 1000 steps");
    assert_int_equal(built_start(b, other, fits).status, 202);
    assert_int_equal(b->want.step_count, LIMIT_BUILD_STEPS);
}

/* ---- status ---- */

static void status_gives_lines_after_those_that_the_client_has(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const char *path = built_path(b, "/templates/%s/builds/%s/status", ids.template_id, ids.build_id);
    struct build_line lines[150];

    assert_int_equal(CALL(s, "GET", path, NULL).status, 200);
    assert_string_equal(got_text(s, "status"), "waiting");
    assert_string_equal(got_text(s, "templateID"), ids.template_id);
    assert_string_equal(got_text(s, "buildID"), ids.build_id);
    assert_int_equal(size_of(s, "logs"), 0);
    assert_int_equal(size_of(s, "logEntries"), 0);
    assert_null(json_object_get(s->last, "reason"));

    assert_int_equal(built_start(b, ids, FROM_IMAGE).status, 202);
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        lines[i] = (struct build_line){ .at_us = 1700000000000000 + (int64_t)i * 1000000,
                                        .level = i % 3 == 0 ? BUILD_WARN : BUILD_INFO,
                                        .step = i ? STR("1") : STR(""),
                                        .text = arena_format(&s->rig.arena, "line %zu", i) };
    MUST(store_build_log(s->rig.disk.store, str_from(ids.build_id), lines, COUNT_OF(lines), &err));
    CALL(s, "GET", path, NULL);
    assert_int_equal(size_of(s, "logEntries"), 100);
    const json_t *entry = json_array_get(json_object_get(s->last, "logEntries"), 0);
    assert_string_equal(json_string_value(json_object_get(entry, "message")), "line 0");
    assert_string_equal(json_string_value(json_object_get(entry, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(entry, "timestamp")), "2023-11-14T22:13:20.000000Z");
    assert_null(json_object_get(entry, "step"));
    entry = json_array_get(json_object_get(s->last, "logEntries"), 1);
    assert_string_equal(json_string_value(json_object_get(entry, "step")), "1");
    CALL(s, "GET", served_path(s, path, "?logsOffset=100", ""), NULL);
    assert_int_equal(size_of(s, "logEntries"), 50);
    CALL(s, "GET", served_path(s, path, "?logsOffset=150&limit=100", ""), NULL);
    assert_int_equal(size_of(s, "logEntries"), 0);
    CALL(s, "GET", served_path(s, path, "?limit=0", ""), NULL);
    assert_int_equal(size_of(s, "logEntries"), 0);
    CALL(s, "GET", served_path(s, path, "?level=warn&logsOffset=49", ""), NULL);
    assert_int_equal(size_of(s, "logEntries"), 1);

    built_fail(b, ids, "exit status 1", "1");
    CALL(s, "GET", served_path(s, path, "?logsOffset=0&limit=10", ""), NULL);
    assert_string_equal(got_text(s, "status"), "error");
    const json_t *reason = json_object_get(s->last, "reason");
    assert_string_equal(json_string_value(json_object_get(reason, "message")), "exit status 1");
    assert_string_equal(json_string_value(json_object_get(reason, "step")), "1");
    assert_int_equal(json_array_size(json_object_get(reason, "logEntries")), 3); /* 3, 6 and 9 */
    struct built_ids cancelled = built_register(b, "{\"name\":\"web2\"}");
    built_start(b, cancelled, FROM_IMAGE);
    built_fail(b, cancelled, "build was cancelled", "");
    CALL(s, "GET", built_path(b, "/templates/%s/builds/%s/status", cancelled.template_id, cancelled.build_id), NULL);
    assert_null(json_object_get(json_object_get(s->last, "reason"), "step"));

    /* The other way to read them. */
    path = built_path(b, "/templates/%s/builds/%s/logs", ids.template_id, ids.build_id);
    CALL(s, "GET", path, NULL);
    assert_int_equal(size_of(s, "logs"), 100);
    CALL(s, "GET", served_path(s, path, "?direction=backward&limit=2", ""), NULL);
    entry = json_array_get(json_object_get(s->last, "logs"), 0);
    assert_string_equal(json_string_value(json_object_get(entry, "message")), "line 149");
    CALL(s, "GET", served_path(s, path, "?direction=backward&cursor=1700000002000&limit=9", ""), NULL);
    assert_int_equal(size_of(s, "logs"), 3);
    CALL(s, "GET", served_path(s, path, "?cursor=1700000148000&level=info&source=persistent", ""), NULL);
    assert_int_equal(size_of(s, "logs"), 2);
}

static void bad_questions_about_a_build_are_refused(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *stranger = built_stranger(b, "other");
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}"), other = built_register(b, "{\"name\":\"api\"}");
    const char *path = built_path(b, "/templates/%s/builds/%s/status", ids.template_id, ids.build_id);
    static const char *const bad[] = { "?logsOffset=-1", "?logsOffset=x", "?limit=101", "?level=loud", "?limit=%zz" };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = CALL(s, "GET", served_path(s, path, bad[i], ""), NULL);
        check_error(s, &answer, 400, "validation error");
    }
    struct http_answer answer = CALL(s, "GET", built_path(b, "/templates/%s/builds/abc/status", ids.template_id), NULL);
    check_error(s, &answer, 400, "Invalid build id");
    answer =
        CALL(s, "GET",
             built_path(b, "/templates/%s/builds/00000000-0000-4000-8000-000000000000/status", ids.template_id), NULL);
    check_error(s, &answer, 400, "Build '00000000-0000-4000-8000-000000000000' not found");
    answer = CALL(s, "GET", built_path(b, "/templates/%s/builds/%s/status", other.template_id, ids.build_id), NULL);
    check_error(s, &answer, 400, "not found");
    answer = built_as(b, stranger, "GET", path, NULL);
    check_error(s, &answer, 403, NULL);
    answer =
        CALL(s, "GET", built_path(b, "/templates/%s/builds/%s/logs?direction=up", ids.template_id, ids.build_id), NULL);
    check_error(s, &answer, 400, "direction");
    CALL(s, "DELETE", built_path(b, "/templates/%s", ids.template_id), NULL);
    answer = CALL(s, "GET", path, NULL);
    check_error(s, &answer, 400, "not found");
}

/* ---- others ---- */

static void a_team_cancels_its_own_build(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *stranger = built_stranger(b, "other");
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}"), other = built_register(b, "{\"name\":\"api\"}");
    const char *path = built_path(b, "/templates/%s/builds/%s", ids.template_id, ids.build_id);

    struct http_answer answer = CALL(s, "DELETE", path, NULL);
    check_error(s, &answer, 409, "does not run"); /* not started */
    built_start(b, ids, FROM_IMAGE);
    answer = built_as(b, stranger, "DELETE", path, NULL);
    check_error(s, &answer, 403, NULL);
    answer = CALL(s, "DELETE", built_path(b, "/templates/%s/builds/%s", other.template_id, ids.build_id), NULL);
    check_error(s, &answer, 404, "not found");
    answer = CALL(s, "DELETE", built_path(b, "/templates/%s/builds/abc", ids.template_id), NULL);
    check_error(s, &answer, 400, "Invalid build id");
    assert_string_equal(b->cancelled, "");
    answer = CALL(s, "DELETE", path, NULL);
    assert_int_equal(answer.status, 204);
    assert_string_equal(b->cancelled, ids.build_id);
    assert_string_equal(b->why, "build was cancelled");
}

static void an_administrator_cancels_a_teams_builds(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_register(b, "{\"name\":\"web\"}");
    const struct http_field admin = { STR("X-Admin-Token"), STR("admin-secret") };
    const char *path = built_path(b, "/admin/teams/%.*s/builds/cancel", STR_ARG(store_team_default(s->rig.disk.store)));

    built_start(b, ids, FROM_IMAGE);
    struct http_answer answer = served_call_bare(s, "POST", path, NULL, &admin, 1);
    assert_int_equal(answer.status, 200);
    assert_int_equal(got_int(s, "cancelledCount"), 1);
    assert_int_equal(got_int(s, "failedCount"), 0);
    assert_string_equal(b->cancelled, ids.build_id);
    assert_string_equal(b->why, "cancelled by admin");
    answer = CALL(s, "POST", path, NULL);
    check_error(s, &answer, 401, NULL);
    answer = served_call_bare(s, "POST", "/admin/teams/nope/builds/cancel", NULL, &admin, 1);
    check_error(s, &answer, 404, NULL);
}

static void building_by_docker_push_is_gone(void **state)
{
    struct built *b = *state;
    static const char *const paths[] = { "/templates", "/v2/templates", "/templates/abc",
                                         "/templates/abc/builds/00000000-0000-4000-8000-000000000000" };

    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct http_answer answer = served_call_bare(&b->served, "POST", paths[i], "{\"dockerfile\":\"x\"}", NULL, 0);
        check_error(&b->served, &answer, 410, "template create");
    }
}

#define BUILT(name) cmocka_unit_test_setup_teardown(name, built_set_up, built_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BUILT(a_build_is_registered_under_its_name),
        BUILT(bad_registrations_are_refused),
        BUILT(the_operators_limit_is_known_when_a_build_is_registered),
        BUILT(too_many_builds_are_refused_for_good),
        BUILT(an_archive_is_uploaded_by_its_link),
        BUILT(a_link_is_for_one_archive_and_one_time),
        BUILT(an_upload_needs_its_exact_length),
        BUILT(more_uploads_than_are_read_at_once_wait_for_their_turn),
        BUILT(links_are_for_a_teams_own_templates_and_whole_hashes),
        BUILT(a_link_leads_to_where_the_client_has_come_from),
        BUILT(a_recipe_reaches_the_builder),
        BUILT(the_user_agent_says_how_old_the_sdk_is),
        BUILT(sources_are_found_as_create_finds_them),
        BUILT(a_source_that_is_not_there_fails_the_build_and_not_the_call),
        BUILT(bad_starts_are_refused),
        BUILT(status_gives_lines_after_those_that_the_client_has),
        BUILT(bad_questions_about_a_build_are_refused),
        BUILT(a_team_cancels_its_own_build),
        BUILT(an_administrator_cancels_a_teams_builds),
        BUILT(building_by_docker_push_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
