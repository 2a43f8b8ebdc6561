/*
 * Which thread a message belongs to, as mail programs do it: the message that In-Reply-To names, else the last one of
 * References that we have, else the thread with the same subject in the last seven days, else a new one.
 *
 * The file has keyed hashes only: of each Message-ID, and of each thread's subject without "Re:" and the like. An id of
 * another message in a stranger's header can place the stranger's message into that thread, and nothing else.
 */
#include <string.h>

#include "mail/inside.h"

enum { SUBJECT_WINDOW_DAYS = 7, REFERENCES_MOST = 32 };
static const int64_t subject_window_us = (int64_t)SUBJECT_WINDOW_DAYS * 24 * 3600 * 1000000;

/* ---- subjects ---- */

/* "Re", "Fwd" and their kin in the languages that mail programs have brought along. */
static const struct str prefixes[] = {
    STR_INIT("re"), STR_INIT("fw"), STR_INIT("fwd"), STR_INIT("aw"), STR_INIT("wg"),   STR_INIT("sv"),
    STR_INIT("vs"), STR_INIT("vb"), STR_INIT("tr"),  STR_INIT("rv"), STR_INIT("antw"),
};

/* Consumes "Re:", "RE[2]:", "Fwd :". */
static bool skip_prefix(struct str *subject)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        struct str rest = *subject;
        if (!str_skip_nocase(&rest, prefixes[i]))
            continue;
        if (str_skip(&rest, STR("["))) {
            while (rest.len && char_is_digit(*rest.at))
                rest = str_of(rest.at + 1, rest.len - 1);
            if (!str_skip(&rest, STR("]")))
                continue;
        }
        rest = str_trim(rest);
        if (!str_skip(&rest, STR(":")))
            continue;
        *subject = str_trim(rest);
        return true;
    }
    return false;
}

/* In lower case, with single spaces; room has subject.len bytes. */
static struct str normal_subject(struct str subject, char *room)
{
    size_t len = 0;

    subject = str_trim(subject);
    while (skip_prefix(&subject))
        continue;
    for (size_t i = 0; i < subject.len; i++) {
        char c = subject.at[i];
        bool is_space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
        if (!is_space)
            room[len++] = char_lower(c);
        else if (len && room[len - 1] != ' ')
            room[len++] = ' ';
    }
    while (len && room[len - 1] == ' ')
        len--;
    return str_of(room, len);
}

/* ---- looking up ---- */

/* *out_found false and no error: not there. */
static bool one_id(struct inbox *inbox, const char *query, const struct sql_value *args, size_t count, bool *out_found,
                   char out_id[MAIL_MESSAGE_ID_BYTES], struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(inbox->sql, query, args, count, &rows, err) || !sql_next(&rows, out_found, err))
        return false;
    struct str id = *out_found ? sql_row_text(&rows, 0) : STR("");
    if (id.len >= MAIL_MESSAGE_ID_BYTES)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: a thread has no proper id");
    memcpy(out_id, id.at, id.len);
    out_id[id.len] = '\0';
    return true;
}

static bool by_message_id(struct inbox *inbox, struct str message_id, bool *out_found,
                          char out_id[MAIL_MESSAGE_ID_BYTES], struct err *err)
{
    char hash[65];

    inbox_hash(inbox, "message-id", message_id, hash);
    return one_id(inbox, "SELECT thread_id FROM message_ids WHERE hash = $1", SQL_ARGS(sql_text(str_from(hash))),
                  out_found, out_id, err);
}

/* The last <…> of a header, taken off its end. */
static bool last_reference(struct str *header, struct str *out)
{
    const char *end = header->at ? memrchr(header->at, '>', header->len) : NULL;
    const char *begin = end ? memrchr(header->at, '<', (size_t)(end - header->at)) : NULL;

    if (!begin)
        return false;
    *out = str_of(begin, (size_t)(end - begin) + 1);
    header->len = (size_t)(begin - header->at);
    return true;
}

static bool by_references(struct inbox *inbox, struct str header, bool *out_found, char out_id[MAIL_MESSAGE_ID_BYTES],
                          struct err *err)
{
    struct str reference;

    for (int i = 0; i < REFERENCES_MOST && !*out_found && last_reference(&header, &reference); i++)
        if (!by_message_id(inbox, reference, out_found, out_id, err))
            return false;
    return true;
}

static bool by_subject(struct inbox *inbox, const char *subject_hash, int64_t now_us, bool *out_found,
                       char out_id[MAIL_MESSAGE_ID_BYTES], struct err *err)
{
    return one_id(
        inbox, "SELECT id FROM threads WHERE subject_hash = $1 AND last_us >= $2 ORDER BY last_us DESC LIMIT 1",
        SQL_ARGS(sql_text(str_from(subject_hash)), sql_int(now_us - subject_window_us)), out_found, out_id, err);
}

static bool find(struct inbox *inbox, const struct thread_hint *hint, const char *subject_hash, bool *out_found,
                 char out_id[MAIL_MESSAGE_ID_BYTES], struct err *err)
{
    *out_found = false;
    if (hint->thread_id.len) {
        if (!one_id(inbox, "SELECT id FROM threads WHERE id = $1", SQL_ARGS(sql_text(hint->thread_id)), out_found,
                    out_id, err))
            return false;
        return *out_found || err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    }
    /* Its own id: a message to ourselves, or a copy of one that we have. */
    return (!hint->message_id.len || by_message_id(inbox, hint->message_id, out_found, out_id, err)) &&
           (*out_found || by_references(inbox, hint->in_reply_to, out_found, out_id, err)) &&
           (*out_found || by_references(inbox, hint->references, out_found, out_id, err)) &&
           (*out_found || !*subject_hash || by_subject(inbox, subject_hash, hint->now_us, out_found, out_id, err));
}

bool inbox_thread_join(struct inbox *inbox, const char *id, const struct thread_hint *hint,
                       char out_thread_id[MAIL_MESSAGE_ID_BYTES], struct err *err)
{
    char subject[LIMIT_MAIL_SUBJECT_BYTES], subject_hash[65] = "", thread_id[MAIL_MESSAGE_ID_BYTES], hash[65];
    bool found;

    struct str normal =
        normal_subject(str_of(hint->subject.at, MIN(hint->subject.len, (size_t)LIMIT_MAIL_SUBJECT_BYTES)), subject);
    if (normal.len) /* messages without a subject have nothing in common */
        inbox_hash(inbox, "subject", normal, subject_hash);
    explicit_bzero(subject, sizeof subject);
    if (!find(inbox, hint, subject_hash, &found, thread_id, err))
        return false;
    if (!found) {
        mail_message_id(inbox->id, thread_id);
        if (!sql_exec(inbox->sql, "INSERT INTO threads (id, subject_hash, created_us, last_us) VALUES ($1, $2, $3, $4)",
                      SQL_ARGS(sql_text(str_from(thread_id)), sql_text(str_from(subject_hash)), sql_int(hint->now_us),
                               sql_int(hint->now_us)),
                      err))
            return false;
    } else if (!sql_exec(inbox->sql, "UPDATE threads SET last_us = MAX(last_us, $1) WHERE id = $2",
                         SQL_ARGS(sql_int(hint->now_us), sql_text(str_from(thread_id))), err)) {
        return false;
    }
    if (hint->message_id.len) {
        inbox_hash(inbox, "message-id", hint->message_id, hash);
        /* The first message with an id keeps it: a stranger who repeats one does not take it over. */
        if (!sql_exec(inbox->sql, "INSERT OR IGNORE INTO message_ids (hash, message_id, thread_id) VALUES ($1, $2, $3)",
                      SQL_ARGS(sql_text(str_from(hash)), sql_text(str_from(id)), sql_text(str_from(thread_id))), err))
            return false;
    }
    memcpy(out_thread_id, thread_id, sizeof thread_id);
    return true;
}
