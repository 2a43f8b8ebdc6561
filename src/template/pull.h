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
#include "template/template.h"

struct pull_want {
    struct str image; /* a reference as the client wrote it */
    const struct registry_login *login;
    const char *architecture; /* "amd64" */
    /* The layers that are here already, by chain id, need no download. */
    bool (*has_chain)(void *context, const char chain_hex[65]);
    /* A line for the build's log. */
    void (*said)(void *context, struct str line);
    bool (*cancelled)(void *context);
    void *context;
};
struct pulled_layer {
    int fd; /* the archive, as it was downloaded and checked; -1: has_chain() said yes. The caller closes it */
    char diff_hex[65];  /* SHA-256 of the tar archive in it */
    char chain_hex[65]; /* names the layer and all below it: the OCI chain id */
    uint64_t size;
};
struct pulled {
    char digest_hex[65]; /* of the manifest for this architecture */
    uint32_t env_count;
    const struct str *envs;      /* "NAME=value" of the image's configuration */
    uint32_t layer_count;        /* at least one, at most LIMIT_IMAGE_LAYERS */
    struct pulled_layer *layers; /* lowest first */
};
/* The texts of errors are those that E2B's clients know: "image 'x' not found: …". */
bool puller_pull(struct puller *puller, const struct pull_want *want, struct arena *arena, struct pulled *out,
                 struct err *err) must_use;
/* Closes the files. */
void pulled_done(struct pulled *pulled);
/* The digest that a reference has now, without a download. ERR_NOT_FOUND, ERR_DENIED, ERR_UNAVAILABLE. */
bool puller_digest(struct puller *puller, const struct pull_want *want, char out_hex[65], struct err *err) must_use;

#endif
