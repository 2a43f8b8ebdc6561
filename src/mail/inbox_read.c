/*
 * Arriving and reading: deliver, list, read, set the status.
 *
 * Arriving needs no credential: the content key is sealed to the inbox's public key. Delivery is repeated by the
 * dispatcher after a crash, so a message that arrives again (struct mail_arrival.once) changes nothing.
 *
 * What the agent sees of inbound mail: everything of unread, read, archived and flagged messages; quarantined ones only
 * if it asks for spam; id, status and times of held ones; nothing of rejected and deleted ones. One function decides this
 * for lists, another for single messages.
 *
 * A list walks from the newest message to the oldest by id. What the columns say is filtered by SQLite; a filter on
 * content opens the head of each message in a scratch arena, at most LIMIT_MAIL_SCAN_ROWS of them in one call.
 */
#include <string.h>

#include "base/clock.h"
#include "base/encode.h"
#include "mail/inside.h"

enum {
    READ_DELIVER = INBOX_READ_FIRST,
    READ_LIST,
    READ_ONE,
    READ_STATUS,
};

/* ---- deliver ---- */

bool mail_deliver(struct mail *mail, const struct mail_arrival *arrival, struct arena *arena, struct mail_message *out,
                  bool *out_new, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    seal_key_pack(&request, arrival->inbox_public);
    seal_key_pack(&request, arrival->approver_public);
    pack_str(&request, arrival->once);
    pack_u8(&request, (uint8_t)arrival->mode);
    pack_u64(&request, arrival->storage_bytes);
    pack_i64(&request, arrival->now_us);
    pack_content(&request, arrival->content, CONTENT_ALL);
    if (!mail_call(mail, arrival->inbox_id, READ_DELIVER, &request, arena, &reply, err))
        return false;
    bool is_new = unpack_bool(&reply);
    mail_message_unpack(&reply, arrival->inbox_id, arena, out);
    if (!unpack_done(&reply, err))
        return false;
    *out_new = is_new;
    return true;
}

struct arrived {
    struct seal_key inbox_public, approver_public;
    struct str once;
    enum mail_mode mode;
    uint64_t storage_bytes;
    int64_t now_us;
    struct mail_content content;
};

static bool arrived_unpack(struct unpack *in, struct arena *arena, struct arrived *out, struct err *err)
{
    *out = (struct arrived){ 0 };
    seal_key_unpack(in, &out->inbox_public);
    seal_key_unpack(in, &out->approver_public);
    out->once = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES + MAIL_MESSAGE_ID_BYTES);
    unsigned mode = unpack_u8(in);
    out->storage_bytes = unpack_u64(in);
    out->now_us = unpack_i64(in);
    if (unpack_content(in, arena, &out->content) != CONTENT_ALL || mode >= MAIL_MODE_COUNT)
        in->failed = true;
    out->mode = (enum mail_mode)mode;
    return unpack_done(in, err);
}

/* The row of an earlier arrival with the same `once`. */
static bool find_earlier(struct inbox *inbox, const char *once_hash, struct arena *arena, struct mail_message *out,
                         bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    *out_there = false;
    if (!*once_hash)
        return true;
    if (!sql_select(inbox->sql, "SELECT " MESSAGE_COLUMNS " FROM messages m WHERE m.once_hash = $1",
                    SQL_ARGS(sql_text(str_from(once_hash))), &rows, err) ||
        !sql_next(&rows, out_there, err))
        return false;
    if (*out_there)
        inbox_message_row(inbox, &rows, arena, out);
    return true;
}

/* Held comes first: in gated_all a person looks at each message, also at one that looks like an attack. */
static enum mail_in_status first_status(const struct arrived *a)
{
    if (a->mode == MAIL_GATED_ALL)
        return MAIL_IN_HELD;
    if (a->content.injection_percent >= MAIL_QUARANTINE_PERCENT)
        return MAIL_IN_QUARANTINED;
    return a->content.injection_percent >= MAIL_FLAG_PERCENT ? MAIL_IN_FLAGGED : MAIL_IN_UNREAD;
}

static bool insert(struct inbox *inbox, const struct arrived *a, const char *once_hash, struct arena *arena,
                   struct mail_message *m, struct err *err)
{
    auto_seal_key struct seal_key key;
    unsigned char hash[GATE_HASH_BYTES];
    struct mail_ciphers ciphers;
    uint64_t storage;
    struct thread_hint hint = { .message_id = a->content.message_id,
                                .in_reply_to = a->content.in_reply_to,
                                .references = a->content.references,
                                .subject = a->content.subject,
                                .now_us = a->now_us };

    mail_message_id(inbox->id, m->id);
    seal_random_key(&key);
    mail_content_hash(&a->content, hash);
    hex_text(str_of(hash, sizeof hash), m->sha256);
    if (!mail_content_seal(&key, m->id, &a->content, arena, &ciphers, err) || !inbox_storage(inbox, &storage, err))
        return false;
    if (ciphers.size > a->storage_bytes || storage > a->storage_bytes - ciphers.size)
        return err_set(err, ERR_LIMIT, "the inbox is full: messages must be deleted before others can arrive");
    if (!inbox_thread_join(inbox, m->id, &hint, m->thread_id, err))
        return false;
    m->direction = MAIL_INBOUND;
    m->in_status = first_status(a);
    m->created_us = m->received_us = a->now_us;
    return sql_exec(inbox->sql,
                    "INSERT INTO messages (id, thread_id, direction, in_status, created_us, received_us, hash, "
                    "has_attachments, size, once_hash, head_cipher, body_cipher) "
                    "VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                    SQL_ARGS(sql_text(str_from(m->id)), sql_text(str_from(m->thread_id)), sql_int(m->in_status),
                             sql_int(m->created_us), sql_int(m->received_us), sql_blob(str_of(hash, sizeof hash)),
                             sql_int(a->content.attachment_count > 0), sql_int((int64_t)ciphers.size),
                             sql_text_or_null(str_from(once_hash)), sql_blob(ciphers.head), sql_blob(ciphers.body)),
                    err) &&
           inbox_key_put(inbox, m->id, "inbox", &a->inbox_public, &key, err) &&
           (m->in_status != MAIL_IN_HELD || inbox_key_put(inbox, m->id, "approver", &a->approver_public, &key, err));
}

static bool store_arrival(struct inbox *inbox, const struct arrived *a, struct arena *arena, struct mail_message *m,
                          bool *out_new, struct err *err)
{
    char once_hash[65] = "";
    bool there;

    if (a->once.len)
        inbox_hash(inbox, "once", a->once, once_hash);
    if (!find_earlier(inbox, once_hash, arena, m, &there, err))
        return false;
    *out_new = !there;
    if (there)
        return true;
    if (!insert(inbox, a, once_hash, arena, m, err))
        return false;
    static const char *const statuses[] = { [MAIL_IN_HELD] = "held",
                                            [MAIL_IN_UNREAD] = "unread",
                                            [MAIL_IN_FLAGGED] = "flagged",
                                            [MAIL_IN_QUARANTINED] = "quarantined" };
    struct str detail = arena_format(arena, "{\"sha256\":\"%s\",\"status\":\"%s\"}", m->sha256, statuses[m->in_status]);
    return inbox_count(inbox, "received", 1, a->now_us, err) &&
           audit_append(inbox, "message.received", str_from(m->id), STR("server"), detail, a->now_us, err);
}

static bool run_deliver(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct mail_message m = { 0 };
    struct arrived a;
    bool is_new = false;

    if (!arrived_unpack(in, arena, &a, err))
        return false;
    /* Front has the key since the inbox was made. Another one here: this is not the inbox's file. */
    if (memcmp(a.inbox_public.bytes, inbox->public_key.bytes, SEAL_KEY_BYTES) != 0)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: it has another inbox's key");
    if (!sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = store_arrival(inbox, &a, arena, &m, &is_new, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    pack_bool(out, is_new);
    mail_message_pack(out, &m, CONTENT_HEAD); /* without content: whoever delivers has it */
    return true;
}

/* ---- list ---- */

static bool id_or_empty(struct str id, const char *name, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];

    return !id.len || mail_message_id_handle(id, handle) ||
           err_set(err, ERR_INVALID, "%s is not the id of a message", name);
}

static bool filter_valid(const struct mail_filter *f, struct err *err)
{
    const struct str texts[] = { f->from_exact, f->from_part, f->subject_part, f->text };

    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].len > LIMIT_MAIL_QUERY_BYTES)
            return err_set(err, ERR_INVALID, "a text to search for is too long: at most %d bytes",
                           LIMIT_MAIL_QUERY_BYTES);
    return id_or_empty(f->since_id, "since_id", err) && id_or_empty(f->before_id, "the cursor", err);
}

static void filter_pack(struct buf *out, const struct mail_filter *f)
{
    pack_bool(out, f->inbound);
    pack_bool(out, f->outbound);
    pack_i64(out, f->in_status);
    pack_i64(out, f->state);
    pack_u32(out, f->states);
    pack_str(out, f->from_exact);
    pack_str(out, f->from_part);
    pack_str(out, f->subject_part);
    pack_str(out, f->text);
    pack_i64(out, f->after_us);
    pack_i64(out, f->before_us);
    pack_i64(out, f->has_attachments);
    pack_str(out, f->since_id);
    pack_str(out, f->before_id);
    pack_u32(out, f->offset);
    pack_u32(out, f->limit);
    pack_bool(out, f->include_spam);
}

/* -1, or below count. */
static int unpack_choice(struct unpack *in, int count)
{
    int64_t value = unpack_i64(in);

    if (value < -1 || value >= count)
        in->failed = true;
    return in->failed ? -1 : (int)value;
}

static void filter_unpack(struct unpack *in, struct mail_filter *f)
{
    *f = (struct mail_filter){ 0 };
    f->inbound = unpack_bool(in);
    f->outbound = unpack_bool(in);
    f->in_status = unpack_choice(in, MAIL_IN_DELETED + 1);
    f->state = unpack_choice(in, MAIL_STATE_COUNT);
    f->states = unpack_u32(in);
    f->from_exact = unpack_str(in, LIMIT_MAIL_QUERY_BYTES);
    f->from_part = unpack_str(in, LIMIT_MAIL_QUERY_BYTES);
    f->subject_part = unpack_str(in, LIMIT_MAIL_QUERY_BYTES);
    f->text = unpack_str(in, LIMIT_MAIL_QUERY_BYTES);
    f->after_us = unpack_i64(in);
    f->before_us = unpack_i64(in);
    f->has_attachments = unpack_choice(in, 2);
    f->since_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    f->before_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    f->offset = unpack_u32(in);
    f->limit = unpack_u32(in);
    f->include_spam = unpack_bool(in);
}

bool mail_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader,
               const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_page page = { 0 };
    struct unpack reply;

    if (!filter_valid(filter, err))
        return false;
    mail_reading_pack(&request, reader);
    filter_pack(&request, filter);
    if (!mail_reading_call(mail, inbox_id, READ_LIST, &request, arena, &reply, err))
        return false;
    page.more = unpack_bool(&reply);
    unpack_text(&reply, page.cursor, sizeof page.cursor);
    page.count = unpack_count(&reply, LIMIT_MAIL_PAGE);
    page.rows = ARENA_ARRAY(arena, struct mail_message, page.count);
    for (size_t i = 0; i < page.count; i++)
        mail_message_unpack(&reply, inbox_id, arena, &page.rows[i]);
    if (!unpack_done(&reply, err))
        return false;
    *out = page;
    return true;
}

/* Each word is in the subject, the sender or the preview. */
static bool has_words(const struct mail_content *content, struct str words)
{
    struct str word;

    while (str_cut(&words, ' ', &word))
        if (!mail_has_part(content->subject, word) && !mail_has_part(content->from, word) &&
            !mail_has_part(content->preview, word))
            return false;
    return true;
}

static bool looks_at_content(const struct mail_filter *f)
{
    return f->from_exact.len || f->from_part.len || f->subject_part.len || f->text.len;
}

static bool content_matches(const struct mail_filter *f, const struct mail_message *m)
{
    const struct mail_content *c = &m->content;

    return m->has_content && (!f->from_exact.len || str_eq_nocase(mail_bare_address(c->from), f->from_exact)) &&
           mail_has_part(c->from, f->from_part) && mail_has_part(c->subject, f->subject_part) && has_words(c, f->text);
}

/*
 * What the columns can say. The ids bound the walk; the + keeps SQLite from taking another index. Visible are: unread,
 * read, archived and flagged (1…4), held (0) unless it is asked what is in it, quarantined (5) on demand. A message
 * that was held counts as received when it was approved, for callers that wait for mail since a time.
 */
static bool select_rows(struct inbox *inbox, const struct mail_filter *f, struct sql_rows *rows, struct err *err)
{
    bool spam = f->include_spam || f->in_status == MAIL_IN_QUARANTINED;
    bool held = !looks_at_content(f) && f->has_attachments < 0;

    return sql_select(
        inbox->sql,
        SELECT_HEADS
        "WHERE m.id < $1 AND m.id > $2 AND "
        "MAX(m.received_us, CASE m.direction WHEN 0 THEN m.decided_us ELSE 0 END) >= $3 AND "
        "+m.received_us <= $4 AND "
        "((+m.direction = 0 AND $5 AND (m.in_status BETWEEN 1 AND 4 OR (m.in_status = 0 AND $6) OR "
        "  (m.in_status = 5 AND $7)) AND ($8 < 0 OR m.in_status = $8)) OR "
        " (+m.direction = 1 AND $9 AND ($10 < 0 OR +m.state = $10) AND ($11 = 0 OR ($11 >> +m.state) & 1))) AND "
        "($12 < 0 OR m.has_attachments = $12) ORDER BY m.id DESC",
        SQL_ARGS(sql_text(f->before_id.len ? f->before_id : STR("~")), sql_text(f->since_id), sql_int(f->after_us),
                 sql_int(f->before_us ? f->before_us : INT64_MAX), sql_int(f->inbound), sql_int(held), sql_int(spam),
                 sql_int(f->in_status), sql_int(f->outbound), sql_int(f->state), sql_int(f->states),
                 sql_int(f->has_attachments)),
        rows, err);
}

struct listing {
    struct inbox_reading *reading;
    const struct mail_filter *filter;
    struct buf packed; /* the rows that go out */
    uint32_t count, skipped, looked_at;
    char last_id[MAIL_MESSAGE_ID_BYTES];
    struct arena scratch; /* for one row */
};

static bool list_row(struct listing *l, const struct sql_rows *rows, struct err *err)
{
    bool by_content = looks_at_content(l->filter);
    struct mail_message m;

    /* A row that is only passed over need not be opened. */
    if (!by_content && l->skipped < l->filter->offset) {
        inbox_message_row(l->reading->inbox, rows, &l->scratch, &m);
    } else {
        l->looked_at++;
        if (!inbox_reading_row(l->reading, rows, "head", &l->scratch, &m, err))
            return false;
    }
    memcpy(l->last_id, m.id, sizeof l->last_id);
    if (by_content && !content_matches(l->filter, &m))
        return true;
    if (l->skipped < l->filter->offset) {
        l->skipped++;
        return true;
    }
    mail_message_pack(&l->packed, &m, CONTENT_HEAD);
    l->count++;
    return true;
}

/* *out_more: rows may be left. */
static bool list_rows(struct listing *l, bool *out_more, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    uint32_t limit = l->filter->limit ? MIN(l->filter->limit, (uint32_t)LIMIT_MAIL_PAGE) : LIMIT_MAIL_PAGE;
    bool there;

    if (!select_rows(l->reading->inbox, l->filter, &rows, err))
        return false;
    for (;;) {
        if (!sql_next(&rows, &there, err))
            return false;
        *out_more = there;
        if (!there || l->count >= limit || l->packed.len >= LIMIT_MAIL_PAGE_BYTES ||
            l->looked_at >= LIMIT_MAIL_SCAN_ROWS)
            return true;
        bool fine = list_row(l, &rows, err);
        arena_done(&l->scratch);
        if (!fine)
            return false;
    }
}

static bool run_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct mail_reading_who who;
    struct mail_filter filter;
    struct listing l = { .reading = &reading, .filter = &filter, .packed = mail_request(arena) };
    bool more = false;

    mail_reading_unpack(in, &who);
    filter_unpack(in, &filter);
    if (!unpack_done(in, err) ||
        !inbox_reading_begin(inbox, &who, "grant.list", str_from(inbox->id), arena, &reading, err))
        return false;
    arena_init(&l.scratch);
    bool fine = list_rows(&l, &more, err);
    arena_done(&l.scratch);
    if (!fine)
        return false;
    pack_bool(out, more);
    pack_str(out, more ? str_from(l.last_id) : STR(""));
    pack_u32(out, l.count);
    buf_add(out, buf_str(&l.packed));
    return true;
}

/* ---- read ---- */

bool mail_read(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str message_id,
               unsigned want, struct arena *arena, struct mail_message *out, struct err *err)
{
    struct buf request = mail_request(arena);
    char handle[MAIL_HANDLE_BYTES];
    struct unpack reply;

    if (!mail_message_id_handle(message_id, handle))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    mail_reading_pack(&request, reader);
    pack_str(&request, message_id);
    pack_u32(&request, want);
    if (!mail_reading_call(mail, inbox_id, READ_ONE, &request, arena, &reply, err))
        return false;
    mail_message_unpack(&reply, inbox_id, arena, out);
    return unpack_done(&reply, err);
}

static bool is_visible(const struct mail_message *m)
{
    return m->direction == MAIL_OUTBOUND || (m->in_status != MAIL_IN_REJECTED && m->in_status != MAIL_IN_DELETED);
}

bool inbox_reading_one(struct inbox_reading *reading, struct str message_id, bool whole, struct arena *arena,
                       struct mail_message *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    static const char *const queries[] = {
        SELECT_HEADS "WHERE m.id = $1",
        SELECT_BODIES "WHERE m.id = $1",
    };
    bool there;

    if (!sql_select(reading->inbox->sql, queries[whole], SQL_ARGS(sql_text(message_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (there)
        inbox_message_row(reading->inbox, &rows, arena, out);
    if (!there || !is_visible(out))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    return inbox_reading_row(reading, &rows, whole ? "body" : "head", arena, out, err);
}

static bool mark_read(struct inbox *inbox, struct mail_message *m, struct err *err)
{
    if (m->direction != MAIL_INBOUND || m->in_status != MAIL_IN_UNREAD)
        return true;
    if (!sql_begin(inbox->sql, SQL_LAZY, err))
        return false;
    bool fine = sql_exec(inbox->sql, "UPDATE messages SET in_status = $1 WHERE id = $2 AND in_status = $3",
                         SQL_ARGS(sql_int(MAIL_IN_READ), sql_text(str_from(m->id)), sql_int(MAIL_IN_UNREAD)), err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    m->in_status = MAIL_IN_READ;
    return true;
}

static bool run_read(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct mail_reading_who who;
    struct mail_message m;

    mail_reading_unpack(in, &who);
    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    unsigned want = unpack_u32(in);
    bool whole = want & (MAIL_WANT_TEXT | MAIL_WANT_MIME | MAIL_WANT_ATTACHMENTS);
    if (!unpack_done(in, err) || !inbox_reading_begin(inbox, &who, "grant.read", message_id, arena, &reading, err) ||
        !inbox_reading_one(&reading, message_id, whole, arena, &m, err))
        return false;
    /* A grant reads and changes nothing. */
    if ((want & MAIL_WANT_MARK_READ) && !who.grant.len && !mark_read(inbox, &m, err))
        return false;
    mail_message_pack(out, &m,
                      CONTENT_HEAD | (want & MAIL_WANT_TEXT ? CONTENT_TEXT : 0U) |
                          (want & MAIL_WANT_MIME ? CONTENT_MIME : 0U) |
                          (want & MAIL_WANT_ATTACHMENTS ? CONTENT_FILES : 0U));
    return true;
}

/* ---- status ---- */

bool mail_set_status(struct mail *mail, const char *inbox_id, struct str message_id, enum mail_in_status status,
                     struct str label, struct str actor, struct err *err)
{
    struct arena arena;
    struct unpack reply;
    char handle[MAIL_HANDLE_BYTES];

    if (!mail_message_id_handle(message_id, handle))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, message_id);
    pack_u8(&request, (uint8_t)status);
    pack_str(&request, label);
    pack_str(&request, actor);
    bool fine = mail_call(mail, inbox_id, READ_STATUS, &request, &arena, &reply, err) && unpack_done(&reply, err);
    arena_done(&arena);
    return fine;
}

static bool status_of(struct inbox *inbox, struct str message_id, enum mail_in_status *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT in_status FROM messages WHERE id = $1 AND direction = 0",
                    SQL_ARGS(sql_text(message_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    enum mail_in_status status = there ? (enum mail_in_status)sql_row_int(&rows, 0) : MAIL_IN_DELETED;
    if (status == MAIL_IN_REJECTED || status == MAIL_IN_DELETED)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    if (status == MAIL_IN_HELD)
        return err_set(err, ERR_CONFLICT, "the message is held: an approver decides about it first");
    *out = status;
    return true;
}

/* The row stays, so that a repeated delivery does not bring the message back. */
static bool remove_content(struct inbox *inbox, struct str message_id, struct err *err)
{
    return sql_exec(inbox->sql, "DELETE FROM content_keys WHERE message_id = $1", SQL_ARGS(sql_text(message_id)),
                    err) &&
           sql_exec(inbox->sql,
                    "UPDATE messages SET head_cipher = '', body_cipher = '', tags_cipher = NULL, reason_cipher = NULL, "
                    "size = 0 WHERE id = $1",
                    SQL_ARGS(sql_text(message_id)), err);
}

static bool change_status(struct inbox *inbox, struct str message_id, enum mail_in_status status, struct str label,
                          struct str actor, struct err *err)
{
    static const char *const names[] = {
        [MAIL_IN_UNREAD] = "message.unread",           [MAIL_IN_READ] = "message.read",
        [MAIL_IN_ARCHIVED] = "message.archived",       [MAIL_IN_FLAGGED] = "message.flagged",
        [MAIL_IN_QUARANTINED] = "message.quarantined", [MAIL_IN_DELETED] = "message.deleted"
    };
    enum mail_in_status now;

    return status_of(inbox, message_id, &now, err) &&
           sql_exec(
               inbox->sql,
               "UPDATE messages SET in_status = $1, label = CASE WHEN $2 = '' THEN label ELSE $2 END WHERE id = $3",
               SQL_ARGS(sql_int(status), sql_text(label), sql_text(message_id)), err) &&
           (status != MAIL_IN_DELETED || remove_content(inbox, message_id, err)) &&
           audit_append(inbox, names[status], message_id, actor, STR("{}"), clock_wall_us(), err);
}

static bool run_status(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    unsigned status = unpack_u8(in);
    struct str label = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);

    (void)arena;
    (void)out;
    if (!unpack_done(in, err))
        return false;
    if (status == MAIL_IN_HELD || status == MAIL_IN_REJECTED || status > MAIL_IN_DELETED)
        return err_set(err, ERR_INVALID, "a message cannot be given this status");
    if (label.len && !str_eq(label, STR("spam")) && !str_eq(label, STR("not_spam")))
        return err_set(err, ERR_INVALID, "a label is spam or not_spam");
    if (!sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = change_status(inbox, message_id, (enum mail_in_status)status, label, actor, err);
    return sql_end(inbox->sql, fine, err);
}

const struct inbox_operation inbox_read_operations[] = {
    { READ_DELIVER, run_deliver }, { READ_LIST, run_list }, { READ_ONE, run_read }, { READ_STATUS, run_status }, { 0 },
};
