/*
 * fetch.h - gets an image from wherever it is: all that a child of the role puller does.
 */
#ifndef REGISTRY_FETCH_H
#define REGISTRY_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "registry/blobs.h"
#include "registry/message.h"
#include "registry/options.h"
#include "registry/web.h"

struct fetch_config {
    const struct registry_options *options;
    const struct pull_ask *ask;
    int archive_fd;        /* of an ask for an archive; borrowed */
    const struct web *web; /* one for each thread; the first is the caller's */
    const struct blobs *blobs;
    struct arena *arena;
    /* Which of these layers are there already? Called once. */
    bool (*chains)(void *context, const struct pull_layer *layers, uint32_t count, bool *out_have, struct err *err);
    /* One that is not, in any order, and on any thread. The descriptor stays ours. */
    bool (*layer)(void *context, uint32_t number, int fd, struct err *err);
    /* Layers come several at once: calls work() on each thread, the caller's too, and returns when all of them have. */
    uint32_t thread_count; /* at most LIMIT_PULL_LAYERS */
    void (*together)(void *context, void (*work)(void *work_context, uint32_t thread), void *work_context);
    /* One has failed: what the others wait for ends soon. On any thread. */
    void (*stop)(void *context);
    void *context;
};

bool image_fetch(const struct fetch_config *config, struct pull_done *out, struct err *err) must_use;

#endif
