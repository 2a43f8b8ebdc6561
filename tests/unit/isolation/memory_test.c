/*
 * Sandboxes whose memory goes to disk and comes back, by CRIU. Skipped aloud where there is none: scripts/criu.sh fetches it.
 */
#include "isolation/native/native.h"
#include "isolation/native/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "io/loop.h"
#include "isolation/native/box.h"
#include "old_kernel.h"
#include "test.h"
#include "turn.h"

static const char *init_path, *criu_path;

static const char layer_id[] = "00000000000000000000000000000000000000000000000000000000000000aa";

struct world {
    char path[64];
    int data_fd, guestd_fd;
    struct loop *loop;
    struct driver *driver;
    unsigned exits;
    uint64_t compress_after_ms;
};

static struct plan a_plan(const char *id)
{
    struct plan plan = { .layer_count = 1, .memory_bytes = 256 << 20, .cpu_millis = 1000, .pids = 40 };

    (void)snprintf(plan.id, sizeof plan.id, "%s", id);
    (void)snprintf(plan.hostname, sizeof plan.hostname, "%s", id);
    memcpy(plan.layers[0], layer_id, sizeof layer_id);
    return plan;
}

static void note_exit(void *context, const char *id, enum exit_cause cause)
{
    struct world *world = context;

    (void)id;
    world->exits += cause != EXIT_LEFT_PAGES; /* that one may follow, if other programs hold pages */
}

static void new_driver(struct world *world)
{
    struct err err;
    struct native_config config = { .data_fd = world->data_fd,
                                    .guestd_fd = world->guestd_fd,
                                    .criu = criu_path,
                                    .compress_after_ms = world->compress_after_ms };

    world->driver = native_driver_new(world->loop, &config, &err);
    if (!world->driver)
        fail_msg("%s", err_text(&err));
    world->driver->exited = note_exit;
    world->driver->exited_context = world;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int set_up_on(void **state, const char *disk)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-test.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    if (disk)
        assert_int_equal(mount("tmpfs", world->path, "tmpfs", 0, disk), 0);
    world->data_fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->guestd_fd = open(init_path, O_RDONLY | O_CLOEXEC);
    assert_true(world->data_fd >= 0 && world->guestd_fd >= 0);
    assert_int_equal(mkdirat(world->data_fd, "layers", 0700), 0);
    char path[128];
    static const char *const dirs[] = { "", "/etc", "/tmp", "/proc" };
    for (size_t i = 0; i < COUNT_OF(dirs); i++) {
        (void)snprintf(path, sizeof path, "layers/%s%s", layer_id, dirs[i]);
        assert_int_equal(mkdirat(world->data_fd, path, 0755), 0);
    }
    world->loop = loop_new();
    new_driver(world);
    *state = world;
    return 0;
}

static int set_up(void **state)
{
    return set_up_on(state, NULL);
}

static int set_up_small(void **state)
{
    return set_up_on(state, "size=64m,mode=0700");
}

/* How long something may take that must happen: a machine with other work is slow. */
enum { PATIENCE_MS = 120000 };

#define TURN_WHILE(world, condition)                                                                      \
    for (uint64_t until_ms_ = clock_mono_ms() + PATIENCE_MS; (condition) && clock_mono_ms() < until_ms_;) \
    turn_for((world)->loop, 5)

static void turn_until(struct world *world, const bool *done)
{
    TURN_WHILE(world, !*done);
    assert_true(*done);
}

/*
 * Those that a driver has are static: a case that fails returns at once, and the driver answers it when its sandboxes are
 * stopped.
 */
struct answer {
    bool done, fine;
    int fd;
    struct kept kept;
    struct err err;
};

static void take_kept(void *context, const struct kept *kept, const struct err *err)
{
    struct answer *answer = context;

    answer->done = true;
    answer->fine = !err;
    if (kept)
        answer->kept = *kept;
    if (err)
        answer->err = *err;
}

static void take_started(void *context, const struct started *started, const struct err *err)
{
    struct answer *answer = context;

    answer->done = true;
    answer->fine = !err;
    answer->fd = started ? started->guestlink_fd : -1;
    if (err)
        answer->err = *err;
}

static void take_stopped(void *context, bool gone, const struct err *err)
{
    struct answer *answer = context;

    answer->done = true;
    answer->fine = gone && !err;
}

/* Of one that has answered: what keeper has handed over must have been taken. */
static struct answer park(struct world *world, const char *id)
{
    static struct answer answer;

    answer = (struct answer){ 0 };
    world->driver->ops->park(world->driver, id, true, take_kept, &answer);
    turn_until(world, &answer.done);
    return answer;
}

static struct answer start_from(struct world *world, const struct plan *plan)
{
    static struct answer answer;

    answer = (struct answer){ .fd = -1 };
    world->driver->ops->start_later(world->driver, plan, take_started, &answer);
    turn_until(world, &answer.done);
    return answer;
}

static void stop(struct world *world, const char *id)
{
    static struct answer answer;

    answer = (struct answer){ 0 };
    driver_stop(world->driver, id, PATIENCE_MS, take_stopped, &answer);
    turn_until(world, &answer.done);
    assert_true(answer.fine);
}

static int tear_down(void **state)
{
    struct world *world = *state;
    struct held *held;
    uint32_t count;
    char mnt[sizeof world->path + 4];
    struct err err;

    assert_true(driver_list(world->driver, &held, &count, &err));
    for (uint32_t i = 0; i < count; i++)
        stop(world, held[i].id);
    free(held);
    turn_for(world->loop, 100);
    driver_free(world->driver);
    loop_free(world->loop);
    close(world->data_fd);
    close(world->guestd_fd);
    /* A keeper that a case has killed leaves its tmpfs. */
    while (snprintf(mnt, sizeof mnt, "%s/mnt", world->path) > 0 && umount2(mnt, MNT_DETACH) == 0)
        continue;
    (void)umount2(world->path, MNT_DETACH); /* if it is a disk of its own */
    (void)nftw(world->path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(world);
    return 0;
}

static int start(struct world *world, const struct plan *plan)
{
    struct started started;
    struct err err = { 0 };
    bool is_fine = false;

    /* One of the same name may still be cleared away. */
    TURN_WHILE(world, !(is_fine = driver_start(world->driver, plan, &started, &err)) && err.kind == ERR_CONFLICT);
    if (!is_fine)
        fail_msg("%s", err_text(&err));
    return started.guestlink_fd;
}

/* Says a line to init, if any, and returns all it answers, until the line with a dot alone. */
static char *ask(int fd, const char *command)
{
    char *text = mem_new(65536);
    size_t len = 0;

    if (command[0])
        assert_true(write(fd, command, strlen(command)) > 0);
    while (len < 65535) {
        struct pollfd waiting = { .fd = fd, .events = POLLIN };
        if (poll(&waiting, 1, 20000) <= 0)
            fail_msg("no answer to %s", command);
        ssize_t n = read(fd, text + len, 65535 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
        text[len] = '\0';
        if (len >= 2 && !strcmp(text + len - 2, ".\n") && (len == 2 || text[len - 3] == '\n'))
            break;
    }
    return text;
}

static void check_has(const char *text, const char *line)
{
    char whole[512];

    (void)snprintf(whole, sizeof whole, "%s\n", line);
    const char *at = strstr(text, whole);
    if (!at || (at != text && at[-1] != '\n'))
        fail_msg("no line '%s' in:\n%s", line, text);
}

static enum held_state state_of(struct world *world, const char *id)
{
    struct held *held;
    uint32_t count;
    struct err err;
    enum held_state state = HELD_STATE_COUNT;

    assert_true(driver_list(world->driver, &held, &count, &err));
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(held[i].id, id))
            state = held[i].state;
    free(held);
    return state;
}

static void come_back(struct world *world, struct plan *plan, int *link_fd)
{
    struct answer answer = park(world, plan->id);
    if (!answer.fine)
        fail_msg("park: %s", err_text(&answer.err));
    close(*link_fd);
    assert_int_equal(state_of(world, plan->id), HELD_PARKED_IMAGE);
    assert_int_equal(world->exits, 0);
    plan->from = PLAN_PARKED_IMAGE;
    answer = start_from(world, plan);
    if (!answer.fine)
        fail_msg("start: %s", err_text(&answer.err));
    *link_fd = answer.fd;
    assert_int_equal(state_of(world, plan->id), HELD_RUNNING);
}

static void a_parked_sandbox_comes_back_with_its_memory(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("one");
    int link_fd = start(world, &plan);
    mode_t before = umask(077); /* as of a keeper that an operator with this one has started */

    free(ask(link_fd, "remember blue"));
    come_back(world, &plan, &link_fd);
    auto_free char *text = ask(link_fd, "recall");
    check_has(text, "remembered: blue");
    check_has(text, "deleted: blue");
    check_has(text, "child: tick");
    check_has(text, "hostname: one");
    /* Its filter is back and its listener is not: the kernel answers, nothing waits for us. */
    auto_free char *refused = ask(link_fd, "option 6 31 1");
    check_has(refused, "option: ENOSYS");
    close(link_fd);
    (void)umask(before);
}

static void a_restored_sandbox_can_be_parked_again(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("two");
    int link_fd = start(world, &plan);

    free(ask(link_fd, "remember green"));
    for (int i = 0; i < 3; i++) {
        come_back(world, &plan, &link_fd);
        free(ask(link_fd, "ping")); /* it has its new socket */
    }
    auto_free char *text = ask(link_fd, "recall");
    check_has(text, "remembered: green");
    check_has(text, "child: tick");
    close(link_fd);
}

static struct plan a_copy(const char *id, const struct kept *kept)
{
    struct plan plan = a_plan(id);

    plan.from = PLAN_IMAGE;
    memcpy(plan.image, kept->id, sizeof plan.image);
    plan.layer_count = kept->layer_count;
    memcpy(plan.layers, kept->layers, sizeof plan.layers);
    return plan;
}

static struct answer snapshot(struct world *world, const char *id)
{
    static struct answer answer;

    answer = (struct answer){ 0 };
    world->driver->ops->snapshot(world->driver, id, true, take_kept, &answer);
    turn_until(world, &answer.done);
    return answer;
}

static char *line_of(const char *text, const char *label)
{
    const char *at = strstr(text, label);

    assert_non_null(at);
    return strndup(at, strcspn(at, "\n"));
}

static void copies_of_an_image_have_ids_names_and_random_numbers_of_their_own(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("origin");
    int link_fd = start(world, &plan);

    free(ask(link_fd, "remember red"));
    free(ask(link_fd, "put /tmp/ours yes"));
    struct answer made = snapshot(world, "origin");
    if (!made.fine)
        fail_msg("%s", err_text(&made.err));
    assert_true(made.kept.has_image && made.kept.image_bytes > 0);
    assert_int_equal(state_of(world, "origin"), HELD_RUNNING);
    auto_free char *original = ask(link_fd, "recall"); /* it goes on, with its link */
    check_has(original, "remembered: red");
    check_has(original, "child: tick");
    struct plan first = a_copy("first", &made.kept), second = a_copy("second", &made.kept);
    struct answer one = start_from(world, &first), two = start_from(world, &second);
    if (!one.fine || !two.fine)
        fail_msg("%s %s", err_text(&one.err), err_text(&two.err));
    auto_free char *text = ask(one.fd, "recall"), *other = ask(two.fd, "recall");
    check_has(text, "remembered: red");
    check_has(other, "remembered: red");
    check_has(text, "deleted: red");
    check_has(other, "child: tick");
    check_has(text, "hostname: first");
    check_has(other, "hostname: second");
    check_has(text, "id: 0"); /* through a range of its own */
    check_has(other, "id: 0");
    auto_free char *random = line_of(text, "random: "), *other_random = line_of(other, "random: ");
    assert_string_not_equal(random, other_random);
    char path[64];
    struct stat a, b;
    (void)snprintf(path, sizeof path, "/proc/%d", native_pid_of(world->driver, "first"));
    assert_int_equal(stat(path, &a), 0);
    (void)snprintf(path, sizeof path, "/proc/%d", native_pid_of(world->driver, "second"));
    assert_int_equal(stat(path, &b), 0);
    assert_int_not_equal(a.st_uid, b.st_uid);
    auto_free char *ours = ask(two.fd, "get /tmp/ours");
    assert_null(strstr(ours, "No such file"));
    free(ask(one.fd, "put /tmp/mine yes"));
    auto_free char *missing = ask(two.fd, "get /tmp/mine");
    assert_non_null(strstr(missing, "No such file"));
    close(one.fd);
    close(two.fd);
    close(link_fd);
}

/* Of a fork: it is dropped as soon as they run, and they can be kept afterwards. */
static void a_copy_is_a_snapshot_with_memory_for_now(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("source");
    int link_fd = start(world, &plan);
    static struct answer made, dropped;

    made = dropped = (struct answer){ 0 };
    free(ask(link_fd, "remember blue"));
    free(ask(link_fd, "put /tmp/ours yes"));
    world->driver->ops->copy(world->driver, "source", take_kept, &made);
    turn_until(world, &made.done);
    if (!made.fine)
        fail_msg("%s", err_text(&made.err));
    assert_true(made.kept.has_image && made.kept.image_bytes > 0);
    assert_int_equal(state_of(world, "source"), HELD_RUNNING);
    struct plan twin = a_copy("twin", &made.kept);
    struct answer one = start_from(world, &twin);
    if (!one.fine)
        fail_msg("%s", err_text(&one.err));
    world->driver->ops->drop(world->driver, made.kept.id, take_kept, &dropped);
    turn_until(world, &dropped.done);
    assert_true(dropped.fine);
    free(ask(one.fd, "ping")); /* it has taken its sockets */
    twin.image[0] = '\0';
    come_back(world, &twin, &one.fd);
    auto_free char *text = ask(one.fd, "recall"), *ours = ask(one.fd, "get /tmp/ours");
    check_has(text, "remembered: blue");
    assert_null(strstr(ours, "No such file"));
    close(one.fd);
    close(link_fd);
    /* One that was not dropped is nothing for the next keeper. */
    made = (struct answer){ 0 };
    world->driver->ops->copy(world->driver, "source", take_kept, &made);
    turn_until(world, &made.done);
    assert_true(made.fine);
    assert_int_equal(fstatat(native_of(world->driver)->snapshots_fd, made.kept.id, &(struct stat){ 0 }, 0), 0);
    driver_free(world->driver);
    new_driver(world);
    assert_int_equal(fstatat(native_of(world->driver)->snapshots_fd, made.kept.id, &(struct stat){ 0 }, 0), -1);
}

/* 'F' frozen, 'T' thawed, as its cgroup says; '?' without one. */
static char ice_of(const char *id)
{
    static const char *const patterns[][2] = { { "unified/", "cgroup.freeze" },
                                               { "", "cgroup.freeze" },
                                               { "freezer/", "freezer.state" } };
    char pattern[200], first = '?';

    for (size_t i = 0; i < COUNT_OF(patterns) && first == '?'; i++) {
        glob_t found;
        (void)snprintf(pattern, sizeof pattern, "/sys/fs/cgroup/%scloister.*/%s/%s", patterns[i][0], id,
                       patterns[i][1]);
        if (glob(pattern, 0, NULL, &found) == 0) {
            auto_close int fd = open(found.gl_pathv[0], O_RDONLY | O_CLOEXEC);
            if (fd < 0 || read(fd, &first, 1) != 1)
                first = '?'; /* it has just gone */
            globfree(&found);
        }
    }
    return first == '1' ? 'F' : first == '0' ? 'T' : first;
}

static char *children_of(pid_t pid)
{
    char path[64], *text;
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    assert_true(fd_read_file(AT_FDCWD, path, 65536, &text, &len, &err));
    return text;
}

/* The first child of `helper`: CRIU, if this is a helper that runs it. 0: it has none. */
static pid_t find_criu(pid_t helper)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", helper, helper);
    return helper && fd_read_file(AT_FDCWD, path, 65536, &text, &len, &err) ? (pid_t)atoi(text) : 0;
}

/* The child of ours that runs this program and has a child; 0: there is none. Those that remove files have none. */
static pid_t find_helper(void)
{
    char path[64], ours[256], theirs[256];
    auto_free char *text = children_of(getpid());

    ssize_t size = readlink("/proc/self/exe", ours, sizeof ours);
    assert_true(size > 0);
    for (char *at = text, *next; *at; at = next) {
        long pid = strtol(at, &next, 10);
        if (next == at)
            break;
        (void)snprintf(path, sizeof path, "/proc/%ld/exe", pid);
        if (readlink(path, theirs, sizeof theirs) == size && !memcmp(ours, theirs, (size_t)size) &&
            find_criu((pid_t)pid))
            return (pid_t)pid;
    }
    return 0;
}

enum { TRIES = 40 };

enum reaction { SILENT, ANSWERS, CLOSED };

/*
 * CLOSED: guestd has died, or it ran before it was frozen again and could not read: a CRIU that is killed leaves TCP
 * connections in the kernel's repair mode.
 */
static enum reaction reaction_to_ping(int fd)
{
    struct pollfd waiting = { .fd = fd, .events = POLLIN };
    char answer;

    if (send(fd, "ping\n", 5, MSG_NOSIGNAL) != 5)
        return CLOSED;
    if (poll(&waiting, 1, 300) == 0)
        return SILENT;
    return recv(fd, &answer, 1, MSG_DONTWAIT) == 1 ? ANSWERS : CLOSED;
}

static void turn_to(struct world *world, const char *id, char ice, const bool *done)
{
    for (uint64_t until_ms = clock_mono_ms() + PATIENCE_MS; !*done && ice_of(id) != ice && clock_mono_ms() < until_ms;)
        turn_for(world->loop, 1);
}

/* CRIU thaws the cgroup while it works, and is killed then. False: it was done before this process had its turn. */
static bool die_in_a_dump(struct world *world, const char *id, const struct answer *answer)
{
    struct rlimit limit;

    turn_to(world, id, 'T', &answer->done);
    pid_t helper = answer->done ? 0 : find_helper(), criu = find_criu(helper);
    if (!criu || ice_of(id) != 'T' || prlimit(criu, RLIMIT_FSIZE, NULL, &limit) < 0)
        return false;
    assert_int_equal(limit.rlim_cur, LIMIT_IMAGE_FILE_BYTES);
    assert_int_equal(kill(helper, SIGKILL), 0);
    turn_until(world, &answer->done);
    return !answer->fine;
}

/* False: what CRIU had stopped has died with it or lost its connection, or CRIU was done: that depends on the moment. */
static bool try_paused(struct world *world, const char *id)
{
    struct plan plan = a_plan(id);
    auto_close int link_fd = start(world, &plan);
    static struct answer frozen, parked;

    frozen = parked = (struct answer){ 0 };
    free(ask(link_fd, "ping"));
    world->driver->ops->freeze(world->driver, id, take_kept, &frozen);
    turn_until(world, &frozen.done);
    assert_true(frozen.fine);
    world->driver->ops->park(world->driver, id, true, take_kept, &parked);
    bool has_died = die_in_a_dump(world, id, &parked);
    turn_until(world, &parked.done); /* and the next one begins */
    if (!has_died || world->exits)
        return false;
    assert_int_equal(state_of(world, id), HELD_FROZEN);
    assert_int_equal(ice_of(id), 'F');
    enum reaction reaction = reaction_to_ping(link_fd);
    assert_int_not_equal(reaction, ANSWERS);
    return reaction == SILENT;
}

/* The test at the start, which has a helper as well. */
static void await_test(struct world *world)
{
    const struct memory *memory = &native_of(world->driver)->memory;

    TURN_WHILE(world, memory->test);
    assert_null(memory->test);
    assert_false(memory->has_failed);
}

/* A CRIU that is killed takes along what it is just running code in. How often that is, is a matter of the machine. */
static void try_often(struct world *world, const char *name, bool (*try_one)(struct world *world, const char *id))
{
    char id[LIMIT_ID_BYTES];

    for (int i = 0; i < TRIES; i++) {
        (void)snprintf(id, sizeof id, "%s%d", name, i);
        if (try_one(world, id))
            return;
        stop(world, id);
        world->exits = 0;
    }
    fail_msg("of %d sandboxes none has outlived its dump", TRIES);
}

static void a_paused_sandbox_stays_frozen_when_its_dump_dies(void **state)
{
    struct world *world = *state;

    await_test(world);
    try_often(world, "still", try_paused);
}

static bool try_running(struct world *world, const char *id)
{
    struct plan plan = a_plan(id);
    auto_close int link_fd = start(world, &plan);
    static struct answer answer;

    answer = (struct answer){ 0 };
    free(ask(link_fd, "ping"));
    world->driver->ops->park(world->driver, id, true, take_kept, &answer);
    turn_to(world, id, 'F', &answer.done);
    bool has_died = die_in_a_dump(world, id, &answer);
    turn_until(world, &answer.done);
    if (!has_died || world->exits)
        return false;
    assert_int_equal(state_of(world, id), HELD_RUNNING);
    assert_int_equal(ice_of(id), 'T');
    return true;
}

static void a_sandbox_that_ran_runs_on_when_its_dump_dies(void **state)
{
    struct world *world = *state;

    await_test(world);
    try_often(world, "onward", try_running);
}

/* Its files may still be synced: then it says so, and a caller tries again. */
static struct answer start_when_free(struct world *world, const struct plan *plan)
{
    struct answer answer = start_from(world, plan);

    TURN_WHILE(world,
               !answer.fine && answer.err.kind == ERR_CONFLICT && (answer = start_from(world, plan), !answer.fine));
    if (!answer.fine)
        fail_msg("start: %s", err_text(&answer.err));
    return answer;
}

/* Whatever has become of it, it is there with all that it had. */
static void check_is_whole(struct world *world, const struct plan *plan, const char *line)
{
    struct plan parked = *plan;
    struct answer answer = { .fd = -1 };
    struct err err;

    TURN_WHILE(world, state_of(world, plan->id) == HELD_PARKED || state_of(world, plan->id) == HELD_STATE_COUNT);
    if (state_of(world, plan->id) == HELD_PARKED_IMAGE) {
        parked.from = PLAN_PARKED_IMAGE;
        answer = start_when_free(world, &parked);
    } else {
        static struct answer thawed;
        thawed = (struct answer){ 0 };
        assert_true(state_of(world, plan->id) <= HELD_FROZEN);
        world->driver->ops->thaw(world->driver, plan->id, take_kept, &thawed);
        turn_until(world, &thawed.done);
        assert_true(thawed.fine);
        if (!driver_link(world->driver, plan->id, &answer.fd, &err))
            fail_msg("link: %s", err_text(&err));
    }
    auto_free char *text = ask(answer.fd, "recall");
    check_has(text, line);
    check_has(text, "child: tick");
    close(answer.fd);
}

static void a_keeper_killed_at_any_moment_of_a_dump_harms_nothing(void **state)
{
    struct world *world = *state;

    for (int round = 0; round < 24; round++) {
        char id[16];
        (void)snprintf(id, sizeof id, "dumped%d", round);
        struct plan plan = a_plan(id);
        int link_fd = start(world, &plan);
        free(ask(link_fd, "remember plum"));
        close(link_fd);
        driver_free(world->driver);
        pid_t pid = fork();
        if (pid == 0) {
            struct answer answer = { 0 };
            world->loop = loop_new();
            new_driver(world);
            world->driver->ops->park(world->driver, id, true, take_kept, &answer);
            turn_for(world->loop, 5 + round * 5);
            (void)kill(getpid(), SIGKILL);
        }
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        new_driver(world);
        check_is_whole(world, &plan, "remembered: plum");
        stop(world, id);
    }
}

static void a_dump_that_takes_too_long_is_ended_and_harms_nothing(void **state)
{
    struct world *world = *state;
    unsigned late = 0;

    for (int round = 0; round < 16; round++) {
        char id[16];
        (void)snprintf(id, sizeof id, "slow%d", round);
        struct plan plan = a_plan(id);
        int link_fd = start(world, &plan);
        free(ask(link_fd, "remember plum"));
        native_dump_within(world->driver, 1 + (uint64_t)round * 4);
        struct answer answer = park(world, id);
        close(link_fd);
        assert_true(answer.fine || answer.err.kind == ERR_TIMEOUT);
        if (!answer.fine)
            assert_int_equal(state_of(world, id), HELD_RUNNING);
        late += !answer.fine;
        check_is_whole(world, &plan, "remembered: plum");
        assert_int_equal(world->exits, 0);
        stop(world, id);
        world->exits = 0;
    }
    assert_true(late > 0);
}

/* It fills up in the middle. Nothing inside is harmed. */
static void a_dump_ends_when_the_disk_is_full(void **state)
{
    if (!tmpfs_takes_ids())
        skip();
    struct world *world = *state;
    struct plan plan = a_plan("filled");
    int link_fd = start(world, &plan);
    static struct answer answer;
    struct statvfs fs;

    answer = (struct answer){ 0 };
    await_test(world);
    free(ask(link_fd, "remember full"));
    auto_close int fd = openat(world->data_fd, "sandboxes/filled/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    world->driver->ops->park(world->driver, "filled", true, take_kept, &answer);
    turn_to(world, "filled", 'F', &answer.done);
    turn_to(world, "filled", 'T', &answer.done);
    assert_int_equal(fstatvfs(fd, &fs), 0);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)(fs.f_bavail * fs.f_frsize) - LIMIT_ROOM_BYTES / 2), 0);
    turn_until(world, &answer.done);
    if (!answer.fine) { /* else it was faster */
        assert_int_equal(answer.err.kind, ERR_FULL);
        assert_int_equal(state_of(world, "filled"), HELD_RUNNING);
        auto_free char *text = ask(link_fd, "recall");
        check_has(text, "remembered: full");
        check_has(text, "child: tick");
    } else {
        print_message("the dump was faster than the disk was full\n");
    }
    close(link_fd);
}

static void no_memory_is_written_where_it_has_no_room(void **state)
{
    if (!tmpfs_takes_ids())
        skip();
    struct world *world = *state;
    struct plan plan = a_plan("wide");
    struct statvfs fs;
    int link_fd = start(world, &plan);
    free(ask(link_fd, "ping"));
    auto_close int fd = openat(world->data_fd, "sandboxes/wide/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    /* So much is the server's, and the rest is too little for guestd. */
    assert_int_equal(fstatvfs(fd, &fs), 0);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)(fs.f_bavail * fs.f_frsize) - LIMIT_ROOM_BYTES - (64 << 10)), 0);
    struct answer answer = park(world, "wide");
    assert_false(answer.fine);
    assert_int_equal(answer.err.kind, ERR_FULL);
    assert_non_null(strstr(answer.err.message, "the memory of the sandbox is"));
    assert_int_equal(state_of(world, "wide"), HELD_RUNNING);
    free(ask(link_fd, "ping"));
    assert_int_equal(ftruncate(fd, 0), 0);
    come_back(world, &plan, &link_fd);
    close(link_fd);
}

static void what_is_debugged_is_not_parked_and_goes_on(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("debugged");
    int link_fd = start(world, &plan);

    auto_free char *traced = ask(link_fd, "trace");
    free(ask(link_fd, "remember grey"));
    check_has(traced, "trace: ok");
    struct answer answer = park(world, "debugged");
    assert_false(answer.fine);
    assert_int_equal(answer.err.kind, ERR_INVALID);
    assert_non_null(strstr(answer.err.message, "a process is being debugged"));
    assert_int_equal(state_of(world, "debugged"), HELD_RUNNING);
    auto_free char *text = ask(link_fd, "recall");
    check_has(text, "remembered: grey");
    close(link_fd);
}

static bool has_mark(struct world *world, const char *id)
{
    char path[128];

    (void)snprintf(path, sizeof path, "sandboxes/%s/resumed", id);
    return faccessat(world->data_fd, path, F_OK, 0) == 0;
}

static void a_damaged_image_does_not_come_back_and_stays_parked(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("damaged");
    int link_fd = start(world, &plan);

    free(ask(link_fd, "ping"));
    struct answer answer = park(world, "damaged");
    assert_true(answer.fine);
    close(link_fd);
    auto_close int fd = openat(world->data_fd, "sandboxes/damaged/image/core-1.img", O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    plan.from = PLAN_PARKED_IMAGE;
    answer = start_from(world, &plan);
    assert_false(answer.fine);
    TURN_WHILE(world, state_of(world, "damaged") != HELD_PARKED_IMAGE);
    assert_int_equal(state_of(world, "damaged"), HELD_PARKED_IMAGE);
    assert_false(has_mark(world, "damaged")); /* nothing of it has run */
    plan.from = PLAN_PARKED;                  /* a reboot is still possible */
    auto_close int again = start(world, &plan);
    free(ask(again, "ping"));
    assert_int_equal(faccessat(world->data_fd, "sandboxes/damaged/image", F_OK, 0), -1);
}

static void an_image_of_another_machine_is_refused(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("foreign");
    int link_fd = start(world, &plan);
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    free(ask(link_fd, "ping"));
    struct answer answer = park(world, "foreign");
    assert_true(answer.fine);
    close(link_fd);
    assert_true(fd_read_file(world->data_fd, "sandboxes/foreign/image/cloister", 1 << 20, &text, &len, &err));
    char *kernel = strstr(text, "kernel ");
    assert_non_null(kernel);
    kernel[7] = 'X';
    auto_close int fd = openat(world->data_fd, "sandboxes/foreign/image/cloister", O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, text, len), len);
    plan.from = PLAN_PARKED_IMAGE;
    answer = start_from(world, &plan);
    assert_false(answer.fine);
    assert_int_equal(answer.err.kind, ERR_CONFLICT);
    assert_non_null(strstr(answer.err.message, "another kernel"));
    assert_non_null(strstr(answer.err.message, "reboot"));
}

static void a_new_keeper_finds_what_is_parked_with_its_memory(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("kept");
    int link_fd = start(world, &plan);

    free(ask(link_fd, "remember gold"));
    struct answer answer = park(world, "kept");
    assert_true(answer.fine);
    close(link_fd);
    driver_free(world->driver);
    new_driver(world);
    assert_int_equal(state_of(world, "kept"), HELD_PARKED_IMAGE);
    plan.from = PLAN_PARKED_IMAGE;
    answer = start_from(world, &plan);
    assert_true(answer.fine);
    auto_free char *text = ask(answer.fd, "recall");
    check_has(text, "remembered: gold");
    close(answer.fd);
    /* And it is one that runs for the next. */
    driver_free(world->driver);
    new_driver(world);
    assert_int_equal(state_of(world, "kept"), HELD_RUNNING);
}

static void park_with_colour(struct world *world, struct plan *plan, const char *colour)
{
    char command[64];
    auto_close int link_fd = start(world, plan);

    (void)snprintf(command, sizeof command, "remember %s", colour);
    free(ask(link_fd, command));
    struct answer answer = park(world, plan->id);
    if (!answer.fine)
        fail_msg("park: %s", err_text(&answer.err));
    plan->from = PLAN_PARKED_IMAGE;
}

static void await_parked(struct world *world, const char *id)
{
    TURN_WHILE(world, state_of(world, id) != HELD_PARKED_IMAGE);
    assert_int_equal(state_of(world, id), HELD_PARKED_IMAGE);
    turn_for(world->loop, 100);
}

static void check_comes_back(struct world *world, const struct plan *plan, const char *line)
{
    struct answer answer = start_when_free(world, plan);

    auto_free char *text = ask(answer.fd, "recall");
    check_has(text, line);
    close(answer.fd);
}

static void a_return_that_fails_late_leaves_it_parked_for_this_keeper_and_the_next(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("late");

    park_with_colour(world, &plan, "amber");
    for (enum native_step step = NATIVE_AT_RESTORE_IDS; step <= NATIVE_AT_RESTORE_LINK; step++) {
        native_fail_at(world->driver, step);
        struct answer answer = start_from(world, &plan);
        native_fail_at(world->driver, NATIVE_NOWHERE);
        assert_false(answer.fine);
        await_parked(world, "late");
        driver_free(world->driver);
        new_driver(world);
        await_parked(world, "late");
    }
    assert_int_equal(world->exits, 0);
    check_comes_back(world, &plan, "remembered: amber");
}

static void a_keeper_killed_while_one_comes_back_loses_nothing(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("cut");

    park_with_colour(world, &plan, "teal");
    for (enum native_step step = NATIVE_AT_RESTORE_IDS; step <= NATIVE_AT_RESTORE_LINK; step++) {
        int status;
        driver_free(world->driver);
        pid_t pid = fork();
        if (pid == 0) {
            world->loop = loop_new(); /* an epoll descriptor is shared by fork */
            new_driver(world);
            native_die_at(world->driver, step);
            (void)start_from(world, &plan);
            _exit(3); /* it has not come to that step */
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        new_driver(world);
        await_parked(world, "cut");
    }
    check_comes_back(world, &plan, "remembered: teal");
}

static bool read_all(const char *path, char *room, size_t room_size)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, room, room_size - 1);

    room[MAX(len, 0)] = '\0';
    return len > 0;
}

/* Processes that are pid 1 of it and can still run. The dead are listed until their parent takes note of them. */
static unsigned count_living(const char *id)
{
    glob_t found = { 0 };
    unsigned count = 0;

    (void)glob("/proc/[0-9]*", 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[64], cgroup[4096], status[4096];
        (void)snprintf(path, sizeof path, "%s/cgroup", found.gl_pathv[i]);
        if (!read_all(path, cgroup, sizeof cgroup) || !strstr(cgroup, id))
            continue;
        (void)snprintf(path, sizeof path, "%s/status", found.gl_pathv[i]);
        if (!read_all(path, status, sizeof status))
            continue;
        const char *numbers = strstr(status, "\nNSpid:\t"), *state = strstr(status, "\nState:\t");
        assert_true(numbers && state);
        numbers += strlen("\nNSpid:\t");
        const char *last = memchr(numbers, '\n', strlen(numbers));
        bool is_first = last && last - numbers > 2 && last[-1] == '1' && last[-2] == '\t';
        count += is_first && !strchr("ZX", state[strlen("\nState:\t")]);
    }
    globfree(&found);
    return count;
}

/* The helper, CRIU and what it has made so far, all of them wherever they are just then. */
static void a_keeper_killed_at_any_moment_of_a_return_leaves_one_of_it(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("onlyone");
    unsigned cut_short = 0;

    park_with_colour(world, &plan, "jade");
    for (int round = 0; round < 24; round++) {
        driver_free(world->driver);
        pid_t pid = fork();
        if (pid == 0) {
            struct answer answer = { .fd = -1 };
            world->loop = loop_new();
            new_driver(world);
            world->driver->ops->start_later(world->driver, &plan, take_started, &answer);
            turn_for(world->loop, round * 12);
            (void)kill(getpid(), SIGKILL);
        }
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        new_driver(world);
        bool runs = state_of(world, "onlyone") == HELD_RUNNING;
        cut_short += !runs;
        if (!runs)
            check_comes_back(world, &plan, "remembered: jade");
        assert_int_equal(count_living("onlyone"), 1);
        if (runs) { /* it was done: its guestd has sockets that died with that keeper */
            stop(world, "onlyone");
            plan.from = PLAN_NEW;
            park_with_colour(world, &plan, "jade");
        } else {
            struct answer answer = park(world, "onlyone");
            if (!answer.fine)
                fail_msg("park: %s", err_text(&answer.err));
        }
        assert_int_equal(count_living("onlyone"), 0);
    }
    assert_true(cut_short > 0);
}

static void write_mark(struct world *world, const char *id, const char *boot_id)
{
    char path[128];
    size_t len = strlen(boot_id);

    (void)snprintf(path, sizeof path, "sandboxes/%s/resumed", id);
    auto_close int fd = openat(world->data_fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, boot_id, len) == (ssize_t)len);
}

static void an_image_that_was_resumed_before_the_machine_went_down_is_refused(void **state)
{
    static const char *const marks[] = { "7b0a4d2c-9f1e-4c3b-8a67-000000000000", "" }; /* the second was cut short */
    struct world *world = *state;
    struct plan plan = a_plan("newer");
    struct answer answer;

    park_with_colour(world, &plan, "olive");
    assert_false(has_mark(world, "newer"));
    check_comes_back(world, &plan, "remembered: olive");
    assert_true(has_mark(world, "newer"));
    answer = park(world, "newer");
    assert_true(answer.fine);
    assert_false(has_mark(world, "newer"));
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        write_mark(world, "newer",
                   marks[i]); /* as if it had been resumed, and nothing else of that had come to the disk */
        driver_free(world->driver);
        new_driver(world);
        answer = start_from(world, &plan);
        assert_false(answer.fine);
        assert_int_equal(answer.err.kind, ERR_CONFLICT);
        assert_non_null(strstr(answer.err.message, "files are newer"));
        assert_int_equal(state_of(world, "newer"), HELD_PARKED_IMAGE);
    }
    plan.from = PLAN_PARKED;
    int link_fd = start(world, &plan);
    assert_true(has_mark(world, "newer"));
    free(ask(link_fd, "remember lime"));
    come_back(world, &plan, &link_fd);
    auto_free char *text = ask(link_fd, "recall");
    check_has(text, "remembered: lime");
    close(link_fd);
}

static uint64_t number_in(const char *control, const char *place, const char *leaf, const char *file)
{
    auto_free char *number = NULL;
    char path[512];
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "/sys/fs/cgroup/%s%.*s/%s/%s", control, (int)strcspn(place, "\n"), place, leaf,
                   file);
    if (!fd_read_file(AT_FDCWD, path, 64, &number, &len, &err))
        fail_msg("%s", err_text(&err));
    return strtoull(number, NULL, 10);
}

/*
 * A limit of what has the sandbox's own limits. `v1` is a file of the controller's own tree, `v2` the same in the one tree.
 * *out_with_guestd: on v1 the limit of both together; elsewhere 0.
 */
static uint64_t limit_of(struct world *world, const char *id, const char *control, const char *v1, const char *v2,
                         uint64_t *out_with_guestd)
{
    auto_free char *text = NULL;
    char path[512], want[32];
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", native_pid_of(world->driver, id));
    assert_true(fd_read_file(AT_FDCWD, path, 65536, &text, &len, &err));
    (void)snprintf(want, sizeof want, ":%s:", control);
    const char *place = strstr(text, want), *file = v1, *leaf = "user"; /* from guestd's place */
    if (!place) {
        place = strstr(text, "0::");
        control = "";
        file = v2;
        leaf = "../user";
        (void)snprintf(want, sizeof want, "0::");
    }
    assert_non_null(place);
    place += strlen(want);
    *out_with_guestd = file == v1 ? number_in(control, place, ".", file) : 0;
    return number_in(control, place, leaf, file);
}

static uint64_t memory_limit_of(struct world *world, const char *id, uint64_t *out_with_guestd)
{
    return limit_of(world, id, "memory", "memory.limit_in_bytes", "memory.max", out_with_guestd);
}

static bool kill_one(void *context, pid_t pid)
{
    (void)context;
    (void)kill(pid, SIGKILL);
    return true;
}

static void one_that_has_used_up_its_limits_comes_back_and_has_them_again(void **state)
{
    static const struct {
        const char *id, *keep, *swell;
        unsigned more_mib;
    } rows[] = {
        { "many", "keep 0 38", "swell 0", 0 },
        { "fat", "keep 200 1", "swell 30", 0 },
        { "fatter", "keep 200 1", "swell 70", 32 }, /* guestd's memory is charged to it now */
    };
    struct world *world = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct plan plan = a_plan(rows[i].id);
        int link_fd = start(world, &plan);
        auto_free char *text = ask(link_fd, rows[i].keep);
        assert_non_null(strstr(text, "kept: "));
        free(ask(link_fd, rows[i].swell));
        come_back(world, &plan, &link_fd);
        free(ask(link_fd, "ping"));
        uint64_t both, want_bytes = plan.memory_bytes + ((uint64_t)rows[i].more_mib << 20);
        assert_int_equal(limit_of(world, plan.id, "pids", "pids.max", "pids.max", &both), plan.pids);
        assert_true(!both || both == plan.pids + cgroup_guestd_limits.pids);
        assert_int_equal(memory_limit_of(world, plan.id, &both), want_bytes);
        assert_true(!both || both == want_bytes + cgroup_guestd_limits.memory_bytes);
        if (rows[i].more_mib) {
            (void)cgroup_each_user(native_of(world->driver)->cgroups, plan.id, kill_one, NULL);
            TURN_WHILE(world, memory_limit_of(world, plan.id, &both) != plan.memory_bytes);
            assert_int_equal(memory_limit_of(world, plan.id, &both), plan.memory_bytes);
            assert_true(!both || both == plan.memory_bytes + cgroup_guestd_limits.memory_bytes);
            free(ask(link_fd, "ping"));
        }
        close(link_fd);
    }
}

static void one_that_needs_more_memory_than_it_may_have_is_refused_soon(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("huge");

    plan.memory_bytes = 1 << 30;
    int link_fd = start(world, &plan);
    free(ask(link_fd, "keep 700 1"));
    struct answer answer = park(world, plan.id);
    assert_true(answer.fine);
    close(link_fd);
    plan.from = PLAN_PARKED_IMAGE;
    plan.memory_bytes = 8 << 20;
    answer = start_from(world, &plan); /* which waits a minute at most */
    assert_false(answer.fine);
    assert_int_equal(answer.err.kind, ERR_CONFLICT);
    assert_non_null(strstr(answer.err.trail, "more memory than it may have"));
    assert_int_equal(state_of(world, plan.id), HELD_PARKED_IMAGE);
    plan.memory_bytes = 1 << 30;
    answer = start_from(world, &plan);
    if (!answer.fine)
        fail_msg("start: %s", err_text(&answer.err));
    free(ask(answer.fd, "ping"));
    close(answer.fd);
}

static void a_kill_in_the_middle_is_a_kill(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("short");
    int link_fd = start(world, &plan);
    static struct answer parked, started;

    parked = (struct answer){ 0 };
    started = (struct answer){ .fd = -1 };
    world->driver->ops->park(world->driver, "short", true, take_kept, &parked);
    turn_for(world->loop, 15);
    stop(world, "short");
    turn_until(world, &parked.done);
    assert_false(parked.fine);
    close(link_fd);
    link_fd = start(world, &plan);
    free(ask(link_fd, "ping"));
    parked = park(world, "short");
    assert_true(parked.fine);
    close(link_fd);
    plan.from = PLAN_PARKED_IMAGE;
    world->driver->ops->start_later(world->driver, &plan, take_started, &started);
    turn_for(world->loop, 15);
    stop(world, "short");
    turn_until(world, &started.done);
    assert_false(started.fine);
    TURN_WHILE(world, state_of(world, "short") != HELD_STATE_COUNT);
    assert_int_equal(state_of(world, "short"), HELD_STATE_COUNT);
}

/* A root like CRIU's, in which CRIU fails. */
static void make_broken_tools(struct world *world, char *room, size_t room_size)
{
    static const char *const dirs[] = { "",       "/proc", "/tmp", "/run", "/dev",
                                        "/image", "/box",  "/etc", "/usr", "/usr/sbin" };

    for (size_t i = 0; i < COUNT_OF(dirs); i++) {
        (void)snprintf(room, room_size, "%s/tools%s", world->path, dirs[i]);
        assert_int_equal(mkdir(room, 0755), 0);
    }
    (void)snprintf(room, room_size, "%s/tools/usr/sbin/criu", world->path);
    auto_close int program = open(room, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    (void)snprintf(room, room_size, "%s/tools/etc/criu-version", world->path);
    auto_close int version = open(room, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(program >= 0 && write(version, "4.2\n", 4) == 4);
    (void)snprintf(room, room_size, "%s/tools", world->path);
}

static void where_criu_does_not_work_memory_is_off_and_all_else_works(void **state)
{
    struct world *world = *state;
    const char *before = criu_path;
    char path[128];
    struct plan plan = a_plan("plain");

    make_broken_tools(world, path, sizeof path);
    driver_free(world->driver);
    criu_path = path;
    new_driver(world);
    criu_path = before;
    int link_fd = start(world, &plan);
    free(ask(link_fd, "remember white"));
    static struct answer answer;
    answer = park(world, "plain"); /* until the test has ended, the attempt itself fails */
    assert_false(answer.fine);
    TURN_WHILE(world, native_of(world->driver)->memory.test);
    answer = park(world, "plain");
    assert_false(answer.fine);
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    assert_int_equal(answer.err.sys, 0);
    assert_non_null(strstr(answer.err.message, "CRIU does not work"));
    auto_free char *text = ask(link_fd, "recall");
    check_has(text, "remembered: white");
    answer = (struct answer){ 0 };
    world->driver->ops->park(world->driver, "plain", false, take_kept, &answer);
    turn_until(world, &answer.done);
    assert_true(answer.fine);
    close(link_fd);
    plan.from = PLAN_PARKED_IMAGE; /* from before CRIU was lost */
    answer = start_from(world, &plan);
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    assert_non_null(
        strstr(answer.err.message, "cannot restore its processes: this server has no working CRIU; it can"));
    assert_non_null(strstr(answer.err.message, "--reboot on the command line)"));
    plan = a_plan("copy");
    plan.from = PLAN_IMAGE;
    memset(plan.image, 'a', sizeof plan.image - 1);
    answer = start_from(world, &plan);
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    assert_non_null(strstr(answer.err.message, "a snapshot of files only would do"));
}

static void a_test_that_is_cut_short_leaves_nothing_and_is_made_again(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("again");
    struct answer answer = { 0 };
    pid_t helper = 0, first = 0;

    driver_free(world->driver);
    new_driver(world);
    for (uint64_t until_ms = clock_mono_ms() + PATIENCE_MS; !first && clock_mono_ms() < until_ms;) {
        helper = find_helper();
        first = find_criu(helper);
        (void)usleep(1000);
    }
    assert_int_not_equal(first, 0);
    assert_int_equal(kill(helper, SIGKILL), 0);
    /* It is ours now. It ends after all others of its process namespace. */
    pid_t ended = 0;
    TURN_WHILE(world, (ended = waitpid(first, NULL, WNOHANG)) != first);
    assert_int_equal(ended, first);
    int link_fd = start(world, &plan);
    free(ask(link_fd, "ping"));
    const struct memory *memory = &native_of(world->driver)->memory;
    TURN_WHILE(world, !memory->has_failed);
    answer = park(world, "again");
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    TURN_WHILE(world, memory->has_failed); /* until the next one, after some seconds */
    answer = park(world, "again");
    if (!answer.fine)
        fail_msg("park: %s", err_text(&answer.err));
    close(link_fd);
}

static void the_test_at_the_start_succeeds(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("late");

    /* What CRIU has found out is kept for the runs after it, which cannot change it. */
    const struct memory *memory = &native_of(world->driver)->memory;
    TURN_WHILE(world, memory->known_fd < 0); /* it takes a third of a second, on an emulated processor ten */
    struct stat st;
    assert_int_equal(fstat(memory->known_fd, &st), 0);
    assert_true(st.st_size > 0);
    assert_true(fcntl(memory->known_fd, F_GET_SEALS) & F_SEAL_WRITE);
    assert_int_equal(pwrite(memory->known_fd, "x", 1, 0), -1);
    int link_fd = start(world, &plan);
    free(ask(link_fd, "ping"));
    struct answer answer = park(world, "late");
    if (!answer.fine)
        fail_msg("%s", err_text(&answer.err));
    close(link_fd);
}

/* ---- compressed images ---- */

static bool has(struct world *world, const char *dir, const char *name)
{
    char path[200];

    (void)snprintf(path, sizeof path, "%s/image/%s", dir, name);
    return faccessat(world->data_fd, path, F_OK, 0) == 0;
}

/* Its pages are in this form, and in no other. */
static void await_pages(struct world *world, const char *dir, bool compressed)
{
    TURN_WHILE(world, has(world, dir, "pages.zst") != compressed || has(world, dir, "pages-1.img") == compressed);
    assert_true(has(world, dir, "pages.zst") == compressed);
    assert_true(has(world, dir, "pages-1.img") != compressed);
    assert_false(has(world, dir, "pages.zst.new"));
}

static bool exists_at(const struct world *world, const char *path)
{
    return faccessat(world->data_fd, path, F_OK, 0) == 0;
}

static int set_up_compressing(void **state)
{
    assert_int_equal(set_up(state), 0);
    struct world *world = *state;
    driver_free(world->driver);
    world->compress_after_ms = 50;
    new_driver(world);
    return 0;
}

static void change_after(struct world *world, uint64_t after_ms)
{
    driver_free(world->driver);
    world->compress_after_ms = after_ms;
    new_driver(world);
}

static void a_compressed_image_comes_back_with_its_memory(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("small");

    park_with_colour(world, &plan, "pink");
    await_pages(world, "sandboxes/small", true);
    check_comes_back(world, &plan, "remembered: pink");
    assert_false(exists_at(world, "sandboxes/small/image"));
    /* And for a keeper that knows nothing of it. */
    struct answer answer = park(world, "small");
    assert_true(answer.fine);
    await_pages(world, "sandboxes/small", true);
    change_after(world, 50);
    check_comes_back(world, &plan, "child: tick");
}

static struct kept measure(struct world *world, const char *id)
{
    static struct answer answer;

    answer = (struct answer){ 0 };
    world->driver->ops->measure(world->driver, id, take_kept, &answer);
    turn_until(world, &answer.done);
    if (!answer.fine)
        fail_msg("%s", err_text(&answer.err));
    return answer.kept;
}

static void what_is_kept_is_measured_before_and_after(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sized");
    struct answer answer = { 0 };

    change_after(world, 600000);
    auto_close int link_fd = start(world, &plan);
    free(ask(link_fd, "put /tmp/note hello"));
    world->driver->ops->measure(world->driver, "sized", take_kept, &answer);
    assert_true(answer.done && !answer.fine); /* it runs */
    assert_int_equal(answer.err.kind, ERR_NOT_FOUND);
    struct answer made = snapshot(world, "sized");
    assert_true(made.fine);
    answer = park(world, "sized");
    assert_true(answer.fine);
    struct kept raw = measure(world, "sized"), of_snapshot = measure(world, made.kept.id);
    assert_true(raw.has_image && !raw.is_final && of_snapshot.has_image);
    assert_true(raw.layer_bytes >= 4096 && raw.layer_bytes < 1 << 20);
    assert_int_equal(of_snapshot.layer_bytes, 0);
    assert_true(raw.image_bytes > 100000 && raw.image_bytes == raw.raw_bytes);
    change_after(world, 50);
    await_pages(world, "sandboxes/sized", true);
    struct kept now;
    TURN_WHILE(world, !(now = measure(world, "sized")).is_final);
    assert_true(now.is_final);
    assert_int_equal(now.layer_bytes, raw.layer_bytes);
    assert_true(now.image_bytes < raw.image_bytes);
    assert_true(now.raw_bytes > raw.raw_bytes * 9 / 10 && now.raw_bytes < raw.raw_bytes * 11 / 10);
    /* Doctor has the sums, and warns before there is no room for more. */
    struct probe_row row;
    native_probe_kept(world->path, UINT64_C(5) << 30, &row);
    assert_int_equal(row.verdict, PROBE_OK);
    assert_string_equal(
        row.found,
        "1 snapshots and layers of builds, 1 of 5120 MiB; 1 paused sandboxes, 1 MiB; memory is compressed from 1 to "
        "1 MiB");
    native_probe_kept(world->path, 1000, &row);
    assert_int_equal(row.verdict, PROBE_WARN);
    assert_non_null(strstr(row.fix, "--snapshot-days"));
}

static void copies_of_a_compressed_snapshot_come_at_once(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("origin");
    auto_close int link_fd = start(world, &plan);
    char dir[100];

    free(ask(link_fd, "remember red"));
    struct answer made = snapshot(world, "origin");
    assert_true(made.fine);
    (void)snprintf(dir, sizeof dir, "snapshots/%s", made.kept.id);
    await_pages(world, dir, true);
    struct plan plans[] = { a_copy("one", &made.kept), a_copy("two", &made.kept), a_copy("three", &made.kept) };
    static struct answer answers[COUNT_OF(plans)];
    memset(answers, 0, sizeof answers);
    for (size_t i = 0; i < COUNT_OF(plans); i++)
        world->driver->ops->start_later(world->driver, &plans[i], take_started, &answers[i]);
    /* One of them is killed while it waits for the pages: the others do not notice. */
    stop(world, "two");
    for (size_t i = 0; i < COUNT_OF(plans); i++) {
        turn_until(world, &answers[i].done);
        assert_true(answers[i].fine == (i != 1));
        if (i == 1)
            continue;
        auto_free char *text = ask(answers[i].fd, "recall");
        check_has(text, "remembered: red");
        close(answers[i].fd);
    }
    await_pages(world, dir, true);
    /* While it is used it stays as it is. */
    change_after(world, 600000);
    struct plan four = a_copy("four", &made.kept), five = a_copy("five", &made.kept);
    check_comes_back(world, &four, "remembered: red");
    assert_true(has(world, dir, "pages-1.img") && has(world, dir, "pages.zst"));
    check_comes_back(world, &five, "remembered: red");
    /* A keeper that has not made these files does not trust them. */
    auto_close int dir_fd = openat(world->data_fd, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd = openat(dir_fd, "image/pages-1.img", O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    change_after(world, 600000);
    struct plan six = a_copy("six", &made.kept);
    check_comes_back(world, &six, "remembered: red");
    change_after(world, 50);
    await_pages(world, dir, true);
}

static void a_compressed_image_that_is_damaged_is_refused(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("hurt");
    struct stat st;

    park_with_colour(world, &plan, "grey");
    await_pages(world, "sandboxes/hurt", true);
    auto_close int fd = openat(world->data_fd, "sandboxes/hurt/image/pages.zst", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char byte;
    assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    for (int i = 0; i < 2; i++) { /* changed, then cut short */
        struct answer answer = start_from(world, &plan);
        assert_false(answer.fine);
        assert_int_equal(answer.err.kind, ERR_CONFLICT);
        assert_non_null(strstr(answer.err.message, "on_resume='reboot'"));
        await_parked(world, "hurt");
        assert_false(has_mark(world, "hurt")); /* nothing of it has run */
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
        assert_int_equal(ftruncate(fd, st.st_size - 1), 0);
    }
    plan.from = PLAN_PARKED;
    auto_close int again = start(world, &plan);
    free(ask(again, "ping"));
    assert_false(exists_at(world, "sandboxes/hurt/image"));
}

static void one_that_comes_back_while_it_is_compressed_has_its_own_pages(void **state)
{
    struct world *world = *state;

    for (int i = 0; i < 12; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "soon%d", i);
        struct plan plan = a_plan(id);
        park_with_colour(world, &plan, "lime");
        turn_for(world->loop, 45 + i * 4);
        check_comes_back(world, &plan, "remembered: lime");
        stop(world, id);
    }
}

static void a_keeper_killed_while_it_compresses_loses_nothing(void **state)
{
    struct world *world = *state;
    char id[16];

    for (enum native_step step = NATIVE_AT_COMPRESS_BEGIN; step <= NATIVE_AT_COMPRESS_END; step++) {
        int status;
        change_after(world, 0);
        (void)snprintf(id, sizeof id, "cut%d", step);
        struct plan plan = a_plan(id);
        park_with_colour(world, &plan, "teal");
        driver_free(world->driver);
        pid_t pid = fork();
        if (pid == 0) {
            world->loop = loop_new(); /* an epoll descriptor is shared by fork */
            world->compress_after_ms = 50;
            new_driver(world);
            native_die_at(world->driver, step);
            turn_for(world->loop, PATIENCE_MS);
            _exit(3); /* it has not come to that step */
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        world->compress_after_ms = step % 2 ? 50 : 0;
        new_driver(world);
        await_parked(world, id);
        if (step % 2) {
            (void)snprintf(id, sizeof id, "cut%d", step);
            char dir[40];
            (void)snprintf(dir, sizeof dir, "sandboxes/%s", id);
            await_pages(world, dir, true);
        }
        check_comes_back(world, &plan, "remembered: teal");
    }
}

static void one_that_cannot_be_compressed_stays_as_it_is(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("raw");

    native_fail_at(world->driver, NATIVE_AT_COMPRESS_NAME);
    park_with_colour(world, &plan, "white");
    turn_for(world->loop, 1000);
    assert_true(has(world, "sandboxes/raw", "pages-1.img"));
    assert_false(has(world, "sandboxes/raw", "pages.zst"));
    native_fail_at(world->driver, NATIVE_NOWHERE);
    check_comes_back(world, &plan, "remembered: white");
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        T(a_parked_sandbox_comes_back_with_its_memory),
        T(a_restored_sandbox_can_be_parked_again),
        T(copies_of_an_image_have_ids_names_and_random_numbers_of_their_own),
        T(a_copy_is_a_snapshot_with_memory_for_now),
        T(a_paused_sandbox_stays_frozen_when_its_dump_dies),
        T(a_sandbox_that_ran_runs_on_when_its_dump_dies),
        T(a_keeper_killed_at_any_moment_of_a_dump_harms_nothing),
        T(a_dump_that_takes_too_long_is_ended_and_harms_nothing),
        cmocka_unit_test_setup_teardown(a_dump_ends_when_the_disk_is_full, set_up_small, tear_down),
        cmocka_unit_test_setup_teardown(no_memory_is_written_where_it_has_no_room, set_up_small, tear_down),
        T(what_is_debugged_is_not_parked_and_goes_on),
        T(a_damaged_image_does_not_come_back_and_stays_parked),
        T(an_image_of_another_machine_is_refused),
        T(a_new_keeper_finds_what_is_parked_with_its_memory),
        T(a_return_that_fails_late_leaves_it_parked_for_this_keeper_and_the_next),
        T(a_keeper_killed_while_one_comes_back_loses_nothing),
        T(a_keeper_killed_at_any_moment_of_a_return_leaves_one_of_it),
        T(an_image_that_was_resumed_before_the_machine_went_down_is_refused),
        T(one_that_has_used_up_its_limits_comes_back_and_has_them_again),
        T(one_that_needs_more_memory_than_it_may_have_is_refused_soon),
        T(a_kill_in_the_middle_is_a_kill),
        T(where_criu_does_not_work_memory_is_off_and_all_else_works),
        T(a_test_that_is_cut_short_leaves_nothing_and_is_made_again),
        T(the_test_at_the_start_succeeds),
#define Z(name) cmocka_unit_test_setup_teardown(name, set_up_compressing, tear_down)
        Z(a_compressed_image_comes_back_with_its_memory),
        Z(what_is_kept_is_measured_before_and_after),
        Z(copies_of_a_compressed_snapshot_come_at_once),
        Z(a_compressed_image_that_is_damaged_is_refused),
        Z(one_that_comes_back_while_it_is_compressed_has_its_own_pages),
        Z(a_keeper_killed_while_it_compresses_loses_nothing),
        Z(one_that_cannot_be_compressed_stays_as_it_is),
    };
    struct err err;

    if (geteuid() != 0) {
        (void)fprintf(stderr, "SKIP: the native driver needs root\n");
        return 77;
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: memory_test INIT\n");
        return 2;
    }
    init_path = argv[1];
    criu_path = getenv("CLOISTER_CRIU") ? getenv("CLOISTER_CRIU") : "/var/cache/cloister/criu";
    if (access(criu_path, X_OK) < 0) {
        (void)fprintf(stderr, "SKIP: there is no CRIU in %s: scripts/criu.sh puts it there\n", criu_path);
        return 77;
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return 1;
    if (!native_enter_mount_namespace(&err)) {
        (void)fprintf(stderr, "%s\n", err_text(&err));
        return 1;
    }
    return cmocka_run_group_tests(cases, NULL, NULL);
}
