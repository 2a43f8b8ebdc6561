/*
 * Teams, and how many sandboxes each had running over time. The numbers are not sampled: starts and ends are events in
 * the store, so counting back from the number that runs now gives it for any moment of the seven days that events are
 * kept, across restarts.
 */
#include "actions/actions.h"
#include "actions/build.h"
#include "base/clock.h"

static const int64_t KEPT_US = INT64_C(7) * 24 * 3600 * 1000000;
enum { TEAM_NAME_CHARS = 63 };

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
        /* Both lists are ordered by time. Events that came during this call lie beyond the last step: skip them. */
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

bool action_pool_figures(const struct actions *actions, const struct caller *caller, struct pool_figures *out,
                         struct err *err)
{
    if (!caller_need_admin(caller, err))
        return false;
    *out = sandboxes_pool_figures(actions->sandboxes);
    return true;
}

bool action_team_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      struct team_row **out, size_t *out_count, struct err *err)
{
    return caller_need_admin(caller, err) && store_team_list(actions->store, arena, out, out_count, err);
}

bool action_caller_in_team(const struct actions *actions, const struct caller *caller, struct str team_id,
                           struct arena *arena, struct caller *out, struct err *err)
{
    struct team_row team;

    if (!caller_need_admin(caller, err) || !store_team_get(actions->store, team_id, arena, &team, err))
        return false;
    struct caller there = { .is_admin = true };
    if (!str_to_path(team.id, there.team_id, sizeof there.team_id, err))
        return false;
    *out = there;
    return true;
}

/* A team's name is also a namespace of templates, so it has the same characters. */
static bool slug_check(struct str slug, struct err *err)
{
    bool ok = slug.len > 0 && slug.len <= TEAM_NAME_CHARS && slug.at[0] != '-' && slug.at[0] != '_';

    for (size_t i = 0; ok && i < slug.len; i++) {
        char c = slug.at[i];
        ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    }
    return ok ||
           err_set(
               err, ERR_INVALID,
               "a team's name must have 1 to %d characters of a-z, 0-9, - and _, and begin with a letter or a digit",
               TEAM_NAME_CHARS);
}

bool action_team_create(const struct actions *actions, const struct caller *caller, struct str name,
                        struct arena *arena, struct team_row *out, struct err *err)
{
    return caller_need_admin(caller, err) && slug_check(name, err) &&
           store_team_add(actions->store, name, arena, out, err);
}

static bool revoke_keys(const struct actions *actions, struct str team_id, struct arena *arena, size_t *out_count,
                        struct err *err)
{
    struct key_row *keys;
    size_t count;

    if (!store_key_list(actions->store, team_id, arena, &keys, &count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!store_key_revoke(actions->store, team_id, keys[i].id, err) && err->kind != ERR_NOT_FOUND)
            return false;
    *out_count = count;
    return true;
}

bool action_team_delete(const struct actions *actions, const struct caller *caller, struct str team_id, bool force,
                        struct arena *arena, struct team_end *out, struct err *err)
{
    struct team_end end = { 0 };
    struct team_row team;
    struct caller there;
    size_t failed;

    if (!action_caller_in_team(actions, caller, team_id, arena, &there, err) ||
        !store_team_get(actions->store, team_id, arena, &team, err))
        return false;
    if (team.is_default)
        return err_set(err, ERR_CONFLICT, "the default team stays: the server's first API key belongs to it");
    size_t running = sandboxes_count(actions->sandboxes, team_id);
    if (!force && (team.key_count || running))
        return err_set(err, ERR_CONFLICT,
                       "team '%.*s' has %u API key%s and %zu running sandbox%s: revoke and kill them first, or use "
                       "--force (API: force=true)",
                       (int)MIN(team.slug.len, (size_t)40), team.slug.at, team.key_count,
                       team.key_count == 1 ? "" : "s", running, running == 1 ? "" : "es");
    /* Keys first, so that no new sandbox is started after the kill. */
    if (force && (!revoke_keys(actions, team_id, arena, &end.revoked, err) ||
                  !action_team_kill(actions, &there, arena, &end.killed, &failed, err) ||
                  !snapshots_delete_all(actions, team_id, arena, &end.snapshots, err) ||
                  !templates_delete_all(actions, team_id, arena, &end.templates, err)))
        return false;
    if (!store_team_remove(actions->store, team_id, err))
        return false;
    *out = end;
    return true;
}

size_t action_team_running(const struct actions *actions, const struct team_row *team)
{
    return sandboxes_count(actions->sandboxes, team->id);
}

bool action_running_counts(const struct actions *actions, const struct caller *caller, struct arena *arena,
                           struct team_count **out, size_t *out_count, struct err *err)
{
    struct team_row *teams;
    size_t count;

    if (!caller_need_admin(caller, err) || !store_team_list(actions->store, arena, &teams, &count, err))
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
    struct err ignored; /* failures are counted; sandbox/ retries a failed kill */

    if (!caller_need_admin(caller, err) || !sandbox_list(actions->sandboxes, team_id, arena, &list, &count, err))
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
