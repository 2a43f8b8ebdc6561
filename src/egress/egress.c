/*
 * Theory of operation
 *
 * The sandboxes that egress knows. Sockets come from keeper and policies from front, in any order: a policy may be here
 * before the sockets, and is kept for LIMIT_EGRESS_EARLY_MS. The other way round nothing is forgotten: keeper reports
 * the end of every sandbox that it has told us of. It does so without sockets while it cannot make them, which may take
 * as long as a guest likes. A policy that is late or was refused must not let programs hang: after LIMIT_EGRESS_POLICY_MS
 * connections and questions are accepted and refused, until one comes.
 *
 * Fair shares: a sandbox may have LIMIT_EGRESS_FLOWS connections, and not more places (inside.h) than are still free for all.
 * So one greedy sandbox gets half of them at most, two get a third each, and the next one still finds some.
 */
#include "egress/egress.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/fd.h"
#include "base/hole.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pack.h"
#include "egress/inside.h"

static struct outbound *find_or_make(struct egress *egress, const char *id)
{
    struct outbound *outbound = map_get(&egress->sandboxes, str_from(id));

    if (outbound)
        return outbound;
    outbound = NEW(struct outbound);
    outbound->egress = egress;
    memcpy(outbound->id, id, strlen(id) + 1);
    for (int i = 0; i < DIVERT_KINDS; i++)
        outbound->sockets[i] = -1;
    arena_init(&outbound->arena);
    handshakes_init(&outbound->handshakes, egress->config.loop);
    (void)map_put(&egress->sandboxes, str_from(outbound->id), outbound);
    return outbound;
}

static void leave_early(struct outbound *outbound)
{
    if (outbound->early.in)
        outbound->egress->early_count--;
    queue_leave(&outbound->early);
}

static void close_sockets(struct outbound *outbound)
{
    for (size_t i = 0; i < COUNT_OF(outbound->listeners); i++)
        listener_free(take_ptr(&outbound->listeners[i]));
    timer_clear(&outbound->late);
    questions_reset(outbound);
    for (int i = 0; i < DIVERT_KINDS; i++)
        fd_close(&outbound->sockets[i]);
}

static void outbound_dispose(void *object)
{
    struct outbound *outbound = object;

    pins_done(&outbound->pins);
    tls_client_unref(outbound->own_tls);
    issued_done(&outbound->issued);
    arena_done(&outbound->arena);
    free(outbound);
}

static void outbound_free(struct outbound *outbound)
{
    (void)map_remove(&outbound->egress->sandboxes, str_from(outbound->id));
    leave_early(outbound);
    close_sockets(outbound);
    flows_reset(outbound);
    resolver_asker_done(outbound->egress->config.resolver, &outbound->asker);
    handshakes_done(&outbound->handshakes);
    timer_clear(&outbound->resume);
    report_last(outbound);
    loop_retire(outbound->egress->config.loop, outbound, outbound_dispose);
}

/* ---- accepting ---- */

bool egress_take_places(struct outbound *outbound, uint32_t count)
{
    struct egress *egress = outbound->egress;
    uint32_t left = egress->config.flows_max - egress->places;

    if (outbound->places + count > left)
        return false;
    outbound->places += count;
    egress->places += count;
    return true;
}

void egress_give_places(struct outbound *outbound, uint32_t count)
{
    outbound->places -= count;
    outbound->egress->places -= count;
}

static void on_accepted(void *context, int fd)
{
    struct outbound *outbound = context;
    struct egress *egress = outbound->egress;

    bool may_have_more = outbound->open < LIMIT_EGRESS_FLOWS || hole_is_open("connections of a sandbox");
    if (may_have_more && egress_take_places(outbound, 1)) {
        flow_accept(outbound, fd);
        return;
    }
    struct net_address to;
    uint16_t port;
    bool is_known = egress->config.original(fd, &to, &port);
    if (is_known)
        report_refusal(outbound, may_have_more ? FLOWS_TOO_MANY_OF_ALL : FLOWS_TOO_MANY, &to, port, STR(""));
    else
        report_refusal(outbound, FLOWS_NOT_DIVERTED, NULL, 0, STR(""));
    socket_reset(fd);
}

/* Without a policy everything is refused: FLOWS_NO_POLICY. */
static void listen_now(struct outbound *outbound)
{
    timer_clear(&outbound->late);
    questions_listen(outbound);
    for (int i = DIVERT_TCP4; i <= DIVERT_TCP6; i++)
        if (outbound->sockets[i] >= 0)
            outbound->listeners[i] =
                listener_new(outbound->egress->config.loop, take_fd(&outbound->sockets[i]), on_accepted, outbound);
}

static void on_policy_late(struct timer *timer)
{
    struct outbound *outbound = container_of(timer, struct outbound, late);

    log_warn("sandbox %s has no network policy yet: its connections are refused", outbound->id);
    listen_now(outbound);
}

/* ---- policies without sockets ---- */

static struct outbound *oldest_early(struct egress *egress)
{
    return egress->early.first ? container_of(egress->early.first, struct outbound, early) : NULL;
}

static void on_forget(struct timer *timer)
{
    struct egress *egress = container_of(timer, struct egress, forget);
    uint64_t now_ms = loop_now_ms(egress->config.loop);
    struct outbound *oldest;

    while ((oldest = oldest_early(egress)) && now_ms - oldest->since_ms >= LIMIT_EGRESS_EARLY_MS)
        outbound_free(oldest);
    if (oldest)
        timer_set(timer, egress->config.loop, oldest->since_ms + LIMIT_EGRESS_EARLY_MS - now_ms, on_forget);
}

static void join_early(struct outbound *outbound)
{
    struct egress *egress = outbound->egress;

    leave_early(outbound);
    if (egress->early_count == LIMIT_SANDBOXES)
        outbound_free(oldest_early(egress));
    outbound->since_ms = loop_now_ms(egress->config.loop);
    queue_join(&egress->early, &outbound->early);
    egress->early_count++;
    if (!timer_is_set(&egress->forget))
        timer_set(&egress->forget, egress->config.loop, LIMIT_EGRESS_EARLY_MS, on_forget);
}

/* ---- messages ---- */

void egress_network(struct egress *egress, const char *id, int sockets[DIVERT_KINDS])
{
    struct outbound *outbound = find_or_make(egress, id);

    leave_early(outbound);
    close_sockets(outbound);
    for (int i = 0; i < DIVERT_KINDS; i++)
        outbound->sockets[i] = take_fd(&sockets[i]);
    outbound->has_network = true;
    if (outbound->has_policy)
        listen_now(outbound);
    else
        timer_set(&outbound->late, egress->config.loop, LIMIT_EGRESS_POLICY_MS, on_policy_late);
}

struct tls_client *egress_roots(struct egress *egress, struct err *err)
{
    if (egress->config.roots.len == 0)
        (void)err_set(err, ERR_UNAVAILABLE, "this server has no certificates to trust: install ca-certificates");
    else if (!egress->roots)
        egress->roots =
            tls_client_new(egress->config.loop, hole_is_open("hosts are verified") ? NULL : &egress->config.roots, err);
    return egress->roots;
}

/* The policy's own certificate, which is the caller's then; else the host's. */
static struct tls_client *trust_for_proxy(struct egress *egress, const struct net_proxy *proxy,
                                          struct tls_client **out_own, struct err *err)
{
    if (proxy->ca_pem.len == 0)
        return egress_roots(egress, err);
    *out_own = tls_client_new(egress->config.loop, &proxy->ca_pem, err);
    if (!*out_own)
        (void)err_set(err, ERR_INVALID, "the egress proxy's CA certificate cannot be read");
    return *out_own;
}

/* Header rules need an authority that the sandbox trusts, and certificates to verify the hosts by. */
static bool check_rules(struct egress *egress, const struct net_policy *policy, struct err *err)
{
    if (!net_policy_has_seed(policy))
        return err_set(err, ERR_INVALID, "header rules without a seed for the sandbox's authority");
    return egress_roots(egress, err);
}

bool egress_policy(struct egress *egress, const char *id, struct str packed, struct err *err)
{
    struct unpack in = unpack_from(packed);
    struct net_policy policy;
    struct arena arena;

    arena_init(&arena);
    net_policy_unpack(&in, &arena, &policy);
    if (!unpack_done(&in, err) || !net_policy_check(&policy, err)) {
        arena_done(&arena);
        return err_wrap(err, "policy of sandbox %s", id);
    }
    struct tls_client *proxy_tls = NULL, *own_tls = NULL;
    if (policy.proxy.tls && !(proxy_tls = trust_for_proxy(egress, &policy.proxy, &own_tls, err))) {
        arena_done(&arena);
        return err_wrap(err, "policy of sandbox %s", id);
    }
    if (policy.transform_count && !check_rules(egress, &policy, err)) {
        tls_client_unref(own_tls);
        arena_done(&arena);
        return err_wrap(err, "policy of sandbox %s", id);
    }
    struct outbound *outbound = find_or_make(egress, id);
    if (outbound->has_policy && net_proxy_eq(&outbound->policy.proxy, &policy.proxy)) {
        tls_client_unref(own_tls); /* tunnels under way use the old one */
    } else {
        /* Connections must not go on around a new proxy, nor through one that is not wanted any more. */
        flows_reset_outside(outbound);
        tls_client_unref(outbound->own_tls);
        outbound->own_tls = own_tls;
        outbound->proxy_tls = proxy_tls;
    }
    arena_done(&outbound->arena);
    outbound->arena = arena;
    outbound->policy = policy;
    outbound->policy_number++;
    outbound->has_policy = true;
    if (!outbound->has_network) {
        join_early(outbound);
        return true;
    }
    flows_judge_again(outbound);
    listen_now(outbound);
    return true;
}

void egress_exited(struct egress *egress, const char *id)
{
    struct outbound *outbound = map_get(&egress->sandboxes, str_from(id));

    if (outbound)
        outbound_free(outbound);
}

/* ---- life ---- */

uint32_t egress_flows_max(void)
{
    struct rlimit limit = { 0 };

    static_assert(LIMIT_EGRESS_SOCKETS == DIVERT_KINDS, "base/ cannot know io/divert.h");
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t flows = limit.rlim_cur > LIMIT_EGRESS_RESERVE ? (limit.rlim_cur - LIMIT_EGRESS_RESERVE) / 2 : 0;
    return (uint32_t)MIN(MAX(flows, (rlim_t)LIMIT_EGRESS_FLOWS_LEAST), (rlim_t)UINT32_MAX);
}

struct egress *egress_new(const struct egress_config *config)
{
    struct egress *egress = NEW(struct egress);

    egress->config = *config;
    if (!config->original)
        egress->config.original = socket_original;
    egress->rate_rule = (struct quota_rule){ .per_s = (uint32_t)MIN(config->bytes_per_s / 1024, (uint64_t)UINT32_MAX) };
    egress->rate_rule.burst = MAX(egress->rate_rule.per_s / 4, 64u); /* a quarter of a second */
    egress->probe = host_probe_open();
    map_init(&egress->sandboxes);
    return egress;
}

void egress_free(struct egress *egress)
{
    if (!egress)
        return;
    struct outbound *outbound;
    for (size_t i = 0; (outbound = map_next(&egress->sandboxes, &i)); i = 0)
        outbound_free(outbound);
    timer_clear(&egress->forget);
    timer_clear(&egress->report);
    host_probe_close(&egress->probe);
    map_done(&egress->sandboxes);
    tls_client_unref(egress->roots);
    free(egress);
}
