/*
 * flows.h - what egress tells front about sandboxes: bytes, connections, and what was refused. The message FLOWS.
 *
 * Egress sends it about once a second, for sandboxes with something new. A message has one record or more and is
 * decoded whole before the first record is used.
 *
 * Ownership  Text in a record borrows from the message.
 */
#ifndef EGRESS_FLOWS_H
#define EGRESS_FLOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "policy/net_policy.h"
#include "policy/net_rules.h"

/* Why a connection or a question was refused or waits: a rule of net_rules.h (its number), or one of these. */
enum flows_why {
    FLOWS_TOO_MANY = NET_RULE_COUNT, /* the sandbox has all the connections that it may have */
    FLOWS_TOO_MANY_OF_ALL,           /* its share of those that all sandboxes may have together */
    FLOWS_TOO_FAST,                  /* more new ones than it may have in a second */
    FLOWS_TOO_MANY_WITH_RULES,       /* all that it may have to hosts with header rules */
    FLOWS_TOO_FAST_WITH_RULES,       /* more new ones to them than it may have in a second */
    FLOWS_NOT_DIVERTED,              /* a connection to our listening socket itself */
    FLOWS_TOO_MANY_QUESTIONS,        /* DNS: more than it may ask at once or in a second, or more connections for it */
    FLOWS_TOO_MANY_INSIDE,           /* all that it may have to names that stay inside */
    FLOWS_NO_LOOKUP,                 /* no name server has answered for the name, or with a failure only */
    FLOWS_NO_SERVICE,                /* a name that stays inside, and --inside does not have this port */
    FLOWS_SERVICE_FAILED,            /* --inside has it, and it could not be connected to */
    FLOWS_PROXY,                     /* the policy's proxy did not connect it */
    FLOWS_NO_HTTP1,                  /* the host has header rules, and the client speaks no HTTP/1.1 */
    FLOWS_NO_ANSWER,                 /* the host has header rules, and could not be reached or did not answer */
    FLOWS_NO_POLICY,                 /* the sandbox's policy is late, or could not be used */
    FLOWS_PAUSED,                    /* nothing is refused: more than is taken in in a second, so it waits */
    FLOWS_WHY_COUNT,
};

/* Refusals that are alike are one of these. */
struct flows_refusal {
    uint8_t why;           /* enum net_rule or enum flows_why */
    struct net_address to; /* zero for a DNS question */
    uint16_t port;         /* 0 for a DNS question */
    struct str name;       /* that was asked for, or that leads there; empty: not known. Bytes of the guest's choice. */
    uint32_t count;
    struct str text; /* one sentence for the sandbox's log: what was refused, and why */
};

struct flows_record {
    char id[LIMIT_ID_BYTES];
    uint64_t bytes_in, bytes_out; /* since the last record; in: towards the sandbox */
    uint32_t made, refused;       /* connections since the last record; `refused` counts DNS questions too */
    uint32_t open;                /* connections now */
    uint32_t refusal_count;       /* the first LIMIT_FLOWS_REFUSALS different ones; `refused` counts all */
    struct flows_refusal refusals[LIMIT_FLOWS_REFUSALS];
};

void flows_pack(struct buf *out, const struct flows_record *record);
/* Calls each() for every record of a message. False, before the first call: it is malformed. */
typedef void flows_each_fn(void *context, const struct flows_record *record);
bool flows_unpack(struct str payload, flows_each_fn *each, void *context, struct err *err) must_use;

#endif
