/*
 * The operator's own routes, below /mail: what `cloister mail` calls, with the admin token. The operator decides about held
 * mail of every tenant and reads nothing that is not held.
 */
#include "api/mail_dialect.h"

static void problem(struct request *rq, const struct mail_problem *what)
{
    reply_problem(rq, what->status, NULL, what->retry_after_s ? RETRY_NO : RETRY_UNSAID, what->message);
}

static void inbox_fields(struct json_out *json, const struct inbox_info *inbox)
{
    json_out_str(json, "id", str_from(inbox->id));
    json_out_str(json, "address", inbox->address);
    json_out_str(json, "name", inbox->display_name);
    json_out_str(json, "tenant", inbox->tenant);
    json_out_str(json, "mode", str_from(mail_mode_name[inbox->mode]));
    json_out_bool(json, "active", inbox->is_active);
    time_encode(json, "created_at", inbox->created_us);
}

static void list_inboxes(struct request *rq)
{
    struct inbox_info *rows;
    size_t count;
    struct err err;

    if (!action_inbox_list(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "inboxes");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        inbox_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

static const struct http_route routes[] = {
    MAIL_ROUTE(GET, "/mail/inboxes", list_inboxes, MAIL_OPERATOR, "List the inboxes of all tenants"),
};

const struct mail_dialect mail_operator = { "operator", routes, COUNT_OF(routes), problem };
