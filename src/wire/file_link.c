#include "wire/file_link.h"

#include <stdio.h>

#include "base/encode.h"
#include "base/mem.h"

static void add(crypto_hash_sha256_state *state, struct str bytes)
{
    if (bytes.len)
        (void)crypto_hash_sha256_update(state, (const unsigned char *)bytes.at, bytes.len);
}

static crypto_hash_sha256_state hash_before_token(const struct file_link *link)
{
    const struct str parts[] = { link->path, link->operation, link->user };
    crypto_hash_sha256_state state;

    (void)crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        add(&state, parts[i]);
        add(&state, STR(":"));
    }
    return state;
}

static void hash_rest(crypto_hash_sha256_state state, struct str token, struct str expiration,
                      unsigned char out[crypto_hash_sha256_BYTES])
{
    add(&state, token);
    if (expiration.len) {
        add(&state, STR(":"));
        add(&state, expiration);
    }
    (void)crypto_hash_sha256_final(&state, out);
}

static void write_signature(const unsigned char hash[crypto_hash_sha256_BYTES], char out[FILE_LINK_SIGNATURE_BYTES])
{
    char text[64];
    size_t len = base64_encode(str_of(hash, crypto_hash_sha256_BYTES), text);

    while (len && text[len - 1] == '=')
        len--;
    (void)snprintf(out, FILE_LINK_SIGNATURE_BYTES, "v1_%.*s", (int)len, text);
}

bool file_link_open(const struct file_link *link, struct file_link_check *out)
{
    struct str text = link->signature;
    unsigned char hash[64];
    char again[FILE_LINK_SIGNATURE_BYTES];
    size_t len;

    /* It is hashed once for each sandbox: a long one would cost front milliseconds. */
    if (link->expiration.len > FILE_LINK_EXPIRATION_MAX)
        return false;
    if (!str_skip(&text, STR("v1_")) || text.len > base64_size(crypto_hash_sha256_BYTES) ||
        !base64_decode(text, hash, &len) || len != crypto_hash_sha256_BYTES)
        return false;
    /* One hash has one spelling: no padding, no other alphabet, no stray bits in the last letter. */
    write_signature(hash, again);
    if (!str_eq(link->signature, str_from(again)))
        return false;
    out->before_token = hash_before_token(link);
    out->expiration = link->expiration;
    memcpy(out->want, hash, sizeof out->want);
    return true;
}

bool file_link_is_signed_with(const struct file_link_check *check, struct str token)
{
    unsigned char hash[crypto_hash_sha256_BYTES];

    hash_rest(check->before_token, token, check->expiration, hash);
    return sodium_memcmp(hash, check->want, sizeof hash) == 0;
}

void file_link_sign(const struct file_link *link, struct str token, char out[FILE_LINK_SIGNATURE_BYTES])
{
    unsigned char hash[crypto_hash_sha256_BYTES];

    hash_rest(hash_before_token(link), token, link->expiration, hash);
    write_signature(hash, out);
}
