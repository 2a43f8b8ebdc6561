#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "served.h"

#define BASE "{\"templateID\":\"base\"}"

static struct http_answer post(struct served *s, const char *prefix, const char *id, const char *what, const char *body)
{
    return CALL(s, "POST", served_path(s, prefix, id, what), body);
}

static void check_status(const struct http_answer *answer, unsigned status)
{
    if (answer->status != status)
        fail_msg("status %u, want %u: %.*s", answer->status, status, STR_ARG(answer->body));
}

static void pause_it(struct served *s, const char *id, const char *body)
{
    struct http_answer answer = post(s, "/sandboxes/", id, "/pause", body);

    check_status(&answer, 204);
    assert_int_equal(answer.body.len, 0);
}

static void get(struct served *s, const char *id)
{
    struct http_answer answer = CALL(s, "GET", served_path(s, "/sandboxes/", id, ""), NULL);

    check_status(&answer, 200);
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), ":null"));
}

static void check_state(struct served *s, const char *id, const char *state)
{
    get(s, id);
    assert_string_equal(got_text(s, "state"), state);
}

static void hang_up(struct served *s, enum fake_guest guest)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.guest = guest;
    pthread_mutex_unlock(&s->rig.fake.lock);
}

/* ---- pause ---- */

static void a_body_is_optional_and_the_second_pause_is_a_409(void **state)
{
    static const char *const bodies[] = {
        NULL, "", "{}", "{\"memory\":true}", "{\"memory\":null}", "{\"requireHealthyGuest\":true,\"somethingNew\":1}"
    };
    struct served *s = *state;

    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const char *id = served_create(s, BASE);
        int64_t before_us = clock_wall_us();
        pause_it(s, id, bodies[i]);
        check_state(s, id, "paused");
        assert_string_equal(got_text(s, "pauseMode"), "full");
        assert_null(json_object_get(s->last, "envdUnresponsiveAtPause"));
        assert_true(got_time(s, "endAt") >= before_us / 1000000 * 1000000 &&
                    got_time(s, "endAt") <= clock_wall_us() + 1000000);
        struct http_answer again = post(s, "/sandboxes/", id, "/pause", bodies[i]);
        check_error(s, &again, 409, "already paused");
    }
}

static void files_only_is_another_mode(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    pause_it(s, id, "{\"memory\":false}");
    check_state(s, id, "paused");
    assert_string_equal(got_text(s, "pauseMode"), "filesystem");
    struct http_answer answer = post(s, "/v2/sandboxes/", id, "/connect", "{}");
    check_status(&answer, 201);
    check_state(s, id, "running");
    assert_null(json_object_get(s->last, "pauseMode"));
}

static void wrong_bodies_are_refused_by_the_name_of_the_field(void **state)
{
    static const struct {
        const char *prefix, *what, *body, *field;
    } cases[] = {
        { "/sandboxes/", "/pause", "{\"memory\":\"no\"}", "'memory'" },
        { "/sandboxes/", "/pause", "{\"memory\":0}", "'memory'" },
        { "/sandboxes/", "/pause", "{\"requireHealthyGuest\":\"x\"}", "'requireHealthyGuest'" },
        { "/sandboxes/", "/pause", "[]", "" },
        { "/sandboxes/", "/pause", "{", "" },
        { "/sandboxes/", "/connect", "{}", "'timeout'" },
        { "/sandboxes/", "/connect", "{\"timeout\":\"5\"}", "'timeout'" },
        { "/v2/sandboxes/", "/connect", "{\"timeout\":-1}", "'timeout'" },
        { "/v2/sandboxes/", "/connect", "{\"timeout\":1.5}", "'timeout'" },
        { "/v2/sandboxes/", "/connect", "{\"memory\":\"x\"}", "'memory'" },
        { "/v2/sandboxes/", "/connect", "{\"timeout\":86401}", "86400 seconds" },
        { "/sandboxes/", "/resume", "{\"timeout\":[]}", "'timeout'" },
        { "/sandboxes/", "/resume", "{\"autoPause\":1}", "'autoPause'" },
        { "/sandboxes/", "/resume", "{\"autoPause\":true}", "cannot be changed by a resume" },
        { "/sandboxes/", "/fork", "{\"count\":0}", "'count'" },
        { "/sandboxes/", "/fork", "{\"count\":101}", "'count'" },
        { "/sandboxes/", "/fork", "{\"count\":\"2\"}", "'count'" },
        { "/sandboxes/", "/fork", "{\"timeout\":0}", "'timeout'" },
        { "/sandboxes/", "/fork", "{\"timeout\":86401}", "86400 seconds" },
    };
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct http_answer answer = post(s, cases[i].prefix, id, cases[i].what, cases[i].body);
        check_error(s, &answer, 400, cases[i].field);
        struct http_answer bad_id = post(s, cases[i].prefix, "NOT_AN_ID", cases[i].what, cases[i].body);
        check_error(s, &bad_id, 400, "Invalid sandbox ID");
    }
    check_state(s, id, "running");
}

static void a_sandbox_that_is_not_there_is_a_404(void **state)
{
    static const char *const calls[] = { "/pause", "/resume", "/fork", "/snapshots" };
    struct served *s = *state;

    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        struct http_answer answer = post(s, "/sandboxes/", "inone", calls[i], "{}");
        check_error(s, &answer, 404, NULL);
    }
    struct http_answer answer = post(s, "/v2/sandboxes/", "inone", "/connect", "{}");
    check_error(s, &answer, 404, NULL);
}

/* ---- a guest that does not answer ---- */

static void a_silent_guest_is_paused_and_marked_and_comes_back_by_a_reboot(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    hang_up(s, FAKE_GUEST_HANGS_UP);
    pause_it(s, id, "{}");
    check_state(s, id, "paused");
    assert_true(json_is_true(json_object_get(s->last, "envdUnresponsiveAtPause")));
    CALL(s, "GET", "/v2/sandboxes", NULL);
    assert_true(json_is_true(json_object_get(json_array_get(s->last, 0), "envdUnresponsiveAtPause")));
    struct http_answer answer = post(s, "/v2/sandboxes/", id, "/connect", "{}");
    check_error(s, &answer, 409, NULL);
    assert_string_equal(got_text(s, "error_code"), "sandbox_snapshot_guest_agent_unresponsive");
    answer = post(s, "/sandboxes/", id, "/resume", NULL);
    check_error(s, &answer, 409, NULL);
    assert_string_equal(got_text(s, "error_code"), "sandbox_snapshot_guest_agent_unresponsive");
    hang_up(s, FAKE_GUEST_ANSWERS);
    answer = post(s, "/v2/sandboxes/", id, "/connect", "{\"memory\":false}");
    check_status(&answer, 201);
    check_state(s, id, "running");
    assert_null(json_object_get(s->last, "envdUnresponsiveAtPause"));
}

static void a_pause_that_needs_an_answer_is_a_503_that_is_not_repeated(void **state)
{
    static const char *const bodies[] = { "{\"requireHealthyGuest\":true}", "{\"memory\":false}" };
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    hang_up(s, FAKE_GUEST_HANGS_UP);
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct http_answer answer = post(s, "/sandboxes/", id, "/pause", bodies[i]);
        check_error(s, &answer, 503, "guestd");
        assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
        check_state(s, id, "running");
    }
}

static void a_pause_that_the_machine_refuses_says_why(void **state)
{
    static const struct {
        enum err_kind kind;
        unsigned status;
        const char *retry;
    } cases[] = {
        { ERR_INVALID, 400, NULL },
        { ERR_FULL, 507, "false" },
        { ERR_UNAVAILABLE, 503, "true" },
    };
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        pthread_mutex_lock(&s->rig.fake.lock);
        struct err *why = &s->rig.fake.pause_errs[PAUSE_FREEZE][true];
        *why = (struct err){ .kind = cases[i].kind };
        snprintf(why->message, sizeof why->message, "the reason");
        s->rig.fake.pause_errs[PAUSE_FREEZE][false] = *why;
        pthread_mutex_unlock(&s->rig.fake.lock);
        struct http_answer answer = post(s, "/sandboxes/", id, "/pause", "{}");
        check_error(s, &answer, cases[i].status, "the reason");
        const char *retry = answer_header(s, &answer, "Should-Retry");
        assert_int_equal(retry != NULL, cases[i].retry != NULL);
        if (retry)
            assert_string_equal(retry, cases[i].retry);
        if (cases[i].status == 503)
            assert_string_equal(answer_header(s, &answer, "Retry-After"), "1");
        check_state(s, id, "running");
    }
}

static void shut_gates(struct served *s, unsigned calls)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.pause_gates = calls;
    pthread_cond_broadcast(&s->rig.fake.changed);
    pthread_mutex_unlock(&s->rig.fake.lock);
}

static void wait_at_gate(struct served *s, unsigned count)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    while (s->rig.fake.at_pause_gate < count)
        pthread_cond_wait(&s->rig.fake.changed, &s->rig.fake.lock);
    pthread_mutex_unlock(&s->rig.fake.lock);
}

static void slow_pauses_of_a_key_leave_workers_for_other_calls(void **state)
{
    enum { MANY = LIMIT_PAUSES + 4 };
    struct served *s = *state;
    const char *ids[MANY];
    int fds[MANY];
    char room[512];

    for (int i = 0; i < MANY; i++)
        ids[i] = served_create(s, BASE);
    shut_gates(s, BIT(PAUSE_FREEZE));
    for (int i = 0; i < MANY; i++) {
        fds[i] = served_connect(s);
        MUST(fd_write_all(fds[i],
                          arena_format(&s->rig.arena,
                                       "POST /sandboxes/%s/pause HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n"
                                       "Connection: close\r\nContent-Length: 0\r\n\r\n",
                                       ids[i], s->key),
                          &err));
    }
    wait_at_gate(s, LIMIT_PAUSES_PER_KEY);
    /* On its way it is paused, and nobody can tell yet what was kept. */
    size_t paused = 0;
    for (int i = 0; i < MANY; i++) {
        get(s, ids[i]);
        paused += strcmp(got_text(s, "state"), "paused") == 0;
        assert_null(json_object_get(s->last, "pauseMode"));
    }
    assert_int_equal(paused, LIMIT_PAUSES_PER_KEY);
    const char *other = served_create(s, BASE);
    assert_int_equal(CALL(s, "DELETE", served_path(s, "/sandboxes/", other, ""), NULL).status, 204);
    shut_gates(s, 0);
    for (int i = 0; i < MANY; i++) {
        ssize_t n = recv(fds[i], room, sizeof room, MSG_WAITALL);
        assert_true(n > 13);
        assert_memory_equal(room, "HTTP/1.1 204 ", 13);
        close(fds[i]);
        check_state(s, ids[i], "paused");
    }
}

/* ---- connect and resume ---- */

static void a_connect_says_whether_it_has_resumed(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    get(s, id);
    char *token = arena_text(&s->rig.arena, str_from(got_text(s, "envdAccessToken")));
    struct http_answer answer = post(s, "/v2/sandboxes/", id, "/connect", NULL);
    check_status(&answer, 200);
    pause_it(s, id, NULL);
    answer = post(s, "/v2/sandboxes/", id, "/connect", NULL);
    check_status(&answer, 201);
    assert_string_equal(got_text(s, "sandboxID"), id);
    assert_string_equal(got_text(s, "envdAccessToken"), token);
    pause_it(s, id, NULL);
    answer = post(s, "/sandboxes/", id, "/connect", "{\"timeout\":1000}");
    check_status(&answer, 201);
    get(s, id);
    assert_true(llabs(got_time(s, "endAt") - got_time(s, "startedAt") - INT64_C(1000) * 1000000) < 1000000);
    answer = post(s, "/sandboxes/", id, "/connect", "{\"timeout\":1,\"memory\":false}");
    check_status(&answer, 200); /* no reboot of one that runs, and no shorter deadline */
    get(s, id);
    assert_true(llabs(got_time(s, "endAt") - got_time(s, "startedAt") - INT64_C(1000) * 1000000) < 1000000);
}

static void a_resume_is_for_paused_ones(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    struct http_answer answer = post(s, "/sandboxes/", id, "/resume", NULL);
    check_error(s, &answer, 409, "running");
    assert_null(json_object_get(s->last, "error_code"));
    pause_it(s, id, NULL);
    answer = post(s, "/sandboxes/", id, "/resume", "{\"autoPause\":false}");
    check_status(&answer, 201);
    get(s, id);
    assert_true(llabs(got_time(s, "endAt") - got_time(s, "startedAt") - INT64_C(15) * 1000000) < 1000000);
}

static void what_a_paused_one_cannot_do(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    pause_it(s, id, NULL);
    struct http_answer answer = post(s, "/sandboxes/", id, "/timeout", "{\"timeout\":5}");
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "PUT", served_path(s, "/sandboxes/", id, "/network"), "{}");
    check_error(s, &answer, 404, NULL);
    answer = post(s, "/sandboxes/", id, "/fork", "{}");
    check_error(s, &answer, 409, NULL);
    answer = post(s, "/sandboxes/", id, "/snapshots", "{}");
    check_error(s, &answer, 409, NULL);
    answer = CALL(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL);
    check_status(&answer, 204);
    answer = CALL(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL);
    check_error(s, &answer, 404, NULL);
    answer = post(s, "/v2/sandboxes/", id, "/connect", NULL);
    check_error(s, &answer, 404, NULL);
}

/* ---- lists ---- */

static size_t listed(struct served *s, const char *target, const char *total)
{
    struct http_answer answer = CALL(s, "GET", target, NULL);
    const char *got = answer_header(s, &answer, "X-Total-Running");

    check_status(&answer, 200);
    assert_int_equal(got != NULL, total != NULL);
    if (total)
        assert_string_equal(got, total);
    return json_array_size(s->last);
}

static void lists_have_the_states_that_are_asked_for(void **state)
{
    struct served *s = *state;
    const char *first = served_create(s, BASE), *second = served_create(s, BASE);

    pause_it(s, first, NULL);
    assert_int_equal(listed(s, "/v2/sandboxes", "1"), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "state")), "running");
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 1), "state")), "paused");
    assert_int_equal(listed(s, "/v2/sandboxes?state=running%2Cpaused", "1"), 2);
    assert_int_equal(listed(s, "/v2/sandboxes?state=paused", NULL), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "sandboxID")), first);
    assert_int_equal(listed(s, "/v2/sandboxes?state=running", "1"), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "sandboxID")), second);
    assert_int_equal(listed(s, "/sandboxes", NULL), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(s->last, 0), "sandboxID")), second);
}

static void the_detail_tells_what_happens_at_the_deadline(void **state)
{
    static const struct {
        const char *fields, *on_timeout;
        bool auto_resume;
    } cases[] = {
        { "", "kill", false },
        { ",\"autoPause\":false", "kill", false },
        { ",\"autoPause\":true", "pause", false },
        { ",\"autoPause\":true,\"autoPauseMemory\":false", "pause", false },
        { ",\"autoPause\":true,\"autoResume\":{\"enabled\":true}", "pause", true },
        { ",\"autoPause\":true,\"autoPauseMemory\":false,\"autoResume\":{\"enabled\":false}", "pause", false },
        { ",\"autoResume\":{}", "kill", false },
    };
    struct served *s = *state;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct str body = arena_format(&s->rig.arena, "{\"templateID\":\"base\"%s}", cases[i].fields);
        get(s, served_create(s, body.at));
        const json_t *lifecycle = json_object_get(s->last, "lifecycle");
        assert_string_equal(json_string_value(json_object_get(lifecycle, "onTimeout")), cases[i].on_timeout);
        assert_int_equal(json_is_true(json_object_get(lifecycle, "autoResume")), cases[i].auto_resume);
    }
}

static void events_and_log_lines_tell_of_pauses(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    pause_it(s, id, NULL);
    struct http_answer answer = post(s, "/v2/sandboxes/", id, "/connect", NULL);
    check_status(&answer, 201);
    CALL(s, "GET", served_path(s, "/events/sandboxes/", id, "?types=sandbox.lifecycle.paused"), NULL);
    assert_int_equal(json_array_size(s->last), 1);
    CALL(s, "GET", served_path(s, "/events/sandboxes/", id, "?types=sandbox.lifecycle.resumed"), NULL);
    assert_int_equal(json_array_size(s->last), 1);
    answer = CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL);
    char *text = arena_text(&s->rig.arena, answer.body);
    assert_non_null(strstr(text, "\"sandbox paused\""));
    assert_non_null(strstr(text, "\"sandbox resumed\""));
}

/* ---- fork ---- */

static void a_fork_answers_one_entry_for_each_copy(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"a\":\"b\"}}");

    struct http_answer answer = post(s, "/sandboxes/", id, "/fork", NULL);
    check_status(&answer, 201);
    assert_int_equal(json_array_size(s->last), 1);
    answer = post(s, "/sandboxes/", id, "/fork", "{\"count\":2,\"timeout\":60}");
    check_status(&answer, 201);
    assert_int_equal(json_array_size(s->last), 2);
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), "null"));
    json_t *made = json_incref(s->last);
    for (size_t i = 0; i < 2; i++) {
        const json_t *entry = json_array_get(made, i), *sandbox = json_object_get(entry, "sandbox");
        assert_null(json_object_get(entry, "error"));
        assert_int_equal(strlen(json_string_value(json_object_get(sandbox, "envdAccessToken"))), 64);
        const char *copy = json_string_value(json_object_get(sandbox, "sandboxID"));
        assert_string_not_equal(copy, id);
        get(s, copy);
        assert_string_equal(got_text(s, "templateID"), "tbase");
        assert_string_equal(json_string_value(json_object_get(json_object_get(s->last, "metadata"), "a")), "b");
    }
    assert_string_not_equal(
        json_string_value(json_object_get(json_object_get(json_array_get(made, 0), "sandbox"), "envdAccessToken")),
        json_string_value(json_object_get(json_object_get(json_array_get(made, 1), "sandbox"), "envdAccessToken")));
    json_decref(made);
    check_state(s, id, "running");
}

static void a_copy_that_fails_is_an_error_among_the_others(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, BASE);

    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.start = FAKE_START_IS_FULL;
    pthread_mutex_unlock(&s->rig.fake.lock);
    struct http_answer answer = post(s, "/sandboxes/", id, "/fork", "{\"count\":2}");
    check_status(&answer, 201);
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), "null"));
    assert_int_equal(json_array_size(s->last), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *entry = json_array_get(s->last, i), *error = json_object_get(entry, "error");
        assert_null(json_object_get(entry, "sandbox"));
        assert_int_equal(json_integer_value(json_object_get(error, "code")), 507);
        assert_non_null(strstr(json_string_value(json_object_get(error, "message")), "disk"));
    }
    check_state(s, id, "running");
}

#define SERVED(name) cmocka_unit_test_setup_teardown(name, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(a_body_is_optional_and_the_second_pause_is_a_409),
        SERVED(files_only_is_another_mode),
        SERVED(wrong_bodies_are_refused_by_the_name_of_the_field),
        SERVED(a_sandbox_that_is_not_there_is_a_404),
        SERVED(a_silent_guest_is_paused_and_marked_and_comes_back_by_a_reboot),
        SERVED(a_pause_that_needs_an_answer_is_a_503_that_is_not_repeated),
        SERVED(a_pause_that_the_machine_refuses_says_why),
        SERVED(slow_pauses_of_a_key_leave_workers_for_other_calls),
        SERVED(a_connect_says_whether_it_has_resumed),
        SERVED(a_resume_is_for_paused_ones),
        SERVED(what_a_paused_one_cannot_do),
        SERVED(lists_have_the_states_that_are_asked_for),
        SERVED(the_detail_tells_what_happens_at_the_deadline),
        SERVED(events_and_log_lines_tell_of_pauses),
        SERVED(a_fork_answers_one_entry_for_each_copy),
        SERVED(a_copy_that_fails_is_an_error_among_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
