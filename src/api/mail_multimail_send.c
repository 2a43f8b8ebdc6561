/*
 * Sending in MultiMail's dialect. A message that waits for approval is answered with 202, like one that has left.
 */
#include "api/mail_multimail.h"

static struct str message_of(const struct mail_accepted *accepted)
{
    if (accepted->state == MAIL_HELD)
        return accepted->is_repeat
                   ? STR("This message was accepted before, and still waits for a person to approve it. "
                         "Do not send it again.")
                   : STR("A person has to approve this message before it is sent. Do not send it again.");
    return accepted->is_repeat ? STR("This message was accepted before.") : STR("The message is accepted.");
}

/* The service answers every repeat with already_sent, also of a message that waits; email_status is how it stands now. */
static void answer_sent(struct request *rq, const struct sent_info *sent)
{
    const struct mail_accepted *accepted = &sent->accepted;
    struct json_out json = reply_json(rq, accepted->is_repeat ? 200 : 202);

    json_out_object(&json, NULL);
    mm_email_id(&json, "id", accepted->id);
    json_out_str(&json, "status", accepted->is_repeat ? STR("already_sent") : mm_state_status(accepted->state));
    if (accepted->is_repeat) {
        json_out_bool(&json, "idempotent", true);
        json_out_str(&json, "email_status", mm_state_status(accepted->state));
    }
    json_out_str(&json, "thread_id", str_from(accepted->thread_id));
    json_out_str(&json, "mailbox_id", str_from(sent->inbox_id));
    mm_text(&json, "content_sha256", str_from(accepted->sha256));
    json_out_str(&json, "message", message_of(accepted));
    json_out_end(&json);
}

static void send_it(struct request *rq, const struct send_want *want)
{
    uint32_t retry_s = 0;
    struct sent_info sent;
    struct err err;

    if (action_send(rq->actions, mail_caller(rq), want, rq->arena, &sent, &retry_s, &err))
        answer_sent(rq, &sent);
    else
        mail_reply_err_after(rq, &err, retry_s);
}

enum kind {
    NEW_MESSAGE, /* needs recipients, a subject and a body */
    ANSWER,      /* recipients and subject follow from what it answers */
    CHANGE,      /* needs nothing */
};

static bool decode(struct request *rq, enum kind kind, json_t **out_body, struct send_want *out)
{
    struct err err;

    if (!mail_body(rq, out_body))
        return false;
    if (!mm_send_decode(*out_body, rq->arena, out, &err)) {
        mail_reply_invalid(rq, &err);
        return false;
    }
    /* Scripts for other services send the key as a header. */
    const struct str *key = http_header(&rq->ex->head, STR("Idempotency-Key"));
    if (key && !out->idempotency_key.len)
        out->idempotency_key = *key;
    const char *missing = NULL;
    if (kind != CHANGE && !out->markdown.len && !out->text.len && !out->html.len)
        missing = "markdown";
    if (kind == NEW_MESSAGE && !json_has(*out_body, "subject"))
        missing = "subject";
    if (kind == NEW_MESSAGE && !out->to_count)
        missing = "to";
    if (missing)
        mail_reply_problem(rq, 400, "'%s' is missing", missing);
    return !missing;
}

void mm_send(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (decode(rq, NEW_MESSAGE, &body, &want))
        send_it(rq, &want);
}

void mm_send_from(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (!decode(rq, NEW_MESSAGE, &body, &want))
        return;
    want.inbox_ref = rq->match.params[0];
    send_it(rq, &want);
}

void mm_reply(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (!decode(rq, ANSWER, &body, &want))
        return;
    want.answers = mail_id_plain(rq->match.params[0], MM_EMAIL_PREFIX);
    send_it(rq, &want);
}

void mm_reply_from(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (!decode(rq, ANSWER, &body, &want))
        return;
    want.inbox_ref = rq->match.params[0];
    want.answers = mail_id_plain(rq->match.params[1], MM_EMAIL_PREFIX);
    send_it(rq, &want);
}

void mm_cancel(struct request *rq)
{
    struct mail_message message;
    struct err err;

    if (!action_send_cancel(rq->actions, mail_caller(rq), rq->match.params[0],
                            mail_id_plain(rq->match.params[1], MM_EMAIL_PREFIX), rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_email_id(&json, "id", message.id);
    json_out_str(&json, "status", mm_status(&message));
    json_out_end(&json);
}

void mm_schedule(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct mail_message message;
    struct send_want want;
    struct err err;

    if (!decode(rq, CHANGE, &body, &want))
        return;
    if (!action_send_edit(rq->actions, mail_caller(rq), rq->match.params[0],
                          mail_id_plain(rq->match.params[1], MM_EMAIL_PREFIX), &want, rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_email_id(&json, "id", message.id);
    json_out_str(&json, "status", mm_status(&message));
    mm_time(&json, "send_at", message.send_at_us);
    mm_text(&json, "content_sha256", str_from(message.sha256));
    json_out_end(&json);
}
