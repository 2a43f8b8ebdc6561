/*
 * Theory of operation: a message is in exactly one state, and this table says what may follow it.
 *
 *                 ┌──────────── edit ────────────┐
 *                 ▼                              │
 *   new ──────► SCAN ─────────────────────► SCHEDULED ──► (HELD, QUEUED when due; CANCELLED)
 *                 │  │                           ▲
 *        (gated)  ▼  │ (not gated)               │
 *               HELD │ ──► APPROVED ─────────────┤         HELD ──► REJECTED, CANCELLED, EXPIRED
 *                 ▲  │                           ▼
 *                 │  └──────► QUEUED ◄────────  UNDO ──► CANCELLED
 *                 └─ no more ──┘ │
 *                    allowed     ▼
 *                             SENDING ──► SENT ──► BOUNCED
 *                                └──────► DEFERRED, UNCERTAIN, FAILED ──► SENT, FAILED
 *
 * gate_step() works on a copy: it asks whether the event belongs to the state, lets the event's own function change the
 * copy, and puts the copy in place only if that has worked. Each change of state is made by enter(), which holds the two
 * things that must never be forgotten: the table, and that an approval does not live longer than what it was given for.
 *
 * Three things keep unapproved mail in. An approval is made in one place (approve()) and names the bytes that the message
 * has. A message changes its bytes in one place (edit()), which removes the approval. And MAIL_SENDING is entered in one
 * place (send()), which asks mail_judge() again, with the mode and the allowlist as they are at that moment. What was said
 * about the message earlier is not believed: that is why a mode that goes down stops mail that is already queued, even if
 * nobody sends GATE_PULLBACK.
 */
#include "mail/gate.h"

#include <assert.h>
#include <string.h>

const char *const gate_event_name[GATE_EVENT_COUNT] = {
    [GATE_JUDGE] = "judge",   [GATE_APPROVE] = "approve",    [GATE_REJECT] = "reject",
    [GATE_CANCEL] = "cancel", [GATE_EDIT] = "edit",          [GATE_RESCHEDULE] = "reschedule",
    [GATE_TICK] = "tick",     [GATE_PULLBACK] = "pull back", [GATE_SEND] = "send",
    [GATE_SENT] = "settle",   [GATE_DEFER] = "defer",        [GATE_FAIL] = "fail",
    [GATE_BOUNCE] = "bounce", [GATE_LOST] = "lose",          [GATE_REPEAT] = "repeat",
};

/* ---- the tables ---- */

static const unsigned may_become[MAIL_STATE_COUNT] = {
    [MAIL_SCAN] = BIT(MAIL_HELD) | BIT(MAIL_SCHEDULED) | BIT(MAIL_QUEUED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED),
    [MAIL_HELD] = BIT(MAIL_APPROVED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED) | BIT(MAIL_EXPIRED),
    [MAIL_APPROVED] = BIT(MAIL_SCHEDULED) | BIT(MAIL_UNDO) | BIT(MAIL_QUEUED),
    [MAIL_SCHEDULED] = BIT(MAIL_SCAN) | BIT(MAIL_HELD) | BIT(MAIL_QUEUED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED),
    [MAIL_UNDO] = BIT(MAIL_HELD) | BIT(MAIL_QUEUED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED),
    [MAIL_QUEUED] = BIT(MAIL_SENDING) | BIT(MAIL_HELD) | BIT(MAIL_REJECTED),
    [MAIL_SENDING] = BIT(MAIL_SENT) | BIT(MAIL_DEFERRED) | BIT(MAIL_UNCERTAIN) | BIT(MAIL_FAILED),
    [MAIL_DEFERRED] = BIT(MAIL_SENT) | BIT(MAIL_FAILED),
    [MAIL_UNCERTAIN] = BIT(MAIL_SENT) | BIT(MAIL_FAILED),
    [MAIL_SENT] = BIT(MAIL_BOUNCED),
};

/* The states in which an event can happen. In all others it is ERR_CONFLICT. */
static const unsigned happens_in[GATE_EVENT_COUNT] = {
    [GATE_JUDGE] = BIT(MAIL_SCAN),
    [GATE_APPROVE] = BIT(MAIL_HELD),
    [GATE_REJECT] = BIT(MAIL_HELD),
    [GATE_CANCEL] = BIT(MAIL_SCAN) | BIT(MAIL_HELD) | BIT(MAIL_SCHEDULED) | BIT(MAIL_UNDO),
    [GATE_EDIT] = BIT(MAIL_SCHEDULED),
    [GATE_RESCHEDULE] = BIT(MAIL_SCHEDULED),
    [GATE_TICK] = BIT(MAIL_HELD) | BIT(MAIL_SCHEDULED) | BIT(MAIL_UNDO),
    [GATE_PULLBACK] = BIT(MAIL_SCAN) | BIT(MAIL_HELD) | BIT(MAIL_SCHEDULED) | BIT(MAIL_UNDO) | BIT(MAIL_QUEUED),
    [GATE_SEND] = BIT(MAIL_QUEUED),
    [GATE_SENT] = BIT(MAIL_SENDING) | BIT(MAIL_DEFERRED) | BIT(MAIL_UNCERTAIN),
    [GATE_DEFER] = BIT(MAIL_SENDING) | BIT(MAIL_DEFERRED),
    [GATE_FAIL] = BIT(MAIL_SENDING) | BIT(MAIL_DEFERRED) | BIT(MAIL_UNCERTAIN),
    [GATE_BOUNCE] = BIT(MAIL_SENT),
    [GATE_LOST] = BIT(MAIL_SENDING),
    [GATE_REPEAT] = BIT(MAIL_SENDING),
};

bool gate_may_become(enum mail_state from, enum mail_state to)
{
    return (unsigned)from < MAIL_STATE_COUNT && (unsigned)to < MAIL_STATE_COUNT && (may_become[from] & BIT(to));
}

/* ---- what a message says ---- */

static bool same_hash(const unsigned char a[GATE_HASH_BYTES], const unsigned char b[GATE_HASH_BYTES])
{
    return memcmp(a, b, GATE_HASH_BYTES) == 0;
}

bool gate_is_approved(const struct gate_message *message, int64_t now_us)
{
    const struct gate_approval *approval = &message->approval;

    return approval->is_there && !approval->is_spent && same_hash(approval->hash, message->hash) &&
           now_us < approval->expires_us;
}

bool gate_message_valid(const struct gate_message *message)
{
    const struct gate_approval *approval = &message->approval;

    if (message->hold_us <= 0 || (approval->is_spent && !approval->is_there))
        return false;
    if (approval->is_there && !same_hash(approval->hash, message->hash))
        return false;
    switch (message->state) {
    case MAIL_SCAN:
    case MAIL_HELD:
    case MAIL_REJECTED:
    case MAIL_CANCELLED:
    case MAIL_EXPIRED:
        return !approval->is_there;
    case MAIL_SCHEDULED:
    case MAIL_QUEUED:
        return !approval->is_spent;
    case MAIL_UNDO:
        return approval->is_there && !approval->is_spent;
    case MAIL_SENDING:
    case MAIL_DEFERRED:
    case MAIL_SENT:
    case MAIL_UNCERTAIN:
    case MAIL_FAILED:
    case MAIL_BOUNCED:
        return approval->is_there == approval->is_spent;
    default:
        return false; /* MAIL_APPROVED does not stay, and other numbers are no states */
    }
}

int64_t gate_timer_us(const struct gate_message *message)
{
    switch (message->state) {
    case MAIL_HELD:
        return message->hold_until_us;
    case MAIL_SCHEDULED:
        return message->send_at_us;
    case MAIL_UNDO:
        return message->undo_until_us;
    default:
        return 0;
    }
}

/* ---- changes ---- */

/* Times come from clients, too: the end of time is as far as it goes. */
static int64_t later(int64_t at_us, int64_t by_us)
{
    return at_us > INT64_MAX - by_us ? INT64_MAX : at_us + by_us;
}

static void enter(struct gate_message *m, enum mail_state next, const struct gate_input *in)
{
    assert(gate_may_become(m->state, next));
    m->state = next;
    switch (next) {
    case MAIL_HELD:
        m->hold_until_us = later(in->now_us, m->hold_us);
        m->approval = (struct gate_approval){ 0 };
        break;
    case MAIL_SCAN:
    case MAIL_REJECTED:
    case MAIL_CANCELLED:
    case MAIL_EXPIRED:
        m->approval = (struct gate_approval){ 0 };
        break;
    default:
        break;
    }
}

static enum mail_verdict judge_now(const struct gate_message *m, const struct gate_input *in)
{
    return mail_judge(in->mode, in->all_allowlisted, gate_is_approved(m, in->now_us));
}

static bool is_due(const struct gate_message *m, const struct gate_input *in)
{
    return m->send_at_us <= in->now_us;
}

static bool judge(struct gate_message *m, const struct gate_input *in, struct err *err)
{
    enum mail_verdict verdict = judge_now(m, in);

    if (verdict == MAIL_REFUSE)
        return err_set(err, ERR_DENIED, "this inbox is read_only: it cannot send");
    if (in->scan_blocks)
        enter(m, MAIL_REJECTED, in);
    else if (!is_due(m, in) && (verdict == MAIL_RELEASE || m->schedule_first))
        enter(m, MAIL_SCHEDULED, in);
    else
        enter(m, verdict == MAIL_HOLD ? MAIL_HELD : MAIL_QUEUED, in);
    return true;
}

/* For yes and no alike: by an approver, about what they saw, in time. */
static bool may_decide(const struct gate_message *m, const struct gate_input *in, struct err *err)
{
    if (in->is_composer)
        return err_set(err, ERR_DENIED, "the key that has sent a message cannot decide about it");
    if (!mail_may_decide(in->scopes, in->is_composer))
        return err_set(err, ERR_DENIED, "this key cannot decide about messages: it needs the scope oversight");
    if (!same_hash(in->hash, m->hash))
        return err_set(err, ERR_CONFLICT, "the message is not the one that was shown: look at it again");
    if (in->now_us >= m->hold_until_us)
        return err_set(err, ERR_CONFLICT, "the message was held for too long and has expired");
    return true;
}

static bool approve(struct gate_message *m, const struct gate_input *in, struct err *err)
{
    int64_t leaves_us = later(in->now_us, (int64_t)in->undo_s * 1000000);

    if (!may_decide(m, in, err))
        return false;
    if (in->approval_us <= 0)
        return err_set(err, ERR_INVALID, "an approval must be good for some time");
    if (in->mode == MAIL_READ_ONLY)
        return err_set(err, ERR_CONFLICT, "the inbox is read_only: nothing can leave it, so nothing can be approved");
    enter(m, MAIL_APPROVED, in);
    m->approval.is_there = true;
    memcpy(m->approval.hash, in->hash, GATE_HASH_BYTES);
    m->approval.expires_us = later(MAX(leaves_us, m->send_at_us), in->approval_us);
    if (!is_due(m, in)) {
        enter(m, MAIL_SCHEDULED, in);
    } else if (in->undo_s > 0) {
        enter(m, MAIL_UNDO, in);
        m->undo_until_us = leaves_us;
    } else {
        enter(m, MAIL_QUEUED, in);
    }
    return true;
}

static bool reject(struct gate_message *m, const struct gate_input *in, struct err *err)
{
    if (!may_decide(m, in, err))
        return false;
    enter(m, MAIL_REJECTED, in);
    return true;
}

static bool cancel(struct gate_message *m, const struct gate_input *in, struct err *err)
{
    if (!mail_may_cancel(in->scopes, in->is_composer, m->state))
        return err_set(err, ERR_DENIED, "this key cannot cancel the message: it needs the scope send");
    enter(m, MAIL_CANCELLED, in);
    return true;
}

static bool edit(struct gate_message *m, const struct gate_input *in)
{
    enter(m, MAIL_SCAN, in); /* without the approval, which was for other bytes */
    memcpy(m->hash, in->hash, GATE_HASH_BYTES);
    m->send_at_us = in->send_at_us;
    return true;
}

/* Its time has come: to the queue, or to a person. */
static bool release(struct gate_message *m, const struct gate_input *in)
{
    switch (judge_now(m, in)) {
    case MAIL_RELEASE:
        enter(m, MAIL_QUEUED, in);
        break;
    case MAIL_HOLD:
        enter(m, MAIL_HELD, in);
        break;
    default:
        enter(m, MAIL_REJECTED, in);
        break;
    }
    return true;
}

static bool tick(struct gate_message *m, const struct gate_input *in)
{
    if (in->now_us < gate_timer_us(m))
        return true;
    if (m->state != MAIL_HELD)
        return release(m, in);
    enter(m, MAIL_EXPIRED, in);
    return true;
}

static bool reschedule(struct gate_message *m, const struct gate_input *in)
{
    m->send_at_us = in->send_at_us;
    return tick(m, in);
}

static bool pull_back(struct gate_message *m, const struct gate_input *in)
{
    enum mail_verdict verdict = judge_now(m, in);

    if (verdict == MAIL_REFUSE)
        enter(m, MAIL_REJECTED, in);
    else if (verdict == MAIL_HOLD && (m->state == MAIL_UNDO || m->state == MAIL_QUEUED))
        enter(m, MAIL_HELD, in);
    else if (verdict == MAIL_HOLD && m->state == MAIL_SCHEDULED && !m->schedule_first)
        enter(m, MAIL_HELD, in); /* now, so that the approver has time before it is due */
    return true;
}

static bool send(struct gate_message *m, const struct gate_input *in)
{
    bool is_approved = gate_is_approved(m, in->now_us);

    switch (mail_judge(in->mode, in->all_allowlisted, is_approved)) {
    case MAIL_RELEASE:
        enter(m, MAIL_SENDING, in);
        if (is_approved)
            m->approval.is_spent = true;
        else
            m->approval = (struct gate_approval){ 0 }; /* expired, and the mode asks for none */
        break;
    case MAIL_HOLD:
        enter(m, MAIL_HELD, in);
        break;
    default:
        enter(m, MAIL_REJECTED, in);
        break;
    }
    return true;
}

/* How it ended. If we do not know, it is an approver who says so. */
static bool settle(struct gate_message *m, enum mail_state end, const struct gate_input *in, struct err *err)
{
    if (m->state == MAIL_UNCERTAIN && !mail_may_decide(in->scopes, in->is_composer))
        return err_set(err, ERR_DENIED, "only an approver can say what became of this message");
    enter(m, end, in);
    return true;
}

static bool step(struct gate_message *m, enum gate_event event, const struct gate_input *in, struct err *err)
{
    switch (event) {
    case GATE_JUDGE:
        return judge(m, in, err);
    case GATE_APPROVE:
        return approve(m, in, err);
    case GATE_REJECT:
        return reject(m, in, err);
    case GATE_CANCEL:
        return cancel(m, in, err);
    case GATE_EDIT:
        return edit(m, in);
    case GATE_RESCHEDULE:
        return reschedule(m, in);
    case GATE_TICK:
        return tick(m, in);
    case GATE_PULLBACK:
        return pull_back(m, in);
    case GATE_SEND:
        return send(m, in);
    case GATE_SENT:
        return settle(m, MAIL_SENT, in, err);
    case GATE_FAIL:
        return settle(m, MAIL_FAILED, in, err);
    case GATE_DEFER:
        if (m->state != MAIL_DEFERRED)
            enter(m, MAIL_DEFERRED, in);
        return true;
    case GATE_BOUNCE:
        enter(m, MAIL_BOUNCED, in);
        return true;
    case GATE_LOST:
        enter(m, MAIL_UNCERTAIN, in);
        return true;
    case GATE_REPEAT:
        return true; /* it stays in MAIL_SENDING, on the release that it has */
    default:
        return err_set(err, ERR_INVALID, "there is no such event");
    }
}

bool gate_step(struct gate_message *message, enum gate_event event, const struct gate_input *input, struct err *err)
{
    struct gate_message changed = *message;

    if ((unsigned)event >= GATE_EVENT_COUNT)
        return err_set(err, ERR_INVALID, "there is no event %d", (int)event);
    if ((unsigned)input->mode >= MAIL_MODE_COUNT)
        return err_set(err, ERR_INVALID, "there is no mode %d", (int)input->mode);
    if (!gate_message_valid(message))
        return err_set(err, ERR_INTERNAL, "the stored state of the message is damaged");
    if (!(happens_in[event] & BIT(message->state)))
        return err_set(err, ERR_CONFLICT, "cannot %s a message in state '%s'", gate_event_name[event],
                       mail_state_name[message->state]);
    if (!step(&changed, event, input, err))
        return false;
    *message = changed;
    return true;
}
