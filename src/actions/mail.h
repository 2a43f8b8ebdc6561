/*
 * mail.h - everything that can be asked for about mail: check the permission, then do it.
 *
 * Two boundaries: the tenant (the people who approve) and inside it the inbox (one agent). A key of an inbox reaches that
 * inbox only. An account's token (LobsterMail) reaches the inboxes that it has created, unless the operator has said
 * strict_inbox_keys: then it can only create. An oversight key decides about held mail of its tenant and reads nothing
 * else. The operator (admin token) decides for every tenant, and reads nothing that is not held.
 *
 * Both dialects, MCP, the approval page, the command line and sandboxes call these functions: nothing else reaches an
 * inbox. Knows no HTTP and no names of a foreign API.
 *
 * Ownership  Results live in the arena that is passed in.
 * Threads    Workers.
 * Failure    An inbox or message that this caller may not have: ERR_NOT_FOUND with one and the same text, whether it exists
 *            or not. A missing scope: ERR_DENIED that names it. ERR_LIMIT: try again after out_retry_s.
 */
#ifndef ACTIONS_MAIL_H
#define ACTIONS_MAIL_H

#include "actions/actions.h"
#include "mail/mail.h"

/* ---- mail_caller.c ---- */

enum mail_caller_kind {
    MAIL_CALLER_INBOX,     /* a key of one inbox */
    MAIL_CALLER_ACCOUNT,   /* a token of a principal with several inboxes */
    MAIL_CALLER_OVERSIGHT, /* a key of a tenant's approvers */
    MAIL_CALLER_SANDBOX, /* code in a sandbox, with a key or without; `credential` is empty if there is none to read with */
    MAIL_CALLER_OPERATOR, /* the admin token; `credential` is that token */
};

struct mail_caller {
    enum mail_caller_kind kind;
    char tenant_id[MAIL_INBOX_ID_BYTES];
    /* MAIL_CALLER_ACCOUNT; also a key of an inbox that has created others. Of a sandbox that has signed up: inbox_id. */
    char account_id[MAIL_INBOX_ID_BYTES];
    char inbox_id[MAIL_INBOX_ID_BYTES]; /* MAIL_CALLER_INBOX, MAIL_CALLER_SANDBOX (unless it has an account's token) */
    char key_id[MAIL_KEY_ID_BYTES];
    char actor[64]; /* for the audit: "key:…", "sandbox:…", "operator" */
    uint32_t scopes;
    bool is_lobster; /* the key's prefix: which dialect it speaks */
    struct secret credential;
};
void mail_caller_wipe(struct mail_caller *caller);

/* mm_live_…, lm_sk_live_…, lm_sk_test_…. ERR_DENIED for all others, in the same time. */
bool mail_caller_by_key(const struct actions *actions, struct str key, struct mail_caller *out, struct err *err)
    must_use;
/* The admin token. */
bool mail_caller_by_admin(const struct actions *actions, struct str token, struct mail_caller *out, struct err *err)
    must_use;
/*
 * A connection that came from inside a sandbox. `key` is what the program inside has sent ("" or anything).
 *
 *   metadata mail.inbox   names the inbox (id or address, of the team's tenant): only this one. With a key of this inbox it
 *                         has the key's scopes and can read. Without one it may send, and a person approves each
 *                         message, whatever the inbox's mode and allowlist say: whoever makes a sandbox chooses its
 *                         metadata. A key of another inbox is ERR_DENIED.
 *   otherwise, with a valid key of the team's tenant: what this key may.
 *   otherwise             the sandbox's own inbox, made at first use, to read and send. An unknown key is ignored. With the
 *                         token that this sandbox got when it signed up: as an account, which may make more inboxes.
 *
 * Keys of other tenants and oversight keys are ERR_DENIED: mail is approved outside of sandboxes.
 */
bool mail_caller_by_sandbox(const struct actions *actions, struct str sandbox_id, struct str key,
                            struct mail_caller *out, struct err *err) must_use;

/* ---- mail_inbox.c ---- */

struct inbox_info {
    char id[MAIL_INBOX_ID_BYTES], tenant_id[MAIL_INBOX_ID_BYTES], account_id[MAIL_INBOX_ID_BYTES];
    struct str tenant, address, display_name, signature, auto_cc, auto_bcc;
    enum mail_mode mode;
    uint32_t undo_s;
    bool schedule_first; /* default_gate_timing */
    bool scheduling_enabled, forward_inbound, mcp_configured, auto_extract;
    bool is_active;
    int64_t created_us, deleted_us;
    uint32_t message_count;
    struct seal_key public_key;
    bool made_tenant; /* only of action_inbox_create(): its tenant is new, too */
};

struct inbox_want {
    struct str local; /* local part, or a whole address of our domain; empty: a random one */
    struct str display_name;
    struct str tenant;        /* name; only the operator may say it; empty: the default */
    int mode;                 /* -1: gated_send; a looser one is ignored */
    struct str approval_code; /* MultiMail keys: the operator's code; empty: asks for one */
};
/*
 * ERR_CONFLICT: the address is taken (dots do not count). ERR_LIMIT. With a MultiMail key and without a code *out_pending is
 * true and nothing else has happened: the operator has a code to give. out_key is the inbox's own key, shown once; untouched for
 * a sandbox that has signed up, which reaches its inboxes by its own token, also with strict_inbox_keys.
 */
bool action_inbox_create(const struct actions *actions, const struct mail_caller *caller, const struct inbox_want *want,
                         struct arena *arena, struct inbox_info *out, struct secret *out_key, bool *out_pending,
                         struct err *err) must_use;
/* The caller's own; of all tenants for the operator. */
bool action_inbox_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                       struct inbox_info **out, size_t *out_count, struct err *err) must_use;
/* `ref`: an id (also with the prefix ibx_) or an address; empty: the caller's only inbox. ERR_NOT_FOUND. */
bool action_inbox_get(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                      struct arena *arena, struct inbox_info *out, struct err *err) must_use;

struct inbox_change {
    const struct str *display_name, *signature, *auto_cc, *auto_bcc; /* NULL: as it is */
    int mode; /* -1: as it is. Only down: ERR_DENIED says how to go up */
    int undo_s, schedule_first, scheduling_enabled, forward_inbound, mcp_configured, auto_extract; /* -1: as it is */
    struct str approval_code; /* for auto_cc and auto_bcc */
};
bool action_inbox_update(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         const struct inbox_change *change, struct arena *arena, struct inbox_info *out,
                         bool *out_pending, struct err *err) must_use;
/* The address is not used again; the file is shredded after seven days, the audit stays. */
bool action_inbox_delete(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         struct arena *arena, struct err *err) must_use;
/* Asks for a code for a higher mode: ERR_INVALID (not higher), ERR_LIMIT (3 an hour). The operator sees the code. */
bool action_inbox_request_mode(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                               enum mail_mode mode, struct arena *arena, struct err *err) must_use;
/* ERR_DENIED: wrong code. ERR_NOT_FOUND: none asked for. The operator needs no code: empty, with `mode`. */
bool action_inbox_raise_mode(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                             struct str code, int mode, struct arena *arena, struct inbox_info *out, struct err *err)
    must_use;

bool action_allow_list(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                       struct arena *arena, struct mail_allow **out, size_t *out_count, struct err *err) must_use;
bool action_allow_add(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                      struct str pattern, struct str approval_code, struct arena *arena, struct mail_allow *out,
                      bool *out_pending, struct err *err) must_use;
bool action_allow_remove(const struct actions *actions, const struct mail_caller *caller, struct str ref, struct str id,
                         struct str approval_code, struct arena *arena, bool *out_pending, struct err *err) must_use;

/* ---- mail_key.c ---- */

struct mail_key_info {
    char id[MAIL_KEY_ID_BYTES];
    char inbox_id[MAIL_INBOX_ID_BYTES]; /* empty: of the tenant */
    struct str name, prefix, tenant;
    uint32_t scopes;
    int64_t created_us, last_used_us;
    bool is_active;
};
struct mail_key_want {
    struct str name;
    uint32_t scopes;
    struct str tenant; /* the operator's choice */
    struct str
        inbox_ref; /* the operator cannot: only a credential of an inbox can give another one the right to read */
    struct str approval_code;
};
/* ERR_INVALID: send with oversight. ERR_DENIED: oversight by somebody other than the operator. */
bool action_mail_key_create(const struct actions *actions, const struct mail_caller *caller,
                            const struct mail_key_want *want, struct arena *arena, struct mail_key_info *out,
                            struct secret *out_key, bool *out_pending, struct err *err) must_use;
bool action_mail_key_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                          struct mail_key_info **out, size_t *out_count, struct err *err) must_use;
/* name NULL: as it is; scopes 0: as they are. */
bool action_mail_key_update(const struct actions *actions, const struct mail_caller *caller, struct str id,
                            const struct str *name, uint32_t scopes, struct str approval_code, struct arena *arena,
                            bool *out_pending, struct err *err) must_use;
bool action_mail_key_revoke(const struct actions *actions, const struct mail_caller *caller, struct str id,
                            struct str approval_code, struct arena *arena, bool *out_pending, struct err *err) must_use;

/* ---- mail_operator.c: codes and grants ---- */

struct mail_code {
    struct str code, what, inbox_id, tenant; /* what: a sentence */
    int64_t created_us, expires_us;
};
bool action_mail_codes(const struct actions *actions, const struct mail_caller *operator_, struct arena *arena,
                       struct mail_code **out, size_t *out_count, struct err *err) must_use;

enum { MAIL_GRANT_LIST = 1, MAIL_GRANT_READ = 2 };
struct mail_grant {
    char id[MAIL_KEY_ID_BYTES];
    char grantee_key_id[MAIL_KEY_ID_BYTES];
    char inbox_id[MAIL_INBOX_ID_BYTES];
    unsigned verbs;
    int64_t created_us, expires_us, revoked_us;
    bool is_effective; /* the inbox's own credential was used since: the grantee has the inbox's key */
    struct str reason;
};
/* `to`: a key id, or an inbox whose own key is meant. */
bool action_grant_create(const struct actions *actions, const struct mail_caller *operator_, struct str to,
                         struct str inbox_ref, unsigned verbs, uint64_t expires_s, struct str reason,
                         struct arena *arena, struct mail_grant *out, struct err *err) must_use;
bool action_grant_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                       struct mail_grant **out, size_t *out_count, struct err *err) must_use;
bool action_grant_revoke(const struct actions *actions, const struct mail_caller *operator_, struct str id,
                         struct arena *arena, struct err *err) must_use;

/* ---- mail_account.c ---- */

struct mail_account {
    char id[MAIL_INBOX_ID_BYTES], tenant_id[MAIL_INBOX_ID_BYTES];
    struct str name, tenant;
    uint32_t inbox_count, inbox_most;
    uint32_t sends_per_day;
    uint64_t received, sent, storage_bytes;
    int64_t created_us, last_active_us;
    struct str oversight_address; /* of the tenant: gets copies of what monitored inboxes send; empty: none */
};
/*
 * LobsterMail's sign-up, without a key. `place`: an address of the network, or "sandbox:ID". ERR_DENIED: the operator allows
 * none from the network, or the sandbox is bound to an inbox. ERR_LIMIT: too many from this address. A sandbox gets the same
 * token each time.
 */
bool action_account_create(const struct actions *actions, struct str place, struct arena *arena,
                           struct mail_account *out, struct secret *out_token, uint32_t *out_retry_s, struct err *err)
    must_use;
bool action_account_get(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                        struct mail_account *out, struct err *err) must_use;
/* to_us 0: until now. */
bool action_account_usage(const struct actions *actions, const struct mail_caller *caller, int64_t from_us,
                          int64_t to_us, struct arena *arena, struct mail_usage *out, struct err *err) must_use;

/*
 * Where copies of what monitored inboxes send go; empty: nowhere. The operator says for which tenant (empty: the default
 * one); others, with admin, for their own, with the operator's code. Never an address of this server: an agent could read it.
 */
bool action_oversight_address(const struct actions *actions, const struct mail_caller *caller, struct str tenant,
                              struct str address, struct str approval_code, struct arena *arena, bool *out_pending,
                              struct err *err) must_use;

/* ---- mail_send.c ---- */

struct send_want {
    struct str inbox_ref; /* empty: the caller's only one */
    struct str from;      /* what the caller says; must be the inbox's own address, or empty */
    const struct str *to, *cc, *bcc;
    uint32_t to_count, cc_count, bcc_count;
    struct str reply_to, subject, markdown, text, html;
    const struct mail_attachment *attachments;
    uint32_t attachment_count;
    struct str idempotency_key;
    int64_t send_at_us;
    int schedule_first; /* -1: the inbox's default */
    struct str answers; /* id of the message that this replies to; recipients and subject follow from it if empty */
    struct str thread_id;
};
struct sent_info {
    struct mail_accepted accepted;
    char inbox_id[MAIL_INBOX_ID_BYTES];
    enum mail_mode mode;
};
bool action_send(const struct actions *actions, const struct mail_caller *caller, const struct send_want *want,
                 struct arena *arena, struct sent_info *out, uint32_t *out_retry_s, struct err *err) must_use;
bool action_send_cancel(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                        struct str message_id, struct arena *arena, struct mail_message *out, struct err *err) must_use;
/* Fields of `want` that are empty stay as they are. */
bool action_send_edit(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      struct str message_id, const struct send_want *want, struct arena *arena,
                      struct mail_message *out, struct err *err) must_use;

/* ---- mail_decide.c ---- */

struct held_message {
    struct mail_message message;
    struct inbox_info inbox;
    struct mail_message
        answered;      /* what it replies to, as far as the held message quotes it; has_content false: none */
    bool is_truncated; /* only in a list: there was no room for its content; action_held_get() has it */
};
struct pending_want {
    struct str inbox;  /* only of this one, by id or address; empty: of all */
    struct str cursor; /* of the page before; empty: the first */
};
struct pending_page {
    struct held_message *rows;
    size_t count;
    struct str cursor; /* empty: the last page */
};
/*
 * What this caller may decide about, LIMIT_MAIL_PENDING_LIST at a time: the oldest LIMIT_MAIL_PENDING_TURN of each inbox,
 * oldest first, then the next ones of each. So an inbox that holds much does not come before all others. The inboxes of a
 * page share LIMIT_MAIL_PENDING_BYTES: a message whose text does not fit has its preview, and one that does not fit at all
 * is_truncated. Decisions move what is left forward: begin again without a cursor then. An inbox that cannot be asked is
 * left out, and logged.
 */
bool action_pending(const struct actions *actions, const struct mail_caller *caller, const struct pending_want *want,
                    struct arena *arena, struct pending_page *out, struct err *err) must_use;
bool action_held_get(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                     struct arena *arena, struct held_message *out, struct err *err) must_use;
/* An attachment of one of them, by its number from 0. */
bool action_held_attachment(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                            struct str number, struct arena *arena, struct mail_attachment *out, struct err *err)
    must_use;
/* sha256: empty, or what the approver saw: ERR_CONFLICT if the message is another one. */
bool action_decide(const struct actions *actions, const struct mail_caller *caller, struct str message_id, bool approve,
                   struct str reason, struct str sha256, struct arena *arena, struct mail_message *out, struct err *err)
    must_use;
/* A single-use link for one held message: the path "/approve/TOKEN". By an approver. */
bool action_approval_link(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                          struct arena *arena, struct secret *out_token, int64_t *out_expires_us, struct err *err)
    must_use;
/* By its link: shows, and decides. No caller: the token is the credential. */
bool action_approval_show(const struct actions *actions, struct str token, struct arena *arena,
                          struct held_message *out, struct err *err) must_use;
bool action_approval_attachment(const struct actions *actions, struct str token, struct str number, struct arena *arena,
                                struct mail_attachment *out, struct err *err) must_use;
bool action_approval_decide(const struct actions *actions, struct str token, bool approve, struct str reason,
                            struct str sha256, struct arena *arena, struct mail_message *out, struct err *err) must_use;

/* ---- mail_read.c: as the functions of mail/mail.h, for an inbox that the caller may have, or has a grant for ---- */

bool action_mail_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err)
    must_use;
/* Over all inboxes of the caller, newest first. */
bool action_mail_search(const struct actions *actions, const struct mail_caller *caller,
                        const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err)
    must_use;
/* inbox_ref empty: by the message id alone. */
bool action_mail_read(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      struct str message_id, unsigned want, struct arena *arena, struct mail_message *out,
                      struct err *err) must_use;
/* name: file name, or its number if `by_number`. */
bool action_attachment_read(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                            struct str message_id, struct str name, bool by_number, struct arena *arena,
                            struct mail_attachment *out, struct err *err) must_use;
/* A link that needs no key, for an hour: "/v1/files/TOKEN". */
bool action_attachment_link(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                            struct str message_id, struct str name, bool by_number, struct arena *arena,
                            struct mail_attachment *out, struct secret *out_token, struct err *err) must_use;
bool action_attachment_open(const struct actions *actions, struct str token, struct arena *arena,
                            struct mail_attachment *out, struct err *err) must_use;
bool action_mail_label(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                       bool is_spam, struct arena *arena, struct mail_message *out, struct err *err) must_use;
bool action_thread_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                        struct str cursor, uint32_t limit, struct arena *arena, struct mail_thread **out,
                        size_t *out_count, bool *out_more, struct err *err) must_use;
bool action_thread_get(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                       struct str thread_id, struct arena *arena, struct mail_thread *out, struct err *err) must_use;
bool action_tags_set(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                     struct str message_id, const struct mail_pair *tags, uint32_t count, struct arena *arena,
                     struct mail_pair **out, uint32_t *out_count, struct err *err) must_use;
bool action_contact_add(const struct actions *actions, const struct mail_caller *caller,
                        const struct mail_contact *contact, struct arena *arena, struct mail_contact *out,
                        struct err *err) must_use;
bool action_contact_list(const struct actions *actions, const struct mail_caller *caller, struct str query,
                         struct arena *arena, struct mail_contact **out, size_t *out_count, struct err *err) must_use;
bool action_contact_remove(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err) must_use;

/* ---- mail_webhook.c ---- */

struct webhook_want {
    struct str url, inbox_ref, secret, approval_code;
    const struct str *events;
    uint32_t event_count;
};
bool action_webhook_add(const struct actions *actions, const struct mail_caller *caller,
                        const struct webhook_want *want, struct arena *arena, struct mail_webhook *out,
                        bool *out_pending, struct err *err) must_use;
bool action_webhook_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                         struct mail_webhook **out, size_t *out_count, struct err *err) must_use;
bool action_webhook_remove(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err) must_use;
bool action_webhook_enable(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err) must_use;

/* ---- mail_hook.c: calling them; for the server itself ---- */

/* Of one inbox, with their secrets. */
bool action_hook_list(const struct actions *actions, const char *inbox_id, struct arena *arena,
                      struct mail_webhook **out, size_t *out_count, struct err *err) must_use;
/* Changes whenever an inbox gets or enables a webhook: what was known about inboxes without one may be wrong then. */
unsigned action_hook_changes(void);
/* HMAC-SHA256 in hex. */
void action_hook_sign(struct str secret, struct str body, char out[MAIL_HASH_TEXT_BYTES]);
/* Calls it, and notes how it went: after ten failures in a row it is disabled. True: answered with 2xx. */
bool action_hook_call(const struct actions *actions, const char *inbox_id, const struct mail_webhook *webhook,
                      const struct mail_hook *hook, bool *out_again);

/* ---- mail_audit.c ---- */

/*
 * The operator: of any inbox, deleted ones too, and of a tenant ("tenant:NAME": approvers' keys, accounts, the oversight
 * address). Others: of the caller's own inbox, with admin.
 */
bool action_audit_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                       uint64_t before, uint32_t limit, struct arena *arena, struct mail_audit **out, size_t *out_count,
                       struct err *err) must_use;
/* All that the operator can list and verify. */
bool action_audit_refs(const struct actions *actions, const struct mail_caller *operator_, struct arena *arena,
                       struct str **out, size_t *out_count, struct err *err) must_use;
bool action_audit_verify(const struct actions *actions, const struct mail_caller *operator_, struct str inbox_ref,
                         struct arena *arena, uint64_t *out_rows, struct err *err) must_use;

/* ---- events: what long polls, WebSockets and webhooks wait for ---- */

enum mail_event_kind {
    MAIL_EVENT_RECEIVED,
    MAIL_EVENT_SENT,
    MAIL_EVENT_PENDING,
    MAIL_EVENT_APPROVED,
    MAIL_EVENT_REJECTED,
    MAIL_EVENT_BOUNCED,
    MAIL_EVENT_QUARANTINED,
    MAIL_EVENT_INBOX_CREATED,
    MAIL_EVENT_KIND_COUNT,
};
/* No content: the listener reads it with its own right. */
struct mail_event {
    enum mail_event_kind kind;
    char inbox_id[MAIL_INBOX_ID_BYTES];
    char message_id[MAIL_MESSAGE_ID_BYTES];
    int64_t at_us;
};

/* ---- mail_busy.c, mail_dispatch.c ---- */

/* Front's memory of inboxes in use: their rates, and which have timers or unfinished work. For mail_setup.busy. */
struct mail_busy *mail_busy_new(void) must_use;
void mail_busy_free(struct mail_busy *busy);

/*
 * Lets everything leave that may leave now, of this inbox. Called after a send or a decision, and by action_mail_tick(). A
 * failure is logged, and tried again later.
 */
void mail_dispatch(const struct actions *actions, const char *inbox_id);
/*
 * Inboxes whose time has come, and at the first call those that were in use when the server stopped. Returns when to call
 * again: a second later, or earlier. Several at once share the work: each takes the next inbox that no other one looks at.
 */
int64_t action_mail_tick(const struct actions *actions, int64_t now_us);

/* Once in an hour or so: shreds what was deleted a week ago. */
void action_mail_sweep(const struct actions *actions, int64_t now_us);

/*
 * Once in a second or so: what sandboxes leave that have ended, also before this server has started. Their keys are revoked.
 * What they made by their accounts is removed, with its directory and what it holds; a sandbox's own inbox once nothing is
 * held in it any more. One from which something has left, or about which a person has decided, stays for its audit, as a
 * deleted inbox does.
 */
void action_mail_ended(const struct actions *actions);

/*
 * Directories that were in mail/ when the server started, before anybody could ask for an inbox: one that no row knows, in
 * any state, was left by a crash before the row was written. It is removed if it was never used; one that was used (the
 * store is an older copy, say) stays, and is told. A part of the list at a time; `unmade` is kept by the caller.
 */
struct mail_unmade {
    const char (*ids)[MAIL_INBOX_ID_BYTES];
    size_t count, next; /* done when they are the same */
    uint32_t removed, kept;
};
void action_mail_unmade(const struct actions *actions, struct mail_unmade *unmade);

/* The first inbox and account, for `cloister env`: made once, their keys written by the caller. */
bool action_mail_first(const struct actions *actions, const struct secret *inbox_key, const struct secret *token,
                       struct arena *arena, struct err *err) must_use;

#endif
