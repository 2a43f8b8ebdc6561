/*
 * guestlink, as guestd sees it: messages from the host, each answered in turn, and log lines of ours in between (journal.c).
 *
 * There is one link at a time. Keeper hands over a new one whenever front asks for it (handover.c): when front or keeper
 * has been started again, or when this guestd has come back from a memory image. The new link replaces the old one, and
 * the journal goes on there with the first message that was not taken. Without a link guestd works as before.
 */
#include "guest/link.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "guest/handover.h"
#include "guest/interpreter/interpreter.h"
#include "guest/journal.h"
#include "guest/network.h"
#include "guest/pause.h"
#include "guest/trust.h"
#include "io/stream.h"

struct link {
    struct guest *guest;
    struct stream *stream;
    bool wants_ready;    /* PREPARE is still to be answered */
    unsigned warm_count; /* so many WARM are */
    struct timer warm_soon;
};

static void hang_up(struct link *link)
{
    link->guest->link = NULL;
    journal_leave(link->guest->journal);
    timer_clear(&link->warm_soon);
    stream_free(take_ptr(&link->stream));
    loop_retire(link->guest->loop, link, free);
}

static void answer(struct link *link, const struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    if (err)
        guestlink_write_error(&out, err);
    else
        guestlink_write_simple(&out, GUESTLINK_OK);
    stream_write(link->stream, buf_str(&out));
}

/* Not outside a sandbox, where /etc is the machine's. */
static void tell_network(const struct guestlink_network *network)
{
    if (getpid() != 1)
        return;
    network_tell("/etc", network->reach, network->inside);
    trust_tell("/etc", &network->authority);
}

/* The host may ask on one link and go on with the next; then the answer has nowhere to go. */
static void on_ready(struct guest *guest)
{
    const struct guestlink_ready ready = { .env_count = (uint32_t)guest->caller_env_count, .envs = guest->caller_envs };
    auto_buf struct buf out = buf_make(NULL, LIMIT_GUESTLINK_BYTES + GUESTLINK_HEADER_BYTES);

    if (!guest->link || !guest->link->wants_ready)
        return;
    guest->link->wants_ready = false;
    guestlink_write_ready(&out, &ready);
    stream_write(guest->link->stream, buf_str(&out));
}

static void prepare(struct link *link)
{
    link->wants_ready = true;
    pause_prepare(link->guest, on_ready);
}

/* Every WARM that waits. NULL: the interpreter is there. */
static void answer_warm(struct link *link, const struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    guestlink_write_warmed(&out, err);
    for (; link->warm_count; link->warm_count--)
        stream_write(link->stream, buf_str(&out));
}

static void on_warmed(struct guest *guest, const struct err *err)
{
    if (guest->link)
        answer_warm(guest->link, err);
}

/* Keeper has handed a zygote over before the host sent WARM, but the loop may come to guestlink first. */
static void on_warm_soon(struct timer *timer)
{
    struct link *link = container_of(timer, struct link, warm_soon);
    struct guest *guest = link->guest;

    handover_take_pending(guest);
    if (guest->link == link && link->warm_count)
        interpreter_warm(guest->interpreter, on_warmed);
}

static void warm(struct link *link)
{
    struct err err;

    link->warm_count++;
    if (link->guest->is_set_up) {
        (void)err_set(&err, ERR_CONFLICT, "the sandbox is set up already");
        answer_warm(link, &err);
    } else if (!link->guest->interpreter) {
        (void)err_set(&err, ERR_INVALID, "no code is run here");
        answer_warm(link, &err);
    } else {
        timer_set(&link->warm_soon, link->guest->loop, 0,
                  on_warm_soon); /* not now: a new link would replace this one */
    }
}

void link_tell_network(struct guest *guest)
{
    if (!guest->owes_network)
        return;
    guest->owes_network = false;
    tell_network(&guest->network);
}

static void set_up(struct link *link, const struct guestlink_setup *setup)
{
    bool is_first = !link->guest->is_set_up;
    struct err err;

    /* Before SETUP's answer: the host takes everything after that answer for log lines. */
    (void)err_set(&err, ERR_CONFLICT, "the sandbox was set up before its interpreter was there");
    answer_warm(link, &err);
    guest_set_up(link->guest, setup);
    pause_resumed(link->guest);
    answer(link, NULL);
    journal_listen(link->guest->journal, link->stream);
    /* After the answer, so that no create waits for it; before anything is read that could start a process. */
    interpreter_set_up(link->guest->interpreter);
    if (!is_first) /* one that came back or is a copy: its programs run */
        link_tell_network(link->guest);
}

static void handle(struct link *link, struct str body)
{
    struct guestlink_message message;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    if (!guestlink_read(body, &arena, &message, &err)) {
        answer(link, &err);
    } else if (message.type == GUESTLINK_SETUP) {
        set_up(link, &message.setup);
    } else if (message.type == GUESTLINK_PING) {
        answer(link, NULL);
    } else if (message.type == GUESTLINK_NETWORK) {
        link->guest->owes_network = false;
        tell_network(&message.network);
        answer(link, NULL);
    } else if (message.type == GUESTLINK_LISTEN) {
        pause_resumed(link->guest); /* of a front that has died since */
        answer(link, NULL);
        journal_listen(link->guest->journal, link->stream);
    } else if (message.type == GUESTLINK_WARM) {
        warm(link);
    } else if (message.type == GUESTLINK_PREPARE) {
        prepare(link);
    } else if (message.type == GUESTLINK_RESUMED) {
        pause_resumed(link->guest);
        answer(link, NULL);
    } else if (message.type == GUESTLINK_TAKEN) {
        journal_taken(link->guest->journal);
    } else {
        (void)err_set(&err, ERR_INVALID,
                      "guestd takes SETUP, PING, NETWORK, LISTEN, PREPARE, RESUMED, WARM and TAKEN, not %u",
                      (unsigned)message.type);
        answer(link, &err);
    }
    arena_done(&arena);
}

static void on_input(struct stream *stream)
{
    struct link *link = stream->owner;
    struct err err;
    uint32_t length;

    while (stream->in.len >= GUESTLINK_HEADER_BYTES) {
        if (!guestlink_body_length((const unsigned char *)stream->in.data, &length, &err)) {
            hang_up(link);
            return;
        }
        if (stream->in.len < GUESTLINK_HEADER_BYTES + (size_t)length)
            return;
        handle(link, str_of(stream->in.data + GUESTLINK_HEADER_BYTES, length));
        buf_drop(&stream->in, GUESTLINK_HEADER_BYTES + (size_t)length);
    }
}

static void on_end(struct stream *stream, const struct err *err)
{
    (void)err;
    hang_up(stream->owner);
}

static const struct stream_events events = { .on_input = on_input, .on_end = on_end };

void link_serve(struct guest *guest, int fd)
{
    struct link *link = NEW(struct link);

    if (guest->link)
        hang_up(guest->link);
    guest->link = link;
    link->guest = guest;
    link->stream = stream_new(guest->loop, fd, LIMIT_GUESTLINK_BYTES + GUESTLINK_HEADER_BYTES, &events, link);
    stream_read(link->stream, true);
}
