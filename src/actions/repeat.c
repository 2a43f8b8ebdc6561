/*
 * Idempotency keys. The first request with a key claims it in the store, together with its route and body. A repeat
 * with the same route and body gets the result of the first one, or learns that it still runs or that the server died
 * during it; another request with that key is refused. The store keeps no tokens: they are derived or taken from the
 * sandbox.
 */
#include "actions/actions.h"
#include "base/log.h"

enum { REPEAT_KEY_CHARS = 255 };

static bool key_check(struct str key, struct err *err)
{
    bool ok = key.len > 0 && key.len <= REPEAT_KEY_CHARS;

    for (size_t i = 0; ok && i < key.len; i++) {
        char c = key.at[i];
        ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    }
    return ok || err_set(err, ERR_INVALID, "an idempotency key must have 1 to %d characters of a-z, 0-9 and -",
                         REPEAT_KEY_CHARS);
}

bool action_repeat_begin(const struct actions *actions, const struct caller *caller, struct str key, struct str route,
                         struct str body, struct arena *arena, enum repeat_verdict *out_verdict,
                         struct sandbox_info *out_done, struct err *err)
{
    struct repeat_outcome outcome;
    char token[STORE_TOKEN_BYTES];

    if (!key_check(key, err) || !store_repeat_begin(actions->store, str_from(caller->team_id), key, route, body, arena,
                                                    out_verdict, &outcome, err))
        return false;
    if (*out_verdict == REPEAT_DONE) {
        store_access_token(actions->store, outcome.sandbox_id, token);
        *out_done = (struct sandbox_info){
            .id = outcome.sandbox_id,
            .team_id = arena_copy(arena, str_from(caller->team_id)),
            .template_id = outcome.template_id,
            .alias = outcome.alias,
            .guestd_version = outcome.guestd_version,
            .access_token = arena_copy(arena, str_from(token)),
        };
        /* The traffic token is not stored with the key: take it from the sandbox, if that still runs. */
        struct sandbox_info live;
        struct err ignored;
        if (sandbox_get(actions->sandboxes, out_done->team_id, out_done->id, arena, &live, &ignored)) {
            out_done->is_private = live.is_private;
            out_done->traffic_token = live.traffic_token;
        }
    }
    return true;
}

void action_repeat_settle(const struct actions *actions, const struct caller *caller, struct str key,
                          const struct sandbox_info *made)
{
    struct str team_id = str_from(caller->team_id);
    struct err err;
    bool ok;

    if (made)
        ok = store_repeat_done(
            actions->store, team_id, key,
            &(struct repeat_outcome){ made->id, made->template_id, made->alias, made->guestd_version }, &err);
    else
        ok = store_repeat_forget(actions->store, team_id, key, &err);
    /* The client gets its answer in any case. A repeated request will be told that the first one is still running. */
    if (!ok)
        log_warn("idempotency key of team %s: cannot store the result: %s", caller->team_id, err_text(&err));
}
