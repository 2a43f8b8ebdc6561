/*
 * MultiMail's shapes: messages as JSON, and the fields of requests.
 */
#include "api/mail_multimail.h"
#include "base/clock.h"
#include "base/encode.h"

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

/* Names that several states have: the one in which messages stay. */
static const struct {
    struct str name;
    enum mail_state state;
} states_by_name[] = {
    { STR_INIT("pending_scan"), MAIL_SCAN },
    { STR_INIT("pending_send_approval"), MAIL_HELD },
    { STR_INIT("pending_approval"), MAIL_HELD }, /* as older clients say it */
    { STR_INIT("scheduled"), MAIL_SCHEDULED },
    { STR_INIT("queued"), MAIL_QUEUED },
    { STR_INIT("sent"), MAIL_SENT },
    { STR_INIT("uncertain"), MAIL_UNCERTAIN },
    { STR_INIT("rejected"), MAIL_REJECTED },
    { STR_INIT("cancelled"), MAIL_CANCELLED },
    { STR_INIT("send_failed"), MAIL_FAILED },
};

bool mm_status_filter(struct str status, struct mail_filter *filter)
{
    for (size_t i = 0; i < COUNT_OF(states_by_name); i++) {
        if (!str_eq(status, states_by_name[i].name))
            continue;
        filter->inbound = false;
        filter->state = (int)states_by_name[i].state;
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

/* "Name <a@b.example>" → "a@b.example" */
static struct str bare_address(struct str shown)
{
    struct str rest = shown, head, address;

    if (str_ends(shown, STR(">")) && str_cut(&rest, '<', &head) && rest.at && str_cut(&rest, '>', &address))
        return address;
    return shown;
}

static void text_or_null(struct json_out *json, const char *name, struct str text)
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
    json_out_str(json, "from_address", bare_address(content->from));
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
    text_or_null(json, "user_label", message->label);
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

static void attachments(struct json_out *json, const struct mail_content *content)
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
    attachments(json, content);
    json_out_object(json, "headers");
    json_out_str(json, "Message-ID", content->message_id);
    json_out_str(json, "In-Reply-To", content->in_reply_to);
    json_out_str(json, "References", content->references);
    mm_time(json, "Date", content->date_us);
    json_out_end(json);
    mm_time(json, "approved_at", is_approved ? message->decided_us : 0);
    text_or_null(json, "approved_by", is_approved ? message->decided_by : STR(""));
    text_or_null(json, "reason", message->reason);
    if (message->sha256[0])
        json_out_str(json, "content_sha256", str_from(message->sha256));
    mm_tags(json, "tags", message->tags, message->tag_count);
}

/* ---- fields in ---- */

bool mm_take_any(const json_t *object, const char *const names[4], enum json_need need, struct str *out,
                 struct err *err)
{
    for (int i = 0; i < 4 && names[i]; i++)
        if (json_has(object, names[i]))
            return json_take_str(object, names[i], JSON_REQUIRED, out, err);
    return need == JSON_OPTIONAL || err_set(err, ERR_INVALID, "'%s' is missing", names[0]);
}

static bool add_text(const json_t *value, const char *name, uint32_t most, struct str *list, uint32_t *count,
                     struct err *err)
{
    if (!json_is_string(value))
        return err_set(err, ERR_INVALID, "'%s' must be a text or an array of texts", name);
    struct str text = str_trim(json_str(value)), rest = text, item;
    /* A comma inside a quoted name does not separate. */
    if (str_has_char(text, '"')) {
        if (*count == most)
            return err_set(err, ERR_INVALID, "'%s' has more than %u entries", name, most);
        list[(*count)++] = text;
        return true;
    }
    while (str_cut(&rest, ',', &item)) {
        item = str_trim(item);
        if (!item.len)
            continue;
        if (*count == most)
            return err_set(err, ERR_INVALID, "'%s' has more than %u entries", name, most);
        list[(*count)++] = item;
    }
    return true;
}

bool mm_take_list(const json_t *object, const char *name, uint32_t most, struct arena *arena, const struct str **out,
                  uint32_t *out_count, struct err *err)
{
    const json_t *value = json_object_get(object, name), *item;
    uint32_t count = 0;
    size_t i;

    if (!json_has(object, name))
        return true;
    struct str *list = ARENA_ARRAY(arena, struct str, most);
    if (!json_is_array(value) && !add_text(value, name, most, list, &count, err))
        return false;
    json_array_foreach(value, i, item)
    {
        if (!add_text(item, name, most, list, &count, err))
            return false;
    }
    *out = list;
    *out_count = count;
    return true;
}

bool mm_take_flag(const json_t *object, const char *name, int *out, struct err *err)
{
    const json_t *value = json_object_get(object, name);

    if (!json_has(object, name))
        return true;
    if (json_is_boolean(value))
        *out = json_is_true(value);
    else if (json_is_integer(value) && (json_integer_value(value) == 0 || json_integer_value(value) == 1))
        *out = (int)json_integer_value(value);
    else
        return err_set(err, ERR_INVALID, "'%s' must be true, false, 1 or 0", name);
    return true;
}

/* Time of a request: RFC 3339, a date, or milliseconds since 1970 as the service's own lists have them. */
static bool time_decode(struct str text, int64_t *out_us)
{
    char room[32];
    uint64_t ms;

    if (str_to_u64(text, INT64_MAX / 1000, &ms)) {
        *out_us = (int64_t)ms * 1000;
        return true;
    }
    if (text.len == 10) {
        (void)snprintf(room, sizeof room, "%.*sT00:00:00Z", STR_ARG(text));
        text = str_from(room);
    }
    return clock_parse(text, out_us);
}

static bool take_attachment(const json_t *item, struct arena *arena, struct mail_attachment *out, struct err *err)
{
    static const char *const names[4] = { "name", "filename" };
    static const char *const contents[4] = { "content_base64", "content" };
    static const char *const types[4] = { "content_type", "contentType" };
    struct str text = STR("");

    if (!json_is_object(item))
        return err_set(err, ERR_INVALID, "'attachments' must be an array of objects");
    out->content_type = STR("application/octet-stream");
    if (!mm_take_any(item, names, JSON_REQUIRED, &out->name, err) ||
        !mm_take_any(item, contents, JSON_REQUIRED, &text, err) ||
        !mm_take_any(item, types, JSON_OPTIONAL, &out->content_type, err))
        return err_wrap(err, "attachments");
    unsigned char *bytes = arena_alloc(arena, text.len / 4 * 3 + 3);
    size_t len;
    if (!base64_decode(text, bytes, &len))
        return err_set(err, ERR_INVALID, "'content_base64' of attachment '%.*s' is not base64",
                       (int)MIN(out->name.len, (size_t)60), out->name.at);
    out->content = str_of(bytes, len);
    out->size = len;
    return true;
}

static bool take_attachments(const json_t *body, struct arena *arena, struct send_want *out, struct err *err)
{
    const json_t *list = NULL, *item;
    size_t i;

    if (!json_take_array(body, "attachments", JSON_OPTIONAL, &list, err))
        return false;
    if (!list)
        return true;
    if (json_array_size(list) > LIMIT_MAIL_ATTACHMENTS)
        return err_set(err, ERR_INVALID, "'attachments' has more than %d entries", LIMIT_MAIL_ATTACHMENTS);
    struct mail_attachment *files = ARENA_ARRAY(arena, struct mail_attachment, json_array_size(list));
    json_array_foreach(list, i, item)
    {
        if (!take_attachment(item, arena, &files[i], err))
            return false;
    }
    out->attachments = files;
    out->attachment_count = (uint32_t)json_array_size(list);
    return true;
}

static bool take_timing(const json_t *body, struct send_want *out, struct err *err)
{
    static const char *const times[4] = { "send_at", "scheduled_at" };
    struct str at = STR(""), timing = STR("");

    if (!mm_take_any(body, times, JSON_OPTIONAL, &at, err) ||
        !json_take_str(body, "gate_timing", JSON_OPTIONAL, &timing, err))
        return false;
    /* An offset would be valid RFC 3339. The service refuses it, so that no one is an hour off. */
    if (at.len && (!str_ends(at, STR("Z")) || !clock_parse(at, &out->send_at_us)))
        return err_set(err, ERR_INVALID, "'send_at' must be a time in UTC such as 2026-01-05T10:00:00Z");
    out->schedule_first = str_eq(timing, STR("schedule_first")) ? 1 : str_eq(timing, STR("gate_first")) ? 0 : -1;
    if (timing.len && out->schedule_first < 0)
        return err_set(err, ERR_INVALID, "'gate_timing' must be gate_first or schedule_first");
    return true;
}

bool mm_send_decode(const json_t *body, struct arena *arena, struct send_want *out, struct err *err)
{
    static const char *const boxes[4] = { "mailbox_id", "mailbox", "inbox_id" };
    static const char *const bodies[4] = { "markdown", "body", "text", "text_body" };
    static const char *const htmls[4] = { "html", "html_body" };
    static const char *const replies[4] = { "in_reply_to", "reply_to_email_id" };

    *out = (struct send_want){ .schedule_first = -1 };
    if (!mm_take_any(body, boxes, JSON_OPTIONAL, &out->inbox_ref, err) ||
        !json_take_str(body, "from", JSON_OPTIONAL, &out->from, err) ||
        !mm_take_list(body, "to", LIMIT_MAIL_RECIPIENTS, arena, &out->to, &out->to_count, err) ||
        !mm_take_list(body, "cc", LIMIT_MAIL_RECIPIENTS, arena, &out->cc, &out->cc_count, err) ||
        !mm_take_list(body, "bcc", LIMIT_MAIL_RECIPIENTS, arena, &out->bcc, &out->bcc_count, err) ||
        !json_take_str(body, "reply_to", JSON_OPTIONAL, &out->reply_to, err) ||
        !json_take_str(body, "subject", JSON_OPTIONAL, &out->subject, err) ||
        !mm_take_any(body, bodies, JSON_OPTIONAL, &out->markdown, err) ||
        !mm_take_any(body, htmls, JSON_OPTIONAL, &out->html, err) ||
        !mm_take_any(body, replies, JSON_OPTIONAL, &out->answers, err) ||
        !json_take_str(body, "thread_id", JSON_OPTIONAL, &out->thread_id, err) ||
        !json_take_str(body, "idempotency_key", JSON_OPTIONAL, &out->idempotency_key, err) ||
        !take_attachments(body, arena, out, err) || !take_timing(body, out, err))
        return false;
    out->answers = mail_id_plain(out->answers, MM_EMAIL_PREFIX);
    /* Markdown and HTML exclude each other: with HTML the other body is its plain text. */
    if (out->html.len) {
        out->text = out->markdown;
        out->markdown = STR("");
    }
    return true;
}

static bool take_time(const struct request *rq, const char *name, int64_t *out, struct err *err)
{
    struct str text;

    if (!query(rq, str_from(name), &text))
        return true;
    return time_decode(text, out) ||
           err_set(err, ERR_INVALID, "'%s' must be a time such as 2026-01-05T10:00:00Z", name);
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

bool mm_filter_decode(const struct request *rq, uint32_t limit, struct mail_filter *out, struct err *err)
{
    uint64_t number = limit, offset = 0;
    struct str text;

    *out =
        (struct mail_filter){ .inbound = true, .outbound = true, .in_status = -1, .state = -1, .has_attachments = -1 };
    if (!query_check(rq, err) || !query_number(rq, "limit", 1, LIMIT_MAIL_PAGE, &number, err) ||
        !query_number(rq, "offset", 0, UINT32_MAX, &offset, err) || !take_direction(rq, out, err) ||
        !take_time(rq, "date_after", &out->after_us, err) || !take_time(rq, "date_before", &out->before_us, err))
        return false;
    out->limit = (uint32_t)number;
    out->offset = (uint32_t)offset;
    if (query(rq, STR("status"), &text) && !mm_status_filter(text, out))
        return err_set(err, ERR_INVALID,
                       "'status' is not a status of a message, such as unread or pending_send_approval");
    if (query(rq, STR("has_attachments"), &text)) {
        if (!str_eq(text, STR("true")) && !str_eq(text, STR("false")))
            return err_set(err, ERR_INVALID, "'has_attachments' must be true or false");
        out->has_attachments = str_eq(text, STR("true"));
    }
    if (query(rq, STR("sender"), &text))
        out->from_part = text;
    if (query(rq, STR("subject_contains"), &text))
        out->subject_part = text;
    if (query(rq, STR("since_id"), &text))
        out->since_id = mail_id_plain(text, MM_EMAIL_PREFIX);
    if (query(rq, STR("cursor"), &text))
        out->before_id = mail_id_plain(text, MM_EMAIL_PREFIX);
    return true;
}
