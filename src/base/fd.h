/*
 * fd.h - descriptors with one owner, and whole reads and writes.
 */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

void fd_close(int *fd_at); /* closes and sets to -1; keeps errno */
#define auto_close __attribute__((cleanup(fd_close)))
void fd_close_each(int *fds, size_t count);

static inline int take_fd(int *fd_at)
{
    int fd = *fd_at;
    *fd_at = -1;
    return fd;
}

/* The whole file, ended by a zero byte that does not count. More than cap bytes is ERR_LIMIT. */
bool fd_read_all(int fd, size_t cap, char **out_text, size_t *out_len, struct err *err) must_use;
/* Every byte, on a blocking descriptor. */
bool fd_write_all(int fd, struct str bytes, struct err *err) must_use;
/* A small file in one write: open below dir_fd, write, close. For settings in /proc, /sys and cgroups. */
bool fd_write_file(int dir_fd, const char *path, struct str bytes, struct err *err) must_use;
bool fd_read_file(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err) must_use;
/*
 * For a file that an untrusted party may have put there: opening and reading never waits for a FIFO, a terminal, a
 * device or the holder of a lease. Anything but a regular file is ERR_INVALID. out_stat may be NULL.
 */
int fd_open_regular(int dir_fd, const char *path, struct stat *out_stat, struct err *err) must_use;
bool fd_read_regular(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err)
    must_use;
/* Replace a file. After a crash either the old or the new one is there whole: write, fsync, rename, fsync. */
bool fd_replace_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err) must_use;
/*
 * The same, and it also works on a full file system. A file that already holds these bytes is left alone. Otherwise its
 * spare ("<path>.new") is overwritten in place and exchanged with it. The spare stays, so a file of at most one block
 * changes without a new inode or block.
 */
bool fd_update_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err) must_use;

/*
 * Opens a name inside a directory that we hold; links cannot lead out of it (openat2, RESOLVE_IN_ROOT). For every path
 * that an untrusted party wrote.
 */
int fd_open_inside(int dir_fd, const char *path, int flags, unsigned mode, struct err *err) must_use;

/* Waits for one of these poll(2) events or a hang-up; false when clock_mono_ms() passes until_ms. 0 does not wait. */
bool fd_await(int fd, short events, uint64_t until_ms) must_use;

/*
 * Free room on a file system for users other than root, and whether it is below LIMIT_ROOM_BYTES or LIMIT_ROOM_INODES.
 * Takes the result of statvfs() or fstatvfs(), because not every caller may open a file there.
 */
struct fd_room {
    uint64_t bytes, inodes; /* inodes is 0, and few_inodes false, where the file system makes them on demand */
    bool few_bytes, few_inodes;
};
struct fd_room fd_room(const struct statvfs *fs);

bool fd_set_nonblocking(int fd, bool on, struct err *err) must_use;
bool fd_set_cloexec(int fd, bool on, struct err *err) must_use;

#endif
