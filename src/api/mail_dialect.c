/*
 * The steps of a mail request: dialect → route → caller → scope → rate → body → lane → handler on a worker → answer.
 *
 * Permission is checked before the body is read, as in api.c, so that strangers cannot make us hold bodies in memory. A
 * handler may put off its answer (mail_later): then the request waits on the loop without a worker. While anything but
 * the HTTP code has the request, there is one reference to its exchange: a worker, the lane, or the code that waits.
 * leave() gives it back, and forgets the caller's credential.
 */
#include "api/mail_dialect.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/mail_sockets.h"
#include "api/mcp.h"
#include "base/encode.h"
#include "base/mem.h"

struct mail_api {
    struct api_config config;
    struct lane *lane;
    struct mail_events *events;
    struct mail_sockets *sockets;
};

struct mail_api *mail_api_new(const struct api_config *config)
{
    struct mail_api *api = NEW(struct mail_api);

    api->config = *config;
    if (!api->config.domain)
        api->config.domain = "";
    api->lane = lane_new(config->workers, &(struct lane_rule){
                                              .most = LIMIT_MAIL_CALLS,
                                              .most_each = LIMIT_MAIL_CALLS_EACH,
                                              .waiting_each = LIMIT_MAIL_CALLS_WAITING,
                                              .weight_each = LIMIT_MAIL_CALLS_BYTES,
                                              .total_each = LIMIT_MAIL_CALLS_BYTES,
                                          });
    api->events = mail_events_new();
    api->sockets = mail_sockets_new(
        &(struct mail_sockets_config){ .api = &api->config, .lane = api->lane, .events = api->events });
    return api;
}

void mail_api_free(struct mail_api *api)
{
    mail_sockets_free(api->sockets);
    mail_events_free(api->events);
    free(api);
}

struct mail_events *mail_events_of(const struct request *rq)
{
    return rq->mail->api->events;
}

struct mail_sockets *mail_sockets_of(const struct request *rq)
{
    return rq->mail->api->sockets;
}

void mail_api_heard(struct mail_api *api, const struct mail_event *event)
{
    mail_events_tell(api->events, event);
}

/* ---- answers ---- */

static void problem(struct request *rq, const struct mail_problem *what)
{
    rq->mail->dialect->problem(rq, what);
    if (what->retry_after_s)
        reply_field(rq, STR("Retry-After"), arena_format(rq->arena, "%u", what->retry_after_s));
    if (what->status == 401)
        reply_field(rq, STR("WWW-Authenticate"), STR("Bearer realm=\"mail\""));
}

void mail_reply_problem(struct request *rq, unsigned status, const char *format, ...)
{
    struct buf text = buf_make(rq->arena, 1024);
    char room[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(room, sizeof room, format, args);
    va_end(args);
    buf_add(&text, str_from(room));
    problem(rq, &(struct mail_problem){ .status = status, .message = buf_str(&text) });
}

/* As store/sql_sqlite.c says it of the one database that a call for an inbox uses. */
static bool is_damaged(const struct err *err)
{
    return err->kind == ERR_INTERNAL && str_starts(str_from(err->message), STR("the store is damaged"));
}

void mail_reply_err_after(struct request *rq, const struct err *err, uint32_t retry_after_s)
{
    struct str message = arena_copy(rq->arena, str_from(err->message));

    if (is_damaged(err)) {
        (void)reply_reference(rq, "", err); /* for the log */
        message = STR("the file of this inbox is damaged: the operator of this server has to restore a copy of it");
    } else if (err->kind == ERR_INTERNAL || err->kind == ERR_NONE) {
        message = reply_reference(rq, "something went wrong on the server", err);
    }
    problem(rq, &(struct mail_problem){ .status = reply_status_of(err->kind),
                                        .kind = err->kind,
                                        .message = message,
                                        .retry_after_s = retry_after_s });
}

void mail_reply_err(struct request *rq, const struct err *err)
{
    mail_reply_err_after(rq, err, err->kind == ERR_UNAVAILABLE ? 1 : 0);
}

void mail_reply_invalid(struct request *rq, const struct err *err)
{
    if (err->kind == ERR_INVALID || err->kind == ERR_LIMIT)
        problem(rq, &(struct mail_problem){
                        .status = 400, .kind = ERR_INVALID, .message = arena_copy(rq->arena, str_from(err->message)) });
    else
        mail_reply_err(rq, err);
}

/* A type that a browser would run or render never leaves as such, and a broken one never enters a header. */
static struct str safe_type(struct arena *arena, struct str type)
{
    char *text = arena_text(arena, type);

    text_lower(text, type.len);
    struct str lower = str_of(text, type.len), rest = lower, main;
    if (!str_cut(&rest, '/', &main) || !str_is_token(main) || !str_is_token(rest) || str_eq(lower, STR("text/html")) ||
        str_starts(lower, STR("application/xhtml")) || str_ends(lower, STR("xml")))
        return STR("application/octet-stream");
    return lower;
}

void mail_reply_file(struct request *rq, const struct mail_attachment *file)
{
    struct buf name = buf_make(rq->arena, LIMIT_HEAD_BYTES);

    reply_empty(rq, 200);
    buf_add(&rq->reply.body, file->content);
    buf_add(&name, STR("attachment; filename*=UTF-8''"));
    percent_encode(&name, file->name);
    reply_field(rq, STR("Content-Type"), safe_type(rq->arena, file->content_type));
    reply_field(rq, STR("Content-Disposition"), name.overflowed ? STR("attachment") : buf_str(&name));
    reply_field(rq, STR("X-Content-Type-Options"), STR("nosniff"));
    reply_field(rq, STR("Content-Security-Policy"), STR("sandbox; default-src 'none'"));
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
}

struct str mail_url(const struct request *rq, struct str path)
{
    const struct str *host = http_header(&rq->ex->head, STR("Host"));

    return arena_format(rq->arena, "%s://%.*s%.*s", rq->mail->is_tls ? "https" : "http",
                        STR_ARG(host ? *host : STR("localhost")), STR_ARG(path));
}

/* ---- jobs ---- */

static struct request *request_of(struct job *job)
{
    return container_of(job, struct request, job);
}

/* Gives back the reference. The request may be gone afterwards. */
static void leave(struct request *rq)
{
    mail_caller_wipe(&rq->mail->caller);
    http_unref(rq->ex);
}

static void send_answer(struct request *rq)
{
    struct err err;

    if (rq->reply.status == 0 || rq->reply.body.overflowed) {
        (void)err_set(&err, ERR_INTERNAL, rq->reply.status ? "the answer is too large" : "no answer was made");
        mail_reply_err(rq, &err);
    }
    request_send(rq);
}

/* Without a reference: nothing else has the request. */
static void send_now(struct request *rq)
{
    mail_caller_wipe(&rq->mail->caller);
    send_answer(rq);
}

static void run_handler(struct job *job)
{
    struct request *rq = request_of(job);

    ((handler_fn *)rq->match.route->handler)(rq);
}

static void handler_done(struct job *job)
{
    struct request *rq = request_of(job);
    void (*later)(struct request *) = rq->mail->later;

    rq->lane = NULL;
    rq->mail->is_with_worker = false;
    rq->mail->later = NULL;
    if (later && !rq->ex->gone) {
        later(rq);
        return;
    }
    rq->mail->gone = NULL; /* a request that never reached `later` has nothing to undo */
    if (!later)
        send_answer(rq);
    leave(rq);
}

struct str mail_lane_owner(const struct request *rq)
{
    const struct mail_caller *caller = mail_caller(rq);

    if (caller->inbox_id[0])
        return str_from(caller->inbox_id);
    if (caller->key_id[0])
        return str_from(caller->key_id);
    return caller->kind == MAIL_CALLER_OPERATOR ? STR("operator") : str_from(rq->mail->place);
}

/* The reference to the exchange is held by the caller of this function, and passes on with the job. */
static bool enter_lane(struct request *rq)
{
    rq->job = (struct job){ .run = run_handler, .done = handler_done };
    rq->mail->is_with_worker = true;
    if (lane_run(rq->mail->api->lane, mail_lane_owner(rq), rq->body.len, &rq->job)) {
        rq->lane = rq->mail->api->lane;
        return true;
    }
    rq->mail->is_with_worker = false;
    problem(rq, &(struct mail_problem){
                    .status = 429, .message = STR("too many requests of this inbox are waiting"), .retry_after_s = 1 });
    return false;
}

void mail_later(struct request *rq, void (*later)(struct request *), void (*gone)(struct request *), void *context)
{
    rq->mail->later = later;
    rq->mail->gone = gone;
    rq->mail->context = context;
}

void mail_again(struct request *rq)
{
    rq->mail->gone = NULL;
    if (!enter_lane(rq))
        mail_finish(rq);
}

void mail_finish(struct request *rq)
{
    rq->mail->gone = NULL;
    send_answer(rq);
    leave(rq);
}

void mail_release(struct request *rq)
{
    rq->mail->gone = NULL;
    leave(rq);
}

static void on_gone(struct http_exchange *ex)
{
    struct request *rq = ex->owner;

    if (!rq)
        return;
    if (rq->lane && lane_leave(rq->lane, &rq->job)) {
        rq->lane = NULL;
        leave(rq);
    } else if (rq->mail->gone && !rq->mail->is_with_worker) {
        void (*gone)(struct request *) = rq->mail->gone;
        rq->mail->gone = NULL;
        gone(rq);
        leave(rq);
    } else if (!rq->mail->is_with_worker) {
        mail_caller_wipe(&rq->mail->caller);
    }
}

static void body_collected(struct http_exchange *ex, struct str body, const struct err *err)
{
    struct request *rq = ex->owner;

    if (err && err->kind == ERR_LIMIT) {
        mail_reply_problem(rq, 413, "%s", err->message);
        send_now(rq);
        return;
    }
    if (err) {
        mail_reply_err(rq, err);
        send_now(rq);
        return;
    }
    rq->body = body;
    http_ref(ex);
    if (!enter_lane(rq)) {
        send_answer(rq);
        leave(rq);
    }
}

/* ---- permission ---- */

static const char *const scope_name[] = { "read", "send", "admin", "oversight", "oversight_read" };

static bool has_scope(const struct mail_caller *caller, unsigned wanted)
{
    for (unsigned bit = 1; bit <= MAIL_SCOPE_ALL; bit <<= 1)
        if ((wanted & bit) && mail_scope_allows(caller->scopes, (enum mail_scope)bit))
            return true;
    return false;
}

static void send_scope_missing(struct request *rq, unsigned wanted)
{
    struct buf text = buf_make(rq->arena, 256);

    buf_add(&text, STR("Requires "));
    for (unsigned i = 0, said = 0; i < COUNT_OF(scope_name); i++)
        if (wanted & (1u << i))
            buf_format(&text, "%s%s", said++ ? " or " : "", scope_name[i]);
    buf_add(&text, STR(" scope"));
    problem(rq, &(struct mail_problem){ .status = 403, .kind = ERR_DENIED, .message = buf_str(&text) });
    send_now(rq);
}

/* Requests are counted for each key, in the same way as those with other API keys; without a key for each sandbox. */
static bool in_rate(struct request *rq, struct quota_left *left)
{
    struct caller caller = { 0 };

    if (mail_caller(rq)->key_id[0])
        (void)snprintf(caller.key_id, sizeof caller.key_id, "%s", mail_caller(rq)->key_id);
    else
        (void)snprintf(caller.key_id, sizeof caller.key_id, "%.*s", STR_ARG(rq->sandbox_id));
    return action_caller_in_rate(rq->actions, &caller, loop_now_ms(rq->config->loop), left);
}

static void send_too_often(struct request *rq, const struct quota_left *left)
{
    problem(rq, &(struct mail_problem){
                    .status = 429,
                    .message =
                        arena_format(rq->arena, "too many requests with this key: at most %u in a burst", left->limit),
                    .retry_after_s = MAX(left->next_in_s, 1u) });
    reply_field(rq, STR("RateLimit-Limit"), arena_format(rq->arena, "%u", left->limit));
    reply_field(rq, STR("RateLimit-Remaining"), arena_format(rq->arena, "%u", left->remaining));
    reply_field(rq, STR("RateLimit-Reset"), arena_format(rq->arena, "%u", left->full_in_s));
    send_now(rq);
}

/* The caller is known, or the route is public. */
static void admit(struct request *rq)
{
    unsigned flags = rq->match.route->flags, scopes = flags & MAIL_SCOPE_ALL;
    struct quota_left left;

    if (!(flags & (MAIL_PUBLIC | MAIL_OPERATOR | MAIL_ANY_KEY)) && !has_scope(mail_caller(rq), scopes)) {
        send_scope_missing(rq, scopes);
        return;
    }
    if (!in_rate(rq, &left)) {
        send_too_often(rq, &left);
        return;
    }
    if (!(flags & MAIL_PUBLIC))
        http_trust(rq->ex);
    if (flags & MAIL_ABSENT) {
        mail_reply_problem(rq, 501, "%s", rq->match.route->help);
        send_now(rq);
        return;
    }
    http_collect(rq->ex,
                 flags & MAIL_LARGE    ? LIMIT_MAIL_BODY_BYTES
                 : flags & MAIL_PUBLIC ? LIMIT_PUBLIC_BODY_BYTES
                                       : LIMIT_CALL_BODY_BYTES,
                 body_collected);
}

/* ---- the caller ---- */

static struct str header(const struct http_head *head, struct str name)
{
    const struct str *value = http_header(head, name);

    return value ? *value : STR("");
}

/* What the client has sent as its mail key, or "". */
static struct str key_of(const struct http_head *head, struct arena *arena)
{
    struct str bearer = header(head, STR("Authorization")), token;

    if (str_skip_nocase(&bearer, STR("Bearer ")))
        return str_trim(bearer);
    struct str key = header(head, STR("X-API-Key"));
    if (key.len)
        return key;
    /* A browser's WebSocket cannot send headers. Elsewhere a key in a URL would end up in logs. */
    if (str_eq(head->path, STR("/v1/ws")) && http_query(head, arena, STR("token"), &token))
        return token;
    return STR("");
}

struct str mail_key_of(const struct request *rq)
{
    return key_of(&rq->ex->head, rq->arena);
}

static bool identify(struct request *rq, struct err *err)
{
    struct mail_caller *caller = &rq->mail->caller;
    struct str key = key_of(&rq->ex->head, rq->arena);

    if (rq->match.route->flags & MAIL_OPERATOR) {
        struct str token = header(&rq->ex->head, STR("X-Admin-Token"));
        if (!token.len)
            return err_set(
                err, ERR_DENIED,
                "the admin token is missing: send X-Admin-Token; on the server's machine, `sudo cloister mail` "
                "sends it");
        return mail_caller_by_admin(rq->actions, token, caller, err);
    }
    if (rq->sandbox_id.len)
        return mail_caller_by_sandbox(rq->actions, rq->sandbox_id, key, caller, err);
    if (!key.len)
        return err_set(err, ERR_DENIED,
                       "the API key is missing: send Authorization: Bearer with a key of an inbox; `sudo cloister env` "
                       "on the server's machine prints one");
    return mail_caller_by_key(rq->actions, key, caller, err);
}

static void run_identify(struct job *job)
{
    struct request *rq = request_of(job);

    if (identify(rq, &rq->refusal))
        rq->refusal.kind = ERR_NONE;
}

static void identify_done(struct job *job)
{
    struct request *rq = request_of(job);
    struct http_exchange *ex = rq->ex;

    rq->mail->is_with_worker = false;
    if (ex->gone) {
        leave(rq);
        return;
    }
    if (rq->refusal.kind == ERR_NONE) {
        admit(rq);
    } else if (rq->refusal.kind == ERR_DENIED) {
        problem(rq,
                &(struct mail_problem){ .status = 401, .kind = ERR_DENIED, .message = str_from(rq->refusal.message) });
        send_now(rq);
    } else {
        /* A failure of the store must not look like a wrong key. */
        mail_reply_err(rq, &rq->refusal);
        send_now(rq);
    }
    http_unref(ex);
}

/* ---- dialect and route ---- */

static bool is_below(struct str path, struct str prefix)
{
    return str_skip(&path, prefix) && (path.len == 0 || path.at[0] == '/');
}

bool mail_api_takes(const struct http_head *head)
{
    static const struct str ours[] = { STR_INIT("/v1"), STR_INIT("/mail"), STR_INIT("/approve"), STR_INIT("/mcp") };

    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (is_below(head->path, ours[i]))
            return true;
    return false;
}

const struct mail_dialect *mail_dialect_of(const struct http_head *head, struct arena *arena)
{
    static const struct str lobsters[] = { STR_INIT("/v1/signup"), STR_INIT("/v1/inboxes"), STR_INIT("/v1/ws"),
                                           STR_INIT("/v1/docs") };
    struct str key = key_of(head, arena);

    if (is_below(head->path, STR("/mail")))
        return &mail_operator;
    if (is_below(head->path, STR("/mcp")))
        return &mail_mcp;
    if (str_starts(key, STR("lm_sk_")))
        return &mail_lobstermail;
    if (str_starts(key, STR("mm_")))
        return &mail_multimail;
    /* The service's own name, from inside a sandbox, where programs need no key. */
    if (str_starts(header(head, STR("Host")), STR("api.lobstermail.")))
        return &mail_lobstermail;
    for (size_t i = 0; i < COUNT_OF(lobsters); i++)
        if (is_below(head->path, lobsters[i]))
            return &mail_lobstermail;
    return &mail_multimail;
}

struct str mail_path_repair(struct str path, struct arena *arena)
{
    struct buf out = buf_make(arena, 3 * LIMIT_TARGET_BYTES);
    unsigned char byte[1];
    size_t len;

    if (!str_has_char(path, '%'))
        return path;
    for (size_t i = 0; i < path.len; i++) {
        buf_add_char(&out, path.at[i]);
        if (path.at[i] == '%' && (i + 2 >= path.len || !hex_bytes(str_of(path.at + i + 1, 2), byte, sizeof byte, &len)))
            buf_add(&out, STR("25"));
    }
    return buf_str(&out);
}

static void no_route(struct request *rq)
{
    const struct http_head *head = &rq->ex->head;
    int shown = (int)MIN(head->path.len, (size_t)200);

    if (!rq->match.path_known) {
        mail_reply_problem(rq, 404, "no route %.*s %.*s", STR_ARG(head->method_text), shown, head->path.at);
        return;
    }
    mail_reply_problem(rq, 405, "%.*s is not possible on %.*s, only %s", STR_ARG(head->method_text), shown,
                       head->path.at, rq->match.allow);
    reply_field(rq, STR("Allow"), arena_copy(rq->arena, str_from(rq->match.allow)));
}

void mail_place(const struct sockaddr_storage *peer, char room[MAIL_PLACE_BYTES])
{
    struct in6_addr six;

    (void)snprintf(room, MAIL_PLACE_BYTES, "local");
    if (peer->ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)peer)->sin_addr, room, MAIL_PLACE_BYTES);
    } else if (peer->ss_family == AF_INET6) {
        six = ((const struct sockaddr_in6 *)peer)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&six)) {
            (void)inet_ntop(AF_INET, &six.s6_addr[12], room, MAIL_PLACE_BYTES);
            return;
        }
        memset(&six.s6_addr[8], 0, 8);
        (void)inet_ntop(AF_INET6, &six, room, MAIL_PLACE_BYTES);
    }
}

bool mail_api_allows_pages(const struct http_head *head, struct arena *arena)
{
    const struct mail_dialect *dialect = mail_dialect_of(head, arena);
    struct http_head post = *head; /* the preflight of one, too */
    struct http_match match;
    struct err err;

    post.method = HTTP_POST;
    return !http_route(dialect->routes, dialect->route_count, &post, arena, &match, &err) || !match.route ||
           !(match.route->flags & MAIL_NO_PAGES);
}

/*
 * A browser sends Origin with each POST of a page. The type counts too, for browsers that leave Origin out: any other type than
 * those of forms needs a preflight, which this path refuses.
 */
static bool refuses_page(struct request *rq)
{
    struct str type = header(&rq->ex->head, STR("Content-Type")), media;

    if (http_header(&rq->ex->head, STR("Origin")))
        mail_reply_problem(rq, 403, "web pages cannot call this: call it from a program, without Origin");
    else if (type.len && (!str_cut(&type, ';', &media) || !str_eq_nocase(str_trim(media), STR("application/json"))))
        mail_reply_problem(rq, 415, "send Content-Type: application/json, or neither a body nor a type");
    else
        return false;
    return true;
}

static void note_place(struct request *rq)
{
    struct sockaddr_storage peer = { 0 };

    if (rq->sandbox_id.len) {
        (void)snprintf(rq->mail->place, sizeof rq->mail->place, "sandbox:%.*s", STR_ARG(rq->sandbox_id));
        return;
    }
    http_peer(rq->ex, &peer);
    mail_place(&peer, rq->mail->place);
}

static void route(struct request *rq)
{
    const struct mail_dialect *dialect = rq->mail->dialect;
    struct err err;

    rq->mail->head = rq->ex->head;
    rq->mail->head.path = mail_path_repair(rq->ex->head.path, rq->arena);
    if (!http_route(dialect->routes, dialect->route_count, &rq->mail->head, rq->arena, &rq->match, &err)) {
        mail_reply_invalid(rq, &err);
        send_answer(rq);
    } else if (!rq->match.route) {
        no_route(rq);
        send_answer(rq);
    } else if (rq->no_pages && refuses_page(rq)) {
        send_answer(rq);
    } else if (rq->match.route->flags & MAIL_PUBLIC) {
        admit(rq);
    } else {
        http_ref(rq->ex);
        rq->mail->is_with_worker = true;
        rq->job = (struct job){ .run = run_identify, .done = identify_done };
        workers_run(rq->config->workers, &rq->job);
    }
}

static bool is_inside_name(const struct http_head *head)
{
    return str_starts(header(head, STR("Host")), STR("mail.cloister.internal"));
}

void mail_api_handle(struct mail_api *api, struct http_exchange *ex, const char *sandbox_id)
{
    static const struct http_events events = { .on_gone = on_gone };
    struct request *rq = ARENA_NEW(&ex->arena, struct request);

    ex->events = &events;
    ex->owner = rq;
    rq->config = &api->config;
    rq->actions = api->config.actions;
    rq->ex = ex;
    rq->arena = &ex->arena;
    rq->sandbox_id = sandbox_id ? arena_copy(rq->arena, str_from(sandbox_id)) : STR("");
    rq->mail = ARENA_NEW(&ex->arena, struct mail_request);
    rq->mail->api = api;
    rq->mail->dialect = mail_dialect_of(&ex->head, rq->arena);
    rq->no_pages = !mail_api_allows_pages(&ex->head, rq->arena);
    note_place(rq);
    /* Programs inside reach the service's public names over TLS that egress ends. */
    rq->mail->is_tls = sandbox_id ? !is_inside_name(&ex->head) : http_is_tls(ex);
    if (sandbox_id && rq->mail->dialect == &mail_operator) {
        rq->mail->dialect = &mail_multimail;
        mail_reply_problem(rq, 404, "no such route from inside a sandbox");
        send_answer(rq);
    } else if (!rq->actions->mail) {
        mail_reply_problem(rq, 501, "mail is off on this server");
        send_answer(rq);
    } else {
        route(rq);
    }
}

/* ---- routes for others ---- */

static bool may_run(const struct mail_caller *caller, unsigned flags)
{
    return !(flags & (MAIL_PUBLIC | MAIL_OPERATOR | MAIL_ABSENT)) &&
           ((flags & MAIL_ANY_KEY) || has_scope(caller, flags & MAIL_SCOPE_ALL));
}

/* A request like the outer one, with another head. What it answers is its own. */
static struct request *make_inner(struct request *rq, const struct mail_dialect *dialect, enum http_method method,
                                  struct str path, struct str query, struct str body)
{
    struct request *inner = ARENA_NEW(rq->arena, struct request);
    struct http_exchange *ex = ARENA_NEW(rq->arena, struct http_exchange);

    *inner = *rq;
    *ex = *rq->ex;
    ex->head.method = method;
    ex->head.method_text = str_from(http_method_name[method]);
    ex->head.path = ex->head.target = path;
    ex->head.query = query;
    inner->ex = ex;
    inner->body = body;
    inner->reply = (struct reply){ 0 };
    inner->mail = ARENA_NEW(rq->arena, struct mail_request);
    *inner->mail = *rq->mail;
    inner->mail->dialect = dialect;
    inner->mail->later = NULL;
    inner->mail->context = NULL;
    inner->mail->head = ex->head;
    inner->mail->head.path = mail_path_repair(path, rq->arena);
    return inner;
}

bool mail_may_run(const struct request *rq, const struct mail_dialect *dialect, enum http_method method,
                  struct str path)
{
    struct http_head *head = ARENA_NEW(rq->arena, struct http_head);
    struct http_match match;
    struct err err;

    head->method = method;
    head->path = path;
    return http_route(dialect->routes, dialect->route_count, head, rq->arena, &match, &err) && match.route &&
           may_run(mail_caller(rq), match.route->flags);
}

void mail_run(struct request *rq, const struct mail_dialect *dialect, enum http_method method, struct str path,
              struct str query, struct str body, struct reply *out)
{
    struct request *inner = make_inner(rq, dialect, method, path, query, body);
    struct err err;

    if (!http_route(dialect->routes, dialect->route_count, &inner->mail->head, inner->arena, &inner->match, &err))
        mail_reply_invalid(inner, &err);
    else if (!inner->match.route)
        no_route(inner);
    else if (inner->match.route->flags & MAIL_ABSENT)
        mail_reply_problem(inner, 501, "%s", inner->match.route->help);
    else if (!may_run(mail_caller(inner), inner->match.route->flags))
        mail_reply_problem(inner, 403, "this key lacks the scope for it");
    else
        ((handler_fn *)inner->match.route->handler)(inner);
    if (inner->mail->later) /* a route that answers later cannot be part of an answer */
        mail_reply_problem(inner, 501, "this call is not available here");
    mail_caller_wipe(&inner->mail->caller);
    *out = inner->reply;
}

/* ---- decoding ---- */

bool mail_body(struct request *rq, json_t **out)
{
    struct err err;

    *out = body_object(rq, &err);
    if (*out)
        return true;
    mail_reply_invalid(rq, &err);
    return false;
}

bool mail_take_any(const json_t *object, const char *const names[4], enum json_need need, struct str *out,
                   struct err *err)
{
    for (int i = 0; i < 4 && names[i]; i++)
        if (json_has(object, names[i]))
            return json_take_str(object, names[i], JSON_REQUIRED, out, err);
    return need == JSON_OPTIONAL || err_set(err, ERR_INVALID, "'%s' is missing", names[0]);
}

static bool take_attachment(const json_t *item, const struct mail_file_names *names, struct arena *arena,
                            struct mail_attachment *out, struct err *err)
{
    struct str text = STR("");
    size_t len;

    if (!json_is_object(item))
        return err_set(err, ERR_INVALID, "'attachments' must be an array of objects");
    out->content_type = STR("application/octet-stream");
    if (!mail_take_any(item, names->name, JSON_REQUIRED, &out->name, err) ||
        !mail_take_any(item, names->content, JSON_REQUIRED, &text, err) ||
        !mail_take_any(item, names->type, JSON_OPTIONAL, &out->content_type, err))
        return err_wrap(err, "attachments");
    unsigned char *bytes = arena_alloc(arena, text.len / 4 * 3 + 3);
    if (!base64_decode(text, bytes, &len))
        return err_set(err, ERR_INVALID, "'%s' of attachment '%.*s' is not base64", names->content[0],
                       (int)MIN(out->name.len, (size_t)60), out->name.at);
    out->content = str_of(bytes, len);
    out->size = len;
    return true;
}

bool mail_take_attachments(const json_t *body, const struct mail_file_names *names, struct arena *arena,
                           struct send_want *out, struct err *err)
{
    const json_t *list = NULL, *item;
    size_t i;

    if (!json_take_array(body, "attachments", JSON_OPTIONAL, &list, err))
        return false;
    if (!list)
        return true;
    if (json_array_size(list) > LIMIT_MAIL_ATTACHMENTS)
        return err_set(err, ERR_INVALID, "'attachments' has more than %d entries", LIMIT_MAIL_ATTACHMENTS);
    struct mail_attachment *files = ARENA_ARRAY(arena, struct mail_attachment, json_array_size(list));
    json_array_foreach(list, i, item)
    {
        if (!take_attachment(item, names, arena, &files[i], err))
            return false;
    }
    out->attachments = files;
    out->attachment_count = (uint32_t)json_array_size(list);
    return true;
}

struct str mail_id_plain(struct str id, struct str prefix)
{
    (void)str_skip(&id, prefix);
    return id;
}
