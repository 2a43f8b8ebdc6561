#include "isolation/native/park.h"

#include "held_page.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/state.h"
#include "native_world.h"

static struct plan parked_plan(const char *id)
{
    struct plan plan = a_plan(id);

    plan.from = PLAN_PARKED;
    return plan;
}

/* A sandbox that has written, changed, made and removed something. */
static int start_and_write(struct world *world, const char *id)
{
    struct plan plan = a_plan(id);
    int fd = start(world, &plan);

    check_says(fd, "put /note hello", "put: ok");
    check_says(fd, "mkdir /made", "mkdir: ok");
    check_says(fd, "put /made/inside deep", "put: ok");
    check_says(fd, "remove /etc/template-file", "remove: ok");
    return fd;
}

static void check_has_its_files(int fd)
{
    check_says(fd, "get /note", "get: hello");
    check_says(fd, "get /made/inside", "get: deep");
    check_says(fd, "get /etc/template-file", "get: No such file or directory");
}

static void resume_and_check(struct world *world, const char *id)
{
    struct plan plan = parked_plan(id);
    auto_close int fd = start(world, &plan);

    assert_int_equal(state_of(world, id), HELD_RUNNING);
    check_has_its_files(fd);
}

/* Only its record and its files. */
static void check_parked(struct world *world, const char *id)
{
    char path[64];

    assert_int_equal(state_of(world, id), HELD_PARKED);
    check_at_rest(world);
    (void)snprintf(path, sizeof path, "sandboxes/%s", id);
    assert_int_equal(count_names(world->data_fd, path), 2);
    assert_int_equal(state_of(world, id), HELD_PARKED);
}

static void a_parked_sandbox_is_its_files_and_nothing_else(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1")); /* guestd does without */
    struct plan plan = a_plan("sandbox1");
    struct err err;
    int other;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    check_parked(world, "sandbox1");
    assert_int_equal(world->exits, 0);
    assert_int_equal(native_pid_of(world->driver, "sandbox1"), -1);
    assert_int_equal(park(world, "sandbox1"), ERR_NONE); /* it is already */
    assert_int_equal(freeze(world, "sandbox1"), ERR_NOT_FOUND);
    assert_false(try_start(world, &plan, &other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    for (int round = 0; round < 3; round++) {
        resume_and_check(world, "sandbox1");
        assert_int_equal(park(world, "sandbox1"), ERR_NONE);
        check_parked(world, "sandbox1");
    }
    assert_true(stop(world, "sandbox1"));
    assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
    assert_int_equal(world->exits, 0);
    check_at_rest(world);
}

static void a_frozen_sandbox_can_be_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));

    assert_int_equal(freeze(world, "sandbox1"), ERR_NONE);
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1"); /* and is not frozen */
    assert_int_equal(freeze(world, "sandbox1"), ERR_NONE);
    assert_int_equal(state_of(world, "sandbox1"), HELD_FROZEN);
    assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
    assert_true(stop(world, "sandbox1"));
    assert_int_equal(world->exits, 1);
}

/* Of its root, as the host sees it. */
static uint32_t id_of(struct world *world, const char *id)
{
    auto_free char *text = NULL;
    char path[64];
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "/proc/%d/uid_map", native_pid_of(world->driver, id));
    assert_true(fd_read_file(AT_FDCWD, path, 4096, &text, &len, &err));
    return (uint32_t)strtoul(text + strspn(text, " 0"), NULL, 10);
}

static void a_parked_sandbox_leaves_its_slot_to_others(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = a_plan("sandbox2");
    uint32_t first = id_of(world, "sandbox1");

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    (void)close(start(world, &plan)); /* guestd does without */
    assert_int_equal(id_of(world, "sandbox2"), first);
    /* A new keeper does not mistake one for the other, and the first has another range now. */
    next_driver(world);
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    assert_int_equal(state_of(world, "sandbox2"), HELD_RUNNING);
    resume_and_check(world, "sandbox1");
}

static void ids_that_a_process_has_are_given_to_no_sandbox(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    static const uint32_t users[] = { 0, 1000 };

    for (size_t i = 0; i < COUNT_OF(users); i++) {
        (void)close(start(world, &plan));
        uint32_t first = id_of(world, "sandbox1");
        assert_true(first >= TEST_UID_BASE);
        assert_true(stop(world, "sandbox1"));
        check_at_rest(world);
        int ready[2];
        char byte;
        assert_int_equal(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0) {
            if (setresuid(first + users[i], first + users[i], first + users[i]) < 0 || write(ready[1], "r", 1) != 1)
                _exit(1);
            for (;;)
                (void)pause();
        }
        assert_int_equal(read(ready[0], &byte, 1), 1);
        (void)close(ready[0]);
        (void)close(ready[1]);
        (void)close(start(world, &plan));
        assert_int_not_equal(id_of(world, "sandbox1"), first);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_true(stop(world, "sandbox1"));
        check_at_rest(world);
    }
}

static void a_plan_with_other_layers_is_refused(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1"), nobodys = parked_plan("sandbox2");
    struct err err;
    int other;

    assert_false(try_start(world, &plan, &other, &err)); /* it runs */
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_false(try_start(world, &nobodys, &other, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    plan.layers[0][0] = '1';
    assert_false(try_start(world, &plan, &other, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1");
}

static void a_start_that_fails_leaves_it_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1");
    struct err err;
    int other;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    for (enum native_step step = NATIVE_NOWHERE + 1; step < NATIVE_STEP_COUNT; step++) {
        native_fail_at(world->driver, step);
        assert_false(try_start(world, &plan, &other, &err));
        native_fail_at(world->driver, NATIVE_NOWHERE);
        check_parked(world, "sandbox1");
    }
    assert_int_equal(world->exits, 0);
    resume_and_check(world, "sandbox1");
}

static void a_child_that_dies_before_it_is_guestd_leaves_it_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1");
    struct err err;
    int other;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    native_fail_at(world->driver, NATIVE_AT_CHILD_DEATH);
    assert_false(try_start(world, &plan, &other, &err));
    native_fail_at(world->driver, NATIVE_NOWHERE);
    assert_string_equal(err.message, "guestd ended as it started");
    check_parked(world, "sandbox1");
    assert_int_equal(world->exits, 0);
    resume_and_check(world, "sandbox1");
}

static void kill_guestd(struct world *world, const char *id)
{
    unsigned before = world->exits;
    pid_t pid = native_pid_of(world->driver, id);

    assert_true(pid > 0); /* -1 would be every process */
    assert_int_equal(kill(pid, SIGKILL), 0);
    for (int i = 0; i < 1500 && world->exits == before; i++)
        turn_for(world->loop, 10);
    assert_int_equal(world->exits, before + 1);
}

static void check_dialed(void *context, int fd, const struct err *err)
{
    (void)context;
    assert_null(err);
    (void)close(fd);
}

static void guestd_that_dies_before_anything_has_reached_it_leaves_it_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1");

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    (void)close(start(world, &plan));
    kill_guestd(world, "sandbox1");
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1");
    /* From the first connection on the guest may have run. */
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    auto_close int fd = start(world, &plan);
    check_says(fd, "listen 8080", "listening");
    driver_dial(world->driver, "sandbox1", 8080, check_dialed, NULL);
    kill_guestd(world, "sandbox1");
    check_at_rest(world);
    assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
}

/* Front sees the end of guestd's connection first, and asks for a park. */
static void guestd_that_dies_as_it_is_parked_again_leaves_it_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1");

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    for (int later_ms = 0; later_ms < 8; later_ms++) {
        struct answer answer = { .loop = world->loop };
        (void)close(start(world, &plan));
        pid_t pid = native_pid_of(world->driver, "sandbox1");
        assert_true(pid > 0);
        world->driver->ops->park(world->driver, "sandbox1", false, note_kept, &answer);
        if (later_ms)
            turn_for(world->loop, later_ms);
        if (native_pid_of(world->driver, "sandbox1") == pid)
            assert_int_equal(kill(pid, SIGKILL), 0);
        enum err_kind kind = wait_for(world, &answer);
        assert_true(kind == ERR_NONE || kind == ERR_NOT_FOUND);
        assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
        assert_int_equal(park(world, "sandbox1"), ERR_NONE);
        check_at_rest(world); /* a helper that was killed may have left a record that the next one replaces */
    }
    resume_and_check(world, "sandbox1");
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    check_parked(world, "sandbox1");
}

static void a_park_that_fails_leaves_it_running(void **state)
{
    struct world *world = *state;
    auto_close int fd = start_and_write(world, "sandbox1");

    for (int frozen = 0; frozen < 2; frozen++) {
        for (enum native_step step = NATIVE_AT_PARK_FREEZE; step <= NATIVE_AT_PARK_MARK; step++) {
            native_fail_at(world->driver, step);
            assert_int_equal(park(world, "sandbox1"), ERR_INTERNAL);
            native_fail_at(world->driver, NATIVE_NOWHERE);
            assert_int_equal(state_of(world, "sandbox1"), frozen ? HELD_FROZEN : HELD_RUNNING);
            next_driver(world); /* which takes it for what it is */
            assert_int_equal(state_of(world, "sandbox1"), frozen ? HELD_FROZEN : HELD_RUNNING);
        }
        if (!frozen) {
            check_has_its_files(fd);
            assert_int_equal(freeze(world, "sandbox1"), ERR_NONE);
        }
    }
    assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
    check_has_its_files(fd);
}

static void parked_sandboxes_outlive_the_machine(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct state record;
    struct err err;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    driver_free(world->driver);
    world->driver = NULL;
    /* As after a restart. And whatever was in the record about processes is of the other life. */
    auto_close int dir_fd = open_at(world, "sandboxes/sandbox1");
    assert_true(state_read(dir_fd, &record, &err));
    assert_int_equal(record.held, HELD_PARKED);
    (void)snprintf(record.boot_id, sizeof record.boot_id, "7b0a4d2c-9f1e-4c3b-8a67-000000000000");
    record.pid = getpid();
    record.slot = 0;
    assert_true(state_replace(dir_fd, &record, &err));
    fd_close(&dir_fd);
    new_driver(world);
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1");
}

/* ---- kill -9 ---- */

static void act_park(struct world *world)
{
    (void)park(world, "sandbox1");
}

static void act_resume(struct world *world)
{
    struct plan plan = parked_plan("sandbox1");
    struct err err;
    int fd;

    (void)!try_start(world, &plan, &fd, &err);
}

static void a_keeper_killed_while_it_parks_loses_nothing(void **state)
{
    struct world *world = *state;

    for (enum native_step step = NATIVE_AT_PARK_FREEZE; step <= NATIVE_AT_PARK_CLEAR; step++) {
        auto_close int fd = start_and_write(world, "sandbox1");
        killed_at(world, step, act_park);
        if (step == NATIVE_AT_PARK_FREEZE) { /* the record was not written: it still runs, and front thaws it */
            assert_int_equal(state_of(world, "sandbox1"), HELD_FROZEN);
            assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
            check_has_its_files(fd);
            assert_int_equal(park(world, "sandbox1"), ERR_NONE);
        }
        check_parked(world, "sandbox1");
        next_driver(world);
        check_parked(world, "sandbox1");
        resume_and_check(world, "sandbox1");
        assert_true(stop(world, "sandbox1"));
        check_at_rest(world);
    }
}

static void a_keeper_killed_while_it_resumes_loses_nothing(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    for (enum native_step step = NATIVE_AT_RECORD; step <= NATIVE_AT_GO; step++) {
        if (step == NATIVE_AT_NETWORK)
            continue; /* in the child */
        killed_at(world, step, act_resume);
        check_parked(world, "sandbox1");
        resume_and_check(world, "sandbox1");
        assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    }
}

/* As by a helper of a keeper that was killed, which has not died yet. */
static void hold(struct world *world, const char *id, int *out_fd)
{
    char path[64];
    struct err err;

    (void)snprintf(path, sizeof path, "sandboxes/%s", id);
    auto_close int fd = open_at(world, path);
    assert_true(state_claim(fd, out_fd, &err));
}

static void what_an_earlier_start_still_holds_is_not_started(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct plan plan = parked_plan("sandbox1");
    auto_close int held_fd = -1;
    struct err err;
    int other;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    hold(world, "sandbox1", &held_fd);
    assert_false(try_start(world, &plan, &other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    turn_for(world->loop, 6500); /* it waits for as long as it takes */
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    assert_false(try_start(world, &plan, &other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    next_driver(world); /* nor by the next keeper */
    assert_false(try_start(world, &plan, &other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    fd_close(&held_fd);
    turn_for(world->loop, 100);
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1");
}

/* A process in a cgroup of that sandbox, of which keeper knows nothing. */
static pid_t leave_one(struct world *world, const char *id)
{
    const struct cgroup_limits limits = { .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 10 };
    struct stat st;
    struct err err;
    char name[64];
    int fds[CGROUP_TREE_COUNT];
    size_t count = 0;
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            (void)pause();
    assert_int_equal(fstat(world->data_fd, &st), 0);
    (void)snprintf(name, sizeof name, "cloister.%jx.%jx", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    struct cgroups *cgroups = cgroups_open(name, -1, false, &err);
    assert_non_null(cgroups);
    assert_true(cgroup_make(cgroups, id, &limits, &err) && cgroup_open_user(cgroups, id, fds, &count, &err));
    for (size_t i = 0; i < count; i++)
        assert_true(dprintf(fds[i], "%d", pid) > 0);
    fd_close_each(fds, count);
    cgroups_close(cgroups);
    return pid;
}

static void what_is_left_in_the_cgroup_of_a_parked_sandbox_is_ended(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    int status = 0;

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    driver_free(world->driver);
    pid_t pid = leave_one(world, "sandbox1");
    new_driver(world);
    for (int i = 0; i < 200 && waitpid(pid, &status, WNOHANG) == 0; i++)
        turn_for(world->loop, 10);
    assert_true(WIFSIGNALED(status));
    check_parked(world, "sandbox1");
    resume_and_check(world, "sandbox1");
}

/* ---- memory ---- */

/* Of our own directory of sandboxes, in the tree that has the memory controller. */
static void read_memory_file(struct world *world, const char *file, char *room, size_t room_size)
{
    struct stat st;
    char command[300];

    assert_int_equal(fstat(world->data_fd, &st), 0);
    (void)snprintf(command, sizeof command,
                   "cat $(dirname $(find /sys/fs/cgroup -path '*/cloister.%jx.%jx/memory.stat'))/%s 2>/dev/null",
                   (uintmax_t)st.st_dev, (uintmax_t)st.st_ino, file);
    FILE *found = popen(command, "r");
    assert_non_null(found);
    room[fread(room, 1, room_size - 1, found)] = '\0';
    (void)pclose(found);
}

static uint64_t number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    if (!at)
        fail_msg("there is no %s", name);
    return strtoull(at + strlen(name), NULL, 10);
}

/*
 * How many memory cgroups of this driver the kernel keeps although they are removed. v1 does not say: there it is the number
 * of pages that keep them.
 */
static uint64_t count_dying(struct world *world)
{
    char text[8192];

    read_memory_file(world, "cgroup.stat", text, sizeof text);
    if (text[0])
        return number_after(text, "nr_dying_descendants ");
    read_memory_file(world, "memory.stat", text, sizeof text);
    return number_after(text, "\ntotal_cache ") / 4096;
}

static void a_parked_sandbox_leaves_no_memory_cgroup(void **state)
{
    enum { ROUNDS = 20 };
    struct world *world = *state;
    struct plan plan = parked_plan("sandbox1");
    (void)close(start_and_write(world, "sandbox1")); /* guestd does without */

    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    assert_int_equal(count_cgroups(world), 0); /* so it can be resumed at once */
    uint64_t before = count_dying(world);
    for (int round = 0; round < ROUNDS; round++) {
        char command[64];
        auto_close int fd = start(world, &plan);
        (void)snprintf(command, sizeof command, "put /note%d hello", round);
        check_says(fd, command, "put: ok");
        assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    }
    /* A page that another process of this machine changes at that moment may stay. */
    uint64_t after = count_dying(world);
    if (after > before + ROUNDS / 4)
        fail_msg("%d memory cgroups, or pages that keep them, are left", (int)(after - before));
    if (world->left > ROUNDS / 4)
        fail_msg("%u of %d are said to have left pages", world->left, ROUNDS);
}

static void pages_that_others_hold_are_reported_when_it_is_parked(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int file_fd = held_page_open(world->data_fd, layer_id);
    auto_close int fd = start(world, &plan);

    check_says(fd, "get /etc/template-file", "get: heldlate");
    void *page = held_page_lock(file_fd);
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    assert_int_equal(world->left, 1);
    assert_int_equal(world->exits, 0);
    held_page_unlock(page);
}

/* ---- two things at once ---- */

static void note_park(struct world *world, const char *id, struct answer *answer)
{
    *answer = (struct answer){ .loop = world->loop };
    world->driver->ops->park(world->driver, id, false, note_kept, answer);
}

static void a_kill_ends_a_sandbox_that_is_being_parked(void **state)
{
    struct world *world = *state;

    for (unsigned round = 0; round < 20; round++) {
        struct plan plan = a_plan("sandbox1");
        struct answer answer;
        (void)close(start(world, &plan));
        note_park(world, "sandbox1", &answer);
        turn_for(world->loop, round); /* a different moment each time */
        assert_true(stop(world, "sandbox1"));
        assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
        (void)wait_for(world, &answer); /* parked before, or has ended; but it is answered */
        check_at_rest(world);
        assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
    }
}

static void a_kill_during_the_last_sync_leaves_nothing(void **state)
{
    struct world *world = *state;

    for (unsigned round = 0; round < 8; round++) {
        (void)close(start_and_write(world, "sandbox1"));
        killed_at(world, NATIVE_AT_PARK_MARK, act_park); /* the next keeper ends it and syncs */
        turn_for(world->loop, 4 * round);                /* a different moment each time */
        assert_true(stop(world, "sandbox1"));
        check_at_rest(world);
        for (int i = 0; i < 500 && count_names(world->data_fd, "sandboxes"); i++)
            turn_for(world->loop, 10); /* the disk takes as long as it takes */
        assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
    }
}

static void while_it_is_being_parked_nothing_else_is_done_with_it(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct answer answer;

    note_park(world, "sandbox1", &answer);
    assert_int_equal(park(world, "sandbox1"), ERR_CONFLICT);
    assert_int_equal(thaw(world, "sandbox1"), ERR_CONFLICT);
    assert_int_equal(wait_for(world, &answer), ERR_NONE);
    check_parked(world, "sandbox1");
}

static void one_that_ends_by_itself_meanwhile_is_not_parked(void **state)
{
    struct world *world = *state;
    (void)close(start_and_write(world, "sandbox1"));
    struct answer answer;

    assert_int_equal(kill(native_pid_of(world->driver, "sandbox1"), SIGKILL), 0);
    note_park(world, "sandbox1", &answer);
    assert_int_not_equal(wait_for(world, &answer), ERR_NONE);
    check_at_rest(world);
    assert_int_equal(world->exits, 1);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
}

static void a_keeper_that_stops_while_it_parks_answers_and_loses_nothing(void **state)
{
    struct world *world = *state;

    for (unsigned round = 0; round < 12; round++) {
        struct answer answer;
        (void)close(start_and_write(world, "sandbox1"));
        note_park(world, "sandbox1", &answer);
        if (round)
            turn_for(world->loop, round * 2); /* a different moment each time; the first while it is being frozen */
        driver_free(world->driver);
        world->driver = NULL;
        assert_true(answer.is_there);
        new_driver(world);
        enum held_state held = state_of(world, "sandbox1");
        if (held == HELD_FROZEN)
            assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
        if (held == HELD_FROZEN || held == HELD_RUNNING)
            assert_int_equal(park(world, "sandbox1"), ERR_NONE);
        check_parked(world, "sandbox1");
        resume_and_check(world, "sandbox1");
        assert_true(stop(world, "sandbox1"));
    }
}

static void many_are_parked_at_once(void **state)
{
    struct world *world = *state;
    struct answer answers[20];

    for (int i = 0; i < 20; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        (void)close(start_and_write(world, id));
    }
    for (int i = 0; i < 20; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        note_park(world, id, &answers[i]);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(wait_for(world, &answers[i]), ERR_NONE);
    check_at_rest(world);
    next_driver(world);
    resume_and_check(world, "sandbox7");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        NATIVE_CASE(a_parked_sandbox_is_its_files_and_nothing_else),
        NATIVE_CASE(a_frozen_sandbox_can_be_parked),
        NATIVE_CASE(a_parked_sandbox_leaves_its_slot_to_others),
        NATIVE_CASE(ids_that_a_process_has_are_given_to_no_sandbox),
        NATIVE_CASE(a_plan_with_other_layers_is_refused),
        NATIVE_CASE(a_start_that_fails_leaves_it_parked),
        NATIVE_CASE(a_child_that_dies_before_it_is_guestd_leaves_it_parked),
        NATIVE_CASE(guestd_that_dies_before_anything_has_reached_it_leaves_it_parked),
        NATIVE_CASE(guestd_that_dies_as_it_is_parked_again_leaves_it_parked),
        NATIVE_CASE(a_park_that_fails_leaves_it_running),
        NATIVE_CASE(parked_sandboxes_outlive_the_machine),
        NATIVE_CASE(a_keeper_killed_while_it_parks_loses_nothing),
        NATIVE_CASE(a_keeper_killed_while_it_resumes_loses_nothing),
        NATIVE_CASE(what_an_earlier_start_still_holds_is_not_started),
        NATIVE_CASE(what_is_left_in_the_cgroup_of_a_parked_sandbox_is_ended),
        NATIVE_CASE(a_parked_sandbox_leaves_no_memory_cgroup),
        NATIVE_CASE(pages_that_others_hold_are_reported_when_it_is_parked),
        NATIVE_CASE(a_kill_ends_a_sandbox_that_is_being_parked),
        NATIVE_CASE(a_kill_during_the_last_sync_leaves_nothing),
        NATIVE_CASE(while_it_is_being_parked_nothing_else_is_done_with_it),
        NATIVE_CASE(one_that_ends_by_itself_meanwhile_is_not_parked),
        NATIVE_CASE(a_keeper_that_stops_while_it_parks_answers_and_loses_nothing),
        NATIVE_CASE(many_are_parked_at_once),
    };

    return run_cases(cases, COUNT_OF(cases), argc, argv);
}
