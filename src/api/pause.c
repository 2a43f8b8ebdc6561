/*
 * Pausing a sandbox, bringing it back (connect, resume), and copying it while it runs (fork). Connect has two versions,
 * which differ in what a request may leave out.
 */
#include "api/request.h"

enum {
    CONNECT_TIMEOUT_S = 300,
    RESUME_TIMEOUT_S = 15,
    FORK_TIMEOUT_S = 300, /* the schema says 15; but clients that leave it out mean what they sent before, 300 */
};

/* ---- pause ---- */

static void pause_failed(struct request *rq, const struct pause_want *want, const struct err *err)
{
    /* Both need guestd. If it was silent, it will be silent a second later too. */
    if (err->kind == ERR_UNAVAILABLE && (want->must_answer || !want->memory))
        reply_problem(rq, 503, NULL, RETRY_NO, str_from(err->message));
    else
        reply_err(rq, err);
}

void api_sandbox_pause(struct request *rq)
{
    struct pause_want want = { .memory = true, .reason = "request" };
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !json_take_bool(body, "memory", JSON_OPTIONAL, &want.memory, &err) ||
        !json_take_bool(body, "requireHealthyGuest", JSON_OPTIONAL, &want.must_answer, &err))
        reply_invalid(rq, &err);
    else if (!action_sandbox_pause(rq->actions, &rq->caller, id, &want, &err))
        pause_failed(rq, &want, &err);
    else
        reply_empty(rq, 204);
}

/* ---- connect and resume ---- */

/* Two conflicts have a name that clients know. */
static void resume_failed(struct request *rq, struct str id, const struct resume_want *want, const struct err *err)
{
    struct sandbox_info info;
    struct err ignored;

    if (err->kind != ERR_CONFLICT || !action_sandbox_get(rq->actions, &rq->caller, id, rq->arena, &info, &ignored)) {
        reply_err(rq, err);
        return;
    }
    const char *slug = NULL;
    if (want->how == RESUME_REBOOT)
        slug = "sandbox_start_in_flight";
    else if (info.is_paused && info.was_silent)
        slug = "sandbox_snapshot_guest_agent_unresponsive";
    reply_problem(rq, 409, slug, RETRY_UNSAID, str_from(err->message));
}

static void bring_back(struct request *rq, struct str id, const struct resume_want *want)
{
    struct sandbox_info info;
    bool resumed = false;
    struct err err;

    if (!action_sandbox_resume(rq->actions, &rq->caller, id, want, rq->arena, &info, &resumed, &err)) {
        resume_failed(rq, id, want, &err);
        return;
    }
    struct json_out json = reply_json(rq, resumed ? 201 : 200);
    sandbox_encode(&json, NULL, rq, &info);
}

static bool want_decode(const json_t *body, enum json_need need, int64_t timeout_s, struct resume_want *out,
                        struct err *err)
{
    bool memory = true;

    if (!take_seconds(body, "timeout", need, 0, &timeout_s, err) ||
        !json_take_bool(body, "memory", JSON_OPTIONAL, &memory, err))
        return false;
    out->timeout_s = (uint64_t)timeout_s;
    out->how = memory ? RESUME_AS_KEPT : RESUME_REBOOT;
    return true;
}

static void connect_to(struct request *rq, enum json_need need)
{
    struct resume_want want = { 0 };
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !want_decode(body, need, CONNECT_TIMEOUT_S, &want, &err))
        reply_invalid(rq, &err);
    else
        bring_back(rq, id, &want);
}

void api_sandbox_connect_v1(struct request *rq)
{
    connect_to(rq, JSON_REQUIRED);
}

void api_sandbox_connect_v2(struct request *rq)
{
    connect_to(rq, JSON_OPTIONAL);
}

/* What happens at the deadline is fixed at create. A different wish is refused, not ignored. */
static bool auto_pause_check(struct request *rq, struct str id, const json_t *body, struct err *err)
{
    struct sandbox_info info;
    bool wanted = false;

    if (!json_take_bool(body, "autoPause", JSON_OPTIONAL, &wanted, err))
        return false;
    if (!json_has(body, "autoPause"))
        return true;
    return action_sandbox_get(rq->actions, &rq->caller, id, rq->arena, &info, err) &&
           (info.lifecycle.auto_pause == wanted ||
            err_set(err, ERR_INVALID, "'autoPause' cannot be changed by a resume: it was %s when the sandbox was made",
                    wanted ? "false" : "true"));
}

void api_sandbox_resume(struct request *rq)
{
    struct resume_want want = { .only_paused = true };
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !want_decode(body, JSON_OPTIONAL, RESUME_TIMEOUT_S, &want, &err) ||
        !auto_pause_check(rq, id, body, &err))
        reply_invalid(rq, &err);
    else
        bring_back(rq, id, &want);
}

/* ---- fork ---- */

static void fork_encode(struct json_out *json, struct request *rq, const struct fork_result *one)
{
    json_out_object(json, NULL);
    if (one->ok) {
        sandbox_encode(json, "sandbox", rq, &one->info);
    } else {
        bool is_ours = one->err.kind == ERR_INTERNAL || one->err.kind == ERR_NONE;
        json_out_object(json, "error");
        json_out_int(json, "code", reply_status_of(one->err.kind));
        json_out_str(json, "message",
                     is_ours ? reply_reference(rq, "the copy could not be started", &one->err)
                             : str_from(one->err.message));
        json_out_end(json);
    }
    json_out_end(json);
}

void api_sandbox_fork(struct request *rq)
{
    int64_t timeout_s = FORK_TIMEOUT_S, count = 1;
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !take_seconds(body, "timeout", JSON_OPTIONAL, 1, &timeout_s, &err) ||
        !take_seconds(body, "count", JSON_OPTIONAL, 1, &count, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (count > LIMIT_FORKS) {
        (void)err_set(&err, ERR_INVALID, "'count' must be at most %d", LIMIT_FORKS);
        reply_invalid(rq, &err);
        return;
    }
    struct fork_result *made = ARENA_ARRAY(rq->arena, struct fork_result, (size_t)count);
    if (!action_sandbox_fork(rq->actions, &rq->caller, id, (uint32_t)count, (uint64_t)timeout_s, rq->arena, made,
                             &err)) {
        reply_copy_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 201);
    json_out_array(&json, NULL);
    for (int64_t i = 0; i < count; i++)
        fork_encode(&json, rq, &made[i]);
    json_out_end(&json);
}
