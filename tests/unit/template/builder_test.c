/* The engine with a real store, a fake driver and a guestd that answers as it is told. */
#include "template/template.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "../sandbox/rig.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "guestd_fake.h"
#include "sandbox/inside.h"
#include "template/inside.h"

#define HASH "c99ff56260ad2115f47aa3c4204e44cd66c6582cd5b03a11297b7507aa4d5aa6"

static const struct str base_layers[] = { STR_INIT(
    "00000000000000000000000000000000000000000000000000000000000000aa") };

enum { MANY = 4 }; /* builds that a team may have */

struct bench {
    struct rig *rig;
    struct guestd_fake guestd;
    struct builder *builder;
    struct uploads *uploads;
    char uploads_path[64];
};

/* What the scripts of USER and WORKDIR print. */
static struct guestd_rule usual[] = { { .has = "WHO=user,SUDO=y", .out = "user same\n" },
                                      { .has = "WHO=root,", .out = "root same\n" },
                                      { .has = "WHO=worker,SUDO", .out = "worker made\n" },
                                      { .has = "DIR=/app", .out = "made\n/app" },
                                      { .has = "DIR=/app/sub", .out = "made\n/app/sub" },
                                      { .has = "exit 3", .err = "it breaks\n", .exit_code = 3 },
                                      { .has = "root123|", .refusal = "unauthenticated\ninvalid username: 'root123'" },
                                      { .has = "echo hello", .out = "hello\n\n  there \r\n", .err = "oh" },
                                      { .has = "printf %s \"${A}/x\"", .out = "one/x" },
                                      { .has = "sleep forever", .hangs = true },
                                      { .has = "serve", .out = "listening\n", .hangs = true },
                                      { .has = "is-ready", .fails = 1 },
                                      { .has = "start-fails", .exit_code = 1 },
                                      { 0 } };

static int set_up(void **state)
{
    struct bench *bench = NEW(struct bench);

    bench->rig = NULL;
    assert_int_equal(rig_set_up((void **)&bench->rig), 0);
    guestd_fake_make(&bench->guestd);
    bench->guestd.rules = usual;
    usual[11].fails = 1;
    bench->rig->fake.guestd_port = bench->guestd.port;
    (void)snprintf(bench->uploads_path, sizeof bench->uploads_path, "/tmp/cloister-uploads.XXXXXX");
    assert_non_null(mkdtemp(bench->uploads_path));
    int fd = open(bench->uploads_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct err err;
    bench->uploads = uploads_new(fd, &(struct upload_caps){ 0 }, &err);
    assert_non_null(bench->uploads);
    bench->builder = builder_new(&(struct builder_config){ .store = bench->rig->disk.store,
                                                           .sandboxes = bench->rig->all,
                                                           .driver = &bench->rig->fake.driver,
                                                           .uploads = bench->uploads,
                                                           .guestd_version = "0.6.13",
                                                           .disk_mb = 5120,
                                                           .at_once = 3,
                                                           .per_team = MANY },
                                 &err);
    assert_non_null(bench->builder);
    *state = bench;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *bench = *state;
    char command[128];

    builder_free(bench->builder);
    uploads_free(bench->uploads);
    (void)snprintf(command, sizeof command, "rm -rf %s", bench->uploads_path);
    (void)!system(command);
    assert_int_equal(rig_tear_down((void **)&bench->rig), 0);
    guestd_fake_drop(&bench->guestd);
    free(bench);
    return 0;
}

/* ---- recipes ---- */

#define ARGS(...)                                \
    .args = (const struct str[]){ __VA_ARGS__ }, \
    .arg_count = (uint32_t)(sizeof((const struct str[]){ __VA_ARGS__ }) / sizeof(struct str))
#define STEP(name, ...)                                                      \
    {                                                                        \
        .type = STEP_##name, .type_text = STR_INIT(#name), ARGS(__VA_ARGS__) \
    }
#define RECIPE(...)                                      \
    .steps = (const struct build_step[]){ __VA_ARGS__ }, \
    .step_count = (uint32_t)(sizeof((const struct build_step[]){ __VA_ARGS__ }) / sizeof(struct build_step))

static struct str begin_of(struct bench *bench, struct str team_id, const char *alias, struct build_want want)
{
    struct store *store = bench->rig->disk.store;
    const struct str tag = STR("default");
    struct build_registration registration = { .team_id = team_id,
                                               .alias = str_from(alias),
                                               .tag_count = 1,
                                               .tags = &tag,
                                               .cpu_count = 1,
                                               .memory_mb = 512,
                                               .guestd_version = STR("0.6.13") };
    struct built_template template;
    struct build_row row;

    MUST(store_build_register(store, &registration, &bench->rig->arena, &template, &row, &err));
    want.build_id = row.id;
    want.template_id = template.id;
    want.team_id = registration.team_id;
    want.cpu_count = 1;
    want.memory_mb = 512;
    if (!want.from_image.len && !want.from_build.len && !want.from_archive.len && !want.from_error.len &&
        !want.from_layer_count && !want.from_snapshot.len) {
        want.from_text = STR("base");
        want.from_layers = base_layers;
        want.from_layer_count = 1;
    }
    MUST(builder_start(bench->builder, &want, &err));
    return row.id;
}

static struct str begin(struct bench *bench, const char *alias, struct build_want want)
{
    return begin_of(bench, store_team_default(bench->rig->disk.store), alias, want);
}

static struct str log_of(struct bench *bench, struct str id)
{
    struct build_line *lines;
    size_t count;
    struct buf out = buf_make(&bench->rig->arena, 1 << 20);

    MUST(store_build_log_read(bench->rig->disk.store,
                              &(struct build_log_filter){ .build_id = id, .limit = 1000, .least = BUILD_DEBUG },
                              &bench->rig->arena, &lines, &count, &err));
    for (size_t i = 0; i < count; i++)
        buf_format(&out, "%.*s|%.*s\n", STR_ARG(lines[i].step), STR_ARG(lines[i].text));
    buf_add_char(&out, '\0');
    return str_from(out.data);
}

static struct build_row await(struct bench *bench, struct str id)
{
    struct build_row row;

    for (time_t until = time(NULL) + 60; time(NULL) < until;) {
        MUST(store_build_get(bench->rig->disk.store, id, &bench->rig->arena, &row, &err));
        if (row.state == BUILD_READY || row.state == BUILD_ERROR)
            return row;
        usleep(10000);
    }
    fail_msg("the build does not end:\n%s", log_of(bench, id).at);
    return row;
}

static struct build_row build(struct bench *bench, const char *alias, struct build_want want)
{
    struct build_row row = await(bench, begin(bench, alias, want));

    rig_wait_empty(bench->rig); /* no step leaves a sandbox */
    return row;
}

static void check_log(struct bench *bench, struct str id, const char *has)
{
    struct str log = log_of(bench, id);

    if (!strstr(log.at, has))
        fail_msg("the log has no '%s':\n%s", has, log.at);
}

static void check_failed(struct bench *bench, const struct build_row *row, const char *reason, const char *step)
{
    (void)bench;
    assert_int_equal(row->state, BUILD_ERROR);
    CHECK_STR(row->reason, str_from(reason));
    CHECK_STR(row->reason_step, str_from(step));
}

/* ---- tests ---- */

static void a_recipe_becomes_layers_and_a_context(void **state)
{
    struct bench *bench = *state;
    struct build_row row =
        build(bench, "mine",
              (struct build_want){ RECIPE(STEP(ENV, STR_INIT("A"), STR_INIT("one"), STR_INIT("B"), STR_INIT("${A}/x")),
                                          STEP(WORKDIR, STR_INIT("/app")), STEP(RUN, STR_INIT("echo hello")),
                                          STEP(USER, STR_INIT("worker")),
                                          STEP(RUN, STR_INIT("touch it"), STR_INIT("root"))) });

    if (row.state != BUILD_READY)
        fail_msg("%.*s", STR_ARG(row.reason));
    /* base, WORKDIR, RUN, USER (which made a user), RUN: ENV and a default user that is there make none. */
    assert_int_equal(row.layer_count, 5);
    CHECK_STR(row.layers[0], base_layers[0]);
    CHECK_STR(row.context.user, STR("worker"));
    CHECK_STR(row.context.workdir, STR("/app"));
    CHECK_STR(row.context.envs, STR("{\"A\":\"one\",\"B\":\"one/x\"}"));
    CHECK_STR(row.guestd_version, STR("0.6.13"));
    assert_int_equal(row.disk_mb, 5120);
    assert_int_equal(row.start_cmd.len + row.image.len, 0);
    assert_int_equal(guestd_fake_count(&bench->guestd, "user|/app|A=one,B=one/x,|echo hello"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "root|/app|A=one,B=one/x,|touch it"), 1);
    check_log(bench, row.id, "|Building template ");
    check_log(bench, row.id, "base|CACHED [base] FROM TEMPLATE base [");
    check_log(bench, row.id, "base|[base] DEFAULT USER user [");
    check_log(bench, row.id, "1|[builder 1/5] ENV A one B ${A}/x [");
    check_log(bench, row.id, "3|[builder 3/5] RUN echo hello [");
    check_log(bench, row.id,
              "3|[builder 3/5] [stdout]: hello\n3|[builder 3/5] [stdout]: there\n3|[builder 3/5] [stderr]: oh\n");
    check_log(bench, row.id, "finalize|[finalize] Finalizing template build [");
    check_log(bench, row.id, "|Build finished, took ");
}

static void what_was_built_is_not_built_again(void **state)
{
    struct bench *bench = *state;
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two")),
                                      STEP(RUN, STR_INIT("step three"))) };
    struct build_row first = build(bench, "mine", want), second = build(bench, "mine", want);

    assert_int_equal(second.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step "), 3);
    assert_int_equal(first.layer_count, second.layer_count);
    for (uint32_t i = 0; i < first.layer_count; i++)
        CHECK_STR(first.layers[i], second.layers[i]);
    check_log(bench, second.id, "CACHED [base] DEFAULT USER user [");
    check_log(bench, second.id, "CACHED [builder 1/3] RUN step one [");
    /* Another step: only what follows is made. */
    want = (struct build_want){ RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step 2")),
                                       STEP(RUN, STR_INIT("step three"))) };
    struct build_row third = build(bench, "mine", want);
    assert_int_equal(third.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step three"), 2);
    CHECK_STR(third.layers[1], first.layers[1]);
    /* Arguments that look the same when they are joined are not. */
    want = (struct build_want){ RECIPE(STEP(RUN, STR_INIT("step"), STR_INIT("one"))) };
    (void)build(bench, "mine", want);
    assert_int_equal(guestd_fake_count(&bench->guestd, "one|||step"), 1);
}

static void force_makes_it_again_from_there_on(void **state)
{
    struct bench *bench = *state;
    struct build_step steps[] = { STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two")),
                                  STEP(RUN, STR_INIT("step three")) };
    struct build_want want = { .steps = steps, .step_count = 3 };

    (void)build(bench, "mine", want);
    steps[1].force = true;
    struct build_row forced = build(bench, "mine", want);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step two"), 2);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step three"), 2);
    steps[1].force = false;
    /* The newer layers count from now on. */
    struct build_row again = build(bench, "mine", want);
    CHECK_STR(again.layers[3], forced.layers[3]);
    want.force = true;
    (void)build(bench, "mine", want);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 2);
}

static void failures_have_the_texts_that_clients_know(void **state)
{
    struct bench *bench = *state;
    struct build_row row =
        build(bench, "a", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("true")), STEP(RUN, STR_INIT("exit 3"))) });

    check_failed(bench, &row, "failed to run command 'exit 3': exit status 3", "2");
    check_log(bench, row.id, "2|Build failed: failed to run command 'exit 3': exit status 3");
    check_log(bench, row.id, "2|[builder 2/2] [stderr]: it breaks");
    row = build(bench, "a", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("whoami"), STR_INIT("root123"))) });
    check_failed(bench, &row,
                 "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'", "1");
    row = build(bench, "a", (struct build_want){ .from_error = STR("template 'x' not found") });
    check_failed(bench, &row, "template 'x' not found", "base");
    row = build(
        bench, "a",
        (struct build_want){ .from_build = STR("00000000-0000-4000-8000-000000000000"), .from_text = STR("gone") });
    check_failed(bench, &row, "template 'gone' not found", "base");
    row = build(bench, "a", (struct build_want){ .from_image = STR("ubuntu:22.04") });
    check_failed(bench, &row, "image 'ubuntu:22.04': images from registries are not available on this server", "base");
    row = build(
        bench, "a",
        (struct build_want){ .from_archive = STR("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef") });
    check_failed(bench, &row, "the archive is not here: upload it again", "base");
    check_log(bench, row.id, "base|[base] FROM ARCHIVE 0123456789ab [");
    row = build(bench, "a", (struct build_want){ RECIPE({ .type = STEP_UNKNOWN, .type_text = STR_INIT("ONBUILD") }) });
    check_failed(bench, &row, "the instruction ONBUILD is not implemented", "1");
    row = build(bench, "a", (struct build_want){ RECIPE(STEP(ENV, STR_INIT("A"))) });
    check_failed(bench, &row, "ENV needs names and values, in pairs", "1");
    /* A step that has failed is not in the cache. */
    unsigned before = guestd_fake_count(&bench->guestd, "exit 3");
    (void)build(bench, "a", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("true")), STEP(RUN, STR_INIT("exit 3"))) });
    assert_int_equal(guestd_fake_count(&bench->guestd, "exit 3"), before + 1);
    /* Nor one whose layer could not be kept. */
    (void)err_set(&bench->rig->fake.pause_errs[PAUSE_SEAL][0], ERR_FULL, "there is no room");
    row = build(bench, "a", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("large"))) });
    check_failed(bench, &row, "the server's disk is full: there is no room", "1");
    bench->rig->fake.pause_errs[PAUSE_SEAL][0] = (struct err){ 0 };
    row = build(bench, "a", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("large"))) });
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "|large"), 2);
}

static void an_environment_has_limits(void **state)
{
    struct bench *bench = *state;
    struct arena *arena = &bench->rig->arena;
    enum { PAIRS = LIMIT_ENV_PAIRS + 1, LARGE = 100 * 1024 };
    struct str *args = ARENA_ARRAY(arena, struct str, 2 * PAIRS);

    for (uint32_t i = 0; i < PAIRS; i++) {
        args[2 * i] = arena_format(arena, "N%u", i);
        args[2 * i + 1] = STR("x");
    }
    struct build_step steps[] = { { .type = STEP_ENV, .type_text = STR("ENV"), .args = args, .arg_count = 2 * PAIRS },
                                  { .type = STEP_ENV, .type_text = STR("ENV"), .args = args + 1200 } };
    struct build_row row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 1 });
    check_failed(bench, &row, "ENV sets more than 1024 variables", "1");
    steps[0].arg_count = 1200;
    steps[1].arg_count = 2 * PAIRS - 1200;
    row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 2 });
    check_failed(bench, &row, "the environment of the build has more than 1024 variables or 131072 bytes", "2");
    steps[1].arg_count -= 2;
    row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 2 });
    assert_int_equal(row.state, BUILD_READY);
    /* Values that are set again in the same step count, too; those of an earlier step are replaced. */
    char *large = arena_alloc(arena, LARGE);
    memset(large, 1, LARGE); /* as large as it can be in JSON */
    struct str twice[] = { STR("A"), str_of(large, LARGE), STR("A"), str_of(large, LARGE) };
    steps[0] = (struct build_step){ .type = STEP_ENV, .type_text = STR("ENV"), .args = twice, .arg_count = 4 };
    row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 1 });
    check_failed(bench, &row, "ENV sets more than 131072 bytes", "1");
    steps[0].arg_count = 2;
    steps[1] = steps[0];
    row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 2 });
    assert_int_equal(row.state, BUILD_READY);
    assert_true(row.context.envs.len > 6 * LARGE);
    twice[2] = STR("B");
    steps[1].args = twice + 2;
    row = build(bench, "a", (struct build_want){ .steps = steps, .step_count = 2 });
    check_failed(bench, &row, "the environment of the build has more than 1024 variables or 131072 bytes", "2");
}

static void files_are_sent_to_guestd(void **state)
{
    struct bench *bench = *state;
    struct build_step step =
        STEP(COPY, STR_INIT("folder/*"), STR_INIT("dest dir"), STR_INIT("worker"), STR_INIT("0755"));
    struct upload *upload;
    struct str team = store_team_default(bench->rig->disk.store);

    struct build_row row = build(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    check_failed(bench, &row, "COPY needs the hash of its files: the client has sent none", "1");
    step.files_hash = STR(HASH);
    row = build(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    check_failed(bench, &row, "failed to copy 'folder/*': its files were not uploaded", "1");
    MUST(upload_begin(bench->uploads, team, STR(HASH), 10, &upload, &err));
    MUST(upload_write(upload, STR("0123456789"), &err));
    MUST(upload_keep(upload, &err));
    row = build(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    if (row.state != BUILD_READY)
        fail_msg("%.*s", STR_ARG(row.reason));
    assert_int_equal(guestd_fake_count(&bench->guestd,
                                       "copy|/cloister/"
                                       "copy?source=folder%2F%2A&dest=dest%20dir&owner=worker&mode=0755&user=user&"
                                       "workdir=|10"),
                     1);
    step.args = (const struct str[]){ STR("bad"), STR("x"), STR(""), STR("") };
    row = build(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    check_failed(bench, &row, "failed to copy 'bad' to 'x': source path does not exist: x", "1");
    /* An answer without an end. */
    step.args = (const struct str[]){ STR("endless"), STR("x"), STR(""), STR("") };
    row = build(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    check_failed(bench, &row, "failed to copy 'endless' to 'x': the sandbox's answer is longer than 65536 bytes", "1");
    step.args = (const struct str[]){ STR("slow"), STR("x"), STR(""), STR("") };
    struct str id = begin(bench, "a", (struct build_want){ .steps = &step, .step_count = 1 });
    while (!guestd_fake_count(&bench->guestd, "source=slow"))
        usleep(1000);
    usleep(100000); /* it is read */
    builder_cancel(bench->builder, id, "build was cancelled");
    row = await(bench, id);
    check_failed(bench, &row, "build was cancelled", "");
    rig_wait_empty(bench->rig);
}

static void a_full_log_is_not_written_to(void **state)
{
    struct bench *bench = *state;
    struct store *store = bench->rig->disk.store;
    enum { FULL = LIMIT_BUILD_LOG_BYTES / 10 };

    struct str id = await(bench, begin(bench, "a", (struct build_want){ 0 })).id;
    struct build *build = NEW(struct build);
    build->builder = bench->builder;
    build->want.build_id = id;
    log_begin(build);
    struct lines lines = lines_of(build, "p", BUILD_INFO);
    for (int i = 0; i < FULL; i++)
        lines_take(&lines, RUN_STDOUT, STR("yes\n"));
    log_flush(build);
    lines_take(&lines, RUN_STDOUT, STR("yes\n"));
    assert_int_equal(build->log.count, 0);
    assert_int_equal(build->log.arena.used, 0);
    struct build_line *last;
    size_t count;
    MUST(store_build_log_read(store, &(struct build_log_filter){ .build_id = id, .limit = 1, .newest_first = true },
                              &bench->rig->arena, &last, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(last->text, STR("The log has become too long: no more lines of this build are kept"));
    /* Nor that of a build that was deleted. */
    build->log.bytes = 0;
    build->want.build_id = STR("gone");
    lines_take(&lines, RUN_STDOUT, STR("yes\n"));
    assert_int_equal(build->log.count, 1);
    log_flush(build);
    lines_take(&lines, RUN_STDOUT, STR("yes\n"));
    assert_int_equal(build->log.count, 0);
    lines_done(&lines);
    log_done(build);
    free(build);
}

static void the_same_recipe_at_the_same_time_is_built_once(void **state)
{
    struct bench *bench = *state;
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two"))) };

    struct str one = begin(bench, "one", want), other = begin(bench, "other", want);
    struct build_row first = await(bench, one), second = await(bench, other);
    assert_int_equal(first.state, BUILD_READY);
    assert_int_equal(second.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step two"), 1);
    CHECK_STR(first.layers[2], second.layers[2]);
}

static void a_cancelled_build_ends_soon_and_leaves_nothing(void **state)
{
    struct bench *bench = *state;
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("sleep forever"))) };

    struct str id = begin(bench, "one", want), waits_for_key = begin(bench, "two", want),
               waits_for_turn = begin(bench, "three", want);
    while (!guestd_fake_count(&bench->guestd, "sleep forever"))
        usleep(1000);
    builder_cancel(bench->builder, waits_for_turn, "build was cancelled");
    struct build_row row = await(bench, waits_for_turn);
    check_failed(bench, &row, "build was cancelled", "");
    builder_cancel(bench->builder, waits_for_key, "cancelled by admin");
    row = await(bench, waits_for_key);
    check_failed(bench, &row, "cancelled by admin", "");
    /* A new build with the same tag takes the place of the one that runs. */
    struct str next = begin(bench, "one", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("true"))) });
    row = await(bench, id);
    check_failed(bench, &row, "build was cancelled", "");
    row = await(bench, next);
    assert_int_equal(row.state, BUILD_READY);
    rig_wait_empty(bench->rig);
    builder_cancel(bench->builder, id, "again"); /* fine */
}

static void the_start_command_is_kept_with_its_processes(void **state)
{
    struct bench *bench = *state;
    struct build_row row =
        build(bench, "served",
              (struct build_want){ RECIPE(STEP(ENV, STR_INIT("PORT"), STR_INIT("80")), STEP(WORKDIR, STR_INIT("/app"))),
                                   .start_cmd = STR("serve"), .ready_cmd = STR("is-ready") });

    if (row.state != BUILD_READY)
        fail_msg("%.*s", STR_ARG(row.reason));
    assert_int_equal(row.image.len, 64);
    CHECK_STR(row.layers[row.layer_count - 1], row.image);
    CHECK_STR(row.start_cmd, STR("serve"));
    CHECK_STR(row.start_context.user, STR("user"));
    assert_int_equal(guestd_fake_count(&bench->guestd, "user|/app|PORT=80,|serve"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "user|/app|PORT=80,|is-ready"), 2); /* the first one fails */
    check_log(bench, row.id,
              "finalize|Running start command: serve\nfinalize|Waiting for template to be ready: is-ready\n"
              "finalize|[start] [stdout]: listening\nfinalize|Template is ready\n");
    /* One that is made from it inherits both, with the context that they had. */
    struct build_row child = build(bench, "child",
                                   (struct build_want){ .from_build = row.id,
                                                        .from_text = STR("served"),
                                                        RECIPE(STEP(ENV, STR_INIT("PORT"), STR_INIT("81"))) });
    assert_int_equal(child.state, BUILD_READY);
    CHECK_STR(child.start_cmd, STR("serve"));
    CHECK_STR(child.context.workdir, STR("/app"));
    CHECK_STR(child.context.envs, STR("{\"PORT\":\"81\"}"));
    CHECK_STR(child.start_context.envs, STR("{\"PORT\":\"80\"}"));
    /* Where processes cannot be kept, each create runs it. */
    (void)err_set(&bench->rig->fake.pause_errs[PAUSE_SNAPSHOT][1], ERR_UNAVAILABLE, "CRIU is not installed");
    row = build(bench, "plain", (struct build_want){ .start_cmd = STR("serve"), .ready_cmd = STR("is-ready") });
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(row.image.len, 0);
    check_log(bench, row.id, "The start command runs whenever a sandbox is created: CRIU is not installed");
}

static void a_start_command_that_fails_fails_the_build(void **state)
{
    struct bench *bench = *state;
    struct build_row row =
        build(bench, "a", (struct build_want){ .start_cmd = STR("start-fails"), .ready_cmd = STR("sleep forever") });

    check_failed(bench, &row, "start command failed: exit status 1", "finalize");
}

static void old_clients_run_steps_as_root(void **state)
{
    struct bench *bench = *state;
    struct build_row row =
        build(bench, "a", (struct build_want){ .dialect = DIALECT_2_0, RECIPE(STEP(RUN, STR_INIT("echo hello"))) });

    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "root|||echo hello"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "SUDO"), 0);
    assert_int_equal(row.context.user.len + row.context.workdir.len, 0);
}

static void a_team_has_so_many_builds(void **state)
{
    struct bench *bench = *state;
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("sleep forever"))) };
    struct str first = STR(""), last = STR("");
    char name[16];

    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        last = begin(bench, name, want);
        first = i ? first : last;
    }
    struct store *store = bench->rig->disk.store;
    const struct str tag = STR("default");
    struct build_registration registration = { .team_id = store_team_default(store),
                                               .alias = STR("more"),
                                               .tag_count = 1,
                                               .tags = &tag,
                                               .cpu_count = 1,
                                               .memory_mb = 512,
                                               .guestd_version = STR("0.6.13") };
    struct built_template template;
    struct build_row row;
    struct err why;
    MUST(store_build_register(store, &registration, &bench->rig->arena, &template, &row, &err));
    want = (struct build_want){ .build_id = row.id, .template_id = template.id, .team_id = registration.team_id };
    assert_false(builder_start(bench->builder, &want, &why));
    assert_int_equal(why.kind, ERR_LIMIT);
    /* One that is refused takes nobody's place. */
    registration.alias = STR("n0");
    MUST(store_build_register(store, &registration, &bench->rig->arena, &template, &row, &err));
    want = (struct build_want){ .build_id = row.id, .template_id = template.id, .team_id = registration.team_id };
    assert_false(builder_start(bench->builder, &want, &why));
    assert_int_equal(why.kind, ERR_LIMIT);
    MUST(store_build_get(store, first, &bench->rig->arena, &row, &err));
    assert_int_equal(row.state, BUILD_BUILDING);
    want.build_id = first; /* nor does one that runs begin again, or lose its place */
    builder_cancel(bench->builder, last, "cancelled by admin");
    assert_false(builder_start(bench->builder, &want, &why));
    assert_int_equal(why.kind, ERR_CONFLICT);
    MUST(store_build_get(store, first, &bench->rig->arena, &row, &err));
    assert_int_equal(row.state, BUILD_BUILDING);
    /* Its end cancels all of them. */
}

static void a_build_that_writes_nothing_has_a_layer_of_its_own(void **state)
{
    struct bench *bench = *state;
    struct build_want want = { RECIPE(STEP(ENV, STR_INIT("A"), STR_INIT("one"))) };
    struct build_row row = build(bench, "mine", want), again = build(bench, "again", want);
    unsigned seals = bench->rig->fake.pause_calls[PAUSE_SEAL];
    bool is_kept;

    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(row.layer_count, 2);
    CHECK_STR(row.layers[0], base_layers[0]);
    MUST(store_build_keeps(bench->rig->disk.store, row.layers[1], &is_kept, &err));
    assert_true(is_kept);
    CHECK_STR(row.context.envs, STR("{\"A\":\"one\"}"));
    assert_int_equal(again.state, BUILD_READY);
    CHECK_STR(again.layers[1], row.layers[1]);
    /* One on top of it is held by its layers. */
    struct build_row child =
        build(bench, "child", (struct build_want){ .from_build = row.id, .from_text = STR("mine") });
    assert_int_equal(child.state, BUILD_READY);
    assert_int_equal(child.layer_count, 2);
    assert_int_equal(bench->rig->fake.pause_calls[PAUSE_SEAL], seals);
    assert_int_equal(seals, 1);
}

static struct snapshot_row snapshot(struct bench *bench, struct str layer)
{
    const struct snapshot_caps caps = { 10, 10, 1 << 20, 1 << 20 };
    struct str layers[] = { base_layers[0], layer };
    struct snapshot_row row = { .name = STR("snap"),
                                .team_id = store_team_default(bench->rig->disk.store),
                                .sandbox_id = STR("sandbox"),
                                .source_template_id = STR("template"),
                                .guestd_version = STR("1"),
                                .layer_count = 2,
                                .layers = layers,
                                .kept_id = layer };

    MUST(store_snapshot_add(bench->rig->disk.store, &row, &caps, &bench->rig->arena, &row, &err));
    return row;
}

static void a_build_begins_with_what_a_snapshot_is_when_it_has_its_turn(void **state)
{
    static const char gone[] = "snapshot 'Snap' was deleted before the build could begin with it";
    struct bench *bench = *state;
    struct fake *fake = &bench->rig->fake;
    struct str first = STR("00000000000000000000000000000000000000000000000000000000000000b1"),
               second = STR("00000000000000000000000000000000000000000000000000000000000000b2");
    struct snapshot_row snap = snapshot(bench, first);
    struct build_want want = { .from_snapshot = snap.template_id,
                               .from_text = STR("Snap"),
                               RECIPE(STEP(RUN, STR_INIT("step one"))) };

    struct build_row row = build(bench, "mine", want);
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(row.layer_count, 3);
    CHECK_STR(row.layers[1], first);
    (void)snapshot(bench, second); /* in its place */
    row = build(bench, "mine", want);
    assert_int_equal(row.state, BUILD_READY);
    CHECK_STR(row.layers[1], second);
    want.from_tag = STR("other");
    row = build(bench, "mine", want);
    check_failed(bench, &row, gone, "base");
    want.from_tag = STR("default");

    /* Deleted when it was found, and nothing is on top of it yet. */
    want.force = true;
    pthread_mutex_lock(&fake->lock);
    fake->gate_shut = true;
    pthread_mutex_unlock(&fake->lock);
    struct str id = begin(bench, "mine", want);
    pthread_mutex_lock(&fake->lock);
    while (!fake->at_gate)
        pthread_cond_wait(&fake->changed, &fake->lock);
    pthread_mutex_unlock(&fake->lock);
    MUST(store_snapshot_remove(bench->rig->disk.store, snap.team_id, snap.template_id, &err));
    pthread_mutex_lock(&fake->lock);
    fake->start = FAKE_START_FAILS;
    fake->gate_shut = false;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
    row = await(bench, id);
    check_failed(bench, &row, gone, "base");
    fake->start = FAKE_STARTS;
    row = build(bench, "mine", want);
    check_failed(bench, &row, gone, "base");
}

/* ---- the sweep ---- */

/* As if a build made the step whose line in the log begins so: others wait for it. */
static struct build *occupy(struct bench *bench, struct str id, const char *line, char key[KEY_BYTES])
{
    struct build *build = NEW(struct build);
    const char *at = strstr(log_of(bench, id).at, line);

    assert_non_null(at);
    at = strchr(at + strlen(line), '[');
    assert_non_null(at);
    (void)snprintf(key, KEY_BYTES, "%.64s", at + 1);
    build->builder = bench->builder;
    build->want.team_id = store_team_default(bench->rig->disk.store);
    arena_init(&build->arena);
    assert_true(cache_take(build, key));
    return build;
}

static void leave(struct build *build, const char *key)
{
    cache_leave(build, key);
    arena_done(&build->arena);
    free(build);
}

static void await_line(struct bench *bench, struct str id, const char *line)
{
    for (int i = 0; i < 6000; i++) {
        if (strstr(log_of(bench, id).at, line))
            return;
        usleep(10000);
    }
    fail_msg("the log has no '%s':\n%s", line, log_of(bench, id).at);
}

/* No row of the cache is left, and what they kept is only written down. */
static void forget_steps(struct bench *bench)
{
    struct store *store = bench->rig->disk.store;
    struct str *ids;
    size_t count;

    MUST(store_steps_evict(store, store_team_default(store), INT64_MAX, UINT64_MAX, &bench->rig->arena, &ids, &count,
                           &err));
}

static bool is_kept(struct bench *bench, struct str id)
{
    bool is_so;

    MUST(store_build_keeps(bench->rig->disk.store, id, &is_so, &err));
    return is_so;
}

static void a_sweep_takes_what_is_unused_and_nothing_that_a_build_is_on(void **state)
{
    struct bench *bench = *state;
    const unsigned *dropped = &bench->rig->fake.pause_calls[PAUSE_DROP];
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two"))) };
    char key[KEY_BYTES];

    struct build_row first = build(bench, "first", want);
    assert_int_equal(first.layer_count, 3);
    struct build *maker = occupy(bench, first.id, "[builder 2/2] RUN step two ", key);
    struct str id = begin(bench, "second", want);
    await_line(bench, id, "waiting for a build that does the same");
    /* It is on the first layer, by the cache; no row says so any more. */
    MUST(store_built_remove(bench->rig->disk.store, first.template_id, &err));
    forget_steps(bench);
    assert_int_equal(*dropped, 0);
    assert_false(builder_tidy(bench->builder));
    assert_int_equal(*dropped, 1);
    assert_true(is_kept(bench, first.layers[1]));
    assert_false(is_kept(bench, first.layers[2]));
    leave(maker, key);
    struct build_row second = await(bench, id);
    assert_int_equal(second.state, BUILD_READY);
    CHECK_STR(second.layers[1], first.layers[1]);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step two"), 2);
    assert_false(builder_tidy(bench->builder));
    assert_int_equal(*dropped, 1);
}

static void await_idle(struct bench *bench)
{
    for (int i = 0; i < 6000 && builder_is_busy(bench->builder); i++)
        usleep(10000);
    assert_false(builder_is_busy(bench->builder));
}

static void what_a_cancelled_build_was_on_goes_after_it(void **state)
{
    struct bench *bench = *state;
    const unsigned *dropped = &bench->rig->fake.pause_calls[PAUSE_DROP];
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("sleep forever"))) };

    struct str id = begin(bench, "mine", want);
    while (!guestd_fake_count(&bench->guestd, "sleep forever"))
        usleep(1000);
    forget_steps(bench); /* its sandbox is on the layer */
    assert_false(builder_tidy(bench->builder));
    assert_int_equal(*dropped, 0);
    builder_cancel(bench->builder, id, "build was cancelled");
    assert_int_equal(await(bench, id).state, BUILD_ERROR);
    await_idle(bench);
    forget_steps(bench); /* if the sandbox had kept it from that before */
    (void)builder_tidy(bench->builder);
    assert_int_equal(*dropped, 1);
}

static void a_prune_takes_what_is_unused_and_nothing_that_a_build_is_on(void **state)
{
    struct bench *bench = *state;
    const unsigned *dropped = &bench->rig->fake.pause_calls[PAUSE_DROP];
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two")),
                                      STEP(RUN, STR_INIT("step three"))) };
    struct str team_id = store_team_default(bench->rig->disk.store);
    struct pruned pruned;
    char key[KEY_BYTES];

    struct build_row first = build(bench, "first", want);
    struct build *maker = occupy(bench, first.id, "[builder 2/3] RUN step two ", key);
    struct str id = begin(bench, "second", want);
    await_line(bench, id, "waiting for a build that does the same");
    /* All of it is a template's. */
    MUST(builder_prune(bench->builder, team_id, false, &pruned, &err));
    assert_int_equal(pruned.steps + pruned.layers + pruned.bytes, 0);
    MUST(store_built_remove(bench->rig->disk.store, first.template_id, &err));
    /* The second build is on the first layer, and about to look for the second step. */
    MUST(builder_prune(bench->builder, STR("another team"), false, &pruned, &err));
    assert_int_equal(pruned.steps + pruned.layers, 0);
    for (int is_real = 0; is_real < 2; is_real++) {
        MUST(builder_prune(bench->builder, is_real ? STR("") : team_id, !is_real, &pruned, &err));
        assert_int_equal(pruned.steps, 2);
        assert_int_equal(pruned.layers, 2);
        assert_int_equal(pruned.bytes, 2000);
        assert_int_equal(pruned.left, 0);
        assert_int_equal(*dropped, is_real ? 2 : 0);
    }
    assert_true(is_kept(bench, first.layers[1]));
    leave(maker, key);
    struct build_row second = await(bench, id);
    assert_int_equal(second.state, BUILD_READY);
    CHECK_STR(second.layers[1], first.layers[1]);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step one"), 1);
    assert_int_equal(guestd_fake_count(&bench->guestd, "step two"), 2);
    await_idle(bench);
    builder_stop(bench->builder);
    MUST_FAIL(builder_prune(bench->builder, team_id, false, &pruned, &err), ERR_UNAVAILABLE);
}

struct wanting {
    struct build *build;
    struct str layer;
    atomic_bool has;
};

static void *want_layer(void *context)
{
    struct wanting *wanting = context;
    struct holds *holds = &wanting->build->builder->holds;

    pthread_mutex_lock(&holds->lock);
    layers_hold(wanting->build, &wanting->layer, 1);
    pthread_mutex_unlock(&holds->lock);
    atomic_store(&wanting->has, true);
    return NULL;
}

static void who_wants_a_layer_that_is_being_dropped_waits_until_it_is_gone(void **state)
{
    struct bench *bench = *state;
    struct builder *builder = bench->builder;
    struct str layer = STR("00000000000000000000000000000000000000000000000000000000000000bb"), list[] = { layer };
    struct build *build = NEW(struct build);
    struct wanting wanting = { .build = build, .layer = layer };
    pthread_t thread;

    build->builder = builder;
    map_init(&build->held);
    pthread_mutex_lock(&builder->holds.lock);
    assert_int_equal(layers_doom(builder, list, 1, 1), 1);
    assert_int_equal(layers_doom(builder, list, 1, 1), 0); /* by one at a time */
    pthread_mutex_unlock(&builder->holds.lock);
    assert_int_equal(pthread_create(&thread, NULL, want_layer, &wanting), 0);
    usleep(50000);
    assert_false(atomic_load(&wanting.has));
    size_t dropped;
    MUST(layers_drop(builder, list, 1, UINT64_MAX, &dropped, &err));
    assert_int_equal(dropped, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(atomic_load(&wanting.has));
    pthread_mutex_lock(&builder->holds.lock);
    assert_int_equal(layers_doom(builder, list, 1, 1), 0);
    pthread_mutex_unlock(&builder->holds.lock);
    build_let_go(build);
    assert_int_equal(builder->holds.by_id.count, 0);
    map_done(&build->held);
    free(build);
}

static void one_layer_that_cannot_be_dropped_is_in_the_way_of_no_other(void **state)
{
    static const char stuck[] = "00000000000000000000000000000000000000000000000000000000000000b1";
    struct bench *bench = *state;
    struct builder *builder = bench->builder;
    struct fake *fake = &bench->rig->fake;
    struct str list[] = { str_from(stuck), STR("00000000000000000000000000000000000000000000000000000000000000b2"),
                          STR("00000000000000000000000000000000000000000000000000000000000000b3") };
    size_t dropped;

    for (int is_away = 0; is_away < 2; is_away++) {
        pthread_mutex_lock(&builder->holds.lock);
        assert_int_equal(layers_doom(builder, list, 3, 3), 3);
        pthread_mutex_unlock(&builder->holds.lock);
        if (is_away)
            (void)err_set(&fake->pause_errs[PAUSE_DROP][0], ERR_UNAVAILABLE, "keeper is away");
        fake->stuck = stuck;
        fake->pause_calls[PAUSE_DROP] = 0;
        MUST_FAIL(layers_drop(builder, list, 3, UINT64_MAX, &dropped, &err), is_away ? ERR_UNAVAILABLE : ERR_INTERNAL);
        assert_int_equal(dropped, is_away ? 0 : 2);
        assert_int_equal(fake->pause_calls[PAUSE_DROP], is_away ? 1 : 3);
        assert_int_equal(builder->holds.by_id.count, 0);
    }
}

static void check_no_room(const struct build_row *row, const char *reason, const char *step)
{
    assert_int_equal(row->state, BUILD_ERROR);
    if (!str_starts(row->reason, str_from(reason)))
        fail_msg("%.*s", STR_ARG(row->reason));
    CHECK_STR(row->reason_step, str_from(step));
}

static void what_builds_keep_has_a_cap(void **state)
{
    struct bench *bench = *state;
    struct fake *fake = &bench->rig->fake;
    struct build_want want = { RECIPE(STEP(RUN, STR_INIT("step one")), STEP(RUN, STR_INIT("step two"))) },
                      other = { RECIPE(STEP(RUN, STR_INIT("step three")), STEP(RUN, STR_INIT("exit 3"))) },
                      more = { RECIPE(STEP(RUN, STR_INIT("step four"))) };
    uint64_t of_team, of_all;

    bench->builder->config.bytes_of_team = 3500; /* a layer of the fake driver takes 1000 */
    struct build_row row = build(bench, "mine", want);
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(build(bench, "other", other).state, BUILD_ERROR); /* leaves a step behind */
    unsigned dropped = fake->pause_calls[PAUSE_DROP];
    assert_int_equal(build(bench, "more", more).state, BUILD_READY); /* for which that one goes */
    assert_int_equal(fake->pause_calls[PAUSE_DROP], dropped + 1);
    MUST(store_build_bytes(bench->rig->disk.store, row.team_id, &of_team, &of_all, &err));
    assert_int_equal(of_team, 3000);
    /* Ready builds are on the rest. What did not fit is dropped. */
    other = (struct build_want){ RECIPE(STEP(RUN, STR_INIT("step five"))) };
    row = build(bench, "five", other);
    check_no_room(&row, "the builds of this team take 0 MB on disk, and there is no room for ", "1");
    assert_int_equal(fake->pause_calls[PAUSE_DROP], dropped + 2);
    more.start_cmd = STR("serve");
    more.ready_cmd = STR("is-ready");
    row = build(bench, "served", more);
    check_no_room(&row, "the builds of this team take", "finalize");
    assert_int_equal(fake->pause_calls[PAUSE_DROP], dropped + 3);
    bench->builder->config.bytes_of_team = LIMIT_BUILD_BYTES_TEAM;
    bench->builder->config.bytes = 3500;
    row = build(bench, "five", other);
    check_no_room(&row, "the builds of all teams take", "1");
    MUST(store_build_bytes(bench->rig->disk.store, row.team_id, &of_team, &of_all, &err));
    assert_int_equal(of_all, 3000);
}

static void a_team_leaves_a_turn_to_others(void **state)
{
    struct bench *bench = *state;
    struct team_row other;

    MUST(store_team_add(bench->rig->disk.store, STR("other"), &bench->rig->arena, &other, &err));
    struct str first = begin(bench, "n0", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("sleep forever 0"))) });
    (void)begin(bench, "n1", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("sleep forever 1"))) });
    (void)begin(bench, "n2", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("sleep forever 2"))) });
    while (guestd_fake_count(&bench->guestd, "sleep forever") < 2)
        usleep(1000);
    struct build_row row =
        await(bench, begin_of(bench, other.id, "theirs", (struct build_want){ RECIPE(STEP(RUN, STR_INIT("true"))) }));
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(guestd_fake_count(&bench->guestd, "sleep forever 2"), 0);
    builder_cancel(bench->builder, first, "build was cancelled");
    while (!guestd_fake_count(&bench->guestd, "sleep forever 2"))
        usleep(1000);
}

static void keys_depend_on_every_part(void **state)
{
    char one[KEY_BYTES], other[KEY_BYTES];

    (void)state;
    key_of(one, (struct str[]){ STR("ab"), STR("c") }, 2);
    key_of(other, (struct str[]){ STR("a"), STR("bc") }, 2);
    assert_string_not_equal(one, other);
    key_of(other, (struct str[]){ STR("ab"), STR("c"), STR("") }, 3);
    assert_string_not_equal(one, other);
    key_of(other, (struct str[]){ STR("ab"), STR("c") }, 2);
    assert_string_equal(one, other);
}

#define BENCH_CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(keys_depend_on_every_part),
        BENCH_CASE(a_recipe_becomes_layers_and_a_context),
        BENCH_CASE(what_was_built_is_not_built_again),
        BENCH_CASE(force_makes_it_again_from_there_on),
        BENCH_CASE(failures_have_the_texts_that_clients_know),
        BENCH_CASE(an_environment_has_limits),
        BENCH_CASE(files_are_sent_to_guestd),
        BENCH_CASE(a_full_log_is_not_written_to),
        BENCH_CASE(the_same_recipe_at_the_same_time_is_built_once),
        BENCH_CASE(a_cancelled_build_ends_soon_and_leaves_nothing),
        BENCH_CASE(the_start_command_is_kept_with_its_processes),
        BENCH_CASE(a_start_command_that_fails_fails_the_build),
        BENCH_CASE(old_clients_run_steps_as_root),
        BENCH_CASE(a_team_has_so_many_builds),
        BENCH_CASE(what_builds_keep_has_a_cap),
        BENCH_CASE(a_build_that_writes_nothing_has_a_layer_of_its_own),
        BENCH_CASE(a_build_begins_with_what_a_snapshot_is_when_it_has_its_turn),
        BENCH_CASE(a_sweep_takes_what_is_unused_and_nothing_that_a_build_is_on),
        BENCH_CASE(what_a_cancelled_build_was_on_goes_after_it),
        BENCH_CASE(a_prune_takes_what_is_unused_and_nothing_that_a_build_is_on),
        BENCH_CASE(who_wants_a_layer_that_is_being_dropped_waits_until_it_is_gone),
        BENCH_CASE(one_layer_that_cannot_be_dropped_is_in_the_way_of_no_other),
        BENCH_CASE(a_team_leaves_a_turn_to_others),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
