/*
 * digest.h - SHA-256 by OpenSSL, which uses what the processor has for it: layers have gigabytes.
 */
#ifndef REGISTRY_DIGEST_H
#define REGISTRY_DIGEST_H

#include "base/attr.h"
#include "base/str.h"
#include "registry/reference.h"

enum { SHA256_BYTES = 32 };

struct sha256;
struct sha256 *sha256_new(void) must_use;
void sha256_free(struct sha256 *sha); /* NULL is fine */
void sha256_add(struct sha256 *sha, struct str bytes);
/* Of all bytes so far; then it begins anew. */
void sha256_end(struct sha256 *sha, char out_hex[DIGEST_HEX_BYTES]);

void sha256_hex(struct str bytes, char out_hex[DIGEST_HEX_BYTES]);
void sha256_hmac(struct str key, struct str bytes, unsigned char out[SHA256_BYTES]);
/* The name of a layer and all below it: OCI's chain id. below_hex NULL: it is the lowest. */
void chain_hex(const char *below_hex, const char *diff_hex, char out_hex[DIGEST_HEX_BYTES]);

#endif
