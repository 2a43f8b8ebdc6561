/* The tar that CRIU is given: what it packs, the real tar reads, and it reads no other's by halves. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "isolation/native/criu.h"
#include "test.h"

enum { ARCHIVE_BYTES = 64 * 1024 };

struct world {
    char path[64];
    int fd;
};

static int set_up(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/tmp/cloister-tool.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    world->fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(world->fd >= 0);
    int fd = openat(world->fd, "tool", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    assert_int_equal(write(fd, criu_criu_tool, criu_criu_tool_size), (ssize_t)criu_criu_tool_size);
    close(fd);
    assert_int_equal(mkdirat(world->fd, "from", 0755), 0);
    assert_int_equal(mkdirat(world->fd, "to", 0700), 0);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;
    struct err err;

    assert_true(remove_tree(AT_FDCWD, world->path, &err));
    close(world->fd);
    free(world);
    return 0;
}

/* Under the name of tar, with these as descriptors 0 and 1. */
static int run(const struct world *world, const char *in, const char *out, char *const argv[])
{
    char program[96];
    int status;

    (void)snprintf(program, sizeof program, "%s/tool", world->path);
    pid_t pid = fork();
    if (pid == 0) {
        int in_fd = openat(world->fd, in, O_RDONLY),
            out_fd = openat(world->fd, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int null_fd = open("/dev/null", O_WRONLY);
        char *const environment[] = { (char *)"PATH=/usr/bin:/bin", NULL };
        if (in_fd >= 0 && out_fd >= 0 && dup2(in_fd, 0) == 0 && dup2(out_fd, 1) == 1 && dup2(null_fd, 2) == 2)
            (void)execve(program, argv, environment);
        _exit(99);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int pack(const struct world *world)
{
    char *const argv[] = { (char *)"tar",         (char *)"--create",
                           (char *)"--gzip",      (char *)"--numeric-owner",
                           (char *)"--directory", (char *)"/proc/self/fd/0",
                           (char *)".",           NULL };

    return run(world, "from", "archive", argv);
}

static int unpack(const struct world *world)
{
    char to[96];
    char *const argv[] = { (char *)"tar", (char *)"--extract", (char *)"--gzip", (char *)"--directory", to, NULL };

    (void)snprintf(to, sizeof to, "%s/to", world->path);
    return run(world, "archive", "output", argv);
}

static void make(const struct world *world, const char *name, mode_t mode)
{
    assert_int_equal(mkdirat(world->fd, name, 0700), 0);
    assert_int_equal(fchmodat(world->fd, name, mode, 0), 0);
}

static struct stat stat_of(const struct world *world, const char *name)
{
    struct stat st = { 0 };

    if (fstatat(world->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        fail_msg("there is no %s", name);
    return st;
}

static bool is_there(const struct world *world, const char *name)
{
    return faccessat(world->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The first byte after the header of gzip: 1 says that what follows is not compressed. */
static bool is_ours(const struct world *world)
{
    char head[11];
    int fd = openat(world->fd, "archive", O_RDONLY);

    assert_int_equal(read(fd, head, sizeof head), sizeof head);
    close(fd);
    return head[10] == 1;
}

static void empty_directories_come_back_as_they_were(void **state)
{
    struct world *world = *state;
    const struct timespec long_ago[2] = { { 1000000000, 0 }, { 1000000001, 0 } };

    make(world, "from/lock", 01777);
    make(world, "from/.hidden name", 0750);
    assert_int_equal(utimensat(world->fd, "from/lock", long_ago, 0), 0);
    assert_int_equal(fchmodat(world->fd, "from", 02711, 0), 0);
    assert_int_equal(utimensat(world->fd, "from", long_ago, 0), 0);
    assert_int_equal(pack(world), 0);
    assert_true(is_ours(world));
    assert_int_equal(unpack(world), 0);
    assert_int_equal(stat_of(world, "to/lock").st_mode, S_IFDIR | 01777);
    assert_int_equal(stat_of(world, "to/lock").st_mtim.tv_sec, 1000000001);
    assert_int_equal(stat_of(world, "to/.hidden name").st_mode, S_IFDIR | 0750);
    assert_int_equal(stat_of(world, "to").st_mode, S_IFDIR | 02711);
    assert_int_equal(stat_of(world, "to").st_mtim.tv_sec, 1000000001);
}

static void the_real_tar_reads_what_it_packs(void **state)
{
    struct world *world = *state;
    char command[256];

    make(world, "from/lock", 0751);
    assert_int_equal(pack(world), 0);
    assert_true(is_ours(world));
    (void)snprintf(command, sizeof command,
                   "tar --extract --gzip --preserve-permissions --file %s/archive --directory %s/to", world->path,
                   world->path);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): names of our own */
    assert_int_equal(stat_of(world, "to/lock").st_mode, S_IFDIR | 0751);
    assert_int_equal(stat_of(world, "to").st_mode, S_IFDIR | 0755);
}

static void anything_else_is_left_to_the_real_tar(void **state)
{
    struct world *world = *state;
    static const char *const names[] = { "from/a/b", "from/file", "from/link", "from/fifo" };
    char name[96];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (i == 0) {
            make(world, "from/a", 0755);
            make(world, names[i], 0755);
        } else if (i == 1) {
            close(openat(world->fd, names[i], O_WRONLY | O_CREAT, 0600));
        } else if (i == 2) {
            assert_int_equal(symlinkat("/etc", world->fd, names[i]), 0);
        } else {
            assert_int_equal(mkfifoat(world->fd, names[i], 0600), 0);
        }
        assert_int_equal(pack(world), 0);
        assert_false(is_ours(world));
        assert_int_equal(unpack(world), 0);
        (void)snprintf(name, sizeof name, "to/%s", names[i] + 5);
        assert_true(is_there(world, name));
        struct err err;
        assert_true(remove_tree(world->fd, i == 0 ? "from/a" : names[i], &err));
    }
    for (int i = 0; i < 40; i++) { /* more than it takes by itself */
        (void)snprintf(name, sizeof name, "from/%d", i);
        make(world, name, 0755);
    }
    assert_int_equal(pack(world), 0);
    assert_false(is_ours(world));
    assert_int_equal(unpack(world), 0);
    assert_true(is_there(world, "to/0") && is_there(world, "to/39"));
}

static void a_damaged_archive_is_refused(void **state)
{
    struct world *world = *state;
    auto_free char *bytes = NULL;
    size_t len;
    struct err err;

    make(world, "from/lock", 0755);
    assert_int_equal(pack(world), 0);
    assert_true(fd_read_file(world->fd, "archive", ARCHIVE_BYTES, &bytes, &len, &err));
    for (size_t at = 10; at < len; at += 7) {
        int fd = openat(world->fd, "archive", O_WRONLY | O_TRUNC);
        bytes[at] ^= 0x41;
        assert_int_equal(write(fd, bytes, len), (ssize_t)len);
        bytes[at] ^= 0x41;
        close(fd);
        if (unpack(world) == 0)
            fail_msg("a change at byte %zu was not noticed", at);
    }
}

static void half_an_archive_is_refused(void **state)
{
    struct world *world = *state;
    char path[96];

    make(world, "from/lock", 0755);
    assert_int_equal(pack(world), 0);
    (void)snprintf(path, sizeof path, "%s/archive", world->path);
    assert_int_equal(truncate(path, 900), 0);
    assert_int_not_equal(unpack(world), 0);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_not_equal(unpack(world), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        T(empty_directories_come_back_as_they_were),
        T(the_real_tar_reads_what_it_packs),
        T(anything_else_is_left_to_the_real_tar),
        T(a_damaged_archive_is_refused),
        T(half_an_archive_is_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
