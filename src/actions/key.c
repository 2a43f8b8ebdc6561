#include "actions/actions.h"
#include "base/encode.h"

static bool name_check(struct str *name, struct err *err)
{
    *name = str_trim(*name);
    if (name->len == 0 || name->len >= LIMIT_NAME_BYTES)
        return err_set(err, ERR_INVALID, "a key's name must have between 1 and %d bytes", LIMIT_NAME_BYTES - 1);
    for (size_t i = 0; i < name->len; i++)
        if ((unsigned char)name->at[i] < 0x20 || name->at[i] == 0x7f)
            return err_set(err, ERR_INVALID, "a key's name must not have control characters");
    return utf8_valid(*name) || err_set(err, ERR_INVALID, "a key's name must be UTF-8");
}

bool action_key_create(const struct actions *actions, const struct caller *caller, struct str name, struct arena *arena,
                       struct key_row *out, struct secret *out_text, struct err *err)
{
    return caller_need_admin(caller, err) && name_check(&name, err) &&
           store_key_add(actions->store, str_from(caller->team_id), name, arena, out, out_text, err);
}

bool action_key_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                     struct key_row **out, size_t *out_count, struct err *err)
{
    return caller_need_admin(caller, err) &&
           store_key_list(actions->store, str_from(caller->team_id), arena, out, out_count, err);
}

bool action_key_list_all(const struct actions *actions, const struct caller *caller, struct arena *arena,
                         struct key_row **out, size_t *out_count, struct err *err)
{
    return caller_need_admin(caller, err) && store_key_list(actions->store, STR(""), arena, out, out_count, err);
}

bool action_key_rename(const struct actions *actions, const struct caller *caller, struct str id, struct str name,
                       struct arena *arena, struct key_row *out, struct err *err)
{
    return caller_need_admin(caller, err) && name_check(&name, err) &&
           store_key_rename(actions->store, str_from(caller->team_id), id, name, arena, out, err);
}

bool action_key_revoke(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
{
    return caller_need_admin(caller, err) && store_key_revoke(actions->store, str_from(caller->team_id), id, err);
}
