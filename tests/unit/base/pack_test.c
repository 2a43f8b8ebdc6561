#include "base/pack.h"

#include "test.h"

static void a_message_comes_back_as_it_was(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    pack_u8(&out, 200);
    pack_u16(&out, 60000);
    pack_u32(&out, 4000000000u);
    pack_u64(&out, UINT64_MAX);
    pack_i64(&out, -5);
    pack_bool(&out, true);
    pack_str(&out, STR("text"));
    struct unpack in = unpack_from(buf_str(&out));
    struct err err;
    char room[5];
    assert_int_equal(unpack_u8(&in), 200);
    assert_int_equal(unpack_u16(&in), 60000);
    assert_true(unpack_u32(&in) == 4000000000u);
    assert_true(unpack_u64(&in) == UINT64_MAX);
    assert_true(unpack_i64(&in) == -5);
    assert_true(unpack_bool(&in));
    unpack_text(&in, room, sizeof room);
    assert_string_equal(room, "text");
    assert_true(unpack_done(&in, &err));
}

static void every_cut_of_a_message_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    pack_u32(&out, 1);
    pack_str(&out, STR("hello"));
    struct err err;
    for (size_t len = 0; len <= out.len + 1; len++) {
        char copy[64] = { 0 };
        memcpy(copy, out.data, out.len);
        struct unpack in = unpack_from(str_of(copy, len));
        (void)unpack_u32(&in);
        (void)unpack_str(&in, 100);
        assert_int_equal(unpack_done(&in, &err), len == out.len);
    }
}

static void lengths_past_their_cap_are_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    pack_str(&out, STR("hello"));
    struct unpack in = unpack_from(buf_str(&out));
    struct err err;
    CHECK_STR(unpack_str(&in, 4), STR(""));
    assert_false(unpack_done(&in, &err));
    in = unpack_from(buf_str(&out));
    assert_int_equal(unpack_count(&in, 4), 0);
    assert_true(in.failed);
    in = unpack_from(STR("\x02"));
    (void)unpack_bool(&in);
    assert_true(in.failed);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_message_comes_back_as_it_was),
        CASE(every_cut_of_a_message_is_refused),
        CASE(lengths_past_their_cap_are_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
