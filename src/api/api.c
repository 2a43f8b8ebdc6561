/*
 * The steps of a request: CORS → (mail goes its own way) → route → caller → body → (wait in its key's lane, if it starts
 * or pauses a sandbox) → handler on a worker → answer. A start that turns out to take minutes, because it waits for a
 * template's start command, goes on to another lane: those behind it, which do not, are not kept.
 *
 * The caller's permission is checked before the body is read, so that strangers cannot make us hold bodies in memory. A
 * cached key is checked on the loop; any other is looked up on a worker first.
 */
#include "api/api.h"

#include <stdlib.h>

#include "api/builds.h"
#include "api/mail_dialect.h"
#include "api/mail_hooks.h"
#include "api/request.h"
#include "api/routes.h"
#include "base/log.h"
#include "base/mem.h"

struct api {
    struct api_config config;
    struct lane *starts, *slow_starts, *pauses, *changes;
    struct upload_desk *uploads;
    struct mail_api *mail;
    struct mail_hooks *hooks; /* NULL: mail is off */
};

struct api *api_new(const struct api_config *config)
{
    struct api *api = NEW(struct api);

    api->config = *config;
    if (!api->config.domain)
        api->config.domain = "";
    api->starts = lane_new(config->workers, &(struct lane_rule){
                                                .most = LIMIT_STARTS,
                                                .most_each = LIMIT_STARTS_PER_KEY,
                                                .waiting_each = LIMIT_STARTS_WAITING,
                                                .weight_each = LIMIT_STARTS_WAITING_BYTES,
                                            });
    api->slow_starts = lane_new(config->workers, &(struct lane_rule){
                                                     .most = LIMIT_SLOW_STARTS,
                                                     .most_each = LIMIT_SLOW_STARTS_PER_KEY,
                                                     .waiting_each = LIMIT_STARTS_WAITING,
                                                     .weight_each = LIMIT_STARTS_WAITING_BYTES,
                                                 });
    api->pauses = lane_new(config->workers, &(struct lane_rule){
                                                .most = LIMIT_PAUSES,
                                                .most_each = LIMIT_PAUSES_PER_KEY,
                                                .waiting_each = LIMIT_PAUSES_WAITING,
                                                .weight_each = LIMIT_STARTS_WAITING_BYTES,
                                            });
    api->changes = lane_new(config->workers, &(struct lane_rule){
                                                 .most = LIMIT_CHANGES,
                                                 .most_each = LIMIT_CHANGES_PER_KEY,
                                                 .waiting_each = LIMIT_CHANGES_WAITING,
                                                 .weight_each = LIMIT_STARTS_WAITING_BYTES,
                                             });
    api->uploads = upload_desk_new(&api->config);
    api->mail = mail_api_new(&api->config);
    if (config->actions->mail)
        api->hooks = mail_hooks_new(&api->config);
    return api;
}

void api_free(struct api *api)
{
    mail_hooks_free(api->hooks);
    mail_api_free(api->mail);
    upload_desk_free(api->uploads);
    free(api);
}

void api_mail_heard(struct api *api, const struct mail_event *event)
{
    mail_api_heard(api->mail, event);
    if (api->hooks)
        mail_hooks_heard(api->hooks, event);
}

void api_health(struct request *rq)
{
    reply_empty(rq, 204);
}

/* ---- sending ---- */

#define CORS_ORIGIN                                            \
    {                                                          \
        STR_INIT("Access-Control-Allow-Origin"), STR_INIT("*") \
    }

void request_send(struct request *rq)
{
    struct reply *reply = &rq->reply;
    struct http_field fields[REPLY_FIELDS + 2] = {
        CORS_ORIGIN, /* first, see below */
        { STR_INIT("Access-Control-Expose-Headers"),
          STR_INIT("X-Next-Token, X-Total-Running, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After, "
                   "Should-Retry") },
    };

    if (reply->status == 0 || reply->body.overflowed) {
        struct err err;
        (void)err_set(&err, ERR_INTERNAL, reply->status ? "the answer is too large" : "no answer was made");
        reply_err(rq, &err);
    }
    memcpy(fields + 2, reply->fields, reply->field_count * sizeof fields[0]);
    log_debug("api: %.*s %.*s: %u", STR_ARG(rq->ex->head.method_text), STR_ARG(request_shown(rq)), reply->status);
    size_t skipped = rq->no_pages ? 2 : 0;
    http_reply(rq->ex, reply->status, fields + skipped, reply->field_count + 2 - skipped, buf_str(&reply->body));
}

static void send_problem(struct request *rq, unsigned status, const char *slug, struct str message)
{
    reply_problem(rq, status, slug, RETRY_UNSAID, message);
    request_send(rq);
}

/* Browsers send a preflight first, without a key. A literal list, because "*" does not cover Authorization. */
static void send_preflight(struct http_exchange *ex)
{
    static const struct http_field fields[] = {
        CORS_ORIGIN,
        { STR_INIT("Access-Control-Allow-Methods"), STR_INIT("GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS") },
        { STR_INIT("Access-Control-Allow-Headers"),
          STR_INIT(
              "Origin, Content-Length, Content-Type, User-Agent, Authorization, X-API-Key, X-Team-ID, X-Admin-Token, "
              "Idempotency-Key, browser, lang, lang_version, machine, os, package_version, processor, publisher, "
              "release, sdk_runtime, system") },
        { STR_INIT("Access-Control-Max-Age"), STR_INIT("43200") },
    };

    http_reply(ex, 204, fields, COUNT_OF(fields), STR(""));
}

/* ---- jobs ---- */

/* Holds a reference to the exchange while a worker has the request, because the client may disconnect meanwhile. */
static void run_job(struct request *rq, void (*run)(struct job *), void (*done)(struct job *))
{
    http_ref(rq->ex);
    rq->job = (struct job){ .run = run, .done = done };
    workers_run(rq->config->workers, &rq->job);
}

static struct request *request_of(struct job *job)
{
    return container_of(job, struct request, job);
}

static void run_handler(struct job *job)
{
    struct request *rq = request_of(job);
    handler_fn *handler = (handler_fn *)rq->match.route->handler;

    handler(rq);
    action_caller_seen(rq->actions, &rq->caller);
}

static void run_in_lane(struct request *rq);

static void handler_done(struct job *job)
{
    struct request *rq = request_of(job);
    struct http_exchange *ex = rq->ex;

    rq->lane = NULL;
    if (!rq->must_wait || rq->reply.status)
        request_send(rq);
    else if (!ex->gone)
        run_in_lane(rq);
    http_unref(ex);
}

/* A client that disconnects before its turn leaves the lane, so that others do not wait behind it. */
static void on_gone(struct http_exchange *ex)
{
    struct request *rq = ex->owner;

    if (rq && rq->lane && lane_leave(rq->lane, &rq->job)) {
        rq->lane = NULL;
        http_unref(ex);
    }
}

/* RETRY_YES: nothing was done yet. */
static void send_too_many_wait(struct request *rq)
{
    reply_problem(rq, 429, NULL, RETRY_YES,
                  arena_format(rq->arena, "too many %s: try again in a moment",
                               rq->match.route->flags & STARTS
                                   ? "sandboxes of this API key are waiting to be started"
                                   : "slow requests of this API key are waiting (pauses, resumes, changes, disk use)"));
    request_send(rq);
}

static void run_in_lane(struct request *rq)
{
    struct api *api = container_of(rq->config, struct api, config);
    unsigned flags = rq->match.route->flags;
    struct lane *lane = rq->must_wait     ? api->slow_starts
                        : flags & STARTS  ? api->starts
                        : flags & CHANGES ? api->changes
                                          : api->pauses;

    rq->job = (struct job){ .run = run_handler, .done = handler_done };
    http_ref(rq->ex);
    if (lane_run(lane, str_from(rq->caller.key_id), rq->body.len, &rq->job)) {
        rq->lane = lane;
        return;
    }
    http_unref(rq->ex);
    send_too_many_wait(rq);
}

static void body_collected(struct http_exchange *ex, struct str body, const struct err *err)
{
    struct request *rq = ex->owner;

    if (err && err->kind == ERR_LIMIT) {
        send_problem(rq, 413, NULL, str_from(err->message));
        return;
    }
    if (err) {
        reply_err(rq, err);
        request_send(rq);
        return;
    }
    rq->body = body;
    if (rq->match.route->flags & (STARTS | PAUSES | CHANGES))
        run_in_lane(rq);
    else
        run_job(rq, run_handler, handler_done);
}

/* RETRY_YES: nothing was done, and the next token of the bucket comes within a second. */
static void send_too_often(struct request *rq, const struct quota_left *left)
{
    reply_problem(rq, 429, NULL, RETRY_YES,
                  arena_format(rq->arena, "too many requests with this API key: at most %u in a burst", left->limit));
    reply_field(rq, STR("RateLimit-Limit"), arena_format(rq->arena, "%u", left->limit));
    reply_field(rq, STR("RateLimit-Remaining"), arena_format(rq->arena, "%u", left->remaining));
    reply_field(rq, STR("RateLimit-Reset"), arena_format(rq->arena, "%u", left->full_in_s));
    request_send(rq);
}

/* The caller is authenticated, or the route needs no key. */
static void admit(struct request *rq)
{
    const struct http_route *route = rq->match.route;
    struct quota_left left;

    if (!action_caller_in_rate(rq->actions, &rq->caller, loop_now_ms(rq->config->loop), &left)) {
        send_too_often(rq, &left);
        return;
    }
    if (route->flags & (NEEDS_KEY | NEEDS_ADMIN))
        http_trust(rq->ex);
    if (route->flags & NOT_YET) {
        send_problem(rq, 501, "not_implemented",
                     arena_format(rq->arena, "%s %s (%s) is not available in this version of Cloister",
                                  http_method_name[route->method], route->pattern, route->help));
        return;
    }
    if (route->flags & UPLOADS) {
        upload_desk_handle(container_of(rq->config, struct api, config)->uploads, rq);
        return;
    }
    if (route->flags & ON_LOOP) {
        ((handler_fn *)route->handler)(rq);
        request_send(rq);
        return;
    }
    http_collect(rq->ex, LIMIT_CALL_BODY_BYTES, body_collected);
}

/* ---- authentication ---- */

static struct str header(const struct request *rq, struct str name)
{
    const struct str *value = http_header(&rq->ex->head, name);

    return value ? *value : STR("");
}

static void refuse(struct request *rq)
{
    /* A failure of the store must not look like a wrong key. */
    if (rq->refusal.kind != ERR_DENIED && rq->refusal.kind != ERR_NOT_FOUND) {
        reply_err(rq, &rq->refusal);
        request_send(rq);
        return;
    }
    bool is_wrong_token = rq->refusal.kind == ERR_DENIED && header(rq, STR("X-Admin-Token")).len;
    const char *advice =
        !(rq->match.route->flags & NEEDS_ADMIN) ? "set E2B_API_KEY; on the server's machine, `sudo cloister env` "
                                                  "prints a key, `sudo cloister key create` makes one"
        : is_wrong_token
            ? "it is the file admin-token in this server's own data directory; on the server's machine, "
              "`sudo cloister key` finds it with --data DIR"
            : "send X-Admin-Token, the file admin-token in the server's data directory; on the server's machine, "
              "`sudo cloister key` and `sudo cloister team` send it";
    send_problem(rq, 401, NULL, arena_format(rq->arena, "%s: %s", rq->refusal.message, advice));
}

static bool identify(struct request *rq, struct err *err)
{
    struct str key = header(rq, STR("X-API-Key")), token = header(rq, STR("X-Admin-Token"));
    bool admin_only = rq->match.route->flags & NEEDS_ADMIN;

    if (!admin_only && key.len)
        return action_caller_by_key(rq->actions, key, &rq->caller, err);
    if (token.len)
        return action_caller_by_admin_token(rq->actions, token, header(rq, STR("X-Team-ID")), &rq->caller, err);
    return err_set(err, ERR_DENIED, admin_only ? "the admin token is missing" : "the API key is missing");
}

static void run_identify(struct job *job)
{
    struct request *rq = request_of(job);

    if (!identify(rq, &rq->refusal))
        return;
    rq->refusal.kind = ERR_NONE;
}

static void identify_done(struct job *job)
{
    struct request *rq = request_of(job);
    struct http_exchange *ex = rq->ex;

    if (rq->refusal.kind == ERR_NONE)
        admit(rq);
    else
        refuse(rq);
    http_unref(ex);
}

static void check_caller(struct request *rq)
{
    unsigned flags = rq->match.route->flags;

    if (!(flags & (NEEDS_KEY | NEEDS_ADMIN)) ||
        (!(flags & NEEDS_ADMIN) && action_caller_known(rq->actions, header(rq, STR("X-API-Key")), &rq->caller)))
        admit(rq);
    else
        run_job(rq, run_identify, identify_done);
}

/* ---- routing ---- */

static void no_route(struct request *rq)
{
    const struct http_head *head = &rq->ex->head;
    int shown = (int)MIN(head->path.len, (size_t)200);

    if (!rq->match.path_known) {
        send_problem(rq, 404, NULL,
                     arena_format(rq->arena, "no route %.*s %.*s", STR_ARG(head->method_text), shown, head->path.at));
        return;
    }
    reply_problem(rq, 405, NULL, RETRY_UNSAID,
                  arena_format(rq->arena, "%.*s is not possible on %.*s, only %s", STR_ARG(head->method_text), shown,
                               head->path.at, rq->match.allow));
    reply_field(rq, STR("Allow"), arena_copy(rq->arena, str_from(rq->match.allow)));
    request_send(rq);
}

void api_handle(struct api *api, struct http_exchange *ex)
{
    static const struct http_events events = { .on_gone = on_gone };
    size_t count;
    const struct http_route *routes = api_routes(&count);
    struct err err;

    ex->events = &events;
    if (ex->head.method == HTTP_OPTIONS && mail_api_allows_pages(&ex->head, &ex->arena)) {
        send_preflight(ex);
        return;
    }
    if (mail_api_takes(&ex->head)) {
        mail_api_handle(api->mail, ex, NULL);
        return;
    }
    struct request *rq = ARENA_NEW(&ex->arena, struct request);
    rq->config = &api->config;
    rq->actions = api->config.actions;
    rq->ex = ex;
    rq->arena = &ex->arena;
    rq->is_tls = http_is_tls(ex);
    ex->owner = rq;
    if (!http_route(routes, count, &ex->head, rq->arena, &rq->match, &err)) {
        reply_err(rq, &err);
        request_send(rq);
    } else if (!rq->match.route) {
        no_route(rq);
    } else {
        check_caller(rq);
    }
}

void api_handle_inside(struct api *api, struct http_exchange *ex, const char *sandbox_id)
{
    mail_api_handle(api->mail, ex, sandbox_id);
}
