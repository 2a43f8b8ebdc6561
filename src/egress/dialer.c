#include "egress/dialer.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/mem.h"
#include "egress/sockets.h"

static void leave_off(struct dialer *dialer)
{
    watch_free(take_ptr(&dialer->watch));
    fd_close(&dialer->fd);
    timer_clear(&dialer->timer);
}

void dialer_stop(struct dialer *dialer)
{
    if (!dialer->is_on)
        return;
    dialer->is_on = false;
    leave_off(dialer);
}

static void dial_next(struct dialer *dialer);

static void on_dialed(void *context, unsigned ready)
{
    struct dialer *dialer = context;
    int number = 0;
    socklen_t len = sizeof number;

    (void)ready;
    if (getsockopt(dialer->fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0)
        number = errno;
    if (number) {
        errno = number;
        (void)err_sys(&dialer->err, "connect");
        dial_next(dialer);
        return;
    }
    int fd = take_fd(&dialer->fd);
    dialer_stop(dialer);
    dialer->want.done(dialer->want.context, fd, NULL);
}

static void on_late(struct timer *timer)
{
    struct dialer *dialer = container_of(timer, struct dialer, timer);

    (void)err_set(&dialer->err, ERR_TIMEOUT, "it did not accept a connection in time");
    dial_next(dialer);
}

static bool dial(struct dialer *dialer, const struct net_address *to, uint64_t time_ms)
{
    const struct dialer_want *want = &dialer->want;

    if (!want->may_dial(want->context, to))
        return err_set(&dialer->err, ERR_DENIED, "the sandbox may not connect to its address");
    dialer->fd = socket_dial(to, want->port, want->buffer_bytes, &dialer->err);
    if (dialer->fd < 0)
        return false;
    timer_set(&dialer->timer, want->loop, time_ms, on_late);
    dialer->watch = watch_new(want->loop, dialer->fd, on_dialed, dialer);
    watch_want(dialer->watch, WATCH_WRITE);
    return true;
}

/* The last address has all the time that is left. */
static void dial_next(struct dialer *dialer)
{
    uint64_t now_ms = loop_now_ms(dialer->want.loop);

    leave_off(dialer);
    while (dialer->next < dialer->want.count && now_ms < dialer->until_ms) {
        uint64_t left_ms = dialer->until_ms - now_ms;
        const struct net_address *to = &dialer->addresses[dialer->next++];
        bool is_last = dialer->next == dialer->want.count;
        if (dial(dialer, to, is_last ? left_ms : MIN(left_ms, (uint64_t)LIMIT_EGRESS_DIAL_ONE_MS)))
            return;
    }
    dialer_stop(dialer);
    dialer->want.done(dialer->want.context, -1, &dialer->err);
}

void dialer_start(struct dialer *dialer, const struct dialer_want *want)
{
    assert(!dialer->is_on && want->count > 0 && want->count <= LIMIT_EGRESS_TRIES);
    *dialer = (struct dialer){ .want = *want, .is_on = true, .fd = -1 };
    memcpy(dialer->addresses, want->addresses, want->count * sizeof *want->addresses);
    dialer->want.addresses = NULL;
    dialer->until_ms = loop_now_ms(want->loop) + LIMIT_EGRESS_DIAL_MS;
    dial_next(dialer);
}
