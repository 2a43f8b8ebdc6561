#include "guest/link.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "guest/journal.h"
#include "guest/network.h"
#include "io/stream.h"

struct connection {
    struct guest *guest;
    struct stream *stream;
};

static void hang_up(struct connection *connection)
{
    journal_leave(connection->guest->journal, connection->stream);
    stream_free(take_ptr(&connection->stream));
    loop_retire(connection->guest->loop, connection, free);
}

static void handle(struct connection *connection, struct str body)
{
    struct arena arena;
    struct guestlink_message message;
    struct err err;
    bool tell_none = false;
    auto_buf struct buf answer = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    if (!guestlink_read(body, &arena, &message, &err)) {
        guestlink_write_error(&answer, &err);
    } else if (message.type == GUESTLINK_SETUP) {
        /* Not outside a sandbox, where /etc is the machine's. Not again either: what is there then is the guest's. */
        tell_none = !message.setup.has_network && !connection->guest->is_set_up && getpid() == 1;
        guest_set_up(connection->guest, &message.setup);
        guestlink_write_simple(&answer, GUESTLINK_OK);
    } else if (message.type == GUESTLINK_PING) {
        guestlink_write_simple(&answer, GUESTLINK_OK);
    } else if (message.type == GUESTLINK_LISTEN) {
        guestlink_write_simple(&answer, GUESTLINK_OK);
        journal_listen(connection->guest->journal, connection->stream); /* tells nothing before the turn ends */
    } else {
        (void)err_set(&err, ERR_INVALID, "guestd takes SETUP, PING and LISTEN, not %u", (unsigned)message.type);
        guestlink_write_error(&answer, &err);
    }
    stream_write(connection->stream, buf_str(&answer));
    /* After the answer, so that no create waits for it; before anything is read that could start a process. */
    if (tell_none)
        network_tell_none("/etc");
    arena_done(&arena);
}

static void on_input(struct stream *stream)
{
    struct connection *connection = stream->owner;
    struct err err;
    uint32_t length;

    while (stream->in.len >= GUESTLINK_HEADER_BYTES) {
        if (!guestlink_body_length((const unsigned char *)stream->in.data, &length, &err)) {
            hang_up(connection);
            return;
        }
        if (stream->in.len < GUESTLINK_HEADER_BYTES + (size_t)length)
            return;
        handle(connection, str_of(stream->in.data + GUESTLINK_HEADER_BYTES, length));
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
    struct connection *connection = NEW(struct connection);

    connection->guest = guest;
    connection->stream =
        stream_new(guest->loop, fd, LIMIT_GUESTLINK_BYTES + GUESTLINK_HEADER_BYTES, &events, connection);
    stream_read(connection->stream, true);
}
