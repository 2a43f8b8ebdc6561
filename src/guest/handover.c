/*
 * Keeper connects, sends one message with one descriptor and closes. The peer need not be checked: the socket's name is out
 * of reach for everything in this sandbox (isolation/native/handover.c).
 */
#include "guest/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/interpreter/interpreter.h"
#include "guest/link.h"
#include "wire/handover.h"

enum { PAUSE_MS = 100 };

/* One connection from keeper, until its message is there. */
struct handing {
    struct handing *next; /* of guest->handings */
    struct guest *guest;
    int fd;
    struct watch *watch;
};

/* Under the same number: keeper knows it by that (isolation/native/checkpoint.c). */
static void listen_on(struct guest *guest, int fd)
{
    watch_free(guest->handover_watch);
    timer_clear(&guest->handover_pause);
    if (dup3(fd, guest->handover_fd, O_CLOEXEC) < 0)
        log_die("cannot take a new socket for handovers: %s", strerror(errno)); /* the kernel does not fail here */
    fd_close(&fd);
    handover_serve(guest, guest->handover_fd);
}

static void take(struct guest *guest, const struct handover *message, int fd)
{
    if (message->kind == HANDOVER_LINK) {
        link_serve(guest, fd);
    } else if (message->kind == HANDOVER_ZYGOTE && guest->interpreter) {
        interpreter_take_zygote(guest->interpreter, fd);
    } else if (message->kind == HANDOVER_LISTENER) {
        listen_on(guest, fd);
    } else {
        log_warn("keeper hands over something unknown: kind %u", message->kind);
        fd_close(&fd);
    }
}

static void handing_free(struct handing *handing)
{
    struct handing **at = &handing->guest->handings;

    while (*at != handing)
        at = &(*at)->next;
    *at = handing->next;
    watch_free(handing->watch);
    fd_close(&handing->fd);
    loop_retire(handing->guest->loop, handing, free);
}

static void on_message(void *context, unsigned ready)
{
    struct handing *handing = context;
    struct handover message;
    struct iovec piece = { .iov_base = &message, .iov_len = sizeof message };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room = { 0 };
    struct msghdr envelope = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    int fd;

    (void)ready;
    ssize_t n = recvmsg(handing->fd, &envelope, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&envelope);
    if (n == sizeof message && header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof fd)) {
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
        take(handing->guest, &message, fd);
    }
    handing_free(handing); /* also if keeper died before it sent anything */
}

static void on_connection(struct guest *guest, int fd)
{
    struct handing *handing = NEW(struct handing);

    *handing = (struct handing){ .next = guest->handings, .guest = guest, .fd = fd };
    guest->handings = handing;
    handing->watch = watch_new(guest->loop, fd, on_message, handing);
    watch_want(handing->watch, WATCH_READ);
    /*
     * Its message is there already if we are slow. Keeper hands a zygote over before it connects to the code port: looking
     * now, we have the zygote before that connection's first request.
     */
    on_message(handing, WATCH_READ);
}

static void on_pause_over(struct timer *timer);

static void on_listener(void *context, unsigned ready)
{
    struct guest *guest = context;

    (void)ready;
    for (int fd; (fd = accept4(guest->handover_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
        on_connection(guest, fd);
    if (errno == EAGAIN)
        return;
    /* Out of descriptors or memory: the connection stays in the queue and would wake the loop in every turn. */
    watch_want(guest->handover_watch, 0);
    timer_set(&guest->handover_pause, guest->loop, PAUSE_MS, on_pause_over);
}

static void on_pause_over(struct timer *timer)
{
    watch_want(container_of(timer, struct guest, handover_pause)->handover_watch, WATCH_READ);
}

void handover_take_pending(struct guest *guest)
{
    on_listener(guest, WATCH_READ);
    for (struct handing *handing = guest->handings, *next; handing; handing = next) {
        next = handing->next; /* it stays: only its own message can end a handing */
        on_message(handing, WATCH_READ);
    }
}

void handover_serve(struct guest *guest, int listen_fd)
{
    guest->handover_fd = listen_fd;
    guest->handover_watch = watch_new(guest->loop, listen_fd, on_listener, guest); /* for as long as guestd runs */
    watch_want(guest->handover_watch, WATCH_READ);
}
