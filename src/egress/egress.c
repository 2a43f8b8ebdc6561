/*
 * The sandboxes that egress knows. Sockets come from keeper and policies from front, in any order: a policy may be here
 * before the sockets, and is kept for LIMIT_EGRESS_STRANGER_MS. The other way round nothing is forgotten: keeper reports
 * the end of every sandbox whose sockets it has sent.
 */
#include "egress/egress.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
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
    for (int i = 0; i < EGRESS_SOCKETS; i++)
        outbound->sockets[i] = -1;
    arena_init(&outbound->arena);
    (void)map_put(&egress->sandboxes, str_from(outbound->id), outbound);
    return outbound;
}

static void leave_strangers(struct outbound *outbound)
{
    if (outbound->stranger.in)
        outbound->egress->stranger_count--;
    queue_leave(&outbound->stranger);
}

static void outbound_free(struct outbound *outbound)
{
    (void)map_remove(&outbound->egress->sandboxes, str_from(outbound->id));
    leave_strangers(outbound);
    for (int i = 0; i < EGRESS_SOCKETS; i++)
        fd_close(&outbound->sockets[i]);
    arena_done(&outbound->arena);
    free(outbound);
}

/* ---- policies without sockets ---- */

static struct outbound *oldest_stranger(struct egress *egress)
{
    return egress->strangers.first ? container_of(egress->strangers.first, struct outbound, stranger) : NULL;
}

static void on_forget(struct timer *timer)
{
    struct egress *egress = container_of(timer, struct egress, forget);
    uint64_t now_ms = loop_now_ms(egress->config.loop);
    struct outbound *oldest;

    while ((oldest = oldest_stranger(egress)) && now_ms - oldest->since_ms >= LIMIT_EGRESS_STRANGER_MS)
        outbound_free(oldest);
    if (oldest)
        timer_set(timer, egress->config.loop, oldest->since_ms + LIMIT_EGRESS_STRANGER_MS - now_ms, on_forget);
}

static void join_strangers(struct outbound *outbound)
{
    struct egress *egress = outbound->egress;

    leave_strangers(outbound);
    if (egress->stranger_count == LIMIT_SANDBOXES)
        outbound_free(oldest_stranger(egress));
    outbound->since_ms = loop_now_ms(egress->config.loop);
    queue_join(&egress->strangers, &outbound->stranger);
    egress->stranger_count++;
    if (!timer_is_set(&egress->forget))
        timer_set(&egress->forget, egress->config.loop, LIMIT_EGRESS_STRANGER_MS, on_forget);
}

/* ---- messages ---- */

void egress_network(struct egress *egress, const char *id, int sockets[EGRESS_SOCKETS])
{
    struct outbound *outbound = find_or_make(egress, id);

    leave_strangers(outbound);
    for (int i = 0; i < EGRESS_SOCKETS; i++) {
        fd_close(&outbound->sockets[i]);
        outbound->sockets[i] = take_fd(&sockets[i]);
    }
    outbound->has_network = true;
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
    struct outbound *outbound = find_or_make(egress, id);
    arena_done(&outbound->arena);
    outbound->arena = arena;
    outbound->policy = policy;
    outbound->has_policy = true;
    if (!outbound->has_network)
        join_strangers(outbound);
    return true;
}

void egress_exited(struct egress *egress, const char *id)
{
    struct outbound *outbound = map_get(&egress->sandboxes, str_from(id));

    if (outbound)
        outbound_free(outbound);
}

/* ---- life ---- */

struct egress *egress_new(const struct egress_config *config)
{
    struct egress *egress = NEW(struct egress);

    egress->config = *config;
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
    map_done(&egress->sandboxes);
    free(egress);
}
