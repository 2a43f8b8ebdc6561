/*
 * image_file.h - the bytes of an image that is imported: an archive as it is, or a tar that is made of an OCI layout.
 *
 * They are read twice, for their hash and to send them. A tar of the same layout has the same bytes each time. What is in an
 * archive is not looked at: that is the server's business.
 */
#ifndef CLI_IMAGE_FILE_H
#define CLI_IMAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"

enum { IMAGE_HASH_BYTES = 65 }; /* 64 hex digits and a zero byte */

struct image_file {
    uint64_t size; /* of all its bytes */
    bool is_layout;
    /* private */
    int fd;      /* the archive, or the layout's directory */
    int part_fd; /* the file of the layout that is being read; -1: none */
    uint64_t at;
    struct image_part *parts;
    size_t part_count;
};

/* ERR_INVALID: neither a file nor a layout; ERR_LIMIT: larger than what can be uploaded. */
bool image_file_open(struct image_file *file, const char *path, struct arena *arena, struct err *err) must_use;
void image_file_close(struct image_file *file);
#define auto_image_file __attribute__((cleanup(image_file_close)))

/* The next bytes; 0 at the end. ERR_CONFLICT: it is being changed. */
bool image_file_read(struct image_file *file, char *room, size_t size, size_t *out_len, struct err *err) must_use;
/* SHA-256 of all bytes. The next read begins at the first. */
bool image_file_hash(struct image_file *file, char out_hex[IMAGE_HASH_BYTES], struct err *err) must_use;
/* A name for the template: "Python 3.tar.gz" → "python-3". False: nothing is left. */
bool image_file_name(const char *path, char *room, size_t size) must_use;

#endif
