/*
 * What a team has had running. Nobody samples that: beginnings and ends are events, and counting them back from what
 * runs now tells every moment of the seven days that events are kept, restarts or not.
 */
#include "actions/actions.h"
#include "base/clock.h"

static const int64_t KEPT_US = INT64_C(7) * 24 * 3600 * 1000000;

static bool need_own_team(const struct caller *caller, struct str team_id, struct err *err)
{
    return str_eq(str_from(caller->team_id), team_id) || err_set(err, ERR_DENIED, "that team is not yours");
}

bool action_team_metrics(const struct actions *actions, const struct caller *caller, struct str team_id,
                         int64_t start_us, int64_t end_us, struct arena *arena, struct team_metric **out,
                         size_t *out_count, struct err *err)
{
    struct event_count *counts;
    size_t count;

    if (!need_own_team(caller, team_id, err))
        return false;
    int64_t now_us = clock_wall_us();
    start_us = MAX(start_us, now_us - KEPT_US);
    end_us = end_us ? MIN(end_us, now_us) : now_us;
    *out = NULL;
    *out_count = 0;
    if (start_us > end_us)
        return true;
    int64_t step_us = sandbox_metric_step_us(end_us - start_us);
    if (!store_event_count(actions->store, team_id, start_us, step_us, arena, &counts, &count, err))
        return false;

    size_t wanted = (size_t)((end_us - start_us) / step_us) + 1;
    int64_t running = (int64_t)sandboxes_count(actions->sandboxes, team_id);
    struct team_metric *points = ARENA_ARRAY(arena, struct team_metric, wanted);
    for (int64_t step = (now_us - start_us) / step_us; step >= 0; step--) {
        /* Both are in the order of time; what happened while we looked lies past the last step. */
        while (count && counts[count - 1].step > step)
            count--;
        bool any = count && counts[count - 1].step == step;
        if ((size_t)step < wanted)
            points[step] = (struct team_metric){
                .at_us = start_us + step * step_us,
                .running = (uint64_t)MAX(running, INT64_C(0)),
                .starts_per_s = any ? (double)counts[count - 1].created * 1e6 / (double)step_us : 0,
            };
        if (any)
            running += (int64_t)counts[count - 1].killed - (int64_t)counts[count - 1].created;
    }
    *out = points;
    *out_count = wanted;
    return true;
}

/* ---- for administrators ---- */

static bool need_admin(const struct caller *caller, struct err *err)
{
    return caller->is_admin || err_set(err, ERR_DENIED, "that takes the admin token");
}

bool action_caller_in_team(const struct actions *actions, const struct caller *caller, struct str team_id,
                           struct arena *arena, struct caller *out, struct err *err)
{
    struct team_row team;

    if (!need_admin(caller, err) || !store_team_get(actions->store, team_id, arena, &team, err))
        return false;
    struct caller there = { .is_admin = true };
    if (!str_to_path(team.id, there.team_id, sizeof there.team_id, err))
        return false;
    *out = there;
    return true;
}

bool action_running_counts(const struct actions *actions, const struct caller *caller, struct arena *arena,
                           struct team_count **out, size_t *out_count, struct err *err)
{
    struct team_row *teams;
    size_t count;

    if (!need_admin(caller, err) || !store_team_list(actions->store, arena, &teams, &count, err))
        return false;
    struct team_count *list = ARENA_ARRAY(arena, struct team_count, count);
    for (size_t i = 0; i < count; i++)
        list[i] = (struct team_count){ teams[i].id, sandboxes_count(actions->sandboxes, teams[i].id) };
    *out = list;
    *out_count = count;
    return true;
}

bool action_team_kill(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      size_t *out_killed, size_t *out_failed, struct err *err)
{
    struct str team_id = str_from(caller->team_id);
    struct sandbox_info *list;
    size_t count;
    struct err ignored; /* who fails is counted, and tried again by itself */

    if (!need_admin(caller, err) || !sandbox_list(actions->sandboxes, team_id, arena, &list, &count, err))
        return false;
    *out_killed = *out_failed = 0;
    for (size_t i = 0; i < count; i++) {
        if (sandbox_kill(actions->sandboxes, team_id, list[i].id, "admin", &ignored) || ignored.kind == ERR_NOT_FOUND)
            ++*out_killed;
        else
            ++*out_failed;
    }
    return true;
}
