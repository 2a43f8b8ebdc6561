#include "mail/gate.h"

#include <stdio.h>
#include <stdlib.h>

#include "test.h"

#define ORACLE_CHECK(condition, text) \
    do {                              \
        if (!(condition))             \
            fail_msg("%s", text);     \
    } while (0)
#include "../../model/oracle.h"

enum { SECOND = 1000000 };

static const unsigned char hash_a[GATE_HASH_BYTES] = { 0xa }, hash_b[GATE_HASH_BYTES] = { [GATE_HASH_BYTES - 1] = 0xb };

/* A message as it is in that state after an ordinary life, without approval where it can be so. */
static struct gate_message message_in(enum mail_state state)
{
    struct gate_message m = { .state = state, .hold_us = 100 * SECOND };

    memcpy(m.hash, hash_a, sizeof m.hash);
    if (state == MAIL_HELD)
        m.hold_until_us = 1000 * SECOND;
    if (state == MAIL_SCHEDULED)
        m.send_at_us = 300 * SECOND;
    if (state == MAIL_UNDO) {
        m.undo_until_us = 300 * SECOND;
        m.approval.is_there = true;
        m.approval.expires_us = 1000 * SECOND;
        memcpy(m.approval.hash, hash_a, sizeof m.hash);
    }
    return m;
}

static struct gate_message approved_in(enum mail_state state)
{
    struct gate_message m = message_in(state);

    m.approval.is_there = true;
    m.approval.is_spent = mail_state_has_left(state);
    m.approval.expires_us = 1000 * SECOND;
    memcpy(m.approval.hash, hash_a, sizeof m.hash);
    return m;
}

/* Somebody who may, about what is there, after schedules and undo windows and before the hold ends. */
static struct gate_input input_for(enum gate_event event)
{
    struct gate_input in = { .now_us = 500 * SECOND, .mode = MAIL_GATED_SEND, .approval_us = 60 * SECOND };

    in.scopes = event == GATE_CANCEL ? MAIL_SCOPE_SEND : MAIL_SCOPE_OVERSIGHT;
    memcpy(in.hash, event == GATE_EDIT ? hash_b : hash_a, sizeof in.hash);
    return in;
}

static void check(struct gate_message *m, enum gate_event event, const struct gate_input *in, enum mail_state want)
{
    enum mail_state from = m->state;
    struct err err = { 0 };

    if (!gate_step(m, event, in, &err))
        fail_msg("%s in %s: %s", gate_event_name[event], mail_state_name[from], err.message);
    if (m->state != want)
        fail_msg("%s in %s leads to %s, not to %s", gate_event_name[event], mail_state_name[from],
                 mail_state_name[m->state], mail_state_name[want]);
    assert_true(gate_message_valid(m));
}

static void check_refused(const struct gate_message *m, enum gate_event event, const struct gate_input *in,
                          enum err_kind kind)
{
    struct gate_message after = *m;
    struct err err = { 0 };

    if (gate_step(&after, event, in, &err))
        fail_msg("%s in %s leads to %s", gate_event_name[event], mail_state_name[m->state],
                 mail_state_name[after.state]);
    if (err.kind != kind)
        fail_msg("%s in %s: %s (%s)", gate_event_name[event], mail_state_name[m->state], err_kind_name[err.kind],
                 err.message);
    assert_true(err.message[0]);
    assert_true(oracle_same_message(m, &after));
}

/* ---- every state, every event ---- */

enum { NO = -1, BAD = -2 }; /* ERR_CONFLICT, ERR_INTERNAL */

/* In gated_send, no recipient on the allowlist, with the input of input_for(). */
/* clang-format off */
static const int table[MAIL_STATE_COUNT][GATE_EVENT_COUNT] = {
    /*                   JUDGE      APPROVE      REJECT         CANCEL          EDIT       RESCHEDULE */
    [MAIL_SCAN]      = { MAIL_HELD, NO,          NO,            MAIL_CANCELLED, NO,        NO,
    /* TICK, PULLBACK, SEND; SENT, DEFER, FAIL; BOUNCE, LOST, REPEAT */
                         NO, MAIL_SCAN, NO,               NO, NO, NO,                            NO, NO, NO },
    [MAIL_HELD]      = { NO,        MAIL_QUEUED, MAIL_REJECTED, MAIL_CANCELLED, NO,        NO,
                         MAIL_HELD, MAIL_HELD, NO,        NO, NO, NO,                            NO, NO, NO },
    [MAIL_APPROVED]  = { BAD,       BAD,         BAD,           BAD,            BAD,       BAD,
                         BAD, BAD, BAD,                   BAD, BAD, BAD,                         BAD, BAD, BAD },
    [MAIL_SCHEDULED] = { NO,        NO,          NO,            MAIL_CANCELLED, MAIL_SCAN, MAIL_HELD,
                         MAIL_HELD, MAIL_HELD, NO,        NO, NO, NO,                            NO, NO, NO },
    [MAIL_UNDO]      = { NO,        NO,          NO,            MAIL_CANCELLED, NO,        NO,
                         MAIL_QUEUED, MAIL_UNDO, NO,      NO, NO, NO,                            NO, NO, NO },
    [MAIL_QUEUED]    = { NO,        NO,          NO,            NO,             NO,        NO,
                         NO, MAIL_HELD, MAIL_HELD,        NO, NO, NO,                            NO, NO, NO },
    [MAIL_SENDING]   = { NO,        NO,          NO,            NO,             NO,        NO,
                         NO, NO, NO,                      MAIL_SENT, MAIL_DEFERRED, MAIL_FAILED, NO, MAIL_UNCERTAIN, MAIL_SENDING },
    [MAIL_DEFERRED]  = { NO,        NO,          NO,            NO,             NO,        NO,
                         NO, NO, NO,                      MAIL_SENT, MAIL_DEFERRED, MAIL_FAILED, NO, NO, NO },
    [MAIL_SENT]      = { NO,        NO,          NO,            NO,             NO,        NO,
                         NO, NO, NO,                      NO, NO, NO,                            MAIL_BOUNCED, NO, NO },
    [MAIL_UNCERTAIN] = { NO,        NO,          NO,            NO,             NO,        NO,
                         NO, NO, NO,                      MAIL_SENT, NO, MAIL_FAILED,            NO, NO, NO },
    [MAIL_REJECTED]  = { NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO },
    [MAIL_CANCELLED] = { NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO },
    [MAIL_FAILED]    = { NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO },
    [MAIL_EXPIRED]   = { NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO },
    [MAIL_BOUNCED]   = { NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO },
};
/* clang-format on */

static void each_event_does_in_each_state_what_the_table_says(void **state)
{
    (void)state;
    for (unsigned s = 0; s < MAIL_STATE_COUNT; s++)
        for (unsigned e = 0; e < GATE_EVENT_COUNT; e++) {
            struct gate_message m = message_in((enum mail_state)s);
            struct gate_input in = input_for((enum gate_event)e);

            if (table[s][e] == NO)
                check_refused(&m, (enum gate_event)e, &in, ERR_CONFLICT);
            else if (table[s][e] == BAD)
                check_refused(&m, (enum gate_event)e, &in, ERR_INTERNAL);
            else
                check(&m, (enum gate_event)e, &in, (enum mail_state)table[s][e]);
        }
}

/* ---- accepting ---- */

static void a_new_message_is_held_queued_or_scheduled_by_mode_and_time(void **state)
{
    static const struct {
        enum mail_mode mode;
        bool listed, later, schedule_first;
        enum mail_state want;
    } rows[] = {
        { MAIL_GATED_ALL, false, false, false, MAIL_HELD },
        { MAIL_GATED_ALL, true, false, false, MAIL_HELD }, /* the allowlist is for gated_send only */
        { MAIL_GATED_ALL, true, true, false, MAIL_HELD },
        { MAIL_GATED_ALL, true, true, true, MAIL_SCHEDULED },
        { MAIL_GATED_SEND, false, false, false, MAIL_HELD },
        { MAIL_GATED_SEND, false, false, true, MAIL_HELD }, /* due at once */
        { MAIL_GATED_SEND, false, true, false, MAIL_HELD },
        { MAIL_GATED_SEND, false, true, true, MAIL_SCHEDULED },
        { MAIL_GATED_SEND, true, false, false, MAIL_QUEUED },
        { MAIL_GATED_SEND, true, true, false, MAIL_SCHEDULED },
        { MAIL_MONITORED, false, false, false, MAIL_QUEUED },
        { MAIL_MONITORED, false, true, false, MAIL_SCHEDULED },
        { MAIL_AUTONOMOUS, false, false, true, MAIL_QUEUED },
        { MAIL_AUTONOMOUS, false, true, true, MAIL_SCHEDULED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct gate_message m = message_in(MAIL_SCAN);
        struct gate_input in = input_for(GATE_JUDGE);

        m.send_at_us = rows[i].later ? 501 * SECOND : 500 * SECOND;
        m.schedule_first = rows[i].schedule_first;
        in.mode = rows[i].mode;
        in.all_allowlisted = rows[i].listed;
        check(&m, GATE_JUDGE, &in, rows[i].want);
        if (rows[i].want == MAIL_HELD)
            assert_int_equal(m.hold_until_us, 600 * SECOND);
    }
}

static void what_the_scan_blocks_is_rejected_in_every_mode_that_sends(void **state)
{
    (void)state;
    for (unsigned mode = MAIL_GATED_ALL; mode < MAIL_MODE_COUNT; mode++) {
        struct gate_message m = message_in(MAIL_SCAN);
        struct gate_input in = input_for(GATE_JUDGE);

        in.mode = (enum mail_mode)mode;
        in.all_allowlisted = in.scan_blocks = true;
        check(&m, GATE_JUDGE, &in, MAIL_REJECTED);
    }
}

static void a_read_only_inbox_accepts_and_approves_nothing_and_lets_nothing_go(void **state)
{
    struct gate_message m = message_in(MAIL_SCAN);
    struct gate_input in = input_for(GATE_JUDGE);

    (void)state;
    in.mode = MAIL_READ_ONLY;
    in.all_allowlisted = true;
    check_refused(&m, GATE_JUDGE, &in, ERR_DENIED);
    m = message_in(MAIL_HELD);
    check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
    check(&m, GATE_REJECT, &in, MAIL_REJECTED);
    m = approved_in(MAIL_QUEUED);
    check(&m, GATE_SEND, &in, MAIL_REJECTED);
    m = approved_in(MAIL_SCHEDULED);
    check(&m, GATE_TICK, &in, MAIL_REJECTED);
    m = message_in(MAIL_UNDO);
    check(&m, GATE_TICK, &in, MAIL_REJECTED);
}

/* ---- deciding ---- */

static void only_keys_with_oversight_and_without_send_decide(void **state)
{
    (void)state;
    for (uint32_t scopes = 0; scopes < 64; scopes++)
        for (unsigned is_composer = 0; is_composer < 2; is_composer++)
            for (unsigned event = GATE_APPROVE; event <= GATE_REJECT; event++) {
                struct gate_message m = message_in(MAIL_HELD);
                struct gate_input in = input_for((enum gate_event)event);

                in.scopes = scopes;
                in.is_composer = is_composer;
                if ((scopes & 8) && !(scopes & (2 | 4 | 32)) && !is_composer)
                    check(&m, (enum gate_event)event, &in, event == GATE_APPROVE ? MAIL_QUEUED : MAIL_REJECTED);
                else
                    check_refused(&m, (enum gate_event)event, &in, ERR_DENIED);
            }
}

static void a_decision_about_other_bytes_is_a_conflict(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);

    (void)state;
    for (unsigned i = 0; i < GATE_HASH_BYTES * 8; i++) {
        struct gate_input in = input_for(GATE_APPROVE);

        in.hash[i / 8] ^= (unsigned char)(1u << i % 8);
        check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
        check_refused(&m, GATE_REJECT, &in, ERR_CONFLICT);
    }
}

static void a_second_decision_is_a_conflict(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);
    struct gate_input in = input_for(GATE_APPROVE);

    (void)state;
    check(&m, GATE_APPROVE, &in, MAIL_QUEUED);
    check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
    check_refused(&m, GATE_REJECT, &in, ERR_CONFLICT);
    m = message_in(MAIL_HELD);
    check(&m, GATE_REJECT, &in, MAIL_REJECTED);
    check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
}

static void nobody_decides_after_the_hold_has_ended(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);
    struct gate_input in = input_for(GATE_APPROVE);

    (void)state;
    assert_int_equal(gate_timer_us(&m), 1000 * SECOND);
    in.now_us = m.hold_until_us;
    check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
    check_refused(&m, GATE_REJECT, &in, ERR_CONFLICT);
    in.now_us--;
    check(&m, GATE_TICK, &in, MAIL_HELD);
    in.now_us++;
    check(&m, GATE_TICK, &in, MAIL_EXPIRED);
    assert_int_equal(gate_timer_us(&m), 0);
}

static void an_approval_must_be_good_for_some_time(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);
    struct gate_input in = input_for(GATE_APPROVE);

    (void)state;
    in.approval_us = 0;
    check_refused(&m, GATE_APPROVE, &in, ERR_INVALID);
    in.approval_us = INT64_MIN;
    check_refused(&m, GATE_APPROVE, &in, ERR_INVALID);
    in.approval_us = INT64_MAX;
    check(&m, GATE_APPROVE, &in, MAIL_QUEUED);
    assert_true(m.approval.expires_us == INT64_MAX);
}

static void an_approved_message_waits_for_its_time_or_for_the_undo_window(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);
    struct gate_input in = input_for(GATE_APPROVE);

    (void)state;
    in.undo_s = 10;
    check(&m, GATE_APPROVE, &in, MAIL_UNDO);
    assert_int_equal(m.undo_until_us, 510 * SECOND);
    assert_int_equal(m.approval.expires_us, 570 * SECOND); /* counted from the end of the window */
    assert_int_equal(gate_timer_us(&m), 510 * SECOND);
    in.now_us = 510 * SECOND - 1;
    check(&m, GATE_TICK, &in, MAIL_UNDO);
    in.now_us++;
    check(&m, GATE_TICK, &in, MAIL_QUEUED);

    m = message_in(MAIL_HELD);
    m.send_at_us = 800 * SECOND;
    in = input_for(GATE_APPROVE);
    in.undo_s = 10; /* a message that waits can be cancelled anyway */
    check(&m, GATE_APPROVE, &in, MAIL_SCHEDULED);
    assert_int_equal(m.approval.expires_us, 860 * SECOND); /* counted from when it is due */
    in.now_us = 800 * SECOND;
    check(&m, GATE_TICK, &in, MAIL_QUEUED);
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    assert_true(m.approval.is_spent);

    m = message_in(MAIL_HELD); /* approved after its time: it leaves at once */
    m.send_at_us = 100 * SECOND;
    in = input_for(GATE_APPROVE);
    check(&m, GATE_APPROVE, &in, MAIL_QUEUED);
}

static void the_longest_undo_window_does_not_overflow(void **state)
{
    struct gate_message m = message_in(MAIL_HELD);
    struct gate_input in = input_for(GATE_APPROVE);

    (void)state;
    in.undo_s = UINT32_MAX;
    m.hold_until_us = INT64_MAX;
    in.now_us = INT64_MAX - 1;
    check(&m, GATE_APPROVE, &in, MAIL_UNDO);
    assert_true(m.undo_until_us == INT64_MAX);
}

/* ---- taking back ---- */

static void a_sender_cancels_until_the_queue_and_an_approver_in_the_undo_window(void **state)
{
    static const enum mail_state states[] = { MAIL_SCAN, MAIL_HELD, MAIL_SCHEDULED, MAIL_UNDO };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(states); i++) {
        struct gate_input in = input_for(GATE_CANCEL);
        struct gate_message m = message_in(states[i]);

        in.is_composer = true;
        check(&m, GATE_CANCEL, &in, MAIL_CANCELLED);
        assert_false(m.approval.is_there);
        m = message_in(states[i]);
        in.scopes = MAIL_SCOPE_READ;
        check_refused(&m, GATE_CANCEL, &in, ERR_DENIED);
        in.scopes = MAIL_SCOPE_OVERSIGHT;
        check_refused(&m, GATE_CANCEL, &in, ERR_DENIED);
        in.is_composer = false;
        if (states[i] == MAIL_UNDO)
            check(&m, GATE_CANCEL, &in, MAIL_CANCELLED);
        else
            check_refused(&m, GATE_CANCEL, &in, ERR_DENIED);
    }
}

static void an_edit_voids_the_approval_and_is_judged_anew(void **state)
{
    struct gate_message m = approved_in(MAIL_SCHEDULED);
    struct gate_input in = input_for(GATE_EDIT);

    (void)state;
    in.send_at_us = 700 * SECOND;
    check(&m, GATE_EDIT, &in, MAIL_SCAN);
    assert_false(m.approval.is_there);
    assert_memory_equal(m.hash, hash_b, GATE_HASH_BYTES);
    assert_int_equal(m.send_at_us, 700 * SECOND);
    check(&m, GATE_JUDGE, &in, MAIL_HELD);
    in = input_for(GATE_APPROVE); /* an approver who saw the old content */
    check_refused(&m, GATE_APPROVE, &in, ERR_CONFLICT);
}

static void another_time_for_the_same_bytes_keeps_the_approval(void **state)
{
    struct gate_message m = approved_in(MAIL_SCHEDULED);
    struct gate_input in = input_for(GATE_RESCHEDULE);

    (void)state;
    in.send_at_us = 700 * SECOND;
    check(&m, GATE_RESCHEDULE, &in, MAIL_SCHEDULED);
    assert_int_equal(gate_timer_us(&m), 700 * SECOND);
    assert_true(gate_is_approved(&m, in.now_us));
    in.send_at_us = 0; /* at once */
    check(&m, GATE_RESCHEDULE, &in, MAIL_QUEUED);

    m = approved_in(MAIL_SCHEDULED);
    in.send_at_us = 1500 * SECOND; /* later than the approval is good for */
    check(&m, GATE_RESCHEDULE, &in, MAIL_SCHEDULED);
    in.now_us = 1500 * SECOND;
    check(&m, GATE_TICK, &in, MAIL_HELD);
    assert_false(m.approval.is_there);
}

static void a_lower_mode_takes_back_what_is_not_approved(void **state)
{
    static const enum mail_state states[] = { MAIL_SCHEDULED, MAIL_QUEUED };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(states); i++) {
        struct gate_input in = input_for(GATE_PULLBACK);
        struct gate_message m = message_in(states[i]);

        in.all_allowlisted = true;
        check(&m, GATE_PULLBACK, &in, states[i]); /* gated_send: the allowlist still lets it go */
        in.mode = MAIL_MONITORED;
        in.all_allowlisted = false;
        check(&m, GATE_PULLBACK, &in, states[i]);
        in.mode = MAIL_GATED_ALL;
        check(&m, GATE_PULLBACK, &in, MAIL_HELD);
        assert_int_equal(m.hold_until_us, 600 * SECOND);
        m = approved_in(states[i]);
        check(&m, GATE_PULLBACK, &in, states[i]);
        assert_true(gate_is_approved(&m, in.now_us));
        in.now_us = m.approval.expires_us;
        check(&m, GATE_PULLBACK, &in, MAIL_HELD);
    }
    struct gate_message m = message_in(MAIL_SCHEDULED);
    struct gate_input in = input_for(GATE_PULLBACK);
    m.schedule_first = true; /* it asks when it is due */
    check(&m, GATE_PULLBACK, &in, MAIL_SCHEDULED);
    check(&m, GATE_TICK, &in, MAIL_HELD);
}

static void read_only_takes_back_all_that_has_not_left(void **state)
{
    (void)state;
    for (unsigned s = 0; s < MAIL_STATE_COUNT; s++) {
        struct gate_input in = input_for(GATE_PULLBACK);
        struct gate_message m = message_in((enum mail_state)s);

        in.mode = MAIL_READ_ONLY;
        if (s == MAIL_APPROVED || mail_state_has_left(m.state) || mail_state_is_final(m.state))
            check_refused(&m, GATE_PULLBACK, &in, s == MAIL_APPROVED ? ERR_INTERNAL : ERR_CONFLICT);
        else
            check(&m, GATE_PULLBACK, &in, MAIL_REJECTED);
    }
}

/* ---- leaving ---- */

static void the_dispatcher_asks_again_before_it_lets_a_message_go(void **state)
{
    struct gate_message m = message_in(MAIL_SCAN);
    struct gate_input in = input_for(GATE_JUDGE);

    (void)state;
    in.mode = MAIL_AUTONOMOUS;
    check(&m, GATE_JUDGE, &in, MAIL_QUEUED);
    in.mode = MAIL_GATED_SEND; /* lowered, and nobody has sent GATE_PULLBACK yet */
    check(&m, GATE_SEND, &in, MAIL_HELD);
    check(&m, GATE_APPROVE, &in, MAIL_QUEUED);
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    assert_true(m.approval.is_there && m.approval.is_spent);

    m = message_in(MAIL_QUEUED); /* a recipient was taken off the allowlist */
    in.all_allowlisted = false;
    check(&m, GATE_SEND, &in, MAIL_HELD);
    m = message_in(MAIL_QUEUED);
    in.all_allowlisted = true;
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    assert_false(m.approval.is_there);
}

static void an_expired_approval_lets_nothing_go(void **state)
{
    struct gate_message m = approved_in(MAIL_QUEUED);
    struct gate_input in = input_for(GATE_SEND);

    (void)state;
    in.now_us = m.approval.expires_us;
    check(&m, GATE_SEND, &in, MAIL_HELD);
    assert_false(m.approval.is_there);
    m = approved_in(MAIL_QUEUED);
    in.now_us--;
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    m = approved_in(MAIL_QUEUED); /* the mode asks for none: it leaves, and not as approved */
    in.now_us++;
    in.mode = MAIL_MONITORED;
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    assert_false(m.approval.is_there);
}

static void an_approval_is_spent_also_where_none_was_needed(void **state)
{
    struct gate_message m = approved_in(MAIL_QUEUED);
    struct gate_input in = input_for(GATE_SEND);

    (void)state;
    in.mode = MAIL_AUTONOMOUS;
    check(&m, GATE_SEND, &in, MAIL_SENDING);
    assert_true(m.approval.is_there && m.approval.is_spent);
    check_refused(&m, GATE_SEND, &in, ERR_CONFLICT);
}

static void an_uncertain_message_is_settled_by_an_approver_only(void **state)
{
    (void)state;
    for (unsigned is_sent = 0; is_sent < 2; is_sent++) {
        enum gate_event event = is_sent ? GATE_SENT : GATE_FAIL;
        struct gate_message m = message_in(MAIL_UNCERTAIN);
        struct gate_input in = input_for(event);

        in.scopes = 0; /* the dispatcher */
        check_refused(&m, event, &in, ERR_DENIED);
        in.scopes = MAIL_SCOPE_ADMIN;
        check_refused(&m, event, &in, ERR_DENIED);
        in.scopes = MAIL_SCOPE_OVERSIGHT;
        check(&m, event, &in, is_sent ? MAIL_SENT : MAIL_FAILED);
        m = message_in(MAIL_SENDING);
        in.scopes = 0;
        check(&m, event, &in, is_sent ? MAIL_SENT : MAIL_FAILED);
    }
}

/* ---- what is not as it should be ---- */

static void a_message_that_the_gate_cannot_have_made_is_refused(void **state)
{
    (void)state;
    for (unsigned s = 0; s < MAIL_STATE_COUNT; s++) {
        struct gate_message m = message_in((enum mail_state)s);
        struct gate_input in = input_for(GATE_SEND);

        assert_int_equal(gate_message_valid(&m), s != MAIL_APPROVED);
        m.hold_us = 0;
        assert_false(gate_message_valid(&m));
        m = message_in((enum mail_state)s);
        m.approval.is_there = false;
        m.approval.is_spent = true;
        assert_false(gate_message_valid(&m));
        m = approved_in((enum mail_state)s); /* approved, but other bytes */
        m.approval.hash[7] ^= 1;
        assert_false(gate_message_valid(&m));
        check_refused(&m, GATE_SEND, &in, ERR_INTERNAL);
        m = approved_in((enum mail_state)s);
        m.approval.is_spent = !m.approval.is_spent; /* spent and still here, or gone and not spent */
        assert_false(gate_message_valid(&m));
        check_refused(&m, GATE_SEND, &in, ERR_INTERNAL);
        m = approved_in((enum mail_state)s);
        bool may_have_one = s == MAIL_SCHEDULED || s == MAIL_UNDO || s == MAIL_QUEUED || mail_state_has_left(m.state);
        assert_int_equal(gate_message_valid(&m), may_have_one);
    }
    struct gate_message m = message_in(MAIL_UNDO);
    m.approval = (struct gate_approval){ 0 };
    assert_false(gate_message_valid(&m));
    m = message_in(MAIL_STATE_COUNT);
    assert_false(gate_message_valid(&m));
    m.state = (enum mail_state) - 1;
    assert_false(gate_message_valid(&m));
}

static void unknown_events_modes_and_states_are_refused(void **state)
{
    struct gate_message m = message_in(MAIL_QUEUED);
    struct gate_input in = input_for(GATE_SEND);
    struct err err = { 0 };

    (void)state;
    assert_false(gate_step(&m, GATE_EVENT_COUNT, &in, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_false(gate_step(&m, (enum gate_event) - 1, &in, &err));
    in.mode = MAIL_MODE_COUNT;
    check_refused(&m, GATE_SEND, &in, ERR_INVALID);
    in.mode = (enum mail_mode) - 1;
    check_refused(&m, GATE_SEND, &in, ERR_INVALID);
    in.mode = MAIL_AUTONOMOUS;
    m.state = MAIL_STATE_COUNT;
    assert_false(gate_step(&m, GATE_SEND, &in, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_false(gate_may_become(MAIL_STATE_COUNT, MAIL_SENDING));
    assert_false(gate_may_become(MAIL_QUEUED, MAIL_STATE_COUNT));
    assert_false(gate_may_become((enum mail_state) - 1, MAIL_SENDING));
}

static void events_have_names_of_their_own(void **state)
{
    (void)state;
    for (unsigned i = 0; i < GATE_EVENT_COUNT; i++) {
        assert_non_null(gate_event_name[i]);
        for (unsigned j = 0; j < i; j++)
            assert_string_not_equal(gate_event_name[i], gate_event_name[j]);
    }
}

/* ---- every sequence ---- */

/*
 * All sequences of events over a small set of inputs: five modes, two contents, four kinds of keys, times from 1 s to 4 s
 * in any order (the clock may go back). Two histories that end in the same message and the same record have the same
 * future, so each such pair is followed once. The search ends when nothing new is found: then it has seen every sequence,
 * of any length.
 */
enum { PLACES = 1 << 20, LATEST_S = 4, HOLD_S = 2, SCHEDULE_S = 3, LENGTH_LEAST = 8 };

struct place {
    struct gate_message message;
    struct oracle oracle;
    unsigned length; /* of the shortest sequence that leads here */
};

struct search {
    struct place *places;
    uint64_t *keys; /* an open hash table of pack() + 1; 0: free */
    size_t count, steps;
    unsigned length; /* of the longest shortest sequence */
    bool edges[MAIL_STATE_COUNT][MAIL_STATE_COUNT];
    bool worked[GATE_EVENT_COUNT];
};

static void pack_bits(uint64_t *key, uint64_t value, unsigned bits)
{
    assert_true(value < (1ull << bits));
    *key = *key << bits | value;
}

static void pack_hash(uint64_t *key, const unsigned char *hash)
{
    static const unsigned char none[GATE_HASH_BYTES];
    bool is_a = oracle_same(hash, hash_a), is_b = oracle_same(hash, hash_b);

    assert_true(is_a || is_b || oracle_same(hash, none));
    pack_bits(key, is_a ? 1 : is_b ? 2 : 0, 2);
}

static void pack_time(uint64_t *key, int64_t at_us)
{
    assert_int_equal(at_us % SECOND, 0);
    pack_bits(key, (uint64_t)at_us / SECOND, 4);
}

static uint64_t pack(const struct place *place)
{
    const struct gate_message *m = &place->message;
    uint64_t key = 0;

    pack_bits(&key, (uint64_t)m->state, 4);
    pack_hash(&key, m->hash);
    pack_time(&key, m->send_at_us);
    pack_bits(&key, m->schedule_first, 1);
    pack_time(&key, m->undo_until_us);
    pack_time(&key, m->hold_until_us);
    pack_bits(&key, m->approval.is_there, 1);
    pack_bits(&key, m->approval.is_spent, 1);
    pack_hash(&key, m->approval.hash);
    pack_time(&key, m->approval.expires_us);
    pack_hash(&key, place->oracle.bytes);
    pack_bits(&key, place->oracle.has_yes, 1);
    pack_hash(&key, place->oracle.yes_bytes);
    pack_time(&key, place->oracle.yes_expires_us);
    pack_bits(&key, place->oracle.was_sent, 1);
    return key;
}

static void visit(struct search *search, const struct place *place)
{
    uint64_t key = pack(place) + 1;
    size_t slot = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 43) % (2 * PLACES);

    while (search->keys[slot] && search->keys[slot] != key)
        slot = (slot + 1) % (2 * PLACES);
    if (search->keys[slot])
        return;
    assert_true(search->count < PLACES);
    search->keys[slot] = key;
    search->places[search->count++] = *place;
    search->length = MAX(search->length, place->length);
}

static void try_step(struct search *search, const struct place *from, enum gate_event event,
                     const struct gate_input *in)
{
    struct place to = *from;
    struct err err;
    bool worked = gate_step(&to.message, event, in, &err);

    search->steps++;
    oracle_step(&to.oracle, &from->message, event, in, worked, &to.message);
    if (!worked)
        return;
    search->worked[event] = true;
    if (event == GATE_APPROVE) {
        search->edges[from->message.state][MAIL_APPROVED] = true;
        search->edges[MAIL_APPROVED][to.message.state] = true;
    } else if (from->message.state != to.message.state) {
        search->edges[from->message.state][to.message.state] = true;
    }
    to.length++;
    visit(search, &to);
}

/* The fields that an event looks at, each with all its values. */
struct varied {
    bool mode, listed, scan, key, hash, send_at, approval;
};
static const struct varied varied[GATE_EVENT_COUNT] = {
    [GATE_JUDGE] = { .mode = true, .listed = true, .scan = true },
    [GATE_APPROVE] = { .mode = true, .key = true, .hash = true, .approval = true },
    [GATE_REJECT] = { .mode = true, .key = true, .hash = true },
    [GATE_CANCEL] = { .mode = true, .key = true },
    [GATE_EDIT] = { .mode = true, .hash = true, .send_at = true },
    [GATE_RESCHEDULE] = { .mode = true, .listed = true, .send_at = true },
    [GATE_TICK] = { .mode = true, .listed = true },
    [GATE_PULLBACK] = { .mode = true, .listed = true },
    [GATE_SEND] = { .mode = true, .listed = true },
    [GATE_SENT] = { .key = true },
    [GATE_FAIL] = { .key = true },
};
static const uint32_t keys[] = { MAIL_SCOPE_SEND, MAIL_SCOPE_OVERSIGHT, MAIL_SCOPE_ADMIN | MAIL_SCOPE_OVERSIGHT, 0 };

static void try_event(struct search *search, const struct place *from, enum gate_event event)
{
    const struct varied *v = &varied[event];
    struct gate_input in = { 0 };

    for (unsigned now = 1; now <= LATEST_S; now++)
        for (unsigned mode = v->mode ? 0 : MAIL_GATED_ALL; mode < (v->mode ? MAIL_MODE_COUNT : MAIL_GATED_ALL + 1);
             mode++)
            for (unsigned flag = 0; flag < (v->listed ? 2 : 1) * (v->scan ? 2 : 1); flag++)
                for (unsigned key = 0; key < (v->key ? 2 * COUNT_OF(keys) : 1); key++)
                    for (unsigned hash = 0; hash < (v->hash ? 2 : 1); hash++)
                        for (unsigned at = 0; at < (v->send_at ? 2 : 1); at++)
                            for (unsigned good = 0; good < (v->approval ? 4 : 1); good++) {
                                in.now_us = (int64_t)now * SECOND;
                                in.mode = (enum mail_mode)mode;
                                in.all_allowlisted = flag & 1;
                                in.scan_blocks = flag & 2;
                                in.scopes = keys[key / 2];
                                in.is_composer = key & 1;
                                memcpy(in.hash, hash ? hash_b : hash_a, GATE_HASH_BYTES);
                                in.send_at_us = at ? SCHEDULE_S * SECOND : 0;
                                in.approval_us = good & 1 ? SECOND : 0;
                                in.undo_s = good & 2 ? 1 : 0;
                                try_step(search, from, event, &in);
                            }
}

static void no_sequence_of_events_breaks_a_promise_and_each_edge_is_taken(void **state)
{
    struct search search = { .places = calloc(PLACES, sizeof(struct place)),
                             .keys = calloc(2 * PLACES, sizeof(uint64_t)) };
    bool is_seen[MAIL_STATE_COUNT] = { false };

    (void)state;
    assert_true(search.places && search.keys);
    for (unsigned kind = 0; kind < 4; kind++) {
        struct place new = { .message = message_in(MAIL_SCAN) };

        new.message.hold_us = HOLD_S *SECOND;
        new.message.send_at_us = kind & 1 ? SCHEDULE_S *SECOND : 0;
        new.message.schedule_first = kind & 2;
        oracle_begin(&new.oracle, &new.message);
        assert_true(oracle_agrees(&new.oracle, &new.message));
        visit(&search, &new);
    }
    for (size_t i = 0; i < search.count; i++) {
        is_seen[search.places[i].message.state] = true;
        for (unsigned event = 0; event < GATE_EVENT_COUNT; event++)
            try_event(&search, &search.places[i], (enum gate_event)event);
    }
    printf("%zu situations, %zu steps, up to %u events to the farthest\n", search.count, search.steps, search.length);
    assert_true(search.length >= LENGTH_LEAST);
    for (unsigned from = 0; from < MAIL_STATE_COUNT; from++) {
        assert_int_equal(is_seen[from], from != MAIL_APPROVED);
        for (unsigned to = 0; to < MAIL_STATE_COUNT; to++)
            if (search.edges[from][to] != gate_may_become((enum mail_state)from, (enum mail_state)to))
                fail_msg("%s to %s is %s the table, and %s", mail_state_name[from], mail_state_name[to],
                         search.edges[from][to] ? "not in" : "in", search.edges[from][to] ? "taken" : "never taken");
    }
    for (unsigned event = 0; event < GATE_EVENT_COUNT; event++)
        if (!search.worked[event])
            fail_msg("%s never works", gate_event_name[event]);
    free(search.places);
    free(search.keys);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(each_event_does_in_each_state_what_the_table_says),
        CASE(a_new_message_is_held_queued_or_scheduled_by_mode_and_time),
        CASE(what_the_scan_blocks_is_rejected_in_every_mode_that_sends),
        CASE(a_read_only_inbox_accepts_and_approves_nothing_and_lets_nothing_go),
        CASE(only_keys_with_oversight_and_without_send_decide),
        CASE(a_decision_about_other_bytes_is_a_conflict),
        CASE(a_second_decision_is_a_conflict),
        CASE(nobody_decides_after_the_hold_has_ended),
        CASE(an_approval_must_be_good_for_some_time),
        CASE(an_approved_message_waits_for_its_time_or_for_the_undo_window),
        CASE(the_longest_undo_window_does_not_overflow),
        CASE(a_sender_cancels_until_the_queue_and_an_approver_in_the_undo_window),
        CASE(an_edit_voids_the_approval_and_is_judged_anew),
        CASE(another_time_for_the_same_bytes_keeps_the_approval),
        CASE(a_lower_mode_takes_back_what_is_not_approved),
        CASE(read_only_takes_back_all_that_has_not_left),
        CASE(the_dispatcher_asks_again_before_it_lets_a_message_go),
        CASE(an_expired_approval_lets_nothing_go),
        CASE(an_approval_is_spent_also_where_none_was_needed),
        CASE(an_uncertain_message_is_settled_by_an_approver_only),
        CASE(a_message_that_the_gate_cannot_have_made_is_refused),
        CASE(unknown_events_modes_and_states_are_refused),
        CASE(events_have_names_of_their_own),
        CASE(no_sequence_of_events_breaks_a_promise_and_each_edge_is_taken),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
