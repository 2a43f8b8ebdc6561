#include "isolation/native/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "io/loop.h"
#include "test.h"
#include "turn.h"

/* Directories that a helper may change, read, and only hold; and one that it is not given. */
struct world {
    char path[64];
    int fd, change_fd, read_fd, hold_fd, other_fd;
    struct loop *loop;
    struct helpers *helpers;
    struct helper *helper;
    unsigned asked, ended;
    uint8_t step;
    uint64_t figures[HELPER_FIGURES];
    struct err err;
};

static int make_dir(int dir_fd, const char *name)
{
    assert_int_equal(mkdirat(dir_fd, name, 0755), 0);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    auto_close int file_fd = openat(fd, "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(file_fd >= 0);
    return fd;
}

static int set_up(void **state)
{
    struct world *world = NEW(struct world);
    struct err err;

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-helper.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    world->fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->change_fd = make_dir(world->fd, "change");
    world->read_fd = make_dir(world->fd, "read");
    world->hold_fd = make_dir(world->fd, "hold");
    world->other_fd = make_dir(world->fd, "other");
    world->loop = loop_new();
    world->helpers = helpers_new(world->loop, &err);
    assert_non_null(world->helpers);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;
    struct err err;

    helpers_free(world->helpers);
    loop_free(world->loop);
    fd_close(&world->change_fd);
    fd_close(&world->read_fd);
    fd_close(&world->hold_fd);
    fd_close(&world->other_fd);
    assert_true(remove_inside(world->fd, &err));
    fd_close(&world->fd);
    assert_int_equal(rmdir(world->path), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    free(world);
    return 0;
}

static void note_asked(void *context, uint8_t step)
{
    struct world *world = context;

    world->asked++;
    world->step = step;
    loop_stop_soon(world->loop);
}

static void note_ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct world *world = context;

    world->ended++;
    world->helper = NULL;
    if (figures)
        memcpy(world->figures, figures, sizeof world->figures);
    if (err)
        world->err = *err;
    loop_stop_soon(world->loop);
}

static void start(struct world *world, bool (*work)(struct helper_voice *voice, void *context, struct err *err),
                  uint64_t patience_ms)
{
    const struct helper_job job = { .work = work,
                                    .asked = note_asked,
                                    .ended = note_ended,
                                    .context = world,
                                    .dirs = { { world->change_fd, HELPER_CHANGE },
                                              { world->read_fd, HELPER_READ },
                                              { world->hold_fd, HELPER_HOLD } },
                                    .dir_count = 3,
                                    .patience_ms = patience_ms };
    struct err err;

    world->helper = helper_start(world->helpers, &job, &err);
    if (!world->helper)
        fail_msg("%s", err_text(&err));
}

/* ---- what it can and what it cannot ---- */

static bool expect(bool holds, const char *what, struct err *err)
{
    return holds || err_set(err, ERR_INTERNAL, "%s: errno %d", what, errno);
}

static bool fails(long result)
{
    return result < 0 && (errno == EPERM || errno == EACCES);
}

static bool has_landlock(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 2;
}

static bool landlocked; /* in this process, before the helper's filter forbids to ask */

static bool try_things(struct helper_voice *voice, void *context, struct err *err)
{
    const struct world *world = context;
    char value[8];

    (void)voice;
    /* It does not have keeper's descriptors. */
    if (!expect(fcntl(world->other_fd, F_GETFD) < 0 && errno == EBADF, "keeper's descriptors", err))
        return false;
    /* What copying needs. */
    if (!expect(openat(world->read_fd, "file", O_RDONLY | O_CLOEXEC) >= 0, "read", err) ||
        !expect(openat(world->change_fd, "new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) >= 0, "make", err) ||
        !expect(mkdirat(world->change_fd, "directory", 0700) == 0, "make a directory", err) ||
        !expect(mknodat(world->change_fd, "whiteout", S_IFCHR, 0) == 0, "make a whiteout", err) ||
        !expect(mknodat(world->change_fd, "socket", S_IFSOCK | 0600, 0) == 0, "make a socket", err) ||
        !expect(fchownat(world->change_fd, "new", 1000, 1000, 0) == 0, "change an owner", err) ||
        !expect(linkat(world->change_fd, "new", world->change_fd, "directory/same", 0) == 0, "link", err) ||
        !expect(fsync(world->hold_fd) == 0, "sync", err))
        return false;
    /* What it does not need. The list of calls: */
    if (!expect(fails(socket(AF_INET, SOCK_STREAM, 0)), "socket", err) ||
        !expect(fails(mount(NULL, "/", NULL, MS_REMOUNT, NULL)), "mount", err) ||
        !expect(fails(syscall(SYS_execveat, world->read_fd, "file", NULL, NULL, 0)), "exec", err) ||
        !expect(fails(syscall(SYS_fork)), "fork", err) || !expect(fails(kill(getppid(), 0)), "kill", err) ||
        !expect(fails(syscall(SYS_ptrace, 16, getppid(), 0, 0)), "trace", err) ||
        !expect(fails(syscall(SYS_open_by_handle_at, world->change_fd, value, O_RDONLY)), "open by handle", err) ||
        !expect(fails(syscall(SYS_init_module, value, sizeof value, "")), "load a module", err) ||
        !expect(fails(syscall(SYS_setns, world->change_fd, 0)), "enter a namespace", err))
        return false;
    /* Capabilities: */
    if (!expect(fails(mknodat(world->change_fd, "disk", S_IFBLK | 0600, 0x800)), "make a device", err))
        return false;
    if (!landlocked)
        return true;
    /* And names: */
    return expect(fails(openat(AT_FDCWD, "/etc/passwd", O_RDONLY | O_CLOEXEC)), "open a path", err) &&
           expect(fails(openat(world->read_fd, "../other/file", O_RDONLY | O_CLOEXEC)), "leave its directories", err) &&
           expect(fails(openat(world->hold_fd, "file", O_RDONLY | O_CLOEXEC)), "read what it holds", err) &&
           expect(fails(openat(world->read_fd, "file", O_WRONLY | O_CLOEXEC)), "write what it reads", err) &&
           expect(fails(mkdirat(world->read_fd, "directory", 0700)), "make where it reads", err) &&
           expect(fails(unlinkat(world->read_fd, "file", 0)), "remove where it reads", err);
}

static void it_can_do_what_copying_needs_and_no_more(void **state)
{
    struct world *world = *state;

    landlocked = has_landlock();
    start(world, try_things, 10000);
    while (!world->ended)
        loop_run(world->loop);
    if (world->err.kind)
        fail_msg("%s", err_text(&world->err));
}

/* ---- steps ---- */

static bool take_steps(struct helper_voice *voice, void *context, struct err *err)
{
    (void)context;
    for (uint8_t step = 1; step <= 3; step++)
        if (!helper_ask(voice, step, err))
            return false;
    helper_figure(voice, 0, 17);
    helper_figure(voice, 1, UINT64_MAX);
    return true;
}

static void it_waits_at_each_step_and_says_its_figures(void **state)
{
    struct world *world = *state;

    start(world, take_steps, 10000);
    for (unsigned step = 1; step <= 3; step++) {
        loop_run(world->loop);
        assert_int_equal(world->asked, step);
        assert_int_equal(world->step, step);
        turn_for(world->loop, 20);
        assert_int_equal(world->asked, step);
        assert_int_equal(world->ended, 0);
        helper_go(world->helper);
    }
    while (!world->ended)
        loop_run(world->loop);
    assert_int_equal(world->err.kind, ERR_NONE);
    assert_int_equal(world->figures[0], 17);
    assert_true(world->figures[1] == UINT64_MAX);
    turn_for(world->loop, 50); /* and is reaped */
}

static bool say_no(struct helper_voice *voice, void *context, struct err *err)
{
    (void)voice;
    (void)context;
    return err_set(err, ERR_FULL, "there is no room");
}

static void its_error_is_keepers(void **state)
{
    struct world *world = *state;

    start(world, say_no, 10000);
    while (!world->ended)
        loop_run(world->loop);
    assert_int_equal(world->err.kind, ERR_FULL);
    assert_string_equal(world->err.message, "there is no room");
    turn_for(world->loop, 50);
}

static bool take_for_ever(struct helper_voice *voice, void *context, struct err *err)
{
    return helper_ask(voice, 1, err) && take_for_ever(voice, context, err);
}

static void one_that_takes_too_long_or_is_no_longer_wanted_is_killed(void **state)
{
    struct world *world = *state;

    start(world, take_for_ever, 100);
    while (!world->ended)
        loop_run(world->loop);
    assert_int_equal(world->err.kind, ERR_TIMEOUT);
    start(world, take_for_ever, 10000);
    turn_for(world->loop, 10);
    helper_cancel(world->helper);
    turn_for(world->loop, 100);
    assert_int_equal(world->ended, 1);  /* of the first one */
    start(world, take_for_ever, 10000); /* and this one ends with keeper: tear_down() looks */
}

static bool die(struct helper_voice *voice, void *context, struct err *err)
{
    (void)voice;
    (void)context;
    (void)err;
    _exit(0);
}

static void an_early_end_is_an_error(void **state)
{
    struct world *world = *state;

    start(world, die, 10000);
    while (!world->ended)
        loop_run(world->loop);
    assert_int_equal(world->err.kind, ERR_INTERNAL);
    turn_for(world->loop, 50);
}

/* As a dump does: it has something to put right first. */
static bool put_right(struct helper_voice *voice, void *context, struct err *err)
{
    const struct world *world = context;
    struct pollfd keeper = { .fd = helper_keeper_fd(voice) };

    (void)poll(&keeper, 1, 10000);
    (void)usleep(100000);
    auto_close int fd = openat(world->change_fd, "righted", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return (fd >= 0 && keeper.revents & POLLHUP) || err_sys(err, "put right");
}

static bool stay(struct helper_voice *voice, void *context, struct err *err)
{
    (void)voice;
    (void)context;
    (void)sleep(30);
    return err_set(err, ERR_INTERNAL, "it was not killed");
}

static void start_softly(struct world *world, bool (*work)(struct helper_voice *voice, void *context, struct err *err))
{
    const struct helper_job job = { .work = work,
                                    .ended = note_ended,
                                    .context = world,
                                    .runs_criu = true,
                                    .ends_softly = true,
                                    .dirs = { { world->change_fd, HELPER_CHANGE } },
                                    .dir_count = 1,
                                    .patience_ms = 20000 };
    struct err err;

    world->helper = helper_start(world->helpers, &job, &err);
    assert_non_null(world->helper);
    turn_for(world->loop, 50);
}

static bool has_children(void)
{
    siginfo_t how;

    return waitid(P_ALL, 0, &how, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void one_that_ends_softly_ends_by_itself_or_is_killed_later(void **state)
{
    struct world *world = *state;

    start_softly(world, put_right);
    helper_cancel(world->helper);
    for (int i = 0; i < 100 && has_children(); i++)
        turn_for(world->loop, 20);
    assert_int_equal(faccessat(world->change_fd, "righted", F_OK, 0), 0);
    start_softly(world, stay);
    helper_cancel(world->helper);
    turn_for(world->loop, HELPER_END_MS / 2);
    assert_true(has_children());
    for (int i = 0; i < 100 && has_children(); i++)
        turn_for(world->loop, HELPER_END_MS / 50);
    assert_false(has_children());
    assert_int_equal(world->ended, 0);
}

#define HELPER_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        HELPER_CASE(it_can_do_what_copying_needs_and_no_more),
        HELPER_CASE(it_waits_at_each_step_and_says_its_figures),
        HELPER_CASE(its_error_is_keepers),
        HELPER_CASE(one_that_takes_too_long_or_is_no_longer_wanted_is_killed),
        HELPER_CASE(an_early_end_is_an_error),
        HELPER_CASE(one_that_ends_softly_ends_by_itself_or_is_killed_later),
    };

    if (geteuid() != 0) {
        (void)fprintf(stderr, "SKIP: what root gives up needs root\n");
        return 77;
    }
    return cmocka_run_group_tests(cases, NULL, NULL);
}
