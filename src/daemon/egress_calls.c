/*
 * Every system call that egress may make. Left out on purpose: opening and changing files, execve, ptrace, mount, setns,
 * unshare, kill, io_uring, keyctl. Sockets are those of IP and netlink: no capability is left, and what it connects to is
 * what net_judge() has allowed. clone and clone3 are not there: egress has one thread.
 */
#include "daemon/roles.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

const struct confine_rule egress_calls[] = {
    /* sockets: those of sandboxes come from keeper, those to the outside are made here */
    { "socket", "connections to the outside, questions to DNS servers", .first = AF_INET },
    { "socket", "the same", .first = AF_INET6 },
    { "socket", "is this an address of this machine?", .first = AF_NETLINK },
    { "socketpair", "between a sandbox's connection and TLS that ends here; unix, so it leads nowhere" },
    { "connect", "the same" },
    { "accept4", "connections from sandboxes" },
    { "recvfrom", "connections, DNS" },
    { "recvmsg", "keeper and front, with descriptors; DNS" },
    { "sendto", "connections, DNS" },
    { "sendmsg", "keeper and front; connections without SIGPIPE" },
    { "splice", "bulk data without copying" },
    { "pipe2", "what splice goes through" },
    { "shutdown", "one side has ended" },
    { "setsockopt", "TCP_NODELAY, keep-alive, SO_LINGER for resets" },
    { "getsockopt", "the original destination; SO_ERROR after connect; SO_LINGER before a reset" },
    { "getsockname", "where a connection of a sandbox wants to go" },
    { "getpeername", "who is at the other end" },

    /* waiting */
    { "epoll_create1", "the loop" },
    { "epoll_ctl", "the loop" },
    { "epoll_wait", "the loop" },
    { "epoll_pwait", "the loop" },
    { "poll", "libc" },
    { "ppoll", "libc" },
    { "eventfd2", "waking the loop" },
    { "futex", "locks" },
    { "restart_syscall", "after a signal" },

    /* bytes */
    { "read", "everything" },
    { "write", "everything, the log too" },
    { "readv", "streams" },
    { "writev", "streams" },
    { "close", "everything" },
    { "fstat", "is it a socket?" },
    { "newfstatat", "the same, by libc" },
    { "lseek", "settings" },
    { "fcntl", "O_NONBLOCK, the size of a pipe" },
    { "ioctl", "the loop makes descriptors non-blocking by it", .only = FIONBIO },
    { "dup", "descriptors on their way" },
    { "dup3", "the same" },

    /* memory and signals */
    { "mmap", "memory" },
    { "munmap", "memory" },
    { "mremap", "memory" },
    { "mprotect", "memory" },
    { "madvise", "memory given back" },
    { "brk", "memory" },
    { "rt_sigaction", "signals" },
    { "rt_sigprocmask", "signals" },
    { "rt_sigreturn", "signals" },
    { "sigaltstack", "the sanitizers of test builds" },
    { "gettid", "abort" },
    { "getpid", "abort" },
    { "tgkill", "abort" },
    { "sched_yield", "locks" },
    { "sched_getaffinity", "the allocator counts CPUs" },
    { "prctl", "the sanitizers of test builds" },
    { "exit", "the end" },
    { "exit_group", "the end" },

    /* facts */
    { "clock_gettime", "time, where the vDSO cannot" },
    { "gettimeofday", "the same" },
    { "getrandom", "hash seeds, DNS ids" },
    { "getuid", "libc" },
    { "geteuid", "libc" },
    { "getgid", "libc" },
    { "getegid", "libc" },
    { "getrlimit", "how many connections there may be" },
    { "prlimit64", "the same" },
    { "sysinfo", "the allocator" },
    { NULL },
};
