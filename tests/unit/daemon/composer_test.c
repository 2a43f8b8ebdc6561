/*
 * The composer with another composer_serve(): its child tries what the test tells it to, and answers with 0 or an errno.
 * This program is front, and run as `… role composer info` it is the composer.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "daemon/forker_rig.h"
#include "daemon/roles.h"
#include "mail/compose.h"
#include "privsep/frame.h"
#include "test.h"

enum attempt {
    TRY_NOTHING = 'x',
    TRY_OPEN = 'o',
    TRY_SOCKET = 's',
    TRY_FORK = 'f',
    TRY_DUP = 'd',
    TRY_SIGNAL = 'k',
    TRY_MEMORY = 'm',
    TRY_PREPARED = 'p',
    CRASH = 'c',
    SPIN = 'l',
};

/* ---- the child ---- */

static bool is_prepared;

void composer_prepare(void)
{
    is_prepared = access("/etc/passwd", R_OK) == 0; /* files can still be opened */
}

static int attempt(enum attempt what)
{
    int result = 0;

    errno = 0;
    switch (what) {
    case TRY_NOTHING:
        break;
    case TRY_OPEN:
        result = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
        break;
    case TRY_SOCKET:
        result = socket(AF_UNIX, SOCK_STREAM, 0);
        break;
    case TRY_FORK:
        result = fork();
        if (result == 0)
            _exit(0);
        break;
    case TRY_DUP:
        result = dup(0);
        break;
    case TRY_SIGNAL:
        result = kill(getppid(), 0);
        break;
    case TRY_MEMORY:
        result = mmap(NULL, LIMIT_COMPOSER_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
        break;
    case TRY_PREPARED:
        return is_prepared ? 0 : EINVAL;
    case CRASH:
        (void)raise(SIGABRT);
        break;
    case SPIN:
        for (volatile unsigned i = 0;; i++)
            ;
    }
    return result < 0 ? errno : 0;
}

bool composer_serve(int fd, struct err *err)
{
    auto_free char *frame = NULL;
    size_t len;

    if (!frame_read(fd, LIMIT_MAIL_FRAME_BYTES, 0, &frame, &len, err))
        return false;
    int result = attempt((enum attempt)frame[0]);
    return frame_write(fd, str_of(&result, sizeof result), 0, err);
}

/* ---- front ---- */

static int set_up(void **state)
{
    *state = rig_start("composer", NULL, MESSAGE_COMPOSE, NULL, 0);
    return 0;
}

static int tear_down(void **state)
{
    rig_stop(*state);
    return 0;
}

/* What the child answers; -1: it ended without an answer. */
static int try_it(struct rig *rig, enum attempt what)
{
    struct rig_child child = rig_child(rig);
    auto_close int fd = child.fd;
    auto_free char *frame = NULL;
    char order = (char)what;
    size_t len;
    int result;
    struct err err;

    if (fd < 0)
        fail_msg("%s", err_text(&child.err));
    assert_true(frame_write(fd, str_of(&order, 1), 10000, &err));
    if (!frame_read(fd, 100, 20000, &frame, &len, &err))
        return -1;
    assert_int_equal(len, sizeof result);
    memcpy(&result, frame, sizeof result);
    return result;
}

/* ---- the tests ---- */

static void each_request_has_a_child_of_its_own(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 5 * LIMIT_COMPOSERS; i++)
        assert_int_equal(try_it(rig, TRY_NOTHING), 0);
}

static void libraries_are_prepared_before_files_are_shut(void **state)
{
    assert_int_equal(try_it(*state, TRY_PREPARED), 0);
}

static void a_child_has_memory_and_its_connection_only(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(try_it(rig, TRY_OPEN), EPERM);
    assert_int_equal(try_it(rig, TRY_SOCKET), EPERM);
    assert_int_equal(try_it(rig, TRY_FORK), EPERM);
    assert_int_equal(try_it(rig, TRY_DUP), EPERM);
    assert_int_equal(try_it(rig, TRY_SIGNAL), EPERM);
#ifndef __SANITIZE_ADDRESS__ /* see confine.h */
    assert_int_equal(try_it(rig, TRY_MEMORY), ENOMEM);
#endif
}

static void a_child_that_crashes_hurts_nobody(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 5 * LIMIT_COMPOSERS; i++)
        assert_int_equal(try_it(rig, CRASH), -1);
    assert_int_equal(try_it(rig, TRY_NOTHING), 0);
    assert_false(rig->is_broken);
}

static void a_child_that_does_not_end_is_killed(void **state)
{
    struct rig *rig = *state;
    uint64_t begun_ms = clock_mono_ms();

    assert_int_equal(try_it(rig, SPIN), -1);
    assert_true(clock_mono_ms() - begun_ms < LIMIT_COMPOSE_MS);
}

static void too_many_children_are_refused(void **state)
{
    struct rig *rig = *state;
    int fds[8 * LIMIT_COMPOSERS];
    int count = 0;
    struct rig_child answer;

    while ((answer = rig_child(rig)).fd >= 0) {
        assert_true(count < (int)COUNT_OF(fds));
        fds[count++] = answer.fd;
    }
    assert_int_equal(answer.err.kind, ERR_LIMIT);
    assert_true(count >= LIMIT_COMPOSERS);
    while (count)
        fd_close(&fds[--count]);
    for (int i = 0; i < 10000 && (answer = rig_child(rig)).fd < 0; i++)
        rig_turn(rig);
    assert_true(answer.fd >= 0);
    fd_close(&answer.fd);
}

/* The nice values of the role's children. */
static int nice_of_children(const struct rig *rig, int out[4])
{
    char path[64];
    int pid, count = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", rig->process.pid, rig->process.pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (count < 4 && fscanf(file, "%d", &pid) == 1)
        out[count++] = getpriority(PRIO_PROCESS, (id_t)pid);
    fclose(file);
    return count;
}

static void a_child_that_computes_for_long_gives_way_and_one_that_waits_does_not(void **state)
{
    struct rig *rig = *state;
    int begins_with = getpriority(PRIO_PROCESS, (id_t)rig->process.pid);
    int gives_way = MIN(begins_with + 10, 19);
    struct rig_child waits = rig_child(rig), spins = rig_child(rig);
    int found[4], low = 0;
    char order = SPIN;
    struct err err;

    if (begins_with == gives_way)
        skip(); /* there is nothing below */
    assert_true(waits.fd >= 0 && spins.fd >= 0);
    assert_true(frame_write(spins.fd, str_of(&order, 1), 10000, &err));
    while (!low) {
        int count = nice_of_children(rig, found);
        assert_int_equal(count, 2); /* else it was killed before it gave way */
        for (int i = 0; i < count; i++)
            low += found[i] == gives_way;
        rig_turn(rig);
    }
    assert_int_equal(low, 1);
    assert_int_equal(getpriority(PRIO_PROCESS, (id_t)rig->process.pid), begins_with);
    fd_close(&waits.fd);
    fd_close(&spins.fd);
}

#define COMPOSER_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argc, char **argv)
{
    static const struct role_row row = {
        .name = "composer", .main = composer_main, .prepare = composer_prepare, .calls = composer_calls
    };
    const struct CMUnitTest cases[] = {
        COMPOSER_CASE(each_request_has_a_child_of_its_own),
        COMPOSER_CASE(libraries_are_prepared_before_files_are_shut),
        COMPOSER_CASE(a_child_has_memory_and_its_connection_only),
        COMPOSER_CASE(a_child_that_crashes_hurts_nobody),
        COMPOSER_CASE(a_child_that_does_not_end_is_killed),
        COMPOSER_CASE(too_many_children_are_refused),
        COMPOSER_CASE(a_child_that_computes_for_long_gives_way_and_one_that_waits_does_not),
    };

    if (argc == 4 && !strcmp(argv[1], "role"))
        _exit(role_run(&row, argv[3]));
    return cmocka_run_group_tests(cases, NULL, NULL);
}
