/*
 * Keeper's half of the driver. A request is decoded by its row in ops.c, checked against the operator's limits, and
 * carried out. Some calls of the driver are answered later: the channel that waits for such an answer may be gone by
 * then, and so may struct serve, so each of these calls is in a list from which serve_leave() and serve_free() detach it.
 */
#include "isolation/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/networks.h"
#include "isolation/ops.h"

struct serve {
    struct driver *driver;
    struct channel *exits; /* where exits are told; may be NULL */
    struct networks *networks;
    struct serve_limits limits;
    struct owed *owed;
};

/* An answer that the driver still owes. The driver's callback frees it. */
struct owed {
    struct op_call call;
    struct owed *next, **at; /* in serve->owed; at is NULL once serve is gone */
    struct channel *channel; /* NULL: nothing waits for the answer any more */
    struct serve *serve;
    enum message_type type;
    uint32_t id;
    enum pause_call pause_call;
    uint64_t ticket;              /* of an unpack */
    char sandbox[LIMIT_ID_BYTES]; /* of a start or a pause; else empty */
};

static void pack_exit(struct buf *out, const char *id, enum exit_cause cause)
{
    message_pack_id(out, id);
    pack_u8(out, (uint8_t)cause);
}

static void tell_exit(void *context, const char *id, enum exit_cause cause)
{
    struct serve *serve = context;
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    pack_exit(&payload, id, cause);
    if (cause != EXIT_LEFT_PAGES)
        networks_exited(serve->networks, id, buf_str(&payload));
    if (!serve->exits)
        return; /* the next front asks for a list first */
    channel_send_event(serve->exits, MESSAGE_EXITED, buf_str(&payload), NULL, 0);
}

static void tell_option(void *context, const char *id, const struct socket_option *option)
{
    struct serve *serve = context;
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    message_pack_id(&payload, id);
    pack_u32(&payload, option->level);
    pack_u32(&payload, option->name);
    if (serve->exits)
        channel_send_event(serve->exits, MESSAGE_OPTION, buf_str(&payload), NULL, 0);
}

struct serve *serve_new(struct loop *loop, struct driver *driver, const struct serve_limits *limits)
{
    struct serve *serve = NEW(struct serve);

    serve->driver = driver;
    serve->limits = *limits;
    serve->networks = networks_new(loop, driver);
    driver->exited = tell_exit;
    driver->refused = tell_option;
    driver->exited_context = serve;
    return serve;
}

void serve_free(struct serve *serve)
{
    if (!serve)
        return;
    serve->driver->exited = NULL;
    serve->driver->refused = NULL;
    for (struct owed *owed = serve->owed; owed; owed = owed->next) {
        owed->channel = NULL;
        owed->at = NULL;
    }
    networks_free(serve->networks);
    free(serve);
}

void serve_tell_exits(struct serve *serve, struct channel *channel)
{
    serve->exits = channel;
}

void serve_tell_networks(struct serve *serve, struct channel *channel)
{
    networks_tell(serve->networks, channel);
}

/*
 * The next front asks which sandboxes there are. One that has started for the front before, and is not listed yet or as
 * parked, would run without anybody's knowledge.
 */
static void cancel_starts(struct serve *serve)
{
    const struct driver_ops *ops = serve->driver->ops;
    char id[LIMIT_ID_BYTES];
    struct owed *next;

    for (struct owed *owed = serve->owed; owed && ops->start_cancel; owed = next) {
        next = owed->next; /* a start that is cancelled is answered, and `owed` is gone */
        if (owed->type != MESSAGE_START || owed->channel)
            continue;
        memcpy(id, owed->sandbox, sizeof id);
        ops->start_cancel(serve->driver, id);
    }
}

void serve_leave(struct serve *serve, struct channel *channel)
{
    if (networks_told(serve->networks) == channel)
        networks_tell(serve->networks, NULL);
    if (serve->exits == channel)
        serve->exits = NULL;
    for (struct owed *owed = serve->owed; owed; owed = owed->next)
        if (owed->channel == channel)
            owed->channel = NULL;
    cancel_starts(serve);
}

/* Front has compared too, but keeper does not rely on that. */
static bool within_limits(struct serve *serve, const struct plan *plan, struct err *err)
{
    const struct serve_limits *limits = &serve->limits;
    auto_free struct held *held = NULL;
    uint32_t count, alive = 0;

    if (plan->memory_bytes > limits->memory_bytes)
        return err_set(err, ERR_LIMIT, "a sandbox may have %llu MiB of memory here",
                       (unsigned long long)limits->memory_bytes >> 20);
    if (plan->cpu_millis > limits->cpu_millis)
        return err_set(err, ERR_LIMIT, "a sandbox may have %u thousandths of a CPU here", limits->cpu_millis);
    if (plan->pids > limits->pids)
        return err_set(err, ERR_LIMIT, "a sandbox may have %u processes here", limits->pids);
    if (!driver_list(serve->driver, &held, &count, err))
        return false;
    for (uint32_t i = 0; i < count; i++)
        alive += held[i].state == HELD_RUNNING || held[i].state == HELD_FROZEN; /* others are on disk only */
    for (const struct owed *owed = serve->owed; owed; owed = owed->next)
        alive += owed->type == MESSAGE_START; /* not listed yet, or as one on disk */
    if (alive >= limits->sandboxes)
        return err_set(err, ERR_LIMIT, "there are %u sandboxes already", alive);
    return true;
}

/* The descriptor stays the caller's. */
static void reply(struct channel *channel, enum message_type type, uint32_t id, const struct op_answer *answer,
                  const struct err *err)
{
    const struct op *op = op_of(type);
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    if (err) {
        channel_reply_error(channel, type, id, err);
        return;
    }
    op_pack_answer(op, &payload, answer);
    channel_reply(channel, type, id, buf_str(&payload), &answer->fd, op->answer & ANSWER_FD ? 1 : 0);
}

/* Egress has no other way to learn that a sandbox came back, or that its processes are on disk and its sockets are of no use. */
static void tell_egress(const struct owed *owed)
{
    struct networks *networks = owed->serve->networks;
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    if (owed->type == MESSAGE_START)
        networks_started(networks, owed->sandbox);
    if (owed->type != MESSAGE_PAUSE || owed->pause_call != PAUSE_PARK)
        return;
    pack_exit(&payload, owed->sandbox, EXIT_PLAIN);
    networks_exited(networks, owed->sandbox, buf_str(&payload));
}

static void is_dropped(void *context, const struct kept *kept, const struct err *err)
{
    (void)context;
    (void)kept;
    if (err)
        log_warn("keeper: a snapshot that nobody waits for is still there: %s", err_text(err));
}

/* The front that asked for it has ended, and the next one has looked for such snapshots before this one was there. */
static void drop_unclaimed(const struct owed *owed, const struct op_answer *answer)
{
    struct driver *driver = owed->serve->driver;

    if (owed->type == MESSAGE_PAUSE && (owed->pause_call == PAUSE_SNAPSHOT || owed->pause_call == PAUSE_COPY) &&
        driver->ops->drop)
        driver->ops->drop(driver, answer->kept.id, is_dropped, NULL);
}

static void owed_done(struct op_call *call, struct op_answer *answer, const struct err *err)
{
    struct owed *owed = container_of(call, struct owed, call);
    bool serve_lives = owed->at != NULL;

    if (owed->at) {
        *owed->at = owed->next;
        if (owed->next)
            owed->next->at = owed->at;
    }
    if (owed->channel)
        reply(owed->channel, owed->type, owed->id, answer, err);
    else if (serve_lives && !err)
        drop_unclaimed(owed, answer);
    fd_close(&answer->fd);
    if (serve_lives && !err)
        tell_egress(owed); /* after the reply, for which a client waits */
    free(owed);
}

static void owed_offer(struct op_call *call, int socket_fd)
{
    struct owed *owed = container_of(call, struct owed, call);
    auto_buf struct buf payload = buf_make(NULL, sizeof owed->ticket);

    pack_u64(&payload, owed->ticket);
    if (owed->channel)
        channel_send_event(owed->channel, MESSAGE_UNPACK, buf_str(&payload), &socket_fd, 1);
}

static struct op_call *owe(struct serve *serve, struct channel *channel, enum message_type type, uint32_t id,
                           const struct op_ask *ask)
{
    struct owed *owed = NEW(struct owed);

    *owed = (struct owed){
        .call = { .done = owed_done, .offer = owed_offer },
        .next = serve->owed,
        .at = &serve->owed,
        .channel = channel,
        .serve = serve,
        .type = type,
        .id = id,
        .pause_call = ask->pause.call,
        .ticket = ask->ticket,
    };
    if (type == MESSAGE_START)
        memcpy(owed->sandbox, ask->plan.id, sizeof owed->sandbox);
    else if (type == MESSAGE_PAUSE && ask->pause.call < PAUSE_DROP)
        memcpy(owed->sandbox, ask->pause.id, sizeof owed->sandbox); /* it has the form of one: it was checked */
    if (owed->next)
        owed->next->at = &owed->next;
    serve->owed = owed;
    return &owed->call;
}

bool serve_request(struct serve *serve, struct channel *channel, enum message_type type, uint32_t id,
                   struct str payload, struct err *err)
{
    const struct op *op = op_of(type);
    auto_op_answer struct op_answer answer = OP_ANSWER_NONE;
    struct unpack in = unpack_from(payload);
    struct op_ask ask;
    struct err why;
    bool fine;

    if (!op)
        return err_set(err, ERR_INVALID, "%s is not a request for a driver", message_type_name[type]);
    op_unpack_ask(op, &in, &ask);
    if (!unpack_done(&in, err))
        return err_wrap(err, "request %s", message_type_name[type]);
    fine = !(op->ask & ASK_PLAN) || (plan_check(&ask.plan, &why) && within_limits(serve, &ask.plan, &why));
    if (fine && op->later) {
        op->later(serve->driver, &ask, owe(serve, channel, type, id, &ask));
        return true;
    }
    fine = fine && op->now(serve->driver, &ask, &answer, &why);
    reply(channel, type, id, &answer, fine ? NULL : &why);
    return true;
}
