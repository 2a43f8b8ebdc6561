/*
 * How a sandbox comes back:
 *   pages    if they are compressed, they are made whole first (compress.h): what is damaged is noticed here
 *   keeper   makes the cgroup, the root and the devices as for any start, seen through ids of its slot, and a socket for
 *            handovers
 *   helper   enters the sandbox's cgroup and a cgroup namespace that begins there, so that all that CRIU makes is in it. Its
 *            limits are wider meanwhile, since guestd and CRIU are in there too; writes down the slot's ids in place of those
 *            of the image; runs CRIU
 *            Beside that it marks what was parked as resumed (state.h), and waits for the disk before anything runs
 *   CRIU     makes the other namespaces and the processes. Before they have any memory it stops: the helper sets up the
 *            network and the limits of the namespaces from inside them, and the host name
 *   helper   moves pid 1 to guestd's place once all processes are made, sets the sandbox's own limits, and says its number
 *   keeper   looks whether that is in the sandbox's cgroup, writes its number into the record, gives guestd its sockets, and
 *            only then writes that it runs: until there, what was parked is parked, whoever fails or dies. Its image goes
 *            after that
 *
 * Never two of it. Keeper may be killed at any moment. The helper dies with it, and CRIU with the helper; what CRIU has made
 * by then lives on, in the sandbox's cgroup, where all that the helper makes is from its birth. The helper also holds the
 * sandbox's directory (state_claim()). The next keeper starts nothing of it before nobody holds that, so that nothing more
 * can enter the cgroup, and before the cgroup is gone, which the kernel allows when nothing in it can run any more
 * (clear_remains() in box.c). The dead may be listed for longer: the host's init takes note of them in its own time.
 *
 * A trade: if keeper dies after its processes have run and before the record says so, they run until the next keeper ends them.
 * The image is kept, and the next resume brings old memory back over the files that they have written meanwhile. Within the same
 * boot memory is worth more than that; after a power cut the image is refused (state.h).
 *
 * On cgroups v1 a process that changes its cgroup waits for an RCU grace period, 10 ms or more, as long as half of all else;
 * unless somebody else has just done so. So somebody does, beside the work before it, when the time for a change has come:
 * hurry(), a process that goes where it is.
 *
 * Kernel randomness differs in each copy: programs that have drawn some in advance (the C library's getrandom) notice a new
 * generation of the kernel's generator, which keeper begins before each restore.
 */
#include "isolation/native/restore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/child.h"
#include "isolation/native/criu.h"
#include "isolation/native/handover.h"
#include "isolation/native/helper.h"
#include "isolation/native/image.h"
#include "isolation/native/snapshot.h"
#include "isolation/native/tighten.h"

enum { CRIU_MAGIC_BYTES = 8, USERNS_NAME_BYTES = 64 };

/* What a restore takes beside what the sandbox has. */
enum {
    CRIU_PIDS = 64, /* the helper, CRIU, its script and its own children: about ten */
    CRIU_MIB = 64,
    CRIU_PROCESS_MIB = 1,  /* each process begins as a copy of CRIU, which is not all shared… */
    CRIU_PROCESSES = 1024, /* …up to here: more than this is not kept free for it */
};
enum { HERALD_MS = 5000 };
enum { STEP_MIB = 32 }; /* see tighten() */
enum { RUN_MS = 5000 }; /* from the moment that its first process may run to CRIU's end; see look() */
enum { FIGURE_PID, FIGURE_MEMORY };

/* Under way; keeper's. */
struct restore {
    struct box *box;
    struct plan plan;
    struct helper *helper;
    struct helper *herald; /* the process that hurry() is in keeper, or NULL */
    struct kept_image *image;
    int sandbox_fd, claim_fd, image_fd, root_fd, devices_fd, handover_fd, userns_fd;
    int cgroupns_fd;          /* v2, else -1: a cgroup namespace that begins at the sandbox's */
    int program_fd, enter_fd; /* guestd's program and enter.so, opened for this sandbox */
    int above_fds[CGROUP_TREE_COUNT], user_fds[CGROUP_TREE_COUNT], guestd_fds[CGROUP_TREE_COUNT];
    int files_fds[LIMIT_LAYERS]; /* [n]: a root of the n + 1 lowest layers; -1: none */
    size_t above_count, user_count, guestd_count;
    struct cgroup_reins reins;
    uint32_t uid_base;
    restore_fn *done;
    void *context;
};

/* ---- in the helper: before CRIU ---- */

static bool enter_cgroups(const int *fds, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        if (write(fds[i], "0", 1) != 1)
            return err_sys(err, "enter the sandbox's cgroup");
    return true;
}

static bool enter_sandbox_cgroup(const struct restore *restore, struct err *err)
{
    if (restore->cgroupns_fd >= 0) {
        if (setns(restore->cgroupns_fd, CLONE_NEWCGROUP) < 0)
            return err_sys(err, "enter a cgroup namespace");
        return enter_cgroups(restore->user_fds, restore->user_count, err);
    }
    if (!enter_cgroups(restore->above_fds, restore->above_count, err))
        return false;
    if (unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(err, "make a cgroup namespace");
    return enter_cgroups(restore->user_fds, restore->user_count, err);
}

static bool find_userns(char room[USERNS_NAME_BYTES], struct err *err)
{
    DIR *dir = opendir(CRIU_IMAGE);
    bool found = false;

    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        found = strncmp(entry->d_name, "userns-", 7) == 0 && strlen(entry->d_name) < 32;
        if (found)
            (void)snprintf(room, USERNS_NAME_BYTES, CRIU_IMAGE "/%s", entry->d_name);
    }
    if (dir)
        (void)closedir(dir);
    return found || err_set(err, ERR_INVALID, "the image is damaged: it has no user namespace");
}

static void add_varint(struct buf *out, uint32_t number)
{
    for (; number >= 0x80; number >>= 7)
        buf_add_char(out, (char)(number | 0x80));
    buf_add_char(out, (char)number);
}

/* protobuf: field 1 is the first id inside, 2 the first one outside, 3 how many. */
static void add_extent(struct buf *out, uint32_t field, uint32_t uid_base)
{
    auto_buf struct buf extent = buf_make(NULL, 64);

    buf_add_char(&extent, 1 << 3);
    add_varint(&extent, 0);
    buf_add_char(&extent, 2 << 3);
    add_varint(&extent, uid_base);
    buf_add_char(&extent, 3 << 3);
    add_varint(&extent, NATIVE_UIDS);
    buf_add_char(out, (char)(field << 3 | 2));
    add_varint(out, (uint32_t)extent.len);
    buf_add(out, buf_str(&extent));
}

/*
 * The image has the ids of the slot it was made in. Several restores may read it at once, so the file is covered by another,
 * in this mount namespace: CRIU's two magic numbers as they are, a length, and the two maps.
 */
static bool cover_ids(const struct restore *restore, struct err *err)
{
    auto_buf struct buf maps = buf_make(NULL, 256), file = buf_make(NULL, 512);
    char path[USERNS_NAME_BYTES], magic[CRIU_MAGIC_BYTES];

    if (!find_userns(path, err))
        return false;
    auto_close int old_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (old_fd < 0 || read(old_fd, magic, sizeof magic) != sizeof magic)
        return err_set(err, ERR_INVALID, "the image is damaged: its user namespace cannot be read");
    add_extent(&maps, 1, restore->uid_base);
    add_extent(&maps, 2, restore->uid_base);
    buf_add(&file, str_of(magic, sizeof magic));
    for (size_t i = 0; i < 4; i++)
        buf_add_char(&file, (char)(maps.len >> 8 * i));
    buf_add(&file, buf_str(&maps));
    auto_close int fd = open("/tmp/userns.img", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, file.data, file.len) != (ssize_t)file.len)
        return err_sys(err, "write the ids of the sandbox");
    if (mount("/tmp/userns.img", path, NULL, MS_BIND, NULL) < 0)
        return err_sys(err, "cover the ids of the image");
    return true;
}

static bool read_image(const struct restore *restore, struct image *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(AT_FDCWD, CRIU_IMAGE "/cloister", LIMIT_IMAGE_TEXT_BYTES, &text, &len, err))
        return err_wrap(err, "the image's own file");
    return image_parse(str_of(text, len), out, err) &&
           image_fits(&out->origin, &restore->box->native->memory.origin, err);
}

/* ---- in the helper: arguments ---- */

static bool inherit(struct criu_args *args, int fd, const char *name, struct err *err)
{
    if (!fd_set_cloexec(fd, false, err))
        return false;
    criu_arg(args, "--inherit-fd");
    criu_arg(args, "fd[%d]:%s", fd, name);
    return true;
}

static bool is_same_file(int fd, const struct image_part *part)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == part->size &&
           image_changed_ns(&st) == part->changed_ns;
}

/*
 * From the layers alone: the sandbox's own upper may have another file of this name. So may the layer of a snapshot, which
 * has the upper that there was. The interpreter came in under the layers that the sandbox had when the image was made, or,
 * if that was restored itself, under fewer. (A merge has put some into one: then they are fewer than they were.)
 */
static int open_file(const struct restore *restore, const struct image *image, const struct image_part *part,
                     struct err *err)
{
    const struct open_how how = { .flags = O_RDONLY,
                                  .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };

    for (uint32_t i = MIN(image->layer_count, restore->plan.layer_count); i-- > 0;) {
        if (restore->files_fds[i] < 0)
            continue;
        int fd = (int)syscall(SYS_openat2, restore->files_fds[i], part->path + 1, &how, sizeof how);
        if (fd >= 0 && is_same_file(fd, part))
            return fd;
        fd_close(&fd);
    }
    (void)err_set(err, ERR_CONFLICT,
                  "a program of its memory is gone or has changed; it can be started from its files "
                  "(on_resume='reboot')");
    (void)err_wrap(err, "%s of the template", part->path);
    return -1;
}

/* The machine has been started with another layout of them since. */
static bool other_cgroups(struct err *err)
{
    return err_set(err, ERR_CONFLICT,
                   "its memory was saved under other cgroups; it can be started from its files (on_resume='reboot')");
}

static bool add_part(const struct restore *restore, struct criu_args *args, const struct image *image,
                     const struct image_part *part, struct err *err)
{
    char name[64];
    int fd;

    if (part->from == IMAGE_MOUNT) {
        criu_arg(args, "--external");
        criu_arg(args, "mnt[%s]:" CRIU_DEVICES "%s", part->where, part->path);
        return true;
    }
    if (part->from == IMAGE_SOCKET) {
        (void)snprintf(name, sizeof name, "socket:[%" PRIu64 "]", part->number);
        return inherit(args, restore->handover_fd, name, err);
    }
    /*
     * The dump has it as file[mount:inode]. With that name CRIU would open our descriptor once more through /proc, as the
     * sandbox's root, who may not. It looks for a file's path first, and takes the name without its first letter for that:
     * then it uses the descriptor as it is. (open_path() of CRIU 4.2; the self-test notices if another one does not.)
     */
    (void)snprintf(name, sizeof name, "ile[%" PRIx64 ":%" PRIx64 "]", part->mount_id, part->inode);
    if (part->from == IMAGE_GUESTD)
        return inherit(args, restore->program_fd, name, err);
    if (part->from == IMAGE_ENTER)
        return inherit(args, restore->enter_fd, name, err);
    if (part->from == IMAGE_CGROUP) {
        if (part->number >= restore->user_count)
            return other_cgroups(err);
        return inherit(args, restore->user_fds[part->number], name, err);
    }
    fd = open_file(restore, image, part, err);
    return fd >= 0 && inherit(args, fd, name, err);
}

static bool add_args(const struct restore *restore, struct criu_args *args, const struct image *image, struct err *err)
{
    static const char *const options[] = {
        "criu",
        "restore",
        "--images-dir",
        CRIU_IMAGE,
        "--work-dir",
        "/run",
        "--log-file",
        CRIU_LOG,
        "-v2",
        "--root",
        CRIU_BOX,
        "--restore-detached",
        "--pidfile",
        "/run/pid",
        "--empty-ns",
        "net",
        "--tcp-established",
        "--manage-cgroups=ignore",
        "--file-locks",
    };

    for (size_t i = 0; i < COUNT_OF(options); i++)
        criu_arg(args, "%s", options[i]);
    criu_arg(args, "--ghost-limit");
    criu_arg(args, "%d", LIMIT_GHOST_BYTES);
    size_t cgroups = 0;
    for (size_t i = 0; i < image->count; i++) {
        cgroups += image->parts[i].from == IMAGE_CGROUP;
        if (!add_part(restore, args, image, &image->parts[i], err))
            return false;
    }
    return cgroups == restore->user_count || other_cgroups(err);
}

/* ---- in the helper: steps of CRIU ---- */

static bool enter_namespace(int pid, const char *name, int kind, struct err *err)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, kind) < 0)
        return err_sys(err, "enter a namespace of the sandbox");
    return true;
}

/* The host name by our own power; the rest as the sandbox's root, as native_child() does it. */
static bool set_up(const struct restore *restore, int pid, struct err *err)
{
    const struct native *native = restore->box->native;
    const char *name = restore->plan.hostname;
    auto_close int root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (root_fd < 0)
        return err_sys(err, "open /");
    if (!enter_namespace(pid, "user", CLONE_NEWUSER, err) || !enter_namespace(pid, "net", CLONE_NEWNET, err) ||
        !enter_namespace(pid, "uts", CLONE_NEWUTS, err))
        return false;
    return network_set_up(native->network == NETWORK_NONE ? NULL : &native->rules, err) &&
           child_write_knobs(root_fd, err) &&
           (sethostname(name, strlen(name)) == 0 || err_sys(err, "set the host name"));
}

static bool set_host_name(const struct restore *restore, int pid, struct err *err)
{
    const char *name = restore->plan.hostname;

    return enter_namespace(pid, "uts", CLONE_NEWUTS, err) &&
           (sethostname(name, strlen(name)) == 0 || err_sys(err, "set the host name"));
}

/* In a process of its own: there is no way back from a user namespace. */
static bool in_child(bool (*fn)(const struct restore *restore, int pid, struct err *err), const struct restore *restore,
                     int pid, struct err *err)
{
    int pipe_fds[2], status;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, "make a pipe");
    auto_close int read_fd = pipe_fds[0], write_fd = pipe_fds[1];
    pid_t child = fork();
    if (child < 0)
        return err_sys(err, "fork");
    if (child == 0) {
        struct err why = { 0 };
        bool fine = fn(restore, pid, &why);
        if (!fine)
            (void)!write(write_fd, &why, sizeof why);
        _exit(!fine);
    }
    fd_close(&write_fd);
    struct err why;
    ssize_t n = read(read_fd, &why, sizeof why);
    if (waitpid(child, &status, 0) < 0)
        return err_sys(err, "wait for a child");
    if (n == sizeof why) {
        *err = why;
        return err_wrap(err, "inside");
    }
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
           err_set(err, ERR_INTERNAL, "a step of the restore failed");
}

/* See above. Whether it works does not matter. */
static void hurry(const int *fds, size_t count)
{
    if (count > 0)
        (void)!write(fds[0], "0", 1);
}

/* The helper's own state, next to what keeper has told it. */
struct work {
    const struct restore *restore;
    pid_t marker;      /* 0: there is none, or it has ended */
    pid_t mover;       /* 0: none yet */
    int go_fd;         /* to it: the number of guestd */
    bool may_run;      /* from here on its processes may run, whatever else fails */
    uint64_t until_ms; /* …and CRIU must be done by then */
};

static bool move_guestd(const struct restore *restore, int pid, struct err *err)
{
    char text[16];
    int len = snprintf(text, sizeof text, "%d", pid);

    for (size_t i = 0; i < restore->guestd_count; i++)
        if (write(restore->guestd_fds[i], text, (size_t)len) != len)
            return err_sys(err, "move guestd to its cgroup");
    return true;
}

/* The mover is a child beside CRIU: it hurries, and moves guestd when it hears its number. */
static bool start_mover(struct work *work, struct err *err)
{
    int pipe_fds[2], pid;
    struct err why;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, "make a pipe");
    auto_close int read_fd = pipe_fds[0];
    work->go_fd = pipe_fds[1];
    work->mover = fork();
    if (work->mover == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd_close(&work->go_fd);
        hurry(work->restore->user_fds, work->restore->user_count);
        _exit(!(read(read_fd, &pid, sizeof pid) == sizeof pid && move_guestd(work->restore, pid, &why)));
    }
    return work->mover > 0 || err_sys(err, "fork");
}

/* Also after a failure: nobody else waits for it. */
static bool end_mover(struct work *work, struct err *err)
{
    int status = -1;

    fd_close(&work->go_fd);
    if (work->mover <= 0 || waitpid(work->mover, &status, 0) < 0 || status != 0)
        return err_set(err, ERR_INTERNAL, "guestd cannot be moved to its cgroup");
    return true;
}

/* In a child: the disk may take as long as all the rest. */
static bool start_marker(struct work *work, struct err *err)
{
    const struct restore *restore = work->restore;
    struct err why;

    if (restore->plan.from != PLAN_PARKED_IMAGE)
        return true;
    work->marker = fork();
    if (work->marker == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* or it ends when it has written it: nothing runs before that */
        _exit(!state_mark_resumed(restore->sandbox_fd, restore->box->native->boot_id, true, &why));
    }
    return work->marker > 0 || err_sys(err, "fork");
}

static bool end_marker(struct work *work, struct err *err)
{
    pid_t marker = work->marker;
    int status = -1;

    work->marker = 0;
    return marker == 0 || (marker > 0 && waitpid(marker, &status, 0) == marker && status == 0) ||
           err_set(err, ERR_INTERNAL, "that it was resumed cannot be written to disk");
}

static bool act(void *context, const char *step, int pid, struct err *err)
{
    struct work *work = context;

    if (strcmp(step, "setup-namespaces") == 0)
        return in_child(set_up, work->restore, pid, err);
    if (strcmp(step, "post-setup-namespaces") == 0)
        return start_mover(work, err);
    if (strcmp(step, "post-restore") == 0) {
        /* All processes are there, each in the cgroup that CRIU is in, and none has run yet. */
        if (!end_marker(work, err))
            return false;
        if (write(work->go_fd, &pid, sizeof pid) != sizeof pid)
            return err_sys(err, "tell guestd's number");
        return in_child(set_host_name, work->restore, pid,
                        err); /* again: CRIU has set the one of the image meanwhile */
    }
    if (strcmp(step, "pre-resume") == 0 && !work->may_run) {
        work->may_run = true;
        work->until_ms = clock_mono_ms() + RUN_MS;
    }
    return true;
}

/* ---- in the helper ---- */

static bool read_pid(uint64_t *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(AT_FDCWD, "/run/pid", 64, &text, &len, err))
        return false;
    return (str_to_u64(str_trim(str_of(text, len)), INT32_MAX, out) && *out > 1) ||
           err_set(err, ERR_INTERNAL, "CRIU says no process id");
}

/* Whatever it was, of a damaged image or by CRIU: the asker learns what still works, and the log the reason. */
static bool refuse(struct err *err)
{
    const struct err why = *err;

    if (why.kind == ERR_CONFLICT)
        return false; /* says so already */
    (void)err_set(err, ERR_CONFLICT,
                  "its memory could not be brought back; it can be started from its files (on_resume='reboot')");
    /* What CRIU's log is explained with is said of dumps: the line of it is enough. */
    return err_wrap(err, "%s", strncmp(why.trail, "CRIU: ", 6) == 0 ? why.trail : err_text(&why));
}

static struct cgroup_limits wide_limits_of(const struct plan *plan)
{
    struct cgroup_limits limits = cgroup_limits_of(plan);
    uint64_t mib = CRIU_MIB + (uint64_t)CRIU_PROCESS_MIB * MIN(plan->pids, CRIU_PROCESSES);

    limits.memory_bytes += cgroup_guestd_limits.memory_bytes + (mib << 20);
    limits.pids += cgroup_guestd_limits.pids + CRIU_PIDS;
    return limits;
}

/*
 * The memory of guestd stays charged to the `user` leaf, and pages that processes have shared with each other or with a
 * zygote may be several now: all of it may be more than the limit. Then the limit is the next step that it fits in, until it
 * fits the sandbox's own (tighten.h). Not more than a quarter above: a guest can have pages doubled on purpose.
 */
static bool tighten(const struct restore *restore, uint64_t *out_memory_bytes, struct err *err)
{
    struct cgroup_limits limits = cgroup_limits_of(&restore->plan);
    uint64_t most = limits.memory_bytes + limits.memory_bytes / 4 + cgroup_guestd_limits.memory_bytes;

    most = MIN(most, wide_limits_of(&restore->plan).memory_bytes);
    while (!cgroup_tighten(&restore->reins, &limits, err)) {
        if (err->sys != EBUSY)
            return err_wrap(err, "limit the sandbox");
        if (limits.memory_bytes == most)
            return err_set(err, ERR_CONFLICT,
                           "its memory takes more than its limit allows, because pages that it has shared are several "
                           "now; it can be started from its files (on_resume='reboot')");
        limits.memory_bytes = MIN(limits.memory_bytes + ((uint64_t)STEP_MIB << 20), most);
    }
    *out_memory_bytes = limits.memory_bytes;
    return true;
}

/*
 * CRIU does not notice that the kernel has killed one of its children: it would wait for it. And once the first processes run,
 * one of them may end others that CRIU still traces. Then CRIU gives up and waits for pid 1, and pid 1 for what CRIU traces.
 */
static bool look(void *context, struct err *err)
{
    const struct work *work = context;

    if (work->may_run && clock_mono_ms() >= work->until_ms)
        return err_set(err, ERR_CONFLICT,
                       "a process of it ended just as it came back; try again, or start it from its files "
                       "(on_resume='reboot')");
    return cgroup_user_oom_kills(&work->restore->reins) == 0 ||
           err_set(err, ERR_FULL, "it takes more memory than it may have: the kernel has killed a process of it");
}

static bool run(const struct restore *restore, struct criu_args *args, uint64_t *out_pid, bool *out_may_run,
                struct err *err)
{
    auto_image struct image image = { 0 };
    struct work work = { .restore = restore, .go_fd = -1 };
    struct err why;

    if (!start_marker(&work, err) || !read_image(restore, &image, err) || !cover_ids(restore, err) ||
        !add_args(restore, args, &image, err) ||
        !criu_run(&(struct criu_run){ .args = args, .act = act, .look = look, .context = &work }, err)) {
        (void)!end_mover(&work, &why);
        (void)!end_marker(&work, &why); /* what it has made is removed below */
        *out_may_run = work.may_run;
        return refuse(err);
    }
    *out_may_run = true;
    bool moved = end_mover(&work, &why);
    if (!read_pid(out_pid, err))
        return false;
    if (!moved)
        *err = why;
    return moved;
}

static bool work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct restore *restore = context;
    const struct criu_room room = { .tools_fd = restore->box->native->memory.tools_fd,
                                    .known_fd = restore->box->native->memory.known_fd,
                                    .image_fd = restore->image_fd,
                                    .freezer_fd = -1,
                                    .root_fd = restore->root_fd,
                                    .devices_fd = restore->devices_fd };
    struct criu_args args;
    uint64_t pid = 0, memory_bytes = 0;
    bool may_run = false;

    if (!criu_enter(&room, err) || !enter_sandbox_cgroup(restore, err))
        return false;
    criu_args_init(&args);
    bool fine = run(restore, &args, &pid, &may_run, err) && tighten(restore, &memory_bytes, err);
    criu_args_done(&args);
    struct err ignored;    /* then its image is not used in the next boot, which is safe */
    if (!fine && !may_run) /* nothing of it has changed its files */
        (void)!state_unmark_resumed(restore->sandbox_fd, &ignored);
    helper_figure(voice, FIGURE_PID, pid);
    helper_figure(voice, FIGURE_MEMORY, memory_bytes);
    return fine;
}

/* ---- in keeper ---- */

static void restore_free(struct restore *restore)
{
    helper_cancel(restore->helper);
    helper_cancel(restore->herald);
    image_release(restore->image, restore);
    fd_close(&restore->sandbox_fd);
    fd_close(&restore->claim_fd);
    fd_close(&restore->image_fd);
    fd_close(&restore->root_fd);
    fd_close(&restore->devices_fd);
    fd_close(&restore->program_fd);
    fd_close(&restore->enter_fd);
    fd_close_each(restore->files_fds, LIMIT_LAYERS);
    fd_close(&restore->handover_fd);
    fd_close(&restore->userns_fd);
    fd_close(&restore->cgroupns_fd);
    fd_close_each(restore->above_fds, restore->above_count);
    fd_close_each(restore->user_fds, restore->user_count);
    fd_close_each(restore->guestd_fds, restore->guestd_count);
    cgroup_close_reins(&restore->reins);
    restore->box->restore = NULL;
    free(restore);
}

void restore_forget(struct box *box, const struct err *why)
{
    struct restore *restore = box->restore;

    if (!restore)
        return;
    restore_fn *done = restore->done;
    void *context = restore->context;
    restore_free(restore);
    done(context, box, -1, why);
}

/* The helper says which process it is; where it is tells us that it is ours. */
static bool take_process(struct restore *restore, uint64_t pid, struct err *err)
{
    struct box *box = restore->box;
    struct native *native = box->native;
    auto_close int pidfd = pidfd_open((pid_t)pid, 0);
    auto_free struct state *state = NEW(struct state);

    if (pidfd < 0)
        return err_sys(err, "hold the restored sandbox");
    if (!cgroup_holds(native->cgroups, box->id, (pid_t)pid) || process_ended(pidfd))
        return err_set(err, ERR_INTERNAL, "it ended as it came back");
    if (!state_read(restore->sandbox_fd, state, err))
        return false;
    state->pid = (pid_t)pid;
    state->owner = 0; /* CRIU makes the user namespace as root */
    state->network = box->network = native->network;
    if (!state_process_start_time((pid_t)pid, &state->start_time, err) ||
        !state_rewrite(restore->sandbox_fd, state, err))
        return false;
    box->pid = (pid_t)pid;
    box->pidfd = take_fd(&pidfd);
    return native_reach(native, NATIVE_AT_RESTORE_PROCESS, err);
}

static bool give_sockets(struct restore *restore, int *out_link_fd, struct err *err)
{
    const struct box *box = restore->box;
    const struct native *native = box->native;

    return handover_replace(native->netns_fd, box->pidfd, restore->sandbox_fd, err) &&
           native_reach(native, NATIVE_AT_RESTORE_SOCKET, err) &&
           handover_link(native->netns_fd, box->pidfd, restore->sandbox_fd, out_link_fd, err) &&
           native_reach(native, NATIVE_AT_RESTORE_LINK, err);
}

/* From here on it is one that runs. */
static bool settle(struct restore *restore, struct err *err)
{
    auto_free struct state *state = NEW(struct state);

    if (!state_read(restore->sandbox_fd, state, err))
        return false;
    state->held = HELD_RUNNING;
    return state_rewrite(restore->sandbox_fd, state, err);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct restore *restore = context;
    struct box *box = restore->box;
    restore_fn *done = restore->done;
    void *done_context = restore->context;
    auto_close int link_fd = -1;
    struct err why;

    restore->helper = NULL;
    if (err)
        why = *err;
    else if (!take_process(restore, figures[FIGURE_PID], &why) || !give_sockets(restore, &link_fd, &why) ||
             !settle(restore, &why))
        err = &why;
    else if (figures[FIGURE_MEMORY] > restore->plan.memory_bytes) {
        const struct cgroup_limits limits = cgroup_limits_of(&restore->plan);
        log_info("native: sandbox %s has come back with more than its %" PRIu64 " MiB: it may have %" PRIu64 " for now",
                 box->id, restore->plan.memory_bytes >> 20, figures[FIGURE_MEMORY] >> 20);
        tighten_later(box, &limits);
    }
    restore_free(restore);
    done(done_context, box, err ? -1 : take_fd(&link_fd), err ? &why : NULL);
}

/* A user namespace with the slot's ids, for mounts: CRIU makes another one with the same ids later. */
static bool make_userns(struct restore *restore, struct err *err)
{
    int pidfd = -1;
    struct clone_args args = { .flags = CLONE_NEWUSER | CLONE_PIDFD,
                               .pidfd = (uint64_t)(uintptr_t)&pidfd,
                               .exit_signal = SIGCHLD };
    char path[64], map[64];
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);

    if (pid == 0) {
        /* A copy of keeper: it may neither outlive it nor hold what keeper holds. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close_range(0, ~0u, 0);
        while (getppid() == keeper)
            (void)pause();
        _exit(0);
    }
    if (pid < 0)
        return err_sys(err, "make a user namespace");
    (void)snprintf(path, sizeof path, "/proc/%d", pid);
    auto_close int proc_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(map, sizeof map, "0 %" PRIu32 " %d", restore->uid_base, NATIVE_UIDS);
    bool fine = proc_fd < 0 ? err_sys(err, "open %s", path)
                            : fd_write_file(proc_fd, "uid_map", str_from(map), err) &&
                                  fd_write_file(proc_fd, "gid_map", str_from(map), err);
    if (fine) {
        restore->userns_fd = openat(proc_fd, "ns/user", O_RDONLY | O_CLOEXEC);
        fine = restore->userns_fd >= 0 || err_sys(err, "open a user namespace");
        fine = fine && native_reach(restore->box->native, NATIVE_AT_RESTORE_IDS, err);
    }
    (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    (void)waitid((idtype_t)P_PIDFD, (id_t)pidfd, NULL, WEXITED);
    fd_close(&pidfd);
    return fine;
}

static bool close_all_but(int fd)
{
    return (fd == 0 || close_range(0, (unsigned)fd - 1, 0) == 0) && close_range((unsigned)fd + 1, ~0u, 0) == 0;
}

/*
 * On v2 nothing can be in <id> once its leaves have limits, as they must before CRIU runs there. So a child that was born in
 * <id> makes the namespace, and is gone before that.
 */
static bool make_cgroupns(struct restore *restore, struct err *err)
{
    struct cgroups *cgroups = restore->box->native->cgroups;
    auto_close int birth_fd = -1, pidfd = -1;
    int made[2];
    char path[64], byte;

    if (cgroups_report(cgroups)->layout != CGROUP_V2)
        return true;
    if (!cgroup_open_birth(cgroups, restore->box->id, &birth_fd, err))
        return false;
    if (pipe2(made, O_CLOEXEC) < 0)
        return err_sys(err, "make a pipe");
    auto_close int made_fd = made[0], say_fd = made[1];
    struct clone_args args = { .flags = CLONE_PIDFD | CLONE_INTO_CGROUP,
                               .pidfd = (uint64_t)(uintptr_t)&pidfd,
                               .cgroup = (uint64_t)birth_fd,
                               .exit_signal = SIGCHLD };
    pid_t keeper = getpid(), pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        /* As in make_userns(): with keeper's lock and the claim it would keep the next keeper out. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close_all_but(say_fd);
        if (unshare(CLONE_NEWCGROUP) < 0 || write(say_fd, "m", 1) != 1)
            _exit(1);
        while (getppid() == keeper)
            (void)pause();
        _exit(0);
    }
    if (pid < 0)
        return err_sys(err, "make a process in the sandbox's cgroup");
    fd_close(&say_fd);
    bool fine = read(made_fd, &byte, 1) == 1 || err_set(err, ERR_INTERNAL, "cannot make a cgroup namespace");
    if (fine) {
        (void)snprintf(path, sizeof path, "/proc/%d/ns/cgroup", pid);
        restore->cgroupns_fd = open(path, O_RDONLY | O_CLOEXEC);
        fine = restore->cgroupns_fd >= 0 || err_sys(err, "open a cgroup namespace");
    }
    (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    (void)waitid((idtype_t)P_PIDFD, (id_t)pidfd, NULL, WEXITED);
    return fine;
}

/* So that no copy draws the random numbers that another one has: see above. */
static void begin_generation(void)
{
    auto_close int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
        log_warn("native: random numbers that a restored program has drawn before may repeat: %s", strerror(errno));
}

/* What its programs have seen so far: for them nothing has started again. NULL: the image is older than this file. */
static const char *read_boot_id(const struct restore *restore, char room[IMAGE_BOOT_ID_BYTES])
{
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    if (!fd_read_file(restore->image_fd, IMAGE_BOOT_ID, IMAGE_BOOT_ID_BYTES, &text, &len, &err))
        return NULL;
    if (len != IMAGE_BOOT_ID_BYTES || strspn(text, "0123456789abcdef-") != len - 1)
        return NULL; /* it ends with its line */
    memcpy(room, text, len);
    room[len - 1] = '\0';
    return room;
}

/* Roots of all its layers, and of those below each one that was made while its processes ran. */
static bool make_files(struct restore *restore, const struct mounts_ids *ids, struct err *err)
{
    struct native *native = restore->box->native;
    struct plan below = restore->plan;

    for (bool is_last = false; !is_last; below.layer_count--) {
        uint32_t top = below.layer_count - 1;
        if (!mounts_zygote(&native->mounts, native->layers_fd, &below, ids, &restore->files_fds[top], err))
            return err->sys == EINVAL; /* Linux before 6.3: no zygote either, so nothing is asked for there */
        is_last = top == 0 || !snapshot_outlived_layer(native->layers_fd, below.layers[top]);
    }
    return true;
}

/* With an offset, flags and locks of its own: a guest may have it open, and must not share these with anybody. */
static bool open_again(int fd, int *out_fd, struct err *err)
{
    char path[40];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out_fd = open(path, O_RDONLY | O_CLOEXEC);
    return *out_fd >= 0 || err_sys(err, "open guestd's program");
}

static bool herald_work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct restore *restore = context;

    (void)voice;
    (void)err;
    hurry(restore->above_fds, restore->above_count);
    return true;
}

static void herald_ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct restore *restore = context;

    (void)figures;
    (void)err;
    restore->herald = NULL;
}

/* For the helper, which comes as soon as the ground is made. */
static void start_herald(struct restore *restore)
{
    struct err ignored; /* then it waits itself */
    struct helper_job job = { .work = herald_work,
                              .ended = herald_ended,
                              .context = restore,
                              .runs_criu = true, /* nothing that it sees is a guest's */
                              .patience_ms = HERALD_MS };

    if (restore->above_count == 0 || restore->cgroupns_fd >= 0) /* on v2 the helper does not go there */
        return;
    job.dirs[job.dir_count++] = (struct helper_dir){ restore->above_fds[0], HELPER_HOLD };
    restore->herald = helper_start(restore->box->native->helpers, &job, &ignored);
}

static bool make_ground(struct restore *restore, struct err *err)
{
    struct native *native = restore->box->native;
    const struct plan *plan = &restore->plan;
    const struct cgroup_limits limits = wide_limits_of(plan);
    char boot_id[IMAGE_BOOT_ID_BYTES];

    if (!cgroup_lay_out(native->cgroups, plan->id, &limits, err) || !make_cgroupns(restore, err) ||
        !cgroup_switch_on(native->cgroups, plan->id, &limits, err) ||
        !cgroup_open_above(native->cgroups, plan->id, restore->above_fds, &restore->above_count, err))
        return false;
    start_herald(restore);
    if (!cgroup_open_user(native->cgroups, plan->id, restore->user_fds, &restore->user_count, err) ||
        !cgroup_open_guestd(native->cgroups, plan->id, restore->guestd_fds, &restore->guestd_count, err) ||
        !cgroup_open_reins(native->cgroups, plan->id, &restore->reins, err) || !make_userns(restore, err))
        return false;
    const struct mounts_ids ids = { .userns_fd = restore->userns_fd, .uid_base = restore->uid_base };
    if (!mounts_overlay(&native->mounts, native->layers_fd, restore->sandbox_fd, plan, &ids, &restore->root_fd, err) ||
        !make_files(restore, &ids, err) ||
        !mounts_devices(&ids, read_boot_id(restore, boot_id), &restore->devices_fd, err))
        return false;
    if (!open_again(native->guestd_fd, &restore->program_fd, err) ||
        !open_again(native->enter_fd, &restore->enter_fd, err))
        return false;
    restore->handover_fd = handover_listen_here(restore->sandbox_fd, err);
    return restore->handover_fd >= 0;
}

static void give(struct helper_job *job, int fd)
{
    if (fd >= 0)
        job->dirs[job->dir_count++] = (struct helper_dir){ fd, HELPER_HOLD };
}

static bool start_helper(struct restore *restore, struct err *err)
{
    struct native *native = restore->box->native;
    struct helper_job job = {
        .work = work, .runs_criu = true, .ended = ended, .context = restore, .patience_ms = LIMIT_DUMP_MS
    };

    give(&job, native->memory.tools_fd);
    give(&job, native->memory.known_fd);
    give(&job, restore->program_fd);
    give(&job, restore->enter_fd);
    give(&job, restore->sandbox_fd);
    give(&job, restore->claim_fd);
    give(&job, restore->image_fd);
    give(&job, restore->root_fd);
    give(&job, restore->devices_fd);
    for (size_t i = 0; i < COUNT_OF(restore->files_fds); i++)
        give(&job, restore->files_fds[i]);
    give(&job, restore->handover_fd);
    for (size_t i = 0; i < restore->above_count; i++)
        give(&job, restore->above_fds[i]);
    for (size_t i = 0; i < restore->user_count; i++)
        give(&job, restore->user_fds[i]);
    for (size_t i = 0; i < restore->guestd_count; i++)
        give(&job, restore->guestd_fds[i]);
    for (size_t i = 0; i < restore->reins.count; i++) {
        give(&job, restore->reins.fds[i]);
        give(&job, restore->reins.above_fds[i]);
    }
    give(&job, restore->reins.events_fd);
    give(&job, restore->reins.current_fd);
    give(&job, restore->reins.reclaim_fd);
    give(&job, restore->cgroupns_fd);
    restore->helper = helper_start(native->helpers, &job, err);
    /* The helper has them now; ours would keep the overlay mounted after the sandbox's end, and the sandbox claimed. */
    fd_close(&restore->claim_fd);
    fd_close(&restore->root_fd);
    fd_close(&restore->devices_fd);
    fd_close(&restore->program_fd);
    fd_close(&restore->enter_fd);
    fd_close_each(restore->files_fds, LIMIT_LAYERS);
    return restore->helper != NULL;
}

static bool go(struct restore *restore, struct err *err)
{
    begin_generation();
    return make_ground(restore, err) && start_helper(restore, err);
}

/* Its pages were compressed, and are whole now. */
static void expanded(void *context, const struct err *err)
{
    struct restore *restore = context;
    struct err why;

    if (err) {
        why = *err;
        if (why.kind != ERR_FULL) /* which passes */
            (void)refuse(&why);
        if (why.kind == ERR_CONFLICT && restore->plan.from == PLAN_IMAGE) {
            (void)err_set(&why, ERR_CONFLICT, "the memory of this snapshot is damaged on disk: make a new snapshot");
            (void)err_wrap(&why, "%s", err_text(err));
        }
    } else if (go(restore, &why)) {
        return;
    }
    ended(restore, NULL, &why);
}

static bool begin(struct restore *restore, struct err *err)
{
    if (restore->sandbox_fd < 0 || restore->claim_fd < 0 || restore->image_fd < 0)
        return err_sys(err, "keep the image");
    return image_is_whole(restore->image) ? go(restore, err) : image_expand(restore->image, expanded, restore, err);
}

bool box_restore(struct box *box, const struct restore_from *from, restore_fn *done, void *context, struct err *err)
{
    struct restore *restore = NEW(struct restore);

    *restore = (struct restore){ .box = box,
                                 .plan = *from->plan,
                                 .sandbox_fd = fcntl(from->sandbox_fd, F_DUPFD_CLOEXEC, 3),
                                 .claim_fd = fcntl(from->claim_fd, F_DUPFD_CLOEXEC, 3),
                                 .image_fd = fcntl(from->image_fd, F_DUPFD_CLOEXEC, 3),
                                 .root_fd = -1,
                                 .devices_fd = -1,
                                 .program_fd = -1,
                                 .enter_fd = -1,
                                 .handover_fd = -1,
                                 .userns_fd = -1,
                                 .cgroupns_fd = -1,
                                 .reins = { .events_fd = -1, .current_fd = -1, .reclaim_fd = -1 },
                                 .uid_base = box->native->uid_base + box->slot * NATIVE_UIDS,
                                 .done = done,
                                 .context = context };
    for (size_t i = 0; i < COUNT_OF(restore->files_fds); i++)
        restore->files_fds[i] = -1;
    restore->image =
        image_hold(box->native, from->plan->from == PLAN_PARKED_IMAGE ? from->plan->id : from->plan->image);
    box->restore = restore;
    if (begin(restore, err))
        return true;
    restore_free(restore);
    return false;
}
