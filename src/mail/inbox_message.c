/*
 * A message in an inbox's file: its row, its sealed content, and struct mail_message as bytes between worker and front.
 *
 * Content keys. Whoever stores a message seals its content key to the inbox's public key: that needs no secret, so mail
 * arrives while no credential is in use. Opening a sealed box costs an X25519 (60 µs), and a search opens thousands. So
 * the first reader stores each key that it has opened once more, wrapped under a symmetric key that is derived from the
 * inbox's private key, in place of the box. Wrap and box have different lengths, by which they are told apart.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "mail/inside.h"

static_assert(SEAL_WRAPPED_KEY_BYTES != SEAL_SEALED_KEY_BYTES, "a wrap and a sealed box are told apart by length");

/* ---- rows ---- */

static void row_text(const struct sql_rows *rows, int column, char *room, size_t room_size)
{
    struct str text = sql_row_text(rows, column);
    size_t len = text.len < room_size ? text.len : 0; /* a damaged file: an empty id is found by nobody */

    memcpy(room, text.at, len);
    room[len] = '\0';
}

void inbox_message_row(const struct inbox *inbox, const struct sql_rows *rows, struct arena *arena,
                       struct mail_message *out)
{
    *out = (struct mail_message){ 0 };
    row_text(rows, 0, out->id, sizeof out->id);
    row_text(rows, 1, out->thread_id, sizeof out->thread_id);
    memcpy(out->inbox_id, inbox->id, sizeof out->inbox_id);
    out->direction = (enum mail_direction)sql_row_int(rows, 2);
    out->state = (enum mail_state)sql_row_int(rows, 3);
    out->in_status = (enum mail_in_status)sql_row_int(rows, 4);
    out->created_us = sql_row_int(rows, 5);
    out->received_us = sql_row_int(rows, 6);
    out->send_at_us = sql_row_int(rows, 7);
    out->decided_us = sql_row_int(rows, 8);
    out->delivered_us = sql_row_int(rows, 9);
    out->hold_until_us = sql_row_int(rows, 10);
    out->decided_by = arena_copy(arena, sql_row_text(rows, 11));
    out->composer = arena_copy(arena, sql_row_text(rows, 12));
    struct str hash = sql_row_text(rows, 13);
    if (hash.len == GATE_HASH_BYTES)
        hex_text(hash, out->sha256);
    out->label = arena_copy(arena, sql_row_text(rows, 14));
}

bool inbox_storage(struct inbox *inbox, uint64_t *out_bytes, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT bytes FROM storage", SQL_NO_ARGS, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    if (!there || sql_row_int(&rows, 0) < 0)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: the sum of its sizes is missing");
    *out_bytes = (uint64_t)sql_row_int(&rows, 0);
    return true;
}

void inbox_hash(const struct inbox *inbox, const char *label, struct str text, char out[65])
{
    unsigned char both[2 * SEAL_KEY_BYTES];
    auto_seal_key struct seal_key key;

    memcpy(both, inbox->index_key.bytes, SEAL_KEY_BYTES);
    memcpy(both + SEAL_KEY_BYTES, inbox->server_key.bytes, SEAL_KEY_BYTES);
    seal_derive(str_of(both, sizeof both), label, &key);
    explicit_bzero(both, sizeof both);
    seal_hash(&key, text, out);
}

/* ---- texts ---- */

/* memmem() takes linear time, whatever sender and searcher have chosen; comparing at each place does not. */
bool mail_has_part(struct str text, struct str part)
{
    char lower_text[LIMIT_MAIL_SUBJECT_BYTES], lower_part[LIMIT_MAIL_QUERY_BYTES]; /* the longest of each */
    size_t len = MIN(text.len, sizeof lower_text);

    if (part.len > len || part.len > sizeof lower_part)
        return false;
    if (!part.len)
        return true;
    memcpy(lower_text, text.at, len);
    memcpy(lower_part, part.at, part.len);
    text_lower(lower_text, len);
    text_lower(lower_part, part.len);
    return memmem(lower_text, len, lower_part, part.len);
}

/* ---- content ---- */

struct str mail_about(struct str message_id, const char *column, char room[MAIL_ABOUT_BYTES])
{
    int len = snprintf(room, MAIL_ABOUT_BYTES, "%.*s:%s", STR_ARG(message_id), column);

    assert(len > 0 && len < MAIL_ABOUT_BYTES); /* ids are ours */
    return str_of(room, (size_t)len);
}

static bool seal_parts(const struct seal_key *key, const char *message_id, const char *column, unsigned parts,
                       const struct mail_content *content, struct arena *arena, struct str *out, struct err *err)
{
    struct buf packed = buf_make(arena, LIMIT_MAIL_CONTENT_BYTES);
    char room[MAIL_ABOUT_BYTES];

    pack_content(&packed, content, parts);
    if (packed.overflowed)
        return err_set(err, ERR_LIMIT, "the message is too large: at most %d MiB with attachments",
                       LIMIT_MAIL_CONTENT_BYTES >> 20);
    *out = seal_encrypt(key, buf_str(&packed), mail_about(str_from(message_id), column, room), arena);
    return true;
}

bool mail_content_seal(const struct seal_key *content_key, const char *message_id, const struct mail_content *content,
                       struct arena *arena, struct mail_ciphers *out, struct err *err)
{
    if (!seal_parts(content_key, message_id, "head", CONTENT_HEAD, content, arena, &out->head, err) ||
        !seal_parts(content_key, message_id, "body", CONTENT_ALL, content, arena, &out->body, err))
        return false;
    out->size = out->head.len + out->body.len;
    return true;
}

bool mail_content_open(const struct seal_key *content_key, const char *message_id, const char *column,
                       struct str cipher, struct arena *arena, struct mail_content *out, struct err *err)
{
    struct mail_content content = { 0 };
    char room[MAIL_ABOUT_BYTES];
    struct str packed;

    if (!seal_decrypt(content_key, cipher, mail_about(str_from(message_id), column, room), arena, &packed, err))
        return err_wrap(err, "message %s, %s", message_id, column);
    struct unpack in = unpack_from(packed);
    (void)unpack_content(&in, arena, &content); /* which parts there are, the column says */
    if (!unpack_done(&in, err))
        return err_set(err, ERR_INTERNAL, "the stored message %s is damaged", message_id);
    *out = content;
    return true;
}

/* ---- content keys ---- */

static bool store_key(struct inbox *inbox, const char *message_id, const char *holder, struct str sealed,
                      struct err *err)
{
    return sql_exec(inbox->sql, "INSERT OR REPLACE INTO content_keys (message_id, holder, sealed) VALUES ($1, $2, $3)",
                    SQL_ARGS(sql_text(str_from(message_id)), sql_text(str_from(holder)), sql_blob(sealed)), err);
}

bool inbox_key_put(struct inbox *inbox, const char *message_id, const char *holder, const struct seal_key *public_key,
                   const struct seal_key *content_key, struct err *err)
{
    unsigned char sealed[SEAL_SEALED_KEY_BYTES];

    seal_to(public_key, content_key, sealed);
    return store_key(inbox, message_id, holder, str_of(sealed, sizeof sealed), err);
}

/* ---- readers ---- */

struct inbox_rewrap {
    struct inbox_rewrap *next;
    char message_id[MAIL_MESSAGE_ID_BYTES];
    unsigned char wrapped[SEAL_WRAPPED_KEY_BYTES];
};

void mail_reading_pack(struct buf *request, const struct mail_reader *reader)
{
    mail_reader_pack(request, reader);
    pack_str(request, reader->grant);
}

bool mail_reading_call(struct mail *mail, const char *inbox_id, uint16_t op, struct buf *request, struct arena *arena,
                       struct unpack *out_reply, struct err *err)
{
    bool fine = mail_call(mail, inbox_id, op, request, arena, out_reply, err);

    buf_done(request);
    return fine;
}

void mail_reading_unpack(struct unpack *in, struct mail_reading_who *out)
{
    out->key_id = unpack_str(in, MAIL_KEY_ID_BYTES - 1);
    seal_key_unpack(in, &out->kek);
    out->grant = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
}

static bool note_use(struct inbox *inbox, const char *action, struct str resource, struct str grant, struct err *err)
{
    if (!sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = audit_append(inbox, action, resource, grant, STR("{}"), clock_wall_us(), err);
    return sql_end(inbox->sql, fine, err);
}

bool inbox_reading_begin(struct inbox *inbox, struct mail_reading_who *who, const char *action, struct str resource,
                         struct arena *arena, struct inbox_reading *out, struct err *err)
{
    *out = (struct inbox_reading){ .inbox = inbox, .arena = arena };
    bool is_open = inbox_unlock(inbox, who->key_id, &who->kek, &out->private_key, err);
    seal_key_wipe(&who->kek);
    if (!is_open)
        return false;
    seal_derive(str_of(out->private_key.bytes, sizeof out->private_key.bytes), "content keys", &out->quick_key);
    return !who->grant.len || note_use(inbox, action, resource, who->grant, err);
}

bool inbox_reading_key(struct inbox_reading *reading, const char *message_id, struct str sealed, struct seal_key *out,
                       struct err *err)
{
    bool is_wrap = sealed.len == SEAL_WRAPPED_KEY_BYTES;
    bool fine = is_wrap ? seal_unwrap(&reading->quick_key, sealed, out, err)
                        : seal_open(&reading->inbox->public_key, &reading->private_key, sealed, out, err);
    /* Not ERR_DENIED: the reader has the inbox's private key, and every message is sealed to it. */
    if (!fine)
        return err_set(err, ERR_INTERNAL, "the stored message %s is damaged", message_id);
    if (is_wrap)
        return true;
    struct inbox_rewrap *rewrap = ARENA_NEW(reading->arena, struct inbox_rewrap);
    memcpy(rewrap->message_id, message_id, strnlen(message_id, sizeof rewrap->message_id - 1));
    seal_wrap(&reading->quick_key, out, rewrap->wrapped);
    rewrap->next = reading->rewraps;
    reading->rewraps = rewrap;
    return true;
}

/* UPDATE, not INSERT: a message that was removed since must not get a key again. */
static bool store_rewraps(struct inbox_reading *reading, struct err *err)
{
    if (!sql_begin(reading->inbox->sql, SQL_LAZY, err))
        return false;
    bool fine = true;
    for (struct inbox_rewrap *rewrap = reading->rewraps; fine && rewrap; rewrap = rewrap->next)
        fine = sql_exec(
            reading->inbox->sql, "UPDATE content_keys SET sealed = $1 WHERE message_id = $2 AND holder = 'inbox'",
            SQL_ARGS(sql_blob(str_of(rewrap->wrapped, sizeof rewrap->wrapped)), sql_text(str_from(rewrap->message_id))),
            err);
    return sql_end(reading->inbox->sql, fine, err);
}

void inbox_reading_end(struct inbox_reading *reading)
{
    struct err err;

    if (reading->rewraps && !store_rewraps(reading, &err))
        log_warn("inbox %s: the keys of messages that were read stay slow to open: %s", reading->inbox->id,
                 err_text(&err));
    seal_key_wipe(&reading->private_key);
    seal_key_wipe(&reading->quick_key);
}

/* ---- a row with its content ---- */

enum { COLUMN_SEALED = MESSAGE_COLUMN_COUNT, COLUMN_REASON, COLUMN_TAGS, COLUMN_CIPHER }; /* of SELECT_HEADS */

/* A held message as the agent may see it. */
static void hide_content(struct mail_message *m)
{
    struct mail_message shown = { .direction = m->direction,
                                  .in_status = m->in_status,
                                  .created_us = m->created_us,
                                  .received_us = m->received_us,
                                  .hold_until_us = m->hold_until_us };

    memcpy(shown.id, m->id, sizeof shown.id);
    memcpy(shown.inbox_id, m->inbox_id, sizeof shown.inbox_id);
    *m = shown;
}

static bool open_tags(const struct seal_key *content_key, const char *message_id, struct str cipher,
                      struct arena *arena, struct mail_message *out, struct err *err)
{
    char room[MAIL_ABOUT_BYTES];
    struct str packed;

    if (!cipher.len)
        return true;
    if (!seal_decrypt(content_key, cipher, mail_about(str_from(message_id), "tags", room), arena, &packed, err))
        return err_wrap(err, "message %s, tags", message_id);
    struct unpack in = unpack_from(packed);
    mail_pairs_unpack(&in, arena, &out->tags, &out->tag_count);
    return unpack_done(&in, err);
}

static bool open_reason(const struct seal_key *content_key, struct str cipher, struct arena *arena,
                        struct mail_message *m, struct err *err)
{
    char room[MAIL_ABOUT_BYTES];

    return !cipher.len ||
           seal_decrypt(content_key, cipher, mail_about(str_from(m->id), "reason", room), arena, &m->reason, err);
}

bool inbox_reading_row(struct inbox_reading *reading, const struct sql_rows *rows, const char *column,
                       struct arena *arena, struct mail_message *out, struct err *err)
{
    auto_seal_key struct seal_key key;

    inbox_message_row(reading->inbox, rows, arena, out);
    if (out->direction == MAIL_INBOUND && out->in_status == MAIL_IN_HELD) {
        hide_content(out);
        return true;
    }
    if (!inbox_reading_key(reading, out->id, sql_row_text(rows, COLUMN_SEALED), &key, err) ||
        !mail_content_open(&key, out->id, column, sql_row_text(rows, COLUMN_CIPHER), arena, &out->content, err) ||
        !open_reason(&key, sql_row_text(rows, COLUMN_REASON), arena, out, err) ||
        !open_tags(&key, out->id, sql_row_text(rows, COLUMN_TAGS), arena, out, err))
        return false;
    out->has_content = true;
    return true;
}

/* ---- bytes ---- */

void mail_message_pack(struct buf *out, const struct mail_message *m, unsigned parts)
{
    pack_str(out, str_from(m->id));
    pack_str(out, str_from(m->thread_id));
    pack_u8(out, (uint8_t)m->direction);
    pack_u8(out, (uint8_t)m->state);
    pack_u8(out, (uint8_t)m->in_status);
    pack_i64(out, m->created_us);
    pack_i64(out, m->received_us);
    pack_i64(out, m->send_at_us);
    pack_i64(out, m->decided_us);
    pack_i64(out, m->delivered_us);
    pack_i64(out, m->hold_until_us);
    pack_str(out, m->decided_by);
    pack_str(out, m->reason);
    pack_str(out, m->composer);
    pack_str(out, str_from(m->sha256));
    pack_str(out, m->label);
    pack_u32(out, m->tag_count);
    for (uint32_t i = 0; i < m->tag_count; i++) {
        pack_str(out, m->tags[i].key);
        pack_str(out, m->tags[i].value);
    }
    pack_bool(out, m->has_content);
    if (m->has_content)
        pack_content(out, &m->content, parts);
}

static int unpack_below(struct unpack *in, int count)
{
    int value = unpack_u8(in);

    if (value >= count)
        in->failed = true;
    return in->failed ? 0 : value;
}

void mail_pairs_unpack(struct unpack *in, struct arena *arena, struct mail_pair **out, uint32_t *out_count)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_TAGS);

    *out = count ? ARENA_ARRAY(arena, struct mail_pair, count) : NULL;
    for (uint32_t i = 0; i < count; i++) {
        (*out)[i].key = unpack_str(in, LIMIT_MAIL_TAG_BYTES);
        (*out)[i].value = unpack_str(in, LIMIT_MAIL_TAG_BYTES);
    }
    *out_count = in->failed ? 0 : count;
}

void mail_message_unpack(struct unpack *in, const char *inbox_id, struct arena *arena, struct mail_message *out)
{
    struct mail_message m = { 0 };

    unpack_text(in, m.id, sizeof m.id);
    unpack_text(in, m.thread_id, sizeof m.thread_id);
    m.direction = (enum mail_direction)unpack_below(in, MAIL_OUTBOUND + 1);
    m.state = (enum mail_state)unpack_below(in, MAIL_STATE_COUNT);
    m.in_status = (enum mail_in_status)unpack_below(in, MAIL_IN_DELETED + 1);
    m.created_us = unpack_i64(in);
    m.received_us = unpack_i64(in);
    m.send_at_us = unpack_i64(in);
    m.decided_us = unpack_i64(in);
    m.delivered_us = unpack_i64(in);
    m.hold_until_us = unpack_i64(in);
    m.decided_by = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    m.reason = unpack_str(in, LIMIT_MAIL_REASON_BYTES);
    m.composer = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    unpack_text(in, m.sha256, sizeof m.sha256);
    m.label = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    mail_pairs_unpack(in, arena, &m.tags, &m.tag_count);
    m.has_content = unpack_bool(in);
    if (m.has_content)
        (void)unpack_content(in, arena, &m.content);
    memcpy(m.inbox_id, inbox_id, strnlen(inbox_id, sizeof m.inbox_id - 1));
    *out = in->failed ? (struct mail_message){ 0 } : m;
}
