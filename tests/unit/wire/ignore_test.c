#include "wire/ignore.h"

#include "base/buf.h"
#include "base/limits.h"
#include "test.h"

static struct arena arena;

static int set_up(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static const struct ignore *parse(const char *text)
{
    const struct ignore *ignore;
    struct err err;

    if (!ignore_parse(&arena, str_from(text), &ignore, &err))
        fail_msg("%s: %s", text, err.message);
    return ignore;
}

/* Expected: what Docker does with it. */
static void patterns_match_as_dockers_do(void **state)
{
    static const struct {
        const char *patterns, *path;
        bool is_out;
    } cases[] = {
        { "", "a", false },
        { "a", "a", true },
        { "a", "b/a", false },
        { "/a", "a", true },
        { "./a/", "a", true },
        { "a", "a/b/c", true },
        { "*.z", "x.z", true },
        { "*.z", "d/x.z", false },
        { "**/*.z", "d/e/x.z", true },
        { "**/*.z", "x.z", true },
        { "**/d", "d", true },
        { "**/d", "xd", false },
        { "**d", "xd", true },
        { "a/**", "a", false },
        { "a/**", "a/b/c", true },
        { "a/**/c", "a/c", true },
        { "a/**/c", "a/x/y/c", true },
        { "a/**/c", "a/xc", false },
        { "**", "a/b", true },
        { "a?c", "abc", true },
        { "a?c", "a/c", false },
        { "[a-c]x", "bx", true },
        { "[^a-c]x", "bx", false },
        { "[^a-c]x", "dx", true },
        { "\\*", "*", true },
        { "\\*", "a", false },
        { "a.b", "axb", false },
        { "a/../b", "b", true },
        { "# a\na", "a", true },
        { "  a  \r", "a", true },
        { "*\n!keep", "keep", false },
        { "*\n!keep", "other", true },
        { "d\n!d/keep", "d/keep", false },
        { "d\n!d/keep", "d/other", true },
        { "d\n!d/keep\nd/keep", "d/keep", true },
        { "!a\na", "a", true },
        { "*a*b*c*", "xxaxxbxxcxx", true },
        { "*a*b*c*", "xxaxxcxxbxx", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (ignore_matches(parse(cases[i].patterns), str_from(cases[i].path)) != cases[i].is_out)
            fail_msg("'%s' and %s: want %d", cases[i].patterns, cases[i].path, cases[i].is_out);
}

static void a_directory_with_exceptions_is_searched(void **state)
{
    (void)state;
    const struct ignore *ignore = parse("d\n!d/sub/keep\n!x/**/y");
    assert_true(ignore_may_return(ignore, STR("d")));
    assert_true(ignore_may_return(ignore, STR("d/sub")));
    assert_false(ignore_may_return(ignore, STR("d/other")));
    assert_false(ignore_may_return(ignore, STR("d/sub/keep")));
    assert_false(ignore_may_return(ignore, STR("e")));
    assert_true(ignore_may_return(ignore, STR("x/1/2/3")));
}

static void a_pattern_that_is_none_names_its_line(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "a\n[\n", "line 2: '[' is not a pattern" },
        { "[]a]", "line 1: '[]a]' is not a pattern" },
        { "a\\", "line 1: 'a\\' is not a pattern" },
        { "\n!", "line 2: a ! without a pattern" },
    };
    const struct ignore *ignore;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_false(ignore_parse(&arena, str_from(cases[i].text), &ignore, &err));
        assert_string_equal(err.message, cases[i].message);
    }
}

/* Tried one way after the other, this would take longer than the universe has. */
static void many_stars_take_no_longer(void **state)
{
    struct buf pattern = buf_make(&arena, 4096), path = buf_make(&arena, 4096);

    (void)state;
    for (int i = 0; i < 200; i++)
        buf_add(&pattern, STR("*a"));
    buf_add(&pattern, STR("b"));
    for (int i = 0; i < 1000; i++)
        buf_add(&path, STR("a"));
    buf_add_char(&pattern, '\0');
    assert_false(ignore_matches(parse(pattern.data), buf_str(&path)));
}

static void has_limits(void **state)
{
    const struct ignore *ignore;
    struct buf text = buf_make(&arena, 1 << 20);
    struct err err;

    (void)state;
    for (int i = 0; i <= LIMIT_IGNORE_PATTERNS; i++)
        buf_add(&text, STR("a\n"));
    assert_false(ignore_parse(&arena, buf_str(&text), &ignore, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    buf_clear(&text);
    for (int i = 0; i <= LIMIT_IGNORE_PATTERN_BYTES; i++)
        buf_add(&text, STR("a"));
    assert_false(ignore_parse(&arena, buf_str(&text), &ignore, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(patterns_match_as_dockers_do),
        CASE(a_directory_with_exceptions_is_searched),
        CASE(a_pattern_that_is_none_names_its_line),
        CASE(many_stars_take_no_longer),
        CASE(has_limits),
    };

    return cmocka_run_group_tests(cases, set_up, tear_down);
}
