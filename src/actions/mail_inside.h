/*
 * mail_inside.h - actions on mail as their own files see them.
 *
 *   mail_caller.c, mail_inbox.c, mail_key.c, mail_operator.c, mail_account.c   callers, inboxes, their rows in the store
 *   mail_send.c, mail_decide.c, mail_read.c, mail_dispatch.c                   what happens to messages
 *   mail_busy.c                                                                inboxes in use: locks, rates, timers
 *
 * Every function that an API calls begins with mail_box_for() or mail_box_of_message(): tenant, inbox, scope and grant
 * are checked there and nowhere else.
 */
#ifndef ACTIONS_MAIL_INSIDE_H
#define ACTIONS_MAIL_INSIDE_H

#include "actions/mail.h"

/* ---- rows (mail_inbox.c) ---- */

/* ERR_NOT_FOUND, with the one text for inboxes, messages, threads and links that a caller may not have. */
bool mail_no_such(struct err *err);

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

/* ---- timers and counts in the rows of inboxes (store) ---- */

/* Marks the row: a change is under way, its next time and its count of held messages cannot be trusted. Durable. */
bool mail_row_dirty(const struct actions *actions, const char *inbox_id, struct err *err) must_use;
/* Nothing is under way: the mark goes. next_us 0: no timer. */
bool mail_row_idle(const struct actions *actions, const char *inbox_id, int64_t next_us, uint32_t pending,
                   struct err *err) must_use;
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
/* Counts one attempt to send. False: too many; *out_retry_s says when to try again. */
bool busy_may_send(const struct actions *actions, const char *inbox_id, uint32_t *out_retry_s) must_use;

/* ---- mail_dispatch.c ---- */

/* What the dispatcher remembers of an inbox between two turns. */
struct dispatch_memory {
    char release_id[MAIL_MESSAGE_ID_BYTES]; /* failed the last time… */
    uint32_t failures;                      /* …and so often in a row */
};
/*
 * One turn: timers, then what may leave. One at a time for an inbox: the caller has the turn. *state as busy_dispatch().
 * False: something is unfinished, and repeating the turn later is safe.
 */
bool dispatch_turn(const struct actions *actions, const char *inbox_id, struct dispatch_memory *memory,
                   const char *message_id, enum mail_state *state, struct mail_tick *out, struct err *err) must_use;
void mail_tell(const struct actions *actions, enum mail_event_kind kind, const char *inbox_id, const char *message_id);

#endif
