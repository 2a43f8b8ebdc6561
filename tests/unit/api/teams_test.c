#include "base/clock.h"
#include "served.h"

#define ADMIN_TOKEN                                         \
    {                                                       \
        STR_INIT("X-Admin-Token"), STR_INIT("admin-secret") \
    }

static const char *of_team(struct served *s, const char *before, const char *after)
{
    struct str team = store_team_default(s->rig.disk.store);

    return arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%s%.*s%s", before, STR_ARG(team), after));
}

static void kill_one(struct served *s, const char *id)
{
    const char *target = arena_text(&s->rig.arena, arena_format(&s->rig.arena, "/sandboxes/%s", id));

    assert_int_equal(CALL(s, "DELETE", target, NULL).status, 204);
}

static void a_team_sees_how_many_it_had(void **state)
{
    struct served *s = *state;
    char query[64];
    long long start_s = clock_wall_us() / 1000000 - 60;

    const char *first = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));
    (void)served_create(s, "{\"templateID\":\"base\"}");
    kill_one(s, first);
    snprintf(query, sizeof query, "/metrics?start=%lld", start_s);
    assert_int_equal(CALL(s, "GET", of_team(s, "/teams/", query), NULL).status, 200);
    size_t count = json_array_size(s->last);
    assert_in_range(count, 12, 14);
    const json_t *before = json_array_get(s->last, 0), *now = json_array_get(s->last, count - 1);
    assert_int_equal(json_integer_value(json_object_get(before, "concurrentSandboxes")), 0);
    assert_int_equal(json_integer_value(json_object_get(now, "concurrentSandboxes")), 1);
    double started = 0;
    for (size_t i = 0; i < count; i++)
        started += json_number_value(json_object_get(json_array_get(s->last, i), "sandboxStartRate")) * 5;
    assert_true(started > 1.9 && started < 2.1);
    assert_true(json_is_integer(json_object_get(now, "timestampUnix")));

    assert_int_equal(CALL(s, "GET", of_team(s, "/teams/", "/metrics/max?metric=concurrent_sandboxes"), NULL).status,
                     200);
    assert_true(json_number_value(json_object_get(s->last, "value")) > 0.9);
    assert_int_equal(CALL(s, "GET", of_team(s, "/teams/", "/metrics"), NULL).status, 200);
    assert_true(json_array_size(s->last) > 600); /* a week */
    assert_int_equal(CALL(s, "GET", of_team(s, "/teams/", "/metrics?start=1&end=2"), NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
}

static void other_teams_and_other_questions_are_refused(void **state)
{
    struct served *s = *state;
    struct http_answer answer = CALL(s, "GET", "/teams/other/metrics", NULL);

    check_error(s, &answer, 403, "not yours");
    answer = CALL(s, "GET", of_team(s, "/teams/", "/metrics/max"), NULL);
    check_error(s, &answer, 400, "metric");
    answer = CALL(s, "GET", of_team(s, "/teams/", "/metrics?start=2&end=1"), NULL);
    check_error(s, &answer, 400, "after");
}

static void an_administrator_counts_and_kills_a_teams_sandboxes(void **state)
{
    struct served *s = *state;
    struct str team = store_team_default(s->rig.disk.store);

    served_create(s, "{\"templateID\":\"base\"}");
    served_create(s, "{\"templateID\":\"base\"}");
    assert_int_equal(CALL_WITH(s, "GET", "/admin/sandboxes/running-counts", NULL, ADMIN_TOKEN).status, 200);
    assert_int_equal(got_int(s, arena_text(&s->rig.arena, team)), 2);
    struct http_answer answer = CALL(s, "GET", "/admin/sandboxes/running-counts", NULL);
    check_error(s, &answer, 401, "admin token");

    assert_int_equal(CALL_WITH(s, "POST", of_team(s, "/admin/teams/", "/sandboxes/kill"), NULL, ADMIN_TOKEN).status,
                     200);
    assert_int_equal(got_int(s, "killedCount"), 2);
    assert_int_equal(got_int(s, "failedCount"), 0);
    assert_int_equal(rig_held_count(&s->rig), 0);
    answer = CALL_WITH(s, "POST", "/admin/teams/none/sandboxes/kill", NULL, ADMIN_TOKEN);
    check_error(s, &answer, 404, "no team");
}

static void an_administrator_makes_and_revokes_a_teams_keys(void **state)
{
    struct served *s = *state;

    assert_int_equal(
        CALL_WITH(s, "POST", of_team(s, "/admin/teams/", "/api-keys"), "{\"name\":\"ci\"}", ADMIN_TOKEN).status, 201);
    assert_int_equal(strlen(got_text(s, "key")), STORE_KEY_CHARS);
    const char *target = of_team(
        s, "/admin/teams/", arena_text(&s->rig.arena, arena_format(&s->rig.arena, "/api-keys/%s", got_text(s, "id"))));
    assert_int_equal(CALL_WITH(s, "DELETE", target, NULL, ADMIN_TOKEN).status, 204);
    assert_int_equal(CALL_WITH(s, "DELETE", target, NULL, ADMIN_TOKEN).status, 404);
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_team_sees_how_many_it_had),
        API_CASE(other_teams_and_other_questions_are_refused),
        API_CASE(an_administrator_counts_and_kills_a_teams_sandboxes),
        API_CASE(an_administrator_makes_and_revokes_a_teams_keys),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
