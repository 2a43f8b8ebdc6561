#include "cli/text.h"

#include <stdio.h>
#include <stdlib.h>

#include "test.h"

static struct arena arena;

static int start(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static char *printed(const struct table *table, bool is_colored)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    table_print(table, out, is_colored, "Nothing.");
    fclose(out);
    struct str copy = arena_copy(&arena, str_of(text, len));
    free(text);
    return (char *)copy.at;
}

static void table_columns_are_as_wide_as_their_widest_cell(void **state)
{
    static const char *const heads[] = { "NAME", ">SIZE", "STATE", NULL };
    struct table table;

    (void)state;
    table_init(&table, &arena, heads);
    table_row(&table, (const struct str[]){ STR("a"), STR("5"), STR("up") });
    table_row(&table, (const struct str[]){ STR("long-name"), STR("1024"), STR("") });
    assert_string_equal(printed(&table, false), "NAME       SIZE  STATE\n"
                                                "a             5  up\n"
                                                "long-name  1024  \n");
}

static void table_counts_characters_not_bytes(void **state)
{
    static const char *const heads[] = { "A", "B", NULL };
    struct table table;

    (void)state;
    table_init(&table, &arena, heads);
    table_row(&table, (const struct str[]){ STR("é…"), STR("x") });
    table_row(&table, (const struct str[]){ STR("ab"), STR("y") });
    assert_string_equal(printed(&table, false), "A   B\né…  x\nab  y\n");
}

static void table_lets_no_cell_command_the_terminal(void **state)
{
    static const char *const heads[] = { "A", NULL };
    struct table table;

    (void)state;
    table_init(&table, &arena, heads);
    table_row(&table, (const struct str[]){ STR("\033]0;owned\a\xc2\x9b"
                                                "2J\n") });
    assert_string_equal(printed(&table, false), "A\n?]0;owned???2J?\n");
}

static void table_is_bold_only_on_a_terminal(void **state)
{
    static const char *const heads[] = { "A", "B", NULL };
    struct table table;

    (void)state;
    table_init(&table, &arena, heads);
    table_row(&table, (const struct str[]){ STR("1"), STR("2") });
    assert_string_equal(printed(&table, true), "\033[1mA  B\033[0m\n1  2\n");
}

static void table_without_rows_says_so(void **state)
{
    static const char *const heads[] = { "A", NULL };
    struct table table;

    (void)state;
    table_init(&table, &arena, heads);
    assert_string_equal(printed(&table, false), "Nothing.\n");
}

static void span_has_one_fitting_unit(void **state)
{
    static const struct {
        int64_t s;
        const char *want;
    } cases[] = { { -5, "0 s" },      { 0, "0 s" },        { 119, "119 s" },
                  { 120, "2 min" },   { 7199, "119 min" }, { 7200, "2 h" },
                  { 172799, "47 h" }, { 172800, "2 d" },   { 86400LL * 400, "400 d" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        CHECK_STR(text_span(&arena, cases[i].s * 1000000), str_from(cases[i].want));
}

static void ago_of_no_time_is_a_dash(void **state)
{
    (void)state;
    CHECK_STR(text_ago(&arena, STR("")), STR("-"));
    CHECK_STR(text_ago(&arena, STR("yesterday")), STR("-"));
    CHECK_STR(text_ago(&arena, STR("2999-01-01T00:00:00Z")), STR("0 s ago"));
}

static void mebibytes_become_gibibytes(void **state)
{
    (void)state;
    CHECK_STR(text_mib(&arena, 512), STR("512 MiB"));
    CHECK_STR(text_mib(&arena, 1024), STR("1 GiB"));
    CHECK_STR(text_mib(&arena, 1536), STR("1.5 GiB"));
    CHECK_STR(text_bytes(&arena, 0), STR("0 KiB"));
    CHECK_STR(text_bytes(&arena, 1), STR("1 KiB"));
    CHECK_STR(text_bytes(&arena, 1023 * 1024), STR("1023 KiB"));
    CHECK_STR(text_bytes(&arena, 1024 * 1024), STR("1 MiB"));
    CHECK_STR(text_bytes(&arena, 1024 * 1024 + 1), STR("2 MiB"));
    CHECK_STR(text_bytes(&arena, (uint64_t)3 << 30), STR("3 GiB"));
}

static void shell_quoting_survives_any_word(void **state)
{
    static const struct {
        struct str word, want;
    } cases[] = {
        { STR_INIT("http://127.0.0.1:7070"), STR_INIT("http://127.0.0.1:7070") },
        { STR_INIT(""), STR_INIT("''") },
        { STR_INIT("a b"), STR_INIT("'a b'") },
        { STR_INIT("it's"), STR_INIT("'it'\\''s'") },
        { STR_INIT("$(reboot)`x`\"\\"), STR_INIT("'$(reboot)`x`\"\\'") },
        { STR_INIT("~"), STR_INIT("'~'") },
        { STR_INIT("a\nb"), STR_INIT("'a\nb'") },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf out = buf_make(&arena, 256);
        text_shell_quote(&out, cases[i].word);
        CHECK_STR(buf_str(&out), cases[i].want);
    }
}

static void nearest_forgives_two_slips_but_does_not_guess(void **state)
{
    static const char *const names[] = {
        "serve", "env", "doctor", "sandbox list", "sandbox exec", "key create", "help"
    };
    static const struct {
        const char *typed, *want;
    } cases[] = {
        { "sevre", "serve" },
        { "doctro", "doctor" },
        { "sandbox lst", "sandbox list" },
        { "key craete", "key create" },
        { "halp", "help" },
        { "doc", "doctor" },
        { "xyz", NULL },
        { "", NULL },
        { "abc", NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *got = text_nearest(cases[i].typed, names, COUNT_OF(names));
        if (!cases[i].want)
            assert_null(got);
        else
            assert_string_equal(got ? got : "nothing", cases[i].want);
    }
    char long_word[200];
    memset(long_word, 's', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = '\0';
    assert_null(text_nearest(long_word, names, COUNT_OF(names)));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(table_columns_are_as_wide_as_their_widest_cell),
        CASE(table_counts_characters_not_bytes),
        CASE(table_lets_no_cell_command_the_terminal),
        CASE(table_is_bold_only_on_a_terminal),
        CASE(table_without_rows_says_so),
        CASE(span_has_one_fitting_unit),
        CASE(ago_of_no_time_is_a_dash),
        CASE(mebibytes_become_gibibytes),
        CASE(shell_quoting_survives_any_word),
        CASE(nearest_forgives_two_slips_but_does_not_guess),
    };

    return cmocka_run_group_tests(cases, start, stop);
}
