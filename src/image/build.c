#include "image/build.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

void build_give_up(const char *doing)
{
    (void)dprintf(1, "E: %s: %s\n", doing, strerror(errno));
    _exit(126);
}

static no_return void start(const struct build_child *child, int output_fd)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* If we are killed, the child must not go on mounting and writing below tmp/. */
    (void)prctl(PR_SET_PDEATHSIG, child->death_signal);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(output_fd, 1) < 0 || dup2(output_fd, 2) < 0)
        _exit(126);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        build_give_up("make a mount namespace");
    child->run(child->context);
    _exit(126);
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
        if (child->log_fd >= 0)
            (void)!write(child->log_fd, piece, (size_t)n); /* a build does not fail for lack of its log */
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

bool build_path(int dir_fd, char *room, size_t size, struct err *err)
{
    char link[64];

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    ssize_t len = readlink(link, room, size - 1);
    if (len < 0)
        return err_sys(err, "find the path of the data directory");
    room[len] = '\0';
    return true;
}

void build_hash_add(crypto_generichash_state *state, const char *text)
{
    /* With the zero byte, so that "ab","c" and "a","bc" differ. */
    (void)crypto_generichash_update(state, (const unsigned char *)text, strlen(text) + 1);
}
