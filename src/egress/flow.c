/*
 * One connection of a sandbox, from accept to its end.
 *
 * Theory of operation
 *
 * The kernel has completed the handshake with the guest before we see the connection: a listening socket cannot accept
 * late. So a guest's connect() succeeds at once whatever follows, and a connection that is refused, or that the outside
 * does not accept, is reset: the guest's first read or write fails.
 *
 *   ACCEPTED   judged by address and port
 *   DIALING    our own connection to the outside is under way
 *   RELAYING   bytes go both ways
 *   CLOSED     both ends are closed; freed when the turn ends
 *
 * While dialing, nothing is read from the guest: what it sends waits in the kernel.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/inside.h"
#include "io/relay.h"
#include "io/stream.h"

enum flow_state {
    FLOW_ACCEPTED,
    FLOW_DIALING,
    FLOW_RELAYING,
    FLOW_CLOSED,
    FLOW_STATE_COUNT,
};

static const unsigned may_become[FLOW_STATE_COUNT] = {
    [FLOW_ACCEPTED] = BIT(FLOW_DIALING) | BIT(FLOW_CLOSED),
    [FLOW_DIALING] = BIT(FLOW_RELAYING) | BIT(FLOW_CLOSED),
    [FLOW_RELAYING] = BIT(FLOW_CLOSED),
};

struct flow {
    struct outbound *outbound;
    struct queue_link link;   /* in outbound->flows */
    struct queue_link slowed; /* in outbound->slowed */
    enum flow_state state;
    struct net_address to;
    uint16_t port;
    bool is_host;         /* `to` is an address of this machine */
    struct stream *guest; /* the relay's while relaying */
    int dial_fd;          /* while dialing */
    struct watch *dial;
    struct relay *relay;
    struct timer timer; /* dialing: it has taken too long; relaying: it may be idle */
};

static struct loop *loop_of(const struct flow *flow)
{
    return flow->outbound->egress->config.loop;
}

static void enter(struct flow *flow, enum flow_state next)
{
    assert(may_become[flow->state] & BIT(next));
    flow->state = next;
}

static void stop_dialing(struct flow *flow)
{
    watch_free(take_ptr(&flow->dial));
    fd_close(&flow->dial_fd);
    timer_clear(&flow->timer);
}

static void flow_dispose(void *object)
{
    free(object);
}

/* Closes what is open, in the way that it is closed: a guest that is to see a reset has been reset before. */
static void flow_close(struct flow *flow)
{
    struct outbound *outbound = flow->outbound;

    if (flow->state == FLOW_CLOSED)
        return;
    enter(flow, FLOW_CLOSED);
    stop_dialing(flow);
    queue_leave(&flow->link);
    queue_leave(&flow->slowed);
    outbound->open--;
    outbound->egress->flows_open--;
    relay_free(flow->relay);
    if (!flow->relay)
        stream_free(flow->guest);
    report_soon(outbound);
    loop_retire(loop_of(flow), flow, flow_dispose);
}

/* Neither side can take it for an orderly end. */
static void flow_reset(struct flow *flow)
{
    if (flow->relay) {
        relay_account(flow->relay);
        relay_abort(flow->relay);
    } else {
        stream_abort(flow->guest);
    }
    flow_close(flow);
}

static void flow_refuse(struct flow *flow, unsigned why)
{
    report_refusal(flow->outbound, why, &flow->to, flow->port, STR(""));
    flow_reset(flow);
}

static enum net_rule judge(const struct flow *flow)
{
    const struct outbound *outbound = flow->outbound;

    return net_judge(&outbound->policy, &outbound->egress->config.house,
                     &(struct net_flow){ .to = flow->to, .port = flow->port, .is_host = flow->is_host });
}

/* ---- relaying ---- */

static void on_resume(struct timer *timer);

/* Waits until the sandbox is within its rate again. */
static void slow_down(struct flow *flow, uint64_t wait_ms)
{
    struct outbound *outbound = flow->outbound;

    if (!flow->slowed.in)
        queue_join(&outbound->slowed, &flow->slowed);
    if (!timer_is_set(&outbound->resume))
        timer_set(&outbound->resume, loop_of(flow), wait_ms, on_resume);
}

static uint64_t rate_wait_ms(const struct outbound *outbound)
{
    const struct egress *egress = outbound->egress;
    uint64_t now_ms = loop_now_ms(egress->config.loop);

    return MAX(quota_wait_ms(&egress->rate_rule, &outbound->rate_in, now_ms),
               quota_wait_ms(&egress->rate_rule, &outbound->rate_out, now_ms));
}

static bool on_moved(void *context, uint64_t from_guest, uint64_t from_outside)
{
    struct flow *flow = context;
    struct outbound *outbound = flow->outbound;
    const struct quota_rule *rule = &outbound->egress->rate_rule;
    uint64_t now_ms = loop_now_ms(loop_of(flow));

    outbound->bytes_out += from_guest;
    outbound->bytes_in += from_outside;
    report_soon(outbound);
    if (rule->per_s == 0)
        return true;
    quota_spend(rule, &outbound->rate_out, from_guest * 1000 / 1024, now_ms);
    quota_spend(rule, &outbound->rate_in, from_outside * 1000 / 1024, now_ms);
    uint64_t wait_ms = rate_wait_ms(outbound);
    if (wait_ms)
        slow_down(flow, wait_ms);
    return wait_ms == 0;
}

/* First come, first served, until the rate is used up again. */
static void on_resume(struct timer *timer)
{
    struct outbound *outbound = container_of(timer, struct outbound, resume);
    uint64_t wait_ms = 0;

    while (outbound->slowed.first && (wait_ms = rate_wait_ms(outbound)) == 0) {
        struct flow *flow = container_of(outbound->slowed.first, struct flow, slowed);
        queue_leave(&flow->slowed);
        relay_resume(flow->relay);
    }
    if (outbound->slowed.first && !timer_is_set(timer))
        timer_set(timer, outbound->egress->config.loop, MAX(wait_ms, (uint64_t)1), on_resume);
}

static void on_relay_done(void *context)
{
    flow_close(context);
}

static void on_idle(struct timer *timer)
{
    struct flow *flow = container_of(timer, struct flow, timer);
    uint64_t quiet_ms = loop_now_ms(loop_of(flow)) - relay_progress_ms(flow->relay);

    if (quiet_ms >= LIMIT_EGRESS_IDLE_MS)
        flow_reset(flow);
    else
        timer_set(timer, loop_of(flow), LIMIT_EGRESS_IDLE_MS - quiet_ms, on_idle);
}

static void begin_relaying(struct flow *flow)
{
    struct stream *outside;

    enter(flow, FLOW_RELAYING);
    flow->relay = relay_new(loop_of(flow), on_relay_done, flow);
    relay_tune(flow->relay, &(struct relay_tuning){
                                .moved = on_moved,
                                .linger_ms = LIMIT_EGRESS_HALF_MS,
                                .queued_most = 0,
                                .may_splice = true,
                            });
    outside = stream_new(loop_of(flow), take_fd(&flow->dial_fd), LIMIT_EGRESS_BUFFER, &relay_events, flow->relay);
    stop_dialing(flow);
    flow->guest->events = &relay_events;
    flow->guest->owner = flow->relay;
    flow->outbound->made++;
    report_soon(flow->outbound);
    timer_set(&flow->timer, loop_of(flow), LIMIT_EGRESS_IDLE_MS, on_idle);
    relay_join(flow->relay, flow->guest, outside);
}

/* ---- dialing ---- */

static void on_dialed(void *context, unsigned ready)
{
    struct flow *flow = context;
    int number = 0;
    socklen_t len = sizeof number;

    (void)ready;
    if (getsockopt(flow->dial_fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0)
        number = errno;
    watch_free(take_ptr(&flow->dial));
    if (number)
        flow_reset(flow);
    else
        begin_relaying(flow);
}

static void on_dial_late(struct timer *timer)
{
    flow_reset(container_of(timer, struct flow, timer));
}

static void dial(struct flow *flow)
{
    struct err err;

    enter(flow, FLOW_DIALING);
    flow->dial_fd = socket_dial(&flow->to, flow->port, &err);
    if (flow->dial_fd < 0) {
        log_debug("sandbox %s: %s", flow->outbound->id, err_text(&err));
        flow_reset(flow);
        return;
    }
    timer_set(&flow->timer, loop_of(flow), LIMIT_EGRESS_DIAL_MS, on_dial_late);
    flow->dial = watch_new(loop_of(flow), flow->dial_fd, on_dialed, flow);
    watch_want(flow->dial, WATCH_WRITE);
}

/* ---- the guest's side, until it is the relay's ---- */

static void on_guest_input(struct stream *stream)
{
    (void)stream; /* it is not read before the relay does */
}

static void on_guest_end(struct stream *stream, const struct err *err)
{
    (void)err;
    flow_reset(stream->owner);
}

/* An orderly end may be one side's only: the guest waits for an answer. After a reset nobody waits. */
static void on_guest_hangup(struct stream *stream)
{
    if (stream_is_broken(stream))
        flow_reset(stream->owner);
}

static const struct stream_events guest_events = {
    .on_input = on_guest_input,
    .on_end = on_guest_end,
    .on_hangup = on_guest_hangup,
};

static bool is_host(const struct egress *egress, const struct net_address *address)
{
    return egress->config.is_host ? egress->config.is_host(address) : host_probe_is_local(&egress->probe, address);
}

void flow_accept(struct outbound *outbound, int fd)
{
    struct egress *egress = outbound->egress;
    struct flow *flow = NEW(struct flow);
    bool is_redirected = egress->config.original(fd, &flow->to, &flow->port);

    flow->outbound = outbound;
    flow->dial_fd = -1;
    flow->guest = stream_new(egress->config.loop, fd, LIMIT_EGRESS_BUFFER, &guest_events, flow);
    queue_join(&outbound->flows, &flow->link);
    outbound->open++;
    egress->flows_open++;
    if (!is_redirected) {
        flow_refuse(flow, FLOWS_NOT_REDIRECTED);
        return;
    }
    flow->is_host = is_host(egress, &flow->to);
    enum net_rule rule = judge(flow);
    if (net_rule_allows(rule))
        dial(flow);
    else
        flow_refuse(flow, rule);
}

/* ---- all of a sandbox ---- */

void flows_judge_again(struct outbound *outbound)
{
    struct queue_link *next;

    for (struct queue_link *link = outbound->flows.first; link; link = next) {
        struct flow *flow = container_of(link, struct flow, link);
        next = link->next;
        enum net_rule rule = judge(flow);
        if (!net_rule_allows(rule))
            flow_refuse(flow, rule);
    }
}

void flows_reset(struct outbound *outbound)
{
    while (outbound->flows.first)
        flow_reset(container_of(outbound->flows.first, struct flow, link));
}
