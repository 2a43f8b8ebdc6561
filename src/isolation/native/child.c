/* From keeper's clone to guestd; the comment above native_child() says where it runs and in which order it must go. */
#include "isolation/native/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/origins.h"
#include "io/pass.h"
#include "isolation/native/capabilities.h"
#include "isolation/native/mounts.h"
#include "isolation/native/network.h"
#include "isolation/native/shed.h"
#include "isolation/native/tree.h"
#include "privsep/message.h"

struct child {
    const struct child_setup *setup;
    int control_fd;
    int root_fd, devices_fd; /* detached mounts from keeper */
    int handover_fd;
    int boot_id_fd; /* a file of devices, cloned */
};

static bool reach(const struct child *child, enum native_step step, struct err *err)
{
    if (child->setup->fail_at == step)
        return err_set(err, ERR_INTERNAL, "failed on purpose at step %d", step);
    return true;
}

static void tell_keeper(const struct child *child, char what, const struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    buf_add_char(&out, what);
    if (err)
        message_pack_err(&out, err);
    (void)!send(child->control_fd, out.data, out.len, MSG_NOSIGNAL); /* if keeper is gone, we exit too */
}

/* ---- before anything is ours ---- */

static void keep_fd(int *fds, size_t *count, int fd)
{
    size_t i = (*count)++;

    for (; i > 0 && fds[i - 1] > fd; i--)
        fds[i] = fds[i - 1];
    fds[i] = fd;
}

/*
 * Keeper serves others meanwhile. Our copies of what it holds for them, mounts, sockets and locks, would keep these open after
 * keeper has closed them. Three things stay: our own descriptors; keeper's lock on the data directory, so that no other keeper
 * begins before we are nearly guestd, or gone; and the claim on our sandbox (state.h), because we enter the cgroup by ourselves.
 */
static bool close_others(const struct child_setup *setup, struct err *err)
{
    int keep[5 + 3 * CGROUP_TREE_COUNT];
    size_t count = 0;
    int from = 3; /* the log */

    keep_fd(keep, &count, setup->control_fd);
    keep_fd(keep, &count, setup->guestd_fd);
    keep_fd(keep, &count, setup->lock_fd);
    keep_fd(keep, &count, setup->claim_fd);
    keep_fd(keep, &count, setup->gate_fd);
    for (size_t i = 0; i < setup->entry_count; i++)
        keep_fd(keep, &count, setup->entry_fds[i]);
    for (size_t i = 0; i < setup->guestd_cgroup_count; i++)
        keep_fd(keep, &count, setup->guestd_cgroup_fds[i]);
    for (size_t i = 0; i < setup->cgroup_count; i++)
        keep_fd(keep, &count, setup->cgroup_fds[i]);
    for (size_t i = 0; i < count; i++) {
        if (keep[i] > from && close_range((unsigned)from, (unsigned)keep[i] - 1, 0) < 0)
            return err_sys(err, "close keeper's descriptors");
        from = MAX(from, keep[i] + 1);
    }
    return close_range((unsigned)from, ~0u, 0) == 0 || err_sys(err, "close keeper's descriptors");
}

/* The network is ours from the start. Keeper maps ids and mounts meanwhile. */
static bool make_network(const struct child *child, struct err *err)
{
    char byte;

    if (child->setup->gate_fd >= 0)
        (void)!read(child->setup->gate_fd, &byte, 1);
    if (!network_set_up(child->setup->rules, err) || !reach(child, NATIVE_AT_NETWORK, err))
        return false;
    tell_keeper(child, CHILD_NETWORK, NULL);
    return true;
}

static bool wait_for_go(struct child *child, struct err *err)
{
    char byte = 0;
    struct iovec piece = { .iov_base = &byte, .iov_len = 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CHILD_FDS * sizeof(int))];
    } room = { 0 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    ssize_t n;

    do {
        n = recvmsg(child->control_fd, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        _exit(0); /* keeper died or gave this start up */
    if (n < 0)
        return err_sys(err, "wait for keeper");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (byte != CHILD_GO || !header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(CHILD_FDS * sizeof(int)))
        return err_set(err, ERR_INTERNAL, "keeper's CHILD_GO lacks descriptors");
    int fds[CHILD_FDS];
    memcpy(fds, CMSG_DATA(header), sizeof fds);
    child->root_fd = fds[CHILD_ROOT];
    child->devices_fd = fds[CHILD_DEVICES];
    child->handover_fd = fds[CHILD_HANDOVER];
    return true;
}

/* The kernel asks who has opened these files, which is keeper; not who we are. */
static bool enter_each(const int *fds, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        if (write(fds[i], "0", 1) != 1)
            return err_sys(err, "enter the sandbox's cgroup");
    return true;
}

/*
 * To <id>, where we make a namespace, which takes the place we are in for its root; from there, on v2, into the leaf. All
 * writes without a pause: on v1 only the first one waits for an RCU grace period.
 */
static bool enter_cgroup(const struct child_setup *setup, struct err *err)
{
    if (!enter_each(setup->entry_fds, setup->entry_count, err))
        return false;
    if (unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(err, "make a cgroup namespace");
    return enter_each(setup->guestd_cgroup_fds, setup->guestd_cgroup_count, err);
}

static bool become_root(struct err *err)
{
    /* We came as a user that is not mapped here; the maps are in place now. */
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return err_sys(err, "become root inside");
    if (prctl(PR_SET_DUMPABLE, 0) < 0) /* again, after the change of ids: see clone_as() */
        return err_sys(err, "stay unreadable");
    return origins_leave(err);
}

/* ---- the tree ---- */

enum { TAME = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };

static bool make_open_directory(const struct child *child, const char *path, struct err *err)
{
    if (mkdirat(child->root_fd, path, 0777) < 0 || fchmodat(child->root_fd, path, 01777, 0) < 0)
        return err_sys(err, "make /%s", path);
    return true;
}

static bool mount_devices(struct child *child, struct err *err)
{
    char half[32], terminals[16];
    /* gid 5 is tty. Its members may write to a terminal: `write` works this way. */
    const struct tree_option pts[] = {
        { "mode", "0620" }, { "ptmxmode", "0666" }, { "gid", "5" }, { "max", terminals }
    };
    const struct tree_option run[] = { { "mode", "0755" }, { "size", half } };

    /*
     * /dev/shm is a directory of /run: one file system less in each sandbox, and every memory cgroup of the machine has a
     * bit for each file system. Its pages count against the sandbox's memory; half of it is what a host of that size would
     * give to /dev/shm.
     */
    (void)snprintf(half, sizeof half, "%" PRIu64, child->setup->memory_bytes / 2);
    (void)snprintf(terminals, sizeof terminals, "%d", GUEST_TERMINALS);
    if (!tree_attach(child->root_fd, child->devices_fd, "dev", err))
        return false;
    child->boot_id_fd = tree_clone(child->root_fd, "dev/" MOUNTS_BOOT_ID, 0, err);
    if (child->boot_id_fd < 0 || !tree_bind(child->root_fd, "dev/" MOUNTS_EMPTY, "sys", err) ||
        !tree_mount(child->root_fd, "devpts", "dev/pts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, pts, COUNT_OF(pts),
                    err) ||
        !tree_mount(child->root_fd, "tmpfs", "run", TAME, run, COUNT_OF(run), err))
        return false;
    return make_open_directory(child, "run/lock", err) && make_open_directory(child, "run/shm", err) &&
           tree_bind(child->root_fd, "run/shm", "dev/shm", err) &&
           tree_bind(child->root_fd, "run/shm", "run/shm", err); /* a mount point: `rm -r /run` cannot take it away */
}

struct knob {
    const char *path, *value;
    const char *reason;
    bool may_be_missing; /* or the setting is global and read-only here */
};

/* Written while /proc/sys is still writable. Without CAP_SYS_RESOURCE a guest cannot raise the first three again. */
static const struct knob knobs[] = {
    { "proc/sys/user/max_user_namespaces", "0", "no nested user namespaces, which is also what keeps clone3 harmless",
      false },
    { "proc/sys/user/max_inotify_instances", "2048",
      "use also counts for the owner of the user namespace (clone_as() in start.c), which all sandboxes of a template "
      "share: one guest must not starve the others; guestd has up to LIMIT_WATCHERS of them",
      true },
    { "proc/sys/user/max_inotify_watches", "262144", "the same; LIMIT_WATCH_PLACE_BYTES has room for 200,000", true },
    { "proc/sys/net/ipv4/ip_unprivileged_port_start", "0", "a server on port 80 need not be root in its own network",
      true },
    { "proc/sys/net/core/somaxconn", "512",
      "connections in a service's queue count as the sandbox's sockets (kernel_memory.h): strangers must not fill it",
      true },
    { "proc/sys/net/ipv4/tcp_max_tw_buckets", "8192",
      "what TCP keeps for a minute of each connection that has ended, 260 bytes charged to no cgroup; beyond this it "
      "keeps nothing, which does no harm on loopback",
      true },
    { "proc/sys/net/core/tstamp_allow_data", "0",
      "time stamps that bring the message back, in an error queue of megabytes that is charged to no cgroup", true },
    { "proc/sys/net/core/optmem_max", "20480",
      "memory of a socket's options is charged to no cgroup either; this was the default for decades", true },
};

bool child_write_knobs(int root_fd, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(knobs); i++) {
        if (!fd_write_file(root_fd, knobs[i].path, str_from(knobs[i].value), err) &&
            !(knobs[i].may_be_missing && (err->sys == ENOENT || err->sys == EACCES)))
            return false;
    }
    return true;
}

/* What proc shows of the machine and not of the sandbox. A directory is covered by an empty one, a file by null. */
static const char *const hidden[] = {
    "proc/acpi",          /* the host's hardware */
    "proc/asound",        /* the same */
    "proc/cgroups",       /* how many sandboxes the machine has */
    "proc/cmdline",       /* how the host was started, sometimes with a secret in it */
    "proc/config.gz",     /* helps to choose an exploit */
    "proc/diskstats",     /* shows activity of other guests */
    "proc/interrupts",    /* the same */
    "proc/kcore",         /* all of the machine's memory */
    "proc/keys",          /* keyrings do not know namespaces */
    "proc/kmsg",          /* the kernel's log */
    "proc/kpagecgroup",   /* page by page, whose memory is whose */
    "proc/kpagecount",    /* the same */
    "proc/kpageflags",    /* the same */
    "proc/locks",         /* open-file locks of all sandboxes: they know no pid namespace */
    "proc/latency_stats", /* what the host's tasks wait for */
    "proc/pressure",      /* shows activity of other guests */
    "proc/sched_debug",   /* the names of all tasks on the machine */
    "proc/scsi",          /* writing there detaches disks */
    "proc/sysrq-trigger", /* writing there reboots */
    "proc/timer_list",    /* the host's process names */
    "proc/timer_stats",   /* the same, on older kernels */
};

/* Programs read these; only the machine's administrator needs to write them. */
static const char *const frozen[] = { "proc/bus", "proc/fs", "proc/irq", "proc/sys" };

static bool cover(const struct child *child, const char *path, struct err *err)
{
    auto_close int place_fd = tree_open(child->root_fd, path, err);
    struct stat st;

    if (place_fd < 0)
        return err->sys == ENOENT; /* this kernel has none */
    if (fstat(place_fd, &st) < 0)
        return err_sys(err, "stat /%s", path);
    /* /sys is the empty directory by now. */
    auto_close int cover_fd = tree_clone(child->root_fd, S_ISDIR(st.st_mode) ? "sys" : "dev/null", 0, err);
    if (cover_fd < 0)
        return false;
    if (move_mount(cover_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "cover /%s", path);
    return true;
}

static bool freeze(const struct child *child, const char *path, struct err *err)
{
    auto_close int place_fd = tree_open(child->root_fd, path, err);

    if (place_fd < 0)
        return err->sys == ENOENT;
    auto_close int frozen_fd = tree_clone(place_fd, "", MOUNT_ATTR_RDONLY, err);
    if (frozen_fd < 0)
        return false;
    if (move_mount(frozen_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "freeze /%s", path);
    return true;
}

/*
 * The host's would be the same in every sandbox, and before and after a sandbox was parked. On top of the read-only
 * /proc/sys.
 */
static bool show_boot_id(const struct child *child, struct err *err)
{
    auto_close int place_fd = tree_open(child->root_fd, "proc/sys/kernel/random/boot_id", err);

    if (place_fd < 0)
        return err->sys == ENOENT;
    if (move_mount(child->boot_id_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "mount a boot id");
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
    return show_boot_id(child, err);
}

/* ---- guestd ---- */

enum { ASIDE = 64 }; /* where descriptors stand while the low numbers are dealt out */

/*
 * All but what guestd gets is closed or will be at exec. The control socket and guestd itself stay for one more moment.
 */
static bool arrange_descriptors(struct child *child, int *guestd_fd, struct err *err)
{
    const struct child_setup *setup = child->setup;
    int handover_fd = fcntl(child->handover_fd, F_DUPFD_CLOEXEC, ASIDE);
    int cgroup_fds[CGROUP_TREE_COUNT];
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
    if (dup2(handover_fd, GUESTD_HANDOVER_FD) < 0)
        return err_sys(err, "place guestd's socket");
    for (size_t i = 0; i < setup->cgroup_count; i++)
        if (dup2(cgroup_fds[i], GUESTD_CGROUP_FD + (int)i) < 0)
            return err_sys(err, "place cgroup descriptor %zu", i);
    if (close_range((unsigned)after, ASIDE - 1, 0) < 0 || close_range(ASIDE, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        return err_sys(err, "close the host's descriptors");
    return true;
}

static bool exec_guestd(const struct child *child, int guestd_fd, struct err *err)
{
    char numbers[CGROUP_TREE_COUNT][8];
    const char *argv[4 + 2 * CGROUP_TREE_COUNT] = { "guestd", "--handover-fd", "3" };
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
    int guestd_fd, listener_fd;

    if (!wait_for_go(child, err) || !become_root(err))
        return false;
    /* At any place: pivot_root only wants the new root attached somewhere in our mount namespace. */
    if (!reach(child, NATIVE_AT_CHILD_ROOT, err))
        return false;
    if (move_mount(child->root_fd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach the new root");
    /* While the host's proc is still in sight: the kernel lets a user namespace mount proc only if it sees one whole. */
    if (!reach(child, NATIVE_AT_CHILD_PROC, err) ||
        !tree_mount(child->root_fd, "proc", "proc", TAME | MOUNT_ATTR_NOEXEC, NULL, 0, err) ||
        !mount_devices(child, err) || !child_write_knobs(child->root_fd, err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_MASK, err) || !mask_proc(child, err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_PIVOT, err) || !tree_pivot(child->root_fd, err))
        return false;
    if (sethostname(child->setup->hostname, strlen(child->setup->hostname)) < 0)
        return err_sys(err, "set the host name");
    if (!arrange_descriptors(child, &guestd_fd, err))
        return false;
    if (!shed_limits(GUEST_FILES, err) || !reach(child, NATIVE_AT_CHILD_CAPABILITIES, err) ||
        !shed_capabilities(kept_capability_mask(), err))
        return false;
    if (!reach(child, NATIVE_AT_CHILD_SECCOMP, err) || !shed_calls(child->setup->filter, &listener_fd, err))
        return false;
    if (!pass_fds(child->control_fd, str_of((const char[]){ CHILD_READY }, 1), &listener_fd, listener_fd >= 0, err))
        return false;
    fd_close(&listener_fd);
    if (child->setup->fail_at == NATIVE_AT_CHILD_DEATH && close(child->control_fd) == 0)
        (void)pause();
    return reach(child, NATIVE_AT_CHILD_EXEC, err) && exec_guestd(child, guestd_fd, err);
}

/*
 * native_child() - our first code inside a new sandbox, on its way to guestd.
 *   user ns   its own, ids mapped once keeper says go   mount ns  its own, still showing the host's tree
 *   pid ns    its own, we are pid 1                     network   its own, empty
 *   ipc, uts  its own                                   cgroup    keeper's until enter_cgroup()
 *   memory    a copy of keeper's, gone at exec
 *   must, in this order:
 *     close keeper's descriptors               it goes on without us, and closes its own
 *     go to the leaf of the cgroup             on v2 keeper sets its limits once we say that the network is there. It waits
 *                                              for the kernel, so it is ours to do, while keeper works on the mounts
 *     set the network up                       keeper makes guestlink over it before it says go
 *     pivot                                    guestd must not see the host's tree
 *     close all descriptors but guestd's       they lead out of the new root; the pivot needs one of them
 *     drop capabilities                        the steps before need them; takes effect at exec
 *     load seccomp                             the filter refuses mount, pivot_root and more that was needed before
 *   must not  read anything the guest could have written, or follow a link in its tree
 */
no_return void native_child(const struct child_setup *setup)
{
    struct child child = { .setup = setup, .control_fd = setup->control_fd };
    struct err err;
    char byte;

    /* Our copy of keeper's end would keep the socket open, and we would wait for a dead keeper for ever. */
    (void)close(setup->keeper_fd);
    if (!close_others(setup, &err) || !enter_cgroup(setup, &err) || !make_network(&child, &err)) {
        tell_keeper(&child, CHILD_FAILED, &err);
        (void)!read(child.control_fd, &byte, 1); /* until keeper has read why: it works on our namespaces meanwhile */
        _exit(1);
    }
    if (!run(&child, &err))
        tell_keeper(&child, CHILD_FAILED, &err);
    _exit(1);
}
