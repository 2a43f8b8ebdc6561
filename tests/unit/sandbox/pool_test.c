/* The pool, with the fake driver and a clock that stands. */
#include <stdlib.h>

#include "rig.h"
#include "sandbox/sandbox.h"

#define TEAM STR("team")

enum { MOST = 8, LEAST = 2, REST_MS = 20, SHRINK_MS = 30000, FORGET_MS = 600000, RETRY_MS = 1000 }; /* as in pool.c */

static int set_up(void **state)
{
    struct rig *rig;

    (void)rig_set_up_only(state);
    rig = *state;
    rig->config.pool_most = MOST;
    rig->config.meminfo_fd = -1;
    rig_start(rig);
    rig_stand();
    return 0;
}

static struct pool_figures figures(struct rig *rig)
{
    return sandboxes_pool_figures(rig->all);
}

/* Polls; a test that never ends is caught by the runner's own limit. */
static void wait_ready(struct rig *rig, unsigned count)
{
    while (figures(rig).ready != count || workers_busy(rig->workers))
        usleep(500);
}

/* Creates are so far apart that nothing counts as a burst. */
static struct sandbox_info create_calmly(struct rig *rig)
{
    rig_turn(rig, 2000);
    struct sandbox_info info = rig_create(rig);
    rig_turn(rig, REST_MS);
    return info;
}

static void fill(struct rig *rig)
{
    (void)create_calmly(rig);
    wait_ready(rig, LEAST);
}

static unsigned starts(struct rig *rig)
{
    pthread_mutex_lock(&rig->fake.lock);
    unsigned count = rig->fake.starts;
    pthread_mutex_unlock(&rig->fake.lock);
    return count;
}

static void nothing_waits_before_the_first_create(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(figures(rig).most, MOST);
    assert_int_equal(figures(rig).ready, 0);
    assert_int_equal(rig_held_count(rig), 0);
}

static void the_second_create_starts_nothing(void **state)
{
    struct rig *rig = *state;
    struct pair envs[] = { { STR("A"), STR("1") } };
    struct sandbox_info got;

    fill(rig);
    rig_shut_gate(rig, true);
    rig->want.envs = envs;
    rig->want.env_count = 1;
    rig->want.team_id = STR("other");
    struct sandbox_info info = rig_create(rig);
    assert_int_equal(figures(rig).taken, 1);
    assert_int_equal(figures(rig).missed, 1);
    rig_shut_gate(rig, false);

    /* It is the caller's in every way, as one that was started for it. */
    assert_int_equal(info.id.len, 21);
    assert_int_equal(info.deadline_us - info.started_us, INT64_C(3600000000));
    MUST(sandbox_get(rig->all, STR("other"), info.id, &rig->arena, &got, &err));
    CHECK_STR(got.template_id, STR("tbase"));
    struct guestlink_setup setup = rig_setup_of(rig, info.id);
    CHECK_STR(setup.sandbox_id, info.id);
    CHECK_STR(setup.access_token, info.access_token);
    assert_int_equal(setup.env_count, 1);
    CHECK_STR(str_from(rig->policy_id), info.id);
    assert_int_equal(rig_rows(rig), 2);
    struct event_row *events;
    size_t count;
    MUST(store_event_list(rig->disk.store, info.id, &rig->arena, &events, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(events[0].type, STR("sandbox.lifecycle.created"));
}

static void what_waits_is_nobody_s(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info *list, got;
    size_t count;

    fill(rig);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(rig_rows(rig), 1);
    for (uint32_t i = 0; i < rig->fake.held_count; i++) {
        struct str id = str_from(rig->fake.held[i].id);
        if (str_eq(id, list[0].id))
            continue;
        MUST_FAIL(sandbox_get(rig->all, TEAM, id, &rig->arena, &got, &err), ERR_NOT_FOUND);
        MUST_FAIL(sandbox_kill(rig->all, TEAM, id, "request", &err), ERR_NOT_FOUND);
        assert_null(sandbox_find(rig->all, id));
    }
}

static void another_kind_is_not_given_out(void **state)
{
    static const struct str other[] = { STR_INIT("ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff") };
    struct rig *rig = *state;
    struct sandbox_want usual = rig->want;

    fill(rig);
    rig->want.layers = other; /* the template was built again */
    (void)rig_create(rig);
    rig->want = usual;
    rig->want.memory_mb *= 2;
    (void)rig_create(rig);
    rig->want = usual;
    rig->want.cpu_count++;
    (void)rig_create(rig);
    rig->want = usual;
    rig->want.is_temporary = true;
    (void)rig_create(rig);
    assert_int_equal(figures(rig).taken, 0);
}

static void one_that_has_died_is_not_given_out(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = create_calmly(rig);
    char dead[LIMIT_ID_BYTES] = "";

    wait_ready(rig, LEAST);
    for (uint32_t i = 0; i < rig->fake.held_count; i++)
        if (!str_eq(str_from(rig->fake.held[i].id), info.id))
            memcpy(dead, rig->fake.held[i].id, sizeof dead);
    rig_exit(rig, str_from(dead));
    assert_int_equal(figures(rig).failed, 1);
    for (int i = 0; i < 4; i++) {
        info = create_calmly(rig);
        assert_string_not_equal(arena_text(&rig->arena, info.id), dead);
    }
}

/* Its end was not told yet: guestd does not answer. */
static void a_create_whose_sandbox_is_dead_gets_a_new_one(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    rig->fake.start = FAKE_GUEST_DIES;
    (void)rig_create(rig); /* takes one of the first two… */
    rig_turn(rig, 2000);
    wait_ready(rig, LEAST); /* …and the next one to be taken is the other, then one whose guestd is dead */
    (void)rig_create(rig);
    rig->fake.start = FAKE_STARTS;
    uint64_t taken = figures(rig).taken;
    struct sandbox_info info = rig_create(rig);
    assert_int_equal(figures(rig).taken, taken + 1);
    assert_true(rig_holds(rig, info.id));
    assert_int_equal(rig_rows(rig), 4);
}

static void a_burst_is_prepared_for_and_forgotten_again(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 6; i++)
        (void)rig_create(rig);
    while (figures(rig).wanted != 6)
        usleep(500);
    rig_turn(rig, REST_MS);
    wait_ready(rig, 6);
    rig_turn(rig, SHRINK_MS);
    wait_ready(rig, 3);
    rig_turn(rig, SHRINK_MS);
    wait_ready(rig, LEAST);
    rig_turn(rig, SHRINK_MS);
    wait_ready(rig, LEAST);
    rig_turn(rig, FORGET_MS);
    wait_ready(rig, 0);
    while (figures(rig).kinds)
        usleep(500);
    assert_int_equal(rig_held_count(rig), 6);
}

static void there_are_never_more_than_the_operator_allows(void **state)
{
    static const struct str other[] = { STR_INIT("ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff") };
    struct rig *rig = *state;

    for (int i = 0; i < MOST + 3; i++)
        (void)rig_create(rig);
    rig_turn(rig, REST_MS);
    wait_ready(rig, MOST);
    /* Another kind gets its part. */
    rig->want.layers = other;
    (void)create_calmly(rig);
    rig_turn(rig, REST_MS);
    while (figures(rig).kinds != 2 || figures(rig).ready != MOST || workers_busy(rig->workers))
        usleep(500);
    uint64_t taken = figures(rig).taken;
    (void)rig_create(rig);
    assert_int_equal(figures(rig).taken, taken + 1);
}

/* Both want more than there is: what one gets is not taken from it again for the other. */
static void two_kinds_share_the_pool_and_leave_it_at_that(void **state)
{
    static const struct str other[] = { STR_INIT("ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff") };
    struct rig *rig = *state;

    (void)create_calmly(rig);
    rig->want.layers = other;
    for (int i = 0; i < MOST - 1; i++)
        (void)rig_create(rig);
    rig_turn(rig, REST_MS);
    wait_ready(rig, MOST);
    unsigned before = starts(rig);
    rig_turn(rig, 10000);              /* it looks at the memory now and then */
    while (workers_busy(rig->workers)) /* a needless start would be under way now */
        usleep(500);
    assert_int_equal(starts(rig), before);
    assert_int_equal(figures(rig).ready, MOST);
}

static void a_team_that_uses_many_kinds_keeps_the_last_few(void **state)
{
    enum { KINDS_OF_TEAM = 8 }; /* as in pool.c */
    struct rig *rig = *state;

    rig->want.team_id = STR("other");
    (void)create_calmly(rig);
    rig->want.team_id = TEAM;
    for (uint32_t i = 0; i < KINDS_OF_TEAM + 3; i++) {
        rig->want.memory_mb = 512 + i;
        (void)create_calmly(rig);
    }
    while (figures(rig).kinds != KINDS_OF_TEAM + 1)
        usleep(500);
}

/* The table is full: what a team adds is not at the cost of those who have fewer. */
static void a_team_that_uses_many_kinds_drives_out_its_own(void **state)
{
    enum { KINDS = 32, KINDS_OF_TEAM = 8 }; /* as in pool.c */
    static const struct str teams[] = { STR_INIT("a"), STR_INIT("b"), STR_INIT("c"), STR_INIT("d") };
    struct rig *rig = *state;
    uint32_t memory_mb = 512;

    for (size_t team = 0; team < COUNT_OF(teams); team++) {
        rig->want.team_id = teams[team];
        for (int i = 0; i < KINDS_OF_TEAM; i++) {
            rig->want.memory_mb = memory_mb++;
            (void)create_calmly(rig);
        }
    }
    while (figures(rig).kinds != KINDS)
        usleep(500);
    for (int i = 0; i < KINDS_OF_TEAM; i++) {
        rig->want.memory_mb = memory_mb++;
        (void)create_calmly(rig);
        while (figures(rig).kinds != KINDS || workers_busy(rig->workers))
            usleep(500);
    }
    /* Those of team "a" are the oldest of all, and still there: no kind is added for them. */
    rig->want.team_id = teams[0];
    for (uint32_t i = 0; i < KINDS_OF_TEAM; i++) {
        rig->want.memory_mb = 512 + i;
        (void)rig_create(rig);
        assert_int_equal(figures(rig).kinds, KINDS);
    }
}

static void a_kind_of_several_teams_is_not_driven_out_by_the_first(void **state)
{
    enum { KINDS_OF_TEAM = 8 }; /* as in pool.c */
    struct rig *rig = *state;
    uint32_t shared = rig->want.memory_mb;

    (void)create_calmly(rig);
    rig->want.team_id = STR("other");
    (void)create_calmly(rig);
    rig->want.team_id = TEAM;
    for (unsigned i = 1; i <= KINDS_OF_TEAM; i++) {
        rig->want.memory_mb = shared + i;
        (void)create_calmly(rig);
        while (figures(rig).kinds != 1 + i || workers_busy(rig->workers))
            usleep(500);
    }
    rig->want.memory_mb = shared;
    (void)rig_create(rig);
    assert_int_equal(figures(rig).kinds, 1 + KINDS_OF_TEAM);
}

static void a_start_that_is_given_up_leaves_nothing(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    rig->fake.start = FAKE_START_TIMES_OUT;
    (void)create_calmly(rig);
    for (int i = 0; i < 3; i++) {
        uint64_t failed = figures(rig).failed;
        rig_turn(rig, 60000);
        while (figures(rig).failed == failed || workers_busy(rig->workers))
            usleep(500);
    }
    assert_int_equal(rig_held_count(rig), 2 + figures(rig).ready);
}

static void a_guest_that_refuses_has_a_beginning_and_an_end(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    struct event_row *events;
    char waited[LEAST][LIMIT_ID_BYTES];
    size_t count, ended = 0;

    rig->fake.start = FAKE_GUEST_REFUSES;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INTERNAL);
    rig_turn(rig, REST_MS);
    wait_ready(rig, LEAST);
    assert_int_equal(rig_held_count(rig), LEAST);
    for (int i = 0; i < LEAST; i++)
        memcpy(waited[i], rig->fake.held[i].id, sizeof waited[i]);
    rig->fake.start = FAKE_STARTS;
    (void)rig_create(rig); /* one from the pool refuses, a new one does not */
    for (int i = 0; i < LEAST; i++) {
        MUST(store_event_list(rig->disk.store, str_from(waited[i]), &rig->arena, &events, &count, &err));
        assert_true(count == 0 || count == 2);
        ended += count == 2 && str_eq(events[1].type, STR("sandbox.lifecycle.killed"));
    }
    assert_int_equal(ended, 1);
}

static void write_memory(int fd, unsigned available_mb)
{
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_true(dprintf(fd, "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable: %u kB\n", available_mb << 10) >
                0);
    lseek(fd, 0, SEEK_SET);
}

static void it_is_empty_while_memory_is_short(void **state)
{
    struct rig *rig = *state;
    FILE *memory = tmpfile();

    rig_stop(rig);
    rig->config.meminfo_fd = fileno(memory);
    write_memory(fileno(memory), 8000);
    rig_start(rig);
    fill(rig);
    write_memory(fileno(memory), 1500);
    rig_turn(rig, 5000);
    wait_ready(rig, 0);
    assert_true(figures(rig).is_low);
    write_memory(fileno(memory), 1700); /* not much more: it stays so */
    rig_turn(rig, 5000);
    assert_true(figures(rig).is_low);
    write_memory(fileno(memory), 4000);
    rig_turn(rig, 5000);
    wait_ready(rig, LEAST);
    assert_false(figures(rig).is_low);
    rig_stop(rig);
    fclose(memory);
}

static void leave_pages(struct rig *rig, unsigned count)
{
    rig->fake.exit_cause = EXIT_LEFT_PAGES;
    for (unsigned i = 0; i < count; i++) {
        struct str id = rig_create(rig).id;
        MUST(sandbox_kill(rig->all, rig->want.team_id, id, "request", &err));
        rig_wait_ended(rig);
        fake_exit(&rig->fake, id);
        fake_exit(&rig->fake, id); /* counts once */
    }
}

static void a_team_that_leaves_pages_makes_no_sandboxes_while_memory_is_short(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    FILE *memory = tmpfile();
    struct str holders[3], of_a_build, paused;
    const struct resume_want resume = { .timeout_s = 60 };
    struct err why;
    bool resumed;

    rig_stop(rig);
    rig->config.meminfo_fd = fileno(memory);
    write_memory(fileno(memory), 8000);
    rig_start(rig);
    holders[0] = rig_create(rig).id;
    paused = rig_create(rig).id;
    MUST(sandbox_pause(rig->all, TEAM, paused, &(struct pause_want){ .reason = "request" }, &err));
    rig->want.team_id = STR("build");
    rig->want.paying_team_id = TEAM;
    of_a_build = rig_create(rig).id;
    rig->want.team_id = TEAM;
    leave_pages(rig, LIMIT_LEFT_OF_TEAM - 1);
    write_memory(fileno(memory), 1500);
    leave_pages(rig, 1);
    assert_false(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &why));
    assert_int_equal(why.kind, ERR_LIMIT);
    assert_non_null(strstr(why.message, "hold pages"));
    rig->want.team_id = STR("another build");
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    rig->want.paying_team_id = STR("");
    MUST_FAIL(sandbox_resume(rig->all, TEAM, paused, &resume, &rig->arena, &info, &resumed, &err), ERR_LIMIT);
    /* Others do, and so does this one when there is memory, when a minute has passed, or when nothing of it can hold pages. */
    rig->want.team_id = STR("other");
    (void)rig_create(rig);
    rig->want.team_id = TEAM;
    write_memory(fileno(memory), 8000);
    holders[1] = rig_create(rig).id;
    write_memory(fileno(memory), 1500);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    rig_turn(rig, 60 * 1000);
    holders[2] = rig_create(rig).id;
    leave_pages(rig, 1);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    for (size_t i = 0; i < COUNT_OF(holders); i++)
        MUST(sandbox_kill(rig->all, TEAM, holders[i], "request", &err));
    rig_wait_ended(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    MUST(sandbox_kill(rig->all, STR("build"), of_a_build, "request", &err));
    rig_wait_ended(rig);
    (void)rig_create(rig);
    MUST(sandbox_resume(rig->all, TEAM, paused, &resume, &rig->arena, &info, &resumed, &err));
    rig_stop(rig);
    fclose(memory);
}

static void a_sandbox_that_is_found_again_may_hold_its_teams_pages(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    FILE *memory = tmpfile();

    rig_stop(rig);
    rig->config.meminfo_fd = fileno(memory);
    write_memory(fileno(memory), 8000);
    rig_start(rig);
    struct str holder = rig_create(rig).id;
    rig_stop(rig);
    rig_start(rig);
    leave_pages(rig, LIMIT_LEFT_OF_TEAM);
    write_memory(fileno(memory), 1500);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    MUST(sandbox_kill(rig->all, TEAM, holder, "request", &err));
    rig_wait_ended(rig);
    (void)rig_create(rig);
    rig_stop(rig);
    fclose(memory);
}

static void a_small_machine_has_a_small_pool(void **state)
{
    struct rig *rig = *state;
    FILE *memory = tmpfile();

    rig_stop(rig);
    rig->config.meminfo_fd = fileno(memory);
    rig->config.pool_is_auto = true;
    assert_true(fprintf(memory, "MemTotal: 524288 kB\nMemAvailable: 400000 kB\n") > 0);
    fflush(memory);
    rig_start(rig);
    assert_int_equal(figures(rig).most, 4);
    rig_stop(rig);
    fclose(memory);
}

static void what_is_made_of_a_removed_layer_is_ended(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    MUST(sandbox_drop_snapshot(rig->all, rig->want.layers[0], &err));
    wait_ready(rig, 0);
    uint64_t taken = figures(rig).taken;
    (void)rig_create(rig);
    assert_int_equal(figures(rig).taken, taken);
}

static void none_waits_for_a_build_that_was_replaced_until_it_is_used_again(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    sandboxes_retire(rig->all, rig->want.layers, rig->want.layer_count - 1); /* other layers */
    rig_turn(rig, REST_MS);
    wait_ready(rig, LEAST);
    sandboxes_retire(rig->all, rig->want.layers, rig->want.layer_count);
    wait_ready(rig, 0);
    while (figures(rig).kinds)
        usleep(500);
    (void)create_calmly(rig);
    wait_ready(rig, LEAST);
}

static void what_is_expected_waits_before_the_first_create(void **state)
{
    struct rig *rig = *state;

    sandboxes_expect(rig->all, &rig->want, false);
    rig_turn(rig, REST_MS);
    wait_ready(rig, LEAST);
    (void)rig_create(rig);
    assert_int_equal(figures(rig).taken, 1);
}

static bool sandbox_is_listed(struct rig *rig, const char *id)
{
    struct sandbox_info got;
    struct err ignored;

    return sandbox_get(rig->all, TEAM, str_from(id), &rig->arena, &got, &ignored);
}

static void a_start_that_fails_is_tried_again_later(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    rig->fake.start = FAKE_START_FAILS;
    (void)create_calmly(rig);
    while (figures(rig).failed == 0 || workers_busy(rig->workers))
        usleep(500);
    unsigned tried = starts(rig);
    rig_turn(rig, RETRY_MS - REST_MS - 1);
    assert_int_equal(starts(rig), tried);
    rig->fake.start = FAKE_STARTS;
    rig_turn(rig, 2 * RETRY_MS);
    wait_ready(rig, LEAST);
}

static void those_that_die_together_are_replaced_soon(void **state)
{
    struct rig *rig = *state;
    char ids[1 + MOST][LIMIT_ID_BYTES];

    for (int i = 0; i < MOST; i++)
        (void)rig_create(rig);
    rig_turn(rig, REST_MS);
    wait_ready(rig, MOST);
    uint32_t count = 0;
    for (uint32_t i = 0; i < rig->fake.held_count; i++)
        if (!sandbox_is_listed(rig, rig->fake.held[i].id))
            memcpy(ids[count++], rig->fake.held[i].id, sizeof ids[0]);
    assert_int_equal(count, MOST);
    rig->fake.exit_cause = EXIT_PLAIN;
    for (uint32_t i = 0; i < count; i++)
        fake_exit(&rig->fake, str_from(ids[i]));
    assert_int_equal(figures(rig).failed, MOST);
    rig_turn(rig, RETRY_MS);
    wait_ready(rig, MOST);
}

static void a_closed_pool_ends_what_waits(void **state)
{
    struct rig *rig = *state;

    fill(rig);
    assert_false(sandboxes_pool_is_empty(rig->all));
    sandboxes_close_pool(rig->all);
    while (!sandboxes_pool_is_empty(rig->all))
        usleep(500);
    assert_int_equal(rig_held_count(rig), 1);
    (void)rig_create(rig); /* a new one */
    assert_int_equal(figures(rig).taken, 0);
}

static void the_next_front_ends_what_waits(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = create_calmly(rig);
    char before[1 + LEAST][LIMIT_ID_BYTES];

    wait_ready(rig, LEAST);
    rig_stop(rig);
    assert_int_equal(rig_held_count(rig), 1 + LEAST);
    for (int i = 0; i < 1 + LEAST; i++)
        memcpy(before[i], rig->fake.held[i].id, sizeof before[i]);
    rig_start(rig);
    assert_int_equal(rig_rows(rig), 1);
    for (int i = 0; i < 1 + LEAST; i++)
        assert_int_equal(rig_holds(rig, str_from(before[i])), str_eq(info.id, str_from(before[i])));
    assert_int_equal(rig_held_count(rig), 1);
}

static void a_limit_refuses_before_one_is_taken(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;

    rig_stop(rig);
    rig->config.sandboxes_max = 1;
    rig_start(rig);
    fill(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_LIMIT);
    assert_int_equal(figures(rig).ready, LEAST);
    assert_int_equal(figures(rig).taken, 0);
}

static void a_row_that_cannot_be_written_leaves_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info;
    char large[LIMIT_METADATA_BYTES * 8];
    struct pair metadata[] = { { STR("k"), str_of(large, sizeof large) } };

    fill(rig);
    memset(large, 1, sizeof large);
    rig->want.metadata = metadata;
    rig->want.metadata_count = 1;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err), ERR_INTERNAL);
    rig_turn(rig, 2000);
    wait_ready(rig, LEAST);
    assert_int_equal(rig_rows(rig), 1);
    assert_int_equal(rig_held_count(rig), 1 + LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_waits_before_the_first_create, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(the_second_create_starts_nothing, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(what_waits_is_nobody_s, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(another_kind_is_not_given_out, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(one_that_has_died_is_not_given_out, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_create_whose_sandbox_is_dead_gets_a_new_one, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_burst_is_prepared_for_and_forgotten_again, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(there_are_never_more_than_the_operator_allows, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(two_kinds_share_the_pool_and_leave_it_at_that, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_team_that_uses_many_kinds_keeps_the_last_few, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_team_that_uses_many_kinds_drives_out_its_own, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_kind_of_several_teams_is_not_driven_out_by_the_first, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_start_that_is_given_up_leaves_nothing, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_guest_that_refuses_has_a_beginning_and_an_end, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(it_is_empty_while_memory_is_short, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_team_that_leaves_pages_makes_no_sandboxes_while_memory_is_short, set_up,
                                        rig_tear_down),
        cmocka_unit_test_setup_teardown(a_sandbox_that_is_found_again_may_hold_its_teams_pages, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_small_machine_has_a_small_pool, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(what_is_made_of_a_removed_layer_is_ended, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(none_waits_for_a_build_that_was_replaced_until_it_is_used_again, set_up,
                                        rig_tear_down),
        cmocka_unit_test_setup_teardown(what_is_expected_waits_before_the_first_create, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_start_that_fails_is_tried_again_later, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(those_that_die_together_are_replaced_soon, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_closed_pool_ends_what_waits, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(the_next_front_ends_what_waits, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_limit_refuses_before_one_is_taken, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_row_that_cannot_be_written_leaves_nothing, set_up, rig_tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
