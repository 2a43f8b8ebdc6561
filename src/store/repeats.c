/*
 * Repeats. A client that gets no answer sends its create again with the same idempotency key; the second request must
 * not make a second sandbox. The key is claimed before the work begins and settled after it:
 *
 *   (none) → running → done      a repeat gets the same answer
 *                    → (none)    the create failed: the key is forgotten
 *                    → lost      the server died in between: written when its node opens the store again
 */
#include "base/clock.h"
#include "store/inside.h"

bool repeats_load(struct store *store, struct err *err)
{
    return sql_exec(store->sql, "UPDATE repeats SET state = 'lost' WHERE state = 'running' AND node_id = $1",
                    SQL_ARGS(sql_text(str_from(store->node_id))), err);
}

struct found {
    bool there;
    enum repeat_verdict verdict;
    struct repeat_outcome outcome;
};

static bool repeat_find(struct store *store, struct str team_id, struct str key, const char *hash, struct arena *arena,
                        struct found *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(store->sql,
                    "SELECT request_hash, state, sandbox_id, template_id, alias, guestd_version FROM repeats "
                    "WHERE team_id = $1 AND repeat_key = $2",
                    SQL_ARGS(sql_text(team_id), sql_text(key)), &rows, err) ||
        !sql_next(&rows, &out->there, err))
        return false;
    if (!out->there)
        return true;
    if (!str_eq(sql_row_text(&rows, 0), str_from(hash)))
        out->verdict = REPEAT_OTHER;
    else if (str_eq(sql_row_text(&rows, 1), STR("done")))
        out->verdict = REPEAT_DONE;
    else if (str_eq(sql_row_text(&rows, 1), STR("lost")))
        out->verdict = REPEAT_LOST;
    else
        out->verdict = REPEAT_RUNNING;
    out->outcome = (struct repeat_outcome){
        .sandbox_id = arena_copy(arena, sql_row_text(&rows, 2)),
        .template_id = arena_copy(arena, sql_row_text(&rows, 3)),
        .alias = arena_copy(arena, sql_row_text(&rows, 4)),
        .guestd_version = arena_copy(arena, sql_row_text(&rows, 5)),
    };
    return true;
}

static bool repeat_claim(struct store *store, struct str team_id, struct str key, const char *hash, struct arena *arena,
                         struct found *out, struct err *err)
{
    if (!tidy(store, err) || !repeat_find(store, team_id, key, hash, arena, out, err))
        return false;
    if (out->there)
        return true;
    out->verdict = REPEAT_FIRST;
    return sql_exec(store->sql,
                    "INSERT INTO repeats (team_id, repeat_key, request_hash, state, sandbox_id, template_id, alias, "
                    "guestd_version, created_us, node_id) VALUES ($1, $2, $3, 'running', '', '', '', '', $4, $5)",
                    SQL_ARGS(sql_text(team_id), sql_text(key), sql_text(str_from(hash)), sql_int(clock_wall_us()),
                             sql_text(str_from(store->node_id))),
                    err);
}

bool store_repeat_begin(struct store *store, struct str team_id, struct str key, struct str route, struct str body,
                        struct arena *arena, enum repeat_verdict *out_verdict, struct repeat_outcome *out_outcome,
                        struct err *err)
{
    const struct str request[] = { route, body };
    struct found found = { 0 };
    char hash[STORE_HASH_BYTES];

    hash_parts(request, COUNT_OF(request), hash);
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "claim an idempotency key");
    bool ok = repeat_claim(store, team_id, key, hash, arena, &found, err);
    if (!sql_end(store->sql, ok, err))
        return err_wrap(err, "claim an idempotency key");
    *out_verdict = found.verdict;
    *out_outcome = found.outcome;
    return true;
}

bool store_repeat_done(struct store *store, struct str team_id, struct str key, const struct repeat_outcome *outcome,
                       struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql,
                    "UPDATE repeats SET state = 'done', sandbox_id = $1, template_id = $2, alias = $3, "
                    "guestd_version = $4 WHERE team_id = $5 AND repeat_key = $6",
                    SQL_ARGS(sql_text(outcome->sandbox_id), sql_text(outcome->template_id), sql_text(outcome->alias),
                             sql_text(outcome->guestd_version), sql_text(team_id), sql_text(key)),
                    err) ||
           err_wrap(err, "settle an idempotency key");
}

bool store_repeat_forget(struct store *store, struct str team_id, struct str key, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "DELETE FROM repeats WHERE team_id = $1 AND repeat_key = $2",
                    SQL_ARGS(sql_text(team_id), sql_text(key)), err) ||
           err_wrap(err, "forget an idempotency key");
}
