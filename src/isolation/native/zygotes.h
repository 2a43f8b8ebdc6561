/*
 * zygotes.h - warm Python processes outside the sandboxes, one per template, from which interpreters are forked.
 *
 * The first cell of a sandbox needs an interpreter with its imports done. A zygote (guest/interpreter/driver/, run by the
 * template's own python3) has them done once for all sandboxes of a template. A fork of it that enters a sandbox (enter.c)
 * is ready in milliseconds and shares the zygote's memory until it writes.
 *
 *   zygote   one for all sandboxes of the same layers; its process is started when code is first to be run
 *   owner    the zygote's user id, to which the user namespaces of its sandboxes belong: a process that runs as it has
 *            power over those sandboxes and over nothing else
 *   socket   a pair per sandbox: the zygote has one end, guestd gets the other and asks for interpreters (wire/zygote.h)
 *
 * A sandbox works without all of this. A zygote that does not start, dies or does not answer is killed; its sockets close,
 * and guestd starts a zygote inside the sandbox. The next one outside is started after a pause.
 *
 * Threads    Keeper's. No call waits for a zygote.
 * Lifetime   Zygotes end with keeper. Interpreters that came from them live on.
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
    int layers_fd, enter_fd;     /* all of these are borrowed; enter_fd is enter.so, a file that cannot be written */
    bool no_landlock;            /* as guests have it (seccomp.h) */
    uint32_t uids_from, uids_to; /* the sandboxes' own ids: no owner is among them */
};

/* NULL is fine for all calls below: then there is no zygote for any sandbox. */
struct zygotes *zygotes_new(const struct zygotes_config *config, struct err *err) must_use;
void zygotes_free(struct zygotes *zygotes); /* kills their processes and waits until they are gone */

/*
 * That of sandboxes with these layers, referenced; NULL when there are too many, when a guest has written one of the layers
 * (a snapshot's), or `zygotes` is NULL. `owner` is 0 for a
 * new sandbox. For one that an earlier keeper made it is what zygote_owner() was then, and NULL is the answer too when
 * sandboxes of these layers belong to another owner by now.
 */
struct zygote *zygote_ref(struct zygotes *zygotes, const struct plan *plan, uint32_t owner) must_use;
void zygote_unref(struct zygote *zygote); /* NULL is fine */
/* The owner of its sandboxes' user namespaces; for NULL that is 0, keeper itself. */
uint32_t zygote_owner(const struct zygote *zygote);
/* Its process id on the host, or -1; for tests. */
int zygote_pid(const struct zygote *zygote);

/* What a sandbox was given last; zero at first. */
struct zygote_given {
    uint64_t by; /* the start of the zygote, and its state */
    uint64_t at_ms;
};

/*
 * A socket on which guestd can ask the zygote for interpreters, the caller's; the zygote has the other end, and is started
 * if it does not run. -1: there is none now, or this sandbox has had one lately. It gets a new one for each zygote that
 * starts, when a zygote that was starting is ready, and a minute after the last: the zygote closes a sandbox's socket when a
 * spawn takes too long. guestd closes one that it does not need.
 */
int zygote_connect(struct zygote *zygote, const char *sandbox_id, uint32_t slot, int sandbox_pidfd,
                   struct zygote_given *given) must_use;

/* Has it done its imports? It is started if it does not run. ERR_UNAVAILABLE: no, or not yet. */
bool zygote_is_warm(struct zygote *zygote, struct err *err) must_use;

/* It used its power against keeper or the machine: kills it, and gives its template none from now on. NULL is fine. */
void zygote_bar(struct zygote *zygote, const char *why);

/* It is frozen from outside, or no more: it cannot answer meanwhile. NULL is fine. */
void zygote_stand(struct zygote *zygote, bool still);

/* The cgroup of the nth that has a process, or NULL; and that process's zygote. */
const char *zygotes_nth(const struct zygotes *zygotes, size_t nth);
struct zygote *zygotes_find(const struct zygotes *zygotes, const char *cgroup);

/* The texts and the program that zygotes run, embedded at build time. */
extern const char zygotes_driver_py[], zygotes_charts_py[];
extern const unsigned char zygotes_enter_so[];
extern const unsigned long zygotes_enter_so_size;

#endif
