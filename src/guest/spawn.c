/*
 * The child shares our memory until it executes (CLONE_VM | CLONE_VFORK): nothing is copied, and what it writes to
 * struct child_state we can read. We are suspended meanwhile. So the child must not allocate, must not touch stdio, and
 * must go around the C library's setuid() and the like, which would signal *our* threads to change identity with it.
 */
#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/str.h"

enum { CHILD_STACK_BYTES = 64 * 1024 };

struct child_state {
    const struct spawn *spawn;
    const char *failed_step; /* NULL: it got as far as execve() */
    int error;
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

#define STEP(name, call)                 \
    do {                                 \
        if ((call) < 0) {                \
            state->failed_step = (name); \
            state->error = errno;        \
            _exit(126);                  \
        }                                \
    } while (0)

/*
 * child() - between clone and execve.
 *   memory    our parent's, who is suspended        signals   all blocked until just before the program runs
 *   user      root of the sandbox, then the user    cgroup    guestd's, then the user's
 *   must      enter the cgroups first: from there on all it does is counted
 *   must not  allocate, take locks, return
 */
static int child(void *argument)
{
    struct child_state *state = argument;
    const struct spawn *spawn = state->spawn;

    for (size_t i = 0; i < spawn->cgroup_count; i++)
        STEP("enter the cgroup", write(spawn->cgroup_fds[i], "0", 1));
    /* Ignored signals would stay ignored across execve; handlers must not run here. */
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP)
            (void)signal(number, SIG_DFL);
    STEP("make a session", setsid());
    if (spawn->takes_terminal)
        STEP("take the terminal", ioctl(spawn->in_fd, TIOCSCTTY, 0));
    /* While still root: this file is root's as long as the memory is guestd's, who is not dumpable. Not fatal. */
    int oom_fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (oom_fd >= 0)
        (void)!write(oom_fd, "100", 3);
    STEP("set the groups", syscall(SYS_setgroups, spawn->group_count, spawn->groups));
    STEP("set the group", syscall(SYS_setresgid, spawn->gid, spawn->gid, spawn->gid));
    STEP("set the user", syscall(SYS_setresuid, spawn->uid, spawn->uid, spawn->uid));
    STEP("change to the directory", chdir(spawn->cwd));
    STEP("set stdin", dup2(spawn->in_fd, 0));
    STEP("set stdout", dup2(spawn->out_fd, 1));
    STEP("set stderr", dup2(spawn->err_fd, 2));
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    run_program(spawn);
}

bool spawn_start(const struct spawn *spawn, pid_t *out_pid, struct err *err)
{
    struct child_state state = { .spawn = spawn };
    sigset_t all, before;

    char *stack = mmap(NULL, CHILD_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return err_sys(err, "get memory for a stack");
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(child, stack + CHILD_STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, &state);
    int error = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    (void)munmap(stack, CHILD_STACK_BYTES);
    /* The child's change of user was one of our memory too, and may have undone this; main() says what it is for. */
    (void)prctl(PR_SET_DUMPABLE, 0);
    if (pid < 0)
        return err_sys_num(err, error, "fork");
    if (state.failed_step) {
        (void)waitpid(pid, NULL, 0);
        return err_sys_num(err, state.error, "%s", state.failed_step);
    }
    *out_pid = pid;
    return true;
}
