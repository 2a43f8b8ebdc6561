/*
 * spawn.c - theory of operation. A start is two forks. The first child makes a session, forks the second and exits; the
 * second becomes the program. So a command lives in a session and a process group of its own, by which its processes
 * are found later, but leads neither: setsid(1) executes its program in place only if it is no group leader, and only
 * then does the caller get the program's exit code. The kernel does not reuse the number of the dead leader while its
 * session has members. A program with a terminal must lead its session, and an interpreter leads its own so that its
 * group can be interrupted.
 *
 * The forks copy our memory, which is small, and our descriptors, which all close at execve(). Only the spawner shares
 * memory (vfork): guestd must not wait for a child, nor be killed with it when the child's cgroup runs out of memory.
 *
 * A worker thread may have held a lock of the C library when we forked; in the copy it stays locked. So the children
 * must not allocate, must not touch stdio, and must go around the C library's setuid() and the like.
 *
 * The second child reports by a pipe: first its pid and session, then the step that failed, if one did. The end of the
 * pipe after the first report means that the program was executed.
 */
#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/fd.h"
#include "base/str.h"

enum step {
    IS_CHILD, /* no failure: pid and session */
    ENTER_CGROUP,
    MAKE_SESSION,
    FORK,
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
    [FORK] = "fork",
    [TAKE_TERMINAL] = "take the terminal",
    [SET_GROUPS] = "set the groups",
    [SET_GROUP] = "set the group",
    [SET_USER] = "set the user",
    [CHANGE_DIRECTORY] = "change to the directory",
    [SET_STDIN] = "set stdin",
    [SET_STDOUT] = "set stdout",
    [SET_STDERR] = "set stderr",
};

/* Small enough that a pipe writes and reads it in one piece. */
struct report {
    uint32_t step;
    int32_t error;
    int32_t pid, session; /* of IS_CHILD */
};

static void say(struct str text)
{
    (void)!write(2, text.at, text.len); /* if this fails there is no other way to report it */
}

/* A shell's messages: upstream starts everything through a shell, and users know them. */
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
        (void)!write(report_fd, &report, sizeof report); /* guestd reads it; without guestd there is no sandbox */
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

/* The bare system call, without the C library's fork handlers. */
static pid_t bare_fork(void)
{
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/*
 * become_program() - between the last fork and execve.
 *   memory    a copy of guestd's, its secrets too     signals   all blocked until just before the program runs
 *   user      root of the sandbox, then the user      cgroup    guestd's, then the user's (a spawner's child: there)
 *   must      enter the cgroups before anything that costs, but after the last fork: there may be no room for one
 *   must not  allocate, take locks, return, become dumpable
 */
static no_return void become_program(const struct spawn *spawn, int report_fd)
{
    /*
     * Ignored signals would stay ignored across execve; handlers must not run here. By the bare system call: libc
     * refuses to change the two signals it uses itself, and those may be ignored too.
     */
    const unsigned char by_default[64] = { 0 };
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL,
                      8); /* fails for SIGKILL and SIGSTOP, which need not be set */
    if (spawn->session != SPAWN_MEMBER)
        STEP(MAKE_SESSION, setsid());
    if (report_fd >= 0) {
        const struct report me = { .step = IS_CHILD, .pid = getpid(), .session = getsid(0) };
        if (write(report_fd, &me, sizeof me) != sizeof me)
            _exit(126);
    }
    for (size_t i = 0; i < spawn->cgroup_count; i++)
        STEP(ENTER_CGROUP, write(spawn->cgroup_fds[i], "0", 1));
    if (spawn->session == SPAWN_TERMINAL)
        STEP(TAKE_TERMINAL, ioctl(spawn->in_fd, TIOCSCTTY, 0));
    /* While still root: the file is root's because guestd's memory is not dumpable. Not fatal. */
    int oom_fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (oom_fd >= 0)
        (void)!write(oom_fd, "100", 3);
    STEP(SET_GROUPS, syscall(SYS_setgroups, spawn->group_count, spawn->groups));
    STEP(SET_GROUP, syscall(SYS_setresgid, spawn->gid, spawn->gid, spawn->gid));
    STEP(SET_USER, syscall(SYS_setresuid, spawn->uid, spawn->uid, spawn->uid));
    /* The change of user resets this to the host's fs.suid_dumpable; see main() for why it matters. */
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

int spawn_second(const struct spawn *spawn, int report_fd)
{
    if (spawn->session == SPAWN_MEMBER)
        STEP(MAKE_SESSION, setsid());
    pid_t pid = bare_fork();
    if (pid == 0)
        become_program(spawn, report_fd);
    return pid < 0 ? errno : 0;
}

static no_return void first_child(const struct spawn *spawn, int report_fd)
{
    errno = spawn_second(spawn, report_fd);
    if (errno)
        give_up(spawn, report_fd, FORK);
    _exit(0);
}

static bool fork_into(void (*child)(const struct spawn *, int), const struct spawn *spawn, int report_fd,
                      pid_t *out_pid, struct err *err)
{
    sigset_t all, before;

    /* A signal handler of ours in the child would write to our loop's pipe. */
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = _Fork();
    if (pid == 0)
        child(spawn, report_fd);
    int error = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        return err_sys_num(err, error, "fork");
    *out_pid = pid;
    return true;
}

bool spawn_command(const struct spawn *spawn, int report_fd, struct err *err)
{
    pid_t first; /* exits at once, and is reaped as an orphan */

    return fork_into(first_child, spawn, report_fd, &first, err);
}

bool spawn_leader(const struct spawn *spawn, pid_t *out_pid, struct err *err)
{
    return fork_into(become_program, spawn, -1, out_pid, err);
}

/*
 * In a sandbox that came back from disk, become_program() may not write it: until the program runs the file is that of the
 * host's root, in whose user namespace CRIU made the memory. Not fatal. What the program has set itself stays.
 */
static void raise_oom_score(pid_t pid)
{
    char path[48], now[8];

    (void)snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && read(fd, now, sizeof now) == 2 && now[0] == '0')
        (void)!pwrite(fd, "100", 3, 0);
}

enum spawn_outcome spawn_outcome(int report_fd, struct spawn_child *child, struct err *err)
{
    for (;;) {
        struct report report;
        ssize_t n = read(report_fd, &report, sizeof report);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return SPAWN_UNKNOWN;
        if (n != sizeof report || report.step >= STEP_COUNT) {
            if (child->pid) {
                raise_oom_score(child->pid);
                return SPAWN_EXECUTED;
            }
            (void)err_set(err, ERR_UNAVAILABLE, "something in the sandbox killed it before it started; try again");
            return SPAWN_FAILED;
        }
        if (report.step != IS_CHILD) {
            (void)err_sys_num(err, report.error, "%s", step_names[report.step]);
            return SPAWN_FAILED;
        }
        *child = (struct spawn_child){ .pid = report.pid, .session = report.session };
    }
}
