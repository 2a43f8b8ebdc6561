/*
 * gate.h - the states of an outgoing message, and the one function that changes them.
 *
 * A message enters at MAIL_SCAN. In a gated mode it reaches MAIL_SENDING only with an approval of exactly its bytes: the
 * approval names a SHA-256 of MIME and envelope, is spent once, expires, and is never by the key that composed the
 * message. Every change of state goes through gate_step(), which has no effect besides the struct that it gets. The
 * caller (inbox_*.c) stores the result in the same transaction as the audit entry, and only if the stored state is still
 * the one that gate_step() started from.
 *
 * Pure, so that CBMC can check it as compiled.
 */
#ifndef MAIL_GATE_H
#define MAIL_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "policy/mail_rules.h"

enum { GATE_HASH_BYTES = 32 };

/* An approval, as it is stored with the message. */
struct gate_approval {
    bool is_there;
    bool is_spent;
    unsigned char hash[GATE_HASH_BYTES]; /* of what the approver saw */
    int64_t expires_us;
};

struct gate_message {
    enum mail_state state;
    unsigned char hash[GATE_HASH_BYTES]; /* of the final MIME and envelope */
    int64_t send_at_us;                  /* 0: at once */
    bool schedule_first;                 /* gate_timing: asks for approval when its time has come */
    int64_t undo_until_us;               /* in MAIL_UNDO */
    int64_t hold_until_us;               /* in MAIL_HELD: then it expires */
    struct gate_approval approval;
};

enum gate_event {
    GATE_JUDGE,    /* the scan is done: hold, schedule, queue or reject */
    GATE_APPROVE,  /* an approver says yes to `hash` */
    GATE_REJECT,   /* an approver says no */
    GATE_CANCEL,   /* the composer, or in MAIL_UNDO also an approver, takes it back */
    GATE_EDIT,     /* new content: `hash` is the new one, an approval is void */
    GATE_TICK,     /* time has passed: schedule due, undo over, hold expired */
    GATE_PULLBACK, /* the mode went down */
    GATE_SEND,     /* the dispatcher takes it: spends the approval */
    GATE_SENT,     /* every recipient has it */
    GATE_DEFER,    /* some wait for the outgoing queue */
    GATE_FAIL,
    GATE_BOUNCE,
    GATE_LOST,   /* found in MAIL_SENDING after a restart, and the outside may have it or not */
    GATE_REPEAT, /* found in MAIL_SENDING after a restart, and repeating is safe: each recipient counts it once */
    GATE_EVENT_COUNT,
};
extern const char *const gate_event_name[GATE_EVENT_COUNT];

/* What the caller knows when the event happens. */
struct gate_input {
    int64_t now_us;
    enum mail_mode mode; /* of the inbox, now */
    bool all_allowlisted;
    bool scan_blocks;                    /* GATE_JUDGE: the scan forbids it */
    uint32_t scopes;                     /* of the key that asks; GATE_APPROVE and GATE_REJECT need oversight */
    bool is_composer;                    /* the key that asks has composed the message */
    unsigned char hash[GATE_HASH_BYTES]; /* GATE_APPROVE: what the approver saw; GATE_EDIT: the new content */
    int64_t approval_expires_us;         /* GATE_APPROVE */
    uint32_t undo_s;                     /* GATE_APPROVE: of the inbox; 0: none */
    int64_t hold_until_us;               /* when entering MAIL_HELD */
};

/* May `to` follow `from`? The table. */
bool gate_may_become(enum mail_state from, enum mail_state to);
/*
 * Changes the message, perhaps over several states (HELD, APPROVED, QUEUED). On failure it is unchanged: ERR_CONFLICT
 * (wrong state, another hash, approval spent or expired), ERR_DENIED (may not decide), ERR_INVALID.
 */
bool gate_step(struct gate_message *message, enum gate_event event, const struct gate_input *input, struct err *err)
    must_use;

#endif
