/*
 * Inboxes: made, listed, changed, deleted; their modes and allowlists.
 *
 * Making one: the file first (mail_inbox_make(), in a worker of its own), then its row together with its key. If the row
 * cannot be written, the file is removed again. The inbox's private key is wrapped under its own key and, unless
 * strict_inbox_keys is on, under the token of the account that asked.
 *
 * Modes: down is free, and pulls back what has not been approved. Up needs the operator: a code (action_inbox_request_mode()
 * and action_inbox_raise_mode()) or the admin token. A raise is written to the inbox's audit before it is done.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/random.h"

enum { RANDOM_LOCAL_CHARS = 8, UNDO_MOST_S = 3600, UPGRADES_PER_HOUR = 3 };
static const int64_t HOUR_US = INT64_C(3600) * 1000000;
static const int64_t REMOVE_AGAIN_US = 2 * 1000000;
static const int64_t KEPT_US = 7 * INT64_C(86400) * 1000000; /* a deleted inbox; also how long mail may be held */

/* ---- checks ---- */

/* Text for people, in a header of mail: no control characters. */
static bool text_check(struct str text, size_t most, const char *what, struct err *err)
{
    if (text.len > most)
        return err_set(err, ERR_INVALID, "the %s is too long: at most %zu bytes", what, most);
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.at[i] < 0x20 || text.at[i] == 0x7f)
            return err_set(err, ERR_INVALID, "the %s must not have control characters", what);
    return utf8_valid(text) || err_set(err, ERR_INVALID, "the %s must be UTF-8", what);
}

/* Several lines are fine. */
static bool signature_check(struct str text, struct err *err)
{
    if (text.len > LIMIT_MAIL_SIGNATURE_BYTES)
        return err_set(err, ERR_INVALID, "the signature is too long: at most %d bytes", LIMIT_MAIL_SIGNATURE_BYTES);
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.at[i] < 0x20 && text.at[i] != '\n' && text.at[i] != '\t')
            return err_set(err, ERR_INVALID, "the signature must not have control characters");
    return utf8_valid(text) || err_set(err, ERR_INVALID, "the signature must be UTF-8");
}

static bool copy_check(struct str address, const char *what, struct err *err)
{
    return address.len == 0 || (mail_allow_valid(address) && address.at[0] != '*') ||
           err_set(err, ERR_INVALID, "%s must be one address like name@example.com", what);
}

/* The local part of a new address, in lower case. Empty: a random one. */
static bool local_of(const struct actions *actions, struct str wanted, struct arena *arena, struct str *out,
                     struct err *err)
{
    char fresh[sizeof "inbox-" + RANDOM_LOCAL_CHARS] = "inbox-";
    struct str local = wanted, domain;

    if (wanted.len == 0) {
        random_id(fresh + sizeof "inbox-" - 1, RANDOM_LOCAL_CHARS);
        *out = arena_copy(arena, str_from(fresh));
        return true;
    }
    if (str_has_char(wanted, '@')) {
        domain = wanted;
        if (!str_cut(&domain, '@', &local) || !str_eq_nocase(domain, str_from(actions->mail->domain)))
            return err_set(err, ERR_INVALID, "addresses of this server end in @%s", actions->mail->domain);
    }
    if (local.len > MAIL_LOCAL_MOST)
        return err_set(err, ERR_INVALID, "the part before the @ has at most %d characters", MAIL_LOCAL_MOST);
    char *lower = arena_text(arena, local);
    text_lower(lower, local.len);
    local = str_of(lower, local.len);
    if (mail_local_reserved(local))
        return err_set(err, ERR_INVALID, "the address '%.*s' is reserved: choose another one", STR_ARG(local));
    if (!mail_local_valid(local))
        return err_set(err, ERR_INVALID,
                       "the part before the @ has %d to %d letters, digits, dots, - and _, and begins and ends with a "
                       "letter or digit",
                       MAIL_LOCAL_LEAST, MAIL_LOCAL_MOST);
    *out = local;
    return true;
}

static bool is_free(const struct actions *actions, struct str local, struct arena *arena, char out_hash[65],
                    struct err *err)
{
    struct mail_inbox_row row;

    if (!mail_address_hash(actions, arena_format(arena, "%.*s@%s", STR_ARG(local), actions->mail->domain), out_hash))
        return err_set(err, ERR_INVALID, "the part before the @ is not one that this server gives out");
    if (store_mail_inbox_by_address(actions->store, str_from(out_hash), arena, &row, err))
        return err_set(err, ERR_CONFLICT, "the address is taken: choose another one (dots do not count)");
    return err->kind == ERR_NOT_FOUND;
}

/* ---- making one ---- */

struct making {
    const struct mail_tenant_row *tenant;
    struct str account_id, local, display_name, sandbox_id, key_name, actor;
    enum mail_mode mode;
    uint32_t scopes; /* of its key */
    bool is_lobster, by_operator;
    const struct mail_reader *creator; /* also reads; NULL: nobody else */
    struct mail_inbox_most most;
};

/* The file is there; now its rows, or neither. */
static bool make_rows(const struct actions *actions, const struct making *making, const char *id, const char *hash,
                      const struct seal_key *public_key, struct mail_key_row *key, const struct secret *text,
                      struct arena *arena, struct mail_inbox_row *out, struct mail_sandbox_row *out_sandbox,
                      struct err *err)
{
    struct mail_profile profile = { .local = making->local,
                                    .display_name = making->display_name,
                                    .scheduling_enabled = true };
    struct mail_inbox_row row = {
        .id = arena_copy(arena, str_from(id)),
        .tenant_id = making->tenant->id,
        .account_id = making->account_id,
        .address_hash = arena_copy(arena, str_from(hash)),
        .public_key = arena_copy(arena, str_of(public_key->bytes, sizeof public_key->bytes)),
        .mode = making->mode,
        .created_us = clock_wall_us(),
    };
    struct mail_sandbox_row sandbox = { .sandbox_id = making->sandbox_id, .inbox_id = row.id, .key_id = key->id };

    row.profile = mail_profile_lock(actions, row.id, &profile, arena);
    key->tenant_id = row.tenant_id;
    key->inbox_id = row.id;
    key->scopes = making->scopes;
    key->is_lobster = making->is_lobster;
    key->is_own = true;
    if (making->sandbox_id.len)
        sandbox.credential = mail_encrypt(actions, secret_reveal(text),
                                          arena_format(arena, "sandbox:%.*s", STR_ARG(making->sandbox_id)), arena);
    if (!store_mail_inbox_add(actions->store, &row, &making->most, key, making->sandbox_id.len ? &sandbox : NULL, err))
        return false;
    *out = row;
    *out_sandbox = sandbox;
    return true;
}

static bool make(const struct actions *actions, const struct making *making, const struct secret *text,
                 struct arena *arena, struct mail_inbox_row *out, struct mail_sandbox_row *out_sandbox, struct err *err)
{
    struct mail_reader readers[2] = { 0 };
    char id[MAIL_INBOX_ID_BYTES], hash[65];
    struct seal_key public_key;
    struct mail_key_row key;

    if (!is_free(actions, making->local, arena, hash, err) ||
        !mail_has_room_for_inbox(actions, making->tenant->id, making->by_operator, err))
        return false;
    mail_ulid(id);
    mail_key_row_of(actions, text, making->key_name, arena, &key);
    readers[0].key_id = arena_text(arena, key.id);
    seal_derive(secret_reveal(text), "inbox", &readers[0].kek);
    if (making->creator)
        readers[1] = *making->creator;
    struct mail_inbox_new want = {
        .inbox_id = id,
        .readers = readers,
        .reader_count = making->creator ? 2 : 1,
        .actor = making->actor,
        .is_temporary = making->sandbox_id.len || making->most.of_sandbox,
    };
    bool made = mail_inbox_make(actions->mail->mail, &want, &public_key, err);
    seal_key_wipe(&readers[0].kek);
    seal_key_wipe(&readers[1].kek);
    if (!made)
        return err_wrap(err, "make inbox %s", id);
    if (!make_rows(actions, making, id, hash, &public_key, &key, text, arena, out, out_sandbox, err)) {
        struct err why;
        if (!mail_inbox_unmake(actions->mail->mail, id, &why))
            log_warn("inbox %s: cannot remove the file of an inbox that was not made: %s", id, err_text(&why));
        return false;
    }
    log_info("inbox %s: made in tenant %.*s by %.*s", id, STR_ARG(making->tenant->name), STR_ARG(making->actor));
    mail_tell(actions, MAIL_EVENT_INBOX_CREATED, id, "");
    return true;
}

/* Sandboxes' first uses take turns by their id, so that two at once make one inbox. */
static pthread_mutex_t first_use[16] = { [0 ... 15] = PTHREAD_MUTEX_INITIALIZER };

bool mail_sandbox_inbox(const struct actions *actions, struct str sandbox_id, const struct mail_tenant_row *tenant,
                        struct arena *arena, struct mail_sandbox_row *out, struct err *err)
{
    unsigned turn = 0;
    auto_wipe struct secret text = { 0 };
    struct mail_inbox_row row;

    for (size_t i = 0; i < sandbox_id.len; i++)
        turn = turn * 31 + (unsigned char)sandbox_id.at[i];
    auto_unlock pthread_mutex_t *held = lock_mutex(&first_use[turn % 16]);
    if (store_mail_sandbox_get(actions->store, sandbox_id, arena, out, err))
        return true;
    if (err->kind != ERR_NOT_FOUND)
        return false;
    struct making making = {
        .tenant = tenant,
        .sandbox_id = sandbox_id,
        .key_name = STR("sandbox"),
        .actor = arena_format(arena, "sandbox:%.*s", STR_ARG(sandbox_id)),
        .mode = MAIL_GATED_SEND,
        .scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND,
    };
    mail_key_text(false, &text);
    return local_of(actions, STR(""), arena, &making.local, err) &&
           make(actions, &making, &text, arena, &row, out, err);
}

bool mail_first_inbox(const struct actions *actions, const struct mail_tenant_row *tenant, struct str account_id,
                      const struct secret *key, const struct mail_reader *account, struct arena *arena, struct err *err)
{
    struct making making = {
        .tenant = tenant,
        .account_id = account_id,
        .local = STR("agent"),
        .key_name = STR("first key"),
        .actor = STR("server"),
        .by_operator = true,
        .mode = MAIL_GATED_SEND,
        .scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN,
        .creator = account,
    };
    struct mail_sandbox_row no_sandbox;
    struct mail_inbox_row row;

    if (make(actions, &making, key, arena, &row, &no_sandbox, err))
        return true;
    /* The address is an earlier first inbox's, whose key was lost. */
    return err->kind == ERR_CONFLICT && local_of(actions, STR(""), arena, &making.local, err) &&
           make(actions, &making, key, arena, &row, &no_sandbox, err);
}

/* A MultiMail key becomes the principal of the inboxes that it creates. */
static bool account_of(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                       struct str *out, struct err *err)
{
    char id[MAIL_INBOX_ID_BYTES];

    if (caller->account_id[0]) {
        *out = str_from(caller->account_id);
        return true;
    }
    mail_ulid(id);
    *out = arena_copy(arena, str_from(id));
    return store_mail_key_give_account(actions->store, str_from(caller->key_id), *out, err);
}

static bool may_create(const struct mail_caller *caller, struct err *err)
{
    if (caller->kind == MAIL_CALLER_OPERATOR)
        return true;
    if (caller->kind == MAIL_CALLER_SANDBOX && !caller->scopes)
        return err_set(err, ERR_DENIED, "a sandbox without a key has one inbox");
    /* Nobody is asked for LobsterMail's inboxes, so the account's limit must hold for what its inboxes do, too. */
    if (caller->is_lobster && caller->inbox_id[0] && !mail_is_sandbox_account(caller))
        return err_set(err, ERR_DENIED, "an inbox's own token makes no inboxes: use the account's token");
    return mail_need_scope(caller, MAIL_SCOPE_ADMIN, err);
}

static bool create_consent(const struct actions *actions, const struct mail_caller *caller, struct str tenant_id,
                           const struct inbox_want *want, const struct making *making, struct arena *arena,
                           bool *out_pending, struct err *err)
{
    const struct str parts[] = { want->local.len ? making->local : STR(""), want->display_name,
                                 str_from(mail_mode_name[making->mode]) };
    struct mail_asked asked = {
        .action = "inbox.create",
        .tenant_id = tenant_id,
        .inbox_id = str_from(caller->inbox_id),
        .parts = parts,
        .part_count = COUNT_OF(parts),
        .what = arena_format(arena, "create the inbox %.*s@%s", STR_ARG(making->local), actions->mail->domain),
    };

    *out_pending = false;
    return caller->is_lobster ||
           mail_consent(actions, caller, &asked, want->approval_code, arena, out_pending, NULL, err);
}

/* The number of inboxes is checked before a code is asked for, and again when the row is written. */
static bool below_limit(const struct actions *actions, const struct mail_caller *caller, struct err *err)
{
    bool of_sandbox = mail_is_sandbox_account(caller);
    uint32_t count;

    if (caller->kind == MAIL_CALLER_OPERATOR)
        return true;
    if (!store_mail_inbox_count(actions->store, str_from(caller->account_id), of_sandbox, &count, err))
        return false;
    if (of_sandbox)
        return count < LIMIT_MAIL_SANDBOX_MORE ||
               err_set(err, ERR_LIMIT, "this sandbox has made %u inboxes, the most that it may make in its life",
                       count);
    return count < actions->mail->inboxes_most ||
           err_set(err, ERR_LIMIT, "this account has %u inboxes already, the most that it may have: delete one first",
                   count);
}

/* Of two at once that make the same tenant, both may say so. */
static bool tenant_for(const struct actions *actions, struct str name, struct arena *arena, struct mail_tenant_row *out,
                       bool *out_made, struct err *err)
{
    bool was_there = store_mail_tenant_get(actions->store, STR(""), name, arena, out, err);

    if (!was_there && (err->kind != ERR_NOT_FOUND || !mail_tenant_ensure(actions, name, arena, out, err)))
        return false;
    *out_made = !was_there && name.len > 0;
    return true;
}

bool action_inbox_create(const struct actions *actions, const struct mail_caller *caller, const struct inbox_want *want,
                         struct arena *arena, struct inbox_info *out, struct secret *out_key, bool *out_pending,
                         struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    enum mail_mode mode = want->mode < 0 ? MAIL_GATED_SEND : (enum mail_mode)want->mode;
    auto_wipe struct secret text = { 0 };
    struct mail_sandbox_row no_sandbox;
    struct mail_tenant_row tenant;
    struct mail_reader creator = { 0 };
    struct mail_inbox_row row;
    bool made_tenant = false;
    struct str local;
    char hash[65];

    if (!mail_is_on(actions, err) || !may_create(caller, err) ||
        !text_check(want->display_name, LIMIT_NAME_BYTES, "display name", err))
        return false;
    if (want->tenant.len && !is_operator)
        return err_set(err, ERR_DENIED, "only the operator chooses the tenant");
    /* Before the tenant: an address that is refused must not leave a new one behind. */
    if (!local_of(actions, want->local, arena, &local, err) || !is_free(actions, local, arena, hash, err) ||
        !(is_operator
              ? tenant_for(actions, want->tenant, arena, &tenant, &made_tenant, err)
              : store_mail_tenant_get(actions->store, str_from(caller->tenant_id), STR(""), arena, &tenant, err)))
        return false;
    struct making making = {
        .local = local,
        .tenant = &tenant,
        .display_name = want->display_name,
        .key_name = STR("own key"),
        .actor = str_from(caller->actor),
        .mode = MIN(mode, MAIL_GATED_SEND), /* a looser one only by the operator's code, later */
        .scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN,
        .is_lobster = caller->is_lobster,
        .by_operator = is_operator,
    };
    making.most.of_sandbox = mail_is_sandbox_account(caller);
    if (!is_operator)
        making.most.account = making.most.of_sandbox ? LIMIT_MAIL_SANDBOX_MORE : actions->mail->inboxes_most;
    if (!below_limit(actions, caller, err) ||
        !create_consent(actions, caller, tenant.id, want, &making, arena, out_pending, err))
        return false;
    if (*out_pending)
        return true;
    if (!is_operator && !account_of(actions, caller, arena, &making.account_id, err))
        return false;
    if ((!actions->mail->strict_inbox_keys || making.most.of_sandbox) && mail_reader_of(caller, arena, &creator))
        making.creator = &creator;
    mail_key_text(caller->is_lobster, &text);
    bool ok = make(actions, &making, &text, arena, &row, &no_sandbox, err) &&
              mail_info_of(actions, &row, tenant.name, arena, out, err);
    seal_key_wipe(&creator.kek);
    if (ok) {
        /* A sandbox gets none: its memory may be copied, and the key would work in the copy and outside. */
        if (!making.most.of_sandbox)
            *out_key = text;
        out->made_tenant = made_tenant;
    }
    return ok;
}

/* ---- looking ---- */

static bool info_of(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena,
                    struct inbox_info *out, struct err *err)
{
    struct mail_tenant_row tenant;

    return store_mail_tenant_get(actions->store, row->tenant_id, STR(""), arena, &tenant, err) &&
           mail_info_of(actions, row, tenant.name, arena, out, err);
}

bool action_inbox_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                       struct inbox_info **out, size_t *out_count, struct err *err)
{
    struct mail_tenant_row tenant = { 0 };
    struct mail_inbox_row *rows;
    size_t count;

    if (!mail_rows_of(actions, caller, arena, &rows, &count, err))
        return false;
    struct inbox_info *list = ARENA_ARRAY(arena, struct inbox_info, count);
    size_t listed = 0;
    for (size_t i = 0; i < count; i++) {
        if (!str_eq(rows[i].tenant_id, tenant.id) &&
            !store_mail_tenant_get(actions->store, rows[i].tenant_id, STR(""), arena, &tenant, err))
            return err_wrap(err, "list inboxes");
        if (mail_info_of(actions, &rows[i], tenant.name, arena, &list[listed], err))
            listed++;
        else if (err->kind ==
                 ERR_INTERNAL) /* one that another server has made, with a key of its own, or a damaged one */
            log_warn("mail: an inbox is left out of the list, the others are in it: %s", err_text(err));
        else
            return err_wrap(err, "list inboxes");
    }
    *out = list;
    *out_count = listed;
    return true;
}

bool action_inbox_get(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                      struct arena *arena, struct inbox_info *out, struct err *err)
{
    struct mail_inbox_row row;

    return mail_row_for(actions, caller, ref, arena, &row, err) && info_of(actions, &row, arena, out, err);
}

/* ---- modes ---- */

static bool approver_public(const struct actions *actions, struct str tenant_id, struct arena *arena,
                            struct seal_key *out, struct err *err)
{
    struct mail_tenant_row tenant;

    if (!store_mail_tenant_get(actions->store, tenant_id, STR(""), arena, &tenant, err))
        return false;
    if (tenant.approver_public.len != sizeof out->bytes)
        return err_set(err, ERR_INTERNAL, "a key in mail's rows is damaged");
    memcpy(out->bytes, tenant.approver_public.at, sizeof out->bytes);
    return true;
}

static struct str mode_detail(enum mail_mode from, enum mail_mode to, struct arena *arena)
{
    return arena_format(arena, "{\"from\":\"%s\",\"to\":\"%s\"}", mail_mode_name[from], mail_mode_name[to]);
}

/* From here on the gate judges by the new mode; what it would have let go comes back. */
static bool mode_lower(const struct actions *actions, const struct mail_caller *caller,
                       const struct mail_inbox_row *row, enum mail_mode to, struct arena *arena, struct err *err)
{
    char *id = arena_text(arena, row->id);
    struct busy_inbox *busy;
    struct seal_key approvers;
    uint32_t pulled = 0;

    if (!approver_public(actions, row->tenant_id, arena, &approvers, err) ||
        !store_mail_inbox_mode(actions->store, row->id, row->mode, to, err))
        return false;
    mail_note(actions, row->id, "mode.lower", row->id, caller, mode_detail((enum mail_mode)row->mode, to, arena));
    if (!busy_begin(actions, id, &busy, err))
        return err_wrap(err, "inbox %s is %s now, but what waits to leave was not pulled back", id, mail_mode_name[to]);
    bool ok = mail_pull_back(actions->mail->mail, id, to, &approvers, str_from(caller->actor), &pulled, err);
    busy_dispatch(actions, busy, NULL, NULL);
    busy_end(actions, busy, 0);
    if (!ok)
        return err_wrap(err, "inbox %s is %s now, but what waits to leave was not pulled back", id, mail_mode_name[to]);
    log_info("inbox %s: %s -> %s by %s; %u message(s) pulled back", id, mail_mode_name[row->mode], mail_mode_name[to],
             caller->actor, pulled);
    return true;
}

static bool mode_raise(const struct actions *actions, const struct mail_caller *caller,
                       const struct mail_inbox_row *row, enum mail_mode to, struct arena *arena, struct err *err)
{
    struct str detail = mode_detail((enum mail_mode)row->mode, to, arena);

    /* The audit first: no inbox has more freedom than its audit says. */
    if (!mail_audit_add(actions->mail->mail, arena_text(arena, row->id), STR("mode.raise"), row->id,
                        str_from(caller->actor), detail, err) ||
        !store_mail_inbox_mode(actions->store, row->id, row->mode, to, err))
        return false;
    log_info("inbox %.*s: %s -> %s by %s", STR_ARG(row->id), mail_mode_name[row->mode], mail_mode_name[to],
             caller->actor);
    return true;
}

static struct mail_asked mode_asked(const struct mail_inbox_row *row)
{
    /* One for each inbox: a new request takes the place of the one before. Which mode it was is in the row of the code. */
    return (struct mail_asked){
        .action = "mode.raise", .tenant_id = row->tenant_id, .inbox_id = row->id, .by_any_key = true
    };
}

bool action_inbox_request_mode(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                               enum mail_mode mode, struct arena *arena, struct err *err)
{
    struct mail_inbox_row row;
    struct inbox_info info;
    uint32_t retry_s;
    bool pending;

    if (!mail_is_on(actions, err) || !mail_need_key(caller, err) || !mail_need_scope(caller, MAIL_SCOPE_SEND, err) ||
        !mail_row_for(actions, caller, ref, arena, &row, err) || !info_of(actions, &row, arena, &info, err))
        return false;
    if ((unsigned)mode >= MAIL_MODE_COUNT || mode <= info.mode)
        return err_set(err, ERR_INVALID, "the inbox is in mode %s: ask for a higher one", mail_mode_name[info.mode]);
    if (!store_mail_rate(actions->store, "mode", row.id, UPGRADES_PER_HOUR, HOUR_US, &retry_s, err))
        return err_wrap(err, "ask for a mode");
    struct mail_asked asked = mode_asked(&row);
    asked.what = arena_format(arena, "raise %.*s from %s to %s", STR_ARG(info.address), mail_mode_name[info.mode],
                              mail_mode_name[mode]);
    asked.target = mode;
    if (!mail_consent(actions, caller, &asked, STR(""), arena, &pending, NULL, err))
        return false;
    mail_note(actions, row.id, "mode.request", row.id, caller, mode_detail(info.mode, mode, arena));
    return true;
}

bool action_inbox_raise_mode(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                             struct str code, int mode, struct arena *arena, struct inbox_info *out, struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR, pending;
    int64_t target = mode;
    struct mail_inbox_row row;

    if (!mail_is_on(actions, err) || !mail_need_key(caller, err) ||
        !(is_operator || mail_need_scope(caller, MAIL_SCOPE_SEND, err)) ||
        !mail_row_for(actions, caller, ref, arena, &row, err))
        return false;
    struct mail_asked asked = mode_asked(&row);
    if (!is_operator) {
        if (code.len == 0)
            return err_set(err, ERR_DENIED, "raising the mode needs the operator's code: ask for it first");
        if (!mail_consent(actions, caller, &asked, code, arena, &pending, &target, err))
            return false;
    }
    if (target < 0 || target >= MAIL_MODE_COUNT)
        return err_set(err, ERR_INVALID, "that is not a mode: %s, %s, %s, %s or %s", mail_mode_name[0],
                       mail_mode_name[1], mail_mode_name[2], mail_mode_name[3], mail_mode_name[4]);
    enum mail_mode to = (enum mail_mode)target;
    if (to != row.mode && !(to < row.mode ? mode_lower(actions, caller, &row, to, arena, err)
                                          : mode_raise(actions, caller, &row, to, arena, err)))
        return false;
    row.mode = to;
    return info_of(actions, &row, arena, out, err);
}

/* ---- changing and deleting ---- */

static bool change_check(const struct mail_caller *caller, const struct mail_inbox_row *row,
                         const struct mail_profile *now, const struct inbox_change *change, struct err *err)
{
    if (change->mode >= MAIL_MODE_COUNT)
        return err_set(err, ERR_INVALID, "that is not a mode");
    if (change->mode >= 0 && !mail_mode_may_change((enum mail_mode)row->mode, (enum mail_mode)change->mode,
                                                   caller->kind == MAIL_CALLER_OPERATOR))
        return err_set(err, ERR_DENIED,
                       "the mode goes up only with the operator's code: request an upgrade, then apply the code");
    if (change->undo_s > UNDO_MOST_S)
        return err_set(err, ERR_INVALID, "an undo window has at most %d seconds", UNDO_MOST_S);
    if (change->undo_s >= 0 && (uint32_t)change->undo_s < now->undo_s && caller->kind != MAIL_CALLER_OPERATOR)
        return err_set(err, ERR_DENIED, "only the operator makes the undo window shorter");
    return (!change->display_name || text_check(*change->display_name, LIMIT_NAME_BYTES, "display name", err)) &&
           (!change->signature || signature_check(*change->signature, err)) &&
           (!change->auto_cc || copy_check(*change->auto_cc, "auto_cc", err)) &&
           (!change->auto_bcc || copy_check(*change->auto_bcc, "auto_bcc", err));
}

static void flag_change(bool *flag, int want)
{
    if (want >= 0)
        *flag = want != 0;
}

static void profile_change(struct mail_profile *profile, const struct inbox_change *change)
{
    if (change->display_name)
        profile->display_name = *change->display_name;
    if (change->signature)
        profile->signature = *change->signature;
    if (change->auto_cc)
        profile->auto_cc = *change->auto_cc;
    if (change->auto_bcc)
        profile->auto_bcc = *change->auto_bcc;
    if (change->undo_s >= 0)
        profile->undo_s = (uint32_t)change->undo_s;
    flag_change(&profile->schedule_first, change->schedule_first);
    flag_change(&profile->scheduling_enabled, change->scheduling_enabled);
    flag_change(&profile->forward_inbound, change->forward_inbound);
    flag_change(&profile->mcp_configured, change->mcp_configured);
    flag_change(&profile->auto_extract, change->auto_extract);
}

static bool only_mode(const struct inbox_change *change)
{
    return !change->display_name && !change->signature && !change->auto_cc && !change->auto_bcc && change->undo_s < 0 &&
           change->schedule_first < 0 && change->scheduling_enabled < 0 && change->forward_inbound < 0 &&
           change->mcp_configured < 0 && change->auto_extract < 0;
}

/* Who gets copies of everything is the operator's business. */
static bool copies_consent(const struct actions *actions, const struct mail_caller *caller,
                           const struct mail_inbox_row *row, const struct mail_profile *now,
                           const struct inbox_change *change, struct arena *arena, bool *out_pending, struct err *err)
{
    struct str cc = change->auto_cc ? *change->auto_cc : now->auto_cc;
    struct str bcc = change->auto_bcc ? *change->auto_bcc : now->auto_bcc;
    const struct str parts[] = { cc, bcc };
    struct mail_asked asked = {
        .action = "inbox.copies",
        .tenant_id = row->tenant_id,
        .inbox_id = row->id,
        .parts = parts,
        .part_count = COUNT_OF(parts),
        .what = arena_format(arena, "copies of all mail of %.*s@%s: cc '%.*s', bcc '%.*s'", STR_ARG(now->local),
                             actions->mail->domain, STR_ARG(cc), STR_ARG(bcc)),
    };

    *out_pending = false;
    if (str_eq(cc, now->auto_cc) && str_eq(bcc, now->auto_bcc))
        return true;
    return mail_consent(actions, caller, &asked, change->approval_code, arena, out_pending, NULL, err);
}

bool action_inbox_update(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         const struct inbox_change *change, struct arena *arena, struct inbox_info *out,
                         bool *out_pending, struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct mail_profile profile;
    struct mail_inbox_row row;

    /* An agent may always lower its own mode; the rest is an administrator's. */
    if (!mail_is_on(actions, err) || !mail_need_key(caller, err) ||
        !(is_operator || mail_need_scope(caller, only_mode(change) ? MAIL_SCOPE_SEND : MAIL_SCOPE_ADMIN, err)) ||
        !mail_row_for(actions, caller, ref, arena, &row, err) ||
        !mail_profile_open(actions, &row, arena, &profile, err) || !change_check(caller, &row, &profile, change, err) ||
        !copies_consent(actions, caller, &row, &profile, change, arena, out_pending, err))
        return false;
    if (*out_pending)
        return true;
    if (change->mode >= 0 && (uint32_t)change->mode < row.mode &&
        !mode_lower(actions, caller, &row, (enum mail_mode)change->mode, arena, err))
        return false;
    if (change->mode >= 0 && (uint32_t)change->mode > row.mode &&
        !mode_raise(actions, caller, &row, (enum mail_mode)change->mode, arena, err))
        return false;
    if (change->mode >= 0)
        row.mode = (uint32_t)change->mode;
    if (!only_mode(change)) {
        profile_change(&profile, change);
        row.profile = mail_profile_lock(actions, row.id, &profile, arena);
        if (!store_mail_inbox_profile(actions->store, row.id, row.profile, err))
            return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
        mail_note(actions, row.id, "inbox.update", row.id, caller, STR("{}"));
    }
    return info_of(actions, &row, arena, out, err);
}

/* While nothing leaves. What waits to leave goes nowhere; if that fails the inbox stays, in its mode. */
static bool delete_stopped(const struct actions *actions, const struct mail_caller *caller,
                           const struct mail_inbox_row *row, const struct seal_key *approvers, struct arena *arena,
                           struct err *err)
{
    uint32_t pulled;

    if (!mail_pull_back(actions->mail->mail, arena_text(arena, row->id), MAIL_READ_ONLY, approvers,
                        str_from(caller->actor), &pulled, err)) {
        /* The operator gets rid of a damaged one, too: nothing is dispatched from an inbox that is deleted. */
        if (caller->kind != MAIL_CALLER_OPERATOR || err->kind != ERR_INTERNAL)
            return err_wrap(err, "delete inbox %.*s", STR_ARG(row->id));
        log_warn("inbox %.*s: is deleted although its file does not work: %s", STR_ARG(row->id), err_text(err));
    }
    mail_note(actions, row->id, "inbox.delete", row->id, caller, STR("{}"));
    if (!store_mail_inbox_delete(actions->store, row->id, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    log_info("inbox %.*s: deleted by %s; its file is shredded in a week", STR_ARG(row->id), caller->actor);
    return true;
}

bool action_inbox_delete(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         struct arena *arena, struct err *err)
{
    struct mail_inbox_row row;
    struct busy_inbox *busy;
    struct seal_key approvers;

    if (!mail_is_on(actions, err) ||
        !(caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)) ||
        !mail_row_for(actions, caller, ref, arena, &row, err))
        return false;
    if (mail_is_sandbox_account(caller) && str_eq(row.id, str_from(caller->inbox_id)))
        return err_set(err, ERR_DENIED, "a sandbox's own inbox is its account, and ends with the sandbox");
    if (!approver_public(actions, row.tenant_id, arena, &approvers, err) ||
        !busy_begin(actions, arena_text(arena, row.id), &busy, err))
        return false;
    busy_stop(busy);
    bool ok = delete_stopped(actions, caller, &row, &approvers, arena, err);
    busy_go(busy);
    busy_end(actions, busy, 0);
    return ok;
}

/* ---- what is over ---- */

/* The file does not work, and will hardly do so by itself. It must not take the place of others in each sweep for ever. */
static void shred_failed(const struct actions *actions, const struct mail_inbox_row *row, const struct err *why)
{
    struct err err;

    if (!store_mail_inbox_shred_failed(actions->store, row->id, &err))
        log_warn("inbox %.*s: %s", STR_ARG(row->id), err_text(&err));
    else if (row->shred_tries + 1 < LIMIT_MAIL_SHRED_TRIES)
        log_info("inbox %.*s: cannot be shredded, and is tried again: %s", STR_ARG(row->id), err_text(why));
    else
        log_error(
            "inbox %.*s: deleted, but its file is damaged and could not be shredded in %d tries; no more are made. "
            "Overwrite it yourself, in the data directory: shred -u mail/%.*s/inbox.db*",
            STR_ARG(row->id), LIMIT_MAIL_SHRED_TRIES, STR_ARG(row->id));
}

static void shred(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena)
{
    struct err err;

    /* An inbox of a sandbox that has ended is deleted first: nothing waits in it, and no key is left that could read. */
    if (!row->deleted_us && !store_mail_inbox_delete(actions->store, row->id, &err) && err.kind != ERR_NOT_FOUND) {
        log_warn("inbox %.*s: cannot be deleted after its sandbox: %s", STR_ARG(row->id), err_text(&err));
        return;
    }
    bool shredded = mail_inbox_shred(actions->mail->mail, arena_text(arena, row->id), STR("server"), &err) ||
                    err.kind == ERR_NOT_FOUND;
    if (!shredded && err.kind == ERR_INTERNAL) {
        shred_failed(actions, row, &err);
        return;
    }
    if (!shredded || !store_mail_inbox_shredded(actions->store, row->id, &err)) {
        log_warn("inbox %.*s: cannot be shredded, and is tried again: %s", STR_ARG(row->id), err_text(&err));
        return;
    }
    log_info("inbox %.*s: shredded", STR_ARG(row->id));
}

void action_mail_sweep(const struct actions *actions, int64_t now_us)
{
    struct mail_inbox_row *rows;
    struct arena arena;
    struct err err;
    size_t count;

    if (!actions->mail)
        return;
    arena_init(&arena);
    if (store_mail_inbox_stale(actions->store, now_us - KEPT_US, LIMIT_MAIL_SHRED, &arena, &rows, &count, &err))
        for (size_t i = 0; i < count; i++)
            shred(actions, &rows[i], &arena);
    else
        log_warn("mail: %s", err_text(&err));
    arena_done(&arena);
    mail_grants_expire(actions, now_us);
}

/* Its held messages leave the approvers' queue. What was approved leaves as from any inbox whose sandbox has ended. */
static bool keep_ended(const struct actions *actions, const struct mail_inbox_row *row, bool is_damaged,
                       struct arena *arena, struct err *err)
{
    char *id = arena_text(arena, row->id);
    struct seal_key approvers;
    struct busy_inbox *busy;
    uint32_t withdrawn;

    if (is_damaged) { /* the sweep tries to shred it */
        if (!row->deleted_us && !store_mail_inbox_delete(actions->store, row->id, err))
            return false;
    } else if (row->account_id.len && !row->deleted_us) {
        if (!approver_public(actions, row->tenant_id, arena, &approvers, err) || !busy_begin(actions, id, &busy, err))
            return false;
        busy_stop(busy);
        bool ok = mail_withdraw(actions->mail->mail, id, &approvers, STR("server"), &withdrawn, err);
        busy_go(busy);
        busy_end(actions, busy, 0);
        if (!ok)
            return false;
    }
    return store_mail_inbox_stays(actions->store, row->id, err);
}

/* Behind the others: some that cannot be removed must not keep those from it. */
static void remove_later(const struct actions *actions, const struct mail_inbox_row *row, const struct err *why)
{
    struct err err;

    log_info("inbox %.*s: its sandbox has ended, and it cannot be removed now; it is tried again: %s", STR_ARG(row->id),
             err_text(why));
    if (!store_mail_inbox_later(actions->store, row->id, clock_wall_us() + REMOVE_AGAIN_US, &err))
        log_warn("inbox %.*s: %s", STR_ARG(row->id), err_text(&err));
}

static void remove_ended(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena)
{
    struct err err;

    if (mail_inbox_unmake(actions->mail->mail, arena_text(arena, row->id), &err)) {
        if (store_mail_inbox_removed(actions->store, row->id, &err))
            log_info("inbox %.*s: removed after its sandbox", STR_ARG(row->id));
        else
            log_warn("inbox %.*s: %s", STR_ARG(row->id), err_text(&err));
        return;
    }
    bool is_damaged = err.kind == ERR_INTERNAL;
    if ((is_damaged || err.kind == ERR_CONFLICT) && keep_ended(actions, row, is_damaged, arena, &err))
        log_info("inbox %.*s: its sandbox has ended; it is shredded in a week, its audit stays", STR_ARG(row->id));
    else
        remove_later(actions, row, &err);
}

void action_mail_ended(const struct actions *actions)
{
    struct mail_inbox_row *rows;
    struct arena arena;
    struct err err;
    uint32_t ended;
    size_t count;

    if (!actions->mail)
        return;
    arena_init(&arena);
    if (store_mail_sandbox_sweep(actions->store, &ended, &err) &&
        store_mail_inbox_ended(actions->store, LIMIT_MAIL_ENDED, &arena, &rows, &count, &err))
        for (size_t i = 0; i < count; i++)
            remove_ended(actions, &rows[i], &arena);
    else
        log_warn("mail: %s", err_text(&err));
    arena_done(&arena);
}

/* A row in any state counts, and so does a tenant, whose audit has a directory of this kind. */
static bool has_row(const struct actions *actions, struct str id, bool *out, struct err *err)
{
    struct mail_tenant_row tenant;
    struct mail_inbox_row inbox;
    struct arena arena;

    arena_init(&arena);
    bool found =
        store_mail_inbox_get(actions->store, id, &arena, &inbox, err) ||
        (err->kind == ERR_NOT_FOUND && store_mail_tenant_get(actions->store, id, STR(""), &arena, &tenant, err));
    arena_done(&arena);
    *out = found;
    return found || err->kind == ERR_NOT_FOUND;
}

/* What cannot be looked up or removed now is found again at the next start. */
static void unmake(const struct actions *actions, const char *id, struct mail_unmade *unmade)
{
    bool is_known;
    struct err err;

    if (!has_row(actions, str_from(id), &is_known, &err)) {
        log_warn("mail/%s: cannot be looked up: %s", id, err_text(&err));
    } else if (is_known) {
        return;
    } else if (mail_inbox_unmake(actions->mail->mail, id, &err)) {
        unmade->removed++;
        log_info("mail/%s: an inbox that was not finished, removed", id);
    } else {
        unmade->kept++;
        log_info("mail/%s: the store does not know it, and it stays: %s", id, err_text(&err));
    }
}

void action_mail_unmade(const struct actions *actions, struct mail_unmade *unmade)
{
    uint32_t done = unmade->removed + unmade->kept;
    uint32_t most = MIN(done + LIMIT_MAIL_SWEEP, LIMIT_MAIL_UNMADE);
    size_t end = MIN(unmade->count, unmade->next + LIMIT_MAIL_LOOKUPS);

    for (; unmade->next < end && unmade->removed + unmade->kept < most; unmade->next++)
        unmake(actions, unmade->ids[unmade->next], unmade);
    if (unmade->removed + unmade->kept >= LIMIT_MAIL_UNMADE)
        unmade->next = unmade->count; /* the rest at the next start */
    if (unmade->next == unmade->count && unmade->kept)
        log_warn(
            "mail: %u directories in mail/ belong to no inbox of the store, and stay: if the store is an older copy, "
            "restore a newer one; otherwise move them away",
            unmade->kept);
}

/* ---- allowlist ---- */

bool action_allow_list(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                       struct arena *arena, struct mail_allow **out, size_t *out_count, struct err *err)
{
    struct mail_inbox_row row;

    return mail_is_on(actions, err) &&
           (caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_READ, err)) &&
           mail_row_for(actions, caller, ref, arena, &row, err) &&
           mail_allow_list(actions->mail->mail, arena_text(arena, row.id), arena, out, out_count, err);
}

/* `verb`: "allow.add" or "allow.remove". */
static bool allow_consent(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                          const char *verb, struct str subject, struct str code, struct arena *arena,
                          struct mail_inbox_row *out, bool *out_pending, struct err *err)
{
    struct inbox_info info;

    if (!mail_is_on(actions, err) ||
        !(caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)) ||
        !mail_row_for(actions, caller, ref, arena, out, err) || !info_of(actions, out, arena, &info, err))
        return false;
    struct mail_asked asked = {
        .action = verb,
        .tenant_id = out->tenant_id,
        .inbox_id = out->id,
        .parts = &subject,
        .part_count = 1,
        .what =
            strcmp(verb, "allow.add") == 0
                ? arena_format(arena, "let %.*s send to %.*s without approval", STR_ARG(info.address), STR_ARG(subject))
                : arena_format(arena, "remove an entry from the allowlist of %.*s", STR_ARG(info.address)),
    };
    return mail_consent(actions, caller, &asked, code, arena, out_pending, NULL, err);
}

bool action_allow_add(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                      struct str pattern, struct str approval_code, struct arena *arena, struct mail_allow *out,
                      bool *out_pending, struct err *err)
{
    struct mail_inbox_row row;

    if (!mail_allow_valid(pattern))
        return err_set(err, ERR_INVALID, "an entry is an address like name@example.com, or *@example.com");
    char *lower = arena_text(arena, pattern);
    text_lower(lower, pattern.len);
    pattern = str_of(lower, pattern.len);
    if (!allow_consent(actions, caller, ref, "allow.add", pattern, approval_code, arena, &row, out_pending, err))
        return false;
    return *out_pending || mail_allow_add(actions->mail->mail, arena_text(arena, row.id), pattern,
                                          str_from(caller->actor), arena, out, err);
}

bool action_allow_remove(const struct actions *actions, const struct mail_caller *caller, struct str ref, struct str id,
                         struct str approval_code, struct arena *arena, bool *out_pending, struct err *err)
{
    struct mail_inbox_row row;

    if (!allow_consent(actions, caller, ref, "allow.remove", id, approval_code, arena, &row, out_pending, err))
        return false;
    return *out_pending ||
           mail_allow_remove(actions->mail->mail, arena_text(arena, row.id), id, str_from(caller->actor), err);
}
