/*
 * Settings that the inbox's worker keeps: the allowlist and webhooks; and counts for the bill.
 *
 * Both lists have to be read while no credential of the inbox is in use: the gate matches recipients when a scheduled
 * message comes to leave, and events are told to webhooks. So they are under the inbox's own key that front derives from
 * the server's secret: the file alone does not show them, the running server does.
 *
 * An entry of the allowlist lets mail leave without a person, and the worker reads what strangers have written. So front
 * proves each entry with a key that no worker has, and the dispatcher believes only what is proven.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "mail/inside.h"

enum {
    ALLOW_ADD = INBOX_SETTINGS_FIRST,
    ALLOW_REMOVE,
    ALLOW_LIST,
    WEBHOOK_ADD,
    WEBHOOK_LIST,
    WEBHOOK_REMOVE,
    WEBHOOK_NOTE,
    USAGE,
};

#define NO_ENTRY "there is no such entry"
#define DAY_US INT64_C(86400000000)

/* Calls that send a few fields and hear only whether it worked. */
static bool call_plain(struct mail *mail, const char *inbox_id, uint16_t op, struct buf *request, struct arena *arena,
                       struct err *err)
{
    struct unpack reply;

    return mail_call(mail, inbox_id, op, request, arena, &reply, err) && unpack_done(&reply, err);
}

static bool call_remove(struct mail *mail, const char *inbox_id, uint16_t op, struct str id, struct str actor,
                        struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct arena arena;

    if (!mail_message_id_handle(id, handle))
        return err_set(err, ERR_NOT_FOUND, NO_ENTRY);
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, id);
    pack_str(&request, actor);
    bool fine = call_plain(mail, inbox_id, op, &request, &arena, err);
    arena_done(&arena);
    return fine;
}

static bool count_rows(struct inbox *inbox, const char *query, uint32_t *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, query, SQL_NO_ARGS, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    *out = (uint32_t)sql_row_int(&rows, 0);
    return true;
}

static void row_id(const struct sql_rows *rows, char out[MAIL_MESSAGE_ID_BYTES])
{
    struct str id = sql_row_text(rows, 0);
    size_t len = MIN(id.len, (size_t)MAIL_MESSAGE_ID_BYTES - 1);

    memcpy(out, id.at, len);
    out[len] = '\0';
}

/* ---- the allowlist ---- */

static void allow_pack(struct buf *out, const struct mail_allow *a)
{
    pack_str(out, str_from(a->id));
    pack_str(out, a->pattern);
    pack_str(out, a->proof);
    pack_i64(out, a->created_us);
}

static void allow_unpack(struct unpack *in, struct mail_allow *out)
{
    unpack_text(in, out->id, sizeof out->id);
    out->pattern = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    out->proof = unpack_str(in, MAIL_HASH_TEXT_BYTES - 1);
    out->created_us = unpack_i64(in);
}

static struct str allow_proof(const struct mail *mail, const char *inbox_id, struct str pattern, struct arena *arena)
{
    const struct seal_key *secret = &mail_config_of(mail)->server_secret;
    auto_seal_key struct seal_key key;
    char hash[65];

    seal_derive(str_of(secret->bytes, sizeof secret->bytes), "allowlist", &key);
    seal_hash(&key, arena_format(arena, "%s:%.*s", inbox_id, STR_ARG(pattern)), hash);
    return arena_copy(arena, str_from(hash));
}

bool mail_allow_add(struct mail *mail, const char *inbox_id, struct str pattern, struct str actor, struct arena *arena,
                    struct mail_allow *out, struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_allow added;
    struct unpack reply;

    if (pattern.len > LIMIT_MAIL_ADDRESS_BYTES || !mail_allow_valid(pattern))
        return err_set(err, ERR_INVALID, "an entry of the allowlist is an address, or *@ and a domain");
    char *lower = arena_text(arena, pattern);
    text_lower(lower, pattern.len);
    pack_str(&request, str_of(lower, pattern.len));
    pack_str(&request, allow_proof(mail, inbox_id, str_of(lower, pattern.len), arena));
    pack_str(&request, actor);
    if (!mail_call(mail, inbox_id, ALLOW_ADD, &request, arena, &reply, err))
        return false;
    allow_unpack(&reply, &added);
    if (!unpack_done(&reply, err))
        return false;
    if (!str_eq(added.proof, allow_proof(mail, inbox_id, added.pattern, arena)))
        return err_set(err, ERR_INTERNAL, "the allowlist of this inbox is damaged: remove the entry, and add it again");
    *out = added;
    return true;
}

bool mail_allow_remove(struct mail *mail, const char *inbox_id, struct str id, struct str actor, struct err *err)
{
    return call_remove(mail, inbox_id, ALLOW_REMOVE, id, actor, err);
}

bool mail_allow_list(struct mail *mail, const char *inbox_id, struct arena *arena, struct mail_allow **out,
                     size_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    if (!mail_call(mail, inbox_id, ALLOW_LIST, &request, arena, &reply, err))
        return false;
    uint32_t count = unpack_count(&reply, LIMIT_MAIL_ALLOW);
    struct mail_allow *entries = ARENA_ARRAY(arena, struct mail_allow, count);
    size_t proven = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct mail_allow *a = &entries[proven];
        allow_unpack(&reply, a);
        if (str_eq(a->proof, allow_proof(mail, inbox_id, a->pattern, arena)))
            proven++;
        else
            log_error("inbox %s: entry %s of its allowlist was not made by this server, and does not count", inbox_id,
                      a->id);
    }
    if (!unpack_done(&reply, err))
        return false;
    *out = entries;
    *out_count = proven;
    return true;
}

static bool allow_row(struct inbox *inbox, const struct sql_rows *rows, struct arena *arena, struct mail_allow *out,
                      struct err *err)
{
    char room[MAIL_ABOUT_BYTES];

    row_id(rows, out->id);
    out->created_us = sql_row_int(rows, 2);
    out->proof = arena_copy(arena, sql_row_text(rows, 3));
    return seal_decrypt(&inbox->server_key, sql_row_text(rows, 1), mail_about(str_from(out->id), "allow", room), arena,
                        &out->pattern, err) ||
           err_wrap(err, "allowlist %s", out->id);
}

static bool allow_find(struct inbox *inbox, const char *hash, struct arena *arena, struct mail_allow *out,
                       bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(inbox->sql, "SELECT id, pattern_cipher, created_us, proof FROM allowlist WHERE pattern_hash = $1",
                      SQL_ARGS(sql_text(str_from(hash))), &rows, err) &&
           sql_next(&rows, out_there, err) && (!*out_there || allow_row(inbox, &rows, arena, out, err));
}

static struct str hash_detail(struct arena *arena, const char *hash)
{
    return arena_format(arena, "{\"entry_hash\":\"%s\"}", hash);
}

static bool allow_insert(struct inbox *inbox, struct str pattern, struct str proof, struct str actor,
                         struct arena *arena, struct mail_allow *out, struct err *err)
{
    char hash[65], room[MAIL_ABOUT_BYTES];
    uint32_t count;
    bool there;

    inbox_allow_hash(inbox, pattern, hash);
    if (!allow_find(inbox, hash, arena, out, &there, err) ||
        !count_rows(inbox, "SELECT COUNT(*) FROM allowlist", &count, err))
        return false;
    if (there) /* nothing changes */
        return true;
    if (count >= LIMIT_MAIL_ALLOW)
        return err_set(err, ERR_LIMIT, "an allowlist has at most %d entries: remove one", LIMIT_MAIL_ALLOW);
    char *lower = arena_text(arena, pattern);
    text_lower(lower, pattern.len);
    mail_message_id(inbox->id, out->id);
    out->pattern = str_of(lower, pattern.len);
    out->proof = proof;
    out->created_us = clock_wall_us();
    struct str cipher =
        seal_encrypt(&inbox->server_key, out->pattern, mail_about(str_from(out->id), "allow", room), arena);
    return sql_exec(inbox->sql,
                    "INSERT INTO allowlist (id, pattern_hash, pattern_cipher, proof, created_us) "
                    "VALUES ($1, $2, $3, $4, $5)",
                    SQL_ARGS(sql_text(str_from(out->id)), sql_text(str_from(hash)), sql_blob(cipher), sql_text(proof),
                             sql_int(out->created_us)),
                    err) &&
           audit_append(inbox, "allow.add", str_from(out->id), actor, hash_detail(arena, hash), out->created_us, err);
}

static bool run_allow_add(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct str pattern = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    struct str proof = unpack_str(in, MAIL_HASH_TEXT_BYTES - 1);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    struct mail_allow added = { 0 };

    if (!unpack_done(in, err))
        return false;
    if (!mail_allow_valid(pattern)) /* what the gate reads must not depend on front's check */
        return err_set(err, ERR_INVALID, "an entry of the allowlist is an address, or *@ and a domain");
    if (!sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = allow_insert(inbox, pattern, proof, actor, arena, &added, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    allow_pack(out, &added);
    return true;
}

static bool run_allow_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                           struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct buf packed = mail_request(arena);
    uint32_t count = 0;
    bool there;

    if (!unpack_done(in, err) ||
        !sql_select(inbox->sql, "SELECT id, pattern_cipher, created_us, proof FROM allowlist ORDER BY id", SQL_NO_ARGS,
                    &rows, err))
        return false;
    for (;; count++) {
        struct mail_allow a = { 0 };
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there || count == LIMIT_MAIL_ALLOW)
            break;
        if (!allow_row(inbox, &rows, arena, &a, err))
            return false;
        allow_pack(&packed, &a);
    }
    pack_u32(out, count);
    buf_add(out, buf_str(&packed));
    return true;
}

/* Removes a row and says so in the audit. `query` has the id as its parameter. */
static bool run_remove(struct inbox *inbox, struct unpack *in, const char *query, const char *action, struct err *err)
{
    struct str id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);

    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = sql_exec(inbox->sql, query, SQL_ARGS(sql_text(id)), err) &&
                (sql_changed(inbox->sql) > 0 || err_set(err, ERR_NOT_FOUND, NO_ENTRY)) &&
                audit_append(inbox, action, id, actor, STR("{}"), clock_wall_us(), err);
    return sql_end(inbox->sql, fine, err);
}

static bool run_allow_remove(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                             struct err *err)
{
    (void)arena;
    (void)out;
    return run_remove(inbox, in, "DELETE FROM allowlist WHERE id = $1", "allow.remove", err);
}

/* ---- webhooks ---- */

/* What is sealed in the file. */
static void webhook_pack(struct buf *out, const struct mail_webhook *w)
{
    pack_str(out, w->url);
    pack_str(out, w->secret);
    pack_bool(out, w->is_lobster);
    pack_u32(out, w->event_count);
    for (uint32_t i = 0; i < w->event_count; i++)
        pack_str(out, w->events[i]);
}

static void webhook_unpack(struct unpack *in, struct arena *arena, struct mail_webhook *out)
{
    out->url = unpack_str(in, LIMIT_MAIL_URL_BYTES);
    out->secret = unpack_str(in, LIMIT_MAIL_NAME_BYTES);
    out->is_lobster = unpack_bool(in);
    uint32_t count = unpack_count(in, LIMIT_MAIL_WEBHOOK_EVENTS);
    out->events = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++)
        out->events[i] = unpack_str(in, LIMIT_MAIL_NAME_BYTES);
    out->event_count = count;
}

/* With the columns: between the processes. */
static void webhook_row_pack(struct buf *out, const struct mail_webhook *w)
{
    pack_str(out, str_from(w->id));
    pack_bool(out, w->is_enabled);
    pack_u32(out, w->failures);
    pack_i64(out, w->created_us);
    webhook_pack(out, w);
}

static void webhook_row_unpack(struct unpack *in, struct arena *arena, struct mail_webhook *out)
{
    *out = (struct mail_webhook){ 0 };
    unpack_text(in, out->id, sizeof out->id);
    out->is_enabled = unpack_bool(in);
    out->failures = unpack_u32(in);
    out->created_us = unpack_i64(in);
    webhook_unpack(in, arena, out);
}

static bool webhook_valid(const struct mail_webhook *w, struct err *err)
{
    if (!w->url.len || w->url.len > LIMIT_MAIL_URL_BYTES)
        return err_set(err, ERR_INVALID, "a webhook needs a URL of at most %d bytes", LIMIT_MAIL_URL_BYTES);
    if (!w->secret.len || w->secret.len > LIMIT_MAIL_NAME_BYTES)
        return err_set(err, ERR_INVALID, "a webhook's secret has 1 to %d bytes", LIMIT_MAIL_NAME_BYTES);
    if (w->event_count > LIMIT_MAIL_WEBHOOK_EVENTS)
        return err_set(err, ERR_INVALID, "a webhook names at most %d events", LIMIT_MAIL_WEBHOOK_EVENTS);
    for (uint32_t i = 0; i < w->event_count; i++)
        if (!w->events[i].len || w->events[i].len > LIMIT_MAIL_NAME_BYTES)
            return err_set(err, ERR_INVALID, "an event's name has 1 to %d bytes", LIMIT_MAIL_NAME_BYTES);
    return true;
}

bool mail_webhook_add(struct mail *mail, const char *inbox_id, const struct mail_webhook *webhook, struct str actor,
                      struct arena *arena, struct mail_webhook *out, struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_webhook added;
    struct unpack reply;

    if (!webhook_valid(webhook, err))
        return false;
    pack_str(&request, actor);
    webhook_pack(&request, webhook);
    if (!mail_call(mail, inbox_id, WEBHOOK_ADD, &request, arena, &reply, err))
        return false;
    webhook_row_unpack(&reply, arena, &added);
    if (!unpack_done(&reply, err))
        return false;
    *out = added;
    return true;
}

bool mail_webhook_list(struct mail *mail, const char *inbox_id, struct arena *arena, struct mail_webhook **out,
                       size_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    if (!mail_call(mail, inbox_id, WEBHOOK_LIST, &request, arena, &reply, err))
        return false;
    uint32_t count = unpack_count(&reply, LIMIT_MAIL_WEBHOOKS);
    struct mail_webhook *webhooks = ARENA_ARRAY(arena, struct mail_webhook, count);
    for (uint32_t i = 0; i < count; i++)
        webhook_row_unpack(&reply, arena, &webhooks[i]);
    if (!unpack_done(&reply, err))
        return false;
    *out = webhooks;
    *out_count = count;
    return true;
}

bool mail_webhook_remove(struct mail *mail, const char *inbox_id, struct str id, struct str actor, struct err *err)
{
    return call_remove(mail, inbox_id, WEBHOOK_REMOVE, id, actor, err);
}

bool mail_webhook_note(struct mail *mail, const char *inbox_id, struct str id, int enable, int failed, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct arena arena;

    if (!mail_message_id_handle(id, handle))
        return err_set(err, ERR_NOT_FOUND, NO_ENTRY);
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, id);
    pack_i64(&request, enable);
    pack_i64(&request, failed);
    bool fine = call_plain(mail, inbox_id, WEBHOOK_NOTE, &request, &arena, err);
    arena_done(&arena);
    return fine;
}

static bool webhook_insert(struct inbox *inbox, struct mail_webhook *w, struct str actor, struct arena *arena,
                           struct err *err)
{
    struct buf packed = mail_request(arena);
    char room[MAIL_ABOUT_BYTES];
    uint32_t count;

    if (!count_rows(inbox, "SELECT COUNT(*) FROM webhooks", &count, err))
        return false;
    if (count >= LIMIT_MAIL_WEBHOOKS)
        return err_set(err, ERR_LIMIT, "an inbox has at most %d webhooks: remove one", LIMIT_MAIL_WEBHOOKS);
    mail_message_id(inbox->id, w->id);
    w->created_us = clock_wall_us();
    w->is_enabled = true;
    webhook_pack(&packed, w);
    struct str cipher =
        seal_encrypt(&inbox->server_key, buf_str(&packed), mail_about(str_from(w->id), "webhook", room), arena);
    return sql_exec(inbox->sql,
                    "INSERT INTO webhooks (id, cipher, is_enabled, failures, created_us) VALUES ($1, $2, 1, 0, $3)",
                    SQL_ARGS(sql_text(str_from(w->id)), sql_blob(cipher), sql_int(w->created_us)), err) &&
           audit_append(inbox, "webhook.add", str_from(w->id), actor, STR("{}"), w->created_us, err);
}

static bool run_webhook_add(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                            struct err *err)
{
    struct str actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    struct mail_webhook w = { 0 };

    webhook_unpack(in, arena, &w);
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = webhook_insert(inbox, &w, actor, arena, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    webhook_row_pack(out, &w);
    return true;
}

static bool webhook_row(struct inbox *inbox, const struct sql_rows *rows, struct arena *arena, struct mail_webhook *out,
                        struct err *err)
{
    char room[MAIL_ABOUT_BYTES];
    struct str packed;

    row_id(rows, out->id);
    out->is_enabled = sql_row_int(rows, 2);
    out->failures = (uint32_t)sql_row_int(rows, 3);
    out->created_us = sql_row_int(rows, 4);
    if (!seal_decrypt(&inbox->server_key, sql_row_text(rows, 1), mail_about(str_from(out->id), "webhook", room), arena,
                      &packed, err))
        return err_wrap(err, "webhook %s", out->id);
    struct unpack in = unpack_from(packed);
    webhook_unpack(&in, arena, out);
    return unpack_done(&in, err) || err_set(err, ERR_INTERNAL, "the stored webhook %s is damaged", out->id);
}

static bool run_webhook_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                             struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct buf packed = mail_request(arena);
    uint32_t count = 0;
    bool there;

    if (!unpack_done(in, err) ||
        !sql_select(inbox->sql, "SELECT id, cipher, is_enabled, failures, created_us FROM webhooks ORDER BY id",
                    SQL_NO_ARGS, &rows, err))
        return false;
    for (;; count++) {
        struct mail_webhook w = { 0 };
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there || count == LIMIT_MAIL_WEBHOOKS)
            break;
        if (!webhook_row(inbox, &rows, arena, &w, err))
            return false;
        webhook_row_pack(&packed, &w);
    }
    pack_u32(out, count);
    buf_add(out, buf_str(&packed));
    return true;
}

static bool run_webhook_remove(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                               struct err *err)
{
    (void)arena;
    (void)out;
    return run_remove(inbox, in, "DELETE FROM webhooks WHERE id = $1", "webhook.remove", err);
}

static bool webhook_state(struct inbox *inbox, struct str id, bool *out_enabled, uint32_t *out_failures,
                          struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT is_enabled, failures FROM webhooks WHERE id = $1", SQL_ARGS(sql_text(id)),
                    &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, NO_ENTRY);
    *out_enabled = sql_row_int(&rows, 0);
    *out_failures = (uint32_t)sql_row_int(&rows, 1);
    return true;
}

static bool note(struct inbox *inbox, struct str id, int64_t enable, int64_t failed, struct err *err)
{
    bool was_enabled, is_enabled;
    uint32_t failures;

    if (!webhook_state(inbox, id, &was_enabled, &failures, err))
        return false;
    is_enabled = enable < 0 ? was_enabled : enable > 0;
    if (failed == 0 || enable > 0)
        failures = 0;
    if (failed > 0 && ++failures >= LIMIT_MAIL_WEBHOOK_FAILURES)
        is_enabled = false;
    if (!sql_exec(inbox->sql, "UPDATE webhooks SET is_enabled = $1, failures = $2 WHERE id = $3",
                  SQL_ARGS(sql_int(is_enabled), sql_int(failures), sql_text(id)), err))
        return false;
    return is_enabled == was_enabled || audit_append(inbox, is_enabled ? "webhook.enable" : "webhook.disable", id,
                                                     STR("server"), STR("{}"), clock_wall_us(), err);
}

static bool run_webhook_note(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                             struct err *err)
{
    struct str id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    int64_t enable = unpack_i64(in), failed = unpack_i64(in);

    (void)arena;
    (void)out;
    /* Lazy: a count of failures that a power cut loses does no harm. */
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_LAZY, err))
        return false;
    bool fine = note(inbox, id, enable, failed, err);
    return sql_end(inbox->sql, fine, err);
}

/* ---- usage ---- */

bool mail_usage(struct mail *mail, const char *inbox_id, int64_t from_us, int64_t to_us, struct mail_usage *out,
                struct err *err)
{
    struct mail_usage u = { 0 };
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_i64(&request, from_us);
    pack_i64(&request, to_us);
    pack_i64(&request, clock_wall_us());
    bool fine = mail_call(mail, inbox_id, USAGE, &request, &arena, &reply, err);
    if (fine) {
        u.sent = unpack_u64(&reply);
        u.received = unpack_u64(&reply);
        u.held = unpack_u64(&reply);
        u.approved = unpack_u64(&reply);
        u.rejected = unpack_u64(&reply);
        u.storage_bytes = unpack_u64(&reply);
        u.pending = unpack_u32(&reply);
        u.messages = unpack_u32(&reply);
        u.sent_today = unpack_u32(&reply);
        fine = unpack_done(&reply, err);
    }
    arena_done(&arena);
    if (fine)
        *out = u;
    return fine;
}

/* Whole days (UTC), the first and the last one included. */
static bool counted(struct inbox *inbox, const char *name, int64_t from_us, int64_t to_us, uint64_t *out,
                    struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(
            inbox->sql, "SELECT COALESCE(SUM(value), 0) FROM counters WHERE name = $1 AND day BETWEEN $2 AND $3",
            SQL_ARGS(sql_text(str_from(name)), sql_int(from_us / DAY_US), sql_int(to_us / DAY_US)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out = (uint64_t)sql_row_int(&rows, 0);
    return true;
}

static bool run_usage(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    static const char *const names[] = { "sent", "received", "held", "approved", "rejected" };
    int64_t from_us = unpack_i64(in), to_us = unpack_i64(in), now_us = unpack_i64(in);
    uint32_t held_out, held_in, messages_out, messages_in;
    uint64_t storage, sent_today;

    (void)arena;
    if (!unpack_done(in, err))
        return false;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        uint64_t value;
        if (!counted(inbox, names[i], from_us, to_us, &value, err))
            return false;
        pack_u64(out, value);
    }
    /* Each is answered from an index alone. MAIL_HELD is 1, MAIL_IN_HELD 0, rejected and deleted 6 and 7. */
    if (!inbox_storage(inbox, &storage, err) || !counted(inbox, "sent", now_us, now_us, &sent_today, err) ||
        !count_rows(inbox, "SELECT COUNT(*) FROM messages WHERE direction = 1 AND state = 1", &held_out, err) ||
        !count_rows(inbox, "SELECT COUNT(*) FROM messages WHERE direction = 0 AND in_status = 0", &held_in, err) ||
        !count_rows(inbox, "SELECT COUNT(*) FROM messages WHERE direction = 1", &messages_out, err) ||
        !count_rows(inbox, "SELECT COUNT(*) FROM messages WHERE direction = 0 AND in_status < 6", &messages_in, err))
        return false;
    pack_u64(out, storage);
    pack_u32(out, held_out + held_in);
    pack_u32(out, messages_out + messages_in);
    pack_u32(out, (uint32_t)sent_today);
    return true;
}

const struct inbox_operation inbox_settings_operations[] = {
    { ALLOW_ADD, run_allow_add },
    { ALLOW_REMOVE, run_allow_remove },
    { ALLOW_LIST, run_allow_list },
    { WEBHOOK_ADD, run_webhook_add },
    { WEBHOOK_LIST, run_webhook_list },
    { WEBHOOK_REMOVE, run_webhook_remove },
    { WEBHOOK_NOTE, run_webhook_note },
    { USAGE, run_usage },
    { 0 },
};
