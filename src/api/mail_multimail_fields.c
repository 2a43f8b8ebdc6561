/*
 * The fields of MultiMail's requests.
 */
#include <stdio.h>

#include "api/mail_multimail.h"
#include "base/clock.h"

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

bool mm_take_mode(const json_t *object, const char *name, int *out, struct err *err)
{
    struct str text = STR("");
    enum mail_mode mode;

    if (!json_take_str(object, name, JSON_OPTIONAL, &text, err))
        return false;
    if (!json_has(object, name))
        return true;
    if (!mail_mode_parse(text, &mode))
        return err_set(err, ERR_INVALID, "'%s' must be read_only, gated_all, gated_send, monitored or autonomous",
                       name);
    *out = (int)mode;
    return true;
}

bool mm_take_scopes(const json_t *object, uint32_t *out, struct err *err)
{
    static const char *const names[] = { "read", "send", "admin", "oversight", "oversight_read" };
    const json_t *list = NULL, *item;
    uint32_t scopes = 0;
    size_t i;

    if (!json_take_array(object, "scopes", JSON_OPTIONAL, &list, err))
        return false;
    if (!list)
        return true;
    json_array_foreach(list, i, item)
    {
        unsigned at = 0;
        while (at < COUNT_OF(names) && !(json_is_string(item) && str_eq(json_str(item), str_from(names[at]))))
            at++;
        if (at == COUNT_OF(names))
            return err_set(err, ERR_INVALID,
                           "'scopes' must be an array of read, send, admin, oversight, oversight_read");
        scopes |= 1u << at;
    }
    if (!scopes)
        return err_set(err, ERR_INVALID, "'scopes' must not be empty");
    *out = scopes;
    return true;
}

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

static bool take_timing(const json_t *body, struct send_want *out, struct err *err)
{
    static const char *const times[4] = { "send_at", "scheduled_at" };
    struct str at = STR(""), timing = STR("");

    if (!mail_take_any(body, times, JSON_OPTIONAL, &at, err) ||
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
    static const struct mail_file_names file_names = { .name = { "name", "filename" },
                                                       .content = { "content_base64", "content" },
                                                       .type = { "content_type", "contentType" } };

    *out = (struct send_want){ .schedule_first = -1 };
    if (!mail_take_any(body, boxes, JSON_OPTIONAL, &out->inbox_ref, err) ||
        !json_take_str(body, "from", JSON_OPTIONAL, &out->from, err) ||
        !mm_take_list(body, "to", LIMIT_MAIL_RECIPIENTS, arena, &out->to, &out->to_count, err) ||
        !mm_take_list(body, "cc", LIMIT_MAIL_RECIPIENTS, arena, &out->cc, &out->cc_count, err) ||
        !mm_take_list(body, "bcc", LIMIT_MAIL_RECIPIENTS, arena, &out->bcc, &out->bcc_count, err) ||
        !json_take_str(body, "reply_to", JSON_OPTIONAL, &out->reply_to, err) ||
        !json_take_str(body, "subject", JSON_OPTIONAL, &out->subject, err) ||
        !mail_take_any(body, bodies, JSON_OPTIONAL, &out->markdown, err) ||
        !mail_take_any(body, htmls, JSON_OPTIONAL, &out->html, err) ||
        !mail_take_any(body, replies, JSON_OPTIONAL, &out->answers, err) ||
        !json_take_str(body, "thread_id", JSON_OPTIONAL, &out->thread_id, err) ||
        !json_take_str(body, "idempotency_key", JSON_OPTIONAL, &out->idempotency_key, err) ||
        !mail_take_attachments(body, &file_names, arena, out, err) || !take_timing(body, out, err))
        return false;
    out->answers = mail_id_plain(out->answers, MM_EMAIL_PREFIX);
    /* Markdown and HTML exclude each other: with HTML the other body is its plain text. */
    if (out->html.len) {
        out->text = out->markdown;
        out->markdown = STR("");
    }
    return true;
}

bool mm_query_time(const struct request *rq, const char *name, int64_t *out, struct err *err)
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
        !mm_query_time(rq, "date_after", &out->after_us, err) ||
        !mm_query_time(rq, "date_before", &out->before_us, err))
        return false;
    out->limit = (uint32_t)number;
    out->offset = (uint32_t)offset;
    if (query(rq, STR("status"), &text) && !mm_status_filter(text, out))
        return err_set(err, ERR_INVALID,
                       "'status' is not a status of a message, such as unread or pending_send_approval");
    if (!out->inbound && !out->outbound)
        return err_set(err, ERR_INVALID, "'status' is one of messages of the other direction");
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
