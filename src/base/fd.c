#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

enum { READ_BYTES = 4096 }; /* to begin with; a buf doubles its room */

void fd_close(int *fd_at)
{
    int saved = errno;

    if (*fd_at >= 0)
        (void)close(*fd_at); /* EINTR and EIO alike leave the descriptor closed on Linux */
    *fd_at = -1;
    errno = saved;
}

void fd_close_each(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fd_close(&fds[i]);
}

bool fd_read_all(int fd, size_t cap, char **out_text, size_t *out_len, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, cap + 2); /* one byte to notice too much, one for the zero */
    struct stat st;
    /* A hint only: files of the kernel have no size, and others may grow meanwhile. */
    size_t hint = fstat(fd, &st) == 0 && st.st_size > 0 ? (size_t)MIN(st.st_size, (off_t)cap) + 1 : READ_BYTES;

    for (;;) {
        size_t want = MIN(text.room > text.len ? text.room - text.len : hint, cap + 1 - text.len);
        if (want == 0)
            return err_set(err, ERR_LIMIT, "longer than %zu bytes", cap);
        char *room = buf_reserve(&text, want);
        ssize_t n = read(fd, room, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "read");
        if (n == 0)
            break;
        buf_grew(&text, (size_t)n);
    }
    size_t len = text.len;
    buf_add_char(&text, '\0');
    *out_text = take_ptr(&text.data);
    if (out_len)
        *out_len = len;
    return true;
}

bool fd_write_all(int fd, struct str bytes, struct err *err)
{
    while (bytes.len) {
        ssize_t n = write(fd, bytes.at, bytes.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "write");
        bytes.at += n;
        bytes.len -= (size_t)n;
    }
    return true;
}

bool fd_write_file(int dir_fd, const char *path, struct str bytes, struct err *err)
{
    auto_close int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open %s", path);
    /* One write: the kernel takes a setting's value whole or not at all. */
    ssize_t n = write(fd, bytes.at, bytes.len);
    if (n < 0)
        return err_sys(err, "write '%.*s' to %s", (int)MIN(bytes.len, (size_t)40), bytes.at, path);
    if ((size_t)n != bytes.len)
        return err_set(err, ERR_INTERNAL, "%s took %zd of %zu bytes", path, n, bytes.len);
    return true;
}

bool fd_read_file(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err)
{
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open %s", path);
    return fd_read_all(fd, cap, out_text, out_len, err) || err_wrap(err, "read %s", path);
}

int fd_open_regular(int dir_fd, const char *path, struct stat *out_stat, struct err *err)
{
    /* O_NOCTTY: if the path is a terminal, it must not become our controlling terminal. */
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        (void)err_sys(err, "open %s", path);
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        (void)err_set(err, ERR_INVALID, "%s is not a regular file", path);
        return -1;
    }
    if (out_stat)
        *out_stat = st;
    return take_fd(&fd);
}

bool fd_read_regular(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err)
{
    auto_close int fd = fd_open_regular(dir_fd, path, NULL, err);

    if (fd < 0)
        return false;
    return fd_read_all(fd, cap, out_text, out_len, err) || err_wrap(err, "read %s", path);
}

/* Writes "<path>.new". Not truncated first: a file of one block then keeps that block on a full file system. */
static bool write_draft(int dir_fd, const char *draft, struct str bytes, unsigned mode, struct err *err)
{
    auto_close int fd = openat(dir_fd, draft, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);

    if (fd < 0)
        return err_sys(err, "create %s", draft);
    /* The draft may be left over from a crash, with another mode. */
    if (fchmod(fd, mode) < 0)
        return err_sys(err, "chmod %s", draft);
    if (!fd_write_all(fd, bytes, err))
        return err_wrap(err, "write %s", draft);
    if (ftruncate(fd, (off_t)bytes.len) < 0 || fsync(fd) < 0)
        return err_sys(err, "fsync %s", draft);
    return true;
}

static bool name_draft(const char *path, char *room, size_t size, struct err *err)
{
    return (size_t)snprintf(room, size, "%s.new", path) < size || err_set(err, ERR_INVALID, "the path is too long");
}

/* A rename is durable once its directory is synced. */
static bool sync_parent(int dir_fd, const char *path, struct err *err)
{
    char parent[512];

    (void)snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        *(slash == parent ? slash + 1 : slash) = '\0';
    auto_close int dir = openat(dir_fd, slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return err_sys(err, "fsync the directory of %s", path);
    return true;
}

bool fd_replace_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err)
{
    char draft[512];

    if (!name_draft(path, draft, sizeof draft, err) || !write_draft(dir_fd, draft, bytes, mode, err))
        return false;
    if (renameat(dir_fd, draft, dir_fd, path) < 0)
        return err_sys(err, "rename %s to %s", draft, path);
    return sync_parent(dir_fd, path, err);
}

static bool file_holds(int dir_fd, const char *path, struct str bytes)
{
    auto_free char *text = NULL;
    size_t len;
    struct err ignored;

    return fd_read_file(dir_fd, path, bytes.len, &text, &len, &ignored) && str_eq(str_of(text, len), bytes);
}

bool fd_update_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err)
{
    char spare[512];
    struct err ignored;

    if (!name_draft(path, spare, sizeof spare, err))
        return false;
    if (file_holds(dir_fd, path, bytes)) {
        if (faccessat(dir_fd, spare, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            (void)!write_draft(dir_fd, spare, bytes, mode, &ignored); /* the spare may not fit on the disk */
        return true;
    }
    if (!write_draft(dir_fd, spare, bytes, mode, err))
        return false;
    if (renameat2(dir_fd, spare, dir_fd, path, RENAME_EXCHANGE) < 0) {
        /* ENOENT: there was no such file yet. EINVAL: this file system cannot exchange. */
        if (renameat(dir_fd, spare, dir_fd, path) < 0)
            return err_sys(err, "rename %s to %s", spare, path);
        (void)!write_draft(dir_fd, spare, bytes, mode, &ignored);
    }
    return sync_parent(dir_fd, path, err);
}

int fd_open_inside(int dir_fd, const char *path, int flags, unsigned mode, struct err *err)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof how);

    if (fd < 0)
        (void)err_sys(err, "open %s", path);
    return fd;
}

bool fd_await(int fd, short events, uint64_t until_ms)
{
    struct pollfd waiting = { .fd = fd, .events = events };
    int n;

    do {
        uint64_t now_ms = clock_mono_ms();
        n = poll(&waiting, 1, now_ms < until_ms ? (int)MIN(until_ms - now_ms, (uint64_t)INT32_MAX) : 0);
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

struct fd_room fd_room(const struct statvfs *fs)
{
    /* f_bavail and f_favail leave out root's reserve. f_bavail counts in units of f_frsize. */
    struct fd_room room = { .bytes = (uint64_t)fs->f_bavail * fs->f_frsize, .inodes = fs->f_favail };

    room.few_bytes = room.bytes < LIMIT_ROOM_BYTES;
    room.few_inodes = fs->f_files && room.inodes < LIMIT_ROOM_INODES;
    return room;
}

bool fd_set_nonblocking(int fd, bool on, struct err *err)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) < 0)
        return err_sys(err, "fcntl O_NONBLOCK");
    return true;
}

bool fd_set_cloexec(int fd, bool on, struct err *err)
{
    int flags = fcntl(fd, F_GETFD);

    if (flags < 0 || fcntl(fd, F_SETFD, on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC) < 0)
        return err_sys(err, "fcntl FD_CLOEXEC");
    return true;
}
