/*
 * How it works: fork, arrange descriptors, drop privileges, exec. The child reports an error over a pipe that exec closes,
 * so end of file without an error means success.
 */
#include "privsep/role.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "privsep/channel.h"
#include "privsep/confine.h"
#include "privsep/message.h"

enum { ASIDE = 64, REPORT_BYTES = 1024 };

/* Roles do not get the rest of keeper's environment. The sanitizers' options are for test builds. */
static const char *const kept_environment[] = {
    "PATH",
    "LANG",
    "TZ",
    "ASAN_OPTIONS",
    "UBSAN_OPTIONS",
#ifdef CLOISTER_TEST_HOLES
    "CLOISTER_TEST_HOLE",
#endif
};

struct start {
    const struct role_want *want;
    int channel_fd, report_fd, program_fd;
    pid_t keeper;
};

static bool arrange_descriptors(struct start *start, struct err *err)
{
    int channel_fd = fcntl(start->channel_fd, F_DUPFD_CLOEXEC, ASIDE);
    int fds[ROLE_FDS_MAX];

    /* Move all of them up first: a number that one is to have may still be in use by another. */
    start->report_fd = fcntl(start->report_fd, F_DUPFD_CLOEXEC, ASIDE);
    if (start->program_fd >= 0)
        start->program_fd = fcntl(start->program_fd, F_DUPFD_CLOEXEC, ASIDE);
    for (uint32_t i = 0; i < start->want->fd_count; i++)
        fds[i] = fcntl(start->want->fds[i], F_DUPFD_CLOEXEC, ASIDE);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(null_fd, STDOUT_FILENO) < 0)
        return err_sys(err, "open /dev/null");
    if (dup2(channel_fd, ROLE_CHANNEL_FD) < 0)
        return err_sys(err, "place the channel");
    for (uint32_t i = 0; i < start->want->fd_count; i++)
        if (dup2(fds[i], ROLE_FIRST_FD + (int)i) < 0)
            return err_sys(err, "place descriptor %u", i);
    if (close_range(ROLE_FIRST_FD + start->want->fd_count, ASIDE - 1, 0) < 0 ||
        close_range(ASIDE, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        return err_sys(err, "close keeper's descriptors");
    return true;
}

static bool drop_privileges(const struct role_want *want, struct err *err)
{
    if (want->uid == geteuid() && want->gid == getegid())
        return true;
    /* In this order: the bounding set needs a capability, and the change of ids may leave some capabilities. */
    if (!confine_drop_bounding_set(err))
        return false;
    if (setgroups(0, NULL) < 0 || setresgid(want->gid, want->gid, want->gid) < 0 ||
        setresuid(want->uid, want->uid, want->uid) < 0)
        return err_sys(err, "become user %u", want->uid);
    return confine_drop_all_capabilities(err);
}

static bool die_with_keeper(const struct start *start, struct err *err)
{
    /* After the change of ids, which clears it. If keeper died before it was set, we have another parent. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return err_sys(err, "PR_SET_PDEATHSIG");
    if (getppid() != start->keeper)
        _exit(0);
    return true;
}

static bool exec_role(const struct start *start, struct err *err)
{
    const struct role_want *want = start->want;
    const char *argv[ROLE_ARGS_MAX + 4] = { "cloister", "role", want->name };
    const char *environment[COUNT_OF(kept_environment) + 1] = { NULL };
    size_t count = 3, kept = 0;

    for (const char *const *arg = want->args; arg && *arg; arg++) {
        if (count == COUNT_OF(argv) - 1)
            return err_set(err, ERR_INTERNAL, "too many arguments for role %s", want->name);
        argv[count++] = *arg;
    }
    for (size_t i = 0; i < COUNT_OF(kept_environment); i++) {
        const char *value = getenv(kept_environment[i]);
        char *pair;
        if (!value)
            continue;
        if (asprintf(&pair, "%s=%s", kept_environment[i], value) < 0)
            return err_sys(err, "environment");
        environment[kept++] = pair; /* exec frees it */
    }
    /* The casts are safe: exec writes to neither. */
    if (start->program_fd >= 0)
        (void)execveat(start->program_fd, "", (char *const *)argv, (char *const *)environment, AT_EMPTY_PATH);
    else
        (void)execve("/proc/self/exe", (char *const *)argv, (char *const *)environment);
    return err_sys(err, "execute the program of %s", want->name);
}

/*
 * In a fork of keeper, still root and with all its memory and descriptors.
 *   must      close what the role is not given; drop user, groups and capabilities; in this order
 *   must not  run anything of keeper's loop: its descriptors are shared with the parent
 */
static no_return void role_child(struct start *start)
{
    auto_buf struct buf report = buf_make(NULL, REPORT_BYTES);
    struct err err;
    sigset_t none;

    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(077);
    (void)setsid(); /* fails only for a group leader, which a fresh child is not */
    if (arrange_descriptors(start, &err) && drop_privileges(start->want, &err) && die_with_keeper(start, &err))
        (void)!exec_role(start, &err);
    message_pack_err(&report, &err);
    (void)!write(start->report_fd, report.data, report.len); /* fails when keeper is gone, and then it is not needed */
    _exit(1);
}

static bool read_report(int fd, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_all(fd, REPORT_BYTES, &text, &len, err))
        return false;
    if (len == 0)
        return true;
    struct unpack in = unpack_from(str_of(text, len));
    struct err failure;
    message_unpack_err(&in, &failure);
    if (unpack_done(&in, err))
        *err = failure;
    return false;
}

bool role_start(const struct role_want *want, struct role *out, struct err *err)
{
    int pair[2] = { -1, -1 }, report[2];

    if (want->fd_count > ROLE_FDS_MAX)
        return err_set(err, ERR_INTERNAL, "too many descriptors for role %s", want->name);
    if (!want->connection && !channel_pair(pair, err))
        return false;
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    if (pipe2(report, O_CLOEXEC) < 0)
        return err_sys(err, "pipe");
    auto_close int report_in = report[0];
    auto_close int report_out = report[1];
    auto_close int pidfd = -1;
    struct start start = { .want = want,
                           .channel_fd = want->connection ? *want->connection : theirs,
                           .report_fd = report_out,
                           .program_fd = want->program ? *want->program : -1,
                           .keeper = getpid() };
    struct clone_args args = { .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        role_child(&start);
    if (pid < 0)
        return err_sys(err, "start role %s", want->name);
    fd_close(&report_out);
    if (!read_report(report_in, err)) {
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
        (void)waitid((idtype_t)P_PIDFD, (id_t)pidfd, NULL, WEXITED);
        return err_wrap(err, "start role %s", want->name);
    }
    *out = (struct role){ .pid = pid, .pidfd = take_fd(&pidfd), .channel_fd = take_fd(&ours) };
    return true;
}
