#include "isolation/stats.h"

#include <string.h>

#include "base/mem.h"
#include "test.h"

static const struct held asked[] = { { "ia" }, { "ib" }, { "ic" } };

static bool unpacks(const struct stats *sent, uint32_t count, struct stats out[LIMIT_STATS], uint32_t *out_count)
{
    auto_buf struct buf bytes = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct err err;

    stats_pack(&bytes, sent, count);
    struct unpack in = unpack_from(buf_str(&bytes));
    stats_unpack(&in, asked, COUNT_OF(asked), out, out_count);
    return unpack_done(&in, &err);
}

static void figures_arrive_as_they_were_sent(void **state)
{
    (void)state;
    const struct stats sent[] = { { "ia", 1, 2, 3, 4, 5, 6 }, { "ic", UINT64_MAX, 0, 0, 0, 0, 7 } };
    struct stats got[LIMIT_STATS];
    uint32_t count;

    assert_true(unpacks(sent, 2, got, &count));
    assert_int_equal(count, 2);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(got[i].id, sent[i].id);
        assert_true(got[i].cpu_us == sent[i].cpu_us);
        assert_true(got[i].disk_total_bytes == sent[i].disk_total_bytes);
    }
    assert_true(unpacks(NULL, 0, got, &count)); /* none of them lives any more */
    assert_int_equal(count, 0);
}

static void figures_that_nobody_asked_for_are_malformed(void **state)
{
    (void)state;
    const struct stats stranger[] = { { "ix" } }, twice[] = { { "ia" }, { "ia" } },
                       backwards[] = { { "ib" }, { "ia" } };
    const struct stats many[] = { { "ia" }, { "ib" }, { "ic" }, { "ic" } }, nameless[] = { { "" } };
    struct stats got[LIMIT_STATS];
    uint32_t count;

    assert_false(unpacks(stranger, 1, got, &count));
    assert_int_equal(count, 0);
    assert_false(unpacks(twice, 2, got, &count));
    assert_false(unpacks(backwards, 2, got, &count));
    assert_false(unpacks(many, 4, got, &count));
    assert_false(unpacks(nameless, 1, got, &count));
}

static void an_asking_names_one_to_as_many_as_the_limit(void **state)
{
    (void)state;
    struct held which[LIMIT_STATS + 1] = { 0 }, got[LIMIT_STATS];

    for (size_t i = 0; i < COUNT_OF(which); i++)
        which[i].id[0] = 'i';
    for (uint32_t count = 0; count <= LIMIT_STATS + 1; count++) {
        auto_buf struct buf bytes = buf_make(NULL, LIMIT_MESSAGE_BYTES);
        uint32_t arrived;
        struct err err;
        stats_pack_ask(&bytes, which, count);
        struct unpack in = unpack_from(buf_str(&bytes));
        stats_unpack_ask(&in, got, &arrived);
        bool fine = count >= 1 && count <= LIMIT_STATS;
        assert_int_equal(unpack_done(&in, &err), fine);
        assert_int_equal(arrived, fine ? count : 0);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(figures_arrive_as_they_were_sent),
        CASE(figures_that_nobody_asked_for_are_malformed),
        CASE(an_asking_names_one_to_as_many_as_the_limit),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
