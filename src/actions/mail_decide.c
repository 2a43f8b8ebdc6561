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

/* ---- the list ---- */

/* A message and its round: the first LIMIT_MAIL_PENDING_TURN messages of each inbox are in round 0, the next in 1… */
struct place {
    uint64_t round;
    struct mail_message message;
};

/* The first messages after the cursor, sorted; one more than a page has. */
struct held_list {
    const struct pending_want *want;
    uint64_t after_round;                 /* the cursor… */
    char after_id[MAIL_MESSAGE_ID_BYTES]; /* …empty: none */
    struct place *at[LIMIT_MAIL_PENDING_LIST + 1];
    size_t count;
};

static bool cursor_decode(struct str cursor, struct held_list *list, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct str rest = cursor, round;

    if (!cursor.len)
        return true;
    if (!str_cut(&rest, '.', &round) || !str_to_u64(round, LIMIT_MAIL_HELD, &list->after_round) ||
        !mail_message_id_handle(rest, handle))
        return err_set(err, ERR_INVALID, "'cursor' must be one that this list has answered");
    memcpy(list->after_id, rest.at, MIN(rest.len, sizeof list->after_id - 1));
    return true;
}

static bool comes_before(uint64_t round, const char *id, uint64_t other_round, const char *other_id)
{
    return round != other_round ? round < other_round : strcmp(id, other_id) < 0;
}

/* Keeps it if it belongs among the first. Texts stay behind: they are in memory that goes. */
static void add_place(struct held_list *list, uint64_t round, const struct mail_message *message, struct arena *arena)
{
    struct place *place;
    size_t i = list->count;

    if (list->after_id[0] && !comes_before(list->after_round, list->after_id, round, message->id))
        return;
    while (i > 0 && comes_before(round, message->id, list->at[i - 1]->round, list->at[i - 1]->message.id))
        i--;
    if (i == COUNT_OF(list->at))
        return;
    if (list->count == COUNT_OF(list->at))
        place = list->at[--list->count];
    else
        place = ARENA_NEW(arena, struct place);
    memmove(&list->at[i + 1], &list->at[i], (list->count - i) * sizeof list->at[0]);
    list->at[i] = place;
    list->count++;
    *place = (struct place){ .round = round, .message = *message };
    struct mail_message *kept = &place->message;
    kept->decided_by = kept->reason = kept->composer = kept->label = STR("");
    kept->has_content = false;
    kept->content = (struct mail_content){ 0 };
    kept->tags = NULL;
    kept->tag_count = 0;
}

static bool is_wanted(const struct pending_want *want, const struct inbox_info *inbox)
{
    return !want->inbox.len || str_eq(want->inbox, str_from(inbox->id)) || str_eq_nocase(want->inbox, inbox->address);
}

/* One inbox. False: it cannot be asked now. */
static bool add_pending(const struct actions *actions, const struct mail_caller *caller, const char *inbox_id,
                        struct arena *scratch, struct arena *arena, struct tenant_right **rights,
                        struct held_list *list, struct err *err)
{
    struct mail_message *messages;
    struct mail_box box;
    size_t count;

    if (!mail_box_by_id(actions, str_from(inbox_id), scratch, &box, err))
        return false;
    if (!is_wanted(list->want, &box.info))
        return true;
    /* ERR_CONFLICT: the operator's token has changed. The list says that something is held, without its content. */
    if ((!right_for(actions, caller, box.info.tenant_id, arena, rights, err) && err->kind != ERR_CONFLICT) ||
        !mail_pending(actions->mail->mail, inbox_id, NULL, scratch, &messages, &count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        add_place(list, i / LIMIT_MAIL_PENDING_TURN, &messages[i], arena);
    return true;
}

/* ---- the contents of a page ---- */

/* An inbox that has messages on the page, and how much of the page they have taken. */
struct page_inbox {
    struct inbox_info info;
    const struct mail_approver *approver; /* NULL: the caller has no key for the contents */
    bool is_there;
    size_t bytes;
};

static size_t strs_bytes(const struct str *list, uint32_t count)
{
    size_t sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += list[i].len + LIMIT_MAIL_PENDING_FIELD;
    return sum;
}

/* What the content takes in an answer, without its text. */
static size_t head_bytes(const struct mail_content *c)
{
    size_t sum = 2 * (c->from.len + c->preview.len + strs_bytes(c->to, c->to_count)) + c->reply_to.len +
                 c->subject.len + strs_bytes(c->cc, c->cc_count) + strs_bytes(c->bcc, c->bcc_count) +
                 strs_bytes(c->recipients, c->recipient_count) + strs_bytes(c->flags, c->flag_count);

    for (uint32_t i = 0; i < c->attachment_count; i++)
        sum += c->attachments[i].name.len + c->attachments[i].content_type.len + MAIL_HASH_TEXT_BYTES +
               4 * LIMIT_MAIL_PENDING_FIELD;
    for (uint32_t i = 0; i < c->warning_count; i++)
        sum += c->warnings[i].code.len + c->warnings[i].detail.len + 2 * LIMIT_MAIL_PENDING_FIELD;
    return sum;
}

static struct str *copy_strs(struct arena *arena, const struct str *list, uint32_t count)
{
    struct str *out = ARENA_ARRAY(arena, struct str, count + 1);

    for (uint32_t i = 0; i < count; i++)
        out[i] = arena_copy(arena, list[i]);
    return out;
}

/* Not its bytes, HTML and attachments' contents. */
static struct mail_content copy_content(struct arena *arena, const struct mail_content *c, bool with_text)
{
    struct mail_content out = {
        .from = arena_copy(arena, c->from),
        .reply_to = arena_copy(arena, c->reply_to),
        .subject = arena_copy(arena, c->subject),
        .message_id = arena_copy(arena, c->message_id),
        .in_reply_to = arena_copy(arena, c->in_reply_to),
        .to = copy_strs(arena, c->to, c->to_count),
        .cc = copy_strs(arena, c->cc, c->cc_count),
        .bcc = copy_strs(arena, c->bcc, c->bcc_count),
        .to_count = c->to_count,
        .cc_count = c->cc_count,
        .bcc_count = c->bcc_count,
        .recipients = copy_strs(arena, c->recipients, c->recipient_count),
        .recipient_count = c->recipient_count,
        .sender = arena_copy(arena, c->sender),
        .date_us = c->date_us,
        .preview = arena_copy(arena, c->preview),
        .attachments = ARENA_ARRAY(arena, struct mail_attachment, c->attachment_count + 1),
        .attachment_count = c->attachment_count,
        .warnings = ARENA_ARRAY(arena, struct mail_warning, c->warning_count + 1),
        .warning_count = c->warning_count,
        .injection_percent = c->injection_percent,
        .flags = copy_strs(arena, c->flags, c->flag_count),
        .flag_count = c->flag_count,
    };

    for (uint32_t i = 0; i < c->attachment_count; i++) {
        out.attachments[i] = c->attachments[i];
        out.attachments[i].name = arena_copy(arena, c->attachments[i].name);
        out.attachments[i].content_type = arena_copy(arena, c->attachments[i].content_type);
        out.attachments[i].content = STR("");
    }
    for (uint32_t i = 0; i < c->warning_count; i++) {
        out.warnings[i] = c->warnings[i];
        out.warnings[i].code = arena_copy(arena, c->warnings[i].code);
        out.warnings[i].detail = arena_copy(arena, c->warnings[i].detail);
    }
    if (with_text) {
        out.text = arena_copy(arena, c->text);
        out.answered_from = arena_copy(arena, c->answered_from);
        out.answered_text = arena_copy(arena, c->answered_text);
        out.answered_us = c->answered_us;
    }
    return out;
}

/* The content of one message, as far as the share of its inbox goes. */
static void add_content(const struct actions *actions, struct page_inbox *inbox, size_t share,
                        struct held_message *held, struct arena *arena)
{
    struct mail_message *message = &held->message, whole;
    struct arena scratch;
    struct err err;

    held->is_truncated = inbox->approver != NULL;
    if (!inbox->approver || inbox->bytes >= share)
        return;
    arena_init(&scratch);
    if (mail_held_get(actions->mail->mail, message->inbox_id, str_from(message->id), inbox->approver, &scratch, &whole,
                      &err)) {
        size_t head = head_bytes(&whole.content);
        size_t text = whole.content.text.len + whole.content.answered_from.len + whole.content.answered_text.len;
        if (inbox->bytes + head <= share) {
            bool with_text = inbox->bytes + head + text <= share;
            message->content = copy_content(arena, &whole.content, with_text);
            message->label = arena_copy(arena, whole.label);
            message->has_content = true;
            held->is_truncated = false;
            inbox->bytes += head + (with_text ? text : 0);
        }
    } else if (err.kind != ERR_NOT_FOUND) { /* decided since the list was made */
        log_warn("mail: message %s is listed without its content: %s", message->id, err_text(&err));
    }
    arena_done(&scratch);
    fill_answered(held);
}

static struct page_inbox *page_inbox_of(const struct actions *actions, const struct mail_caller *caller,
                                        const char *inbox_id, struct arena *arena, struct tenant_right **rights,
                                        struct page_inbox *inboxes, size_t *count)
{
    struct page_inbox *inbox;
    struct mail_box box;
    struct err err;

    for (size_t i = 0; i < *count; i++)
        if (strcmp(inboxes[i].info.id, inbox_id) == 0)
            return &inboxes[i];
    inbox = &inboxes[(*count)++];
    *inbox = (struct page_inbox){ .is_there = mail_box_by_id(actions, str_from(inbox_id), arena, &box, &err) };
    if (inbox->is_there) {
        inbox->info = box.info;
        inbox->approver = right_for(actions, caller, box.info.tenant_id, arena, rights, &err);
    }
    (void)snprintf(inbox->info.id, sizeof inbox->info.id, "%s", inbox_id);
    return inbox;
}

/* Each inbox gets the same share of the answer, so that the messages of one cannot keep those of others out. */
static void fill_page(const struct actions *actions, const struct mail_caller *caller, const struct held_list *list,
                      struct tenant_right **rights, struct arena *arena, struct pending_page *out)
{
    size_t count = MIN(list->count, (size_t)LIMIT_MAIL_PENDING_LIST), inbox_count = 0;
    struct page_inbox *inboxes = ARENA_ARRAY(arena, struct page_inbox, count + 1);
    struct page_inbox **of = ARENA_ARRAY(arena, struct page_inbox *, count + 1);

    out->rows = ARENA_ARRAY(arena, struct held_message, count + 1);
    out->count = 0;
    out->cursor = STR("");
    for (size_t i = 0; i < count; i++)
        of[i] = page_inbox_of(actions, caller, list->at[i]->message.inbox_id, arena, rights, inboxes, &inbox_count);
    for (size_t i = 0; i < count; i++) {
        if (!of[i]->is_there) /* deleted since it was asked */
            continue;
        struct held_message *held = &out->rows[out->count++];
        *held = (struct held_message){ .message = list->at[i]->message, .inbox = of[i]->info };
        add_content(actions, of[i], LIMIT_MAIL_PENDING_BYTES / inbox_count, held, arena);
    }
    if (list->count > count)
        out->cursor = arena_format(arena, "%llu.%s", (unsigned long long)list->at[count - 1]->round,
                                   list->at[count - 1]->message.id);
}

bool action_pending(const struct actions *actions, const struct mail_caller *caller, const struct pending_want *want,
                    struct arena *arena, struct pending_page *out, struct err *err)
{
    auto_rights struct tenant_right *rights = NULL;
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct held_list list = { .want = want };
    struct mail_row_due *rows;
    size_t row_count;

    if (!is_operator && !mail_scope_allows(caller->scopes, MAIL_SCOPE_OVERSIGHT_READ))
        return err_set(err, ERR_DENIED, "this needs a key with the scope oversight or oversight_read");
    if (!cursor_decode(want->cursor, &list, err) ||
        !mail_rows_pending(actions, is_operator ? "" : caller->tenant_id, arena, &rows, &row_count, err))
        return false;
    /* A caller without the right fails here, also when nothing is held. */
    if (!is_operator && !right_for(actions, caller, caller->tenant_id, arena, &rights, err))
        return false;
    for (size_t i = 0; i < row_count; i++) {
        struct arena scratch;
        struct err one;
        arena_init(&scratch);
        /* One damaged inbox must not hide the others. */
        if (!add_pending(actions, caller, rows[i].id, &scratch, arena, &rights, &list, &one))
            log_warn("mail: inbox %s: its held messages cannot be listed: %s", rows[i].id, err_text(&one));
        arena_done(&scratch);
    }
    fill_page(actions, caller, &list, &rights, arena, out);
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

static bool take_attachment(const struct mail_content *content, struct str number, struct mail_attachment *out,
                            struct err *err)
{
    uint32_t i;

    if (!mail_attachment_find(content, number, true, &i, err))
        return false;
    *out = content->attachments[i];
    return true;
}

bool action_held_attachment(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                            struct str number, struct arena *arena, struct mail_attachment *out, struct err *err)
{
    struct held_message held;

    return action_held_get(actions, caller, message_id, arena, &held, err) &&
           take_attachment(&held.message.content, number, out, err);
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

/* `want`: of enum mail_want. */
static bool open_approval(const struct actions *actions, struct str token, unsigned want, struct arena *arena,
                          struct held_message *out, struct err *err)
{
    struct held_message held = { 0 };
    struct mail_link link;
    struct mail_box box;

    if (!box_of_link(actions, token, arena, &box, err))
        return false;
    if (!mail_link_open(actions->mail->mail, token, box.info.id, want, clock_wall_us(), arena, &link, &held.message,
                        err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (link.kind != MAIL_LINK_APPROVE)
        return mail_no_such(err);
    held.inbox = box.info;
    fill_answered(&held);
    *out = held;
    return true;
}

bool action_approval_show(const struct actions *actions, struct str token, struct arena *arena,
                          struct held_message *out, struct err *err)
{
    return open_approval(actions, token, MAIL_WANT_TEXT, arena, out, err);
}

bool action_approval_attachment(const struct actions *actions, struct str token, struct str number, struct arena *arena,
                                struct mail_attachment *out, struct err *err)
{
    struct held_message held;

    return open_approval(actions, token, MAIL_WANT_ATTACHMENTS, arena, &held, err) &&
           take_attachment(&held.message.content, number, out, err);
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
