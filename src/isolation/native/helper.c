/*
 * How it works: the child and keeper have a socket between them. The child sends a packet for each step that it waits
 * at, and a last one with its figures or its error; keeper sends a byte to let it go on. The child has read what a guest
 * wrote, so keeper believes nothing of this but the form.
 */
#include "isolation/native/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/pack.h"
#include "privsep/confine.h"
#include "privsep/message.h"

enum { SAY_STEP = 's', SAY_DONE = 'd', SAY_FAILED = 'f', SAY_BYTES = 2048 };
enum { END_MS = 500 }; /* for children to end with us */

/* ---- the child ---- */

struct helper_voice {
    int fd;
    uint64_t figures[HELPER_FIGURES];
};

static const struct confine_rule calls[] = {
    { "openat", "names below the directories it was given", 0, 0 },
    { "openat2", "…, through links that lead nowhere else", 0, 0 },
    { "close", "…", 0, 0 },
    { "fcntl", "…", 0, 0 },
    { "getdents64", "…", 0, 0 },
    { "fchdir", "attributes of what cannot be opened", 0, 0 },
    { "fstat", "what to copy", 0, 0 },
    { "newfstatat", "…", 0, 0 },
    { "statx", "…", 0, 0 },
    { "fstatfs", "room on disk", 0, 0 },
    { "read", "contents", 0, 0 },
    { "pread64", "…", 0, 0 },
    { "write", "…", 0, 0 },
    { "pwrite64", "…", 0, 0 },
    { "lseek", "holes", 0, 0 },
    { "copy_file_range", "contents", 0, 0 },
    { "ioctl", "contents, shared", FICLONE, 0 },
    { "ftruncate", "a hole at the end", 0, 0 },
    { "readlinkat", "what to copy", 0, 0 },
    { "mkdirat", "the copy", 0, 0 },
    { "mknodat", "…", 0, 0 },
    { "symlinkat", "…", 0, 0 },
    { "linkat", "…", 0, 0 },
    { "unlinkat", "what an upper layer hides", 0, 0 },
    { "renameat", "…, and names that appear when all is written", 0, 0 },
    { "renameat2", "the same where there is no renameat", 0, 0 },
    { "fchown", "owners, modes, times, attributes", 0, 0 },
    { "fchownat", "…", 0, 0 },
    { "fchmod", "…", 0, 0 },
    { "fchmodat", "…", 0, 0 },
    { "utimensat", "…", 0, 0 },
    { "flistxattr", "…", 0, 0 },
    { "llistxattr", "…", 0, 0 },
    { "fgetxattr", "…", 0, 0 },
    { "lgetxattr", "…", 0, 0 },
    { "fsetxattr", "…", 0, 0 },
    { "lsetxattr", "…", 0, 0 },
    { "fremovexattr", "…", 0, 0 },
    { "fsync", "what is kept must be on disk", 0, 0 },
    { "syncfs", "…", 0, 0 },
    { "sendto", "steps, and the last word", 0, 0 },
    { "recvfrom", "keeper's go", 0, 0 },
    { "recvmsg", "an archive to unpack", 0, 0 },
    { "getrandom", "names of what is moved aside", 0, 0 },
    { "setpriority", "once nobody waits", 0, 0 },
    { "ioprio_set", "…", 0, 0 },
    { "brk", "memory", 0, 0 },
    { "mmap", "…", 0, 0 },
    { "mremap", "…", 0, 0 },
    { "munmap", "…", 0, 0 },
    { "madvise", "…", 0, 0 },
    { "futex", "the C library's locks", 0, 0 },
    { "rt_sigreturn", "end of a signal handler", 0, 0 },
    { "sigaltstack", "the sanitizers of test builds", 0, 0 },
    { "exit_group", "its end", 0, 0 },
    { 0 },
};

/* CAP_SYS_ADMIN is for trusted.overlay.*: no smaller one lets a process read or set these. */
static const unsigned char capabilities[] = { CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,
                                              CAP_FSETID, CAP_SETFCAP,      CAP_SYS_ADMIN };

static bool keep_capabilities(struct err *err)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

    for (size_t i = 0; i < sizeof capabilities; i++) {
        sets[capabilities[i] / 32].permitted |= 1u << capabilities[i] % 32;
        sets[capabilities[i] / 32].effective |= 1u << capabilities[i] % 32;
    }
    return syscall(SYS_capset, &header, sets) == 0 || err_sys(err, "drop capabilities");
}

/* Before its second version Landlock forbids all links between directories. */
static bool confine_dirs(const struct helper_job *job, struct err *err)
{
#ifdef LANDLOCK_ACCESS_FS_REFER
    static const uint64_t read_rights = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR,
                          write_rights = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                         LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                         LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                                         LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                         LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER;
    const struct landlock_ruleset_attr all = { .handled_access_fs = read_rights | write_rights |
                                                                    LANDLOCK_ACCESS_FS_EXECUTE |
                                                                    LANDLOCK_ACCESS_FS_MAKE_BLOCK };

    if (syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 2)
        return true; /* the descriptors and the list of calls have to do */
    auto_close int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    for (size_t i = 0; rules >= 0 && i < job->dir_count; i++) {
        if (job->dirs[i].may == HELPER_HOLD)
            continue;
        const struct landlock_path_beneath_attr below = {
            .allowed_access = job->dirs[i].may == HELPER_CHANGE ? read_rights | write_rights : read_rights,
            .parent_fd = job->dirs[i].fd,
        };
        if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) < 0)
            return err_sys(err, "add a Landlock rule");
    }
    if (rules < 0 || syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        return err_sys(err, "load the Landlock rules");
#else
    (void)job;
    (void)err;
#endif
    return true;
}

static int order_fds(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static bool close_others(const struct helper_job *job, int voice_fd, struct err *err)
{
    int kept[HELPER_FDS + 1];
    unsigned from = 3; /* stays: the log */

    for (size_t i = 0; i < job->dir_count; i++)
        kept[i] = job->dirs[i].fd;
    kept[job->dir_count] = voice_fd;
    qsort(kept, job->dir_count + 1, sizeof *kept, order_fds);
    for (size_t i = 0; i <= job->dir_count; i++) {
        if ((unsigned)kept[i] > from && close_range(from, (unsigned)kept[i] - 1, 0) < 0)
            return err_sys(err, "close keeper's descriptors");
        from = (unsigned)kept[i] + 1;
    }
    return close_range(from, ~0u, 0) == 0 || err_sys(err, "close keeper's descriptors");
}

static bool run(struct helper_voice *voice, const struct helper_job *job, const struct confine_filter *filter,
                struct err *err)
{
    if (job->runs_criu)
        return close_others(job, voice->fd, err) && confine_hide_memory(err) && job->work(voice, job->context, err);
    return close_others(job, voice->fd, err) && confine_hide_memory(err) && confine_no_new_privileges(err) &&
           confine_dirs(job, err) && keep_capabilities(err) && confine_load_filter(filter, err) &&
           job->work(voice, job->context, err);
}

static void say(const struct helper_voice *voice, const struct buf *out)
{
    (void)!send(voice->fd, out->data, out->len, MSG_NOSIGNAL); /* if keeper is gone, so are we */
}

static no_return void be_helper(pid_t keeper, int voice_fd, const struct helper_job *job,
                                const struct confine_filter *filter)
{
    struct helper_voice voice = { .fd = voice_fd };
    auto_buf struct buf out = buf_make(NULL, SAY_BYTES);
    struct err err;

    /* If keeper died before it was set, we have another parent. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != keeper)
        _exit(1);
    bool fine = run(&voice, job, filter, &err);
    pack_u8(&out, fine ? SAY_DONE : SAY_FAILED);
    if (!fine)
        message_pack_err(&out, &err);
    for (size_t i = 0; fine && i < HELPER_FIGURES; i++)
        pack_u64(&out, voice.figures[i]);
    say(&voice, &out);
    _exit(0);
}

bool helper_ask(struct helper_voice *voice, uint8_t step, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, SAY_BYTES);
    char go;
    ssize_t n;

    pack_u8(&out, SAY_STEP);
    pack_u8(&out, step);
    say(voice, &out);
    do
        n = recv(voice->fd, &go, 1, 0);
    while (n < 0 && errno == EINTR);
    return n == 1 || err_set(err, ERR_INTERNAL, "keeper does not answer");
}

int helper_keeper_fd(const struct helper_voice *voice)
{
    return voice->fd;
}

void helper_figure(struct helper_voice *voice, size_t which, uint64_t value)
{
    voice->figures[which] = value;
}

void helper_slow_down(void)
{
    (void)setpriority(PRIO_PROCESS, 0, 19);
    (void)syscall(SYS_ioprio_set, 1, 0, 3 << 13); /* this process, class idle */
}

/* ---- keeper ---- */

struct helpers {
    struct loop *loop;
    struct confine_filter filter;
    struct helper *first;
};

struct helper {
    struct helpers *helpers;
    struct helper *next;
    struct helper_job job;
    int pidfd, fd;
    struct watch *watch; /* of fd; of pidfd once it has said its last word, or must not say another */
    struct timer patience;
    bool is_late; /* killed, and ended() is to be called when it is gone */
};

static void helper_free(void *object)
{
    struct helper *helper = object;

    timer_clear(&helper->patience);
    watch_free(helper->watch);
    fd_close(&helper->fd);
    fd_close(&helper->pidfd);
    free(helper);
}

static void say_late(struct helper *helper, struct err *err)
{
    (void)err_set(err, ERR_TIMEOUT, "the disk needs longer than %u seconds for it",
                  (unsigned)(helper->job.patience_ms / 1000));
}

static void reap(void *context, unsigned ready)
{
    struct helper *helper = context, **at = &helper->helpers->first;
    siginfo_t how = { 0 };
    struct err err;

    (void)ready;
    /* ECHILD: it was reaped elsewhere, and has ended too. */
    if (waitid((idtype_t)P_PIDFD, (id_t)helper->pidfd, &how, WEXITED | WNOHANG) == 0 && how.si_pid == 0)
        return;
    while (*at != helper)
        at = &(*at)->next;
    *at = helper->next;
    timer_clear(&helper->patience);
    watch_free(take_ptr(&helper->watch));
    loop_retire(helper->helpers->loop, helper, helper_free);
    if (!helper->is_late)
        return;
    say_late(helper, &err);
    helper->job.ended(helper->job.context, NULL, &err);
}

static void end_now(struct timer *timer)
{
    struct helper *helper = container_of(timer, struct helper, patience);

    (void)pidfd_send_signal(helper->pidfd, SIGKILL, NULL, 0);
}

void helper_cancel(struct helper *helper)
{
    if (!helper)
        return;
    timer_clear(&helper->patience);
    watch_free(helper->watch);
    helper->is_late = false;
    if (helper->job.ends_softly) {
        fd_close(&helper->fd);
        timer_set(&helper->patience, helper->helpers->loop, HELPER_END_MS, end_now);
    } else {
        (void)pidfd_send_signal(helper->pidfd, SIGKILL, NULL, 0); /* or it has ended */
    }
    helper->watch = watch_new(helper->helpers->loop, helper->pidfd, reap, helper);
    watch_want(helper->watch, WATCH_READ);
}

/* What it had to do is done, so it makes no difference that it is killed. */
static void end(struct helper *helper, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    helper_cancel(helper);
    helper->job.ended(helper->job.context, figures, err);
}

static void impatient(struct timer *timer)
{
    struct helper *helper = container_of(timer, struct helper, patience);
    struct err err;

    if (helper->job.ends_late) {
        helper_cancel(helper);
        helper->is_late = true;
        return;
    }
    say_late(helper, &err);
    end(helper, NULL, &err);
}

static void hear(void *context, unsigned ready)
{
    struct helper *helper = context;
    char said[SAY_BYTES];
    uint64_t figures[HELPER_FIGURES];
    struct err err, wrong;

    (void)ready;
    ssize_t n = recv(helper->fd, said, sizeof said, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    struct unpack in = unpack_from(str_of(said, n < 0 ? 0 : (size_t)n));
    uint8_t what = unpack_u8(&in);
    if (what == SAY_STEP) {
        uint8_t step = unpack_u8(&in);
        if (unpack_done(&in, &wrong) && helper->job.asked) {
            helper->job.asked(helper->job.context, step);
            return;
        }
    } else if (what == SAY_FAILED) {
        message_unpack_err(&in, &err);
        if (unpack_done(&in, &wrong)) {
            end(helper, NULL, &err);
            return;
        }
    } else if (what == SAY_DONE) {
        for (size_t i = 0; i < HELPER_FIGURES; i++)
            figures[i] = unpack_u64(&in);
        if (unpack_done(&in, &wrong)) {
            end(helper, figures, NULL);
            return;
        }
    }
    (void)err_set(&err, ERR_INTERNAL, "the process that writes to disk has ended early");
    end(helper, NULL, &err);
}

struct helpers *helpers_new(struct loop *loop, struct err *err)
{
    struct helpers *helpers = NEW(struct helpers);

    helpers->loop = loop;
    if (confine_compile_seccomp(calls, &helpers->filter, err))
        return helpers;
    (void)err_wrap(err, "helpers");
    free(helpers);
    return NULL;
}

void helpers_free(struct helpers *helpers)
{
    if (!helpers)
        return;
    for (struct helper *helper = helpers->first, *next; helper; helper = next) {
        next = helper->next;
        watch_free(take_ptr(&helper->watch));
        fd_close(&helper->fd);
        if (!helper->job.ends_softly)
            (void)pidfd_send_signal(helper->pidfd, SIGKILL, NULL, 0);
        (void)!fd_await(helper->pidfd, POLLIN, clock_mono_ms() + END_MS);
        (void)waitid((idtype_t)P_PIDFD, (id_t)helper->pidfd, NULL, WEXITED | WNOHANG);
        helper_free(helper);
    }
    confine_filter_done(&helpers->filter);
    free(helpers);
}

struct helper *helper_start(struct helpers *helpers, const struct helper_job *job, struct err *err)
{
    struct helper *helper = NEW(struct helper);
    int pair[2] = { -1, -1 };
    pid_t keeper = getpid();

    *helper = (struct helper){ .helpers = helpers, .job = *job, .pidfd = -1, .fd = -1 };
    struct clone_args args = { .flags = CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&helper->pidfd,
                               .exit_signal = SIGCHLD };
    pid_t pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0
                    ? -1
                    : (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        be_helper(keeper, pair[1], job, &helpers->filter);
    helper->fd = pair[0];
    if (pid < 0) {
        (void)err_sys(err, "start a process that writes to disk");
        fd_close(&pair[1]);
        helper->pidfd = -1;
        helper_free(helper);
        return NULL;
    }
    fd_close(&pair[1]);
    helper->next = helpers->first;
    helpers->first = helper;
    helper->watch = watch_new(helpers->loop, helper->fd, hear, helper);
    watch_want(helper->watch, WATCH_READ);
    timer_set(&helper->patience, helpers->loop, job->patience_ms, impatient);
    return helper;
}

void helper_go(struct helper *helper)
{
    (void)!send(helper->fd, "g", 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* if it has ended, we hear that next */
}
