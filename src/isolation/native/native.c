/*
 * Theory of operation.
 *
 * A start, in keeper (child.c has the other half):
 *   record    sandboxes/<id>/ with a state that has a slot and no pid yet
 *   cgroup    both leaves, limits set, before there is anything to limit
 *   clone     user, mount, pid, net, ipc and uts namespaces, owned by who may enter them later (nursery.h); the child
 *             waits
 *   link      guestd's private door: a connection over the new loopback, made before anybody is there (network.c)
 *   maps      ids 0..65535 inside are the slot's own range outside; nothing inside is the host's root
 *   mounts    root, devices, empty directory: detached, seen through those ids
 *   hold      the child is put into its guestd cgroup, its pid into the state
 *   go        the child gets the mounts, builds its tree, and becomes guestd
 *
 * Killed at any moment, keeper leaves nothing that its successor cannot find. Before `go` the child waits on a socket
 * whose other end dies with keeper, and follows. From `hold` on it is in a cgroup that carries the sandbox's id, and
 * the state has its pid. The record is made before anything else and removed after everything else; a cgroup without a
 * record can only be the remains of one whose directory had been taken away. So: a record whose process runs, in its
 * own cgroup, is a sandbox and is adopted; everything else is killed by cgroup and swept.
 *
 * There is no PDEATHSIG: sandboxes outlive keeper on purpose. Its end of everything is a name: cgroup, state.
 *
 * The end of a sandbox is its pid 1's end: the kernel kills all of a pid namespace with its init, and reports that end
 * only when all are gone. The pidfd says so, for a child of ours and for an adopted one alike.
 *
 * Between the kill and that end a guest decides how long it takes: a file of millions of extents, open and unlinked, is
 * taken apart by the dying process, for minutes if it likes. Keeper has one thread and never waits for it. Who asked
 * for the stop is remembered in the box and answered from the pidfd or from a timer, whichever comes first; the slot,
 * the cgroups and the directory stay taken until the end has really come; and the state says `dying`, so that the next
 * keeper does not take what it finds for a sandbox that runs.
 */
#include "isolation/native/native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/dial.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/child.h"
#include "isolation/native/mounts.h"
#include "isolation/native/network.h"
#include "isolation/native/nursery.h"
#include "isolation/native/seccomp.h"
#include "isolation/native/state.h"
#include "isolation/native/trash.h"
#include "isolation/native/usage.h"
#include "privsep/message.h"
#include "wire/nursery.h"

#ifndef MFD_EXEC /* newer than some C libraries */
#define MFD_EXEC 0x0010u
#endif

enum {
    SLOTS = LIMIT_SANDBOXES + 64, /* some more than may live, for those being cleared away */
    WAITS_MAX = 64,               /* for the end of one sandbox; who comes later is told at once that it is not gone */
    /*
     * From `go` to guestd, the one wait of keeper for a child. It is not the guest's to stretch: all that runs is
     * native_child(), on mounts of trusted templates and in a tree that no guest has written to; it takes about a
     * millisecond. On a machine so busy that it takes longer than this, a start that fails is the better answer.
     */
    CHILD_MS = 5000,
    CHILD_LOOK_MS = 20, /* then look whether somebody holds it up */
    CLEAR_RETRY_MS = 10,
    CLEAR_TRIES = 500, /* then the slot is lost until keeper starts again, and the log says so */
    LOCK_MS = 2000,
    LOCK_RETRY_MS = 20,
    GUESTD_BYTES_MAX = 64 << 20,
    HOST_INOTIFY_INSTANCES = 1 << 17, /* 64 for each of LIMIT_SANDBOXES, and the host's own */
    HOST_INOTIFY_WATCHES = 1 << 20,
    HOST_PIDS = 1 << 20, /* the usual 32,768 are gone with 32 sandboxes at their limit */
};

/*
 * STARTING  known to nobody yet; its failure is its end
 * RUNNING   pid 1 runs
 * DYING     pid 1 has been killed and has not ended yet; neither listed nor dialed any more
 * CLEARING  pid 1 is gone; cgroups or directory are still to be removed, and the slot is not free
 */
enum box_state { BOX_STARTING, BOX_RUNNING, BOX_DYING, BOX_CLEARING };

/* Somebody who has asked for the end of a box and wants to hear of it. */
struct wait {
    struct wait *next;
    struct box *box;
    struct timer patience;
    driver_stopped_fn *done;
    void *context;
};

struct box {
    struct native *native;
    char id[LIMIT_ID_BYTES];
    enum box_state state;
    uint32_t slot;
    pid_t pid;
    int pidfd;
    struct watch *watch;
    bool ran; /* its end is worth telling */
    struct wait *waits;
    unsigned wait_count;
    struct breed *breed; /* NULL: it has no nursery, or was found again */
    int door_fd;         /* ours until the nursery has it; -1 */
    struct timer retry;
    unsigned tries;
};

struct native {
    struct driver driver;
    struct loop *loop;
    int data_fd, layers_fd, sandboxes_fd, trash_fd;
    int guestd_fd; /* sealed memory: see seal_guestd() */
    int netns_fd;  /* our own, to come back to */
    struct mounts mounts;
    struct cgroups *cgroups;
    struct sock_fprog filter;
    struct trash *trash;
    struct nursery *nursery; /* may be NULL */
    struct map boxes;        /* by id */
    bool slot_taken[SLOTS];
    uint32_t uid_base;
    char boot_id[BOOT_ID_BYTES];
    enum native_step fail_at;
};

static struct native *native_of(struct driver *driver)
{
    return container_of(driver, struct native, driver);
}

static bool reach(const struct native *native, enum native_step step, struct err *err)
{
    if (native->fail_at == step)
        return err_set(err, ERR_INTERNAL, "failed on purpose at step %d", step);
    return true;
}

/* ---- boxes and slots ---- */

static bool slot_take(struct native *native, uint32_t *out_slot, struct err *err)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (!native->slot_taken[slot]) {
            native->slot_taken[slot] = true;
            *out_slot = slot;
            return true;
        }
    }
    return err_set(err, ERR_LIMIT, "there are %d sandboxes already", SLOTS);
}

static struct box *box_new(struct native *native, const char *id)
{
    struct box *box = NEW(struct box);

    box->native = native;
    box->pidfd = box->door_fd = -1;
    (void)snprintf(box->id, sizeof box->id, "%s", id);
    return box;
}

/* Each is told once, and is out of the list before that: the telling may ask again. */
static void wait_over(struct wait *wait, bool gone, const struct err *err)
{
    struct wait **at = &wait->box->waits;

    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    wait->box->wait_count--;
    timer_clear(&wait->patience);
    wait->done(wait->context, gone, err);
    free(wait);
}

static void box_free(void *object)
{
    struct box *box = object;
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "keeper ends");
    for (struct wait *wait = box->waits, *next; wait; wait = next) {
        next = wait->next;
        wait_over(wait, false, &err);
    }
    timer_clear(&box->retry);
    watch_free(box->watch);
    fd_close(&box->pidfd);
    fd_close(&box->door_fd);
    breed_unref(box->breed);
    free(box);
}

static struct box *box_find(struct native *native, const char *id)
{
    return map_get(&native->boxes, str_from(id));
}

/* ---- the end of a sandbox ---- */

/* Cgroups and directory. False: something still holds on, try again. */
static bool clear_remains(struct native *native, const char *id, struct err *err)
{
    /* The directory first: a crash between the two leaves a cgroup without a record, which the next start sweeps. */
    if (!trash_add(native->trash, native->sandboxes_fd, id, err))
        return false;
    if (cgroup_remove(native->cgroups, id, err))
        return true;
    (void)cgroup_kill(native->cgroups, id); /* nothing of it should live any more; make sure */
    return false;
}

static void box_clear(struct box *box);

static void clear_again(struct timer *timer)
{
    box_clear(container_of(timer, struct box, retry));
}

static void box_clear(struct box *box)
{
    struct native *native = box->native;
    struct err err;

    if (!clear_remains(native, box->id, &err)) {
        if (++box->tries < CLEAR_TRIES) {
            timer_set(&box->retry, native->loop, CLEAR_RETRY_MS, clear_again);
            return;
        }
        log_error("native: remains of sandbox %s stay until the next start: %s", box->id, err_text(&err));
    } else {
        native->slot_taken[box->slot] = false; /* only now can nothing with these ids run any more */
    }
    (void)map_remove(&native->boxes, str_from(box->id));
    breed_unref(take_ptr(&box->breed)); /* now: the box may outlive the nursery by a turn */
    loop_retire(native->loop, box, box_free);
}

static void box_reap(struct box *box)
{
    siginfo_t how;

    /* ECHILD for an adopted one: its parent reaps it. */
    (void)waitid((idtype_t)P_PIDFD, (id_t)box->pidfd, &how, WEXITED | WNOHANG);
    watch_free(box->watch);
    box->watch = NULL;
    fd_close(&box->pidfd);
    fd_close(&box->door_fd);
    box->pid = 0;
}

/* Its pid 1 has ended. */
static void box_gone(struct box *box)
{
    struct native *native = box->native;
    char id[LIMIT_ID_BYTES];

    memcpy(id, box->id, sizeof id);
    bool ran = box->ran;
    /* One that was told to end did so, even if it was short of memory before. */
    enum exit_cause cause =
        box->state == BOX_RUNNING && cgroup_guestd_oom_kills(native->cgroups, id) ? EXIT_NO_MEMORY : EXIT_PLAIN;
    box_reap(box);
    box->state = BOX_CLEARING;
    while (box->waits)
        wait_over(box->waits, true, NULL);
    box_clear(box);
    if (ran && native->driver.exited)
        native->driver.exited(native->driver.exited_context, id, cause);
}

static bool process_ended(int pidfd, int timeout_ms)
{
    struct pollfd waiting = { .fd = pidfd, .events = POLLIN };
    int n;

    do {
        n = poll(&waiting, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

static void process_ready(void *context, unsigned ready)
{
    struct box *box = context;

    (void)ready;
    if ((box->state == BOX_RUNNING || box->state == BOX_DYING) && process_ended(box->pidfd, 0))
        box_gone(box);
}

/* RUNNING or DYING: either way its end comes by the pidfd. */
static void box_watch(struct box *box, enum box_state state)
{
    box->state = state;
    box->watch = watch_new(box->native->loop, box->pidfd, process_ready, box);
    watch_want(box->watch, WATCH_READ);
}

static bool mark_dying(const struct box *box, struct err *err)
{
    auto_close int sandbox_fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct state state;

    if (sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", box->id);
    auto_close int fd = openat(sandbox_fd, "state", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, "open state");
    if (!state_read(sandbox_fd, &state, err))
        return false;
    state.dying = true;
    return state_write(fd, &state, err);
}

static bool box_kill(struct box *box, struct err *err)
{
    /* In this order: a keeper that dies in between leaves one that is ended again, not one that comes back to life. */
    if (!mark_dying(box, err))
        log_warn("native: sandbox %s: not marked as dying: %s", box->id, err_text(err));
    if (pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return err_sys(err, "kill sandbox %s", box->id);
    box->state = BOX_DYING;
    return true;
}

static void patience_over(struct timer *timer)
{
    wait_over(container_of(timer, struct wait, patience), false, NULL);
}

static void native_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                        void *context)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);
    struct err err;

    if (!box || box->state == BOX_CLEARING) {
        done(context, true, NULL); /* gone already, or nothing but its remains */
    } else if (box->state == BOX_RUNNING && !box_kill(box, &err)) {
        done(context, false, &err);
    } else if (box->wait_count == WAITS_MAX) {
        done(context, false, NULL);
    } else {
        struct wait *wait = NEW(struct wait);
        *wait = (struct wait){ .next = box->waits, .box = box, .done = done, .context = context };
        box->waits = wait;
        box->wait_count++;
        timer_set(&wait->patience, native->loop, patience_ms, patience_over);
    }
}

/* ---- start ---- */

/* What one start holds; whatever is still here at its end goes. */
struct start {
    struct native *native;
    const struct plan *plan;
    struct box *box;
    int sandbox_fd, state_fd;
    int link_fd;       /* guestd's end of guestlink */
    int host_link_fd;  /* and the one that our caller gets */
    int control_fd[2]; /* ours, the child's */
    int door_fd;       /* guestd's end; ours is the box's */
    int userns_fd;
    int mount_fds[CHILD_MOUNTS];
    int cgroup_fds[CGROUP_CONTROL_COUNT];
    size_t cgroup_count;
};

static void start_close(struct start *start)
{
    fd_close(&start->sandbox_fd);
    fd_close(&start->state_fd);
    fd_close(&start->link_fd);
    fd_close(&start->host_link_fd);
    fd_close(&start->control_fd[0]);
    fd_close(&start->control_fd[1]);
    fd_close(&start->door_fd);
    fd_close(&start->userns_fd);
    for (size_t i = 0; i < CHILD_MOUNTS; i++)
        fd_close(&start->mount_fds[i]);
    for (size_t i = 0; i < start->cgroup_count; i++)
        fd_close(&start->cgroup_fds[i]);
}

static bool start_record(struct start *start, struct err *err)
{
    struct native *native = start->native;
    const char *id = start->box->id;
    struct state state = { .slot = start->box->slot };

    memcpy(state.boot_id, native->boot_id, sizeof state.boot_id);
    if (mkdirat(native->sandboxes_fd, id, 0700) < 0)
        return err_sys(err, "make the directory of sandbox %s", id);
    start->sandbox_fd = openat(native->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (start->sandbox_fd < 0)
        return err_sys(err, "open the directory of sandbox %s", id);
    start->state_fd = openat(start->sandbox_fd, "state", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (start->state_fd < 0)
        return err_sys(err, "create state");
    if (!state_write(start->state_fd, &state, err))
        return false;
    /* upper is what "/" looks like inside. */
    if (mkdirat(start->sandbox_fd, "upper", 0755) < 0 || mkdirat(start->sandbox_fd, "work", 0700) < 0)
        return err_sys(err, "make upper and work");
    return reach(native, NATIVE_AT_RECORD, err);
}

static bool start_cgroup(struct start *start, struct err *err)
{
    const struct plan *plan = start->plan;
    const struct cgroup_limits limits = { .memory_bytes = plan->memory_bytes,
                                          .cpu_millis = plan->cpu_millis,
                                          .pids = plan->pids };

    return cgroup_make(start->native->cgroups, plan->id, &limits, err) &&
           cgroup_open_user(start->native->cgroups, plan->id, start->cgroup_fds, &start->cgroup_count, err) &&
           reach(start->native, NATIVE_AT_CGROUP, err);
}

static bool start_sockets(struct start *start, struct err *err)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start->control_fd) < 0)
        return err_sys(err, "socketpair");
    if (start->box->breed) {
        int pair[2];
        if (!door_open(pair, err))
            return false;
        start->box->door_fd = pair[0];
        start->door_fd = pair[1];
    }
    return reach(start->native, NATIVE_AT_SOCKETS, err);
}

/*
 * A user namespace belongs to the effective user who makes it: for the length of one clone that is its breed's owner.
 * NO_SETUID_FIXUP keeps our capabilities; see ids_borrow() in mounts.c.
 */
static pid_t clone_as(uint32_t owner, struct clone_args *args, struct err *err)
{
    int securebits = prctl(PR_GET_SECUREBITS);

    if (securebits < 0 || prctl(PR_SET_SECUREBITS, securebits | SECBIT_NO_SETUID_FIXUP) < 0 ||
        setresuid((uid_t)-1, owner, (uid_t)-1) < 0) {
        (void)err_sys(err, "borrow the owner of a sandbox");
        return -1;
    }
    /* The child is a copy of us which that owner has power over: she must not be able to look into it. */
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_GET_DUMPABLE) != 0) {
        log_error("native: a copy of keeper would be readable");
        abort();
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0)
        return 0; /* a new user namespace has neither these ids nor these bits */
    int number = errno;
    if (setresuid((uid_t)-1, 0, (uid_t)-1) < 0 || geteuid() != 0 || prctl(PR_SET_SECUREBITS, securebits) < 0) {
        /* Everything we do next would be done as somebody who has no right to it. */
        log_error("native: cannot return to user 0: %s", strerror(errno));
        abort();
    }
    if (pid < 0)
        (void)err_sys_num(err, number, "make the namespaces of a sandbox");
    return pid;
}

static bool start_clone(struct start *start, struct err *err)
{
    struct native *native = start->native;
    struct clone_args args = {
        .flags = CLONE_PIDFD | CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
        .pidfd = (uint64_t)(uintptr_t)&start->box->pidfd,
        .exit_signal = SIGCHLD,
    };
    struct child_setup setup = {
        .keeper_fd = start->control_fd[0],
        .control_fd = start->control_fd[1],
        .guestd_fd = native->guestd_fd,
        .door_fd = start->door_fd,
        .cgroup_count = start->cgroup_count,
        .hostname = start->plan->hostname,
        .memory_bytes = start->plan->memory_bytes,
        .filter = &native->filter,
        .fail_at = native->fail_at,
    };
    memcpy(setup.cgroup_fds, start->cgroup_fds, sizeof setup.cgroup_fds);

    pid_t pid = clone_as(breed_owner(start->box->breed), &args, err);
    if (pid == 0)
        native_child(&setup);
    if (pid < 0) {
        start->box->pidfd = -1;
        return false;
    }
    start->box->pid = pid;
    /* Only the child may hold its end, or we would not notice its end. */
    fd_close(&start->control_fd[1]);
    return reach(native, NATIVE_AT_CLONE, err);
}

static bool start_link(struct start *start, struct err *err)
{
    struct native *native = start->native;

    return network_link(native->netns_fd, start->box->pidfd, &start->host_link_fd, &start->link_fd, err) &&
           reach(native, NATIVE_AT_LINK, err);
}

static uint32_t first_uid(const struct start *start)
{
    return start->native->uid_base + start->box->slot * NATIVE_UIDS;
}

static bool start_maps(struct start *start, struct err *err)
{
    char dir[32], map[64];

    (void)snprintf(dir, sizeof dir, "/proc/%d", start->box->pid); /* ours and not reaped: the number is not reused */
    auto_close int proc_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc_fd < 0)
        return err_sys(err, "open %s", dir);
    (void)snprintf(map, sizeof map, "0 %" PRIu32 " %d", first_uid(start), NATIVE_UIDS);
    if (!fd_write_file(proc_fd, "uid_map", str_from(map), err) ||
        !fd_write_file(proc_fd, "gid_map", str_from(map), err))
        return err_wrap(err, "map the ids of sandbox %s", start->plan->id);
    start->userns_fd = openat(proc_fd, "ns/user", O_RDONLY | O_CLOEXEC);
    if (start->userns_fd < 0)
        return err_sys(err, "open the user namespace");
    return reach(start->native, NATIVE_AT_MAPS, err);
}

static bool start_mounts(struct start *start, struct err *err)
{
    struct native *native = start->native;
    const struct mounts_ids ids = { .userns_fd = start->userns_fd, .uid_base = first_uid(start) };

    return mounts_overlay(&native->mounts, native->layers_fd, start->sandbox_fd, start->plan, &ids,
                          &start->mount_fds[0], err) &&
           reach(native, NATIVE_AT_OVERLAY, err) && mounts_devices(&native->mounts, &ids, &start->mount_fds[1], err) &&
           mounts_empty(&native->mounts, &ids, &start->mount_fds[2], err) && reach(native, NATIVE_AT_DEVICES, err);
}

static bool start_hold(struct start *start, struct err *err)
{
    struct box *box = start->box;
    struct state state = { .slot = box->slot, .pid = box->pid };

    memcpy(state.boot_id, start->native->boot_id, sizeof state.boot_id);
    return cgroup_hold(start->native->cgroups, box->id, box->pid, err) &&
           state_process_start_time(box->pid, &state.start_time, err) && state_write(start->state_fd, &state, err) &&
           reach(start->native, NATIVE_AT_HOLD, err);
}

static bool start_go(struct start *start, struct err *err)
{
    char byte = CHILD_GO;
    int fds[CHILD_FDS];
    struct iovec piece = { .iov_base = &byte, .iov_len = 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CHILD_FDS * sizeof(int))];
    } room = { 0 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    memcpy(fds, start->mount_fds, sizeof start->mount_fds);
    fds[CHILD_MOUNTS] = start->link_fd;
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    if (sendmsg(start->control_fd[0], &message, MSG_NOSIGNAL) < 0)
        return err_sys(err, "say go");
    /* The child holds them now; ours would keep the overlay mounted and guestlink open after its end. */
    fd_close(&start->link_fd);
    for (size_t i = 0; i < CHILD_MOUNTS; i++)
        fd_close(&start->mount_fds[i]);
    return reach(start->native, NATIVE_AT_GO, err);
}

/* Nothing of ours sends such a signal, but a mother has the power to. */
static bool is_stopped(int pidfd)
{
    siginfo_t how = { 0 };

    return waitid((idtype_t)P_PIDFD, (id_t)pidfd, &how, WSTOPPED | WNOHANG | WNOWAIT) == 0 && how.si_pid != 0;
}

/* A packet from the child. False with ERR_UNAVAILABLE at end-of-file. */
static bool hear_child(struct start *start, uint64_t until_ms, char *room, size_t room_size, size_t *out_len,
                       struct err *err)
{
    struct pollfd waiting = { .fd = start->control_fd[0], .events = POLLIN };
    int ready;

    do {
        uint64_t now_ms = clock_mono_ms();
        ready = poll(&waiting, 1, now_ms < until_ms ? (int)MIN(until_ms - now_ms, (uint64_t)CHILD_LOOK_MS) : 0);
        if (ready == 0 && is_stopped(start->box->pidfd)) {
            breed_bar(start->box->breed);
            return err_set(err, ERR_INTERNAL, "somebody has stopped it");
        }
    } while ((ready < 0 && errno == EINTR) || (ready == 0 && clock_mono_ms() < until_ms));
    if (ready < 0)
        return err_sys(err, "wait for the child");
    if (ready == 0)
        return err_set(err, ERR_TIMEOUT, "the sandbox did not start in %d seconds", CHILD_MS / 1000);
    ssize_t n = recv(start->control_fd[0], room, room_size, 0);
    if (n < 0)
        return err_sys(err, "hear from the child");
    if (n == 0)
        return err_set(err, ERR_UNAVAILABLE, "the child is silent");
    *out_len = (size_t)n;
    return true;
}

static bool child_failed(struct str said, struct err *err)
{
    struct unpack in = unpack_from(said);
    struct err failure;

    message_unpack_err(&in, &failure);
    if (!unpack_done(&in, err))
        return err_wrap(err, "the child's error");
    *err = failure;
    return err_wrap(err, "inside");
}

static bool start_hear(struct start *start, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + CHILD_MS;
    char said[2048];
    size_t len;
    bool ready = false;

    for (;;) {
        if (!hear_child(start, until_ms, said, sizeof said, &len, err)) {
            if (err->kind != ERR_UNAVAILABLE || !ready)
                return err_wrap(err, "start sandbox %s", start->plan->id);
            break;
        }
        if (said[0] == CHILD_READY && len == 1)
            ready = true;
        else if (said[0] == CHILD_FAILED)
            return child_failed(str_of(said + 1, len - 1), err);
        else
            return err_set(err, ERR_INTERNAL, "the child speaks in tongues");
    }
    /* Its end of the socket is closed: by exec, unless it died at that very moment. */
    if (process_ended(start->box->pidfd, 0))
        return err_set(err, ERR_INTERNAL, "guestd ended as it started");
    return true;
}

static bool start_all(struct start *start, struct err *err)
{
    return start_record(start, err) && start_cgroup(start, err) && start_sockets(start, err) &&
           start_clone(start, err) && start_link(start, err) && start_maps(start, err) && start_mounts(start, err) &&
           start_hold(start, err) && start_go(start, err) && start_hear(start, err);
}

/* A start that failed: the process first, then what it stood on. The box ends like any other from there. */
static void start_undo(struct start *start)
{
    struct box *box = start->box;

    start_close(start);
    if (box->pid) {
        (void)pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0); /* it may be dead already */
        box_watch(box, BOX_DYING);
        return;
    }
    box->state = BOX_CLEARING;
    box_clear(box);
}

static bool native_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    struct native *native = native_of(driver);
    struct start start = { .native = native,
                           .plan = plan,
                           .sandbox_fd = -1,
                           .state_fd = -1,
                           .link_fd = -1,
                           .host_link_fd = -1,
                           .control_fd = { -1, -1 },
                           .door_fd = -1,
                           .userns_fd = -1,
                           .mount_fds = { -1, -1, -1 } };
    uint32_t slot;

    if (!plan_check(plan, err))
        return err_wrap(err, "plan");
    if (box_find(native, plan->id))
        return err_set(err, ERR_CONFLICT, "there is a sandbox %s already", plan->id);
    if (!slot_take(native, &slot, err))
        return false;
    start.box = box_new(native, plan->id);
    start.box->slot = slot;
    start.box->breed = breed_ref(native->nursery, plan);
    (void)map_put(&native->boxes, str_from(start.box->id), start.box);
    if (!start_all(&start, err)) {
        start_undo(&start);
        return err_wrap(err, "start sandbox %s", plan->id);
    }
    out->guestlink_fd = take_fd(&start.host_link_fd);
    start_close(&start);
    start.box->ran = true;
    box_watch(start.box, BOX_RUNNING);
    return true;
}

/* ---- list, stats, dial, free ---- */

static bool native_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct native *native = native_of(driver);
    struct held *held = mem_new((native->boxes.count + 1) * sizeof *held);
    uint32_t count = 0;
    struct box *box;

    (void)err;
    for (size_t i = 0; (box = map_next(&native->boxes, &i));)
        if (box->state == BOX_RUNNING)
            memcpy(held[count++].id, box->id, sizeof box->id);
    *out_held = held;
    *out_count = count;
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
            log_debug("native: %s", err_text(&why)); /* it is dying, or the next look will tell */
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

static void native_dial(struct driver *driver, const char *id, uint16_t port, driver_dialed_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);
    struct err err = { 0 };
    int fd = -1;

    if (!box || box->state != BOX_RUNNING) {
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    } else {
        /* Before the connection: guestd asks at that door as soon as it has read a request. */
        if (port == NURSERY_CODE_PORT && box->door_fd >= 0)
            breed_admit(box->breed, box->id, box->pidfd, &box->door_fd);
        /* Begun here, because front, who parses what strangers send, may not have a connect() at all. */
        fd = network_socket(native->netns_fd, box->pidfd, &err);
    }
    if (fd >= 0 && !dial_loopback(fd, port, &err))
        fd_close(&fd);
    done(context, fd, fd < 0 ? &err : NULL);
}

static void native_free(struct driver *driver)
{
    struct native *native = native_of(driver);
    struct box *box;

    for (size_t i = 0; (box = map_next(&native->boxes, &i));)
        box_free(box);
    map_done(&native->boxes);
    nursery_free(native->nursery);
    trash_free(native->trash);
    /* Our cgroup directories go with the last sandbox. */
    cgroups_remove(native->cgroups);
    mounts_close(&native->mounts);
    free(native->filter.filter);
    fd_close(&native->guestd_fd);
    fd_close(&native->netns_fd);
    fd_close(&native->layers_fd);
    fd_close(&native->sandboxes_fd);
    fd_close(&native->trash_fd);
    fd_close(&native->data_fd);
    free(native);
}

static const struct driver_ops native_ops = {
    .name = "native",
    .start = native_start,
    .stop = native_stop, /* and no stop_wait: there is no thread that could */
    .list = native_list,
    .stats = native_stats,
    .dial = native_dial,
    .free = native_free,
};

/* ---- coming up ---- */

/* EBUSY: the kernel still holds a page of the copy for something of its own, which passes. */
static bool seal(int fd, struct err *err)
{
    for (int waited_ms = 0; fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0;
         waited_ms += LOCK_RETRY_MS) {
        if (errno != EBUSY || waited_ms >= LOCK_MS)
            return err_sys(err, "F_ADD_SEALS");
        (void)usleep(LOCK_RETRY_MS * 1000);
    }
    return true;
}

/*
 * guestd runs from sealed memory, not from its file: /proc/<pid>/exe inside leads to what a process was started from,
 * and a guest that opens that for writing would replace the host's program (CVE-2019-5736). Nobody can write to this.
 */
static bool seal_guestd(struct native *native, int from_fd, struct err *err)
{
    struct stat st;
    int fd = memfd_create("guestd", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("guestd", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* before 6.3 every one is executable */
    native->guestd_fd = fd;
    if (fd < 0)
        return err_sys(err, "memfd_create");
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
    return seal(fd, err) || err_wrap(err, "seal guestd");
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
 * A lock lives as long as anybody has its descriptor, also in a child of a keeper that was killed in the middle of a
 * start, which ends on its own a moment later. So a little patience.
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
    native->trash_fd = native->sandboxes_fd < 0 ? -1 : open_dir_made(data_fd, "trash", err);
    if (native->trash_fd < 0)
        return false;
    spread_entries(native->sandboxes_fd);
    return lock_sandboxes(native, err);
}

/* Several servers share a machine's cgroup trees: each data directory has a name of its own in them. */
static bool open_cgroups(struct native *native, struct err *err)
{
    char name[64];
    struct stat st;

    if (fstat(native->data_fd, &st) < 0)
        return err_sys(err, "look at the data directory");
    (void)snprintf(name, sizeof name, "cloister.%jx.%jx", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    native->cgroups = cgroups_open(name, native->data_fd, err);
    return native->cgroups != NULL;
}

/* Sandboxes do without it, only slower. */
static void open_nursery(struct native *native)
{
    struct err err;
    struct nursery_config config = { .loop = native->loop,
                                     .mounts = &native->mounts,
                                     .cgroups = native->cgroups,
                                     .layers_fd = native->layers_fd,
                                     .guest_filter = &native->filter,
                                     .uids_from = native->uid_base,
                                     .uids_to = native->uid_base + SLOTS * NATIVE_UIDS };

    native->nursery = nursery_new(&config, &err);
    if (!native->nursery)
        log_warn("native: interpreters start inside their sandboxes: %s", err_text(&err));
}

/* What all sandboxes together use up; child.c and the cgroups have the share of each. */
static void raise_host_limit(const char *path, unsigned least)
{
    auto_free char *text = NULL;
    struct err err;
    char value[16];

    (void)snprintf(value, sizeof value, "%u", least);
    if (!fd_read_file(AT_FDCWD, path, 64, &text, NULL, &err) ||
        (strtoul(text, NULL, 10) < least && !fd_write_file(AT_FDCWD, path, str_from(value), &err)))
        log_warn("native: %s stays low, guests may run out: %s", path, err_text(&err));
}

/* ---- finding again ---- */

/* Dead or half-made: whatever is in its cgroup dies, then its remains go. `slot` is its own, if it is known. */
static void sweep(struct native *native, const char *id, uint32_t slot)
{
    struct box *box = box_new(native, id);
    struct err err;

    log_info("native: sweeping sandbox %s", id);
    (void)cgroup_kill(native->cgroups, id);
    box->state = BOX_CLEARING;
    /* Nobody else gets its ids while it dies. Where they are not known, any slot stands in. */
    box->slot = slot;
    if (slot < SLOTS && !native->slot_taken[slot]) {
        native->slot_taken[slot] = true;
    } else if (!slot_take(native, &box->slot, &err)) {
        log_error("native: sandbox %s is not swept: %s", id, err_text(&err));
        box_free(box);
        return;
    }
    (void)map_put(&native->boxes, str_from(box->id), box);
    box_clear(box);
}

/* *out_slot is set as soon as it is known, also when this is false. */
static bool adopt(struct native *native, const char *id, uint32_t *out_slot, struct err *err)
{
    auto_close int sandbox_fd = openat(native->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct state state;
    uint64_t start_time;

    *out_slot = SLOTS;
    if (sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", id);
    if (!state_read(sandbox_fd, &state, err))
        return false;
    if (strcmp(state.boot_id, native->boot_id) != 0)
        return err_set(err, ERR_NOT_FOUND, "it is of an earlier boot");
    *out_slot = state.slot;
    if (!state.pid)
        return err_set(err, ERR_NOT_FOUND, "it never started");
    if (state.slot >= SLOTS || native->slot_taken[state.slot])
        return err_set(err, ERR_CONFLICT, "its slot %u is not free", state.slot);
    /* First hold the process, then ask who it is: the other way round the number could change hands in between. */
    auto_close int pidfd = pidfd_open(state.pid, 0);
    if (pidfd < 0)
        return err_sys(err, "pidfd_open");
    if (process_ended(pidfd, 0) || !state_process_start_time(state.pid, &start_time, err) ||
        start_time != state.start_time || !cgroup_holds(native->cgroups, id, state.pid))
        return err_set(err, ERR_NOT_FOUND, "it has ended");
    struct box *box = box_new(native, id);
    box->slot = state.slot;
    box->pid = state.pid;
    box->pidfd = take_fd(&pidfd);
    box->ran = true;
    native->slot_taken[state.slot] = true;
    (void)map_put(&native->boxes, str_from(box->id), box);
    box_watch(box, BOX_RUNNING);
    if (state.dying && !box_kill(box, err)) /* again: the last keeper may have died between the mark and the kill */
        log_warn("native: %s", err_text(err));
    return true;
}

static bool id_valid(const char *id)
{
    return id[0] && strlen(id) < LIMIT_ID_BYTES && id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789")] == '\0';
}

static void sweep_orphan(void *context, const char *id)
{
    struct native *native = context;

    if (id_valid(id) && !box_find(native, id))
        sweep(native, id, SLOTS);
}

/* One that cannot be taken over. */
struct left {
    char id[LIMIT_ID_BYTES];
    uint32_t slot;
};

static bool find_again(struct native *native, struct err *err)
{
    int fd = openat(native->sandboxes_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    auto_free struct left *left = NULL;
    size_t count = 0;

    if (!dir) {
        (void)err_sys(err, "read sandboxes");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        uint32_t slot;
        struct err why;
        if (!id_valid(entry->d_name) || adopt(native, entry->d_name, &slot, &why))
            continue;
        log_info("native: sandbox %s cannot be taken over: %s", entry->d_name, err_text(&why));
        left = mem_grow(left, (count + 1) * sizeof *left);
        (void)snprintf(left[count].id, sizeof left[count].id, "%s", entry->d_name);
        left[count++].slot = slot;
    }
    (void)closedir(dir);
    /* After all that live have their slots. */
    for (size_t i = 0; i < count; i++)
        sweep(native, left[i].id, left[i].slot);
    cgroups_walk(native->cgroups, sweep_orphan, native);
    return true;
}

bool native_enter_mount_namespace(struct err *err)
{
    if (unshare(CLONE_NEWNS) < 0)
        return err_sys(err, "make a mount namespace");
    /* A slave, not private: what the host unmounts must not stay mounted here, busy until keeper ends. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return err_sys(err, "keep our mounts from the host");
    return true;
}

struct driver *native_driver_new(struct loop *loop, const struct native_config *config, struct err *err)
{
    struct native *native = NEW(struct native);

    native->driver.ops = &native_ops;
    native->loop = loop;
    native->uid_base = config->uid_base ? config->uid_base : NATIVE_UID_BASE;
    native->fail_at = config->fail_at;
    native->data_fd = native->layers_fd = native->sandboxes_fd = native->trash_fd = -1;
    native->guestd_fd = native->netns_fd = native->mounts.scratch_fd = -1;
    map_init(&native->boxes);
    if (native->uid_base < NATIVE_UIDS || native->uid_base > INT32_MAX - SLOTS * NATIVE_UIDS) {
        (void)err_set(err, ERR_INVALID, "user ids for sandboxes cannot start at %" PRIu32, native->uid_base);
        goto failed;
    }
    if (!open_dirs(native, config->data_fd, err) || !state_boot_id(native->boot_id, err) ||
        !seccomp_guest_filter(&native->filter, err) || !seal_guestd(native, config->guestd_fd, err) ||
        !open_cgroups(native, err) || !mounts_open(native->data_fd, &native->mounts, err))
        goto failed;
    native->mounts.old_overlay = config->old_overlay;
    native->netns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (native->netns_fd < 0) {
        (void)err_sys(err, "open our own network namespace");
        goto failed;
    }
    raise_host_limit("/proc/sys/fs/inotify/max_user_instances", HOST_INOTIFY_INSTANCES);
    raise_host_limit("/proc/sys/fs/inotify/max_user_watches", HOST_INOTIFY_WATCHES);
    raise_host_limit("/proc/sys/kernel/pid_max", HOST_PIDS);
    native->trash = trash_new(loop, native->trash_fd);
    open_nursery(native);
    if (find_again(native, err))
        return &native->driver;
failed:
    (void)err_wrap(err, "native driver");
    native_free(&native->driver);
    return NULL;
}

void native_fail_at(struct driver *driver, enum native_step step)
{
    native_of(driver)->fail_at = step;
}

int native_mother_of(struct driver *driver, const char *id)
{
    struct box *box = box_find(native_of(driver), id);

    return box ? breed_mother(box->breed) : -1;
}

int native_pid_of(struct driver *driver, const char *id)
{
    struct box *box = box_find(native_of(driver), id);

    return box && box->pid ? box->pid : -1;
}
