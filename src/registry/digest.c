#include "registry/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/encode.h"
#include "base/mem.h"

struct sha256 {
    EVP_MD_CTX *context;
};

/* OpenSSL fails here only without memory, and then so do we. */
static void must(int is_fine)
{
    if (is_fine != 1)
        abort();
}

struct sha256 *sha256_new(void)
{
    struct sha256 *sha = NEW(struct sha256);

    sha->context = EVP_MD_CTX_new();
    must(sha->context && EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL));
    return sha;
}

void sha256_free(struct sha256 *sha)
{
    if (!sha)
        return;
    EVP_MD_CTX_free(sha->context);
    free(sha);
}

void sha256_add(struct sha256 *sha, struct str bytes)
{
    must(EVP_DigestUpdate(sha->context, bytes.at, bytes.len));
}

void sha256_end(struct sha256 *sha, char out_hex[DIGEST_HEX_BYTES])
{
    unsigned char digest[SHA256_BYTES];

    must(EVP_DigestFinal_ex(sha->context, digest, NULL));
    must(EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL));
    (void)hex_text(str_of(digest, sizeof digest), out_hex);
}

void sha256_hex(struct str bytes, char out_hex[DIGEST_HEX_BYTES])
{
    unsigned char digest[SHA256_BYTES];

    must(EVP_Digest(bytes.len ? bytes.at : "", bytes.len, digest, NULL, EVP_sha256(), NULL));
    (void)hex_text(str_of(digest, sizeof digest), out_hex);
}

void sha256_hmac(struct str key, struct str bytes, unsigned char out[SHA256_BYTES])
{
    unsigned len = SHA256_BYTES;

    must(HMAC(EVP_sha256(), key.at, (int)key.len, (const unsigned char *)bytes.at, bytes.len, out, &len) != NULL);
}

void chain_hex(const char *below_hex, const char *diff_hex, char out_hex[DIGEST_HEX_BYTES])
{
    char text[2 * (DIGEST_HEX_BYTES + sizeof "sha256:")];

    if (!below_hex) {
        memmove(out_hex, diff_hex, DIGEST_HEX_BYTES);
        return;
    }
    (void)snprintf(text, sizeof text, "sha256:%s sha256:%s", below_hex, diff_hex);
    sha256_hex(str_from(text), out_hex);
}
