/*
 * issued.h - what one sandbox's authority has issued: for each host with header rules, TLS with a certificate for it.
 *
 * Ownership  The caller holds a reference to each that it uses. Those that nobody uses are kept for the next connection,
 *            up to LIMIT_EGRESS_ISSUED. With another seed the set begins anew: what the old authority has issued is used
 *            by the connections that have it, and by no new one.
 * Threads    The loop's.
 */
#ifndef EGRESS_ISSUED_H
#define EGRESS_ISSUED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/queue.h"
#include "base/quota.h"
#include "base/str.h"
#include "io/loop.h"
#include "io/tls_authority.h"

struct issued_by; /* an authority, for as long as there is something that it has issued */

struct issued_set {
    struct loop *loop;
    struct issued_by *by; /* NULL: not made yet */
    struct queue all;     /* used longest ago first */
    uint32_t count;       /* of these, and of old ones in use */
    struct quota rate;    /* of new ones */
};

struct issued {
    struct tls_server *tls;
    /* private */
    struct issued_set *set;
    struct issued_by *by;
    struct queue_link link;
    uint32_t users;
    bool is_old; /* not in the set any more: goes with its last user */
    char *name;
};

/*
 * For this host name, which must be a valid one; made if there is none yet.
 * ERR_LIMIT: too many are in use, or were made a moment ago.
 */
struct issued *issued_get(struct issued_set *set, struct loop *loop, const uint8_t seed[TLS_SEED_BYTES],
                          struct str name, struct err *err) must_use;
void issued_unref(struct issued *issued); /* NULL is fine */
/* When the turn ends, at the earliest, in which the last user's streams were freed. */
void issued_done(struct issued_set *set);

#endif
