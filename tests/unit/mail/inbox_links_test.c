/*
 * Links to held messages and to attachments; and mail that is held before the agent sees it.
 */
#include "inbox_office.h"

static struct mail_accepted send_with_link(struct office *o)
{
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    want.want_link = true;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    return accepted;
}

static bool open_link(struct office *o, const struct secret *token, struct mail_message *out, struct err *err)
{
    struct mail_link link;

    return mail_link_open(o->mail, secret_reveal(token), OFFICE_INBOX, MAIL_WANT_TEXT, o->now_us, &o->arena, &link, out,
                          err);
}

static bool decide_by_link(struct office *o, const struct secret *token, const char *message_id, bool approve,
                           struct err *err)
{
    const struct mail_approver by = { .id = STR("link"), .scopes = MAIL_SCOPE_OVERSIGHT };
    struct mail_decision decision = office_decision(o, message_id, approve);
    struct mail_message message;

    decision.approver = &by;
    return mail_link_decide(o->mail, secret_reveal(token), &decision, &o->arena, &message, err);
}

static void a_held_message_comes_with_a_link_that_shows_and_decides(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = send_with_link(o);
    struct mail_message message;
    struct mail_release release;
    struct mail_content content;
    char handle[MAIL_HANDLE_BYTES];

    assert_true(mail_link_handle(secret_reveal(&accepted.link), handle));
    assert_string_equal(handle, &OFFICE_INBOX[16]);
    for (int i = 0; i < 3; i++) { /* a mail program that looks at each link changes nothing */
        MUST(open_link(o, &accepted.link, &message, &err));
        CHECK_STR(message.content.text, STR("Giraffebody 1\n"));
        assert_int_equal(message.content.mime.len, 0);
        assert_string_equal(message.sha256, accepted.sha256);
    }
    assert_int_equal(office_state(o, accepted.id), MAIL_HELD);
    MUST(decide_by_link(o, &accepted.link, accepted.id, true, &err));
    MUST_FAIL(decide_by_link(o, &accepted.link, accepted.id, true, &err), ERR_CONFLICT);
    MUST_FAIL(decide_by_link(o, &accepted.link, accepted.id, false, &err), ERR_CONFLICT);
    MUST_FAIL(open_link(o, &accepted.link, &message, &err), ERR_NOT_FOUND);
    MUST(office_claim(o, &release, &content, &err));
    CHECK_STR(release.approver, STR("link"));
    assert_true(mail_approval_valid(o->mail, &release));
}

static void a_message_that_is_not_held_has_no_link(void **state)
{
    struct office *o = *state;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    want.want_link = true;
    want.mode = MAIL_AUTONOMOUS;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    assert_int_equal(accepted.link.len, 0);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM links"), 0);
}

static void a_link_ends_when_the_message_is_decided_in_another_way(void **state)
{
    struct office *o = *state;
    struct mail_accepted decided = send_with_link(o), cancelled = send_with_link(o), expired = send_with_link(o);
    struct mail_message message;

    MUST(office_decide(o, decided.id, false, &err));
    MUST(mail_cancel(o->mail, OFFICE_INBOX, cancelled.id, STR(OFFICE_COMPOSER), MAIL_SCOPE_SEND, &o->arena, &message,
                     &err));
    MUST_FAIL(open_link(o, &decided.link, &message, &err), ERR_NOT_FOUND);
    MUST_FAIL(open_link(o, &cancelled.link, &message, &err), ERR_NOT_FOUND);
    MUST_FAIL(decide_by_link(o, &cancelled.link, cancelled.id, true, &err), ERR_CONFLICT);
    o->now_us += 8 * 24 * OFFICE_HOUR_US;
    MUST_FAIL(open_link(o, &expired.link, &message, &err), ERR_NOT_FOUND);
    MUST_FAIL(decide_by_link(o, &expired.link, expired.id, true, &err), ERR_NOT_FOUND);
    (void)office_tick(o, MAIL_GATED_SEND);
    /* Not even with the token does the file open a content key any more. */
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM links WHERE length(wrapped) > 0"), 0);
}

static void a_link_is_for_its_own_message(void **state)
{
    struct office *o = *state;
    struct mail_accepted one = send_with_link(o), other = send_with_link(o);
    struct secret wrong = one.link;
    struct mail_message message;

    MUST_FAIL(decide_by_link(o, &one.link, other.id, true, &err), ERR_NOT_FOUND);
    wrong.bytes[wrong.len - 1] ^= 1;
    MUST_FAIL(open_link(o, &wrong, &message, &err), ERR_NOT_FOUND);
    wrong.len = 3;
    MUST_FAIL(open_link(o, &wrong, &message, &err), ERR_NOT_FOUND);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages WHERE state = 1"), 2);
}

static void an_approver_makes_a_link_and_others_do_not(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_link want = { .kind = MAIL_LINK_APPROVE, .expires_us = o->now_us + OFFICE_HOUR_US };
    struct mail_approver stranger = o->approver;
    struct mail_message message;
    struct secret token;

    memcpy(want.message_id, accepted.id, sizeof want.message_id);
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &o->reader, o->now_us, &token, &err), ERR_DENIED);
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, NULL, o->now_us, &token, &err), ERR_DENIED);
    want.kind = MAIL_LINK_ATTACHMENT;
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, &o->approver, NULL, o->now_us, &token, &err), ERR_DENIED);
    want.kind = MAIL_LINK_APPROVE;
    seal_make_pair(&stranger.public_key, &stranger.private_key);
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, &stranger, NULL, o->now_us, &token, &err), ERR_DENIED);
    MUST(mail_link_make(o->mail, OFFICE_INBOX, &want, &o->approver, NULL, o->now_us, &token, &err));
    /* Nothing is approved by making one, and the audit must not look so. */
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action = 'link.create'"), 1);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit WHERE action LIKE '%approve%'"), 0);
    MUST(open_link(o, &token, &message, &err));
    o->now_us += OFFICE_HOUR_US;
    MUST_FAIL(open_link(o, &token, &message, &err), ERR_NOT_FOUND);
    want.expires_us = o->now_us + 1;
    MUST(office_decide(o, accepted.id, true, &err));
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, &o->approver, NULL, o->now_us, &token, &err), ERR_CONFLICT);
}

static void a_reader_makes_a_link_to_an_attachment(void **state)
{
    struct office *o = *state;
    struct mail_content *content = office_content(o, "peer@elsewhere.example");
    struct mail_attachment file = { .name = STR("a.txt"), .content_type = STR("text/plain"), .content = STR("hello") };
    struct mail_accept send = office_want(o, content);
    struct mail_link want = { .kind = MAIL_LINK_ATTACHMENT, .expires_us = o->now_us + OFFICE_HOUR_US }, link;
    struct mail_reader stranger = { .key_id = OFFICE_COMPOSER, .kek = office_key("another key") };
    struct mail_accepted accepted;
    struct mail_message message;
    struct secret token;
    uint32_t retry_s;

    file.size = file.content.len;
    content->attachments = &file;
    content->attachment_count = 1;
    MUST(mail_accept(o->mail, &send, &o->arena, &accepted, &retry_s, &err));
    memcpy(want.message_id, accepted.id, sizeof want.message_id);
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &stranger, o->now_us, &token, &err), ERR_DENIED);
    stranger.key_id = "01HSTRANGER000000000000000";
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &stranger, o->now_us, &token, &err), ERR_DENIED);
    MUST(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &o->reader, o->now_us, &token, &err));
    for (int i = 0; i < 2; i++) {
        MUST(mail_link_open(o->mail, secret_reveal(&token), OFFICE_INBOX, MAIL_WANT_ATTACHMENTS, o->now_us, &o->arena,
                            &link, &message, &err));
        assert_int_equal(link.kind, MAIL_LINK_ATTACHMENT);
        assert_int_equal(link.attachment, 0);
        CHECK_STR(message.content.attachments[0].content, STR("hello"));
        assert_int_equal(message.content.text.len, 0);
    }
    MUST_FAIL(decide_by_link(o, &token, accepted.id, true, &err), ERR_NOT_FOUND);
    o->now_us += OFFICE_HOUR_US;
    MUST_FAIL(mail_link_open(o->mail, secret_reveal(&token), OFFICE_INBOX, MAIL_WANT_ATTACHMENTS, o->now_us, &o->arena,
                             &link, &message, &err),
              ERR_NOT_FOUND);
    assert_int_equal(office_state(o, accepted.id), MAIL_HELD);
}

static void links_of_a_reader_do_not_keep_out_those_of_an_approver(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = send_with_link(o);
    struct mail_link want = { .kind = MAIL_LINK_ATTACHMENT, .expires_us = o->now_us + OFFICE_HOUR_US };
    struct secret token;

    memcpy(want.message_id, accepted.id, sizeof want.message_id);
    MUST(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &o->reader, o->now_us, &token, &err));
    office_by_hand(o, "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
                      "INSERT INTO links (token_hash, kind, message_id, attachment, wrapped, expires_us, is_spent) "
                      "SELECT 'hash ' || i, kind, message_id, attachment, wrapped, expires_us, 0 FROM links, n "
                      "WHERE kind = 1");
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &o->reader, o->now_us, &token, &err), ERR_LIMIT);
    want.kind = MAIL_LINK_APPROVE;
    MUST(mail_link_make(o->mail, OFFICE_INBOX, &want, &o->approver, NULL, o->now_us, &token, &err));
}

/* ---- mail that comes in, in gated_all ---- */

static struct mail_message deliver_held(struct office *o)
{
    const struct mail_arrival arrival = {
        .inbox_id = OFFICE_INBOX,
        .inbox_public = &o->inbox_public,
        .approver_public = &o->approver.public_key,
        .content = office_content(o, "agent@cloister.example"),
        .mode = MAIL_GATED_ALL,
        .storage_bytes = 1 << 20,
        .now_us = o->now_us,
    };
    struct mail_message message;
    bool is_new;

    MUST(mail_deliver(o->mail, &arrival, &o->arena, &message, &is_new, &err));
    return message;
}

static void mail_that_comes_in_is_decided_too(void **state)
{
    struct office *o = *state;
    struct mail_message good = deliver_held(o), bad = deliver_held(o), read, *pending;
    struct mail_link want = { .kind = MAIL_LINK_ATTACHMENT, .expires_us = o->now_us + OFFICE_HOUR_US };
    struct mail_approver composer = o->approver;
    struct mail_decision decision;
    struct secret token;
    size_t count;

    MUST(mail_pending(o->mail, OFFICE_INBOX, &o->approver, &o->arena, &pending, &count, &err));
    assert_int_equal(count, 2);
    assert_int_equal(pending[0].direction, MAIL_INBOUND);
    assert_true(pending[0].has_content);
    /* The agent cannot get at it by a link either. */
    memcpy(want.message_id, good.id, sizeof want.message_id);
    MUST_FAIL(mail_link_make(o->mail, OFFICE_INBOX, &want, NULL, &o->reader, o->now_us, &token, &err), ERR_NOT_FOUND);
    decision = office_decision(o, good.id, true);
    composer.scopes = MAIL_SCOPE_SEND;
    decision.approver = &composer;
    MUST_FAIL(mail_decide(o->mail, &decision, &o->arena, &read, &err), ERR_DENIED);
    MUST(office_decide(o, good.id, true, &err));
    MUST_FAIL(office_decide(o, good.id, true, &err), ERR_CONFLICT);
    MUST(office_decide(o, bad.id, false, &err));
    MUST(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(good.id), MAIL_WANT_TEXT, &o->arena, &read, &err));
    assert_int_equal(read.in_status, MAIL_IN_UNREAD);
    MUST_FAIL(mail_read(o->mail, OFFICE_INBOX, &o->reader, str_from(bad.id), MAIL_WANT_TEXT, &o->arena, &read, &err),
              ERR_NOT_FOUND);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM content_keys WHERE holder = 'approver'"), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        OFFICE_CASE(a_held_message_comes_with_a_link_that_shows_and_decides),
        OFFICE_CASE(a_message_that_is_not_held_has_no_link),
        OFFICE_CASE(a_link_ends_when_the_message_is_decided_in_another_way),
        OFFICE_CASE(a_link_is_for_its_own_message),
        OFFICE_CASE(an_approver_makes_a_link_and_others_do_not),
        OFFICE_CASE(a_reader_makes_a_link_to_an_attachment),
        OFFICE_CASE(links_of_a_reader_do_not_keep_out_those_of_an_approver),
        OFFICE_CASE(mail_that_comes_in_is_decided_too),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
