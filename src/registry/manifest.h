/*
 * manifest.h - the JSON documents of a registry: indexes, manifests, configurations, tokens, errors.
 *
 * OCI's and Docker's (version 2) are alike but for the names of types. All of it comes from a stranger: a document that does
 * not have what it must have is ERR_INVALID, and the message is for the person who wanted the image.
 */
#ifndef REGISTRY_MANIFEST_H
#define REGISTRY_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "registry/reference.h"

/* What the registry may answer with. */
#define MANIFEST_ACCEPT                                           \
    "application/vnd.oci.image.index.v1+json, "                   \
    "application/vnd.docker.distribution.manifest.list.v2+json, " \
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

enum document { DOCUMENT_INDEX, DOCUMENT_MANIFEST, DOCUMENT_SCHEMA1, DOCUMENT_UNKNOWN };
/* By the answer's type, or, if that says nothing, by what is in it. */
enum document document_kind(struct str content_type, struct str json);

struct descriptor {
    char hex[DIGEST_HEX_BYTES];
    uint64_t size;
    bool is_foreign; /* the registry may not have it, but the first URL that it names */
    struct str url;
};

/*
 * The manifest for Linux on this architecture. With a name: only those that are annotated with it, as layouts have it.
 * *out_kind: that of the document that it leads to. ERR_NOT_FOUND: there is none.
 */
bool index_choose(struct str json, const char *architecture, struct str name, struct arena *arena,
                  struct descriptor *out, enum document *out_kind, struct err *err) must_use;

/* Of a layout's index.json: is there an image of this name, or, without a name, just one? Else the error lists all. */
bool index_check_names(struct str json, struct str name, struct arena *arena, struct err *err) must_use;

struct manifest {
    struct descriptor config;
    uint32_t layer_count;
    struct descriptor *layers; /* lowest first */
    uint64_t size;             /* of all layers */
};
bool oci_manifest_parse(struct str json, struct arena *arena, struct manifest *out, struct err *err) must_use;

struct image_config {
    char (*diffs)[DIGEST_HEX_BYTES];
    uint32_t diff_count;
    uint32_t env_count;
    const struct str *envs; /* "NAME=value"; those without a name or a value are left out, as E2B has it */
};
/* ERR_INVALID with E2B's text if it is for another architecture. */
bool image_config_parse(struct str json, const char *architecture, struct arena *arena, struct image_config *out,
                        struct err *err) must_use;

/* {"token":…} or {"access_token":…}: characters that a header may have. */
bool token_parse(struct str json, struct arena *arena, struct str *out, struct err *err) must_use;
/* ECR's answer: "user:password". */
bool ecr_token_parse(struct str json, struct arena *arena, struct str *out_user, struct str *out_password,
                     struct err *err) must_use;

enum registry_code { CODE_NONE, CODE_MANIFEST_UNKNOWN, CODE_NAME_UNKNOWN, CODE_UNAUTHORIZED, CODE_DENIED };
/* Of an error's body; CODE_NONE for anything else. */
enum registry_code registry_code_of(struct str json);

/* One entry of manifest.json in an archive of `docker save`. */
struct saved_image {
    struct str config; /* the name of a file in the archive */
    uint32_t layer_count;
    const struct str *layers;
};
/* With a name: the image with that tag ("python:3"). Otherwise there must be just one. */
bool saved_image_choose(struct str json, struct str name, struct arena *arena, struct saved_image *out, struct err *err)
    must_use;

#endif
