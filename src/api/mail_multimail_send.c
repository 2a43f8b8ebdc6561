/*
 * Sending in MultiMail's dialect. A message that waits for approval is answered with 202, like one that has left.
 */
#include "api/mail_multimail.h"

static void answer_sent(struct request *rq, const struct sent_info *sent)
{
    const struct mail_accepted *accepted = &sent->accepted;
    struct json_out json = reply_json(rq, accepted->is_repeat ? 200 : 202);

    json_out_object(&json, NULL);
    mm_email_id(&json, "id", accepted->id);
    json_out_str(&json, "status", accepted->is_repeat ? STR("already_sent") : mm_state_status(accepted->state));
    if (accepted->is_repeat)
        json_out_bool(&json, "idempotent", true);
    json_out_str(&json, "thread_id", str_from(accepted->thread_id));
    json_out_str(&json, "mailbox_id", str_from(sent->inbox_id));
    if (accepted->sha256[0])
        json_out_str(&json, "content_sha256", str_from(accepted->sha256));
    if (accepted->state == MAIL_HELD)
        json_out_str(&json, "message",
                     STR("A person has to approve this message before it is sent. Do not send it again."));
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

/* `need_to` is false for a reply, whose recipients follow from what it answers. */
static bool decode(struct request *rq, json_t **out_body, bool need_to, struct send_want *out)
{
    struct err err;

    if (!mail_body(rq, out_body))
        return false;
    if (!mm_send_decode(*out_body, rq->arena, out, &err)) {
        mail_reply_invalid(rq, &err);
        return false;
    }
    if (need_to && out->to_count + out->cc_count + out->bcc_count == 0) {
        mail_reply_problem(rq, 400, "'to' is missing");
        return false;
    }
    if (need_to && !json_has(*out_body, "subject")) {
        mail_reply_problem(rq, 400, "'subject' is missing");
        return false;
    }
    if (!out->markdown.len && !out->text.len && !out->html.len) {
        mail_reply_problem(rq, 400, "'markdown' is missing");
        return false;
    }
    return true;
}

void mm_send(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (decode(rq, &body, true, &want))
        send_it(rq, &want);
}

void mm_send_from(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct send_want want;

    if (!decode(rq, &body, true, &want))
        return;
    want.inbox_ref = rq->match.params[0];
    send_it(rq, &want);
}
