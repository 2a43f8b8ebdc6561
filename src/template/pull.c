/*
 * How it works: each call asks the role for a child, sends it one request and reads what it tells (registry/message.h) until it
 * is done. While it waits it asks cancelled() several times a second; closing the connection ends the child. A pull that fails
 * ends when its child has: so a team has no more children than places for builds. When others have all children that there may
 * be, it waits for one.
 *
 * The child downloads on while layer() is at work: what it tells meanwhile waits in the socket, and is read before the next
 * layer is given away, so that an error ends the pull then.
 */
#include "template/pull.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "privsep/frame.h"

enum {
    LOOK_MS = 200,
    FRAME_MS = 30000,        /* for the rest of a frame that has begun */
    LATE_MS = 2 * 60 * 1000, /* a child ends itself after LIMIT_PULL_MS */
    END_MS = 10000,          /* for a child that nobody waits for: it looks after every piece of its work */
};

struct puller {
    struct puller_config config;
};

struct puller *puller_new(const struct puller_config *config)
{
    struct puller *puller = NEW(struct puller);

    puller->config = *config;
    return puller;
}

void puller_free(struct puller *puller)
{
    free(puller);
}

bool puller_template(struct puller *puller, struct str image, struct arena *arena, struct str *out_name,
                     struct err *err)
{
    auto_free struct image_source *source = NEW(struct image_source);

    if (!image_source_find(&puller->config.options, image, source, err))
        return false;
    *out_name = source->kind == SOURCE_TEMPLATE ? arena_copy(arena, str_from(source->name)) : STR("");
    return true;
}

/* ---- one pull ---- */

struct pull {
    const struct pull_want *want;
    struct arena *arena;
    int fd;
    uint64_t until_ms;
    bool only_digest;
    bool have[LIMIT_IMAGE_LAYERS]; /* these need no file */
    bool has_come[LIMIT_IMAGE_LAYERS];
    uint32_t given; /* to layer(): all below this one */
    struct pulled *out;
};

static bool is_cancelled(const struct pull *pull)
{
    return pull->want->cancelled && pull->want->cancelled(pull->want->context);
}

/* After a failure to read or write: it has ended between two messages, or in the middle of one. */
static bool lost_child(struct err *err)
{
    if (err->kind == ERR_NOT_FOUND || err->kind == ERR_UNAVAILABLE)
        return err_set(err, ERR_UNAVAILABLE, "the process that pulls the image has ended; try again");
    return false;
}

static struct pull_login login_of(const struct registry_login *login)
{
    if (!login)
        return (struct pull_login){ .kind = PULL_LOGIN_NONE };
    return (struct pull_login){ .kind = login->kind == LOGIN_BASIC ? PULL_LOGIN_BASIC
                                        : login->kind == LOGIN_AWS ? PULL_LOGIN_AWS
                                        : login->kind == LOGIN_GCP ? PULL_LOGIN_GCP
                                                                   : PULL_LOGIN_NONE,
                                .user = login->user,
                                .password = login->password,
                                .key_id = login->key_id,
                                .key = login->key,
                                .region = login->region,
                                .account = login->account };
}

static bool send_ask(const struct pull *pull, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct pull_ask ask = { .image = pull->want->image,
                            .is_archive = pull->want->is_archive,
                            .team_id = pull->want->team_id,
                            .only_digest = pull->only_digest,
                            .login = login_of(pull->want->login) };
    const struct pull_login *login = &ask.login;
    const struct str fields[] = {
        login->user, login->password, login->key_id, login->key, login->region, login->account
    };

    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].len > LIMIT_LOGIN_BYTES)
            return err_set(err, ERR_LIMIT, "the login for the registry is longer than %d bytes", LIMIT_LOGIN_BYTES);
    if (ask.image.len > LIMIT_REFERENCE_BYTES)
        return err_set(err, ERR_INVALID, "the image reference is longer than %d bytes", LIMIT_REFERENCE_BYTES);
    out.is_secret = true;
    (void)snprintf(ask.architecture, sizeof ask.architecture, "%s", pull->want->architecture);
    pull_ask_pack(&out, &ask);
    return frame_write_fd(pull->fd, buf_str(&out), ask.is_archive ? pull->want->archive_fd : -1, FRAME_MS, err) ||
           lost_child(err);
}

static bool has_message(const struct pull *pull)
{
    return fd_await(pull->fd, POLLIN, clock_mono_ms());
}

/* Until there is something to read. */
static bool wait_for_child(const struct pull *pull, struct err *err)
{
    for (;;) {
        uint64_t now_ms = clock_mono_ms();
        if (is_cancelled(pull))
            return err_set(err, ERR_CONFLICT, "the pull was cancelled");
        if (fd_await(pull->fd, POLLIN, now_ms + LOOK_MS))
            return true;
        if (now_ms >= pull->until_ms)
            return err_set(err, ERR_TIMEOUT, "the image did not arrive in time");
    }
}

static bool bad_child(struct err *err)
{
    return err_set(err, ERR_INTERNAL, "the process that pulls images sent nonsense");
}

static bool take_chains(struct pull *pull, const struct pull_told *told, struct err *err)
{
    const struct pull_want *want = pull->want;
    auto_buf struct buf answer = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);

    if (pull->only_digest || pull->out->layers)
        return bad_child(err);
    pull->out->layers = ARENA_ARRAY(pull->arena, struct pulled_layer, told->layer_count);
    pull->out->layer_count = told->layer_count;
    for (uint32_t i = 0; i < told->layer_count; i++) {
        struct pulled_layer *layer = &pull->out->layers[i];
        *layer = (struct pulled_layer){ .fd = -1, .size = told->layers[i].size };
        memcpy(layer->diff_hex, told->layers[i].diff_hex, sizeof layer->diff_hex);
        memcpy(layer->chain_hex, told->layers[i].chain_hex, sizeof layer->chain_hex);
        pull->have[i] = want->has_chain && want->has_chain(want->context, layer->chain_hex);
    }
    pull_have_pack(&answer, pull->have, told->layer_count);
    return frame_write(pull->fd, buf_str(&answer), FRAME_MS, err) || lost_child(err);
}

static bool take_layer(struct pull *pull, const struct pull_told *told, int *fd_at, struct err *err)
{
    if (told->layer >= pull->out->layer_count || pull->has_come[told->layer])
        return bad_child(err);
    if (*fd_at < 0)
        return err_set(err, ERR_UNAVAILABLE,
                       "a layer did not arrive: raise the server's limit of open files (LimitNOFILE, ulimit -n)");
    pull->out->layers[told->layer].fd = take_fd(fd_at);
    pull->has_come[told->layer] = true;
    return true;
}

static bool take_done(struct pull *pull, const struct pull_told *told, struct err *err)
{
    struct pulled *out = pull->out;

    memcpy(out->reference_hex, told->done.reference_hex, sizeof out->reference_hex);
    if (pull->only_digest)
        return true;
    memcpy(out->digest_hex, told->done.digest_hex, sizeof out->digest_hex);
    if (!out->layers || !out->digest_hex[0])
        return bad_child(err);
    for (uint32_t i = 0; i < out->layer_count; i++)
        if (!pull->has_come[i] && !pull->have[i])
            return bad_child(err);
    struct str *envs = ARENA_ARRAY(pull->arena, struct str, told->done.env_count);
    for (uint32_t i = 0; i < told->done.env_count; i++)
        envs[i] = arena_copy(pull->arena, told->done.envs[i]);
    out->envs = envs;
    out->env_count = told->done.env_count;
    return true;
}

/* One message of the child. *out_over: it was the last. */
static bool take_message(struct pull *pull, bool *out_over, struct err *err)
{
    auto_close int fd = -1;
    auto_free char *bytes = NULL;
    struct pull_told told;
    size_t len;

    if (!wait_for_child(pull, err))
        return false;
    if (!frame_read_fd(pull->fd, LIMIT_PULL_MESSAGE_BYTES, FRAME_MS, &bytes, &len, &fd, err))
        return lost_child(err);
    if (!pull_told_unpack(str_of(bytes, len), pull->arena, &told, err))
        return bad_child(err);
    *out_over = told.type == PULL_DONE;
    switch ((int)told.type) {
    case PULL_SAID:
        if (pull->want->said)
            pull->want->said(pull->want->context, told.line);
        return true;
    case PULL_CHAINS:
        return take_chains(pull, &told, err);
    case PULL_LAYER:
        return take_layer(pull, &told, &fd, err);
    case PULL_DONE:
        return take_done(pull, &told, err);
    case PULL_STOCKED:
        return bad_child(err);
    default:
        *err = told.err;
        return false;
    }
}

static bool has_layer_to_give(const struct pull *pull)
{
    return pull->want->layer && pull->given < pull->out->layer_count &&
           (pull->has_come[pull->given] || pull->have[pull->given]);
}

static bool give_layer(struct pull *pull, struct err *err)
{
    uint32_t number = pull->given++;

    if (!pull->want->layer(pull->want->context, pull->out, number))
        return err_set(err, ERR_CONFLICT, "the pull was ended");
    fd_close(&pull->out->layers[number].fd);
    return true;
}

/* Waits while there are too many, if that can be cancelled. */
static bool open_child(struct puller *puller, const struct pull *pull, int *out_fd, struct err *err)
{
    const struct pull_want *want = pull->want;
    const uint64_t until_ms = clock_mono_ms() + LIMIT_PULL_MS;
    bool was_said = false;

    while (!puller->config.open(puller->config.context, out_fd, err)) {
        if (err->kind != ERR_LIMIT || !want->cancelled || clock_mono_ms() >= until_ms)
            return err_wrap(err, "ask for a process that pulls an image");
        if (!was_said && want->said)
            want->said(want->context, STR("Waiting until other pulls have ended"));
        was_said = true;
        (void)poll(NULL, 0, LOOK_MS);
        if (is_cancelled(pull))
            return err_set(err, ERR_CONFLICT, "the pull was cancelled");
    }
    return true;
}

/* Nobody waits for it any more: until it has ended. What it tells meanwhile is dropped, with descriptors. */
static void end_child(int fd)
{
    const uint64_t until_ms = clock_mono_ms() + END_MS;
    char room[4096];
    ssize_t n = 1;

    (void)shutdown(fd, SHUT_WR);
    while (n != 0 && clock_mono_ms() < until_ms && fd_await(fd, POLLIN, until_ms)) {
        n = recv(fd, room, sizeof room, MSG_DONTWAIT);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return;
    }
}

static bool talk(struct pull *pull, struct err *err)
{
    bool is_over = false;

    if (!send_ask(pull, err))
        return false;
    for (;;) {
        bool has_layer = has_layer_to_give(pull);
        if (is_over && !has_layer)
            return true;
        bool gives = has_layer && (is_over || !has_message(pull));
        if (gives ? !give_layer(pull, err) : !take_message(pull, &is_over, err))
            return false;
    }
}

static bool run(struct puller *puller, struct pull *pull, struct err *err)
{
    auto_close int fd = -1;

    if (!open_child(puller, pull, &fd, err))
        return false;
    pull->fd = fd;
    pull->until_ms = clock_mono_ms() + LIMIT_PULL_MS + LATE_MS;
    bool fine = talk(pull, err);
    if (!fine)
        end_child(fd);
    return fine;
}

bool puller_pull(struct puller *puller, const struct pull_want *want, struct arena *arena, struct pulled *out,
                 struct err *err)
{
    struct pulled got = { 0 };
    struct pull pull = { .want = want, .arena = arena, .out = &got };

    if (!run(puller, &pull, err)) {
        pulled_done(&got);
        return false;
    }
    *out = got;
    return true;
}

void pulled_done(struct pulled *pulled)
{
    for (uint32_t i = 0; i < pulled->layer_count; i++)
        fd_close(&pulled->layers[i].fd);
    pulled->layer_count = 0;
}

bool puller_digest(struct puller *puller, const struct pull_want *want, char out_hex[65], struct err *err)
{
    struct pulled got = { 0 };
    struct arena arena;

    arena_init(&arena);
    struct pull pull = { .want = want, .arena = &arena, .only_digest = true, .out = &got };
    bool fine = run(puller, &pull, err);
    arena_done(&arena);
    if (fine)
        memcpy(out_hex, got.reference_hex, sizeof got.reference_hex);
    return fine;
}

bool puller_stock(struct puller *puller, bool removes, struct download_total *out, struct err *err)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    auto_free char *bytes = NULL;
    auto_close int fd = -1;
    struct pull_told told;
    struct arena arena;
    size_t len;

    pull_stock_pack(&message, removes);
    if (!puller->config.open(puller->config.context, &fd, err) || !frame_write(fd, buf_str(&message), FRAME_MS, err) ||
        !frame_read(fd, LIMIT_PULL_MESSAGE_BYTES, FRAME_MS, &bytes, &len, err))
        return err_wrap(err, "ask how much was downloaded");
    arena_init(&arena);
    bool ok = pull_told_unpack(str_of(bytes, len), &arena, &told, err) &&
              (told.type == PULL_STOCKED || told.type == PULL_FAILED);
    arena_done(&arena);
    if (!ok)
        return bad_child(err);
    if (told.type == PULL_FAILED) {
        *err = told.err;
        return false;
    }
    *out = (struct download_total){ told.files, told.bytes };
    return true;
}
