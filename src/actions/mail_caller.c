/*
 * Who asks: by a key, by the admin token, or from inside a sandbox.
 *
 * A sandbox needs no key: its identity is the connection that its request came by. Its own inbox is made at first use. The
 * server keeps that inbox's key, encrypted under the server's secret, for as long as the sandbox lives. A sandbox that signs
 * up gets a token that follows from its id: with it its own inbox is an account, which may make more of them.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/lock.h"

void mail_caller_wipe(struct mail_caller *caller)
{
    secret_wipe(&caller->credential);
}

static bool become(const struct mail_key_owner *key, struct str text, struct mail_caller *out, struct err *err)
{
    struct mail_caller caller = { .scopes = key->scopes, .is_lobster = key->is_lobster };

    /* However such a row came about, a key that may send and approve can do neither. */
    if (!mail_scopes_valid(key->scopes))
        return err_set(err, ERR_DENIED, "this mail key has scopes that exclude each other: revoke it");
    if (key->scopes & (MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_OVERSIGHT_READ))
        caller.kind = MAIL_CALLER_OVERSIGHT;
    else
        caller.kind = key->inbox_id[0] ? MAIL_CALLER_INBOX : MAIL_CALLER_ACCOUNT;
    memcpy(caller.tenant_id, key->tenant_id, sizeof caller.tenant_id);
    memcpy(caller.account_id, key->account_id, sizeof caller.account_id);
    memcpy(caller.inbox_id, key->inbox_id, sizeof caller.inbox_id);
    memcpy(caller.key_id, key->id, sizeof caller.key_id);
    (void)snprintf(caller.actor, sizeof caller.actor, "key:%s", key->id);
    if (!secret_set(&caller.credential, text))
        return err_set(err, ERR_DENIED, "the mail key is unknown or was revoked");
    *out = caller;
    mail_caller_wipe(&caller);
    return true;
}

bool mail_caller_by_key(const struct actions *actions, struct str key, struct mail_caller *out, struct err *err)
{
    struct mail_key_owner owner;

    return mail_is_on(actions, err) && store_mail_key_find(actions->store, key, &owner, err) &&
           become(&owner, key, out, err);
}

bool mail_caller_by_admin(const struct actions *actions, struct str token, struct mail_caller *out, struct err *err)
{
    struct mail_caller caller = { .kind = MAIL_CALLER_OPERATOR, .scopes = MAIL_SCOPE_OVERSIGHT, .actor = "operator" };
    struct caller admin;

    if (!mail_is_on(actions, err) || !action_caller_by_admin_token(actions, token, STR(""), &admin, err))
        return false;
    if (!secret_set(&caller.credential, token))
        return err_set(err, ERR_DENIED, "the admin token is wrong");
    *out = caller;
    mail_caller_wipe(&caller);
    return true;
}

/* ---- from inside a sandbox ---- */

/* What is known of the sandbox, copied into an arena. */
struct inside {
    struct str id, team_slug, wanted; /* wanted: the metadata's inbox */
};

static bool sandbox_look(const struct actions *actions, struct str id, struct arena *arena, struct inside *out,
                         struct err *err)
{
    struct sandbox *sandbox = sandbox_find(actions->sandboxes, id);
    struct team_row team;

    if (!sandbox)
        return err_set(err, ERR_DENIED, "the sandbox has ended");
    struct str team_id = arena_copy(arena, sandbox_team_id(sandbox));
    *out = (struct inside){ .id = arena_copy(arena, id),
                            .wanted = arena_copy(arena, sandbox_metadata(sandbox, STR("mail.inbox"))) };
    sandbox_unref(sandbox);
    if (!store_team_get(actions->store, team_id, arena, &team, err))
        return err_wrap(err, "team of sandbox %.*s", STR_ARG(out->id));
    out->team_slug = team.slug;
    return true;
}

static struct mail_caller sandbox_caller(const struct inside *inside, const struct mail_tenant_row *tenant)
{
    struct mail_caller caller = { .kind = MAIL_CALLER_SANDBOX };

    (void)snprintf(caller.tenant_id, sizeof caller.tenant_id, "%.*s", STR_ARG(tenant->id));
    (void)snprintf(caller.actor, sizeof caller.actor, "sandbox:%.*s", STR_ARG(inside->id));
    return caller;
}

/* The same sandbox, with what a key that it has sent may do. `only`: the one inbox that it may use; empty: any. */
static bool with_key(const struct inside *inside, const struct mail_tenant_row *tenant, const struct mail_caller *key,
                     const struct mail_inbox_row *only, struct mail_caller *out, struct err *err)
{
    struct mail_caller caller = sandbox_caller(inside, tenant);

    if (key->kind == MAIL_CALLER_OVERSIGHT)
        return err_set(err, ERR_DENIED, "an oversight key is not accepted from inside a sandbox");
    bool is_same = strcmp(key->tenant_id, caller.tenant_id) == 0;
    if (is_same && only)
        is_same = key->inbox_id[0] ? str_eq(only->id, str_from(key->inbox_id))
                                   : str_eq(only->account_id, str_from(key->account_id));
    if (!is_same)
        return err_set(err, ERR_DENIED, "this key belongs to another inbox than the one of this sandbox");
    memcpy(caller.key_id, key->key_id, sizeof caller.key_id);
    if (only) {
        (void)snprintf(caller.inbox_id, sizeof caller.inbox_id, "%.*s", STR_ARG(only->id));
    } else {
        memcpy(caller.inbox_id, key->inbox_id, sizeof caller.inbox_id);
        memcpy(caller.account_id, key->account_id, sizeof caller.account_id);
    }
    caller.scopes = key->scopes;
    caller.is_lobster = key->is_lobster;
    caller.credential = key->credential;
    *out = caller;
    mail_caller_wipe(&caller);
    return true;
}

/* The inbox that the metadata names; its credential is not known here. */
static bool by_metadata(const struct actions *actions, const struct inside *inside,
                        const struct mail_tenant_row *tenant, const struct mail_caller *key, struct arena *arena,
                        struct mail_caller *out, struct err *err)
{
    /* As the operator finds it; the tenant is compared here. */
    struct mail_caller anyone = { .kind = MAIL_CALLER_OPERATOR };
    struct mail_inbox_row row;

    if (!mail_row_for(actions, &anyone, inside->wanted, arena, &row, err))
        return err->kind == ERR_NOT_FOUND
                   ? err_set(err, ERR_NOT_FOUND, "the inbox in the sandbox's metadata (mail.inbox) does not exist")
                   : false;
    if (!str_eq(row.tenant_id, tenant->id))
        return err_set(err, ERR_NOT_FOUND, "the inbox in the sandbox's metadata (mail.inbox) does not exist");
    if (key)
        return with_key(inside, tenant, key, &row, out, err);
    *out = sandbox_caller(inside, tenant);
    (void)snprintf(out->inbox_id, sizeof out->inbox_id, "%.*s", STR_ARG(row.id));
    out->scopes = MAIL_SCOPE_SEND;
    return true;
}

static bool own_inbox(const struct actions *actions, const struct inside *inside, const struct mail_tenant_row *tenant,
                      struct arena *arena, struct mail_caller *out, struct err *err)
{
    struct mail_caller caller = sandbox_caller(inside, tenant);
    struct mail_sandbox_row row;
    struct str key;

    if (!store_mail_sandbox_get(actions->store, inside->id, arena, &row, err) &&
        (err->kind != ERR_NOT_FOUND || !mail_sandbox_inbox(actions, inside->id, tenant, arena, &row, err)))
        return err_wrap(err, "inbox of sandbox %.*s", STR_ARG(inside->id));
    if (!mail_decrypt(actions, row.credential, arena_format(arena, "sandbox:%.*s", STR_ARG(inside->id)), arena, &key,
                      err))
        return err_wrap(err, "inbox of sandbox %.*s", STR_ARG(inside->id));
    (void)snprintf(caller.inbox_id, sizeof caller.inbox_id, "%.*s", STR_ARG(row.inbox_id));
    (void)snprintf(caller.key_id, sizeof caller.key_id, "%.*s", STR_ARG(row.key_id));
    caller.scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND;
    bool fits = secret_set(&caller.credential, key);
    explicit_bzero((void *)(uintptr_t)key.at, key.len);
    *out = caller;
    mail_caller_wipe(&caller);
    return fits || err_set(err, ERR_INTERNAL, "the key of the sandbox's inbox is damaged");
}

void mail_sandbox_token(const struct actions *actions, struct str sandbox_id, struct secret *out)
{
    char hash[65];

    mail_keyed_hash(actions, "token of a sandbox", sandbox_id, hash);
    out->len = (size_t)snprintf((char *)out->bytes, sizeof out->bytes, "lm_sk_live_%.43s", hash);
    explicit_bzero(hash, sizeof hash);
}

/* A copy of a sandbox has its memory and files, but another id: its token is another one. */
static bool is_own_token(const struct actions *actions, struct str sandbox_id, struct str text)
{
    auto_wipe struct secret token = { 0 };

    mail_sandbox_token(actions, sandbox_id, &token);
    return secret_eq(&token, text);
}

static bool by_sandbox(const struct actions *actions, struct str sandbox_id, const struct mail_caller *key,
                       bool has_own_token, struct arena *arena, struct mail_caller *out, struct err *err)
{
    struct mail_tenant_row tenant;
    struct inside inside;

    if (!sandbox_look(actions, sandbox_id, arena, &inside, err) ||
        !mail_tenant_ensure(actions, inside.team_slug, arena, &tenant, err))
        return false;
    if (inside.wanted.len)
        return by_metadata(actions, &inside, &tenant, key, arena, out, err);
    if (key)
        return with_key(&inside, &tenant, key, NULL, out, err);
    if (!own_inbox(actions, &inside, &tenant, arena, out, err))
        return false;
    if (has_own_token) {
        memcpy(out->account_id, out->inbox_id, sizeof out->account_id);
        out->scopes |= MAIL_SCOPE_ADMIN;
        out->is_lobster = true;
    }
    return true;
}

bool mail_caller_by_sandbox(const struct actions *actions, struct str sandbox_id, struct str key,
                            struct mail_caller *out, struct err *err)
{
    struct mail_caller by_key = { 0 };
    bool has_key = false;
    struct arena arena;

    if (!mail_is_on(actions, err))
        return false;
    bool has_own_token = is_own_token(actions, sandbox_id, key);
    if (key.len && !has_own_token) {
        has_key = mail_caller_by_key(actions, key, &by_key, err);
        if (!has_key && err->kind != ERR_DENIED)
            return false;
    }
    arena_init(&arena);
    bool ok = by_sandbox(actions, sandbox_id, has_key ? &by_key : NULL, has_own_token, &arena, out, err);
    arena_done(&arena);
    mail_caller_wipe(&by_key);
    return ok;
}
