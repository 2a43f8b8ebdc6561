/*
 * A message is accepted, shown to an approver, decided, cancelled or changed, until it may leave (inbox_leave.c).
 *
 * Accepting. Front makes the content key, encrypts, and seals the key to the inbox, to the approvers and to the server. The
 * worker stores ciphers, and those of the sealed keys that belong to the state which the gate decides on. It never has the
 * content key. Limits, repeats and the gate are one transaction: what is refused leaves nothing behind.
 *
 * Deciding is two calls. The first brings the sealed body and key to front; the approver's key opens them there, and the
 * hash of the opened bytes must be the stored one. The second call has that hash, and the gate compares it again with the
 * row in the transaction that changes the state: of two approvers the second finds the message decided.
 */
#include <sodium.h>
#include <string.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/limits.h"
#include "mail/inbox_state.h"

enum { SEND_ACCEPT = INBOX_SEND_FIRST, SEND_PENDING, SEND_HELD, SEND_DECIDE, SEND_CANCEL, SEND_RESCHEDULE, SEND_EDIT };
enum { PACKED_FIELDS_BYTES = 2048 }; /* of a message, besides its ciphers; more is seldom, and makes the buffer grow */
enum accept_result {
    ACCEPT_STORED,
    ACCEPT_REPEAT,
    ACCEPT_LIMITED, /* and why */
    ACCEPT_BEHIND,  /* the clock went back: there are messages with greater ids, and lists go by id */
};

#define SECOND_US INT64_C(1000000)
#define MINUTE_US (60 * SECOND_US)
#define DAY_US (24 * 60 * MINUTE_US)

bool mail_call_again(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request,
                     struct arena *arena, struct unpack *out_reply, struct err *err)
{
    return mail_call(mail, inbox_id, op, request, arena, out_reply, err) ||
           (err->kind == ERR_UNAVAILABLE && mail_call(mail, inbox_id, op, request, arena, out_reply, err));
}

/* ---- a message on its way into the file ---- */

/* What the worker gets of a new or changed message. */
struct arrival {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str composer, hash, head, body;
    struct str for_inbox, for_approver, for_server;
    struct str *recipients;
    uint32_t recipient_count;
    struct thread_hint thread;
    struct str answers_id, idempotency_key, dedup;
    struct mail_limits limits;
    enum mail_mode mode;
    bool has_attachments, scan_blocks, schedule_first;
    int64_t send_at_us, hold_us, now_us;
    struct str link_hash, link_wrapped;
};

/* Front: encrypts and seals. *out_link: a token, if one is wanted; NULL: none can be. */
static bool pack_arrival(struct mail *mail, const struct mail_accept *want, const char *id, struct arena *arena,
                         struct buf *out, char out_sha256[MAIL_HASH_TEXT_BYTES], struct secret *out_link,
                         struct err *err)
{
    const struct mail_content *content = want->content;
    static const struct mail_limits no_limits;
    const struct mail_limits *limits = want->limits ? want->limits : &no_limits;
    auto_seal_key struct seal_key key;
    unsigned char hash[GATE_HASH_BYTES], sealed[3][SEAL_SEALED_KEY_BYTES], wrapped[SEAL_WRAPPED_KEY_BYTES];
    char link_hash[65] = "";
    struct mail_ciphers ciphers;
    bool blocks = false;

    if (!content->recipient_count || content->recipient_count > LIMIT_MAIL_RECIPIENTS)
        return err_set(err, ERR_INVALID, "a message needs 1 to %d recipients", LIMIT_MAIL_RECIPIENTS);
    if (want->hold_us <= 0)
        return err_set(err, ERR_INVALID, "a message must have some time to be held");
    seal_random_key(&key);
    if (!mail_content_seal(&key, id, content, arena, &ciphers, err))
        return false;
    mail_content_hash(content, hash);
    hex_text(str_of(hash, sizeof hash), out_sha256);
    seal_to(want->inbox_public, &key, sealed[0]);
    seal_to(want->approver_public, &key, sealed[1]);
    seal_to(&mail_config_of(mail)->server_public, &key, sealed[2]);
    if (out_link && want->want_link)
        mail_link_new(mail, want->inbox_id, &key, out_link, link_hash, wrapped);
    for (uint32_t i = 0; i < content->warning_count; i++)
        blocks = blocks || content->warnings[i].blocks;

    (void)!buf_reserve(out, ciphers.head.len + ciphers.body.len + PACKED_FIELDS_BYTES); /* at once: it may be large */
    pack_str(out, str_from(id));
    pack_str(out, want->composer);
    pack_str(out, str_of(hash, sizeof hash));
    pack_str(out, ciphers.head);
    pack_str(out, ciphers.body);
    for (int i = 0; i < 3; i++)
        pack_str(out, str_of(sealed[i], sizeof sealed[i]));
    pack_u32(out, content->recipient_count);
    for (uint32_t i = 0; i < content->recipient_count; i++)
        pack_str(out, content->recipients[i]);
    pack_str(out, want->thread_id);
    pack_str(out, content->message_id);
    pack_str(out, content->in_reply_to);
    pack_str(out, content->references);
    pack_str(out, content->subject);
    pack_str(out, str_from(want->answers_id));
    pack_str(out, want->idempotency_key);
    pack_str(out, want->dedup);
    pack_u32(out, limits->sends_per_minute);
    pack_u32(out, limits->sends_per_day);
    pack_u32(out, limits->pending_most);
    pack_u64(out, limits->storage_bytes);
    pack_u8(out, (uint8_t)want->mode);
    pack_bool(out, content->attachment_count > 0);
    pack_bool(out, blocks);
    pack_bool(out, want->schedule_first);
    pack_i64(out, want->send_at_us);
    pack_i64(out, want->hold_us);
    pack_i64(out, want->now_us);
    pack_str(out, str_from(link_hash));
    pack_str(out, *link_hash ? str_of(wrapped, sizeof wrapped) : STR(""));
    return true;
}

static enum mail_mode unpack_mode(struct unpack *in)
{
    uint8_t mode = unpack_u8(in);

    if (mode >= MAIL_MODE_COUNT)
        in->failed = true;
    return in->failed ? MAIL_READ_ONLY : (enum mail_mode)mode;
}

static bool unpack_arrival(struct unpack *in, struct arena *arena, struct arrival *out, struct err *err)
{
    struct arrival a = { 0 };

    unpack_text(in, a.id, sizeof a.id);
    a.composer = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    a.hash = unpack_str(in, GATE_HASH_BYTES);
    a.head = unpack_str(in, LIMIT_MAIL_CONTENT_BYTES + SEAL_EXTRA_BYTES);
    a.body = unpack_str(in, LIMIT_MAIL_CONTENT_BYTES + SEAL_EXTRA_BYTES);
    a.for_inbox = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    a.for_approver = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    a.for_server = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    a.recipient_count = unpack_count(in, LIMIT_MAIL_RECIPIENTS);
    a.recipients = ARENA_ARRAY(arena, struct str, a.recipient_count + 1U);
    for (uint32_t i = 0; i < a.recipient_count; i++)
        a.recipients[i] = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    a.thread.thread_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    a.thread.message_id = unpack_str(in, LIMIT_MAIL_MESSAGE_ID_BYTES);
    a.thread.in_reply_to = unpack_str(in, LIMIT_MAIL_REFERENCES_BYTES);
    a.thread.references = unpack_str(in, LIMIT_MAIL_REFERENCES_BYTES);
    a.thread.subject = unpack_str(in, LIMIT_MAIL_SUBJECT_BYTES);
    a.answers_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    a.idempotency_key = unpack_str(in, LIMIT_MAIL_ONCE_BYTES);
    a.dedup = unpack_str(in, LIMIT_MAIL_ONCE_BYTES);
    a.limits.sends_per_minute = unpack_u32(in);
    a.limits.sends_per_day = unpack_u32(in);
    a.limits.pending_most = unpack_u32(in);
    a.limits.storage_bytes = unpack_u64(in);
    a.mode = unpack_mode(in);
    a.has_attachments = unpack_bool(in);
    a.scan_blocks = unpack_bool(in);
    a.schedule_first = unpack_bool(in);
    a.send_at_us = unpack_i64(in);
    a.hold_us = unpack_i64(in);
    a.now_us = a.thread.now_us = unpack_i64(in);
    a.link_hash = unpack_str(in, 64);
    a.link_wrapped = unpack_str(in, SEAL_WRAPPED_KEY_BYTES);
    if (a.hash.len != GATE_HASH_BYTES)
        in->failed = true;
    *out = a;
    return unpack_done(in, err);
}

/* ---- limits and repeats ---- */

static bool one_number(struct inbox *inbox, const char *query, const struct sql_value *args, size_t count,
                       int64_t out[2], struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, query, args, count, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    out[0] = there ? sql_row_int(&rows, 0) : 0;
    out[1] = there ? sql_row_int(&rows, 1) : 0;
    return true;
}

struct refusal {
    bool is_there;
    uint32_t retry_after_s;
    struct str why;
};

static struct refusal refuse(uint32_t retry_after_s, struct str why)
{
    return (struct refusal){ .is_there = true, .retry_after_s = retry_after_s, .why = why };
}

/* A limit of so many sends in a period. */
static bool check_rate(struct inbox *inbox, uint32_t most, int64_t period_us, const char *period, int64_t now_us,
                       struct arena *arena, struct refusal *out, struct err *err)
{
    int64_t found[2];

    if (!most || out->is_there)
        return true;
    if (!one_number(inbox, "SELECT COUNT(*), MIN(at_us) FROM sends WHERE at_us > $1",
                    SQL_ARGS(sql_int(now_us - period_us)), found, err))
        return false;
    if (found[0] >= most)
        *out = refuse((uint32_t)((found[1] + period_us - now_us) / SECOND_US + 1),
                      arena_format(arena, "this inbox has sent %u messages in a %s, which is its limit", most, period));
    return true;
}

/* Everything that waits in the inbox, held or not: it grows while nobody decides. */
static bool check_pending(struct inbox *inbox, uint32_t most, struct arena *arena, struct refusal *out, struct err *err)
{
    int64_t found[2];

    if (!most || out->is_there)
        return true;
    if (!one_number(inbox, "SELECT COUNT(*), 0 FROM messages WHERE direction = 1 AND state IN ($1, $2, $3, $4)",
                    SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_SCHEDULED), sql_int(MAIL_UNDO), sql_int(MAIL_QUEUED)),
                    found, err))
        return false;
    if (found[0] >= most)
        *out = refuse(60, arena_format(arena,
                                       "%u messages wait in this inbox, which is its limit: decide about some, "
                                       "or cancel some",
                                       most));
    return true;
}

static bool check_storage(struct inbox *inbox, uint64_t most, uint64_t more, struct arena *arena, struct refusal *out,
                          struct err *err)
{
    uint64_t used;

    if (!most || out->is_there)
        return true;
    if (!inbox_storage(inbox, &used, err))
        return false;
    if (used > most || more > most - used)
        *out = refuse(3600, arena_format(arena, "the inbox is full: %llu of %llu bytes are in use; delete messages",
                                         (unsigned long long)used, (unsigned long long)most));
    return true;
}

/* `more`: bytes that the inbox grows by. */
static bool check_limits(struct inbox *inbox, const struct arrival *a, uint64_t more, struct arena *arena,
                         struct refusal *out, struct err *err)
{
    *out = (struct refusal){ 0 };
    /* The clock went back: sends of the future count as sends of now, or they would count for a long time or never. */
    return sql_exec(inbox->sql, "UPDATE sends SET at_us = $1 WHERE at_us > $1", SQL_ARGS(sql_int(a->now_us)), err) &&
           sql_exec(inbox->sql, "DELETE FROM sends WHERE at_us <= $1", SQL_ARGS(sql_int(a->now_us - DAY_US)), err) &&
           check_rate(inbox, a->limits.sends_per_minute, MINUTE_US, "minute", a->now_us, arena, out, err) &&
           check_rate(inbox, a->limits.sends_per_day, DAY_US, "day", a->now_us, arena, out, err) &&
           check_pending(inbox, a->limits.pending_most, arena, out, err) &&
           check_storage(inbox, a->limits.storage_bytes, more, arena, out, err);
}

/* This very message: an earlier worker stored it, and died before it could say so. */
static bool find_same(struct inbox *inbox, const struct arrival *a, struct arena *arena, struct mail_message *out,
                      bool *out_there, struct err *err)
{
    *out_there = inbox_message_load(inbox, str_from(a->id), arena, out, err);
    return *out_there || err->kind == ERR_NOT_FOUND;
}

/* The message that was accepted with the same idempotency key in the last 24 hours. */
static bool find_repeat(struct inbox *inbox, const struct arrival *a, struct arena *arena, const char *hash,
                        struct mail_message *out, bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    *out_there = false;
    if (!*hash)
        return true;
    /* Not only before now: after the clock went back, the key still counts. */
    if (!sql_select(inbox->sql,
                    "SELECT " MESSAGE_COLUMNS " FROM messages m WHERE m.idempotency_hash = $1 AND m.created_us > $2 "
                    "ORDER BY m.created_us DESC LIMIT 1",
                    SQL_ARGS(sql_text(str_from(hash)), sql_int(a->now_us - DAY_US)), &rows, err) ||
        !sql_next(&rows, out_there, err))
        return false;
    if (*out_there)
        inbox_message_row(inbox, &rows, arena, out);
    return true;
}

/* The same content within 60 seconds, before or (after the clock went back) behind now. */
static bool check_dedup(struct inbox *inbox, const struct arrival *a, const char *hash, struct err *err)
{
    int64_t found[2] = { 0 };

    if (*hash &&
        !one_number(inbox,
                    "SELECT COUNT(*), 0 FROM messages WHERE dedup_hash = $1 AND created_us > $2 AND created_us < $3 "
                    "AND state NOT IN ($4, $5, $6, $7)",
                    SQL_ARGS(sql_text(str_from(hash)), sql_int(a->now_us - MINUTE_US), sql_int(a->now_us + MINUTE_US),
                             sql_int(MAIL_REJECTED), sql_int(MAIL_CANCELLED), sql_int(MAIL_FAILED),
                             sql_int(MAIL_EXPIRED)),
                    found, err))
        return false;
    return !found[0] || err_set(err, ERR_CONFLICT, "the same message was sent less than 60 seconds ago");
}

/* ---- accepting ---- */

static bool store_recipients(struct inbox *inbox, const struct arrival *a, struct err *err)
{
    for (uint32_t i = 0; i < a->recipient_count; i++) {
        struct str address = a->recipients[i], domain = address;
        char address_hash[65], domain_hash[65], pattern[LIMIT_MAIL_ADDRESS_BYTES + 2] = "*@";
        const char *at = address.len ? memrchr(address.at, '@', address.len) : NULL;
        if (!at)
            return err_set(err, ERR_INVALID, "a recipient is not an address: it has no @");
        domain = str_of(at + 1, address.len - (size_t)(at + 1 - address.at));
        memcpy(pattern + 2, domain.at, domain.len);
        inbox_allow_hash(inbox, address, address_hash);
        inbox_allow_hash(inbox, str_of(pattern, domain.len + 2), domain_hash);
        if (!sql_exec(inbox->sql,
                      "INSERT INTO recipients (message_id, number, address_hash, domain_hash) VALUES ($1, $2, $3, $4)",
                      SQL_ARGS(sql_text(str_from(a->id)), sql_int(i), sql_text(str_from(address_hash)),
                               sql_text(str_from(domain_hash))),
                      err))
            return false;
    }
    return true;
}

/* The thread of the message that it answers, if the caller names none. */
static bool thread_of_answered(struct inbox *inbox, struct arrival *a, struct arena *arena, struct err *err)
{
    struct mail_message answered;

    if (a->thread.thread_id.len || !a->answers_id.len)
        return true;
    if (!inbox_message_load(inbox, a->answers_id, arena, &answered, err))
        return false;
    a->thread.thread_id = arena_copy(arena, str_from(answered.thread_id));
    return true;
}

static bool store_message(struct inbox *inbox, struct arrival *a, const char *once, const char *dedup,
                          struct arena *arena, struct err *err)
{
    char thread_id[MAIL_MESSAGE_ID_BYTES];

    return thread_of_answered(inbox, a, arena, err) && inbox_thread_join(inbox, a->id, &a->thread, thread_id, err) &&
           sql_exec(inbox->sql,
                    "INSERT INTO messages (id, thread_id, direction, state, created_us, received_us, send_at_us, "
                    "schedule_first, hold_us, composer, hash, has_attachments, size, idempotency_hash, dedup_hash, "
                    "head_cipher, body_cipher) "
                    "VALUES ($1, $2, 1, $3, $4, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
                    SQL_ARGS(sql_text(str_from(a->id)), sql_text(str_from(thread_id)), sql_int(MAIL_SCAN),
                             sql_int(a->now_us), sql_int(a->send_at_us), sql_int(a->schedule_first),
                             sql_int(a->hold_us), sql_text(a->composer), sql_blob(a->hash), sql_int(a->has_attachments),
                             sql_int((int64_t)(a->head.len + a->body.len)), sql_text_or_null(str_from(once)),
                             sql_text_or_null(str_from(dedup)), sql_blob(a->head), sql_blob(a->body)),
                    err) &&
           store_recipients(inbox, a, err) && inbox_sealed_put(inbox, a->id, "inbox", a->for_inbox, err) &&
           sql_exec(inbox->sql, "INSERT INTO sends (at_us) VALUES ($1)", SQL_ARGS(sql_int(a->now_us)), err);
}

static bool judge(struct inbox *inbox, const struct arrival *a, struct arena *arena, struct err *err)
{
    const struct outgoing_change change = {
        .event = GATE_JUDGE,
        .input = { .now_us = a->now_us, .mode = a->mode, .scan_blocks = a->scan_blocks },
        .actor = a->composer,
        .for_server = a->for_server,
        .for_approver = a->for_approver,
    };
    struct outgoing m;
    bool changed;

    if (!outgoing_load(inbox, str_from(a->id), arena, &m, err) ||
        !outgoing_step(inbox, &m, &change, arena, &changed, err))
        return false;
    if (m.gate.state != MAIL_HELD || !a->link_hash.len)
        return true;
    return link_put(inbox,
                    &(struct link_row){ .token_hash = a->link_hash,
                                        .wrapped = a->link_wrapped,
                                        .kind = MAIL_LINK_APPROVE,
                                        .message_id = str_from(a->id),
                                        .expires_us = m.gate.hold_until_us },
                    err);
}

/* Front makes the ids of what it accepts, and does not know those that are here. */
static bool check_id(struct inbox *inbox, const struct arrival *a, struct arena *arena, struct str *out_last,
                     struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT MAX(id) FROM messages", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    struct str last = sql_row_text(&rows, 0);
    *out_last = mail_message_id_behind(str_from(a->id), last) ? arena_copy(arena, last) : STR("");
    return true;
}

static bool accept_new(struct inbox *inbox, struct arrival *a, struct arena *arena, struct mail_message *out,
                       enum accept_result *out_result, struct refusal *out_refusal, struct str *out_last,
                       struct err *err)
{
    char once[65] = "", dedup[65] = "";
    bool there;

    if (a->idempotency_key.len)
        inbox_hash(inbox, "idempotency", a->idempotency_key, once);
    if (a->dedup.len)
        inbox_hash(inbox, "dedup", a->dedup, dedup);
    if (!find_same(inbox, a, arena, out, &there, err))
        return false;
    *out_result = ACCEPT_STORED;
    if (there)
        return true;
    if (!find_repeat(inbox, a, arena, once, out, &there, err))
        return false;
    *out_result = ACCEPT_REPEAT;
    if (there)
        return true;
    if (!check_dedup(inbox, a, dedup, err) ||
        !check_limits(inbox, a, a->head.len + a->body.len, arena, out_refusal, err))
        return false;
    *out_result = ACCEPT_LIMITED;
    if (out_refusal->is_there)
        return true;
    *out_result = ACCEPT_BEHIND;
    if (!check_id(inbox, a, arena, out_last, err))
        return false;
    if (out_last->len)
        return true;
    *out_result = ACCEPT_STORED;
    return store_message(inbox, a, once, dedup, arena, err) && judge(inbox, a, arena, err) &&
           inbox_message_load(inbox, str_from(a->id), arena, out, err);
}

static bool run_accept(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct arrival a;
    struct mail_message message;
    enum accept_result result = ACCEPT_LIMITED;
    struct refusal refusal = { 0 };
    struct str last = STR("");

    if (!unpack_arrival(in, arena, &a, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = accept_new(inbox, &a, arena, &message, &result, &refusal, &last, err);
    /* A refusal has changed nothing that is worth writing. */
    bool committed = sql_end(inbox->sql, fine && result == ACCEPT_STORED, err);
    if (!fine || (result == ACCEPT_STORED && !committed))
        return false;
    pack_u8(out, (uint8_t)result);
    pack_u32(out, refusal.retry_after_s);
    pack_str(out, result == ACCEPT_BEHIND ? last : refusal.why);
    if (result < ACCEPT_LIMITED)
        mail_message_pack(out, &message, 0);
    return true;
}

/* A refusal becomes an error. ACCEPT_BEHIND: *out_last is the id to be followed, and the rest is not set. */
static bool unpack_accepted(struct unpack *in, const char *inbox_id, struct arena *arena, struct mail_message *out,
                            enum accept_result *out_result, struct str *out_last, uint32_t *out_retry_after_s,
                            struct err *err)
{
    uint8_t result = unpack_u8(in);
    uint32_t retry_after_s = unpack_u32(in);
    struct str why = unpack_str(in, sizeof err->message);

    if (result < ACCEPT_LIMITED)
        mail_message_unpack(in, inbox_id, arena, out);
    if (!unpack_done(in, err))
        return false;
    if (result > ACCEPT_BEHIND)
        return err_set(err, ERR_INTERNAL, "malformed message");
    *out_retry_after_s = retry_after_s;
    *out_result = (enum accept_result)result;
    *out_last = why;
    return result != ACCEPT_LIMITED || err_set(err, ERR_LIMIT, "%.*s", STR_ARG(why));
}

/* Once. The id is authenticated with the ciphers, so another id needs new ones. */
static bool accept_as(struct mail *mail, const struct mail_accept *want, const char *id, struct arena *arena,
                      struct mail_accepted *out, struct mail_message *out_message, enum accept_result *out_result,
                      struct str *out_last, uint32_t *out_retry_after_s, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    return pack_arrival(mail, want, id, arena, &request, out->sha256, &out->link, err) &&
           mail_call_again(mail, want->inbox_id, SEND_ACCEPT, &request, arena, &reply, err) &&
           unpack_accepted(&reply, want->inbox_id, arena, out_message, out_result, out_last, out_retry_after_s, err);
}

bool mail_accept(struct mail *mail, const struct mail_accept *want, struct arena *arena, struct mail_accepted *out,
                 uint32_t *out_retry_after_s, struct err *err)
{
    struct mail_accepted accepted = { 0 };
    struct mail_message message;
    enum accept_result result;
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str last;

    *out_retry_after_s = 0;
    mail_message_id(want->inbox_id, id);
    bool fine = accept_as(mail, want, id, arena, &accepted, &message, &result, &last, out_retry_after_s, err);
    if (fine && result == ACCEPT_BEHIND) {
        mail_message_id_after(want->inbox_id, last, id);
        fine = accept_as(mail, want, id, arena, &accepted, &message, &result, &last, out_retry_after_s, err) &&
               (result != ACCEPT_BEHIND ||
                err_set(err, ERR_INTERNAL, "inbox %s has no room for ids: its clock was far ahead", want->inbox_id));
    }
    if (!fine || result == ACCEPT_REPEAT || message.state != MAIL_HELD)
        secret_wipe(&accepted.link);
    if (!fine)
        return false;
    memcpy(accepted.id, message.id, sizeof accepted.id);
    memcpy(accepted.thread_id, message.thread_id, sizeof accepted.thread_id);
    memcpy(accepted.sha256, message.sha256, sizeof accepted.sha256);
    accepted.state = message.state;
    accepted.hold_until_us = message.state == MAIL_HELD ? message.hold_until_us : 0;
    accepted.is_repeat = result == ACCEPT_REPEAT;
    *out = accepted;
    secret_wipe(&accepted.link);
    return true;
}

/* ---- what is held ---- */

bool mail_message_held(const struct mail_message *m)
{
    return m->direction == MAIL_OUTBOUND ? m->state == MAIL_HELD : m->in_status == MAIL_IN_HELD;
}

bool mail_id_check(struct str message_id, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];

    return mail_message_id_handle(message_id, handle) || err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
}

static bool run_pending(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    bool with_content = unpack_bool(in), there;
    auto_rows struct sql_rows rows = { 0 };

    if (!unpack_done(in, err) ||
        !sql_select(inbox->sql,
                    "SELECT " MESSAGE_COLUMNS ", k.sealed, m.head_cipher FROM messages m "
                    "LEFT JOIN content_keys k ON k.message_id = m.id AND k.holder = 'approver' "
                    "WHERE m.id IN (SELECT id FROM messages WHERE direction = 1 AND state = $1 "
                    "UNION ALL SELECT id FROM messages WHERE direction = 0 AND in_status = $2) ORDER BY m.id LIMIT $3",
                    SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_IN_HELD), sql_int(LIMIT_MAIL_HELD)), &rows, err))
        return false;
    for (;;) {
        struct mail_message message;
        if (!sql_next(&rows, &there, err))
            return false;
        there = there && out->len < LIMIT_MAIL_PAGE_BYTES; /* the oldest are decided first, then the next come */
        pack_bool(out, there);
        if (!there)
            return true;
        inbox_message_row(inbox, &rows, arena, &message);
        mail_message_pack(out, &message, 0);
        pack_str(out, with_content ? sql_row_text(&rows, MESSAGE_COLUMN_COUNT) : STR(""));
        pack_str(out, with_content ? sql_row_text(&rows, MESSAGE_COLUMN_COUNT + 1) : STR(""));
    }
}

bool mail_pending(struct mail *mail, const char *inbox_id, const struct mail_approver *approver, struct arena *arena,
                  struct mail_message **out, size_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    pack_bool(&request, approver != NULL);
    if (!mail_call(mail, inbox_id, SEND_PENDING, &request, arena, &reply, err))
        return false;
    struct mail_message *messages = ARENA_ARRAY(arena, struct mail_message, LIMIT_MAIL_HELD);
    size_t count = 0;
    for (; unpack_bool(&reply) && count < LIMIT_MAIL_HELD; count++) {
        auto_seal_key struct seal_key key = { 0 };
        struct mail_message *m = &messages[count];
        struct err ignored; /* what cannot be opened is listed without content: it can still be rejected */
        mail_message_unpack(&reply, inbox_id, arena, m);
        struct str sealed = unpack_str(&reply, SEAL_SEALED_KEY_BYTES);
        struct str head = unpack_str(&reply, LIMIT_MAIL_CONTENT_BYTES + SEAL_EXTRA_BYTES);
        m->has_content = approver && seal_open(&approver->public_key, &approver->private_key, sealed, &key, &ignored) &&
                         mail_content_open(&key, m->id, "head", head, arena, &m->content, &ignored);
    }
    if (!unpack_done(&reply, err))
        return false;
    *out = messages;
    *out_count = count;
    return true;
}

bool held_pack(struct inbox *inbox, struct str message_id, struct str sealed, struct arena *arena, struct buf *out,
               struct err *err)
{
    struct mail_message message;
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT " MESSAGE_COLUMNS ", m.body_cipher FROM messages m WHERE m.id = $1",
                    SQL_ARGS(sql_text(message_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    inbox_message_row(inbox, &rows, arena, &message);
    mail_message_pack(out, &message, 0);
    pack_str(out, sealed);
    pack_str(out, sql_row_text(&rows, MESSAGE_COLUMN_COUNT));
    return true;
}

static bool run_held(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES), sealed;

    return unpack_done(in, err) && inbox_sealed_get(inbox, message_id, "approver", arena, &sealed, err) &&
           held_pack(inbox, message_id, sealed, arena, out, err);
}

void held_unpack(struct unpack *in, const char *inbox_id, struct arena *arena, struct held *out)
{
    mail_message_unpack(in, inbox_id, arena, &out->message);
    out->sealed = unpack_str(in, MAX(SEAL_SEALED_KEY_BYTES, SEAL_WRAPPED_KEY_BYTES));
    out->cipher = unpack_str(in, LIMIT_MAIL_CONTENT_BYTES + SEAL_EXTRA_BYTES);
}

bool held_get(struct mail *mail, const char *inbox_id, struct str message_id, struct arena *arena, struct held *out,
              struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    pack_str(&request, message_id);
    if (!mail_id_check(message_id, err) || !mail_call(mail, inbox_id, SEND_HELD, &request, arena, &reply, err))
        return false;
    held_unpack(&reply, inbox_id, arena, out);
    return unpack_done(&reply, err);
}

bool held_open(struct held *held, const struct seal_key *content_key, struct arena *arena, struct err *err)
{
    struct mail_message *m = &held->message;
    unsigned char hash[GATE_HASH_BYTES];
    char text[MAIL_HASH_TEXT_BYTES];

    if (!mail_content_open(content_key, m->id, "body", held->cipher, arena, &m->content, err))
        return false;
    mail_content_hash(&m->content, hash);
    hex_text(str_of(hash, sizeof hash), text);
    if (m->sha256[0] && strcmp(text, m->sha256) != 0)
        return err_set(err, ERR_INTERNAL, "the stored message %s is damaged: it has another hash than its row", m->id);
    memcpy(m->sha256, text, sizeof m->sha256);
    m->has_content = true;
    return true;
}

bool mail_held_get(struct mail *mail, const char *inbox_id, struct str message_id, const struct mail_approver *approver,
                   struct arena *arena, struct mail_message *out, struct err *err)
{
    auto_seal_key struct seal_key key = { 0 };
    struct held held;

    if (!held_get(mail, inbox_id, message_id, arena, &held, err))
        return false;
    if (!mail_message_held(&held.message))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    if (!seal_open(&approver->public_key, &approver->private_key, held.sealed, &key, err) ||
        !held_open(&held, &key, arena, err))
        return false;
    *out = held.message;
    return true;
}

/* ---- deciding ---- */

struct decision {
    struct str message_id, approver, hash, mac, for_server, reason_cipher, reason_sha256, token_hash;
    bool approve;
    uint32_t scopes, undo_s;
    enum mail_mode mode;
    int64_t now_us;
};

static bool note_decision(struct inbox *inbox, const struct decision *d, struct err *err)
{
    return sql_exec(inbox->sql,
                    "UPDATE messages SET decided_us = $1, decided_by = $2, reason_cipher = $3, approval_mac = $4 "
                    "WHERE id = $5",
                    SQL_ARGS(sql_int(d->now_us), sql_text(d->approver),
                             d->reason_cipher.len ? sql_blob(d->reason_cipher) : (struct sql_value){ .type = SQL_NULL },
                             d->approve ? sql_blob(d->mac) : (struct sql_value){ .type = SQL_NULL },
                             sql_text(d->message_id)),
                    err);
}

static bool decide_outgoing(struct inbox *inbox, const struct decision *d, struct str detail, struct arena *arena,
                            struct err *err)
{
    struct outgoing_change change = {
        .event = d->approve ? GATE_APPROVE : GATE_REJECT,
        .input = { .now_us = d->now_us,
                   .mode = d->mode,
                   .scopes = d->scopes,
                   .approval_us = LIMIT_MAIL_APPROVAL_S * SECOND_US,
                   .undo_s = d->undo_s },
        .actor = d->approver,
        .detail = detail,
        .for_server = d->for_server,
    };
    struct outgoing m;
    bool changed;

    if (!outgoing_load(inbox, d->message_id, arena, &m, err))
        return false;
    change.input.is_composer = mail_same_party(d->approver, m.composer);
    memcpy(change.input.hash, d->hash.at, GATE_HASH_BYTES);
    return outgoing_step(inbox, &m, &change, arena, &changed, err) && note_decision(inbox, d, err);
}

/* Mail that has come in and is held (gated_all): the agent sees it, or never does. The gate knows nothing of it. */
static bool decide_inbound(struct inbox *inbox, const struct decision *d, struct str detail, struct err *err)
{
    if (!mail_may_decide(d->scopes, false))
        return err_set(err, ERR_DENIED, "this key cannot decide about messages: it needs the scope oversight");
    if (!sql_exec(inbox->sql, "UPDATE messages SET in_status = $1 WHERE id = $2 AND direction = 0 AND in_status = $3",
                  SQL_ARGS(sql_int(d->approve ? MAIL_IN_UNREAD : MAIL_IN_REJECTED), sql_text(d->message_id),
                           sql_int(MAIL_IN_HELD)),
                  err))
        return false;
    if (sql_changed(inbox->sql) != 1)
        return err_set(err, ERR_CONFLICT, "the message is not held any more: it was decided");
    char id[MAIL_MESSAGE_ID_BYTES];
    if (d->message_id.len >= sizeof id)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    memcpy(id, d->message_id.at, d->message_id.len);
    id[d->message_id.len] = '\0';
    return inbox_sealed_remove(inbox, id, "approver", err) && links_spend(inbox, id, err) &&
           note_decision(inbox, d, err) &&
           inbox_count(inbox, d->approve ? "approved" : "rejected", 1, d->now_us, err) &&
           audit_append(inbox, d->approve ? "message.approve_inbound" : "message.reject_inbound", d->message_id,
                        d->approver, detail, d->now_us, err);
}

/* A link decides once, in its time, about its own message. */
static bool check_link(struct inbox *inbox, const struct decision *d, struct arena *arena, struct err *err)
{
    struct link_row link;

    if (!d->token_hash.len)
        return true;
    if (!link_load(inbox, d->token_hash, arena, &link, err))
        return false;
    if (link.kind != MAIL_LINK_APPROVE || !str_eq(link.message_id, d->message_id))
        return err_set(err, ERR_NOT_FOUND, "there is no such link");
    if (link.is_spent)
        return err_set(err, ERR_CONFLICT, "the message is not held any more: it was decided");
    return d->now_us < link.expires_us || err_set(err, ERR_CONFLICT, "the link has expired");
}

static bool decide(struct inbox *inbox, const struct decision *d, struct arena *arena, struct mail_message *out,
                   struct err *err)
{
    struct str inner =
        d->reason_sha256.len ? arena_format(arena, "\"reason_sha256\":\"%.*s\"", STR_ARG(d->reason_sha256)) : STR("");
    struct str by = d->token_hash.len ? STR("\"by\":\"link\"") : STR("\"by\":\"key\"");
    struct mail_message message;

    if (!inbox_message_load(inbox, d->message_id, arena, &message, err) || !check_link(inbox, d, arena, err))
        return false;
    struct str members = arena_format(arena, "%.*s%s%.*s", STR_ARG(by), inner.len ? "," : "", STR_ARG(inner));
    bool fine = message.direction == MAIL_OUTBOUND
                    ? decide_outgoing(inbox, d, arena_format(arena, ",%.*s", STR_ARG(members)), arena, err)
                    : decide_inbound(inbox, d, arena_format(arena, "{%.*s}", STR_ARG(members)), err);
    return fine && inbox_message_load(inbox, d->message_id, arena, out, err);
}

static bool run_decide(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct mail_message message;
    struct decision d;

    d.message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    d.approve = unpack_bool(in);
    d.approver = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    d.scopes = unpack_u32(in);
    d.hash = unpack_str(in, GATE_HASH_BYTES);
    d.mac = unpack_str(in, GATE_HASH_BYTES);
    d.for_server = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    d.reason_cipher = unpack_str(in, LIMIT_MAIL_REASON_BYTES + SEAL_EXTRA_BYTES);
    d.reason_sha256 = unpack_str(in, MAIL_HASH_TEXT_BYTES - 1);
    d.token_hash = unpack_str(in, 64);
    d.mode = unpack_mode(in);
    d.undo_s = unpack_u32(in);
    d.now_us = unpack_i64(in);
    if (d.hash.len != GATE_HASH_BYTES)
        in->failed = true;
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = decide(inbox, &d, arena, &message, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    mail_message_pack(out, &message, 0);
    return true;
}

/* What ties an approval to this server: nobody else can make it, and the dispatcher asks for it. */
static void approval_mac(const struct mail *mail, const char *inbox_id, const char *message_id,
                         const unsigned char hash[GATE_HASH_BYTES], struct str approver, unsigned char out[32])
{
    const struct seal_key *secret = &mail_config_of(mail)->server_secret;
    auto_buf struct buf bound = buf_make(NULL, 1024);
    auto_seal_key struct seal_key key;
    char text[65];
    size_t len;

    seal_derive(str_of(secret->bytes, sizeof secret->bytes), "approval", &key);
    pack_str(&bound, str_from(inbox_id));
    pack_str(&bound, str_from(message_id));
    pack_str(&bound, str_of(hash, GATE_HASH_BYTES));
    pack_str(&bound, approver);
    seal_hash(&key, buf_str(&bound), text);
    (void)!hex_bytes(str_from(text), out, 32, &len); /* of our own text */
}

bool mail_approval_valid(const struct mail *mail, const struct mail_release *release)
{
    unsigned char mac[32];

    if (!release->is_approved)
        return true;
    approval_mac(mail, release->inbox_id, release->message_id, release->hash, release->approver, mac);
    return sodium_memcmp(mac, release->approval_mac, sizeof mac) == 0;
}

static struct str seal_reason(const struct mail_decision *decision, const struct seal_key *content_key,
                              struct arena *arena)
{
    char room[MAIL_ABOUT_BYTES];

    if (!content_key || !decision->reason.len)
        return STR("");
    return seal_encrypt(content_key, decision->reason, mail_about(str_from(decision->message_id), "reason", room),
                        arena);
}

bool held_decide(struct mail *mail, const struct mail_decision *decision, struct held *held,
                 const struct seal_key *content_key, struct str token_hash, struct arena *arena,
                 struct mail_message *out, struct err *err)
{
    const struct mail_approver *approver = decision->approver;
    unsigned char hash[GATE_HASH_BYTES] = { 0 }, mac[32] = { 0 }, sealed[SEAL_SEALED_KEY_BYTES];
    unsigned char reason_hash[crypto_hash_sha256_BYTES];
    char reason_sha256[MAIL_HASH_TEXT_BYTES] = "";
    struct buf request = mail_request(arena);
    struct mail_content content = held->message.content;
    struct mail_message decided;
    struct unpack reply;
    size_t len;

    if (decision->reason.len > LIMIT_MAIL_REASON_BYTES)
        return err_set(err, ERR_LIMIT, "the reason is too long: at most %d bytes", LIMIT_MAIL_REASON_BYTES);
    if (approver->id.len > LIMIT_MAIL_ACTOR_BYTES)
        return err_set(err, ERR_INVALID, "the approver's name is too long");
    struct str sha256 = str_from(held->message.sha256);
    if (decision->sha256.len && !str_eq_nocase(decision->sha256, sha256))
        return err_set(err, ERR_CONFLICT, "the message is not the one that was shown: look at it again");
    if (sha256.len && (!hex_bytes(sha256, hash, sizeof hash, &len) || len != sizeof hash))
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: a message's hash");
    approval_mac(mail, decision->inbox_id, decision->message_id, hash, approver->id, mac);
    if (content_key)
        seal_to(&mail_config_of(mail)->server_public, content_key, sealed);
    if (decision->reason.len) {
        crypto_hash_sha256(reason_hash, (const unsigned char *)decision->reason.at, decision->reason.len);
        hex_text(str_of(reason_hash, sizeof reason_hash), reason_sha256);
    }

    pack_str(&request, str_from(decision->message_id));
    pack_bool(&request, decision->approve);
    pack_str(&request, approver->id);
    pack_u32(&request, approver->scopes);
    pack_str(&request, str_of(hash, sizeof hash));
    pack_str(&request, str_of(mac, sizeof mac));
    pack_str(&request, content_key ? str_of(sealed, sizeof sealed) : STR(""));
    pack_str(&request, seal_reason(decision, content_key, arena));
    pack_str(&request, str_from(reason_sha256));
    pack_str(&request, token_hash);
    pack_u8(&request, (uint8_t)decision->mode);
    pack_u32(&request, decision->undo_s);
    pack_i64(&request, decision->now_us);
    if (!mail_call(mail, decision->inbox_id, SEND_DECIDE, &request, arena, &reply, err))
        return false;
    mail_message_unpack(&reply, decision->inbox_id, arena, &decided);
    if (!unpack_done(&reply, err))
        return false;
    decided.has_content = held->message.has_content;
    decided.content = content;
    decided.reason = decision->reason;
    *out = decided;
    return true;
}

bool mail_decide(struct mail *mail, const struct mail_decision *decision, struct arena *arena, struct mail_message *out,
                 struct err *err)
{
    const struct mail_approver *approver = decision->approver;
    auto_seal_key struct seal_key key = { 0 };
    struct held held;

    if (!held_get(mail, decision->inbox_id, str_from(decision->message_id), arena, &held, err))
        return false;
    if (!mail_message_held(&held.message))
        return err_set(err, ERR_CONFLICT, "the message is not held any more: it was decided, cancelled or has expired");
    bool opened = seal_open(&approver->public_key, &approver->private_key, held.sealed, &key, err) &&
                  held_open(&held, &key, arena, err);
    if (!opened && decision->approve)
        return err_wrap(err, "approve message %s", decision->message_id);
    return held_decide(mail, decision, &held, opened ? &key : NULL, STR(""), arena, out, err);
}

/* ---- taking back ---- */

static bool cancel(struct inbox *inbox, struct str message_id, struct str actor, uint32_t scopes, bool own_only,
                   int64_t now_us, struct arena *arena, struct mail_message *out, struct err *err)
{
    struct outgoing m;
    bool changed;

    if (!outgoing_load(inbox, message_id, arena, &m, err))
        return false;
    const struct outgoing_change change = {
        .event = GATE_CANCEL,
        .input = { .now_us = now_us, .scopes = scopes, .is_composer = mail_same_party(actor, m.composer) },
        .actor = actor,
    };
    if (own_only && !change.input.is_composer)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    if (m.gate.state != MAIL_CANCELLED && !outgoing_step(inbox, &m, &change, arena, &changed, err))
        return false;
    return inbox_message_load(inbox, message_id, arena, out, err);
}

static bool run_cancel(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    uint32_t scopes = unpack_u32(in);
    bool own_only = unpack_bool(in);
    int64_t now_us = unpack_i64(in);
    struct mail_message message;

    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = cancel(inbox, message_id, actor, scopes, own_only, now_us, arena, &message, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    mail_message_pack(out, &message, 0);
    return true;
}

static bool call_cancel(struct mail *mail, const char *inbox_id, const char *message_id, struct str actor,
                        uint32_t scopes, bool own_only, struct arena *arena, struct mail_message *out, struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_message message;
    struct unpack reply;

    pack_str(&request, str_from(message_id));
    pack_str(&request, actor);
    pack_u32(&request, scopes);
    pack_bool(&request, own_only);
    pack_i64(&request, clock_wall_us());
    if (!mail_id_check(str_from(message_id), err) ||
        !mail_call(mail, inbox_id, SEND_CANCEL, &request, arena, &reply, err))
        return false;
    mail_message_unpack(&reply, inbox_id, arena, &message);
    if (!unpack_done(&reply, err))
        return false;
    *out = message;
    return true;
}

bool mail_cancel(struct mail *mail, const char *inbox_id, const char *message_id, struct str actor, uint32_t scopes,
                 struct arena *arena, struct mail_message *out, struct err *err)
{
    return call_cancel(mail, inbox_id, message_id, actor, scopes, false, arena, out, err);
}

bool mail_cancel_own(struct mail *mail, const char *inbox_id, const char *message_id, struct str actor, uint32_t scopes,
                     struct arena *arena, struct mail_message *out, struct err *err)
{
    return call_cancel(mail, inbox_id, message_id, actor, scopes, true, arena, out, err);
}

/* ---- changing what is scheduled ---- */

/*
 * Another time, the same bytes. An approver has seen the time too, so that it does not change after an approval.
 * *out_wanted: it would be held, and its key for the approvers is missing: nothing is changed.
 */
static bool reschedule(struct inbox *inbox, struct str message_id, const struct outgoing_change *change,
                       struct arena *arena, struct mail_message *out, bool *out_wanted, struct err *err)
{
    struct gate_message after;
    struct outgoing m;
    bool changed;

    if (!outgoing_load(inbox, message_id, arena, &m, err) || !outgoing_try(inbox, &m, change, &after, err))
        return false;
    if (m.gate.approval.is_there)
        return err_set(err, ERR_CONFLICT, "the message is approved: cancel it and send it again");
    *out_wanted = after.state == MAIL_HELD && !change->for_approver.len;
    return (*out_wanted || outgoing_step(inbox, &m, change, arena, &changed, err)) &&
           inbox_message_load(inbox, message_id, arena, out, err);
}

static bool run_reschedule(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                           struct err *err)
{
    struct outgoing_change change = { .event = GATE_RESCHEDULE };
    struct mail_message message;
    struct str sealed = STR("");
    bool wanted = false;

    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    change.actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    change.input.mode = unpack_mode(in);
    change.input.send_at_us = unpack_i64(in);
    change.input.now_us = unpack_i64(in);
    change.for_approver = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = reschedule(inbox, message_id, &change, arena, &message, &wanted, err) &&
                (!wanted || inbox_sealed_get(inbox, message_id, "server", arena, &sealed, err));
    bool committed = sql_end(inbox->sql, fine && !wanted, err);
    if (!fine || (!wanted && !committed))
        return false;
    pack_bool(out, wanted);
    pack_str(out, sealed);
    mail_message_pack(out, &message, 0);
    return true;
}

static bool call_reschedule(struct mail *mail, const struct mail_accept *want, const char *message_id,
                            struct str for_approver, struct arena *arena, struct mail_message *out, bool *out_wanted,
                            struct str *out_sealed, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    pack_str(&request, str_from(message_id));
    pack_str(&request, want->composer);
    pack_u8(&request, (uint8_t)want->mode);
    pack_i64(&request, want->send_at_us);
    pack_i64(&request, want->now_us);
    pack_str(&request, for_approver);
    if (!mail_call(mail, want->inbox_id, SEND_RESCHEDULE, &request, arena, &reply, err))
        return false;
    *out_wanted = unpack_bool(&reply);
    *out_sealed = unpack_str(&reply, SEAL_SEALED_KEY_BYTES);
    mail_message_unpack(&reply, want->inbox_id, arena, out);
    return unpack_done(&reply, err);
}

static bool reschedule_at(struct mail *mail, const struct mail_accept *want, const char *message_id,
                          struct arena *arena, struct mail_message *out, struct err *err)
{
    const struct mail_config *config = mail_config_of(mail);
    unsigned char resealed[SEAL_SEALED_KEY_BYTES];
    auto_seal_key struct seal_key key = { 0 };
    struct str sealed;
    bool wanted;

    if (!call_reschedule(mail, want, message_id, STR(""), arena, out, &wanted, &sealed, err))
        return false;
    if (!wanted)
        return true;
    if (!seal_open(&config->server_public, &config->server_private, sealed, &key, err))
        return err_set(err, ERR_INTERNAL, "message %s cannot be opened any more: cancel it", message_id);
    seal_to(want->approver_public, &key, resealed);
    if (!call_reschedule(mail, want, message_id, str_of(resealed, sizeof resealed), arena, out, &wanted, &sealed, err))
        return false;
    return !wanted || err_set(err, ERR_INTERNAL, "message %s asks for its key again", message_id);
}

/* The old bytes go, with their keys, their recipients and an approval. */
static bool replace_content(struct inbox *inbox, const struct arrival *a, struct err *err)
{
    return sql_exec(inbox->sql,
                    "UPDATE messages SET composer = $1, schedule_first = $2, hold_us = $3, has_attachments = $4, "
                    "size = $5, head_cipher = $6, body_cipher = $7, reason_cipher = NULL, tags_cipher = NULL, "
                    "approval_mac = NULL, decided_us = 0, decided_by = '' WHERE id = $8",
                    SQL_ARGS(sql_text(a->composer), sql_int(a->schedule_first), sql_int(a->hold_us),
                             sql_int(a->has_attachments), sql_int((int64_t)(a->head.len + a->body.len)),
                             sql_blob(a->head), sql_blob(a->body), sql_text(str_from(a->id))),
                    err) &&
           sql_exec(inbox->sql, "DELETE FROM recipients WHERE message_id = $1", SQL_ARGS(sql_text(str_from(a->id))),
                    err) &&
           store_recipients(inbox, a, err) && inbox_sealed_put(inbox, a->id, "inbox", a->for_inbox, err) &&
           sql_exec(inbox->sql, "INSERT INTO sends (at_us) VALUES ($1)", SQL_ARGS(sql_int(a->now_us)), err);
}

static bool edit(struct inbox *inbox, struct arrival *a, struct arena *arena, struct mail_message *out,
                 struct refusal *out_refusal, struct err *err)
{
    struct outgoing_change change = {
        .event = GATE_EDIT,
        .input = { .now_us = a->now_us, .mode = a->mode, .send_at_us = a->send_at_us },
        .actor = a->composer,
    };
    char thread_id[MAIL_MESSAGE_ID_BYTES];
    struct outgoing m;
    bool changed;

    memcpy(change.input.hash, a->hash.at, GATE_HASH_BYTES);
    if (!outgoing_load(inbox, str_from(a->id), arena, &m, err) ||
        !inbox_message_load(inbox, str_from(a->id), arena, out, err) ||
        !check_limits(inbox, a, a->head.len + a->body.len, arena, out_refusal, err))
        return false;
    if (out_refusal->is_there)
        return true;
    a->thread.thread_id = str_from(out->thread_id);
    /* To MAIL_SCAN, which takes the keys of the old content away; then the new content is judged. */
    return outgoing_step(inbox, &m, &change, arena, &changed, err) && replace_content(inbox, a, err) &&
           inbox_thread_join(inbox, a->id, &a->thread, thread_id, err) && judge(inbox, a, arena, err) &&
           inbox_message_load(inbox, str_from(a->id), arena, out, err);
}

static bool run_edit(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct arrival a;
    struct mail_message message;
    struct refusal refusal = { 0 };

    if (!unpack_arrival(in, arena, &a, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = edit(inbox, &a, arena, &message, &refusal, err);
    if (fine && refusal.is_there)
        fine = err_set(err, ERR_LIMIT, "%.*s", STR_ARG(refusal.why));
    if (!sql_end(inbox->sql, fine, err))
        return false;
    mail_message_pack(out, &message, 0);
    return true;
}

bool mail_reschedule(struct mail *mail, const struct mail_accept *want, const char *message_id, struct arena *arena,
                     struct mail_message *out, struct err *err)
{
    struct buf request = mail_request(arena);
    char sha256[MAIL_HASH_TEXT_BYTES];
    struct mail_message message;
    struct unpack reply;

    if (!mail_id_check(str_from(message_id), err))
        return false;
    if (!want->content) {
        if (!reschedule_at(mail, want, message_id, arena, &message, err))
            return false;
        *out = message;
        return true;
    }
    if (!pack_arrival(mail, want, message_id, arena, &request, sha256, NULL, err) ||
        !mail_call(mail, want->inbox_id, SEND_EDIT, &request, arena, &reply, err))
        return false;
    mail_message_unpack(&reply, want->inbox_id, arena, &message);
    if (!unpack_done(&reply, err))
        return false;
    *out = message;
    return true;
}

const struct inbox_operation inbox_send_operations[] = {
    { SEND_ACCEPT, run_accept }, { SEND_PENDING, run_pending },
    { SEND_HELD, run_held },     { SEND_DECIDE, run_decide },
    { SEND_CANCEL, run_cancel }, { SEND_RESCHEDULE, run_reschedule },
    { SEND_EDIT, run_edit },     { 0, NULL },
};
