#include "http/http.h"
#include "test.h"

static struct http_head head;
static struct arena arena;
static struct http_match match;
static struct err err;

static const struct http_route routes[] = {
    { HTTP_GET, "/", NULL, 0, "root" },
    { HTTP_GET, "/sandboxes", NULL, 0, "list" },
    { HTTP_POST, "/sandboxes", NULL, 0, "create" },
    { HTTP_GET, "/sandboxes/metrics", NULL, 0, "metrics of all" },
    { HTTP_GET, "/sandboxes/{id}", NULL, 0, "get" },
    { HTTP_DELETE, "/sandboxes/{id}", NULL, 0, "kill" },
    { HTTP_POST, "/templates/{id}/builds/{build}", NULL, 0, "build" },
    { HTTP_POST, "/process.Process/Start", NULL, 0, "start" },
};

static bool route(enum http_method method, const char *target)
{
    head = (struct http_head){ .method = method, .query = str_from(target) };
    (void)str_cut(&head.query, '?', &head.path);
    return http_route(routes, COUNT_OF(routes), &head, &arena, &match, &err);
}

static const char *found(enum http_method method, const char *target)
{
    assert_true(route(method, target));
    return match.route ? match.route->help : match.path_known ? "405" : "404";
}

static void rows_are_found_by_path_and_method(void **state)
{
    (void)state;
    assert_string_equal(found(HTTP_GET, "/"), "root");
    assert_string_equal(found(HTTP_GET, "/sandboxes"), "list");
    assert_string_equal(found(HTTP_POST, "/sandboxes?x=/y"), "create");
    assert_string_equal(found(HTTP_HEAD, "/sandboxes"), "list");
    assert_string_equal(found(HTTP_GET, "/sandboxes/metrics"), "metrics of all");
    assert_string_equal(found(HTTP_POST, "//process.Process/Start"), "start");
    assert_string_equal(found(HTTP_POST, "///sandboxes"), "create");
}

static void what_is_not_there_is_told_apart(void **state)
{
    (void)state;
    assert_string_equal(found(HTTP_GET, "/sandboxe"), "404");
    assert_string_equal(found(HTTP_GET, "/sandboxes/"), "404");
    assert_string_equal(found(HTTP_GET, "/sandboxes//"), "404");
    assert_string_equal(found(HTTP_GET, "/sandboxes/a/b"), "404");
    assert_string_equal(found(HTTP_POST, "/templates//builds/b"), "404");
    assert_string_equal(found(HTTP_GET, "/sandboxes%2Fa"), "404");
    assert_string_equal(found(HTTP_OPTIONS, "*"), "404");
    assert_string_equal(found(HTTP_PUT, "/sandboxes"), "405");
    assert_string_equal(match.allow, "GET, POST");
    assert_string_equal(found(HTTP_OTHER, "/sandboxes/a"), "405");
    assert_string_equal(match.allow, "GET, DELETE");
}

static void a_segment_is_decoded_once_and_stays_one(void **state)
{
    (void)state;
    assert_string_equal(found(HTTP_GET, "/sandboxes/team%2Fname%3Atag%2520+x"), "get");
    assert_int_equal(match.param_count, 1);
    CHECK_STR(match.params[0], STR("team/name:tag%20+x"));
    assert_string_equal(found(HTTP_POST, "/templates/a/builds/b"), "build");
    CHECK_STR(match.params[0], STR("a"));
    CHECK_STR(match.params[1], STR("b"));
}

static void malformed_paths_are_refused(void **state)
{
    (void)state;
    assert_false(route(HTTP_GET, "/sandboxes/%"));
    assert_false(route(HTTP_GET, "/sandboxes/%zz"));
    assert_false(route(HTTP_GET, "/sandboxes/a%00b"));
    assert_false(route(HTTP_GET, "/nowhere/%4"));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void query_values_are_decoded(void **state)
{
    struct str value;

    (void)state;
    assert_true(route(HTTP_GET, "/?path=%2Fa+b&empty=&flag&bad=%4&state=running,paused&path=2"));
    assert_true(http_query(&head, &arena, STR("path"), &value));
    CHECK_STR(value, STR("/a b"));
    assert_true(http_query(&head, &arena, STR("empty"), &value));
    CHECK_STR(value, STR(""));
    assert_true(http_query(&head, &arena, STR("flag"), &value));
    assert_true(http_query(&head, &arena, STR("state"), &value));
    CHECK_STR(value, STR("running,paused"));
    assert_false(http_query(&head, &arena, STR("bad"), &value));
    assert_false(http_query(&head, &arena, STR("absent"), &value));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(rows_are_found_by_path_and_method),
        CASE(what_is_not_there_is_told_apart),
        CASE(a_segment_is_decoded_once_and_stays_one),
        CASE(malformed_paths_are_refused),
        CASE(query_values_are_decoded),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    arena_done(&arena);
    return failed;
}
