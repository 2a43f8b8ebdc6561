/*
 * How a change of state gets into the file. The table of states is in gate.c; here is what goes with it:
 *
 *   state                                          who else has the content key, besides the inbox
 *   HELD                                           the approvers
 *   SCHEDULED UNDO QUEUED SENDING DEFERRED         the server
 *   all others                                     nobody
 *
 * A key that does not belong to the new state is deleted in the same transaction, and SQLite overwrites it.
 */
#include "mail/inbox_state.h"

#include <stdio.h>
#include <string.h>

#include "base/encode.h"

/* ---- loading ---- */

static bool copy_hash(struct str stored, unsigned char out[GATE_HASH_BYTES])
{
    if (stored.len != GATE_HASH_BYTES)
        return false;
    memcpy(out, stored.at, GATE_HASH_BYTES);
    return true;
}

bool outgoing_load(struct inbox *inbox, struct str id, struct arena *arena, struct outgoing *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    struct outgoing m = { 0 };
    bool there;

    if (!sql_select(inbox->sql,
                    "SELECT id, state, hash, send_at_us, schedule_first, hold_us, undo_until_us, hold_until_us, "
                    "approval_hash, approval_expires_us, approval_spent, composer, decided_by, approval_mac "
                    "FROM messages WHERE id = $1 AND direction = 1",
                    SQL_ARGS(sql_text(id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    struct str stored_id = sql_row_text(&rows, 0), approval = sql_row_text(&rows, 8);
    m.gate.approval.is_there = approval.len > 0;
    if (stored_id.len != sizeof m.id - 1 || !copy_hash(sql_row_text(&rows, 2), m.gate.hash) ||
        (approval.len && !copy_hash(approval, m.gate.approval.hash)))
        return err_set(err, ERR_INTERNAL, "the inbox's file is damaged: a message's hash");
    memcpy(m.id, stored_id.at, stored_id.len);
    m.gate.state = (enum mail_state)sql_row_int(&rows, 1);
    m.gate.send_at_us = sql_row_int(&rows, 3);
    m.gate.schedule_first = sql_row_int(&rows, 4);
    m.gate.hold_us = sql_row_int(&rows, 5);
    m.gate.undo_until_us = sql_row_int(&rows, 6);
    m.gate.hold_until_us = sql_row_int(&rows, 7);
    m.gate.approval.expires_us = sql_row_int(&rows, 9);
    m.gate.approval.is_spent = sql_row_int(&rows, 10);
    m.composer = arena_copy(arena, sql_row_text(&rows, 11));
    m.decided_by = arena_copy(arena, sql_row_text(&rows, 12));
    m.approval_mac = arena_copy(arena, sql_row_text(&rows, 13));
    *out = m;
    return true;
}

bool inbox_message_load(struct inbox *inbox, struct str id, struct arena *arena, struct mail_message *out,
                        struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT " MESSAGE_COLUMNS " FROM messages m WHERE m.id = $1", SQL_ARGS(sql_text(id)),
                    &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    inbox_message_row(inbox, &rows, arena, out);
    return true;
}

/* ---- keys ---- */

bool inbox_sealed_get(struct inbox *inbox, struct str message_id, const char *holder, struct arena *arena,
                      struct str *out_sealed, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql, "SELECT sealed FROM content_keys WHERE message_id = $1 AND holder = $2",
                    SQL_ARGS(sql_text(message_id), sql_text(str_from(holder))), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out_sealed = there ? arena_copy(arena, sql_row_text(&rows, 0)) : STR("");
    return true;
}

bool inbox_sealed_put(struct inbox *inbox, const char *message_id, const char *holder, struct str sealed,
                      struct err *err)
{
    return sql_exec(inbox->sql, "INSERT OR REPLACE INTO content_keys (message_id, holder, sealed) VALUES ($1, $2, $3)",
                    SQL_ARGS(sql_text(str_from(message_id)), sql_text(str_from(holder)), sql_blob(sealed)), err);
}

bool inbox_sealed_remove(struct inbox *inbox, const char *message_id, const char *holder, struct err *err)
{
    return sql_exec(inbox->sql, "DELETE FROM content_keys WHERE message_id = $1 AND holder = $2",
                    SQL_ARGS(sql_text(str_from(message_id)), sql_text(str_from(holder))), err);
}

bool mail_state_waits(enum mail_state state)
{
    switch (state) {
    case MAIL_SCHEDULED:
    case MAIL_UNDO:
    case MAIL_QUEUED:
    case MAIL_SENDING:
    case MAIL_DEFERRED:
        return true;
    default:
        return false;
    }
}

static bool settle_key(struct inbox *inbox, const char *message_id, const char *holder, bool is_needed,
                       struct str at_hand, struct arena *arena, struct err *err)
{
    struct str there;

    if (!is_needed)
        return inbox_sealed_remove(inbox, message_id, holder, err);
    if (!inbox_sealed_get(inbox, str_from(message_id), holder, arena, &there, err))
        return false;
    return there.len || !at_hand.len || inbox_sealed_put(inbox, message_id, holder, at_hand, err);
}

/* ---- changing ---- */

/* Each recipient is on the allowlist, by itself or by its domain. A message without recipients is not. */
static bool all_allowlisted(struct inbox *inbox, const char *message_id, bool *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(inbox->sql,
                    "SELECT COUNT(*), SUM(EXISTS (SELECT 1 FROM allowlist a "
                    "WHERE a.pattern_hash = r.address_hash OR a.pattern_hash = r.domain_hash)) "
                    "FROM recipients r WHERE r.message_id = $1",
                    SQL_ARGS(sql_text(str_from(message_id))), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out = sql_row_int(&rows, 0) > 0 && sql_row_int(&rows, 0) == sql_row_int(&rows, 1);
    return true;
}

static bool store(struct inbox *inbox, const struct outgoing *m, enum mail_state from, struct err *err)
{
    const struct gate_message *g = &m->gate;
    struct str approval = g->approval.is_there ? str_of(g->approval.hash, GATE_HASH_BYTES) : STR("");

    if (!sql_exec(inbox->sql,
                  "UPDATE messages SET state = $1, hash = $2, send_at_us = $3, undo_until_us = $4, hold_until_us = $5, "
                  "approval_hash = $6, approval_expires_us = $7, approval_spent = $8 "
                  "WHERE id = $9 AND direction = 1 AND state = $10",
                  SQL_ARGS(sql_int(g->state), sql_blob(str_of(g->hash, GATE_HASH_BYTES)), sql_int(g->send_at_us),
                           sql_int(g->undo_until_us), sql_int(g->hold_until_us),
                           approval.len ? sql_blob(approval) : (struct sql_value){ .type = SQL_NULL },
                           sql_int(g->approval.expires_us), sql_int(g->approval.is_spent), sql_text(str_from(m->id)),
                           sql_int(from)),
                  err))
        return false;
    return sql_changed(inbox->sql) == 1 || err_set(err, ERR_CONFLICT, "the message has changed in the meantime");
}

static const char *action_of(enum gate_event event, enum mail_state to)
{
    static const char *const names[GATE_EVENT_COUNT] = {
        [GATE_JUDGE] = "message.accept",  [GATE_APPROVE] = "message.approve", [GATE_REJECT] = "message.reject",
        [GATE_CANCEL] = "message.cancel", [GATE_EDIT] = "message.edit",       [GATE_RESCHEDULE] = "message.reschedule",
        [GATE_TICK] = "message.due",      [GATE_SEND] = "message.release",    [GATE_PULLBACK] = "message.pull_back",
        [GATE_SENT] = "message.sent",     [GATE_DEFER] = "message.defer",     [GATE_FAIL] = "message.fail",
        [GATE_BOUNCE] = "message.bounce", [GATE_LOST] = "message.lost",       [GATE_REPEAT] = "message.repeat",
    };

    if (event == GATE_TICK && to == MAIL_EXPIRED)
        return "message.expire";
    if (event == GATE_SEND && to != MAIL_SENDING)
        return "message.pull_back"; /* what may not leave any more */
    return names[event];
}

static bool note(struct inbox *inbox, const struct outgoing *m, const struct outgoing_change *change,
                 enum mail_state from, struct arena *arena, struct err *err)
{
    char hash[MAIL_HASH_TEXT_BYTES];

    hex_text(str_of(m->gate.hash, GATE_HASH_BYTES), hash);
    bool has_mode = change->event <= GATE_SEND && change->event != GATE_CANCEL;
    struct str mode = has_mode ? arena_format(arena, ",\"mode\":\"%s\"", mail_mode_name[change->input.mode]) : STR("");
    struct str detail =
        arena_format(arena, "{\"from\":\"%s\",\"to\":\"%s\",\"sha256\":\"%s\"%.*s%.*s}", mail_state_name[from],
                     mail_state_name[m->gate.state], hash, STR_ARG(mode), STR_ARG(change->detail));
    return audit_append(inbox, action_of(change->event, m->gate.state), str_from(m->id), change->actor, detail,
                        change->input.now_us, err);
}

static bool count_change(struct inbox *inbox, const struct outgoing_change *change, enum mail_state from,
                         enum mail_state to, struct err *err)
{
    int64_t now_us = change->input.now_us;

    if (change->event == GATE_APPROVE && !inbox_count(inbox, "approved", 1, now_us, err))
        return false;
    if (to == from)
        return true;
    if (to == MAIL_HELD)
        return inbox_count(inbox, "held", 1, now_us, err);
    if (to == MAIL_REJECTED)
        return inbox_count(inbox, "rejected", 1, now_us, err);
    /* Deferred: it has left the gate, and the outgoing queue has it. */
    if (from == MAIL_SENDING && (to == MAIL_SENT || to == MAIL_DEFERRED))
        return inbox_count(inbox, "sent", 1, now_us, err);
    return true;
}

bool outgoing_try(struct inbox *inbox, const struct outgoing *message, const struct outgoing_change *change,
                  struct gate_message *out, struct err *err)
{
    struct gate_input input = change->input;
    struct gate_message after = message->gate;

    if (!all_allowlisted(inbox, message->id, &input.all_allowlisted, err) ||
        !gate_step(&after, change->event, &input, err))
        return false;
    *out = after;
    return true;
}

bool outgoing_step(struct inbox *inbox, struct outgoing *message, const struct outgoing_change *change,
                   struct arena *arena, bool *out_changed, struct err *err)
{
    enum mail_state from = message->gate.state;
    struct outgoing after = *message;

    *out_changed = false;
    if (!outgoing_try(inbox, message, change, &after.gate, err))
        return err_wrap(err, "message %s", message->id);
    bool is_timer = change->event == GATE_TICK || change->event == GATE_PULLBACK || change->event == GATE_DEFER;
    if (is_timer && after.gate.state == from)
        return true;
    enum mail_state to = after.gate.state;
    if (!store(inbox, &after, from, err) ||
        !settle_key(inbox, after.id, "approver", to == MAIL_HELD, change->for_approver, arena, err) ||
        !settle_key(inbox, after.id, "server", mail_state_waits(to), change->for_server, arena, err) ||
        (from == MAIL_HELD && to != MAIL_HELD && !links_spend(inbox, after.id, err)) ||
        !count_change(inbox, change, from, to, err) || !note(inbox, &after, change, from, arena, err))
        return err_wrap(err, "message %s", message->id);
    *message = after;
    *out_changed = true;
    return true;
}

bool mail_same_party(struct str a, struct str b)
{
    (void)str_skip(&a, STR("key:"));
    (void)str_skip(&b, STR("key:"));
    return str_eq(a, b);
}
