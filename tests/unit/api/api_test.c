#include "api/api.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/routes.h"
#include "base/clock.h"
#include "base/fd.h"
#include "served.h"

/* The path with the id in place of its "%s". */
static char *target(struct served *s, const char *path, const char *id)
{
    const char *hole = strstr(path, "%s");

    assert_non_null(hole);
    return arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%.*s%s%s", (int)(hole - path), path, id, hole + 2));
}

static void check_nothing_exists(struct served *s)
{
    rig_wait_ended(&s->rig);
    assert_int_equal(rig_rows(&s->rig), 0);
    assert_int_equal(rig_held_count(&s->rig), 0);
}

/* ---- create, get, list, kill: the shapes ---- */

static void create_answers_what_clients_require_and_no_null(void **state)
{
    struct served *s = *state;
    struct http_answer answer =
        CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"metadata\":{},\"envVars\":{}}");

    assert_int_equal(answer.status, 201);
    assert_string_equal(got_text(s, "templateID"), "tbase");
    assert_string_equal(got_text(s, "clientID"), "6532622b");
    assert_string_equal(got_text(s, "alias"), "base");
    assert_string_equal(got_text(s, "envdVersion"), GUESTD_API_VERSION);
    assert_int_equal(strlen(got_text(s, "envdAccessToken")), 64);
    assert_int_equal(strlen(got_text(s, "sandboxID")), 21);
    assert_null(json_object_get(s->last, "domain"));
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), ":null"));
}

static void a_configured_domain_is_told(void **state)
{
    struct served *s = *state;

    s->domain = "sbx.example.com:8443";
    served_start(s);
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    assert_string_equal(got_text(s, "domain"), "sbx.example.com:8443");
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_string_equal(got_text(s, "domain"), "sbx.example.com:8443");
}

static void a_private_sandbox_comes_with_its_traffic_token(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":false,"
                                      "\"maskRequestHost\":\"a.example.com:${PORT}\"}}");
    char *token = arena_text(&s->rig.arena, str_from(got_text(s, "trafficAccessToken")));

    assert_int_equal(strlen(token), 64);
    assert_int_equal(CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), "{}").status, 200);
    assert_string_equal(got_text(s, "trafficAccessToken"), token);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    const json_t *network = json_object_get(s->last, "network");
    assert_true(json_is_false(json_object_get(network, "allowPublicTraffic")));
    assert_string_equal(json_string_value(json_object_get(network, "maskRequestHost")), "a.example.com:${PORT}");
    served_create(s, "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":true}}");
    assert_null(json_object_get(s->last, "trafficAccessToken"));
}

static void get_describes_a_sandbox_in_full(void **state)
{
    struct served *s = *state;
    const char *id =
        served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"job\":\"42\"},\"allow_internet_access\":false}");
    char *token = arena_text(&s->rig.arena, str_from(got_text(s, "envdAccessToken")));
    struct http_answer answer = CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);

    assert_int_equal(answer.status, 200);
    assert_string_equal(got_text(s, "sandboxID"), id);
    assert_string_equal(got_text(s, "templateID"), "tbase");
    assert_string_equal(got_text(s, "clientID"), "6532622b");
    assert_string_equal(got_text(s, "envdVersion"), GUESTD_API_VERSION);
    assert_string_equal(got_text(s, "envdAccessToken"), token);
    assert_string_equal(got_text(s, "state"), "running");
    assert_int_equal(got_int(s, "cpuCount"), 2);
    assert_int_equal(got_int(s, "memoryMB"), 1024);
    assert_int_equal(got_int(s, "diskSizeMB"), 5120);
    assert_string_equal(json_string_value(json_object_get(json_object_get(s->last, "metadata"), "job")), "42");
    assert_true(json_is_false(json_object_get(s->last, "allowInternetAccess")));
    const json_t *lifecycle = json_object_get(s->last, "lifecycle");
    assert_true(json_is_false(json_object_get(lifecycle, "autoResume")));
    assert_string_equal(json_string_value(json_object_get(lifecycle, "onTimeout")), "kill");
    assert_true(json_is_array(json_object_get(s->last, "volumeMounts")));
    static const char *const absent[] = { "network", "pauseMode", "envdUnresponsiveAtPause", "domain" };
    for (size_t i = 0; i < COUNT_OF(absent); i++)
        assert_null(json_object_get(s->last, absent[i]));
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), ":null"));
    assert_int_equal(CALL(s, "HEAD", target(s, "/sandboxes/%s", id), NULL).body.len, 0);
    /* As old SDKs spell the id. */
    assert_int_equal(CALL(s, "GET", target(s, "/sandboxes/%s-6532622b", id), NULL).status, 200);
}

static void both_versions_of_create_and_connect_work_with_their_own_defaults(void **state)
{
    struct served *s = *state;
    static const struct {
        const char *route;
        int64_t seconds;
    } creates[] = { { "/sandboxes", 15 }, { "/v2/sandboxes", 300 } };

    for (size_t i = 0; i < COUNT_OF(creates); i++) {
        assert_int_equal(CALL(s, "POST", creates[i].route, "{\"templateID\":\"base\",\"secure\":true}").status, 201);
        char *id = arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
        CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
        assert_int_equal(got_time(s, "endAt") - got_time(s, "startedAt"), creates[i].seconds * 1000000);
        assert_int_equal(CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), "{}").status, 200);
        assert_string_equal(got_text(s, "sandboxID"), id);
        assert_int_equal(strlen(got_text(s, "envdAccessToken")), 64);
        CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
        assert_true(got_time(s, "endAt") - got_time(s, "startedAt") >= INT64_C(300000000));
        assert_int_equal(CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), NULL).status, 200);
        assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/connect", id), "{\"timeout\":300}").status, 200);
        struct http_answer answer = CALL(s, "POST", target(s, "/sandboxes/%s/connect", id), "{}");
        check_error(s, &answer, 400, "'timeout' is required");
    }
}

static bool code_is_open(struct served *s, const char *route, const char *body)
{
    assert_int_equal(CALL(s, "POST", route, body).status, 201);
    assert_int_equal(strlen(got_text(s, "envdAccessToken")), 64); /* guestd's own port wants it in any case */
    return rig_setup_of(&s->rig, str_from(got_text(s, "sandboxID"))).open_code;
}

/* Releases 1.x of the code interpreter create like this and send no token with run_code. */
static void code_is_open_where_version_one_asks_for_no_security(void **state)
{
    struct served *s = *state;
    const char *plain = "{\"templateID\":\"base\"}", *insecure = "{\"templateID\":\"base\",\"secure\":false}",
               *secure = "{\"templateID\":\"base\",\"secure\":true}";

    assert_true(code_is_open(s, "/sandboxes", plain));
    assert_true(code_is_open(s, "/sandboxes", insecure));
    assert_true(code_is_open(s, "/sandboxes", "{\"templateID\":\"base\",\"secure\":null}"));
    assert_false(code_is_open(s, "/sandboxes", secure));
    assert_false(code_is_open(s, "/v2/sandboxes", plain));
    assert_false(code_is_open(s, "/v2/sandboxes", insecure));
    s->actions.code_always_has_token = true;
    assert_false(code_is_open(s, "/sandboxes", plain));
    assert_false(code_is_open(s, "/sandboxes", insecure));
}

static void connect_never_shortens_and_timeout_does_both(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\",\"timeout\":1000}");

    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    char *end = arena_text(&s->rig.arena, str_from(got_text(s, "endAt")));
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/connect", id), "{\"timeout\":10}").status, 200);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_string_equal(got_text(s, "endAt"), end); /* not moved by a microsecond */
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/timeout", id), "{\"timeout\":100}").status, 204);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_true(strcmp(got_text(s, "endAt"), end) < 0);
    assert_int_equal(CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), "{\"timeout\":2000}").status, 200);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_true(strcmp(got_text(s, "endAt"), end) > 0);
    /* Past the longest life: connect refuses, timeout clamps. */
    struct http_answer answer = CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), "{\"timeout\":1000000}");
    check_error(s, &answer, 400, "timeout");
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/timeout", id), "{\"timeout\":1000000}").status, 204);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_int_equal(got_time(s, "endAt") - got_time(s, "startedAt"), INT64_C(1000000) * LIMIT_TIMEOUT_S);
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/timeout", id), "{\"timeout\":100}").status, 204);
    assert_int_equal(
        CALL(s, "POST", target(s, "/sandboxes/%s/timeout", id), "{\"timeout\":9223372036854775807}").status, 204);
    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    assert_int_equal(got_time(s, "endAt") - got_time(s, "startedAt"), INT64_C(1000000) * LIMIT_TIMEOUT_S);
    answer = CALL(s, "POST", target(s, "/v2/sandboxes/%s/connect", id), "{\"timeout\":9223372036854775807}");
    check_error(s, &answer, 400, "86400 seconds");
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/refreshes", id), "{\"duration\":3600}").status, 204);
    assert_int_equal(CALL(s, "POST", target(s, "/sandboxes/%s/refreshes", id), NULL).status, 204);
}

static void a_timeout_of_zero_kills_it_before_the_answer(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    struct http_answer answer = CALL(s, "POST", target(s, "/sandboxes/%s/timeout", id), "{\"timeout\":0}");

    assert_int_equal(answer.status, 204);
    assert_int_equal(answer.body.len, 0);
    answer = CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    check_error(s, &answer, 404, id);
    check_nothing_exists(s);
}

static void a_second_kill_finds_nothing_and_so_does_every_other_call(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    struct http_answer answer = CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL);

    assert_int_equal(answer.status, 204);
    assert_int_equal(answer.body.len, 0);
    assert_int_equal(CALL(s, "GET", "/v2/sandboxes?state=running", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
    check_nothing_exists(s);
    static const struct {
        const char *method, *path, *body;
    } calls[] = {
        { "DELETE", "/sandboxes/%s", NULL },
        { "GET", "/sandboxes/%s", NULL },
        { "POST", "/sandboxes/%s/timeout", "{\"timeout\":5}" },
        { "POST", "/sandboxes/%s/refreshes", "{}" },
        { "POST", "/sandboxes/%s/connect", "{\"timeout\":5}" },
        { "POST", "/v2/sandboxes/%s/connect", "{}" },
    };
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        answer = CALL(s, calls[i].method, target(s, calls[i].path, id), calls[i].body);
        check_error(s, &answer, 404, "does not exist");
        answer = CALL(s, calls[i].method, target(s, calls[i].path, "nonexistingsandbox"), calls[i].body);
        check_error(s, &answer, 404, "does not exist");
    }
}

static void a_deadline_makes_it_a_404(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\",\"timeout\":60}");
    struct http_answer answer;

    rig_turn(&s->rig, 60 * 1000);
    do
        answer = CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    while (answer.status == 200);
    check_error(s, &answer, 404, id);
}

/* ---- lists ---- */

static void a_list_has_a_page_its_total_and_no_token_at_the_end(void **state)
{
    struct served *s = *state;
    char *ids[3];

    for (size_t i = 0; i < 3; i++)
        ids[i] = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));
    struct http_answer answer = CALL(s, "GET", "/v2/sandboxes?state=running%2Cpaused", NULL);
    assert_int_equal(answer.status, 200);
    assert_int_equal(json_array_size(s->last), 3);
    assert_string_equal(answer_header(s, &answer, "X-Total-Running"), "3");
    assert_null(answer_header(s, &answer, "X-Next-Token"));
    const json_t *row = json_array_get(s->last, 0);
    static const char *const required[] = { "sandboxID", "templateID",  "clientID", "startedAt",
                                            "endAt",     "cpuCount",    "memoryMB", "diskSizeMB",
                                            "state",     "envdVersion", "metadata", "volumeMounts" };
    for (size_t i = 0; i < COUNT_OF(required); i++)
        assert_non_null(json_object_get(row, required[i]));
    assert_null(json_object_get(row, "envdAccessToken")); /* a list hands out no keys */
    assert_string_equal(json_string_value(json_object_get(row, "sandboxID")), ids[2]);
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), ":null"));

    for (int ascending = 0; ascending < 2; ascending++) {
        const char *token = NULL;
        for (int page = 0; page < 3; page++) {
            char where[512];
            snprintf(where, sizeof where, "/v2/sandboxes?limit=1%s%s%s", ascending ? "&order=asc" : "",
                     token ? "&nextToken=" : "", token ? token : "");
            answer = CALL(s, "GET", where, NULL);
            assert_int_equal(answer.status, 200);
            assert_int_equal(json_array_size(s->last), 1);
            assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "sandboxID")),
                                ids[ascending ? page : 2 - page]);
            assert_string_equal(answer_header(s, &answer, "X-Total-Running"), "3");
            token = answer_header(s, &answer, "X-Next-Token");
            assert_int_equal(token == NULL, page == 2);
            if (token) { /* not under the other order */
                snprintf(where, sizeof where, "/v2/sandboxes?limit=1&order=%s&nextToken=%s", ascending ? "desc" : "asc",
                         token);
                struct http_answer wrong = CALL(s, "GET", where, NULL);
                check_error(s, &wrong, 400, "invalid next token");
            }
        }
    }
    answer = CALL(s, "GET", "/v2/sandboxes?state=paused", NULL);
    assert_int_equal(json_array_size(s->last), 0);
    assert_null(answer_header(s, &answer, "X-Total-Running"));
    CALL(s, "GET", "/sandboxes", NULL);
    assert_int_equal(json_array_size(s->last), 3);
}

static size_t listed(struct served *s, const char *query)
{
    char where[1024];

    snprintf(where, sizeof where, "/v2/sandboxes?%s", query);
    struct http_answer answer = CALL(s, "GET", where, NULL);
    if (answer.status != 200)
        fail_msg("%s: %u %.*s", query, answer.status, STR_ARG(answer.body));
    return json_array_size(s->last);
}

static void metadata_filters_arrive_encoded_three_times(void **state)
{
    struct served *s = *state;

    served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"k 1\":\"v&=/é+\",\"plain\":\"x\"}}");
    served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"plain\":\"x\"}}");
    served_create(s, "{\"templateID\":\"base\"}");
    /* As the JS SDK sends it, and as the Python SDK does. */
    assert_int_equal(listed(s, "metadata=k%2525201%3Dv%252526%25253D%25252F%2525C3%2525A9%25252B"), 1);
    assert_int_equal(listed(s, "metadata=k%2525201%3Dv%252526%25253D%252F%2525C3%2525A9%25252B"), 1);
    assert_int_equal(listed(s, "metadata=plain%3Dx"), 2);
    assert_int_equal(listed(s, "metadata=plain=x"), 2);
    assert_int_equal(listed(s, "metadata=plain%3Dx%26k%2525201%3Dv%252526%25253D%25252F%2525C3%2525A9%25252B"), 1);
    assert_int_equal(listed(s, "metadata=plain%3Dy"), 0);
    assert_int_equal(listed(s, "metadata="), 3);
    CALL(s, "GET", "/sandboxes?metadata=plain%3Dx", NULL);
    assert_int_equal(json_array_size(s->last), 2);
}

static void lists_filter_by_time_and_template(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    char query[256], later[CLOCK_TEXT_BYTES];

    CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    int64_t started_us = got_time(s, "startedAt");
    snprintf(query, sizeof query, "startedAfter=%s", got_text(s, "startedAt"));
    assert_int_equal(listed(s, query), 1); /* inclusive */
    snprintf(query, sizeof query, "startedAfter=%s", clock_text(started_us + 1, later));
    assert_int_equal(listed(s, query), 0);
    assert_int_equal(listed(s, "startedAfter=2026-01-05T00%3A00%3A00%2B00%3A00"), 1);
    assert_int_equal(listed(s, "template=base"), 1);
    assert_int_equal(listed(s, "template=tbase"), 1);
    assert_int_equal(listed(s, "template=unknown"), 0);
}

/* ---- templates, keys, teams ---- */

static void templates_are_listed_and_their_names_checked(void **state)
{
    struct served *s = *state;

    assert_int_equal(CALL(s, "GET", "/templates", NULL).status, 200);
    const json_t *row = json_array_get(s->last, 0);
    assert_string_equal(json_string_value(json_object_get(row, "templateID")), "tbase");
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "aliases"), 0)), "base");
    assert_true(json_is_true(json_object_get(row, "public")));
    static const char *const required[] = { "cpuCount",  "memoryMB",  "diskSizeMB",
                                            "createdAt", "createdBy", "envdVersion" };
    for (size_t i = 0; i < COUNT_OF(required); i++)
        assert_non_null(json_object_get(row, required[i]));
    struct http_answer answer = CALL(s, "GET", "/templates?teamID=other", NULL);
    check_error(s, &answer, 400, "teamID");

    assert_int_equal(CALL(s, "GET", "/templates/aliases/base", NULL).status, 200);
    assert_string_equal(got_text(s, "templateID"), "tbase");
    assert_int_equal(CALL(s, "GET", "/templates/aliases/base%3Adefault", NULL).status, 200);
    answer = CALL(s, "GET", "/templates/aliases/nope", NULL);
    check_error(s, &answer, 404, "nope");
    answer = CALL(s, "GET", "/templates/aliases/team%2Fbase", NULL); /* one segment, with a slash in the name */
    check_error(s, &answer, 400, "'team' is not the namespace");
}

#define ADMIN                                     \
    {                                             \
        STR("X-Admin-Token"), STR("admin-secret") \
    }

static void keys_are_made_used_renamed_and_revoked(void **state)
{
    struct served *s = *state;
    struct http_answer answer = CALL_WITH(s, "POST", "/api-keys", "{\"name\":\"second\"}", ADMIN);

    assert_int_equal(answer.status, 201);
    char *id = arena_text(&s->rig.arena, str_from(got_text(s, "id")));
    char *key = arena_text(&s->rig.arena, str_from(got_text(s, "key")));
    const json_t *mask = json_object_get(s->last, "mask");
    assert_string_equal(json_string_value(json_object_get(mask, "prefix")), "e2b_");
    assert_int_equal(json_integer_value(json_object_get(mask, "valueLength")), 40);
    assert_memory_equal(json_string_value(json_object_get(mask, "maskedValuePrefix")), key + 4, 2);
    assert_memory_equal(json_string_value(json_object_get(mask, "maskedValueSuffix")), key + 40, 4);
    struct http_field as_second[] = { { STR("x-api-key"), str_from(key) } };
    assert_int_equal(served_call_bare(s, "GET", "/sandboxes", NULL, as_second, 1).status, 200);

    assert_int_equal(CALL_WITH(s, "GET", "/api-keys", NULL, ADMIN).status, 200);
    assert_int_equal(json_array_size(s->last), 2);
    assert_null(json_object_get(json_array_get(s->last, 1), "key"));
    assert_true(json_is_string(json_object_get(json_array_get(s->last, 1), "lastUsed")));
    assert_int_equal(CALL_WITH(s, "PATCH", target(s, "/api-keys/%s", id), "{\"name\":\"renamed\"}", ADMIN).status, 200);
    assert_string_equal(got_text(s, "name"), "renamed");
    answer = CALL_WITH(s, "PATCH", target(s, "/api-keys/%s", id), "{\"name\":\"\"}", ADMIN);
    check_error(s, &answer, 400, "name");
    answer = CALL_WITH(s, "PATCH", "/api-keys/none", "{\"name\":\"x\"}", ADMIN);
    check_error(s, &answer, 404, NULL);

    assert_int_equal(CALL_WITH(s, "DELETE", target(s, "/api-keys/%s", id), NULL, ADMIN).status, 204);
    answer = CALL_WITH(s, "DELETE", target(s, "/api-keys/%s", id), NULL, ADMIN);
    check_error(s, &answer, 404, NULL);
    answer = served_call_bare(s, "GET", "/sandboxes", NULL, as_second, 1); /* though it was known a moment ago */
    check_error(s, &answer, 401, "E2B_API_KEY");
    assert_int_equal(CALL_WITH(s, "GET", "/teams", NULL, ADMIN).status, 200);
    assert_true(json_is_true(json_object_get(json_array_get(s->last, 0), "isDefault")));
}

static void without_the_right_key_every_route_is_a_401(void **state)
{
    struct served *s = *state;
    size_t count, without_key = 0;
    const struct http_route *routes = api_routes(&count);
    struct http_field wrong[] = { { STR("X-API-Key"), STR("e2b_0000000000000000000000000000000000000000") },
                                  { STR("X-Admin-Token"), STR("guess") } };

    for (size_t i = 0; i < count; i++) {
        if (!(routes[i].flags & (NEEDS_KEY | NEEDS_ADMIN))) {
            without_key++;
            continue;
        }
        const char *method = http_method_name[routes[i].method];
        struct http_answer answer = served_call_bare(s, method, routes[i].pattern, "{}", NULL, 0);
        check_error(s, &answer, 401, "cloister");
        answer = served_call_bare(s, method, routes[i].pattern, "{}", wrong, 2);
        check_error(s, &answer, 401, "cloister");
    }
    assert_int_equal(without_key, 6); /* health, uploads by a signed link, and four that are gone */
    struct http_answer answer = CALL(s, "GET", "/api-keys", NULL); /* an API key is no admin token */
    check_error(s, &answer, 401, "X-Admin-Token");
    /* A request with a wrong token is not told to send one. */
    answer = served_call_bare(s, "GET", "/api-keys", NULL, wrong, 2);
    check_error(s, &answer, 401, "the file admin-token in this server's own data directory");
    struct http_field malformed[] = { { STR("X-API-Key"), STR("sk-123") } };
    answer = served_call_bare(s, "GET", "/sandboxes", NULL, malformed, 1);
    check_error(s, &answer, 401, "40 hex digits");
    check_nothing_exists(s);
}

static void the_admin_token_stands_in_for_a_key(void **state)
{
    struct served *s = *state;
    struct http_field admin[] = { ADMIN, { STR("X-Team-ID"), STR("no-such-team") } };

    assert_int_equal(served_call_bare(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", admin, 1).status, 201);
    assert_int_equal(served_call_bare(s, "GET", "/sandboxes", NULL, admin, 1).status, 200);
    assert_int_equal(json_array_size(s->last), 1);
    struct http_answer answer = served_call_bare(s, "GET", "/sandboxes", NULL, admin, 2);
    check_error(s, &answer, 401, "no-such-team");
}

/* ---- routes ---- */

static void a_key_that_asks_too_often_is_told_when_to_come_back(void **state)
{
    struct served *s = *state;
    struct http_answer answer = { 0 };

    s->requests_per_s = 2;
    rig_stand();
    served_start(s);
    for (int i = 0; i < 100 && answer.status != 429; i++)
        answer = CALL(s, "GET", "/sandboxes", NULL);
    check_error(s, &answer, 429, "too many requests with this API key");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "true");
    assert_string_equal(answer_header(s, &answer, "Retry-After"), "1");
    assert_string_equal(answer_header(s, &answer, "RateLimit-Limit"), "4");
    assert_string_equal(answer_header(s, &answer, "RateLimit-Remaining"), "0");
    assert_string_equal(answer_header(s, &answer, "RateLimit-Reset"), "2");
    /* Neither administrators nor those who have no key yet are counted. */
    for (int i = 0; i < 10; i++) {
        const struct http_field admin[] = { ADMIN };
        assert_int_equal(served_call_bare(s, "GET", "/sandboxes", NULL, admin, 1).status, 200);
        assert_int_equal(served_call_bare(s, "GET", "/health", NULL, NULL, 0).status, 204);
    }
    rig_turn(&s->rig, 1000);
    assert_int_equal(CALL(s, "GET", "/sandboxes", NULL).status, 200);
}

static void health_needs_no_key_and_has_no_body(void **state)
{
    struct served *s = *state;
    struct http_answer answer = served_call_bare(s, "GET", "/health", NULL, NULL, 0);

    assert_int_equal(answer.status, 204);
    assert_int_equal(answer.body.len, 0);
}

static void upstream_routes_that_are_missing_answer_501(void **state)
{
    struct served *s = *state;
    size_t count, found = 0;
    const struct http_route *routes = api_routes(&count);

    for (size_t i = 0; i < count; i++) {
        if (!(routes[i].flags & NOT_YET))
            continue;
        struct http_answer answer = CALL_WITH(s, http_method_name[routes[i].method], routes[i].pattern, NULL, ADMIN);
        check_error(s, &answer, 501, routes[i].help);
        assert_string_equal(got_text(s, "error_code"), "not_implemented");
        found++;
    }
    assert_true(found > 15);
}

static void an_unknown_route_is_named_and_a_wrong_method_shows_the_right_ones(void **state)
{
    struct served *s = *state;
    struct http_answer answer = CALL(s, "GET", "/nothing/here?x=1", NULL);

    check_error(s, &answer, 404, "no route GET /nothing/here");
    answer = CALL(s, "PUT", "/v2/sandboxes", "{}");
    check_error(s, &answer, 405, "PUT");
    assert_string_equal(answer_header(s, &answer, "Allow"), "POST, GET");
    answer = CALL(s, "GET", "/sandboxes/", NULL);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "GET", "/sandboxes/a%2Fb", NULL); /* one segment, not two */
    check_error(s, &answer, 400, "Invalid sandbox ID");
    answer = CALL(s, "GET", "/sandboxes/%zz", NULL);
    check_error(s, &answer, 400, NULL);
    answer = CALL(s, "GET", "/sandboxes/a%00b", NULL);
    check_error(s, &answer, 400, NULL);
    assert_int_equal(CALL(s, "GET", "//sandboxes", NULL).status, 200);
}

static void a_preflight_is_answered_before_anything_is_checked(void **state)
{
    struct served *s = *state;
    struct http_field fields[] = { { STR("Origin"), STR("https://app.example") },
                                   { STR("Access-Control-Request-Method"), STR("POST") } };
    struct http_answer answer = served_call_bare(s, "OPTIONS", "/v2/sandboxes", NULL, fields, 2);

    assert_int_equal(answer.status, 204);
    assert_non_null(strstr(answer_header(s, &answer, "Access-Control-Allow-Headers"), "X-API-Key"));
    assert_non_null(strstr(answer_header(s, &answer, "Access-Control-Allow-Headers"), "Idempotency-Key"));
    assert_non_null(strstr(answer_header(s, &answer, "Access-Control-Allow-Methods"), "DELETE"));
    assert_string_equal(answer_header(s, &answer, "Access-Control-Max-Age"), "43200");
    answer = CALL(s, "GET", "/v2/sandboxes", NULL);
    assert_non_null(strstr(answer_header(s, &answer, "Access-Control-Expose-Headers"), "X-Next-Token"));
    /* Mail's routes too, but not the one that gives a credential to anybody. */
    assert_int_equal(served_call_bare(s, "OPTIONS", "/v1/inboxes", NULL, fields, 2).status, 204);
    MUST(http_fetch(&s->rig.arena, str_from(s->address), STR("OPTIONS"), STR("/v1/signup"), fields, 2,
                    (struct str){ 0 }, 60000, &answer, &err));
    assert_int_equal(answer.status, 501); /* this server has no mail */
    assert_null(http_header(&answer.head, STR("Access-Control-Allow-Origin")));
}

/* ---- bad input ---- */

static void a_bad_create_is_refused_and_makes_nothing(void **state)
{
    struct served *s = *state;
    static const struct {
        const char *body;
        unsigned status;
        const char *in_message;
    } bad[] = {
        { NULL, 400, "validation error" },
        { "", 400, "validation error" },
        { "{", 400, "validation error: invalid JSON" },
        { "[]", 400, "must be an object" },
        { "\"base\"", 400, "must be an object" },
        { "{} {}", 400, "invalid JSON" },
        { "{\"templateID\":\"ba\\u0000se\"}", 400, "invalid JSON" },
        { "{\"templateID\":\"\xff\xfe\"}", 400, "invalid JSON" },
        { "{}", 400, "'templateID' is required" },
        { "{\"templateID\":null}", 400, "'templateID' is required" },
        { "{\"templateID\":5}", 400, "'templateID' must be a string" },
        { "{\"templateID\":\"\"}", 400, "template reference" },
        { "{\"templateID\":\"../../etc\"}", 400, "template reference" },
        { "{\"templateID\":\"a b\"}", 400, "template reference" },
        { "{\"templateID\":\"nope\"}", 404, "template 'nope' not found; there is base" },
        { "{\"templateID\":\"base:v9\"}", 404, "base:v9" },
        { "{\"templateID\":\"base\",\"timeout\":0}", 400, "'timeout' must be at least 1" },
        { "{\"templateID\":\"base\",\"timeout\":-5}", 400, "'timeout' must be at least 1" },
        { "{\"templateID\":\"base\",\"timeout\":86401}", 400, "86400 seconds" },
        { "{\"templateID\":\"base\",\"timeout\":99999999999}", 400, "86400 seconds" },
        { "{\"templateID\":\"base\",\"timeout\":\"5\"}", 400, "'timeout' must be a number" },
        { "{\"templateID\":\"base\",\"timeout\":1.5}", 400, "'timeout' must be a whole number" },
        { "{\"templateID\":\"base\",\"timeout\":[]}", 400, "'timeout'" },
        { "{\"templateID\":\"base\",\"secure\":\"yes\"}", 400, "'secure'" },
        { "{\"templateID\":\"base\",\"allow_internet_access\":1}", 400, "'allow_internet_access'" },
        { "{\"templateID\":\"base\",\"metadata\":[]}", 400, "'metadata' must be an object" },
        { "{\"templateID\":\"base\",\"metadata\":{\"a\":1}}", 400, "'metadata.a' must be a string" },
        { "{\"templateID\":\"base\",\"metadata\":{\"a\":null}}", 400, "'metadata.a' must be a string" },
        { "{\"templateID\":\"base\",\"envVars\":{\"a\":{}}}", 400, "'envVars.a' must be a string" },
        { "{\"templateID\":\"base\",\"envVars\":{\"\":\"x\"}}", 400, "envVars" },
        { "{\"templateID\":\"base\",\"envVars\":{\"A=B\":\"x\"}}", 400, "A=B" },
        { "{\"templateID\":\"base\",\"envVars\":{\"A\":\"x\\u0000y\"}}", 400, "invalid JSON" },
        { "{\"templateID\":\"base\",\"mcp\":\"x\"}", 400, "'mcp'" },
        { "{\"templateID\":\"base\",\"network\":[]}", 400, "'network'" },
        { "{\"templateID\":\"base\",\"network\":{\"allowOut\":\"x\"}}", 400, "'allowOut'" },
        { "{\"templateID\":\"base\",\"autoPauseMemory\":false}", 400, "autoPauseMemory" },
        { "{\"templateID\":\"base\",\"autoPauseMemory\":0}", 400, "'autoPauseMemory'" },
        { "{\"templateID\":\"base\",\"autoPause\":\"yes\"}", 400, "'autoPause'" },
        { "{\"templateID\":\"base\",\"autoResume\":true}", 400, "'autoResume'" },
        { "{\"templateID\":\"base\",\"autoResume\":{\"enabled\":1}}", 400, "'enabled'" },
        { "{\"templateID\":\"base\",\"autoPause\":true,\"autoPauseMemory\":false,\"autoResume\":{\"enabled\":true}}",
          400, "'autoResume.enabled' needs the memory" },
        /* known and not available yet */
        { "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[49983]}}", 400, "other than 49983" },
        { "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[0]}}", 400, "(https_ports in Python)" },
        { "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[65536]}}", 400, "from 1 to 65535" },
        { "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[\"443\"]}}", 400, "from 1 to 65535" },
        { "{\"templateID\":\"mcp-gateway\",\"mcp\":{\"browserbase\":{}}}", 400,
          "mcp={…} (JS mcp: {…}, API 'mcp') is not available" },
        { "{\"templateID\":\"mcp-gateway\",\"mcp\":{}}", 400, "mcp={…}" },
        { "{\"templateID\":\"mcp-gateway\"}", 404, "MCP servers (mcp={…}, JS mcp: {…}), which are not available" },
        { "{\"templateID\":\"base\",\"network\":{\"maskRequestHost\":\"a b\"}}", 400, "must be a host" },
        { "{\"templateID\":\"base\",\"network\":{\"maskRequestHost\":\"a\\r\\nX: y\"}}", 400, "must be a host" },
        { "{\"templateID\":\"base\",\"network\":{\"maskRequestHost\":\"a:${PORT\"}}", 400, "must be a host" },
        { "{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"a\",\"path\":\"/a\"}]}", 400,
          "volume_mounts={…} (JS volumeMounts: {…}, API 'volumeMounts') is not available" },
        { "{\"templateID\":\"base\",\"iam\":{\"tokens\":{\"a\":{}}}}", 400, "API 'iam.tokens') is not available" },
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = CALL(s, "POST", i % 2 ? "/sandboxes" : "/v2/sandboxes", bad[i].body);
        check_error(s, &answer, bad[i].status, bad[i].in_message);
    }
    assert_int_equal(s->rig.fake.starts, 0);
    check_nothing_exists(s);
}

static void options_without_effect_are_accepted(void **state)
{
    struct served *s = *state;

    served_create(s, "{\"templateID\":\"base\",\"timeout\":null,\"metadata\":null,\"envVars\":null,\"autoPause\":false,"
                     "\"autoPauseMemory\":true,\"autoResume\":{\"enabled\":false},\"mcp\":null,\"iam\":{},"
                     "\"network\":{\"allowOut\":[],\"denyOut\":[],\"rules\":{},\"egressProxy\":null,"
                     "\"allowPublicTraffic\":null,\"httpsPorts\":[]},\"volumeMounts\":[],\"secure\":false,"
                     "\"somethingNew\":[1,2,3]}");
    served_create(s, "{\"templateID\":\"base\",\"network\":{},\"autoResume\":null,\"iam\":{\"tokens\":{}}}");
    served_create(s, "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":true},\"timeout\":12.0}");
    assert_int_equal(rig_rows(&s->rig), 3);
}

/* The SDKs start the gateway themselves, and say that a template does not have it. */
static void mcp_servers_for_a_template_that_the_caller_names_are_the_sdks_business(void **state)
{
    struct served *s = *state;

    served_create(s, "{\"templateID\":\"base\",\"mcp\":{\"browserbase\":{}}}");
    served_create(s, "{\"templateID\":\"base\",\"mcp\":{}}");
    assert_int_equal(rig_rows(&s->rig), 2);
}

static void too_much_metadata_or_environment_is_refused(void **state)
{
    struct served *s = *state;
    struct buf body = buf_make(&s->rig.arena, 4 << 20);
    static char big[LIMIT_ENV_BYTES + 1];

    buf_format(&body, "{\"templateID\":\"base\",\"metadata\":{");
    for (int i = 0; i <= LIMIT_METADATA_PAIRS; i++)
        buf_format(&body, "%s\"k%d\":\"v\"", i ? "," : "", i);
    buf_format(&body, "}}");
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes", arena_text(&s->rig.arena, buf_str(&body)));
    check_error(s, &answer, 400, "more than 64 entries");

    memset(big, 'x', sizeof big - 1);
    static const char *const fields[] = { "metadata", "envVars" };
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        buf_clear(&body);
        buf_format(&body, "{\"templateID\":\"base\",\"%s\":{\"k\":\"%s\"}}", fields[i], big);
        answer = CALL(s, "POST", "/v2/sandboxes", arena_text(&s->rig.arena, buf_str(&body)));
        check_error(s, &answer, 400, "is larger than");
    }
    buf_clear(&body);
    for (int i = 0; i < 1000; i++)
        buf_add(&body, STR("{\"a\":"));
    answer = CALL(s, "POST", "/v2/sandboxes", arena_text(&s->rig.arena, buf_str(&body)));
    check_error(s, &answer, 400, "nested");
    check_nothing_exists(s);
}

static void bad_ids_queries_and_bodies_are_refused(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    static const struct {
        const char *method, *path, *body;
        const char *in_message;
    } bad[] = {
        { "GET", "/sandboxes/UPPER", NULL, "Invalid sandbox ID" },
        { "GET", "/sandboxes/a.b", NULL, "Invalid sandbox ID" },
        { "GET", "/sandboxes/-x", NULL, "Invalid sandbox ID" },
        { "GET", "/sandboxes/a-b-c", NULL, "Invalid sandbox ID" },
        { "GET", "/sandboxes/%2e%2e", NULL, "Invalid sandbox ID" },
        { "DELETE", "/sandboxes/a_b", NULL, "Invalid sandbox ID" },
        { "POST", "/sandboxes/%s/timeout", NULL, "'timeout' is required" },
        { "POST", "/sandboxes/%s/timeout", "{}", "'timeout' is required" },
        { "POST", "/sandboxes/%s/timeout", "{\"timeout\":-1}", "validation error: 'timeout'" },
        { "POST", "/sandboxes/%s/timeout", "{\"timeout\":\"1\"}", "'timeout'" },
        { "POST", "/sandboxes/%s/timeout", "nonsense", "invalid JSON" },
        { "POST", "/sandboxes/%s/refreshes", "{\"duration\":3601}", "'duration'" },
        { "POST", "/sandboxes/%s/refreshes", "{\"duration\":-1}", "'duration'" },
        { "POST", "/sandboxes/%s/connect", "{\"timeout\":-1}", "'timeout'" },
        { "POST", "/v2/sandboxes/%s/connect", "{\"memory\":\"no\"}", "'memory'" },
        { "POST", "/v2/sandboxes/%s/connect", "[]", "must be an object" },
        { "GET", "/v2/sandboxes?state=running,sleeping", NULL, "'state' has 'sleeping'" },
        { "GET", "/v2/sandboxes?limit=0", NULL, "'limit'" },
        { "GET", "/v2/sandboxes?limit=101", NULL, "'limit'" },
        { "GET", "/v2/sandboxes?limit=-1", NULL, "'limit'" },
        { "GET", "/v2/sandboxes?limit=ten", NULL, "'limit'" },
        { "GET", "/v2/sandboxes?order=up", NULL, "'order'" },
        { "GET", "/v2/sandboxes?startedAfter=yesterday", NULL, "'startedAfter'" },
        { "GET", "/v2/sandboxes?template=base%3Av1", NULL, "tag" },
        { "GET", "/v2/sandboxes?nextToken=garbage!", NULL, "invalid next token" },
        { "GET", "/v2/sandboxes?nextToken=Z2FyYmFnZQ", NULL, "invalid next token" },
        { "GET", "/v2/sandboxes?nextToken=MjAyNi0wMS0wMVQwMDowMDowMFo", NULL, "invalid next token" },
        { "GET", "/v2/sandboxes?metadata=novalue", NULL, "'metadata'" },
        { "GET", "/v2/sandboxes?metadata=a%3Db%3Dc", NULL, "'metadata'" },
        { "GET", "/v2/sandboxes?metadata=a%3D%252", NULL, "'metadata'" },
        { "GET", "/sandboxes?metadata=novalue", NULL, "'metadata'" },
        { "GET", "/sandboxes?metadata=a%3Db%z", NULL, "broken percent escape" },
        { "GET", "/v2/sandboxes?metadata=%zz", NULL, "broken percent escape" },
        { "GET", "/v2/sandboxes?template=..%2Fx", NULL, "template reference" },
        { "POST", "/api-keys", "{}", "'name' is required" },
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char *path =
            strstr(bad[i].path, "%s") ? target(s, bad[i].path, id) : arena_text(&s->rig.arena, str_from(bad[i].path));
        struct http_answer answer = CALL_WITH(s, bad[i].method, path, bad[i].body, ADMIN);
        check_error(s, &answer, 400, bad[i].in_message);
    }
    assert_int_equal(rig_rows(&s->rig), 1);
}

static void a_chunked_body_is_as_good_as_one_with_a_length(void **state)
{
    struct served *s = *state;
    char request[1024];

    snprintf(request, sizeof request,
             "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\nconnection: close\r\n"
             "transfer-encoding: chunked\r\n\r\n5\r\n{\"tem\r\n13\r\nplateID\":\"base\"   }\r\n0\r\n\r\n",
             s->key);
    assert_non_null(strstr(served_raw(s, str_from(request)), "HTTP/1.1 201"));
    assert_int_equal(rig_rows(&s->rig), 1);
}

static void a_body_that_is_too_large_is_a_413_before_it_is_read(void **state)
{
    struct served *s = *state;
    char request[1024];

    snprintf(request, sizeof request,
             "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: %d\r\n\r\n", s->key,
             LIMIT_CALL_BODY_BYTES + 1);
    const char *answer = served_raw(s, str_from(request));
    assert_non_null(strstr(answer, "HTTP/1.1 413"));
    assert_non_null(strstr(answer, "{\"code\":413,\"message\":"));
    /* A stranger's body is not read either. */
    snprintf(request, sizeof request, "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n",
             LIMIT_CALL_BODY_BYTES - 1);
    assert_non_null(strstr(served_raw(s, str_from(request)), "HTTP/1.1 401"));
    check_nothing_exists(s);
}

/* ---- faults ---- */

static void a_create_that_fails_says_so_once_and_leaves_nothing(void **state)
{
    struct served *s = *state;
    struct http_answer answer;
    static const enum fake_start ways[] = { FAKE_START_FAILS, FAKE_GUEST_REFUSES, FAKE_GUEST_DIES };

    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        s->rig.fake.start = ways[i];
        answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
        check_error(s, &answer, 500, "could not be started (reference ");
        assert_string_equal(got_text(s, "error_code"), "sandbox_create_failed");
        assert_null(strstr(got_text(s, "message"), "mount")); /* what it was is for our log */
        check_nothing_exists(s);
    }
    s->rig.fake.start = FAKE_START_TIMES_OUT;
    answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
    check_error(s, &answer, 504, "Failed to place sandbox");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    assert_null(answer_header(s, &answer, "Retry-After"));
    rig_wait_empty(&s->rig);
}

static void past_the_limit_a_create_is_a_429_that_is_not_worth_repeating(void **state)
{
    struct served *s = *state;

    s->rig.config.sandboxes_max = 1;
    served_start(s);
    served_create(s, "{\"templateID\":\"base\"}");
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
    check_error(s, &answer, 429, "1 sandboxes run or are paused in memory");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    assert_null(answer_header(s, &answer, "Retry-After"));
    assert_int_equal(rig_rows(&s->rig), 1);
}

static void a_create_on_a_full_disk_is_a_507_that_says_what_is_missing(void **state)
{
    struct served *s = *state;

    s->rig.fake.start = FAKE_START_IS_FULL;
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
    check_error(s, &answer, 507, "a sandbox needs 32 MiB of disk");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    assert_int_equal(rig_rows(&s->rig), 0);
    s->rig.fake.start = FAKE_STARTS;
    served_create(s, "{\"templateID\":\"base\"}");
}

static void a_kill_is_answered_though_the_driver_fails(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");

    s->rig.fake.stop_failures = 1;
    assert_int_equal(CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL).status, 204);
    struct http_answer answer = CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL);
    check_error(s, &answer, 404, NULL);
    check_nothing_exists(s); /* it is tried again */
}

static void a_kill_that_neither_store_nor_driver_does_is_a_503_that_may_be_repeated(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");

    s->rig.fake.stop_failures = 1;
    temp_store_by_hand(&s->rig.disk, "CREATE TRIGGER refuse BEFORE DELETE ON sandboxes "
                                     "BEGIN SELECT RAISE(ABORT, 'not now'); END");
    struct http_answer answer = CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL);
    check_error(s, &answer, 503, NULL);
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "true");
    assert_string_equal(answer_header(s, &answer, "Retry-After"), "1");
    answer = CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL);
    check_error(s, &answer, 404, NULL);
    temp_store_by_hand(&s->rig.disk, "DROP TRIGGER refuse");
    assert_int_equal(CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL).status, 204);
    check_nothing_exists(s);
}

static void a_client_that_goes_away_during_a_create_does_no_harm(void **state)
{
    struct served *s = *state;
    char request[512];

    rig_shut_gate(&s->rig, true);
    snprintf(request, sizeof request,
             "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: "
             "21\r\n\r\n{\"templateID\":\"base\"}",
             s->key);
    for (int i = 0; i < 3; i++) {
        int fd = served_connect(s);
        MUST(fd_write_all(fd, str_from(request), &err));
        rig_wait_at_gate(&s->rig, (unsigned)i + 1);
        close(fd);
    }
    assert_int_equal(served_call_bare(s, "GET", "/health", NULL, NULL, 0).status, 204);
    rig_shut_gate(&s->rig, false);
    while (listed(s, "") < 3)
        usleep(2000);
}

/* ---- repeats ---- */

#define REPEAT(key)                      \
    {                                    \
        STR("idempotency-key"), STR(key) \
    }
#define BASE "{\"templateID\":\"base\"}"

static void a_create_that_is_sent_again_makes_no_second_sandbox(void **state)
{
    struct served *s = *state;
    static const char *const routes[] = { "/v2/sandboxes", "/sandboxes" };

    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        struct http_field fields[] = { { STR("idempotency-key"), i ? STR("job-43") : STR("job-42") } };
        struct http_answer first = served_call(s, "POST", routes[i], BASE, fields, 1);
        assert_int_equal(first.status, 201);
        struct http_answer again = served_call(s, "POST", routes[i], BASE, fields, 1);
        assert_int_equal(again.status, 201);
        CHECK_STR(again.body, first.body);
        assert_int_equal(rig_rows(&s->rig), i + 1);
        struct http_answer other = served_call(s, "POST", routes[i], "{\"templateID\":\"tbase\"}", fields, 1);
        check_error(s, &other, 422, "different request");
        assert_string_equal(got_text(s, "error_code"), "idempotency_request_mismatch");
    }
    served_stop(s);
    served_start(s);
    assert_int_equal(CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("job-42")).status, 201);
    assert_int_equal(rig_rows(&s->rig), 2);
    /* Also when the sandbox is long gone: the answer was what it was. */
    char *id = arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
    assert_int_equal(CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL).status, 204);
    assert_int_equal(CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("job-42")).status, 201);
    assert_string_equal(got_text(s, "sandboxID"), id);
    assert_int_equal(rig_rows(&s->rig), 1);
}

struct creating {
    struct served *s;
    unsigned status;
};

static void *create_repeatable(void *argument)
{
    struct creating *creating = argument;
    struct http_field fields[] = { { STR("X-API-Key"), str_from(creating->s->key) }, REPEAT("busy") };
    struct arena arena;
    struct http_answer *answer;
    struct err err;

    arena_init(&arena);
    answer = ARENA_NEW(&arena, struct http_answer);
    if (http_fetch(&arena, str_from(creating->s->address), STR("POST"), STR("/v2/sandboxes"), fields, 2, STR(BASE),
                   60000, answer, &err))
        creating->status = answer->status;
    arena_done(&arena);
    return NULL;
}

static void a_repeat_that_overtakes_the_first_is_told_to_wait(void **state)
{
    struct served *s = *state;
    struct creating creating = { .s = s };
    pthread_t thread;

    rig_shut_gate(&s->rig, true);
    assert_int_equal(pthread_create(&thread, NULL, create_repeatable, &creating), 0);
    rig_wait_at_gate(&s->rig, 1);
    struct http_answer answer = CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("busy"));
    check_error(s, &answer, 409, NULL);
    assert_string_equal(got_text(s, "error_code"), "idempotency_in_progress");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "true");
    assert_string_equal(answer_header(s, &answer, "Retry-After"), "1");
    rig_shut_gate(&s->rig, false);
    pthread_join(thread, NULL);
    assert_int_equal(creating.status, 201);
    assert_int_equal(CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("busy")).status, 201);
    assert_int_equal(s->rig.fake.starts, 1);
}

static void a_repeat_after_a_crash_in_the_middle_is_told_that_the_outcome_is_unknown(void **state)
{
    struct served *s = *state;
    enum repeat_verdict verdict;
    struct repeat_outcome outcome;

    MUST(store_repeat_begin(s->rig.disk.store, store_team_default(s->rig.disk.store), STR("job"), STR("v2"), STR(BASE),
                            &s->rig.arena, &verdict, &outcome, &err));
    store_close(s->rig.disk.store);
    s->rig.disk.store = NULL;
    served_start(s);
    struct http_answer answer = CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("job"));
    check_error(s, &answer, 409, "use another key");
    assert_string_equal(got_text(s, "error_code"), "idempotency_outcome_unknown");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    check_nothing_exists(s);
}

static void a_failed_create_does_not_use_up_the_idempotency_key(void **state)
{
    struct served *s = *state;
    struct http_answer answer = CALL_WITH(s, "POST", "/v2/sandboxes", "{\"templateID\":\"nope\"}", REPEAT("k"));

    check_error(s, &answer, 404, NULL);
    s->rig.fake.start = FAKE_START_FAILS;
    answer = CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("k"));
    check_error(s, &answer, 500, NULL);
    s->rig.fake.start = FAKE_STARTS;
    assert_int_equal(CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("k")).status, 201);
    answer = CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT("Not Allowed"));
    check_error(s, &answer, 400, "idempotency key");
    answer = CALL_WITH(s, "POST", "/v2/sandboxes", BASE, REPEAT(""));
    check_error(s, &answer, 400, "idempotency key");
    assert_int_equal(rig_rows(&s->rig), 1);
}

/* ---- restart ---- */

static void after_a_crash_the_same_sandboxes_are_served(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"a\":\"b\"}}");
    char *token = arena_text(&s->rig.arena, str_from(got_text(s, "envdAccessToken")));

    served_stop(s);
    served_start(s);
    assert_int_equal(CALL(s, "GET", target(s, "/sandboxes/%s", id), NULL).status, 200);
    assert_string_equal(got_text(s, "envdAccessToken"), token);
    assert_int_equal(listed(s, "metadata=a%3Db"), 1);
    assert_int_equal(CALL(s, "DELETE", target(s, "/sandboxes/%s", id), NULL).status, 204);
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)
#define MADE(function) cmocka_unit_test_setup_teardown(function, served_set_up_only, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        SERVED(create_answers_what_clients_require_and_no_null),
        MADE(a_configured_domain_is_told),
        SERVED(a_private_sandbox_comes_with_its_traffic_token),
        SERVED(get_describes_a_sandbox_in_full),
        SERVED(both_versions_of_create_and_connect_work_with_their_own_defaults),
        SERVED(code_is_open_where_version_one_asks_for_no_security),
        SERVED(connect_never_shortens_and_timeout_does_both),
        SERVED(a_timeout_of_zero_kills_it_before_the_answer),
        SERVED(a_second_kill_finds_nothing_and_so_does_every_other_call),
        SERVED(a_deadline_makes_it_a_404),
        SERVED(a_list_has_a_page_its_total_and_no_token_at_the_end),
        SERVED(metadata_filters_arrive_encoded_three_times),
        SERVED(lists_filter_by_time_and_template),
        SERVED(templates_are_listed_and_their_names_checked),
        SERVED(keys_are_made_used_renamed_and_revoked),
        SERVED(without_the_right_key_every_route_is_a_401),
        SERVED(the_admin_token_stands_in_for_a_key),
        MADE(a_key_that_asks_too_often_is_told_when_to_come_back),
        SERVED(health_needs_no_key_and_has_no_body),
        SERVED(upstream_routes_that_are_missing_answer_501),
        SERVED(an_unknown_route_is_named_and_a_wrong_method_shows_the_right_ones),
        SERVED(a_preflight_is_answered_before_anything_is_checked),
        SERVED(a_bad_create_is_refused_and_makes_nothing),
        SERVED(options_without_effect_are_accepted),
        SERVED(mcp_servers_for_a_template_that_the_caller_names_are_the_sdks_business),
        SERVED(too_much_metadata_or_environment_is_refused),
        SERVED(bad_ids_queries_and_bodies_are_refused),
        SERVED(a_chunked_body_is_as_good_as_one_with_a_length),
        SERVED(a_body_that_is_too_large_is_a_413_before_it_is_read),
        SERVED(a_create_that_fails_says_so_once_and_leaves_nothing),
        MADE(past_the_limit_a_create_is_a_429_that_is_not_worth_repeating),
        SERVED(a_create_on_a_full_disk_is_a_507_that_says_what_is_missing),
        SERVED(a_kill_is_answered_though_the_driver_fails),
        SERVED(a_kill_that_neither_store_nor_driver_does_is_a_503_that_may_be_repeated),
        SERVED(a_client_that_goes_away_during_a_create_does_no_harm),
        SERVED(a_create_that_is_sent_again_makes_no_second_sandbox),
        SERVED(a_repeat_that_overtakes_the_first_is_told_to_wait),
        MADE(a_repeat_after_a_crash_in_the_middle_is_told_that_the_outcome_is_unknown),
        SERVED(a_failed_create_does_not_use_up_the_idempotency_key),
        SERVED(after_a_crash_the_same_sandboxes_are_served),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
