#include "base/clock.h"

#include "test.h"

static void times_survive_the_round_trip(void **state)
{
    (void)state;
    static const int64_t times[] = { 0, 1, 1767607200120394, 4102444799999999 };
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        char room[CLOCK_TEXT_BYTES];
        int64_t back;
        assert_true(clock_parse(str_from(clock_text(times[i], room)), &back));
        assert_true(back == times[i]);
    }
}

static void offsets_and_fractions_are_understood(void **state)
{
    (void)state;
    int64_t a, b;
    assert_true(clock_parse(STR("2026-01-05T00:00:00+02:00"), &a));
    assert_true(clock_parse(STR("2026-01-04T22:00:00.000000000Z"), &b));
    assert_true(a == b);
    assert_true(clock_parse(STR("2026-01-04T22:00:00.5Z"), &b));
    assert_true(b - a == 500000);
}

static void broken_times_are_refused(void **state)
{
    (void)state;
    static const char *const broken[] = { "",
                                          "2026",
                                          "2026-13-01T00:00:00Z",
                                          "2026-01-01 00:00:00Z",
                                          "2026-01-01T00:00:00",
                                          "2026-01-01T00:00:00.Z",
                                          "2026-01-01T00:00:00Zx",
                                          "2026-01-01T24:00:00Z",
                                          "2026-01-01T00:00:00.1234567890Z" };
    int64_t t;
    for (size_t i = 0; i < COUNT_OF(broken); i++)
        assert_false(clock_parse(str_from(broken[i]), &t));
}

static uint64_t other_mono_us(void)
{
    return 7001999;
}

static int64_t other_wall_us(void)
{
    return 42;
}

static void another_source_takes_the_place_of_the_machine(void **state)
{
    static const struct clock_source other = { other_mono_us, other_wall_us };

    (void)state;
    uint64_t before_us = clock_mono_us();
    clock_use(&other);
    assert_int_equal(clock_mono_us(), 7001999);
    assert_int_equal(clock_mono_ms(), 7001);
    assert_int_equal(clock_wall_us(), 42);
    clock_use(NULL);
    assert_true(clock_mono_us() >= before_us);
    assert_true(clock_wall_us() > 42);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(times_survive_the_round_trip),
        CASE(offsets_and_fractions_are_understood),
        CASE(broken_times_are_refused),
        CASE(another_source_takes_the_place_of_the_machine),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
