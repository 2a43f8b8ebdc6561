/*
 * Theory of operation
 *
 * The guest's TLS connection arrives at one end of a socket pair, whose other end is a connection of an http_server that
 * has TLS beneath. For each request there is:
 *
 *   CONNECTING  a connection to the host is made, directly (dialer.h) or through a tunnel. Then its TLS may have to wait
 *               for others (handshakes.h)
 *   ASKING      the request is being sent, no answer yet
 *   ANSWERING   the answer's head is out: a failure now resets the guest's connection
 *   UPGRADED    both sides have changed protocol; a relay has them
 *   OVER        the host's side is closed; the guest may still be taking its answer
 *
 * A tunnel's stream may have TLS of its own beneath (to the proxy), and a stream has room for one. So a tunnel is joined
 * to a second socket pair, and the TLS to the host runs over that.
 */
#include "egress/intercept.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/header_kind.h"
#include "base/hole.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"
#include "egress/dialer.h"
#include "http/http.h"
#include "io/relay.h"

enum request_state {
    REQUEST_CONNECTING,
    REQUEST_ASKING,
    REQUEST_ANSWERING,
    REQUEST_UPGRADED,
    REQUEST_OVER,
    REQUEST_STATE_COUNT,
};

static const unsigned may_become[REQUEST_STATE_COUNT] = {
    [REQUEST_CONNECTING] = BIT(REQUEST_ASKING) | BIT(REQUEST_OVER),
    [REQUEST_ASKING] = BIT(REQUEST_ANSWERING) | BIT(REQUEST_UPGRADED) | BIT(REQUEST_OVER),
    [REQUEST_ANSWERING] = BIT(REQUEST_OVER),
    [REQUEST_UPGRADED] = BIT(REQUEST_OVER),
};

struct intercept {
    struct intercept_want want;
    char name[LIMIT_NET_NAME_BYTES + 1];
    struct net_address addresses[LIMIT_EGRESS_TRIES]; /* the one that has accepted last comes first */
    struct net_address dialed;                        /* the last */
    struct http_server *server;
    struct queue requests;
};

struct request {
    struct intercept *intercept;
    struct queue_link link;
    enum request_state state;
    struct http_exchange *ex; /* NULL once it is gone, or upgraded */
    struct str head;          /* for the host; in the exchange's arena */
    struct dialer dialer;
    struct tunnel *tunnel;
    struct relay *bridge; /* between tunnel and TLS */
    int host_fd;          /* connected to the host, or to the bridge, until TLS has begun; else -1 */
    struct handshake handshake;
    struct http_call *call;
    struct relay *relay; /* after an upgrade */
    bool body_ended;
    struct timer timer; /* the wait for its turn, or for an answer, takes too long */
};

static struct loop *loop_of(const struct request *request)
{
    return request->intercept->want.loop;
}

static void enter(struct request *request, enum request_state next)
{
    assert(may_become[request->state] & BIT(next));
    request->state = next;
}

/* ---- ends ---- */

static void let_go(struct request *request)
{
    dialer_stop(&request->dialer);
    tunnel_free(take_ptr(&request->tunnel));
    http_call_free(take_ptr(&request->call));
    relay_free(take_ptr(&request->bridge));
    relay_free(take_ptr(&request->relay));
    fd_close(&request->host_fd);
    handshake_end(&request->handshake);
    timer_clear(&request->timer);
}

/* The exchange is gone. */
static void request_leave(struct request *request)
{
    let_go(request);
    request->state = REQUEST_OVER;
    queue_leave(&request->link);
    loop_retire(loop_of(request), request, free);
}

static void reply(struct http_exchange *ex, unsigned status, struct str text)
{
    static const struct http_field fields[] = { { STR_INIT("Content-Type"), STR_INIT("text/plain") } };

    http_reply(ex, status, fields, COUNT_OF(fields), text);
}

/* Nothing of an answer is out yet. */
static void give_up(struct request *request, const struct err *err)
{
    struct http_exchange *ex = request->ex;
    const struct intercept *intercept = request->intercept;
    bool is_late = err->kind == ERR_TIMEOUT;
    struct str text = arena_format(&ex->arena, is_late ? "%s did not answer: %s\n" : "%s could not be reached: %s\n",
                                   intercept->name, err->message); /* err may be part of what is let go */

    intercept->want.failed(intercept->want.context, err);
    let_go(request);
    enter(request, REQUEST_OVER);
    reply(ex, is_late ? 504 : 502, text);
}

static void give_up_late(struct request *request, const char *why)
{
    struct err err;

    (void)err_set(&err, ERR_TIMEOUT, "%s", why);
    give_up(request, &err);
}

static void break_off(struct request *request)
{
    let_go(request);
    enter(request, REQUEST_OVER);
    http_abort(request->ex);
}

/* ---- heads ---- */

static bool rule_sets(const struct net_transform *rule, struct str name)
{
    for (uint32_t i = 0; rule && i < rule->header_count; i++)
        if (str_eq_nocase(rule->headers[i].name, name))
            return true;
    return false;
}

/* What the guest has written, with the rule's headers in place of its own. False: it became too long. */
static bool write_head(struct request *request)
{
    const struct http_head *head = &request->ex->head;
    const struct intercept_want *want = &request->intercept->want;
    const struct net_transform *rule = want->rule(want->context);
    struct buf out = buf_make(&request->ex->arena, LIMIT_HEAD_BYTES + LIMIT_NET_POLICY_BYTES);

    http_write_request_line(&out, head->method_text, head->target);
    http_write_header(&out, STR("Host"), *http_header(head, STR("Host")));
    for (size_t i = 0; i < head->header_count; i++) {
        struct str name = head->headers[i].name;
        if (!http_is_hop_field(head, name) && !header_is(name, HEADER_OF_REQUEST) && !rule_sets(rule, name))
            http_write_header(&out, name, head->headers[i].value);
    }
    for (uint32_t i = 0; rule && i < rule->header_count; i++)
        http_write_header(&out, rule->headers[i].name, rule->headers[i].value);
    if (head->framing == HTTP_LENGTH)
        http_write_header_number(&out, STR("Content-Length"), head->length);
    else if (head->framing == HTTP_CHUNKED)
        http_write_header(&out, STR("Transfer-Encoding"), STR("chunked"));
    http_write_header(&out, STR("Connection"), http_wants_upgrade(head) ? STR("Upgrade") : STR("close"));
    if (http_wants_upgrade(head))
        http_write_header(&out, STR("Upgrade"), *http_header(head, STR("Upgrade")));
    http_write_head_end(&out);
    request->head = buf_str(&out);
    return !out.overflowed;
}

/* ---- the host's side ---- */

static void on_answer_late(struct timer *timer)
{
    static_assert(LIMIT_EGRESS_ANSWER_MS == 600000, "the text below");
    give_up_late(container_of(timer, struct request, timer), "it has sent nothing for 10 minutes");
}

/* From the end of the handshake, and again while the request is being sent. */
static void wait_for_answer(struct request *request)
{
    if (request->state == REQUEST_ASKING && request->call && !handshake_has_begun(&request->handshake))
        timer_set(&request->timer, loop_of(request), LIMIT_EGRESS_ANSWER_MS, on_answer_late);
}

static void on_upgrade_over(void *context)
{
    request_leave(context);
}

static void become_relay(struct request *request, const struct http_head *head)
{
    struct http_field fields[LIMIT_HEADERS + 1];
    size_t count = http_pass_fields(head, fields);
    const struct str *upgrade = http_header(head, STR("Upgrade"));

    if (upgrade)
        fields[count++] = (struct http_field){ STR("Upgrade"), *upgrade };
    request->relay = relay_new(loop_of(request), on_upgrade_over, request);
    struct stream *guest = http_upgrade(request->ex, fields, count, &relay_events, request->relay);
    if (!guest) { /* it has just gone: on_guest_gone() follows */
        let_go(request);
        enter(request, REQUEST_OVER);
        return;
    }
    timer_clear(&request->timer);
    enter(request, REQUEST_UPGRADED);
    request->ex = NULL;
    struct stream *host = http_call_take_stream(take_ptr(&request->call), &relay_events, request->relay);
    relay_join(request->relay, guest, host);
}

static void on_answer_head(struct http_call *call, const struct http_head *head)
{
    struct request *request = http_call_owner(call);
    struct http_field fields[LIMIT_HEADERS];

    if (head->status == 101 && http_wants_upgrade(&request->ex->head)) {
        become_relay(request, head);
        return;
    }
    if (head->status == 101) { /* not asked for: the bytes that follow could be anything */
        struct err err;
        (void)err_set(&err, ERR_INVALID, "it changed the protocol without being asked");
        give_up(request, &err);
        return;
    }
    size_t count = http_pass_fields(head, fields);
    timer_clear(&request->timer);
    enter(request, REQUEST_ANSWERING);
    http_start(request->ex, head->status, fields, count, http_announced_length(head));
}

static void on_answer_body(struct http_call *call, struct str piece)
{
    struct request *request = http_call_owner(call);

    http_write(request->ex, piece);
    if (http_is_full(request->ex))
        http_call_pause(call, true);
}

static void on_answer_end(struct http_call *call)
{
    struct request *request = http_call_owner(call);

    let_go(request);
    enter(request, REQUEST_OVER);
    http_end(request->ex);
}

static void on_answer_error(struct http_call *call, const struct err *err)
{
    struct request *request = http_call_owner(call);

    if (request->state == REQUEST_ANSWERING)
        break_off(request);
    else
        give_up(request, err);
}

static void on_host_drained(struct http_call *call)
{
    struct request *request = http_call_owner(call);

    wait_for_answer(request);
    if (!request->body_ended)
        http_body_pause(request->ex, false);
}

static const struct http_call_events call_events = {
    .on_head = on_answer_head,
    .on_body = on_answer_body,
    .on_end = on_answer_end,
    .on_error = on_answer_error,
    .on_drained = on_host_drained,
};

/* ---- connecting ---- */

/* Never called: http_call_again() replaces it before the loop turns. */
static const struct stream_events no_events = { 0 };

static void on_handshake_over(void *context)
{
    struct request *request = context;

    handshake_end(&request->handshake);
    wait_for_answer(request); /* unless it failed, which is told by on_error() */
}

/* A handshake with the host may begin. */
static void ask(struct request *request)
{
    const struct intercept *intercept = request->intercept;
    const struct http_head *head = &request->ex->head;
    struct loop *loop = loop_of(request);
    struct err err;
    const struct tls_connect_want tls = { .name = intercept->name, .over = on_handshake_over, .context = request };
    struct stream *stream = stream_new(loop, take_fd(&request->host_fd), LIMIT_EGRESS_BUFFER, &no_events, NULL);

    if (!tls_connect_for(intercept->want.trust, stream, &tls, &err)) {
        stream_free(stream);
        give_up(request, &err);
        return;
    }
    enter(request, REQUEST_ASKING);
    timer_clear(&request->timer); /* TLS has a limit of its own */
    request->call = http_call_again(loop, stream, request->head, head->method, head->framing, &call_events, request);
    http_body_patience(request->ex, LIMIT_KEEPALIVE_MS);
    http_body_start(request->ex);
}

static bool make_pair(int out[2], struct err *err)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out) < 0)
        return err_sys(err, "make a socket pair");
    return true;
}

static void on_turn(struct handshake *handshake)
{
    ask(container_of(handshake, struct request, handshake));
}

static void on_turn_late(struct timer *timer)
{
    give_up_late(container_of(timer, struct request, timer), "too many TLS handshakes of this sandbox are before it");
}

/* Takes the descriptor. */
static void wait_for_turn(struct request *request, int fd)
{
    request->host_fd = fd;
    timer_set(&request->timer, loop_of(request), LIMIT_EGRESS_DIAL_MS, on_turn_late);
    handshake_begin(&request->handshake, request->intercept->want.handshakes, on_turn);
}

static bool may_dial(void *context, const struct net_address *to)
{
    struct intercept *intercept = ((struct request *)context)->intercept;

    intercept->dialed = *to;
    return intercept->want.may_dial(intercept->want.context, to);
}

/* The next request does not wait for those that did not accept. */
static void prefer_dialed(struct intercept *intercept)
{
    for (uint32_t i = 1; i < intercept->want.address_count; i++)
        if (net_address_eq(&intercept->addresses[i], &intercept->dialed)) {
            intercept->addresses[i] = intercept->addresses[0];
            intercept->addresses[0] = intercept->dialed;
        }
}

static void on_dialed(void *context, int fd, const struct err *err)
{
    struct request *request = context;

    if (fd < 0) {
        give_up(request, err);
        return;
    }
    prefer_dialed(request->intercept);
    wait_for_turn(request, fd);
}

static void on_bridge_over(void *context)
{
    (void)context; /* TLS on the other end sees it */
}

static void on_tunnel(void *context, struct stream *stream, const struct err *err)
{
    struct request *request = context;
    struct err why;
    int fds[2];

    tunnel_free(take_ptr(&request->tunnel));
    if (!stream) {
        give_up(request, err);
        return;
    }
    if (!make_pair(fds, &why)) {
        stream_free(stream);
        give_up(request, &why);
        return;
    }
    request->bridge = relay_new(loop_of(request), on_bridge_over, request);
    struct stream *end = stream_new(loop_of(request), fds[0], LIMIT_EGRESS_BUFFER, &relay_events, request->bridge);
    stream->events = &relay_events;
    stream->owner = request->bridge;
    relay_join(request->bridge, stream, end);
    wait_for_turn(request, fds[1]);
}

static void go_outside(struct request *request)
{
    const struct intercept_want *want = &request->intercept->want;
    struct err err;

    if (want->address_count == 0 && want->is_late) {
        give_up_late(request, "no name server has answered");
    } else if (want->address_count == 0) {
        (void)err_set(&err, ERR_UNAVAILABLE, "its name leads nowhere");
        give_up(request, &err);
    } else if (want->tunnel)
        request->tunnel = want->tunnel(want->context, on_tunnel, request);
    else
        dialer_start(&request->dialer, &(struct dialer_want){
                                           .loop = want->loop,
                                           .addresses = request->intercept->addresses,
                                           .count = want->address_count,
                                           .port = want->port,
                                           .buffer_bytes = want->buffer_bytes,
                                           .may_dial = may_dial,
                                           .done = on_dialed,
                                           .context = request,
                                       });
}

/* ---- the guest's side ---- */

static void on_request_body(struct http_exchange *ex, struct str piece)
{
    struct request *request = ex->owner;

    if (!request->call)
        return;
    http_call_write(request->call, piece);
    wait_for_answer(request);
    if (http_call_is_full(request->call))
        http_body_pause(ex, true);
}

static void on_request_end(struct http_exchange *ex)
{
    struct request *request = ex->owner;

    request->body_ended = true;
    if (request->call)
        http_call_finish(request->call);
}

static void on_guest_drained(struct http_exchange *ex)
{
    struct request *request = ex->owner;

    if (request->call)
        http_call_pause(request->call, false);
}

static void on_guest_gone(struct http_exchange *ex)
{
    struct request *request = ex->owner;

    request->ex = NULL;
    request_leave(request);
}

static const struct http_events exchange_events = {
    .on_body = on_request_body,
    .on_body_end = on_request_end,
    .on_drained = on_guest_drained,
    .on_gone = on_guest_gone,
};

/* "api.example.com" or "api.example.com:443". */
static bool is_for_host(const struct intercept *intercept, const struct http_head *head)
{
    const struct str *host = http_header(head, STR("Host"));
    struct str rest, name;
    uint64_t port;

    if (!host)
        return false;
    rest = *host;
    if (!str_cut(&rest, ':', &name) || !str_eq_nocase(name, str_from(intercept->name)))
        return false;
    return !rest.at || (str_to_u64(rest, UINT16_MAX, &port) && port == intercept->want.port);
}

static void on_request(struct http_exchange *ex, void *context)
{
    struct intercept *intercept = context;
    struct request *request = NEW(struct request);

    *request = (struct request){ .intercept = intercept, .ex = ex, .host_fd = -1 };
    queue_join(&intercept->requests, &request->link);
    ex->events = &exchange_events;
    ex->owner = request;
    http_trust(ex);
    if (!is_for_host(intercept, &ex->head) && !hole_is_open("a request is for its host")) {
        enter(request, REQUEST_OVER);
        reply(ex, 421,
              arena_format(&ex->arena, "this connection is for %s, and the request is not\n", intercept->name));
    } else if (str_eq_nocase(ex->head.method_text, STR("TRACE"))) {
        enter(request, REQUEST_OVER);
        reply(ex, 405, STR("TRACE is not possible to a host with header rules\n"));
    } else if (!write_head(request)) {
        enter(request, REQUEST_OVER);
        reply(ex, 431, STR("with the headers of the sandbox's rules, the head of this request is too long\n"));
    } else {
        go_outside(request);
    }
}

/* ---- life ---- */

static void on_connection(struct stream *stream, void *context)
{
    const struct intercept *intercept = context;

    tls_accept(intercept->want.tls, stream);
}

struct intercept *intercept_new(const struct intercept_want *want, int *out_fd, struct err *err)
{
    int fds[2];

    if (!make_pair(fds, err))
        return NULL;
    struct intercept *intercept = NEW(struct intercept);
    intercept->want = *want;
    intercept->want.trust = tls_client_ref(want->trust);
    (void)snprintf(intercept->name, sizeof intercept->name, "%s", want->name);
    intercept->want.name = NULL;
    memcpy(intercept->addresses, want->addresses, want->address_count * sizeof *want->addresses);
    intercept->want.addresses = NULL;
    intercept->server = http_server_new(want->loop, -1,
                                        &(struct http_server_config){
                                            .on_request = on_request,
                                            .on_connection = on_connection,
                                            .context = intercept,
                                            .connections_max = 1,
                                        });
    http_server_adopt(intercept->server, fds[1]);
    *out_fd = fds[0];
    return intercept;
}

static void dispose(void *object)
{
    struct intercept *intercept = object;

    tls_client_unref(intercept->want.trust);
    free(intercept);
}

void intercept_free(struct intercept *intercept)
{
    if (!intercept)
        return;
    struct loop *loop = intercept->want.loop;
    http_server_free(intercept->server); /* requests leave, but for those that were upgraded */
    while (intercept->requests.first)
        request_leave(container_of(intercept->requests.first, struct request, link));
    loop_retire(loop, intercept, dispose);
}
