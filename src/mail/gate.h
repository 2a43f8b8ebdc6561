/*
 * gate.h - the states of an outgoing message, and the one function that changes them.
 *
 * A message enters at MAIL_SCAN. In a gated mode it reaches MAIL_SENDING only with an approval of exactly its bytes: the
 * approval names a SHA-256 of MIME and envelope, is spent once, expires, and is never by the key that composed the
 * message. In MAIL_READ_ONLY none reaches it. Every change of state goes through gate_step(), which has no effect besides
 * the struct that it gets. The caller (inbox_*.c) stores the whole struct in the same transaction as the audit entry, and
 * only if the stored state is still the one that gate_step() started from.
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

/* An approval, as it is stored with the message. A message that was let go has one only if it left because of it. */
struct gate_approval {
    bool is_there;
    bool is_spent;                       /* by MAIL_QUEUED → MAIL_SENDING */
    unsigned char hash[GATE_HASH_BYTES]; /* of what the approver saw */
    int64_t expires_us;
};

struct gate_message {
    enum mail_state state;
    unsigned char hash[GATE_HASH_BYTES]; /* of the final MIME and envelope */
    int64_t send_at_us;                  /* 0: at once */
    bool schedule_first;                 /* gate_timing: asks for approval when its time has come */
    int64_t hold_us;                     /* how long it may be held each time; more than 0 */
    int64_t undo_until_us;               /* in MAIL_UNDO */
    int64_t hold_until_us;               /* in MAIL_HELD: then it expires */
    struct gate_approval approval;
};

enum gate_event {
    GATE_JUDGE,   /* the scan is done: hold, schedule, queue or reject */
    GATE_APPROVE, /* an approver says yes to `hash` */
    GATE_REJECT,  /* an approver says no to `hash` */
    GATE_CANCEL,  /* a key that may send for the inbox, or in MAIL_UNDO also an approver, takes it back */
    GATE_EDIT,    /* scheduled: new content and time, an approval is void. MAIL_SCAN follows: GATE_JUDGE comes next */
    GATE_RESCHEDULE, /* scheduled: another time and the same bytes, so an approval stays */
    GATE_TICK,       /* time has passed: schedule due, undo over, hold expired */
    GATE_PULLBACK,   /* the mode went down */
    GATE_SEND,       /* the dispatcher takes it: spends the approval, or holds or rejects what may not leave any more */
    GATE_SENT,       /* every recipient has it; of MAIL_UNCERTAIN: an approver says so */
    GATE_DEFER,      /* some wait for the outgoing queue */
    GATE_FAIL,       /* given up; of MAIL_UNCERTAIN: an approver says so */
    GATE_BOUNCE,     /* after MAIL_SENT */
    GATE_LOST,       /* found in MAIL_SENDING after a restart, and the outside may have it or not */
    GATE_REPEAT,     /* found in MAIL_SENDING after a restart, and repeating is safe: each recipient counts it once */
    GATE_EVENT_COUNT,
};
extern const char *const gate_event_name[GATE_EVENT_COUNT];

/* What the caller knows when the event happens. Events that do not need a field ignore it. */
struct gate_input {
    int64_t now_us;
    enum mail_mode mode; /* of the inbox, now: for each event up to GATE_SEND */
    /* Each recipient, by the allowlist as it is now: GATE_JUDGE, GATE_TICK, GATE_RESCHEDULE, GATE_PULLBACK, GATE_SEND. */
    bool all_allowlisted;
    bool scan_blocks; /* GATE_JUDGE: the scan forbids it */
    uint32_t scopes;  /* of the key that asks; GATE_APPROVE and GATE_REJECT need oversight, GATE_CANCEL send */
    bool is_composer; /* the key that asks has composed the message */
    /* GATE_APPROVE, GATE_REJECT: what the approver saw. GATE_EDIT: of the new content. */
    unsigned char hash[GATE_HASH_BYTES];
    int64_t send_at_us;  /* GATE_EDIT, GATE_RESCHEDULE: the new time; 0: at once */
    int64_t approval_us; /* GATE_APPROVE: how long it is good, from now or from the time that is scheduled */
    uint32_t undo_s;     /* GATE_APPROVE: of the inbox; 0: none */
};

/* May `to` follow `from`? The table. Never from == to. */
bool gate_may_become(enum mail_state from, enum mail_state to);
/* Could gate_step() have made it? A file that was damaged or changed by others may hold what it could not. */
bool gate_message_valid(const struct gate_message *message);
/* Approved: there, not spent, for exactly these bytes, and not expired. */
bool gate_is_approved(const struct gate_message *message, int64_t now_us);
/* When GATE_TICK is due. 0: no timer. */
int64_t gate_timer_us(const struct gate_message *message);
/*
 * Changes the message, perhaps over several states (HELD, APPROVED, QUEUED: MAIL_APPROVED never stays). It may succeed and
 * leave the state as it is (nothing is due yet, held already). The caller looks at the state: GATE_SEND, for one, succeeds
 * with MAIL_HELD when the mode has gone down. On failure the message is unchanged: ERR_CONFLICT (wrong state, another hash,
 * expired), ERR_DENIED (may not decide or cancel; GATE_JUDGE in a read_only inbox), ERR_INVALID (no such event or mode, a
 * period that is not positive), ERR_INTERNAL (the message is not valid).
 */
bool gate_step(struct gate_message *message, enum gate_event event, const struct gate_input *input, struct err *err)
    must_use;

#endif
