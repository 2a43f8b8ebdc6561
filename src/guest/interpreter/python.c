/*
 * How it works: an interpreter is a process of the template's python3 that runs our driver (driver/main.py) and talks
 * to guestd over a socket in frames (frame.h). It comes from one of two places:
 *
 *   the zygote    a warm python3 outside the sandbox forks it and the fork enters the sandbox (zygote_client.h). Takes
 *                 milliseconds and shares memory. Tried first. After a spawn that fails it is not tried for a while.
 *   alone         the fallback: guestd starts a python3 for this interpreter only. Its stdin is a SOCK_SEQPACKET socket
 *                 with three messages: charts.py, the driver, and one byte with the interpreter's socket and two pipes.
 *
 * An interpreter from the zygote compares the sandbox's packages with those that the zygote has imported. If they
 * differ it sends 'S' instead of hello and ends. Then the zygote is of no use to this sandbox, and its socket is
 * closed.
 *
 * A sandbox that has asked for a second interpreter may ask for a third. From then on guestd keeps a spare: one more
 * than was asked for, from the zygote. It checks the packages again when a context gets it. The host can also ask for
 * the spare, before the sandbox is set up (python_warm): then the first context gets it.
 */
#include "guest/interpreter/python.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/frame.h"
#include "guest/interpreter/launch.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/pipes.h"
#include "guest/interpreter/zygote_client.h"
#include "guest/link.h"
#include "guest/tree.h"
#include "io/pass.h"
#include "io/stream.h"
#include "wire/json.h"
#include "wire/zygote.h"

enum {
    SWEEP_MS = 30,          /* between two looks for processes that an interrupted cell has left behind */
    LAST_OUTPUT_MS = 2,     /* after a death: its last output is still to be read */
    STATUS_WAIT_MS = 100,   /* after a death, for its exit status */
    SPARE_DELAY_MS = 2,     /* after an interpreter is ready, so that its first cell does not compete with the spare */
    ZYGOTE_SPAWN_MS = 3000, /* until hello: as long as a python3 takes to start on a busy machine */
    WARM_MS = 5000,         /* until the spare that the host has asked for has had its first cell */
};

enum state {
    STARTING,    /* asked for; no hello yet */
    UNCLAIMED,   /* the spare: has said hello and waits for a context */
    CONFIGURING, /* has its directory and environment, is not ready yet */
    ALIVE,
    DYING, /* dead; its exit status may still come */
    DEAD,
};

struct python_engine {
    struct engine engine; /* of the spare: without events and owner */
    struct python_engine *next;
    struct python *python;
    enum state state;
    bool is_from_zygote;
    bool is_rehearsed;          /* the spare has had its first cell */
    struct zygote_spawn *spawn; /* NULL: over, or started alone */
    struct timer spawn_limit;
    pid_t pid; /* 0: not known yet */
    int pidfd;
    struct watch *death;
    struct stream *link; /* NULL until the process is in the sandbox */
    struct pipes pipes;
    uint64_t cell;       /* number of the last cell sent; an end that names another is forged or late */
    uint64_t cell_began; /* tree_now() */
    bool was_interrupted;
    bool is_copy; /* of one in another sandbox, with all its random numbers to come; the next cell tells it */
    struct timer sweep;
    bool died_early; /* before it was ready */
    bool has_status;
    int status;
    struct timer status_wait;
    char *start_message;
    size_t start_len;
};

struct python {
    struct guest *guest;
    struct zygote_client *zygote;
    struct python_engine *engines;
    struct python_engine *spare; /* one of them, or NULL */
    struct timer spare_delay;
    void (*on_warmed)(struct guest *guest, const struct err *err); /* NULL: no WARM is to be answered */
    struct timer warm_limit;
    unsigned from_zygote; /* interpreters that contexts have asked for, so far */
    bool is_prepared;     /* for a pause: there is no zygote until it is over */
};

bool python_is_there(struct guest *guest)
{
    return launch_can(guest, "python3");
}

/* ---- the spare goes ---- */

/* Answers python_warm(). NULL: the spare waits for a context, or has got one. */
static void end_warm(struct python *python, const struct err *err)
{
    void (*done)(struct guest * guest, const struct err *err) = python->on_warmed;

    python->on_warmed = NULL;
    timer_clear(&python->warm_limit);
    if (done)
        done(python->guest, err);
}

/* If this is the spare: there is none any more. */
static void lose_spare(struct python_engine *e)
{
    struct err err;

    if (e->python->spare != e)
        return;
    e->python->spare = NULL;
    (void)err_set(&err, ERR_UNAVAILABLE, "the interpreter from the zygote %s",
                  e->state == STARTING ? "did not come" : "has ended");
    end_warm(e->python, &err);
}

/* ---- death ---- */

static void engine_end(struct engine *engine);

static struct tree tree_of(const struct python_engine *e)
{
    return (struct tree){ .leader = e->pid, .session = e->pid, .leader_lives = e->state < DYING };
}

static void kill_tree(struct python_engine *e)
{
    struct tree tree = tree_of(e);

    if (e->pid)
        tree_kill(e->python->guest->loop, &tree);
}

/* Dead, and either the status is known or we have waited long enough for it. */
static void on_status_wait(struct timer *timer)
{
    struct python_engine *e = container_of(timer, struct python_engine, status_wait);
    char why[128];

    e->state = DEAD;
    pipes_drain(&e->pipes);
    if (!e->engine.events) {
        engine_end(&e->engine); /* a spare: no context has lost anything */
        return;
    }
    if (e->has_status)
        launch_explain(e->status, why, sizeof why);
    else
        (void)snprintf(why, sizeof why, e->pid ? "it ended" : "python3 does not start");
    e->engine.events->on_died(&e->engine, why);
}

static void engine_died(struct python_engine *e)
{
    if (e->state >= DYING)
        return;
    e->died_early = e->state < ALIVE;
    lose_spare(e);
    if (e->is_from_zygote && e->state == STARTING)
        zygote_client_failed(e->python->zygote); /* the next try is with a python3 of its own */
    e->state = DYING;
    timer_clear(&e->spawn_limit);
    timer_clear(&e->sweep);
    watch_free(take_ptr(&e->death));
    timer_set(&e->status_wait, e->python->guest->loop, e->has_status || !e->pid ? LAST_OUTPUT_MS : STATUS_WAIT_MS,
              on_status_wait);
}

static void on_death(void *context, unsigned ready)
{
    (void)ready;
    engine_died(context);
}

void python_reaped(struct python *python, pid_t pid, int status)
{
    for (struct python_engine *e = python->engines; e; e = e->next) {
        if (e->pid != pid || e->has_status)
            continue;
        e->has_status = true;
        e->status = status;
        if (e->state == DYING)
            timer_set(&e->status_wait, python->guest->loop, LAST_OUTPUT_MS, on_status_wait);
    }
}

/* ---- frames ---- */

static void send_message(struct python_engine *e, struct str json)
{
    unsigned char header[FRAME_HEADER_BYTES];

    frame_write_header(json.len, header);
    stream_write_two(e->link, str_of(header, sizeof header), json);
}

static void send_start_message(struct python_engine *e)
{
    e->state = CONFIGURING;
    send_message(e, str_of(e->start_message, e->start_len));
    free(take_ptr(&e->start_message));
}

static void take_hello(struct python_engine *e)
{
    if (e->state != STARTING) {
        engine_died(e);
        return;
    }
    timer_clear(&e->spawn_limit);
    if (e->start_message) {
        send_start_message(e);
        return;
    }
    if (e->python->is_prepared) {
        engine_end(&e->engine); /* the spare, see on_zygote_closed() */
        return;
    }
    e->state = UNCLAIMED;
    send_message(e, STR("{\"op\":\"rehearse\",\"tell\":true}"));
}

/* A context may have taken it meanwhile. */
static bool take_rehearsed(struct python_engine *e)
{
    if (e->state != UNCLAIMED && e->state != CONFIGURING)
        return false;
    e->is_rehearsed = true;
    if (e->python->spare == e)
        end_warm(e->python, NULL);
    return true;
}

/* The sandbox has other packages than the zygote has imported. The process ends by itself; its death may come first. */
static void take_stale(struct python_engine *e)
{
    engine_died(e); /* first: closing the zygote's socket ends the spare, which this may be */
    if (e->is_from_zygote && e->died_early)
        zygote_client_close(e->python->zygote);
}

static void on_spare_delay(struct timer *timer);

static void take_ready(struct python_engine *e)
{
    struct python *python = e->python;

    e->state = ALIVE;
    if (e->is_from_zygote && python->from_zygote > 1 && !python->spare)
        timer_set(&python->spare_delay, python->guest->loop, SPARE_DELAY_MS, on_spare_delay);
    e->engine.events->on_ready(&e->engine);
}

/* The cell has ended. If it was interrupted, processes that it has started may still run: they are killed first. */
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

static bool take_line(struct python_engine *e, enum engine_line kind, struct str text)
{
    if (!line_is_clean(text))
        return false;
    auto_buf struct buf line = buf_make(NULL, text.len + 1);
    buf_add(&line, text);
    buf_add_char(&line, '\n');
    e->engine.events->on_line(&e->engine, kind, buf_str(&line));
    return true;
}

/* False: not a frame that may come now. */
static bool take_frame(struct python_engine *e, const struct frame *frame)
{
    uint64_t number;

    if (!e->engine.events && frame->letter != 'H' && frame->letter != 'S' && frame->letter != 'W')
        return false;
    switch (frame->letter) {
    case 'H':
        take_hello(e);
        return true;
    case 'S':
        take_stale(e);
        return true;
    case 'W':
        return take_rehearsed(e);
    case 'R':
        if (e->state != CONFIGURING)
            return false;
        take_ready(e);
        return true;
    case 'C':
        return take_line(e, ENGINE_LINE_ACCEPTED, frame->text);
    case 'L':
        return take_line(e, ENGINE_LINE_OUTPUT, frame->text);
    case 'X':
        return take_line(e, ENGINE_LINE_ERROR, frame->text);
    case 'D':
        if (str_to_u64(frame->text, UINT64_MAX, &number) && number == e->cell)
            on_sweep(&e->sweep);
        return true;
    default:
        return false;
    }
}

static void on_input(struct stream *stream)
{
    struct python_engine *e = stream->owner;

    while (e->link && e->state < DEAD) {
        struct frame frame;
        size_t used;
        enum frame_verdict verdict = frame_parse(buf_str(&stream->in), &frame, &used);
        if (verdict == FRAME_MORE)
            return;
        if (verdict == FRAME_MALFORMED) {
            kill_tree(e);
            return;
        }
        pipes_drain(&e->pipes); /* what was printed before the frame was sent comes first */
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

/* User code has closed the socket: the interpreter cannot be reached any more. Its death comes by the pidfd. */
static void on_link_end(struct stream *stream, const struct err *err)
{
    struct python_engine *e = stream->owner;

    (void)err;
    if (e->state < DYING)
        kill_tree(e);
}

static const struct stream_events link_events = { .on_input = on_input, .on_end = on_link_end };

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
    json_out_bool(&out, "reseed", e->is_copy);
    e->is_copy = false;
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

    if (e->state != ALIVE)
        return;
    e->was_interrupted = true;
    (void)kill(-e->pid, SIGINT); /* the group: a subprocess that the cell waits for is interrupted too */
}

static void pause_reading(struct engine *engine, bool pause)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);

    pipes_pause(&e->pipes, pause);
    if (e->link)
        stream_read(e->link, !pause);
}

static void engine_dispose(void *object)
{
    struct python_engine *e = object;

    free(e->start_message);
    free(e);
}

static void engine_end(struct engine *engine)
{
    struct python_engine *e = container_of(engine, struct python_engine, engine);
    struct python_engine **at = &e->python->engines;

    lose_spare(e);
    zygote_spawn_cancel(take_ptr(&e->spawn));
    kill_tree(e);
    timer_clear(&e->status_wait);
    timer_clear(&e->spawn_limit);
    timer_clear(&e->sweep);
    watch_free(take_ptr(&e->death));
    fd_close(&e->pidfd);
    stream_free(take_ptr(&e->link));
    pipes_close(&e->pipes);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    loop_retire(e->python->guest->loop, e, engine_dispose);
}

static const struct engine_kind kind = {
    .run = run, .interrupt = interrupt, .pause = pause_reading, .free = engine_end
};

/* ---- starting ---- */

static void on_pipe_line(struct pipes *pipes, struct str line)
{
    struct python_engine *e = container_of(pipes, struct python_engine, pipes);

    if (e->engine.events) /* the spare has no client */
        e->engine.events->on_line(&e->engine, ENGINE_LINE_PRINTED, line);
}

/* The process runs in the sandbox: watch it, and read its frames. Takes both descriptors. */
static void attach(struct python_engine *e, pid_t pid, int pidfd, int link_fd)
{
    struct loop *loop = e->python->guest->loop;

    e->pid = pid;
    e->pidfd = pidfd;
    e->death = watch_new(loop, pidfd, on_death, e);
    watch_want(e->death, WATCH_READ);
    e->link = stream_new(loop, link_fd, LIMIT_FRAME_BYTES + FRAME_HEADER_BYTES, &link_events, e);
    stream_read(e->link, true);
}

static void on_spawned(void *owner, pid_t pid, int pidfd, int link_fd)
{
    struct python_engine *e = owner;

    e->spawn = NULL;
    attach(e, pid, pidfd, link_fd);
}

static void on_spawn_failed(void *owner)
{
    struct python_engine *e = owner;

    e->spawn = NULL;
    engine_died(e);
}

static const struct zygote_spawn_events spawn_events = { .on_spawned = on_spawned, .on_failed = on_spawn_failed };

static void on_spawn_limit(struct timer *timer)
{
    struct python_engine *e = container_of(timer, struct python_engine, spawn_limit);

    zygote_spawn_cancel(take_ptr(&e->spawn));
    engine_died(e);
}

static bool start_from_zygote(struct python_engine *e, const struct user *user, const int out_and_err[2],
                              struct err *err)
{
    struct python *python = e->python;

    e->is_from_zygote = true;
    e->spawn = zygote_spawn_new(python->zygote, user, out_and_err, &spawn_events, e, err);
    if (!e->spawn)
        return false;
    timer_set(&e->spawn_limit, python->guest->loop, ZYGOTE_SPAWN_MS, on_spawn_limit);
    return true;
}

/* The three messages that a python3 finds on its stdin. They wait in the socket until it has started. */
static bool send_program(int boot_fd, const int fds[ZYGOTE_REQUEST_FDS], struct err *err)
{
    return pass_fds(boot_fd, str_from(interpreter_charts_py), NULL, 0, err) &&
           pass_fds(boot_fd, str_from(interpreter_driver_py), NULL, 0, err) &&
           pass_fds(boot_fd, STR("f"), fds, ZYGOTE_REQUEST_FDS, err);
}

static bool start_alone(struct python_engine *e, const struct user *user, char *const *env, const int out_and_err[2],
                        struct err *err)
{
    static const char *const argv[] = { "python3", "-c", ZYGOTE_BOOT, NULL };
    struct guest *guest = e->python->guest;
    int boot[2], link[2];

    auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, boot) < 0)
        return err_sys(err, "open /dev/null and a socket for python3");
    auto_close int boot_ours = boot[0], boot_theirs = boot[1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) < 0)
        return err_sys(err, "open a socket for python3");
    auto_close int link_ours = link[0], link_theirs = link[1];
    if (!send_program(boot_ours, (int[]){ link_theirs, out_and_err[0], out_and_err[1] }, err))
        return err_wrap(err, "send python3 its program");
    struct launch launch = {
        .user = user,
        .argv = argv,
        .env = env,
        .cwd = "/",
        .in_fd = boot_theirs,
        .out_fd = null_fd,
        .err_fd = null_fd,
    };
    struct arena arena;
    pid_t pid;
    arena_init(&arena);
    bool started = launch_start(guest, &launch, &arena, &pid, err);
    arena_done(&arena);
    if (!started)
        return false;
    int pidfd = launch_pidfd(pid);
    if (pidfd < 0)
        return err_sys(err, "open process %d", pid);
    attach(e, pid, pidfd, take_fd(&link_ours));
    return true;
}

/* With `env` NULL: from the zygote. */
static struct python_engine *engine_start(struct python *python, const struct user *user, char *const *env,
                                          struct err *err)
{
    struct python_engine *e = NEW(struct python_engine);
    int theirs[2];

    e->engine.kind = &kind;
    e->python = python;
    e->pidfd = -1;
    e->pipes.ends[0].fd = e->pipes.ends[1].fd = -1;
    e->next = python->engines;
    python->engines = e;
    bool started = pipes_open(&e->pipes, python->guest->loop, on_pipe_line, theirs, err);
    if (started) {
        started = env ? start_alone(e, user, env, theirs, err) : start_from_zygote(e, user, theirs, err);
        fd_close(&theirs[0]);
        fd_close(&theirs[1]);
    }
    if (started)
        return e;
    engine_end(&e->engine);
    return NULL;
}

/* {"op":"start","late":…,"cwd":…,"env":{…}}; late: spawned some time ago, as the spare. */
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

/* ---- the spare ---- */

static bool start_spare(struct python *python, struct err *err)
{
    struct arena arena;
    struct user user;

    arena_init(&arena);
    if (!users_find(python->guest->users, &arena, STR(ZYGOTE_USER), &user))
        (void)err_set(err, ERR_INVALID, "the template has no user '%s'", ZYGOTE_USER);
    else if (zygote_client_fits(python->zygote, &user, err))
        python->spare = engine_start(python, &user, NULL, err);
    arena_done(&arena);
    return python->spare != NULL;
}

static void on_spare_delay(struct timer *timer)
{
    struct python *python = container_of(timer, struct python, spare_delay);
    struct err err;

    if (!python->spare && !start_spare(python, &err))
        log_debug("python: no spare interpreter: %s", err_text(&err));
}

/* It is inside and does not get through its first cell. */
static void on_warm_limit(struct timer *timer)
{
    struct python *python = container_of(timer, struct python, warm_limit);
    struct err err;

    (void)err_set(&err, ERR_TIMEOUT, "the interpreter from the zygote is not ready after %d seconds", WARM_MS / 1000);
    end_warm(python, &err);
    zygote_client_failed(python->zygote); /* the next one would be no better */
    if (python->spare)
        engine_end(&python->spare->engine);
}

void python_warm(struct python *python, void (*done)(struct guest *guest, const struct err *err))
{
    struct err err;

    python->on_warmed = done;
    if (!python_is_there(python->guest)) {
        (void)err_set(&err, ERR_INVALID, "the template has no python3");
        end_warm(python, &err);
    } else if (!python->spare && !start_spare(python, &err)) {
        end_warm(python, &err);
    } else if (python->spare->is_rehearsed) {
        end_warm(python, NULL);
    } else if (!timer_is_set(&python->warm_limit)) {
        timer_set(&python->warm_limit, python->guest->loop, WARM_MS, on_warm_limit);
    }
}

bool python_has_spare(const struct python *python)
{
    return python->spare != NULL;
}

void python_set_up(struct python *python, const struct user *user)
{
    struct err ignored; /* the fallback will do */

    if (python->spare && !(user && zygote_client_fits(python->zygote, user, &ignored)))
        engine_end(&python->spare->engine);
}

static void on_zygote_closed(void *owner)
{
    struct python *python = owner;
    struct python_engine *spare = python->spare;

    timer_clear(&python->spare_delay);
    /*
     * It may be as old as the zygote. On the way to a pause one that is being spawned ends when it has come in: before, it
     * is in the session of the zygote, and no image can hold what is left of such a process.
     */
    if (spare && !(python->is_prepared && spare->state == STARTING))
        engine_end(&spare->engine);
}

/* ---- python ---- */

struct python *python_new(struct guest *guest)
{
    struct python *python = NEW(struct python);

    python->guest = guest;
    python->zygote = zygote_client_new(guest, on_zygote_closed, python);
    return python;
}

void python_take_zygote(struct python *python, int fd)
{
    if (python->is_prepared)
        fd_close(&fd);
    else
        zygote_client_open(python->zygote, fd);
}

void python_prepare(struct python *python)
{
    python->is_prepared = true;
    zygote_client_close(python->zygote); /* the spare ends with it */
}

bool python_is_prepared(const struct python *python)
{
    for (const struct python_engine *e = python->engines; e; e = e->next)
        if (e->is_from_zygote && e->state == STARTING)
            return false;
    return true;
}

void python_give_up_spawns(struct python *python)
{
    for (struct python_engine *e = python->engines; e; e = e->next)
        if (e->is_from_zygote && e->state == STARTING)
            on_spawn_limit(&e->spawn_limit);
}

void python_resumed(struct python *python)
{
    python->is_prepared = false;
}

void python_copied(struct python *python)
{
    for (struct python_engine *e = python->engines; e; e = e->next)
        e->is_copy = true;
}

struct engine *python_engine_new(struct python *python, const struct user *user, const struct engine_want *want,
                                 struct err *err)
{
    struct err ignored; /* the fallback will do */
    bool from_zygote = zygote_client_fits(python->zygote, user, &ignored);
    struct python_engine *e = from_zygote ? take_ptr(&python->spare) : NULL;
    bool is_spare = e != NULL;

    python->from_zygote += from_zygote;
    if (is_spare)
        end_warm(python, NULL);
    else /* a new process may read /etc at once; the spare reads nothing before its first cell */
        link_tell_network(python->guest);
    if (!e && from_zygote) {
        e = engine_start(python, user, NULL, err);
        if (!e)
            zygote_client_failed(python->zygote);
    }
    if (!e)
        e = engine_start(python, user, want->env, err);
    if (!e)
        return NULL;
    make_start_message(e, want, is_spare);
    if (e->state == UNCLAIMED)
        send_start_message(e);
    e->engine.events = want->events;
    e->engine.owner = want->owner;
    return &e->engine;
}

void python_free(struct python *python)
{
    if (!python)
        return;
    zygote_client_close(python->zygote);
    while (python->engines)
        engine_end(&python->engines->engine); /* a dying spare; all others belong to contexts, which are gone */
    timer_clear(&python->spare_delay);
    zygote_client_free(python->zygote);
    free(python);
}
