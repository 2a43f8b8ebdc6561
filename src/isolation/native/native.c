/*
 * The driver itself: what it holds, and the calls that are one step each. start.c makes a sandbox (child.c is the half
 * inside), freeze.c makes it stand still, park.c leaves it to the disk, box.c ends it, adopt.c finds the sandboxes of an
 * earlier keeper, and handover.c
 * gives descriptors to guestd.
 */
#include "isolation/native/native.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/dial.h"
#include "isolation/native/adopt.h"
#include "isolation/native/box.h"
#include "isolation/native/child.h"
#include "isolation/native/handover.h"
#include "isolation/native/measure.h"
#include "isolation/native/network.h"
#include "isolation/native/park.h"
#include "isolation/native/seccomp.h"
#include "isolation/native/snapshot.h"
#include "isolation/native/start.h"
#include "isolation/native/unpack.h"
#include "isolation/native/usage.h"
#include "wire/zygote.h"

enum {
    LOCK_MS = 5000, /* longer than a helper of the keeper before may take to let go: HELPER_END_MS */
    LOCK_RETRY_MS = 20,
    GUESTD_BYTES_MAX = 64 << 20,
    /*
     * So high that sandboxes reach their memory limit first. The kernel counts all users of all sandboxes of a template
     * as one (the owner). The limits in child.c are for each of the 65,536 users inside.
     */
    HOST_INOTIFY_INSTANCES = 1 << 30,
    HOST_INOTIFY_WATCHES = 1 << 30,
    HOST_FILES = 1 << 30, /* one sandbox of 1 GiB could open the usual 2.4 million; they are its memory */
    HOST_PIDS = 1 << 20,  /* the usual 32,768 are gone with 32 sandboxes at their limit */
    HOST_TERMINALS =
        4096 + BOX_SLOTS * GUEST_TERMINALS, /* the usual 4,096 are gone with 12; and 4,096 are the host's */
};

/* ---- list, link, stats, dial, listen, free ---- */

static bool native_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct native *native = native_of(driver);
    struct held *held = mem_new((native->boxes.count + 1) * sizeof *held);
    uint32_t count = 0;
    struct box *box;

    (void)err;
    for (size_t i = 0; (box = map_next(&native->boxes, &i));) {
        if (box->state != BOX_RUNNING && box->keep == HELD_RUNNING)
            continue;
        memcpy(held[count].id, box->id, sizeof box->id);
        held[count].state = box->keep;
        if (box->keep == HELD_RUNNING && box->ice.is_frozen)
            held[count].state = HELD_FROZEN;
        held[count++].has_network = box->keep == HELD_RUNNING && box->network != NETWORK_NONE;
    }
    *out_held = held;
    *out_count = count;
    return true;
}

static int open_sandbox(const struct box *box, struct err *err)
{
    int fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        (void)err_sys(err, "open the directory of sandbox %s", box->id);
    return fd;
}

static bool native_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    struct native *native = native_of(driver);
    struct box *box = box_find_awake(native, id, err);

    if (!box)
        return false;
    auto_close int sandbox_fd = open_sandbox(box, err);
    return sandbox_fd >= 0 && handover_link(native->netns_fd, box->pidfd, sandbox_fd, out_guestlink_fd, err);
}

/* Before code runs in it: guestd gets a socket to the zygote, if there is one that it does not have yet. */
static void give_zygote(struct box *box)
{
    struct err err;
    auto_close int fd = zygote_connect(box->zygote, box->id, box->slot, box->pidfd, &box->zygote_given);
    if (fd < 0)
        return;
    auto_close int sandbox_fd = open_sandbox(box, &err);
    if (sandbox_fd < 0 || !handover_send(sandbox_fd, HANDOVER_ZYGOTE, fd, &err))
        log_info("native: no warm Python for sandbox %s, using the slower start: %s", box->id, err_text(&err));
}

static bool native_warm(struct driver *driver, const char *id, struct err *err)
{
    struct box *box = box_find_awake(native_of(driver), id, err);

    if (!box)
        return false;
    if (!box->zygote)
        return err_set(err, ERR_INVALID, "sandboxes of this template have no zygote");
    if (!zygote_is_warm(box->zygote, err))
        return false;
    give_zygote(box);
    return true;
}

/*
 * The disk is that of the file system which all uppers share: the same figures as `df /` shows inside, since there is no
 * quota yet. Adding up an upper's files would take as long as a guest likes.
 */
static bool native_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                         uint32_t *out_count, struct err *err)
{
    struct native *native = native_of(driver);
    struct statvfs disk;
    struct usage usage;
    uint32_t found = 0;

    if (fstatvfs(native->sandboxes_fd, &disk) < 0)
        return err_sys(err, "look at the disk");
    for (uint32_t i = 0; i < count; i++) {
        struct box *box = box_find(native, which[i].id);
        struct err why;
        if (!box || box->state != BOX_RUNNING)
            continue;
        if (!usage_read(native->cgroups, box->id, box->pid, &usage, &why)) {
            log_debug("native: %s", err_text(&why)); /* it may be dying */
            continue;
        }
        out[found] = (struct stats){
            .cpu_us = usage.cpu_us,
            .memory_used_bytes = usage.memory_used_bytes,
            .memory_cache_bytes = usage.memory_cache_bytes,
            .memory_limit_bytes = usage.memory_limit_bytes,
            .disk_used_bytes = (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            .disk_total_bytes = disk.f_blocks * disk.f_frsize,
        };
        memcpy(out[found++].id, box->id, sizeof box->id);
    }
    *out_count = found;
    return true;
}

static void native_dial(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct err err = { 0 };
    struct box *box = box_find_awake(native, id, &err);
    int fd = -1;

    if (box) {
        /* Before the connection: guestd looks for a zygote as soon as it has read a request. */
        if (port == ZYGOTE_CODE_PORT && box->zygote)
            give_zygote(box);
        /* Connected here: front parses what strangers send, so its seccomp filter has no connect(). */
        fd = network_socket(native->netns_fd, box->pidfd, &err);
    }
    if (fd >= 0 && !dial_loopback(fd, port, &err))
        fd_close(&fd);
    if (fd >= 0)
        box->is_untouched = false;
    done(context, fd, fd < 0 ? &err : NULL);
}

/* A socket belongs to the network it was made in, so keeper binds it from outside. */
static bool listen_on(int fd, const struct listen_at *at, struct err *err)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(at->port),
                                         .sin_addr.s_addr = htonl(at->address) };
    const int on = 1;

    /* Connections of an earlier socket that are still closing must not hold the port. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
        return err_sys(err, "SO_REUSEADDR");
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 && listen(fd, at->backlog) == 0)
        return true;
    if (errno == EADDRINUSE)
        return err_set(err, ERR_CONFLICT, "port %u is in use inside the sandbox", at->port);
    return err_sys(err, "listen on port %u inside the sandbox", at->port);
}

static void native_listen(struct driver *driver, const char *id, const struct listen_at *at, driver_socket_fn *done,
                          void *context)
{
    struct native *native = native_of(driver);
    struct err err = { 0 };
    struct box *box = box_find_awake(native, id, &err);
    int fd = -1;

    if (box)
        fd = network_socket(native->netns_fd, box->pidfd, &err);
    if (fd >= 0 && !listen_on(fd, at, &err))
        fd_close(&fd);
    done(context, fd, fd < 0 ? &err : NULL);
}

static bool native_divert(struct driver *driver, const char *id, int out_fds[DIVERT_KINDS], struct err *err)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);

    if (!box || box->state != BOX_RUNNING)
        return err_set(err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    return network_divert(native->netns_fd, box->pidfd, box->network, out_fds, err);
}

static void native_free(struct driver *driver)
{
    struct native *native = native_of(driver);
    struct box *box;

    native->is_stopping = true;
    kernel_memory_close(native);
    for (size_t i = 0; (box = map_next(&native->boxes, &i));)
        box_free(box);
    map_done(&native->boxes);
    reclaim_close(native);
    snapshots_close(native);
    measures_close(native);
    compress_close(native);
    unpackings_close(native);
    helpers_free(native->helpers);
    memory_close(native);
    zygotes_free(native->zygotes);
    drains_free(native->drains);
    trash_free(native->trash);
    /* Our cgroup directories go with the last sandbox. */
    cgroups_remove(native->cgroups);
    mounts_close(&native->mounts);
    free(native->filter.filter);
    if (native->network != NETWORK_NONE)
        network_rules_done(&native->rules);
    fd_close(&native->guestd_fd);
    fd_close(&native->enter_fd);
    fd_close(&native->netns_fd);
    fd_close(&native->layers_fd);
    fd_close(&native->sandboxes_fd);
    fd_close(&native->snapshots_fd);
    fd_close(&native->trash_fd);
    fd_close(&native->data_fd);
    free(native);
}

static const struct driver_ops native_ops = {
    .name = "native",
    .start = native_start,
    .start_later = native_start_later,
    .start_cancel = native_start_cancel,
    .stop = native_stop, /* and no stop_wait: there is no thread that could */
    .list = native_list,
    .link = native_link,
    .warm = native_warm,
    .stats = native_stats,
    .dial = native_dial,
    .listen = native_listen,
    .freeze = native_freeze,
    .thaw = native_thaw,
    .park = native_park,
    .snapshot = native_snapshot,
    .seal = native_seal,
    .copy = native_copy,
    .drop = native_drop,
    .list_snapshots = native_list_snapshots,
    .unpack = native_unpack,
    .measure = native_measure,
    .divert = native_divert,
    .free = native_free,
};

/* ---- coming up ---- */

static bool copy_guestd(int from_fd, int fd, struct err *err)
{
    struct stat st;

    if (fstat(from_fd, &st) < 0)
        return err_sys(err, "look at guestd");
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > GUESTD_BYTES_MAX)
        return err_set(err, ERR_INVALID, "guestd is not a program");
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = sendfile(fd, from_fd, &at, (size_t)(st.st_size - at));
        if (n < 0)
            return err_sys(err, "copy guestd");
        if (n == 0)
            return err_set(err, ERR_CONFLICT, "guestd became shorter while it was copied");
    }
    if (fchmod(fd, 0555) < 0)
        return err_sys(err, "chmod guestd");
    return true;
}

static bool write_enter(int mount_fd, struct err *err)
{
    auto_close int fd = openat(mount_fd, NATIVE_ENTER, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0500);

    if (fd < 0)
        return err_sys(err, "make a file for " NATIVE_ENTER);
    if (!fd_write_all(fd, str_of(zygotes_enter_so, zygotes_enter_so_size), err))
        return false;
    return fchmod(fd, 0555) == 0 || err_sys(err, "chmod " NATIVE_ENTER);
}

/*
 * guestd runs from a copy, not from its file: /proc/<pid>/exe inside leads to what a process was started from, and a guest
 * that opens that for writing would replace the host's program (CVE-2019-5736). The copy is in a file system of its own,
 * which is read-only once it is there. It is in no mount table, so that no guest can make it writable again, and its owner is
 * no user of any sandbox. Sealed memory would do as well, but a process that runs from it cannot be brought back from an
 * image of its memory. The same is true of enter.so, which interpreters from a zygote have mapped.
 */
static bool open_guestd(struct native *native, int from_fd, struct err *err)
{
    const struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
    auto_close int context = fsopen("tmpfs", FSOPEN_CLOEXEC);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", "guestd", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "make a tmpfs for guestd");
    auto_close int mount_fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    auto_close int fd = mount_fd < 0 ? -1 : openat(mount_fd, "guestd", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0500);
    if (fd < 0)
        return err_sys(err, "make a file for guestd");
    if (!copy_guestd(from_fd, fd, err) || !write_enter(mount_fd, err))
        return false;
    fd_close(&fd); /* what is open for writing cannot be executed */
    auto_close int super = fspick(mount_fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
    if (super < 0 || fsconfig(super, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0 ||
        fsconfig(super, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0 ||
        mount_setattr(mount_fd, "", AT_EMPTY_PATH, (struct mount_attr *)&read_only, sizeof read_only) < 0)
        return err_sys(err, "make guestd's file system read-only");
    native->guestd_fd = openat(mount_fd, "guestd", O_RDONLY | O_CLOEXEC);
    native->enter_fd = openat(mount_fd, NATIVE_ENTER, O_RDONLY | O_CLOEXEC);
    if (native->guestd_fd < 0 || native->enter_fd < 0)
        return err_sys(err, "open guestd");
    return true;
}

static int open_dir_made(int data_fd, const char *name, struct err *err)
{
    if (mkdirat(data_fd, name, 0700) < 0 && errno != EEXIST) {
        (void)err_sys(err, "make directory %s", name);
        return -1;
    }
    int fd = openat(data_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && fchmod(fd, 0700) == 0)
        return fd;
    (void)err_sys(err, "open directory %s", name);
    fd_close(&fd);
    return -1;
}

/*
 * A lock is held as long as any process has its descriptor. A child of a keeper that was killed in the middle of a start
 * has it for a moment longer, so we try for a while.
 */
static bool lock_sandboxes(struct native *native, struct err *err)
{
    for (int waited_ms = 0; flock(native->sandboxes_fd, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_RETRY_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_sys(err, "lock the data directory");
        if (waited_ms >= LOCK_MS)
            return err_set(err, ERR_CONFLICT,
                           "another cloister uses this data directory; stop it, or choose another with --data");
        (void)usleep(LOCK_RETRY_MS * 1000);
    }
    return true;
}

/*
 * For ext4: directories made in here have nothing to do with each other, so put each into a group of its own. Otherwise
 * the inodes of all sandboxes come from one, and without a journal ext4 gives none out again for minutes: each new file
 * of the next sandbox searches past all files of the last. Other file systems have no such flag and no such trouble.
 */
static void spread_entries(int dir_fd)
{
    int flags;

    if (ioctl(dir_fd, FS_IOC_GETFLAGS, &flags) < 0)
        return;
    flags |= FS_TOPDIR_FL;
    if (ioctl(dir_fd, FS_IOC_SETFLAGS, &flags) < 0)
        log_debug("native: sandboxes are not spread over the disk: %s", strerror(errno));
}

static bool open_dirs(struct native *native, int data_fd, struct err *err)
{
    native->data_fd = fcntl(data_fd, F_DUPFD_CLOEXEC, 3);
    if (native->data_fd < 0)
        return err_sys(err, "keep the data directory");
    native->layers_fd = open_dir_made(data_fd, "layers", err);
    native->sandboxes_fd = native->layers_fd < 0 ? -1 : open_dir_made(data_fd, "sandboxes", err);
    native->snapshots_fd = native->sandboxes_fd < 0 ? -1 : open_dir_made(data_fd, "snapshots", err);
    native->trash_fd = native->snapshots_fd < 0 ? -1 : open_dir_made(data_fd, "trash", err);
    if (native->trash_fd < 0)
        return false;
    spread_entries(native->sandboxes_fd);
    return lock_sandboxes(native, err);
}

/* Several servers share a machine's cgroup trees: each data directory has a name of its own in them. */
static bool open_cgroups(struct native *native, bool old_freezer, struct err *err)
{
    char name[64];
    struct stat st;

    if (fstat(native->data_fd, &st) < 0)
        return err_sys(err, "look at the data directory");
    (void)snprintf(name, sizeof name, "cloister.%jx.%jx", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    native->cgroups = cgroups_open(name, native->data_fd, old_freezer, err);
    if (native->cgroups && cgroups_report(native->cgroups)->freezer == CGROUP_FREEZER_NONE)
        log_warn("native: sandboxes cannot be paused in memory: there is no cgroup freezer that we can use");
    return native->cgroups != NULL;
}

/* Without it sandboxes work too, only the first cell is slower. */
static void open_zygote(struct native *native)
{
    struct err err;
    struct zygotes_config config = { .loop = native->loop,
                                     .mounts = &native->mounts,
                                     .cgroups = native->cgroups,
                                     .layers_fd = native->layers_fd,
                                     .enter_fd = native->enter_fd,
                                     .no_landlock = native->memory.tools_fd >= 0,
                                     .uids_from = native->uid_base,
                                     .uids_to = native->uid_base + BOX_SLOTS * NATIVE_UIDS };

    native->zygotes = zygotes_new(&config, &err);
    if (!native->zygotes)
        log_warn("native: warm Python is off for all sandboxes, using the slower start: %s", err_text(&err));
}

/* Without it sandboxes work too, and reach nothing outside. */
static void open_network(struct native *native)
{
    struct err why;

    native->network = network_try(native->netns_fd, &native->rules, &why);
    if (native->network == NETWORK_NONE)
        log_warn(
            "native: sandboxes have no network here, because the kernel lacks nf_tables with tproxy and reject, or "
            "refuses it: %s",
            err_text(&why));
    else if (native->network == NETWORK_IPV4)
        log_info("native: sandboxes have IPv4 and no IPv6: %s", err_text(&why));
}

/* Limits for all sandboxes together; those of each are set by child.c and the cgroups. */
static void raise_host_limit(const char *path, unsigned least)
{
    auto_free char *text = NULL;
    struct err err;
    char value[16];

    (void)snprintf(value, sizeof value, "%u", least);
    if (!fd_read_file(AT_FDCWD, path, 64, &text, NULL, &err) ||
        (strtoul(text, NULL, 10) < least && !fd_write_file(AT_FDCWD, path, str_from(value), &err)))
        log_warn("native: cannot raise %s; guests may reach it: %s", path, err_text(&err));
}

/*
 * Limits on what all sandboxes of a template use together (shed.c). Those that we have when we make a user namespace
 * apply to it. They need not limit anything: the memory is charged to the guests.
 */
static void raise_own_limits(void)
{
    static const int resources[] = { RLIMIT_NPROC, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_MEMLOCK };
    const struct rlimit none = { .rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY };

    for (size_t i = 0; i < COUNT_OF(resources); i++)
        if (setrlimit(resources[i], &none) < 0)
            log_debug("native: limit %d stays as it is: %s", resources[i], strerror(errno)); /* no CAP_SYS_RESOURCE */
}

bool native_enter_mount_namespace(struct err *err)
{
    if (unshare(CLONE_NEWNS) < 0)
        return err_sys(err, "make a mount namespace");
    /* A slave, not private: a file system that the host unmounts would otherwise stay busy here until keeper ends. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return err_sys(err, "keep our mounts from the host");
    return true;
}

static void left_pages(void *context, const char *id)
{
    box_left_pages(context, id);
}

struct driver *native_driver_new(struct loop *loop, const struct native_config *config, struct err *err)
{
    struct native *native = NEW(struct native);

    native->driver.ops = &native_ops;
    native->loop = loop;
    native->uid_base = config->uid_base ? config->uid_base : NATIVE_UID_BASE;
    native->fail_at = config->fail_at;
    native->data_fd = native->layers_fd = native->sandboxes_fd = native->snapshots_fd = native->trash_fd = -1;
    native->on_unused = config->on_unused;
    native->on_unused_context = config->on_unused_context;
    native->guestd_fd = native->netns_fd = native->mounts.scratch_fd = native->kernel_memory.meminfo_fd = -1;
    native->kernel_memory.shrink_fd = native->kernel_memory.list_fd = native->reclaim.pidfd = native->child_gate_fd =
        -1;
    native->memory.tools_fd = native->memory.known_fd = native->memory.learning_fd = native->enter_fd = -1;
    map_init(&native->boxes);
    compress_open(native, config->compress_after_ms);
    native->doomed_end = &native->doomed;
    if (native->uid_base < NATIVE_UIDS || native->uid_base > INT32_MAX - BOX_SLOTS * NATIVE_UIDS) {
        (void)err_set(err, ERR_INVALID, "user ids for sandboxes cannot start at %" PRIu32, native->uid_base);
        goto failed;
    }
    if (!open_dirs(native, config->data_fd, err) || !state_boot_id(native->boot_id, err) ||
        !open_guestd(native, config->guestd_fd, err) || !open_cgroups(native, config->old_freezer, err) ||
        !mounts_open(native->data_fd, &native->mounts, err) || !kernel_memory_open(native, err))
        goto failed;
    native->mounts.old_overlay = config->old_overlay;
    native->netns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (native->netns_fd < 0) {
        (void)err_sys(err, "open our own network namespace");
        goto failed;
    }
    if (!config->no_network)
        open_network(native);
    raise_own_limits();
    raise_host_limit("/proc/sys/fs/inotify/max_user_instances", HOST_INOTIFY_INSTANCES);
    raise_host_limit("/proc/sys/fs/inotify/max_user_watches", HOST_INOTIFY_WATCHES);
    raise_host_limit("/proc/sys/kernel/pid_max", HOST_PIDS);
    raise_host_limit("/proc/sys/fs/file-max", HOST_FILES);
    raise_host_limit("/proc/sys/kernel/pty/max", HOST_TERMINALS);
    native->trash = trash_new(loop, native->trash_fd);
    native->drains = drains_new(loop, native->cgroups, native->trash, left_pages, native);
    native->helpers = helpers_new(loop, err);
    if (!native->helpers || !snapshots_open(native, err))
        goto failed;
    memory_open(native, config->criu);
    if (!seccomp_guest_filter(native->memory.tools_fd >= 0, &native->filter, err))
        goto failed;
    open_zygote(native);
    if (native_find_again(native, err))
        return &native->driver;
failed:
    (void)err_wrap(err, "native driver");
    native_free(&native->driver);
    return NULL;
}

void native_empty_trash(struct driver *driver)
{
    trash_empty(native_of(driver)->trash);
}

bool native_reach(const struct native *native, enum native_step step, struct err *err)
{
    if (native->die_at == step && step)
        (void)kill(getpid(), SIGKILL);
    if (native->fail_at == step)
        return err_set(err, ERR_INTERNAL, "failed on purpose at step %d", step);
    return true;
}

void native_die_at(struct driver *driver, enum native_step step)
{
    native_of(driver)->die_at = step;
}

void native_fail_at(struct driver *driver, enum native_step step)
{
    native_of(driver)->fail_at = step;
}

void native_gate_children(struct driver *driver, int fd)
{
    native_of(driver)->child_gate_fd = fd;
}

void native_dump_within(struct driver *driver, uint64_t ms)
{
    native_of(driver)->memory.dump_ms = ms;
}

int native_zygote_of(struct driver *driver, const char *id)
{
    struct box *box = box_find(native_of(driver), id);

    return box ? zygote_pid(box->zygote) : -1;
}

int native_pid_of(struct driver *driver, const char *id)
{
    struct box *box = box_find(native_of(driver), id);

    return box && box->pid ? box->pid : -1;
}
