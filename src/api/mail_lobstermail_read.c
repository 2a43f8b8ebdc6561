/*
 * Reading in LobsterMail's dialect: messages, attachments, threads, search.
 */
#include "api/mail_lobstermail.h"

enum { DEFAULT_LIMIT = 20 };

/* ---- lists ---- */

static void rows(struct json_out *json, const struct mail_page *page)
{
    json_out_array(json, "data");
    for (size_t i = 0; i < page->count; i++)
        lm_email(json, NULL, &page->rows[i], LM_NO_BODY);
    json_out_end(json);
}

void lm_emails(struct request *rq)
{
    struct mail_filter filter;
    struct mail_page page;
    struct err err;

    if (!lm_filter_decode(rq, LM_LIST, &filter, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_mail_list(rq->actions, mail_caller(rq), lm_param(rq, 0, LM_INBOX), &filter, rq->arena, &page, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    rows(&json, &page);
    if (page.more)
        lm_id(&json, "cursor", LM_EMAIL, page.cursor);
    json_out_end(&json);
}

void lm_search(struct request *rq)
{
    struct mail_filter filter;
    struct mail_page page;
    struct str inbox;
    struct err err;

    if (!lm_filter_decode(rq, LM_SEARCH, &filter, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!(query(rq, STR("inboxId"), &inbox)
              ? action_mail_list(rq->actions, mail_caller(rq), mail_id_plain(inbox, LM_INBOX), &filter, rq->arena,
                                 &page, &err)
              : action_mail_search(rq->actions, mail_caller(rq), &filter, rq->arena, &page, &err))) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    rows(&json, &page);
    json_out_object(&json, "pagination");
    json_out_bool(&json, "hasMore", page.more);
    lm_id(&json, "cursor", LM_EMAIL, page.more ? page.cursor : "");
    json_out_end(&json);
    json_out_end(&json);
}

/* ---- one message ---- */

void lm_email_get(struct request *rq)
{
    struct mail_message message;
    struct err err;

    if (!action_mail_read(rq->actions, mail_caller(rq), lm_param(rq, 0, LM_INBOX), lm_param(rq, 1, LM_EMAIL),
                          MAIL_WANT_TEXT | MAIL_WANT_MARK_READ, rq->arena, &message, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    lm_email(&json, NULL, &message, LM_BODY);
}

void lm_attachment(struct request *rq)
{
    auto_wipe struct secret token = { 0 };
    struct mail_attachment file;
    struct err err;

    if (!action_attachment_link(rq->actions, mail_caller(rq), lm_param(rq, 0, LM_INBOX), lm_param(rq, 1, LM_EMAIL),
                                rq->match.params[2], true, rq->arena, &file, &token, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "downloadUrl",
                 mail_url(rq, arena_format(rq->arena, "/v1/files/%.*s", STR_ARG(secret_reveal(&token)))));
    json_out_str(&json, "filename", file.name);
    json_out_str(&json, "contentType", file.content_type);
    json_out_int(&json, "sizeBytes", (int64_t)file.size);
    json_out_int(&json, "expiresIn", LIMIT_MAIL_FILE_LINK_S);
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void lm_file(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_attachment_open(rq->actions, rq->match.params[0], rq->arena, &file, &err))
        mail_reply_file(rq, &file);
    else
        mail_reply_err(rq, &err);
}

/* The same whether the message is there or not. */
void lm_extraction(struct request *rq)
{
    mail_reply_problem(rq, 404, "there is no extraction: this server has no model that extracts data from messages");
}

/* ---- threads ---- */

static void thread_fields(struct json_out *json, struct str inbox_id, const struct mail_thread *thread)
{
    char id[MAIL_INBOX_ID_BYTES] = "";

    memcpy(id, inbox_id.at, MIN(inbox_id.len, sizeof id - 1));
    lm_id(json, "id", LM_THREAD, thread->id);
    lm_id(json, "inboxId", LM_INBOX, id);
    json_out_str(json, "subject", thread->subject);
    json_out_int(json, "emailCount", thread->message_count);
    lm_time(json, "lastEmailAt", thread->last_us);
    lm_time(json, "createdAt", thread->created_us);
}

void lm_threads(struct request *rq)
{
    struct str inbox_id = lm_param(rq, 0, LM_INBOX), cursor = STR("");
    uint64_t limit = DEFAULT_LIMIT;
    struct mail_thread *threads;
    size_t count;
    bool more;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "limit", 1, LIMIT_MAIL_PAGE, &limit, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!query(rq, STR("cursor"), &cursor))
        cursor = STR("");
    if (!action_thread_list(rq->actions, mail_caller(rq), inbox_id, mail_id_plain(cursor, LM_THREAD), (uint32_t)limit,
                            rq->arena, &threads, &count, &more, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "data");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        thread_fields(&json, inbox_id, &threads[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_bool(&json, "hasMore", more);
    lm_id(&json, "cursor", LM_THREAD, more && count ? threads[count - 1].id : "");
    json_out_end(&json);
}

void lm_thread(struct request *rq)
{
    struct str inbox_id = lm_param(rq, 0, LM_INBOX);
    struct mail_thread thread;
    struct err err;

    if (!action_thread_get(rq->actions, mail_caller(rq), inbox_id, lm_param(rq, 1, LM_THREAD), rq->arena, &thread,
                           &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    thread_fields(&json, inbox_id, &thread);
    json_out_array(&json, "emails");
    for (uint32_t i = 0; i < thread.shown_count; i++) {
        lm_email(&json, NULL, &thread.messages[i], LM_NO_BODY);
    }
    json_out_end(&json);
    json_out_end(&json);
}
