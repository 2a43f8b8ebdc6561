/*
 * mail_rules.h - what may happen to mail: decisions without effects.
 *
 * Pure: no clock, no store, no allocation. mail/gate.c asks these functions before each change of state, and CBMC checks
 * both as compiled (tests/model/).
 */
#ifndef POLICY_MAIL_RULES_H
#define POLICY_MAIL_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/str.h"

/* The ladder: each mode leaves the agent more freedom than the one before. */
enum mail_mode {
    MAIL_READ_ONLY,  /* nothing leaves, approved or not */
    MAIL_GATED_ALL,  /* a person approves each message, in and out */
    MAIL_GATED_SEND, /* a person approves each message that leaves, unless all recipients are on the allowlist */
    MAIL_MONITORED,  /* messages leave at once, with a blind copy to the approvers */
    MAIL_AUTONOMOUS, /* messages leave at once */
    MAIL_MODE_COUNT,
};
extern const char *const mail_mode_name[MAIL_MODE_COUNT]; /* "gated_send" */
bool mail_mode_parse(struct str name, enum mail_mode *out) must_use;

/* The states of an outgoing message. gate.c has the table of what may follow. */
enum mail_state {
    MAIL_SCAN,      /* accepted, not judged yet */
    MAIL_HELD,      /* waits for a person */
    MAIL_APPROVED,  /* approved; the next step follows in the same transaction */
    MAIL_SCHEDULED, /* waits for its time */
    MAIL_UNDO,      /* approved; can still be cancelled for some seconds */
    MAIL_QUEUED,    /* may leave */
    MAIL_SENDING,   /* a release record is spent; it is leaving */
    MAIL_DEFERRED,  /* some recipients have it, others wait for the outgoing queue */
    MAIL_SENT,
    MAIL_UNCERTAIN, /* we stopped in the middle of sending to the outside: a person decides */
    MAIL_REJECTED,
    MAIL_CANCELLED,
    MAIL_FAILED,
    MAIL_EXPIRED, /* held for too long */
    MAIL_BOUNCED,
    MAIL_STATE_COUNT,
};
extern const char *const mail_state_name[MAIL_STATE_COUNT]; /* "held" */
/* Nothing follows it. MAIL_SENT is not final: a bounce may follow. */
bool mail_state_is_final(enum mail_state state);
/* The gate has let it go: MAIL_SENDING and what comes after. No way leads back from there. */
bool mail_state_has_left(enum mail_state state);

/* What a key may do. */
enum mail_scope {
    MAIL_SCOPE_READ = 1,
    MAIL_SCOPE_SEND = 2,
    MAIL_SCOPE_ADMIN = 4, /* settings of the inbox, keys, webhooks; with a code of the operator */
    MAIL_SCOPE_OVERSIGHT = 8,
    MAIL_SCOPE_OVERSIGHT_READ = 16,
    MAIL_SCOPE_ALL = 31,
};
/* send and oversight never together, nor admin (which stands for send) and oversight; no unknown bit; not empty. */
bool mail_scopes_valid(uint32_t scopes);
/*
 * Admin stands for read and send, never for oversight; oversight stands for oversight_read. A set that is not valid allows
 * nothing: a key that got both in some other way can do neither.
 */
bool mail_scope_allows(uint32_t scopes, enum mail_scope needed);
/* May this key decide about this message? Needs oversight, and must not be the key that has composed it. */
bool mail_may_decide(uint32_t scopes, bool is_composer);

/*
 * May this key take a message back? A key that may send for the inbox, because an inbox is one agent's, however many keys
 * that agent has had. An approver may while the undo window is open.
 */
bool mail_may_cancel(uint32_t scopes, bool is_composer, enum mail_state state);

/* Does a person have to approve? MAIL_READ_ONLY counts as gated. */
bool mail_is_gated(enum mail_mode mode, bool all_allowlisted);

enum mail_verdict {
    MAIL_RELEASE, /* it may leave */
    MAIL_HOLD,    /* a person decides first */
    MAIL_REFUSE,  /* the inbox is read_only */
};
/* May it leave now? Asked when a message is accepted, when its time has come, when the mode goes down and at dispatch. */
enum mail_verdict mail_judge(enum mail_mode mode, bool all_allowlisted, bool is_approved);
/* Down is free; up needs the operator's code. The same mode is no change: allowed. */
bool mail_mode_may_change(enum mail_mode from, enum mail_mode to, bool has_code);

/*
 * Does one entry of an allowlist cover an address? "a@b.example" covers that address, "*@b.example" each address directly
 * at that domain. Letter case does not matter. An address that mail_allow_valid() would not take as an entry (quotes, no
 * ASCII, two @) is never covered: such mail is held. The caller demands that each recipient (to, cc, bcc) is covered.
 */
bool mail_allow_covers(struct str pattern, struct str address);
/* Is it a valid entry? local@domain or *@domain: an RFC 5321 dot-string and a host name, ASCII (xn-- for others). */
bool mail_allow_valid(struct str pattern);

/*
 * "a@b.example" of "Name <a@b.example>"; a text without <> at its end as it is. A name may have <> too: the last < counts.
 * Not checked further.
 */
struct str mail_bare_address(struct str shown);

/* ---- local parts of our own addresses ---- */

enum { MAIL_LOCAL_LEAST = 3, MAIL_LOCAL_MOST = 64 };
/* Of a new address: [a-z0-9]([a-z0-9._-]*[a-z0-9])?, 3 to 64 bytes, no "..", not reserved. */
bool mail_local_valid(struct str local);
/* Names that people take for the server's operator. Dots and letter case do not hide one: "ad.min" is "admin". */
bool mail_local_reserved(struct str local);
/*
 * What makes a local part the same as another: lower case, without dots, without what follows a plus. Compared and hashed
 * for lookups. False: no address of ours has it (too long, other characters, nothing is left).
 */
bool mail_local_key(struct str local, char out[MAIL_LOCAL_MOST + 1]) must_use;

#endif
