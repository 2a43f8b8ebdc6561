#include "base/buf.h"

#include <stdlib.h>

#include "test.h"

static void overflow_is_remembered_and_nothing_is_written_past_the_cap(void **state)
{
    (void)state;
    auto_buf struct buf b = buf_make(NULL, 5);
    buf_add(&b, STR("abc"));
    buf_add(&b, STR("def"));
    assert_true(b.overflowed);
    CHECK_STR(buf_str(&b), STR("abc"));
    buf_add(&b, STR("x")); /* would fit, but the whole is worthless already */
    CHECK_STR(buf_str(&b), STR("abc"));
    buf_clear(&b);
    buf_add(&b, STR("12345"));
    assert_false(b.overflowed);
}

static void a_queue_keeps_its_bytes_in_order(void **state)
{
    (void)state;
    auto_buf struct buf b = buf_make(NULL, 1 << 16);
    unsigned in = 0, out = 0;
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < round % 37; i++)
            buf_add_char(&b, (char)in++);
        size_t take = b.len * (unsigned)(round % 4) / 3;
        for (size_t i = 0; i < take; i++)
            assert_int_equal((unsigned char)b.data[i], (unsigned char)out++);
        buf_drop(&b, take);
        if (b.len > 60000)
            buf_clear(&b), out = in;
    }
    assert_false(b.overflowed);
}

static void arena_blocks_survive_big_requests(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    char *small = arena_text(&a, STR("small"));
    char *big = arena_alloc(&a, 100000);
    char *after = arena_text(&a, STR("after"));
    memset(big, 1, 100000);
    assert_string_equal(small, "small");
    assert_string_equal(after, "after");
    CHECK_STR(arena_format(&a, "%d-%s", 7, "x"), STR("7-x"));
    arena_done(&a);
}

static void a_secret_leaves_nothing_behind(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    struct buf b = buf_make(&a, 2000);
    b.is_secret = true;
    buf_add(&b, STR("the key"));
    char *first = b.data;
    while (b.data == first)
        buf_add(&b, STR(" and more"));
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(first[i], 0);
    char *second = b.data;
    assert_memory_equal(second, "the key and more", 16);
    buf_drop(&b, 4);
    buf_done(&b);
    assert_true(b.is_secret);
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(second[i], 0);
    arena_done(&a);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(overflow_is_remembered_and_nothing_is_written_past_the_cap),
        CASE(a_queue_keeps_its_bytes_in_order),
        CASE(arena_blocks_survive_big_requests),
        CASE(a_secret_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
