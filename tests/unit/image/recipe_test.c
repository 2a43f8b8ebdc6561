#include "image/recipe.h"

#include <string.h>

#include "base/mem.h"
#include "test.h"

static void progress_moves_within_a_phase_and_never_back(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        unsigned percent;
        bool moved;
    } steps[] = {
        { "== 0 10 fetching package lists", 0, true },
        { "Get:1 http://mirror.example/debian trixie InRelease [140 kB]", 0, false },
        { "== 10 50 fetching packages", 10, true },
        { "dlstatus:1:25.0000:Retrieving file 1 of 4", 20, true },
        { "dlstatus:2:25.9:Retrieving file 2 of 4", 20, false },
        { "dlstatus:4:100.0000:Retrieving file 4 of 4", 50, true },
        { "== 50 90 installing packages", 50, true },
        { "pmstatus:dpkg-exec:0:Running dpkg", 50, false },
        { "pmstatus:bash:50.0000:Unpacking bash (amd64)", 70, true },
        { "pmstatus:libc6:i386:75.5:Configuring libc6:i386", 80, true },
        { "pmstatus:dash:10.0000:Preparing dash (amd64)", 80, false },
        { "== 90 100 cleaning up", 90, true },
    };
    struct recipe_meter meter = { 0 };

    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        assert_int_equal(recipe_meter_line(&meter, str_from(steps[i].line)), steps[i].moved);
        assert_int_equal(meter.percent, steps[i].percent);
    }
    assert_string_equal(meter.phase, "cleaning up");
}

static void lines_that_only_look_like_progress_are_not(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",        "== ",      "== 5",      "== 5 fetching",       "== 50 40 backwards", "== 5 101 too far",
        "== x 10", "dlstatus", "dlstatus:", "dlstatus:1:nothing:", "pmstatus:bash",      "pmstatus:bash:101.0:too far",
    };
    struct recipe_meter meter = { .from = 10, .to = 20, .percent = 10, .phase = "before" };

    for (size_t i = 0; i < COUNT_OF(lines); i++)
        assert_false(recipe_meter_line(&meter, str_from(lines[i])));
    assert_int_equal(meter.percent, 10);
    assert_string_equal(meter.phase, "before");
}

static void a_template_without_a_recipe_is_told_which_there_are(void **state)
{
    (void)state;
    struct bootstrap_want want = { 0 };
    struct template made;
    struct err err;

    assert_false(recipe_build(-1, "no-such-template", &want, &made, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "code-interpreter"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(progress_moves_within_a_phase_and_never_back),
        CASE(lines_that_only_look_like_progress_are_not),
        CASE(a_template_without_a_recipe_is_told_which_there_are),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
