#include "isolation/native/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "privsep/message.h"

struct child {
    const struct child_setup *setup;
    int control_fd;
    int root_fd, devices_fd, empty_fd; /* detached mounts from keeper */
};

static bool reach(const struct child *child, enum native_step step, struct err *err)
{
    if (child->setup->fail_at == step)
        return err_set(err, ERR_INTERNAL, "failed on purpose at step %d", step);
    return true;
}

/* ---- before anything is ours ---- */

static bool wait_for_go(struct child *child, struct err *err)
{
    char byte = 0;
    struct iovec piece = { .iov_base = &byte, .iov_len = 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CHILD_MOUNTS * sizeof(int))];
    } room = { 0 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    ssize_t n;

    do {
        n = recvmsg(child->control_fd, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        _exit(0); /* keeper died or gave this start up: there is nobody to tell */
    if (n < 0)
        return err_sys(err, "wait for keeper");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (byte != CHILD_GO || !header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(CHILD_MOUNTS * sizeof(int)))
        return err_set(err, ERR_INTERNAL, "keeper's word to go has no mounts");
    int fds[CHILD_MOUNTS];
    memcpy(fds, CMSG_DATA(header), sizeof fds);
    child->root_fd = fds[0];
    child->devices_fd = fds[1];
    child->empty_fd = fds[2];
    return true;
}

static bool become_root(struct err *err)
{
    /* We came as a user that is not mapped here; the maps are in place now. */
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return err_sys(err, "become root inside");
    /*
     * Leave what keeper was born into: its session (or /dev/tty inside would open the terminal keeper was started
     * from), its keyring, its signals, its umask.
     */
    (void)setsid(); /* fails only for a group leader, which pid 1 of a new pid namespace is not */
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        return err_sys(err, "leave the host's session keyring");
    /* By the bare call: libc refuses to touch the two that it uses itself, and programs like make leave those ignored. */
    const unsigned char by_default[64] = { 0 };
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL, 8); /* two of them cannot be set, and need not */
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(022);
    /* Only now are we in our cgroup, and the new namespace takes the place we are in for its root. */
    if (unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(err, "make a cgroup namespace");
    return true;
}

/* ---- the tree ---- */

/* A directory or file of the root, without following links: a template decides what is in there, not where we mount. */
static int open_place(const struct child *child, const char *path, struct err *err)
{
    struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, child->root_fd, path, &how, sizeof how);

    if (fd < 0)
        (void)err_sys(err, "open /%s", path);
    return fd;
}

static bool attach(const struct child *child, int mount_fd, const char *path, struct err *err)
{
    /* A template without the directory gets one. */
    if (mkdirat(child->root_fd, path, 0755) < 0 && errno != EEXIST && errno != EROFS)
        return err_sys(err, "make /%s", path);
    auto_close int place_fd = open_place(child, path, err);
    if (place_fd < 0)
        return false;
    if (move_mount(mount_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "mount /%s", path);
    return true;
}

struct option {
    const char *key, *value;
};

static bool mount_new(const struct child *child, const char *type, const char *path, uint64_t attributes,
                      const struct option *options, size_t option_count, struct err *err)
{
    auto_close int context = fsopen(type, FSOPEN_CLOEXEC);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", type, 0) < 0)
        return err_sys(err, "mount %s", type);
    for (size_t i = 0; i < option_count; i++)
        if (fsconfig(context, FSCONFIG_SET_STRING, options[i].key, options[i].value, 0) < 0)
            return err_sys(err, "mount %s: %s=%s", type, options[i].key, options[i].value);
    if (fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "mount %s", type);
    auto_close int fd = fsmount(context, FSMOUNT_CLOEXEC, (unsigned)attributes);
    if (fd < 0)
        return err_sys(err, "mount %s", type);
    return attach(child, fd, path, err);
}

enum { TAME = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };

static bool mount_devices(const struct child *child, struct err *err)
{
    char half[32];
    /* gid 5 is tty in Debian as in everything else; its group may write to a terminal, which is how `write` works. */
    /* max: of the 4096 terminals that a machine has, no guest takes more than its share. */
    const struct option pts[] = { { "mode", "0620" }, { "ptmxmode", "0666" }, { "gid", "5" }, { "max", "256" } };
    const struct option shm[] = { { "mode", "1777" }, { "size", half } };
    const struct option run[] = { { "mode", "0755" }, { "size", half } };

    /* Their pages count against the sandbox's memory; half of it in each is what a host of that size would give. */
    (void)snprintf(half, sizeof half, "%" PRIu64, child->setup->memory_bytes / 2);
    if (!attach(child, child->devices_fd, "dev", err) ||
        !mount_new(child, "devpts", "dev/pts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, pts, COUNT_OF(pts), err) ||
        !mount_new(child, "tmpfs", "dev/shm", TAME, shm, COUNT_OF(shm), err) ||
        !mount_new(child, "tmpfs", "run", TAME, run, COUNT_OF(run), err))
        return false;
    if (mkdirat(child->root_fd, "run/lock", 0777) < 0 || fchmodat(child->root_fd, "run/lock", 01777, 0) < 0)
        return err_sys(err, "make /run/lock");
    return true;
}

struct knob {
    const char *path, *value;
    const char *reason;
    bool may_be_missing;
};

/* Written while /proc/sys is still writable. Without CAP_SYS_RESOURCE nobody inside can raise the first three again. */
static const struct knob knobs[] = {
    { "proc/sys/user/max_user_namespaces", "0", "no nested user namespaces, which is also what keeps clone3 harmless",
      false },
    { "proc/sys/user/max_inotify_instances", "64", "use is charged to keeper's user too: one guest must not starve all",
      true },
    { "proc/sys/user/max_inotify_watches", "65536", "the same", true },
    { "proc/sys/net/ipv4/ip_unprivileged_port_start", "0", "a server on port 80 need not be root in its own network",
      true },
    { "proc/sys/net/ipv4/ping_group_range", "0 65535", "ping without a raw socket", true },
};

static bool write_knobs(const struct child *child, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(knobs); i++) {
        if (!fd_write_file(child->root_fd, knobs[i].path, str_from(knobs[i].value), err) &&
            !(knobs[i].may_be_missing && err->sys == ENOENT))
            return false;
    }
    return true;
}

/* What proc shows of the machine and not of the sandbox. A directory is covered by an empty one, a file by null. */
static const char *const hidden[] = {
    "proc/acpi",          /* the host's hardware */
    "proc/asound",        /* the same */
    "proc/cmdline",       /* how the host was started, sometimes with a secret in it */
    "proc/config.gz",     /* which of the kernel's holes to try */
    "proc/diskstats",     /* a clock of what other guests do */
    "proc/interrupts",    /* the same */
    "proc/kcore",         /* all of the machine's memory */
    "proc/keys",          /* keyrings do not know namespaces */
    "proc/kmsg",          /* the kernel's log */
    "proc/kpagecgroup",   /* page by page, whose memory is whose */
    "proc/kpagecount",    /* the same */
    "proc/kpageflags",    /* the same */
    "proc/latency_stats", /* what the host's tasks wait for */
    "proc/pressure",      /* a clock of what other guests do */
    "proc/sched_debug",   /* the names of all tasks on the machine */
    "proc/scsi",          /* writing there detaches disks */
    "proc/sysrq-trigger", /* writing there reboots */
    "proc/timer_list",    /* the host's process names */
    "proc/timer_stats",   /* the same, on older kernels */
};

/* Wanted for reading; written only by who configures a machine. */
static const char *const frozen[] = { "proc/bus", "proc/fs", "proc/irq", "proc/sys" };

static int clone_mount(int dir_fd, const char *path, uint64_t attributes, struct err *err)
{
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | (path[0] ? 0 : AT_EMPTY_PATH);
    int fd = open_tree(dir_fd, path, flags);
    struct mount_attr want = { .attr_set = attributes };

    if (fd >= 0 && (!attributes || mount_setattr(fd, "", AT_EMPTY_PATH, &want, sizeof want) == 0))
        return fd;
    (void)err_sys(err, "clone mount %s", path);
    fd_close(&fd);
    return -1;
}

static bool cover(const struct child *child, const char *path, struct err *err)
{
    auto_close int place_fd = open_place(child, path, err);
    struct stat st;

    if (place_fd < 0)
        return err->sys == ENOENT; /* this kernel has none */
    if (fstat(place_fd, &st) < 0)
        return err_sys(err, "stat /%s", path);
    /* /sys is the empty directory by now. */
    auto_close int cover_fd = clone_mount(child->root_fd, S_ISDIR(st.st_mode) ? "sys" : "dev/null", 0, err);
    if (cover_fd < 0)
        return false;
    if (move_mount(cover_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "cover /%s", path);
    return true;
}

static bool freeze(const struct child *child, const char *path, struct err *err)
{
    auto_close int place_fd = open_place(child, path, err);

    if (place_fd < 0)
        return err->sys == ENOENT;
    auto_close int frozen_fd = clone_mount(place_fd, "", MOUNT_ATTR_RDONLY, err);
    if (frozen_fd < 0)
        return false;
    if (move_mount(frozen_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "freeze /%s", path);
    return true;
}

static bool mask_proc(const struct child *child, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(hidden); i++)
        if (!cover(child, hidden[i], err))
            return false;
    for (size_t i = 0; i < COUNT_OF(frozen); i++)
        if (!freeze(child, frozen[i], err))
            return false;
    return true;
}

/*
 * Not chroot: with CAP_SYS_CHROOT a guest leaves one. After pivot_root(".", ".") the old root is mounted on top of the
 * new one, at the place we stand; taking it off leaves nothing of the host's tree to stand on.
 */
static bool pivot(const struct child *child, struct err *err)
{
    if (fchdir(child->root_fd) < 0)
        return err_sys(err, "enter the new root");
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return err_sys(err, "pivot_root");
    if (umount2(".", MNT_DETACH) < 0)
        return err_sys(err, "let go of the host's tree");
    if (chdir("/") < 0)
        return err_sys(err, "enter /");
    return true;
}

static bool loopback_up(struct err *err)
{
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };

    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        return err_sys(err, "bring lo up");
    return true;
}

/* ---- power ---- */

/* Docker's fourteen but one: what package managers, sudo and servers inside expect of root. */
static const unsigned kept_capabilities[] = {
    CAP_CHOWN,            /* these four: root's way with files, as far as they are of the sandbox's own ids */
    CAP_DAC_OVERRIDE,     /* … */
    CAP_FOWNER,           /* … */
    CAP_FSETID,           /* … */
    CAP_SETFCAP,          /* file capabilities, valid in this user namespace alone */
    CAP_MKNOD,            /* fifos and sockets for package scripts; devices need more than this */
    CAP_KILL,             /* the sandbox's own processes */
    CAP_SETGID,           /* sudo, su, servers that drop root */
    CAP_SETUID,           /* the same */
    CAP_SETPCAP,          /* to give capabilities up */
    CAP_NET_BIND_SERVICE, /* its own network namespace */
    CAP_SYS_CHROOT,       /* package builds; the mount namespace is the border, not a chroot */
    CAP_AUDIT_WRITE,      /* login and sudo try, and fail harmlessly */
};
/*
 * Not CAP_SYS_RESOURCE: root inside would lift the limits written above. Not CAP_NET_RAW: guestd's callers send the
 * access token over this loopback, and a raw socket reads along; ping has a socket of its own kind.
 */

static bool drop_bounding_set(struct err *err)
{
    uint64_t keep = 0;

    for (size_t i = 0; i < COUNT_OF(kept_capabilities); i++)
        keep |= 1ull << kept_capabilities[i];
    for (unsigned capability = 0; capability < 64; capability++) {
        if (keep & 1ull << capability)
            continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one this kernel has */
            return err_sys(err, "drop capability %u", capability);
        }
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return err_sys(err, "clear ambient capabilities");
    return true;
}

/*
 * Without no_new_privs, or sudo inside would not work. The kernel then asks for CAP_SYS_ADMIN in our user namespace,
 * which we have until exec: the bounding set takes effect there.
 */
static bool load_seccomp(const struct child *child, struct err *err)
{
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, child->setup->filter) < 0)
        return err_sys(err, "load the seccomp filter");
    return true;
}

/*
 * For guestd, who serves thousands of connections, and for all that it starts. Keeper's own limit is for a thousand
 * sandboxes; here each open socket is a chance to have the kernel hold memory, and no program inside needs more.
 */
enum { FILES_MAX = 16384 };

static bool limit_files(struct err *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "ask for the limit of open files");
    limit.rlim_max = MIN(limit.rlim_max, (rlim_t)FILES_MAX);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "limit open files");
    return true;
}

enum { ASIDE = 64 }; /* where descriptors stand while the low numbers are dealt out */

/*
 * All but what guestd gets is closed or will be at exec. The control socket and guestd itself stay for one more moment.
 */
static bool arrange_descriptors(struct child *child, int *guestd_fd, struct err *err)
{
    const struct child_setup *setup = child->setup;
    int link_fd = fcntl(setup->link_fd, F_DUPFD_CLOEXEC, ASIDE);
    int cgroup_fds[CGROUP_CONTROL_COUNT];
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    int after = GUESTD_CGROUP_FD + (int)setup->cgroup_count;

    child->control_fd = fcntl(child->control_fd, F_DUPFD_CLOEXEC, ASIDE);
    *guestd_fd = fcntl(setup->guestd_fd, F_DUPFD_CLOEXEC, ASIDE);
    null_fd = null_fd < 0 ? -1 : fcntl(null_fd, F_DUPFD_CLOEXEC, ASIDE);
    for (size_t i = 0; i < setup->cgroup_count; i++)
        cgroup_fds[i] = fcntl(setup->cgroup_fds[i], F_DUPFD_CLOEXEC, ASIDE);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(null_fd, fd) < 0)
            return err_sys(err, "open /dev/null");
    if (dup2(link_fd, GUESTD_LINK_FD) < 0)
        return err_sys(err, "place guestlink");
    for (size_t i = 0; i < setup->cgroup_count; i++)
        if (dup2(cgroup_fds[i], GUESTD_CGROUP_FD + (int)i) < 0)
            return err_sys(err, "place cgroup descriptor %zu", i);
    if (close_range((unsigned)after, ASIDE - 1, 0) < 0 || close_range(ASIDE, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        return err_sys(err, "close the host's descriptors");
    return true;
}

static void tell_keeper(const struct child *child, char what, const struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    buf_add_char(&out, what);
    if (err)
        message_pack_err(&out, err);
    (void)!send(child->control_fd, out.data, out.len, MSG_NOSIGNAL); /* if keeper is gone, so are we */
}

static bool exec_guestd(const struct child *child, int guestd_fd, struct err *err)
{
    char numbers[CGROUP_CONTROL_COUNT][8];
    const char *argv[4 + 2 * CGROUP_CONTROL_COUNT] = { "guestd", "--link-fd", "3" };
    const char *environment[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL };
    size_t count = 3;

    for (size_t i = 0; i < child->setup->cgroup_count; i++) {
        (void)snprintf(numbers[i], sizeof numbers[i], "%d", GUESTD_CGROUP_FD + (int)i);
        argv[count++] = "--cgroup-fd";
        argv[count++] = numbers[i];
    }
    /* exec writes to neither. */
    (void)execveat(guestd_fd, "", (char *const *)argv, (char *const *)environment, AT_EMPTY_PATH);
    return err_sys(err, "start guestd");
}

static bool run(struct child *child, struct err *err)
{
    int guestd_fd;

    if (!wait_for_go(child, err) || !become_root(err))
        return false;
    /* Anywhere will do: pivot_root only asks that the new root is attached somewhere in our mount namespace. */
    if (!reach(child, NATIVE_AT_CHILD_ROOT, err))
        return false;
    if (move_mount(child->root_fd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach the new root");
    /* While the host's proc is still in sight: the kernel lets a user namespace mount proc only if it sees one whole. */
    if (!reach(child, NATIVE_AT_CHILD_PROC, err) ||
        !mount_new(child, "proc", "proc", TAME | MOUNT_ATTR_NOEXEC, NULL, 0, err) ||
        !attach(child, child->empty_fd, "sys", err) || !mount_devices(child, err) || !write_knobs(child, err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_MASK, err) || !mask_proc(child, err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_PIVOT, err) || !pivot(child, err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_NETWORK, err) || !loopback_up(err))
        return false;
    if (sethostname(child->setup->hostname, strlen(child->setup->hostname)) < 0)
        return err_sys(err, "set the host name");
    if (!arrange_descriptors(child, &guestd_fd, err))
        return false;
    if (!limit_files(err) || !reach(child, NATIVE_AT_CHILD_CAPABILITIES, err) || !drop_bounding_set(err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_SECCOMP, err) || !load_seccomp(child, err))
        return false;
    tell_keeper(child, CHILD_READY, NULL);
    return reach(child, NATIVE_AT_CHILD_EXEC, err) && exec_guestd(child, guestd_fd, err);
}

/*
 * native_child() - our first code inside a new sandbox, on its way to guestd.
 *   user ns   its own, ids mapped once keeper says go   mount ns  its own, still showing the host's tree
 *   pid ns    its own, we are pid 1                     network   its own, loopback down
 *   ipc, uts  its own                                   cgroup    keeper's until become_root()
 *   memory    a copy of keeper's, gone at exec
 *   must      pivot; close all descriptors but guestlink and cgroup; drop capabilities; load seccomp; in this order
 *   must not  read anything the guest could have written, or follow a link in its tree
 */
no_return void native_child(const struct child_setup *setup)
{
    struct child child = { .setup = setup, .control_fd = setup->control_fd };
    struct err err;

    /* Our copy of keeper's end would keep the socket open, and we would wait for a dead keeper for ever. */
    (void)close(setup->keeper_fd);
    if (!run(&child, &err))
        tell_keeper(&child, CHILD_FAILED, &err);
    _exit(1);
}
