/*
 * copy.h - copies what a guest has written into a layer.
 *
 * Keeps what programs inside and overlay can tell apart: modes, owners, times, links between files, holes, extended
 * attributes with overlay's own, whiteouts, fifos, sockets. Shares blocks where the file system can (FICLONE).
 *
 * Opens names inside directories that it holds, never a path, and follows no link. Names may have any bytes, a tree any
 * depth up to LIMIT_SNAPSHOT_DEPTH. The source must not change meanwhile: it is a layer, or its sandbox is frozen.
 *
 * Blocks as long as it takes: for a process of its own, with one thread, whose working directory it changes.
 */
#ifndef ISOLATION_NATIVE_COPY_H
#define ISOLATION_NATIVE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

struct copy {
    int to_fd;    /* the copy */
    int links_fd; /* a directory on the same file system, empty at first; its contents are rubbish afterwards */
    /* Several trees become one layer. One that needs its lower layers by another path (a redirect) is ERR_INVALID then. */
    bool is_merge;
    uint64_t entries, bytes; /* out: copied so far; blocks that are shared or linked do not count */
    unsigned trees;          /* private */
};

/*
 * Lays a tree over what is in to_fd, as overlay would: lowest first. Whiteouts and opaque directories stay, because they
 * also hide what is in the layers below. ERR_FULL when the disk has less than LIMIT_ROOM_BYTES left; ERR_LIMIT.
 */
bool copy_tree(struct copy *copy, int from_fd, struct err *err) must_use;

#endif
