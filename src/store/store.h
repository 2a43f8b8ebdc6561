/*
 * store.h - what must be known after a restart: teams, keys, templates, sandboxes, events.
 *
 * Several servers may share a store. Sandboxes and running repeats belong to the node (one data directory and its server)
 * that has made them, and no other node judges them; everything else is common.
 *
 * What is read is copied into the caller's arena. Keys are stored as hashes, access tokens not at all (they are derived
 * from a seed), environments never.
 *
 * Durability Changes to teams, keys and templates are on disk when the call returns: a revoked key must stay revoked
 *            whatever happens to the power. Sandboxes, their events and repeats survive the end of our process but
 *            perhaps not a power cut, which no sandbox survives either; not waiting for the disk keeps creating cheap.
 * Threads    Any worker: calls wait for the disk and for each other. store_key_cached() and store_access_token() never
 *            wait and may be called on a loop.
 */
#ifndef STORE_H
#define STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/secret.h"
#include "base/str.h"

struct store;

/*
 * Made if missing (mode 0600), brought to the newest schema. Repeats of this node that were running are lost from here on.
 * node_id is made once for a data directory, and has less than LIMIT_ID_BYTES.
 */
struct store *store_open(const char *path, struct str node_id, struct err *err) must_use;
void store_close(struct store *store); /* NULL is fine */

/* ---- teams ---- */

enum { STORE_UUID_BYTES = 37 };

struct team_row {
    struct str id, slug, name;
    bool is_default;
    uint32_t key_count; /* not the revoked ones */
};

/* There is always one. The text lives as long as the store. */
struct str store_team_default(const struct store *store);
bool store_team_list(struct store *store, struct arena *arena, struct team_row **out, size_t *out_count,
                     struct err *err) must_use;
/* ERR_NOT_FOUND. */
bool store_team_get(struct store *store, struct str id, struct arena *arena, struct team_row *out, struct err *err)
    must_use;
/* The slug is its name too. ERR_CONFLICT when it is taken. */
bool store_team_add(struct store *store, struct str slug, struct arena *arena, struct team_row *out, struct err *err)
    must_use;
/* With its revoked keys. ERR_CONFLICT while it has other keys, sandboxes or templates; its events expire. */
bool store_team_remove(struct store *store, struct str id, struct err *err) must_use;

/* ---- keys ---- */

/* "e2b_" and 40 hex digits: the form that old SDKs insist on. */
enum { STORE_KEY_BYTES = 20, STORE_KEY_CHARS = 44 };

struct key_row {
    struct str id, team_id, team_slug, name;
    struct str mask_prefix, mask_suffix; /* the first 2 and last 4 digits */
    int64_t created_us;
    int64_t last_used_us; /* 0: never; up to a minute behind */
};

/* Whose key it is. */
struct key_owner {
    char key_id[STORE_UUID_BYTES];
    char team_id[STORE_UUID_BYTES];
};

/* A new random key. Its text leaves here once and is not kept. */
bool store_key_add(struct store *store, struct str team_id, struct str name, struct arena *arena, struct key_row *out,
                   struct secret *out_text, struct err *err) must_use;
/* What may be kept of a secret with enough randomness in it: its SHA-256, in hex. */
enum { STORE_HASH_BYTES = 65 };
void store_secret_hash(struct str secret, char room[STORE_HASH_BYTES]);

/* A key whose text somebody else keeps: added unless its hash is known. One that was revoked stays revoked. */
bool store_key_ensure(struct store *store, struct str team_id, struct str name, const struct secret *text,
                      struct err *err) must_use;
/* Not the revoked ones; oldest first. Of every team if team_id is empty. */
bool store_key_list(struct store *store, struct str team_id, struct arena *arena, struct key_row **out,
                    size_t *out_count, struct err *err) must_use;
/* Both: ERR_NOT_FOUND if the team has no such key, or no longer. */
bool store_key_rename(struct store *store, struct str team_id, struct str key_id, struct str name, struct arena *arena,
                      struct key_row *out, struct err *err) must_use;
bool store_key_revoke(struct store *store, struct str team_id, struct str key_id, struct err *err) must_use;

/* False: not known here, ask store_key_find(). Never waits. */
bool store_key_cached(struct store *store, struct str text, struct key_owner *out) must_use;
/* ERR_DENIED for a text that is no key, an unknown or a revoked one. */
bool store_key_find(struct store *store, struct str text, struct key_owner *out, struct err *err) must_use;
/* It was used now. Written down at most once a minute for each key. */
bool store_key_touch(struct store *store, struct str key_id, struct err *err) must_use;

/* ---- templates ---- */

struct template_row {
    struct str id;
    struct str team_id; /* empty: everybody's */
    uint32_t cpu_count, memory_mb, disk_mb;
    struct str guestd_version;
    int64_t created_us;
    uint32_t layer_count;
    const struct str *layers; /* lowest first */
    uint32_t alias_count;
    const struct str *aliases; /* in alphabetical order when read */
};

/*
 * Added, or brought up to date with all its layers and aliases. An alias that another template had moves here.
 * ERR_CONFLICT when its team does not exist.
 */
bool store_template_put(struct store *store, const struct template_row *row, struct err *err) must_use;
bool store_template_remove(struct store *store, struct str id, struct err *err) must_use; /* fine when absent */
/* Removes this node's templates that are not among these. */
bool store_template_keep(struct store *store, const struct str *ids, size_t count, struct err *err) must_use;
/* The team's own and everybody's; oldest first. */
bool store_template_list(struct store *store, struct str team_id, struct arena *arena, struct template_row **out,
                         size_t *out_count, struct err *err) must_use;
/* By id, whoever owns it. ERR_NOT_FOUND. */
bool store_template_get(struct store *store, struct str id, struct arena *arena, struct template_row *out,
                        struct err *err) must_use;
/* By an alias of that team, or with an empty team by one of everybody's. ERR_NOT_FOUND. */
bool store_template_by_alias(struct store *store, struct str team_id, struct str alias, struct arena *arena,
                             struct template_row *out, struct err *err) must_use;

/* ---- sandboxes ---- */

enum sandbox_row_state {
    SANDBOX_ROW_STARTING, /* not yet known to be alive */
    SANDBOX_ROW_RUNNING,
    SANDBOX_ROW_PAUSING,
    SANDBOX_ROW_PAUSED,
    SANDBOX_ROW_RESUMING,
    SANDBOX_ROW_SNAPSHOTTING,
    SANDBOX_ROW_STATE_COUNT,
};

struct sandbox_row {
    struct str id, team_id, template_id, alias, guestd_version;
    enum sandbox_row_state state;
    struct str metadata; /* a JSON object */
    uint32_t cpu_count, memory_mb, disk_mb;
    int internet;         /* a tristate */
    struct str key_id;    /* which key made it; empty: an administrator */
    bool is_private;      /* its ports want the traffic token */
    struct str mask_host; /* what its services see as Host; empty: what the client sent */
    bool open_code;       /* run_code needs no access token */
    int64_t started_us, deadline_us;
    int64_t revision; /* of the deadline: of two writes the later decision stays, in whatever order they arrive */
};

struct event_row {
    struct str id;   /* given when it is written */
    struct str type; /* "sandbox.lifecycle.created" */
    struct str sandbox_id, team_id, template_id;
    int64_t at_us;
    struct str data; /* a JSON object */
};

/* In state STARTING. */
bool store_sandbox_add(struct store *store, const struct sandbox_row *row, struct err *err) must_use;
/* Now RUNNING, with its event, or neither. */
bool store_sandbox_ready(struct store *store, struct str id, int64_t started_us, int64_t deadline_us,
                         const struct event_row *event, struct err *err) must_use;
/* Unless a newer revision was written already. */
bool store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                            const struct event_row *event, struct err *err) must_use;
/* Gone, with its event (which may be NULL). */
bool store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err) must_use;
/* Those of this node. */
bool store_sandbox_list(struct store *store, struct arena *arena, struct sandbox_row **out, size_t *out_count,
                        struct err *err) must_use;
/* Of one sandbox, oldest first. Events are kept for seven days. */
bool store_event_list(struct store *store, struct str sandbox_id, struct arena *arena, struct event_row **out,
                      size_t *out_count, struct err *err) must_use;

enum event_type {
    EVENT_CREATED,
    EVENT_UPDATED,
    EVENT_PAUSED,
    EVENT_RESUMED,
    EVENT_CHECKPOINTED,
    EVENT_KILLED,
    EVENT_TYPE_COUNT,
};
extern const struct str event_type_name[EVENT_TYPE_COUNT]; /* "sandbox.lifecycle.created" */

struct event_filter {
    struct str team_id;
    struct str sandbox_id;  /* empty: any */
    unsigned types;         /* BIT(type)s; 0: any */
    int64_t from_us, to_us; /* inclusive; to_us 0: no end */
    bool oldest_first;
    uint32_t offset, limit;
};
bool store_event_find(struct store *store, const struct event_filter *filter, struct arena *arena,
                      struct event_row **out, size_t *out_count, struct err *err) must_use;

/* How many of a team's began and ended in one step of time. */
struct event_count {
    int64_t step; /* the how-manieth since from_us */
    uint64_t created, killed;
};
/* Until now, in order; steps without either are left out. */
bool store_event_count(struct store *store, struct str team_id, int64_t from_us, int64_t step_us, struct arena *arena,
                       struct event_count **out, size_t *out_count, struct err *err) must_use;

/* What opens guestd: HMAC-SHA256 of the id under a seed that was made with the store, in hex. */
enum { STORE_TOKEN_BYTES = 65 };
void store_access_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES]);
/* What opens the ports of a private sandbox, made likewise. */
void store_traffic_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES]);

/* ---- repeats: a create that its client may send again ---- */

enum repeat_verdict {
    REPEAT_FIRST,   /* go ahead, then store_repeat_done() or store_repeat_forget() */
    REPEAT_RUNNING, /* the first one is still at work */
    REPEAT_DONE,    /* answer as the first time */
    REPEAT_LOST,    /* the server died in the middle of the first one */
    REPEAT_OTHER,   /* the same key for another request */
};

/* What the first one made. */
struct repeat_outcome {
    struct str sandbox_id, template_id, alias, guestd_version;
};

/* route and body together are the request. Keys are remembered for a day. */
bool store_repeat_begin(struct store *store, struct str team_id, struct str key, struct str route, struct str body,
                        struct arena *arena, enum repeat_verdict *out_verdict, struct repeat_outcome *out_outcome,
                        struct err *err) must_use;
bool store_repeat_done(struct store *store, struct str team_id, struct str key, const struct repeat_outcome *outcome,
                       struct err *err) must_use;
/* Nothing came of it: the key may be used again. */
bool store_repeat_forget(struct store *store, struct str team_id, struct str key, struct err *err) must_use;

#endif
