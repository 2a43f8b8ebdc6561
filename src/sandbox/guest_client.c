#include "sandbox/guest_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fd.h"

static bool wait_for(int fd, short events, uint64_t until_ms, struct err *err)
{
    return (clock_mono_ms() < until_ms && fd_await(fd, events, until_ms)) ||
           err_set(err, ERR_TIMEOUT, "the sandbox did not answer in time");
}

/* The descriptor may block or not: every call here says that it must not. */
static bool send_all(int fd, struct str bytes, uint64_t until_ms, struct err *err)
{
    while (bytes.len) {
        ssize_t sent = send(fd, bytes.at, bytes.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            bytes.at += sent;
            bytes.len -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT, until_ms, err))
                return false;
        } else if (errno != EINTR) {
            return err_sys(err, "send to guestd");
        }
    }
    return true;
}

static bool receive_all(int fd, void *room, size_t size, uint64_t until_ms, struct err *err)
{
    for (size_t got = 0; got < size;) {
        if (clock_mono_ms() >= until_ms) /* also while bytes keep coming */
            return err_set(err, ERR_TIMEOUT, "the sandbox did not answer in time");
        ssize_t n = recv(fd, (char *)room + got, size - got, MSG_DONTWAIT);
        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            return err_set(err, ERR_UNAVAILABLE, "guestd closed the connection");
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLIN, until_ms, err))
                return false;
        } else if (errno != EINTR) {
            return err_sys(err, "receive from guestd");
        }
    }
    return true;
}

static bool receive_message(int fd, struct arena *arena, uint64_t until_ms, struct guestlink_message *out,
                            struct err *err)
{
    unsigned char header[GUESTLINK_HEADER_BYTES];
    uint32_t length;

    if (!receive_all(fd, header, sizeof header, until_ms, err) || !guestlink_body_length(header, &length, err))
        return false;
    char *body = arena_alloc(arena, length);
    return receive_all(fd, body, length, until_ms, err) && guestlink_read(str_of(body, length), arena, out, err);
}

enum { LATE_MAX = 4 }; /* guestd may be in the guest's hands: it must not keep a worker, or fill its memory */

/*
 * `want` is the type of the answer that says yes. A WARMED that is not wanted belongs to a guest_warm() that has not waited
 * for it; LATE_MAX of them at most.
 */
static enum guest_answer receive_answer(int fd, enum guestlink_type want, struct arena *arena, uint64_t until_ms,
                                        struct guestlink_message *out, struct err *err)
{
    for (unsigned late = 0; late <= LATE_MAX; late++) {
        if (!receive_message(fd, arena, until_ms, out, err))
            return GUEST_SILENT;
        if (out->type != GUESTLINK_WARMED || want == GUESTLINK_WARMED)
            break;
    }
    if (out->type == want && out->error.kind == ERR_NONE)
        return GUEST_YES;
    if (out->type == GUESTLINK_ERROR || (out->type == GUESTLINK_WARMED && want == GUESTLINK_WARMED))
        *err = out->error;
    else
        (void)err_set(err, ERR_INTERNAL, "guestd answered with a message of type %d", (int)out->type);
    return GUEST_NO;
}

bool guest_setup_send(int guestlink_fd, const struct guestlink_setup *setup, bool resumed, uint64_t until_ms,
                      struct err *err)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES + GUESTLINK_HEADER_BYTES);

    guestlink_write_setup(&message, setup);
    if (resumed) /* in the same bytes: guestd reads both before anything that could reach it by another way */
        guestlink_write_simple(&message, GUESTLINK_RESUMED);
    if (message.overflowed)
        return err_set(err, ERR_LIMIT, "the sandbox's environment is too large");
    return send_all(guestlink_fd, buf_str(&message), until_ms, err) || err_wrap(err, "set guestd up");
}

bool guest_setup_await(int guestlink_fd, uint64_t until_ms, struct err *err)
{
    struct guestlink_message answer;
    struct arena arena;

    arena_init(&arena);
    bool ok = receive_answer(guestlink_fd, GUESTLINK_OK, &arena, until_ms, &answer, err) == GUEST_YES;
    arena_done(&arena);
    return ok || err_wrap(err, "set guestd up");
}

bool guest_setup(int guestlink_fd, const struct guestlink_setup *setup, bool resumed, uint64_t until_ms,
                 struct err *err)
{
    return guest_setup_send(guestlink_fd, setup, resumed, until_ms, err) &&
           guest_setup_await(guestlink_fd, until_ms, err);
}

static enum guest_answer ask(int fd, enum guestlink_type type, enum guestlink_type want, uint64_t until_ms,
                             struct arena *arena, struct guestlink_message *out, struct err *err)
{
    auto_buf struct buf message = buf_make(NULL, GUESTLINK_HEADER_BYTES + 1);

    guestlink_write_simple(&message, type);
    return send_all(fd, buf_str(&message), until_ms, err) ? receive_answer(fd, want, arena, until_ms, out, err)
                                                          : GUEST_SILENT;
}

enum guest_answer guest_warm(int guestlink_fd, uint64_t until_ms, struct err *err)
{
    struct guestlink_message message;
    struct arena arena;

    arena_init(&arena);
    enum guest_answer answer = ask(guestlink_fd, GUESTLINK_WARM, GUESTLINK_WARMED, until_ms, &arena, &message, err);
    arena_done(&arena);
    if (answer != GUEST_YES)
        (void)err_wrap(err, "warm guestd up");
    return answer;
}

enum guest_answer guest_prepare(int guestlink_fd, uint64_t until_ms, struct arena *arena, struct guestlink_ready *out,
                                struct err *err)
{
    struct guestlink_message message;
    enum guest_answer answer = ask(guestlink_fd, GUESTLINK_PREPARE, GUESTLINK_READY, until_ms, arena, &message, err);

    if (answer == GUEST_YES)
        *out = message.ready;
    else
        (void)err_wrap(err, "prepare guestd");
    return answer;
}

enum guest_answer guest_resumed(int guestlink_fd, uint64_t until_ms, struct err *err)
{
    struct guestlink_message message;
    struct arena arena;

    arena_init(&arena);
    enum guest_answer answer = ask(guestlink_fd, GUESTLINK_RESUMED, GUESTLINK_OK, until_ms, &arena, &message, err);
    arena_done(&arena);
    if (answer != GUEST_YES)
        (void)err_wrap(err, "tell guestd that it goes on");
    return answer;
}

bool guest_listen(int guestlink_fd, const struct guestlink_network *network, bool resumed, struct err *err)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_AUTHORITY_BYTES + LIMIT_INSIDE_BYTES + 64);

    if (resumed)
        guestlink_write_simple(&message, GUESTLINK_RESUMED);
    guestlink_write_simple(&message, GUESTLINK_LISTEN);
    guestlink_write_network(&message, network); /* it may have changed while there was no link */
    return send_all(guestlink_fd, buf_str(&message), 0, err) || err_wrap(err, "listen to guestd");
}
