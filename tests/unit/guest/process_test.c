/* What processes do with numbers that are not theirs any more; guestd_test.py has the rest. */
#include "guest/process.h"

#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/pump.h"

/* Instead of the C library's: who was signalled after there was nobody left to be. */
static unsigned signals, signals_to_nobody;

int kill(pid_t pid, int number)
{
    long result = syscall(SYS_kill, pid, number);

    signals++;
    signals_to_nobody += result < 0;
    return (int)result;
}

static struct guest guest;
static struct arena arena;
static unsigned failures;

static int set_up(void **state)
{
    (void)state;
    signals = signals_to_nobody = failures = 0;
    arena_init(&arena);
    guest = (struct guest){ .loop = loop_new(), .nursery_fd = -1, .path_env = "/usr/bin:/bin" };
    guest.users = users_new("/etc");
    guest.processes = processes_new(&guest);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    processes_free(guest.processes);
    users_free(guest.users);
    pump_some(guest.loop);
    loop_free(guest.loop);
    arena_done(&arena);
    return 0;
}

static void on_step(struct process_watcher *watcher)
{
    (void)watcher;
    fail_msg("it has started");
}

static void on_failed(struct process_watcher *watcher, const struct err *err)
{
    (void)watcher;
    failures += err->message[0] != '\0';
}

/* Runs as whoever runs the test, in a directory that is not there: it gets as far as a child. */
static struct process *start_in_vain(struct process_watcher *watcher)
{
    struct user user = { .name = STR("me"), .home = STR("/"), .uid = getuid(), .gid = getgid() };
    struct process_want want = { .user = &user, .command = STR("/bin/true"), .cwd = "/nowhere/at/all" };
    struct err err;

    struct process *p = process_start_new(guest.processes, &want, &arena, &err);
    assert_non_null(p);
    *watcher = (struct process_watcher){ .step = on_step, .failed = on_failed };
    process_watch(p, watcher, NULL);
    return p;
}

static void await_exit(pid_t pid)
{
    siginfo_t info;

    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

static void a_start_that_fails_is_killed_while_it_can_be(void **state)
{
    struct process_watcher watcher;

    (void)state;
    pid_t pid = process_pid(start_in_vain(&watcher));
    await_exit(pid);
    PUMP_UNTIL(guest.loop, failures == 1); /* by its report: it is not collected yet */
    assert_int_equal(signals, 1);
    assert_int_equal(signals_to_nobody, 0);
    processes_reap(guest.processes);
    assert_int_equal(signals, 1);
}

static void a_start_that_fails_after_it_was_collected_is_not_signalled(void **state)
{
    struct process_watcher watcher;

    (void)state;
    pid_t pid = process_pid(start_in_vain(&watcher));
    await_exit(pid);
    processes_reap(guest.processes); /* its report is found on the way */
    assert_int_equal(failures, 1);
    assert_int_equal(signals, 0);
    assert_null(process_by_pid(guest.processes, pid, PROCESS_KEPT));
}

int main(void)
{
#define PROCESS_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        PROCESS_CASE(a_start_that_fails_is_killed_while_it_can_be),
        PROCESS_CASE(a_start_that_fails_after_it_was_collected_is_not_signalled),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
