/*
 * What an approval binds: SHA-256 over the envelope (sender and recipients in their order) and the MIME, each text with
 * its length in front, so that no two messages give the same bytes.
 */
#include <sodium.h>

#include "mail/mail.h"

static void add_number(crypto_hash_sha256_state *state, uint64_t number)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (56 - 8 * i));
    crypto_hash_sha256_update(state, bytes, sizeof bytes);
}

static void add_text(crypto_hash_sha256_state *state, struct str text)
{
    add_number(state, text.len);
    crypto_hash_sha256_update(state, (const unsigned char *)text.at, text.len);
}

void mail_content_hash(const struct mail_content *content, unsigned char out[GATE_HASH_BYTES])
{
    crypto_hash_sha256_state state;

    _Static_assert(GATE_HASH_BYTES == crypto_hash_sha256_BYTES, "SHA-256");
    crypto_hash_sha256_init(&state);
    add_text(&state, content->sender);
    add_number(&state, content->recipient_count);
    for (uint32_t i = 0; i < content->recipient_count; i++)
        add_text(&state, content->recipients[i]);
    add_text(&state, content->mime);
    crypto_hash_sha256_final(&state, out);
}
