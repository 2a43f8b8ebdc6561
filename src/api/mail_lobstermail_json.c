/*
 * LobsterMail's shapes: inboxes and messages as JSON, queries and the body of a send.
 */
#include <stdio.h>

#include "api/mail_lobstermail.h"
#include "api/mail_multimail.h" /* addresses and times are read alike */

enum {
    DEFAULT_LIMIT = 20,
    SEARCH_LIMIT = 50,
    TO_MOST = 50,      /* the service's own limit */
    RISK_PERCENT = 50, /* as its client has it */
};

/* ---- values ---- */

void lm_id(struct json_out *json, const char *name, struct str prefix, const char *id)
{
    char text[16 + MAIL_MESSAGE_ID_BYTES];

    if (!id[0]) {
        json_out_null(json, name);
        return;
    }
    (void)snprintf(text, sizeof text, "%.*s%s", STR_ARG(prefix), id);
    json_out_str(json, name, str_from(text));
}

void lm_time(struct json_out *json, const char *name, int64_t us)
{
    if (us)
        time_encode(json, name, us);
    else
        json_out_null(json, name);
}

struct str lm_state_status(enum mail_state state)
{
    static const struct str names[MAIL_STATE_COUNT] = {
        [MAIL_SCAN] = STR_INIT("queued"),       [MAIL_HELD] = STR_INIT("pending_approval"),
        [MAIL_APPROVED] = STR_INIT("queued"),   [MAIL_SCHEDULED] = STR_INIT("scheduled"),
        [MAIL_UNDO] = STR_INIT("queued"),       [MAIL_QUEUED] = STR_INIT("queued"),
        [MAIL_SENDING] = STR_INIT("queued"),    [MAIL_DEFERRED] = STR_INIT("queued"),
        [MAIL_SENT] = STR_INIT("sent"),         [MAIL_UNCERTAIN] = STR_INIT("uncertain"),
        [MAIL_REJECTED] = STR_INIT("rejected"), [MAIL_CANCELLED] = STR_INIT("cancelled"),
        [MAIL_FAILED] = STR_INIT("failed"),     [MAIL_EXPIRED] = STR_INIT("rejected"),
        [MAIL_BOUNCED] = STR_INIT("bounced"),
    };

    return names[state];
}

static struct str status_of(const struct mail_message *message)
{
    if (message->direction == MAIL_OUTBOUND)
        return lm_state_status(message->state);
    switch (message->in_status) {
    case MAIL_IN_HELD:
        return STR("pending_approval");
    case MAIL_IN_QUARANTINED:
        return STR("quarantined");
    default:
        return STR("received");
    }
}

static struct str domain_of(struct str address)
{
    struct str rest = address, local;

    return str_cut(&rest, '@', &local) && rest.at ? rest : STR("");
}

static void text_or_null(struct json_out *json, const char *name, struct str text)
{
    if (text.len)
        json_out_str(json, name, text);
    else
        json_out_null(json, name);
}

void lm_inbox_fields(struct json_out *json, const struct inbox_info *inbox, struct str token)
{
    lm_id(json, "id", LM_INBOX, inbox->id);
    json_out_str(json, "address", inbox->address);
    text_or_null(json, "displayName", inbox->display_name);
    json_out_str(json, "domain", domain_of(inbox->address));
    json_out_bool(json, "isActive", inbox->is_active);
    json_out_int(json, "emailCount", inbox->message_count);
    json_out_null(json, "expiresAt");
    lm_time(json, "createdAt", inbox->created_us);
    json_out_bool(json, "autoExtract", false);
    json_out_str(json, "oversightMode", str_from(mail_mode_name[inbox->mode])); /* ours: what becomes of a send */
    if (token.len)
        json_out_str(json, "token", token);
}

static void addresses(struct json_out *json, const char *name, const struct str *list, uint32_t count)
{
    json_out_array(json, name);
    for (uint32_t i = 0; i < count; i++)
        json_out_str(json, NULL, list[i]);
    json_out_end(json);
}

/* The score and the flags are read without a look whether they are there, also for sent messages. */
static void security(struct json_out *json, const struct mail_content *content)
{
    uint32_t percent = MIN(content->injection_percent, 100u);
    char score[8];

    (void)snprintf(score, sizeof score, "%u.%02u", percent / 100, percent % 100);
    json_out_object(json, "security");
    json_out_raw(json, "injectionRiskScore", str_from(score));
    addresses(json, "flags", content->flags, content->flag_count);
    /* Messages between inboxes of this server: nothing was signed, and nothing could be. */
    json_out_null(json, "spf");
    json_out_null(json, "dkim");
    json_out_null(json, "dmarc");
    json_out_end(json);
}

static void attachments(struct json_out *json, const struct mail_message *message)
{
    json_out_array(json, "attachments");
    for (uint32_t i = 0; i < message->content.attachment_count; i++) {
        const struct mail_attachment *file = &message->content.attachments[i];
        char key[MAIL_MESSAGE_ID_BYTES + 32];
        (void)snprintf(key, sizeof key, "eml_%s/%u", message->id, i);
        json_out_object(json, NULL);
        json_out_str(json, "filename", file->name);
        json_out_str(json, "contentType", file->content_type);
        json_out_str(json, "s3Key", str_from(key)); /* only a name: there is no such store */
        json_out_int(json, "sizeBytes", (int64_t)file->size);
        json_out_end(json);
    }
    json_out_end(json);
}

void lm_email(struct json_out *json, const char *name, const struct mail_message *message, enum lm_body body)
{
    const struct mail_content *content = &message->content;
    bool is_in = message->direction == MAIL_INBOUND;

    json_out_object(json, name);
    lm_id(json, "id", LM_EMAIL, message->id);
    lm_id(json, "inboxId", LM_INBOX, message->inbox_id);
    json_out_str(json, "direction", is_in ? STR("inbound") : STR("outbound"));
    /* The address alone: the client compares it with a filter. A held message shows its id and status only. */
    json_out_str(json, "from", mail_bare_address(content->from));
    addresses(json, "to", content->to, content->to_count);
    if (content->cc_count)
        addresses(json, "cc", content->cc, content->cc_count);
    else
        json_out_null(json, "cc");
    json_out_str(json, "subject", content->subject);
    text_or_null(json, "preview", content->preview);
    if (body == LM_BODY) {
        json_out_str(json, "body", content->text);
        text_or_null(json, "html", content->html);
        text_or_null(json, "messageId", content->message_id);
    } else {
        json_out_null(json, "body");
    }
    json_out_bool(json, "isRead",
                  !is_in || message->in_status == MAIL_IN_READ || message->in_status == MAIL_IN_ARCHIVED);
    json_out_bool(json, "hasAttachments", content->attachment_count > 0);
    lm_id(json, "threadId", LM_THREAD, message->thread_id);
    attachments(json, message);
    security(json, content);
    json_out_bool(json, "isInjectionRisk", content->injection_percent >= RISK_PERCENT);
    json_out_str(json, "status", status_of(message));
    lm_time(json, "createdAt", message->created_us);
    lm_time(json, "receivedAt", is_in ? (message->received_us ? message->received_us : message->created_us) : 0);
    json_out_end(json);
}

void lm_webhook_fields(struct json_out *json, const struct mail_webhook *webhook)
{
    lm_id(json, "id", LM_WEBHOOK, webhook->id);
    json_out_str(json, "url", webhook->url);
    addresses(json, "events", webhook->events, webhook->event_count);
    json_out_bool(json, "enabled", webhook->is_enabled);
    json_out_int(json, "failureCount", webhook->failures);
    lm_time(json, "createdAt", webhook->created_us);
}

void lm_answer_deleted(struct request *rq, struct str prefix, struct str id)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    lm_id(&json, "id", prefix, arena_text(rq->arena, str_of(id.at, MIN(id.len, (size_t)MAIL_MESSAGE_ID_BYTES))));
    json_out_bool(&json, "deleted", true);
    json_out_end(&json);
}

/* ---- requests ---- */

struct str lm_param(const struct request *rq, size_t at, struct str prefix)
{
    return mail_id_plain(rq->match.params[at], prefix);
}

bool lm_query_time(const struct request *rq, const char *name, int64_t *out, struct err *err)
{
    return mm_query_time(rq, name, out, err);
}

static bool take_direction(const struct request *rq, struct mail_filter *out, struct err *err)
{
    struct str text;

    if (!query(rq, STR("direction"), &text))
        return true;
    if (!str_eq(text, STR("inbound")) && !str_eq(text, STR("outbound")))
        return err_set(err, ERR_INVALID, "'direction' must be inbound or outbound");
    out->inbound = str_eq(text, STR("inbound"));
    out->outbound = !out->inbound;
    return true;
}

static bool take_search(const struct request *rq, struct mail_filter *out, struct err *err)
{
    struct str text;

    if (!query(rq, STR("q"), &out->text))
        return err_set(err, ERR_INVALID, "'q' is missing: the text to search for");
    if (!query(rq, STR("hasAttachments"), &text))
        return true;
    if (!str_eq(text, STR("true")) && !str_eq(text, STR("false")))
        return err_set(err, ERR_INVALID, "'hasAttachments' must be true or false");
    out->has_attachments = str_eq(text, STR("true"));
    return true;
}

bool lm_filter_decode(const struct request *rq, enum lm_list kind, struct mail_filter *out, struct err *err)
{
    uint64_t limit = kind == LM_POLL ? LIMIT_MAIL_POLL_ROWS : DEFAULT_LIMIT;
    uint64_t most = kind == LM_SEARCH ? SEARCH_LIMIT : LIMIT_MAIL_PAGE;
    struct str text;

    *out =
        (struct mail_filter){ .inbound = true, .outbound = true, .in_status = -1, .state = -1, .has_attachments = -1 };
    if (!query_check(rq, err) || !lm_query_time(rq, "since", &out->after_us, err))
        return false;
    if (kind == LM_POLL) {
        out->outbound = false;
        if (query(rq, STR("subject"), &text))
            out->subject_part = text;
    } else if (!query_number(rq, "limit", 1, most, &limit, err) || !take_direction(rq, out, err) ||
               !lm_query_time(rq, "until", &out->before_us, err)) {
        return false;
    }
    if (kind == LM_SEARCH && !take_search(rq, out, err))
        return false;
    if (query(rq, STR("from"), &text))
        *(kind == LM_SEARCH ? &out->from_part : &out->from_exact) = text;
    if (kind != LM_POLL && query(rq, STR("cursor"), &text))
        out->before_id = mail_id_plain(text, LM_EMAIL);
    out->limit = (uint32_t)limit;
    return true;
}

/* {"text":…,"html":…}, or a text alone. */
static bool take_body(const json_t *body, struct send_want *out, struct err *err)
{
    const json_t *value = json_object_get(body, "body"), *parts = NULL;

    if (json_is_string(value)) {
        out->text = json_str(value);
    } else if (!json_take_object(body, "body", JSON_REQUIRED, &parts, err) ||
               !json_take_str(parts, "text", JSON_OPTIONAL, &out->text, err) ||
               !json_take_str(parts, "html", JSON_OPTIONAL, &out->html, err)) {
        return false;
    }
    return out->text.len || out->html.len ||
           err_set(err, ERR_INVALID, "'body' needs 'text' or 'html' that is not empty");
}

bool lm_send_decode(const json_t *body, struct arena *arena, struct send_want *out, struct err *err)
{
    static const struct mail_file_names file_names = { { "filename" }, { "content" }, { "contentType" } };

    *out = (struct send_want){ .schedule_first = -1 };
    if (!json_take_str(body, "from", JSON_OPTIONAL, &out->from, err) ||
        !mm_take_list(body, "to", TO_MOST, arena, &out->to, &out->to_count, err) ||
        !mm_take_list(body, "cc", TO_MOST, arena, &out->cc, &out->cc_count, err) ||
        !json_take_str(body, "subject", JSON_REQUIRED, &out->subject, err) || !take_body(body, out, err) ||
        !json_take_str(body, "replyTo", JSON_OPTIONAL, &out->reply_to, err) ||
        !json_take_str(body, "inReplyTo", JSON_OPTIONAL, &out->answers, err) ||
        !json_take_str(body, "threadId", JSON_OPTIONAL, &out->thread_id, err) ||
        !mail_take_attachments(body, &file_names, arena, out, err))
        return false;
    if (!out->to_count)
        return err_set(err, ERR_INVALID, "'to' is missing: 1 to %d addresses", TO_MOST);
    out->inbox_ref =
        mail_bare_address(out->from); /* one of the account's inboxes; the action sends from no other address */
    out->answers = mail_id_plain(out->answers, LM_EMAIL);
    out->thread_id = mail_id_plain(out->thread_id, LM_THREAD);
    return true;
}
