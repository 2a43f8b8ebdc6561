/*
 * Subscriptions to events. Each inbox keeps its own, in its own file. A subscription of an account without an inbox's name is
 * put into each inbox that the account has: the rows have the same URL and secret, and are listed and removed as one.
 *
 * A webhook lets the server connect to a place that the caller chooses, so it needs the operator's code; for a LobsterMail
 * account it does not, as that API has no such step, unless the request comes from inside a sandbox: there it would be a way
 * around the sandbox's network rules.
 */
#include <string.h>

#include "actions/mail_inside.h"
#include "base/encode.h"

enum { SECRET_LEAST = 16, EVENT_BYTES = 64 };

static bool url_check(const struct actions *actions, struct str url, struct err *err)
{
    struct str rest = url, authority;

    if (url.len > LIMIT_MAIL_URL_BYTES)
        return err_set(err, ERR_INVALID, "the URL of a webhook has at most %d bytes", LIMIT_MAIL_URL_BYTES);
    for (size_t i = 0; i < url.len; i++)
        if ((unsigned char)url.at[i] <= 0x20 || (unsigned char)url.at[i] >= 0x7f)
            return err_set(err, ERR_INVALID, "the URL of a webhook must be ASCII without blanks");
    if (!str_skip_nocase(&rest, STR("https://")) &&
        !(actions->mail->webhooks_http && str_skip_nocase(&rest, STR("http://"))))
        return err_set(err, ERR_INVALID, "the URL of a webhook must begin with https://");
    if (!str_cut(&rest, '/', &authority) || authority.len == 0 || str_has_char(authority, '@'))
        return err_set(err, ERR_INVALID, "the URL of a webhook needs a host, and no user name");
    return true;
}

/* Does it lead to a place that webhooks may call? One whose name cannot be looked up now is let pass: calls check again. */
static bool target_check(const struct actions *actions, const struct mail_caller *caller, struct str url,
                         struct err *err)
{
    struct str owner = str_from(caller->inbox_id[0] ? caller->inbox_id : caller->tenant_id);
    uint32_t status;

    if (mail_hook_call(actions->mail->mail, owner, &(struct mail_hook){ .url = url, .only_check = true }, &status,
                       err) ||
        (err->kind != ERR_DENIED && err->kind != ERR_INVALID && err->kind != ERR_LIMIT))
        return true;
    if (err->kind == ERR_DENIED)
        err->kind = ERR_INVALID;
    return false;
}

static bool want_check(const struct actions *actions, const struct mail_caller *caller, const struct webhook_want *want,
                       struct err *err)
{
    if (!url_check(actions, want->url, err) || !target_check(actions, caller, want->url, err))
        return false;
    if (want->event_count == 0 || want->event_count > LIMIT_MAIL_EVENTS)
        return err_set(err, ERR_INVALID, "a webhook has 1 to %d events", LIMIT_MAIL_EVENTS);
    for (uint32_t i = 0; i < want->event_count; i++)
        if (want->events[i].len == 0 || want->events[i].len > EVENT_BYTES || !utf8_valid(want->events[i]))
            return err_set(err, ERR_INVALID, "an event of a webhook has a name of up to %d bytes", EVENT_BYTES);
    /* Each name is a call of its own. */
    for (uint32_t i = 1; i < want->event_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (str_eq(want->events[i], want->events[j]))
                return err_set(err, ERR_INVALID, "the event %.*s of a webhook is named twice",
                               STR_ARG(want->events[i]));
    if (want->secret.len && (want->secret.len < SECRET_LEAST || want->secret.len > SECRET_MAX_BYTES))
        return err_set(err, ERR_INVALID, "the secret of a webhook has %d to %d bytes", SECRET_LEAST, SECRET_MAX_BYTES);
    return utf8_valid(want->secret) || err_set(err, ERR_INVALID, "the secret of a webhook must be UTF-8");
}

/* The inboxes that it is for. */
static bool rows_for(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                     struct arena *arena, struct mail_inbox_row **out, size_t *out_count, struct err *err)
{
    if (ref.len || caller->kind == MAIL_CALLER_OPERATOR) {
        *out = ARENA_NEW(arena, struct mail_inbox_row);
        *out_count = 1;
        return mail_row_for(actions, caller, ref, arena, *out, err);
    }
    if (!mail_rows_of(actions, caller, arena, out, out_count, err))
        return false;
    return *out_count || err_set(err, ERR_NOT_FOUND, "there is no inbox yet that a webhook could be for");
}

static bool add_consent(const struct actions *actions, const struct mail_caller *caller,
                        const struct webhook_want *want, const struct mail_inbox_row *row, struct arena *arena,
                        bool *out_pending, struct err *err)
{
    struct str *parts = ARENA_ARRAY(arena, struct str, want->event_count + 3);
    struct mail_asked asked = {
        .action = "webhook.add",
        .tenant_id = row->tenant_id,
        .inbox_id = row->id,
        .parts = parts,
        .part_count = want->event_count + 3,
        .what =
            arena_format(arena, "tell %.*s about events of mail", (int)MIN(want->url.len, (size_t)300), want->url.at),
    };

    parts[0] = want->url;
    parts[1] = want->inbox_ref;
    parts[2] = want->secret;
    for (uint32_t i = 0; i < want->event_count; i++)
        parts[3 + i] = want->events[i];
    *out_pending = false;
    if (caller->is_lobster && caller->kind != MAIL_CALLER_SANDBOX)
        return true;
    return mail_consent(actions, caller, &asked, want->approval_code, arena, out_pending, NULL, err);
}

static struct str secret_make(struct arena *arena)
{
    auto_wipe struct secret text = { 0 };
    struct str random;

    mail_key_text(false, &text);
    random = secret_reveal(&text);
    (void)str_skip(&random, STR("mm_live_"));
    return arena_format(arena, "whsec_%.*s", STR_ARG(random));
}

bool action_webhook_add(const struct actions *actions, const struct mail_caller *caller,
                        const struct webhook_want *want, struct arena *arena, struct mail_webhook *out,
                        bool *out_pending, struct err *err)
{
    struct mail_inbox_row *rows;
    struct mail_webhook added, first = { 0 };
    size_t count;

    if (!mail_is_on(actions, err) ||
        !(caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)) ||
        !want_check(actions, caller, want, err) ||
        !rows_for(actions, caller, want->inbox_ref, arena, &rows, &count, err) ||
        !add_consent(actions, caller, want, &rows[0], arena, out_pending, err))
        return false;
    if (*out_pending)
        return true;
    struct str *events = ARENA_ARRAY(arena, struct str, want->event_count);
    memcpy(events, want->events, want->event_count * sizeof *events);
    struct mail_webhook webhook = {
        .url = want->url,
        .secret = want->secret.len ? want->secret : secret_make(arena),
        .events = events,
        .event_count = want->event_count,
        .is_lobster = caller->is_lobster,
        .is_enabled = true,
    };
    for (size_t i = 0; i < count; i++) {
        if (!mail_webhook_add(actions->mail->mail, arena_text(arena, rows[i].id), &webhook, str_from(caller->actor),
                              arena, &added, err))
            return err_wrap(err, "add a webhook to inbox %.*s", STR_ARG(rows[i].id));
        if (i == 0)
            first = added;
    }
    mail_hooks_changed();
    *out = first;
    return true;
}

static bool is_same(const struct mail_webhook *a, const struct mail_webhook *b)
{
    return str_eq(a->url, b->url) && str_eq(a->secret, b->secret);
}

bool action_webhook_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                         struct mail_webhook **out, size_t *out_count, struct err *err)
{
    struct mail_webhook *list = NULL, *of_inbox;
    struct mail_inbox_row *rows;
    size_t count, found, shown = 0, room = 0;

    if (!mail_is_on(actions, err) || !mail_need_scope(caller, MAIL_SCOPE_ADMIN, err) ||
        !mail_rows_of(actions, caller, arena, &rows, &count, err))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!mail_webhook_list(actions->mail->mail, arena_text(arena, rows[i].id), arena, &of_inbox, &found, err))
            return err_wrap(err, "webhooks of inbox %.*s", STR_ARG(rows[i].id));
        for (size_t j = 0; j < found; j++) {
            size_t k = 0;
            while (k < shown && !is_same(&list[k], &of_inbox[j]))
                k++;
            if (k < shown)
                continue;
            if (shown == room) {
                struct mail_webhook *more = ARENA_ARRAY(arena, struct mail_webhook, room ? room * 2 : 16);
                if (shown)
                    memcpy(more, list, shown * sizeof *list);
                list = more;
                room = room ? room * 2 : 16;
            }
            list[shown++] = of_inbox[j];
        }
    }
    *out = list;
    *out_count = shown;
    return true;
}

/* Its rows in all inboxes of the caller: removed (enable -1) or enabled (1). */
static bool each_row(const struct actions *actions, const struct mail_caller *caller, struct str id, int enable,
                     struct arena *arena, struct err *err)
{
    struct mail *mail = actions->mail->mail;
    struct mail_webhook *of_inbox, wanted = { 0 };
    struct mail_inbox_row *rows, home;
    size_t count, found;
    char handle[MAIL_HANDLE_BYTES];

    /* The id leads to one inbox of the caller; the row there says which subscription is meant. */
    if (!mail_message_id_handle(id, handle))
        return mail_no_such(err);
    if (!store_mail_inbox_by_handle(actions->store, str_from(handle), arena, &home, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (!mail_row_for(actions, caller, home.id, arena, &home, err) ||
        !mail_webhook_list(mail, arena_text(arena, home.id), arena, &of_inbox, &found, err))
        return false;
    for (size_t i = 0; i < found; i++)
        if (str_eq(str_from(of_inbox[i].id), id))
            wanted = of_inbox[i];
    if (!wanted.url.len)
        return mail_no_such(err);
    if (!mail_rows_of(actions, caller, arena, &rows, &count, err))
        return false;
    for (size_t i = 0; i < count; i++) {
        char *inbox_id = arena_text(arena, rows[i].id);
        if (!mail_webhook_list(mail, inbox_id, arena, &of_inbox, &found, err))
            return false;
        for (size_t j = 0; j < found; j++) {
            struct str row_id = str_from(of_inbox[j].id);
            if (is_same(&of_inbox[j], &wanted) &&
                !(enable < 0 ? mail_webhook_remove(mail, inbox_id, row_id, str_from(caller->actor), err)
                             : mail_webhook_note(mail, inbox_id, row_id, enable, 0, err)) &&
                err->kind != ERR_NOT_FOUND)
                return false;
        }
    }
    return true;
}

bool action_webhook_remove(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err)
{
    return mail_is_on(actions, err) && mail_need_scope(caller, MAIL_SCOPE_ADMIN, err) &&
           each_row(actions, caller, id, -1, arena, err);
}

bool action_webhook_enable(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err)
{
    bool fine = mail_is_on(actions, err) && mail_need_scope(caller, MAIL_SCOPE_ADMIN, err) &&
                each_row(actions, caller, id, 1, arena, err);

    mail_hooks_changed();
    return fine;
}
