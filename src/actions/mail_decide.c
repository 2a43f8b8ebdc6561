/*
 * Deciding about held mail.
 *
 * An approver sees what is held and nothing else. The key that opens it is the tenant's approver key, which an oversight
 * key or the operator's token unwraps (mail_approver_for()); a link's token opens the one message that it was made for.
 * Each decision names the hash of what was seen: mail_decide() refuses it if the message is another one by now.
 *
 * Which inboxes hold something is in front's rows: the count that was stored when the inbox was idle, or the mark that it
 * is in use (mail_busy.c). Others are not asked.
 */
#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/log.h"

enum { SECOND_US = 1000000 };

/* ---- approvers ---- */

/* One for each tenant that a list meets. */
struct tenant_right {
    char tenant_id[MAIL_INBOX_ID_BYTES];
    struct mail_approver approver;
    struct tenant_right *next;
};

static void wipe_rights(struct tenant_right **first_at)
{
    for (struct tenant_right *r = *first_at; r; r = r->next)
        seal_key_wipe(&r->approver.private_key);
}
#define auto_rights __attribute__((cleanup(wipe_rights)))

static void wipe_approver(struct mail_approver *approver)
{
    seal_key_wipe(&approver->private_key);
}
#define auto_approver __attribute__((cleanup(wipe_approver)))

static const struct mail_approver *right_for(const struct actions *actions, const struct mail_caller *caller,
                                             const char *tenant_id, struct arena *arena, struct tenant_right **rights,
                                             struct err *err)
{
    struct tenant_right *right;

    for (right = *rights; right; right = right->next)
        if (strcmp(right->tenant_id, tenant_id) == 0)
            return &right->approver;
    right = ARENA_NEW(arena, struct tenant_right);
    if (!mail_approver_for(actions, caller, tenant_id, false, arena, &right->approver, err))
        return NULL;
    memcpy(right->tenant_id, tenant_id, strnlen(tenant_id, sizeof right->tenant_id - 1));
    right->next = *rights;
    *rights = right;
    return &right->approver;
}

/* The inbox of a message that this caller may see held. */
static bool box_for_approver(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                             bool decide, struct arena *arena, struct mail_box *box, struct mail_approver *approver,
                             struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    bool may = mail_scope_allows(caller->scopes, decide ? MAIL_SCOPE_OVERSIGHT : MAIL_SCOPE_OVERSIGHT_READ);

    /* Before anything is looked up: the answer must not depend on whether the message exists. */
    if (caller->kind != MAIL_CALLER_OPERATOR && !may)
        return err_set(err, ERR_DENIED, "this needs a key with the scope %s", decide ? "oversight" : "oversight_read");
    if (!mail_message_id_handle(message_id, handle))
        return mail_no_such(err);
    if (!mail_box_by_handle(actions, str_from(handle), arena, box, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (!mail_approver_for(actions, caller, box->info.tenant_id, decide, arena, approver, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    return box->info.is_active || mail_no_such(err);
}

/* ---- showing ---- */

static void fill_answered(struct held_message *held)
{
    const struct mail_content *content = &held->message.content;

    held->answered = (struct mail_message){ .direction = MAIL_INBOUND };
    if (!held->message.has_content || !content->answered_text.len)
        return;
    held->answered.has_content = true;
    held->answered.received_us = content->answered_us;
    held->answered.content.from = content->answered_from;
    held->answered.content.text = content->answered_text;
    held->answered.content.date_us = content->answered_us;
    held->answered.content.message_id = content->in_reply_to;
}

static int oldest_first(const void *a, const void *b)
{
    const struct held_message *x = a, *y = b;

    return strcmp(x->message.id, y->message.id);
}

struct held_list {
    struct held_message *at;
    size_t count, room;
    size_t text_bytes; /* so far */
};

static void add_held(struct arena *arena, struct held_list *list, const struct mail_message *message,
                     const struct mail_box *box)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 32;
        struct held_message *grown = ARENA_ARRAY(arena, struct held_message, room);
        if (list->count)
            memcpy(grown, list->at, list->count * sizeof *grown);
        list->at = grown;
        list->room = room;
    }
    list->at[list->count] = (struct held_message){ .message = *message, .inbox = box->info };
    fill_answered(&list->at[list->count++]);
}

/* The text of one message, and of what it answers; not its bytes and attachments. */
static void add_text(const struct actions *actions, const struct mail_approver *approver, struct held_list *list,
                     struct mail_message *message, struct arena *arena)
{
    struct mail_message whole;
    struct arena scratch;
    struct err err;

    if (list->text_bytes >= LIMIT_MAIL_PENDING_BYTES || !message->has_content)
        return;
    arena_init(&scratch);
    if (mail_held_get(actions->mail->mail, message->inbox_id, str_from(message->id), approver, &scratch, &whole,
                      &err)) {
        message->content.text = arena_copy(arena, whole.content.text);
        message->content.answered_from = arena_copy(arena, whole.content.answered_from);
        message->content.answered_text = arena_copy(arena, whole.content.answered_text);
        message->content.answered_us = whole.content.answered_us;
        list->text_bytes += whole.content.text.len + whole.content.answered_text.len;
    } else if (err.kind != ERR_NOT_FOUND) { /* decided since the list was made */
        log_warn("mail: message %s is listed without its text: %s", message->id, err_text(&err));
    }
    arena_done(&scratch);
}

/* One inbox. False: it cannot be asked now. */
static bool add_pending(const struct actions *actions, const struct mail_caller *caller, const char *inbox_id,
                        struct arena *arena, struct tenant_right **rights, struct held_list *list, struct err *err)
{
    struct mail_message *messages;
    struct mail_box box;
    size_t count;

    if (!mail_box_by_id(actions, str_from(inbox_id), arena, &box, err))
        return false;
    const struct mail_approver *approver = right_for(actions, caller, box.info.tenant_id, arena, rights, err);
    /* ERR_CONFLICT: the operator's token has changed. The list says that something is held, without its content. */
    if ((!approver && err->kind != ERR_CONFLICT) ||
        !mail_pending(actions->mail->mail, inbox_id, approver, arena, &messages, &count, err))
        return false;
    for (size_t i = 0; i < count; i++) {
        add_text(actions, approver, list, &messages[i], arena);
        add_held(arena, list, &messages[i], &box);
    }
    return true;
}

bool action_pending(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                    struct held_message **out, size_t *out_count, struct err *err)
{
    auto_rights struct tenant_right *rights = NULL;
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct held_list list = { 0 };
    struct mail_row_due *rows;
    size_t row_count;

    if (!is_operator && !mail_scope_allows(caller->scopes, MAIL_SCOPE_OVERSIGHT_READ))
        return err_set(err, ERR_DENIED, "this needs a key with the scope oversight or oversight_read");
    if (!mail_rows_pending(actions, is_operator ? "" : caller->tenant_id, arena, &rows, &row_count, err))
        return false;
    /* A caller without the right fails here, also when nothing is held. */
    if (!is_operator && !right_for(actions, caller, caller->tenant_id, arena, &rights, err))
        return false;
    for (size_t i = 0; i < row_count; i++) {
        struct err one;
        /* One damaged inbox must not hide the others. */
        if (!add_pending(actions, caller, rows[i].id, arena, &rights, &list, &one))
            log_warn("mail: inbox %s: its held messages cannot be listed: %s", rows[i].id, err_text(&one));
    }
    if (list.count)
        qsort(list.at, list.count, sizeof *list.at, oldest_first);
    *out = list.at;
    *out_count = list.count;
    return true;
}

bool action_held_get(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                     struct arena *arena, struct held_message *out, struct err *err)
{
    auto_approver struct mail_approver approver = { 0 };
    struct mail_box box;
    struct held_message held = { 0 };

    if (!box_for_approver(actions, caller, message_id, false, arena, &box, &approver, err))
        return false;
    if (!mail_held_get(actions->mail->mail, box.info.id, message_id, &approver, arena, &held.message, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    held.inbox = box.info;
    fill_answered(&held);
    *out = held;
    return true;
}

/* ---- deciding ---- */

static bool check_reason(struct str reason, struct str sha256, struct err *err)
{
    if (reason.len > LIMIT_MAIL_REASON_BYTES)
        return err_set(err, ERR_LIMIT, "a reason has at most %d bytes", LIMIT_MAIL_REASON_BYTES);
    if (sha256.len && sha256.len != MAIL_HASH_TEXT_BYTES - 1)
        return err_set(err, ERR_INVALID, "content_sha256 has 64 hexadecimal digits");
    return true;
}

static void tell_decision(const struct actions *actions, bool approve, const struct mail_message *message)
{
    mail_tell(actions, approve ? MAIL_EVENT_APPROVED : MAIL_EVENT_REJECTED, message->inbox_id, message->id);
    if (approve && message->direction == MAIL_INBOUND)
        mail_tell(actions, MAIL_EVENT_RECEIVED, message->inbox_id, message->id);
}

/* The decision itself, by an approver's key or by a link (token not empty). */
static bool decide(const struct actions *actions, const struct mail_box *box, struct str token,
                   const struct mail_decision *decision, struct arena *arena, struct mail_message *out, struct err *err)
{
    struct mail *mail = actions->mail->mail;
    struct busy_inbox *busy;

    if (!busy_begin(actions, box->info.id, &busy, err))
        return false;
    bool ok = token.len ? mail_link_decide(mail, token, decision, arena, out, err)
                        : mail_decide(mail, decision, arena, out, err);
    if (ok) {
        log_info("mail: message %s: %s by %.*s", out->id, decision->approve ? "approved" : "rejected",
                 STR_ARG(decision->approver->id));
        tell_decision(actions, decision->approve, out);
        if (out->direction == MAIL_OUTBOUND && out->state == MAIL_QUEUED)
            busy_dispatch(actions, busy, out->id, &out->state);
    }
    int64_t next_us = 0;
    if (ok && out->direction == MAIL_OUTBOUND && out->state == MAIL_UNDO)
        next_us = decision->now_us + (int64_t)decision->undo_s * SECOND_US;
    else if (ok && out->direction == MAIL_OUTBOUND && out->state == MAIL_SCHEDULED)
        next_us = out->send_at_us;
    busy_end(actions, busy, next_us);
    return ok || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false);
}

bool action_decide(const struct actions *actions, const struct mail_caller *caller, struct str message_id, bool approve,
                   struct str reason, struct str sha256, struct arena *arena, struct mail_message *out, struct err *err)
{
    auto_approver struct mail_approver approver = { 0 };
    struct mail_box box;

    if (!box_for_approver(actions, caller, message_id, true, arena, &box, &approver, err) ||
        !check_reason(reason, sha256, err))
        return false;
    struct mail_decision decision = {
        .inbox_id = box.info.id,
        .message_id = arena_text(arena, message_id),
        .approve = approve,
        .reason = reason,
        .sha256 = sha256,
        .approver = &approver,
        .mode = box.info.mode,
        .undo_s = box.info.undo_s,
        .now_us = clock_wall_us(),
    };
    return decide(actions, &box, STR(""), &decision, arena, out, err);
}

/* ---- links ---- */

bool action_approval_link(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                          struct arena *arena, struct secret *out_token, int64_t *out_expires_us, struct err *err)
{
    auto_approver struct mail_approver approver = { 0 };
    struct mail_message held;
    struct mail_box box;
    int64_t now_us = clock_wall_us();

    /* A link decides, so making one needs the right to decide. */
    if (!box_for_approver(actions, caller, message_id, true, arena, &box, &approver, err))
        return false;
    if (!mail_held_get(actions->mail->mail, box.info.id, message_id, &approver, arena, &held, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    struct mail_link link = {
        .kind = MAIL_LINK_APPROVE,
        .expires_us = now_us + (int64_t)LIMIT_MAIL_LINK_S * SECOND_US,
    };
    if (held.hold_until_us && held.hold_until_us < link.expires_us)
        link.expires_us = held.hold_until_us;
    memcpy(link.message_id, held.id, sizeof link.message_id);
    if (!mail_link_make(actions->mail->mail, box.info.id, &link, &approver, NULL, now_us, out_token, err))
        return false;
    *out_expires_us = link.expires_us;
    return true;
}

static bool box_of_link(const struct actions *actions, struct str token, struct arena *arena, struct mail_box *box,
                        struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];

    if (!mail_link_handle(token, handle))
        return mail_no_such(err);
    if (!mail_box_by_handle(actions, str_from(handle), arena, box, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    return box->info.is_active || mail_no_such(err);
}

bool action_approval_show(const struct actions *actions, struct str token, struct arena *arena,
                          struct held_message *out, struct err *err)
{
    struct held_message held = { 0 };
    struct mail_link link;
    struct mail_box box;

    if (!box_of_link(actions, token, arena, &box, err))
        return false;
    if (!mail_link_open(actions->mail->mail, token, box.info.id, MAIL_WANT_TEXT, clock_wall_us(), arena, &link,
                        &held.message, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (link.kind != MAIL_LINK_APPROVE)
        return mail_no_such(err);
    held.inbox = box.info;
    fill_answered(&held);
    *out = held;
    return true;
}

bool action_approval_decide(const struct actions *actions, struct str token, bool approve, struct str reason,
                            struct str sha256, struct arena *arena, struct mail_message *out, struct err *err)
{
    struct held_message held;

    /* Also refuses a link of another kind. */
    if (!action_approval_show(actions, token, arena, &held, err) || !check_reason(reason, sha256, err))
        return false;
    struct mail_box box;
    if (!box_of_link(actions, token, arena, &box, err))
        return false;
    struct mail_approver approver = { .id = STR("link"), .scopes = MAIL_SCOPE_OVERSIGHT };
    struct mail_decision decision = {
        .inbox_id = box.info.id,
        .message_id = held.message.id,
        .approve = approve,
        .reason = reason,
        .sha256 = sha256,
        .approver = &approver,
        .mode = box.info.mode,
        .undo_s = box.info.undo_s,
        .now_us = clock_wall_us(),
    };
    return decide(actions, &box, token, &decision, arena, out, err);
}
