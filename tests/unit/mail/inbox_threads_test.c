#include "mail_fixture.h"

static struct mail_thread get(struct office_fake *o, const struct fixture_inbox *box, const char *id)
{
    struct mail_thread out;

    MUST(mail_thread_get(o->mail, box->id, &box->reader, str_from(id), &o->arena, &out, &err));
    return out;
}

static size_t list_some(struct office_fake *o, const struct fixture_inbox *box, struct str cursor, uint32_t limit,
                        struct mail_thread **out, bool *out_more)
{
    size_t count;

    MUST(mail_thread_list(o->mail, box->id, &box->reader, cursor, limit, &o->arena, out, &count, out_more, &err));
    return count;
}

/* The thread of each note, as a letter in the order of first use: "aab". */
static void check_threads(struct office_fake *o, const struct note *notes, size_t count, const char *want)
{
    struct fixture_inbox box;
    char threads[16][MAIL_MESSAGE_ID_BYTES], got[16] = "";
    size_t known = 0;

    inbox_make(o, &box, "one");
    for (size_t i = 0; i < count; i++) {
        struct mail_message m = arrive(o, &box, &notes[i]);
        size_t at = 0;
        while (at < known && strcmp(threads[at], m.thread_id) != 0)
            at++;
        if (at == known)
            memcpy(threads[known++], m.thread_id, sizeof m.thread_id);
        got[i] = (char)('a' + at);
    }
    assert_string_equal(got, want);
}
#define CHECK_THREADS(want, ...) check_threads(o, (const struct note[]){ __VA_ARGS__ }, sizeof want - 1, want)

static void an_answer_joins_by_in_reply_to_then_references_then_subject(void **state)
{
    struct office_fake *o = *state;

    CHECK_THREADS("aba", { .message_id = "<1@x>", .subject = "One" }, { .message_id = "<2@x>", .subject = "Two" },
                  { .in_reply_to = "<1@x>", .references = "<2@x>", .subject = "Two" });
    /* The last reference that is known. */
    CHECK_THREADS("abb", { .message_id = "<1@x>", .subject = "One" }, { .message_id = "<2@x>", .subject = "Two" },
                  { .references = "<1@x>\r\n <2@x> <unknown@x>", .in_reply_to = "<gone@x>", .subject = "Three" });
    CHECK_THREADS("aaaa", { .subject = "Plan for June" }, { .subject = "Re: plan  FOR june " },
                  { .subject = "Fwd: RE[2]: AW : Plan for June" }, { .subject = "re:re:Plan for June" });
    /* A message without a subject has nothing in common with others; "Re" alone is a subject. */
    CHECK_THREADS("abcd", { .subject = "" }, { .subject = "" }, { .subject = "Re:" }, { .subject = "Re" });
    CHECK_THREADS("abc", { .subject = "Report" }, { .subject = "Reports" }, { .subject = "Relax: Report" });
    /* Headers without brackets or with half of them name nothing. */
    CHECK_THREADS("abcd", { .message_id = "<1@x>", .subject = "1" }, { .in_reply_to = "1@x", .subject = "2" },
                  { .in_reply_to = "<1@x", .subject = "3" }, { .references = ">><<", .subject = "4" });
}

static void a_subject_joins_for_seven_days(void **state)
{
    struct office_fake *o = *state;
    const int64_t day = 86400000000, t = 1700000000000000;

    CHECK_THREADS("aab", { .subject = "Weekly", .at_us = t }, { .subject = "Weekly", .at_us = t + 7 * day },
                  { .subject = "Weekly", .at_us = t + 14 * day + 1 });
    /* A clock that goes back does not part what belongs together, nor make the thread look older. */
    CHECK_THREADS("aaa", { .subject = "Weekly", .at_us = t }, { .subject = "Weekly", .at_us = t - 30 * day },
                  { .subject = "Weekly", .at_us = t + day });
}

static void a_repeated_message_id_does_not_take_a_thread_over(void **state)
{
    struct office_fake *o = *state;

    CHECK_THREADS("aaba", { .message_id = "<1@x>", .subject = "One" }, { .message_id = "<1@x>", .subject = "Evil" },
                  { .subject = "Evil" }, { .in_reply_to = "<1@x>", .subject = "One" });
}

static void a_thread_has_its_messages_oldest_first(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    const int64_t t = 1700000000000000;

    inbox_make(o, &box, "one");
    struct mail_message a =
        arrive(o, &box, &(struct note){ .subject = "Boat", .from = "Ann <ann@out.example>", .at_us = t });
    arrive(o, &box, &(struct note){ .subject = "Re: Boat", .from = "Bo <bo@out.example>", .at_us = t + 5 });
    arrive(o, &box, &(struct note){ .subject = "Re: Boat", .from = "ANN@out.example", .at_us = t + 9 });
    struct mail_thread thread = get(o, &box, a.thread_id);
    CHECK_STR(thread.subject, STR("Boat"));
    assert_int_equal(thread.message_count, 3);
    assert_int_equal(thread.shown_count, 3);
    assert_int_equal(thread.created_us, t);
    assert_int_equal(thread.last_us, t + 9);
    assert_true(thread.has_unanswered_inbound);
    assert_int_equal(thread.participant_count, 3); /* Ann once, Bo, and ourselves */
    CHECK_STR(thread.messages[0].content.subject, STR("Boat"));
    CHECK_STR(thread.messages[2].content.from, STR("ANN@out.example"));
    CHECK_STR(thread.messages[2].content.text, STR(""));

    /* The last one is ours now. */
    (void)by_hand(o, &box,
                  "UPDATE messages SET direction = 1, state = 8 WHERE id = (SELECT MAX(id) FROM messages); SELECT 1");
    assert_false(get(o, &box, a.thread_id).has_unanswered_inbound);
    (void)by_hand(o, &box, "UPDATE messages SET state = 10 WHERE direction = 1; SELECT 1"); /* rejected: no answer */
    assert_true(get(o, &box, a.thread_id).has_unanswered_inbound);
    assert_int_equal(MAIL_SENT, 8);
    assert_int_equal(MAIL_REJECTED, 10);
}

static void threads_are_listed_by_latest_activity_in_pages(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_thread *threads;
    const int64_t t = 1700000000000000;
    bool more;

    inbox_make(o, &box, "one");
    for (int i = 0; i < 5; i++)
        arrive(o, &box, &(struct note){ .subject = arena_format(&o->arena, "%d", i).at, .at_us = t + i });
    arrive(o, &box, &(struct note){ .subject = "Re: 1", .at_us = t + 10 });
    assert_int_equal(list_some(o, &box, STR(""), 2, &threads, &more), 2);
    assert_true(more);
    CHECK_STR(threads[0].subject, STR("1"));
    assert_int_equal(threads[0].message_count, 2);
    CHECK_STR(threads[1].subject, STR("4"));
    struct str cursor = str_from(threads[1].id);
    assert_int_equal(list_some(o, &box, cursor, 3, &threads, &more), 3);
    assert_false(more);
    CHECK_STR(threads[2].subject, STR("0"));
    size_t count;
    MUST_FAIL(mail_thread_list(o->mail, box.id, &box.reader, STR("x"), 2, &o->arena, &threads, &count, &more, &err),
              ERR_INVALID);
    struct mail_thread out;
    MUST_FAIL(mail_thread_get(o->mail, box.id, &box.reader, STR("x"), &o->arena, &out, &err), ERR_NOT_FOUND);
}

static void what_the_agent_may_not_see_is_in_no_thread(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_thread *threads, out;
    const int64_t t = 1700000000000000;
    bool more;

    inbox_make(o, &box, "one");
    struct mail_message seen = arrive(o, &box, &(struct note){ .subject = "Seen", .at_us = t });
    arrive(o, &box,
           &(struct note){ .subject = "Re: Seen", .mode = MAIL_GATED_ALL, .from = "x@held.example", .at_us = t + 9 });
    struct mail_message held = arrive(o, &box, &(struct note){ .subject = "Held", .mode = MAIL_GATED_ALL });
    struct mail_message spam = arrive(o, &box, &(struct note){ .subject = "Spam" });
    MUST(mail_set_status(o->mail, box.id, str_from(spam.id), MAIL_IN_QUARANTINED, STR("spam"), STR("key:1"), &err));
    assert_int_equal(list_some(o, &box, STR(""), 10, &threads, &more), 1);
    assert_int_equal(threads[0].message_count, 1);
    assert_int_equal(threads[0].last_us, t);
    assert_int_equal(threads[0].participant_count, 2);
    assert_string_equal(threads[0].id, seen.thread_id);
    assert_int_equal(get(o, &box, seen.thread_id).message_count, 1);
    MUST_FAIL(mail_thread_get(o->mail, box.id, &box.reader, str_from(held.thread_id), &o->arena, &out, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(mail_thread_get(o->mail, box.id, &box.reader, str_from(spam.thread_id), &o->arena, &out, &err),
              ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFICE_CASE(an_answer_joins_by_in_reply_to_then_references_then_subject),
        OFFICE_CASE(a_subject_joins_for_seven_days),
        OFFICE_CASE(a_repeated_message_id_does_not_take_a_thread_over),
        OFFICE_CASE(a_thread_has_its_messages_oldest_first),
        OFFICE_CASE(threads_are_listed_by_latest_activity_in_pages),
        OFFICE_CASE(what_the_agent_may_not_see_is_in_no_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
