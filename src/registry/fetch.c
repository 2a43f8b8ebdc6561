#include "registry/fetch.h"

#include <pthread.h>

#include "base/fd.h"
#include "registry/digest.h"
#include "registry/source.h"

enum { WAIT_FOR_ROOM_MS = 2000 }; /* each time, all that is there is counted */

bool image_wait_for_room(const struct fetch_config *config, bool *was_said, struct err *err)
{
    if (err->kind != ERR_CONFLICT)
        return false;
    if (!*was_said)
        config->web->said(config->web->context, STR("Waiting until other downloads have ended"));
    *was_said = true;
    return config->web->wait(config->web->context, WAIT_FOR_ROOM_MS, err);
}

bool image_describe(const struct fetch_config *config, const struct manifest *manifest, struct str config_json,
                    struct image *out, struct err *err)
{
    if (!image_config_parse(config_json, config->ask->architecture, config->arena, &out->config, err))
        return false;
    if (out->config.diff_count != manifest->layer_count)
        return err_set(err, ERR_INVALID, "the image's manifest has %u layers, and its configuration %u",
                       manifest->layer_count, out->config.diff_count);
    out->sizes = ARENA_ARRAY(config->arena, uint64_t, manifest->layer_count);
    for (uint32_t i = 0; i < manifest->layer_count; i++)
        out->sizes[i] = manifest->layers[i].size;
    out->done.env_count = out->config.env_count;
    out->done.envs = out->config.envs;
    return true;
}

static void name_layers(const struct image *image, struct pull_layer *out)
{
    const struct image_config *config = &image->config;

    for (uint32_t i = 0; i < config->diff_count; i++) {
        memcpy(out[i].diff_hex, config->diffs[i], DIGEST_HEX_BYTES);
        chain_hex(i ? out[i - 1].chain_hex : NULL, out[i].diff_hex, out[i].chain_hex);
        out[i].size = image->sizes[i];
    }
}

static void say_size(const struct fetch_config *config, const struct image *image)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < image->config.diff_count; i++)
        bytes += image->sizes[i];
    config->web->said(config->web->context, arena_format(config->arena, "Base Docker image size: %llu MB",
                                                         (unsigned long long)((bytes + (1 << 20) - 1) >> 20)));
}

/* Layers that are to come. Each thread takes the lowest that is left: the lowest is unpacked first. */
struct giving {
    const struct fetch_config *config;
    struct image *image;
    const bool *have;
    pthread_mutex_t lock;
    uint32_t next;
    bool has_failed;
    struct err err; /* the first; those of the others come from it */
};

static bool take_number(struct giving *giving, uint32_t *out)
{
    const uint32_t count = giving->image->config.diff_count;

    pthread_mutex_lock(&giving->lock);
    while (giving->next < count && giving->have[giving->next])
        giving->next++;
    bool has_one = !giving->has_failed && giving->next < count;
    if (has_one)
        *out = giving->next++;
    pthread_mutex_unlock(&giving->lock);
    return has_one;
}

static void give_up(struct giving *giving, const struct err *err)
{
    pthread_mutex_lock(&giving->lock);
    if (!giving->has_failed)
        giving->err = *err;
    giving->has_failed = true;
    pthread_mutex_unlock(&giving->lock);
    giving->config->stop(giving->config->context);
}

static void give_layers(void *context, uint32_t thread)
{
    struct giving *giving = context;
    const struct fetch_config *config = giving->config;
    struct image *image = giving->image;
    uint32_t number;

    while (take_number(giving, &number)) {
        auto_close int fd = -1;
        struct err err;
        if (!image->open_layer(image->context, thread, number, &fd, &err) ||
            !config->layer(config->context, number, fd, &err))
            give_up(giving, &err);
    }
}

bool image_give(const struct fetch_config *config, struct image *image, struct err *err)
{
    const uint32_t count = image->config.diff_count;
    struct pull_layer *layers = ARENA_ARRAY(config->arena, struct pull_layer, count);
    bool have[LIMIT_IMAGE_LAYERS] = { 0 };

    name_layers(image, layers);
    say_size(config, image);
    if (!config->chains(config->context, layers, count, have, err) ||
        (image->prepare && !image->prepare(image->context, have, err)))
        return false;
    struct giving giving = { .config = config, .image = image, .have = have, .lock = PTHREAD_MUTEX_INITIALIZER };
    config->together(config->context, give_layers, &giving);
    if (giving.has_failed)
        *err = giving.err;
    return !giving.has_failed;
}

bool image_fetch(const struct fetch_config *config, struct pull_done *out, struct err *err)
{
    struct image_source source;

    if (config->ask->is_archive)
        return archive_read(config, config->archive_fd, config->ask->image, out, err);
    if (!image_source_find(config->options, config->ask->image, &source, err))
        return false;
    switch (source.kind) {
    case SOURCE_REGISTRY:
        return registry_fetch(config, &source.reference, out, err);
    case SOURCE_LAYOUT:
        return layout_fetch(config, &source, out, err);
    case SOURCE_ARCHIVE:
        return archive_fetch(config, &source, out, err);
    case SOURCE_TEMPLATE:
        break;
    }
    return err_set(err, ERR_INTERNAL, "the image '%.*s' is a template", (int)MIN(config->ask->image.len, (size_t)60),
                   config->ask->image.at);
}
