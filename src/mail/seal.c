/*
 * libsodium: XChaCha20-Poly1305 for texts, sealed boxes (X25519) for keys, secretbox for wraps, BLAKE2b to derive.
 */
#include "mail/seal.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

#include "base/encode.h"

static_assert(SEAL_KEY_BYTES == crypto_box_PUBLICKEYBYTES && SEAL_KEY_BYTES == crypto_box_SECRETKEYBYTES &&
                  SEAL_KEY_BYTES == crypto_secretbox_KEYBYTES &&
                  SEAL_KEY_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES,
              "one size of key for all uses");
static_assert(SEAL_SEALED_KEY_BYTES == SEAL_KEY_BYTES + crypto_box_SEALBYTES, "as libsodium has it");
static_assert(SEAL_WRAPPED_KEY_BYTES == crypto_secretbox_NONCEBYTES + SEAL_KEY_BYTES + crypto_secretbox_MACBYTES,
              "as libsodium has it");
static_assert(SEAL_EXTRA_BYTES ==
                  crypto_aead_xchacha20poly1305_ietf_NPUBBYTES + crypto_aead_xchacha20poly1305_ietf_ABYTES,
              "as libsodium has it");

enum { NONCE_BYTES = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES };

static unsigned char *bytes_of(const void *at)
{
    return (unsigned char *)(uintptr_t)at;
}

bool seal_begin(struct err *err)
{
    return sodium_init() >= 0 || err_set(err, ERR_INTERNAL, "libsodium cannot start");
}

void seal_key_wipe(struct seal_key *key)
{
    sodium_memzero(key, sizeof *key);
}

void seal_random_key(struct seal_key *out)
{
    randombytes_buf(out->bytes, sizeof out->bytes);
}

void seal_make_pair(struct seal_key *out_public, struct seal_key *out_private)
{
    crypto_box_keypair(out_public->bytes, out_private->bytes);
}

void seal_derive(struct str secret, const char *label, struct seal_key *out)
{
    crypto_generichash_state state;
    size_t label_size = strlen(label) + 1; /* with its zero: a label is never the beginning of another */

    crypto_generichash_init(&state, NULL, 0, SEAL_KEY_BYTES);
    crypto_generichash_update(&state, bytes_of(label), label_size);
    crypto_generichash_update(&state, bytes_of(secret.at), secret.len);
    crypto_generichash_final(&state, out->bytes, SEAL_KEY_BYTES);
    sodium_memzero(&state, sizeof state);
}

void seal_pair_of(struct str secret, const char *label, struct seal_key *out_public, struct seal_key *out_private)
{
    auto_seal_key struct seal_key seed;

    seal_derive(secret, label, &seed);
    crypto_box_seed_keypair(out_public->bytes, out_private->bytes, seed.bytes);
}

void seal_hash(const struct seal_key *key, struct str text, char out[65])
{
    unsigned char hash[32];

    crypto_generichash(hash, sizeof hash, bytes_of(text.at), text.len, key->bytes, sizeof key->bytes);
    hex_text(str_of(hash, sizeof hash), out);
}

void seal_to(const struct seal_key *public_key, const struct seal_key *content_key,
             unsigned char out[SEAL_SEALED_KEY_BYTES])
{
    int failed = crypto_box_seal(out, content_key->bytes, sizeof content_key->bytes, public_key->bytes);

    assert(!failed); /* only for a public key that is no point on the curve, and we have made all of them */
    (void)failed;
}

bool seal_open(const struct seal_key *public_key, const struct seal_key *private_key, struct str sealed,
               struct seal_key *out, struct err *err)
{
    if (sealed.len != SEAL_SEALED_KEY_BYTES ||
        crypto_box_seal_open(out->bytes, bytes_of(sealed.at), sealed.len, public_key->bytes, private_key->bytes) != 0)
        return err_set(err, ERR_DENIED, "the message is not sealed for this key");
    return true;
}

void seal_wrap(const struct seal_key *under, const struct seal_key *key, unsigned char out[SEAL_WRAPPED_KEY_BYTES])
{
    randombytes_buf(out, crypto_secretbox_NONCEBYTES);
    crypto_secretbox_easy(out + crypto_secretbox_NONCEBYTES, key->bytes, sizeof key->bytes, out, under->bytes);
}

bool seal_unwrap(const struct seal_key *under, struct str wrapped, struct seal_key *out, struct err *err)
{
    if (wrapped.len != SEAL_WRAPPED_KEY_BYTES ||
        crypto_secretbox_open_easy(out->bytes, bytes_of(wrapped.at) + crypto_secretbox_NONCEBYTES,
                                   wrapped.len - crypto_secretbox_NONCEBYTES, bytes_of(wrapped.at), under->bytes) != 0)
        return err_set(err, ERR_DENIED, "the credential does not open this key");
    return true;
}

struct str seal_encrypt(const struct seal_key *key, struct str text, struct str about, struct arena *arena)
{
    unsigned char *out = arena_alloc(arena, text.len + SEAL_EXTRA_BYTES);

    randombytes_buf(out, NONCE_BYTES);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + NONCE_BYTES, NULL, bytes_of(text.at), text.len, bytes_of(about.at),
                                               about.len, NULL, out, key->bytes);
    return str_of(out, text.len + SEAL_EXTRA_BYTES);
}

bool seal_decrypt(const struct seal_key *key, struct str cipher, struct str about, struct arena *arena, struct str *out,
                  struct err *err)
{
    if (cipher.len < SEAL_EXTRA_BYTES)
        return err_set(err, ERR_INTERNAL, "the stored text is damaged");
    size_t size = cipher.len - SEAL_EXTRA_BYTES;
    unsigned char *text = arena_alloc(arena, size + 1);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(text, NULL, NULL, bytes_of(cipher.at) + NONCE_BYTES,
                                                   cipher.len - NONCE_BYTES, bytes_of(about.at), about.len,
                                                   bytes_of(cipher.at), key->bytes) != 0)
        return err_set(err, ERR_INTERNAL, "the stored text is damaged");
    *out = str_of(text, size);
    return true;
}
