/* fnv.h - FNV-1a, for telling things apart where nobody gains by making two alike. It is no protection against an attacker. */
#ifndef BASE_FNV_H
#define BASE_FNV_H

#include <stdint.h>

#include "base/str.h"

#define FNV_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t fnv_add(uint64_t hash, struct str bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        hash = (hash ^ (unsigned char)bytes.at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
