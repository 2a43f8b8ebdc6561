/*
 * egress.h - the one way out of sandboxes: accepts their connections and questions, judges them, and carries them out.
 *
 * A sandbox has no link to the outside. Keeper makes sockets inside its network namespace, to which every outgoing
 * connection and DNS question is diverted (io/divert.h), and gives them to egress. Front gives egress the sandbox's policy.
 * Egress accepts nothing for a sandbox until it has both.
 *
 * Ownership  Egress owns the sockets that it is given. What the configuration points to must outlive it.
 * Threads    The loop's.
 * Failure    A connection that is refused or fails is reset, and no other connection is affected.
 */
#ifndef EGRESS_EGRESS_H
#define EGRESS_EGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "egress/resolver.h"
#include "io/divert.h"
#include "io/loop.h"
#include "policy/net_policy.h"
#include "policy/net_rules.h"

struct egress;

/*
 * A service at a name that stays inside: in every sandbox the name leads to `address`, and connections to `port` there are
 * carried to `to`. The operator has named it, so no policy is asked. Services of one name have the same address.
 *
 * A service at an address does not learn which sandbox connects. Mail has to know it: such a connection is given to front
 * with the sandbox's id (egress_config.guest), and `to` is not used.
 */
enum egress_service_kind {
    EGRESS_ADDRESS,
    EGRESS_MAIL,     /* HTTP */
    EGRESS_MAIL_TLS, /* HTTP over TLS, which egress ends with a certificate of the sandbox's own authority */
    EGRESS_SERVICE_KINDS,
};
struct egress_service {
    enum egress_service_kind kind;
    char name[LIMIT_NET_NAME_BYTES + 1]; /* lower case */
    struct net_address address;
    uint16_t port;
    struct net_address to; /* as this machine sees it, loopback too */
    uint16_t to_port;
};

struct egress_config {
    struct loop *loop;
    struct resolver *resolver;
    const struct egress_service *services; /* their names are looked up here, and asked nowhere else: --inside */
    uint32_t service_count;
    struct net_operator ranges;                      /* --egress-allow, --egress-deny */
    struct str roots;                                /* certificates to trust, in PEM; may be empty */
    uint64_t bytes_per_s;                            /* of one sandbox, each way; 0: no limit */
    uint32_t flows_max;                              /* of all sandboxes together; see egress_flows_max() */
    void (*report)(void *context, struct str flows); /* a FLOWS message for front, flows.h */
    /* Gives front a connection of this sandbox to mail; the descriptor stays ours. False: front is away or busy. */
    bool (*guest)(void *context, const char *id, int fd);
    bool (*may_report)(void *context); /* false: later, please; NULL: always */
    void *context;
    /* For tests, which have no network namespaces; NULL: the kernel is asked (sockets.h). */
    bool (*original)(int fd, struct net_address *out, uint16_t *out_port);
    bool (*is_host)(const struct net_address *address);
    bool (*has_route)(const struct net_address *address);
    uint16_t tls_port; /* where header rules apply; 0: 443 */
};

/* As many connections as this process has descriptors for, beside all else that it may have open: LIMIT_EGRESS_RESERVE. */
uint32_t egress_flows_max(uint32_t sandboxes_max);
struct egress *egress_new(const struct egress_config *config) must_use;
void egress_free(struct egress *egress); /* resets every connection; NULL is fine */

/*
 * Takes the sockets that keeper has made in the sandbox (io/divert.h), in place of those that it may have had before. -1:
 * it has none of this kind.
 */
void egress_network(struct egress *egress, const char *id, int sockets[DIVERT_KINDS]);
/*
 * A packed net_policy, in place of the one before. Connections that it does not allow are cut. No bytes at all: the sandbox
 * ends, so all its connections are cut, and new ones are refused, those to services too. False: it does not decode or is not
 * well-formed, and nothing has changed.
 */
bool egress_policy(struct egress *egress, const char *id, struct str packed, struct err *err) must_use;
/* The sandbox is gone: everything of it is closed. */
void egress_exited(struct egress *egress, const char *id);

#endif
