#include "isolation/native/trash.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/remove.h"
#include "test.h"
#include "turn.h"

static char place[] = "/tmp/cloister-trash.XXXXXX";
static int place_fd;

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(place));
    place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(place_fd, "trash", 0700), 0);
    return place_fd < 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)unlinkat(place_fd, "trash", AT_REMOVEDIR);
    fd_close(&place_fd);
    return rmdir(place);
}

static int open_trash(void)
{
    return openat(place_fd, "trash", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool is_empty(int dir_fd)
{
    DIR *dir = fdopendir(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    unsigned count = 0;

    while (readdir(dir))
        count++;
    (void)closedir(dir);
    return count == 2;
}

static void touch(int dir_fd, const char *name)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
}

static void a_tree_deeper_than_any_path_is_deleted(void **state)
{
    (void)state;
    auto_close int trash_fd = open_trash();
    int fd = openat(place_fd, "trash", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct err err;

    static const char name[] = "a-name-of-forty-characters-without-a-dot";
    for (int depth = 0; depth < 300; depth++) { /* 12,300 characters of path */
        assert_int_equal(mkdirat(fd, name, 0700), 0);
        touch(fd, "f");
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        fd_close(&fd);
        fd = next;
    }
    fd_close(&fd);
    assert_true(remove_inside(trash_fd, &err));
    assert_true(is_empty(trash_fd));
}

static void links_and_wide_directories_are_deleted_and_nothing_outside(void **state)
{
    (void)state;
    auto_close int trash_fd = open_trash();
    struct err err;

    touch(place_fd, "outside");
    assert_int_equal(mkdirat(trash_fd, "a", 0700), 0);
    for (int i = 0; i < 300; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "a/file%d", i);
        touch(trash_fd, name);
        (void)snprintf(name, sizeof name, "a/dir%d", i);
        assert_int_equal(mkdirat(trash_fd, name, i % 2 ? 0700 : 0), 0);
    }
    assert_int_equal(symlinkat("../..", trash_fd, "a/up"), 0);
    assert_int_equal(symlinkat("..", trash_fd, "up"), 0);
    assert_int_equal(mkfifoat(trash_fd, "a/fifo", 0600), 0);
    assert_true(remove_inside(trash_fd, &err));
    assert_true(is_empty(trash_fd));
    assert_int_equal(unlinkat(place_fd, "outside", 0), 0); /* it is still there */
}

/* Something in there that does not go, for root (an attribute) and for others (a mode) alike. */
static void hold_fast(int dir_fd, const char *name, bool fast)
{
    auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int flags = 0;

    assert_true(fd >= 0);
    if (geteuid() != 0) {
        assert_int_equal(fchmod(fd, fast ? 0500 : 0700), 0);
        return;
    }
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
        skip(); /* a file system that knows no attributes */
    flags = fast ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    if (ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0)
        skip();
}

static void what_does_not_go_keeps_nothing_else(void **state)
{
    (void)state;
    auto_close int trash_fd = open_trash();
    struct err err;

    assert_int_equal(mkdirat(trash_fd, "m", 0700), 0);
    touch(trash_fd, "m/stays");
    for (char name[] = "a"; name[0] <= 'z'; name[0]++) {
        char inner[8];
        if (name[0] == 'm')
            continue;
        assert_int_equal(mkdirat(trash_fd, name, 0700), 0);
        (void)snprintf(inner, sizeof inner, "%s/f", name);
        touch(trash_fd, inner);
    }
    hold_fast(trash_fd, "m", true);
    assert_false(remove_inside(trash_fd, &err));
    assert_int_equal(faccessat(trash_fd, "m/stays", F_OK, 0), 0);
    for (char name[] = "a"; name[0] <= 'z'; name[0]++)
        if (name[0] != 'm')
            assert_int_equal(faccessat(trash_fd, name, F_OK, 0), -1);
    hold_fast(trash_fd, "m", false);
    assert_true(remove_inside(trash_fd, &err));
    assert_true(is_empty(trash_fd));
}

static void what_is_thrown_away_goes_by_itself(void **state)
{
    (void)state;
    auto_close int trash_fd = open_trash();
    struct loop *loop = loop_new();
    struct err err;

    touch(trash_fd, "left over from before");
    struct trash *trash = trash_new(loop, trash_fd);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mkdirat(place_fd, "sandbox", 0700), 0);
        touch(place_fd, "sandbox/file");
        assert_true(trash_add(trash, place_fd, "sandbox", &err));
    }
    assert_true(trash_add(trash, place_fd, "sandbox", &err)); /* gone already is fine */
    for (int i = 0; i < 500 && !(trash_idle(trash) && is_empty(trash_fd)); i++)
        turn_for(loop, 10);
    assert_true(is_empty(trash_fd));
    trash_free(trash);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_tree_deeper_than_any_path_is_deleted),
        CASE(links_and_wide_directories_are_deleted_and_nothing_outside),
        CASE(what_does_not_go_keeps_nothing_else),
        CASE(what_is_thrown_away_goes_by_itself),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
