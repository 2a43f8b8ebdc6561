/*
 * Theory of operation. A breed's mother is a machine of four states, moved by three things: a dial to the code port
 * (breed_admit), what she says on her control socket, and her pidfd.
 *
 *   NONE      there is no mother; after one has failed none is started before `not_before_ms`
 *   STARTING  her process runs; doors are given to her already and wait in her socket
 *   LIVING    she has said that she is ready
 *   ENDING    killed, or dead by herself: what is left is to collect her and her cgroup
 *
 * Every door she gets is acknowledged. One that is not in ANSWER_MS, or a start that takes too long, is her end: a mother
 * that hangs would keep every first cell of her sandboxes waiting until guestd loses patience, each time. She may say that
 * she is busy, and then has as long as for a start.
 *
 * Template code runs in her, and she has power over the sandboxes of her template, those that are being made included. One
 * that is found using it against us (breed_bar) is the last of her breed.
 */
#include "isolation/native/nursery.h"

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
#include "isolation/native/midwife.h"
#include "isolation/native/mother.h"
#include "isolation/native/seccomp.h"
#include "wire/nursery.h"

enum {
    BREEDS_MAX = 256, /* templates in use at once; sandboxes of further ones have no nursery */
    MOTHERS_MAX = 8,  /* alive at once: each may take mother_limits */
    START_MS = 30000, /* until she is ready; a second on an idle machine */
    ANSWER_MS = 5000, /* until she takes a door, unless she is busy importing */
    IDLE_MS = 600000, /* without a sandbox of her breed before she goes */
    RETRY_MIN_MS = 2000,
    RETRY_MAX_MS = 300000,
    HEALTHY_MS = 60000, /* having lived that long, her end counts as the first */
    CLEAR_RETRY_MS = 20,
    CLEAR_TRIES = 250,
    END_MS = 2000, /* for killed mothers to be gone when keeper ends */
    ID_CHARS = 12,
};

/* Above those of sandboxes, below the signed border. */
#define OWNERS_FROM 0x78000000u
#define OWNERS_TO 0x7ffe0000u

/* Hers, and what her children have inherited without writing to it; a warm one with pandas takes 120 MiB. */
static const struct cgroup_limits mother_limits = { .memory_bytes = 1ull << 30, .cpu_millis = 2000, .pids = 512 };

enum mother_state { MOTHER_NONE, MOTHER_STARTING, MOTHER_LIVING, MOTHER_ENDING };

struct breed {
    struct nursery *nursery;
    struct breed *next;
    struct plan plan; /* of its layers only */
    uint32_t uid_base;
    unsigned boxes;
    enum mother_state state;
    char cgroup[LIMIT_ID_BYTES];
    pid_t pid;
    int pidfd, control_fd, voice_fd;
    struct watch *death, *voice;
    bool is_busy;
    bool is_barred;
    struct timer patience, clear, idle;
    unsigned unanswered, clear_tries;
    unsigned failures; /* in a row */
    uint64_t started_ms, not_before_ms;
};

struct nursery {
    struct nursery_config config;
    struct sock_fprog filter; /* the mothers' */
    int midwife_fd;
    int nothing_fd, wishes_fd; /* what doors let in: BPF programs that all of them share */
    struct breed *breeds;
    unsigned breed_count, mother_count;
};

/* ---- coming up ---- */

static int sealed_file(const char *name, const void *bytes, size_t size, struct err *err)
{
    auto_close int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || !fd_write_all(fd, str_of(bytes, size), err) || fchmod(fd, 0555) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        (void)err_sys(err, "keep %s in memory", name);
        return -1;
    }
    return take_fd(&fd);
}

/*
 * A process between clone and exec is a copy of keeper, in a user namespace that is a mother's. What keeps her from
 * reading and tracing it is that it is not dumpable. With 1 in this setting every change of ids makes a process dumpable
 * for a moment.
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
 * For a socket, as eBPF: a classic filter would be a program of its own for each sandbox, and seccomp.c says why there
 * must not be many to free. Written as numbers, because the kernel's headers have no names for whole instructions.
 */
static int load_program(const struct bpf_insn *code, uint32_t count, struct err *err)
{
    union bpf_attr load;

    memset(&load, 0, sizeof load); /* the kernel wants zeros where it knows nothing */
    load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    load.insns = (uint64_t)(uintptr_t)code;
    load.insn_cnt = count;
    load.license = (uint64_t)(uintptr_t) "";
    int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    if (fd < 0)
        (void)err_sys(err, "load a BPF program"); /* it comes close-on-exec */
    return fd;
}

static bool load_programs(struct nursery *nursery, struct err *err)
{
    static const struct bpf_insn nothing[] = {
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 }, /* of this many bytes */
        { .code = BPF_JMP | BPF_EXIT },
    };
    /* Whole wishes only: with an empty message in the queue nobody could tell that from its end and close it safely. */
    static const struct bpf_insn wishes[] = {
        { .code = BPF_LDX | BPF_MEM | BPF_W,
          .dst_reg = BPF_REG_0,
          .src_reg = BPF_REG_1,
          .off = offsetof(struct __sk_buff, len) },
        { .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = BPF_REG_0, .off = 1, .imm = sizeof(struct nursery_wish) },
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 },
        { .code = BPF_JMP | BPF_EXIT },
    };

    nursery->nothing_fd = load_program(nothing, COUNT_OF(nothing), err);
    nursery->wishes_fd = nursery->nothing_fd < 0 ? -1 : load_program(wishes, COUNT_OF(wishes), err);
    return nursery->wishes_fd >= 0;
}

struct nursery *nursery_new(const struct nursery_config *config, struct err *err)
{
    if (!host_keeps_secrets(err)) {
        (void)err_wrap(err, "nursery");
        return NULL;
    }
    struct nursery *nursery = NEW(struct nursery);

    nursery->config = *config;
    nursery->midwife_fd = sealed_file("midwife", nursery_midwife_so, nursery_midwife_so_size, err);
    nursery->nothing_fd = nursery->wishes_fd = -1;
    if (nursery->midwife_fd >= 0 && load_programs(nursery, err) && seccomp_mother_filter(&nursery->filter, err))
        return nursery;
    nursery_free(nursery);
    (void)err_wrap(err, "nursery");
    return NULL;
}

/* ---- breeds ---- */

static bool same_layers(const struct plan *a, const struct plan *b)
{
    return a->layer_count == b->layer_count && memcmp(a->layers, b->layers, a->layer_count * sizeof a->layers[0]) == 0;
}

/*
 * Random, so that what an earlier keeper has left running does not belong to a mother of this one's. Her range is never
 * the sandboxes': an id of theirs would be one that a guest can become.
 */
static uint32_t choose_uid_base(const struct nursery *nursery)
{
    uint32_t base;
    bool is_free;

    do {
        random_bytes(&base, sizeof base);
        base = OWNERS_FROM + base % (OWNERS_TO - OWNERS_FROM);
        is_free = base + NURSERY_UID >= nursery->config.uids_to || base + NURSERY_UID < nursery->config.uids_from;
        for (const struct breed *breed = nursery->breeds; breed; breed = breed->next)
            is_free = is_free && breed->uid_base != base;
    } while (!is_free);
    return base;
}

struct breed *breed_ref(struct nursery *nursery, const struct plan *plan)
{
    struct breed *breed;

    if (!nursery)
        return NULL;
    for (breed = nursery->breeds; breed && !same_layers(&breed->plan, plan);)
        breed = breed->next;
    if (breed && breed->is_barred)
        return NULL;
    if (!breed && nursery->breed_count < BREEDS_MAX) {
        breed = NEW(struct breed);
        breed->nursery = nursery;
        breed->plan = *plan;
        breed->uid_base = choose_uid_base(nursery);
        breed->pidfd = breed->control_fd = breed->voice_fd = -1;
        breed->next = nursery->breeds;
        nursery->breeds = breed;
        nursery->breed_count++;
    }
    if (breed) {
        breed->boxes++;
        timer_clear(&breed->idle);
    }
    return breed;
}

uint32_t breed_owner(const struct breed *breed)
{
    return breed ? breed->uid_base + NURSERY_UID : 0;
}

int breed_mother(const struct breed *breed)
{
    return breed && breed->state != MOTHER_NONE ? breed->pid : -1;
}

static void breed_free(void *object)
{
    free(object);
}

/* One that nobody needs and that has no mother. */
static void breed_drop(struct breed *breed)
{
    struct breed **at = &breed->nursery->breeds;

    if (breed->boxes || breed->state != MOTHER_NONE || breed->is_barred)
        return; /* what is barred is remembered */
    while (*at != breed)
        at = &(*at)->next;
    *at = breed->next;
    breed->nursery->breed_count--;
    timer_clear(&breed->idle);
    loop_retire(breed->nursery->config.loop, breed, breed_free);
}

static void mother_kill(struct breed *breed);

static void idle_over(struct timer *timer)
{
    struct breed *breed = container_of(timer, struct breed, idle);

    if (breed->state == MOTHER_NONE)
        breed_drop(breed);
    else
        mother_kill(breed); /* and the breed goes with her */
}

void breed_unref(struct breed *breed)
{
    if (!breed || --breed->boxes)
        return;
    timer_set(&breed->idle, breed->nursery->config.loop, breed->state == MOTHER_NONE ? 0 : IDLE_MS, idle_over);
}

/* ---- her end ---- */

static void clear_again(struct timer *timer);

static void mother_clear(struct breed *breed)
{
    struct nursery *nursery = breed->nursery;
    struct err err;

    /* Children that wait for an order end with their socket to her; make sure. */
    (void)cgroup_kill(nursery->config.cgroups, breed->cgroup);
    if (!cgroup_remove(nursery->config.cgroups, breed->cgroup, &err)) {
        if (++breed->clear_tries < CLEAR_TRIES) {
            timer_set(&breed->clear, nursery->config.loop, CLEAR_RETRY_MS, clear_again);
            return;
        }
        log_error("nursery: the cgroup of a mother stays until the next start: %s", err_text(&err));
    }
    breed->state = MOTHER_NONE;
    nursery->mother_count--;
    breed_drop(breed);
}

static void clear_again(struct timer *timer)
{
    mother_clear(container_of(timer, struct breed, clear));
}

static void mother_reap(struct breed *breed)
{
    siginfo_t how;

    (void)waitid((idtype_t)P_PIDFD, (id_t)breed->pidfd, &how, WEXITED | WNOHANG);
    watch_free(take_ptr(&breed->death));
    watch_free(take_ptr(&breed->voice));
    timer_clear(&breed->patience);
    fd_close(&breed->pidfd);
    fd_close(&breed->control_fd);
    fd_close(&breed->voice_fd);
    breed->pid = 0;
    breed->is_busy = false;
    breed->unanswered = breed->clear_tries = 0;
}

static void mother_kill(struct breed *breed)
{
    breed->state = MOTHER_ENDING;
    timer_clear(&breed->patience);
    (void)pidfd_send_signal(breed->pidfd, SIGKILL, NULL, 0); /* or dead already: the pidfd tells in either case */
}

/* Why there is none now, and when the next may be. The first of a row is worth a line; the others say the same. */
static void mother_failed(struct breed *breed, const char *why)
{
    uint64_t now_ms = clock_mono_ms();
    uint64_t pause_ms = RETRY_MIN_MS;

    if (breed->started_ms && now_ms - breed->started_ms >= HEALTHY_MS)
        breed->failures = 0;
    for (unsigned i = 0; i < breed->failures && pause_ms < RETRY_MAX_MS; i++)
        pause_ms *= 2;
    breed->not_before_ms = now_ms + MIN(pause_ms, (uint64_t)RETRY_MAX_MS);
    log_line(breed->failures++ ? LOG_DEBUG : LOG_WARN,
             "nursery: no mother for template layer %.12s, its sandboxes start their own: %s",
             breed->plan.layers[breed->plan.layer_count - 1], why);
}

static void on_voice(void *context, unsigned ready);

static void on_death(void *context, unsigned ready)
{
    struct breed *breed = context;

    (void)ready;
    if (breed->state != MOTHER_ENDING)
        on_voice(breed, WATCH_READ); /* her last words, if there are any */
    if (breed->state != MOTHER_ENDING)
        mother_failed(breed, "she has died");
    breed->state = MOTHER_ENDING;
    mother_reap(breed);
    mother_clear(breed);
}

/* ---- what she says ---- */

static void on_patience(struct timer *timer)
{
    struct breed *breed = container_of(timer, struct breed, patience);

    mother_failed(breed, breed->state == MOTHER_STARTING ? "she does not get ready" : "she does not answer");
    mother_kill(breed);
}

static void expect_answer(struct breed *breed)
{
    bool may_take_long = breed->state == MOTHER_STARTING || breed->is_busy;

    if (breed->state == MOTHER_LIVING && !breed->unanswered && !breed->is_busy)
        timer_clear(&breed->patience);
    else if (!timer_is_set(&breed->patience))
        timer_set(&breed->patience, breed->nursery->config.loop, may_take_long ? START_MS : ANSWER_MS, on_patience);
}

/* False: that makes no sense. Each word is worth new patience. */
static bool hear(struct breed *breed, char letter)
{
    switch (letter) {
    case MOTHER_READY:
        if (breed->state != MOTHER_STARTING)
            return false;
        breed->state = MOTHER_LIVING;
        log_info("nursery: a mother for template layer %.12s is ready",
                 breed->plan.layers[breed->plan.layer_count - 1]);
        return true;
    case MOTHER_TAKEN:
        return breed->unanswered && breed->unanswered--;
    case MOTHER_BUSY:
    case MOTHER_IDLE:
        breed->is_busy = letter == MOTHER_BUSY;
        return true;
    default:
        return false;
    }
}

/* Template code has written this: nothing of it but printable characters goes to the log. */
static const char *complaint_of(char *said)
{
    for (char *at = said; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    return said[0] == MOTHER_FAILED ? said + 1 : "she makes no sense";
}

static void on_voice(void *context, unsigned ready)
{
    struct breed *breed = context;
    char said[256];

    (void)ready;
    ssize_t n = read(breed->voice_fd, said, sizeof said - 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    timer_clear(&breed->patience);
    if (breed->state == MOTHER_ENDING || n <= 0) {
        watch_free(take_ptr(&breed->voice)); /* her death comes by the pidfd */
        if (breed->state != MOTHER_ENDING) {
            mother_failed(breed, "she has ended");
            mother_kill(breed);
        }
        return;
    }
    said[n] = '\0';
    for (ssize_t i = 0; i < n; i++) {
        if (hear(breed, said[i]))
            continue;
        mother_failed(breed, complaint_of(said + i));
        mother_kill(breed);
        return;
    }
    expect_answer(breed);
}

/* ---- her start ---- */

struct start {
    int control_fd[2], voice_fd[2];
    int userns_fd, root_fd, devices_fd;
    int cgroup_fds[CGROUP_CONTROL_COUNT];
    size_t cgroup_count;
};

static void start_close(struct start *start)
{
    fd_close(&start->control_fd[0]);
    fd_close(&start->control_fd[1]);
    fd_close(&start->voice_fd[0]);
    fd_close(&start->voice_fd[1]);
    fd_close(&start->userns_fd);
    fd_close(&start->root_fd);
    fd_close(&start->devices_fd);
    for (size_t i = 0; i < start->cgroup_count; i++)
        fd_close(&start->cgroup_fds[i]);
}
#define auto_start __attribute__((cleanup(start_close)))

/*
 * A user namespace that nobody lives in, for its map alone: through it her mounts show the files of user 1000 as hers.
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
    return fine || err_wrap(err, "a mother's ids");
}

static bool start_prepare(struct breed *breed, struct start *start, struct err *err)
{
    const struct nursery_config *config = &breed->nursery->config;

    if (!make_ids(breed->uid_base, &start->userns_fd, err))
        return false;
    const struct mounts_ids ids = { .userns_fd = start->userns_fd, .uid_base = breed->uid_base };
    if (!mounts_mother(config->mounts, config->layers_fd, &breed->plan, &ids, &start->root_fd, err) ||
        !mounts_devices(&ids, &start->devices_fd, err))
        return false;
    if (pipe2(start->voice_fd, O_CLOEXEC | O_NONBLOCK) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start->control_fd) < 0 ||
        shutdown(start->control_fd[0], SHUT_RD) < 0) /* nothing is ever sent to us this way: see mother.h */
        return err_sys(err, "make a mother's ears and voice");
    struct str texts[] = { str_from(nursery_charts_py), str_from(nursery_driver_py) };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (send(start->control_fd[0], texts[i].at, texts[i].len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return err_sys(err, "hand a mother her program");
    return cgroup_open_user(config->cgroups, breed->cgroup, start->cgroup_fds, &start->cgroup_count, err);
}

static bool start_clone(struct breed *breed, struct start *start, struct err *err)
{
    struct nursery *nursery = breed->nursery;
    struct clone_args args = { .flags = CLONE_PIDFD | MOTHER_NAMESPACES,
                               .pidfd = (uint64_t)(uintptr_t)&breed->pidfd,
                               .exit_signal = SIGCHLD };
    struct mother_setup setup = { .keeper_fd = start->control_fd[0],
                                  .control_fd = start->control_fd[1],
                                  .voice_fd = start->voice_fd[1],
                                  .root_fd = start->root_fd,
                                  .devices_fd = start->devices_fd,
                                  .midwife_fd = nursery->midwife_fd,
                                  .cgroup_count = start->cgroup_count,
                                  .uid = breed_owner(breed),
                                  .filter = &nursery->filter };

    memcpy(setup.cgroup_fds, start->cgroup_fds, sizeof setup.cgroup_fds);
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        mother_child(&setup);
    if (pid < 0) {
        breed->pidfd = -1;
        return err_sys(err, "make a mother's namespaces");
    }
    breed->pid = pid;
    breed->control_fd = take_fd(&start->control_fd[0]);
    breed->voice_fd = take_fd(&start->voice_fd[0]);
    return true;
}

/* Makes room, for the next one who asks, by ending one that no sandbox has any use for. */
static void end_an_idle_one(struct nursery *nursery)
{
    for (struct breed *breed = nursery->breeds; breed; breed = breed->next) {
        if (!breed->boxes && breed->state == MOTHER_LIVING) {
            mother_kill(breed);
            return;
        }
    }
}

static bool mother_start(struct breed *breed, struct err *err)
{
    struct nursery *nursery = breed->nursery;
    auto_start struct start start = {
        .control_fd = { -1, -1 }, .voice_fd = { -1, -1 }, .userns_fd = -1, .root_fd = -1, .devices_fd = -1
    };
    struct err ignored;

    if (nursery->mother_count == MOTHERS_MAX) {
        end_an_idle_one(nursery);
        return err_set(err, ERR_LIMIT, "there are %d mothers already", MOTHERS_MAX);
    }
    memcpy(breed->cgroup, NURSERY_CGROUP, sizeof NURSERY_CGROUP);
    random_id(breed->cgroup + strlen(NURSERY_CGROUP), ID_CHARS);
    if (!cgroup_make(nursery->config.cgroups, breed->cgroup, &mother_limits, err))
        return false;
    if (!start_prepare(breed, &start, err) || !start_clone(breed, &start, err)) {
        (void)!cgroup_remove(nursery->config.cgroups, breed->cgroup, &ignored); /* nothing has run in it */
        return false;
    }
    nursery->mother_count++;
    breed->state = MOTHER_STARTING;
    breed->started_ms = clock_mono_ms();
    breed->death = watch_new(nursery->config.loop, breed->pidfd, on_death, breed);
    watch_want(breed->death, WATCH_READ);
    breed->voice = watch_new(nursery->config.loop, breed->voice_fd, on_voice, breed);
    watch_want(breed->voice, WATCH_READ);
    expect_answer(breed);
    return true;
}

/* ---- doors ---- */

/* What a socket lets in; the rest is dropped, as if it had never been sent. */
static bool let_in(int fd, int program_fd, struct err *err)
{
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &program_fd, sizeof program_fd) < 0)
        return err_sys(err, "guard a door");
    return true;
}

bool door_open(const struct breed *breed, int out[2], struct err *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a door");
    if (!let_in(pair[0], breed->nursery->nothing_fd, err)) {
        fd_close(&pair[0]);
        fd_close(&pair[1]);
        return false;
    }
    out[0] = pair[0];
    out[1] = pair[1];
    return true;
}

static bool admit(struct breed *breed, int sandbox_pidfd, int door_fd, struct err *err)
{
    const int fds[MIDWIFE_ORDER_FDS] = { [MIDWIFE_ORDER_DOOR] = door_fd, [MIDWIFE_ORDER_PIDFD] = sandbox_pidfd };

    if (!let_in(door_fd, breed->nursery->wishes_fd, err) ||
        !pass_fds(breed->control_fd, str_of((const char[]){ MOTHER_DOOR }, 1), fds, COUNT_OF(fds), err))
        return err_wrap(err, "give a mother a door");
    breed->unanswered++;
    expect_answer(breed);
    return true;
}

void breed_admit(struct breed *breed, const char *sandbox_id, int sandbox_pidfd, int *door_fd)
{
    struct err err;

    if (breed->state == MOTHER_NONE && !breed->is_barred && clock_mono_ms() >= breed->not_before_ms &&
        !mother_start(breed, &err))
        mother_failed(breed, err_text(&err));
    if ((breed->state == MOTHER_STARTING || breed->state == MOTHER_LIVING) &&
        !admit(breed, sandbox_pidfd, *door_fd, &err))
        log_debug("nursery: sandbox %s: %s", sandbox_id, err_text(&err));
    fd_close(door_fd);
}

void breed_bar(struct breed *breed)
{
    if (!breed || breed->is_barred)
        return;
    breed->is_barred = true;
    log_warn("nursery: template layer %.12s has stopped a sandbox as it was made: it gets no mother any more",
             breed->plan.layers[breed->plan.layer_count - 1]);
    if (breed->state == MOTHER_STARTING || breed->state == MOTHER_LIVING)
        mother_kill(breed);
}

/* ---- the end ---- */

void nursery_free(struct nursery *nursery)
{
    struct err err;

    if (!nursery)
        return;
    uint64_t until_ms = clock_mono_ms() + END_MS;
    for (struct breed *breed = nursery->breeds; breed; breed = breed->next)
        if (breed->pidfd >= 0)
            mother_kill(breed);
    for (struct breed *breed = nursery->breeds, *next; breed; breed = next) {
        next = breed->next;
        if (breed->pidfd >= 0) {
            (void)!fd_await(breed->pidfd, POLLIN, until_ms);
            mother_reap(breed);
        }
        timer_clear(&breed->clear);
        timer_clear(&breed->idle);
        while (breed->state == MOTHER_ENDING && !cgroup_remove(nursery->config.cgroups, breed->cgroup, &err) &&
               clock_mono_ms() < until_ms) { /* what is left then is swept by the next keeper */
            (void)cgroup_kill(nursery->config.cgroups, breed->cgroup);
            (void)usleep(1000);
        }
        free(breed);
    }
    fd_close(&nursery->midwife_fd);
    fd_close(&nursery->nothing_fd);
    fd_close(&nursery->wishes_fd);
    free(nursery->filter.filter);
    free(nursery);
}
