/*
 * inside.h - one build as the files of this folder see it.
 *
 * A build has one thread, and everything here is that thread's, except what stands under "the builder's lock".
 */
#ifndef TEMPLATE_INSIDE_H
#define TEMPLATE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/attr.h"
#include "base/fd.h"
#include "base/lock.h"
#include "base/map.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "template/pull.h"
#include "template/template.h"

enum {
    KEY_BYTES = 65,      /* 64 hex digits and a zero byte */
    BUILD_LOOK_MS = 100, /* between looks whether it was cancelled; also how long a log line waits for others */
    BUILD_REASON_BYTES = 2000,
    BUILD_LINES = 100, /* of the log that are written together */
};

/* What the steps so far have left: files as layers, and settings for the next step. */
struct chain {
    char key[KEY_BYTES];
    uint32_t layer_count;
    const struct str *layers; /* lowest first */
    struct str user;          /* empty: root */
    struct str workdir;       /* empty: the user's home */
    uint32_t env_count;
    struct pair *envs; /* in the order in which they were set */
};

/* Lines that are not in the store yet. */
struct build_log {
    struct arena arena;
    struct build_line lines[BUILD_LINES];
    uint32_t count;
    uint64_t since_ms; /* of the first */
    uint64_t bytes; /* of all lines so far: past LIMIT_BUILD_LOG_BYTES the store keeps none, so none is given to it */
    bool is_gone;   /* the build has no row any more */
};

struct build {
    struct builder *builder;
    struct arena arena;
    struct build_want want; /* a copy, in the arena */
    uint64_t until_ms;
    uint64_t image_bytes; /* of the image's layers that it begins with, until a step in the cache has them */
    struct build_log log;
    struct chain chain;
    struct map held;   /* layers that it is on: struct hold of sweep.c */
    bool is_forced;    /* from here on nothing is taken from the cache */
    struct str text;   /* of the present step, as its author wrote it: what its layer is said to be made by */
    char step[16];     /* as the reason names it: "base", "1", "finalize" */
    char prefix[32];   /* of lines about the step: "builder 1/2" */
    struct str reason; /* why it has failed */
    /* Of the template that it is from: */
    struct str from_template; /* its id, if it is one that was built */
    struct str from_kept;     /* its own layer, if it is a snapshot */
    struct str start_cmd, ready_cmd;
    struct chain start_chain; /* that they run in: only its user, workdir and envs */

    atomic_bool is_cancelled;

    /* Under the builder's lock. */
    struct build *next;
    bool is_beginning; /* builder_start() has it: it has a place, and no turn yet */
    bool is_running;
    int64_t began_us; /* its turn */
    char why[160];    /* it was cancelled */
};

/* Layers that builds are on, and those that are about to be dropped: sweep.c. */
struct holds {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* one was dropped */
    struct map by_id;
};

struct builder {
    struct builder_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a build has ended, a key is free */
    struct build *builds;   /* that wait or run, oldest first */
    uint32_t running;
    struct map busy; /* keys that a build makes: team and key */
    bool is_stopping, is_sweeping;
    uint32_t prunes;    /* under way */
    struct holds holds; /* its lock is never taken with the one above held */
};

/* ---- builder.c ---- */

/* False: it was cancelled, or its time is over; the reason is set. */
bool build_goes_on(struct build *build) must_use;
/* Sets the reason, unless there is one. Always false. */
bool build_fail(struct build *build, const char *format, ...) printf_like(2, 3);
/* The same for an error of ours. */
bool build_fail_err(struct build *build, const struct err *err);

/* ---- log.c ---- */

void log_begin(struct build *build);
void log_done(struct build *build); /* writes what is left */
/* "text" as a line of the present step. */
void build_say(struct build *build, enum build_level level, const char *format, ...) printf_like(3, 4);
/* What a command prints: "[builder 1/2] [stdout]: text", a line at a time. */
struct lines {
    struct build *build;
    const char *prefix;
    enum build_level level;
    struct buf rest[2]; /* of a line that has not ended, of each stream */
};
struct lines lines_of(struct build *build, const char *prefix, enum build_level level);
void lines_take(struct lines *lines, enum run_stream stream, struct str bytes);
void lines_done(struct lines *lines); /* says what is left */
struct str trim_all(struct str text); /* ends of lines, too */
void log_flush(struct build *build);
void log_tick(struct build *build); /* writes lines that have waited long enough */

/* ---- cache.c ---- */

/* SHA-256 over the parts, each with its length. */
void key_of(char out[KEY_BYTES], const struct str *parts, size_t count);
/*
 * Waits until no other build makes this key. A hit is then in the build's chain, with this key. Without one the caller makes
 * it, and ends with cache_keep() or cache_leave(). False: the build is over.
 */
bool cache_begin(struct build *build, const char *key, bool *out_hit) must_use;
/* The chain, whose key this is, is what the step has made. kept: its layer, or NULL. */
bool cache_keep(struct build *build, const struct kept *kept) must_use;
void cache_leave(struct build *build, const char *key);
/* Is there room for so many bytes more on disk? Old steps of the team go for it. False: the build has failed. */
bool cache_room(struct build *build, uint64_t bytes) must_use;
/* Only waits until no other build of the team has the key; _leave() ends it. False: the build is over. */
bool cache_take(struct build *build, const char *key) must_use;

/* An environment as a JSON object, and back. False: it is too large; the build has failed. */
bool envs_text(struct build *build, const struct chain *chain, struct arena *arena, struct str *out_text) must_use;
bool envs_read(struct str text, struct arena *arena, struct chain *out, struct err *err) must_use;
/* Gives the chain an array of its own, with room for so many more: chains before it may have the old one. */
void envs_own(struct chain *chain, struct arena *arena, uint32_t more);
void envs_set(struct chain *chain, struct arena *arena, struct str name, struct str value); /* there is room */
/* The same in the build's chain. False, and nothing is copied: it would be larger than an environment may be. */
bool build_env(struct build *build, struct str name, struct str value) must_use;

/* ---- sweep.c: what builds are on, and what can be dropped ---- */

void holds_init(struct holds *holds);
void holds_done(struct holds *holds);
/* With the lock of holds held: the build is on these until it ends. Waits for those that are being dropped. */
void layers_hold(struct build *build, const struct str *layers, uint32_t count);
/* With the lock held: is a build on it, or is it being dropped? The context is the builder. */
bool layer_is_held(void *context, struct str id);
/* With the lock held: the first ones, at most so many, that nobody holds are doomed. They are moved to the front of ids. */
size_t layers_doom(struct builder *builder, struct str *ids, size_t count, size_t most) must_use;
/*
 * Drops what is doomed, until then (clock_mono_ms()). The rest stays for another time. One that cannot be dropped is in the
 * way of no other: *err is the first one's.
 */
bool layers_drop(struct builder *builder, const struct str *ids, size_t count, uint64_t until_ms, size_t *out_dropped,
                 struct err *err) must_use;
/* The build is on nothing any more. */
void build_let_go(struct build *build);
/* Drops what nothing needs. True: there is more of it. */
bool unused_sweep(struct builder *builder);

/* ---- work.c: a sandbox for a step ---- */

struct workplace {
    struct build *build;
    struct str id; /* of the sandbox; empty: there is none */
};
bool workplace_open(struct workplace *place, struct build *build) must_use;
/* What was written becomes a layer of the chain. The sandbox is gone, also on failure. */
bool workplace_seal(struct workplace *place, struct kept *out) must_use;
void workplace_close(struct workplace *place); /* ends it; fine if there is none */

struct command {
    struct str user, workdir, text;
    struct str shell;         /* empty: bash */
    const struct chain *envs; /* whose environment it has; NULL: none */
    bool is_quiet;            /* what it prints has the level of details */
    uint64_t most_ms;         /* 0: as long as the build may take */
};
/* Until it ends. captured: NULL, or a buf with a cap, of which stdout is at most so long. False: the build is over. */
bool workplace_run(struct workplace *place, const struct command *command, struct buf *captured, struct run_result *out)
    must_use;
/* What `$NAME` in it stands for, by a login shell. Without a `$` the text itself, and no sandbox is needed. */
bool workplace_expand(struct workplace *place, struct str text, struct str *out) must_use;
/* The environment that a command gets: the chain's, with a PATH that reaches the system's programs. */
const struct pair *chain_envs(const struct chain *chain, struct arena *arena);

/* ---- steps.c ---- */

bool run_steps(struct build *build) must_use;
/* USER `user` with sudo, as every build has it before its steps. */
bool run_default_user(struct build *build) must_use;

/* ---- base.c ---- */

bool run_base(struct build *build) must_use;
/* False: it is on a snapshot, which was deleted before a layer of the build was on top of it. The build has failed. */
bool base_is_there(struct build *build) must_use;
extern const char template_provision_sh[]; /* embedded at build time */

/* ---- finalize.c ---- */

bool run_finalize(struct build *build, struct build_row *row) must_use;

#endif
