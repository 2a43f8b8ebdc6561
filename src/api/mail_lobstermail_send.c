/*
 * Sending in LobsterMail's dialect. It passes the same gate as every message: `status` says whether it has to wait.
 */
#include "api/mail_lobstermail.h"

void lm_send(struct request *rq)
{
    const struct str *once = http_header(&rq->ex->head, STR("Idempotency-Key"));
    auto_json json_t *body = NULL;
    struct send_want want;
    struct sent_info sent;
    uint32_t retry_s = 0;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!lm_send_decode(body, rq->arena, &want, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (once)
        want.idempotency_key = *once;
    if (!action_send(rq->actions, mail_caller(rq), &want, rq->arena, &sent, &retry_s, &err)) {
        mail_reply_err_after(rq, &err, retry_s);
        return;
    }
    struct json_out json = reply_json(rq, sent.accepted.is_repeat ? 200 : 202);
    json_out_object(&json, NULL);
    lm_id(&json, "id", LM_EMAIL, sent.accepted.id);
    json_out_str(&json, "status", lm_state_status(sent.accepted.state));
    lm_id(&json, "threadId", LM_THREAD, sent.accepted.thread_id);
    lm_id(&json, "inboxId", LM_INBOX, sent.inbox_id);
    if (sent.accepted.state == MAIL_HELD)
        json_out_str(&json, "message",
                     STR("A person has to approve this message before it is sent. Do not send it again."));
    json_out_end(&json);
}
