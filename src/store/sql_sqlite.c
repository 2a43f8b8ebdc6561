/*
 * SQLite beneath sql.h.
 *
 * Write-ahead log: readers with other tools do not stop us, and a commit is one append. Statements are kept in a map
 * from their text. Durability is chosen for each transaction by PRAGMA synchronous: with NORMAL a commit is in the page
 * cache, which a killed process cannot take back and a power cut can; with FULL it is fsynced, and everything committed
 * before it too, because the log is one file. That pragma takes effect while it is compiled, so it is never kept as a
 * prepared statement.
 */
#include "store/sql.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/map.h"
#include "base/mem.h"

enum { BUSY_TIMEOUT_MS = 5000 }; /* we are the only writer but for a curious person with the sqlite3 shell */

struct kept {
    sqlite3_stmt *statement;
    char *query; /* the map's key */
};

struct sql {
    sqlite3 *db;
    struct map statements; /* query → struct kept */
    bool durable;          /* the transaction under way wants FULL */
};

static bool fail(struct sql *sql, const char *what, struct err *err)
{
    int code = sqlite3_errcode(sql->db) & 0xff;
    const char *why = sqlite3_errmsg(sql->db);

    switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_set(err, ERR_UNAVAILABLE, "the store is busy: another program holds it open for writing");
    case SQLITE_CONSTRAINT:
        return err_set(err, ERR_CONFLICT, "the store refuses: %s", why);
    case SQLITE_FULL:
        return err_set(err, ERR_INTERNAL, "the disk that holds the store is full: free some space");
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return err_set(err, ERR_INTERNAL, "the store is damaged (%.60s): restore a copy, or move it away to start anew",
                       why);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return err_set(err, ERR_INTERNAL,
                       "the store cannot be written (%.60s): its directory must belong to the user the server runs as",
                       why);
    default:
        return err_set(err, ERR_INTERNAL, "%.80s: %s", what, why);
    }
}

/*
 * SQLite would make the file readable for everybody, and its log takes the mode of the file: make it ourselves, first.
 */
static bool make_private_file(const char *path, struct err *err)
{
    auto_close int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat st;

    if (fd < 0)
        return err_sys(err, "open the store %s", path);
    if (fstat(fd, &st) < 0)
        return err_sys(err, "stat the store %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "the store %s is not a file", path);
    if ((st.st_mode & 077) && fchmod(fd, 0600) < 0)
        return err_sys(err, "make the store %s private", path);
    return true;
}

static bool set_up(struct sql *sql, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    sqlite3_busy_timeout(sql->db, BUSY_TIMEOUT_MS);
    if (!sql_select(sql, "PRAGMA journal_mode = WAL", SQL_NO_ARGS, &rows, err) || !sql_next(&rows, &there, err))
        return false;
    if (!there || !str_eq(sql_row_text(&rows, 0), STR("wal")))
        return err_set(err, ERR_INTERNAL, "the store's file system cannot hold a write-ahead log: use a local disk");
    return sql_script(sql, "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA synchronous = NORMAL;", err);
}

struct sql *sql_open(const char *path, struct err *err)
{
    if (!make_private_file(path, err))
        return NULL;
    struct sql *sql = NEW(struct sql);
    map_init(&sql->statements);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    if (sqlite3_open_v2(path, &sql->db, flags, NULL) != SQLITE_OK) {
        (void)fail(sql, "open the store", err);
        sql_close(sql);
        return NULL;
    }
    if (!set_up(sql, err)) {
        sql_close(sql);
        return NULL;
    }
    return sql;
}

void sql_close(struct sql *sql)
{
    struct kept *kept;

    if (!sql)
        return;
    for (size_t i = 0; (kept = map_next(&sql->statements, &i));) {
        sqlite3_finalize(kept->statement);
        free(kept->query);
        free(kept);
    }
    map_done(&sql->statements);
    sqlite3_close(sql->db);
    free(sql);
}

static sqlite3_stmt *prepare(struct sql *sql, const char *query, struct err *err)
{
    struct kept *kept = map_get(&sql->statements, str_from(query));

    if (kept) {
        assert(!sqlite3_stmt_busy(kept->statement)); /* one at a time, closed before it is asked again */
        return kept->statement;
    }
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v3(sql->db, query, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL) != SQLITE_OK) {
        (void)fail(sql, query, err);
        return NULL;
    }
    kept = NEW(struct kept);
    kept->statement = statement;
    kept->query = mem_copy_text(query);
    map_put(&sql->statements, str_from(kept->query), kept);
    return statement;
}

/* SQLite numbers $1, $2… by first appearance; PostgreSQL by what they say. The queries keep the two the same. */
static bool bind_all(struct sql *sql, sqlite3_stmt *statement, const struct sql_value *args, size_t count,
                     struct err *err)
{
    assert((size_t)sqlite3_bind_parameter_count(statement) == count);
    for (size_t i = 0; i < count; i++) {
        int at = (int)i + 1;
        int code = SQLITE_OK;
        switch (args[i].type) {
        case SQL_NULL:
            code = sqlite3_bind_null(statement, at);
            break;
        case SQL_INT:
            code = sqlite3_bind_int64(statement, at, args[i].number);
            break;
        case SQL_TEXT:
            code = sqlite3_bind_text64(statement, at, args[i].text.at ? args[i].text.at : "", args[i].text.len,
                                       SQLITE_STATIC, SQLITE_UTF8);
            break;
        }
        if (code != SQLITE_OK)
            return fail(sql, "bind a parameter", err);
    }
    return true;
}

bool sql_script(struct sql *sql, const char *script, struct err *err)
{
    if (sqlite3_exec(sql->db, script, NULL, NULL, NULL) != SQLITE_OK)
        return fail(sql, "run a script", err);
    return true;
}

bool sql_exec(struct sql *sql, const char *query, const struct sql_value *args, size_t count, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    return sql_select(sql, query, args, count, &rows, err) && sql_next(&rows, &there, err);
}

int64_t sql_changed(const struct sql *sql)
{
    return sqlite3_changes64(sql->db);
}

bool sql_begin(struct sql *sql, enum sql_durability durability, struct err *err)
{
    sql->durable = durability == SQL_DURABLE;
    if (sql->durable && !sql_script(sql, "PRAGMA synchronous = FULL", err))
        return false;
    /* IMMEDIATE: wait for other writers now, not in the middle, where SQLite could only give up. */
    return sql_exec(sql, "BEGIN IMMEDIATE", SQL_NO_ARGS, err) || sql_end(sql, false, err);
}

bool sql_end(struct sql *sql, bool all_well, struct err *err)
{
    bool committed = all_well && sql_exec(sql, "COMMIT", SQL_NO_ARGS, err);

    if (!committed && !sqlite3_get_autocommit(sql->db))
        (void)sqlite3_exec(sql->db, "ROLLBACK", NULL, NULL, NULL); /* fails only where SQLite did it by itself */
    if (sql->durable)
        (void)sqlite3_exec(sql->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL); /* FULL is slower, never wrong */
    sql->durable = false;
    return committed;
}

bool sql_select(struct sql *sql, const char *query, const struct sql_value *args, size_t count,
                struct sql_rows *out_rows, struct err *err)
{
    sqlite3_stmt *statement = prepare(sql, query, err);

    if (!statement || !bind_all(sql, statement, args, count, err))
        return false;
    *out_rows = (struct sql_rows){ .sql = sql, .statement = statement };
    return true;
}

bool sql_next(struct sql_rows *rows, bool *out_there, struct err *err)
{
    int code = sqlite3_step(rows->statement);

    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return fail(rows->sql, "run a query", err);
    *out_there = code == SQLITE_ROW;
    return true;
}

int64_t sql_row_int(const struct sql_rows *rows, int column)
{
    return sqlite3_column_int64(rows->statement, column);
}

struct str sql_row_text(const struct sql_rows *rows, int column)
{
    const void *text = sqlite3_column_text(rows->statement, column);

    return text ? str_of(text, (size_t)sqlite3_column_bytes(rows->statement, column)) : STR("");
}

void sql_rows_done(struct sql_rows *rows)
{
    if (!rows->statement)
        return;
    sqlite3_reset(rows->statement);
    sqlite3_clear_bindings(rows->statement); /* they point at memory of the caller */
    rows->statement = NULL;
}
