#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "temp_store.h"

/* Happens at `at_us`; removing a row that is not there still writes its event. */
static void happen(struct temp_store *t, const char *team, const char *sandbox, enum event_type type, int64_t at_us)
{
    struct event_row event = { .type = event_type_name[type],
                               .sandbox_id = str_from(sandbox),
                               .team_id = str_from(team),
                               .template_id = STR("tbase"),
                               .at_us = at_us,
                               .data = STR("{}") };

    MUST(store_sandbox_remove(t->store, STR("none"), &event, &err));
}

/* The last words of their types, in the order found. */
static void check(struct temp_store *t, const struct event_filter *filter, const char *want)
{
    struct buf got = buf_make(&t->arena, 1000);
    struct event_row *events;
    size_t count;

    MUST(store_event_find(t->store, filter, &t->arena, &events, &count, &err));
    for (size_t i = 0; i < count; i++) {
        struct str type = events[i].type;
        assert_true(str_skip(&type, STR("sandbox.lifecycle.")));
        buf_format(&got, "%s%.*s:%.*s", i ? " " : "", STR_ARG(events[i].sandbox_id), STR_ARG(type));
    }
    CHECK_STR(buf_str(&got), str_from(want));
}

static void events_are_found_by_team_sandbox_type_and_time(void **state)
{
    struct temp_store *t = *state;
    const int64_t now = clock_wall_us();
    struct event_filter all = { .team_id = STR("team"), .limit = 100, .oldest_first = true }, filter;

    happen(t, "team", "ia", EVENT_CREATED, now + 1000);
    happen(t, "team", "ib", EVENT_CREATED, now + 2000);
    happen(t, "other", "ic", EVENT_CREATED, now + 3000);
    happen(t, "team", "ia", EVENT_UPDATED, now + 4000);
    happen(t, "team", "ia", EVENT_KILLED, now + 5000);

    check(t, &all, "ia:created ib:created ia:updated ia:killed");
    filter = all;
    filter.oldest_first = false;
    check(t, &filter, "ia:killed ia:updated ib:created ia:created");
    filter.limit = 2;
    filter.offset = 1;
    check(t, &filter, "ia:updated ib:created");
    filter = all;
    filter.sandbox_id = STR("ia");
    check(t, &filter, "ia:created ia:updated ia:killed");
    filter.oldest_first = false;
    filter.limit = 1;
    check(t, &filter, "ia:killed");
    filter = all;
    filter.types = BIT(EVENT_CREATED) | BIT(EVENT_KILLED);
    check(t, &filter, "ia:created ib:created ia:killed");
    filter.types = BIT(EVENT_PAUSED);
    check(t, &filter, "");
    filter = all;
    filter.from_us = now + 2000;
    filter.to_us = now + 4000;
    check(t, &filter, "ib:created ia:updated");
    filter = all;
    filter.sandbox_id = STR("ic"); /* another team's */
    check(t, &filter, "");
}

static void beginnings_and_ends_are_counted_by_step(void **state)
{
    struct temp_store *t = *state;
    const int64_t from = clock_wall_us() + 1000000;
    struct event_count *counts;
    size_t count;

    happen(t, "team", "iz", EVENT_CREATED, from - 1);
    happen(t, "team", "ia", EVENT_CREATED, from);
    happen(t, "team", "ib", EVENT_CREATED, from + 9);
    happen(t, "team", "ib", EVENT_UPDATED, from + 12);
    happen(t, "other", "ic", EVENT_CREATED, from + 13);
    happen(t, "team", "ia", EVENT_KILLED, from + 35);
    MUST(store_event_count(t->store, STR("team"), from, 10, &t->arena, &counts, &count, &err));
    assert_int_equal(count, 3); /* the second has but an update */
    assert_int_equal(counts[0].step, 0);
    assert_int_equal(counts[0].created, 2);
    assert_int_equal(counts[1].created, 0);
    assert_int_equal(counts[2].step, 3);
    assert_int_equal(counts[2].killed, 1);
}

#define STORE_CASE(function) cmocka_unit_test_setup_teardown(function, temp_store_set_up, temp_store_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        STORE_CASE(events_are_found_by_team_sandbox_type_and_time),
        STORE_CASE(beginnings_and_ends_are_counted_by_step),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
