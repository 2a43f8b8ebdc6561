/*
 * All of it happens in a process namespace of its own: numbers are free again for the restore whatever else the machine does,
 * and when its first process ends, or the one that waits for it, nothing is left.
 */
#include "isolation/native/criu_test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "isolation/native/criu.h"
#include "privsep/confine.h"

enum { OUTSIDE_FD = 9, READY_MS = 3000, LOOK_MS = 2 };

/* Both wait for ever: nothing writes to the pipe. */
#define PROGRAM "read never </tmp/never & echo yes >/tmp/ready; read never </tmp/never"

static no_return void be_tested(int outside_fd)
{
    char *const argv[] = { (char *)"sh", (char *)"-c", (char *)PROGRAM, NULL };
    char *const environment[] = { (char *)"PATH=/usr/bin", NULL };
    int null_fd = open("/dev/null", O_RDWR);
    struct err err;

    (void)setsid();
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0 ||
        dup2(outside_fd, OUTSIDE_FD) < 0 || close_range(3, OUTSIDE_FD - 1, 0) < 0 ||
        close_range(OUTSIDE_FD + 1, ~0u, 0) < 0 || !confine_drop_all_capabilities(&err))
        _exit(1);
    (void)execve("/usr/bin/sh", argv, environment);
    _exit(1);
}

static pid_t start(int outside_fd, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + READY_MS;

    if (mkfifo("/tmp/never", 0600) < 0) {
        (void)err_sys(err, "make a pipe");
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        be_tested(outside_fd);
    if (pid < 0) {
        (void)err_sys(err, "start a process to test CRIU with");
        return -1;
    }
    while (access("/tmp/ready", F_OK) < 0) {
        if (clock_mono_ms() > until_ms) {
            (void)err_set(err, ERR_TIMEOUT, "the process to test CRIU with does not start");
            return -1;
        }
        (void)usleep(LOOK_MS * 1000);
    }
    return pid;
}

static bool name_outside(int outside_fd, struct stat *out_st, char name[64], struct err *err)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    struct str line, rest;
    uint64_t mount_id;

    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", outside_fd);
    if (fstat(outside_fd, out_st) < 0)
        return err_sys(err, "look at a file");
    if (!fd_read_file(AT_FDCWD, path, 4096, &text, &len, err))
        return false;
    for (rest = str_of(text, len); rest.len && str_cut(&rest, '\n', &line);) {
        if (!str_skip(&line, STR("mnt_id:")) || !str_to_u64(str_trim(line), UINT64_MAX, &mount_id))
            continue;
        (void)snprintf(name, 64, "file[%" PRIx64 ":%" PRIx64 "]", mount_id, (uint64_t)out_st->st_ino);
        return true;
    }
    return err_set(err, ERR_INTERNAL, "a file has no mount");
}

static bool run(const char *const *options, size_t count, const char *option, const char *text, int number, int dumps,
                struct err *err)
{
    static const char *const common[] = { "--images-dir", CRIU_IMAGE, "--work-dir", "/run",
                                          "--log-file",   CRIU_LOG,   "-v2",        "--manage-cgroups=ignore" };
    struct criu_args args;

    criu_args_init(&args);
    criu_arg(&args, "criu");
    criu_arg(&args, "%s", options[0]);
    for (size_t i = 0; i < COUNT_OF(common); i++)
        criu_arg(&args, "%s", common[i]);
    for (size_t i = 1; i < count; i++)
        criu_arg(&args, "%s", options[i]);
    criu_arg(&args, "%s", option);
    criu_arg(&args, "%s", text);
    if (number) {
        criu_arg(&args, "--tree");
        criu_arg(&args, "%d", number);
    }
    bool fine = criu_run(&(struct criu_run){ .args = &args, .dumps = dumps, .is_test = true }, err);
    criu_args_done(&args);
    return fine;
}

/* Is it there, with the file? */
static bool look(const struct stat *want, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;
    uint64_t pid;
    char path[64];
    struct stat st;

    if (!fd_read_file(AT_FDCWD, "/run/pid", 64, &text, &len, err) ||
        (!str_to_u64(str_trim(str_of(text, len)), INT32_MAX, &pid) && !err_set(err, ERR_INTERNAL, "no process id")))
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, OUTSIDE_FD);
    return (stat(path, &st) == 0 && st.st_dev == want->st_dev && st.st_ino == want->st_ino) ||
           err_set(err, ERR_UNAVAILABLE, "CRIU brings processes back, but not the files that they had open");
}

static bool dump_and_restore(int tools_fd, int outside_fd, int known_fd, struct err *err)
{
    static const char *const dump[] = { "dump" };
    static const char *const restore[] = { "restore", "--restore-detached", "--pidfile", "/run/pid" };
    const struct criu_room room = {
        .tools_fd = tools_fd, .known_fd = -1, .image_fd = -1, .freezer_fd = -1, .root_fd = -1, .devices_fd = -1
    };
    char name[64], inherit[96];
    struct stat st;
    pid_t pid;

    if (!criu_enter(&room, err) || !name_outside(outside_fd, &st, name, err) || (pid = start(outside_fd, err)) < 0)
        return false;
    if (!run(dump, COUNT_OF(dump), "--external", name, pid, pid, err))
        return err_wrap(err, "dump");
    /* CRIU has ended them. The number of one that has not been waited for is still taken. */
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    (void)snprintf(inherit, sizeof inherit, "fd[%d]:%s", outside_fd, name + 1); /* add_part() in restore.c says why */
    if (!fd_set_cloexec(outside_fd, false, err))
        return false;
    if (!run(restore, COUNT_OF(restore), "--inherit-fd", inherit, 0, 0, err))
        return err_wrap(err, "restore");
    if (known_fd >= 0 && !criu_keep_known(known_fd))
        (void)!ftruncate(known_fd, 0); /* CRIU finds it out again each time */
    return look(&st, err);
}

bool criu_test(int tools_fd, int outside_fd, int known_fd, struct err *err)
{
    struct err why = { 0 };
    int pipe_fds[2];

    if (pipe2(pipe_fds, O_CLOEXEC) < 0 || unshare(CLONE_NEWPID) < 0)
        return err_sys(err, "prepare a test of CRIU");
    auto_close int read_fd = pipe_fds[0];
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (dump_and_restore(tools_fd, outside_fd, known_fd, &why))
            why.kind = ERR_NONE;
        _exit(write(pipe_fds[1], &why, sizeof why) == sizeof why ? 0 : 1);
    }
    fd_close(&pipe_fds[1]);
    if (pid < 0)
        return err_sys(err, "fork");
    if (read(read_fd, &why, sizeof why) != sizeof why)
        (void)err_set(&why, ERR_INTERNAL, "the process that tried it has died");
    (void)waitpid(pid, NULL, 0);
    *err = why;
    return why.kind == ERR_NONE;
}
