/*
 * inbox_office.h - real workers of inboxes for tests: front's office.c on this side, a forked child that runs inbox_serve()
 * in the inbox's directory on the other. A worker can be killed between two calls, or from inside when it changes its n-th
 * row.
 *
 * Ownership  One source file of a test program includes this.
 */
#ifndef TESTS_MAIL_INBOX_OFFICE_H
#define TESTS_MAIL_INBOX_OFFICE_H

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/remove.h"
#include "mail/inbox.h"
#include "mail/inside.h"
#include "test.h"

#define OFFICE_INBOX "01HZZZZZZZZZZZZZZZZZZZZZZZ"
#define OFFICE_COMPOSER "01HCOMPOSER000000000000000"
#define OFFICE_HOUR_US (INT64_C(3600) * 1000000)

struct office {
    char dir[64];
    struct mail *mail;
    struct arena arena;
    pid_t workers[64]; /* started and not yet waited for */
    int worker_count;
    struct seal_key inbox_public;
    struct mail_approver approver;
    struct mail_reader reader;
    struct mail_limits limits;
    int64_t now_us;
    unsigned serial; /* of messages, so that each is different */
};

/* ---- workers ---- */

static long office_rows_left; /* changes that each new worker makes before it kills itself; 0: it does not */

static void office_row_changed(void *context, int op, const char *database, const char *table, sqlite3_int64 row)
{
    (void)context, (void)op, (void)database, (void)table, (void)row;
    if (office_rows_left > 0 && --office_rows_left == 0)
        (void)raise(SIGKILL);
}

static bool office_dies_after; /* the next worker dies after its first commit, before it answers */

static int office_statement_ended(unsigned what, void *context, void *statement, void *time)
{
    (void)what, (void)context, (void)time;
    if (office_dies_after && strcmp(sqlite3_sql(statement), "COMMIT") == 0)
        (void)raise(SIGKILL);
    return 0;
}

/* Before the commit is written. */
static int office_commits(void *context)
{
    (void)context;
    office_row_changed(NULL, 0, NULL, NULL, 0);
    return 0;
}

static int office_watch(sqlite3 *db, const char **message, const struct sqlite3_api_routines *api)
{
    (void)message, (void)api;
    sqlite3_update_hook(db, office_row_changed, NULL);
    sqlite3_commit_hook(db, office_commits, NULL);
    (void)sqlite3_trace_v2(db, SQLITE_TRACE_PROFILE, office_statement_ended, NULL);
    return SQLITE_OK;
}

static void office_serve(const struct office *o, const char *inbox_id, int fd)
{
    char path[128];
    struct err err;

    snprintf(path, sizeof path, "%s/%s", o->dir, inbox_id);
    if (office_rows_left || office_dies_after)
        (void)sqlite3_auto_extension((void (*)(void))(uintptr_t)office_watch);
    bool fine = chdir(path) == 0 && inbox_serve(fd, &err);
    _exit(fine ? 0 : 1);
}

static bool office_open(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    struct office *o = context;
    char path[128];
    int pair[2];

    snprintf(path, sizeof path, "%s/%s", o->dir, inbox_id);
    if (make && mkdir(path, 0700) < 0)
        return err_sys(err, "make %s", path);
    if (access(path, F_OK) < 0)
        return err_set(err, ERR_NOT_FOUND, "there is no inbox %s", inbox_id);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(pair[0]);
        office_serve(o, inbox_id, pair[1]);
    }
    close(pair[1]);
    assert_true(o->worker_count < (int)COUNT_OF(o->workers));
    o->workers[o->worker_count++] = pid;
    office_dies_after = false; /* for one worker only */
    *out_fd = pair[0];
    return true;
}

static inline void office_wait_all(struct office *o)
{
    while (o->worker_count)
        (void)waitpid(o->workers[--o->worker_count], NULL, 0);
}

/* As a crash of all workers. */
static inline void office_kill(struct office *o)
{
    for (int i = 0; i < o->worker_count; i++)
        (void)kill(o->workers[i], SIGKILL);
    office_wait_all(o);
}

/* From here on each worker dies when it has made so many changes. 0: no more. */
static inline void office_kill_at(struct office *o, long rows)
{
    office_kill(o);
    office_rows_left = rows;
}

/* The next worker dies when it has committed, before it answers. */
static inline void office_kill_after(struct office *o)
{
    office_kill(o);
    office_dies_after = true;
}

/* ---- the office ---- */

static inline struct seal_key office_key(const char *secret)
{
    struct seal_key key;

    seal_derive(str_from(secret), "inbox", &key);
    return key;
}

static inline bool office_remove(void *context, const char *inbox_id, struct err *err)
{
    struct office *o = context;
    char path[128];

    office_kill(o); /* as keeper does */
    snprintf(path, sizeof path, "%s/%s", o->dir, inbox_id);
    if (rmdir(path) == 0)
        return true;
    return errno == ENOTEMPTY ? err_set(err, ERR_CONFLICT, "%s is not empty", path) : err_sys(err, "remove %s", path);
}

static inline void office_front(struct office *o)
{
    struct mail_config config = { .open_inbox = office_open, .remove_inbox = office_remove, .context = o };

    mail_free(o->mail);
    seal_pair_of(STR("server"), "server", &config.server_public, &config.server_private);
    seal_derive(STR("secret"), "server", &config.server_secret);
    o->mail = mail_new(&config);
}

static inline void office_make_inbox(struct office *o, const char *inbox_id)
{
    struct err err;
    const struct mail_inbox_new want = {
        .inbox_id = inbox_id, .readers = &o->reader, .reader_count = 1, .actor = STR("operator")
    };

    if (!mail_inbox_make(o->mail, &want, &o->inbox_public, &err))
        fail_msg("%s", err_text(&err));
}

static inline void office_make(struct office *o, const char *dir)
{
    struct err err;

    *o = (struct office){ .now_us = INT64_C(1800000000000000) };
    snprintf(o->dir, sizeof o->dir, "%s", dir ? dir : "/tmp/cloister-office.XXXXXX");
    if (!dir)
        assert_non_null(mkdtemp(o->dir));
    arena_init(&o->arena);
    assert_true(seal_begin(&err));
    seal_make_pair(&o->approver.public_key, &o->approver.private_key);
    o->approver.id = STR("01HAPPROVER000000000000000");
    o->approver.scopes = MAIL_SCOPE_OVERSIGHT;
    o->reader = (struct mail_reader){ .key_id = OFFICE_COMPOSER, .kek = office_key("the inbox's key") };
    o->limits = (struct mail_limits){
        .sends_per_minute = 1000, .sends_per_day = 10000, .pending_most = 1000, .storage_bytes = 64 << 20
    };
    office_front(o);
    office_make_inbox(o, OFFICE_INBOX);
}

static inline void office_drop(struct office *o)
{
    struct err err;
    bool own = !strncmp(o->dir, "/tmp/cloister-office.", 21);

    mail_free(o->mail); /* closes the connections: the workers end */
    office_wait_all(o);
    arena_done(&o->arena);
    if (own && !remove_tree(AT_FDCWD, o->dir, &err))
        fail_msg("%s", err_text(&err));
}

static inline int office_set_up(void **state)
{
    struct office *o = calloc(1, sizeof *o);

    office_make(o, NULL);
    *state = o;
    return 0;
}

static inline int office_tear_down(void **state)
{
    office_drop(*state);
    free(*state);
    return 0;
}

#define OFFICE_CASE(function) cmocka_unit_test_setup_teardown(function, office_set_up, office_tear_down)

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

/* What the file says, by another hand. The worker holds the file alone, so it has to end first. */
static inline int64_t office_ask(struct office *o, const char *query)
{
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *statement;

    office_kill(o);
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, OFFICE_INBOX);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, query, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t answer = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return answer;
}

static inline void office_by_hand(struct office *o, const char *script)
{
    char path[128];
    sqlite3 *db;

    office_kill(o);
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, OFFICE_INBOX);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, script, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* ---- messages ---- */

/* To one recipient; each call makes another message. */
static inline struct mail_content *office_content(struct office *o, const char *recipient)
{
    struct mail_content *content = ARENA_NEW(&o->arena, struct mail_content);
    unsigned n = ++o->serial;

    content->from = content->sender = STR("agent@cloister.example");
    content->subject = arena_format(&o->arena, "Zebrasubject %u", n);
    content->message_id = arena_format(&o->arena, "<%u@cloister.example>", n);
    content->text = arena_format(&o->arena, "Giraffebody %u\n", n);
    content->preview = STR("Giraffebody");
    content->to = content->recipients = ARENA_NEW(&o->arena, struct str);
    *content->to = str_from(recipient);
    content->to_count = content->recipient_count = 1;
    content->mime = arena_format(&o->arena, "From: agent@cloister.example\r\nTo: %s\r\nSubject: %.*s\r\n\r\n%.*s",
                                 recipient, STR_ARG(content->subject), STR_ARG(content->text));
    content->date_us = o->now_us;
    return content;
}

static inline struct mail_accept office_want(struct office *o, const struct mail_content *content)
{
    return (struct mail_accept){
        .inbox_id = OFFICE_INBOX,
        .composer = STR(OFFICE_COMPOSER),
        .content = content,
        .mode = MAIL_GATED_SEND,
        .hold_us = 7 * 24 * OFFICE_HOUR_US,
        .inbox_public = &o->inbox_public,
        .approver_public = &o->approver.public_key,
        .limits = &o->limits,
        .now_us = o->now_us,
    };
}

/* Accepts a message in this mode. */
static inline struct mail_accepted office_send(struct office *o, enum mail_mode mode)
{
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_accepted accepted;
    uint32_t retry_s;

    want.mode = mode;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    return accepted;
}

static inline struct mail_decision office_decision(const struct office *o, const char *message_id, bool approve)
{
    return (struct mail_decision){
        .inbox_id = OFFICE_INBOX,
        .message_id = message_id,
        .approve = approve,
        .approver = &o->approver,
        .mode = MAIL_GATED_SEND,
        .now_us = o->now_us,
    };
}

static inline bool office_decide(struct office *o, const char *message_id, bool approve, struct err *err)
{
    struct mail_decision decision = office_decision(o, message_id, approve);
    struct mail_message message;

    return mail_decide(o->mail, &decision, &o->arena, &message, err);
}

static inline bool office_claim(struct office *o, struct mail_release *out, struct mail_content *out_content,
                                struct err *err)
{
    return mail_claim(o->mail, OFFICE_INBOX, MAIL_GATED_SEND, &o->approver.public_key, o->now_us, &o->arena, out,
                      out_content, err);
}

static inline bool office_settle(struct office *o, const struct mail_release *release, enum mail_outcome outcome,
                                 struct err *err)
{
    const struct mail_settled settled = { .recipient = STR("peer@elsewhere.example"),
                                          .outcome = outcome,
                                          .detail = STR("Lionsdetail") };

    return mail_settle(o->mail, release, &settled, 1, NULL, err);
}

static inline struct mail_tick office_tick(struct office *o, enum mail_mode mode)
{
    struct mail_tick tick;

    MUST(mail_tick(o->mail, OFFICE_INBOX, mode, &o->approver.public_key, o->now_us, &tick, &err));
    return tick;
}

static inline enum mail_state office_state(struct office *o, const char *message_id)
{
    char query[128];

    snprintf(query, sizeof query, "SELECT state FROM messages WHERE id = '%s'", message_id);
    return (enum mail_state)office_ask(o, query);
}

#endif
