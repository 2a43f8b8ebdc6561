#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "test.h"

static void a_short_write_is_told_as_that_and_not_as_an_old_errno(void **state)
{
    (void)state;
    char path[] = "/tmp/fd_test.XXXXXX";
    struct rlimit before, small;
    struct err err;
    auto_close int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 4, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    errno = EPERM;
    bool ok = fd_write_file(AT_FDCWD, path, STR("0123456789"), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(unlink(path), 0);
    assert_false(ok);
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_int_equal(err.sys, 0);
    assert_non_null(strstr(err.message, "took 4 of 10 bytes"));
}

static void a_file_that_is_not_regular_is_refused_without_waiting(void **state)
{
    (void)state;
    char dir[] = "/tmp/fd_test.XXXXXX";
    auto_free char *text = NULL;
    struct err err;
    assert_non_null(mkdtemp(dir));
    auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir_fd >= 0);
    assert_int_equal(mkfifoat(dir_fd, "fifo", 0600), 0); /* nobody will ever write to it */
    assert_int_equal(symlinkat("fifo", dir_fd, "link"), 0);
    assert_int_equal(symlinkat("/dev/zero", dir_fd, "zero"), 0);
    static const char *const names[] = { "fifo", "link", "zero", "." };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_false(fd_read_regular(dir_fd, names[i], 64, &text, NULL, &err));
        assert_int_equal(err.kind, ERR_INVALID);
        assert_non_null(strstr(err.message, "not a regular file"));
    }
    assert_null(text);
    for (size_t i = 0; i < COUNT_OF(names) - 1; i++)
        assert_int_equal(unlinkat(dir_fd, names[i], 0), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void a_regular_file_is_read_whole_and_described(void **state)
{
    (void)state;
    char path[] = "/tmp/fd_test.XXXXXX";
    auto_free char *text = NULL;
    size_t len;
    struct stat st;
    struct err err;
    auto_close int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(fd_write_all(fd, STR("12345"), &err));
    auto_close int again = fd_open_regular(AT_FDCWD, path, &st, &err);
    assert_true(again >= 0);
    assert_int_equal(st.st_size, 5);
    assert_true(fd_read_regular(AT_FDCWD, path, 5, &text, &len, &err));
    assert_int_equal(len, 5);
    assert_string_equal(text, "12345");
    char *none = NULL;
    assert_false(fd_read_regular(AT_FDCWD, path, 4, &none, NULL, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_int_equal(unlink(path), 0);
    assert_false(fd_read_regular(AT_FDCWD, path, 5, &none, NULL, &err));
    assert_int_equal(err.sys, ENOENT);
}

static void await_returns_on_an_event_or_at_the_deadline(void **state)
{
    int pipe_fds[2];

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    assert_false(fd_await(pipe_fds[0], POLLIN, 0));
    assert_false(fd_await(pipe_fds[0], POLLIN, clock_mono_ms() + 1));
    assert_true(fd_await(pipe_fds[1], POLLOUT, 0)); /* a time that has passed is time enough to look */
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    assert_true(fd_await(pipe_fds[0], POLLIN, UINT64_MAX));
    close(pipe_fds[1]);
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    assert_true(fd_await(pipe_fds[0], POLLIN, UINT64_MAX)); /* the end is something to read, too */
    close(pipe_fds[0]);
}

static ino_t inode_of(int dir_fd, const char *name)
{
    struct stat st;

    assert_int_equal(fstatat(dir_fd, name, &st, 0), 0);
    return st.st_ino;
}

static void holds(int dir_fd, const char *name, const char *want)
{
    auto_free char *text = NULL;
    struct err err;

    assert_true(fd_read_file(dir_fd, name, 1000, &text, NULL, &err));
    assert_string_equal(text, want);
}

static void an_update_touches_nothing_that_is_the_same_and_makes_no_new_inode(void **state)
{
    char root[] = "/tmp/fd-test-XXXXXX";
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(root));
    auto_close int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd_update_file(fd, "note", STR("a long first note\n"), 0600, &err));
    holds(fd, "note", "a long first note\n");
    ino_t first = inode_of(fd, "note"), second = inode_of(fd, "note.new");

    assert_true(fd_update_file(fd, "note", STR("a long first note\n"), 0600, &err));
    assert_int_equal(inode_of(fd, "note"), first);
    assert_true(fd_update_file(fd, "note", STR("another\n"), 0600, &err));
    holds(fd, "note", "another\n");
    assert_int_equal(inode_of(fd, "note"), second);
    assert_int_equal(inode_of(fd, "note.new"), first);
    assert_true(fd_update_file(fd, "note", STR("and a longer one again\n"), 0600, &err));
    holds(fd, "note", "and a longer one again\n");
    assert_int_equal(inode_of(fd, "note"), first);

    /* One from before there were spares gets its own. */
    assert_int_equal(unlinkat(fd, "note.new", 0), 0);
    assert_true(fd_update_file(fd, "note", STR("and a longer one again\n"), 0600, &err));
    assert_int_not_equal(inode_of(fd, "note.new"), first);
    assert_int_equal(unlinkat(fd, "note.new", 0), 0);
    assert_int_equal(unlinkat(fd, "note", 0), 0);
    assert_int_equal(rmdir(root), 0);
}

static void room_is_counted_without_roots_reserve(void **state)
{
    (void)state;
    struct statvfs fs = { .f_bsize = 1 << 20, /* how to read it best; blocks are counted in f_frsize */
                          .f_frsize = 4096,
                          .f_blocks = 1 << 20,
                          .f_bfree = 1 << 20,
                          .f_bavail = LIMIT_ROOM_BYTES / 4096,
                          .f_files = 1 << 20,
                          .f_ffree = 1 << 20,
                          .f_favail = LIMIT_ROOM_INODES };
    struct fd_room room = fd_room(&fs);

    assert_int_equal(room.bytes, LIMIT_ROOM_BYTES);
    assert_int_equal(room.inodes, LIMIT_ROOM_INODES);
    assert_false(room.few_bytes || room.few_inodes);
    fs.f_bavail--;
    fs.f_favail--;
    room = fd_room(&fs);
    assert_true(room.few_bytes && room.few_inodes);
    fs.f_files = fs.f_ffree = fs.f_favail = 0; /* btrfs */
    assert_false(fd_room(&fs).few_inodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_write_is_told_as_that_and_not_as_an_old_errno),
        cmocka_unit_test(a_file_that_is_not_regular_is_refused_without_waiting),
        cmocka_unit_test(a_regular_file_is_read_whole_and_described),
        cmocka_unit_test(await_returns_on_an_event_or_at_the_deadline),
        cmocka_unit_test(an_update_touches_nothing_that_is_the_same_and_makes_no_new_inode),
        cmocka_unit_test(room_is_counted_without_roots_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
