/* What processes do with numbers that are not theirs any more, and who is cut; guestd_test.py has the rest. */
#include "base/limits.h"
#undef LIMIT_STALL_MS
#undef LIMIT_RING_BYTES
#define LIMIT_STALL_MS 1 /* nobody waits for it here */
#define LIMIT_RING_BYTES (128 * 1024)
#include "guest/process.c"
#include "guest/process_input.c"
#include "guest/process_output.c"

#include <stdio.h>
#include <sys/syscall.h>

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
static unsigned failures, cuts;

static int set_up(void **state)
{
    (void)state;
    signals = signals_to_nobody = failures = cuts = 0;
    arena_init(&arena);
    guest = (struct guest){ .loop = loop_new(), .path_env = "/usr/bin:/bin" };
    guest.users = users_new("/etc");
    guest.processes = processes_new(&guest);
    guest.journal = journal_new(guest.loop);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    processes_free(guest.processes);
    journal_free(guest.journal);
    users_free(guest.users);
    pump_some(guest.loop);
    loop_free(guest.loop);
    clock_use(NULL);
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

/* The first child of a start exits before the second is ours. The second is left to be collected. */
static pid_t await_exit(void)
{
    siginfo_t info;

    assert_true(waitpid(-1, NULL, 0) > 0);
    assert_int_equal(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
    return info.si_pid;
}

static void a_start_that_fails_is_killed_while_it_can_be(void **state)
{
    struct process_watcher watcher;

    (void)state;
    (void)start_in_vain(&watcher);
    (void)await_exit();
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
    (void)start_in_vain(&watcher);
    pid_t pid = await_exit();
    processes_reap(guest.processes); /* its report is found on the way */
    assert_int_equal(failures, 1);
    assert_int_equal(signals, 0);
    assert_null(process_by_pid(guest.processes, pid, PROCESS_KEPT));
}

/* ---- slow watchers ---- */

static void do_nothing(struct process_watcher *watcher)
{
    (void)watcher;
}

static void on_cut(struct process_watcher *watcher, bool is_deadline)
{
    (void)is_deadline;
    cuts++;
    process_unwatch(watcher);
}

static void on_written(struct process_input *input, const struct err *err)
{
    (void)input;
    assert_null(err);
}

static struct process *start_shell(const char *script)
{
    struct user user = { .name = STR("me"), .home = STR("/"), .uid = getuid(), .gid = getgid() };
    struct str args[] = { STR("-c"), str_from(script) };
    struct process_want want = { .user = &user,
                                 .command = STR("/bin/sh"),
                                 .args = args,
                                 .arg_count = COUNT_OF(args),
                                 .cwd = "/",
                                 .has_stdin = true };
    struct err err;

    struct process *p = process_start_new(guest.processes, &want, &arena, &err);
    assert_non_null(p);
    return p;
}

static int waiting_in(int fd)
{
    int bytes = 0;

    assert_int_equal(ioctl(fd, FIONREAD, &bytes), 0);
    return bytes;
}

static void nobody_is_too_slow_for_a_process_that_has_ended(void **state)
{
    enum { ALL = 20000, MORE = 60000 }; /* with which it would have to wait, and what a pipe holds */
    struct process_watcher slow, quick, leaving;
    struct process_input line = { .bytes = STR("\n"), .done = on_written };
    char script[128];
    struct err err;

    (void)state;
    slow = quick = leaving = (struct process_watcher){ .step = do_nothing, .cut = on_cut, .failed = on_failed };
    (void)snprintf(script, sizeof script, "head -c %d /dev/zero; read x; head -c %d /dev/zero; exec sleep 1000", ALL,
                   MORE);
    struct process *p = start_shell(script);
    process_watch(p, &slow, &(uint64_t){ 0 });
    PUMP_UNTIL(guest.loop, p->output.end == ALL);
    assert_true(process_write(p, PROCESS_STDIN, &line, &err));
    while (waiting_in(p->sources[0].fd) < MORE)
        usleep(1000);
    process_kill(p, NULL);
    assert_true(waitpid(-1, NULL, 0) > 0); /* the first child of its start */
    siginfo_t info = { 0 };                /* on a busy machine the kill goes on by a timer */
    PUMP_UNTIL(guest.loop, waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid);
    processes_reap(guest.processes);
    assert_int_equal(p->state, ENDED);
    assert_int_equal(p->output.end, ALL + MORE);
    process_watch(p, &quick, &(uint64_t){ ALL + MORE });
    process_watch(p, &leaving, &(uint64_t){ ALL + MORE });
    process_unwatch(&leaving);
    pump_some(guest.loop);
    assert_int_equal(cuts, 0);
    process_unwatch(&slow);
    process_unwatch(&quick);
}

/* Each look at the clock finds it 25 ms later, as on a machine where every look at /proc takes so long. */
static uint64_t hasty_us(void)
{
    static uint64_t looks;

    return hand_clock_machine_us(CLOCK_MONOTONIC) + 25000 * looks++;
}

static void a_process_is_killed_on_a_machine_that_is_very_slow(void **state)
{
    static const struct clock_source hasty = { hasty_us, hand_clock_wall };
    struct process_watcher watcher = { .step = do_nothing, .cut = on_cut, .failed = on_failed };
    siginfo_t info = { 0 };

    (void)state;
    struct process *p = start_shell("echo; exec sleep 1000");
    process_watch(p, &watcher, &(uint64_t){ 0 });
    PUMP_UNTIL(guest.loop, p->output.end == 1);
    assert_true(waitpid(-1, NULL, 0) > 0); /* the first child of its start */
    clock_use(&hasty);
    process_kill(p, NULL);
    PUMP_UNTIL(guest.loop, waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid);
    processes_reap(guest.processes);
    process_unwatch(&watcher);
}

int main(void)
{
#define PROCESS_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        PROCESS_CASE(a_start_that_fails_is_killed_while_it_can_be),
        PROCESS_CASE(a_start_that_fails_after_it_was_collected_is_not_signalled),
        PROCESS_CASE(nobody_is_too_slow_for_a_process_that_has_ended),
        PROCESS_CASE(a_process_is_killed_on_a_machine_that_is_very_slow),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
