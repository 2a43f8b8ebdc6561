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
 *
 * A connection or a question costs something even if it is refused. So both take from one quota (LIMIT_EGRESS_TAKEN_S) when
 * they are accepted or read; without credit all sockets of the sandbox leave the loop until there is some again.
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

static struct egress_sandbox *find_or_make(struct egress *egress, const char *id)
{
    struct egress_sandbox *sandbox = map_get(&egress->sandboxes, str_from(id));

    if (sandbox)
        return sandbox;
    sandbox = NEW(struct egress_sandbox);
    sandbox->egress = egress;
    memcpy(sandbox->id, id, strlen(id) + 1);
    for (int i = 0; i < DIVERT_KINDS; i++)
        sandbox->sockets[i] = -1;
    arena_init(&sandbox->arena);
    handshakes_init(&sandbox->handshakes, egress->config.loop);
    (void)map_put(&egress->sandboxes, str_from(sandbox->id), sandbox);
    return sandbox;
}

static void leave_early(struct egress_sandbox *sandbox)
{
    if (sandbox->early.in)
        sandbox->egress->early_count--;
    queue_leave(&sandbox->early);
}

static void close_sockets(struct egress_sandbox *sandbox)
{
    for (size_t i = 0; i < COUNT_OF(sandbox->listeners); i++)
        listener_free(take_ptr(&sandbox->listeners[i]));
    timer_clear(&sandbox->late);
    timer_clear(&sandbox->pause);
    questions_reset(sandbox);
    fd_close_each(sandbox->sockets, DIVERT_KINDS);
}

static void egress_sandbox_dispose(void *object)
{
    struct egress_sandbox *sandbox = object;

    pins_done(&sandbox->pins);
    tls_client_unref(sandbox->own_tls);
    issued_done(&sandbox->issued);
    arena_done(&sandbox->arena);
    free(sandbox);
}

static void egress_sandbox_free(struct egress_sandbox *sandbox)
{
    (void)map_remove(&sandbox->egress->sandboxes, str_from(sandbox->id));
    leave_early(sandbox);
    close_sockets(sandbox);
    flows_reset(sandbox);
    resolver_asker_done(sandbox->egress->config.resolver, &sandbox->asker);
    handshakes_done(&sandbox->handshakes);
    timer_clear(&sandbox->resume);
    report_last(sandbox);
    loop_retire(sandbox->egress->config.loop, sandbox, egress_sandbox_dispose);
}

/* ---- accepting ---- */

bool egress_take_places(struct egress_sandbox *sandbox, uint32_t count)
{
    struct egress *egress = sandbox->egress;
    uint32_t left = egress->config.flows_max - egress->places;

    if (sandbox->places + count > left)
        return false;
    sandbox->places += count;
    egress->places += count;
    return true;
}

void egress_give_places(struct egress_sandbox *sandbox, uint32_t count)
{
    sandbox->places -= count;
    sandbox->egress->places -= count;
}

static void take_in(struct egress_sandbox *sandbox, bool on)
{
    for (size_t i = 0; i < COUNT_OF(sandbox->listeners); i++)
        if (sandbox->listeners[i])
            listener_accept(sandbox->listeners[i], on);
    questions_read(sandbox, on);
}

static void on_credit(struct timer *timer)
{
    take_in(container_of(timer, struct egress_sandbox, pause), true);
}

void egress_take_one(struct egress_sandbox *sandbox)
{
    static const struct quota_rule rule = { .per_s = LIMIT_EGRESS_TAKEN_S, .burst = LIMIT_EGRESS_TAKEN_BURST };
    struct loop *loop = sandbox->egress->config.loop;
    uint64_t now_ms = loop_now_ms(loop);

    quota_spend(&rule, &sandbox->taken, 1000, now_ms);
    uint64_t wait_ms = quota_wait_ms(&rule, &sandbox->taken, now_ms);
    if (wait_ms == 0 || hole_is_open("what is taken in of a sandbox"))
        return;
    report_refusal(sandbox, FLOWS_PAUSED, NULL, 0, STR(""));
    timer_set(&sandbox->pause, loop, MAX(wait_ms, (uint64_t)LIMIT_EGRESS_PAUSE_MS), on_credit);
    take_in(sandbox, false);
}

static void on_accepted(void *context, int fd)
{
    struct egress_sandbox *sandbox = context;
    struct egress *egress = sandbox->egress;

    egress_take_one(sandbox);
    bool may_have_more = sandbox->open < LIMIT_EGRESS_FLOWS || hole_is_open("connections of a sandbox");
    if (may_have_more && egress_take_places(sandbox, 1)) {
        flow_accept(sandbox, fd);
        return;
    }
    struct net_address to;
    uint16_t port;
    bool is_known = egress->config.original(fd, &to, &port);
    if (is_known)
        report_refusal(sandbox, may_have_more ? FLOWS_TOO_MANY_OF_ALL : FLOWS_TOO_MANY, &to, port, STR(""));
    else
        report_refusal(sandbox, FLOWS_NOT_DIVERTED, NULL, 0, STR(""));
    socket_reset(fd);
}

/* Without a policy everything is refused: FLOWS_NO_POLICY. */
static void listen_now(struct egress_sandbox *sandbox)
{
    timer_clear(&sandbox->late);
    questions_listen(sandbox);
    for (int i = DIVERT_TCP4; i <= DIVERT_TCP6; i++)
        if (sandbox->sockets[i] >= 0)
            sandbox->listeners[i] = listener_new(sandbox->egress->config.loop, take_fd(&sandbox->sockets[i]),
                                                 LIMIT_EGRESS_TURN, on_accepted, sandbox);
}

static void on_policy_late(struct timer *timer)
{
    struct egress_sandbox *sandbox = container_of(timer, struct egress_sandbox, late);

    /* One in front's pool has none until a create takes it. If a connection comes before that, its refusal is reported. */
    log_debug("sandbox %s has no network policy yet: its connections are refused", sandbox->id);
    listen_now(sandbox);
}

/* ---- policies without sockets ---- */

static struct egress_sandbox *oldest_early(struct egress *egress)
{
    return egress->early.first ? container_of(egress->early.first, struct egress_sandbox, early) : NULL;
}

static void on_forget(struct timer *timer)
{
    struct egress *egress = container_of(timer, struct egress, forget);
    uint64_t now_ms = loop_now_ms(egress->config.loop);
    struct egress_sandbox *oldest;

    while ((oldest = oldest_early(egress)) && now_ms - oldest->since_ms >= LIMIT_EGRESS_EARLY_MS)
        egress_sandbox_free(oldest);
    if (oldest)
        timer_set(timer, egress->config.loop, oldest->since_ms + LIMIT_EGRESS_EARLY_MS - now_ms, on_forget);
}

static void join_early(struct egress_sandbox *sandbox)
{
    struct egress *egress = sandbox->egress;

    leave_early(sandbox);
    if (egress->early_count == LIMIT_SANDBOXES)
        egress_sandbox_free(oldest_early(egress));
    sandbox->since_ms = loop_now_ms(egress->config.loop);
    queue_join(&egress->early, &sandbox->early);
    egress->early_count++;
    if (!timer_is_set(&egress->forget))
        timer_set(&egress->forget, egress->config.loop, LIMIT_EGRESS_EARLY_MS, on_forget);
}

/* ---- messages ---- */

void egress_network(struct egress *egress, const char *id, int sockets[DIVERT_KINDS])
{
    struct egress_sandbox *sandbox = find_or_make(egress, id);

    leave_early(sandbox);
    close_sockets(sandbox);
    for (int i = 0; i < DIVERT_KINDS; i++)
        sandbox->sockets[i] = take_fd(&sockets[i]);
    sandbox->has_network = true;
    if (sandbox->has_policy)
        listen_now(sandbox);
    else
        timer_set(&sandbox->late, egress->config.loop, LIMIT_EGRESS_POLICY_MS, on_policy_late);
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

/* As before its first policy: everything is refused, also the operator's services and mail. */
static void shut(struct egress *egress, const char *id)
{
    struct egress_sandbox *sandbox = map_get(&egress->sandboxes, str_from(id));

    if (sandbox && !sandbox->has_network) {
        egress_sandbox_free(sandbox);
    } else if (sandbox) {
        sandbox->has_policy = false;
        flows_reset(sandbox);
    }
}

bool egress_policy(struct egress *egress, const char *id, struct str packed, struct err *err)
{
    struct unpack in = unpack_from(packed);
    struct net_policy policy;
    struct arena arena;

    if (packed.len == 0) {
        shut(egress, id);
        return true;
    }
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
    struct egress_sandbox *sandbox = find_or_make(egress, id);
    if (sandbox->has_policy && net_proxy_eq(&sandbox->policy.proxy, &policy.proxy)) {
        tls_client_unref(own_tls); /* tunnels under way use the old one */
    } else {
        /* Connections must not go on around a new proxy, nor through one that is not wanted any more. */
        flows_reset_outside(sandbox);
        tls_client_unref(sandbox->own_tls);
        sandbox->own_tls = own_tls;
        sandbox->proxy_tls = proxy_tls;
    }
    arena_done(&sandbox->arena);
    sandbox->arena = arena;
    sandbox->policy = policy;
    sandbox->policy_number++;
    sandbox->has_policy = true;
    if (!sandbox->has_network) {
        join_early(sandbox);
        return true;
    }
    flows_judge_again(sandbox);
    listen_now(sandbox);
    return true;
}

void egress_exited(struct egress *egress, const char *id)
{
    struct egress_sandbox *sandbox = map_get(&egress->sandboxes, str_from(id));

    if (sandbox)
        egress_sandbox_free(sandbox);
}

/* ---- life ---- */

uint32_t egress_flows_max(uint32_t sandboxes_max)
{
    const rlim_t reserve = LIMIT_EGRESS_RESERVE + (rlim_t)LIMIT_EGRESS_SOCKETS * sandboxes_max;
    struct rlimit limit = { 0 };

    static_assert(LIMIT_EGRESS_SOCKETS == DIVERT_KINDS, "base/ cannot know io/divert.h");
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t flows = limit.rlim_cur > reserve ? (limit.rlim_cur - reserve) / 2 : 0;
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
    struct egress_sandbox *sandbox;
    for (size_t i = 0; (sandbox = map_next(&egress->sandboxes, &i)); i = 0)
        egress_sandbox_free(sandbox);
    timer_clear(&egress->forget);
    timer_clear(&egress->report);
    host_probe_close(&egress->probe);
    map_done(&egress->sandboxes);
    tls_client_unref(egress->roots);
    free(egress);
}
