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
    uint64_t idle, head, body, write, linger;
};

static struct deadlines conn_deadlines(struct connection *c)
{
    const struct http_server_config *config = &c->server->config;
    const struct exchange *e = c->ex;
    uint64_t now = loop_now_ms(c->loop);
    bool in_head = c->state == CONN_HEAD, is_busy = c->state == CONN_BUSY, has_input = c->stream->in.len > 0;
    bool wants_body = is_busy && e->body != BODY_WAITING && e->body != BODY_DONE && !e->body_paused;
    /* A new connection has to send a request soon. Only after one may it be idle. */
    uint64_t rest_ms = c->trusted ? config->keepalive_ms : config->stranger_ms;
    uint64_t idle_ms = c->requests ? rest_ms : config->head_ms;

    struct deadlines due = {
        .idle = patience_end(&c->idle, in_head && !has_input, c->requests, 1, idle_ms, now),
        .head = patience_end(&c->head, in_head && has_input, c->requests, 1, config->head_ms, now),
        .body = patience_end(&c->body, wants_body, c->stream->bytes_in, 1, is_busy ? e->body_idle_ms : 0, now),
        .write = patience_end(&c->write, is_busy && stream_queued(c->stream) > 0, c->stream->bytes_out,
                              LIMIT_WRITE_LEAST_BYTES, config->write_idle_ms, now),
        .linger = patience_end(&c->linger, c->state == CONN_LINGER, 0, 1, config->linger_ms, now),
    };
    /* No event says when the client stops taking what is spliced to it: look now and then. */
    if (is_busy && e->is_spliced && config->write_idle_ms)
        due.write = MIN(due.write, now + config->write_idle_ms);
    return due;
}

static void on_watchdog(struct timer *timer)
{
    struct connection *c = container_of(timer, struct connection, watchdog);
    struct deadlines due = conn_deadlines(c);
    uint64_t now = loop_now_ms(c->loop);

    if (due.idle <= now || due.linger <= now)
        conn_close(c, false);
    else if (due.head <= now)
        conn_refuse(c, 408, "the head of the request did not arrive in time");
    else if (due.write <= now)
        conn_close(c, true);
    else if (due.body <= now && c->ex->answer == ANSWER_NONE)
        conn_refuse(c, 408, "the body of the request did not arrive in time");
    else if (due.body <= now)
        conn_close(c, c->ex->answer != ANSWER_ENDED);
    conn_step(c);
}

/* A watchdog that fires too early is left as it is: it computes the deadlines again. */
void conn_watch(struct connection *c)
{
    struct deadlines due = conn_deadlines(c);
    uint64_t now = loop_now_ms(c->loop);
    uint64_t first = MIN(MIN(due.idle, due.head), MIN(MIN(due.body, due.write), due.linger));

    if (first == UINT64_MAX || (timer_is_set(&c->watchdog) && c->watchdog.due_ms <= first))
        return;
    timer_set(&c->watchdog, c->loop, first > now ? first - now : 0, on_watchdog);
}
