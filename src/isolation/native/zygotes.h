/*
 * zygotes.h - warm Python zygotes outside the sandboxes, one a template, whose children are spawned into them.
 *
 * The first cell of a sandbox needs an interpreter with its imports done. A zygote (guest/interpreter/driver/, run by the
 * template's own python3) has them done once for all sandboxes of a template; a fork of her that enters a sandbox
 * (enter.c) is ready in milliseconds and shares her memory until it writes.
 *
 *   zygote    what sandboxes of the same layers have in common: a user id, and at most one zygote at a time
 *   owner    the user namespaces of a zygote's sandboxes belong to that id: who runs as it has power over those and over
 *            nothing else
 *   door     a socket pair a sandbox; guestd has one end and asks for interpreters (wire/zygote.h). The other end is ours
 *            until somebody first wants code to be run, and then the zygote's.
 *
 * Nobody depends on any of it. A zygote that does not start, dies or does not answer is killed; her doors close, and guestd
 * does what it does without a zygotes: it starts a zygote inside the sandbox. The next one outside comes after a while.
 *
 * Threads    Keeper's. No call waits for a zygote.
 * Lifetime   Zygotes end with keeper. What they have borne lives on.
 */
#ifndef ISOLATION_NATIVE_ZYGOTES_H
#define ISOLATION_NATIVE_ZYGOTES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/mounts.h"
#include "isolation/plan.h"

struct zygotes;
struct zygote;

struct zygotes_config {
    struct loop *loop;
    struct mounts *mounts;
    struct cgroups *cgroups;
    int layers_fd;               /* all of these are borrowed */
    uint32_t uids_from, uids_to; /* the sandboxes' own ids: owners are others */
};

/* NULL is a zygotes too, in which nothing is spawned. */
struct zygotes *zygotes_new(const struct zygotes_config *config, struct err *err) must_use;
void zygotes_free(struct zygotes *zygotes); /* kills the zygotes, and waits for that */

/*
 * That of sandboxes with these layers, referenced; NULL when there are too many, or `zygotes` is NULL. `owner` is 0 for a
 * new sandbox. For one that an earlier keeper made it is what zygote_owner() was then, and NULL is the answer too when
 * sandboxes of these layers belong to another owner by now.
 */
struct zygote *zygote_ref(struct zygotes *zygotes, const struct plan *plan, uint32_t owner) must_use;
void zygote_unref(struct zygote *zygote); /* NULL is fine */
/* Who the user namespace of its sandboxes belongs to; 0, which is keeper, for NULL. */
uint32_t zygote_owner(const struct zygote *zygote);
/* The host's process id of its zygote, or -1; for tests. */
int zygote_pid(const struct zygote *zygote);

/*
 * A socket on which guestd can ask the zygote for interpreters, the caller's; the zygote has the other end, and is started
 * if it does not run. -1: there is none now, or this sandbox has it already. A sandbox may have a new one for each zygote
 * that starts, and once more when a zygote that was starting is ready; *given is the sandbox's memory of that, 0 at first.
 */
int zygote_connect(struct zygote *zygote, const char *sandbox_id, int sandbox_pidfd, uint64_t *given) must_use;

/* Somebody has used her power against keeper: no zygote and no owner for this zygote from now on. NULL is fine. */
void zygote_bar(struct zygote *zygote);

/* The texts and the program that zygotes run, embedded at build time. */
extern const char zygotes_driver_py[], zygotes_charts_py[];
extern const unsigned char zygotes_enter_so[];
extern const unsigned long zygotes_enter_so_size;

#endif
