/*
 * Templates that names were found to mean, so that the next create with the same name costs no query: there are eight for a
 * template that all teams share. And the last team that was found to be there.
 *
 * What is kept counts for one version of the store. A change of any row moves the version on, those apart of the tables in
 * `apart`, which a search never reads and which creates and builds write all the time. A version is taken before the search, which needs
 * the store's lock for each query, and a change moves it on under that lock, before its commit. So a search that has seen
 * anything of a change, or only a part of it, is kept for a version that is over or belongs to the change.
 *
 * Another program that writes to the database does not move the version on. KEEP_MS is for that.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/inside.h"

enum {
    KEEP_MS = 5000,
    FOUND_MOST = 256, /* names; if there are more, all are forgotten */
    KEY_BYTES = 256,  /* a longer name is not kept */
};

struct found {
    struct arena arena; /* of all below */
    struct str key;
    struct template_row row;
    uint64_t until_ms;
};

static const char *const apart[] = { "sandboxes",   "events",       "repeats",   "api_keys",
                                     "build_lines", "cached_steps", "mail_rates" };

static void on_change(void *context, const char *table)
{
    struct store *store = context;

    for (size_t i = 0; i < COUNT_OF(apart); i++)
        if (strcmp(table, apart[i]) == 0)
            return;
    atomic_fetch_add(&store->version, 1);
}

/* With its lock held. */
static void forget_all(struct found_cache *cache)
{
    struct found *found;

    for (size_t i = 0; (found = map_next(&cache->by_name, &i));) {
        arena_done(&found->arena);
        free(found);
    }
    map_done(&cache->by_name);
    map_init(&cache->by_name);
    cache->team_id[0] = 0;
}

void found_init(struct store *store)
{
    pthread_mutex_init(&store->found.lock, NULL);
    map_init(&store->found.by_name);
}

void found_watch(struct store *store)
{
    sql_on_change(store->sql, on_change, store);
}

void found_done(struct store *store)
{
    forget_all(&store->found);
    map_done(&store->found.by_name);
    pthread_mutex_destroy(&store->found.lock);
}

uint64_t store_version(struct store *store)
{
    return atomic_load(&store->version);
}

/* With its lock held. What it has is of this version from here on; false: of a later one. */
static bool be_of_version(struct found_cache *cache, uint64_t version)
{
    if (cache->version > version)
        return false;
    if (cache->version < version)
        forget_all(cache);
    cache->version = version;
    return true;
}

/* A team's id has no slash. Empty: too long. */
static struct str key_of(struct str team_id, struct str name, char room[KEY_BYTES])
{
    if (team_id.len + 1 + name.len > KEY_BYTES)
        return STR("");
    size_t len = 0;
    for (size_t i = 0; i < team_id.len; i++)
        room[len++] = team_id.at[i];
    room[len++] = '/';
    for (size_t i = 0; i < name.len; i++)
        room[len++] = name.at[i];
    return str_of(room, len);
}

static const struct str *copy_texts(struct arena *arena, const struct str *texts, uint32_t count)
{
    struct str *copies = ARENA_ARRAY(arena, struct str, count);

    for (uint32_t i = 0; i < count; i++)
        copies[i] = arena_copy(arena, texts[i]);
    return copies;
}

/* Of a row as the store reads it. */
static struct template_row copy_row(struct arena *arena, const struct template_row *row)
{
    struct template_row copy = *row;

    copy.id = arena_copy(arena, row->id);
    copy.team_id = arena_copy(arena, row->team_id);
    copy.guestd_version = arena_copy(arena, row->guestd_version);
    copy.layers = copy_texts(arena, row->layers, row->layer_count);
    copy.aliases = copy_texts(arena, row->aliases, row->alias_count);
    return copy;
}

bool store_found_get(struct store *store, struct str team_id, struct str name, struct arena *arena,
                     struct template_row *out)
{
    char room[KEY_BYTES];
    struct str key = key_of(team_id, name, room);
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->found.lock);

    if (!key.len || !be_of_version(&store->found, store_version(store)))
        return false;
    const struct found *found = map_get(&store->found.by_name, key);
    if (!found || found->until_ms < clock_mono_ms())
        return false;
    *out = copy_row(arena, &found->row);
    return true;
}

static void drop(struct found_cache *cache, struct str key)
{
    struct found *old = map_remove(&cache->by_name, key);

    if (!old)
        return;
    arena_done(&old->arena);
    free(old);
}

void store_found_keep(struct store *store, uint64_t version, struct str team_id, struct str name,
                      const struct template_row *row)
{
    struct found_cache *cache = &store->found;
    char room[KEY_BYTES];
    struct str key = key_of(team_id, name, room);
    auto_unlock pthread_mutex_t *held = lock_mutex(&cache->lock);

    if (!key.len || !be_of_version(cache, version))
        return;
    if (cache->by_name.count >= FOUND_MOST)
        forget_all(cache);
    drop(cache, key);
    struct found *found = NEW(struct found);
    arena_init(&found->arena);
    found->key = arena_copy(&found->arena, key);
    found->row = copy_row(&found->arena, row);
    found->until_ms = clock_mono_ms() + KEEP_MS;
    (void)map_put(&cache->by_name, found->key, found);
}

/* ---- teams ---- */

static bool team_was_there(struct store *store, uint64_t version, struct str id)
{
    struct found_cache *cache = &store->found;
    auto_unlock pthread_mutex_t *held = lock_mutex(&cache->lock);

    return be_of_version(cache, version) && id.len && str_eq(str_from(cache->team_id), id) &&
           cache->team_until_ms >= clock_mono_ms();
}

bool store_team_is_there(struct store *store, struct str id, struct err *err)
{
    uint64_t version = store_version(store);
    struct found_cache *cache = &store->found;
    struct team_row team;
    struct arena arena;

    if (team_was_there(store, version, id))
        return true;
    arena_init(&arena);
    bool ok = store_team_get(store, id, &arena, &team, err);
    arena_done(&arena);
    if (!ok)
        return false;
    auto_unlock pthread_mutex_t *held = lock_mutex(&cache->lock);
    if (id.len < sizeof cache->team_id && be_of_version(cache, version)) {
        memcpy(cache->team_id, id.at, id.len);
        cache->team_id[id.len] = 0;
        cache->team_until_ms = clock_mono_ms() + KEEP_MS;
    }
    return true;
}
