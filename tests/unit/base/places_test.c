#include "base/places.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/clock.h"
#include "test.h"

enum { THREADS = 16, LONG_MS = 60000 };

static const struct places_rule rule = { .most = 3, .most_each = 2, .waiting_each = 4 };
static struct places *places;
static char order[THREADS + 1]; /* the owners that got a place, in turn */
static atomic_uint got;

struct taker {
    pthread_t thread;
    char owner;
    uint64_t until_ms;
    bool fine;
    struct err err;
};

static int set_up(void **state)
{
    (void)state;
    places = places_new(&rule);
    memset(order, 0, sizeof order);
    atomic_store(&got, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    places_free(places);
    return 0;
}

static struct str owner(const char *letter)
{
    return str_of(letter, 1);
}

/* One place is given back at a time, so no two threads write at once. */
static void *take(void *context)
{
    struct taker *taker = context;

    taker->fine = places_take(places, owner(&taker->owner), taker->until_ms, &taker->err);
    if (taker->fine) {
        order[atomic_load(&got)] = taker->owner;
        atomic_fetch_add(&got, 1);
    }
    return NULL;
}

static void begin(struct taker *taker, char letter)
{
    unsigned waiting = places_waiting(places), had = atomic_load(&got);

    *taker = (struct taker){ .owner = letter, .until_ms = clock_mono_ms() + LONG_MS };
    assert_int_equal(pthread_create(&taker->thread, NULL, take, taker), 0);
    while (places_waiting(places) == waiting && atomic_load(&got) == had)
        (void)usleep(100);
}

static void end(struct taker *takers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)pthread_join(takers[i].thread, NULL);
}

/* Until the next one has the place. */
static void give_back(const char *letter)
{
    unsigned had = atomic_load(&got);

    places_give_back(places, owner(letter));
    while (atomic_load(&got) == had)
        (void)usleep(100);
}

static void an_owner_has_its_share_and_no_more(void **state)
{
    struct taker takers[5];

    (void)state;
    for (int i = 0; i < 4; i++)
        begin(&takers[i], 'a');
    assert_string_equal(order, "aa"); /* the third place stays free… */
    assert_int_equal(places_waiting(places), 2);
    begin(&takers[4], 'b'); /* …for somebody else, who does not wait */
    assert_string_equal(order, "aab");
    give_back("a");
    give_back("a");
    assert_string_equal(order, "aabaa");
    end(takers, 5);
    places_give_back(places, STR("a"));
    places_give_back(places, STR("a"));
    places_give_back(places, STR("b"));
}

static void those_who_wait_take_turns_by_owner_and_not_by_arrival(void **state)
{
    struct taker takers[9];
    const char *arrivals = "abcaaaabc"; /* the first three have the places */

    (void)state;
    for (int i = 0; i < 9; i++)
        begin(&takers[i], arrivals[i]);
    assert_string_equal(order, "abc");
    assert_int_equal(places_waiting(places), 6);
    give_back("c");
    assert_string_equal(order, "abca"); /* a came first, and has two places from here on */
    give_back("b");
    assert_string_equal(order, "abcab");
    give_back("b");
    assert_string_equal(order, "abcabc");
    for (int i = 0; i < 3; i++)
        give_back("a");
    assert_string_equal(order, "abcabcaaa");
    end(takers, 9);
    places_give_back(places, STR("a"));
    places_give_back(places, STR("a"));
    places_give_back(places, STR("c"));
}

static void an_owner_whose_queue_is_full_is_refused_at_once(void **state)
{
    struct taker takers[6];
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 6; i++)
        begin(&takers[i], 'a');
    assert_int_equal(places_waiting(places), rule.waiting_each);
    assert_false(places_take(places, STR("a"), clock_mono_ms() + LONG_MS, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_true(places_take(places, STR("b"), clock_mono_ms() + LONG_MS, &err)); /* others are not */
    places_give_back(places, STR("b"));
    for (int i = 0; i < 4; i++)
        give_back("a");
    end(takers, 6);
    places_give_back(places, STR("a"));
    places_give_back(places, STR("a"));
}

static void one_whose_time_is_over_leaves_the_queue(void **state)
{
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_true(places_take(places, STR("a"), 0, &err));
    for (int i = 0; i < 20; i++) { /* more than may wait: none of them stays */
        assert_false(places_take(places, STR("a"), clock_mono_ms(), &err));
        assert_int_equal(err.kind, ERR_UNAVAILABLE);
    }
    assert_int_equal(places_waiting(places), 0);
    places_give_back(places, STR("a"));
    assert_true(places_take(places, STR("a"), 0, &err));
    places_give_back(places, STR("a"));
    places_give_back(places, STR("a"));
}

#define PLACES(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        PLACES(an_owner_has_its_share_and_no_more),
        PLACES(those_who_wait_take_turns_by_owner_and_not_by_arrival),
        PLACES(an_owner_whose_queue_is_full_is_refused_at_once),
        PLACES(one_whose_time_is_over_leaves_the_queue),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
