/*
 * tar.h - reads a tar archive from bytes as they come: ustar, pax headers (extended and global), GNU's long names. Knows
 * nothing of files: the caller decides what becomes of an entry.
 *
 * Names are given as they are in the archive: any bytes but zero, perhaps with a leading "/" or with ".." in it. The caller
 * must not use one as a path before it has checked it.
 *
 * Failure    ERR_INVALID says what is wrong and at which byte. After a failure the reader is of no more use.
 */
#ifndef WIRE_TAR_H
#define WIRE_TAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

enum tar_type {
    TAR_FILE,
    TAR_HARD_LINK, /* to `link`, a name in this archive or in a layer below */
    TAR_SYMLINK,
    TAR_CHAR_DEVICE,
    TAR_BLOCK_DEVICE,
    TAR_DIRECTORY,
    TAR_FIFO,
    TAR_OTHER, /* the caller skips it: a type we do not know */
};

struct tar_xattr {
    struct str name, value; /* SCHILY.xattr.NAME; the value may be any bytes */
};

/* Lives until the next call of tar_read(); that of a file until the call after its last piece of data. */
struct tar_entry {
    enum tar_type type;
    struct str name, link;
    uint64_t size;           /* of a file; other types have no data */
    uint32_t mode, uid, gid; /* 07777 of the mode */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t major, minor; /* of a device */
    uint32_t xattr_count;
    const struct tar_xattr *xattrs;
};

enum tar_event {
    TAR_MORE,  /* all of `in` is used up: call again with more */
    TAR_ENTRY, /* *out_entry */
    TAR_DATA,  /* *out_data: a piece of the file that the last entry was about; the last piece completes its size */
    TAR_END,   /* of the archive; what follows in `in` is padding */
};

struct tar;
struct tar *tar_new(void) must_use;
void tar_free(struct tar *tar); /* NULL is fine */

/* Takes from *in what it used. An event at a time. */
bool tar_read(struct tar *tar, struct str *in, enum tar_event *out, const struct tar_entry **out_entry,
              struct str *out_data, struct err *err) must_use;
/* The bytes have ended: ERR_INVALID unless the archive was complete. An end without the two empty blocks is one, too. */
bool tar_finish(const struct tar *tar, struct err *err) must_use;

#endif
