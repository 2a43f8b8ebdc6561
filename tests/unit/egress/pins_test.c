#include "egress/pins.h"

#include <stdio.h>

#include "base/limits.h"
#include "test.h"

static struct net_address address(const char *text)
{
    struct net_address out;

    assert_true(net_address_parse(str_from(text), &out));
    return out;
}

static void a_pin_leads_from_an_address_to_its_names(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1"), two = address("2001:db8::2");

    (void)state;
    pins_add(&pins, STR("a.example"), &one, 60, 1000);
    pins_add(&pins, STR("b.example"), &one, 60, 1000);
    pins_add(&pins, STR("a.example"), &one, 60, 2000); /* again */
    assert_int_equal(pins.count, 2);
    assert_true(pins_any_name(&pins, &one, 3000).len);
    assert_int_equal(pins_count(&pins, &one, 3000), 2);
    assert_int_equal(pins_count(&pins, &one, 3000 + LIMIT_EGRESS_PIN_MS), 0);
    assert_int_equal(pins_count(&pins, &two, 3000), 0);
    struct net_address next;
    uint32_t at = 0;
    assert_true(pins_next_address(&pins, STR("b.example"), 3000, &at, &next));
    assert_true(net_address_eq(&next, &one));
    assert_false(pins_next_address(&pins, STR("b.example"), 3000, &at, &next));
    at = 0;
    assert_false(pins_next_address(&pins, STR("b.example"), 3000 + LIMIT_EGRESS_PIN_MS, &at, &next));
    assert_int_equal(pins_any_name(&pins, &two, 3000).len, 0);
    assert_true(pins_have(&pins, STR("b.example"), &one, 3000));
    assert_false(pins_have(&pins, STR("b.example"), &two, 3000));
    assert_false(pins_have(&pins, STR("c.example"), &one, 3000));
    pins_done(&pins);
}

static void a_pin_ends_unless_it_is_used(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1"), two = address("192.0.2.2");
    uint64_t least = LIMIT_EGRESS_PIN_MS, day = 86400 * 1000;

    (void)state;
    pins_add(&pins, STR("short.example"), &one, 1, 0);
    pins_add(&pins, STR("long.example"), &two, 86400, 0);
    assert_true(pins_have(&pins, STR("short.example"), &one, least - 1));
    assert_false(pins_have(&pins, STR("short.example"), &one, least));
    assert_true(pins_have(&pins, STR("long.example"), &two, day - 1));
    pins_use(&pins, &one, least - 1);
    assert_true(pins_have(&pins, STR("short.example"), &one, 2 * least - 2));
    pins_use(&pins, &one, 3 * least); /* too late */
    assert_false(pins_have(&pins, STR("short.example"), &one, 3 * least));
    pins_done(&pins);
}

static void pins_are_bounded_and_the_first_to_end_goes(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1"), next = address("198.51.100.0");

    (void)state;
    pins_add(&pins, STR("a.example"), &one, 3600, 0);
    for (unsigned i = 0; i < LIMIT_EGRESS_PINS; i++) {
        next.at[14] = (uint8_t)(i >> 8);
        next.at[15] = (uint8_t)i;
        pins_add(&pins, STR("a.example"), &next, 7200, i);
    }
    assert_int_equal(pins.count, LIMIT_EGRESS_PINS);
    assert_false(pins_have(&pins, STR("a.example"), &one, 1000));
    next.at[14] = next.at[15] = 0;
    assert_true(pins_have(&pins, STR("a.example"), &next, 1000));
    pins_add(&pins, STR("last.example"), &one, 7200, 9000);
    assert_false(pins_have(&pins, STR("a.example"), &next, 9000));
    assert_int_equal(pins.count, LIMIT_EGRESS_PINS);
    pins_done(&pins);
}

static void names_of_one_address_are_bounded_and_the_first_to_end_goes(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1"), two = address("192.0.2.2");
    char name[32];

    (void)state;
    pins_add(&pins, STR("other.example"), &two, 3600, 0);
    for (unsigned i = 0; i < 1000; i++) {
        (void)snprintf(name, sizeof name, "n%u.example", i);
        pins_add(&pins, str_from(name), &one, 7200, i);
    }
    assert_int_equal(pins.count, LIMIT_EGRESS_PIN_NAMES + 1);
    assert_true(pins_have(&pins, STR("other.example"), &two, 1000));
    assert_true(pins_have(&pins, STR("n999.example"), &one, 1000));
    assert_false(pins_have(&pins, STR("n0.example"), &one, 1000));
    pins_done(&pins);
}

static void a_name_is_compared_with_a_policy_once(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1");
    struct str good[] = { STR("b.example") }, bad[] = { STR("c.example") };
    const struct net_policy allows = { .name_count = 1, .names = good }, does_not = { .name_count = 1, .names = bad };

    (void)state;
    pins_add(&pins, STR("a.example"), &one, 60, 0);
    pins_add(&pins, STR("b.example"), &one, 60, 0);
    assert_true(str_eq(pins_best_name(&pins, &one, 1, &allows, 1), STR("b.example")));
    /* Under the same number the names of the policy are not looked at again. */
    assert_true(str_eq(pins_best_name(&pins, &one, 1, &does_not, 1), STR("b.example")));
    assert_true(str_eq(pins_best_name(&pins, &one, 1, &does_not, 2), STR("a.example")));
    assert_true(str_eq(pins_best_name(&pins, &one, 1, &allows, 3), STR("b.example")));
    /* A pin that takes another's place is compared anew. */
    pins_add(&pins, STR("c.example"), &one, 60, 0);
    assert_true(str_eq(pins_best_name(&pins, &one, 1, &does_not, 4), STR("c.example")));
    assert_int_equal(pins_best_name(&pins, &one, LIMIT_EGRESS_PIN_MS, &allows, 5).len, 0);
    pins_done(&pins);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_pin_leads_from_an_address_to_its_names),
        CASE(a_pin_ends_unless_it_is_used),
        CASE(pins_are_bounded_and_the_first_to_end_goes),
        CASE(names_of_one_address_are_bounded_and_the_first_to_end_goes),
        CASE(a_name_is_compared_with_a_policy_once),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
