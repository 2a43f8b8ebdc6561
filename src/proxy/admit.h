/*
 * admit.h - which credential a request carries. Read from its head alone, before its body is read and before a
 * connection into the sandbox is made.
 *
 *   known     the sandbox's access token, or a private sandbox's traffic token
 *   link      a link signed with the access token that has not expired. People publish links, so its user need not be
 *             the owner
 *   stranger  none of these, and none is needed: a user's service, or a route of guestd's that is open to all
 *   refused   guestd wants the access token for this, and it is missing or wrong
 *
 * Links and strangers together are the outsiders. They have a limited number of places and are evicted first (proxy.c),
 * so they cannot use up what known callers need. Strangers have fewer places than links, and less time.
 */
#ifndef PROXY_ADMIT_H
#define PROXY_ADMIT_H

#include <stdbool.h>

#include "base/arena.h"
#include "http/http.h"
#include "proxy/target.h"
#include "sandbox/sandbox.h"

enum admission {
    ADMIT_KNOWN,
    ADMIT_LINK,
    ADMIT_STRANGER,
    ADMIT_REFUSED,
};

enum admission admit(const struct sandbox *sandbox, const struct target *target, const struct http_head *head,
                     struct arena *arena);

/*
 * Would guestd answer 401 to this without the access token? Decided by sandbox, port and route. guestd checks again.
 */
bool admit_wants_token(const struct sandbox *sandbox, const struct target *target, const struct http_head *head,
                       struct arena *arena);

#endif
