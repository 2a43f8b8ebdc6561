#include "proxy/reach.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"

struct reach {
    struct loop *loop;
    struct driver *driver;
    char id[LIMIT_ID_BYTES];
    uint16_t port;
    unsigned attempts, attempt; /* how many are allowed, and which one this is */
    unsigned queue_tries;       /* connects that found the service's queue full */
    reach_done_fn *done;
    void *context;
    bool asking;    /* the driver will call back in any case */
    bool abandoned; /* the caller has freed it; it goes when `asking` ends */
    int fd;
    struct watch *watch;
    struct timer timer; /* limits a connect, or ends a pause */
};

static void begin(struct reach *r);
static void on_socket(void *context, int fd, const struct err *err);

struct reach *reach_new(struct loop *loop, struct driver *driver, const char *id, uint16_t port, unsigned attempts,
                        reach_done_fn *done, void *context)
{
    struct reach *r = NEW(struct reach);
    r->loop = loop;
    r->driver = driver;
    snprintf(r->id, sizeof r->id, "%s", id);
    r->port = port;
    r->attempts = attempts;
    r->done = done;
    r->context = context;
    r->fd = -1;
    return r;
}

static void drop_socket(struct reach *r)
{
    watch_free(r->watch);
    r->watch = NULL;
    timer_clear(&r->timer);
    fd_close(&r->fd);
}

void reach_free(struct reach *r)
{
    if (!r)
        return;
    drop_socket(r);
    r->abandoned = true;
    if (!r->asking)
        loop_retire(r->loop, r, free);
}

static void on_pause_over(struct timer *timer)
{
    begin(container_of(timer, struct reach, timer));
}

static void try_later(struct reach *r, enum reach_outcome outcome)
{
    drop_socket(r);
    if (r->attempt >= r->attempts)
        r->done(r->context, outcome, -1);
    else
        timer_set(&r->timer, r->loop, (uint64_t)r->attempt * LIMIT_EDGE_DIAL_PAUSE_MS, on_pause_over);
}

static void connected(struct reach *r)
{
    int fd = take_fd(&r->fd);
    drop_socket(r);
    r->done(r->context, REACH_OPEN, fd);
}

static void dial(struct reach *r)
{
    r->asking = true;
    driver_dial(r->driver, r->id, r->port, on_socket, r);
}

/*
 * Inside a sandbox a connect is over at once, unless the service's queue of connections is full: `python -m
 * http.server` has room for five, and an HTTP/2 client sends a hundred requests at once. The kernel would try again
 * after 1, 3, 7… seconds, all of them together. We begin with a few milliseconds.
 */
static void on_queue_full(struct timer *timer)
{
    struct reach *r = container_of(timer, struct reach, timer);
    drop_socket(r);
    r->queue_tries++;
    dial(r);
}

static void on_connect_timeout(struct timer *timer)
{
    /* The service listens and does not accept. Another attempt would only make the client wait longer. */
    struct reach *r = container_of(timer, struct reach, timer);
    r->attempt = r->attempts;
    try_later(r, REACH_CLOSED);
}

static void on_writable(void *context, unsigned ready)
{
    struct reach *r = context;
    int error = 0;
    socklen_t size = sizeof error;
    (void)ready;
    if (getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error)
        try_later(r, REACH_CLOSED);
    else
        connected(r);
}

static void on_socket(void *context, int fd, const struct err *err)
{
    struct reach *r = context;
    r->asking = false;
    r->fd = fd;
    if (r->abandoned) {
        reach_free(r);
        return;
    }
    if (fd < 0) {
        if (err->kind == ERR_NOT_FOUND)
            r->done(r->context, REACH_GONE, -1);
        else if (err->sys == ECONNREFUSED)
            try_later(r, REACH_CLOSED);
        else
            try_later(r, REACH_UNAVAILABLE); /* keeper may be starting again */
        return;
    }
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0) {
        connected(r);
        return;
    }
    bool is_last = r->queue_tries == LIMIT_EDGE_QUEUE_TRIES;
    timer_set(&r->timer, r->loop, is_last ? LIMIT_EDGE_DIAL_MS : (uint64_t)LIMIT_EDGE_QUEUE_MS << r->queue_tries,
              is_last ? on_connect_timeout : on_queue_full);
    r->watch = watch_new(r->loop, fd, on_writable, r);
    watch_want(r->watch, WATCH_WRITE);
}

static void begin(struct reach *r)
{
    r->attempt++;
    dial(r);
}

void reach_go(struct reach *r)
{
    begin(r);
}
