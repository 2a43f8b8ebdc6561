#include "image/bootstrap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "test.h"

static void progress_only_grows_and_knows_its_phase(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "I: amd64 cannot be executed natively",
        "I: running apt-get update...",
        "Get:1 http://mirror.example/debian trixie InRelease [140 kB]",
        "I: downloading packages with apt...",
        "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 http://mirror.example/debian trixie/main amd64 bash",
        "Get:2 http://mirror.example/debian trixie/main amd64 dash",
        "I: extracting archives...",
        "I: installing essential packages...",
        "Setting up bash (5.2) ...",
        "I: installing remaining packages inside the chroot...",
        "0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 x",
        "Unpacking git (1:2.47) ...",
        "Setting up git (1:2.47) ...",
        "I: cleaning package lists and apt cache...",
    };
    struct bootstrap_meter meter = { 0 };
    unsigned before = 0;

    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        (void)bootstrap_meter_line(&meter, str_from(lines[i]));
        assert_true(meter.percent >= before);
        assert_true(meter.percent < 100);
        before = meter.percent;
    }
    assert_true(before >= 88);
    assert_string_equal(meter.phase, "cleaning up");
    assert_false(bootstrap_meter_line(&meter, STR("Setting up nothing")));
    assert_false(bootstrap_meter_line(&meter, STR("")));
}

static void make_dirs(int fd)
{
    static const char *const dirs[] = { "etc",           "etc/skel",      "etc/default",
                                        "etc/sudoers.d", "etc/apt",       "etc/apt/apt.conf.d",
                                        "root",          "home",          "home/user",
                                        "usr",           "usr/lib",       "usr/lib/python3.13",
                                        "usr/local",     "usr/local/lib", "usr/local/lib/deep" };

    for (size_t i = 0; i < COUNT_OF(dirs); i++)
        assert_int_equal(mkdirat(fd, dirs[i], 0755), 0);
}

static void check_mode(int fd, const char *path, unsigned mode, unsigned owner)
{
    struct stat st;

    assert_int_equal(fstatat(fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 07777, mode);
    assert_int_equal(st.st_uid, owner);
}

static void a_fresh_tree_becomes_base(void **state)
{
    (void)state;
    char place[] = "/tmp/cloister-bootstrap.XXXXXX";
    struct err err;

    if (geteuid() != 0) {
        skip(); /* files change owners */
    }
    assert_non_null(mkdtemp(place));
    auto_close int place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(place_fd, "root", 0755), 0);
    auto_close int fd = openat(place_fd, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    make_dirs(fd);
    /* A link out of the tree is not followed. */
    assert_int_equal(symlinkat("/tmp/cloister-must-not-exist", fd, "etc/resolv.conf"), 0);
    assert_int_equal(symlinkat("python3.13", fd, "usr/lib/python3.99"), 0);
    auto_close int marker = openat(fd, "usr/lib/python3.13/EXTERNALLY-MANAGED", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(marker >= 0);
    if (!bootstrap_customize(fd, &err))
        fail_msg("%s", err_text(&err));
    check_mode(fd, "etc/profile", 0644, 0);
    check_mode(fd, "etc/sudoers.d/user", 0440, 0);
    check_mode(fd, "etc/resolv.conf", 0644, 0);
    check_mode(fd, "home/user/.profile", 0644, 1000);
    check_mode(fd, "usr/local/lib/deep", 01777, 0);
    check_mode(fd, "code", 01777, 0);
    assert_int_equal(access("/tmp/cloister-must-not-exist", F_OK), -1);
    assert_int_equal(faccessat(fd, "usr/lib/python3.13/EXTERNALLY-MANAGED", F_OK, 0), -1);
    auto_free char *hosts = NULL;
    assert_true(fd_read_file(fd, "etc/hosts", 4096, &hosts, NULL, &err));
    assert_non_null(strstr(hosts, "127.0.0.1 localhost " BOOTSTRAP_HOSTNAME "\n"));
    assert_true(remove_tree(place_fd, "root", &err));
    assert_int_equal(rmdir(place), 0);
}

static void what_is_removed_is_removed_inside(void **state)
{
    (void)state;
    char place[] = "/tmp/cloister-bootstrap.XXXXXX";
    struct err err;

    if (geteuid() != 0)
        skip();
    assert_non_null(mkdtemp(place));
    auto_close int place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(place_fd, "root", 0755), 0);
    assert_int_equal(mkdirat(place_fd, "host", 0755), 0);
    auto_close int marker = openat(place_fd, "host/EXTERNALLY-MANAGED", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(marker >= 0);
    auto_close int fd = openat(place_fd, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    make_dirs(fd);
    assert_int_equal(symlinkat("../../../host", fd, "usr/lib/python3.12"), 0);
    if (!bootstrap_customize(fd, &err))
        fail_msg("%s", err_text(&err));
    assert_int_equal(faccessat(place_fd, "host/EXTERNALLY-MANAGED", F_OK, 0), 0);
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

static void a_directory_that_is_a_link_is_refused(void **state)
{
    (void)state;
    char place[] = "/tmp/cloister-bootstrap.XXXXXX";
    struct stat st;
    struct err err;

    if (geteuid() != 0)
        skip();
    assert_non_null(mkdtemp(place));
    auto_close int place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(place_fd, "root", 0755), 0);
    assert_int_equal(mkdirat(place_fd, "host", 0700), 0);
    auto_close int fd = openat(place_fd, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    make_dirs(fd);
    assert_int_equal(symlinkat("../../../host", fd, "home/user/.local"), 0);
    assert_false(bootstrap_customize(fd, &err));
    assert_int_equal(fstatat(place_fd, "host", &st, 0), 0);
    assert_true(st.st_uid == 0 && (st.st_mode & 07777) == 0700);
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(progress_only_grows_and_knows_its_phase),
        CASE(a_fresh_tree_becomes_base),
        CASE(what_is_removed_is_removed_inside),
        CASE(a_directory_that_is_a_link_is_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
