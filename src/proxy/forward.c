/*
 * forward.c - theory of operation.
 *
 * A forward connects two state machines of http/: the exchange (the client's side) and the call (the sandbox's side).
 * Both are driven by callbacks on one loop; each callback below does one step and returns. The body of the request is
 * not read before there is a connection into the sandbox, so a client can wait for a port that opens late.
 *
 * SDKs send a small request in several pieces, and guestd can do nothing before it has them all. So they are collected
 * first (FORWARD_GATHERING) and sent with the head in one write: guestd wakes once and not four times.
 *
 * Connections to guestd are kept and used again. A kept connection may have died, and only a request shows it. If it
 * breaks before the first byte of an answer, and we still have the whole request (`replay`), the request is sent once
 * more on a new connection. guestd closes a connection without an answer only when it dies, and then the sandbox dies
 * too: so a request that guestd has acted upon is not repeated.
 */
#include "proxy/forward.h"

#include <assert.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/relay.h"
#include "proxy/heads.h"
#include "proxy/reach.h"
#include "proxy/refuse.h"

enum forward_state {
    FORWARD_GATHERING,  /* the request's body is being collected; nothing is sent yet */
    FORWARD_REACHING,   /* a connection into the sandbox is being made */
    FORWARD_ASKING,     /* the request is being sent, no answer yet */
    FORWARD_ANSWERING,  /* the answer's head is out: a failure now resets the client's connection */
    FORWARD_TUNNELLING, /* both sides have changed protocol; the exchange is gone */
    FORWARD_DONE,       /* nothing in the sandbox is held; the client may still be taking its answer */
    FORWARD_STATE_COUNT,
};

static const unsigned may_become[FORWARD_STATE_COUNT] = {
    [FORWARD_GATHERING] = BIT(FORWARD_REACHING) | BIT(FORWARD_DONE),
    [FORWARD_REACHING] = BIT(FORWARD_ASKING) | BIT(FORWARD_DONE),
    [FORWARD_ASKING] = BIT(FORWARD_ANSWERING) | BIT(FORWARD_TUNNELLING) | BIT(FORWARD_DONE) |
                       BIT(FORWARD_REACHING), /* a kept connection turned out to be dead */
    [FORWARD_ANSWERING] = BIT(FORWARD_DONE),
    [FORWARD_TUNNELLING] = BIT(FORWARD_DONE),
};

struct forward {
    struct forward *next, **at; /* in the peer's list: the next one, and the pointer to us */
    struct peer *peer;
    struct sandbox *sandbox;
    struct target target;
    enum forward_state state;
    struct http_exchange *ex; /* NULL once it is gone, or a tunnel */
    struct reach *reach;
    struct http_call *call;
    struct relay *relay;
    struct str head; /* the request as the service will see it; in the exchange's arena */
    enum admission admission;
    bool has_place; /* counted in the peer's places; not after an eviction */
    bool kept;      /* this connection has served requests before */
    bool body_started, body_ended;
    struct str gathered; /* the whole body, in the exchange's arena */
    struct buf replay;   /* or the body so far, while it fits */
};

static void reach_inside(struct forward *f);

static void enter(struct forward *f, enum forward_state next)
{
    assert(may_become[f->state] & BIT(next));
    f->state = next;
}

/* Close everything inside the sandbox. */
static void let_go(struct forward *f)
{
    reach_free(f->reach);
    f->reach = NULL;
    http_call_free(f->call);
    f->call = NULL;
    relay_free(f->relay);
    f->relay = NULL;
}

static void free_forward(void *object)
{
    struct forward *f = object;
    buf_done(&f->replay);
    free(f);
}

static void give_place(struct forward *f)
{
    if (f->has_place)
        peer_give_place(f->peer, f->admission);
    f->has_place = false;
}

static void leave(struct forward *f)
{
    let_go(f);
    give_place(f);
    if (f->state != FORWARD_DONE)
        enter(f, FORWARD_DONE);
    *f->at = f->next; /* f->next stays: forward_cut_all() may be walking the list */
    if (f->next)
        f->next->at = f->at;
    sandbox_unref(f->sandbox);
    struct loop *loop = peer_loop(f->peer);
    peer_unref(f->peer);
    f->peer = NULL;
    loop_retire(loop, f, free_forward);
}

static void give_up(struct forward *f, enum refusal why)
{
    let_go(f);
    enter(f, FORWARD_DONE);
    refuse(f->ex, &f->target, why);
}

/* Part of an answer is out: a reset is the only way to say that the rest will not come. */
static void break_off(struct forward *f)
{
    let_go(f);
    enter(f, FORWARD_DONE);
    http_abort(f->ex);
}

/* ---- the sandbox's side ---- */

static void on_tunnel_over(void *context)
{
    leave(context);
}

static void become_tunnel(struct forward *f, const struct http_head *head)
{
    struct http_field fields[LIMIT_HEADERS + 1];
    size_t count = http_pass_fields(head, fields);
    const struct str *upgrade = http_header(head, STR("Upgrade"));
    if (upgrade)
        fields[count++] = (struct http_field){ STR("Upgrade"), *upgrade };

    f->relay = relay_new(peer_loop(f->peer), on_tunnel_over, f);
    struct stream *client = http_upgrade(f->ex, fields, count, &relay_events, f->relay);
    if (!client) { /* it has just gone: on_client_gone() follows */
        let_go(f);
        enter(f, FORWARD_DONE);
        return;
    }
    enter(f, FORWARD_TUNNELLING);
    f->ex = NULL;
    struct stream *service = http_call_take_stream(f->call, &relay_events, f->relay);
    f->call = NULL;
    relay_join(f->relay, client, service);
}

static void on_answer_head(struct http_call *call, const struct http_head *head)
{
    struct forward *f = http_call_owner(call);
    /*
     * A service that answers without 401 has accepted its client. guestd's /health answers every client, so it proves
     * nothing.
     */
    if (head->status != 401 && f->target.port != GUESTD_PORT)
        http_trust(f->ex);
    if (head->status == 101) {
        if (http_wants_upgrade(&f->ex->head))
            become_tunnel(f, head);
        else
            give_up(f, REFUSE_BROKEN); /* not asked for: the bytes that follow could be anything */
        return;
    }
    struct http_field fields[LIMIT_HEADERS];
    size_t count = http_pass_fields(head, fields);
    enter(f, FORWARD_ANSWERING);
    http_start(f->ex, head->status, fields, count, http_announced_length(head));
    http_call_splice(call, f->ex);
}

static void on_answer_body(struct http_call *call, struct str piece)
{
    struct forward *f = http_call_owner(call);
    http_write(f->ex, piece);
    if (http_is_full(f->ex))
        http_call_pause(call, true);
}

static void on_answer_end(struct http_call *call)
{
    struct forward *f = http_call_owner(call);
    if (f->target.port == GUESTD_PORT)
        peer_keep_idle(f->peer, call);
    let_go(f);
    enter(f, FORWARD_DONE);
    http_end(f->ex); /* discards the rest of the request's body */
}

static void on_answer_error(struct http_call *call, const struct err *err)
{
    struct forward *f = http_call_owner(call);
    if (f->state == FORWARD_ANSWERING) {
        log_debug("edge: sandbox %s port %u: the answer broke off: %s", f->target.id, f->target.port, err_text(err));
        break_off(f);
        return;
    }
    if (f->kept && !f->replay.overflowed && err->kind == ERR_UNAVAILABLE) {
        let_go(f);
        f->kept = false;
        if (f->body_started && !f->body_ended)
            http_body_pause(f->ex, true);
        enter(f, FORWARD_REACHING);
        reach_inside(f);
        return;
    }
    log_debug("edge: sandbox %s port %u: %s", f->target.id, f->target.port, err_text(err));
    give_up(f, REFUSE_BROKEN);
}

static void on_service_drained(struct http_call *call)
{
    struct forward *f = http_call_owner(call);
    if (!f->body_ended)
        http_body_pause(f->ex, false);
}

static const struct http_call_events call_events = {
    .on_head = on_answer_head,
    .on_body = on_answer_body,
    .on_end = on_answer_end,
    .on_error = on_answer_error,
    .on_drained = on_service_drained,
};

/* ---- the client's side ---- */

static void on_request_body(struct http_exchange *ex, struct str piece)
{
    struct forward *f = ex->owner;
    if (f->kept || f->state == FORWARD_REACHING)
        buf_add(&f->replay, piece);
    if (!f->call)
        return;
    http_call_write(f->call, piece);
    if (http_call_is_full(f->call))
        http_body_pause(ex, true);
}

static void on_request_end(struct http_exchange *ex)
{
    struct forward *f = ex->owner;
    f->body_ended = true;
    if (f->call)
        http_call_finish(f->call);
}

static void on_client_drained(struct http_exchange *ex)
{
    struct forward *f = ex->owner;
    if (f->call)
        http_call_pause(f->call, false);
}

static void on_client_gone(struct http_exchange *ex)
{
    struct forward *f = ex->owner;
    f->ex = NULL;
    leave(f);
}

static const struct http_events exchange_events = {
    .on_body = on_request_body,
    .on_body_end = on_request_end,
    .on_drained = on_client_drained,
    .on_gone = on_client_gone,
};

/* ---- sending the request ---- */

/* On a connection that was kept or has TLS, or else on a new one. */
static void ask(struct forward *f, struct stream *stream, int fd)
{
    struct loop *loop = f->ex->loop;
    const struct http_head *head = &f->ex->head;
    enter(f, FORWARD_ASKING);
    f->call = stream ? http_call_again(loop, stream, f->head, head->method, head->framing, &call_events, f)
                     : http_call_new(loop, fd, false, f->head, head->method, head->framing, &call_events, f);
    if (!f->body_started) {
        f->body_started = true;
        if (f->admission == ADMIT_KNOWN)
            http_body_patience(f->ex, LIMIT_KEEPALIVE_MS); /* an input stream may be silent for long */
        http_body_start(f->ex);
        return;
    }
    /* It was gathered, or this is the second attempt: first what we have of it. */
    http_call_write(f->call, f->gathered.len ? f->gathered : buf_str(&f->replay));
    if (f->body_ended)
        http_call_finish(f->call);
    else
        http_body_pause(f->ex, false);
}

/* The caller has said that this port's service expects TLS (httpsPorts). */
static void ask_by_tls(struct forward *f, int fd)
{
    static const struct stream_events none = { 0 }; /* ask() sets the call's before the loop goes on */
    struct stream *stream = stream_new(f->ex->loop, fd, LIMIT_STREAM_BUFFER, &none, NULL);
    struct err err;
    if (peer_add_tls(f->peer, stream, &err)) {
        ask(f, stream, -1);
        return;
    }
    log_warn("edge: sandbox %s port %u: %s", f->target.id, f->target.port, err_text(&err));
    stream_free(stream);
    give_up(f, REFUSE_BROKEN);
}

static void on_reached(void *context, enum reach_outcome outcome, int fd)
{
    static const enum refusal refusals[] = {
        [REACH_CLOSED] = REFUSE_CLOSED,
        [REACH_GONE] = REFUSE_NOT_FOUND,
        [REACH_UNAVAILABLE] = REFUSE_UNAVAILABLE,
    };
    struct forward *f = context;
    reach_free(f->reach);
    f->reach = NULL;
    if (outcome != REACH_OPEN)
        give_up(f, refusals[outcome]);
    else if (sandbox_port_has_tls(f->sandbox, f->target.port))
        ask_by_tls(f, fd);
    else
        ask(f, NULL, fd);
}

static void reach_inside(struct forward *f)
{
    /* guestd listens before its sandbox is announced; a user's service may have been started a moment ago. */
    unsigned attempts = f->target.port == GUESTD_PORT ? 1 : LIMIT_EDGE_DIALS;
    if (f->target.port == GUESTD_CODE_PORT)
        sandbox_note_code(f->sandbox);
    f->reach =
        reach_new(f->ex->loop, sandbox_driver(f->sandbox), f->target.id, f->target.port, attempts, on_reached, f);
    reach_go(f->reach);
}

static void go_inside(struct forward *f)
{
    enter(f, FORWARD_REACHING);
    bool may_keep = f->target.port == GUESTD_PORT && !http_wants_upgrade(&f->ex->head);
    struct stream *idle = may_keep ? peer_take_idle(f->peer) : NULL;
    f->kept = idle;
    if (idle)
        ask(f, idle, -1);
    else
        reach_inside(f);
}

static void on_gathered(struct http_exchange *ex, struct str body, const struct err *err)
{
    struct forward *f = ex->owner;
    if (err) {
        log_debug("edge: sandbox %s port %u: %s", f->target.id, f->target.port, err_text(err));
        give_up(f, REFUSE_FULL);
        return;
    }
    f->gathered = body;
    f->body_started = f->body_ended = true;
    go_inside(f);
}

/* A gathered body is held until its call ends, which may take hours. */
static_assert(LIMIT_EDGE_SHARE * LIMIT_EDGE_GATHER_BYTES <= LIMIT_COLLECT_BYTES / 2,
              "half of it must be left for other bodies");

/* guestd needs the whole body before it can act, and it is small. */
static bool is_gathered(const struct forward *f)
{
    const struct http_head *head = &f->ex->head;
    return f->admission == ADMIT_KNOWN && f->target.port == GUESTD_PORT && head->framing == HTTP_LENGTH &&
           head->length <= LIMIT_EDGE_GATHER_BYTES && !target_is_stream(head);
}

void forward_start(struct peer *peer, struct sandbox *sandbox, struct http_exchange *ex, const struct target *target,
                   enum admission admission)
{
    struct forward *f = NEW(struct forward);
    f->peer = peer;
    f->sandbox = sandbox;
    f->target = *target;
    f->ex = ex;
    f->replay = buf_make(NULL, LIMIT_EDGE_REPLAY_BYTES);
    f->next = peer->forwards;
    f->at = &peer->forwards;
    if (f->next)
        f->next->at = &f->next;
    peer->forwards = f;
    peer_ref(peer);
    peer_take_place(peer, admission);
    f->admission = admission;
    f->has_place = true;
    if (admission == ADMIT_KNOWN)
        http_trust(ex);
    ex->events = &exchange_events;
    ex->owner = f;

    if (!heads_write_request(ex, target, sandbox_mask_host(sandbox), &f->head)) {
        enter(f, FORWARD_DONE);
        http_reply(ex, 431, NULL, 0, STR("")); /* the client's head fitted, the rewritten one does not */
        return;
    }
    if (is_gathered(f))
        http_collect(ex, LIMIT_EDGE_GATHER_BYTES, on_gathered);
    else
        go_inside(f);
}

static void cut(struct forward *f, enum refusal why)
{
    switch (f->state) {
    case FORWARD_GATHERING:
    case FORWARD_REACHING:
    case FORWARD_ASKING:
        give_up(f, why);
        break;
    case FORWARD_ANSWERING:
        break_off(f);
        break;
    case FORWARD_TUNNELLING:
        relay_abort(f->relay);
        leave(f);
        break;
    case FORWARD_DONE: /* the answer is complete, the client is still taking it */
    case FORWARD_STATE_COUNT:
        break;
    }
}

void forward_cut_all(struct peer *peer)
{
    /* cut() removes a forward from the list at once, or leaves it there until its client has been answered. */
    peer_ref(peer); /* keeps the peer while we walk */
    for (struct forward *f = peer->forwards, *next; f; f = next) {
        next = f->next;
        cut(f, REFUSE_NOT_FOUND);
    }
    peer_unref(peer);
}

/* ---- outsiders ---- */

/* We wait for the client: its body is still coming, or it is slow to take a complete answer. */
static bool is_waited_for(const struct forward *f)
{
    switch (f->state) {
    case FORWARD_GATHERING:
    case FORWARD_REACHING:
    case FORWARD_ASKING:
        return !f->body_ended && f->ex->head.framing != HTTP_NO_BODY;
    case FORWARD_DONE:
        return true;
    case FORWARD_ANSWERING:
    case FORWARD_TUNNELLING:
    case FORWARD_STATE_COUNT:
        break;
    }
    return false;
}

static struct forward *oldest_of(const struct peer *peer, enum admission admission, uint16_t port, bool or_any)
{
    struct forward *waited_for = NULL, *any = NULL;
    for (struct forward *f = peer->forwards; f; f = f->next) {
        if (f->admission != admission || !f->has_place || (port && f->target.port != port))
            continue;
        any = f;
        if (is_waited_for(f))
            waited_for = f;
    }
    return waited_for || !or_any ? waited_for : any;
}

unsigned forward_count_at(const struct peer *peer, uint16_t port)
{
    unsigned count = 0;
    for (const struct forward *f = peer->forwards; f; f = f->next)
        count += f->has_place && f->target.port == port;
    return count;
}

struct forward *forward_outsider(const struct peer *peer, uint16_t port, bool or_any)
{
    struct forward *stranger = oldest_of(peer, ADMIT_STRANGER, port, or_any);
    return stranger ? stranger : oldest_of(peer, ADMIT_LINK, port, or_any);
}

void forward_evict(struct forward *f)
{
    give_place(f);
    if (f->state == FORWARD_DONE)
        http_abort(f->ex);
    else
        cut(f, REFUSE_STRANGERS);
}
