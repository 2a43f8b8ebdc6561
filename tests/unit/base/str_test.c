#include "test.h"

static void cut_walks_a_list(void **state)
{
    (void)state;
    struct str rest = STR("a,,b"), item;
    assert_true(str_cut(&rest, ',', &item));
    CHECK_STR(item, STR("a"));
    assert_true(str_cut(&rest, ',', &item));
    CHECK_STR(item, STR(""));
    assert_true(str_cut(&rest, ',', &item));
    CHECK_STR(item, STR("b"));
    assert_false(str_cut(&rest, ',', &item));
}

static void numbers_are_digits_only_and_bounded(void **state)
{
    (void)state;
    uint64_t v = 7;
    assert_true(str_to_u64(STR("18446744073709551615"), UINT64_MAX, &v));
    assert_true(v == UINT64_MAX);
    assert_false(str_to_u64(STR("18446744073709551616"), UINT64_MAX, &v));
    assert_false(str_to_u64(STR(""), 10, &v));
    assert_false(str_to_u64(STR("+1"), 10, &v));
    assert_false(str_to_u64(STR(" 1"), 10, &v));
    assert_false(str_to_u64(STR("11"), 10, &v));
    assert_true(v == UINT64_MAX); /* untouched on failure */
}

static void a_path_refuses_a_zero_byte(void **state)
{
    (void)state;
    char room[8];
    struct err err;
    assert_false(str_to_path(str_of("a\0b", 3), room, sizeof room, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_false(str_to_path(STR(""), room, sizeof room, &err));
    assert_false(str_to_path(STR("12345678"), room, sizeof room, &err));
    assert_true(str_to_path(STR("1234567"), room, sizeof room, &err));
    assert_string_equal(room, "1234567");
}

static void skip_consumes_only_what_matches(void **state)
{
    (void)state;
    struct str s = STR("MAIL From:<x>");
    assert_false(str_skip(&s, STR("mail")));
    assert_true(str_skip_nocase(&s, STR("mail FROM:")));
    CHECK_STR(s, STR("<x>"));
    assert_false(str_skip(&s, STR("<xyz>")));
    CHECK_STR(str_trim(STR(" \ta b\t ")), STR("a b"));
}

static void letters_and_digits_are_those_of_ascii(void **state)
{
    (void)state;
    char text[] = "AbZ@[`{\xc3\x84\xe4";
    unsigned letters = 0, digits = 0, tokens = 0;

    text_lower(text, sizeof text - 1);
    assert_string_equal(text, "abz@[`{\xc3\x84\xe4");
    for (int c = 0; c < 256; c++) {
        letters += char_is_letter((char)c);
        digits += char_is_digit((char)c);
        tokens += char_is_token((char)c);
        assert_int_equal(char_is_alnum((char)c), char_is_letter((char)c) || char_is_digit((char)c));
    }
    assert_int_equal(letters, 52);
    assert_int_equal(digits, 10);
    assert_int_equal(tokens, 62 + 15);
}

static void a_token_has_no_separators_and_is_not_empty(void **state)
{
    (void)state;
    assert_true(str_is_token(STR("X-Api_Key.1~")));
    assert_false(str_is_token(STR("")));
    assert_false(str_is_token(STR("a b")));
    assert_false(str_is_token(STR("a:")));
    assert_false(str_is_token(STR("a\0")));
    assert_false(str_is_token(STR("\xc3\xa4")));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(cut_walks_a_list),
        CASE(numbers_are_digits_only_and_bounded),
        CASE(a_path_refuses_a_zero_byte),
        CASE(skip_consumes_only_what_matches),
        CASE(letters_and_digits_are_those_of_ascii),
        CASE(a_token_has_no_separators_and_is_not_empty),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
