/*
 * Keys of mail. SHA-256 of the text is stored and looked up; the texts are random and long, so a fast hash is enough, and
 * a lookup by hash takes the same time however much of a guess is right.
 *
 * Found keys are cached, so that a request costs no query. A change of any key empties the cache, after its commit: a lookup
 * that overlapped the change is not cached (`changes`).
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/mail_inside.h"

enum { CACHE_FOR_MS = 30 * 1000 }; /* another server on the same database may revoke it */
static const int64_t TOUCH_EVERY_US = 60 * 1000000;

struct cached_mail_key {
    char hash[STORE_HASH_BYTES];
    struct mail_key_owner owner;
    uint64_t until_ms;
    int64_t touched_us;
};

/* ---- the cache ---- */

void mail_keys_init(struct store *store)
{
    pthread_mutex_init(&store->mail_keys.lock, NULL);
    map_init(&store->mail_keys.by_hash);
}

static void cache_empty(struct map *by_hash)
{
    struct cached_mail_key *key;

    for (size_t i = 0; (key = map_next(by_hash, &i));)
        free(key);
    map_done(by_hash);
}

void mail_keys_done(struct store *store)
{
    cache_empty(&store->mail_keys.by_hash);
    pthread_mutex_destroy(&store->mail_keys.lock);
}

void mail_keys_forget(struct store *store)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->mail_keys.lock);

    store->mail_keys.changes++;
    cache_empty(&store->mail_keys.by_hash);
    map_init(&store->mail_keys.by_hash);
}

static uint64_t cache_changes(struct store *store)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->mail_keys.lock);

    return store->mail_keys.changes;
}

/* *out_touch: its last use has to be written. */
static bool cache_get(struct store *store, const char *hash, struct mail_key_owner *out, bool *out_touch)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->mail_keys.lock);
    struct cached_mail_key *key = map_get(&store->mail_keys.by_hash, str_from(hash));
    int64_t now_us = clock_wall_us();

    if (!key || clock_mono_ms() >= key->until_ms)
        return false;
    *out = key->owner;
    *out_touch = now_us < key->touched_us || now_us - key->touched_us >= TOUCH_EVERY_US;
    if (*out_touch)
        key->touched_us = now_us;
    return true;
}

static void cache_put(struct store *store, const char *hash, const struct mail_key_owner *owner, uint64_t changes)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->mail_keys.lock);
    struct cached_mail_key *key = map_get(&store->mail_keys.by_hash, str_from(hash));

    if (store->mail_keys.changes != changes)
        return;
    if (!key) {
        key = NEW(struct cached_mail_key);
        memcpy(key->hash, hash, sizeof key->hash);
        map_put(&store->mail_keys.by_hash, str_from(key->hash), key);
    }
    key->owner = *owner;
    key->until_ms = clock_mono_ms() + CACHE_FOR_MS;
}

static bool id_copy(struct str text, char room[STORE_MAIL_ID_BYTES], struct err *err)
{
    if (text.len == 0) {
        room[0] = '\0';
        return true;
    }
    return str_to_path(text, room, STORE_MAIL_ID_BYTES, err);
}

static bool key_lookup(struct store *store, const char *hash, struct mail_key_owner *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql,
                    "SELECT id, tenant_id, account_id, inbox_id, scopes, is_lobster FROM mail_keys "
                    "WHERE hash = $1 AND revoked_us = 0",
                    SQL_ARGS(sql_text(str_from(hash))), &rows, err) ||
        !sql_next(&rows, &there, err))
        return err_wrap(err, "look a mail key up");
    if (!there)
        return err_set(err, ERR_DENIED, "the mail key is unknown or was revoked");
    if (!id_copy(sql_row_text(&rows, 0), out->id, err) || !id_copy(sql_row_text(&rows, 1), out->tenant_id, err) ||
        !id_copy(sql_row_text(&rows, 2), out->account_id, err) || !id_copy(sql_row_text(&rows, 3), out->inbox_id, err))
        return err_wrap(err, "look a mail key up");
    out->scopes = (uint32_t)sql_row_int(&rows, 4);
    out->is_lobster = sql_row_int(&rows, 5) != 0;
    return true;
}

static void key_touch(struct store *store, const char *id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct err err;

    if (!sql_exec(store->sql, "UPDATE mail_keys SET last_used_us = $1 WHERE id = $2",
                  SQL_ARGS(sql_int(clock_wall_us()), sql_text(str_from(id))), &err))
        log_warn("mail key %s: cannot record when it was last used: %s", id, err_text(&err));
}

bool store_mail_key_find(struct store *store, struct str text, struct mail_key_owner *out, struct err *err)
{
    struct mail_key_owner owner = { 0 };
    char hash[STORE_HASH_BYTES];
    uint64_t changes = cache_changes(store);
    bool touch = true;

    store_secret_hash(text, hash);
    if (!cache_get(store, hash, &owner, &touch)) {
        if (!key_lookup(store, hash, &owner, err))
            return false;
        cache_put(store, hash, &owner, changes);
        touch = !cache_get(store, hash, &owner, &touch) || touch;
    }
    if (touch)
        key_touch(store, owner.id);
    *out = owner;
    return true;
}

/* ---- rows ---- */

#define KEY_SELECT                                                                                               \
    "SELECT id, tenant_id, account_id, inbox_id, name, prefix, hash, scopes, is_lobster, is_own, grant_public, " \
    "approver_wrap, created_us, last_used_us, revoked_us FROM mail_keys WHERE revoked_us = 0 AND "

static void key_read(const struct sql_rows *rows, struct arena *arena, struct mail_key_row *out)
{
    *out = (struct mail_key_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tenant_id = arena_copy(arena, sql_row_text(rows, 1)),
        .account_id = arena_copy(arena, sql_row_text(rows, 2)),
        .inbox_id = arena_copy(arena, sql_row_text(rows, 3)),
        .name = mail_row_bytes(rows, 4, arena),
        .prefix = arena_copy(arena, sql_row_text(rows, 5)),
        .hash = arena_copy(arena, sql_row_text(rows, 6)),
        .scopes = (uint32_t)sql_row_int(rows, 7),
        .is_lobster = sql_row_int(rows, 8) != 0,
        .is_own = sql_row_int(rows, 9) != 0,
        .grant_public = mail_row_bytes(rows, 10, arena),
        .approver_wrap = mail_row_bytes(rows, 11, arena),
        .created_us = sql_row_int(rows, 12),
        .last_used_us = sql_row_int(rows, 13),
        .revoked_us = sql_row_int(rows, 14),
    };
}

static bool account_ensure(struct store *store, struct str id, struct str tenant_id, struct err *err)
{
    return id.len == 0 || sql_exec(store->sql,
                                   "INSERT INTO mail_accounts (id, tenant_id, created_us) VALUES ($1, $2, $3) "
                                   "ON CONFLICT (id) DO NOTHING",
                                   SQL_ARGS(sql_text(id), sql_text(tenant_id), sql_int(clock_wall_us())), err);
}

bool mail_key_insert(struct store *store, const struct mail_key_row *row, struct arena *arena, struct err *err)
{
    if (!account_ensure(store, row->account_id, row->tenant_id, err) ||
        !sql_exec(store->sql,
                  "INSERT INTO mail_keys (id, tenant_id, account_id, inbox_id, name, prefix, hash, scopes, is_lobster, "
                  "is_own, grant_public, approver_wrap, created_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, "
                  "$11, $12, $13) ON CONFLICT (hash) DO NOTHING",
                  SQL_ARGS(sql_text(row->id), sql_text(row->tenant_id), sql_text(row->account_id),
                           sql_text(row->inbox_id), mail_bytes(arena, row->name), sql_text(row->prefix),
                           sql_text(row->hash), sql_int(row->scopes), sql_int(row->is_lobster), sql_int(row->is_own),
                           mail_bytes(arena, row->grant_public), mail_bytes(arena, row->approver_wrap),
                           sql_int(clock_wall_us())),
                  err))
        return false;
    return sql_changed(store->sql) == 1 || err_set(err, ERR_CONFLICT, "there is a mail key with this text already");
}

bool store_mail_key_add(struct store *store, const struct mail_key_row *row, struct err *err)
{
    struct arena arena;

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a mail key");
    arena_init(&arena);
    bool ok = mail_key_insert(store, row, &arena, err);
    arena_done(&arena);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add a mail key");
}

static bool key_get(struct store *store, const char *query, struct str by, struct arena *arena,
                    struct mail_key_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, query, SQL_ARGS(sql_text(by)), &rows, err) || !sql_next(&rows, &there, err))
        return err_wrap(err, "find a mail key");
    if (!there)
        return err_set(err, ERR_NOT_FOUND, "there is no such key");
    key_read(&rows, arena, out);
    return true;
}

bool store_mail_key_get(struct store *store, struct str id, struct arena *arena, struct mail_key_row *out,
                        struct err *err)
{
    return key_get(store, KEY_SELECT "id = $1", id, arena, out, err);
}

bool store_mail_key_own(struct store *store, struct str inbox_id, struct arena *arena, struct mail_key_row *out,
                        struct err *err)
{
    return key_get(store, KEY_SELECT "inbox_id = $1 AND inbox_id <> '' AND is_own = 1", inbox_id, arena, out, err);
}

bool store_mail_key_list(struct store *store, const struct mail_key_filter *filter, struct arena *arena,
                         struct mail_key_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       KEY_SELECT "($1 = '' OR tenant_id = $1) AND ($2 = '' OR account_id = $2) AND "
                                  "($3 = '' OR inbox_id = $3) ORDER BY created_us, id",
                       SQL_ARGS(sql_text(filter->tenant_id), sql_text(filter->account_id), sql_text(filter->inbox_id)),
                       &rows, err) &&
            ROWS_READ(&rows, key_read, arena, out, out_count, err)) ||
           err_wrap(err, "list mail keys");
}

/* Changes one valid key, then lets go of the cache: in this order, else a lookup in between would cache it again. */
static bool key_change(struct store *store, const char *query, const struct sql_value *args, size_t count,
                       enum err_kind kind, const char *why, struct err *err)
{
    int64_t changed = 0;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        if (!mail_change(store, query, args, count, &changed, err))
            return err_wrap(err, "change a mail key");
    }
    mail_keys_forget(store);
    return changed == 1 || err_set(err, kind, "%s", why);
}

bool store_mail_key_give_account(struct store *store, struct str id, struct str account_id, struct err *err)
{
    bool ok;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        if (!sql_begin(store->sql, SQL_DURABLE, err))
            return err_wrap(err, "make an account for a mail key");
        ok = sql_exec(store->sql,
                      "INSERT INTO mail_accounts (id, tenant_id, created_us) SELECT $1, tenant_id, $2 FROM mail_keys "
                      "WHERE id = $3 AND account_id = '' AND revoked_us = 0",
                      SQL_ARGS(sql_text(account_id), sql_int(clock_wall_us()), sql_text(id)), err) &&
             sql_exec(store->sql,
                      "UPDATE mail_keys SET account_id = $1 WHERE id = $2 AND account_id = '' AND revoked_us = 0",
                      SQL_ARGS(sql_text(account_id), sql_text(id)), err);
        if (ok && sql_changed(store->sql) != 1)
            ok = err_set(err, ERR_CONFLICT, "the key was changed by somebody else at the same time: try again");
        ok = sql_end(store->sql, ok, err);
    }
    mail_keys_forget(store);
    return ok || err_wrap(err, "make an account for a mail key");
}

#define NO_KEY ERR_NOT_FOUND, "there is no such key"

bool store_mail_key_change(struct store *store, struct str id, struct str name, uint32_t scopes, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok = key_change(store, "UPDATE mail_keys SET name = $1, scopes = $2 WHERE id = $3 AND revoked_us = 0",
                         SQL_ARGS(mail_bytes(&arena, name), sql_int(scopes), sql_text(id)), NO_KEY, err);
    arena_done(&arena);
    return ok;
}

bool store_mail_key_revoke(struct store *store, struct str id, struct err *err)
{
    return key_change(store,
                      "UPDATE mail_keys SET revoked_us = $1, approver_wrap = '' WHERE id = $2 AND revoked_us = 0",
                      SQL_ARGS(sql_int(clock_wall_us()), sql_text(id)), NO_KEY, err);
}
