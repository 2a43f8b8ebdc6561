#include "mail/text.h"

#include "base/encode.h"
#include "test.h"

static struct arena arena;

static int before(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int after(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static struct str clean(const char *text)
{
    return text_clean(&arena, str_from(text), TEXT_LINES, NULL);
}

static void controls_and_invisible_characters_go(void **state)
{
    uint32_t removed;

    (void)state;
    CHECK_STR(clean("a\r\nb\rc\n\td\x01\x7f\x0b"
                    "e"),
              STR("a\nb\nc\n\td\ne"));
    CHECK_STR(clean("a\u200bb\u202ec\u2066d\u00ade\ufefff\xc2\x85g\xc2\x9fh"), STR("abcdef\ngh"));
    CHECK_STR(text_clean(&arena, STR("a\nb\tc\u2028d"), TEXT_LINE, NULL), STR("a b c d"));
    CHECK_STR(text_clean(&arena, STR("p\u200bay\u200dp\u2060al"), TEXT_LINE, &removed), STR("paypal"));
    assert_int_equal(removed, 3);
}

static void joiners_stay_where_a_script_needs_them(void **state)
{
    static const char *const kept[] = {
        "👩‍👩‍👧", "❤️", "🏳️‍🌈", "می‌خواهم", "क्‍ष", "👍🏽",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        CHECK_STR(clean(kept[i]), str_from(kept[i]));
    CHECK_STR(clean("a\u200db a\ufe0f"), STR("ab a"));
}

static void broken_utf8_is_repaired(void **state)
{
    static const struct str broken[] = { STR_INIT("\xff"),
                                         STR_INIT("a\xc3"),
                                         STR_INIT("\xc0\xaf"),
                                         STR_INIT("\xe2\x82"),
                                         STR_INIT("\xed\xa0\x80"),
                                         STR_INIT("\xf4\x90\x80\x80"),
                                         STR_INIT("\xf0\x80\x80\x80"),
                                         STR_INIT("\x80\x80") };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        struct str got = text_clean(&arena, broken[i], TEXT_LINES, NULL);
        assert_true(utf8_valid(got));
        assert_true(got.len > 0);
    }
    /* And each character survives the way there and back. */
    for (uint32_t c = 1; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 97) {
        struct buf one = buf_make(&arena, 4);
        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        text_put(&one, c);
        struct str rest = buf_str(&one);
        assert_int_equal(text_next(&rest), c);
        assert_int_equal(rest.len, 0);
    }
}

static void hidden_tags_are_read(void **state)
{
    (void)state;
    CHECK_STR(text_tags(&arena, STR("x\U000e0069\U000e0067\U000e006e y\U000e006f\U000e0001")), STR("igno"));
    CHECK_STR(text_tags(&arena, STR("x 👍 \xf3")), STR(""));
}

static void a_preview_is_one_line_of_200_characters(void **state)
{
    struct buf long_text = buf_make(&arena, 4000);

    (void)state;
    CHECK_STR(text_preview(&arena, STR("  a \n\n b\u00a0c  ")), STR("a b c"));
    for (int i = 0; i < 500; i++)
        buf_add(&long_text, STR("ü"));
    assert_int_equal(text_preview(&arena, buf_str(&long_text)).len, 400);
    CHECK_STR(text_cut(STR("aü"), 2), STR("a"));
    CHECK_STR(text_cut(STR("aü"), 3), STR("aü"));
}

static void letters_are_compared_by_their_looks(void **state)
{
    static const struct {
        uint32_t character;
        char like;
    } samples[] = { { 'A', 'a' },     { '7', '7' },     { '-', 0 },       { 0x430, 'a' },  { 0xE4, 'a' },
                    { 0xFF21, 'a' },  { 0x1D41B, 'b' }, { 0x1D7D7, '9' }, { 0x24D0, 'a' }, { 0x4F60, 0 },
                    { 0x1F130, 'a' }, { 0x0501, 'd' },  { 0x10FFFF, 0 } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(samples); i++)
        assert_int_equal(text_fold(samples[i].character), samples[i].like);
    for (uint32_t c = 0; c < 0x20000; c++) {
        char like = text_fold(c);
        assert_true(!like || char_is_digit(like) || (like >= 'a' && like <= 'z'));
    }
    assert_int_equal(text_script('a'), SCRIPT_LATIN);
    assert_int_equal(text_script(0x430), SCRIPT_CYRILLIC);
    assert_int_equal(text_script(0x3B1), SCRIPT_GREEK);
    assert_int_equal(text_script('1'), SCRIPT_NONE);
    assert_int_equal(text_script(0x4F60), SCRIPT_OTHER);
}

int main(void)
{
#define EACH(function) cmocka_unit_test_setup_teardown(function, before, after)
    const struct CMUnitTest tests[] = {
        EACH(controls_and_invisible_characters_go),
        EACH(joiners_stay_where_a_script_needs_them),
        EACH(broken_utf8_is_repaired),
        EACH(hidden_tags_are_read),
        EACH(a_preview_is_one_line_of_200_characters),
        EACH(letters_are_compared_by_their_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
