/*
 * The audit of an inbox: rows that are only added. Each has the hash of the row before, so that a row that was changed or
 * taken out in the middle shows. A row's hash is SHA-256 over the hash of the row before and all its fields, each with its
 * length. Rows cut off at the end do not show by the chain alone: whoever needs that keeps the last hash elsewhere.
 *
 * No content is in it: details are JSON with hashes and numbers.
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/limits.h"
#include "mail/inside.h"

enum { AUDIT_ADD = INBOX_AUDIT_FIRST, AUDIT_LIST, AUDIT_VERIFY };

static const char no_hash[] = "0000000000000000000000000000000000000000000000000000000000000000";

struct row {
    int64_t number, at_us;
    struct str action, resource, actor, detail, prev_hash, hash;
};

static void hash_text(crypto_hash_sha256_state *state, struct str text)
{
    unsigned char length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)text.len >> (56 - 8 * i));
    crypto_hash_sha256_update(state, length, sizeof length);
    crypto_hash_sha256_update(state, (const unsigned char *)text.at, text.len);
}

static void hash_row(const struct row *row, char out[MAIL_HASH_TEXT_BYTES])
{
    crypto_hash_sha256_state state;
    unsigned char hash[crypto_hash_sha256_BYTES];
    char number[24], at[24];

    (void)snprintf(number, sizeof number, "%" PRId64, row->number);
    (void)snprintf(at, sizeof at, "%" PRId64, row->at_us);
    crypto_hash_sha256_init(&state);
    hash_text(&state, row->prev_hash);
    hash_text(&state, str_from(number));
    hash_text(&state, row->action);
    hash_text(&state, row->resource);
    hash_text(&state, row->actor);
    hash_text(&state, row->detail);
    hash_text(&state, str_from(at));
    crypto_hash_sha256_final(&state, hash);
    hex_text(str_of(hash, sizeof hash), out);
}

/* ---- adding ---- */

static bool last_row(struct inbox *inbox, int64_t *out_number, char out_hash[MAIL_HASH_TEXT_BYTES], struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1", SQL_NO_ARGS, &rows,
                    err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out_number = there ? sql_row_int(&rows, 0) : 0;
    struct str hash = there ? sql_row_text(&rows, 1) : str_from(no_hash);
    if (hash.len != MAIL_HASH_TEXT_BYTES - 1)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: row %" PRId64 " of the audit", *out_number);
    memcpy(out_hash, hash.at, hash.len);
    out_hash[hash.len] = '\0';
    return true;
}

bool audit_append(struct inbox *inbox, const char *action, struct str resource, struct str actor, struct str detail,
                  int64_t now_us, struct err *err)
{
    char prev[MAIL_HASH_TEXT_BYTES], hash[MAIL_HASH_TEXT_BYTES];
    struct row row = {
        .action = str_from(action), .resource = resource, .actor = actor, .detail = detail, .at_us = now_us
    };

    if (!last_row(inbox, &row.number, prev, err))
        return false;
    row.number++;
    row.prev_hash = str_from(prev);
    hash_row(&row, hash);
    return sql_exec(inbox->sql,
                    "INSERT INTO audit (number, action, resource, actor, detail, at_us, prev_hash, hash) "
                    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    SQL_ARGS(sql_int(row.number), sql_text(row.action), sql_text(resource), sql_text(actor),
                             sql_text(detail), sql_int(now_us), sql_text(row.prev_hash), sql_text(str_from(hash))),
                    err);
}

static bool run_add(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)out;
    struct str action = unpack_str(in, LIMIT_MAIL_AUDIT_BYTES);
    struct str resource = unpack_str(in, LIMIT_MAIL_AUDIT_BYTES);
    struct str actor = unpack_str(in, LIMIT_MAIL_AUDIT_BYTES);
    struct str detail = unpack_str(in, LIMIT_MAIL_AUDIT_BYTES);
    int64_t now_us = unpack_i64(in);
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool added = audit_append(inbox, arena_text(arena, action), resource, actor, detail, now_us, err);
    return sql_end(inbox->sql, added, err);
}

bool mail_audit_add(struct mail *mail, const char *inbox_id, struct str action, struct str resource, struct str actor,
                    struct str detail, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, action);
    pack_str(&request, resource);
    pack_str(&request, actor);
    pack_str(&request, detail);
    pack_i64(&request, clock_wall_us());
    bool fine = mail_call(mail, inbox_id, AUDIT_ADD, &request, &arena, &reply, err) && unpack_done(&reply, err);
    arena_done(&arena);
    return fine;
}

/* ---- reading ---- */

static void read_row(const struct sql_rows *rows, struct row *out)
{
    out->number = sql_row_int(rows, 0);
    out->action = sql_row_text(rows, 1);
    out->resource = sql_row_text(rows, 2);
    out->actor = sql_row_text(rows, 3);
    out->detail = sql_row_text(rows, 4);
    out->at_us = sql_row_int(rows, 5);
    out->prev_hash = sql_row_text(rows, 6);
    out->hash = sql_row_text(rows, 7);
}

static bool run_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)arena;
    uint64_t before = unpack_u64(in);
    uint32_t limit = unpack_u32(in);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!unpack_done(in, err) ||
        !sql_select(inbox->sql,
                    "SELECT number, action, resource, actor, detail, at_us, prev_hash, hash FROM audit "
                    "WHERE number < $1 ORDER BY number DESC LIMIT $2",
                    SQL_ARGS(sql_int(before && before < INT64_MAX ? (int64_t)before : INT64_MAX),
                             sql_int(MIN(limit, LIMIT_MAIL_AUDIT_ROWS))),
                    &rows, err))
        return false;
    for (;;) {
        struct row row;
        if (!sql_next(&rows, &there, err))
            return false;
        pack_bool(out, there);
        if (!there)
            return true;
        read_row(&rows, &row);
        pack_u64(out, (uint64_t)row.number);
        pack_str(out, row.action);
        pack_str(out, row.resource);
        pack_str(out, row.actor);
        pack_str(out, row.detail);
        pack_i64(out, row.at_us);
        pack_str(out, row.prev_hash);
        pack_str(out, row.hash);
    }
}

bool mail_audit_list(struct mail *mail, const char *inbox_id, uint64_t before, uint32_t limit, struct arena *arena,
                     struct mail_audit **out, size_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    limit = MIN(limit, LIMIT_MAIL_AUDIT_ROWS);
    pack_u64(&request, before);
    pack_u32(&request, limit);
    if (!mail_call(mail, inbox_id, AUDIT_LIST, &request, arena, &reply, err))
        return false;
    struct mail_audit *rows = ARENA_ARRAY(arena, struct mail_audit, limit + 1U);
    size_t count = 0;
    for (; unpack_bool(&reply) && count < limit; count++) {
        struct mail_audit *row = &rows[count];
        row->number = unpack_u64(&reply);
        row->action = unpack_str(&reply, LIMIT_MAIL_AUDIT_BYTES);
        row->resource = unpack_str(&reply, LIMIT_MAIL_AUDIT_BYTES);
        row->actor = unpack_str(&reply, LIMIT_MAIL_AUDIT_BYTES);
        row->detail = unpack_str(&reply, LIMIT_MAIL_AUDIT_BYTES);
        row->at_us = unpack_i64(&reply);
        unpack_text(&reply, row->prev_hash, sizeof row->prev_hash);
        unpack_text(&reply, row->hash, sizeof row->hash);
    }
    if (!unpack_done(&reply, err))
        return false;
    *out = rows;
    *out_count = count;
    return true;
}

static bool run_verify(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)arena;
    char before[MAIL_HASH_TEXT_BYTES], hash[MAIL_HASH_TEXT_BYTES];
    auto_rows struct sql_rows rows = { 0 };
    uint64_t count = 0;
    bool there;

    memcpy(before, no_hash, sizeof before);
    if (!unpack_done(in, err) ||
        !sql_select(inbox->sql,
                    "SELECT number, action, resource, actor, detail, at_us, prev_hash, hash FROM audit ORDER BY number",
                    SQL_NO_ARGS, &rows, err))
        return false;
    for (;; count++) {
        struct row row;
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            break;
        read_row(&rows, &row);
        hash_row(&row, hash);
        if ((uint64_t)row.number != count + 1 || !str_eq(row.prev_hash, str_from(before)) ||
            !str_eq(row.hash, str_from(hash)))
            return err_set(err, ERR_INTERNAL,
                           "the audit was changed: row %" PRIu64 " does not follow from the rows before it", count + 1);
        memcpy(before, hash, sizeof before);
    }
    pack_u64(out, count);
    return true;
}

bool mail_audit_verify(struct mail *mail, const char *inbox_id, uint64_t *out_rows, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    bool fine = mail_call(mail, inbox_id, AUDIT_VERIFY, &request, &arena, &reply, err);
    uint64_t count = fine ? unpack_u64(&reply) : 0;
    fine = fine && unpack_done(&reply, err);
    arena_done(&arena);
    if (fine)
        *out_rows = count;
    return fine;
}

const struct inbox_operation inbox_audit_operations[] = {
    { AUDIT_ADD, run_add },
    { AUDIT_LIST, run_list },
    { AUDIT_VERIFY, run_verify },
    { 0, NULL },
};
