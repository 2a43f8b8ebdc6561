/*
 * The life of an inbox's file: its readers, its end, its audit, and what happens to it.
 */
#include "inbox_office.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#define SECOND_INBOX "01HYYYYYYYYYYYYYYYYYYYYYYY"

static bool reads(struct office *o, const struct mail_reader *reader, enum err_kind *out_kind)
{
    const struct mail_filter filter = {
        .inbound = true, .outbound = true, .in_status = -1, .state = -1, .has_attachments = -1, .limit = 10
    };
    struct mail_page page;
    struct err err = { 0 };
    bool fine = mail_list(o->mail, OFFICE_INBOX, reader, &filter, &o->arena, &page, &err);

    *out_kind = err.kind;
    return fine;
}

static void an_inbox_is_made_once_and_with_a_reader(void **state)
{
    struct office *o = *state;
    struct mail_inbox_new want = { .inbox_id = OFFICE_INBOX, .readers = &o->reader, .reader_count = 1 };
    struct seal_key public_key;
    struct err why;

    assert_false(mail_inbox_make(o->mail, &want, &public_key, &why));
    want.inbox_id = SECOND_INBOX;
    want.reader_count = 0;
    MUST_FAIL(mail_inbox_make(o->mail, &want, &public_key, &err), ERR_INVALID);
    want.inbox_id = "../etc";
    want.reader_count = 1;
    MUST_FAIL(mail_inbox_make(o->mail, &want, &public_key, &err), ERR_INVALID);
}

static void a_credential_reads_while_it_has_a_wrap(void **state)
{
    struct office *o = *state;
    struct mail_reader added = { .key_id = "01HADDED000000000000000000", .kek = office_key("added") };
    struct mail_reader stranger = { .key_id = "01HADDED000000000000000000", .kek = office_key("stranger") };
    enum err_kind kind;

    assert_true(reads(o, &o->reader, &kind));
    assert_false(reads(o, &added, &kind));
    assert_int_equal(kind, ERR_DENIED);
    MUST_FAIL(mail_reader_add(o->mail, OFFICE_INBOX, &stranger, &added, STR("x"), &err), ERR_DENIED);
    MUST(mail_reader_add(o->mail, OFFICE_INBOX, &o->reader, &added, STR("key:one"), &err));
    assert_true(reads(o, &added, &kind));
    assert_false(reads(o, &stranger, &kind));
    assert_int_equal(kind, ERR_DENIED);
    for (int i = 0; i < 2; i++)
        MUST(mail_reader_remove(o->mail, OFFICE_INBOX, added.key_id, STR("operator"), &err));
    assert_false(reads(o, &added, &kind));
    assert_true(reads(o, &o->reader, &kind));
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM audit"), 3);
}

static bool is_there(struct office *o, const char *inbox_id)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", o->dir, inbox_id);
    return access(path, F_OK) == 0;
}

/* As a crash leaves it between the file and the row: made, or shredded because the row could not be written. */
static void an_inbox_that_was_never_used_can_be_unmade(void **state)
{
    struct office *o = *state;
    enum err_kind kind;
    char path[128];

    for (int shredded = 0; shredded < 2; shredded++) {
        office_make_inbox(o, SECOND_INBOX);
        if (shredded)
            MUST(mail_inbox_shred(o->mail, SECOND_INBOX, STR("operator"), &err));
        MUST(mail_inbox_unmake(o->mail, SECOND_INBOX, &err));
        assert_false(is_there(o, SECOND_INBOX));
    }
    /* Earlier: an empty directory, or a file without tables. */
    snprintf(path, sizeof path, "%s/" SECOND_INBOX, o->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    MUST(mail_inbox_unmake(o->mail, SECOND_INBOX, &err));
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/inbox.db");
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    MUST(mail_inbox_unmake(o->mail, SECOND_INBOX, &err));
    assert_false(is_there(o, SECOND_INBOX));
    assert_true(reads(o, &o->reader, &kind)); /* the others are as they were */
}

static void an_inbox_that_was_used_cannot_be_unmade(void **state)
{
    struct office *o = *state;
    struct mail_reader added = { .key_id = "01HADDED000000000000000000", .kek = office_key("added") };
    enum err_kind kind;

    (void)office_send(o, MAIL_GATED_SEND);
    MUST_FAIL(mail_inbox_unmake(o->mail, OFFICE_INBOX, &err), ERR_CONFLICT);
    assert_true(reads(o, &o->reader, &kind));
    MUST(mail_inbox_shred(o->mail, OFFICE_INBOX, STR("operator"), &err)); /* its audit stays */
    MUST_FAIL(mail_inbox_unmake(o->mail, OFFICE_INBOX, &err), ERR_CONFLICT);
    assert_true(office_ask(o, "SELECT COUNT(*) FROM audit") > 2);
    office_make_inbox(o, SECOND_INBOX);
    MUST(mail_reader_add(o->mail, SECOND_INBOX, &o->reader, &added, STR("key:one"), &err));
    MUST_FAIL(mail_inbox_unmake(o->mail, SECOND_INBOX, &err), ERR_CONFLICT);
    assert_true(is_there(o, SECOND_INBOX));
}

static void a_temporary_inbox_is_removed_unless_its_audit_says_who_let_something_leave(void **state)
{
    static const char *const kept[] = { "message.approve", "message.reject", "message.release",
                                        "message.approve_inbound", "message.reject_inbound" };
    struct office *o = *state;
    char id[MAIL_INBOX_ID_BYTES] = SECOND_INBOX;
    const struct mail_inbox_new want = {
        .inbox_id = id, .readers = &o->reader, .reader_count = 1, .actor = STR("sandbox:one"), .is_temporary = true
    };
    struct seal_key public_key;

    for (size_t i = 0; i <= COUNT_OF(kept); i++) {
        id[MAIL_INBOX_ID_BYTES - 2] = (char)('0' + i);
        MUST(mail_inbox_make(o->mail, &want, &public_key, &err));
        MUST(mail_audit_add(o->mail, id, STR("mode.request"), STR("x"), STR("sandbox:one"), STR("{}"), &err));
        if (i < COUNT_OF(kept)) {
            MUST(mail_audit_add(o->mail, id, str_from(kept[i]), STR("x"), STR("operator"), STR("{}"), &err));
            MUST_FAIL(mail_inbox_unmake(o->mail, id, &err), ERR_CONFLICT);
        } else {
            MUST(mail_inbox_unmake(o->mail, id, &err));
        }
        assert_int_equal(is_there(o, id), i < COUNT_OF(kept));
    }
}

static void of_a_shredded_inbox_the_audit_is_left(void **state)
{
    struct office *o = *state;
    struct mail_accepted held = office_send(o, MAIL_GATED_SEND), accepted;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_audit *rows;
    enum err_kind kind;
    uint32_t retry_s;
    uint64_t verified;
    size_t count;

    MUST(mail_inbox_shred(o->mail, OFFICE_INBOX, STR("operator"), &err));
    for (int i = 0; i < 2; i++) { /* the worker that did it, and the next one */
        MUST_FAIL(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err), ERR_NOT_FOUND);
        MUST_FAIL(office_decide(o, held.id, true, &err), ERR_NOT_FOUND);
        assert_false(reads(o, &o->reader, &kind));
        assert_int_equal(kind, ERR_NOT_FOUND);
        MUST(mail_audit_list(o->mail, OFFICE_INBOX, 0, 10, &o->arena, &rows, &count, &err));
        assert_int_equal(count, 3);
        CHECK_STR(rows[0].action, STR("inbox.shred"));
        MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &verified, &err));
        office_kill(o);
    }
    assert_int_equal(office_ask(o, "SELECT (SELECT COUNT(*) FROM messages) + (SELECT COUNT(*) FROM wraps) + "
                                   "(SELECT COUNT(*) FROM content_keys) + (SELECT COUNT(*) FROM recipients)"),
                     0);
}

/* ---- audit ---- */

static void the_audit_is_a_chain_that_shows_changes(void **state)
{
    static const char *const changes[] = {
        "UPDATE audit SET actor = 'nobody' WHERE number = 3",
        "UPDATE audit SET at_us = at_us + 1 WHERE number = 3",
        "UPDATE audit SET action = 'message.a', resource = 'ccept' WHERE number = 3",
        "DELETE FROM audit WHERE number = 3",
        "DELETE FROM audit WHERE number = 1",
        "UPDATE audit SET number = 99 WHERE number = 5",
    };
    struct office *o = *state;
    struct mail_audit *rows;
    char undo[512];
    uint64_t verified;
    size_t count;

    for (int i = 0; i < 4; i++)
        MUST(mail_audit_add(o->mail, OFFICE_INBOX, STR("mode.change"), STR("inbox"), STR("operator"), STR("{\"to\":1}"),
                            &err));
    MUST(mail_audit_list(o->mail, OFFICE_INBOX, 0, 2, &o->arena, &rows, &count, &err));
    assert_int_equal(count, 2);
    assert_int_equal(rows[0].number, 5);
    assert_string_equal(rows[0].prev_hash, rows[1].hash);
    MUST(mail_audit_list(o->mail, OFFICE_INBOX, 4, 100, &o->arena, &rows, &count, &err));
    assert_int_equal(count, 3);
    assert_int_equal(rows[0].number, 3);
    CHECK_STR(rows[2].action, STR("inbox.create"));
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &verified, &err));
    assert_int_equal(verified, 5);
    office_by_hand(o, "CREATE TABLE kept AS SELECT * FROM audit");
    snprintf(undo, sizeof undo, "DELETE FROM audit; INSERT INTO audit SELECT * FROM kept");
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        office_by_hand(o, changes[i]);
        MUST_FAIL(mail_audit_verify(o->mail, OFFICE_INBOX, &verified, &err), ERR_INTERNAL);
        office_by_hand(o, undo);
        MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &verified, &err));
    }
}

/* ---- what the disk shows ---- */

static bool file_has(const char *path, struct str word)
{
    FILE *file = fopen(path, "rb");
    char *bytes = NULL;
    size_t len = 0, room = 0;

    assert_non_null(file);
    for (int c; (c = fgetc(file)) != EOF;) {
        if (len == room)
            bytes = realloc(bytes, room = room * 2 + 4096);
        bytes[len++] = (char)c;
    }
    fclose(file);
    bool found = len && memmem(bytes, len, word.at, word.len);
    free(bytes);
    return found;
}

static int files_with(struct office *o, struct str word, int *out_files)
{
    char dir[128], path[512];
    int found = 0;

    snprintf(dir, sizeof dir, "%s/%s", o->dir, OFFICE_INBOX);
    DIR *list = opendir(dir);
    assert_non_null(list);
    *out_files = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_type != DT_REG)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        found += file_has(path, word);
        ++*out_files;
    }
    closedir(list);
    return found;
}

static void the_file_has_no_word_of_what_was_written(void **state)
{
    static const struct str words[] = { STR_INIT("Zebra"),     STR_INIT("Giraffe"), STR_INIT("peer@"),
                                        STR_INIT("elsewhere"), STR_INIT("agent@"),  STR_INIT("Lions"),
                                        STR_INIT("parrots"),   STR_INIT("order"),   STR_INIT("the inbox's key") };
    struct office *o = *state;
    struct mail_accepted sent = office_send(o, MAIL_GATED_SEND), rejected = office_send(o, MAIL_GATED_SEND), held;
    struct mail_accept want = office_want(o, office_content(o, "peer@elsewhere.example"));
    struct mail_decision decision = office_decision(o, rejected.id, false);
    struct mail_release release;
    struct mail_content content;
    struct mail_message message;
    uint32_t retry_s;
    int files;

    decision.reason = STR("too many parrots");
    MUST(mail_decide(o->mail, &decision, &o->arena, &message, &err));
    MUST(office_decide(o, sent.id, true, &err));
    MUST(office_claim(o, &release, &content, &err));
    MUST(office_settle(o, &release, MAIL_REFUSED, &err));
    want.idempotency_key = want.dedup = STR("order 66");
    want.want_link = true;
    MUST(mail_accept(o->mail, &want, &o->arena, &held, &retry_s, &err));
    for (int round = 0; round < 2; round++) { /* with the log that a killed worker leaves, and without */
        for (size_t i = 0; i < COUNT_OF(words); i++)
            if (files_with(o, words[i], &files))
                fail_msg("found '%.*s'", STR_ARG(words[i]));
        assert_int_equal(files, round ? 1 : 2);
        assert_true(files_with(o, str_from(held.id), &files) > 0); /* the search would find something */
        assert_int_equal(files_with(o, secret_reveal(&held.link), &files), 0);
        (void)office_ask(o, "SELECT COUNT(*) FROM meta");
    }
}

static void what_an_approver_may_not_read_any_more_is_overwritten(void **state)
{
    struct office *o = *state;
    struct mail_accepted accepted = office_send(o, MAIL_GATED_SEND);
    char query[256], path[128], sealed[SEAL_SEALED_KEY_BYTES];
    sqlite3 *db;
    sqlite3_stmt *statement;
    int files;

    (void)office_ask(o, "SELECT COUNT(*) FROM meta");
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, OFFICE_INBOX);
    snprintf(query, sizeof query, "SELECT sealed FROM content_keys WHERE message_id = '%s' AND holder = 'approver'",
             accepted.id);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, query, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    memcpy(sealed, sqlite3_column_blob(statement, 0), sizeof sealed);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    assert_int_equal(files_with(o, str_of(sealed, sizeof sealed), &files), 1);
    MUST(office_decide(o, accepted.id, true, &err));
    (void)office_ask(o, "SELECT COUNT(*) FROM meta"); /* the log is copied into the file */
    assert_int_equal(files_with(o, str_of(sealed, sizeof sealed), &files), 0);
}

static void damage(struct office *o, const char *inbox_id, long at, size_t size)
{
    char path[128], junk[4096];

    office_kill(o);
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, inbox_id);
    memset(junk, 0x5a, sizeof junk);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, junk, size, at), (ssize_t)size);
    close(fd);
}

static void a_damaged_file_says_so_and_others_go_on(void **state)
{
    struct office *o = *state;
    struct mail_accept want;
    struct mail_accepted accepted;
    struct mail_message *pending;
    uint32_t retry_s;
    uint64_t rows;
    size_t count;

    (void)office_send(o, MAIL_GATED_SEND);
    struct seal_key first_public = o->inbox_public;
    office_make_inbox(o, SECOND_INBOX);
    (void)office_ask(o, "SELECT COUNT(*) FROM meta"); /* all is in the file, nothing in its log */
    damage(o, OFFICE_INBOX, 0, 100);
    MUST_FAIL(mail_pending(o->mail, OFFICE_INBOX, NULL, &o->arena, &pending, &count, &err), ERR_INTERNAL);
    want = office_want(o, office_content(o, "peer@elsewhere.example"));
    want.inbox_public = &first_public;
    MUST_FAIL(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err), ERR_INTERNAL);
    want.inbox_public = &o->inbox_public;
    want.inbox_id = SECOND_INBOX;
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    MUST(mail_audit_verify(o->mail, SECOND_INBOX, &rows, &err));
    assert_int_equal(rows, 2);
}

static void a_damaged_page_is_an_error_and_not_a_crash(void **state)
{
    struct office *o = *state;
    char path[128];
    struct stat st;
    int failures = 0;

    for (int i = 0; i < 20; i++)
        (void)office_send(o, MAIL_GATED_SEND);
    (void)office_ask(o, "SELECT COUNT(*) FROM meta");
    snprintf(path, sizeof path, "%s/%s/inbox.db", o->dir, OFFICE_INBOX);
    assert_int_equal(stat(path, &st), 0);
    for (long page = st.st_size / 4096 - 1; page >= 1; page--) {
        struct mail_message *pending;
        struct err err = { 0 };
        uint64_t rows;
        size_t count;
        damage(o, OFFICE_INBOX, page * 4096, 64);
        if (!mail_pending(o->mail, OFFICE_INBOX, &o->approver, &o->arena, &pending, &count, &err)) {
            failures++;
            assert_int_equal(err.kind, ERR_INTERNAL);
        }
        if (!mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err))
            assert_int_equal(err.kind, ERR_INTERNAL);
    }
    assert_true(failures > 0);
}

/* ---- a full disk ---- */

static void a_full_disk_loses_nothing(void **state)
{
    char dir[] = "/tmp/cloister-full.XXXXXX";
    struct office office, *o = &office;
    struct mail_accept want;
    struct mail_accepted accepted;
    struct err why = { 0 };
    char filler[64];
    uint32_t retry_s;
    uint64_t rows;
    int stored = 0;

    (void)state;
    assert_non_null(mkdtemp(dir));
    /* In a namespace of this process, so that the file system goes with it, however the test ends. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=4m") < 0) {
        rmdir(dir);
        print_message("skipped: a full disk needs root, for a small file system\n");
        skip();
    }
    office_make(o, dir);
    want = office_want(o, office_content(o, "peer@elsewhere.example"));
    snprintf(filler, sizeof filler, "%s/filler", dir);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(posix_fallocate(fd, 0, 3 << 20), 0);
    close(fd);
    while (mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &why))
        assert_true(++stored < 2000);
    assert_int_equal(why.kind, ERR_FULL);
    assert_true(stored > 10);
    office_kill(o);
    unlink(filler);
    MUST(mail_accept(o->mail, &want, &o->arena, &accepted, &retry_s, &err));
    MUST(mail_audit_verify(o->mail, OFFICE_INBOX, &rows, &err));
    assert_int_equal(rows, stored + 2);
    assert_int_equal(office_ask(o, "SELECT COUNT(*) FROM messages"), stored + 1);
    office_drop(o);
    assert_int_equal(umount2(dir, MNT_DETACH), 0);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        OFFICE_CASE(an_inbox_is_made_once_and_with_a_reader),
        OFFICE_CASE(a_credential_reads_while_it_has_a_wrap),
        OFFICE_CASE(an_inbox_that_was_never_used_can_be_unmade),
        OFFICE_CASE(an_inbox_that_was_used_cannot_be_unmade),
        OFFICE_CASE(a_temporary_inbox_is_removed_unless_its_audit_says_who_let_something_leave),
        OFFICE_CASE(of_a_shredded_inbox_the_audit_is_left),
        OFFICE_CASE(the_audit_is_a_chain_that_shows_changes),
        OFFICE_CASE(the_file_has_no_word_of_what_was_written),
        OFFICE_CASE(what_an_approver_may_not_read_any_more_is_overwritten),
        OFFICE_CASE(a_damaged_file_says_so_and_others_go_on),
        OFFICE_CASE(a_damaged_page_is_an_error_and_not_a_crash),
        CASE(a_full_disk_loses_nothing),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
