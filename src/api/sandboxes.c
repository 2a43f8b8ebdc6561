/*
 * Create, and the calls on one sandbox. Routes that exist in two versions share one function here; the versions differ
 * in what a request may leave out. A create with an Idempotency-Key first claims the key, and settles it when the
 * result is known.
 */
#include "api/request.h"

enum {
    REFRESH_LEAST_S = 15,
    REFRESH_MOST_S = 3600,
};

/* ---- create ---- */

static void create_failed(struct request *rq, const struct err *err)
{
    switch (err->kind) {
    case ERR_TIMEOUT:
        /* The start was begun, so RETRY_NO: a client that repeats by itself could end up with two sandboxes. */
        reply_problem(rq, 504, "sandbox_placement_timeout", RETRY_NO,
                      reply_reference(rq, "Failed to place sandbox: it did not start in time", err));
        break;
    case ERR_INTERNAL:
        reply_problem(rq, 500, "sandbox_create_failed", RETRY_UNSAID,
                      reply_reference(rq, "the sandbox could not be started", err));
        break;
    default:
        reply_err(rq, err);
    }
}

static void created(struct request *rq, const struct sandbox_info *info)
{
    struct json_out json = reply_json(rq, 201);

    sandbox_encode(&json, NULL, rq, info);
}

/* Checks the idempotency key. True: this is the first request, go ahead. False: it has been answered here. */
static bool claim_repeat(struct request *rq, struct str key, struct str route)
{
    enum repeat_verdict verdict;
    struct sandbox_info done;
    struct err err;

    if (!action_repeat_begin(rq->actions, &rq->caller, key, route, rq->body, rq->arena, &verdict, &done, &err)) {
        reply_err(rq, &err);
        return false;
    }
    switch (verdict) {
    case REPEAT_FIRST:
        return true;
    case REPEAT_DONE:
        created(rq, &done);
        return false;
    case REPEAT_RUNNING:
        reply_problem(rq, 409, "idempotency_in_progress", RETRY_YES,
                      STR("the first request with this idempotency key is still running"));
        return false;
    case REPEAT_LOST:
        reply_problem(rq, 409, "idempotency_outcome_unknown", RETRY_NO,
                      STR("the server was interrupted during the first request with this idempotency key: list the "
                          "sandboxes to see whether it made one, then use another key"));
        return false;
    case REPEAT_OTHER:
        reply_problem(rq, 422, "idempotency_request_mismatch", RETRY_UNSAID,
                      STR("this idempotency key was used for a different request"));
        return false;
    }
    return false;
}

static void create(struct request *rq, struct str route, enum create_version version)
{
    const struct str *repeat_key = http_header(&rq->ex->head, STR("Idempotency-Key"));
    struct sandbox_request want;
    struct sandbox_info info;
    struct err err;
    auto_json json_t *body = json_parse_object(rq->body, &err);

    if (!body || !create_decode(body, version, rq->actions, rq->arena, &want, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (repeat_key && !claim_repeat(rq, *repeat_key, route))
        return;
    want.out_must_wait = rq->must_wait ? NULL : &rq->must_wait;
    bool ok = action_sandbox_create(rq->actions, &rq->caller, &want, rq->arena, &info, &err);
    if (repeat_key) /* a failed create has left nothing behind, so the key may be used again */
        action_repeat_settle(rq->actions, &rq->caller, *repeat_key, ok ? &info : NULL);
    if (ok)
        created(rq, &info);
    else if (!rq->must_wait || !want.out_must_wait)
        create_failed(rq, &err);
    /* else it comes again, where it may wait */
}

void api_sandbox_create_v1(struct request *rq)
{
    create(rq, STR("v1"), CREATE_V1);
}

void api_sandbox_create_v2(struct request *rq)
{
    create(rq, STR("v2"), CREATE_V2);
}

/* ---- one sandbox ---- */

void api_sandbox_get(struct request *rq)
{
    struct sandbox_info info;
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    if (!action_sandbox_get(rq->actions, &rq->caller, id, rq->arena, &info, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    sandbox_detail_encode(&json, rq, &info);
}

void api_sandbox_kill(struct request *rq)
{
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    if (action_sandbox_kill(rq->actions, &rq->caller, id, &err))
        reply_empty(rq, 204);
    else
        reply_err(rq, &err);
}

void api_sandbox_timeout(struct request *rq)
{
    int64_t timeout_s = 0;
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !take_seconds(body, "timeout", JSON_REQUIRED, 0, &timeout_s, &err))
        reply_invalid(rq, &err);
    else if (!action_sandbox_set_timeout(rq->actions, &rq->caller, id, (uint64_t)timeout_s, rq->arena, &err))
        reply_err(rq, &err);
    else
        reply_empty(rq, 204);
}

void api_sandbox_refresh(struct request *rq)
{
    int64_t duration_s = REFRESH_LEAST_S;
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    auto_json json_t *body = body_object(rq, &err);
    if (!body || !take_seconds(body, "duration", JSON_OPTIONAL, 0, &duration_s, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (duration_s > REFRESH_MOST_S) {
        (void)err_set(&err, ERR_INVALID, "'duration' must be between 0 and %d", REFRESH_MOST_S);
        reply_invalid(rq, &err);
        return;
    }
    duration_s = MAX(duration_s, (int64_t)REFRESH_LEAST_S);
    if (action_sandbox_refresh(rq->actions, &rq->caller, id, (uint64_t)duration_s, rq->arena, &err))
        reply_empty(rq, 204);
    else
        reply_err(rq, &err);
}
