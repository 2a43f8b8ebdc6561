/*
 * options.h - what the operator says about registries, and what it means for one image.
 *
 *   --registry-mirror HOST=URL       is asked first; images of docker.io, for example
 *   --registry-insecure HOST[:PORT]  is asked by http
 *   --registry-allow HOST[:PORT]     may have a private address
 *   --image NAME=SOURCE              where the image NAME is; see image_source_find()
 *
 * A client chooses the reference of an image, so that an address of this machine or of the operator's network is reached only
 * if one of these options names it: that is the registry's standing.
 */
#ifndef REGISTRY_OPTIONS_H
#define REGISTRY_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "registry/reference.h"

/* The lists as they are written, with commas between entries. */
struct registry_options {
    struct str mirrors, insecure, allow, images;
};

/* ERR_INVALID names the option and the entry. */
bool registry_options_check(const struct registry_options *options, struct err *err) must_use;

enum registry_standing {
    REGISTRY_STRANGER, /* only public addresses, only https */
    REGISTRY_NAMED,    /* any address that is not denied */
    REGISTRY_INSECURE, /* and http */
};
enum registry_standing registry_standing(const struct registry_options *options, struct str host, uint16_t port)
    must_use;

enum source_kind {
    SOURCE_REGISTRY, /* docker://HOST/NAME[:TAG], or no entry at all */
    SOURCE_LAYOUT,   /* oci:DIR[:TAG] */
    SOURCE_ARCHIVE,  /* docker-archive:FILE[:NAME] */
    SOURCE_TEMPLATE, /* template:NAME */
};
struct image_source {
    enum source_kind kind;
    struct reference reference;           /* of a registry */
    char path[PATH_MAX];                  /* of a layout or archive */
    char name[LIMIT_REFERENCE_BYTES + 1]; /* of the template, or in the layout or archive; empty: there is just one */
};
/*
 * Where this image is. Of the entries, in this order: one with its name and tag ("python:3=…"), one with its name
 * ("python=…": the tag stays if the source has none), the one with the longest beginning of its name ("ghcr.io*=…"; if the
 * source ends with "/", the rest of the name is added to it). "e2bdev/base" without an entry is the template base. ERR_INVALID:
 * not a reference.
 */
bool image_source_find(const struct registry_options *options, struct str image, struct image_source *out,
                       struct err *err) must_use;
/* The paths of all layouts and archives, one after the other; false: there are no more than `number`. */
bool image_source_path(const struct registry_options *options, uint32_t number, char out[PATH_MAX]);

/* Who is asked for an image: the mirrors, and then the registry itself. */
struct endpoint {
    char origin[REFERENCE_HOST_BYTES + 8]; /* "https://registry-1.docker.io" */
    char prefix[REFERENCE_PATH_BYTES];     /* before the image's path: empty, or ends with "/" */
    bool is_mirror;                        /* gets no login of the client */
};
uint32_t endpoints_find(const struct registry_options *options, const struct reference *reference,
                        struct endpoint out[LIMIT_REGISTRY_MIRRORS + 1]) must_use;

#endif
