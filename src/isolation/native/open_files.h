/*
 * open_files.h - counts what the processes of a sandbox have open, and what is on its way between them.
 *
 * A guest can send a descriptor over a unix socket and close it: what is in flight is in no table of any process. The kernel
 * walks all sockets in flight of the whole machine under one lock, whenever any unix socket is closed, and a guest with
 * thousands of user ids may have as many in flight as each of these may have open. So they are counted: those in queues of
 * sockets that a process has open, by the kernel; and sockets that only a queue holds, which may hide more.
 *
 * Threads    Keeper's one. A step is a few system calls, 10 us, and never waits. Before Linux 6.2, the files of a process are
 *            counted by reading a directory of up to 4,096 entries: a millisecond.
 */
#ifndef ISOLATION_NATIVE_OPEN_FILES_H
#define ISOLATION_NATIVE_OPEN_FILES_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/map.h"
#include "base/str.h"

enum open_files_part {
    OPEN_FILES_TASKS, /* threads with tables of their own */
    OPEN_FILES_COUNT,
    OPEN_FILES_LISTED,  /* all unix sockets in its network */
    OPEN_FILES_SOCKETS, /* which of them does a process have open? */
    OPEN_FILES_HIDDEN,  /* of the others, which are there still? */
    OPEN_FILES_DONE,
};

/* Of one sandbox. Zero is before the first. */
struct open_files {
    enum open_files_part part;
    pid_t *pids; /* its processes, guestd first, and threads that share no table with those before them */
    size_t count, room, at;
    size_t processes;   /* the first ones of count */
    DIR *fds;           /* of one of them */
    int list_fd;        /* of unix sockets */
    struct map sockets; /* by inode: those listed that no process was seen to have open */
    uint64_t open;      /* inherited ones count again */
    uint64_t in_flight; /* descriptors in queues of sockets that a process has open */
    unsigned hidden;    /* unix sockets that no process has open */
};

struct box;

void open_files_begin(struct open_files *files, const struct box *box);
/* False: done. */
bool open_files_step(struct open_files *files) must_use;
void open_files_done(struct open_files *files);

/* The number behind "scm_fds:" of a text of /proc/PID/fdinfo, or 0. */
uint64_t open_files_in_flight(struct str fdinfo);
/* The inode in a line of /proc/PID/net/unix; empty: none, or it is not open yet. */
struct str open_files_inode(struct str line);

#endif
