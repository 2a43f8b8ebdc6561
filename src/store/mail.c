/*
 * Mail's routing map: tenants, inboxes, codes, grants, rates. Keys are in mail_keys.c.
 */
#include "base/clock.h"
#include "base/encode.h"
#include "store/mail_inside.h"

enum { HANDLE_CHARS = 10 };

/* ---- shared ---- */

struct sql_value mail_bytes(struct arena *arena, struct str bytes)
{
    char *room = arena_alloc(arena, base64_size(bytes.len) + 1);

    return sql_text(str_of(room, base64_encode(bytes, room)));
}

struct str mail_row_bytes(const struct sql_rows *rows, int column, struct arena *arena)
{
    struct str text = sql_row_text(rows, column);
    unsigned char *room = arena_alloc(arena, text.len / 4 * 3 + 3);
    size_t len;

    return base64_decode(text, room, &len) ? str_of(room, len) : STR("");
}

bool mail_change(struct store *store, const char *query, const struct sql_value *args, size_t count,
                 int64_t *out_changed, struct err *err)
{
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return false;
    bool ok = sql_exec(store->sql, query, args, count, err);
    if (ok && out_changed)
        *out_changed = sql_changed(store->sql);
    return sql_end(store->sql, ok, err);
}

/* A change of one row that must be there. */
static bool change_one(struct store *store, const char *query, const struct sql_value *args, size_t count,
                       enum err_kind kind, const char *why, struct err *err)
{
    int64_t changed = 0;

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!mail_change(store, query, args, count, &changed, err))
        return err_wrap(err, "mail's rows");
    return changed == 1 || err_set(err, kind, "%s", why);
}

/* The first row by `read`. The caller holds the lock. */
#define ROW_READ(store, query, args, read, arena, out, what, err)                                                      \
    ({                                                                                                                 \
        auto_rows struct sql_rows rows_ = { 0 };                                                                       \
        bool there_, fine_;                                                                                            \
        fine_ =                                                                                                        \
            sql_select((store)->sql, (query), (args).at, (args).count, &rows_, err) && sql_next(&rows_, &there_, err); \
        if (fine_ && !there_)                                                                                          \
            fine_ = err_set(err, ERR_NOT_FOUND, "there is no such %s", what);                                          \
        if (fine_)                                                                                                     \
            read(&rows_, arena, out);                                                                                  \
        fine_;                                                                                                         \
    })

struct args {
    const struct sql_value *at;
    size_t count;
};
#define ARGS(...) ((struct args){ SQL_ARGS(__VA_ARGS__) })

/* One number. The caller holds the lock. */
static bool number_of(struct store *store, const char *query, const struct sql_value *args, size_t count, int64_t *out,
                      struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, query, args, count, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    *out = there ? sql_row_int(&rows, 0) : 0;
    return true;
}

/* ---- tenants and accounts ---- */

#define TENANT_SELECT                                                                                        \
    "SELECT id, name, approver_public, approver_sealed, sealed_to, oversight, created_us FROM mail_tenants " \
    "WHERE "

static void tenant_read(const struct sql_rows *rows, struct arena *arena, struct mail_tenant_row *out)
{
    *out = (struct mail_tenant_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .name = arena_copy(arena, sql_row_text(rows, 1)),
        .approver_public = mail_row_bytes(rows, 2, arena),
        .approver_sealed = mail_row_bytes(rows, 3, arena),
        .sealed_to = mail_row_bytes(rows, 4, arena),
        .oversight = mail_row_bytes(rows, 5, arena),
        .created_us = sql_row_int(rows, 6),
    };
}

static bool tenant_get(struct store *store, struct str id, struct str name, struct arena *arena,
                       struct mail_tenant_row *out, struct err *err)
{
    if (id.len)
        return ROW_READ(store, TENANT_SELECT "id = $1", ARGS(sql_text(id)), tenant_read, arena, out, "tenant", err);
    return ROW_READ(store, TENANT_SELECT "name = $1", ARGS(sql_text(name)), tenant_read, arena, out, "tenant", err);
}

bool store_mail_tenant_get(struct store *store, struct str id, struct str name, struct arena *arena,
                           struct mail_tenant_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return tenant_get(store, id, name, arena, out, err);
}

bool store_mail_tenant_list(struct store *store, struct arena *arena, struct mail_tenant_row **out, size_t *out_count,
                            struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, TENANT_SELECT "1 = 1 ORDER BY name", SQL_NO_ARGS, &rows, err) &&
            ROWS_READ(&rows, tenant_read, arena, out, out_count, err)) ||
           err_wrap(err, "list tenants");
}

bool store_mail_tenant_ensure(struct store *store, const struct mail_tenant_row *row, struct arena *arena,
                              struct mail_tenant_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a tenant");
    bool ok = sql_exec(store->sql,
                       "INSERT INTO mail_tenants (id, name, approver_public, approver_sealed, sealed_to, oversight, "
                       "created_us) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO NOTHING",
                       SQL_ARGS(sql_text(row->id), sql_text(row->name), mail_bytes(arena, row->approver_public),
                                mail_bytes(arena, row->approver_sealed), mail_bytes(arena, row->sealed_to),
                                mail_bytes(arena, row->oversight), sql_int(clock_wall_us())),
                       err) &&
              tenant_get(store, STR(""), row->name, arena, out, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add a tenant");
}

bool store_mail_tenant_reseal(struct store *store, struct str id, struct str approver_sealed, struct str sealed_to,
                              struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok = change_one(store, "UPDATE mail_tenants SET approver_sealed = $1, sealed_to = $2 WHERE id = $3",
                         SQL_ARGS(mail_bytes(&arena, approver_sealed), mail_bytes(&arena, sealed_to), sql_text(id)),
                         ERR_NOT_FOUND, "there is no such tenant", err);
    arena_done(&arena);
    return ok;
}

bool store_mail_tenant_oversight(struct store *store, struct str id, struct str cipher, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok =
        change_one(store, "UPDATE mail_tenants SET oversight = $1 WHERE id = $2",
                   SQL_ARGS(mail_bytes(&arena, cipher), sql_text(id)), ERR_NOT_FOUND, "there is no such tenant", err);
    arena_done(&arena);
    return ok;
}

static void account_read(const struct sql_rows *rows, struct arena *arena, struct mail_account_row *out)
{
    *out = (struct mail_account_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tenant_id = arena_copy(arena, sql_row_text(rows, 1)),
        .created_us = sql_row_int(rows, 2),
        .last_used_us = sql_row_int(rows, 3),
    };
}

bool store_mail_account_get(struct store *store, struct str id, struct arena *arena, struct mail_account_row *out,
                            struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store,
                    "SELECT a.id, a.tenant_id, a.created_us, (SELECT MAX(k.last_used_us) FROM mail_keys k "
                    "WHERE k.account_id = a.id) FROM mail_accounts a WHERE a.id = $1",
                    ARGS(sql_text(id)), account_read, arena, out, "account", err);
}

/* ---- inboxes ---- */

#define COUNT_OF_ACCOUNT \
    "SELECT COUNT(*) FROM mail_inboxes WHERE account_id = $1 AND account_id <> '' AND ($2 = 1 OR deleted_us = 0)"

#define INBOX_SELECT                                                                                           \
    "SELECT id, tenant_id, account_id, address_hash, profile, public_key, mode, pending, dirty, grants_wait, " \
    "next_us, created_us, deleted_us, shredded_us, orphaned_us, received, shred_tries FROM mail_inboxes WHERE "

static void inbox_read(const struct sql_rows *rows, struct arena *arena, struct mail_inbox_row *out)
{
    *out = (struct mail_inbox_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tenant_id = arena_copy(arena, sql_row_text(rows, 1)),
        .account_id = arena_copy(arena, sql_row_text(rows, 2)),
        .address_hash = arena_copy(arena, sql_row_text(rows, 3)),
        .profile = mail_row_bytes(rows, 4, arena),
        .public_key = mail_row_bytes(rows, 5, arena),
        .mode = (uint32_t)sql_row_int(rows, 6),
        .pending = (uint32_t)sql_row_int(rows, 7),
        .is_dirty = sql_row_int(rows, 8) != 0,
        .grants_wait = sql_row_int(rows, 9) != 0,
        .next_us = sql_row_int(rows, 10),
        .created_us = sql_row_int(rows, 11),
        .deleted_us = sql_row_int(rows, 12),
        .shredded_us = sql_row_int(rows, 13),
        .orphaned_us = sql_row_int(rows, 14),
        .received = (uint64_t)sql_row_int(rows, 15),
        .shred_tries = (uint32_t)sql_row_int(rows, 16),
    };
}

static bool inbox_insert(struct store *store, const struct mail_inbox_row *row, struct arena *arena, struct err *err)
{
    struct str handle = str_of(row->id.at + row->id.len - HANDLE_CHARS, HANDLE_CHARS);

    if (!sql_exec(store->sql,
                  "INSERT INTO mail_inboxes (id, handle, tenant_id, account_id, address_hash, profile, public_key, "
                  "mode, created_us) SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9 WHERE NOT EXISTS "
                  "(SELECT 1 FROM mail_gone_addresses WHERE address_hash = $5) ON CONFLICT DO NOTHING",
                  SQL_ARGS(sql_text(row->id), sql_text(handle), sql_text(row->tenant_id), sql_text(row->account_id),
                           sql_text(row->address_hash), mail_bytes(arena, row->profile),
                           mail_bytes(arena, row->public_key), sql_int(row->mode), sql_int(clock_wall_us())),
                  err))
        return false;
    return sql_changed(store->sql) == 1 || err_set(err, ERR_CONFLICT, "the address is taken: choose another one");
}

static bool sandbox_insert(struct store *store, const struct mail_sandbox_row *row, struct arena *arena,
                           struct err *err)
{
    return sql_exec(store->sql,
                    "INSERT INTO mail_sandboxes (sandbox_id, inbox_id, key_id, credential, created_us) "
                    "VALUES ($1, $2, $3, $4, $5)",
                    SQL_ARGS(sql_text(row->sandbox_id), sql_text(row->inbox_id), sql_text(row->key_id),
                             mail_bytes(arena, row->credential), sql_int(clock_wall_us())),
                    err);
}

static bool account_has_room(struct store *store, struct str account_id, const struct mail_inbox_most *most,
                             struct err *err)
{
    int64_t count;

    /* Checked here: the sandbox may have ended while its request went on, and nobody would look for this inbox then. */
    if (most->of_sandbox) {
        if (!number_of(store, "SELECT COUNT(*) FROM mail_sandboxes WHERE inbox_id = $1", SQL_ARGS(sql_text(account_id)),
                       &count, err))
            return false;
        if (!count)
            return err_set(err, ERR_DENIED, "the sandbox has ended");
    }
    if (!most->account)
        return true;
    return number_of(store, COUNT_OF_ACCOUNT, SQL_ARGS(sql_text(account_id), sql_int(most->of_sandbox)), &count, err) &&
           (count < most->account ||
            err_set(err, ERR_LIMIT, "the account has %lld inboxes already, the most that it may have",
                    (long long)count));
}

bool store_mail_inbox_add(struct store *store, const struct mail_inbox_row *row, const struct mail_inbox_most *most,
                          const struct mail_key_row *key, const struct mail_sandbox_row *sandbox, struct err *err)
{
    struct arena arena;

    if (row->id.len < HANDLE_CHARS)
        return err_set(err, ERR_INVALID, "that is not the id of an inbox");
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add an inbox");
    arena_init(&arena);
    bool ok = account_has_room(store, row->account_id, most, err) && inbox_insert(store, row, &arena, err) &&
              mail_key_insert(store, key, &arena, err) && (!sandbox || sandbox_insert(store, sandbox, &arena, err));
    arena_done(&arena);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add an inbox");
}

bool store_mail_inbox_get(struct store *store, struct str id, struct arena *arena, struct mail_inbox_row *out,
                          struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store, INBOX_SELECT "id = $1", ARGS(sql_text(id)), inbox_read, arena, out, "inbox", err);
}

bool store_mail_inbox_by_handle(struct store *store, struct str handle, struct arena *arena, struct mail_inbox_row *out,
                                struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store, INBOX_SELECT "handle = $1", ARGS(sql_text(handle)), inbox_read, arena, out, "inbox", err);
}

bool store_mail_inbox_by_address(struct store *store, struct str address_hash, struct arena *arena,
                                 struct mail_inbox_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store, INBOX_SELECT "address_hash = $1", ARGS(sql_text(address_hash)), inbox_read, arena, out,
                    "inbox", err);
}

static void id_read(const struct sql_rows *rows, struct arena *arena, struct str *out)
{
    *out = arena_copy(arena, sql_row_text(rows, 0));
}

bool store_mail_inbox_ids(struct store *store, struct arena *arena, struct str **out, size_t *out_count,
                          struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, "SELECT id FROM mail_inboxes ORDER BY id", SQL_NO_ARGS, &rows, err) &&
            ROWS_READ(&rows, id_read, arena, out, out_count, err)) ||
           err_wrap(err, "list inboxes");
}

bool store_mail_inbox_list(struct store *store, const struct mail_inbox_filter *filter, struct arena *arena,
                           struct mail_inbox_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    /* A query for each, so that each uses its index. */
    const char *query = filter->account_id.len || filter->or_id.len
                            ? INBOX_SELECT "deleted_us = 0 AND (($1 <> '' AND account_id = $1) OR id = $2) AND "
                                           "($3 = '' OR tenant_id = $3) ORDER BY created_us, id"
                            : INBOX_SELECT "deleted_us = 0 AND $1 = '' AND $2 = '' AND ($3 = '' OR tenant_id = $3) "
                                           "ORDER BY created_us, id";

    return (sql_select(store->sql, query,
                       SQL_ARGS(sql_text(filter->account_id), sql_text(filter->or_id), sql_text(filter->tenant_id)),
                       &rows, err) &&
            ROWS_READ(&rows, inbox_read, arena, out, out_count, err)) ||
           err_wrap(err, "list inboxes");
}

static bool count_of(struct store *store, const char *query, const struct sql_value *args, size_t arg_count,
                     uint32_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    int64_t count;

    if (!number_of(store, query, args, arg_count, &count, err))
        return err_wrap(err, "count inboxes");
    *out_count = (uint32_t)count;
    return true;
}

bool store_mail_inbox_count(struct store *store, struct str account_id, bool with_deleted, uint32_t *out_count,
                            struct err *err)
{
    return count_of(store, COUNT_OF_ACCOUNT, SQL_ARGS(sql_text(account_id), sql_int(with_deleted)), out_count, err);
}

bool store_mail_room(struct store *store, struct str tenant_id, struct mail_room *out_tenant, struct mail_room *out_all,
                     struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql,
                    "SELECT COALESCE(SUM(CASE WHEN shredded_us = 0 THEN 1 ELSE 0 END), 0), COALESCE(SUM(bytes), 0), "
                    "COALESCE(SUM(CASE WHEN tenant_id = $1 AND shredded_us = 0 THEN 1 ELSE 0 END), 0), "
                    "COALESCE(SUM(CASE WHEN tenant_id = $1 THEN bytes ELSE 0 END), 0) FROM mail_inboxes",
                    SQL_ARGS(sql_text(tenant_id)), &rows, err) ||
        !sql_next(&rows, &there, err))
        return err_wrap(err, "add up what mail takes");
    *out_all = (struct mail_room){ (uint32_t)sql_row_int(&rows, 0), (uint64_t)sql_row_int(&rows, 1) };
    *out_tenant = (struct mail_room){ (uint32_t)sql_row_int(&rows, 2), (uint64_t)sql_row_int(&rows, 3) };
    return true;
}

#define NO_INBOX ERR_NOT_FOUND, "there is no such inbox"

bool store_mail_inbox_profile(struct store *store, struct str id, struct str profile, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok = change_one(store, "UPDATE mail_inboxes SET profile = $1 WHERE id = $2 AND deleted_us = 0",
                         SQL_ARGS(mail_bytes(&arena, profile), sql_text(id)), NO_INBOX, err);
    arena_done(&arena);
    return ok;
}

bool store_mail_inbox_mode(struct store *store, struct str id, uint32_t from, uint32_t to, struct err *err)
{
    return change_one(store, "UPDATE mail_inboxes SET mode = $1 WHERE id = $2 AND mode = $3 AND deleted_us = 0",
                      SQL_ARGS(sql_int(to), sql_text(id), sql_int(from)), ERR_CONFLICT,
                      "the mode was changed by somebody else at the same time: look at it again", err);
}

/*
 * What sandboxes have made by their accounts, which have the ids of their own inboxes. Inside a transaction. `ended`: which
 * own inboxes.
 */
#define ORPHAN_MADE_BY(ended) \
    "UPDATE mail_inboxes SET orphaned_us = $1 WHERE orphaned_us = 0 AND account_id <> '' AND account_id IN " ended
#define REVOKE_MADE_BY(ended)                                                                                       \
    "UPDATE mail_keys SET revoked_us = $1 WHERE revoked_us = 0 AND inbox_id <> '' AND inbox_id IN (SELECT id FROM " \
    "mail_inboxes WHERE account_id <> '' AND account_id IN " ended ")"

bool store_mail_inbox_delete(struct store *store, struct str id, struct err *err)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        struct sql_value now = sql_int(clock_wall_us());
        if (!sql_begin(store->sql, SQL_DURABLE, err))
            return err_wrap(err, "delete an inbox");
        bool ok = sql_exec(store->sql, "UPDATE mail_inboxes SET deleted_us = $1 WHERE id = $2 AND deleted_us = 0",
                           SQL_ARGS(now, sql_text(id)), err);
        if (ok && sql_changed(store->sql) != 1)
            ok = err_set(err, ERR_NOT_FOUND, "there is no such inbox");
        ok = ok &&
             sql_exec(store->sql, "UPDATE mail_keys SET revoked_us = $1 WHERE inbox_id = $2 AND revoked_us = 0",
                      SQL_ARGS(now, sql_text(id)), err) &&
             sql_exec(store->sql,
                      "UPDATE mail_grants SET revoked_us = $1, sealed = '' WHERE inbox_id = $2 AND revoked_us = 0",
                      SQL_ARGS(now, sql_text(id)), err) &&
             sql_exec(store->sql, "DELETE FROM mail_codes WHERE inbox_id = $1", SQL_ARGS(sql_text(id)), err) &&
             sql_exec(store->sql, REVOKE_MADE_BY("($2)"), SQL_ARGS(now, sql_text(id)), err) &&
             sql_exec(store->sql, ORPHAN_MADE_BY("($2)"), SQL_ARGS(now, sql_text(id)), err) &&
             sql_exec(store->sql, "DELETE FROM mail_sandboxes WHERE inbox_id = $1", SQL_ARGS(sql_text(id)), err);
        if (!sql_end(store->sql, ok, err))
            return err_wrap(err, "delete an inbox");
    }
    mail_keys_forget(store);
    return true;
}

bool store_mail_inbox_stale(struct store *store, int64_t before_us, uint32_t limit, struct arena *arena,
                            struct mail_inbox_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       INBOX_SELECT
                       "(deleted_us > 0 AND shredded_us = 0 AND deleted_us < $1 AND shred_tries < $2) OR "
                       "(orphaned_us > 0 AND deleted_us = 0 AND orphaned_us < $1 AND pending = 0 AND next_us = 0 AND "
                       "dirty = 0) LIMIT $3",
                       SQL_ARGS(sql_int(before_us), sql_int(LIMIT_MAIL_SHRED_TRIES), sql_int(limit)), &rows, err) &&
            ROWS_READ(&rows, inbox_read, arena, out, out_count, err)) ||
           err_wrap(err, "find deleted inboxes");
}

bool store_mail_inbox_ended(struct store *store, uint32_t limit, struct arena *arena, struct mail_inbox_row **out,
                            size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       INBOX_SELECT "orphaned_us > 0 AND orphaned_us <= $1 AND stays = 0 AND (account_id <> '' OR "
                                    "deleted_us > 0 OR (pending = 0 AND next_us = 0 AND dirty = 0)) "
                                    "ORDER BY orphaned_us LIMIT $2",
                       SQL_ARGS(sql_int(clock_wall_us()), sql_int(limit)), &rows, err) &&
            ROWS_READ(&rows, inbox_read, arena, out, out_count, err)) ||
           err_wrap(err, "find inboxes of sandboxes that have ended");
}

bool store_mail_inbox_stays(struct store *store, struct str id, struct err *err)
{
    return change_one(store, "UPDATE mail_inboxes SET stays = 1 WHERE id = $1", SQL_ARGS(sql_text(id)), NO_INBOX, err);
}

bool store_mail_inbox_later(struct store *store, struct str id, int64_t at_us, struct err *err)
{
    return change_one(store, "UPDATE mail_inboxes SET orphaned_us = $1 WHERE id = $2",
                      SQL_ARGS(sql_int(at_us), sql_text(id)), NO_INBOX, err);
}

/* Its address, which others know: whoever had it next would get what they send. */
static bool keep_address(struct store *store, struct str id, struct err *err)
{
    return sql_exec(store->sql,
                    "INSERT INTO mail_gone_addresses (address_hash, gone_us) SELECT address_hash, $1 FROM mail_inboxes "
                    "WHERE id = $2 AND received > 0 ON CONFLICT DO NOTHING",
                    SQL_ARGS(sql_int(clock_wall_us()), sql_text(id)), err) &&
           sql_exec(store->sql,
                    "DELETE FROM mail_gone_addresses WHERE gone_us < (SELECT gone_us FROM mail_gone_addresses ORDER BY "
                    "gone_us DESC LIMIT 1 OFFSET $1)",
                    SQL_ARGS(sql_int(LIMIT_MAIL_GONE)), err);
}

bool store_mail_inbox_removed(struct store *store, struct str id, struct err *err)
{
    static const char *const queries[] = {
        "DELETE FROM mail_rates WHERE who = $1",
        "DELETE FROM mail_sandboxes WHERE inbox_id = $1",
        "DELETE FROM mail_codes WHERE inbox_id = $1",
        "DELETE FROM mail_grants WHERE inbox_id = $1",
        "DELETE FROM mail_keys WHERE inbox_id = $1 AND inbox_id <> ''",
        "DELETE FROM mail_inboxes WHERE id = $1",
    };

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        if (!sql_begin(store->sql, SQL_DURABLE, err))
            return err_wrap(err, "remove an inbox");
        bool ok = keep_address(store, id, err);
        for (size_t i = 0; ok && i < COUNT_OF(queries); i++)
            ok = sql_exec(store->sql, queries[i], SQL_ARGS(sql_text(id)), err);
        if (!sql_end(store->sql, ok, err))
            return err_wrap(err, "remove an inbox");
    }
    mail_keys_forget(store);
    return true;
}

bool store_mail_inbox_shredded(struct store *store, struct str id, struct err *err)
{
    return change_one(store,
                      "UPDATE mail_inboxes SET shredded_us = $1, profile = '', dirty = 0, next_us = 0, pending = 0, "
                      "bytes = $2 WHERE id = $3 AND deleted_us > 0",
                      SQL_ARGS(sql_int(clock_wall_us()), sql_int(LIMIT_MAIL_SHREDDED_BYTES), sql_text(id)), NO_INBOX,
                      err);
}

bool store_mail_inbox_shred_failed(struct store *store, struct str id, struct err *err)
{
    return change_one(store, "UPDATE mail_inboxes SET shred_tries = shred_tries + 1 WHERE id = $1 AND deleted_us > 0",
                      SQL_ARGS(sql_text(id)), NO_INBOX, err);
}

/* ---- timers ---- */

bool store_mail_inbox_dirty(struct store *store, struct str id, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    int64_t dirty;

    if (!number_of(store, "SELECT dirty FROM mail_inboxes WHERE id = $1", SQL_ARGS(sql_text(id)), &dirty, err))
        return err_wrap(err, "mark an inbox");
    return dirty ||
           mail_change(store, "UPDATE mail_inboxes SET dirty = 1 WHERE id = $1", SQL_ARGS(sql_text(id)), NULL, err) ||
           err_wrap(err, "mark an inbox");
}

bool store_mail_inbox_idle(struct store *store, struct str id, int64_t next_us, uint32_t pending, uint64_t bytes,
                           struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    /* Lazily: after a power cut the mark is there again, and the inbox is looked at once more. */
    return sql_exec(store->sql,
                    "UPDATE mail_inboxes SET dirty = 0, next_us = $1, pending = $2, bytes = $3 WHERE id = $4",
                    SQL_ARGS(sql_int(next_us), sql_int(pending), sql_int((int64_t)bytes), sql_text(id)), err) ||
           err_wrap(err, "set an inbox's next time");
}

bool store_mail_inbox_received(struct store *store, struct str id, uint64_t bytes, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return sql_exec(store->sql, "UPDATE mail_inboxes SET received = received + 1, bytes = bytes + $1 WHERE id = $2",
                    SQL_ARGS(sql_int((int64_t)bytes), sql_text(id)), err) ||
           err_wrap(err, "count a message");
}

static const char *const due_query[] = {
    [MAIL_DUE_TIMER] =
        INBOX_SELECT "deleted_us = 0 AND dirty = 0 AND next_us > 0 AND next_us <= $1 AND ($2 = '' OR tenant_id = $2) "
                     "ORDER BY next_us LIMIT $3",
    [MAIL_DUE_DIRTY] = INBOX_SELECT "deleted_us = 0 AND dirty = 1 AND $1 = $1 AND ($2 = '' OR tenant_id = $2) LIMIT $3",
    [MAIL_DUE_PENDING] =
        INBOX_SELECT "deleted_us = 0 AND (pending > 0 OR dirty = 1) AND $1 = $1 AND ($2 = '' OR tenant_id = $2) "
                     "ORDER BY created_us, id LIMIT $3",
};

bool store_mail_inbox_due(struct store *store, enum mail_due due, struct str tenant_id, int64_t now_us, uint32_t limit,
                          struct arena *arena, struct mail_inbox_row **out, size_t *out_count, int64_t *out_next_us,
                          struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(store->sql, due_query[due], SQL_ARGS(sql_int(now_us), sql_text(tenant_id), sql_int(limit)), &rows,
                    err) ||
        !ROWS_READ(&rows, inbox_read, arena, out, out_count, err))
        return err_wrap(err, "find inboxes whose time has come");
    return !out_next_us ||
           number_of(store,
                     "SELECT COALESCE(MIN(next_us), 0) FROM mail_inboxes WHERE next_us > $1 AND next_us > 0 AND dirty "
                     "= 0 AND "
                     "deleted_us = 0",
                     SQL_ARGS(sql_int(now_us)), out_next_us, err) ||
           err_wrap(err, "find the next time of an inbox");
}

/* ---- sandboxes ---- */

static void sandbox_read(const struct sql_rows *rows, struct arena *arena, struct mail_sandbox_row *out)
{
    *out = (struct mail_sandbox_row){
        .sandbox_id = arena_copy(arena, sql_row_text(rows, 0)),
        .inbox_id = arena_copy(arena, sql_row_text(rows, 1)),
        .key_id = arena_copy(arena, sql_row_text(rows, 2)),
        .credential = mail_row_bytes(rows, 3, arena),
        .created_us = sql_row_int(rows, 4),
    };
}

bool store_mail_sandbox_get(struct store *store, struct str sandbox_id, struct arena *arena,
                            struct mail_sandbox_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store,
                    "SELECT sandbox_id, inbox_id, key_id, credential, created_us FROM mail_sandboxes "
                    "WHERE sandbox_id = $1",
                    ARGS(sql_text(sandbox_id)), sandbox_read, arena, out, "inbox", err);
}

#define ENDED "mail_sandboxes WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)"

bool store_mail_sandbox_sweep(struct store *store, uint32_t *out_count, struct err *err)
{
    int64_t gone = 0;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        struct sql_value now = sql_int(clock_wall_us());
        if (!number_of(store, "SELECT COUNT(*) FROM " ENDED, SQL_NO_ARGS, &gone, err))
            return err_wrap(err, "find inboxes of sandboxes that have ended");
        *out_count = (uint32_t)gone;
        if (!gone)
            return true;
        if (!sql_begin(store->sql, SQL_DURABLE, err))
            return err_wrap(err, "let go of inboxes of sandboxes that have ended");
        bool ok =
            sql_exec(store->sql,
                     "UPDATE mail_keys SET revoked_us = $1 WHERE revoked_us = 0 AND id IN (SELECT key_id FROM " ENDED
                     ")",
                     SQL_ARGS(now), err) &&
            sql_exec(store->sql, REVOKE_MADE_BY("(SELECT inbox_id FROM " ENDED ")"), SQL_ARGS(now), err) &&
            sql_exec(store->sql, ORPHAN_MADE_BY("(SELECT inbox_id FROM " ENDED ")"), SQL_ARGS(now), err) &&
            sql_exec(store->sql,
                     "UPDATE mail_inboxes SET orphaned_us = $1 WHERE orphaned_us = 0 AND id IN (SELECT inbox_id "
                     "FROM " ENDED ")",
                     SQL_ARGS(now), err) &&
            sql_exec(store->sql, "DELETE FROM mail_rates WHERE who IN (SELECT 'sandbox:' || sandbox_id FROM " ENDED ")",
                     SQL_NO_ARGS, err) &&
            sql_exec(store->sql, "DELETE FROM " ENDED, SQL_NO_ARGS, err);
        if (!sql_end(store->sql, ok, err))
            return err_wrap(err, "let go of inboxes of sandboxes that have ended");
    }
    mail_keys_forget(store);
    return true;
}

/* ---- codes ---- */

static void code_read(const struct sql_rows *rows, struct arena *arena, struct mail_code_row *out)
{
    *out = (struct mail_code_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tenant_id = arena_copy(arena, sql_row_text(rows, 1)),
        .inbox_id = arena_copy(arena, sql_row_text(rows, 2)),
        .asked = arena_copy(arena, sql_row_text(rows, 3)),
        .cipher = mail_row_bytes(rows, 4, arena),
        .target = sql_row_int(rows, 5),
        .tries = (uint32_t)sql_row_int(rows, 6),
        .created_us = sql_row_int(rows, 7),
        .expires_us = sql_row_int(rows, 8),
    };
}

#define CODE_SELECT \
    "SELECT id, tenant_id, inbox_id, asked, cipher, target, tries, created_us, expires_us FROM mail_codes WHERE "

bool store_mail_code_put(struct store *store, const struct mail_code_row *row, struct err *err)
{
    struct arena arena;

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a code");
    arena_init(&arena);
    bool ok = sql_exec(store->sql, "DELETE FROM mail_codes WHERE asked = $1 OR expires_us <= $2",
                       SQL_ARGS(sql_text(row->asked), sql_int(row->created_us)), err) &&
              sql_exec(store->sql,
                       "INSERT INTO mail_codes (id, tenant_id, inbox_id, asked, cipher, target, created_us, "
                       "expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                       SQL_ARGS(sql_text(row->id), sql_text(row->tenant_id), sql_text(row->inbox_id),
                                sql_text(row->asked), mail_bytes(&arena, row->cipher), sql_int(row->target),
                                sql_int(row->created_us), sql_int(row->expires_us)),
                       err);
    arena_done(&arena);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add a code");
}

bool store_mail_code_find(struct store *store, struct str asked, int64_t now_us, struct arena *arena,
                          struct mail_code_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store, CODE_SELECT "asked = $1 AND expires_us > $2", ARGS(sql_text(asked), sql_int(now_us)),
                    code_read, arena, out, "code", err);
}

bool store_mail_code_try(struct store *store, struct str id, uint32_t most, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "try a code");
    bool ok = sql_exec(store->sql, "UPDATE mail_codes SET tries = tries + 1 WHERE id = $1 AND tries < $2",
                       SQL_ARGS(sql_text(id), sql_int(most)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "there were too many wrong codes: ask for a new one");
    return sql_end(store->sql, ok, err) || err_wrap(err, "try a code");
}

bool store_mail_code_spend(struct store *store, struct str id, struct err *err)
{
    return change_one(store, "DELETE FROM mail_codes WHERE id = $1", SQL_ARGS(sql_text(id)), ERR_NOT_FOUND,
                      "the code was used already", err);
}

bool store_mail_code_list(struct store *store, struct str tenant_id, int64_t now_us, struct arena *arena,
                          struct mail_code_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql,
                       CODE_SELECT "expires_us > $1 AND ($2 = '' OR tenant_id = $2) ORDER BY created_us, id",
                       SQL_ARGS(sql_int(now_us), sql_text(tenant_id)), &rows, err) &&
            ROWS_READ(&rows, code_read, arena, out, out_count, err)) ||
           err_wrap(err, "list codes");
}

/* ---- grants ---- */

#define GRANT_SELECT                                                                                             \
    "SELECT id, tenant_id, grantee_key_id, inbox_id, verbs, reason, sealed, created_us, expires_us, revoked_us " \
    "FROM mail_grants WHERE "

static void grant_read(const struct sql_rows *rows, struct arena *arena, struct mail_grant_row *out)
{
    *out = (struct mail_grant_row){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .tenant_id = arena_copy(arena, sql_row_text(rows, 1)),
        .grantee_key_id = arena_copy(arena, sql_row_text(rows, 2)),
        .inbox_id = arena_copy(arena, sql_row_text(rows, 3)),
        .verbs = (unsigned)sql_row_int(rows, 4),
        .reason = mail_row_bytes(rows, 5, arena),
        .sealed = mail_row_bytes(rows, 6, arena),
        .created_us = sql_row_int(rows, 7),
        .expires_us = sql_row_int(rows, 8),
        .revoked_us = sql_row_int(rows, 9),
    };
}

bool store_mail_grant_add(struct store *store, const struct mail_grant_row *row, struct err *err)
{
    struct arena arena;

    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    if (!sql_begin(store->sql, SQL_DURABLE, err))
        return err_wrap(err, "add a grant");
    arena_init(&arena);
    bool ok = sql_exec(store->sql,
                       "INSERT INTO mail_grants (id, tenant_id, grantee_key_id, inbox_id, verbs, reason, created_us, "
                       "expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                       SQL_ARGS(sql_text(row->id), sql_text(row->tenant_id), sql_text(row->grantee_key_id),
                                sql_text(row->inbox_id), sql_int(row->verbs), mail_bytes(&arena, row->reason),
                                sql_int(row->created_us), sql_int(row->expires_us)),
                       err) &&
              sql_exec(store->sql, "UPDATE mail_inboxes SET grants_wait = 1 WHERE id = $1 AND deleted_us = 0",
                       SQL_ARGS(sql_text(row->inbox_id)), err);
    if (ok && sql_changed(store->sql) != 1)
        ok = err_set(err, ERR_NOT_FOUND, "there is no such inbox");
    arena_done(&arena);
    return sql_end(store->sql, ok, err) || err_wrap(err, "add a grant");
}

bool store_mail_grant_get(struct store *store, struct str id, struct arena *arena, struct mail_grant_row *out,
                          struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ROW_READ(store, GRANT_SELECT "id = $1", ARGS(sql_text(id)), grant_read, arena, out, "grant", err);
}

#define GRANT_OTHERS                                                                                       \
    "($2 = '' OR tenant_id = $2) AND ($3 = '' OR grantee_key_id = $3) AND ($4 = 0 OR (revoked_us = 0 AND " \
    "expires_us > $4)) ORDER BY id DESC"

bool store_mail_grant_list(struct store *store, const struct mail_grant_filter *filter, struct arena *arena,
                           struct mail_grant_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    /* Parameters are numbered as they appear; two queries, so that each uses an index. */
    const char *query = filter->inbox_id.len ? GRANT_SELECT "inbox_id = $1 AND " GRANT_OTHERS
                                             : GRANT_SELECT "$1 = '' AND " GRANT_OTHERS;

    return (sql_select(store->sql, query,
                       SQL_ARGS(sql_text(filter->inbox_id), sql_text(filter->tenant_id),
                                sql_text(filter->grantee_key_id), sql_int(filter->in_force_us)),
                       &rows, err) &&
            ROWS_READ(&rows, grant_read, arena, out, out_count, err)) ||
           err_wrap(err, "list grants");
}

bool store_mail_grant_ended(struct store *store, int64_t now_us, uint32_t limit, struct arena *arena,
                            struct mail_grant_row **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return (sql_select(store->sql, GRANT_SELECT "revoked_us = 0 AND expires_us <= $1 LIMIT $2",
                       SQL_ARGS(sql_int(now_us), sql_int(limit)), &rows, err) &&
            ROWS_READ(&rows, grant_read, arena, out, out_count, err)) ||
           err_wrap(err, "find grants that have ended");
}

#define NO_GRANT ERR_NOT_FOUND, "there is no such grant"

bool store_mail_grant_effective(struct store *store, struct str id, struct str sealed, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok = change_one(store, "UPDATE mail_grants SET sealed = $1 WHERE id = $2 AND revoked_us = 0",
                         SQL_ARGS(mail_bytes(&arena, sealed), sql_text(id)), NO_GRANT, err);
    arena_done(&arena);
    return ok;
}

bool store_mail_grant_settled(struct store *store, struct str inbox_id, int64_t now_us, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return mail_change(store,
                       "UPDATE mail_inboxes SET grants_wait = 0 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM "
                       "mail_grants g WHERE g.inbox_id = $1 AND g.revoked_us = 0 AND g.sealed = '' AND "
                       "g.expires_us > $2)",
                       SQL_ARGS(sql_text(inbox_id), sql_int(now_us)), NULL, err) ||
           err_wrap(err, "settle grants");
}

bool store_mail_grant_revoke(struct store *store, struct str id, struct err *err)
{
    return change_one(store, "UPDATE mail_grants SET revoked_us = $1, sealed = '' WHERE id = $2 AND revoked_us = 0",
                      SQL_ARGS(sql_int(clock_wall_us()), sql_text(id)), NO_GRANT, err);
}

/* ---- rates ---- */

static const int64_t AHEAD_US =
    60 * 1000000; /* what is later than this from now was counted before the clock went back */

static bool rate_count(struct store *store, const char *what, struct str who, uint32_t most, int64_t window_us,
                       uint32_t *out_retry_s, struct err *err)
{
    int64_t now_us = clock_wall_us(), count, oldest_us;
    struct sql_value of = sql_text(str_from(what)), by = sql_text(who);

    if (!sql_exec(store->sql, "DELETE FROM mail_rates WHERE what = $1 AND (at_us <= $2 OR at_us > $3)",
                  SQL_ARGS(of, sql_int(now_us - window_us), sql_int(now_us + AHEAD_US)), err) ||
        !number_of(store, "SELECT COUNT(*) FROM mail_rates WHERE what = $1 AND who = $2", SQL_ARGS(of, by), &count,
                   err))
        return false;
    if (count < most)
        return sql_exec(store->sql, "INSERT INTO mail_rates (what, who, at_us) VALUES ($1, $2, $3)",
                        SQL_ARGS(of, by, sql_int(now_us)), err);
    if (!number_of(store, "SELECT MIN(at_us) FROM mail_rates WHERE what = $1 AND who = $2", SQL_ARGS(of, by),
                   &oldest_us, err))
        return false;
    if (!count)
        oldest_us = now_us; /* none is allowed at all */
    *out_retry_s = (uint32_t)((oldest_us + window_us - now_us) / 1000000 + 1);
    return err_set(err, ERR_LIMIT, "too many of these: at most %u in %u minutes; try again in %u seconds", most,
                   (unsigned)(window_us / 60000000), *out_retry_s);
}

bool store_mail_rate(struct store *store, const char *what, struct str who, uint32_t most, int64_t window_us,
                     uint32_t *out_retry_s, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    *out_retry_s = 0;
    if (!sql_begin(store->sql, SQL_LAZY, err))
        return err_wrap(err, "count against a limit");
    bool ok = rate_count(store, what, who, most, window_us, out_retry_s, err);
    return sql_end(store->sql, ok, err) || err_wrap(err, "count against a limit");
}
