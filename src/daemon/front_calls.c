/*
 * Not here, and that is the point: socket, bind, listen, connect (keeper gives front its sockets, connected), execve, fork (clone3 is for
 * threads only in the sense that a fork could do nothing but these same calls), ptrace, mount, setns, unshare, kill of
 * others, open_by_handle_at, bpf, io_uring, keyctl, chmod and chown by path.
 */
#include "daemon/front_calls.h"

#include <sys/ioctl.h>

const struct confine_rule front_calls[] = {
    /* sockets that front was given */
    { "accept4", "new connections" },
    { "recvfrom", "clients, sandboxes" },
    { "recvmsg", "keeper, with descriptors" },
    { "sendto", "clients, sandboxes" },
    { "sendmsg", "keeper; clients without SIGPIPE" },
    { "sendfile", "bodies without copying" },
    { "splice", "the same" },
    { "shutdown", "orderly ends" },
    { "setsockopt", "TCP_NODELAY, SO_RCVLOWAT, SO_LINGER for resets" },
    { "getsockopt", "SO_ERROR after connect" },
    { "getpeername", "is a socket from keeper connected yet? whose wrong links are these?" },

    /* waiting */
    { "epoll_create1", "the loop" },
    { "epoll_ctl", "the loop" },
    { "epoll_wait", "the loop" },
    { "epoll_pwait", "the loop" },
    { "poll", "guestlink with a time limit" },
    { "ppoll", "the same, by another libc" },
    { "eventfd2", "waking the loop" },
    { "pipe2", "what splice goes through" },
    { "futex", "locks, workers" },
    { "nanosleep", "SQLite while another connection writes" },
    { "clock_nanosleep", "the same" },
    { "restart_syscall", "after a signal" },

    /* bytes and files: the store, in a directory that front is in from the start */
    { "read", "everything" },
    { "write", "everything, the log too" },
    { "readv", "streams" },
    { "writev", "streams" },
    { "pread64", "the store" },
    { "pwrite64", "the store" },
    { "openat", "the store and its journal" },
    { "open", "the same, by SQLite on some architectures" },
    { "close", "everything" },
    { "lseek", "the store" },
    { "fstat", "the store" },
    { "newfstatat", "the store" },
    { "stat", "the store" },
    { "lstat", "the store" },
    { "statfs", "whether the store may make its reserve" },
    { "access", "SQLite looks for a journal" },
    { "faccessat", "the same" },
    { "faccessat2", "the same" },
    { "readlink", "SQLite resolves its path" },
    { "readlinkat", "the same" },
    { "getcwd", "the same" },
    { "unlink", "SQLite ends a journal" },
    { "unlinkat", "the same" },
    { "ftruncate", "the store's shared-memory index" },
    { "fallocate", "the same" },
    { "fsync", "durable writes" },
    { "fdatasync", "durable writes" },
    { "fchmod", "SQLite gives a journal the store's mode" },
    { "fcntl", "SQLite's locks, O_NONBLOCK" },
    { "ioctl", "the loop makes descriptors non-blocking by it", .only = FIONBIO },
    { "dup", "descriptors on their way to keeper" },
    { "dup3", "the same" },
    { "fchdir", "into the store's directory" },

    /* memory and threads */
    { "mmap", "memory" },
    { "munmap", "memory" },
    { "mremap", "memory" },
    { "mprotect", "thread stacks" },
    { "madvise", "memory given back" },
    { "brk", "memory" },
    { "clone", "worker threads, older libc" },
    { "clone3", "worker threads" },
    { "set_robust_list", "threads" },
    { "rseq", "threads" },
    { "gettid", "threads" },
    { "getpid", "abort, SQLite" },
    { "tgkill", "abort" },
    { "sched_yield", "locks" },
    { "sched_getaffinity", "the allocator counts CPUs" },
    { "prctl", "thread names" },
    { "exit", "threads" },
    { "exit_group", "the end" },
    { "rt_sigaction", "signals" },
    { "rt_sigprocmask", "signals" },
    { "rt_sigreturn", "signals" },
    { "sigaltstack", "the sanitizers of test builds" },

    /* facts */
    { "clock_gettime", "time, where the vDSO cannot" },
    { "gettimeofday", "the same" },
    { "getrandom", "ids and keys" },
    { "getuid", "SQLite" },
    { "geteuid", "SQLite" },
    { "getgid", "libc" },
    { "getegid", "libc" },
    { "getrlimit", "libc" },
    { "prlimit64", "thread stacks; more open files" },
    { "sysinfo", "the allocator" },
};

const size_t front_call_count = sizeof front_calls / sizeof front_calls[0];
