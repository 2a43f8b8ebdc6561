/*
 * MultiMail's shapes: messages as JSON.
 */
#include <stdio.h>

#include "api/mail_multimail.h"

/* ---- states ---- */

static const struct str status_of_state[MAIL_STATE_COUNT] = {
    [MAIL_SCAN] = STR_INIT("pending_scan"),  [MAIL_HELD] = STR_INIT("pending_send_approval"),
    [MAIL_APPROVED] = STR_INIT("scheduled"), [MAIL_SCHEDULED] = STR_INIT("scheduled"),
    [MAIL_UNDO] = STR_INIT("scheduled"),     [MAIL_QUEUED] = STR_INIT("queued"),
    [MAIL_SENDING] = STR_INIT("queued"),     [MAIL_DEFERRED] = STR_INIT("queued"),
    [MAIL_SENT] = STR_INIT("sent"),          [MAIL_UNCERTAIN] = STR_INIT("uncertain"),
    [MAIL_REJECTED] = STR_INIT("rejected"),  [MAIL_CANCELLED] = STR_INIT("cancelled"),
    [MAIL_FAILED] = STR_INIT("send_failed"), [MAIL_EXPIRED] = STR_INIT("rejected"),
    [MAIL_BOUNCED] = STR_INIT("sent"), /* with bounced_at */
};

static const struct str status_of_inbound[] = {
    [MAIL_IN_HELD] = STR_INIT("pending_inbound_approval"),
    [MAIL_IN_UNREAD] = STR_INIT("unread"),
    [MAIL_IN_READ] = STR_INIT("read"),
    [MAIL_IN_ARCHIVED] = STR_INIT("archived"),
    [MAIL_IN_FLAGGED] = STR_INIT("spam_flagged"),
    [MAIL_IN_QUARANTINED] = STR_INIT("spam_quarantined"),
    [MAIL_IN_REJECTED] = STR_INIT("rejected"),
    [MAIL_IN_DELETED] = STR_INIT("deleted"),
};

struct str mm_state_status(enum mail_state state)
{
    return status_of_state[state];
}

struct str mm_status(const struct mail_message *message)
{
    return message->direction == MAIL_INBOUND ? status_of_inbound[message->in_status] : status_of_state[message->state];
}

bool mm_status_filter(struct str status, struct mail_filter *filter)
{
    if (str_eq(status, STR("pending_approval"))) /* as older clients say it */
        status = status_of_state[MAIL_HELD];
    for (int i = 0; i < MAIL_STATE_COUNT; i++) /* several states may have the same name */
        if (str_eq(status, status_of_state[i]))
            filter->states |= UINT32_C(1) << i;
    if (filter->states) {
        filter->inbound = false;
        return true;
    }
    for (int i = 0; i < (int)COUNT_OF(status_of_inbound); i++) {
        if (!str_eq(status, status_of_inbound[i]))
            continue;
        filter->outbound = false;
        filter->in_status = i;
        filter->include_spam = i == MAIL_IN_FLAGGED || i == MAIL_IN_QUARANTINED;
        return true;
    }
    return false;
}

/* ---- messages out ---- */

void mm_time(struct json_out *json, const char *name, int64_t us)
{
    if (us)
        time_encode(json, name, us);
    else
        json_out_null(json, name);
}

void mm_email_id(struct json_out *json, const char *name, const char *id)
{
    char text[sizeof "em_" + MAIL_MESSAGE_ID_BYTES];

    if (!id[0]) {
        json_out_null(json, name);
        return;
    }
    (void)snprintf(text, sizeof text, "em_%s", id);
    json_out_str(json, name, str_from(text));
}

void mm_strings(struct json_out *json, const char *name, const struct str *texts, uint32_t count)
{
    json_out_array(json, name);
    for (uint32_t i = 0; i < count; i++)
        json_out_str(json, NULL, texts[i]);
    json_out_end(json);
}

void mm_text(struct json_out *json, const char *name, struct str text)
{
    if (text.len)
        json_out_str(json, name, text);
    else
        json_out_null(json, name);
}

static struct str spam_verdict(const struct mail_message *message)
{
    switch (message->in_status) {
    case MAIL_IN_FLAGGED:
        return STR("flagged");
    case MAIL_IN_QUARANTINED:
        return STR("quarantined");
    default:
        return STR("clean");
    }
}

void mm_summary(struct json_out *json, const struct mail_message *message)
{
    const struct mail_content *content = &message->content;
    bool is_in = message->direction == MAIL_INBOUND;
    int64_t at_us = is_in && message->received_us ? message->received_us : message->created_us;

    mm_email_id(json, "id", message->id);
    json_out_str(json, "mailbox_id", str_from(message->inbox_id));
    json_out_str(json, "thread_id", str_from(message->thread_id));
    json_out_str(json, "direction", is_in ? STR("inbound") : STR("outbound"));
    json_out_str(json, "status", mm_status(message));
    mm_time(json, "received_at", at_us);
    mm_time(json, "created_at", at_us);
    mm_time(json, "date", at_us);
    /* A held message shows its id and status only. */
    json_out_str(json, "from", content->from);
    json_out_str(json, "from_address", mail_bare_address(content->from));
    mm_strings(json, "to", content->to, content->to_count);
    mm_strings(json, "to_addresses", content->to, content->to_count);
    json_out_str(json, "subject", content->subject);
    json_out_str(json, "preview", content->preview);
    json_out_bool(json, "has_attachments", content->attachment_count > 0);
    if (is_in && message->has_content) {
        json_out_int(json, "spam_score", content->injection_percent);
        json_out_str(json, "spam_verdict", spam_verdict(message));
        mm_strings(json, "security_flags", content->flags, content->flag_count);
    } else {
        json_out_null(json, "spam_score");
        json_out_null(json, "spam_verdict");
    }
    mm_text(json, "user_label", message->label);
    mm_time(json, "delivered_at", message->state == MAIL_BOUNCED ? 0 : message->delivered_us);
    mm_time(json, "bounced_at", message->state == MAIL_BOUNCED ? message->delivered_us : 0);
    if (message->state == MAIL_BOUNCED)
        json_out_str(json, "bounce_type", STR("hard"));
    else
        json_out_null(json, "bounce_type");
    mm_time(json, "send_at", message->send_at_us);
}

void mm_tags(struct json_out *json, const char *name, const struct mail_pair *tags, uint32_t count)
{
    json_out_object(json, name);
    for (uint32_t i = 0; i < count; i++)
        json_out_pair(json, tags[i].key, tags[i].value);
    json_out_end(json);
}

void mm_attachments(struct json_out *json, const struct mail_content *content)
{
    json_out_array(json, "attachments");
    for (uint32_t i = 0; i < content->attachment_count; i++) {
        const struct mail_attachment *file = &content->attachments[i];
        json_out_object(json, NULL);
        json_out_str(json, "name", file->name);
        json_out_str(json, "filename", file->name);
        json_out_int(json, "size", (int64_t)file->size);
        json_out_str(json, "content_type", file->content_type);
        if (file->sha256[0])
            json_out_str(json, "sha256", str_from(file->sha256));
        json_out_end(json);
    }
    json_out_end(json);
}

void mm_email(struct json_out *json, const struct mail_message *message)
{
    const struct mail_content *content = &message->content;
    bool is_approved = message->decided_us && message->state != MAIL_REJECTED && message->in_status != MAIL_IN_REJECTED;

    mm_summary(json, message);
    mm_strings(json, "cc", content->cc, content->cc_count);
    if (message->direction == MAIL_OUTBOUND)
        mm_strings(json, "bcc", content->bcc, content->bcc_count);
    json_out_str(json, "reply_to", content->reply_to);
    json_out_str(json, "markdown", content->text);
    json_out_str(json, "text_body", content->text);
    json_out_str(json, "body", content->text);
    json_out_str(json, "html_body", content->html);
    mm_attachments(json, content);
    json_out_object(json, "headers");
    json_out_str(json, "Message-ID", content->message_id);
    json_out_str(json, "In-Reply-To", content->in_reply_to);
    json_out_str(json, "References", content->references);
    mm_time(json, "Date", content->date_us);
    json_out_end(json);
    mm_time(json, "approved_at", is_approved ? message->decided_us : 0);
    mm_text(json, "approved_by", is_approved ? message->decided_by : STR(""));
    mm_text(json, "reason", message->reason);
    if (message->sha256[0])
        json_out_str(json, "content_sha256", str_from(message->sha256));
    mm_tags(json, "tags", message->tags, message->tag_count);
}

void mm_answer_status(struct request *rq, unsigned status, struct str text)
{
    struct json_out json = reply_json(rq, status);

    json_out_object(&json, NULL);
    json_out_str(&json, "status", text);
    json_out_end(&json);
}

void mm_answer_code_needed(struct request *rq)
{
    struct json_out json = reply_json(rq, 202);

    json_out_object(&json, NULL);
    json_out_str(&json, "status", STR("pending_approval"));
    json_out_str(&json, "message",
                 STR("The operator has a code for this request (cloister mail codes). Send the same request with "
                     "'approval_code'."));
    json_out_end(&json);
}
