/*
 * How it works: front sends the role's message. The parent makes a socket pair, forks a child with one end of it and
 * replies with the other. The child gives up everything but memory, this socket and what its list of system calls allows,
 * answers one request and ends.
 *
 * A child that has computed for long gets less of the processors while others want them (nice), so that requests that are slow
 * on purpose slow down each other, and not those that have just begun.
 */
#include "daemon/forker.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/roles.h"
#include "daemon/supervisor.h"
#include "io/loop.h"
#include "privsep/channel.h"
#include "privsep/confine.h"
#include "privsep/role.h"

enum { YIELD_NICE = 10 }; /* a tenth of a processor that others want */

struct child {
    struct forker *forker;
    pid_t pid;
    struct timer timer; /* until the next look at the time that it has computed */
    struct child *next;
};

struct forker {
    const struct forker_config *config;
    struct confine_filter filter; /* of children */
    struct loop *loop;
    struct channel *keeper;
    struct channel *peers[ROLE_COUNT];
    struct child *children;
    unsigned child_count;
    int nice; /* that children begin with */
    int exit_code;
};

/* ---- the child ---- */

/*
 * child_main() - answers one request.
 *   must      close all descriptors but its connection; limit memory and time; start its threads; load its seccomp list; in
 *             this order
 *   must not  touch the parent's loop and channels: they are copies
 */
static no_return void child_main(const struct forker *forker, int connection)
{
    const struct forker_config *config = forker->config;
    struct err err;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)alarm(config->seconds);
    /* Not even the log: libraries print parts of a message there. */
    if (dup2(STDIN_FILENO, STDERR_FILENO) < 0 || dup2(connection, ROLE_CHANNEL_FD) < 0 ||
        close_range(ROLE_FIRST_FD + config->keep_fds, ~0u, 0) < 0)
        _exit(2);
    if (!confine_limit(&config->limits, &err) || (config->prepare && !config->prepare(config->context, &err)) ||
        !confine_load_filter(&forker->filter, &err))
        _exit(3);
    _exit(config->serve(config->context, ROLE_CHANNEL_FD, &err) ? 0 : 1);
}

/* ---- the parent ---- */

/* Of a child that was not waited for yet: its pid is nobody else's. */
static uint64_t computed_ms(pid_t pid)
{
    struct timespec used;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) < 0)
        return 0;
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

static void on_look(struct timer *timer)
{
    struct child *child = container_of(timer, struct child, timer);
    struct forker *forker = child->forker;
    unsigned yield_ms = forker->config->yield_ms;

    if (computed_ms(child->pid) < yield_ms)
        timer_set(timer, forker->loop, yield_ms, on_look);
    else if (setpriority(PRIO_PROCESS, (id_t)child->pid, MIN(forker->nice + YIELD_NICE, PRIO_MAX - 1)) < 0)
        log_warn("the process of a %s cannot be made to give way: %m", forker->config->what);
}

static void child_add(struct forker *forker, pid_t pid)
{
    struct child *child = NEW(struct child);

    *child = (struct child){ .forker = forker, .pid = pid, .next = forker->children };
    forker->children = child;
    forker->child_count++;
    if (forker->config->yield_ms)
        timer_set(&child->timer, forker->loop, forker->config->yield_ms, on_look);
}

static void child_remove(struct forker *forker, struct child **at)
{
    struct child *child = *at;

    *at = child->next;
    timer_clear(&child->timer);
    free(child);
    forker->child_count--;
}

static void child_ended(struct forker *forker, pid_t pid)
{
    struct child **at = &forker->children;

    while (*at && (*at)->pid != pid)
        at = &(*at)->next;
    if (*at)
        child_remove(forker, at);
}

static bool start_child(struct forker *forker, int *out_fd, struct err *err)
{
    int pair[2];

    if (forker->child_count >= forker->config->children_most)
        return err_set(err, ERR_LIMIT, "too many %ss at once; try again in a moment", forker->config->what);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a connection for a %s", forker->config->what);
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    pid_t pid = fork();
    if (pid == 0)
        child_main(forker, theirs);
    if (pid < 0)
        return err_sys(err, "start a process for a %s", forker->config->what);
    child_add(forker, pid);
    *out_fd = take_fd(&ours);
    return true;
}

static void on_child(void *context, int number)
{
    struct forker *forker = context;
    int status;

    (void)number;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        child_ended(forker, pid);
        if (WIFSIGNALED(status))
            log_warn("the process of a %s was killed by signal %d%s", forker->config->what, WTERMSIG(status),
                     WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU ? ": it took too long" : "");
        else if (WEXITSTATUS(status) > 1)
            log_error("the process of a %s could not confine itself (step %d)", forker->config->what,
                      WEXITSTATUS(status));
    }
}

static bool on_front_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                             struct str payload, struct message_fds *fds, struct err *err)
{
    struct forker *forker = context;
    auto_close int fd = -1;
    struct err why;

    (void)fds;
    if (type != forker->config->message || payload.len)
        return err_set(err, ERR_INVALID, "malformed message: %s is not for this role", message_type_name[type]);
    if (start_child(forker, &fd, &why))
        channel_reply(channel, type, id, STR(""), &fd, 1);
    else
        channel_reply_error(channel, type, id, &why);
    return true;
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                            struct err *err)
{
    struct forker *forker = context;

    if (type == MESSAGE_PEER)
        return supervisor_take_peer(forker->peers, ROLE_COUNT, payload, fds, err);
    if (forker->config->keeper_event)
        return forker->config->keeper_event(forker->config->context, type, payload, err);
    return err_set(err, ERR_INVALID, "malformed message: %s is not for this role", message_type_name[type]);
}

static void on_keeper_broken(void *context, const struct err *why)
{
    struct forker *forker = context;

    log_error("keeper is gone: %s", err_text(why));
    forker->exit_code = 1;
    loop_stop_soon(forker->loop);
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
    loop_stop_soon(((struct forker *)context)->loop);
}

int forker_run(const struct forker_config *config)
{
    static const struct channel_handlers from_keeper = { .event = on_keeper_event, .broken = on_keeper_broken };
    static const struct channel_handlers from_front = { .request = on_front_request, .broken = on_front_broken };
    struct forker *forker = NEW(struct forker);
    struct err err;

    forker->config = config;
    forker->loop = loop_new();
    forker->nice = getpriority(PRIO_PROCESS, 0);
    (void)signal(SIGINT, SIG_IGN); /* a terminal sends it to all; keeper sends SIGTERM */
    forker->keeper = channel_new(forker->loop, ROLE_CHANNEL_FD, &from_keeper, forker);
    forker->peers[ROLE_FRONT] = channel_new(forker->loop, -1, &from_front, forker);
    if (confine_compile_seccomp(config->calls, &forker->filter, &err) &&
        loop_on_signal(forker->loop, SIGTERM, on_signal, forker, &err) &&
        loop_on_signal(forker->loop, SIGCHLD, on_child, forker, &err)) {
        loop_run(forker->loop);
    } else {
        log_error("cannot start: %s", err_text(&err));
        forker->exit_code = 1;
    }
    int code = forker->exit_code;
    while (forker->children)
        child_remove(forker, &forker->children);
    channel_free(forker->peers[ROLE_FRONT]);
    channel_free(forker->keeper);
    loop_free(forker->loop);
    confine_filter_done(&forker->filter);
    free(forker);
    return code;
}
