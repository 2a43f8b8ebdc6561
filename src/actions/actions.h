/*
 * actions.h - everything a caller can ask for: check the permission, then do it.
 *
 * One file per noun, one function per verb. Every API (REST now, MCP later) calls these functions, so that permissions
 * are checked in one place. Knows no HTTP and no names of a foreign API.
 *
 * Ownership  Results live in the arena that is passed in.
 * Threads    Call from a worker: actions block. The exceptions say so.
 * Failure    ERR_NOT_FOUND for anything of another team: it must look exactly like something that does not exist.
 */
#ifndef ACTIONS_ACTIONS_H
#define ACTIONS_ACTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/quota.h"
#include "base/secret.h"
#include "base/str.h"
#include "policy/net_rules.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

/*
 * The version of the guest API that our guestd implements. SDKs compare it to decide which calls they may use.
 * Templates and sandboxes record the version they were made with.
 */
#define GUESTD_API_VERSION "0.6.13"

struct builder;
struct build_want;
struct download_total;
struct pruned;
struct puller;
struct uploads;
/* What actions work with. daemon/ fills it in at start; read-only afterwards. */
struct actions {
    struct store *store;
    struct sandboxes *sandboxes;
    const struct secret *admin_hash; /* store_secret_hash() of the admin token; NULL: there are no administrators */
    /* Called when the store does not know a template: puts newly built ones there. May be NULL. */
    bool (*refresh_templates)(void *context, struct err *err);
    void *context;
    struct meters *meters;          /* request rates of the keys; NULL: no limit */
    bool code_always_has_token;     /* the operator forbids open_code */
    bool internet;                  /* the operator's default for sandboxes */
    struct net_operator ranges;     /* addresses that the operator allows and denies to all sandboxes */
    const struct mail_setup *mail;  /* NULL: mail is off */
    struct snapshot_caps snapshots; /* what is 0 is as in base/limits.h */
    struct retention {
        uint32_t snapshot_days, paused_days; /* what nobody has used for so long goes; 0: it stays */
    } retention;
    uint32_t cpus_most, memory_mb_most; /* of a sandbox; 0: the operator sets no limit */
    struct uploads *uploads;            /* NULL: no archives can be uploaded */
    struct builder *builder;            /* NULL: templates cannot be built */
    struct puller *puller;              /* NULL: no images from registries */
    /* builder_start(), builder_cancel(), builder_prune() and puller_stock(). */
    bool (*build_start)(struct builder *builder, const struct build_want *want, struct err *err);
    void (*build_cancel)(struct builder *builder, struct str build_id, const char *why);
    bool (*build_prune)(struct builder *builder, struct str team_id, bool dry_run, struct pruned *out, struct err *err);
    bool (*pull_stock)(struct puller *puller, bool removes, struct download_total *out, struct err *err);
};

struct mail;
struct mail_busy;
struct mail_event;
/* What mail works with; see mail.h. */
struct mail_setup {
    struct mail *mail;
    struct mail_busy *busy; /* mail_busy_new() */
    const char *domain;     /* of addresses: "mail.cloister.localhost" */
    bool strict_inbox_keys;
    bool webhooks_http;                       /* webhooks may have http:// URLs too */
    uint32_t sends_per_minute, sends_per_day; /* of an inbox */
    uint32_t inboxes_most, signups_per_hour;  /* of a principal */
    uint64_t disk_bytes;                      /* of all inboxes' files, half of it for one tenant; 0: no limit */
    unsigned char operator_public[32];        /* the approvers' keys of all tenants are sealed to it; see mail.h */
    unsigned char server_secret[32];          /* as in struct mail_config: encrypts and hashes what is in mail's rows */
    /* Tells long polls, WebSockets and webhooks. From any thread; never blocks. */
    void (*heard)(void *context, const struct mail_event *event);
    void *context;
};

/* ---- caller.c: authentication ---- */

struct caller {
    char team_id[STORE_UUID_BYTES];
    char key_id[STORE_UUID_BYTES]; /* empty for an administrator */
    bool is_admin;
};

/* True if the key is in the cache. False proves nothing: call action_caller_by_key(). Never blocks; for the loop. */
bool action_caller_known(const struct actions *actions, struct str key, struct caller *out) must_use;
/* ERR_DENIED. */
bool action_caller_by_key(const struct actions *actions, struct str key, struct caller *out, struct err *err) must_use;
/* An administrator who acts in a team; empty team_id: the default team. ERR_DENIED (token), ERR_NOT_FOUND (team). */
bool action_caller_by_admin_token(const struct actions *actions, struct str token, struct str team_id,
                                  struct caller *out, struct err *err) must_use;
/* Records that the key was used. A failure is only logged. */
void action_caller_seen(const struct actions *actions, const struct caller *caller);
/* ERR_DENIED unless the caller is an administrator. For the other files of actions/. */
bool caller_need_admin(const struct caller *caller, struct err *err) must_use;

/* ---- meter.c: request rate of a key ---- */

/* On the loop, like action_caller_in_rate(). 0: no limit. */
struct meters *meters_new(uint32_t requests_per_s) must_use;
void meters_free(struct meters *meters);
/* Counts this request. False: over the limit; *out_left says when to try again. Administrators are not counted. */
bool action_caller_in_rate(const struct actions *actions, const struct caller *caller, uint64_t now_ms,
                           struct quota_left *out_left) must_use;

/* ---- sandbox.c ---- */

struct sandbox_request {
    struct str template_ref; /* as in the request */
    uint64_t timeout_s;
    uint32_t metadata_count;
    const struct pair *metadata;
    uint32_t env_count;
    const struct pair *envs;
    struct net_policy network;
    bool is_private;
    struct str mask_host;
    uint32_t https_port_count;
    const uint16_t *https_ports;
    bool open_code; /* run_code without the access token, if the operator allows that */
    struct sandbox_lifecycle lifecycle;
    /*
     * NULL: the create may wait for the template's start command, which can take minutes. Else it does not: where it would have
     * to, nothing is made, this is set, and it fails.
     */
    bool *out_must_wait;
};

bool action_sandbox_create(const struct actions *actions, const struct caller *caller,
                           const struct sandbox_request *request, struct arena *arena, struct sandbox_info *out,
                           struct err *err) must_use;
bool action_sandbox_get(const struct actions *actions, const struct caller *caller, struct str id, struct arena *arena,
                        struct sandbox_info *out, struct err *err) must_use;
bool action_sandbox_kill(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
    must_use;
/* Sets the deadline to now + timeout, which may be earlier than before; clamped. */
bool action_sandbox_set_timeout(const struct actions *actions, const struct caller *caller, struct str id,
                                uint64_t timeout_s, struct arena *arena, struct err *err) must_use;
/* Extends the deadline to at least now + timeout; clamped. */
bool action_sandbox_refresh(const struct actions *actions, const struct caller *caller, struct str id,
                            uint64_t timeout_s, struct arena *arena, struct err *err) must_use;

/* ---- pause.c ---- */

/* As sandbox_pause(). */
bool action_sandbox_pause(const struct actions *actions, const struct caller *caller, struct str id,
                          const struct pause_want *want, struct err *err) must_use;
/* As sandbox_resume(); a timeout beyond the maximum is ERR_INVALID. */
bool action_sandbox_resume(const struct actions *actions, const struct caller *caller, struct str id,
                           const struct resume_want *want, struct arena *arena, struct sandbox_info *out,
                           bool *out_resumed, struct err *err) must_use;
/* As sandbox_fork(), of 1 to LIMIT_FORKS. */
bool action_sandbox_fork(const struct actions *actions, const struct caller *caller, struct str id, uint32_t count,
                         uint64_t timeout_s, struct arena *arena, struct fork_result *out, struct err *err) must_use;

/* ---- snapshot.c ---- */

struct snapshot_info {
    struct str id;   /* "<template id>:default", or "<slug>/<name>:<tag>": a template reference */
    struct str name; /* "<slug>/<name>"; empty: none */
    struct snapshot_row row;
};
/* name: empty, or [slug/]name[:tag]. ERR_INVALID for a bad name or another team's slug. */
bool action_snapshot_create(const struct actions *actions, const struct caller *caller, struct str sandbox_id,
                            struct str name, bool memory, struct arena *arena, struct snapshot_info *out,
                            struct err *err) must_use;
/* Of the caller's team. `of->name` is any reference, with or without a tag. ERR_INVALID for a bad one. */
bool action_snapshot_list(const struct actions *actions, const struct caller *caller, const struct snapshot_filter *of,
                          struct arena *arena, struct snapshot_info **out, size_t *out_count, struct err *err) must_use;
/* For the other files of actions/: by template id. ERR_NOT_FOUND; ERR_CONFLICT while sandboxes are based on it. */
bool snapshot_delete(const struct actions *actions, const struct caller *caller, struct str template_id,
                     struct arena *arena, struct err *err) must_use;
/* For the other files of actions/: may the team write another one, which has no row? ERR_LIMIT. */
bool snapshots_have_room(const struct actions *actions, struct str team_id, struct err *err) must_use;
/* For the other files of actions/: has the driver drop what removed snapshots have kept. What fails is tried again later. */
void snapshots_drop_removed(const struct actions *actions, struct arena *arena);
/* For the other files of actions/: all of a team that has no sandboxes. */
bool snapshots_delete_all(const struct actions *actions, struct str team_id, struct arena *arena, size_t *out_count,
                          struct err *err) must_use;
/* Ends and deletes what is older than actions->retention says (retention.c). On a worker, now and then. */
void action_sweep_kept(const struct actions *actions);

/* As sandbox_set_network(). */
bool action_sandbox_set_network(const struct actions *actions, const struct caller *caller, struct str id,
                                const struct net_policy *network, struct arena *arena, struct err *err) must_use;

/* The last row of a page. */
struct sandbox_mark {
    int64_t started_us;
    struct str id;
};

struct sandbox_filter {
    bool running, paused; /* the states wanted */
    uint32_t metadata_count;
    const struct pair *metadata; /* all must match */
    struct str template_ref;     /* empty: any; without a tag */
    int64_t started_after_us;    /* inclusive; 0: any */
    bool oldest_first;
    uint32_t limit;                   /* 0: all */
    const struct sandbox_mark *after; /* NULL: from the beginning */
};

struct sandbox_page {
    const struct sandbox_info *rows;
    size_t count;
    size_t running_total; /* matching and running, on all pages together */
    bool more;            /* there are rows after these */
};

/* Newest first (ties by id, ascending), or the exact reverse. A template that does not exist matches nothing. */
bool action_sandbox_list(const struct actions *actions, const struct caller *caller,
                         const struct sandbox_filter *filter, struct arena *arena, struct sandbox_page *out,
                         struct err *err) must_use;

/* ---- event.c ---- */

/* Events of the caller's own team; the filter's team is ignored. */
bool action_event_list(const struct actions *actions, const struct caller *caller, const struct event_filter *filter,
                       struct arena *arena, struct event_row **out, size_t *out_count, struct err *err) must_use;

/* As sandbox_logs(), of the caller's own team. */
void action_sandbox_logs(const struct actions *actions, const struct caller *caller, struct str id, int64_t from_us,
                         int64_t to_us, struct arena *arena, struct sandbox_log **out, size_t *out_count);

/* ---- metrics.c ---- */

/* As sandbox_metrics() and sandbox_metric_latest(), of the caller's own team. */
void action_sandbox_metrics(const struct actions *actions, const struct caller *caller, struct str id, int64_t start_us,
                            int64_t end_us, struct arena *arena, struct sandbox_metric **out, size_t *out_count);
bool action_sandbox_metric_latest(const struct actions *actions, const struct caller *caller, struct str id,
                                  struct sandbox_metric *out) must_use;

/* ---- repeat.c: idempotency keys, for a create that its client may send again ---- */

/*
 * Claims the key for this request. With REPEAT_DONE, *out_done describes what the first request made (id, template,
 * alias, version and tokens; nothing else). After REPEAT_FIRST call action_repeat_settle().
 */
bool action_repeat_begin(const struct actions *actions, const struct caller *caller, struct str key, struct str route,
                         struct str body, struct arena *arena, enum repeat_verdict *out_verdict,
                         struct sandbox_info *out_done, struct err *err) must_use;
/* made is NULL when the request failed: the key may then be used again. */
void action_repeat_settle(const struct actions *actions, const struct caller *caller, struct str key,
                          const struct sandbox_info *made);

/* ---- template.c ---- */

/*
 * What a sandbox is made from: [namespace/]alias[:tag] or an id; letter case does not matter. With a namespace it looks only
 * there: among the team's own, or if it is another team's, among that team's public templates. Without one it tries the
 * team's own names and snapshots, then names for all teams, then ids. ERR_INVALID for bad syntax, ERR_NOT_FOUND, ERR_DENIED
 * for the id of another team's private template.
 */
bool action_template_resolve(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_row *out, struct err *err) must_use;

/* For the other files of actions/. */
struct template_ref {
    struct str space; /* namespace; empty: none given */
    struct str alias; /* or an id */
    struct str tag;   /* empty: none given, or `default` */
};
enum template_kind {
    TEMPLATE_OPERATOR, /* made on the server's machine */
    TEMPLATE_SNAPSHOT,
    TEMPLATE_BUILT,
};
struct template_found {
    enum template_kind kind;
    struct template_ref ref;
    struct str id;
    bool is_own;                 /* of the caller's team */
    bool is_public;              /* others may use it */
    struct template_row row;     /* of TEMPLATE_OPERATOR */
    struct built_template built; /* of TEMPLATE_BUILT */
};
/* The template that a reference names, whatever its tag; errors as above. */
bool template_named(const struct actions *actions, const struct caller *caller, struct str ref, struct arena *arena,
                    struct template_found *out, struct err *err) must_use;
/* The build of its reference's tag. */
bool template_build_of(const struct actions *actions, const struct caller *caller, const struct template_found *found,
                       struct arena *arena, struct template_row *out, struct err *err) must_use;
/* Is it what a create without a namespace takes for a template of all teams? Also one that is not built yet. */
bool template_is_for_all(const struct actions *actions, struct str name, struct arena *arena, bool *out,
                         struct err *err) must_use;
/* In lower case, in the arena. ERR_INVALID. */
bool template_ref_parse(struct str text, struct arena *arena, struct template_ref *out, struct err *err) must_use;
/* A namespace, a name or (with extra ".") a tag: of a-z 0-9 - _, not too long. */
bool template_is_word(struct str s, const char *extra);
/* Looks for templates that were made on the server's machine since. False: there is no way to, or it failed. */
bool templates_refresh(const struct actions *actions);
/* The slug of the caller's team. */
bool caller_slug(const struct actions *actions, const struct caller *caller, struct arena *arena, struct str *out,
                 struct err *err) must_use;

/* ---- team.c ---- */

struct team_metric {
    int64_t at_us;
    uint64_t running;    /* at the end of the step that begins at at_us */
    double starts_per_s; /* in that step */
};
/* Oldest first; from start_us (0: as far back as is known) to end_us (0: now). ERR_DENIED for another team. */
bool action_team_metrics(const struct actions *actions, const struct caller *caller, struct str team_id,
                         int64_t start_us, int64_t end_us, struct arena *arena, struct team_metric **out,
                         size_t *out_count, struct err *err) must_use;

/* The rest is for administrators: ERR_DENIED for others. */

bool action_pool_figures(const struct actions *actions, const struct caller *caller, struct pool_figures *out,
                         struct err *err) must_use;
bool action_team_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      struct team_row **out, size_t *out_count, struct err *err) must_use;
/* The same administrator, acting in another team. ERR_NOT_FOUND. */
bool action_caller_in_team(const struct actions *actions, const struct caller *caller, struct str team_id,
                           struct arena *arena, struct caller *out, struct err *err) must_use;
/* The name must be a slug. ERR_INVALID; ERR_CONFLICT when there is a team of that name. */
bool action_team_create(const struct actions *actions, const struct caller *caller, struct str name,
                        struct arena *arena, struct team_row *out, struct err *err) must_use;
struct team_end {
    size_t revoked, killed, snapshots, templates; /* keys, sandboxes, snapshots, built templates */
};
/*
 * ERR_CONFLICT for the default team, and for a team with keys or running sandboxes. `force` revokes the keys and kills
 * the sandboxes first. With `force` it may fail half-way, with the keys revoked: then call it again.
 */
bool action_team_delete(const struct actions *actions, const struct caller *caller, struct str team_id, bool force,
                        struct arena *arena, struct team_end *out, struct err *err) must_use;
struct team_count {
    struct str team_id;
    size_t running;
};
/* How many of this team's sandboxes run. */
size_t action_team_running(const struct actions *actions, const struct team_row *team);
bool action_running_counts(const struct actions *actions, const struct caller *caller, struct arena *arena,
                           struct team_count **out, size_t *out_count, struct err *err) must_use;
/* Kills all running sandboxes of the caller's team. */
bool action_team_kill(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      size_t *out_killed, size_t *out_failed, struct err *err) must_use;

/* ---- key.c: for administrators ---- */

bool action_key_create(const struct actions *actions, const struct caller *caller, struct str name, struct arena *arena,
                       struct key_row *out, struct secret *out_text, struct err *err) must_use;
bool action_key_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                     struct key_row **out, size_t *out_count, struct err *err) must_use;
/* The keys of every team. */
bool action_key_list_all(const struct actions *actions, const struct caller *caller, struct arena *arena,
                         struct key_row **out, size_t *out_count, struct err *err) must_use;
bool action_key_rename(const struct actions *actions, const struct caller *caller, struct str id, struct str name,
                       struct arena *arena, struct key_row *out, struct err *err) must_use;
bool action_key_revoke(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
    must_use;

#endif
