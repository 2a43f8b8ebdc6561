/*
 * The dispatcher: the one place from which mail leaves.
 *
 *   claim     the inbox's worker spends a message's release: MAIL_QUEUED → MAIL_SENDING (durable)
 *   check     front checks the release against the bytes, the approval's MAC and the inbox's mode as front's row has it.
 *             The worker is not believed: it parses what strangers send.
 *   deliver   each recipient at our own domain gets it in the own file (durable); others wait for the outgoing queue
 *   settle    what became of each recipient is stored in the sender's file (durable), as soon as it has the message: if the
 *             mode goes down before the others have it, they are refused, and the state still tells who has it
 *
 * A crash after the claim leaves the message in MAIL_SENDING. The next turn claims it again with the same release, and does
 * everything once more: a recipient's file takes a release once. Nothing outside this server is reached from here, so a
 * repeat never sends twice.
 *
 * A delivery that fails (a worker that does not answer, a full disk) leaves the message in MAIL_SENDING too, and the turn
 * fails: mail_busy.c tries again. Other messages go on meanwhile. In the end the recipient counts as refused: after a minute
 * if the recipient's file is damaged, after hours if something was missing that may come back.
 */
#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/hole.h"
#include "base/log.h"

#ifdef CLOISTER_TEST_HOLES
#include <unistd.h>
#endif

#define SECOND_US INT64_C(1000000)

void mail_reached(const char *step)
{
    (void)step;
#ifdef CLOISTER_TEST_HOLES
    if (hole_is_open(step))
        _exit(77);
#endif
}

void mail_tell(const struct actions *actions, enum mail_event_kind kind, const char *inbox_id, const char *message_id)
{
    struct mail_event event = { .kind = kind, .at_us = clock_wall_us() };

    if (!actions->mail->heard)
        return;
    memcpy(event.inbox_id, inbox_id, strnlen(inbox_id, sizeof event.inbox_id - 1));
    memcpy(event.message_id, message_id, strnlen(message_id, sizeof event.message_id - 1));
    actions->mail->heard(actions->mail->context, &event);
}

/* ---- the release ---- */

static bool all_allowed(const struct actions *actions, const char *inbox_id, const struct mail_content *content,
                        struct arena *arena, bool *out, struct err *err)
{
    struct mail_allow *entries;
    size_t count;

    if (!mail_allow_list(actions->mail->mail, inbox_id, arena, &entries, &count, err))
        return false;
    *out = content->recipient_count > 0;
    for (uint32_t i = 0; i < content->recipient_count && *out; i++) {
        bool covered = false;
        for (size_t j = 0; j < count && !covered; j++)
            covered = mail_allow_covers(entries[j].pattern, content->recipients[i]);
        *out = covered;
    }
    return true;
}

/* *out_why: NULL if these bytes may leave, else what is wrong. False: could not be checked now. */
static bool check_release(const struct actions *actions, const struct mail_box *box, const struct mail_release *release,
                          const struct mail_content *content, struct arena *arena, const char **out_why,
                          struct err *err)
{
    unsigned char hash[GATE_HASH_BYTES];
    bool allowed = false;

    mail_content_hash(content, hash);
    *out_why = NULL;
    if (memcmp(hash, release->hash, sizeof hash) != 0)
        *out_why = "the content is not the one that was released";
    else if (!str_eq_nocase(content->sender, box->info.address))
        *out_why = "the sender is not this inbox";
    else if (release->is_approved && !mail_approval_valid(actions->mail->mail, release))
        *out_why = "the approval was not made by this server for this content";
    if (*out_why)
        return true;
    if (!release->is_approved && box->info.mode == MAIL_GATED_SEND &&
        !all_allowed(actions, box->info.id, content, arena, &allowed, err))
        return false;
    /* Also of a repeat: the mode may have gone down since it was claimed, and only the worker says that it was. */
    if (mail_judge(box->info.mode, allowed, release->is_approved) != MAIL_RELEASE)
        *out_why = "the mode of the inbox does not let it leave without approval";
    return true;
}

/* ---- delivering ---- */

struct delivery {
    const struct actions *actions;
    const struct mail_release *release;
    const struct mail_content *parsed;
    bool is_patient; /* somebody waits for an answer to a send; a tick has other inboxes to look at */
    struct arena *arena;
    int64_t now_us;
};

static bool is_ours(const struct actions *actions, struct str address)
{
    struct str domain = str_from(actions->mail->domain);

    return address.len > domain.len + 1 && address.at[address.len - domain.len - 1] == '@' &&
           str_eq_nocase(str_of(address.at + address.len - domain.len, domain.len), domain);
}

static void tell_arrival(const struct actions *actions, const struct mail_message *arrived)
{
    enum mail_event_kind kind = MAIL_EVENT_RECEIVED;

    if (arrived->in_status == MAIL_IN_HELD)
        kind = MAIL_EVENT_PENDING;
    else if (arrived->in_status == MAIL_IN_QUARANTINED)
        kind = MAIL_EVENT_QUARANTINED;
    mail_tell(actions, kind, arrived->inbox_id, arrived->id);
}

static bool deliver_to(const struct delivery *d, struct str recipient, const struct mail_box *box, struct err *err)
{
    struct mail_content content = *d->parsed;
    struct mail_message arrived;
    bool is_new;

    /* The envelope of others is not for this recipient: there may be blind copies. */
    content.recipients = &recipient;
    content.recipient_count = 1;
    struct mail_arrival arrival = {
        .inbox_id = box->info.id,
        .inbox_public = &box->info.public_key,
        .approver_public = &box->approver_public,
        .content = &content,
        /* An inbox that stands twice among the recipients (dots, a +tag) gets one copy. */
        .once = arena_format(d->arena, "%s/%s", d->release->id, box->info.id),
        .mode = box->info.mode,
        .storage_bytes = LIMIT_MAIL_STORAGE_BYTES,
        .now_us = d->now_us,
    };
    if (!mail_has_room(d->actions, str_from(box->info.tenant_id), err) ||
        !mail_deliver(d->actions->mail->mail, &arrival, d->arena, &arrived, &is_new, err))
        return false;
    if (is_new) {
        mail_row_received(d->actions, box->info.id, 2 * content.mime.len); /* and what was read from it */
        tell_arrival(d->actions, &arrived);
    }
    return true;
}

/* A message that is held on its way in is counted in the row of its inbox, for its approvers. */
static bool deliver_marked(const struct delivery *d, struct str recipient, const struct mail_box *box, struct err *err)
{
    struct busy_inbox *busy;

    if (box->info.mode != MAIL_GATED_ALL)
        return deliver_to(d, recipient, box, err);
    if (!busy_begin(d->actions, box->info.id, &busy, err))
        return false;
    bool ok = deliver_to(d, recipient, box, err);
    busy_end(d->actions, busy, 0);
    return ok;
}

/* MAIL_REFUSED with a reason for what can never be delivered. False: not now. */
static bool deliver_one(const struct delivery *d, struct str recipient, struct mail_settled *out, struct err *err)
{
    struct mail_box box;

    *out = (struct mail_settled){ .recipient = recipient, .outcome = MAIL_REFUSED };
    if (!is_ours(d->actions, recipient)) {
        out->outcome = MAIL_WAITS;
        out->detail = STR("waits in the outgoing queue");
        return true;
    }
    if (!mail_box_by_address(d->actions, recipient, d->arena, &box, err)) {
        out->detail = STR("there is no such address here");
        return err->kind == ERR_NOT_FOUND;
    }
    if (!busy_arrival_begins(d->actions, box.info.id, d->is_patient))
        return err_set(err, ERR_UNAVAILABLE, "inbox %s does not answer at the moment", box.info.id);
    bool ok = deliver_marked(d, recipient, &box, err);
    busy_arrival_ends(d->actions, box.info.id, ok || err->kind != ERR_UNAVAILABLE);
    if (!ok) {
        out->detail = STR("the recipient's inbox is full");
        return err->kind == ERR_LIMIT;
    }
    out->outcome = MAIL_DELIVERED;
    return true;
}

/* ---- one message ---- */

/* Has it been tried for long enough? By the clock, not by counting: that is in the file, and outlives this process. */
static bool is_hopeless(const struct mail_release *release, const struct err *err)
{
    bool may_pass = err->kind == ERR_UNAVAILABLE || err->kind == ERR_TIMEOUT || err->kind == ERR_FULL;
    int64_t most_s = may_pass ? LIMIT_MAIL_DELIVER_S : LIMIT_MAIL_BROKEN_S;

    return clock_wall_us() - release->at_us > most_s * SECOND_US;
}

static bool settle_one(const struct delivery *d, const struct mail_settled *one, struct err *err)
{
    return one->outcome != MAIL_DELIVERED || mail_settle(d->actions->mail->mail, d->release, one, 1, NULL, err);
}

/*
 * All recipients, also if some fail. False: some have to be tried again, and those who have it are settled. If it is over
 * then all are still to be settled together, the last one for the first time.
 */
static bool deliver_all(const struct delivery *d, const struct mail_content *content, struct mail_settled *out,
                        struct err *err)
{
    bool done = true;

    for (uint32_t i = 0; i < content->recipient_count; i++) {
        struct err one;
        if (!deliver_one(d, content->recipients[i], &out[i], &one)) {
            if (is_hopeless(d->release, &one)) {
                log_error("mail: message %s: a recipient here does not get it: %s", d->release->message_id,
                          err_text(&one));
                out[i].outcome = MAIL_REFUSED;
                out[i].detail = STR("the recipient's inbox cannot be reached");
            } else {
                if (done)
                    *err = one;
                done = false;
            }
        }
        mail_reached("mail-stop-halfway");
        if ((i + 1 < content->recipient_count || !done) && !settle_one(d, &out[i], &one)) {
            *err = one;
            return false;
        }
    }
    return done;
}

/* A monitored inbox sends without approval because its approvers get a copy: one that fails must not go unnoticed. */
static void watch_copy(const struct actions *actions, const struct mail_box *box, const struct mail_release *release,
                       const struct mail_settled *settled, uint32_t count)
{
    struct err err;

    if (!box->oversight_address.len)
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (settled[i].outcome != MAIL_REFUSED || !str_eq_nocase(settled[i].recipient, box->oversight_address))
            continue;
        log_error("mail: message %s: the approvers' copy was refused: %.*s", release->message_id,
                  STR_ARG(settled[i].detail));
        if (!mail_audit_add(actions->mail->mail, box->info.id, STR("oversight_copy_failed"),
                            str_from(release->message_id), STR("server"), STR("{}"), &err))
            log_error("mail: message %s: that could not be written to the audit: %s", release->message_id,
                      err_text(&err));
    }
}

static bool any_refused(const struct mail_settled *settled, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (settled[i].outcome == MAIL_REFUSED)
            return true;
    return false;
}

static enum mail_state state_after(const struct mail_settled *settled, uint32_t count)
{
    bool any_delivered = false;

    for (uint32_t i = 0; i < count; i++) {
        if (settled[i].outcome == MAIL_WAITS)
            return MAIL_DEFERRED;
        any_delivered |= settled[i].outcome == MAIL_DELIVERED;
    }
    return any_delivered ? MAIL_SENT : MAIL_FAILED;
}

/* One turn of one inbox. */
struct turn {
    const struct actions *actions;
    const struct mail_box *box;
    const char *message_id; /* somebody asks what becomes of this one; may be NULL */
    enum mail_state *state;
};

/* Nothing leaves now. Who got it in an earlier turn has it, and `settled` says so. */
static bool refuse_all(const struct turn *turn, const struct mail_release *release, const struct mail_content *content,
                       const char *why, struct arena *arena, struct mail_settled *settled, struct err *err)
{
    uint32_t count = content->recipient_count;
    enum mail_outcome *stands = ARENA_ARRAY(arena, enum mail_outcome, count);

    log_error("mail: message %s does not leave: %s", release->message_id, why);
    for (uint32_t i = 0; i < count; i++)
        settled[i] = (struct mail_settled){ content->recipients[i], MAIL_REFUSED, str_from(why) };
    if (!mail_settle(turn->actions->mail->mail, release, settled, count, stands, err))
        return false;
    for (uint32_t i = 0; i < count; i++)
        settled[i].outcome = stands[i];
    return true;
}

static bool leave(const struct turn *turn, const struct mail_release *release, const struct mail_content *content,
                  struct arena *arena, enum mail_state *out_state, struct err *err)
{
    const struct actions *actions = turn->actions;
    struct mail *mail = actions->mail->mail;
    struct mail_settled *settled = ARENA_ARRAY(arena, struct mail_settled, content->recipient_count);
    struct mail_content parsed;
    const char *why;

    mail_reached("mail-stop-claimed");
    if (!check_release(actions, turn->box, release, content, arena, &why, err))
        return false;
    if (!why && !mail_parse(mail, turn->box->info.id, content->mime, arena, &parsed, err)) {
        if (!is_hopeless(release, err))
            return false;
        why = arena_text(arena, str_from(err->message)); /* err has other uses before this one ends */
    }
    if (why) {
        if (!refuse_all(turn, release, content, why, arena, settled, err))
            return false;
    } else {
        struct delivery d = { actions, release, &parsed, turn->message_id, arena, clock_wall_us() };
        parsed.sender = content->sender;
        if (!deliver_all(&d, content, settled, err))
            return false;
        mail_reached("mail-stop-delivered");
        if (!mail_settle(mail, release, settled, content->recipient_count, NULL, err))
            return false;
    }
    watch_copy(actions, turn->box, release, settled, content->recipient_count);
    if (any_refused(settled, content->recipient_count))
        mail_tell(actions, MAIL_EVENT_BOUNCED, turn->box->info.id, release->message_id);
    *out_state = state_after(settled, content->recipient_count);
    return true;
}

enum next {
    NEXT_LEFT,
    NEXT_NONE,
    NEXT_BROKEN,  /* the worker has given one up: its stored content is not what was accepted */
    NEXT_LATER,   /* tried again after a pause; the worker does not give it again in the next second */
    NEXT_UNKNOWN, /* the worker cannot be asked */
};

static void is_asked_for(const struct turn *turn, const struct mail_release *release, enum mail_state now)
{
    if (turn->state && turn->message_id && strcmp(turn->message_id, release->message_id) == 0)
        *turn->state = now;
}

/* No message was claimed. */
static enum next nothing_leaves(const struct turn *turn, const struct mail_release *release, const struct err *err)
{
    if (err->kind == ERR_NOT_FOUND)
        return NEXT_NONE;
    if (err->kind != ERR_INTERNAL)
        return NEXT_UNKNOWN;
    if (!release->message_id[0])
        return NEXT_LATER;
    mail_tell(turn->actions, MAIL_EVENT_BOUNCED, turn->box->info.id, release->message_id);
    if (!release->is_repeat)
        is_asked_for(turn, release, MAIL_FAILED);
    return NEXT_BROKEN;
}

static enum next next_leaves(const struct turn *turn, struct arena *arena, struct err *err)
{
    const struct inbox_info *inbox = &turn->box->info;
    struct mail_release release;
    struct mail_content content;
    enum mail_state now;

    if (!mail_claim(turn->actions->mail->mail, inbox->id, inbox->mode, &turn->box->approver_public, clock_wall_us(),
                    arena, &release, &content, err))
        return nothing_leaves(turn, &release, err);
    if (!leave(turn, &release, &content, arena, &now, err))
        return NEXT_LATER;
    log_info("mail: message %s: %s", release.message_id, mail_state_name[now]);
    if (now == MAIL_SENT)
        mail_tell(turn->actions, MAIL_EVENT_SENT, inbox->id, release.message_id);
    is_asked_for(turn, &release, now);
    return NEXT_LEFT;
}

static bool leave_some(const struct turn *turn, uint32_t most, struct err *err)
{
    enum next next = NEXT_LEFT;
    uint64_t until_ms = clock_mono_ms() + LIMIT_MAIL_TURN_MS;
    bool done = true;

    for (uint32_t i = 0; i < most && next != NEXT_NONE && next != NEXT_UNKNOWN && clock_mono_ms() < until_ms; i++) {
        struct arena arena;
        struct err one;
        arena_init(&arena);
        next = next_leaves(turn, &arena, &one);
        arena_done(&arena);
        if (next == NEXT_BROKEN)
            log_error("mail: inbox %s: a message cannot leave: %s", turn->box->info.id, err_text(&one));
        if (done && (next == NEXT_LATER || next == NEXT_UNKNOWN)) {
            *err = one;
            done = false;
        }
    }
    return done;
}

static bool tick(const struct turn *turn, struct mail_tick *out, struct err *err)
{
    const struct inbox_info *inbox = &turn->box->info;

    return mail_tick(turn->actions->mail->mail, inbox->id, inbox->mode, &turn->box->approver_public, clock_wall_us(),
                     out, err);
}

bool dispatch_turn(const struct actions *actions, const char *inbox_id, const char *message_id, enum mail_state *state,
                   struct mail_tick *out, struct err *err)
{
    struct mail_box box;
    struct turn turn = { actions, &box, message_id, state };
    struct arena arena;

    arena_init(&arena);
    bool ok = mail_box_by_id(actions, str_from(inbox_id), &arena, &box, err);
    if (!ok && err->kind == ERR_NOT_FOUND) {
        *out = (struct mail_tick){ 0 }; /* deleted: nothing leaves it any more */
        ok = true;
    } else if (ok) {
        ok = tick(&turn, out, err);
        if (ok && out->queued)
            ok = leave_some(&turn, MIN(out->queued, (uint32_t)LIMIT_MAIL_DISPATCH), err) && tick(&turn, out, err);
    }
    arena_done(&arena);
    return ok;
}
