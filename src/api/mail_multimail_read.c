/*
 * Reading in MultiMail's dialect: messages, attachments, threads, tags, spam, contacts.
 */
#include "api/mail_multimail.h"

enum {
    DEFAULT_LIMIT = 20,
    DEFAULT_LIMIT_SHORT = 25, /* of the short form */
    LINK_S = 3600,            /* how long a link to an attachment works */
};

static struct str email_param(const struct request *rq, size_t at)
{
    return mail_id_plain(rq->match.params[at], MM_EMAIL_PREFIX);
}

/* ---- lists ---- */

/* `name` is the list's own name; published scripts also read it by a second one. */
static void answer_page(struct request *rq, const struct mail_page *page, const char *name, const char *second)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    for (const char *key = name; key; key = key == name ? second : NULL) {
        json_out_array(&json, key);
        for (size_t i = 0; i < page->count; i++) {
            json_out_object(&json, NULL);
            mm_summary(&json, &page->rows[i]);
            json_out_end(&json);
        }
        json_out_end(&json);
    }
    mm_email_id(&json, "cursor", page->more ? page->cursor : "");
    json_out_end(&json);
}

void mm_emails(struct request *rq)
{
    struct mail_filter filter;
    struct mail_page page;
    struct err err;

    if (!mm_filter_decode(rq, DEFAULT_LIMIT, &filter, &err))
        mail_reply_invalid(rq, &err);
    else if (!action_mail_list(rq->actions, mail_caller(rq), rq->match.params[0], &filter, rq->arena, &page, &err))
        mail_reply_err(rq, &err);
    else
        answer_page(rq, &page, "emails", NULL);
}

static void answer_inbox(struct request *rq, struct str inbox_ref, uint32_t limit)
{
    struct mail_filter filter;
    struct mail_page page;
    struct err err;

    if (!mm_filter_decode(rq, limit, &filter, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!filter.inbound) {
        mail_reply_problem(rq, 400, "'status' and 'direction' must be those of received messages here");
        return;
    }
    filter.outbound = false;
    if (action_mail_list(rq->actions, mail_caller(rq), inbox_ref, &filter, rq->arena, &page, &err))
        answer_page(rq, &page, "messages", "emails");
    else
        mail_reply_err(rq, &err);
}

void mm_inbox(struct request *rq)
{
    answer_inbox(rq, rq->match.params[0], DEFAULT_LIMIT);
}

void mm_inbox_by_address(struct request *rq)
{
    struct str inbox = STR("");

    if (!query(rq, STR("mailbox"), &inbox) && !query(rq, STR("mailbox_id"), &inbox))
        inbox = STR("");
    answer_inbox(rq, inbox, DEFAULT_LIMIT_SHORT);
}

void mm_spam(struct request *rq)
{
    struct mail_filter filter;
    struct mail_page page;
    struct err err;

    if (!mm_filter_decode(rq, DEFAULT_LIMIT, &filter, &err))
        mail_reply_invalid(rq, &err);
    else if (!action_mail_search(rq->actions, mail_caller(rq), &filter, rq->arena, &page, &err))
        mail_reply_err(rq, &err);
    else
        answer_page(rq, &page, "emails", NULL);
}

/* ---- one message ---- */

static void answer_email(struct request *rq, struct str inbox_ref, struct str email)
{
    struct mail_message message;
    struct err err;

    if (!action_mail_read(rq->actions, mail_caller(rq), inbox_ref, email, MAIL_WANT_TEXT | MAIL_WANT_MARK_READ,
                          rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_email(&json, &message);
    json_out_end(&json);
}

void mm_read(struct request *rq)
{
    answer_email(rq, rq->match.params[0], email_param(rq, 1));
}

void mm_read_by_id(struct request *rq)
{
    answer_email(rq, STR(""), email_param(rq, 0));
}

void mm_attachment(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_attachment_read(rq->actions, mail_caller(rq), rq->match.params[0], email_param(rq, 1),
                               rq->match.params[2], false, rq->arena, &file, &err))
        mail_reply_file(rq, &file);
    else
        mail_reply_err(rq, &err);
}

void mm_attachment_url(struct request *rq)
{
    auto_wipe struct secret token = { 0 };
    struct mail_attachment file;
    struct err err;

    if (!action_attachment_link(rq->actions, mail_caller(rq), rq->match.params[0], email_param(rq, 1),
                                rq->match.params[2], false, rq->arena, &file, &token, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "url", mail_url(rq, arena_format(rq->arena, "/v1/files/%.*s", STR_ARG(secret_reveal(&token)))));
    json_out_str(&json, "filename", file.name);
    json_out_int(&json, "size_bytes", (int64_t)file.size);
    json_out_str(&json, "content_type", file.content_type);
    json_out_int(&json, "expires_in", LINK_S);
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void mm_file(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_attachment_open(rq->actions, rq->match.params[0], rq->arena, &file, &err))
        mail_reply_file(rq, &file);
    else
        mail_reply_err(rq, &err);
}

static void answer_label(struct request *rq, bool is_spam)
{
    struct mail_message message;
    struct err err;

    if (!action_mail_label(rq->actions, mail_caller(rq), email_param(rq, 0), is_spam, rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_email_id(&json, "id", message.id);
    json_out_str(&json, "status", mm_status(&message));
    json_out_str(&json, "user_label", message.label);
    json_out_end(&json);
}

void mm_report_spam(struct request *rq)
{
    answer_label(rq, true);
}

void mm_not_spam(struct request *rq)
{
    answer_label(rq, false);
}

/* ---- threads ---- */

static void thread_fields(struct json_out *json, const struct mail_thread *thread)
{
    json_out_str(json, "thread_id", str_from(thread->id));
    json_out_str(json, "subject", thread->subject);
    json_out_int(json, "message_count", thread->message_count);
    mm_strings(json, "participants", thread->participants, thread->participant_count);
    mm_time(json, "last_activity", thread->last_us);
    json_out_bool(json, "has_unanswered_inbound", thread->has_unanswered_inbound);
}

static void answer_thread(struct request *rq, struct str inbox_ref, struct str id)
{
    struct mail_thread thread;
    struct err err;

    if (!action_thread_get(rq->actions, mail_caller(rq), inbox_ref, id, rq->arena, &thread, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    thread_fields(&json, &thread);
    json_out_array(&json, "emails");
    for (uint32_t i = 0; i < thread.shown_count; i++) {
        json_out_object(&json, NULL);
        mm_summary(&json, &thread.messages[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void mm_thread(struct request *rq)
{
    answer_thread(rq, rq->match.params[0], rq->match.params[1]);
}

void mm_thread_by_id(struct request *rq)
{
    answer_thread(rq, STR(""), rq->match.params[0]);
}

void mm_threads(struct request *rq)
{
    uint64_t limit = DEFAULT_LIMIT;
    struct str cursor = STR("");
    struct mail_thread *rows;
    size_t count;
    bool more;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "limit", 1, LIMIT_MAIL_PAGE, &limit, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!query(rq, STR("cursor"), &cursor))
        cursor = STR("");
    if (!action_thread_list(rq->actions, mail_caller(rq), rq->match.params[0], cursor, (uint32_t)limit, rq->arena,
                            &rows, &count, &more, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "threads");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        thread_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    mm_text(&json, "cursor", more && count ? str_from(rows[count - 1].id) : STR(""));
    json_out_end(&json);
}

/* ---- tags ---- */

static void answer_tags(struct request *rq, struct str email, const struct mail_pair *tags, uint32_t count)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    mm_email_id(&json, "id", arena_text(rq->arena, email));
    mm_tags(&json, "tags", tags, count);
    json_out_end(&json);
}

void mm_tags_get(struct request *rq)
{
    struct mail_message message;
    struct err err;

    if (action_mail_read(rq->actions, mail_caller(rq), rq->match.params[0], email_param(rq, 1), 0, rq->arena, &message,
                         &err))
        answer_tags(rq, email_param(rq, 1), message.tags, message.tag_count);
    else
        mail_reply_err(rq, &err);
}

static bool tags_decode(const json_t *body, struct arena *arena, struct mail_pair **out, uint32_t *out_count,
                        struct err *err)
{
    const json_t *tags = json_object_get(body, "tags"), *item;
    uint32_t count = 0;
    const char *key;
    size_t i;

    if (!json_is_object(tags) && !json_is_array(tags))
        return err_set(err, ERR_INVALID, "'tags' must be an object of texts, or an array of names");
    size_t all = json_is_array(tags) ? json_array_size(tags) : json_object_size(tags);
    if (all == 0 || all > LIMIT_MAIL_TAGS)
        return err_set(err, ERR_INVALID, "'tags' must have 1 to %d entries", LIMIT_MAIL_TAGS);
    struct mail_pair *pairs = ARENA_ARRAY(arena, struct mail_pair, all);
    json_array_foreach(tags, i, item)
    {
        if (!json_is_string(item) || !json_string_length(item))
            return err_set(err, ERR_INVALID, "'tags' must be an array of names");
        pairs[count++] = (struct mail_pair){ json_str(item), STR("true") };
    }
    json_object_foreach((json_t *)tags, key, item)
    {
        if (!json_is_string(item) || !json_string_length(item) || !key[0])
            return err_set(err, ERR_INVALID, "tag '%.60s' must have a text that is not empty; DELETE removes a tag",
                           key);
        pairs[count++] = (struct mail_pair){ str_from(key), json_str(item) };
    }
    *out = pairs;
    *out_count = count;
    return true;
}

static void set_tags(struct request *rq, struct str inbox_ref, struct str email)
{
    auto_json json_t *body = NULL;
    struct mail_pair *tags, *after;
    uint32_t count, after_count;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!tags_decode(body, rq->arena, &tags, &count, &err))
        mail_reply_invalid(rq, &err);
    else if (!action_tags_set(rq->actions, mail_caller(rq), inbox_ref, email, tags, count, rq->arena, &after,
                              &after_count, &err))
        mail_reply_err(rq, &err);
    else
        answer_tags(rq, email, after, after_count);
}

void mm_tags_set(struct request *rq)
{
    set_tags(rq, rq->match.params[0], email_param(rq, 1));
}

void mm_tag_by_id(struct request *rq)
{
    set_tags(rq, STR(""), email_param(rq, 0));
}

static void answer_deleted(struct request *rq)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    json_out_bool(&json, "deleted", true);
    json_out_end(&json);
}

void mm_tag_delete(struct request *rq)
{
    struct mail_pair gone = { rq->match.params[2], STR("") }, *after;
    uint32_t after_count;
    struct err err;

    if (action_tags_set(rq->actions, mail_caller(rq), rq->match.params[0], email_param(rq, 1), &gone, 1, rq->arena,
                        &after, &after_count, &err))
        answer_deleted(rq);
    else
        mail_reply_err(rq, &err);
}

/* ---- contacts ---- */

static void contact_fields(struct json_out *json, const struct mail_contact *contact)
{
    json_out_str(json, "id", str_from(contact->id));
    json_out_str(json, "name", contact->name);
    json_out_str(json, "email", contact->email);
    mm_strings(json, "tags", contact->tags, contact->tag_count);
    json_out_int(json, "created_at", contact->created_us / 1000);
}

void mm_contacts(struct request *rq)
{
    struct mail_contact *rows;
    struct str text = STR("");
    size_t count;
    struct err err;

    if (!query_check(rq, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!query(rq, STR("q"), &text) && !query(rq, STR("query"), &text))
        text = STR("");
    if (!action_contact_list(rq->actions, mail_caller(rq), text, rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "contacts");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        contact_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void mm_contact_add(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct mail_contact want = { .name = STR("") }, made;
    const struct str *tags = NULL;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "email", JSON_REQUIRED, &want.email, &err) ||
        !json_take_str(body, "name", JSON_OPTIONAL, &want.name, &err) ||
        !mm_take_list(body, "tags", LIMIT_MAIL_TAGS, rq->arena, &tags, &want.tag_count, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    want.tags = (struct str *)tags;
    if (!action_contact_add(rq->actions, mail_caller(rq), &want, rq->arena, &made, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    contact_fields(&json, &made);
    json_out_end(&json);
}

void mm_contact_delete(struct request *rq)
{
    struct err err;

    if (action_contact_remove(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &err))
        answer_deleted(rq);
    else
        mail_reply_err(rq, &err);
}
