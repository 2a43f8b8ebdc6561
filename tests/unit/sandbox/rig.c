#include "rig.h"

#include <errno.h>
#include <sys/socket.h>

#include "hand_clock.h"

/* ---- the driver ---- */

static struct rig *rig_of(struct driver *driver)
{
    return container_of(driver, struct rig, driver);
}

/* With the lock held. */
static struct rig_held *find_held(struct rig *rig, struct str id)
{
    for (uint32_t i = 0; i < rig->held_count; i++)
        if (str_eq(str_from(rig->held[i].id), id))
            return &rig->held[i];
    return NULL;
}

/* With the lock held. Returns our side of a new guestlink. */
static int new_link(struct rig_held *held)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    held->peer_fd = fds[1];
    return fds[0];
}

/* The same for a new sandbox. */
static int add_held(struct rig *rig, const char *id)
{
    struct rig_held *held = &rig->held[rig->held_count++];

    snprintf(held->id, sizeof held->id, "%s", id);
    held->dying = held->silent = false;
    return new_link(held);
}

/* With the lock held. */
static void remove_held(struct rig *rig, struct rig_held *held)
{
    close(held->peer_fd);
    *held = rig->held[--rig->held_count];
    pthread_cond_broadcast(&rig->changed);
}

static void answer_ahead(int peer_fd, bool refuse)
{
    auto_buf struct buf answer = buf_make(NULL, 4096);
    struct err err;

    if (refuse) {
        (void)err_set(&err, ERR_INVALID, "no such user");
        guestlink_write_error(&answer, &err);
    } else {
        guestlink_write_simple(&answer, GUESTLINK_OK);
    }
    if (send(peer_fd, answer.data, answer.len, MSG_NOSIGNAL) != (ssize_t)answer.len)
        abort();
}

static bool rig_driver_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    struct rig *rig = rig_of(driver);
    bool ok = true;

    pthread_mutex_lock(&rig->lock);
    rig->starts++;
    rig->last_plan = *plan;
    rig->at_gate++;
    pthread_cond_broadcast(&rig->changed);
    while (rig->gate_shut)
        pthread_cond_wait(&rig->changed, &rig->lock);
    rig->at_gate--;
    if (rig->start == RIG_START_FAILS) {
        ok = err_sys_num(err, ENOENT, "mount layer");
    } else if (rig->start == RIG_START_IS_FULL) {
        ok = err_set(err, ERR_FULL, "a sandbox needs 32 MiB of disk");
    } else if (rig->start == RIG_NO_NAMESPACES) {
        ok = err_sys_num(err, ENOSPC, "make the namespaces of a sandbox");
    } else if (rig->start == RIG_START_TIMES_OUT) {
        close(add_held(rig, plan->id));
        ok = err_set(err, ERR_TIMEOUT, "keeper did not answer");
    } else if (rig->start == RIG_START_ANSWERS_WRONGLY) {
        close(add_held(rig, plan->id));
        ok = err_set(err, ERR_INTERNAL, "keeper's answer has the wrong shape");
    } else {
        out->guestlink_fd = add_held(rig, plan->id);
        struct rig_held *held = find_held(rig, str_from(plan->id));
        held->silent = rig->start == RIG_GUEST_IS_SILENT;
        if (rig->start == RIG_GUEST_DIES)
            shutdown(held->peer_fd, SHUT_RDWR);
        else if (!held->silent)
            answer_ahead(held->peer_fd, rig->start == RIG_GUEST_REFUSES);
        pthread_cond_broadcast(&rig->changed);
    }
    pthread_mutex_unlock(&rig->lock);
    return ok;
}

static bool rig_driver_stop(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone,
                            struct err *err)
{
    struct rig *rig = rig_of(driver);
    bool ok = true;

    pthread_mutex_lock(&rig->lock);
    rig->stops++;
    struct rig_held *held = find_held(rig, str_from(id));
    *out_gone = !rig->stop_sticks || !held;
    rig->stop_patience_ms = patience_ms;
    while (rig->stop_gate_shut)
        pthread_cond_wait(&rig->changed, &rig->lock);
    if (rig->stop_failures) {
        rig->stop_failures--;
        ok = err_set(err, ERR_UNAVAILABLE, "keeper is away");
    } else if (rig->stop_sticks && held) {
        held->dying = true;
    } else if (held) {
        remove_held(rig, held);
    }
    pthread_mutex_unlock(&rig->lock);
    return ok;
}

static bool rig_driver_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct rig *rig = rig_of(driver);

    (void)err;
    *out_held = calloc(64, sizeof **out_held);
    pthread_mutex_lock(&rig->lock);
    *out_count = 0;
    for (uint32_t i = 0; i < rig->held_count; i++)
        if (!rig->held[i].dying)
            memcpy((*out_held)[(*out_count)++].id, rig->held[i].id, sizeof rig->held[i].id);
    pthread_mutex_unlock(&rig->lock);
    if (rig->exits_after_list.len)
        rig_exit(rig, rig->exits_after_list);
    return true;
}

static bool rig_driver_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    struct rig *rig = rig_of(driver);

    pthread_mutex_lock(&rig->lock);
    struct rig_held *held = find_held(rig, str_from(id));
    if (held)
        close(held->peer_fd);
    int fd = held ? new_link(held) : -1;
    pthread_mutex_unlock(&rig->lock);
    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "no such link");
    *out_guestlink_fd = fd;
    return true;
}

static bool rig_driver_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                             uint32_t *out_count, struct err *err)
{
    struct rig *rig = rig_of(driver);
    uint32_t found = 0;

    (void)err;
    assert_true(count >= 1 && count <= LIMIT_STATS);
    pthread_mutex_lock(&rig->lock);
    rig->stats_calls++;
    for (uint32_t i = 0; i < count; i++) {
        if (!find_held(rig, str_from(which[i].id)))
            continue;
        out[found] = (struct stats){
            .cpu_us = 1000,
            .memory_used_bytes = 1 << 20,
            .memory_cache_bytes = 2 << 20,
            .memory_limit_bytes = 1 << 30,
            .disk_used_bytes = 3 << 20,
            .disk_total_bytes = UINT64_C(5) << 30,
        };
        memcpy(out[found++].id, which[i].id, sizeof which[i].id);
    }
    pthread_mutex_unlock(&rig->lock);
    *out_count = found;
    return true;
}

static const struct driver_ops rig_ops = {
    .name = "rig",
    .start = rig_driver_start,
    .stop_wait = rig_driver_stop,
    .list = rig_driver_list,
    .link = rig_driver_link,
    .stats = rig_driver_stats,
};

/* ---- the rig ---- */

static void on_unroutable(void *context, const char *id)
{
    struct rig *rig = context;

    pthread_mutex_lock(&rig->lock);
    snprintf(rig->cut_id, sizeof rig->cut_id, "%s", id);
    rig->cut_while_alive = find_held(rig, str_from(id)) != NULL;
    rig->cuts++;
    pthread_mutex_unlock(&rig->lock);
}

void rig_make(struct rig *rig)
{
    static const struct str layers[] = { STR_INIT("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef") };

    hand_clock_start();
    *rig = (struct rig){ .driver = { .ops = &rig_ops } };
    temp_store_make(&rig->disk);
    pthread_mutex_init(&rig->lock, NULL);
    pthread_cond_init(&rig->changed, NULL);
    arena_init(&rig->arena);
    rig->want = (struct sandbox_want){
        .team_id = STR("team"),
        .template_id = STR("tbase"),
        .alias = STR("base"),
        .guestd_version = STR("0.6.13"),
        .layer_count = 1,
        .layers = layers,
        .cpu_count = 2,
        .memory_mb = 1024,
        .disk_mb = 5120,
        .timeout_s = 3600,
    };
}

static void *run_loop(void *argument)
{
    struct rig *rig = argument;

    loop_run(rig->loop);
    return NULL;
}

void rig_start(struct rig *rig)
{
    if (!rig->disk.store)
        temp_store_reopen(&rig->disk);
    rig->loop = loop_new();
    rig->workers = workers_new(rig->loop, LIMIT_WORKERS);
    struct sandboxes_config config = rig->config;
    config.loop = rig->loop;
    config.workers = rig->workers;
    config.driver = &rig->driver;
    config.store = rig->disk.store;
    config.on_unroutable = on_unroutable;
    config.context = rig;
    rig->all = sandboxes_new(&config);
    MUST(sandboxes_recover(rig->all, &err));
    if (rig->before_run)
        rig->before_run(rig);
    assert_int_equal(pthread_create(&rig->thread, NULL, run_loop, rig), 0);
    rig->loop_runs = true;
}

struct stopper {
    struct loop_task task;
    struct loop *loop;
};

static void stop_loop(struct loop_task *task)
{
    loop_stop_soon(container_of(task, struct stopper, task)->loop);
}

struct quieter {
    struct loop_task task;
    struct sandboxes *all;
    atomic_bool done;
};

static void quieten(struct loop_task *task)
{
    struct quieter *quieter = container_of(task, struct quieter, task);

    sandboxes_stop_measuring(quieter->all);
    quieter->done = true;
}

void rig_stop(struct rig *rig)
{
    struct stopper stopper = { { .fn = stop_loop }, rig->loop };
    struct quieter quieter = { { .fn = quieten }, rig->all, false };

    if (!rig->loop_runs)
        return;
    loop_post(rig->loop, &quieter.task);
    while (!quieter.done)
        usleep(100);
    workers_free(rig->workers);
    loop_post(rig->loop, &stopper.task); /* after the last done() of a worker */
    pthread_join(rig->thread, NULL);
    rig->loop_runs = false;
    if (rig->after_run)
        rig->after_run(rig);
    sandboxes_free(rig->all);
    rig->all = NULL;
    loop_free(rig->loop);
    store_close(rig->disk.store);
    rig->disk.store = NULL;
}

void rig_drop(struct rig *rig)
{
    rig_stop(rig);
    while (rig->held_count)
        remove_held(rig, &rig->held[0]);
    arena_done(&rig->arena);
    pthread_cond_destroy(&rig->changed);
    pthread_mutex_destroy(&rig->lock);
    temp_store_drop(&rig->disk);
}

void rig_stand(void)
{
    hand_clock_stand();
}

void rig_turn(struct rig *rig, uint64_t ms)
{
    if (rig->loop_runs)
        hand_clock_turn(rig->loop, ms);
    else
        hand_clock_add(ms);
}

void rig_hold(struct rig *rig, const char *id)
{
    pthread_mutex_lock(&rig->lock);
    close(add_held(rig, id));
    pthread_mutex_unlock(&rig->lock);
}

bool rig_holds(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->lock);
    bool found = find_held(rig, id) != NULL;
    pthread_mutex_unlock(&rig->lock);
    return found;
}

uint32_t rig_held_count(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    uint32_t count = rig->held_count;
    pthread_mutex_unlock(&rig->lock);
    return count;
}

void rig_lose(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->lock);
    struct rig_held *held = find_held(rig, id);
    if (held)
        remove_held(rig, held);
    pthread_mutex_unlock(&rig->lock);
}

void rig_exit(struct rig *rig, struct str id)
{
    char text[LIMIT_ID_BYTES];

    snprintf(text, sizeof text, "%.*s", STR_ARG(id));
    rig_lose(rig, id);
    rig->driver.exited(rig->driver.exited_context, text, rig->exit_cause);
}

void rig_shut_gate(struct rig *rig, bool shut)
{
    pthread_mutex_lock(&rig->lock);
    rig->gate_shut = shut;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
}

void rig_shut_stop_gate(struct rig *rig, bool shut)
{
    pthread_mutex_lock(&rig->lock);
    rig->stop_gate_shut = shut;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
}

void rig_wait_at_gate(struct rig *rig, unsigned count)
{
    pthread_mutex_lock(&rig->lock);
    while (rig->at_gate < count)
        pthread_cond_wait(&rig->changed, &rig->lock);
    pthread_mutex_unlock(&rig->lock);
}

/* With the lock held. */
static unsigned silent_count(const struct rig *rig)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < rig->held_count; i++)
        count += rig->held[i].silent;
    return count;
}

void rig_wait_silent(struct rig *rig, unsigned count)
{
    pthread_mutex_lock(&rig->lock);
    while (silent_count(rig) < count)
        pthread_cond_wait(&rig->changed, &rig->lock);
    pthread_mutex_unlock(&rig->lock);
}

void rig_break_silence(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    for (uint32_t i = 0; i < rig->held_count; i++) {
        if (rig->held[i].silent)
            answer_ahead(rig->held[i].peer_fd, false);
        rig->held[i].silent = false;
    }
    pthread_mutex_unlock(&rig->lock);
}

void rig_wait_empty(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    while (rig->held_count)
        pthread_cond_wait(&rig->changed, &rig->lock);
    pthread_mutex_unlock(&rig->lock);
}

size_t rig_rows(struct rig *rig)
{
    struct sandbox_row *rows;
    size_t count;

    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    return count;
}

static int peer_of(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->lock);
    int fd = find_held(rig, id)->peer_fd;
    pthread_mutex_unlock(&rig->lock);
    return fd;
}

struct guestlink_message rig_message_to(struct rig *rig, struct str id)
{
    unsigned char header[GUESTLINK_HEADER_BYTES];
    struct guestlink_message message;
    uint32_t length;

    int fd = peer_of(rig, id);
    assert_int_equal(recv(fd, header, sizeof header, MSG_WAITALL), sizeof header);
    MUST(guestlink_body_length(header, &length, &err));
    char *body = arena_alloc(&rig->arena, length);
    assert_int_equal(recv(fd, body, length, MSG_WAITALL), length);
    MUST(guestlink_read(str_of(body, length), &rig->arena, &message, &err));
    return message;
}

struct guestlink_setup rig_setup_of(struct rig *rig, struct str id)
{
    struct guestlink_message message = rig_message_to(rig, id);

    assert_int_equal(message.type, GUESTLINK_SETUP);
    return message.setup;
}

struct sandbox_info rig_create(struct rig *rig)
{
    struct sandbox_info info = { 0 };

    MUST(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err));
    return info;
}

void rig_say(struct rig *rig, struct str id, struct str bytes)
{
    int fd = peer_of(rig, id);

    while (bytes.len) { /* blocks while the other side is slow to take it, or fails once it has hung up */
        ssize_t n = send(fd, bytes.at, bytes.len, MSG_NOSIGNAL);
        if (n < 0)
            return;
        bytes.at += n;
        bytes.len -= (size_t)n;
    }
}

void rig_wait_deaf(struct rig *rig, struct str id)
{
    int fd = peer_of(rig, id);
    char room[256];

    while (recv(fd, room, sizeof room, 0) > 0) /* what we were told, then the end */
        ;
}
