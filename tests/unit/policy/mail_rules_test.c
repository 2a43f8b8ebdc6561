#include "policy/mail_rules.h"

#include <stdio.h>
#include <stdlib.h>

#include "test.h"

/* ---- modes and states ---- */

static void every_mode_is_parsed_by_its_name_and_nothing_else_is(void **state)
{
    enum mail_mode mode;

    (void)state;
    for (unsigned i = 0; i < MAIL_MODE_COUNT; i++) {
        assert_true(mail_mode_parse(str_from(mail_mode_name[i]), &mode));
        assert_int_equal(mode, i);
    }
    mode = MAIL_AUTONOMOUS;
    assert_false(mail_mode_parse(STR(""), &mode));
    assert_false(mail_mode_parse(STR("gated"), &mode));
    assert_false(mail_mode_parse(STR("Autonomous"), &mode));
    assert_false(mail_mode_parse(STR("autonomous "), &mode));
    assert_int_equal(mode, MAIL_AUTONOMOUS);
}

static void states_have_names_of_their_own(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MAIL_STATE_COUNT; i++) {
        assert_non_null(mail_state_name[i]);
        for (unsigned j = 0; j < i; j++)
            assert_string_not_equal(mail_state_name[i], mail_state_name[j]);
    }
}

static void final_and_left_are_what_the_table_of_states_says(void **state)
{
    static const struct {
        bool is_final, has_left;
    } want[MAIL_STATE_COUNT] = {
        [MAIL_SENDING] = { false, true },   [MAIL_DEFERRED] = { false, true }, [MAIL_SENT] = { false, true },
        [MAIL_UNCERTAIN] = { false, true }, [MAIL_REJECTED] = { true, false }, [MAIL_CANCELLED] = { true, false },
        [MAIL_FAILED] = { true, true },     [MAIL_EXPIRED] = { true, false },  [MAIL_BOUNCED] = { true, true },
    };

    (void)state;
    for (unsigned i = 0; i < MAIL_STATE_COUNT; i++) {
        assert_int_equal(mail_state_is_final((enum mail_state)i), want[i].is_final);
        assert_int_equal(mail_state_has_left((enum mail_state)i), want[i].has_left);
    }
}

static void the_mode_goes_down_freely_and_up_only_with_a_code(void **state)
{
    (void)state;
    for (unsigned from = 0; from < MAIL_MODE_COUNT; from++)
        for (unsigned to = 0; to < MAIL_MODE_COUNT; to++) {
            assert_int_equal(mail_mode_may_change((enum mail_mode)from, (enum mail_mode)to, false), to <= from);
            assert_true(mail_mode_may_change((enum mail_mode)from, (enum mail_mode)to, true));
        }
    assert_false(mail_mode_may_change(MAIL_GATED_SEND, MAIL_MODE_COUNT, true));
    assert_false(mail_mode_may_change(MAIL_MODE_COUNT, MAIL_READ_ONLY, true));
    assert_false(mail_mode_may_change((enum mail_mode) - 1, (enum mail_mode) - 1, true));
}

/* ---- who may ---- */

/* All sets, also with a bit that is no scope. */
static void no_set_of_scopes_both_sends_and_decides(void **state)
{
    (void)state;
    for (uint32_t scopes = 0; scopes < 128; scopes++) {
        bool sends = mail_scope_allows(scopes, MAIL_SCOPE_SEND), decides = mail_may_decide(scopes, false);
        bool is_known = (scopes & ~31u) == 0, is_mixed = (scopes & (2 | 4)) && (scopes & 8);

        assert_int_equal(mail_scopes_valid(scopes), scopes != 0 && is_known && !is_mixed);
        assert_false(sends && decides);
        assert_false(mail_may_decide(scopes, true));
        if (!mail_scopes_valid(scopes))
            for (uint32_t needed = 1; needed <= 16; needed *= 2)
                assert_false(mail_scope_allows(scopes, (enum mail_scope)needed));
    }
    assert_false(mail_scopes_valid(0x80000000u | MAIL_SCOPE_READ));
}

static void admin_stands_for_read_and_send_and_never_for_oversight(void **state)
{
    static const struct {
        uint32_t has, allows;
    } want[] = {
        { MAIL_SCOPE_READ, MAIL_SCOPE_READ },
        { MAIL_SCOPE_SEND, MAIL_SCOPE_SEND },
        { MAIL_SCOPE_ADMIN, MAIL_SCOPE_ADMIN | MAIL_SCOPE_READ | MAIL_SCOPE_SEND },
        { MAIL_SCOPE_OVERSIGHT, MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_OVERSIGHT_READ },
        { MAIL_SCOPE_OVERSIGHT_READ, MAIL_SCOPE_OVERSIGHT_READ },
        { MAIL_SCOPE_READ | MAIL_SCOPE_SEND, MAIL_SCOPE_READ | MAIL_SCOPE_SEND },
        { MAIL_SCOPE_READ | MAIL_SCOPE_OVERSIGHT, MAIL_SCOPE_READ | MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_OVERSIGHT_READ },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(want); i++)
        for (uint32_t needed = 1; needed <= 16; needed *= 2)
            assert_int_equal(mail_scope_allows(want[i].has, (enum mail_scope)needed), (want[i].allows & needed) != 0);
    /* A question about two at once has no answer. */
    assert_false(mail_scope_allows(MAIL_SCOPE_ADMIN, (enum mail_scope)(MAIL_SCOPE_READ | MAIL_SCOPE_SEND)));
}

static void an_approver_cancels_only_in_the_undo_window(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MAIL_STATE_COUNT; i++) {
        enum mail_state s = (enum mail_state)i;

        assert_true(mail_may_cancel(MAIL_SCOPE_SEND, true, s));
        assert_true(mail_may_cancel(MAIL_SCOPE_ADMIN, false, s));
        assert_false(mail_may_cancel(MAIL_SCOPE_READ, true, s));
        assert_false(mail_may_cancel(0, true, s));
        assert_int_equal(mail_may_cancel(MAIL_SCOPE_OVERSIGHT, false, s), s == MAIL_UNDO);
        assert_false(mail_may_cancel(MAIL_SCOPE_OVERSIGHT, true, s));
        assert_false(mail_may_cancel(MAIL_SCOPE_OVERSIGHT_READ, false, s));
    }
}

/* ---- what may leave ---- */

static void the_gate_is_as_the_modes_promise(void **state)
{
    static const struct {
        enum mail_verdict verdict[2][2]; /* [all on the allowlist][approved] */
    } want[MAIL_MODE_COUNT] = {
        [MAIL_READ_ONLY] = { { { MAIL_REFUSE, MAIL_REFUSE }, { MAIL_REFUSE, MAIL_REFUSE } } },
        [MAIL_GATED_ALL] = { { { MAIL_HOLD, MAIL_RELEASE }, { MAIL_HOLD, MAIL_RELEASE } } },
        [MAIL_GATED_SEND] = { { { MAIL_HOLD, MAIL_RELEASE }, { MAIL_RELEASE, MAIL_RELEASE } } },
        [MAIL_MONITORED] = { { { MAIL_RELEASE, MAIL_RELEASE }, { MAIL_RELEASE, MAIL_RELEASE } } },
        [MAIL_AUTONOMOUS] = { { { MAIL_RELEASE, MAIL_RELEASE }, { MAIL_RELEASE, MAIL_RELEASE } } },
    };

    (void)state;
    for (unsigned mode = 0; mode < MAIL_MODE_COUNT; mode++)
        for (unsigned listed = 0; listed < 2; listed++)
            for (unsigned approved = 0; approved < 2; approved++) {
                enum mail_verdict verdict = mail_judge((enum mail_mode)mode, listed, approved);
                assert_int_equal(verdict, want[mode].verdict[listed][approved]);
                if (!approved)
                    assert_int_equal(mail_is_gated((enum mail_mode)mode, listed), verdict != MAIL_RELEASE);
            }
    /* What is no mode is gated. */
    assert_true(mail_is_gated(MAIL_MODE_COUNT, true));
    assert_int_equal(mail_judge((enum mail_mode) - 1, true, false), MAIL_HOLD);
}

/* ---- the allowlist ---- */

static void an_entry_covers_its_address_or_its_domain(void **state)
{
    static const struct {
        const char *pattern, *address;
        bool covers;
    } want[] = {
        { "a@b.example", "a@b.example", true },
        { "a@b.example", "A@B.Example", true },
        { "A@B.EXAMPLE", "a@b.example", true },
        { "a@b.example", "aa@b.example", false },
        { "a@b.example", "a@c.example", false },
        { "a@b.example", "a@b.example.", false },
        { "a@b.example", "a@xb.example", false },
        { "*@b.example", "anyone.at+all@b.example", true },
        { "*@b.example", "a@sub.b.example", false },
        { "*@b.example", "a@b.example.evil.example", false },
        { "*@b.example", "a@evilb.example", false },
        { "*@b.example", "a@evil.example@b.example", false }, /* two @: which server gets it? */
        { "*@b.example", "\"a@evil.example\"@b.example", false },
        { "*@b.example", "a b@b.example", false },
        { "*@b.example", "a@b.example ", false },
        { "*@b.example", "@b.example", false },
        { "*@b.example", "b.example", false },
        { "*@b.example", "", false },
        { "*@b.example", "a%evil.example@b.example", true }, /* one mailbox at b.example, however it looks */
        { "*@b.example", "\xd0\xb0@b.example", false },      /* a Cyrillic letter */
        { "*", "a@b.example", false },
        { "*@*", "a@b.example", false },
        { "*@*.example", "a@b.example", false },
        { "a*@b.example", "ab@b.example", false }, /* a star is special only when it is alone */
        { "a*@b.example", "a*@b.example", true },
        { "@b.example", "a@b.example", false },
        { "", "", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(want); i++)
        if (mail_allow_covers(str_from(want[i].pattern), str_from(want[i].address)) != want[i].covers)
            fail_msg("'%s' and '%s'", want[i].pattern, want[i].address);
}

static void a_zero_byte_hides_nothing(void **state)
{
    (void)state;
    assert_false(mail_allow_covers(STR("*@b.example"), STR("a\0x@b.example")));
    assert_false(mail_allow_covers(STR("*@b.example"), STR("a@b.example\0")));
    assert_false(mail_allow_valid(STR("a@b\0c.example")));
}

static void entries_are_addresses_of_a_size_that_mail_allows(void **state)
{
    static const char *const fine[] = { "a@b.example",
                                        "*@b.example",
                                        "first.last+tag@b.example",
                                        "a@localhost",
                                        "a@1.b.example",
                                        "x@xn--bcher-kva.example",
                                        "!#$%&'*+-/=?^_`{|}~@b.example" };
    static const char *const wrong[] = { "",
                                         "a",
                                         "@",
                                         "a@",
                                         "@b",
                                         "a@@b",
                                         ".a@b.example",
                                         "a.@b.example",
                                         "a..c@b.example",
                                         "a@.b.example",
                                         "a@b..example",
                                         "a@b.example.",
                                         "a@-b.example",
                                         "a@b-.example",
                                         "a@b.-example",
                                         "a@b.example-",
                                         "a@b_c.example",
                                         "a@[127.0.0.1]",
                                         "a@b.example\n",
                                         "<a@b.example>",
                                         "A <a@b.example>",
                                         "a@b.example,c@d.example",
                                         "\xc3\xa4@b.example",
                                         "a@\xc3\xa4.example" };
    char text[400];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(fine); i++)
        if (!mail_allow_valid(str_from(fine[i])))
            fail_msg("'%s' is refused", fine[i]);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (mail_allow_valid(str_from(wrong[i])))
            fail_msg("'%s' is accepted", wrong[i]);
    /* 64 before the @, 63 in a label. */
    assert_int_equal(snprintf(text, sizeof text, "%0*d@%0*d.example", 64, 1, 63, 1), 64 + 1 + 63 + 8);
    assert_true(mail_allow_valid(str_from(text)));
    (void)snprintf(text, sizeof text, "%0*d@b.example", 65, 1);
    assert_false(mail_allow_valid(str_from(text)));
    (void)snprintf(text, sizeof text, "a@%0*d.example", 64, 1);
    assert_false(mail_allow_valid(str_from(text)));
    /* 254 in all. */
    (void)snprintf(text, sizeof text, "%0*d@%0*d.%0*d.%0*d", 64, 1, 63, 1, 63, 1, 61, 1);
    assert_int_equal(strlen(text), 254);
    assert_true(mail_allow_valid(str_from(text)));
    (void)snprintf(text, sizeof text, "%0*d@%0*d.%0*d.%0*d", 64, 1, 63, 1, 63, 1, 62, 1);
    assert_false(mail_allow_valid(str_from(text)));
}

/* ---- local parts ---- */

static void new_local_parts_are_of_the_form_that_clients_know(void **state)
{
    static const char *const fine[] = { "abc", "a1b", "sarah.shield", "a-b_c.d", "000", "a.b", "adminx", "my-admin" };
    static const char *const wrong[] = { "",
                                         "a",
                                         "ab",
                                         "Abc",
                                         "a b",
                                         "a@b",
                                         ".abc",
                                         "abc.",
                                         "-abc",
                                         "abc-",
                                         "_abc",
                                         "abc_",
                                         "a..b",
                                         "a+b",
                                         "admin",
                                         "ad.min",
                                         "abuse",
                                         "no-reply",
                                         "no.reply",
                                         "cloister",
                                         "c.lois.ter",
                                         ("\xc3\xa4"
                                          "bc"),
                                         "undefined",
                                         "mailer-daemon" };
    char text[80];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(fine); i++)
        if (!mail_local_valid(str_from(fine[i])))
            fail_msg("'%s' is refused", fine[i]);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (mail_local_valid(str_from(wrong[i])))
            fail_msg("'%s' is accepted", wrong[i]);
    (void)snprintf(text, sizeof text, "%0*d", MAIL_LOCAL_MOST, 1);
    assert_true(mail_local_valid(str_from(text)));
    (void)snprintf(text, sizeof text, "%0*d", MAIL_LOCAL_MOST + 1, 1);
    assert_false(mail_local_valid(str_from(text)));
}

static void dots_case_and_tags_do_not_make_another_address(void **state)
{
    char key[MAIL_LOCAL_MOST + 1], text[MAIL_LOCAL_MOST + 2];

    (void)state;
    assert_true(mail_local_key(STR("Sarah.Shield+news"), key));
    assert_string_equal(key, "sarahshield");
    assert_true(mail_local_key(STR("sarah-shield"), key)); /* a hyphen does */
    assert_string_equal(key, "sarah-shield");
    assert_false(mail_local_key(STR(""), key));
    assert_false(mail_local_key(STR("..."), key));
    assert_false(mail_local_key(STR("+x"), key));
    assert_false(mail_local_key(STR("sarah\0x"), key));
    assert_false(mail_local_key(STR("s\xc3\xa4rah"), key));
    assert_false(mail_local_key(STR("sarah shield"), key));
    memset(text, 'x', sizeof text);
    assert_true(mail_local_key(str_of(text, MAIL_LOCAL_MOST), key));
    assert_int_equal(strlen(key), MAIL_LOCAL_MOST);
    assert_false(mail_local_key(str_of(text, MAIL_LOCAL_MOST + 1), key));
}

static void reserved_names_are_found_however_they_are_spelt(void **state)
{
    (void)state;
    assert_true(mail_local_reserved(STR("postmaster")));
    assert_true(mail_local_reserved(STR("Post.Master")));
    assert_true(mail_local_reserved(STR("abuse+x")));
    assert_false(mail_local_reserved(STR("post-master")));
    assert_false(mail_local_reserved(STR("")));
}

static void the_bare_address_is_the_one_that_mail_goes_to(void **state)
{
    static const struct {
        const char *shown, *bare;
    } table[] = {
        { "a@b.example", "a@b.example" },
        { " a@b.example ", "a@b.example" },
        { "Name <a@b.example>", "a@b.example" },
        { "\"boss <boss@b.example>\" <a@b.example>", "a@b.example" },
        { "Name < a@b.example > ", "a@b.example" },
        { "Name <a@b.example", "Name <a@b.example" }, /* not one: nothing is taken out of it */
        { "a@b.example>", "a@b.example>" },
        { "<>", "" },
        { ">", ">" },
        { "", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        CHECK_STR(mail_bare_address(str_from(table[i].shown)), str_from(table[i].bare));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_mode_is_parsed_by_its_name_and_nothing_else_is),
        CASE(states_have_names_of_their_own),
        CASE(final_and_left_are_what_the_table_of_states_says),
        CASE(the_mode_goes_down_freely_and_up_only_with_a_code),
        CASE(no_set_of_scopes_both_sends_and_decides),
        CASE(admin_stands_for_read_and_send_and_never_for_oversight),
        CASE(an_approver_cancels_only_in_the_undo_window),
        CASE(the_gate_is_as_the_modes_promise),
        CASE(an_entry_covers_its_address_or_its_domain),
        CASE(a_zero_byte_hides_nothing),
        CASE(entries_are_addresses_of_a_size_that_mail_allows),
        CASE(new_local_parts_are_of_the_form_that_clients_know),
        CASE(dots_case_and_tags_do_not_make_another_address),
        CASE(reserved_names_are_found_however_they_are_spelt),
        CASE(the_bare_address_is_the_one_that_mail_goes_to),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
