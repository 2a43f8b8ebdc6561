/*
 * api.h - what is checked before a service is called, and the plain routes.
 */
#ifndef GUEST_API_H
#define GUEST_API_H

#include "guest/guest.h"

/*
 * The user that a request acts as: the user of its Authorization header (the password is ignored), else the default
 * user. ERR_DENIED with upstream's sentence if there is no such user.
 */
bool api_user(struct guest *guest, struct http_exchange *ex, struct user *out, struct err *err) must_use;
/* Does it show the access token, or need none because the sandbox has none? */
bool api_has_token(const struct guest *guest, const struct http_exchange *ex);
/* The default user, whatever the header says. */
bool api_default_user(struct guest *guest, struct arena *arena, struct user *out, struct err *err) must_use;

#endif
