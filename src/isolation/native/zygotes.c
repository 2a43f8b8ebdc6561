/*
 * How it works. A zygote has four states. Three things move it: a dial to the code port (zygote_connect), its reports, and
 * its pidfd.
 *
 *   NONE      no process; after a failure none is started before `not_before_ms`
 *   STARTING  the process runs; sockets are sent to it already and wait in its control socket
 *   LIVING    it has reported that it is ready
 *   ENDING    killed or dead; its process and its cgroup have to be collected
 *
 * A zygote reports each socket that it takes. If a report takes longer than ANSWER_MS, or a start too long, the zygote is
 * killed: one that hangs would make the first cell of each of its sandboxes wait until guestd gives up. It may report that
 * it is busy, and then has as much time as for a start.
 *
 * A zygote runs template code, and has power over the sandboxes of its template, those that are being made included. One
 * that uses it against keeper (zygote_bar) is the last for its template.
 */
#include "isolation/native/zygotes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "io/pass.h"
#include "isolation/native/enter.h"
#include "isolation/native/seccomp.h"
#include "isolation/native/snapshot.h"
#include "isolation/native/strays.h"
#include "isolation/native/zygote_child.h"
#include "wire/zygote.h"

enum {
    ZYGOTES_MAX = 256, /* templates in use at once; sandboxes of further ones have no zygote */
    RUNNING_MAX = 8,   /* alive at once: each may take zygote_limits */
    START_MS = 30000,  /* until it is ready; a second on an idle machine */
    ANSWER_MS = 5000,  /* until it takes a socket, unless it is busy importing */
    GIVE_AGAIN_MS = 60000,
    IDLE_MS = 600000, /* how long it is kept without a sandbox */
    RETRY_MIN_MS = 2000,
    RETRY_MAX_MS = 300000,
    HEALTHY_MS = 60000, /* a zygote that lived this long resets the failure count */
    CLEAR_RETRY_MS = 20,
    CLEAR_TRIES = 250,
    END_MS = 2000, /* for killed zygotes to be gone when keeper ends */
    ID_CHARS = 12,
};

/* Above those of sandboxes, below the signed border. */
#define OWNERS_FROM 0x78000000u
#define OWNERS_TO 0x7ffe0000u

/* Of the zygote and the pages that its forks share with it; a warm one with pandas takes 120 MiB. */
static const struct cgroup_limits zygote_limits = { .memory_bytes = 1ull << 30, .cpu_millis = 2000, .pids = 512 };

enum zygote_state { ZYGOTE_NONE, ZYGOTE_STARTING, ZYGOTE_LIVING, ZYGOTE_ENDING };

struct zygote {
    struct zygotes *zygotes;
    struct zygote *next;
    struct plan plan; /* of its layers only */
    uint32_t uid_base;
    unsigned boxes;
    enum zygote_state state;
    char cgroup[LIMIT_ID_BYTES];
    pid_t pid;
    int pidfd, control_fd, report_fd;
    struct watch *death, *report;
    struct strays *strays;
    bool is_busy, is_warm;
    bool is_barred;
    struct timer patience, clear, idle;
    unsigned unanswered, clear_tries;
    unsigned failures; /* in a row */
    uint64_t starts;
    uint64_t started_ms, not_before_ms;
};

struct zygotes {
    struct zygotes_config config;
    struct sock_fprog filter; /* the zygotes' */
    int requests_fd;          /* what guestd may send to a zygote: a BPF program for all sockets */
    struct zygote *all;
    unsigned count, running_count;
};

/* ---- coming up ---- */

/*
 * A process between clone and exec is a copy of keeper in a user namespace that a zygote owns. The zygote cannot read or
 * trace it because it is not dumpable. With 1 in this setting every change of ids makes a process dumpable for a moment.
 */
static bool host_keeps_secrets(struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(AT_FDCWD, "/proc/sys/fs/suid_dumpable", 16, &text, &len, err))
        return false;
    if (len && text[0] == '1')
        return err_set(err, ERR_INVALID, "fs.suid_dumpable is 1 on this host; set it to 0 or 2");
    return true;
}

/*
 * The filter of all sockets from guestd to a zygote: whole requests only, because an empty message in the queue would look
 * like the end of the socket. As eBPF: a classic filter would be one program for each sandbox, and seccomp.c says why there
 * must not be many to free. Instructions are written out, because the kernel's headers have no macros for them.
 */
static int load_request_filter(struct err *err)
{
    static const struct bpf_insn code[] = {
        { .code = BPF_LDX | BPF_MEM | BPF_W,
          .dst_reg = BPF_REG_0,
          .src_reg = BPF_REG_1,
          .off = offsetof(struct __sk_buff, len) },
        { .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = BPF_REG_0, .off = 1, .imm = sizeof(struct zygote_request) },
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 },
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr load;

    memset(&load, 0, sizeof load); /* the kernel refuses anything but zeros in fields that it does not know */
    load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    load.insns = (uint64_t)(uintptr_t)code;
    load.insn_cnt = COUNT_OF(code);
    load.license = (uint64_t)(uintptr_t) "";
    int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load); /* it comes close-on-exec */
    if (fd < 0)
        (void)err_sys(err, "load a BPF program");
    return fd;
}

struct zygotes *zygotes_new(const struct zygotes_config *config, struct err *err)
{
    if (!host_keeps_secrets(err)) {
        (void)err_wrap(err, "zygotes");
        return NULL;
    }
    struct zygotes *zygotes = NEW(struct zygotes);

    zygotes->config = *config;
    zygotes->requests_fd = load_request_filter(err);
    if (zygotes->requests_fd >= 0 && seccomp_zygote_filter(zygotes->config.no_landlock, &zygotes->filter, err))
        return zygotes;
    zygotes_free(zygotes);
    (void)err_wrap(err, "zygotes");
    return NULL;
}

/* ---- zygotes ---- */

static bool same_layers(const struct plan *a, const struct plan *b)
{
    return a->layer_count == b->layer_count && memcmp(a->layers, b->layers, a->layer_count * sizeof a->layers[0]) == 0;
}

/* In the range of zygotes and not in the sandboxes', whose ids a guest can become; and no other layers' zygote has it. */
static bool uid_base_is_free(const struct zygotes *zygotes, uint32_t base, const struct plan *plan)
{
    const struct zygotes_config *config = &zygotes->config;

    if (base < OWNERS_FROM || base >= OWNERS_TO ||
        (base + ZYGOTE_UID >= config->uids_from && base + ZYGOTE_UID < config->uids_to))
        return false;
    for (const struct zygote *zygote = zygotes->all; zygote; zygote = zygote->next)
        if (zygote->uid_base == base && !same_layers(&zygote->plan, plan))
            return false;
    return true;
}

/* Random: sandboxes that an earlier keeper left, and of which this one has no record, do not belong to this zygote. */
static uint32_t choose_uid_base(const struct zygotes *zygotes, const struct plan *plan)
{
    uint32_t base;

    do {
        random_bytes(&base, sizeof base);
        base = OWNERS_FROM + base % (OWNERS_TO - OWNERS_FROM);
    } while (!uid_base_is_free(zygotes, base, plan));
    return base;
}

uint32_t zygote_owner(const struct zygote *zygote)
{
    return zygote ? zygote->uid_base + ZYGOTE_UID : 0;
}

/* A zygote runs outside the limits of any sandbox: only on layers that the operator has made. */
static bool is_trusted(const struct zygotes *zygotes, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->layer_count; i++)
        if (snapshot_made_layer(zygotes->config.layers_fd, plan->layers[i]))
            return false;
    return true;
}

struct zygote *zygote_ref(struct zygotes *zygotes, const struct plan *plan, uint32_t owner)
{
    struct zygote *zygote;

    if (!zygotes || (owner && !uid_base_is_free(zygotes, owner - ZYGOTE_UID, plan)))
        return NULL;
    for (zygote = zygotes->all; zygote && !same_layers(&zygote->plan, plan);)
        zygote = zygote->next;
    if (zygote && (zygote->is_barred || (owner && zygote_owner(zygote) != owner)))
        return NULL;
    if (!zygote && zygotes->count < ZYGOTES_MAX && is_trusted(zygotes, plan)) {
        zygote = NEW(struct zygote);
        zygote->zygotes = zygotes;
        zygote->plan = *plan;
        zygote->uid_base = owner ? owner - ZYGOTE_UID : choose_uid_base(zygotes, plan);
        zygote->pidfd = zygote->control_fd = zygote->report_fd = -1;
        zygote->next = zygotes->all;
        zygotes->all = zygote;
        zygotes->count++;
    }
    if (zygote) {
        zygote->boxes++;
        timer_clear(&zygote->idle);
    }
    return zygote;
}

int zygote_pid(const struct zygote *zygote)
{
    return zygote && zygote->state != ZYGOTE_NONE ? zygote->pid : -1;
}

static void zygote_free(void *object)
{
    free(object);
}

static void idle_over(struct timer *timer);

/* Forgets one that has neither sandboxes nor a process. */
static void zygote_drop(struct zygote *zygote)
{
    struct zygote **at = &zygote->zygotes->all;

    if (zygote->boxes || zygote->state != ZYGOTE_NONE || zygote->is_barred)
        return; /* a barred one stays, so that it is not made again */
    /* One that failed stays until it may be tried again: the next sandbox of its template must not try at once. */
    uint64_t now_ms = clock_mono_ms();
    if (now_ms < zygote->not_before_ms) {
        timer_set(&zygote->idle, zygote->zygotes->config.loop, zygote->not_before_ms - now_ms, idle_over);
        return;
    }
    while (*at != zygote)
        at = &(*at)->next;
    *at = zygote->next;
    zygote->zygotes->count--;
    timer_clear(&zygote->idle);
    loop_retire(zygote->zygotes->config.loop, zygote, zygote_free);
}

static void zygote_kill(struct zygote *zygote);

static void idle_over(struct timer *timer)
{
    struct zygote *zygote = container_of(timer, struct zygote, idle);

    if (zygote->state == ZYGOTE_NONE)
        zygote_drop(zygote);
    else
        zygote_kill(zygote); /* zygote_clear() then forgets it */
}

void zygote_unref(struct zygote *zygote)
{
    if (!zygote || --zygote->boxes)
        return;
    timer_set(&zygote->idle, zygote->zygotes->config.loop, zygote->state == ZYGOTE_NONE ? 0 : IDLE_MS, idle_over);
}

/* ---- the end of a process ---- */

static void clear_again(struct timer *timer);

static void zygote_clear(struct zygote *zygote)
{
    struct zygotes *zygotes = zygote->zygotes;
    struct err err;

    /* Forks that wait for an order end when their socket to the zygote closes; make sure. */
    (void)cgroup_kill(zygotes->config.cgroups, zygote->cgroup);
    if (!cgroup_remove(zygotes->config.cgroups, zygote->cgroup, &err)) {
        if (++zygote->clear_tries < CLEAR_TRIES) {
            timer_set(&zygote->clear, zygotes->config.loop, CLEAR_RETRY_MS, clear_again);
            return;
        }
        log_error("zygotes: the cgroup of a zygote stays until the next start: %s", err_text(&err));
    }
    zygote->state = ZYGOTE_NONE;
    zygotes->running_count--;
    zygote_drop(zygote);
}

static void clear_again(struct timer *timer)
{
    zygote_clear(container_of(timer, struct zygote, clear));
}

static void zygote_reap(struct zygote *zygote)
{
    siginfo_t how;

    (void)waitid((idtype_t)P_PIDFD, (id_t)zygote->pidfd, &how, WEXITED | WNOHANG);
    watch_free(take_ptr(&zygote->death));
    watch_free(take_ptr(&zygote->report));
    strays_free(take_ptr(&zygote->strays));
    timer_clear(&zygote->patience);
    fd_close(&zygote->pidfd);
    fd_close(&zygote->control_fd);
    fd_close(&zygote->report_fd);
    zygote->pid = 0;
    zygote->is_busy = zygote->is_warm = false;
    zygote->unanswered = zygote->clear_tries = 0;
}

static void zygote_kill(struct zygote *zygote)
{
    zygote->state = ZYGOTE_ENDING;
    timer_clear(&zygote->patience);
    (void)pidfd_send_signal(zygote->pidfd, SIGKILL, NULL, 0); /* or dead already: the pidfd tells in either case */
}

/* Logs the failure, the first in a row as a warning, and sets when the next may start. */
static void zygote_failed(struct zygote *zygote, const char *why)
{
    uint64_t now_ms = clock_mono_ms();
    uint64_t pause_ms = RETRY_MIN_MS;

    if (zygote->started_ms && now_ms - zygote->started_ms >= HEALTHY_MS)
        zygote->failures = 0;
    for (unsigned i = 0; i < zygote->failures && pause_ms < RETRY_MAX_MS; i++)
        pause_ms *= 2;
    zygote->not_before_ms = now_ms + MIN(pause_ms, (uint64_t)RETRY_MAX_MS);
    log_line(zygote->failures++ ? LOG_DEBUG : LOG_WARN,
             "warm Python is off for template layer %.12s, its sandboxes start their own: %s",
             zygote->plan.layers[zygote->plan.layer_count - 1], why);
}

static void on_report(void *context, unsigned ready);

static void on_death(void *context, unsigned ready)
{
    struct zygote *zygote = context;

    (void)ready;
    if (zygote->state != ZYGOTE_ENDING)
        on_report(zygote, WATCH_READ); /* it may have reported why */
    if (zygote->state != ZYGOTE_ENDING)
        zygote_failed(zygote, "its zygote died");
    zygote->state = ZYGOTE_ENDING;
    zygote_reap(zygote);
    zygote_clear(zygote);
}

static void watch_strays(struct zygote *zygote)
{
    const struct zygotes_config *config = &zygote->zygotes->config;

    zygote->strays = strays_new(config->loop, config->cgroups, zygote->cgroup, zygote->pid);
}

/* ---- reports ---- */

static void on_patience(struct timer *timer)
{
    struct zygote *zygote = container_of(timer, struct zygote, patience);

    zygote_failed(zygote,
                  zygote->state == ZYGOTE_STARTING ? "its zygote did not get ready" : "its zygote does not answer");
    zygote_kill(zygote);
}

static void expect_answer(struct zygote *zygote)
{
    bool may_take_long = zygote->state == ZYGOTE_STARTING || zygote->is_busy;

    if (zygote->state == ZYGOTE_LIVING && !zygote->unanswered && !zygote->is_busy)
        timer_clear(&zygote->patience);
    else if (!timer_is_set(&zygote->patience))
        timer_set(&zygote->patience, zygote->zygotes->config.loop, may_take_long ? START_MS : ANSWER_MS, on_patience);
}

/* False if that report is not expected now. */
static bool take_report(struct zygote *zygote, char letter)
{
    switch (letter) {
    case ZYGOTE_READY:
        if (zygote->state != ZYGOTE_STARTING)
            return false;
        zygote->state = ZYGOTE_LIVING;
        log_info("the zygote of template layer %.12s runs, and warms up while it is idle",
                 zygote->plan.layers[zygote->plan.layer_count - 1]);
        return true;
    case ZYGOTE_TAKEN:
        return zygote->unanswered && zygote->unanswered--;
    case ZYGOTE_BUSY:
    case ZYGOTE_IDLE:
        zygote->is_busy = letter == ZYGOTE_BUSY;
        return true;
    case ZYGOTE_WARM:
        if (!zygote->is_warm)
            log_info("the zygote of template layer %.12s is warm", zygote->plan.layers[zygote->plan.layer_count - 1]);
        zygote->is_warm = true;
        return true;
    default:
        return false;
    }
}

/* The text comes from template code: only printable characters go to the log. */
static const char *failure_text(char *text)
{
    for (char *at = text; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    return text[0] == ZYGOTE_FAILED ? text + 1 : "bad report from its zygote";
}

static void on_report(void *context, unsigned ready)
{
    struct zygote *zygote = context;
    char text[256];

    (void)ready;
    ssize_t n = read(zygote->report_fd, text, sizeof text - 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    timer_clear(&zygote->patience);
    if (zygote->state == ZYGOTE_ENDING || n <= 0) {
        watch_free(take_ptr(&zygote->report)); /* its end comes by the pidfd */
        if (zygote->state != ZYGOTE_ENDING) {
            zygote_failed(zygote, "its zygote closed its pipe");
            zygote_kill(zygote);
        }
        return;
    }
    text[n] = '\0';
    for (ssize_t i = 0; i < n; i++) {
        if (take_report(zygote, text[i]))
            continue;
        zygote_failed(zygote, failure_text(text + i));
        zygote_kill(zygote);
        return;
    }
    expect_answer(zygote);
}

/* ---- the start of a process ---- */

struct start {
    int control_fd[2], report_fd[2];
    int userns_fd, root_fd, devices_fd;
    int cgroup_fds[CGROUP_TREE_COUNT];
    size_t cgroup_count;
};

static void start_close(struct start *start)
{
    fd_close(&start->control_fd[0]);
    fd_close(&start->control_fd[1]);
    fd_close(&start->report_fd[0]);
    fd_close(&start->report_fd[1]);
    fd_close(&start->userns_fd);
    fd_close(&start->root_fd);
    fd_close(&start->devices_fd);
    fd_close_each(start->cgroup_fds, start->cgroup_count);
}
#define auto_start __attribute__((cleanup(start_close)))

/*
 * A user namespace without processes, for its map alone: mounted through it, files of user 1000 belong to the zygote.
 */
static bool make_ids(uint32_t uid_base, int *out_fd, struct err *err)
{
    struct clone_args args = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
    char dir[32], map[64];
    pid_t keeper = getpid();
    bool fine = false;

    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        /* A copy of keeper: it may neither outlive it nor hold what keeper holds. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close_range(0, ~0u, 0);
        while (getppid() == keeper)
            (void)pause();
        _exit(0);
    }
    if (pid < 0)
        return err_sys(err, "make a user namespace");
    (void)snprintf(dir, sizeof dir, "/proc/%d", pid);
    (void)snprintf(map, sizeof map, "0 %" PRIu32 " 65536", uid_base);
    auto_close int proc_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc_fd < 0)
        (void)err_sys(err, "open %s", dir);
    else if (fd_write_file(proc_fd, "uid_map", str_from(map), err) &&
             fd_write_file(proc_fd, "gid_map", str_from(map), err)) {
        *out_fd = openat(proc_fd, "ns/user", O_RDONLY | O_CLOEXEC);
        fine = *out_fd >= 0 || err_sys(err, "open a user namespace");
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0); /* it does nothing but wait for this */
    return fine || err_wrap(err, "a zygote's ids");
}

static bool start_prepare(struct zygote *zygote, struct start *start, struct err *err)
{
    const struct zygotes_config *config = &zygote->zygotes->config;

    if (!make_ids(zygote->uid_base, &start->userns_fd, err))
        return false;
    const struct mounts_ids ids = { .userns_fd = start->userns_fd, .uid_base = zygote->uid_base };
    if (!mounts_zygote(config->mounts, config->layers_fd, &zygote->plan, &ids, &start->root_fd, err) ||
        !mounts_devices(&ids, NULL, &start->devices_fd, err))
        return false;
    if (pipe2(start->report_fd, O_CLOEXEC | O_NONBLOCK) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start->control_fd) < 0 ||
        shutdown(start->control_fd[0], SHUT_RD) < 0) /* so that a zygote can send us nothing: see zygote_child.h */
        return err_sys(err, "make a zygote's control socket and pipe");
    struct str texts[] = { str_from(zygotes_charts_py), str_from(zygotes_driver_py) };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (send(start->control_fd[0], texts[i].at, texts[i].len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return err_sys(err, "send a zygote its program");
    return cgroup_open_user(config->cgroups, zygote->cgroup, start->cgroup_fds, &start->cgroup_count, err);
}

static bool start_clone(struct zygote *zygote, struct start *start, struct err *err)
{
    struct zygotes *zygotes = zygote->zygotes;
    struct clone_args args = { .flags = CLONE_PIDFD | ZYGOTE_NAMESPACES,
                               .pidfd = (uint64_t)(uintptr_t)&zygote->pidfd,
                               .exit_signal = SIGCHLD };
    struct zygote_setup setup = { .keeper_fd = start->control_fd[0],
                                  .control_fd = start->control_fd[1],
                                  .report_fd = start->report_fd[1],
                                  .root_fd = start->root_fd,
                                  .devices_fd = start->devices_fd,
                                  .enter_fd = zygotes->config.enter_fd,
                                  .cgroup_count = start->cgroup_count,
                                  .uid = zygote_owner(zygote),
                                  .filter = &zygotes->filter };

    memcpy(setup.cgroup_fds, start->cgroup_fds, sizeof setup.cgroup_fds);
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        zygote_child(&setup);
    if (pid < 0) {
        zygote->pidfd = -1;
        return err_sys(err, "make a zygote's namespaces");
    }
    zygote->pid = pid;
    zygote->control_fd = take_fd(&start->control_fd[0]);
    zygote->report_fd = take_fd(&start->report_fd[0]);
    return true;
}

/* Makes room for the next start. */
static void end_an_idle_one(struct zygotes *zygotes)
{
    for (struct zygote *zygote = zygotes->all; zygote; zygote = zygote->next) {
        if (!zygote->boxes && zygote->state == ZYGOTE_LIVING) {
            zygote_kill(zygote);
            return;
        }
    }
}

static bool zygote_start(struct zygote *zygote, struct err *err)
{
    struct zygotes *zygotes = zygote->zygotes;
    auto_start struct start start = {
        .control_fd = { -1, -1 }, .report_fd = { -1, -1 }, .userns_fd = -1, .root_fd = -1, .devices_fd = -1
    };
    struct err ignored;

    if (zygotes->running_count == RUNNING_MAX) {
        end_an_idle_one(zygotes);
        return err_set(err, ERR_LIMIT, "there are %d zygotes already", RUNNING_MAX);
    }
    memcpy(zygote->cgroup, ZYGOTE_CGROUP, sizeof ZYGOTE_CGROUP);
    random_id(zygote->cgroup + strlen(ZYGOTE_CGROUP), ID_CHARS);
    if (!cgroup_make(zygotes->config.cgroups, zygote->cgroup, &zygote_limits, err))
        return false;
    if (!start_prepare(zygote, &start, err) || !start_clone(zygote, &start, err)) {
        (void)!cgroup_remove(zygotes->config.cgroups, zygote->cgroup, &ignored); /* nothing has run in it */
        return false;
    }
    zygotes->running_count++;
    zygote->state = ZYGOTE_STARTING;
    zygote->started_ms = clock_mono_ms();
    zygote->starts++;
    zygote->death = watch_new(zygotes->config.loop, zygote->pidfd, on_death, zygote);
    watch_want(zygote->death, WATCH_READ);
    zygote->report = watch_new(zygotes->config.loop, zygote->report_fd, on_report, zygote);
    watch_want(zygote->report, WATCH_READ);
    watch_strays(zygote);
    expect_answer(zygote);
    return true;
}

/* ---- sockets ---- */

/* By its slot the zygote knows a sandbox again that has had a socket before. */
static bool give_socket(struct zygote *zygote, uint32_t slot, int sandbox_pidfd, int *out_guest_fd, struct err *err)
{
    char order[1 + sizeof slot] = { ZYGOTE_SOCKET };
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a socket pair");
    auto_close int guest_fd = pair[0], zygote_fd = pair[1];
    const int fds[ENTER_ORDER_FDS] = { [ENTER_ORDER_SOCKET] = zygote_fd, [ENTER_ORDER_PIDFD] = sandbox_pidfd };

    if (setsockopt(zygote_fd, SOL_SOCKET, SO_ATTACH_BPF, &zygote->zygotes->requests_fd, sizeof(int)) < 0)
        return err_sys(err, "attach the filter of requests");
    memcpy(order + 1, &slot, sizeof slot);
    if (!pass_fds(zygote->control_fd, str_of(order, sizeof order), fds, COUNT_OF(fds), err))
        return err_wrap(err, "give a zygote its socket to guestd");
    zygote->unanswered++;
    expect_answer(zygote);
    *out_guest_fd = take_fd(&guest_fd);
    return true;
}

/* Starts it unless it runs or has just failed. */
static void want_zygote(struct zygote *zygote)
{
    struct err err;

    if (zygote->state == ZYGOTE_NONE && !zygote->is_barred && clock_mono_ms() >= zygote->not_before_ms &&
        !zygote_start(zygote, &err)) {
        if (err.kind == ERR_LIMIT) /* no fault of this one */
            zygote->not_before_ms = clock_mono_ms() + RETRY_MIN_MS;
        else
            zygote_failed(zygote, err_text(&err));
    }
}

bool zygote_is_warm(struct zygote *zygote, struct err *err)
{
    want_zygote(zygote);
    if (zygote->state != ZYGOTE_STARTING && zygote->state != ZYGOTE_LIVING)
        return err_set(err, ERR_UNAVAILABLE, "there is no zygote now");
    return zygote->is_warm || err_set(err, ERR_UNAVAILABLE, "the zygote is not warm yet");
}

int zygote_connect(struct zygote *zygote, const char *sandbox_id, uint32_t slot, int sandbox_pidfd,
                   struct zygote_given *given)
{
    struct err err;
    int fd = -1;

    want_zygote(zygote);
    if (zygote->state != ZYGOTE_STARTING && zygote->state != ZYGOTE_LIVING)
        return -1;
    struct zygote_given now = { 2 * zygote->starts + (zygote->state == ZYGOTE_LIVING), clock_mono_ms() };
    if (given->by == now.by && now.at_ms - given->at_ms < GIVE_AGAIN_MS)
        return -1;
    if (give_socket(zygote, slot, sandbox_pidfd, &fd, &err))
        *given = now;
    else
        log_debug("zygotes: sandbox %s: %s", sandbox_id, err_text(&err));
    return fd;
}

static bool has_process(const struct zygote *zygote)
{
    return zygote->state == ZYGOTE_STARTING || zygote->state == ZYGOTE_LIVING;
}

void zygote_bar(struct zygote *zygote, const char *why)
{
    if (!zygote || zygote->is_barred)
        return;
    zygote->is_barred = true;
    log_warn("warm Python is off for template layer %.12s until restart, because of its zygote: %s",
             zygote->plan.layers[zygote->plan.layer_count - 1], why);
    if (has_process(zygote))
        zygote_kill(zygote);
}

void zygote_stand(struct zygote *zygote, bool still)
{
    if (!zygote)
        return;
    timer_clear(&zygote->patience);
    strays_free(take_ptr(&zygote->strays));
    if (still)
        return;
    watch_strays(zygote);
    expect_answer(zygote);
}

const char *zygotes_nth(const struct zygotes *zygotes, size_t nth)
{
    for (const struct zygote *zygote = zygotes ? zygotes->all : NULL; zygote; zygote = zygote->next)
        if (has_process(zygote) && nth-- == 0)
            return zygote->cgroup;
    return NULL;
}

struct zygote *zygotes_find(const struct zygotes *zygotes, const char *cgroup)
{
    struct zygote *zygote = zygotes ? zygotes->all : NULL;

    while (zygote && !(has_process(zygote) && !strcmp(zygote->cgroup, cgroup)))
        zygote = zygote->next;
    return zygote;
}

/* ---- the end ---- */

void zygotes_free(struct zygotes *zygotes)
{
    struct err err;

    if (!zygotes)
        return;
    uint64_t until_ms = clock_mono_ms() + END_MS;
    for (struct zygote *zygote = zygotes->all; zygote; zygote = zygote->next)
        if (zygote->pidfd >= 0)
            zygote_kill(zygote);
    for (struct zygote *zygote = zygotes->all, *next; zygote; zygote = next) {
        next = zygote->next;
        if (zygote->pidfd >= 0) {
            (void)!fd_await(zygote->pidfd, POLLIN, until_ms);
            zygote_reap(zygote);
        }
        timer_clear(&zygote->clear);
        timer_clear(&zygote->idle);
        while (zygote->state == ZYGOTE_ENDING && !cgroup_remove(zygotes->config.cgroups, zygote->cgroup, &err) &&
               clock_mono_ms() < until_ms) { /* the next keeper sweeps the rest */
            (void)cgroup_kill(zygotes->config.cgroups, zygote->cgroup);
            (void)usleep(1000);
        }
        free(zygote);
    }
    fd_close(&zygotes->requests_fd);
    free(zygotes->filter.filter);
    free(zygotes);
}
