#include "sandbox/metrics.h"

#include <stdio.h>

#include "base/arena.h"
#include "test.h"

static const int64_t BIRTH = INT64_C(1800000000000000), SECOND = 1000000;
#define TEAM STR("team")
#define ID STR("isome")

static struct arena arena;

static int set_up(void **state)
{
    arena_init(&arena);
    *state = metrics_new();
    metrics_begin(*state, TEAM, ID, 2, BIRTH);
    return 0;
}

static int tear_down(void **state)
{
    metrics_free(*state);
    arena_done(&arena);
    return 0;
}

/* At `after_s` seconds of its life it has used so much CPU, and memory that tells when it was. */
static void add(struct metrics *metrics, int64_t after_s, uint64_t cpu_ms)
{
    struct stats stats = { .id = "isome",
                           .cpu_us = cpu_ms * 1000,
                           .memory_used_bytes = (uint64_t)after_s << 20,
                           .memory_limit_bytes = 1 << 30 };

    metrics_add(metrics, &stats, BIRTH + after_s * SECOND);
}

static struct sandbox_metric *get(struct metrics *metrics, int64_t start_s, int64_t end_s, size_t *out_count)
{
    struct sandbox_metric *list;

    metrics_get(metrics, TEAM, ID, start_s < 0 ? 0 : BIRTH + start_s * SECOND, end_s < 0 ? 0 : BIRTH + end_s * SECOND,
                &arena, &list, out_count);
    for (size_t i = 1; i < *out_count; i++)
        assert_true(list[i].at_us > list[i - 1].at_us);
    return list;
}

static void cpu_time_becomes_a_share_of_its_cpus(void **state)
{
    size_t count;

    add(*state, 1, 1000);  /* one of two CPUs for a second */
    add(*state, 6, 11000); /* both for five */
    add(*state, 11, 11000);
    add(*state, 16, 10000); /* one that ended was missed */
    add(*state, 21, 90000); /* and made up for */
    struct sandbox_metric *list = get(*state, -1, -1, &count);
    assert_int_equal(count, 5);
    assert_int_equal((int)list[0].cpu_percent, 50);
    assert_int_equal((int)list[1].cpu_percent, 100);
    assert_int_equal((int)list[2].cpu_percent, 0);
    assert_int_equal((int)list[3].cpu_percent, 0);
    assert_int_equal((int)list[4].cpu_percent, 100);
    assert_int_equal(list[0].cpu_count, 2);
    assert_int_equal(list[0].memory_total_bytes, 1 << 30);
}

static void traffic_adds_up_and_a_sample_has_the_total(void **state)
{
    struct sandbox_metric latest;
    size_t count;

    metrics_add_traffic(*state, ID, &(struct sandbox_traffic){ 10, 20, 1, UINT32_MAX, 1 });
    add(*state, 1, 0);
    metrics_add_traffic(*state, ID, &(struct sandbox_traffic){ 5, 5, 2, 7, 0 });
    metrics_add_traffic(*state, STR("inone"), &(struct sandbox_traffic){ 5, 5, 2, 7, 0 }); /* nobody's */
    assert_true(metrics_latest(*state, TEAM, ID, &latest));
    assert_int_equal(latest.traffic.bytes_in, 15);
    add(*state, 6, 0);
    struct sandbox_metric *list = get(*state, -1, -1, &count);
    assert_int_equal(count, 2);
    assert_int_equal(list[0].traffic.bytes_in, 10);
    assert_int_equal(list[0].traffic.open, 1);
    assert_int_equal(list[1].traffic.bytes_in, 15);
    assert_int_equal(list[1].traffic.bytes_out, 25);
    assert_int_equal(list[1].traffic.connections, 3);
    assert_int_equal(list[1].traffic.open, 0);
    assert_int_equal(list[1].traffic.refusals, UINT32_MAX); /* it does not wrap */
}

static void a_span_has_its_own_samples_only(void **state)
{
    size_t count;

    for (int i = 1; i <= 20; i++)
        add(*state, 5 * i, 0);
    struct sandbox_metric *list = get(*state, 10, 20, &count);
    assert_int_equal(count, 3);
    assert_int_equal(list[0].at_us, BIRTH + 10 * SECOND);
    (void)get(*state, -3600, 4, &count);
    assert_int_equal(count, 0);
    (void)get(*state, 101, -1, &count);
    assert_int_equal(count, 0);
    (void)get(*state, -1, -1, &count);
    assert_int_equal(count, 20);
}

static void a_day_costs_no_more_than_an_hour(void **state)
{
    const int64_t day_s = 24 * 3600;
    size_t count;

    for (int64_t at = 5; at <= day_s; at += 5)
        add(*state, at, 0);
    /* All of it, in steps of minutes. */
    struct sandbox_metric *list = get(*state, -1, -1, &count);
    assert_in_range(count, 200, LIMIT_METRICS);
    assert_true(list[0].at_us < BIRTH + 600 * SECOND);
    assert_true(list[count - 1].at_us > BIRTH + (day_s - 600) * SECOND);
    for (size_t i = 0; i < count; i++) {
        /* A mean of what it spans, which ends at its time. */
        int64_t at_s = (list[i].at_us - BIRTH) / SECOND, mean_s = (int64_t)(list[i].memory_used_bytes >> 20);
        assert_true(mean_s <= at_s && mean_s >= at_s - 700);
    }
    /* The last half hour, as it was sampled. */
    list = get(*state, day_s - 1800, day_s, &count);
    assert_int_equal(count, 361);
    assert_int_equal(list[1].at_us - list[0].at_us, 5 * SECOND);
    /* Two hours of it: half a minute is the step. */
    (void)get(*state, day_s - 7200, day_s, &count);
    assert_in_range(count, 30, 241);
}

static void others_learn_nothing(void **state)
{
    struct sandbox_metric metric, *list;
    size_t count;

    add(*state, 1, 0);
    assert_true(metrics_latest(*state, TEAM, ID, &metric));
    assert_false(metrics_latest(*state, STR("other"), ID, &metric));
    assert_false(metrics_latest(*state, TEAM, STR("inone"), &metric));
    metrics_get(*state, STR("other"), ID, 0, 0, &arena, &list, &count);
    assert_int_equal(count, 0);
}

static void one_that_is_gone_is_remembered_for_a_while(void **state)
{
    struct sandbox_metric metric;
    struct stats stats = { .id = "inone" };

    add(*state, 1, 0);
    metrics_end(*state, ID, BIRTH + 2 * SECOND);
    add(*state, 7, 0); /* measured before, told after */
    assert_true(metrics_latest(*state, TEAM, ID, &metric));
    assert_int_equal(metric.at_us, BIRTH + SECOND);
    metrics_add(*state, &stats, BIRTH); /* nobody's */
    metrics_end(*state, STR("inone"), BIRTH + (LIMIT_METRICS_KEPT_S + 1) * SECOND);
    assert_true(metrics_latest(*state, TEAM, ID, &metric));
    metrics_end(*state, STR("inone"), BIRTH + (LIMIT_METRICS_KEPT_S + 3) * SECOND);
    assert_false(metrics_latest(*state, TEAM, ID, &metric));
}

static void those_that_are_gone_are_bounded_in_number(void **state)
{
    struct sandbox_metric metric;
    char id[LIMIT_ID_BYTES];

    add(*state, 1, 0);
    metrics_end(*state, ID, BIRTH);
    for (int i = 0; i < LIMIT_METRICS_KEPT; i++) {
        assert_true(metrics_latest(*state, TEAM, ID, &metric));
        snprintf(id, sizeof id, "i%d", i);
        metrics_begin(*state, TEAM, str_from(id), 1, BIRTH);
        metrics_end(*state, str_from(id), BIRTH);
    }
    assert_false(metrics_latest(*state, TEAM, ID, &metric));
}

#define METRICS_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        METRICS_CASE(cpu_time_becomes_a_share_of_its_cpus),
        METRICS_CASE(a_span_has_its_own_samples_only),
        METRICS_CASE(traffic_adds_up_and_a_sample_has_the_total),
        METRICS_CASE(a_day_costs_no_more_than_an_hour),
        METRICS_CASE(others_learn_nothing),
        METRICS_CASE(one_that_is_gone_is_remembered_for_a_while),
        METRICS_CASE(those_that_are_gone_are_bounded_in_number),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
