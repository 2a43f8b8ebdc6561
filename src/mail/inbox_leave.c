/*
 * A message leaves: timers and a lowered mode move what waits, the dispatcher claims what may go, and settles it.
 *
 * Claiming. The gate spends the approval (QUEUED → SENDING), and in the same transaction the message gets its release: one
 * row, one id, for ever. Recipients count a release once, so delivering it again changes nothing. If front ends before it has
 * settled, the next front finds the message in SENDING with a release of another process, and repeats it.
 *
 * Held again. A message that goes back to HELD needs its content key sealed to the approvers, and the worker cannot open
 * the one it has, which is the server's. So the worker leaves the message as it is and names it as wanted; front seals the
 * key anew and asks again with it.
 */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "mail/inbox_state.h"

enum { LEAVE_TICK = INBOX_LEAVE_FIRST, LEAVE_PULL_BACK, LEAVE_CLAIM, LEAVE_SETTLE, LEAVE_WITHDRAW };
enum { CALLS_MOST = 1000 }; /* of one operation to a worker, each with LIMIT_MAIL_ROUND messages: more is a mistake */

#define SECOND_US INT64_C(1000000)
#define RELEASE_US (LIMIT_MAIL_RELEASE_S * SECOND_US)

/* ---- rounds: some messages at a time ---- */

/* A content key of a message that is to be held: sealed to the server on its way to front, to the approvers on its way back. */
struct sealed_for {
    struct str message_id, sealed;
};

struct round {
    enum gate_event event;
    enum mail_mode mode;
    int64_t now_us;
    struct str actor, after_id, front, claim;
    struct sealed_for given[LIMIT_MAIL_ROUND], wanted[LIMIT_MAIL_ROUND];
    uint32_t given_count, wanted_count, changed;
    struct str last_id; /* of a full round; empty: there are no more */
};

static void pack_sealed(struct buf *out, const struct sealed_for *list, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_str(out, list[i].message_id);
        pack_str(out, list[i].sealed);
    }
}

static uint32_t unpack_sealed(struct unpack *in, struct sealed_for *list)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_ROUND);

    for (uint32_t i = 0; i < count; i++) {
        list[i].message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
        list[i].sealed = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    }
    return in->failed ? 0 : count;
}

static bool unpack_round(struct unpack *in, enum gate_event event, struct round *out, struct err *err)
{
    uint8_t mode = unpack_u8(in);

    out->event = event;
    out->mode = (enum mail_mode)mode;
    out->now_us = unpack_i64(in);
    out->actor = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    out->front = unpack_str(in, MAIL_INBOX_ID_BYTES);
    out->claim = unpack_str(in, MAIL_INBOX_ID_BYTES);
    out->after_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    out->given_count = unpack_sealed(in, out->given);
    if (mode >= MAIL_MODE_COUNT)
        in->failed = true;
    return unpack_done(in, err);
}

static void pack_round_reply(struct buf *out, const struct round *round)
{
    pack_u32(out, round->changed);
    pack_str(out, round->last_id);
    pack_sealed(out, round->wanted, round->wanted_count);
}

static const struct sealed_for *given_for(const struct round *round, const char *message_id)
{
    for (uint32_t i = 0; i < round->given_count; i++)
        if (str_eq(round->given[i].message_id, str_from(message_id)))
            return &round->given[i];
    return NULL;
}

/* Ids of a query, so that it is closed before they are changed. */
static bool list_ids(struct inbox *inbox, const char *query, const struct sql_value *args, size_t count,
                     struct arena *arena, struct str out[LIMIT_MAIL_ROUND], uint32_t *out_count, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there = true;

    if (!sql_select(inbox->sql, query, args, count, &rows, err))
        return false;
    for (*out_count = 0; *out_count < LIMIT_MAIL_ROUND;) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            return true;
        out[(*out_count)++] = arena_copy(arena, sql_row_text(&rows, 0));
    }
    return true;
}

/*
 * One message of a round. What the gate refuses is left as it is: only a damaged row can be refused here, and it must not
 * keep the others from moving.
 */
static bool step_one(struct inbox *inbox, struct round *round, struct str id, struct arena *arena, struct outgoing *out,
                     bool *out_changed, struct err *err)
{
    struct outgoing_change change = {
        .event = round->event,
        .input = { .now_us = round->now_us, .mode = round->mode },
        .actor = round->actor,
    };
    struct gate_message after;
    struct err why;

    *out_changed = false;
    if (!outgoing_load(inbox, id, arena, out, &why) || !outgoing_try(inbox, out, &change, &after, &why)) {
        log_warn("inbox %s: message %.*s stays as it is: %s", inbox->id, STR_ARG(id), err_text(&why));
        return true;
    }
    if (after.state == MAIL_HELD && out->gate.state != MAIL_HELD) {
        const struct sealed_for *given = given_for(round, out->id);
        if (!given) {
            struct sealed_for *wanted = &round->wanted[round->wanted_count++];
            wanted->message_id = id;
            return inbox_sealed_get(inbox, id, "server", arena, &wanted->sealed, err);
        }
        change.for_approver = given->sealed;
    }
    if (!outgoing_step(inbox, out, &change, arena, out_changed, err))
        return false;
    round->changed += *out_changed;
    return true;
}

static bool step_all(struct inbox *inbox, struct round *round, const struct str *ids, uint32_t count,
                     struct arena *arena, struct err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct outgoing message;
        bool changed;
        if (!step_one(inbox, round, ids[i], arena, &message, &changed, err))
            return false;
    }
    if (count == LIMIT_MAIL_ROUND)
        round->last_id = ids[count - 1];
    return true;
}

/* ---- rounds: front ---- */

/* This process, so that the next one knows what this one has left in MAIL_SENDING. */
static char front_id[MAIL_INBOX_ID_BYTES];
static pthread_once_t front_id_once = PTHREAD_ONCE_INIT;

static void make_front_id(void)
{
    mail_ulid(front_id);
}

/* From the server's key to the approvers'. What cannot be opened is held all the same: then it can only be rejected. */
static void reseal(const struct mail *mail, const char *inbox_id, const struct seal_key *approver_public,
                   const struct sealed_for *wanted, struct arena *arena, struct sealed_for *out)
{
    const struct mail_config *config = mail_config_of(mail);
    auto_seal_key struct seal_key key = { 0 };
    struct err err;

    out->message_id = wanted->message_id;
    out->sealed = STR("");
    if (!seal_open(&config->server_public, &config->server_private, wanted->sealed, &key, &err)) {
        log_warn("inbox %s: message %.*s is held and no approver can read it: %s", inbox_id,
                 STR_ARG(wanted->message_id), err_text(&err));
        return;
    }
    unsigned char *sealed = arena_alloc(arena, SEAL_SEALED_KEY_BYTES);
    seal_to(approver_public, &key, sealed);
    out->sealed = str_of(sealed, SEAL_SEALED_KEY_BYTES);
}

/* One call; `round` has what to ask with, and gets what was answered. *out_reply: what follows. */
static bool call_round(struct mail *mail, const char *inbox_id, uint16_t op, const struct seal_key *approver_public,
                       struct round *round, struct arena *arena, struct unpack *out_reply, struct err *err)
{
    const struct mail_config *config = mail_config_of(mail);
    struct buf request = mail_request(arena);

    (void)pthread_once(&front_id_once, make_front_id);
    pack_u8(&request, (uint8_t)round->mode);
    pack_i64(&request, round->now_us);
    pack_str(&request, round->actor);
    pack_str(&request, str_from(front_id));
    pack_str(&request, round->claim);
    pack_str(&request, round->after_id);
    pack_sealed(&request, round->given, round->given_count);
    if (!mail_call_again(mail, inbox_id, op, &request, arena, out_reply, err))
        return false;
    round->changed += unpack_u32(out_reply);
    struct str last_id = unpack_str(out_reply, MAIL_MESSAGE_ID_BYTES);
    uint32_t wanted_count = unpack_sealed(out_reply, round->wanted);
    if (out_reply->failed)
        return err_set(err, ERR_INTERNAL, "malformed message");
    for (uint32_t i = 0; i < round->given_count && config->held; i++)
        config->held(config->context, inbox_id, arena_text(arena, round->given[i].message_id));
    for (uint32_t i = 0; i < wanted_count; i++)
        reseal(mail, inbox_id, approver_public, &round->wanted[i], arena, &round->given[i]);
    round->given_count = round->wanted_count = wanted_count;
    /* The same messages once more, with their keys; else those behind them. */
    round->last_id = last_id;
    if (!wanted_count)
        round->after_id = last_id;
    return true;
}

static bool is_over(const struct round *round)
{
    return !round->wanted_count && !round->last_id.len;
}

/* ---- pulling back ---- */

/* `unapproved`: only what still needs a person. UNDO and QUEUED have passed the gate. */
static bool pull_back(struct inbox *inbox, struct unpack *in, bool unapproved, struct arena *arena, struct buf *out,
                      struct err *err)
{
    struct round *round = ARENA_NEW(arena, struct round);
    struct str ids[LIMIT_MAIL_ROUND];
    uint32_t count;

    if (!unpack_round(in, GATE_PULLBACK, round, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = list_ids(inbox,
                         "SELECT id FROM messages WHERE direction = 1 AND state IN ($1, $2, $3, $4) AND id > $5 AND "
                         "($6 = 0 OR (state IN ($1, $2) AND approval_hash IS NULL)) ORDER BY id LIMIT $7",
                         SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_SCHEDULED), sql_int(MAIL_UNDO), sql_int(MAIL_QUEUED),
                                  sql_text(round->after_id), sql_int(unapproved), sql_int(LIMIT_MAIL_ROUND)),
                         arena, ids, &count, err) &&
                step_all(inbox, round, ids, count, arena, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    pack_round_reply(out, round);
    return true;
}

static bool run_pull_back(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    return pull_back(inbox, in, false, arena, out, err);
}

static bool run_withdraw(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    return pull_back(inbox, in, true, arena, out, err);
}

static bool pull_all(struct mail *mail, const char *inbox_id, uint16_t op, enum mail_mode mode,
                     const struct seal_key *approver_public, struct str actor, uint32_t *out_count, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct round *round = ARENA_NEW(&arena, struct round);
    round->mode = mode;
    round->now_us = clock_wall_us();
    round->actor = actor;
    bool fine, over = false;
    int calls = 0;
    do {
        fine = call_round(mail, inbox_id, op, approver_public, round, &arena, &reply, err) && unpack_done(&reply, err);
        over = fine && is_over(round);
    } while (fine && !over && ++calls < CALLS_MOST);
    if (fine && !over)
        fine = err_set(err, ERR_INTERNAL, "inbox %s has no end of messages to pull back", inbox_id);
    uint32_t changed = round->changed;
    arena_done(&arena);
    if (fine)
        *out_count = changed;
    return fine;
}

bool mail_pull_back(struct mail *mail, const char *inbox_id, enum mail_mode mode,
                    const struct seal_key *approver_public, struct str actor, uint32_t *out_count, struct err *err)
{
    return pull_all(mail, inbox_id, LEAVE_PULL_BACK, mode, approver_public, actor, out_count, err);
}

bool mail_withdraw(struct mail *mail, const char *inbox_id, const struct seal_key *approver_public, struct str actor,
                   uint32_t *out_count, struct err *err)
{
    return pull_all(mail, inbox_id, LEAVE_WITHDRAW, MAIL_READ_ONLY, approver_public, actor, out_count, err);
}

/* ---- timers ---- */

static bool numbers(struct inbox *inbox, const char *query, const struct sql_value *args, size_t count, int64_t *out,
                    int columns, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, query, args, count, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    for (int i = 0; i < columns; i++)
        out[i] = there ? sql_row_int(&rows, i) : 0;
    return true;
}

/* After the timers that were due: what waits, and until when. */
static bool look_ahead(struct inbox *inbox, const struct round *round, struct mail_tick *out, struct err *err)
{
    int64_t found[3], held_in[1], next[1], releases[2], file[1];

    if (!numbers(inbox,
                 "SELECT SUM(state = $1), SUM(state = $2), SUM(state = $3) FROM messages "
                 "WHERE direction = 1 AND state IN ($1, $2, $3)",
                 SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_QUEUED), sql_int(MAIL_UNCERTAIN)), found, 3, err) ||
        !numbers(inbox, "SELECT COUNT(*) FROM messages WHERE direction = 0 AND in_status = $1",
                 SQL_ARGS(sql_int(MAIL_IN_HELD)), held_in, 1, err) ||
        !numbers(inbox,
                 "SELECT MIN(at) FROM (SELECT CASE state WHEN $1 THEN hold_until_us WHEN $2 THEN send_at_us "
                 "ELSE undo_until_us END AS at FROM messages WHERE direction = 1 AND state IN ($1, $2, $3)) "
                 "WHERE at > $4",
                 SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_SCHEDULED), sql_int(MAIL_UNDO), sql_int(round->now_us)),
                 next, 1, err) ||
        !numbers(inbox,
                 "SELECT SUM(r.front != $1 OR r.claimed_us NOT BETWEEN $2 AND $3), "
                 "MIN(CASE WHEN r.front = $1 AND r.claimed_us BETWEEN $2 AND $3 THEN r.claimed_us END) "
                 "FROM messages m JOIN releases r ON r.message_id = m.id WHERE m.direction = 1 AND m.state = $4",
                 SQL_ARGS(sql_text(round->front), sql_int(round->now_us - RELEASE_US),
                          sql_int(round->now_us + RELEASE_US), sql_int(MAIL_SENDING)),
                 releases, 2, err) ||
        !numbers(inbox, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", SQL_NO_ARGS, file,
                 1, err))
        return false;
    out->bytes = (uint64_t)file[0];
    out->pending = (uint32_t)(found[0] + held_in[0]);
    out->queued = (uint32_t)(found[1] + releases[0]);
    out->uncertain = (uint32_t)found[2];
    out->next_us = next[0];
    int64_t repeat_us = releases[1] ? releases[1] + RELEASE_US + 1 : 0;
    if (repeat_us && (!out->next_us || repeat_us < out->next_us))
        out->next_us = repeat_us;
    return true;
}

static bool run_tick(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct round *round = ARENA_NEW(arena, struct round);
    struct str ids[LIMIT_MAIL_ROUND];
    struct mail_tick tick;
    uint32_t count;

    if (!unpack_round(in, GATE_TICK, round, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = list_ids(inbox,
                         "SELECT id FROM messages WHERE direction = 1 AND state IN ($1, $2, $3) AND id > $4 AND "
                         "CASE state WHEN $1 THEN hold_until_us WHEN $2 THEN send_at_us ELSE undo_until_us END <= $5 "
                         "ORDER BY id LIMIT $6",
                         SQL_ARGS(sql_int(MAIL_HELD), sql_int(MAIL_SCHEDULED), sql_int(MAIL_UNDO),
                                  sql_text(round->after_id), sql_int(round->now_us), sql_int(LIMIT_MAIL_ROUND)),
                         arena, ids, &count, err) &&
                step_all(inbox, round, ids, count, arena, err) && look_ahead(inbox, round, &tick, err);
    /* Nothing was due: nothing to write, and no wait for the disk. */
    bool committed = sql_end(inbox->sql, fine && round->changed, err);
    if (!fine || (round->changed && !committed))
        return false;
    pack_round_reply(out, round);
    pack_u32(out, tick.pending);
    pack_u32(out, tick.queued);
    pack_u32(out, tick.uncertain);
    pack_i64(out, tick.next_us);
    pack_u64(out, tick.bytes);
    return true;
}

bool mail_tick(struct mail *mail, const char *inbox_id, enum mail_mode mode, const struct seal_key *approver_public,
               int64_t now_us, struct mail_tick *out, struct err *err)
{
    struct mail_tick tick = { 0 };
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct round *round = ARENA_NEW(&arena, struct round);
    round->mode = mode;
    round->now_us = now_us;
    round->actor = STR("timer");
    bool fine, over = false;
    int calls = 0;
    do {
        fine = call_round(mail, inbox_id, LEAVE_TICK, approver_public, round, &arena, &reply, err);
        if (fine) {
            tick.pending = unpack_u32(&reply);
            tick.queued = unpack_u32(&reply);
            tick.uncertain = unpack_u32(&reply);
            tick.next_us = unpack_i64(&reply);
            tick.bytes = unpack_u64(&reply);
            fine = unpack_done(&reply, err);
        }
        over = fine && is_over(round);
    } while (fine && !over && ++calls < CALLS_MOST);
    if (fine && !over)
        fine = err_set(err, ERR_INTERNAL, "inbox %s has no end of timers", inbox_id);
    arena_done(&arena);
    if (fine)
        *out = tick;
    return fine;
}

/* ---- claiming ---- */

/* This very call has claimed it by a worker that died before it could answer. */
static bool claim_same(struct inbox *inbox, const struct round *round, struct arena *arena, struct outgoing *out,
                       bool *out_there, struct err *err)
{
    struct str ids[LIMIT_MAIL_ROUND];
    uint32_t count;

    if (!list_ids(inbox,
                  "SELECT m.id FROM messages m JOIN releases r ON r.message_id = m.id WHERE m.direction = 1 AND "
                  "m.state = $1 AND r.claim = $2",
                  SQL_ARGS(sql_int(MAIL_SENDING), sql_text(round->claim)), arena, ids, &count, err))
        return false;
    *out_there = count > 0;
    return !count || outgoing_load(inbox, ids[0], arena, out, err);
}

/*
 * A message that an earlier front has left in MAIL_SENDING; or this one: its dispatchers take turns
 * (actions/mail_busy.c), so no other works on it. Not at once, so that a delivery that fails does not keep front busy.
 */
static bool find_left(struct inbox *inbox, const struct round *round, struct arena *arena,
                      struct str ids[LIMIT_MAIL_ROUND], uint32_t *out_count, struct err *err)
{
    return list_ids(inbox,
                    "SELECT m.id FROM messages m JOIN releases r ON r.message_id = m.id WHERE m.direction = 1 AND "
                    "m.state = $1 AND (r.front != $2 OR r.claimed_us NOT BETWEEN $3 AND $4) ORDER BY m.id LIMIT $5",
                    SQL_ARGS(sql_int(MAIL_SENDING), sql_text(round->front), sql_int(round->now_us - RELEASE_US),
                             sql_int(round->now_us + RELEASE_US), sql_int(LIMIT_MAIL_ROUND)),
                    arena, ids, out_count, err);
}

static bool claim_again(struct inbox *inbox, struct round *round, struct arena *arena, struct outgoing *out,
                        bool *out_there, struct err *err)
{
    struct str ids[LIMIT_MAIL_ROUND];
    uint32_t count;

    *out_there = false;
    if (!find_left(inbox, round, arena, ids, &count, err))
        return false;
    round->event = GATE_REPEAT;
    for (uint32_t i = 0; i < count && !*out_there; i++)
        if (!step_one(inbox, round, ids[i], arena, out, out_there, err))
            return false;
    if (!*out_there)
        return true;
    return sql_exec(
        inbox->sql, "UPDATE releases SET front = $1, claim = $2, claimed_us = $3 WHERE message_id = $4",
        SQL_ARGS(sql_text(round->front), sql_text(round->claim), sql_int(round->now_us), sql_text(str_from(out->id))),
        err);
}

static bool make_release(struct inbox *inbox, const struct round *round, const struct outgoing *m, struct err *err)
{
    char id[MAIL_MESSAGE_ID_BYTES];
    bool is_approved = m->gate.approval.is_there;

    mail_message_id(inbox->id, id);
    /* One release for a message: the table says so too. */
    return sql_exec(inbox->sql,
                    "INSERT INTO releases (id, message_id, hash, mode, is_approved, approver, mac, at_us, claimed_us, "
                    "front, claim) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10)",
                    SQL_ARGS(sql_text(str_from(id)), sql_text(str_from(m->id)),
                             sql_blob(str_of(m->gate.hash, GATE_HASH_BYTES)), sql_int(round->mode),
                             sql_int(is_approved), sql_text(is_approved ? m->decided_by : STR("")),
                             sql_blob(is_approved ? m->approval_mac : STR("")), sql_int(round->now_us),
                             sql_text(round->front), sql_text(round->claim)),
                    err);
}

static bool claim_next(struct inbox *inbox, struct round *round, struct arena *arena, struct outgoing *out,
                       bool *out_there, struct err *err)
{
    struct str ids[LIMIT_MAIL_ROUND];
    uint32_t count;
    bool changed;

    *out_there = false;
    round->event = GATE_SEND;
    if (!list_ids(inbox, "SELECT id FROM messages WHERE direction = 1 AND state = $1 AND id > $2 ORDER BY id LIMIT $3",
                  SQL_ARGS(sql_int(MAIL_QUEUED), sql_text(round->after_id), sql_int(LIMIT_MAIL_ROUND)), arena, ids,
                  &count, err))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (!step_one(inbox, round, ids[i], arena, out, &changed, err))
            return false;
        *out_there = changed && out->gate.state == MAIL_SENDING;
        if (*out_there)
            return make_release(inbox, round, out, err);
    }
    if (count == LIMIT_MAIL_ROUND)
        round->last_id = ids[count - 1];
    return true;
}

static bool pack_release(struct inbox *inbox, const char *message_id, bool is_repeat, struct arena *arena,
                         struct buf *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct str sealed;
    bool there;

    if (!inbox_sealed_get(inbox, str_from(message_id), "server", arena, &sealed, err) ||
        !sql_select(inbox->sql,
                    "SELECT r.id, r.hash, r.mode, r.is_approved, r.approver, r.mac, r.at_us, m.body_cipher "
                    "FROM releases r JOIN messages m ON m.id = r.message_id WHERE r.message_id = $1",
                    SQL_ARGS(sql_text(str_from(message_id))), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: message %s has no release", message_id);
    pack_str(out, str_from(message_id));
    pack_str(out, sql_row_text(&rows, 0));
    pack_str(out, sql_row_text(&rows, 1));
    pack_u8(out, (uint8_t)sql_row_int(&rows, 2));
    pack_bool(out, sql_row_int(&rows, 3));
    pack_str(out, sql_row_text(&rows, 4));
    pack_str(out, sql_row_text(&rows, 5));
    pack_i64(out, sql_row_int(&rows, 6));
    pack_bool(out, is_repeat);
    pack_str(out, sealed);
    pack_str(out, sql_row_text(&rows, 7));
    return true;
}

static bool run_claim(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct round *round = ARENA_NEW(arena, struct round);
    struct outgoing message;
    bool is_repeat = false, there = false;

    if (!unpack_round(in, GATE_SEND, round, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = claim_same(inbox, round, arena, &message, &there, err) &&
                (there || claim_again(inbox, round, arena, &message, &is_repeat, err)) &&
                (there || is_repeat || claim_next(inbox, round, arena, &message, &there, err));
    bool committed = sql_end(inbox->sql, fine && round->changed, err);
    if (!fine || (round->changed && !committed))
        return false;
    pack_round_reply(out, round);
    pack_bool(out, is_repeat || there);
    return !(is_repeat || there) || pack_release(inbox, message.id, is_repeat, arena, out, err);
}

static void unpack_release(struct unpack *in, const char *inbox_id, struct mail_release *out, struct str *out_sealed,
                           struct str *out_cipher)
{
    struct str hash, mac;
    struct mail_release r = { 0 };

    memcpy(r.inbox_id, inbox_id, MIN(strlen(inbox_id), sizeof r.inbox_id - 1));
    unpack_text(in, r.message_id, sizeof r.message_id);
    unpack_text(in, r.id, sizeof r.id);
    hash = unpack_str(in, GATE_HASH_BYTES);
    uint8_t mode = unpack_u8(in);
    r.is_approved = unpack_bool(in);
    r.approver = unpack_str(in, LIMIT_MAIL_ACTOR_BYTES);
    mac = unpack_str(in, sizeof r.approval_mac);
    r.at_us = unpack_i64(in);
    r.is_repeat = unpack_bool(in);
    *out_sealed = unpack_str(in, SEAL_SEALED_KEY_BYTES);
    *out_cipher = unpack_str(in, LIMIT_MAIL_CONTENT_BYTES + SEAL_EXTRA_BYTES);
    if (mode >= MAIL_MODE_COUNT || hash.len != sizeof r.hash || (mac.len && mac.len != sizeof r.approval_mac))
        in->failed = true;
    if (in->failed)
        return;
    r.mode = (enum mail_mode)mode;
    memcpy(r.hash, hash.at, sizeof r.hash);
    if (mac.len)
        memcpy(r.approval_mac, mac.at, sizeof r.approval_mac);
    *out = r;
}

static bool open_release(const struct mail *mail, const struct mail_release *release, struct str sealed,
                         struct str cipher, struct arena *arena, struct mail_content *out, struct err *err)
{
    const struct mail_config *config = mail_config_of(mail);
    auto_seal_key struct seal_key key = { 0 };
    unsigned char hash[GATE_HASH_BYTES];

    if (!seal_open(&config->server_public, &config->server_private, sealed, &key, err) ||
        !mail_content_open(&key, release->message_id, "body", cipher, arena, out, err))
        return false;
    mail_content_hash(out, hash);
    return memcmp(hash, release->hash, sizeof hash) == 0 ||
           err_set(err, ERR_INTERNAL, "the stored message %s is damaged: it has another hash than its release",
                   release->message_id);
}

static bool give_up(struct mail *mail, const struct mail_release *release, struct arena *arena, struct err *err);

bool mail_claim(struct mail *mail, const char *inbox_id, enum mail_mode mode, const struct seal_key *approver_public,
                int64_t now_us, struct arena *arena, struct mail_release *out, struct mail_content *out_content,
                struct err *err)
{
    struct round *round = ARENA_NEW(arena, struct round);
    struct mail_release release = { 0 };
    struct mail_content content = { 0 };
    struct str sealed, cipher;
    struct unpack reply;
    bool there = false;
    char claim[MAIL_INBOX_ID_BYTES];

    *out = (struct mail_release){ 0 };
    mail_ulid(claim);
    round->mode = mode;
    round->now_us = now_us;
    round->actor = STR("dispatcher");
    round->claim = str_from(claim);
    for (int calls = 0; calls < CALLS_MOST && !there; calls++) {
        if (!call_round(mail, inbox_id, LEAVE_CLAIM, approver_public, round, arena, &reply, err))
            return false;
        there = unpack_bool(&reply);
        if (there)
            unpack_release(&reply, inbox_id, &release, &sealed, &cipher);
        if (!unpack_done(&reply, err))
            return false;
        if (!there && is_over(round))
            return err_set(err, ERR_NOT_FOUND, "no message waits to leave");
    }
    if (!there)
        return err_set(err, ERR_INTERNAL, "inbox %s has no end of messages to claim", inbox_id);
    if (!open_release(mail, &release, sealed, cipher, arena, &content, err)) {
        struct err why;
        err->kind = ERR_INTERNAL;
        if (give_up(mail, &release, arena, &why))
            *out = release;
        else
            log_warn("inbox %s: message %s stays in sending: %s", inbox_id, release.message_id, err_text(&why));
        return err_wrap(err, "claim");
    }
    *out = release;
    *out_content = content;
    return true;
}

/* ---- settling ---- */

static bool settle_recipient(struct inbox *inbox, const char *message_id, struct str recipient, uint8_t outcome,
                             struct str detail, int64_t now_us, struct arena *arena, struct err *err)
{
    char hash[65], room[MAIL_ABOUT_BYTES];
    struct sql_value cipher = { .type = SQL_NULL };
    int64_t found[1];

    inbox_allow_hash(inbox, recipient, hash);
    if (!numbers(inbox, "SELECT COUNT(*) FROM recipients WHERE message_id = $1 AND address_hash = $2",
                 SQL_ARGS(sql_text(str_from(message_id)), sql_text(str_from(hash))), found, 1, err))
        return false;
    if (!found[0])
        return err_set(err, ERR_INVALID, "message %s has no such recipient", message_id);
    if (detail.len)
        cipher =
            sql_blob(seal_encrypt(&inbox->server_key, detail, mail_about(str_from(message_id), "detail", room), arena));
    /* Delivered and refused are final: a late "waits" does not undo them. */
    return sql_exec(inbox->sql,
                    "UPDATE recipients SET outcome = $1, at_us = $2, detail_cipher = $3 "
                    "WHERE message_id = $4 AND address_hash = $5 AND (outcome IS NULL OR outcome = $6)",
                    SQL_ARGS(sql_int(outcome), sql_int(now_us), cipher, sql_text(str_from(message_id)),
                             sql_text(str_from(hash)), sql_int(MAIL_WAITS)),
                    err);
}

/* All have an outcome: what the message becomes. */
static bool settle_message(struct inbox *inbox, struct outgoing *m, bool is_damaged, int64_t now_us,
                           struct arena *arena, struct err *err)
{
    int64_t found[4];
    bool changed;

    if (!numbers(
            inbox,
            "SELECT SUM(outcome IS NULL), SUM(outcome = $1), SUM(outcome = $2), SUM(outcome = $3) FROM recipients "
            "WHERE message_id = $4",
            SQL_ARGS(sql_int(MAIL_WAITS), sql_int(MAIL_DELIVERED), sql_int(MAIL_REFUSED), sql_text(str_from(m->id))),
            found, 4, err))
        return false;
    if (found[0] && !is_damaged)
        return true;
    const struct outgoing_change change = {
        .event = found[1] && !is_damaged ? GATE_DEFER
                 : found[2]              ? GATE_SENT
                                         : GATE_FAIL,
        .input = { .now_us = now_us },
        .actor = STR("dispatcher"),
        .detail = is_damaged ? STR(",\"reason\":\"damaged\"")
                             : arena_format(arena, ",\"delivered\":%lld,\"waits\":%lld,\"refused\":%lld",
                                            (long long)found[2], (long long)found[1], (long long)found[3]),
    };
    if (!outgoing_step(inbox, m, &change, arena, &changed, err))
        return false;
    return m->gate.state != MAIL_SENT || sql_exec(inbox->sql, "UPDATE messages SET delivered_us = $1 WHERE id = $2",
                                                  SQL_ARGS(sql_int(now_us), sql_text(str_from(m->id))), err);
}

struct settlement {
    char message_id[MAIL_MESSAGE_ID_BYTES];
    struct str release_id;
    bool is_damaged;
    int64_t now_us;
    uint32_t count;
    struct {
        struct str recipient, detail;
        uint8_t outcome; /* asked for; in the reply the one that stands */
    } rows[LIMIT_MAIL_RECIPIENTS];
};

static bool standing(struct inbox *inbox, struct settlement *s, struct err *err)
{
    for (uint32_t i = 0; i < s->count; i++) {
        char hash[65];
        int64_t found[1];
        inbox_allow_hash(inbox, s->rows[i].recipient, hash);
        if (!numbers(inbox, "SELECT COALESCE(outcome, $1) FROM recipients WHERE message_id = $2 AND address_hash = $3",
                     SQL_ARGS(sql_int(s->rows[i].outcome), sql_text(str_from(s->message_id)), sql_text(str_from(hash))),
                     found, 1, err))
            return false;
        s->rows[i].outcome = (uint8_t)found[0];
    }
    return true;
}

static bool settle(struct inbox *inbox, struct settlement *s, struct arena *arena, struct err *err)
{
    struct outgoing m;
    int64_t found[1];

    if (!outgoing_load(inbox, str_from(s->message_id), arena, &m, err) ||
        !numbers(inbox, "SELECT COUNT(*) FROM releases WHERE id = $1 AND message_id = $2",
                 SQL_ARGS(sql_text(s->release_id), sql_text(str_from(s->message_id))), found, 1, err))
        return false;
    if (!found[0])
        return err_set(err, ERR_NOT_FOUND, "message %s was not released as %.*s", s->message_id,
                       STR_ARG(s->release_id));
    if (m.gate.state != MAIL_SENDING && m.gate.state != MAIL_DEFERRED)
        return standing(inbox, s, err); /* settled already: it was repeated */
    for (uint32_t i = 0; i < s->count; i++)
        if (!settle_recipient(inbox, s->message_id, s->rows[i].recipient, s->rows[i].outcome, s->rows[i].detail,
                              s->now_us, arena, err))
            return false;
    return settle_message(inbox, &m, s->is_damaged, s->now_us, arena, err) && standing(inbox, s, err);
}

static bool run_settle(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    struct settlement *s = ARENA_NEW(arena, struct settlement);

    unpack_text(in, s->message_id, sizeof s->message_id);
    s->release_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES);
    s->is_damaged = unpack_bool(in);
    s->now_us = unpack_i64(in);
    s->count = unpack_count(in, LIMIT_MAIL_RECIPIENTS);
    for (uint32_t i = 0; i < s->count; i++) {
        s->rows[i].recipient = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
        s->rows[i].outcome = unpack_u8(in);
        s->rows[i].detail = unpack_str(in, LIMIT_MAIL_REASON_BYTES);
        if (s->rows[i].outcome > MAIL_REFUSED)
            in->failed = true;
    }
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = settle(inbox, s, arena, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    for (uint32_t i = 0; i < s->count; i++)
        pack_u8(out, s->rows[i].outcome);
    return true;
}

static bool call_settle(struct mail *mail, const struct mail_release *release, const struct mail_settled *recipients,
                        uint32_t count, bool is_damaged, enum mail_outcome *out_stands, struct arena *arena,
                        struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    pack_str(&request, str_from(release->message_id));
    pack_str(&request, str_from(release->id));
    pack_bool(&request, is_damaged);
    pack_i64(&request, clock_wall_us());
    pack_u32(&request, count);
    for (uint32_t i = 0; i < count; i++) {
        struct str detail = recipients[i].detail;
        pack_str(&request, recipients[i].recipient);
        pack_u8(&request, (uint8_t)recipients[i].outcome);
        pack_str(&request, str_of(detail.at, MIN(detail.len, (size_t)LIMIT_MAIL_REASON_BYTES)));
    }
    if (!mail_call_again(mail, release->inbox_id, LEAVE_SETTLE, &request, arena, &reply, err))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t outcome = unpack_u8(&reply);
        if (outcome > MAIL_REFUSED)
            reply.failed = true;
        if (out_stands)
            out_stands[i] = (enum mail_outcome)outcome;
    }
    return unpack_done(&reply, err);
}

static bool give_up(struct mail *mail, const struct mail_release *release, struct arena *arena, struct err *err)
{
    return call_settle(mail, release, NULL, 0, true, NULL, arena, err);
}

bool mail_settle(struct mail *mail, const struct mail_release *release, const struct mail_settled *recipients,
                 uint32_t count, enum mail_outcome *out_stands, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool fine = call_settle(mail, release, recipients, count, false, out_stands, &arena, err);
    arena_done(&arena);
    return fine;
}

const struct inbox_operation inbox_leave_operations[] = {
    { LEAVE_TICK, run_tick },     { LEAVE_PULL_BACK, run_pull_back }, { LEAVE_CLAIM, run_claim },
    { LEAVE_SETTLE, run_settle }, { LEAVE_WITHDRAW, run_withdraw },   { 0, NULL },
};
