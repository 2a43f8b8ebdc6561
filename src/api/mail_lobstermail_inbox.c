/*
 * Accounts, inboxes and webhooks in LobsterMail's dialect.
 */
#include "api/mail_lobstermail.h"

/* The service's tiers: every account here is a verified one, and the limits are the server's own. */
enum { TIER = 1 };
#define TIER_NAME STR("free_verified")

/* ---- accounts ---- */

void lm_signup(struct request *rq)
{
    auto_wipe struct secret token = { 0 };
    struct mail_account account;
    uint32_t retry_s = 0;
    struct err err;

    if (!action_account_create(rq->actions, str_from(rq->mail->place), rq->arena, &account, &token, &retry_s, &err)) {
        mail_reply_err_after(rq, &err, retry_s);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    lm_id(&json, "id", LM_ACCOUNT, account.id);
    json_out_str(&json, "token", secret_reveal(&token));
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void lm_account(struct request *rq)
{
    struct mail_account account;
    struct err err;

    if (!action_account_get(rq->actions, mail_caller(rq), rq->arena, &account, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    lm_id(&json, "id", LM_ACCOUNT, account.id);
    json_out_int(&json, "tier", TIER);
    json_out_str(&json, "tierName", TIER_NAME);
    json_out_object(&json, "limits");
    json_out_int(&json, "maxInboxes", account.inbox_most);
    json_out_int(&json, "dailyEmailLimit", account.sends_per_day);
    json_out_bool(&json, "canSend", true);
    json_out_end(&json);
    json_out_object(&json, "usage");
    json_out_int(&json, "inboxCount", account.inbox_count);
    json_out_int(&json, "totalEmailsReceived", (int64_t)account.received);
    json_out_end(&json);
    json_out_bool(&json, "xVerificationPending", false);
    lm_time(&json, "createdAt", account.created_us);
    lm_time(&json, "lastActiveAt", account.last_active_us ? account.last_active_us : account.created_us);
    json_out_end(&json);
}

/* ---- inboxes ---- */

static void answer_inbox(struct request *rq, unsigned status, const struct inbox_info *inbox, struct str token)
{
    struct json_out json = reply_json(rq, status);

    json_out_object(&json, NULL);
    lm_inbox_fields(&json, inbox, token);
    json_out_end(&json);
}

/* From inside a sandbox some requests need the operator's code; the API has no field for it, so we add one. */
static void answer_code_needed(struct request *rq)
{
    mail_reply_problem(rq, 403,
                       "The operator has to agree (cloister mail codes). Send the same request with 'approvalCode'.");
}

void lm_inbox_create(struct request *rq)
{
    struct inbox_want want = { .mode = -1, .local = STR(""), .display_name = STR(""), .approval_code = STR("") };
    struct str domain = STR(""), ours = str_from(rq->actions->mail->domain);
    auto_wipe struct secret token = { 0 };
    auto_json json_t *body = NULL;
    struct inbox_info inbox;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "localPart", JSON_OPTIONAL, &want.local, &err) ||
        !json_take_str(body, "displayName", JSON_OPTIONAL, &want.display_name, &err) ||
        !json_take_str(body, "domain", JSON_OPTIONAL, &domain, &err) ||
        !json_take_str(body, "approvalCode", JSON_OPTIONAL, &want.approval_code, &err)) {
        mail_reply_invalid(rq, &err);
    } else if (str_has_char(want.local, '@')) {
        mail_reply_problem(rq, 400, "'localPart' is the part of the address before the @");
    } else if (domain.len && !str_eq_nocase(domain, ours)) {
        mail_reply_problem(rq, 400, "'domain' must be %.*s: this server has no other domain", STR_ARG(ours));
    } else if (!action_inbox_create(rq->actions, mail_caller(rq), &want, rq->arena, &inbox, &token, &is_pending,
                                    &err)) {
        mail_reply_err(rq, &err);
    } else if (is_pending) {
        answer_code_needed(rq);
    } else {
        answer_inbox(rq, 201, &inbox, secret_reveal(&token));
        reply_field(rq, STR("Cache-Control"), STR("no-store"));
    }
}

void lm_inboxes(struct request *rq)
{
    struct inbox_info *inboxes;
    size_t count;
    struct err err;

    if (!action_inbox_list(rq->actions, mail_caller(rq), rq->arena, &inboxes, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "data");
    for (size_t i = 0; i < count; i++) {
        if (!inboxes[i].is_active)
            continue;
        json_out_object(&json, NULL);
        lm_inbox_fields(&json, &inboxes[i], STR(""));
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void lm_inbox(struct request *rq)
{
    struct inbox_info inbox;
    struct err err;

    if (action_inbox_get(rq->actions, mail_caller(rq), lm_param(rq, 0, LM_INBOX), rq->arena, &inbox, &err))
        answer_inbox(rq, 200, &inbox, STR(""));
    else
        mail_reply_err(rq, &err);
}

void lm_inbox_update(struct request *rq)
{
    struct inbox_change change = { .mode = -1,
                                   .undo_s = -1,
                                   .schedule_first = -1,
                                   .scheduling_enabled = -1,
                                   .forward_inbound = -1,
                                   .mcp_configured = -1,
                                   .auto_extract = -1 };
    bool auto_extract = false, is_pending = false;
    auto_json json_t *body = NULL;
    struct inbox_info inbox;
    struct str name;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_bool(body, "autoExtract", JSON_OPTIONAL, &auto_extract, &err) ||
        !json_take_str(body, "displayName", JSON_OPTIONAL, &name, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (auto_extract) {
        mail_reply_problem(rq, 501, "This server has no model that extracts data from messages: autoExtract stays off");
        return;
    }
    if (json_has(body, "displayName"))
        change.display_name = &name;
    if (!action_inbox_update(rq->actions, mail_caller(rq), lm_param(rq, 0, LM_INBOX), &change, rq->arena, &inbox,
                             &is_pending, &err))
        mail_reply_err(rq, &err);
    else if (is_pending)
        answer_code_needed(rq);
    else
        answer_inbox(rq, 200, &inbox, STR(""));
}

void lm_inbox_delete(struct request *rq)
{
    struct str id = lm_param(rq, 0, LM_INBOX);
    struct err err;

    if (action_inbox_delete(rq->actions, mail_caller(rq), id, rq->arena, &err))
        lm_answer_deleted(rq, LM_INBOX, id);
    else
        mail_reply_err(rq, &err);
}

/* ---- webhooks ---- */

static bool take_events(const json_t *body, struct arena *arena, struct webhook_want *want, struct err *err)
{
    static const struct str usual = STR_INIT("email.received");
    const json_t *list = NULL, *item;
    size_t i;

    want->events = &usual;
    want->event_count = 1;
    if (!json_take_array(body, "events", JSON_OPTIONAL, &list, err))
        return false;
    if (!list)
        return true;
    if (json_array_size(list) > LIMIT_MAIL_EVENTS)
        return err_set(err, ERR_INVALID, "'events' has more than %d entries", LIMIT_MAIL_EVENTS);
    struct str *events = ARENA_ARRAY(arena, struct str, json_array_size(list) + 1);
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item))
            return err_set(err, ERR_INVALID, "'events' must be an array of names such as email.received");
        events[i] = json_str(item);
    }
    want->events = events;
    want->event_count = (uint32_t)json_array_size(list);
    return true;
}

void lm_webhook_add(struct request *rq)
{
    struct webhook_want want = { .inbox_ref = STR(""), .secret = STR(""), .approval_code = STR("") };
    auto_json json_t *body = NULL;
    struct mail_webhook webhook;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "url", JSON_REQUIRED, &want.url, &err) ||
        !json_take_str(body, "inboxId", JSON_OPTIONAL, &want.inbox_ref, &err) ||
        !json_take_str(body, "approvalCode", JSON_OPTIONAL, &want.approval_code, &err) ||
        !take_events(body, rq->arena, &want, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    want.inbox_ref = mail_id_plain(want.inbox_ref, LM_INBOX);
    if (!action_webhook_add(rq->actions, mail_caller(rq), &want, rq->arena, &webhook, &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    lm_webhook_fields(&json, &webhook);
    json_out_str(&json, "secret", webhook.secret);
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void lm_webhooks(struct request *rq)
{
    struct mail_webhook *rows;
    size_t count;
    struct err err;

    if (!action_webhook_list(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "data");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        lm_webhook_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void lm_webhook_update(struct request *rq)
{
    struct str id = lm_param(rq, 0, LM_WEBHOOK);
    auto_json json_t *body = NULL;
    bool is_enabled = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_bool(body, "enabled", JSON_REQUIRED, &is_enabled, &err)) {
        mail_reply_invalid(rq, &err);
    } else if (!is_enabled) {
        mail_reply_problem(rq, 400, "A webhook can be enabled again; to end it, delete it");
    } else if (!action_webhook_enable(rq->actions, mail_caller(rq), id, rq->arena, &err)) {
        mail_reply_err(rq, &err);
    } else {
        struct json_out json = reply_json(rq, 200);
        json_out_object(&json, NULL);
        lm_id(&json, "id", LM_WEBHOOK, arena_text(rq->arena, id));
        json_out_bool(&json, "enabled", true);
        json_out_end(&json);
    }
}

void lm_webhook_delete(struct request *rq)
{
    struct str id = lm_param(rq, 0, LM_WEBHOOK);
    struct err err;

    if (action_webhook_remove(rq->actions, mail_caller(rq), id, rq->arena, &err))
        lm_answer_deleted(rq, LM_WEBHOOK, id);
    else
        mail_reply_err(rq, &err);
}
