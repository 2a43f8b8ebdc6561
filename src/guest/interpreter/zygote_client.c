/*
 * How it works: one request (wire/zygote.h) carries a socket and two pipes. The zygote's fork enters the sandbox and
 * sends ZYGOTE_ENTERED over that socket; the kernel attaches the sender's pid, which user code cannot forge. guestd
 * moves the process to the cgroups of what it starts, because the zygote is not allowed to, and answers ZYGOTE_MOVED.
 * From then on the socket carries frames (frame.h) and belongs to the engine.
 *
 * Until it is moved, the guest's root can already stop the fork. Keeper kills one that is held up (isolation/native/strays.h).
 * Each failure doubles the time until the zygote is asked again; a success does not shorten it.
 */
#include "guest/interpreter/zygote_client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/launch.h"
#include "io/pass.h"
#include "wire/zygote.h"

enum {
    PAUSE_MIN_MS = 5000, /* after a spawn that failed; doubled with each that follows… */
    PAUSE_MAX_MS = 300000,
    FORGET_MS = 900000, /* …before this has passed */
};

struct zygote_client {
    struct guest *guest;
    int socket_fd;       /* -1: there is no zygote */
    struct watch *watch; /* of the socket, for its end */
    struct workers *movers;
    unsigned pause_ms;      /* 0: no spawn has failed lately */
    uint64_t failed_ms;     /* when the last one did */
    uint64_t not_before_ms; /* until then the zygote is not asked */
    void (*on_closed)(void *owner);
    void *owner;
};

struct zygote_spawn {
    struct job move;
    struct zygote_client *client;
    const struct zygote_spawn_events *events;
    void *owner;
    int link_fd;
    struct watch *first_message; /* NULL once it has come */
    pid_t pid;
    int pidfd;
    bool is_moving, is_cancelled;
    struct err err; /* of the move */
};

/* ---- the socket ---- */

struct zygote_client *zygote_client_new(struct guest *guest, void (*on_closed)(void *owner), void *owner)
{
    struct zygote_client *client = NEW(struct zygote_client);

    *client = (struct zygote_client){ .guest = guest, .socket_fd = -1, .on_closed = on_closed, .owner = owner };
    client->movers = workers_new(guest->loop, 1);
    return client;
}

void zygote_client_close(struct zygote_client *client)
{
    if (client->socket_fd < 0)
        return;
    watch_free(take_ptr(&client->watch));
    fd_close(&client->socket_fd);
    client->on_closed(client->owner);
}

/* The zygote sends nothing here: all that can come is the end. */
static void on_socket(void *context, unsigned ready)
{
    (void)ready;
    zygote_client_close(context);
}

void zygote_client_open(struct zygote_client *client, int socket_fd)
{
    char byte;

    if (client->socket_fd >= 0 && recv(client->socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        fd_close(&socket_fd);
        return;
    }
    zygote_client_close(client);
    client->socket_fd = socket_fd;
    client->watch = watch_new(client->guest->loop, socket_fd, on_socket, client);
    watch_want(client->watch, WATCH_READ);
}

void zygote_client_free(struct zygote_client *client)
{
    if (!client)
        return;
    zygote_client_close(client);
    workers_free(client->movers);
    free(client);
}

void zygote_client_failed(struct zygote_client *client)
{
    uint64_t now_ms = loop_now_ms(client->guest->loop);

    if (now_ms - client->failed_ms > FORGET_MS)
        client->pause_ms = 0;
    client->failed_ms = now_ms;
    client->pause_ms = client->pause_ms ? MIN(2 * client->pause_ms, PAUSE_MAX_MS) : PAUSE_MIN_MS;
    client->not_before_ms = now_ms + client->pause_ms;
}

/* ---- whose interpreters it can have ---- */

/*
 * Variables that change how Python, or a package that the zygote has imported, starts. The zygote has started without
 * them, so a sandbox that sets one gets interpreters of its own. A name that ends in * is a prefix.
 */
static const struct {
    const char *name;
    const char *reason;
} start_variables[] = {
    { "PYTHON*", "Python's own: paths, hashing, warnings, encodings" },
    { "LD_*", "the dynamic linker: other libraries" },
    { "MALLOC_*", "the allocator is set up once" },
    { "GLIBC_TUNABLES", "the same" },
    { "LANG", "Python chooses its encoding by them, once" },
    { "LANGUAGE", "the same" },
    { "LC_*", "the same" },
    { "HOME", "where packages of the user and configurations are looked for" },
    { "XDG_*", "the same" },
    { "IPYTHON*", "where IPython's profile is" },
    { "JUPYTER_*", "the same" },
    { "MPL*", "matplotlib reads its configuration when it is imported" },
    { "MATPLOTLIBRC", "the same" },
    { "OMP_*", "the libraries below numpy count their threads when they are loaded" },
    { "OPENBLAS_*", "the same" },
    { "GOTO_*", "the same" },
    { "MKL_*", "the same" },
    { "BLIS_*", "the same" },
    { "NUMEXPR_*", "the same" },
    { "NPY_*", "numpy chooses instructions when it is imported" },
    { "PANDAS_*", "pandas reads options when it is imported" },
};

static bool changes_the_start(const struct guestlink_env *env)
{
    if (str_eq(env->name, STR("CLOISTER_INTERPRETER")))
        return str_eq(env->value, STR("cold")); /* asks for interpreters that share nothing */
    for (size_t i = 0; i < COUNT_OF(start_variables); i++) {
        struct str name = str_from(start_variables[i].name);
        bool is_prefix = name.at[name.len - 1] == '*';
        name.len -= is_prefix;
        if (is_prefix ? str_starts(env->name, name) : str_eq(env->name, name))
            return true;
    }
    return false;
}

bool zygote_client_fits(const struct zygote_client *client, const struct user *user, struct err *err)
{
    const struct guest *guest = client->guest;

    if (!str_eq(user->name, STR(ZYGOTE_USER)) || !str_eq(user->home, STR(ZYGOTE_HOME)) || user->uid != ZYGOTE_UID)
        return err_set(err, ERR_INVALID, "a zygote has interpreters only for '%s', uid %d, with home %s", ZYGOTE_USER,
                       ZYGOTE_UID, ZYGOTE_HOME);
    for (size_t i = 0; i < guest->env_count; i++)
        if (changes_the_start(&guest->envs[i]))
            return err_set(err, ERR_INVALID, "%.*s changes how Python starts", (int)MIN(guest->envs[i].name.len, 60),
                           guest->envs[i].name.at);
    if (client->socket_fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "there is no zygote");
    if (loop_now_ms(guest->loop) < client->not_before_ms)
        return err_set(err, ERR_UNAVAILABLE, "the zygote has just failed to give an interpreter");
    return true;
}

/* ---- one spawn ---- */

static void spawn_dispose(void *object)
{
    free(object);
}

static void spawn_close(struct zygote_spawn *spawn)
{
    watch_free(take_ptr(&spawn->first_message));
    fd_close(&spawn->link_fd);
    fd_close(&spawn->pidfd);
    loop_retire(spawn->client->guest->loop, spawn, spawn_dispose);
}

static void spawn_kill(const struct zygote_spawn *spawn)
{
    if (spawn->pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, spawn->pidfd, SIGKILL, NULL, 0); /* it may have ended by itself */
}

static void spawn_fail(struct zygote_spawn *spawn, const struct err *err)
{
    log_debug("python: the zygote's interpreter did not come: %s", err_text(err));
    spawn_kill(spawn);
    spawn->events->on_failed(spawn->owner);
    spawn_close(spawn);
}

static bool spawn_finish(struct zygote_spawn *spawn, struct err *err)
{
    struct str moved = str_of(ZYGOTE_MOVED, sizeof ZYGOTE_MOVED - 1);
    int no = 0;

    if (setsockopt(spawn->link_fd, SOL_SOCKET, SO_PASSCRED, &no, sizeof no) < 0)
        return err_sys(err, "stop asking for the sender's pid");
    if (send(spawn->link_fd, moved.at, moved.len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)moved.len)
        return err_sys(err, "tell an interpreter that it was moved");
    spawn->events->on_spawned(spawn->owner, spawn->pid, take_fd(&spawn->pidfd), take_fd(&spawn->link_fd));
    spawn_close(spawn);
    return true;
}

/*
 * On a thread: the kernel makes the writer wait for 15 ms on an idle machine, and for longer where others fork much.
 * If the process dies meanwhile, another may have its number; every process that guestd can see belongs into those
 * cgroups.
 */
static void move_run(struct job *job)
{
    struct zygote_spawn *spawn = container_of(job, struct zygote_spawn, move);
    const struct guest *guest = spawn->client->guest;
    char text[16];
    int len = snprintf(text, sizeof text, "%d", spawn->pid);

    for (size_t i = 0; i < guest->cgroup_count; i++)
        if (write(guest->cgroup_fds[i], text, (size_t)len) != len) {
            (void)err_sys(&spawn->err, "move an interpreter to its cgroup");
            return;
        }
}

static void move_done(struct job *job)
{
    struct zygote_spawn *spawn = container_of(job, struct zygote_spawn, move);

    spawn->is_moving = false;
    if (spawn->is_cancelled)
        spawn_close(spawn);
    else if (spawn->err.kind != ERR_NONE || !spawn_finish(spawn, &spawn->err))
        spawn_fail(spawn, &spawn->err);
}

/* The pid of the sender, in our own pid namespace. Below 2: there is none, or it sent something else. */
static pid_t read_first_message(int fd)
{
    char text[sizeof ZYGOTE_ENTERED - 1];
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } control = { 0 };
    struct iovec piece = { .iov_base = text, .iov_len = sizeof text };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    struct ucred sender = { 0 };

    if (recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof text ||
        memcmp(text, ZYGOTE_ENTERED, sizeof text) != 0)
        return 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_CREDENTIALS)
        memcpy(&sender, CMSG_DATA(head), sizeof sender);
    return sender.pid;
}

static void on_first_message(void *context, unsigned ready)
{
    struct zygote_spawn *spawn = context;
    struct err err;

    (void)ready;
    watch_free(take_ptr(&spawn->first_message));
    spawn->pid = read_first_message(spawn->link_fd);
    if (spawn->pid <= 1) {
        (void)err_set(&err, ERR_INVALID, "the socket closed, or its first message is not from the sandbox");
        spawn_fail(spawn, &err);
        return;
    }
    spawn->pidfd = launch_pidfd(spawn->pid);
    if (spawn->pidfd < 0) {
        (void)err_sys(&err, "open process %d", spawn->pid);
        spawn_fail(spawn, &err);
        return;
    }
    spawn->is_moving = true;
    workers_run(spawn->client->movers, &spawn->move);
}

static bool send_request(const struct zygote_client *client, const struct user *user, const int fds[ZYGOTE_REQUEST_FDS],
                         struct err *err)
{
    struct zygote_request request = { .magic = ZYGOTE_MAGIC, .uid = user->uid, .gid = user->gid };
    gid_t groups[ZYGOTE_GROUPS_MAX];

    request.group_count = (uint32_t)users_groups(client->guest->users, user, groups, COUNT_OF(groups));
    for (uint32_t i = 0; i < request.group_count; i++)
        request.groups[i] = groups[i];
    return pass_fds(client->socket_fd, str_of(&request, sizeof request), fds, ZYGOTE_REQUEST_FDS, err) ||
           err_wrap(err, "ask the zygote for an interpreter");
}

struct zygote_spawn *zygote_spawn_new(struct zygote_client *client, const struct user *user, const int out_and_err[2],
                                      const struct zygote_spawn_events *events, void *owner, struct err *err)
{
    int pair[2], yes = 1;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        (void)err_sys(err, "make a socket");
        return NULL;
    }
    auto_close int ours = pair[0], theirs = pair[1];
    if (setsockopt(ours, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) < 0) {
        (void)err_sys(err, "ask for the sender's pid");
        return NULL;
    }
    if (!send_request(client, user, (int[]){ theirs, out_and_err[0], out_and_err[1] }, err))
        return NULL;
    struct zygote_spawn *spawn = NEW(struct zygote_spawn);
    *spawn = (struct zygote_spawn){
        .move = { .run = move_run, .done = move_done },
        .client = client,
        .events = events,
        .owner = owner,
        .link_fd = take_fd(&ours),
        .pidfd = -1,
    };
    spawn->first_message = watch_new(client->guest->loop, spawn->link_fd, on_first_message, spawn);
    watch_want(spawn->first_message, WATCH_READ);
    return spawn;
}

void zygote_spawn_cancel(struct zygote_spawn *spawn)
{
    if (!spawn)
        return;
    spawn_kill(spawn);
    if (spawn->is_moving)
        spawn->is_cancelled = true; /* move_done() closes it */
    else
        spawn_close(spawn);
}
