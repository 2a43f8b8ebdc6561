#include "actions/actions.h"

bool action_event_list(const struct actions *actions, const struct caller *caller, const struct event_filter *filter,
                       struct arena *arena, struct event_row **out, size_t *out_count, struct err *err)
{
    struct event_filter own = *filter;

    own.team_id = str_from(caller->team_id);
    return store_event_find(actions->store, &own, arena, out, out_count, err);
}
