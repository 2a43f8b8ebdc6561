#include "wire/connect.h"

#include <stdio.h>

#include "test.h"

static void codes_and_names_lead_to_each_other(void **state)
{
    (void)state;
    for (enum connect_code code = CONNECT_CANCELED; code < CONNECT_CODE_COUNT; code++) {
        enum connect_code back = CONNECT_OK;
        assert_true(connect_code_parse(connect_code_name(code), &back));
        assert_int_equal(back, code);
        assert_true(connect_code_status(code) >= 400);
    }
    enum connect_code ignored;
    assert_false(connect_code_parse(STR("ok"), &ignored));
    assert_false(connect_code_parse(STR("NOT_FOUND"), &ignored));
    assert_int_equal(connect_code_status(CONNECT_ALREADY_EXISTS), 409);
}

static void an_end_of_stream_always_has_a_payload(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    connect_write_end(&out, CONNECT_OK, STR(""));
    CHECK_STR(buf_str(&out), STR("\x02\0\0\0\x02{}"));
    buf_clear(&out);
    connect_write_end(&out, CONNECT_NOT_FOUND, STR("no \"x\""));
    CHECK_STR(buf_str(&out), STR("\x02\0\0\0\x33{\"error\":{\"code\":\"not_found\",\"message\":\"no \\\"x\\\"\"}}"));
    buf_clear(&out);
    connect_write_error(&out, CONNECT_INTERNAL, STR("x"));
    CHECK_STR(buf_str(&out), STR("{\"code\":\"internal\",\"message\":\"x\"}"));
}

static void envelopes_are_found_however_the_body_is_cut(void **state)
{
    (void)state;
    auto_buf struct buf body = buf_make(NULL, 1000);
    connect_write(&body, 0, STR("{\"a\":1}"));
    connect_write(&body, 0, STR(""));
    connect_write(&body, CONNECT_END_STREAM, STR("{}"));
    for (size_t piece = 1; piece <= body.len; piece++) {
        struct connect_reader reader;
        struct err err;
        char seen[64] = "";
        connect_reader_init(&reader);
        for (size_t at = 0; at < body.len; at += piece) {
            struct str in = str_of(body.data + at, MIN(piece, body.len - at));
            struct str payload;
            unsigned flags;
            enum connect_read got;
            while ((got = connect_reader_next(&reader, &in, &flags, &payload, &err)) == CONNECT_ENVELOPE) {
                size_t used = strlen(seen);
                (void)snprintf(seen + used, sizeof seen - used, "%u:%.*s|", flags, STR_ARG(payload));
            }
            assert_int_equal(got, CONNECT_MORE);
            assert_int_equal(in.len, 0);
        }
        assert_string_equal(seen, "0:{\"a\":1}|0:|2:{}|");
        assert_true(connect_reader_is_whole(&reader));
        connect_reader_done(&reader);
    }
}

static void half_an_envelope_at_the_end_is_noticed(void **state)
{
    (void)state;
    static const struct str cut[] = { STR_INIT("\0"), STR_INIT("\0\0\0\0\x03{}") };
    for (size_t i = 0; i < COUNT_OF(cut); i++) {
        struct connect_reader reader;
        struct err err;
        struct str in = cut[i], payload;
        unsigned flags;
        connect_reader_init(&reader);
        assert_int_equal(connect_reader_next(&reader, &in, &flags, &payload, &err), CONNECT_MORE);
        assert_false(connect_reader_is_whole(&reader));
        connect_reader_done(&reader);
    }
}

static void bad_headers_end_the_reading(void **state)
{
    (void)state;
    static const struct {
        struct str bytes;
        enum err_kind kind;
    } bad[] = {
        { STR_INIT("\x01\0\0\0\0"), ERR_INVALID },
        { STR_INIT("\x04\0\0\0\0"), ERR_INVALID },
        { STR_INIT("\0\xff\xff\xff\xff"), ERR_LIMIT },
        { STR_INIT("\0\0\x40\0\x01"), ERR_LIMIT },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct connect_reader reader;
        struct err err = { 0 };
        struct str in = bad[i].bytes, payload;
        unsigned flags;
        connect_reader_init(&reader);
        assert_int_equal(connect_reader_next(&reader, &in, &flags, &payload, &err), CONNECT_BAD);
        assert_int_equal(err.kind, bad[i].kind);
        in = STR("\0\0\0\0\0");
        assert_int_equal(connect_reader_next(&reader, &in, &flags, &payload, &err), CONNECT_BAD);
        connect_reader_done(&reader);
    }
}

static void timeouts_are_decimal_and_short(void **state)
{
    (void)state;
    struct err err;
    uint64_t ms = 1;
    assert_true(connect_timeout_parse(STR(""), &ms, &err));
    assert_int_equal(ms, 0);
    assert_true(connect_timeout_parse(STR("60000"), &ms, &err));
    assert_int_equal(ms, 60000);
    assert_true(connect_timeout_parse(STR("60000.5"), &ms, &err));
    assert_int_equal(ms, 60000);
    assert_true(connect_timeout_parse(STR("9999999999"), &ms, &err));
    static const struct str bad[] = { STR_INIT("10000000000"), STR_INIT("-1"), STR_INIT("1s"), STR_INIT(" 1"),
                                      STR_INIT("."),           STR_INIT("1."), STR_INIT("1.x") };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(connect_timeout_parse(bad[i], &ms, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(codes_and_names_lead_to_each_other),
        CASE(an_end_of_stream_always_has_a_payload),
        CASE(envelopes_are_found_however_the_body_is_cut),
        CASE(half_an_envelope_at_the_end_is_noticed),
        CASE(bad_headers_end_the_reading),
        CASE(timeouts_are_decimal_and_short),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
