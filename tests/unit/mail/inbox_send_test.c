/*
 * The sending side of an inbox's file, with real worker processes: accepting, deciding, taking back, changing.
 */
#include "inbox_office.h"

#include <pthread.h>

/* Holders of the content key besides the inbox. */
static int64_t keys_of(struct office *o, const char *holder)
{
    char query[128];

    snprintf(query, sizeof query, "SELECT COUNT(*) FROM content_keys WHERE holder = '%s'", holder);
    return office_ask(o, query);
}

static bool try_accept(struct office *o, const struct mail_accept *want, struct mail_accepted *out, struct err *err)
{
    uint32_t retry_s;

    return mail_accept(o->mail, want, &o->arena, out, &retry_s, err);
}

static void a_held_message_is_approved_leaves_and_is_sent(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_message *pending, held, read;
    struct mail_release release;
    struct mail_content content;
    uint64_t rows;
    size_t count;

    assert_int_equal(accepted.state, MAIL_HELD);
    assert_false(accepted.is_repeat);
    MUST(mail_pending(o->mail, OFFICE_INBOX, &o->approver, &o->arena, &pending, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(pending[0].id, accepted.id);
    assert_string_equal(pending[0].sha256, accepted.sha256);
    assert_true(pending[0].has_content);
    CHECK_STR(pending[0].content.subject, STR("Zebrasubject 1"));
    assert_int_equal(pending[0].content.text.len, 0);
    MUST(mail_held_get(o->mail, OFFICE_INBOX, str_from(accepted.id), &o->approver, &o->arena, &held, &err));
    CHECK_STR(held.content.text, STR("Giraffebody 1\n"));

    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    MUST(office_decide(o, accepted.id, true, &err));
    MUST_FAIL(mail_held_get(o->mail, OFFICE_INBOX, str_from(accepted.id), &o->approver, &o->arena, &held, &err),
              ERR_NOT_FOUND);
    MUST(office_claim(o, &release, &content, &err));
    assert_string_equal(release.message_id, accepted.id);
    assert_true(release.is_approved);
    assert_false(release.is_repeat);
    assert_true(mail_approval_valid(o->mail, &release));
    CHECK_STR(release.approver, o->approver.id);
    CHECK_STR(content.text, STR("Giraffebody 1\n"));
    MUST(office_settle(o, &release, MAIL_DELIVERED, &err));
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    MUST(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(accepted.id), MAIL_WANT_TEXT, &o->arena, &read, &err));
    CHECK_STR(read.content.text, STR("Giraffebody 1\n"));
    assert_int_equal(read.state, MAIL_SENT);
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    assert_int_equal(rows, 5); /* made, accepted, approved, released, sent */
}

static void each_state_has_its_keys_and_no_others(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_release release;
    struct mail_content content;

    assert_int_equal(keys_of(o, "approver"), 1);
    assert_int_equal(keys_of(o, "server"), 0);
    MUST(office_decide(o, accepted.id, true, &err));
    assert_int_equal(keys_of(o, "approver"), 0);
    assert_int_equal(keys_of(o, "server"), 1);
    MUST(office_claim(o, &release, &content, &err));
    assert_int_equal(keys_of(o, "server"), 1);
    MUST(office_settle(o, &release, MAIL_DELIVERED, &err));
    assert_int_equal(keys_of(o, "server"), 0);
    assert_int_equal(keys_of(o, "inbox"), 1);
}

static void a_rejected_message_never_leaves(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_decision decision = office_decision(o, accepted.id, false);
    struct mail_message message, read;
    struct mail_release release;
    struct mail_content content;

    decision.reason = STR("too many zebras");
    MUST(mail_decide(o->mail, &decision, &o->arena, &message, &err));
    assert_int_equal(message.state, MAIL_REJECTED);
    CHECK_STR(message.reason, STR("too many zebras"));
    MUST(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(accepted.id), 0, &o->arena, &read, &err));
    CHECK_STR(read.reason, STR("too many zebras"));
    CHECK_STR(read.decided_by, o->approver.id);
    MUST_FAIL(office_claim(o, &release, &content, &err), ERR_NOT_FOUND);
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_CONFLICT);
    assert_int_equal(keys_of(o, "approver"), 0);
    assert_int_equal(keys_of(o, "server"), 0);
}

static void a_second_decision_is_a_conflict(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);

    MUST(office_decide(o, accepted.id, true, &err));
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_CONFLICT);
    MUST_FAIL(office_decide(o, accepted.id, false, &err), ERR_CONFLICT);
    assert_int_equal(office_state(o, accepted.id), MAIL_QUEUED);
}

struct decider {
    struct office *o;
    const char *message_id;
    bool approve, won;
    enum err_kind kind;
    pthread_t thread;
};

static void *decide_in_a_thread(void *at)
{
    struct decider *d = at;
    struct mail_decision decision = office_decision(d->o, d->message_id, d->approve);
    struct mail_message message;
    struct arena arena;
    struct err err = { 0 };

    arena_init(&arena);
    d->won = mail_decide(d->o->mail, &decision, &arena, &message, &err);
    d->kind = err.kind;
    arena_done(&arena);
    return NULL;
}

static void of_two_approvers_at_once_one_wins(void **state)
{
    struct office *o = *state;

    for (int round = 0; round < 20; round++) {
        struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
        struct decider deciders[2];
        for (int i = 0; i < 2; i++) {
            deciders[i] = (struct decider){ .o = o, .message_id = accepted.id, .approve = i };
            assert_int_equal(pthread_create(&deciders[i].thread, NULL, decide_in_a_thread, &deciders[i]), 0);
        }
        for (int i = 0; i < 2; i++)
            (void)pthread_join(deciders[i].thread, NULL);
        assert_int_equal(deciders[0].won + deciders[1].won, 1);
        assert_int_equal(deciders[deciders[0].won ? 1 : 0].kind, ERR_CONFLICT);
    }
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action IN ('message.approve', 'message.reject')"),
                     20);
}

static void what_has_expired_cannot_be_approved(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);

    o->now_us += 8 * 24 * OFFICE_HOUR_US;
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_CONFLICT);
    struct mail_tick tick = office_tick(o, MAIL_GATED_SEND);
    assert_int_equal(tick.pending, 0);
    assert_int_equal(tick.next_us, 0);
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_CONFLICT);
    assert_int_equal(office_state(o, accepted.id), MAIL_EXPIRED);
    assert_int_equal(keys_of(o, "approver"), 0);
}

static void only_an_approver_who_is_not_the_composer_decides(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_approver by = o->approver;
    struct mail_decision decision = office_decision(o, accepted.id, true);
    struct mail_message message;

    decision.approver = &by;
    by.scopes = MAIL_SCOPE_SEND;
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_DENIED);
    by.scopes = MAIL_SCOPE_OVERSIGHT_READ;
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_DENIED);
    by.scopes = MAIL_SCOPE_OVERSIGHT;
    by.id = STR("key:" OFFICE_COMPOSER);
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_DENIED);
    decision.approve = false;
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_DENIED);
    /* Another tenant's approver: the right scope, and the wrong key. */
    decision.approve = true;
    by = o->approver;
    seal_make_pair(&by.public_key, &by.private_key);
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_DENIED);
    assert_int_equal(office_state(o, accepted.id), MAIL_HELD);
}

static void an_approval_is_for_the_hash_that_was_shown(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_decision decision = office_decision(o, accepted.id, true);
    struct mail_message message;

    decision.sha256 = STR("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_CONFLICT);
    decision.sha256 = STR("short");
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_CONFLICT);
    decision.sha256 = str_from(accepted.sha256);
    MUST(mail_decide(o->mail, &decision, &o->arena, &message, &err));
}

static void a_body_that_was_exchanged_in_the_file_is_not_approved(void **state)
{
    struct office *o = *state;
    struct mail_accepted first = office_send(o, MAIL_GATED_SEND), second = office_send(o, MAIL_GATED_SEND);
    char script[512];

    /* With its key: only the id that is authenticated with the cipher tells. */
    snprintf(script, sizeof script,
             "UPDATE messages SET body_cipher = (SELECT body_cipher FROM messages WHERE id = '%s') WHERE id = '%s';"
             "UPDATE content_keys SET sealed = (SELECT sealed FROM content_keys WHERE message_id = '%s' AND "
             "holder = 'approver') WHERE message_id = '%s' AND holder = 'approver'",
             second.id, first.id, second.id, first.id);
    office_by_hand(o, script);
    MUST_FAIL(office_decide(o, first.id, true, &err), ERR_INTERNAL);
    MUST(office_decide(o, first.id, false, &err));
    MUST(office_decide(o, second.id, true, &err));
}

static void a_row_with_another_hash_is_not_approved(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);

    office_by_hand(o, "UPDATE messages SET hash = zeroblob(32)");
    MUST_FAIL(office_decide(o, accepted.id, true, &err), ERR_INTERNAL);
}

static void check_differs(const struct mail_content *a, const struct mail_content *b)
{
    unsigned char hash_a[GATE_HASH_BYTES], hash_b[GATE_HASH_BYTES];

    mail_content_hash(a, hash_a);
    mail_content_hash(b, hash_b);
    assert_memory_not_equal(hash_a, hash_b, sizeof hash_a);
}

static void the_hash_is_of_sender_recipients_and_mime(void **state)
{
    struct str recipients[] = { STR("a@x.example"), STR("b@x.example") }, moved[] = { STR("a@x.exampleb@x.example") },
               swapped[] = { STR("b@x.example"), STR("a@x.example") };
    const struct mail_content content = {
        .sender = STR("s@x.example"), .recipients = recipients, .recipient_count = 2, .mime = STR("MIME")
    };
    struct mail_content other = content;
    unsigned char hash[GATE_HASH_BYTES], again[GATE_HASH_BYTES];

    (void)state;
    mail_content_hash(&content, hash);
    other.subject = STR("what is shown is made from the MIME");
    mail_content_hash(&other, again);
    assert_memory_equal(hash, again, sizeof hash);
    other = content;
    other.recipient_count = 1;
    check_differs(&content, &other);
    other.recipients = moved;
    check_differs(&content, &other);
    other.recipients = swapped;
    other.recipient_count = 2;
    check_differs(&content, &other);
    other = content;
    other.mime = STR("MIMF");
    check_differs(&content, &other);
    other = content;
    other.sender = STR("t@x.example");
    check_differs(&content, &other);
}

/* ---- repeats ---- */

static void an_idempotency_key_is_good_for_a_day(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted first, again;

    want.idempotency_key = STR("order 66");
    MUST(try_accept(o, &want, &first, &err));
    want.content = office_content(o, "peer@elsewhere.example");
    want.now_us += 23 * OFFICE_HOUR_US;
    MUST(try_accept(o, &want, &again, &err));
    assert_true(again.is_repeat);
    assert_string_equal(again.id, first.id);
    assert_string_equal(again.thread_id, first.thread_id);
    assert_string_equal(again.sha256, first.sha256);
    want.now_us -= 48 * OFFICE_HOUR_US; /* the clock went back */
    MUST(try_accept(o, &want, &again, &err));
    assert_true(again.is_repeat);
    want.now_us += 50 * OFFICE_HOUR_US;
    MUST(try_accept(o, &want, &again, &err));
    assert_false(again.is_repeat);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages"), 2);
}

static void the_same_content_within_a_minute_is_a_conflict(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted first, again;
    struct mail_message message;

    want.dedup = STR("to, subject and body");
    MUST(try_accept(o, &want, &first, &err));
    want.now_us += 59 * 1000000;
    MUST_FAIL(try_accept(o, &want, &again, &err), ERR_CONFLICT);
    want.now_us -= 90 * 1000000; /* the clock went back */
    MUST_FAIL(try_accept(o, &want, &again, &err), ERR_CONFLICT);
    want.dedup = STR("another body");
    MUST(try_accept(o, &want, &again, &err));
    /* What was taken back may be sent again. */
    want.dedup = STR("to, subject and body");
    MUST(
        mail_cancel(o->mail, OFFICE_INBOX, first.id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message, &err));
    MUST(try_accept(o, &want, &again, &err));
}

static void what_is_sent_after_the_clock_went_back_is_still_the_newest(void **state)
{
    struct office *o = *state;
    struct mail_accepted before = office_send(o, MAIL_GATED_SEND), after, later;
    struct mail_message held;
    char script[256], future[MAIL_MESSAGE_ID_BYTES];

    /* As if an earlier front had stored it, with a clock that was an age ahead. */
    memcpy(future, before.id, sizeof future);
    future[2] = 'Z';
    snprintf(script, sizeof script, "PRAGMA foreign_keys = OFF; UPDATE messages SET id = '%s' WHERE id = '%s'", future,
             before.id);
    office_by_hand(o, script);
    after = office_send(o, MAIL_GATED_SEND);
    later = office_send(o, MAIL_GATED_SEND);
    assert_true(strcmp(after.id, future) > 0);
    assert_true(strcmp(later.id, after.id) > 0);
    assert_int_equal(strncmp(after.id, future, 10), 0);
    MUST(mail_held_get(o->mail, OFFICE_INBOX, str_from(after.id), &o->approver, &o->arena, &held, &err));
    /* Ids of other inboxes do not depend on it. */
    mail_message_id(OFFICE_INBOX, future);
    assert_true(strcmp(future, after.id) < 0);
}

/* ---- limits ---- */

static void limits_are_checked_before_anything_is_stored(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    o->limits.sends_per_minute = 2;
    o->limits.sends_per_day = 3;
    for (int i = 0; i < 2; i++)
        MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    want.now_us += 20 * 1000000;
    MUST_FAIL(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err), ERR_LIMIT);
    assert_in_range(retry_s, 40, 41);
    want.now_us += 41 * 1000000;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    assert_int_equal(retry_s, 0);
    want.now_us += 61 * 1000000;
    MUST_FAIL(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err), ERR_LIMIT);
    assert_in_range(retry_s, 86200, 86400);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages"), 3);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit"), 4);
    want.now_us += 24 * OFFICE_HOUR_US;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
}

static void a_clock_that_goes_back_neither_lifts_a_limit_nor_makes_it_longer(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;

    o->limits.sends_per_minute = 1;
    MUST(try_accept(o, &want, &accepted, &err));
    want.now_us -= 1000 * OFFICE_HOUR_US;
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_LIMIT);
    o->limits.sends_per_minute = 2;
    MUST(try_accept(o, &want, &accepted, &err)); /* writes down that the first was sent now */
    o->limits.sends_per_minute = 1;
    want.now_us += 61 * 1000000;
    MUST(try_accept(o, &want, &accepted, &err));
}

static void what_waits_and_what_is_stored_is_limited(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted first, accepted;
    struct mail_message message;

    o->limits.pending_most = 2;
    MUST(try_accept(o, &want, &first, &err));
    want.send_at_us = want.now_us + OFFICE_HOUR_US;
    want.schedule_first = true;
    MUST(try_accept(o, &want, &accepted, &err));
    assert_int_equal(accepted.state, MAIL_SCHEDULED);
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_LIMIT);
    MUST(
        mail_cancel(o->mail, OFFICE_INBOX, first.id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message, &err));
    MUST(try_accept(o, &want, &accepted, &err));
    o->limits.pending_most = 0;
    o->limits.storage_bytes = (uint64_t)office_ask(o, "SELECT SUM(size) FROM messages") + 10;
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_LIMIT);
    assert_int_equal(office_ask(o, "SELECT bytes - (SELECT SUM(size) FROM messages) FROM storage"), 0);
}

static void a_read_only_inbox_stores_nothing(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;

    want.mode = MAIL_READ_ONLY;
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_DENIED);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages"), 0);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM sends"), 0);
}

static void what_the_scan_blocks_is_rejected(void **state)
{
    struct office *o = *state;
    struct mail_content *content = office_content(o, "peer@elsewhere.example");
    struct mail_warning warning = { .code = STR("canary"), .detail = STR("a canary"), .blocks = true };
    struct mail_accept want = office_want(o, content);
    struct mail_accepted accepted;

    content->warnings = &warning;
    content->warning_count = 1;
    want.mode = MAIL_AUTONOMOUS;
    MUST(try_accept(o, &want, &accepted, &err));
    assert_int_equal(accepted.state, MAIL_REJECTED);
}

/* ---- the allowlist ---- */

/* As the worker would hash it. */
static void allow(struct office *o, const char *pattern)
{
    struct inbox inbox = { 0 };
    char hash[65], script[256];
    sqlite3 *db;
    sqlite3_stmt *statement;
    char path[128];

    office_kill(o);
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, OFFICE_INBOX);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT value FROM meta WHERE name = 'index_key'", -1, &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    memcpy(inbox.index_key.bytes, sqlite3_column_blob(statement, 0), SEAL_KEY_BYTES);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    mail_inbox_server_key(o->mail, OFFICE_INBOX, &inbox.server_key);
    inbox_allow_hash(&inbox, str_from(pattern), hash);
    snprintf(script, sizeof script, "INSERT INTO allowlist VALUES ('%s', '%s', x'00', '', 0)", pattern, hash);
    office_by_hand(o, script);
}

static void the_allowlist_covers_what_the_rules_say(void **state)
{
    struct office *o = *state;
    static const char *const addresses[] = { "a@b.example", "A@B.Example", "x@b.example",    "x@sub.b.example",
                                             "a@c.example", "x@d.example", "a@b.example.org" };

    allow(o, "a@c.example");
    allow(o, "*@B.example");
    for (size_t i = 0; i < COUNT_OF(addresses); i++) {
        struct mail_accept want = office_want(o, office_content(o, addresses[i]));
        struct mail_accepted accepted;
        struct str address = str_from(addresses[i]);
        bool covered = mail_allow_covers(STR("a@c.example"), address) || mail_allow_covers(STR("*@B.example"), address);
        MUST(try_accept(o, &want, &accepted, &err));
        assert_int_equal(accepted.state, covered ? MAIL_QUEUED : MAIL_HELD);
        want.mode = MAIL_GATED_ALL;
        want.content = office_content(o, addresses[i]);
        MUST(try_accept(o, &want, &accepted, &err));
        assert_int_equal(accepted.state, MAIL_HELD);
    }
}

static void one_recipient_who_is_not_on_the_allowlist_holds_the_message(void **state)
{
    struct office *o = *state;
    struct mail_content *content = office_content(o, "a@b.example");
    struct str both[] = { STR("a@b.example"), STR("stranger@elsewhere.example") };
    struct mail_accept want = office_want(o, content);
    struct mail_accepted accepted;

    allow(o, "a@b.example");
    content->recipients = both; /* the second is a blind copy */
    content->recipient_count = 2;
    MUST(try_accept(o, &want, &accepted, &err));
    assert_int_equal(accepted.state, MAIL_HELD);
    content->recipient_count = 0;
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_INVALID);
    content->recipient_count = 1;
    want.hold_us = 0;
    MUST_FAIL(try_accept(o, &want, &accepted, &err), ERR_INVALID);
}

/* ---- taking back and changing ---- */

static void a_message_can_be_cancelled_until_it_may_leave(void **state)
{
    struct office *o = *state;
    struct mail_accepted held = office_send(o, MAIL_GATED_SEND), queued = office_send(o, MAIL_AUTONOMOUS);
    struct mail_message message;

    MUST_FAIL(mail_cancel(o->mail, OFFICE_INBOX, held.id, STR("other"), MAIL_SCOPE_READ, &o->arena, &message, &err),
              ERR_DENIED);
    for (int i = 0; i < 2; i++) {
        MUST(mail_cancel(o->mail, OFFICE_INBOX, held.id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message,
                         &err));
        assert_int_equal(message.state, MAIL_CANCELLED);
    }
    MUST_FAIL(office_decide(o, held.id, true, &err), ERR_CONFLICT);
    MUST_FAIL(
        mail_cancel(o->mail, OFFICE_INBOX, queued.id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message, &err),
        ERR_CONFLICT);
    MUST_FAIL(mail_cancel(o->mail, OFFICE_INBOX, "01HNOSUCHMESSAGE0000000000ZZZZZZZZZZ", STR(OFFICE_COMPOSER),
                          MAIL_SCOPE_SEND, &o->arena, &message, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(mail_cancel(o->mail, OFFICE_INBOX, "no id at all, and longer than any id that there is", STR("x"),
                          MAIL_SCOPE_SEND, &o->arena, &message, &err),
              ERR_NOT_FOUND);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action = 'message.cancel'"), 1);
}

static void approve_then_edit_needs_another_approval(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    struct mail_message message, held, read;
    struct mail_release release;
    struct mail_content content;

    want.send_at_us = want.now_us + OFFICE_HOUR_US;
    MUST(try_accept(o, &want, &accepted, &err));
    assert_int_equal(accepted.state, MAIL_HELD);
    MUST(office_decide(o, accepted.id, true, &err));
    assert_int_equal(office_state(o, accepted.id), MAIL_SCHEDULED);
    /* The approver has seen its time: neither later nor at once, which would also leave the undo window out. */
    int64_t approved_us = want.send_at_us;
    want.content = NULL;
    want.send_at_us += OFFICE_HOUR_US;
    MUST_FAIL(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err), ERR_CONFLICT);
    want.send_at_us = 0;
    MUST_FAIL(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err), ERR_CONFLICT);
    MUST(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(accepted.id), 0, &o->arena, &message, &err));
    assert_int_equal(message.state, MAIL_SCHEDULED);
    assert_true(message.send_at_us == approved_us);
    want.send_at_us = approved_us + OFFICE_HOUR_US;
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE approval_hash IS NOT NULL"), 1);
    /* Other bytes do not. */
    want.content = office_content(o, "someone@elsewhere.example");
    MUST(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err));
    assert_int_equal(message.state, MAIL_HELD);
    assert_string_not_equal(message.sha256, accepted.sha256);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE approval_hash IS NOT NULL"), 0);
    struct mail_decision decision = office_decision(o, accepted.id, true);
    decision.sha256 = str_from(accepted.sha256);
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &message, &err), ERR_CONFLICT);
    MUST(mail_held_get(o->mail, OFFICE_INBOX, str_from(accepted.id), &o->approver, &o->arena, &held, &err));
    CHECK_STR(held.content.text, STR("Giraffebody 2\n"));
    MUST(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(accepted.id), MAIL_WANT_TEXT, &o->arena, &read, &err));
    CHECK_STR(read.content.text, STR("Giraffebody 2\n"));
    o->now_us = want.send_at_us + 1;
    assert_int_equal(office_tick(o, MAIL_GATED_SEND).queued, 0);
    MUST(office_decide(o, accepted.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    CHECK_STR(content.recipients[0], STR("someone@elsewhere.example"));
}

static void what_is_not_scheduled_cannot_be_changed(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_message message;

    MUST_FAIL(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err), ERR_CONFLICT);
    want.content = NULL;
    MUST_FAIL(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err), ERR_CONFLICT);
    MUST_FAIL(mail_reschedule(o->mail, &want, "x", &o->arena, &message, &err), ERR_NOT_FOUND);
}

static void a_message_whose_new_time_is_now_is_held_with_a_key_for_its_approver(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    struct mail_message message;

    want.send_at_us = want.now_us + OFFICE_HOUR_US;
    want.schedule_first = true;
    MUST(try_accept(o, &want, &accepted, &err));
    want.content = NULL;
    want.send_at_us = 0;
    MUST(mail_reschedule(o->mail, &want, accepted.id, &o->arena, &message, &err));
    assert_int_equal(message.state, MAIL_HELD);
    MUST(mail_held_get(o->mail, OFFICE_INBOX, str_from(accepted.id), &o->approver, &o->arena, &message, &err));
}

static void an_answer_is_in_the_thread_of_what_it_answers(void **state)
{
    struct office *o = *state;
    struct mail_accepted first = office_send(o, MAIL_GATED_SEND), other = office_send(o, MAIL_GATED_SEND), answer;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));

    assert_string_not_equal(first.thread_id, other.thread_id);
    want.answers_id = first.id;
    MUST(try_accept(o, &want, &answer, &err));
    assert_string_equal(answer.thread_id, first.thread_id);
    want.answers_id = NULL;
    want.thread_id = str_from(other.thread_id);
    MUST(try_accept(o, &want, &answer, &err));
    assert_string_equal(answer.thread_id, other.thread_id);
    want.thread_id = STR("01HNOSUCHTHREAD00000000000ZZZZZZZZZZ");
    MUST_FAIL(try_accept(o, &want, &answer, &err), ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        OFFICE_CASE(a_held_message_is_approved_leaves_and_is_sent),
        OFFICE_CASE(each_state_has_its_keys_and_no_others),
        OFFICE_CASE(a_rejected_message_never_leaves),
        OFFICE_CASE(a_second_decision_is_a_conflict),
        OFFICE_CASE(of_two_approvers_at_once_one_wins),
        OFFICE_CASE(what_has_expired_cannot_be_approved),
        OFFICE_CASE(only_an_approver_who_is_not_the_composer_decides),
        OFFICE_CASE(an_approval_is_for_the_hash_that_was_shown),
        OFFICE_CASE(a_body_that_was_exchanged_in_the_file_is_not_approved),
        OFFICE_CASE(a_row_with_another_hash_is_not_approved),
        CASE(the_hash_is_of_sender_recipients_and_mime),
        OFFICE_CASE(an_idempotency_key_is_good_for_a_day),
        OFFICE_CASE(the_same_content_within_a_minute_is_a_conflict),
        OFFICE_CASE(what_is_sent_after_the_clock_went_back_is_still_the_newest),
        OFFICE_CASE(limits_are_checked_before_anything_is_stored),
        OFFICE_CASE(a_clock_that_goes_back_neither_lifts_a_limit_nor_makes_it_longer),
        OFFICE_CASE(what_waits_and_what_is_stored_is_limited),
        OFFICE_CASE(a_read_only_inbox_stores_nothing),
        OFFICE_CASE(what_the_scan_blocks_is_rejected),
        OFFICE_CASE(the_allowlist_covers_what_the_rules_say),
        OFFICE_CASE(one_recipient_who_is_not_on_the_allowlist_holds_the_message),
        OFFICE_CASE(a_message_can_be_cancelled_until_it_may_leave),
        OFFICE_CASE(approve_then_edit_needs_another_approval),
        OFFICE_CASE(what_is_not_scheduled_cannot_be_changed),
        OFFICE_CASE(a_message_whose_new_time_is_now_is_held_with_a_key_for_its_approver),
        OFFICE_CASE(an_answer_is_in_the_thread_of_what_it_answers),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
