/*
 * composer_main() - makes MIME from drafts, and reads MIME that others have made, each message in a child of its own.
 *   holds     a channel to front
 *   must not  read a message itself: only its children do; open a file, connect anywhere
 *
 * How it works: front sends MESSAGE_COMPOSE. The composer makes a socket pair, forks a child with one end of it and replies
 * with the other. The child gives up everything but memory and this socket, answers one request (mail/compose.c) and ends.
 * The libraries that parse mail run only there, and what a message does to them dies with the child.
 *
 * The program is cloister-mail and not cloister, so that these libraries are not loaded into keeper, front and the workers
 * of inboxes.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/roles.h"
#include "daemon/supervisor.h"
#include "io/loop.h"
#include "mail/compose.h"
#include "privsep/channel.h"
#include "privsep/confine.h"
#include "privsep/role.h"

#ifndef COMPOSER_CPU_S /* a test has less time */
#define COMPOSER_CPU_S (LIMIT_COMPOSE_MS / 1000)
#endif

enum {
    CHILDREN_MOST = 2 * LIMIT_COMPOSERS, /* with those that have answered and not ended yet */
    CHILD_FDS = 4,                       /* 0 to 2, and the connection */
};

struct composer {
    struct loop *loop;
    struct channel *keeper;
    struct channel *peers[ROLE_COUNT];
    unsigned children;
    int exit_code;
};

static const struct confine_rule child_calls[];

/* ---- the child ---- */

/*
 * child_main() - composes or reads one message.
 *   must      close all descriptors but its connection; limit memory and time; load its seccomp list; in this order
 *   must not  touch the parent's loop and channels: they are copies
 */
static no_return void child_main(int connection)
{
    const struct confine_limits limits = {
        .memory_bytes = LIMIT_COMPOSER_BYTES, .cpu_s = COMPOSER_CPU_S, .files = CHILD_FDS, .no_file_data = true
    };
    struct err err;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)alarm(COMPOSER_CPU_S + 1); /* front has given up by then */
    /* Not even the log: libraries print parts of a message there. */
    if (dup2(STDIN_FILENO, STDERR_FILENO) < 0 || dup2(connection, ROLE_CHANNEL_FD) < 0 ||
        close_range(CHILD_FDS, ~0u, 0) < 0)
        _exit(2);
    if (!confine_limit(&limits, &err) || !confine_load_seccomp(child_calls, &err))
        _exit(3);
    _exit(composer_serve(ROLE_CHANNEL_FD, &err) ? 0 : 1);
}

/* ---- the parent ---- */

static bool start_child(struct composer *composer, int *out_fd, struct err *err)
{
    int pair[2];

    if (composer->children >= CHILDREN_MOST)
        return err_set(err, ERR_LIMIT, "too many messages are being composed; try again in a moment");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a connection for a message");
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    pid_t pid = fork();
    if (pid == 0)
        child_main(theirs);
    if (pid < 0)
        return err_sys(err, "start a process for a message");
    composer->children++;
    *out_fd = take_fd(&ours);
    return true;
}

static void on_child(void *context, int number)
{
    struct composer *composer = context;
    int status;

    (void)number;
    while (waitpid(-1, &status, WNOHANG) > 0) {
        composer->children--;
        if (WIFSIGNALED(status))
            log_warn("the process of a message was killed by signal %d%s", WTERMSIG(status),
                     WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU ? ": it took too long" : "");
        else if (WEXITSTATUS(status) > 1)
            log_error("the process of a message could not confine itself (step %d)", WEXITSTATUS(status));
    }
}

static bool on_front_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                             struct str payload, struct message_fds *fds, struct err *err)
{
    struct composer *composer = context;
    auto_close int fd = -1;
    struct err why;

    (void)fds;
    if (type != MESSAGE_COMPOSE || payload.len)
        return err_set(err, ERR_INVALID, "front may not send %s to composer", message_type_name[type]);
    if (start_child(composer, &fd, &why))
        channel_reply(channel, type, id, STR(""), &fd, 1);
    else
        channel_reply_error(channel, type, id, &why);
    return true;
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                            struct err *err)
{
    struct composer *composer = context;

    if (type == MESSAGE_PEER)
        return supervisor_take_peer(composer->peers, ROLE_COUNT, payload, fds, err);
    return err_set(err, ERR_INVALID, "keeper may not send %s to composer", message_type_name[type]);
}

static void on_keeper_broken(void *context, const struct err *why)
{
    struct composer *composer = context;

    log_error("keeper is gone: %s", err_text(why));
    composer->exit_code = 1;
    loop_stop_soon(composer->loop);
}

/* Front has ended, or sent nonsense: keeper starts another one, and connects it. */
static void on_front_broken(void *context, const struct err *why)
{
    (void)context;
    if (why->kind == ERR_INVALID)
        log_error("front's connection is closed: %s", err_text(why));
}

static void on_signal(void *context, int number)
{
    (void)number;
    loop_stop_soon(((struct composer *)context)->loop);
}

int composer_main(const struct role_row *self)
{
    static const struct channel_handlers from_keeper = { .event = on_keeper_event, .broken = on_keeper_broken };
    static const struct channel_handlers from_front = { .request = on_front_request, .broken = on_front_broken };
    struct composer *composer = NEW(struct composer);
    struct err err;

    (void)self;
    composer->loop = loop_new();
    (void)signal(SIGINT, SIG_IGN); /* a terminal sends it to all; keeper sends SIGTERM */
    composer->keeper = channel_new(composer->loop, ROLE_CHANNEL_FD, &from_keeper, composer);
    composer->peers[ROLE_FRONT] = channel_new(composer->loop, -1, &from_front, composer);
    if (loop_on_signal(composer->loop, SIGTERM, on_signal, composer, &err) &&
        loop_on_signal(composer->loop, SIGCHLD, on_child, composer, &err)) {
        loop_run(composer->loop);
    } else {
        log_error("cannot start: %s", err_text(&err));
        composer->exit_code = 1;
    }
    int code = composer->exit_code;
    channel_free(composer->peers[ROLE_FRONT]);
    channel_free(composer->keeper);
    loop_free(composer->loop);
    free(composer);
    return code;
}

/* What parent and child both need. */
#define CALLS_OF_ALL                                                                                                  \
    { "close", "descriptors" }, { "write", "the log; the child's goes to /dev/null" },                                \
        { "futex", "locks of libraries" }, { "restart_syscall", "after a signal" }, { "mmap", "memory" },             \
        { "munmap", "memory" }, { "mremap", "memory" }, { "mprotect", "memory" }, { "madvise", "memory given back" }, \
        { "brk", "memory" }, { "exit", "the end" }, { "exit_group", "the end" }, { "rt_sigaction", "abort" },         \
        { "rt_sigprocmask", "abort" }, { "rt_sigreturn", "signals" },                                                 \
        { "sigaltstack", "the sanitizers of test builds" }, { "getpid", "abort" }, { "gettid", "abort" },             \
        { "tgkill", "abort" }, { "getrandom", "hash tables of libraries, MIME boundaries" },                          \
        { "clock_gettime", "time, where the vDSO cannot" }, { "gettimeofday", "the same" },                           \
        { "sched_yield", "locks" }, { "sysinfo", "the allocator" }, { "recvfrom", "the child: its request" },         \
        { "sendto", "the child: its answer" }, { "poll", "the child: waiting for front" },                            \
    {                                                                                                                 \
        "ppoll", "the same, by another libc"                                                                          \
    }

/*
 * Every system call of a child. Left out on purpose: everything that makes a descriptor, starts a process or reads the
 * machine's files. iconv finds the character sets that composer_prepare() has loaded, and no others.
 */
static const struct confine_rule child_calls[] = { CALLS_OF_ALL, { NULL } };

/* Every system call of the parent, and what a child needs on its way to the list above. It opens nothing. */
const struct confine_rule composer_calls[] = {
    CALLS_OF_ALL,
    { "recvmsg", "keeper, front" },
    { "sendmsg", "front" },
    { "read", "wake-ups of the loop" },
    { "socketpair", "a connection for each message", .first = AF_UNIX },
    { "clone", "a child for each message" },
    { "clone3", "the same, by another libc" },
    { "wait4", "children that have ended" },
    { "set_robust_list", "the child of a fork" },
    { "rseq", "the same" },
    { "epoll_create1", "the loop" },
    { "epoll_ctl", "the loop" },
    { "epoll_wait", "the loop" },
    { "epoll_pwait", "the loop" },
    { "eventfd2", "the loop" },
    { "fcntl", "O_NONBLOCK" },
    { "ioctl", "the loop makes descriptors non-blocking by it", .only = FIONBIO },
    { "setsockopt", "channels" },
    { "getsockopt", "channels" },
    { "dup", "descriptors on their way to front" },
    { "dup2", "the child's connection" },
    { "dup3", "the same" },
    { "close_range", "the child closes the rest" },
    { "alarm", "the child's time" },
    { "setitimer", "the same, by another libc" },
    { "setrlimit", "the child's limits" },
    { "prlimit64", "the same; libc" },
    { "prctl", "the child dies with its parent; no_new_privs, before its list" },
    { "seccomp", "the child's list" },
    { NULL },
};
