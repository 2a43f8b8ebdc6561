#include "isolation/native/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"
#include "image/layers.h"
#include "test.h"

/* A directory of our own on a disk, with from/, to/ and links/. */
struct world {
    char path[64];
    int fd, from_fd, to_fd, links_fd;
};

static int open_made(int dir_fd, const char *name)
{
    assert_int_equal(mkdirat(dir_fd, name, 0755), 0);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int set_up(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-copy.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    world->fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->from_fd = open_made(world->fd, "from");
    world->to_fd = open_made(world->fd, "to");
    world->links_fd = open_made(world->fd, "links");
    (void)umask(022);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;
    struct err err;

    (void)!chdir("/");
    fd_close(&world->from_fd);
    fd_close(&world->to_fd);
    fd_close(&world->links_fd);
    assert_true(remove_inside(world->fd, &err));
    fd_close(&world->fd);
    assert_int_equal(rmdir(world->path), 0);
    free(world);
    return 0;
}

static void put(int dir_fd, const char *name, const char *text, unsigned mode)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
}

static void mark(int dir_fd, const char *name, const char *attribute, const char *value)
{
    assert_int_equal(fchdir(dir_fd), 0);
    assert_int_equal(lsetxattr(name, attribute, value, strlen(value), 0), 0);
}

static void date(int dir_fd, const char *name, time_t seconds)
{
    const struct timespec times[2] = { { seconds, 123456789 }, { seconds + 1, 987654321 } };

    assert_int_equal(utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW), 0);
}

static struct stat look(int dir_fd, const char *name)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        fail_msg("%s: %s", name, strerror(errno));
    return st;
}

static void check_same(const struct world *world, const char *name)
{
    struct stat a = look(world->from_fd, name), b = look(world->to_fd, name);

    assert_int_equal(a.st_mode, b.st_mode);
    assert_int_equal(a.st_uid, b.st_uid);
    assert_int_equal(a.st_gid, b.st_gid);
    assert_int_equal(a.st_rdev, b.st_rdev);
    if (!S_ISDIR(a.st_mode)) /* how long the list of a directory is, is its file system's business */
        assert_int_equal(a.st_size, b.st_size);
    assert_int_equal(a.st_mtim.tv_sec, b.st_mtim.tv_sec);
    assert_int_equal(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    if (!S_ISLNK(a.st_mode)) /* reading a link changes it */
        assert_int_equal(a.st_atim.tv_sec, b.st_atim.tv_sec);
}

static void check_mark(int dir_fd, const char *name, const char *attribute, const char *want)
{
    char value[64] = { 0 };

    assert_int_equal(fchdir(dir_fd), 0);
    assert_int_equal(lgetxattr(name, attribute, value, sizeof value), strlen(want));
    assert_memory_equal(value, want, strlen(want));
}

static void copy(struct world *world, struct copy *out)
{
    struct err err;

    *out = (struct copy){ .to_fd = world->to_fd, .links_fd = world->links_fd };
    if (!copy_tree(out, world->from_fd, &err))
        fail_msg("%s", err_text(&err));
}

static void check_digests(int one_fd, int other_fd)
{
    char one[LAYER_HEX_BYTES], other[LAYER_HEX_BYTES];
    struct err err;

    if (!layer_digest(one_fd, one, &err) || !layer_digest(other_fd, other, &err))
        fail_msg("%s", err_text(&err));
    assert_string_equal(one, other);
}

static void a_copy_has_all_that_the_original_has(void **state)
{
    static const unsigned char capability[20] = { 1, 0, 0, 2, 0, 4 }; /* cap_net_bind_service, effective */
    struct world *world = *state;
    int fd = world->from_fd;
    struct copy done;

    put(fd, "plain", "hello", 0644);
    put(fd, "setuid", "program", 04755);
    assert_int_equal(fchownat(fd, "setuid", 1000, 100, 0), 0);
    assert_int_equal(fchmodat(fd, "setuid", 06755, 0), 0);
    put(fd, "capable", "program", 0755);
    assert_int_equal(fchdir(fd), 0);
    assert_int_equal(lsetxattr("capable", "security.capability", capability, sizeof capability, 0), 0);
    put(fd, "unreadable", "secret", 0);
    put(fd, "\xff\xfe new\nline \"'\\", "bytes", 0600);
    put(fd, "marked", "x", 0644);
    mark(fd, "marked", "user.comment", "hello");
    mark(fd, "marked", "trusted.overlay.origin", "handle");
    auto_close int dir_fd = open_made(fd, "directory");
    put(dir_fd, "inside", "1", 0644);
    assert_int_equal(mkdirat(dir_fd, "empty", 0700), 0);
    mark(fd, "directory", "trusted.overlay.opaque", "y");
    assert_int_equal(fchmodat(fd, "directory", 01777, 0), 0);
    assert_int_equal(symlinkat("/etc/../nowhere", fd, "symlink"), 0);
    assert_int_equal(fchownat(fd, "symlink", 7, 8, AT_SYMLINK_NOFOLLOW), 0);
    mark(fd, "symlink", "trusted.overlay.origin", "another");
    assert_int_equal(mknodat(fd, "whiteout", S_IFCHR, 0), 0);
    assert_int_equal(mknodat(fd, "fifo", S_IFIFO | 0640, 0), 0);
    assert_int_equal(mknodat(fd, "socket", S_IFSOCK | 0666, 0), 0);
    static const char *const names[] = { "plain",  "setuid",    "capable", "unreadable", "\xff\xfe new\nline \"'\\",
                                         "marked", "directory", "symlink", "whiteout",   "fifo",
                                         "socket", "." };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        date(fd, names[i], 1000000000 + (time_t)i * 100);
    copy(world, &done);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        check_same(world, names[i]);
    check_digests(fd, world->to_fd);
    check_mark(world->to_fd, "symlink", "trusted.overlay.origin", "another"); /* the digest sees none of links */
    check_mark(world->to_fd, "directory", "trusted.overlay.opaque", "y");
    assert_int_equal(done.entries, 13);
}

static void files_with_several_names_stay_one(void **state)
{
    struct world *world = *state;
    int fd = world->from_fd;
    struct copy done;

    put(fd, "a", "one", 0644);
    auto_close int dir_fd = open_made(fd, "directory");
    assert_int_equal(linkat(fd, "a", dir_fd, "b", 0), 0);
    assert_int_equal(linkat(fd, "a", fd, "c", 0), 0);
    assert_int_equal(symlinkat("target", fd, "link"), 0);
    assert_int_equal(linkat(fd, "link", fd, "same-link", 0), 0);
    /* As overlay has them: the same whiteout everywhere, one name of it not in here. */
    assert_int_equal(mknodat(world->fd, "outside", S_IFCHR, 0), 0);
    assert_int_equal(linkat(world->fd, "outside", fd, "gone", 0), 0);
    assert_int_equal(linkat(world->fd, "outside", fd, "gone too", 0), 0);
    copy(world, &done);
    struct stat a = look(world->to_fd, "a"), b = look(world->to_fd, "directory/b"), c = look(world->to_fd, "c");
    assert_int_equal(a.st_ino, b.st_ino);
    assert_int_equal(a.st_ino, c.st_ino);
    assert_int_equal(a.st_nlink, 4); /* and the one in links/ */
    assert_int_equal(look(world->to_fd, "link").st_ino, look(world->to_fd, "same-link").st_ino);
    assert_int_equal(look(world->to_fd, "gone too").st_rdev, 0);
    assert_int_equal(done.bytes, 3);
}

static void holes_stay_holes(void **state)
{
    struct world *world = *state;
    auto_close int fd = openat(world->from_fd, "sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct copy done;
    char text[8] = { 0 };

    assert_int_equal(pwrite(fd, "begin", 5, 0), 5);
    assert_int_equal(pwrite(fd, "middle", 6, (off_t)1 << 34), 6);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    copy(world, &done);
    struct stat st = look(world->to_fd, "sparse");
    assert_true(st.st_size == (off_t)1 << 40);
    assert_true(st.st_blocks < 100);
    auto_close int copy_fd = openat(world->to_fd, "sparse", O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(copy_fd, text, 6, (off_t)1 << 34), 6);
    assert_string_equal(text, "middle");
    assert_true(done.bytes < 100000);
}

/* Deeper than any path, and than what is held open. With names before and behind the way down. */
#define LONG "m-twenty-letters-mmm"
static void a_tree_of_any_depth_is_copied(void **state)
{
    enum { DEPTH = 800 };
    struct world *world = *state;
    auto_close int fd = fcntl(world->from_fd, F_DUPFD_CLOEXEC, 3);
    struct copy done;
    unsigned depth = 0;

    for (int i = 0; i < DEPTH; i++) {
        if (i % 100 == 70)
            for (int k = 0; k < 20; k++) {
                char name[16];
                (void)snprintf(name, sizeof name, "%c%d", k % 2 ? 'a' : 'z', k);
                assert_int_equal(mkdirat(fd, name, 0711), 0);
            }
        int next = open_made(fd, LONG);
        fd_close(&fd);
        fd = next;
    }
    put(fd, "bottom", "found", 0644);
    copy(world, &done);
    assert_int_equal(done.entries, DEPTH + DEPTH / 100 * 20 + 1);
    auto_close int at = fcntl(world->to_fd, F_DUPFD_CLOEXEC, 3);
    for (;;) {
        int next = openat(at, LONG, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (next < 0)
            break;
        if (depth % 100 == 70)
            assert_int_equal(look(at, "a1").st_mode & 07777, 0711);
        if (depth % 100 == 70)
            assert_int_equal(look(at, "z18").st_mode & 07777, 0711);
        fd_close(&at);
        at = next;
        depth++;
    }
    assert_int_equal(depth, DEPTH);
    assert_int_equal(look(at, "bottom").st_size, 5);
}

static void a_long_list_of_names_is_copied(void **state)
{
    struct world *world = *state;
    struct copy done;

    for (int i = 0; i < 2000; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "a-name-that-is-as-long-as-many-%d", i);
        if (i % 10)
            put(world->from_fd, name, name, 0644);
        else
            assert_int_equal(mkdirat(world->from_fd, name, 0700), 0);
    }
    copy(world, &done);
    assert_int_equal(done.entries, 2000);
    check_digests(world->from_fd, world->to_fd);
}

static void mount_tmpfs(const struct world *world, const char *name, const char *options)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", world->path, name);
    assert_int_equal(mount("tmpfs", path, "tmpfs", 0, options), 0);
}

/* Onto another file system, which cannot share blocks and is small. */
static void a_full_disk_is_said_and_not_filled_up(void **state)
{
    struct world *world = *state;
    char text[65536], path[128];
    struct statvfs fs;
    struct err err;

    fd_close(&world->links_fd);
    fd_close(&world->to_fd);
    assert_int_equal(mkdirat(world->fd, "small", 0700), 0);
    mount_tmpfs(world, "small", "size=96m");
    world->to_fd = openat(world->fd, "small", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->links_fd = open_made(world->to_fd, "links");
    auto_close int copy_fd = open_made(world->to_fd, "copy");
    memset(text, 'x', sizeof text);
    for (int k = 0; k < 4; k++) {
        char name[16];
        (void)snprintf(name, sizeof name, "file%d", k);
        auto_close int fd = openat(world->from_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        for (int i = 0; i < 512; i++)
            assert_int_equal(write(fd, text, sizeof text), sizeof text);
    }
    struct copy full = { .to_fd = copy_fd, .links_fd = world->links_fd };
    assert_false(copy_tree(&full, world->from_fd, &err));
    assert_int_equal(err.kind, ERR_FULL);
    assert_non_null(strstr(err.message, "remove snapshots"));
    assert_int_equal(fstatvfs(copy_fd, &fs), 0);
    assert_true(fs.f_bavail * fs.f_frsize > LIMIT_ROOM_BYTES / 2);
    fd_close(&copy_fd);
    fd_close(&world->to_fd);
    fd_close(&world->links_fd);
    (void)snprintf(path, sizeof path, "%s/small", world->path);
    assert_int_equal(umount2(path, 0), 0);
    world->to_fd = openat(world->fd, "to", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->links_fd = openat(world->fd, "links", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* ---- several trees into one ---- */

static int overlay(const struct world *world, const char *lower, const char *upper)
{
    char options[1024], path[128];

    (void)mkdirat(world->fd, "mnt", 0700);
    (void)mkdirat(world->fd, "work", 0700);
    assert_int_equal(fchdir(world->fd), 0);
    if (upper)
        (void)snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=work,redirect_dir=off,volatile", lower,
                       upper);
    else
        (void)snprintf(options, sizeof options, "lowerdir=%s", lower);
    (void)snprintf(path, sizeof path, "%s/mnt", world->path);
    if (mount("overlay", path, "overlay", 0, options) < 0)
        fail_msg("%s: %s", options, strerror(errno));
    int fd = openat(world->fd, "mnt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void unmount(const struct world *world, int *fd)
{
    char path[128];
    struct err err;

    fd_close(fd);
    (void)!chdir("/");
    (void)snprintf(path, sizeof path, "%s/mnt", world->path);
    assert_int_equal(umount2(path, 0), 0);
    assert_true(remove_tree(world->fd, "work", &err));
}

static unsigned dice(unsigned *seed, unsigned sides)
{
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 16) % sides;
}

/* A guest at random: few names, so that they meet. */
static void play(int root_fd, unsigned *seed, unsigned turns)
{
    struct err err;

    while (turns--) {
        auto_close int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
        for (unsigned depth = dice(seed, 4); depth; depth--) {
            char name[2] = { (char)('a' + dice(seed, 4)), 0 };
            int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (next < 0)
                break;
            fd_close(&fd);
            fd = next;
        }
        char name[2] = { (char)('a' + dice(seed, 4)), 0 }, other[2] = { (char)('a' + dice(seed, 4)), 0 }, text[32];
        (void)snprintf(text, sizeof text, "%u", *seed);
        switch (dice(seed, 8)) {
        case 0:
        case 1:
            (void)mkdirat(fd, name, 0700 | dice(seed, 64));
            break;
        case 2:
            (void)!remove_tree(fd, name, &err);
            break;
        case 3:
            (void)renameat(fd, name, fd, other);
            break;
        case 4:
            (void)!linkat(fd, name, fd, other, 0);
            break;
        case 5:
            (void)!symlinkat(text, fd, name);
            break;
        case 6:
            (void)!fchmodat(fd, name, dice(seed, 512), 0);
            break;
        default: {
            auto_close int file = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
            if (file >= 0)
                assert_true(write(file, text, strlen(text)) > 0);
            (void)fsetxattr(file, "user.mark", text, strlen(text), 0);
        }
        }
    }
}

static void layers_made_one_look_as_they_did_on_any_layer_below(void **state)
{
    struct world *world = *state;

    for (unsigned round = 1; round <= 15; round++) {
        unsigned seed = round * 7919;
        char chain[64] = "base", above[8];
        struct copy merged = { .is_merge = true };
        struct err err;

        auto_close int base_fd = open_made(world->fd, "base");
        play(base_fd, &seed, 300);
        for (int layer = 1; layer <= 4; layer++) {
            (void)snprintf(above, sizeof above, "u%d", layer);
            assert_int_equal(mkdirat(world->fd, above, 0755), 0);
            int fd = overlay(world, chain, above);
            play(fd, &seed, 120);
            unmount(world, &fd);
            char longer[64];
            (void)snprintf(longer, sizeof longer, "%.8s:%.50s", above, chain);
            memcpy(chain, longer, sizeof chain);
        }
        int whole_fd = overlay(world, chain, NULL);
        char one[LAYER_HEX_BYTES], other[LAYER_HEX_BYTES];
        assert_true(layer_digest(whole_fd, one, &err));
        unmount(world, &whole_fd);

        merged.to_fd = open_made(world->fd, "merged");
        merged.links_fd = world->links_fd;
        for (int layer = 1; layer <= 4; layer++) {
            (void)snprintf(above, sizeof above, "u%d", layer);
            auto_close int layer_fd = openat(world->fd, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (!copy_tree(&merged, layer_fd, &err))
                fail_msg("round %u: %s", round, err_text(&err));
        }
        fd_close(&merged.to_fd);
        int short_fd = overlay(world, "merged:base", NULL);
        assert_true(layer_digest(short_fd, other, &err));
        unmount(world, &short_fd);
        if (strcmp(one, other) != 0)
            fail_msg("round %u: the merged layer differs; see %s", round, world->path);
        for (const char *const *name = (const char *const[]){ "base", "u1", "u2", "u3", "u4", "merged", NULL }; *name;
             name++)
            assert_true(remove_tree(world->fd, *name, &err));
        assert_true(remove_inside(world->links_fd, &err));
    }
}

static void layers_that_point_elsewhere_are_not_made_one(void **state)
{
    struct world *world = *state;
    struct copy merged = { .to_fd = world->to_fd, .links_fd = world->links_fd, .is_merge = true }, plain;
    struct err err;

    assert_int_equal(mkdirat(world->from_fd, "moved", 0755), 0);
    mark(world->from_fd, "moved", "trusted.overlay.redirect", "/old");
    assert_false(copy_tree(&merged, world->from_fd, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_true(remove_inside(world->to_fd, &err));
    copy(world, &plain);
    check_mark(world->to_fd, "moved", "trusted.overlay.redirect", "/old");
}

#define COPY_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        COPY_CASE(a_copy_has_all_that_the_original_has),
        COPY_CASE(files_with_several_names_stay_one),
        COPY_CASE(holes_stay_holes),
        COPY_CASE(a_tree_of_any_depth_is_copied),
        COPY_CASE(a_long_list_of_names_is_copied),
        COPY_CASE(a_full_disk_is_said_and_not_filled_up),
        COPY_CASE(layers_made_one_look_as_they_did_on_any_layer_below),
        COPY_CASE(layers_that_point_elsewhere_are_not_made_one),
    };

    if (geteuid() != 0) {
        (void)fprintf(stderr, "SKIP: copying owners and devices needs root\n");
        return 77;
    }
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return 1;
    return cmocka_run_group_tests(cases, NULL, NULL);
}
