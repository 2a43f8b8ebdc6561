#include <stdio.h>

#include "cli/cli.h"
#include "cli/command.h"
#include "test.h"

static const struct command list = {
    .name = "thing list", .synopsis = "[--json]", .takes = TAKES_SERVER | TAKES_JSON, .words_most = 0
};
static const struct command exec = {
    .name = "thing exec",
    .synopsis = "ID -- CMD…",
    .takes = TAKES_SERVER | TAKES_USER | TAKES_ENV | TAKES_CWD,
    .words_least = 2,
    .words_most = SIZE_MAX,
    .verbatim_from = 1,
};

static struct cli cli;
static struct err err;

static bool parse(const struct command *command, const char *const *words)
{
    int count = 0;

    while (words[count])
        count++;
    cli_done(&cli);
    cli_init(&cli, stdout, stderr);
    return args_parse(count, (char **)words, command, &cli, &err);
}
#define PARSE(command, ...) parse((command), (const char *const[]){ __VA_ARGS__, NULL })

static int stop(void **state)
{
    (void)state;
    cli_done(&cli);
    return 0;
}

static void options_come_in_every_usual_spelling(void **state)
{
    (void)state;
    assert_true(PARSE(&list, "--json", "--data", "/x"));
    assert_true(cli.json);
    assert_string_equal(cli.data, "/x");
    assert_true(PARSE(&list, "--data=/y", "--url=http://[::1]:1"));
    assert_string_equal(cli.data, "/y");
    assert_string_equal(cli.url, "http://[::1]:1");
    assert_true(PARSE(&exec, "-u", "root", "-eA=1", "--env", "B=2=3", "i1", "true"));
    assert_string_equal(cli.user, "root");
    assert_int_equal(cli.env_count, 2);
    assert_string_equal(cli.envs[0], "A=1");
    assert_string_equal(cli.envs[1], "B=2=3");
}

static void defaults_hold_when_nothing_is_given(void **state)
{
    (void)state;
    assert_true(PARSE(&list, NULL));
    assert_string_equal(cli_data(&cli), CLI_DATA_DEFAULT);
    assert_false(cli.json);
    assert_null(cli.url);
}

static void a_command_to_run_keeps_its_own_options(void **state)
{
    (void)state;
    assert_true(PARSE(&exec, "i1", "ls", "-u", "--json"));
    assert_int_equal(cli.word_count, 4);
    assert_string_equal(cli.words[2], "-u");
    assert_null(cli.user);
    assert_true(PARSE(&exec, "i1", "-u", "root", "--", "--version", "--", "x"));
    assert_string_equal(cli.user, "root");
    assert_int_equal(cli.word_count, 4);
    assert_string_equal(cli.words[1], "--version");
    assert_string_equal(cli.words[2], "--");
}

static void unknown_options_are_named_with_a_suggestion(void **state)
{
    (void)state;
    assert_false(PARSE(&list, "--jsn"));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_string_equal(err.message, "'thing list' has no option --jsn; did you mean --json?");
    assert_false(PARSE(&list, "--frobnicate=3"));
    assert_string_equal(err.message,
                        "'thing list' has no option --frobnicate=3; `cloister help thing list` lists them");
    assert_false(PARSE(&list, "-x"));
    /* One that exists elsewhere is not one of this command. */
    assert_false(PARSE(&list, "--user", "root"));
}

static void values_are_required_where_they_belong(void **state)
{
    (void)state;
    assert_false(PARSE(&list, "--data"));
    assert_string_equal(err.message, "--data needs a value: DIR");
    assert_false(PARSE(&list, "--data="));
    assert_false(PARSE(&list, "--json=yes"));
    assert_string_equal(err.message, "--json takes no value");
    assert_false(PARSE(&exec, "-e", "NOVALUE", "i1", "true"));
    assert_string_equal(err.message, "--env needs NAME=VALUE, not 'NOVALUE'");
    assert_false(PARSE(&exec, "-e", "=x", "i1", "true"));
}

static void too_few_and_too_many_words_show_the_synopsis(void **state)
{
    (void)state;
    assert_false(PARSE(&exec, "i1"));
    assert_string_equal(err.message, "too few arguments: cloister thing exec ID -- CMD…");
    assert_false(PARSE(&list, "what"));
    assert_string_equal(err.message, "too many arguments: cloister thing list [--json]");
}

static void help_wins_over_what_is_missing(void **state)
{
    (void)state;
    assert_true(PARSE(&exec, "--help"));
    assert_true(cli.help);
    assert_true(PARSE(&exec, "-h"));
    assert_true(cli.help);
}

static const char *first_word(const char *const *words)
{
    int count = 0;

    while (words[count])
        count++;
    return cli_first_word("template build", count, (char **)words);
}
#define FIRST_WORD(...) first_word((const char *const[]){ __VA_ARGS__, NULL })

static void the_first_word_is_found_among_options_of_another_program_part(void **state)
{
    (void)state;
    assert_string_equal(FIRST_WORD("base", "--config", "/f"), "base");
    assert_string_equal(FIRST_WORD("--config", "/f", "--data=/d", "base"), "base");
    assert_string_equal(FIRST_WORD("--again", "--guestd", "/g", "base", "more"), "base");
    assert_string_equal(FIRST_WORD("--json", "base"), "base");
    assert_string_equal(FIRST_WORD("--name", "base", "./dir"), "./dir");
    assert_string_equal(FIRST_WORD("--", "base"), "base");
    assert_null(FIRST_WORD("--name", "base"));
    assert_null(FIRST_WORD("--config"));
    assert_null(FIRST_WORD("--"));
    assert_null(FIRST_WORD(NULL));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(options_come_in_every_usual_spelling),
        CASE(defaults_hold_when_nothing_is_given),
        CASE(a_command_to_run_keeps_its_own_options),
        CASE(unknown_options_are_named_with_a_suggestion),
        CASE(values_are_required_where_they_belong),
        CASE(too_few_and_too_many_words_show_the_synopsis),
        CASE(help_wins_over_what_is_missing),
        CASE(the_first_word_is_found_among_options_of_another_program_part),
    };

    cli_init(&cli, stdout, stderr);
    return cmocka_run_group_tests(cases, NULL, stop);
}
