#include "isolation/plan.h"

#include <stdio.h>

#include "test.h"

static struct plan a_plan(void)
{
    struct plan plan = { .id = "sandbox1",
                         .hostname = "cloister",
                         .layer_count = 2,
                         .memory_bytes = 512 << 20,
                         .cpu_millis = 2000,
                         .pids = 1024 };

    for (int i = 0; i < 64; i++) {
        plan.layers[0][i] = 'a';
        plan.layers[1][i] = '0';
    }
    return plan;
}

static void a_plan_comes_back_as_it_was(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct plan sent = a_plan(), got;
    struct err err;

    plan_pack(&out, &sent);
    struct unpack in = unpack_from(buf_str(&out));
    plan_unpack(&in, &got);
    assert_true(unpack_done(&in, &err));
    assert_true(plan_check(&got, &err));
    assert_memory_equal(&got, &sent, sizeof got);
}

static void what_a_sandbox_begins_with_comes_back(void **state)
{
    (void)state;
    struct err err;

    for (int from = PLAN_NEW; from < PLAN_FROM_COUNT; from++) {
        auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
        struct plan sent = a_plan(), got;
        sent.from = (enum plan_from)from;
        if (from == PLAN_IMAGE)
            memset(sent.image, 'b', sizeof sent.image - 1);
        plan_pack(&out, &sent);
        struct unpack in = unpack_from(buf_str(&out));
        plan_unpack(&in, &got);
        assert_true(unpack_done(&in, &err));
        assert_true(plan_check(&got, &err));
        assert_memory_equal(&got, &sent, sizeof got);
        out.data[0] = PLAN_FROM_COUNT;
        in = unpack_from(buf_str(&out));
        plan_unpack(&in, &got);
        assert_false(unpack_done(&in, &err));
    }
}

static void the_largest_plan_fits_a_message(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES - 16);
    struct plan plan = a_plan();
    struct err err;

    plan.layer_count = LIMIT_LAYERS;
    for (int i = 0; i < LIMIT_LAYERS; i++)
        (void)snprintf(plan.layers[i], LAYER_ID_BYTES, "%064x", (unsigned)i);
    assert_true(plan_check(&plan, &err));
    plan_pack(&out, &plan);
    assert_false(out.overflowed);
}

static void every_cut_of_a_plan_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct plan plan = a_plan(), got;
    struct err err;

    plan_pack(&out, &plan);
    for (size_t len = 0; len < out.len; len++) {
        struct unpack in = unpack_from(str_of(out.data, len));
        plan_unpack(&in, &got);
        assert_false(unpack_done(&in, &err));
    }
}

static void each_field_is_checked(void **state)
{
    (void)state;
    struct err err;
    struct plan plan;

#define REFUSES(change)                          \
    do {                                         \
        plan = a_plan();                         \
        change;                                  \
        assert_false(plan_check(&plan, &err));   \
        assert_int_equal(err.kind, ERR_INVALID); \
    } while (0)
    REFUSES(plan.from = PLAN_FROM_COUNT);
    REFUSES(plan.from = PLAN_IMAGE); /* of which snapshot? */
    REFUSES((plan.from = PLAN_IMAGE, memset(plan.image, 'g', sizeof plan.image - 1)));
    REFUSES((plan.from = PLAN_IMAGE, memset(plan.image, 'a', sizeof plan.image)));
    REFUSES((plan.from = PLAN_PARKED, memset(plan.image, 'a', sizeof plan.image - 1)));
    REFUSES(plan.id[0] = '\0');
    REFUSES(plan.id[0] = '/');
    REFUSES(plan.id[0] = '.');
    REFUSES(plan.id[0] = 'A');
    REFUSES(memset(plan.id, 'a', sizeof plan.id)); /* no end */
    REFUSES(plan.hostname[0] = '\0');
    REFUSES(plan.hostname[0] = '-');
    REFUSES(plan.hostname[3] = '\n');
    REFUSES(plan.layer_count = 0);
    REFUSES(plan.layer_count = LIMIT_LAYERS + 1);
    REFUSES(plan.layers[1][5] = '/');
    REFUSES(plan.layers[1][63] = '\0');
    REFUSES(memcpy(plan.layers[1], plan.layers[0], LAYER_ID_BYTES));
    REFUSES(plan.memory_bytes = 0);
    REFUSES(plan.memory_bytes = UINT64_MAX);
    REFUSES(plan.cpu_millis = 0);
    REFUSES(plan.cpu_millis = UINT32_MAX);
    REFUSES(plan.pids = 0);
    REFUSES(plan.pids = UINT32_MAX);
    plan = a_plan();
    assert_true(plan_check(&plan, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_plan_comes_back_as_it_was),     CASE(what_a_sandbox_begins_with_comes_back),
        CASE(the_largest_plan_fits_a_message), CASE(every_cut_of_a_plan_is_refused),
        CASE(each_field_is_checked),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
