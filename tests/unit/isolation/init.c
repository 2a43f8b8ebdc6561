/*
 * init.c - stands in for guestd in the tests of the native driver.
 *
 * Pid 1 of a sandbox, static. Takes guestlink and the zygote's socket from keeper as guestd does (descriptor 3), reads
 * command lines from guestlink and answers each with text. As `python3` of a template it stands in for a zygote. It need not
 * be robust: it runs in a test and nowhere else.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HANDOVER_FD = 3, HANDOVER_LINK = 1, HANDOVER_ZYGOTE = 2, HANDOVER_LISTENER = 3 };

static int out_fd = -1, zygote_fd = -1;
static char **arguments;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdprintf(out_fd, format, args);
    va_end(args);
}

static void say_file(const char *label, const char *path)
{
    char text[8192];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (n < 0) {
        say("%s: %s\n", label, strerror(errno));
    } else {
        text[n] = '\0';
        say("%s: %s%s", label, text, n && text[n - 1] == '\n' ? "" : "\n");
    }
    if (fd >= 0)
        close(fd);
}

static void say_result(const char *label, long result)
{
    say("%s: %s\n", label, result < 0 ? strerrorname_np(errno) : "ok");
}

static void say_names(const char *label, const char *path)
{
    DIR *dir = opendir(path);

    say("%s:", label);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.')
            say(" %s", entry->d_name);
    say("\n");
    if (dir)
        closedir(dir);
}

static void facts(void)
{
    char name[65];

    say("pid: %d\n", getpid());
    say("uid: %d\n", getuid());
    say("sid: %d\n", getsid(0));
    for (char **argument = arguments; *argument; argument++)
        say("argument: %s\n", *argument);
    gethostname(name, sizeof name);
    say("hostname: %s\n", name);
    say_names("proc", "/proc");
    say_names("descriptors", "/proc/self/fd");
    say_names("dev", "/dev");
    say_names("sys", "/sys");
    say_file("uid_map", "/proc/self/uid_map");
    say_file("gid_map", "/proc/self/gid_map");
    say_file("status", "/proc/self/status");
    say_file("mounts", "/proc/self/mountinfo");
    say_file("keys", "/proc/keys");
    say_file("cgroup", "/proc/self/cgroup");
    say_file("cmdline", "/proc/cmdline");
    say_file("diskstats", "/proc/diskstats");
    say_names("pressure", "/proc/pressure");
    struct rlimit files = { 0 };
    getrlimit(RLIMIT_NOFILE, &files);
    say("open files: %llu\n", (unsigned long long)files.rlim_max);
    say_file("boot_id", "/proc/sys/kernel/random/boot_id");
    say_names("pts", "/dev/pts");
    say_file("max_user_namespaces", "/proc/sys/user/max_user_namespaces");
    struct if_nameindex *interfaces = if_nameindex();
    say("interfaces:");
    for (struct if_nameindex *at = interfaces; at && at->if_name; at++)
        say(" %s", at->if_name);
    say("\n");
    struct stat st;
    say_result("stat /dev/null", stat("/dev/null", &st));
    say("owner of /dev/null: %d\n", st.st_uid);
    say("/proc/1/exe: %s\n", readlink("/proc/1/exe", name, sizeof name) > 0 ? "a link" : strerrorname_np(errno));
}

/* Setting it is answered, and does nothing. */
static void error_queue(const char *name, int family, int level, int option)
{
    int fd = socket(family, SOCK_DGRAM, 0), on = 1;
    socklen_t len = sizeof on;

    int set = setsockopt(fd, level, option, &on, sizeof on);
    int got = getsockopt(fd, level, option, &on, &len);
    say("%s: %d %d %d\n", name, set, got, on);
    close(fd);
}

/* One of each and no more: a machine on which thousands of programs are freed at once does not recover. */
static void bpf_programs(void)
{
    static struct sock_filter all[] = { { 0x06, 0, 0, 0x7fff0000 } }; /* return SECCOMP_RET_ALLOW, or all of a packet */
    struct sock_fprog program = { .len = 1, .filter = all };
    unsigned high = sizeof(long) == 8 ? 32 : 0;
    struct tcp_md5sig key = { .tcpm_keylen = 1 };
    int udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    say_result("socket filter", setsockopt(udp, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    say_result("socket filter high", syscall(SYS_setsockopt, udp, 1ul << high | SOL_SOCKET,
                                             1ul << high | SO_ATTACH_FILTER, &program, sizeof program));
    say_result("socket program", setsockopt(udp, SOL_SOCKET, SO_ATTACH_BPF, &udp, sizeof udp));
    say_result("port filter", setsockopt(udp, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program));
    say_result("port program", setsockopt(udp, SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &udp, sizeof udp));
    say_result("seccomp filter", syscall(SYS_seccomp, 1, 0, &program));
    say_result("seccomp filter by prctl", prctl(PR_SET_SECCOMP, 2, &program));
    say_result("seccomp probe", syscall(SYS_seccomp, 1, 1, NULL)); /* EFAULT: there are filters */
    say_result("MD5 key", setsockopt(tcp, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key));
    say_result("MD5 key with prefix", setsockopt(tcp, IPPROTO_TCP, TCP_MD5SIG_EXT, &key, sizeof key));
    say_result("AO key", setsockopt(tcp, IPPROTO_TCP, 38, &key, sizeof key));
    say_result("time stamps", setsockopt(udp, SOL_SOCKET, 37, &on, sizeof on));
    say_result("new time stamps", setsockopt(tcp, SOL_SOCKET, 65, &on, sizeof on));
    say_result("zero copy", setsockopt(tcp, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    say_result("packet options", setsockopt(udp, IPPROTO_IPV6, 6, &on, sizeof on));
    error_queue("IP_RECVERR", AF_INET, IPPROTO_IP, IP_RECVERR);
    error_queue("IP_RECVERR_RFC4884", AF_INET, IPPROTO_IP, 26);
    error_queue("IPV6_RECVERR", AF_INET6, IPPROTO_IPV6, IPV6_RECVERR);
    error_queue("IPV6_RECVERR_RFC4884", AF_INET6, IPPROTO_IPV6, 31);
    struct linger linger = { .l_onoff = 1, .l_linger = 5 };
    socklen_t linger_len = sizeof linger;
    int lingers = setsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    (void)getsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, &linger_len);
    say("linger: %d %d\n", lingers, linger.l_onoff);
    /* And what has the same numbers elsewhere. */
    say_result("seccomp actions", syscall(SYS_seccomp, 2, 0, &(unsigned){ 0x7fff0000 }));
    say_result("port shared", setsockopt(udp, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    say_result("IPV6_V6ONLY", setsockopt(socket(AF_INET6, SOCK_DGRAM, 0), IPPROTO_IPV6, 26, &on, sizeof on));
    close(udp);
    close(tcp);
}

/* On no descriptor: what the filter lets through is EBADF. */
static void refused_by_argument(void)
{
    static struct {
        unsigned version;
        struct {
            unsigned short tag, rights;
            unsigned id;
        } entry[61];
    } acl = { .version = 2 };
    static char value[1024];
    unsigned long high = 1ul << 32;
    int fd = memfd_create("acl", 0);

    say_result("shared policy", syscall(SYS_mbind, NULL, 0, 0, NULL, 0, 0));
    say_result("home node", syscall(SYS_set_mempolicy_home_node, 0, 0, 0, 0));
    say_result("own policy", syscall(SYS_set_mempolicy, 0, NULL, 0));
    say_result("syncfs", syncfs(-1));
    for (unsigned i = 0; i < 60; i++) { /* owner, 56 users, group, mask, others */
        acl.entry[i].tag = i == 0 ? 1 : i < 57 ? 2 : i == 57 ? 4 : i == 58 ? 16 : 32;
        acl.entry[i].rights = 6;
        acl.entry[i].id = i > 0 && i < 57 ? i : ~0u;
    }
    say_result("ACL of 60", syscall(SYS_fsetxattr, fd, "system.posix_acl_access", &acl, 4 + 60 * 8, 0));
    say_result("ACL of 61", syscall(SYS_fsetxattr, -1, "system.posix_acl_access", &acl, 4 + 61 * 8, 0));
    say_result("ACL by path", syscall(SYS_setxattr, NULL, "system.posix_acl_access", &acl, 4 + 61 * 8, 0));
    say_result("ACL of a link", syscall(SYS_lsetxattr, NULL, "system.posix_acl_access", &acl, 65532, 0));
    say_result("ACL high", syscall(SYS_fsetxattr, fd, "system.posix_acl_access", &acl, high | 484, 0));
    say_result("ACL by structure", syscall(463, -1, "", 0, "system.posix_acl_access", value, 16));
#ifdef __x86_64__
    long old = 54; /* setsockopt's number; ioctl's of 32-bit programs */
    __asm__ volatile("int $0x80" : "+a"(old) : "b"(-1), "c"(6), "d"(31) : "memory");
    errno = (int)-old;
    say_result("32-bit call", old < 0 ? -1 : 0);
#else
    say("32-bit call: ENOSYS\n");
#endif
    say_result("attribute", syscall(SYS_fsetxattr, -1, "user.long", value, sizeof value, 0));
    say_result("forced buffer", setsockopt(-1, SOL_SOCKET, SO_RCVBUFFORCE, NULL, 0));
    say_result("urgent", send(-1, "x", 1, MSG_OOB));
    say_result("urgent high", syscall(SYS_sendto, -1, "x", 1, high | MSG_OOB | MSG_NOSIGNAL, NULL, 0));
    say_result("urgent message", sendmsg(-1, NULL, MSG_OOB));
    say_result("urgent messages", syscall(SYS_sendmmsg, -1, NULL, 0, MSG_OOB));
    say_result("urgent read", recv(-1, value, 1, MSG_OOB));
    say_result("urgent message read", recvmsg(-1, NULL, MSG_OOB));
    say_result("urgent messages read", syscall(SYS_recvmmsg, -1, NULL, 0, MSG_OOB, NULL));
    say_result("not urgent", send(-1, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    say_result("line discipline", ioctl(-1, TIOCSETD, &(int){ 0 }));
    say_result("which line discipline", ioctl(-1, TIOCGETD, &(int){ 0 }));
    say_result("network driver", ioctl(-1, SIOCETHTOOL, NULL));
    say_result("bridge", ioctl(-1, 0x89a0, NULL));
    say_result("MTU", ioctl(-1, SIOCGIFMTU, NULL));
    say_result("lease", fcntl(fd, F_SETLEASE, F_RDLCK));
    say_result("directory signals", fcntl(-1, F_NOTIFY, 2));
    say_result("merge all pages", prctl(67, 1, 0, 0, 0));
    say_result("merge pages", madvise(NULL, 0, MADV_MERGEABLE));
    say_result("merge pages of another", syscall(SYS_process_madvise, -1, NULL, 0, MADV_MERGEABLE, 0));
    close(fd);
}

/* What the filter lets through, of all options and of all commands of sockets, also with high halves set. */
static void sweep(unsigned long high)
{
    say("options:");
    for (unsigned level = 0; level < 300; level++)
        for (unsigned name = 0; name < 300; name++)
            if (syscall(SYS_setsockopt, -1, high | level, high | name, NULL, 0) < 0 && errno == EBADF)
                say(" %u/%u", level, name);
    for (unsigned name = 1024; name < 1400; name++) /* IPVS's */
        if (syscall(SYS_setsockopt, -1, high, high | name, NULL, 0) == 0 || errno == EBADF)
            say(" 0/%u", name);
    say("\ncommands:");
    for (unsigned command = 0x8900; command < 0x8a00; command++)
        if (syscall(SYS_ioctl, -1, high | command, NULL) < 0 && errno == EBADF)
            say(" %x", command & 0xff);
    say("\n");
}

static void sweep_as_both(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0)
            sweep(0);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    sweep(1ul << 32);
}

/* "LEVEL NAME COUNT": what the last one says. */
static void ask_for_option(const char *text)
{
    int level = 0, name = 0, count = 0, result = 0;

    sscanf(text, "%d %d %d", &level, &name, &count);
    while (count-- > 0)
        result = setsockopt(-1, level, name, NULL, 0);
    say_result("option", result);
}

static void attempts(void)
{
    struct ifreq request = { .ifr_name = "lo" };
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    ioctl(fd, SIOCGIFFLAGS, &request);
    say("lo: %s\n", request.ifr_flags & IFF_UP ? "up" : "down");
    close(fd);
    say_result("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    say_result("umount", umount2("/proc/keys", MNT_DETACH));
    say_result("unshare user", unshare(CLONE_NEWUSER));
    say_result("unshare mount", unshare(CLONE_NEWNS));
    struct {
        unsigned long long flags, rest[10];
    } args = { .flags = CLONE_NEWUSER };
    long cloned = syscall(SYS_clone3, &args, sizeof args);
    if (cloned == 0)
        _exit(0);
    say_result("clone3 user", cloned);
    say_result("setns", setns(0, 0));
    say_result("bpf", syscall(SYS_bpf, 0, NULL, 0));
    say_result("io_uring", syscall(SYS_io_uring_setup, 0, NULL));
    say_result("unknown call", syscall(9999));
    say_result("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
    say_result("TIOCSTI", ioctl(0, TIOCSTI, "x"));
    say_result("TIOCSTI high", syscall(SYS_ioctl, 0, 0x100000000ul | TIOCSTI, "x"));
    bpf_programs();
    refused_by_argument();
    say_result("AF_ALG", socket(AF_ALG, SOCK_SEQPACKET, 0));
    say_result("AF_PACKET", socket(AF_PACKET, SOCK_RAW, 0));
    say_result("raw socket", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    say_result("raw socket with flags", socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP));
    say_result("raw IPv6 socket", socket(AF_INET6, SOCK_RAW, IPPROTO_TCP));
    say_result("SCTP", socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP));
    say_result("UDP-Lite", socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDPLITE));
    say_result("MPTCP", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 262));
    say_result("audit", socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_AUDIT));
    say_result("netlink for sockets", socket(AF_NETLINK, SOCK_DGRAM, NETLINK_SOCK_DIAG));
    int pair[2];
    say_result("IPv4 pair", socketpair(AF_INET, SOCK_STREAM, 0, pair));
    say_result("pair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    say_result("TCP", socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP));
    say_result("UDP over IPv6", socket(AF_INET6, SOCK_DGRAM, 0));
    say_result("ping", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    say_result("routes", socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    say_result("io_setup", syscall(SYS_io_setup, 1, &(unsigned long){ 0 }));
    say_result("memfd_secret", syscall(447, 0));
    say_result("kcmp", syscall(SYS_kcmp, 1, 1, 0, 0, 0));
    say_result("mknod", mknod("/tmp/disk", S_IFBLK | 0666, makedev(254, 0)));
    struct statvfs status = { 0 };
    statvfs("/proc/sys", &status);
    say("proc/sys: %s\n", status.f_flag & ST_RDONLY ? "read-only" : "writable");
    say_result("write sysrq", open("/proc/sysrq-trigger", O_RDONLY));
    say_result("write exe", open("/proc/self/exe", O_WRONLY));
    say_result("write dev", open("/dev/new", O_WRONLY | O_CREAT, 0600));
    say_result("write null", open("/dev/null", O_WRONLY));
    say_result("open tty", open("/dev/tty", O_RDWR));
    say_result("open ptmx", open("/dev/ptmx", O_RDWR | O_NOCTTY));
    say_result("raise namespaces", open("/proc/sys/user/max_user_namespaces", O_WRONLY));
    say_result("chroot", chroot("/"));
    say_result("setuid", syscall(SYS_setresuid, 0, 0, 0));
    say_result("swapon", syscall(SYS_swapon, "/x", 0));
}

/* "put PATH TEXT" */
static void put(char *path)
{
    char *text = strchr(path, ' ');

    *text++ = '\0';
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);
    say_result("put", write(fd, text, strlen(text)));
    close(fd);
}

static void write_files(void)
{
    int fd = open("/made", O_WRONLY | O_CREAT | O_TRUNC, 0644);

    say_result("write /made", write(fd, "x", 1));
    close(fd);
    fd = open("/made-by-user", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    say_result("chown", fchown(fd, 1000, 1000));
    close(fd);
    say_result("change a template's file", chmod("/etc/template-file", 0600));
    struct stat st;
    say_result("stat", stat("/etc/template-file", &st));
    say("template file: %d:%d\n", st.st_uid, st.st_gid);
}

/* "x" with a descriptor attached so many times. */
static bool send_descriptors(int socket_fd, int fd, int count)
{
    static union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } room;
    char text[] = { 'x', '\n' };
    struct iovec piece = { .iov_base = text, .iov_len = sizeof text };
    struct msghdr message = { .msg_iov = &piece,
                              .msg_iovlen = 1,
                              .msg_control = room.bytes,
                              .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int)) };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(header) + (size_t)i * sizeof(int), &fd, sizeof fd);
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* As far as the kernel takes it. */
static void attach(void)
{
    if (!send_descriptors(out_fd, 0, 1))
        say("%s\n", strerrorname_np(errno));
}

static socklen_t parse_address(const char *where, struct sockaddr_storage *out)
{
    char host[64];
    unsigned port;
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

    if (sscanf(where, "%63s %u", host, &port) != 2)
        _exit(1);
    *out = (struct sockaddr_storage){ 0 };
    if (strchr(host, ':')) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        inet_pton(AF_INET6, host, &six->sin6_addr);
        return sizeof *six;
    }
    four->sin_family = AF_INET;
    four->sin_port = htons((uint16_t)port);
    inet_pton(AF_INET, host, &four->sin_addr);
    return sizeof *four;
}

/* "connect ADDRESS PORT": to a server outside, or to one that is held outside and listens in here. */
static void connect_to(const char *where)
{
    struct sockaddr_storage address;
    socklen_t len = parse_address(where, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    int result = connect(fd, (struct sockaddr *)&address, len);

    say_result("connect", result);
    if (result == 0)
        dprintf(fd, "hello from inside");
    close(fd);
}

/* "fast ADDRESS PORT": data in the first packet. */
static void connect_fast(const char *where)
{
    struct sockaddr_storage address;
    socklen_t len = parse_address(where, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);

    say_result("fast", sendto(fd, "hello from inside", 17, MSG_FASTOPEN, (struct sockaddr *)&address, len));
    close(fd);
}

/* "datagram ADDRESS PORT": and waits for an answer. */
static void send_to(const char *where)
{
    struct sockaddr_storage address;
    socklen_t len = parse_address(where, &address);
    int fd = socket(address.ss_family, SOCK_DGRAM, 0);
    struct timeval second = { .tv_sec = 1 };
    char text[64] = { 0 };

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    int result = connect(fd, (struct sockaddr *)&address, len);
    if (result == 0)
        result = (int)send(fd, "question", 8, MSG_NOSIGNAL);
    say_result("datagram", result);
    if (result > 0)
        say_result("answer", recv(fd, text, sizeof text - 1, 0));
    close(fd);
}

/* "abstract NAME": a local socket of that name, in this network. */
static void connect_abstract(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name);
    say_result("abstract", connect(fd, (struct sockaddr *)&address,
                                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))));
    close(fd);
}

/* The kernel's answer to a request to change routes, addresses or links. */
static void change_network(const char *label, uint16_t type, const void *body, size_t len)
{
    struct {
        struct nlmsghdr header;
        char rest[256];
    } message = { .header = { .nlmsg_len = (uint32_t)(sizeof message.header + len),
                              .nlmsg_type = type,
                              .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK } };
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[512];
    } answer = { 0 };
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

    memcpy(message.rest, body, len);
    (void)!send(fd, &message, message.header.nlmsg_len, 0);
    (void)!recv(fd, &answer, sizeof answer, 0);
    errno = -answer.error.error;
    say_result(label, answer.error.error ? -1 : 0);
    close(fd);
}

/* All that root inside could try, to get around the rules. */
static void attack_network(void)
{
    const struct ifinfomsg lo = { .ifi_index = 1, .ifi_change = IFF_UP };
    const struct {
        struct ifaddrmsg head;
        struct rtattr attr;
        uint32_t address;
    } address = { { .ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = 1 },
                  { .rta_len = 8, .rta_type = IFA_LOCAL },
                  htonl(0xc0000002) };
    const struct rtmsg route = { .rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_type = RTN_LOCAL };
    /* Loose source route by way of 127.0.0.1. */
    const unsigned char options[] = { 131, 11, 4, 127, 0, 0, 1, 198, 51, 100, 7, 0 };
    struct ifreq request = { .ifr_name = "lo" };
    int tcp = socket(AF_INET, SOCK_STREAM, 0), tcp6 = socket(AF_INET6, SOCK_STREAM, 0), on = 1;

    change_network("lo down", RTM_NEWLINK, &lo, sizeof lo);
    change_network("new link", RTM_NEWLINK, &(struct ifinfomsg){ 0 }, sizeof lo);
    change_network("new address", RTM_NEWADDR, &address, sizeof address);
    change_network("no address", RTM_DELADDR, &address, sizeof address);
    change_network("new route", RTM_NEWROUTE, &route, sizeof route);
    change_network("no route", RTM_DELROUTE, &route, sizeof route);
    say_result("nftables", socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
    say_result("xfrm", socket(AF_NETLINK, SOCK_RAW, NETLINK_XFRM));
    say_result("iptables", setsockopt(tcp, IPPROTO_IP, 64, &on, sizeof on));
    say_result("lo down by ioctl", ioctl(tcp, SIOCSIFFLAGS, &request));
    say_result("address by ioctl", ioctl(tcp, SIOCSIFADDR, &request));
    say_result("transparent", setsockopt(tcp, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof on));
    say_result("transparent IPv6", setsockopt(tcp6, IPPROTO_IPV6, 75, &on, sizeof on));
    say_result("mark", setsockopt(tcp, SOL_SOCKET, SO_MARK, &on, sizeof on));
    say_result("repair", setsockopt(tcp, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on));
    say_result("SO_BINDTODEVICE eth0", setsockopt(tcp, SOL_SOCKET, SO_BINDTODEVICE, "eth0", 5));
    int routed = setsockopt(tcp, IPPROTO_IP, IP_OPTIONS, options, sizeof options);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80), .sin_addr = { htonl(0xc6336407) } };
    struct timeval second = { .tv_sec = 1 };
    setsockopt(tcp, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    if (routed == 0)
        routed = connect(tcp, (struct sockaddr *)&to, sizeof to);
    say_result("source routed", routed);
    close(tcp);
    close(tcp6);
}

/* Connections one after another, each closed here first: what TCP keeps of them then is kernel memory. */
static void churn(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof to;
    int server = socket(AF_INET, SOCK_STREAM, 0), made = 0;
    char text[512] = { 0 };

    bind(server, (struct sockaddr *)&to, len);
    listen(server, 64);
    getsockname(server, (struct sockaddr *)&to, &len);
    for (int i = 0; i < 12000; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        made += connect(fd, (struct sockaddr *)&to, len) == 0;
        int peer = accept(server, NULL, NULL);
        close(fd);
        close(peer);
    }
    int fd = open("/proc/net/sockstat", O_RDONLY);
    (void)!read(fd, text, sizeof text - 1);
    const char *waiting = strstr(text, " tw ");
    say("connections: %d\nremembered: %d\n", made, waiting ? atoi(waiting + 4) : -1);
    close(fd);
    close(server);
}

static void count_listeners(void)
{
    FILE *sockets = fopen("/proc/net/tcp", "r");
    char line[256];
    int count = 0;

    while (sockets && fgets(line, sizeof line, sockets)) /* number, two addresses, state: 0A is LISTEN */
        count += strstr(line, " 00000000:0000 0A ") != NULL;
    say("listeners: %d\n", sockets ? count : -1);
    if (sockets)
        fclose(sockets);
}

static void count_taken_ports(void)
{
    int taken = 0;

    for (int port = 1; port < 65536; port++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
        taken += bind(fd, (struct sockaddr *)&address, sizeof address) < 0;
        close(fd);
    }
    say("ports that cannot be bound: %d\n", taken);
}

/* What keeper hands over, if there is anything: a new link in place of the one before, or the zygote's socket. */
/* What an image of memory has to bring back: a variable, a deleted file, a child with a pipe, a socket that listens. */
static char remembered[64];
static int deleted_fd = -1, pipe_fd = -1;

static void remember(const char *text)
{
    int ends[2];
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons(8080),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(remembered, sizeof remembered, "%s", text);
    deleted_fd = open("/tmp/deleted", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    say_result("deleted", write(deleted_fd, text, strlen(text)) < 0 || unlink("/tmp/deleted") < 0 ? -1 : 0);
    say_result("listen", bind(server, (struct sockaddr *)&at, sizeof at) < 0 ? -1 : listen(server, 8));
    prctl(PR_SET_DUMPABLE, 0); /* as guestd is not */
    if (pipe2(ends, O_CLOEXEC) == 0 && fork() == 0) {
        close_range(3, ends[1] - 1, 0); /* guestd's children have none of its descriptors */
        for (;;) {                      /* a background command with its output */
            dprintf(ends[1], "tick\n");
            usleep(10000);
        }
    }
    pipe_fd = ends[0];
    close(ends[1]);
}

static void trace_a_child(void)
{
    pid_t traced = fork();

    if (traced == 0)
        for (;;)
            pause();
    say_result("trace", ptrace(PTRACE_SEIZE, traced, 0, 0));
}

static void recall(void)
{
    char text[64] = "";
    struct stat st;

    say("remembered: %s\n", remembered);
    ssize_t n = pread(deleted_fd, text, sizeof text - 1, 0);
    say("deleted: %s\n", n < 0 ? strerror(errno) : text);
    n = read(pipe_fd, text, 5);
    say("child: %.4s\n", n == 5 ? text : "gone");
    say("id: %u\n", stat("/", &st) == 0 ? st.st_uid : 65534);
    char random[8];
    say("random: %016llx\n", getrandom(random, sizeof random, 0) == 8 ? *(unsigned long long *)(void *)random : 0);
    say_file("hostname", "/proc/sys/kernel/hostname");
}

static void take_handover(void)
{
    uint32_t kind = 0;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room;
    struct iovec piece = { .iov_base = &kind, .iov_len = sizeof kind };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    int from_fd = accept(HANDOVER_FD, NULL, NULL);
    int fd;

    if (from_fd < 0 || recvmsg(from_fd, &message, MSG_CMSG_CLOEXEC) != sizeof kind)
        return;
    /* A descriptor that comes back would be keeper's to close. */
    if (send(from_fd, "x", 1, MSG_NOSIGNAL) == 1)
        kind = 0;
    close(from_fd);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    if (kind == HANDOVER_LISTENER) {
        dup3(fd, HANDOVER_FD, O_CLOEXEC);
        close(fd);
        return;
    }
    int *place = kind == HANDOVER_LINK ? &out_fd : kind == HANDOVER_ZYGOTE ? &zygote_fd : NULL;
    if (!place)
        _exit(1);
    close(*place);
    *place = fd;
}

/* The zygote's socket: is it there, and does a zygote hold the other end? */
static void zygote_socket(void)
{
    char byte;

    if (zygote_fd < 0) {
        say("zygote: none\n");
        return;
    }
    say("sent: %s\n", send(zygote_fd, "x", 1, MSG_NOSIGNAL) == 1 ? "ok" : strerrorname_np(errno));
    ssize_t n = recv(zygote_fd, &byte, 1, MSG_DONTWAIT);
    say("zygote: %s\n", n == 0 ? "closed" : n < 0 && errno == EAGAIN ? "open" : "speaks");
}

enum { VOICE_FD = 4 };

/*
 * Two texts, then sockets; each is taken and kept. In a template with a file /evil it uses its power against every process
 * that it sees. Sending to keeper must not work: a message could carry a descriptor.
 */
static int be_zygote(void)
{
    char text[1 << 20];
    bool is_evil = access("/evil", F_OK) == 0;

    for (int i = 0; i < 2; i++)
        if (recv(0, text, sizeof text, 0) <= 0)
            return 1;
    if (send(0, "x", 1, MSG_NOSIGNAL) == 1 || errno != EPIPE)
        return 1;
    if (syscall(SYS_seccomp, 1, 0, NULL) == 0 || errno != EINVAL)
        return 1; /* it may have no BPF programs either */
    /* It has all capabilities in a sandbox that it has entered, so the filter has to refuse what they are good for. */
    if (socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) >= 0 || errno != EAFNOSUPPORT)
        return 1;
    if (setsockopt(-1, IPPROTO_IP, 64, NULL, 0) == 0 || errno == EBADF || ioctl(-1, SIOCSIFFLAGS, NULL) == 0 ||
        errno == EBADF)
        return 1;
    if (write(VOICE_FD, "birw", 4) != 4)
        return 1;
    for (;;) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(16 * sizeof(int))];
        } room;
        struct iovec piece = { .iov_base = text, .iov_len = 16 };
        struct msghdr message = {
            .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
        };
        if (recvmsg(0, &message, 0) <= 0)
            return 0;
        if (CMSG_FIRSTHDR(&message)->cmsg_len != CMSG_LEN(2 * sizeof(int)))
            return 1; /* a socket and a pidfd; a descriptor of a cgroup would be a weapon */
        if (write(VOICE_FD, "t", 1) != 1)
            return 1;
        while (is_evil)
            (void)kill(-1, SIGSTOP);
    }
}

static void join_user_cgroup(void)
{
    for (int i = 1; arguments[i]; i++)
        if (!strcmp(arguments[i], "--cgroup-fd") && write(atoi(arguments[i + 1]), "0", 1) < 0)
            say("cannot join: %s\n", strerror(errno));
}

/* As many processes as the limit lets a child have. */
static void count_forks(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        int count = 0;
        join_user_cgroup();
        for (;;) {
            pid_t next = fork();
            if (next == 0)
                pause();
            if (next < 0)
                break;
            count++;
        }
        say("forks: %d %s\n", count, strerrorname_np(errno));
        kill(0, SIGKILL);
    }
    waitpid(pid, NULL, 0);
}

/* A fifth of a second of CPU, in a process that has ended when we answer. */
static void burn(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        join_user_cgroup();
        while (clock() < CLOCKS_PER_SEC / 5)
            ;
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    say("burnt\n");
}

static volatile unsigned long *counters; /* shared with those that count */

/* Processes that never stop by themselves; each has a counter. */
static void start_counting(unsigned count)
{
    if (!counters)
        counters = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < count; i++) {
        if (fork() != 0)
            continue;
        join_user_cgroup();
        for (;;)
            counters[i]++;
    }
    for (unsigned i = 0; i < count; i++)
        while (!counters[i])
            usleep(1000);
    say("counting\n");
}

/* Processes that wait in ways of their own: stopped, traced, and for a child that was made with vfork. */
static void start_odd_ones(void)
{
    int go[2];
    char byte;

    (void)!pipe(go);
    if (fork() == 0) {
        join_user_cgroup();
        raise(SIGSTOP);
        pause();
    }
    if (fork() == 0) {
        join_user_cgroup();
        pid_t traced = fork();
        if (traced == 0) {
            ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            raise(SIGSTOP);
            pause();
        }
        waitpid(traced, NULL, WUNTRACED);
        (void)!write(go[1], "", 1);
        pause();
    }
    (void)!read(go[0], &byte, 1);
    if (fork() == 0) {
        join_user_cgroup();
        if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, NULL, NULL, NULL, NULL) == 0) {
            (void)!write(go[1], "", 1);
            pause();
        }
    }
    (void)!read(go[0], &byte, 1);
    close(go[0]);
    close(go[1]);
    say("waiting\n");
}

/* As many processes as there may be, each of which does nothing but make another one and end. */
static void start_bomb(void)
{
    counters = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0) {
        join_user_cgroup();
        for (;;) {
            __sync_fetch_and_add(counters, 1);
            if (fork() > 0 && *counters % 2)
                _exit(0);
        }
    }
    while (*counters < 1000)
        usleep(1000);
    say("exploding\n");
}

/* 16 MiB of a file, on disk and in the page cache. */
static void fill_cache(void)
{
    static char page[4096];
    pid_t pid = fork();

    if (pid == 0) {
        join_user_cgroup();
        int fd = open("/tmp/large", O_WRONLY | O_CREAT, 0600);
        for (int i = 0; i < 4096; i++)
            if (write(fd, page, sizeof page) != sizeof page)
                _exit(1);
        _exit(fsync(fd) != 0);
    }
    int status;
    waitpid(pid, &status, 0);
    say(status ? "not filled\n" : "filled\n");
}

static void touch(unsigned mib)
{
    for (unsigned i = 0; i < mib; i++) {
        volatile char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t page = 0; page < 1 << 20; page += 4096)
            at[page] = 1;
    }
}

/* Touches memory until the limit kills it. */
static void eat_memory(void)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        join_user_cgroup();
        touch(256);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    say("memory: %s\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "killed" : "had all it wanted");
}

static void listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr = { htonl(INADDR_LOOPBACK) } };

    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0) {
        say("listen: %s\n", strerror(errno));
        return;
    }
    if (fork() == 0) {
        close(out_fd);
        for (;;) {
            int peer = accept(fd, NULL, NULL);
            (void)!write(peer, "hello from inside", 17);
            close(peer);
        }
    }
    close(fd);
    say("listening\n");
}

/*
 * Replies that nobody reads, 96 MiB of them at most: each message is told to be wrong, and comes back whole. Few in each
 * socket: what the host lets one hold is 208 KiB by default, and the kernel doubles that.
 */
static int fill_netlink(void)
{
    static struct {
        struct nlmsghdr header;
        char rest[30000];
    } wrong;
    int big = 8 << 20, sent = 0; /* cut by the kernel to what the host allows */

    wrong.header = (struct nlmsghdr){ .nlmsg_len = sizeof wrong, .nlmsg_type = 9999, .nlmsg_flags = NLM_F_REQUEST };
    for (int i = 0; i < 240; i++) {
        int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
        for (int k = 0; k < 14; k++)
            sent += send(fd, &wrong, sizeof wrong, 0) > 0;
    }
    return sent;
}

/* In a child, which stays. */
static void hoard(void)
{
    int pair[2], sent = 0;

    (void)!pipe(pair);
    if (fork() == 0) {
        join_user_cgroup();
        sent = fill_netlink();
        (void)!write(pair[1], &sent, sizeof sent);
        pause();
    }
    (void)!read(pair[0], &sent, sizeof sent);
    say("hoarded: %d\n", sent);
}

/* In a child of its own, below the sandbox's limits; true in it. */
static bool become_guest(const char *what)
{
    say("%s\n", what);
    if (fork() != 0)
        return false;
    join_user_cgroup();
    return true;
}

/* Record locks, which the kernel charges to nobody, four million at most; from the end of each file, where a new one costs least. */
static void take_locks(void)
{
    if (!become_guest("locking"))
        return;
    for (int i = 0; i < 8000; i++) {
        int fd = memfd_create("locks", 0);
        for (int k = 500; k; k--)
            fcntl(fd, F_SETLK, &(struct flock){ .l_type = F_WRLCK, .l_start = k * 2L, .l_len = 1 });
    }
    pause();
}

/* 20,000; half of them with a page of the kernel's each, so that keeper looks soon. */
static void open_many_files(void)
{
    char byte;

    if (!become_guest("opening"))
        return;
    for (int i = 0; i < 5 && fork() != 0; i++)
        ;
    for (int i = 0, fd; (fd = open("/proc/self/status", O_RDONLY)) >= 0; i++)
        if (i % 2)
            (void)!read(fd, &byte, 1);
    pause();
}

/* Each user may have as many on their way as open: 600,000 of 160 users, in queues of sockets that refer to each other. */
static void send_in_circles(void)
{
    enum { PAIRS = 64, USERS = 160 };
    int pairs[PAIRS][2];

    if (!become_guest("sending"))
        return;
    for (int i = 0; i < PAIRS; i++)
        socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]);
    for (unsigned user = 0; user < USERS; user++) {
        if (fork() == 0) {
            (void)!setresuid(2000 + user, 2000 + user, 2000 + user);
            for (unsigned i = user, full = 0; full < PAIRS; i++)
                if (!send_descriptors(pairs[i % PAIRS][1], pairs[(i + 1) % PAIRS][0], 253))
                    full = errno == EAGAIN ? full + 1 : PAIRS;
            _exit(0);
        }
        wait(NULL);
    }
    pause();
}

/* "MIB COUNT": so many children, each with so much memory; they stay. */
static void keep_children(const char *text)
{
    unsigned mib = 0, count = 0, i;
    int pair[2];
    char ready;

    (void)!pipe(pair);
    (void)sscanf(text, "%u %u", &mib, &count);
    for (i = 0; i < count; i++)
        if (fork() == 0) {
            join_user_cgroup();
            touch(mib);
            (void)!write(pair[1], "x", 1);
            for (;;)
                pause();
        }
    for (i = 0; i < count; i++)
        (void)!read(pair[0], &ready, 1);
    say("kept: %u\n", count);
}

static void run(char *command)
{
    command[strcspn(command, "\n")] = '\0';
    if (!strncmp(command, "remember ", 9))
        remember(command + 9);
    else if (!strcmp(command, "trace"))
        trace_a_child();
    else if (!strcmp(command, "recall"))
        recall();
    else if (!strcmp(command, "facts"))
        facts();
    else if (!strcmp(command, "attempts"))
        attempts();
    else if (!strncmp(command, "option ", 7))
        ask_for_option(command + 7);
    else if (!strcmp(command, "sweep"))
        sweep_as_both();
    else if (!strcmp(command, "write"))
        write_files();
    else if (!strncmp(command, "put ", 4))
        put(command + 4);
    else if (!strncmp(command, "get ", 4))
        say_file("get", command + 4);
    else if (!strncmp(command, "remove ", 7))
        say_result("remove", remove(command + 7));
    else if (!strncmp(command, "mkdir ", 6))
        say_result("mkdir", mkdir(command + 6, 0711));
    else if (!strcmp(command, "burn"))
        burn();
    else if (!strncmp(command, "count ", 6))
        start_counting((unsigned)atoi(command + 6));
    else if (!strcmp(command, "counted"))
        say("counted: %lu\n", *counters);
    else if (!strcmp(command, "fill"))
        fill_cache();
    else if (!strcmp(command, "odd"))
        start_odd_ones();
    else if (!strcmp(command, "bomb"))
        start_bomb();
    else if (!strcmp(command, "forks"))
        count_forks();
    else if (!strcmp(command, "gorge"))
        touch(1024); /* where guestd is */
    else if (!strcmp(command, "memory"))
        eat_memory();
    else if (!strncmp(command, "listen ", 7))
        listen_on(atoi(command + 7));
    else if (!strncmp(command, "connect ", 8))
        connect_to(command + 8);
    else if (!strncmp(command, "fast ", 5))
        connect_fast(command + 5);
    else if (!strncmp(command, "datagram ", 9))
        send_to(command + 9);
    else if (!strncmp(command, "abstract ", 9))
        connect_abstract(command + 9);
    else if (!strcmp(command, "attack network"))
        attack_network();
    else if (!strcmp(command, "churn"))
        churn();
    else if (!strcmp(command, "exit"))
        _exit(0);
    else if (!strcmp(command, "attach"))
        attach();
    else if (!strcmp(command, "listeners"))
        count_listeners();
    else if (!strcmp(command, "ports"))
        count_taken_ports();
    else if (!strcmp(command, "zygote"))
        zygote_socket();
    else if (!strcmp(command, "hoard"))
        hoard();
    else if (!strcmp(command, "lock"))
        take_locks();
    else if (!strcmp(command, "open"))
        open_many_files();
    else if (!strcmp(command, "circles"))
        send_in_circles();
    else if (!strncmp(command, "keep ", 5))
        keep_children(command + 5);
    else if (!strncmp(command, "swell ", 6)) {
        touch((unsigned)atoi(command + 6)); /* where guestd is */
        say("swollen\n");
    } else if (!strcmp(command, "ping"))
        say("pong\n");
    else
        say("what?\n");
}

int main(int argc, char **argv)
{
    (void)argc;
    arguments = argv;
    if (!strcmp(argv[0], "python3"))
        return be_zygote();
    signal(SIGPIPE, SIG_IGN);
    for (;;) { /* like guestd, which does without the host */
        struct pollfd ready[] = { { .fd = HANDOVER_FD, .events = POLLIN }, { .fd = out_fd, .events = POLLIN } };
        char command[256] = { 0 };
        (void)poll(ready, 2, -1);
        if (ready[0].revents) {
            take_handover();
        } else if (read(out_fd, command, sizeof command - 1) > 0) {
            run(command);
            say(".\n");
        } else {
            close(out_fd);
            out_fd = -1;
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}
