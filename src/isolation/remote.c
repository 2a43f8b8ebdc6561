/*
 * Front's half of the driver. ops.c fills in the request of each call; here it becomes a message to keeper, and keeper's
 * reply becomes the answer. A reply of the wrong form is an error like any other: keeper is ours, and is checked all the
 * same.
 */
#include "isolation/remote.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/pass.h"
#include "isolation/ops.h"

/* A descriptor for a child of keeper's, until its worker has the answer. */
struct offer {
    struct offer *next;
    uint64_t ticket;
    int fd; /* borrowed */
};

struct remote {
    struct driver driver;
    struct channel *channel;
    pthread_mutex_t lock; /* of what follows: workers and the loop have it */
    struct offer *offers;
    uint64_t last_ticket;
};

static struct channel *channel_of(struct driver *driver)
{
    return container_of(driver, struct remote, driver)->channel;
}

/* Takes the descriptor, if there is one. */
static bool read_answer(const struct op *op, struct str payload, struct message_fds *fds, const struct op_ask *asked,
                        struct op_answer *out, struct err *err)
{
    auto_op_answer struct op_answer answer = OP_ANSWER_NONE;
    struct unpack in = unpack_from(payload);

    op_unpack_answer(op, &in, asked, &answer);
    if (!unpack_done(&in, err) || fds->count != (op->answer & ANSWER_FD ? 1 : 0))
        return err_set(err, ERR_INTERNAL, "keeper's answer has the wrong shape");
    *out = answer;
    answer = OP_ANSWER_NONE;
    if (fds->count)
        out->fd = take_fd(&fds->at[0]);
    return true;
}

bool remote_call(struct driver *driver, enum message_type type, const struct op_ask *ask, struct op_answer *out,
                 struct err *err)
{
    const struct op *op = op_of(type);
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_answer struct channel_answer reply = { 0 };

    op_pack_ask(op, &payload, ask);
    if (!channel_call_for(channel_of(driver), type, buf_str(&payload), op_patience_ms(op, ask), &reply, err) ||
        !read_answer(op, str_of(reply.payload, reply.len), &reply.fds, ask, out, err))
        return err_wrap(err, "ask keeper: %s %s", message_type_name[type], ask->id);
    return true;
}

uint64_t remote_offer(struct driver *driver, int fd)
{
    struct remote *remote = container_of(driver, struct remote, driver);
    struct offer *offer = NEW(struct offer);
    auto_unlock pthread_mutex_t *held = lock_mutex(&remote->lock);

    *offer = (struct offer){ .next = remote->offers, .ticket = ++remote->last_ticket, .fd = fd };
    remote->offers = offer;
    return offer->ticket;
}

void remote_withdraw(struct driver *driver, uint64_t ticket)
{
    struct remote *remote = container_of(driver, struct remote, driver);
    auto_unlock pthread_mutex_t *held = lock_mutex(&remote->lock);
    struct offer **at = &remote->offers, *offer;

    while ((*at)->ticket != ticket)
        at = &(*at)->next;
    offer = *at;
    *at = offer->next;
    free(offer);
}

/* A socket to the child that unpacks. It is new, so there is room in it. */
static bool give_archive(struct remote *remote, struct str payload, const struct message_fds *fds, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&remote->lock);
    struct unpack in = unpack_from(payload);
    uint64_t ticket = unpack_u64(&in);
    struct err why;

    if (!unpack_done(&in, err) || fds->count != 1)
        return err_set(err, ERR_INVALID, "keeper asks for an archive in the wrong form");
    for (const struct offer *offer = remote->offers; offer; offer = offer->next)
        if (offer->ticket == ticket && !pass_fds(fds->at[0], STR("a"), &offer->fd, 1, &why))
            log_warn("driver: an archive could not be given to keeper's child: %s", err_text(&why));
    return true; /* without an offer: its worker has waited too long */
}

struct request {
    const struct op *op;
    struct op_then then;
};

static void answered(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct request *request = context;
    struct op_answer answer = OP_ANSWER_NONE;
    struct err wrong;

    if (!err && !read_answer(request->op, payload, fds, NULL, &answer, &wrong))
        err = &wrong;
    if (request->then.socket)
        request->then.socket(request->then.context, answer.fd, err);
    else
        request->then.stopped(request->then.context, answer.gone, err);
    free(request);
}

void remote_request(struct driver *driver, enum message_type type, const struct op_ask *ask, const struct op_then *then)
{
    struct request *request = NEW(struct request);
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    *request = (struct request){ .op = op_of(type), .then = *then };
    op_pack_ask(request->op, &payload, ask);
    channel_request(channel_of(driver), type, buf_str(&payload), NULL, 0, answered, request);
}

void remote_free(struct driver *driver)
{
    struct remote *remote = container_of(driver, struct remote, driver);

    (void)pthread_mutex_destroy(&remote->lock);
    free(remote);
}

struct driver *remote_driver_new(struct channel *channel)
{
    struct remote *remote = NEW(struct remote);

    remote->driver.ops = &op_remote_calls;
    remote->channel = channel;
    (void)pthread_mutex_init(&remote->lock, NULL);
    return &remote->driver;
}

static bool take_option(struct driver *driver, struct unpack *in, struct err *err)
{
    char id[LIMIT_ID_BYTES];
    struct socket_option option;

    message_unpack_id(in, id);
    option.level = unpack_u32(in);
    option.name = unpack_u32(in);
    if (!unpack_done(in, err))
        return false;
    if (driver->refused)
        driver->refused(driver->exited_context, id, &option);
    return true;
}

bool remote_driver_event(struct driver *driver, enum message_type type, struct str payload, struct message_fds *fds,
                         struct err *err)
{
    struct unpack in = unpack_from(payload);
    char id[LIMIT_ID_BYTES];

    if (type == MESSAGE_UNPACK)
        return give_archive(container_of(driver, struct remote, driver), payload, fds, err);
    if (type == MESSAGE_OPTION)
        return take_option(driver, &in, err);
    if (type != MESSAGE_EXITED)
        return err_set(err, ERR_INVALID, "keeper sent an event that it never sends");
    message_unpack_id(&in, id);
    uint8_t cause = unpack_u8(&in);
    if (!unpack_done(&in, err))
        return false;
    if (cause >= EXIT_CAUSE_COUNT)
        return err_set(err, ERR_INVALID, "a sandbox exited for the unknown cause %u", cause);
    if (driver->exited)
        driver->exited(driver->exited_context, id, (enum exit_cause)cause);
    return true;
}
