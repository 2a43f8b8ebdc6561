/*
 * Mailboxes in MultiMail's dialect: settings, the ladder of modes, the allowlist.
 *
 * What weakens oversight takes two calls: the first asks for a code that only the operator sees, the second has it.
 */
#include "api/mail_multimail.h"

/* Flags are 0 or 1 and times are milliseconds, as the service has them. */
static void mailbox_fields(struct json_out *json, const struct inbox_info *inbox)
{
    json_out_str(json, "id", str_from(inbox->id));
    json_out_str(json, "tenant_id", str_from(inbox->tenant_id));
    json_out_str(json, "address", inbox->address);
    json_out_str(json, "display_name", inbox->display_name);
    json_out_str(json, "oversight_mode", str_from(mail_mode_name[inbox->mode]));
    mm_text(json, "auto_cc", inbox->auto_cc);
    mm_text(json, "auto_bcc", inbox->auto_bcc);
    json_out_int(json, "forward_inbound", inbox->forward_inbound);
    json_out_null(json, "webhook_url"); /* POST /v1/webhooks */
    json_out_null(json, "oversight_webhook_url");
    mm_text(json, "signature_block", inbox->signature);
    json_out_int(json, "created_at", inbox->created_us / 1000);
    json_out_int(json, "is_active", inbox->is_active);
    json_out_int(json, "mcp_configured", inbox->mcp_configured);
    json_out_str(json, "default_gate_timing", inbox->schedule_first ? STR("schedule_first") : STR("gate_first"));
    json_out_int(json, "scheduling_enabled", inbox->scheduling_enabled);
    json_out_int(json, "ai_disclosure", 1); /* every message says that a program has written it */
    json_out_int(json, "undo_seconds", inbox->undo_s);
    json_out_int(json, "message_count", inbox->message_count);
}

void mm_mailboxes(struct request *rq)
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
    json_out_array(&json, "mailboxes");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        mailbox_fields(&json, &rows[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}

void mm_mailbox(struct request *rq)
{
    struct inbox_info inbox;
    struct err err;

    if (!action_inbox_get(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &inbox, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    mailbox_fields(&json, &inbox);
    json_out_end(&json);
}

/* ---- make and delete ---- */

/* Both are refused aloud: a client that believes in a webhook or in unmarked mail would be wrong. */
static bool check_disclosure(const json_t *body, struct err *err)
{
    int disclosure = 1;

    if (!mm_take_flag(body, "ai_disclosure", &disclosure, err))
        return false;
    if (!disclosure)
        return err_set(err, ERR_INVALID, "'ai_disclosure' cannot be turned off");
    if (json_has(body, "webhook_url") || json_has(body, "oversight_webhook_url"))
        return err_set(err, ERR_INVALID, "'webhook_url' is not a setting of a mailbox: use POST /v1/webhooks");
    return true;
}

static bool mailbox_decode(const json_t *body, struct inbox_want *out, struct err *err)
{
    static const char *const locals[4] = { "address_local", "address", "address_local_part" };

    *out = (struct inbox_want){ .mode = -1 };
    return mail_take_any(body, locals, JSON_REQUIRED, &out->local, err) &&
           json_take_str(body, "display_name", JSON_OPTIONAL, &out->display_name, err) &&
           mm_take_mode(body, "oversight_mode", &out->mode, err) &&
           json_take_str(body, "approval_code", JSON_OPTIONAL, &out->approval_code, err) && check_disclosure(body, err);
}

void mm_mailbox_create(struct request *rq)
{
    auto_json json_t *body = NULL;
    auto_wipe struct secret key = { 0 };
    struct inbox_want want;
    struct inbox_info inbox;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!mailbox_decode(body, &want, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_inbox_create(rq->actions, mail_caller(rq), &want, rq->arena, &inbox, &key, &is_pending, &err)) {
        if (err.kind == ERR_LIMIT) /* the plan's limit, for the service's clients */
            mail_reply_problem(rq, 403, "%s", err.message);
        else
            mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        mm_answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    mailbox_fields(&json, &inbox);
    json_out_str(&json, "api_key", secret_reveal(&key)); /* shown only here; the store has the hash */
    json_out_end(&json);
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

void mm_mailbox_delete(struct request *rq)
{
    struct err err;

    if (action_inbox_delete(rq->actions, mail_caller(rq), rq->match.params[0], rq->arena, &err))
        mm_answer_status(rq, 200, STR("deleted"));
    else
        mail_reply_err(rq, &err);
}

/* ---- change ---- */

/* null clears a text. */
static bool take_text(const json_t *body, const char *name, struct arena *arena, const struct str **out,
                      struct err *err)
{
    const json_t *value = json_object_get(body, name);

    if (!value)
        return true;
    struct str *text = ARENA_NEW(arena, struct str);
    *text = STR("");
    if (!json_is_null(value) && !json_take_str(body, name, JSON_REQUIRED, text, err))
        return false;
    *out = text;
    return true;
}

static bool take_gate_timing(const json_t *body, struct inbox_change *out, struct err *err)
{
    struct str timing = STR("");

    if (!json_take_str(body, "default_gate_timing", JSON_OPTIONAL, &timing, err))
        return false;
    if (!timing.len)
        return true;
    if (!str_eq(timing, STR("gate_first")) && !str_eq(timing, STR("schedule_first")))
        return err_set(err, ERR_INVALID, "'default_gate_timing' must be gate_first or schedule_first");
    out->schedule_first = str_eq(timing, STR("schedule_first"));
    return true;
}

static bool change_decode(const json_t *body, struct arena *arena, struct inbox_change *out, struct err *err)
{
    int64_t undo_s = -1;

    *out = (struct inbox_change){ .mode = -1,
                                  .undo_s = -1,
                                  .schedule_first = -1,
                                  .scheduling_enabled = -1,
                                  .forward_inbound = -1,
                                  .mcp_configured = -1,
                                  .auto_extract = -1 };
    if (!take_text(body, "display_name", arena, &out->display_name, err) ||
        !take_text(body, "signature_block", arena, &out->signature, err) ||
        !take_text(body, "auto_cc", arena, &out->auto_cc, err) ||
        !take_text(body, "auto_bcc", arena, &out->auto_bcc, err) ||
        !mm_take_mode(body, "oversight_mode", &out->mode, err) ||
        !json_take_int(body, "undo_seconds", JSON_OPTIONAL, 0, LIMIT_MAIL_UNDO_S, &undo_s, err) ||
        !take_gate_timing(body, out, err) || !mm_take_flag(body, "scheduling_enabled", &out->scheduling_enabled, err) ||
        !mm_take_flag(body, "forward_inbound", &out->forward_inbound, err) ||
        !mm_take_flag(body, "mcp_configured", &out->mcp_configured, err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &out->approval_code, err))
        return false;
    out->undo_s = (int)undo_s;
    return check_disclosure(body, err);
}

/* Does it change anything besides the mode? */
static bool changes_settings(const struct inbox_change *change)
{
    return change->display_name || change->signature || change->auto_cc || change->auto_bcc || change->undo_s >= 0 ||
           change->schedule_first >= 0 || change->scheduling_enabled >= 0 || change->forward_inbound >= 0 ||
           change->mcp_configured >= 0;
}

void mm_mailbox_update(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct inbox_change change;
    struct inbox_info inbox;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!change_decode(body, rq->arena, &change, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    /* An agent may always lower its own mode; its other settings need more. */
    if (changes_settings(&change) && !mail_scope_allows(mail_caller(rq)->scopes, MAIL_SCOPE_ADMIN)) {
        mail_reply_problem(rq, 403, "Requires admin scope");
        return;
    }
    if (!action_inbox_update(rq->actions, mail_caller(rq), rq->match.params[0], &change, rq->arena, &inbox, &is_pending,
                             &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        mm_answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "status", STR("updated"));
    mailbox_fields(&json, &inbox);
    json_out_end(&json);
}

void mm_request_upgrade(struct request *rq)
{
    auto_json json_t *body = NULL;
    int mode = -1;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!mm_take_mode(body, "target_mode", &mode, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (mode < 0) {
        mail_reply_problem(rq, 400, "'target_mode' is missing");
        return;
    }
    if (action_inbox_request_mode(rq->actions, mail_caller(rq), rq->match.params[0], (enum mail_mode)mode, rq->arena,
                                  &err))
        mm_answer_status(rq, 200, STR("upgrade_requested"));
    else
        mail_reply_err_after(rq, &err, err.kind == ERR_LIMIT ? 3600 : 0);
}

void mm_upgrade(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct inbox_info inbox;
    struct str code;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "code", JSON_REQUIRED, &code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!code.len) {
        mail_reply_problem(rq, 400, "'code' is empty");
        return;
    }
    if (!action_inbox_raise_mode(rq->actions, mail_caller(rq), rq->match.params[0], code, -1, rq->arena, &inbox,
                                 &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_str(&json, "status", STR("upgraded"));
    mailbox_fields(&json, &inbox);
    json_out_end(&json);
}

/* ---- allowlist ---- */

static void allow_fields(struct json_out *json, const struct mail_allow *entry)
{
    json_out_str(json, "id", str_from(entry->id));
    json_out_str(json, "pattern", entry->pattern);
    mm_time(json, "created_at", entry->created_us);
}

void mm_allow_list(struct request *rq)
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
    for (int twice = 0; twice < 2; twice++) { /* clients of different ages read different names */
        json_out_array(&json, twice ? "entries" : "allowlist");
        for (size_t i = 0; i < count; i++) {
            json_out_object(&json, NULL);
            allow_fields(&json, &rows[i]);
            json_out_end(&json);
        }
        json_out_end(&json);
    }
    json_out_end(&json);
}

void mm_allow_add(struct request *rq)
{
    auto_json json_t *body = NULL;
    struct str pattern, code = STR("");
    struct mail_allow entry;
    bool is_pending = false;
    struct err err;

    if (!mail_body(rq, &body))
        return;
    if (!json_take_str(body, "pattern", JSON_REQUIRED, &pattern, &err) ||
        !json_take_str(body, "approval_code", JSON_OPTIONAL, &code, &err)) {
        mail_reply_invalid(rq, &err);
        return;
    }
    if (!action_allow_add(rq->actions, mail_caller(rq), rq->match.params[0], pattern, code, rq->arena, &entry,
                          &is_pending, &err)) {
        mail_reply_err(rq, &err);
        return;
    }
    if (is_pending) {
        mm_answer_code_needed(rq);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_object(&json, NULL);
    json_out_str(&json, "status", STR("added"));
    allow_fields(&json, &entry);
    json_out_end(&json);
}

void mm_allow_remove(struct request *rq)
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
    if (!action_allow_remove(rq->actions, mail_caller(rq), rq->match.params[0], rq->match.params[1], code, rq->arena,
                             &is_pending, &err))
        mail_reply_err(rq, &err);
    else if (is_pending)
        mm_answer_code_needed(rq);
    else
        mm_answer_status(rq, 200, STR("removed"));
}
