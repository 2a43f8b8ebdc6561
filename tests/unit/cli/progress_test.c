/* A log of the builder's as people see it, when it is not a terminal. */
#include "cli/progress.h"

#include <stdlib.h>

#include "test.h"

struct line {
    const char *step, *message;
    int64_t at_ms;
};

static const char dockerfile[] = "FROM a\n"
                                 "RUN make \\\n"
                                 "    all\n"
                                 "ENV X=1\n"
                                 "CMD serve\n";

/* What is printed for these lines. */
static char *shown(const struct line *lines, size_t count, enum progress_how how, struct arena *arena)
{
    struct progress progress;
    struct dockerfile file;
    struct err err;
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    assert_true(dockerfile_parse(arena, str_from(dockerfile), NULL, 0, &file, &err));
    progress_init(&progress, arena, out, &file, file.start_cmd);
    for (size_t i = 0; i < count; i++)
        progress_take(&progress, lines[i].at_ms * 1000, str_from(lines[i].step), str_from(lines[i].message));
    progress_end(&progress, lines[count - 1].at_ms * 1000, how);
    assert_int_equal(progress_line_of(&progress, STR("base")), 1);
    assert_int_equal(progress_line_of(&progress, STR("1")), 0);
    assert_int_equal(progress_line_of(&progress, STR("3")), 2);
    assert_int_equal(progress_line_of(&progress, STR("finalize")), 5);
    assert_int_equal(progress_line_of(&progress, STR("99")), 0);
    progress_done(&progress);
    (void)fclose(out);
    return text;
}

static void each_instruction_has_a_line(void **state)
{
    static const struct line lines[] = {
        { "", "Building template t/b", 0 },
        { "base", "CACHED [base] FROM a [0f]", 0 },
        { "base", "[base] DEFAULT USER user [0f]", 0 },
        { "1", "CACHED [builder 1/6] USER root [0f]", 0 },
        { "2", "[builder 2/6] WORKDIR / [0f]", 0 },
        { "3", "[builder 3/6] RUN make     all [0f]", 1000 },
        { "3", "[builder 3/6] [stdout]: \033[1mone\033[0m\a\ttwo", 1500 },
        { "3", "[builder 3/6] [stderr]: three", 2000 },
        { "4", "[builder 4/6] ENV X 1 [0f]", 3500 },
        { "5", "[builder 5/6] USER user [0f]", 3600 },
        { "finalize", "[finalize] Finalizing template build [0f]", 3700 },
        { "finalize", "Running start command: serve", 4000 },
        { "finalize", "[start] [stdout]: up", 4100 },
        { "finalize", "Template is ready", 5000 },
        { "finalize", "The start command runs whenever a sandbox is created: why", 5000 },
        { "", "Build finished, took 5s", 5000 },
    };
    struct arena arena;

    (void)state;
    arena_init(&arena);
    char *text = shown(lines, COUNT_OF(lines), PROGRESS_DONE, &arena);
    assert_string_equal(text, "[1/4] FROM a  cached\n"
                              "[2/4] RUN make all\n"
                              "    one two\n"
                              "    three\n"
                              "    done in 2.5 s\n"
                              "[3/4] ENV X=1  0.1 s\n"
                              "[4/4] start: serve\n"
                              "    up\n"
                              "    done in 1.0 s\n"
                              "The start command runs whenever a sandbox is created: why\n");
    free(text);
    arena_done(&arena);
}

static void a_step_that_fails_is_the_last(void **state)
{
    static const struct line lines[] = {
        { "base", "[base] FROM a [0f]", 0 },
        { "base", "Layers extracted", 100 },
        { "3", "[builder 3/6] RUN make all [0f]", 1000 },
        { "3", "[builder 3/6] [stderr]: oops", 1100 },
        { "3", "Build failed: failed to run command", 1200 },
    };
    struct arena arena;

    (void)state;
    arena_init(&arena);
    char *text = shown(lines, COUNT_OF(lines), PROGRESS_FAILED, &arena);
    assert_string_equal(text, "[1/4] FROM a\n"
                              "    Layers extracted\n"
                              "    done in 1.0 s\n"
                              "[2/4] RUN make all\n"
                              "    oops\n"
                              "    failed after 0.2 s\n");
    free(text);
    char *stopped = shown(lines, 3, PROGRESS_STOPPED, &arena);
    assert_string_equal(stopped, "[1/4] FROM a\n"
                                 "    Layers extracted\n"
                                 "    done in 1.0 s\n"
                                 "[2/4] RUN make all  stopped after 0.0 s\n");
    free(stopped);
    arena_done(&arena);
}

static void a_step_that_prints_much_takes_no_more_memory(void **state)
{
    struct arena arena;
    struct progress progress;
    struct dockerfile file;
    struct err err;
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    (void)state;
    arena_init(&arena);
    assert_true(dockerfile_parse(&arena, str_from(dockerfile), NULL, 0, &file, &err));
    progress_init(&progress, &arena, out, &file, file.start_cmd);
    progress.is_terminal = true;
    progress_take(&progress, 0, STR("3"), STR("[builder 3/6] RUN make     all [0f]"));
    size_t before = arena.used;
    for (int i = 0; i < 100; i++) {
        progress_take(&progress, 1000, STR("3"), STR("[builder 3/6] [stdout]: more"));
        progress.drawn_ms = 0;
        progress_tick(&progress, 1000);
    }
    assert_int_equal(arena.used, before);
    progress_end(&progress, 1000, PROGRESS_DONE);
    progress_done(&progress);
    (void)fclose(out);
    assert_non_null(strstr(text, "[2/4] RUN make all  0.0 s\n"));
    free(text);
    arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(each_instruction_has_a_line),
        CASE(a_step_that_fails_is_the_last),
        CASE(a_step_that_prints_much_takes_no_more_memory),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
