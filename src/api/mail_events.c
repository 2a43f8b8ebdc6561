#include "api/mail_events.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/fnv.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"

enum {
    COUNTS = 4096,         /* inboxes share them: a collision costs one list more */
    ANSWERS = 1024,        /* of questions that were answered last; the same */
    PAUSE_MS = 500,        /* before the same answer again */
    REMEMBERED_MS = 10000, /* a client that asks after this long does not ask in a tight loop */
};

struct mail_listened {
    struct queue listeners;
    unsigned count;
    char inbox_id[MAIL_INBOX_ID_BYTES];
};

struct answer {
    uint64_t question, text, at_ms;
};

struct mail_events {
    struct map inboxes; /* id → struct mail_listened, while at least one listens */
    unsigned count;
    uint64_t told;
    uint64_t seed; /* so that nobody can choose whom to collide with */
    _Atomic uint64_t counts[COUNTS];
    struct answer answers[ANSWERS];
};

/* Not for security: see `seed`. */
static uint64_t hash(uint64_t seed, struct str text)
{
    uint64_t sum = fnv_add(FNV_START ^ seed, text);

    return sum ^ (sum >> 32);
}

struct mail_events *mail_events_new(void)
{
    struct mail_events *events = NEW(struct mail_events);

    map_init(&events->inboxes);
    random_bytes(&events->seed, sizeof events->seed);
    return events;
}

/* Out of its queue. The inbox is forgotten with its last listener. */
static void leave(struct mail_events *events, struct mail_listener *listener)
{
    struct mail_listened *to = listener->to;

    queue_leave(&listener->link);
    listener->to = NULL;
    events->count--;
    if (--to->count)
        return;
    (void)map_remove(&events->inboxes, str_from(to->inbox_id));
    free(to);
}

void mail_events_leave(struct mail_events *events, struct mail_listener *listener)
{
    if (listener->to)
        leave(events, listener);
}

void mail_events_free(struct mail_events *events)
{
    struct mail_listened *to;
    size_t at = 0;

    if (!events)
        return;
    while ((to = map_next(&events->inboxes, &at))) {
        while (to->listeners.first) {
            struct mail_listener *listener = container_of(to->listeners.first, struct mail_listener, link);
            queue_leave(&listener->link);
            listener->to = NULL;
        }
        free(to);
    }
    map_done(&events->inboxes);
    free(events);
}

bool mail_events_listen(struct mail_events *events, const char *inbox_id, struct mail_listener *listener)
{
    struct mail_listened *to = map_get(&events->inboxes, str_from(inbox_id));

    if (events->count >= LIMIT_MAIL_LISTENERS || (to && to->count >= LIMIT_MAIL_LISTENERS_EACH))
        return false;
    if (!to) {
        to = NEW(struct mail_listened);
        memcpy(to->inbox_id, inbox_id, strnlen(inbox_id, sizeof to->inbox_id - 1));
        (void)map_put(&events->inboxes, str_from(to->inbox_id), to);
    }
    queue_join(&to->listeners, &listener->link);
    listener->to = to;
    listener->since = events->told;
    to->count++;
    events->count++;
    return true;
}

void mail_events_tell(struct mail_events *events, const struct mail_event *event)
{
    struct str id = str_from(event->inbox_id);
    struct mail_listened *to;

    atomic_fetch_add(&events->counts[hash(events->seed, id) % COUNTS], 1);
    events->told++;
    /*
     * The first goes to the end before it is told, so each turn begins anew: a listener may leave, and take others with
     * it, and even the inbox may be forgotten. One that has heard this event, or has come since, ends the walk.
     */
    while ((to = map_get(&events->inboxes, id))) {
        struct mail_listener *listener = container_of(to->listeners.first, struct mail_listener, link);
        if (listener->since >= events->told)
            return;
        listener->since = events->told;
        queue_join(&to->listeners, &listener->link);
        listener->heard(listener, event);
    }
}

uint64_t mail_events_count(const struct mail_events *events, const char *inbox_id)
{
    return atomic_load(&events->counts[hash(events->seed, str_from(inbox_id)) % COUNTS]);
}

uint64_t mail_events_pause_ms(struct mail_events *events, struct str question, struct str answer, uint64_t now_ms)
{
    uint64_t asked = hash(events->seed, question), text = hash(events->seed, answer);
    struct answer *last = &events->answers[asked % ANSWERS];
    bool is_same = last->question == asked && last->text == text && now_ms - last->at_ms < REMEMBERED_MS;

    *last = (struct answer){ asked, text, now_ms };
    return is_same ? PAUSE_MS : 0;
}
