/*
 * Sending: from what a caller wants to a message that the gate has judged.
 *
 *   1. the caller's inbox, scope and mode; a rate that is counted in memory, before anything costs something
 *   2. an answer takes recipients, subject and references from the message that it answers
 *   3. copies that the inbox's settings ask for; in a monitored inbox the approvers' blind copy
 *   4. the composer makes the final bytes; what was written is scanned there
 *   5. recipients that the agent may have got from a stranger's message are pointed out
 *   6. the inbox's worker stores it and asks the gate: held, scheduled, queued or rejected, in one transaction
 *   7. what is queued leaves at once
 *
 * The caller chooses nothing that the gate looks at: the sender is the inbox's own, the mode comes from front's row. A
 * caller that has shown no key of the inbox (mail_is_keyless()) is judged more strictly than that row says.
 */
#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/log.h"

enum { SECOND_US = 1000000, HOUR_S = 3600 };

/* ---- addresses ---- */

static bool among(struct str address, const struct str *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_eq_nocase(mail_bare_address(list[i]), mail_bare_address(address)))
            return true;
    return false;
}

/* A list with room for the copies that are added. */
struct addresses {
    struct str *at;
    uint32_t count;
};

static struct addresses copy_list(struct arena *arena, const struct str *list, uint32_t count)
{
    struct addresses out = { ARENA_ARRAY(arena, struct str, count + 3), count };

    for (uint32_t i = 0; i < count; i++)
        out.at[i] = list[i];
    return out;
}

struct envelope {
    struct addresses to, cc, bcc;
};

static void add_copy(const struct envelope *all, struct addresses *list, struct str address)
{
    if (address.len && !among(address, all->to.at, all->to.count) && !among(address, all->cc.at, all->cc.count) &&
        !among(address, all->bcc.at, all->bcc.count))
        list->at[list->count++] = address;
}

static void add_copies(const struct mail_box *box, struct envelope *envelope)
{
    add_copy(envelope, &envelope->cc, box->info.auto_cc);
    add_copy(envelope, &envelope->bcc, box->info.auto_bcc);
    if (box->info.mode == MAIL_MONITORED)
        add_copy(envelope, &envelope->bcc, box->oversight_address);
}

/* ---- checks that need no other process ---- */

static bool check_want(const struct mail_box *box, const struct send_want *want, int64_t now_us, struct err *err)
{
    uint64_t attached = 0;

    if (want->from.len && !str_eq_nocase(mail_bare_address(want->from), box->info.address))
        return err_set(err, ERR_DENIED, "this key sends as %.*s only", STR_ARG(box->info.address));
    if ((uint64_t)want->to_count + want->cc_count + want->bcc_count > LIMIT_MAIL_RECIPIENTS)
        return err_set(err, ERR_LIMIT, "a message has at most %d recipients", LIMIT_MAIL_RECIPIENTS);
    if (want->attachment_count > LIMIT_MAIL_ATTACHMENTS)
        return err_set(err, ERR_LIMIT, "a message has at most %d attachments", LIMIT_MAIL_ATTACHMENTS);
    for (uint32_t i = 0; i < want->attachment_count; i++)
        attached += want->attachments[i].content.len;
    if (attached > LIMIT_MAIL_ATTACHMENTS_BYTES)
        return err_set(err, ERR_LIMIT, "the attachments of a message have at most %d bytes together",
                       LIMIT_MAIL_ATTACHMENTS_BYTES);
    if (want->subject.len > LIMIT_MAIL_SUBJECT_BYTES)
        return err_set(err, ERR_LIMIT, "the subject has at most %d bytes", LIMIT_MAIL_SUBJECT_BYTES);
    if (MAX(want->markdown.len, MAX(want->text.len, want->html.len)) > LIMIT_MAIL_DRAFT_BYTES)
        return err_set(err, ERR_LIMIT, "the body has at most %d bytes; attach longer text", LIMIT_MAIL_DRAFT_BYTES);
    if (want->idempotency_key.len > LIMIT_MAIL_KEY_BYTES)
        return err_set(err, ERR_LIMIT, "an idempotency key has at most %d bytes", LIMIT_MAIL_KEY_BYTES);
    if (want->send_at_us > now_us && !box->info.scheduling_enabled)
        return err_set(err, ERR_DENIED, "scheduling is off for this inbox; leave send_at out");
    if (want->send_at_us > now_us + (int64_t)LIMIT_MAIL_SCHEDULE_S * SECOND_US)
        return err_set(err, ERR_INVALID, "send_at is more than a year ahead");
    return true;
}

static bool check_mode(const struct mail_box *box, struct err *err)
{
    if (box->info.mode != MAIL_READ_ONLY)
        return true;
    return err_set(err, ERR_DENIED,
                   "this inbox is read_only; request an upgrade to gated_send, which its operator "
                   "confirms with a code");
}

/* ---- answers ---- */

struct answer {
    char id[MAIL_MESSAGE_ID_BYTES]; /* empty: of a message that this inbox does not have, or no answer */
    struct str in_reply_to, references, subject;
    struct str *to;
    uint32_t to_count;
    struct str from, text; /* of the answered message, for the approver */
    int64_t at_us;
};

/* Whole message ids from the end, as many as fit. */
static struct str last_references(struct arena *arena, struct str references, struct str message_id)
{
    struct str all = references.len ? references : message_id;

    if (references.len && message_id.len)
        all = arena_format(arena, "%.*s %.*s", STR_ARG(references), STR_ARG(message_id));
    while (all.len > LIMIT_MAIL_REFERENCES_BYTES) {
        struct str first;
        if (!str_cut(&all, ' ', &first))
            break;
    }
    return all;
}

/* At most so many bytes, and no broken character at the end. */
static struct str cut_text(struct str text, size_t most)
{
    if (text.len <= most)
        return text;
    while (most > 0 && ((unsigned char)text.at[most] & 0xc0) == 0x80)
        most--;
    return str_of(text.at, most);
}

static struct str reply_subject(struct arena *arena, struct str subject)
{
    struct str rest = subject;

    if (str_skip_nocase(&rest, STR("re:")))
        return subject;
    return arena_format(arena, "Re: %.*s", STR_ARG(cut_text(subject, LIMIT_MAIL_SUBJECT_BYTES - 4)));
}

static bool read_answered(const struct actions *actions, const struct mail_box *box, struct str answers,
                          struct arena *arena, struct answer *out, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct mail_message message;

    /* A Message-ID instead of an id of ours: the thread is found by it, and there is nothing to read. */
    if (answers.at[0] == '<') {
        if (answers.len > LIMIT_MAIL_MESSAGE_ID_BYTES)
            return err_set(err, ERR_INVALID, "the Message-ID that this answers is too long");
        out->in_reply_to = out->references = answers;
        return true;
    }
    if (!mail_message_id_handle(answers, handle))
        return mail_no_such(err);
    if (!box->can_read)
        return err_set(err, ERR_DENIED,
                       "an answer needs a key of this inbox, to read what it answers; or send with "
                       "to and subject instead");
    if (!mail_read(actions->mail->mail, box->info.id, &box->reader, answers, MAIL_WANT_TEXT, arena, &message, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    if (!message.has_content)
        return err_set(err, ERR_CONFLICT, "the message that this answers is still held");
    struct mail_content *content = &message.content;
    memcpy(out->id, message.id, sizeof out->id);
    out->in_reply_to = content->message_id;
    out->references = last_references(arena, content->references, content->message_id);
    out->subject = reply_subject(arena, content->subject);
    /* Without names: a stranger has chosen them. */
    bool is_own = message.direction == MAIL_OUTBOUND;
    out->to_count = is_own ? content->to_count : 1;
    out->to = ARENA_ARRAY(arena, struct str, out->to_count + 1);
    for (uint32_t i = 0; is_own && i < out->to_count; i++)
        out->to[i] = mail_bare_address(content->to[i]);
    if (!is_own)
        out->to[0] = mail_bare_address(content->reply_to.len ? content->reply_to : content->from);
    out->from = cut_text(content->from, LIMIT_MAIL_ADDRESS_BYTES);
    out->text = cut_text(content->text, LIMIT_MAIL_ANSWERED_BYTES);
    out->at_us = is_own ? message.created_us : message.received_us;
    return true;
}

/* ---- recipients from a stranger's message ---- */

/* Looks at each @ only, and not at all of a long text: a stranger has chosen it. */
static bool names_address(struct str text, struct str address)
{
    const char *at = memchr(address.at, '@', address.len), *next = text.at;
    size_t left = MIN(text.len, (size_t)LIMIT_MAIL_SUSPECT_BYTES);

    if (!at)
        return false;
    size_t before = (size_t)(at - address.at), after = address.len - before;
    const char *end = text.at + left;
    while (next < end && (next = memchr(next, '@', (size_t)(end - next)))) {
        if ((size_t)(next - text.at) >= before && (size_t)(end - next) >= after &&
            str_eq_nocase(str_of(next - before, address.len), address))
            return true;
        next++;
    }
    return false;
}

static void add_warning(struct arena *arena, struct mail_content *content, struct mail_warning warning)
{
    struct mail_warning *all = ARENA_ARRAY(arena, struct mail_warning, content->warning_count + 1);

    if (content->warning_count >= LIMIT_MAIL_WARNINGS)
        return;
    for (uint32_t i = 0; i < content->warning_count; i++)
        all[i] = content->warnings[i];
    all[content->warning_count++] = warning;
    content->warnings = all;
}

/* Has written to this inbox, or was written to. */
static bool is_correspondent(const struct mail_page *page, struct str address)
{
    for (size_t i = 0; i < page->count; i++) {
        const struct mail_content *c = &page->rows[i].content;
        if (page->rows[i].direction == MAIL_INBOUND && str_eq_nocase(mail_bare_address(c->from), address))
            return true;
        if (page->rows[i].direction == MAIL_OUTBOUND && page->rows[i].state == MAIL_SENT &&
            among(address, c->recipients, c->recipient_count))
            return true;
    }
    return false;
}

/*
 * A recipient that the inbox has no mail with, but whose address stands in the body of a message that came lately: the
 * stranger who wrote that message may have told the agent to write there. Only a warning: the approver judges.
 */
static bool warn_of_new_recipients(const struct actions *actions, const struct mail_box *box, struct arena *arena,
                                   struct mail_content *content, struct err *err)
{
    struct mail *mail = actions->mail->mail;
    struct mail_filter filter = {
        .inbound = true,
        .outbound = true,
        .in_status = -1,
        .state = -1,
        .has_attachments = -1,
        .limit = LIMIT_MAIL_PAGE,
        .include_spam = true,
    };
    struct str *suspects = ARENA_ARRAY(arena, struct str, content->recipient_count);
    uint32_t suspect_count = 0, looked_at = 0;
    struct mail_page page;

    if (!mail_list(mail, box->info.id, &box->reader, &filter, arena, &page, err))
        return false;
    for (uint32_t i = 0; i < content->recipient_count; i++)
        if (!is_correspondent(&page, content->recipients[i]))
            suspects[suspect_count++] = content->recipients[i];
    for (size_t i = 0; i < page.count && suspect_count && looked_at < LIMIT_MAIL_SUSPECTS; i++) {
        struct mail_message message;
        if (page.rows[i].direction != MAIL_INBOUND || !page.rows[i].has_content)
            continue;
        looked_at++;
        if (!mail_read(mail, box->info.id, &box->reader, str_from(page.rows[i].id), MAIL_WANT_TEXT, arena, &message,
                       err)) {
            if (err->kind == ERR_NOT_FOUND)
                continue; /* deleted since the list was made */
            return false;
        }
        for (uint32_t j = 0; j < suspect_count; j++) {
            if (!names_address(message.content.text, suspects[j]) &&
                !names_address(message.content.subject, suspects[j]))
                continue;
            struct str from = cut_text(message.content.from, 200);
            add_warning(arena, content,
                        (struct mail_warning){
                            .code = STR("new_recipient"),
                            .detail = arena_format(arena,
                                                   "%.*s has no mail with this inbox; the address stands in a "
                                                   "message from %.*s",
                                                   STR_ARG(cut_text(suspects[j], 320)), STR_ARG(from)),
                        });
            suspects[j--] = suspects[--suspect_count];
        }
    }
    return true;
}

/* ---- composing ---- */

/* The same for the same message: fields with their lengths, and hashes of attachments. */
static struct str dedup_of(const struct envelope *envelope, const struct send_want *want, const char *inbox_id,
                           struct str subject, struct arena *arena)
{
    const struct addresses *lists[] = { &envelope->to, &envelope->cc, &envelope->bcc };
    const struct str texts[] = { subject, want->markdown, want->text, want->html, want->reply_to };
    struct buf all = buf_make(arena, LIMIT_MAIL_FRAME_BYTES);
    struct seal_key key;
    char hash[65];

    seal_derive(str_from(inbox_id), "dedup", &key);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        buf_format(&all, "%u ", lists[i]->count);
        for (uint32_t j = 0; j < lists[i]->count; j++)
            buf_format(&all, "%zu %.*s", lists[i]->at[j].len, STR_ARG(lists[i]->at[j]));
    }
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        buf_format(&all, "%zu ", texts[i].len);
        buf_add(&all, texts[i]);
    }
    for (uint32_t i = 0; i < want->attachment_count; i++) {
        seal_hash(&key, want->attachments[i].content, hash);
        buf_format(&all, "%zu %.*s%s", want->attachments[i].name.len, STR_ARG(want->attachments[i].name), hash);
    }
    seal_hash(&key, buf_str(&all), hash);
    return arena_copy(arena, str_from(hash));
}

static struct str new_message_id(const struct actions *actions, const char *inbox_id, struct arena *arena)
{
    char id[MAIL_MESSAGE_ID_BYTES];

    mail_message_id(inbox_id, id);
    text_lower(id, strlen(id));
    return arena_format(arena, "<%s@%s>", id, actions->mail->domain);
}

static struct mail_limits limits_of(const struct actions *actions)
{
    return (struct mail_limits){
        .sends_per_minute = actions->mail->sends_per_minute,
        .sends_per_day = actions->mail->sends_per_day,
        .pending_most = LIMIT_MAIL_PENDING,
        .storage_bytes = LIMIT_MAIL_STORAGE_BYTES,
    };
}

static bool compose(const struct actions *actions, const struct mail_box *box, const struct send_want *want,
                    const struct envelope *envelope, const struct answer *answer, struct str subject, int64_t now_us,
                    struct arena *arena, struct mail_content *out, uint32_t *out_retry_s, struct err *err)
{
    struct mail_draft draft = {
        .from_address = box->info.address,
        .from_name = box->info.display_name,
        .to = envelope->to.at,
        .to_count = envelope->to.count,
        .cc = envelope->cc.at,
        .cc_count = envelope->cc.count,
        .bcc = envelope->bcc.at,
        .bcc_count = envelope->bcc.count,
        .reply_to = want->reply_to,
        .subject = subject,
        .markdown = want->markdown,
        .text = want->text,
        .html = want->html,
        .signature = box->info.signature,
        .in_reply_to = answer->in_reply_to,
        .references = answer->references,
        .message_id = new_message_id(actions, box->info.id, arena),
        .date_us = now_us,
        .attachments = want->attachments,
        .attachment_count = want->attachment_count,
        .identity = STR("true"),
    };

    if (!mail_compose(actions->mail->mail, box->info.id, &draft, arena, out, out_retry_s, err))
        return false;
    out->answered_from = answer->from;
    out->answered_text = answer->text;
    out->answered_us = answer->at_us;
    return !box->can_read || warn_of_new_recipients(actions, box, arena, out, err);
}

/* ---- send ---- */

static int64_t timer_of(const struct mail_accepted *accepted, int64_t send_at_us)
{
    switch (accepted->state) {
    case MAIL_SCHEDULED:
        return send_at_us;
    case MAIL_HELD:
        return accepted->hold_until_us;
    default:
        return 0;
    }
}

/* Whether the approvers of a monitored inbox get a copy is in its audit. */
static void note_copy(const struct actions *actions, const struct mail_box *box, const char *message_id)
{
    struct str action = box->oversight_address.len ? STR("oversight_copy") : STR("oversight_copy_missing");
    struct err err;

    if (!box->oversight_address.len)
        log_warn("mail: inbox %s is monitored, and its tenant has no address for copies", box->info.id);
    if (!mail_audit_add(actions->mail->mail, box->info.id, action, str_from(message_id), STR("server"), STR("{}"),
                        &err))
        log_warn("mail: message %s: %.*s could not be written to the audit: %s", message_id, STR_ARG(action),
                 err_text(&err));
}

/* To the inbox's worker, and on its way if it may leave. */
static bool hand_over(const struct actions *actions, const struct mail_box *box, const struct mail_accept *want,
                      struct arena *arena, struct mail_accepted *out, uint32_t *out_retry_s, struct err *err)
{
    struct busy_inbox *busy;

    if (!busy_begin(actions, box->info.id, &busy, err))
        return false;
    bool ok = mail_accept(actions->mail->mail, want, arena, out, out_retry_s, err);
    mail_reached("mail-stop-accepted");
    if (ok && !out->is_repeat) {
        if (out->state == MAIL_HELD)
            mail_tell(actions, MAIL_EVENT_PENDING, box->info.id, out->id);
        if (out->state == MAIL_QUEUED)
            busy_dispatch(actions, busy, out->id, &out->state);
        log_info("mail: message %s: %s", out->id, mail_state_name[out->state]);
        if (want->mode == MAIL_MONITORED)
            note_copy(actions, box, out->id);
    }
    busy_end(actions, busy, ok ? timer_of(out, want->send_at_us) : 0);
    return ok || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false); /* no such thread */
}

/*
 * Without a key a person approves each message: gated_all knows no allowlist. It must be held before it waits for its
 * time, because what is due is judged by the inbox's own mode.
 */
static void judge_strictly(struct mail_box *box)
{
    box->info.mode = MIN(box->info.mode, MAIL_GATED_ALL);
    box->info.schedule_first = false;
}

bool action_send(const struct actions *actions, const struct mail_caller *caller, const struct send_want *want,
                 struct arena *arena, struct sent_info *out, uint32_t *out_retry_s, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };
    struct answer answer = { 0 };
    struct mail_content content;
    int64_t now_us = clock_wall_us();

    *out_retry_s = 0;
    if (!mail_box_for(actions, caller, want->inbox_ref, MAIL_USE_SEND, arena, &box, err) || !check_mode(&box, err) ||
        !check_want(&box, want, now_us, err))
        return false;
    bool is_keyless = mail_is_keyless(caller);
    if (is_keyless)
        judge_strictly(&box);
    if (!busy_may_send(actions, box.info.id, out_retry_s))
        return err_set(err, ERR_LIMIT, "this inbox sends at most %u messages a minute",
                       actions->mail->sends_per_minute);
    if (!mail_has_room(actions, str_from(box.info.tenant_id), err)) {
        *out_retry_s = err->kind == ERR_LIMIT ? HOUR_S : 0;
        return false;
    }
    if (want->answers.len && !read_answered(actions, &box, want->answers, arena, &answer, err))
        return false;

    struct envelope envelope = {
        .to =
            want->to_count ? copy_list(arena, want->to, want->to_count) : copy_list(arena, answer.to, answer.to_count),
        .cc = copy_list(arena, want->cc, want->cc_count),
        .bcc = copy_list(arena, want->bcc, want->bcc_count),
    };
    struct str subject = want->subject.len ? want->subject : answer.subject;
    if (!envelope.to.count)
        return err_set(err, ERR_INVALID, "to is missing: a message needs at least one recipient");
    struct str dedup = dedup_of(&envelope, want, box.info.id, subject, arena);
    add_copies(&box, &envelope);
    if (!compose(actions, &box, want, &envelope, &answer, subject, now_us, arena, &content, out_retry_s, err))
        return false;

    struct mail_limits limits = limits_of(actions);
    struct mail_accept asked = {
        .inbox_id = box.info.id,
        .composer = str_from(caller->actor),
        .content = &content,
        .mode = box.info.mode,
        .send_at_us = want->send_at_us > now_us ? want->send_at_us : 0,
        .schedule_first = is_keyless || want->schedule_first < 0 ? box.info.schedule_first : want->schedule_first > 0,
        .hold_us = (int64_t)LIMIT_MAIL_HOLD_S * SECOND_US,
        .idempotency_key = want->idempotency_key,
        .dedup = dedup,
        .inbox_public = &box.info.public_key,
        .approver_public = &box.approver_public,
        .limits = &limits,
        .answers_id = answer.id[0] ? answer.id : NULL,
        .thread_id = want->thread_id,
        .now_us = now_us,
    };
    struct mail_accepted accepted = { 0 };
    if (!hand_over(actions, &box, &asked, arena, &accepted, out_retry_s, err))
        return false;
    *out = (struct sent_info){ .accepted = accepted, .mode = box.info.mode };
    memcpy(out->inbox_id, box.info.id, sizeof out->inbox_id);
    return true;
}

bool action_send_cancel(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                        struct str message_id, struct arena *arena, struct mail_message *out, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };
    struct busy_inbox *busy;

    if (!mail_box_of_message(actions, caller, inbox_ref, message_id, MAIL_USE_SEND, arena, &box, err) ||
        !busy_begin(actions, box.info.id, &busy, err))
        return false;
    /* An agent has one inbox and may have several keys, so a key cancels what another one has sent. */
    bool (*cancel)(struct mail *, const char *, const char *, struct str, uint32_t, struct arena *,
                   struct mail_message *, struct err *) = mail_is_keyless(caller) ? mail_cancel_own : mail_cancel;
    bool ok = cancel(actions->mail->mail, box.info.id, arena_text(arena, message_id), str_from(caller->actor),
                     caller->scopes, arena, out, err);
    busy_end(actions, busy, 0);
    return ok || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false);
}

/* ---- edit ---- */

static bool changes_content(const struct send_want *want)
{
    return want->to_count || want->cc_count || want->bcc_count || want->subject.len || want->markdown.len ||
           want->text.len || want->html.len || want->reply_to.len || want->attachment_count;
}

/* Fields that the caller leaves out come from the stored message. */
static bool merge(const struct actions *actions, const struct mail_box *box, struct str message_id, struct arena *arena,
                  struct send_want *out, struct answer *out_answer, struct mail_box *out_box, struct err *err)
{
    struct mail_message old;

    if (!box->can_read)
        return err_set(err, ERR_DENIED, "changing a message needs a key of this inbox that may read");
    if (!mail_read(actions->mail->mail, box->info.id, &box->reader, message_id, MAIL_WANT_TEXT | MAIL_WANT_ATTACHMENTS,
                   arena, &old, err))
        return err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false;
    /* The gate decides it again later; here so that what it would refuse costs no composer. */
    if (old.direction != MAIL_OUTBOUND || old.state != MAIL_SCHEDULED)
        return err_set(err, ERR_CONFLICT, "only a message that is scheduled can be changed");
    struct mail_content *c = &old.content;
    if (!out->to_count)
        out->to = c->to, out->to_count = c->to_count;
    if (!out->cc_count)
        out->cc = c->cc, out->cc_count = c->cc_count;
    if (!out->bcc_count)
        out->bcc = c->bcc, out->bcc_count = c->bcc_count;
    if (!out->subject.len)
        out->subject = c->subject;
    if (!out->reply_to.len)
        out->reply_to = c->reply_to;
    if (!out->send_at_us)
        out->send_at_us = old.send_at_us;
    if (!out->attachment_count)
        out->attachments = c->attachments, out->attachment_count = c->attachment_count;
    if (!out->markdown.len && !out->text.len && !out->html.len) {
        out->text = c->text;
        out->html = c->html;
        out_box->info.signature = STR(""); /* the stored text has it already */
    }
    *out_answer = (struct answer){
        .in_reply_to = c->in_reply_to,
        .references = c->references,
        .from = c->answered_from,
        .text = c->answered_text,
        .at_us = c->answered_us,
    };
    return true;
}

bool action_send_edit(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      struct str message_id, const struct send_want *want, struct arena *arena,
                      struct mail_message *out, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };
    struct mail_content content;
    struct busy_inbox *busy;
    int64_t now_us = clock_wall_us();

    if (!mail_need_key(caller, err) ||
        !mail_box_of_message(actions, caller, inbox_ref, message_id, MAIL_USE_SEND, arena, &box, err) ||
        !check_mode(&box, err) || !check_want(&box, want, now_us, err))
        return false;
    struct mail_limits limits = limits_of(actions);
    struct mail_accept asked = {
        .inbox_id = box.info.id,
        .composer = str_from(caller->actor),
        .mode = box.info.mode,
        .send_at_us = want->send_at_us,
        .schedule_first = want->schedule_first < 0 ? box.info.schedule_first : want->schedule_first > 0,
        .hold_us = (int64_t)LIMIT_MAIL_HOLD_S * SECOND_US,
        .inbox_public = &box.info.public_key,
        .approver_public = &box.approver_public,
        .limits = &limits,
        .now_us = now_us,
    };
    if (changes_content(want)) {
        auto_mail_box struct mail_box composing = box;
        struct send_want merged = *want;
        uint32_t retry_s;
        if (!busy_may_send(actions, box.info.id, &retry_s))
            return err_set(err, ERR_LIMIT, "this inbox sends or changes at most %u messages a minute",
                           actions->mail->sends_per_minute);
        struct answer answer = { 0 };
        if (!merge(actions, &box, message_id, arena, &merged, &answer, &composing, err))
            return false;
        struct envelope envelope = {
            .to = copy_list(arena, merged.to, merged.to_count),
            .cc = copy_list(arena, merged.cc, merged.cc_count),
            .bcc = copy_list(arena, merged.bcc, merged.bcc_count),
        };
        add_copies(&box, &envelope);
        if (!compose(actions, &composing, &merged, &envelope, &answer, merged.subject, now_us, arena, &content,
                     &retry_s, err))
            return false;
        asked.content = &content;
        asked.send_at_us = merged.send_at_us;
    } else if (!want->send_at_us) {
        return err_set(err, ERR_INVALID, "nothing to change: give a new time, recipients, subject or text");
    }
    if (!busy_begin(actions, box.info.id, &busy, err))
        return false;
    bool ok = mail_reschedule(actions->mail->mail, &asked, arena_text(arena, message_id), arena, out, err);
    if (ok && out->state == MAIL_HELD)
        mail_tell(actions, MAIL_EVENT_PENDING, box.info.id, out->id);
    if (ok && out->state == MAIL_QUEUED)
        busy_dispatch(actions, busy, out->id, &out->state);
    busy_end(actions, busy, ok && out->state == MAIL_SCHEDULED ? out->send_at_us : 0);
    return ok || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false);
}
