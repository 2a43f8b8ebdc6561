/*
 * pull.h - an image from a registry, from an archive on this machine, or from the image map. The work is done by the role
 * `puller`, which has the network and nothing else; front asks it and gets open files.
 *
 * Threads    Any worker: it waits, for minutes if the image is large.
 */
#ifndef TEMPLATE_PULL_H
#define TEMPLATE_PULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "registry/registry.h"
#include "template/template.h"

struct puller;
struct puller_config {
    /* A connection to a new child of the role. From any worker. */
    bool (*open)(void *context, int *out_fd, struct err *err);
    void *context;
    struct registry_options options; /* its texts must outlive the puller */
};
struct puller *puller_new(const struct puller_config *config) must_use;
void puller_free(struct puller *puller); /* NULL is fine */

/*
 * Does the image map (--image) say that this reference is a template? Its name, in the arena; empty: no. E2B's own base image
 * ("e2bdev/base") is the template base unless the map says otherwise. ERR_INVALID: not a reference. Does not wait.
 */
bool puller_template(struct puller *puller, struct str image, struct arena *arena, struct str *out_name,
                     struct err *err) must_use;

struct pulled;
struct pull_want {
    struct str image; /* a reference as the client wrote it; of an archive, the name in it or empty */
    bool is_archive;  /* the image is in this file, which is borrowed; nothing is asked of a registry */
    int archive_fd;
    struct str team_id; /* whose downloads it is one of */
    const struct registry_login *login;
    const char *architecture; /* "amd64" */
    /* The layers that are here already, by chain id, need no download. NULL: none are. */
    bool (*has_chain)(void *context, const char chain_hex[65]);
    /* A line for the build's log. NULL: nobody reads it. */
    void (*said)(void *context, struct str line);
    bool (*cancelled)(void *context); /* asked several times a second; NULL: never */
    /*
     * Each layer as soon as it and all below it are here, lowest first, while others are still on their way; `so_far` has
     * the digests of all. It may take its time. False: no more is wanted. NULL: only puller_pull() gives them.
     */
    bool (*layer)(void *context, const struct pulled *so_far, uint32_t number);
    void *context;
};
struct pulled_layer {
    int fd; /* the archive, as it was downloaded and checked; -1: has_chain() said yes, or layer() had it. The caller closes it */
    char diff_hex[65];  /* SHA-256 of the tar archive in it */
    char chain_hex[65]; /* names the layer and all below it: the OCI chain id */
    uint64_t size;
};
struct pulled {
    char reference_hex[65]; /* what puller_digest() says of this reference */
    char digest_hex[65];    /* of the manifest for this architecture */
    uint32_t env_count;
    const struct str *envs;      /* "NAME=value" of the image's configuration */
    uint32_t layer_count;        /* at least one, at most LIMIT_IMAGE_LAYERS */
    struct pulled_layer *layers; /* lowest first */
};
/*
 * The texts of errors are those that E2B's clients know: "image 'x' not found: …". ERR_CONFLICT: it was cancelled, or layer()
 * wants no more.
 * ERR_INVALID, too, if the reference is a template: ask puller_template() first.
 */
bool puller_pull(struct puller *puller, const struct pull_want *want, struct arena *arena, struct pulled *out,
                 struct err *err) must_use;
/* Closes the files. */
void pulled_done(struct pulled *pulled);
/* The digest that a reference has now, without a download. ERR_NOT_FOUND, ERR_DENIED, ERR_UNAVAILABLE. */
bool puller_digest(struct puller *puller, const struct pull_want *want, char out_hex[65], struct err *err) must_use;

/* What was downloaded and is not in use. removes: it goes. */
bool puller_stock(struct puller *puller, bool removes, struct download_total *out, struct err *err) must_use;

#endif
