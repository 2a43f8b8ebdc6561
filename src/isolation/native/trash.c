/*
 * How it works: a directory to delete is renamed into trash/, and a child of keeper empties that with remove_inside(), which
 * a guest's depth, links and names cannot mislead. What cannot be removed is tried again with the next directory.
 */
#include "isolation/native/trash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/remove.h"

enum {
    UNIQUE_CHARS = 16,
    /* A sandbox's end is not the moment to start a process, and what ends together is deleted together. */
    DELAY_MS = 200,
    END_MS = 500, /* for the child to end with us */
};

struct trash {
    struct loop *loop;
    int trash_fd;
    pid_t pid; /* of the child that deletes, or 0 */
    int pidfd;
    struct watch *watch;
    struct timer later; /* set while something waits for a child to be started */
    uint64_t rounds;    /* children so far, the one that runs included */
    void (*done)(void *context);
    void *done_context;
};

/* ---- deleting ---- */

static DIR *open_dir(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir)
        fd_close(&fd);
    return dir;
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* ---- the child ---- */

/*
 * In a fork of keeper, with all its power: it opens nothing by path, only names below trash/, and follows no link.
 */
static no_return void delete_all(pid_t keeper, int trash_fd)
{
    struct err err;

    /* If keeper died before it was set, we have another parent. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != keeper)
        _exit(1);
    if (dup2(trash_fd, 3) < 0 || close_range(4, ~0u, 0) < 0)
        _exit(1);
    /* Not before: the next keeper waits for the lock that was among these descriptors. */
    (void)setpriority(PRIO_PROCESS, 0, 19);
    (void)syscall(SYS_ioprio_set, 1, 0, 3 << 13); /* this process, class idle */
    _exit(remove_inside(3, &err) ? 0 : 1);
}

static void start_child(struct timer *timer);

static void want_child(struct trash *trash)
{
    if (!timer_is_set(&trash->later))
        timer_set(&trash->later, trash->loop, DELAY_MS, start_child);
}

static void tell_done(struct trash *trash)
{
    if (trash->done)
        trash->done(trash->done_context);
}

static void child_ended(void *context, unsigned ready)
{
    struct trash *trash = context;
    siginfo_t how = { 0 };

    (void)ready;
    /* ECHILD: it was reaped elsewhere, and has ended too. */
    if (waitid((idtype_t)P_PIDFD, (id_t)trash->pidfd, &how, WEXITED | WNOHANG) == 0 && how.si_pid == 0)
        return;
    watch_free(trash->watch);
    trash->watch = NULL;
    fd_close(&trash->pidfd);
    trash->pid = 0;
    if (how.si_pid && (how.si_code != CLD_EXITED || how.si_status != 0))
        log_warn("trash: not everything could be deleted; the next sandbox's end tries again");
    tell_done(trash);
}

static void start_child(struct timer *timer)
{
    struct trash *trash = container_of(timer, struct trash, later);
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&trash->pidfd,
                               .exit_signal = SIGCHLD };

    if (trash->pid) { /* it may have looked past what came last: start another when it is through */
        want_child(trash);
        return;
    }
    trash->rounds++;
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        delete_all(keeper, trash->trash_fd);
    if (pid < 0) {
        log_warn("trash: cannot start deleting: %s", strerror(errno));
        trash->pidfd = -1;
        tell_done(trash);
        return;
    }
    trash->pid = pid;
    trash->watch = watch_new(trash->loop, trash->pidfd, child_ended, trash);
    watch_want(trash->watch, WATCH_READ);
}

struct trash *trash_new(struct loop *loop, int trash_fd)
{
    struct trash *trash = NEW(struct trash);

    trash->loop = loop;
    trash->trash_fd = trash_fd;
    trash->pidfd = -1;
    DIR *dir = open_dir(trash_fd, ".");
    bool any = false;
    for (struct dirent *entry; dir && !any && (entry = readdir(dir));)
        any = !is_dots(entry->d_name);
    if (dir)
        (void)closedir(dir);
    if (any)
        want_child(trash);
    return trash;
}

void trash_free(struct trash *trash)
{
    if (!trash)
        return;
    timer_clear(&trash->later);
    watch_free(trash->watch);
    if (trash->pid) {
        (void)pidfd_send_signal(trash->pidfd, SIGKILL, NULL, 0); /* what is left waits in trash/ */
        /* It may be in the middle of a file of millions of extents, which no signal ends. It holds nothing of ours. */
        (void)!fd_await(trash->pidfd, POLLIN, clock_mono_ms() + END_MS);
        (void)waitid((idtype_t)P_PIDFD, (id_t)trash->pidfd, NULL, WEXITED | WNOHANG);
    }
    fd_close(&trash->pidfd);
    free(trash);
}

bool trash_add(struct trash *trash, int dir_fd, const char *name, struct err *err)
{
    char unique[UNIQUE_CHARS + 1];

    random_id(unique, UNIQUE_CHARS);
    if (renameat(dir_fd, name, trash->trash_fd, unique) < 0 && errno != ENOENT)
        return err_sys(err, "move %s to the trash", name);
    want_child(trash);
    return true;
}

void trash_empty(struct trash *trash)
{
    want_child(trash);
}

uint64_t trash_round(const struct trash *trash)
{
    return trash->rounds + 1;
}

uint64_t trash_rounds_over(const struct trash *trash)
{
    return trash->rounds - (trash->pid != 0);
}

void trash_on_round(struct trash *trash, void (*done)(void *context), void *context)
{
    trash->done = done;
    trash->done_context = context;
}

bool trash_idle(const struct trash *trash)
{
    return trash->pid == 0 && !timer_is_set(&trash->later);
}
