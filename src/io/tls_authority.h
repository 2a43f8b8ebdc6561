/*
 * tls_authority.h - an authority of one sandbox, whose key follows from a seed.
 *
 * Egress ends TLS for hosts that a policy has header rules for, with certificates that this authority makes; the sandbox
 * trusts it and nothing else does. Whoever has the seed can make the same authority again: egress after a restart, and
 * front, which gives its certificate to the sandbox. Both certificates then differ in numbers and dates only, and each is
 * trusted in place of the other.
 *
 * Threads    Any one at a time.
 */
#ifndef IO_TLS_AUTHORITY_H
#define IO_TLS_AUTHORITY_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "io/tls.h"

enum { TLS_SEED_BYTES = 32 };

struct tls_authority;

struct tls_authority *tls_authority_new(const uint8_t seed[TLS_SEED_BYTES], struct err *err) must_use;
void tls_authority_free(struct tls_authority *authority); /* NULL is fine */

/* The authority's own certificate, in PEM. */
struct str tls_authority_pem(const struct tls_authority *authority);
/* Of its subject: the name of its file in a directory of certificates is this in hex, and ".0". */
uint32_t tls_authority_hash(const struct tls_authority *authority);
/* A server's certificate for this host name, which must be a valid one; in PEM, on the heap. tls_authority_sign() signs for it. */
char *tls_authority_issue(const struct tls_authority *authority, const char *name, struct err *err) must_use;
/* A tls_sign_fn; its context is the authority. */
bool tls_authority_sign(void *authority, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                        size_t *out_len, struct err *err);

#endif
