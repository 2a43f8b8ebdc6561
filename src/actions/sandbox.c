#include "actions/actions.h"
#include "base/clock.h"
#include "base/log.h"
#include "template/template.h"

/*
 * The team may have been deleted after the caller's key was checked. store_team_remove() refuses once the sandbox has a
 * row. If the team was removed before that, it is missing here, and the sandbox is killed: no key could reach it.
 */
static bool team_is_there(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
{
    struct str team_id = str_from(caller->team_id);
    struct err kill_err;

    if (store_team_is_there(actions->store, team_id, err))
        return true;
    if (!sandbox_kill(actions->sandboxes, team_id, id, "admin", &kill_err))
        log_warn("sandbox %.*s: its team was deleted, and killing it failed: %s", STR_ARG(id), err_text(&kill_err));
    return err->kind == ERR_NOT_FOUND ? err_set(err, ERR_DENIED, "the team of this API key was deleted") : false;
}

enum { CREATE_ROUNDS = 3 };

/* What the template's start command started at the build runs in every sandbox; here, because there is no image of it. */
static bool start_template(const struct actions *actions, const struct build_row *build, uint64_t timeout_s,
                           const struct sandbox_info *info, struct err *err)
{
    uint64_t most_ms = MIN(timeout_s * 1000, (uint64_t)LIMIT_READY_MS);
    struct err kill_err;

    if (template_start(actions->sandboxes,
                       &(struct start_want){ .sandbox_id = info->id,
                                             .start_cmd = build->start_cmd,
                                             .ready_cmd = build->ready_cmd,
                                             .context = build->start_context,
                                             .until_ms = clock_mono_ms() + most_ms },
                       err))
        return true;
    if (!sandbox_kill(actions->sandboxes, info->team_id, info->id, "start failed", &kill_err))
        log_warn("sandbox %.*s: its template did not start, and killing it failed: %s", STR_ARG(info->id),
                 err_text(&kill_err));
    return err_wrap(err, "start the template");
}

static bool may_wait(const struct sandbox_request *request, struct err *err)
{
    if (!request->out_must_wait)
        return true;
    *request->out_must_wait = true;
    return err_set(err, ERR_UNAVAILABLE, "the start command of the template is to be waited for");
}

static bool create_with(const struct actions *actions, const struct caller *caller,
                        const struct sandbox_request *request, const struct template_row *template, struct str image,
                        struct arena *arena, struct sandbox_info *out, struct err *err)
{
    return sandbox_create(actions->sandboxes,
                          &(struct sandbox_want){
                              .team_id = str_from(caller->team_id),
                              .template_id = template->id,
                              .alias = template->alias_count ? template->aliases[0] : STR(""),
                              .guestd_version = template->guestd_version,
                              .layer_count = template->layer_count,
                              .layers = template->layers,
                              .cpu_count = template->cpu_count,
                              .memory_mb = template->memory_mb,
                              .disk_mb = template->disk_mb,
                              .timeout_s = request->timeout_s,
                              .metadata_count = request->metadata_count,
                              .metadata = request->metadata,
                              .env_count = request->env_count,
                              .envs = request->envs,
                              .network = request->network,
                              .https_port_count = request->https_port_count,
                              .https_ports = request->https_ports,
                              .key_id = str_from(caller->key_id),
                              .is_private = request->is_private,
                              .mask_host = request->mask_host,
                              .open_code = request->open_code && !actions->code_always_has_token,
                              .lifecycle = request->lifecycle,
                              .image = image,
                              .default_user = template->default_user,
                              .default_workdir = template->default_workdir,
                          },
                          arena, out, err);
}

/*
 * The image of a build's processes fits the kernel, the guestd and the CRIU that it was made with. After an update of one of
 * them the build's files still do, and its start command is run again.
 */
static bool create_from(const struct actions *actions, const struct caller *caller,
                        const struct sandbox_request *request, const struct template_row *template, struct arena *arena,
                        struct sandbox_info *out, struct err *err)
{
    const struct build_row *build = template->build;
    bool has_command = build && (build->start_cmd.len || build->ready_cmd.len), is_fit = true;

    if (has_command && !template->image.len && !may_wait(request, err))
        return false;
    if (!create_with(actions, caller, request, template, template->image, arena, out, err)) {
        bool is_misfit = err->kind == ERR_INVALID || err->kind == ERR_UNAVAILABLE || err->kind == ERR_CONFLICT;
        is_fit = !build || !template->image.len || !is_misfit;
        if (is_fit)
            return false;
        log_info("template %.*s: its processes cannot be brought back here, so its start command is run: %s",
                 STR_ARG(template->id), err_text(err));
        if (has_command && !may_wait(request, err))
            return false;
        if (!create_with(actions, caller, request, template, STR(""), arena, out, err))
            return false;
    }
    bool must_start = has_command && (!template->image.len || !is_fit);
    return !must_start || start_template(actions, build, request->timeout_s, out, err);
}

static void count_spawn(const struct actions *actions, struct str template_id)
{
    struct err err;

    if (!store_built_spawned(actions->store, template_id, &err))
        log_warn("template %.*s: cannot count its sandbox: %s", STR_ARG(template_id), err_text(&err));
}

static bool same_build(const struct template_row *a, const struct template_row *b)
{
    return a->layer_count == b->layer_count && str_eq(a->image, b->image) &&
           (a->layer_count == 0 || str_eq(a->layers[a->layer_count - 1], b->layers[b->layer_count - 1]));
}

/* What is used is kept (retention.c). */
static void note_use(const struct actions *actions, const struct template_row *template)
{
    int64_t now_us = clock_wall_us();
    struct err err;

    if (template->kept_id.len && template->used_us < now_us - STORE_USE_US &&
        !store_snapshot_use(actions->store, template->kept_id, now_us, &err))
        log_warn("snapshot %.*s: %s", STR_ARG(template->kept_id), err_text(&err));
}

/*
 * A snapshot can be deleted, or replaced by a newer build of its tag, between the search and the start. Then its layers or
 * its image are not there any more and the start fails: the newer build is taken.
 */
bool action_sandbox_create(const struct actions *actions, const struct caller *caller,
                           const struct sandbox_request *request, struct arena *arena, struct sandbox_info *out,
                           struct err *err)
{
    struct template_row template, now;
    struct err find_err;

    if (!action_template_resolve(actions, caller, request->template_ref, arena, &template, err))
        return false;
    for (int round = 1; !create_from(actions, caller, request, &template, arena, out, err); round++) {
        if ((err->kind != ERR_INTERNAL && err->kind != ERR_NOT_FOUND) || round == CREATE_ROUNDS)
            return false;
        if (!action_template_resolve(actions, caller, request->template_ref, arena, &now, &find_err)) {
            *err = find_err;
            return false;
        }
        if (same_build(&template, &now))
            return false;
        template = now;
    }
    note_use(actions, &template);
    if (template.build)
        count_spawn(actions, template.id);
    return team_is_there(actions, caller, out->id, err);
}

bool action_sandbox_get(const struct actions *actions, const struct caller *caller, struct str id, struct arena *arena,
                        struct sandbox_info *out, struct err *err)
{
    return sandbox_get(actions->sandboxes, str_from(caller->team_id), id, arena, out, err);
}

bool action_sandbox_kill(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
{
    return sandbox_kill(actions->sandboxes, str_from(caller->team_id), id, caller->is_admin ? "admin" : "request", err);
}

bool action_sandbox_set_timeout(const struct actions *actions, const struct caller *caller, struct str id,
                                uint64_t timeout_s, struct arena *arena, struct err *err)
{
    struct sandbox_info ignored;

    return sandbox_set_deadline(actions->sandboxes, str_from(caller->team_id), id, timeout_s, DEADLINE_SET, arena,
                                &ignored, err);
}

bool action_sandbox_refresh(const struct actions *actions, const struct caller *caller, struct str id,
                            uint64_t timeout_s, struct arena *arena, struct err *err)
{
    struct sandbox_info ignored;

    return sandbox_set_deadline(actions->sandboxes, str_from(caller->team_id), id, timeout_s, DEADLINE_EXTEND, arena,
                                &ignored, err);
}

bool action_sandbox_set_network(const struct actions *actions, const struct caller *caller, struct str id,
                                const struct net_policy *network, struct arena *arena, struct err *err)
{
    return sandbox_set_network(actions->sandboxes, str_from(caller->team_id), id, network, arena, err);
}

/* ---- list ---- */

/* Newest first, ties by id ascending. */
static int order(int64_t a_us, struct str a_id, int64_t b_us, struct str b_id)
{
    if (a_us != b_us)
        return a_us > b_us ? -1 : 1;
    return str_order(a_id, b_id);
}

static bool has_pair(const struct sandbox_info *info, const struct pair *wanted)
{
    for (uint32_t i = 0; i < info->metadata_count; i++)
        if (str_eq(info->metadata[i].name, wanted->name))
            return str_eq(info->metadata[i].value, wanted->value);
    return false;
}

static bool matches(const struct sandbox_filter *filter, struct str template_id, const struct sandbox_info *info)
{
    if (!(info->is_paused ? filter->paused : filter->running))
        return false;
    if (template_id.len && !str_eq(info->template_id, template_id))
        return false;
    if (filter->started_after_us && info->started_us < filter->started_after_us)
        return false;
    for (uint32_t i = 0; i < filter->metadata_count; i++)
        if (!has_pair(info, &filter->metadata[i]))
            return false;
    return true;
}

/* Does the row come after the mark, in the order of this list? */
static bool is_past(const struct sandbox_filter *filter, const struct sandbox_info *info)
{
    if (!filter->after)
        return true;
    int where = order(info->started_us, info->id, filter->after->started_us, filter->after->id);
    return filter->oldest_first ? where < 0 : where > 0;
}

static void reverse(struct sandbox_info *rows, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct sandbox_info swapped = rows[i];
        rows[i] = rows[count - 1 - i];
        rows[count - 1 - i] = swapped;
    }
}

bool action_sandbox_list(const struct actions *actions, const struct caller *caller,
                         const struct sandbox_filter *filter, struct arena *arena, struct sandbox_page *out,
                         struct err *err)
{
    struct template_found template = { 0 };
    struct sandbox_info *rows;
    size_t count, kept = 0, total = 0;

    *out = (struct sandbox_page){ 0 };
    if (filter->template_ref.len && !template_named(actions, caller, filter->template_ref, arena, &template, err))
        return err->kind == ERR_NOT_FOUND || err->kind == ERR_DENIED; /* no template, no rows */
    if (!sandbox_list(actions->sandboxes, str_from(caller->team_id), arena, &rows, &count, err))
        return false;
    if (filter->oldest_first)
        reverse(rows, count);
    for (size_t i = 0; i < count; i++) {
        if (!matches(filter, template.id, &rows[i]))
            continue;
        total += !rows[i].is_paused;
        if (is_past(filter, &rows[i]))
            rows[kept++] = rows[i];
    }
    size_t shown = filter->limit ? MIN(kept, (size_t)filter->limit) : kept;
    *out = (struct sandbox_page){ .rows = rows, .count = shown, .running_total = total, .more = kept > shown };
    return true;
}
