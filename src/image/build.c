/*
 * Theory of operation: the child is kept apart because it runs programs that come from elsewhere. Three processes:
 *
 *   outer    root of the host, in a mount namespace of its own. Makes all of the host's files read-only, puts an empty
 *            tmpfs over /tmp and the tree into it, mounted through the ids of a new user namespace, and a few harmless
 *            devices into a /dev of its own. Then it enters that namespace for good, leaves root's session, and waits
 *            for its child.
 *   init     process 1 of a PID namespace that belongs to the user namespace, like its mounts: when it ends, the kernel
 *            ends all others. Mounts /proc, starts the program and waits for it.
 *   program  root of the user namespace alone. To the host it is a user that owns nothing and is in no group.
 *
 * Whatever the program writes into the tree has the ids on disk that it sees itself, without a copy. A parent that dies
 * takes its child along, from the command down to the program.
 */
#include "image/build.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/origins.h"
#include "base/str.h"

/* 0x7fff0000 and the 65,535 after it: above those of sandboxes and zygotes (isolation/native), below the signed border. */
#define ID_MAP "0 2147418112 65536"

void build_give_up(const char *doing)
{
    (void)dprintf(1, "E: %s: %s\n", doing, strerror(errno));
    _exit(126);
}

/* ---- apart from the host ---- */

/* A user namespace outlives its processes as long as a descriptor of it is open. */
static int make_ids(void)
{
    char path[48];
    int gate[2];

    if (pipe2(gate, O_CLOEXEC) < 0)
        build_give_up("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        char ready = unshare(CLONE_NEWUSER) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
        (void)!write(gate[1], &ready, 1);
        for (;;)
            (void)pause();
    }
    char ready = 0;
    if (pid < 0 || read(gate[0], &ready, 1) != 1 || !ready)
        build_give_up("make a user namespace");
    (void)snprintf(path, sizeof path, "/proc/%d", pid);
    auto_close int proc_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct err err;
    if (!fd_write_file(proc_fd, "uid_map", STR(ID_MAP), &err) || !fd_write_file(proc_fd, "gid_map", STR(ID_MAP), &err))
        build_give_up("map the ids of a user namespace");
    int userns_fd = openat(proc_fd, "ns/user", O_RDONLY | O_CLOEXEC);
    if (userns_fd < 0)
        build_give_up("open a user namespace");
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    fd_close(&gate[0]);
    fd_close(&gate[1]);
    return userns_fd;
}

/* In the mount namespace that the tree was opened in: no other one can clone it. */
static int map_tree(int tree_fd, int userns_fd)
{
    struct mount_attr mapped = { .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
                                 .userns_fd = (uint64_t)userns_fd };
    int fd = open_tree(tree_fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

    if (fd < 0 || mount_setattr(fd, "", AT_EMPTY_PATH, &mapped, sizeof mapped) < 0)
        build_give_up("mount the new tree with other ids");
    return fd;
}

static void leave_mounts(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        build_give_up("make a mount namespace");
}

/* Read-only files do not keep anybody from opening devices: terminals, above all. */
static void make_devices(void)
{
    static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom" };
    struct mount_attr frozen = { .attr_set = MOUNT_ATTR_RDONLY };
    int fds[COUNT_OF(devices)];

    for (size_t i = 0; i < COUNT_OF(devices); i++)
        fds[i] = open_tree(AT_FDCWD, devices[i], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755") < 0)
        build_give_up("mount /dev");
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        auto_close int file_fd = open(devices[i], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file_fd < 0 || move_mount(fds[i], "", AT_FDCWD, devices[i], MOVE_MOUNT_F_EMPTY_PATH) < 0)
            build_give_up(devices[i]);
        fd_close(&fds[i]);
    }
    if (mount_setattr(AT_FDCWD, "/dev", 0, &frozen, sizeof frozen) < 0)
        build_give_up("make /dev read-only");
}

static void show_tree(int tree_fd)
{
    struct mount_attr frozen = { .attr_set = MOUNT_ATTR_RDONLY }, thawed = { .attr_clr = MOUNT_ATTR_RDONLY };

    /* A namespace whose /proc is read-only gets no other one. What is in there is guarded by ids. */
    if (mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &frozen, sizeof frozen) < 0 ||
        mount_setattr(AT_FDCWD, "/proc", 0, &thawed, sizeof thawed) < 0)
        build_give_up("make the host's files read-only");
    if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0 || mkdir(BUILD_TREE, 0755) < 0 ||
        move_mount(tree_fd, "", AT_FDCWD, BUILD_TREE, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        build_give_up("show the new tree");
    make_devices();
}

/* Ends as the process does. */
static no_return void exit_like(pid_t pid)
{
    int status;

    for (;;) {
        pid_t ended = waitpid(-1, &status, 0);
        if (ended < 0 && errno != EINTR)
            _exit(126);
        if (ended == pid)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 126);
    }
}

static no_return void run_init(const struct build_child *child)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        build_give_up("mount /proc");
    pid_t pid = fork();
    if (pid == 0) {
        child->run(child->context);
        _exit(126);
    }
    if (pid < 0)
        build_give_up("fork");
    exit_like(pid);
}

/*
 * run_apart() - between fork and the program's own init.
 *   user      root of the host, then of a user namespace     mounts   a private copy of the host's
 *   root      the host's, read-only but for /tmp             network  the host's
 *   must      hold no descriptor of the host's directories, no group, capability, terminal or key of the host at its end
 */
static no_return void run_apart(const struct build_child *child)
{
    int userns_fd = make_ids(), tree_fd = map_tree(child->tree_fd, userns_fd);
    struct err err;

    leave_mounts();
    show_tree(tree_fd);
    if (setgroups(0, NULL) < 0 || setns(userns_fd, CLONE_NEWUSER) < 0 ||
        unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
        build_give_up("enter namespaces");
    if (close_range(3, ~0u, 0) < 0 || chdir("/") < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        build_give_up("become another user");
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* the kernel forgets it when ids change */
    /* Not before: from here on a signal to the group of the command no longer reaches us, and its end has to. */
    if (!origins_leave(&err))
        build_give_up("leave the session of the host");
    pid_t pid = fork();
    if (pid == 0)
        run_init(child);
    if (pid < 0)
        build_give_up("fork");
    exit_like(pid);
}

/* ---- a child ---- */

static no_return void start(const struct build_child *child, int output_fd)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* If we are killed, the child must not go on mounting and writing below tmp/. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(output_fd, 1) < 0 || dup2(output_fd, 2) < 0)
        _exit(126);
    run_apart(child);
}

static void read_lines(const struct build_child *child, int fd)
{
    char line[BUILD_LINE_BYTES - 1], piece[4096];
    size_t len = 0;
    ssize_t n;

    while ((n = read(fd, piece, sizeof piece)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* the exit status is checked later */
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] == '\n' || piece[i] == '\r') {
                child->line(child->context, str_of(line, len));
                len = 0;
            } else if (len < sizeof line) {
                line[len++] = piece[i];
            }
        }
    }
}

bool build_run(const struct build_child *child, bool *out_fine, struct err *err)
{
    int pipe_fds[2], status;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, "pipe");
    auto_close int read_fd = pipe_fds[0];
    pid_t pid = fork();
    if (pid == 0)
        start(child, pipe_fds[1]);
    int failed = errno;
    fd_close(&pipe_fds[1]);
    if (pid < 0)
        return err_sys_num(err, failed, "fork");
    read_lines(child, read_fd);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_sys(err, "wait for the build");
    *out_fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return true;
}

bool build_note_packages(int data_fd, const char *name, const char *layer, struct str list, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, BUILD_PACKAGES_BYTES + 256);

    if (mkdirat(data_fd, "packages", 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make directory packages");
    auto_close int dir_fd = openat(data_fd, "packages", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return err_sys(err, "open directory packages");
    buf_format(&text, "# What layer %s of the template %s has\n", layer, name);
    buf_add(&text, list);
    if (text.overflowed)
        return err_set(err, ERR_LIMIT, "the list of packages in %s is too long", name);
    return fd_replace_file(dir_fd, name, buf_str(&text), 0600, err);
}

void build_hash_add(crypto_generichash_state *state, const char *text)
{
    /* With the zero byte, so that "ab","c" and "a","bc" differ. */
    (void)crypto_generichash_update(state, (const unsigned char *)text, strlen(text) + 1);
}
