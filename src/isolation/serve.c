#include "isolation/serve.h"

#include <stdlib.h>

#include "base/fd.h"
#include "base/mem.h"

struct serve {
    struct driver *driver;
    struct channel *channel;
    uint32_t generation; /* counts fronts: an answer for an earlier one has nowhere to go */
    struct serve_limits limits;
    struct stopping *stops;
};

/* A stop whose answer the driver still owes; it may come after serve_free(), and is the driver's to end. */
struct stopping {
    struct stopping *next, **at; /* in serve->stops */
    struct serve *serve;         /* NULL: gone */
    uint32_t generation;
    uint32_t id;
};

/* A dial under way. */
struct dialing {
    struct serve *serve;
    uint32_t generation;
    uint32_t id;
};

static void tell_exit(void *context, const char *id, enum exit_cause cause)
{
    struct serve *serve = context;
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    if (!serve->channel)
        return; /* the next front asks for a list first */
    message_pack_id(&payload, id);
    pack_u8(&payload, (uint8_t)cause);
    channel_send_event(serve->channel, MESSAGE_EXITED, buf_str(&payload));
}

struct serve *serve_new(struct driver *driver, const struct serve_limits *limits)
{
    struct serve *serve = NEW(struct serve);

    serve->driver = driver;
    serve->limits = *limits;
    driver->exited = tell_exit;
    driver->exited_context = serve;
    return serve;
}

void serve_free(struct serve *serve)
{
    if (!serve)
        return;
    serve->driver->exited = NULL;
    for (struct stopping *stop = serve->stops; stop; stop = stop->next)
        stop->serve = NULL;
    free(serve);
}

void serve_attach(struct serve *serve, struct channel *channel)
{
    serve->channel = channel;
    serve->generation++;
}

/* Front has compared too; but what it says is a stranger's word, also here. */
static bool within_limits(struct serve *serve, const struct plan *plan, struct err *err)
{
    const struct serve_limits *limits = &serve->limits;
    auto_free struct held *held = NULL;
    uint32_t count;

    if (plan->memory_bytes > limits->memory_bytes)
        return err_set(err, ERR_LIMIT, "a sandbox may have %llu MiB of memory here",
                       (unsigned long long)limits->memory_bytes >> 20);
    if (plan->cpu_millis > limits->cpu_millis)
        return err_set(err, ERR_LIMIT, "a sandbox may have %u thousandths of a CPU here", limits->cpu_millis);
    if (plan->pids > limits->pids)
        return err_set(err, ERR_LIMIT, "a sandbox may have %u processes here", limits->pids);
    if (!driver_list(serve->driver, &held, &count, err))
        return false;
    if (count >= limits->sandboxes)
        return err_set(err, ERR_LIMIT, "there are %u sandboxes already", count);
    return true;
}

static bool serve_start(struct serve *serve, struct channel *channel, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    struct started started;
    struct plan plan;
    struct err why;

    plan_unpack(&in, &plan);
    if (!unpack_done(&in, err))
        return err_wrap(err, "plan");
    if (!plan_check(&plan, &why) || !within_limits(serve, &plan, &why) ||
        !driver_start(serve->driver, &plan, &started, &why)) {
        channel_reply_error(channel, MESSAGE_START, id, &why);
        return true;
    }
    channel_reply(channel, MESSAGE_START, id, STR(""), &started.guestlink_fd, 1);
    fd_close(&started.guestlink_fd);
    return true;
}

static void stopped(void *context, bool gone, const struct err *err)
{
    struct stopping *stop = context;
    struct serve *serve = stop->serve;
    auto_buf struct buf payload = buf_make(NULL, 1);

    if (serve) {
        *stop->at = stop->next;
        if (stop->next)
            stop->next->at = stop->at;
    }
    if (serve && stop->generation == serve->generation && serve->channel) {
        pack_bool(&payload, gone);
        if (err)
            channel_reply_error(serve->channel, MESSAGE_STOP, stop->id, err);
        else
            channel_reply(serve->channel, MESSAGE_STOP, stop->id, buf_str(&payload), NULL, 0);
    }
    free(stop);
}

static bool serve_stop(struct serve *serve, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char sandbox[LIMIT_ID_BYTES];

    message_unpack_id(&in, sandbox);
    uint32_t patience_ms = unpack_u32(&in);
    if (!unpack_done(&in, err))
        return false;
    if (patience_ms > LIMIT_STOP_MS)
        return err_set(err, ERR_INVALID, "malformed message: a patience of %u ms", patience_ms);
    struct stopping *stop = NEW(struct stopping);
    *stop = (struct stopping){
        .next = serve->stops, .at = &serve->stops, .serve = serve, .generation = serve->generation, .id = id
    };
    if (stop->next)
        stop->next->at = &stop->next;
    serve->stops = stop;
    driver_stop(serve->driver, sandbox, patience_ms, stopped, stop);
    return true;
}

static bool serve_list(struct serve *serve, struct channel *channel, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_free struct held *held = NULL;
    uint32_t count;
    struct err why;

    if (!unpack_done(&in, err))
        return false;
    if (!driver_list(serve->driver, &held, &count, &why)) {
        channel_reply_error(channel, MESSAGE_LIST, id, &why);
        return true;
    }
    pack_u32(&out, count);
    for (uint32_t i = 0; i < count; i++)
        message_pack_id(&out, held[i].id);
    channel_reply(channel, MESSAGE_LIST, id, buf_str(&out), NULL, 0);
    return true;
}

static bool serve_link(struct serve *serve, struct channel *channel, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char sandbox[LIMIT_ID_BYTES];
    int guestlink_fd;
    struct err why;

    message_unpack_id(&in, sandbox);
    if (!unpack_done(&in, err))
        return false;
    if (!driver_link(serve->driver, sandbox, &guestlink_fd, &why)) {
        channel_reply_error(channel, MESSAGE_LINK, id, &why);
        return true;
    }
    channel_reply(channel, MESSAGE_LINK, id, STR(""), &guestlink_fd, 1);
    fd_close(&guestlink_fd);
    return true;
}

static bool serve_stats(struct serve *serve, struct channel *channel, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct held which[LIMIT_STATS];
    struct stats stats[LIMIT_STATS];
    uint32_t count;
    struct err why;

    stats_unpack_ask(&in, which, &count);
    if (!unpack_done(&in, err))
        return false;
    if (!driver_stats(serve->driver, which, count, stats, &count, &why)) {
        channel_reply_error(channel, MESSAGE_STATS, id, &why);
        return true;
    }
    stats_pack(&out, stats, count);
    channel_reply(channel, MESSAGE_STATS, id, buf_str(&out), NULL, 0);
    return true;
}

static void dialed(void *context, int fd, const struct err *err)
{
    struct dialing *dialing = context;
    struct serve *serve = dialing->serve;

    if (dialing->generation == serve->generation && serve->channel) {
        if (err)
            channel_reply_error(serve->channel, MESSAGE_DIAL, dialing->id, err);
        else
            channel_reply(serve->channel, MESSAGE_DIAL, dialing->id, STR(""), &fd, 1);
    }
    fd_close(&fd);
    free(dialing);
}

static bool serve_dial(struct serve *serve, uint32_t id, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char sandbox[LIMIT_ID_BYTES];

    message_unpack_id(&in, sandbox);
    uint16_t port = unpack_u16(&in);
    if (!unpack_done(&in, err))
        return false;
    struct dialing *dialing = NEW(struct dialing);
    *dialing = (struct dialing){ .serve = serve, .generation = serve->generation, .id = id };
    driver_dial(serve->driver, sandbox, port, dialed, dialing);
    return true;
}

bool serve_request(struct serve *serve, struct channel *channel, enum message_type type, uint32_t id,
                   struct str payload, struct err *err)
{
    switch (type) {
    case MESSAGE_START:
        return serve_start(serve, channel, id, payload, err);
    case MESSAGE_STOP:
        return serve_stop(serve, id, payload, err);
    case MESSAGE_LIST:
        return serve_list(serve, channel, id, payload, err);
    case MESSAGE_LINK:
        return serve_link(serve, channel, id, payload, err);
    case MESSAGE_STATS:
        return serve_stats(serve, channel, id, payload, err);
    case MESSAGE_DIAL:
        return serve_dial(serve, id, payload, err);
    default:
        return err_set(err, ERR_INVALID, "not a request for a driver");
    }
}
