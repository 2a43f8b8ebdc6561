#include "mail_fixture.h"

/* ---- arriving ---- */

static void a_message_that_arrives_is_listed_and_read(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_message m, got;
    struct mail_page page;

    inbox_make(o, &box, "one");
    m = arrive(o, &box, &(struct note){ .subject = "Lunch on Friday", .text = "At noon, as always.", .file = "menu" });
    assert_int_equal(m.in_status, MAIL_IN_UNREAD);
    assert_int_equal(m.direction, MAIL_INBOUND);

    page = list(o, &box, &(struct mail_filter){ ALL });
    assert_int_equal(page.count, 1);
    assert_false(page.more);
    assert_string_equal(page.rows[0].id, m.id);
    assert_string_equal(page.rows[0].inbox_id, box.id);
    assert_true(page.rows[0].has_content);
    CHECK_STR(page.rows[0].content.subject, STR("Lunch on Friday"));
    CHECK_STR(page.rows[0].content.from, STR("Ann <ann@out.example>"));
    assert_int_equal(page.rows[0].content.attachment_count, 1);
    CHECK_STR(page.rows[0].content.text, STR("")); /* lists have no bodies */
    CHECK_STR(page.rows[0].content.mime, STR(""));

    got = read_one(o, &box, m.id, MAIL_WANT_TEXT);
    CHECK_STR(got.content.text, STR("At noon, as always."));
    CHECK_STR(got.content.mime, STR(""));
    CHECK_STR(got.content.attachments[0].content, STR(""));
    assert_int_equal(got.in_status, MAIL_IN_UNREAD);
    got = read_one(o, &box, m.id, MAIL_WANT_MIME | MAIL_WANT_ATTACHMENTS);
    CHECK_STR(got.content.text, STR(""));
    assert_true(got.content.mime.len > 0);
    CHECK_STR(got.content.attachments[0].content, STR("menu"));
    assert_string_equal(got.sha256, m.sha256);
    assert_int_equal(strlen(got.sha256), 64);
}

static void an_arrival_that_is_repeated_changes_nothing(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct note note = { .subject = "Once", .once = "release1 bob@in.example" };

    inbox_make(o, &box, "one");
    struct mail_message first = arrive(o, &box, &note);
    office_fake_kill(o); /* the dispatcher repeats after a crash */
    struct mail_message again;
    assert_false(arrive_maybe(o, &box, &note, &again));
    assert_string_equal(again.id, first.id);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
    note.once = "release1 cy@in.example";
    assert_true(arrive_maybe(o, &box, &note, &again));
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 2);
    /* Also after it was deleted. */
    MUST(mail_set_status(o->mail, box.id, str_from(first.id), MAIL_IN_DELETED, STR(""), STR("key:1"), &err));
    note.once = "release1 bob@in.example";
    assert_false(arrive_maybe(o, &box, &note, &again));
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
}

static void a_full_inbox_refuses_and_deleting_makes_room(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_arrival arrival;
    struct mail_content content;
    struct mail_message m, out;
    bool is_new;

    inbox_make(o, &box, "one");
    m = arrive(o, &box, &(struct note){ .subject = "First", .text = "A text of some length, so that it takes room." });
    note_arrival(o, &box, &(struct note){ .subject = "Second", .text = "The same length or less." }, &content,
                 &arrival);
    arrival.storage_bytes = (uint64_t)by_hand(o, &box, "SELECT bytes FROM storage") + 10;
    MUST_FAIL(mail_deliver(o->mail, &arrival, &o->arena, &out, &is_new, &err), ERR_LIMIT);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
    MUST(mail_set_status(o->mail, box.id, str_from(m.id), MAIL_IN_DELETED, STR(""), STR("key:1"), &err));
    MUST(mail_deliver(o->mail, &arrival, &o->arena, &out, &is_new, &err));
}

static void the_file_of_another_inbox_is_noticed(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box, other;
    struct mail_arrival arrival;
    struct mail_content content;
    struct mail_message out;
    bool is_new;

    inbox_make(o, &box, "one");
    inbox_make(o, &other, "two");
    note_arrival(o, &box, &(struct note){ .subject = "Hi" }, &content, &arrival);
    arrival.inbox_public = &other.public_key;
    MUST_FAIL(mail_deliver(o->mail, &arrival, &o->arena, &out, &is_new, &err), ERR_INTERNAL);
}

/* ---- who reads ---- */

static void only_a_credential_with_a_wrap_reads(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box, other;
    struct mail_message m, out;
    struct mail_page page;

    inbox_make(o, &box, "one");
    inbox_make(o, &other, "two");
    m = arrive(o, &box, &(struct note){ .subject = "Private" });
    struct mail_filter all = { ALL };
    MUST_FAIL(mail_list(o->mail, box.id, &other.reader, &all, &o->arena, &page, &err), ERR_DENIED);
    struct mail_reader wrong = box.reader; /* the id of a key, without the key */
    wrong.kek.bytes[0] ^= 1;
    MUST_FAIL(mail_list(o->mail, box.id, &wrong, &all, &o->arena, &page, &err), ERR_DENIED);
    MUST_FAIL(mail_read(o->mail, box.id, &wrong, str_from(m.id), 0, &o->arena, &out, &err), ERR_DENIED);
    /* The id of a message leads to its inbox, and only there. */
    MUST_FAIL(mail_read(o->mail, other.id, &other.reader, str_from(m.id), 0, &o->arena, &out, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, STR("nonsense"), 0, &o->arena, &out, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, STR("' OR 1=1 --"), 0, &o->arena, &out, &err), ERR_NOT_FOUND);
    assert_int_equal(list(o, &box, &all).count, 1);
}

static void a_credential_that_is_added_reads_what_arrived_before(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_reader added = { .key_id = "01HADDEDADDEDADDEDADDEDADD" };
    struct mail_page page;

    inbox_make(o, &box, "one");
    arrive(o, &box, &(struct note){ .subject = "Before" });
    list(o, &box, &(struct mail_filter){ ALL }); /* its key is a wrap from now on */
    arrive(o, &box, &(struct note){ .subject = "Between" });
    seal_derive(STR("another credential"), "inbox", &added.kek);
    MUST(mail_reader_add(o->mail, box.id, &box.reader, &added, STR("key:1"), &err));
    MUST(mail_list(o->mail, box.id, &added, &(struct mail_filter){ ALL }, &o->arena, &page, &err));
    assert_int_equal(page.count, 2);
    CHECK_STR(page.rows[1].content.subject, STR("Before"));
    MUST(mail_reader_remove(o->mail, box.id, added.key_id, STR("key:1"), &err));
    MUST_FAIL(mail_list(o->mail, box.id, &added, &(struct mail_filter){ ALL }, &o->arena, &page, &err), ERR_DENIED);
}

static uint32_t audit_rows(struct office_fake *o, const struct fixture_inbox *box, const char *action,
                           struct mail_audit *out_last)
{
    struct mail_audit *rows;
    size_t count;
    uint32_t found = 0;

    MUST(mail_audit_list(o->mail, box->id, 0, 100, &o->arena, &rows, &count, &err));
    for (size_t i = 0; i < count; i++)
        if (str_eq(rows[i].action, str_from(action)) && found++ == 0 && out_last)
            *out_last = rows[i];
    return found;
}

static void reading_by_a_grant_is_audited_and_changes_nothing(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_audit row;
    struct mail_message m, out;
    struct mail_page page;
    uint64_t rows;

    inbox_make(o, &box, "one");
    m = arrive(o, &box, &(struct note){ .subject = "For a grantee" });
    struct mail_reader grant = box.reader;
    grant.grant = STR("grant:1 key:2");
    MUST(mail_list(o->mail, box.id, &grant, &(struct mail_filter){ ALL }, &o->arena, &page, &err));
    assert_int_equal(audit_rows(o, &box, "grant.list", &row), 1);
    CHECK_STR(row.actor, STR("grant:1 key:2"));
    MUST(mail_read(o->mail, box.id, &grant, str_from(m.id), MAIL_WANT_MARK_READ, &o->arena, &out, &err));
    assert_int_equal(audit_rows(o, &box, "grant.read", &row), 1);
    CHECK_STR(row.resource, str_from(m.id));
    assert_int_equal(read_one(o, &box, m.id, 0).in_status, MAIL_IN_UNREAD);
    assert_int_equal(audit_rows(o, &box, "grant.read", NULL), 1); /* the inbox's own credential leaves no row */
    MUST(mail_audit_verify(o->mail, box.id, &rows, &err));
}

/* ---- what is visible ---- */

static void held_mail_shows_its_id_and_status_only(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_message m, got;
    struct mail_page page;

    inbox_make(o, &box, "one");
    m = arrive(o, &box, &(struct note){ .subject = "Hold me", .text = "Word", .mode = MAIL_GATED_ALL });
    assert_int_equal(m.in_status, MAIL_IN_HELD);
    page = list(o, &box, &(struct mail_filter){ ALL });
    assert_int_equal(page.count, 1);
    got = read_one(o, &box, m.id, MAIL_WANT_TEXT | MAIL_WANT_MIME | MAIL_WANT_MARK_READ);
    for (int i = 0; i < 2; i++) {
        const struct mail_message *seen = i ? &got : &page.rows[0];
        assert_string_equal(seen->id, m.id);
        assert_int_equal(seen->in_status, MAIL_IN_HELD);
        assert_true(seen->received_us > 0);
        assert_false(seen->has_content);
        CHECK_STR(seen->content.subject, STR(""));
        CHECK_STR(seen->content.text, STR(""));
        CHECK_STR(seen->content.mime, STR(""));
        assert_string_equal(seen->sha256, ""); /* a guess could be tested with it */
        assert_string_equal(seen->thread_id, "");
    }
    /* No filter tells what is in it. */
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .subject_part = STR("Hold") }).count, 0);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .text = STR("Word") }).count, 0);
    assert_int_equal(list(o, &box, &(struct mail_filter){ .inbound = true, .in_status = -1, .state = -1 }).count, 0);
    MUST_FAIL(mail_set_status(o->mail, box.id, str_from(m.id), MAIL_IN_READ, STR(""), STR("key:1"), &err),
              ERR_CONFLICT);
    MUST_FAIL(mail_set_status(o->mail, box.id, str_from(m.id), MAIL_IN_DELETED, STR(""), STR("key:1"), &err),
              ERR_CONFLICT);
}

static void mail_that_looks_like_an_attack_is_flagged_or_quarantined(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    static const struct {
        uint32_t percent;
        enum mail_mode mode;
        enum mail_in_status want;
    } cases[] = {
        { 0, MAIL_GATED_SEND, MAIL_IN_UNREAD },       { 69, MAIL_AUTONOMOUS, MAIL_IN_UNREAD },
        { 70, MAIL_GATED_SEND, MAIL_IN_FLAGGED },     { 89, MAIL_MONITORED, MAIL_IN_FLAGGED },
        { 90, MAIL_GATED_SEND, MAIL_IN_QUARANTINED }, { 100, MAIL_AUTONOMOUS, MAIL_IN_QUARANTINED },
        { 100, MAIL_GATED_ALL, MAIL_IN_HELD },
    };

    inbox_make(o, &box, "one");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct note note = { .subject = "Ignore all", .mode = cases[i].mode, .injection_percent = cases[i].percent };
        assert_int_equal(arrive(o, &box, &note).in_status, cases[i].want);
    }
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 5);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .include_spam = true }).count, 7);
}

static bool decide(struct office_fake *o, const struct fixture_inbox *box, const char *id, bool approve,
                   struct err *err)
{
    struct mail_approver approver = { .public_key = box->approver_public,
                                      .private_key = box->approver_private,
                                      .id = STR("01HAPPROVER000000000000000"),
                                      .scopes = MAIL_SCOPE_OVERSIGHT };
    struct mail_decision decision = { .inbox_id = box->id,
                                      .message_id = id,
                                      .approve = approve,
                                      .reason = STR("Because of reasons"),
                                      .approver = &approver,
                                      .mode = MAIL_GATED_ALL,
                                      .now_us = clock_wall_us() };
    struct mail_message out;

    return mail_decide(o->mail, &decision, &o->arena, &out, err);
}

static void held_mail_is_read_after_approval_and_never_after_rejection(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_message out, got;

    inbox_make(o, &box, "one");
    struct mail_message yes =
        arrive(o, &box, &(struct note){ .subject = "Yes", .mode = MAIL_GATED_ALL, .at_us = 1700000000000000 });
    int64_t before_us = clock_wall_us();
    struct mail_message no = arrive(o, &box, &(struct note){ .subject = "No", .mode = MAIL_GATED_ALL });
    MUST(decide(o, &box, yes.id, true, &err));
    MUST(decide(o, &box, no.id, false, &err));
    MUST_FAIL(decide(o, &box, no.id, true, &err), ERR_CONFLICT);
    got = read_one(o, &box, yes.id, MAIL_WANT_TEXT);
    assert_int_equal(got.in_status, MAIL_IN_UNREAD);
    assert_true(got.has_content);
    CHECK_STR(got.content.subject, STR("Yes"));
    CHECK_STR(got.reason, STR("Because of reasons"));
    assert_string_equal(got.thread_id, yes.thread_id);
    /* An agent that has waited for mail meanwhile finds it. */
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .after_us = before_us }).count, 1);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .after_us = clock_wall_us() + 1000000 }).count, 0);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .include_spam = true }).count, 1);
    assert_int_equal(list(o, &box, ALL_BUT(in_status, MAIL_IN_REJECTED)).count, 0);
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, str_from(no.id), 0, &o->arena, &out, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_set_status(o->mail, box.id, str_from(no.id), MAIL_IN_UNREAD, STR(""), STR("key:1"), &err),
              ERR_NOT_FOUND);
}

static void mail_that_leaves_is_listed_with_its_state_and_blind_copies(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_arrival unused;
    struct mail_content content;
    struct mail_accepted accepted;
    const struct mail_limits limits = {
        .sends_per_minute = 10, .sends_per_day = 10, .pending_most = 10, .storage_bytes = 1 << 20
    };
    uint32_t retry_s;

    inbox_make(o, &box, "one");
    arrive(o, &box, &(struct note){ .subject = "In" });
    note_arrival(o, &box, &(struct note){ .subject = "Out" }, &content, &unused);
    content.bcc = content.to;
    content.bcc_count = 1;
    struct mail_accept want = { .inbox_id = box.id,
                                .composer = STR("01HCOMPOSER000000000000000"),
                                .content = &content,
                                .mode = MAIL_GATED_SEND,
                                .hold_us = 1000000,
                                .inbox_public = &box.public_key,
                                .approver_public = &box.approver_public,
                                .limits = &limits,
                                .now_us = clock_wall_us() };
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    struct mail_page page = list(o, &box, ALL_BUT(inbound, false));
    assert_int_equal(page.count, 1);
    assert_int_equal(page.rows[0].direction, MAIL_OUTBOUND);
    assert_int_equal(page.rows[0].state, MAIL_HELD);
    assert_int_equal(page.rows[0].content.bcc_count, 1);
    CHECK_STR(page.rows[0].content.subject, STR("Out"));
    assert_int_equal(list(o, &box, ALL_BUT(outbound, false)).count, 1);
    assert_int_equal(list(o, &box, ALL_BUT(state, MAIL_SENT)).count, 1); /* what arrived has no state */
    assert_int_equal(list(o, &box, ALL_BUT(state, MAIL_HELD)).count, 2);
    /* The statuses of arrived mail are not for it. */
    MUST_FAIL(mail_set_status(o->mail, box.id, str_from(accepted.id), MAIL_IN_DELETED, STR(""), STR("key:1"), &err),
              ERR_NOT_FOUND);
    CHECK_STR(read_one(o, &box, accepted.id, MAIL_WANT_MIME | MAIL_WANT_MARK_READ).content.mime, content.mime);
}

static void statuses_change_and_deleted_mail_is_gone(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_message a, b, out;

    inbox_make(o, &box, "one");
    a = arrive(o, &box, &(struct note){ .subject = "A" });
    b = arrive(o, &box, &(struct note){ .subject = "B" });
    struct str id = str_from(a.id);
    assert_int_equal(read_one(o, &box, a.id, MAIL_WANT_MARK_READ).in_status, MAIL_IN_READ);
    assert_int_equal(read_one(o, &box, a.id, 0).in_status, MAIL_IN_READ);
    assert_int_equal(list(o, &box, ALL_BUT(in_status, MAIL_IN_UNREAD)).count, 1);

    MUST(mail_set_status(o->mail, box.id, id, MAIL_IN_QUARANTINED, STR("spam"), STR("key:1"), &err));
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .include_spam = true }).count, 2);
    struct mail_page spam = list(o, &box, ALL_BUT(in_status, MAIL_IN_QUARANTINED));
    assert_int_equal(spam.count, 1);
    CHECK_STR(spam.rows[0].label, STR("spam"));
    MUST(mail_set_status(o->mail, box.id, id, MAIL_IN_UNREAD, STR("not_spam"), STR("key:1"), &err));
    CHECK_STR(read_one(o, &box, a.id, 0).label, STR("not_spam"));
    MUST(mail_set_status(o->mail, box.id, id, MAIL_IN_ARCHIVED, STR(""), STR("key:1"), &err));
    CHECK_STR(read_one(o, &box, a.id, 0).label, STR("not_spam"));
    MUST_FAIL(mail_set_status(o->mail, box.id, id, MAIL_IN_READ, STR("other"), STR("key:1"), &err), ERR_INVALID);
    MUST_FAIL(mail_set_status(o->mail, box.id, id, MAIL_IN_HELD, STR(""), STR("key:1"), &err), ERR_INVALID);
    MUST_FAIL(mail_set_status(o->mail, box.id, id, MAIL_IN_REJECTED, STR(""), STR("key:1"), &err), ERR_INVALID);

    MUST(mail_set_status(o->mail, box.id, id, MAIL_IN_DELETED, STR(""), STR("key:1"), &err));
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, id, 0, &o->arena, &out, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_set_status(o->mail, box.id, id, MAIL_IN_READ, STR(""), STR("key:1"), &err), ERR_NOT_FOUND);
    assert_int_equal(list(o, &box, ALL_BUT(in_status, MAIL_IN_DELETED)).count, 0);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .include_spam = true }).count, 1);
    assert_string_equal(list(o, &box, &(struct mail_filter){ ALL }).rows[0].id, b.id);
}

/* ---- filters and pages ---- */

static void check_list(struct office_fake *o, const struct fixture_inbox *box, const struct mail_filter *filter,
                       const char *want)
{
    struct mail_page page = list(o, box, filter);
    struct buf got = buf_make(&o->arena, 1000);

    for (size_t i = 0; i < page.count; i++)
        buf_format(&got, "%s%.*s", i ? " " : "", STR_ARG(page.rows[i].content.subject));
    CHECK_STR(buf_str(&got), str_from(want));
}

static void filters_find_by_sender_subject_words_time_and_attachments(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    int64_t t = 1700000000000000;

    inbox_make(o, &box, "one");
    arrive(o, &box, &(struct note){ .subject = "Red", .from = "Ann <ann@out.example>", .text = "wine", .at_us = t });
    arrive(o, &box, &(struct note){ .subject = "Green", .from = "bo@out.example", .file = "f", .at_us = t + 10 });
    struct mail_message blue = arrive(
        o, &box, &(struct note){ .subject = "Bluegreen", .from = "ANN@OUT.EXAMPLE", .text = "sky", .at_us = t + 20 });

    check_list(o, &box, &(struct mail_filter){ ALL }, "Bluegreen Green Red");
    check_list(o, &box, &(struct mail_filter){ ALL, .from_exact = STR("ann@out.example") }, "Bluegreen Red");
    check_list(o, &box, &(struct mail_filter){ ALL, .from_exact = STR("nn@out.example") }, "");
    check_list(o, &box, &(struct mail_filter){ ALL, .from_part = STR("BO@") }, "Green");
    check_list(o, &box, &(struct mail_filter){ ALL, .subject_part = STR("GREEN") }, "Bluegreen Green");
    check_list(o, &box, &(struct mail_filter){ ALL, .text = STR("wine ann") }, "Red");
    check_list(o, &box, &(struct mail_filter){ ALL, .text = STR("wine bo") }, "");
    check_list(o, &box, &(struct mail_filter){ ALL, .after_us = t + 10 }, "Bluegreen Green");
    check_list(o, &box, &(struct mail_filter){ ALL, .before_us = t + 10 }, "Green Red");
    check_list(o, &box, ALL_BUT(has_attachments, 1), "Green");
    check_list(o, &box, ALL_BUT(has_attachments, 0), "Bluegreen Red");
    check_list(o, &box, &(struct mail_filter){ ALL, .before_id = str_from(blue.id) }, "Green Red");
    check_list(o, &box, &(struct mail_filter){ ALL, .since_id = str_from(blue.id) }, "");
    check_list(o, &box, ALL_BUT(inbound, false), "");
    check_list(o, &box, &(struct mail_filter){ ALL, .offset = 1, .limit = 1 }, "Green");
    check_list(o, &box, &(struct mail_filter){ ALL, .offset = 1, .subject_part = STR("green") }, "Green");

    struct mail_page page;
    MUST_FAIL(mail_list(o->mail, box.id, &box.reader, &(struct mail_filter){ ALL, .since_id = STR("x") }, &o->arena,
                        &page, &err),
              ERR_INVALID);
    char *long_text = arena_alloc(&o->arena, LIMIT_MAIL_QUERY_BYTES + 1);
    memset(long_text, 'a', LIMIT_MAIL_QUERY_BYTES + 1);
    MUST_FAIL(mail_list(o->mail, box.id, &box.reader,
                        &(struct mail_filter){ ALL, .text = str_of(long_text, LIMIT_MAIL_QUERY_BYTES + 1) }, &o->arena,
                        &page, &err),
              ERR_INVALID);
}

static void pages_follow_the_cursor_and_show_each_message_once(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    char seen[25] = { 0 };
    struct str cursor = STR("");
    int pages = 0;

    inbox_make(o, &box, "one");
    for (int i = 0; i < 25; i++)
        arrive(o, &box, &(struct note){ .subject = arena_format(&o->arena, "%d", i).at });
    for (bool more = true; more; pages++) {
        struct mail_page page = list(o, &box, &(struct mail_filter){ ALL, .limit = 10, .before_id = cursor });
        for (size_t i = 0; i < page.count; i++)
            seen[atoi(arena_text(&o->arena, page.rows[i].content.subject))]++;
        more = page.more;
        cursor = arena_copy(&o->arena, str_from(page.cursor));
        if (pages == 0) /* what comes in between does not move the next page */
            arrive(o, &box, &(struct note){ .subject = "0" });
    }
    assert_int_equal(pages, 3);
    for (int i = 0; i < 25; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL, .limit = 10000 }).count, 26);
}

static uint64_t wrong_mono_us(void)
{
    return 1;
}

static int64_t wrong_wall_us(void)
{
    return 1600000000000000;
}

static void mail_is_newest_that_arrives_after_the_clock_went_back(void **state)
{
    static const struct clock_source wrong = { wrong_mono_us, wrong_wall_us };
    struct office_fake *o = *state;
    struct fixture_inbox box;

    inbox_make(o, &box, "one");
    struct mail_message first = arrive(o, &box, &(struct note){ .subject = "First" });
    clock_use(&wrong); /* for the worker that comes next */
    office_fake_restart(o);
    struct mail_message second = arrive(o, &box, &(struct note){ .subject = "Second" });
    clock_use(NULL);
    assert_true(strcmp(second.id, first.id) > 0);
    check_list(o, &box, &(struct mail_filter){ ALL }, "Second First");
    check_list(o, &box, &(struct mail_filter){ ALL, .since_id = str_from(first.id) }, "Second");
}

/* ---- hostile bytes ---- */

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void malformed_requests_and_replies_do_no_harm(void **state)
{
    static const uint16_t firsts[] = { INBOX_READ_FIRST, INBOX_THREAD_FIRST, INBOX_TAG_FIRST, INBOX_SETTINGS_FIRST };
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct unpack reply;
    struct err err;
    uint32_t random = 12345;

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Stays" });
    for (int round = 0; round < 4000; round++) {
        struct buf request = mail_request(&o->arena);
        /* Some begin as a request does that is right. */
        if (random & 1)
            mail_reading_pack(&request, &box.reader);
        if (random & 2)
            pack_str(&request, str_from(m.id));
        for (uint32_t left = next_random(&random) % 64; left > 0; left--)
            pack_u8(&request, random & 4 ? 0 : (uint8_t)next_random(&random));
        uint16_t op = (uint16_t)(firsts[round % 4] + next_random(&random) % 10);
        if (mail_call(o->mail, box.id, op, &request, &o->arena, &reply, &err))
            continue;
        if (err.kind == ERR_UNAVAILABLE)
            fail_msg("operation %u ended the worker", op);
    }
    assert_int_equal(o->worker_count, 1);
    CHECK_STR(read_one(o, &box, m.id, 0).content.subject, STR("Stays"));

    /* Front's side: each cut of a reply, and each byte of it replaced. */
    auto_buf struct buf packed = buf_make(NULL, 10000);
    struct mail_message got = read_one(o, &box, m.id, MAIL_WANT_TEXT | MAIL_WANT_MIME);
    mail_message_pack(&packed, &got, CONTENT_HEAD | CONTENT_TEXT | CONTENT_MIME);
    for (size_t i = 0; i < packed.len; i++) {
        struct unpack in = unpack_from(str_of(packed.data, i));
        mail_message_unpack(&in, box.id, &o->arena, &got);
        assert_false(unpack_done(&in, &err));
        char was = packed.data[i];
        packed.data[i] = (char)0xff;
        in = unpack_from(buf_str(&packed));
        mail_message_unpack(&in, box.id, &o->arena, &got);
        if (unpack_done(&in, &err))
            assert_true(got.in_status <= MAIL_IN_DELETED && got.state < MAIL_STATE_COUNT);
        packed.data[i] = was;
    }
}

/* ---- large and many ---- */

static void the_largest_message_arrives_and_is_read(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_arrival arrival;
    struct mail_content content;
    struct mail_message m;
    bool is_new;
    size_t size = LIMIT_MAIL_ATTACHMENTS_BYTES;
    char *bytes = arena_alloc(&o->arena, LIMIT_MAIL_MIME_BYTES + 1);

    for (size_t i = 0; i < LIMIT_MAIL_MIME_BYTES; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    inbox_make(o, &box, "one");
    note_arrival(o, &box, &(struct note){ .subject = "Large", .file = "x" }, &content, &arrival);
    content.mime = str_of(bytes, LIMIT_MAIL_MIME_BYTES);
    content.text = content.html = str_of(bytes, LIMIT_MAIL_TEXT_BYTES);
    content.attachments[0].content = str_of(bytes, size);
    content.attachments[0].size = size;
    uint64_t begin_us = clock_mono_us();
    MUST(mail_deliver(o->mail, &arrival, &o->arena, &m, &is_new, &err));
    uint64_t delivered_us = clock_mono_us();
    m = read_one(o, &box, m.id, MAIL_WANT_MIME | MAIL_WANT_TEXT | MAIL_WANT_ATTACHMENTS);
    print_message("34 MiB: deliver %.0f ms, read %.0f ms\n", (double)(delivered_us - begin_us) / 1000,
                  (double)(clock_mono_us() - delivered_us) / 1000);
    assert_true(str_eq(m.content.mime, content.mime));
    assert_true(str_eq(m.content.html, content.html));
    assert_true(str_eq(m.content.attachments[0].content, content.attachments[0].content));
    begin_us = clock_mono_us();
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
    print_message("list of it: %.1f ms\n", (double)(clock_mono_us() - begin_us) / 1000);

    /* A byte more than a message may have. */
    content.mime = str_of(bytes, LIMIT_MAIL_MIME_BYTES + 1);
    MUST_FAIL(mail_deliver(o->mail, &arrival, &o->arena, &m, &is_new, &err), ERR_INVALID);
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).count, 1);
}

static uint64_t list_time(struct office_fake *o, const struct fixture_inbox *box, const struct mail_filter *filter,
                          size_t want, const char *what)
{
    uint64_t begin_us = clock_mono_us();
    struct mail_page page = list(o, box, filter);
    uint64_t took_us = clock_mono_us() - begin_us;

    assert_int_equal(page.count, want);
    print_message("%s: %.1f ms\n", what, (double)took_us / 1000);
    return took_us;
}

static void fill(struct office_fake *o, const struct fixture_inbox *box, int from, int to)
{
    for (int i = from; i < to; i++) {
        struct note note = { .subject = arena_format(&o->arena, "Report %d", i).at,
                             .text = i % 500 == 7 ? "A needle is in here, among more words that say nothing at all."
                                                  : "Hay, and more hay, and more words that say nothing at all." };
        arrive(o, box, &note);
        if (i % 100 == 99)
            arena_done(&o->arena);
    }
}

static void five_thousand_messages_are_listed_and_searched(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    enum { COUNT = 5000 };

    inbox_make(o, &box, "one");
    uint64_t begin_us = clock_mono_us();
    fill(o, &box, 0, COUNT);
    print_message("deliver: %.2f ms each\n", (double)(clock_mono_us() - begin_us) / 1000 / COUNT);
    struct mail_filter first = { ALL, .limit = 50 }, needle = { ALL, .limit = 50, .text = STR("needle") };
    list_time(o, &box, &first, 50, "list of 50, sealed boxes");
    uint64_t quick_list_us = list_time(o, &box, &first, 50, "list of 50, wraps");
    uint64_t slow_us = list_time(o, &box, &needle, 10, "search in 5,000, sealed boxes");
    uint64_t quick_us = list_time(o, &box, &needle, 10, "search in 5,000, wraps");
    struct mail_filter offset = { ALL, .limit = 50, .offset = 4900 };
    list_time(o, &box, &offset, 50, "list of 50 from the end");
    /* Far from what is seen without a sanitizer on an idle machine, but a quadratic walk would not pass. */
    assert_true(quick_list_us < 1000000 && slow_us < 20000000 && quick_us < 10000000);

    /* One call looks at so many and no more; the next one goes on where it stopped. */
    fill(o, &box, COUNT, LIMIT_MAIL_SCAN_ROWS + 50);
    struct mail_filter oldest = { ALL, .subject_part = STR("Report 0") };
    struct mail_page page = list(o, &box, &oldest);
    assert_int_equal(page.count, 0);
    assert_true(page.more);
    oldest.before_id = str_from(page.cursor);
    page = list(o, &box, &oldest);
    assert_int_equal(page.count, 1);
    assert_false(page.more);
    CHECK_STR(page.rows[0].content.subject, STR("Report 0"));
}

/* ---- the disk ---- */

static void the_file_has_no_word_of_a_message(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    static const char *const words[] = { "Quarterly",        "xylophone",          "ann@out.example", "ledger",
                                         "confidential.pdf", "unusual-message-id", "quarterly" };

    inbox_make(o, &box, "one");
    for (int round = 0; round < 2; round++) {
        arrive(o, &box,
               &(struct note){ .subject = "Quarterly figures",
                               .text = "The xylophone is blue.",
                               .file = "ledger",
                               .file_name = "confidential.pdf",
                               .message_id = round ? NULL : "<unusual-message-id@out.example>",
                               .mode = round ? MAIL_GATED_ALL : MAIL_GATED_SEND });
        list(o, &box, &(struct mail_filter){ ALL, .text = STR("xylophone") });
        /* Once with the log that a killed worker leaves behind, once without. */
        if (round == 0)
            office_fake_kill(o);
        else
            office_fake_restart(o);
        assert_true(office_fake_has_bytes(o, box.id, STR("messages_by_time"))); /* the search itself works */
        for (size_t i = 0; i < COUNT_OF(words); i++)
            if (office_fake_has_bytes(o, box.id, str_from(words[i])))
                fail_msg("'%s' is in the file", words[i]);
    }
}

static void sealed_keys_become_wraps_when_they_are_read(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Once sealed" });
    arrive(o, &box, &(struct note){ .subject = "Held", .mode = MAIL_GATED_ALL });
    assert_int_equal(by_hand(o, &box, "SELECT COUNT(*) FROM content_keys WHERE length(sealed) = 80"), 3);
    for (int i = 0; i < 2; i++) {
        list(o, &box, &(struct mail_filter){ ALL });
        assert_int_equal(by_hand(o, &box, "SELECT COUNT(*) FROM content_keys WHERE length(sealed) = 72"), 1);
        /* What an approver has to open stays a box. */
        assert_int_equal(by_hand(o, &box, "SELECT COUNT(*) FROM content_keys WHERE length(sealed) = 80"), 2);
        CHECK_STR(read_one(o, &box, m.id, 0).content.subject, STR("Once sealed"));
    }
}

static void a_damaged_message_is_reported(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box, other;
    struct mail_message out;
    struct mail_page page;

    inbox_make(o, &box, "one");
    inbox_make(o, &other, "two");
    struct mail_message a = arrive(o, &box, &(struct note){ .subject = "A" });
    struct mail_message b = arrive(o, &box, &(struct note){ .subject = "B" });
    arrive(o, &other, &(struct note){ .subject = "C" });
    /* Somebody with the disk exchanges the contents of two messages. */
    (void)by_hand(o, &box,
                  "UPDATE messages SET head_cipher = (SELECT head_cipher FROM messages ORDER BY id LIMIT 1); SELECT 1");
    MUST_FAIL(mail_list(o->mail, box.id, &box.reader, &(struct mail_filter){ ALL }, &o->arena, &page, &err),
              ERR_INTERNAL);
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, str_from(b.id), 0, &o->arena, &out, &err), ERR_INTERNAL);
    CHECK_STR(read_one(o, &box, a.id, 0).content.subject, STR("A"));
    (void)by_hand(o, &box, "UPDATE content_keys SET sealed = x'00'; SELECT 1");
    MUST_FAIL(mail_read(o->mail, box.id, &box.reader, str_from(a.id), 0, &o->arena, &out, &err), ERR_INTERNAL);
    assert_int_equal(list(o, &other, &(struct mail_filter){ ALL }).count, 1); /* others go on */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFICE_CASE(a_message_that_arrives_is_listed_and_read),
        OFFICE_CASE(an_arrival_that_is_repeated_changes_nothing),
        OFFICE_CASE(a_full_inbox_refuses_and_deleting_makes_room),
        OFFICE_CASE(the_file_of_another_inbox_is_noticed),
        OFFICE_CASE(only_a_credential_with_a_wrap_reads),
        OFFICE_CASE(a_credential_that_is_added_reads_what_arrived_before),
        OFFICE_CASE(reading_by_a_grant_is_audited_and_changes_nothing),
        OFFICE_CASE(held_mail_shows_its_id_and_status_only),
        OFFICE_CASE(mail_that_looks_like_an_attack_is_flagged_or_quarantined),
        OFFICE_CASE(held_mail_is_read_after_approval_and_never_after_rejection),
        OFFICE_CASE(mail_that_leaves_is_listed_with_its_state_and_blind_copies),
        OFFICE_CASE(statuses_change_and_deleted_mail_is_gone),
        OFFICE_CASE(malformed_requests_and_replies_do_no_harm),
        OFFICE_CASE(filters_find_by_sender_subject_words_time_and_attachments),
        OFFICE_CASE(mail_is_newest_that_arrives_after_the_clock_went_back),
        OFFICE_CASE(pages_follow_the_cursor_and_show_each_message_once),
        OFFICE_CASE(the_largest_message_arrives_and_is_read),
        OFFICE_CASE(five_thousand_messages_are_listed_and_searched),
        OFFICE_CASE(the_file_has_no_word_of_a_message),
        OFFICE_CASE(sealed_keys_become_wraps_when_they_are_read),
        OFFICE_CASE(a_damaged_message_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
