#include <string.h>

#include "base/clock.h"
#include "mail/mail.h"
#include "test.h"

#define INBOX "01HZZZZZZZZZZZZZZZ0123456A"

static int64_t fixed_us;

static uint64_t fixed_mono(void)
{
    return 1;
}

static int64_t fixed_wall(void)
{
    return fixed_us;
}

static int use_fixed_clock(void **state)
{
    static const struct clock_source source = { fixed_mono, fixed_wall };

    (void)state;
    clock_use(&source);
    return 0;
}

static int use_real_clock(void **state)
{
    (void)state;
    clock_use(NULL);
    return 0;
}

static void ids_have_a_time_and_grow(void **state)
{
    char before[MAIL_INBOX_ID_BYTES] = "", id[MAIL_INBOX_ID_BYTES];

    (void)state;
    fixed_us = INT64_C(1469918176385000); /* the example of the ULID specification */
    for (int i = 0; i < 1000; i++) {
        if (i == 500)
            fixed_us -= 1000000000; /* the clock goes back */
        mail_ulid(id);
        assert_true(mail_inbox_id_valid(str_from(id)));
        assert_memory_equal(id, "01ARYZ6S41", 10);
        assert_true(strcmp(id, before) > 0);
        memcpy(before, id, sizeof before);
    }
    fixed_us += 2000000000;
    mail_ulid(id);
    assert_true(strcmp(id, before) > 0);
    assert_memory_not_equal(id, before, 10);
}

static void ids_follow_those_of_an_earlier_process(void **state)
{
    static const char *const earlier[] = { "7FFFFFFFFF0123456789ABCDEF", "7FFFFFFFFF0123456789ABCDEF0123456A",
                                           "7FFFFFFFFG0000000000000000" };
    static const char *const bad[] = { "", "short", "7ZZZZZZZZZ0123456789ABCDE!", "7ZZZZZZZZZ0123456789ABCDEI" };
    char id[MAIL_INBOX_ID_BYTES], next[MAIL_INBOX_ID_BYTES];

    (void)state;
    mail_ulid(id);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        mail_ulid_follow(str_from(bad[i]));
    mail_ulid(next);
    assert_memory_equal(id, next, 10); /* nothing follows what is no id */
    for (size_t i = 0; i < sizeof earlier / sizeof earlier[0]; i++) {
        mail_ulid_follow(str_from(earlier[i]));
        mail_ulid(id);
        assert_true(strncmp(id, earlier[i], 26) > 0);
        assert_memory_equal(id, earlier[i], 10);
        mail_ulid_follow(STR("00000000000000000000000000")); /* an older one changes nothing */
        mail_ulid(next);
        assert_true(strcmp(next, id) > 0);
    }
}

static void an_id_leads_to_its_inbox(void **state)
{
    char id[MAIL_MESSAGE_ID_BYTES], handle[MAIL_HANDLE_BYTES];

    (void)state;
    mail_message_id(INBOX, id);
    assert_int_equal(strlen(id), MAIL_MESSAGE_ID_BYTES - 1);
    assert_true(mail_message_id_handle(str_from(id), handle));
    assert_string_equal(handle, &INBOX[16]);
    assert_false(mail_message_id_handle(STR(""), handle));
    assert_false(mail_message_id_handle(STR(INBOX), handle));
    id[3] = 'i';
    assert_false(mail_message_id_handle(str_from(id), handle));
    assert_true(mail_inbox_id_valid(STR(INBOX)));
    assert_false(mail_inbox_id_valid(STR("01HZZZZZZZZZZZZZZZ0123456")));
    assert_false(mail_inbox_id_valid(STR("01HZZZZZZZZZZZZZZZ012345/.")));
    assert_false(mail_inbox_id_valid(str_of("01HZZZZZZZZZZZZZZZ012345\0A", 26)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(ids_have_a_time_and_grow),
        CASE(ids_follow_those_of_an_earlier_process),
        CASE(an_id_leads_to_its_inbox),
    };

    return cmocka_run_group_tests(tests, use_fixed_clock, use_real_clock);
}
