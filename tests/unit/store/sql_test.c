/* Checkpoints behind the commits: the thread makes them, and a commit only if the log has become too long. store_test.c has the rest. */
#include <sqlite3.h>

/* Instead of SQLite's: counts who makes one, and can fail those of the thread. */
static int watched_checkpoint(sqlite3 *db, const char *name, int mode, int *out_log, int *out_done);
#define sqlite3_wal_checkpoint_v2 watched_checkpoint
#include "store/sql_sqlite.c"
#undef sqlite3_wal_checkpoint_v2

#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "test.h"

enum { ROW_BYTES = 3000 }; /* a page each, so that LOG_PAGES commits make the log long and not too long */

static pthread_t committer;
static atomic_bool thread_fails;
static atomic_uint behind, in_commits, complete; /* complete: with nothing left in the log */

static int watched_checkpoint(sqlite3 *db, const char *name, int mode, int *out_log, int *out_done)
{
    bool is_behind = !pthread_equal(pthread_self(), committer);
    int log = 0, done = 0;

    assert_null(out_log);
    assert_null(out_done);
    if (is_behind && thread_fails)
        return SQLITE_IOERR_WRITE;
    int code = sqlite3_wal_checkpoint_v2(db, name, mode, &log, &done);
    if (code == SQLITE_OK && log == done)
        complete++;
    if (is_behind)
        behind++;
    else
        in_commits++;
    return code;
}

struct place {
    char dir[64], path[96];
};

static void place_make(struct place *place)
{
    committer = pthread_self();
    thread_fails = false;
    snprintf(place->dir, sizeof place->dir, "/tmp/cloister-sql.XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->path, sizeof place->path, "%s/db", place->dir);
}

static void place_drop(const struct place *place)
{
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    char path[128];

    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        snprintf(path, sizeof path, "%s%s", place->path, suffixes[i]);
        unlink(path);
    }
    rmdir(place->dir);
}

static struct sql *open_at(const struct place *place)
{
    struct err err;
    struct sql *sql = sql_open(place->path, &err);

    if (!sql || !sql_script(sql, "CREATE TABLE IF NOT EXISTS rows (number BIGINT PRIMARY KEY, words BLOB)", &err) ||
        !sql_checkpoint_behind(sql, &err))
        fail_msg("%s", err_text(&err));
    behind = in_commits = complete = 0; /* opening makes some */
    return sql;
}

/* The same few rows again and again, so that the database does not grow: only the log does. */
static void commit_one(struct sql *sql, int64_t number)
{
    static char words[ROW_BYTES];
    struct err err;

    words[0]++; /* SQLite does not write what is there already */
    if (!sql_begin(sql, SQL_LAZY, &err) ||
        !sql_end(
            sql,
            sql_exec(sql,
                     "INSERT INTO rows (number, words) VALUES ($1, $2) ON CONFLICT (number) DO UPDATE SET words = $2",
                     SQL_ARGS(sql_int(number), sql_blob(str_of(words, sizeof words))), &err),
            &err))
        fail_msg("%s", err_text(&err));
}

static off_t log_bytes(const struct place *place)
{
    char path[128];
    struct stat st;

    snprintf(path, sizeof path, "%s-wal", place->path);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

/* Another number each time that the log is written from its start. Nothing locks this file, so it may be opened here. */
static uint32_t log_start(const struct place *place)
{
    char path[128];
    uint32_t number;

    snprintf(path, sizeof path, "%s-wal", place->path);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, &number, sizeof number, 12), sizeof number);
    return number;
}

static void a_long_log_is_checkpointed_behind_the_commits(void **state)
{
    struct place place;

    (void)state;
    place_make(&place);
    struct sql *sql = open_at(&place);
    for (int round = 0; round < 5; round++) {
        uint32_t start = log_start(&place);
        for (int i = 0; i < LOG_PAGES; i++)
            commit_one(sql, i % 64);
        /* The commits may have overtaken the thread: then it is told once more. A commit behind a complete checkpoint is at
         * the start of the log. */
        while (log_start(&place) == start) {
            unsigned before = behind;
            commit_one(sql, 0);
            while (behind == before && log_start(&place) == start)
                usleep(1000);
        }
    }
    assert_true(behind >= 5);
    assert_int_equal(in_commits, 0);
    assert_int_equal(log_bytes(&place), LOG_ROOM_BYTES); /* it was used from the start again, and did not grow */
    sql_close(sql);
    place_drop(&place);
}

static void a_commit_makes_the_checkpoint_if_the_thread_cannot(void **state)
{
    struct place place;

    (void)state;
    place_make(&place);
    struct sql *sql = open_at(&place);
    thread_fails = true;
    for (int i = 0; i < 4 * LOG_PAGES_MAX; i++)
        commit_one(sql, i % 64);
    assert_int_equal(behind, 0);
    assert_true(in_commits >= 4); /* each is complete, and the log begins anew */
    assert_true(in_commits < 40);
    assert_int_equal(complete, in_commits);
    assert_int_equal(log_bytes(&place), LOG_ROOM_BYTES);
    sql_close(sql);
    place_drop(&place);
}

/* Programs that fork must not have a thread. */
static void opening_starts_no_thread(void **state)
{
    struct place place;
    struct err err;

    (void)state;
    place_make(&place);
    struct sql *sql = sql_open(place.path, &err);
    assert_non_null(sql);
    assert_null(sql->checkpoints);
    sql_close(sql);
    sql = sql_open_small(place.path, &err);
    assert_non_null(sql);
    assert_false(sql_checkpoint_behind(sql, &err)); /* no other connection can open it */
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    sql_close(sql);
    place_drop(&place);
}

/* For a child that is killed: says the number of each row that it has committed. */
static void commit_for_ever(const struct place *place, int out_fd)
{
    committer = pthread_self();
    struct sql *sql = open_at(place);

    for (int64_t i = 0;; i++) {
        commit_one(sql, i);
        if (write(out_fd, &i, sizeof i) != sizeof i)
            _exit(1);
    }
}

static int64_t count_rows(const struct place *place, int64_t below)
{
    auto_rows struct sql_rows rows = { 0 };
    struct err err;
    bool there;
    struct sql *sql = open_at(place);

    if (!sql_select(sql, "SELECT COUNT(*) FROM rows WHERE number <= $1", SQL_ARGS(sql_int(below)), &rows, &err) ||
        !sql_next(&rows, &there, &err))
        fail_msg("%s", err_text(&err));
    int64_t count = sql_row_int(&rows, 0);
    sql_rows_done(&rows);
    sql_close(sql);
    return count;
}

static void what_was_committed_survives_a_kill_in_the_middle_of_checkpoints(void **state)
{
    struct place place;
    int64_t last = -1, next;
    int pipe_fds[2];

    (void)state;
    place_make(&place);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
            commit_for_ever(&place, pipe_fds[1]);
        close(pipe_fds[1]);
        while (read(pipe_fds[0], &next, sizeof next) == sizeof next) {
            last = next > last ? next : last;
            if (next == LOG_PAGES * (round + 1)) /* some of the log is copied, perhaps half of it */
                assert_int_equal(kill(child, SIGKILL), 0);
        }
        close(pipe_fds[0]);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_true(last >= LOG_PAGES * (round + 1));
        assert_int_equal(count_rows(&place, last), last + 1);
    }
    place_drop(&place);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(a_long_log_is_checkpointed_behind_the_commits),
        cmocka_unit_test(opening_starts_no_thread),
        cmocka_unit_test(a_commit_makes_the_checkpoint_if_the_thread_cannot),
        cmocka_unit_test(what_was_committed_survives_a_kill_in_the_middle_of_checkpoints),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
