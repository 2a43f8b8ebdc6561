/*
 * The sending side of an inbox's file, with real worker processes.
 */
#include "inbox_office.h"

static void a_held_message_is_approved_leaves_and_is_sent(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    struct mail_message *pending, held;
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
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    assert_int_equal(rows, 5); /* made, accepted, approved, released, sent */
    assert_int_equal(office_state(o, accepted.id), MAIL_SENT);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        OFFICE_CASE(a_held_message_is_approved_leaves_and_is_sent),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
