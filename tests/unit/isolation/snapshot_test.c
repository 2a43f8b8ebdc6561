#include "isolation/native/snapshot.h"

#include "image/layers.h"
#include "isolation/native/manifest.h"
#include "native_world.h"
#include "old_kernel.h"

static void begin_snapshot(struct world *world, const char *id, struct answer *answer)
{
    *answer = (struct answer){ .loop = world->loop };
    world->driver->ops->snapshot(world->driver, id, false, note_kept, answer);
}

static enum err_kind try_snapshot(struct world *world, const char *id, struct kept *out)
{
    struct answer answer;

    begin_snapshot(world, id, &answer);
    enum err_kind kind = wait_for(world, &answer);
    if (kind)
        (void)fprintf(stderr, "snapshot: %s\n", err_text(&answer.err));
    *out = answer.kept;
    return kind;
}

static struct kept take_snapshot(struct world *world, const char *id)
{
    struct kept kept;

    assert_int_equal(try_snapshot(world, id, &kept), ERR_NONE);
    return kept;
}

static enum err_kind try_seal(struct world *world, const char *id, struct kept *out)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->seal(world->driver, id, note_kept, &answer);
    enum err_kind kind = wait_for(world, &answer);
    *out = answer.kept;
    return kind;
}

static struct kept seal(struct world *world, const char *id)
{
    struct kept kept;

    assert_int_equal(try_seal(world, id, &kept), ERR_NONE);
    return kept;
}

static enum err_kind drop(struct world *world, const char *id)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->drop(world->driver, id, note_kept, &answer);
    return wait_for(world, &answer);
}

static void check_list(struct world *world, const char *after, uint32_t count, const char *first)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->list_snapshots(world->driver, after, note_kept, &answer);
    assert_int_equal(wait_for(world, &answer), ERR_NONE);
    assert_int_equal(answer.kept.layer_count, count);
    if (count)
        assert_string_equal(answer.kept.layers[0], first);
}

static struct plan plan_from_kept(const char *id, const struct kept *kept)
{
    struct plan plan = a_plan(id);

    plan.layer_count = kept->layer_count;
    memcpy(plan.layers, kept->layers, sizeof plan.layers);
    return plan;
}

struct seek {
    const char *layer;
    bool found;
};

static void look_for(void *context, const char *layer)
{
    struct seek *seek = context;

    seek->found |= !strcmp(layer, seek->layer);
}

static bool is_used(struct world *world, const char *layer)
{
    struct seek seek = { .layer = layer };
    struct err err;

    if (!native_used_layers(world->data_fd, look_for, &seek, &err))
        fail_msg("%s", err_text(&err));
    return seek.found;
}

static void check_digests(struct world *world, const char *one_path, const char *other_path)
{
    auto_close int one_fd = open_at(world, one_path), other_fd = open_at(world, other_path);
    char one[LAYER_HEX_BYTES], other[LAYER_HEX_BYTES];
    struct err err;

    if (!layer_digest(one_fd, one, &err) || !layer_digest(other_fd, other, &err))
        fail_msg("%s", err_text(&err));
    assert_string_equal(one, other);
}

/* Only the template, and no snapshot or part of one. */
static void check_nothing_was_made(struct world *world)
{
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    assert_int_equal(count_names(world->data_fd, "layers"), 1);
}

static void a_snapshot_has_the_files_of_its_moment(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    char path[128];

    check_says(fd, "put /note first", "put: ok");
    check_says(fd, "mkdir /made", "mkdir: ok");
    check_says(fd, "put /made/inside deep", "put: ok");
    check_says(fd, "remove /etc/template-file", "remove: ok");
    int pid = native_pid_of(world->driver, "sandbox1");
    struct kept kept = take_snapshot(world, "sandbox1");
    assert_int_equal(kept.layer_count, 2);
    assert_string_equal(kept.layers[0], layer_id);
    assert_string_equal(kept.layers[1], kept.id);
    assert_false(kept.has_image);
    assert_true(kept.layer_bytes >= 9);
    (void)snprintf(path, sizeof path, "layers/%s", kept.id);
    check_digests(world, "sandboxes/sandbox1/upper", path);
    (void)snprintf(path, sizeof path, "snapshots/%s", kept.id);
    assert_int_equal(count_names(world->data_fd, path), 1); /* the manifest */
    /* The original goes on, with the same processes. */
    assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
    assert_int_equal(native_pid_of(world->driver, "sandbox1"), pid);
    check_says(fd, "put /note second", "put: ok");
    struct plan copy_plan = plan_from_kept("sandbox2", &kept);
    auto_close int copy_fd = start(world, &copy_plan);
    check_says(copy_fd, "get /note", "get: first");
    check_says(copy_fd, "get /made/inside", "get: deep");
    check_says(copy_fd, "get /etc/template-file", "get: No such file or directory");
    check_says(copy_fd, "put /note third", "put: ok");
    check_says(fd, "get /note", "get: second");
    /* And a third one has neither. */
    copy_plan = plan_from_kept("sandbox3", &kept);
    auto_close int third_fd = start(world, &copy_plan);
    check_says(third_fd, "get /note", "get: first");
    assert_int_equal(world->exits, 0);
}

static void what_was_frozen_or_parked_before_is_so_afterwards(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    check_says(fd, "put /note hello", "put: ok");
    assert_int_equal(freeze(world, "sandbox1"), ERR_NONE);
    struct kept first = take_snapshot(world, "sandbox1");
    assert_int_equal(state_of(world, "sandbox1"), HELD_FROZEN);
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    struct kept second = take_snapshot(world, "sandbox1");
    assert_int_equal(state_of(world, "sandbox1"), HELD_PARKED);
    assert_string_not_equal(first.id, second.id);
    plan = plan_from_kept("sandbox2", &second);
    auto_close int copy_fd = start(world, &plan);
    check_says(copy_fd, "get /note", "get: hello");
    plan = a_plan("sandbox1");
    plan.from = PLAN_PARKED;
    auto_close int again_fd = start(world, &plan);
    check_says(again_fd, "get /note", "get: hello");
}

static void layers_stay_while_a_snapshot_or_a_sandbox_has_them(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    check_says(fd, "put /note hello", "put: ok");
    struct kept kept = take_snapshot(world, "sandbox1");
    assert_true(is_used(world, kept.id));
    plan = plan_from_kept("sandbox2", &kept);
    (void)close(start(world, &plan)); /* guestd does without */
    assert_int_equal(drop(world, kept.id), ERR_NONE);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    assert_true(is_used(world, kept.id));
    assert_int_equal(park(world, "sandbox2"), ERR_NONE);
    assert_true(is_used(world, kept.id)); /* as long as it can come back */
    next_driver(world);
    assert_true(is_used(world, kept.id));
    assert_true(stop(world, "sandbox2"));
    assert_false(is_used(world, kept.id));
    assert_int_equal(drop(world, kept.id), ERR_NONE); /* there is none */
    assert_int_equal(drop(world, "../sandboxes"), ERR_INVALID);
}

static void long_chains_are_made_shorter(void **state)
{
    enum { GENERATIONS = 2 * LIMIT_LAYERS + 6 };
    struct world *world = *state;
    struct plan plan = a_plan("sandbox0");
    unsigned shorter = 0;
    int fd = start(world, &plan);

    for (int i = 0; i < GENERATIONS; i++) {
        char id[16], command[64], want[64];
        (void)snprintf(command, sizeof command, "put /file%d %d", i, i);
        check_says(fd, command, "put: ok");
        check_says(fd, i % 10 == 5 ? "remove /etc/template-file" : "put /etc/template-file there",
                   i % 10 == 5 ? "remove: ok" : "put: ok");
        if (i % 3 == 0 && i) {
            (void)snprintf(command, sizeof command, "remove /file%d", i - 1);
            check_says(fd, command, "remove: ok");
        }
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        uint32_t before = plan.layer_count;
        struct kept kept = i % 2 ? take_snapshot(world, id) : seal(world, id);
        shorter += kept.layer_count <= before;
        assert_true(kept.layer_count <= LIMIT_LAYERS);
        assert_string_equal(kept.layers[0], layer_id); /* the template's own stays what it is */
        assert_string_equal(kept.layers[kept.layer_count - 1], kept.id);
        fd_close(&fd);
        assert_true(stop(world, id));
        (void)snprintf(id, sizeof id, "sandbox%d", i + 1);
        plan = plan_from_kept(id, &kept);
        fd = start(world, &plan);
        for (int k = 0; k <= i; k++) {
            bool is_gone = k % 3 == 2 && k < i;
            if (k % 16 && i - k > 8)
                continue; /* some of them, and the last ones */
            (void)snprintf(command, sizeof command, "get /file%d", k);
            (void)snprintf(want, sizeof want, "get: %d", k);
            check_says(fd, command, is_gone ? "get: No such file or directory" : want);
        }
        check_says(fd, "get /etc/template-file", i % 10 == 5 ? "get: No such file or directory" : "get: there");
    }
    assert_int_equal(shorter, 2);
    fd_close(&fd);
}

static void a_snapshot_that_fails_leaves_nothing_and_its_sandbox_runs(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    struct kept kept;

    for (enum native_step step = NATIVE_AT_SNAPSHOT_DRAFT; step <= NATIVE_AT_SNAPSHOT_END; step++) {
        native_fail_at(world->driver, step);
        assert_int_equal(try_snapshot(world, "sandbox1", &kept), ERR_INTERNAL);
        native_fail_at(world->driver, NATIVE_NOWHERE);
        assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
        check_says(fd, "ping", "pong");
        check_nothing_was_made(world);
    }
    kept = take_snapshot(world, "sandbox1");
    assert_true(stop(world, "sandbox1"));
    assert_int_equal(drop(world, kept.id), ERR_NONE);
    check_at_rest(world);
}

static void a_sealed_sandbox_is_a_layer(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    char path[128];

    check_says(fd, "put /note first", "put: ok");
    check_says(fd, "mkdir /made", "mkdir: ok");
    check_says(fd, "put /made/inside deep", "put: ok");
    check_says(fd, "remove /etc/template-file", "remove: ok");
    struct kept kept = seal(world, "sandbox1");
    assert_int_equal(kept.layer_count, 2);
    assert_string_equal(kept.layers[0], layer_id);
    assert_string_equal(kept.layers[1], kept.id);
    assert_true(kept.layer_bytes >= 4 * LIMIT_SNAPSHOT_ENTRY_BYTES); /* a directory, two files, what hides one */
    assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
    assert_int_equal(world->exits, 0); /* who asked knows */
    (void)snprintf(path, sizeof path, "snapshots/%s", kept.id);
    assert_int_equal(count_names(world->data_fd, path), 1); /* the manifest */
    assert_true(is_used(world, kept.id));
    auto_close int layers_fd = open_at(world, "layers");
    assert_true(snapshot_made_layer(layers_fd, kept.id));
    assert_false(snapshot_outlived_layer(layers_fd, kept.id));
    plan = plan_from_kept("sandbox2", &kept);
    auto_close int copy_fd = start(world, &plan);
    check_says(copy_fd, "get /note", "get: first");
    check_says(copy_fd, "get /made/inside", "get: deep");
    check_says(copy_fd, "get /etc/template-file", "get: No such file or directory");
    /* One on top of the other. */
    check_says(copy_fd, "put /note second", "put: ok");
    struct kept next = seal(world, "sandbox2");
    assert_int_equal(next.layer_count, 3);
    assert_int_equal(drop(world, kept.id), ERR_NONE);
    assert_true(is_used(world, kept.id)); /* by the next */
    plan = plan_from_kept("sandbox3", &next);
    auto_close int third_fd = start(world, &plan);
    check_says(third_fd, "get /note", "get: second");
    assert_true(stop(world, "sandbox3"));
    assert_int_equal(drop(world, next.id), ERR_NONE);
    assert_false(is_used(world, kept.id));
    check_at_rest(world);
    assert_int_equal(try_seal(world, "sandbox3", &kept), ERR_NOT_FOUND);
}

static void a_seal_that_fails_leaves_neither_a_layer_nor_a_sandbox(void **state)
{
    static const enum native_step steps[] = { NATIVE_AT_SEAL_DRAFT,     NATIVE_AT_SEAL_MOVE,
                                              NATIVE_AT_SNAPSHOT_WRITE, NATIVE_AT_SNAPSHOT_LAYER,
                                              NATIVE_AT_SNAPSHOT_NAME,  NATIVE_AT_SNAPSHOT_END };
    struct world *world = *state;
    struct kept kept;

    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct plan plan = a_plan("sandbox1");
        auto_close int fd = start(world, &plan);
        check_says(fd, "put /note first", "put: ok");
        native_fail_at(world->driver, steps[i]);
        assert_int_equal(try_seal(world, "sandbox1", &kept), ERR_INTERNAL);
        native_fail_at(world->driver, NATIVE_NOWHERE);
        assert_true(stop(world, "sandbox1")); /* waits for its end */
        assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
        check_nothing_was_made(world);
        check_at_rest(world);
    }
}

static void act_seal(struct world *world)
{
    struct kept kept;

    (void)try_seal(world, "sandbox1", &kept);
}

static void a_keeper_killed_while_it_seals_leaves_all_or_nothing(void **state)
{
    static const enum native_step steps[] = { NATIVE_AT_SEAL_DRAFT,     NATIVE_AT_SEAL_KILL,
                                              NATIVE_AT_SEAL_MOVE,      NATIVE_AT_SNAPSHOT_WRITE,
                                              NATIVE_AT_SNAPSHOT_LAYER, NATIVE_AT_SNAPSHOT_NAME,
                                              NATIVE_AT_SNAPSHOT_END };
    struct world *world = *state;
    unsigned whole = 0;

    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct plan plan = a_plan("sandbox1");
        auto_close int fd = start(world, &plan);
        check_says(fd, "put /note first", "put: ok");
        killed_at(world, steps[i], act_seal);
        /* Before the kill it goes on; from then on it is gone. */
        assert_int_equal(state_of(world, "sandbox1"),
                         steps[i] == NATIVE_AT_SEAL_DRAFT ? HELD_RUNNING : HELD_STATE_COUNT);
        assert_true(stop(world, "sandbox1"));
        whole += steps[i] == NATIVE_AT_SNAPSHOT_NAME || steps[i] == NATIVE_AT_SNAPSHOT_END;
        assert_int_equal(count_names(world->data_fd, "snapshots"), whole);
        assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
        check_at_rest(world);
    }
    assert_int_equal(whole, 2);
}

static void act_snapshot(struct world *world)
{
    struct kept kept;

    (void)try_snapshot(world, "sandbox1", &kept);
}

static void note_name(void *context, const char *layer)
{
    ++*(unsigned *)context;
    (void)layer;
}

static void a_keeper_killed_while_it_makes_one_leaves_all_or_nothing(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    unsigned whole = 0;

    for (enum native_step step = NATIVE_AT_SNAPSHOT_DRAFT; step <= NATIVE_AT_SNAPSHOT_END; step++) {
        unsigned used = 0;
        struct err err;
        killed_at(world, step, act_snapshot);
        bool is_frozen = step == NATIVE_AT_SNAPSHOT_FREEZE || step == NATIVE_AT_SNAPSHOT_COPY;
        assert_int_equal(state_of(world, "sandbox1"), is_frozen ? HELD_FROZEN : HELD_RUNNING);
        assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
        check_says(fd, "ping", "pong");
        whole += step >= NATIVE_AT_SNAPSHOT_NAME;
        assert_int_equal(count_names(world->data_fd, "snapshots"), whole);
        assert_true(native_used_layers(world->data_fd, note_name, &used, &err));
        assert_int_equal(used, 1 + 2 * whole); /* the sandbox's, and two of each that is whole */
    }
    assert_int_equal(whole, 2);
    /* One whose layer is not there is none. */
    auto_close int layers_fd = open_at(world, "layers");
    driver_free(world->driver);
    world->driver = NULL;
    struct err err;
    assert_true(remove_inside(layers_fd, &err));
    new_driver(world);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
}

static void fill(struct world *world, const char *path, unsigned files, size_t size)
{
    auto_close int fd = open_at(world, path);
    auto_free char *text = mem_new(size + 1);

    memset(text, 'x', size);
    for (unsigned i = 0; i < files; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "filler%u", i);
        auto_close int file_fd = openat(fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(file_fd >= 0 && write(file_fd, text, size) == (ssize_t)size);
    }
}

/* The helper: our only child but for this process. */
static pid_t helper_of(int other)
{
    FILE *list = fopen("/proc/thread-self/children", "re");
    int pid = -1, found = -1;

    while (list && fscanf(list, "%d", &pid) == 1)
        if (pid != other)
            found = pid;
    if (list)
        (void)fclose(list);
    return found;
}

static void the_death_of_the_helper_is_no_harm(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    unsigned killed = 0;

    fill(world, "sandboxes/sandbox1/upper", 3000, 100);
    for (unsigned round = 0; round < 12; round++) {
        struct answer answer;
        begin_snapshot(world, "sandbox1", &answer);
        turn_for(world->loop, round * 4);
        pid_t helper = helper_of(native_pid_of(world->driver, "sandbox1"));
        if (helper > 0)
            (void)kill(helper, SIGKILL);
        if (wait_for(world, &answer) == ERR_NONE) {
            assert_int_equal(drop(world, answer.kept.id), ERR_NONE);
            continue;
        }
        killed++;
        assert_int_equal(answer.err.kind, ERR_INTERNAL);
        assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
        check_says(fd, "ping", "pong");
        assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    }
    assert_true(killed >= 2);
    assert_true(stop(world, "sandbox1"));
    check_at_rest(world);
}

static void a_kill_ends_a_sandbox_of_which_one_is_being_made(void **state)
{
    struct world *world = *state;

    for (unsigned round = 0; round < 20; round++) {
        struct plan plan = a_plan("sandbox1");
        struct answer answer;
        (void)close(start(world, &plan));
        fill(world, "sandboxes/sandbox1/upper", 200, 100);
        begin_snapshot(world, "sandbox1", &answer);
        turn_for(world->loop, round * 2);
        assert_true(stop(world, "sandbox1"));
        if (wait_for(world, &answer) == ERR_NONE) /* it was copied before */
            assert_int_equal(drop(world, answer.kept.id), ERR_NONE);
        assert_int_equal(state_of(world, "sandbox1"), HELD_STATE_COUNT);
        check_at_rest(world);
        assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
        assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
    }
}

static void a_keeper_that_stops_meanwhile_answers_and_leaves_all_or_nothing(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    fill(world, "sandboxes/sandbox1/upper", 300, 100);
    for (unsigned round = 0; round < 12; round++) {
        struct answer answer;
        begin_snapshot(world, "sandbox1", &answer);
        if (round)
            turn_for(world->loop, round * 3);
        driver_free(world->driver);
        world->driver = NULL;
        assert_true(answer.is_there);
        new_driver(world);
        assert_int_equal(thaw(world, "sandbox1"), ERR_NONE);
        check_says(fd, "ping", "pong");
        assert_int_equal(count_names(world->data_fd, "snapshots"), answer.err.kind == ERR_NONE);
        if (answer.err.kind == ERR_NONE)
            assert_int_equal(drop(world, answer.kept.id), ERR_NONE);
    }
}

static void one_thing_at_a_time_is_done_with_a_sandbox(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    (void)close(start(world, &plan));
    struct answer answer;
    struct kept kept;

    begin_snapshot(world, "sandbox1", &answer);
    assert_int_equal(try_snapshot(world, "sandbox1", &kept), ERR_CONFLICT);
    assert_int_equal(freeze(world, "sandbox1"), ERR_CONFLICT);
    assert_int_equal(park(world, "sandbox1"), ERR_CONFLICT);
    assert_int_equal(wait_for(world, &answer), ERR_NONE);
    assert_int_equal(try_snapshot(world, "stranger", &kept), ERR_NOT_FOUND);
}

static void many_are_made_at_once_of_many_sandboxes(void **state)
{
    enum { MANY = 15 };
    struct world *world = *state;
    struct answer answers[MANY];

    for (int i = 0; i < MANY; i++) {
        char id[16], command[32];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        (void)snprintf(command, sizeof command, "put /note %d", i);
        struct plan plan = a_plan(id);
        auto_close int fd = start(world, &plan);
        check_says(fd, command, "put: ok");
    }
    for (int i = 0; i < MANY; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        begin_snapshot(world, id, &answers[i]);
    }
    for (int i = 0; i < MANY; i++) {
        char want[32];
        assert_int_equal(wait_for(world, &answers[i]), ERR_NONE);
        struct plan plan = plan_from_kept("copy", &answers[i].kept);
        auto_close int fd = start(world, &plan);
        (void)snprintf(want, sizeof want, "get: %d", i);
        check_says(fd, "get /note", want);
        assert_true(stop(world, "copy"));
    }
}

/* ---- a disk that is full ---- */

static int set_up_small(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-test.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    assert_int_equal(mount("tmpfs", world->path, "tmpfs", 0, "size=160m,mode=0700"), 0);
    world_open(world);
    *state = world;
    return 0;
}

static int tear_down_small(void **state)
{
    struct world *world = *state;

    world_close(world);
    assert_int_equal(umount2(world->path, MNT_DETACH), 0);
    (void)rmdir(world->path);
    free(world);
    return 0;
}

static void without_room_there_is_no_snapshot_and_the_sandbox_runs(void **state)
{
    if (!tmpfs_takes_ids())
        skip();
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    struct kept kept;

    fill(world, "sandboxes/sandbox1/upper", 90, 1 << 20);
    assert_int_equal(try_snapshot(world, "sandbox1", &kept), ERR_FULL);
    assert_int_equal(state_of(world, "sandbox1"), HELD_RUNNING);
    check_says(fd, "ping", "pong");
    check_nothing_was_made(world);
    /* A park needs no room. */
    assert_int_equal(park(world, "sandbox1"), ERR_NONE);
    check_at_rest(world); /* what was copied is deleted */
    plan.from = PLAN_PARKED;
    auto_close int again_fd = start(world, &plan);
    check_says(again_fd, "ping", "pong");
}

static void snapshots_are_listed_in_order_until_they_are_dropped(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("one");

    check_list(world, "", 0, NULL);
    auto_close int fd = start(world, &plan);
    check_says(fd, "ping", "pong");
    struct kept a = take_snapshot(world, "one"), b = take_snapshot(world, "one");
    const char *low = strcmp(a.id, b.id) < 0 ? a.id : b.id, *high = low == a.id ? b.id : a.id;
    check_list(world, "", 2, low);
    check_list(world, low, 1, high);
    check_list(world, high, 0, NULL);
    assert_int_equal(drop(world, low), ERR_NONE);
    check_list(world, "", 1, high);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        NATIVE_CASE(snapshots_are_listed_in_order_until_they_are_dropped),
        NATIVE_CASE(a_snapshot_has_the_files_of_its_moment),
        NATIVE_CASE(what_was_frozen_or_parked_before_is_so_afterwards),
        NATIVE_CASE(layers_stay_while_a_snapshot_or_a_sandbox_has_them),
        NATIVE_CASE(long_chains_are_made_shorter),
        NATIVE_CASE(a_sealed_sandbox_is_a_layer),
        NATIVE_CASE(a_seal_that_fails_leaves_neither_a_layer_nor_a_sandbox),
        NATIVE_CASE(a_keeper_killed_while_it_seals_leaves_all_or_nothing),
        NATIVE_CASE(a_snapshot_that_fails_leaves_nothing_and_its_sandbox_runs),
        NATIVE_CASE(a_keeper_killed_while_it_makes_one_leaves_all_or_nothing),
        NATIVE_CASE(the_death_of_the_helper_is_no_harm),
        NATIVE_CASE(a_kill_ends_a_sandbox_of_which_one_is_being_made),
        NATIVE_CASE(a_keeper_that_stops_meanwhile_answers_and_leaves_all_or_nothing),
        NATIVE_CASE(one_thing_at_a_time_is_done_with_a_sandbox),
        NATIVE_CASE(many_are_made_at_once_of_many_sandboxes),
        cmocka_unit_test_setup_teardown(without_room_there_is_no_snapshot_and_the_sandbox_runs, set_up_small,
                                        tear_down_small),
    };

    return run_cases(cases, COUNT_OF(cases), argc, argv);
}
