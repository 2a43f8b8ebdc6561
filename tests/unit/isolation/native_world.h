/*
 * native_world.h - a data directory with one template, and a native driver on it, for tests of what is kept on disk.
 */
#ifndef TESTS_UNIT_ISOLATION_NATIVE_WORLD_H
#define TESTS_UNIT_ISOLATION_NATIVE_WORLD_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "io/loop.h"
#include "isolation/native/native.h"
#include "test.h"
#include "turn.h"

static const char *init_path; /* the static program that stands in for guestd, from the command line */

static const char layer_id[] = "00000000000000000000000000000000000000000000000000000000000000aa";

#define TEST_UID_BASE 0x60000000u /* no server on this machine has these ids */

struct world {
    char path[64];
    int data_fd, guestd_fd;
    struct loop *loop;
    struct driver *driver;
    unsigned exits;
    unsigned left; /* sandboxes whose pages others hold */
};

static inline struct plan a_plan(const char *id)
{
    struct plan plan = { .layer_count = 1, .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 20 };

    (void)snprintf(plan.id, sizeof plan.id, "%s", id);
    (void)snprintf(plan.hostname, sizeof plan.hostname, "cloister");
    memcpy(plan.layers[0], layer_id, sizeof layer_id);
    return plan;
}

static inline void note_exit(void *context, const char *id, enum exit_cause cause)
{
    struct world *world = context;

    (void)id;
    if (cause == EXIT_LEFT_PAGES)
        world->left++;
    else
        world->exits++;
}

static inline void new_driver(struct world *world)
{
    struct err err;
    struct native_config config = { .data_fd = world->data_fd,
                                    .guestd_fd = world->guestd_fd,
                                    .uid_base = TEST_UID_BASE };

    world->driver = native_driver_new(world->loop, &config, &err);
    if (!world->driver)
        fail_msg("%s", err_text(&err));
    world->driver->exited = note_exit;
    world->driver->exited_context = world;
}

static inline void next_driver(struct world *world)
{
    driver_free(world->driver);
    new_driver(world);
}

static inline int open_at(const struct world *world, const char *path)
{
    int fd = openat(world->data_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        fail_msg("%s: %s", path, strerror(errno));
    return fd;
}

static inline bool exists(const struct world *world, const char *path)
{
    return faccessat(world->data_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static inline void world_open(struct world *world)
{
    world->data_fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->guestd_fd = open(init_path, O_RDONLY | O_CLOEXEC);
    assert_true(world->data_fd >= 0 && world->guestd_fd >= 0);
    assert_int_equal(mkdirat(world->data_fd, "layers", 0700), 0);
    auto_close int layers_fd = open_at(world, "layers");
    assert_int_equal(mkdirat(layers_fd, layer_id, 0755), 0);
    auto_close int fd = openat(layers_fd, layer_id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const char *const *dir = (const char *const[]){ "etc", "tmp", "proc", NULL }; *dir; dir++)
        assert_int_equal(mkdirat(fd, *dir, 0755), 0);
    auto_close int file_fd = openat(fd, "etc/template-file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(file_fd >= 0 && write(file_fd, "template", 8) == 8);
    world->loop = loop_new();
    new_driver(world);
}

static inline unsigned count_names(int dir_fd, const char *path)
{
    unsigned count = 0;
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        (void)closedir(dir);
    return count;
}

static inline unsigned count_cgroups(const struct world *world)
{
    struct stat st;
    char command[300], line[300];
    unsigned count = 0;

    assert_int_equal(fstat(world->data_fd, &st), 0);
    (void)snprintf(command, sizeof command, "find /sys/fs/cgroup -path '*/cloister.%jx.%jx/*' -type d 2>/dev/null",
                   (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    FILE *found = popen(command, "r");
    while (found && fgets(line, sizeof line, found))
        count++;
    if (found)
        (void)pclose(found);
    return count;
}

static inline unsigned count_overlays(void)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[4096];
    unsigned count = 0;

    while (mounts && fgets(line, sizeof line, mounts))
        count += strstr(line, " overlay ") != NULL;
    if (mounts)
        (void)fclose(mounts);
    return count;
}

static inline bool has_children(void)
{
    pid_t pid;

    do
        pid = waitpid(-1, NULL, WNOHANG);
    while (pid > 0);
    return pid == 0;
}

/* Nothing but what is on disk: no process, cgroup, mount, and nothing half-made or half-deleted. */
static inline void check_at_rest(struct world *world)
{
    for (int i = 0; i < 3000 && (count_names(world->data_fd, "trash") || count_cgroups(world) || has_children()); i++)
        turn_for(world->loop, 10);
    assert_int_equal(count_names(world->data_fd, "trash"), 0);
    assert_int_equal(count_cgroups(world), 0);
    assert_int_equal(count_overlays(), 0);
    assert_false(has_children());
}

struct stopping {
    struct loop *loop;
    bool is_answered, gone;
};

static inline void note_stopped(void *context, bool gone, const struct err *err)
{
    struct stopping *stopping = context;

    if (err)
        (void)fprintf(stderr, "%s\n", err_text(err));
    stopping->is_answered = true;
    stopping->gone = gone;
    loop_stop_soon(stopping->loop);
}

static inline bool stop(struct world *world, const char *id)
{
    struct stopping stopping = { .loop = world->loop };

    driver_stop(world->driver, id, LIMIT_STOP_MS, note_stopped, &stopping);
    while (!stopping.is_answered)
        loop_run(world->loop);
    return stopping.gone;
}

static inline void world_close(struct world *world)
{
    struct held *held = NULL;
    uint32_t count = 0;
    struct err err;
    char mnt[80];

    if (!world->driver) /* the case failed in between: clear up all the same */
        new_driver(world);
    if (driver_list(world->driver, &held, &count, &err))
        for (uint32_t i = 0; i < count; i++)
            (void)stop(world, held[i].id);
    free(held);
    for (int i = 0; i < 100 && (count_names(world->data_fd, "trash") || count_cgroups(world)); i++)
        turn_for(world->loop, 10);
    driver_free(world->driver);
    loop_free(world->loop);
    /* A keeper that a case has killed leaves its tmpfs: outside of tests it goes with keeper's mount namespace. */
    while (snprintf(mnt, sizeof mnt, "%s/mnt", world->path) > 0 && umount2(mnt, MNT_DETACH) == 0)
        continue;
    fd_close(&world->guestd_fd);
    (void)!remove_inside(world->data_fd, &err);
    fd_close(&world->data_fd);
}

static inline int set_up(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-test.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    world_open(world);
    *state = world;
    return 0;
}

static inline int tear_down(void **state)
{
    struct world *world = *state;

    world_close(world);
    (void)rmdir(world->path);
    free(world);
    return 0;
}

static inline bool try_start(struct world *world, const struct plan *plan, int *out_fd, struct err *err)
{
    struct started started;

    if (!driver_start(world->driver, plan, &started, err))
        return false;
    *out_fd = started.guestlink_fd;
    return true;
}

static inline int start(struct world *world, const struct plan *plan)
{
    struct err err;
    int fd;

    if (!try_start(world, plan, &fd, &err))
        fail_msg("%s", err_text(&err));
    return fd;
}

/* Says a line to init and returns all it answers, until the line with a dot alone. */
static inline char *ask(int fd, const char *command)
{
    char *text = mem_new(65536);
    size_t len = 0;

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

/* Its answer to the command is this line alone. */
static inline void check_says(int fd, const char *command, const char *want)
{
    auto_free char *text = ask(fd, command);

    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, want) != 0)
        fail_msg("%s: '%s' instead of '%s'", command, text, want);
}

struct answer {
    struct loop *loop;
    bool is_there;
    struct err err;
    struct kept kept;
};

static inline void note_kept(void *context, const struct kept *kept, const struct err *err)
{
    struct answer *answer = context;

    answer->is_there = true;
    if (kept)
        answer->kept = *kept;
    if (err)
        answer->err = *err;
    loop_stop_soon(answer->loop);
}

static inline enum err_kind wait_for(struct world *world, struct answer *answer)
{
    while (!answer->is_there)
        loop_run(world->loop);
    return answer->err.kind;
}

static inline enum err_kind freeze(struct world *world, const char *id)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->freeze(world->driver, id, note_kept, &answer);
    return wait_for(world, &answer);
}

static inline enum err_kind thaw(struct world *world, const char *id)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->thaw(world->driver, id, note_kept, &answer);
    return wait_for(world, &answer);
}

static inline enum err_kind park(struct world *world, const char *id)
{
    struct answer answer = { .loop = world->loop };

    world->driver->ops->park(world->driver, id, false, note_kept, &answer);
    enum err_kind kind = wait_for(world, &answer);
    if (kind)
        (void)fprintf(stderr, "park: %s\n", err_text(&answer.err));
    return kind;
}

/* HELD_STATE_COUNT: the driver does not hold it. */
static inline enum held_state state_of(struct world *world, const char *id)
{
    auto_free struct held *held = NULL;
    enum held_state state = HELD_STATE_COUNT;
    uint32_t count;
    struct err err;

    assert_true(driver_list(world->driver, &held, &count, &err));
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(held[i].id, id))
            state = held[i].state;
    return state;
}

/* One more keeper, in a process of its own, which does this and is killed at that step. */
static inline void killed_at(struct world *world, enum native_step step, void (*act)(struct world *world))
{
    int status;

    driver_free(world->driver);
    world->driver = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        /* A loop of its own: an epoll descriptor is shared by fork. */
        world->loop = loop_new();
        new_driver(world);
        native_die_at(world->driver, step);
        act(world);
        _exit(3); /* it has not come to that step */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status))
        fail_msg("step %d: the keeper was not killed but ended with %d", step, WEXITSTATUS(status));
    new_driver(world);
}

static inline int run_cases(const struct CMUnitTest *cases, size_t count, int argc, char **argv)
{
    struct err err;

    if (geteuid() != 0) {
        (void)fprintf(stderr, "SKIP: the native driver needs root\n");
        return 77;
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s INIT\n", argv[0]);
        return 2;
    }
    init_path = argv[1];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return 1;
    if (!native_enter_mount_namespace(&err)) {
        (void)fprintf(stderr, "%s\n", err_text(&err));
        return 1;
    }
    return _cmocka_run_group_tests("native", cases, count, NULL, NULL);
}

#define NATIVE_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

#endif
