/*
 * The worker's loop: greeting, then request and reply, one at a time. A request is a u16 operation and its packed fields; a
 * reply is a bool and then the packed result, or the packed error. A request that does not decode changes nothing, and its
 * reply says so.
 */
#include "mail/inbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "mail/inside.h"
#include "mail/schema.h"
#include "privsep/frame.h"
#include "privsep/message.h"

#define INBOX_FILE "inbox.db"

/* clang-format off */
static const struct inbox_operation *const tables[] = {
    inbox_life_operations,
    inbox_send_operations,
    inbox_leave_operations,
    inbox_link_operations,
    inbox_audit_operations,
    inbox_read_operations,
    inbox_thread_operations,
    inbox_tag_operations,
    inbox_settings_operations,
    NULL,
};
/* clang-format on */

static const struct inbox_operation *find_operation(uint16_t op)
{
    for (size_t i = 0; tables[i]; i++)
        for (const struct inbox_operation *row = tables[i]; row->run; row++)
            if (row->op == op)
                return row;
    return NULL;
}

struct buf mail_request(struct arena *arena)
{
    struct buf request = buf_make(arena, LIMIT_MAIL_FRAME_BYTES);

    request.is_secret = true;
    return request;
}

/* ---- keys ---- */

void seal_key_pack(struct buf *out, const struct seal_key *key)
{
    buf_add(out, str_of(key->bytes, sizeof key->bytes));
}

void seal_key_unpack(struct unpack *in, struct seal_key *out)
{
    memset(out, 0, sizeof *out);
    if (in->rest.len < sizeof out->bytes) {
        in->failed = true;
        return;
    }
    memcpy(out->bytes, in->rest.at, sizeof out->bytes);
    in->rest = str_of(in->rest.at + sizeof out->bytes, in->rest.len - sizeof out->bytes);
}

void mail_reader_pack(struct buf *out, const struct mail_reader *reader)
{
    pack_str(out, str_from(reader->key_id));
    seal_key_pack(out, &reader->kek);
}

bool inbox_meta_put(struct inbox *inbox, const char *name, const struct seal_key *value, struct err *err)
{
    return sql_exec(inbox->sql, "INSERT INTO meta (name, value) VALUES ($1, $2)",
                    SQL_ARGS(sql_text(str_from(name)), sql_blob(str_of(value->bytes, sizeof value->bytes))), err);
}

bool inbox_meta_get(struct inbox *inbox, const char *name, struct seal_key *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT value FROM meta WHERE name = $1", SQL_ARGS(sql_text(str_from(name))), &rows,
                    err) ||
        !sql_next(&rows, &there, err))
        return false;
    struct str value = there ? sql_row_text(&rows, 0) : STR("");
    if (value.len != sizeof out->bytes)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: %s is missing", name);
    memcpy(out->bytes, value.at, sizeof out->bytes);
    return true;
}

bool inbox_unlock(struct inbox *inbox, struct str key_id, const struct seal_key *kek, struct seal_key *out_private,
                  struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT wrapped FROM wraps WHERE key_id = $1", SQL_ARGS(sql_text(key_id)), &rows,
                    err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_DENIED, "this credential may not read this inbox");
    return seal_unwrap(kek, sql_row_text(&rows, 0), out_private, err);
}

/* ---- the file ---- */

bool inbox_make_tables(struct inbox *inbox, struct err *err)
{
    return sql_script(inbox->sql, mail_schema_sql, err);
}

static bool has_tables(struct inbox *inbox, bool *out_has, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(inbox->sql, "SELECT 1 FROM sqlite_master WHERE name = 'meta'", SQL_NO_ARGS, &rows, err) &&
           sql_next(&rows, out_has, err);
}

/* New messages sort after those of earlier workers, also when the clock has gone back since. */
static bool follow_ids(struct inbox *inbox, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT MAX(id) FROM messages", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    mail_ulid_follow(sql_row_text(&rows, 0));
    return true;
}

static bool open_file(struct inbox *inbox, struct err *err)
{
    bool has;

    inbox->sql = sql_open_small(INBOX_FILE, err);
    if (!inbox->sql || !has_tables(inbox, &has, err))
        return false;
    inbox->is_new = !has;
    return inbox->is_new || (inbox_meta_get(inbox, "public_key", &inbox->public_key, err) &&
                             inbox_meta_get(inbox, "index_key", &inbox->index_key, err) &&
                             inbox_look_shredded(inbox, err) && follow_ids(inbox, err));
}

bool inbox_remove_file(struct inbox *inbox, struct err *err)
{
    /* Closing ends the journals; what a crash has left of them goes before the file that they would be replayed into. */
    static const char *const names[] = { INBOX_FILE "-wal", INBOX_FILE "-shm", INBOX_FILE "-journal", INBOX_FILE };

    sql_close(take_ptr(&inbox->sql));
    inbox->is_new = inbox->is_shredded = false;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (unlink(names[i]) < 0 && errno != ENOENT)
            return err_sys(err, "remove %s", names[i]);
    return true;
}

/* ---- requests ---- */

static bool run(struct inbox *inbox, struct str frame, struct arena *arena, struct buf *out, struct err *err)
{
    struct unpack in = unpack_from(frame);
    const struct inbox_operation *row = find_operation(unpack_u16(&in));

    if (in.failed || !row)
        return err_set(err, ERR_INVALID, "malformed message: an operation that an inbox does not have");
    /* The file may be damaged, or an earlier worker ended before it had made the tables. */
    if (!inbox->sql && !open_file(inbox, err)) {
        sql_close(take_ptr(&inbox->sql));
        return err_wrap(err, "inbox %s", inbox->id);
    }
    if (!inbox->is_new && row->op == INBOX_MAKE)
        return err_set(err, ERR_CONFLICT, "this inbox exists already");
    /* Front asks for inboxes that were made. Only taking something away is done if there is nothing. */
    if (inbox->is_new && (row->op == INBOX_READER_REMOVE || row->op == INBOX_SHRED))
        return err_set(err, ERR_NOT_FOUND, "this inbox has no file");
    if (inbox->is_new && row->op != INBOX_MAKE && row->op != INBOX_UNMAKE)
        return err_set(err, ERR_INTERNAL, "inbox %s: its file is damaged: it is missing or empty", inbox->id);
    if (inbox->is_shredded && row->op != INBOX_UNMAKE && (row->op < INBOX_AUDIT_FIRST || row->op >= INBOX_READ_FIRST))
        return err_set(err, ERR_NOT_FOUND, "this inbox was removed: only its audit is left");
    return row->run(inbox, &in, arena, out, err);
}

static bool answer(struct inbox *inbox, int fd, struct str frame, struct err *err)
{
    struct arena arena;
    struct err why;

    arena_init(&arena);
    struct buf out = mail_request(&arena);
    pack_bool(&out, true);
    bool fine = run(inbox, frame, &arena, &out, &why);
    if (fine && out.overflowed)
        fine = err_set(&why, ERR_LIMIT, "the answer is too large: ask for fewer messages");
    if (!fine) {
        buf_clear(&out);
        pack_bool(&out, false);
        message_pack_err(&out, &why);
    }
    bool sent = frame_write(fd, buf_str(&out), 0, err);
    arena_done(&arena);
    return sent;
}

static bool greet(struct inbox *inbox, struct str frame, struct err *err)
{
    struct unpack in = unpack_from(frame);

    unpack_text(&in, inbox->id, sizeof inbox->id);
    seal_key_unpack(&in, &inbox->server_key);
    return unpack_done(&in, err);
}

static bool serve(struct inbox *inbox, int fd, struct err *err)
{
    for (bool greeted = false;; greeted = true) {
        auto_free char *frame = NULL;
        size_t len;
        if (!frame_read(fd, LIMIT_MAIL_FRAME_BYTES, 0, &frame, &len, err))
            return err->kind == ERR_NOT_FOUND;
        /* A worker that hangs is killed by SIGALRM. Front has given up waiting, and asks for another. */
        (void)alarm(LIMIT_INBOX_CALL_MS / 1000 + 1);
        bool fine = greeted ? answer(inbox, fd, str_of(frame, len), err) : greet(inbox, str_of(frame, len), err);
        (void)alarm(0);
        explicit_bzero(frame, len);
        if (!fine)
            return false;
    }
}

bool inbox_serve(int fd, struct err *err)
{
    struct inbox inbox = { 0 };
    bool fine = seal_begin(err) && serve(&inbox, fd, err);

    sql_close(inbox.sql);
    explicit_bzero(&inbox, sizeof inbox);
    return fine;
}
