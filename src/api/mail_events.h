/*
 * mail_events.h - who waits for mail: long polls and WebSockets listen to inboxes.
 *
 * A listener holds no right to read: it is told the id of a message, and reads it as the caller that it acts for.
 *
 * To miss nothing: take mail_events_count() of the inbox, list, and then listen on the loop, unless the count is another
 * one by then. An event is told after the change that it is about is stored.
 *
 * Threads    The loop's, except mail_events_count().
 */
#ifndef API_MAIL_EVENTS_H
#define API_MAIL_EVENTS_H

#include "actions/mail.h"
#include "base/queue.h"

struct mail_events;
struct mail_listened;

/* Embed it; a zeroed one listens to nothing. */
struct mail_listener {
    /* May stop listening, and free what it is part of. */
    void (*heard)(struct mail_listener *listener, const struct mail_event *event);
    /* private */
    struct queue_link link;
    struct mail_listened *to;
    uint64_t since; /* events that were told before it began to listen */
};

struct mail_events *mail_events_new(void) must_use;
/* Listeners that are left hear nothing any more. */
void mail_events_free(struct mail_events *events);

/* False: LIMIT_MAIL_LISTENERS_EACH listen to this inbox, or LIMIT_MAIL_LISTENERS to all. `heard` is set by the caller. */
bool mail_events_listen(struct mail_events *events, const char *inbox_id, struct mail_listener *listener) must_use;
void mail_events_leave(struct mail_events *events, struct mail_listener *listener); /* fine if it does not listen */
void mail_events_tell(struct mail_events *events, const struct mail_event *event);
/* How many events there were of this inbox. Two inboxes may share a count: another one means that there may be news. */
uint64_t mail_events_count(const struct mail_events *events, const char *inbox_id);

/*
 * A client that polls again with the same question may get the same answer again and again, without a pause. Returns for
 * how long this answer should wait: 0, unless it was the last answer to this question, a short time ago.
 */
uint64_t mail_events_pause_ms(struct mail_events *events, struct str question, struct str answer, uint64_t now_ms);

#endif
