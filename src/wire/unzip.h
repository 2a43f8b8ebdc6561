/*
 * unzip.h - undoes gzip or zstd, told apart by their first bytes; other bytes are passed on as they are. Streams of several
 * members or frames are one stream, as the tools have it.
 *
 * Failure    ERR_INVALID for damaged bytes, ERR_LIMIT past most_bytes: a small archive can unpack to any size.
 */
#ifndef WIRE_UNZIP_H
#define WIRE_UNZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct unzip;
/* most_bytes: of the result. */
struct unzip *unzip_new(uint64_t most_bytes) must_use;
void unzip_free(struct unzip *unzip); /* NULL is fine */

/* Takes from *in what it used, and writes up to `size` bytes. *out_len 0 with an empty *in: it needs more. */
bool unzip_read(struct unzip *unzip, struct str *in, char *room, size_t size, size_t *out_len, struct err *err)
    must_use;
/* The bytes have ended: ERR_INVALID if the stream has not. */
bool unzip_finish(const struct unzip *unzip, struct err *err) must_use;

#endif
