/*
 * context.h - the files of a build: those that a COPY names in the directory of the Dockerfile, their hash, and their archive.
 *
 * The same files, in the same order and with the same hash, as E2B's Python SDK has for this COPY. So what the one has
 * uploaded, the other need not. .dockerignore counts. Symlinks are packed as such; a path that leads through one stays in the
 * directory.
 */
#ifndef CLI_CONTEXT_H
#define CLI_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct ignore;

struct context {
    struct arena *arena;
    const char *dir; /* as it was named */
    int fd;
    const struct ignore *ignore;
};
/* Everything that comes of it lives in the arena. */
bool context_open(struct context *context, struct arena *arena, const char *dir, struct err *err) must_use;
void context_close(struct context *context);
#define auto_context __attribute__((cleanup(context_close)))

struct context_file {
    struct str path; /* below the directory; "." is the directory itself */
    mode_t mode;     /* with the type */
    uint64_t size;
    int64_t mtime_s;
    struct str link; /* where a symlink leads */
};
struct context_files {
    size_t count;
    struct context_file *at; /* in the order of their paths */
    uint64_t bytes;          /* of files, together */
    size_t left_out;         /* neither a file nor a directory nor a symlink */
};
/* What a source of COPY means: a path or a pattern. ERR_NOT_FOUND: nothing; ERR_LIMIT. */
bool context_find(struct context *context, struct str source, struct context_files *out, struct err *err) must_use;

enum { CONTEXT_HASH_TEXT = 65 };
/* For the builder, which only compares it. */
bool context_hash(const struct context *context, struct str source, struct str dest, const struct context_files *files,
                  char out[CONTEXT_HASH_TEXT], struct err *err) must_use;
/* A tar archive, compressed, in a file without a name; the caller's to close. ERR_CONFLICT: a file has changed meanwhile. */
bool context_pack(const struct context *context, const struct context_files *files, int *out_fd, uint64_t *out_size,
                  struct err *err) must_use;

#endif
