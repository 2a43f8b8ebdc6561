#include "guest/output.h"

#include <stdlib.h>

#include "base/buf.h"
#include "test.h"

enum { CAP = 100 * 1024 };

static void every_byte_comes_once_and_in_order(void **state)
{
    (void)state;
    struct output output = { 0 };
    uint64_t offset = 0, written = 0, seen = 0;
    char piece[3000];
    for (int round = 0; round < 2000; round++) {
        size_t len = (size_t)(round * 37 % (int)sizeof piece) + 1;
        for (size_t i = 0; i < len; i++)
            piece[i] = (char)written++;
        output_add(&output, round % 3 ? OUTPUT_STDOUT : OUTPUT_STDERR, str_of(piece, len), CAP);
        enum output_stream stream;
        struct str bytes;
        while (output_read(&output, &offset, &stream, &bytes)) {
            for (size_t i = 0; i < bytes.len; i++)
                assert_int_equal((unsigned char)bytes.at[i], (unsigned char)seen++);
            offset += bytes.len;
        }
    }
    assert_int_equal(seen, written);
    assert_int_equal(output.end, written);
    output_done(&output);
    assert_int_equal(output_total(), 0);
}

static void the_oldest_goes_and_the_gap_can_be_seen(void **state)
{
    (void)state;
    struct output output = { 0 };
    char piece[10000] = { 0 };
    uint64_t offset = 5;
    enum output_stream stream;
    struct str bytes;
    for (int i = 0; i < 50; i++)
        output_add(&output, OUTPUT_STDOUT, str_of(piece, sizeof piece), CAP);
    assert_int_equal(output.end, 50 * sizeof piece);
    assert_true(output.begin > 0);
    assert_true(output.end - output.begin <= CAP);
    assert_true(output.end - output.begin > CAP / 2);
    assert_true(output_read(&output, &offset, &stream, &bytes));
    assert_int_equal(offset, output.begin);
    assert_true(output_unread(&output, 0) <= CAP);
    assert_int_equal(output_unread(&output, output.end), 0);
    output_done(&output);
}

static void streams_stay_apart_and_single_bytes_do_not_cost_a_block_each(void **state)
{
    (void)state;
    struct output output = { 0 };
    for (int i = 0; i < 1000; i++)
        output_add(&output, OUTPUT_STDOUT, STR("x"), CAP);
    assert_true(output_total() < 4096);
    output_add(&output, OUTPUT_STDERR, STR("e"), CAP);
    uint64_t offset = 1000;
    enum output_stream stream = OUTPUT_STDOUT;
    struct str bytes;
    assert_true(output_read(&output, &offset, &stream, &bytes));
    assert_int_equal(stream, OUTPUT_STDERR);
    CHECK_STR(bytes, STR("e"));
    output_done(&output);
}

static void offsets_go_on_after_everything_was_forgotten(void **state)
{
    (void)state;
    struct output output = { 0 };
    uint64_t offset = 0;
    enum output_stream stream;
    struct str bytes;
    output_add(&output, OUTPUT_PTY, STR("abc"), CAP);
    output_done(&output);
    assert_int_equal(output.begin, 3);
    assert_false(output_read(&output, &offset, &stream, &bytes));
    assert_int_equal(offset, 3);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_byte_comes_once_and_in_order),
        CASE(the_oldest_goes_and_the_gap_can_be_seen),
        CASE(streams_stay_apart_and_single_bytes_do_not_cost_a_block_each),
        CASE(offsets_go_on_after_everything_was_forgotten),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
