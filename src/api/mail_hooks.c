/*
 * An event first is a look at the inbox's webhooks, on a worker. Each subscription that wants it becomes a call: a job in a
 * lane, where an inbox has one call at a time, so that a slow server delays the webhooks of its own inbox only. Before each
 * try the subscription is read again: it may have been removed or disabled.
 *
 * An inbox has LIMIT_HOOKS_EACH calls, those that sleep between two tries included, so that one inbox whose server does not
 * answer leaves room for the others. At this limit, the call that has slept longest gives way to a new one.
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
    /* What a look has found; for the loop. */
    struct found *found;
    size_t found_count;
    bool has_none;
};

struct mail_hooks {
    struct api_config config;
    struct lane *lane;
    struct delivery *first; /* newest first */
    unsigned waiting;
    bool is_full; /* told once */
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
    if (action_hook_call(actions, delivery->event.inbox_id, webhook, &hook, &again) || !again)
        return;
    delivery->pause_s = (webhook->is_lobster ? lobstermail_pauses : multimail_pauses)[delivery->tries];
}

static void run(struct job *job)
{
    struct delivery *delivery = container_of(job, struct delivery, job);
    struct arena arena;

    arena_init(&arena);
    delivery->pause_s = 0;
    if (delivery->to.webhook_id[0])
        call(delivery, &arena);
    else
        look(delivery, &arena);
    arena_done(&arena);
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
    free(delivery->found);
    free(delivery);
}

static void done(struct job *job);

static void begin(struct delivery *delivery)
{
    delivery->job = (struct job){ .run = run, .done = done };
    if (lane_run(delivery->hooks->lane, str_from(delivery->event.inbox_id), 0, &delivery->job))
        return;
    log_warn("mail: inbox %s: too many calls of webhooks wait; one is dropped", delivery->event.inbox_id);
    delivery_free(delivery);
}

/* For one more call. */
static bool make_room(struct mail_hooks *hooks, const char *inbox_id)
{
    struct delivery *oldest_asleep = NULL;
    unsigned count = 0;

    for (struct delivery *delivery = hooks->first; delivery; delivery = delivery->next) {
        if (!delivery->to.webhook_id[0] || strcmp(delivery->event.inbox_id, inbox_id) != 0)
            continue;
        count++;
        if (delivery->is_asleep)
            oldest_asleep = delivery;
    }
    if (count < LIMIT_HOOKS_EACH)
        return true;
    log_warn("mail: inbox %s: %d calls of webhooks wait; one is dropped", inbox_id, LIMIT_HOOKS_EACH);
    if (oldest_asleep)
        delivery_free(oldest_asleep);
    return oldest_asleep;
}

static void add(struct mail_hooks *hooks, const struct mail_event *event, const struct found *to)
{
    if (to && !make_room(hooks, event->inbox_id))
        return;
    if (hooks->waiting >= LIMIT_HOOKS_WAITING) {
        if (!hooks->is_full)
            log_warn("mail: %d calls of webhooks wait; further ones are dropped", LIMIT_HOOKS_WAITING);
        hooks->is_full = true;
        return;
    }
    hooks->is_full = false;
    struct delivery *delivery = NEW(struct delivery);
    delivery->hooks = hooks;
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

struct mail_hooks *mail_hooks_new(const struct api_config *config)
{
    struct mail_hooks *hooks = NEW(struct mail_hooks);

    hooks->config = *config;
    hooks->lane = lane_new(
        config->workers,
        &(struct lane_rule){ .most = LIMIT_HOOKS, .most_each = 1, .waiting_each = LIMIT_HOOKS_EACH, .weight_each = 1 });
    map_init(&hooks->none);
    return hooks;
}

void mail_hooks_free(struct mail_hooks *hooks)
{
    if (!hooks)
        return;
    while (hooks->first)
        delivery_free(hooks->first);
    forget_none(hooks);
    map_done(&hooks->none);
    free(hooks);
}
