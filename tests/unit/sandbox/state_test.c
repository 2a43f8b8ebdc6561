/* The table of states, what recovery makes of a row in each of them, and of the rows of another server. */
#include <stdlib.h>

#include "rig.h"
#include "sandbox/inside.h"

#define TEAM STR("team")

/* Row: from. Column: to. The letters are those of the columns. */
static const char *const want_table[SANDBOX_STATE_COUNT] = {
    /*                        S R P p r s T E K G */
    [SANDBOX_STARTING] = "    . R P p . . T E . .", [SANDBOX_RUNNING] = "     . . P . . s T E . .",
    [SANDBOX_PAUSING] = "     . R . p . . T E . .", [SANDBOX_PAUSED] = "      . . . . r . T E . .",
    [SANDBOX_RESUMING] = "    . R . p . . T E . .", [SANDBOX_SNAPSHOTTING] = ". R . . . . T E . .",
    [SANDBOX_STOPPING] = "    . . . . . . . E . .", [SANDBOX_ENDING] = "      . . . . . . T . K .",
    [SANDBOX_KILLED] = "      . . . . . . . . . G", [SANDBOX_GONE] = "        . . . . . . . . . .",
};

static bool wanted(int from, int to)
{
    const char *row = want_table[from];

    row += strspn(row, " ");
    assert_int_equal(strlen(row), 2 * SANDBOX_STATE_COUNT - 1);
    return row[2 * to] != '.';
}

static void each_state_may_become_what_the_table_says_and_nothing_else(void **state)
{
    struct rig *rig = *state;
    struct sandbox *sb = sandbox_new(rig->all, STR("itable"));

    for (int from = 0; from < SANDBOX_STATE_COUNT; from++) {
        for (int to = 0; to < SANDBOX_STATE_COUNT; to++) {
            if (sandbox_may_enter((enum sandbox_state)from, (enum sandbox_state)to) != wanted(from, to))
                fail_msg("%s -> %s", sandbox_state_name((enum sandbox_state)from),
                         sandbox_state_name((enum sandbox_state)to));
            if (!wanted(from, to))
                continue;
            sb->state = (enum sandbox_state)from;
            sandbox_enter(sb, (enum sandbox_state)to);
            assert_int_equal(sb->state, to);
        }
    }
    sandbox_unref(sb);
}

/* From every state a sandbox can come to its end, in which nothing is left. */
static void every_state_leads_to_gone(void **state)
{
    (void)state;
    for (int from = 0; from < SANDBOX_STATE_COUNT; from++) {
        unsigned seen = BIT(from), before = 0;
        while (seen != before) {
            before = seen;
            for (int at = 0; at < SANDBOX_STATE_COUNT; at++)
                for (int to = 0; to < SANDBOX_STATE_COUNT; to++)
                    if ((seen & BIT(at)) && sandbox_may_enter((enum sandbox_state)at, (enum sandbox_state)to))
                        seen |= BIT(to);
        }
        assert_true(seen & BIT(SANDBOX_GONE));
    }
}

/* ---- recovery ---- */

static enum sandbox_state state_of(struct rig *rig, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
    const struct sandbox *sb = map_get(&rig->all->by_id, id);

    return sb ? sb->state : SANDBOX_GONE;
}

/* As if front had died while the row said this, and the driver held the sandbox in this way afterwards. */
static enum sandbox_state found_as(struct rig *rig, enum sandbox_row_state row, unsigned held)
{
    static const char *const name[SANDBOX_ROW_STATE_COUNT] = {
        [SANDBOX_ROW_STARTING] = "starting", [SANDBOX_ROW_RUNNING] = "running",
        [SANDBOX_ROW_PAUSING] = "pausing",   [SANDBOX_ROW_PAUSED] = "paused",
        [SANDBOX_ROW_RESUMING] = "resuming", [SANDBOX_ROW_SNAPSHOTTING] = "snapshotting",
    };
    struct sandbox_info info = rig_create(rig);
    char sql[128];

    rig_stop(rig);
    snprintf(sql, sizeof sql, "UPDATE sandboxes SET state = '%s'", name[row]);
    temp_store_by_hand(&rig->disk, sql);
    if (held == HELD_NOT)
        rig_lose(rig, info.id);
    else
        fake_hold_as(&rig->fake, info.id, (enum held_state)held);
    rig_start(rig);
    enum sandbox_state found = state_of(rig, info.id);
    assert_int_equal(rig_rows(rig), found == SANDBOX_GONE ? 0 : 1);
    assert_int_equal(rig_holds(rig, info.id), held != HELD_NOT && found != SANDBOX_GONE);
    if (found != SANDBOX_GONE) {
        enum held_state now = held == HELD_NOT ? HELD_PARKED : rig_held_state(rig, info.id);
        assert_true(found == SANDBOX_RUNNING ? now == HELD_RUNNING : now != HELD_RUNNING);
        snprintf(sql, sizeof sql, "SELECT COUNT(*) FROM sandboxes WHERE state = '%s'",
                 found == SANDBOX_RUNNING ? "running" : "paused");
        assert_int_equal(temp_store_ask(&rig->disk, sql), 1); /* the next front would find the same */
        MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    }
    rig_wait_ended(rig);
    assert_int_equal(rig_rows(rig), 0);
    assert_int_equal(rig_held_count(rig), 0);
    return found;
}

/* Nothing that the API has called paused is lost, nothing is there twice, and nothing that the driver holds is forgotten. */
static void what_is_found_again_goes_by_its_row_and_by_how_it_is_held(void **state)
{
    enum { E = SANDBOX_GONE, R = SANDBOX_RUNNING, P = SANDBOX_PAUSED };
    static const int want[SANDBOX_ROW_STATE_COUNT][HELD_NOT + 1] = {
        /* running, frozen, parked, parked with an image, not held */
        [SANDBOX_ROW_STARTING] = { E, E, E, E, E }, [SANDBOX_ROW_RUNNING] = { R, R, P, P, E },
        [SANDBOX_ROW_PAUSING] = { R, R, P, P, P },  [SANDBOX_ROW_PAUSED] = { P, P, P, P, P },
        [SANDBOX_ROW_RESUMING] = { R, P, P, P, P }, [SANDBOX_ROW_SNAPSHOTTING] = { R, R, P, P, E },
    };
    struct rig *rig = *state;

    for (int row = 0; row < SANDBOX_ROW_STATE_COUNT; row++)
        for (unsigned held = 0; held <= HELD_NOT; held++) {
            enum sandbox_state found = found_as(rig, (enum sandbox_row_state)row, held);
            if ((int)found != want[row][held])
                fail_msg("row %d, held %u: %s", row, held, sandbox_state_name(found));
        }
}

static void one_that_is_frozen_and_should_run_is_paused_if_it_does_not_thaw(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;

    rig_stop(rig);
    fake_hold_as(&rig->fake, info.id, HELD_FROZEN);
    (void)err_set(&rig->fake.pause_errs[PAUSE_THAW][0], ERR_UNAVAILABLE, "failed on purpose");
    rig_start(rig);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_true(got.is_paused && got.has_memory);
    assert_int_equal(rig_held_state(rig, info.id), HELD_FROZEN);
}

/* No deadline and no route; and it does not end because its processes have. */
static void a_paused_sandbox_outlives_its_deadline_and_its_processes(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got, *list;
    size_t count;

    rig_stop(rig);
    temp_store_by_hand(&rig->disk, "UPDATE sandboxes SET state = 'paused', deadline_us = 1");
    fake_hold_as(&rig->fake, info.id, HELD_PARKED);
    rig_start(rig);
    rig_exit(rig, info.id);
    struct sandbox_info other = rig_create(rig); /* its own sweep goes by the paused one */
    MUST(sandbox_set_deadline(rig->all, TEAM, other.id, 0, DEADLINE_SET, &rig->arena, &got, &err));
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    assert_null(sandbox_find(rig->all, info.id));
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    assert_true(list[0].is_paused);
    assert_int_equal(list[0].deadline_us, 1);
    struct err err;
    assert_false(sandbox_set_deadline(rig->all, TEAM, info.id, 60, DEADLINE_SET, &rig->arena, &got, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "is paused; resume it first"));
    assert_int_equal(rig_rows(rig), 1);
}

/* ---- two servers ---- */

static void copy_store(struct rig *from, struct rig *to)
{
    char command[512];

    snprintf(command, sizeof command, "rm -f %s/* && cp %s/* %s/", to->disk.dir, from->disk.dir, to->disk.dir);
    assert_int_equal(system(command), 0);
}

/* How many rows each of the two nodes has, sandboxes and running repeats. */
static void check_rows(struct rig *rig, int first, int second, int first_repeats)
{
    assert_int_equal(temp_store_ask(&rig->disk, "SELECT COUNT(*) FROM sandboxes WHERE node_id = 'node1'"), first);
    assert_int_equal(temp_store_ask(&rig->disk, "SELECT COUNT(*) FROM sandboxes WHERE node_id = 'node2'"), second);
    assert_int_equal(
        temp_store_ask(&rig->disk, "SELECT COUNT(*) FROM repeats WHERE node_id = 'node1' AND state = 'running'"),
        first_repeats);
}

static void two_servers_on_copies_of_a_store_leave_each_others_rows_alone(void **state)
{
    struct rig *first = *state, *second = calloc(1, sizeof *second);
    struct repeat_outcome outcome;
    enum repeat_verdict verdict;
    struct sandbox_info got;

    struct sandbox_info of_first = rig_create(first);
    rig_create(first);
    MUST(store_repeat_begin(first->disk.store, TEAM, STR("key"), STR("r"), STR("b"), &first->arena, &verdict, &outcome,
                            &err));
    rig_stop(first);
    rig_make(second);
    store_close(second->disk.store);
    second->disk.store = NULL;
    second->disk.node_id = "node2";
    copy_store(first, second);

    rig_start(second); /* its driver holds nothing of the first one's */
    check_rows(second, 2, 0, 1);
    MUST_FAIL(sandbox_get(second->all, TEAM, of_first.id, &second->arena, &got, &err), ERR_NOT_FOUND);
    struct sandbox_info of_second = rig_create(second);
    MUST(store_repeat_begin(second->disk.store, TEAM, STR("key"), STR("r"), STR("b"), &second->arena, &verdict,
                            &outcome, &err));
    assert_int_equal(verdict, REPEAT_RUNNING); /* the first may still be at it */
    rig_stop(second);

    copy_store(second, first);
    rig_start(first);
    check_rows(first, 2, 1, 0); /* what it was in the middle of itself is lost */
    MUST(sandbox_get(first->all, TEAM, of_first.id, &first->arena, &got, &err));
    MUST_FAIL(sandbox_get(first->all, TEAM, of_second.id, &first->arena, &got, &err), ERR_NOT_FOUND);
    rig_stop(first);

    copy_store(first, second);
    rig_start(second);
    check_rows(second, 2, 1, 0);
    MUST(sandbox_get(second->all, TEAM, of_second.id, &second->arena, &got, &err));
    rig_drop(second);
    free(second);
}

#define RUNNING(function) cmocka_unit_test_setup_teardown(function, rig_set_up, rig_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        RUNNING(each_state_may_become_what_the_table_says_and_nothing_else),
        CASE(every_state_leads_to_gone),
        RUNNING(what_is_found_again_goes_by_its_row_and_by_how_it_is_held),
        RUNNING(one_that_is_frozen_and_should_run_is_paused_if_it_does_not_thaw),
        RUNNING(two_servers_on_copies_of_a_store_leave_each_others_rows_alone),
        RUNNING(a_paused_sandbox_outlives_its_deadline_and_its_processes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
