#include "base/clock.h"
#include "served.h"

/* Created, its deadline moved, killed. */
static const char *a_whole_life(struct served *s)
{
    const char *id = arena_text(&s->rig.arena,
                                str_from(served_create(s, "{\"templateID\":\"base\",\"metadata\":{\"job\":\"42\"}}")));

    assert_int_equal(CALL(s, "POST", served_path(s, "/sandboxes/", id, "/timeout"), "{\"timeout\":100}").status, 204);
    assert_int_equal(CALL(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL).status, 204);
    return id;
}

static const char *text_at(const json_t *list, size_t at, const char *name)
{
    const char *text = json_string_value(json_object_get(json_array_get(list, at), name));

    assert_non_null(text);
    return text;
}

static void a_life_is_told_as_events(void **state)
{
    struct served *s = *state;
    const char *id = a_whole_life(s);

    assert_int_equal(CALL(s, "GET", served_path(s, "/events/sandboxes/", id, ""), NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 3);
    assert_string_equal(text_at(s->last, 0, "type"), "sandbox.lifecycle.killed");
    assert_string_equal(text_at(s->last, 2, "type"), "sandbox.lifecycle.created");
    assert_string_equal(text_at(s->last, 0, "sandboxId"), id);
    assert_string_equal(text_at(s->last, 0, "sandboxTemplateId"), "tbase");
    const json_t *data = json_object_get(json_array_get(s->last, 0), "eventData");
    assert_string_equal(json_string_value(json_object_get(data, "kill_reason")), "request");
    assert_string_equal(json_string_value(json_object_get(json_object_get(data, "sandbox_metadata"), "job")), "42");

    (void)a_whole_life(s);
    assert_int_equal(CALL(s, "GET", "/events/sandboxes?orderAsc=true&limit=4", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 4);
    assert_string_equal(text_at(s->last, 0, "sandboxId"), id);
    assert_int_equal(CALL(s, "GET",
                          "/events/sandboxes?types=sandbox.lifecycle.created&types=sandbox.lifecycle.killed&offset=1",
                          NULL)
                         .status,
                     200);
    assert_int_equal(json_array_size(s->last), 3);
    assert_int_equal(CALL(s, "GET", "/events/sandboxes/inone", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
}

static void logs_are_lines_that_the_command_line_can_parse(void **state)
{
    struct served *s = *state;
    const char *id = a_whole_life(s);

    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL).status, 200);
    const json_t *logs = json_object_get(s->last, "logs"), *entries = json_object_get(s->last, "logEntries");
    assert_int_equal(json_array_size(logs), 3);
    assert_int_equal(json_array_size(entries), 3);
    for (size_t i = 0; i < 3; i++) {
        struct err err;
        auto_json json_t *line = json_parse_object(str_from(text_at(logs, i, "line")), &err);
        assert_non_null(line);
        assert_string_equal(json_string_value(json_object_get(line, "level")), "info");
        assert_true(json_is_string(json_object_get(line, "message")));
        assert_string_equal(text_at(entries, i, "level"), "info");
        assert_true(json_is_object(json_object_get(json_array_get(entries, i), "fields")));
    }
    assert_string_equal(text_at(entries, 0, "message"), "sandbox started from template tbase");
    assert_string_equal(text_at(entries, 2, "message"), "sandbox ended: request");

    /* Following: whatever comes after the last one, which is nothing. */
    int64_t last_us;
    assert_true(clock_parse(str_from(text_at(logs, 2, "timestamp")), &last_us));
    char query[64];
    snprintf(query, sizeof query, "/logs?start=%lld&limit=10", (long long)(last_us / 1000 + 1));
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "logs")), 0);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs?limit=1"), NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "logs")), 1);
    assert_int_equal(CALL(s, "GET", "/sandboxes/inone/logs", NULL).status, 200);
}

static void logs_go_both_ways_and_are_searched(void **state)
{
    static const struct {
        const char *query;
        size_t count;
        const char *first;
    } rows[] = {
        { "", 3, "sandbox ended: request" },
        { "?direction=forward", 3, "sandbox started from template tbase" },
        { "?limit=1", 1, "sandbox ended: request" },
        { "?limit=0", 0, "" },
        { "?search=started", 1, "sandbox started from template tbase" },
        { "?search=nonesuch", 0, "" },
        { "?level=debug", 3, "sandbox ended: request" },
        { "?level=warn", 0, "" },
        { "?cursor=1&direction=forward", 3, "sandbox started from template tbase" },
        { "?cursor=1", 0, "" },
    };
    struct served *s = *state;
    const char *id = a_whole_life(s);

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *target =
            arena_text(&s->rig.arena, arena_format(&s->rig.arena, "/v2/sandboxes/%s/logs%s", id, rows[i].query));
        assert_int_equal(CALL(s, "GET", target, NULL).status, 200);
        const json_t *logs = json_object_get(s->last, "logs");
        assert_int_equal(json_array_size(logs), rows[i].count);
        if (rows[i].count)
            assert_string_equal(text_at(logs, 0, "message"), rows[i].first);
    }
}

static void commands_and_events_are_merged_by_time(void **state)
{
    struct served *s = *state;
    const char *id = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));
    struct guestlink_log_line lines[] = {
        { .kind = GUESTLINK_LOG_STARTED, .at_us = clock_wall_us(), .pid = 7, .text = STR_INIT("echo \"x\"") },
        { .kind = GUESTLINK_LOG_ENDED, .at_us = clock_wall_us(), .pid = 7, .exit_code = 3, .text = STR_INIT("exit 3") },
    };
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    guestlink_write_log(&message, &(struct guestlink_log){ .dropped = 4, .line_count = 2, .lines = lines });
    rig_say(&s->rig, str_from(id), buf_str(&message));
    do
        assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL).status, 200);
    while (json_array_size(json_object_get(s->last, "logs")) < 4);
    assert_int_equal(CALL(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL).status, 204);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL).status, 200);
    static const char *const messages[] = { "sandbox started from template tbase",
                                            "4 lines are missing here: too many at once", "Process with pid 7 started",
                                            "Process with pid 7 ended", "sandbox ended: request" };
    const json_t *entries = json_object_get(s->last, "logEntries");
    assert_int_equal(json_array_size(entries), COUNT_OF(messages));
    /* What was dropped has the time at which we heard of it; the order of all others is that of their times. */
    for (size_t i = 0; i < COUNT_OF(messages); i += i == 0 ? 2 : 1)
        assert_string_equal(text_at(entries, i, "message"), messages[i]);
    const json_t *fields = json_object_get(json_array_get(entries, 2), "fields");
    assert_string_equal(json_string_value(json_object_get(fields, "command")), "echo \"x\"");
    assert_int_equal(CALL(s, "GET", served_path(s, "/v2/sandboxes/", id, "/logs"), NULL).status, 200);
    assert_string_equal(text_at(json_object_get(s->last, "logs"), 1, "message"), "Process with pid 7 ended");
    assert_int_equal(CALL(s, "GET", served_path(s, "/v2/sandboxes/", id, "/logs?search=echo"), NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "logs")), 1);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs?limit=2"), NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "logs")), 2);
}

static void malformed_queries_are_refused(void **state)
{
    static const char *const targets[] = {
        "/events/sandboxes?limit=0",
        "/events/sandboxes?limit=101",
        "/events/sandboxes?offset=-1",
        "/events/sandboxes?orderAsc=yes",
        "/events/sandboxes?types=sandbox.lifecycle.born",
        "/events/sandboxes/..",
        "/sandboxes/inone/logs?limit=1001",
        "/sandboxes/inone/logs?start=yesterday",
        "/v2/sandboxes/inone/logs?direction=up",
        "/v2/sandboxes/inone/logs?level=loud",
        "/v2/sandboxes/inone/logs?search=%zz",
    };
    struct served *s = *state;

    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        struct http_answer answer = CALL(s, "GET", targets[i], NULL);
        check_error(s, &answer, 400, "");
    }
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_life_is_told_as_events),           API_CASE(logs_are_lines_that_the_command_line_can_parse),
        API_CASE(logs_go_both_ways_and_are_searched), API_CASE(commands_and_events_are_merged_by_time),
        API_CASE(malformed_queries_are_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
