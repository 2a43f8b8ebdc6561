/*
 * Each operation is a section: remote_…() is front's call, which fills in a request; call_…() is keeper's, which makes
 * the same call on the real driver. The table at the end joins them to a message type and to the fields that travel.
 */
#include "isolation/ops.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/mem.h"

static struct op_ask ask_about(const char *id)
{
    struct op_ask ask = { 0 };

    (void)snprintf(ask.id, sizeof ask.id, "%s", id);
    return ask;
}

static void got_socket(void *context, int fd, const struct err *err)
{
    struct op_call *call = context;

    call->done(call, &(struct op_answer){ .fd = fd }, err);
}

/* ---- start ---- */

static bool remote_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    struct op_ask ask = ask_about(plan->id);
    struct op_answer answer;

    ask.plan = *plan;
    if (!plan_check(plan, err) || !remote_call(driver, MESSAGE_START, &ask, &answer, err))
        return false;
    out->guestlink_fd = answer.fd;
    out->has_network = answer.has_network;
    return true;
}

static void got_started(void *context, const struct started *started, const struct err *err)
{
    struct op_call *call = context;
    struct op_answer answer = OP_ANSWER_NONE;

    if (started) {
        answer.fd = started->guestlink_fd;
        answer.has_network = started->has_network;
    }
    call->done(call, &answer, err);
}

static void call_start(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    struct started started;
    struct err err;

    if (driver->ops->start_later)
        driver->ops->start_later(driver, &ask->plan, got_started, call);
    else if (driver_start(driver, &ask->plan, &started, &err))
        got_started(call, &started, NULL);
    else
        got_started(call, NULL, &err);
}

/* ---- stop ---- */

static void remote_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                        void *context)
{
    struct op_ask ask = ask_about(id);

    ask.patience_ms = patience_ms;
    remote_request(driver, MESSAGE_STOP, &ask, &(struct op_then){ .stopped = done, .context = context });
}

static bool remote_stop_wait(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone,
                             struct err *err)
{
    struct op_ask ask = ask_about(id);
    struct op_answer answer;

    ask.patience_ms = patience_ms;
    if (!remote_call(driver, MESSAGE_STOP, &ask, &answer, err))
        return false;
    *out_gone = answer.gone;
    return true;
}

static void got_stopped(void *context, bool gone, const struct err *err)
{
    struct op_call *call = context;

    call->done(call, &(struct op_answer){ .fd = -1, .gone = gone }, err);
}

static void call_stop(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    driver_stop(driver, ask->id, ask->patience_ms, got_stopped, call);
}

/* ---- list ---- */

/*
 * Sandboxes on disk can be more than a message has room for, so a list comes in pages. Its order is that of the ids: a
 * sandbox that begins or ends between two pages moves no other from one page to the next.
 */
static bool remote_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    auto_free struct held *all = NULL;
    struct op_ask ask = { 0 };
    uint32_t count = 0;
    bool more = true;

    while (more) {
        auto_op_answer struct op_answer answer = OP_ANSWER_NONE;
        if (!remote_call(driver, MESSAGE_LIST, &ask, &answer, err))
            return false;
        all = mem_grow(all, (count + answer.count + 1) * sizeof *all);
        memcpy(all + count, answer.held, answer.count * sizeof *all);
        count += answer.count;
        more = answer.more && answer.count; /* each page is behind the one before (op_unpack_answer), so this ends */
        if (more)
            memcpy(ask.id, all[count - 1].id, sizeof ask.id);
    }
    *out_held = take_ptr(&all);
    *out_count = count;
    return true;
}

static int compare_held(const void *a, const void *b)
{
    return strcmp(((const struct held *)a)->id, ((const struct held *)b)->id);
}

static bool call_list(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    struct held *held;
    uint32_t count, from = 0;

    if (!driver_list(driver, &held, &count, err))
        return false;
    qsort(held, count, sizeof *held, compare_held);
    while (from < count && strcmp(held[from].id, ask->id) <= 0)
        from++;
    memmove(held, held + from, (count - from) * sizeof *held);
    out->held = held;
    out->count = MIN(count - from, LIMIT_HELD_PAGE);
    out->more = count - from > LIMIT_HELD_PAGE;
    return true;
}

/* ---- link ---- */

static bool remote_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    struct op_ask ask = ask_about(id);
    struct op_answer answer;

    if (!remote_call(driver, MESSAGE_LINK, &ask, &answer, err))
        return false;
    *out_guestlink_fd = answer.fd;
    return true;
}

static bool call_link(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    return driver_link(driver, ask->id, &out->fd, err);
}

/* ---- warm ---- */

static bool remote_warm(struct driver *driver, const char *id, struct err *err)
{
    struct op_ask ask = ask_about(id);
    struct op_answer answer;

    return remote_call(driver, MESSAGE_WARM, &ask, &answer, err);
}

static bool call_warm(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    (void)out;
    return driver_warm(driver, ask->id, err);
}

/* ---- stats ---- */

static bool remote_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                         uint32_t *out_count, struct err *err)
{
    struct op_ask ask = { .which_count = count };
    struct op_answer answer;

    assert(count <= LIMIT_STATS);
    memcpy(ask.which, which, count * sizeof *which);
    if (!remote_call(driver, MESSAGE_STATS, &ask, &answer, err))
        return false;
    memcpy(out, answer.stats, answer.count * sizeof *out);
    *out_count = answer.count;
    return true;
}

static bool call_stats(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    return driver_stats(driver, ask->which, ask->which_count, out->stats, &out->count, err);
}

/* ---- dial ---- */

static void remote_dial(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done, void *context)
{
    struct op_ask ask = ask_about(id);

    ask.port = port;
    remote_request(driver, MESSAGE_DIAL, &ask, &(struct op_then){ .socket = done, .context = context });
}

static void call_dial(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    driver_dial(driver, ask->id, ask->port, got_socket, call);
}

/* ---- listen ---- */

static void remote_listen(struct driver *driver, const char *id, const struct listen_at *at, driver_socket_fn *done,
                          void *context)
{
    struct op_ask ask = ask_about(id);

    ask.listen = *at;
    remote_request(driver, MESSAGE_LISTEN, &ask, &(struct op_then){ .socket = done, .context = context });
}

static bool listen_check(const struct listen_at *at, struct err *err)
{
    if (at->address >> 24 != 127)
        return err_set(err, ERR_INVALID, "a listening socket in a sandbox must have an address of 127.0.0.0/8");
    if (at->port == 0)
        return err_set(err, ERR_INVALID, "a listening socket in a sandbox needs a port from 1 to 65535");
    if (at->backlog == 0 || at->backlog > LIMIT_BACKLOG)
        return err_set(err, ERR_INVALID, "a backlog must be 1 to %d, not %u", LIMIT_BACKLOG, at->backlog);
    return true;
}

static void call_listen(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    struct err err;

    if (listen_check(&ask->listen, &err))
        driver_listen(driver, ask->id, &ask->listen, got_socket, call);
    else
        got_socket(call, -1, &err);
}

/* ---- pause ---- */

static bool remote_pause(struct driver *driver, enum pause_call call, const char *id, bool memory, struct kept *out,
                         struct err *err)
{
    struct op_ask ask = ask_about(id);
    struct op_answer answer;

    ask.pause.call = call;
    ask.pause.memory = memory;
    (void)snprintf(ask.pause.id, sizeof ask.pause.id, "%s", id);
    if (!remote_call(driver, MESSAGE_PAUSE, &ask, &answer, err))
        return false;
    if (out)
        *out = answer.kept;
    return true;
}

static void got_kept(void *context, const struct kept *kept, const struct err *err)
{
    struct op_call *call = context;
    struct op_answer answer = OP_ANSWER_NONE;

    if (kept)
        answer.kept = *kept;
    call->done(call, &answer, err);
}

/* "this server cannot …" */
static const char *const pause_call_does[PAUSE_CALL_COUNT] = {
    [PAUSE_FREEZE] = "pause a sandbox in memory",      [PAUSE_THAW] = "resume a sandbox from memory",
    [PAUSE_PARK] = "keep a paused sandbox on disk",    [PAUSE_SNAPSHOT] = "make snapshots",
    [PAUSE_SEAL] = "make layers of sandboxes",         [PAUSE_COPY] = "copy sandboxes",
    [PAUSE_DROP] = "remove snapshots: it makes none",  [PAUSE_LIST] = "list snapshots: it makes none",
    [PAUSE_MEASURE] = "measure what it keeps on disk",
};

static void call_pause(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    const struct driver_ops *can = driver->ops;
    const char *id = ask->pause.id;
    bool memory = ask->pause.memory;
    struct err err;

    if (ask->pause.call == PAUSE_FREEZE && can->freeze)
        can->freeze(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_THAW && can->thaw)
        can->thaw(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_PARK && can->park)
        can->park(driver, id, memory, got_kept, call);
    else if (ask->pause.call == PAUSE_SNAPSHOT && can->snapshot)
        can->snapshot(driver, id, memory, got_kept, call);
    else if (ask->pause.call == PAUSE_SEAL && can->seal)
        can->seal(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_COPY && can->copy)
        can->copy(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_DROP && can->drop)
        can->drop(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_LIST && can->list_snapshots)
        can->list_snapshots(driver, id, got_kept, call);
    else if (ask->pause.call == PAUSE_MEASURE && can->measure)
        can->measure(driver, id, got_kept, call);
    else {
        (void)err_set(&err, ERR_UNAVAILABLE, "this server cannot %s", pause_call_does[ask->pause.call]);
        got_kept(call, NULL, &err);
    }
}

/* ---- unpack ---- */

static bool remote_unpack(struct driver *driver, const struct unpack_want *want, int archive_fd, struct kept *out,
                          struct err *err)
{
    struct op_ask ask = ask_about("");
    struct op_answer answer;

    ask.unpack = *want;
    ask.ticket = remote_offer(driver, archive_fd);
    bool fine = remote_call(driver, MESSAGE_UNPACK, &ask, &answer, err);
    remote_withdraw(driver, ask.ticket);
    if (fine)
        *out = answer.kept;
    return fine;
}

static void offer_archive(void *context, int socket_fd)
{
    struct op_call *call = context;

    call->offer(call, socket_fd);
}

static void call_unpack(struct driver *driver, const struct op_ask *ask, struct op_call *call)
{
    struct err err;

    if (driver->ops->unpack) {
        driver->ops->unpack(driver, &ask->unpack, offer_archive, got_kept, call);
        return;
    }
    (void)err_set(&err, ERR_UNAVAILABLE, "this server cannot unpack images");
    got_kept(call, NULL, &err);
}

/* ---- the table ---- */

static const struct op ops[MESSAGE_TYPE_END] = {
    [MESSAGE_START] = { ASK_PLAN, ANSWER_FD | ANSWER_NETWORK, .later = call_start },
    [MESSAGE_STOP] = { ASK_ID | ASK_PATIENCE, ANSWER_GONE, .later = call_stop },
    [MESSAGE_LIST] = { ASK_AFTER, ANSWER_HELD, .now = call_list },
    [MESSAGE_LINK] = { ASK_ID, ANSWER_FD, .now = call_link },
    [MESSAGE_WARM] = { ASK_ID, 0, .now = call_warm },
    [MESSAGE_STATS] = { ASK_WHICH, ANSWER_STATS, .now = call_stats },
    [MESSAGE_DIAL] = { ASK_ID | ASK_PORT, ANSWER_FD, .later = call_dial },
    [MESSAGE_LISTEN] = { ASK_ID | ASK_LISTEN, ANSWER_FD, .later = call_listen },
    [MESSAGE_PAUSE] = { ASK_PAUSE, ANSWER_KEPT, .later = call_pause },
    [MESSAGE_UNPACK] = { ASK_UNPACK, ANSWER_KEPT, .later = call_unpack },
};

const struct driver_ops op_remote_calls = {
    .name = "remote",
    .start = remote_start,
    .stop = remote_stop,
    .stop_wait = remote_stop_wait,
    .list = remote_list,
    .link = remote_link,
    .warm = remote_warm,
    .stats = remote_stats,
    .dial = remote_dial,
    .listen = remote_listen,
    .pause_wait = remote_pause,
    .unpack_wait = remote_unpack,
    .free = remote_free,
};

const struct op *op_of(enum message_type type)
{
    return ops[type].now || ops[type].later ? &ops[type] : NULL;
}

uint32_t op_patience_ms(const struct op *op, const struct op_ask *ask)
{
    if (op->ask & ASK_PLAN && ask->plan.from != PLAN_NEW)
        return LIMIT_PAUSE_MS;
    if (op->ask & ASK_PAUSE &&
        ((ask->pause.call >= PAUSE_PARK && ask->pause.call <= PAUSE_COPY) || ask->pause.call == PAUSE_MEASURE))
        return LIMIT_PAUSE_MS;
    if (op->ask & ASK_UNPACK)
        return LIMIT_BUILD_MS; /* others may be unpacked before it */
    return LIMIT_KEEPER_MS;
}

/* ---- fields as bytes ---- */

static void unpack_pause(struct unpack *in, struct op_ask *out)
{
    uint8_t call = unpack_u8(in);

    unpack_text(in, out->pause.id, sizeof out->pause.id);
    out->pause.memory = unpack_bool(in);
    if (call >= PAUSE_CALL_COUNT) {
        in->failed = true;
        return;
    }
    out->pause.call = (enum pause_call)call;
    if (out->pause.memory && call != PAUSE_PARK && call != PAUSE_SNAPSHOT)
        in->failed = true;
    bool is_first_page = call == PAUSE_LIST && !out->pause.id[0];
    if (call == PAUSE_MEASURE && message_sandbox_id_valid(out->pause.id))
        return;
    if (call >= PAUSE_DROP ? !is_first_page && !plan_layer_id_valid(out->pause.id)
                           : !message_sandbox_id_valid(out->pause.id))
        in->failed = true;
}

static void pack_layers(struct buf *out, uint32_t count, const char layers[][LAYER_ID_BYTES])
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++)
        pack_str(out, str_from(layers[i]));
}

static void unpack_layer(struct unpack *in, char out[LAYER_ID_BYTES])
{
    unpack_text(in, out, LAYER_ID_BYTES);
    if (!plan_layer_id_valid(out))
        in->failed = true;
}

static void unpack_layers(struct unpack *in, uint32_t *out_count, char out[][LAYER_ID_BYTES])
{
    *out_count = unpack_count(in, LIMIT_LAYERS);
    for (uint32_t i = 0; i < *out_count; i++)
        unpack_layer(in, out[i]);
}

static void pack_unpack(struct buf *out, const struct unpack_want *want)
{
    pack_str(out, str_from(want->chain));
    pack_str(out, str_from(want->diff));
    pack_layers(out, want->layer_count, want->layers);
    pack_u64(out, want->most_bytes);
}

static void unpack_unpack(struct unpack *in, struct unpack_want *out)
{
    unpack_layer(in, out->chain);
    unpack_layer(in, out->diff);
    unpack_layers(in, &out->layer_count, out->layers);
    out->most_bytes = unpack_u64(in);
    if (out->most_bytes > LIMIT_UNPACKED_BYTES)
        in->failed = true;
}

static void pack_held(struct buf *out, const struct op_answer *answer)
{
    pack_u32(out, answer->count);
    for (uint32_t i = 0; i < answer->count; i++) {
        message_pack_id(out, answer->held[i].id);
        pack_u8(out, (uint8_t)answer->held[i].state);
        pack_bool(out, answer->held[i].has_network);
    }
    pack_bool(out, answer->more);
}

static void unpack_held(struct unpack *in, const char *after, struct op_answer *out)
{
    out->count = unpack_count(in, LIMIT_HELD_PAGE);
    out->held = mem_new((out->count + 1) * sizeof *out->held);
    for (uint32_t i = 0; i < out->count; i++) {
        struct held *held = &out->held[i];
        message_unpack_id(in, held->id);
        if (strcmp(held->id, i ? held[-1].id : after) <= 0)
            in->failed = true;
        uint8_t state = unpack_u8(in);
        if (state < HELD_STATE_COUNT)
            held->state = (enum held_state)state;
        else
            in->failed = true;
        held->has_network = unpack_bool(in);
    }
    out->more = unpack_bool(in);
}

static void pack_kept(struct buf *out, const struct kept *kept)
{
    pack_str(out, str_from(kept->id));
    pack_bool(out, kept->has_image);
    pack_u64(out, kept->layer_bytes);
    pack_u64(out, kept->image_bytes);
    pack_u64(out, kept->raw_bytes);
    pack_bool(out, kept->is_final);
    pack_layers(out, kept->layer_count, kept->layers);
}

/* "": it has none. */
static const char *top_layer(const struct kept *kept)
{
    return kept->layer_count ? kept->layers[MIN(kept->layer_count, (uint32_t)LIMIT_LAYERS) - 1] : "";
}

/*
 * A snapshot has an id, which is also its last layer's; an unpacked layer that which was asked for; a list goes on after
 * what was asked; the other calls keep nothing.
 */
static void unpack_kept(struct unpack *in, const struct op *op, const struct op_ask *asked, struct kept *out)
{
    unpack_text(in, out->id, sizeof out->id);
    out->has_image = unpack_bool(in);
    out->layer_bytes = unpack_u64(in);
    out->image_bytes = unpack_u64(in);
    out->raw_bytes = unpack_u64(in);
    out->is_final = unpack_bool(in);
    unpack_layers(in, &out->layer_count, out->layers);
    bool is_layer = op->ask & ASK_UNPACK;
    if (is_layer && strcmp(out->id, asked->unpack.chain) != 0)
        in->failed = true;
    bool is_snapshot = is_layer || (asked->pause.call >= PAUSE_SNAPSHOT && asked->pause.call <= PAUSE_COPY);
    if (is_snapshot ? !plan_layer_id_valid(out->id) || strcmp(top_layer(out), out->id) != 0
                    : out->id[0] != '\0' || (out->layer_count && asked->pause.call != PAUSE_LIST))
        in->failed = true;
    for (uint32_t i = 0; asked->pause.call == PAUSE_LIST && i < out->layer_count; i++)
        if (strcmp(out->layers[i], i ? out->layers[i - 1] : asked->pause.id) <= 0)
            in->failed = true;
}

void op_pack_ask(const struct op *op, struct buf *out, const struct op_ask *ask)
{
    if (op->ask & ASK_PLAN)
        plan_pack(out, &ask->plan);
    if (op->ask & ASK_ID)
        message_pack_id(out, ask->id);
    if (op->ask & ASK_PATIENCE)
        pack_u32(out, ask->patience_ms);
    if (op->ask & ASK_PORT)
        pack_u16(out, ask->port);
    if (op->ask & ASK_LISTEN) {
        pack_u32(out, ask->listen.address);
        pack_u16(out, ask->listen.port);
        pack_u16(out, ask->listen.backlog);
    }
    if (op->ask & ASK_WHICH)
        stats_pack_ask(out, ask->which, ask->which_count);
    if (op->ask & ASK_AFTER)
        pack_str(out, str_from(ask->id));
    if (op->ask & ASK_PAUSE) {
        pack_u8(out, (uint8_t)ask->pause.call);
        pack_str(out, str_from(ask->pause.id));
        pack_bool(out, ask->pause.memory);
    }
    if (op->ask & ASK_UNPACK) {
        pack_unpack(out, &ask->unpack);
        pack_u64(out, ask->ticket);
    }
}

void op_unpack_ask(const struct op *op, struct unpack *in, struct op_ask *out)
{
    *out = (struct op_ask){ 0 };
    if (op->ask & ASK_PLAN)
        plan_unpack(in, &out->plan);
    if (op->ask & ASK_ID)
        message_unpack_id(in, out->id);
    if (op->ask & ASK_PATIENCE) {
        out->patience_ms = unpack_u32(in);
        if (out->patience_ms > LIMIT_STOP_MS)
            in->failed = true;
    }
    if (op->ask & ASK_PORT)
        out->port = unpack_u16(in);
    if (op->ask & ASK_LISTEN) {
        out->listen.address = unpack_u32(in);
        out->listen.port = unpack_u16(in);
        out->listen.backlog = unpack_u16(in);
    }
    if (op->ask & ASK_WHICH)
        stats_unpack_ask(in, out->which, &out->which_count);
    if (op->ask & ASK_AFTER) {
        unpack_text(in, out->id, sizeof out->id);
        if (out->id[0] && !message_sandbox_id_valid(out->id))
            in->failed = true;
    }
    if (op->ask & ASK_PAUSE)
        unpack_pause(in, out);
    if (op->ask & ASK_UNPACK) {
        unpack_unpack(in, &out->unpack);
        out->ticket = unpack_u64(in);
    }
}

void op_pack_answer(const struct op *op, struct buf *out, const struct op_answer *answer)
{
    if (op->answer & ANSWER_GONE)
        pack_bool(out, answer->gone);
    if (op->answer & ANSWER_HELD)
        pack_held(out, answer);
    if (op->answer & ANSWER_STATS)
        stats_pack(out, answer->stats, answer->count);
    if (op->answer & ANSWER_NETWORK)
        pack_bool(out, answer->has_network);
    if (op->answer & ANSWER_KEPT)
        pack_kept(out, &answer->kept);
}

void op_unpack_answer(const struct op *op, struct unpack *in, const struct op_ask *asked, struct op_answer *out)
{
    if (op->answer & ANSWER_GONE)
        out->gone = unpack_bool(in);
    if (op->answer & ANSWER_HELD)
        unpack_held(in, asked->id, out);
    if (op->answer & ANSWER_STATS)
        stats_unpack(in, asked->which, asked->which_count, out->stats, &out->count);
    if (op->answer & ANSWER_NETWORK)
        out->has_network = unpack_bool(in);
    if (op->answer & ANSWER_KEPT)
        unpack_kept(in, op, asked, &out->kept);
}

void op_answer_done(struct op_answer *answer)
{
    fd_close(&answer->fd);
    free(answer->held);
}
