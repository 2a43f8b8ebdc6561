#include "isolation/native/room.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
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
    struct fd_room room = fd_room(&fs);
    if (!room.few_bytes && !room.few_inodes)
        return true;
    name_of(dir_fd, name, sizeof name);
    if (room.few_inodes)
        return err_set(err, ERR_FULL,
                       "a sandbox needs %d free inodes, the file system of %.50s has %" PRIu64
                       ": kill sandboxes or remove files",
                       LIMIT_ROOM_INODES, name, room.inodes);
    return err_set(err, ERR_FULL,
                   "a sandbox needs %d MiB of disk, the file system of %.50s has %" PRIu64
                   " left: kill sandboxes or remove files",
                   LIMIT_ROOM_BYTES >> 20, name, room.bytes >> 20);
}

bool room_check_memory(int dir_fd, uint64_t memory_bytes, struct err *err)
{
    struct statvfs fs;

    if (fstatvfs(dir_fd, &fs) < 0)
        return err_sys(err, "look at the free space for the memory of a sandbox");
    struct fd_room room = fd_room(&fs);
    if (!room.few_bytes && !room.few_inodes && room.bytes - LIMIT_ROOM_BYTES >= memory_bytes)
        return true;
    return err_set(err, ERR_FULL,
                   "the memory of the sandbox is %" PRIu64 " MiB, and the server's disk has %" PRIu64
                   " MiB left, of which it needs %d itself: kill sandboxes, delete snapshots or remove files",
                   (memory_bytes + (1 << 20) - 1) >> 20, room.bytes >> 20, LIMIT_ROOM_BYTES >> 20);
}
