/*
 * Theory of operation: the helper makes mounts of what CRIU needs while it still sees keeper's tree (open_tree), then
 * leaves it: a mount namespace of its own, the tools as its root, the rest attached in there, pivot_root. Not chroot: the
 * kernel refuses to make a user namespace from inside one.
 *
 * CRIU calls a script at each step of a restore. Ours is a program (criu_tool.c): it writes the step into one pipe and waits
 * for an answer in the other, and the helper does what there is to do in between. The same program is CRIU's tar.
 *
 * When CRIU starts it tries what the kernel can, which takes as long as a restore, and leaves what it has found in its /run.
 * That is ours and new each time, so the file that the test at keeper's start has left is put there again (known_fd). It is
 * of this boot and of these very tools, because both are as old as keeper; CRIU looks besides whether its own build made it.
 */
#include "isolation/native/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <poll.h>
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
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/criu_log.h"
#include "isolation/native/room.h"
#include "isolation/native/tree.h"

enum {
    ARGS_BYTES = 4 << 20,
    LOG_BYTES = 1 << 20, /* errors and warnings only; a longer one is cut */
    SCRIPT_BYTES = 128,
    KNOWN_BYTES = 64 * 1024, /* 1 KiB in CRIU 4.2 */
    LOOK_MS = 20,
    END_MS = 1500, /* from the order to let go to its end; at its next write, as a rule, which is at once */
};

/* ---- what it sees ---- */

static bool make_device(int root_fd, const char *path, unsigned major_number, unsigned minor_number, struct err *err)
{
    if (mknodat(root_fd, path, S_IFCHR | 0666, makedev(major_number, minor_number)) < 0 ||
        fchmodat(root_fd, path, 0666, 0) < 0)
        return err_sys(err, "make /%s", path);
    return true;
}

static bool make_own(int root_fd, struct err *err)
{
    const struct tree_option open_to_all[] = { { "mode",
                                                 "0755" } }; /* restored processes look through it as their users */
    const struct tree_option pts[] = { { "mode", "0620" }, { "ptmxmode", "0666" } };

    if (!tree_mount(root_fd, "proc", "proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, NULL, 0, err) ||
        !tree_mount(root_fd, "tmpfs", "tmp", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, open_to_all, 1, err) ||
        !tree_mount(root_fd, "tmpfs", "run", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, open_to_all, 1, err) ||
        !tree_mount(root_fd, "tmpfs", "dev", MOUNT_ATTR_NOSUID, open_to_all, 1, err))
        return false;
    if (mkdirat(root_fd, "dev/pts", 0755) < 0 || symlinkat("pts/ptmx", root_fd, "dev/ptmx") < 0)
        return err_sys(err, "make /dev/pts");
    return tree_mount(root_fd, "devpts", "dev/pts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, pts, 2, err) &&
           make_device(root_fd, "dev/null", 1, 3, err) && make_device(root_fd, "dev/zero", 1, 5, err) &&
           make_device(root_fd, "dev/urandom", 1, 9, err);
}

static bool attach_if(int root_fd, int mount_fd, const char *path, struct err *err)
{
    return mount_fd < 0 || tree_attach(root_fd, mount_fd, path, err);
}

static bool write_program(const char *path, const void *bytes, size_t size, struct err *err)
{
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);

    if (fd < 0 || fchmod(fd, 0755) < 0 || write(fd, bytes, size) != (ssize_t)size)
        return err_sys(err, "write %s", path);
    return true;
}

#define KNOWN "/run/criu.kdat"
#define SCRIPT "/tmp/script"

static bool copy_known(int from_fd, int to_fd)
{
    auto_free char *bytes = mem_new(KNOWN_BYTES);
    ssize_t len = pread(from_fd, bytes, KNOWN_BYTES, 0);

    return len > 0 && len < KNOWN_BYTES && write(to_fd, bytes, (size_t)len) == len;
}

bool criu_keep_known(int known_fd)
{
    auto_close int fd = open(KNOWN, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    return fd >= 0 && copy_known(fd, known_fd);
}

/* Without it CRIU is slower, and no worse. Half of it CRIU takes for none. */
static void tell_known(int known_fd)
{
    if (known_fd < 0)
        return;
    auto_close int fd = open(KNOWN, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)!copy_known(known_fd, fd);
}

bool criu_enter(const struct criu_room *room, struct err *err)
{
    auto_close int tools =
        tree_clone(room->tools_fd, "", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, err);
    struct mount_attr alone = { .propagation = MS_PRIVATE };
    if (tools < 0)
        return false;
    (void)umask(022); /* whatever keeper's is: processes that are restored read the image as the sandbox's root */
    /* What is shared, as systemd makes all mounts, cannot become a root. Those that keeper sees are not; doctor's are. */
    if (mount_setattr(tools, "", AT_EMPTY_PATH, &alone, sizeof alone) < 0)
        return err_sys(err, "have CRIU's files to ourselves");
    uint64_t tame = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    auto_close int image = room->image_fd < 0 ? -1 : tree_clone(room->image_fd, "", tame, err);
    if (room->image_fd >= 0 && image < 0)
        return false;
    auto_close int freezer = room->freezer_fd < 0 ? -1 : tree_clone(room->freezer_fd, "", 0, err);
    if (room->freezer_fd >= 0 && freezer < 0)
        return false;
    if (unshare(CLONE_NEWNS | CLONE_NEWNET) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        move_mount(tools, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "make namespaces for CRIU");
    /* It tries what the kernel can, with a connection to itself. */
    if (!network_set_up(NULL, err) || !make_own(tools, err) ||
        (image < 0 ? !tree_mount(tools, "tmpfs", "image", tame, NULL, 0, err)
                   : !tree_attach(tools, image, "image", err)))
        return false;
    if (!attach_if(tools, freezer, "run/freezer", err) || !attach_if(tools, room->root_fd, "box", err) ||
        !attach_if(tools, room->devices_fd, "run/dev", err) || !tree_pivot(tools, err))
        return false;
    tell_known(room->known_fd);
    return write_program(SCRIPT, criu_criu_tool, criu_criu_tool_size, err) &&
           (link(SCRIPT, "/tmp/tar") == 0 || err_sys(err, "make /tmp/tar")) &&
           write_program("/tmp/shim.so", criu_criu_shim_so, criu_criu_shim_so_size, err) &&
           ((mkfifo("/tmp/ask", 0600) == 0 && mkfifo("/tmp/answer", 0600) == 0) || err_sys(err, "make pipes"));
}

/* ---- arguments ---- */

void criu_args_init(struct criu_args *args)
{
    args->text = buf_make(NULL, ARGS_BYTES);
    args->count = 0;
}

void criu_args_done(struct criu_args *args)
{
    buf_done(&args->text);
}

void criu_arg(struct criu_args *args, const char *format, ...)
{
    char text[LIMIT_PATH_BYTES + 64];
    va_list list;

    va_start(list, format);
    int len = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (len < 0 || (size_t)len >= sizeof text || args->count == CRIU_ARGS - 1) {
        args->text.overflowed = true;
        return;
    }
    args->at[args->count++] = args->text.len;
    buf_add(&args->text, str_of(text, (size_t)len + 1)); /* with its zero byte */
}

/* ---- running it ---- */

static const unsigned char capabilities[] = {
    CAP_SYS_ADMIN,          /* namespaces, mounts, seccomp of others */
    CAP_SYS_PTRACE,         /* memory and registers */
    CAP_CHECKPOINT_RESTORE, /* pids, /proc/<pid>/map_files, exe */
    CAP_SYS_RESOURCE,       /* limits; where root has it */
    CAP_SYS_CHROOT,         /* roots of processes */
    CAP_SYS_NICE,           /* scheduling */
    CAP_NET_ADMIN,          /* TCP connections, in the sandbox's own network */
    CAP_KILL,               /* stop and end its processes */
    CAP_SETUID,             /* become its users */
    CAP_SETGID,             /* … */
    CAP_SETPCAP,            /* … */
    CAP_SETFCAP,            /* file capabilities on a tmpfs; maps of its user namespace */
    CAP_CHOWN,              /* files that are open and deleted, files of a tmpfs */
    CAP_FOWNER,             /* … */
    CAP_FSETID,             /* … */
    CAP_DAC_OVERRIDE,       /* … */
    CAP_DAC_READ_SEARCH,    /* …, and files by handle: inotify */
    CAP_MKNOD,              /* … */
    CAP_NET_BIND_SERVICE,   /* sockets on low ports */
    CAP_IPC_OWNER,          /* SysV IPC */
};

static bool drop_capabilities(bool is_test, struct err *err)
{
    uint64_t keep = is_test ? 1ull << CAP_SYS_TIME : 0;

    for (size_t i = 0; i < sizeof capabilities; i++)
        keep |= 1ull << capabilities[i];
    for (unsigned capability = 0; capability < 64; capability++)
        if (!(keep & 1ull << capability) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one this kernel has */
            return err_sys(err, "drop capability %u", capability);
        }
    return true;
}

/* For the shim: "CLOISTER_NAMESPACES=net=7 uts=8 …", descriptors that CRIU inherits. */
static void open_namespaces(int pid, char *room, size_t room_size)
{
    static const char *const names[] = { "net", "uts", "time", "ipc", "mnt" };
    size_t len = (size_t)snprintf(room, room_size, "CLOISTER_NAMESPACES=");
    char path[64];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, names[i]);
        int fd = open(path, O_RDONLY);
        if (fd >= 0 && len < room_size)
            len += (size_t)snprintf(room + len, room_size - len, "%s=%d ", names[i], fd);
    }
}

static no_return void become_criu(pid_t helper, const struct criu_run *run, char **argv)
{
    char owner[48], namespaces[128];
    char *environment[5] = { (char *)"PATH=/tmp:/usr/sbin:/usr/bin" };
    struct err err;
    int null_fd = open("/dev/null", O_RDWR);

    /* If the helper died before it was set, we have another parent. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != helper)
        _exit(1);
    (void)signal(SIGPIPE, SIG_DFL);
    if (run->dumps) {
        const struct rlimit largest = { LIMIT_IMAGE_FILE_BYTES, LIMIT_IMAGE_FILE_BYTES };
        const struct rlimit own = { LIMIT_DUMP_BYTES, LIMIT_DUMP_BYTES };
        /* Without the signal a write fails, and CRIU ends as it does after other errors. */
        if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &largest) < 0 ||
            setrlimit(RLIMIT_DATA, &own) < 0)
            _exit(1);
        (void)snprintf(owner, sizeof owner, "CLOISTER_OWNER=%u", run->owner);
        open_namespaces(run->dumps, namespaces, sizeof namespaces);
        environment[1] = (char *)"LD_PRELOAD=/tmp/shim.so";
        environment[2] = owner;
        environment[3] = namespaces;
        /* For the shim's change of user and back. A restore must not have it: restored processes would inherit it. */
        if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0)
            _exit(1);
    }
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0 ||
        !drop_capabilities(run->is_test, &err))
        _exit(1);
    (void)execve("/usr/sbin/criu", argv, environment);
    _exit(1);
}

/* "setup-namespaces 1234" */
static bool hear_step(const struct criu_run *run, int ask_fd, int answer_fd, struct err *err)
{
    char said[SCRIPT_BYTES];
    ssize_t n = read(ask_fd, said, sizeof said - 1);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return err_sys(err, "hear CRIU");
    struct str line = str_of(said, (size_t)n), name;
    uint64_t pid;
    if (line.at[line.len - 1] == '\n')
        line.len--;
    if (!str_cut(&line, ' ', &name) || !str_to_u64(line, INT32_MAX, &pid))
        return err_set(err, ERR_INTERNAL, "CRIU's script says something unexpected");
    said[name.len] = '\0';
    bool fine = !run->act || run->act(run->context, said, (int)pid, err);
    struct str answer = fine ? STR("fine\n") : STR("wrong\n");
    if (write(answer_fd, answer.at, answer.len) != (ssize_t)answer.len)
        return err_sys(err, "answer CRIU");
    return fine;
}

/* A dump, in the middle of it. */
static bool may_go_on(const struct criu_run *run, int image_fd, bool keeper_wants_it, struct err *err)
{
    if (!keeper_wants_it)
        return err_set(err, ERR_UNAVAILABLE, "keeper wants no image any more");
    if (run->until_ms && clock_mono_ms() >= run->until_ms)
        return err_set(err, ERR_TIMEOUT,
                       "its memory was not written in time: the disk is slow, or the memory is large");
    return room_check_memory(image_fd, 0, err);
}

/*
 * Has the kernel begin to write the memory to disk while CRIU still dumps: the sync that follows has less to wait for. CRIU
 * numbers its files from 1, and dumps one process after the other.
 */
static void write_behind(int image_fd)
{
    for (unsigned i = 1;; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "pages-%u.img", i);
        auto_close int fd = openat(image_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return;
        (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* if not, the sync writes it */
    }
}

static bool await(const struct criu_run *run, pid_t pid, int pidfd, int ask_fd, int answer_fd, int *out_status,
                  struct err *err)
{
    bool fine = true;
    uint64_t kill_ms = UINT64_MAX;
    auto_close int image_fd = run->dumps && !run->is_test ? open(CRIU_IMAGE, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;

    for (;;) {
        struct pollfd fds[] = { { .fd = pidfd, .events = POLLIN },
                                { .fd = ask_fd, .events = POLLIN },
                                { .fd = fine && image_fd >= 0 ? run->keeper_fd : -1 } };
        bool looks = fine && (image_fd >= 0 || run->look);
        if (poll(fds, COUNT_OF(fds), looks || kill_ms < UINT64_MAX ? LOOK_MS : -1) < 0 && errno != EINTR)
            return err_sys(err, "wait for CRIU");
        if (looks && image_fd >= 0 && !may_go_on(run, image_fd, !fds[2].revents, err)) {
            /* Not killed, which may kill what it has stopped: its next write fails, and it lets go of all. */
            const struct rlimit none = { 0, 0 };
            fine = looks = false;
            (void)prlimit(pid, RLIMIT_FSIZE, &none, NULL);
            kill_ms = clock_mono_ms() + END_MS;
        }
        if (looks && image_fd >= 0)
            write_behind(image_fd);
        if (clock_mono_ms() >= kill_ms)
            (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
        if (looks && run->look && !run->look(run->context, err)) {
            fine = false;
            (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0); /* or it has ended */
        }
        if (fds[1].revents && !hear_step(run, ask_fd, answer_fd, err))
            fine = false; /* CRIU undoes what it has made and ends */
        if (!fds[0].revents)
            continue;
        siginfo_t how = { 0 };
        if (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &how, WEXITED) < 0)
            return err_sys(err, "wait for CRIU");
        *out_status = how.si_code == CLD_EXITED ? how.si_status : -1;
        return fine;
    }
}

static void explain(struct err *err)
{
    auto_free char *log = mem_new(LOG_BYTES);
    auto_close int fd = open(CRIU_LOG, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? 0 : read(fd, log, LOG_BYTES);

    criu_log_explain(str_of(log, len < 0 ? 0 : (size_t)len), err);
}

bool criu_run(const struct criu_run *run, struct err *err)
{
    struct criu_args *args = run->args;
    auto_close int ask_fd = open("/tmp/ask", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    auto_close int answer_fd = open("/tmp/answer", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    auto_free char **argv = NULL;
    int status;

    if (ask_fd < 0 || answer_fd < 0)
        return err_sys(err, "open pipes");
    if (run->act) {
        criu_arg(args, "--action-script");
        criu_arg(args, SCRIPT);
    }
    if (args->text.overflowed)
        return err_set(err, ERR_LIMIT, "the sandbox has more open files than can be written to disk");
    argv = mem_new((args->count + 1) * sizeof *argv);
    for (size_t i = 0; i < args->count; i++)
        argv[i] = args->text.data + args->at[i];
    argv[args->count] = NULL;
    bool ends_softly = run->dumps && !run->is_test;
    if (ends_softly && prctl(PR_SET_PDEATHSIG, 0) < 0)
        return err_sys(err, "prepare for a dump");
    pid_t helper = getpid(), pid = fork();
    if (pid == 0)
        become_criu(helper, run, argv);
    auto_close int pidfd = pid < 0 ? -1 : pidfd_open(pid, 0);
    if (pidfd < 0)
        return err_sys(err, "start CRIU");
    bool fine = await(run, pid, pidfd, ask_fd, answer_fd, &status, err);
    if (ends_softly && prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return err_sys(err, "end with keeper");
    if (!fine)
        return false;
    if (status != 0) {
        explain(err);
        return false;
    }
    return true;
}

/* ---- in keeper ---- */

int criu_open_tools(const char *path, struct err *err)
{
    auto_close int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0) {
        if (errno == ENOENT)
            (void)err_set(err, ERR_UNAVAILABLE, "there is no CRIU in %s: scripts/criu.sh puts it there", path);
        else
            (void)err_sys(err, "open %s", path);
        return -1;
    }
    if (fstat(fd, &st) < 0 || st.st_uid != 0 || st.st_mode & (S_IWGRP | S_IWOTH)) {
        (void)err_set(err, ERR_UNAVAILABLE, "%s can be written by others than root", path);
        return -1;
    }
    if (faccessat(fd, "usr/sbin/criu", X_OK, 0) < 0) {
        (void)err_set(err, ERR_UNAVAILABLE, "there is no CRIU in %s: scripts/criu.sh puts it there", path);
        return -1;
    }
    return take_fd(&fd);
}
