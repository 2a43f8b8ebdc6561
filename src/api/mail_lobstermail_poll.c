/*
 * The long poll: answers as soon as there is a message that fits, or with 204 when the time is over.
 *
 *   look    on a worker: lists. Before that it takes the inbox's count of events.
 *   judge   on the loop: what was found is answered, unless it is the same answer as a moment ago: see below. If
 *           nothing was found and the count is another one, look again: a message may have come in between.
 *   wait    on the loop, without a worker: for an event of the inbox (then look again), or for the end of the time.
 *
 * The service's client filters by regular expressions itself and asks again at once with the same question. Then a
 * message that does not fit would make it ask without a pause. So the same answer waits for half a second, unless the
 * request has waited before; a new event is still answered at once.
 */
#include "api/mail_lobstermail.h"
#include "base/clock.h"

enum { SECOND_US = 1000000 };

struct poll {
    struct request *rq;
    struct mail_events *events;
    struct mail_listener listener;
    struct timer timer;
    char inbox_id[MAIL_INBOX_ID_BYTES];
    struct mail_filter filter;
    struct str newest; /* id of the newest message that was found; empty: none */
    uint64_t count;    /* of events, before the last look */
    uint64_t end_ms;
    unsigned looks;
};

static void stop(struct poll *poll)
{
    timer_clear(&poll->timer);
    mail_events_leave(poll->events, &poll->listener);
}

static void look_again(struct poll *poll)
{
    stop(poll);
    mail_again(poll->rq);
}

/* The end of the time, or of the pause before an answer. */
static void on_timer(struct timer *timer)
{
    struct poll *poll = container_of(timer, struct poll, timer);

    stop(poll);
    if (!poll->newest.len)
        reply_empty(poll->rq, 204);
    mail_finish(poll->rq);
}

static void on_heard(struct mail_listener *listener, const struct mail_event *event)
{
    if (event->kind == MAIL_EVENT_RECEIVED)
        look_again(container_of(listener, struct poll, listener));
}

static void on_gone(struct request *rq)
{
    stop(rq->mail->context);
}

static void wait(struct poll *poll, uint64_t for_ms)
{
    poll->listener = (struct mail_listener){ .heard = on_heard };
    if (!mail_events_listen(poll->events, poll->inbox_id, &poll->listener)) {
        mail_reply_problem(poll->rq, 429, "too many requests wait for messages of this inbox: at most %d",
                           LIMIT_MAIL_LISTENERS_EACH);
        reply_field(poll->rq, STR("Retry-After"), STR("1"));
        mail_finish(poll->rq);
        return;
    }
    timer_set(&poll->timer, poll->rq->config->loop, for_ms, on_timer);
}

static void judge(struct request *rq)
{
    struct poll *poll = rq->mail->context;
    uint64_t now_ms = loop_now_ms(rq->config->loop), pause_ms = 0;
    bool is_over = now_ms >= poll->end_ms || poll->looks >= LIMIT_MAIL_POLL_LOOKS;

    if (poll->newest.len) {
        struct str question = arena_format(rq->arena, "%s %.*s", mail_caller(rq)->key_id,
                                           (int)MIN(rq->ex->head.target.len, (size_t)4096), rq->ex->head.target.at);
        pause_ms = mail_events_pause_ms(poll->events, question, poll->newest, now_ms);
        if (poll->looks > 1) /* it has waited: this is news, also if another request has had it first */
            pause_ms = 0;
    } else if (is_over) {
        reply_empty(rq, 204);
    } else if (mail_events_count(poll->events, poll->inbox_id) != poll->count) {
        mail_again(rq);
        return;
    } else {
        pause_ms = poll->end_ms - now_ms;
    }
    if (pause_ms && !is_over)
        wait(poll, pause_ms);
    else
        mail_finish(rq);
}

static bool begin(struct request *rq, struct err *err)
{
    struct poll *poll = ARENA_NEW(rq->arena, struct poll);
    uint64_t timeout_s = LIMIT_MAIL_POLL_S;
    struct str ref = lm_param(rq, 0, LM_INBOX), since;
    struct inbox_info inbox;

    if (!lm_filter_decode(rq, LM_POLL, &poll->filter, err) ||
        !query_number(rq, "timeout", 0, UINT32_MAX, &timeout_s, err)) {
        mail_reply_invalid(rq, err);
        return false;
    }
    /* An id is taken as it is: listing says whether the caller may, by its own right or by a grant. */
    if (mail_inbox_id_valid(ref)) {
        memcpy(poll->inbox_id, ref.at, ref.len);
    } else if (action_inbox_get(rq->actions, mail_caller(rq), ref, rq->arena, &inbox, err)) {
        memcpy(poll->inbox_id, inbox.id, sizeof poll->inbox_id);
    } else {
        mail_reply_err(rq, err);
        return false;
    }
    poll->rq = rq;
    poll->events = mail_events_of(rq);
    poll->end_ms = clock_mono_ms() + MIN(timeout_s, (uint64_t)LIMIT_MAIL_POLL_S) * 1000;
    /* Without a time: what comes from now on. A second before, as the service's client does it. */
    if (!query(rq, STR("since"), &since))
        poll->filter.after_us = clock_wall_us() - SECOND_US;
    rq->mail->context = poll;
    return true;
}

void lm_poll(struct request *rq)
{
    struct mail_page page;
    struct err err;

    if (!rq->mail->context && !begin(rq, &err))
        return;
    struct poll *poll = rq->mail->context;
    poll->looks++;
    poll->count = mail_events_count(poll->events, poll->inbox_id);
    if (!action_mail_list(rq->actions, mail_caller(rq), str_from(poll->inbox_id), &poll->filter, rq->arena, &page,
                          &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    poll->newest = page.count ? str_from(page.rows[0].id) : STR("");
    if (page.count) {
        struct json_out json = reply_json(rq, 200);
        json_out_object(&json, NULL);
        json_out_array(&json, "data");
        for (size_t i = 0; i < page.count; i++)
            lm_email(&json, NULL, &page.rows[i], LM_NO_BODY);
        json_out_end(&json);
        json_out_end(&json);
    }
    mail_later(rq, judge, on_gone, poll);
}
