/*
 * patience.c - the time limits of a connection. It has one timer, the watchdog, set to the nearest of its deadlines;
 * when it fires, all of them are computed again.
 */
#include "base/limits.h"
#include "http/inside.h"

/* The deadline, or UINT64_MAX while there is nothing to wait for. Growth below `least` does not restart the timer. */
static uint64_t patience_end(struct patience *p, bool waiting, uint64_t counter, uint64_t least, uint64_t limit_ms,
                             uint64_t now)
{
    if (!waiting || !p->waiting || counter - p->seen >= least) {
        p->since_ms = now;
        p->seen = counter;
    }
    p->waiting = waiting;
    return waiting && limit_ms ? p->since_ms + limit_ms : UINT64_MAX;
}

struct deadlines {
    uint64_t idle, head, write, linger;
};

static struct deadlines conn_deadlines(struct connection *c, uint64_t now)
{
    const struct http_server_config *config = &c->server->config;
    const struct exchange *e = conn_first(c);
    bool is_waiting = c->state == CONN_HEAD, is_over = c->state == CONN_LINGER;
    bool has_part = (c->in_head && !is_over) || (is_waiting && c->stream->in.len > 0);
    /* A new connection has to send a request soon. Only after one may it be idle. */
    uint64_t rest_ms = c->trusted ? config->keepalive_ms : config->stranger_ms;
    uint64_t idle_ms = c->requests ? rest_ms : config->head_ms;

    struct deadlines due = {
        .idle = patience_end(&c->idle, is_waiting && !has_part, c->requests, 1, idle_ms, now),
        .head = patience_end(&c->head, has_part, c->requests, 1, config->head_ms, now),
        .write = patience_end(&c->write, !is_over && stream_queued(c->stream) > 0, c->stream->bytes_out,
                              LIMIT_WRITE_LEAST_BYTES, config->write_idle_ms, now),
        .linger = patience_end(&c->linger, is_over, 0, 1, config->linger_ms, now),
    };
    /* No event says when the client stops taking what is spliced to it: look now and then. */
    if (c->state == CONN_BUSY && e->is_spliced && config->write_idle_ms)
        due.write = MIN(due.write, now + config->write_idle_ms);
    return due;
}

static uint64_t body_deadline(struct exchange *e, uint64_t now)
{
    bool is_wanted = e->body != BODY_WAITING && e->body != BODY_DONE && !e->body_paused;

    return patience_end(&e->body_wait, is_wanted, e->body_bytes, 1, e->body_idle_ms, now);
}

/* Of an HTTP/2 stream whose client gives it no window. With HTTP/1.1 the connection's deadline covers it. */
static uint64_t write_deadline(const struct connection *c, struct exchange *e, uint64_t now)
{
    return patience_end(&e->write_wait, e->written > e->sent, e->sent, LIMIT_WRITE_LEAST_BYTES,
                        c->server->config.write_idle_ms, now);
}

static void exchange_check(struct connection *c, struct exchange *e, uint64_t now)
{
    bool is_body_late = body_deadline(e, now) <= now;

    if (write_deadline(c, e, now) <= now || (is_body_late && e->answer == ANSWER_STARTED)) {
        c->protocol->cut(c, e);
    } else if (is_body_late && e->answer == ANSWER_NONE) {
        conn_refuse(c, e, 408, "the body of the request did not arrive in time");
    } else if (is_body_late) {
        e->body = BODY_DONE;
        e->close_after = true;
        conn_due(c, e);
    } else {
        exchange_watch(c, e);
    }
}

static void on_watchdog(struct timer *timer)
{
    struct connection *c = container_of(timer, struct connection, watchdog);
    uint64_t now = loop_now_ms(c->loop);
    struct deadlines due = conn_deadlines(c, now);

    if (due.idle <= now)
        c->protocol->finish(c);
    else if (due.linger <= now)
        conn_close(c, false);
    else if (due.head <= now)
        conn_refuse(c, NULL, 408, "the head of the request did not arrive in time");
    else if (due.write <= now)
        conn_close(c, true);
    for (struct queue_link *link = c->exchanges.first; link && c->state == CONN_BUSY; link = link->next)
        exchange_check(c, container_of(link, struct exchange, place), now);
    conn_step(c);
}

/* A watchdog that fires too early is left as it is: it computes the deadlines again. */
static void watch_until(struct connection *c, uint64_t first, uint64_t now)
{
    if (first == UINT64_MAX || (timer_is_set(&c->watchdog) && c->watchdog.due_ms <= first))
        return;
    timer_set(&c->watchdog, c->loop, first > now ? first - now : 0, on_watchdog);
}

void exchange_watch(struct connection *c, struct exchange *e)
{
    uint64_t now = loop_now_ms(c->loop);

    watch_until(c, MIN(body_deadline(e, now), write_deadline(c, e, now)), now);
}

void conn_watch(struct connection *c)
{
    uint64_t now = loop_now_ms(c->loop);
    struct deadlines due = conn_deadlines(c, now);

    watch_until(c, MIN(MIN(due.idle, due.head), MIN(due.write, due.linger)), now);
    if (c->state == CONN_BUSY)
        exchange_watch(c, conn_first(c));
}
