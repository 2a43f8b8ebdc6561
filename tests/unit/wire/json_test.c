#include "wire/json.h"

#include "base/limits.h"
#include "test.h"

static json_t *parsed(const char *text)
{
    struct err err;
    json_t *value = json_parse(str_from(text), &err);

    if (!value)
        fail_msg("%s: %s", text, err.message);
    return value;
}

static void malformed_text_is_refused(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR_INIT(""),         STR_INIT("{"),           STR_INIT("{} x"),     STR_INIT("{\"a\":1,}"),
        STR_INIT("NaN"),      STR_INIT("'a'"),         STR_INIT("\"\xff\""), STR_INIT("\"\\u0000\""),
        STR_INIT("\"a\nb\""), STR_INIT("\"\\ud800\""), STR_INIT("[1 2]"),    STR_INIT("\xef\xbb\xbf{}"),
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct err err = { 0 };
        assert_null(json_parse(bad[i], &err));
        assert_int_equal(err.kind, ERR_INVALID);
    }
}

static void a_body_that_is_not_an_object_is_refused(void **state)
{
    (void)state;
    struct err err;
    assert_null(json_parse_object(STR("[]"), &err));
    assert_null(json_parse_object(STR("null"), &err));
    auto_json json_t *object = json_parse_object(STR(" {\"a\":1} "), &err);
    assert_non_null(object);
}

static void a_zero_byte_in_a_text_is_refused_in_words_for_the_sender(void **state)
{
    (void)state;
    struct err err;

    assert_null(json_parse(STR("[\"a\\u0000b\"]"), &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_non_null(strstr(err.message, "a zero byte (\\u0000) in a text"));
}

static void nesting_is_bounded_and_brackets_in_text_do_not_count(void **state)
{
    (void)state;
    struct err err;
    char deep[2 * LIMIT_JSON_DEPTH + 4];

    for (int extra = 0; extra < 2; extra++) {
        size_t levels = LIMIT_JSON_DEPTH + (size_t)extra;
        memset(deep, '[', levels);
        memset(deep + levels, ']', levels);
        json_t *value = json_parse(str_of(deep, 2 * levels), &err);
        assert_true((value != NULL) == (extra == 0));
        json_decref(value);
    }
    assert_int_equal(err.kind, ERR_LIMIT);
    char text[200] = "\"";
    memset(text + 1, '[', 150);
    memcpy(text + 151, "\\\"[\"", 4);
    json_decref(parsed(text));
}

static void values_are_bounded_before_they_are_made(void **state)
{
    (void)state;
    struct err err;
    auto_buf struct buf text = buf_make(NULL, 1 << 20);

    /* The array itself and what is in it; commas in text do not count. */
    buf_add(&text, STR("[\",,,,\\\",,\""));
    for (int i = 0; i < LIMIT_JSON_VALUES - 3; i++)
        buf_add(&text, STR(",0"));
    buf_add(&text, STR("]"));
    auto_json json_t *fits = json_parse(buf_str(&text), &err);
    assert_non_null(fits);
    text.len--;
    buf_add(&text, STR(",0,0]"));
    assert_null(json_parse(buf_str(&text), &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    auto_json json_t *large = json_parse_large(buf_str(&text), LIMIT_JSON_LARGE_VALUES, &err);
    assert_non_null(large);

    buf_clear(&text);
    buf_add(&text, STR("{\"metadata\":["));
    for (int i = 0; i < LIMIT_JSON_VALUES / 2; i++)
        buf_add(&text, STR("{},"));
    buf_add(&text, STR("{}]}"));
    assert_null(json_parse_object(buf_str(&text), &err));
    assert_int_equal(err.kind, ERR_LIMIT);
}

static void the_last_of_duplicate_keys_wins(void **state)
{
    (void)state;
    struct err err;
    int64_t n = 0;
    auto_json json_t *object = parsed("{\"a\":1,\"a\":2}");
    assert_true(json_take_int(object, "a", JSON_REQUIRED, 0, 9, &n, &err));
    assert_int_equal(n, 2);
}

static void absent_and_null_leave_the_output_alone(void **state)
{
    (void)state;
    struct err err;
    auto_json json_t *object = parsed("{\"n\":null}");
    struct str text = STR("as it was");
    int64_t n = 7;
    bool b = true;

    assert_true(json_take_str(object, "n", JSON_OPTIONAL, &text, &err));
    assert_true(json_take_int(object, "n", JSON_OPTIONAL, 0, 1, &n, &err));
    assert_true(json_take_bool(object, "gone", JSON_OPTIONAL, &b, &err));
    CHECK_STR(text, STR("as it was"));
    assert_int_equal(n, 7);
    assert_true(b);
    assert_false(json_has(object, "n"));
    assert_false(json_take_str(object, "n", JSON_REQUIRED, &text, &err));
    CHECK_STR(str_from(err.message), STR("'n' is required"));
    const json_t *array = object;
    assert_true(json_take_array(object, "n", JSON_OPTIONAL, &array, &err));
    assert_null(array);
}

static void whole_numbers_come_in_many_spellings(void **state)
{
    (void)state;
    struct err err;
    static const char *const good[] = { "12", "12.0", "\"12\"", "\"12.0\"", "1.2e1", "\"1.2e1\"" };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        char text[64];
        int64_t n = 0;
        (void)snprintf(text, sizeof text, "{\"n\":%s}", good[i]);
        auto_json json_t *object = parsed(text);
        assert_true(json_take_int(object, "n", JSON_REQUIRED, 0, 100, &n, &err));
        assert_int_equal(n, 12);
    }
    static const char *const bad[] = { "1.5",   "\"\"",   "\" 12\"", "true",   "\"true\"", "[]",
                                       "1e300", "\"1x\"", "101",     "\"-1\"", "-1",       "\"99999999999999999999\"" };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char text[64];
        int64_t n = 5;
        (void)snprintf(text, sizeof text, "{\"n\":%s}", bad[i]);
        auto_json json_t *object = parsed(text);
        assert_false(json_take_int(object, "n", JSON_REQUIRED, 0, 100, &n, &err));
        assert_int_equal(n, 5);
    }
}

static void a_wrong_type_names_the_field(void **state)
{
    (void)state;
    struct err err;
    struct str text;
    bool b;
    const json_t *inner;
    auto_json json_t *object = parsed("{\"s\":1,\"b\":\"true\",\"o\":[],\"a\":{}}");
    assert_false(json_take_str(object, "s", JSON_OPTIONAL, &text, &err));
    CHECK_STR(str_from(err.message), STR("'s' must be a string"));
    assert_false(json_take_bool(object, "b", JSON_OPTIONAL, &b, &err));
    assert_false(json_take_object(object, "o", JSON_OPTIONAL, &inner, &err));
    assert_false(json_take_array(object, "a", JSON_OPTIONAL, &inner, &err));
    CHECK_STR(str_from(err.message), STR("'a' must be an array"));
}

static void the_writer_puts_commas_and_quotes(void **state)
{
    (void)state;
    auto_buf struct buf text = buf_make(NULL, 1000);
    struct json_out out = json_out_to(&text);
    json_out_object(&out, NULL);
    json_out_str(&out, "s", STR("a\"\\\n\x01\x7f/"));
    json_out_array(&out, "list");
    json_out_int(&out, NULL, INT64_MIN);
    json_out_bool(&out, NULL, false);
    json_out_null(&out, NULL);
    json_out_object(&out, NULL);
    json_out_end(&out);
    json_out_end(&out);
    json_out_pair(&out, STR("k\"ey"), STR("broken \xff\xc3 utf"));
    json_out_raw(&out, "raw", STR("[1]"));
    json_out_end(&out);
    CHECK_STR(buf_str(&text), STR("{\"s\":\"a\\\"\\\\\\n\\u0001\x7f/\",\"list\":[-9223372036854775808,false,null,{}],"
                                  "\"k\\\"ey\":\"broken \xef\xbf\xbd\xef\xbf\xbd utf\",\"raw\":[1]}"));
    struct err err;
    auto_json json_t *again = json_parse(buf_str(&text), &err);
    assert_non_null(again);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(malformed_text_is_refused),
        CASE(a_body_that_is_not_an_object_is_refused),
        CASE(a_zero_byte_in_a_text_is_refused_in_words_for_the_sender),
        CASE(nesting_is_bounded_and_brackets_in_text_do_not_count),
        CASE(values_are_bounded_before_they_are_made),
        CASE(the_last_of_duplicate_keys_wins),
        CASE(absent_and_null_leave_the_output_alone),
        CASE(whole_numbers_come_in_many_spellings),
        CASE(a_wrong_type_names_the_field),
        CASE(the_writer_puts_commas_and_quotes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
