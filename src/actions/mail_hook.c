/*
 * Calls of webhooks. The server itself does this, without a caller: the address and the secret of a subscription are kept
 * under the server's key. What happened to a message is told by its id; nothing of its content leaves this way, because the
 * server cannot read it.
 */
#include <sodium.h>
#include <stdatomic.h>

#include "actions/mail_inside.h"
#include "base/encode.h"
#include "base/log.h"

/* Of the process: subscriptions change in the store of each inbox, and front remembers which have none. */
static atomic_uint changes;

void mail_hooks_changed(void)
{
    atomic_fetch_add(&changes, 1);
}

unsigned action_hook_changes(void)
{
    return atomic_load(&changes);
}

bool action_hook_list(const struct actions *actions, const char *inbox_id, struct arena *arena,
                      struct mail_webhook **out, size_t *out_count, struct err *err)
{
    return mail_webhook_list(actions->mail->mail, inbox_id, arena, out, out_count, err);
}

void action_hook_sign(struct str secret, struct str body, char out[MAIL_HASH_TEXT_BYTES])
{
    crypto_auth_hmacsha256_state state;
    unsigned char mac[crypto_auth_hmacsha256_BYTES];

    (void)crypto_auth_hmacsha256_init(&state, (const unsigned char *)secret.at, secret.len);
    (void)crypto_auth_hmacsha256_update(&state, (const unsigned char *)body.at, body.len);
    (void)crypto_auth_hmacsha256_final(&state, mac);
    (void)hex_text(str_of(mac, sizeof mac), out);
    out[2 * sizeof mac] = '\0';
}

bool action_hook_call(const struct actions *actions, const char *inbox_id, const struct mail_webhook *webhook,
                      const struct mail_hook *hook, bool *out_again)
{
    uint32_t status = 0;
    struct err err;
    bool answered = mail_hook_call(actions->mail->mail, str_from(inbox_id), hook, &status, &err);
    bool fine = answered && status >= 200 && status < 300;
    struct err ignored; /* it was removed meanwhile, or the inbox was deleted */

    if (!answered)
        log_warn("mail: inbox %s: webhook %s: %s", inbox_id, webhook->id, err_text(&err));
    else if (!fine)
        log_warn("mail: inbox %s: webhook %s: its server answers with status %u", inbox_id, webhook->id, status);
    else
        log_debug("mail: inbox %s: webhook %s: status %u", inbox_id, webhook->id, status);
    (void)!mail_webhook_note(actions->mail->mail, inbox_id, str_from(webhook->id), -1, !fine, &ignored);
    /* A place that may not be called stays so until somebody changes it. */
    *out_again = !fine && (answered || (err.kind != ERR_DENIED && err.kind != ERR_INVALID));
    return fine;
}
