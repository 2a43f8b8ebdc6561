/*
 * PUT of an archive for COPY. Whoever has the link may upload: its signature binds team, hash and time, and a key is neither
 * sent nor needed.
 *
 * The bytes go to disk while they come. The loop fills one buffer while a worker writes the other; when both are full, the
 * client waits. Of one upload a single job is under way at a time, so what the job touches needs no lock:
 *
 *     begin (job) → body starts → fill → write (job) … → body ends → write the rest and keep (job) → 200
 *
 * So many are read at once, of all and of each team. The others wait for their turn, in the order in which they came, with
 * their bodies unread: SDKs send all archives of a recipe at once, and try each only once.
 *
 * A client that goes away leaves nothing: what was begun is dropped as soon as no job has it. A job that the workers have
 * dropped when the server ends is dropped by upload_desk_free().
 */
#include <stdio.h>
#include <stdlib.h>

#include "api/builds.h"
#include "base/mem.h"

enum {
    WRITE_LEAST = 64 * 1024,                                  /* fewer bytes wait for more, unless they are the last */
    FILL_MOST = LIMIT_UPLOAD_CHUNK + 2 * LIMIT_STREAM_BUFFER, /* with what arrives after a pause */
};

struct upload_call {
    struct upload_desk *desk;
    struct upload_call *next; /* in the desk's list */
    struct request *rq;       /* of use until on_gone() */
    struct http_exchange *ex;
    char team_id[STORE_UUID_BYTES];
    struct str hash;
    uint64_t size;
    struct job job;
    bool is_waiting; /* for its turn: nothing was done yet */
    bool is_open;    /* the body may come: there is a file for it */
    bool is_paused;  /* the client waits */
    bool has_ended;  /* all of the body is in `fill` */
    bool is_gone, is_answered;
    struct buf fill;
    bool is_busy; /* the job is under way: what follows is its own then */
    struct buf flush;
    bool is_last; /* `flush` is the end of the body */
    struct upload *upload;
    bool failed;
    struct err err;
};

struct upload_desk {
    const struct api_config *config;
    struct lane *lane;
    struct upload_call *calls; /* in the order in which they came */
};

struct upload_desk *upload_desk_new(const struct api_config *config)
{
    struct upload_desk *desk = NEW(struct upload_desk);

    desk->config = config;
    desk->lane = lane_new(config->workers, &(struct lane_rule){ .most = LIMIT_UPLOAD_WORKERS,
                                                                .most_each = LIMIT_UPLOAD_WORKERS_EACH,
                                                                .waiting_each = LIMIT_UPLOADS_AT_ONCE,
                                                                .weight_each = 1 });
    return desk;
}

static void call_free(struct upload_call *call)
{
    struct upload_call **at = &call->desk->calls;

    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    upload_drop(call->upload);
    buf_done(&call->fill);
    buf_done(&call->flush);
    free(call);
}

void upload_desk_free(struct upload_desk *desk)
{
    while (desk->calls)
        call_free(desk->calls);
    free(desk);
}

/* ---- the link ---- */

static struct str first_of(struct str list)
{
    struct str first = STR("");

    (void)str_cut(&list, ',', &first);
    return str_trim(first);
}

static struct str header(const struct request *rq, struct str name)
{
    const struct str *value = http_header(&rq->ex->head, name);

    return value ? *value : STR("");
}

/* A host and perhaps a port. It goes back to the one who has sent it, and nobody else. */
static bool is_host(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!char_is_alnum(s.at[i]) && !(s.at[i] && strchr(".-_:[]", s.at[i])))
            return false;
    return s.len > 0 && s.len <= LIMIT_NET_NAME_BYTES + 6;
}

struct str upload_url(const struct request *rq, struct str hash, const struct upload_link *link)
{
    struct str host = first_of(header(rq, STR("X-Forwarded-Host"))),
               scheme = first_of(header(rq, STR("X-Forwarded-Proto")));

    if (!is_host(host))
        host = header(rq, STR("Host"));
    if (!is_host(host))
        host = STR("localhost");
    if (!str_eq(scheme, STR("https")) && !str_eq(scheme, STR("http")))
        scheme = rq->is_tls ? STR("https") : STR("http");
    return arena_format(rq->arena, "%.*s://%.*s/template-files/%.*s/%.*s?expires=%.*s&token=%.*s", STR_ARG(scheme),
                        STR_ARG(host), STR_ARG(link->team_id), STR_ARG(hash), STR_ARG(link->expires),
                        STR_ARG(link->token));
}

/* ---- one upload ---- */

static void take_turns(struct upload_desk *desk);

static void answer(struct upload_call *call)
{
    struct request *rq = call->rq;

    call->is_answered = true;
    if (!call->failed)
        reply_empty(rq, 200);
    else if (call->err.kind == ERR_LIMIT)
        reply_problem(rq, call->size > LIMIT_UPLOAD_BYTES ? 413 : 507, NULL, RETRY_UNSAID, str_from(call->err.message));
    else
        reply_copy_err(rq, &call->err);
    request_send(rq);
    take_turns(call->desk);
}

static void job_run(struct job *job)
{
    struct upload_call *call = container_of(job, struct upload_call, job);

    if (!call->upload)
        call->failed = !action_upload_begin(call->desk->config->actions, str_from(call->team_id), call->hash,
                                            call->size, &call->upload, &call->err);
    else if (call->flush.len)
        call->failed = !upload_write(call->upload, buf_str(&call->flush), &call->err);
    buf_clear(&call->flush);
    if (!call->failed && call->is_last)
        call->failed = !upload_keep(take_ptr(&call->upload), &call->err);
}

/* The client has gone, and no job is under way. */
static void end(struct upload_call *call)
{
    struct upload_desk *desk = call->desk;

    call_free(call);
    take_turns(desk);
}

static void step(struct upload_call *call);

static void job_done(struct job *job)
{
    struct upload_call *call = container_of(job, struct upload_call, job);
    struct http_exchange *ex = call->ex;

    call->is_busy = false;
    if (call->is_gone) {
        end(call);
    } else if (call->failed || call->is_last) {
        upload_drop(take_ptr(&call->upload));
        answer(call);
    } else if (!call->is_open) {
        call->is_open = true;
        http_body_start(ex);
    } else {
        step(call);
    }
    http_unref(ex);
}

static void run(struct upload_call *call)
{
    http_ref(call->ex);
    call->is_busy = true;
    call->job = (struct job){ .run = job_run, .done = job_done };
    if (lane_run(call->desk->lane, str_from(call->team_id), 0, &call->job))
        return;
    call->is_busy = false; /* cannot be: there are no more calls than places in the lane */
    call->failed = true;
    (void)err_set(&call->err, ERR_UNAVAILABLE, "too many uploads at once: try again in a moment");
    answer(call);
    http_unref(call->ex);
}

static void step(struct upload_call *call)
{
    if (!call->is_busy && (call->has_ended || call->fill.len >= WRITE_LEAST)) {
        struct buf full = call->fill;
        call->fill = call->flush;
        call->flush = full;
        call->is_last = call->has_ended;
        run(call);
    }
    bool is_full = call->fill.len >= LIMIT_UPLOAD_CHUNK;
    if (!call->has_ended && is_full != call->is_paused) {
        call->is_paused = is_full;
        http_body_pause(call->ex, is_full);
    }
}

static void on_body(struct http_exchange *ex, struct str piece)
{
    struct upload_call *call = ex->owner;

    if (call->is_answered)
        return;
    buf_add(&call->fill, piece);
    if (call->fill.overflowed) { /* cannot be: the client was made to wait */
        call->is_answered = true;
        http_abort(ex);
        return;
    }
    step(call);
}

static void on_body_end(struct http_exchange *ex)
{
    struct upload_call *call = ex->owner;

    call->has_ended = true;
    if (!call->is_answered)
        step(call);
}

static void on_gone(struct http_exchange *ex)
{
    struct upload_call *call = ex->owner;

    call->is_gone = true;
    if (!call->is_busy)
        end(call);
}

/* ---- the request ---- */

struct desk_count {
    unsigned reading, reading_team, all, all_team;
};

static struct desk_count count_calls(const struct upload_desk *desk, struct str team_id)
{
    struct desk_count count = { 0 };

    for (const struct upload_call *call = desk->calls; call; call = call->next) {
        bool is_team = str_eq(str_from(call->team_id), team_id), is_reading = !call->is_waiting && !call->is_answered;
        count.all++;
        count.all_team += is_team;
        count.reading += is_reading;
        count.reading_team += is_reading && is_team;
    }
    return count;
}

static void take_turns(struct upload_desk *desk)
{
    for (struct upload_call *call = desk->calls; call; call = call->next) {
        if (!call->is_waiting || call->is_gone)
            continue;
        struct desk_count count = count_calls(desk, str_from(call->team_id));
        if (count.reading >= LIMIT_UPLOADS_AT_ONCE)
            return;
        if (count.reading_team >= LIMIT_UPLOADS_AT_ONCE_TEAM)
            continue;
        call->is_waiting = false;
        run(call);
    }
}

/* RETRY_YES: nothing was done. */
static bool has_place(struct request *rq, const struct upload_desk *desk, struct str team_id)
{
    struct desk_count count = count_calls(desk, team_id);

    if (count.all < LIMIT_UPLOADS_WAITING && count.all_team < LIMIT_UPLOADS_WAITING_TEAM)
        return true;
    reply_problem(rq, 429, NULL, RETRY_YES, STR("too many uploads at once: try again when some of them have ended"));
    return false;
}

static bool admit(struct request *rq, const struct upload_desk *desk)
{
    const struct http_head *head = &rq->ex->head;
    struct str expires, token;
    struct err err;

    if (!query(rq, STR("expires"), &expires) || !query(rq, STR("token"), &token)) {
        reply_problem(rq, 403, NULL, RETRY_UNSAID, STR("the link has no signature: ask for a new link"));
        return false;
    }
    if (!action_upload_check(rq->actions, rq->match.params[0], rq->match.params[1], expires, token, &err)) {
        reply_err(rq, &err);
        return false;
    }
    if (head->framing != HTTP_LENGTH) {
        reply_problem(rq, 411, NULL, RETRY_UNSAID, STR("an upload needs a Content-Length"));
        return false;
    }
    if (head->length > LIMIT_UPLOAD_BYTES) {
        reply_problem(rq, 413, NULL, RETRY_UNSAID,
                      arena_format(rq->arena, "an archive may have at most %llu MB",
                                   (unsigned long long)(LIMIT_UPLOAD_BYTES >> 20)));
        return false;
    }
    return has_place(rq, desk, rq->match.params[0]);
}

void upload_desk_handle(struct upload_desk *desk, struct request *rq)
{
    static const struct http_events events = { .on_body = on_body, .on_body_end = on_body_end, .on_gone = on_gone };

    if (!admit(rq, desk)) {
        request_send(rq);
        return;
    }
    http_trust(rq->ex);
    struct upload_call *call = NEW(struct upload_call);
    *call = (struct upload_call){ .desk = desk,
                                  .rq = rq,
                                  .ex = rq->ex,
                                  .hash = rq->match.params[1],
                                  .is_waiting = true,
                                  .size = rq->ex->head.length,
                                  .fill = buf_make(NULL, FILL_MOST),
                                  .flush = buf_make(NULL, FILL_MOST) };
    snprintf(call->team_id, sizeof call->team_id, "%.*s", STR_ARG(rq->match.params[0]));
    struct upload_call **last = &desk->calls;
    while (*last)
        last = &(*last)->next;
    *last = call;
    rq->ex->events = &events;
    rq->ex->owner = call;
    take_turns(desk);
}
