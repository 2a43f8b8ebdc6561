/*
 * oracle.h - what the gate promises, written down a second time and independently of it.
 *
 * The oracle watches one message. It keeps its own record of the bytes that the message has and of the last approval that
 * was given and not used, and after each gate_step() it checks whether that step was one that the promises permit. Two
 * programs use it: tests/unit/mail/gate_test.c with every sequence over a small set of inputs, and the CBMC harnesses
 * with all inputs.
 *
 * The includer defines ORACLE_CHECK(condition, "text").
 */
#ifndef MODEL_ORACLE_H
#define MODEL_ORACLE_H

#include <string.h>

#include "mail/gate.h"

struct oracle {
    unsigned char bytes[GATE_HASH_BYTES]; /* hash of what would leave */
    /* The last yes of an approver: a token that is taken away when it is used, and when the bytes change. */
    bool has_yes;
    unsigned char yes_bytes[GATE_HASH_BYTES];
    int64_t yes_expires_us;
    bool was_sent; /* MAIL_SENDING was entered */
};

static inline bool oracle_same(const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, GATE_HASH_BYTES) == 0;
}

static inline bool oracle_same_message(const struct gate_message *a, const struct gate_message *b)
{
    return a->state == b->state && oracle_same(a->hash, b->hash) && a->send_at_us == b->send_at_us &&
           a->schedule_first == b->schedule_first && a->hold_us == b->hold_us && a->undo_until_us == b->undo_until_us &&
           a->hold_until_us == b->hold_until_us && a->approval.is_there == b->approval.is_there &&
           a->approval.is_spent == b->approval.is_spent && oracle_same(a->approval.hash, b->approval.hash) &&
           a->approval.expires_us == b->approval.expires_us;
}

/* For exactly these bytes, unused, in time. */
static inline bool oracle_is_approved(const struct oracle *o, int64_t now_us)
{
    return o->has_yes && oracle_same(o->yes_bytes, o->bytes) && now_us < o->yes_expires_us;
}

/* Not mail_is_gated(), which is one of the things to check. */
static inline bool oracle_needs_person(enum mail_mode mode, bool all_allowlisted)
{
    return mode == MAIL_GATED_ALL || (mode == MAIL_GATED_SEND && !all_allowlisted);
}

/* Nor mail_may_decide(). */
static inline bool oracle_is_approver(uint32_t scopes, bool is_composer)
{
    return (scopes & MAIL_SCOPE_OVERSIGHT) && !(scopes & (MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN)) && !is_composer;
}

static inline bool oracle_is_final(enum mail_state state)
{
    return state == MAIL_REJECTED || state == MAIL_CANCELLED || state == MAIL_FAILED || state == MAIL_EXPIRED ||
           state == MAIL_BOUNCED;
}

static inline bool oracle_has_left(enum mail_state state)
{
    return state == MAIL_SENDING || state == MAIL_DEFERRED || state == MAIL_SENT || state == MAIL_UNCERTAIN ||
           state == MAIL_FAILED || state == MAIL_BOUNCED;
}

/*
 * What holds between message and record after each step. It is inductive: if it holds before any step, it holds after it,
 * so that no bound on the number of steps is needed.
 */
static inline bool oracle_agrees(const struct oracle *o, const struct gate_message *m)
{
    return gate_message_valid(m) && oracle_same(m->hash, o->bytes) && oracle_has_left(m->state) == o->was_sent &&
           /* The gate believes in an unused approval only if there is one, and not for longer. */
           (!m->approval.is_there || m->approval.is_spent ||
            (o->has_yes && oracle_same(o->yes_bytes, m->approval.hash) && m->approval.expires_us <= o->yes_expires_us));
}

static inline void oracle_begin(struct oracle *o, const struct gate_message *m)
{
    memset(o, 0, sizeof *o);
    memcpy(o->bytes, m->hash, GATE_HASH_BYTES);
}

static inline void oracle_check_sending(struct oracle *o, const struct gate_message *before, enum gate_event event,
                                        const struct gate_input *in, const struct gate_message *after)
{
    bool is_approved = oracle_is_approved(o, in->now_us);

    ORACLE_CHECK(event == GATE_SEND && before->state == MAIL_QUEUED, "only the dispatcher's event leads to SENDING");
    ORACLE_CHECK(!o->was_sent, "a message is sent at most once");
    ORACLE_CHECK(in->mode != MAIL_READ_ONLY, "nothing leaves a read_only inbox");
    ORACLE_CHECK(is_approved || !oracle_needs_person(in->mode, in->all_allowlisted),
                 "in gated modes SENDING needs an approval of exactly these bytes");
    ORACLE_CHECK(!after->approval.is_there || (is_approved && after->approval.is_spent),
                 "what left claims an approval only if it has spent one");
    ORACLE_CHECK(!oracle_needs_person(in->mode, in->all_allowlisted) || after->approval.is_spent,
                 "an approval that was needed is spent");
    o->was_sent = true;
    o->has_yes = false;
}

static inline void oracle_check_pull_back(const struct oracle *o, const struct gate_input *in,
                                          const struct gate_message *after)
{
    bool is_approved = oracle_is_approved(o, in->now_us);

    if (in->mode == MAIL_READ_ONLY)
        ORACLE_CHECK(after->state == MAIL_REJECTED, "read_only takes back everything that has not left");
    if (oracle_needs_person(in->mode, in->all_allowlisted) && !is_approved)
        ORACLE_CHECK(after->state == MAIL_HELD || after->state == MAIL_SCAN ||
                         (after->state == MAIL_SCHEDULED && after->schedule_first),
                     "a lower mode takes back what is not approved");
}

/* `worked` is what gate_step() has returned. */
static inline void oracle_step(struct oracle *o, const struct gate_message *before, enum gate_event event,
                               const struct gate_input *in, bool worked, const struct gate_message *after)
{
    enum mail_state from = before->state, to = after->state;

    if (!worked) {
        ORACLE_CHECK(oracle_same_message(before, after), "a refused step changes nothing");
        return;
    }
    ORACLE_CHECK(!oracle_is_final(from) && !mail_state_is_final(from), "nothing leaves a final state");
    ORACLE_CHECK(!oracle_has_left(from) || oracle_has_left(to), "no way leads back from SENDING");
    ORACLE_CHECK(to != MAIL_APPROVED, "APPROVED does not stay");
    if (event == GATE_APPROVE)
        ORACLE_CHECK(gate_may_become(from, MAIL_APPROVED) && gate_may_become(MAIL_APPROVED, to),
                     "an approval takes two edges of the table");
    else
        ORACLE_CHECK(from == to || gate_may_become(from, to), "a step takes an edge of the table");
    if (event == GATE_APPROVE || event == GATE_REJECT) {
        ORACLE_CHECK(from == MAIL_HELD, "only held mail is decided about");
        ORACLE_CHECK(oracle_is_approver(in->scopes, in->is_composer),
                     "a key with send, and the composer, never decide");
        ORACLE_CHECK(oracle_same(in->hash, o->bytes), "a decision is about the bytes that the approver saw");
        ORACLE_CHECK(in->now_us < before->hold_until_us, "an expired message is not decided about");
    }
    if (event == GATE_APPROVE) {
        ORACLE_CHECK(in->mode != MAIL_READ_ONLY, "nothing is approved in a read_only inbox");
        o->has_yes = true;
        memcpy(o->yes_bytes, in->hash, GATE_HASH_BYTES);
        o->yes_expires_us = after->approval.expires_us;
        ORACLE_CHECK(o->yes_expires_us > in->now_us || in->now_us == INT64_MAX, "an approval is good for some time");
    }
    if (event == GATE_JUDGE) {
        ORACLE_CHECK(in->mode != MAIL_READ_ONLY, "a read_only inbox accepts nothing");
        ORACLE_CHECK(!in->scan_blocks || to == MAIL_REJECTED, "what the scan blocks is rejected");
        ORACLE_CHECK(!oracle_needs_person(in->mode, in->all_allowlisted) || to == MAIL_HELD || to == MAIL_REJECTED ||
                         (to == MAIL_SCHEDULED && before->schedule_first),
                     "a new message in a gated mode is held");
    }
    if (event == GATE_CANCEL)
        ORACLE_CHECK((in->scopes & (MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN)) ||
                         (from == MAIL_UNDO && oracle_is_approver(in->scopes, in->is_composer)),
                     "a message is cancelled by its sender, or by an approver in time");
    if (from == MAIL_UNCERTAIN && to != from)
        ORACLE_CHECK(oracle_is_approver(in->scopes, in->is_composer), "an approver says what became of uncertain mail");
    if (event == GATE_EDIT) {
        ORACLE_CHECK(from == MAIL_SCHEDULED && to == MAIL_SCAN, "an edit is judged anew");
        memcpy(o->bytes, in->hash, GATE_HASH_BYTES);
        o->has_yes = false;
        ORACLE_CHECK(!after->approval.is_there, "an edit voids an approval");
    } else {
        ORACLE_CHECK(oracle_same(before->hash, after->hash), "only an edit changes the bytes");
    }
    if (event != GATE_APPROVE)
        ORACLE_CHECK(before->approval.is_there || !after->approval.is_there, "only an approver approves");
    if (from != MAIL_SENDING && to == MAIL_SENDING)
        oracle_check_sending(o, before, event, in, after);
    if (event == GATE_PULLBACK)
        oracle_check_pull_back(o, in, after);
    ORACLE_CHECK(oracle_agrees(o, after), "message and record agree");
}

#endif
