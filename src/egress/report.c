/*
 * Counters and refusals are collected for REPORT_MS, then sent for all sandboxes that have some. A refusal that repeats is
 * one record with a count, so that a guest that retries for ever makes one line a second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "egress/inside.h"
#include "privsep/message.h"

enum {
    REPORT_MS = 1000,
    REASON_BYTES = 160, /* as in struct err */
};

struct refusal {
    unsigned why;
    bool has_address;
    struct net_address to;
    uint16_t port;
    uint32_t count;
    uint32_t names; /* that it may be for, while `name` is not known */
    char name[LIMIT_NET_NAME_BYTES + 1];
    char reason[REASON_BYTES]; /* of a failure */
};

struct refusals {
    uint32_t count;
    struct refusal list[LIMIT_FLOWS_REFUSALS];
};

/* ---- sentences ---- */

static const struct net_range *range_with(const struct net_range *list, uint32_t count, const struct net_address *to)
{
    for (uint32_t i = 0; i < count; i++)
        if (net_range_has(&list[i], to))
            return &list[i];
    return NULL;
}

static void say_where(const struct refusal *refusal, struct buf *out)
{
    const char *what = refusal->why == FLOWS_NO_LOOKUP ? "failed" : "refused";
    char address[NET_ADDRESS_TEXT];

    if (refusal->why == FLOWS_NOT_DIVERTED) {
        buf_add(out, STR("connection refused: "));
        return;
    }
    if (refusal->why == FLOWS_PAUSED) {
        buf_add(out, STR("connections and DNS questions wait: "));
        return;
    }
    if (!refusal->has_address) {
        buf_format(out, "DNS question for %s %s: ", refusal->name[0] ? refusal->name : "a name", what);
        return;
    }
    if (refusal->why == FLOWS_NO_ANSWER) {
        buf_format(out, "request to %s failed: ", refusal->name);
        return;
    }
    if (refusal->why == FLOWS_SERVICE_FAILED) {
        buf_format(out, "service %s:%u (--inside) failed: ", refusal->name, refusal->port);
        return;
    }
    net_address_text(&refusal->to, address);
    if (refusal->names)
        buf_format(out, "connection to %s (one of %u names%s) port %u refused: ", address, refusal->names,
                   refusal->names == LIMIT_EGRESS_PIN_NAMES ? " or more" : "", refusal->port);
    else if (refusal->name[0])
        buf_format(out, "connection to %s (%s) port %u %s: ", refusal->name, address, refusal->port, what);
    else
        buf_format(out, "connection to %s port %u refused: ", address, refusal->port);
}

static void say_why(const struct egress_sandbox *sandbox, const struct refusal *refusal, struct buf *out)
{
    const struct net_range *range;
    char text[NET_RANGE_TEXT];

    switch (refusal->why) {
    case NET_RULE_MAIL_PORT:
        buf_add(out, STR("ports 25, 465 and 587 are for mail, which does not leave a sandbox"));
        return;
    case NET_RULE_OPERATOR:
        buf_add(out, STR("the operator of this server lets no sandbox reach this address"));
        return;
    case NET_RULE_HOST:
        buf_add(out, STR("this is an address of the machine that Cloister runs on"));
        return;
    case NET_RULE_NOT_PUBLIC:
        buf_add(out, STR("this is not a public address; an operator can allow it with --egress-allow"));
        return;
    case NET_RULE_INTERNET_OFF:
        buf_add(out, STR("the sandbox has no internet access"));
        return;
    case NET_RULE_DENY_RANGE:
        range = range_with(sandbox->policy.deny, sandbox->policy.deny_count, &refusal->to);
        if (range)
            net_range_text(range, text);
        buf_format(out, "denyOut has %s", range ? text : "it");
        return;
    case NET_RULE_NAME_NOT_ALLOWED:
        buf_add(out, STR("allowOut does not have this name"));
        return;
    case NET_RULE_DNS_OFF:
        buf_add(out, STR("dnsServers is an empty list"));
        return;
    case NET_RULE_PRIVATE_NAME:
        buf_add(out, STR("this name belongs to private networks, and allowOut does not have it"));
        return;
    case FLOWS_TOO_MANY:
        buf_format(out, "a sandbox has %u open connections at most", LIMIT_EGRESS_FLOWS);
        return;
    case FLOWS_TOO_MANY_OF_ALL:
        buf_format(out,
                   "all sandboxes of this server together have %u open connections at most, and the share of this one "
                   "is used up",
                   sandbox->egress->config.flows_max);
        return;
    case FLOWS_TOO_FAST:
        buf_format(out, "a sandbox may open %u connections per second, after %u at once", LIMIT_EGRESS_NEW_S,
                   LIMIT_EGRESS_NEW_BURST);
        return;
    case FLOWS_TOO_MANY_WITH_RULES:
        buf_format(out, "a sandbox has %u open connections to hosts with header rules at most",
                   LIMIT_EGRESS_INTERCEPTS);
        return;
    case FLOWS_NOT_DIVERTED:
        buf_add(out, STR("this is a socket of Cloister's own"));
        return;
    case FLOWS_TOO_MANY_QUESTIONS:
        buf_format(out, "more than %u DNS questions per second, or %u at once, or %u connections for them",
                   LIMIT_EGRESS_QUESTIONS_S, LIMIT_EGRESS_QUESTIONS, LIMIT_EGRESS_DNS_STREAMS);
        return;
    case FLOWS_TOO_FAST_WITH_RULES:
    case FLOWS_SERVICE_FAILED:
    case FLOWS_NO_LOOKUP:
    case FLOWS_PROXY:
    case FLOWS_NO_ANSWER:
        buf_add(out, str_from(refusal->reason));
        return;
    case FLOWS_NO_HTTP1:
        buf_add(out, STR("this host has header rules, which need HTTP/1.1, and the program offers none"));
        return;
    case FLOWS_NO_POLICY:
        buf_add(out, STR("this sandbox's network rules are not in force yet; if this stays, see the server's log"));
        return;
    case FLOWS_PAUSED:
        buf_format(out, "of one sandbox %u per second are taken, after %u at once", LIMIT_EGRESS_TAKEN_S,
                   LIMIT_EGRESS_TAKEN_BURST);
        return;
    case FLOWS_TOO_MANY_INSIDE:
        buf_format(out, "a sandbox has %u open connections to the operator's services at most", LIMIT_EGRESS_INSIDE);
        return;
    case FLOWS_NO_SERVICE:
        buf_add(out, STR("the operator has named no service for this port (--inside)"));
        return;
    default:
        buf_add(out, STR("no rule allows it"));
    }
}

/* ---- sending ---- */

static void pack(struct egress_sandbox *sandbox, struct buf *out)
{
    struct flows_record record = { .bytes_in = sandbox->bytes_in,
                                   .bytes_out = sandbox->bytes_out,
                                   .made = sandbox->made,
                                   .refused = sandbox->refused,
                                   .open = sandbox->open };
    struct arena arena;

    arena_init(&arena);
    memcpy(record.id, sandbox->id, sizeof record.id);
    for (uint32_t i = 0; sandbox->refusals && i < sandbox->refusals->count; i++) {
        const struct refusal *refusal = &sandbox->refusals->list[i];
        struct buf text = buf_make(&arena, LIMIT_FLOWS_TEXT_BYTES);
        say_where(refusal, &text);
        say_why(sandbox, refusal, &text);
        record.refusals[record.refusal_count++] = (struct flows_refusal){
            .why = (uint8_t)refusal->why,
            .to = refusal->to,
            .port = refusal->port,
            .name = str_from(refusal->name),
            .count = refusal->count,
            .text = buf_str(&text),
        };
    }
    flows_pack(out, &record);
    arena_done(&arena);
}

static void start_over(struct egress_sandbox *sandbox)
{
    queue_leave(&sandbox->news);
    sandbox->bytes_in = sandbox->bytes_out = 0;
    sandbox->made = sandbox->refused = 0;
    free(take_ptr(&sandbox->refusals));
}

static void send_out(struct egress *egress, struct buf *message)
{
    if (message->len)
        egress->config.report(egress->config.context, buf_str(message));
    buf_clear(message);
}

static void on_report(struct timer *timer)
{
    struct egress *egress = container_of(timer, struct egress, report);
    auto_buf struct buf message = buf_make(NULL, LIMIT_MESSAGE_BYTES - MESSAGE_HEAD_BYTES);
    auto_buf struct buf record = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    if (egress->config.may_report && !egress->config.may_report(egress->config.context)) {
        timer_set(timer, egress->config.loop, REPORT_MS, on_report); /* counters add up meanwhile */
        return;
    }
    for (struct queue_link *link = egress->news.first, *next; link; link = next) {
        struct egress_sandbox *sandbox = container_of(link, struct egress_sandbox, news);
        next = link->next;
        buf_clear(&record);
        pack(sandbox, &record);
        start_over(sandbox);
        if (message.len + record.len > message.cap)
            send_out(egress, &message);
        buf_add(&message, buf_str(&record));
    }
    send_out(egress, &message);
}

void report_last(struct egress_sandbox *sandbox)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_MESSAGE_BYTES - MESSAGE_HEAD_BYTES);

    if (sandbox->news.in) {
        pack(sandbox, &message);
        send_out(sandbox->egress, &message);
    }
    start_over(sandbox);
}

/* ---- collecting ---- */

void report_soon(struct egress_sandbox *sandbox)
{
    struct egress *egress = sandbox->egress;

    if (!sandbox->news.in)
        queue_join(&egress->news, &sandbox->news);
    if (!timer_is_set(&egress->report))
        timer_set(&egress->report, egress->config.loop, REPORT_MS, on_report);
}

static bool is_alike(const struct refusal *a, const struct refusal *b)
{
    return a->why == b->why && a->has_address == b->has_address && a->port == b->port &&
           net_address_eq(&a->to, &b->to) && a->names == b->names && strcmp(a->name, b->name) == 0 &&
           strcmp(a->reason, b->reason) == 0;
}

void report_refusal(struct egress_sandbox *sandbox, unsigned why, const struct net_address *to, uint16_t port,
                    struct str name)
{
    report_failure(sandbox, why, to, port, name, "");
}

void report_failure(struct egress_sandbox *sandbox, unsigned why, const struct net_address *to, uint16_t port,
                    struct str name, const char *reason)
{
    struct refusal refusal = { .why = why, .has_address = to, .port = port, .count = 1 };

    (void)snprintf(refusal.reason, sizeof refusal.reason, "%s", reason);
    sandbox->refused += why != FLOWS_PAUSED;
    report_soon(sandbox);
    if (to)
        refusal.to = *to;
    if (to && !name.len) {
        uint64_t now_ms = loop_now_ms(sandbox->egress->config.loop);
        uint32_t names = pins_count(&sandbox->pins, to, now_ms);
        if (names == 1)
            name = pins_any_name(&sandbox->pins, to, now_ms);
        else
            refusal.names = names;
    }
    if (name.len && name.len < sizeof refusal.name)
        memcpy(refusal.name, name.at, name.len);
    if (!sandbox->refusals)
        sandbox->refusals = NEW(struct refusals);
    struct refusals *refusals = sandbox->refusals;
    for (uint32_t i = 0; i < refusals->count; i++) {
        if (is_alike(&refusals->list[i], &refusal)) {
            refusals->list[i].count++;
            return;
        }
    }
    if (refusals->count < LIMIT_FLOWS_REFUSALS)
        refusals->list[refusals->count++] = refusal;
}

void report_no_lookup(struct egress_sandbox *sandbox, const struct net_address *to, uint16_t port, struct str name,
                      struct str reason)
{
    char text[REASON_BYTES];

    (void)snprintf(text, sizeof text, "%s%.*s", to ? "its name cannot be looked up: " : "", STR_ARG(reason));
    report_failure(sandbox, FLOWS_NO_LOOKUP, to, port, name, text);
}
