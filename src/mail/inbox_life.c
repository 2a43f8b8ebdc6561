/*
 * An inbox is made, gets and loses readers, and is shredded.
 *
 * The worker makes the key pair and keeps the private half only wrapped, once for each credential that may read. Shredding
 * removes the wraps and every row but the audit: what a disk may still hold of the old pages are ciphers without a key.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "mail/inside.h"

#define DAY_US INT64_C(86400000000)

/* ---- small things that other files use ---- */

bool inbox_count(struct inbox *inbox, const char *name, int64_t by, int64_t now_us, struct err *err)
{
    return sql_exec(inbox->sql,
                    "INSERT INTO counters (day, name, value) VALUES ($1, $2, $3) "
                    "ON CONFLICT (day, name) DO UPDATE SET value = value + excluded.value",
                    SQL_ARGS(sql_int(now_us / DAY_US), sql_text(str_from(name)), sql_int(by)), err);
}

void inbox_allow_hash(const struct inbox *inbox, struct str pattern, char out[65])
{
    char lower[LIMIT_MAIL_ADDRESS_BYTES + 2];
    size_t len = MIN(pattern.len, sizeof lower); /* longer ones are no addresses */

    memcpy(lower, pattern.at, len);
    text_lower(lower, len);
    inbox_hash(inbox, "allow", str_of(lower, len), out);
}

bool inbox_look_shredded(struct inbox *inbox, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(inbox->sql, "SELECT 1 FROM meta WHERE name = 'shredded'", SQL_NO_ARGS, &rows, err) &&
           sql_next(&rows, &inbox->is_shredded, err);
}

/* Old pages are in the log until it is copied into the file: here they must go now. */
static bool empty_log(struct inbox *inbox, struct err *err)
{
    return sql_script(inbox->sql, "PRAGMA wal_checkpoint(TRUNCATE)", err);
}

/* ---- making ---- */

static bool put_wrap(struct inbox *inbox, struct str key_id, const struct seal_key *kek,
                     const struct seal_key *private_key, int64_t now_us, struct err *err)
{
    unsigned char wrapped[SEAL_WRAPPED_KEY_BYTES];

    seal_wrap(kek, private_key, wrapped);
    return sql_exec(inbox->sql,
                    "INSERT INTO wraps (key_id, wrapped, created_us) VALUES ($1, $2, $3) "
                    "ON CONFLICT (key_id) DO UPDATE SET wrapped = excluded.wrapped, created_us = excluded.created_us",
                    SQL_ARGS(sql_text(key_id), sql_blob(str_of(wrapped, sizeof wrapped)), sql_int(now_us)), err);
}

struct reader {
    struct str key_id;
    struct seal_key kek;
};

/* Rows of meta that say something by being there. */
static const struct seal_key mark = { { 1 } };

static bool make(struct inbox *inbox, const struct reader *readers, uint32_t count, struct str actor, bool is_temporary,
                 int64_t now_us, struct err *err)
{
    auto_seal_key struct seal_key private_key;

    seal_make_pair(&inbox->public_key, &private_key);
    seal_random_key(&inbox->index_key);
    if (!inbox_make_tables(inbox, err) || !inbox_meta_put(inbox, "public_key", &inbox->public_key, err) ||
        !inbox_meta_put(inbox, "index_key", &inbox->index_key, err) ||
        (is_temporary && !inbox_meta_put(inbox, "temporary", &mark, err)))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!put_wrap(inbox, readers[i].key_id, &readers[i].kek, &private_key, now_us, err))
            return false;
    return audit_append(inbox, "inbox.create", str_from(inbox->id), actor, STR("{}"), now_us, err);
}

static bool run_make(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_READERS);
    struct reader *readers = ARENA_ARRAY(arena, struct reader, count + 1U);
    for (uint32_t i = 0; i < count; i++) {
        readers[i].key_id = unpack_str(in, MAIL_KEY_ID_BYTES);
        seal_key_unpack(in, &readers[i].kek);
    }
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    bool is_temporary = unpack_bool(in);
    int64_t now_us = unpack_i64(in);
    bool fine = unpack_done(in, err) && sql_begin(inbox->sql, SQL_DURABLE, err);
    if (fine) {
        bool made = make(inbox, readers, count, actor, is_temporary, now_us, err);
        fine = sql_end(inbox->sql, made, err);
    }
    explicit_bzero(readers, sizeof *readers * count);
    if (!fine)
        return false;
    inbox->is_new = false;
    seal_key_pack(out, &inbox->public_key);
    return true;
}

bool mail_inbox_make(struct mail *mail, const struct mail_inbox_new *want, struct seal_key *out_public, struct err *err)
{
    struct arena arena;
    struct unpack reply;
    struct seal_key public_key = { 0 };

    if (!mail_inbox_id_valid(str_from(want->inbox_id)))
        return err_set(err, ERR_INVALID, "an inbox's id has 26 characters of 0-9 and A-Z without I, L, O and U");
    if (!want->reader_count)
        return err_set(err, ERR_INVALID, "an inbox needs a credential that may read it: nobody could ever add one");
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_u32(&request, want->reader_count);
    for (uint32_t i = 0; i < want->reader_count; i++)
        mail_reader_pack(&request, &want->readers[i]);
    pack_str(&request, want->actor);
    pack_bool(&request, want->is_temporary);
    pack_i64(&request, clock_wall_us());
    bool fine = mail_call_new(mail, want->inbox_id, INBOX_MAKE, &request, &arena, &reply, err);
    if (fine) {
        seal_key_unpack(&reply, &public_key);
        fine = unpack_done(&reply, err);
    }
    buf_done(&request);
    arena_done(&arena);
    if (fine)
        *out_public = public_key;
    return fine;
}

/* ---- readers ---- */

static bool count_wraps(struct inbox *inbox, int64_t *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT COUNT(*) FROM wraps", SQL_NO_ARGS, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    *out = sql_row_int(&rows, 0);
    return true;
}

static bool reader_add(struct inbox *inbox, const struct reader *with, const struct reader *added, struct str actor,
                       int64_t now_us, struct err *err)
{
    auto_seal_key struct seal_key private_key = { 0 };
    int64_t wraps;

    if (!inbox_unlock(inbox, with->key_id, &with->kek, &private_key, err) || !count_wraps(inbox, &wraps, err))
        return false;
    if (wraps >= LIMIT_MAIL_READERS)
        return err_set(err, ERR_LIMIT, "%d credentials may read this inbox already: revoke one", LIMIT_MAIL_READERS);
    return put_wrap(inbox, added->key_id, &added->kek, &private_key, now_us, err) &&
           audit_append(inbox, "reader.add", added->key_id, actor, STR("{}"), now_us, err);
}

static bool run_reader_add(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                           struct err *err)
{
    (void)arena, (void)out;
    struct reader with, added;
    with.key_id = unpack_str(in, MAIL_KEY_ID_BYTES);
    seal_key_unpack(in, &with.kek);
    added.key_id = unpack_str(in, MAIL_KEY_ID_BYTES);
    seal_key_unpack(in, &added.kek);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    int64_t now_us = unpack_i64(in);
    bool fine = unpack_done(in, err) && sql_begin(inbox->sql, SQL_DURABLE, err);
    if (fine) {
        bool is_added = reader_add(inbox, &with, &added, actor, now_us, err);
        fine = sql_end(inbox->sql, is_added, err);
    }
    seal_key_wipe(&with.kek);
    seal_key_wipe(&added.kek);
    return fine;
}

bool mail_reader_add(struct mail *mail, const char *inbox_id, const struct mail_reader *with,
                     const struct mail_reader *added, struct str actor, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    mail_reader_pack(&request, with);
    mail_reader_pack(&request, added);
    pack_str(&request, actor);
    pack_i64(&request, clock_wall_us());
    bool fine = mail_call(mail, inbox_id, INBOX_READER_ADD, &request, &arena, &reply, err) && unpack_done(&reply, err);
    buf_done(&request);
    arena_done(&arena);
    return fine;
}

static bool reader_remove(struct inbox *inbox, struct str key_id, struct str actor, int64_t now_us, struct err *err)
{
    if (!sql_exec(inbox->sql, "DELETE FROM wraps WHERE key_id = $1", SQL_ARGS(sql_text(key_id)), err))
        return false;
    return sql_changed(inbox->sql) == 0 || audit_append(inbox, "reader.remove", key_id, actor, STR("{}"), now_us, err);
}

static bool run_reader_remove(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                              struct err *err)
{
    (void)arena, (void)out;
    struct str key_id = unpack_str(in, MAIL_KEY_ID_BYTES);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    int64_t now_us = unpack_i64(in);
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool removed = reader_remove(inbox, key_id, actor, now_us, err);
    return sql_end(inbox->sql, removed, err) && empty_log(inbox, err);
}

/* For calls that say who acts on what, and hear only whether it worked. */
static bool call_plain(struct mail *mail, const char *inbox_id, uint16_t op, const char *key_id, struct str actor,
                       struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    if (key_id)
        pack_str(&request, str_from(key_id));
    pack_str(&request, actor);
    pack_i64(&request, clock_wall_us());
    bool fine = mail_call(mail, inbox_id, op, &request, &arena, &reply, err) && unpack_done(&reply, err);
    arena_done(&arena);
    return fine;
}

bool mail_reader_remove(struct mail *mail, const char *inbox_id, const char *key_id, struct str actor, struct err *err)
{
    return call_plain(mail, inbox_id, INBOX_READER_REMOVE, key_id, actor, err);
}

/* ---- the end ---- */

static bool shred(struct inbox *inbox, struct str actor, int64_t now_us, struct err *err)
{
    /* The wraps first: they are what all the rest is worthless without. secure_delete overwrites each. */
    return sql_script(inbox->sql,
                      "DELETE FROM wraps; DELETE FROM content_keys; DELETE FROM links; DELETE FROM recipients;"
                      "DELETE FROM releases; DELETE FROM messages; DELETE FROM message_ids; DELETE FROM threads;"
                      "DELETE FROM contacts; DELETE FROM allowlist; DELETE FROM webhooks; DELETE FROM sends;",
                      err) &&
           inbox_meta_put(inbox, "shredded", &mark, err) &&
           audit_append(inbox, "inbox.shred", str_from(inbox->id), actor, STR("{}"), now_us, err);
}

static bool run_shred(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)arena, (void)out;
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    int64_t now_us = unpack_i64(in);
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool shredded = shred(inbox, actor, now_us, err);
    if (!sql_end(inbox->sql, shredded, err))
        return false;
    inbox->is_shredded = true;
    /* The overwritten pages must be in the file before it becomes shorter, or their blocks would keep the old bytes. */
    return empty_log(inbox, err) && sql_script(inbox->sql, "VACUUM", err) && empty_log(inbox, err);
}

bool mail_inbox_shred(struct mail *mail, const char *inbox_id, struct str actor, struct err *err)
{
    return call_plain(mail, inbox_id, INBOX_SHRED, NULL, actor, err);
}

/* ---- an inbox that was not finished, or whose sandbox has ended ---- */

/*
 * The worker looks for itself: nobody can have it remove an inbox whose audit says that something has left it, or that a
 * person has decided; nor one that was ever used, unless it was made as a temporary one.
 */
static bool must_stay(struct inbox *inbox, bool *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql,
                    "SELECT CASE WHEN EXISTS (SELECT 1 FROM meta WHERE name = 'temporary') "
                    "THEN (SELECT COUNT(*) FROM messages WHERE direction = 1 AND state = $1) + "
                    "(SELECT COUNT(*) FROM audit WHERE action IN ('message.release', 'message.approve', "
                    "'message.reject', 'message.approve_inbound', 'message.reject_inbound')) "
                    "ELSE (SELECT COUNT(*) FROM messages) + (SELECT COUNT(*) FROM counters) + "
                    "(SELECT COUNT(*) FROM audit WHERE action NOT IN ('inbox.create', 'inbox.shred')) END",
                    SQL_ARGS(sql_int(MAIL_QUEUED)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out = sql_row_int(&rows, 0) > 0;
    return true;
}

static bool run_unmake(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)arena, (void)out;
    bool stays = false;

    if (!unpack_done(in, err) || (!inbox->is_new && !must_stay(inbox, &stays, err)))
        return false;
    if (stays)
        return err_set(err, ERR_CONFLICT, "this inbox was used");
    return inbox_remove_file(inbox, err);
}

static bool remove_directory(struct mail *mail, const char *inbox_id, struct err *err)
{
    const struct mail_config *config = mail_config_of(mail);

    return config->remove_inbox(config->context, inbox_id, err);
}

bool mail_inbox_unmake(struct mail *mail, const char *inbox_id, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    /* Without a file there is nothing to ask a worker for, and no owner yet that it could run as. */
    if (remove_directory(mail, inbox_id, err))
        return true;
    if (err->kind != ERR_CONFLICT)
        return false;
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    bool fine = mail_call(mail, inbox_id, INBOX_UNMAKE, &request, &arena, &reply, err) && unpack_done(&reply, err);
    arena_done(&arena);
    return fine && remove_directory(mail, inbox_id, err);
}

const struct inbox_operation inbox_life_operations[] = {
    { INBOX_MAKE, run_make },   { INBOX_READER_ADD, run_reader_add }, { INBOX_READER_REMOVE, run_reader_remove },
    { INBOX_SHRED, run_shred }, { INBOX_UNMAKE, run_unmake },         { 0, NULL },
};
