/*
 * copy.c - how an archive becomes files of a template:
 *
 *   unpack   as the bytes arrive, into a directory at the root that only root can enter. Names cannot leave it: each is
 *            opened below that directory, and links are not followed
 *   own      what the recipe names gets its owner and its mode, before anybody can see it
 *   place    is moved to where it belongs; a directory is merged into one that is there, which keeps its own owner and mode
 *
 * Owners in the archive are those of the developer's machine, and are not looked at. The private directory is on the same
 * file system as most destinations, so that placing is renaming. Where it is not (a tmpfs), files are copied.
 */
#include "guest/copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"
#include "guest/answer.h"
#include "guest/path.h"
#include "wire/tar.h"
#include "wire/unzip.h"

enum {
    COPY_PIECE_BYTES = 64 * 1024,
    COPY_ENTRIES_MAX = 1000 * 1000, /* of one archive; the client has read each of them, too */
    COPY_DEPTH_MAX = 200,           /* directories below one another: each takes a descriptor while trees are walked */
};

#define PRIVATE_TEMPLATE "/.cloister-copy-XXXXXX"

struct copy {
    struct guest *guest;
    struct http_exchange *ex;
    struct str base;
    struct copy_to to;
    struct unzip *unzip;
    struct tar *tar;
    char private[sizeof PRIVATE_TEMPLATE];
    int private_fd;
    int file_fd; /* the file that data goes to; -1: none */
    uint64_t file_left;
    struct timespec file_times[2];
    uint32_t entries;
    bool is_over; /* answered, the rest is ignored */
};

/* ---- below a directory ---- */

static int open_below(int dir_fd, const char *path, uint64_t flags, mode_t mode)
{
    struct open_how how = { .flags = flags | O_CLOEXEC,
                            .mode = flags & O_CREAT ? mode : 0,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS };

    return (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof how);
}

/*
 * A name of the archive without "." and doubled slashes; ERR_INVALID for one with "..", and for one that is too deep. The
 * root itself is ".".
 */
static bool clean_name(struct arena *arena, struct str name, struct str *out, struct err *err)
{
    struct buf clean = buf_make(arena, LIMIT_TAR_NAME_BYTES + 1);
    struct str rest = name, part;
    unsigned depth = 0;

    while (rest.len) {
        (void)str_cut(&rest, '/', &part);
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR("..")))
            return err_set(err, ERR_INVALID, "the archive has a name with '..' in it: %.*s", (int)MIN(name.len, 200),
                           name.at);
        if (++depth > COPY_DEPTH_MAX)
            return err_set(err, ERR_INVALID, "the archive has more than %d directories below one another",
                           COPY_DEPTH_MAX);
        if (clean.len)
            buf_add_char(&clean, '/');
        buf_add(&clean, part);
    }
    if (!clean.len)
        buf_add_char(&clean, '.');
    if (clean.overflowed)
        return err_set(err, ERR_INVALID, "the archive has a name of more than %d bytes", LIMIT_TAR_NAME_BYTES);
    *out = str_of(arena_text(arena, buf_str(&clean)), clean.len);
    return true;
}

/* The directory that the last part of this clean name is in, made if it is missing. *out_last is in the name. */
static int open_parent(int dir_fd, struct arena *arena, struct str name, const char **out_last, struct err *err)
{
    auto_close int fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    struct str rest = name, part;

    while (fd >= 0 && str_has_char(rest, '/')) {
        (void)str_cut(&rest, '/', &part);
        const char *text = arena_text(arena, part);
        if (mkdirat(fd, text, 0755) < 0 && errno != EEXIST)
            break;
        int below = open_below(fd, text, O_RDONLY | O_DIRECTORY, 0);
        fd_close(&fd);
        fd = below;
    }
    if (fd < 0 || str_has_char(rest, '/')) {
        if (errno == ELOOP || errno == ENOTDIR)
            (void)err_set(err, ERR_INVALID, "the archive has '%.*s' below a name that is not a directory",
                          (int)MIN(name.len, 200), name.at);
        else
            (void)err_sys(err, "unpack %.*s", (int)MIN(name.len, 200), name.at);
        return -1;
    }
    *out_last = arena_text(arena, rest);
    return take_fd(&fd);
}

/* ---- unpack ---- */

static void end_file(struct copy *copy)
{
    (void)futimens(copy->file_fd, copy->file_times);
    fd_close(&copy->file_fd);
}

static bool is_dir_at(int dir_fd, const char *name)
{
    struct stat st;

    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static bool unpack_directory(int dir_fd, const char *name, const struct tar_entry *entry)
{
    if (!is_dir_at(dir_fd, name) && unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return false;
    return (mkdirat(dir_fd, name, 0755) == 0 || errno == EEXIST) && fchmodat(dir_fd, name, entry->mode & 0777, 0) == 0;
}

static bool unpack_link(struct copy *copy, int dir_fd, const char *name, struct str target, struct arena *arena,
                        struct err *err)
{
    const char *last;
    struct str clean;

    if (!clean_name(arena, target, &clean, err))
        return false;
    auto_close int from_fd = open_parent(copy->private_fd, arena, clean, &last, err);
    if (from_fd < 0)
        return false;
    if (linkat(from_fd, last, dir_fd, name, 0) == 0)
        return true;
    return errno == ENOENT ? err_set(err, ERR_INVALID, "the archive has '%s' as a link to '%.*s', which is not in it",
                                     name, (int)MIN(target.len, 200), target.at)
                           : err_sys(err, "link %s", name);
}

static bool unpack_file(struct copy *copy, int dir_fd, const char *name, const struct tar_entry *entry)
{
    copy->file_fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    copy->file_left = entry->size;
    copy->file_times[0] = (struct timespec){ .tv_nsec = UTIME_OMIT };
    copy->file_times[1] = (struct timespec){ .tv_sec = entry->mtime_s, .tv_nsec = (long)entry->mtime_ns };
    if (copy->file_fd < 0 || fchmod(copy->file_fd, entry->mode & 0777) < 0)
        return false;
    if (!entry->size)
        end_file(copy);
    return true;
}

/* Later entries of a name replace earlier ones. Devices, and what we do not know, are left out. */
static bool unpack_named(struct copy *copy, struct str name, const struct tar_entry *entry, struct arena *arena,
                         struct err *err)
{
    bool is_ours = entry->type == TAR_FILE || entry->type == TAR_SYMLINK || entry->type == TAR_HARD_LINK;
    const char *last;
    bool ok = true;

    auto_close int dir_fd = open_parent(copy->private_fd, arena, name, &last, err);
    if (dir_fd < 0)
        return false;
    if (is_ours && unlinkat(dir_fd, last, 0) < 0 && errno != ENOENT && !remove_tree(dir_fd, last, err))
        return false;
    if (entry->type == TAR_HARD_LINK)
        return unpack_link(copy, dir_fd, last, entry->link, arena, err);
    if (entry->type == TAR_DIRECTORY)
        ok = unpack_directory(dir_fd, last, entry);
    else if (entry->type == TAR_SYMLINK)
        ok = symlinkat(arena_text(arena, entry->link), dir_fd, last) == 0;
    else if (entry->type == TAR_FILE)
        ok = unpack_file(copy, dir_fd, last, entry);
    return ok || err_sys(err, "unpack %.*s", (int)MIN(name.len, 200), name.at);
}

static bool unpack_entry(struct copy *copy, const struct tar_entry *entry, struct err *err)
{
    struct arena arena;
    struct str name;

    fd_close(&copy->file_fd);
    if (++copy->entries > COPY_ENTRIES_MAX)
        return err_set(err, ERR_LIMIT, "the archive has more than %d entries", COPY_ENTRIES_MAX);
    arena_init(&arena);
    /* The private directory itself stays as it is. */
    bool ok = clean_name(&arena, entry->name, &name, err) &&
              (str_eq(name, STR(".")) || unpack_named(copy, name, entry, &arena, err));
    arena_done(&arena);
    return ok;
}

static bool unpack_data(struct copy *copy, struct str data, struct err *err)
{
    if (copy->file_fd < 0)
        return true; /* of an entry that is left out */
    if (!fd_write_all(copy->file_fd, data, err))
        return err_wrap(err, "unpack a file");
    copy->file_left -= MIN(copy->file_left, (uint64_t)data.len);
    if (!copy->file_left)
        end_file(copy);
    return true;
}

static bool unpack_tar(struct copy *copy, struct str bytes, struct err *err)
{
    const struct tar_entry *entry;
    enum tar_event event;
    struct str data;

    for (;;) {
        if (!tar_read(copy->tar, &bytes, &event, &entry, &data, err))
            return false;
        if (event == TAR_MORE || event == TAR_END)
            return true;
        if (event == TAR_ENTRY ? !unpack_entry(copy, entry, err) : !unpack_data(copy, data, err))
            return false;
    }
}

static bool unpack(struct copy *copy, struct str bytes, struct err *err)
{
    char room[COPY_PIECE_BYTES];
    size_t len;

    do {
        if (!unzip_read(copy->unzip, &bytes, room, sizeof room, &len, err) ||
            (len && !unpack_tar(copy, str_of(room, len), err)))
            return false;
    } while (len || bytes.len);
    return true;
}

/* ---- own ---- */

static bool own(int dir_fd, const char *name, const struct copy_to *to, struct err *err);

static bool own_inside(int dir_fd, const struct copy_to *to, struct err *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        fd_close(&fd);
        return err_sys(err, "read a directory of the archive");
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            ok = own(fd, entry->d_name, to, err);
    (void)closedir(dir);
    return ok;
}

/* chown -R -h, chmod -R. A mode has no effect on links. */
static bool own(int dir_fd, const char *name, const struct copy_to *to, struct err *err)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        fchownat(dir_fd, name, to->uid, to->gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        (to->has_mode && !S_ISLNK(st.st_mode) && fchmodat(dir_fd, name, to->mode, 0) < 0))
        return err_sys(err, "set the owner of %s", name);
    if (!S_ISDIR(st.st_mode))
        return true;
    auto_close int fd = open_below(dir_fd, name, O_RDONLY | O_DIRECTORY, 0);
    return fd < 0 ? err_sys(err, "open %s", name) : own_inside(fd, to, err);
}

/* ---- place ---- */

static bool place_inside(int from_fd, int to_fd, struct err *err);

/* Where a rename cannot lead: another file system. */
static bool copy_file(int from_fd, const char *name, int to_fd, const char *as, const struct stat *st, struct err *err)
{
    auto_close int in = openat(from_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    (void)unlinkat(to_fd, as, 0);
    auto_close int out = openat(to_fd, as, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    ssize_t n = 1;

    if (in < 0 || out < 0)
        return err_sys(err, "copy %s", as);
    while (n > 0)
        n = sendfile(out, in, NULL, 1 << 20);
    const struct timespec times[2] = { st->st_atim, st->st_mtim };
    if (n < 0 || fchown(out, st->st_uid, st->st_gid) < 0 || fchmod(out, st->st_mode & 07777) < 0 ||
        futimens(out, times) < 0)
        return err_sys(err, "copy %s", as);
    return true;
}

static bool copy_symlink(int from_fd, const char *name, int to_fd, const char *as, const struct stat *st,
                         struct err *err)
{
    char target[LIMIT_TAR_NAME_BYTES + 1];
    ssize_t len = readlinkat(from_fd, name, target, sizeof target - 1);

    if (len < 0)
        return err_sys(err, "read the link %s", name);
    target[len] = '\0';
    (void)unlinkat(to_fd, as, 0);
    return (symlinkat(target, to_fd, as) == 0 &&
            fchownat(to_fd, as, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) == 0) ||
           err_sys(err, "make the link %s", as);
}

static bool copy_directory(int from_fd, const char *name, int to_fd, const char *as, const struct stat *st,
                           struct err *err)
{
    if (mkdirat(to_fd, as, 0700) < 0)
        return err_sys(err, "make the directory %s", as);
    auto_close int from = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int to = openat(to_fd, as, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0 || to < 0)
        return err_sys(err, "open the directory %s", as);
    return place_inside(from, to, err) &&
           ((fchown(to, st->st_uid, st->st_gid) == 0 && fchmod(to, st->st_mode & 07777) == 0) ||
            err_sys(err, "set the owner of %s", as));
}

static bool move(int from_fd, const char *name, int to_fd, const char *as, const struct stat *st, struct err *err)
{
    if (renameat(from_fd, name, to_fd, as) == 0)
        return true;
    if (errno != EXDEV)
        return err_sys(err, "put %s in its place", as);
    if (S_ISDIR(st->st_mode))
        return copy_directory(from_fd, name, to_fd, as, st, err);
    if (S_ISLNK(st->st_mode))
        return copy_symlink(from_fd, name, to_fd, as, st, err);
    return copy_file(from_fd, name, to_fd, as, st, err);
}

/*
 * One entry to a name that may be taken. A directory is merged with a directory, also through a link to one. Everything else
 * replaces what is there, a link itself and not what it leads to; but no directory is lost to a file.
 */
static bool place(int from_fd, const char *name, int to_fd, const char *as, struct err *err)
{
    struct stat st, there, behind;

    if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, "look at %s", name);
    if (fstatat(to_fd, as, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return move(from_fd, name, to_fd, as, &st, err);
    bool is_dir = fstatat(to_fd, as, &behind, 0) == 0 && S_ISDIR(behind.st_mode);
    if (S_ISDIR(st.st_mode) && is_dir) {
        auto_close int from = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        auto_close int to = openat(to_fd, as, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return from < 0 || to < 0 ? err_sys(err, "open the directory %s", as) : place_inside(from, to, err);
    }
    if (S_ISDIR(there.st_mode))
        return err_set(err, ERR_INVALID, "'%s' is a directory, which a file cannot replace", as);
    if (S_ISDIR(st.st_mode) && unlinkat(to_fd, as, 0) < 0)
        return err_sys(err, "replace %s", as);
    return move(from_fd, name, to_fd, as, &st, err);
}

static bool place_inside(int from_fd, int to_fd, struct err *err)
{
    int fd = openat(from_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        fd_close(&fd);
        return err_sys(err, "read a directory of the archive");
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            ok = place(fd, entry->d_name, to_fd, entry->d_name, err);
    (void)closedir(dir);
    return ok;
}

/* Directories that a destination needs are root's, 0755; those that are there stay as they are. */
static bool make_dirs(struct arena *arena, const char *path, struct err *err)
{
    struct user root = { .name = STR("root"), .home = STR("/root") };
    struct str message = STR("");

    if (path_make_dirs(arena, path, &root, &message, err))
        return true;
    return message.len ? err_set(err, ERR_INVALID, "%.*s", (int)MIN(message.len, 400), message.at) : false;
}

static bool place_file(int dir_fd, const char *last, const struct copy_to *to, struct arena *arena, struct err *err)
{
    struct stat st;
    bool is_into = to->is_directory || (stat(to->dest, &st) == 0 && S_ISDIR(st.st_mode));
    const char *parent = is_into ? to->dest : path_parent(arena, to->dest);

    if (!make_dirs(arena, parent, err))
        return false;
    auto_close int to_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to_fd < 0)
        return err_sys(err, "open %s", parent);
    return place(dir_fd, last, to_fd, is_into ? last : arena_text(arena, path_base(str_from(to->dest))), err);
}

bool copy_place(int unpacked_fd, struct str base, const struct copy_to *to, struct arena *arena, struct err *err)
{
    const char *last;
    struct str name;
    struct stat st;

    if (!clean_name(arena, base, &name, err))
        return false;
    auto_close int dir_fd = open_parent(unpacked_fd, arena, name, &last, err);
    if (dir_fd < 0)
        return false;
    if (fstatat(dir_fd, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_NOT_FOUND, "source path does not exist: %.*s", (int)MIN(base.len, 200), base.at);
    if (!S_ISDIR(st.st_mode))
        return own(dir_fd, last, to, err) && place_file(dir_fd, last, to, arena, err);
    auto_close int from_fd = open_below(dir_fd, last, O_RDONLY | O_DIRECTORY, 0);
    if (from_fd < 0)
        return err_sys(err, "open the archive's directory");
    if (!own_inside(from_fd, to, err) || !make_dirs(arena, to->dest, err))
        return false;
    auto_close int to_fd = open(to->dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return to_fd < 0 ? err_sys(err, "open %s", to->dest) : place_inside(from_fd, to_fd, err);
}

/* ---- the request ---- */

struct str copy_source_base(struct arena *arena, struct str source)
{
    struct buf base = buf_make(arena, source.len + 2);
    struct str rest = source, part;

    while (rest.len) {
        (void)str_cut(&rest, '/', &part);
        struct buf plain = buf_make(arena, part.len + 1);
        bool is_pattern = false;
        for (size_t i = 0; i < part.len && !is_pattern; i++) {
            if (part.at[i] == '\\' && i + 1 < part.len)
                i++; /* the next one stands for itself */
            else
                is_pattern = strchr("*?[{", part.at[i]) != NULL;
            buf_add_char(&plain, part.at[i]);
        }
        if (is_pattern)
            break;
        if (!plain.len || str_eq(buf_str(&plain), STR(".")))
            continue;
        if (base.len)
            buf_add_char(&base, '/');
        buf_add(&base, buf_str(&plain));
    }
    return base.len ? buf_str(&base) : STR(".");
}

/* Whatever happens: the private directory goes. */
static void clear(struct copy *copy)
{
    struct err err;

    fd_close(&copy->file_fd);
    if (copy->private_fd < 0)
        return;
    fd_close(&copy->private_fd);
    (void)!remove_tree(AT_FDCWD, copy->private, &err);
}

static void fail(struct copy *copy, const struct err *err)
{
    unsigned status = err->sys == ENOSPC || err->sys == EDQUOT ? 507
                      : err->kind == ERR_NOT_FOUND             ? 404
                      : err->sys && err->kind == ERR_INTERNAL  ? 500
                                                               : 400;

    copy->is_over = true;
    clear(copy);
    answer_error(copy->ex, status, "%s", err_text(err));
}

static void on_body(struct http_exchange *ex, struct str piece)
{
    struct copy *copy = ex->owner;
    struct err err;

    if (copy->is_over || unpack(copy, piece, &err))
        return;
    fail(copy, &err);
    http_body_discard(ex);
}

static void on_body_end(struct http_exchange *ex)
{
    struct copy *copy = ex->owner;
    struct err err;

    if (copy->is_over)
        return;
    if (!unzip_finish(copy->unzip, &err) || !tar_finish(copy->tar, &err) ||
        !copy_place(copy->private_fd, copy->base, &copy->to, &ex->arena, &err)) {
        fail(copy, &err);
        return;
    }
    copy->is_over = true;
    clear(copy);
    answer(ex, 204, NULL, 0, STR(""));
}

static void on_gone(struct http_exchange *ex)
{
    struct copy *copy = ex->owner;

    clear(copy);
    tar_free(copy->tar);
    unzip_free(copy->unzip);
}

static const struct http_events events = { .on_body = on_body, .on_body_end = on_body_end, .on_gone = on_gone };

static struct str query(struct http_exchange *ex, const char *name)
{
    struct str value;

    return http_query(&ex->head, &ex->arena, str_from(name), &value) ? value : STR("");
}

static bool take_owner(struct copy *copy, struct str text, const struct user *user, struct err *err)
{
    struct str rest = text, name;
    struct user owner = *user;
    uint64_t number;

    copy->to.uid = user->uid;
    copy->to.gid = user->gid;
    if (!text.len)
        return true;
    bool has_group = str_has_char(text, ':');
    (void)str_cut(&rest, ':', &name);
    if (str_to_u64(name, UINT32_MAX - 1, &number))
        owner = (struct user){ .uid = (uid_t)number, .gid = (gid_t)number };
    else if (!users_find(copy->guest->users, &copy->ex->arena, name, &owner))
        return err_set(err, ERR_INVALID, "invalid owner: there is no user '%.*s'", (int)MIN(name.len, 100), name.at);
    copy->to.uid = owner.uid;
    copy->to.gid = owner.gid;
    if (!has_group || !rest.len)
        return true;
    if (str_to_u64(rest, UINT32_MAX - 1, &number)) {
        copy->to.gid = (gid_t)number;
        return true;
    }
    return users_find_group(copy->guest->users, rest, &copy->to.gid) ||
           err_set(err, ERR_INVALID, "invalid owner: there is no group '%.*s'", (int)MIN(rest.len, 100), rest.at);
}

static bool take_mode(struct copy *copy, struct str text, struct err *err)
{
    mode_t mode = 0;

    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '7' || mode > 0777)
            return err_set(err, ERR_INVALID, "invalid mode '%.*s': octal digits, such as 0755", (int)MIN(text.len, 20),
                           text.at);
        mode = mode * 8 + (mode_t)(text.at[i] - '0');
    }
    copy->to.has_mode = text.len > 0;
    copy->to.mode = mode;
    return true;
}

static bool take_dest(struct copy *copy, struct str dest, const struct user *user, struct str workdir, struct err *err)
{
    struct arena *arena = &copy->ex->arena;

    if (!dest.len)
        return err_set(err, ERR_INVALID, "COPY needs a destination");
    bool is_absolute = dest.at[0] == '/' || dest.at[0] == '~';
    struct str whole =
        is_absolute || !workdir.len ? dest : arena_format(arena, "%.*s/%.*s", STR_ARG(workdir), STR_ARG(dest));
    copy->to.is_directory = dest.at[dest.len - 1] == '/';
    if (!path_resolve(arena, whole, user, STR(""), &copy->to.dest, err))
        return false;
    copy->to.dest = arena_text(arena, path_clean(arena, str_from(copy->to.dest)));
    return true;
}

static bool take_query(struct copy *copy, struct err *err)
{
    struct http_exchange *ex = copy->ex;
    struct str name = query(ex, "user"), source = query(ex, "source");
    struct user user;

    if (!source.len)
        return err_set(err, ERR_INVALID, "COPY needs a source");
    copy->base = copy_source_base(&ex->arena, source);
    if (!users_find(copy->guest->users, &ex->arena, name.len ? name : STR("root"), &user))
        return err_set(err, ERR_INVALID, "invalid username: '%.*s'", (int)MIN(name.len, 100), name.at);
    return take_owner(copy, query(ex, "owner"), &user, err) && take_mode(copy, query(ex, "mode"), err) &&
           take_dest(copy, query(ex, "dest"), &user, query(ex, "workdir"), err);
}

static bool make_private(struct copy *copy, struct err *err)
{
    (void)snprintf(copy->private, sizeof copy->private, "%s", PRIVATE_TEMPLATE);
    if (!mkdtemp(copy->private))
        return err_sys(err, "make a directory for the archive");
    copy->private_fd = open(copy->private, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return copy->private_fd >= 0 || err_sys(err, "open a directory for the archive");
}

void copy_serve(struct guest *guest, struct http_exchange *ex)
{
    struct copy *copy = ARENA_NEW(&ex->arena, struct copy);
    struct err err;

    *copy = (struct copy){ .guest = guest, .ex = ex, .private_fd = -1, .file_fd = -1 };
    if (!take_query(copy, &err) || !make_private(copy, &err)) {
        fail(copy, &err);
        return;
    }
    copy->unzip = unzip_new(LIMIT_UNPACKED_BYTES);
    copy->tar = tar_new();
    ex->owner = copy;
    ex->events = &events;
    http_body_start(ex);
}
