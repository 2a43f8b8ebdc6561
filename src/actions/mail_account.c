/*
 * Accounts: principals that create inboxes by themselves. One is made by a sign-up from the network, if the operator allows
 * any; they are limited by the place that they come from, and are in the tenant "default". A sign-up from inside a sandbox
 * makes nothing: the sandbox's own inbox is its account, and ends with it.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/log.h"

static const int64_t HOUR_US = INT64_C(3600) * 1000000;

enum { ACCOUNT_SCOPES = MAIL_SCOPE_READ | MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN };

/* One household or host: an IPv4 address, or the first 64 bits of an IPv6 one, of which a host has as many as it likes. */
static struct str place_of(struct str place, struct arena *arena)
{
    static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
    unsigned char bytes[16];
    char text[INET6_ADDRSTRLEN];
    struct err err;

    if (!str_to_path(place, text, sizeof text, &err) || inet_pton(AF_INET6, text, bytes) != 1)
        return place;
    if (memcmp(bytes, mapped, sizeof mapped) == 0)
        return arena_format(arena, "%u.%u.%u.%u", bytes[12], bytes[13], bytes[14], bytes[15]);
    memset(bytes + 8, 0, 8);
    return arena_copy(arena, str_of(bytes, sizeof bytes));
}

static bool account_add(const struct actions *actions, const struct mail_tenant_row *tenant, struct str name,
                        const struct secret *token, struct arena *arena, struct mail_key_row *out, struct err *err)
{
    char id[MAIL_INBOX_ID_BYTES];

    mail_ulid(id);
    mail_key_row_of(actions, token, name, arena, out);
    out->tenant_id = tenant->id;
    out->account_id = arena_copy(arena, str_from(id));
    out->scopes = ACCOUNT_SCOPES;
    out->is_lobster = true;
    return store_mail_key_add(actions->store, out, err);
}

static bool sandbox_account(const struct actions *actions, struct str sandbox_id, struct arena *arena,
                            struct mail_account *out, struct secret *out_token, struct err *err)
{
    struct mail_caller caller;

    mail_sandbox_token(actions, sandbox_id, out_token);
    if (!mail_caller_by_sandbox(actions, sandbox_id, secret_reveal(out_token), &caller, err))
        return err_wrap(err, "sign up");
    bool ok = mail_is_sandbox_account(&caller)
                  ? action_account_get(actions, &caller, arena, out, err)
                  : err_set(err, ERR_DENIED,
                            "this sandbox uses the inbox in its metadata (mail.inbox), and has no account: send with "
                            "that inbox's key");
    mail_caller_wipe(&caller);
    return ok;
}

bool action_account_create(const struct actions *actions, struct str place, struct arena *arena,
                           struct mail_account *out, struct secret *out_token, uint32_t *out_retry_s, struct err *err)
{
    struct str sandbox_id = place;
    auto_wipe struct secret token = { 0 };
    struct mail_tenant_row tenant;
    struct mail_key_row key;
    char who[65];

    *out_retry_s = 0;
    if (!mail_is_on(actions, err))
        return false;
    if (str_skip(&sandbox_id, STR("sandbox:")))
        return sandbox_account(actions, sandbox_id, arena, out, out_token, err);
    if (!actions->mail->signups_per_hour)
        return err_set(
            err, ERR_DENIED,
            "this server takes no sign-ups from the network: use LOBSTERMAIL_TOKEN of `cloister env`, or have "
            "it started with --mail-signups-per-hour 15");
    mail_keyed_hash(actions, "place", place_of(place, arena), who);
    /* The place first: tries that are refused must not use up what is there for all. */
    if (!store_mail_rate(actions->store, "signup", str_from(who), actions->mail->signups_per_hour, HOUR_US, out_retry_s,
                         err) ||
        !mail_tenant_ensure(actions, STR(""), arena, &tenant, err) ||
        !store_mail_rate(actions->store, "signups", STR("all"), LIMIT_MAIL_SIGNUPS, HOUR_US, out_retry_s, err))
        return false;
    mail_key_text(true, &token);
    if (!account_add(actions, &tenant, STR("account"), &token, arena, &key, err))
        return err_wrap(err, "sign up");
    *out = (struct mail_account){
        .name = tenant.name,
        .tenant = tenant.name,
        .inbox_most = actions->mail->inboxes_most,
        .sends_per_day = actions->mail->sends_per_day,
        .created_us = clock_wall_us(),
    };
    (void)snprintf(out->id, sizeof out->id, "%.*s", STR_ARG(key.account_id));
    (void)snprintf(out->tenant_id, sizeof out->tenant_id, "%.*s", STR_ARG(tenant.id));
    *out_token = token;
    struct mail_caller anyone = { .actor = "signup" };
    mail_note(actions, tenant.id, "account.create", key.account_id, &anyone, STR("{}"));
    log_info("mail account %s: made in tenant %.*s", out->id, STR_ARG(tenant.name));
    return true;
}

/* ---- looking ---- */

/* Only these have inboxes of their own. */
static bool need_principal(const struct actions *actions, const struct mail_caller *caller, struct err *err)
{
    if (!mail_is_on(actions, err))
        return false;
    return (caller->kind != MAIL_CALLER_OPERATOR && caller->kind != MAIL_CALLER_OVERSIGHT) ||
           err_set(err, ERR_DENIED, "this needs a key of an inbox or an account");
}

bool action_account_usage(const struct actions *actions, const struct mail_caller *caller, int64_t from_us,
                          int64_t to_us, struct arena *arena, struct mail_usage *out, struct err *err)
{
    int64_t until_us = to_us ? to_us : clock_wall_us();
    struct mail_usage all = { 0 }, one;
    struct mail_inbox_row *rows;
    size_t count;

    if (!need_principal(actions, caller, err) || !mail_need_scope(caller, MAIL_SCOPE_READ, err) ||
        !mail_rows_of(actions, caller, arena, &rows, &count, err))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!mail_usage(actions->mail->mail, arena_text(arena, rows[i].id), from_us, until_us, &one, err))
            return err_wrap(err, "use of inbox %.*s", STR_ARG(rows[i].id));
        all.sent += one.sent;
        all.received += one.received;
        all.held += one.held;
        all.approved += one.approved;
        all.rejected += one.rejected;
        all.storage_bytes += one.storage_bytes;
        all.pending += one.pending;
        all.messages += one.messages;
        all.sent_today += one.sent_today;
    }
    *out = all;
    return true;
}

bool action_account_get(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                        struct mail_account *out, struct err *err)
{
    struct mail_tenant_row tenant;
    struct mail_account_row row;
    struct mail_inbox_row *inboxes;
    struct mail_usage usage;
    size_t count;

    if (!need_principal(actions, caller, err) ||
        !store_mail_tenant_get(actions->store, str_from(caller->tenant_id), STR(""), arena, &tenant, err) ||
        !mail_rows_of(actions, caller, arena, &inboxes, &count, err))
        return false;
    struct mail_account account = {
        .name = tenant.name,
        .tenant = tenant.name,
        .inbox_count = (uint32_t)count,
        .inbox_most = mail_is_sandbox_account(caller) ? 1 + LIMIT_MAIL_SANDBOX_MORE : actions->mail->inboxes_most,
        .sends_per_day = actions->mail->sends_per_day,
    };
    memcpy(account.tenant_id, caller->tenant_id, sizeof account.tenant_id);
    if (caller->account_id[0] && !mail_is_sandbox_account(caller)) {
        if (!store_mail_account_get(actions->store, str_from(caller->account_id), arena, &row, err))
            return false;
        memcpy(account.id, caller->account_id, sizeof account.id);
        account.created_us = row.created_us;
        account.last_active_us = row.last_used_us;
    } else { /* a key of one inbox, or a sandbox: the inbox is the account */
        memcpy(account.id, caller->inbox_id, sizeof account.id);
        account.created_us = count ? inboxes[0].created_us : 0;
        account.last_active_us = clock_wall_us();
    }
    if (tenant.oversight.len && !mail_decrypt(actions, tenant.oversight, mail_oversight_about(tenant.id, arena), arena,
                                              &account.oversight_address, err))
        return false;
    for (size_t i = 0; i < count; i++)
        account.received += inboxes[i].received;
    /* Asks a worker for each inbox. An account of LobsterMail may have a hundred, and its answer needs none of this. */
    if (!caller->is_lobster && mail_scope_allows(caller->scopes, MAIL_SCOPE_READ)) {
        if (!action_account_usage(actions, caller, 0, 0, arena, &usage, err))
            return false;
        account.sent = usage.sent;
        account.storage_bytes = usage.storage_bytes;
    }
    *out = account;
    return true;
}

/* ---- where copies go ---- */

static bool address_check(const struct actions *actions, struct str address, struct err *err)
{
    struct str local, domain = address;

    if (address.len == 0)
        return true;
    if (!mail_allow_valid(address) || address.at[0] == '*' || !str_cut(&domain, '@', &local))
        return err_set(err, ERR_INVALID, "the oversight address must be one address like name@example.com");
    return !str_eq_nocase(domain, str_from(actions->mail->domain)) ||
           err_set(err, ERR_INVALID, "the oversight address must not be on this server: an agent could read it");
}

bool action_oversight_address(const struct actions *actions, const struct mail_caller *caller, struct str tenant_name,
                              struct str address, struct str approval_code, struct arena *arena, bool *out_pending,
                              struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct mail_tenant_row tenant;

    *out_pending = false;
    if (!mail_is_on(actions, err) || !(is_operator || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)) ||
        !address_check(actions, address, err))
        return false;
    if (tenant_name.len && !is_operator)
        return err_set(err, ERR_DENIED, "only the operator chooses the tenant");
    if (!(is_operator
              ? mail_tenant_find(actions, tenant_name, arena, &tenant, err)
              : store_mail_tenant_get(actions->store, str_from(caller->tenant_id), STR(""), arena, &tenant, err)))
        return false;
    struct mail_asked asked = {
        .action = "oversight.address",
        .tenant_id = tenant.id,
        .inbox_id = str_from(caller->inbox_id),
        .parts = &address,
        .part_count = 1,
        .what = arena_format(arena, "send copies of what monitored inboxes of tenant %.*s send to '%.*s'",
                             STR_ARG(tenant.name), STR_ARG(address)),
    };
    if (!mail_consent(actions, caller, &asked, approval_code, arena, out_pending, NULL, err) || *out_pending)
        return *out_pending;
    struct str cipher =
        address.len ? mail_encrypt(actions, address, mail_oversight_about(tenant.id, arena), arena) : STR("");
    if (!store_mail_tenant_oversight(actions->store, tenant.id, cipher, err))
        return false;
    mail_note(actions, tenant.id, "oversight.address", tenant.id, caller,
              address.len ? STR("{\"set\":true}") : STR("{\"set\":false}"));
    log_info("tenant %.*s: the oversight address is %s, by %s", STR_ARG(tenant.name), address.len ? "set" : "removed",
             caller->actor);
    return true;
}

/* ---- the first ones ---- */

static bool is_known(const struct actions *actions, const struct secret *text, bool *out_known,
                     struct mail_key_owner *out, struct err *err)
{
    *out_known = store_mail_key_find(actions->store, secret_reveal(text), out, err);
    return *out_known || err->kind == ERR_DENIED;
}

bool action_mail_first(const struct actions *actions, const struct secret *inbox_key, const struct secret *token,
                       struct arena *arena, struct err *err)
{
    struct mail_reader reader = { 0 };
    struct mail_tenant_row tenant;
    struct mail_key_owner account = { 0 }, inbox;
    struct mail_key_row key;
    bool has_account, has_inbox;

    if (!mail_is_on(actions, err) || !mail_tenant_ensure(actions, STR(""), arena, &tenant, err) ||
        !is_known(actions, token, &has_account, &account, err) ||
        !is_known(actions, inbox_key, &has_inbox, &inbox, err))
        return err_wrap(err, "the first inbox");
    if (!has_account) {
        if (!account_add(actions, &tenant, STR("first account"), token, arena, &key, err))
            return err_wrap(err, "the first account");
        (void)snprintf(account.id, sizeof account.id, "%.*s", STR_ARG(key.id));
        (void)snprintf(account.account_id, sizeof account.account_id, "%.*s", STR_ARG(key.account_id));
    }
    if (has_inbox)
        return true;
    if (!actions->mail->strict_inbox_keys) {
        reader.key_id = account.id;
        seal_derive(secret_reveal(token), "inbox", &reader.kek);
    }
    bool ok = mail_first_inbox(actions, &tenant, str_from(account.account_id), inbox_key,
                               reader.key_id ? &reader : NULL, arena, err);
    seal_key_wipe(&reader.kek);
    return ok || err_wrap(err, "the first inbox");
}
