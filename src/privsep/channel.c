/*
 * How it works: everything happens on the loop. A message goes straight to the socket; when the socket is full, messages
 * queue (with their descriptors duplicated) until it is writable again. The queue has a cap. A request that finds it full
 * fails with ERR_LIMIT, and may be tried again. A reply or an event that finds it full breaks the channel: the peer has stopped reading, and
 * without that message it would wait for ever.
 *
 * A call from a worker is a request whose done-function fills in the waiting struct and wakes the worker. The struct is
 * on the heap and has a refcount of two, one for the worker and one for the loop: a worker that has waited long enough
 * leaves, and an answer that comes after that is dropped.
 *
 * A broken channel stays in that state until it is renewed or freed: sends are no-ops, requests fail. Freeing is put off
 * to the end of the loop's turn, because a handler may free the channel that is calling it.
 */
#include "privsep/channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "io/pass.h"

enum {
    QUEUE_MAX = 4096,       /* messages; past it an event breaks the channel, so a burst about every sandbox must fit */
    READS_A_TURN = 32,      /* then let others on the loop have their turn */
    RECEIVED_FDS_MAX = 253, /* SCM_MAX_FD: room for all that a peer could send, so that none is lost unclosed */
};

/* What keeper tells a busy egress of each sandbox: that it exists, its sockets, its exit. And others start meanwhile. */
static_assert(QUEUE_MAX >= 3 * (LIMIT_SANDBOXES + LIMIT_POOL) + LIMIT_STARTS,
              "every sandbox's end would restart egress");

struct outgoing {
    struct outgoing *next;
    struct message_fds fds;
    size_t len;
    char bytes[];
};

struct pending {
    struct pending *next;
    uint32_t id;
    enum message_type type;
    channel_done_fn *done;
    void *context;
};

struct channel {
    struct loop *loop;
    int fd;
    struct watch *watch;
    struct channel_handlers handlers;
    void *context;
    bool broken; /* nothing goes in or out, until channel_renew() */
    bool shut;   /* for good */
    bool freed;  /* by channel_free(); the memory goes at the end of the turn */
    uint32_t last_id;
    struct pending *pending; /* newest first; seldom more than a handful */
    struct outgoing *first, **last;
    unsigned queued;
    struct err why;
    struct loop_task break_later;
    bool break_posted;
    char *room; /* LIMIT_MESSAGE_BYTES + 1 */
};

static void fds_close(struct message_fds *fds)
{
    fd_close_each(fds->at, fds->count);
    fds->count = 0;
}

/* ---- breaking ---- */

static void fail_pending(struct channel *channel)
{
    struct pending *pending = take_ptr(&channel->pending);

    while (pending) {
        struct pending *next = pending->next;
        struct err err;
        (void)err_set(&err, ERR_UNAVAILABLE, "the process that was asked is gone");
        pending->done(pending->context, STR(""), NULL, &err);
        free(pending);
        pending = next;
    }
}

static void drop_queue(struct channel *channel)
{
    while (channel->first) {
        struct outgoing *next = channel->first->next;
        fds_close(&channel->first->fds);
        free(channel->first);
        channel->first = next;
    }
    channel->last = &channel->first;
    channel->queued = 0;
}

static void tell_broken(struct loop_task *task)
{
    struct channel *channel = container_of(task, struct channel, break_later);

    channel->break_posted = false;
    if (channel->freed) {
        if (!channel->room)
            free(channel); /* else channel_release() is still to come, and frees it */
        return;
    }
    if (!channel->broken)
        return; /* renewed in the meantime: what waits now waits on the new connection */
    fail_pending(channel);
    if (!channel->freed && channel->handlers.broken)
        channel->handlers.broken(channel->context, &channel->why);
}

static void disconnect(struct channel *channel)
{
    channel->broken = true;
    watch_free(take_ptr(&channel->watch));
    drop_queue(channel);
    fd_close(&channel->fd);
}

/* Handlers are told in a task of their own: the code that noticed may be deep inside a call of theirs. */
static void channel_break(struct channel *channel, const struct err *why)
{
    if (channel->broken)
        return;
    channel->why = *why;
    disconnect(channel);
    if (!channel->break_posted)
        loop_post(channel->loop, &channel->break_later);
    channel->break_posted = true;
}

/* ---- sending ---- */

static void want_events(struct channel *channel)
{
    watch_want(channel->watch, WATCH_READ | (channel->first ? WATCH_WRITE : 0));
}

static bool enqueue(struct channel *channel, struct str bytes, const int *fds, uint32_t fd_count, struct err *err)
{
    if (channel->queued == QUEUE_MAX)
        return err_set(err, ERR_LIMIT, "%d messages wait already: the other process does not read", QUEUE_MAX);
    struct outgoing *out = mem_new(sizeof *out + bytes.len);
    out->len = bytes.len;
    memcpy(out->bytes, bytes.at, bytes.len);
    for (uint32_t i = 0; i < fd_count; i++) {
        int copy = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        if (copy < 0) {
            (void)err_sys(err, "duplicate a descriptor to send it later");
            fds_close(&out->fds);
            free(out);
            return false;
        }
        out->fds.at[out->fds.count++] = copy;
    }
    *channel->last = out;
    channel->last = &out->next;
    channel->queued++;
    want_events(channel);
    return true;
}

static void flush_queue(struct channel *channel)
{
    while (channel->first) {
        struct outgoing *out = channel->first;
        struct err err;
        if (!pass_fds(channel->fd, str_of(out->bytes, out->len), out->fds.at, out->fds.count, &err)) {
            if (err.sys == EAGAIN)
                return;
            err.kind = ERR_UNAVAILABLE;
            channel_break(channel, &err);
            return;
        }
        channel->first = out->next;
        if (!channel->first)
            channel->last = &channel->first;
        channel->queued--;
        fds_close(&out->fds);
        free(out);
    }
    want_events(channel);
}

static bool send_message(struct channel *channel, const struct message_head *head, struct str payload, const int *fds,
                         uint32_t fd_count, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    if (channel->broken)
        return err_set(err, ERR_UNAVAILABLE, "the process to ask is gone");
    message_pack_head(&out, head);
    buf_add(&out, payload);
    if (out.overflowed)
        return err_set(err, ERR_LIMIT, "a message of %zu bytes is too long", payload.len);
    if (fd_count > LIMIT_MESSAGE_FDS)
        return err_set(err, ERR_LIMIT, "%u descriptors are too many for a message", fd_count);
    if (!channel->first) { /* else behind those that wait */
        if (pass_fds(channel->fd, buf_str(&out), fds, fd_count, err))
            return true;
        if (err->sys != EAGAIN) {
            err->kind = ERR_UNAVAILABLE;
            channel_break(channel, err);
            return false;
        }
    }
    return enqueue(channel, buf_str(&out), fds, fd_count, err);
}

/* For replies and events: the caller cannot do anything about an error, and the peer would wait for the message. */
static void send_or_break(struct channel *channel, const struct message_head *head, struct str payload, const int *fds,
                          uint32_t fd_count)
{
    struct err err;

    if (send_message(channel, head, payload, fds, fd_count, &err))
        return;
    err.kind = ERR_UNAVAILABLE; /* whatever it was, for those who ask it is gone */
    channel_break(channel, &err);
}

void channel_reply(struct channel *channel, enum message_type type, uint32_t id, struct str payload, const int *fds,
                   uint32_t fd_count)
{
    send_or_break(channel, &(struct message_head){ .shape = MESSAGE_REPLY, .type = type, .id = id }, payload, fds,
                  fd_count);
}

void channel_reply_error(struct channel *channel, enum message_type type, uint32_t id, const struct err *why)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    message_pack_err(&payload, why);
    send_or_break(channel, &(struct message_head){ .shape = MESSAGE_FAILURE, .type = type, .id = id },
                  buf_str(&payload), NULL, 0);
}

bool channel_is_idle(const struct channel *channel)
{
    return !channel->broken && !channel->first;
}

void channel_send_event(struct channel *channel, enum message_type type, struct str payload, const int *fds,
                        uint32_t fd_count)
{
    send_or_break(channel, &(struct message_head){ .shape = MESSAGE_EVENT, .type = type }, payload, fds, fd_count);
}

/* A request that cannot be sent fails in a task of its own, never inside channel_request(). */
struct refusal {
    struct loop_task task;
    channel_done_fn *done;
    void *context;
    struct err err;
};

static void tell_refusal(struct loop_task *task)
{
    struct refusal *refusal = container_of(task, struct refusal, task);

    refusal->done(refusal->context, STR(""), NULL, &refusal->err);
    free(refusal);
}

void channel_request(struct channel *channel, enum message_type type, struct str payload, const int *fds,
                     uint32_t fd_count, channel_done_fn *done, void *context)
{
    struct err err;

    if (++channel->last_id == 0)
        channel->last_id = 1; /* 0 is for events; no request of four billion ago is still waiting */
    if (!send_message(channel, &(struct message_head){ .shape = MESSAGE_REQUEST, .type = type, .id = channel->last_id },
                      payload, fds, fd_count, &err)) {
        struct refusal *refusal = NEW(struct refusal);
        *refusal = (struct refusal){ .task.fn = tell_refusal, .done = done, .context = context, .err = err };
        loop_post(channel->loop, &refusal->task);
        return;
    }
    struct pending *pending = NEW(struct pending);
    *pending = (struct pending){
        .next = channel->pending, .id = channel->last_id, .type = type, .done = done, .context = context
    };
    channel->pending = pending;
}

/* ---- receiving ---- */

static bool take_reply(struct channel *channel, const struct message_head *head, struct str payload,
                       struct message_fds *fds, struct err *err)
{
    struct pending **at = &channel->pending;
    struct err failure;

    while (*at && (*at)->id != head->id)
        at = &(*at)->next;
    if (!*at || (*at)->type != head->type)
        return err_set(err, ERR_INVALID, "a reply to a request that was not made");
    if (head->shape == MESSAGE_FAILURE) {
        struct unpack in = unpack_from(payload);
        message_unpack_err(&in, &failure);
        if (!unpack_done(&in, err))
            return false;
    }
    struct pending *pending = *at;
    *at = pending->next;
    if (head->shape == MESSAGE_FAILURE)
        pending->done(pending->context, STR(""), NULL, &failure);
    else
        pending->done(pending->context, payload, fds, NULL);
    free(pending);
    return true;
}

static bool take_message(struct channel *channel, struct str bytes, struct message_fds *fds, struct err *err)
{
    struct unpack in = unpack_from(bytes);
    struct message_head head;

    message_unpack_head(&in, &head);
    if (in.failed)
        return err_set(err, ERR_INVALID, "malformed message head");
    switch (head.shape) {
    case MESSAGE_REPLY:
    case MESSAGE_FAILURE:
        return take_reply(channel, &head, in.rest, fds, err);
    case MESSAGE_REQUEST:
        if (!channel->handlers.request)
            return err_set(err, ERR_INVALID, "a request, and this process takes none");
        return channel->handlers.request(channel->context, channel, head.type, head.id, in.rest, fds, err);
    case MESSAGE_EVENT:
        if (!channel->handlers.event)
            return err_set(err, ERR_INVALID, "an event, and this process takes none");
        return channel->handlers.event(channel->context, head.type, in.rest, fds, err);
    case MESSAGE_SHAPE_END:
        break;
    }
    return err_set(err, ERR_INVALID, "malformed message head");
}

/*
 * The descriptors that came with a message. False: more than a message may have; the surplus is closed.
 *
 * There is room for as many as the kernel lets a process send, so MSG_CTRUNC can only mean that we have no free number
 * for one. The handler of that message finds it missing and fails; other messages are not affected.
 */
static bool collect_fds(struct msghdr *message, struct message_fds *out)
{
    bool too_many = false;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (out->count < LIMIT_MESSAGE_FDS) {
                out->at[out->count++] = fd;
            } else {
                too_many = true;
                fd_close(&fd);
            }
        }
    }
    return !too_many;
}

/* One message. False: there is none now, or the channel broke. */
static bool receive_one(struct channel *channel)
{
    struct iovec piece = { .iov_base = channel->room, .iov_len = LIMIT_MESSAGE_BYTES + 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(RECEIVED_FDS_MAX * sizeof(int))];
    } room;
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    struct message_fds fds = { 0 };
    struct err err;
    ssize_t n;

    do {
        n = recvmsg(channel->fd, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    bool fine;
    if (n < 0) {
        fine = err_sys(&err, "receive");
        err.kind = ERR_UNAVAILABLE;
    } else if (n == 0 && !message.msg_controllen) { /* end of file: no message is empty */
        fine = err_set(&err, ERR_UNAVAILABLE, "the other side has closed");
    } else {
        fine = collect_fds(&message, &fds);
        if (!fine || n > LIMIT_MESSAGE_BYTES)
            fine = err_set(&err, ERR_INVALID, "a message is too long or has too many descriptors");
        else
            fine = take_message(channel, str_of(channel->room, (size_t)n), &fds, &err);
    }
    fds_close(&fds);
    if (!fine && !channel->freed)
        channel_break(channel, &err);
    return fine && !channel->broken && !channel->freed;
}

static void socket_ready(void *context, unsigned ready)
{
    struct channel *channel = context;

    if (ready & WATCH_WRITE)
        flush_queue(channel);
    if (!(ready & WATCH_READ))
        return;
    for (int i = 0; i < READS_A_TURN && !channel->broken; i++)
        if (!receive_one(channel))
            return;
}

/* ---- life ---- */

static void connect_to(struct channel *channel, int fd)
{
    channel->fd = fd;
    channel->broken = false;
    channel->watch = watch_new(channel->loop, fd, socket_ready, channel);
    want_events(channel);
}

struct channel *channel_new(struct loop *loop, int fd, const struct channel_handlers *handlers, void *context)
{
    struct channel *channel = NEW(struct channel);

    channel->loop = loop;
    channel->fd = -1;
    channel->broken = true;
    channel->handlers = *handlers;
    channel->context = context;
    channel->last = &channel->first;
    channel->break_later.fn = tell_broken;
    channel->room = mem_new(LIMIT_MESSAGE_BYTES + 1);
    if (fd >= 0)
        connect_to(channel, fd);
    return channel;
}

void channel_renew(struct channel *channel, int fd)
{
    disconnect(channel);
    fail_pending(channel);
    if (channel->shut)
        fd_close(&fd);
    else
        connect_to(channel, fd);
}

void channel_shut(struct channel *channel)
{
    struct err err;

    channel->shut = true;
    channel->handlers.broken = NULL;
    (void)err_set(&err, ERR_UNAVAILABLE, "we are stopping");
    channel_break(channel, &err);
}

static void channel_release(void *object)
{
    struct channel *channel = object;

    free(channel->room);
    channel->room = NULL;
    if (!channel->break_posted) /* else tell_broken() is still to come, and frees it */
        free(channel);
}

void channel_free(struct channel *channel)
{
    if (!channel || channel->freed)
        return;
    channel->freed = true;
    disconnect(channel);
    fail_pending(channel);
    loop_retire(channel->loop, channel, channel_release);
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

void channel_refuse_fds(int fd)
{
    (void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){ 0 }, sizeof(int));
}

bool channel_pair(int out_fds[2], struct err *err)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out_fds) < 0)
        return err_sys(err, "socketpair");
    return true;
}

/* ---- calls from workers ---- */

struct call {
    struct loop_task task;
    struct channel *channel;
    enum message_type type;
    char *payload;
    size_t payload_len;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned owners; /* the worker and the loop's side */
    bool answered, fine;
    struct channel_answer answer;
    struct err err;
};

void channel_answer_done(struct channel_answer *answer)
{
    free(answer->payload);
    answer->payload = NULL;
    fds_close(&answer->fds);
}

/* With the lock held; gives it back. */
static void call_unref(struct call *call)
{
    bool last = --call->owners == 0;

    (void)pthread_mutex_unlock(&call->lock);
    if (!last)
        return;
    channel_answer_done(&call->answer);
    (void)pthread_cond_destroy(&call->changed);
    (void)pthread_mutex_destroy(&call->lock);
    free(call->payload);
    free(call);
}

static void call_answered(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct call *call = context;

    (void)pthread_mutex_lock(&call->lock);
    call->answered = true;
    call->fine = !err;
    if (err) {
        call->err = *err;
    } else {
        call->answer.payload = str_copy(payload);
        call->answer.len = payload.len;
        call->answer.fds = *fds;
        fds->count = 0;
    }
    (void)pthread_cond_signal(&call->changed);
    call_unref(call);
}

static void call_begin(struct loop_task *task)
{
    struct call *call = container_of(task, struct call, task);

    channel_request(call->channel, call->type, str_of(call->payload, call->payload_len), NULL, 0, call_answered, call);
}

bool channel_call(struct channel *channel, enum message_type type, struct str payload, struct channel_answer *out,
                  struct err *err)
{
    return channel_call_for(channel, type, payload, LIMIT_KEEPER_MS, out, err);
}

bool channel_call_for(struct channel *channel, enum message_type type, struct str payload, uint32_t patience_ms,
                      struct channel_answer *out, struct err *err)
{
    struct call *call = NEW(struct call);
    struct timespec deadline = clock_wait_until(patience_ms);
    pthread_condattr_t monotonic;
    int waited = 0;

    call->task.fn = call_begin;
    call->channel = channel;
    call->type = type;
    call->payload = str_copy(payload);
    call->payload_len = payload.len;
    call->owners = 2;
    (void)pthread_mutex_init(&call->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&call->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    loop_post(channel->loop, &call->task);

    (void)pthread_mutex_lock(&call->lock);
    while (!call->answered && waited == 0)
        waited = pthread_cond_timedwait(&call->changed, &call->lock, &deadline);
    bool fine = call->answered && call->fine;
    if (fine) {
        *out = call->answer;
        call->answer = (struct channel_answer){ 0 };
    } else if (call->answered) {
        *err = call->err;
    } else {
        (void)err_set(err, ERR_TIMEOUT, "no answer to %s in %u seconds", message_type_name[type], patience_ms / 1000);
    }
    call_unref(call);
    return fine;
}
