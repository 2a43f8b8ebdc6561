/*
 * seal.h - how mail is encrypted on disk (libsodium).
 *
 *   content key   random, one for each message; encrypts head and body (secretstream or secretbox)
 *   seal          a content key for a public key (sealed box): of the inbox, of the tenant's approvers while the message
 *                 is held, of the server while it waits to leave
 *   wrap          a private key or content key under a symmetric key that is derived from a credential or a link's token
 *
 * Credentials are random and long, so a fast derivation (BLAKE2b with a label) is enough.
 */
#ifndef MAIL_SEAL_H
#define MAIL_SEAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/secret.h"
#include "base/str.h"

enum {
    SEAL_KEY_BYTES = 32,
    SEAL_SEALED_KEY_BYTES = 32 + 48,       /* a content key, sealed */
    SEAL_WRAPPED_KEY_BYTES = 24 + 32 + 16, /* a key, wrapped */
    SEAL_EXTRA_BYTES = 24 + 16,            /* what encryption adds to a text */
};

struct seal_key {
    unsigned char bytes[SEAL_KEY_BYTES]; /* wipe it: auto_seal_key */
};
void seal_key_wipe(struct seal_key *key);
#define auto_seal_key __attribute__((cleanup(seal_key_wipe)))

/* Call once at the start of a process. */
bool seal_begin(struct err *err) must_use;

void seal_random_key(struct seal_key *out);
void seal_make_pair(struct seal_key *out_public, struct seal_key *out_private);
/* The key pair that belongs to a secret (the operator's admin token). */
void seal_pair_of(struct str secret, const char *label, struct seal_key *out_public, struct seal_key *out_private);
/* The symmetric key that a credential stands for. `label` keeps uses apart. */
void seal_derive(struct str secret, const char *label, struct seal_key *out);
/* A keyed hash in hex (64 characters and a zero): for lookups that must not show the text. */
void seal_hash(const struct seal_key *key, struct str text, char out[65]);

void seal_to(const struct seal_key *public_key, const struct seal_key *content_key,
             unsigned char out[SEAL_SEALED_KEY_BYTES]);
/* ERR_DENIED: not for this key, or damaged. */
bool seal_open(const struct seal_key *public_key, const struct seal_key *private_key, struct str sealed,
               struct seal_key *out, struct err *err) must_use;
void seal_wrap(const struct seal_key *under, const struct seal_key *key, unsigned char out[SEAL_WRAPPED_KEY_BYTES]);
bool seal_unwrap(const struct seal_key *under, struct str wrapped, struct seal_key *out, struct err *err) must_use;

/* `about` is authenticated and not stored: which row this is, so that ciphertexts cannot be exchanged. In the arena. */
struct str seal_encrypt(const struct seal_key *key, struct str text, struct str about, struct arena *arena);
/* ERR_INTERNAL: damaged. */
bool seal_decrypt(const struct seal_key *key, struct str cipher, struct str about, struct arena *arena, struct str *out,
                  struct err *err) must_use;

#endif
