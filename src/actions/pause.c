/* Pausing a sandbox, bringing it back, and copying it while it runs. */
#include "actions/actions.h"

static bool timeout_check(const struct actions *actions, uint64_t timeout_s, struct err *err)
{
    uint64_t most = sandboxes_timeout_max_s(actions->sandboxes);

    return timeout_s <= most ||
           err_set(err, ERR_INVALID, "the timeout must be at most %llu seconds", (unsigned long long)most);
}

bool action_sandbox_pause(const struct actions *actions, const struct caller *caller, struct str id,
                          const struct pause_want *want, struct err *err)
{
    return sandbox_pause(actions->sandboxes, str_from(caller->team_id), id, want, err);
}

bool action_sandbox_resume(const struct actions *actions, const struct caller *caller, struct str id,
                           const struct resume_want *want, struct arena *arena, struct sandbox_info *out,
                           bool *out_resumed, struct err *err)
{
    return timeout_check(actions, want->timeout_s, err) &&
           sandbox_resume(actions->sandboxes, str_from(caller->team_id), id, want, arena, out, out_resumed, err);
}

bool action_sandbox_fork(const struct actions *actions, const struct caller *caller, struct str id, uint32_t count,
                         uint64_t timeout_s, struct arena *arena, struct fork_result *out, struct err *err)
{
    if (count < 1 || count > LIMIT_FORKS)
        return err_set(err, ERR_INVALID, "the count must be between 1 and %d", LIMIT_FORKS);
    return timeout_check(actions, timeout_s, err) &&
           snapshots_have_room(actions, str_from(caller->team_id), err) && /* for what its copies share */
           sandbox_fork(actions->sandboxes, str_from(caller->team_id), id, count, timeout_s, str_from(caller->key_id),
                        arena, out, err);
}
