/*
 * temp_store.h - a store in a directory of its own, for tests.
 */
#ifndef TESTS_STORE_TEMP_STORE_H
#define TESTS_STORE_TEMP_STORE_H

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/store.h"
#include "test.h"

struct temp_store {
    char dir[64];
    char path[96];
    const char *node_id;
    struct store *store;
    struct arena arena;
};

/* Takes back the migrations after 19, for tests that make a store look older than that. */
#define UNDO_AFTER_19                                                    \
    "DROP INDEX mail_inboxes_ended; DROP INDEX mail_sandboxes_by_inbox;" \
    "ALTER TABLE mail_inboxes DROP COLUMN stays;"                        \
    "DROP INDEX mail_inboxes_bytes;"                                     \
    "ALTER TABLE mail_inboxes DROP COLUMN bytes;"                        \
    "DROP TABLE mail_gone_addresses;"

static inline void temp_store_reopen(struct temp_store *t)
{
    struct err err;

    store_close(t->store);
    t->store = store_open(t->path, str_from(t->node_id), &err);
    if (!t->store)
        fail_msg("%s", err_text(&err));
}

static inline void temp_store_make(struct temp_store *t)
{
    *t = (struct temp_store){ .node_id = "node1" };
    snprintf(t->dir, sizeof t->dir, "/tmp/cloister-store.XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    snprintf(t->path, sizeof t->path, "%s/db", t->dir);
    arena_init(&t->arena);
    temp_store_reopen(t);
}

static inline void temp_store_drop(struct temp_store *t)
{
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    char path[128];

    store_close(t->store);
    arena_done(&t->arena);
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        snprintf(path, sizeof path, "%s%s", t->path, suffixes[i]);
        unlink(path);
    }
    rmdir(t->dir);
}

/* What an operator could do with the sqlite3 shell. */
static inline void temp_store_by_hand(struct temp_store *t, const char *script)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(t->path, &db), SQLITE_OK);
    if (sqlite3_exec(db, script, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* What a query like SELECT COUNT(*) says. */
static inline int temp_store_ask(struct temp_store *t, const char *query)
{
    sqlite3 *db;
    sqlite3_stmt *statement;

    assert_int_equal(sqlite3_open(t->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, query, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int answer = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return answer;
}

static inline int temp_store_set_up(void **state)
{
    struct temp_store *t = calloc(1, sizeof *t);

    temp_store_make(t);
    *state = t;
    return 0;
}

static inline int temp_store_tear_down(void **state)
{
    temp_store_drop(*state);
    free(*state);
    return 0;
}

#define MUST(call)                          \
    do {                                    \
        struct err err = { 0 };             \
        if (!(call))                        \
            fail_msg("%s", err_text(&err)); \
    } while (0)

#define MUST_FAIL(call, want_kind)                                                                               \
    do {                                                                                                         \
        struct err err = { 0 };                                                                                  \
        if (call)                                                                                                \
            fail_msg("it should have failed");                                                                   \
        if (err.kind != (want_kind))                                                                             \
            fail_msg("kind %s, want %s: %s", err_kind_name[err.kind], err_kind_name[want_kind], err_text(&err)); \
    } while (0)

#endif
