#include "mail_fixture.h"

static size_t allow_list(struct office_fake *o, const struct fixture_inbox *box, struct mail_allow **out)
{
    size_t count;

    MUST(mail_allow_list(o->mail, box->id, &o->arena, out, &count, &err));
    return count;
}

static uint32_t audit_rows(struct office_fake *o, const struct fixture_inbox *box, const char *action)
{
    struct mail_audit *rows;
    size_t count;
    uint32_t found = 0;

    MUST(mail_audit_list(o->mail, box->id, 0, 100, &o->arena, &rows, &count, &err));
    for (size_t i = 0; i < count; i++)
        found += str_eq(rows[i].action, str_from(action));
    return found;
}

static void the_allowlist_keeps_addresses_and_domains(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_allow a, again, *all;

    inbox_make(o, &box, "one");
    MUST(mail_allow_add(o->mail, box.id, STR("Ann@Out.Example"), STR("key:1"), &o->arena, &a, &err));
    CHECK_STR(a.pattern, STR("ann@out.example"));
    MUST(mail_allow_add(o->mail, box.id, STR("*@friends.example"), STR("key:1"), &o->arena, &again, &err));
    assert_string_not_equal(again.id, a.id);
    /* Once more, in another spelling. */
    MUST(mail_allow_add(o->mail, box.id, STR("ANN@out.example"), STR("key:1"), &o->arena, &again, &err));
    assert_string_equal(again.id, a.id);
    assert_int_equal(audit_rows(o, &box, "allow.add"), 2);
    office_fake_restart(o);
    assert_int_equal(allow_list(o, &box, &all), 2);
    CHECK_STR(all[1].pattern, STR("*@friends.example"));
    MUST(mail_allow_remove(o->mail, box.id, str_from(a.id), STR("key:1"), &err));
    MUST_FAIL(mail_allow_remove(o->mail, box.id, str_from(a.id), STR("key:1"), &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_allow_remove(o->mail, box.id, STR("1"), STR("key:1"), &err), ERR_NOT_FOUND);
    assert_int_equal(allow_list(o, &box, &all), 1);
    assert_int_equal(audit_rows(o, &box, "allow.remove"), 1);
}

static void the_allowlist_refuses_what_would_cover_too_much(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_allow out, *all;
    static const char *const bad[] = { "",
                                       "*",
                                       "*@*",
                                       "@out.example",
                                       "ann",
                                       "ann@",
                                       "*@",
                                       "a@b@c.example",
                                       "ann@out.example, bo@out.example",
                                       "ann@out.example\n" };

    inbox_make(o, &box, "one");
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        MUST_FAIL(mail_allow_add(o->mail, box.id, str_from(bad[i]), STR("key:1"), &o->arena, &out, &err), ERR_INVALID);
    assert_int_equal(allow_list(o, &box, &all), 0);
    for (int i = 0; i < LIMIT_MAIL_ALLOW; i++)
        MUST(mail_allow_add(o->mail, box.id, arena_format(&o->arena, "a%d@out.example", i), STR("key:1"), &o->arena,
                            &out, &err));
    MUST_FAIL(mail_allow_add(o->mail, box.id, STR("b@out.example"), STR("key:1"), &o->arena, &out, &err), ERR_LIMIT);
}

static struct mail_webhook webhook(struct office_fake *o, const struct fixture_inbox *box, const char *url)
{
    struct str events[] = { STR("message.received"), STR("email.sent") };
    struct mail_webhook out, want = {
        .url = str_from(url), .secret = STR("whsec_1234"), .events = events, .event_count = 2, .is_lobster = true
    };

    MUST(mail_webhook_add(o->mail, box->id, &want, STR("key:1"), &o->arena, &out, &err));
    return out;
}

static struct mail_webhook only_webhook(struct office_fake *o, const struct fixture_inbox *box)
{
    struct mail_webhook *all;
    size_t count;

    MUST(mail_webhook_list(o->mail, box->id, &o->arena, &all, &count, &err));
    assert_int_equal(count, 1);
    return all[0];
}

static void webhooks_are_kept_and_disabled_after_failures(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;

    inbox_make(o, &box, "one");
    struct mail_webhook w = webhook(o, &box, "https://hooks.example/in");
    struct str id = str_from(w.id);
    office_fake_restart(o);
    w = only_webhook(o, &box);
    CHECK_STR(w.url, STR("https://hooks.example/in"));
    CHECK_STR(w.secret, STR("whsec_1234"));
    CHECK_STR(w.events[1], STR("email.sent"));
    assert_true(w.is_lobster && w.is_enabled);

    for (int i = 0; i < 9; i++)
        MUST(mail_webhook_note(o->mail, box.id, id, -1, 1, &err));
    assert_int_equal(only_webhook(o, &box).failures, 9);
    assert_true(only_webhook(o, &box).is_enabled);
    MUST(mail_webhook_note(o->mail, box.id, id, -1, 0, &err)); /* an answer in between */
    for (int i = 0; i < 9; i++)
        MUST(mail_webhook_note(o->mail, box.id, id, -1, 1, &err));
    assert_true(only_webhook(o, &box).is_enabled);
    MUST(mail_webhook_note(o->mail, box.id, id, -1, 1, &err));
    assert_false(only_webhook(o, &box).is_enabled);
    assert_int_equal(audit_rows(o, &box, "webhook.disable"), 1);
    MUST(mail_webhook_note(o->mail, box.id, id, 1, -1, &err));
    assert_true(only_webhook(o, &box).is_enabled);
    assert_int_equal(only_webhook(o, &box).failures, 0);

    MUST(mail_webhook_remove(o->mail, box.id, id, STR("key:1"), &err));
    MUST_FAIL(mail_webhook_remove(o->mail, box.id, id, STR("key:1"), &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_webhook_note(o->mail, box.id, id, 1, -1, &err), ERR_NOT_FOUND);
}

static void webhooks_have_limits(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_webhook out, want = { .url = STR("https://x.example/"), .secret = STR("") };

    inbox_make(o, &box, "one");
    MUST_FAIL(mail_webhook_add(o->mail, box.id, &want, STR("key:1"), &o->arena, &out, &err), ERR_INVALID);
    want.secret = STR("whsec_1");
    for (int i = 0; i < LIMIT_MAIL_WEBHOOKS; i++)
        MUST(mail_webhook_add(o->mail, box.id, &want, STR("key:1"), &o->arena, &out, &err));
    MUST_FAIL(mail_webhook_add(o->mail, box.id, &want, STR("key:1"), &o->arena, &out, &err), ERR_LIMIT);
}

static void usage_counts_days_and_what_is_there(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_usage u;
    const int64_t day = 86400000000, t = 19000 * day;

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "A", .at_us = t });
    arrive(o, &box, &(struct note){ .subject = "B", .at_us = t + day - 1 });
    arrive(o, &box, &(struct note){ .subject = "C", .at_us = t + day, .mode = MAIL_GATED_ALL });
    MUST(mail_usage(o->mail, box.id, t, t + 10, &u, &err));
    assert_int_equal(u.received, 2);
    assert_int_equal(u.pending, 1);
    assert_int_equal(u.messages, 3);
    assert_int_equal(u.storage_bytes, by_hand(o, &box, "SELECT SUM(size) FROM messages"));
    MUST(mail_usage(o->mail, box.id, t, t + day, &u, &err));
    assert_int_equal(u.received, 3);
    MUST(mail_set_status(o->mail, box.id, str_from(m.id), MAIL_IN_DELETED, STR(""), STR("key:1"), &err));
    MUST(mail_usage(o->mail, box.id, t, t + day, &u, &err));
    assert_int_equal(u.messages, 2);
    assert_int_equal(u.received, 3);
    assert_int_equal(u.storage_bytes, by_hand(o, &box, "SELECT SUM(size) FROM messages"));
}

static void the_file_has_no_word_of_the_settings(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_allow out;
    static const char *const words[] = { "marguerite", "friends.example", "hooks.example", "whsec_" };

    inbox_make(o, &box, "one");
    MUST(mail_allow_add(o->mail, box.id, STR("marguerite@out.example"), STR("key:1"), &o->arena, &out, &err));
    MUST(mail_allow_add(o->mail, box.id, STR("*@friends.example"), STR("key:1"), &o->arena, &out, &err));
    webhook(o, &box, "https://hooks.example/in");
    office_fake_kill(o);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (office_fake_has_bytes(o, box.id, str_from(words[i])))
            fail_msg("'%s' is in the file", words[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFICE_CASE(the_allowlist_keeps_addresses_and_domains),
        OFFICE_CASE(the_allowlist_refuses_what_would_cover_too_much),
        OFFICE_CASE(webhooks_are_kept_and_disabled_after_failures),
        OFFICE_CASE(webhooks_have_limits),
        OFFICE_CASE(usage_counts_days_and_what_is_there),
        OFFICE_CASE(the_file_has_no_word_of_the_settings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
