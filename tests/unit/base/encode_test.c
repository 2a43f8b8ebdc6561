#include "base/encode.h"

#include "test.h"

static void base64_matches_rfc_4648(void **state)
{
    (void)state;
    static const char *const pairs[][2] = { { "", "" },        { "f", "Zg==" },        { "fo", "Zm8=" },
                                            { "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "foobar", "Zm9vYmFy" } };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        char room[32];
        unsigned char back[32];
        size_t len = base64_encode(str_from(pairs[i][0]), room);
        CHECK_STR(str_of(room, len), str_from(pairs[i][1]));
        assert_true(base64_decode(str_of(room, len), back, &len));
        CHECK_STR(str_of(back, len), str_from(pairs[i][0]));
    }
}

static void base64_takes_both_alphabets_but_not_a_mix(void **state)
{
    (void)state;
    unsigned char out[16];
    size_t len;
    assert_true(base64_decode(STR("-_8"), out, &len));
    assert_true(base64_decode(STR("+/8="), out, &len));
    assert_false(base64_decode(STR("+_8="), out, &len));
    assert_false(base64_decode(STR("Zg="), out, &len));
    assert_false(base64_decode(STR("Z"), out, &len));
    assert_false(base64_decode(STR("Zg==\n"), out, &len));
    assert_false(base64_decode(STR("Z g="), out, &len));
}

static void percent_decoding_refuses_broken_escapes(void **state)
{
    (void)state;
    struct arena a;
    struct str out;
    arena_init(&a);
    assert_true(percent_decode(&a, STR("a%2Fb+c"), PERCENT_PLUS_IS_SPACE, &out));
    CHECK_STR(out, STR("a/b c"));
    assert_true(percent_decode(&a, STR("a+%41"), PERCENT_PLUS_IS_PLUS, &out));
    CHECK_STR(out, STR("a+A"));
    assert_false(percent_decode(&a, STR("%4"), PERCENT_PLUS_IS_PLUS, &out));
    assert_false(percent_decode(&a, STR("%"), PERCENT_PLUS_IS_PLUS, &out));
    assert_false(percent_decode(&a, STR("%zz"), PERCENT_PLUS_IS_PLUS, &out));
    struct buf text = buf_make(&a, 100);
    percent_encode(&text, STR("a/\xC3\xA9~"));
    CHECK_STR(buf_str(&text), STR("a%2F%C3%A9~"));
    arena_done(&a);
}

static void utf8_is_checked_as_unicode_says(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    assert_true(utf8_valid(STR("plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80")));
    assert_false(utf8_valid(STR("\xC0\x80")));         /* overlong zero */
    assert_false(utf8_valid(STR("\xED\xA0\x80")));     /* surrogate */
    assert_false(utf8_valid(STR("\xF4\x90\x80\x80"))); /* past the end */
    assert_false(utf8_valid(STR("\xE2\x82")));         /* cut short */
    CHECK_STR(utf8_repair(&a, STR("a\xFFz")), STR("a\xEF\xBF\xBDz"));
    arena_done(&a);
}

static void characters_that_nobody_sees_are_known(void **state)
{
    (void)state;
    static const uint32_t hidden[] = { 0,      0x1f,   '\n',   0x7f,   0x9f,   0xad,   0x61c,  0x180e,  0x200b, 0x202e,
                                       0x2028, 0x2060, 0x2066, 0x206f, 0xfeff, 0xfff9, 0xfffb, 0xe0041, 0xe0fff };
    static const uint32_t seen[] = { ' ', 'a', 0xa0, 0xe9, 0x200a, 0x2010, 0x20ac, 0xfff8, 0xfffd, 0x1f600 };
    for (size_t i = 0; i < COUNT_OF(hidden); i++)
        assert_true(utf8_is_hidden(hidden[i]));
    for (size_t i = 0; i < COUNT_OF(seen); i++)
        assert_false(utf8_is_hidden(seen[i]));
    struct str rest = STR("a\xC3\xA9\xE2\x80\xAE\xF0\x9F\x98\x80");
    assert_int_equal(utf8_next(&rest), 'a');
    assert_int_equal(utf8_next(&rest), 0xe9);
    assert_int_equal(utf8_next(&rest), 0x202e);
    assert_int_equal(rest.len, 4);
    assert_int_equal(utf8_next(&rest), 0x1f600);
    assert_int_equal(rest.len, 0);
}

static void hex_refuses_what_does_not_fit(void **state)
{
    (void)state;
    unsigned char room[2];
    char text[5];
    size_t len;
    assert_true(hex_bytes(STR("00fF"), room, sizeof room, &len));
    assert_string_equal(hex_text(str_of(room, len), text), "00ff");
    assert_false(hex_bytes(STR("00ff00"), room, sizeof room, &len));
    assert_false(hex_bytes(STR("0"), room, sizeof room, &len));
    assert_false(hex_bytes(STR("0g"), room, sizeof room, &len));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(base64_matches_rfc_4648),
        CASE(base64_takes_both_alphabets_but_not_a_mix),
        CASE(percent_decoding_refuses_broken_escapes),
        CASE(utf8_is_checked_as_unicode_says),
        CASE(characters_that_nobody_sees_are_known),
        CASE(hex_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
