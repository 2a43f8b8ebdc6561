/*
 * SQLite beneath sql.h.
 *
 * Write-ahead log: readers with other tools do not stop us, and a commit is one append. Statements are kept in a map
 * from their text. Durability is chosen for each transaction by PRAGMA synchronous: with NORMAL a commit is in the page
 * cache, which a killed process cannot take back and a power cut can; with FULL it is fsynced, and everything committed
 * before it too, because the log is one file. That pragma takes effect while it is compiled, so it is never kept as a
 * prepared statement.
 *
 * Checkpoints: copying the log to the database needs two fsyncs, milliseconds in which no query can run. A program that
 * never forks can have a second connection with a thread of its own for this (sql_checkpoint_behind()). The thread makes a
 * checkpoint when a commit has made the log longer than LOG_PAGES. SQLite lets this go on beside reads and commits. The next
 * commit after a complete checkpoint writes to the start of the log again. If commits come faster than the disk takes them, or
 * the thread's checkpoints fail, the log grows to LOG_PAGES_MAX; then the commit makes the checkpoint itself.
 *
 * Reserve: guests can fill the file system that the store is on, and then sandboxes must still be found, changed and
 * removed. So the space is allocated in advance, in files that are overwritten in place:
 *   -wal   LOG_ROOM_BYTES from the start, and kept when we close
 *   db     PAGES_ROOM_BYTES of free pages, for the pages that a checkpoint writes there
 *   -shm   SQLite truncates it at each start and maps it: a hole in it that cannot be filled is a SIGBUS. So all its
 *          blocks are allocated at the start. Without space for that, the index is kept in memory, and no other program
 *          can read the store while we run
 * A copy-on-write file system (btrfs) takes new blocks for what is overwritten: the reserve does not work there.
 */
#include "store/sql.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    BUSY_TIMEOUT_MS = 5000,     /* the only other writer is a person with the sqlite3 shell */
    LOG_PAGES = 1000,           /* as SQLite has it; about 55 sandboxes made and ended */
    LOG_PAGES_MAX = 3000,       /* with the largest transaction, keep_pages(), less than LOG_ROOM_BYTES… */
    LOG_ROOM_BYTES = 15 << 20,  /* …which is less than the 4062 pages that the first block of the index is for */
    PAGES_ROOM_BYTES = 2 << 20, /* some thousand changes of sandboxes with their events */
    ROOM_COMMITS = 256,         /* between two looks at the free pages, which normal use takes too */
};

struct kept {
    sqlite3_stmt *statement;
    char *query; /* the map's key */
};

/* See the top of this file. */
struct checkpoints {
    sqlite3 *db; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* around the next three */
    pthread_cond_t wake;
    bool is_wanted, is_ending;
    pthread_mutex_t turn; /* held during a checkpoint: SQLite refuses a second one at the same time */
};

struct sql {
    sqlite3 *db;
    struct checkpoints *checkpoints; /* NULL: SQLite makes them, in commits */
    struct map statements;           /* query → struct kept */
    bool durable;                    /* the transaction under way wants FULL */
    unsigned commits;                /* since the start; see ROOM_COMMITS */
    int log_fd, index_fd;            /* -wal and -shm, see open_beside(); or -1 */
    bool is_alone;                   /* no other connection can read the database */
    void (*on_change)(void *context, const char *table);
    void *on_change_context;
};

static bool is_nearly_full(const char *path)
{
    struct statvfs fs;

    if (statvfs(path, &fs) < 0)
        return false;
    struct fd_room room = fd_room(&fs);
    return room.few_bytes || room.few_inodes;
}

static bool fail(struct sql *sql, const char *what, struct err *err)
{
    int code = sqlite3_errcode(sql->db) & 0xff;
    const char *why = sqlite3_errmsg(sql->db);
    const char *path = sqlite3_db_filename(sql->db, "main");

    /* On a full disk SQLite reports only that a file is not there. */
    if ((code == SQLITE_IOERR || code == SQLITE_CANTOPEN) && path && is_nearly_full(path))
        code = SQLITE_FULL;
    switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_set(err, ERR_UNAVAILABLE, "the store is busy: another program holds it open for writing");
    case SQLITE_CONSTRAINT:
        return err_set(err, ERR_CONFLICT, "the store rejected the change: %s", why);
    case SQLITE_FULL:
        return err_set(err, ERR_FULL, "the file system of %.60s is full, the store's reserve too: remove files there",
                       path ? path : "the store");
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return err_set(err, ERR_INTERNAL, "the store is damaged (%.60s): restore a copy, or move it away to start anew",
                       why);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return err_set(
            err, ERR_INTERNAL,
            "the store cannot be written (%.45s): its directory must belong to the server's user, who must be "
            "able to enter those above it",
            why);
    default:
        return err_set(err, ERR_INTERNAL, "%.80s: %s", what, why);
    }
}

/*
 * SQLite would make the file readable for every user, and its log gets the mode of the file. So we create it first.
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
    return sql_script(sql,
                      "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA synchronous = NORMAL;"
                      "PRAGMA journal_size_limit = -1; PRAGMA temp_store = MEMORY;"
                      "PRAGMA secure_delete = FAST;" /* environments: overwritten in pages that are written anyway */,
                      err);
}

/* ---- checkpoints ---- */

/* Whatever is in the log, as far as no reader of another program needs it there. */
static int checkpoint(struct checkpoints *checkpoints, sqlite3 *db)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&checkpoints->turn);

    return sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

static void *checkpoint_when_wanted(void *argument)
{
    struct checkpoints *checkpoints = argument;
    bool had_failed = false;

    (void)pthread_mutex_lock(&checkpoints->lock);
    while (!checkpoints->is_ending) {
        if (!checkpoints->is_wanted) {
            (void)pthread_cond_wait(&checkpoints->wake, &checkpoints->lock);
            continue;
        }
        checkpoints->is_wanted = false;
        (void)pthread_mutex_unlock(&checkpoints->lock);
        int code = checkpoint(checkpoints, checkpoints->db);
        bool failed = code != SQLITE_OK && code != SQLITE_BUSY; /* busy: another program makes one */
        if (failed && !had_failed)
            log_warn("store: the log cannot be copied to the database, and grows: %s", sqlite3_errstr(code));
        had_failed = failed;
        (void)pthread_mutex_lock(&checkpoints->lock);
    }
    (void)pthread_mutex_unlock(&checkpoints->lock);
    return NULL;
}

/* After each commit. What it returns would be the commit's result, which a failed checkpoint does not change. */
static int on_commit(void *context, sqlite3 *db, const char *name, int log_pages)
{
    struct checkpoints *checkpoints = context;

    (void)name;
    if (log_pages >= LOG_PAGES_MAX) {
        (void)checkpoint(checkpoints, db); /* if it fails, the next commit tries again */
    } else if (log_pages >= LOG_PAGES) {
        auto_unlock pthread_mutex_t *held = lock_mutex(&checkpoints->lock);
        checkpoints->is_wanted = true;
        (void)pthread_cond_signal(&checkpoints->wake);
    }
    return SQLITE_OK;
}

static void checkpoints_free(struct checkpoints *checkpoints)
{
    (void)sqlite3_close(checkpoints->db);
    (void)pthread_mutex_destroy(&checkpoints->turn);
    (void)pthread_cond_destroy(&checkpoints->wake);
    (void)pthread_mutex_destroy(&checkpoints->lock);
    free(checkpoints);
}

static bool start_thread(struct checkpoints *checkpoints, struct err *err)
{
    sigset_t all, before;

    (void)sigfillset(&all); /* signals are for the loop's thread */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&checkpoints->thread, NULL, checkpoint_when_wanted, checkpoints);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure == 0 || err_sys_num(err, failure, "start a thread");
}

/*
 * synchronous NORMAL: a checkpoint is on disk before the log is used again, which OFF would not wait for. The query opens the
 * log.
 */
bool sql_checkpoint_behind(struct sql *sql, struct err *err)
{
    assert(!sql->checkpoints);
    if (sql->is_alone)
        return err_set(err, ERR_UNAVAILABLE, "the disk was nearly full when the store was opened");
    struct checkpoints *checkpoints = NEW(struct checkpoints);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;

    (void)pthread_mutex_init(&checkpoints->lock, NULL);
    (void)pthread_cond_init(&checkpoints->wake, NULL);
    (void)pthread_mutex_init(&checkpoints->turn, NULL);
    int code = sqlite3_open_v2(sqlite3_db_filename(sql->db, "main"), &checkpoints->db, flags, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_exec(checkpoints->db, "PRAGMA synchronous = NORMAL; SELECT COUNT(*) FROM sqlite_master", NULL,
                            NULL, NULL);
    if (code != SQLITE_OK)
        (void)err_set(err, ERR_INTERNAL, "open the store: %s", sqlite3_errstr(code));
    if (code != SQLITE_OK || !start_thread(checkpoints, err)) {
        checkpoints_free(checkpoints);
        return false;
    }
    sql->checkpoints = checkpoints;
    (void)sqlite3_wal_hook(sql->db, on_commit, checkpoints); /* in place of SQLite's own, which makes checkpoints */
    return true;
}

/* Before the connection that commits is closed: the last one that closes makes a checkpoint. */
static void stop_checkpoints(struct sql *sql)
{
    struct checkpoints *checkpoints = take_ptr(&sql->checkpoints);

    if (!checkpoints)
        return;
    (void)sqlite3_wal_hook(sql->db, NULL, NULL);
    (void)pthread_mutex_lock(&checkpoints->lock);
    checkpoints->is_ending = true;
    (void)pthread_cond_signal(&checkpoints->wake);
    (void)pthread_mutex_unlock(&checkpoints->lock);
    (void)pthread_join(checkpoints->thread, NULL);
    checkpoints_free(checkpoints);
}

/* ---- room ---- */

/*
 * The descriptor is closed only after sqlite3_close(). POSIX locks belong to the process: closing any descriptor of a
 * file drops all locks that SQLite holds on it. The next program that opens the store would believe that it is the first
 * and truncate -shm, which we have mapped: SIGBUS. So nothing else here may open the store's files either.
 */
static int open_beside(const char *path, const char *suffix, struct stat *out_stat, struct err *err)
{
    char name[512];

    (void)snprintf(name, sizeof name, "%s%s", path, suffix); /* a cut name does not exist */
    /* stat first: if fstat failed after the open, we would have to close the descriptor. */
    int fd = stat(name, out_stat) < 0 ? -1 : open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        (void)err_sys(err, "open %s", name);
    return fd;
}

static bool keep_index(struct sql *sql, const char *path, struct err *err)
{
    struct stat st;

    sql->index_fd = open_beside(path, "-shm", &st, err);
    /* Fills holes and leaves the contents alone. */
    return sql->index_fd >= 0 &&
           (fallocate(sql->index_fd, 0, 0, st.st_size) == 0 || err_sys(err, "fill the index of the store's log"));
}

/* Writes zeroes to the end: SQLite does not take them for records, and overwrites them. */
static bool keep_log(struct sql *sql, const char *path, struct err *err)
{
    static const char zeroes[64 * 1024];
    struct stat st;

    sql->log_fd = open_beside(path, "-wal", &st, err);
    if (sql->log_fd < 0)
        return false;
    for (off_t at = st.st_size; at < LOG_ROOM_BYTES;) {
        ssize_t n = pwrite(sql->log_fd, zeroes, MIN(sizeof zeroes, (size_t)(LOG_ROOM_BYTES - at)), at);
        if (n <= 0)
            return err_sys(err, "write the store's log");
        at += n;
    }
    return true;
}

static int64_t pragma_number(struct sql *sql, const char *query)
{
    auto_rows struct sql_rows rows = { 0 };
    struct err ignored;
    bool there = false;

    return sql_select(sql, query, SQL_NO_ARGS, &rows, &ignored) && sql_next(&rows, &there, &ignored) && there
               ? sql_row_int(&rows, 0)
               : 0;
}

static bool checkpoint_now(struct sql *sql, struct err *err)
{
    int code = sql->checkpoints ? checkpoint(sql->checkpoints, sql->db)
                                : sqlite3_wal_checkpoint_v2(sql->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);

    return code == SQLITE_OK || code == SQLITE_BUSY || fail(sql, "make a checkpoint", err);
}

/* An insert and a delete leave free pages, which SQLite uses before it makes the file longer. */
static void keep_pages(struct sql *sql)
{
    char script[160];
    struct err err;
    int64_t free_bytes = pragma_number(sql, "PRAGMA freelist_count") * pragma_number(sql, "PRAGMA page_size");

    /* Not when the disk is nearly full: then the log would hold pages that the database has no space for. */
    if (free_bytes >= PAGES_ROOM_BYTES / 2 || is_nearly_full(sqlite3_db_filename(sql->db, "main")))
        return;
    (void)snprintf(script, sizeof script,
                   "CREATE TABLE IF NOT EXISTS room (bytes BLOB);"
                   "INSERT INTO room (bytes) VALUES (zeroblob(%d));",
                   PAGES_ROOM_BYTES);
    if (!sql_script(sql, script, &err) || !checkpoint_now(sql, &err) || !sql_script(sql, "DELETE FROM room", &err) ||
        !checkpoint_now(sql, &err))
        log_warn("store: no reserve for a full disk: %s", err_text(&err));
}

static void keep_room(struct sql *sql, const char *path, bool has_index)
{
    int persist = 1;
    struct err err;

    (void)sqlite3_file_control(sql->db, "main", SQLITE_FCNTL_PERSIST_WAL, &persist);
    keep_pages(sql); /* first: a new database has no log before its first query */
    if (!keep_log(sql, path, &err) || (has_index && !keep_index(sql, path, &err)))
        log_warn("store: no reserve for a full disk: %s", err_text(&err));
}

/* ---- opening ---- */

static struct sql *open_database(const char *path, bool alone, struct err *err)
{
    struct sql *sql = NEW(struct sql);
    sql->log_fd = sql->index_fd = -1;
    sql->is_alone = alone;
    map_init(&sql->statements);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    if (sqlite3_open_v2(path, &sql->db, flags, NULL) != SQLITE_OK) {
        (void)fail(sql, "open the store", err);
        sql_close(sql);
        return NULL;
    }
    /* Before the first query, with which SQLite decides where the log's index is. */
    if ((alone && !sql_script(sql, "PRAGMA locking_mode = EXCLUSIVE", err)) || !set_up(sql, err)) {
        sql_close(sql);
        return NULL;
    }
    return sql;
}

struct sql *sql_open(const char *path, struct err *err)
{
    if (!make_private_file(path, err))
        return NULL;
    bool alone = is_nearly_full(path);
    struct sql *sql = open_database(path, alone, err);
    if (sql && alone)
        log_warn("store: the disk is nearly full; until the next start no other program can read the store");
    if (sql)
        keep_room(sql, path, !alone);
    return sql;
}

struct sql *sql_open_small(const char *path, struct err *err)
{
    if (!make_private_file(path, err))
        return NULL;
    struct sql *sql = open_database(path, true, err);
    if (sql && !sql_script(sql, "PRAGMA secure_delete = ON; PRAGMA journal_size_limit = 0", err)) {
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
    stop_checkpoints(sql);
    sqlite3_close(sql->db);
    fd_close(&sql->log_fd);
    fd_close(&sql->index_fd);
    free(sql);
}

static sqlite3_stmt *prepare(struct sql *sql, const char *query, struct err *err)
{
    struct kept *kept = map_get(&sql->statements, str_from(query));

    if (kept) {
        assert(!sqlite3_stmt_busy(kept->statement)); /* its rows must be closed before it is run again */
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

/* SQLite numbers $1, $2… by first appearance, PostgreSQL by the number. In our queries both are the same. */
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
        case SQL_BLOB:
            code = sqlite3_bind_blob64(statement, at, args[i].text.at ? args[i].text.at : "", args[i].text.len,
                                       SQLITE_STATIC);
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

static void on_update(void *context, int what, const char *database, const char *table, sqlite3_int64 row)
{
    const struct sql *sql = context;

    (void)what;
    (void)database;
    (void)row;
    sql->on_change(sql->on_change_context, table);
}

void sql_on_change(struct sql *sql, void (*fn)(void *context, const char *table), void *context)
{
    sql->on_change = fn;
    sql->on_change_context = context;
    (void)sqlite3_update_hook(sql->db, on_update, sql);
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
        (void)sqlite3_exec(sql->db, "ROLLBACK", NULL, NULL, NULL); /* fails only if SQLite has rolled back already */
    if (sql->durable)
        (void)sqlite3_exec(sql->db, "PRAGMA synchronous = NORMAL", NULL, NULL,
                           NULL); /* if it stays FULL, commits are slower, not wrong */
    sql->durable = false;
    if (committed && ++sql->commits % ROOM_COMMITS == 0)
        keep_pages(sql);
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
    bool is_blob = sqlite3_column_type(rows->statement, column) == SQLITE_BLOB;
    const void *text = is_blob ? sqlite3_column_blob(rows->statement, column)
                               : (const void *)sqlite3_column_text(rows->statement, column);

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
