#include "image/build.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
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

static bool run_build(struct build *build, int tree_fd)
{
    const struct build_child child = { run, take_line, build, tree_fd };
    bool fine = false;
    struct err err;

    assert_true(build_run(&child, &fine, &err));
    return fine;
}

static void make_tree(char *place, int *out_fd)
{
    assert_non_null(mkdtemp(place));
    assert_int_equal(chmod(place, 0755), 0);
    *out_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(*out_fd >= 0);
}

static void output_is_read_by_the_line(void **state)
{
    struct build build = { .script = "read x; echo one; printf 'two\\rthree\\n' >&2; printf tail" };
    struct build longer = { .script = "head -c 3000 /dev/zero | tr '\\0' x; echo; echo next" };
    char place[] = "/tmp/build-test-XXXXXX";

    (void)state;
    if (geteuid() != 0)
        skip(); /* namespaces need root */
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    assert_true(run_build(&build, tree_fd));
    assert_string_equal(build.lines, "<one><two><three>");
    assert_true(run_build(&longer, tree_fd)); /* a long line is cut */
    assert_int_equal(strlen(longer.lines), BUILD_LINE_BYTES - 1 + strlen("<><next>"));
    assert_non_null(strstr(longer.lines, "x><next>"));
    assert_int_equal(rmdir(place), 0);
}

static void mounts_of_the_child_end_with_it(void **state)
{
    struct build build = { .script =
                               "mount -t tmpfs none " BUILD_TREE " && touch " BUILD_TREE "/file && echo mounted" };
    char place[] = "/tmp/build-test-XXXXXX";

    (void)state;
    if (geteuid() != 0)
        skip();
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    assert_true(run_build(&build, tree_fd));
    assert_string_equal(build.lines, "<mounted>");
    assert_int_equal(rmdir(place), 0);
}

static void a_tree_is_filled_by_a_root_that_is_nobody_on_the_host(void **state)
{
    /* What is left running ends with the program. */
    struct build build = {
        .script = "cd " BUILD_TREE " && id -u && touch mine theirs && chown 1000:1001 theirs && chmod 4755 theirs &&"
                  " read a b c </proc/self/uid_map && echo $a $c && test $b -gt 1000000 && { sleep 1000 & }"
    };
    char place[] = "/tmp/build-test-XXXXXX";
    struct stat st;
    struct err err;

    (void)state;
    if (geteuid() != 0)
        skip();
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    assert_true(run_build(&build, tree_fd));
    assert_string_equal(build.lines, "<0><0 65536>");
    assert_int_equal(fstatat(tree_fd, "mine", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(st.st_uid == 0 && st.st_gid == 0);
    assert_int_equal(fstatat(tree_fd, "theirs", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(st.st_uid == 1000 && st.st_gid == 1001 && (st.st_mode & 07777) == 04755);
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

static void what_is_kept_apart_cannot_touch_the_host(void **state)
{
    static const char *const tries[] = {
        "touch /etc/build-test",
        "touch /var/tmp/build-test",
        "cat /etc/shadow",
        "mknod " BUILD_TREE "/n c 1 3",
        "mount -o remount,rw /",
        "umount /tmp",
        "echo 1 | dd of=/proc/sys/vm/drop_caches",
        "test $(echo /proc/[0-9]* | wc -w) -gt 5",
        "ls /tmp/build-test-*",
        "test -e /proc/self/fd/4",
        "grep -q 'NoNewPrivs:.0' /proc/self/status",
        "chroot /proc/1/root cat /etc/shadow",
        "test $(ls /dev | wc -w) -ne 5",
        "touch /dev/file",
        "umount /dev",
        "mount --bind / /tmp",
        "! head -c 1 /dev/zero >/dev/null",
    };
    char place[] = "/tmp/build-test-XXXXXX";
    struct err err;

    (void)state;
    if (geteuid() != 0)
        skip();
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    for (size_t i = 0; i < COUNT_OF(tries); i++) {
        char script[256];
        struct build build = { .script = script };
        (void)snprintf(script, sizeof script, "if %s 2>/dev/null; then echo done; fi; echo over", tries[i]);
        assert_true(run_build(&build, tree_fd));
        if (strcmp(build.lines, "<over>") != 0)
            fail_msg("%s: %s", tries[i], build.lines);
    }
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

/* Whoever can open a terminal's /dev/tty can type into it (TIOCSTI), and the shell there is root's. */
static void a_child_does_not_have_the_terminal_of_its_parent(void **state)
{
    /* The seventh field is the terminal of the process: /dev/tty would open it. */
    struct build build = { .script = "read a b c d e f terminal rest </proc/self/stat; echo terminal $terminal;"
                                     " test -e /dev/tty || echo none" };
    char place[] = "/tmp/build-test-XXXXXX";
    int status;

    (void)state;
    if (geteuid() != 0)
        skip();
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    pid_t pid = fork();
    if (pid == 0) { /* fails by its exit status: cmocka's jumps are the parent's */
        int master_fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (master_fd < 0 || setsid() < 0 || grantpt(master_fd) < 0 || unlockpt(master_fd) < 0)
            _exit(2);
        int terminal_fd = open(ptsname(master_fd), O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (terminal_fd < 0 || ioctl(terminal_fd, TIOCSCTTY, 0) < 0 || open("/dev/tty", O_RDWR | O_CLOEXEC) < 0)
            _exit(3); /* then it would prove nothing */
        bool fine = run_build(&build, tree_fd);
        (void)fprintf(stderr, "%s\n", build.lines);
        _exit(fine && strcmp(build.lines, "<terminal 0><none>") == 0 ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(rmdir(place), 0);
}

#define KEY_NAME "cloister-build-test"

static void look_for_key(void *context)
{
    (void)context;
    long found = syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", KEY_NAME, 0);
    _exit(found < 0 ? 0 : 1);
}

static void a_child_does_not_have_the_keys_of_its_parent(void **state)
{
    struct build build = { 0 };
    char place[] = "/tmp/build-test-XXXXXX";
    bool fine = false;
    struct err err;

    (void)state;
    if (geteuid() != 0 || syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0)
        skip(); /* a kernel without keys */
    assert_true(syscall(SYS_add_key, "user", KEY_NAME, "secret", 6, KEY_SPEC_SESSION_KEYRING) > 0);
    assert_true(syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", KEY_NAME, 0) > 0);
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    const struct build_child child = { look_for_key, take_line, &build, tree_fd };
    assert_true(build_run(&child, &fine, &err));
    assert_true(fine);
    assert_int_equal(rmdir(place), 0);
}

static void the_end_of_the_child_is_told(void **state)
{
    struct build failed = { .script = "echo 'E: no room'; exit 3" }, killed = { .script = "kill -9 $$" },
                 absent = { 0 };
    char place[] = "/tmp/build-test-XXXXXX";

    (void)state;
    if (geteuid() != 0)
        skip();
    auto_close int tree_fd = -1;
    make_tree(place, &tree_fd);
    assert_false(run_build(&failed, tree_fd));
    assert_string_equal(failed.lines, "<E: no room>");
    assert_false(run_build(&killed, tree_fd));
    assert_false(run_build(&absent, tree_fd));
    assert_string_equal(absent.lines, "<E: start it: No such file or directory>");
    assert_int_equal(rmdir(place), 0);
}

static void packages_are_noted_with_their_layer(void **state)
{
    char place[] = "/tmp/build-test-XXXXXX";
    auto_free char *text = NULL;
    struct err err;

    (void)state;
    auto_close int data_fd = -1;
    make_tree(place, &data_fd);
    assert_true(build_note_packages(data_fd, "base", "aa11", STR("bash 5.2\n"), &err));
    assert_true(build_note_packages(data_fd, "base", "bb22", STR("bash 5.3\n"), &err));
    assert_true(fd_read_file(data_fd, "packages/base", 1000, &text, NULL, &err));
    assert_string_equal(text, "# What layer bb22 of the template base has\nbash 5.3\n");
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_read_by_the_line),
        cmocka_unit_test(mounts_of_the_child_end_with_it),
        cmocka_unit_test(a_tree_is_filled_by_a_root_that_is_nobody_on_the_host),
        cmocka_unit_test(what_is_kept_apart_cannot_touch_the_host),
        cmocka_unit_test(a_child_does_not_have_the_terminal_of_its_parent),
        cmocka_unit_test(a_child_does_not_have_the_keys_of_its_parent),
        cmocka_unit_test(the_end_of_the_child_is_told),
        cmocka_unit_test(packages_are_noted_with_their_layer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
