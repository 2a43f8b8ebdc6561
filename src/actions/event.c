#include "actions/actions.h"

bool action_event_list(const struct actions *actions, const struct caller *caller, const struct event_filter *filter,
                       struct arena *arena, struct event_row **out, size_t *out_count, struct err *err)
{
    struct event_filter own = *filter;

    own.team_id = str_from(caller->team_id);
    return store_event_find(actions->store, &own, arena, out, out_count, err);
}

void action_sandbox_logs(const struct actions *actions, const struct caller *caller, struct str id, int64_t from_us,
                         int64_t to_us, struct arena *arena, struct sandbox_log **out, size_t *out_count)
{
    sandbox_logs(actions->sandboxes, str_from(caller->team_id), id, from_us, to_us, arena, out, out_count);
}
