#include "actions/actions.h"

void action_sandbox_metrics(const struct actions *actions, const struct caller *caller, struct str id, int64_t start_us,
                            int64_t end_us, struct arena *arena, struct sandbox_metric **out, size_t *out_count)
{
    sandbox_metrics(actions->sandboxes, str_from(caller->team_id), id, start_us, end_us, arena, out, out_count);
}

bool action_sandbox_metric_latest(const struct actions *actions, const struct caller *caller, struct str id,
                                  struct sandbox_metric *out)
{
    return sandbox_metric_latest(actions->sandboxes, str_from(caller->team_id), id, out);
}
