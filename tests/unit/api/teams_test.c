#include <sys/socket.h>
#include <unistd.h>

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
    rig_wait_ended(&s->rig);
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

/* ---- two teams ---- */

/* A team with a key: the field that shows it. */
static struct http_field key_of_new_team(struct served *s, const char *name)
{
    const char *body = arena_text(&s->rig.arena, arena_format(&s->rig.arena, "{\"name\":\"%s\"}", name));

    assert_int_equal(CALL_WITH(s, "POST", "/admin/teams", body, ADMIN_TOKEN).status, 201);
    assert_string_equal(got_text(s, "slug"), name);
    assert_false(json_is_true(json_object_get(s->last, "isDefault")));
    const char *target =
        arena_text(&s->rig.arena, arena_format(&s->rig.arena, "/admin/teams/%s/api-keys", got_text(s, "teamID")));
    assert_int_equal(CALL_WITH(s, "POST", target, "{\"name\":\"ci\"}", ADMIN_TOKEN).status, 201);
    assert_string_equal(got_text(s, "team"), name);
    return (struct http_field){ STR("X-API-Key"), arena_copy(&s->rig.arena, str_from(got_text(s, "key"))) };
}

static const char *put_id(struct served *s, const char *target, const char *id)
{
    const char *at = strchr(target, '@');

    return arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%.*s%s%s", (int)(at - target), target, id, at + 1));
}

/* The same answer but for the id in it. */
static void check_alike(struct served *s, const struct http_answer *a, const struct http_answer *b, const char *b_id,
                        const char *a_id)
{
    struct str rest = b->body;
    struct buf text = buf_make(&s->rig.arena, 1 << 20);

    assert_int_equal(a->status, b->status);
    while (rest.len) {
        if (str_skip(&rest, str_from(b_id))) {
            buf_add(&text, str_from(a_id));
        } else {
            buf_add_char(&text, rest.at[0]);
            rest = str_of(rest.at + 1, rest.len - 1);
        }
    }
    CHECK_STR(a->body, buf_str(&text));
}

static void another_teams_sandbox_answers_like_one_that_does_not_exist(void **state)
{
    static const struct {
        const char *method, *target, *body;
    } calls[] = {
        { "GET", "/sandboxes/@", NULL },
        { "DELETE", "/sandboxes/@", NULL },
        { "POST", "/sandboxes/@/timeout", "{\"timeout\":0}" },
        { "POST", "/sandboxes/@/timeout", "{\"timeout\":60}" },
        { "POST", "/sandboxes/@/refreshes", "{\"duration\":60}" },
        { "POST", "/sandboxes/@/connect", "{\"timeout\":60}" },
        { "POST", "/v2/sandboxes/@/connect", "{}" },
        { "GET", "/sandboxes/@/metrics", NULL },
        { "GET", "/sandboxes/metrics?sandbox_ids=@", NULL },
        { "GET", "/sandboxes/@/logs", NULL },
        { "GET", "/v2/sandboxes/@/logs", NULL },
        { "GET", "/events/sandboxes/@", NULL },
        { "POST", "/sandboxes/@/pause", "{}" },
        { "POST", "/sandboxes/@/resume", "{}" },
        { "POST", "/sandboxes/@/fork", "{}" },
        { "POST", "/sandboxes/@/snapshots", "{}" },
        { "PUT", "/sandboxes/@/network", "{}" },
    };
    struct served *s = *state;
    struct http_field theirs = key_of_new_team(s, "research");
    const char *id = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));
    const char *none = "inone0000000000000000";

    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        struct http_answer of_other =
            served_call_bare(s, calls[i].method, put_id(s, calls[i].target, id), calls[i].body, &theirs, 1);
        struct http_answer of_none =
            served_call_bare(s, calls[i].method, put_id(s, calls[i].target, none), calls[i].body, &theirs, 1);
        check_alike(s, &of_none, &of_other, id, none);
    }
    static const char *const lists[] = { "/sandboxes", "/v2/sandboxes", "/events/sandboxes", "/snapshots" };
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct http_answer answer = served_call_bare(s, "GET", lists[i], NULL, &theirs, 1);
        assert_int_equal(answer.status, 200);
        CHECK_STR(answer.body, STR("[]"));
    }
    /* It never noticed. */
    assert_int_equal(CALL(s, "GET", put_id(s, "/sandboxes/@", id), NULL).status, 200);
    /* Templates of everybody's are theirs too. */
    assert_int_equal(served_call_bare(s, "GET", "/templates/aliases/base", NULL, &theirs, 1).status, 200);
    assert_int_equal(served_call_bare(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", &theirs, 1).status, 201);
    assert_int_equal(json_array_size((CALL(s, "GET", "/v2/sandboxes", NULL), s->last)), 1);
}

static void teams_share_no_idempotency_keys(void **state)
{
    struct served *s = *state;
    struct http_field repeat = { STR("Idempotency-Key"), STR("same") };
    struct http_field theirs[] = { key_of_new_team(s, "research"), repeat };

    assert_int_equal(CALL_WITH(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", repeat).status, 201);
    const char *ours = arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
    assert_int_equal(served_call_bare(s, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", theirs, 2).status, 201);
    assert_string_not_equal(got_text(s, "sandboxID"), ours);
}

static void a_team_with_keys_or_sandboxes_is_deleted_by_force_only(void **state)
{
    struct served *s = *state;
    struct http_field theirs = key_of_new_team(s, "research");

    assert_int_equal(served_call_bare(s, "POST", "/sandboxes", "{\"templateID\":\"base\"}", &theirs, 1).status, 201);
    assert_int_equal(CALL_WITH(s, "GET", "/teams", NULL, ADMIN_TOKEN).status, 200);
    const json_t *team = json_array_get(s->last, 1);
    assert_string_equal(json_string_value(json_object_get(team, "slug")), "research");
    assert_int_equal(json_integer_value(json_object_get(team, "keyCount")), 1);
    assert_int_equal(json_integer_value(json_object_get(team, "runningCount")), 1);
    const char *target = put_id(s, "/admin/teams/@", json_string_value(json_object_get(team, "teamID")));
    const char *forced = put_id(s, "/admin/teams/@?force=true", json_string_value(json_object_get(team, "teamID")));

    struct http_answer answer = CALL_WITH(s, "DELETE", target, NULL, ADMIN_TOKEN);
    check_error(s, &answer, 409, "team 'research' has 1 API key and 1 running sandbox: revoke and kill them first");
    answer = CALL(s, "DELETE", forced, NULL);
    check_error(s, &answer, 401, "admin token");
    answer = CALL_WITH(s, "DELETE", arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%s?force=yes", target)),
                       NULL, ADMIN_TOKEN);
    check_error(s, &answer, 400, "'force'");
    assert_int_equal(CALL_WITH(s, "DELETE", forced, NULL, ADMIN_TOKEN).status, 200);
    assert_int_equal(got_int(s, "revokedCount"), 1);
    assert_int_equal(got_int(s, "killedCount"), 1);
    rig_wait_ended(&s->rig);
    assert_int_equal(rig_held_count(&s->rig), 0);
    answer = served_call_bare(s, "GET", "/sandboxes", NULL, &theirs, 1); /* though its key was known a moment ago */
    check_error(s, &answer, 401, "revoked");
    answer = CALL_WITH(s, "DELETE", of_team(s, "/admin/teams/", "?force=true"), NULL, ADMIN_TOKEN);
    check_error(s, &answer, 409, "default team stays");
    assert_int_equal(CALL_WITH(s, "GET", "/admin/api-keys", NULL, ADMIN_TOKEN).status, 200);
    assert_int_equal(json_array_size(s->last), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "team")), "default");
}

static void a_team_with_a_sandbox_that_starts_is_not_deleted_under_it(void **state)
{
    struct served *s = *state;
    struct http_field theirs = key_of_new_team(s, "research");
    const char *body = "{\"templateID\":\"base\"}";
    char room[512];

    assert_int_equal(CALL_WITH(s, "GET", "/teams", NULL, ADMIN_TOKEN).status, 200);
    const char *team_id = json_string_value(json_object_get(json_array_get(s->last, 1), "teamID"));
    const char *forced = put_id(s, "/admin/teams/@?force=true", team_id);
    struct str create = arena_format(&s->rig.arena,
                                     "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %.*s\r\n"
                                     "Content-Length: %zu\r\n\r\n%s",
                                     STR_ARG(theirs.value), strlen(body), body);
    rig_shut_gate(&s->rig, true);
    int fd = served_connect(s);
    assert_int_equal(send(fd, create.at, create.len, MSG_NOSIGNAL), create.len);
    rig_wait_at_gate(&s->rig, 1);
    struct http_answer answer = CALL_WITH(s, "DELETE", forced, NULL, ADMIN_TOKEN);
    check_error(s, &answer, 409, "1 sandbox(es) that start, run or end: try again in a moment");
    rig_shut_gate(&s->rig, false);
    assert_true(recv(fd, room, sizeof room, 0) > 0);
    assert_memory_equal(room, "HTTP/1.1 201 ", 13);
    close(fd);
    assert_int_equal(CALL_WITH(s, "DELETE", forced, NULL, ADMIN_TOKEN).status, 200);
    assert_int_equal(got_int(s, "killedCount"), 1);
    rig_wait_ended(&s->rig);
    assert_int_equal(rig_held_count(&s->rig), 0);
    assert_int_equal(rig_rows(&s->rig), 0);
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_team_sees_how_many_it_had),
        API_CASE(other_teams_and_other_questions_are_refused),
        API_CASE(an_administrator_counts_and_kills_a_teams_sandboxes),
        API_CASE(an_administrator_makes_and_revokes_a_teams_keys),
        API_CASE(another_teams_sandbox_answers_like_one_that_does_not_exist),
        API_CASE(teams_share_no_idempotency_keys),
        API_CASE(a_team_with_keys_or_sandboxes_is_deleted_by_force_only),
        API_CASE(a_team_with_a_sandbox_that_starts_is_not_deleted_under_it),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
