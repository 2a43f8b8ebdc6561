/*
 * Reading in MultiMail's dialect.
 */
#include "api/mail_multimail.h"

enum { DEFAULT_LIMIT = 20 };

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
    mm_email_id(&json, "cursor", page->more && page->count ? page->rows[page->count - 1].id : "");
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

void mm_inbox(struct request *rq)
{
    struct mail_filter filter;
    struct mail_page page;
    struct err err;

    if (!mm_filter_decode(rq, DEFAULT_LIMIT, &filter, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    filter.inbound = true;
    filter.outbound = false;
    if (action_mail_list(rq->actions, mail_caller(rq), rq->match.params[0], &filter, rq->arena, &page, &err))
        answer_page(rq, &page, "messages", "emails");
    else
        mail_reply_err(rq, &err);
}
