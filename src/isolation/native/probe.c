#include "isolation/native/probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/mounts.h"
#include "isolation/native/native.h"
#include "isolation/native/network.h"
#include "isolation/native/seccomp.h"
#include "privsep/message.h"

const char *const probe_verdict_name[PROBE_VERDICT_COUNT] = {
    [PROBE_OK] = "ok",
    [PROBE_WARN] = "warn",
    [PROBE_FAIL] = "fail",
    [PROBE_SKIP] = "skip",
};

static void found(struct probe_row *row, enum probe_verdict verdict, const char *format, ...) printf_like(3, 4);
static void found(struct probe_row *row, enum probe_verdict verdict, const char *format, ...)
{
    va_list args;

    row->verdict = verdict;
    va_start(args, format);
    (void)vsnprintf(row->found, sizeof row->found, format, args);
    va_end(args);
}

static void fix(struct probe_row *row, const char *text)
{
    (void)snprintf(row->fix, sizeof row->fix, "%s", text);
}

static bool need_root(struct probe_row *row)
{
    if (geteuid() == 0)
        return true;
    found(row, PROBE_SKIP, "needs root to find out");
    fix(row, "look again as root");
    return false;
}

/* ---- the checks ---- */

static void probe_kernel(struct probe_row *row, const char *data_path)
{
    struct utsname name;
    uint64_t major = 0, minor = 0;
    struct str first, second;

    (void)data_path;
    (void)uname(&name); /* cannot fail with a valid pointer */
    /* "6.12.43+deb13-amd64"; what does not read as one is taken for too old. */
    struct str rest = str_from(name.release);
    if (!str_cut(&rest, '.', &first) || !str_cut(&rest, '.', &second) || !str_to_u64(first, 1000, &major) ||
        !str_to_u64(str_of(second.at, strspn(second.at, "0123456789")), 1000, &minor))
        major = 0;
    /* Idmapped layers below overlay are the newest thing that we cannot do without. */
    bool fine = major > 5 || (major == 5 && minor >= 19);
    found(row, fine ? PROBE_OK : PROBE_FAIL, "Linux %s", name.release);
    if (!fine)
        fix(row, "use Linux 5.19 or newer: Debian 12, Ubuntu 24.04");
}

static void probe_user_namespaces(struct probe_row *row, const char *data_path)
{
    struct clone_args args = { .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                        CLONE_NEWUTS | CLONE_NEWCGROUP,
                               .exit_signal = SIGCHLD };

    (void)data_path;
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        _exit(0);
    if (pid > 0) {
        (void)waitpid(pid, NULL, 0);
        found(row, PROBE_OK, "a process in namespaces of its own was made");
        return;
    }
    if (geteuid() != 0) {
        (void)need_root(row);
        return;
    }
    found(row, PROBE_FAIL, "clone3 with all namespaces: %s", strerror(errno));
    fix(row, errno == ENOSPC ? "raise /proc/sys/user/max_user_namespaces and its neighbours"
                             : "enable user namespaces: sysctl kernel.unprivileged_userns_clone, AppArmor, seccomp");
}

static void probe_calls(struct probe_row *row, const char *data_path)
{
    int pidfd = pidfd_open(getpid(), 0);
    struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT };
    int dir_fd = (int)syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof how);

    (void)data_path;
    found(row, pidfd >= 0 && dir_fd >= 0 ? PROBE_OK : PROBE_FAIL, "pidfd %s, openat2 %s",
          pidfd < 0 ? "missing" : "works", dir_fd < 0 ? "missing" : "works");
    if (row->verdict != PROBE_OK)
        fix(row, "use Linux 5.19 or newer; in a container, allow these calls in its seccomp profile");
    fd_close(&pidfd);
    fd_close(&dir_fd);
}

static void probe_seccomp(struct probe_row *row, const char *data_path)
{
    struct sock_fprog filter = { 0 };
    unsigned action = SECCOMP_RET_ERRNO;
    struct err err;

    (void)data_path;
    if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) < 0) {
        found(row, PROBE_FAIL, "seccomp filters: %s", strerror(errno));
        fix(row, "use a kernel with CONFIG_SECCOMP_FILTER");
        return;
    }
    if (!seccomp_guest_filter(false, &filter, &err)) {
        found(row, PROBE_FAIL, "%s", err.message);
        fix(row, "update libseccomp");
        return;
    }
    found(row, PROBE_OK, "the guests' filter compiles to %u instructions", filter.len);
    free(filter.filter);
}

static void probe_cgroups(struct probe_row *row, const char *data_path)
{
    struct cgroup_report report;
    char missing[64];
    struct err err;

    (void)data_path;
    if (!cgroup_detect(&report, &err)) {
        found(row, PROBE_FAIL, "%s", err.message);
        fix(row, "mount proc and cgroups");
        return;
    }
    cgroup_missing(&report, missing, sizeof missing);
    if (missing[0]) {
        found(row, PROBE_FAIL, "layout %s without: %s", cgroup_layout_name[report.layout], missing);
        fix(row, "boot with cgroup_enable=memory, or mount the missing controllers");
        return;
    }
    found(row, PROBE_OK, "layout %s with memory, cpu and pids", cgroup_layout_name[report.layout]);
}

static void probe_cgroup_write(struct probe_row *row, const char *data_path)
{
    char name[64];
    struct err err;

    (void)data_path;
    if (!need_root(row))
        return;
    (void)snprintf(name, sizeof name, "cloister.probe.%d", getpid());
    struct cgroups *cgroups = cgroups_open(name, -1, false, &err);
    const struct cgroup_limits limits = { .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 10 };
    bool fine = cgroups && cgroup_make(cgroups, "probe", &limits, &err);
    if (fine)
        fine = cgroup_remove(cgroups, "probe", &err);
    cgroups_remove(cgroups);
    if (fine) {
        found(row, PROBE_OK, "limits can be set");
        return;
    }
    found(row, PROBE_FAIL, "%s", err_text(&err));
    fix(row, "in a container, give it writable cgroups; under systemd, Delegate=yes");
}

/* ---- pauses ---- */

static const char *const freezer_name[] = {
    [CGROUP_FREEZER_NONE] = "none",
    [CGROUP_FREEZER_V1] = "v1",
    [CGROUP_FREEZER_BESIDE] = "v2, beside the v1 controllers",
    [CGROUP_FREEZER_V2] = "v2",
};

/* A child inside the sandbox's cgroups, which sleeps. 0: there is none, and err says why. */
static pid_t start_sleeper(struct cgroups *cgroups, const char *id, struct err *err)
{
    auto_close int birth_fd = -1;

    if (!cgroup_open_birth(cgroups, id, &birth_fd, err))
        return 0;
    struct clone_args args = { .flags = birth_fd < 0 ? 0 : CLONE_INTO_CGROUP,
                               .cgroup = birth_fd < 0 ? 0 : (uint64_t)birth_fd,
                               .exit_signal = SIGCHLD };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    if (pid < 0) {
        (void)err_sys(err, "make a process");
        return 0;
    }
    if (cgroup_hold(cgroups, id, pid, err))
        return pid;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return 0;
}

static bool wait_frozen(struct cgroups *cgroups, const char *id, struct err *err)
{
    enum cgroup_ice ice = CGROUP_THAWED;
    const struct timespec moment = { .tv_nsec = 5000000 };

    for (int i = 0; i < 200; i++) {
        if (!cgroup_read_ice(cgroups, id, &ice, err))
            return false;
        if (ice == CGROUP_FROZEN)
            return true;
        (void)nanosleep(&moment, NULL);
    }
    return err_set(err, ERR_TIMEOUT, "a process that sleeps was not frozen within a second");
}

/* A process is frozen, thawed and killed, as a pause and a kill would. */
static bool try_freezer(struct cgroups *cgroups, struct err *err)
{
    const struct cgroup_limits limits = { .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 10 };
    const struct timespec moment = { .tv_nsec = 5000000 };
    struct err ignored;

    if (!cgroup_lay_out(cgroups, "probe", &limits, err))
        return false;
    pid_t pid = start_sleeper(cgroups, "probe", err);
    bool fine = pid > 0 && cgroup_freeze(cgroups, "probe", true, err) && wait_frozen(cgroups, "probe", err);
    if (pid > 0) {
        fine = cgroup_freeze(cgroups, "probe", false, fine ? err : &ignored) && fine;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    for (int i = 0; i < 100 && !cgroup_remove(cgroups, "probe", &ignored); i++)
        (void)nanosleep(&moment, NULL);
    return fine;
}

static void probe_freezer(struct probe_row *row, const char *data_path)
{
    char name[64];
    struct err err;

    (void)data_path;
    if (!need_root(row))
        return;
    (void)snprintf(name, sizeof name, "cloister.pause.%d", getpid());
    struct cgroups *cgroups = cgroups_open(name, -1, false, &err);
    bool fine = cgroups && try_freezer(cgroups, &err);
    enum cgroup_freezer freezer = cgroups ? cgroups_report(cgroups)->freezer : CGROUP_FREEZER_NONE;
    cgroups_remove(cgroups);
    if (fine) {
        found(row, PROBE_OK, "works, by the cgroup freezer (%s)", freezer_name[freezer]);
        return;
    }
    found(row, PROBE_WARN, "does not work: %.140s", err_text(&err));
    fix(row, freezer == CGROUP_FREEZER_NONE
                 ? "mount the v1 freezer controller, or boot with cgroup v2; meanwhile pause with files only"
                 : "pause with files only (mode='filesystem', --files-only), which works everywhere");
}

static void probe_files_only(struct probe_row *row, const char *data_path)
{
    (void)data_path;
    found(row, PROBE_OK, "works: it needs nothing that running sandboxes do not need");
}

/* A directory for trying things, below the data directory or the nearest parent that exists. */
static bool make_place(const char *data_path, char *room, size_t room_size)
{
    char parent[LIMIT_PATH_BYTES];

    (void)snprintf(parent, sizeof parent, "%s", data_path);
    while (access(parent, W_OK) < 0) {
        char *slash = strrchr(parent, '/');
        if (!slash || slash == parent)
            return false;
        *slash = '\0';
    }
    return (size_t)snprintf(room, room_size, "%s/cloister-probe.XXXXXX", parent) < room_size && mkdtemp(room) != NULL;
}

/* In a child with a mount namespace of its own: the real function on a tiny tree. */
static bool try_overlay(int place_fd, int userns_fd, struct err *err)
{
    struct mounts mounts = { .scratch_fd = -1 };
    struct plan plan = { .layer_count = 1 };
    const struct mounts_ids ids = { .userns_fd = userns_fd, .uid_base = NATIVE_UID_BASE };
    int fd = -1;

    memset(plan.layers[0], '0', LAYER_ID_BYTES - 1);
    if (mkdirat(place_fd, "layers", 0700) < 0 || mkdirat(place_fd, "sandbox", 0700) < 0 ||
        mkdirat(place_fd, "sandbox/upper", 0755) < 0 || mkdirat(place_fd, "sandbox/work", 0700) < 0)
        return err_sys(err, "make directories");
    auto_close int layers_fd = openat(place_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int sandbox_fd = openat(place_fd, "sandbox", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (layers_fd < 0 || sandbox_fd < 0 || mkdirat(layers_fd, plan.layers[0], 0755) < 0)
        return err_sys(err, "make directories");
    if (!mounts_open(place_fd, &mounts, err))
        return false;
    bool fine = mounts_overlay(&mounts, layers_fd, sandbox_fd, &plan, &ids, &fd, err);
    fd_close(&fd);
    mounts_close(&mounts);
    return fine;
}

/* A user namespace with the first sandbox's ids, held by a child that waits on a pipe. */
static int make_userns(struct err *err)
{
    struct clone_args args = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
    int pipe_fds[2], fd = -1;
    char path[64], map[64];

    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        (void)err_sys(err, "pipe");
        return -1;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        char byte;
        (void)close(pipe_fds[1]);
        (void)!read(pipe_fds[0], &byte, 1); /* until the other end closes */
        _exit(0);
    }
    if (pid < 0) {
        (void)err_sys(err, "make a user namespace");
    } else {
        (void)snprintf(map, sizeof map, "0 %u %d", NATIVE_UID_BASE, NATIVE_UIDS);
        (void)snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
        bool fine = fd_write_file(AT_FDCWD, path, str_from(map), err);
        (void)snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
        fine = fine && fd_write_file(AT_FDCWD, path, str_from(map), err);
        (void)snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
        if (fine && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
            (void)err_sys(err, "open %s", path);
    }
    fd_close(&pipe_fds[0]);
    fd_close(&pipe_fds[1]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    return fd;
}

static no_return void overlay_child(const char *place, int report_fd)
{
    auto_buf struct buf report = buf_make(NULL, 1024);
    struct err err;
    int userns_fd = make_userns(&err);
    bool fine = userns_fd >= 0 && native_enter_mount_namespace(&err);

    /* By path, and only now: a descriptor from before would lead into the mount namespace we have left. */
    int place_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fine)
        fine = place_fd < 0 ? err_sys(&err, "open %s", place) : try_overlay(place_fd, userns_fd, &err);
    if (!fine) {
        message_pack_err(&report, &err);
        (void)!write(report_fd, report.data, report.len);
    }
    _exit(fine ? 0 : 1);
}

static void remove_place(const char *place)
{
    auto_close int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct err ignored; /* at worst an empty-looking directory with a telling name stays */

    if (fd >= 0)
        (void)!remove_inside(fd, &ignored);
    (void)rmdir(place);
}

static void probe_overlay(struct probe_row *row, const char *data_path)
{
    char place[LIMIT_PATH_BYTES];
    auto_free char *text = NULL;
    size_t len = 0;
    struct err err;
    int pipe_fds[2];

    if (!need_root(row))
        return;
    if (!make_place(data_path, place, sizeof place) || pipe2(pipe_fds, O_CLOEXEC) < 0) {
        found(row, PROBE_FAIL, "no directory to try it in at %s", data_path);
        fix(row, "choose another --data");
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        overlay_child(place, pipe_fds[1]);
    fd_close(&pipe_fds[1]);
    bool heard = pid > 0 && fd_read_all(pipe_fds[0], 1024, &text, &len, &err);
    fd_close(&pipe_fds[0]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    remove_place(place);
    if (heard && len == 0) {
        found(row, PROBE_OK, "overlay with idmapped layers can be mounted and written");
        return;
    }
    if (heard) {
        struct unpack in = unpack_from(str_of(text, len));
        message_unpack_err(&in, &err);
    }
    found(row, PROBE_FAIL, "%.150s", err_text(&err));
    fix(row, "use Linux 5.19 or newer, and a data directory on ext4, XFS or btrfs");
}

/* In a child: the network namespace that it is left in goes with it. */
static no_return void network_child(int report_fd)
{
    auto_buf struct buf report = buf_make(NULL, 1024);
    auto_close int home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    struct network_rules rules;
    struct err why = { 0 };
    enum network_kind kind = NETWORK_NONE;

    if (home_fd < 0)
        (void)err_sys(&why, "open /proc/self/ns/net");
    else
        kind = network_try(home_fd, &rules, &why);
    pack_u8(&report, (uint8_t)kind);
    pack_str(&report, str_from(kind == NETWORK_BOTH ? "" : why.message));
    (void)!write(report_fd, report.data, report.len);
    _exit(0);
}

static void probe_network(struct probe_row *row, const char *data_path)
{
    auto_free char *text = NULL;
    char why[100];
    size_t len = 0;
    struct err err;
    int pipe_fds[2];

    (void)data_path;
    if (!need_root(row))
        return;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        found(row, PROBE_WARN, "pipe: %s", strerror(errno));
        fix(row, "look again when fewer files are open");
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        network_child(pipe_fds[1]);
    fd_close(&pipe_fds[1]);
    bool heard = pid > 0 && fd_read_all(pipe_fds[0], 1024, &text, &len, &err);
    fd_close(&pipe_fds[0]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    struct unpack in = unpack_from(str_of(text, heard ? len : 0));
    enum network_kind kind = (enum network_kind)unpack_u8(&in);
    struct str words = unpack_str(&in, sizeof err.message);
    (void)snprintf(why, sizeof why, "%.*s", STR_ARG(words));
    if (kind == NETWORK_BOTH) {
        found(row, PROBE_OK, "sandboxes reach IPv4 and IPv6 by way of egress");
    } else if (kind == NETWORK_IPV4) {
        found(row, PROBE_WARN, "sandboxes have IPv4 only: %s", why);
        fix(row, "for IPv6 inside, boot without ipv6.disable=1 and set net.ipv6.conf.default.disable_ipv6=0");
    } else {
        found(row, PROBE_WARN, "sandboxes have no network: %s", why);
        fix(row, "use a kernel with nf_tables, nft_tproxy, nft_reject_ipv4 and nft_reject_ipv6, or load these modules");
    }
}

/*
 * Without a journal ext4 does not reuse the inodes of what was just deleted and steps over each of them at every new
 * file: starts become slow after many ends. A journal that is in use shows as /proc/fs/jbd2/<device>-<inode>.
 */
static bool lacks_journal(const char *at)
{
    char path[64], target[LIMIT_PATH_BYTES];
    struct statfs kind;
    struct stat st;

    if (statfs(at, &kind) < 0 || kind.f_type != 0xef53 /* EXT4_SUPER_MAGIC */ || stat(at, &st) < 0)
        return false;
    (void)snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
    ssize_t len = readlink(path, target, sizeof target - 1);
    DIR *dir = len < 0 ? NULL : opendir("/proc/fs/jbd2");
    if (!dir)
        return false; /* it cannot be told, and slow is not broken */
    target[len] = '\0';
    const char *slash = strrchr(target, '/');
    struct str device = str_from(slash ? slash + 1 : target);
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        struct str name = str_from(entry->d_name);
        found = str_skip(&name, device) && name.len && name.at[0] == '-';
    }
    (void)closedir(dir);
    return !found;
}

static void probe_disk(struct probe_row *row, const char *data_path)
{
    struct statvfs space;
    struct statfs kind;
    char at[LIMIT_PATH_BYTES];

    (void)snprintf(at, sizeof at, "%s", data_path);
    while (statvfs(at, &space) < 0) {
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) {
            found(row, PROBE_FAIL, "%s: %s", data_path, strerror(errno));
            fix(row, "choose another --data");
            return;
        }
        *slash = '\0';
    }
    unsigned long long free_mib = (unsigned long long)space.f_bavail * space.f_frsize >> 20;
    if (space.f_flag & ST_RDONLY) {
        found(row, PROBE_FAIL, "%s is mounted read-only", at);
        fix(row, "choose another --data");
    } else if (free_mib < 2048) {
        found(row, PROBE_WARN, "%llu MiB free at %s", free_mib, at);
        fix(row, "the base template alone needs 1 GiB; make room or choose another --data");
    } else if (statfs(at, &kind) == 0 && kind.f_type == 0x01021994 /* TMPFS_MAGIC */) {
        found(row, PROBE_WARN, "%s is a tmpfs: sandboxes' files live in memory and go with it", at);
        fix(row, "choose a --data on a disk");
    } else if (lacks_journal(at)) {
        found(row, PROBE_WARN,
              "%llu MiB free at %.60s, which is ext4 without a journal: new files are slow after many "
              "were deleted",
              free_mib, at);
        fix(row, "tune2fs -O has_journal on the unmounted device, or XFS for --data");
    } else if (!(space.f_flag & ST_NOSUID)) {
        /* Guests' setuid files lie there as root's. Only root gets to them, so this is advice and no more. */
        found(row, PROBE_OK, "%llu MiB free at %.60s; a file system of its own, mounted nosuid, is better still",
              free_mib, at);
    } else {
        found(row, PROBE_OK, "%llu MiB free at %s", free_mib, at);
    }
}

/* A guest decides when its programs crash, and what is in their memory then. */
static void probe_core(struct probe_row *row, const char *data_path)
{
    auto_free char *text = NULL;
    struct err err;

    (void)data_path;
    if (!fd_read_file(AT_FDCWD, "/proc/sys/kernel/core_pattern", 256, &text, NULL, &err)) {
        found(row, PROBE_WARN, "%s", err.message);
        fix(row, "mount proc");
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    if (text[0] != '|') {
        found(row, PROBE_OK, "core dumps of guests stay in their sandbox (%.60s)", text);
        return;
    }
    found(row, PROBE_WARN, "a crash inside a sandbox starts a program on the host, as root: %.80s", text + 1);
    fix(row, "sysctl kernel.core_pattern=core, unless you trust that program with what guests feed it");
}

static void probe_inotify(struct probe_row *row, const char *data_path)
{
    auto_free char *text = NULL;
    struct err err;

    (void)data_path;
    if (!fd_read_file(AT_FDCWD, "/proc/sys/fs/inotify/max_user_instances", 64, &text, NULL, &err)) {
        found(row, PROBE_WARN, "%s", err.message);
        fix(row, "mount proc, and use a kernel with CONFIG_INOTIFY_USER");
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    found(row, PROBE_OK, "%s file watch instances; the server raises it to what its sandboxes may use", text);
}

static void probe_files(struct probe_row *row, const char *data_path)
{
    struct rlimit limit;

    (void)data_path;
    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail with a valid pointer */
    bool enough = limit.rlim_max >= 4 * LIMIT_CONNECTIONS;
    found(row, enough ? PROBE_OK : PROBE_WARN, "%llu open files", (unsigned long long)limit.rlim_max);
    if (!enough)
        fix(row, "raise the hard limit of open files (ulimit -Hn, LimitNOFILE=) to 16384 or more");
}

static const struct {
    const char *name;
    void (*probe)(struct probe_row *row, const char *data_path);
} probes[] = {
    { "kernel", probe_kernel },
    { "namespaces", probe_user_namespaces },
    { "system calls", probe_calls },
    { "seccomp", probe_seccomp },
    { "cgroups", probe_cgroups },
    { "cgroup limits", probe_cgroup_write },
    { "idmapped overlay", probe_overlay },
    { "network", probe_network },
    { "disk", probe_disk },
    { "core dumps", probe_core },
    { "open files", probe_files },
    { "inotify", probe_inotify },
    { "pause in memory", probe_freezer }, /* these two last: native_probe_memory() makes the row after them */
    { "pause, files only", probe_files_only },
};

size_t native_probe(const char *data_path, struct probe_row rows[PROBE_ROWS_MAX])
{
    for (size_t i = 0; i < COUNT_OF(probes); i++) {
        rows[i] = (struct probe_row){ .name = probes[i].name };
        probes[i].probe(&rows[i], data_path);
    }
    return COUNT_OF(probes);
}
