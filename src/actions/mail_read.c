/*
 * Reading, and what an agent notes about its messages. Every call finds the inbox by its caller (mail_box_for()), and the
 * inbox's worker opens messages only with the wrap of that caller's credential: a mistake here shows nothing.
 */
#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/log.h"

enum { SECOND_US = 1000000 };

/* A worker's words for what is not there become the one text that tells nothing. */
static bool found(bool ok, struct err *err)
{
    return ok || (err->kind == ERR_NOT_FOUND ? mail_no_such(err) : false);
}

static bool check_limit(uint32_t limit, struct err *err)
{
    if (limit >= 1 && limit <= LIMIT_MAIL_PAGE)
        return true;
    return err_set(err, ERR_INVALID, "limit must be from 1 to %d", LIMIT_MAIL_PAGE);
}

/* ---- lists ---- */

bool action_mail_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_for(actions, caller, inbox_ref, MAIL_USE_LIST, arena, &box, err) &&
           check_limit(filter->limit, err) &&
           found(mail_list(actions->mail->mail, box.info.id, &box.reader, filter, arena, out, err), err);
}

/* By id, because ids sort by time and the cursor of a page is an id. */
static int newest_first(const void *a, const void *b)
{
    const struct mail_message *x = a, *y = b;

    return strcmp(y->id, x->id);
}

/*
 * Each inbox is asked for a page of its own, and the newest rows of all make the page. A row that is older than the cursor
 * of an inbox with more rows has to wait: that inbox may have newer ones.
 */
bool action_mail_search(const struct actions *actions, const struct mail_caller *caller,
                        const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err)
{
    struct mail_filter each = *filter;
    struct mail_message *rows;
    struct inbox_info *inboxes;
    size_t inbox_count, count = 0;
    char horizon[MAIL_MESSAGE_ID_BYTES] = "";

    if (!check_limit(filter->limit, err) || !action_inbox_list(actions, caller, arena, &inboxes, &inbox_count, err))
        return false;
    if (filter->offset > LIMIT_MAIL_PAGE)
        return err_set(err, ERR_INVALID, "offset is at most %d; use the cursor", LIMIT_MAIL_PAGE);
    each.offset = 0;
    each.limit = MIN(filter->limit + filter->offset, (uint32_t)LIMIT_MAIL_PAGE);
    rows = ARENA_ARRAY(arena, struct mail_message, inbox_count * each.limit + 1);
    for (size_t i = 0; i < inbox_count; i++) {
        struct mail_page page;
        if (!action_mail_list(actions, caller, str_from(inboxes[i].id), &each, arena, &page, err)) {
            if (err->kind != ERR_INTERNAL || inbox_count == 1)
                return false;
            log_error("mail: inbox %s is left out of a search: %s", inboxes[i].id, err_text(err)); /* damaged */
            continue;
        }
        memcpy(rows + count, page.rows, page.count * sizeof *rows);
        count += page.count;
        if (page.more && strcmp(page.cursor, horizon) > 0)
            memcpy(horizon, page.cursor, sizeof horizon);
    }
    qsort(rows, count, sizeof *rows, newest_first);
    while (horizon[0] && count && strcmp(rows[count - 1].id, horizon) < 0)
        count--;
    size_t from = MIN((size_t)filter->offset, count);
    *out = (struct mail_page){ .rows = rows + from, .count = MIN(count - from, (size_t)filter->limit) };
    out->more = horizon[0] || from + out->count < count;
    if (out->more && from + out->count < count)
        memcpy(out->cursor, rows[from + out->count - 1].id, sizeof out->cursor);
    else if (out->more)
        memcpy(out->cursor, horizon, sizeof out->cursor);
    return true;
}

/* ---- one message ---- */

bool action_mail_read(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                      struct str message_id, unsigned want, struct arena *arena, struct mail_message *out,
                      struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_of_message(actions, caller, inbox_ref, message_id, MAIL_USE_READ, arena, &box, err) &&
           found(mail_read(actions->mail->mail, box.info.id, &box.reader, message_id, want, arena, out, err), err);
}

bool mail_attachment_find(const struct mail_content *content, struct str name, bool by_number, uint32_t *out,
                          struct err *err)
{
    uint64_t number;

    if (by_number) {
        if (!str_to_u64(name, UINT32_MAX, &number) || number >= content->attachment_count)
            return err_set(err, ERR_NOT_FOUND, "the message has no attachment with this number");
        *out = (uint32_t)number;
        return true;
    }
    for (uint32_t i = 0; i < content->attachment_count; i++) {
        if (str_eq(content->attachments[i].name, name)) {
            *out = i;
            return true;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "the message has no attachment of this name");
}

bool action_attachment_read(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                            struct str message_id, struct str name, bool by_number, struct arena *arena,
                            struct mail_attachment *out, struct err *err)
{
    struct mail_message message;
    uint32_t number;

    if (!action_mail_read(actions, caller, inbox_ref, message_id, MAIL_WANT_ATTACHMENTS, arena, &message, err) ||
        !mail_attachment_find(&message.content, name, by_number, &number, err))
        return false;
    *out = message.content.attachments[number];
    return true;
}

bool action_attachment_link(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                            struct str message_id, struct str name, bool by_number, struct arena *arena,
                            struct mail_attachment *out, struct secret *out_token, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };
    struct mail_message message;
    int64_t now_us = clock_wall_us();
    struct mail_link link = {
        .kind = MAIL_LINK_ATTACHMENT,
        .expires_us = now_us + (int64_t)LIMIT_MAIL_FILE_LINK_S * SECOND_US,
    };

    if (!mail_box_of_message(actions, caller, inbox_ref, message_id, MAIL_USE_READ, arena, &box, err) ||
        !found(mail_read(actions->mail->mail, box.info.id, &box.reader, message_id, 0, arena, &message, err), err) ||
        !mail_attachment_find(&message.content, name, by_number, &link.attachment, err))
        return false;
    memcpy(link.message_id, message.id, sizeof link.message_id);
    if (!found(mail_link_make(actions->mail->mail, box.info.id, &link, NULL, &box.reader, now_us, out_token, err), err))
        return false;
    *out = message.content.attachments[link.attachment];
    return true;
}

bool action_attachment_open(const struct actions *actions, struct str token, struct arena *arena,
                            struct mail_attachment *out, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct mail_message message;
    struct mail_link link;
    struct mail_box box;

    if (!mail_link_handle(token, handle))
        return mail_no_such(err);
    if (!found(mail_box_by_handle(actions, str_from(handle), arena, &box, err), err) ||
        !found(mail_link_open(actions->mail->mail, token, box.info.id, MAIL_WANT_ATTACHMENTS, clock_wall_us(), arena,
                              &link, &message, err),
               err))
        return false;
    if (!box.info.is_active || link.kind != MAIL_LINK_ATTACHMENT || link.attachment >= message.content.attachment_count)
        return mail_no_such(err);
    *out = message.content.attachments[link.attachment];
    return true;
}

/* A key that sends may note things about messages; opening them needs the credential too. */
static bool box_to_note(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                        struct str message_id, struct arena *arena, struct mail_box *box, struct err *err)
{
    if (!mail_box_of_message(actions, caller, inbox_ref, message_id, MAIL_USE_SEND, arena, box, err))
        return false;
    return box->can_read ||
           err_set(err, ERR_DENIED, "this needs a key of this inbox: without one its messages cannot be opened");
}

bool action_mail_label(const struct actions *actions, const struct mail_caller *caller, struct str message_id,
                       bool is_spam, struct arena *arena, struct mail_message *out, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };
    struct mail *mail = actions->mail->mail;

    if (!box_to_note(actions, caller, STR(""), message_id, arena, &box, err))
        return false;
    return found(mail_set_status(mail, box.info.id, message_id, is_spam ? MAIL_IN_QUARANTINED : MAIL_IN_UNREAD,
                                 is_spam ? STR("spam") : STR("not_spam"), str_from(caller->actor), err) &&
                     mail_read(mail, box.info.id, &box.reader, message_id, 0, arena, out, err),
                 err);
}

/* ---- threads ---- */

bool action_thread_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                        struct str cursor, uint32_t limit, struct arena *arena, struct mail_thread **out,
                        size_t *out_count, bool *out_more, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_for(actions, caller, inbox_ref, MAIL_USE_LIST, arena, &box, err) && check_limit(limit, err) &&
           found(mail_thread_list(actions->mail->mail, box.info.id, &box.reader, cursor, limit, arena, out, out_count,
                                  out_more, err),
                 err);
}

bool action_thread_get(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                       struct str thread_id, struct arena *arena, struct mail_thread *out, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_of_message(actions, caller, inbox_ref, thread_id, MAIL_USE_READ, arena, &box, err) &&
           found(mail_thread_get(actions->mail->mail, box.info.id, &box.reader, thread_id, arena, out, err), err);
}

/* ---- tags and contacts ---- */

bool action_tags_set(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                     struct str message_id, const struct mail_pair *tags, uint32_t count, struct arena *arena,
                     struct mail_pair **out, uint32_t *out_count, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return box_to_note(actions, caller, inbox_ref, message_id, arena, &box, err) &&
           found(mail_tags_set(actions->mail->mail, box.info.id, &box.reader, message_id, tags, count, arena, out,
                               out_count, err),
                 err);
}

bool action_contact_add(const struct actions *actions, const struct mail_caller *caller,
                        const struct mail_contact *contact, struct arena *arena, struct mail_contact *out,
                        struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    if (!mail_box_for(actions, caller, STR(""), MAIL_USE_SEND, arena, &box, err))
        return false;
    if (!box.can_read)
        return err_set(err, ERR_DENIED, "this needs a key of this inbox: without one its contacts cannot be opened");
    return found(mail_contact_add(actions->mail->mail, box.info.id, &box.reader, contact, arena, out, err), err);
}

bool action_contact_list(const struct actions *actions, const struct mail_caller *caller, struct str query,
                         struct arena *arena, struct mail_contact **out, size_t *out_count, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_for(actions, caller, STR(""), MAIL_USE_READ, arena, &box, err) &&
           found(mail_contact_list(actions->mail->mail, box.info.id, &box.reader, query, arena, out, out_count, err),
                 err);
}

bool action_contact_remove(const struct actions *actions, const struct mail_caller *caller, struct str id,
                           struct arena *arena, struct err *err)
{
    auto_mail_box struct mail_box box = { 0 };

    return mail_box_of_message(actions, caller, STR(""), id, MAIL_USE_ADMIN, arena, &box, err) &&
           found(mail_contact_remove(actions->mail->mail, box.info.id, id, err), err);
}
