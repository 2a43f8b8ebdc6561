/*
 * source.h - the parts of fetch.c: one file for each kind of place that has images.
 */
#ifndef REGISTRY_SOURCE_H
#define REGISTRY_SOURCE_H

#include "registry/fetch.h"
#include "registry/manifest.h"

enum { LAYOUT_DEPTH = 3 }; /* an index in an index in an index: nobody makes more */

/* An image that was found. Its layers are opened several at once. */
struct image {
    struct image_config config;
    uint64_t *sizes; /* of the layers' archives, lowest first */
    struct pull_done done;
    /* On the thread with this number, below the config's thread_count. */
    bool (*open_layer)(void *context, uint32_t thread, uint32_t number, int *out_fd, struct err *err);
    /* Before the first is opened: those that are wanted. May be NULL. */
    bool (*prepare)(void *context, const bool *have, struct err *err);
    void *context;
};

/* Asks which layers are there, and gives those that are not. */
bool image_give(const struct fetch_config *config, struct image *image, struct err *err) must_use;
/* After blobs_make_room() has failed: true if it should be tried again. */
bool image_wait_for_room(const struct fetch_config *config, bool *was_said, struct err *err) must_use;
/* Checks that manifest and configuration are about the same layers. Fills config, sizes. */
bool image_describe(const struct fetch_config *config, const struct manifest *manifest, struct str config_json,
                    struct image *out, struct err *err) must_use;

bool registry_fetch(const struct fetch_config *config, const struct reference *reference, struct pull_done *out,
                    struct err *err) must_use;
bool layout_fetch(const struct fetch_config *config, const struct image_source *source, struct pull_done *out,
                  struct err *err) must_use;
bool archive_fetch(const struct fetch_config *config, const struct image_source *source, struct pull_done *out,
                   struct err *err) must_use;
/* The same of an open file, which anybody may have written. With a name: that image of it. */
bool archive_read(const struct fetch_config *config, int fd, struct str name, struct pull_done *out, struct err *err)
    must_use;
/* ERR_INVALID: the file is not what the manifest names. `web` is that of the thread: does anybody still wait? */
bool blob_check(int fd, const struct descriptor *what, const struct web *web, struct err *err) must_use;

#endif
