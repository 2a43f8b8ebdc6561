/*
 * guest.h - guestd: pid 1 of a sandbox, with its process, terminal and file services. It is reached in three ways:
 *
 *   public     HTTP on port 49983, which proxy/ forwards to: what E2B calls envd. Connect RPC (rpc.h) and a few plain
 *              routes (api.c). Port 49999 serves run_code (interpreter/interpreter.h).
 *   guestlink  a connection to front (link.h), which sets the sandbox up: its id, its access token. Until then the public
 *              ports answer 503.
 *   handover   a socket on which keeper gives us descriptors (handover.h), guestlink among them. guestd needs no
 *              connection from its start: each can be lost and given again.
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

struct handing;
struct interpreter;
struct journal;
struct link;
struct pause;
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
    struct journal *journal;         /* NULL: nothing is logged */
    struct interpreter *interpreter; /* NULL where no code is run */
    size_t answer_bytes;             /* of calls, on their way to clients */
    size_t input_bytes;              /* of client streams, held until they can be taken */
    size_t event_bytes;              /* of watchers, not yet fetched */
    size_t watch_streams;            /* each has a connection to itself */

    int cgroup_fds[GUEST_CGROUPS_MAX];
    size_t cgroup_count;
    int handover_fd; /* where keeper gives us descriptors (handover.h) */
    struct watch *handover_watch;
    struct handing *handings; /* from keeper, not complete yet */
    struct timer handover_pause;
    struct link *link;    /* guestlink as it is now, or NULL */
    struct pause *pause;  /* on the way to a pause, or in one; NULL: neither */
    const char *path_env; /* PATH of the processes */

    /* From the last SETUP, replaced as a whole by the next. */
    bool is_set_up;
    struct str sandbox_id;    /* of the last SETUP */
    struct arena setup_arena; /* holds what follows */
    struct secret token;      /* empty: everything is open */
    bool open_code;           /* run_code needs no token */
    struct str default_user, default_workdir;
    struct guestlink_env *envs; /* global variables: the host's own, which cannot be overridden, then the caller's */
    size_t env_count;
    struct guestlink_env *caller_envs; /* those of them that SETUP had */
    size_t caller_env_count;
    struct guestlink_network network; /* what link_tell_network() writes to /etc… */
    bool owes_network;                /* …and has not yet */
};

/* Take over what a SETUP says. interpreter_set_up() follows. */
void guest_set_up(struct guest *guest, const struct guestlink_setup *setup);

/* Every request to the public port (an http_request_fn; the context is the guest). */
void guest_serve(struct http_exchange *ex, void *context);

#endif
