/*
 * inside.h - what the files of egress/ share.
 *
 *   egress.c   the sandboxes: their sockets, policies and ends
 *   flow.c     one connection, from accept to its end
 *   name.c     which host a client wants, by its first bytes
 *   pins.c     which names lead to an address
 *   questions.c  DNS questions of sandboxes
 *   intercept.c  requests to hosts with header rules: TLS is ended here
 *   issued.c   certificates for those hosts
 *   handshakes.c  TLS handshakes with hosts and proxies: how many at a time
 *   dialer.c   connections to the first address that accepts
 *   tunnel.c   a connection through the policy's proxy
 *   services.c  names that stay inside, and what answers there
 *   sockets.c  where a connection wants to go, and connections to there
 *   report.c   counts, refusals, and the messages about them
 */
#ifndef EGRESS_INSIDE_H
#define EGRESS_INSIDE_H

#include "base/arena.h"
#include "base/map.h"
#include "base/queue.h"
#include "base/quota.h"
#include "egress/egress.h"
#include "egress/flows.h"
#include "egress/handshakes.h"
#include "egress/issued.h"
#include "egress/pins.h"
#include "egress/sockets.h"
#include "io/listen.h"
#include "io/tls.h"

struct egress {
    struct egress_config config;
    struct host_probe probe;
    struct map sandboxes; /* id → struct egress_sandbox */
    struct queue early;   /* those with a policy and no sockets yet, the oldest first */
    uint32_t early_count;
    struct timer forget;         /* of those that have waited too long */
    uint32_t places;             /* in use, of config.flows_max: egress_take_places() */
    struct queue news;           /* those with something to report */
    struct timer report;         /* set while there are some */
    struct tls_client *roots;    /* trusts config.roots; made when it is needed first */
    struct quota_rule rate_rule; /* of each sandbox, each way; a token is a KiB */
};

struct refusals; /* report.c */

/* What egress has of one sandbox. */
struct egress_sandbox {
    struct egress *egress;
    char id[LIMIT_ID_BYTES];
    int sockets[DIVERT_KINDS]; /* -1: none, or taken by a listener */
    struct listener *listeners[2];
    struct quota taken; /* connections accepted and questions read: egress_take_one() */
    struct timer pause; /* set: its sockets are not looked at */
    bool has_network, has_policy;
    struct timer late;  /* the policy, while there are sockets and it is not there */
    struct arena arena; /* of the policy */
    struct net_policy policy;
    uint64_t policy_number;       /* 1 for the first one, and one more for each after it */
    struct tls_client *proxy_tls; /* whom to trust as the policy's proxy; NULL: it has no TLS */
    struct tls_client *own_tls;   /* the same if it is the policy's own */
    struct issued_set issued;     /* for hosts with header rules */
    uint32_t intercepts;          /* connections to them */
    struct quota accepts;         /* of TLS with the sandbox's programs, for them */
    struct handshakes handshakes; /* with them, and with the policy's proxy */
    struct queue_link early;      /* in egress->early… */
    uint64_t since_ms;            /* …since then */
    struct queue flows;
    struct quota dials; /* to the outside and to names that stay inside */
    uint32_t open;      /* flows, and connections for DNS */
    uint32_t inside;    /* flows to names that stay inside */
    uint32_t places;    /* that these have taken */
    uint32_t pipes;     /* that its flows have borrowed (io/splice.h) */
    struct pins pins;

    /* questions.c */
    struct watch *datagrams[2];
    struct queue questions;  /* without an answer yet */
    uint32_t question_count; /* at once; those of connections too */
    struct resolver_asker asker;
    struct queue dns_streams;
    uint32_t dns_stream_count;
    struct quota question_rate;

    /* since the last report */
    uint64_t bytes_in, bytes_out;
    uint32_t made, refused;
    struct refusals *refusals; /* NULL: none */
    struct queue_link news;

    struct quota rate_in, rate_out;
    struct queue slowed; /* flows that wait for their rate */
    struct timer resume;
};

/* ---- flow.c ---- */

/* A connection from the sandbox; takes the descriptor, and has a place. */
void flow_accept(struct egress_sandbox *sandbox, int fd);
/* The policy is new: cuts the connections that it does not allow. */
void flows_judge_again(struct egress_sandbox *sandbox);
void flows_reset(struct egress_sandbox *sandbox);         /* all of them */
void flows_reset_outside(struct egress_sandbox *sandbox); /* all but those to names that stay inside */
bool egress_is_host(const struct egress *egress, const struct net_address *address);
/* The rules that no sandbox's policy lifts. */
enum net_rule egress_judge_for_all(const struct egress *egress, const struct net_address *to, uint16_t port);

/* ---- egress.c ---- */

/*
 * A place is two descriptors: what a connection has, the guest's side and the outside's. One with header rules takes more.
 * False: the sandbox's share of all places is used up.
 */
bool egress_take_places(struct egress_sandbox *sandbox, uint32_t count) must_use;
void egress_give_places(struct egress_sandbox *sandbox, uint32_t count);
/*
 * A connection was accepted, or a question read. If that was more than the sandbox may send, nothing more is accepted or read
 * of it for a while: its programs wait, and its own kernel drops what does not fit into its sockets.
 */
void egress_take_one(struct egress_sandbox *sandbox);
static inline bool egress_is_paused(const struct egress_sandbox *sandbox)
{
    return timer_is_set(&sandbox->pause);
}
/* Whom the host trusts; NULL and the reason: nobody. */
struct tls_client *egress_roots(struct egress *egress, struct err *err);

/* ---- questions.c ---- */

/* Answers what comes to the UDP sockets. */
void questions_listen(struct egress_sandbox *sandbox);
void questions_read(struct egress_sandbox *sandbox, bool on); /* false: they stay where they are */
/* A connection to port 53; takes the descriptor, and has a place. */
void questions_accept(struct egress_sandbox *sandbox, int fd, const struct net_address *server);
void questions_reset(struct egress_sandbox *sandbox); /* everything of it is closed, UDP too */
/*
 * As resolver_ask(), for the name of a connection or of the proxy. It counts as a question of the sandbox, in its rate and
 * in those at once, unless the resolver knows the answer: many connections may need one name. NULL: too many questions.
 */
struct question;
struct question *questions_ask(struct egress_sandbox *sandbox, struct str name, uint16_t type, resolver_done_fn *done,
                               void *context) must_use;
void questions_cancel(struct question *question); /* no done(); NULL is fine */
/* Of an A or AAAA record; false for others. */
struct dns_record;
bool dns_record_address(const struct dns_record *record, struct net_address *out);

/* ---- services.c; each NULL: there is none ---- */

/* Any service of this name, which may be in any case, or at this address inside. */
const struct egress_service *egress_service_named(const struct egress *egress, struct str name);
const struct egress_service *egress_service_at(const struct egress *egress, const struct net_address *address);
/* The one of the same name on this port. */
const struct egress_service *egress_service_on(const struct egress *egress, const struct egress_service *any,
                                               uint16_t port);

/* ---- report.c ---- */

void report_soon(struct egress_sandbox *sandbox); /* something has changed */
/*
 * `to` may be NULL: not known. `name` is one that the guest has shown, or "": then the names count that it has looked up
 * for the address, if there is only one.
 */
void report_refusal(struct egress_sandbox *sandbox, unsigned why, const struct net_address *to, uint16_t port,
                    struct str name);
/* The same with a reason of its own: FLOWS_NO_LOOKUP, FLOWS_SERVICE_FAILED, FLOWS_PROXY, FLOWS_NO_ANSWER,
 * FLOWS_TOO_FAST_WITH_RULES. */
void report_failure(struct egress_sandbox *sandbox, unsigned why, const struct net_address *to, uint16_t port,
                    struct str name, const char *reason);
/* FLOWS_NO_LOOKUP, of a question, or with an address of the connection that the name would have allowed. */
void report_no_lookup(struct egress_sandbox *sandbox, const struct net_address *to, uint16_t port, struct str name,
                      struct str reason);
void report_last(struct egress_sandbox *sandbox); /* the sandbox is gone: what there is to say is said now */

#endif
