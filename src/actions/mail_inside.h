/*
 * mail_inside.h - actions on mail as their own files see them.
 *
 *   mail_caller.c, mail_inbox.c, mail_key.c, mail_operator.c, mail_account.c   callers, inboxes, keys, codes, grants
 *   mail_rows.c                                                                rows of the store, and what they are for
 *   mail_send.c, mail_decide.c, mail_read.c, mail_dispatch.c                   what happens to messages
 *   mail_busy.c                                                                inboxes in use: locks, rates, timers
 *
 * Every function that an API calls begins with mail_box_for() or mail_box_of_message(): tenant, inbox, scope and grant
 * are checked there and nowhere else.
 */
#ifndef ACTIONS_MAIL_INSIDE_H
#define ACTIONS_MAIL_INSIDE_H

#include "actions/mail.h"
#include "store/mail_rows.h"

/* A subscription was added or enabled (mail_hook.c). */
void mail_hooks_changed(void);

/* ---- rows (mail_rows.c) ---- */

/* ERR_NOT_FOUND, with the one text for inboxes, messages, threads and links that a caller may not have. */
static inline bool mail_no_such(struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no such inbox or message, or this key does not reach it");
}

/* What a call is about to do with an inbox. */
enum mail_use {
    MAIL_USE_LIST,  /* scope read, or a grant with the verb list; needs a credential that can read */
    MAIL_USE_READ,  /* the same with the verb read */
    MAIL_USE_SEND,  /* scope send; never by a grant. can_read says whether the caller can also read */
    MAIL_USE_ADMIN, /* scope admin; never by a grant */
};

/* An inbox, and what the caller brings to open it. */
struct mail_box {
    struct inbox_info info;
    struct seal_key approver_public; /* of the tenant */
    struct str oversight_address;    /* of the tenant: copies of a monitored inbox; empty: none */
    bool can_read;
    struct mail_reader reader; /* if can_read */
    struct str grant_actor; /* reads by a grant: what the audit of this inbox says; empty: the inbox is the caller's */
};
void mail_box_wipe(struct mail_box *box);
#define auto_mail_box __attribute__((cleanup(mail_box_wipe)))

/*
 * The caller's inbox (`ref` as in action_inbox_get()), if this caller may do this with it. Nothing is told about an inbox
 * of others. ERR_NOT_FOUND by mail_no_such(); ERR_DENIED: a scope is missing, or there is no credential to read with.
 */
bool mail_box_for(const struct actions *actions, const struct mail_caller *caller, struct str ref, enum mail_use use,
                  struct arena *arena, struct mail_box *out, struct err *err) must_use;
/* The same, for the inbox whose handle is in the id of a message or thread. ref: must be that inbox, unless empty. */
bool mail_box_of_message(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                         struct str message_id, enum mail_use use, struct arena *arena, struct mail_box *out,
                         struct err *err) must_use;
/* Without a caller, for the server's own work: no reader. ERR_NOT_FOUND. */
bool mail_box_by_id(const struct actions *actions, struct str id, struct arena *arena, struct mail_box *out,
                    struct err *err) must_use;
bool mail_box_by_handle(const struct actions *actions, struct str handle, struct arena *arena, struct mail_box *out,
                        struct err *err) must_use;
/* For local delivery: letter case, dots and a +tag do not count. ERR_NOT_FOUND: not our domain, none there, deleted. */
bool mail_box_by_address(const struct actions *actions, struct str address, struct arena *arena, struct mail_box *out,
                         struct err *err) must_use;

/*
 * The right to see and decide about held mail of this tenant: an oversight key by its wrap of the approvers' key, the
 * operator by the admin token. `decide`: needs oversight; else oversight_read is enough. ERR_NOT_FOUND for another
 * tenant, ERR_DENIED for other callers. The operator's scopes are MAIL_SCOPE_OVERSIGHT.
 */
bool mail_approver_for(const struct actions *actions, const struct mail_caller *caller, const char *tenant_id,
                       bool decide, struct arena *arena, struct mail_approver *out, struct err *err) must_use;

/* ---- rows, for desk's own files (mail_rows.c) ---- */

/* ERR_UNAVAILABLE: mail is off. */
bool mail_is_on(const struct actions *actions, struct err *err) must_use;
/* ERR_DENIED that names the scope. */
bool mail_need_scope(const struct mail_caller *caller, enum mail_scope scope, struct err *err) must_use;
bool mail_need_operator(const struct mail_caller *caller, struct err *err) must_use;
/* Code in a sandbox that only its metadata leads to an inbox: it sends, for a person to approve, and does nothing else. */
bool mail_is_keyless(const struct mail_caller *caller);
/* ERR_DENIED for such a caller. */
bool mail_need_key(const struct mail_caller *caller, struct err *err) must_use;

/* Code in a sandbox that has signed up: its account is its own inbox, and what it makes ends with the sandbox. */
bool mail_is_sandbox_account(const struct mail_caller *caller);
/* The token that it gets: it works in connections from this sandbox, and nowhere else. Nothing of it is stored. */
void mail_sandbox_token(const struct actions *actions, struct str sandbox_id, struct secret *out);

/* Under the server's secret. `about`: which row and column, so that ciphers cannot be exchanged. */
struct str mail_encrypt(const struct actions *actions, struct str text, struct str about, struct arena *arena);
bool mail_decrypt(const struct actions *actions, struct str cipher, struct str about, struct arena *arena,
                  struct str *out, struct err *err) must_use;
/* A keyed hash: of an address, of a client's address. `label` keeps uses apart. */
void mail_keyed_hash(const struct actions *actions, const char *label, struct str text, char out[65]);
/* The hash by which an address of our domain is found. False: it is not of our domain, or not an address. */
bool mail_address_hash(const struct actions *actions, struct str address, char out[65]) must_use;

/* The tenant of this name; made at its first use. Empty: "default". ERR_INVALID: not a name. */
bool mail_tenant_ensure(const struct actions *actions, struct str name, struct arena *arena,
                        struct mail_tenant_row *out, struct err *err) must_use;
/*
 * The same for commands that are about a tenant that is there: a name that was mistyped must not become a new one.
 * "default" and names of teams count as there. ERR_NOT_FOUND.
 */
bool mail_tenant_find(const struct actions *actions, struct str name, struct arena *arena, struct mail_tenant_row *out,
                      struct err *err) must_use;

/* What the cipher of a tenant's oversight address is about. */
struct str mail_oversight_about(struct str tenant_id, struct arena *arena);

/* The part of an inbox's row that is encrypted. */
struct mail_profile {
    struct str local; /* of the address; the domain is the server's */
    struct str display_name, signature, auto_cc, auto_bcc;
    uint32_t undo_s;
    bool schedule_first, scheduling_enabled, forward_inbound, mcp_configured, auto_extract;
};
struct str mail_profile_lock(const struct actions *actions, struct str inbox_id, const struct mail_profile *profile,
                             struct arena *arena);
bool mail_profile_open(const struct actions *actions, const struct mail_inbox_row *row, struct arena *arena,
                       struct mail_profile *out, struct err *err) must_use;
/* `tenant`: its name. */
bool mail_info_of(const struct actions *actions, const struct mail_inbox_row *row, struct str tenant,
                  struct arena *arena, struct inbox_info *out, struct err *err) must_use;
/* The caller's row by a reference as in action_inbox_get(); of any tenant for the operator. By mail_no_such(). */
bool mail_row_for(const struct actions *actions, const struct mail_caller *caller, struct str ref, struct arena *arena,
                  struct mail_inbox_row *out, struct err *err) must_use;
/* By an id or an address, of any owner; also deleted ones. By mail_no_such(). For the operator's audit. */
bool mail_row_by_ref(const struct actions *actions, struct str ref, struct arena *arena, struct mail_inbox_row *out,
                     struct err *err) must_use;
/* The rows that this caller may list: its own, its account's; of all tenants for the operator. */
bool mail_rows_of(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                  struct mail_inbox_row **out, size_t *out_count, struct err *err) must_use;
/* What the caller reads with. False: it has no credential. */
bool mail_reader_of(const struct mail_caller *caller, struct arena *arena, struct mail_reader *out) must_use;

/* One more message of this size has arrived, for lists of inboxes and the limits. A failure is only logged. */
void mail_row_received(const struct actions *actions, const char *inbox_id, uint64_t bytes);
/* ERR_LIMIT: mail has no room on disk for more messages, this tenant's or the server's. */
bool mail_has_room(const struct actions *actions, struct str tenant_id, struct err *err) must_use;
/* The same for a new inbox; the operator is not bound by the tenant's number. */
bool mail_has_room_for_inbox(const struct actions *actions, struct str tenant_id, bool is_operator, struct err *err)
    must_use;

/* The inbox of a sandbox, at its first use (mail_inbox.c). Two at the same time get the same one. */
bool mail_sandbox_inbox(const struct actions *actions, struct str sandbox_id, const struct mail_tenant_row *tenant,
                        struct arena *arena, struct mail_sandbox_row *out, struct err *err) must_use;

/* The first inbox of a server, with a key whose text is kept elsewhere (mail_inbox.c). */
bool mail_first_inbox(const struct actions *actions, const struct mail_tenant_row *tenant, struct str account_id,
                      const struct secret *key, const struct mail_reader *account, struct arena *arena, struct err *err)
    must_use;

/* ---- keys (mail_key.c) ---- */

/* A new text: the prefix and 43 random characters of base62, which are 256 bits. */
void mail_key_text(bool is_lobster, struct secret *out);
/* The row of a key with this text: id, hash, prefix and the public half for grants. The rest is the caller's to fill in. */
void mail_key_row_of(const struct actions *actions, const struct secret *text, struct str name, struct arena *arena,
                     struct mail_key_row *out);

/* ---- codes and grants (mail_operator.c) ---- */

struct mail_asked {
    const char *action; /* "key.create" */
    struct str tenant_id, inbox_id;
    const struct str *parts; /* the parameters: the code is for exactly these */
    size_t part_count;
    struct str what; /* a sentence for the operator */
    int64_t target;
    bool by_any_key; /* also another key of the inbox may come with the code; a new request replaces the one before */
};
/*
 * The operator's consent to a request. Without a code: *out_pending is true, and the operator has a code to give. With the
 * right one: *out_pending is false, the code is spent, go on. ERR_DENIED: wrong. ERR_NOT_FOUND: nobody asked for this.
 * ERR_LIMIT. The operator consents by asking. *out_target may be NULL.
 */
bool mail_consent(const struct actions *actions, const struct mail_caller *caller, const struct mail_asked *asked,
                  struct str code, struct arena *arena, bool *out_pending, int64_t *out_target, struct err *err)
    must_use;

/* Grants that wait for the inbox's credential: `reader` is one. A failure is only logged: the next use tries again. */
void mail_grants_settle(const struct actions *actions, const struct mail_inbox_row *row,
                        const struct mail_reader *reader);
/* Grants that have ended lose their wraps. */
void mail_grants_expire(const struct actions *actions, int64_t now_us);
/*
 * The caller's grant for this inbox. ERR_NOT_FOUND by mail_no_such(); ERR_CONFLICT: not effective yet. Takes the same time
 * for a row that does not exist: its fields are then empty.
 */
bool mail_grant_reader(const struct actions *actions, const struct mail_caller *caller,
                       const struct mail_inbox_row *row, unsigned verb, struct arena *arena, struct mail_reader *out,
                       struct err *err) must_use;

/* Into the audit of an inbox or a tenant (mail_audit.c). A failure is only logged. `detail`: JSON. */
void mail_note(const struct actions *actions, struct str id, const char *action, struct str resource,
               const struct mail_caller *caller, struct str detail);
/* Makes the file of a tenant's audit, unless it is there. */
bool mail_tenant_audit_make(const struct actions *actions, struct str tenant_id, struct str actor, struct err *err)
    must_use;

/* ---- timers and counts in the rows of inboxes (mail_rows.c) ---- */

/* Marks the row: a change is under way, its next time and its count of held messages cannot be trusted. Durable. */
bool mail_row_dirty(const struct actions *actions, const char *inbox_id, struct err *err) must_use;
/* Nothing is under way: the mark goes. */
bool mail_row_idle(const struct actions *actions, const char *inbox_id, const struct mail_tick *tick, struct err *err)
    must_use;
struct mail_row_due {
    char id[MAIL_INBOX_ID_BYTES];
    int64_t next_us;
    uint32_t pending;
    bool is_dirty;
};
/*
 * Without the mark and with a timer at or before now_us, earliest first; `dirty`: those with the mark instead.
 * *out_next_us: the first timer of a row without the mark that is not among them; 0: none.
 */
bool mail_rows_due(const struct actions *actions, int64_t now_us, bool dirty, uint32_t limit, struct arena *arena,
                   struct mail_row_due **out, size_t *out_count, int64_t *out_next_us, struct err *err) must_use;
/* That hold messages, or have the mark: a message may have been held since the count was stored. tenant_id empty: of all tenants. */
bool mail_rows_pending(const struct actions *actions, const char *tenant_id, struct arena *arena,
                       struct mail_row_due **out, size_t *out_count, struct err *err) must_use;

/* ---- mail_read.c ---- */

/* Which attachment: its file name, or its number from 0 if `by_number`. ERR_NOT_FOUND. */
bool mail_attachment_find(const struct mail_content *content, struct str name, bool by_number, uint32_t *out,
                          struct err *err) must_use;

/* ---- mail_busy.c ---- */

/* One inbox in use. Valid from busy_begin() to busy_end(). */
struct busy_inbox;
/*
 * A change of this inbox begins. Its row gets the mark before the change, unless it has it already, so that a server that
 * starts after a crash looks at this inbox. The mark goes when the inbox is idle.
 */
bool busy_begin(const struct actions *actions, const char *inbox_id, struct busy_inbox **out, struct err *err) must_use;
/* next_us: when the inbox needs a tick because of this change; 0: at no known time. */
void busy_end(const struct actions *actions, struct busy_inbox *inbox, int64_t next_us);
/*
 * Between the two: lets leave what may leave. *state, if not NULL, becomes the state of this message if it has left. A
 * failure is logged, and tried again later.
 */
void busy_dispatch(const struct actions *actions, struct busy_inbox *inbox, const char *message_id,
                   enum mail_state *state);
/* Between the two: nothing leaves from busy_stop() to busy_go(), and no timer runs. */
void busy_stop(struct busy_inbox *inbox);
void busy_go(struct busy_inbox *inbox);
/*
 * A delivery to this inbox, around the call of its worker. False, and no end: it has just not answered anybody, or, unless
 * is_patient, another delivery has been waiting for it. Each would wait as long as a call may, and others with it.
 */
bool busy_arrival_begins(const struct actions *actions, const char *inbox_id, bool is_patient) must_use;
void busy_arrival_ends(const struct actions *actions, const char *inbox_id, bool has_answered);
/* Counts one attempt to send. False: too many; *out_retry_s says when to try again. */
bool busy_may_send(const struct actions *actions, const char *inbox_id, uint32_t *out_retry_s) must_use;

/* ---- mail_dispatch.c ---- */

/*
 * One turn: timers, then what may leave. One at a time for an inbox: the caller has the turn. *state as busy_dispatch().
 * False: something is unfinished, and repeating the turn later is safe.
 */
bool dispatch_turn(const struct actions *actions, const char *inbox_id, const char *message_id, enum mail_state *state,
                   struct mail_tick *out, struct err *err) must_use;
/* Where a test ends the process (base/hole.h), to see that the next one finishes the work. */
void mail_reached(const char *step);
void mail_tell(const struct actions *actions, enum mail_event_kind kind, const char *inbox_id, const char *message_id);

#endif
