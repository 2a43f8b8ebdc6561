/*
 * zpages.h - the pages of an image of memory, compressed: one file beside CRIU's own, in place of its pages-*.img.
 *
 *   "CLOIPAG1"         8 bytes
 *   u32                bytes of the list
 *   the list           u32 how many; for each file its name and its size
 *   u64                a hash of all above
 *   the contents       of each file in this order, a zstd frame with its size and a checksum
 *
 * Nothing follows. Numbers and names as in base/pack.h.
 *
 * Where      In a helper (helper.h), all but the names: it reads what a guest's processes had in memory.
 */
#ifndef ISOLATION_NATIVE_ZPAGES_H
#define ISOLATION_NATIVE_ZPAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#define ZPAGES "pages.zst"
#define ZPAGES_NEW ZPAGES ".new" /* until it is whole */

enum {
    ZPAGES_NAME_BYTES = 24,   /* with the zero byte: "pages-4294967295.img" */
    ZPAGES_PREFIX_BYTES = 12, /* from which zpages_head_bytes() knows how long the rest is */
};

struct zpages_file {
    char name[ZPAGES_NAME_BYTES];
    uint64_t bytes; /* LIMIT_IMAGE_FILE_BYTES at most */
};

struct zpages {
    size_t count; /* 1 to LIMIT_PAGES_FILES */
    struct zpages_file *files;
};
void zpages_done(struct zpages *pages);
#define auto_zpages __attribute__((cleanup(zpages_done)))

/* Is it a file of pages, as CRIU names it? */
bool zpages_is_name(const char *name);
uint64_t zpages_bytes(const struct zpages *pages); /* of all, not compressed */

void zpages_print(struct buf *out, const struct zpages *pages);
/* All before the contents. ERR_INVALID: it is damaged. */
bool zpages_parse(struct str head, struct zpages *out, struct err *err) must_use;
bool zpages_head_bytes(struct str prefix, size_t *out, struct err *err) must_use;

/* Where the contents go: the files one after the other, each as long as it says, in pieces. */
struct zpages_sink {
    bool (*begin)(void *context, const struct zpages *pages, size_t which, struct err *err);
    bool (*take)(void *context, struct str bytes, struct err *err);
    bool (*end)(void *context, struct err *err);
    void *context;
};
/* From the file's start to its end. ERR_INVALID: it is damaged, and what was taken is of no use. */
bool zpages_read(int fd, const struct zpages_sink *sink, struct err *err) must_use;

/* What ZPAGES in this directory becomes. Reads only its beginning. */
bool zpages_read_size(int image_fd, uint64_t *out_bytes, struct err *err) must_use;

/* The files of pages in a directory, in order of their names. count is 0: there are none. */
bool zpages_list(int image_fd, struct zpages *out, struct err *err) must_use;
/* Writes them into ZPAGES_NEW and waits until that is on disk. It has no other effect. */
bool zpages_compress(int image_fd, const struct zpages *pages, uint64_t *out_bytes, struct err *err) must_use;
/* The other way: makes the files from ZPAGES, in place of any that are there. Each has its name once it is whole. */
bool zpages_expand(int image_fd, struct err *err) must_use;
/* Removes what either has left when it was cut short. */
bool zpages_sweep(int image_fd, struct err *err) must_use;

#endif
