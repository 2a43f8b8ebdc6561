/*
 * admit.h - what a request has shown, read from its head alone: before a byte of its body is read, and before anything
 * inside the sandbox is dialed.
 *
 *   known     the sandbox's access token, or a private sandbox's traffic token
 *   link      a link signed with the access token that has not expired. People publish links, so it shows no owner
 *   stranger  none of these, and none is needed: a user's service, or a route of guestd's that is open to all
 *   refused   guestd wants the access token for this, and it is missing or wrong
 *
 * Links and strangers, the outsiders, have places and an order of eviction of their own (proxy.c): they cannot take
 * what the known need. Strangers leave some of these places to links, and have less time.
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
 * Would guestd answer 401 to this without the access token? Here front decides it, by sandbox, port and route; guestd
 * decides again.
 */
bool admit_wants_token(const struct sandbox *sandbox, const struct target *target, const struct http_head *head,
                       struct arena *arena);

#endif
