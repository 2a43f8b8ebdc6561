#include "fake.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/ports.h"
#include "io/dial.h"
#include "test.h"
#include "wire/guestlink.h"

static struct fake *fake_of(struct driver *driver)
{
    return container_of(driver, struct fake, driver);
}

struct fake_held *fake_find(struct fake *fake, struct str id)
{
    for (uint32_t i = 0; i < fake->held_count; i++)
        if (str_eq(str_from(fake->held[i].id), id))
            return &fake->held[i];
    return NULL;
}

/* With the lock held. Returns our side of a new guestlink. */
static int new_link(struct fake_held *held)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    held->peer_fd = fds[1];
    return fds[0];
}

/* The same for a new sandbox, or one that was parked. */
static int add_held(struct fake *fake, const char *id, const struct plan *plan)
{
    struct fake_held *held = fake_find(fake, str_from(id));

    if (!held) {
        held = &fake->held[fake->held_count++];
        held->peer_fd = -1;
    }
    fd_close(&held->peer_fd);
    snprintf(held->id, sizeof held->id, "%s", id);
    held->dying = held->silent = held->thawed = false;
    held->state = HELD_RUNNING;
    if (plan)
        held->plan = *plan;
    return new_link(held);
}

void fake_remove(struct fake *fake, struct fake_held *held)
{
    fd_close(&held->peer_fd);
    *held = fake->held[--fake->held_count];
    pthread_cond_broadcast(&fake->changed);
}

void fake_answer(struct fake_held *held, bool refuse)
{
    auto_buf struct buf answer = buf_make(NULL, 4096);
    struct err err;

    if (refuse) {
        (void)err_set(&err, ERR_INVALID, "no such user");
        guestlink_write_error(&answer, &err);
    } else {
        guestlink_write_simple(&answer, GUESTLINK_OK);
    }
    if (send(held->peer_fd, answer.data, answer.len, MSG_NOSIGNAL) != (ssize_t)answer.len)
        abort();
}

static bool fake_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    struct fake *fake = fake_of(driver);
    bool ok = true;

    pthread_mutex_lock(&fake->lock);
    fake->starts++;
    fake->last_plan = *plan;
    fake->at_gate++;
    pthread_cond_broadcast(&fake->changed);
    while (fake->gate_shut)
        pthread_cond_wait(&fake->changed, &fake->lock);
    fake->at_gate--;
    struct fake_held *parked = fake_find(fake, str_from(plan->id));
    bool is_parked = parked && parked->state >= HELD_PARKED;
    bool has_image = parked && parked->state == HELD_PARKED_IMAGE;
    if ((plan->from == PLAN_PARKED && !is_parked) || (plan->from == PLAN_PARKED_IMAGE && !has_image)) {
        ok = err_set(err, ERR_NOT_FOUND, "there is no parked sandbox %s", plan->id);
    } else if (fake->start == FAKE_START_FAILS) {
        ok = err_sys_num(err, ENOENT, "mount layer");
    } else if (fake->start == FAKE_START_IS_FULL) {
        ok = err_set(err, ERR_FULL, "a sandbox needs 32 MiB of disk");
    } else if (fake->start == FAKE_START_IS_REFUSED) {
        ok = err_set(err, ERR_CONFLICT, "its memory could not be brought back");
    } else if (fake->start == FAKE_NO_NAMESPACES) {
        ok = err_sys_num(err, ENOSPC, "make the namespaces of a sandbox");
    } else if (fake->start == FAKE_START_TIMES_OUT) {
        close(add_held(fake, plan->id, plan));
        ok = err_set(err, ERR_TIMEOUT, "keeper did not answer");
    } else if (fake->start == FAKE_START_GIVES_UP) {
        ok = err_set(err, ERR_TIMEOUT, "its processes were not restored in time");
    } else if (fake->start == FAKE_START_ANSWERS_WRONGLY) {
        close(add_held(fake, plan->id, plan));
        ok = err_set(err, ERR_INTERNAL, "keeper's answer has the wrong shape");
    } else {
        out->guestlink_fd = add_held(fake, plan->id, plan);
        out->has_network = !fake->no_network;
        struct fake_held *held = fake_find(fake, str_from(plan->id));
        held->silent = fake->start == FAKE_GUEST_IS_SILENT;
        if (fake->start == FAKE_GUEST_DIES)
            shutdown(held->peer_fd, SHUT_RDWR);
        else if (!held->silent)
            fake_answer(held, fake->start == FAKE_GUEST_REFUSES);
        pthread_cond_broadcast(&fake->changed);
    }
    pthread_mutex_unlock(&fake->lock);
    return ok;
}

static bool fake_stop_wait(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone, struct err *err)
{
    struct fake *fake = fake_of(driver);
    bool ok = true;

    pthread_mutex_lock(&fake->lock);
    if (fake->noted_id && strcmp(id, fake->noted_id) == 0)
        fake->stops_before_noted = fake->stops;
    fake->stops++;
    struct fake_held *held = fake_find(fake, str_from(id));
    *out_gone = !fake->stop_sticks || !held;
    fake->stop_patience_ms = patience_ms;
    while (fake->stop_gate_shut)
        pthread_cond_wait(&fake->changed, &fake->lock);
    if (fake->stop_failures) {
        fake->stop_failures--;
        ok = err_set(err, ERR_UNAVAILABLE, "keeper is away");
    } else if (fake->stop_sticks && held) {
        held->dying = true;
    } else if (held) {
        fake_remove(fake, held);
    }
    pthread_mutex_unlock(&fake->lock);
    return ok;
}

static bool wait_at_stop_gate(struct fake *fake, const struct fake_waiting *stop)
{
    pthread_mutex_lock(&fake->lock);
    bool waits = fake->stop_gate_shut;
    struct fake_waiting **last = &fake->at_stop_gate;
    while (waits && *last)
        last = &(*last)->next;
    if (waits) {
        *last = NEW(struct fake_waiting);
        **last = *stop;
        fake->at_stop_gate_count++;
        pthread_cond_broadcast(&fake->changed);
    }
    pthread_mutex_unlock(&fake->lock);
    return waits;
}

static void fake_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                      void *context)
{
    struct fake_waiting stop = { .patience_ms = patience_ms, .done = done, .context = context };
    bool gone = false;
    struct err err;

    snprintf(stop.id, sizeof stop.id, "%s", id);
    if (wait_at_stop_gate(fake_of(driver), &stop))
        return;
    bool killed = fake_stop_wait(driver, id, patience_ms, &gone, &err);

    done(context, gone, killed ? NULL : &err);
}

void fake_pass_stops(struct fake *fake, const struct err *err)
{
    pthread_mutex_lock(&fake->lock);
    struct fake_waiting *stop = take_ptr(&fake->at_stop_gate), *next;
    fake->at_stop_gate_count = 0;
    pthread_mutex_unlock(&fake->lock);
    for (; stop; stop = next) {
        next = stop->next;
        if (err)
            stop->done(stop->context, false, err);
        else
            fake_stop(&fake->driver, stop->id, stop->patience_ms, stop->done, stop->context);
        free(stop);
    }
}

static bool fake_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct fake *fake = fake_of(driver);

    (void)err;
    *out_held = calloc(FAKE_HELD, sizeof **out_held);
    pthread_mutex_lock(&fake->lock);
    *out_count = 0;
    for (uint32_t i = 0; i < fake->held_count; i++)
        if (!fake->held[i].dying) {
            memcpy((*out_held)[*out_count].id, fake->held[i].id, sizeof fake->held[i].id);
            (*out_held)[*out_count].state = fake->held[i].state;
            (*out_held)[(*out_count)++].has_network = !fake->no_network;
        }
    pthread_mutex_unlock(&fake->lock);
    if (fake->exits_after_list.len)
        fake_exit(fake, fake->exits_after_list);
    return true;
}

/* What guestd says on a new link. */
static void answer_link(struct fake *fake, struct fake_held *held)
{
    auto_buf struct buf answer = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    if (fake->guest == FAKE_GUEST_HANGS_UP) {
        shutdown(held->peer_fd, SHUT_RDWR);
    } else if (held->thawed || fake->guest == FAKE_GUEST_IS_OLD) {
        fake_answer(held, fake->guest == FAKE_GUEST_IS_OLD);
    } else {
        guestlink_write_ready(&answer, &fake->ready);
        if (send(held->peer_fd, answer.data, answer.len, MSG_NOSIGNAL) != (ssize_t)answer.len)
            abort();
    }
    held->thawed = false;
}

static bool fake_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    struct fake *fake = fake_of(driver);

    if (fake->on_link)
        fake->on_link(fake->link_context);
    pthread_mutex_lock(&fake->lock);
    struct fake_held *held = fake_find(fake, str_from(id));
    if (held)
        fd_close(&held->peer_fd);
    int fd = held ? new_link(held) : -1;
    fake->links += fd >= 0;
    if (held)
        answer_link(fake, held);
    pthread_mutex_unlock(&fake->lock);
    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "no such link");
    *out_guestlink_fd = fd;
    return true;
}

static bool fake_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                       uint32_t *out_count, struct err *err)
{
    struct fake *fake = fake_of(driver);
    uint32_t found = 0;

    if (fake->stats_fail)
        return err_set(err, ERR_INTERNAL, "failed on purpose");
    assert_true(count >= 1 && count <= LIMIT_STATS);
    pthread_mutex_lock(&fake->lock);
    fake->stats_calls++;
    for (uint32_t i = 0; i < count; i++) {
        if (!fake_find(fake, str_from(which[i].id)))
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
    pthread_mutex_unlock(&fake->lock);
    *out_count = found;
    return true;
}

/* ---- pauses ---- */

/* With the lock held. */
static void park(struct fake_held *held, bool memory)
{
    if (held->state >= HELD_PARKED)
        return; /* an image stays */
    fd_close(&held->peer_fd);
    held->state = memory ? HELD_PARKED_IMAGE : HELD_PARKED;
}

static void snapshot(struct fake *fake, const struct fake_held *held, bool memory, struct kept *out)
{
    *out = (struct kept){ .has_image = memory, .layer_bytes = 1000, .image_bytes = memory ? 2000 : 0 };
    snprintf(out->id, sizeof out->id, "%064x",
             fake->pause_calls[PAUSE_SNAPSHOT] + fake->pause_calls[PAUSE_COPY] + 1000 * fake->pause_calls[PAUSE_SEAL]);
    out->layer_count = held->plan.layer_count + 1;
    memcpy(out->layers, held->plan.layers, held->plan.layer_count * sizeof out->layers[0]);
    memcpy(out->layers[held->plan.layer_count], out->id, sizeof out->id);
}

static bool fake_pause_wait(struct driver *driver, enum pause_call call, const char *id, bool memory, struct kept *out,
                            struct err *err)
{
    struct fake *fake = fake_of(driver);
    bool ok = true;

    pthread_mutex_lock(&fake->lock);
    if (call == PAUSE_PARK && fake->pause_calls[call] < COUNT_OF(fake->parked))
        snprintf(fake->parked[fake->pause_calls[call]], sizeof fake->parked[0], "%s", id);
    fake->pause_calls[call]++;
    fake->at_pause_gate++;
    pthread_cond_broadcast(&fake->changed);
    while (fake->pause_gates & BIT(call))
        pthread_cond_wait(&fake->changed, &fake->lock);
    fake->at_pause_gate--;
    struct fake_held *held = fake_find(fake, str_from(id));
    if (fake->pause_errs[call][memory].kind) {
        *err = fake->pause_errs[call][memory];
        ok = false;
        if (call == PAUSE_PARK && fake->parks_by_itself && held)
            park(held, false);
    } else if (call == PAUSE_DROP && fake->stuck && !strcmp(id, fake->stuck)) {
        ok = err_set(err, ERR_INTERNAL, "%s is stuck", id);
    } else if (call == PAUSE_DROP) {
        snprintf(fake->dropped, sizeof fake->dropped, "%s", id);
    } else if (call == PAUSE_MEASURE) {
        *out = (struct kept){
            .layer_bytes = 3000, .image_bytes = 1000, .raw_bytes = 2000, .has_image = true, .is_final = true
        };
    } else if (call == PAUSE_LIST) {
        *out = (struct kept){ 0 };
        if (fake->unknown && strcmp(fake->unknown, id) > 0)
            snprintf(out->layers[out->layer_count++], LAYER_ID_BYTES, "%s", fake->unknown);
        if (fake->known && strcmp(fake->known, id) > 0)
            snprintf(out->layers[out->layer_count++], LAYER_ID_BYTES, "%s", fake->known);
    } else if (!held || (call != PAUSE_PARK && held->state >= HELD_PARKED)) {
        ok = err_set(err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    } else if (call == PAUSE_FREEZE) {
        held->state = HELD_FROZEN;
    } else if (call == PAUSE_THAW) {
        held->thawed = held->state == HELD_FROZEN;
        held->state = HELD_RUNNING;
    } else if (call == PAUSE_PARK) {
        park(held, memory);
    } else {
        snapshot(fake, held, memory || call == PAUSE_COPY, out);
        if (call == PAUSE_SEAL)
            fake_remove(fake, held);
    }
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
    if (ok && fake->on_pause)
        fake->on_pause(fake->pause_context, call);
    return ok;
}

/* ---- sockets ---- */

static bool holds(struct fake *fake, const char *id, struct err *err)
{
    pthread_mutex_lock(&fake->lock);
    bool found = fake_find(fake, str_from(id)) != NULL;
    pthread_mutex_unlock(&fake->lock);
    return found || err_set(err, ERR_NOT_FOUND, "there is no sandbox %s", id);
}

struct later {
    struct loop_task task;
    struct fake *fake;
    char id[LIMIT_ID_BYTES];
    uint16_t port;
    driver_socket_fn *done;
    void *context;
};

static void answer_dial(struct fake *fake, const char *id, uint16_t port, driver_socket_fn *done, void *context)
{
    int fd = -1;
    struct err err;

    if (holds(fake, id, &err)) {
        fake->dials++;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (!dial_loopback(fd, port == GUESTD_PORT && fake->guestd_port ? fake->guestd_port : port, &err))
            fd_close(&fd);
    }
    done(context, fd, fd < 0 ? &err : NULL);
}

static void on_later(struct loop_task *task)
{
    struct later *later = container_of(task, struct later, task);

    answer_dial(later->fake, later->id, later->port, later->done, later->context);
    free(later);
}

static void fake_dial(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done, void *context)
{
    struct fake *fake = fake_of(driver);

    if (!fake->dial_later) {
        answer_dial(fake, id, port, done, context);
        return;
    }
    struct later *later = NEW(struct later);
    *later = (struct later){ .task.fn = on_later, .fake = fake, .port = port, .done = done, .context = context };
    snprintf(later->id, sizeof later->id, "%s", id);
    loop_post(fake->dial_later, &later->task);
}

static void fake_listen(struct driver *driver, const char *id, const struct listen_at *at, driver_socket_fn *done,
                        void *context)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(at->port),
                                         .sin_addr.s_addr = htonl(at->address) };
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct err err;
    bool fine = holds(fake_of(driver), id, &err);

    if (fine && (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, at->backlog) < 0))
        fine = err_sys(&err, "listen on port %u", at->port);
    done(context, fine ? take_fd(&fd) : -1, fine ? NULL : &err);
}

/* Sockets that nothing is diverted to; of IPv4 alone, as on a machine without IPv6. */
static bool fake_divert(struct driver *driver, const char *id, int out_fds[DIVERT_KINDS], struct err *err)
{
    struct fake *fake = fake_of(driver);

    fake->diverts++;
    if (!holds(fake, id, err))
        return false;
    if (fake->divert_fails)
        return err_set(err, fake->divert_fails, "failed on purpose");
    for (int i = 0; i < DIVERT_KINDS; i++)
        out_fds[i] = -1;
    out_fds[DIVERT_TCP4] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    out_fds[DIVERT_UDP4] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return true;
}

static const struct driver_ops fake_ops = {
    .name = "fake",
    .start = fake_start,
    .stop = fake_stop,
    .stop_wait = fake_stop_wait,
    .list = fake_list,
    .link = fake_link,
    .stats = fake_stats,
    .pause_wait = fake_pause_wait,
    .dial = fake_dial,
    .listen = fake_listen,
    .divert = fake_divert,
};

/* ---- for tests ---- */

void fake_make(struct fake *fake)
{
    *fake = (struct fake){ .driver.ops = &fake_ops };
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->changed, NULL);
}

void fake_drop(struct fake *fake)
{
    while (fake->held_count)
        fake_remove(fake, &fake->held[0]);
    pthread_cond_destroy(&fake->changed);
    pthread_mutex_destroy(&fake->lock);
}

void fake_hold(struct fake *fake, const char *id)
{
    pthread_mutex_lock(&fake->lock);
    close(add_held(fake, id, NULL));
    pthread_mutex_unlock(&fake->lock);
}

void fake_hold_as(struct fake *fake, struct str id, enum held_state state)
{
    pthread_mutex_lock(&fake->lock);
    struct fake_held *held = fake_find(fake, id);
    held->state = state;
    held->thawed = state == HELD_RUNNING; /* the next link is for the one after us, who does not pause it at once */
    pthread_mutex_unlock(&fake->lock);
}

void fake_exit(struct fake *fake, struct str id)
{
    char text[LIMIT_ID_BYTES];

    snprintf(text, sizeof text, "%.*s", STR_ARG(id));
    pthread_mutex_lock(&fake->lock);
    struct fake_held *held = fake_find(fake, id);
    if (held)
        fake_remove(fake, held);
    pthread_mutex_unlock(&fake->lock);
    fake->driver.exited(fake->driver.exited_context, text, fake->exit_cause);
}
