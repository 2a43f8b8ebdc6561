/* Copies of a running sandbox: snapshots, sandboxes made from them, forks. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "rig.h"
#include "sandbox/inside.h"

#define TEAM STR("team")

static struct guestlink_env some_envs[] = { { STR_INIT("A"), STR_INIT("1") } };

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

static void shut(struct rig *rig, unsigned calls)
{
    pthread_mutex_lock(&rig->fake.lock);
    rig->fake.pause_gates = calls;
    pthread_cond_broadcast(&rig->fake.changed);
    pthread_mutex_unlock(&rig->fake.lock);
}

static void wait_at_pause_gate(struct rig *rig)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&rig->fake.lock);

    while (!rig->fake.at_pause_gate)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
}

static bool has_event(struct rig *rig, struct str id, enum event_type type)
{
    struct event_row *events;
    size_t count;

    MUST(store_event_list(rig->disk.store, id, &rig->arena, &events, &count, &err));
    for (size_t i = 0; i < count; i++)
        if (str_eq(events[i].type, event_type_name[type]))
            return true;
    return false;
}

struct snapshot {
    struct kept kept;
    struct sandbox_info info;
    uint32_t layer_count;
    const struct str *layers;
};

static bool take(struct rig *rig, struct str id, bool memory, struct snapshot *out, struct err *err)
{
    return sandbox_snapshot(rig->all, TEAM, id, memory, &rig->arena, &out->kept, &out->info, &out->layer_count,
                            &out->layers, err);
}

static struct sandbox_info make(struct rig *rig)
{
    rig->fake.ready = (struct guestlink_ready){ COUNT_OF(some_envs), some_envs };
    return rig_create(rig);
}

/* As if nothing had been. */
static void check_runs_on(struct rig *rig, const struct sandbox_info *info)
{
    struct sandbox_info got;
    struct sandbox_row *rows;
    size_t count;

    MUST(sandbox_get(rig->all, TEAM, info->id, &rig->arena, &got, &err));
    assert_int_equal(state_of(rig, info->id), SANDBOX_RUNNING);
    assert_int_equal(got.deadline_us, info->deadline_us);
    assert_int_equal(got.started_us, info->started_us);
    CHECK_STR(got.access_token, info->access_token);
    assert_int_equal(rig->cuts, 0);
    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    assert_int_equal(rows[0].state, SANDBOX_ROW_RUNNING);
}

/* ---- snapshots ---- */

static void a_snapshot_leaves_the_sandbox_as_it_was(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct snapshot got;

    MUST(take(rig, info.id, true, &got, &err));
    assert_true(got.kept.has_image);
    assert_int_equal(got.layer_count, 2);
    CHECK_STR(got.layers[0], rig->want.layers[0]);
    CHECK_STR(got.layers[1], str_from(got.kept.id));
    CHECK_STR(got.info.template_id, STR("tbase"));
    check_runs_on(rig, &info);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_PREPARE);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_RESUMED);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_NETWORK);
    assert_true(has_event(rig, info.id, EVENT_CHECKPOINTED));
}

static void a_snapshot_of_files_does_not_need_guestd(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct snapshot got;

    rig->fake.guest = FAKE_GUEST_HANGS_UP;
    MUST_FAIL(take(rig, info.id, true, &got, &err), ERR_UNAVAILABLE);
    check_runs_on(rig, &info);
    MUST(take(rig, info.id, false, &got, &err));
    assert_false(got.kept.has_image);
    check_runs_on(rig, &info);
}

static void a_snapshot_that_fails_leaves_the_sandbox_as_it_was(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    static const enum err_kind kinds[] = { ERR_INVALID, ERR_UNAVAILABLE, ERR_FULL };
    struct snapshot got;

    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        (void)err_set(&rig->fake.pause_errs[PAUSE_SNAPSHOT][1], kinds[i], "failed on purpose");
        MUST_FAIL(take(rig, info.id, true, &got, &err), kinds[i]);
        check_runs_on(rig, &info);
    }
    assert_false(has_event(rig, info.id, EVENT_CHECKPOINTED));
    temp_store_by_hand(&rig->disk, "CREATE TRIGGER refuse BEFORE UPDATE ON sandboxes WHEN NEW.state = 'snapshotting' "
                                   "BEGIN SELECT RAISE(FAIL, 'failed on purpose'); END");
    assert_false(take(rig, info.id, false, &got, &(struct err){ 0 }));
    check_runs_on(rig, &info);
    MUST_FAIL(sandbox_snapshot(rig->all, STR("other"), info.id, true, &rig->arena, &got.kept, &got.info,
                               &got.layer_count, &got.layers, &err),
              ERR_NOT_FOUND);
}

static void a_paused_one_cannot_be_copied(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct fork_result result;
    struct snapshot got;

    MUST(sandbox_pause(rig->all, TEAM, info.id, &(struct pause_want){ .memory = true, .reason = "request" }, &err));
    MUST_FAIL(take(rig, info.id, true, &got, &err), ERR_CONFLICT);
    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, 1, 60, STR(""), &rig->arena, &result, &err), ERR_CONFLICT);
}

/* One snapshot on a thread of its own. */
struct taker {
    struct rig *rig;
    struct str id;
    pthread_t thread;
    struct arena arena;
    struct snapshot got;
    struct err err;
    bool ok;
};

static void *run_take(void *argument)
{
    struct taker *taker = argument;
    struct snapshot *got = &taker->got;

    arena_init(&taker->arena);
    taker->ok = sandbox_snapshot(taker->rig->all, TEAM, taker->id, true, &taker->arena, &got->kept, &got->info,
                                 &got->layer_count, &got->layers, &taker->err);
    arena_done(&taker->arena);
    return NULL;
}

static void *run_pause(void *argument)
{
    struct taker *taker = argument;

    taker->ok = sandbox_pause(taker->rig->all, TEAM, taker->id,
                              &(struct pause_want){ .memory = true, .reason = "request" }, &taker->err);
    return NULL;
}

static void *run_kill(void *argument)
{
    struct taker *taker = argument;

    taker->ok = sandbox_kill(taker->rig->all, TEAM, taker->id, "request", &taker->err);
    return NULL;
}

static void begin(struct taker *taker, struct rig *rig, struct str id, void *(*run)(void *))
{
    taker->rig = rig;
    taker->id = id;
    assert_int_equal(pthread_create(&taker->thread, NULL, run, taker), 0);
}

static void *run_take_of_other(void *argument)
{
    struct taker *taker = argument;
    struct snapshot got;
    struct arena arena;

    arena_init(&arena);
    taker->ok = sandbox_snapshot(taker->rig->all, STR("other"), taker->id, false, &arena, &got.kept, &got.info,
                                 &got.layer_count, &got.layers, &taker->err);
    arena_done(&arena);
    return NULL;
}

static void one_team_does_not_take_all_places_for_copies(void **state)
{
    struct rig *rig = *state;
    struct taker ours[LIMIT_COPIES_PER_TEAM + 1] = { 0 }, theirs = { 0 };
    struct sandbox_info infos[COUNT_OF(ours)], other;

    for (size_t i = 0; i < COUNT_OF(infos); i++)
        infos[i] = make(rig);
    rig->want.team_id = STR("other");
    other = make(rig);
    rig->want.team_id = TEAM;
    shut(rig, BIT(PAUSE_SNAPSHOT));
    for (size_t i = 0; i < LIMIT_COPIES_PER_TEAM; i++) {
        begin(&ours[i], rig, infos[i].id, run_take);
        wait_for_state(rig, infos[i].id, SANDBOX_SNAPSHOTTING);
    }
    begin(&ours[LIMIT_COPIES_PER_TEAM], rig, infos[LIMIT_COPIES_PER_TEAM].id, run_take);
    usleep(50000);
    begin(&theirs, rig, other.id, run_take_of_other);
    wait_for_state(rig, other.id, SANDBOX_SNAPSHOTTING);
    assert_int_equal(state_of(rig, infos[LIMIT_COPIES_PER_TEAM].id), SANDBOX_RUNNING);
    shut(rig, 0);
    for (size_t i = 0; i < COUNT_OF(ours); i++) {
        pthread_join(ours[i].thread, NULL);
        assert_true(ours[i].ok);
    }
    pthread_join(theirs.thread, NULL);
    assert_true(theirs.ok);
}

static void it_is_routable_while_it_is_copied_and_a_pause_waits(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), got;
    struct taker taker = { 0 }, pauser = { 0 };

    shut(rig, BIT(PAUSE_SNAPSHOT));
    begin(&taker, rig, info.id, run_take);
    wait_at_pause_gate(rig);
    assert_int_equal(state_of(rig, info.id), SANDBOX_SNAPSHOTTING);
    struct sandbox *sb = sandbox_find(rig->all, info.id);
    assert_non_null(sb);
    assert_true(sandbox_is_routable(sb));
    sandbox_unref(sb);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_false(got.is_paused);
    MUST_FAIL(sandbox_set_deadline(rig->all, TEAM, info.id, 60, DEADLINE_SET, &rig->arena, &got, &err), ERR_CONFLICT);
    begin(&pauser, rig, info.id, run_pause);
    shut(rig, 0);
    pthread_join(taker.thread, NULL);
    pthread_join(pauser.thread, NULL);
    assert_true(taker.ok && pauser.ok);
    assert_int_equal(state_of(rig, info.id), SANDBOX_PAUSED);
}

static void a_kill_during_a_snapshot_ends_it_and_the_snapshot(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct taker taker = { 0 }, killer = { 0 };

    shut(rig, BIT(PAUSE_SNAPSHOT));
    begin(&taker, rig, info.id, run_take);
    wait_at_pause_gate(rig);
    begin(&killer, rig, info.id, run_kill);
    wait_for_state(rig, info.id, SANDBOX_KILLED);
    shut(rig, 0);
    pthread_join(taker.thread, NULL);
    pthread_join(killer.thread, NULL);
    assert_true(killer.ok);
    assert_false(taker.ok);
    assert_int_equal(taker.err.kind, ERR_NOT_FOUND);
    rig_wait_ended(rig);
    assert_int_equal(rig_rows(rig), 0);
    assert_int_equal(rig_held_count(rig), 0);
    assert_int_equal(rig->fake.pause_calls[PAUSE_DROP], 1);
}

static void a_deadline_that_passes_meanwhile_counts_afterwards(void **state)
{
    struct rig *rig = *state;
    struct taker taker = { 0 };

    rig_stand();
    rig->want.timeout_s = 60;
    struct sandbox_info info = make(rig);
    shut(rig, BIT(PAUSE_SNAPSHOT));
    begin(&taker, rig, info.id, run_take);
    wait_at_pause_gate(rig);
    rig_turn(rig, 61000);
    assert_int_equal(state_of(rig, info.id), SANDBOX_SNAPSHOTTING);
    shut(rig, 0);
    pthread_join(taker.thread, NULL);
    wait_for_state(rig, info.id, SANDBOX_GONE);
}

static void a_sandbox_is_made_from_a_snapshot(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig), made;
    struct pair env = { STR("MINE"), STR("2") };
    struct sandbox_want want = rig->want;
    struct snapshot got;

    MUST(take(rig, info.id, true, &got, &err));
    want.image = str_from(got.kept.id);
    want.layer_count = got.layer_count;
    want.layers = got.layers;
    want.env_count = 1;
    want.envs = &env;
    MUST(sandbox_create(rig->all, &want, &rig->arena, &made, &err));
    assert_int_equal(rig->fake.last_plan.from, PLAN_IMAGE);
    CHECK_STR(str_from(rig->fake.last_plan.image), str_from(got.kept.id));
    assert_int_equal(rig->fake.last_plan.layer_count, 2);
    assert_false(str_eq(made.id, info.id) || str_eq(made.access_token, info.access_token));
    struct guestlink_setup setup = rig_setup_of(rig, made.id);
    CHECK_STR(setup.sandbox_id, made.id);
    CHECK_STR(setup.access_token, made.access_token);
    assert_int_equal(setup.env_count, 1); /* the caller's */
    assert_int_equal(rig_message_to(rig, made.id).type, GUESTLINK_RESUMED);
    /* An image that does not fit this machine is the caller's to hear of. */
    rig->fake.start = FAKE_START_IS_FULL;
    MUST_FAIL(sandbox_create(rig->all, &want, &rig->arena, &made, &err), ERR_FULL);
}

/* ---- forks ---- */

static void copies_have_what_the_original_has_but_its_id_and_its_token(void **state)
{
    struct rig *rig = *state;
    struct pair metadata = { STR("k"), STR("v") };
    struct fork_result results[5];

    rig->want.metadata = &metadata;
    rig->want.metadata_count = 1;
    rig->want.is_private = true;
    rig->want.lifecycle = (struct sandbox_lifecycle){ true, true, true };
    struct sandbox_info info = make(rig);
    MUST(sandbox_fork(rig->all, TEAM, info.id, COUNT_OF(results), 120, STR("key2"), &rig->arena, results, &err));
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        struct sandbox_info got, *made = &results[i].info;
        assert_true(results[i].ok);
        assert_false(str_eq(made->id, info.id) || str_eq(made->access_token, info.access_token));
        for (size_t j = 0; j < i; j++)
            assert_false(str_eq(made->id, results[j].info.id) ||
                         str_eq(made->access_token, results[j].info.access_token));
        assert_int_equal(made->deadline_us - made->started_us, INT64_C(120000000));
        CHECK_STR(made->metadata[0].value, STR("v"));
        assert_true(made->lifecycle.auto_pause && made->lifecycle.keep_memory && made->lifecycle.auto_resume);
        assert_true(made->is_private && made->traffic_token.len > 0);
        MUST(sandbox_get(rig->all, TEAM, made->id, &rig->arena, &got, &err));
        assert_true(got.network.internet);
        CHECK_STR(got.template_id, STR("tbase"));
        struct guestlink_setup setup = rig_setup_of(rig, made->id);
        CHECK_STR(setup.access_token, made->access_token);
        assert_int_equal(setup.env_count, 1); /* the original's */
        CHECK_STR(setup.envs[0].name, STR("A"));
    }
    check_runs_on(rig, &info);
    assert_int_equal(rig->fake.pause_calls[PAUSE_COPY], 1);
    assert_int_equal(rig->fake.pause_calls[PAUSE_SNAPSHOT], 0);
    assert_int_equal(rig->fake.pause_calls[PAUSE_DROP], 1); /* nobody needs it any more */
    CHECK_STR(str_from(rig->fake.dropped), str_from(rig->fake.last_plan.image));
}

static void copies_that_do_not_fit_fail_by_themselves(void **state)
{
    struct rig *rig = *state;
    struct fork_result results[3];
    unsigned made = 0;

    rig->config.sandboxes_max = 4;
    rig_start(rig);
    struct sandbox_info info = make(rig);
    make(rig);
    MUST(sandbox_fork(rig->all, TEAM, info.id, COUNT_OF(results), 60, STR(""), &rig->arena, results, &err));
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        made += results[i].ok;
        assert_true(results[i].ok || results[i].err.kind == ERR_LIMIT);
    }
    assert_int_equal(made, 2);
    rig->fake.start = FAKE_START_FAILS;
    MUST(sandbox_kill(rig->all, TEAM, results[0].ok ? results[0].info.id : results[1].info.id, "request", &err));
    MUST(sandbox_fork(rig->all, TEAM, info.id, 1, 60, STR(""), &rig->arena, results, &err));
    assert_false(results[0].ok);
    assert_int_equal(rig->fake.pause_calls[PAUSE_DROP], 2);
    assert_int_equal(rig_held_count(rig), 3);
}

static void a_fork_that_cannot_be_attempted_does_nothing(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct fork_result result;

    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, 0, 60, STR(""), &rig->arena, &result, &err), ERR_INVALID);
    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, LIMIT_FORKS + 1, 60, STR(""), &rig->arena, &result, &err),
              ERR_INVALID);
    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, 1, 0, STR(""), &rig->arena, &result, &err), ERR_INVALID);
    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, 1, LIMIT_TIMEOUT_S + 1, STR(""), &rig->arena, &result, &err),
              ERR_INVALID);
    MUST_FAIL(sandbox_fork(rig->all, TEAM, STR("inone"), 1, 60, STR(""), &rig->arena, &result, &err), ERR_NOT_FOUND);
    (void)err_set(&rig->fake.pause_errs[PAUSE_COPY][0], ERR_INVALID, "failed on purpose");
    MUST_FAIL(sandbox_fork(rig->all, TEAM, info.id, 1, 60, STR(""), &rig->arena, &result, &err), ERR_INVALID);
    assert_int_equal(rig->fake.starts, 1);
    check_runs_on(rig, &info);
}

/* Every worker forks: their helpers find no worker, and none of them waits for one. */
struct forker {
    struct job job;
    struct rig *rig;
    struct str id;
    struct arena arena;
    struct fork_result results[4];
    struct err err;
    bool ok;
    atomic_bool done;
};

static void forker_run(struct job *job)
{
    struct forker *forker = container_of(job, struct forker, job);

    forker->ok = sandbox_fork(forker->rig->all, TEAM, forker->id, COUNT_OF(forker->results), 60, STR(""),
                              &forker->arena, forker->results, &forker->err);
}

static void forker_done(struct job *job)
{
    container_of(job, struct forker, job)->done = true;
}

static void workers_that_all_fork_do_not_wait_for_each_other(void **state)
{
    struct rig *rig = *state;
    static struct forker forkers[LIMIT_WORKERS];
    unsigned made = 0;

    rig->config.sandboxes_max = 50;
    rig_start(rig);
    struct sandbox_info info = make(rig);
    for (size_t i = 0; i < COUNT_OF(forkers); i++) {
        forkers[i] = (struct forker){ .job = { .run = forker_run, .done = forker_done }, .rig = rig, .id = info.id };
        arena_init(&forkers[i].arena);
        workers_run(rig->workers, &forkers[i].job);
    }
    for (size_t i = 0; i < COUNT_OF(forkers); i++) {
        while (!forkers[i].done)
            usleep(100);
        assert_true(forkers[i].ok);
        for (size_t j = 0; j < COUNT_OF(forkers[i].results); j++)
            made += forkers[i].results[j].ok;
        arena_done(&forkers[i].arena);
    }
    assert_int_equal(made, 49);
    assert_int_equal(rig_held_count(rig), 50);
    assert_int_equal(rig->fake.pause_calls[PAUSE_DROP], LIMIT_WORKERS);
}

/* A front has died between the driver's answer and the row. */
static void a_snapshot_without_a_row_is_dropped_at_the_next_start(void **state)
{
    static const char unknown[] = "0000000000000000000000000000000000000000000000000000000000000001",
                      known[] = "0000000000000000000000000000000000000000000000000000000000000002";
    const struct str layer = str_from(known);
    const struct snapshot_caps caps = { 10, 10, 1 << 20, 1 << 20 };
    struct rig *rig = *state;
    struct snapshot_row row = { .team_id = TEAM,
                                .sandbox_id = STR("sandbox"),
                                .source_template_id = STR("template"),
                                .guestd_version = STR("1"),
                                .layer_count = 1,
                                .layers = &layer,
                                .kept_id = layer };

    MUST(store_snapshot_add(rig->disk.store, &row, &caps, &rig->arena, &row, &err));
    rig_stop(rig);
    rig->fake.unknown = unknown;
    rig->fake.known = known;
    rig_start(rig);
    assert_int_equal(rig->fake.pause_calls[PAUSE_DROP], 1);
    assert_string_equal(rig->fake.dropped, unknown);
}

/* And few of them have helpers, so that other calls find a worker. */
static void of_many_forks_few_have_helpers(void **state)
{
    enum { MANY = 10 };
    struct rig *rig = *state;
    static struct forker forkers[MANY];

    struct sandbox_info info = make(rig);
    rig_shut_gate(rig, true);
    for (size_t i = 0; i < MANY; i++) {
        forkers[i] = (struct forker){ .job = { .run = forker_run, .done = forker_done }, .rig = rig, .id = info.id };
        arena_init(&forkers[i].arena);
        workers_run(rig->workers, &forkers[i].job);
    }
    rig_wait_at_gate(rig, MANY + LIMIT_FORK_HELPERS_PER_KEY);
    usleep(20000); /* for one more, which there must not be */
    pthread_mutex_lock(&rig->fake.lock);
    assert_int_equal(rig->fake.at_gate, MANY + LIMIT_FORK_HELPERS_PER_KEY);
    pthread_mutex_unlock(&rig->fake.lock);
    rig_shut_gate(rig, false);
    for (size_t i = 0; i < MANY; i++) {
        while (!forkers[i].done)
            usleep(100);
        for (size_t j = 0; j < COUNT_OF(forkers[i].results); j++)
            assert_true(forkers[i].results[j].ok);
        arena_done(&forkers[i].arena);
    }
}

#define RUNNING(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
#define MADE(name) cmocka_unit_test_setup_teardown(name, rig_set_up_only, rig_tear_down)

/* ---- sandboxes of the builder ---- */

static void a_sealed_sandbox_is_gone_and_its_layer_is_kept(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct kept kept;
    struct err why;

    MUST(sandbox_seal(rig->all, TEAM, info.id, &kept, &err));
    assert_int_equal(kept.layer_count, rig->want.layer_count + 1);
    assert_string_equal(kept.layers[kept.layer_count - 1], kept.id);
    assert_int_equal(state_of(rig, info.id), SANDBOX_GONE);
    assert_int_equal(rig_rows(rig), 0);
    assert_false(sandbox_seal(rig->all, TEAM, info.id, &kept, &why));
    assert_int_equal(why.kind, ERR_NOT_FOUND);
    /* A seal that fails has ended it, too. */
    info = make(rig);
    (void)err_set(&rig->fake.pause_errs[PAUSE_SEAL][0], ERR_FULL, "the disk is full");
    assert_false(sandbox_seal(rig->all, TEAM, info.id, &kept, &why));
    assert_int_equal(why.kind, ERR_FULL);
    assert_int_equal(state_of(rig, info.id), SANDBOX_GONE);
    assert_int_equal(rig_rows(rig), 0);
}

static void a_temporary_sandbox_has_no_events_and_the_next_front_ends_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info, *list;
    struct snapshot snapshot;
    size_t count;
    struct err why;

    rig->want.team_id = STR("build");
    rig->want.is_temporary = true;
    info = make(rig);
    MUST(sandbox_list(rig->all, TEAM, &rig->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    assert_int_equal(sandboxes_count(rig->all, TEAM), 0);
    assert_false(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &info, &why));
    MUST(sandbox_snapshot(rig->all, STR("build"), info.id, true, &rig->arena, &snapshot.kept, &snapshot.info,
                          &snapshot.layer_count, &snapshot.layers, &err));
    assert_false(has_event(rig, info.id, EVENT_CREATED));
    assert_false(has_event(rig, info.id, EVENT_CHECKPOINTED));
    rig_stop(rig);
    rig_start(rig);
    rig_wait_empty(rig);
    assert_int_equal(rig_rows(rig), 0);
    assert_false(has_event(rig, info.id, EVENT_KILLED));
}

static void guestd_learns_the_defaults_of_the_template(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = make(rig);
    struct guestlink_setup setup = rig_setup_of(rig, info.id);

    CHECK_STR(setup.default_user, STR("user"));
    assert_int_equal(setup.default_workdir.len, 0);
    rig->want.default_user = STR("worker");
    rig->want.default_workdir = STR("/app");
    info = make(rig);
    setup = rig_setup_of(rig, info.id);
    CHECK_STR(setup.default_user, STR("worker"));
    CHECK_STR(setup.default_workdir, STR("/app"));
    /* They are in its row: a resume tells them again. */
    struct sandbox_row *rows;
    size_t count;
    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(rows[1].default_user, STR("worker"));
    CHECK_STR(rows[1].default_workdir, STR("/app"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        RUNNING(a_snapshot_leaves_the_sandbox_as_it_was),
        RUNNING(a_snapshot_of_files_does_not_need_guestd),
        RUNNING(a_snapshot_that_fails_leaves_the_sandbox_as_it_was),
        RUNNING(a_paused_one_cannot_be_copied),
        RUNNING(it_is_routable_while_it_is_copied_and_a_pause_waits),
        RUNNING(one_team_does_not_take_all_places_for_copies),
        RUNNING(a_kill_during_a_snapshot_ends_it_and_the_snapshot),
        RUNNING(a_deadline_that_passes_meanwhile_counts_afterwards),
        RUNNING(a_sealed_sandbox_is_gone_and_its_layer_is_kept),
        RUNNING(a_temporary_sandbox_has_no_events_and_the_next_front_ends_it),
        RUNNING(guestd_learns_the_defaults_of_the_template),
        RUNNING(a_sandbox_is_made_from_a_snapshot),
        RUNNING(copies_have_what_the_original_has_but_its_id_and_its_token),
        MADE(copies_that_do_not_fit_fail_by_themselves),
        RUNNING(a_fork_that_cannot_be_attempted_does_nothing),
        MADE(workers_that_all_fork_do_not_wait_for_each_other),
        RUNNING(a_snapshot_without_a_row_is_dropped_at_the_next_start),
        RUNNING(of_many_forks_few_have_helpers),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
