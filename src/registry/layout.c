/*
 * An image from an OCI layout: a directory with index.json and blobs/sha256/. Files are given as they are, after a check of
 * their digests.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "registry/digest.h"
#include "registry/source.h"

struct layout {
    const struct fetch_config *config;
    int dir_fd;
    struct manifest manifest;
    struct image image;
};

enum { READ_BYTES = 256 * 1024 };

bool blob_check(int fd, const struct descriptor *what, const struct web *web, struct err *err)
{
    auto_free char *room = mem_new(READ_BYTES);
    struct sha256 *sha = sha256_new();
    char hex[DIGEST_HEX_BYTES];
    bool goes_on = true;
    uint64_t bytes = 0;
    ssize_t n;

    while (bytes <= what->size && (goes_on = web->wait(web->context, 0, err)) &&
           (n = pread(fd, room, READ_BYTES, (off_t)bytes)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        sha256_add(sha, str_of(room, (size_t)n));
        bytes += (uint64_t)n;
    }
    sha256_end(sha, hex);
    sha256_free(sha);
    if (!goes_on)
        return false;
    return (bytes == what->size && strcmp(hex, what->hex) == 0) ||
           err_set(err, ERR_INVALID, "the file for sha256:%.12s… has another digest or size: it is damaged", what->hex);
}

static bool open_blob(struct layout *layout, uint32_t thread, const struct descriptor *what, int *out_fd,
                      struct err *err)
{
    char path[sizeof "blobs/sha256/" + DIGEST_HEX_BYTES];

    (void)snprintf(path, sizeof path, "blobs/sha256/%s", what->hex);
    auto_close int fd = fd_open_regular(layout->dir_fd, path, NULL, err);
    if (fd < 0 || !blob_check(fd, what, &layout->config->web[thread], err))
        return false;
    *out_fd = take_fd(&fd);
    return true;
}

static bool read_blob(struct layout *layout, const struct descriptor *what, struct str *out, struct err *err)
{
    auto_close int fd = -1;
    auto_free char *text = NULL;
    size_t len;

    if (what->size > LIMIT_REGISTRY_JSON_BYTES)
        return err_set(err, ERR_LIMIT, "the layout has a document of more than %d bytes", LIMIT_REGISTRY_JSON_BYTES);
    if (!open_blob(layout, 0, what, &fd, err) || !fd_read_all(fd, LIMIT_REGISTRY_JSON_BYTES, &text, &len, err))
        return false;
    *out = arena_copy(layout->config->arena, str_of(text, len));
    return true;
}

static bool open_layer(void *context, uint32_t thread, uint32_t number, int *out_fd, struct err *err)
{
    struct layout *layout = context;

    return open_blob(layout, thread, &layout->manifest.layers[number], out_fd, err);
}

static bool find_manifest(struct layout *layout, const char *tag, struct err *err)
{
    const struct fetch_config *config = layout->config;
    struct pull_done *done = &layout->image.done;
    enum document kind = DOCUMENT_INDEX;
    struct descriptor chosen;
    auto_free char *text = NULL;
    struct str json;
    size_t len;

    if (!fd_read_regular(layout->dir_fd, "index.json", LIMIT_REGISTRY_JSON_BYTES, &text, &len, err))
        return false;
    json = str_of(text, len);
    for (int depth = 0; kind == DOCUMENT_INDEX && depth < LAYOUT_DEPTH; depth++) {
        if ((depth == 0 && !index_check_names(json, str_from(tag), config->arena, err)) ||
            !index_choose(json, config->ask->architecture, depth ? STR("") : str_from(tag), config->arena, &chosen,
                          &kind, err) ||
            !read_blob(layout, &chosen, &json, err))
            return false;
        memcpy(depth ? done->digest_hex : done->reference_hex, chosen.hex, DIGEST_HEX_BYTES);
        kind = document_kind(STR(""), json);
    }
    if (!done->digest_hex[0])
        memcpy(done->digest_hex, done->reference_hex, DIGEST_HEX_BYTES);
    if (kind != DOCUMENT_MANIFEST)
        return err_set(err, ERR_INVALID, "the layout has no manifest of an image");
    return oci_manifest_parse(json, config->arena, &layout->manifest, err);
}

static bool fetch(struct layout *layout, const char *tag, struct err *err)
{
    const struct fetch_config *config = layout->config;
    struct str config_json;

    if (!find_manifest(layout, tag, err))
        return false;
    if (config->ask->only_digest)
        return true;
    layout->image.open_layer = open_layer;
    layout->image.context = layout;
    return read_blob(layout, &layout->manifest.config, &config_json, err) &&
           image_describe(config, &layout->manifest, config_json, &layout->image, err) &&
           image_give(config, &layout->image, err);
}

bool layout_fetch(const struct fetch_config *config, const struct image_source *source, struct pull_done *out,
                  struct err *err)
{
    struct layout layout = { .config = config };
    auto_close int fd = open(source->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    layout.dir_fd = fd;
    if (fd < 0)
        return err_set(err, ERR_UNAVAILABLE,
                       "the layout %.60s of this image cannot be opened: it must be there when the server starts, and "
                       "readable",
                       source->path);
    if (!fetch(&layout, source->name, err))
        return err->sys == EACCES && err_set(err, ERR_UNAVAILABLE,
                                             "the layout %.60s of this image has files that the user cloister-puller "
                                             "may not read: the operator must allow it",
                                             source->path);
    *out = layout.image.done;
    return true;
}
