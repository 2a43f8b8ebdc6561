#include "isolation/native/usage.h"

#include "test.h"

static void a_field_is_found_by_its_whole_name(void **state)
{
    (void)state;
    const struct str text = STR("total_cache_x 1\ncache 2\ntotal_cache 3\nbig 18446744073709551615\nbad x\nempty\n");
    uint64_t value = 7;

    assert_true(usage_field(text, STR("total_cache"), &value));
    assert_int_equal(value, 3);
    assert_true(usage_field(text, STR("big"), &value));
    assert_true(value == UINT64_MAX);
    assert_false(usage_field(text, STR("total"), &value));
    assert_false(usage_field(text, STR("bad"), &value));
    assert_false(usage_field(text, STR("empty"), &value));
    assert_false(usage_field(STR(""), STR("cache"), &value));
}

#define AFTER_NAME " S 1 2 3 0 -1 4194560 500 0 0 0 11 22 33 44 20 0 1 0 8000 12345678 99 184467 1 1 0 0\n"

static void a_process_is_read_whatever_it_calls_itself(void **state)
{
    static const char *const lines[] = {
        "42 (sleep)" AFTER_NAME,
        "42 (a b) c (d)" AFTER_NAME,
        "42 ())" AFTER_NAME,
        "42 (x) S 9 9 9 9 9)" AFTER_NAME,
    };
    (void)state;

    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        struct usage_process process;
        assert_true(usage_process_parse(str_from(lines[i]), &process));
        assert_int_equal(process.own_ticks, 33);
        assert_int_equal(process.children_ticks, 77);
        assert_int_equal(process.resident_pages, 99);
    }
}

static void what_is_no_process_is_refused(void **state)
{
    static const char *const lines[] = {
        "",
        "42",
        "42 (sleep",
        "42 (sleep)",
        "42 (sleep) S 1 2 3",
        "42 (x) S 1 2 3 0 -1 4 5 0 0 0 a b c d 2 0 1 0 8 1 9 1",
    };
    (void)state;

    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        struct usage_process process;
        assert_false(usage_process_parse(str_from(lines[i]), &process));
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_field_is_found_by_its_whole_name),
        CASE(a_process_is_read_whatever_it_calls_itself),
        CASE(what_is_no_process_is_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
