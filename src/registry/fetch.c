#include "registry/fetch.h"

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
    for (uint32_t i = 0; i < count; i++) {
        auto_close int fd = -1;
        if (have[i])
            continue;
        if (!image->open_layer(image->context, i, &fd, err) || !config->layer(config->context, i, fd, err))
            return false;
    }
    return true;
}

bool image_fetch(const struct fetch_config *config, struct pull_done *out, struct err *err)
{
    struct image_source source;

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
