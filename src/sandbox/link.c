/*
 * Sandboxes by what only one of them can have made, or have.
 *
 * A signed link names no sandbox: it is for whichever one's access token reproduces the signature. The part before the
 * token is hashed once, then each running sandbox costs a block or two of SHA-256, well below a microsecond.
 */
#include <sodium.h>

#include "base/encode.h"
#include "sandbox/inside.h"

static void add(crypto_hash_sha256_state *state, struct str bytes)
{
    if (bytes.len)
        (void)crypto_hash_sha256_update(state, (const unsigned char *)bytes.at, bytes.len);
}

/* "v1_" and the hash in base64 without padding. */
static bool signature_decode(struct str text, unsigned char out_hash[crypto_hash_sha256_BYTES])
{
    unsigned char room[64];
    size_t len;

    if (!str_skip(&text, STR("v1_")) || text.len > base64_size(crypto_hash_sha256_BYTES) ||
        !base64_decode(text, room, &len) || len != crypto_hash_sha256_BYTES)
        return false;
    memcpy(out_hash, room, crypto_hash_sha256_BYTES);
    return true;
}

static bool is_signed_by(const crypto_hash_sha256_state *before_token, const struct sandbox *sb, struct str expiration,
                         const unsigned char want[crypto_hash_sha256_BYTES])
{
    crypto_hash_sha256_state state = *before_token;
    unsigned char hash[crypto_hash_sha256_BYTES];

    add(&state, str_from(sb->token));
    if (expiration.len) {
        add(&state, STR(":"));
        add(&state, expiration);
    }
    (void)crypto_hash_sha256_final(&state, hash);
    return sodium_memcmp(hash, want, sizeof hash) == 0;
}

/* All that stands before the token. */
static crypto_hash_sha256_state hash_front(const struct sandbox_link *link)
{
    const struct str before[] = { link->path, link->operation, link->user };
    crypto_hash_sha256_state state;

    (void)crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < COUNT_OF(before); i++) {
        add(&state, before[i]);
        add(&state, STR(":"));
    }
    return state;
}

bool sandbox_has_signed(const struct sandbox *sb, const struct sandbox_link *link)
{
    unsigned char want[crypto_hash_sha256_BYTES];

    if (!signature_decode(link->signature, want))
        return false;
    crypto_hash_sha256_state state = hash_front(link);
    return is_signed_by(&state, sb, link->expiration, want);
}

bool sandbox_has_token(const struct sandbox *sb, struct str access_token)
{
    return access_token.len == strlen(sb->token) && sodium_memcmp(access_token.at, sb->token, access_token.len) == 0;
}

struct sandbox *sandbox_find_by_link(struct sandboxes *all, const struct sandbox_link *link, uint32_t *out_tried)
{
    unsigned char want[crypto_hash_sha256_BYTES];
    struct sandbox *sb;

    *out_tried = 0;
    if (!signature_decode(link->signature, want))
        return NULL;
    crypto_hash_sha256_state state = hash_front(link);
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    for (size_t i = 0; (sb = map_next(&all->by_id, &i));) {
        if (sb->state != SANDBOX_RUNNING)
            continue;
        ++*out_tried;
        if (is_signed_by(&state, sb, link->expiration, want))
            return sandbox_ref(sb);
    }
    return NULL;
}

/* How long this takes tells nothing: the map compares texts only once their hashes agree, and its hash has a secret key. */
struct sandbox *sandbox_find_by_token(struct sandboxes *all, struct str token)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = map_get(&all->by_token, token);

    return sb && sb->state == SANDBOX_RUNNING ? sandbox_ref(sb) : NULL;
}
