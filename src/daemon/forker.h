/*
 * forker.h - the main function of a role that answers each request of front's in a child of its own.
 *
 * The parent holds a channel to front and one to keeper, and reads no request: front talks to the child. What a request does
 * to the libraries that the child calls dies with the child.
 */
#ifndef DAEMON_FORKER_H
#define DAEMON_FORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "privsep/confine.h"
#include "privsep/message.h"

struct forker_config {
    const char *what;                 /* "message": for the log */
    enum message_type message;        /* by which front asks for a child */
    uint32_t children_most;           /* at once, with those that have answered and not ended yet */
    unsigned seconds;                 /* then a child is killed */
    uint32_t keep_fds;                /* of the role's own, the first ones of its row: a child has them too */
    unsigned yield_ms;                /* of a processor, then a child gives way to others; 0: never */
    struct confine_limits limits;     /* of a child */
    const struct confine_rule *calls; /* of a child; the parent's are in its row, and must have these too */
    /* In the child, before its list of system calls is loaded: starts threads, which must run when it returns. NULL: none. */
    bool (*prepare)(void *context, struct err *err);
    /* In the child: reads a request, answers it. */
    bool (*serve)(void *context, int fd, struct err *err);
    /* In the parent: what keeper sends besides connections. NULL: nothing. */
    bool (*keeper_event)(void *context, enum message_type type, struct str payload, struct err *err);
    void *context;
};

/* Returns the exit code. */
int forker_run(const struct forker_config *config);

/* The system calls that every child needs, and those that every parent needs besides. For lists of struct confine_rule. */
#define FORKER_CHILD_CALLS                                                                                             \
    { "recvfrom", "the child's request" }, { "sendto", "its answer" }, { "poll", "waiting for front" },                \
        { "ppoll", "the same, by another libc" }, { "close", "descriptors" },                                          \
        { "write", "the log; a child's goes to /dev/null" }, { "futex", "locks of libraries" },                        \
        { "restart_syscall", "after a signal" }, { "mmap", "memory" }, { "munmap", "memory" }, { "mremap", "memory" }, \
        { "mprotect", "memory" }, { "madvise", "memory given back" }, { "brk", "memory" }, { "exit", "the end" },      \
        { "exit_group", "the end" }, { "rt_sigaction", "abort" }, { "rt_sigprocmask", "abort" },                       \
        { "rt_sigreturn", "signals" }, { "sigaltstack", "the sanitizers of test builds" },                             \
        { "getpid", "abort, random numbers of libraries" }, { "gettid", "abort" }, { "tgkill", "abort" },              \
        { "getrandom", "random numbers" }, { "clock_gettime", "time, where the vDSO cannot" },                         \
        { "gettimeofday", "the same" }, { "sched_yield", "locks" },                                                    \
    {                                                                                                                  \
        "sysinfo", "the allocator"                                                                                     \
    }
#define FORKER_PARENT_CALLS                                                                                           \
    { "recvmsg", "keeper, front" }, { "sendmsg", "front" }, { "read", "wake-ups of the loop" },                       \
        { "memfd_create", "the children's list, compiled once" }, { "lseek", "the same" },                            \
        { "socketpair", "a connection for each child", .first = AF_UNIX }, { "clone", "a child for each request" },   \
        { "clone3", "the same, by another libc" }, { "wait4", "children that have ended" },                           \
        { "set_robust_list", "the child of a fork" }, { "rseq", "the same" }, { "epoll_create1", "the loop" },        \
        { "epoll_ctl", "the loop" }, { "epoll_wait", "the loop" }, { "epoll_pwait", "the loop" },                     \
        { "eventfd2", "the loop" }, { "fcntl", "O_NONBLOCK" },                                                        \
        { "ioctl", "the loop makes descriptors non-blocking by it", .only = FIONBIO }, { "setsockopt", "channels" },  \
        { "getsockopt", "channels" }, { "dup", "descriptors on their way to front" },                                 \
        { "dup2", "the child's connection" }, { "dup3", "the same" }, { "close_range", "the child closes the rest" }, \
        { "alarm", "the child's time" }, { "setitimer", "the same, by another libc" },                                \
        { "getpriority", "children that compute for long" }, { "setpriority", "the same" },                           \
        { "clock_getres", "the same: is it a clock?" }, { "setrlimit", "the child's limits" },                        \
        { "prlimit64", "the same; libc" },                                                                            \
        { "prctl", "the child dies with its parent; no_new_privs, before its list" },                                 \
    {                                                                                                                 \
        "seccomp", "the child's list"                                                                                 \
    }

#endif
