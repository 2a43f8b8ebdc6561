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
 *   NAMING     only if a name could change the judgement: waits for the guest's first bytes
 *   RESOLVING  only if the name is what allows it: the name is looked up again
 *   DIALING    our own connection to the outside is under way
 *   RELAYING   bytes go both ways
 *   CLOSED     both ends are closed; freed when the turn ends
 *
 * Names: the SNI of a TLS hello or the Host of a first HTTP request decides. Where there is neither, the names count that
 * this sandbox has looked up for the address (pins.h). A connection that only a name allows goes to an address that we
 * have resolved for that name, never to one that only the guest knows: else a guest could show an allowed name to any
 * server. Later requests on the same connection are not looked at: they reach the server that was allowed.
 *
 * A server may speak first, so on ports other than 80 and 443 a guest that says nothing is not waited for if there is such
 * a looked-up name.
 *
 * A socket of ours that is closed resets its connection, unless both sides have ended in order. So if egress is killed, a
 * cut transfer does not look complete.
 *
 * Header rules: a TLS connection to port 443 that names a host with such rules is not relayed to the host but to an
 * interceptor (intercept.h), which ends TLS and connects to the host itself. The host's address is ours then, too.
 *
 * A connection to a name that stays inside (--inside, mail) goes from ACCEPTED to DIALING: it is not judged, not intercepted
 * and not sent through a proxy, and a new policy does not cut it. One to mail is relayed to front over a socket pair; if
 * the guest speaks TLS, it is ended here.
 *
 * While resolving and dialing nothing is read from the guest: what it sends waits in the kernel.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/hole.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/network.h"
#include "egress/dialer.h"
#include "egress/inside.h"
#include "egress/intercept.h"
#include "egress/name.h"
#include "egress/resolver.h"
#include "egress/tunnel.h"
#include "io/relay.h"
#include "io/stream.h"
#include "wire/dns.h"

enum flow_state {
    FLOW_ACCEPTED,
    FLOW_NAMING,
    FLOW_RESOLVING,
    FLOW_DIALING,
    FLOW_RELAYING,
    FLOW_CLOSED,
    FLOW_STATE_COUNT,
};

static const unsigned may_become[FLOW_STATE_COUNT] = {
    [FLOW_ACCEPTED] = BIT(FLOW_NAMING) | BIT(FLOW_RESOLVING) | BIT(FLOW_DIALING) | BIT(FLOW_CLOSED),
    [FLOW_NAMING] = BIT(FLOW_RESOLVING) | BIT(FLOW_DIALING) | BIT(FLOW_CLOSED),
    [FLOW_RESOLVING] = BIT(FLOW_DIALING) | BIT(FLOW_CLOSED),
    [FLOW_DIALING] = BIT(FLOW_RELAYING) | BIT(FLOW_CLOSED),
    [FLOW_RELAYING] = BIT(FLOW_CLOSED),
};

struct flow {
    struct egress_sandbox *sandbox;
    struct queue_link link;   /* in sandbox->flows */
    struct queue_link slowed; /* in sandbox->slowed */
    enum flow_state state;
    uint32_t places;             /* that it has taken */
    struct net_address original; /* where the guest wants to go */
    struct net_address to;       /* where we dial: there, or another address of `name` */
    uint16_t port;
    const struct egress_service *service;             /* `to` is its, and no rule is asked; NULL: the outside */
    int buffer_bytes;                                 /* of its sockets; 0: as the kernel likes */
    char *name;                                       /* that leads there, in lower case; NULL: not known */
    bool name_is_shown;                               /* by the guest; else it is one that it has looked up */
    struct question *question;                        /* while resolving */
    struct net_address addresses[LIMIT_EGRESS_TRIES]; /* to be dialed, one after the other */
    uint32_t address_count;                           /* with has_rules 0 is possible: requests are answered with why */
    bool is_late;                                     /* there is none because no name server answered in time */
    bool has_spoken;                                  /* while naming: the guest… */
    struct name_search search;                        /* …and what it has said */
    struct stream *guest;                             /* the relay's while relaying */
    struct stream *outside;                           /* while relaying, the relay's */
    struct dialer dialer;                             /* while dialing… */
    struct tunnel *tunnel;                            /* …instead, if the policy has a proxy */
    bool has_rules;                                   /* header rules apply to it… */
    struct intercept *intercept;                      /* …so this is its outside… */
    struct issued *issued;                            /* …with this certificate */
    struct relay *relay;
    struct timer timer; /* relaying: it may be idle; before: the state has lasted too long */
};

static struct loop *loop_of(const struct flow *flow)
{
    return flow->sandbox->egress->config.loop;
}

static void enter(struct flow *flow, enum flow_state next)
{
    assert(may_become[flow->state] & BIT(next));
    flow->state = next;
}

static uint64_t now_ms(const struct flow *flow)
{
    return loop_now_ms(loop_of(flow));
}

static void stop_dialing(struct flow *flow)
{
    dialer_stop(&flow->dialer);
    tunnel_free(take_ptr(&flow->tunnel));
    timer_clear(&flow->timer);
}

static void flow_dispose(void *object)
{
    struct flow *flow = object;

    free(flow->name);
    free(flow);
}

/* Closes what is open, in the way that it is closed: a guest that is to see a reset has been reset before. */
static void flow_close(struct flow *flow)
{
    struct egress_sandbox *sandbox = flow->sandbox;

    if (flow->state == FLOW_CLOSED)
        return;
    enter(flow, FLOW_CLOSED);
    stop_dialing(flow);
    questions_cancel(take_ptr(&flow->question));
    pins_use(&sandbox->pins, &flow->original, now_ms(flow));
    queue_leave(&flow->link);
    queue_leave(&flow->slowed);
    sandbox->open--;
    if (flow->service)
        sandbox->inside--;
    egress_give_places(sandbox, flow->places);
    relay_free(flow->relay);
    if (!flow->relay)
        stream_free(flow->guest);
    if (flow->intercept)
        sandbox->intercepts--;
    intercept_free(take_ptr(&flow->intercept));
    issued_unref(take_ptr(&flow->issued));
    report_soon(sandbox);
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

static bool is_host(const struct egress *egress, const struct net_address *address)
{
    return egress->config.is_host ? egress->config.is_host(address) : host_probe_is_local(&egress->probe, address);
}

/* A gateway may lead back to us: 64:ff9b::192.0.2.1 is us where 192.0.2.1 is. */
bool egress_is_host(const struct egress *egress, const struct net_address *address)
{
    const struct net_address end = net_address_reached(address);

    return is_host(egress, address) || (!net_address_eq(&end, address) && is_host(egress, &end));
}

static struct net_flow described(const struct flow *flow, const struct net_address *to, struct str name)
{
    return (struct net_flow){
        .to = *to, .port = flow->port, .is_host = egress_is_host(flow->sandbox->egress, to), .name = name
    };
}

static enum net_rule judge(const struct flow *flow, const struct net_address *to, struct str name)
{
    const struct net_flow is = described(flow, to, name);

    return net_judge(&flow->sandbox->policy, &flow->sandbox->egress->config.ranges, &is);
}

/*
 * Without a name in the flow: one that the sandbox has looked up and that allows it; else any; else "". A refusal that no
 * name lifts needs no search.
 */
static struct str pinned_name(const struct flow *flow, const struct net_address *to)
{
    struct egress_sandbox *sandbox = flow->sandbox;
    const struct net_flow is = described(flow, to, STR(""));

    if (!net_name_matters(&sandbox->policy, &sandbox->egress->config.ranges, &is))
        return pins_any_name(&sandbox->pins, to, now_ms(flow));
    return pins_best_name(&sandbox->pins, to, now_ms(flow), &sandbox->policy, sandbox->policy_number);
}

static struct str name_of(const struct flow *flow, const struct net_address *to)
{
    return flow->name ? str_from(flow->name) : pinned_name(flow, to);
}

static void refuse_named(struct flow *flow, unsigned why, const struct net_address *to, struct str name)
{
    report_refusal(flow->sandbox, why, to, flow->port, name);
    if (!hole_is_open("a refusal resets"))
        flow_reset(flow);
}

static struct str shown_name(const struct flow *flow)
{
    return flow->name_is_shown ? str_from(flow->name) : STR("");
}

/* A looked-up name may be another than the one that the program wants: several can lead to one address. */
static void flow_refuse(struct flow *flow, unsigned why, const struct net_address *to)
{
    refuse_named(flow, why, to, shown_name(flow));
}

/* ---- relaying ---- */

static void on_resume(struct timer *timer);

/* Waits until the sandbox is within its rate again. */
static void slow_down(struct flow *flow, uint64_t wait_ms)
{
    struct egress_sandbox *sandbox = flow->sandbox;

    if (!flow->slowed.in)
        queue_join(&sandbox->slowed, &flow->slowed);
    if (!timer_is_set(&sandbox->resume))
        timer_set(&sandbox->resume, loop_of(flow), wait_ms, on_resume);
}

static uint64_t rate_wait_ms(const struct egress_sandbox *sandbox)
{
    const struct egress *egress = sandbox->egress;
    uint64_t now = loop_now_ms(egress->config.loop);

    return MAX(quota_wait_ms(&egress->rate_rule, &sandbox->rate_in, now),
               quota_wait_ms(&egress->rate_rule, &sandbox->rate_out, now));
}

static bool on_moved(void *context, uint64_t from_guest, uint64_t from_outside)
{
    struct flow *flow = context;
    struct egress_sandbox *sandbox = flow->sandbox;
    const struct quota_rule *rule = &sandbox->egress->rate_rule;

    sandbox->bytes_out += from_guest;
    sandbox->bytes_in += from_outside;
    report_soon(sandbox);
    if (rule->per_s == 0)
        return true;
    quota_spend(rule, &sandbox->rate_out, (from_guest * 1000 + 1023) / 1024, now_ms(flow));
    quota_spend(rule, &sandbox->rate_in, (from_outside * 1000 + 1023) / 1024, now_ms(flow));
    uint64_t wait_ms = rate_wait_ms(sandbox);
    if (wait_ms)
        slow_down(flow, wait_ms);
    return wait_ms == 0;
}

/* First come, first served, until the rate is used up again. */
static void on_resume(struct timer *timer)
{
    struct egress_sandbox *sandbox = container_of(timer, struct egress_sandbox, resume);
    uint64_t wait_ms = 0;

    while (sandbox->slowed.first && (wait_ms = rate_wait_ms(sandbox)) == 0) {
        struct flow *flow = container_of(sandbox->slowed.first, struct flow, slowed);
        queue_leave(&flow->slowed);
        relay_resume(flow->relay);
    }
    if (sandbox->slowed.first && !timer_is_set(timer))
        timer_set(timer, sandbox->egress->config.loop, MAX(wait_ms, (uint64_t)1), on_resume);
}

/* In order, or after an error: then both are reset already. */
static void on_relay_done(void *context)
{
    struct flow *flow = context;

    stream_reset_on_close(flow->guest, false);
    stream_reset_on_close(flow->outside, false);
    flow_close(flow);
}

static void on_idle(struct timer *timer)
{
    struct flow *flow = container_of(timer, struct flow, timer);
    uint64_t quiet_ms = now_ms(flow) - relay_progress_ms(flow->relay);

    if (quiet_ms >= LIMIT_EGRESS_IDLE_MS)
        flow_reset(flow);
    else
        timer_set(timer, loop_of(flow), LIMIT_EGRESS_IDLE_MS - quiet_ms, on_idle);
}

/* Takes the stream. */
static void begin_relaying(struct flow *flow, struct stream *outside)
{
    enter(flow, FLOW_RELAYING);
    flow->relay = relay_new(loop_of(flow), on_relay_done, flow);
    relay_tune(flow->relay,
               &(struct relay_tuning){
                   .moved = on_moved,
                   .linger_ms = LIMIT_EGRESS_HALF_MS,
                   .queued_most = 0,
                   .may_splice = !flow->intercept && (!flow->service || flow->service->kind == EGRESS_ADDRESS),
                   .splice_share = &flow->sandbox->pipes,
               });
    stop_dialing(flow);
    flow->outside = outside;
    outside->events = &relay_events;
    outside->owner = flow->relay;
    stream_reset_on_close(outside, true);
    flow->guest->events = &relay_events;
    flow->guest->owner = flow->relay;
    flow->sandbox->made++;
    report_soon(flow->sandbox);
    timer_set(&flow->timer, loop_of(flow), LIMIT_EGRESS_IDLE_MS, on_idle);
    relay_join(flow->relay, flow->guest, flow->outside);
}

/* ---- dialing ---- */

/* The first was judged just now; the policy may be another when it is the turn of the next. */
static bool may_dial(void *context, const struct net_address *to)
{
    struct flow *flow = context;

    if (!net_address_eq(to, &flow->to) && !net_rule_allows(judge(flow, to, name_of(flow, to))))
        return false;
    flow->to = *to;
    return true;
}

/* `reason`: for the sandbox's log. */
static void fail_service(struct flow *flow, const char *reason)
{
    report_failure(flow->sandbox, FLOWS_SERVICE_FAILED, &flow->service->address, flow->port,
                   str_from(flow->service->name), reason);
    flow_reset(flow);
}

static void on_dialed(void *context, int fd, const struct err *err)
{
    struct flow *flow = context;

    if (fd >= 0) {
        begin_relaying(flow, stream_new(loop_of(flow), fd, LIMIT_EGRESS_BUFFER, &relay_events, NULL));
        return;
    }
    log_debug("sandbox %s: %s", flow->sandbox->id, err_text(err));
    if (flow->service) /* the address of its name inside: where it really is is the operator's business */
        fail_service(flow, err->message);
    else
        flow_reset(flow);
}

/* In state DIALING. */
static void dial(struct flow *flow)
{
    dialer_start(&flow->dialer, &(struct dialer_want){
                                    .loop = loop_of(flow),
                                    .addresses = flow->addresses,
                                    .count = flow->address_count,
                                    .port = flow->service ? flow->service->to_port : flow->port,
                                    .buffer_bytes = flow->buffer_bytes,
                                    .may_dial = may_dial,
                                    .done = on_dialed,
                                    .context = flow,
                                });
}

/* ---- dialing through a proxy ---- */

static void on_tunnel(void *context, struct stream *stream, const struct err *err)
{
    struct flow *flow = context;

    if (stream) {
        begin_relaying(flow, stream);
        return;
    }
    log_debug("sandbox %s: %s", flow->sandbox->id, err_text(err));
    if (err->kind == ERR_LIMIT) {
        flow_refuse(flow, FLOWS_TOO_MANY_QUESTIONS, &flow->to);
        return;
    }
    report_failure(flow->sandbox, FLOWS_PROXY, &flow->to, flow->port, shown_name(flow), err->message);
    flow_reset(flow);
}

enum net_rule egress_judge_for_all(const struct egress *egress, const struct net_address *to, uint16_t port)
{
    static const struct net_policy open = { .internet = true };
    const struct net_flow is = { .to = *to, .port = port, .is_host = egress_is_host(egress, to) };

    return net_judge(&open, &egress->config.ranges, &is);
}

/* A sandbox must not reach by way of its proxy's address what it could not reach otherwise. */
static bool may_dial_proxy(void *context, const struct net_address *address, uint16_t port)
{
    const struct flow *flow = context;

    return net_rule_allows(egress_judge_for_all(flow->sandbox->egress, address, port)) ||
           hole_is_open("address of the proxy");
}

/*
 * The proxy gets the name where we know it from our own answer, or where the name is what allows the connection: it may
 * be nearer to another of the name's addresses. Else it gets the address, which is what was judged.
 */
static struct str name_for_proxy(const struct flow *flow)
{
    struct str name = name_of(flow, &flow->to);
    bool is_ours = pins_have(&flow->sandbox->pins, name, &flow->to, now_ms(flow));

    return is_ours || judge(flow, &flow->to, name) == NET_RULE_ALLOW_NAME ? name : STR("");
}

static struct tunnel *open_tunnel(struct flow *flow, tunnel_done_fn *done, void *context)
{
    return tunnel_new(&(struct tunnel_want){
        .loop = loop_of(flow),
        .sandbox = flow->sandbox,
        .proxy = &flow->sandbox->policy.proxy,
        .tls = flow->sandbox->proxy_tls,
        .handshakes = &flow->sandbox->handshakes,
        .may_dial = may_dial_proxy,
        .dial_context = flow,
        .name = name_for_proxy(flow),
        .to = flow->to,
        .port = flow->port,
        .in_cap = LIMIT_EGRESS_BUFFER,
        .buffer_bytes = flow->buffer_bytes,
        .done = done,
        .context = context,
    });
}

/* ---- header rules ---- */

static uint16_t port_of_rules(const struct flow *flow)
{
    uint16_t port = flow->sandbox->egress->config.tls_port;

    return port ? port : 443;
}

/* The guest's first bytes could show that header rules apply. */
static bool may_have_rules(const struct flow *flow)
{
    return flow->sandbox->policy.transform_count && flow->port == port_of_rules(flow);
}

static const struct net_transform *rule_of(void *context)
{
    const struct flow *flow = context;

    return net_transform_for(&flow->sandbox->policy, str_from(flow->name));
}

/* flow->name is what the guest has shown. */
static bool shows_host_with_rules(struct flow *flow)
{
    const struct buf *in = &flow->guest->in;
    enum { TLS_HANDSHAKE = 22 };

    return may_have_rules(flow) && flow->name && in->len && in->data[0] == TLS_HANDSHAKE && rule_of(flow);
}

/*
 * For each request. An address may have become the host's since the connection was judged. flow->to is the address of the
 * present request, so that a new policy can cut it.
 */
static bool may_dial_again(void *context, const struct net_address *to)
{
    struct flow *flow = context;
    enum net_rule rule = judge(flow, to, str_from(flow->name));

    if (net_rule_allows(rule))
        flow->to = *to;
    else
        report_refusal(flow->sandbox, rule, to, flow->port, str_from(flow->name));
    return net_rule_allows(rule);
}

static void on_request_failed(void *context, const struct err *err)
{
    struct flow *flow = context;

    if (err->kind == ERR_DENIED && !flow->sandbox->policy.proxy.host.len)
        return; /* may_dial_again() has told it */
    report_failure(flow->sandbox, FLOWS_NO_ANSWER, &flow->to, flow->port, str_from(flow->name), err->message);
}

static struct tunnel *tunnel_of_request(void *context, tunnel_done_fn *done, void *done_context)
{
    return open_tunnel(context, done, done_context);
}

static bool may_accept(struct egress_sandbox *sandbox)
{
    static const struct quota_rule rule = { .per_s = LIMIT_EGRESS_ACCEPTS_S, .burst = LIMIT_EGRESS_INTERCEPTS };

    return quota_take(&rule, &sandbox->accepts, loop_now_ms(sandbox->egress->config.loop), NULL);
}

static void refuse_with_rules(struct flow *flow, const struct err *err)
{
    report_failure(flow->sandbox, FLOWS_TOO_FAST_WITH_RULES, &flow->to, flow->port, str_from(flow->name), err->message);
    flow_reset(flow);
}

/* The guest's side, a socket pair and the host's side are two places. A proxy takes another socket pair. */
static bool take_places_for_rules(struct flow *flow)
{
    uint32_t more = flow->sandbox->policy.proxy.host.len ? 2 : 1;

    if (!egress_take_places(flow->sandbox, more))
        return false;
    flow->places += more;
    return true;
}

/* The host is dialed when there is a request. */
static void relay_to_interceptor(struct flow *flow)
{
    struct egress_sandbox *sandbox = flow->sandbox;
    struct err err;
    int fd = -1;
    struct tls_client *trust = egress_roots(sandbox->egress, &err);

    if (sandbox->intercepts >= LIMIT_EGRESS_INTERCEPTS) {
        flow_refuse(flow, FLOWS_TOO_MANY_WITH_RULES, &flow->to);
        return;
    }
    if (!name_offers_http1(buf_str(&flow->guest->in))) { /* its handshake would fail, and nothing would say why */
        flow_refuse(flow, FLOWS_NO_HTTP1, &flow->to);
        return;
    }
    if (!may_accept(sandbox)) {
        (void)err_set(&err, ERR_LIMIT, "a sandbox may open %d connections to hosts with header rules per second",
                      LIMIT_EGRESS_ACCEPTS_S);
        refuse_with_rules(flow, &err);
        return;
    }
    if (!take_places_for_rules(flow)) {
        flow_refuse(flow, FLOWS_TOO_MANY_OF_ALL, &flow->to);
        return;
    }
    if (trust)
        flow->issued = issued_get(&sandbox->issued, loop_of(flow), sandbox->policy.seed, str_from(flow->name), &err);
    if (flow->issued)
        flow->intercept = intercept_new(
            &(struct intercept_want){
                .loop = loop_of(flow),
                .tls = flow->issued->tls,
                .trust = trust,
                .handshakes = &sandbox->handshakes,
                .name = flow->name,
                .addresses = flow->addresses,
                .address_count = flow->address_count,
                .is_late = flow->is_late,
                .port = flow->port,
                .buffer_bytes = flow->buffer_bytes,
                .rule = rule_of,
                .may_dial = may_dial_again,
                .failed = on_request_failed,
                .tunnel = sandbox->policy.proxy.host.len ? tunnel_of_request : NULL,
                .context = flow,
            },
            &fd, &err);
    if (!flow->intercept && err.kind == ERR_LIMIT) {
        refuse_with_rules(flow, &err);
        return;
    }
    if (!flow->intercept) {
        log_warn("sandbox %s: connection to %s: %s", sandbox->id, flow->name, err_text(&err));
        flow_reset(flow);
        return;
    }
    sandbox->intercepts++;
    begin_relaying(flow, stream_new(loop_of(flow), fd, LIMIT_EGRESS_BUFFER, &relay_events, NULL));
}

static bool may_dial_more(struct flow *flow)
{
    static const struct quota_rule rule = { .per_s = LIMIT_EGRESS_NEW_S, .burst = LIMIT_EGRESS_NEW_BURST };

    return quota_take(&rule, &flow->sandbox->dials, now_ms(flow), NULL) || hole_is_open("connections of a sandbox");
}

/* ---- mail ---- */

/* Nothing of the guest's has been read yet, so TLS can begin beneath its stream. */
static bool end_tls(struct flow *flow, struct err *err)
{
    struct egress_sandbox *sandbox = flow->sandbox;

    if (!net_policy_has_seed(&sandbox->policy))
        return err_set(err, ERR_UNAVAILABLE, "this sandbox was made before the server had mail: make a new one");
    if (flow->name_is_shown)
        return err_set(err, ERR_INVALID, "connect to the address that this name has in this sandbox");
    if (!may_accept(sandbox))
        return err_set(err, ERR_LIMIT, "a sandbox may open %d TLS connections to mail per second",
                       LIMIT_EGRESS_ACCEPTS_S);
    flow->issued =
        issued_get(&sandbox->issued, loop_of(flow), sandbox->policy.seed, str_from(flow->service->name), err);
    if (!flow->issued)
        return false;
    tls_accept(flow->issued->tls, flow->guest);
    return true;
}

/* In state DIALING. */
static void give_to_front(struct flow *flow)
{
    const struct egress_config *config = &flow->sandbox->egress->config;
    int pair[2];
    struct err err;

    if (flow->service->kind == EGRESS_MAIL_TLS && !end_tls(flow, &err)) {
        fail_service(flow, err.message);
        return;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) {
        fail_service(flow, "the server has too many connections: try again later");
        return;
    }
    bool given = config->guest && config->guest(config->context, flow->sandbox->id, pair[1]);
    fd_close(&pair[1]);
    if (!given) {
        fd_close(&pair[0]);
        fail_service(flow, "mail is starting or busy: try again in a second");
        return;
    }
    begin_relaying(flow, stream_new(loop_of(flow), pair[0], LIMIT_EGRESS_BUFFER, &relay_events, NULL));
}

static void begin_dialing(struct flow *flow)
{
    enter(flow, FLOW_DIALING);
    if (!may_dial_more(flow))
        flow_refuse(flow, FLOWS_TOO_FAST, &flow->original); /* `to` of a service is not the guest's to know */
    else if (flow->service && flow->service->kind != EGRESS_ADDRESS)
        give_to_front(flow);
    else if (flow->service)
        dial(flow);
    else if (flow->has_rules)
        relay_to_interceptor(flow);
    else if (flow->sandbox->policy.proxy.host.len && !hole_is_open("the proxy is the only way"))
        flow->tunnel = open_tunnel(flow, on_tunnel, flow);
    else
        dial(flow);
}

/* ---- names that stay inside ---- */

/* `any` is a service of the name that the guest wants to reach. */
static void begin_inside(struct flow *flow, const struct egress_service *any)
{
    struct egress_sandbox *sandbox = flow->sandbox;
    const struct egress_service *service = egress_service_on(sandbox->egress, any, flow->port);

    if (!service) {
        refuse_named(flow, FLOWS_NO_SERVICE, &flow->original, str_from(any->name));
        return;
    }
    if (sandbox->inside == LIMIT_EGRESS_INSIDE) {
        refuse_named(flow, FLOWS_TOO_MANY_INSIDE, &flow->original, str_from(any->name));
        return;
    }
    sandbox->inside++;
    flow->service = service;
    flow->to = flow->addresses[0] = flow->service->to;
    flow->address_count = 1;
    begin_dialing(flow);
}

/* ---- resolving ---- */

static uint16_t wanted_type(const struct flow *flow)
{
    return net_address_is_v4(&flow->original) ? DNS_A : DNS_AAAA;
}

/*
 * A program that speaks HTTP is told by an answer, which only the interceptor can give. `reason` is why it could not be
 * looked up, or empty: then there is no such name.
 */
static void give_up_name(struct flow *flow, struct str reason)
{
    flow->address_count = 0;
    flow->is_late = reason.len;
    if (flow->has_rules) {
        begin_dialing(flow);
        return;
    }
    if (flow->is_late)
        report_no_lookup(flow->sandbox, &flow->original, flow->port, str_from(flow->name), reason);
    flow_reset(flow);
}

static void add_address(struct flow *flow, const struct net_address *address)
{
    bool is_choice = net_address_eq(address, &flow->original);
    uint32_t at = flow->address_count;

    if (at == LIMIT_EGRESS_TRIES && !is_choice)
        return;
    at = MIN(at, LIMIT_EGRESS_TRIES - 1u);
    flow->addresses[at] = is_choice ? flow->addresses[0] : *address;
    if (is_choice)
        flow->addresses[0] = *address;
    flow->address_count = at + 1;
}

/*
 * The name may lead to several addresses, and each is judged: one that is private is not dialed because a name leads to
 * it. The guest's own choice is the first, if it is among them.
 */
static void on_resolved(void *context, const struct dns_answer *answer)
{
    struct flow *flow = context;
    struct str name = str_from(flow->name);
    struct net_address address, refused = flow->original;
    enum net_rule rule = NET_RULE_OPEN;

    flow->question = NULL;
    flow->address_count = 0;
    timer_clear(&flow->timer);
    for (uint32_t i = 0; i < answer->count; i++) {
        if (answer->records[i].type != wanted_type(flow) || !dns_record_address(&answer->records[i], &address))
            continue;
        enum net_rule its = judge(flow, &address, name);
        if (!net_rule_allows(its)) {
            rule = its;
            refused = address;
            continue;
        }
        pins_add(&flow->sandbox->pins, name, &address, answer->records[i].ttl_s, now_ms(flow));
        add_address(flow, &address);
    }
    if (flow->address_count) {
        flow->to = flow->addresses[0];
        begin_dialing(flow);
    } else if (rule == NET_RULE_OPEN) {
        give_up_name(flow, answer->code == DNS_SERVER_FAILURE ? answer->reason : STR(""));
    } else {
        refuse_named(flow, rule, &refused, name); /* where this name leads */
    }
}

static void on_resolve_late(struct timer *timer)
{
    struct flow *flow = container_of(timer, struct flow, timer);

    questions_cancel(take_ptr(&flow->question));
    give_up_name(flow, STR("there was no answer in time"));
}

static void begin_resolving(struct flow *flow)
{
    struct egress_sandbox *sandbox = flow->sandbox;
    const struct egress_service *inside = egress_service_named(sandbox->egress, str_from(flow->name));

    if (inside) { /* an allowed name decides where, and this one leads to a service */
        begin_inside(flow, inside);
        return;
    }
    enum net_rule rule = net_judge_private(&sandbox->policy, &sandbox->egress->config.ranges, str_from(flow->name));

    if (!net_rule_allows(rule)) {
        flow_refuse(flow, rule, &flow->original);
        return;
    }
    enter(flow, FLOW_RESOLVING);
    timer_set(&flow->timer, loop_of(flow), LIMIT_EGRESS_RESOLVE_MS, on_resolve_late);
    flow->question = questions_ask(sandbox, str_from(flow->name), wanted_type(flow), on_resolved, flow);
    if (!flow->question)
        flow_refuse(flow, FLOWS_TOO_MANY_QUESTIONS, &flow->original);
}

/* ---- naming ---- */

/*
 * With header rules the addresses that the sandbox was told for the name will do. A program cannot try the others itself: its
 * connection is to the interceptor, and was accepted.
 */
static void dial_pinned(struct flow *flow)
{
    struct net_address address;

    for (uint32_t at = 0; pins_next_address(&flow->sandbox->pins, str_from(flow->name), now_ms(flow), &at, &address);)
        if (!net_address_eq(&address, &flow->original))
            add_address(flow, &address);
    begin_dialing(flow);
}

/* All that can be known is known. */
static void decide(struct flow *flow)
{
    struct str name = name_of(flow, &flow->original);
    enum net_rule rule = judge(flow, &flow->original, name);

    timer_clear(&flow->timer);
    if (!net_rule_allows(rule)) {
        flow_refuse(flow, rule, &flow->original);
        return;
    }
    flow->has_rules = shows_host_with_rules(flow);
    if (rule == NET_RULE_ALLOW_NAME && !flow->name)
        flow->name = str_copy(name);
    if ((rule == NET_RULE_ALLOW_NAME || flow->has_rules) && !hole_is_open("a name decides where") &&
        !pins_have(&flow->sandbox->pins, str_from(flow->name), &flow->original, now_ms(flow)))
        begin_resolving(flow);
    else if (flow->has_rules)
        dial_pinned(flow);
    else
        begin_dialing(flow);
}

static void on_name_late(struct timer *timer)
{
    struct flow *flow = container_of(timer, struct flow, timer);

    stream_read(flow->guest, false);
    decide(flow);
}

static void on_guest_input(struct stream *stream)
{
    struct flow *flow = stream->owner;
    char name[LIMIT_NET_NAME_BYTES + 1];

    switch (name_find(&flow->search, buf_str(&stream->in), name)) {
    case NAME_MORE:
        if (!flow->has_spoken) /* then it has the whole time */
            timer_set(&flow->timer, loop_of(flow), LIMIT_EGRESS_NAME_MS, on_name_late);
        flow->has_spoken = true;
        return;
    case NAME_FOUND:
        flow->name = str_copy(str_from(name));
        flow->name_is_shown = true;
        break;
    case NAME_NONE:
        break;
    }
    stream_read(stream, false);
    decide(flow);
}

static bool server_may_speak_first(uint16_t port)
{
    return port != 80 && port != 443;
}

static void begin_naming(struct flow *flow)
{
    bool has_pin = pins_any_name(&flow->sandbox->pins, &flow->original, now_ms(flow)).len;
    uint64_t patience_ms = has_pin && server_may_speak_first(flow->port) ? LIMIT_EGRESS_QUIET_MS : LIMIT_EGRESS_NAME_MS;

    enter(flow, FLOW_NAMING);
    timer_set(&flow->timer, loop_of(flow), patience_ms, on_name_late);
    stream_read(flow->guest, true);
}

/* ---- the guest's side, until it is the relay's ---- */

static void on_guest_end(struct stream *stream, const struct err *err)
{
    struct flow *flow = stream->owner;

    if (err)
        flow_reset(flow);
    else if (flow->state == FLOW_NAMING)
        decide(flow); /* it has said all, and not its name; the relay is told of the end, too */
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

static void begin(struct flow *flow)
{
    const struct egress *egress = flow->sandbox->egress;
    const struct net_flow is = described(flow, &flow->original, STR(""));

    if (!flow->sandbox->has_policy) {
        flow_refuse(flow, FLOWS_NO_POLICY, &flow->original);
        return;
    }
    const struct egress_service *inside = egress_service_at(egress, &flow->original);
    if (inside) {
        begin_inside(flow, inside);
        return;
    }
    pins_use(&flow->sandbox->pins, &flow->original, now_ms(flow));
    enum net_rule rule = net_judge(&flow->sandbox->policy, &egress->config.ranges, &is);
    if (net_name_matters(&flow->sandbox->policy, &egress->config.ranges, &is) ||
        (net_rule_allows(rule) && may_have_rules(flow)))
        begin_naming(flow);
    else if (net_rule_allows(rule))
        begin_dialing(flow);
    else
        flow_refuse(flow, rule, &flow->original);
}

void flow_accept(struct egress_sandbox *sandbox, int fd)
{
    struct egress *egress = sandbox->egress;
    struct net_address to = { { 0 } };
    uint16_t port = 0;
    bool is_diverted = egress->config.original(fd, &to, &port);
    int buffer_bytes = socket_budget(sandbox->open + 1);

    /* A guest that does not read, or whose outside does not, could have the kernel hold megabytes for each of them. */
    socket_limit(fd, buffer_bytes);
    if (is_diverted && port == NETWORK_DNS_PORT) {
        questions_accept(sandbox, fd, &to);
        return;
    }
    struct flow *flow = NEW(struct flow);
    *flow = (struct flow){
        .sandbox = sandbox,
        .places = 1,
        .original = to,
        .to = to,
        .addresses = { to },
        .address_count = 1,
        .port = port,
        .buffer_bytes = buffer_bytes,
    };
    flow->guest = stream_new(egress->config.loop, fd, LIMIT_EGRESS_BUFFER, &guest_events, flow);
    stream_reset_on_close(flow->guest, true);
    queue_join(&sandbox->flows, &flow->link);
    sandbox->open++;
    if (is_diverted || hole_is_open("only what was diverted"))
        begin(flow);
    else
        flow_refuse(flow, FLOWS_NOT_DIVERTED, &flow->original);
}

/* ---- all of a sandbox ---- */

/* Those that are still being named or resolved are judged by the new policy anyway. */
void flows_judge_again(struct egress_sandbox *sandbox)
{
    struct queue_link *next;

    if (hole_is_open("a new policy cuts"))
        return;
    for (struct queue_link *link = sandbox->flows.first; link; link = next) {
        struct flow *flow = container_of(link, struct flow, link);
        next = link->next;
        if (flow->service || (flow->state != FLOW_DIALING && flow->state != FLOW_RELAYING))
            continue;
        enum net_rule rule = judge(flow, &flow->to, name_of(flow, &flow->to));
        if (!net_rule_allows(rule))
            flow_refuse(flow, rule, &flow->to);
    }
}

void flows_reset_outside(struct egress_sandbox *sandbox)
{
    struct queue_link *next;

    for (struct queue_link *link = sandbox->flows.first; link; link = next) {
        struct flow *flow = container_of(link, struct flow, link);
        next = link->next;
        if (!flow->service)
            flow_reset(flow);
    }
}

void flows_reset(struct egress_sandbox *sandbox)
{
    while (sandbox->flows.first)
        flow_reset(container_of(sandbox->flows.first, struct flow, link));
}
