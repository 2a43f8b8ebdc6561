/*
 * hook.h - a webhook's request and its result as bytes, between front and a child of the role "webhooks".
 */
#ifndef MAIL_HOOK_H
#define MAIL_HOOK_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/pack.h"
#include "mail/mail.h"

/* ERR_LIMIT: longer than allowed. */
bool mail_hook_pack(struct buf *out, const struct mail_hook *hook, struct err *err) must_use;
/* Borrows from `bytes`. ERR_INVALID: malformed, or a header that would be more than one line. */
bool mail_hook_unpack(struct str bytes, struct arena *arena, struct mail_hook *out, struct err *err) must_use;

#endif
