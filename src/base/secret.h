/*
 * secret.h - a key or token: wiped on free, compared in constant time, printed by nothing.
 */
#ifndef BASE_SECRET_H
#define BASE_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

enum { SECRET_MAX_BYTES = 128 };

struct secret {
    size_t len;
    unsigned char bytes[SECRET_MAX_BYTES];
};

/* False if it does not fit. */
bool secret_set(struct secret *secret, struct str bytes) must_use;
void secret_wipe(struct secret *secret);
#define auto_wipe __attribute__((cleanup(secret_wipe)))

/* Time depends on the length of `guess` only. */
bool secret_eq(const struct secret *secret, struct str guess);

/* The bytes, for the few places that must send or hash them. The name makes such places easy to find. */
static inline struct str secret_reveal(const struct secret *secret)
{
    return str_of(secret->bytes, secret->len);
}

#endif
