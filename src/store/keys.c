/*
 * API keys. The text is "e2b_" and hex digits; the SHA-256 of the bytes that the digits stand for is stored and looked up.
 * A fast hash is enough because the bytes are random. A lookup by hash takes the same time however much of a guess is
 * right.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/mem.h"
#include "base/random.h"
#include "store/inside.h"

enum {
    KEY_MAX_BYTES = 64,       /* of a key made elsewhere */
    CACHE_FOR_MS = 30 * 1000, /* another server on the same database may revoke it */
    TOUCH_EVERY_US = 60 * 1000000,
};

#define KEY_PREFIX STR("e2b_")

struct cached_key {
    char hash[STORE_HASH_BYTES];
    struct key_owner owner;
    uint64_t until_ms;
    int64_t touched_us;
};

static bool key_hash(struct str text, char room[STORE_HASH_BYTES])
{
    unsigned char bytes[KEY_MAX_BYTES];
    size_t len;

    if (!str_skip(&text, KEY_PREFIX) || text.len == 0 || !hex_bytes(text, bytes, sizeof bytes, &len))
        return false;
    store_secret_hash(str_of(bytes, len), room);
    explicit_bzero(bytes, sizeof bytes);
    return true;
}

/* ---- the cache ---- */

void keys_init(struct store *store)
{
    pthread_mutex_init(&store->keys.lock, NULL);
    map_init(&store->keys.by_hash);
    map_init(&store->keys.by_id);
}

void keys_done(struct store *store)
{
    struct cached_key *key;

    for (size_t i = 0; (key = map_next(&store->keys.by_hash, &i));)
        free(key);
    map_done(&store->keys.by_hash);
    map_done(&store->keys.by_id);
    pthread_mutex_destroy(&store->keys.lock);
}

static void cache_drop(struct store *store, struct str key_id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->keys.lock);
    struct cached_key *key = map_remove(&store->keys.by_id, key_id);

    store->keys.changes++;
    if (key)
        map_remove(&store->keys.by_hash, str_from(key->hash));
    free(key);
}

static uint64_t cache_changes(struct store *store)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->keys.lock);

    return store->keys.changes;
}

static void cache_put(struct store *store, const char *hash, const struct key_owner *owner, uint64_t changes)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->keys.lock);
    struct cached_key *key = map_get(&store->keys.by_hash, str_from(hash));

    if (store->keys.changes != changes)
        return;
    if (!key) {
        key = NEW(struct cached_key);
        memcpy(key->hash, hash, sizeof key->hash);
        key->owner = *owner;
        map_put(&store->keys.by_hash, str_from(key->hash), key);
        map_put(&store->keys.by_id, str_from(key->owner.key_id), key);
    }
    key->until_ms = clock_mono_ms() + CACHE_FOR_MS;
}

bool store_key_cached(struct store *store, struct str text, struct key_owner *out)
{
    char hash[STORE_HASH_BYTES];

    if (!key_hash(text, hash))
        return false;
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->keys.lock);
    const struct cached_key *key = map_get(&store->keys.by_hash, str_from(hash));
    if (!key || clock_mono_ms() >= key->until_ms)
        return false;
    *out = key->owner;
    return true;
}

bool store_key_find(struct store *store, struct str text, struct key_owner *out, struct err *err)
{
    struct key_owner owner = { 0 };
    char hash[STORE_HASH_BYTES];
    uint64_t changes = cache_changes(store);
    bool there;

    if (!key_hash(text, hash))
        return err_set(err, ERR_DENIED, "that is not an API key: keys look like e2b_ and 40 hex digits");
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        auto_rows struct sql_rows rows = { 0 };
        if (!sql_select(store->sql, "SELECT id, team_id FROM api_keys WHERE hash = $1 AND revoked_us IS NULL",
                        SQL_ARGS(sql_text(str_from(hash))), &rows, err) ||
            !sql_next(&rows, &there, err))
            return err_wrap(err, "look a key up");
        if (!there)
            return err_set(err, ERR_DENIED, "the API key is unknown or was revoked");
        if (!str_to_path(sql_row_text(&rows, 0), owner.key_id, sizeof owner.key_id, err) ||
            !str_to_path(sql_row_text(&rows, 1), owner.team_id, sizeof owner.team_id, err))
            return err_wrap(err, "look a key up");
    }
    cache_put(store, hash, &owner, changes);
    *out = owner;
    return true;
}

bool store_key_touch(struct store *store, struct str key_id, struct err *err)
{
    int64_t now_us = clock_wall_us();

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->keys.lock);
        struct cached_key *key = map_get(&store->keys.by_id, key_id);
        if (!key || (now_us >= key->touched_us && now_us - key->touched_us < TOUCH_EVERY_US))
            return true;
        key->touched_us = now_us;
    }
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    return sql_exec(store->sql, "UPDATE api_keys SET last_used_us = $1 WHERE id = $2",
                    SQL_ARGS(sql_int(now_us), sql_text(key_id)), err) ||
           err_wrap(err, "note the use of a key");
}

/* ---- rows ---- */

#define KEY_SELECT                                                                                             \
    "SELECT k.id, k.team_id, k.name, k.mask_prefix, k.mask_suffix, k.created_us, k.last_used_us, t.slug FROM " \
    "api_keys k "                                                                                              \
    "JOIN teams t ON t.id = k.team_id WHERE k.revoked_us IS NULL AND "

static void key_read(const struct sql_rows *rows, struct arena *arena, struct key_row *out)
{
    *out = (struct key_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .team_id = arena_copy(arena, sql_row_text(rows, 1)),
        .name = arena_copy(arena, sql_row_text(rows, 2)),
        .mask_prefix = arena_copy(arena, sql_row_text(rows, 3)),
        .mask_suffix = arena_copy(arena, sql_row_text(rows, 4)),
        .created_us = sql_row_int(rows, 5),
        .last_used_us = sql_row_int(rows, 6),
        .team_slug = arena_copy(arena, sql_row_text(rows, 7)),
    };
}

/* The caller holds the lock and has begun. */
static bool key_get(struct store *store, struct str team_id, struct str key_id, struct arena *arena,
                    struct key_row *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, KEY_SELECT "k.id = $1 AND k.team_id = $2",
                    SQL_ARGS(sql_text(key_id), sql_text(team_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no API key '%.*s'", (int)MIN(key_id.len, (size_t)36), key_id.at);
    key_read(&rows, arena, out);
    return true;
}

static bool key_insert(struct store *store, const char *id, struct str team_id, struct str name, struct str text,
                       const char *hash, struct err *err)
{
    struct str digits = text;

    (void)str_skip(&digits, KEY_PREFIX); /* key_hash() has checked it */
    size_t shown = MIN(digits.len, (size_t)4);
    return sql_exec(store->sql,
                    "INSERT INTO api_keys (id, team_id, name, hash, mask_prefix, mask_suffix, created_us) "
                    "VALUES ($1, $2, $3, $4, $5, $6, $7)",
                    SQL_ARGS(sql_text(str_from(id)), sql_text(team_id), sql_text(name), sql_text(str_from(hash)),
                             sql_text(str_of(digits.at, MIN(digits.len, (size_t)2))),
                             sql_text(str_of(digits.at + digits.len - shown, shown)), sql_int(clock_wall_us())),
                    err);
}

bool store_key_add(struct store *store, struct str team_id, struct str name, struct arena *arena, struct key_row *out,
                   struct secret *out_text, struct err *err)
{
    unsigned char bytes[STORE_KEY_BYTES];
    char text[STORE_KEY_CHARS + 1] = "e2b_", id[STORE_UUID_BYTES], hash[STORE_HASH_BYTES];

    random_bytes(bytes, sizeof bytes);
    hex_text(str_of(bytes, sizeof bytes), text + KEY_PREFIX.len);
    store_secret_hash(str_of(bytes, sizeof bytes), hash);
    random_uuid(id);
    struct str whole = str_of(text, STORE_KEY_CHARS);

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a key");
    bool ok = key_insert(store, id, team_id, name, whole, hash, err) &&
              key_get(store, team_id, str_from(id), arena, out, err);
    ok = sql_end(store->sql, ok, err) && secret_set(out_text, whole);
    explicit_bzero(bytes, sizeof bytes);
    explicit_bzero(text, sizeof text);
    return ok || err_wrap(err, "add a key");
}

static bool hash_known(struct store *store, const char *hash, bool *out_known, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(store->sql, "SELECT 1 FROM api_keys WHERE hash = $1", SQL_ARGS(sql_text(str_from(hash))), &rows,
                      err) &&
           sql_next(&rows, out_known, err);
}

bool store_key_ensure(struct store *store, struct str team_id, struct str name, const struct secret *text,
                      struct err *err)
{
    char id[STORE_UUID_BYTES], hash[STORE_HASH_BYTES];
    bool known;

    if (!key_hash(secret_reveal(text), hash))
        return err_set(err, ERR_INVALID, "that is not an API key: keys look like e2b_ and 40 hex digits");
    random_uuid(id);

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!hash_known(store, hash, &known, err))
        return err_wrap(err, "ensure a key");
    if (known)
        return true;
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "ensure a key");
    bool ok = key_insert(store, id, team_id, name, secret_reveal(text), hash, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "ensure a key");
}

bool store_key_list(struct store *store, struct str team_id, struct arena *arena, struct key_row **out,
                    size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, KEY_SELECT "($1 = '' OR k.team_id = $1) ORDER BY k.created_us, k.id",
                       SQL_ARGS(sql_text(team_id)), &rows, err) &&
            ROWS_READ(&rows, key_read, arena, out, out_count, err)) ||
           err_wrap(err, "list keys");
}

bool store_key_rename(struct store *store, struct str team_id, struct str key_id, struct str name, struct arena *arena,
                      struct key_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "rename a key");
    bool ok =
        sql_exec(store->sql, "UPDATE api_keys SET name = $1 WHERE id = $2 AND team_id = $3 AND revoked_us IS NULL",
                 SQL_ARGS(sql_text(name), sql_text(key_id), sql_text(team_id)), err) &&
        key_get(store, team_id, key_id, arena, out, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "rename a key");
}

bool store_key_revoke(struct store *store, struct str team_id, struct str key_id, struct err *err)
{
    struct arena scratch;
    struct key_row row;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        if (!sql_begin(store->sql, SQL_DURABLE, err))
            return err_wrap(err, "revoke a key");
        arena_init(&scratch);
        bool ok = key_get(store, team_id, key_id, &scratch, &row, err) &&
                  sql_exec(store->sql, "UPDATE api_keys SET revoked_us = $1 WHERE id = $2",
                           SQL_ARGS(sql_int(clock_wall_us()), sql_text(key_id)), err);
        arena_done(&scratch);
        if (!sql_end(store->sql, ok, err))
            return err_wrap(err, "revoke a key");
    }
    /* After the commit: else a lookup in between would cache it again. */
    cache_drop(store, key_id);
    return true;
}
