/*
 * inside.h - the store as its own files see it.
 */
#ifndef STORE_INSIDE_H
#define STORE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "base/lock.h"
#include "base/map.h"
#include "store/sql.h"
#include "store/store.h"

enum { SEED_BYTES = 32 };

/* One numbered file of migrations/, embedded by embed.py. */
struct migration {
    int version;
    const char *name;
    const char *script;
};
extern const struct migration migrations[];
extern const int migration_count;

/*
 * Keys that were found, so that the next request with the same key costs no query. Its lock is held for a map lookup,
 * never across a query, so that a loop may ask.
 */
struct key_cache {
    pthread_mutex_t lock;
    struct map by_hash, by_id; /* the same entries */
    uint64_t changes;          /* revocations so far: a lookup that overlapped one is not cached */
};

/* The same for keys of mail, which change rarely: any change empties it. */
struct mail_key_cache {
    pthread_mutex_t lock;
    struct map by_hash;
    uint64_t changes;
};

/* See found.c. Its lock is never held across a query. */
struct found_cache {
    pthread_mutex_t lock;
    uint64_t version; /* of the store; all below is what was found at that version */
    struct map by_name;
    char team_id[STORE_UUID_BYTES]; /* empty: none */
    uint64_t team_until_ms;
};

struct store {
    pthread_mutex_t lock; /* around sql */
    struct sql *sql;
    struct key_cache keys;
    struct mail_key_cache mail_keys;
    struct found_cache found;
    _Atomic uint64_t version; /* see found.c */
    unsigned char seed[SEED_BYTES];
    char node_id[LIMIT_ID_BYTES];
    char default_team[STORE_UUID_BYTES];
    int64_t last_event_us; /* each event gets a later time than the one before, so that their order is known */
    uint64_t tidied_ms;    /* clock_mono_ms() of the last sweep; 0: none yet */
};

/* SHA-256 of the parts in hex; each part is preceded by its length, so that {"ab"} and {"a", "b"} differ. */
void hash_parts(const struct str *parts, size_t count, char room[STORE_HASH_BYTES]);

/* With the lock held, in whatever transaction there is. NULL is fine. */
bool event_insert(struct store *store, const struct event_row *event, struct err *err) must_use;

/* Makes the default team if there is none, and remembers its id. */
bool teams_load(struct store *store, struct err *err) must_use;
void keys_init(struct store *store);
void keys_done(struct store *store);
void mail_keys_init(struct store *store);
void mail_keys_done(struct store *store);
void found_init(struct store *store);
void found_watch(struct store *store); /* once sql is there */
void found_done(struct store *store);
/* Reads the time of the last event. */
bool events_load(struct store *store, struct err *err) must_use;
/* Marks this node's running repeats as lost: their server has ended. */
bool repeats_load(struct store *store, struct err *err) must_use;
/* Drops old events and repeats, once an hour; inside a transaction. */
bool tidy(struct store *store, struct err *err) must_use;

/* Drops the logs of builds that have ended long ago. */
bool build_lines_tidy(struct store *store, int64_t now_us, struct err *err) must_use;

/* One text of at most one row; with the lock held. */
bool ask_text(struct store *store, const char *query, const struct sql_value *args, size_t count, struct arena *arena,
              struct str *out, bool *out_there, struct err *err) must_use;
/* One number, 0 without a row; with the lock held. */
bool ask_number(struct store *store, const char *query, const struct sql_value *args, size_t count, uint64_t *out,
                struct err *err) must_use;
/* For ROWS_READ: the first column. */
void text_read(const struct sql_rows *rows, struct arena *arena, struct str *out);
/*
 * With the lock held. ERR_CONFLICT if sandboxes of its team are based on this template; it names some of them. Those of other
 * teams, and those in which steps of its builds run, do not count: they hold on to their layers themselves.
 */
bool template_unused(struct store *store, struct str template_id, struct str team_id, struct arena *scratch,
                     struct err *err) must_use;

/* builds.c: for build_tags.c and build_steps.c. */
#define BUILD_COLUMNS                                                                                         \
    "b.id, b.template_id, b.team_id, b.state, b.reason, b.reason_step, b.cpu_count, b.memory_mb, b.disk_mb, " \
    "b.guestd_version, b.created_us, b.updated_us, b.finished_us, b.tags, b.layers, b.image, b.run_user, "    \
    "b.run_workdir, b.run_envs, b.start_cmd, b.ready_cmd, b.start_user, b.start_workdir, b.start_envs, "      \
    "b.from_template"
void build_read(const struct sql_rows *rows, struct arena *arena, struct build_row *out);
/* At most one row; *out_there says whether. */
bool build_find(struct store *store, const char *query, const struct sql_value *args, size_t count, struct arena *arena,
                struct build_row *out, bool *out_there, struct err *err) must_use;
/* A text of items separated by commas, and back. */
const struct str *list_split(struct str text, struct arena *arena, uint32_t *out_count);
struct str list_join(const struct str *items, uint32_t count, struct arena *arena);
/* build_tags.c: adds assignments; inside a transaction. */
bool tags_write(struct store *store, struct str template_id, struct str build_id, const struct str *tags,
                uint32_t count, struct err *err) must_use;
/* build_tags.c: the tags that a build was registered with mean it now, those apart that mean a newer one; inside a transaction. */
bool tags_ready(struct store *store, struct str build_id, struct err *err) must_use;
/* build_steps.c: the driver keeps something for us. Without an id it is nothing. */
struct kept_row {
    struct str id, team_id, step;
    uint64_t bytes, layer_bytes;
};
bool kept_write(struct store *store, const struct kept_row *row, struct err *err) must_use;
/*
 * build_steps.c: puts the layers of all rows of this node into the map, by id: builds, snapshots, sandboxes, and if wanted, the
 * cache. Keys are in the arena.
 */
bool note_holders(struct store *store, bool with_steps, struct map *used, struct arena *arena, struct err *err)
    must_use;
void note_ids(struct map *used, struct str list, struct arena *arena); /* ids, separated by commas */

/*
 * All rows that are left, by read(rows, arena, row), into an array in the arena that doubles as it fills. False and nothing
 * given out if one of them could not be had.
 */
#define ROWS_READ(rows, read, arena, out, out_count, err)                                   \
    ({                                                                                      \
        __typeof__(*(out)) list_ = NULL;                                                    \
        size_t count_ = 0, room_ = 0;                                                       \
        bool there_, fine_;                                                                 \
        while ((fine_ = sql_next((rows), &there_, (err))) && there_) {                      \
            if (count_ == room_) {                                                          \
                room_ = room_ ? room_ * 2 : 16;                                             \
                __typeof__(list_) more_ = arena_alloc_array((arena), room_, sizeof *list_); \
                if (count_)                                                                 \
                    memcpy(more_, list_, count_ * sizeof *list_);                           \
                list_ = more_;                                                              \
            }                                                                               \
            read((rows), (arena), &list_[count_++]);                                        \
        }                                                                                   \
        if (fine_) {                                                                        \
            *(out) = list_;                                                                 \
            *(out_count) = count_;                                                          \
        }                                                                                   \
        fine_;                                                                              \
    })

#endif
