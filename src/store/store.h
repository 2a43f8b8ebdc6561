/*
 * store.h - the data that outlives a restart: teams, keys, templates, sandboxes, events.
 *
 * Several servers may share a store. Sandboxes and running repeats belong to the node (one data directory and its server)
 * that has made them, and no other node judges them; everything else is common.
 *
 * Rows are copied into the caller's arena. Keys are stored as hashes. Access tokens are not stored but derived from a
 * seed. The environment of a sandbox is stored only while it is paused, because a start without its memory needs it. When the
 * sandbox runs again or is gone, the row has it no more; the database's log can hold the bytes for a while longer.
 *
 * Durability Changes to teams, keys and templates are on disk when the call returns: a revoked key stays revoked after a
 *            power cut. Sandboxes, their events and repeats survive the end of our process, but perhaps not a power cut,
 *            which no sandbox survives either; so a create does not wait for the disk.
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
/*
 * From here on a thread copies the log to the database, so that no commit has to. Once, and only in a program that does not
 * fork afterwards. If it fails, the store works as before.
 */
bool store_checkpoint_behind(struct store *store, struct err *err) must_use;
void store_close(struct store *store); /* NULL is fine */

/* ---- teams ---- */

enum { STORE_UUID_BYTES = 37 };

struct team_row {
    struct str id, slug, name;
    bool is_default;
    uint32_t key_count; /* without the revoked ones */
};

/* The default team always exists. The text lives as long as the store. */
struct str store_team_default(const struct store *store);
bool store_team_list(struct store *store, struct arena *arena, struct team_row **out, size_t *out_count,
                     struct err *err) must_use;
/* ERR_NOT_FOUND. */
bool store_team_get(struct store *store, struct str id, struct arena *arena, struct team_row *out, struct err *err)
    must_use;
/* The same, mostly without a query. */
bool store_team_is_there(struct store *store, struct str id, struct err *err) must_use;
bool store_team_by_slug(struct store *store, struct str slug, struct arena *arena, struct team_row *out,
                        struct err *err) must_use;
/* The slug becomes its name too. ERR_CONFLICT when it is taken. */
bool store_team_add(struct store *store, struct str slug, struct arena *arena, struct team_row *out, struct err *err)
    must_use;
/* Also removes its revoked keys. ERR_CONFLICT while it has other keys, sandboxes or templates. Its events expire. */
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

/* The key and the team that a text belongs to. */
struct key_owner {
    char key_id[STORE_UUID_BYTES];
    char team_id[STORE_UUID_BYTES];
};

/* Makes a random key. out_text is the only copy of its text. */
bool store_key_add(struct store *store, struct str team_id, struct str name, struct arena *arena, struct key_row *out,
                   struct secret *out_text, struct err *err) must_use;
/* SHA-256 of a secret, in hex: safe to store if the secret is random and long. */
enum { STORE_HASH_BYTES = 65 };
void store_secret_hash(struct str secret, char room[STORE_HASH_BYTES]);

/* Adds a key whose text is kept elsewhere, unless its hash is known. A revoked one stays revoked. */
bool store_key_ensure(struct store *store, struct str team_id, struct str name, const struct secret *text,
                      struct err *err) must_use;
/* Without the revoked ones; oldest first. Those of every team if team_id is empty. */
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
/* Notes that the key was used now; writes at most once a minute for each key. */
bool store_key_touch(struct store *store, struct str key_id, struct err *err) must_use;

/* ---- templates ---- */

struct build_row;
struct template_row {
    struct str id;
    struct str team_id; /* empty: for all teams */
    uint32_t cpu_count, memory_mb, disk_mb;
    struct str guestd_version;
    int64_t created_us;
    uint32_t layer_count;
    const struct str *layers; /* lowest first */
    uint32_t alias_count;
    const struct str *aliases; /* in alphabetical order when read */
    struct str image;          /* of a snapshot or build with its processes: its kept_id; the store leaves it empty */
    struct str kept_id;        /* of any snapshot; the same */
    int64_t used_us;           /* as in struct snapshot_row */
    struct str default_user, default_workdir; /* of its sandboxes; the store leaves them empty: as always */
    /* Of a build, else empty; the store leaves these so: */
    const struct build_row *build;
    bool is_public; /* other teams may use it */
};

/*
 * Added, or brought up to date with all its layers and aliases. An alias that another template had moves here.
 * ERR_CONFLICT when its team does not exist.
 */
bool store_template_put(struct store *store, const struct template_row *row, struct err *err) must_use;
bool store_template_remove(struct store *store, struct str id, struct err *err) must_use; /* fine when absent */
/* Removes this node's templates that are not among these. */
bool store_template_keep(struct store *store, const struct str *ids, size_t count, struct err *err) must_use;
/*
 * What a name of a template was found to mean for a team, kept as long as nothing has changed that a search for templates
 * reads. Only for rows as store_template_get() gives them. Take the version before the search: what is kept for one that is
 * over by now is not given out.
 */
uint64_t store_version(struct store *store) must_use;
bool store_found_get(struct store *store, struct str team_id, struct str name, struct arena *arena,
                     struct template_row *out) must_use;
void store_found_keep(struct store *store, uint64_t version, struct str team_id, struct str name,
                      const struct template_row *row);
/* The team's own and those for all teams; oldest first. */
bool store_template_list(struct store *store, struct str team_id, struct arena *arena, struct template_row **out,
                         size_t *out_count, struct err *err) must_use;
/* By id, of any owner. ERR_NOT_FOUND. */
bool store_template_get(struct store *store, struct str id, struct arena *arena, struct template_row *out,
                        struct err *err) must_use;
/* By an alias of that team, or with an empty team, of a template for all teams. ERR_NOT_FOUND. */
bool store_template_by_alias(struct store *store, struct str team_id, struct str alias, struct arena *arena,
                             struct template_row *out, struct err *err) must_use;

/* ---- snapshots ---- */

struct event_row; /* below */

/*
 * A snapshot is a build of a template of its own. Builds of one name are one template with several tags; a new build of a
 * tag replaces the one before.
 */
struct snapshot_row {
    struct str template_id;
    struct str name; /* empty: none */
    struct str tag;  /* "default" unless given */
    struct str team_id, sandbox_id;
    struct str source_template_id; /* of the sandbox */
    uint32_t cpu_count, memory_mb, disk_mb;
    struct str guestd_version;
    int64_t created_us;
    uint32_t layer_count;
    const struct str *layers;
    struct str kept_id;                       /* of struct kept; the last of `layers` too */
    struct str default_user, default_workdir; /* of the sandbox; empty: as always */
    bool has_memory;
    uint64_t layer_bytes, image_bytes; /* as they are on disk… */
    uint64_t raw_bytes;                /* …and the second before it was compressed; 0: not known yet */
    int64_t used_us; /* when it was made, or last a sandbox from it, give or take STORE_USE_US; 0: not known */
};
#define STORE_USE_US (INT64_C(3600) * 1000000) /* more often than this it is not written that one is used */
struct snapshot_filter {
    struct str team_id;
    struct str sandbox_id; /* empty: any */
    struct str name;       /* a name or a template id; empty: any */
    struct str tag;        /* empty: any */
    int64_t before_us;     /* the last row of the page before; 0: the newest */
    struct str before_id;  /* its kept_id */
    uint32_t limit;
};
/* How much may be kept. What is removed counts until the driver has dropped it. */
struct snapshot_caps {
    uint64_t of_team, of_all; /* snapshots */
    uint64_t bytes;           /* of all… */
    uint64_t bytes_of_team;   /* …and of one team */
};
/* ERR_LIMIT if there is no room for another one: the message says what to delete. */
bool store_snapshot_room(struct store *store, struct str team_id, const struct snapshot_caps *caps, struct err *err)
    must_use;
/*
 * A name that the team has already becomes another build of the same template, and replaces the build with the same tag.
 * out->template_id says which. Durable. ERR_LIMIT as above.
 */
bool store_snapshot_add(struct store *store, const struct snapshot_row *row, const struct snapshot_caps *caps,
                        struct arena *arena, struct snapshot_row *out, struct err *err) must_use;
/* Newest first, ties by kept_id. */
bool store_snapshot_list(struct store *store, const struct snapshot_filter *filter, struct arena *arena,
                         struct snapshot_row **out, size_t *out_count, struct err *err) must_use;
/* The build of a template id or name with this tag (empty: default). ERR_NOT_FOUND, also for another team's. */
bool store_snapshot_get(struct store *store, struct str team_id, struct str id_or_name, struct str tag,
                        struct arena *arena, struct snapshot_row *out, struct err *err) must_use;
/*
 * All builds of a template id or name. ERR_NOT_FOUND; ERR_CONFLICT while a sandbox is based on it. Durable. The driver has
 * to drop what they kept: see below.
 */
bool store_snapshot_remove(struct store *store, struct str team_id, struct str id_or_name, struct err *err) must_use;
/* A sandbox was made from it. */
bool store_snapshot_use(struct store *store, struct str kept_id, int64_t now_us, struct err *err) must_use;
/*
 * Those of this node that nobody has used since then. One that a sandbox is based on, running or paused, is used now; so is
 * one of which it is not known.
 */
bool store_snapshot_unused(struct store *store, int64_t before_us, int64_t now_us, struct arena *arena,
                           struct snapshot_row **out, size_t *out_count, struct err *err) must_use;
/* Removes this build of it, with an event, if it is still so. *out_expired says whether. Durable. */
bool store_snapshot_expire(struct store *store, struct str kept_id, int64_t before_us, const struct event_row *event,
                           bool *out_expired, struct err *err) must_use;
/* Those of this node whose memory was not measured since it may have been compressed: raw_bytes is 0. */
bool store_snapshot_unmeasured(struct store *store, uint32_t limit, struct arena *arena, struct str **out_kept_ids,
                               size_t *out_count, struct err *err) must_use;
bool store_snapshot_measured(struct store *store, struct str kept_id, uint64_t image_bytes, uint64_t raw_bytes,
                             struct err *err) must_use;
/* What this node's removed and replaced builds have kept on disk: the driver drops each, then _forget() it. */
bool store_snapshot_removed(struct store *store, struct arena *arena, struct str **out_kept_ids, size_t *out_count,
                            struct err *err) must_use;
/* Is there a row, perhaps as removed? */
bool store_snapshot_is_known(struct store *store, struct str kept_id, bool *out, struct err *err) must_use;
bool store_snapshot_forget(struct store *store, struct str kept_id, struct err *err) must_use;

/* ---- builds: builds.c ---- */

/*
 * A template of a team has builds; a tag is a pointer to one of them. Assignments are kept as a history: a tag means its
 * newest one whose build is ready, so that it serves the build before while a new one is made. An alias is a name of the
 * template in its team, or if the template is public and has claimed it, for all teams. A template that was removed keeps
 * its id, which is never used again.
 */
enum build_state { BUILD_WAITING, BUILD_BUILDING, BUILD_READY, BUILD_ERROR, BUILD_STATE_COUNT };

/* What a step leaves for the next one, and the last step for sandboxes. */
struct build_context {
    struct str user;    /* empty: root while building, `user` in sandboxes */
    struct str workdir; /* empty: the user's home */
    struct str envs;    /* a JSON object; of the build alone, not of sandboxes */
};
struct build_row {
    struct str id; /* a UUID */
    struct str template_id, team_id;
    enum build_state state;
    struct str reason, reason_step; /* of an error; the step is "base", "1", "finalize" or empty */
    uint32_t cpu_count, memory_mb, disk_mb;
    struct str guestd_version;
    int64_t created_us, updated_us, finished_us; /* 0: not yet */
    uint32_t tag_count;
    const struct str *tags; /* that it was made with */
    /* Of a ready one: */
    uint32_t layer_count;
    const struct str *layers; /* lowest first */
    struct str image;         /* kept_id of the snapshot with its processes; empty: start_cmd is run by each create */
    uint64_t image_bytes;     /* what it takes on disk; only written, by _finish() */
    struct build_context context;
    struct str start_cmd, ready_cmd;    /* empty: none */
    struct build_context start_context; /* that they run in */
    struct str from_template;           /* id of the built template that it was made from; empty: another source */
};
struct built_template {
    struct str id, team_id, team_slug;
    bool is_public;
    int64_t created_us, updated_us, spawned_us; /* 0: no sandbox yet */
    uint64_t spawn_count, build_count;
    uint32_t alias_count;
    const struct str *aliases;   /* in order */
    struct str default_build_id; /* the ready build of the tag `default`; empty: none */
    struct build_row newest;     /* of that tag, or if there is none, of all; in any state. No id: there is none */
};
struct build_registration {
    struct str team_id, alias;
    uint32_t tag_count;
    const struct str *tags; /* at least one */
    uint32_t cpu_count, memory_mb;
    struct str guestd_version;
};
/*
 * Finds or makes the team's template of that alias, and adds a waiting build to it. Waiting builds with one of these tags
 * become errors, and so do those that have waited for too long. ERR_CONFLICT: the alias is the id of a template. ERR_LIMIT:
 * too many builds, templates or tags. Durable.
 */
bool store_build_register(struct store *store, const struct build_registration *want, struct arena *arena,
                          struct built_template *out_template, struct build_row *out_build, struct err *err) must_use;
/* By id, of any team. ERR_NOT_FOUND. */
bool store_build_get(struct store *store, struct str build_id, struct arena *arena, struct build_row *out,
                     struct err *err) must_use;
/* WAITING to BUILDING. ERR_CONFLICT. */
bool store_build_begin(struct store *store, struct str build_id, struct err *err) must_use;
/*
 * To READY with what it made, or to ERROR with its reason. Durable: its layers and the tags are there together, or neither.
 * ERR_NOT_FOUND if the template was removed meanwhile.
 */
bool store_build_finish(struct store *store, const struct build_row *row, struct err *err) must_use;
/* Builds of this node that were BUILDING become errors. At start. */
bool store_builds_cut_off(struct store *store, const char *reason, struct err *err) must_use;
/* Ids of builds of this template that are BUILDING and have one of these tags. */
bool store_builds_running(struct store *store, struct str template_id, const struct str *tags, uint32_t tag_count,
                          struct arena *arena, struct str **out_ids, size_t *out_count, struct err *err) must_use;

/* What the team has BUILDING. */
bool store_builds_running_of_team(struct store *store, struct str team_id, struct arena *arena, struct str **out_ids,
                                  size_t *out_count, struct err *err) must_use;
/* Those that have waited since before this time become errors. */
bool store_builds_expire(struct store *store, int64_t before_us, struct err *err) must_use;
/* Newest first, ties by id. before_us 0: from the newest. */
bool store_build_list(struct store *store, struct str template_id, int64_t before_us, struct str before_id,
                      uint32_t limit, struct arena *arena, struct build_row **out, size_t *out_count, struct err *err)
    must_use;

/* By id, of any team. ERR_NOT_FOUND, also for a removed one. */
bool store_built_get(struct store *store, struct str id, struct arena *arena, struct built_template *out,
                     struct err *err) must_use;
/* By an alias of that team, or with an empty team, one that is claimed for all teams. ERR_NOT_FOUND. */
bool store_built_by_alias(struct store *store, struct str team_id, struct str alias, struct arena *arena,
                          struct built_template *out, struct err *err) must_use;
/* Those of a team; oldest first. */
bool store_built_list(struct store *store, struct str team_id, struct arena *arena, struct built_template **out,
                      size_t *out_count, struct err *err) must_use;
/*
 * claim: its aliases become names for all teams. One that is not public has no such names. ERR_CONFLICT: another one has
 * claimed the alias. Durable.
 */
bool store_built_publish(struct store *store, struct str id, bool is_public, bool claim, struct err *err) must_use;
/* With its builds, aliases and tags. ERR_NOT_FOUND; ERR_CONFLICT while a sandbox of its team is based on it. Durable. */
bool store_built_remove(struct store *store, struct str id, struct err *err) must_use;
/* A sandbox was made from it. Fine if it is gone. */
bool store_built_spawned(struct store *store, struct str id, struct err *err) must_use;

/* ---- tags of builds: build_tags.c ---- */

struct tag_row {
    struct str id; /* of the assignment */
    struct str tag, build_id;
    int64_t assigned_us, build_created_us, build_finished_us;
};
struct tag_filter {
    struct str template_id;
    struct str tag;    /* empty: any */
    bool newest_only;  /* of each tag */
    int64_t before_us; /* older than this assignment; 0: from the newest */
    uint32_t limit;
};
/* Assignments whose build is ready: by tag, and of one tag newest first. */
bool store_tag_list(struct store *store, const struct tag_filter *filter, struct arena *arena, struct tag_row **out,
                    size_t *out_count, struct err *err) must_use;
/* The ready build that a tag means (empty: default), or if the tag is a UUID, the ready build with this id. ERR_NOT_FOUND. */
bool store_build_by_tag(struct store *store, struct str template_id, struct str tag, struct arena *arena,
                        struct build_row *out, struct err *err) must_use;
/* To a ready build of this template. ERR_LIMIT: too many tags. Durable. */
bool store_tag_assign(struct store *store, struct str template_id, struct str build_id, const struct str *tags,
                      uint32_t count, struct err *err) must_use;
/* With its history; fine if there is no such tag. Durable. */
bool store_tag_remove(struct store *store, struct str template_id, const struct str *tags, uint32_t count,
                      struct err *err) must_use;

/* ---- logs of builds, and the cache: build_steps.c ---- */

enum build_level { BUILD_DEBUG, BUILD_INFO, BUILD_WARN, BUILD_LEVEL_ERROR };
struct build_line {
    int64_t at_us; /* not before the line above it: the store sees to that */
    enum build_level level;
    struct str step; /* as reason_step */
    struct str text;
};
/* At most LIMIT_BUILD_LOG_BYTES of a build are kept; then one line says so. */
bool store_build_log(struct store *store, struct str build_id, const struct build_line *lines, uint32_t count,
                     struct err *err) must_use;
struct build_log_filter {
    struct str build_id;
    enum build_level least;
    uint32_t offset, limit; /* of the lines with this level or higher */
    int64_t from_us, to_us; /* 0: any */
    bool newest_first;
};
bool store_build_log_read(struct store *store, const struct build_log_filter *filter, struct arena *arena,
                          struct build_line **out, size_t *out_count, struct err *err) must_use;

/*
 * The cache: what a step has made, by its key. `kept_id` is the driver's (struct kept); a step without a layer has none.
 * Rows of one team are never given to another.
 */
struct cached_step {
    struct str team_id, key; /* 64 hex digits */
    struct str kept_id;
    uint32_t layer_count;
    const struct str *layers; /* lowest first, with the new one */
    struct build_context context;
    uint64_t bytes;       /* with those of an image's layers that it has brought */
    uint64_t layer_bytes; /* only written, by _put(): of its layer alone… */
    struct str text;      /* …and the step as its author wrote it */
    int64_t created_us, used_us;
};
/* Also notes that it was used. ERR_NOT_FOUND. */
bool store_step_find(struct store *store, struct str team_id, struct str key, struct arena *arena,
                     struct cached_step *out, struct err *err) must_use;
/* Replaces the row with this key, whose kept_id is dropped when nothing refers to it. */
bool store_step_put(struct store *store, const struct cached_step *row, struct err *err) must_use;
/*
 * kept_ids that no build of this node, no step of the cache used since before_us, and no other row refers to: the driver
 * drops each, then _forget() it. Rows of the cache that were not used since are removed.
 */
bool store_builds_unused(struct store *store, int64_t before_us, struct arena *arena, struct str **out_kept_ids,
                         size_t *out_count, struct err *err) must_use;
bool store_build_forget(struct store *store, struct str kept_id, struct err *err) must_use;
/* The driver keeps this for builds that no row tells of yet: without one, _unused() finds it. Twice is fine. */
bool store_build_keep(struct store *store, struct str kept_id, struct err *err) must_use;
/* It takes so much, which is not known when it is written down. */
bool store_build_measured(struct store *store, struct str kept_id, uint64_t layer_bytes, struct err *err) must_use;
/* What this node keeps for builds and steps takes on disk, of a team and of all. */
bool store_build_bytes(struct store *store, struct str team_id, uint64_t *out_of_team, uint64_t *out_of_all,
                       struct err *err) must_use;
/*
 * Removes rows of a team's cache, those first that were not used for the longest time, until what they leave without use
 * takes so many bytes. Those that were used since before_us stay, and those on which a build, a snapshot or a sandbox is. The
 * driver drops each of the kept_ids, then _forget() it. Fewer bytes than wanted are no error.
 */
bool store_steps_evict(struct store *store, struct str team_id, int64_t before_us, uint64_t bytes, struct arena *arena,
                       struct str **out_kept_ids, size_t *out_count, struct err *err) must_use;
/* Is it kept for a build or a step, and not by a template or a snapshot? */
bool store_build_keeps(struct store *store, struct str kept_id, bool *out, struct err *err) must_use;

/* ---- what builds take on disk: build_disk.c ---- */

/*
 * Who may know what: layers of images are common to teams, and steps are their authors'. So the text of a step is given only
 * to the team that has made it, and what is shared is said only of templates of the same team and of the operator.
 */
enum layer_origin {
    LAYER_OTHER,    /* a step of another team, or of a snapshot */
    LAYER_STEP,     /* a step of the team */
    LAYER_IMAGE,    /* it came with an image */
    LAYER_OPERATOR, /* of a template that the operator has made */
};
struct layer_row {
    struct str id;
    enum layer_origin origin;
    bool is_known;  /* it was made by a build: its size is known */
    bool is_shared; /* also of another template of the team, or of the operator */
    uint64_t bytes;
    struct str step; /* of LAYER_STEP; empty: it only holds on to the layers below, or is of an older version */
};
/* Of the template with this id, for a team. */
bool store_layer_list(struct store *store, struct str team_id, struct str template_id, const struct str *layers,
                      uint32_t count, struct arena *arena, struct layer_row **out, struct err *err) must_use;
/* Who of this team is based on a template now. */
struct template_uses {
    uint64_t sandboxes, snapshots, templates;
};
bool store_template_uses(struct store *store, struct str team_id, struct str template_id, struct template_uses *out,
                         struct err *err) must_use;

enum { STORE_DISK_TAGS = 20 };
struct template_disk {
    struct str id, team_slug;
    struct str alias; /* the first one; empty: none */
    bool is_public;
    uint64_t build_count;             /* ready ones */
    uint64_t own_bytes, shared_bytes; /* of their layers: of no other template, and of others of the team as well */
    uint64_t tag_count;
    struct str tags[STORE_DISK_TAGS]; /* the first ones */
};
struct build_disk {
    struct template_disk *templates; /* oldest first */
    size_t count;
    uint64_t template_bytes; /* each layer once */
    uint64_t cache_bytes;    /* of layers that no template has */
};
/* Of a team, or if its id is empty, of all: then layers that teams have in common are shared. */
bool store_build_disk(struct store *store, struct str team_id, struct arena *arena, struct build_disk *out,
                      struct err *err) must_use;

struct cache_prune {
    struct str team_id;                               /* empty: of all */
    bool dry_run;                                     /* only say what would go */
    bool (*is_held)(void *context, struct str layer); /* what a build that runs is on stays; NULL: none */
    void *context;
};
struct cache_pruned {
    uint64_t steps;
    uint64_t bytes;
    struct str *kept_ids; /* the driver drops each, then _forget() it; not with dry_run */
    size_t count;
};
/*
 * Removes the steps that no build, snapshot or sandbox is on. What they and others have left without use can be dropped; for a
 * team only what is its own: layers of images, which teams have in common, are left to _unused().
 */
bool store_cache_prune(struct store *store, const struct cache_prune *want, struct arena *arena,
                       struct cache_pruned *out, struct err *err) must_use;

/* ---- sandboxes ---- */

enum sandbox_row_state {
    SANDBOX_ROW_STARTING, /* guestd has not answered yet */
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
    struct str network;     /* base64 of a packed net_policy; empty: it reaches nothing */
    struct str key_id;      /* the key that made it; empty: an administrator */
    bool is_private;        /* its ports need the traffic token */
    struct str mask_host;   /* Host header that its services get; empty: as the client sent it */
    struct str https_ports; /* that expect TLS, separated by commas */
    bool open_code;         /* run_code needs no access token */
    int64_t started_us, deadline_us;
    int64_t revision;                          /* of the deadline: a write with an older revision changes nothing */
    uint64_t timeout_s;                        /* of the create: traffic that wakes it gives it this long again */
    bool auto_pause, keep_memory, auto_resume; /* sandbox_lifecycle */
    uint32_t layer_count;                      /* what it was started from, so that a paused one can start again */
    const struct str *layers;
    bool has_memory, was_silent;              /* of a paused one */
    struct str envs;                          /* of a paused one: a JSON object, for a start without its memory */
    struct str default_user, default_workdir; /* of commands that name none; no workdir: the user's home */
};

struct event_row {
    struct str id;   /* made when it is written */
    struct str type; /* "sandbox.lifecycle.created" */
    struct str sandbox_id, team_id, template_id;
    int64_t at_us;
    struct str data; /* a JSON object */
};

/* In state STARTING. */
bool store_sandbox_add(struct store *store, const struct sandbox_row *row, struct err *err) must_use;
/* In state RUNNING, with its event, or neither. */
bool store_sandbox_add_running(struct store *store, const struct sandbox_row *row, const struct event_row *event,
                               struct err *err) must_use;
/* Now RUNNING, with its event, or neither. */
bool store_sandbox_ready(struct store *store, struct str id, int64_t started_us, int64_t deadline_us,
                         const struct event_row *event, struct err *err) must_use;
/*
 * What a change of state writes beside the state. The last three belong to PAUSING and PAUSED. RESUMING leaves them as
 * they are, so that a resume that fails has lost nothing; the other states clear them.
 */
struct sandbox_change {
    enum sandbox_row_state state;
    int64_t started_us, deadline_us; /* 0: as they are */
    int64_t revision;                /* with deadline_us */
    bool has_memory, was_silent;
    struct str envs;
};
/* With its event (which may be NULL), or neither. PAUSED is on disk when the call returns. ERR_NOT_FOUND. */
bool store_sandbox_change(struct store *store, struct str id, const struct sandbox_change *change,
                          const struct event_row *event, struct err *err) must_use;
/* Unless a newer revision was written already. */
bool store_sandbox_deadline(struct store *store, struct str id, int64_t deadline_us, int64_t revision,
                            const struct event_row *event, struct err *err) must_use;
/* With its event, or neither. ERR_NOT_FOUND when the row is gone. */
bool store_sandbox_network(struct store *store, struct str id, struct str network, const struct event_row *event,
                           struct err *err) must_use;
/* Gone, with its event (which may be NULL). */
bool store_sandbox_remove(struct store *store, struct str id, const struct event_row *event, struct err *err) must_use;
/* Those of this node. */
bool store_sandbox_list(struct store *store, struct arena *arena, struct sandbox_row **out, size_t *out_count,
                        struct err *err) must_use;
/* The events of one sandbox, oldest first. Events are kept for seven days. */
bool store_event_list(struct store *store, struct str sandbox_id, struct arena *arena, struct event_row **out,
                      size_t *out_count, struct err *err) must_use;

/* An event by itself. */
bool store_event_add(struct store *store, const struct event_row *event, struct err *err) must_use;

enum event_type {
    EVENT_CREATED,
    EVENT_UPDATED,
    EVENT_PAUSED,
    EVENT_RESUMED,
    EVENT_CHECKPOINTED,
    EVENT_KILLED,
    EVENT_REFUSED,          /* connections out of the sandbox */
    EVENT_SNAPSHOT_DELETED, /* one that was made of it, because nobody has used it for long */
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

/* The number of a team's sandboxes that were created and killed in one step of time. */
struct event_count {
    int64_t step; /* counted from from_us, starting at 0 */
    uint64_t created, killed;
};
/* From from_us until now, in order; steps without either are left out. */
bool store_event_count(struct store *store, struct str team_id, int64_t from_us, int64_t step_us, struct arena *arena,
                       struct event_count **out, size_t *out_count, struct err *err) must_use;

/* The token that opens guestd: HMAC-SHA256 of the id, in hex. The key is a seed that was made with the store. */
enum { STORE_TOKEN_BYTES = 65 };
void store_access_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES]);
/* The signature of a link to upload an archive, derived in the same way; `expires` is a decimal number. */
void store_upload_token(const struct store *store, struct str team_id, struct str hash, struct str expires,
                        char room[STORE_TOKEN_BYTES]);
/* The token that opens the ports of a private sandbox, derived in the same way. */
void store_traffic_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES]);

/* ---- repeats: creates with an idempotency key ---- */

enum repeat_verdict {
    REPEAT_FIRST,   /* go ahead, then store_repeat_done() or store_repeat_forget() */
    REPEAT_RUNNING, /* the first request is still being worked on */
    REPEAT_DONE,    /* give the first answer again */
    REPEAT_LOST,    /* the server died in the middle of the first request */
    REPEAT_OTHER,   /* the key was used for another request */
};

/* The sandbox that the first request made. */
struct repeat_outcome {
    struct str sandbox_id, template_id, alias, guestd_version;
};

/* route and body together are the request. Keys are remembered for a day. */
bool store_repeat_begin(struct store *store, struct str team_id, struct str key, struct str route, struct str body,
                        struct arena *arena, enum repeat_verdict *out_verdict, struct repeat_outcome *out_outcome,
                        struct err *err) must_use;
bool store_repeat_done(struct store *store, struct str team_id, struct str key, const struct repeat_outcome *outcome,
                       struct err *err) must_use;
/* The request failed: the key may be used again. */
bool store_repeat_forget(struct store *store, struct str team_id, struct str key, struct err *err) must_use;

#endif
