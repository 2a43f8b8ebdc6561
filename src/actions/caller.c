#include "actions/actions.h"
#include "base/log.h"

static void become(const struct key_owner *owner, struct caller *out)
{
    *out = (struct caller){ 0 };
    memcpy(out->team_id, owner->team_id, sizeof out->team_id);
    memcpy(out->key_id, owner->key_id, sizeof out->key_id);
}

bool action_caller_known(const struct actions *actions, struct str key, struct caller *out)
{
    struct key_owner owner;

    if (!store_key_cached(actions->store, key, &owner))
        return false;
    become(&owner, out);
    return true;
}

bool action_caller_by_key(const struct actions *actions, struct str key, struct caller *out, struct err *err)
{
    struct key_owner owner;

    if (!store_key_find(actions->store, key, &owner, err))
        return false;
    become(&owner, out);
    return true;
}

bool action_caller_by_admin_token(const struct actions *actions, struct str token, struct str team_id,
                                  struct caller *out, struct err *err)
{
    struct team_row team = { .id = store_team_default(actions->store) };
    struct caller caller = { .is_admin = true };
    struct arena arena;
    char hash[STORE_HASH_BYTES];

    /* As with API keys, front has only the hash: a leak of its memory does not reveal the token. */
    store_secret_hash(token, hash);
    if (!actions->admin_hash || token.len == 0 || !secret_eq(actions->admin_hash, str_from(hash)))
        return err_set(err, ERR_DENIED, "the admin token is wrong");
    arena_init(&arena);
    bool ok = (team_id.len == 0 || store_team_get(actions->store, team_id, &arena, &team, err)) &&
              str_to_path(team.id, caller.team_id, sizeof caller.team_id, err);
    arena_done(&arena);
    if (!ok)
        return false;
    *out = caller;
    return true;
}

bool caller_need_admin(const struct caller *caller, struct err *err)
{
    return caller->is_admin || err_set(err, ERR_DENIED, "this needs the admin token");
}

void action_caller_seen(const struct actions *actions, const struct caller *caller)
{
    struct err err;

    if (caller->key_id[0] && !store_key_touch(actions->store, str_from(caller->key_id), &err))
        log_warn("key %s: cannot record when it was last used: %s", caller->key_id, err_text(&err));
}
