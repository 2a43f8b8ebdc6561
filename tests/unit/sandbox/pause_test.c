/* Paused and back: each step, what fails at each of them, and who comes at the same time. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "rig.h"
#include "sandbox/inside.h"

#define TEAM STR("team")

static struct guestlink_env some_envs[] = { { STR_INIT("A"), STR_INIT("1 \"é\"\n") }, { STR_INIT("B"), STR_INIT("") } };

static const struct pause_want with_memory = { .memory = true, .reason = "request" };
static const struct pause_want files_only = { .reason = "request" };

static enum sandbox_state state_of(struct rig *rig, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
    const struct sandbox *sb = map_get(&rig->all->by_id, id);

    return sb ? sb->state : SANDBOX_GONE;
}

static void wait_for_state(struct rig *rig, struct str id, enum sandbox_state state)
{
    struct timespec until = clock_wait_until(30000);
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
    const struct sandbox *sb;

    while ((sb = map_get(&rig->all->by_id, id)) ? sb->state != state : state != SANDBOX_GONE)
        if (pthread_cond_timedwait(&rig->all->changed, &rig->all->lock, &until) != 0)
            fail_msg("it is %s", sb ? sandbox_state_name(sb->state) : "gone");
}

static void wait_for_held(struct rig *rig, struct str id, enum held_state state)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->fake.lock);

    while (fake_find(&rig->fake, id)->state != state)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
}

static bool sandbox_is_writing(struct rig *rig, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
    const struct sandbox *sb = map_get(&rig->all->by_id, id);

    return sb && sb->is_writing;
}

static struct sandbox_row row_of(struct rig *rig, struct str id)
{
    struct sandbox_row *rows;
    size_t count;

    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    for (size_t i = 0; i < count; i++)
        if (str_eq(rows[i].id, id))
            return rows[i];
    fail_msg("no row");
    return rows[0];
}

static struct sandbox_info get(struct rig *rig, struct str id)
{
    struct sandbox_info info = { 0 };

    MUST(sandbox_get(rig->all, TEAM, id, &rig->arena, &info, &err));
    return info;
}

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

static void pause_it(struct rig *rig, struct str id, const struct pause_want *want)
{
    MUST(sandbox_pause(rig->all, TEAM, id, want, &err));
    assert_int_equal(state_of(rig, id), SANDBOX_PAUSED);
}

static bool resume_it(struct rig *rig, struct str id, enum resume_how how, struct sandbox_info *out)
{
    bool resumed = false;

    MUST(sandbox_resume(rig->all, TEAM, id, &(struct resume_want){ .timeout_s = 600, .how = how }, &rig->arena, out,
                        &resumed, &err));
    assert_int_equal(state_of(rig, id), SANDBOX_RUNNING);
    return resumed;
}

static void fail_call(struct rig *rig, enum pause_call call, bool memory, enum err_kind kind)
{
    pthread_mutex_lock(&rig->fake.lock);
    if (kind == ERR_NONE)
        rig->fake.pause_errs[call][memory] = (struct err){ 0 };
    else
        (void)err_set(&rig->fake.pause_errs[call][memory], kind, "failed on purpose");
    pthread_mutex_unlock(&rig->fake.lock);
}

static void shut(struct rig *rig, unsigned calls)
{
    pthread_mutex_lock(&rig->fake.lock);
    rig->fake.pause_gates = calls;
    pthread_cond_broadcast(&rig->fake.changed);
    pthread_mutex_unlock(&rig->fake.lock);
}

static void wait_at_pause_gate(struct rig *rig, unsigned count)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->fake.lock);

    while (rig->fake.at_pause_gate < count)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
}

static unsigned calls_of(struct rig *rig, enum pause_call call)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->fake.lock);

    return rig->fake.pause_calls[call];
}

/* Makes a sandbox that has an environment. */
static struct sandbox_info make(struct rig *rig)
{
    rig->fake.ready = (struct guestlink_ready){ COUNT_OF(some_envs), some_envs };
    return rig_create(rig);
}

/* ---- each way there and back ---- */

static void a_pause_freezes_and_a_resume_thaws(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got, *list;
    size_t count;

    rig_stand();
    rig_turn(rig, 5000);
    pause_it(rig, info.id, &with_memory);
    assert_int_equal(rig_held_state(rig, info.id), HELD_FROZEN);
    assert_int_equal(rig->cuts, 1);
    assert_null(sandbox_find(rig->all, info.id));
    assert_null(sandbox_find_by_token(rig->all, info.access_token));
    got = get(rig, info.id);
    assert_true(got.is_paused && got.has_memory && !got.was_silent);
    assert_int_equal(got.deadline_us, clock_wall_us()); /* that of the pause */
    assert_int_equal(got.started_us, info.started_us);
    CHECK_STR(got.access_token, info.access_token);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(sandboxes_count(rig->all, TEAM), 0);
    struct sandbox_row row = row_of(rig, info.id);
    assert_int_equal(row.state, SANDBOX_ROW_PAUSED);
    assert_true(row.has_memory);
    assert_int_equal(row.deadline_us, got.deadline_us);

    rig_turn(rig, 1000);
    unsigned policies = rig->policies_sent;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig_held_state(rig, info.id), HELD_RUNNING);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_RESUMED);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_NETWORK);
    assert_true(rig->policies_sent > policies);
    assert_false(got.is_paused);
    assert_int_equal(got.started_us, clock_wall_us()); /* a new run */
    assert_int_equal(got.deadline_us, got.started_us + INT64_C(600000000));
    CHECK_STR(got.access_token, info.access_token);
    row = row_of(rig, info.id);
    assert_int_equal(row.state, SANDBOX_ROW_RUNNING);
    assert_int_equal(row.deadline_us, got.deadline_us);
    CHECK_STR(row.envs, STR(""));
    struct sandbox *sb = sandbox_find(rig->all, info.id);
    assert_non_null(sb);
    sandbox_unref(sb);
    check_events(rig, info.id, "created paused resumed");
    assert_int_equal(rig->fake.starts, 1);
}

/* A deadline is a time of day for people, and so much time from now for the sweep. */
static void a_clock_that_was_set_during_a_pause_changes_no_deadline(void **state)
{
    struct rig *rig = *state;
    static const int64_t days[] = { 400, -400 };

    rig_stand();
    for (size_t i = 0; i < COUNT_OF(days) * 2; i++) {
        struct sandbox_info info = make(rig), got;
        bool memory = i % 2 == 0;
        pause_it(rig, info.id, memory ? &with_memory : &files_only);
        rig_set_wall(days[i / 2] * 24 * 3600 * INT64_C(1000000));
        rig_turn(rig, 10);
        assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
        assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
        assert_int_equal(got.started_us, clock_wall_us());
        assert_int_equal(got.deadline_us, clock_wall_us() + INT64_C(600000000));
        rig_turn(rig, 599000);
        assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
        rig_turn(rig, 2000);
        wait_for_state(rig, info.id, SANDBOX_GONE);
        check_events(rig, info.id, "created paused resumed killed");
    }
}

static void a_pause_of_files_parks_and_a_resume_starts_with_the_environment(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &files_only);
    assert_int_equal(rig_held_state(rig, info.id), HELD_PARKED);
    got = get(rig, info.id);
    assert_true(got.is_paused && !got.has_memory);
    assert_true(row_of(rig, info.id).envs.len > 0);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
    CHECK_STR(str_from(rig->fake.last_plan.layers[0]), rig->want.layers[0]);
    struct guestlink_setup setup = rig_setup_of(rig, info.id);
    CHECK_STR(setup.sandbox_id, info.id);
    CHECK_STR(setup.access_token, info.access_token);
    assert_int_equal(setup.env_count, 2);
    CHECK_STR(setup.envs[0].value, some_envs[0].value);
    CHECK_STR(row_of(rig, info.id).envs, STR(""));
}

static void what_is_frozen_is_written_to_disk_after_a_moment_and_comes_back_from_there(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    rig_stand();
    pause_it(rig, info.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS - 100);
    assert_int_equal(calls_of(rig, PAUSE_PARK), 0);
    rig_turn(rig, 100);
    wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
    assert_true(get(rig, info.id).has_memory);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED_IMAGE);
    assert_int_equal(rig_setup_of(rig, info.id).env_count, 2); /* then what it was told before holds again */
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_RESUMED);
}

static void one_that_cannot_be_written_stays_frozen_and_is_not_tried_again(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    rig_stand();
    fail_call(rig, PAUSE_PARK, true, ERR_INVALID);
    pause_it(rig, info.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
    while (workers_busy(rig->workers))
        usleep(100);
    rig_turn(rig, 3600 * 1000);
    assert_int_equal(calls_of(rig, PAUSE_PARK), 1);
    assert_int_equal(rig_held_state(rig, info.id), HELD_FROZEN);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
}

static void teams_take_turns_at_being_written(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info ours[3], theirs;

    for (size_t i = 0; i < COUNT_OF(ours); i++)
        ours[i] = make(rig);
    rig->want.team_id = STR("other");
    theirs = make(rig);
    rig->want.team_id = TEAM;
    rig_stand();
    shut(rig, BIT(PAUSE_PARK));
    for (size_t i = 0; i < COUNT_OF(ours); i++) {
        pause_it(rig, ours[i].id, &with_memory);
        rig_turn(rig, 10);
    }
    MUST(sandbox_pause(rig->all, STR("other"), theirs.id, &with_memory, &err));
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
    wait_at_pause_gate(rig, 1); /* the first of ours */
    rig_turn(rig, 10000);
    shut(rig, 0);
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        wait_for_held(rig, ours[i].id, HELD_PARKED_IMAGE);
    wait_for_held(rig, theirs.id, HELD_PARKED_IMAGE);
    CHECK_STR(str_from(rig->fake.parked[0]), ours[0].id);
    CHECK_STR(str_from(rig->fake.parked[1]), theirs.id);
    assert_int_equal(calls_of(rig, PAUSE_PARK), 4);
}

static void a_reboot_starts_from_the_files_whether_frozen_or_on_disk(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    rig_stand();
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        struct sandbox_info info = make(rig);
        pause_it(rig, info.id, &with_memory);
        if (on_disk) {
            rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
            wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
        }
        assert_true(resume_it(rig, info.id, RESUME_REBOOT, &got));
        assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
        assert_int_equal(rig_setup_of(rig, info.id).env_count, 2);
    }
}

static void a_resume_of_one_that_runs_extends_its_deadline(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    assert_false(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(got.deadline_us, info.deadline_us);        /* 600 s are less than it has */
    assert_false(resume_it(rig, info.id, RESUME_REBOOT, &got)); /* and it is not rebooted */
    assert_int_equal(rig->fake.starts, 1);
    bool resumed;
    MUST_FAIL(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = 1, .only_paused = true },
                             &rig->arena, &got, &resumed, &err),
              ERR_CONFLICT);
    MUST_FAIL(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = LIMIT_TIMEOUT_S + 1 },
                             &rig->arena, &got, &resumed, &err),
              ERR_INVALID);
    MUST_FAIL(sandbox_resume(rig->all, STR("other"), info.id, &(struct resume_want){ .timeout_s = 1 }, &rig->arena,
                             &got, &resumed, &err),
              ERR_NOT_FOUND);
}

static void a_second_pause_is_a_conflict_and_of_another_team_none(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    MUST_FAIL(sandbox_pause(rig->all, STR("other"), info.id, &with_memory, &err), ERR_NOT_FOUND);
    pause_it(rig, info.id, &with_memory);
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &err), ERR_CONFLICT);
    MUST_FAIL(sandbox_set_network(rig->all, TEAM, info.id, &rig->want.network, &rig->arena, &err), ERR_NOT_FOUND);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    pause_it(rig, info.id, &files_only);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    check_events(rig, info.id, "created paused resumed paused resumed");
}

static void the_log_and_the_metrics_go_on_after_a_pause(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    auto_buf struct buf out = buf_make(NULL, 4096);
    struct guestlink_log_line line = { .kind = GUESTLINK_LOG_STARTED, .pid = 7, .text = STR("ls") };
    struct sandbox_log *lines;
    size_t count = 0;

    pause_it(rig, info.id, &with_memory);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    guestlink_write_log(&out, &(struct guestlink_log){ .line_count = 1, .lines = &line });
    rig_say(rig, info.id, buf_str(&out));
    while (count == 0) {
        sandbox_logs(rig->all, TEAM, info.id, 0, 0, &rig->arena, &lines, &count);
        usleep(100);
    }
    CHECK_STR(lines[0].text, STR("ls"));
}

/* ---- a guestd that does not answer ---- */

static void a_silent_guest_is_paused_with_its_memory_and_comes_back_by_a_reboot_only(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    struct err err;
    bool resumed;

    rig->fake.guest = FAKE_GUEST_HANGS_UP;
    pause_it(rig, info.id, &with_memory);
    rig->fake.guest = FAKE_GUEST_ANSWERS;
    assert_true(get(rig, info.id).was_silent);
    assert_true(row_of(rig, info.id).was_silent);
    assert_false(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = 60 }, &rig->arena, &got,
                                &resumed, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_non_null(strstr(err.message, "reboot"));
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    assert_true(resume_it(rig, info.id, RESUME_REBOOT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
}

static void a_silent_guest_is_not_paused_without_its_memory_or_if_it_must_answer(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);

    rig->fake.guest = FAKE_GUEST_HANGS_UP;
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &files_only, &err), ERR_UNAVAILABLE);
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &(struct pause_want){ .memory = true, .must_answer = true }, &err),
              ERR_UNAVAILABLE);
    assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
    assert_int_equal(rig->cuts, 0); /* clients do not notice */
    assert_int_equal(calls_of(rig, PAUSE_FREEZE) + calls_of(rig, PAUSE_PARK), 0);
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_RUNNING);
    struct sandbox *sb = sandbox_find(rig->all, info.id);
    assert_non_null(sb);
    sandbox_unref(sb);
}

static void a_guest_that_is_too_old_to_prepare_is_frozen_and_never_written(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    rig_stand();
    rig->fake.guest = FAKE_GUEST_IS_OLD;
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &files_only, &err), ERR_UNAVAILABLE);
    pause_it(rig, info.id, &with_memory);
    assert_false(get(rig, info.id).was_silent);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS * 10);
    assert_int_equal(calls_of(rig, PAUSE_PARK), 0);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
}

/* ---- each step fails ---- */

/* It runs as before: its deadline, its row, its connections, its log. */
static void check_runs_on(struct rig *rig, const struct sandbox_info *info)
{
    struct sandbox_info got = get(rig, info->id);

    assert_int_equal(state_of(rig, info->id), SANDBOX_RUNNING);
    assert_int_equal(rig_held_state(rig, info->id), HELD_RUNNING);
    assert_false(got.is_paused);
    assert_int_equal(got.deadline_us, info->deadline_us);
    assert_int_equal(got.started_us, info->started_us);
    struct sandbox_row row = row_of(rig, info->id);
    assert_int_equal(row.state, SANDBOX_ROW_RUNNING);
    assert_int_equal(row.deadline_us, info->deadline_us);
    CHECK_STR(row.envs, STR(""));
    struct sandbox *sb = sandbox_find(rig->all, info->id);
    assert_non_null(sb);
    sandbox_unref(sb);
}

static void a_pause_that_the_driver_fails_leaves_it_running(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    static const enum err_kind kinds[] = { ERR_INVALID, ERR_UNAVAILABLE, ERR_FULL, ERR_TIMEOUT };

    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        fail_call(rig, PAUSE_FREEZE, false, kinds[i]);
        fail_call(rig, PAUSE_PARK, false, kinds[i]);
        MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &err), kinds[i]);
        check_runs_on(rig, &info);
        assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_PREPARE);
        assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_RESUMED);
        assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
        MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &files_only, &err), kinds[i]);
        check_runs_on(rig, &info);
    }
    check_events(rig, info.id, "created");
    rig->fake.pause_errs[PAUSE_FREEZE][0] = (struct err){ .kind = ERR_NOT_FOUND, .sys = ENOENT };
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &err), ERR_INTERNAL); /* not the caller's 404 */
    fail_call(rig, PAUSE_FREEZE, false, ERR_NONE);
    pause_it(rig, info.id, &with_memory);
}

/* The store refuses one state. */
static void refuse_state(struct rig *rig, const char *name)
{
    char sql[256];

    snprintf(sql, sizeof sql,
             "DROP TRIGGER IF EXISTS refuse; CREATE TRIGGER refuse BEFORE UPDATE ON sandboxes WHEN NEW.state = '%s' "
             "BEGIN SELECT RAISE(FAIL, 'failed on purpose'); END",
             name);
    temp_store_by_hand(&rig->disk, sql);
}

static void a_pause_that_the_store_cannot_write_leaves_it_running(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);

    refuse_state(rig, "pausing");
    assert_false(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &(struct err){ 0 }));
    check_runs_on(rig, &info);
    assert_int_equal(calls_of(rig, PAUSE_FREEZE), 0);
    refuse_state(rig, "paused");
    assert_false(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &(struct err){ 0 }));
    check_runs_on(rig, &info);
    assert_int_equal(calls_of(rig, PAUSE_THAW), 1);
}

/* There is no way back from there, and the next front would see it as paused. */
static void one_that_is_parked_is_paused_even_if_the_store_does_not_say_so(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    refuse_state(rig, "paused");
    pause_it(rig, info.id, &files_only);
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_PAUSING);
    rig_stop(rig);
    refuse_state(rig, "no such state");
    rig_start(rig);
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig_setup_of(rig, info.id).env_count, 2); /* which was in the row by then */
}

static void one_that_does_not_thaw_after_a_failed_pause_stays_paused(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    refuse_state(rig, "paused");
    fail_call(rig, PAUSE_THAW, false, ERR_UNAVAILABLE);
    assert_false(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &(struct err){ 0 }));
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    fail_call(rig, PAUSE_THAW, false, ERR_NONE);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
}

static void resume_fails(struct rig *rig, struct str id, enum resume_how how, enum err_kind kind)
{
    struct sandbox_info got;
    bool resumed;

    MUST_FAIL(sandbox_resume(rig->all, TEAM, id, &(struct resume_want){ .timeout_s = 60, .how = how }, &rig->arena,
                             &got, &resumed, &err),
              kind);
    assert_int_equal(state_of(rig, id), SANDBOX_PAUSED);
    assert_int_equal(row_of(rig, id).state, SANDBOX_ROW_PAUSED);
    assert_int_not_equal(rig_held_state(rig, id), HELD_RUNNING);
    assert_null(sandbox_find(rig->all, id));
}

static void a_resume_that_fails_leaves_it_paused_as_it_was(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    rig_stand();
    pause_it(rig, info.id, &with_memory);
    int64_t paused_us = get(rig, info.id).deadline_us;
    fail_call(rig, PAUSE_THAW, false, ERR_UNAVAILABLE);
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_UNAVAILABLE);
    fail_call(rig, PAUSE_THAW, false, ERR_NONE);
    rig->fake.guest = FAKE_GUEST_HANGS_UP; /* it was thawed, and is frozen again */
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_INTERNAL);
    rig->fake.guest = FAKE_GUEST_ANSWERS;
    refuse_state(rig, "running");
    struct err err;
    bool resumed;
    assert_false(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = 60 }, &rig->arena, &got,
                                &resumed, &err));
    assert_int_equal(rig_held_state(rig, info.id), HELD_FROZEN);
    refuse_state(rig, "no such state");
    got = get(rig, info.id);
    assert_true(got.is_paused && got.has_memory);
    assert_int_equal(got.deadline_us, paused_us);

    rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
    wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
    rig->fake.start = FAKE_START_IS_FULL;
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_FULL);
    rig->fake.start = FAKE_START_FAILS; /* ENOENT is not the caller's 404 */
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_INTERNAL);
    assert_int_equal(rig_held_state(rig, info.id), HELD_PARKED_IMAGE);
    rig->fake.start = FAKE_GUEST_DIES; /* restored, and frozen because guestd does not answer */
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_INTERNAL);
    assert_int_equal(rig_held_state(rig, info.id), HELD_FROZEN);
    rig->fake.start = FAKE_STARTS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    check_events(rig, info.id, "created paused resumed");
}

static void a_start_from_files_that_fails_leaves_the_files(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    static const enum fake_start ways[] = { FAKE_START_IS_FULL, FAKE_START_TIMES_OUT, FAKE_GUEST_DIES };
    static const enum err_kind kinds[] = { ERR_FULL, ERR_TIMEOUT, ERR_INTERNAL };

    pause_it(rig, info.id, &files_only);
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        rig->fake.start = ways[i];
        resume_fails(rig, info.id, RESUME_AS_KEPT, kinds[i]);
        assert_int_equal(rig_held_state(rig, info.id), HELD_PARKED);
    }
    rig->fake.start = FAKE_STARTS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig_setup_of(rig, info.id).env_count, 2);
}

/* Its end is told as well. */
static void one_that_the_driver_has_parked_by_itself_stays_paused(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &files_only);
    rig->fake.start = FAKE_GUEST_DIES;
    rig->fake.parks_by_itself = true;
    fail_call(rig, PAUSE_PARK, false, ERR_NOT_FOUND);
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_INTERNAL);
    rig->fake.driver.exited(rig->fake.driver.exited_context, info.id.at, EXIT_PLAIN);
    rig_turn(rig, 10000);
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    fail_call(rig, PAUSE_PARK, false, ERR_NONE);
    rig->fake.start = FAKE_STARTS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    rig_turn(rig, 10000);
    assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
}

/* "Perhaps it runs" is not a reason to forget its image. */
static void a_restore_that_the_driver_gives_up_leaves_the_image(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS + 1000);
    wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
    rig->fake.start = FAKE_START_GIVES_UP;
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_TIMEOUT);
    assert_int_equal(rig_held_state(rig, info.id), HELD_PARKED_IMAGE);
    assert_true(get(rig, info.id).has_memory);
    assert_true(row_of(rig, info.id).has_memory);
    resume_fails(rig, info.id, RESUME_REBOOT, ERR_TIMEOUT);
    assert_true(row_of(rig, info.id).has_memory);
    rig->fake.start = FAKE_STARTS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED_IMAGE);
}

/* A reboot ends its processes first. So they are gone even if the start fails, and the sandbox has no memory afterwards. */
static void a_reboot_that_fails_leaves_the_files_without_the_memory(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &with_memory);
    rig->fake.start = FAKE_START_IS_FULL;
    resume_fails(rig, info.id, RESUME_REBOOT, ERR_FULL);
    assert_false(get(rig, info.id).has_memory);
    assert_false(row_of(rig, info.id).has_memory);
    rig->fake.start = FAKE_STARTS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
}

static void one_that_the_driver_has_lost_is_gone_when_it_is_resumed(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    bool resumed;

    pause_it(rig, info.id, &with_memory);
    rig_lose(rig, info.id);
    MUST_FAIL(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = 60 }, &rig->arena, &got,
                             &resumed, &err),
              ERR_NOT_FOUND);
    assert_int_equal(rig_rows(rig), 0);
    wait_for_state(rig, info.id, SANDBOX_GONE);
    check_events(rig, info.id, "created paused killed");
}

static void a_frozen_one_that_dies_is_gone(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);

    pause_it(rig, info.id, &with_memory);
    rig_exit(rig, info.id);
    wait_for_state(rig, info.id, SANDBOX_GONE);
    check_events(rig, info.id, "created paused killed");
}

/* ---- at the same time ---- */

/* One call on a thread of its own. */
struct caller {
    struct rig *rig;
    struct str id;
    pthread_t thread;
    struct pause_want pause;
    struct resume_want resume;
    struct arena arena;
    struct sandbox_info info;
    bool ok, resumed;
    struct err err;
};

static void *run_pause(void *argument)
{
    struct caller *caller = argument;

    caller->ok = sandbox_pause(caller->rig->all, TEAM, caller->id, &caller->pause, &caller->err);
    return NULL;
}

static void *run_resume(void *argument)
{
    struct caller *caller = argument;

    arena_init(&caller->arena);
    caller->ok = sandbox_resume(caller->rig->all, TEAM, caller->id, &caller->resume, &caller->arena, &caller->info,
                                &caller->resumed, &caller->err);
    arena_done(&caller->arena);
    return NULL;
}

static void *run_kill(void *argument)
{
    struct caller *caller = argument;

    caller->ok = sandbox_kill(caller->rig->all, TEAM, caller->id, "request", &caller->err);
    return NULL;
}

static void *run_wake(void *argument)
{
    struct caller *caller = argument;
    struct sandbox *sb = sandbox_find_sleeping(caller->rig->all, caller->id);

    caller->ok = !sb || sandbox_wake(sb, &caller->err); /* NULL: another has woken it already */
    sandbox_unref(sb);
    return NULL;
}

static void begin(struct caller *caller, struct rig *rig, struct str id, void *(*run)(void *))
{
    caller->rig = rig;
    caller->id = id;
    assert_int_equal(pthread_create(&caller->thread, NULL, run, caller), 0);
}

static void end(struct caller *caller)
{
    pthread_join(caller->thread, NULL);
}

static void pauses_at_the_same_time_are_one(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller callers[4] = { 0 };

    for (int fails = 0; fails < 2; fails++) {
        fail_call(rig, PAUSE_FREEZE, false, fails ? ERR_NONE : ERR_FULL);
        shut(rig, BIT(PAUSE_FREEZE));
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            callers[i] = (struct caller){ .pause = with_memory };
            begin(&callers[i], rig, info.id, run_pause);
            if (i == 0)
                wait_at_pause_gate(rig, 1);
        }
        shut(rig, 0);
        unsigned ok = 0, late = 0;
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            end(&callers[i]);
            ok += callers[i].ok;
            late += !callers[i].ok && callers[i].err.kind == ERR_CONFLICT;
        }
        if (fails == 0)
            assert_int_equal(ok, 0);
        else
            assert_true(ok >= 1 && ok + late == COUNT_OF(callers)); /* who came after the end finds it paused */
    }
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    check_events(rig, info.id, "created paused");
}

static void resumes_at_the_same_time_are_one_start(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller callers[5] = { 0 };

    pause_it(rig, info.id, &files_only);
    rig_shut_gate(rig, true);
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        callers[i].resume.timeout_s = 100 * (i + 1);
        begin(&callers[i], rig, info.id, run_resume);
        if (i == 0)
            rig_wait_at_gate(rig, 1);
    }
    /* A reboot cannot join: nobody knows what the others get. */
    struct sandbox_info got;
    bool resumed;
    MUST_FAIL(sandbox_resume(rig->all, TEAM, info.id, &(struct resume_want){ .timeout_s = 1, .how = RESUME_REBOOT },
                             &rig->arena, &got, &resumed, &err),
              ERR_CONFLICT);
    rig_shut_gate(rig, false);
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        end(&callers[i]);
        assert_true(callers[i].ok);
    }
    assert_true(callers[0].resumed);
    assert_int_equal(rig->fake.starts, 2);
    got = get(rig, info.id);
    assert_true(got.deadline_us >= got.started_us + INT64_C(500000000)); /* the longest of them */
}

static void those_who_join_a_resume_that_fails_get_its_error(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller callers[2] = { 0 };

    pause_it(rig, info.id, &files_only);
    rig->fake.start = FAKE_START_IS_FULL;
    rig_shut_gate(rig, true);
    begin(&callers[0], rig, info.id, run_resume);
    rig_wait_at_gate(rig, 1);
    begin(&callers[1], rig, info.id, run_resume);
    usleep(2000); /* either it joins, or it comes after and fails by itself */
    rig_shut_gate(rig, false);
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        end(&callers[i]);
        assert_false(callers[i].ok);
        assert_int_equal(callers[i].err.kind, ERR_FULL);
    }
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
}

static void a_resume_waits_for_the_pause_that_is_under_way(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller pauser = { .pause = with_memory }, resumer = { .resume.timeout_s = 100 };

    shut(rig, BIT(PAUSE_FREEZE));
    begin(&pauser, rig, info.id, run_pause);
    wait_at_pause_gate(rig, 1);
    assert_true(get(rig, info.id).is_paused);
    assert_null(sandbox_find(rig->all, info.id));
    begin(&resumer, rig, info.id, run_resume);
    shut(rig, 0);
    end(&pauser);
    end(&resumer);
    assert_true(pauser.ok && resumer.ok && resumer.resumed);
    assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
    check_events(rig, info.id, "created paused resumed");
}

static void a_resume_waits_while_it_is_written_to_disk(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller resumer = { .resume.timeout_s = 100 };

    rig_stand();
    shut(rig, BIT(PAUSE_PARK));
    pause_it(rig, info.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
    wait_at_pause_gate(rig, 1);
    begin(&resumer, rig, info.id, run_resume);
    usleep(2000);
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    shut(rig, 0);
    end(&resumer);
    assert_true(resumer.ok);
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED_IMAGE);
}

/* A kill in every state: afterwards nothing is left, whoever was at it. */
static void check_gone(struct rig *rig, struct str id)
{
    wait_for_state(rig, id, SANDBOX_GONE);
    assert_int_equal(rig_rows(rig), 0);
    assert_int_equal(rig_held_count(rig), 0);
    MUST_FAIL(sandbox_pause(rig->all, TEAM, id, &with_memory, &err), ERR_NOT_FOUND);
}

static void a_paused_one_can_be_killed(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    for (int how = 0; how < 3; how++) {
        struct sandbox_info info = make(rig);
        pause_it(rig, info.id, how == 0 ? &files_only : &with_memory);
        if (how == 2) {
            rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
            wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
        }
        MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
        check_gone(rig, info.id);
        check_events(rig, info.id, "created paused killed");
    }
}

static void what_a_paused_one_takes_is_measured_once_it_is_on_disk(void **state)
{
    struct rig *rig = *state;
    struct str id = rig_create(rig).id, runs = rig_create(rig).id;
    struct sandbox_info info;

    pause_it(rig, id, &files_only);
    assert_int_equal(get(rig, id).sizes.files_bytes, 0);
    sandboxes_measure_paused(rig->all);
    sandboxes_measure_paused(rig->all); /* the driver has said that it does not change */
    assert_int_equal(rig->fake.pause_calls[PAUSE_MEASURE], 1);
    assert_int_equal(get(rig, id).sizes.files_bytes, 3000);
    assert_int_equal(get(rig, id).sizes.memory_bytes, 1000);
    assert_int_equal(get(rig, id).sizes.raw_bytes, 2000);
    assert_int_equal(get(rig, runs).sizes.files_bytes, 0);
    (void)resume_it(rig, id, RESUME_AS_KEPT, &info);
    assert_int_equal(get(rig, id).sizes.files_bytes, 0);
    /* The next pause is another one. */
    pause_it(rig, id, &files_only);
    assert_int_equal(get(rig, id).sizes.files_bytes, 0);
    sandboxes_measure_paused(rig->all);
    assert_int_equal(get(rig, id).sizes.files_bytes, 3000);
}

static void one_that_is_paused_for_long_goes_and_no_other(void **state)
{
    struct rig *rig = *state;
    struct str old = rig_create(rig).id, young = rig_create(rig).id, runs = rig_create(rig).id,
               back = rig_create(rig).id;
    const int64_t hour_us = INT64_C(3600) * 1000000;
    struct sandbox_info info;

    pause_it(rig, old, &files_only);
    pause_it(rig, young, &with_memory);
    pause_it(rig, back, &with_memory);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
        ((struct sandbox *)map_get(&rig->all->by_id, old))->deadline_us -= 2 * hour_us;
        ((struct sandbox *)map_get(&rig->all->by_id, back))->deadline_us -= 2 * hour_us;
    }
    assert_true(resume_it(rig, back, RESUME_AS_KEPT, &info));
    sandboxes_kill_paused(rig->all, clock_wall_us() - 3 * hour_us);
    assert_int_equal(state_of(rig, old), SANDBOX_PAUSED);
    sandboxes_kill_paused(rig->all, clock_wall_us() - hour_us);
    rig_wait_ended(rig);
    assert_int_equal(state_of(rig, old), SANDBOX_GONE);
    assert_false(rig_holds(rig, old));
    check_events(rig, old, "created paused killed");
    struct event_row *events;
    size_t count;
    MUST(store_event_list(rig->disk.store, old, &rig->arena, &events, &count, &err));
    assert_non_null(memmem(events[2].data.at, events[2].data.len, "\"retention\"", 11));
    assert_int_equal(state_of(rig, young), SANDBOX_PAUSED);
    assert_int_equal(state_of(rig, runs), SANDBOX_RUNNING);
    assert_int_equal(state_of(rig, back), SANDBOX_RUNNING);
}

static void a_kill_during_a_pause_ends_it(void **state)
{
    struct rig *rig = *state;

    for (int memory = 0; memory < 2; memory++) {
        struct sandbox_info info = make(rig);
        struct caller pauser = { .pause = { .memory = memory, .reason = "request" } }, killer = { 0 };
        shut(rig, BIT(PAUSE_FREEZE) | BIT(PAUSE_PARK));
        begin(&pauser, rig, info.id, run_pause);
        wait_at_pause_gate(rig, 1);
        begin(&killer, rig, info.id, run_kill);
        wait_for_state(rig, info.id, SANDBOX_KILLED);
        shut(rig, 0);
        end(&pauser);
        end(&killer);
        assert_true(killer.ok);
        assert_false(pauser.ok);
        assert_int_equal(pauser.err.kind, ERR_NOT_FOUND);
        check_gone(rig, info.id);
        check_events(rig, info.id, "created killed");
    }
}

static void a_kill_does_not_wait_for_a_driver_that_takes_long(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller resumer = { .resume.timeout_s = 100 };

    pause_it(rig, info.id, &files_only);
    rig_shut_gate(rig, true);
    begin(&resumer, rig, info.id, run_resume);
    rig_wait_at_gate(rig, 1);
    MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err)); /* the start comes only afterwards */
    assert_int_equal(state_of(rig, info.id), SANDBOX_KILLED);
    wait_for_state(rig, info.id, SANDBOX_GONE);
    rig_shut_gate(rig, false);
    end(&resumer);
    assert_false(resumer.ok);
    check_gone(rig, info.id);
}

static void a_kill_during_a_resume_ends_it(void **state)
{
    struct rig *rig = *state;

    for (int memory = 0; memory < 2; memory++) {
        struct sandbox_info info = make(rig);
        struct caller resumer = { .resume.timeout_s = 100 }, killer = { 0 };
        pause_it(rig, info.id, memory ? &with_memory : &files_only);
        shut(rig, BIT(PAUSE_THAW));
        rig_shut_gate(rig, true);
        begin(&resumer, rig, info.id, run_resume);
        if (memory)
            wait_at_pause_gate(rig, 1);
        else
            rig_wait_at_gate(rig, 1);
        begin(&killer, rig, info.id, run_kill);
        wait_for_state(rig, info.id, SANDBOX_KILLED);
        shut(rig, 0);
        rig_shut_gate(rig, false);
        end(&resumer);
        end(&killer);
        assert_true(killer.ok);
        assert_false(resumer.ok);
        check_gone(rig, info.id);
    }
}

static void a_kill_while_it_is_written_ends_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct caller killer = { 0 };

    rig_stand();
    shut(rig, BIT(PAUSE_PARK));
    pause_it(rig, info.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS);
    wait_at_pause_gate(rig, 1);
    begin(&killer, rig, info.id, run_kill);
    wait_for_state(rig, info.id, SANDBOX_KILLED);
    shut(rig, 0);
    end(&killer);
    assert_true(killer.ok);
    check_gone(rig, info.id);
}

static void pauses_resumes_and_kills_in_any_order_leave_no_trace(void **state)
{
    struct rig *rig = *state;
    static void *(*const runs[])(void *) = { run_pause, run_resume, run_pause, run_resume, run_kill };

    for (int round = 0; round < 20; round++) {
        struct sandbox_info info = make(rig);
        struct caller callers[COUNT_OF(runs)] = { 0 };
        for (size_t i = 0; i < COUNT_OF(runs); i++) {
            callers[i].pause = (struct pause_want){ .memory = round & 1, .reason = "request" };
            callers[i].resume.timeout_s = 100;
            begin(&callers[i], rig, info.id, runs[i]);
        }
        for (size_t i = 0; i < COUNT_OF(runs); i++)
            end(&callers[i]);
        check_gone(rig, info.id);
    }
}

/* ---- deadlines ---- */

static struct sandbox_info make_auto(struct rig *rig, bool memory)
{
    rig->want.lifecycle = (struct sandbox_lifecycle){ .auto_pause = true, .keep_memory = memory, .auto_resume = true };
    rig->want.timeout_s = 60;
    return make(rig);
}

static void a_deadline_pauses_if_the_lifecycle_says_so(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    for (int memory = 0; memory < 2; memory++) {
        struct sandbox_info info = make_auto(rig, memory), got;
        rig_turn(rig, 59000);
        assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
        rig_turn(rig, 1001);
        wait_for_state(rig, info.id, SANDBOX_PAUSED);
        assert_int_equal(rig_held_state(rig, info.id), memory ? HELD_FROZEN : HELD_PARKED);
        rig_turn(rig, 1000);
        got = get(rig, info.id);
        assert_true(got.lifecycle.auto_pause);
        assert_int_equal(got.has_memory, memory);
        assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got)); /* and its new deadline counts */
        rig_turn(rig, 600 * 1000 + 1);
        wait_for_state(rig, info.id, SANDBOX_PAUSED);
        MUST(sandbox_kill(rig->all, TEAM, info.id, "request", &err));
    }
}

static void a_deadline_without_memory_is_better_than_none_and_then_it_is_ended(void **state)
{
    struct rig *rig = *state;

    rig_stand();
    struct sandbox_info info = make_auto(rig, true);
    fail_call(rig, PAUSE_FREEZE, false, ERR_UNAVAILABLE);
    rig_turn(rig, 60001);
    wait_for_state(rig, info.id, SANDBOX_PAUSED);
    assert_int_equal(rig_held_state(rig, info.id), HELD_PARKED);
    assert_false(get(rig, info.id).has_memory);
    assert_false(row_of(rig, info.id).has_memory);
    fail_call(rig, PAUSE_PARK, false, ERR_FULL);
    struct sandbox_info second = make_auto(rig, true);
    rig_turn(rig, 60001);
    wait_for_state(rig, second.id, SANDBOX_GONE);
    check_events(rig, second.id, "created killed");
    assert_int_equal(rig_rows(rig), 1);
}

static void at_a_deadline_a_silent_guest_keeps_its_files(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make_auto(rig, false), got;

    rig_stand();
    rig->fake.guest = FAKE_GUEST_HANGS_UP;
    rig_turn(rig, 60001);
    wait_for_state(rig, info.id, SANDBOX_PAUSED);
    rig->fake.guest = FAKE_GUEST_ANSWERS;
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
}

static void a_timeout_of_nothing_pauses_now(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make_auto(rig, true), got;

    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 0, DEADLINE_SET, &rig->arena, &got, &err));
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
    check_events(rig, info.id, "created paused");
}

static void a_pause_at_the_deadline_and_one_that_is_asked_for_are_one(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make_auto(rig, true);
    struct caller pauser = { .pause = with_memory };

    rig_stand();
    shut(rig, BIT(PAUSE_FREEZE));
    rig_turn(rig, 60001);
    wait_at_pause_gate(rig, 1);
    begin(&pauser, rig, info.id, run_pause);
    usleep(2000);
    shut(rig, 0);
    end(&pauser);
    assert_true(pauser.ok || pauser.err.kind == ERR_CONFLICT);
    assert_int_equal(calls_of(rig, PAUSE_FREEZE), 1);
    check_events(rig, info.id, "created paused");
}

static void a_deadline_that_passes_during_a_pause_that_fails_counts_afterwards(void **state)
{
    struct rig *rig = *state;
    struct caller pauser = { .pause = with_memory };

    rig_stand();
    rig->want.timeout_s = 60;
    struct sandbox_info info = make(rig);
    fail_call(rig, PAUSE_FREEZE, false, ERR_FULL);
    shut(rig, BIT(PAUSE_FREEZE));
    begin(&pauser, rig, info.id, run_pause);
    wait_at_pause_gate(rig, 1);
    rig_turn(rig, 60001);
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSING);
    shut(rig, 0);
    end(&pauser);
    assert_false(pauser.ok);
    wait_for_state(rig, info.id, SANDBOX_GONE);
}

static unsigned count_in(struct rig *rig, enum sandbox_state state)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
    const struct sandbox *sb;
    unsigned count = 0;

    for (size_t i = 0; (sb = map_next(&rig->all->by_id, &i));)
        count += sb->state == state;
    return count;
}

/* However many are due, other calls find a worker, and other keys a pause. */
static void of_many_deadlines_few_are_pauses_at_once_and_the_rest_run_on(void **state)
{
    enum { MANY = LIMIT_DUE_PAUSES * 2 };
    struct rig *rig = *state;
    struct sandbox_info infos[MANY];

    rig_stand();
    rig->want.key_id = STR("key1");
    for (size_t i = 0; i < MANY; i++)
        infos[i] = make_auto(rig, false);
    shut(rig, BIT(PAUSE_PARK));
    rig_turn(rig, 60001);
    wait_at_pause_gate(rig, LIMIT_DUE_PAUSES_PER_KEY);
    assert_int_equal(count_in(rig, SANDBOX_PAUSING), LIMIT_DUE_PAUSES_PER_KEY);
    assert_int_equal(count_in(rig, SANDBOX_RUNNING), MANY - LIMIT_DUE_PAUSES_PER_KEY);
    rig->want.key_id = STR("key2");
    struct sandbox_info other = make_auto(rig, false);
    rig->want.key_id = STR("key3");
    struct sandbox_info third = make_auto(rig, false), late = make_auto(rig, false);
    rig_turn(rig, 60001);
    wait_at_pause_gate(rig, LIMIT_DUE_PAUSES);
    assert_int_equal(count_in(rig, SANDBOX_PAUSING), LIMIT_DUE_PAUSES);
    shut(rig, 0);
    for (size_t i = 0; i < MANY; i++)
        wait_for_state(rig, infos[i].id, SANDBOX_PAUSED);
    wait_for_state(rig, other.id, SANDBOX_PAUSED);
    wait_for_state(rig, third.id, SANDBOX_PAUSED);
    wait_for_state(rig, late.id, SANDBOX_PAUSED);
}

/* ---- limits ---- */

static void paused_ones_do_not_count_as_running_and_are_counted_when_they_come_back(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;
    bool resumed;

    rig->config.sandboxes_max = 2;
    rig->config.per_key_max = 1;
    rig_start(rig);
    rig->want.key_id = STR("key1");
    struct sandbox_info first = make(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT);
    pause_it(rig, first.id, &files_only);
    struct sandbox_info second = make(rig);
    resume_fails(rig, first.id, RESUME_AS_KEPT, ERR_LIMIT);
    pause_it(rig, second.id, &files_only);
    MUST(sandbox_resume(rig->all, TEAM, first.id, &(struct resume_want){ .timeout_s = 60 }, &rig->arena, &got, &resumed,
                        &err));
    rig->want.key_id = STR("");
    make(rig);
    resume_fails(rig, second.id, RESUME_AS_KEPT, ERR_LIMIT);
}

static void one_that_is_paused_in_memory_keeps_its_place_until_it_is_on_disk(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    rig->config.sandboxes_max = 2;
    rig->config.per_key_max = 1;
    rig_start(rig);
    rig->want.key_id = STR("key1");
    struct sandbox_info first = make(rig);
    pause_it(rig, first.id, &with_memory);
    struct err full = { 0 };
    assert_false(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &full));
    assert_int_equal(full.kind, ERR_LIMIT);
    assert_non_null(strstr(err_text(&full), "pause one without its memory"));
    rig->want.key_id = STR("");
    make(rig);
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT);
    assert_true(resume_it(rig, first.id, RESUME_AS_KEPT, &got)); /* in its own place */
    pause_it(rig, first.id, &with_memory);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS + 1000);
    wait_for_held(rig, first.id, HELD_PARKED_IMAGE);
    while (sandbox_is_writing(rig, first.id))
        usleep(1000);
    rig->want.key_id = STR("key1");
    make(rig);
    resume_fails(rig, first.id, RESUME_AS_KEPT, ERR_LIMIT);
}

static void one_that_is_killed_on_disk_takes_no_place(void **state)
{
    struct rig *rig = *state;

    rig->config.sandboxes_max = 2;
    rig_start(rig);
    struct sandbox_info first = make(rig);
    pause_it(rig, first.id, &files_only);
    struct sandbox_info second = make(rig);
    rig_shut_stop_gate(rig, true);
    MUST(sandbox_kill(rig->all, TEAM, first.id, "request", &err));
    rig_wait_at_stop_gate(rig, 1);
    make(rig); /* while keeper still has its files */
    MUST(sandbox_kill(rig->all, TEAM, second.id, "request", &err));
    struct sandbox_info got;
    MUST_FAIL(sandbox_create(rig->all, &rig->want, &rig->arena, &got, &err), ERR_LIMIT); /* one that runs takes one */
    rig_shut_stop_gate(rig, false);
    rig_wait_ended(rig);
}

static void a_team_can_have_so_many_paused_ones_and_no_more(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make_auto(rig, true), got;

    { /* others that are paused: as many as a team may have */
        auto_unlock pthread_mutex_t *held = lock_mutex(&rig->all->lock);
        for (int i = 0; i < LIMIT_PAUSED_PER_TEAM; i++) {
            char id[LIMIT_ID_BYTES];
            snprintf(id, sizeof id, "ipaused%d", i);
            struct sandbox *sb = sandbox_new(rig->all, str_from(id));
            sb->team_id = TEAM;
            sb->held = HELD_PARKED;
            sandbox_enlist(sb);
            sandbox_enter(sb, SANDBOX_PAUSED);
        }
    }
    MUST_FAIL(sandbox_pause(rig->all, TEAM, info.id, &with_memory, &err), ERR_LIMIT);
    check_runs_on(rig, &info);
    MUST(sandbox_set_deadline(rig->all, TEAM, info.id, 0, DEADLINE_SET, &rig->arena, &got, &err));
    wait_for_state(rig, info.id, SANDBOX_GONE); /* a deadline is a deadline */
}

/* ---- woken by traffic ---- */

static void traffic_wakes_one_that_has_its_memory_and_wants_to_be_woken(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make_auto(rig, true), got;
    struct caller wakers[3] = { 0 };

    rig_stand();
    assert_null(sandbox_find_sleeping(rig->all, info.id)); /* it runs */
    pause_it(rig, info.id, &with_memory);
    shut(rig, BIT(PAUSE_THAW));
    for (size_t i = 0; i < COUNT_OF(wakers); i++)
        begin(&wakers[i], rig, info.id, run_wake);
    wait_at_pause_gate(rig, 1);
    shut(rig, 0);
    for (size_t i = 0; i < COUNT_OF(wakers); i++) {
        end(&wakers[i]);
        assert_true(wakers[i].ok);
    }
    assert_int_equal(calls_of(rig, PAUSE_THAW), 1);
    got = get(rig, info.id);
    assert_int_equal(got.deadline_us, got.started_us + INT64_C(300000000)); /* its create's 60 s are too few */
    pause_it(rig, info.id, &files_only);
    assert_null(sandbox_find_sleeping(rig->all, info.id));
    rig->want.lifecycle.auto_resume = false;
    struct sandbox_info other = make(rig);
    pause_it(rig, other.id, &with_memory);
    assert_null(sandbox_find_sleeping(rig->all, other.id));
    assert_null(sandbox_find_sleeping(rig->all, STR("inone")));
}

static void one_whose_create_wanted_longer_gets_it_again_when_it_is_woken(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info got;

    rig->want.timeout_s = 1000;
    rig->want.lifecycle = (struct sandbox_lifecycle){ true, true, true };
    struct sandbox_info info = make(rig);
    pause_it(rig, info.id, &with_memory);
    rig_stop(rig);
    rig_start(rig); /* which the row remembers */
    struct sandbox *sb = sandbox_find_sleeping(rig->all, info.id);
    assert_non_null(sb);
    MUST(sandbox_wake(sb, &err));
    MUST(sandbox_wake(sb, &err)); /* and nothing if it runs */
    sandbox_unref(sb);
    got = get(rig, info.id);
    assert_int_equal(got.deadline_us, got.started_us + INT64_C(1000000000));
}

/* ---- after a restart ---- */

static void a_pause_outlives_a_restart_with_all_that_it_needs(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    for (int memory = 0; memory < 2; memory++) {
        pause_it(rig, info.id, memory ? &with_memory : &files_only);
        int64_t paused_us = get(rig, info.id).deadline_us;
        rig_stop(rig);
        rig_start(rig);
        got = get(rig, info.id);
        assert_true(got.is_paused);
        assert_int_equal(got.has_memory, memory);
        assert_int_equal(got.deadline_us, paused_us);
        assert_true(resume_it(rig, info.id, memory ? RESUME_REBOOT : RESUME_AS_KEPT, &got));
        assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
        assert_int_equal(rig->fake.last_plan.layer_count, 1);
        struct guestlink_setup setup = rig_setup_of(rig, info.id);
        assert_int_equal(setup.env_count, 2);
        CHECK_STR(setup.access_token, info.access_token);
    }
}

static void what_is_found_frozen_is_still_written_to_disk(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);

    pause_it(rig, info.id, &with_memory);
    rig_stop(rig);
    rig_start(rig);
    rig_turn(rig, SANDBOX_WRITE_AFTER_MS + 1000);
    wait_for_held(rig, info.id, HELD_PARKED_IMAGE);
}

/* Front died between the driver's start and the set-up. */
static void one_whose_resume_had_begun_is_set_up_by_the_next_front(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &files_only);
    rig_stop(rig);
    temp_store_by_hand(&rig->disk, "UPDATE sandboxes SET state = 'resuming'");
    fake_hold_as(&rig->fake, info.id, HELD_RUNNING);
    rig_start(rig);
    struct guestlink_setup setup = rig_setup_of(rig, info.id);
    CHECK_STR(setup.access_token, info.access_token);
    assert_int_equal(setup.env_count, 2);
    got = get(rig, info.id);
    assert_false(got.is_paused);
    assert_true(got.deadline_us >= got.started_us + INT64_C(300000000)); /* and not the time of its pause */
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_RUNNING);
    CHECK_STR(row_of(rig, info.id).envs, STR(""));
}

/* A front before us has died while the driver wrote it to disk, and the driver has finished after we have asked. */
static void one_that_is_on_disk_by_now_is_resumed_from_there(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    pause_it(rig, info.id, &with_memory);
    fake_hold_as(&rig->fake, info.id, HELD_PARKED_IMAGE);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED_IMAGE);
    pause_it(rig, info.id, &with_memory);
    fake_hold_as(&rig->fake, info.id, HELD_PARKED); /* only its files: nobody gets a new start for its processes */
    resume_fails(rig, info.id, RESUME_AS_KEPT, ERR_INTERNAL);
    assert_false(get(rig, info.id).has_memory);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
}

static void a_thaw_waits_while_the_driver_is_at_work_for_a_front_that_died(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    struct caller resumer = { .resume.timeout_s = 100 };

    pause_it(rig, info.id, &with_memory);
    fail_call(rig, PAUSE_THAW, false, ERR_CONFLICT);
    begin(&resumer, rig, info.id, run_resume);
    while (calls_of(rig, PAUSE_THAW) < 4)
        usleep(1000);
    fail_call(rig, PAUSE_THAW, false, ERR_NONE);
    end(&resumer);
    assert_true(resumer.ok);
    got = get(rig, info.id);
    assert_false(got.is_paused);
}

/* ---- a front dies, and keeper is still at work ---- */

static void leave_busy(struct rig *rig, struct str id, const char *row_state)
{
    char change[200];

    rig_stop(rig);
    snprintf(change, sizeof change, "UPDATE sandboxes SET has_memory = 0, state = '%s'", row_state);
    temp_store_by_hand(&rig->disk, change);
    fake_hold_as(&rig->fake, id, HELD_FROZEN);
    fail_call(rig, PAUSE_THAW, false, ERR_CONFLICT);
    rig->stays_busy = true;
    rig_start(rig);
}

static void one_whose_snapshot_is_still_being_made_runs(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);

    leave_busy(rig, info.id, "snapshotting");
    assert_int_equal(calls_of(rig, PAUSE_THAW), 1); /* the start does not wait */
    assert_int_equal(state_of(rig, info.id), SANDBOX_RUNNING);
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_RUNNING);
    usleep(10000);
    assert_int_equal(rig->fake.links, 0);
    fake_hold_as(&rig->fake, info.id, HELD_RUNNING); /* keeper has thawed it */
    while (!rig->fake.links)
        usleep(1000);
    check_runs_on(rig, &info);
}

static void one_whose_pause_is_still_under_way_is_what_becomes_of_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    struct caller killer = { 0 };

    leave_busy(rig, info.id, "pausing"); /* and the pause fails */
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSING);
    while (calls_of(rig, PAUSE_THAW) < 4)
        usleep(1000);
    fail_call(rig, PAUSE_THAW, false, ERR_NONE);
    wait_for_state(rig, info.id, SANDBOX_RUNNING);
    check_runs_on(rig, &info);
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_RUNNING);

    leave_busy(rig, info.id, "pausing"); /* and it ends */
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSING);
    fake_hold_as(&rig->fake, info.id, HELD_PARKED);
    fail_call(rig, PAUSE_THAW, false, ERR_NONE);
    wait_for_state(rig, info.id, SANDBOX_PAUSED);
    assert_int_equal(row_of(rig, info.id).state, SANDBOX_ROW_PAUSED);
    assert_false(get(rig, info.id).has_memory);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));

    leave_busy(rig, info.id, "pausing"); /* and it is killed */
    begin(&killer, rig, info.id, run_kill);
    end(&killer);
    assert_true(killer.ok);
    check_gone(rig, info.id);
}

/* An image that was left from before it ran must not be taken for its memory. */
static void an_image_that_is_older_than_its_files_is_not_used(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;

    rig_stop(rig);
    fake_hold_as(&rig->fake, info.id, HELD_PARKED_IMAGE);
    rig_start(rig);
    got = get(rig, info.id);
    assert_true(got.is_paused && !got.has_memory);
    assert_true(resume_it(rig, info.id, RESUME_AS_KEPT, &got));
    assert_int_equal(rig->fake.last_plan.from, PLAN_PARKED);
}

#define RUNNING(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
#define MADE(name) cmocka_unit_test_setup_teardown(name, rig_set_up_only, rig_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        RUNNING(a_pause_freezes_and_a_resume_thaws),
        RUNNING(a_clock_that_was_set_during_a_pause_changes_no_deadline),
        RUNNING(a_pause_of_files_parks_and_a_resume_starts_with_the_environment),
        RUNNING(what_is_frozen_is_written_to_disk_after_a_moment_and_comes_back_from_there),
        RUNNING(one_that_cannot_be_written_stays_frozen_and_is_not_tried_again),
        RUNNING(teams_take_turns_at_being_written),
        RUNNING(a_reboot_starts_from_the_files_whether_frozen_or_on_disk),
        RUNNING(a_resume_of_one_that_runs_extends_its_deadline),
        RUNNING(a_second_pause_is_a_conflict_and_of_another_team_none),
        RUNNING(the_log_and_the_metrics_go_on_after_a_pause),
        RUNNING(a_silent_guest_is_paused_with_its_memory_and_comes_back_by_a_reboot_only),
        RUNNING(a_silent_guest_is_not_paused_without_its_memory_or_if_it_must_answer),
        RUNNING(a_guest_that_is_too_old_to_prepare_is_frozen_and_never_written),
        RUNNING(a_pause_that_the_driver_fails_leaves_it_running),
        RUNNING(a_pause_that_the_store_cannot_write_leaves_it_running),
        RUNNING(one_that_is_parked_is_paused_even_if_the_store_does_not_say_so),
        RUNNING(one_that_does_not_thaw_after_a_failed_pause_stays_paused),
        RUNNING(a_resume_that_fails_leaves_it_paused_as_it_was),
        RUNNING(a_start_from_files_that_fails_leaves_the_files),
        RUNNING(one_that_the_driver_has_parked_by_itself_stays_paused),
        RUNNING(a_restore_that_the_driver_gives_up_leaves_the_image),
        RUNNING(a_reboot_that_fails_leaves_the_files_without_the_memory),
        RUNNING(one_that_the_driver_has_lost_is_gone_when_it_is_resumed),
        RUNNING(a_frozen_one_that_dies_is_gone),
        RUNNING(pauses_at_the_same_time_are_one),
        RUNNING(resumes_at_the_same_time_are_one_start),
        RUNNING(those_who_join_a_resume_that_fails_get_its_error),
        RUNNING(a_resume_waits_for_the_pause_that_is_under_way),
        RUNNING(a_resume_waits_while_it_is_written_to_disk),
        RUNNING(a_paused_one_can_be_killed),
        RUNNING(what_a_paused_one_takes_is_measured_once_it_is_on_disk),
        RUNNING(one_that_is_paused_for_long_goes_and_no_other),
        RUNNING(a_kill_during_a_pause_ends_it),
        RUNNING(a_kill_does_not_wait_for_a_driver_that_takes_long),
        RUNNING(a_kill_during_a_resume_ends_it),
        RUNNING(a_kill_while_it_is_written_ends_it),
        RUNNING(pauses_resumes_and_kills_in_any_order_leave_no_trace),
        RUNNING(a_deadline_pauses_if_the_lifecycle_says_so),
        RUNNING(a_deadline_without_memory_is_better_than_none_and_then_it_is_ended),
        RUNNING(at_a_deadline_a_silent_guest_keeps_its_files),
        RUNNING(a_timeout_of_nothing_pauses_now),
        RUNNING(a_pause_at_the_deadline_and_one_that_is_asked_for_are_one),
        RUNNING(a_deadline_that_passes_during_a_pause_that_fails_counts_afterwards),
        RUNNING(of_many_deadlines_few_are_pauses_at_once_and_the_rest_run_on),
        MADE(paused_ones_do_not_count_as_running_and_are_counted_when_they_come_back),
        MADE(one_that_is_paused_in_memory_keeps_its_place_until_it_is_on_disk),
        MADE(one_that_is_killed_on_disk_takes_no_place),
        RUNNING(a_team_can_have_so_many_paused_ones_and_no_more),
        RUNNING(traffic_wakes_one_that_has_its_memory_and_wants_to_be_woken),
        RUNNING(one_whose_create_wanted_longer_gets_it_again_when_it_is_woken),
        RUNNING(a_pause_outlives_a_restart_with_all_that_it_needs),
        RUNNING(what_is_found_frozen_is_still_written_to_disk),
        RUNNING(one_whose_resume_had_begun_is_set_up_by_the_next_front),
        RUNNING(one_that_is_on_disk_by_now_is_resumed_from_there),
        RUNNING(a_thaw_waits_while_the_driver_is_at_work_for_a_front_that_died),
        RUNNING(one_whose_snapshot_is_still_being_made_runs),
        RUNNING(one_whose_pause_is_still_under_way_is_what_becomes_of_it),
        RUNNING(an_image_that_is_older_than_its_files_is_not_used),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
