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

static bool call_start(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    struct started started;

    if (!driver_start(driver, &ask->plan, &started, err))
        return false;
    out->fd = started.guestlink_fd;
    out->has_network = started.has_network;
    return true;
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

static bool remote_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct op_answer answer;

    if (!remote_call(driver, MESSAGE_LIST, &(struct op_ask){ 0 }, &answer, err))
        return false;
    *out_held = answer.held;
    *out_count = answer.count;
    return true;
}

static bool call_list(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err)
{
    (void)ask;
    return driver_list(driver, &out->held, &out->count, err);
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

/* ---- the table ---- */

static const struct op ops[MESSAGE_TYPE_END] = {
    [MESSAGE_START] = { ASK_PLAN, ANSWER_FD | ANSWER_NETWORK, .now = call_start },
    [MESSAGE_STOP] = { ASK_ID | ASK_PATIENCE, ANSWER_GONE, .later = call_stop },
    [MESSAGE_LIST] = { 0, ANSWER_HELD, .now = call_list },
    [MESSAGE_LINK] = { ASK_ID, ANSWER_FD, .now = call_link },
    [MESSAGE_STATS] = { ASK_WHICH, ANSWER_STATS, .now = call_stats },
    [MESSAGE_DIAL] = { ASK_ID | ASK_PORT, ANSWER_FD, .later = call_dial },
    [MESSAGE_LISTEN] = { ASK_ID | ASK_LISTEN, ANSWER_FD, .later = call_listen },
};

const struct driver_ops op_remote_calls = {
    .name = "remote",
    .start = remote_start,
    .stop = remote_stop,
    .stop_wait = remote_stop_wait,
    .list = remote_list,
    .link = remote_link,
    .stats = remote_stats,
    .dial = remote_dial,
    .listen = remote_listen,
    .free = remote_free,
};

const struct op *op_of(enum message_type type)
{
    return ops[type].now || ops[type].later ? &ops[type] : NULL;
}

/* ---- fields as bytes ---- */

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
}

void op_pack_answer(const struct op *op, struct buf *out, const struct op_answer *answer)
{
    if (op->answer & ANSWER_GONE)
        pack_bool(out, answer->gone);
    if (op->answer & ANSWER_HELD) {
        pack_u32(out, answer->count);
        for (uint32_t i = 0; i < answer->count; i++) {
            message_pack_id(out, answer->held[i].id);
            pack_bool(out, answer->held[i].has_network);
        }
    }
    if (op->answer & ANSWER_STATS)
        stats_pack(out, answer->stats, answer->count);
    if (op->answer & ANSWER_NETWORK)
        pack_bool(out, answer->has_network);
}

void op_unpack_answer(const struct op *op, struct unpack *in, const struct op_ask *asked, struct op_answer *out)
{
    if (op->answer & ANSWER_GONE)
        out->gone = unpack_bool(in);
    if (op->answer & ANSWER_HELD) {
        out->count = unpack_count(in, 2 * LIMIT_SANDBOXES);
        out->held = mem_new((out->count + 1) * sizeof *out->held);
        for (uint32_t i = 0; i < out->count; i++) {
            message_unpack_id(in, out->held[i].id);
            out->held[i].has_network = unpack_bool(in);
        }
    }
    if (op->answer & ANSWER_STATS)
        stats_unpack(in, asked->which, asked->which_count, out->stats, &out->count);
    if (op->answer & ANSWER_NETWORK)
        out->has_network = unpack_bool(in);
}

void op_answer_done(struct op_answer *answer)
{
    fd_close(&answer->fd);
    free(answer->held);
}
