#include "wire/zmtp.h"

#include "test.h"

static struct err err;

static struct buf greeting(void)
{
    struct buf out = buf_make(NULL, 4096);
    zmtp_write_greeting(&out);
    return out;
}

static void a_greeting_is_understood_by_its_own_reader(void **state)
{
    (void)state;
    auto_buf struct buf out = greeting();
    assert_int_equal(out.len, ZMTP_GREETING_BYTES);
    for (size_t len = 0; len < out.len; len++)
        assert_int_equal(zmtp_parse_greeting(str_of(out.data, len), &err), ZMTP_MORE);
    assert_int_equal(zmtp_parse_greeting(buf_str(&out), &err), ZMTP_DONE);
}

static void another_protocol_version_or_mechanism_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = greeting();
    assert_int_equal(zmtp_parse_greeting(STR("HTTP/1.1 400"), &err), ZMTP_BAD);
    out.data[10] = 2;
    assert_int_equal(zmtp_parse_greeting(buf_str(&out), &err), ZMTP_BAD);
    out.data[10] = 3;
    out.data[12] = 'C';
    assert_int_equal(zmtp_parse_greeting(buf_str(&out), &err), ZMTP_BAD);
}

static void a_message_comes_back_frame_by_frame_and_never_early(void **state)
{
    (void)state;
    static char large[1000];
    struct str frames[] = { STR("topic"), STR(""), str_of(large, sizeof large) };
    struct zmtp_message message;
    size_t used;
    auto_buf struct buf out = buf_make(NULL, 4096);
    zmtp_write_message(&out, frames, 3);
    size_t whole = out.len;
    buf_add(&out, STR("next"));
    for (size_t len = 0; len < whole; len++)
        assert_int_equal(zmtp_parse_message(str_of(out.data, len), 4096, &message, &used, &err), ZMTP_MORE);
    assert_int_equal(zmtp_parse_message(buf_str(&out), 4096, &message, &used, &err), ZMTP_DONE);
    assert_int_equal(used, whole);
    assert_int_equal(message.count, 3);
    assert_false(message.is_command);
    CHECK_STR(message.frames[0], STR("topic"));
    assert_int_equal(message.frames[1].len, 0);
    assert_int_equal(message.frames[2].len, 1000);
}

static void a_message_that_is_too_long_is_refused_before_it_arrives(void **state)
{
    (void)state;
    struct zmtp_message message;
    size_t used;
    assert_int_equal(zmtp_parse_message(STR("\2\0\0\0\0\xff\0\0\0"), 4096, &message, &used, &err), ZMTP_BAD);
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_int_equal(zmtp_parse_message(STR("\2\xff\xff\xff\xff\xff\xff\xff\xff"), SIZE_MAX / 2, &message, &used, &err),
                     ZMTP_BAD);
}

static void more_frames_than_fit_are_refused(void **state)
{
    (void)state;
    struct zmtp_message message;
    size_t used;
    auto_buf struct buf out = buf_make(NULL, 4096);
    for (int i = 0; i < ZMTP_FRAMES_MAX + 1; i++)
        buf_add(&out, STR("\1\0"));
    assert_int_equal(zmtp_parse_message(buf_str(&out), 4096, &message, &used, &err), ZMTP_BAD);
}

static void a_command_stands_alone(void **state)
{
    (void)state;
    struct zmtp_message message;
    size_t used;
    auto_buf struct buf out = buf_make(NULL, 4096);
    zmtp_write_ready(&out, STR("DEALER"), STR("me"));
    assert_int_equal(zmtp_parse_message(buf_str(&out), 4096, &message, &used, &err), ZMTP_DONE);
    assert_true(zmtp_is_command(&message, STR("READY")));
    assert_false(zmtp_is_command(&message, STR("READ")));
    assert_false(zmtp_is_command(&message, STR("PING")));
    assert_int_equal(zmtp_parse_message(STR("\1\1a\4\1b"), 4096, &message, &used, &err), ZMTP_BAD);
    assert_int_equal(zmtp_parse_message(STR("\5\1a\0\1b"), 4096, &message, &used, &err), ZMTP_BAD);
    assert_int_equal(zmtp_parse_message(STR("\x10\1a"), 4096, &message, &used, &err), ZMTP_BAD);
}

static void a_ping_is_answered_with_its_own_words(void **state)
{
    (void)state;
    struct zmtp_message message;
    size_t used;
    auto_buf struct buf out = buf_make(NULL, 4096);
    zmtp_write_pong(&out, STR("\4PING\0\12hello"));
    assert_int_equal(zmtp_parse_message(buf_str(&out), 4096, &message, &used, &err), ZMTP_DONE);
    assert_true(zmtp_is_command(&message, STR("PONG")));
    CHECK_STR(message.frames[0], STR("\4PONGhello"));
    buf_clear(&out);
    zmtp_write_pong(&out, STR("\4PING"));
    assert_int_equal(out.len, 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_greeting_is_understood_by_its_own_reader),
        CASE(another_protocol_version_or_mechanism_is_refused),
        CASE(a_message_comes_back_frame_by_frame_and_never_early),
        CASE(a_message_that_is_too_long_is_refused_before_it_arrives),
        CASE(more_frames_than_fit_are_refused),
        CASE(a_command_stands_alone),
        CASE(a_ping_is_answered_with_its_own_words),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
