/*
 * The operator's own routes, below /mail: what `cloister mail` calls, with the admin token. The operator makes inboxes and
 * keys, sees codes, sets modes, and decides about held mail of every tenant. Nothing here reads a message that is not held.
 *
 * Errors have the shape of the sandbox API, {"code":…,"message":…}. Times are ISO 8601. An inbox is named by its id or its
 * address, a message by its id with or without em_.
 */
#include "api/mail_multimail.h"
#include "base/clock.h"

static void problem(struct request *rq, const struct mail_problem *what)
{
    bool may_repeat = what->status == 429 || what->status >= 502;

    reply_problem(rq, what->status, NULL, may_repeat ? RETRY_NO : RETRY_UNSAID, what->message);
}

static struct str message_param(const struct request *rq)
{
    return mail_id_plain(rq->match.params[0], MM_EMAIL_PREFIX);
}

static void answer_done(struct request *rq, const char *name)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    json_out_bool(&json, name, true);
    json_out_end(&json);
}

/* ---- inboxes ---- */

static void inbox_fields(struct json_out *json, const struct inbox_info *inbox)
{
    json_out_str(json, "id", str_from(inbox->id));
    json_out_str(json, "address", inbox->address);
    json_out_str(json, "name", inbox->display_name);
    json_out_str(json, "tenant", inbox->tenant);
    json_out_str(json, "mode", str_from(mail_mode_name[inbox->mode]));
    json_out_int(json, "undo_seconds", inbox->undo_s);
    json_out_bool(json, "active", inbox->is_active);
    mm_time(json, "created_at", inbox->created_us);
    mm_time(json, "deleted_at", inbox->deleted_us);
}

static void inbox_list(struct request *rq)
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

static void answer_inbox(struct request *rq, const struct inbox_info *inbox)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    inbox_fields(&json, inbox);
    json_out_end(&json);
}

static void inbox_get(struct request *rq)
{
    struct inbox_info inbox;
    struct err err;

    if (action_inbox_get(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &inbox, &err))
        answer_inbox(rq, &inbox);
    else
        mail_reply_err(rq, &err);
}

static void inbox_create(struct request *rq)
{
    auto_json json_t *body = NULL;
    auto_wipe struct secret key = { 0 };
    struct inbox_want want = { .mode = -1 };
    struct inbox_info inbox;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "name", JSON_REQUIRED, &want.local, &err) ||
        !json_take_str(body, "display_name", JSON_OPTIONAL, &want.display_name, &err) ||
        !json_take_str(body, "tenant", JSON_OPTIONAL, &want.tenant, &err) ||
        !mm_take_mode(body, "mode", &want.mode, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_inbox_create(rq->actions, mail_caller(rq), &want, rq->arena, &inbox, &key, &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    inbox_fields(&json, &inbox);
    json_out_bool(&json, "made_tenant", inbox.made_tenant);
    json_out_str(&json, "key", secret_reveal(&key)); /* shown only here; the store has the hash */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

static void inbox_delete(struct request *rq)
{
    struct err err;

    if (action_inbox_delete(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &err))
        answer_done(rq, "deleted");
    else
        mail_reply_err(rq, &err);
}

/* The operator goes up and down the ladder without a code. */
static void inbox_mode(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct inbox_change change = { .undo_s = -1,
                                   .schedule_first = -1,
                                   .scheduling_enabled = -1,
                                   .forward_inbound = -1,
                                   .mcp_configured = -1,
                                   .auto_extract = -1 };
    struct inbox_info inbox;
    bool is_pending = false;
    int mode = -1;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!mm_take_mode(body, "mode", &mode, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (mode < 0) {
        mail_reply_problem(rq, 400, "'mode' is missing");
        return;
    }
    if (!action_inbox_get(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &inbox, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    change.mode = mode;
    if (mode > (int)inbox.mode ? action_inbox_raise_mode(rq->actions, mail_caller(rq), str_from(inbox.id), STR(""),
                                                         mode, rq->arena, &inbox, &err)
                               : action_inbox_update(rq->actions, mail_caller(rq), str_from(inbox.id), &change,
                                                     rq->arena, &inbox, &is_pending, &err))
        answer_inbox(rq, &inbox);
    else
        mail_reply_err(rq, &err);
}

/* ---- allowlist ---- */

static void allow_fields(struct json_out *json, const struct mail_allow *entry)
{
    json_out_str(json, "id", str_from(entry->id));
    json_out_str(json, "pattern", entry->pattern);
    mm_time(json, "created_at", entry->created_us);
}

static void allow_list(struct request *rq)
{
    struct mail_allow *rows;
    size_t count;
    struct err err;

    if (!action_allow_list(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "entries");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        allow_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

static void allow_add(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct mail_allow entry;
    bool is_pending = false;
    struct str pattern;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "pattern", JSON_REQUIRED, &pattern, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_allow_add(rq->actions, mail_caller(rq), rq->match.params[0], pattern, STR(""), rq->arena, &entry,
                          &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    allow_fields(&json, &entry);
    json_out_end(&json);
}

static void allow_remove(struct request *rq)
{
    bool is_pending = false;
    struct err err;

    if (action_allow_remove(rq->actions, mail_caller(rq), rq->match.params[0], rq->match.params[1], STR(""), rq->arena,
                            &is_pending, &err))
        answer_done(rq, "removed");
    else
        mail_reply_err(rq, &err);
}

/* ---- keys and codes ---- */

static void key_fields(struct json_out *json, const struct mail_key_info *key)
{
    json_out_str(json, "id", str_from(key->id));
    json_out_str(json, "name", key->name);
    json_out_str(json, "prefix", key->prefix);
    mm_scopes(json, "scopes", key->scopes);
    json_out_str(json, "tenant", key->tenant);
    mm_text(json, "inbox", str_from(key->inbox_id));
    mm_time(json, "created_at", key->created_us);
    mm_time(json, "last_used_at", key->last_used_us);
    json_out_bool(json, "active", key->is_active);
}

static void key_list(struct request *rq)
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
    json_out_array(&json, "keys");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        key_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

static void key_create(struct request *rq)
{
    auto_json json_t *body = NULL;
    auto_wipe struct secret text = { 0 };
    struct mail_key_want want = { .scopes = MAIL_SCOPE_OVERSIGHT };
    struct mail_key_info key;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "name", JSON_REQUIRED, &want.name, &err) || !mm_take_scopes(body, &want.scopes, &err) ||
        !json_take_str(body, "tenant", JSON_OPTIONAL, &want.tenant, &err) ||
        !json_take_str(body, "inbox", JSON_OPTIONAL, &want.inbox_ref, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_mail_key_create(rq->actions, mail_caller(rq), &want, rq->arena, &key, &text, &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    key_fields(&json, &key);
    json_out_str(&json, "key", secret_reveal(&text)); /* shown only here; the store has the hash */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

static void key_revoke(struct request *rq)
{
    bool is_pending = false;
    struct err err;

    if (action_mail_key_revoke(rq->actions, mail_caller(rq), rq->match.params[0], STR(""), rq->arena, &is_pending,
                               &err))
        answer_done(rq, "revoked");
    else
        mail_reply_err(rq, &err);
}

static void code_list(struct request *rq)
{
    struct mail_code *rows;
    size_t count;
    struct err err;

    if (!action_mail_codes(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "codes");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        json_out_str(&json, "code", rows[i].code);
        json_out_str(&json, "what", rows[i].what);
        mm_text(&json, "inbox", rows[i].inbox_id);
        json_out_str(&json, "tenant", rows[i].tenant);
        mm_time(&json, "created_at", rows[i].created_us);
        mm_time(&json, "expires_at", rows[i].expires_us);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

static void oversight_set(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str address, tenant = STR("");
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "address", JSON_REQUIRED, &address, &err) ||
        !json_take_str(body, "tenant", JSON_OPTIONAL, &tenant, &err))
        mail_reply_invalid(rq, &err);
    else if (!action_oversight_address(rq->actions, mail_caller(rq), tenant, address, STR(""), rq->arena, &is_pending,
                                       &err))
        mail_reply_err(rq, &err);
    else
        answer_done(rq, "updated");
}

/* ---- held messages ---- */

static void pending_list(struct request *rq)
{
    struct pending_page page;
    struct str inbox = STR("");
    struct err err;

    if (!query_check(rq, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!query(rq, STR("inbox"), &inbox))
        inbox = STR("");
    if (!mm_pending_page(rq, inbox, &page))
        return;
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "pending");
    for (size_t i = 0; i < page.count; i++) {
        json_out_object(&json, NULL);
        mm_held(&json, &page.rows[i]);
        json_out_str(&json, "tenant", page.rows[i].inbox.tenant);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_bool(&json, "more", page.cursor.len > 0);
    mm_text(&json, "cursor", page.cursor);
    json_out_end(&json);
}

static void held_get(struct request *rq)
{
    struct held_message held;
    struct err err;

    if (!action_held_get(rq->actions, mail_caller(rq), message_param(rq), rq->arena, &held, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mm_held(&json, &held);
    json_out_str(&json, "tenant", held.inbox.tenant);
    json_out_str(&json, "markdown", held.message.content.text);
    json_out_str(&json, "html", held.message.content.html);
    if (held.answered.has_content) {
        json_out_object(&json, "answers");
        mm_summary(&json, &held.answered);
        json_out_str(&json, "markdown", held.answered.content.text);
        json_out_end(&json);
    } else {
        json_out_null(&json, "answers");
    }
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

static void held_attachment(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_held_attachment(rq->actions, mail_caller(rq), message_param(rq), rq->match.params[1], rq->arena, &file,
                               &err))
        mail_reply_file(rq, &file);
    else
        mail_reply_err(rq, &err);
}

static void held_link(struct request *rq)
{
    auto_wipe struct secret token = { 0 };
    int64_t expires_us = 0;
    struct err err;

    if (!action_approval_link(rq->actions, mail_caller(rq), message_param(rq), rq->arena, &token, &expires_us, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct str path = arena_format(rq->arena, "/approve/%.*s", STR_ARG(secret_reveal(&token)));
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    json_out_str(&json, "path", path);
    json_out_str(&json, "url", mail_url(rq, path));
    mm_time(&json, "expires_at", expires_us);
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

/* ---- grants ---- */

static void grant_fields(struct json_out *json, const struct mail_grant *grant)
{
    json_out_str(json, "id", str_from(grant->id));
    json_out_str(json, "to", str_from(grant->grantee_key_id));
    json_out_str(json, "inbox", str_from(grant->inbox_id));
    json_out_array(json, "verbs");
    if (grant->verbs & MAIL_GRANT_LIST)
        json_out_str(json, NULL, STR("list"));
    if (grant->verbs & MAIL_GRANT_READ)
        json_out_str(json, NULL, STR("read"));
    json_out_end(json);
    json_out_bool(json, "effective", grant->is_effective);
    json_out_str(json, "reason", grant->reason);
    mm_time(json, "created_at", grant->created_us);
    mm_time(json, "expires_at", grant->expires_us);
    mm_time(json, "revoked_at", grant->revoked_us);
}

static bool verbs_decode(const json_t *body, unsigned *out, struct err *err)
{
    const json_t *list = NULL, *item;
    size_t i;

    if (!json_take_array(body, "verbs", JSON_REQUIRED, &list, err))
        return false;
    *out = 0;
    json_array_foreach(list, i, item)
    {
        struct str verb = json_is_string(item) ? json_str(item) : STR("");
        if (!str_eq(verb, STR("list")) && !str_eq(verb, STR("read")))
            return err_set(err, ERR_INVALID, "'verbs' must be an array of list and read");
        *out |= str_eq(verb, STR("list")) ? MAIL_GRANT_LIST : MAIL_GRANT_READ;
    }
    return *out || err_set(err, ERR_INVALID, "'verbs' must not be empty");
}

static void grant_create(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str to, inbox, reason;
    struct mail_grant grant;
    int64_t expires_s;
    unsigned verbs;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "to", JSON_REQUIRED, &to, &err) ||
        !json_take_str(body, "inbox", JSON_REQUIRED, &inbox, &err) || !verbs_decode(body, &verbs, &err) ||
        !json_take_int(body, "expires_s", JSON_REQUIRED, 1, INT32_MAX, &expires_s, &err) ||
        !json_take_str(body, "reason", JSON_REQUIRED, &reason, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_grant_create(rq->actions, mail_caller(rq), to, inbox, verbs, (uint64_t)expires_s, reason, rq->arena,
                             &grant, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    grant_fields(&json, &grant);
    json_out_end(&json);
}

static void grant_list(struct request *rq)
{
    struct mail_grant *rows;
    size_t count;
    struct err err;

    if (!action_grant_list(rq->actions, mail_caller(rq), rq->arena, &rows, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "grants");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        grant_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

static void grant_revoke(struct request *rq)
{
    struct err err;

    if (action_grant_revoke(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &err))
        answer_done(rq, "revoked");
    else
        mail_reply_err(rq, &err);
}

/* ---- audit ---- */

/* One inbox: how many rows fit, or what does not. */
static void verify_fields(struct json_out *json, struct str ref, bool ok, uint64_t rows, const struct err *err)
{
    json_out_str(json, "inbox", ref);
    json_out_bool(json, "ok", ok);
    json_out_int(json, "rows", ok ? (int64_t)rows : 0);
    if (!ok)
        json_out_str(json, "error", str_from(err->message));
}

static void audit_verify(struct request *rq)
{
    struct str ref = rq->match.params[0];
    uint64_t rows = 0;
    struct err err;
    bool ok = action_audit_verify(rq->actions, mail_caller(rq), ref, rq->arena, &rows, &err);

    if (!ok && err.kind == ERR_NOT_FOUND) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    verify_fields(&json, ref, ok, rows, &err);
    json_out_end(&json);
}

static void audit_verify_all(struct request *rq)
{
    uint64_t rows;
    struct str *refs;
    size_t count;
    struct err err;

    if (!action_audit_refs(rq->actions, mail_caller(rq), rq->arena, &refs, &count, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "inboxes");
    for (size_t i = 0; i < count; i++) {
        bool ok = action_audit_verify(rq->actions, mail_caller(rq), refs[i], rq->arena, &rows, &err);
        json_out_object(&json, NULL);
        verify_fields(&json, refs[i], ok, rows, &err);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

/* ---- routes ---- */

#define OPERATOR(method, pattern, handler, help) MAIL_ROUTE(method, pattern, handler, MAIL_OPERATOR, help)

static const struct http_route routes[] = {
    OPERATOR(GET, "/mail/inboxes", inbox_list, "List the inboxes of all tenants: {inboxes:[…]}"),
    OPERATOR(
        POST, "/mail/inboxes", inbox_create,
        "Make an inbox: {name, tenant?, display_name?, mode?}; answers its fields, made_tenant (its tenant is new) "
        "and its key, shown once"),
    OPERATOR(GET, "/mail/inboxes/{inbox}", inbox_get, "Describe an inbox, by id or address"),
    OPERATOR(DELETE, "/mail/inboxes/{inbox}", inbox_delete, "Delete an inbox"),
    OPERATOR(PUT, "/mail/inboxes/{inbox}/mode", inbox_mode, "Set the mode: {mode}"),
    OPERATOR(GET, "/mail/inboxes/{inbox}/allow", allow_list, "The allowlist: {entries:[{id,pattern}]}"),
    OPERATOR(POST, "/mail/inboxes/{inbox}/allow", allow_add, "Add to the allowlist: {pattern}"),
    OPERATOR(DELETE, "/mail/inboxes/{inbox}/allow/{entry}", allow_remove, "Remove from the allowlist"),
    OPERATOR(GET, "/mail/inboxes/{inbox}/audit", mm_audit_of_inbox,
             "What was done, newest first: {entries:[…], cursor}; ?limit, ?cursor"),
    OPERATOR(GET, "/mail/inboxes/{inbox}/audit/verify", audit_verify,
             "Check the chain of hashes: {inbox, ok, rows, error?}"),
    OPERATOR(GET, "/mail/audit/verify", audit_verify_all, "The same for all inboxes and tenants: {inboxes:[…]}"),
    OPERATOR(GET, "/mail/keys", key_list, "List the keys of all tenants: {keys:[…]}"),
    OPERATOR(POST, "/mail/keys", key_create,
             "Make a key: {name, scopes?, tenant?}; without scopes one that approves; 404 for an unknown tenant; shown "
             "once"),
    OPERATOR(DELETE, "/mail/keys/{key}", key_revoke, "Revoke a key"),
    OPERATOR(PUT, "/mail/oversight", oversight_set,
             "Where copies of what monitored inboxes send go: {address, tenant?}; an empty address: nowhere"),
    OPERATOR(GET, "/mail/codes", code_list, "Codes that agents have asked for: {codes:[{code,what,inbox,expires_at}]}"),
    OPERATOR(GET, "/mail/pending", pending_list,
             "Messages that wait for approval, with content_sha256: {pending:[…], more, cursor}; ?inbox, ?cursor"),
    OPERATOR(GET, "/mail/messages/{message}", held_get, "One of them, with its text, warnings and what it answers"),
    OPERATOR(GET, "/mail/messages/{message}/attachments/{index}", held_attachment,
             "An attachment of it, by its number from 0"),
    OPERATOR(POST, "/mail/messages/{message}/link", held_link,
             "Make a link to the page that approves it, for one use: {path, url, expires_at}"),
    OPERATOR(POST, "/mail/messages/{message}/decide", mm_decide_by_id,
             "Decide: {action: approve or reject, reason?, content_sha256?}"),
    OPERATOR(GET, "/mail/grants", grant_list, "List grants: {grants:[…]}"),
    OPERATOR(POST, "/mail/grants", grant_create,
             "Let a key read another inbox: {to, inbox, verbs:[list,read], expires_s, reason}"),
    OPERATOR(DELETE, "/mail/grants/{grant}", grant_revoke, "Revoke a grant, at once"),
};

const struct mail_dialect mail_operator = { "operator", routes, COUNT_OF(routes), problem };
