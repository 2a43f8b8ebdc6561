/*
 * inside.h - the manager and its sandboxes as their own files see them.
 *
 * One lock over the map and over every sandbox's state; it is held for memory only, never while the driver, the store
 * or guestd is waited for. Who waits for somebody else's change waits on `changed`.
 */
#ifndef SANDBOX_INSIDE_H
#define SANDBOX_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/secret.h"
#include "sandbox/logs.h"
#include "sandbox/metrics.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

enum sandbox_state {
    SANDBOX_STARTING, /* the row is written, the driver is at work; nobody else sees it */
    SANDBOX_RUNNING,  /* guestd answers; listed, routable, its deadline runs */
    SANDBOX_STOPPING, /* no longer listed or routable; being ended, waiting for another try, or killed and not gone */
    SANDBOX_GONE,     /* no row, no process */
    SANDBOX_STATE_COUNT,
};

struct sandbox {
    struct sandboxes *all;
    atomic_uint references; /* the map has one until it is gone */
    char id[LIMIT_ID_BYTES];
    char token[STORE_TOKEN_BYTES]; /* what opens guestd; the same text as store_access_token()'s */

    /* Written before anybody else can see the sandbox, then only read. */
    struct arena arena;
    struct str team_id, template_id, alias, guestd_version;
    uint32_t cpu_count, memory_mb, disk_mb;
    uint32_t metadata_count;
    struct pair *metadata;
    enum tristate internet;
    char key_id[STORE_UUID_BYTES]; /* empty: an administrator made it */
    struct str mask_host;
    bool open_code;              /* run_code needs no access token */
    struct secret traffic_token; /* empty: not private */
    int64_t started_us;

    /* Under the manager's lock. */
    enum sandbox_state state;
    int64_t deadline_us;  /* for people and for the store */
    uint64_t deadline_ms; /* the same moment on the clock that does not jump: this one counts */
    int64_t revision;     /* of the deadline */
    bool exited;          /* the driver says that nothing of it runs any more */
    enum exit_cause exit_cause;
    /* The deadline as far as the store has it. */
    int64_t kept_deadline_us, kept_revision;
    bool newest_failed; /* the newest revision could not be written: the store's deadline is the one that counts */
    bool being_ended;   /* while STOPPING: somebody is at it */
    bool killed;        /* while STOPPING: everything inside is dead, and the kernel is still at clearing it away */
    bool in_driver;     /* the driver may hold it */
    bool was_running;   /* its end is an event */
    bool cut;           /* its connections were cut, or it never had any */
    const char *reason; /* why it ends */
    uint64_t retry_ms;  /* while STOPPING and nobody is at it: when to try again, or to ask whether it is gone */

    struct job end_job;        /* holds a reference while it is queued */
    bool end_job_queued;       /* until its done(), so that no sweep uses it twice */
    struct loop_task cut_task; /* the same */
    bool cut_posted;
    struct sandbox *next_due; /* during a sweep */
    uint64_t sampled_ms;      /* when its use was last measured; 0: never */
};

struct sandboxes {
    struct sandboxes_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some sandbox's state, being_ended or cut */
    struct map by_id;       /* every one that is not gone */
    struct map by_token;    /* the same ones */
    struct timer timer;     /* the loop's: the next deadline or retry */
    struct loop_task sweep_task;
    bool sweep_posted;
    struct metrics *metrics; /* has a lock of its own */
    struct logs *logs;       /* the same */
    bool sampler_stopped;
    struct timer sampler; /* the loop's: the next look at what they use */
    struct round *round;  /* the loop's: the look that a worker is at */
};

/* ---- manager.c ---- */

/* With one reference, which is the map's once it is put there. */
struct sandbox *sandbox_new(struct sandboxes *all, struct str id) must_use;
struct sandbox *sandbox_ref(struct sandbox *sb);
/* With the lock held, both: into the maps, with the reference, and out of them. */
void sandbox_enlist(struct sandbox *sb);
void sandbox_strike_off(struct sandbox *sb);
/* The team's, not STARTING and not killed yet; with the lock held. ERR_NOT_FOUND. */
struct sandbox *sandbox_of_team(struct sandboxes *all, struct str team_id, struct str id, struct err *err) must_use;
/* With the lock held. */
void sandbox_enter(struct sandbox *sb, enum sandbox_state next);
/* All but the token, which takes longer than the lock should be held. */
void sandbox_describe(const struct sandbox *sb, struct arena *arena, struct sandbox_info *out);
void sandbox_describe_token(const struct sandboxes *all, struct arena *arena, struct sandbox_info *out);
/* A deadline changed, or somebody must be ended: look on the loop. Any thread. */
void sandboxes_look(struct sandboxes *all);

/* Before anybody else sees it, both. */
void sandbox_set_key(struct sandbox *sb, struct str key_id);
/* Its ports open to the traffic token only. */
void sandbox_make_private(struct sandbox *sb);

/* ---- sampler.c ---- */

/* There is something to measure. On the loop. */
void sampler_wake(struct sandboxes *all);
/* When the loop and the workers have ended. */
void sampler_done(struct sandboxes *all);

/* ---- lifecycle.c ---- */

/*
 * The second half of ending: cuts connections, has the driver end it, removes the row. The caller has moved it to
 * STOPPING, set being_ended, and holds a reference of its own. If the driver fails, it stays STOPPING and is tried again
 * later. If the driver has killed it and it is not gone by then, that is success too: it stays STOPPING with its row and
 * its place among sandboxes_max, and the rest follows when the driver says that it has exited.
 */
bool sandbox_end(struct sandbox *sb, struct err *err) must_use;
/* Sets the clock that counts from the one that is written down. With the lock held, or before anybody sees it. */
void sandbox_set_clock(struct sandbox *sb, int64_t deadline_us);

/* ---- record.c ---- */

/* As a row, in the arena. */
bool record_row(const struct sandbox *sb, struct arena *arena, struct sandbox_row *out, struct err *err) must_use;
/* The other way: fills in what was written down. */
bool record_adopt(struct sandbox *sb, const struct sandbox_row *row, struct err *err) must_use;

struct event_row record_created(const struct sandbox *sb, struct arena *arena);
struct event_row record_updated(const struct sandbox *sb, int64_t deadline_us, struct arena *arena);
struct event_row record_killed(const struct sandbox *sb, const char *reason, struct arena *arena);

#endif
