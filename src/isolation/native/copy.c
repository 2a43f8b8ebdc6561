/*
 * Theory of operation: the tree is walked depth first. A level is a directory of the source and its copy, with the place in
 * the list of its names. The uppermost OPEN_LEVELS levels stay open; below, only the level at work is, and the way back up
 * is "..", to the same directory (its inode is compared), whose list is continued where it was left. So a deep tree costs
 * neither descriptors nor stack.
 *
 * The copy of a directory gets its owner, attributes, mode and times when it is left, because what is made in it changes
 * them. A file with several names is made once; a name of it in links_fd, made of its inode's number, is where the others
 * are linked from.
 *
 * When a tree is laid over another, an entry replaces what is there. Two cases need care: a directory over one is merged
 * unless it is opaque; and a directory in place of something else must become opaque, because that something hid what
 * the layers below have there.
 */
#include "isolation/native/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"

enum {
    OPEN_LEVELS = 64,
    LIST_BYTES = 32 * 1024,
    LOOK_ENTRIES = 256,        /* how often to look at the room on disk… */
    STEP_BYTES = 8 << 20,      /* …and how much is copied between two looks; a part of LIMIT_ROOM_BYTES */
    XATTR_BYTES = 64 * 1024,   /* XATTR_LIST_MAX and XATTR_SIZE_MAX */
    TARGET_BYTES = 4096,       /* of a symbolic link: PATH_MAX */
    CHUNK_BYTES = 1024 * 1024, /* where the kernel does not copy by itself */
};

#define OPAQUE "trusted.overlay.opaque"

struct level {
    int from_fd, to_fd; /* -1 while a deeper level is at work, below OPEN_LEVELS */
    char *list;         /* entries as the kernel gives them; NULL when there are none left in it */
    uint32_t len, at;
    bool is_new; /* nothing was in the copy before */
    bool hides;  /* it must be opaque, whatever the source says */
    off_t next;  /* where the list goes on */
    ino_t from_ino, to_ino;
};

struct walk {
    struct copy *copy;
    struct level *levels;
    size_t count, room;
    char *names, *value;     /* XATTR_BYTES each */
    char *chunk;             /* CHUNK_BYTES, once it is needed */
    bool no_clone, no_range; /* the kernel or the file system cannot: do not try again */
};

/* ---- room ---- */

static bool look_at_room(const struct copy *copy, struct err *err)
{
    struct statvfs fs;

    if (fstatvfs(copy->to_fd, &fs) < 0)
        return err_sys(err, "look at the free space for a snapshot");
    struct fd_room room = fd_room(&fs);
    if (!room.few_bytes && !room.few_inodes)
        return true;
    return err_set(err, ERR_FULL,
                   "there is no room on the server's disk for a copy of the sandbox's files: remove snapshots or "
                   "sandboxes");
}

static bool count_bytes(struct copy *copy, uint64_t bytes, struct err *err)
{
    uint64_t before = copy->bytes;

    copy->bytes += bytes;
    return before / STEP_BYTES == copy->bytes / STEP_BYTES || look_at_room(copy, err);
}

static bool count_entry(struct copy *copy, struct err *err)
{
    if (++copy->entries > LIMIT_SNAPSHOT_ENTRIES)
        return err_set(err, ERR_LIMIT, "the sandbox has written more than %d files: remove some",
                       LIMIT_SNAPSHOT_ENTRIES);
    return copy->entries % LOOK_ENTRIES || look_at_room(copy, err);
}

/* ---- attributes ---- */

/*
 * Of the security attributes only capabilities: the others are labels that the host's own policy gives, to the copy too.
 */
static bool is_kept(const char *name)
{
    return strncmp(name, "security.", 9) != 0 || !strcmp(name, "security.capability");
}

/* Where the attributes of one entry are: of an open file, or of a name in the working directory, which is no link. */
struct place {
    int fd;
    const char *name; /* NULL: fd itself; otherwise fd is the directory */
};

static ssize_t list_xattrs(const struct place *at, char *names)
{
    if (!at->name)
        return flistxattr(at->fd, names, XATTR_BYTES);
    return fchdir(at->fd) < 0 ? -1 : llistxattr(at->name, names, XATTR_BYTES);
}

static ssize_t get_xattr(const struct place *at, const char *name, char *value)
{
    if (!at->name)
        return fgetxattr(at->fd, name, value, XATTR_BYTES);
    return fchdir(at->fd) < 0 ? -1 : lgetxattr(at->name, name, value, XATTR_BYTES);
}

static int set_xattr(const struct place *at, const char *name, const char *value, size_t len)
{
    if (!at->name)
        return fsetxattr(at->fd, name, value, len, 0);
    return fchdir(at->fd) < 0 ? -1 : lsetxattr(at->name, name, value, len, 0);
}

static bool copy_xattrs(struct walk *walk, const struct place *from, const struct place *to, struct err *err)
{
    ssize_t len = list_xattrs(from, walk->names);

    if (len < 0 && errno != ENOTSUP)
        return err_sys(err, "list extended attributes");
    for (const char *name = walk->names; name < walk->names + len; name += strlen(name) + 1) {
        if (!is_kept(name))
            continue;
        if (walk->copy->is_merge &&
            (!strcmp(name, "trusted.overlay.redirect") || !strcmp(name, "trusted.overlay.metacopy")))
            return err_set(err, ERR_INVALID, "layers with %s cannot be made one", name);
        ssize_t size = get_xattr(from, name, walk->value);
        if (size < 0)
            return err_sys(err, "read extended attribute %s", name);
        if (set_xattr(to, name, walk->value, (size_t)size) < 0)
            return err_sys(err, "set extended attribute %s", name);
    }
    return true;
}

/* A merged directory has the attributes of the upper one alone. That it is opaque stays. */
static bool drop_xattrs(struct walk *walk, int fd, struct err *err)
{
    ssize_t len = flistxattr(fd, walk->names, XATTR_BYTES);

    if (len < 0 && errno != ENOTSUP)
        return err_sys(err, "list extended attributes");
    for (const char *name = walk->names; name < walk->names + len; name += strlen(name) + 1)
        if (is_kept(name) && strcmp(name, OPAQUE) != 0 && fremovexattr(fd, name) < 0)
            return err_sys(err, "remove extended attribute %s", name);
    return true;
}

/* The owner first: a change of it takes set-user-id bits and capabilities away. */
static bool dress_open(struct walk *walk, int from_fd, int to_fd, const struct stat *st, struct err *err)
{
    const struct timespec times[2] = { st->st_atim, st->st_mtim };

    if (fchown(to_fd, st->st_uid, st->st_gid) < 0 || fchmod(to_fd, st->st_mode & 07777) < 0)
        return err_sys(err, "set owner and mode");
    if (!copy_xattrs(walk, &(struct place){ from_fd, NULL }, &(struct place){ to_fd, NULL }, err))
        return false;
    return futimens(to_fd, times) == 0 || err_sys(err, "set times");
}

static bool dress_name(struct walk *walk, const struct level *level, const char *name, const struct stat *st,
                       struct err *err)
{
    const struct timespec times[2] = { st->st_atim, st->st_mtim };

    if (fchownat(level->to_fd, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        (!S_ISLNK(st->st_mode) && fchmodat(level->to_fd, name, st->st_mode & 07777, 0) < 0))
        return err_sys(err, "set owner and mode");
    if (!copy_xattrs(walk, &(struct place){ level->from_fd, name }, &(struct place){ level->to_fd, name }, err))
        return false;
    return utimensat(level->to_fd, name, times, AT_SYMLINK_NOFOLLOW) == 0 || err_sys(err, "set times");
}

static bool is_opaque(int fd)
{
    char value[2];

    return fgetxattr(fd, OPAQUE, value, sizeof value) == 1 && value[0] == 'y';
}

/* ---- contents ---- */

static bool cannot(int number)
{
    return number == EOPNOTSUPP || number == ENOSYS || number == EXDEV || number == EINVAL || number == ENOTTY ||
           number == EPERM; /* a file system of an older kernel, or two of them */
}

static bool read_and_write(struct walk *walk, int from_fd, int to_fd, off_t at, size_t len, ssize_t *out_n,
                           struct err *err)
{
    if (!walk->chunk)
        walk->chunk = mem_new(CHUNK_BYTES);
    ssize_t n = pread(from_fd, walk->chunk, MIN(len, (size_t)CHUNK_BYTES), at);
    if (n < 0)
        return err_sys(err, "read");
    for (ssize_t done = 0, k; done < n; done += k) {
        k = pwrite(to_fd, walk->chunk + done, (size_t)(n - done), at + done);
        if (k < 0)
            return err_sys(err, "write");
    }
    *out_n = n;
    return true;
}

static bool copy_step(struct walk *walk, int from_fd, int to_fd, off_t at, size_t len, ssize_t *out_n, struct err *err)
{
    off_t in = at, out = at;

    if (walk->no_range)
        return read_and_write(walk, from_fd, to_fd, at, len, out_n, err);
    *out_n = copy_file_range(from_fd, &in, to_fd, &out, len, 0);
    if (*out_n >= 0)
        return true;
    if (!cannot(errno))
        return err_sys(err, "copy");
    walk->no_range = true;
    return read_and_write(walk, from_fd, to_fd, at, len, out_n, err);
}

static bool copy_range(struct walk *walk, int from_fd, int to_fd, off_t at, off_t end, struct err *err)
{
    ssize_t n;

    for (; at < end; at += n) {
        if (!copy_step(walk, from_fd, to_fd, at, (size_t)MIN(end - at, (off_t)STEP_BYTES), &n, err))
            return false;
        if (n == 0)
            return err_set(err, ERR_CONFLICT, "a file changed while it was copied");
        if (!count_bytes(walk->copy, (uint64_t)n, err))
            return false;
    }
    return true;
}

static bool copy_contents(struct walk *walk, int from_fd, int to_fd, off_t size, struct err *err)
{
    if (size > 0 && !walk->no_clone) {
        struct stat st;
        /* Shared blocks are counted too: a snapshot keeps them when the sandbox has gone. */
        if (ioctl(to_fd, FICLONE, from_fd) == 0)
            return fstat(from_fd, &st) < 0 ? err_sys(err, "look at a file")
                                           : count_bytes(walk->copy, (uint64_t)st.st_blocks * 512, err);
        if (!cannot(errno))
            return err_sys(err, "share a file's blocks");
        walk->no_clone = true;
    }
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from_fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* a hole to the end */
        off_t hole = data < 0 ? size : lseek(from_fd, data, SEEK_HOLE);
        data = data < 0 ? at : data; /* a file system without holes */
        if (hole < 0)
            return err_sys(err, "find the next hole of a file");
        if (!copy_range(walk, from_fd, to_fd, data, MIN(hole, size), err))
            return false;
        at = hole;
    }
    return ftruncate(to_fd, size) == 0 || err_sys(err, "set a file's size");
}

/* ---- entries ---- */

static bool is_whiteout(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0);
}

static bool make_file(struct walk *walk, const struct level *level, const char *name, struct err *err)
{
    /* NONBLOCK: should it be something else by now, nothing here waits for it. */
    auto_close int from_fd = openat(level->from_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    struct stat st;

    if (from_fd < 0 || fstat(from_fd, &st) < 0)
        return err_sys(err, "open");
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_CONFLICT, "a file changed while it was copied");
    auto_close int to_fd = openat(level->to_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to_fd < 0)
        return err_sys(err, "create");
    return copy_contents(walk, from_fd, to_fd, st.st_size, err) && dress_open(walk, from_fd, to_fd, &st, err);
}

static bool make_other(struct walk *walk, const struct level *level, const char *name, const struct stat *st,
                       struct err *err)
{
    char target[TARGET_BYTES + 1];

    if (S_ISLNK(st->st_mode)) {
        ssize_t len = readlinkat(level->from_fd, name, target, TARGET_BYTES);
        if (len < 0)
            return err_sys(err, "read a link");
        target[len] = '\0';
        if (symlinkat(target, level->to_fd, name) < 0)
            return err_sys(err, "make a link");
    } else if (mknodat(level->to_fd, name, st->st_mode & S_IFMT, st->st_rdev) < 0) {
        return err_sys(err, "make a special file");
    }
    return dress_name(walk, level, name, st, err);
}

/* Something that is no directory. */
static bool copy_entry(struct walk *walk, const struct level *level, const char *name, const struct stat *st,
                       struct err *err)
{
    const struct copy *copy = walk->copy;
    /* Overlay links its whiteouts to each other, which nobody can see. */
    bool is_linked = st->st_nlink > 1 && !is_whiteout(st);
    char key[48];

    if (!level->is_new && !remove_tree(level->to_fd, name, err))
        return false;
    (void)snprintf(key, sizeof key, "%u-%" PRIuMAX, copy->trees, (uintmax_t)st->st_ino);
    if (is_linked && linkat(copy->links_fd, key, level->to_fd, name, 0) == 0)
        return true;
    /* ENOENT: this is the first name. EMLINK: this file system allows fewer, and so it becomes two files. */
    if (is_linked && errno != ENOENT && errno != EMLINK)
        return err_sys(err, "link");
    if (S_ISREG(st->st_mode) ? !make_file(walk, level, name, err) : !make_other(walk, level, name, st, err))
        return false;
    if (is_linked && linkat(level->to_fd, name, copy->links_fd, key, 0) < 0 && errno != EEXIST)
        return err_sys(err, "remember a link");
    return true;
}

/* ---- the walk ---- */

static struct level *top(struct walk *walk)
{
    return &walk->levels[walk->count - 1];
}

static void level_close(struct level *level)
{
    fd_close(&level->from_fd);
    fd_close(&level->to_fd);
    free(level->list);
    level->list = NULL;
}

/* Takes the descriptors. */
static bool push(struct walk *walk, int from_fd, int to_fd, bool is_new, bool hides, struct err *err)
{
    struct stat from, to;

    if (walk->count == walk->room) {
        walk->room = walk->room ? walk->room * 2 : OPEN_LEVELS;
        walk->levels = mem_grow(walk->levels, walk->room * sizeof *walk->levels);
    }
    struct level *level = &walk->levels[walk->count++];
    *level = (struct level){ .from_fd = from_fd, .to_fd = to_fd, .is_new = is_new, .hides = hides };
    if (walk->count > LIMIT_SNAPSHOT_DEPTH)
        return err_set(err, ERR_LIMIT, "directories are nested more than %d deep", LIMIT_SNAPSHOT_DEPTH);
    if (fstat(from_fd, &from) < 0 || fstat(to_fd, &to) < 0)
        return err_sys(err, "stat");
    level->from_ino = from.st_ino;
    level->to_ino = to.st_ino;
    return true;
}

/* The directory above, again. */
static bool reopen(int below_fd, ino_t ino, int *out_fd, struct err *err)
{
    auto_close int fd = openat(below_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, "go up");
    if (st.st_ino != ino)
        return err_set(err, ERR_CONFLICT, "a directory was moved while it was copied");
    *out_fd = take_fd(&fd);
    return true;
}

/* The directory `name` in the level at work, and its copy, become the next level. */
static bool enter(struct walk *walk, const char *name, struct err *err)
{
    struct level *level = top(walk);
    auto_close int from_fd = openat(level->from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
    bool is_new = level->is_new, hides = false;
    struct stat there;

    if (from_fd < 0)
        return err_sys(err, "open a directory");
    if (!is_new && fstatat(level->to_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            return err_sys(err, "stat");
        is_new = true;
    } else if (!is_new && (!S_ISDIR(there.st_mode) || is_opaque(from_fd))) {
        if (!remove_tree(level->to_fd, name, err))
            return false;
        is_new = hides = true;
    }
    if (is_new && mkdirat(level->to_fd, name, 0700) < 0)
        return err_sys(err, "make a directory");
    int to_fd = openat(level->to_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to_fd < 0)
        return err_sys(err, "open a directory");
    if (walk->count > OPEN_LEVELS)
        level_close(level);
    return push(walk, take_fd(&from_fd), to_fd, is_new, hides, err);
}

static bool leave(struct walk *walk, struct err *err)
{
    struct level *level = top(walk);
    struct stat st;

    if (fstat(level->from_fd, &st) < 0)
        return err_sys(err, "stat");
    if ((!level->is_new && !drop_xattrs(walk, level->to_fd, err)) ||
        !dress_open(walk, level->from_fd, level->to_fd, &st, err))
        return false;
    if (level->hides && fsetxattr(level->to_fd, OPAQUE, "y", 1, 0) < 0)
        return err_sys(err, "make a directory opaque");
    if (walk->count > 1) {
        struct level *above = level - 1;
        if (above->from_fd < 0 && (!reopen(level->from_fd, above->from_ino, &above->from_fd, err) ||
                                   !reopen(level->to_fd, above->to_ino, &above->to_fd, err)))
            return false;
        if (!above->list && above->next && lseek(above->from_fd, above->next, SEEK_SET) < 0)
            return err_sys(err, "continue a directory");
    }
    level_close(level);
    walk->count--;
    return true;
}

/* As getdents64(2) has it. */
struct listed {
    uint64_t ino;
    int64_t next;
    uint16_t len;
    uint8_t type;
    char name[];
};

/* *out_name points into the level's list, and is NULL at its end. */
static bool next_name(struct level *level, const char **out_name, struct err *err)
{
    for (;;) {
        if (!level->list || level->at >= level->len) {
            if (!level->list)
                level->list = mem_new(LIST_BYTES);
            long n = syscall(SYS_getdents64, level->from_fd, level->list, LIST_BYTES);
            if (n < 0)
                return err_sys(err, "read a directory");
            *out_name = NULL;
            if (n == 0)
                return true;
            level->len = (uint32_t)n;
            level->at = 0;
        }
        const struct listed *entry = (const void *)(level->list + level->at);
        level->at += entry->len;
        level->next = (off_t)entry->next;
        *out_name = entry->name;
        if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0)
            return true;
    }
}

static bool copy_next(struct walk *walk, struct err *err)
{
    struct level *level = top(walk);
    char name[256]; /* NAME_MAX; the list may be freed meanwhile */
    const char *listed;
    struct stat st;

    if (!next_name(level, &listed, err))
        return false;
    if (!listed)
        return leave(walk, err);
    if (snprintf(name, sizeof name, "%s", listed) >= (int)sizeof name)
        return err_set(err, ERR_INVALID, "a name is longer than 255 bytes");
    if (!count_entry(walk->copy, err))
        return false;
    if (fstatat(level->from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, "stat");
    return S_ISDIR(st.st_mode) ? enter(walk, name, err) : copy_entry(walk, level, name, &st, err);
}

/* What is behind this is the asker's to know: it is in our sentence or in none. */
static bool explain(struct err *err)
{
    if (err->sys == ENOSPC || err->sys == EDQUOT)
        return err_set(err, ERR_FULL,
                       "there is no room on the server's disk for a copy of the sandbox's files: remove snapshots or "
                       "sandboxes");
    return err_wrap(err, "copy a sandbox's files");
}

bool copy_tree(struct copy *copy, int from_fd, struct err *err)
{
    struct walk walk = { .copy = copy, .names = mem_new(XATTR_BYTES), .value = mem_new(XATTR_BYTES) };
    int from = openat(from_fd, ".", O_RDONLY | O_DIRECTORY | O_NOATIME | O_CLOEXEC);
    int to = openat(copy->to_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = from >= 0 && to >= 0;

    if (ok) {
        ok = look_at_room(copy, err) && push(&walk, from, to, copy->trees == 0, false, err);
        from = ok || walk.count ? -1 : from; /* taken */
        to = ok || walk.count ? -1 : to;
    } else {
        (void)err_sys(err, "open a tree to copy it");
    }
    while (ok && walk.count)
        ok = copy_next(&walk, err);
    while (walk.count)
        level_close(&walk.levels[--walk.count]);
    fd_close(&from);
    fd_close(&to);
    free(walk.levels);
    free(walk.names);
    free(walk.value);
    free(walk.chunk);
    copy->trees++;
    return ok || explain(err);
}
