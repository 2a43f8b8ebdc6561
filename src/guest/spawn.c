/*
 * The child is a plain fork: a copy of our memory, which is small, and of our descriptors, all of which close when it
 * executes. Sharing our memory instead (vfork) would spare the copy, about as much time as this takes, but then we must
 * wait until it is out of it, or be killed with it when the limits of its cgroup strike it down.
 *
 * A worker of ours may have held a lock of the C library at that moment, which in the copy nobody will ever release. So
 * the child must not allocate, must not touch stdio, and must go around the C library's setuid() and the like.
 *
 * It reports by a pipe: nothing and the end of it when it has executed, one struct report when a step failed.
 */
#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/fd.h"
#include "base/str.h"

enum step {
    ENTER_CGROUP,
    MAKE_SESSION,
    TAKE_TERMINAL,
    SET_GROUPS,
    SET_GROUP,
    SET_USER,
    CHANGE_DIRECTORY,
    SET_STDIN,
    SET_STDOUT,
    SET_STDERR,
    STEP_COUNT,
};

static const char *const step_names[STEP_COUNT] = {
    [ENTER_CGROUP] = "enter the cgroup",
    [MAKE_SESSION] = "make a session",
    [TAKE_TERMINAL] = "take the terminal",
    [SET_GROUPS] = "set the groups",
    [SET_GROUP] = "set the group",
    [SET_USER] = "set the user",
    [CHANGE_DIRECTORY] = "change to the directory",
    [SET_STDIN] = "set stdin",
    [SET_STDOUT] = "set stdout",
    [SET_STDERR] = "set stderr",
};

/* Small enough for a pipe to take and give it in one piece. */
struct report {
    uint32_t step;
    int32_t error;
};

static void say(struct str text)
{
    (void)!write(2, text.at, text.len); /* nobody is there to be told that telling failed */
}

/* A shell's words, because upstream starts everything through one and users know them. */
static int explain(const char *file, int error)
{
    say(STR("sh: "));
    say(str_from(file));
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        say(STR(": not found\n"));
        return 127;
    case EACCES:
        say(STR(": Permission denied\n"));
        return 126;
    case E2BIG:
        say(STR(": Argument list too long\n"));
        return 126;
    default:
        say(STR(": cannot execute\n"));
        return 126;
    }
}

static no_return void run_program(const struct spawn *spawn)
{
    int error = ENOENT;

    for (const char *const *file = spawn->files; *file; file++) {
        (void)execve(*file, spawn->argv, spawn->envp);
        /* A script without "#!": shells run it themselves. */
        if (errno == ENOEXEC) {
            const char *script[] = { "sh", *file, NULL };
            (void)execve("/bin/sh", (char *const *)script, spawn->envp);
        }
        if (errno != ENOENT && errno != ENOTDIR)
            error = errno;
    }
    _exit(explain(spawn->argv[0], error));
}

static no_return void give_up(const struct spawn *spawn, int report_fd, enum step step)
{
    struct report report = { .step = step, .error = errno };

    if (report_fd >= 0) {
        (void)!write(report_fd, &report, sizeof report); /* guestd is the sandbox: there is always a reader */
        _exit(126);
    }
    (void)dup2(spawn->err_fd, 2);
    const char *reason = strerrordesc_np(report.error);
    say(STR("sh: "));
    say(str_from(step_names[step]));
    say(STR(": "));
    say(str_from(reason ? reason : "unknown error"));
    say(STR("\n"));
    _exit(126);
}

#define STEP(step, call)                       \
    do {                                       \
        if ((call) < 0)                        \
            give_up(spawn, report_fd, (step)); \
    } while (0)

static int enter_directory(const struct spawn *spawn)
{
    int status = chdir(spawn->cwd);

    return status < 0 && errno == EACCES && spawn->cwd_else ? chdir(spawn->cwd_else) : status;
}

/*
 * child() - between fork and execve.
 *   memory    a copy of guestd's, its secrets too     signals   all blocked until just before the program runs
 *   user      root of the sandbox, then the user      cgroup    guestd's, then the user's
 *   must      enter the cgroups first: from there on all it does is counted
 *   must not  allocate, take locks, return, become dumpable
 */
static no_return void child(const struct spawn *spawn, int report_fd)
{
    for (size_t i = 0; i < spawn->cgroup_count; i++)
        STEP(ENTER_CGROUP, write(spawn->cgroup_fds[i], "0", 1));
    /*
     * Ignored signals would stay ignored across execve; handlers must not run here. By the bare call: libc refuses to
     * touch the two that it uses itself, and whoever started us may have left those ignored.
     */
    const unsigned char by_default[64] = { 0 };
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL, 8); /* two of them cannot be set, and need not */
    STEP(MAKE_SESSION, setsid());
    if (spawn->takes_terminal)
        STEP(TAKE_TERMINAL, ioctl(spawn->in_fd, TIOCSCTTY, 0));
    /* While still root: this file is root's as long as the memory is guestd's, who is not dumpable. Not fatal. */
    int oom_fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (oom_fd >= 0)
        (void)!write(oom_fd, "100", 3);
    STEP(SET_GROUPS, syscall(SYS_setgroups, spawn->group_count, spawn->groups));
    STEP(SET_GROUP, syscall(SYS_setresgid, spawn->gid, spawn->gid, spawn->gid));
    STEP(SET_USER, syscall(SYS_setresuid, spawn->uid, spawn->uid, spawn->uid));
    /* The change of user sets this to what the host's fs.suid_dumpable says; main() says what it is for. */
    (void)prctl(PR_SET_DUMPABLE, 0);
    STEP(CHANGE_DIRECTORY, enter_directory(spawn));
    STEP(SET_STDIN, dup2(spawn->in_fd, 0));
    STEP(SET_STDOUT, dup2(spawn->out_fd, 1));
    STEP(SET_STDERR, dup2(spawn->err_fd, 2));
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    run_program(spawn);
}

bool spawn_start(const struct spawn *spawn, pid_t *out_pid, int *out_report_fd, struct err *err)
{
    int report[2] = { -1, -1 };
    sigset_t all, before;

    if (out_report_fd && pipe2(report, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, "make a pipe");
    auto_close int ours = report[0], theirs = report[1];
    /* A handler of ours in the child would write to the pipe by which it tells our loop. */
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = _Fork();
    if (pid == 0)
        child(spawn, theirs);
    int error = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        return err_sys_num(err, error, "fork");
    *out_pid = pid;
    if (out_report_fd)
        *out_report_fd = take_fd(&ours);
    return true;
}

enum spawn_outcome spawn_outcome(int report_fd, struct err *err)
{
    struct report report;
    ssize_t n;

    do
        n = read(report_fd, &report, sizeof report);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return SPAWN_UNKNOWN;
    if (n != sizeof report || report.step >= STEP_COUNT)
        return SPAWN_EXECUTED;
    (void)err_sys_num(err, report.error, "%s", step_names[report.step]);
    return SPAWN_FAILED;
}
