#include "image/build.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "test.h"

struct build {
    const char *script; /* NULL: exec fails */
    char lines[2 * BUILD_LINE_BYTES];
};

static void run(void *context)
{
    const struct build *build = context;

    if (build->script)
        (void)execl("/bin/sh", "sh", "-c", build->script, (char *)NULL);
    errno = ENOENT;
    build_give_up("start it");
}

static void take_line(void *context, struct str line)
{
    struct build *build = context;
    size_t used = strlen(build->lines);

    (void)snprintf(build->lines + used, sizeof build->lines - used, "<%.*s>", STR_ARG(line));
}

static bool run_build(struct build *build, int log_fd)
{
    const struct build_child child = { run, take_line, build, SIGKILL, log_fd };
    bool fine = false;
    struct err err;

    assert_true(build_run(&child, &fine, &err));
    return fine;
}

static void output_is_read_by_the_line_and_copied_to_the_log(void **state)
{
    struct build build = { .script = "read x; echo one; printf 'two\\rthree\\n' >&2; printf tail" };
    char path[] = "/tmp/build-test-XXXXXX";
    auto_free char *text = NULL;
    struct err err;

    (void)state;
    if (geteuid() != 0)
        skip(); /* a mount namespace needs root */
    auto_close int log_fd = mkostemp(path, O_CLOEXEC);
    assert_true(log_fd >= 0);
    assert_true(run_build(&build, log_fd));
    assert_string_equal(build.lines, "<one><two><three>");
    assert_true(fd_read_file(AT_FDCWD, path, 64, &text, NULL, &err));
    assert_string_equal(text, "one\ntwo\rthree\ntail");
    assert_int_equal(unlink(path), 0);
}

static void a_child_that_fails_or_cannot_start_is_not_fine(void **state)
{
    struct build failed = { .script = "echo 'E: no room'; exit 3" }, absent = { 0 };

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_false(run_build(&failed, -1));
    assert_string_equal(failed.lines, "<E: no room>");
    assert_false(run_build(&absent, -1));
    assert_string_equal(absent.lines, "<E: start it: No such file or directory>");
}

static void mounts_of_the_child_end_with_it(void **state)
{
    struct build build = { .script = "mount -t tmpfs none /mnt && touch /mnt/build-test && echo mounted" };

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_true(run_build(&build, -1));
    assert_string_equal(build.lines, "<mounted>");
    assert_int_equal(access("/mnt/build-test", F_OK), -1);
}

static void a_long_line_is_cut(void **state)
{
    struct build build = { .script = "head -c 3000 /dev/zero | tr '\\0' x; echo; echo next" };

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_true(run_build(&build, -1));
    assert_int_equal(strlen(build.lines), BUILD_LINE_BYTES - 1 + strlen("<><next>"));
    assert_non_null(strstr(build.lines, "x><next>"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_read_by_the_line_and_copied_to_the_log),
        cmocka_unit_test(a_child_that_fails_or_cannot_start_is_not_fine),
        cmocka_unit_test(mounts_of_the_child_end_with_it),
        cmocka_unit_test(a_long_line_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
