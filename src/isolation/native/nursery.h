/*
 * nursery.h - warm Python mothers outside the sandboxes, one a template, whose children are born into them.
 *
 * The first cell of a sandbox needs an interpreter with its imports done. A mother (guest/interpreter/driver/, run by the
 * template's own python3) has them done once for all sandboxes of a template; a fork of her that enters a sandbox
 * (midwife.c) is ready in milliseconds and shares her memory until it writes.
 *
 *   breed    what sandboxes of the same layers have in common: a user id, and at most one mother at a time
 *   owner    the user namespaces of a breed's sandboxes belong to that id: who runs as it has power over those and over
 *            nothing else
 *   door     a socket pair a sandbox; guestd has one end and asks for interpreters (wire/nursery.h). The other end is ours
 *            until somebody first wants code to be run, and then the mother's.
 *
 * Nobody depends on any of it. A mother that does not start, dies or does not answer is killed; her doors close, and guestd
 * does what it does without a nursery: it starts a mother inside the sandbox. The next one outside comes after a while.
 *
 * Threads    Keeper's. No call waits for a mother.
 * Lifetime   Mothers end with keeper. What they have borne lives on.
 */
#ifndef ISOLATION_NATIVE_NURSERY_H
#define ISOLATION_NATIVE_NURSERY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/mounts.h"
#include "isolation/plan.h"

struct nursery;
struct breed;

struct nursery_config {
    struct loop *loop;
    struct mounts *mounts;
    struct cgroups *cgroups;
    int layers_fd;               /* all of these are borrowed */
    uint32_t uids_from, uids_to; /* the sandboxes' own ids: owners are others */
};

/* NULL is a nursery too, in which nothing is born. */
struct nursery *nursery_new(const struct nursery_config *config, struct err *err) must_use;
void nursery_free(struct nursery *nursery); /* kills the mothers, and waits for that */

/* That of a sandbox with this plan, referenced; NULL when there are too many, or there is no nursery. */
struct breed *breed_ref(struct nursery *nursery, const struct plan *plan) must_use;
void breed_unref(struct breed *breed); /* NULL is fine */
/* Who the user namespace of its sandboxes belongs to; 0, which is keeper, for NULL. */
uint32_t breed_owner(const struct breed *breed);
/* The host's process id of its mother, or -1; for tests. */
int breed_mother(const struct breed *breed);

/*
 * out[0] stays with keeper, out[1] is guestd's. Nothing that guestd sends before the mother has it is kept: a guest must
 * not have descriptors of its own waiting in keeper's hands, where closing one can take as long as the guest likes.
 */
bool door_open(const struct breed *breed, int out[2], struct err *err) must_use;

/*
 * Gives the door to the breed's mother, who is started if there is none. It is closed in any case, and if that was its
 * end guestd notices at once.
 */
void breed_admit(struct breed *breed, const char *sandbox_id, int sandbox_pidfd, int *door_fd);

/* Somebody has used her power against keeper: no mother and no owner for this breed from now on. NULL is fine. */
void breed_bar(struct breed *breed);

/* The texts and the program that mothers run, embedded at build time. */
extern const char nursery_driver_py[], nursery_charts_py[];
extern const unsigned char nursery_midwife_so[];
extern const unsigned long nursery_midwife_so_size;

#endif
