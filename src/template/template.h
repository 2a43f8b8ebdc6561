/*
 * template.h - builds templates: runs the steps of a recipe in sandboxes, and keeps what they wrote as layers.
 *
 * One build is a job on a worker of the builder's own. Each step that is not in the cache runs in a new sandbox on the
 * layers so far, which is sealed afterwards: what it wrote is the next layer. A step that fails, is cancelled or takes too
 * long leaves nothing. The store has the build's row, its log and the cache; docs/templates.md says what a recipe does.
 *
 * Threads    Any worker. builder_start() and builder_cancel() do not wait for the build.
 * Failure    A build that fails is a row in state BUILD_ERROR with a reason. After a restart of front, builds that were
 *            under way have failed.
 */
#ifndef TEMPLATE_TEMPLATE_H
#define TEMPLATE_TEMPLATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/secret.h"
#include "base/str.h"
#include "store/store.h"

struct builder;
struct sandboxes;
struct store;
struct driver;
struct puller;
struct uploads;

struct builder_config {
    struct store *store;         /* borrowed, as all of these */
    struct sandboxes *sandboxes; /* that the steps run in */
    struct driver *driver;
    struct puller *puller; /* NULL: no images from registries */
    struct uploads *uploads;
    const char *guestd_version; /* for the rows */
    uint32_t disk_mb;           /* the same */
    bool internet;              /* the steps reach it: the operator's default for sandboxes */
    uint32_t at_once;           /* builds that run; more wait their turn. 0: LIMIT_BUILDS_AT_ONCE */
    uint32_t per_team;          /* builds that run or wait, of one team. 0: LIMIT_BUILDS_TEAM */
    uint64_t bytes;             /* on disk. 0: LIMIT_BUILD_BYTES */
    uint64_t bytes_of_team;     /* the same of one team. 0: LIMIT_BUILD_BYTES_TEAM */
};
/* Builds that a crash has cut off become errors. */
struct builder *builder_new(const struct builder_config *config, struct err *err) must_use;
void builder_free(struct builder *builder); /* cancels what runs, and waits for it; NULL is fine */
/* Cancels what runs and begins nothing more; does not wait. */
void builder_stop(struct builder *builder);
bool builder_is_busy(struct builder *builder); /* something runs */
/* On a worker, from time to time: drops some layers that nothing needs any more, also while builds run. True: there are more. */
bool builder_tidy(struct builder *builder);

struct pruned {
    uint64_t steps;  /* of the cache */
    uint64_t layers; /* that they and others have left without use… */
    uint64_t bytes;  /* …and what those take */
    uint64_t left;   /* layers that are not dropped yet: builder_tidy() does it */
};
/*
 * On a worker: drops the steps of the cache that no template, snapshot, sandbox or running build is on, and what nothing needs
 * any more, of a team or of all (empty). dry_run: only says what that would be. ERR_UNAVAILABLE: the server is stopping.
 */
bool builder_prune(struct builder *builder, struct str team_id, bool dry_run, struct pruned *out, struct err *err)
    must_use;

struct download_total {
    uint64_t count, bytes; /* of images, as puller_stock() tells */
};

/* ---- recipes ---- */

enum step_type { STEP_COPY, STEP_RUN, STEP_USER, STEP_WORKDIR, STEP_ENV, STEP_UNKNOWN };
struct build_step {
    enum step_type type;
    struct str type_text; /* as the client wrote it: for the log */
    uint32_t arg_count;
    const struct str *args;
    bool force;
    struct str files_hash; /* of COPY: 64 hex digits of an upload; else empty */
};
/* How to get at an image. The secrets are wiped when the build is over, and are never logged or stored. */
struct registry_login {
    enum { LOGIN_NONE, LOGIN_BASIC, LOGIN_AWS, LOGIN_GCP } kind;
    struct str user, password;      /* BASIC */
    struct str key_id, key, region; /* AWS */
    struct str account;             /* GCP: JSON text */
};
enum build_dialect {
    DIALECT_2_1, /* steps run as `user` unless they say otherwise; the last USER and WORKDIR are the sandbox's defaults */
    DIALECT_2_0, /* SDKs before 2.3.0: steps run as root; sandboxes begin as `user` */
};
struct build_want {
    struct str build_id, template_id, team_id;
    enum build_dialect dialect;
    struct str from_image; /* one of these: an image reference… */
    struct str from_build; /* …or the id of a ready build */
    struct str from_text;  /* how the client named the template: for the log */
    /*
     * …or an archive of an image that was uploaded: its hash, and which image of it (empty: there is just one).
     */
    struct str from_archive, archive_image;
    /*
     * A snapshot of the team, by the id of its template and its tag (empty: default), or the layers of a template that
     * has no builds, such as `base`: in place of both. With from_image it is what the image stands for unless the image
     * map says otherwise: `e2bdev/base`.
     */
    struct str from_snapshot, from_tag;
    uint32_t from_layer_count;
    const struct str *from_layers;
    struct str from_error; /* why there is none of these: the build fails with it. Empty: there is */
    struct registry_login login;
    bool force;
    struct str start_cmd, ready_cmd; /* empty: as the template that it is from has them */
    uint32_t step_count;
    const struct build_step *steps;
    uint32_t cpu_count, memory_mb;
};
/*
 * Copies what it needs. The row must be in state BUILD_WAITING and is BUILD_BUILDING when this returns. Builds of the same
 * template with one of the same tags are cancelled. ERR_CONFLICT: not waiting. ERR_LIMIT: too many builds of this team.
 */
bool builder_start(struct builder *builder, const struct build_want *want, struct err *err) must_use;

/* ---- builds that a tag means no more: replaced.c ---- */

struct replaced {
    struct build_row *builds;
    uint32_t count;
};
/* Before a change of tags: the ready builds that they mean. */
struct replaced replaced_find(struct store *store, struct str template_id, const struct str *tags, uint32_t count,
                              struct arena *arena);
/* After it: the pool makes no more sandboxes of them. build_id: what the tags mean now; empty: nothing. */
void replaced_retire(const struct replaced *replaced, struct sandboxes *sandboxes, struct str build_id);
/* Fine if there is no such build, or not any more. It is over soon after. */
void builder_cancel(struct builder *builder, struct str build_id, const char *why);

/* ---- start.c: the start command of a template ---- */

struct start_want {
    struct str sandbox_id;
    struct str start_cmd, ready_cmd; /* at least one */
    struct build_context context;    /* that they run in */
    uint64_t until_ms;               /* clock_mono_ms() */
};
/*
 * For a create from a build whose processes are not in an image: returns when the template is ready; what was started runs
 * on. ERR_INVALID: the start command has failed; ERR_TIMEOUT: it is not ready in time; ERR_UNAVAILABLE: the sandbox is gone.
 */
bool template_start(struct sandboxes *sandboxes, const struct start_want *want, struct err *err) must_use;

/* ---- uploads.c: archives for COPY ---- */

/*
 * What clients have uploaded, by team and hash: a cache on disk. A client asks whether an archive is there and uploads it if
 * not, so one that was not used for LIMIT_UPLOAD_KEPT_S may go at any time. Any worker; nothing here waits but for the disk.
 */
struct uploads;
struct upload_caps {
    uint64_t bytes;         /* of all teams; 0: LIMIT_UPLOADS_BYTES */
    uint64_t bytes_of_team; /* 0: LIMIT_UPLOADS_TEAM_BYTES */
    uint32_t count_of_team; /* 0: LIMIT_UPLOADS_TEAM */
};
/* Takes the directory. Removes what was half-written when the process before has ended. */
struct uploads *uploads_new(int dir_fd, const struct upload_caps *caps, struct err *err) must_use;
void uploads_free(struct uploads *uploads); /* NULL is fine; before it, every upload has been kept or dropped */
/* Removes what was not used for long. Also done by upload_begin(). */
void uploads_sweep(struct uploads *uploads);
struct upload_total {
    uint64_t count, bytes;
};
/* What there is, of a team or of all (empty). */
struct upload_total uploads_total(struct uploads *uploads, struct str team_id);
/* Removes those that no client has asked for and no build has used for LIMIT_UPLOAD_BUSY_S. dry_run: only says how many. */
struct upload_total uploads_prune(struct uploads *uploads, struct str team_id, bool dry_run);

/* Free bytes of the file system that uploads, layers and sandboxes are on; beyond what is the server's own. */
bool uploads_room(const struct uploads *uploads, uint64_t *out_bytes, struct err *err) must_use;

/* Is it there? Then it stays for LIMIT_UPLOAD_BUSY_S, if its time is not over. hash: 64 hex digits; else it is not there. */
bool upload_exists(struct uploads *uploads, struct str team_id, struct str hash);
/* To read from; the caller's to close. It can be read whatever happens to the name. ERR_NOT_FOUND. */
bool upload_open(struct uploads *uploads, struct str team_id, struct str hash, int *out_fd, uint64_t *out_size,
                 struct err *err) must_use;

/* One that is being written, by one thread at a time. */
struct upload;
/* Of exactly this size. ERR_LIMIT: too large, or no room; ERR_INVALID: not a hash, or empty. */
bool upload_begin(struct uploads *uploads, struct str team_id, struct str hash, uint64_t size, struct upload **out,
                  struct err *err) must_use;
/* ERR_INVALID past its size. After a failure only upload_drop() is of use. */
bool upload_write(struct upload *upload, struct str bytes, struct err *err) must_use;
/* Gives it its name, in place of one with the same; frees it, also on failure. ERR_INVALID if bytes are missing. */
bool upload_keep(struct upload *upload, struct err *err) must_use;
void upload_drop(struct upload *upload); /* removes and frees it; NULL is fine */

#endif
