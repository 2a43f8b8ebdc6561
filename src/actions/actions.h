/*
 * actions.h - what a caller may ask for: check the caller, then do it.
 *
 * One file a noun, one function a verb. Every door (REST now, MCP later) comes through here, so that who may do what is
 * decided once. Knows no HTTP and no foreign names.
 *
 * Ownership  What is returned lives in the caller's arena.
 * Threads    A worker: actions wait. The exceptions say so.
 * Failure    ERR_NOT_FOUND for what belongs to another team: it must not be told apart from what is missing.
 */
#ifndef ACTIONS_ACTIONS_H
#define ACTIONS_ACTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/secret.h"
#include "base/str.h"
#include "policy/quota.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

/*
 * The version of the guest API that our guestd speaks, as clients compare it to decide what they may use. Templates and
 * sandboxes record the one they were made with.
 */
#define GUESTD_API_VERSION "0.6.13"

/* What actions work with. Filled in once by whoever wires the server; read-only afterwards. */
struct actions {
    struct store *store;
    struct sandboxes *sandboxes;
    const struct secret *admin_hash; /* store_secret_hash() of the admin token; NULL: there are no administrators */
    /* Somebody names a template that the store does not know: there may be new ones to put there. May be NULL. */
    bool (*refresh_templates)(void *context, struct err *err);
    void *context;
    struct meters *meters;      /* how often each key has asked lately; NULL: as often as it likes */
    bool code_always_has_token; /* the operator allows no sandbox with open_code */
};

/* ---- caller.c: who is asking ---- */

struct caller {
    char team_id[STORE_UUID_BYTES];
    char key_id[STORE_UUID_BYTES]; /* empty for an administrator */
    bool is_admin;
};

/* The key was seen lately. False says nothing: ask action_caller_by_key(). Never waits, for the loop. */
bool action_caller_known(const struct actions *actions, struct str key, struct caller *out) must_use;
/* ERR_DENIED. */
bool action_caller_by_key(const struct actions *actions, struct str key, struct caller *out, struct err *err) must_use;
/* In a team; an empty team_id is the default team. ERR_DENIED for the token, ERR_NOT_FOUND for the team. */
bool action_caller_by_admin_token(const struct actions *actions, struct str token, struct str team_id,
                                  struct caller *out, struct err *err) must_use;
/* Notes that the key was used; failing to is not worth an answer. */
void action_caller_seen(const struct actions *actions, const struct caller *caller);

/* ---- meter.c: how often a key may ask ---- */

/* On the loop, like action_caller_in_rate(). 0: as often as it likes. */
struct meters *meters_new(uint32_t requests_per_s) must_use;
void meters_free(struct meters *meters);
/* Counts this request. False: one too many, try again when *out_left says. Administrators are not counted. */
bool action_caller_in_rate(const struct actions *actions, const struct caller *caller, uint64_t now_ms,
                           struct quota_left *out_left) must_use;

/* ---- sandbox.c ---- */

struct sandbox_request {
    struct str template_ref; /* as the caller wrote it */
    uint64_t timeout_s;
    uint32_t metadata_count;
    const struct pair *metadata;
    uint32_t env_count;
    const struct pair *envs;
    enum tristate internet;
    bool is_private;
    struct str mask_host;
    bool open_code; /* run_code without the access token, if the operator allows that */
};

bool action_sandbox_create(const struct actions *actions, const struct caller *caller,
                           const struct sandbox_request *request, struct arena *arena, struct sandbox_info *out,
                           struct err *err) must_use;
bool action_sandbox_get(const struct actions *actions, const struct caller *caller, struct str id, struct arena *arena,
                        struct sandbox_info *out, struct err *err) must_use;
bool action_sandbox_kill(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
    must_use;
/* The deadline is now + timeout, earlier or later; clamped. */
bool action_sandbox_set_timeout(const struct actions *actions, const struct caller *caller, struct str id,
                                uint64_t timeout_s, struct arena *arena, struct err *err) must_use;
/* The deadline is at least now + timeout; clamped. */
bool action_sandbox_refresh(const struct actions *actions, const struct caller *caller, struct str id,
                            uint64_t timeout_s, struct arena *arena, struct err *err) must_use;
/* The same, but a timeout past the longest life is ERR_INVALID, and the sandbox is described. */
bool action_sandbox_connect(const struct actions *actions, const struct caller *caller, struct str id,
                            uint64_t timeout_s, struct arena *arena, struct sandbox_info *out, struct err *err)
    must_use;

/* Where a page ended. */
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
    size_t running_total; /* matching and running, on all pages */
    bool more;            /* there are rows after these */
};

/* Newest first (ties by id, ascending), or the exact reverse. A template that does not exist matches nothing. */
bool action_sandbox_list(const struct actions *actions, const struct caller *caller,
                         const struct sandbox_filter *filter, struct arena *arena, struct sandbox_page *out,
                         struct err *err) must_use;

/* ---- event.c ---- */

/* Of the caller's own team, whatever the filter says about teams. */
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

/* ---- repeat.c: a create that its client may send again ---- */

/*
 * Claims the key for this request. With REPEAT_DONE, *out_done says what the first one made (id, template, alias,
 * version and tokens; nothing else). After REPEAT_FIRST call action_repeat_settle().
 */
bool action_repeat_begin(const struct actions *actions, const struct caller *caller, struct str key, struct str route,
                         struct str body, struct arena *arena, enum repeat_verdict *out_verdict,
                         struct sandbox_info *out_done, struct err *err) must_use;
/* made is NULL when nothing came of it: the key may then be used again. */
void action_repeat_settle(const struct actions *actions, const struct caller *caller, struct str key,
                          const struct sandbox_info *made);

/* ---- template.c ---- */

bool action_template_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                          struct template_row **out, size_t *out_count, struct err *err) must_use;
/*
 * [namespace/]alias[:tag] or an id, in any case. With a namespace only that; else the team's own alias, then
 * everybody's, then an id. ERR_INVALID for bad syntax, ERR_NOT_FOUND.
 */
bool action_template_resolve(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_row *out, struct err *err) must_use;

/* ---- team.c ---- */

struct team_metric {
    int64_t at_us;
    uint64_t running;    /* at the end of the step that begins then */
    double starts_per_s; /* in that step */
};
/* Oldest first; from start_us (0: as far back as is known) to end_us (0: now). ERR_DENIED for another team. */
bool action_team_metrics(const struct actions *actions, const struct caller *caller, struct str team_id,
                         int64_t start_us, int64_t end_us, struct arena *arena, struct team_metric **out,
                         size_t *out_count, struct err *err) must_use;

/* The rest is for administrators: ERR_DENIED for others. */

/* The same one, in another team. ERR_NOT_FOUND. */
bool action_caller_in_team(const struct actions *actions, const struct caller *caller, struct str team_id,
                           struct arena *arena, struct caller *out, struct err *err) must_use;
/* Its name is a slug. ERR_INVALID, ERR_CONFLICT when there is one of that name. */
bool action_team_create(const struct actions *actions, const struct caller *caller, struct str name,
                        struct arena *arena, struct team_row *out, struct err *err) must_use;
struct team_end {
    size_t revoked, killed;
};
/*
 * ERR_CONFLICT for the default team, and for one with keys or running sandboxes, unless `force` says that they go
 * first. With `force` it may fail half-way, with its keys revoked: then say it again.
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
/* All that run in the caller's team. */
bool action_team_kill(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      size_t *out_killed, size_t *out_failed, struct err *err) must_use;

/* ---- key.c: for administrators ---- */

bool action_key_create(const struct actions *actions, const struct caller *caller, struct str name, struct arena *arena,
                       struct key_row *out, struct secret *out_text, struct err *err) must_use;
bool action_key_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                     struct key_row **out, size_t *out_count, struct err *err) must_use;
/* Of every team. */
bool action_key_list_all(const struct actions *actions, const struct caller *caller, struct arena *arena,
                         struct key_row **out, size_t *out_count, struct err *err) must_use;
bool action_key_rename(const struct actions *actions, const struct caller *caller, struct str id, struct str name,
                       struct arena *arena, struct key_row *out, struct err *err) must_use;
bool action_key_revoke(const struct actions *actions, const struct caller *caller, struct str id, struct err *err)
    must_use;
bool action_team_list(const struct actions *actions, const struct caller *caller, struct arena *arena,
                      struct team_row **out, size_t *out_count, struct err *err) must_use;

#endif
