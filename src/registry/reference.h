/*
 * reference.h - how people name an image: "python:3", "ghcr.io/owner/name@sha256:…".
 */
#ifndef REGISTRY_REFERENCE_H
#define REGISTRY_REFERENCE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

enum { REFERENCE_HOST_BYTES = 262, REFERENCE_PATH_BYTES = 256, REFERENCE_TAG_BYTES = 129, DIGEST_HEX_BYTES = 65 };

struct reference {
    char host[REFERENCE_HOST_BYTES]; /* "docker.io", "localhost:5000"; in lower case */
    char path[REFERENCE_PATH_BYTES]; /* "library/python" */
    char tag[REFERENCE_TAG_BYTES];   /* "latest" if neither tag nor digest was given; empty with a digest alone */
    char hex[DIGEST_HEX_BYTES];      /* of a digest, which then counts and not the tag; empty: none */
};

/* ERR_INVALID says what is wrong with it. */
bool reference_parse(struct str text, struct reference *out, struct err *err) must_use;
/* Without tag and digest, as people write it: "python", "ghcr.io/owner/name". */
void reference_short_name(const struct reference *reference, char *room, size_t size);
/* "sha256:" and 64 hex digits in lower case. */
bool digest_parse(struct str text, char out_hex[DIGEST_HEX_BYTES]) must_use;
bool tag_is_valid(struct str tag);
/* HOST or HOST:PORT, HOST being a name, an IPv4 address or an IPv6 address in brackets. *out_port is 0 without one. */
bool authority_parse(struct str text, struct str *out_host, uint16_t *out_port) must_use;

#endif
