#include "store/store.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "store/inside.h"

static const int64_t DAY_US = INT64_C(86400) * 1000000;
enum { TIDY_EVERY_MS = 3600 * 1000, EVENT_DAYS = 7, REPEAT_DAYS = 1 };

void store_secret_hash(struct str secret, char room[STORE_HASH_BYTES])
{
    unsigned char hash[crypto_hash_sha256_BYTES];

    crypto_hash_sha256(hash, (const unsigned char *)secret.at, secret.len);
    hex_text(str_of(hash, sizeof hash), room);
}

void hash_parts(const struct str *parts, size_t count, char room[STORE_HASH_BYTES])
{
    crypto_hash_sha256_state state;
    unsigned char hash[crypto_hash_sha256_BYTES];

    crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < count; i++) {
        uint64_t len = parts[i].len;
        crypto_hash_sha256_update(&state, (const unsigned char *)&len, sizeof len);
        crypto_hash_sha256_update(&state, (const unsigned char *)parts[i].at, parts[i].len);
    }
    crypto_hash_sha256_final(&state, hash);
    hex_text(str_of(hash, sizeof hash), room);
}

void store_access_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES])
{
    unsigned char mac[crypto_auth_hmacsha256_BYTES];

    crypto_auth_hmacsha256(mac, (const unsigned char *)sandbox_id.at, sandbox_id.len, store->seed);
    hex_text(str_of(mac, sizeof mac), room);
}

void store_traffic_token(const struct store *store, struct str sandbox_id, char room[STORE_TOKEN_BYTES])
{
    crypto_auth_hmacsha256_state state;
    unsigned char mac[crypto_auth_hmacsha256_BYTES];

    /* Ids have no colon: no access token is the traffic token of another id. */
    crypto_auth_hmacsha256_init(&state, store->seed, sizeof store->seed);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)"traffic:", 8);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)sandbox_id.at, sandbox_id.len);
    crypto_auth_hmacsha256_final(&state, mac);
    hex_text(str_of(mac, sizeof mac), room);
}

void store_upload_token(const struct store *store, struct str team_id, struct str hash, struct str expires,
                        char room[STORE_TOKEN_BYTES])
{
    const struct str parts[] = { STR("upload"), team_id, hash, expires };
    crypto_auth_hmacsha256_state state;
    unsigned char mac[crypto_auth_hmacsha256_BYTES];

    crypto_auth_hmacsha256_init(&state, store->seed, sizeof store->seed);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        /* The colon after "upload" is in no sandbox id, and none of the parts has one. */
        crypto_auth_hmacsha256_update(&state, (const unsigned char *)parts[i].at, parts[i].len);
        crypto_auth_hmacsha256_update(&state, (const unsigned char *)":", 1);
    }
    crypto_auth_hmacsha256_final(&state, mac);
    hex_text(str_of(mac, sizeof mac), room);
}

bool ask_text(struct store *store, const char *query, const struct sql_value *args, size_t count, struct arena *arena,
              struct str *out, bool *out_there, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(store->sql, query, args, count, &rows, err) || !sql_next(&rows, out_there, err))
        return false;
    *out = *out_there ? arena_copy(arena, sql_row_text(&rows, 0)) : STR("");
    return true;
}

bool ask_number(struct store *store, const char *query, const struct sql_value *args, size_t count, uint64_t *out,
                struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, query, args, count, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    *out = there ? (uint64_t)sql_row_int(&rows, 0) : 0;
    return true;
}

void text_read(const struct sql_rows *rows, struct arena *arena, struct str *out)
{
    *out = arena_copy(arena, sql_row_text(rows, 0));
}

/* ---- opening ---- */

static bool schema_version(struct sql *sql, int64_t *out_version, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(sql, "SELECT MAX(version) FROM schema_version", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    *out_version = there ? sql_row_int(&rows, 0) : 0;
    return true;
}

static bool apply(struct sql *sql, const struct migration *migration, struct err *err)
{
    return (sql_script(sql, migration->script, err) &&
            sql_exec(sql, "INSERT INTO schema_version (version, applied_us) VALUES ($1, $2)",
                     SQL_ARGS(sql_int(migration->version), sql_int(clock_wall_us())), err)) ||
           err_wrap(err, "migration %s", migration->name);
}

/* All or nothing: a store is never left between two schemas. */
static bool migrate(struct sql *sql, struct err *err)
{
    int64_t version = 0;

    if (!sql_begin(sql, SQL_DURABLE, err))
        return false;
    bool ok =
        sql_script(sql,
                   "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY, applied_us BIGINT NOT NULL)",
                   err) &&
        schema_version(sql, &version, err);
    if (ok && version > migration_count)
        ok = err_set(err, ERR_CONFLICT,
                     "the store was written by a newer Cloister (schema %d, this one knows %d): update Cloister or use "
                     "another data directory",
                     (int)version, migration_count);
    for (int i = 0; ok && i < migration_count; i++)
        ok = migrations[i].version <= version || apply(sql, &migrations[i], err);
    return sql_end(sql, ok, err);
}

/* The seed is made with the store: derived tokens stay the same across restarts and are written nowhere. */
static bool seed_load(struct store *store, struct err *err)
{
    char text[2 * SEED_BYTES + 1];
    unsigned char fresh[SEED_BYTES];
    size_t len;
    bool there;

    random_bytes(fresh, sizeof fresh);
    hex_text(str_of(fresh, sizeof fresh), text);
    if (!sql_exec(store->sql,
                  "INSERT INTO settings (name, value) VALUES ('token_seed', $1) ON CONFLICT (name) DO NOTHING",
                  SQL_ARGS(sql_text(str_from(text))), err))
        return false;
    auto_rows struct sql_rows rows = { 0 };
    if (!sql_select(store->sql, "SELECT value FROM settings WHERE name = 'token_seed'", SQL_NO_ARGS, &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    if (!there || !hex_bytes(sql_row_text(&rows, 0), store->seed, sizeof store->seed, &len) || len != SEED_BYTES)
        return err_set(err, ERR_INTERNAL, "the store's token seed is damaged: restore a copy of the store");
    return true;
}

/* Rows from before there were nodes: the only server of the store has made them, and that is this one. */
static bool claim_rows(struct store *store, struct err *err)
{
    struct str node_id = str_from(store->node_id);

    return sql_exec(store->sql, "UPDATE sandboxes SET node_id = $1 WHERE node_id = ''", SQL_ARGS(sql_text(node_id)),
                    err) &&
           sql_exec(store->sql, "UPDATE templates SET node_id = $1 WHERE node_id = ''", SQL_ARGS(sql_text(node_id)),
                    err) &&
           sql_exec(store->sql, "UPDATE repeats SET node_id = $1 WHERE node_id = ''", SQL_ARGS(sql_text(node_id)), err);
}

static bool load(struct store *store, struct err *err)
{
    if (!migrate(store->sql, err) || !sql_begin(store->sql, SQL_DURABLE, err))
        return false;
    bool ok = claim_rows(store, err) && seed_load(store, err) && teams_load(store, err) && events_load(store, err) &&
              repeats_load(store, err);
    return sql_end(store->sql, ok, err);
}

struct store *store_open(const char *path, struct str node_id, struct err *err)
{
    assert(node_id.len > 0 && node_id.len < LIMIT_ID_BYTES);
    if (sodium_init() < 0) {
        (void)err_set(err, ERR_INTERNAL, "libsodium cannot start");
        return NULL;
    }
    struct store *store = NEW(struct store);
    memcpy(store->node_id, node_id.at, node_id.len);
    pthread_mutex_init(&store->lock, NULL);
    keys_init(store);
    mail_keys_init(store);
    found_init(store);
    store->sql = sql_open(path, err);
    if (!store->sql || !load(store, err)) {
        (void)err_wrap(err, "store %s", path);
        store_close(store);
        return NULL;
    }
    found_watch(store);
    return store;
}

bool store_checkpoint_behind(struct store *store, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_checkpoint_behind(store->sql, err);
}

void store_close(struct store *store)
{
    if (!store)
        return;
    sql_close(store->sql);
    keys_done(store);
    mail_keys_done(store);
    found_done(store);
    pthread_mutex_destroy(&store->lock);
    sodium_memzero(store->seed, sizeof store->seed);
    free(store);
}

bool tidy(struct store *store, struct err *err)
{
    uint64_t now_ms = clock_mono_ms();

    if (store->tidied_ms && now_ms - store->tidied_ms < TIDY_EVERY_MS)
        return true;
    store->tidied_ms = now_ms;
    int64_t now_us = clock_wall_us();
    return sql_exec(store->sql, "DELETE FROM events WHERE at_us < $1", SQL_ARGS(sql_int(now_us - EVENT_DAYS * DAY_US)),
                    err) &&
           sql_exec(store->sql, "DELETE FROM repeats WHERE created_us < $1 AND state <> 'running'",
                    SQL_ARGS(sql_int(now_us - REPEAT_DAYS * DAY_US)), err) &&
           build_lines_tidy(store, now_us, err);
}
