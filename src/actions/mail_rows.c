/*
 * What stands between actions on mail and their rows in the store: encryption under the server's secret, tenants, and the
 * one place that decides which inbox a caller may have.
 *
 * The order of checks in mail_box_for(): scope, tenant, inbox, credential. A scope is refused without a look at the inbox;
 * every inbox of others is refused with the same words, whether it exists or not.
 */
#include <assert.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/log.h"
#include "base/pack.h"

#define DEFAULT_TENANT STR("default")

static_assert((int)STORE_MAIL_ID_BYTES == MAIL_INBOX_ID_BYTES && (int)MAIL_KEY_ID_BYTES == MAIL_INBOX_ID_BYTES,
              "the store has room for our ids");

bool mail_is_on(const struct actions *actions, struct err *err)
{
    return actions->mail || err_set(err, ERR_UNAVAILABLE, "mail is off on this server");
}

static const char *scope_name(enum mail_scope scope)
{
    switch (scope) {
    case MAIL_SCOPE_READ:
        return "read";
    case MAIL_SCOPE_SEND:
        return "send";
    case MAIL_SCOPE_ADMIN:
        return "admin";
    case MAIL_SCOPE_OVERSIGHT:
        return "oversight";
    default:
        return "oversight_read";
    }
}

bool mail_need_scope(const struct mail_caller *caller, enum mail_scope scope, struct err *err)
{
    return mail_scope_allows(caller->scopes, scope) ||
           err_set(err, ERR_DENIED, "this needs a key with the scope %s", scope_name(scope));
}

bool mail_need_operator(const struct mail_caller *caller, struct err *err)
{
    return caller->kind == MAIL_CALLER_OPERATOR || err_set(err, ERR_DENIED, "this needs the admin token");
}

bool mail_is_keyless(const struct mail_caller *caller)
{
    return caller->kind == MAIL_CALLER_SANDBOX && caller->credential.len == 0;
}

bool mail_need_key(const struct mail_caller *caller, struct err *err)
{
    return !mail_is_keyless(caller) ||
           err_set(err, ERR_DENIED,
                   "without a key of the inbox this sandbox can only send: send the inbox's key along");
}

bool mail_is_sandbox_account(const struct mail_caller *caller)
{
    return caller->kind == MAIL_CALLER_SANDBOX && caller->account_id[0] &&
           strcmp(caller->account_id, caller->inbox_id) == 0;
}

/* ---- under the server's secret ---- */

static void secret_for(const struct actions *actions, const char *label, struct seal_key *out)
{
    seal_derive(str_of(actions->mail->server_secret, sizeof actions->mail->server_secret), label, out);
}

struct str mail_encrypt(const struct actions *actions, struct str text, struct str about, struct arena *arena)
{
    auto_seal_key struct seal_key key;

    secret_for(actions, "rows", &key);
    return seal_encrypt(&key, text, about, arena);
}

bool mail_decrypt(const struct actions *actions, struct str cipher, struct str about, struct arena *arena,
                  struct str *out, struct err *err)
{
    auto_seal_key struct seal_key key;

    secret_for(actions, "rows", &key);
    return seal_decrypt(&key, cipher, about, arena, out, err);
}

void mail_keyed_hash(const struct actions *actions, const char *label, struct str text, char out[65])
{
    auto_seal_key struct seal_key key;

    secret_for(actions, label, &key);
    seal_hash(&key, text, out);
}

bool mail_address_hash(const struct actions *actions, struct str address, char out[65])
{
    struct str local, domain = address;
    char key[MAIL_LOCAL_MOST + 1];

    if (!str_has_char(address, '@') || !str_cut(&domain, '@', &local) ||
        !str_eq_nocase(domain, str_from(actions->mail->domain)) || !mail_local_key(local, key))
        return false;
    /* Without the domain: the operator may rename it, and the inboxes stay. */
    mail_keyed_hash(actions, "address", str_from(key), out);
    return true;
}

/* ---- tenants ---- */

/* As names of teams: a tenant of the same name belongs to the team's sandboxes. */
static bool tenant_name_valid(struct str name)
{
    if (name.len == 0 || name.len > 63 || !char_is_alnum(name.at[0]))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (!(char_is_alnum(name.at[i]) && char_lower(name.at[i]) == name.at[i]) && name.at[i] != '-' &&
            name.at[i] != '_')
            return false;
    return true;
}

static bool has_operator(const struct actions *actions)
{
    for (size_t i = 0; i < sizeof actions->mail->operator_public; i++)
        if (actions->mail->operator_public[i])
            return true;
    return false;
}

static bool tenant_make(const struct actions *actions, struct str name, struct arena *arena,
                        struct mail_tenant_row *out, struct err *err)
{
    struct seal_key public_key, operator_public;
    auto_seal_key struct seal_key private_key;
    unsigned char sealed[SEAL_SEALED_KEY_BYTES];
    char id[MAIL_INBOX_ID_BYTES];

    if (!has_operator(actions))
        return err_set(err, ERR_UNAVAILABLE, "the server has no admin token, and nobody could approve mail");
    mail_ulid(id);
    memcpy(operator_public.bytes, actions->mail->operator_public, sizeof operator_public.bytes);
    seal_make_pair(&public_key, &private_key);
    seal_to(&operator_public, &private_key, sealed);
    struct mail_tenant_row row = {
        .id = str_from(id),
        .name = name,
        .approver_public = str_of(public_key.bytes, sizeof public_key.bytes),
        .approver_sealed = str_of(sealed, sizeof sealed),
        .sealed_to = str_of(operator_public.bytes, sizeof operator_public.bytes),
    };
    /* The file of its audit first: a tenant without one would not be noticed. Of two at once one file stays unused. */
    return mail_tenant_audit_make(actions, row.id, STR("server"), err) &&
           store_mail_tenant_ensure(actions->store, &row, arena, out, err);
}

bool mail_tenant_ensure(const struct actions *actions, struct str name, struct arena *arena,
                        struct mail_tenant_row *out, struct err *err)
{
    if (name.len == 0)
        name = DEFAULT_TENANT;
    if (!tenant_name_valid(name))
        return err_set(err, ERR_INVALID,
                       "a tenant's name has up to 63 lower-case letters, digits, - and _, and begins with a letter or "
                       "digit");
    if (store_mail_tenant_get(actions->store, STR(""), name, arena, out, err))
        return true;
    return err->kind == ERR_NOT_FOUND && tenant_make(actions, name, arena, out, err);
}

/* Its tenant is made when a sandbox of the team first uses mail; an approver may come earlier. */
static bool is_team(const struct actions *actions, struct str name, struct arena *arena, bool *out, struct err *err)
{
    struct team_row *teams;
    size_t count;

    if (!store_team_list(actions->store, arena, &teams, &count, err))
        return false;
    *out = false;
    for (size_t i = 0; i < count; i++)
        *out = *out || str_eq(teams[i].slug, name);
    return true;
}

bool mail_tenant_find(const struct actions *actions, struct str name, struct arena *arena, struct mail_tenant_row *out,
                      struct err *err)
{
    bool is_there = name.len == 0 || str_eq(name, DEFAULT_TENANT);

    if (!is_there && tenant_name_valid(name)) {
        if (store_mail_tenant_get(actions->store, STR(""), name, arena, out, err))
            return true;
        if (err->kind != ERR_NOT_FOUND || !is_team(actions, name, arena, &is_there, err))
            return false;
        if (!is_there)
            return err_set(err, ERR_NOT_FOUND,
                           "there is no tenant '%.*s': `cloister mail inbox list` shows those that there are, and the "
                           "first inbox makes a new one",
                           (int)MIN(name.len, (size_t)40), name.at);
    }
    return mail_tenant_ensure(actions, name, arena, out, err);
}

struct str mail_oversight_about(struct str tenant_id, struct arena *arena)
{
    return arena_format(arena, "oversight:%.*s", STR_ARG(tenant_id));
}

static bool key_of(struct str bytes, struct seal_key *out, struct err *err)
{
    if (bytes.len != sizeof out->bytes)
        return err_set(err, ERR_INTERNAL, "a key in mail's rows is damaged");
    memcpy(out->bytes, bytes.at, sizeof out->bytes);
    return true;
}

/* The admin token has changed since the tenant was made: the operator can open the approvers' key again from now on. */
static void reseal(const struct actions *actions, const struct mail_tenant_row *tenant,
                   const struct seal_key *private_key)
{
    struct str now = str_of(actions->mail->operator_public, sizeof actions->mail->operator_public);
    unsigned char sealed[SEAL_SEALED_KEY_BYTES];
    struct seal_key operator_public;
    struct err err;

    if (str_eq(tenant->sealed_to, now) || !has_operator(actions))
        return;
    memcpy(operator_public.bytes, now.at, sizeof operator_public.bytes);
    seal_to(&operator_public, private_key, sealed);
    if (!store_mail_tenant_reseal(actions->store, tenant->id, str_of(sealed, sizeof sealed), now, &err))
        log_warn("tenant %.*s: cannot seal the approvers' key to the new admin token: %s", STR_ARG(tenant->name),
                 err_text(&err));
}

static bool approver_open(const struct actions *actions, const struct mail_caller *caller,
                          const struct mail_tenant_row *tenant, struct arena *arena, struct seal_key *out_private,
                          struct err *err)
{
    if (caller->kind == MAIL_CALLER_OPERATOR) {
        struct seal_key public_key;
        auto_seal_key struct seal_key private_key;
        seal_pair_of(secret_reveal(&caller->credential), "operator", &public_key, &private_key);
        return seal_open(&public_key, &private_key, tenant->approver_sealed, out_private, err) ||
               err_set(err, ERR_CONFLICT,
                       "the admin token has changed since tenant %.*s was made: use an oversight key of it once",
                       STR_ARG(tenant->name));
    }
    auto_seal_key struct seal_key kek;
    struct mail_key_row key;
    if (!store_mail_key_get(actions->store, str_from(caller->key_id), arena, &key, err))
        return err->kind == ERR_NOT_FOUND ? err_set(err, ERR_DENIED, "the mail key was revoked") : false;
    seal_derive(secret_reveal(&caller->credential), "approver", &kek);
    if (!seal_unwrap(&kek, key.approver_wrap, out_private, err))
        return err_wrap(err, "oversight key %s", caller->key_id);
    reseal(actions, tenant, out_private);
    return true;
}

bool mail_approver_for(const struct actions *actions, const struct mail_caller *caller, const char *tenant_id,
                       bool decide, struct arena *arena, struct mail_approver *out, struct err *err)
{
    struct mail_tenant_row tenant;
    struct mail_approver approver = { .id = arena_copy(arena, str_from(caller->actor)), .scopes = caller->scopes };

    if (!mail_is_on(actions, err) ||
        !mail_need_scope(caller, decide ? MAIL_SCOPE_OVERSIGHT : MAIL_SCOPE_OVERSIGHT_READ, err))
        return false;
    if (caller->kind != MAIL_CALLER_OPERATOR && caller->kind != MAIL_CALLER_OVERSIGHT)
        return err_set(err, ERR_DENIED, "this needs a key with the scope oversight");
    if (caller->kind != MAIL_CALLER_OPERATOR && strcmp(caller->tenant_id, tenant_id) != 0)
        return mail_no_such(err);
    if (!store_mail_tenant_get(actions->store, str_from(tenant_id), STR(""), arena, &tenant, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (!key_of(tenant.approver_public, &approver.public_key, err) ||
        !approver_open(actions, caller, &tenant, arena, &approver.private_key, err)) {
        seal_key_wipe(&approver.private_key);
        return false;
    }
    *out = approver;
    seal_key_wipe(&approver.private_key);
    return true;
}

/* ---- inboxes ---- */

enum { PROFILE_VERSION = 1 };

static struct str profile_about(struct str inbox_id, struct arena *arena)
{
    return arena_format(arena, "profile:%.*s", STR_ARG(inbox_id));
}

struct str mail_profile_lock(const struct actions *actions, struct str inbox_id, const struct mail_profile *profile,
                             struct arena *arena)
{
    struct buf out = buf_make(arena, LIMIT_MAIL_PROFILE_BYTES);

    pack_u8(&out, PROFILE_VERSION);
    pack_str(&out, profile->local);
    pack_str(&out, profile->display_name);
    pack_str(&out, profile->signature);
    pack_str(&out, profile->auto_cc);
    pack_str(&out, profile->auto_bcc);
    pack_u32(&out, profile->undo_s);
    pack_bool(&out, profile->schedule_first);
    pack_bool(&out, profile->scheduling_enabled);
    pack_bool(&out, profile->forward_inbound);
    pack_bool(&out, profile->mcp_configured);
    pack_bool(&out, profile->auto_extract);
    assert(!out.overflowed); /* each field was checked against a limit of its own */
    return mail_encrypt(actions, buf_str(&out), profile_about(inbox_id, arena), arena);
}

bool mail_profile_open(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena,
                       struct mail_profile *out, struct err *err)
{
    struct mail_profile profile;
    struct str text;

    if (!mail_decrypt(actions, row->profile, profile_about(row->id, arena), arena, &text, err))
        return err_wrap(err, "profile of inbox %.*s", STR_ARG(row->id));
    struct unpack in = unpack_from(text);
    if (unpack_u8(&in) != PROFILE_VERSION)
        return err_set(err, ERR_INTERNAL, "the profile of inbox %.*s is of another version", STR_ARG(row->id));
    profile.local = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    profile.display_name = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    profile.signature = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    profile.auto_cc = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    profile.auto_bcc = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    profile.undo_s = unpack_u32(&in);
    profile.schedule_first = unpack_bool(&in);
    profile.scheduling_enabled = unpack_bool(&in);
    profile.forward_inbound = unpack_bool(&in);
    profile.mcp_configured = unpack_bool(&in);
    profile.auto_extract = unpack_bool(&in);
    if (!unpack_done(&in, err))
        return err_wrap(err, "profile of inbox %.*s", STR_ARG(row->id));
    *out = profile;
    return true;
}

static bool id_copy(struct str text, char room[MAIL_INBOX_ID_BYTES], struct err *err)
{
    if (text.len >= MAIL_INBOX_ID_BYTES)
        return err_set(err, ERR_INTERNAL, "an id in mail's rows is damaged");
    if (text.len)
        memcpy(room, text.at, text.len);
    room[text.len] = '\0';
    return true;
}

bool mail_info_of(const struct actions *actions, const struct mail_inbox_row *row, struct str tenant,
                  struct arena *arena, struct inbox_info *out, struct err *err)
{
    struct mail_profile profile;
    struct inbox_info info;

    if (row->mode >= MAIL_MODE_COUNT)
        return err_set(err, ERR_INTERNAL, "the mode of inbox %.*s is damaged", STR_ARG(row->id));
    if (!mail_profile_open(actions, row, arena, &profile, err))
        return false;
    info = (struct inbox_info){
        .tenant = tenant,
        .address = arena_format(arena, "%.*s@%s", STR_ARG(profile.local), actions->mail->domain),
        .display_name = profile.display_name,
        .signature = profile.signature,
        .auto_cc = profile.auto_cc,
        .auto_bcc = profile.auto_bcc,
        .mode = (enum mail_mode)row->mode,
        .undo_s = profile.undo_s,
        .schedule_first = profile.schedule_first,
        .scheduling_enabled = profile.scheduling_enabled,
        .forward_inbound = profile.forward_inbound,
        .mcp_configured = profile.mcp_configured,
        .auto_extract = profile.auto_extract,
        .is_active = row->deleted_us == 0,
        .created_us = row->created_us,
        .deleted_us = row->deleted_us,
        .message_count = (uint32_t)MIN(row->received, (uint64_t)UINT32_MAX),
    };
    if (!id_copy(row->id, info.id, err) || !id_copy(row->tenant_id, info.tenant_id, err) ||
        !id_copy(row->account_id, info.account_id, err) || !key_of(row->public_key, &info.public_key, err))
        return false;
    *out = info;
    return true;
}

/* ---- who may have which ---- */

static bool is_own(const struct mail_caller *caller, const struct mail_inbox_row *row)
{
    if (row->deleted_us || !str_eq(row->tenant_id, str_from(caller->tenant_id)))
        return false;
    if (caller->inbox_id[0] && str_eq(row->id, str_from(caller->inbox_id)))
        return true;
    return caller->account_id[0] && str_eq(row->account_id, str_from(caller->account_id));
}

/* By the account alone: not the inbox that the key is a key of. */
static bool is_by_account(const struct mail_caller *caller, const struct mail_inbox_row *row)
{
    return !caller->inbox_id[0] || !str_eq(row->id, str_from(caller->inbox_id));
}

bool mail_row_by_ref(const struct actions *actions, struct str ref, struct arena *arena, struct mail_inbox_row *out,
                     struct err *err)
{
    char hash[65];
    bool found;

    (void)str_skip(&ref, STR("ibx_"));
    if (mail_inbox_id_valid(ref))
        found = store_mail_inbox_get(actions->store, ref, arena, out, err);
    else if (mail_address_hash(actions, ref, hash))
        found = store_mail_inbox_by_address(actions->store, str_from(hash), arena, out, err);
    else
        return mail_no_such(err);
    return found || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false);
}

bool mail_rows_of(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                  struct mail_inbox_row **out, size_t *out_count, struct err *err)
{
    struct mail_inbox_filter filter = { 0 };

    if (!mail_is_on(actions, err))
        return false;
    if (caller->kind != MAIL_CALLER_OPERATOR) {
        filter.tenant_id = str_from(caller->tenant_id);
        filter.account_id = str_from(caller->account_id);
        filter.or_id = str_from(caller->inbox_id);
        if (filter.account_id.len == 0 && filter.or_id.len == 0) { /* an oversight key has none of its own */
            *out = NULL;
            *out_count = 0;
            return true;
        }
    }
    return store_mail_inbox_list(actions->store, &filter, arena, out, out_count, err);
}

/* Without a reference: the inbox of the key, or the only one of the account. */
static bool only_row(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                     struct mail_inbox_row *out, struct err *err)
{
    struct mail_inbox_row *rows;
    size_t count;

    if (caller->inbox_id[0])
        return mail_row_by_ref(actions, str_from(caller->inbox_id), arena, out, err);
    if (caller->kind == MAIL_CALLER_OPERATOR || caller->kind == MAIL_CALLER_OVERSIGHT)
        return err_set(err, ERR_INVALID, "say which inbox is meant: its id or its address");
    if (!mail_rows_of(actions, caller, arena, &rows, &count, err))
        return false;
    if (count != 1)
        return err_set(err, count ? ERR_INVALID : ERR_NOT_FOUND,
                       count ? "say which inbox is meant: this account has several"
                             : "this account has no inbox yet: create one first");
    *out = rows[0];
    return true;
}

bool mail_row_for(const struct actions *actions, const struct mail_caller *caller, struct str ref, struct arena *arena,
                  struct mail_inbox_row *out, struct err *err)
{
    struct mail_inbox_row row;

    if (!mail_is_on(actions, err) ||
        !(ref.len ? mail_row_by_ref(actions, ref, arena, &row, err) : only_row(actions, caller, arena, &row, err)))
        return false;
    if (caller->kind == MAIL_CALLER_OPERATOR ? row.deleted_us != 0 : !is_own(caller, &row))
        return mail_no_such(err);
    *out = row;
    return true;
}

bool mail_reader_of(const struct mail_caller *caller, struct arena *arena, struct mail_reader *out)
{
    if (caller->credential.len == 0 || caller->kind == MAIL_CALLER_OPERATOR || caller->kind == MAIL_CALLER_OVERSIGHT)
        return false;
    *out = (struct mail_reader){ .key_id = arena_text(arena, str_from(caller->key_id)) };
    seal_derive(secret_reveal(&caller->credential), "inbox", &out->kek);
    return true;
}

void mail_box_wipe(struct mail_box *box)
{
    seal_key_wipe(&box->reader.kek);
}

/* The row with all that does not depend on the caller. */
static bool box_fill(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena,
                     struct mail_box *out, struct err *err)
{
    struct mail_tenant_row tenant;

    if (!store_mail_tenant_get(actions->store, row->tenant_id, STR(""), arena, &tenant, err))
        return err_wrap(err, "tenant of inbox %.*s", STR_ARG(row->id));
    *out = (struct mail_box){ 0 };
    return mail_info_of(actions, row, tenant.name, arena, &out->info, err) &&
           key_of(tenant.approver_public, &out->approver_public, err) &&
           (tenant.oversight.len == 0 || mail_decrypt(actions, tenant.oversight, mail_oversight_about(tenant.id, arena),
                                                      arena, &out->oversight_address, err));
}

static bool use_allowed(const struct mail_caller *caller, enum mail_use use, struct err *err)
{
    static const enum mail_scope needed[] = {
        [MAIL_USE_LIST] = MAIL_SCOPE_READ,
        [MAIL_USE_READ] = MAIL_SCOPE_READ,
        [MAIL_USE_SEND] = MAIL_SCOPE_SEND,
        [MAIL_USE_ADMIN] = MAIL_SCOPE_ADMIN,
    };

    if (caller->kind == MAIL_CALLER_OPERATOR)
        return use == MAIL_USE_ADMIN ||
               err_set(err, ERR_DENIED, "the admin token reads and sends no mail: use a key of the inbox");
    return mail_need_scope(caller, needed[use], err);
}

/* As for an inbox of others: the time that it takes must not tell whether there is one. Sets the error. */
static bool box_of_nobody(const struct actions *actions, const struct mail_caller *caller, enum mail_use use,
                          struct arena *arena, struct err *err)
{
    struct mail_inbox_row nobody = { .id = STR("-") };
    struct mail_reader reader;

    return err->kind == ERR_NOT_FOUND && (use == MAIL_USE_LIST || use == MAIL_USE_READ) &&
           mail_grant_reader(actions, caller, &nobody, MAIL_GRANT_LIST, arena, &reader, err) && mail_no_such(err);
}

static bool box_open(const struct actions *actions, const struct mail_caller *caller, const struct mail_inbox_row *row,
                     enum mail_use use, struct arena *arena, struct mail_box *out, struct err *err)
{
    if (caller->kind == MAIL_CALLER_OPERATOR)
        return row->deleted_us ? mail_no_such(err) : box_fill(actions, row, arena, out, err);
    if (!is_own(caller, row)) {
        unsigned verb = use == MAIL_USE_LIST ? MAIL_GRANT_LIST : use == MAIL_USE_READ ? MAIL_GRANT_READ : 0;
        struct mail_reader reader;
        if (!verb || row->deleted_us || !mail_grant_reader(actions, caller, row, verb, arena, &reader, err))
            return verb && !row->deleted_us ? false : mail_no_such(err);
        bool ok = box_fill(actions, row, arena, out, err);
        if (ok) {
            out->can_read = true;
            out->reader = reader;
            out->grant_actor = reader.grant;
        }
        seal_key_wipe(&reader.kek);
        return ok;
    }
    if (actions->mail->strict_inbox_keys && use != MAIL_USE_ADMIN && is_by_account(caller, row) &&
        !mail_is_sandbox_account(caller))
        return err_set(err, ERR_DENIED,
                       "this server wants each inbox's own token for reading and sending: the one that was returned "
                       "when the inbox was created");
    if (!box_fill(actions, row, arena, out, err))
        return false;
    out->can_read = mail_reader_of(caller, arena, &out->reader);
    if (!out->can_read && (use == MAIL_USE_LIST || use == MAIL_USE_READ))
        return err_set(err, ERR_DENIED, "this sandbox reads the inbox only with the inbox's key: send it along");
    if (out->can_read && row->grants_wait)
        mail_grants_settle(actions, row, &out->reader);
    return true;
}

bool mail_box_for(const struct actions *actions, const struct mail_caller *caller, struct str ref, enum mail_use use,
                  struct arena *arena, struct mail_box *out, struct err *err)
{
    struct mail_inbox_row row;

    if (!mail_is_on(actions, err) || !use_allowed(caller, use, err))
        return false;
    if (ref.len == 0)
        return only_row(actions, caller, arena, &row, err) && box_open(actions, caller, &row, use, arena, out, err);
    if (!mail_row_by_ref(actions, ref, arena, &row, err))
        return box_of_nobody(actions, caller, use, arena, err);
    return box_open(actions, caller, &row, use, arena, out, err);
}

bool mail_box_of_message(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         struct str message_id, enum mail_use use, struct arena *arena, struct mail_box *out,
                         struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct mail_inbox_row row, named;

    if (!mail_is_on(actions, err) || !use_allowed(caller, use, err))
        return false;
    if (!mail_message_id_handle(message_id, handle))
        return mail_no_such(err);
    if (!store_mail_inbox_by_handle(actions->store, str_from(handle), arena, &row, err)) {
        if (err->kind == ERR_NOT_FOUND)
            (void)mail_no_such(err);
        return box_of_nobody(actions, caller, use, arena, err);
    }
    if (ref.len && (!mail_row_by_ref(actions, ref, arena, &named, err) || !str_eq(named.id, row.id)))
        return mail_no_such(err);
    return box_open(actions, caller, &row, use, arena, out, err);
}

static bool box_of_row(const struct actions *actions, bool found, const struct mail_inbox_row *row, struct arena *arena,
                       struct mail_box *out, struct err *err)
{
    if (!found)
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    return row->deleted_us ? mail_no_such(err) : box_fill(actions, row, arena, out, err);
}

bool mail_box_by_id(const struct actions *actions, struct str id, struct arena *arena, struct mail_box *out,
                    struct err *err)
{
    struct mail_inbox_row row;

    return mail_is_on(actions, err) &&
           box_of_row(actions, store_mail_inbox_get(actions->store, id, arena, &row, err), &row, arena, out, err);
}

bool mail_box_by_handle(const struct actions *actions, struct str handle, struct arena *arena, struct mail_box *out,
                        struct err *err)
{
    struct mail_inbox_row row;

    return mail_is_on(actions, err) &&
           box_of_row(actions, store_mail_inbox_by_handle(actions->store, handle, arena, &row, err), &row, arena, out,
                      err);
}

bool mail_box_by_address(const struct actions *actions, struct str address, struct arena *arena, struct mail_box *out,
                         struct err *err)
{
    struct mail_inbox_row row;
    char hash[65];

    if (!mail_is_on(actions, err))
        return false;
    if (!mail_address_hash(actions, address, hash))
        return mail_no_such(err);
    return box_of_row(actions, store_mail_inbox_by_address(actions->store, str_from(hash), arena, &row, err), &row,
                      arena, out, err);
}

/* ---- timers and counts ---- */

bool mail_row_dirty(const struct actions *actions, const char *inbox_id, struct err *err)
{
    return store_mail_inbox_dirty(actions->store, str_from(inbox_id), err);
}

bool mail_row_idle(const struct actions *actions, const char *inbox_id, const struct mail_tick *tick, struct err *err)
{
    return store_mail_inbox_idle(actions->store, str_from(inbox_id), tick->next_us, tick->pending, tick->bytes, err);
}

void mail_row_received(const struct actions *actions, const char *inbox_id, uint64_t bytes)
{
    struct err err;

    if (!store_mail_inbox_received(actions->store, str_from(inbox_id), bytes, &err))
        log_warn("inbox %s: cannot count a message: %s", inbox_id, err_text(&err));
}

/* ---- room ---- */

static bool disk_has_room(const struct actions *actions, const struct mail_room *tenant, const struct mail_room *all,
                          struct err *err)
{
    uint64_t most = actions->mail->disk_bytes;

    if (!most || (all->bytes < most && tenant->bytes < most / 2))
        return true;
    return err_set(err, ERR_LIMIT,
                   "%s has no room for more mail: delete inboxes, whose files go after a week, or have the operator "
                   "start it with a larger --mail-disk",
                   all->bytes < most ? "this team" : "this server");
}

bool mail_has_room(const struct actions *actions, struct str tenant_id, struct err *err)
{
    struct mail_room tenant, all;

    return store_mail_room(actions->store, tenant_id, &tenant, &all, err) && disk_has_room(actions, &tenant, &all, err);
}

bool mail_has_room_for_inbox(const struct actions *actions, struct str tenant_id, bool is_operator, struct err *err)
{
    struct mail_room tenant, all;

    if (!store_mail_room(actions->store, tenant_id, &tenant, &all, err) || !disk_has_room(actions, &tenant, &all, err))
        return false;
    if (all.inboxes >= LIMIT_MAIL_INBOXES)
        return err_set(err, ERR_LIMIT,
                       "this server has %u inboxes, the most that it may have: delete some; deleted ones count for a "
                       "week",
                       all.inboxes);
    return is_operator || tenant.inboxes < LIMIT_MAIL_TENANT_INBOXES ||
           err_set(err, ERR_LIMIT,
                   "this team has %u inboxes, the most that it may have: delete some, or end sandboxes; deleted ones "
                   "count for a week",
                   tenant.inboxes);
}

static bool due_of(const struct mail_inbox_row *rows, size_t count, struct arena *arena, struct mail_row_due **out,
                   size_t *out_count, struct err *err)
{
    struct mail_row_due *list = ARENA_ARRAY(arena, struct mail_row_due, count);

    for (size_t i = 0; i < count; i++) {
        list[i] = (struct mail_row_due){ .next_us = rows[i].next_us,
                                         .pending = rows[i].pending,
                                         .is_dirty = rows[i].is_dirty };
        if (!id_copy(rows[i].id, list[i].id, err))
            return false;
    }
    *out = list;
    *out_count = count;
    return true;
}

bool mail_rows_due(const struct actions *actions, int64_t now_us, bool dirty, uint32_t limit, struct arena *arena,
                   struct mail_row_due **out, size_t *out_count, int64_t *out_next_us, struct err *err)
{
    struct mail_inbox_row *rows;
    size_t count;

    return store_mail_inbox_due(actions->store, dirty ? MAIL_DUE_DIRTY : MAIL_DUE_TIMER, STR(""), now_us, limit, arena,
                                &rows, &count, out_next_us, err) &&
           due_of(rows, count, arena, out, out_count, err);
}

bool mail_rows_pending(const struct actions *actions, const char *tenant_id, struct arena *arena,
                       struct mail_row_due **out, size_t *out_count, struct err *err)
{
    struct mail_inbox_row *rows;
    size_t count;

    return store_mail_inbox_due(actions->store, MAIL_DUE_PENDING, str_from(tenant_id), 0, LIMIT_MAIL_PENDING_ROWS,
                                arena, &rows, &count, NULL, err) &&
           due_of(rows, count, arena, out, out_count, err);
}
