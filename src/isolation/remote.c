#include "isolation/remote.h"

#include <stdlib.h>

#include "base/fd.h"
#include "base/mem.h"

struct remote {
    struct driver driver;
    struct channel *channel;
};

static struct channel *channel_of(struct driver *driver)
{
    return container_of(driver, struct remote, driver)->channel;
}

/* Keeper is ours, but what it sends is checked like anybody's. */
static bool expect(struct str payload, const struct message_fds *fds, uint32_t fd_count, struct err *err)
{
    if (payload.len || fds->count != fd_count)
        return err_set(err, ERR_INTERNAL, "keeper's answer has the wrong shape");
    return true;
}

static bool remote_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_answer struct channel_answer answer = { 0 };

    if (!plan_check(plan, err))
        return err_wrap(err, "plan");
    plan_pack(&payload, plan);
    if (!channel_call(channel_of(driver), MESSAGE_START, buf_str(&payload), &answer, err) ||
        !expect(str_of(answer.payload, answer.len), &answer.fds, 1, err))
        return err_wrap(err, "ask keeper to start %s", plan->id);
    out->guestlink_fd = take_fd(&answer.fds.at[0]);
    return true;
}

static void pack_stop(struct buf *out, const char *id, uint32_t patience_ms)
{
    message_pack_id(out, id);
    pack_u32(out, patience_ms);
}

static bool unpack_gone(struct str payload, const struct message_fds *fds, bool *out_gone, struct err *err)
{
    struct unpack in = unpack_from(payload);
    bool gone = unpack_bool(&in);

    if (!unpack_done(&in, err) || fds->count)
        return err_set(err, ERR_INTERNAL, "keeper's answer has the wrong shape");
    *out_gone = gone;
    return true;
}

struct stopping {
    driver_stopped_fn *done;
    void *context;
};

static void stopped(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct stopping *stopping = context;
    struct err wrong;
    bool gone = false;

    if (!err && !unpack_gone(payload, fds, &gone, &wrong))
        err = &wrong;
    stopping->done(stopping->context, gone, err);
    free(stopping);
}

static void remote_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                        void *context)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct stopping *stopping = NEW(struct stopping);

    *stopping = (struct stopping){ .done = done, .context = context };
    pack_stop(&payload, id, patience_ms);
    channel_request(channel_of(driver), MESSAGE_STOP, buf_str(&payload), NULL, 0, stopped, stopping);
}

static bool remote_stop_wait(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone,
                             struct err *err)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_answer struct channel_answer answer = { 0 };

    pack_stop(&payload, id, patience_ms);
    if (!channel_call(channel_of(driver), MESSAGE_STOP, buf_str(&payload), &answer, err) ||
        !unpack_gone(str_of(answer.payload, answer.len), &answer.fds, out_gone, err))
        return err_wrap(err, "ask keeper to stop %s", id);
    return true;
}

static bool remote_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    auto_answer struct channel_answer answer = { 0 };

    if (!channel_call(channel_of(driver), MESSAGE_LIST, STR(""), &answer, err))
        return err_wrap(err, "ask keeper for its sandboxes");
    struct unpack in = unpack_from(str_of(answer.payload, answer.len));
    uint32_t count = unpack_count(&in, 2 * LIMIT_SANDBOXES);
    auto_free struct held *held = mem_new((count + 1) * sizeof *held);
    for (uint32_t i = 0; i < count; i++)
        message_unpack_id(&in, held[i].id);
    if (!unpack_done(&in, err))
        return err_wrap(err, "keeper's list");
    *out_held = take_ptr(&held);
    *out_count = count;
    return true;
}

static bool remote_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_answer struct channel_answer answer = { 0 };

    message_pack_id(&payload, id);
    if (!channel_call(channel_of(driver), MESSAGE_LINK, buf_str(&payload), &answer, err) ||
        !expect(str_of(answer.payload, answer.len), &answer.fds, 1, err))
        return err_wrap(err, "ask keeper for the link of %s", id);
    *out_guestlink_fd = take_fd(&answer.fds.at[0]);
    return true;
}

static bool remote_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                         uint32_t *out_count, struct err *err)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_answer struct channel_answer answer = { 0 };
    struct stats stats[LIMIT_STATS];
    uint32_t found;

    stats_pack_ask(&payload, which, count);
    if (!channel_call(channel_of(driver), MESSAGE_STATS, buf_str(&payload), &answer, err))
        return err_wrap(err, "ask keeper what sandboxes use");
    struct unpack in = unpack_from(str_of(answer.payload, answer.len));
    stats_unpack(&in, which, count, stats, &found);
    if (!unpack_done(&in, err))
        return err_wrap(err, "keeper's figures");
    memcpy(out, stats, found * sizeof *stats);
    *out_count = found;
    return true;
}

struct dialing {
    driver_dialed_fn *done;
    void *context;
};

static void dialed(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct dialing *dialing = context;
    struct err wrong;

    if (err)
        dialing->done(dialing->context, -1, err);
    else if (!expect(payload, fds, 1, &wrong))
        dialing->done(dialing->context, -1, &wrong);
    else
        dialing->done(dialing->context, take_fd(&fds->at[0]), NULL);
    free(dialing);
}

static void remote_dial(struct driver *driver, const char *id, uint16_t port, driver_dialed_fn *done, void *context)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct dialing *dialing = NEW(struct dialing);

    *dialing = (struct dialing){ .done = done, .context = context };
    message_pack_id(&payload, id);
    pack_u16(&payload, port);
    channel_request(channel_of(driver), MESSAGE_DIAL, buf_str(&payload), NULL, 0, dialed, dialing);
}

static void remote_free(struct driver *driver)
{
    free(container_of(driver, struct remote, driver));
}

static const struct driver_ops remote_ops = {
    .name = "remote",
    .start = remote_start,
    .stop = remote_stop,
    .stop_wait = remote_stop_wait,
    .list = remote_list,
    .link = remote_link,
    .stats = remote_stats,
    .dial = remote_dial,
    .free = remote_free,
};

struct driver *remote_driver_new(struct channel *channel)
{
    struct remote *remote = NEW(struct remote);

    remote->driver.ops = &remote_ops;
    remote->channel = channel;
    return &remote->driver;
}

bool remote_driver_event(struct driver *driver, enum message_type type, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char id[LIMIT_ID_BYTES];

    if (type != MESSAGE_EXITED)
        return err_set(err, ERR_INVALID, "an event that keeper does not send");
    message_unpack_id(&in, id);
    uint8_t cause = unpack_u8(&in);
    if (!unpack_done(&in, err))
        return false;
    if (cause >= EXIT_CAUSE_COUNT)
        return err_set(err, ERR_INVALID, "an exit for cause %u", cause);
    if (driver->exited)
        driver->exited(driver->exited_context, id, (enum exit_cause)cause);
    return true;
}
