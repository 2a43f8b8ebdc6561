/*
 * Front's connections to the workers of inboxes, and to children of the composer and of webhooks.
 *
 * A line is one inbox that is or was just in use. Calls for it take turns by its mutex; at most LIMIT_INBOX_TURNS wait, so
 * that a slow inbox cannot take all of front's threads. A line has a connection or none yet. Lines with a connection and
 * without calls are idle, and are in a queue, the one that was used last at the end. When there are LIMIT_INBOX_WORKERS
 * connections, the next one takes the place of the first idle line; when none is idle, it waits for one. A worker ends when
 * its connection is closed.
 *
 * A worker may have died while its line was idle: the connection then shows its end before anything is sent, and a new
 * worker is started. If it dies during a call, the call fails, because what it has done is not known.
 *
 * Locks: mail->lock is held for moments only, and never while another process is waited for. A line's turn is taken without
 * it.
 *
 * The composer and webhooks have places (base/places.h), of which an inbox has a part. Addresses of new webhooks are checked
 * in places of their own: a check answers a request, and does not wait until servers that hang are given up.
 *
 * ERR_LIMIT is a worker's own word: its inbox is full, or what was asked for is too large, and both stay so. What is full
 * here or in keeper (turns, processes, the channel) has room again in a moment: ERR_UNAVAILABLE, or ERR_LIMIT with the time
 * after which to try again if it is full of requests of the same inbox.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/lock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/places.h"
#include "base/queue.h"
#include "mail/hook.h"
#include "mail/inside.h"
#include "privsep/frame.h"
#include "privsep/message.h"

enum { RETRY_MS = 5 };

struct line {
    char inbox_id[MAIL_INBOX_ID_BYTES];
    pthread_mutex_t turn;
    int fd;                 /* for the thread whose turn it is, and under mail->lock when calls is 0; -1: none */
    unsigned calls;         /* that have it or wait for it; under mail->lock, as all below */
    struct queue_link idle; /* in mail->idle: has a connection, and calls is 0 */
    uint64_t used_ms;
};

struct mail {
    struct mail_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a line became idle, a connection was closed */
    struct map lines;
    struct queue idle; /* least recently used first */
    unsigned connections;
    struct places *composers, *hooks, *checks;
};

struct mail *mail_new(const struct mail_config *config)
{
    struct mail *mail = NEW(struct mail);
    pthread_condattr_t attributes;

    mail->config = *config;
    (void)pthread_mutex_init(&mail->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&mail->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    map_init(&mail->lines);
    mail->composers = places_new(&(struct places_rule){
        .most = LIMIT_COMPOSERS, .most_each = LIMIT_COMPOSERS_EACH, .waiting_each = LIMIT_COMPOSERS_WAITING });
    /* Calls wait in lanes (api/mail_hooks.c), where an inbox has one that is slow and one that is not. */
    mail->hooks = places_new(&(struct places_rule){ .most = LIMIT_HOOKS, .most_each = 2, .waiting_each = 0 });
    mail->checks = places_new(
        &(struct places_rule){ .most = LIMIT_HOOK_CHECKS, .most_each = 1, .waiting_each = LIMIT_HOOK_CHECKS_WAITING });
    return mail;
}

static void line_free(struct line *line)
{
    fd_close(&line->fd);
    (void)pthread_mutex_destroy(&line->turn);
    free(line);
}

void mail_free(struct mail *mail)
{
    if (!mail)
        return;
    struct line *line;
    for (size_t i = 0; (line = map_next(&mail->lines, &i));)
        line_free(line);
    map_done(&mail->lines);
    places_free(mail->composers);
    places_free(mail->hooks);
    places_free(mail->checks);
    (void)pthread_cond_destroy(&mail->changed);
    (void)pthread_mutex_destroy(&mail->lock);
    explicit_bzero(&mail->config, sizeof mail->config);
    free(mail);
}

const struct mail_config *mail_config_of(const struct mail *mail)
{
    return &mail->config;
}

void mail_inbox_server_key(const struct mail *mail, const char *inbox_id, struct seal_key *out)
{
    const struct seal_key *secret = &mail->config.server_secret;
    char label[sizeof "inbox " + MAIL_INBOX_ID_BYTES];

    (void)snprintf(label, sizeof label, "inbox %s", inbox_id);
    seal_derive(str_of(secret->bytes, sizeof secret->bytes), label, out);
}

/* ---- lines; under the lock ---- */

static void close_idle(struct mail *mail, struct line *line)
{
    queue_leave(&line->idle);
    mail->connections--;
    (void)map_remove(&mail->lines, str_from(line->inbox_id));
    line_free(line);
    (void)pthread_cond_broadcast(&mail->changed);
}

/* False when the time is over. */
static bool wait_for_change(struct mail *mail, uint64_t until_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000) * 1000000 };

    return pthread_cond_timedwait(&mail->changed, &mail->lock, &until) == 0;
}

static struct line *oldest_idle(const struct mail *mail)
{
    return mail->idle.first ? container_of(mail->idle.first, struct line, idle) : NULL;
}

void mail_close_idle(struct mail *mail)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&mail->lock);
    uint64_t now_ms = clock_mono_ms();

    for (struct line *line; (line = oldest_idle(mail)) && now_ms - line->used_ms >= LIMIT_INBOX_IDLE_MS;)
        close_idle(mail, line);
}

/* A place for one more connection, perhaps that of an idle one. */
static bool take_place(struct mail *mail, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&mail->lock);
    uint64_t until_ms = clock_mono_ms() + LIMIT_INBOX_CALL_MS;

    while (mail->connections >= LIMIT_INBOX_WORKERS) {
        struct line *line = oldest_idle(mail);
        if (line)
            close_idle(mail, line);
        else if (!wait_for_change(mail, until_ms))
            return err_set(err, ERR_UNAVAILABLE, "all workers for inboxes are busy; try again in a moment");
    }
    mail->connections++;
    return true;
}

static void give_place_back(struct mail *mail)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&mail->lock);

    mail->connections--;
    (void)pthread_cond_broadcast(&mail->changed);
}

/* ---- one line, by the thread whose turn it is ---- */

static struct line *line_enter(struct mail *mail, const char *inbox_id, struct err *err)
{
    struct line *line;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&mail->lock);
        line = map_get(&mail->lines, str_from(inbox_id));
        if (line && line->calls >= LIMIT_INBOX_TURNS) {
            (void)err_set(err, ERR_UNAVAILABLE, "too many requests for this inbox at once; try again in a moment");
            return NULL;
        }
        if (!line) {
            line = NEW(struct line);
            line->fd = -1;
            (void)snprintf(line->inbox_id, sizeof line->inbox_id, "%s", inbox_id);
            (void)pthread_mutex_init(&line->turn, NULL);
            (void)map_put(&mail->lines, str_from(line->inbox_id), line);
        }
        line->calls++;
        queue_leave(&line->idle);
    }
    (void)pthread_mutex_lock(&line->turn);
    return line;
}

static void line_leave(struct mail *mail, struct line *line)
{
    (void)pthread_mutex_unlock(&line->turn);
    auto_unlock pthread_mutex_t *held = lock_mutex(&mail->lock);
    line->used_ms = clock_mono_ms();
    if (--line->calls)
        return;
    if (line->fd >= 0) {
        queue_join(&mail->idle, &line->idle);
        (void)pthread_cond_broadcast(&mail->changed);
    } else {
        (void)map_remove(&mail->lines, str_from(line->inbox_id));
        line_free(line);
    }
}

static void line_close(struct mail *mail, struct line *line)
{
    fd_close(&line->fd);
    give_place_back(mail);
}

/* Nothing comes unasked: what can be read is the worker's end. */
static bool has_ended(int fd)
{
    struct pollfd look = { .fd = fd, .events = POLLIN };

    return poll(&look, 1, 0) > 0;
}

static bool greet(struct mail *mail, struct line *line, struct err *err)
{
    auto_seal_key struct seal_key key;
    auto_buf struct buf greeting = buf_make(NULL, MAIL_INBOX_ID_BYTES + SEAL_KEY_BYTES + sizeof(uint32_t));

    mail_inbox_server_key(mail, line->inbox_id, &key);
    pack_str(&greeting, str_from(line->inbox_id));
    seal_key_pack(&greeting, &key);
    bool fine = frame_write(line->fd, buf_str(&greeting), LIMIT_INBOX_CALL_MS, err);
    explicit_bzero(greeting.data, greeting.len);
    return fine;
}

static void may_pass(struct err *err)
{
    if (err->kind == ERR_LIMIT)
        err->kind = ERR_UNAVAILABLE;
}

static bool line_open(struct mail *mail, struct line *line, bool make, struct err *err)
{
    if (line->fd >= 0 && has_ended(line->fd))
        line_close(mail, line);
    if (line->fd >= 0)
        return true;
    if (!take_place(mail, err))
        return false;
    if (!mail->config.open_inbox(mail->config.context, line->inbox_id, make, &line->fd, err)) {
        line->fd = -1;
        give_place_back(mail);
        may_pass(err);
        return err_wrap(err, "open inbox %s", line->inbox_id);
    }
    if (greet(mail, line, err))
        return true;
    line_close(mail, line);
    return err_wrap(err, "greet the worker of inbox %s", line->inbox_id);
}

/* ---- calls ---- */

/* Sends a frame and reads the answer into the arena. */
static bool ask(int fd, struct str request, uint64_t timeout_ms, struct arena *arena, struct str *out, struct err *err)
{
    auto_free char *reply = NULL;
    size_t len;

    if (!frame_write(fd, request, timeout_ms, err) ||
        !frame_read(fd, LIMIT_MAIL_FRAME_BYTES, timeout_ms, &reply, &len, err)) {
        err->kind = ERR_UNAVAILABLE; /* whatever it was: the next call has a new process */
        return false;
    }
    *out = arena_copy(arena, str_of(reply, len));
    explicit_bzero(reply, len);
    return true;
}

/* A reply is a bool, then what was asked for or an error. *out_broken: it is neither. */
static bool take_reply(struct str reply, struct unpack *out, bool *out_broken, struct err *err)
{
    struct unpack in = unpack_from(reply);
    struct err failure, malformed;

    if (unpack_bool(&in)) {
        *out = in;
        return true;
    }
    message_unpack_err(&in, &failure);
    *out_broken = !unpack_done(&in, &malformed);
    *err = *out_broken ? malformed : failure;
    return false;
}

static bool call(struct mail *mail, const char *inbox_id, bool make, uint16_t op, const struct buf *request,
                 struct arena *arena, struct unpack *out_reply, struct err *err)
{
    bool broken = false;
    struct str reply;

    if (request->overflowed || request->len + sizeof op > LIMIT_MAIL_FRAME_BYTES)
        return err_set(err, ERR_LIMIT, "the message is too large");
    struct line *line = line_enter(mail, inbox_id, err);
    if (!line)
        return false;
    /* It may have a reader's key. Room for all of it at once, or it is copied each time that it grows. */
    auto_buf struct buf frame = mail_request(arena);
    (void)!buf_reserve(&frame, sizeof op + request->len);
    pack_u16(&frame, op);
    buf_add(&frame, buf_str(request));
    bool fine = line_open(mail, line, make, err);
    if (fine && !ask(line->fd, buf_str(&frame), LIMIT_INBOX_CALL_MS, arena, &reply, err)) {
        fine = err_wrap(err, "ask inbox %s", inbox_id);
        line_close(mail, line);
    } else if (fine) {
        fine = take_reply(reply, out_reply, &broken, err);
        if (broken)
            line_close(mail, line);
    }
    line_leave(mail, line);
    return fine;
}

bool mail_call(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request, struct arena *arena,
               struct unpack *out_reply, struct err *err)
{
    return call(mail, inbox_id, false, op, request, arena, out_reply, err);
}

bool mail_call_new(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request, struct arena *arena,
                   struct unpack *out_reply, struct err *err)
{
    return call(mail, inbox_id, true, op, request, arena, out_reply, err);
}

/* ---- children of the composer and of webhooks ---- */

/* A role whose children answer one request each. */
struct desk {
    struct places *places; /* of struct mail */
    uint64_t timeout_ms;
    bool (*open)(void *context, int *out_fd, struct err *err);
    const char *name;
};

/* Children that have answered end a moment later, and until then they count. */
static bool desk_open(struct mail *mail, const struct desk *desk, int *out_fd, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + desk->timeout_ms;

    while (!desk->open(mail->config.context, out_fd, err)) {
        if (err->kind != ERR_LIMIT || clock_mono_ms() >= until_ms) {
            may_pass(err);
            return false;
        }
        (void)poll(NULL, 0, RETRY_MS);
    }
    return true;
}

/* owner: whose part of the places it takes. ERR_LIMIT with *out_retry_s: too many of the owner's requests wait. */
static bool desk_call(struct mail *mail, const struct desk *desk, struct str owner, struct str request,
                      struct arena *arena, struct unpack *out_reply, uint32_t *out_retry_s, struct err *err)
{
    auto_close int fd = -1;
    bool broken = false;
    struct str reply;

    if (!places_take(desk->places, owner, clock_mono_ms() + desk->timeout_ms, err)) {
        *out_retry_s = 1;
        return err->kind == ERR_LIMIT
                   ? err_set(err, ERR_LIMIT, "too many requests of this inbox wait for %s; try again in a moment",
                             desk->name)
                   : err_set(err, ERR_UNAVAILABLE, "%s is busy; try again in a moment", desk->name);
    }
    bool fine = (desk_open(mail, desk, &fd, err) && ask(fd, request, desk->timeout_ms, arena, &reply, err)) ||
                err_wrap(err, "ask %s", desk->name);
    fd_close(&fd);
    places_give_back(desk->places, owner);
    return fine && take_reply(reply, out_reply, &broken, err);
}

bool mail_composer_call(struct mail *mail, const char *inbox_id, struct str request, struct arena *arena,
                        struct unpack *out_reply, uint32_t *out_retry_s, struct err *err)
{
    const struct desk desk = { .places = mail->composers,
                               .timeout_ms = LIMIT_COMPOSE_MS,
                               .open = mail->config.open_composer,
                               .name = "the composer" };

    *out_retry_s = 0;
    if (request.len > LIMIT_MAIL_FRAME_BYTES)
        return err_set(err, ERR_LIMIT, "the message is too large");
    return desk_call(mail, &desk, str_from(inbox_id), request, arena, out_reply, out_retry_s, err);
}

bool mail_hook_call(struct mail *mail, struct str owner, const struct mail_hook *hook, uint32_t *out_status,
                    struct err *err)
{
    const uint64_t most_ms = hook->only_check ? LIMIT_HOOK_CHECK_MS : LIMIT_HOOK_MS;
    const struct desk desk = { .places = hook->only_check ? mail->checks : mail->hooks,
                               .timeout_ms = most_ms + most_ms / 10, /* the child gives up before */
                               .open = mail->config.open_hook,
                               .name = "the process for webhooks" };
    auto_buf struct buf request = buf_make(NULL, LIMIT_HOOK_BYTES);
    struct unpack reply;
    struct arena arena;
    uint32_t ignored;

    if (!desk.open)
        return err_set(err, ERR_UNAVAILABLE, "this server calls no webhooks");
    if (!mail_hook_pack(&request, hook, err))
        return false;
    arena_init(&arena);
    bool fine = desk_call(mail, &desk, owner, buf_str(&request), &arena, &reply, &ignored, err);
    if (fine) {
        uint32_t status = unpack_u32(&reply);
        fine = unpack_done(&reply, err);
        if (fine)
            *out_status = status;
    }
    arena_done(&arena);
    return fine;
}
