/*
 * Links: a token opens one message without another credential.
 *
 * The file has a keyed hash of the token and the message's content key wrapped under a key that is derived from the token:
 * who has the file and not the token opens nothing. A link for an approver is made by one (or with the message, in
 * mail_accept()), and ends with its wrap when the message is not held any more. A link to an attachment is made by a reader
 * and good for its time.
 */
#include <string.h>

#include "base/limits.h"
#include "base/random.h"
#include "mail/inbox_state.h"

enum { LINK_PUT = INBOX_LINK_FIRST, LINK_MAKE, LINK_OPEN };
enum { TOKEN_SECRET_CHARS = 50 }; /* of 36: 258 bits */
static const char no_link[] = "there is no such link, or it is used up or has expired";

/* ---- rows ---- */

bool link_put(struct inbox *inbox, const struct link_row *row, struct err *err)
{
    return sql_exec(inbox->sql,
                    "INSERT INTO links (token_hash, kind, message_id, attachment, wrapped, expires_us, is_spent) "
                    "VALUES ($1, $2, $3, $4, $5, $6, 0)",
                    SQL_ARGS(sql_text(row->token_hash), sql_int(row->kind), sql_text(row->message_id),
                             sql_int(row->attachment), sql_blob(row->wrapped), sql_int(row->expires_us)),
                    err);
}

bool link_load(struct inbox *inbox, struct str token_hash, struct arena *arena, struct link_row *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(
            inbox->sql,
            "SELECT kind, message_id, attachment, wrapped, expires_us, is_spent FROM links WHERE token_hash = $1",
            SQL_ARGS(sql_text(token_hash)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "%s", no_link);
    *out = (struct link_row){
        .token_hash = token_hash,
        .kind = (enum mail_link_kind)sql_row_int(&rows, 0),
        .message_id = arena_copy(arena, sql_row_text(&rows, 1)),
        .attachment = (uint32_t)sql_row_int(&rows, 2),
        .wrapped = arena_copy(arena, sql_row_text(&rows, 3)),
        .expires_us = sql_row_int(&rows, 4),
        .is_spent = sql_row_int(&rows, 5),
    };
    return true;
}

bool links_spend(struct inbox *inbox, const char *message_id, struct err *err)
{
    return sql_exec(inbox->sql, "UPDATE links SET is_spent = 1, wrapped = x'' WHERE message_id = $1 AND kind = $2",
                    SQL_ARGS(sql_text(str_from(message_id)), sql_int(MAIL_LINK_APPROVE)), err);
}

/* Room for one more of this kind: those that have expired are removed. A reader's links must not keep out an approver's. */
static bool make_room(struct inbox *inbox, enum mail_link_kind kind, int64_t now_us, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_exec(inbox->sql, "DELETE FROM links WHERE expires_us <= $1", SQL_ARGS(sql_int(now_us)), err) ||
        !sql_select(inbox->sql, "SELECT COUNT(*) FROM links WHERE kind = $1", SQL_ARGS(sql_int(kind)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    return sql_row_int(&rows, 0) < LIMIT_MAIL_LINKS ||
           err_set(err, ERR_LIMIT, "this inbox has %d such links already: wait until some have expired",
                   LIMIT_MAIL_LINKS);
}

static bool put_new(struct inbox *inbox, const struct link_row *row, struct str actor, int64_t now_us, struct err *err)
{
    if (!sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = make_room(inbox, row->kind, now_us, err) && link_put(inbox, row, err) &&
                audit_append(inbox, row->kind == MAIL_LINK_APPROVE ? "link.create" : "link.attachment", row->message_id,
                             actor, STR("{}"), now_us, err);
    return sql_end(inbox->sql, fine, err);
}

/* ---- tokens ---- */

static void link_key(struct str token, struct seal_key *out)
{
    seal_derive(token, "link", out);
}

static void token_hash(const struct mail *mail, const char *inbox_id, struct str token, char out[65])
{
    auto_seal_key struct seal_key key;

    mail_inbox_server_key(mail, inbox_id, &key);
    seal_hash(&key, token, out);
}

static void new_token(const struct mail *mail, const char *inbox_id, struct secret *out_token, char out_hash[65])
{
    char text[MAIL_MESSAGE_ID_BYTES + TOKEN_SECRET_CHARS];

    mail_message_id(inbox_id, text);
    random_id(text + MAIL_MESSAGE_ID_BYTES - 1, TOKEN_SECRET_CHARS);
    _Static_assert(sizeof text <= SECRET_MAX_BYTES, "a token fits into a secret");
    (void)!secret_set(out_token, str_from(text));
    token_hash(mail, inbox_id, str_from(text), out_hash);
    explicit_bzero(text, sizeof text);
}

void mail_link_new(const struct mail *mail, const char *inbox_id, const struct seal_key *content_key,
                   struct secret *out_token, char out_hash[65], unsigned char out_wrapped[SEAL_WRAPPED_KEY_BYTES])
{
    auto_seal_key struct seal_key key;

    new_token(mail, inbox_id, out_token, out_hash);
    link_key(secret_reveal(out_token), &key);
    seal_wrap(&key, content_key, out_wrapped);
}

bool mail_link_handle(struct str token, char out_handle[MAIL_HANDLE_BYTES])
{
    enum { ID_CHARS = MAIL_MESSAGE_ID_BYTES - 1 };

    return token.len == ID_CHARS + TOKEN_SECRET_CHARS && mail_message_id_handle(str_of(token.at, ID_CHARS), out_handle);
}

/* ---- making ---- */

static bool run_put(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)out;
    struct mail_message message;
    struct link_row row = { .kind = MAIL_LINK_APPROVE };

    row.token_hash = unpack_str(in, 64);
    row.message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    row.wrapped = unpack_str(in, SEAL_WRAPPED_KEY_BYTES);
    row.expires_us = unpack_i64(in);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    int64_t now_us = unpack_i64(in);
    if (!unpack_done(in, err) || !inbox_message_load(inbox, row.message_id, arena, &message, err))
        return false;
    /* Only one call runs at a time, so what is held now is held when the row is written. */
    if (!mail_message_held(&message))
        return err_set(err, ERR_CONFLICT, "the message is not held any more");
    if (message.direction == MAIL_OUTBOUND)
        row.expires_us = MIN(row.expires_us, message.hold_until_us);
    return put_new(inbox, &row, actor, now_us, err);
}

/* What a reader may see: not what is held before the agent, or was rejected. */
static bool is_visible(const struct mail_message *m)
{
    return m->direction == MAIL_OUTBOUND ||
           (m->in_status != MAIL_IN_HELD && m->in_status != MAIL_IN_REJECTED && m->in_status != MAIL_IN_DELETED);
}

static bool run_make(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    (void)out;
    struct link_row row = { .kind = MAIL_LINK_ATTACHMENT };
    struct mail_reading_who who;
    auto_seal_key struct seal_key under, content_key = { 0 };
    unsigned char wrapped[SEAL_WRAPPED_KEY_BYTES];
    struct mail_message message;
    struct str sealed;

    mail_reading_unpack(in, &who);
    row.token_hash = unpack_str(in, 64);
    row.message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    row.attachment = unpack_u32(in);
    row.expires_us = unpack_i64(in);
    seal_key_unpack(in, &under);
    int64_t now_us = unpack_i64(in);
    if (!unpack_done(in, err) || !inbox_message_load(inbox, row.message_id, arena, &message, err))
        return false;
    if (!is_visible(&message))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    auto_reading struct inbox_reading reading = { .inbox = inbox };
    if (!inbox_reading_begin(inbox, &who, "grant.read", row.message_id, arena, &reading, err) ||
        !inbox_sealed_get(inbox, row.message_id, "inbox", arena, &sealed, err) ||
        !inbox_reading_key(&reading, message.id, sealed, &content_key, err))
        return false;
    seal_wrap(&under, &content_key, wrapped);
    row.wrapped = str_of(wrapped, sizeof wrapped);
    return put_new(inbox, &row, who.grant.len ? who.grant : who.key_id, now_us, err);
}

static bool make_approve(struct mail *mail, const char *inbox_id, const struct mail_link *want,
                         const struct mail_approver *approver, int64_t now_us, struct arena *arena,
                         struct secret *out_token, struct err *err)
{
    auto_seal_key struct seal_key content_key = { 0 };
    unsigned char wrapped[SEAL_WRAPPED_KEY_BYTES];
    struct buf request = mail_request(arena);
    struct unpack reply;
    struct held held;
    char hash[65];

    if (!held_get(mail, inbox_id, str_from(want->message_id), arena, &held, err))
        return false;
    if (!mail_message_held(&held.message))
        return err_set(err, ERR_CONFLICT, "the message is not held any more");
    if (!seal_open(&approver->public_key, &approver->private_key, held.sealed, &content_key, err))
        return false;
    mail_link_new(mail, inbox_id, &content_key, out_token, hash, wrapped);
    pack_str(&request, str_from(hash));
    pack_str(&request, str_from(want->message_id));
    pack_str(&request, str_of(wrapped, sizeof wrapped));
    pack_i64(&request, want->expires_us);
    pack_str(&request, approver->id);
    pack_i64(&request, now_us);
    return mail_call(mail, inbox_id, LINK_PUT, &request, arena, &reply, err) && unpack_done(&reply, err);
}

static bool make_attachment(struct mail *mail, const char *inbox_id, const struct mail_link *want,
                            const struct mail_reader *reader, int64_t now_us, struct arena *arena,
                            struct secret *out_token, struct err *err)
{
    struct buf request = mail_request(arena);
    auto_seal_key struct seal_key under;
    struct unpack reply;
    char hash[65];

    new_token(mail, inbox_id, out_token, hash);
    link_key(secret_reveal(out_token), &under);
    mail_reading_pack(&request, reader);
    pack_str(&request, str_from(hash));
    pack_str(&request, str_from(want->message_id));
    pack_u32(&request, want->attachment);
    pack_i64(&request, want->expires_us);
    seal_key_pack(&request, &under);
    pack_i64(&request, now_us);
    bool fine = mail_call(mail, inbox_id, LINK_MAKE, &request, arena, &reply, err) && unpack_done(&reply, err);
    buf_done(&request);
    return fine;
}

bool mail_link_make(struct mail *mail, const char *inbox_id, const struct mail_link *want,
                    const struct mail_approver *approver, const struct mail_reader *reader, int64_t now_us,
                    struct secret *out_token, struct err *err)
{
    auto_wipe struct secret token = { 0 };
    struct arena arena;
    bool fine;

    if (want->expires_us <= now_us)
        return err_set(err, ERR_INVALID, "a link must be good for some time");
    arena_init(&arena);
    if (want->kind == MAIL_LINK_APPROVE && approver)
        fine = make_approve(mail, inbox_id, want, approver, now_us, &arena, &token, err);
    else if (want->kind == MAIL_LINK_ATTACHMENT && reader)
        fine = make_attachment(mail, inbox_id, want, reader, now_us, &arena, &token, err);
    else
        fine = err_set(err, ERR_DENIED, "approvers make links to held messages, readers make links to attachments");
    arena_done(&arena);
    if (fine)
        *out_token = token;
    return fine;
}

/* ---- using ---- */

static bool run_open(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct str hash = unpack_str(in, 64);
    int64_t now_us = unpack_i64(in);
    bool to_decide = unpack_bool(in);
    struct link_row link;

    if (!unpack_done(in, err) || !link_load(inbox, hash, arena, &link, err))
        return false;
    if (link.is_spent && to_decide)
        return err_set(err, ERR_CONFLICT, "the message is not held any more: it was decided, cancelled or has expired");
    if (link.is_spent || now_us >= link.expires_us)
        return err_set(err, ERR_NOT_FOUND, "%s", no_link);
    pack_u8(out, (uint8_t)link.kind);
    pack_u32(out, link.attachment);
    pack_i64(out, link.expires_us);
    return held_pack(inbox, link.message_id, link.wrapped, arena, out, err);
}

/* The link, and the message with its content. *out_hash: of the token. */
static bool open_link(struct mail *mail, struct str token, const char *inbox_id, bool to_decide, int64_t now_us,
                      struct arena *arena, struct mail_link *out_link, struct held *out, struct seal_key *out_key,
                      char out_hash[65], struct err *err)
{
    auto_seal_key struct seal_key under;
    struct buf request = mail_request(arena);
    char handle[MAIL_HANDLE_BYTES];
    struct unpack reply;

    /* A token of another inbox is not worth asking for: its hash would be found nowhere. */
    if (!mail_link_handle(token, handle))
        return err_set(err, ERR_NOT_FOUND, "%s", no_link);
    token_hash(mail, inbox_id, token, out_hash);
    pack_str(&request, str_from(out_hash));
    pack_i64(&request, now_us);
    pack_bool(&request, to_decide);
    if (!mail_call(mail, inbox_id, LINK_OPEN, &request, arena, &reply, err))
        return false;
    *out_link =
        (struct mail_link){ .kind = unpack_u8(&reply) == MAIL_LINK_APPROVE ? MAIL_LINK_APPROVE : MAIL_LINK_ATTACHMENT };
    out_link->attachment = unpack_u32(&reply);
    out_link->expires_us = unpack_i64(&reply);
    held_unpack(&reply, inbox_id, arena, out);
    if (!unpack_done(&reply, err))
        return false;
    memcpy(out_link->message_id, out->message.id, sizeof out_link->message_id);
    link_key(token, &under);
    return seal_unwrap(&under, out->sealed, out_key, err) && held_open(out, out_key, arena, err);
}

bool mail_link_open(struct mail *mail, struct str token, const char *inbox_id, unsigned want, int64_t now_us,
                    struct arena *arena, struct mail_link *out_link, struct mail_message *out, struct err *err)
{
    auto_seal_key struct seal_key key = { 0 };
    struct mail_link link;
    struct held held;
    char hash[65];

    if (!open_link(mail, token, inbox_id, false, now_us, arena, &link, &held, &key, hash, err))
        return false;
    struct mail_content *content = &held.message.content;
    if (!(want & MAIL_WANT_TEXT))
        content->text = content->html = STR("");
    if (!(want & MAIL_WANT_MIME))
        content->mime = STR("");
    for (uint32_t i = 0; i < content->attachment_count && !(want & MAIL_WANT_ATTACHMENTS); i++)
        content->attachments[i].content = STR("");
    *out_link = link;
    *out = held.message;
    return true;
}

bool mail_link_decide(struct mail *mail, struct str token, const struct mail_decision *decision, struct arena *arena,
                      struct mail_message *out, struct err *err)
{
    auto_seal_key struct seal_key key = { 0 };
    struct mail_link link;
    struct held held;
    char hash[65];

    if (!open_link(mail, token, decision->inbox_id, true, decision->now_us, arena, &link, &held, &key, hash, err))
        return false;
    if (link.kind != MAIL_LINK_APPROVE || strcmp(link.message_id, decision->message_id) != 0)
        return err_set(err, ERR_NOT_FOUND, "%s", no_link);
    return held_decide(mail, decision, &held, &key, str_from(hash), arena, out, err);
}

const struct inbox_operation inbox_link_operations[] = {
    { LINK_PUT, run_put },
    { LINK_MAKE, run_make },
    { LINK_OPEN, run_open },
    { 0, NULL },
};
