/*
 * An event first is a look at the inbox's webhooks, on a worker. Each subscription that wants it becomes a call. Before each
 * try the subscription is read again: it may have been removed or disabled.
 *
 * Both are jobs in lanes, where each inbox has one job at a time and they take turns. There are three lanes: for looks, which
 * ask only this machine; for calls; and for calls of inboxes that are slow, because their last call took LIMIT_HOOK_SLOW_MS.
 * An inbox leaves the slow ones with a call that is quick. So servers that hang, also the one server of many inboxes, delay
 * others at their first call at most, and then only each other.
 *
 * An inbox has LIMIT_HOOKS_EACH calls, those that sleep between two tries included. At this limit, the call that has slept
 * longest gives way to a new one. All inboxes have LIMIT_HOOKS_WAITING: when there are more, the inbox that has most loses
 * one, so that inboxes whose servers do not answer for hours leave room for the others.
 *
 * Most inboxes have no webhook. Those that a look has shown to have none are remembered until any inbox gets one.
 */
#include "api/mail_hooks.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "wire/json.h"

enum { NAME_BYTES = 64, BODY_BYTES = 4096 };

/* Pauses in seconds before another try, by dialect; 0 ends the list. */
static const unsigned multimail_pauses[] = { 2, 10, 60, 0 };
static const unsigned lobstermail_pauses[] = { 30, 120, 600, 3600, 21600, 21600, 21600, 21600, 21600, 21600, 0 };

/* The last part of a name; what stands before the dot is "message", "email" or "oversight", or "inbox". */
static const struct {
    enum mail_event_kind kind;
    const char *group, *name;
} names[] = {
    { MAIL_EVENT_RECEIVED, "message", "received" },       { MAIL_EVENT_SENT, "message", "sent" },
    { MAIL_EVENT_SENT, "message", "delivered" },          { MAIL_EVENT_BOUNCED, "message", "bounced" },
    { MAIL_EVENT_QUARANTINED, "message", "quarantined" }, { MAIL_EVENT_PENDING, "oversight", "pending" },
    { MAIL_EVENT_APPROVED, "oversight", "approved" },     { MAIL_EVENT_REJECTED, "oversight", "rejected" },
    { MAIL_EVENT_INBOX_CREATED, "inbox", "created" },
};

struct found {
    char webhook_id[MAIL_MESSAGE_ID_BYTES];
    char name[NAME_BYTES];
};

/* A look at the inbox's webhooks (no webhook_id), or the call of one. */
struct delivery {
    struct mail_hooks *hooks;
    struct delivery *next, *previous;
    struct job job;
    struct timer timer; /* until another try */
    struct mail_event event;
    struct found to;
    char id[MAIL_INBOX_ID_BYTES]; /* the same in each try, for receivers that count */
    unsigned tries, pause_s;      /* pause_s: set by a try that failed; 0: no other try */
    bool is_asleep;
    struct known *inbox;
    struct lane *lane;         /* that it is in; NULL: in none */
    bool was_called, was_slow; /* by the last try */
    /* What a look has found; for the loop. */
    struct found *found;
    size_t found_count;
    bool has_none;
};

/* An inbox with deliveries, or one that is slow. */
struct known {
    char id[MAIL_INBOX_ID_BYTES];
    unsigned calls, deliveries; /* deliveries: with looks */
    bool is_slow;
};

struct mail_hooks {
    struct api_config config;
    struct lane *looks, *calls, *slow_calls;
    struct delivery *first; /* newest first */
    unsigned waiting;
    bool is_full; /* told once */
    struct map known;
    struct map none;
    unsigned none_as_of;
};

/* ---- shapes ---- */

bool mail_hooks_wants(struct str name, enum mail_event_kind kind)
{
    struct str group;

    if (!str_has_char(name, '.') || !str_cut(&name, '.', &group))
        return false;
    if (str_eq(group, STR("email")))
        group = STR("message");
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i].kind == kind && str_eq(group, str_from(names[i].group)) && str_eq(name, str_from(names[i].name)))
            return true;
    return false;
}

static bool is_inbound(enum mail_event_kind kind)
{
    return kind == MAIL_EVENT_RECEIVED || kind == MAIL_EVENT_QUARANTINED;
}

/* No address, no subject, no text: the server cannot read them, and a receiver asks for them with its own key. */
static void data_fields(struct json_out *json, const struct mail_event *event, bool is_lobster, struct arena *arena)
{
    if (is_lobster) {
        if (event->message_id[0])
            json_out_str(json, "emailId", arena_format(arena, "eml_%s", event->message_id));
        json_out_str(json, "inboxId", arena_format(arena, "ibx_%s", event->inbox_id));
    } else {
        if (event->message_id[0])
            json_out_str(json, "email_id", arena_format(arena, "em_%s", event->message_id));
        json_out_str(json, "mailbox_id", str_from(event->inbox_id));
    }
    if (event->message_id[0])
        json_out_str(json, "direction", is_inbound(event->kind) ? STR("inbound") : STR("outbound"));
}

struct str mail_hooks_body(const struct mail_event *event, struct str name, bool is_lobster, struct arena *arena)
{
    struct buf body = buf_make(arena, BODY_BYTES);
    struct json_out json = json_out_to(&body);
    char time[CLOCK_TEXT_BYTES];

    json_out_object(&json, NULL);
    json_out_str(&json, "event", name);
    json_out_str(&json, "timestamp", str_from(clock_text(event->at_us, time)));
    json_out_object(&json, "data");
    data_fields(&json, event, is_lobster, arena);
    json_out_end(&json);
    json_out_end(&json);
    return buf_str(&body);
}

static struct str signature(const struct mail_webhook *webhook, struct str body, struct arena *arena)
{
    char hex[MAIL_HASH_TEXT_BYTES];

    action_hook_sign(webhook->secret, body, hex);
    return arena_format(arena, "%s%s", webhook->is_lobster ? "" : "sha256=", hex);
}

/* ---- on a worker ---- */

static void look(struct delivery *delivery, struct arena *arena)
{
    struct mail_webhook *list;
    size_t count, room = 0;
    struct err err;

    if (!action_hook_list(delivery->hooks->config.actions, delivery->event.inbox_id, arena, &list, &count, &err)) {
        log_warn("mail: inbox %s: its webhooks are not called: %s", delivery->event.inbox_id, err_text(&err));
        return;
    }
    delivery->has_none = count == 0;
    for (size_t i = 0; i < count; i++)
        room += list[i].is_enabled ? list[i].event_count : 0;
    delivery->found = room ? mem_new(room * sizeof *delivery->found) : NULL;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t j = 0; list[i].is_enabled && j < list[i].event_count; j++) {
            if (!mail_hooks_wants(list[i].events[j], delivery->event.kind) || list[i].events[j].len >= NAME_BYTES)
                continue;
            struct found *found = &delivery->found[delivery->found_count++];
            memcpy(found->webhook_id, list[i].id, sizeof found->webhook_id);
            memcpy(found->name, list[i].events[j].at, list[i].events[j].len);
        }
    }
}

static const struct mail_webhook *find(const struct mail_webhook *list, size_t count, const char *id)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].id, id) == 0)
            return &list[i];
    return NULL;
}

static void call(struct delivery *delivery, struct arena *arena)
{
    const struct actions *actions = delivery->hooks->config.actions;
    struct mail_webhook *list;
    size_t count;
    struct err err;
    bool again = false;

    if (!action_hook_list(actions, delivery->event.inbox_id, arena, &list, &count, &err))
        return; /* the inbox is gone, or damaged: others tell that */
    const struct mail_webhook *webhook = find(list, count, delivery->to.webhook_id);
    if (!webhook || !webhook->is_enabled)
        return;
    struct str body = mail_hooks_body(&delivery->event, str_from(delivery->to.name), webhook->is_lobster, arena);
    const struct mail_pair headers[] = {
        { STR("Content-Type"), STR("application/json") },
        { webhook->is_lobster ? STR("X-LobsterMail-Signature") : STR("X-MultiMail-Signature"),
          signature(webhook, body, arena) },
        { STR("X-Cloister-Delivery"), str_from(delivery->id) },
    };
    const struct mail_hook hook = {
        .url = webhook->url, .headers = headers, .header_count = COUNT_OF(headers), .body = body
    };
    uint64_t begun_ms = clock_mono_ms();
    bool fine = action_hook_call(actions, delivery->event.inbox_id, webhook, &hook, &again);
    delivery->was_called = true;
    delivery->was_slow = clock_mono_ms() - begun_ms >= LIMIT_HOOK_SLOW_MS;
    if (fine || !again)
        return;
    delivery->pause_s = (webhook->is_lobster ? lobstermail_pauses : multimail_pauses)[delivery->tries];
}

static bool is_call(const struct delivery *delivery)
{
    return delivery->to.webhook_id[0];
}

static void run(struct job *job)
{
    struct delivery *delivery = container_of(job, struct delivery, job);
    struct arena arena;

    arena_init(&arena);
    delivery->pause_s = 0;
    delivery->was_called = false;
    if (is_call(delivery))
        call(delivery, &arena);
    else
        look(delivery, &arena);
    arena_done(&arena);
}

/* ---- inboxes; on the loop ---- */

static void forget_if_unused(struct mail_hooks *hooks, struct known *inbox)
{
    if (inbox->deliveries || inbox->is_slow)
        return;
    (void)map_remove(&hooks->known, str_from(inbox->id));
    free(inbox);
}

/* Those that are slow and have nothing to call; they are noticed again. */
static void forget_slow(struct mail_hooks *hooks)
{
    struct known *inbox, *unused;

    do {
        unused = NULL;
        for (size_t i = 0; !unused && (inbox = map_next(&hooks->known, &i));)
            if (!inbox->deliveries)
                unused = inbox;
        if (unused) {
            unused->is_slow = false;
            forget_if_unused(hooks, unused);
        }
    } while (unused && hooks->known.count > LIMIT_HOOKS_KNOWN / 2);
}

static struct known *known_of(struct mail_hooks *hooks, const char *inbox_id)
{
    struct known *inbox = map_get(&hooks->known, str_from(inbox_id));

    if (inbox)
        return inbox;
    if (hooks->known.count >= LIMIT_HOOKS_KNOWN)
        forget_slow(hooks);
    inbox = NEW(struct known);
    memcpy(inbox->id, inbox_id, strnlen(inbox_id, sizeof inbox->id - 1));
    (void)map_put(&hooks->known, str_from(inbox->id), inbox);
    return inbox;
}

/* ---- on the loop ---- */

static void delivery_free(struct delivery *delivery)
{
    struct mail_hooks *hooks = delivery->hooks;

    timer_clear(&delivery->timer);
    if (delivery->previous)
        delivery->previous->next = delivery->next;
    else
        hooks->first = delivery->next;
    if (delivery->next)
        delivery->next->previous = delivery->previous;
    hooks->waiting--;
    delivery->inbox->deliveries--;
    delivery->inbox->calls -= is_call(delivery);
    forget_if_unused(hooks, delivery->inbox);
    free(delivery->found);
    free(delivery);
}

static void done(struct job *job);

static void begin(struct delivery *delivery)
{
    struct mail_hooks *hooks = delivery->hooks;

    delivery->job = (struct job){ .run = run, .done = done };
    delivery->lane = !is_call(delivery) ? hooks->looks : delivery->inbox->is_slow ? hooks->slow_calls : hooks->calls;
    if (lane_run(delivery->lane, str_from(delivery->event.inbox_id), 0, &delivery->job))
        return;
    log_warn("mail: inbox %s: too many calls of webhooks wait; one is dropped", delivery->event.inbox_id);
    delivery_free(delivery);
}

/* The one that has slept longest. */
static bool drop_asleep(struct mail_hooks *hooks, const struct known *inbox)
{
    struct delivery *oldest = NULL;

    for (struct delivery *delivery = hooks->first; delivery; delivery = delivery->next)
        if (delivery->inbox == inbox && delivery->is_asleep)
            oldest = delivery;
    if (oldest)
        delivery_free(oldest);
    return oldest;
}

/* The newest one that has no worker yet. */
static bool drop_waiting(struct mail_hooks *hooks, const struct known *inbox)
{
    for (struct delivery *delivery = hooks->first; delivery; delivery = delivery->next) {
        if (delivery->inbox == inbox && delivery->lane && lane_leave(delivery->lane, &delivery->job)) {
            delivery_free(delivery);
            return true;
        }
    }
    return false;
}

static struct known *fullest(const struct mail_hooks *hooks)
{
    struct known *inbox, *most = NULL;

    for (size_t i = 0; (inbox = map_next(&hooks->known, &i));)
        if (!most || inbox->deliveries > most->deliveries)
            most = inbox;
    return most;
}

/* For one more of this inbox. */
static bool make_room(struct mail_hooks *hooks, const struct known *inbox, bool for_call)
{
    if (for_call && inbox->calls >= LIMIT_HOOKS_EACH) {
        log_warn("mail: inbox %s: %d calls of webhooks wait; one is dropped", inbox->id, LIMIT_HOOKS_EACH);
        return drop_asleep(hooks, inbox);
    }
    if (hooks->waiting < LIMIT_HOOKS_WAITING) {
        hooks->is_full = false;
        return true;
    }
    const struct known *loser = fullest(hooks);
    if (!hooks->is_full)
        log_warn("mail: %d calls of webhooks wait; inbox %s has most of them and loses some", LIMIT_HOOKS_WAITING,
                 loser->id);
    hooks->is_full = true;
    return loser->deliveries > inbox->deliveries && (drop_asleep(hooks, loser) || drop_waiting(hooks, loser));
}

static void add(struct mail_hooks *hooks, const struct mail_event *event, const struct found *to)
{
    struct known *inbox = known_of(hooks, event->inbox_id);

    if (!make_room(hooks, inbox, to)) {
        forget_if_unused(hooks, inbox);
        return;
    }
    struct delivery *delivery = NEW(struct delivery);
    delivery->hooks = hooks;
    delivery->inbox = inbox;
    delivery->event = *event;
    if (to) {
        delivery->to = *to;
        mail_ulid(delivery->id);
    }
    delivery->next = hooks->first;
    if (hooks->first)
        hooks->first->previous = delivery;
    hooks->first = delivery;
    hooks->waiting++;
    inbox->deliveries++;
    inbox->calls += is_call(delivery);
    begin(delivery);
}

static void on_pause_over(struct timer *timer)
{
    struct delivery *delivery = container_of(timer, struct delivery, timer);

    delivery->is_asleep = false;
    begin(delivery);
}

static void forget_none(struct mail_hooks *hooks)
{
    char *id;

    for (size_t i = 0; (id = map_next(&hooks->none, &i));)
        free(id);
    map_done(&hooks->none);
    map_init(&hooks->none);
}

static void remember_none(struct mail_hooks *hooks, const char *inbox_id)
{
    if (hooks->none.count >= LIMIT_HOOKS_NONE)
        forget_none(hooks);
    char *id = mem_copy_text(inbox_id);
    free(map_put(&hooks->none, str_from(id), id));
}

static void done(struct job *job)
{
    struct delivery *delivery = container_of(job, struct delivery, job);
    struct mail_hooks *hooks = delivery->hooks;

    delivery->lane = NULL;
    if (delivery->was_called)
        delivery->inbox->is_slow = delivery->was_slow;
    if (delivery->pause_s) {
        delivery->tries++;
        delivery->is_asleep = true;
        timer_set(&delivery->timer, hooks->config.loop, (uint64_t)delivery->pause_s * 1000, on_pause_over);
        return;
    }
    if (delivery->has_none && hooks->none_as_of == action_hook_changes())
        remember_none(hooks, delivery->event.inbox_id);
    for (size_t i = 0; i < delivery->found_count; i++)
        add(hooks, &delivery->event, &delivery->found[i]);
    delivery_free(delivery);
}

void mail_hooks_heard(struct mail_hooks *hooks, const struct mail_event *event)
{
    unsigned as_of = action_hook_changes();

    if (as_of != hooks->none_as_of)
        forget_none(hooks);
    hooks->none_as_of = as_of;
    if (!map_get(&hooks->none, str_from(event->inbox_id)))
        add(hooks, event, NULL);
}

static struct lane *new_lane(const struct api_config *config, unsigned most)
{
    return lane_new(
        config->workers,
        &(struct lane_rule){ .most = most, .most_each = 1, .waiting_each = LIMIT_HOOKS_EACH, .weight_each = 1 });
}

struct mail_hooks *mail_hooks_new(const struct api_config *config)
{
    struct mail_hooks *hooks = NEW(struct mail_hooks);

    hooks->config = *config;
    hooks->looks = new_lane(config, LIMIT_HOOK_LOOKS);
    hooks->calls = new_lane(config, LIMIT_HOOKS - LIMIT_HOOKS_SLOW);
    hooks->slow_calls = new_lane(config, LIMIT_HOOKS_SLOW);
    map_init(&hooks->known);
    map_init(&hooks->none);
    return hooks;
}

void mail_hooks_free(struct mail_hooks *hooks)
{
    if (!hooks)
        return;
    struct known *inbox;
    while (hooks->first)
        delivery_free(hooks->first);
    for (size_t i = 0; (inbox = map_next(&hooks->known, &i));)
        free(inbox);
    map_done(&hooks->known);
    forget_none(hooks);
    map_done(&hooks->none);
    free(hooks);
}
