#include "image/recipe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "temp_data.h"

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

    assert_false(recipe_build(-1, "no-such-template", &want, NULL, &made, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "code-interpreter"));
}

/* A template that nobody has built: its layer is an empty directory. */
static void put_template(const char *id, const char *name, const char *recipe)
{
    struct template template = { .layer_count = 1, .cpu_millis = 1000, .memory_bytes = 1 << 30, .created_us = 1 };
    char layer[128];
    struct err err;

    (void)snprintf(template.id, sizeof template.id, "%s", id);
    (void)snprintf(template.name, sizeof template.name, "%s", name);
    memset(template.layers[0], 'a', LAYER_HEX_BYTES - 1);
    (void)snprintf(template.recipe, sizeof template.recipe, "%s", recipe);
    (void)snprintf(layer, sizeof layer, "layers/%s", template.layers[0]);
    assert_true(mkdirat(data_fd, layer, 0700) == 0 || errno == EEXIST);
    if (!template_save(data_fd, &template, &err))
        fail_msg("%s", err_text(&err));
}

static void a_template_is_outdated_when_its_recipe_or_that_of_base_is_another(void **state)
{
    (void)state;
    char other[LAYER_HEX_BYTES] = "", ours[LAYER_HEX_BYTES];

    memset(other, '0', LAYER_HEX_BYTES - 1);
    bootstrap_recipe(ours);
    assert_int_equal(recipe_state(data_fd, "base"), RECIPE_NOT_BUILT);
    put_template("aaaaaaaaaaaaaaaaaaaa", "base", other);
    assert_int_equal(recipe_state(data_fd, "base"), RECIPE_OUTDATED);
    put_template("aaaaaaaaaaaaaaaaaaaa", "base", ours);
    assert_int_equal(recipe_state(data_fd, "base"), RECIPE_CURRENT);

    assert_int_equal(recipe_state(data_fd, "code-interpreter-v1"), RECIPE_NOT_BUILT);
    put_template("bbbbbbbbbbbbbbbbbbbb", "code-interpreter-v1", other);
    assert_int_equal(recipe_state(data_fd, "code-interpreter-v1"), RECIPE_OUTDATED);
}

/* ---- a script, in a place that only seems to run it ---- */

struct fake {
    unsigned runs;
    bool fails;
};

static bool fake_run(void *context, int fd, int tmp_fd, const struct recipe_job *job, bool *out_fine, struct err *err)
{
    static const char *const lines[] = {
        "== 0 50 fetching",  "dlstatus:1:50.0:Retrieving", "some words", "E: no such mirror", "more words",
        "package: bash 5.2", "package: pip numpy==2.2"
    };
    struct fake *fake = context;

    assert_int_equal(fd, data_fd);
    assert_string_equal(job->base->name, "base");
    assert_non_null(strstr(job->script, "apt"));
    fake->runs++;
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        job->line(job->context, str_from(lines[i]));
    *out_fine = !fake->fails;
    return fake->fails ||
           (mkdirat(tmp_fd, RECIPE_UPPER, 0755) == 0 && mkdirat(tmp_fd, RECIPE_UPPER "/opt", 0755) == 0) ||
           err_sys(err, "make it");
}

static void a_script_makes_a_layer_on_base_and_a_list_of_packages(void **state)
{
    (void)state;
    struct bootstrap_want want = { 0 };
    struct fake fake = { 0 };
    const struct recipe_place place = { fake_run, &fake };
    char ours[LAYER_HEX_BYTES], id[TEMPLATE_ID_CHARS + 1];
    struct template made;
    struct err err;

    if (geteuid() != 0)
        skip(); /* making base needs root, also if it is there */
    bootstrap_recipe(ours);
    put_template("aaaaaaaaaaaaaaaaaaaa", "base", ours);
    if (!recipe_build(data_fd, "code-interpreter", &want, &place, &made, &err))
        fail_msg("%s", err_text(&err));
    assert_string_equal(made.name, "code-interpreter-v1");
    assert_int_equal(made.layer_count, 2);
    assert_true(layer_exists(data_fd, made.layers[1]));
    assert_int_equal(recipe_state(data_fd, "code-interpreter-v1"), RECIPE_CURRENT);
    auto_free char *list = NULL;
    assert_true(fd_read_file(data_fd, "packages/code-interpreter-v1", 1000, &list, NULL, &err));
    assert_non_null(strstr(list, made.layers[1]));
    assert_non_null(strstr(list, "\nbash 5.2\npip numpy==2.2\n"));

    memcpy(id, made.id, sizeof id);
    assert_true(recipe_build(data_fd, "code-interpreter", &want, &place, &made, &err));
    assert_int_equal(fake.runs, 1); /* it is there */
    want.again = true;
    assert_true(recipe_build(data_fd, "code-interpreter", &want, &place, &made, &err));
    assert_int_equal(fake.runs, 2);
    assert_string_equal(made.id, id);

    fake.fails = true;
    assert_false(recipe_build(data_fd, "code-interpreter", &want, &place, &made, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no such mirror"));
    assert_int_equal(recipe_state(data_fd, "code-interpreter-v1"), RECIPE_CURRENT);
    assert_true(remove_tree(data_fd, "packages", &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(progress_moves_within_a_phase_and_never_back),
        CASE(lines_that_only_look_like_progress_are_not),
        CASE(a_template_without_a_recipe_is_told_which_there_are),
        CASE(a_template_is_outdated_when_its_recipe_or_that_of_base_is_another),
        CASE(a_script_makes_a_layer_on_base_and_a_list_of_packages),
    };

    return cmocka_run_group_tests(cases, temp_data_set_up, temp_data_tear_down);
}
