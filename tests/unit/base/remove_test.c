#include "base/remove.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

static char place[32];
static int place_fd;

static int set_up(void **state)
{
    (void)state;
    strcpy(place, "/tmp/remove_test.XXXXXX");
    assert_non_null(mkdtemp(place));
    place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(place_fd >= 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close(place_fd);
    assert_int_equal(rmdir(place), 0); /* what was removed has left nothing beside it, either */
    return 0;
}

static int make_dir(int at_fd, const char *name)
{
    assert_int_equal(mkdirat(at_fd, name, 0755), 0);
    int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void touch(int at_fd, const char *name)
{
    int fd = openat(at_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static bool is_there(const char *name)
{
    struct stat st;

    return fstatat(place_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void files_links_and_nothing_at_all_are_removed(void **state)
{
    struct err err;

    (void)state;
    touch(place_fd, "file");
    assert_int_equal(symlinkat("file", place_fd, "link"), 0);
    assert_true(remove_tree(place_fd, "link", &err));
    assert_true(is_there("file"));
    assert_true(remove_tree(place_fd, "file", &err));
    assert_false(is_there("file"));
    assert_true(remove_tree(place_fd, "file", &err));
}

static void a_tree_deeper_than_any_path_is_removed(void **state)
{
    struct err err;
    int fd = make_dir(place_fd, "deep");

    (void)state;
    for (int depth = 0; depth < 600; depth++) {
        touch(fd, "beside");
        int next = make_dir(fd, "a-name-that-is-as-long-as-forty-characters");
        close(fd);
        fd = next;
    }
    close(fd);
    assert_true(remove_tree(place_fd, "deep", &err));
    assert_false(is_there("deep"));
}

static void wide_directories_and_links_go_and_nothing_outside(void **state)
{
    struct err err;
    char name[32];
    auto_close int kept = make_dir(place_fd, "kept");
    auto_close int wide = make_dir(place_fd, "wide");

    (void)state;
    touch(kept, "file");
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (i % 3 == 0)
            touch(wide, name);
        else if (i % 3 == 1)
            assert_int_equal(symlinkat("../kept", wide, name), 0);
        else
            close(make_dir(wide, name));
    }
    assert_true(remove_inside(wide, &err));
    assert_true(is_there("wide"));
    assert_true(remove_tree(place_fd, "wide", &err));
    assert_false(is_there("wide"));
    assert_true(is_there("kept/file"));
    /* A link in the place of the directory is removed, not followed. */
    assert_int_equal(symlinkat("kept", place_fd, "wide"), 0);
    assert_true(remove_tree(place_fd, "wide", &err));
    assert_true(is_there("kept/file"));
    assert_true(remove_tree(place_fd, "kept", &err));
}

static void an_entry_that_cannot_be_removed_is_an_error_and_the_rest_is_removed(void **state)
{
    struct err err;

    (void)state;
    if (geteuid() == 0)
        skip(); /* permissions do not stop root; isolation/trash tests this with an attribute */
    auto_close int tree = make_dir(place_fd, "tree");
    auto_close int closed = make_dir(tree, "closed");
    touch(closed, "stays");
    touch(tree, "goes");
    assert_int_equal(fchmod(closed, 0500), 0);
    assert_false(remove_tree(place_fd, "tree", &err));
    assert_int_equal(err.kind, ERR_DENIED);
    assert_int_equal(err.sys, EACCES);
    assert_false(is_there("tree/goes"));
    assert_true(is_there("tree/closed/stays"));
    assert_int_equal(fchmod(closed, 0700), 0);
    assert_true(remove_tree(place_fd, "tree", &err));
}

int main(void)
{
#define REMOVE_CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        REMOVE_CASE(files_links_and_nothing_at_all_are_removed),
        REMOVE_CASE(a_tree_deeper_than_any_path_is_removed),
        REMOVE_CASE(wide_directories_and_links_go_and_nothing_outside),
        REMOVE_CASE(an_entry_that_cannot_be_removed_is_an_error_and_the_rest_is_removed),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
