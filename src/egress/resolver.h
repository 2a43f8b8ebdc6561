/*
 * resolver.h - asks DNS servers for egress, without waiting.
 *
 * Every answer is read by wire/dns before anything else sees it. A server that does not answer in time, or answers
 * nonsense, gives an answer with the code for "server failure".
 *
 * Ownership  The resolver owns a question until done() has been called or resolver_cancel() returned.
 * Threads    The loop's.
 */
#ifndef EGRESS_RESOLVER_H
#define EGRESS_RESOLVER_H

#include <stdint.h>

#include "base/attr.h"
#include "base/queue.h"
#include "base/str.h"
#include "io/loop.h"

struct resolver;
struct resolver_question;
struct dns_answer; /* wire/dns.h: a code and records */

/*
 * One of those who share the resolver; a zeroed one has asked nothing. A lookup counts for the asker that began it until
 * there is an answer, whether someone still waits or not: it has a socket and a name on its way to a server. Where
 * LIMIT_DNS_ASKING of all are under way, the next one takes the place of the oldest of the asker that has most.
 */
struct resolver_asker {
    uint32_t count; /* lookups under way */
    /* private */
    struct queue lookups;   /* the oldest first */
    struct queue_link link; /* in the resolver's list, while there are some */
};

/* Without servers: every question is answered with "server failure" until resolver_use() names some. */
struct resolver *resolver_new(struct loop *loop) must_use;
void resolver_free(struct resolver *resolver); /* open questions are cancelled: no done(); NULL is fine */

/*
 * The servers to ask from now on, as the text of a resolv.conf: its `nameserver` lines count, and an address may have a
 * port ("192.0.2.53:5353", "[2001:db8::53]:5353"). Everything else in it is ignored.
 */
void resolver_use(struct resolver *resolver, struct str resolv_conf);

/* Is there a fair share left: has the asker no lookup under way, or fewer than are still free for all? */
bool resolver_has_share(const struct resolver *resolver, const struct resolver_asker *asker) must_use;
/* Would resolver_ask() send nothing, because there is an answer that holds, or the same is on its way? */
bool resolver_knows(const struct resolver *resolver, struct str name, uint16_t type) must_use;
/* The asker is about to go: lookups that only it wanted end. */
void resolver_asker_done(struct resolver *resolver, struct resolver_asker *asker);

/* Called once, later, never from inside resolver_ask(). The answer lives until it returns. */
typedef void resolver_done_fn(void *context, const struct dns_answer *answer);
/* `name` without a dot at its end; `type` as in DNS: 1 is A, 28 is AAAA. */
struct resolver_question *resolver_ask(struct resolver *resolver, struct resolver_asker *asker, struct str name,
                                       uint16_t type, resolver_done_fn *done, void *context) must_use;
void resolver_cancel(struct resolver_question *question); /* no done(); NULL is fine */

#endif
