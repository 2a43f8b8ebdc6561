/*
 * mail_rows.h - mail's routing map: tenants, accounts, inboxes, keys, codes and grants.
 *
 * Says which key leads to which inbox, and nothing of what is in it. The store encrypts nothing: it gets ciphers and keyed
 * hashes from actions/, and stores them as base64. Ids are ULIDs.
 *
 * Rows are copied into the caller's arena. All changes are on disk when the call returns, except the time of a key's last
 * use. A revoked key is refused from the moment the call returns.
 */
#ifndef STORE_MAIL_ROWS_H
#define STORE_MAIL_ROWS_H

#include "store/store.h"

enum { STORE_MAIL_ID_BYTES = 27 };

/* ---- tenants and accounts ---- */

struct mail_tenant_row {
    struct str id, name;
    struct str approver_public;
    struct str approver_sealed, sealed_to; /* the private half, and the operator's public key that it is sealed to */
    struct str oversight;                  /* cipher of the address for copies; empty: none */
    int64_t created_us;
};
/* Unless there is one of that name; *out is the one that is there afterwards. */
bool store_mail_tenant_ensure(struct store *store, const struct mail_tenant_row *row, struct arena *arena,
                              struct mail_tenant_row *out, struct err *err) must_use;
/* By id, or if that is empty by name. ERR_NOT_FOUND. */
bool store_mail_tenant_get(struct store *store, struct str id, struct str name, struct arena *arena,
                           struct mail_tenant_row *out, struct err *err) must_use;
/* By name. */
bool store_mail_tenant_list(struct store *store, struct arena *arena, struct mail_tenant_row **out, size_t *out_count,
                            struct err *err) must_use;
bool store_mail_tenant_reseal(struct store *store, struct str id, struct str approver_sealed, struct str sealed_to,
                              struct err *err) must_use;
bool store_mail_tenant_oversight(struct store *store, struct str id, struct str cipher, struct err *err) must_use;

struct mail_account_row {
    struct str id, tenant_id;
    int64_t created_us, last_used_us; /* last_used_us: of its keys */
};
bool store_mail_account_get(struct store *store, struct str id, struct arena *arena, struct mail_account_row *out,
                            struct err *err) must_use;

/* ---- keys (mail_keys.c) ---- */

struct mail_key_row {
    struct str id, tenant_id;
    struct str account_id, inbox_id; /* both may be empty, and both may be set: see actions/mail.h */
    struct str name;                 /* cipher */
    struct str prefix;               /* the beginning of the text */
    struct str hash;                 /* store_secret_hash() of the text */
    uint32_t scopes;
    bool is_lobster;
    bool is_own; /* the inbox was made with it */
    struct str grant_public;
    struct str approver_wrap; /* oversight keys; else empty */
    int64_t created_us, last_used_us, revoked_us;
};

/* What a request needs to know of its key. */
struct mail_key_owner {
    char id[STORE_MAIL_ID_BYTES], tenant_id[STORE_MAIL_ID_BYTES];
    char account_id[STORE_MAIL_ID_BYTES], inbox_id[STORE_MAIL_ID_BYTES];
    uint32_t scopes;
    bool is_lobster;
};
/* Costs no query if the key was used lately. ERR_DENIED for an unknown or revoked one. Also notes that it was used. */
bool store_mail_key_find(struct store *store, struct str text, struct mail_key_owner *out, struct err *err) must_use;
/* Also makes the account, if there is none of that id. ERR_CONFLICT: there is a key with this text. */
bool store_mail_key_add(struct store *store, const struct mail_key_row *row, struct err *err) must_use;
/* ERR_NOT_FOUND; also for a revoked one. */
bool store_mail_key_get(struct store *store, struct str id, struct arena *arena, struct mail_key_row *out,
                        struct err *err) must_use;
/* The key that the inbox was made with, while it is valid. ERR_NOT_FOUND. */
bool store_mail_key_own(struct store *store, struct str inbox_id, struct arena *arena, struct mail_key_row *out,
                        struct err *err) must_use;
struct mail_key_filter {
    struct str tenant_id, account_id, inbox_id; /* empty: any */
};
/* Without the revoked ones; oldest first. */
bool store_mail_key_list(struct store *store, const struct mail_key_filter *filter, struct arena *arena,
                         struct mail_key_row **out, size_t *out_count, struct err *err) must_use;
/* The account that the key becomes a token of; it is made. ERR_CONFLICT: the key has one already. */
bool store_mail_key_give_account(struct store *store, struct str id, struct str account_id, struct err *err) must_use;
bool store_mail_key_change(struct store *store, struct str id, struct str name, uint32_t scopes, struct err *err)
    must_use;
bool store_mail_key_revoke(struct store *store, struct str id, struct err *err) must_use;

/* ---- inboxes ---- */

struct mail_inbox_row {
    struct str id, tenant_id, account_id;
    struct str address_hash, profile, public_key;
    uint32_t mode, pending;
    uint32_t shred_tries; /* that have failed */
    uint64_t received;    /* messages so far */
    bool is_dirty, grants_wait;
    int64_t next_us, created_us, deleted_us, shredded_us, orphaned_us;
};
struct mail_sandbox_row {
    struct str sandbox_id, inbox_id, key_id, credential;
    int64_t created_us;
};
/* How many inboxes there may be with a new one; 0: no limit. */
struct mail_inbox_most {
    uint32_t account;
    /* The account is a sandbox's own inbox: deleted ones count too, and ERR_DENIED if the sandbox has ended. */
    bool of_sandbox;
};
/*
 * With its own key, and the sandbox that it is for (may be NULL). ERR_CONFLICT: the address is taken. ERR_LIMIT: there are
 * too many.
 */
bool store_mail_inbox_add(struct store *store, const struct mail_inbox_row *row, const struct mail_inbox_most *most,
                          const struct mail_key_row *key, const struct mail_sandbox_row *sandbox, struct err *err)
    must_use;
/* Also deleted ones. ERR_NOT_FOUND. */
bool store_mail_inbox_get(struct store *store, struct str id, struct arena *arena, struct mail_inbox_row *out,
                          struct err *err) must_use;
bool store_mail_inbox_by_handle(struct store *store, struct str handle, struct arena *arena, struct mail_inbox_row *out,
                                struct err *err) must_use;
bool store_mail_inbox_by_address(struct store *store, struct str address_hash, struct arena *arena,
                                 struct mail_inbox_row *out, struct err *err) must_use;
/* The ids of all inboxes, deleted ones too; oldest first. */
bool store_mail_inbox_ids(struct store *store, struct arena *arena, struct str **out, size_t *out_count,
                          struct err *err) must_use;
/* Those of a tenant, an account (or the one inbox) that are not deleted; empty: any. Oldest first. */
struct mail_inbox_filter {
    struct str tenant_id, account_id, or_id;
};
bool store_mail_inbox_list(struct store *store, const struct mail_inbox_filter *filter, struct arena *arena,
                           struct mail_inbox_row **out, size_t *out_count, struct err *err) must_use;
/* Those of an account that are not deleted, or all; 0 for no account. */
bool store_mail_inbox_count(struct store *store, struct str account_id, bool with_deleted, uint32_t *out_count,
                            struct err *err) must_use;
/* What mail takes. Bytes as they were last told: an inbox that is in use may have more. */
struct mail_room {
    uint32_t inboxes; /* that have not been shredded */
    uint64_t bytes;
};
/* Of a tenant, and of all. Reads one index: 0.2 ms for 1,000 inboxes, 10 ms for 100,000. */
bool store_mail_room(struct store *store, struct str tenant_id, struct mail_room *out_tenant, struct mail_room *out_all,
                     struct err *err) must_use;
bool store_mail_inbox_profile(struct store *store, struct str id, struct str profile, struct err *err) must_use;
/* Only if the mode is still `from`: else ERR_CONFLICT. */
bool store_mail_inbox_mode(struct store *store, struct str id, uint32_t from, uint32_t to, struct err *err) must_use;
/* With its keys and grants revoked. What a sandbox has made by it is orphaned. ERR_NOT_FOUND: deleted already. */
bool store_mail_inbox_delete(struct store *store, struct str id, struct err *err) must_use;
/*
 * Deleted before this time and not shredded, unless it was tried LIMIT_MAIL_SHRED_TRIES times; and orphaned before it, with
 * nothing held or timed, and not deleted.
 */
bool store_mail_inbox_stale(struct store *store, int64_t before_us, uint32_t limit, struct arena *arena,
                            struct mail_inbox_row **out, size_t *out_count, struct err *err) must_use;
/*
 * Of sandboxes that have ended, to be removed: what the sandbox has made by its account, and its own inbox when nothing is
 * held or timed in it. Those that were found to stay are not among them.
 */
bool store_mail_inbox_ended(struct store *store, uint32_t limit, struct arena *arena, struct mail_inbox_row **out,
                            size_t *out_count, struct err *err) must_use;
/* It is not removed as a whole. */
bool store_mail_inbox_stays(struct store *store, struct str id, struct err *err) must_use;
/* It cannot be removed now: store_mail_inbox_ended() has it again from at_us on. */
bool store_mail_inbox_later(struct store *store, struct str id, int64_t at_us, struct err *err) must_use;
/*
 * The directory is gone, and all that the store knows of the inbox goes too; but if it has received something, nobody else
 * gets its address until LIMIT_MAIL_GONE others have followed.
 */
bool store_mail_inbox_removed(struct store *store, struct str id, struct err *err) must_use;
/* The file is gone: the profile goes too, the address stays taken. */
bool store_mail_inbox_shredded(struct store *store, struct str id, struct err *err) must_use;
bool store_mail_inbox_shred_failed(struct store *store, struct str id, struct err *err) must_use;

/* A change is under way. No write if the mark is there already. */
bool store_mail_inbox_dirty(struct store *store, struct str id, struct err *err) must_use;
/* `bytes`: of its file. */
bool store_mail_inbox_idle(struct store *store, struct str id, int64_t next_us, uint32_t pending, uint64_t bytes,
                           struct err *err) must_use;
/* One more message has arrived, and takes so many bytes. Not waited for: a power cut may lose the count. */
bool store_mail_inbox_received(struct store *store, struct str id, uint64_t bytes, struct err *err) must_use;
enum mail_due {
    MAIL_DUE_TIMER,   /* next_us has come, and the mark is not there; earliest first */
    MAIL_DUE_DIRTY,   /* the mark is there */
    MAIL_DUE_PENDING, /* holds messages, or the mark is there */
};
/*
 * tenant_id empty: of all. *out_next_us is the first timer after now_us of a row without the mark (0: none); may be NULL.
 */
bool store_mail_inbox_due(struct store *store, enum mail_due due, struct str tenant_id, int64_t now_us, uint32_t limit,
                          struct arena *arena, struct mail_inbox_row **out, size_t *out_count, int64_t *out_next_us,
                          struct err *err) must_use;

/* ---- inboxes of sandboxes ---- */

/* ERR_NOT_FOUND. */
bool store_mail_sandbox_get(struct store *store, struct str sandbox_id, struct arena *arena,
                            struct mail_sandbox_row *out, struct err *err) must_use;
/*
 * Bindings of sandboxes that have no row any more are removed, their keys revoked, and their inboxes orphaned: their own and
 * those of their accounts.
 */
bool store_mail_sandbox_sweep(struct store *store, uint32_t *out_count, struct err *err) must_use;

/* ---- codes ---- */

struct mail_code_row {
    struct str id, tenant_id, inbox_id;
    struct str asked; /* hash of the request */
    struct str cipher;
    int64_t target; /* the mode that was asked for */
    uint32_t tries;
    int64_t created_us, expires_us;
};
/* In place of one with the same `asked`. Removes expired ones. */
bool store_mail_code_put(struct store *store, const struct mail_code_row *row, struct err *err) must_use;
/* ERR_NOT_FOUND: none, or expired. */
bool store_mail_code_find(struct store *store, struct str asked, int64_t now_us, struct arena *arena,
                          struct mail_code_row *out, struct err *err) must_use;
/* Counts one more try, before the code is compared. With the last of `most` tries the code is gone. ERR_NOT_FOUND: gone. */
bool store_mail_code_try(struct store *store, struct str id, uint32_t most, struct err *err) must_use;
/* Of several callers with the right code only one gets true. ERR_NOT_FOUND. */
bool store_mail_code_spend(struct store *store, struct str id, struct err *err) must_use;
/* tenant_id empty: of all. Oldest first. */
bool store_mail_code_list(struct store *store, struct str tenant_id, int64_t now_us, struct arena *arena,
                          struct mail_code_row **out, size_t *out_count, struct err *err) must_use;

/* ---- grants ---- */

struct mail_grant_row {
    struct str id, tenant_id, grantee_key_id, inbox_id;
    unsigned verbs;
    struct str reason; /* cipher */
    struct str sealed; /* empty: not effective yet */
    int64_t created_us, expires_us, revoked_us;
};
/* And marks the inbox's row: a grant waits for the inbox's own credential. */
bool store_mail_grant_add(struct store *store, const struct mail_grant_row *row, struct err *err) must_use;
/* ERR_NOT_FOUND. */
bool store_mail_grant_get(struct store *store, struct str id, struct arena *arena, struct mail_grant_row *out,
                          struct err *err) must_use;
struct mail_grant_filter {
    struct str tenant_id, grantee_key_id, inbox_id; /* empty: any */
    int64_t in_force_us;                            /* neither revoked nor expired at this time; 0: all */
};
/* Newest first. */
bool store_mail_grant_list(struct store *store, const struct mail_grant_filter *filter, struct arena *arena,
                           struct mail_grant_row **out, size_t *out_count, struct err *err) must_use;
/* Expired and not revoked. */
bool store_mail_grant_ended(struct store *store, int64_t now_us, uint32_t limit, struct arena *arena,
                            struct mail_grant_row **out, size_t *out_count, struct err *err) must_use;
/* ERR_NOT_FOUND: revoked meanwhile. */
bool store_mail_grant_effective(struct store *store, struct str id, struct str sealed, struct err *err) must_use;
/* Takes the mark off the inbox's row, unless a grant still waits. */
bool store_mail_grant_settled(struct store *store, struct str inbox_id, int64_t now_us, struct err *err) must_use;
bool store_mail_grant_revoke(struct store *store, struct str id, struct err *err) must_use;

/* ---- rates ---- */

/* Counts one more, unless there were `most` within the window: then ERR_LIMIT, and *out_retry_s says how long to wait. */
bool store_mail_rate(struct store *store, const char *what, struct str who, uint32_t most, int64_t window_us,
                     uint32_t *out_retry_s, struct err *err) must_use;

#endif
