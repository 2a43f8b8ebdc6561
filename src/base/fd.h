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
/* A small file in one piece: open below dir_fd, write, close. For knobs in /proc, /sys and cgroups. */
bool fd_write_file(int dir_fd, const char *path, struct str bytes, struct err *err) must_use;
bool fd_read_file(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err) must_use;
/*
 * To read a file that somebody else may have put there to hold us up: opening and reading never waits for a FIFO, a
 * terminal, a device or the holder of a lease. Whatever is no regular file is ERR_INVALID. out_stat may be NULL.
 */
int fd_open_regular(int dir_fd, const char *path, struct stat *out_stat, struct err *err) must_use;
bool fd_read_regular(int dir_fd, const char *path, size_t cap, char **out_text, size_t *out_len, struct err *err)
    must_use;
/* Replace a file so that after a crash there is the old one or the new one, never half: write, fsync, rename, fsync. */
bool fd_replace_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err) must_use;
/*
 * The same for a file that must be written on a full file system too. A file that holds these bytes already is left
 * alone. Else its spare ("<path>.new") is overwritten in place and exchanged with it. The spare stays: as long as the
 * file is not longer than a block, a change needs no new inode and no new block.
 */
bool fd_update_file(int dir_fd, const char *path, struct str bytes, unsigned mode, struct err *err) must_use;

/*
 * A name inside a directory that we hold, wherever links in it may point (openat2, RESOLVE_IN_ROOT). For every path
 * that somebody else wrote.
 */
int fd_open_inside(int dir_fd, const char *path, int flags, unsigned mode, struct err *err) must_use;

/* Until one of these events of poll(2), or its end; false once until_ms on clock_mono_ms() has passed. 0 only looks. */
bool fd_await(int fd, short events, uint64_t until_ms) must_use;

/*
 * What is left on a file system for who is not root, and whether that is little (LIMIT_ROOM_BYTES, LIMIT_ROOM_INODES).
 * From what statvfs() or fstatvfs() has said, because not every caller may open a file there.
 */
struct fd_room {
    uint64_t bytes, inodes; /* inodes is 0 where they are made as they are needed, and then they are not few */
    bool few_bytes, few_inodes;
};
struct fd_room fd_room(const struct statvfs *fs);

bool fd_set_nonblocking(int fd, bool on, struct err *err) must_use;
bool fd_set_cloexec(int fd, bool on, struct err *err) must_use;

#endif
