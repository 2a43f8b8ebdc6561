#include "guest/interpreter/line.h"

#include "test.h"
#include "wire/json.h"

static struct buf made;

static int set_up(void **state)
{
    (void)state;
    made = buf_make(NULL, 1 << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    buf_done(&made);
    return 0;
}

/* One line, pure ASCII, that parses. */
static json_t *parse_line(void)
{
    struct err err;
    assert_true(made.len > 1 && made.data[made.len - 1] == '\n');
    assert_true(line_is_clean(str_of(made.data, made.len - 1)));
    json_t *json = json_parse_object(buf_str(&made), &err);
    assert_non_null(json);
    buf_clear(&made);
    return json;
}

static void check_text(struct str given, struct str want)
{
    line_add_stream(&made, LINE_STDOUT, given, 0);
    auto_json json_t *json = parse_line();
    CHECK_STR(json_str(json_object_get(json, "text")), want);
    CHECK_STR(json_str(json_object_get(json, "timestamp")), STR("1970-01-01T00:00:00.000000+00:00"));
}

static void every_text_becomes_ascii_and_comes_back(void **state)
{
    (void)state;
    check_text(STR("plain\n"), STR("plain\n"));
    check_text(STR("\"quoted\" back\\slash \t\r\x7f"), STR("\"quoted\" back\\slash \t\r\x7f"));
    check_text(STR("ünï ☃ 🦄 \u2028 \xc2\x85"), STR("ünï ☃ 🦄 \u2028 \xc2\x85"));
}

static void what_is_not_utf8_becomes_the_replacement_character(void **state)
{
    (void)state;
    check_text(STR("a\xff z"), STR("a\uFFFD z"));
    check_text(STR("\xc3"), STR("\uFFFD"));
    check_text(STR("\xed\xa0\x80"), STR("\uFFFD\uFFFD\uFFFD"));
    check_text(STR("\xf0\x9f\xa6"), STR("\uFFFD\uFFFD\uFFFD"));
}

static void the_beginning_of_a_character_waits_for_its_end(void **state)
{
    (void)state;
    assert_int_equal(line_whole_chars(STR("")), 0);
    assert_int_equal(line_whole_chars(STR("ab")), 2);
    assert_int_equal(line_whole_chars(STR("a\xe2\x98\x83")), 4);
    assert_int_equal(line_whole_chars(STR("a\xe2\x98")), 1);
    assert_int_equal(line_whole_chars(STR("a\xe2")), 1);
    assert_int_equal(line_whole_chars(STR("a\xf0\x9f\xa6")), 1);
    /* Bytes that can never become a character do not wait. */
    assert_int_equal(line_whole_chars(STR("a\xff")), 2);
    assert_int_equal(line_whole_chars(STR("\x80\x80\x80\x80")), 4);
}

static void a_line_with_anything_else_in_it_is_not_clean(void **state)
{
    (void)state;
    assert_true(line_is_clean(STR("{\"type\": \"result\"}")));
    assert_false(line_is_clean(STR("")));
    assert_false(line_is_clean(STR("{}\n{}")));
    assert_false(line_is_clean(STR("{\"a\": \"ü\"}")));
    assert_false(line_is_clean(STR("not json")));
}

static void an_error_always_has_its_three_fields(void **state)
{
    (void)state;
    line_add_error(&made, STR("NameError"), STR("name 'x' is not defined"), STR(""));
    auto_json json_t *json = parse_line();
    CHECK_STR(json_str(json_object_get(json, "name")), STR("NameError"));
    CHECK_STR(json_str(json_object_get(json, "value")), STR("name 'x' is not defined"));
    CHECK_STR(json_str(json_object_get(json, "traceback")), STR(""));
}

static void a_bundle_is_sorted_into_short_names_and_the_rest(void **state)
{
    (void)state;
    auto_json json_t *bundle =
        json_pack("{s:s, s:s, s:[i], s:n, s:{s:i}}", "text/plain", "'abc'", "text/html", "<b>☃</b>", "application/json",
                  1, "text/latex", "application/vnd.x+json", "a", 1);
    line_add_result(&made, bundle, true);
    auto_json json_t *json = parse_line();
    CHECK_STR(json_str(json_object_get(json, "text")), STR("abc"));
    CHECK_STR(json_str(json_object_get(json, "html")), STR("<b>☃</b>"));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(json, "json"), 0)), 1);
    assert_null(json_object_get(json, "latex"));
    assert_int_equal(json_object_size(json_object_get(json, "extra")), 1);
    assert_true(json_is_true(json_object_get(json, "is_main_result")));
}

static void only_a_text_that_is_quoted_as_a_whole_loses_its_quotes(void **state)
{
    (void)state;
    struct str pairs[][2] = { { STR("'a'"), STR("a") }, { STR("\"a\""), STR("a") },
                              { STR("'"), STR("'") },   { STR("'a\""), STR("'a\"") },
                              { STR("''"), STR("") },   { STR("[1] \"a\""), STR("[1] \"a\"") } };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        auto_json json_t *bundle = json_pack("{s:s%}", "text/plain", pairs[i][0].at, pairs[i][0].len);
        line_add_result(&made, bundle, false);
        auto_json json_t *json = parse_line();
        CHECK_STR(json_str(json_object_get(json, "text")), pairs[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_text_becomes_ascii_and_comes_back),
        CASE(what_is_not_utf8_becomes_the_replacement_character),
        CASE(the_beginning_of_a_character_waits_for_its_end),
        CASE(a_line_with_anything_else_in_it_is_not_clean),
        CASE(an_error_always_has_its_three_fields),
        CASE(a_bundle_is_sorted_into_short_names_and_the_rest),
        CASE(only_a_text_that_is_quoted_as_a_whole_loses_its_quotes),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
