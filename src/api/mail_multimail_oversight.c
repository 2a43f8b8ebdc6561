/*
 * The approver's side of MultiMail's dialect: what waits, and the decision.
 */
#include "api/mail_multimail.h"

void mm_held(struct json_out *json, const struct held_message *held)
{
    const struct mail_message *message = &held->message;
    const struct mail_content *content = &message->content;

    mm_summary(json, message);
    json_out_str(json, "mailbox_address", held->inbox.address);
    mm_strings(json, "cc", content->cc, content->cc_count);
    mm_strings(json, "bcc", content->bcc, content->bcc_count);
    mm_strings(json, "recipients", content->recipients, content->recipient_count);
    json_out_str(json, "reply_to", content->reply_to);
    /* A long list has texts up to a limit, then previews. */
    json_out_str(json, "body_markdown", content->text.len ? content->text : content->preview);
    json_out_bool(json, "body_truncated", !content->text.len && content->preview.len);
    mm_attachments(json, content);
    json_out_array(json, "warnings");
    for (uint32_t i = 0; i < content->warning_count; i++) {
        json_out_object(json, NULL);
        json_out_str(json, "code", content->warnings[i].code);
        json_out_str(json, "detail", content->warnings[i].detail);
        json_out_end(json);
    }
    json_out_end(json);
    json_out_bool(json, "truncated", held->is_truncated);
    mm_text(json, "content_sha256", str_from(message->sha256));
    mm_time(json, "expires_at", message->hold_until_us);
}

bool mm_pending_page(struct request *rq, struct str inbox, struct pending_page *out)
{
    struct pending_want want = { .inbox = inbox, .cursor = STR("") };
    struct err err;

    if (!query(rq, STR("cursor"), &want.cursor))
        want.cursor = STR("");
    if (action_pending(rq->actions, mail_caller(rq), &want, rq->arena, out, &err))
        return true;
    mail_reply_err(rq, &err);
    return false;
}

void mm_pending(struct request *rq)
{
    struct pending_page page;
    struct str mailbox = STR("");
    struct err err;

    if (!query_check(rq, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!query(rq, STR("mailbox"), &mailbox) && !query(rq, STR("mailbox_id"), &mailbox))
        mailbox = STR("");
    if (!mm_pending_page(rq, mailbox, &page))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    for (int twice = 0; twice < 2; twice++) { /* clients of different ages read different names */
        json_out_array(&json, twice ? "pending" : "emails");
        for (size_t i = 0; i < page.count; i++) {
            json_out_object(&json, NULL);
            mm_held(&json, &page.rows[i]);
            json_out_end(&json);
        }
        json_out_end(&json);
    }
    json_out_bool(&json, "more", page.cursor.len > 0);
    mm_text(&json, "cursor", page.cursor);
    json_out_end(&json);
}

void mm_pending_attachment(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_held_attachment(rq->actions, mail_caller(rq), mail_id_plain(rq->match.params[0], MM_EMAIL_PREFIX),
                               rq->match.params[1], rq->arena, &file, &err))
        mail_reply_file(rq, &file);
    else
        mail_reply_err(rq, &err);
}

struct decision {
    struct str reason, sha256;
    bool approve;
};

static bool decision_decode(const json_t *body, struct decision *out, struct err *err)
{
    static const char *const actions[4] = { "action", "decision" };
    static const char *const hashes[4] = { "content_sha256", "sha256" };
    struct str action;

    *out = (struct decision){ .reason = STR("") };
    if (!mail_take_any(body, actions, JSON_REQUIRED, &action, err) ||
        !json_take_str(body, "reason", JSON_OPTIONAL, &out->reason, err) ||
        !mail_take_any(body, hashes, JSON_OPTIONAL, &out->sha256, err))
        return false;
    out->approve = str_eq(action, STR("approve")) || str_eq(action, STR("approved"));
    if (!out->approve && !str_eq(action, STR("reject")) && !str_eq(action, STR("rejected")))
        return err_set(err, ERR_INVALID, "'action' must be approve or reject");
    return true;
}

static void decide(struct request *rq, struct str email, const struct decision *decision)
{
    struct mail_message message;
    struct err err;

    if (!action_decide(rq->actions, mail_caller(rq), mail_id_plain(email, MM_EMAIL_PREFIX), decision->approve,
                       decision->reason, decision->sha256, rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    bool has_left = message.direction == MAIL_OUTBOUND && message.state == MAIL_SENT;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_email_id(&json, "id", message.id);
    mm_email_id(&json, "email_id", message.id);
    json_out_str(&json, "status",
                 !decision->approve ? STR("rejected")
                 : has_left         ? STR("approved_and_sent")
                                    : STR("approved"));
    json_out_str(&json, "email_status", mm_status(&message));
    json_out_str(&json, "message", decision->approve ? STR("The message is approved") : STR("The message is rejected"));
    json_out_end(&json);
}

void mm_decide(struct request *rq)
{
    static const char *const ids[4] = { "email_id", "id" };
    auto_json json_t *body = NULL;
    struct decision decision;
    struct str email;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (mail_take_any(body, ids, JSON_REQUIRED, &email, &err) && decision_decode(body, &decision, &err))
        decide(rq, email, &decision);
    else
        mail_reply_invalid(rq, &err);
}

void mm_decide_by_id(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct decision decision;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (decision_decode(body, &decision, &err))
        decide(rq, rq->match.params[0], &decision);
    else
        mail_reply_invalid(rq, &err);
}
