/*
 * sql.h - a connection to a database, and queries written once for all of them.
 *
 * Queries are string literals in the SQL that SQLite and PostgreSQL share, with parameters $1, $2… in the order of
 * their first appearance. Each is prepared when first used and kept.
 *
 * Threads    One at a time: the store holds a lock around it. Only sql_checkpoint_behind() starts a thread; sql_close() ends
 *            it.
 * Failure    ERR_UNAVAILABLE when the database stays busy too long, ERR_CONFLICT when a constraint fails, ERR_FULL when
 *            the disk is full and the reserve is used up, ERR_INTERNAL for the rest.
 */
#ifndef STORE_SQL_H
#define STORE_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct sql;

struct sql *sql_open(const char *path, struct err *err) must_use;
/*
 * A small database of one process: no reserve for a full disk, no file for the log's index, and what is deleted is
 * overwritten.
 */
struct sql *sql_open_small(const char *path, struct err *err) must_use;
/*
 * From here on a thread makes the checkpoints, and commits do not wait for them. Only for a program that does not fork
 * afterwards: the child would have the locks that the thread held. If it fails, commits make them as before.
 */
bool sql_checkpoint_behind(struct sql *sql, struct err *err) must_use;
void sql_close(struct sql *sql);

/* ---- parameters ---- */

enum sql_type {
    SQL_NULL,
    SQL_INT,
    SQL_TEXT,
    SQL_BLOB,
};

struct sql_value {
    enum sql_type type;
    int64_t number;
    struct str text;
};

static inline struct sql_value sql_int(int64_t number)
{
    return (struct sql_value){ .type = SQL_INT, .number = number };
}

static inline struct sql_value sql_text(struct str text)
{
    return (struct sql_value){ .type = SQL_TEXT, .text = text };
}

/* Bytes; read them with sql_row_text(). */
static inline struct sql_value sql_blob(struct str bytes)
{
    return (struct sql_value){ .type = SQL_BLOB, .text = bytes };
}

/* NULL for an empty text: for columns that hold NULL for "none". */
static inline struct sql_value sql_text_or_null(struct str text)
{
    return text.len ? sql_text(text) : (struct sql_value){ .type = SQL_NULL };
}

/* Expands to the two arguments `args, count`. */
#define SQL_ARGS(...)                          \
    (const struct sql_value[]){ __VA_ARGS__ }, \
        sizeof((const struct sql_value[]){ __VA_ARGS__ }) / sizeof(struct sql_value)
#define SQL_NO_ARGS NULL, 0

/* ---- changes ---- */

/* Several statements without parameters: migrations. */
bool sql_script(struct sql *sql, const char *script, struct err *err) must_use;
bool sql_exec(struct sql *sql, const char *query, const struct sql_value *args, size_t count, struct err *err) must_use;
/*
 * Calls fn for each row that a query of this connection inserts, updates or deletes, with its table, before the commit. Not for
 * a DELETE without WHERE, and not for tables WITHOUT ROWID.
 */
void sql_on_change(struct sql *sql, void (*fn)(void *context, const char *table), void *context);
int64_t sql_changed(const struct sql *sql); /* rows that the last sql_exec() changed */

enum sql_durability {
    SQL_LAZY,    /* survives the end of our process, perhaps not a power cut */
    SQL_DURABLE, /* on disk when sql_end() returns */
};
bool sql_begin(struct sql *sql, enum sql_durability durability, struct err *err) must_use;
/* Commits if all went well so far, else rolls back and leaves err as it is. True when committed. */
bool sql_end(struct sql *sql, bool all_well, struct err *err) must_use;

/* ---- reading ---- */

struct sql_rows {
    struct sql *sql;
    void *statement;
};

bool sql_select(struct sql *sql, const char *query, const struct sql_value *args, size_t count,
                struct sql_rows *out_rows, struct err *err) must_use;
bool sql_next(struct sql_rows *rows, bool *out_there, struct err *err) must_use;
int64_t sql_row_int(const struct sql_rows *rows, int column);     /* NULL reads as 0 */
struct str sql_row_text(const struct sql_rows *rows, int column); /* until the next sql_next(); NULL reads as "" */
void sql_rows_done(struct sql_rows *rows);
#define auto_rows __attribute__((cleanup(sql_rows_done)))

#endif
