/*
 * Inboxes in use: no timer is lost, and a loop of sends costs little.
 *
 * An inbox's timers (scheduled messages, undo windows, holds that expire) and its held messages are in its own file, which
 * only its worker opens. Front's row has the time of the next timer and the number of held messages, so that front knows
 * which inboxes to look at. A row that is written after each change would double the cost of a send, and a crash between
 * the two writes would lose a timer. Instead:
 *
 *   begin    the row gets a mark, durable, before the first change. Further changes find the mark and write nothing.
 *   quiet    some seconds after the last change the inbox is asked for its next timer and its held messages (mail_tick). If
 *            no change has begun since, both go into the row, and the mark goes.
 *   start    rows with a mark are asked too: the server stopped in the middle.
 *
 * While a row has the mark its inbox has an entry here, with the time of the next tick that is known.
 *
 * Ticks. One inbox can take a tick as long as a call may wait, because its worker is stuck or that of a recipient is. So
 * several ticks may run at once: they take inboxes from one list, which the one that finds it empty fills again. A recipient
 * that does not answer is waited for by one tick: the entry of the recipient says so to the others.
 *
 * Locks, in this order: `turn` of an entry (a dispatcher works), `mark` of an entry (its row is written), `lock` (the map
 * and all other fields). A thread has the turn of one inbox at most.
 */
#include <pthread.h>

#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum { MILLI = 1000, SECOND_US = 1000000, MINUTE_S = 60 };
enum { AWAY_LEAST_MS = 1000 }; /* the first pause of turn_failed(): the next try is not in vain */

struct busy_inbox {
    char id[MAIL_INBOX_ID_BYTES];
    pthread_mutex_t turn, mark;
    bool is_marked;       /* written with `mark` and `lock`, read with either */
    unsigned users;       /* changes under way */
    bool is_picked;       /* a tick looks at it, or will */
    unsigned arriving;    /* deliveries that wait for its worker… */
    uint64_t arriving_ms; /* …since, the first of them */
    uint64_t away_ms;     /* it has not answered one: until then no other waits */
    uint64_t changes;     /* begun so far */
    uint64_t quiet_ms;    /* when the last one ended */
    int64_t next_us;      /* when a tick is due; 0: only when it is quiet */
    uint64_t retry_ms;    /* not before, after a failure */
    uint32_t failures;    /* in a row */
    struct quota sends;
};

struct mail_busy {
    pthread_mutex_t lock, tick;
    struct map by_id;
    /* With `tick`. */
    bool is_started;
    /* With `lock`: the first timer of a row without the mark; 0: none. */
    int64_t rows_next_us;
    /* With `lock`: inboxes that were picked for ticks, and where in the map to go on. */
    struct busy_inbox *due[LIMIT_MAIL_SWEEP];
    size_t due_count;
    size_t cursor;
};

struct mail_busy *mail_busy_new(void)
{
    struct mail_busy *busy = NEW(struct mail_busy);

    (void)pthread_mutex_init(&busy->lock, NULL);
    (void)pthread_mutex_init(&busy->tick, NULL);
    map_init(&busy->by_id);
    return busy;
}

static void inbox_free(struct busy_inbox *inbox)
{
    (void)pthread_mutex_destroy(&inbox->turn);
    (void)pthread_mutex_destroy(&inbox->mark);
    free(inbox);
}

void mail_busy_free(struct mail_busy *busy)
{
    struct busy_inbox *inbox;

    if (!busy)
        return;
    for (size_t i = 0; (inbox = map_next(&busy->by_id, &i));)
        inbox_free(inbox);
    map_done(&busy->by_id);
    (void)pthread_mutex_destroy(&busy->lock);
    (void)pthread_mutex_destroy(&busy->tick);
    free(busy);
}

/* With the lock. */
static struct busy_inbox *inbox_get(struct mail_busy *busy, const char *inbox_id)
{
    struct str id = str_of(inbox_id, strnlen(inbox_id, MAIL_INBOX_ID_BYTES - 1));
    struct busy_inbox *inbox = map_get(&busy->by_id, id);

    if (inbox)
        return inbox;
    inbox = NEW(struct busy_inbox);
    memcpy(inbox->id, id.at, id.len);
    (void)pthread_mutex_init(&inbox->turn, NULL);
    (void)pthread_mutex_init(&inbox->mark, NULL);
    (void)map_put(&busy->by_id, str_from(inbox->id), inbox);
    return inbox;
}

static void set_marked(struct mail_busy *busy, struct busy_inbox *inbox, bool is_marked)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    inbox->is_marked = is_marked;
}

/* ---- changes ---- */

static bool mark_row(const struct actions *actions, struct busy_inbox *inbox, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&inbox->mark);

    if (inbox->is_marked)
        return true;
    if (!mail_row_dirty(actions, inbox->id, err))
        return false;
    set_marked(actions->mail->busy, inbox, true);
    return true;
}

static struct busy_inbox *change_begins(struct mail_busy *busy, const char *inbox_id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    struct busy_inbox *inbox = inbox_get(busy, inbox_id);

    inbox->users++;
    inbox->changes++;
    return inbox;
}

static int64_t earlier(int64_t a_us, int64_t b_us)
{
    if (!a_us || !b_us)
        return a_us ? a_us : b_us;
    return MIN(a_us, b_us);
}

static void change_ends(struct mail_busy *busy, struct busy_inbox *inbox, int64_t next_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    inbox->users--;
    inbox->quiet_ms = clock_mono_ms();
    inbox->next_us = earlier(inbox->next_us, next_us);
}

bool busy_begin(const struct actions *actions, const char *inbox_id, struct busy_inbox **out, struct err *err)
{
    struct busy_inbox *inbox = change_begins(actions->mail->busy, inbox_id);

    if (!mark_row(actions, inbox, err)) {
        change_ends(actions->mail->busy, inbox, 0);
        return false;
    }
    *out = inbox;
    return true;
}

void busy_end(const struct actions *actions, struct busy_inbox *inbox, int64_t next_us)
{
    change_ends(actions->mail->busy, inbox, next_us);
}

bool busy_may_send(const struct actions *actions, const char *inbox_id, uint32_t *out_retry_s)
{
    struct mail_busy *busy = actions->mail->busy;
    uint32_t per_minute = actions->mail->sends_per_minute;
    /* The bucket fills by the minute: its clock runs 60 times slower. */
    struct quota_rule rule = { .per_s = per_minute, .burst = MAX(per_minute, 1u) };
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    struct busy_inbox *inbox = inbox_get(busy, inbox_id);

    if (quota_take(&rule, &inbox->sends, clock_mono_ms() / MINUTE_S, NULL))
        return true;
    *out_retry_s = MINUTE_S / per_minute + 1;
    return false;
}

/* ---- arrivals ---- */

bool busy_arrival_begins(const struct actions *actions, const char *inbox_id, bool is_patient)
{
    struct mail_busy *busy = actions->mail->busy;
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    struct busy_inbox *inbox = inbox_get(busy, inbox_id);
    uint64_t now_ms = clock_mono_ms();

    if (now_ms < inbox->away_ms ||
        (!is_patient && inbox->arriving && now_ms - inbox->arriving_ms >= LIMIT_MAIL_SLOW_MS))
        return false;
    if (!inbox->arriving++)
        inbox->arriving_ms = now_ms;
    return true;
}

void busy_arrival_ends(const struct actions *actions, const char *inbox_id, bool has_answered)
{
    struct mail_busy *busy = actions->mail->busy;
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    struct busy_inbox *inbox = inbox_get(busy, inbox_id); /* the one of the beginning: it is not forgotten meanwhile */

    uint64_t now_ms = clock_mono_ms(), took_ms = now_ms - inbox->arriving_ms;

    inbox->arriving--;
    inbox->arriving_ms = now_ms;
    /* As long as it has kept this one waiting: a worker that has died is replaced at once. */
    inbox->away_ms = has_answered ? 0 : now_ms + MIN(MAX(took_ms, AWAY_LEAST_MS), LIMIT_MAIL_AWAY_MS);
}

/* ---- dispatching ---- */

static void turn_worked(struct mail_busy *busy, struct busy_inbox *inbox, const struct mail_tick *tick)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    inbox->failures = 0;
    inbox->retry_ms = 0;
    /* What is still queued has had no place in this turn. */
    inbox->next_us = tick->queued ? clock_wall_us() : tick->next_us;
}

static void turn_failed(struct mail_busy *busy, struct busy_inbox *inbox, const struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    uint64_t pause_ms = (uint64_t)MILLI << MIN(inbox->failures, 16u);

    inbox->failures++;
    inbox->retry_ms = clock_mono_ms() + MIN(pause_ms, (uint64_t)LIMIT_MAIL_RETRY_MS);
    inbox->next_us = clock_wall_us();
    log_warn("mail: inbox %s: some messages could not leave, next try in %llu s: %s", inbox->id,
             (unsigned long long)(MIN(pause_ms, (uint64_t)LIMIT_MAIL_RETRY_MS) / MILLI), err_text(err));
}

/* With the turn. */
static bool take_turn(const struct actions *actions, struct busy_inbox *inbox, const char *message_id,
                      enum mail_state *state, struct mail_tick *out)
{
    struct err err;

    if (!dispatch_turn(actions, inbox->id, message_id, state, out, &err)) {
        turn_failed(actions->mail->busy, inbox, &err);
        return false;
    }
    turn_worked(actions->mail->busy, inbox, out);
    return true;
}

void busy_dispatch(const struct actions *actions, struct busy_inbox *inbox, const char *message_id,
                   enum mail_state *state)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&inbox->turn);
    struct mail_tick ignored;

    (void)take_turn(actions, inbox, message_id, state, &ignored); /* it has logged why, and a tick follows */
}

void busy_stop(struct busy_inbox *inbox)
{
    (void)pthread_mutex_lock(&inbox->turn);
}

void busy_go(struct busy_inbox *inbox)
{
    (void)pthread_mutex_unlock(&inbox->turn);
}

void mail_dispatch(const struct actions *actions, const char *inbox_id)
{
    struct busy_inbox *inbox;
    struct err err;

    if (!busy_begin(actions, inbox_id, &inbox, &err)) {
        log_warn("mail: inbox %s: nothing can leave now: %s", inbox_id, err_text(&err));
        return;
    }
    busy_dispatch(actions, inbox, NULL, NULL);
    busy_end(actions, inbox, 0);
}

/* ---- the tick ---- */

static uint64_t changes_of(struct mail_busy *busy, struct busy_inbox *inbox, bool *out_in_use)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    *out_in_use = inbox->users > 0;
    return inbox->changes;
}

static void rows_have_timer(struct mail_busy *busy, int64_t next_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    busy->rows_next_us = earlier(busy->rows_next_us, next_us);
}

/*
 * Writes what the tick has found into the row, and takes the mark away. If a change has begun since the tick, the tick may
 * have missed it: then the mark stays, and there is a next time.
 */
static void settle(const struct actions *actions, struct busy_inbox *inbox, uint64_t changes,
                   const struct mail_tick *tick)
{
    struct mail_busy *busy = actions->mail->busy;
    auto_unlock pthread_mutex_t *held = lock_mutex(&inbox->mark);
    bool in_use;
    struct err err;

    if (changes_of(busy, inbox, &in_use) != changes || in_use)
        return; /* busy_begin() waits for `mark`, so a change that begins now marks the row again */
    if (!mail_row_idle(actions, inbox->id, tick, &err)) {
        log_warn("mail: inbox %s: its next time cannot be stored: %s", inbox->id, err_text(&err));
        return;
    }
    set_marked(busy, inbox, false);
    rows_have_timer(busy, tick->next_us);
}

static void look_at(const struct actions *actions, struct busy_inbox *inbox)
{
    struct mail_tick tick;
    bool in_use;

    if (pthread_mutex_trylock(&inbox->turn) != 0)
        return; /* somebody lets messages leave, perhaps to an inbox that is stuck; it is due again in the next tick */
    auto_unlock pthread_mutex_t *held = &inbox->turn;
    uint64_t changes = changes_of(actions->mail->busy, inbox, &in_use);

    /* A change that had begun by then may end before settle() looks, and the tick may have missed it. */
    if (take_turn(actions, inbox, NULL, NULL, &tick) && !tick.queued && !in_use)
        settle(actions, inbox, changes, &tick);
}

/* Rows whose time has come get an entry that is due. */
static void load_rows(const struct actions *actions, int64_t now_us, bool dirty, struct arena *arena)
{
    struct mail_busy *busy = actions->mail->busy;
    uint32_t limit = dirty ? LIMIT_MAIL_ROWS : LIMIT_MAIL_SWEEP;
    struct mail_row_due *rows;
    size_t count;
    int64_t next_us;
    struct err err;

    if (!mail_rows_due(actions, now_us, dirty, limit, arena, &rows, &count, &next_us, &err)) {
        log_warn("mail: timers of inboxes cannot be read: %s", err_text(&err));
        rows_have_timer(busy, now_us);
        return;
    }
    if (dirty)
        busy->is_started = true;
    (void)pthread_mutex_lock(&busy->lock);
    if (!dirty)
        busy->rows_next_us = count < limit ? next_us : now_us; /* there may be more */
    (void)pthread_mutex_unlock(&busy->lock);
    for (size_t i = 0; i < count; i++) {
        struct busy_inbox *inbox;
        if (!busy_begin(actions, rows[i].id, &inbox, &err)) {
            log_warn("mail: inbox %s: its timer has to wait: %s", rows[i].id, err_text(&err));
            rows_have_timer(busy, now_us);
            continue;
        }
        busy_end(actions, inbox, now_us);
    }
}

static bool is_due(const struct busy_inbox *inbox, int64_t now_us, uint64_t now_ms)
{
    if (!inbox->is_marked || now_ms < inbox->retry_ms)
        return false;
    return (inbox->next_us && inbox->next_us <= now_us) ||
           (!inbox->users && now_ms >= inbox->quiet_ms + LIMIT_MAIL_QUIET_MS);
}

static bool is_idle(const struct busy_inbox *inbox, const struct quota_rule *rule, uint64_t now_ms)
{
    return !inbox->is_marked && !inbox->users && !inbox->is_picked && !inbox->arriving && now_ms >= inbox->away_ms &&
           quota_is_full(rule, &inbox->sends, now_ms / MINUTE_S);
}

/* From where the last walk has ended, so that all have their turn. Also forgets entries that say nothing any more. */
static void pick(const struct actions *actions, int64_t now_us)
{
    struct mail_busy *busy = actions->mail->busy;
    uint32_t per_minute = actions->mail->sends_per_minute;
    struct quota_rule rule = { .per_s = per_minute, .burst = MAX(per_minute, 1u) };
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);
    struct busy_inbox *idle[LIMIT_MAIL_SWEEP];
    size_t idle_count = 0, left = busy->by_id.count;
    uint64_t now_ms = clock_mono_ms();

    for (; left && busy->due_count < LIMIT_MAIL_SWEEP; left--) {
        struct busy_inbox *inbox = map_next(&busy->by_id, &busy->cursor);
        if (!inbox) {
            busy->cursor = 0;
            inbox = map_next(&busy->by_id, &busy->cursor);
        }
        if (!inbox->is_picked && is_due(inbox, now_us, now_ms)) {
            inbox->is_picked = true;
            busy->due[busy->due_count++] = inbox;
        } else if (idle_count < LIMIT_MAIL_SWEEP && is_idle(inbox, &rule, now_ms)) {
            idle[idle_count++] = inbox;
        }
    }
    for (size_t i = 0; i < idle_count; i++) {
        (void)map_remove(&busy->by_id, str_from(idle[i]->id));
        inbox_free(idle[i]);
    }
}

/* The next one for a tick, which unpicks it. NULL: there is none. */
static struct busy_inbox *take_due(struct mail_busy *busy)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    return busy->due_count ? busy->due[--busy->due_count] : NULL;
}

static void unpick(struct mail_busy *busy, struct busy_inbox *inbox)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    inbox->is_picked = false;
}

static size_t count_due(struct mail_busy *busy)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    return busy->due_count;
}

static bool rows_are_due(struct mail_busy *busy, int64_t now_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&busy->lock);

    return busy->rows_next_us && busy->rows_next_us <= now_us;
}

/* Fills the list if it is empty. Returns how many are in it. */
static size_t find_due(const struct actions *actions, int64_t now_us)
{
    struct mail_busy *busy = actions->mail->busy;
    struct arena arena;

    if (count_due(busy) || pthread_mutex_trylock(&busy->tick) != 0)
        return count_due(busy);
    arena_init(&arena);
    if (!busy->is_started) {
        load_rows(actions, now_us, true, &arena);
        load_rows(actions, now_us, false, &arena);
    } else if (rows_are_due(busy, now_us)) {
        load_rows(actions, now_us, false, &arena);
    }
    pick(actions, now_us);
    size_t count = count_due(busy);
    arena_done(&arena);
    (void)pthread_mutex_unlock(&busy->tick);
    return count;
}

int64_t action_mail_tick(const struct actions *actions, int64_t now_us)
{
    struct mail_busy *busy = actions->mail->busy;
    bool is_full = find_due(actions, now_us) == LIMIT_MAIL_SWEEP;

    for (struct busy_inbox *inbox; (inbox = take_due(busy));) {
        look_at(actions, inbox);
        unpick(busy, inbox);
    }
    return is_full ? now_us : now_us + SECOND_US;
}
