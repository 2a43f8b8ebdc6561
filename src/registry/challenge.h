/*
 * challenge.h - what a registry asks for in WWW-Authenticate.
 */
#ifndef REGISTRY_CHALLENGE_H
#define REGISTRY_CHALLENGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/str.h"

enum { CHALLENGES_MOST = 8 };

struct challenge {
    enum { CHALLENGE_OTHER, CHALLENGE_BASIC, CHALLENGE_BEARER } scheme;
    struct str realm, service, scope; /* empty: not given */
};

/*
 * The value of one header, which may list several. False if it does not follow the grammar of RFC 9110 section 11.6.1, or
 * has more than fit into `out`, of which *at is the first free one; *at is moved on.
 */
bool challenges_parse(struct arena *arena, struct str header, struct challenge out[CHALLENGES_MOST], uint32_t *at)
    must_use;

#endif
