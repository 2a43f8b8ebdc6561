/*
 * How it works: the archive is read in pieces, undone (wire/unzip.h), hashed, and cut into entries (wire/tar.h). Each entry is
 * made in its parent directory, which stays open from one entry to the next while it is the same.
 *
 * Making or removing something changes the time of the directory that it is in. An archive names directories before what is
 * in them, so the time that a directory had is set again when it is left.
 *
 * A whiteout must not remove what this archive has made itself, before or after it. So the inodes of the directories that it has
 * made, and of those above what it has made, are remembered; of everything else its directory and name: a hard link makes another
 * name of a file from below, whose old name a whiteout still removes. All layers are on one file system, whose inode numbers
 * overlay shows.
 */
#include "isolation/native/untar.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"
#include "wire/tar.h"
#include "wire/unzip.h"

enum {
    PIECE_BYTES = 256 * 1024,
    NAME_BYTES = 255, /* NAME_MAX */
    TRIES = 1000,
    LINKS_MOST = 40,      /* symbolic links that lead nowhere yet, one after another; the kernel has the same limit */
    LOOK_ENTRIES = 256,   /* how often to look at the room on disk… */
    STEP_BYTES = 8 << 20, /* …and how much is written between two looks; a part of LIMIT_ROOM_BYTES */
    XATTR_BYTES = 64 * 1024, /* XATTR_LIST_MAX */
    SHOWN_BYTES = 48,        /* of a name in a message */
};

typedef char path_text[LIMIT_TAR_NAME_BYTES + 1];

/* A set of inodes: open addressing, 0 is free. */
struct inodes {
    uint64_t *at;
    size_t room, count;
};

/* The directory that the last entry was in. */
struct parent {
    path_text path;
    int fd; /* -1: none */
    struct timespec mtime;
    bool is_noted; /* it and those above it are in `made` */
    uint64_t ino;  /* 0: nobody has asked yet */
};

struct work {
    struct untar *untar;
    struct tar *tar; /* NULL: only the sum is wanted */
    struct unzip *unzip;
    EVP_MD_CTX *sum;
    int root_fd;
    ino_t root_ino;
    struct parent parent;
    struct inodes made;
    struct inodes names_made; /* name_key() of all but directories */
    struct tar_entry entry;   /* the file whose data comes; its strings are good until all of it has come */
    int file_fd;              /* -1: none */
    uint64_t left;            /* of its data */
    uint64_t written;         /* of all files */
    char *names;              /* XATTR_BYTES */
};

/* ---- inodes ---- */

static size_t slot_of(const struct inodes *set, uint64_t ino)
{
    size_t i = (size_t)(ino * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (set->room - 1);

    while (set->at[i] && set->at[i] != ino)
        i = (i + 1) & (set->room - 1);
    return i;
}

static bool has_inode(const struct inodes *set, uint64_t ino)
{
    return set->room && set->at[slot_of(set, ino)];
}

static void add_inode(struct inodes *set, uint64_t ino)
{
    if (set->count * 2 >= set->room) {
        struct inodes larger = { .room = set->room ? set->room * 2 : 1024 };
        larger.at = mem_new(larger.room * sizeof *larger.at);
        for (size_t i = 0; i < set->room; i++)
            if (set->at[i])
                larger.at[slot_of(&larger, set->at[i])] = set->at[i];
        larger.count = set->count;
        free(set->at);
        *set = larger;
    }
    size_t i = slot_of(set, ino);
    set->count += !set->at[i];
    set->at[i] = ino;
}

/*
 * A name in a directory, as a number like an inode's. An archive that is made so that two have the same one keeps what it says
 * it removes, and harms nobody else.
 */
static uint64_t name_key(uint64_t dir_ino, const char *name)
{
    uint64_t key = fnv_add((dir_ino + 1) * UINT64_C(0x9e3779b97f4a7c15), str_from(name));

    return key ? key : 1;
}

/* ---- words ---- */

/* A name for a message: it may have any bytes and any length. Two at once at most. */
static const char *shown(struct str name)
{
    static char rooms[2][SHOWN_BYTES + 8];
    static unsigned turn;
    char *room = rooms[turn++ % 2];
    size_t from = name.len > SHOWN_BYTES ? name.len - SHOWN_BYTES : 0, len = 0;

    if (from) {
        memcpy(room, "...", 3);
        len = 3;
    }
    for (; from < name.len; from++)
        room[len++] = (char)(name.at[from] >= ' ' && name.at[from] <= '~' ? name.at[from] : '?');
    room[len] = '\0';
    return room;
}

static bool no_room(struct err *err)
{
    return err_set(err, ERR_FULL,
                   "there is no room on the server's disk for the image: remove templates, snapshots or sandboxes");
}

static bool look_at_room(const struct work *work, struct err *err)
{
    struct statvfs fs;

    if (fstatvfs(work->root_fd, &fs) < 0)
        return err_sys(err, "look at the free space for an image");
    struct fd_room room = fd_room(&fs);
    return (!room.few_bytes && !room.few_inodes) || no_room(err);
}

static bool count_bytes(struct work *work, uint64_t size, struct err *err)
{
    struct untar *untar = work->untar;

    if (size > untar->most_bytes - untar->bytes)
        return err_set(err, ERR_LIMIT, "the files of the image have more than %llu MiB",
                       (unsigned long long)untar->most_bytes >> 20);
    untar->bytes += size;
    return true;
}

static bool failed(struct err *err, const char *what, struct str name)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return no_room(err);
    return err_sys(err, "%s '%s' of the image", what, shown(name));
}

/* ---- names ---- */

/* Without "." and slashes that say nothing. The root itself is "". */
static bool clean(struct str name, path_text out, struct err *err)
{
    struct str rest = name, part;
    size_t len = 0;
    unsigned depth = 0;

    out[0] = '\0';
    while (str_cut(&rest, '/', &part)) {
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR("..")))
            return err_set(err, ERR_INVALID, "the image has the entry '%s': names with .. are not allowed",
                           shown(name));
        if (part.len > NAME_BYTES)
            return err_set(err, ERR_INVALID, "the image has a name of more than %d bytes: '%s'", NAME_BYTES,
                           shown(name));
        if (++depth > LIMIT_UNPACK_DEPTH)
            return err_set(err, ERR_INVALID, "the image has directories more than %d deep: '%s'", LIMIT_UNPACK_DEPTH,
                           shown(name));
        if (len + 1 + part.len >= sizeof(path_text))
            return err_set(err, ERR_INVALID, "the image has a name that is too long: '%s'", shown(name));
        if (len)
            out[len++] = '/';
        memcpy(out + len, part.at, part.len);
        len += part.len;
        out[len] = '\0';
    }
    return true;
}

/* Cuts the last part off `path`, which becomes its directory. */
static const char *split(path_text path, path_text name)
{
    char *slash = strrchr(path, '/');

    memcpy(name, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path) + 1);
    if (slash)
        *slash = '\0';
    else
        path[0] = '\0';
    return name;
}

/* ---- directories ---- */

static int open_inside(const struct work *work, const char *path)
{
    struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                            .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };

    int fd = -1;

    /* EAGAIN: somebody renames or mounts something, anywhere, and the kernel cannot tell what ".." leads to now. */
    for (int i = 0; i < TRIES && fd < 0 && (i == 0 || errno == EAGAIN); i++)
        fd = (int)syscall(SYS_openat2, work->root_fd, path[0] ? path : ".", &how, sizeof how);
    return fd;
}

/* The directory has this time again, whatever was made in it. */
static bool set_time(int fd, struct timespec mtime, struct err *err)
{
    const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, mtime };

    return futimens(fd, times) == 0 || err_sys(err, "set the time of a directory");
}

static bool make_dirs(struct work *work, const char *path, unsigned links, int *out_fd, struct err *err);

/* `prefix` is a symbolic link to something that is not there: that is made, and the rest in it. */
static bool make_behind(struct work *work, int dir_fd, const char *dir, const char *name, const char *rest,
                        unsigned links, int *out_fd, struct err *err)
{
    path_text target, joined;
    auto_buf struct buf whole = buf_make(NULL, 3 * sizeof(path_text));
    ssize_t len = readlinkat(dir_fd, name, target, sizeof target - 1);

    if (len <= 0 || links >= LINKS_MOST)
        return err_set(err, ERR_INVALID, "the image has an entry in '%s', which is not a directory",
                       shown(str_from(name)));
    if (target[0] != '/') {
        buf_add(&whole, str_from(dir));
        buf_add_char(&whole, '/');
    }
    buf_add(&whole, str_of(target, (size_t)len));
    buf_add_char(&whole, '/');
    buf_add(&whole, str_from(rest));
    /* ".." here is of a link, and stays inside by what it follows: the name is made of what is left. */
    struct str from = buf_str(&whole), part;
    size_t end = 0;
    joined[0] = '\0';
    while (str_cut(&from, '/', &part)) {
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR(".."))) {
            char *slash = strrchr(joined, '/');
            end = slash ? (size_t)(slash - joined) : 0;
            joined[end] = '\0';
            continue;
        }
        if (end + part.len + 2 > sizeof joined)
            return err_set(err, ERR_INVALID, "a link of the image leads too far: '%s'", shown(str_from(name)));
        if (end)
            joined[end++] = '/';
        memcpy(joined + end, part.at, part.len);
        joined[end += part.len] = '\0';
    }
    return make_dirs(work, joined, links + 1, out_fd, err);
}

static bool make_dir(int dir_fd, const char *name, struct err *err)
{
    struct stat st;

    if (fstat(dir_fd, &st) < 0)
        return err_sys(err, "look at a directory");
    if (mkdirat(dir_fd, name, 0755) < 0)
        return failed(err, "make", str_from(name));
    if (fchmodat(dir_fd, name, 0755, 0) < 0) /* our umask is not the image's */
        return failed(err, "set the mode of", str_from(name));
    return set_time(dir_fd, st.st_mtim, err);
}

/* The directory of that path; those that are missing are made. */
static bool make_dirs(struct work *work, const char *path, unsigned links, int *out_fd, struct err *err)
{
    path_text so_far, name;
    size_t len = 0;
    auto_close int fd = open_inside(work, "");

    if (fd < 0)
        return err_sys(err, "open the root");
    so_far[0] = '\0';
    for (const char *at = path, *next; *at; at = *next ? next + 1 : next) {
        next = at + strcspn(at, "/");
        size_t part = (size_t)(next - at), before = len;
        memcpy(name, at, part);
        name[part] = '\0';
        if (len)
            so_far[len++] = '/';
        memcpy(so_far + len, at, part);
        so_far[len += part] = '\0';
        auto_close int below = open_inside(work, so_far);
        if (below < 0 && errno == ENOENT) {
            struct stat st;
            if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
                so_far[before] = '\0';
                return make_behind(work, fd, so_far, name, next, links, out_fd, err);
            }
            if (!make_dir(fd, name, err))
                return false;
            below = open_inside(work, so_far);
        }
        if (below < 0 && (errno == ENOTDIR || errno == ELOOP))
            return err_set(err, ERR_INVALID, "the image has an entry in '%s', which is not a directory",
                           shown(str_from(so_far)));
        if (below < 0)
            return failed(err, "open", str_from(so_far));
        fd_close(&fd);
        fd = take_fd(&below);
    }
    *out_fd = take_fd(&fd);
    return true;
}

static bool leave_parent(struct work *work, struct err *err)
{
    struct parent *parent = &work->parent;
    bool fine = parent->fd < 0 || set_time(parent->fd, parent->mtime, err);

    fd_close(&parent->fd);
    return fine;
}

/* *out_fd -1: it is not there, and must not be made. */
static bool enter_parent(struct work *work, const char *path, bool make, int *out_fd, struct err *err)
{
    struct parent *parent = &work->parent;
    struct stat st;

    if (parent->fd >= 0 && strcmp(parent->path, path) == 0) {
        *out_fd = parent->fd;
        return true;
    }
    if (!leave_parent(work, err))
        return false;
    parent->fd = open_inside(work, path);
    if (parent->fd < 0 && make && !make_dirs(work, path, 0, &parent->fd, err))
        return false;
    *out_fd = parent->fd;
    if (parent->fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || failed(err, "open", str_from(path));
    if (fstat(parent->fd, &st) < 0)
        return err_sys(err, "look at a directory");
    (void)snprintf(parent->path, sizeof parent->path, "%s", path);
    parent->mtime = st.st_mtim;
    parent->is_noted = false;
    parent->ino = 0;
    return true;
}

/* Something was made in the parent: it is this archive's, and so are the directories above. */
static bool note_made(struct work *work, uint64_t ino, struct err *err)
{
    auto_close int fd = -1;
    struct stat st;

    add_inode(&work->made, ino);
    if (work->parent.fd < 0 || work->parent.is_noted)
        return true;
    work->parent.is_noted = true;
    for (int at = work->parent.fd;;) {
        if (fstat(at, &st) < 0)
            return err_sys(err, "look at a directory");
        if (has_inode(&work->made, st.st_ino))
            return true; /* those above are in it too */
        add_inode(&work->made, st.st_ino);
        if (st.st_ino == work->root_ino)
            return true;
        int above = openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (above < 0)
            return err_sys(err, "go up");
        fd_close(&fd);
        at = fd = above;
    }
}

/* That of the directory that the last entry was in. */
static bool parent_ino(struct work *work, uint64_t *out, struct err *err)
{
    struct stat st;

    if (!work->parent.ino) {
        if (fstat(work->parent.fd, &st) < 0)
            return err_sys(err, "look at a directory");
        work->parent.ino = st.st_ino;
    }
    *out = work->parent.ino;
    return true;
}

/* ---- whiteouts ---- */

static bool prune(struct work *work, int dir_fd, uint64_t dir_ino, const char *name, unsigned depth, struct err *err);

/* What is from below goes. Takes the descriptor. */
static bool prune_inside(struct work *work, int dir_fd, unsigned depth, struct err *err)
{
    struct stat st;
    DIR *dir = fstat(dir_fd, &st) < 0 ? NULL : fdopendir(dir_fd);
    bool fine = true;

    if (!dir) {
        (void)err_sys(err, "read a directory");
        fd_close(&dir_fd);
        return false;
    }
    for (struct dirent *entry; fine && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fine = prune(work, dir_fd, st.st_ino, entry->d_name, depth, err);
    fine = fine && set_time(dir_fd, st.st_mtim, err);
    (void)closedir(dir);
    return fine;
}

static bool prune(struct work *work, int dir_fd, uint64_t dir_ino, const char *name, unsigned depth, struct err *err)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || failed(err, "look at", str_from(name));
    bool is_ours =
        S_ISDIR(st.st_mode) ? has_inode(&work->made, st.st_ino) : has_inode(&work->names_made, name_key(dir_ino, name));
    if (!is_ours) {
        if (remove_tree(dir_fd, name, err))
            return true;
        return err->sys == ENOSPC || err->sys == EDQUOT ? no_room(err) : false;
    }
    if (!S_ISDIR(st.st_mode))
        return true;
    if (depth > LIMIT_UNPACK_DEPTH)
        return err_set(err, ERR_INVALID, "the image has directories more than %d deep", LIMIT_UNPACK_DEPTH);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? failed(err, "open", str_from(name)) : prune_inside(work, fd, depth + 1, err);
}

static bool hide(struct work *work, const char *dir, const char *what, struct str whole, struct err *err)
{
    bool is_opaque = strcmp(what, ".wh..opq") == 0;
    uint64_t ino;
    int fd;

    if (!is_opaque && strncmp(what, ".wh.", 4) == 0)
        return true; /* what aufs kept for itself */
    if (!what[0] || strcmp(what, ".") == 0 || strcmp(what, "..") == 0)
        return err_set(err, ERR_INVALID, "the image has the entry '%s', which hides nothing", shown(whole));
    if (!enter_parent(work, dir, false, &fd, err))
        return false;
    if (fd < 0)
        return true; /* there is nothing to hide */
    if (!is_opaque)
        return parent_ino(work, &ino, err) && prune(work, fd, ino, what, 0, err);
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return again < 0 ? err_sys(err, "open a directory") : prune_inside(work, again, 0, err);
}

/* ---- attributes ---- */

static bool is_kept(struct str name)
{
    return str_starts(name, STR("user.")) || str_eq(name, STR("security.capability"));
}

static bool set_xattrs(int fd, const struct tar_entry *entry, struct err *err)
{
    char name[256];

    for (uint32_t i = 0; i < entry->xattr_count; i++) {
        const struct tar_xattr *xattr = &entry->xattrs[i];
        if (!is_kept(xattr->name))
            continue;
        memcpy(name, xattr->name.at, xattr->name.len);
        name[xattr->name.len] = '\0';
        if (fsetxattr(fd, name, xattr->value.at, xattr->value.len, 0) < 0)
            return err_set(err, ERR_INVALID, "the attribute %s of '%s' cannot be set: %s", shown(xattr->name),
                           shown(entry->name), strerror(errno));
    }
    return true;
}

/* Those of a directory from below: the entry has all that it is to have. */
static bool drop_xattrs(struct work *work, int fd, struct err *err)
{
    ssize_t len = flistxattr(fd, work->names, XATTR_BYTES);

    if (len < 0 && errno != ENOTSUP)
        return err_sys(err, "list extended attributes");
    for (const char *name = work->names; name < work->names + len; name += strlen(name) + 1)
        if (is_kept(str_from(name)) && fremovexattr(fd, name) < 0 && errno != ENODATA)
            return err_sys(err, "remove extended attribute %s", name);
    return true;
}

static struct timespec mtime_of(const struct tar_entry *entry)
{
    return (struct timespec){ .tv_sec = (time_t)entry->mtime_s, .tv_nsec = entry->mtime_ns };
}

/* The owner first: a change of it takes set-user-id bits and capabilities away. */
static bool dress(int fd, const struct tar_entry *entry, struct err *err)
{
    const struct timespec times[2] = { mtime_of(entry), mtime_of(entry) };

    if (fchown(fd, entry->uid, entry->gid) < 0 || fchmod(fd, entry->mode) < 0)
        return failed(err, "set owner and mode of", entry->name);
    if (!set_xattrs(fd, entry, err))
        return false;
    return futimens(fd, times) == 0 || failed(err, "set the time of", entry->name);
}

static bool dress_name(int dir_fd, const char *name, const struct tar_entry *entry, struct err *err)
{
    const struct timespec times[2] = { mtime_of(entry), mtime_of(entry) };

    if (fchownat(dir_fd, name, entry->uid, entry->gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        (entry->type != TAR_SYMLINK && fchmodat(dir_fd, name, entry->mode, 0) < 0) ||
        utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0)
        return failed(err, "set owner, mode and time of", entry->name);
    return true;
}

static bool note_name(struct work *work, int dir_fd, const char *name, struct err *err)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return failed(err, "look at", str_from(name));
    return note_made(work, st.st_ino, err);
}

/* ---- entries ---- */

static bool clear_place(int dir_fd, const char *name, struct err *err)
{
    if (remove_tree(dir_fd, name, err))
        return true;
    return err->sys == ENOSPC || err->sys == EDQUOT ? no_room(err) : false;
}

static bool finish_file(struct work *work, struct err *err)
{
    auto_close int fd = take_fd(&work->file_fd);
    struct stat st;

    if (!dress(fd, &work->entry, err))
        return false;
    if (fstat(fd, &st) < 0)
        return failed(err, "look at", work->entry.name);
    return note_made(work, st.st_ino, err);
}

static bool make_file(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry, struct err *err)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;

    if (!count_bytes(work, entry->size, err))
        return false;
    work->file_fd = openat(dir_fd, name, flags, 0600);
    if (work->file_fd < 0 && errno == EEXIST) {
        if (!clear_place(dir_fd, name, err))
            return false;
        work->file_fd = openat(dir_fd, name, flags, 0600);
    }
    if (work->file_fd < 0)
        return failed(err, "make", entry->name);
    work->entry = *entry;
    work->left = entry->size;
    return work->left || finish_file(work, err);
}

static bool make_directory(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry,
                           struct err *err)
{
    struct stat st;
    bool is_there = fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;

    if (is_there && !S_ISDIR(st.st_mode)) {
        if (!clear_place(dir_fd, name, err))
            return false;
        is_there = false;
    }
    if (!is_there && mkdirat(dir_fd, name, 0700) < 0)
        return failed(err, "make", entry->name);
    auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return failed(err, "open", entry->name);
    if ((is_there && !drop_xattrs(work, fd, err)) || !dress(fd, entry, err))
        return false;
    return note_name(work, dir_fd, name, err);
}

static bool make_symlink(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry,
                         struct err *err)
{
    path_text target;

    if (!entry->link.len || entry->link.len >= sizeof target)
        return err_set(err, ERR_INVALID, "the image has the symbolic link '%s', which leads nowhere",
                       shown(entry->name));
    memcpy(target, entry->link.at, entry->link.len);
    target[entry->link.len] = '\0';
    if (!clear_place(dir_fd, name, err))
        return false;
    if (symlinkat(target, dir_fd, name) < 0)
        return failed(err, "make", entry->name);
    return dress_name(dir_fd, name, entry, err) && note_name(work, dir_fd, name, err);
}

static bool make_fifo(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry, struct err *err)
{
    if (!clear_place(dir_fd, name, err))
        return false;
    if (mknodat(dir_fd, name, S_IFIFO | 0600, 0) < 0)
        return failed(err, "make", entry->name);
    return dress_name(dir_fd, name, entry, err) && note_name(work, dir_fd, name, err);
}

/* To a file of this layer or of one below; that is copied up, and counts. */
static bool make_hard_link(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry,
                           struct err *err)
{
    path_text target, last;
    struct stat st, there;

    if (!clean(entry->link, target, err))
        return false;
    (void)split(target, last);
    auto_close int target_fd = last[0] ? open_inside(work, target) : -1;
    if (target_fd < 0 || fstatat(target_fd, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_INVALID, "the image has the hard link '%s' to '%s', which is not there",
                       shown(entry->name), shown(entry->link));
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "the image has the hard link '%s' to a directory", shown(entry->name));
    if (fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_ino == st.st_ino)
        return note_name(work, dir_fd, name, err);
    if (S_ISREG(st.st_mode) && !has_inode(&work->made, st.st_ino) && !count_bytes(work, (uint64_t)st.st_size, err))
        return false;
    if (!clear_place(dir_fd, name, err))
        return false;
    if (linkat(target_fd, last, dir_fd, name, 0) < 0)
        return failed(err, "link", entry->name);
    return note_name(work, dir_fd, name, err);
}

static bool make_root(struct work *work, const struct tar_entry *entry, struct err *err)
{
    if (entry->type != TAR_DIRECTORY)
        return err_set(err, ERR_INVALID, "the image has an entry '%s' that is no directory", shown(entry->name));
    return leave_parent(work, err) && drop_xattrs(work, work->root_fd, err) && dress(work->root_fd, entry, err);
}

static bool refuse_device(const char *dir, const struct tar_entry *entry, struct err *err)
{
    if (strcmp(dir, "dev") == 0 || strncmp(dir, "dev/", 4) == 0)
        return true; /* left out */
    return err_set(err, ERR_INVALID, "the image has the device '%s': devices are not allowed in images",
                   shown(entry->name));
}

static bool make_entry(struct work *work, int dir_fd, const char *name, const struct tar_entry *entry, struct err *err)
{
    switch (entry->type) {
    case TAR_FILE:
        return make_file(work, dir_fd, name, entry, err);
    case TAR_DIRECTORY:
        return make_directory(work, dir_fd, name, entry, err);
    case TAR_SYMLINK:
        return make_symlink(work, dir_fd, name, entry, err);
    case TAR_HARD_LINK:
        return make_hard_link(work, dir_fd, name, entry, err);
    default:
        return make_fifo(work, dir_fd, name, entry, err);
    }
}

static bool take_entry(struct work *work, const struct tar_entry *entry, struct err *err)
{
    path_text path, name;
    uint64_t ino;
    int fd;

    if (++work->untar->entries > LIMIT_UNPACK_ENTRIES)
        return err_set(err, ERR_LIMIT, "a layer of the image has more than %d entries", LIMIT_UNPACK_ENTRIES);
    if (work->untar->entries % LOOK_ENTRIES == 0 && !look_at_room(work, err))
        return false;
    if (entry->type == TAR_OTHER)
        return true;
    if (!clean(entry->name, path, err))
        return false;
    if (!path[0])
        return make_root(work, entry, err);
    (void)split(path, name);
    if (strncmp(name, ".wh.", 4) == 0)
        return hide(work, path, name + 4, entry->name, err);
    if (entry->type == TAR_CHAR_DEVICE || entry->type == TAR_BLOCK_DEVICE)
        return refuse_device(path, entry, err);
    if (!enter_parent(work, path, true, &fd, err) || !make_entry(work, fd, name, entry, err))
        return false;
    if (entry->type == TAR_DIRECTORY)
        return true;
    if (!parent_ino(work, &ino, err))
        return false;
    add_inode(&work->names_made, name_key(ino, name));
    return true;
}

static bool take_data(struct work *work, struct str data, struct err *err)
{
    uint64_t before = work->written;

    if (work->file_fd < 0)
        return true; /* of a whiteout, or of what is left out */
    work->written += data.len;
    if (before / STEP_BYTES != work->written / STEP_BYTES && !look_at_room(work, err))
        return false;
    if (!fd_write_all(work->file_fd, data, err))
        return err->sys == ENOSPC || err->sys == EDQUOT ? no_room(err)
                                                        : err_wrap(err, "write '%s'", shown(work->entry.name));
    work->left -= data.len;
    return work->left || finish_file(work, err);
}

/* ---- the archive ---- */

static bool take_tar(struct work *work, struct str in, struct err *err)
{
    const struct tar_entry *entry;
    enum tar_event event;
    struct str data;

    if (EVP_DigestUpdate(work->sum, in.at, in.len) != 1)
        return err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");
    while (work->tar) {
        if (!tar_read(work->tar, &in, &event, &entry, &data, err))
            return false;
        if (event == TAR_MORE)
            return true;
        if ((event == TAR_ENTRY && !take_entry(work, entry, err)) || (event == TAR_DATA && !take_data(work, data, err)))
            return false;
    }
    return true;
}

static bool take_piece(struct work *work, struct str in, char *room, struct err *err)
{
    size_t len = 1;

    while (in.len || len) {
        if (!unzip_read(work->unzip, &in, room, PIECE_BYTES, &len, err))
            return false;
        if (len && !take_tar(work, str_of(room, len), err))
            return false;
    }
    return true;
}

static bool check_sum(struct work *work, struct err *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    unsigned len;

    if (EVP_DigestFinal_ex(work->sum, sum, &len) != 1)
        return err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");
    if (strcmp(hex_text(str_of(sum, len), hex), work->untar->diff) != 0)
        return err_set(err, ERR_INVALID, "a layer of the image has the sum %.16s..., and should have %.16s...", hex,
                       work->untar->diff);
    return true;
}

static bool take_archive(struct work *work, struct err *err)
{
    auto_free char *packed = mem_new(PIECE_BYTES), *room = mem_new(PIECE_BYTES);
    off_t at = 0; /* not the file's own: whoever gave us the descriptor has that too */
    ssize_t n;

    for (; (n = pread(work->untar->archive_fd, packed, PIECE_BYTES, at)) > 0; at += n)
        if (!take_piece(work, str_of(packed, (size_t)n), room, err))
            return false;
    if (n < 0)
        return err_sys(err, "read the archive of a layer");
    return unzip_finish(work->unzip, err) && (!work->tar || tar_finish(work->tar, err)) && leave_parent(work, err) &&
           check_sum(work, err);
}

bool untar_prepare(struct err *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];

    return EVP_Digest("", 0, sum, NULL, EVP_sha256(), NULL) == 1 ||
           err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");
}

/* The archive is larger than its files by the headers. */
static uint64_t most_of_archive(const struct untar *untar)
{
    return untar->most_bytes + (uint64_t)LIMIT_UNPACK_ENTRIES * LIMIT_UNPACK_ENTRY_BYTES;
}

bool untar_check(struct untar *untar, struct err *err)
{
    struct work work = { .untar = untar,
                         .unzip = unzip_new(most_of_archive(untar)),
                         .sum = EVP_MD_CTX_new(),
                         .root_fd = -1,
                         .parent.fd = -1,
                         .file_fd = -1 };
    bool fine = (work.sum && EVP_DigestInit_ex(work.sum, EVP_sha256(), NULL) == 1) ||
                err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");

    fine = fine && take_archive(&work, err);
    unzip_free(work.unzip);
    EVP_MD_CTX_free(work.sum);
    return fine;
}

bool untar_layer(struct untar *untar, struct err *err)
{
    struct work work = { .untar = untar,
                         .tar = tar_new(),
                         .unzip = unzip_new(most_of_archive(untar)),
                         .sum = EVP_MD_CTX_new(),
                         .root_fd = openat(untar->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                         .parent.fd = -1,
                         .file_fd = -1,
                         .names = mem_new(XATTR_BYTES) };
    struct stat st;
    bool fine = true;

    untar->entries = untar->bytes = 0;
    if (work.root_fd < 0 || fstat(work.root_fd, &st) < 0)
        fine = err_sys(err, "open the root of a layer");
    else if (!work.sum || EVP_DigestInit_ex(work.sum, EVP_sha256(), NULL) != 1)
        fine = err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");
    else
        work.root_ino = st.st_ino;
    fine = fine && look_at_room(&work, err) && take_archive(&work, err);
    tar_free(work.tar);
    unzip_free(work.unzip);
    EVP_MD_CTX_free(work.sum);
    fd_close(&work.root_fd);
    fd_close(&work.parent.fd);
    fd_close(&work.file_fd);
    free(work.names);
    free(work.made.at);
    free(work.names_made.at);
    return fine;
}
