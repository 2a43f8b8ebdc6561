/*
 * How it works: a policy is a request to egress (POLICY), which judges by it from then on. At a sandbox's start it is sent
 * and not waited for: workers put it into a queue, and the loop sends the queue. A change by the API's caller waits for
 * the answer. Both are sent by the loop in the order in which they were asked for. While egress is away nothing is kept
 * here: front sends all policies again when it has a new connection. It does so too, a little later, when egress has not
 * read for so long that the channel took no more: a policy that was not sent would be missing for good.
 *
 * Reports (FLOWS) are checked by flows_unpack() and passed to sandbox/, which knows what to tell whom.
 */
#include "daemon/front_egress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/flows.h"

enum {
    POLICY_MESSAGE_BYTES = LIMIT_NET_POLICY_BYTES + 2 * LIMIT_ID_BYTES,
    WARN_AFTER_MS = 300,  /* when all roles are stopped, egress may be gone before front has its signal */
    SEND_AGAIN_MS = 1000, /* egress takes thousands of policies in that time, if it reads at all */
};

/* A policy on its way to the loop. */
struct outgoing {
    struct outgoing *next;
    size_t len;
    char payload[];
};

struct front_egress {
    struct loop *loop;
    struct channel *channel;
    struct sandboxes *sandboxes; /* NULL: not yet */
    pthread_mutex_t lock;
    struct outgoing *first, **last; /* under it */
    bool posted;                    /* under it */
    struct loop_task task;
    struct timer again; /* set when the channel did not take one */
    struct timer warn;  /* set when egress is gone */
    struct err gone;    /* …for this reason */
    bool is_stopping;
    front_guest_fn *take_guest; /* NULL: no mail */
    void *guest_context;
};

/* ---- reports ---- */

static struct str why_name(uint8_t why)
{
    static const char *const names[FLOWS_WHY_COUNT - NET_RULE_COUNT] = {
        [FLOWS_TOO_MANY - NET_RULE_COUNT] = "too many connections",
        [FLOWS_TOO_MANY_OF_ALL - NET_RULE_COUNT] = "too many connections of all sandboxes",
        [FLOWS_TOO_FAST - NET_RULE_COUNT] = "too many new connections",
        [FLOWS_TOO_MANY_WITH_RULES - NET_RULE_COUNT] = "too many connections with header rules",
        [FLOWS_TOO_FAST_WITH_RULES - NET_RULE_COUNT] = "too many new connections with header rules",
        [FLOWS_NOT_DIVERTED - NET_RULE_COUNT] = "a socket of our own",
        [FLOWS_TOO_MANY_QUESTIONS - NET_RULE_COUNT] = "too many DNS questions",
        [FLOWS_TOO_MANY_INSIDE - NET_RULE_COUNT] = "too many connections to services",
        [FLOWS_NO_LOOKUP - NET_RULE_COUNT] = "no answer from a name server",
        [FLOWS_NO_SERVICE - NET_RULE_COUNT] = "no service on that port",
        [FLOWS_SERVICE_FAILED - NET_RULE_COUNT] = "service failed",
        [FLOWS_PROXY - NET_RULE_COUNT] = "egress proxy failed",
        [FLOWS_NO_HTTP1 - NET_RULE_COUNT] = "header rules need HTTP/1.1",
        [FLOWS_NO_ANSWER - NET_RULE_COUNT] = "no answer from a host with header rules",
        [FLOWS_NO_POLICY - NET_RULE_COUNT] = "no network policy yet",
        [FLOWS_PAUSED - NET_RULE_COUNT] = "too many connections and DNS questions",
    };

    return str_from(why < NET_RULE_COUNT ? net_rule_name[why] : names[why - NET_RULE_COUNT]);
}

static void report_refusals(struct front_egress *egress, const struct flows_record *record)
{
    struct sandbox_refusal list[LIMIT_FLOWS_REFUSALS];
    char destinations[LIMIT_FLOWS_REFUSALS][NET_ADDRESS_TEXT + 16];

    for (uint32_t i = 0; i < record->refusal_count; i++) {
        const struct flows_refusal *refusal = &record->refusals[i];
        char address[NET_ADDRESS_TEXT];
        bool is_v4 = net_address_is_v4(&refusal->to);
        net_address_text(&refusal->to, address);
        (void)snprintf(destinations[i], sizeof destinations[i], is_v4 ? "%s:%u" : "[%s]:%u", address, refusal->port);
        list[i] = (struct sandbox_refusal){
            .rule = why_name(refusal->why),
            .destination = refusal->port ? str_from(destinations[i]) : refusal->name, /* else a DNS question */
            .text = refusal->text,
            .count = refusal->count,
        };
    }
    sandbox_add_refusals(egress->sandboxes, str_from(record->id), list, record->refusal_count);
}

static void report(void *context, const struct flows_record *record)
{
    struct front_egress *egress = context;

    if (!egress->sandboxes)
        return;
    sandbox_add_traffic(egress->sandboxes, str_from(record->id),
                        &(struct sandbox_traffic){ .bytes_in = record->bytes_in,
                                                   .bytes_out = record->bytes_out,
                                                   .connections = record->made,
                                                   .refusals = record->refused,
                                                   .open = record->open });
    if (record->refusal_count)
        report_refusals(egress, record);
}

/* ---- connections to mail ---- */

static bool take_guest(struct front_egress *egress, struct str payload, struct message_fds *fds, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char id[LIMIT_ID_BYTES];

    message_unpack_id(&in, id);
    if (!unpack_done(&in, err))
        return err_wrap(err, "guest");
    if (fds->count != 1)
        return err_set(err, ERR_INVALID, "malformed message: guest without its connection");
    if (egress->take_guest)
        egress->take_guest(egress->guest_context, id, take_fd(&fds->at[0]));
    return true;
}

void front_egress_guests_to(struct front_egress *egress, front_guest_fn *take, void *context)
{
    egress->take_guest = take;
    egress->guest_context = context;
}

static bool on_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                     struct err *err)
{
    if (type == MESSAGE_GUEST)
        return take_guest(context, payload, fds, err);
    if (type != MESSAGE_FLOWS)
        return err_set(err, ERR_INVALID, "malformed message: %s from egress", message_type_name[type]);
    return flows_unpack(payload, report, context, err);
}

static void on_warn(struct timer *timer)
{
    const struct front_egress *egress = container_of(timer, struct front_egress, warn);

    log_warn("egress is gone: %s; connections of sandboxes to the outside were cut", err_text(&egress->gone));
}

static void on_broken(void *context, const struct err *why)
{
    struct front_egress *egress = context;

    if (egress->is_stopping)
        return; /* all roles end */
    egress->gone = *why;
    timer_set(&egress->warn, egress->loop, WARN_AFTER_MS, on_warn);
}

void front_egress_stop(struct front_egress *egress)
{
    egress->is_stopping = true;
    timer_clear(&egress->warn);
}

/* ---- policies ---- */

/* All of them, as they are now: a copy of the one that was not sent could overtake a newer one. */
static void on_again(struct timer *timer)
{
    struct front_egress *egress = container_of(timer, struct front_egress, again);

    if (egress->sandboxes)
        sandboxes_send_policies(egress->sandboxes);
}

static void on_answer(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct front_egress *egress = context;

    (void)payload;
    (void)fds;
    if (!err || err->kind == ERR_UNAVAILABLE) /* one that is away gets all of them when it is back */
        return;
    if (err->kind == ERR_LIMIT) {
        if (timer_is_set(&egress->again))
            return;
        log_warn("egress does not take network rules now, which are sent again: %s", err_text(err));
        timer_set(&egress->again, egress->loop, SEND_AGAIN_MS, on_again);
    } else {
        log_warn("egress did not take the network rules of a sandbox, which reaches nothing: %s", err_text(err));
    }
}

static struct outgoing *take_queue(struct front_egress *egress)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&egress->lock);
    struct outgoing *list = egress->first;

    egress->first = NULL;
    egress->last = &egress->first;
    egress->posted = false;
    return list;
}

/* Sends what is in the list, if there is a channel, and frees it. */
static void send_list(struct front_egress *egress, struct outgoing *list, struct channel *channel)
{
    for (struct outgoing *next; list; list = next) {
        next = list->next;
        if (channel)
            channel_request(channel, MESSAGE_POLICY, str_of(list->payload, list->len), NULL, 0, on_answer, egress);
        explicit_bzero(list->payload, list->len); /* a proxy's password may be in it */
        free(list);
    }
}

static void on_task(struct loop_task *task)
{
    struct front_egress *egress = container_of(task, struct front_egress, task);

    send_list(egress, take_queue(egress), egress->channel);
}

static void pack_policy(struct buf *out, const char *id, struct str policy)
{
    message_pack_id(out, id);
    buf_add(out, policy);
}

void front_egress_send(struct front_egress *egress, const char *id, struct str policy)
{
    auto_buf struct buf payload = buf_make(NULL, POLICY_MESSAGE_BYTES);

    pack_policy(&payload, id, policy);
    struct outgoing *outgoing = mem_new(sizeof *outgoing + payload.len);
    outgoing->len = payload.len;
    memcpy(outgoing->payload, payload.data, payload.len);
    explicit_bzero(payload.data, payload.len);

    auto_unlock pthread_mutex_t *held = lock_mutex(&egress->lock);
    *egress->last = outgoing;
    egress->last = &outgoing->next;
    if (egress->posted)
        return;
    egress->posted = true;
    egress->task.fn = on_task;
    loop_post(egress->loop, &egress->task);
}

bool front_egress_apply(struct front_egress *egress, const char *id, struct str policy, struct err *err)
{
    auto_answer struct channel_answer answer = { 0 };
    auto_buf struct buf payload = buf_make(NULL, POLICY_MESSAGE_BYTES);

    pack_policy(&payload, id, policy);
    bool ok = channel_call(egress->channel, MESSAGE_POLICY, buf_str(&payload), &answer, err);
    explicit_bzero(payload.data, payload.len);
    if (ok)
        return true;
    if (err->kind == ERR_UNAVAILABLE)
        return err_set(
            err, ERR_UNAVAILABLE,
            "the network of sandboxes is being restarted; the new rules are stored and apply when it is back");
    if (err->kind == ERR_LIMIT) {
        front_egress_send(egress, id, policy); /* if it is not taken either, all are sent again */
        return err_set(err, ERR_UNAVAILABLE,
                       "the network of sandboxes is overloaded; the new rules are stored and apply in a moment");
    }
    return err_wrap(err, "network rules of sandbox %s", id);
}

/* ---- life ---- */

struct front_egress *front_egress_new(struct loop *loop)
{
    static const struct channel_handlers handlers = { .event = on_event, .broken = on_broken };
    struct front_egress *egress = NEW(struct front_egress);

    egress->loop = loop;
    egress->last = &egress->first;
    pthread_mutex_init(&egress->lock, NULL);
    egress->channel = channel_new(loop, -1, &handlers, egress);
    return egress;
}

void front_egress_free(struct front_egress *egress)
{
    if (!egress)
        return;
    send_list(egress, take_queue(egress), NULL);
    channel_free(egress->channel);
    timer_clear(&egress->again);
    timer_clear(&egress->warn);
    pthread_mutex_destroy(&egress->lock);
    free(egress);
}

struct channel *front_egress_channel(struct front_egress *egress)
{
    return egress->channel;
}

void front_egress_report_to(struct front_egress *egress, struct sandboxes *sandboxes)
{
    egress->sandboxes = sandboxes;
}
