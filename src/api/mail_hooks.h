/*
 * mail_hooks.h - tells webhooks about events of mail, in the shape of the dialect that they were registered in.
 *
 * A call that fails is repeated after longer and longer pauses. What waits is in memory: a restart of front drops it. A
 * listener that must not miss anything lists its messages when it starts.
 *
 * Threads    The loop's.
 */
#ifndef API_MAIL_HOOKS_H
#define API_MAIL_HOOKS_H

#include "actions/mail.h"
#include "api/api.h"

struct mail_hooks;

struct mail_hooks *mail_hooks_new(const struct api_config *config) must_use;
/* When the workers are freed. NULL is fine. */
void mail_hooks_free(struct mail_hooks *hooks);
/* Never waits. */
void mail_hooks_heard(struct mail_hooks *hooks, const struct mail_event *event);

/* ---- for tests ---- */

/* Does a subscription to `name` want this kind of event? "email." and "message." are the same. */
bool mail_hooks_wants(struct str name, enum mail_event_kind kind);
/* The body that tells about an event under this name. */
struct str mail_hooks_body(const struct mail_event *event, struct str name, bool is_lobster, struct arena *arena);

#endif
