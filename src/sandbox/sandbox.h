/*
 * sandbox.h - the life of one sandbox, from create to gone.
 *
 * Owns the order of things: row, plan, start, guestd set up, routable; and back. Knows no HTTP, touches no namespace.
 *
 *   starting   the row is written, the driver is at work; no other call sees it
 *   running    guestd answers; listed, routable, its deadline runs
 *   paused     no process of it runs, no deadline counts; listed as paused, not routable. On the way there and back it
 *              is pausing or resuming; while the driver copies a running one, snapshotting
 *   stopping   no longer listed or routable; its row goes, and the call that kills it returns
 *   killed     no call finds it, but it counts: its connections are cut, then the driver ends it, which a guest can make last
 *   gone       no row, no process; only its events remain
 *
 * state.c has the full table.
 *
 * Ownership  The manager owns every sandbox. sandbox_find() lends a reference, sandbox_unref() returns it.
 * Threads    What stands under "for the proxy" from anywhere; the callback on_unroutable on the loop; everything else
 *            from a worker, never from a loop: it waits.
 * Failure    A create that fails leaves nothing behind: no row, no process. What was running when we were killed is
 *            found again by sandboxes_recover(); what was half-made is ended there.
 */
#ifndef SANDBOX_SANDBOX_H
#define SANDBOX_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "io/loop.h"
#include "io/worker.h"
#include "isolation/driver.h"
#include "policy/net_policy.h"
#include "wire/file_link.h"

struct store;
struct sandboxes;
struct sandbox;

struct sandboxes_config {
    struct loop *loop;
    struct workers *workers;
    struct driver *driver;
    struct store *store;
    /* No longer routable: reset its connections, so that no client takes half an answer for a whole one. On the loop. */
    void (*on_unroutable)(void *context, const char *id);
    /*
     * Sends a packed net_policy to egress and does not wait; no bytes: see egress_policy(). Any thread, with a lock held. NULL:
     * there is no egress.
     */
    void (*send_policy)(void *context, const char *id, struct str policy);
    /* The same from a worker, and waits until egress applies it. */
    bool (*apply_policy)(void *context, const char *id, struct str policy, struct err *err);
    void *context;
    unsigned sandboxes_max; /* 0: LIMIT_SANDBOXES */
    unsigned per_key_max;   /* sandboxes that one key may have; 0: no such limit */
    uint64_t timeout_max_s; /* longest life of one run; 0: LIMIT_TIMEOUT_S */
    uint32_t pids;          /* processes and threads of one sandbox; 0: 1024 */
    bool has_mail;          /* egress ends TLS for mail's names: every sandbox has an authority */
    unsigned pool_most;     /* sandboxes that are started before a create asks for them (pool.c); 0: none */
    bool pool_is_auto;      /* fewer on a machine with little memory */
    int meminfo_fd;         /* /proc/meminfo, borrowed, for the pool; -1: it does not look at the memory */
    const char *inside;     /* names that every sandbox reaches, whatever its policy, a line each; NULL or "": none */
};

/* Takes over the driver's `exited`. */
struct sandboxes *sandboxes_new(const struct sandboxes_config *config) must_use;
/* Sandboxes keep running. Call it after the loop has ended and the workers are freed. */
void sandboxes_free(struct sandboxes *all);
uint64_t sandboxes_timeout_max_s(const struct sandboxes *all);

/*
 * Once, before the first request: compares the rows in the store with what the driver holds (sandbox_state_found() has the
 * whole table).
 *   running, snapshotting, pausing   runs on, with its deadline; if it is frozen it is thawed. Parked: paused.
 *   paused, resuming                 paused, as it was left; if a resume had got as far as a start, it runs.
 *   starting                         ended and forgotten.
 * A running one that the driver does not hold is ended and forgotten; a paused one is kept, and a resume tells that it is
 * lost. What the driver holds and the store does not know is ended.
 */
bool sandboxes_recover(struct sandboxes *all, struct err *err) must_use;

/* The pool: what it has, and what it did since the start. */
struct pool_figures {
    unsigned most;                        /* 0: it is off */
    unsigned ready, wanted, kinds;        /* now; kinds: of template, CPUs and memory */
    unsigned warm;                        /* of those that are ready: with an interpreter */
    bool is_low;                          /* it is empty because the machine is short of memory */
    uint64_t made, failed, taken, missed; /* missed: creates that would have taken one */
};
struct sandbox_want;
struct pool_figures sandboxes_pool_figures(struct sandboxes *all);
/* Creates with these layers, CPUs and memory are likely: some are started for them; code: with an interpreter. Any thread. */
void sandboxes_expect(struct sandboxes *all, const struct sandbox_want *want, bool code);
/* Creates with these layers are not likely any more: none waits for them until there is another one. Any thread. */
void sandboxes_retire(struct sandboxes *all, const struct str *layers, uint32_t layer_count);
/* Ends all that wait, and starts no more. Any thread; it is empty a moment later. */
void sandboxes_close_pool(struct sandboxes *all);
bool sandboxes_pool_is_empty(struct sandboxes *all) must_use;

struct pair {
    struct str name, value;
};

/* What happens at the deadline, and by traffic to a paused one. */
struct sandbox_lifecycle {
    bool auto_pause;  /* at the deadline: pause instead of kill… */
    bool keep_memory; /* …with its processes; meaningful with auto_pause */
    bool auto_resume; /* traffic wakes it, if its memory was kept */
};

struct sandbox_want {
    struct str team_id;
    struct str paying_team_id; /* which team's limit its pages count to (left.c); empty: team_id */
    struct str template_id;    /* resolved: the raw id */
    struct str alias;          /* of the template, may be empty */
    struct str guestd_version;
    uint32_t layer_count;
    const struct str *layers; /* content ids, lowest first */
    uint32_t cpu_count;
    uint32_t memory_mb;
    uint32_t disk_mb;
    uint64_t timeout_s;
    uint32_t metadata_count;
    const struct pair *metadata;
    uint32_t env_count;
    const struct pair *envs;
    struct net_policy network; /* what it may reach; checked by net_policy_check() */
    struct str key_id;         /* which of the team's keys makes it; empty: an administrator */
    bool is_private;           /* its ports, except guestd's, need the traffic token */
    struct str mask_host; /* Host header that its services get, with ${PORT} replaced; empty: as the client sent it */
    uint32_t https_port_count;
    const uint16_t *https_ports; /* its ports that expect TLS; LIMIT_HTTPS_PORTS */
    bool open_code;              /* run_code needs no access token */
    struct sandbox_lifecycle lifecycle;
    struct str image; /* the snapshot whose processes it begins with, on the layers of it; empty: a fresh start */
    struct str default_user;    /* of commands and files that name none; empty: `user` */
    struct str default_workdir; /* the same; empty: the user's home */
    /*
     * For the builder: a team_id of its own keeps it out of lists and of every team's count. It has no events, and a front
     * that finds it after a crash ends it.
     */
    bool is_temporary;
};

/* The public data of a sandbox: a copy in the caller's arena. */
/* What a paused one takes on disk. All 0: it is not known yet, or its memory is not on disk. */
struct sandbox_sizes {
    uint64_t files_bytes, memory_bytes; /* memory_bytes as they are… */
    uint64_t raw_bytes;                 /* …and before they were compressed */
};

struct sandbox_info {
    struct str id, team_id, template_id, alias, guestd_version;
    struct str access_token; /* empty in lists */
    bool is_paused;          /* paused or on the way there */
    bool is_pausing;         /* on the way there: what it has kept is not known yet */
    bool has_memory;         /* of a paused one: its processes are kept */
    bool was_silent;    /* of a paused one: guestd did not answer when it was paused, so only a reboot brings it back */
    int64_t started_us; /* of this run; a resume begins a new one */
    int64_t deadline_us; /* of a paused one: when it was paused */
    struct sandbox_sizes sizes;
    struct sandbox_lifecycle lifecycle;
    uint32_t cpu_count, memory_mb, disk_mb;
    uint32_t metadata_count;
    const struct pair *metadata;
    struct net_policy network; /* empty in lists */
    bool is_private;
    struct str traffic_token; /* of a private one; empty in lists */
    struct str default_user, default_workdir;
    struct str mask_host;
    uint32_t https_port_count; /* 0 in lists */
    const uint16_t *https_ports;
};

/*
 * Returns when guestd has answered. The deadline counts from then. ERR_LIMIT when sandboxes_max or per_key_max is
 * reached or the request exceeds a limit, ERR_INVALID for a timeout out of range, ERR_TIMEOUT when it did not start in
 * time, ERR_UNAVAILABLE when the store, keeper or the new sandbox went away meanwhile, ERR_FULL when the disk is full.
 * Other failures below are ERR_INTERNAL.
 */
bool sandbox_create(struct sandboxes *all, const struct sandbox_want *want, struct arena *arena,
                    struct sandbox_info *out, struct err *err) must_use;
/* ERR_NOT_FOUND for another team's sandbox too: a caller must not learn that it exists. Never waits: also on the loop. */
bool sandbox_get(struct sandboxes *all, struct str team_id, struct str id, struct arena *arena,
                 struct sandbox_info *out, struct err *err) must_use;
/* Running and paused ones of a team, newest first (ties by id). */
bool sandbox_list(struct sandboxes *all, struct str team_id, struct arena *arena, struct sandbox_info **out,
                  size_t *out_count, struct err *err) must_use;

enum deadline_rule {
    DEADLINE_SET,    /* exactly now + timeout, earlier or later */
    DEADLINE_EXTEND, /* never earlier than it is */
};
/*
 * Clamped to timeout_max_s from its start. 0 with DEADLINE_SET ends it now. ERR_CONFLICT unless it runs. If the store
 * cannot write the deadline, the call fails and the deadline stays as it was.
 */
bool sandbox_set_deadline(struct sandboxes *all, struct str team_id, struct str id, uint64_t timeout_s,
                          enum deadline_rule rule, struct arena *arena, struct sandbox_info *out, struct err *err)
    must_use;

/*
 * Returns when it is no longer routable or listed, its row is removed, and no crash of a role can bring it back (end.c has the
 * exceptions: a power cut, a full disk). Behind that, in this order: connections cut; everything inside killed; its place free.
 * A call that answers through the loop answers after the cut. Two callers at the same time both succeed; a later one gets
 * ERR_NOT_FOUND. ERR_TIMEOUT when another worker takes too long to end it.
 */
bool sandbox_kill(struct sandboxes *all, struct str team_id, struct str id, const char *reason, struct err *err)
    must_use;
/* After a kill: returns when nothing of it runs, or a moment later. A guest can make the kernel take long to free it. */
void sandbox_await_gone(struct sandboxes *all, struct str id);
/* Is there one that keeper is still to kill, or has just been told to? On any thread. */
bool sandboxes_are_ending(struct sandboxes *all);
struct event_row;    /* store/store.h */
struct snapshot_row; /* the same */
/* The event of a snapshot that goes because nobody has used it for long. */
struct event_row sandbox_snapshot_deleted(const struct snapshot_row *row, int64_t now_us, struct arena *arena);
/* Measures what the paused ones take that were not measured yet, or may have changed. Now and then, on a worker. */
void sandboxes_measure_paused(struct sandboxes *all);
/* The same for snapshots; their rows say so afterwards. */
void sandboxes_measure_snapshots(struct sandboxes *all);
/* Ends all that have been paused since before then, with the reason "retention". */
void sandboxes_kill_paused(struct sandboxes *all, int64_t before_us);

/* ---- pause.c: paused and back ---- */

struct pause_want {
    bool memory;        /* keep its processes; false: files only */
    bool must_answer;   /* ERR_UNAVAILABLE if guestd is silent; always so for files only */
    const char *reason; /* "request", "timeout" */
};
/*
 * Returns when it is paused: no longer routable, connections cut, everything inside stands still (memory) or has ended
 * (files only). A pause that another caller has begun is joined. ERR_CONFLICT when it is paused already. On failure it
 * runs on. What is frozen is written to disk behind it, if this machine can.
 */
bool sandbox_pause(struct sandboxes *all, struct str team_id, struct str id, const struct pause_want *want,
                   struct err *err) must_use;

enum resume_how {
    RESUME_AS_KEPT, /* its processes go on if they were kept */
    RESUME_REBOOT,  /* start anew from its files */
};
struct resume_want {
    uint64_t timeout_s;
    enum resume_how how;
    bool only_paused; /* ERR_CONFLICT when it runs; else its deadline is extended as by DEADLINE_EXTEND */
};
/*
 * Returns when guestd answers. Concurrent calls join one start. Waits for a pause or snapshot that is under way, and if one
 * comes between the look at it and the new deadline, looks again.
 * *out_resumed: this call, or one that it joined, brought it back. ERR_CONFLICT when it is being killed, when a start is
 * under way and a reboot is wanted, or when was_silent and not a reboot (err->text says so; sandbox_info tells it).
 */
bool sandbox_resume(struct sandboxes *all, struct str team_id, struct str id, const struct resume_want *want,
                    struct arena *arena, struct sandbox_info *out, bool *out_resumed, struct err *err) must_use;

/* ---- snapshot.c ---- */

/* It stands still meanwhile, and then goes on with its processes, connections and deadline. ERR_CONFLICT unless it runs. */
bool sandbox_snapshot(struct sandboxes *all, struct str team_id, struct str id, bool memory, struct arena *arena,
                      struct kept *out, struct sandbox_info *out_info, uint32_t *out_layer_count,
                      const struct str **out_layers, struct err *err) must_use;

/* Removes what a snapshot has kept. Fine if there is none. On a worker. */
bool sandbox_drop_snapshot(struct sandboxes *all, struct str kept_id, struct err *err) must_use;

/*
 * Ends it, and what it has written becomes a layer on top of its own: nothing is copied. It is gone afterwards, also if this
 * fails; nothing is kept then. sandbox_drop_snapshot() removes what was kept. ERR_CONFLICT unless it runs.
 */
bool sandbox_seal(struct sandboxes *all, struct str team_id, struct str id, struct kept *out, struct err *err) must_use;

struct fork_result {
    bool ok;
    struct sandbox_info info; /* ok */
    struct err err;           /* not ok */
};
/*
 * `count` copies with new ids and tokens, made from one snapshot with memory, which goes when none of them needs it. Each
 * may fail by itself; false: nothing was attempted. out has room for `count`.
 */
bool sandbox_fork(struct sandboxes *all, struct str team_id, struct str id, uint32_t count, uint64_t timeout_s,
                  struct str key_id, struct arena *arena, struct fork_result *out, struct err *err) must_use;

/* ---- run.c: commands and archives, for the builder ---- */

/*
 * A command in a sandbox, through guestd's port as a client's would be: `SHELL -l -c COMMAND`. The functions are for one
 * thread at a time, which may have several commands; output() is called by runs_await().
 */
enum run_stream { RUN_STDOUT, RUN_STDERR };
struct run_want {
    struct str sandbox_id;
    struct str user;    /* empty: the sandbox's default */
    struct str workdir; /* empty: the sandbox's default, or the user's home */
    uint32_t env_count;
    const struct pair *envs;
    struct str shell; /* empty: /bin/bash */
    struct str command;
    void (*output)(void *context, enum run_stream stream, struct str bytes); /* may be NULL */
    void *context;
};
enum run_state {
    RUN_GOING,
    RUN_EXITED,  /* with an exit code or a signal; `text` is "exit status 1", "signal: killed" */
    RUN_REFUSED, /* guestd did not start it; `text` is its error: "unauthenticated: invalid username: 'x'" */
    RUN_LOST,    /* the connection broke: the sandbox has ended, perhaps by its deadline or for lack of memory */
};
struct run_result {
    enum run_state state;
    int exit_code; /* -1 for a signal */
    char text[256];
};
struct run;
/* Returns when guestd has the request. ERR_UNAVAILABLE: the sandbox is gone. */
struct run *run_begin(struct sandboxes *all, const struct run_want *want, struct err *err) must_use;
/* Reads what there is, and waits until until_ms (clock_mono_ms()) for the first of them to say something. */
void runs_await(struct run *const *runs, size_t count, uint64_t until_ms);
const struct run_result *run_result(const struct run *run);
/* Lets go: the command goes on if it has not ended. NULL is fine. */
void run_free(struct run *run);

struct archive_want {
    struct str sandbox_id;
    int fd; /* of a regular file, from its beginning */
    uint64_t size;
    struct str source, dest; /* as in the recipe; dest may be relative to workdir */
    struct str owner, mode;  /* empty: none */
    struct str user, workdir;
    uint64_t until_ms;
    bool (*cancelled)(void *context); /* asked a few times a second */
    void *context;
};
/* Has guestd unpack it, as root. ERR_INVALID with guestd's reason, ERR_TIMEOUT, ERR_UNAVAILABLE, ERR_CONFLICT: cancelled. */
bool sandbox_put_archive(struct sandboxes *all, const struct archive_want *want, struct err *err) must_use;

/*
 * Replaces what a running sandbox may reach; connections that are no longer allowed are cut. The store has the new policy
 * before egress. ERR_UNAVAILABLE when egress is away: no connection is possible then, and when it is back it gets the new
 * policy. ERR_CONFLICT unless the sandbox runs.
 */
bool sandbox_set_network(struct sandboxes *all, struct str team_id, struct str id, const struct net_policy *network,
                         struct arena *arena, struct err *err) must_use;
/* Egress is new: sends it the policies of all sandboxes. On the loop. */
void sandboxes_send_policies(struct sandboxes *all);

/* What egress reports of one sandbox since its last report. */
struct sandbox_traffic {
    uint64_t bytes_in, bytes_out;   /* in: towards the sandbox */
    uint32_t connections, refusals; /* made, refused; refused questions for a name count too */
    uint32_t open;                  /* connections now */
};
/* Any thread. */
void sandbox_add_traffic(struct sandboxes *all, struct str id, const struct sandbox_traffic *more);
/* One kind of refusal. The texts are the guest's to choose in part, and may be any bytes. */
struct sandbox_refusal {
    struct str rule;        /* its name, net_rules.h */
    struct str destination; /* "192.0.2.1:443", or a name */
    struct str text;        /* a sentence: what was refused, and why */
    uint32_t count;
};
/* Into its log, and now and then an event; a guest that is refused all the time gets a bounded part of both. On the loop. */
void sandbox_add_refusals(struct sandboxes *all, struct str id, const struct sandbox_refusal *list, uint32_t count);

/* The use of one sandbox at a moment; sampled every five seconds. */
struct sandbox_metric {
    int64_t at_us;
    double cpu_percent; /* of all its CPUs together: 0 to 100 */
    uint32_t cpu_count;
    uint64_t memory_used_bytes, memory_cache_bytes, memory_total_bytes;
    uint64_t disk_used_bytes, disk_total_bytes;
    struct sandbox_traffic traffic; /* since it started, or front did */
};
/*
 * Oldest first, from start_us (0: its beginning) to end_us (0: the last), in steps that widen with the span. Kept for an
 * hour after its end. None for an unknown sandbox or another team's.
 */
void sandbox_metrics(struct sandboxes *all, struct str team_id, struct str id, int64_t start_us, int64_t end_us,
                     struct arena *arena, struct sandbox_metric **out, size_t *out_count);
bool sandbox_metric_latest(struct sandboxes *all, struct str team_id, struct str id, struct sandbox_metric *out)
    must_use;

/* An event of one process in a sandbox, or what its network refused. */
struct sandbox_log {
    int64_t at_us;
    enum { SANDBOX_LOG_STARTED, SANDBOX_LOG_ENDED, SANDBOX_LOG_DROPPED, SANDBOX_LOG_REFUSED } kind;
    uint32_t pid;
    int32_t exit_code;            /* ended: -1 for a signal */
    uint64_t output_bytes;        /* ended */
    uint32_t count;               /* dropped: how many lines, because there were too many at once. refused: how often */
    struct str text;              /* started: the command; ended: how, in words; refused: what, and why */
    struct str rule, destination; /* refused; may be any bytes */
};
/*
 * Oldest first, from from_us to to_us (0: now). LIMIT_LOG_BYTES per sandbox are kept, until an hour after its end. None
 * for an unknown sandbox or another team's, and none from before front was started.
 */
void sandbox_logs(struct sandboxes *all, struct str team_id, struct str id, int64_t from_us, int64_t to_us,
                  struct arena *arena, struct sandbox_log **out, size_t *out_count);

/* The step between samples for a span of this length. */
int64_t sandbox_metric_step_us(int64_t span_us);
/* The number of a team's sandboxes that run. */
size_t sandboxes_count(struct sandboxes *all, struct str team_id);
/*
 * Begins no more background work: measurements, guestlinks, ends at deadlines. On the loop or after it, before the workers are
 * freed.
 */
void sandboxes_stop_work(struct sandboxes *all);
bool sandboxes_is_stopping(const struct sandboxes *all); /* from then on. On any thread */

/* ---- for the proxy ---- */

/* A running sandbox, or NULL. Any thread, never waits long. */
struct sandbox *sandbox_find(struct sandboxes *all, struct str id) must_use;
void sandbox_unref(struct sandbox *sandbox);
/*
 * A sandbox that traffic may wake: paused (or on the way there or back) with its memory, and auto_resume. NULL: there is
 * none. The caller checks the tokens first; then sandbox_wake(), on a worker, returns when it is routable. Concurrent
 * calls join one start. Any thread.
 */
struct sandbox *sandbox_find_sleeping(struct sandboxes *all, struct str id) must_use;
/* Its new deadline is as the spec of auto-resume says: its create's timeout, at least 300 s. ERR_TIMEOUT, ERR_LIMIT. */
bool sandbox_wake(struct sandbox *sandbox, struct err *err) must_use;

/*
 * The running sandbox whose access token has signed this link, or NULL. *out_tried: on how many sandboxes it was
 * tried, up to a microsecond each; 0 if it is not even a signature. guestd checks it again, and its time.
 */
struct sandbox *sandbox_find_by_link(struct sandboxes *all, const struct file_link *link, uint32_t *out_tried) must_use;
/* The running sandbox that has this access token, or NULL. Takes no longer the more of them there are. */
struct sandbox *sandbox_find_by_token(struct sandboxes *all, struct str token) must_use;
/* Is this its access token? Was this link signed with it? Both compare in constant time. */
bool sandbox_has_token(const struct sandbox *sandbox, struct str access_token) must_use;
bool sandbox_has_signed(const struct sandbox *sandbox, const struct file_link *link) must_use;
const char *sandbox_id(const struct sandbox *sandbox);
/* A client runs code in it: the pool prepares others of its kind for that. Any thread. */
void sandbox_note_code(struct sandbox *sandbox);
bool sandbox_is_routable(const struct sandbox *sandbox); /* it may have ended since it was found */
struct driver *sandbox_driver(const struct sandbox *sandbox);
/* May a client with this token (empty: none) reach its ports? Always true unless the sandbox is private. */
bool sandbox_admits(const struct sandbox *sandbox, struct str traffic_token) must_use;
bool sandbox_is_private(const struct sandbox *sandbox);
/* Does guestd want the access token on this port (49983 or 49999)? Only for guestd's own ports. */
bool sandbox_wants_token(const struct sandbox *sandbox, uint16_t port) must_use;
/* Does the service on this port expect TLS? */
bool sandbox_port_has_tls(const struct sandbox *sandbox, uint16_t port);
const char *sandbox_key_id(const struct sandbox *sandbox);   /* the key that made it; empty: an administrator */
struct str sandbox_mask_host(const struct sandbox *sandbox); /* empty: none; lives as long as the reference */
struct str sandbox_team_id(const struct sandbox *sandbox);   /* the same */
/* The value of its metadata with this name; empty: none. Lives as long as the reference. */
struct str sandbox_metadata(const struct sandbox *sandbox, struct str name);

#endif
