/*
 * A start, in keeper (child.c has the other half):
 *   record    sandboxes/<id>/ with a state that has a slot and no pid yet. For a sandbox that is parked it is there, and
 *             keeps saying so until guestd runs: a start that fails or is cut short leaves it parked. The directory is
 *             claimed (state_claim()), so that nothing of an earlier start is still at it
 *   cgroup    both leaves; on v1 with limits, before there is anything to limit
 *   clone     user, mount, pid, net, ipc and uts namespaces, owned by the zygote's user (zygotes.h), into the freezer's
 *             cgroup where that works. The child goes to its other cgroups by itself, makes its cgroup namespace, sets its
 *             network up and then waits
 *   maps      ids 0..65535 inside are the slot's own range outside; nothing inside is the host's root
 *   mounts    root, devices, empty directory: detached, seen through those ids
 *   network   the child is in its cgroup, and has loopback, addresses, a route, and the rules that send what leaves to
 *             egress (network_rules.c)
 *   link      guestlink, a connection over the new loopback, waits in the socket that guestd will listen on (handover.c)
 *   hold      on v2 the child's cgroup gets its limits; the child's pid goes into the state
 *   go        the child gets the mounts, builds its tree, and becomes guestd
 *
 * Keeper waits for the child twice, until its network is there and until it is guestd. On cgroups v1 a process that changes
 * its cgroup waits for an RCU grace period, 10 ms or more, seconds on a busy machine: so the child does that, and keeper
 * serves others meanwhile. A start under way is a struct start with a watch on the control socket; any number may be.
 */
#include "isolation/native/start.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/pass.h"
#include "isolation/native/box.h"
#include "isolation/native/child.h"
#include "isolation/native/handover.h"
#include "isolation/native/park.h"
#include "isolation/native/restore.h"
#include "isolation/native/room.h"
#include "privsep/message.h"

enum {
    /*
     * For the child's network, and again from `go` to guestd. A guest cannot make it longer: only native_child() runs, on
     * mounts of trusted templates and in a tree that no guest has written to; it takes some milliseconds. On a machine so
     * busy that it takes longer than this, the start fails. Both together are less than LIMIT_KEEPER_MS.
     */
    CHILD_MS = 15000,
    CHILD_LOOK_MS = 20, /* between checks whether it was stopped */
};

/* What keeper waits for. */
enum start_phase {
    START_NETWORK, /* the child is in its cgroup and has its network */
    START_READY,   /* it has built its tree */
    START_EXEC,    /* it has become guestd */
    START_DONE,    /* nothing: guestd runs */
};

/* What one start holds; start_free() closes what is still here at its end. */
struct start {
    struct native *native;
    struct plan plan;
    struct box *box;
    enum start_phase phase;
    uint64_t until_ms;       /* then the child has taken too long */
    driver_started_fn *done; /* NULL: the caller waits, see native_start() */
    void *context;
    struct watch *watch; /* on control_fd[0] */
    struct timer look;
    int sandbox_fd, state_fd;
    int claim_fd; /* on the sandbox, until it is made or has failed */
    struct state state;
    int link_fd;       /* the host's end of guestlink, for our caller */
    int control_fd[2]; /* ours, the child's */
    int userns_fd;
    int child_fds[CHILD_FDS]; /* that the child gets with CHILD_GO */
    int cgroup_fds[CGROUP_TREE_COUNT];
    size_t cgroup_count;
    int entry_fds[CGROUP_TREE_COUNT];
    size_t entry_count;
    int guestd_cgroup_fds[CGROUP_TREE_COUNT];
    size_t guestd_cgroup_count;
    int birth_fd; /* the cgroup that the child is born in; -1: ours */
};

static void start_free(struct start *start)
{
    timer_clear(&start->look);
    watch_free(start->watch);
    fd_close(&start->sandbox_fd);
    fd_close(&start->state_fd);
    fd_close(&start->claim_fd);
    fd_close(&start->link_fd);
    fd_close(&start->control_fd[0]);
    fd_close(&start->control_fd[1]);
    fd_close(&start->userns_fd);
    fd_close_each(start->child_fds, CHILD_FDS);
    fd_close_each(start->entry_fds, start->entry_count);
    fd_close_each(start->guestd_cgroup_fds, start->guestd_cgroup_count);
    fd_close_each(start->cgroup_fds, start->cgroup_count);
    fd_close(&start->birth_fd);
    if (start->box && start->box->start == start)
        start->box->start = NULL;
    free(start);
}

static bool make_record(struct start *start, struct err *err)
{
    struct native *native = start->native;
    const char *id = start->box->id;
    struct state *state = &start->state;

    state->layer_count = start->plan.layer_count;
    memcpy(state->layers, start->plan.layers, sizeof state->layers);
    if (mkdirat(native->sandboxes_fd, id, 0700) < 0)
        return err_sys(err, "make the directory of sandbox %s", id);
    start->sandbox_fd = openat(native->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (start->sandbox_fd < 0)
        return err_sys(err, "open the directory of sandbox %s", id);
    if (!state_claim(start->sandbox_fd, &start->claim_fd, err))
        return false;
    start->state_fd = openat(start->sandbox_fd, "state", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (start->state_fd < 0)
        return err_sys(err, "create state");
    /* upper is what "/" looks like inside. */
    return mkdirat(start->sandbox_fd, "upper", 0755) == 0 || err_sys(err, "make upper");
}

static bool same_layers(const struct state *state, const struct plan *plan)
{
    if (state->layer_count != plan->layer_count)
        return false;
    for (uint32_t i = 0; i < plan->layer_count; i++)
        if (strcmp(state->layers[i], plan->layers[i]) != 0)
            return false;
    return true;
}

/*
 * Written in place, like any record: all that changes in it is in its first 512 bytes, which a disk writes whole. So it
 * says parked after a power cut too.
 */
static bool open_record(struct start *start, struct err *err)
{
    struct native *native = start->native;

    start->sandbox_fd = openat(native->sandboxes_fd, start->box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (start->sandbox_fd < 0)
        return err_sys(err, "open the directory of sandbox %s", start->box->id);
    if (!state_claim(start->sandbox_fd, &start->claim_fd, err))
        return false;
    start->state_fd = openat(start->sandbox_fd, "state", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (start->state_fd < 0)
        return err_sys(err, "open state");
    if (!state_read(start->sandbox_fd, &start->state, err))
        return false;
    if (!same_layers(&start->state, &start->plan))
        return err_set(err, ERR_INVALID, "the plan has other layers than the parked sandbox %s", start->box->id);
    if (start->plan.from == PLAN_PARKED_IMAGE && !state_check_resumed(start->sandbox_fd, native->boot_id, err))
        return false;
    /* An earlier start may have been cut short. */
    return trash_add(native->trash, start->sandbox_fd, "work", err) && handover_forget(start->sandbox_fd, err);
}

static bool start_record(struct start *start, struct err *err)
{
    struct native *native = start->native;
    struct state *state = &start->state;

    if (start->plan.from == PLAN_NEW || start->plan.from == PLAN_IMAGE ? !make_record(start, err)
                                                                       : !open_record(start, err))
        return false;
    state->slot = start->box->slot;
    state->pid = 0;
    state->start_time = 0;
    state->owner = zygote_owner(start->box->zygote);
    memcpy(state->boot_id, native->boot_id, sizeof state->boot_id);
    if (!state_write(start->state_fd, state, err))
        return false;
    if (mkdirat(start->sandbox_fd, "work", 0700) < 0)
        return err_sys(err, "make work");
    return native_reach(native, NATIVE_AT_RECORD, err);
}

static bool start_cgroup(struct start *start, struct err *err)
{
    struct cgroups *cgroups = start->native->cgroups;
    const char *id = start->plan.id;
    const struct cgroup_limits limits = cgroup_limits_of(&start->plan);

    return cgroup_lay_out(cgroups, id, &limits, err) &&
           cgroup_open_user(cgroups, id, start->cgroup_fds, &start->cgroup_count, err) &&
           cgroup_open_birth(cgroups, id, &start->birth_fd, err) &&
           cgroup_open_entry(cgroups, id, start->entry_fds, &start->entry_count, err) &&
           (!cgroup_has_guestd_leaf(cgroups) ||
            cgroup_open_guestd(cgroups, id, start->guestd_cgroup_fds, &start->guestd_cgroup_count, err)) &&
           native_reach(start->native, NATIVE_AT_CGROUP, err);
}

static bool start_sockets(struct start *start, struct err *err)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start->control_fd) < 0)
        return err_sys(err, "socketpair");
    return native_reach(start->native, NATIVE_AT_SOCKETS, err);
}

/*
 * A user namespace belongs to the effective user that makes it: for one clone that is the zygote's owner.
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
    /* The child is a copy of us, and that owner has power over it: the zygote must not be able to read it. */
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_GET_DUMPABLE) != 0) {
        log_error("native: PR_SET_DUMPABLE has no effect, a copy of keeper would be readable");
        abort();
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0)
        return 0; /* a new user namespace has neither these ids nor these bits */
    int number = errno;
    if (setresuid((uid_t)-1, 0, (uid_t)-1) < 0 || geteuid() != 0 || prctl(PR_SET_SECUREBITS, securebits) < 0) {
        /* We must not go on as another user. */
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
        .claim_fd = start->claim_fd,
        .lock_fd = native->sandboxes_fd,
        .gate_fd = native->child_gate_fd,
        .entry_count = start->entry_count,
        .guestd_cgroup_count = start->guestd_cgroup_count,
        .cgroup_count = start->cgroup_count,
        .rules = native->network == NETWORK_NONE ? NULL : &native->rules,
        .hostname = start->plan.hostname,
        .memory_bytes = start->plan.memory_bytes,
        .filter = &native->filter,
        .fail_at = native->fail_at,
    };
    memcpy(setup.cgroup_fds, start->cgroup_fds, sizeof setup.cgroup_fds);
    memcpy(setup.entry_fds, start->entry_fds, sizeof setup.entry_fds);
    memcpy(setup.guestd_cgroup_fds, start->guestd_cgroup_fds, sizeof setup.guestd_cgroup_fds);
    if (start->birth_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)start->birth_fd;
    }

    pid_t pid = clone_as(zygote_owner(start->box->zygote), &args, err);
    if (pid == 0)
        native_child(&setup);
    if (pid < 0) {
        start->box->pidfd = -1;
        return false;
    }
    start->box->pid = pid;
    start->until_ms = clock_mono_ms() + CHILD_MS;
    fd_close(&start->control_fd[1]); /* only the child may hold it: it must close when it ends */
    return native_reach(native, NATIVE_AT_CLONE, err);
}

static bool start_link(struct start *start, struct err *err)
{
    int home_fd = start->native->netns_fd, pidfd = start->box->pidfd;

    start->child_fds[CHILD_HANDOVER] = handover_listen(home_fd, pidfd, start->sandbox_fd, err);
    return start->child_fds[CHILD_HANDOVER] >= 0 &&
           handover_link(home_fd, pidfd, start->sandbox_fd, &start->link_fd, err) &&
           native_reach(start->native, NATIVE_AT_LINK, err);
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
        return err_wrap(err, "map the ids of sandbox %s", start->plan.id);
    start->userns_fd = openat(proc_fd, "ns/user", O_RDONLY | O_CLOEXEC);
    if (start->userns_fd < 0)
        return err_sys(err, "open the user namespace");
    return native_reach(start->native, NATIVE_AT_MAPS, err);
}

static bool start_mounts(struct start *start, struct err *err)
{
    struct native *native = start->native;
    const struct mounts_ids ids = { .userns_fd = start->userns_fd, .uid_base = first_uid(start) };

    return mounts_overlay(&native->mounts, native->layers_fd, start->sandbox_fd, &start->plan, &ids,
                          &start->child_fds[CHILD_ROOT], err) &&
           native_reach(native, NATIVE_AT_OVERLAY, err) &&
           mounts_devices(&ids, NULL, &start->child_fds[CHILD_DEVICES], err) &&
           native_reach(native, NATIVE_AT_DEVICES, err);
}

static bool start_hold(struct start *start, struct err *err)
{
    struct box *box = start->box;
    const struct cgroup_limits limits = cgroup_limits_of(&start->plan);

    start->state.pid = box->pid;
    box->network = start->state.network = start->native->network;
    return cgroup_switch_on(start->native->cgroups, box->id, &limits, err) &&
           state_process_start_time(box->pid, &start->state.start_time, err) &&
           state_write(start->state_fd, &start->state, err) && native_reach(start->native, NATIVE_AT_HOLD, err);
}

static bool start_go(struct start *start, struct err *err)
{
    if (!pass_fds(start->control_fd[0], str_of((const char[]){ CHILD_GO }, 1), start->child_fds, CHILD_FDS, err))
        return err_wrap(err, "say go");
    /* The child holds them now; ours would keep the overlay mounted after its end. */
    fd_close_each(start->child_fds, CHILD_FDS);
    start->phase = START_READY;
    start->until_ms = clock_mono_ms() + CHILD_MS;
    return native_reach(start->native, NATIVE_AT_GO, err);
}

/* By a signal that nothing of ours sends. A zygote has the power to. */
static bool is_stopped(int pidfd)
{
    siginfo_t how = { 0 };

    return waitid((idtype_t)P_PIDFD, (id_t)pidfd, &how, WSTOPPED | WNOHANG | WNOWAIT) == 0 && how.si_pid != 0;
}

/* Between its messages: false if it was stopped, or takes too long. */
static bool start_check(struct start *start, struct err *err)
{
    if (is_stopped(start->box->pidfd)) {
        zygote_bar(start->box->zygote, "it stopped a starting sandbox");
        return err_set(err, ERR_INTERNAL, "it was stopped by a signal");
    }
    return clock_mono_ms() < start->until_ms ||
           err_set(err, ERR_TIMEOUT, "the sandbox did not start in %d seconds", CHILD_MS / 1000);
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

/*
 * From here on it is one that runs, and what the last keeper leaves of it is swept. A power cut in the next seconds may
 * leave a record that says parked: then the files are what it leaves of any, and an image is not used (the mark).
 */
static bool start_settle(struct start *start, struct err *err)
{
    if (start->box->keep == HELD_PARKED_IMAGE &&
        !state_mark_resumed(start->sandbox_fd, start->native->boot_id, false, err))
        return false;
    start->state.held = HELD_RUNNING;
    if (start->plan.from != PLAN_NEW && !state_write(start->state_fd, &start->state, err))
        return false;
    start->box->keep = HELD_RUNNING;
    start->box->is_untouched = start->plan.from == PLAN_PARKED;
    return true;
}

/* All that keeper does before it waits for the child. */
static bool start_make(struct start *start, struct err *err)
{
    return start_record(start, err) && start_cgroup(start, err) && start_sockets(start, err) &&
           start_clone(start, err) && start_maps(start, err) && start_mounts(start, err);
}

/*
 * A process that dies closes its descriptors before its end is reported, so the end of its socket alone does not say that it
 * is guestd. What it executes does: a process that dies gives that up before its descriptors.
 */
static bool check_guestd(const struct start *start, struct err *err)
{
    struct stat runs, guestd;
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/%d/exe", start->box->pid); /* ours and not reaped, as in start_maps() */
    bool has_program = stat(path, &runs) == 0;
    if (!has_program && errno != ENOENT)
        return err_sys(err, "look at %s", path);
    if (fstat(start->native->guestd_fd, &guestd) < 0)
        return err_sys(err, "look at guestd");
    return (has_program && !process_ended(start->box->pidfd) && runs.st_dev == guestd.st_dev &&
            runs.st_ino == guestd.st_ino) ||
           err_set(err, ERR_INTERNAL, "guestd ended as it started");
}

/* The child's end of the socket is closed: by exec, unless it has died. */
static bool start_end(struct start *start, struct err *err)
{
    if (start->phase != START_EXEC)
        return err_set(err, ERR_UNAVAILABLE, "the child ended without a message");
    if (!check_guestd(start, err))
        return false;
    start->phase = START_DONE;
    return start_settle(start, err);
}

/* As recv(); the descriptor is -1 if none came with it. */
static ssize_t hear_child(int socket_fd, char *said, size_t room, int *out_fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec bytes = { said, room };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))
    };
    ssize_t n = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(out_fd, CMSG_DATA(head), sizeof *out_fd);
    return n;
}

/* Takes one message from the child, if there is one, and does what it was awaited for. */
static bool start_hear(struct start *start, struct err *err)
{
    char said[2048];
    auto_close int listener_fd = -1;
    ssize_t n = hear_child(start->control_fd[0], said, sizeof said, &listener_fd);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR || err_sys(err, "receive from the child");
    if (n == 0)
        return start_end(start, err);
    if (said[0] == CHILD_FAILED)
        return child_failed(str_of(said + 1, (size_t)n - 1), err);
    if (said[0] == CHILD_NETWORK && n == 1 && start->phase == START_NETWORK)
        return start_link(start, err) && start_hold(start, err) && start_go(start, err);
    if (said[0] == CHILD_READY && n == 1 && start->phase == START_READY) {
        start->phase = START_EXEC;
        if (listener_fd >= 0)
            options_listen(start->box, take_fd(&listener_fd));
        return true;
    }
    return err_set(err, ERR_INTERNAL, "unexpected message from the sandbox's child");
}

/* After a start that failed: kills the process, if there is one. From there the box ends like any other. */
static void start_undo(struct start *start)
{
    struct box *box = start->box;

    start_free(start);
    if (box->pid)
        (void)pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0); /* it may be dead already */
    if (box->native->is_stopping)
        return; /* the next keeper finds what is left */
    if (box->pid) {
        box_watch(box, BOX_DYING);
        return;
    }
    box->state = BOX_CLEARING;
    box_clear(box);
}

static bool is_from_image(const struct plan *plan)
{
    return plan->from == PLAN_PARKED_IMAGE || plan->from == PLAN_IMAGE;
}

/* `err` says why the machine cannot; the asker learns what still works. */
static bool explain_no_memory(const struct plan *plan, struct err *err)
{
    const struct err why = *err;

    (void)err_set(err, ERR_UNAVAILABLE, "cannot restore its processes: this server has no working CRIU%s",
                  plan->from == PLAN_PARKED_IMAGE
                      ? "; it can be started from its files (on_resume='reboot', --reboot on the command line)"
                      : " (cloister doctor says why); a snapshot of files only would do");
    return err_wrap(err, "%s", err_text(&why));
}

/* *out_box is the parked one, or NULL where there must be none. */
static bool may_start(struct native *native, const struct plan *plan, struct box **out_box, struct err *err)
{
    struct box *box = box_find(native, plan->id);

    if (is_from_image(plan) && !memory_works(native, err))
        return explain_no_memory(plan, err);
    if (plan->from == PLAN_PARKED || plan->from == PLAN_PARKED_IMAGE) {
        if (!box)
            return err_set(err, ERR_NOT_FOUND, "there is no parked sandbox %s", plan->id);
        if (box->keep == HELD_RUNNING)
            return err_set(err, ERR_CONFLICT, "sandbox %s is not parked", plan->id);
        if (plan->from == PLAN_PARKED_IMAGE && box->keep != HELD_PARKED_IMAGE)
            return err_set(err, ERR_CONFLICT, "sandbox %s was kept without its memory", plan->id);
        park_hurry(box);
        if ((box->state == BOX_PARKED || box->state == BOX_STARTING) && box_is_busy(box, err))
            return false;
        if (box->state != BOX_PARKED)
            return err_set(err, ERR_CONFLICT, "sandbox %s is still being parked; try again in a moment", plan->id);
    } else if (box) {
        return err_set(err, ERR_CONFLICT, "there is a sandbox %s already", plan->id);
    }
    *out_box = box;
    return true;
}

/* Of a plan that may be carried out: it has a box, STARTING, with a slot. NULL: it may not. */
static struct start *start_begin(struct native *native, const struct plan *plan, struct err *err)
{
    struct box *box;
    uint32_t slot;

    if (!plan_check(plan, err)) {
        (void)err_wrap(err, "plan");
        return NULL;
    }
    if (!may_start(native, plan, &box, err) || !room_check(native->sandboxes_fd, err) || !slot_take(native, &slot, err))
        return NULL;
    if (!box) {
        box = box_new(native, plan->id);
        (void)map_put(&native->boxes, str_from(box->id), box);
    }
    box->state = BOX_STARTING;
    box->slot = slot;
    if (!is_from_image(plan))
        box->zygote = zygote_ref(native->zygotes, plan, 0);
    struct start *start = NEW(struct start);
    *start = (struct start){ .native = native,
                             .plan = *plan,
                             .box = box,
                             .sandbox_fd = -1,
                             .state_fd = -1,
                             .claim_fd = -1,
                             .link_fd = -1,
                             .control_fd = { -1, -1 },
                             .userns_fd = -1,
                             .birth_fd = -1,
                             .child_fds = { -1, -1, -1 } };
    return start;
}

/* The image of one that runs again is of no use: its files go on without it. */
static void drop_image(struct native *native, const char *id)
{
    auto_close int fd = openat(native->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct err err;

    compress_forget(native, id);
    if (fd >= 0 && !trash_add(native->trash, fd, "image", &err))
        log_warn("native: sandbox %s keeps an image that is of no use: %s", id, err_text(&err));
}

static void start_fail(struct start *start, struct err *err)
{
    struct err full;

    /* The same error comes when namespaces run out: it is the disk only if that is full now. */
    if (err->kind == ERR_FULL && !room_check(start->native->sandboxes_fd, &full))
        *err = full;
    start_undo(start);
}

static void start_finish(struct start *start, struct started *out)
{
    struct box *box = start->box;
    bool was_parked = start->plan.from == PLAN_PARKED;

    out->guestlink_fd = take_fd(&start->link_fd);
    out->has_network = box->network != NETWORK_NONE;
    start_free(start);
    box->ran = true;
    box_watch(box, BOX_RUNNING);
    if (was_parked)
        drop_image(box->native, box->id);
}

/* Until the child says something, or CHILD_MS have passed. */
static bool start_wait(struct start *start, struct err *err)
{
    while (!fd_await(start->control_fd[0], POLLIN, clock_mono_ms() + CHILD_LOOK_MS))
        if (!start_check(start, err))
            return false;
    return start_hear(start, err);
}

bool native_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    if (is_from_image(plan))
        return err_set(err, ERR_INTERNAL, "such a start takes long: start_later() is for it");
    struct start *start = start_begin(native_of(driver), plan, err);
    if (!start)
        return false;
    bool fine = start_make(start, err);
    while (fine && start->phase != START_DONE)
        fine = start_wait(start, err);
    if (fine)
        start_finish(start, out);
    else
        start_fail(start, err);
    return fine;
}

/* ---- under way ---- */

static void start_answer_failure(struct start *start, struct err *err)
{
    driver_started_fn *done = start->done;
    void *context = start->context;

    start_fail(start, err);
    done(context, NULL, err);
}

/* After each step. */
static void start_step(struct start *start, bool fine, struct err *err)
{
    driver_started_fn *done = start->done;
    void *context = start->context;
    struct started started;

    if (!fine) {
        start_answer_failure(start, err);
    } else if (start->phase == START_DONE) {
        start_finish(start, &started);
        done(context, &started, NULL);
    }
}

static void on_message(void *context, unsigned ready)
{
    struct start *start = context;
    struct err err;

    (void)ready;
    bool fine = start_hear(start, &err);
    start_step(start, fine, &err);
}

static void on_look(struct timer *timer)
{
    struct start *start = container_of(timer, struct start, look);
    struct err err;

    timer_set(timer, start->native->loop, CHILD_LOOK_MS, on_look);
    bool fine = start_check(start, &err);
    start_step(start, fine, &err);
}

static void start_go_on(struct start *start)
{
    start->box->start = start;
    start->watch = watch_new(start->native->loop, start->control_fd[0], on_message, start);
    watch_want(start->watch, WATCH_READ);
    timer_set(&start->look, start->native->loop, CHILD_LOOK_MS, on_look);
}

void start_forget(struct box *box, const struct err *why)
{
    struct err err = *why;

    if (box->start)
        start_answer_failure(box->start, &err);
}

void native_start_cancel(struct driver *driver, const char *id)
{
    struct box *box = box_find(native_of(driver), id);
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "the start of sandbox %s was cancelled, because front has ended", id);
    if (box)
        start_forget(box, &err);
    box = box_find(native_of(driver), id);
    if (box && box->keep == HELD_RUNNING) /* what is parked is listed, and front decides */
        restore_forget(box, &err);
}

/* ---- from an image ---- */

/* A start that is answered later. */
struct later {
    driver_started_fn *done;
    void *context;
    bool was_parked;
};

static void later_fail(struct box *box, const struct err *err)
{
    if (box->native->is_stopping)
        return; /* the next keeper finds what is left */
    if (box->pid) {
        (void)pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0); /* it may be dead already */
        box_watch(box, BOX_DYING);
    } else {
        log_info("native: sandbox %s did not come back: %s", box->id, err_text(err));
        (void)cgroup_kill(box->native->cgroups, box->id); /* what CRIU has made before it failed */
        box->state = BOX_CLEARING;
        box_clear(box);
    }
}

/* A start that has failed, of which nobody has heard yet. */
struct refusal {
    driver_started_fn *done;
    void *context;
    struct err why;
};

static void parked_again(void *context, const struct kept *kept, const struct err *err)
{
    struct refusal *refusal = context;

    (void)kept;
    (void)err; /* it has ended meanwhile: the start has failed all the same */
    refusal->done(refusal->context, NULL, &refusal->why);
    free(refusal);
}

static void restored(void *context, struct box *box, int link_fd, const struct err *err)
{
    struct later *later = context;
    driver_started_fn *done = later->done;
    void *done_context = later->context;
    bool was_parked = later->was_parked;
    struct started started = { .guestlink_fd = link_fd };

    free(later);
    if (err) {
        struct refusal *refusal = NEW(struct refusal);
        *refusal = (struct refusal){ .done = done, .context = done_context, .why = *err };
        if (was_parked && !box->native->is_stopping) {
            park_await(box, parked_again, refusal);
            later_fail(box, &refusal->why);
        } else {
            later_fail(box, &refusal->why);
            parked_again(refusal, NULL, NULL);
        }
        return;
    }
    started.has_network = box->network != NETWORK_NONE;
    box->keep = HELD_RUNNING;
    box->ran = true;
    box_watch(box, BOX_RUNNING);
    if (was_parked)
        drop_image(box->native, box->id);
    done(done_context, &started, NULL);
}

static int open_image(const struct start *start, struct err *err)
{
    char path[LAYER_ID_BYTES + 32];
    int fd;

    if (start->plan.from == PLAN_PARKED_IMAGE) {
        fd = openat(start->sandbox_fd, "image", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } else {
        (void)snprintf(path, sizeof path, "snapshots/%s/image", start->plan.image);
        fd = openat(start->native->data_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0 && errno == ENOENT)
        (void)err_set(err, ERR_NOT_FOUND, "there is no image of the memory of %s", start->plan.id);
    else if (fd < 0)
        (void)err_sys(err, "open the image");
    return fd;
}

static bool start_restore(struct start *start, driver_started_fn *done, void *context, struct err *err)
{
    if (!start_record(start, err))
        return false;
    auto_close int image_fd = open_image(start, err);
    if (image_fd < 0)
        return false;
    struct later *later = NEW(struct later);
    *later = (struct later){ .done = done, .context = context, .was_parked = start->plan.from == PLAN_PARKED_IMAGE };
    const struct restore_from from = {
        .plan = &start->plan, .sandbox_fd = start->sandbox_fd, .claim_fd = start->claim_fd, .image_fd = image_fd
    };
    if (box_restore(start->box, &from, restored, later, err))
        return true;
    free(later);
    return false;
}

void native_start_later(struct driver *driver, const struct plan *plan, driver_started_fn *done, void *context)
{
    struct err err;
    struct start *start = start_begin(native_of(driver), plan, &err);

    if (!start) {
        done(context, NULL, &err);
    } else if (is_from_image(plan)) {
        if (start_restore(start, done, context, &err)) {
            start_free(start);
        } else {
            start_undo(start);
            done(context, NULL, &err);
        }
    } else {
        start->done = done;
        start->context = context;
        if (start_make(start, &err))
            start_go_on(start);
        else
            start_answer_failure(start, &err);
    }
}
