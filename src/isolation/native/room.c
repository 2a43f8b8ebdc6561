#include "isolation/native/room.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/limits.h"

/* The directory's path, for people. */
static void name_of(int dir_fd, char *room, size_t size)
{
    char link[32];

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    ssize_t len = readlink(link, room, size - 1);
    room[len > 0 ? len : 0] = '\0';
}

bool room_check(int dir_fd, struct err *err)
{
    struct statvfs fs;
    char name[64];

    if (fstatvfs(dir_fd, &fs) < 0)
        return err_sys(err, "look at the free space for sandboxes");
    /* f_bavail and f_favail: root's reserve is not for guests. f_files is 0 where inodes are made as they are needed. */
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    bool few_inodes = fs.f_files && fs.f_favail < LIMIT_ROOM_INODES;
    if (bytes >= LIMIT_ROOM_BYTES && !few_inodes)
        return true;
    name_of(dir_fd, name, sizeof name);
    if (few_inodes)
        return err_set(err, ERR_FULL,
                       "a sandbox needs %d free inodes, the file system of %.50s has %" PRIu64
                       ": kill sandboxes or remove files",
                       LIMIT_ROOM_INODES, name, (uint64_t)fs.f_favail);
    return err_set(err, ERR_FULL,
                   "a sandbox needs %d MiB of disk, the file system of %.50s has %" PRIu64
                   " left: kill sandboxes or remove files",
                   LIMIT_ROOM_BYTES >> 20, name, bytes >> 20);
}
