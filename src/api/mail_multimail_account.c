/*
 * Keys, webhooks, the account, usage and audit in MultiMail's dialect.
 */
#include <stdio.h>

#include "api/mail_multimail.h"
#include "base/clock.h"

#define DAY_US (86400 * (int64_t)1000000)

enum {
    DEFAULT_AUDIT_LIMIT = 50,
    USAGE_DAYS_MOST = 31, /* of a breakdown by days; each is a question to every inbox of the key */
};

void mm_scopes(struct json_out *json, const char *name, uint32_t scopes)
{
    static const char *const names[] = { "read", "send", "admin", "oversight", "oversight_read" };

    json_out_array(json, name);
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        if (scopes & (1u << i))
            json_out_str(json, NULL, str_from(names[i]));
    json_out_end(json);
}

/* ---- keys ---- */

static void key_fields(struct json_out *json, const struct mail_key_info *key)
{
    json_out_str(json, "id", str_from(key->id));
    json_out_str(json, "name", key->name);
    json_out_str(json, "prefix", key->prefix);
    mm_scopes(json, "scopes", key->scopes);
    mm_text(json, "mailbox_id", str_from(key->inbox_id));
    mm_time(json, "created_at", key->created_us);
    mm_time(json, "last_used_at", key->last_used_us);
    json_out_int(json, "is_active", key->is_active);
}

void mm_keys(struct request *rq)
{
    struct mail_key_info *rows;
    size_t count;
    struct err err;

    if (!action_mail_key_list(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "api_keys");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        key_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void mm_key_create(struct request *rq)
{
    static const char *const boxes[4] = { "mailbox_id", "mailbox" };
    auto_json json_t *body = NULL;
    auto_wipe struct secret text = { 0 };
    struct mail_key_want want = { .scopes = MAIL_SCOPE_READ };
    struct mail_key_info key;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "name", JSON_REQUIRED, &want.name, &err) || !mm_take_scopes(body, &want.scopes, &err) ||
        !mail_take_any(body, boxes, JSON_OPTIONAL, &want.inbox_ref, &err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &want.approval_code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_mail_key_create(rq->actions, mail_caller(rq), &want, rq->arena, &key, &text, &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        mm_answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    key_fields(&json, &key);
    json_out_str(&json, "api_key", secret_reveal(&text)); /* shown only here; the store has the hash */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void mm_key_update(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str name = STR(""), code = STR("");
    uint32_t scopes = 0;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "name", JSON_OPTIONAL, &name, &err) || !mm_take_scopes(body, &scopes, &err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_mail_key_update(rq->actions, mail_caller(rq), rq->match.params[0],
                                json_has(body, "name") ? &name : NULL, scopes, code, rq->arena, &is_pending, &err))
        mail_reply_err(rq, &err);
    else if (is_pending)
        mm_answer_code_needed(rq);
    else
        mm_answer_status(rq, 200, STR("updated"));
}

void mm_key_revoke(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str code = STR("");
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "approval_code", JSON_OPTIONAL, &code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    /* Some clients send no body with DELETE. */
    if (!code.len && !query(rq, STR("approval_code"), &code))
        code = STR("");
    if (!action_mail_key_revoke(rq->actions, mail_caller(rq), rq->match.params[0], code, rq->arena, &is_pending, &err))
        mail_reply_err(rq, &err);
    else if (is_pending)
        mm_answer_code_needed(rq);
    else
        mm_answer_status(rq, 200, STR("revoked"));
}

/* ---- webhooks ---- */

static void webhook_fields(struct json_out *json, const struct mail_webhook *webhook)
{
    json_out_str(json, "id", str_from(webhook->id));
    json_out_str(json, "url", webhook->url);
    mm_strings(json, "events", webhook->events, webhook->event_count);
    json_out_bool(json, "is_active", webhook->is_enabled);
    mm_time(json, "created_at", webhook->created_us);
}

void mm_webhook_add(struct request *rq)
{
    static const char *const boxes[4] = { "mailbox_id", "mailbox" };
    auto_json json_t *body = NULL;
    struct webhook_want want = { .secret = STR("") };
    struct mail_webhook webhook;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "url", JSON_REQUIRED, &want.url, &err) ||
        !mm_take_list(body, "events", LIMIT_MAIL_WEBHOOK_EVENTS, rq->arena, &want.events, &want.event_count, &err) ||
        !mail_take_any(body, boxes, JSON_OPTIONAL, &want.inbox_ref, &err) ||
        !json_take_str(body, "secret", JSON_OPTIONAL, &want.secret, &err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &want.approval_code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!want.event_count) {
        mail_reply_problem(rq, 400, "'events' is missing");
        return;
    }
    if (!action_webhook_add(rq->actions, mail_caller(rq), &want, rq->arena, &webhook, &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        mm_answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    webhook_fields(&json, &webhook);
    mm_text(&json, "mailbox_id", want.inbox_ref);
    json_out_str(&json, "signing_secret", webhook.secret); /* shown only here */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void mm_webhooks(struct request *rq)
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
    for (int twice = 0; twice < 2; twice++) { /* clients of different ages read different names */
        json_out_array(&json, twice ? "webhooks" : "subscriptions");
        for (size_t i = 0; i < count; i++) {
            json_out_object(&json, NULL);
            webhook_fields(&json, &rows[i]);
            json_out_end(&json);
        }
        json_out_end(&json);
    }
    json_out_end(&json);
}

void mm_webhook(struct request *rq)
{
    struct mail_webhook *rows;
    size_t count, at = 0;
    struct err err;

    if (!action_webhook_list(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    while (at < count && !str_eq(rq->match.params[0], str_from(rows[at].id)))
        at++;
    if (at == count) {
        mail_reply_problem(rq, 404, "there is no such webhook");
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    webhook_fields(&json, &rows[at]);
    json_out_end(&json);
}

void mm_webhook_remove(struct request *rq)
{
    struct err err;

    if (action_webhook_remove(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &err))
        mm_answer_status(rq, 200, STR("deleted"));
    else
        mail_reply_err(rq, &err);
}

/* ---- account and usage ---- */

void mm_account(struct request *rq)
{
    struct mail_account account;
    struct err err;

    if (!action_account_get(rq->actions, mail_caller(rq), rq->arena, &account, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "id", str_from(account.id));
    json_out_str(&json, "name", account.name);
    json_out_str(&json, "slug", account.tenant);
    json_out_str(&json, "plan", STR("self-hosted"));
    mm_text(&json, "oversight_email", account.oversight_address);
    json_out_null(&json, "physical_address");
    json_out_int(&json, "daily_email_quota", account.sends_per_day);
    json_out_int(&json, "monthly_email_quota", 30 * (int64_t)account.sends_per_day);
    json_out_int(&json, "emails_sent", (int64_t)account.sent);
    json_out_int(&json, "emails_received", (int64_t)account.received);
    json_out_int(&json, "max_mailboxes", account.inbox_most);
    json_out_int(&json, "mailbox_count", account.inbox_count);
    json_out_int(&json, "storage_used_bytes", (int64_t)account.storage_bytes);
    json_out_int(&json, "is_active", 1);
    json_out_int(&json, "sending_disabled", 0);
    json_out_null(&json, "sending_disabled_reason");
    json_out_object(&json, "account");
    json_out_str(&json, "name", account.name);
    json_out_end(&json);
    json_out_end(&json);
}

void mm_account_update(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str address, code = STR("");
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (json_has(body, "name") || json_has(body, "physical_address")) {
        mail_reply_problem(rq, 501,
                           "Only 'oversight_email' can be changed: the operator of this server names accounts");
        return;
    }
    if (!json_take_str(body, "oversight_email", JSON_REQUIRED, &address, &err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_oversight_address(rq->actions, mail_caller(rq), STR(""), address, code, rq->arena, &is_pending, &err))
        mail_reply_err(rq, &err);
    else if (is_pending)
        mm_answer_code_needed(rq);
    else
        mm_answer_status(rq, 200, STR("updated"));
}

static void day_row(struct json_out *json, int64_t at_us, const char *event, uint64_t count)
{
    char room[CLOCK_TEXT_BYTES];

    if (!count)
        return;
    json_out_object(json, NULL);
    json_out_str(json, "date", str_of(clock_text(at_us, room), 10));
    json_out_str(json, "event_type", str_from(event));
    json_out_int(json, "count", (int64_t)count);
    json_out_end(json);
}

static void answer_days(struct request *rq, int64_t from_us, int64_t to_us)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    json_out_int(&json, "from", from_us / 1000);
    json_out_int(&json, "to", to_us / 1000);
    json_out_str(&json, "breakdown", STR("daily"));
    json_out_array(&json, "data");
    for (int64_t day = from_us - from_us % DAY_US; day < to_us; day += DAY_US) {
        struct mail_usage usage;
        struct err err;
        if (!action_account_usage(rq->actions, mail_caller(rq), MAX(day, from_us), MIN(day + DAY_US, to_us), rq->arena,
                                  &usage, &err)) {
            mail_reply_err(rq, &err);
            return;
        }
        day_row(&json, day, "email_sent", usage.sent);
        day_row(&json, day, "email_received", usage.received);
        day_row(&json, day, "oversight_action", usage.approved + usage.rejected);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void mm_usage(struct request *rq)
{
    int64_t to_us = clock_wall_us(), from_us = to_us - 30 * DAY_US;
    struct mail_usage usage;
    struct str text;
    struct err err;

    if (!query_check(rq, &err) || !mm_query_time(rq, "from", &from_us, &err) ||
        !mm_query_time(rq, "to", &to_us, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (from_us >= to_us) {
        mail_reply_problem(rq, 400, "'to' must be after 'from'");
        return;
    }
    bool is_daily =
        (query(rq, STR("breakdown"), &text) || query(rq, STR("period"), &text)) && str_eq(text, STR("daily"));
    if (is_daily && (to_us - from_us) / DAY_US > USAGE_DAYS_MOST) {
        mail_reply_problem(rq, 400, "a breakdown by days has at most %d days", USAGE_DAYS_MOST);
        return;
    }
    if (is_daily) {
        answer_days(rq, from_us, to_us);
        return;
    }
    if (!action_account_usage(rq->actions, mail_caller(rq), from_us, to_us, rq->arena, &usage, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_int(&json, "from", from_us / 1000);
    json_out_int(&json, "to", to_us / 1000);
    json_out_int(&json, "emails_sent", (int64_t)usage.sent);
    json_out_int(&json, "emails_received", (int64_t)usage.received);
    json_out_null(&json, "api_calls"); /* not counted over time */
    json_out_int(&json, "oversight_actions", (int64_t)(usage.approved + usage.rejected));
    json_out_int(&json, "emails_held", (int64_t)usage.held);
    json_out_int(&json, "pending", usage.pending);
    json_out_int(&json, "sent_today", usage.sent_today);
    json_out_int(&json, "storage_bytes", (int64_t)usage.storage_bytes);
    json_out_end(&json);
}

/* ---- audit ---- */

/* The action says what kind of thing it is about: "message.accept". Messages have their prefix, as everywhere. */
static void resource_fields(struct json_out *json, const struct mail_audit *row)
{
    char handle[MAIL_HANDLE_BYTES];
    struct str rest = row->action, type;
    char id[MAIL_MESSAGE_ID_BYTES];

    bool is_message =
        str_cut(&rest, '.', &type) && str_eq(type, STR("message")) && mail_message_id_handle(row->resource, handle);
    json_out_str(json, "resource_type", is_message ? STR("email") : type);
    if (is_message) {
        (void)snprintf(id, sizeof id, "%.*s", STR_ARG(row->resource));
        mm_email_id(json, "resource_id", id);
    } else {
        json_out_str(json, "resource_id", row->resource);
    }
}

/* What an inbox's worker calls JSON is checked before it becomes part of ours. */
static void metadata(struct json_out *json, struct str detail)
{
    struct err err;
    auto_json json_t *parsed = detail.len ? json_parse(detail, &err) : NULL;

    if (parsed)
        json_out_raw(json, "metadata", detail);
    else
        mm_text(json, "metadata", detail);
}

static void answer_audit(struct request *rq, struct str mailbox)
{
    uint64_t limit = DEFAULT_AUDIT_LIMIT, before = 0;
    struct mail_audit *rows;
    size_t count;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "limit", 1, LIMIT_MAIL_PAGE, &limit, &err) ||
        !query_number(rq, "cursor", 1, INT64_MAX, &before, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_audit_list(rq->actions, mail_caller(rq), mailbox, before, (uint32_t)limit, rq->arena, &rows, &count,
                           &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "entries");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        json_out_str(&json, "id", arena_format(rq->arena, "%llu", (unsigned long long)rows[i].number));
        json_out_str(&json, "action", rows[i].action);
        resource_fields(&json, &rows[i]);
        json_out_str(&json, "actor_key_id", rows[i].actor);
        metadata(&json, rows[i].detail);
        mm_time(&json, "created_at", rows[i].at_us);
        json_out_str(&json, "hash", str_from(rows[i].hash));
        json_out_str(&json, "prev_hash", str_from(rows[i].prev_hash));
        json_out_end(&json);
    }
    json_out_end(&json);
    if (count == limit && rows[count - 1].number > 1)
        json_out_str(&json, "cursor", arena_format(rq->arena, "%llu", (unsigned long long)rows[count - 1].number));
    else
        json_out_null(&json, "cursor");
    json_out_end(&json);
}

void mm_audit(struct request *rq)
{
    struct str mailbox = STR("");

    if (!query(rq, STR("mailbox_id"), &mailbox))
        mailbox = STR("");
    answer_audit(rq, mailbox);
}

void mm_audit_of_inbox(struct request *rq)
{
    answer_audit(rq, rq->match.params[0]);
}

/* ---- the server ---- */

static void domain_fields(struct json_out *json, const struct request *rq)
{
    struct str domain = str_from(rq->actions->mail->domain);

    json_out_str(json, "id", domain);
    json_out_str(json, "domain", domain);
    json_out_str(json, "status", STR("active"));
    /* Nothing is signed or looked up in DNS: this version delivers to its own inboxes only. */
    json_out_bool(json, "dkim_verified", false);
    json_out_bool(json, "spf_verified", false);
    json_out_bool(json, "mx_verified", false);
    json_out_bool(json, "return_path_verified", false);
    json_out_object(json, "dns_records");
    json_out_end(json);
}

void mm_domains(struct request *rq)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    json_out_array(&json, "domains");
    json_out_object(&json, NULL);
    domain_fields(&json, rq);
    json_out_end(&json);
    json_out_end(&json);
    json_out_end(&json);
}

void mm_domain(struct request *rq)
{
    if (!str_eq_nocase(rq->match.params[0], str_from(rq->actions->mail->domain))) {
        mail_reply_problem(rq, 404, "there is no such domain");
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    domain_fields(&json, rq);
    json_out_end(&json);
}

void mm_health(struct request *rq)
{
    mm_answer_status(rq, 200, STR("ok"));
}
