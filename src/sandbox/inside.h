/*
 * inside.h - the manager and its sandboxes as their own files see them.
 *
 * One lock covers the maps and the state of every sandbox. It is held for memory accesses only, never while waiting for
 * the driver, the store or guestd. A worker that waits for another worker's change waits on `changed`.
 */
#ifndef SANDBOX_INSIDE_H
#define SANDBOX_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/queue.h"
#include "base/quota.h"
#include "base/secret.h"
#include "policy/net_policy.h"
#include "sandbox/guest_client.h"
#include "sandbox/logs.h"
#include "sandbox/metrics.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

/* state.c has the table of what may follow what, and a picture of it. */
enum sandbox_state {
    SANDBOX_STARTING,     /* the row is written, the driver is at work; no other call sees it */
    SANDBOX_RUNNING,      /* guestd answers; listed, routable, its deadline runs */
    SANDBOX_PAUSING,      /* the driver freezes it or writes it to disk; not routable */
    SANDBOX_PAUSED,       /* no process of it runs and no deadline; the driver holds it frozen or parked */
    SANDBOX_RESUMING,     /* the driver thaws it or reads it back from disk; not routable */
    SANDBOX_SNAPSHOTTING, /* stands still while the driver copies it, then runs on; routable meanwhile */
    SANDBOX_STOPPING,     /* no longer listed or routable; waits for a worker to end it, from retry_ms on */
    SANDBOX_ENDING,       /* a worker removes its row */
    SANDBOX_KILLED, /* its row is gone and no call finds it; the loop has the driver stop it. It keeps its place */
    SANDBOX_GONE,   /* no row, no process */
    SANDBOX_STATE_COUNT,
};

/* The connections that the proxy has into a sandbox. */
enum sandbox_connections {
    CONNECTIONS_NONE, /* it has not run yet, or they were cut */
    CONNECTIONS_OPEN,
    CONNECTIONS_CUTTING, /* cut_task will cut them */
};

/* What was refused lately, and how much of it is told (network.c). */
struct refused {
    struct quota lines; /* of the log */
    uint32_t unwritten; /* refusals without a line */
    uint64_t event_ms;  /* the next event may be written from then on… */
    uint64_t pause_ms;  /* …this long after the last one */
    uint32_t uncounted; /* refusals that no event has */
};

/* A change of state that several callers can want at once: the first one makes it, the others join. */
struct turns {
    uint64_t begun, ended; /* how many */
    struct err err;        /* of the last one that ended; ERR_NONE: it went well */
};

struct sandbox {
    struct sandboxes *all;
    atomic_uint references; /* the map has one until it is gone */
    char id[LIMIT_ID_BYTES];
    char token[STORE_TOKEN_BYTES]; /* opens guestd; the same text as store_access_token() gives */

    /* Written before the sandbox is in the maps, then only read. */
    struct arena arena;
    struct str team_id, paying_team_id, template_id, alias, guestd_version;
    uint32_t cpu_count, memory_mb, disk_mb;
    uint32_t metadata_count;
    struct pair *metadata;
    char key_id[STORE_UUID_BYTES]; /* empty: an administrator made it */
    struct str mask_host;
    uint32_t https_port_count;
    uint16_t *https_ports;
    bool open_code;              /* run_code needs no access token */
    struct secret traffic_token; /* empty: not private */
    uint64_t timeout_s;          /* of the create */
    struct sandbox_lifecycle lifecycle;
    uint32_t layer_count; /* 0: one from before layers were kept; it cannot start again */
    struct str *layers;
    struct str default_user, default_workdir;
    atomic_bool noted_code; /* sandbox_note_code() was called */
    bool is_temporary;      /* its row stays in state STARTING, so that the next front ends it */

    /* Under the manager's lock. */
    enum sandbox_state state;
    int64_t started_us; /* of this run */
    enum sandbox_connections connections;
    bool cut_posted;      /* cut_task is on its way: it must not be posted twice */
    int64_t deadline_us;  /* for people and for the store */
    uint64_t deadline_ms; /* the same moment on the monotonic clock: this one counts */
    int64_t revision;     /* of the deadline: each change counts one up */
    int64_t
        kept_us; /* the deadline in the store; 0: the store has it as starting or not at all, so its end is no event */
    int64_t kept_revision;   /* of kept_us */
    int64_t failed_revision; /* this change was not written. If it is the newest, the store's deadline counts. */
    const char *exited;      /* the driver reported that nothing of it runs any more: why. NULL: not reported. */
    const char *reason;      /* why it ends */
    uint64_t retry_ms;   /* STOPPING, KILLED: when the sweep takes it up; UINT64_MAX: the loop or the driver has it */
    bool is_slow;        /* KILLED: the driver kills everything inside, and it takes long to be gone */
    bool stop_failed;    /* the driver could not stop it: its place may take long to be free */
    bool ends_on_disk;   /* it was paused on disk when its end began, so it takes no place */
    uint64_t sampled_ms; /* when its use was last measured; 0: never */
    bool has_network;    /* the driver gave it one, so its policy counts; set before it runs */
    char *policy;        /* packed net_policy; NULL: it reaches nothing */
    size_t policy_len;
    uint64_t policy_revision; /* each change counts one up */
    bool network_changing;    /* a worker is at sandbox_set_network() */
    unsigned linking;         /* workers that open a guestlink beside a pause */

    /* Of a pause; under the lock too. */
    struct turns pauses, resumes;
    unsigned at_work;           /* workers that have the driver change it: a kill lets them finish, if they are quick */
    enum held_state held;       /* how the driver holds it, as far as we know */
    bool has_memory;            /* from PAUSING to RESUMING: its processes are kept, or will be */
    bool was_silent;            /* guestd did not answer */
    bool is_writing;            /* a worker has the driver write the frozen one to disk */
    bool stays_frozen;          /* it is not written to disk: that failed, or guestd could not prepare for it */
    uint64_t write_ms;          /* it is written from then on */
    struct sandbox_sizes sizes; /* of a paused one, as far as it was measured */
    uint64_t measure_ms;        /* it is measured from then on; UINT64_MAX: it need not be */
    char *envs; /* its environment as a JSON object, from PAUSING until it runs; NULL: not known. Wiped. */

    /* The loop's. */
    struct refused refused;
    struct queue_link stop_place; /* in the manager's to_stop */

    /* Under the lock again. */
    struct loop_task cut_task; /* holds a reference while cut_posted */
    struct loop_task end_task; /* KILLED: on its way to the loop, once */
};

/* A team whose sandboxes were written to disk lately (pause.c). */
struct writer {
    char team_id[STORE_UUID_BYTES];
    uint64_t after_ms; /* its next one comes after those of others that were due by then */
};
enum { WRITERS = 64 }; /* teams that write in turns; of more, the one that wrote longest ago is taken for new */

struct sandboxes {
    struct sandboxes_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* some sandbox's state or connections */
    pthread_cond_t place_freed; /* one is gone, or its end takes long: creates that wait for a place look again */
    struct map by_id;           /* every sandbox that is not GONE */
    struct map by_token;        /* the same sandboxes */
    struct timer timer;         /* the loop's: the next deadline or retry */
    struct loop_task sweep_task;
    bool sweep_posted;
    struct metrics *metrics; /* has a lock of its own */
    struct logs *logs;       /* too */
    struct pool *pool;       /* under the lock */
    struct left *left;       /* the same */
    bool sampler_stopped;
    struct timer sampler; /* the loop's: the next measurement */
    struct round *round;  /* the loop's: the measurement that a worker is doing */
    struct queue to_stop; /* the loop's: KILLED ones that the driver is to be told to stop (end.c)… */
    struct queue stops;   /* …its requests to the driver that are not answered yet… */
    unsigned stop_count;  /* …how many… */
    bool is_in_stops;     /* …and stops_step() is under way */
    struct notes *notes;  /* the loop's: events about refusals that a worker writes (network.c); NULL: none */
    struct sandbox *due[LIMIT_DUE_PAUSES]; /* those that workers pause at their deadlines; under the lock */
    struct lane *forking;                  /* has the jobs of helpers */
    struct helper *helpers;                /* workers that were asked to help with forks (snapshot.c); under the lock */
    struct writing *writing; /* the frozen sandbox that a worker has written to disk (pause.c); under the lock */
    struct relink *relink;   /* the job that opens guestlinks again after a start, until it is done */
    atomic_bool is_stopping;
    struct common_authority *common; /* of sandboxes that need one for mail only (network.c); NULL: mail is off */
    /* Under the lock. */
    struct writer writers[WRITERS];
};

/* ---- pool.c ---- */

/* Is there so little left that no sandbox should wait for a create? */
bool sandboxes_memory_is_low(const struct sandboxes *all) must_use;

/* ---- left.c: with the lock held ---- */

struct left *left_new(void) must_use;
void left_free(struct left *left);
/* It is gone: whose it was. */
void left_ended(struct left *left, const char *id, struct str team_id);
/* The driver says that the kernel keeps pages of it. team_id: "" if it is gone. */
void left_note(struct left *left, const char *id, struct str team_id, uint64_t now_ms);
unsigned left_count(struct left *left, struct str team_id, uint64_t now_ms) must_use;
void left_forget(struct left *left, struct str team_id);

/* ---- state.c ---- */

bool sandbox_may_enter(enum sandbox_state from, enum sandbox_state next);
/* With the lock held. The transition must be in the table. */
void sandbox_enter(struct sandbox *sb, enum sandbox_state next);
const char *sandbox_state_name(enum sandbox_state state);
/* Is it listed, get and killed by its id? Then is it listed as running or as paused? */
bool sandbox_state_is_seen(enum sandbox_state state);
bool sandbox_state_is_running(enum sandbox_state state);
/*
 * The state that a row leads to when a new front finds it; ENDING: end it and forget it. held: how the driver has it, or
 * HELD_NOT. One that is found RUNNING and is held frozen is to be thawed.
 */
enum { HELD_NOT = HELD_STATE_COUNT };
enum sandbox_state sandbox_state_found(enum sandbox_row_state row, unsigned held);

/* ---- manager.c ---- */

/* With one reference, which belongs to the maps once it is in them. */
struct sandbox *sandbox_new(struct sandboxes *all, struct str id) must_use;
struct sandbox *sandbox_new_named(struct sandboxes *all) must_use; /* with a new id */
struct str *sandbox_copy_layers(struct arena *arena, const struct str *layers, uint32_t count);
struct sandbox *sandbox_ref(struct sandbox *sb);
/* With the lock held: put it into the maps, with the reference, and take it out. */
void sandbox_enlist(struct sandbox *sb);
void sandbox_strike_off(struct sandbox *sb);
/* The team's, neither STARTING nor KILLED; with the lock held. ERR_NOT_FOUND. */
struct sandbox *sandbox_of_team(struct sandboxes *all, struct str team_id, struct str id, struct err *err) must_use;
/* "is pausing": ERR_CONFLICT, or ERR_NOT_FOUND for a paused one. Always false. */
bool sandbox_not_running(const struct sandbox *sb, struct err *err);
/* All but the token, which takes longer than the lock should be held. */
void sandbox_describe(const struct sandbox *sb, struct arena *arena, struct sandbox_info *out);
void sandbox_describe_token(const struct sandboxes *all, struct arena *arena, struct sandbox_info *out);
/* A pause makes a guestlink of its own, and waits until nobody else does. False: it does not run. */
bool sandbox_begin_link(struct sandbox *sb) must_use;
void sandbox_end_link(struct sandbox *sb);
/* A new guestlink to a sandbox that has none: its guestd is told what it should know, and its log goes on. On a worker. */
void sandbox_link_again(struct sandbox *sb);
/* A deadline changed, or a sandbox must be ended: have the loop sweep. Any thread. */
void sandboxes_look(struct sandboxes *all);
void sandboxes_look_locked(struct sandboxes *all); /* with the lock held */

/* Both before it is in the maps. */
void sandbox_set_key(struct sandbox *sb, struct str key_id);
/* Its ports then need the traffic token. */
void sandbox_make_private(struct sandbox *sb);

/* ---- sampler.c ---- */

/* There may be something to measure. On the loop. */
void sampler_wake(struct sandboxes *all);
/* After the loop and the workers have ended. */
void sampler_done(struct sandboxes *all);

/* ---- lifecycle.c ---- */

/* Is there a place among the running ones for this one, which takes none yet? With the lock held. ERR_LIMIT. */
bool sandbox_has_place(const struct sandbox *sb, struct err *err) must_use;
/* May this team start another one, for all that its ended ones have left in the kernel (left.c)? With the lock held. */
bool sandboxes_have_left_little(struct sandboxes *all, struct str team_id, struct err *err) must_use;
/* Is there none, but there will be one in a moment, because others are ending? With the lock held. */
bool sandbox_place_is_coming(const struct sandbox *sb);
/* image: the snapshot's id, with PLAN_IMAGE. */
bool sandbox_plan(const struct sandbox *sb, enum plan_from from, struct str image, struct plan *out, struct err *err)
    must_use;
/* SETUP to its guestd, and with `resumed` RESUMED behind it. */
bool sandbox_set_guest_up(const struct sandbox *sb, struct guestlink_env *envs, uint32_t env_count, bool resumed,
                          int guestlink_fd, struct arena *arena, struct err *err) must_use;
/* Its log has a line about this, if its policy lets it reach something that the machine cannot give it. */
void sandbox_note_no_network(struct sandbox *sb);

/* Sets deadline_us, and deadline_ms from it. With the lock held, or before it is in the maps. */
void sandbox_set_clock(struct sandbox *sb, int64_t deadline_us);

/* ---- end.c ---- */

/* On the loop: has the proxy cut its connections, if there are any. */
void sandbox_cut(struct sandbox *sb);
/* From a worker; returns when the loop has cut them: if processes died first, clients would see an orderly close. */
void sandbox_cut_and_wait(struct sandbox *sb);
/*
 * Removes the row. The caller has moved it to ENDING and holds a reference of its own. It is KILLED afterwards: it keeps its
 * place among sandboxes_max until the loop has cut its connections and the driver says that it is gone. False if neither the
 * store nor the driver does its part: it goes back to STOPPING, and is tried again later.
 */
bool sandbox_end(struct sandbox *sb, struct err *err) must_use;
/* A worker that at_work counts is done. With the lock held. */
void sandbox_work_done(struct sandbox *sb);
/* On the loop: has the driver stop a KILLED one in its turn; stops_step() begins as many as may be under way. */
void stops_add(struct sandbox *sb);
void stops_step(struct sandboxes *all);
void stops_done(struct sandboxes *all); /* after the loop has ended */

/* ---- pool.c ---- */

struct pool *pool_new(struct sandboxes *all) must_use;
void pool_free(struct pool *pool); /* after the workers have ended; sandboxes keep running */
/*
 * One that was started for such a create, with its guestlink; the caller's, in no map. NULL: none is ready. Either way the
 * demand is noted. With the lock held.
 */
struct sandbox *pool_take(struct pool *pool, const struct sandbox_want *want, int *out_guestlink_fd) must_use;
/* The create that has taken one is over: another one may be started. With the lock held. */
void pool_taken(struct pool *pool);
/* This layer is about to be removed: what is made of it is ended, and no more is given out. With the lock held. */
void pool_drop_layer(struct pool *pool, struct str layer);
/* The driver says that it has ended. False: it does not wait in the pool. With the lock held. */
bool pool_exited(struct pool *pool, struct str id);

/* ---- pause.c ---- */

/* At its deadline, in PAUSING since the sweep, at_work counted: pauses it as its lifecycle says, or ends it. On a worker. */
void sandbox_pause_due(struct sandbox *sb);
/* With the lock held: enters PAUSING, with this kind of pause. */
void sandbox_pause_enter(struct sandbox *sb, bool memory);
/* Is there room for one more paused one? With the lock held. ERR_LIMIT. */
bool sandbox_may_pause(const struct sandbox *sb, struct err *err) must_use;
/* With the lock held: the next frozen one that is to be written to disk now, with a reference. *next_ms: when to look again. */
struct writing *writing_take(struct sandboxes *all, uint64_t now_ms, uint64_t *next_ms) must_use;
void writing_begin(struct writing *writing); /* without the lock */
void writing_done(struct sandboxes *all);    /* after the workers have ended */
/* It has left PAUSED behind: forgets its environment. With the lock held. */
void sandbox_forget_pause(struct sandbox *sb);
/* How the driver holds it now: an enum held_state, or HELD_NOT. False: the driver does not say. */
bool sandbox_ask_held(struct sandbox *sb, unsigned *out) must_use;
/*
 * After a restart: one in PAUSING that the driver is still at work on for the front before us. It runs or is paused
 * afterwards. On a worker: that may take minutes.
 */
void sandbox_pause_again(struct sandbox *sb);
/* How long it lives when traffic wakes it. */
uint64_t sandbox_woken_s(const struct sandbox *sb);
/* After a restart: SETUP to one whose resume had begun. On a worker. */
void sandbox_resume_again(struct sandbox *sb);
enum {
    SANDBOX_TURN_MS = 60000, /* how long a caller waits for what another has begun */
    SANDBOX_PLACE_MS = 2000, /* how long a create or a resume waits, with its worker, for the place of one that ends */
    SANDBOX_WRITE_AFTER_MS = 2000, /* a frozen one is written to disk after this: who pauses for a moment gets a thaw */
};
/* Waits for any change. With the lock held; ERR_TIMEOUT when `until` has passed. */
bool sandbox_await_change(struct sandbox *sb, const struct timespec *until, struct err *err) must_use;
/* Is it in the state that we have put it in? ERR_NOT_FOUND: somebody has ended it meanwhile. */
bool sandbox_is_still(struct sandbox *sb, enum sandbox_state state, struct err *err) must_use;

/* PREPARE over a new guestlink, which is the caller's (-1: none). With GUEST_YES the environment is in the arena. */
enum guest_answer sandbox_prepare(struct sandbox *sb, struct arena *arena, int *out_fd, struct guestlink_ready *out,
                                  struct err *err) must_use;
/* Tells guestd over the same link (-1: there is none) that it goes on; the link is its log's then. Does not wait. */
void sandbox_take_back(struct sandbox *sb, int guestlink_fd);
/* With the lock held: a worker begins and ends what others may join. `err` NULL: it went well. */
void turn_begin(struct sandbox *sb, struct turns *turns);
void turn_end(struct sandbox *sb, struct turns *turns, const struct err *err);

/* ---- kept.c ---- */

/*
 * Before the first request: removes snapshots that no row names. A front before us has died before it could write the row, or
 * while it made copies; nobody else would ever find them.
 */
void snapshots_drop_unknown(struct sandboxes *all);

/* ---- snapshot.c ---- */

struct lane *forking_lane(struct workers *workers) must_use; /* for workers that help with forks */
void forks_done(struct sandboxes *all);                      /* after the workers have ended */

/* ---- network.c ---- */

/* The authority for mail, made once: making one takes longer than anything else in a create. */
struct common_authority *common_authority_new(void) must_use;
void common_authority_free(struct common_authority *common); /* NULL is fine */
/* A seed for its authority, if it needs one (header rules, mail) and has none yet, or the common one and header rules. */
void sandbox_make_seed(const struct sandboxes *all, struct net_policy *network);
/* Packs the policy. Before it is in the maps. */
void sandbox_keep_policy(struct sandbox *sb, const struct net_policy *network);
/* The policy as it was packed. With the lock held, or before it is in the maps; false: it reaches nothing. */
bool sandbox_read_policy(const struct sandbox *sb, struct arena *arena, struct net_policy *out);
/*
 * Sends the policy to egress. For one that ends and may still run, from STOPPING on: has egress cut its connections and allow no
 * others. Does not wait.
 */
void sandbox_send_policy(const struct sandbox *sb);
/* Is there anything outside that it may reach? */
bool sandbox_reaches_out(const struct net_policy *network);
/* What guestd tells its programs. Text is in the arena, or the manager's. */
void sandbox_describe_network(const struct sandbox *sb, const struct net_policy *network, struct arena *arena,
                              struct guestlink_network *out);
/* After the workers have ended. */
void network_done(struct sandboxes *all);

/* ---- record.c ---- */

/* As a row, in the arena. */
bool record_row(const struct sandbox *sb, struct arena *arena, struct sandbox_row *out, struct err *err) must_use;
/* Fills in a sandbox from its row. */
bool record_adopt(struct sandbox *sb, const struct sandbox_row *row, struct err *err) must_use;

struct event_row record_created(const struct sandbox *sb, struct arena *arena);
struct event_row record_updated(const struct sandbox *sb, int64_t deadline_us, struct arena *arena);
struct event_row record_network(const struct sandbox *sb, const struct net_policy *network, struct arena *arena);
struct event_row record_refused(const struct sandbox *sb, const struct sandbox_refusal *list, uint32_t count,
                                uint32_t total, struct arena *arena);
/* Text for the column `network`. */
struct str record_policy(struct arena *arena, struct str packed);
struct event_row record_killed(const struct sandbox *sb, const char *reason, struct arena *arena);
struct event_row record_paused(const struct sandbox *sb, const char *reason, bool memory, struct arena *arena);
struct event_row record_resumed(const struct sandbox *sb, bool memory, struct arena *arena);
struct event_row record_checkpointed(const struct sandbox *sb, const struct kept *kept, struct arena *arena);
/* An environment as text for the column `envs`, and back. */
struct str record_envs(const struct guestlink_env *envs, uint32_t count, struct arena *arena);
bool record_read_envs(struct str text, struct arena *arena, struct guestlink_env **out, uint32_t *out_count,
                      struct err *err) must_use;

#endif
