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
#include "base/quota.h"
#include "base/secret.h"
#include "policy/net_policy.h"
#include "sandbox/logs.h"
#include "sandbox/metrics.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

/* state.c has the table of what may follow what, and a picture of it. */
enum sandbox_state {
    SANDBOX_STARTING,     /* the row is written, the driver is at work; no other call sees it */
    SANDBOX_RUNNING,      /* guestd answers; listed, routable, its deadline runs */
    SANDBOX_PAUSING,      /* the driver freezes it or writes it to disk; not routable */
    SANDBOX_PAUSED,       /* no process of it runs and no deadline; the driver may hold it frozen, or not at all */
    SANDBOX_RESUMING,     /* the driver thaws it or reads it back from disk; not routable */
    SANDBOX_SNAPSHOTTING, /* stands still while the driver copies it, then runs on */
    SANDBOX_STOPPING,     /* no longer listed or routable; waits for a worker to end it, from retry_ms on */
    SANDBOX_ENDING,       /* a worker ends it */
    SANDBOX_KILLED,       /* everything inside is dead and the kernel still frees it; a worker asks again at retry_ms */
    SANDBOX_REAPING,      /* a worker asks the driver whether a killed one is gone */
    SANDBOX_GONE,         /* no row, no process */
    SANDBOX_STATE_COUNT,
};

/* The connections that the proxy has into a sandbox. */
enum sandbox_connections {
    CONNECTIONS_NONE, /* it has not run yet, or they were cut */
    CONNECTIONS_OPEN,
    CONNECTIONS_CUTTING, /* cut_task is on its way to the loop */
};

/* What was refused lately, and how much of it is told (network.c). */
struct refused {
    struct quota lines; /* of the log */
    uint32_t unwritten; /* refusals without a line */
    uint64_t event_ms;  /* the next event may be written from then on… */
    uint64_t pause_ms;  /* …this long after the last one */
    uint32_t uncounted; /* refusals that no event has */
};

struct sandbox {
    struct sandboxes *all;
    atomic_uint references; /* the map has one until it is gone */
    char id[LIMIT_ID_BYTES];
    char token[STORE_TOKEN_BYTES]; /* opens guestd; the same text as store_access_token() gives */

    /* Written before the sandbox is in the maps, then only read. */
    struct arena arena;
    struct str team_id, template_id, alias, guestd_version;
    uint32_t cpu_count, memory_mb, disk_mb;
    uint32_t metadata_count;
    struct pair *metadata;
    char key_id[STORE_UUID_BYTES]; /* empty: an administrator made it */
    struct str mask_host;
    uint32_t https_port_count;
    uint16_t *https_ports;
    bool open_code;              /* run_code needs no access token */
    struct secret traffic_token; /* empty: not private */
    int64_t started_us;

    /* Under the manager's lock. */
    enum sandbox_state state;
    enum sandbox_connections connections;
    int64_t deadline_us;     /* for people and for the store */
    uint64_t deadline_ms;    /* the same moment on the monotonic clock: this one counts */
    int64_t revision;        /* of the deadline: each change counts one up */
    int64_t kept_us;         /* the deadline in the store; 0: the store has it as starting, so its end is no event */
    int64_t kept_revision;   /* of kept_us */
    int64_t failed_revision; /* this change was not written. If it is the newest, the store's deadline counts. */
    const char *exited;      /* the driver reported that nothing of it runs any more: why. NULL: not reported. */
    const char *reason;      /* why it ends */
    uint64_t retry_ms;       /* STOPPING, KILLED: when a worker takes it up; UINT64_MAX: one is on its way */
    uint64_t sampled_ms;     /* when its use was last measured; 0: never */
    bool has_network;        /* the driver gave it one, so its policy counts; set before it runs */
    char *policy;            /* packed net_policy; NULL: it reaches nothing */
    size_t policy_len;
    uint64_t policy_revision; /* each change counts one up */
    bool network_changing;    /* a worker is at sandbox_set_network() */

    /* The loop's. */
    struct refused refused;

    /* Under the lock again. */
    struct loop_task cut_task; /* holds a reference while CONNECTIONS_CUTTING */
};

struct sandboxes {
    struct sandboxes_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some sandbox's state or connections */
    struct map by_id;       /* every sandbox that is not GONE */
    struct map by_token;    /* the same sandboxes */
    struct timer timer;     /* the loop's: the next deadline or retry */
    struct loop_task sweep_task;
    bool sweep_posted;
    struct metrics *metrics; /* has a lock of its own */
    struct logs *logs;       /* too */
    bool sampler_stopped;
    struct timer sampler;  /* the loop's: the next measurement */
    struct round *round;   /* the loop's: the measurement that a worker is doing */
    struct notes *notes;   /* the loop's: events about refusals that a worker writes (network.c); NULL: none */
    struct relink *relink; /* the job that opens guestlinks again after a start, until it is done */
    atomic_bool is_stopping;
    struct common_authority *common; /* of sandboxes that need one for mail only (network.c); NULL: mail is off */
};

/* ---- state.c ---- */

bool sandbox_may_enter(enum sandbox_state from, enum sandbox_state next);
/* With the lock held. The transition must be in the table. */
void sandbox_enter(struct sandbox *sb, enum sandbox_state next);
const char *sandbox_state_name(enum sandbox_state state);
/* The state that a row leads to when a new front finds it; ENDING: end it and forget it. */
enum sandbox_state sandbox_state_found(enum sandbox_row_state row, bool held);

/* ---- manager.c ---- */

/* With one reference, which belongs to the maps once it is in them. */
struct sandbox *sandbox_new(struct sandboxes *all, struct str id) must_use;
struct sandbox *sandbox_ref(struct sandbox *sb);
/* With the lock held: put it into the maps, with the reference, and take it out. */
void sandbox_enlist(struct sandbox *sb);
void sandbox_strike_off(struct sandbox *sb);
/* The team's, neither STARTING nor KILLED or later; with the lock held. ERR_NOT_FOUND. */
struct sandbox *sandbox_of_team(struct sandboxes *all, struct str team_id, struct str id, struct err *err) must_use;
/* All but the token, which takes longer than the lock should be held. */
void sandbox_describe(const struct sandbox *sb, struct arena *arena, struct sandbox_info *out);
void sandbox_describe_token(const struct sandboxes *all, struct arena *arena, struct sandbox_info *out);
/* A new guestlink to a sandbox that has none: its guestd is told what it should know, and its log goes on. On a worker. */
void sandbox_link_again(struct sandbox *sb);
/* A deadline changed, or a sandbox must be ended: have the loop sweep. Any thread. */
void sandboxes_look(struct sandboxes *all);

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

/* On the loop: has the proxy cut its connections, if there are any. */
void sandbox_cut(struct sandbox *sb);

/*
 * The second half of ending: cuts connections, has the driver end it, removes the row. The caller has moved it to ENDING
 * or REAPING and holds a reference of its own. If the driver fails, it goes back to STOPPING or KILLED and is tried again
 * later. If the driver has killed it and it is not gone by then, that is success too: it becomes KILLED, keeps its row
 * and its place among sandboxes_max, and the rest follows when the driver says that it has exited.
 */
bool sandbox_end(struct sandbox *sb, struct err *err) must_use;
/* Sets deadline_us, and deadline_ms from it. With the lock held, or before it is in the maps. */
void sandbox_set_clock(struct sandbox *sb, int64_t deadline_us);

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
/* Sends the policy to egress. Does not wait. */
void sandbox_send_policy(struct sandbox *sb);
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

#endif
