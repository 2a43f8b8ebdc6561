/*
 * templates.h - what a sandbox starts from: an ordered list of layers and the size it gets by default.
 *
 * Each template is a file templates/<id>, lines of `key value`, written by root and read by root. Keeper sends them to
 * front in messages, a page at a time. The files are no JSON because keeper, which reads them, carries no parser that it
 * can do without.
 */
#ifndef IMAGE_TEMPLATES_H
#define IMAGE_TEMPLATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/pack.h"
#include "image/layers.h"

enum {
    TEMPLATE_ID_CHARS = 20,           /* [a-z0-9] */
    TEMPLATE_OWNER_BYTES = 37,        /* a team's id, which is a UUID, with the zero byte */
    TEMPLATE_FILE_BYTES = 8192,       /* twice the longest that template_save() writes */
    TEMPLATE_MEMORY_MB_MAX = 1 << 20, /* 1 TiB; as many as `--memory` takes */
    TEMPLATE_CPUS_MAX = 256,          /* as many as `--cpus` takes */
};

struct template
{
    char id[LIMIT_ID_BYTES];
    char name[LIMIT_NAME_BYTES];                /* [a-z0-9_-]+, unique among its owner's */
    char owner[TEMPLATE_OWNER_BYTES];           /* a team's id; empty: for all teams */
    uint32_t layer_count;                       /* at least one */
    char layers[LIMIT_LAYERS][LAYER_HEX_BYTES]; /* lowest first */
    uint32_t cpu_millis;
    uint64_t memory_bytes;
    int64_t created_us;           /* wall clock */
    char recipe[LAYER_HEX_BYTES]; /* of what it was made from; all zeros when there was no recipe */
};

/* In range and well-formed; says which field is not. */
bool template_check(const struct template *template, struct err *err) must_use;

/* Its size in the units of sandboxes: whole CPUs, rounded up, and MiB. */
uint32_t template_cpus(const struct template *template);
uint32_t template_memory_mb(const struct template *template);

/* Atomic: after a crash there is the old file, the new file or none. */
bool template_save(int data_fd, const struct template *template, struct err *err) must_use;
bool template_load(int data_fd, const char *id, struct template *out, struct err *err) must_use;
/* Among those for all teams. ERR_NOT_FOUND. */
bool template_find(int data_fd, const char *name, struct template *out, struct err *err) must_use;
/* Made from this recipe, with all its layers there: to make it again would change nothing. */
bool template_is_current(int data_fd, const struct template *template, const char *recipe);

/* All of a data directory, sorted by id. */
struct templates {
    struct template *list;
    uint32_t count;
    uint32_t bad_count; /* files that cannot be read or do not parse: left out */
    struct err bad;     /* what is wrong with one of them */
};

bool templates_read(int data_fd, struct templates *out, struct err *err) must_use;
void templates_done(struct templates *templates);
#define auto_templates __attribute__((cleanup(templates_done)))

/* As text and back, for the files; exposed for tests. */
void template_print(struct buf *out, const struct template *template);
bool template_parse(struct str text, struct template *out, struct err *err) must_use;

/* As a message and back: a count, at most LIMIT_TEMPLATES_PAGE, and each of them. The caller ends with unpack_done(). */
void templates_pack(struct buf *out, const struct template *list, uint32_t count);
/* A heap array, checked; NULL when in->failed. */
struct template *templates_unpack(struct unpack *in, uint32_t *out_count) must_use;

#endif
