/*
 * network.c - what a sandbox may reach, and what it was refused.
 *
 * A sandbox has its policy in three places: in the store, in memory (packed), and in egress, which judges by it. A change
 * goes through them in this order. If front dies in between, the next front reads the store and sends every policy to
 * egress again; it does so too when egress was restarted. Egress lets no connection out for a sandbox whose policy it
 * does not have, so an old policy never outlives a restart.
 *
 * Egress reports refusals, which a guest can cause as fast as it likes. Each sandbox has a budget of log lines, and of
 * events, which are on disk; the rest is counted and the count is told.
 */
#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "io/tls_authority.h"
#include "sandbox/guest_client.h"
#include "sandbox/inside.h"

enum {
    CHANGE_MS = 2000,       /* how long a change waits for the one before it; longer only if egress does not answer */
    EVENT_PAUSE_MS = 60000, /* between the first two events about refusals of one sandbox; twice as long each time… */
    EVENT_PAUSE_MAX_MS = 3600000, /* …up to this, so that a guest cannot fill the store: 30 events a day */
    EVENT_REFUSALS = 4,           /* kinds of refusals that one event lists… */
    EVENT_TEXT_BYTES = 256,       /* …with so much of each text */
    NOTES_MOST = 256,             /* events that wait for a worker; past it they are dropped */
};

static_assert((int)NET_SEED_BYTES == (int)TLS_SEED_BYTES, "a policy has the seed of an authority");

/* ---- the policy ---- */

void sandbox_keep_policy(struct sandbox *sb, const struct net_policy *network)
{
    auto_buf struct buf packed = buf_make(NULL, LIMIT_NET_POLICY_BYTES);

    net_policy_pack(&packed, network);
    sb->policy_len = packed.len;
    sb->policy = take_ptr(&packed.data);
}

bool sandbox_read_policy(const struct sandbox *sb, struct arena *arena, struct net_policy *out)
{
    struct unpack in = unpack_from(str_of(sb->policy, sb->policy_len));
    struct err ignored; /* it was checked when it came */

    *out = (struct net_policy){ 0 };
    if (!sb->policy)
        return false;
    net_policy_unpack(&in, arena, out);
    return unpack_done(&in, &ignored);
}

bool sandbox_reaches_out(const struct net_policy *network)
{
    if (network->allow_count || network->name_count)
        return true;
    for (uint32_t i = 0; i < network->deny_count; i++)
        if (net_range_is_everything(&network->deny[i]))
            return false;
    return network->internet;
}

/*
 * Sandboxes without header rules share an authority, which egress uses for mail's names in all of them; no sandbox has its
 * private key. A sandbox with header rules has one of its own, and gets it with the first of them. One that has lived through
 * a restart of front keeps the authority that was common before.
 */
struct common_authority {
    uint8_t seed[NET_SEED_BYTES];
    char *pem;
    uint32_t hash;
};

struct common_authority *common_authority_new(void)
{
    struct common_authority *common = NEW(struct common_authority);
    struct err err;

    random_bytes(common->seed, sizeof common->seed);
    struct tls_authority *authority = tls_authority_new(common->seed, &err);
    if (!authority) {
        log_warn("mail does not work over HTTPS inside sandboxes: %s", err_text(&err));
        free(common);
        return NULL;
    }
    common->pem = str_copy(tls_authority_pem(authority));
    common->hash = tls_authority_hash(authority);
    tls_authority_free(authority);
    return common;
}

void common_authority_free(struct common_authority *common)
{
    if (!common)
        return;
    explicit_bzero(common->seed, sizeof common->seed);
    free(common->pem);
    free(common);
}

void sandbox_make_seed(const struct sandboxes *all, struct net_policy *network)
{
    bool is_common = all->common && memcmp(network->seed, all->common->seed, sizeof network->seed) == 0;

    if (net_policy_has_seed(network) && !(is_common && network->transform_count))
        return;
    if (network->transform_count)
        random_bytes(network->seed, sizeof network->seed);
    else if (all->common)
        memcpy(network->seed, all->common->seed, sizeof network->seed);
}

/* For its header rules and for mail's names; empty without. */
static void describe_authority(const struct sandbox *sb, const struct net_policy *network, struct arena *arena,
                               struct guestlink_authority *out)
{
    const struct common_authority *common = sb->all->common;
    struct err err;

    if ((network->transform_count == 0 && !common) || !net_policy_has_seed(network))
        return;
    if (common && memcmp(network->seed, common->seed, sizeof common->seed) == 0) {
        out->pem = str_from(common->pem);
        out->hash = common->hash;
        return;
    }
    struct tls_authority *authority = tls_authority_new(network->seed, &err);
    if (!authority) {
        log_warn("sandbox %s: header rules and mail do not work over HTTPS: %s", sb->id, err_text(&err));
        return;
    }
    out->pem = arena_copy(arena, tls_authority_pem(authority));
    out->hash = tls_authority_hash(authority);
    tls_authority_free(authority);
}

void sandbox_describe_network(const struct sandbox *sb, const struct net_policy *network, struct arena *arena,
                              struct guestlink_network *out)
{
    const char *inside = sb->all->config.inside;

    *out = (struct guestlink_network){ .reach = GUESTLINK_NOTHING };
    if (sb->has_network && sandbox_reaches_out(network)) {
        out->reach = GUESTLINK_OUTSIDE;
    } else if (sb->has_network && inside && inside[0]) {
        out->reach = GUESTLINK_INSIDE;
        out->inside = str_from(inside);
    }
    describe_authority(sb, network, arena, &out->authority);
}

/*
 * With the lock held: if a change came between reading and sending, egress would get the older one last. To one that ends: no
 * bytes, which is that it reaches nothing, services included.
 */
static void send_policy(const struct sandbox *sb)
{
    const struct sandboxes_config *config = &sb->all->config;
    bool ends = sb->state >= SANDBOX_STOPPING;

    if (!config->send_policy)
        return;
    if (!ends && sb->policy)
        config->send_policy(config->context, sb->id, str_of(sb->policy, sb->policy_len));
    else if (ends && sb->has_network && !sb->ends_on_disk)
        config->send_policy(config->context, sb->id, STR(""));
}

void sandbox_send_policy(const struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    send_policy(sb);
}

void sandboxes_send_policies(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    const struct sandbox *sb;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        send_policy(sb);
}

/* ---- a change ---- */

/* Takes the sandbox for one change at a time. */
static struct sandbox *begin_change(struct sandboxes *all, struct str team_id, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = sandbox_of_team(all, team_id, id, err);
    struct timespec until = clock_wait_until(CHANGE_MS);

    if (!sb)
        return NULL;
    sandbox_ref(sb);
    bool timed_out = false;
    while (sb->state == SANDBOX_RUNNING && sb->network_changing && !timed_out)
        timed_out = pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0;
    if (sb->state == SANDBOX_RUNNING && !sb->network_changing) {
        sb->network_changing = true;
        return sb;
    }
    if (sb->state == SANDBOX_RUNNING)
        (void)err_set(err, ERR_CONFLICT, "the network of sandbox \"%s\" is being changed by another request", sb->id);
    else
        (void)sandbox_not_running(sb, err);
    sandbox_unref(sb); /* perhaps the last one: it may be gone from the map by now */
    return NULL;
}

/* If it was killed meanwhile, egress may have got the change after it was told that the sandbox reaches nothing. */
static void end_change(struct sandbox *sb)
{
    bool is_ending;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->network_changing = false;
        is_ending = sb->state >= SANDBOX_STOPPING && sb->state != SANDBOX_GONE;
        pthread_cond_broadcast(&sb->all->changed);
    }
    if (is_ending)
        sandbox_send_policy(sb);
    sandbox_unref(sb);
}

static void take_policy(struct sandbox *sb, struct buf *packed)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    if (sb->policy)
        explicit_bzero(sb->policy, sb->policy_len);
    free(sb->policy);
    sb->policy_len = packed->len;
    sb->policy = take_ptr(&packed->data);
    sb->policy_revision++;
}

static bool change(struct sandbox *sb, const struct net_policy *network, struct arena *arena, struct err *err)
{
    const struct sandboxes_config *config = &sb->all->config;
    auto_buf struct buf packed = buf_make(NULL, LIMIT_NET_POLICY_BYTES);

    struct net_policy with_seed = *network, old;
    struct guestlink_network described;
    if (sandbox_read_policy(sb, arena, &old))
        memcpy(with_seed.seed, old.seed, sizeof old.seed);
    sandbox_make_seed(sb->all, &with_seed);
    network = &with_seed;
    net_policy_pack(&packed, network);
    if (packed.overflowed)
        return err_set(err, ERR_INVALID, "all network rules of a sandbox together have at most %d bytes",
                       LIMIT_NET_POLICY_BYTES);
    struct event_row event = record_network(sb, network, arena);
    struct str bytes = arena_copy(arena, buf_str(&packed));
    if (!store_sandbox_network(config->store, str_from(sb->id), record_policy(arena, bytes), &event, err))
        return false;
    take_policy(sb, &packed);
    sandbox_describe_network(sb, network, arena, &described);
    enum logs_told told = logs_tell_network(sb->all->logs, str_from(sb->id), &described);
    if (told == LOGS_CUT)
        sandbox_link_again(sb); /* which tells it */
    else if (told == LOGS_NO_LINK)
        log_warn("sandbox %s: guestd has no link now, and hears of the change of its network with the next one",
                 sb->id);
    return !config->apply_policy || config->apply_policy(config->context, sb->id, bytes, err);
}

bool sandbox_set_network(struct sandboxes *all, struct str team_id, struct str id, const struct net_policy *network,
                         struct arena *arena, struct err *err)
{
    struct sandbox *sb = begin_change(all, team_id, id, err);

    if (!sb)
        return false;
    bool ok = change(sb, network, arena, err);
    end_change(sb);
    return ok;
}

/* ---- what egress reports ---- */

void sandbox_add_traffic(struct sandboxes *all, struct str id, const struct sandbox_traffic *more)
{
    metrics_add_traffic(all->metrics, id, more);
}

/* An event on its way to the store. */
struct note {
    struct note *next;
    struct arena arena;
    struct event_row event;
};

struct notes {
    struct job job;
    struct sandboxes *all;
    struct note *writing; /* the worker's while the job runs */
    struct note *waiting;
    size_t waiting_count;
};

static void notes_free(struct note *note)
{
    for (struct note *next; note; note = next) {
        next = note->next;
        arena_done(&note->arena);
        free(note);
    }
}

static void notes_run(struct job *job)
{
    struct notes *notes = container_of(job, struct notes, job);
    struct err err;

    for (const struct note *note = notes->writing; note; note = note->next)
        if (!store_event_add(notes->all->config.store, &note->event, &err))
            log_warn("sandbox %.*s: refused connections are not in its events: %s", STR_ARG(note->event.sandbox_id),
                     err_text(&err));
}

static void notes_step(struct notes *notes);

static void notes_written(struct job *job)
{
    struct notes *notes = container_of(job, struct notes, job);

    notes_free(take_ptr(&notes->writing));
    notes_step(notes);
}

static void notes_step(struct notes *notes)
{
    struct sandboxes *all = notes->all;

    if (notes->writing)
        return;
    if (!notes->waiting || atomic_load(&all->is_stopping)) {
        all->notes = NULL;
        notes_free(notes->waiting);
        free(notes);
        return;
    }
    notes->writing = take_ptr(&notes->waiting);
    notes->waiting_count = 0;
    notes->job = (struct job){ .run = notes_run, .done = notes_written };
    workers_run(all->config.workers, &notes->job);
}

void network_done(struct sandboxes *all)
{
    if (!all->notes)
        return;
    notes_free(all->notes->writing);
    notes_free(all->notes->waiting);
    free(take_ptr(&all->notes));
}

static void add_event(struct sandbox *sb, const struct sandbox_refusal *list, uint32_t count, uint32_t total)
{
    struct sandboxes *all = sb->all;

    if (!all->notes) {
        all->notes = NEW(struct notes);
        all->notes->all = all;
    }
    if (all->notes->waiting_count >= NOTES_MOST)
        return; /* the log and the metrics have them */
    struct sandbox_refusal cut[EVENT_REFUSALS];
    count = MIN(count, (uint32_t)EVENT_REFUSALS);
    for (uint32_t i = 0; i < count; i++) {
        cut[i] = list[i];
        cut[i].text.len = MIN(cut[i].text.len, (size_t)EVENT_TEXT_BYTES);
        cut[i].destination.len = MIN(cut[i].destination.len, (size_t)EVENT_TEXT_BYTES);
    }
    struct note *note = NEW(struct note);
    arena_init(&note->arena);
    note->event = record_refused(sb, cut, count, total, &note->arena);
    note->event.sandbox_id = arena_copy(&note->arena, note->event.sandbox_id);
    note->event.team_id = arena_copy(&note->arena, note->event.team_id);
    note->event.template_id = arena_copy(&note->arena, note->event.template_id);
    note->next = all->notes->waiting;
    all->notes->waiting = note;
    all->notes->waiting_count++;
    notes_step(all->notes);
}

static void add_lines(struct sandbox *sb, const struct sandbox_refusal *list, uint32_t count, uint64_t now_ms)
{
    static const struct quota_rule rule = { .per_s = LIMIT_REFUSED_LINES_PER_S, .burst = LIMIT_REFUSED_LINES };
    struct refused *refused = &sb->refused;
    int64_t now_us = clock_wall_us();

    for (uint32_t i = 0; i < count; i++) {
        if (!quota_take(&rule, &refused->lines, now_ms, NULL)) {
            refused->unwritten += list[i].count;
            continue;
        }
        if (refused->unwritten)
            logs_add(sb->all->logs, str_from(sb->id),
                     &(struct sandbox_log){ .at_us = now_us,
                                            .kind = SANDBOX_LOG_REFUSED,
                                            .count = refused->unwritten,
                                            .text = STR("refused more connections than are listed here") });
        refused->unwritten = 0;
        logs_add(sb->all->logs, str_from(sb->id),
                 &(struct sandbox_log){ .at_us = now_us,
                                        .kind = SANDBOX_LOG_REFUSED,
                                        .count = list[i].count,
                                        .text = list[i].text,
                                        .rule = list[i].rule,
                                        .destination = list[i].destination });
    }
}

void sandbox_add_refusals(struct sandboxes *all, struct str id, const struct sandbox_refusal *list, uint32_t count)
{
    struct sandbox *sb = sandbox_find(all, id);
    uint64_t now_ms = clock_mono_ms();

    if (!sb)
        return;
    add_lines(sb, list, count, now_ms);
    for (uint32_t i = 0; i < count; i++)
        sb->refused.uncounted += list[i].count;
    if (sb->refused.uncounted && now_ms >= sb->refused.event_ms && !atomic_load(&all->is_stopping)) {
        add_event(sb, list, count, sb->refused.uncounted);
        sb->refused.uncounted = 0;
        sb->refused.pause_ms =
            sb->refused.pause_ms ? MIN(2 * sb->refused.pause_ms, (uint64_t)EVENT_PAUSE_MAX_MS) : EVENT_PAUSE_MS;
        sb->refused.event_ms = now_ms + sb->refused.pause_ms;
    }
    sandbox_unref(sb);
}
