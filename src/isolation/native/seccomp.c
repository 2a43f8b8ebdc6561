/*
 * How it works: a call that is not in the tables is answered with EPERM, or with ENOSYS where it is newer than the
 * list, so that a library which tries a new call first falls back to the old one. libseccomp turns the tables into BPF;
 * a few instructions of our own stand before it, for what libseccomp cannot say.
 *
 * What the filter is not for: a guest's root has no capability outside its user namespace, so most of what is refused
 * here would fail anyway. The filter takes away code of the kernel that has had holes and that no ordinary program
 * needs (bpf, io_uring, userfaultfd, keyrings), and calls whose effect is not confined by namespaces.
 *
 * clone3 is allowed although its flags cannot be read here (they sit in memory). A new user namespace is refused by
 * max_user_namespaces=0 inside, and every other namespace needs CAP_SYS_ADMIN, which is not in the bounding set.
 *
 * A zygote (zygotes.h) has the same filter with three differences, `zygotes` and `guests`: it may enter a sandbox, all
 * namespaces at once; it has no clone3, because no sysctl forbids user namespaces where it runs; and it has no netlink. A
 * process that enters a sandbox has all capabilities there until it gives them up, CAP_NET_ADMIN too, and a template's
 * Python need not: then rtnetlink would be the kernel's code for links, rules and traffic control. Interpreters are its
 * forks and keep its filter: they cannot list interfaces. setns() gives them nothing: it wants CAP_SYS_ADMIN, which they do
 * not have. They keep its session keyring too, which is empty and which no call in the list can reach.
 *
 * BPF programs are counted with care, the guests' and our own. Each one that is freed is a work item on a queue of the
 * whole kernel. A thousand of them at once can fill it for good (seen on 6.18): the one item that holds the lock waits
 * for another that finds no room, and from then on no filter can be loaded or freed on this machine. So guests cannot
 * have programs of their own, on sockets or as filters (`passed`, `refused`). Of ours there is one a sandbox and one a zygote:
 * processes share a filter by fork and in no other way, and a process that already has this one could not make a
 * sandbox. box.c bounds how many sandboxes end at once.
 */
#include "isolation/native/seccomp.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "isolation/native/enter.h"

#ifndef IPPROTO_MPTCP /* newer than some C libraries, as what follows */
#define IPPROTO_MPTCP 262
#endif
#ifndef IP_RECVERR_RFC4884
#define IP_RECVERR_RFC4884 26
#endif
#ifndef IPV6_RECVERR_RFC4884
#define IPV6_RECVERR_RFC4884 31
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef F_SETDELEG
#define F_SETDELEG 1040
#endif

struct call_group {
    const char *reason;
    const char *names; /* separated by blanks; a name this architecture does not have is skipped */
};

static const struct call_group allowed[] = {
    { "files and directories: what a guest may reach is decided by its mounts and the file modes in them",
      "access chdir chmod chown close close_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate "
      "fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr "
      "fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat lchown "
      "lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod "
      "mknodat newfstatat open openat openat2 read readlink readlinkat removexattr removexattrat rename renameat "
      "renameat2 rmdir setxattr stat statfs statx symlink symlinkat sync_file_range truncate umask unlink unlinkat "
      "utime "
      "utimensat utimes" },
    { "reading and writing",
      "copy_file_range pread64 preadv preadv2 pwrite64 pwritev pwritev2 readahead readv sendfile splice tee vmsplice "
      "write writev" },
    { "waiting for descriptors, locks and time",
      "epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_requeue "
      "futex_wait futex_waitv futex_wake poll ppoll pselect6 select signalfd signalfd4 timerfd_create timerfd_gettime "
      "timerfd_settime" },
    { "watching files; the number of instances is limited inside the user namespace",
      "inotify_add_watch inotify_init inotify_init1 inotify_rm_watch" },
    { "memory of its own",
      "brk cachestat madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap "
      "mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise "
      "remap_file_pages" },
    { "placement of its memory: one policy a thread", "get_mempolicy set_mempolicy" },
    { "pipes, sockets and terminals; families of sockets are checked below",
      "accept accept4 bind connect getpeername getsockname getsockopt listen pipe pipe2 recvfrom recvmmsg recvmsg "
      "sendmmsg sendmsg sendto setsockopt shutdown" },
    { "processes and threads: namespace flags of clone are checked below",
      "arch_prctl capget capset clone3 execve execveat exit exit_group fork getcpu getegid geteuid getgid getgroups "
      "getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid kill "
      "pidfd_getfd pidfd_open pidfd_send_signal prctl prlimit64 rseq set_robust_list get_robust_list set_tid_address "
      "setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid "
      "setuid tgkill tkill vfork wait4 waitid" },
    { "scheduling, within the CPU limit of the cgroup",
      "ioprio_get ioprio_set sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr "
      "sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam "
      "sched_setscheduler sched_yield" },
    { "signals and timers",
      "alarm getitimer pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn "
      "rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack timer_create timer_delete "
      "timer_getoverrun timer_gettime timer_settime" },
    { "time: read and wait; setting the clock is not in the list",
      "clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time times" },
    { "debuggers and profilers of its own processes: the pid and user namespaces are the border",
      "process_vm_readv process_vm_writev ptrace" },
    { "System V and POSIX queues, in an IPC namespace of its own",
      "mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl "
      "semget semop semtimedop shmat shmctl shmdt shmget" },
    { "giving up power: programs confine themselves further; `refused` below says how they cannot", "seccomp" },
    { "devices it can open: terminals, null, random; `refused` below says what they cannot do", "ioctl" },
    { "what the machine is called, how it is, and its randomness", "getrandom sysinfo uname" },
    { "chroot: CAP_SYS_CHROOT is in the bounding set, and the mount namespace is the border", "chroot" },
};

/*
 * Allowed as well, unless the memory of sandboxes is written to disk: a process comes back from there without its Landlock
 * rules, and nothing says that it had any. Programs that use it do without where the kernel has none.
 */
static const struct call_group landlock[] = {
    { "giving up power over files", "landlock_add_rule landlock_create_ruleset landlock_restrict_self" },
};

/* ENOSYS, so that libraries fall back to other calls; EPERM would look as if only these arguments were refused. */
static const struct call_group absent[] = {
    { "new ways to ask for what the list above has, or for what sandboxes have no use for",
      "statmount listmount lsm_get_self_attr lsm_list_modules lsm_set_self_attr" },
    { "io_uring: libuv and others try it and then use epoll; it is left out for its record of holes",
      "io_uring_setup io_uring_enter io_uring_register" },
    { "asynchronous I/O of the old kind: its contexts are counted for the whole machine (aio-max-nr), so that one "
      "guest "
      "can take them all; databases find none and read in threads",
      "io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit" },
    { "optional parts of a kernel that few programs look for: memory hidden from its own kernel, and a window on "
      "kernel "
      "addresses",
      "memfd_secret kcmp" },
    { "policies for parts of a shared memory: an object for each page, charged to nobody. numactl and databases go on "
      "with set_mempolicy, as on a kernel without NUMA",
      "mbind set_mempolicy_home_node" },
    { "the size of its value is in memory, so ACL_BYTES below could not be applied", "setxattrat" },
};

/*
 * Answered with success. All that a guest writes is in an overlay that is mounted volatile, which syncs nothing, or in memory;
 * sync() would only make the host write what others have written.
 */
static const struct call_group without_effect[] = {
    { "programs call them before they say that something is safe", "sync syncfs" },
};

/* With conditions: one row, one allowed combination. */
struct checked_call {
    const char *name;
    const char *reason;
    struct {
        unsigned argument;
        uint64_t mask, value; /* allowed where (argument & mask) == value */
    } when[3];                /* all of them; a mask of 0 ends the list */
};

#define NAMESPACE_FLAGS                                                                                          \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | \
     CLONE_NEWTIME)
/* clone() has the exit signal in its low byte, CLONE_NEWTIME is one of those bits: for clone it is no flag. */
#define CLONE_MASK (NAMESPACE_FLAGS & ~0xffull)
#define WHOLE 0xffffffffull
#define STREAM              \
    {                       \
        1, 0xf, SOCK_STREAM \
    } /* the bits above are SOCK_CLOEXEC and SOCK_NONBLOCK */
#define DATAGRAM           \
    {                      \
        1, 0xf, SOCK_DGRAM \
    }

static const struct checked_call checked[] = {
    { "clone", "threads and processes, no namespaces", { { 0, CLONE_MASK, 0 } } },
    { "unshare", "its file table or working directory, no namespaces", { { 0, NAMESPACE_FLAGS, 0 } } },
    { "personality", "ask", { { 0, WHOLE, 0xffffffff } } },
    { "personality", "plain Linux", { { 0, WHOLE, PER_LINUX } } },
    { "personality", "setarch linux32, as package builds do", { { 0, WHOLE, PER_LINUX32 } } },
    { "personality", "gdb and setarch -R: no address randomisation in a child", { { 0, WHOLE, ADDR_NO_RANDOMIZE } } },
    { "personality", "2.6 version number for old programs", { { 0, WHOLE, UNAME26 } } },
    { "socket", "local sockets", { { 0, WHOLE, AF_UNIX } } },
    { "socketpair", "local sockets; no other family has pairs that are in use", { { 0, WHOLE, AF_UNIX } } },
    /*
     * TCP and UDP, and no more of the stack: no raw sockets, with which root inside would read the access token off the
     * loopback; no ping sockets, whose queues are charged to no cgroup; and no transport that few use and that
     * has had many holes (MPTCP, SCTP, UDP-Lite).
     */
    { "socket", "IPv4 TCP", { { 0, WHOLE, AF_INET }, STREAM, { 2, WHOLE, 0 } } },
    { "socket", "the same, by name", { { 0, WHOLE, AF_INET }, STREAM, { 2, WHOLE, IPPROTO_TCP } } },
    { "socket", "IPv4 UDP", { { 0, WHOLE, AF_INET }, DATAGRAM, { 2, WHOLE, 0 } } },
    { "socket", "the same, by name", { { 0, WHOLE, AF_INET }, DATAGRAM, { 2, WHOLE, IPPROTO_UDP } } },
    { "socket", "IPv6 TCP", { { 0, WHOLE, AF_INET6 }, STREAM, { 2, WHOLE, 0 } } },
    { "socket", "the same, by name", { { 0, WHOLE, AF_INET6 }, STREAM, { 2, WHOLE, IPPROTO_TCP } } },
    { "socket", "IPv6 UDP", { { 0, WHOLE, AF_INET6 }, DATAGRAM, { 2, WHOLE, 0 } } },
    { "socket", "the same, by name", { { 0, WHOLE, AF_INET6 }, DATAGRAM, { 2, WHOLE, IPPROTO_UDP } } },
};

static const struct checked_call guests[] = {
    /* Of the network namespace with lo alone; glibc's getaddrinfo and `ip` ask it about addresses. */
    { "socket", "netlink: routes", { { 0, WHOLE, AF_NETLINK }, { 2, WHOLE, NETLINK_ROUTE } } },
};

static const struct checked_call zygotes[] = {
    { "setns", "into a sandbox: all of its namespaces at once", { { 1, WHOLE, ENTER_NAMESPACES } } },
};
static const struct call_group zygotes_absent[] = {
    { "a filter cannot read its flags, and nothing else would keep a zygote from making a user namespace", "clone3" },
};

enum {
    LAST_KNOWN_CALL = 462, /* mseal, Linux 6.10; since 5.0 the numbers are the same on all architectures */
    FILTER_ROOM = 4096,    /* instructions; BPF_MAXINSNS */
};

/*
 * ---- before libseccomp's part ----
 *
 * The kernel reads the low 32 bits of these arguments, libseccomp's "not equal" compares all 64: with it a set high bit
 * would slip past (CVE-2019-10063). So these are instructions of our own.
 *
 * Each call in the tables has a block, and other calls jump over it. In the block of a call, a row of `passed` that holds
 * ends the block, and libseccomp's part has the last word; a row of `refused` that holds is the verdict.
 */
struct condition {
    unsigned argument;
    uint32_t mask;     /* of the low half; 0: all of it */
    uint16_t relation; /* BPF_JEQ, BPF_JGT, or BPF_JSET: has one of these bits */
    uint32_t value;
};

#define IS(argument, value)            \
    {                                  \
        argument, 0, BPF_JEQ, (value), \
    }
#define MASKED(argument, mask, value)       \
    {                                       \
        argument, (mask), BPF_JEQ, (value), \
    }
#define ABOVE(argument, value)         \
    {                                  \
        argument, 0, BPF_JGT, (value), \
    }
#define HAS(argument, bits)            \
    {                                  \
        argument, 0, BPF_JSET, (bits), \
    }

struct passed_values {
    const char *reason;
    int number;
    struct condition when;
    unsigned argument;
    uint32_t values[24]; /* the argument is one of them; 0 ends the list */
};

/* clang-format off: a list in one line each */
#define OPTIONS(level, ...)          \
    SYS_setsockopt, IS(1, level), 2, \
    {                                \
        __VA_ARGS__                  \
    }
#define SOCKET_COMMANDS(...)                 \
    SYS_ioctl, MASKED(1, ~0xffu, 0x8900), 1, \
    {                                        \
        __VA_ARGS__                          \
    }
/* clang-format on */

/*
 * Socket options are a list of those allowed, because a list of those refused is never complete: kernels get a new option
 * every few months, and many reach code that no guest needs (TLS and IPsec in the kernel, packet filters, the repair mode
 * of connections), memory that no cgroup counts, or settings of the whole machine. Programs ask for most options in passing
 * and go on where a kernel has none. Those here are what servers, clients, runtimes and QUIC, mDNS and ZeroMQ libraries set.
 */
static const struct passed_values passed[] = {
    { "its address and who else has it",
      OPTIONS(SOL_SOCKET, SO_REUSEADDR, SO_REUSEPORT, SO_BROADCAST, SO_DONTROUTE, SO_BINDTODEVICE, SO_BINDTOIFINDEX) },
    { "how much and how long it waits",
      OPTIONS(SOL_SOCKET, SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO_OLD, SO_SNDTIMEO_OLD, SO_RCVTIMEO_NEW,
              SO_SNDTIMEO_NEW, SO_RXQ_OVFL, SO_MAX_PACING_RATE) },
    { "how it is served", OPTIONS(SOL_SOCKET, SO_KEEPALIVE, SO_OOBINLINE, SO_PRIORITY, SO_INCOMING_CPU) },
    { "whom a local socket talks to: D-Bus and journald ask",
      OPTIONS(SOL_SOCKET, SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD, SO_PASSRIGHTS) },
    { "marks of a packet, set and received: ssh, QUIC, DNS servers",
      OPTIONS(IPPROTO_IP, IP_TOS, IP_TTL, IP_PKTINFO, IP_MTU_DISCOVER, IP_RECVTTL, IP_RECVTOS) },
    { "the address that it connects from",
      OPTIONS(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, IP_FREEBIND, IP_UNICAST_IF, IP_LOCAL_PORT_RANGE) },
    /* Without lists of sources, whose memory is charged to no cgroup. */
    { "multicast, for mDNS and service discovery",
      OPTIONS(IPPROTO_IP, IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP,
              MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP, IP_MULTICAST_ALL) },
    { "as for IPv4", OPTIONS(IPPROTO_IPV6, IPV6_V6ONLY, IPV6_UNICAST_HOPS, IPV6_MTU_DISCOVER, IPV6_MTU,
                             IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_TCLASS, IPV6_DONTFRAG,
                             IPV6_ADDR_PREFERENCES, IPV6_FREEBIND, IPV6_UNICAST_IF) },
    { "the same", OPTIONS(IPPROTO_IPV6, IPV6_MULTICAST_IF, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_JOIN_GROUP,
                          IPV6_LEAVE_GROUP, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP, IPV6_MULTICAST_ALL) },
    { "when TCP sends", OPTIONS(IPPROTO_TCP, TCP_NODELAY, TCP_MAXSEG, TCP_CORK, TCP_WINDOW_CLAMP, TCP_QUICKACK,
                                TCP_CONGESTION, TCP_NOTSENT_LOWAT, TCP_INQ) },
    { "when TCP gives up",
      OPTIONS(IPPROTO_TCP, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_LINGER2, TCP_USER_TIMEOUT) },
    { "how TCP begins", OPTIONS(IPPROTO_TCP, TCP_DEFER_ACCEPT, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT) },
    { "several datagrams in one call: DNS servers, QUIC", OPTIONS(IPPROTO_UDP, UDP_CORK, UDP_SEGMENT, UDP_GRO) },
    { "what `ip` and libnl set before they read",
      OPTIONS(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP, NETLINK_PKTINFO, NETLINK_CAP_ACK,
              NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK) },
    { "signals, marks and times of its own sockets",
      SOCKET_COMMANDS(FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP, SIOCATMARK, SIOCGSTAMP_OLD, SIOCGSTAMPNS_OLD,
                      SIOCOUTQNSD) },
    { "to read about interfaces: ifconfig, Java, psutil",
      SOCKET_COMMANDS(SIOCGIFNAME, SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFDSTADDR, SIOCGIFBRDADDR,
                      SIOCGIFNETMASK, SIOCGIFMETRIC, SIOCGIFMTU, SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFPFLAGS,
                      SIOCGIFCOUNT, SIOCGIFTXQLEN, SIOCGARP, SIOCGIFMAP) },
};

struct refused_call {
    const char *reason;
    int number, error;
    unsigned count; /* of `when`: all of them */
    struct condition when[2];
};

/* clang-format off: as above */
#define COMMAND(command, error) \
    SYS_ioctl, error, 1,        \
    {                           \
        IS(1, command)          \
    }
/* Pretend success: programs give up if this fails. */
#define WITHOUT_EFFECT(level, name) \
    SYS_setsockopt, 0, 2,           \
    {                               \
        IS(1, level), IS(2, name)   \
    }
#define URGENT(number, flags) \
    number, EOPNOTSUPP, 1,    \
    {                         \
        HAS(flags, MSG_OOB)   \
    }
#define ACL(number)                                \
    number, ENOSPC, 2,                             \
    {                                              \
        MASKED(3, 7, 4), ABOVE(3, LIMIT_ACL_BYTES) \
    }
/* clang-format on */

static const struct refused_call refused[] = {
    { "text in a terminal's input as if it had been typed: how a program run with less power through su or sudo "
      "takes over the shell it was started from",
      COMMAND(TIOCSTI, EPERM) },
    { "the same, on a console", COMMAND(TIOCLINUX, EPERM) },
    { "loads a module for any number that a guest names; only modems and the like need it", COMMAND(TIOCSETD, EINVAL) },
    /* Libraries that look for an interface's speed go on after this error. */
    { "drivers of network devices", COMMAND(SIOCETHTOOL, EOPNOTSUPP) },
    { "changes of interfaces, routes, bridges: with the kernel's answer to a guest",
      SYS_ioctl,
      EPERM,
      1,
      { MASKED(1, ~0xffu, 0x8900) } },
    /* As by a kernel without CONFIG_SECCOMP_FILTER: browsers, man and sshd ask for it first and then do without. */
    { "a BPF program", SYS_seccomp, EINVAL, 1, { IS(0, SECCOMP_SET_MODE_FILTER) } },
    { "a BPF program", SYS_prctl, EINVAL, 2, { IS(0, PR_SET_SECCOMP), IS(1, SECCOMP_MODE_FILTER) } },
    /* As by a kernel without KSM. */
    { "pages shared with whoever has the same: how long a write takes then shows what others have",
      SYS_prctl,
      EINVAL,
      1,
      { IS(0, PR_SET_MEMORY_MERGE) } },
    { "the same", SYS_madvise, EINVAL, 1, { IS(2, MADV_MERGEABLE) } },
    { "the same", SYS_process_madvise, EINVAL, 1, { IS(3, MADV_MERGEABLE) } },
    /* As by a kernel without them; file servers do without. */
    { "a lock that makes others wait in open()", SYS_fcntl, EINVAL, 1, { IS(1, F_SETLEASE) } },
    { "the same", SYS_fcntl, EINVAL, 1, { IS(1, F_SETDELEG) } },
    { "signals for changes in a directory; inotify took its place", SYS_fcntl, EINVAL, 1, { IS(1, F_NOTIFY) } },
    /*
     * An ACL in memory (of a file in /run, of a memfd) is 8 bytes an entry that no cgroup counts. With 64 KiB, the kernel's
     * limit, a guest took host memory at 160 MB a second. The name of the attribute cannot be seen here, but only an ACL has
     * a size of 4 and a multiple of 8: seven of eight sizes of other attributes are free. The kernel refuses sizes above
     * 32 bits by itself.
     */
    { "an ACL with too many entries", ACL(SYS_setxattr) },
    { "the same", ACL(SYS_lsetxattr) },
    { "the same", ACL(SYS_fsetxattr) },
    /*
     * As by a kernel without CONFIG_AF_UNIX_OOB, code for one user that has had holes (CVE-2025-38236). It is TCP's urgent
     * data too, because the socket's kind cannot be seen here: telnet and rlogin lose their interrupt.
     */
    { "urgent data", URGENT(SYS_sendto, 3) },
    { "the same", URGENT(SYS_sendmsg, 2) },
    { "the same", URGENT(SYS_sendmmsg, 3) },
    { "the same", URGENT(SYS_recvfrom, 3) },
    { "the same", URGENT(SYS_recvmsg, 2) },
    { "the same", URGENT(SYS_recvmmsg, 3) },
    /* The C library's resolver gives up where it fails. A connected socket hears of errors without it. */
    { "copies of what came back, in the error queue, which is charged to no cgroup",
      WITHOUT_EFFECT(IPPROTO_IP, IP_RECVERR) },
    { "the same", WITHOUT_EFFECT(IPPROTO_IP, IP_RECVERR_RFC4884) },
    { "the same", WITHOUT_EFFECT(IPPROTO_IPV6, IPV6_RECVERR) },
    { "the same", WITHOUT_EFFECT(IPPROTO_IPV6, IPV6_RECVERR_RFC4884) },
    /*
     * A socket that lingers can be closed by a kernel thread, when the unix sockets that carry its descriptor are garbage:
     * that thread then sleeps, and frees nothing of any sandbox. Programs set it to reset a connection; here it is closed
     * in order instead.
     */
    { "a close() that sleeps, also in a kernel thread", WITHOUT_EFFECT(SOL_SOCKET, SO_LINGER) },
    /* With the kernel's answer to a guest: systemd's libraries try them in passing, and that belongs in no log. */
    { "buffers beyond the host's limit", SYS_setsockopt, EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_SNDBUFFORCE) } },
    { "the same", SYS_setsockopt, EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_RCVBUFFORCE) } },
};

enum {
    ROW_MAX = 1 + 3 * COUNT_OF(refused[0].when) + 1, /* a call's start or end, conditions, verdict */
    VALUES_MAX = 3 + 1 + COUNT_OF(passed[0].values) + 1,
    PROLOGUE_MAX = 6 + COUNT_OF(passed) * VALUES_MAX + COUNT_OF(refused) * (ROW_MAX + 2) + 1,
    OPEN = 0xff, /* a jump to be aimed: no row is that long */
};

#define REFUSE(number) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)(number))
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(offset))
#define LOW_HALF(index) (offsetof(struct seccomp_data, args) + (index) * sizeof(uint64_t))
#define JUMP(relation, value, yes, no) BPF_JUMP(BPF_JMP | (relation) | BPF_K, (unsigned)(value), yes, no)
#define JUMP_TO_END BPF_STMT(BPF_JMP | BPF_JA, ~0u)

struct program {
    bool for_zygote;
    struct sock_filter code[PROLOGUE_MAX];
    unsigned count;
};

static void emit(struct program *program, struct sock_filter one)
{
    assert(program->count < PROLOGUE_MAX);
    program->code[program->count++] = one;
}

/* If it does not hold, past the row. */
static void emit_condition(struct program *program, const struct condition *when)
{
    emit(program, (struct sock_filter)LOAD(LOW_HALF(when->argument)));
    if (when->mask)
        emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, when->mask));
    emit(program, (struct sock_filter)JUMP(when->relation, when->value, 0, OPEN));
}

static void end_row(struct program *program, unsigned start)
{
    for (unsigned i = start; i < program->count; i++)
        if (program->code[i].jf == OPEN)
            program->code[i].jf = (unsigned char)(program->count - i - 1);
}

static void emit_passed(struct program *program, const struct passed_values *row)
{
    unsigned start = program->count, count = 0;

    while (count < COUNT_OF(row->values) && row->values[count])
        count++;
    emit_condition(program, &row->when);
    emit(program, (struct sock_filter)LOAD(LOW_HALF(row->argument)));
    for (unsigned i = 0; i < count; i++)
        emit(program, (struct sock_filter)JUMP(BPF_JEQ, row->values[i], (unsigned char)(count - i - 1),
                                               i + 1 < count ? 0 : OPEN));
    emit(program, (struct sock_filter)JUMP_TO_END);
    end_row(program, start);
}

static void emit_refused(struct program *program, const struct refused_call *row)
{
    unsigned start = program->count;

    for (unsigned i = 0; i < row->count; i++)
        emit_condition(program, &row->when[i]);
    emit(program, (struct sock_filter)REFUSE(row->error));
    end_row(program, start);
}

/*
 * Every other socket option. Of a guest keeper hears it, and answers (options.h). A zygote's filter is that of many
 * sandboxes, one of which could use up what keeper hears: it answers by itself, as a kernel without the option.
 */
static void emit_options_end(struct program *program)
{
    emit(program, program->for_zygote ? (struct sock_filter)REFUSE(ENOPROTOOPT)
                                      : (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
}

/* The number of the call is loaded, and still is behind the block for every other call. */
static void emit_call(struct program *program, int number)
{
    emit(program, (struct sock_filter)JUMP(BPF_JEQ, number, 1, 0));
    unsigned over = program->count;
    emit(program, (struct sock_filter)JUMP_TO_END);
    for (size_t i = 0; i < COUNT_OF(passed); i++)
        if (passed[i].number == number)
            emit_passed(program, &passed[i]);
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (refused[i].number == number)
            emit_refused(program, &refused[i]);
    if (number == SYS_setsockopt)
        emit_options_end(program);
    else
        emit(program, (struct sock_filter)JUMP_TO_END);
    program->code[over].k = program->count - over - 1;
}

static bool is_first_of_its_call(size_t row)
{
    for (size_t i = 0; i < row; i++)
        if (refused[i].number == refused[row].number)
            return false;
    return true;
}

static void write_prologue(struct program *program)
{
    /* The numbers in the tables are ours. Another architecture's would be taken for other calls. */
    emit(program, (struct sock_filter)LOAD(offsetof(struct seccomp_data, arch)));
    emit(program, (struct sock_filter)JUMP(BPF_JEQ, seccomp_arch_native(), 1, 0));
    emit(program, (struct sock_filter)REFUSE(ENOSYS));
    emit(program, (struct sock_filter)LOAD(offsetof(struct seccomp_data, nr)));
    emit(program, (struct sock_filter)JUMP(BPF_JGT, LAST_KNOWN_CALL, 0, 1));
    emit(program, (struct sock_filter)REFUSE(ENOSYS));
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (is_first_of_its_call(i))
            emit_call(program, refused[i].number);
    for (unsigned i = 0; i < program->count; i++)
        if (program->code[i].code == (BPF_JMP | BPF_JA) && program->code[i].k == ~0u)
            program->code[i].k = program->count - i - 1;
}

/* ---- libseccomp's part ---- */

static bool add_names(scmp_filter_ctx filter, uint32_t action, const struct call_group *groups, size_t count,
                      struct str but, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        struct str rest = str_from(groups[i].names), name;
        while (rest.len && str_cut(&rest, ' ', &name)) {
            char text[64];
            if (!str_to_path(name, text, sizeof text, err))
                return err_wrap(err, "a name in the seccomp list");
            int number = seccomp_syscall_resolve_name(text);
            if (number == __NR_SCMP_ERROR || number < 0 || str_eq(name, but))
                continue; /* not on this architecture, or newer than this libseccomp: refused like all the rest */
            int failed = seccomp_rule_add(filter, action, number, 0);
            if (failed)
                return err_sys_num(err, -failed, "seccomp rule for %s", text);
        }
    }
    return true;
}

static bool add_checked(scmp_filter_ctx filter, const struct checked_call *checks, size_t check_count, struct err *err)
{
    for (size_t i = 0; i < check_count; i++) {
        int number = seccomp_syscall_resolve_name(checks[i].name);
        struct scmp_arg_cmp when[COUNT_OF(checks[i].when)];
        unsigned count = 0;
        for (; count < COUNT_OF(when) && checks[i].when[count].mask; count++)
            when[count] = (struct scmp_arg_cmp){ .arg = checks[i].when[count].argument,
                                                 .op = SCMP_CMP_MASKED_EQ,
                                                 .datum_a = checks[i].when[count].mask,
                                                 .datum_b = checks[i].when[count].value };
        int failed = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, number, count, when);
        if (failed)
            return err_sys_num(err, -failed, "seccomp rule for %s", checks[i].name);
    }
    return true;
}

/*
 * As a kernel without these would say: EPERM would be a verdict on the caller. sudo and PAM open an audit socket and take
 * only this for "there is none"; Go tries MPTCP first. `ip` of an interpreter prints the sentence of its error.
 */
static bool add_missing_protocols(scmp_filter_ctx filter, bool for_zygote, struct err *err)
{
    static const int families[] = { AF_INET, AF_INET6 };
    int failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, WHOLE, AF_NETLINK), SCMP_A2(SCMP_CMP_NE, NETLINK_ROUTE));

    if (!failed && for_zygote)
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 2,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, WHOLE, AF_NETLINK),
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, WHOLE, NETLINK_ROUTE));
    for (size_t i = 0; !failed && i < COUNT_OF(families); i++)
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, WHOLE, (scmp_datum_t)families[i]),
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, WHOLE, IPPROTO_MPTCP));
    return !failed || err_sys_num(err, -failed, "seccomp rule for socket");
}

/* libseccomp writes the program to a descriptor only. */
static bool export(scmp_filter_ctx filter, bool for_zygote, struct sock_fprog *out, struct err *err)
{
    auto_close int fd = memfd_create("seccomp", MFD_CLOEXEC);
    auto_free char *bytes = NULL;
    size_t len;

    if (fd < 0)
        return err_sys(err, "memfd_create");
    int failed = seccomp_export_bpf(filter, fd);
    if (failed)
        return err_sys_num(err, -failed, "export the seccomp filter");
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, "rewind");
    if (!fd_read_all(fd, FILTER_ROOM * sizeof(struct sock_filter), &bytes, &len, err))
        return false;
    struct program prologue = { .for_zygote = for_zygote };
    write_prologue(&prologue);
    size_t count = prologue.count + len / sizeof(struct sock_filter);
    if (count > FILTER_ROOM)
        return err_set(err, ERR_INTERNAL, "the seccomp filter is too long");
    /* Jumps in BPF are relative, so the program behind the prologue works where it is. */
    out->filter = mem_new(count * sizeof(struct sock_filter));
    out->len = (unsigned short)count;
    memcpy(out->filter, prologue.code, prologue.count * sizeof *prologue.code);
    memcpy(out->filter + prologue.count, bytes, len);
    return true;
}

static bool compile(bool for_zygote, bool no_landlock, struct sock_fprog *out, struct err *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    struct str but = for_zygote ? STR("clone3") : STR("");

    if (!filter)
        return err_set(err, ERR_INTERNAL, "libseccomp does not start");
    /* 32-bit programs: no entry point for them, as on a kernel without IA32 emulation. */
    (void)seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    /* A binary tree instead of a list: six comparisons a call instead of two hundred. Older ones have the list. */
    (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    bool fine = add_names(filter, SCMP_ACT_ALLOW, allowed, COUNT_OF(allowed), but, err) &&
                add_names(filter, SCMP_ACT_ERRNO(ENOSYS), absent, COUNT_OF(absent), STR(""), err) &&
                add_names(filter, SCMP_ACT_ERRNO(0), without_effect, COUNT_OF(without_effect), STR(""), err) &&
                add_names(filter, no_landlock ? SCMP_ACT_ERRNO(ENOSYS) : SCMP_ACT_ALLOW, landlock, COUNT_OF(landlock),
                          STR(""), err) &&
                add_checked(filter, checked, COUNT_OF(checked), err) && add_missing_protocols(filter, for_zygote, err);
    if (fine && !for_zygote)
        fine = add_checked(filter, guests, COUNT_OF(guests), err);
    if (fine && for_zygote)
        fine = add_checked(filter, zygotes, COUNT_OF(zygotes), err) &&
               add_names(filter, SCMP_ACT_ERRNO(ENOSYS), zygotes_absent, COUNT_OF(zygotes_absent), STR(""), err);
    fine = fine && export(filter, for_zygote, out, err);
    seccomp_release(filter);
    return fine;
}

bool seccomp_guest_filter(bool no_landlock, struct sock_fprog *out, struct err *err)
{
    return compile(false, no_landlock, out, err) || err_wrap(err, "compile the guests' seccomp filter");
}

bool seccomp_zygote_filter(bool no_landlock, struct sock_fprog *out, struct err *err)
{
    return compile(true, no_landlock, out, err) || err_wrap(err, "compile the zygotes' seccomp filter");
}
