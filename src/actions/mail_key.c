/*
 * Keys of mail: of an inbox, of an account, of a tenant's approvers.
 *
 * A key that may read has a wrap of the inbox's private key in the inbox's file, and only a credential that can read can add
 * one: so the operator cannot make a key that reads. An oversight key has a wrap of the approvers' private key in its row.
 */
#include <stdio.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/random.h"

enum {
    KEY_CHARS = 43, /* of base62: 256 bits */
    PREFIX_SHOWN = 4,
    OVERSIGHT = MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_OVERSIGHT_READ,
};

/* ---- texts ---- */

void mail_key_text(bool is_lobster, struct secret *out)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const char *prefix = is_lobster ? "lm_sk_live_" : "mm_live_";

    out->len = strlen(prefix);
    memcpy(out->bytes, prefix, out->len);
    for (int i = 0; i < KEY_CHARS;) {
        unsigned char byte;
        random_bytes(&byte, 1);
        if (byte >= 4 * 62) /* each digit is as likely as the others */
            continue;
        out->bytes[out->len++] = (unsigned char)digits[byte % 62];
        i++;
    }
}

static struct str name_about(struct str id, struct arena *arena)
{
    return arena_format(arena, "key:%.*s", STR_ARG(id));
}

static struct str shown_prefix(struct str text)
{
    struct str rest = text;

    if (!str_skip(&rest, STR("lm_sk_live_")) && !str_skip(&rest, STR("lm_sk_test_")))
        (void)str_skip(&rest, STR("mm_live_"));
    return str_of(text.at, MIN(text.len - rest.len + PREFIX_SHOWN, text.len));
}

void mail_key_row_of(const struct actions *actions, const struct secret *text, struct str name, struct arena *arena,
                     struct mail_key_row *out)
{
    char id[MAIL_KEY_ID_BYTES], hash[STORE_HASH_BYTES];
    auto_seal_key struct seal_key grant_private;
    struct seal_key grant_public;

    mail_ulid(id);
    store_secret_hash(secret_reveal(text), hash);
    seal_pair_of(secret_reveal(text), "grant", &grant_public, &grant_private);
    *out = (struct mail_key_row){
        .id = arena_copy(arena, str_from(id)),
        .prefix = arena_copy(arena, shown_prefix(secret_reveal(text))),
        .hash = arena_copy(arena, str_from(hash)),
        .grant_public = arena_copy(arena, str_of(grant_public.bytes, sizeof grant_public.bytes)),
    };
    out->name = mail_encrypt(actions, name, name_about(out->id, arena), arena);
}

static bool name_check(struct str *name, struct err *err)
{
    *name = str_trim(*name);
    if (name->len == 0 || name->len >= LIMIT_NAME_BYTES)
        return err_set(err, ERR_INVALID, "a key's name must have between 1 and %d bytes", LIMIT_NAME_BYTES - 1);
    for (size_t i = 0; i < name->len; i++)
        if ((unsigned char)name->at[i] < 0x20 || name->at[i] == 0x7f)
            return err_set(err, ERR_INVALID, "a key's name must not have control characters");
    return utf8_valid(*name) || err_set(err, ERR_INVALID, "a key's name must be UTF-8");
}

static bool scopes_check(uint32_t scopes, struct err *err)
{
    return mail_scopes_valid(scopes) ||
           err_set(err, ERR_INVALID,
                   "these scopes do not go together: a key that sends (send, admin) never approves (oversight)");
}

static bool info_of(const struct actions *actions, const struct mail_key_row *row, struct arena *arena,
                    struct mail_key_info *out, struct err *err)
{
    struct mail_tenant_row tenant;
    struct mail_key_info info = { .prefix = row->prefix,
                                  .scopes = row->scopes,
                                  .created_us = row->created_us,
                                  .last_used_us = row->last_used_us,
                                  .is_active = row->revoked_us == 0 };

    if (!store_mail_tenant_get(actions->store, row->tenant_id, STR(""), arena, &tenant, err) ||
        !mail_decrypt(actions, row->name, name_about(row->id, arena), arena, &info.name, err))
        return err_wrap(err, "mail key %.*s", STR_ARG(row->id));
    info.tenant = tenant.name;
    (void)snprintf(info.id, sizeof info.id, "%.*s", STR_ARG(row->id));
    (void)snprintf(info.inbox_id, sizeof info.inbox_id, "%.*s", STR_ARG(row->inbox_id));
    *out = info;
    return true;
}

static struct str audit_of(const struct mail_key_row *row)
{
    return row->inbox_id.len ? row->inbox_id : row->tenant_id;
}

/* ---- making one ---- */

static struct str scopes_text(uint32_t scopes, struct arena *arena)
{
    static const char *const names[] = { "read", "send", "admin", "oversight", "oversight_read" };
    struct buf out = buf_make(arena, 64);

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (scopes & (1U << i))
            buf_format(&out, "%s%s", out.len ? "," : "", names[i]);
    return buf_str(&out);
}

/* By the operator: for approvers, or for an account that has no inbox yet. */
static bool create_by_operator(const struct actions *actions, const struct mail_caller *caller,
                               const struct mail_key_want *want, const struct secret *text, struct arena *arena,
                               struct mail_key_row *row, struct err *err)
{
    struct mail_tenant_row tenant;

    if (want->inbox_ref.len)
        return err_set(err, ERR_DENIED,
                       "only a key of the inbox can make another one: the operator has no right to read to give");
    if (!mail_tenant_find(actions, want->tenant, arena, &tenant, err))
        return false;
    row->tenant_id = tenant.id;
    if (want->scopes & OVERSIGHT) {
        unsigned char *wrap = arena_alloc(arena, SEAL_WRAPPED_KEY_BYTES);
        auto_seal_key struct seal_key kek;
        struct mail_approver approver;
        if (!mail_approver_for(actions, caller, arena_text(arena, tenant.id), true, arena, &approver, err))
            return false;
        seal_derive(secret_reveal(text), "approver", &kek);
        seal_wrap(&kek, &approver.private_key, wrap);
        seal_key_wipe(&approver.private_key);
        row->approver_wrap = str_of(wrap, SEAL_WRAPPED_KEY_BYTES);
    } else {
        char *account = arena_alloc(arena, MAIL_INBOX_ID_BYTES);
        mail_ulid(account);
        row->account_id = str_from(account);
    }
    return store_mail_key_add(actions->store, row, err);
}

static bool create_consent(const struct actions *actions, const struct mail_caller *caller,
                           const struct mail_key_want *want, const struct mail_inbox_row *inbox, struct arena *arena,
                           bool *out_pending, struct err *err)
{
    const struct str parts[] = { want->name, scopes_text(want->scopes, arena) };
    struct mail_asked asked = {
        .action = "key.create",
        .tenant_id = inbox->tenant_id,
        .inbox_id = inbox->id,
        .parts = parts,
        .part_count = COUNT_OF(parts),
        .what =
            /* The name is the caller's, so it comes last: it cannot look like scopes. */
        arena_format(arena, "create a key with the scopes %.*s, named '%.*s'", STR_ARG(parts[1]), STR_ARG(want->name)),
    };

    return mail_consent(actions, caller, &asked, want->approval_code, arena, out_pending, NULL, err);
}

/* By a key of the inbox, which gives on its right to read if the new one may read. */
static bool create_by_key(const struct actions *actions, const struct mail_caller *caller,
                          const struct mail_key_want *want, const struct mail_inbox_row *inbox,
                          const struct secret *text, struct arena *arena, struct mail_key_row *row, struct err *err)
{
    char *inbox_id = arena_text(arena, inbox->id);
    struct mail_reader with = { 0 }, added = { .key_id = arena_text(arena, row->id) };
    bool reads = mail_scope_allows(want->scopes, MAIL_SCOPE_READ);

    row->tenant_id = inbox->tenant_id;
    row->inbox_id = inbox->id;
    if (reads) {
        if (!mail_reader_of(caller, arena, &with))
            return err_set(err, ERR_DENIED, "only a key that can read this inbox makes another one that can");
        seal_derive(secret_reveal(text), "inbox", &added.kek);
        bool ok = mail_reader_add(actions->mail->mail, inbox_id, &with, &added, str_from(caller->actor), err);
        seal_key_wipe(&with.kek);
        seal_key_wipe(&added.kek);
        if (!ok)
            return err_wrap(err, "make a key of inbox %s", inbox_id);
    }
    if (!store_mail_key_add(actions->store, row, err)) {
        struct err why;
        if (reads && !mail_reader_remove(actions->mail->mail, inbox_id, added.key_id, str_from(caller->actor), &why))
            log_warn("inbox %s: cannot remove the wrap of a key that was not made: %s", inbox_id, err_text(&why));
        return false;
    }
    return true;
}

bool action_mail_key_create(const struct actions *actions, const struct mail_caller *caller,
                            const struct mail_key_want *asked, struct arena *arena, struct mail_key_info *out,
                            struct secret *out_key, bool *out_pending, struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct mail_key_want want = *asked;
    auto_wipe struct secret text = { 0 };
    struct mail_inbox_row inbox = { 0 };
    struct mail_key_row row;

    *out_pending = false;
    if (!mail_is_on(actions, err) || !name_check(&want.name, err) || !scopes_check(want.scopes, err))
        return false;
    if ((want.scopes & OVERSIGHT) && !is_operator)
        return err_set(err, ERR_DENIED, "only the operator makes keys that approve: cloister mail key create");
    if (!is_operator) {
        if (!mail_need_scope(caller, MAIL_SCOPE_ADMIN, err))
            return false;
        if (want.tenant.len)
            return err_set(err, ERR_DENIED, "only the operator chooses the tenant");
        if (!mail_row_for(actions, caller, want.inbox_ref, arena, &inbox, err) ||
            !create_consent(actions, caller, &want, &inbox, arena, out_pending, err))
            return false;
        if (*out_pending)
            return true;
    }
    mail_key_text(false, &text);
    mail_key_row_of(actions, &text, want.name, arena, &row);
    row.scopes = want.scopes;
    if (!(is_operator ? create_by_operator(actions, caller, &want, &text, arena, &row, err)
                      : create_by_key(actions, caller, &want, &inbox, &text, arena, &row, err)) ||
        !store_mail_key_get(actions->store, row.id, arena, &row, err) || !info_of(actions, &row, arena, out, err))
        return false;
    mail_note(actions, audit_of(&row), "key.create", row.id, caller,
              arena_format(arena, "{\"scopes\":\"%.*s\"}", STR_ARG(scopes_text(row.scopes, arena))));
    log_info("mail key %.*s: made by %s", STR_ARG(row.id), caller->actor);
    *out_key = text;
    return true;
}

/* ---- looking and changing ---- */

/* A key of one of the caller's inboxes, or its account's token; any for the operator. */
static bool key_for(const struct actions *actions, const struct mail_caller *caller, struct str id, struct arena *arena,
                    struct mail_key_row *out, struct err *err)
{
    struct mail_inbox_row inbox;
    struct mail_key_row row;

    if (!mail_is_on(actions, err) ||
        !(caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)))
        return false;
    if (!store_mail_key_get(actions->store, id, arena, &row, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (caller->kind != MAIL_CALLER_OPERATOR) {
        if (!str_eq(row.tenant_id, str_from(caller->tenant_id)))
            return mail_no_such(err);
        if (row.inbox_id.len) {
            if (!mail_row_for(actions, caller, row.inbox_id, arena, &inbox, err))
                return false;
        } else if (!caller->account_id[0] || !str_eq(row.account_id, str_from(caller->account_id))) {
            return mail_no_such(err);
        }
    }
    *out = row;
    return true;
}

static bool list_add(const struct actions *actions, const struct mail_key_filter *filter, struct str skip_inbox,
                     struct arena *arena, struct mail_key_info *list, size_t *count, size_t room, struct err *err)
{
    struct mail_key_row *rows;
    size_t found;

    if (!store_mail_key_list(actions->store, filter, arena, &rows, &found, err))
        return false;
    for (size_t i = 0; i < found && *count < room; i++) {
        if (skip_inbox.len && str_eq(rows[i].inbox_id, skip_inbox))
            continue;
        if (!info_of(actions, &rows[i], arena, &list[*count], err))
            return false;
        ++*count;
    }
    return true;
}

bool action_mail_key_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                          struct mail_key_info **out, size_t *out_count, struct err *err)
{
    struct mail_key_filter of_all = { 0 };
    struct mail_inbox_row *inboxes = NULL;
    size_t inbox_count = 0, count = 0, room = LIMIT_MAIL_KEYS_LISTED;

    if (!mail_is_on(actions, err) ||
        !(caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)))
        return false;
    struct mail_key_info *list = ARENA_ARRAY(arena, struct mail_key_info, room);
    if (caller->kind == MAIL_CALLER_OPERATOR) {
        if (!list_add(actions, &of_all, STR(""), arena, list, &count, room, err))
            return false;
    } else {
        struct mail_key_filter of_account = { .account_id = str_from(caller->account_id) };
        if ((caller->account_id[0] &&
             !list_add(actions, &of_account, str_from(caller->inbox_id), arena, list, &count, room, err)) ||
            !mail_rows_of(actions, caller, arena, &inboxes, &inbox_count, err))
            return false;
        for (size_t i = 0; i < inbox_count; i++) {
            struct mail_key_filter of_inbox = { .inbox_id = inboxes[i].id };
            if (!list_add(actions, &of_inbox, STR(""), arena, list, &count, room, err))
                return false;
        }
    }
    *out = list;
    *out_count = count;
    return true;
}

static bool key_consent(const struct actions *actions, const struct mail_caller *caller, const char *action,
                        const struct mail_key_row *row, const struct str *parts, size_t part_count, const char *verb,
                        struct str code, struct arena *arena, bool *out_pending, struct err *err)
{
    struct mail_key_info info;

    if (!info_of(actions, row, arena, &info, err))
        return false;
    struct mail_asked asked = {
        .action = action,
        .tenant_id = row->tenant_id,
        .inbox_id = row->inbox_id,
        .parts = parts,
        .part_count = part_count,
        .what = arena_format(arena, "%s the key %.*s…, named '%.*s'", verb, STR_ARG(info.prefix), STR_ARG(info.name)),
    };
    return mail_consent(actions, caller, &asked, code, arena, out_pending, NULL, err);
}

/* Its wrap goes: of an inbox's key in that inbox, of an account's token in all of the account's. */
static void wraps_remove(const struct actions *actions, const struct mail_caller *caller,
                         const struct mail_key_row *row, struct arena *arena)
{
    struct mail_inbox_filter filter = { .account_id = row->account_id, .or_id = row->inbox_id };
    char *key_id = arena_text(arena, row->id);
    struct mail_inbox_row *inboxes;
    struct err err;
    size_t count;

    if (row->account_id.len == 0 && row->inbox_id.len == 0)
        return;
    if (!store_mail_inbox_list(actions->store, &filter, arena, &inboxes, &count, &err)) {
        log_warn("mail key %s: cannot find the inboxes that it could read: %s", key_id, err_text(&err));
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (!mail_reader_remove(actions->mail->mail, arena_text(arena, inboxes[i].id), key_id, str_from(caller->actor),
                                &err) &&
            err.kind != ERR_NOT_FOUND)
            log_warn("mail key %s: its wrap in inbox %.*s stays, but the key is refused: %s", key_id,
                     STR_ARG(inboxes[i].id), err_text(&err));
}

bool action_mail_key_update(const struct actions *actions, const struct mail_caller *caller, struct str id,
                            const struct str *name, uint32_t scopes, struct str approval_code, struct arena *arena,
                            bool *out_pending, struct err *err)
{
    struct mail_key_row row;

    *out_pending = false;
    if (!key_for(actions, caller, id, arena, &row, err) || (scopes && !scopes_check(scopes, err)))
        return false;
    struct str new_name = name ? *name : STR("");
    if (name && !name_check(&new_name, err))
        return false;
    uint32_t now = scopes ? scopes : row.scopes;
    if (!(now & OVERSIGHT) != !(row.scopes & OVERSIGHT))
        return err_set(err, ERR_INVALID, "an approver's key stays one, and no other key becomes one: create a new key");
    if (mail_scope_allows(now, MAIL_SCOPE_READ) && !mail_scope_allows(row.scopes, MAIL_SCOPE_READ) &&
        !(now & OVERSIGHT))
        return err_set(err, ERR_INVALID, "this key was made without the right to read: create a new key");
    const struct str parts[] = { row.id, new_name, scopes_text(now, arena) };
    char verb[128];
    (void)snprintf(verb, sizeof verb, "set the scopes %.*s of", STR_ARG(parts[2]));
    if (now != row.scopes && !key_consent(actions, caller, "key.update", &row, parts, COUNT_OF(parts), verb,
                                          approval_code, arena, out_pending, err))
        return false;
    if (*out_pending)
        return true;
    struct str cipher = name ? mail_encrypt(actions, new_name, name_about(row.id, arena), arena) : row.name;
    if (!store_mail_key_change(actions->store, row.id, cipher, now, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (mail_scope_allows(row.scopes, MAIL_SCOPE_READ) && !mail_scope_allows(now, MAIL_SCOPE_READ))
        wraps_remove(actions, caller, &row, arena);
    mail_note(actions, audit_of(&row), "key.update", row.id, caller,
              arena_format(arena, "{\"scopes\":\"%.*s\"}", STR_ARG(parts[2])));
    return true;
}

bool action_mail_key_revoke(const struct actions *actions, const struct mail_caller *caller, struct str id,
                            struct str approval_code, struct arena *arena, bool *out_pending, struct err *err)
{
    struct mail_key_row row;

    *out_pending = false;
    if (!key_for(actions, caller, id, arena, &row, err) ||
        !key_consent(actions, caller, "key.revoke", &row, &row.id, 1, "revoke", approval_code, arena, out_pending, err))
        return false;
    if (*out_pending)
        return true;
    if (!store_mail_key_revoke(actions->store, row.id, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    wraps_remove(actions, caller, &row, arena);
    mail_note(actions, audit_of(&row), "key.revoke", row.id, caller, STR("{}"));
    log_info("mail key %.*s: revoked by %s", STR_ARG(row.id), caller->actor);
    return true;
}
