/*
 * DNS questions of sandboxes: every one is answered here, whichever server it was sent to.
 *
 * Theory of operation
 *
 * A question comes as a datagram, or over a connection to port 53 with its length in front. It is decoded (wire/dns),
 * judged by its name, and asked again by the resolver in words of our own; the answer is written anew from the records.
 * So a guest cannot send a byte of its choice to a DNS server except for names, and the addresses that it gets are pinned
 * to the name (pins.h). Names are a way out as well: questions are limited per second and at once.
 *
 * A name that the policy does not allow is answered "no such name", at once: for "refused" some programs try the next
 * server and others wait for seconds. The reason goes with it for those that print it (RFC 8914). It makes no difference
 * that a range allows the server that was asked: the name would go to the host's servers, and nobody has allowed that.
 *
 * Over a connection there is one question at a time; the next one is taken when it is answered, and when the guest has
 * taken all answers before it. What a guest does not read is one answer at most for each connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/hole.h"
#include "base/mem.h"
#include "base/network.h"
#include "egress/inside.h"
#include "egress/resolver.h"
#include "io/stream.h"
#include "wire/dns.h"

enum {
    DATAGRAMS_A_TURN = 32,
    QUESTIONS_A_TURN = 2, /* of one connection; then all others have their turn */
    LENGTH_BYTES = 2,     /* in front of a message over TCP */
    NAMES_TTL_S = 60,     /* of names that stay inside: the next server may give them other addresses */
};

static const struct quota_rule question_rule = { .per_s = LIMIT_EGRESS_QUESTIONS_S,
                                                 .burst = 2 * LIMIT_EGRESS_QUESTIONS_S };

/* A question without an answer yet. */
struct asked {
    struct egress_sandbox *sandbox;
    struct queue_link link; /* in sandbox->questions */
    struct dns_question question;
    struct question *lookup;
    struct net_address server;   /* that the guest has asked */
    struct dns_stream *stream;   /* NULL: it came by datagram… */
    enum divert_kind kind;       /* …here… */
    struct divert_peer datagram; /* …from there */
};

/* A connection to port 53. */
struct dns_stream {
    struct egress_sandbox *sandbox;
    struct queue_link link; /* in sandbox->dns_streams */
    struct stream *stream;
    struct net_address server;
    struct asked *asked; /* being answered */
    struct timer idle;
    struct timer soon; /* set: it has had its turn */
    bool ended;        /* the guest sends no more */
    bool is_running;   /* in dns_stream_next() */
};

static struct loop *loop_of(const struct egress_sandbox *sandbox)
{
    return sandbox->egress->config.loop;
}

static void dns_stream_next(struct dns_stream *dns);
static void dns_stream_close(struct dns_stream *dns);

/* ---- what is looked up for a sandbox ---- */

struct question {
    struct egress_sandbox *sandbox;
    uint32_t weight; /* 1: it is counted; 0: it is not */
    struct resolver_question *inner;
    resolver_done_fn *done;
    void *context;
};

/* May the sandbox ask one more? If so, that is taken from its rate. */
static bool take(struct egress_sandbox *sandbox)
{
    const struct resolver *resolver = sandbox->egress->config.resolver;

    if (hole_is_open("questions of a sandbox"))
        return true;
    return sandbox->question_count < LIMIT_EGRESS_QUESTIONS && sandbox->asker.count < LIMIT_EGRESS_QUESTIONS &&
           resolver_has_share(resolver, &sandbox->asker) &&
           quota_take(&question_rule, &sandbox->question_rate, loop_now_ms(loop_of(sandbox)), NULL);
}

static void on_told(void *context, const struct dns_answer *answer)
{
    struct question question = *(struct question *)context;

    free(context);
    question.sandbox->question_count -= question.weight;
    question.done(question.context, answer);
}

static struct question *look_up(struct egress_sandbox *sandbox, uint32_t weight, struct str name, uint16_t type,
                                resolver_done_fn *done, void *context)
{
    struct question *question = NEW(struct question);

    *question = (struct question){ .sandbox = sandbox, .weight = weight, .done = done, .context = context };
    sandbox->question_count += weight;
    question->inner = resolver_ask(sandbox->egress->config.resolver, &sandbox->asker, name, type, on_told, question);
    return question;
}

struct question *questions_ask(struct egress_sandbox *sandbox, struct str name, uint16_t type, resolver_done_fn *done,
                               void *context)
{
    if (resolver_knows(sandbox->egress->config.resolver, name, type))
        return look_up(sandbox, 0, name, type, done, context);
    return take(sandbox) ? look_up(sandbox, 1, name, type, done, context) : NULL;
}

void questions_cancel(struct question *question)
{
    if (!question)
        return;
    resolver_cancel(question->inner);
    question->sandbox->question_count -= question->weight;
    free(question);
}

/* ---- answering ---- */

static void asked_free(struct asked *asked)
{
    questions_cancel(asked->lookup);
    queue_leave(&asked->link);
    free(asked);
}

static void send_datagram(struct asked *asked, const struct dns_answer *answer)
{
    struct egress_sandbox *sandbox = asked->sandbox;
    size_t room = MIN((size_t)asked->question.udp_room, (size_t)DNS_UDP_ROOM_MAX);
    auto_buf struct buf out = buf_make(NULL, DNS_UDP_ROOM_MAX);

    dns_write_answer(&out, &asked->question, answer, MAX(room, (size_t)DNS_UDP_BYTES));
    sandbox->bytes_in += out.len;
    (void)!divert_answer(sandbox->sockets[asked->kind], buf_str(&out), &asked->datagram); /* the guest asks again */
}

static void send_on_stream(struct asked *asked, const struct dns_answer *answer)
{
    struct dns_stream *dns = asked->stream;
    auto_buf struct buf out = buf_make(NULL, DNS_MESSAGE_MAX);

    dns_write_answer(&out, &asked->question, answer, DNS_MESSAGE_MAX);
    const char length[LENGTH_BYTES] = { (char)(out.len >> 8), (char)out.len };
    stream_write_two(dns->stream, str_of(length, sizeof length), buf_str(&out));
    asked->sandbox->bytes_in += sizeof length + out.len;
    dns->asked = NULL;
}

/* Frees the question. */
static void answer_with(struct asked *asked, const struct dns_answer *answer)
{
    struct dns_stream *dns = asked->stream;

    report_soon(asked->sandbox);
    if (dns)
        send_on_stream(asked, answer);
    else
        send_datagram(asked, answer);
    asked_free(asked);
    if (dns)
        dns_stream_next(dns);
}

static void refuse(struct asked *asked, unsigned why, enum dns_code code, struct str reason)
{
    report_refusal(asked->sandbox, why, NULL, 0, str_from(asked->question.name));
    answer_with(asked, &(struct dns_answer){ .code = code, .ede = DNS_EDE_PROHIBITED, .reason = reason });
}

bool dns_record_address(const struct dns_record *record, struct net_address *out)
{
    if (record->type == DNS_A)
        *out = net_address_of_v4(record->address);
    else if (record->type == DNS_AAAA)
        memcpy(out->at, record->address, sizeof out->at);
    else
        return false;
    return true;
}

static bool has_route(const struct egress *egress, const struct net_address *address)
{
    return egress->config.has_route ? egress->config.has_route(address) : host_probe_has_route(&egress->probe, address);
}

/*
 * A name that leads to an address of the host, or to one that is not public, leads nowhere for a sandbox: the owner of a
 * name must not make programs inside believe that such an address is theirs (DNS rebinding), and a connection there would
 * be refused later and with fewer words.
 *
 * Addresses that this machine has no route to are left out as well. A connection to one would be accepted inside and then
 * reset, and programs that try IPv6 first would take that for the server's doing and not try IPv4. A proxy may have ways of
 * its own.
 */
static void on_answer(void *context, const struct dns_answer *answer)
{
    struct asked *asked = context;
    struct egress_sandbox *sandbox = asked->sandbox;
    struct dns_record records[LIMIT_DNS_RECORDS + LIMIT_DNS_CHAIN];
    struct dns_answer clean = *answer;
    struct net_address address;
    enum net_rule why = NET_RULE_OPEN;
    bool has_address = false;

    asked->lookup = NULL;
    clean.count = 0;
    clean.records = records;
    for (uint32_t i = 0; i < answer->count && clean.count < COUNT_OF(records); i++) {
        if (dns_record_address(&answer->records[i], &address)) {
            enum net_rule rule = egress_judge_for_all(sandbox->egress, &address, 0);
            if (!net_rule_allows(rule) && !hole_is_open("answers are public")) {
                why = rule;
                continue;
            }
            has_address = true;
            if (!sandbox->policy.proxy.host.len && !has_route(sandbox->egress, &address))
                continue;
            pins_add(&sandbox->pins, str_from(asked->question.name), &address, answer->records[i].ttl_s,
                     loop_now_ms(loop_of(sandbox)));
        }
        records[clean.count++] = answer->records[i];
    }
    if (why != NET_RULE_OPEN && !has_address) {
        clean.ede = DNS_EDE_BLOCKED;
        clean.reason = why == NET_RULE_HOST       ? STR("this name leads to an address of the host")
                       : why == NET_RULE_OPERATOR ? STR("this name leads to an address that the operator denies")
                                                  : STR("this name leads to an address that is not public");
        clean.count = 0; /* aliases can be names of the operator's network */
        report_refusal(sandbox, why, NULL, 0, str_from(asked->question.name));
    }
    if (answer->code == DNS_SERVER_FAILURE)
        report_no_lookup(sandbox, NULL, 0, str_from(asked->question.name), answer->reason);
    answer_with(asked, &clean);
}

/* ---- names that stay inside ---- */

static void answer_inside(struct asked *asked, const struct egress_service *service)
{
    struct dns_record record = { .name = str_from(service->name), .type = DNS_A, .ttl_s = NAMES_TTL_S };

    memcpy(record.address, net_address_bytes(&service->address).at, 4); /* they are IPv4 */
    answer_with(asked, &(struct dns_answer){
                           .count = asked->question.type == record.type, .records = &record, .ede = DNS_EDE_NONE });
}

/* ---- asking ---- */

/* Takes the question. */
static void ask(struct asked *asked)
{
    struct egress_sandbox *sandbox = asked->sandbox;
    const struct egress_service *inside = egress_service_named(sandbox->egress, str_from(asked->question.name));

    if (inside) { /* before the limits: it asks nobody, and programs ask once for each connection */
        answer_inside(asked, inside);
        return;
    }
    if (!take(sandbox)) {
        refuse(asked, FLOWS_TOO_MANY_QUESTIONS, DNS_REFUSED, STR("too many DNS questions"));
        return;
    }
    if (!sandbox->has_policy) {
        refuse(asked, FLOWS_NO_POLICY, DNS_REFUSED, STR("the sandbox has no network policy yet"));
        return;
    }
    enum net_rule rule = net_judge_name(&sandbox->policy, str_from(asked->question.name));
    if (!net_rule_allows(rule) && !net_is_dns_server(&sandbox->policy, &asked->server)) {
        refuse(asked, rule, DNS_NO_SUCH_NAME, STR("the sandbox's network policy does not allow this name"));
        return;
    }
    rule = net_judge_private(&sandbox->policy, &sandbox->egress->config.ranges, str_from(asked->question.name));
    if (!net_rule_allows(rule)) {
        refuse(asked, rule, DNS_NO_SUCH_NAME, STR("this name belongs to private networks"));
        return;
    }
    queue_join(&sandbox->questions, &asked->link);
    asked->lookup = look_up(sandbox, 1, str_from(asked->question.name), asked->question.type, on_answer, asked);
}

/* False: it is not to be answered. Takes the question otherwise. */
static bool take_message(struct asked *asked, struct str message)
{
    asked->sandbox->bytes_out += message.len;
    report_soon(asked->sandbox);
    switch (dns_question_parse(message, &asked->question)) {
    case DNS_PARSED:
        ask(asked);
        return true;
    case DNS_WRONG:
        answer_with(asked, &(struct dns_answer){ .code = asked->question.code, .ede = DNS_EDE_NONE });
        return true;
    case DNS_NOISE:
        break;
    }
    return false;
}

/* ---- datagrams ---- */

/* False: there is none, or the socket is closed. */
static bool take_datagram(struct egress_sandbox *sandbox, enum divert_kind kind)
{
    char room[LIMIT_EGRESS_QUESTION_BYTES];
    struct divert_peer peer;
    ssize_t n = divert_receive(sandbox->sockets[kind], room, sizeof room, &peer);
    uint16_t port;

    if (n < 0)
        return false;
    egress_take_one(sandbox);
    struct asked *asked = NEW(struct asked);
    *asked = (struct asked){ .sandbox = sandbox, .kind = kind, .datagram = peer };
    if ((size_t)n > sizeof room || !socket_address(&peer.server, &asked->server, &port) ||
        !take_message(asked, str_of(room, (size_t)n)))
        free(asked);
    return true;
}

static void take_datagrams(struct egress_sandbox *sandbox, enum divert_kind kind)
{
    for (int i = 0; i < DATAGRAMS_A_TURN && sandbox->sockets[kind] >= 0 && !egress_is_paused(sandbox); i++)
        if (!take_datagram(sandbox, kind))
            return;
}

static void on_datagrams4(void *context, unsigned ready)
{
    (void)ready;
    take_datagrams(context, DIVERT_UDP4);
}

static void on_datagrams6(void *context, unsigned ready)
{
    (void)ready;
    take_datagrams(context, DIVERT_UDP6);
}

void questions_listen(struct egress_sandbox *sandbox)
{
    static watch_fn *const handlers[] = { on_datagrams4, on_datagrams6 };

    for (int i = 0; i < 2; i++) {
        if (sandbox->sockets[DIVERT_UDP4 + i] < 0 || sandbox->datagrams[i])
            continue;
        sandbox->datagrams[i] = watch_new(loop_of(sandbox), sandbox->sockets[DIVERT_UDP4 + i], handlers[i], sandbox);
        watch_want(sandbox->datagrams[i], WATCH_READ);
    }
}

void questions_read(struct egress_sandbox *sandbox, bool on)
{
    struct queue_link *next;

    for (size_t i = 0; i < COUNT_OF(sandbox->datagrams); i++)
        if (sandbox->datagrams[i])
            watch_want(sandbox->datagrams[i], on ? WATCH_READ : 0);
    for (struct queue_link *link = sandbox->dns_streams.first; link && on; link = next) {
        next = link->next;
        dns_stream_next(container_of(link, struct dns_stream, link));
    }
}

/* ---- connections ---- */

static void on_idle(struct timer *timer)
{
    dns_stream_close(container_of(timer, struct dns_stream, idle));
}

/* A message is there, whole. False: it is not to be answered. */
static bool take_from_stream(struct dns_stream *dns, size_t length)
{
    struct asked *asked = NEW(struct asked);
    struct buf *in = &dns->stream->in;
    char message[LIMIT_EGRESS_QUESTION_BYTES];

    egress_take_one(dns->sandbox);
    memcpy(message, in->data + LENGTH_BYTES, length);
    buf_drop(in, LENGTH_BYTES + length);
    stream_read(dns->stream, false);
    timer_clear(&dns->idle);
    *asked = (struct asked){ .sandbox = dns->sandbox, .stream = dns, .server = dns->server };
    dns->asked = asked;
    if (take_message(asked, str_of(message, length)))
        return true;
    dns->asked = NULL;
    free(asked);
    return false;
}

/* False: there is nothing more to do now. */
static bool dns_stream_step(struct dns_stream *dns)
{
    struct stream *stream = dns->stream;

    if (!stream || dns->asked || timer_is_set(&dns->soon) || egress_is_paused(dns->sandbox))
        return false;
    if (stream_queued(stream)) { /* on_drained() follows */
        timer_set(&dns->idle, loop_of(dns->sandbox), LIMIT_EGRESS_ASK_MS, on_idle);
        stream_read(stream, false);
        return false;
    }
    struct str in = buf_str(&stream->in);
    size_t length = in.len < LENGTH_BYTES ? 0 : (size_t)(uint8_t)in.at[0] << 8 | (uint8_t)in.at[1];
    bool is_whole = in.len >= LENGTH_BYTES + length;
    if (length > LIMIT_EGRESS_QUESTION_BYTES || (is_whole && !take_from_stream(dns, length))) {
        dns_stream_close(dns);
        return false;
    }
    if (is_whole)
        return true;
    if (dns->ended) {
        dns_stream_close(dns);
        return false;
    }
    timer_set(&dns->idle, loop_of(dns->sandbox), LIMIT_EGRESS_ASK_MS, on_idle);
    stream_read(stream, true);
    return false;
}

static void on_soon(struct timer *timer)
{
    dns_stream_next(container_of(timer, struct dns_stream, soon));
}

/* What can be answered is answered. An answer may come at once, from inside: no recursion, there may be many questions. */
static void dns_stream_next(struct dns_stream *dns)
{
    if (dns->is_running)
        return;
    dns->is_running = true;
    int left = QUESTIONS_A_TURN;
    while (left && dns_stream_step(dns))
        left--;
    if (!left && dns->stream) /* reading is off */
        timer_set(&dns->soon, loop_of(dns->sandbox), 0, on_soon);
    dns->is_running = false;
}

static void on_stream(struct stream *stream)
{
    dns_stream_next(stream->owner);
}

static void on_stream_end(struct stream *stream, const struct err *err)
{
    struct dns_stream *dns = stream->owner;

    dns->ended = true;
    if (err)
        dns_stream_close(dns);
    else
        dns_stream_next(dns);
}

static const struct stream_events dns_events = { .on_input = on_stream,
                                                 .on_drained = on_stream,
                                                 .on_end = on_stream_end };

static void dns_stream_dispose(void *object)
{
    free(object);
}

static void dns_stream_close(struct dns_stream *dns)
{
    struct egress_sandbox *sandbox = dns->sandbox;

    if (!dns->stream)
        return;
    stream_free(take_ptr(&dns->stream));
    if (dns->asked)
        asked_free(take_ptr(&dns->asked));
    timer_clear(&dns->idle);
    timer_clear(&dns->soon);
    queue_leave(&dns->link);
    sandbox->dns_stream_count--;
    sandbox->open--;
    egress_give_places(sandbox, 1);
    report_soon(sandbox);
    loop_retire(loop_of(sandbox), dns, dns_stream_dispose);
}

void questions_accept(struct egress_sandbox *sandbox, int fd, const struct net_address *server)
{
    if (sandbox->dns_stream_count == LIMIT_EGRESS_DNS_STREAMS && !hole_is_open("questions of a sandbox")) {
        report_refusal(sandbox, FLOWS_TOO_MANY_QUESTIONS, server, NETWORK_DNS_PORT, STR(""));
        socket_reset(fd);
        egress_give_places(sandbox, 1);
        return;
    }
    struct dns_stream *dns = NEW(struct dns_stream);

    dns->sandbox = sandbox;
    dns->server = *server;
    dns->stream = stream_new(loop_of(sandbox), fd, LENGTH_BYTES + LIMIT_EGRESS_QUESTION_BYTES, &dns_events, dns);
    queue_join(&sandbox->dns_streams, &dns->link);
    sandbox->dns_stream_count++;
    sandbox->open++;
    sandbox->made++;
    dns_stream_next(dns);
}

void questions_reset(struct egress_sandbox *sandbox)
{
    for (size_t i = 0; i < COUNT_OF(sandbox->datagrams); i++)
        watch_free(take_ptr(&sandbox->datagrams[i]));
    while (sandbox->dns_streams.first)
        dns_stream_close(container_of(sandbox->dns_streams.first, struct dns_stream, link));
    for (struct queue_link *link = sandbox->questions.first, *next; link; link = next) {
        next = link->next;
        asked_free(container_of(link, struct asked, link));
    }
}
