/*
 * Theory of operation: guestd holds the zygote's door, a SOCK_SEQPACKET pair that is her stdin. The first two messages
 * are the texts of charts.py and the driver, which the few words of ZYGOTE_BOOT read and execute. Then each wanted
 * interpreter is one byte with three descriptors; the zygote forks and the child sends its first word (ZYGOTE_ENTERED)
 * over its own socket. The kernel tells who has sent that: user code can say what it likes, but not who it is. We watch
 * that pid by pidfd, and from then on the socket is a stream of frames, of which hello is the first. How a child ended
 * only its zygote can know; she sends "pid status", which we wait a moment for so that the user can be told why.
 *
 * The zygotes is a zygote whom we have not started: her door is the descriptor that we came with, a request says besides
 * who the interpreter shall be, and her children are ours to collect, and to move to the cgroups of what we start: she
 * may not. She is asked first, and only as long as every one that she was asked for has come: a door that has failed
 * once is shut.
 *
 * A sandbox that has wanted a second interpreter will want a third: from then on one more than was asked for is kept,
 * the `spare`, spawned and rehearsed and nobody's. It looks again at the packages when it is given away.
 *
 * A child that finds packages changed since its zygote imported them says so instead of hello ('S'), and dies. Then she
 * is too old for this sandbox: the next one is asked of another.
 */
#include "guest/interpreter/python.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/frame.h"
#include "guest/interpreter/launch.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/pipes.h"
#include "guest/tree.h"
#include "io/pass.h"
#include "io/stream.h"
#include "wire/json.h"
#include "wire/zygote.h"

enum {
    LAST_WORDS_MS = 2,
    SWEEP_MS = 30,        /* between two looks at what an interrupted cell has left behind */
    STATUS_WAIT_MS = 100, /* for the zygote's word on how a child ended */
    SPARE_MS = 2,         /* after an interpreter is ready, so that its first cell has the machine for itself */
    SPAWN_MS = 3000,      /* for the zygotes: as long as a zygote of our own may take to start on a busy machine */
};

enum where {
    HERE,    /* a process of ours, for as many as want her */
    ALONE,   /* the same for one alone */
    OUTSIDE, /* the zygotes's */
};

struct zygote {
    struct python *python;
    pid_t pid;
    uid_t uid;
    int door;
    struct watch *watch;
    enum where where;
    unsigned children; /* engines that hold a reference; a cold or dead one goes with the last */
    bool is_dead;
};

enum life {
    AWAITED, /* the zygote has been asked; no hello yet */
    WAITING, /* it said hello and is nobody's yet */
    SETTING, /* it was told who it is */
    ALIVE,
    DYING, /* dead; how is not known yet */
    DEAD,
};

struct python_engine {
    struct engine engine; /* of a spare: without events and owner */
    struct python_engine *next;
    struct python *python;
    struct zygote *zygote;
    enum life life;
    pid_t pid; /* 0: not known yet */
    int pidfd;
    struct watch *death;
    int first_fd;      /* the link, until its first word */
    struct move *move; /* NULL: not on its way to the user's cgroups */
    struct watch *first;
    struct stream *link; /* NULL until then */
    struct pipes pipes;
    uint64_t cell;       /* the number of the last one sent: an end that names another is forged, or comes too late */
    uint64_t cell_began; /* tree_now() */
    bool was_interrupted;
    struct timer sweep;
    bool died_young; /* before it was ready */
    bool has_status;
    int status;
    struct timer status_wait;
    struct timer spawn; /* how long the zygotes may take */
    char *start_message;
    size_t start_len;
};

struct python {
    struct guest *guest;
    struct zygote *warm;    /* NULL: none, or dead */
    struct zygote *zygotes; /* NULL: none, or shut */
    struct python_engine *engines;
    struct python_engine *spare; /* one of them, the zygotes's; may be NULL */
    struct timer spare_soon;
    unsigned wanted; /* of the zygotes, so far */
    struct workers *movers;
};

bool python_is_there(struct guest *guest)
{
    return launch_can(guest, "python3");
}

/* ---- the zygote ---- */

static void zygote_dispose(void *object)
{
    free(object);
}

static void end(struct engine *engine);

static void spare_drop(struct python *python)
{
    struct python_engine *spare = take_ptr(&python->spare);

    timer_clear(&python->spare_soon);
    if (spare)
        end(&spare->engine);
}

static void zygote_close(struct zygote *m)
{
    if (!m->is_dead) {
        if (m->python->zygotes == m)
            spare_drop(m->python); /* whatever is wrong with her is wrong with it */
        m->is_dead = true;
        watch_free(take_ptr(&m->watch));
        fd_close(&m->door); /* which tells her to end, if she has not yet */
        if (m->python->warm == m)
            m->python->warm = NULL;
        if (m->python->zygotes == m)
            m->python->zygotes = NULL;
    }
    if (!m->children)
        loop_retire(m->python->guest->loop, m, zygote_dispose);
}

static void zygote_unref(struct zygote *m)
{
    m->children--;
    if (m->is_dead || m->where == ALONE)
        zygote_close(m);
}

static void on_status_wait(struct timer *timer);

static void take_status(struct python *python, struct str text)
{
    pid_t pid;
    int status;

    if (!frame_read_status(text, &pid, &status))
        return;
    for (struct python_engine *e = python->engines; e; e = e->next) {
        if (e->pid != pid)
            continue;
        e->has_status = true;
        e->status = status;
        if (e->life == DYING)
            timer_set(&e->status_wait, python->guest->loop, LAST_WORDS_MS, on_status_wait);
        return;
    }
}

static void on_zygote(void *context, unsigned ready)
{
    struct zygote *m = context;
    char text[64];

    (void)ready;
    ssize_t n = recv(m->door, text, sizeof text, MSG_DONTWAIT);
    if (n > 0)
        take_status(m->python, str_of(text, (size_t)n));
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        zygote_close(m); /* children that she had not forked yet see their sockets close */
}

static bool send_texts(struct zygote *m, struct err *err)
{
    struct str texts[] = { str_from(interpreter_charts_py), str_from(interpreter_driver_py) };

    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (send(m->door, texts[i].at, texts[i].len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return err_sys(err, "hand python3 its program");
    return true;
}

static bool zygote_start(struct zygote *m, const struct user *user, struct arena *arena, struct err *err)
{
    const char *argv[] = { "python3", "-c", ZYGOTE_BOOT, m->where == ALONE ? "cold" : NULL, NULL };
    int pair[2];

    auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "open what python3 needs");
    m->door = pair[0];
    auto_close int hers = pair[1];
    if (!send_texts(m, err))
        return false;
    struct launch launch = {
        .user = user,
        .argv = argv,
        .env = launch_env(m->python->guest, user, NULL, 0, arena),
        .cwd = "/",
        .in_fd = hers,
        .out_fd = null_fd,
        .err_fd = null_fd,
    };
    return launch_start(m->python->guest, &launch, arena, &m->pid, err);
}

static void zygote_listen(struct zygote *m)
{
    m->watch = watch_new(m->python->guest->loop, m->door, on_zygote, m);
    watch_want(m->watch, WATCH_READ);
}

static struct zygote *zygote_new(struct python *python, const struct user *user, enum where where, struct err *err)
{
    struct zygote *m = NEW(struct zygote);
    struct arena arena;

    *m = (struct zygote){ .python = python, .door = -1, .uid = user->uid, .where = where };
    arena_init(&arena);
    bool started = zygote_start(m, user, &arena, err);
    arena_done(&arena);
    if (!started) {
        fd_close(&m->door);
        free(m);
        return NULL;
    }
    zygote_listen(m);
    if (where == HERE)
        python->warm = m;
    return m;
}

struct python *python_new(struct guest *guest)
{
    struct python *python = NEW(struct python);

    python->guest = guest;
    python->movers = workers_new(guest->loop, 1);
    if (guest->zygote_fd >= 0) {
        python->zygotes = NEW(struct zygote);
        *python->zygotes = (struct zygote){ .python = python, .door = guest->zygote_fd, .where = OUTSIDE };
        zygote_listen(python->zygotes);
    }
    return python;
}

/* Three descriptors travel with the request; the zygote has them even if she is busy importing. */
static bool send_request(const struct zygote *m, struct str request, const int fds[ZYGOTE_REQUEST_FDS], struct err *err)
{
    return pass_fds(m->door, request, fds, ZYGOTE_REQUEST_FDS, err) || err_wrap(err, "ask for an interpreter");
}

static bool zygote_ask(struct zygote *m, const struct user *user, const int fds[ZYGOTE_REQUEST_FDS], struct err *err)
{
    struct zygote_request request = { .magic = ZYGOTE_MAGIC, .uid = user->uid, .gid = user->gid };
    gid_t groups[ZYGOTE_GROUPS_MAX];

    if (m->where != OUTSIDE) /* who she is, her children are */
        return send_request(m, STR("f"), fds, err);
    request.group_count = (uint32_t)users_groups(m->python->guest->users, user, groups, COUNT_OF(groups));
    for (uint32_t i = 0; i < request.group_count; i++)
        request.groups[i] = groups[i];
    return send_request(m, str_of(&request, sizeof request), fds, err);
}

/*
 * What a zygote outside cannot know when she starts: variables that change how a Python, or what it has imported, comes
 * up. A sandbox that has one of these has a zygote of its own, who starts with it. A name that ends in * is a prefix.
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

static bool changes_the_start(const char *pair)
{
    for (size_t i = 0; i < COUNT_OF(start_variables); i++) {
        const char *name = start_variables[i].name;
        size_t len = strcspn(name, "*");
        if (strncmp(pair, name, len) == 0 && (name[len] == '*' || pair[len] == '='))
            return true;
    }
    return false;
}

static bool zygote_fits(const struct guest *guest, const struct user *user)
{
    if (!str_eq(user->name, STR(ZYGOTE_USER)) || !str_eq(user->home, STR(ZYGOTE_HOME)) || user->uid != ZYGOTE_UID)
        return false;
    for (size_t i = 0; i < guest->env_count; i++) {
        char pair[64];
        (void)snprintf(pair, sizeof pair, "%.*s=", (int)MIN(guest->envs[i].name.len, sizeof pair - 2),
                       guest->envs[i].name.at);
        if (changes_the_start(pair))
            return false;
    }
    return true;
}

/* Whom to ask for an interpreter; she may have to be started first. */
static struct zygote *zygote_find(struct python *python, const struct user *user, enum python_mode mode,
                                  struct err *err)
{
    if (mode == PYTHON_COLD)
        return zygote_new(python, user, ALONE, err);
    if (python->zygotes && zygote_fits(python->guest, user))
        return python->zygotes;
    if (python->warm && python->warm->uid == user->uid)
        return python->warm;
    return zygote_new(python, user, HERE, err);
}

/* ---- frames ---- */

static void send_message(struct python_engine *e, struct str json)
{
    unsigned char header[FRAME_HEADER_BYTES];

    frame_write_header(json.len, header);
    stream_write_two(e->link, str_of(header, sizeof header), json);
}

static struct tree tree_of(const struct python_engine *e)
{
    return (struct tree){ .leader = e->pid, .session = e->pid, .leader_lives = e->life != DYING && e->life != DEAD };
}

static void kill_tree(struct python_engine *e)
{
    struct tree tree = tree_of(e);

    if (e->pid)
        tree_kill(e->python->guest->loop, &tree);
}

static void die(struct python_engine *e)
{
    if (e->life >= DYING)
        return;
    if (e->python->spare == e)
        e->python->spare = NULL;
    if (e->life == AWAITED && e->zygote->where == OUTSIDE)
        zygote_close(e->zygote); /* not again: the next try is with one of our own */
    e->died_young = e->life < ALIVE;
    e->life = DYING;
    timer_clear(&e->spawn);
    timer_clear(&e->sweep);
    watch_free(take_ptr(&e->death));
    /* Even if we know how: what it has sent before it died is still to be read. */
    timer_set(&e->status_wait, e->python->guest->loop, e->has_status || !e->pid ? LAST_WORDS_MS : STATUS_WAIT_MS,
              on_status_wait);
}

/* Dead, and either we know how or we have waited long enough. */
static void on_status_wait(struct timer *timer)
{
    struct python_engine *e = container_of(timer, struct python_engine, status_wait);
    char why[128];

    e->life = DEAD;
    pipes_drain(&e->pipes);
    if (!e->engine.events) {
        end(&e->engine); /* a spare that died before anybody wanted it is nobody's loss */
        return;
    }
    if (e->has_status)
        launch_explain(e->status, why, sizeof why);
    else
        (void)snprintf(why, sizeof why, e->pid ? "it ended" : "python3 does not start");
    e->engine.events->on_died(&e->engine, why);
}

static void on_death(void *context, unsigned ready)
{
    (void)ready;
    die(context);
}

static void on_spawn_late(struct timer *timer)
{
    die(container_of(timer, struct python_engine, spawn));
}

/* The sandbox has other packages than its zygote has imported. It ends when it has said so: we may know of that first. */
static void stale(struct python_engine *e)
{
    if (e->python->spare == e)
        e->python->spare = NULL;
    if (e->life == AWAITED || e->life == SETTING || e->died_young)
        zygote_close(e->zygote);
    die(e);
}

void python_reaped(struct python *python, pid_t pid, int status)
{
    for (struct python_engine *e = python->engines; e; e = e->next) {
        if (e->pid != pid || e->zygote->where != OUTSIDE || e->has_status)
            continue;
        e->has_status = true;
        e->status = status;
        if (e->life == DYING)
            timer_set(&e->status_wait, python->guest->loop, LAST_WORDS_MS, on_status_wait);
    }
}

static void tell_who_it_is(struct python_engine *e)
{
    e->life = SETTING;
    send_message(e, str_of(e->start_message, e->start_len));
    free(take_ptr(&e->start_message));
}

static void hello(struct python_engine *e)
{
    if (e->life != AWAITED) {
        die(e);
        return;
    }
    timer_clear(&e->spawn);
    if (e->start_message) {
        tell_who_it_is(e);
        return;
    }
    e->life = WAITING;
    send_message(e, STR("{\"op\":\"rehearse\"}"));
}

static void on_spare_soon(struct timer *timer);

static void ready(struct python_engine *e)
{
    struct python *python = e->python;

    e->life = ALIVE;
    if (e->zygote == python->zygotes && python->wanted > 1 && !python->spare)
        timer_set(&python->spare_soon, python->guest->loop, SPARE_MS, on_spare_soon);
    e->engine.events->on_ready(&e->engine);
}

/* The cell has ended. If it had to be interrupted, some of its children may not have heard, or did not want to. */
static void on_sweep(struct timer *timer)
{
    struct python_engine *e = container_of(timer, struct python_engine, sweep);

    struct tree tree = tree_of(e);

    timer_clear(&e->sweep);
    if (e->was_interrupted && !tree_kill_since(&tree, e->cell_began))
        timer_set(&e->sweep, e->python->guest->loop, SWEEP_MS, on_sweep);
    else
        e->engine.events->on_done(&e->engine);
}

/* False when it makes no sense. */
static bool take_frame(struct python_engine *e, const struct frame *frame)
{
    const struct engine_events *events = e->engine.events;
    const struct str text = frame->text;
    const char letter = frame->letter;
    uint64_t number;

    if (!events && letter != 'H' && letter != 'S')
        return false;
    switch (letter) {
    case 'H':
        hello(e);
        return true;
    case 'S':
        stale(e);
        return true;
    case 'R':
        if (e->life != SETTING)
            return false;
        ready(e);
        return true;
    case 'C':
    case 'L':
    case 'X': {
        if (!line_is_clean(text))
            return false;
        auto_buf struct buf line = buf_make(NULL, text.len + 1);
        buf_add(&line, text);
        buf_add_char(&line, '\n');
        events->on_line(&e->engine,
                        letter == 'X'   ? ENGINE_LINE_ERROR
                        : letter == 'C' ? ENGINE_LINE_ACCEPTED
                                        : ENGINE_LINE_OUTPUT,
                        buf_str(&line));
        return true;
    }
    case 'D':
        if (!str_to_u64(text, UINT64_MAX, &number) || number != e->cell)
            return true;
        on_sweep(&e->sweep);
        return true;
    default:
        return false;
    }
}

static void on_input(struct stream *stream)
{
    struct python_engine *e = stream->owner;

    while (e->link && e->life < DEAD) {
        struct frame frame;
        size_t used;
        enum frame_verdict verdict = frame_read(buf_str(&stream->in), &frame, &used);
        if (verdict == FRAME_MORE)
            return;
        if (verdict == FRAME_MALFORMED) {
            kill_tree(e);
            return;
        }
        pipes_drain(&e->pipes); /* what was printed before it was said */
        bool fine = take_frame(e, &frame);
        if (!e->link)
            return; /* freed meanwhile */
        buf_drop(&stream->in, used);
        if (!fine) {
            kill_tree(e);
            return;
        }
    }
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct python_engine *e = stream->owner;

    (void)err;
    if (e->life >= DYING)
        return;
    if (!e->pid)
        die(e); /* the zygote has gone before it was spawned */
    else
        kill_tree(e); /* user code has closed the socket: there is no way back. Its death comes by the pidfd. */
}

static const struct stream_events link_events = { .on_input = on_input, .on_end = on_end };

/* ---- the first word ---- */

/* Who has sent it, in our own pid namespace; below 2 if that cannot be, or it is another word. */
static pid_t first_word(int fd)
{
    char word[sizeof ZYGOTE_ENTERED - 1];
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } control = { 0 };
    struct iovec piece = { .iov_base = word, .iov_len = sizeof word };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    struct ucred who = { 0 };

    if (recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof word ||
        memcmp(word, ZYGOTE_ENTERED, sizeof word) != 0)
        return 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_CREDENTIALS)
        memcpy(&who, CMSG_DATA(head), sizeof who);
    return who.pid;
}

static void fail_first_word(struct python_engine *e, const struct err *err)
{
    log_debug("python: %s", err_text(err));
    kill_tree(e);
    die(e);
}

/* It is where it belongs: from now on the socket carries frames. */
static bool open_link(struct python_engine *e, struct err *err)
{
    int no = 0;

    if (setsockopt(e->first_fd, SOL_SOCKET, SO_PASSCRED, &no, sizeof no) < 0)
        return err_sys(err, "ask no more who sends");
    e->link = stream_new(e->python->guest->loop, take_fd(&e->first_fd), LIMIT_FRAME_BYTES + FRAME_HEADER_BYTES,
                         &link_events, e);
    if (e->zygote->where == OUTSIDE)
        stream_write(e->link, str_of(ZYGOTE_MOVED, sizeof ZYGOTE_MOVED - 1));
    stream_read(e->link, true);
    return true;
}

/*
 * A child of the zygote outside is moved to the user's cgroups. On a thread of its own: the kernel lets the writer wait
 * for 15 ms on an idle machine, and for longer where others fork much. If the child dies meanwhile, its number may be
 * another process's; all that have numbers here belong into those cgroups.
 */
struct move {
    struct job job;
    struct guest *guest;
    struct python_engine *engine; /* NULL: freed meanwhile */
    pid_t pid;
    bool is_done;
    struct err err;
};

static void move_run(struct job *job)
{
    struct move *move = container_of(job, struct move, job);
    char text[16];
    int len = snprintf(text, sizeof text, "%d", move->pid);

    for (size_t i = 0; i < move->guest->cgroup_count; i++)
        if (write(move->guest->cgroup_fds[i], text, (size_t)len) != len) {
            (void)err_sys(&move->err, "move an interpreter to its cgroup");
            return;
        }
    move->is_done = true;
}

static void move_done(struct job *job)
{
    auto_free struct move *move = container_of(job, struct move, job);
    struct python_engine *e = move->engine;

    if (!e)
        return;
    e->move = NULL;
    if (e->life == AWAITED && (!move->is_done || !open_link(e, &move->err)))
        fail_first_word(e, &move->err);
}

static void move_start(struct python_engine *e)
{
    e->move = NEW(struct move);
    *e->move = (struct move){
        .job = { .run = move_run, .done = move_done }, .guest = e->python->guest, .engine = e, .pid = e->pid
    };
    workers_run(e->python->movers, &e->move->job);
}

static bool take_first_word(struct python_engine *e, struct err *err)
{
    struct guest *guest = e->python->guest;
    pid_t pid = first_word(e->first_fd);

    if (pid <= 1)
        return err_set(err, ERR_INVALID, "an interpreter's first word is another");
    e->pidfd = launch_pidfd(pid);
    if (e->pidfd < 0)
        return err_sys(err, "hold an interpreter");
    e->pid = pid;
    e->death = watch_new(guest->loop, e->pidfd, on_death, e);
    watch_want(e->death, WATCH_READ);
    if (e->zygote->where != OUTSIDE)
        return open_link(e, err);
    move_start(e);
    return true;
}

static void on_first_word(void *context, unsigned ready)
{
    struct python_engine *e = context;
    struct err err;

    (void)ready;
    watch_free(take_ptr(&e->first));
    if (!take_first_word(e, &err))
        fail_first_word(e, &err);
}

/* ---- the engine ---- */

static void run(struct engine *engine, const struct engine_code *code)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);
    auto_buf struct buf text = buf_make(NULL, 2 * LIMIT_API_BODY_BYTES); /* escapes are undone and made again */
    struct json_out out = json_out_to(&text);

    json_out_object(&out, NULL);
    json_out_str(&out, "op", STR("run"));
    json_out_int(&out, "cell", (int64_t)++e->cell);
    json_out_str(&out, "code", code->code);
    json_out_object(&out, "env");
    for (size_t i = 0; i < code->env_count; i++)
        json_out_pair(&out, code->envs[i].name, code->envs[i].value);
    json_out_end(&out);
    json_out_end(&out);
    e->cell_began = tree_now();
    e->was_interrupted = false;
    send_message(e, buf_str(&text));
}

static void interrupt(struct engine *engine)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);

    if (!e->pid || e->life != ALIVE)
        return;
    e->was_interrupted = true;
    (void)kill(-e->pid, SIGINT); /* the group: what the cell waits for is interrupted with it */
}

static void pause_reading(struct engine *engine, bool pause)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);

    pipes_pause(&e->pipes, pause);
    if (e->link)
        stream_read(e->link, !pause);
}

static void dispose(void *object)
{
    struct python_engine *e = object;

    free(e->start_message);
    free(e);
}

static void end(struct engine *engine)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);
    struct python_engine **at = &e->python->engines;

    if (e->python->spare == e)
        e->python->spare = NULL;
    kill_tree(e);
    timer_clear(&e->status_wait);
    timer_clear(&e->spawn);
    timer_clear(&e->sweep);
    watch_free(take_ptr(&e->death));
    fd_close(&e->pidfd);
    watch_free(take_ptr(&e->first));
    fd_close(&e->first_fd);
    if (e->move)
        e->move->engine = NULL;
    stream_free(take_ptr(&e->link));
    pipes_close(&e->pipes);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    zygote_unref(e->zygote);
    loop_retire(e->python->guest->loop, e, dispose);
}

static const struct engine_kind kind = { .run = run, .interrupt = interrupt, .pause = pause_reading, .free = end };

static void on_pipe_line(struct pipes *pipes, struct str line)
{
    struct python_engine *e = container_of(pipes, struct python_engine, pipes);

    if (e->engine.events) /* else it is a spare, which has nothing to say */
        e->engine.events->on_line(&e->engine, ENGINE_LINE_PRINTED, line);
}

/* {"op":"start","late":…,"cwd":…,"env":{…}}; late: it was spawned some time ago. */
static void make_start_message(struct python_engine *e, const struct engine_want *want, bool late)
{
    struct buf text = buf_make(NULL, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&text);

    json_out_object(&out, NULL);
    json_out_str(&out, "op", STR("start"));
    json_out_bool(&out, "late", late);
    json_out_str(&out, "cwd", str_from(want->cwd));
    json_out_object(&out, "env");
    for (char *const *pair = want->env; *pair; pair++) {
        struct str value = str_from(*pair), name;
        if (str_cut(&value, '=', &name))
            json_out_pair(&out, name, value);
    }
    json_out_end(&out);
    json_out_end(&out);
    e->start_message = text.data;
    e->start_len = text.len;
}

static bool connect_child(struct python_engine *e, const struct user *user, struct err *err)
{
    struct loop *loop = e->python->guest->loop;
    int pair[2], theirs[2], yes = 1;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a socket");
    e->first_fd = pair[0];
    auto_close int socket_fd = pair[1];
    if (setsockopt(e->first_fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) < 0)
        return err_sys(err, "ask who sends");
    e->first = watch_new(loop, e->first_fd, on_first_word, e);
    watch_want(e->first, WATCH_READ);
    if (!pipes_open(&e->pipes, loop, on_pipe_line, theirs, err))
        return false;
    if (e->zygote->where == OUTSIDE)
        timer_set(&e->spawn, loop, SPAWN_MS, on_spawn_late);
    bool asked = zygote_ask(e->zygote, user, (int[]){ socket_fd, theirs[0], theirs[1] }, err);
    fd_close(&theirs[0]);
    fd_close(&theirs[1]);
    return asked;
}

/* One that is nobody's yet. */
static struct python_engine *engine_new(struct python *python, struct zygote *m)
{
    struct python_engine *e = NEW(struct python_engine);

    e->engine.kind = &kind;
    e->python = python;
    e->zygote = m;
    e->pidfd = e->first_fd = -1;
    e->pipes.ends[0].fd = e->pipes.ends[1].fd = -1;
    e->next = python->engines;
    python->engines = e;
    m->children++;
    return e;
}

static void spare_make(struct python *python, const struct user *user)
{
    struct python_engine *e = engine_new(python, python->zygotes);
    struct err err;

    if (connect_child(e, user, &err)) {
        python->spare = e;
        return;
    }
    log_debug("python: no spare interpreter: %s", err_text(&err));
    end(&e->engine);
}

static void on_spare_soon(struct timer *timer)
{
    struct python *python = container_of(timer, struct python, spare_soon);
    struct arena arena;
    struct user user;

    arena_init(&arena);
    if (python->zygotes && !python->spare && users_find(python->guest->users, &arena, STR(ZYGOTE_USER), &user) &&
        zygote_fits(python->guest, &user))
        spare_make(python, &user);
    arena_done(&arena);
}

static struct engine *engine_give(struct python_engine *e, const struct engine_want *want)
{
    e->engine.events = want->events;
    e->engine.owner = want->owner;
    return &e->engine;
}

struct engine *python_engine_new(struct python *python, const struct user *user, enum python_mode mode,
                                 const struct engine_want *want, struct err *err)
{
    struct zygote *m = zygote_find(python, user, mode, err);

    if (!m)
        return NULL;
    if (m == python->zygotes) {
        python->wanted++;
        struct python_engine *spare = take_ptr(&python->spare);
        if (spare) {
            make_start_message(spare, want, true);
            if (spare->life == WAITING)
                tell_who_it_is(spare);
            return engine_give(spare, want);
        }
    }
    struct python_engine *e = engine_new(python, m);
    make_start_message(e, want, false);
    if (!connect_child(e, user, err)) {
        end(&e->engine);
        return NULL;
    }
    return engine_give(e, want);
}

void python_free(struct python *python)
{
    if (!python)
        return;
    if (python->warm)
        zygote_close(python->warm);
    if (python->zygotes)
        zygote_close(python->zygotes);
    while (python->engines)
        end(&python->engines->engine); /* spares that are dying; all others are their contexts' */
    timer_clear(&python->spare_soon);
    workers_free(python->movers);
    free(python);
}
