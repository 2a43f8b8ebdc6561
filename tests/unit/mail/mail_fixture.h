/*
 * mail_fixture.h - inboxes and messages for the tests of the reading side.
 */
#ifndef TESTS_MAIL_MAIL_FIXTURE_H
#define TESTS_MAIL_MAIL_FIXTURE_H

#include <sqlite3.h>

#include "office_fake.h"

#define OFFICE_CASE(function) cmocka_unit_test_setup_teardown(function, office_fake_set_up, office_fake_tear_down)

/* A filter that lets everything through; other fields may follow. */
#define ALL .inbound = true, .outbound = true, .in_status = -1, .state = -1, .has_attachments = -1
/* The same, with one of these fields changed. */
#define ALL_BUT(field, value)              \
    ((const struct mail_filter[]){ ({      \
        struct mail_filter but_ = { ALL }; \
        but_.field = (value);              \
        but_;                              \
    }) })

struct fixture_inbox {
    char id[MAIL_INBOX_ID_BYTES], key_id[MAIL_KEY_ID_BYTES];
    struct seal_key public_key, approver_public, approver_private;
    struct mail_reader reader;
};

/* `credential`: any text; inboxes with the same one have one reader. */
static inline void inbox_make(struct office_fake *o, struct fixture_inbox *box, const char *credential)
{
    mail_ulid(box->id);
    snprintf(box->key_id, sizeof box->key_id, "01HKEY%020u", (unsigned)o->worker_count);
    box->reader = (struct mail_reader){ .key_id = box->key_id };
    seal_derive(str_from(credential), "inbox", &box->reader.kek);
    seal_make_pair(&box->approver_public, &box->approver_private);
    struct mail_inbox_new want = {
        .inbox_id = box->id, .readers = &box->reader, .reader_count = 1, .actor = STR("test")
    };
    MUST(mail_inbox_make(o->mail, &want, &box->public_key, &err));
}

/* A message in short; what is NULL or zero gets a value that does no harm. */
struct note {
    const char *subject, *text, *from, *file, *file_name, *once, *message_id, *in_reply_to, *references;
    enum mail_mode mode;
    int64_t at_us;
    uint32_t injection_percent;
};

static inline struct str or_text(const char *text, const char *otherwise)
{
    return str_from(text ? text : otherwise);
}

/* Everything lives in the office's arena. */
static inline void note_arrival(struct office_fake *o, const struct fixture_inbox *box, const struct note *note,
                                struct mail_content *content, struct mail_arrival *out)
{
    char unique[MAIL_INBOX_ID_BYTES];

    mail_ulid(unique);
    *content = (struct mail_content){
        .subject = or_text(note->subject, ""),
        .text = or_text(note->text, ""),
        .preview = or_text(note->text, ""),
        .from = or_text(note->from, "Ann <ann@out.example>"),
        .sender = STR("ann@out.example"),
        .message_id =
            note->message_id ? str_from(note->message_id) : arena_format(&o->arena, "<%s@out.example>", unique),
        .in_reply_to = or_text(note->in_reply_to, ""),
        .references = or_text(note->references, ""),
        .injection_percent = note->injection_percent,
        .to = ARENA_ARRAY(&o->arena, struct str, 1),
        .to_count = 1,
        .recipients = ARENA_ARRAY(&o->arena, struct str, 1),
        .recipient_count = 1,
    };
    content->to[0] = content->recipients[0] = STR("bob@in.example");
    content->mime = arena_format(&o->arena, "From: %.*s\r\nSubject: %.*s\r\n\r\n%.*s\r\n", STR_ARG(content->from),
                                 STR_ARG(content->subject), STR_ARG(content->text));
    if (note->file) {
        content->attachments = ARENA_NEW(&o->arena, struct mail_attachment);
        content->attachments[0].name = or_text(note->file_name, "file.txt");
        content->attachments[0].content_type = STR("text/plain");
        content->attachments[0].content = str_from(note->file);
        content->attachments[0].size = strlen(note->file);
        content->attachment_count = 1;
    }
    *out = (struct mail_arrival){
        .inbox_id = box->id,
        .inbox_public = &box->public_key,
        .approver_public = &box->approver_public,
        .content = content,
        .once = note->once ? str_from(note->once) : arena_format(&o->arena, "%s bob@in.example", unique),
        .mode = note->mode ? note->mode : MAIL_GATED_SEND,
        .storage_bytes = 100 << 20,
        .now_us = note->at_us ? note->at_us : clock_wall_us(),
    };
}

/* True: it is new. */
static inline bool arrive_maybe(struct office_fake *o, const struct fixture_inbox *box, const struct note *note,
                                struct mail_message *out)
{
    struct mail_content content;
    struct mail_arrival arrival;
    bool is_new = false;

    note_arrival(o, box, note, &content, &arrival);
    MUST(mail_deliver(o->mail, &arrival, &o->arena, out, &is_new, &err));
    return is_new;
}

static inline struct mail_message arrive(struct office_fake *o, const struct fixture_inbox *box,
                                         const struct note *note)
{
    struct mail_message out;

    assert_true(arrive_maybe(o, box, note, &out));
    return out;
}

static inline struct mail_page list(struct office_fake *o, const struct fixture_inbox *box,
                                    const struct mail_filter *filter)
{
    struct mail_page page;

    MUST(mail_list(o->mail, box->id, &box->reader, filter, &o->arena, &page, &err));
    return page;
}

static inline struct mail_message read_one(struct office_fake *o, const struct fixture_inbox *box, const char *id,
                                           unsigned want)
{
    struct mail_message out;

    MUST(mail_read(o->mail, box->id, &box->reader, str_from(id), want, &o->arena, &out, &err));
    return out;
}

/* What somebody with the disk could do: runs a script, whose last statement answers with a number. The workers end. */
static inline int by_hand(struct office_fake *o, const struct fixture_inbox *box, const char *script)
{
    char path[160];
    sqlite3_stmt *statement;
    sqlite3 *db;
    int answer = -1;

    office_fake_restart(o);
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, box->id);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    while (*script) {
        if (sqlite3_prepare_v2(db, script, -1, &statement, &script) != SQLITE_OK)
            fail_msg("%s", sqlite3_errmsg(db));
        while (statement && sqlite3_step(statement) == SQLITE_ROW)
            answer = sqlite3_column_int(statement, 0);
        sqlite3_finalize(statement);
    }
    sqlite3_close(db);
    return answer;
}

#endif
