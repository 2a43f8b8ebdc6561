/*
 * guest.h - guestd: pid 1 of a sandbox, its process, terminal and file services, and its two doors.
 *
 *   public     HTTP on port 49983, which proxy/ forwards to: what E2B calls envd. Speaks Connect RPC (rpc.h) and a few
 *              plain routes (api.c).
 *   guestlink  a connection that only the host has the other end of (link.h): who this sandbox is, what token opens the
 *              public door. Until the host has said so, the public door answers 503.
 *
 * Threads    One loop does everything that is quick. Walking and removing trees happens on a worker, which is started
 *            when first needed.
 * Power      Root of the sandbox and nothing outside it. guestd stays outside the limits of the user's processes, so a
 *            sandbox that burns all it has still answers.
 */
#ifndef GUEST_GUEST_H
#define GUEST_GUEST_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/secret.h"
#include "base/str.h"
#include "guest/users.h"
#include "http/http.h"
#include "io/loop.h"
#include "io/worker.h"
#include "wire/guestlink.h"

struct interpreter;
struct journal;
struct link;
struct processes;
struct spawner;
struct watchers;

enum { GUEST_CGROUPS_MAX = 16 }; /* one on a v2 host, one a controller on v1 */

struct guest {
    struct loop *loop;
    struct workers *workers;
    struct http_server *server;
    struct users *users;
    struct processes *processes;
    struct spawner *spawner; /* NULL: guestd forks commands itself */
    struct watchers *watchers;
    struct journal *journal;         /* NULL: nothing is told */
    struct interpreter *interpreter; /* NULL where no code is run */
    size_t answer_bytes;             /* of calls, on their way to clients */
    size_t input_bytes;              /* of client streams, held until they can be taken */
    size_t event_bytes;              /* of watchers, not yet fetched */
    size_t watch_streams;            /* each has a connection to itself */

    int cgroup_fds[GUEST_CGROUPS_MAX];
    size_t cgroup_count;
    int handover_fd;      /* where keeper gives us descriptors (handover.h) */
    struct link *link;    /* guestlink as it is now, or NULL */
    const char *path_env; /* PATH of the processes */

    /* What the host has told us; replaced as a whole by each SETUP. */
    bool is_set_up;
    struct arena setup_arena; /* holds what follows */
    struct secret token;      /* empty: everything is open */
    bool open_code;           /* run_code needs no token */
    struct str default_user, default_workdir;
    struct guestlink_env *envs; /* global variables: the host's own, which cannot be overridden, then the caller's */
    size_t env_count;
};

/* Take over what a SETUP says. */
void guest_set_up(struct guest *guest, const struct guestlink_setup *setup);

/* Every request at the public door (an http_request_fn; the context is the guest). */
void guest_serve(struct http_exchange *ex, void *context);

#endif
