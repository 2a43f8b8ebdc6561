/*
 * tar_write.h - writes the headers of a tar archive: ustar, with a pax header before those that do not fit. The bytes of a
 * file follow its header, and then the padding.
 */
#ifndef WIRE_TAR_WRITE_H
#define WIRE_TAR_WRITE_H

#include <stdint.h>

#include "base/buf.h"
#include "wire/tar.h"

/* Uses of the entry: type (a file, a directory or a symlink), name, link, size, mode, uid, gid, mtime_s. */
void tar_write_entry(struct buf *out, const struct tar_entry *entry);
/* To the end of the block, after this many bytes of a file. */
void tar_write_padding(struct buf *out, uint64_t size);
void tar_write_end(struct buf *out);

#endif
