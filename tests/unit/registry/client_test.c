/* The client against a table of answers: each request must be the next one in the table, to the byte. */
#include "registry/client.h"

#include <stdio.h>

#include "test.h"

#define BLOB_HEX "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define MANIFEST "https://r.example/v2/team/app/manifests/1"
#define BLOB "https://r.example/v2/team/app/blobs/sha256:" BLOB_HEX

/* A request that must come, and its answer. */
struct step {
    const char *request; /* "GET URL" */
    const char *headers; /* "Authorization: x\n…": all but Accept */
    const char *body;
    uint32_t status; /* 0: there is no answer (ERR_UNAVAILABLE) */
    const char *challenge, *location, *retry_after, *range, *answer;
    bool breaks; /* after the body */
};

static struct {
    const struct step *steps;
    size_t count, next;
    uint64_t waited_ms;
    unsigned waits;
    struct arena arena;
    char taken[64];
    size_t taken_len;
} rig;

static bool web_send(void *context, const struct web_want *want, struct arena *arena, struct web_answer *out,
                     struct err *err)
{
    struct buf headers = buf_make(arena, 1 << 16);

    (void)context;
    if (rig.next == rig.count)
        fail_msg("one request too many: %s %.*s", want->method, STR_ARG(want->url));
    const struct step *step = &rig.steps[rig.next++];
    CHECK_STR(arena_format(arena, "%s %.*s", want->method, STR_ARG(want->url)), str_from(step->request));
    for (uint32_t i = 0; i < want->header_count; i++)
        if (strcmp(want->headers[i].name, "Accept") != 0 && strcmp(want->headers[i].name, "X-Amz-Date") != 0)
            buf_format(&headers, "%s: %.*s\n", want->headers[i].name,
                       strncmp(want->headers[i].value.at, "AWS4", 4) == 0 ? 4 : (int)want->headers[i].value.len,
                       want->headers[i].value.at);
    CHECK_STR(buf_str(&headers), str_from(step->headers ? step->headers : ""));
    if (step->body)
        CHECK_STR(want->body, str_from(step->body));
    if (step->status == 0)
        return err_set(err, ERR_UNAVAILABLE, "no answer");
    *out = (struct web_answer){ .status = step->status,
                                .location = str_from(step->location),
                                .retry_after = str_from(step->retry_after),
                                .content_range = str_from(step->range) };
    if (step->challenge) {
        out->challenges[0] = str_from(step->challenge);
        out->challenge_count = 1;
    }
    struct str answer = str_from(step->answer ? step->answer : "");
    if (want->take && (step->status == 200 || step->status == 206)) {
        if (!want->take(want->take_context, out, answer, err))
            return false;
        return !step->breaks || err_set(err, ERR_UNAVAILABLE, "the connection broke");
    }
    out->body = answer;
    return true;
}

static bool web_wait(void *context, uint64_t ms, struct err *err)
{
    (void)context;
    (void)err;
    rig.waited_ms += ms;
    rig.waits++;
    return true;
}

static void web_said(void *context, struct str line)
{
    (void)context;
    (void)line;
}

static const struct web web = { .send = web_send, .wait = web_wait, .said = web_said };

static struct client make_client(const struct step *steps, size_t count, const struct pull_login *login)
{
    static struct endpoint endpoint;
    static struct reference reference;
    static const struct pull_login none = { .kind = PULL_LOGIN_NONE };
    struct err err;

    arena_done(&rig.arena);
    memset(&rig, 0, sizeof rig);
    arena_init(&rig.arena);
    rig.steps = steps;
    rig.count = count;
    endpoint = (struct endpoint){ .origin = "https://r.example" };
    assert_true(reference_parse(STR("r.example/team/app:1"), &reference, &err));
    return (struct client){ .web = &web,
                            .arena = &rig.arena,
                            .login = login ? login : &none,
                            .endpoint = &endpoint,
                            .reference = &reference,
                            .image = STR("r.example/team/app:1") };
}

#define CLIENT(steps, login) make_client(steps, COUNT_OF(steps), login)

static bool ask(struct client *client, struct web_answer *out, struct err *err)
{
    return client_ask(client, "GET", STR("manifests/1"), STR("x"), out, err);
}

static void check_all_sent(void)
{
    assert_int_equal(rig.next, rig.count);
}

static int drop_arena(void **state)
{
    (void)state;
    arena_done(&rig.arena);
    return 0;
}

/* ---- logging in ---- */

#define REALM "Bearer realm=\"https://auth.example/token\",service=\"a registry\""

static void an_anonymous_token_is_fetched_and_used(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = REALM },
        { "GET https://auth.example/token?service=a%20registry&scope=repository%3Ateam%2Fapp%3Apull", .status = 200,
          .answer = "{\"token\":\"t1\"}" },
        { "GET " MANIFEST, "Authorization: Bearer t1\n", .status = 200, .answer = "manifest" },
        { "GET " MANIFEST, "Authorization: Bearer t1\n", .status = 401,
          .challenge = REALM ",scope=\"repository:x:pull\"" }, /* it has expired */
        { "GET https://auth.example/token?service=a%20registry&scope=repository%3Ax%3Apull", .status = 200,
          .answer = "{\"access_token\":\"t2\"}" },
        { "GET " MANIFEST, "Authorization: Bearer t2\n", .status = 200, .answer = "manifest" },
    };
    struct client client = CLIENT(steps, NULL);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    CHECK_STR(answer.body, STR("manifest"));
    assert_true(ask(&client, &answer, &err));
    check_all_sent();
}

static void a_login_goes_to_the_token_server(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = REALM },
        { "GET https://auth.example/token?service=a%20registry&scope=repository%3Ateam%2Fapp%3Apull",
          "Authorization: Basic dTpw\n", .status = 200, .answer = "{\"token\":\"t\"}" },
        { "GET " MANIFEST, "Authorization: Bearer t\n", .status = 200 },
    };
    const struct pull_login login = { .kind = PULL_LOGIN_BASIC, .user = STR("u"), .password = STR("p") };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    check_all_sent();
}

static void an_identity_token_is_traded(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = REALM },
        { "POST https://auth.example/token", "Content-Type: application/x-www-form-urlencoded\n",
          .body =
              "service=a%20registry&scope=repository%3Ateam%2Fapp%3Apull&grant_type=refresh_token&client_id=cloister&"
              "refresh_token=id%26x",
          .status = 200, .answer = "{\"access_token\":\"t\"}" },
        { "GET " MANIFEST, "Authorization: Bearer t\n", .status = 200 },
    };
    const struct pull_login login = { .kind = PULL_LOGIN_BASIC, .user = STR("<token>"), .password = STR("id&x") };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    check_all_sent();
}

static void basic_goes_to_the_registry_itself(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = "Basic realm=\"x\"" },
        { "GET " MANIFEST, "Authorization: Basic dTpw\n", .status = 200 },
        { "GET " MANIFEST, "Authorization: Basic dTpw\n", .status = 401, .challenge = "Basic realm=\"x\"" },
        { "GET " MANIFEST, "Authorization: Basic dTpw\n", .status = 401, .challenge = "Basic realm=\"x\"" },
    };
    const struct pull_login login = { .kind = PULL_LOGIN_BASIC, .user = STR("u"), .password = STR("p") };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    assert_false(ask(&client, &answer, &err)); /* once is enough */
    assert_string_equal(err.message, "access denied to 'r.example/team/app:1': authentication required or insufficient "
                                     "permissions");
    check_all_sent();
}

static void without_a_login_basic_is_refused(void **state)
{
    static const struct step steps[] = { { "GET " MANIFEST, .status = 401, .challenge = "Basic realm=\"x\"" } };
    struct client client = CLIENT(steps, NULL);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_false(ask(&client, &answer, &err));
    assert_int_equal(err.kind, ERR_DENIED);
}

static void a_mirror_gets_no_login(void **state)
{
    static const struct step steps[] = { { "GET https://m.example/v2/team/app/manifests/1", .status = 401,
                                           .challenge = "Basic realm=\"x\"" } };
    const struct pull_login login = { .kind = PULL_LOGIN_BASIC, .user = STR("u"), .password = STR("p") };
    struct client client = CLIENT(steps, &login);
    const struct endpoint mirror = { .origin = "https://m.example", .is_mirror = true };
    struct web_answer answer;
    struct err err;

    (void)state;
    client.endpoint = &mirror;
    assert_false(ask(&client, &answer, &err));
    assert_int_equal(err.kind, ERR_DENIED);
}

static void aws_gives_the_password_for_ecr(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = "Basic realm=\"ecr\"" },
        { "POST https://api.ecr.eu-west-1.amazonaws.com/",
          "Content-Type: application/x-amz-json-1.1\n"
          "X-Amz-Target: AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken\nAuthorization: AWS4\n",
          .body = "{}", .status = 200, .answer = "{\"authorizationData\":[{\"authorizationToken\":\"QVdTOnB3\"}]}" },
        { "GET " MANIFEST, "Authorization: Basic QVdTOnB3\n", .status = 200 },
    };
    const struct pull_login login = {
        .kind = PULL_LOGIN_AWS, .key_id = STR("AKID"), .key = STR("k"), .region = STR("eu-west-1")
    };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    check_all_sent();
}

static void google_takes_the_account_as_password(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = "Bearer realm=\"https://gcr.io/v2/token\",service=\"gcr.io\"" },
        { "GET https://gcr.io/v2/token?service=gcr.io&scope=repository%3Ateam%2Fapp%3Apull",
          "Authorization: Basic X2pzb25fa2V5Ont9\n", .status = 200, .answer = "{\"token\":\"t\"}" },
        { "GET " MANIFEST, "Authorization: Bearer t\n", .status = 200 },
    };
    const struct pull_login login = { .kind = PULL_LOGIN_GCP, .account = STR("{}") };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    check_all_sent();
}

static void a_token_server_that_redirects_gets_no_second_request(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 401, .challenge = REALM },
        { "GET https://auth.example/token?service=a%20registry&scope=repository%3Ateam%2Fapp%3Apull",
          "Authorization: Basic dTpw\n", .status = 307, .location = "https://evil.example/" },
    };
    const struct pull_login login = { .kind = PULL_LOGIN_BASIC, .user = STR("u"), .password = STR("p") };
    struct client client = CLIENT(steps, &login);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_false(ask(&client, &answer, &err));
    check_all_sent();
}

/* ---- errors and patience ---- */

static void errors_have_the_texts_that_clients_know(void **state)
{
    static const struct {
        uint32_t status;
        const char *body, *message;
    } cases[] = {
        { 404, "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}",
          "image 'r.example/team/app:1' not found: the image or tag does not exist in the registry" },
        { 404, "{\"errors\":[{\"code\":\"NAME_UNKNOWN\"}]}",
          "repository 'r.example/team/app:1' not found: verify the image name is correct" },
        { 404, "garbage", "image 'r.example/team/app:1' not found: the image or tag does not exist in the registry" },
        { 403, "{\"errors\":[{\"code\":\"DENIED\"}]}",
          "access denied to 'r.example/team/app:1': you don't have permission to pull this image" },
        { 403, "", "access denied to 'r.example/team/app:1': authentication required or insufficient permissions" },
        { 418, "", "failed to pull image 'r.example/team/app:1': registry returned status code 418" },
    };
    struct web_answer answer;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct step steps[] = { { "GET " MANIFEST, .status = cases[i].status, .answer = cases[i].body } };
        struct client client = CLIENT(steps, NULL);
        assert_false(ask(&client, &answer, &err));
        assert_string_equal(err.message, cases[i].message);
    }
}

static void a_busy_registry_is_asked_again_later(void **state)
{
    static const struct step steps[] = {
        { "GET " MANIFEST, .status = 503 },
        { "GET " MANIFEST, .status = 429, .retry_after = "7" },
        { "GET " MANIFEST, .status = 0 },
        { "GET " MANIFEST, .status = 200, .answer = "fine" },
    };
    struct client client = CLIENT(steps, NULL);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_true(ask(&client, &answer, &err));
    assert_int_equal(rig.waits, 3);
    assert_int_equal(rig.waited_ms, 500 + 7000 + 2000);
    check_all_sent();
}

static void patience_ends(void **state)
{
    static const struct step busy[] = { { "GET " MANIFEST, .status = 500 },
                                        { "GET " MANIFEST, .status = 500 },
                                        { "GET " MANIFEST, .status = 500 },
                                        { "GET " MANIFEST, .status = 500 },
                                        { "GET " MANIFEST, .status = 500 } };
    static const struct step too_long[] = { { "GET " MANIFEST, .status = 429, .retry_after = "3600" } };
    struct client client = CLIENT(busy, NULL);
    struct web_answer answer;
    struct err err;

    (void)state;
    assert_false(ask(&client, &answer, &err));
    assert_string_equal(err.message, "failed to pull image 'r.example/team/app:1': registry returned status code 500");
    check_all_sent();
    client = CLIENT(too_long, NULL);
    assert_false(ask(&client, &answer, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_int_equal(rig.waits, 0);
}

/* ---- downloads ---- */

static bool sink_take(void *context, struct str piece, struct err *err)
{
    (void)context;
    (void)err;
    assert_true(rig.taken_len + piece.len <= sizeof rig.taken);
    memcpy(rig.taken + rig.taken_len, piece.at, piece.len);
    rig.taken_len += piece.len;
    return true;
}

static bool sink_restart(void *context, struct err *err)
{
    (void)context;
    (void)err;
    rig.taken_len = 0;
    return true;
}

static bool download(struct client *client, uint64_t have, uint64_t size, struct err *err)
{
    struct descriptor blob = { .hex = BLOB_HEX, .size = size };
    struct sink sink = { .have = have, .take = sink_take, .restart = sink_restart };

    memset(rig.taken, '.', (size_t)have);
    rig.taken_len = (size_t)have;
    return client_download(client, &blob, &sink, err);
}

static void a_redirect_leaves_the_authorization_behind(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, "Authorization: secret\n", .status = 302, .location = "/same/host" },
        { "GET https://r.example/same/host", "Authorization: secret\n", .status = 307,
          .location = "https://cdn.example/x?sig=1" },
        { "GET https://cdn.example/x?sig=1", .status = 307, .location = "https://r.example/back" },
        { "GET https://r.example/back", .status = 200, .answer = "abc" },
    };
    struct client client = CLIENT(steps, NULL);
    struct err err;

    (void)state;
    client.authorization = STR("secret");
    assert_true(download(&client, 0, 3, &err));
    check_all_sent();
}

static void another_port_is_another_host(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, "Authorization: secret\n", .status = 302, .location = "https://r.example:8443/x" },
        { "GET https://r.example:8443/x", .status = 200, .answer = "abc" },
    };
    struct client client = CLIENT(steps, NULL);
    struct err err;

    (void)state;
    client.authorization = STR("secret");
    assert_true(download(&client, 0, 3, &err));
    check_all_sent();
}

static void redirects_end(void **state)
{
    static const struct step circle[] = {
        { "GET " BLOB, .status = 302, .location = "/a" },
        { "GET https://r.example/a", .status = 302, .location = "/a" },
        { "GET https://r.example/a", .status = 302, .location = "/a" },
        { "GET https://r.example/a", .status = 302, .location = "/a" },
        { "GET https://r.example/a", .status = 302, .location = "/a" },
        { "GET https://r.example/a", .status = 302, .location = "/a" },
    };
    static const char *const nowhere[] = { "", "file:///etc/passwd", "gopher://x/", "https://", "/a\r\nb" };
    struct client client = CLIENT(circle, NULL);
    struct err err;

    (void)state;
    assert_false(download(&client, 0, 3, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    check_all_sent();
    for (size_t i = 0; i < COUNT_OF(nowhere); i++) {
        const struct step steps[] = { { "GET " BLOB, .status = 302, .location = nowhere[i] } };
        client = CLIENT(steps, NULL);
        assert_false(download(&client, 0, 3, &err));
        assert_int_equal(err.kind, ERR_INVALID);
    }
}

static void a_download_goes_on_where_it_broke(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, .status = 200, .answer = "abc", .breaks = true },
        { "GET " BLOB, "Range: bytes=3-\n", .status = 206, .range = "bytes 3-9/10", .answer = "def", .breaks = true },
        { "GET " BLOB, "Range: bytes=6-\n", .status = 206, .range = "bytes 6-9/10", .answer = "ghij" },
    };
    struct client client = CLIENT(steps, NULL);
    struct err err;

    (void)state;
    assert_true(download(&client, 0, 10, &err));
    CHECK_STR(str_of(rig.taken, rig.taken_len), STR("abcdefghij"));
    check_all_sent();
}

static void a_registry_that_cannot_go_on_begins_anew(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, "Range: bytes=4-\n", .status = 200, .answer = "abcde" },
    };
    static const struct step refuses[] = {
        { "GET " BLOB, "Range: bytes=4-\n", .status = 416 },
        { "GET " BLOB, .status = 200, .answer = "abcde" },
    };
    struct client client = CLIENT(steps, NULL);
    struct err err;

    (void)state;
    assert_true(download(&client, 4, 5, &err));
    CHECK_STR(str_of(rig.taken, rig.taken_len), STR("abcde"));
    client = CLIENT(refuses, NULL);
    assert_true(download(&client, 4, 5, &err));
    CHECK_STR(str_of(rig.taken, rig.taken_len), STR("abcde"));
    check_all_sent();
}

static void bytes_that_were_not_asked_for_are_refused(void **state)
{
    static const struct step other_part[] = { { "GET " BLOB, "Range: bytes=4-\n", .status = 206, .range = "bytes 0-4/5",
                                                .answer = "abcde" } };
    static const struct step too_many[] = { { "GET " BLOB, .status = 200, .answer = "abcdef" } };
    struct client client = CLIENT(other_part, NULL);
    struct err err;

    (void)state;
    assert_false(download(&client, 4, 5, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    client = CLIENT(too_many, NULL);
    assert_false(download(&client, 0, 5, &err));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void a_download_that_gets_nowhere_ends(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, .status = 0 }, { "GET " BLOB, .status = 0 }, { "GET " BLOB, .status = 0 },
        { "GET " BLOB, .status = 0 }, { "GET " BLOB, .status = 0 },
    };
    struct client client = CLIENT(steps, NULL);
    struct err err;

    (void)state;
    assert_false(download(&client, 0, 5, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    check_all_sent();
}

static void a_foreign_layer_is_fetched_from_its_own_place(void **state)
{
    static const struct step steps[] = {
        { "GET " BLOB, "Authorization: secret\n", .status = 404 },
        { "GET https://elsewhere.example/layer", .status = 200, .answer = "abc" },
    };
    struct client client = CLIENT(steps, NULL);
    struct descriptor blob = {
        .hex = BLOB_HEX, .size = 3, .is_foreign = true, .url = STR("https://elsewhere.example/layer")
    };
    struct sink sink = { .take = sink_take, .restart = sink_restart };
    struct err err;

    (void)state;
    client.authorization = STR("secret");
    assert_true(client_download(&client, &blob, &sink, &err));
    check_all_sent();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(an_anonymous_token_is_fetched_and_used),
        CASE(a_login_goes_to_the_token_server),
        CASE(an_identity_token_is_traded),
        CASE(basic_goes_to_the_registry_itself),
        CASE(without_a_login_basic_is_refused),
        CASE(a_mirror_gets_no_login),
        CASE(aws_gives_the_password_for_ecr),
        CASE(google_takes_the_account_as_password),
        CASE(a_token_server_that_redirects_gets_no_second_request),
        CASE(errors_have_the_texts_that_clients_know),
        CASE(a_busy_registry_is_asked_again_later),
        CASE(patience_ends),
        CASE(a_redirect_leaves_the_authorization_behind),
        CASE(another_port_is_another_host),
        CASE(redirects_end),
        CASE(a_download_goes_on_where_it_broke),
        CASE(a_registry_that_cannot_go_on_begins_anew),
        CASE(bytes_that_were_not_asked_for_are_refused),
        CASE(a_download_that_gets_nowhere_ends),
        CASE(a_foreign_layer_is_fetched_from_its_own_place),
    };

    return cmocka_run_group_tests(cases, NULL, drop_arena);
}
