#include "base/quota.h"

#include "test.h"

static const struct quota_rule rule = { .per_s = 10, .burst = 20 };

static unsigned take_all(struct quota *quota, uint64_t now_ms)
{
    struct quota_left left;
    unsigned taken = 0;

    while (quota_take(&rule, quota, now_ms, &left))
        taken++;
    return taken;
}

static void a_rested_bucket_gives_its_burst_and_then_its_rate(void **state)
{
    (void)state;
    struct quota quota = { 0 };

    assert_int_equal(take_all(&quota, 1000000), 20);
    assert_int_equal(take_all(&quota, 1000000), 0);
    assert_int_equal(take_all(&quota, 1000099), 0);
    assert_int_equal(take_all(&quota, 1000100), 1);
    assert_int_equal(take_all(&quota, 1001100), 10);
    assert_int_equal(take_all(&quota, 1002100), 10);
    assert_int_equal(take_all(&quota, 9002100), 20); /* never more than the burst */
}

static void refusals_cost_nothing_and_halves_are_kept(void **state)
{
    (void)state;
    struct quota quota = { 0 };

    assert_int_equal(take_all(&quota, 5000), 20);
    for (uint64_t now_ms = 5000; now_ms < 5100; now_ms++)
        assert_int_equal(take_all(&quota, now_ms), 0);
    assert_int_equal(take_all(&quota, 5100), 1);
}

static void a_bucket_in_debt_waits_until_it_has_paid(void **state)
{
    (void)state;
    struct quota quota = { 0 };

    quota_spend(&rule, &quota, 20000, 100);
    assert_int_equal(quota_wait_ms(&rule, &quota, 100), 0);
    quota_spend(&rule, &quota, 5001, 100);
    assert_int_equal(quota_wait_ms(&rule, &quota, 100), 501);
    assert_int_equal(quota_wait_ms(&rule, &quota, 600), 1);
    assert_int_equal(quota_wait_ms(&rule, &quota, 601), 0);
    quota_spend(&rule, &quota, UINT64_MAX, 601);
    assert_true(quota_wait_ms(&rule, &quota, 601) > 1000000000);
}

static void tokens_that_come_back_do_not_overfill_it(void **state)
{
    (void)state;
    struct quota quota = { 0 };

    assert_int_equal(take_all(&quota, 1000), 20);
    quota_give(&quota, 4);
    assert_int_equal(take_all(&quota, 1000), 4);
    quota_give(&quota, UINT32_MAX);
    assert_int_equal(take_all(&quota, 1000), 20);
    assert_false(quota_take(&rule, &quota, 1000, NULL));
    assert_true(quota_take(&rule, &quota, 1100, NULL));
}

static void spending_without_a_limit_costs_nothing(void **state)
{
    (void)state;
    struct quota_rule none = { 0 };
    struct quota quota = { 0 };

    quota_spend(&none, &quota, UINT64_MAX, 5);
    quota_spend(&none, &quota, UINT64_MAX, 5);
    assert_int_equal(quota_wait_ms(&none, &quota, 5), 0);
}

static void it_says_how_long_to_wait(void **state)
{
    (void)state;
    struct quota quota = { 0 };
    struct quota_left left;

    assert_true(quota_take(&rule, &quota, 0, &left));
    assert_int_equal(left.limit, 20);
    assert_int_equal(left.remaining, 19);
    assert_int_equal(left.full_in_s, 1);
    assert_int_equal(left.next_in_s, 0);
    (void)take_all(&quota, 0);
    assert_false(quota_take(&rule, &quota, 0, &left));
    assert_int_equal(left.remaining, 0);
    assert_int_equal(left.full_in_s, 2);
    assert_int_equal(left.next_in_s, 1);
    assert_false(quota_is_full(&rule, &quota, 1999));
    assert_true(quota_is_full(&rule, &quota, 2001));
}

static void no_rate_is_no_limit(void **state)
{
    (void)state;
    const struct quota_rule none = { 0 };
    struct quota quota = { 0 };
    struct quota_left left;

    for (int i = 0; i < 100000; i++)
        assert_true(quota_take(&none, &quota, 0, &left));
    assert_true(quota_is_full(&none, &quota, 0));
}

static void a_clock_that_goes_back_gives_nothing_away(void **state)
{
    (void)state;
    struct quota quota = { 0 };

    assert_int_equal(take_all(&quota, 1000000), 20);
    assert_int_equal(take_all(&quota, 0), 0);
    assert_int_equal(take_all(&quota, UINT64_MAX), 20);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_rested_bucket_gives_its_burst_and_then_its_rate),
        CASE(refusals_cost_nothing_and_halves_are_kept),
        CASE(a_bucket_in_debt_waits_until_it_has_paid),
        CASE(tokens_that_come_back_do_not_overfill_it),
        CASE(spending_without_a_limit_costs_nothing),
        CASE(it_says_how_long_to_wait),
        CASE(no_rate_is_no_limit),
        CASE(a_clock_that_goes_back_gives_nothing_away),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
