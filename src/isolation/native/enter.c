/*
 * enter.c - moves a fork of the zygote into a sandbox, where it becomes an interpreter.
 *
 * Where it runs: a shared object without a C library, loaded by a python3 of the template (zygotes.h says how that process
 * is confined), whose driver calls two functions. It may not allocate, may not rely on thread-local storage and makes
 * every system call itself, except fork(), which must run the handlers that libraries registered with the C library.
 *
 * How it works. The zygote has power over the sandboxes of its template because its uid owns their user namespaces; a
 * process that enters a user namespace it owns has all capabilities there. One spawn takes three processes:
 *
 *   A  a fork of the zygote, made in advance, waits for an order. It receives the request itself, so that the zygote never
 *      touches what a guest has sent: closing a guest's descriptor can take as long as the guest likes. A enters all
 *      namespaces of the sandbox; the pid namespace applies to its children only.
 *   B  A's child, sharing A's memory (as with vfork), is the first process inside. It forks C and exits.
 *   C  becomes the interpreter. Since B exits at once, C is guestd's child, as everything inside is. C has guestd move it to
 *      the sandbox's cgroups, drops its privileges, verifies that, and returns to Python.
 *
 * Why guestd moves it: a process that may write to a cgroup may move every process it sees, and a zygote sees the host's.
 * guestd sees its sandbox only. C checks the result.
 *
 * Until then A, B and C are not dumpable: the guest's root, without CAP_SYS_PTRACE, can stop or kill them but neither read
 * nor trace them. Any failure ends the process: no interpreter runs half confined.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/socket.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "isolation/native/capabilities.h"
#include "isolation/native/enter.h"
#include "wire/zygote.h"

/* ---- system calls ---- */

#if defined(__x86_64__)

static long call6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static char *thread_pointer(void)
{
    char *at;

    __asm__("mov %%fs:0, %0" : "=r"(at));
    return at;
}

enum { RSEQ_SIGNATURE = 0x53053053 };

#elif defined(__aarch64__)

static long call6(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

static char *thread_pointer(void)
{
    return __builtin_thread_pointer();
}

#define RSEQ_SIGNATURE 0xd428bc00

#else
#error "enter.c does not know the system calls of this machine"
#endif

#define CALL_0(n) call6((n), 0, 0, 0, 0, 0, 0)
#define CALL_1(n, a) call6((n), (long)(a), 0, 0, 0, 0, 0)
#define CALL_2(n, a, b) call6((n), (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL_3(n, a, b, c) call6((n), (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL_4(n, a, b, c, d) call6((n), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL_5(n, a, b, c, d, e) call6((n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

enum {
    SIGNAL_CHILD = 17, /* the same on both machines */
    SIGNAL_SET_BYTES = 8,
    ALL_SIGNALS_BLOCK = 0, /* SIG_BLOCK */
    ALL_SIGNALS_SET = 2,   /* SIG_SETMASK */
    PARENT_TRIES = 20000,  /* of 50 us: until B has ended and C is guestd's */
    PARENT_PAUSE_NS = 50000,
    FDS_MAX = 8, /* that come with a message */
    CGROUP_TEXT = 8192,
    MOVE_SECONDS = 3,
    ASIDE_FD = 64,
    FIRST_FD = 3,
    RSEQ_BYTES = 32,
    SECCOMP_IS_FILTER = 2, /* what PR_GET_SECCOMP answers */
    LIMIT_OF_FILES = 7,    /* RLIMIT_NOFILE, the same on both machines */
};

/* How far it got, as the exit status of A, for debugging. */
enum step {
    ENTERED = 0,
    NO_ORDER = 40,
    NO_REQUEST,
    NO_ENTRY,
    NO_CHILD,
    NO_FORK,
    NO_CGROUP,
    NO_ROOT,
    NO_BOUNDS,
    NO_USER,
    NOT_CONFINED,
    NO_FILES,
    NO_PARENT,
};

static _Noreturn void leave(int status)
{
    for (;;)
        (void)CALL_1(SYS_exit_group, status);
}

static void check(long result, enum step step)
{
    if (result < 0)
        leave((int)step);
}

/* ---- hooks ---- */

static struct enter_hooks hooks;

int enter_open(const struct enter_hooks *from_zygote)
{
    hooks.before_fork = from_zygote->before_fork;
    hooks.after_fork_parent = from_zygote->after_fork_parent;
    hooks.after_fork_child = from_zygote->after_fork_child;
    hooks.fork = from_zygote->fork;
    hooks.rseq_offset = from_zygote->rseq_offset;
    return (int)CALL_2(SYS_prctl, PR_SET_DUMPABLE, 0);
}

/* ---- receiving ---- */

struct received {
    long length; /* of the bytes; negative: errno */
    int fds[FDS_MAX];
    unsigned count;
};

static void receive(int fd, void *bytes, size_t size, int flags, struct received *out)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec piece = { .iov_base = bytes, .iov_len = size };
    struct msghdr message;

    message.msg_name = NULL;
    message.msg_namelen = 0;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    message.msg_flags = 0;
    /* Field by field, like the rest: an initializer of this size is a call of memset. */
    control.align.cmsg_len = 0;
    control.align.cmsg_level = control.align.cmsg_type = 0;
    out->count = 0;
    do
        out->length = CALL_3(SYS_recvmsg, fd, &message, flags | MSG_CMSG_CLOEXEC);
    while (out->length == -EINTR);
    if (out->length < 0 || message.msg_controllen < sizeof(struct cmsghdr))
        return;
    if (control.align.cmsg_level != SOL_SOCKET || control.align.cmsg_type != SCM_RIGHTS)
        return;
    const int *fds = (const int *)(const void *)CMSG_DATA(&control.align);
    out->count = (unsigned)((control.align.cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (unsigned i = 0; i < out->count && i < FDS_MAX; i++)
        out->fds[i] = fds[i];
}

/* ---- C: being moved ---- */

/* For any controller: the path of a zygote's cgroup has a part that starts like this. */
static bool is_with_zygote(const char *text, long length)
{
    static const char part[] = "/" ZYGOTE_CGROUP;

    for (long i = 0; i + (long)sizeof part - 1 <= length; i++) {
        unsigned same = 0;
        while (same < sizeof part - 1 && text[i + (long)same] == part[same])
            same++;
        if (same == sizeof part - 1)
            return true;
    }
    return false;
}

/* guestd learns from the kernel which process sent the message. */
static void be_moved(int link_fd)
{
    const long patience[2] = { MOVE_SECONDS, 0 }, for_ever[2] = { 0, 0 };
    static char text[CGROUP_TEXT]; /* not on the stack: clearing it there would be a call of memset */
    char answer[sizeof ZYGOTE_MOVED - 1];
    long length = 0, n;

    check(CALL_5(SYS_setsockopt, link_fd, SOL_SOCKET, SO_RCVTIMEO, patience, sizeof patience), NO_CGROUP);
    if (CALL_4(SYS_sendto, link_fd, ZYGOTE_ENTERED, sizeof ZYGOTE_ENTERED - 1, MSG_NOSIGNAL) !=
            sizeof ZYGOTE_ENTERED - 1 ||
        CALL_4(SYS_recvfrom, link_fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
        leave(NO_CGROUP);
    check(CALL_5(SYS_setsockopt, link_fd, SOL_SOCKET, SO_RCVTIMEO, for_ever, sizeof for_ever), NO_CGROUP);
    long fd = CALL_4(SYS_openat, AT_FDCWD, "/proc/self/cgroup", O_RDONLY | O_CLOEXEC, 0);
    check(fd, NO_CGROUP);
    while ((n = CALL_3(SYS_read, fd, text + length, sizeof text - (size_t)length)) > 0)
        length += n;
    check(n, NO_CGROUP);
    if (length == 0 || length == sizeof text || is_with_zygote(text, length))
        leave(NO_CGROUP);
    (void)CALL_1(SYS_close, fd);
}

/* ---- C: dropping privileges ---- */

/* A change of ids resets this to what fs.suid_dumpable says on the host. */
static void stay_unreadable(void)
{
    check(CALL_2(SYS_prctl, PR_SET_DUMPABLE, 0), NOT_CONFINED);
}

static void become_root(void)
{
    /* From the zygote's uid, which is not mapped here. */
    check(CALL_3(SYS_setresgid, 0, 0, 0), NO_ROOT);
    check(CALL_2(SYS_setgroups, 0, NULL), NO_ROOT);
    check(CALL_3(SYS_setresuid, 0, 0, 0), NO_ROOT);
    stay_unreadable();
    (void)CALL_1(SYS_umask, 022);
}

static void drop_bounding_set(void)
{
    uint64_t keep = kept_capability_mask();

    for (unsigned capability = 0; capability < 64; capability++) {
        if (keep & 1ull << capability)
            continue;
        long result = CALL_5(SYS_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
        if (result == -EINVAL && capability > CAP_AUDIT_READ)
            break; /* past the last one this kernel has */
        check(result, NO_BOUNDS);
    }
    check(CALL_5(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), NO_BOUNDS);
}

/* What a command of that user started by guestd would have: nothing, or the bounding set if it is root. */
static uint64_t due_capabilities(const struct zygote_request *request)
{
    return request->uid == 0 ? kept_capability_mask() : 0;
}

static void become_user(const struct zygote_request *request)
{
    uint64_t due = due_capabilities(request);
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct sets[2];

    check(CALL_2(SYS_setgroups, request->group_count, request->groups), NO_USER);
    check(CALL_3(SYS_setresgid, request->gid, request->gid, request->gid), NO_USER);
    check(CALL_3(SYS_setresuid, request->uid, request->uid, request->uid), NO_USER);
    stay_unreadable();
    for (unsigned i = 0; i < 2; i++) {
        sets[i].effective = sets[i].permitted = (uint32_t)(due >> 32 * i);
        sets[i].inheritable = 0;
    }
    check(CALL_2(SYS_capset, &header, sets), NO_USER);
}

/* Checks the result of all the above. */
static void verify(const struct zygote_request *request)
{
    uint64_t due = due_capabilities(request);
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    /* Values that fail the check, in case the kernel fills nothing in. */
    struct __user_cap_data_struct sets[2] = { { ~0u, ~0u, ~0u }, { ~0u, ~0u, ~0u } };
    uint32_t ids[3] = { ~0u, ~0u, ~0u };
    bool fine = true;

    check(CALL_3(SYS_getresuid, &ids[0], &ids[1], &ids[2]), NOT_CONFINED);
    fine = fine && ids[0] == request->uid && ids[1] == request->uid && ids[2] == request->uid;
    check(CALL_3(SYS_getresgid, &ids[0], &ids[1], &ids[2]), NOT_CONFINED);
    fine = fine && ids[0] == request->gid && ids[1] == request->gid && ids[2] == request->gid;
    fine = fine && CALL_2(SYS_getgroups, 0, NULL) == (long)request->group_count;
    check(CALL_2(SYS_capget, &header, sets), NOT_CONFINED);
    for (unsigned i = 0; i < 2; i++)
        fine = fine && sets[i].effective == (uint32_t)(due >> 32 * i) &&
               sets[i].permitted == (uint32_t)(due >> 32 * i) && sets[i].inheritable == 0;
    for (unsigned capability = 0; capability < 64; capability++) {
        long has = CALL_5(SYS_prctl, PR_CAPBSET_READ, capability, 0, 0, 0);
        fine = fine && (has != 1 || (kept_capability_mask() & 1ull << capability));
    }
    fine = fine && CALL_1(SYS_prctl, PR_GET_SECCOMP) == SECCOMP_IS_FILTER;
    /* Without the filter the kernel would find fault with the arguments: EINVAL. */
    fine = fine && CALL_2(SYS_clone3, NULL, 0) == -ENOSYS;
    fine = fine && CALL_1(SYS_prctl, PR_GET_DUMPABLE) == 0;
    if (!fine)
        leave(NOT_CONFINED);
}

/* The three at 3, 4, 5, nothing at 0, 1, 2, and no other. */
static void keep_three(const int fds[ZYGOTE_REQUEST_FDS], int out_fds[ZYGOTE_REQUEST_FDS])
{
    long aside[ZYGOTE_REQUEST_FDS];

    for (int i = 0; i < ZYGOTE_REQUEST_FDS; i++) {
        aside[i] = CALL_3(SYS_fcntl, fds[i], F_DUPFD_CLOEXEC, ASIDE_FD);
        check(aside[i], NO_FILES);
    }
    for (int i = 0; i < ZYGOTE_REQUEST_FDS; i++) {
        check(CALL_3(SYS_dup3, aside[i], FIRST_FD + i, O_CLOEXEC), NO_FILES);
        out_fds[i] = FIRST_FD + i;
    }
    check(CALL_3(SYS_close_range, FIRST_FD + ZYGOTE_REQUEST_FDS, ~0u, 0), NO_FILES);
    check(CALL_3(SYS_close_range, 0, 2, 0), NO_FILES);
    check(CALL_4(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0), NO_FILES); /* the lowest: 0 */
    check(CALL_3(SYS_dup3, 0, 1, 0), NO_FILES);
    check(CALL_3(SYS_dup3, 0, 2, 0), NO_FILES);
}

/* The zygote's limit is for a thousand sandboxes. */
static void limit_files(void)
{
    struct {
        uint64_t soft, hard;
    } limit = { 0, 0 };

    check(CALL_4(SYS_prlimit64, 0, LIMIT_OF_FILES, NULL, &limit), NO_FILES);
    if (limit.hard > GUEST_FILES)
        limit.hard = GUEST_FILES;
    limit.soft = limit.hard;
    check(CALL_4(SYS_prlimit64, 0, LIMIT_OF_FILES, &limit, NULL), NO_FILES);
}

/* Registers the C library's struct rseq again: the kernel dropped it when B shared our memory. */
static void tell_rseq(void)
{
    if (hooks.rseq_offset)
        (void)CALL_4(SYS_rseq, thread_pointer() + hooks.rseq_offset, RSEQ_BYTES, 0, RSEQ_SIGNATURE);
}

/* Until B has exited, so that getppid() is guestd from the first line of Python on. */
static void wait_for_guestd(void)
{
    const long pause[2] = { 0, PARENT_PAUSE_NS };

    for (int i = 0; CALL_0(SYS_getppid) != 1; i++) {
        if (i == PARENT_TRIES)
            leave(NO_PARENT);
        (void)CALL_2(SYS_nanosleep, pause, NULL);
    }
}

/*
 * confine() - in C, before one byte of Python runs.
 *   user ns   the sandbox's, all capabilities in it         memory   the zygote's, copy on write; not dumpable
 *   uid       the zygote's, not mapped here                 cgroup   the zygote's, then the sandbox's limited one
 *   others    all of the sandbox's                          filter   the zygote's, which stays (see seccomp.c)
 *   signals   all blocked                                   files    the order, the socket, and those of the request
 *   must      end with the ids, capabilities, cgroups and files that a command of that user has; end at once if any of it fails
 */
static void confine(const struct zygote_request *request, const int fds[ZYGOTE_REQUEST_FDS],
                    int out_fds[ZYGOTE_REQUEST_FDS])
{
    be_moved(fds[0]);
    become_root();
    drop_bounding_set();
    become_user(request);
    keep_three(fds, out_fds);
    limit_files();
    verify(request);
    wait_for_guestd();
    tell_rseq();
    check(CALL_2(SYS_prctl, PR_SET_DUMPABLE, 1), NOT_CONFINED);
}

/* ---- A and B ---- */

static bool request_is_valid(const struct zygote_request *request, const struct received *got)
{
    if (got->length != (long)sizeof *request || got->count != ZYGOTE_REQUEST_FDS)
        return false;
    return request->magic == ZYGOTE_MAGIC && request->group_count <= ZYGOTE_GROUPS_MAX;
}

/*
 * Returns in C only. Not inlined: A sleeps in here while B uses the stack below, and after that A may rely on the number in
 * a register only.
 */
static __attribute__((noinline)) void deliver(void)
{
    long child = CALL_5(SYS_clone, CLONE_VM | CLONE_VFORK | SIGNAL_CHILD, 0, 0, 0, 0);

    if (child > 0) {
        int status = 0;
        while (CALL_4(SYS_wait4, child, &status, 0, NULL) == -EINTR)
            ;
        leave(status & 0x7f ? NO_CHILD : status >> 8 & 0xff);
    }
    check(child, NO_CHILD);
    int spawned = hooks.fork();
    if (spawned != 0)
        leave(spawned < 0 ? NO_FORK : ENTERED);
}

/*
 * await_order() - in A, from its fork to C's return.
 *   namespaces  the zygote's until the order is there       files   the order's socket alone
 *   must        write as little memory as possible: until C is in the sandbox's cgroup, it is charged to the zygote
 *   must not    return, but as C
 */
static void await_order(int order_fd, int out_fds[ZYGOTE_REQUEST_FDS])
{
    struct received order, got;
    struct zygote_request request;
    char letter = 0;

    if (order_fd > 0)
        check(CALL_3(SYS_close_range, 0, order_fd - 1, 0), NO_ORDER);
    check(CALL_3(SYS_close_range, order_fd + 1, ~0u, 0), NO_ORDER);
    receive(order_fd, &letter, 1, 0, &order);
    if (order.length == 0 || (order.length == 1 && letter == ENTER_DROP))
        leave(ENTERED); /* the zygote is gone; or it wants a socket closed, which may take long */
    if (order.length != 1 || letter != ENTER_SANDBOX || order.count != ENTER_ORDER_FDS)
        leave(NO_ORDER);
    receive(order.fds[ENTER_ORDER_SOCKET], &request, sizeof request, MSG_DONTWAIT, &got);
    if (!request_is_valid(&request, &got))
        leave(NO_REQUEST);
    check(CALL_2(SYS_setns, order.fds[ENTER_ORDER_PIDFD], ENTER_NAMESPACES), NO_ENTRY);
    deliver();
    confine(&request, got.fds, out_fds);
}

int enter_spare(int order_fd, int out_fds[ZYGOTE_REQUEST_FDS])
{
    const uint64_t all = ~0ull;
    uint64_t before = 0;

    /* Python's signal handlers must not run in A or B. */
    (void)CALL_4(SYS_rt_sigprocmask, ALL_SIGNALS_BLOCK, &all, &before, SIGNAL_SET_BYTES);
    hooks.before_fork();
    int pid = hooks.fork();
    if (pid == 0)
        await_order(order_fd, out_fds);
    (void)CALL_4(SYS_rt_sigprocmask, ALL_SIGNALS_SET, &before, NULL, SIGNAL_SET_BYTES);
    if (pid == 0)
        hooks.after_fork_child();
    else
        hooks.after_fork_parent();
    return pid;
}
