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

static unsigned count_names(const struct pins *pins, const struct net_address *of, uint64_t now_ms)
{
    unsigned count = 0;
    struct str name;

    for (uint32_t i = 0; pins_next(pins, of, now_ms, &i, &name);)
        count++;
    return count;
}

static void a_pin_leads_from_an_address_to_its_names(void **state)
{
    struct pins pins = { 0 };
    struct net_address one = address("192.0.2.1"), two = address("2001:db8::2");

    (void)state;
    pins_add(&pins, STR("a.example"), &one, 60, 1000);
    pins_add(&pins, STR("b.example"), &one, 60, 1000);
    pins_add(&pins, STR("a.example"), &one, 60, 2000); /* again */
    assert_int_equal(count_names(&pins, &one, 3000), 2);
    assert_int_equal(count_names(&pins, &two, 3000), 0);
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
    struct net_address one = address("192.0.2.1");
    char name[32];

    (void)state;
    pins_add(&pins, STR("first.example"), &one, 3600, 0);
    for (unsigned i = 0; i < LIMIT_EGRESS_PINS; i++) {
        (void)snprintf(name, sizeof name, "n%u.example", i);
        pins_add(&pins, str_from(name), &one, 7200, i);
    }
    assert_int_equal(pins.count, LIMIT_EGRESS_PINS);
    assert_false(pins_have(&pins, STR("first.example"), &one, 1000));
    assert_true(pins_have(&pins, STR("n0.example"), &one, 1000));
    pins_add(&pins, STR("last.example"), &one, 7200, 9000);
    assert_false(pins_have(&pins, STR("n0.example"), &one, 9000));
    assert_int_equal(count_names(&pins, &one, 9000), LIMIT_EGRESS_PINS);
    pins_done(&pins);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_pin_leads_from_an_address_to_its_names),
        CASE(a_pin_ends_unless_it_is_used),
        CASE(pins_are_bounded_and_the_first_to_end_goes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
