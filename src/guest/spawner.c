/*
 * spawner.c - theory of operation. The spawner is a fork of guestd. It enters the user's cgroups; then it reads
 * requests from a SOCK_SEQPACKET pair. A request is one byte and five descriptors: a memfd, the three ends of the
 * command, and the write end of its report.
 *
 * The memfd holds a struct spawn and all it points to, with pointers that are right at one address: `room`, address
 * space that guestd reserves before it forks the spawner, so that it is free in both. The spawner maps the memfd there
 * and has nothing to decode. It can trust the contents: no guest can reach the memfd or the socket, because neither
 * process is dumpable.
 *
 * One byte without descriptors from the spawner means that it is in the cgroups; until then guestd forks by itself.
 *
 * The first child of a start (see spawn.c) is a vfork: it shares the spawner's memory, so only the second one copies
 * it. If it cannot fork, the spawner sends the request back, and guestd forks itself.
 */
#include "guest/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/pass.h"

enum {
    ROOM_BYTES = 32 << 20, /* execve() takes a quarter of the stack limit, usually 2 MiB; more would fail there */
    RESTART_MS = 1000,     /* a guest that kills it in a loop costs us one fork a second */
    SOCKET_FD = 3,
};

struct spawner {
    struct loop *loop;
    const int *cgroup_fds;
    size_t cgroup_count;
    char *room;
    int socket_fd; /* -1: there is none */
    int pidfd;
    struct watch *watch;
    bool is_ready; /* it is in the cgroups */
    uint64_t restart_at_ms;
};

enum request_fd { IMAGE, IN, OUT, ERR, REPORT, REQUEST_FDS };

/* ---- requests ---- */

static bool reserve_room(char *at, int flags)
{
    return mmap(at, ROOM_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0) != MAP_FAILED;
}

/* Adds bytes to the image. Returns where they will be once it is mapped. */
static void *place(struct buf *image, char *room, const void *bytes, size_t len)
{
    while (image->len % _Alignof(max_align_t))
        buf_add_char(image, '\0');
    char *at = room + image->len;
    buf_add(image, str_of(bytes, len));
    return at;
}

static void *place_text(struct buf *image, char *room, const char *text)
{
    return text ? place(image, room, text, strlen(text) + 1) : NULL;
}

static void *place_list(struct buf *image, char *room, const char *const *list, struct arena *arena)
{
    size_t count = 0;

    while (list[count])
        count++;
    char **at = ARENA_ARRAY(arena, char *, count + 1);
    for (size_t i = 0; i < count; i++)
        at[i] = place_text(image, room, list[i]);
    return place(image, room, at, (count + 1) * sizeof *at);
}

/* A memfd with the command. Its descriptors travel beside it, and the spawner is in the cgroups already. */
static int make_image(char *room, const struct spawn *spawn, struct arena *arena, struct err *err)
{
    struct buf image = buf_make(arena, ROOM_BYTES);
    struct spawn copy = *spawn;

    (void)place(&image, room, &copy, sizeof copy);
    copy.files = place_list(&image, room, spawn->files, arena);
    copy.argv = place_list(&image, room, (const char *const *)spawn->argv, arena);
    copy.envp = place_list(&image, room, (const char *const *)spawn->envp, arena);
    copy.cwd = place_text(&image, room, spawn->cwd);
    copy.cwd_else = place_text(&image, room, spawn->cwd_else);
    copy.groups = place(&image, room, spawn->groups, spawn->group_count * sizeof *spawn->groups);
    copy.cgroup_fds = NULL;
    copy.cgroup_count = 0;
    if (image.overflowed) {
        (void)err_set(err, ERR_LIMIT, "the command's arguments and variables are too long");
        return -1;
    }
    memcpy(image.data, &copy, sizeof copy);
    auto_close int fd = memfd_create("command", MFD_CLOEXEC);
    if (fd < 0) {
        (void)err_sys(err, "make an image");
        return -1;
    }
    return fd_write_all(fd, buf_str(&image), err) ? take_fd(&fd) : -1;
}

static struct spawn *map_image(char *room, const int fds[REQUEST_FDS])
{
    struct stat about;

    if (fstat(fds[IMAGE], &about) < 0 || about.st_size < (off_t)sizeof(struct spawn) || about.st_size > ROOM_BYTES ||
        mmap(room, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fds[IMAGE], 0) == MAP_FAILED)
        return NULL;
    struct spawn *spawn = (struct spawn *)(void *)room;
    spawn->in_fd = fds[IN];
    spawn->out_fd = fds[OUT];
    spawn->err_fd = fds[ERR];
    return spawn;
}

/*
 * One message: a request with all its descriptors, or a byte without any (out_fds[IMAGE] is -1). 0 at the end; -1 if
 * there is none now, or if we had no free descriptor for one of them.
 */
static ssize_t receive(int socket_fd, int flags, int out_fds[REQUEST_FDS])
{
    char letter;
    struct iovec piece = { .iov_base = &letter, .iov_len = 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(REQUEST_FDS * sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    size_t count = 0;
    ssize_t n;

    do
        n = recvmsg(socket_fd, &message, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < REQUEST_FDS; i++)
        out_fds[i] = -1;
    if (count)
        memcpy(out_fds, CMSG_DATA(header), count * sizeof(int)); /* there is room for no more */
    if (count == REQUEST_FDS || !(message.msg_flags & MSG_CTRUNC))
        return n;
    fd_close_each(out_fds, count);
    errno = EAGAIN;
    return -1;
}

static void close_request(char *room, int fds[REQUEST_FDS])
{
    (void)reserve_room(room, MAP_FIXED); /* drops the image */
    fd_close_each(fds, REQUEST_FDS);
}

/* ---- the process ---- */

static int start_one(const struct spawn *spawn, int report_fd)
{
    volatile int error = 0; /* written by the first child, which shares this memory */
    pid_t pid = vfork();    /* NOLINT(clang-analyzer-security.insecureAPI.vfork): it must not copy our memory */

    if (pid == 0) {
        error = spawn_second(spawn, report_fd); /* NOLINT(clang-analyzer-unix.Vfork): Linux allows any call here */
        _exit(0);
    }
    if (pid < 0)
        return errno;
    /* Not by ignoring SIGCHLD: the first child would inherit that, and the second child's status could be lost. */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return error;
}

/*
 * serve() - all that the spawner does after its fork.
 *   memory    a copy of guestd's, its secrets too; not dumpable     cgroup    guestd's, then the user's
 *   user      root of the sandbox                                   signals   all blocked
 *   must      give its children no descriptor but those of their request
 *   must not  allocate, take locks, return
 */
static no_return void serve(const struct spawner *spawner, int socket_fd)
{
    int fds[REQUEST_FDS];

    (void)prctl(PR_SET_NAME, "guestd-spawner");
    for (size_t i = 0; i < spawner->cgroup_count; i++)
        if (write(spawner->cgroup_fds[i], "0", 1) < 0)
            _exit(1);
    (void)setsid(); /* signals to guestd's group must not reach it */
    if (dup2(socket_fd, SOCKET_FD) < 0 || fcntl(SOCKET_FD, F_SETFD, FD_CLOEXEC) < 0 ||
        close_range(SOCKET_FD + 1, ~0u, 0) < 0)
        _exit(1);
    (void)signal(SIGCHLD, SIG_DFL); /* guestd's handler must not run here */
    if (send(SOCKET_FD, "y", 1, MSG_NOSIGNAL) < 0)
        _exit(1);
    for (;;) {
        ssize_t n = receive(SOCKET_FD, 0, fds);
        if (n == 0)
            _exit(0); /* guestd is gone, and the sandbox with it */
        if (n < 0 || fds[IMAGE] < 0)
            continue;
        const struct spawn *spawn = map_image(spawner->room, fds);
        struct err ignored; /* if this fails the report ends early, which has the same effect */
        if (spawn && start_one(spawn, fds[REPORT]) != 0)
            (void)!pass_fds(SOCKET_FD, STR("r"), fds, REQUEST_FDS, &ignored);
        close_request(spawner->room, fds);
    }
}

/* ---- guestd's side ---- */

static void let_go(struct spawner *spawner)
{
    spawner->is_ready = false;
    watch_free(take_ptr(&spawner->watch));
    fd_close(&spawner->socket_fd);
    fd_close(&spawner->pidfd);
}

/*
 * The spawner cannot fork: the sandbox has used up its processes. Moving a process there is not subject to that limit.
 */
static void start_here(struct spawner *spawner, int fds[REQUEST_FDS])
{
    struct spawn *spawn = map_image(spawner->room, fds);
    struct err err;

    if (spawn) {
        spawn->cgroup_fds = spawner->cgroup_fds;
        spawn->cgroup_count = spawner->cgroup_count;
        if (!spawn_command(spawn, fds[REPORT], &err))
            log_warn("spawner: %s", err_text(&err)); /* the report ends, which its reader sees */
    }
    close_request(spawner->room, fds);
}

static void on_spawner(void *context, unsigned ready)
{
    struct spawner *spawner = context;
    int fds[REQUEST_FDS];

    (void)ready;
    ssize_t n = receive(spawner->socket_fd, MSG_DONTWAIT, fds);
    if (n > 0 && fds[IMAGE] < 0)
        spawner->is_ready = true;
    else if (n > 0)
        start_here(spawner, fds);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        let_go(spawner); /* dead; the reports of requests it had not begun have ended */
}

static void start_process(struct spawner *spawner)
{
    int pair[2];
    sigset_t all, before;

    spawner->restart_at_ms = clock_mono_ms() + RESTART_MS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        log_warn("spawner: cannot make its socket, commands are forked by guestd: %s", strerror(errno));
        return;
    }
    auto_close int ours = pair[0], theirs = pair[1];
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = _Fork();
    if (pid == 0)
        serve(spawner, theirs);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        log_warn("spawner: cannot fork it, commands are forked by guestd: %s", strerror(errno));
        return;
    }
    spawner->pidfd = pidfd_open(pid, 0);
    spawner->socket_fd = take_fd(&ours);
    spawner->watch = watch_new(spawner->loop, spawner->socket_fd, on_spawner, spawner);
    watch_want(spawner->watch, WATCH_READ);
}

struct spawner *spawner_new(struct loop *loop, const int *cgroup_fds, size_t cgroup_count)
{
    struct spawner *spawner = NEW(struct spawner);

    *spawner = (struct spawner){
        .loop = loop, .cgroup_fds = cgroup_fds, .cgroup_count = cgroup_count, .socket_fd = -1, .pidfd = -1
    };
    spawner->room = mmap(NULL, ROOM_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (spawner->room == MAP_FAILED)
        log_die("spawner: cannot reserve address space: %s", strerror(errno));
    start_process(spawner);
    return spawner;
}

void spawner_free(struct spawner *spawner)
{
    if (!spawner)
        return;
    let_go(spawner);
    (void)munmap(spawner->room, ROOM_BYTES);
    free(spawner);
}

void spawner_restart(struct spawner *spawner)
{
    if (!spawner || spawner->socket_fd < 0)
        return;
    if (spawner->pidfd >= 0)
        (void)pidfd_send_signal(spawner->pidfd, SIGKILL, NULL, 0); /* it may be dead already */
    let_go(spawner);
}

/* We never stop it, but the guest's root can. */
static bool is_stopped(const struct spawner *spawner)
{
    siginfo_t how = { 0 };

    return spawner->pidfd >= 0 &&
           waitid((idtype_t)P_PIDFD, (id_t)spawner->pidfd, &how, WSTOPPED | WNOHANG | WNOWAIT) == 0 && how.si_pid != 0;
}

void spawner_check(struct spawner *spawner)
{
    if (spawner && is_stopped(spawner))
        spawner_restart(spawner);
}

/* False: the request was not sent. */
static bool ask(struct spawner *spawner, const struct spawn *spawn, struct arena *arena, int report_fd)
{
    struct err err;

    if (spawner->socket_fd < 0 && clock_mono_ms() >= spawner->restart_at_ms)
        start_process(spawner);
    /* Before it is ready guestd is as quick; and guestd's own child can be killed while it waits to be moved. */
    if (!spawner->is_ready)
        return false;
    auto_close int image_fd = make_image(spawner->room, spawn, arena, &err);
    const int fds[REQUEST_FDS] = { image_fd, spawn->in_fd, spawn->out_fd, spawn->err_fd, report_fd };
    return image_fd >= 0 && pass_fds(spawner->socket_fd, STR("s"), fds, REQUEST_FDS, &err);
}

bool spawner_start(struct spawner *spawner, const struct spawn *spawn, struct arena *arena, bool *out_asked,
                   int *out_report_fd, struct err *err)
{
    int report[2];

    if (pipe2(report, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, "make a pipe");
    auto_close int ours = report[0], theirs = report[1];
    bool asked = spawner && ask(spawner, spawn, arena, theirs);
    if (!asked && !spawn_command(spawn, theirs, err))
        return false;
    *out_asked = asked;
    *out_report_fd = take_fd(&ours);
    return true;
}
