/*
 * How messages leave an inbox: timers, a lowered mode, releases, and crashes at each step.
 */
#include "inbox_office.h"

static struct mail_accepted schedule(struct office *o, enum mail_mode mode, bool schedule_first)
{
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    want.mode = mode;
    want.send_at_us = o->now_us + OFFICE_HOUR_US;
    want.schedule_first = schedule_first;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    return accepted;
}

static bool approver_reads(struct office *o, const char *message_id)
{
    struct mail_message message;
    struct err err;

    return mail_held_get(o->mail, OFFICE_INBOX, str_from(message_id), &o->approver, &o->arena, &message, &err);
}

/* ---- timers ---- */

static void a_scheduled_message_leaves_when_it_is_due(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = schedule(o, MAIL_AUTONOMOUS, false);
    struct mail_release release;
    struct mail_content content;

    assert_int_equal(accepted.state, MAIL_SCHEDULED);
    struct mail_tick tick = office_tick(o, MAIL_AUTONOMOUS);
    assert_int_equal(tick.queued, 0);
    assert_true(tick.next_us == o->now_us + OFFICE_HOUR_US);
    o->now_us -= 100 * OFFICE_HOUR_US; /* the clock went back: it waits longer, and is not lost */
    assert_int_equal(office_tick(o, MAIL_AUTONOMOUS).queued, 0);
    o->now_us += 101 * OFFICE_HOUR_US;
    tick = office_tick(o, MAIL_AUTONOMOUS);
    assert_int_equal(tick.queued, 1);
    assert_int_equal(tick.next_us, 0);
    MUST(mail_claim(o->mail, OFFICE_INBOX, MAIL_AUTONOMOUS, &o->approver.public_key, o->now_us, &o->arena, &release,
                    &content, &err));
    assert_false(release.is_approved);
    assert_true(mail_approval_valid(o->mail, &release));
    assert_int_equal(release.mode, MAIL_AUTONOMOUS);
}

static void a_message_that_is_scheduled_first_is_held_when_it_is_due(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = schedule(o, MAIL_GATED_SEND, true);

    assert_int_equal(accepted.state, MAIL_SCHEDULED);
    assert_false(approver_reads(o, accepted.id));
    o->now_us += OFFICE_HOUR_US;
    struct mail_tick tick = office_tick(o, MAIL_GATED_SEND);
    assert_int_equal(tick.pending, 1);
    assert_true(tick.next_us == o->now_us + 7 * 24 * OFFICE_HOUR_US);
    assert_true(approver_reads(o, accepted.id));
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM content_keys WHERE holder = 'server'"), 0);
}

static void an_approved_message_can_be_undone_for_some_seconds(void **state)
{
    struct office *o = *state;
    struct mail_accepted kept = office_send(o, MAIL_GATED_SEND), undone = office_send(o, MAIL_GATED_SEND);
    struct mail_decision decision = office_decision(o, kept.id, true);
    struct mail_message message;

    decision.undo_s = 30;
    MUST(mail_decide(o->mail, &decision, &o->arena, &message, &err));
    assert_int_equal(message.state, MAIL_UNDO);
    decision.message_id = undone.id;
    MUST(mail_decide(o->mail, &decision, &o->arena, &message, &err));
    MUST(
        mail_cancel(o->mail, OFFICE_INBOX, undone.id, o->approver.id, MAIL_SCOPE_OVERSIGHT, &o->arena, &message, &err));
    assert_true(office_tick(o, MAIL_GATED_SEND).next_us == o->now_us + 30 * 1000000);
    o->now_us += 31 * 1000000;
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).queued, 1);
    assert_int_equal(office_state(o, kept.id), MAIL_QUEUED);
    assert_int_equal(office_state(o, undone.id), MAIL_CANCELLED);
}

static void a_tick_moves_more_messages_than_one_round_has(void **state)
{
    struct office *o = *state;
    enum { MANY = 2 * LIMIT_MAIL_ROUND + 7 };

    for (int i = 0; i < MANY; i++)
        (void)schedule(o, MAIL_GATED_SEND, true);
    o->now_us += OFFICE_HOUR_US;
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).pending, MANY);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM content_keys WHERE holder = 'approver'"), MANY);
    o->now_us += 8 * 24 * OFFICE_HOUR_US;
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).pending, 0);
}

static void one_damaged_row_does_not_stop_the_timers_of_the_others(void **state)
{
    struct office *o = *state;
    struct mail_accepted bad = schedule(o, MAIL_AUTONOMOUS, false), good = schedule(o, MAIL_AUTONOMOUS, false);
    char script[128];

    snprintf(script, sizeof script, "UPDATE messages SET hold_us = -1 WHERE id = '%s'", bad.id);
    office_by_hand(o, script);
    o->now_us += OFFICE_HOUR_US;
    assert_int_equal(office_tick(o, MAIL_AUTONOMOUS).queued, 1);
    assert_int_equal(office_state(o, good.id), MAIL_QUEUED);
    assert_int_equal(office_state(o, bad.id), MAIL_SCHEDULED);
}

/* ---- the mode goes down ---- */

static void a_lowered_mode_pulls_back_what_is_not_approved(void **state)
{
    struct office *o = *state;
    struct mail_accepted approved = office_send(o, MAIL_GATED_SEND), queued = office_send(o, MAIL_AUTONOMOUS),
                         scheduled = schedule(o, MAIL_AUTONOMOUS, false);
    uint32_t count;

    MUST(office_decide(o, approved.id, true, &err));
    MUST(
        mail_pull_back(o->mail, OFFICE_INBOX, MAIL_GATED_SEND, &o->approver.public_key, STR("operator"), &count, &err));
    assert_int_equal(count, 2);
    assert_true(approver_reads(o, queued.id));
    assert_true(approver_reads(o, scheduled.id));
    assert_int_equal(office_state(o, approved.id), MAIL_QUEUED);
    MUST(
        mail_pull_back(o->mail, OFFICE_INBOX, MAIL_GATED_SEND, &o->approver.public_key, STR("operator"), &count, &err));
    assert_int_equal(count, 0);
    MUST(mail_pull_back(o->mail, OFFICE_INBOX, MAIL_READ_ONLY, &o->approver.public_key, STR("operator"), &count, &err));
    assert_int_equal(count, 3);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE state = 10"), 3); /* MAIL_REJECTED */
}

static void what_waits_for_a_person_is_withdrawn_and_what_was_approved_leaves(void **state)
{
    struct office *o = *state;
    struct mail_accepted approved = office_send(o, MAIL_GATED_SEND), held = office_send(o, MAIL_GATED_SEND),
                         later = schedule(o, MAIL_GATED_SEND, true), queued = office_send(o, MAIL_AUTONOMOUS);
    uint32_t count;

    MUST(office_decide(o, approved.id, true, &err));
    MUST(mail_withdraw(o->mail, OFFICE_INBOX, &o->approver.public_key, STR("server"), &count, &err));
    assert_int_equal(count, 2);
    assert_int_equal(office_state(o, held.id), MAIL_REJECTED);
    assert_int_equal(office_state(o, later.id), MAIL_REJECTED);
    assert_int_equal(office_state(o, approved.id), MAIL_QUEUED);
    assert_int_equal(office_state(o, queued.id), MAIL_QUEUED);
    struct mail_tick tick = office_tick(o, MAIL_GATED_SEND);
    assert_int_equal(tick.pending, 0);
    assert_true(tick.bytes >= 4096);
}

static void a_mode_that_is_lower_at_dispatch_holds_the_message_again(void **state)
{
    struct office *o = *state;
    struct mail_accepted queued = office_send(o, MAIL_AUTONOMOUS);
    struct mail_release release;
    struct mail_content content;

    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    assert_true(approver_reads(o, queued.id));
    assert_int_equal(office_state(o, queued.id), MAIL_HELD);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM releases"), 0);
}

static void an_approval_that_is_too_old_is_asked_for_again(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release;
    struct mail_content content;

    MUST(office_decide(o, accepted.id, true, &err));
    o->now_us += (LIMIT_MAIL_APPROVAL_S + 1) * INT64_C(1000000);
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    assert_true(approver_reads(o, accepted.id));
    MUST(office_decide(o, accepted.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    assert_true(mail_approval_valid(o->mail, &release));
}

/* ---- releases ---- */

static void messages_leave_in_their_order_and_once(void **state)
{
    struct office *o = *state;
    struct mail_accepted first = office_send(o, MAIL_GATED_SEND), second = office_send(o, MAIL_GATED_SEND);
    struct mail_release release, other;
    struct mail_content content;

    MUST(office_decide(o, second.id, true, &err));
    MUST(office_decide(o, first.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    assert_string_equal(release.message_id, first.id);
    MUST(office_claim(o, &other, &content, &err));
    assert_string_equal(other.message_id, second.id);
    MUST_FAIL(office_claim(o, &other, &content, &err), ERR_NOT_FOUND);
    struct mail_tick tick = office_tick(o, MAIL_GATED_SEND);
    assert_int_equal(tick.queued, 0);
    assert_true(tick.next_us == o->now_us + LIMIT_MAIL_RELEASE_S * INT64_C(1000000) + 1);
}

static void what_another_front_has_left_is_repeated_with_the_same_release(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release, again;
    struct mail_content content;

    MUST(office_decide(o, accepted.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    office_by_hand(o, "UPDATE releases SET front = 'a process that has ended'");
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).queued, 1);
    MUST(office_claim(o, &again, &content, &err));
    assert_true(again.is_repeat);
    assert_string_equal(again.id, release.id);
    assert_memory_equal(again.hash, release.hash, sizeof again.hash);
    assert_true(again.is_approved && mail_approval_valid(o->mail, &again));
    MUST_FAIL(office_claim(o, &again, &content, &err), ERR_NOT_FOUND);
    /* The same front, and it has had its time. */
    o->now_us += (LIMIT_MAIL_RELEASE_S + 1) * INT64_C(1000000);
    MUST(office_claim(o, &again, &content, &err));
    assert_true(again.is_repeat);
    /* The clock went back: that it has its time still is not known, and to repeat is harmless. */
    o->now_us -= OFFICE_HOUR_US;
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).queued, 1);
    MUST(office_claim(o, &again, &content, &err));
    MUST(office_settle(o, &again, MAIL_DELIVERED, &err));
    MUST(office_settle(o, &release, MAIL_DELIVERED, &err)); /* late, and harmless */
    assert_int_equal(office_state(o, accepted.id), MAIL_SENT);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action = 'message.sent'"), 1);
    assert_int_equal(office_ask(o, "SELECT value FROM counters WHERE name = 'sent'"), 1);
}

static void a_forged_approval_is_noticed(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_AUTONOMOUS);
    struct mail_release release, forged;
    struct mail_content content;

    /* As if the file said that somebody had approved it. */
    (void)accepted;
    office_by_hand(o, "UPDATE messages SET approval_hash = hash, approval_expires_us = 9000000000000000000, "
                      "approval_mac = zeroblob(32), decided_by = '01HAPPROVER000000000000000'");
    MUST(office_claim(o, &forged, &content, &err));
    assert_true(forged.is_approved);
    assert_false(mail_approval_valid(o->mail, &forged));

    struct mail_accepted honest = office_send(o, MAIL_GATED_SEND);
    MUST(office_decide(o, honest.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    assert_true(mail_approval_valid(o->mail, &release));
    forged = release;
    forged.hash[0] ^= 1;
    assert_false(mail_approval_valid(o->mail, &forged));
    forged = release;
    forged.message_id[0] ^= 1;
    assert_false(mail_approval_valid(o->mail, &forged));
    forged = release;
    forged.approver = STR("somebody else");
    assert_false(mail_approval_valid(o->mail, &forged));
}

static void a_damaged_message_fails_and_the_next_one_leaves(void **state)
{
    struct office *o = *state;
    struct mail_accepted bad = office_send(o, MAIL_GATED_SEND), good = office_send(o, MAIL_GATED_SEND);
    struct mail_release release;
    struct mail_content content;
    char script[256];

    MUST(office_decide(o, bad.id, true, &err));
    MUST(office_decide(o, good.id, true, &err));
    snprintf(script, sizeof script, "UPDATE messages SET body_cipher = zeroblob(length(body_cipher)) WHERE id = '%s'",
             bad.id);
    office_by_hand(o, script);
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_INTERNAL);
    assert_string_equal(release.message_id, bad.id);
    MUST(office_claim(o, &release, &content, &err));
    assert_string_equal(release.message_id, good.id);
    assert_int_equal(office_state(o, bad.id), MAIL_FAILED);
    /* Sound in itself, and not what its row says. */
    bad = office_send(o, MAIL_GATED_SEND);
    MUST(office_decide(o, bad.id, true, &err));
    office_by_hand(o, "UPDATE messages SET hash = zeroblob(32), approval_hash = zeroblob(32) WHERE state = 5");
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_INTERNAL);
    assert_int_equal(office_state(o, bad.id), MAIL_FAILED);
}

static void outcomes_of_recipients_decide_what_becomes_of_the_message(void **state)
{
    static const struct {
        enum mail_outcome first, second;
        enum mail_state state;
    } table[] = {
        { MAIL_DELIVERED, MAIL_DELIVERED, MAIL_SENT }, { MAIL_DELIVERED, MAIL_REFUSED, MAIL_SENT },
        { MAIL_REFUSED, MAIL_REFUSED, MAIL_FAILED },   { MAIL_WAITS, MAIL_DELIVERED, MAIL_DEFERRED },
        { MAIL_REFUSED, MAIL_WAITS, MAIL_DEFERRED },
    };
    struct office *o = *state;

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        struct mail_content *both = office_content(o, "peer@elsewhere.example"), content;
        struct str recipients[] = { STR("peer@elsewhere.example"), STR("Second@elsewhere.example") };
        struct mail_settled settled[] = {
            { .recipient = STR("peer@Elsewhere.example"), .outcome = table[i].first },
            { .recipient = STR("second@elsewhere.example"), .outcome = table[i].second, .detail = STR("a detail") },
        };
        struct mail_settled stranger = { .recipient = STR("stranger@elsewhere.example") };
        struct mail_accept want;
        struct mail_accepted accepted;
        struct mail_release release;
        enum mail_outcome stands[2];
        uint32_t retry_s;
        both->recipients = recipients;
        both->recipient_count = 2;
        want = office_want(o, both);
        MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
        MUST(office_decide(o, accepted.id, true, &err));
        MUST(office_claim(o, &release, &content, &err));
        MUST_FAIL(mail_settle(o->mail, &release, &stranger, 1, NULL, &err), ERR_INVALID);
        MUST(mail_settle(o->mail, &release, settled, 1, NULL, &err));
        assert_int_equal(office_state(o, accepted.id), MAIL_SENDING);
        MUST(mail_settle(o->mail, &release, settled, 2, stands, &err));
        assert_int_equal(stands[0], table[i].first);
        assert_int_equal(stands[1], table[i].second);
        assert_int_equal(office_state(o, accepted.id), table[i].state);
        /* Late, and otherwise: what was delivered or refused stays so. */
        settled[0].outcome = table[i].first == MAIL_DELIVERED ? MAIL_REFUSED : table[i].first;
        MUST(mail_settle(o->mail, &release, settled, 2, stands, &err));
        assert_int_equal(stands[0], table[i].first);
        assert_int_equal(office_state(o, accepted.id), table[i].state);
    }
    /* Those that wait still have the server's key, the others have not. */
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM content_keys WHERE holder = 'server'"), 2);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE state = 8 AND delivered_us > 0"), 2);
}

static void a_settlement_needs_the_release(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release, forged;
    struct mail_content content;

    MUST(office_decide(o, accepted.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    forged = release;
    mail_message_id(OFFICE_INBOX, forged.id);
    MUST_FAIL(office_settle(o, &forged, MAIL_DELIVERED, &err), ERR_NOT_FOUND);
    assert_int_equal(office_state(o, accepted.id), MAIL_SENDING);
}

/* ---- crashes ---- */

static void a_worker_that_is_killed_between_two_calls_loses_nothing(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release;
    struct mail_content content;
    uint64_t rows;

    office_kill(o);
    MUST(office_decide(o, accepted.id, true, &err));
    office_kill(o);
    MUST(office_claim(o, &release, &content, &err));
    office_kill(o);
    MUST(office_settle(o, &release, MAIL_DELIVERED, &err));
    office_kill(o);
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    assert_int_equal(rows, 5);
    assert_int_equal(office_state(o, accepted.id), MAIL_SENT);
}

/* Everything that belongs together: the state, its keys, its release, its audit. */
static void check_whole(struct office *o)
{
    uint64_t rows;

    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE state = 0"), 0); /* MAIL_SCAN */
    /* HELD has the approvers' key and no other state has; what waits to leave has the server's. */
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages m WHERE (m.state = 1) != EXISTS (SELECT 1 FROM "
                                   "content_keys k WHERE k.message_id = m.id AND k.holder = 'approver')"),
                     0);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages m WHERE (m.state IN (3, 4, 5, 6, 7)) != EXISTS "
                                   "(SELECT 1 FROM content_keys k WHERE k.message_id = m.id AND k.holder = 'server')"),
                     0);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages m WHERE (m.state IN (6, 7, 8)) != EXISTS "
                                   "(SELECT 1 FROM releases r WHERE r.message_id = m.id)"),
                     0);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages m WHERE (SELECT COUNT(*) FROM recipients r WHERE "
                                   "r.message_id = m.id) != 1"),
                     0);
    assert_int_equal(office_ask(o, "SELECT (SELECT COUNT(*) FROM messages) - (SELECT COUNT(*) FROM sends)"), 0);
    assert_int_equal(office_ask(o, "SELECT bytes - (SELECT COALESCE(SUM(size), 0) FROM messages) FROM storage"), 0);
    assert_int_equal(office_ask(o, "SELECT (SELECT COUNT(*) FROM messages) - "
                                   "(SELECT COUNT(*) FROM audit WHERE action = 'message.accept')"),
                     0);
}

typedef bool attempt_fn(struct office *o, const char *message_id, struct err *err);

static bool attempt_accept(struct office *o, const char *message_id, struct err *err)
{
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    (void)message_id;
    want.idempotency_key = STR("once");
    return mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, err);
}

static bool attempt_approve(struct office *o, const char *message_id, struct err *err)
{
    return office_decide(o, message_id, true, err);
}

static bool attempt_claim(struct office *o, const char *message_id, struct err *err)
{
    struct mail_release release;
    struct mail_content content;

    (void)message_id;
    return office_claim(o, &release, &content, err);
}

static bool attempt_pull_back(struct office *o, const char *message_id, struct err *err)
{
    uint32_t count;

    (void)message_id;
    return mail_pull_back(o->mail, OFFICE_INBOX, MAIL_GATED_ALL, &o->approver.public_key, STR("operator"), &count, err);
}

static bool attempt_cancel(struct office *o, const char *message_id, struct err *err)
{
    struct mail_message message;

    return mail_cancel(o->mail, OFFICE_INBOX, message_id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message,
                       err);
}

/*
 * Kills the worker at its first change of a row, at its second and so on, and asks again each time, until a worker gets
 * through. Each time the message must be wholly before or wholly behind the change. Returns how many were killed.
 */
static int until_it_works(struct office *o, attempt_fn *attempt, const char *message_id)
{
    for (long n = 1; n < 1000; n++) {
        struct err err = { 0 };
        office_kill_at(o, n);
        bool worked = attempt(o, message_id, &err);
        office_kill_at(o, 0);
        if (worked) {
            check_whole(o);
            return (int)n - 1;
        }
        if (err.kind != ERR_UNAVAILABLE)
            fail_msg("%s", err_text(&err));
        check_whole(o);
    }
    fail_msg("no end");
    return 0;
}

static void a_crash_at_any_row_of_a_change_leaves_one_state(void **state)
{
    struct office *o = *state;
    struct mail_message *pending;
    size_t count;

    assert_in_range(until_it_works(o, attempt_accept, NULL), 8, 100);
    MUST(mail_pending(o->mail, OFFICE_INBOX, NULL, &o->arena, &pending, &count, &err));
    assert_int_equal(count, 1);
    assert_false(pending[0].has_content);
    assert_in_range(until_it_works(o, attempt_approve, pending[0].id), 4, 100);
    assert_in_range(until_it_works(o, attempt_claim, NULL), 3, 100);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM releases"), 1);

    struct mail_accepted queued = office_send(o, MAIL_AUTONOMOUS);
    assert_in_range(until_it_works(o, attempt_pull_back, NULL), 3, 100);
    assert_int_equal(office_state(o, queued.id), MAIL_HELD);
    assert_in_range(until_it_works(o, attempt_cancel, queued.id), 3, 100);
    assert_int_equal(office_state(o, queued.id), MAIL_CANCELLED);
}

static void a_worker_that_dies_after_its_commit_has_done_it_once(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted;
    struct mail_release release;
    struct mail_content content;
    uint64_t rows;

    office_kill_after(o);
    accepted = office_send(o, MAIL_GATED_SEND);
    assert_int_equal(accepted.state, MAIL_HELD);
    assert_false(accepted.is_repeat);
    office_kill_after(o);
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_UNAVAILABLE);
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_CONFLICT);
    office_kill_after(o);
    MUST(office_claim(o, &release, &content, &err));
    assert_string_equal(release.message_id, accepted.id);
    assert_false(release.is_repeat); /* nobody has it yet */
    office_kill_after(o);
    MUST(office_settle(o, &release, MAIL_DELIVERED, &err));
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    check_whole(o);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages"), 1);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action = 'message.release'"), 1);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action = 'message.sent'"), 1);
}

static void a_settlement_that_is_killed_is_repeated(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release;
    struct mail_content content;
    long n = 1;

    MUST(office_decide(o, accepted.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    for (; n < 1000; n++) {
        struct err err = { 0 };
        office_kill_at(o, n);
        bool worked = office_settle(o, &release, MAIL_DELIVERED, &err);
        office_kill_at(o, 0);
        if (worked)
            break;
        assert_int_equal(err.kind, ERR_UNAVAILABLE);
        check_whole(o);
        assert_int_equal(office_state(o, accepted.id), MAIL_SENDING);
    }
    assert_in_range(n, 4, 100);
    assert_int_equal(office_state(o, accepted.id), MAIL_SENT);
    check_whole(o);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        OFFICE_CASE(a_scheduled_message_leaves_when_it_is_due),
        OFFICE_CASE(a_message_that_is_scheduled_first_is_held_when_it_is_due),
        OFFICE_CASE(an_approved_message_can_be_undone_for_some_seconds),
        OFFICE_CASE(a_tick_moves_more_messages_than_one_round_has),
        OFFICE_CASE(one_damaged_row_does_not_stop_the_timers_of_the_others),
        OFFICE_CASE(a_lowered_mode_pulls_back_what_is_not_approved),
        OFFICE_CASE(what_waits_for_a_person_is_withdrawn_and_what_was_approved_leaves),
        OFFICE_CASE(a_mode_that_is_lower_at_dispatch_holds_the_message_again),
        OFFICE_CASE(an_approval_that_is_too_old_is_asked_for_again),
        OFFICE_CASE(messages_leave_in_their_order_and_once),
        OFFICE_CASE(what_another_front_has_left_is_repeated_with_the_same_release),
        OFFICE_CASE(a_forged_approval_is_noticed),
        OFFICE_CASE(a_damaged_message_fails_and_the_next_one_leaves),
        OFFICE_CASE(outcomes_of_recipients_decide_what_becomes_of_the_message),
        OFFICE_CASE(a_settlement_needs_the_release),
        OFFICE_CASE(a_worker_that_is_killed_between_two_calls_loses_nothing),
        OFFICE_CASE(a_crash_at_any_row_of_a_change_leaves_one_state),
        OFFICE_CASE(a_worker_that_dies_after_its_commit_has_done_it_once),
        OFFICE_CASE(a_settlement_that_is_killed_is_repeated),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
