/*
 * file_link.h - the signature of a link to a file, as SDKs make it:
 *
 *     "v1_" + base64, without padding, of SHA-256(path:operation:user:token), or of …:token:expiration if there is one
 *
 * A link does not name its sandbox: front looks for the one whose access token reproduces the signature, and guestd
 * checks it again with its own token. Both use this file. A search hashes what stands before the token once
 * (file_link_open()), then each token costs a block or two of SHA-256.
 */
#ifndef WIRE_FILE_LINK_H
#define WIRE_FILE_LINK_H

#include <sodium.h>
#include <stdbool.h>

#include "base/attr.h"
#include "base/str.h"

enum { FILE_LINK_EXPIRATION_MAX = 20 }; /* digits of a 64-bit number */

struct file_link {
    struct str path, operation, user, expiration; /* as they were signed; empty if not given */
    struct str signature;
};

/* A link that is ready to be compared with tokens. Borrows the expiration. */
struct file_link_check {
    crypto_hash_sha256_state before_token;
    struct str expiration;
    unsigned char want[crypto_hash_sha256_BYTES];
};

/* False if the signature is not written as one, or the expiration is too long for a number. */
bool file_link_open(const struct file_link *link, struct file_link_check *out) must_use;
/* In constant time. */
bool file_link_is_signed_with(const struct file_link_check *check, struct str token) must_use;

enum { FILE_LINK_SIGNATURE_BYTES = 3 + 44 + 1 }; /* zero byte included */
/* Ignores link->signature. */
void file_link_sign(const struct file_link *link, struct str token, char out[FILE_LINK_SIGNATURE_BYTES]);

#endif
