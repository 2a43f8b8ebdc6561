#include "sandbox/sandbox.h"

#include <pthread.h>
#include <semaphore.h>
#include <sodium.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/encode.h"
#include "rig.h"

#define TEAM STR("team")

enum { RETRY_MS = 2000 }; /* as in end.c */

/* Its events, oldest first, by the last word of their type. */
static void check_events(struct rig *rig, struct str id, const char *want)
{
    struct buf got = buf_make(&rig->arena, 1000);
    struct event_row *events;
    size_t count;

    MUST(store_event_list(rig->disk.store, id, &rig->arena, &events, &count, &err));
    for (size_t i = 0; i < count; i++) {
        struct str type = events[i].type;
        assert_true(str_skip(&type, STR("sandbox.lifecycle.")));
        buf_format(&got, "%s%.*s", i ? " " : "", STR_ARG(type));
    }
    CHECK_STR(buf_str(&got), str_from(want));
}

static bool reason_is(struct rig *rig, struct str id, const char *reason)
{
    struct event_row *events;
    size_t count;
    char want[64];

    MUST(store_event_list(rig->disk.store, id, &rig->arena, &events, &count, &err));
    snprintf(want, sizeof want, "\"kill_reason\":\"%s\"", reason);
    return count && strstr(arena_text(&rig->arena, events[count - 1].data), want);
}

/* Polls; a test that never ends is caught by the runner's own limit. */
static void wait_until_gone(struct rig *rig)
{
    while (rig_rows(rig) || rig_held_count(rig))
        usleep(2000);
    for (;;) { /* the row goes just before the manager forgets it */
        struct sandbox_info *list;
        size_t count;
        MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
        if (count == 0)
            return;
        usleep(2000);
    }
}

/* ---- create ---- */

static void a_created_sandbox_is_known_everywhere(void **state)
{
    struct rig *rig = *state;
    struct pair metadata[] = { { STR("k \"1\""), STR("v\n\x01é") } };
    struct pair envs[] = { { STR("A"), STR("1") }, { STR("B"), STR("") } };
    struct sandbox_info got, *list;
    size_t count;

    rig->want.metadata = metadata;
    rig->want.metadata_count = 1;
    rig->want.envs = envs;
    rig->want.env_count = 2;
    rig->want.network.internet = false;
    struct sandbox_info info = rig_create(rig);
    assert_int_equal(info.id.len, 21);
    assert_int_equal(info.id.at[0], 'i');
    assert_int_equal(info.access_token.len, 64);
    assert_int_equal(info.deadline_us - info.started_us, INT64_C(3600000000));

    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    CHECK_STR(got.id, info.id);
    CHECK_STR(got.metadata[0].name, metadata[0].name);
    CHECK_STR(got.metadata[0].value, metadata[0].value);
    assert_false(got.network.internet);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    assert_true(rig_holds(rig, info.id));
    assert_int_equal(rig_rows(rig), 1);
    check_events(rig, info.id, "created");

    CHECK_STR(str_from(rig->fake.last_plan.id), info.id);
    assert_int_equal(rig->fake.last_plan.cpu_millis, 2000);
    assert_int_equal(rig->fake.last_plan.memory_bytes, UINT64_C(1024) << 20);
    struct guestlink_setup setup = rig_setup_of(rig, info.id);
    CHECK_STR(setup.sandbox_id, info.id);
    CHECK_STR(setup.access_token, info.access_token);
    CHECK_STR(setup.default_user, STR("user"));
    assert_int_equal(setup.env_count, 2);
    CHECK_STR(setup.envs[0].name, STR("A"));
    CHECK_STR(setup.envs[1].value, STR(""));

    struct sandbox *sb = sandbox_find(rig->all, info.id);
    assert_non_null(sb);
    assert_true(sandbox_is_routable(sb));
    assert_ptr_equal(sandbox_driver(sb), &rig->fake.driver);
    sandbox_unref(sb);
}

static void another_team_cannot_tell_a_sandbox_from_a_missing_one(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got, *list;
    size_t count;

    MUST_FAIL(sandbox_get(rig->all, STR("other"), info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_kill(rig->all, STR("other"), info.id, "request", &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_set_deadline(rig->all, STR("other"), info.id, 1, DEADLINE_SET, &rig->arena, &got, &err),
              ERR_NOT_FOUND);
    MUST(sandbox_list(rig->all, STR("other"), &rig->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    assert_true(rig_holds(rig, info.id));
}

static void check_nothing_is_left(struct rig *rig)
{
    struct sandbox_info *list;
    size_t count;

    rig_wait_ended(rig);
    assert_int_equal(rig_rows(rig), 0);
    assert_int_equal(rig_held_count(rig), 0);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 0);
}

static void a_start_that_fails_leaves_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    static const enum fake_start ways[] = { FAKE_START_FAILS, FAKE_NO_NAMESPACES, FAKE_START_ANSWERS_WRONGLY,
                                            FAKE_GUEST_REFUSES, FAKE_GUEST_DIES };

    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        rig->fake.start = ways[i];
        MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INTERNAL);
        check_nothing_is_left(rig);
    }
    rig->fake.start = FAKE_STARTS;
    rig_create(rig); /* and the place is free again */
}

static void a_start_that_times_out_is_ended_afterwards(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;

    rig->fake.start = FAKE_START_TIMES_OUT;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_TIMEOUT);
    wait_until_gone(rig);
    assert_int_equal(rig->cuts, 0); /* nobody could have been connected */
}

static void a_row_that_cannot_be_written_starts_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    static const struct str bad_layer[] = { STR_INIT("not hex") };

    rig->want.layers = bad_layer; /* the plan is refused before the row is written */
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INTERNAL);
    assert_int_equal(rig->fake.starts, 0);
    check_nothing_is_left(rig);
}

static void a_timeout_out_of_range_is_invalid(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;

    rig->want.timeout_s = 0;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INVALID);
    rig->want.timeout_s = LIMIT_TIMEOUT_S + 1;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INVALID);
    assert_int_equal(rig->fake.starts, 0);
}

static void an_environment_that_is_too_large_is_a_limit_and_starts_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    static char value[LIMIT_ENV_BYTES];
    struct pair env = { .name = STR("A"), .value = str_of(value, sizeof value) };

    memset(value, 'x', sizeof value);
    rig->want.envs = &env;
    rig->want.env_count = 1;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    assert_int_equal(rig->fake.starts, 0);
    env.value.len--;
    rig_create(rig);
}

static void the_limit_counts_those_that_are_starting(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;

    rig->config.sandboxes_max = 2;
    rig_start(rig);
    struct sandbox_info first = rig_create(rig);
    rig_create(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    MUST(sandbox_kill(rig->all, TEAM, first.id, "request", &err));
    rig_create(rig);
    assert_int_equal(rig_held_count(rig), 2);
}

struct creator {
    struct rig *rig;
    struct arena arena;
    struct sandbox_info info;
    struct err err;
    bool ok;
};

static void *create_one(void *argument)
{
    struct creator *creator = argument;

    arena_init(&creator->arena);
    creator->ok =
        sandbox_create(creator->rig->all, &creator->rig->want, &creator->arena, &creator->info, &creator->err);
    return NULL;
}

static void one_that_is_starting_is_seen_by_nobody(void **state)
{
    struct rig *rig = *state;
    struct creator creator = { .rig = rig };
    struct sandbox_info got, *list;
    pthread_t thread;
    size_t count;

    rig_shut_gate(rig, true);
    assert_int_equal(pthread_create(&thread, NULL, create_one, &creator), 0);
    rig_wait_at_gate(rig, 1);
    struct str id = str_from(rig->fake.last_plan.id);
    assert_int_equal(rig_rows(rig), 1);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    MUST_FAIL(sandbox_get(rig->all, TEAM, id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, id, "request", &err), ERR_NOT_FOUND);
    assert_null(sandbox_find(rig->all, id));
    rig_shut_gate(rig, false);
    pthread_join(thread, NULL);
    assert_true(creator.ok);
    MUST(sandbox_get(rig->all, TEAM, id, &rig->arena, &got, &err));
    arena_done(&creator.arena);
}

static void one_that_dies_while_starting_was_never_there(void **state)
{
    struct rig *rig = *state;
    struct creator creator = { .rig = rig };
    pthread_t thread;

    rig_shut_gate(rig, true);
    assert_int_equal(pthread_create(&thread, NULL, create_one, &creator), 0);
    rig_wait_at_gate(rig, 1);
    rig->fake.driver.exited(rig->fake.driver.exited_context, rig->fake.last_plan.id, EXIT_PLAIN);
    rig_shut_gate(rig, false);
    pthread_join(thread, NULL);
    assert_false(creator.ok);
    assert_int_equal(creator.err.kind, ERR_UNAVAILABLE);
    check_nothing_is_left(rig);
    arena_done(&creator.arena);
}

static void many_are_created_and_killed_at_once(void **state)
{
    struct rig *rig = *state;
    struct creator creators[16];
    pthread_t threads[16];

    for (size_t i = 0; i < COUNT_OF(creators); i++) {
        creators[i] = (struct creator){ .rig = rig };
        assert_int_equal(pthread_create(&threads[i], NULL, create_one, &creators[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(creators); i++) {
        pthread_join(threads[i], NULL);
        assert_true(creators[i].ok);
    }
    assert_int_equal(rig_held_count(rig), 16);
    for (size_t i = 0; i < COUNT_OF(creators); i++) {
        MUST(sandbox_kill(rig->all, TEAM, creators[i].info.id, "request", &err));
        arena_done(&creators[i].arena);
    }
    check_nothing_is_left(rig);
}

/* ---- kill ---- */

/* Between end.c and the store. */
static struct {
    atomic_int failures;
    atomic_bool waits;
} removing;

bool __real_store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err);
bool __wrap_store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err);

bool __wrap_store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err)
{
    while (removing.waits)
        usleep(500);
    if (removing.failures) {
        removing.failures--;
        return err_set(err, ERR_FULL, "no room");
    }
    return __real_store_sandbox_remove(store, id, event, err);
}

static unsigned stops_of(struct rig *rig)
{
    pthread_mutex_lock(&rig->fake.lock);
    unsigned stops = rig->fake.stops;
    pthread_mutex_unlock(&rig->fake.lock);
    return stops;
}

static void a_kill_cuts_connections_before_it_ends_processes(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;
    struct sandbox *sb = sandbox_find(rig->all, info.id);

    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    assert_false(sandbox_is_routable(sb));
    sandbox_unref(sb);
    check_nothing_is_left(rig);
    CHECK_STR(str_from(rig->cut_id), info.id);
    assert_true(rig->cut_while_alive);
    assert_int_equal(rig->cuts, 1);
    check_events(rig, info.id, "created killed");
    assert_true(reason_is(rig, info.id, "request"));
    MUST_FAIL(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_NOT_FOUND);
}

struct killer {
    struct rig *rig;
    struct str id;
    bool ok;
    struct err err;
};

static void *kill_one(void *argument)
{
    struct killer *killer = argument;

    killer->ok = sandbox_kill(killer->rig->all, TEAM, killer->id, "request", &killer->err);
    return NULL;
}

static void of_kills_at_the_same_time_all_succeed_or_find_it_gone(void **state)
{
    struct rig *rig = *state;
    struct killer killers[8];
    pthread_t threads[8];
    unsigned succeeded = 0;

    struct sandbox_info info = rig_create(rig);
    for (size_t i = 0; i < COUNT_OF(killers); i++) {
        killers[i] = (struct killer){ .rig = rig, .id = info.id };
        assert_int_equal(pthread_create(&threads[i], NULL, kill_one, &killers[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(killers); i++) {
        pthread_join(threads[i], NULL);
        succeeded += killers[i].ok;
        if (!killers[i].ok)
            assert_int_equal(killers[i].err.kind, ERR_NOT_FOUND);
    }
    assert_true(succeeded >= 1);
    rig_wait_ended(rig);
    assert_int_equal(rig->fake.stops, 1);
    assert_int_equal(rig->cuts, 1);
    check_events(rig, info.id, "created killed");
}

static void a_kill_is_answered_before_the_driver_has_ended_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got, *list;
    size_t count;

    rig_shut_stop_gate(rig, true);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    assert_int_equal(rig_rows(rig), 0); /* so no crash brings it back */
    check_events(rig, info.id, "created killed");
    assert_null(sandbox_find(rig->all, info.id));
    MUST_FAIL(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 60, DEADLINE_SET, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_NOT_FOUND);
    rig_wait_at_stop_gate(rig, 1);
    assert_true(rig_holds(rig, info.id));
    assert_true(sandboxes_are_ending(rig->all));
    assert_int_equal(rig->cuts, 1);
    rig_shut_stop_gate(rig, false);
    check_nothing_is_left(rig);
    check_events(rig, info.id, "created killed");
}

static void a_front_that_dies_after_a_kill_leaves_the_rest_to_the_next_one(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig_shut_stop_gate(rig, true);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    rig_stop(rig);
    assert_true(rig_holds(rig, info.id)); /* keeper was never told */
    rig_start(rig);
    check_nothing_is_left(rig);
    check_events(rig, info.id, "created killed");
}

static void what_the_driver_fails_to_end_is_tried_again_and_seen_by_nobody(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    struct sandbox_info info = rig_create(rig), got;
    rig->fake.stop_failures = 2;
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    for (unsigned stops = 1; stops <= 2; stops++) {
        while (stops_of(rig) < stops)
            usleep(500);
        assert_true(rig_holds(rig, info.id));
        MUST_FAIL(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
        MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_NOT_FOUND);
        rig_turn(rig, RETRY_MS);
    }
    check_nothing_is_left(rig);
    assert_int_equal(rig->cuts, 1);
    check_events(rig, info.id, "created killed");
}

static void a_row_that_cannot_be_removed_goes_once_the_driver_has_ended_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    removing.failures = 1;
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    assert_false(rig_holds(rig, info.id)); /* before the answer: its row would bring it back */
    check_nothing_is_left(rig);
    assert_int_equal(rig->cuts, 1);
    assert_true(rig->cut_while_alive);
    check_events(rig, info.id, "created killed");
}

static void a_kill_that_neither_store_nor_driver_does_fails_and_is_tried_again(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    struct sandbox_info info = rig_create(rig), got;
    removing.failures = 1;
    rig->fake.stop_failures = 1;
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_UNAVAILABLE);
    assert_int_equal(rig_rows(rig), 1);
    MUST_FAIL(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 60, DEADLINE_SET, &rig->arena, &got, &err), ERR_CONFLICT);
    rig_turn(rig, RETRY_MS);
    check_nothing_is_left(rig);
    check_events(rig, info.id, "created killed");
}

static void a_kill_beside_another_waits_for_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    struct killer killers[2] = { { .rig = rig, .id = info.id }, { .rig = rig, .id = info.id } };
    pthread_t threads[2];

    removing.waits = true;
    for (size_t i = 0; i < COUNT_OF(killers); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, kill_one, &killers[i]), 0);
    for (struct sandbox *sb; (sb = sandbox_find(rig->all, info.id)); usleep(500))
        sandbox_unref(sb);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_TIMEOUT); /* while the store hangs */
    removing.waits = false;
    for (size_t i = 0; i < COUNT_OF(killers); i++) {
        pthread_join(threads[i], NULL);
        assert_true(killers[i].ok || killers[i].err.kind == ERR_TIMEOUT);
    }
    assert_true(killers[0].ok || killers[1].ok);
    check_nothing_is_left(rig);
    check_events(rig, info.id, "created killed");
}

static void a_guest_that_takes_long_to_die_keeps_its_place(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    rig->config.sandboxes_max = 1;
    rig_start(rig);
    struct sandbox_info info = rig_create(rig);
    rig->fake.stop_sticks = true;
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    rig_wait_ended(rig); /* nothing waits for it any more… */
    assert_in_range(rig->fake.stop_patience_ms, 1, 1000);
    assert_int_equal(rig->cuts, 1);
    assert_true(rig_holds(rig, info.id));
    uint64_t began_ms = clock_mono_ms();
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT); /* …no create either */
    assert_true(clock_mono_ms() - began_ms < 1000);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_NOT_FOUND);
    rig->fake.stop_sticks = false;
    rig_exit(rig, info.id);
    wait_until_gone(rig);
    while (rig->fake.stop_patience_ms)
        usleep(500);
    check_events(rig, info.id, "created killed");
    assert_true(reason_is(rig, info.id, "request"));
}

static void one_that_is_still_dying_is_not_found_alive_by_the_next_front(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig->fake.stop_sticks = true;
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    rig_wait_ended(rig);
    rig_stop(rig);
    rig_start(rig);
    assert_null(sandbox_find(rig->all, info.id));
    assert_int_equal(rig_rows(rig), 0);
    rig->fake.stop_sticks = false;
    rig_exit(rig, info.id);
    wait_until_gone(rig);
}

static void a_create_at_the_limit_waits_for_the_place_of_one_that_was_killed(void **state)
{
    struct rig *rig = *state;
    pthread_t thread;

    rig->config.sandboxes_max = 1;
    rig_start(rig);
    for (int round = 0; round < 20; round++) { /* as a client that kills and creates again */
        struct sandbox_info info = rig_create(rig);
        MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    }
    struct sandbox_info info = rig_create(rig);
    struct creator creator = { .rig = rig };
    rig_shut_stop_gate(rig, true);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    rig_wait_at_stop_gate(rig, 1);
    unsigned starts = rig->fake.starts;
    assert_int_equal(pthread_create(&thread, NULL, create_one, &creator), 0);
    usleep(50000);
    assert_int_equal(rig->fake.starts, starts); /* its place is taken until it is gone */
    rig_shut_stop_gate(rig, false);
    pthread_join(thread, NULL);
    assert_true(creator.ok);
    arena_done(&creator.arena);
}

static void a_create_does_not_wait_for_the_place_of_another_key(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    rig->config.per_key_max = 1;
    rig_start(rig);
    rig->want.key_id = STR("k1");
    rig_create(rig);
    rig->want.key_id = STR("k2");
    struct sandbox_info info = rig_create(rig);
    rig_shut_stop_gate(rig, true);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    rig->want.key_id = STR("k1");
    uint64_t began_ms = clock_mono_ms();
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT);
    assert_true(clock_mono_ms() - began_ms < 1000);
    rig->want.key_id = STR("k2"); /* and for that of its own only for a while */
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT);
    rig_shut_stop_gate(rig, false);
    rig_wait_ended(rig);
    rig_create(rig);
}

static void of_many_that_are_killed_some_die_at_a_time(void **state)
{
    struct rig *rig = *state;
    struct str ids[100];

    for (size_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = rig_create(rig).id;
    rig_shut_stop_gate(rig, true);
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        MUST(sandbox_kill(rig->all, TEAM, ids[i], "request", &err));
    assert_int_equal(rig_rows(rig), 0);
    rig_wait_at_stop_gate(rig, LIMIT_ENDS);
    rig_turn(rig, 0); /* all of the loop's work is done… */
    assert_int_equal(rig->fake.at_stop_gate_count, LIMIT_ENDS);
    assert_int_equal(rig->cuts, COUNT_OF(ids)); /* …and the connections of all are cut */
    rig_shut_stop_gate(rig, false);
    check_nothing_is_left(rig);
    assert_int_equal(rig->fake.stops, COUNT_OF(ids));
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        check_events(rig, ids[i], "created killed");
}

static void of_many_that_are_killed_another_teams_does_not_wait_for_all(void **state)
{
    struct rig *rig = *state;
    struct str ids[2 * LIMIT_ENDS];

    for (size_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = rig_create(rig).id;
    rig->want.team_id = STR("others");
    struct sandbox_info theirs = rig_create(rig);
    char id[LIMIT_ID_BYTES];
    snprintf(id, sizeof id, "%.*s", STR_ARG(theirs.id));
    rig->fake.noted_id = id;
    rig_shut_stop_gate(rig, true);
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        MUST(sandbox_kill(rig->all, TEAM, ids[i], "request", &err));
    MUST(sandbox_kill(rig->all, STR("others"), theirs.id, "request", &err));
    rig_wait_at_stop_gate(rig, LIMIT_ENDS);
    rig_turn(rig, 0);
    rig_shut_stop_gate(rig, false);
    check_nothing_is_left(rig);
    assert_int_equal(rig->fake.stops, COUNT_OF(ids) + 1);
    assert_int_equal(rig->fake.stops_before_noted, 1); /* the first place that is free is theirs */
}

static void one_that_dies_by_itself_is_gone_with_a_reason(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig_exit(rig, info.id);
    wait_until_gone(rig);
    check_events(rig, info.id, "created killed");
    assert_true(reason_is(rig, info.id, "exited"));
    CHECK_STR(str_from(rig->cut_id), info.id);
    struct err first;
    if (!sandbox_kill(rig->all, TEAM, info.id, "request", &first)) /* may still meet the last step of its end */
        assert_int_equal(first.kind, ERR_NOT_FOUND);
    MUST_FAIL(sandbox_kill(rig->all, TEAM, info.id, "request", &err), ERR_NOT_FOUND);
    rig->fake.driver.exited(rig->fake.driver.exited_context, "iunknown", EXIT_PLAIN); /* says nothing to us */
}

static void one_whose_guestd_had_no_memory_left_says_so(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig->fake.exit_cause = EXIT_NO_MEMORY;
    rig_exit(rig, info.id);
    wait_until_gone(rig);
    assert_true(reason_is(rig, info.id, "out of memory"));
}

/* ---- deadlines ---- */

static void a_deadline_ends_the_sandbox(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    struct sandbox_info info = rig_create(rig);
    rig_turn(rig, 3600 * 1000 - 1);
    assert_true(rig_holds(rig, info.id));
    assert_int_equal(rig->cuts, 0);
    rig_turn(rig, 2); /* it is rounded up to a whole millisecond */
    wait_until_gone(rig);
    assert_true(clock_wall_us() >= info.deadline_us);
    assert_true(reason_is(rig, info.id, "timeout"));
    assert_int_equal(rig->cuts, 1);
    assert_true(rig->cut_while_alive);
}

static void deadlines_end_sandboxes_in_their_own_order(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    struct sandbox_info late = rig_create(rig);
    rig->want.timeout_s = 60;
    struct sandbox_info early = rig_create(rig);
    rig_turn(rig, 60 * 1000);
    while (rig_holds(rig, early.id))
        usleep(2000);
    MUST(sandbox_get(rig->all, TEAM, late.id, &rig->arena, &got, &err));
}

static void a_deadline_can_be_set_both_ways_and_extended_one_way(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;
    struct sandbox_row *rows;
    size_t count;

    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 10, DEADLINE_EXTEND, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, info.deadline_us); /* identical, not nearly */
    check_events(rig, info.id, "created");
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 7200, DEADLINE_EXTEND, &rig->arena, &got, &err));
    assert_true(got.deadline_us > info.deadline_us);
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 100, DEADLINE_SET, &rig->arena, &got, &err));
    assert_true(got.deadline_us < info.deadline_us);
    check_events(rig, info.id, "created updated updated");
    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    assert_int_equal(rows[0].deadline_us, got.deadline_us);
}

static void on_disk(struct rig *rig, const char *script)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(rig->disk.path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, script, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void a_deadline_that_cannot_be_written_down_is_an_error_and_changes_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got, kept;

    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 7200, DEADLINE_SET, &rig->arena, &kept, &err));
    on_disk(rig, "CREATE TRIGGER refuse BEFORE UPDATE ON sandboxes BEGIN SELECT RAISE(ABORT, 'not now'); END");
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 100, DEADLINE_SET, &rig->arena, &got, &err), ERR_CONFLICT);
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 9000, DEADLINE_EXTEND, &rig->arena, &got, &err),
              ERR_CONFLICT);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, kept.deadline_us);
    check_events(rig, info.id, "created updated");
    on_disk(rig, "DROP TRIGGER refuse");
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 100, DEADLINE_SET, &rig->arena, &got, &err));
    assert_true(got.deadline_us < kept.deadline_us);
    check_events(rig, info.id, "created updated updated");
}

/* Between lifecycle.c and the store: the first write waits until the second one has failed. */
static struct {
    bool on;
    atomic_int writes;
    sem_t first_is_here, go_on;
} overtaking;

bool __real_store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                                   const struct event_row *event, struct err *err);
bool __wrap_store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                                   const struct event_row *event, struct err *err);

bool __wrap_store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                                   const struct event_row *event, struct err *err)
{
    if (overtaking.on && overtaking.writes++ > 0)
        return err_set(err, ERR_FULL, "no room");
    if (overtaking.on) {
        sem_post(&overtaking.first_is_here);
        sem_wait(&overtaking.go_on);
    }
    return __real_store_sandbox_deadline(store, id, deadline_us, revision, event, err);
}

struct setter {
    struct rig *rig;
    struct str id;
    int64_t deadline_us; /* what it was told; 0: that it failed */
};

static void *set_deadline(void *argument)
{
    struct setter *setter = argument;
    struct sandbox_info got;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    if (sandbox_set_deadline(setter->rig->all, TEAM, setter->id, 7200, DEADLINE_SET, &arena, &got, &err))
        setter->deadline_us = got.deadline_us;
    arena_done(&arena);
    return NULL;
}

static void a_deadline_that_was_kept_counts_when_a_later_one_has_failed_before(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;
    struct setter setter = { .rig = rig, .id = info.id };
    pthread_t first;

    overtaking.on = true;
    assert_int_equal(sem_init(&overtaking.first_is_here, 0, 0), 0);
    assert_int_equal(sem_init(&overtaking.go_on, 0, 0), 0);
    assert_int_equal(pthread_create(&first, NULL, set_deadline, &setter), 0);
    sem_wait(&overtaking.first_is_here);
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 9000, DEADLINE_SET, &rig->arena, &got, &err), ERR_FULL);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, info.deadline_us);
    sem_post(&overtaking.go_on);
    pthread_join(first, NULL);
    overtaking.on = false;
    assert_true(setter.deadline_us > info.deadline_us);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, setter.deadline_us);
    sem_destroy(&overtaking.first_is_here);
    sem_destroy(&overtaking.go_on);
}

static void no_deadline_is_later_than_the_longest_life(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info, got;

    rig->config.timeout_max_s = 1000;
    rig->want.timeout_s = 1000;
    rig_start(rig);
    info = rig_create(rig);
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, INT32_MAX, DEADLINE_SET, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, info.started_us + INT64_C(1000000000));
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, UINT64_MAX, DEADLINE_EXTEND, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, info.started_us + INT64_C(1000000000));
}

static void a_timeout_of_nothing_ends_it_now(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;

    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 0, DEADLINE_EXTEND, &rig->arena, &got, &err));
    assert_true(rig_holds(rig, info.id));
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 0, DEADLINE_SET, &rig->arena, &got, &err));
    check_nothing_is_left(rig);
    assert_true(reason_is(rig, info.id, "timeout"));
}

/* ---- recovery ---- */

static void a_running_sandbox_is_found_again_after_a_crash(void **state)
{
    struct rig *rig = *state;
    struct pair metadata[] = { { STR("k"), STR("v") } };
    struct sandbox_info got;

    rig->want.metadata = metadata;
    rig->want.metadata_count = 1;
    struct sandbox_info info = rig_create(rig);
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 5000, DEADLINE_SET, &rig->arena, &info, &err));
    rig_stop(rig);
    rig_start(rig);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.deadline_us, info.deadline_us);
    assert_int_equal(got.started_us, info.started_us);
    CHECK_STR(got.access_token, info.access_token);
    CHECK_STR(got.guestd_version, STR("0.6.13"));
    assert_int_equal(got.metadata_count, 1);
    CHECK_STR(got.metadata[0].value, STR("v"));
    assert_true(got.network.internet);
    struct sandbox *sb = sandbox_find(rig->all, info.id);
    assert_non_null(sb);
    sandbox_unref(sb);
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 6000, DEADLINE_SET, &rig->arena, &got, &err));
    rig_stop(rig);
    rig_start(rig);
    struct sandbox_info again;
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &again, &err)); /* revisions go on where they were */
    assert_int_equal(again.deadline_us, got.deadline_us);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    check_events(rig, info.id, "created updated updated killed");
    rig_wait_ended(rig);
    assert_int_equal(rig->cuts, 1);
}

static void a_deadline_that_passed_while_we_were_away_ends_it(void **state)
{
    struct rig *rig = *state;

    struct sandbox_info info = rig_create(rig);

    rig_stop(rig);
    rig_turn(rig, 3600 * 1000);
    assert_true(rig_holds(rig, info.id));
    rig_start(rig);
    wait_until_gone(rig);
    assert_true(reason_is(rig, info.id, "timeout"));
}

static void one_that_dies_while_it_is_being_found_again_is_noticed(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig_stop(rig);
    rig->fake.exits_after_list = info.id;
    rig_start(rig);
    wait_until_gone(rig);
    assert_true(reason_is(rig, info.id, "exited"));
}

static void what_only_the_store_remembers_is_forgotten(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;

    rig_stop(rig);
    rig_lose(rig, info.id);
    rig_start(rig);
    MUST_FAIL(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err), ERR_NOT_FOUND);
    check_nothing_is_left(rig);
    assert_true(reason_is(rig, info.id, "orphaned"));
}

static void what_only_the_driver_holds_is_ended(void **state)
{
    struct rig *rig = *state;

    rig_hold(rig, "istranger");
    rig_start(rig);
    check_nothing_is_left(rig);
    check_events(rig, STR("istranger"), "");
}

static void what_was_still_starting_is_ended(void **state)
{
    struct rig *rig = *state;
    struct sandbox_row row = { .id = STR("ihalf"),
                               .team_id = TEAM,
                               .template_id = STR("t"),
                               .alias = STR(""),
                               .guestd_version = STR(""),
                               .metadata = STR("{}") };
    struct sandbox_row never = row;

    never.id = STR("inever");
    MUST(store_sandbox_add(rig->disk.store, &row, &err));
    MUST(store_sandbox_add(rig->disk.store, &never, &err));
    rig_hold(rig, "ihalf");
    rig_start(rig);
    check_nothing_is_left(rig);
    check_events(rig, row.id, "");
}

static void a_leftover_that_cannot_be_ended_yet_is_tried_again(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    rig_hold(rig, "istranger");
    rig->fake.stop_failures = 1;
    rig->stays_busy = true;
    rig_start(rig);
    while (stops_of(rig) < 1)
        usleep(500);
    assert_true(rig_holds(rig, STR("istranger")));
    rig_turn(rig, RETRY_MS);
    rig_wait_empty(rig);
    assert_true(rig->is_shut); /* meanwhile: egress may have had its policy */
}

/* ---- shares ---- */

static void one_key_cannot_take_every_place(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;

    rig->config.per_key_max = 2;
    rig_start(rig);
    rig->want.key_id = STR("k1");
    struct sandbox_info first = rig_create(rig);
    rig_create(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    rig->want.key_id = STR("k2");
    rig_create(rig);
    rig->want.key_id = STR(""); /* an administrator */
    for (int i = 0; i < 3; i++)
        rig_create(rig);
    /* After a crash the same count. */
    rig_stop(rig);
    rig_start(rig);
    rig->want.key_id = STR("k1");
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    MUST(sandbox_kill(rig->all, TEAM, first.id, "request", &err));
    rig_create(rig);
}

/* ---- private ones ---- */

static void check_private(struct rig *rig, struct str id, struct str token)
{
    struct sandbox *sb = sandbox_find(rig->all, id);

    assert_non_null(sb);
    assert_true(sandbox_admits(sb, token));
    assert_false(sandbox_admits(sb, STR("")));
    assert_false(sandbox_admits(sb, STR("wrong")));
    CHECK_STR(sandbox_mask_host(sb), STR("inner:${PORT}"));
    sandbox_unref(sb);
}

static void a_private_sandbox_stays_private_across_a_crash(void **state)
{
    struct rig *rig = *state;

    struct sandbox_info open = rig_create(rig);
    assert_false(open.is_private);
    assert_int_equal(open.traffic_token.len, 0);
    rig->want.is_private = true;
    rig->want.mask_host = STR("inner:${PORT}");
    struct sandbox_info info = rig_create(rig), got;
    assert_true(info.is_private);
    assert_int_equal(info.traffic_token.len, 64);
    assert_false(str_eq(info.traffic_token, info.access_token));
    check_private(rig, info.id, info.traffic_token);
    rig_stop(rig);
    rig_start(rig);
    check_private(rig, info.id, info.traffic_token);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    CHECK_STR(got.traffic_token, info.traffic_token);
    struct sandbox *sb = sandbox_find(rig->all, open.id);
    assert_true(sandbox_admits(sb, STR("")));
    sandbox_unref(sb);
}

/* ---- run_code without a token ---- */

static void check_code_is_open(struct rig *rig, struct str id, bool open)
{
    struct sandbox *sb = sandbox_find(rig->all, id);

    assert_non_null(sb);
    assert_int_equal(sandbox_wants_token(sb, 49999), !open);
    assert_true(sandbox_wants_token(sb, 49983));
    sandbox_unref(sb);
}

static void whether_code_is_open_is_told_to_guestd_and_survives_a_crash(void **state)
{
    struct rig *rig = *state;

    struct sandbox_info closed = rig_create(rig);
    rig->want.open_code = true;
    struct sandbox_info open = rig_create(rig);
    assert_false(rig_setup_of(rig, closed.id).open_code);
    struct guestlink_setup told = rig_setup_of(rig, open.id);
    assert_true(told.open_code);
    assert_int_equal(told.access_token.len, 64);
    check_code_is_open(rig, closed.id, false);
    check_code_is_open(rig, open.id, true);
    rig_stop(rig);
    rig_start(rig);
    check_code_is_open(rig, closed.id, false);
    check_code_is_open(rig, open.id, true);
}

/* ---- signed links ---- */

/* As SDKs make them: "v1_" and base64 of SHA-256 of path:operation:user:token[:expiration], without padding. */
static struct str sign(struct rig *rig, const struct file_link *link, struct str token)
{
    struct str raw =
        arena_format(&rig->arena, "%.*s:%.*s:%.*s:%.*s%s%.*s", STR_ARG(link->path), STR_ARG(link->operation),
                     STR_ARG(link->user), STR_ARG(token), link->expiration.len ? ":" : "", STR_ARG(link->expiration));
    unsigned char hash[crypto_hash_sha256_BYTES];
    char text[64];

    crypto_hash_sha256(hash, (const unsigned char *)raw.at, raw.len);
    size_t len = base64_encode(str_of(hash, sizeof hash), text);
    while (text[len - 1] == '=')
        len--;
    return arena_format(&rig->arena, "v1_%.*s", (int)len, text);
}

static void check_link(struct rig *rig, const struct file_link *link, struct str want_id)
{
    uint32_t tried;
    struct sandbox *sb = sandbox_find_by_link(rig->all, link, &tried);

    CHECK_STR(sb ? str_from(sandbox_id(sb)) : STR(""), want_id);
    sandbox_unref(sb);
}

static void a_link_finds_the_sandbox_whose_token_signed_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info first = rig_create(rig), second = rig_create(rig);
    struct file_link link = { .path = STR("hello.txt"), .operation = STR("read"), .user = STR("user") };

    (void)first;
    link.signature = sign(rig, &link, second.access_token);
    check_link(rig, &link, second.id);
    link.expiration = STR("1800000000");
    check_link(rig, &link, STR("")); /* signed without one */
    link.signature = sign(rig, &link, second.access_token);
    check_link(rig, &link, second.id);
    link.operation = STR("write");
    check_link(rig, &link, STR(""));
    link = (struct file_link){ .path = STR(""), .operation = STR("write"), .user = STR("") };
    link.signature = sign(rig, &link, first.access_token);
    check_link(rig, &link, first.id);
    MUST(sandbox_kill(rig->all, TEAM, first.id, "request", &err));
    check_link(rig, &link, STR(""));
}

static void check_token(struct rig *rig, struct str token, struct str want_id)
{
    struct sandbox *sb = sandbox_find_by_token(rig->all, token);

    CHECK_STR(sb ? str_from(sandbox_id(sb)) : STR(""), want_id);
    sandbox_unref(sb);
}

static void a_token_finds_the_sandbox_that_it_opens(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info first = rig_create(rig), second = rig_create(rig);

    check_token(rig, first.access_token, first.id);
    check_token(rig, second.access_token, second.id);
    check_token(rig, STR(""), STR(""));
    check_token(rig, str_of(first.access_token.at, first.access_token.len - 1), STR(""));
    MUST(sandbox_kill(rig->all, TEAM, first.id, "request", &err));
    check_token(rig, first.access_token, STR(""));
}

static void a_token_finds_a_sandbox_that_was_there_before_us(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);

    rig_stop(rig);
    rig_start(rig);
    check_token(rig, info.access_token, info.id);
}

static void a_search_says_what_it_cost(void **state)
{
    struct rig *rig = *state;
    struct file_link link = { .operation = STR("read"), .signature = STR("v1_x") };
    uint32_t tried;

    for (int i = 0; i < 3; i++)
        rig_create(rig);
    assert_null(sandbox_find_by_link(rig->all, &link, &tried));
    assert_int_equal(tried, 0); /* not a signature */
    link.signature = STR("v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
    assert_null(sandbox_find_by_link(rig->all, &link, &tried));
    assert_int_equal(tried, 3);
}

static void a_signature_that_is_none_finds_nothing(void **state)
{
    static const char *const texts[] = {
        "",
        "v1_",
        "v2_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
        "gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
        "v1_x",
        "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6EAAAA",
        "v1_!!!!",
    };
    struct rig *rig = *state;

    rig_create(rig);
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        check_link(rig, &(struct file_link){ .operation = STR("read"), .signature = str_from(texts[i]) }, STR(""));
}

#define RUNNING(function) cmocka_unit_test_setup_teardown(function, rig_set_up, rig_tear_down)
#define MADE(function) cmocka_unit_test_setup_teardown(function, rig_set_up_only, rig_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        RUNNING(a_created_sandbox_is_known_everywhere),
        RUNNING(another_team_cannot_tell_a_sandbox_from_a_missing_one),
        RUNNING(a_start_that_fails_leaves_nothing),
        RUNNING(a_start_that_times_out_is_ended_afterwards),
        RUNNING(a_row_that_cannot_be_written_starts_nothing),
        RUNNING(a_timeout_out_of_range_is_invalid),
        RUNNING(an_environment_that_is_too_large_is_a_limit_and_starts_nothing),
        MADE(the_limit_counts_those_that_are_starting),
        RUNNING(one_that_is_starting_is_seen_by_nobody),
        RUNNING(one_that_dies_while_starting_was_never_there),
        RUNNING(many_are_created_and_killed_at_once),
        RUNNING(a_kill_cuts_connections_before_it_ends_processes),
        RUNNING(of_kills_at_the_same_time_all_succeed_or_find_it_gone),
        RUNNING(a_kill_is_answered_before_the_driver_has_ended_it),
        RUNNING(a_front_that_dies_after_a_kill_leaves_the_rest_to_the_next_one),
        RUNNING(what_the_driver_fails_to_end_is_tried_again_and_seen_by_nobody),
        RUNNING(a_row_that_cannot_be_removed_goes_once_the_driver_has_ended_it),
        RUNNING(a_kill_that_neither_store_nor_driver_does_fails_and_is_tried_again),
        RUNNING(a_kill_beside_another_waits_for_it),
        MADE(a_guest_that_takes_long_to_die_keeps_its_place),
        RUNNING(one_that_is_still_dying_is_not_found_alive_by_the_next_front),
        MADE(a_create_at_the_limit_waits_for_the_place_of_one_that_was_killed),
        MADE(a_create_does_not_wait_for_the_place_of_another_key),
        RUNNING(of_many_that_are_killed_some_die_at_a_time),
        RUNNING(of_many_that_are_killed_another_teams_does_not_wait_for_all),
        RUNNING(one_that_dies_by_itself_is_gone_with_a_reason),
        RUNNING(one_whose_guestd_had_no_memory_left_says_so),
        RUNNING(a_deadline_ends_the_sandbox),
        RUNNING(a_deadline_that_cannot_be_written_down_is_an_error_and_changes_nothing),
        RUNNING(a_deadline_that_was_kept_counts_when_a_later_one_has_failed_before),
        RUNNING(deadlines_end_sandboxes_in_their_own_order),
        RUNNING(a_deadline_can_be_set_both_ways_and_extended_one_way),
        MADE(no_deadline_is_later_than_the_longest_life),
        RUNNING(a_timeout_of_nothing_ends_it_now),
        RUNNING(a_running_sandbox_is_found_again_after_a_crash),
        RUNNING(a_deadline_that_passed_while_we_were_away_ends_it),
        RUNNING(one_that_dies_while_it_is_being_found_again_is_noticed),
        RUNNING(what_only_the_store_remembers_is_forgotten),
        MADE(what_only_the_driver_holds_is_ended),
        MADE(what_was_still_starting_is_ended),
        MADE(a_leftover_that_cannot_be_ended_yet_is_tried_again),
        MADE(one_key_cannot_take_every_place),
        RUNNING(a_private_sandbox_stays_private_across_a_crash),
        RUNNING(whether_code_is_open_is_told_to_guestd_and_survives_a_crash),
        RUNNING(a_link_finds_the_sandbox_whose_token_signed_it),
        RUNNING(a_token_finds_a_sandbox_that_was_there_before_us),
        RUNNING(a_search_says_what_it_cost),
        RUNNING(a_token_finds_the_sandbox_that_it_opens),
        RUNNING(a_signature_that_is_none_finds_nothing),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
