#include "base/clock.h"
#include "served.h"

/* The first sample comes with the first or second tick of the sampler, and then a worker takes it. */
static void wait_for_metrics(struct served *s, const char *id)
{
    rig_stand();
    rig_turn(&s->rig, 1000);
    rig_turn(&s->rig, 1000);
    do {
        usleep(2000);
        assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/metrics"), NULL).status, 200);
    } while (json_array_size(s->last) == 0);
}

static void a_sandbox_has_metrics_soon_after_its_start(void **state)
{
    static const char *const names[] = { "cpuCount",        "cpuUsedPct",         "memUsed",
                                         "memTotal",        "memCache",           "diskUsed",
                                         "diskTotal",       "timestampUnix",      "networkBytesIn",
                                         "networkBytesOut", "networkConnections", "networkOpen",
                                         "networkRefused" };
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");

    wait_for_metrics(s, id);
    const json_t *first = json_array_get(s->last, 0);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_true(json_is_number(json_object_get(first, names[i])));
    assert_int_equal(json_integer_value(json_object_get(first, "memUsed")), 1 << 20);
    assert_int_equal(json_integer_value(json_object_get(first, "cpuCount")), 2);
    int64_t at_us;
    assert_true(clock_parse(json_str(json_object_get(first, "timestamp")), &at_us));
    assert_true(at_us <= clock_wall_us() && at_us > clock_wall_us() - 10 * INT64_C(1000000));
}

static void a_span_before_its_start_is_empty(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    long long now_s = clock_wall_us() / 1000000;
    char query[100];

    wait_for_metrics(s, id);
    snprintf(query, sizeof query, "/metrics?start=%lld&end=%lld", now_s - 3600, now_s - 1800);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
    snprintf(query, sizeof query, "/metrics?start=%lld&end=%lld", now_s - 10, now_s + 10);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL).status, 200);
    assert_true(json_array_size(s->last) > 0);
}

/* As some releases of the Python SDK send them. */
static void a_span_may_be_in_milliseconds(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    long long now_ms = clock_wall_us() / 1000;
    char query[100];

    wait_for_metrics(s, id);
    snprintf(query, sizeof query, "/metrics?start=%lld&end=%lld", now_ms - 3600000, now_ms - 1800000);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
    snprintf(query, sizeof query, "/metrics?start=%lld&end=%lld", now_ms - 10000, now_ms + 10000);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL).status, 200);
    assert_true(json_array_size(s->last) > 0);
    snprintf(query, sizeof query, "/metrics?start=%lld&end=%lld", now_ms, now_ms - 1);
    struct http_answer answer = CALL(s, "GET", served_path(s, "/sandboxes/", id, query), NULL);
    check_error(s, &answer, 400, "'start' is after 'end'");
}

static void metrics_outlive_the_sandbox_and_strangers_have_none(void **state)
{
    struct served *s = *state;
    const char *id = served_create(s, "{\"templateID\":\"base\"}");

    wait_for_metrics(s, id);
    assert_int_equal(CALL(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL).status, 204);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/metrics"), NULL).status, 200);
    assert_true(json_array_size(s->last) > 0);
    assert_int_equal(CALL(s, "GET", "/sandboxes/inone/metrics", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 0);
}

static void bad_spans_and_ids_are_refused(void **state)
{
    static const char *const targets[] = {
        "/sandboxes/inone/metrics?start=2&end=1",
        "/sandboxes/inone/metrics?start=x",
        "/sandboxes/inone/metrics?end=-1",
        "/sandboxes/inone/metrics?end=99999999999999999999",
        "/sandboxes/metrics",
        "/sandboxes/metrics?sandbox_ids=",
        "/sandboxes/metrics?sandbox_ids=ia,ia",
        "/sandboxes/metrics?sandbox_ids=ia,,ib",
        "/sandboxes/metrics?sandbox_ids=..",
    };
    struct served *s = *state;

    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        struct http_answer answer = CALL(s, "GET", targets[i], NULL);
        check_error(s, &answer, 400, "");
    }
    struct buf many = buf_make(&s->rig.arena, 10000);
    buf_format(&many, "/sandboxes/metrics?sandbox_ids=i0");
    for (int i = 1; i <= 100; i++)
        buf_format(&many, ",i%d", i);
    struct http_answer answer = CALL(s, "GET", arena_text(&s->rig.arena, buf_str(&many)), NULL);
    check_error(s, &answer, 400, "more than 100");
}

static void several_are_asked_for_at_once(void **state)
{
    struct served *s = *state;
    const char *first = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));
    const char *second = arena_text(&s->rig.arena, str_from(served_create(s, "{\"templateID\":\"base\"}")));

    wait_for_metrics(s, first);
    wait_for_metrics(s, second);
    const char *target = arena_text(
        &s->rig.arena, arena_format(&s->rig.arena, "/sandboxes/metrics?sandbox_ids=%s,inone,%s", first, second));
    assert_int_equal(CALL(s, "GET", target, NULL).status, 200);
    const json_t *map = json_object_get(s->last, "sandboxes");
    assert_int_equal(json_object_size(map), 2);
    assert_true(json_is_integer(json_object_get(json_object_get(map, second), "memTotal")));
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_sandbox_has_metrics_soon_after_its_start),
        API_CASE(a_span_before_its_start_is_empty),
        API_CASE(a_span_may_be_in_milliseconds),
        API_CASE(metrics_outlive_the_sandbox_and_strangers_have_none),
        API_CASE(bad_spans_and_ids_are_refused),
        API_CASE(several_are_asked_for_at_once),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
