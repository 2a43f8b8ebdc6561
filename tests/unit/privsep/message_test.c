#include "privsep/message.h"

#include "test.h"

static void a_head_comes_back_as_it_was(void **state)
{
    (void)state;
    for (int shape = MESSAGE_REQUEST; shape < MESSAGE_SHAPE_END; shape++) {
        auto_buf struct buf out = buf_make(NULL, 100);
        struct message_head sent = { .shape = (enum message_shape)shape,
                                     .type = MESSAGE_DIAL,
                                     .id = shape == MESSAGE_EVENT ? 0 : 77 };
        struct message_head got;
        struct err err;
        message_pack_head(&out, &sent);
        assert_int_equal(out.len, MESSAGE_HEAD_BYTES);
        struct unpack in = unpack_from(buf_str(&out));
        message_unpack_head(&in, &got);
        assert_true(unpack_done(&in, &err));
        assert_int_equal(got.shape, sent.shape);
        assert_int_equal(got.type, sent.type);
        assert_int_equal(got.id, sent.id);
    }
}

static void heads_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint8_t shape;
        uint16_t type;
        uint32_t id;
    } bad[] = {
        { 0, MESSAGE_DIAL, 1 },
        { MESSAGE_SHAPE_END, MESSAGE_DIAL, 1 },
        { MESSAGE_REQUEST, 0, 1 },
        { MESSAGE_REQUEST, MESSAGE_TYPE_END, 1 },
        { MESSAGE_REQUEST, MESSAGE_DIAL, 0 }, /* a request has an id */
        { MESSAGE_EVENT, MESSAGE_EXITED, 9 }, /* an event has none */
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        auto_buf struct buf out = buf_make(NULL, 100);
        struct message_head head;
        pack_u8(&out, bad[i].shape);
        pack_u16(&out, bad[i].type);
        pack_u32(&out, bad[i].id);
        struct unpack in = unpack_from(buf_str(&out));
        message_unpack_head(&in, &head);
        assert_true(in.failed);
    }
}

static void an_error_crosses_with_its_trail(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 2000);
    struct err sent, got, err;

    (void)err_sys_num(&sent, 2, "open memory.max");
    (void)err_wrap(&sent, "limit sandbox x");
    message_pack_err(&out, &sent);
    struct unpack in = unpack_from(buf_str(&out));
    message_unpack_err(&in, &got);
    assert_true(unpack_done(&in, &err));
    assert_int_equal(got.kind, ERR_NOT_FOUND);
    assert_int_equal(got.sys, 2);
    assert_string_equal(err_text(&got), "limit sandbox x: open memory.max: No such file or directory");
}

static void an_error_of_no_kind_is_refused(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 256; kind += kind ? ERR_KIND_COUNT - 1 + (kind > 1) * 100 : 1) {
        auto_buf struct buf out = buf_make(NULL, 100);
        struct err got;
        if (kind > ERR_NONE && kind < ERR_KIND_COUNT)
            continue;
        pack_u8(&out, (uint8_t)kind);
        pack_u32(&out, 0);
        pack_str(&out, STR("text"));
        pack_str(&out, STR(""));
        struct unpack in = unpack_from(buf_str(&out));
        message_unpack_err(&in, &got);
        assert_true(in.failed);
        assert_int_equal(got.kind, ERR_INTERNAL); /* even then it does not read as success */
    }
}

static void an_id_is_letters_and_digits(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        bool fine;
    } rows[] = {
        { STR_INIT("abc123"), true },
        { STR_INIT(""), false },
        { STR_INIT("../x"), false },
        { STR_INIT("ABC"), false },
        { STR_INIT("a\0b"), false },
        { STR_INIT("a b"), false },
        { STR_INIT("0123456789012345678901234567890"), true },
        { STR_INIT("01234567890123456789012345678901"), false }, /* one too long */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        auto_buf struct buf out = buf_make(NULL, 100);
        char id[LIMIT_ID_BYTES];
        pack_str(&out, rows[i].text);
        struct unpack in = unpack_from(buf_str(&out));
        message_unpack_id(&in, id);
        assert_int_equal(!in.failed, rows[i].fine);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_head_comes_back_as_it_was),     CASE(heads_that_cannot_be_are_refused),
        CASE(an_error_crosses_with_its_trail), CASE(an_error_of_no_kind_is_refused),
        CASE(an_id_is_letters_and_digits),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
