/*
 * Threads of an inbox: a list by latest activity, and one thread with its messages. threading.c says which message is in
 * which thread.
 *
 * Only what the agent may read counts: a thread whose messages are all held, rejected, deleted or spam does not exist for
 * it, and times and counts are those of the others.
 */
#include <string.h>

#include "mail/inside.h"

enum { THREAD_LIST = INBOX_THREAD_FIRST, THREAD_GET };

/* ---- between front and worker ---- */

static void thread_pack(struct buf *out, const struct mail_thread *t)
{
    pack_str(out, str_from(t->id));
    pack_str(out, t->subject);
    pack_u32(out, t->message_count);
    pack_i64(out, t->created_us);
    pack_i64(out, t->last_us);
    pack_bool(out, t->has_unanswered_inbound);
    pack_u32(out, t->participant_count);
    for (uint32_t i = 0; i < t->participant_count; i++)
        pack_str(out, t->participants[i]);
}

static void thread_unpack(struct unpack *in, struct arena *arena, struct mail_thread *out)
{
    *out = (struct mail_thread){ 0 };
    unpack_text(in, out->id, sizeof out->id);
    out->subject = unpack_str(in, LIMIT_MAIL_SUBJECT_BYTES);
    out->message_count = unpack_u32(in);
    out->created_us = unpack_i64(in);
    out->last_us = unpack_i64(in);
    out->has_unanswered_inbound = unpack_bool(in);
    uint32_t count = unpack_count(in, LIMIT_MAIL_PARTICIPANTS);
    out->participants = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++)
        out->participants[i] = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    out->participant_count = count;
}

/* ---- what is in a thread ---- */

/* Counts and times, without opening anything. *out_there false: nothing that the agent may see. */
static bool look_at(struct inbox *inbox, struct mail_thread *t, bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    /* A message that was refused or taken back is no answer. */
    if (!sql_select(inbox->sql,
                    "SELECT COUNT(*), MIN(m.received_us), MAX(m.received_us), "
                    "COALESCE(MAX(CASE WHEN m.direction = 0 THEN m.id END), '') > "
                    "COALESCE(MAX(CASE WHEN m.direction = 1 AND m.state NOT IN ($1, $2, $3, $4) THEN m.id END), '') "
                    "FROM messages m WHERE m.thread_id = $5 AND " MESSAGE_IS_SHOWN,
                    SQL_ARGS(sql_int(MAIL_REJECTED), sql_int(MAIL_CANCELLED), sql_int(MAIL_FAILED),
                             sql_int(MAIL_EXPIRED), sql_text(str_from(t->id))),
                    &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    t->message_count = (uint32_t)sql_row_int(&rows, 0);
    t->created_us = sql_row_int(&rows, 1);
    t->last_us = sql_row_int(&rows, 2);
    t->has_unanswered_inbound = sql_row_int(&rows, 3);
    *out_there = t->message_count > 0;
    return true;
}

static void add_participant(struct mail_thread *t, struct str shown, struct arena *arena)
{
    struct str address = mail_bare_address(shown);

    if (!address.len || t->participant_count == LIMIT_MAIL_PARTICIPANTS)
        return;
    for (uint32_t i = 0; i < t->participant_count; i++)
        if (str_eq_nocase(t->participants[i], address))
            return;
    t->participants[t->participant_count++] = arena_copy(arena, address);
}

static void add_participants(struct mail_thread *t, const struct mail_content *content, struct arena *arena)
{
    add_participant(t, content->from, arena);
    for (uint32_t i = 0; i < content->to_count; i++)
        add_participant(t, content->to[i], arena);
    for (uint32_t i = 0; i < content->cc_count; i++)
        add_participant(t, content->cc[i], arena);
}

/* Heads from the newest on, at most `most`; into `messages` if that is given. */
struct walk {
    struct inbox_reading *reading;
    struct mail_thread *thread;
    uint32_t most;
    struct buf *messages;
    uint32_t count; /* in messages */
    struct arena *arena;
};

static bool walk_rows(struct walk *w, struct arena *scratch, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct mail_message m;
    bool there;

    if (!sql_select(w->reading->inbox->sql,
                    SELECT_HEADS "WHERE m.thread_id = $1 AND " MESSAGE_IS_SHOWN " ORDER BY m.id DESC LIMIT $2",
                    SQL_ARGS(sql_text(str_from(w->thread->id)), sql_int(w->most)), &rows, err))
        return false;
    for (;;) {
        arena_done(scratch);
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there || (w->messages && w->messages->len >= LIMIT_MAIL_PAGE_BYTES))
            return true;
        if (!inbox_reading_row(w->reading, &rows, "head", scratch, &m, err))
            return false;
        add_participants(w->thread, &m.content, w->arena);
        if (w->messages)
            mail_message_pack(w->messages, &m, CONTENT_HEAD);
        w->count++;
    }
}

static bool first_subject(struct inbox_reading *reading, struct mail_thread *t, struct arena *arena,
                          struct arena *scratch, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct mail_message m;
    bool there;

    if (!sql_select(reading->inbox->sql,
                    SELECT_HEADS "WHERE m.thread_id = $1 AND " MESSAGE_IS_SHOWN " ORDER BY m.id LIMIT 1",
                    SQL_ARGS(sql_text(str_from(t->id))), &rows, err) ||
        !sql_next(&rows, &there, err) || !there || !inbox_reading_row(reading, &rows, "head", scratch, &m, err))
        return false;
    t->subject = arena_copy(arena, m.content.subject);
    return true;
}

static bool open_thread(struct walk *w, struct err *err)
{
    struct arena scratch;

    w->thread->participants = ARENA_ARRAY(w->arena, struct str, LIMIT_MAIL_PARTICIPANTS);
    arena_init(&scratch);
    bool fine = first_subject(w->reading, w->thread, w->arena, &scratch, err) && walk_rows(w, &scratch, err);
    arena_done(&scratch);
    return fine;
}

/* ---- list ---- */

bool mail_thread_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str cursor,
                      uint32_t limit, struct arena *arena, struct mail_thread **out, size_t *out_count, bool *out_more,
                      struct err *err)
{
    struct buf request = mail_request(arena);
    char handle[MAIL_HANDLE_BYTES];
    struct unpack reply;

    if (cursor.len && !mail_message_id_handle(cursor, handle))
        return err_set(err, ERR_INVALID, "the cursor is not the id of a thread");
    mail_reading_pack(&request, reader);
    pack_str(&request, cursor);
    pack_u32(&request, limit);
    if (!mail_reading_call(mail, inbox_id, THREAD_LIST, &request, arena, &reply, err))
        return false;
    bool more = unpack_bool(&reply);
    uint32_t count = unpack_count(&reply, LIMIT_MAIL_PAGE);
    struct mail_thread *threads = ARENA_ARRAY(arena, struct mail_thread, count);
    for (uint32_t i = 0; i < count; i++)
        thread_unpack(&reply, arena, &threads[i]);
    if (!unpack_done(&reply, err))
        return false;
    *out = threads;
    *out_count = count;
    *out_more = more;
    return true;
}

/* Where the page before ended. */
static bool find_cursor(struct inbox *inbox, struct str cursor, int64_t *out_last_us, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    *out_last_us = INT64_MAX;
    if (!cursor.len)
        return true;
    if (!sql_select(inbox->sql, "SELECT last_us FROM threads WHERE id = $1", SQL_ARGS(sql_text(cursor)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_INVALID, "the cursor is not the id of a thread");
    *out_last_us = sql_row_int(&rows, 0);
    return true;
}

struct thread_page {
    struct buf packed;
    uint32_t count;
    bool more;
};

static bool list_threads(struct inbox_reading *reading, struct str cursor, uint32_t limit, struct arena *arena,
                         struct thread_page *page, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    int64_t last_us;

    if (!find_cursor(reading->inbox, cursor, &last_us, err) ||
        !sql_select(reading->inbox->sql,
                    "SELECT id FROM threads WHERE (last_us, id) < ($1, $2) ORDER BY last_us DESC, id DESC",
                    SQL_ARGS(sql_int(last_us), sql_text(cursor.len ? cursor : STR("~"))), &rows, err))
        return false;
    for (;;) {
        struct mail_thread t = { 0 };
        bool there, shown;
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            return true;
        struct str id = sql_row_text(&rows, 0);
        memcpy(t.id, id.at, MIN(id.len, sizeof t.id - 1));
        if (!look_at(reading->inbox, &t, &shown, err))
            return false;
        if (!shown)
            continue;
        /* One more is there: only then is there another page. */
        page->more = page->count == limit || page->packed.len >= LIMIT_MAIL_PAGE_BYTES;
        if (page->more)
            return true;
        struct walk w = { .reading = reading, .thread = &t, .most = LIMIT_MAIL_THREAD_PEEK, .arena = arena };
        if (!open_thread(&w, err))
            return false;
        thread_pack(&page->packed, &t);
        page->count++;
    }
}

static bool run_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct thread_page page = { .packed = mail_request(arena) };
    struct mail_reading_who who;

    mail_reading_unpack(in, &who);
    struct str cursor = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    uint32_t limit = unpack_u32(in);
    if (!unpack_done(in, err) ||
        !inbox_reading_begin(inbox, &who, "grant.list", str_from(inbox->id), arena, &reading, err) ||
        !list_threads(&reading, cursor, limit ? MIN(limit, (uint32_t)LIMIT_MAIL_PAGE) : LIMIT_MAIL_PAGE, arena, &page,
                      err))
        return false;
    pack_bool(out, page.more);
    pack_u32(out, page.count);
    buf_add(out, buf_str(&page.packed));
    return true;
}

/* ---- one ---- */

bool mail_thread_get(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str thread_id,
                     struct arena *arena, struct mail_thread *out, struct err *err)
{
    struct buf request = mail_request(arena);
    char handle[MAIL_HANDLE_BYTES];
    struct mail_thread thread;
    struct unpack reply;

    if (!mail_message_id_handle(thread_id, handle))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    mail_reading_pack(&request, reader);
    pack_str(&request, thread_id);
    if (!mail_reading_call(mail, inbox_id, THREAD_GET, &request, arena, &reply, err))
        return false;
    thread_unpack(&reply, arena, &thread);
    uint32_t count = unpack_count(&reply, LIMIT_MAIL_THREAD_ROWS);
    thread.messages = ARENA_ARRAY(arena, struct mail_message, count);
    for (uint32_t i = count; i > 0; i--) /* they come newest first */
        mail_message_unpack(&reply, inbox_id, arena, &thread.messages[i - 1]);
    if (!unpack_done(&reply, err))
        return false;
    thread.shown_count = count;
    *out = thread;
    return true;
}

static bool run_get(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct buf messages = mail_request(arena);
    struct mail_reading_who who;
    struct mail_thread t = { 0 };
    struct walk w = {
        .reading = &reading, .thread = &t, .most = LIMIT_MAIL_THREAD_ROWS, .messages = &messages, .arena = arena
    };
    bool shown;

    mail_reading_unpack(in, &who);
    struct str thread_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    memcpy(t.id, thread_id.at, thread_id.len);
    if (!unpack_done(in, err) || !inbox_reading_begin(inbox, &who, "grant.read", thread_id, arena, &reading, err) ||
        !look_at(inbox, &t, &shown, err))
        return false;
    if (!shown)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    if (!open_thread(&w, err))
        return false;
    thread_pack(out, &t);
    pack_u32(out, w.count);
    buf_add(out, buf_str(&messages));
    return true;
}

const struct inbox_operation inbox_thread_operations[] = {
    { THREAD_LIST, run_list },
    { THREAD_GET, run_get },
    { 0 },
};
