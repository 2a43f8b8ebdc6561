#include "base/secret.h"

#include <string.h>

bool secret_set(struct secret *secret, struct str bytes)
{
    if (bytes.len > SECRET_MAX_BYTES)
        return false;
    secret_wipe(secret);
    memcpy(secret->bytes, bytes.at, bytes.len);
    secret->len = bytes.len;
    return true;
}

void secret_wipe(struct secret *secret)
{
    explicit_bzero(secret, sizeof *secret);
}

bool secret_eq(const struct secret *secret, struct str guess)
{
    unsigned differ = secret->len != guess.len;

    for (size_t i = 0; i < guess.len; i++)
        differ |= (unsigned)secret->bytes[i % SECRET_MAX_BYTES] ^ (unsigned char)guess.at[i];
    return differ == 0;
}
