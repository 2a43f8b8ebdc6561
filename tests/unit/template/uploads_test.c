#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "template/template.h"
#include "test.h"

#define MUST(call)                          \
    do {                                    \
        struct err err = { 0 };             \
        if (!(call))                        \
            fail_msg("%s", err_text(&err)); \
    } while (0)
#define MUST_FAIL(call, want)                                                                               \
    do {                                                                                                    \
        struct err err = { 0 };                                                                             \
        if (call)                                                                                           \
            fail_msg("it should have failed");                                                              \
        if (err.kind != (want))                                                                             \
            fail_msg("kind %s, want %s: %s", err_kind_name[err.kind], err_kind_name[want], err_text(&err)); \
    } while (0)

#define TEAM STR("11111111-2222-4333-8444-555555555555")
#define OTHER STR("aaaaaaaa-2222-4333-8444-555555555555")
#define HASH(digit) str_of(hashes[digit], 64)

struct fixture {
    char dir[64];
    struct upload_caps caps;
    struct uploads *all;
};

static char hashes[10][65];

static void reopen(struct fixture *f)
{
    struct err err;

    uploads_free(f->all);
    f->all = uploads_new(open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), &f->caps, &err);
    if (!f->all)
        fail_msg("%s", err_text(&err));
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    for (int i = 0; i < 10; i++)
        memset(hashes[i], '0' + i, 64);
    snprintf(f->dir, sizeof f->dir, "/tmp/cloister-uploads.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    reopen(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    uploads_free(f->all);
    snprintf(command, sizeof command, "rm -r %s", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void keep(struct fixture *f, struct str team, struct str hash, const char *bytes)
{
    struct upload *upload;

    MUST(upload_begin(f->all, team, hash, strlen(bytes), &upload, &err));
    MUST(upload_write(upload, str_from(bytes), &err));
    MUST(upload_keep(upload, &err));
}

/* As if it was used so long ago. */
static void age(struct fixture *f, struct str team, struct str hash, int64_t seconds)
{
    struct timespec times[2] = { { .tv_sec = time(NULL) - seconds }, { .tv_sec = time(NULL) - seconds } };
    char path[256];

    snprintf(path, sizeof path, "%s/%.*s.%.*s", f->dir, STR_ARG(team), STR_ARG(hash));
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static int64_t age_of(struct fixture *f, struct str team, struct str hash)
{
    struct stat found;
    char path[256];

    snprintf(path, sizeof path, "%s/%.*s.%.*s", f->dir, STR_ARG(team), STR_ARG(hash));
    assert_int_equal(stat(path, &found), 0);
    return time(NULL) - found.st_mtime;
}

static int files(struct fixture *f)
{
    char command[128];
    int count;

    snprintf(command, sizeof command, "ls -A %s | wc -l", f->dir);
    FILE *pipe = popen(command, "r");
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

static void an_archive_is_there_for_its_team_when_it_is_whole(void **state)
{
    struct fixture *f = *state;
    struct upload *upload;
    char room[16] = { 0 };
    uint64_t size;
    int fd;

    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    MUST(upload_begin(f->all, TEAM, HASH(1), 6, &upload, &err));
    MUST(upload_write(upload, STR("abc"), &err));
    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    MUST(upload_write(upload, STR("def"), &err));
    MUST(upload_keep(upload, &err));
    assert_true(upload_exists(f->all, TEAM, HASH(1)));
    assert_false(upload_exists(f->all, OTHER, HASH(1)));
    assert_false(upload_exists(f->all, TEAM, HASH(2)));
    reopen(f);
    MUST(upload_open(f->all, TEAM, HASH(1), &fd, &size, &err));
    assert_int_equal(size, 6);
    assert_int_equal(read(fd, room, sizeof room), 6);
    assert_string_equal(room, "abcdef");
    /* A newer one takes its place; who reads the old one goes on reading it. */
    keep(f, TEAM, HASH(1), "new");
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(read(fd, room, sizeof room), 6);
    close(fd);
    MUST(upload_open(f->all, TEAM, HASH(1), &fd, &size, &err));
    assert_int_equal(size, 3);
    close(fd);
    MUST_FAIL(upload_open(f->all, TEAM, HASH(2), &fd, &size, &err), ERR_NOT_FOUND);
}

static void what_is_cut_short_or_too_long_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct upload *upload;

    MUST(upload_begin(f->all, TEAM, HASH(1), 6, &upload, &err));
    MUST(upload_write(upload, STR("abc"), &err));
    MUST_FAIL(upload_keep(upload, &err), ERR_INVALID);
    MUST(upload_begin(f->all, TEAM, HASH(1), 2, &upload, &err));
    MUST_FAIL(upload_write(upload, STR("abc"), &err), ERR_INVALID);
    upload_drop(upload);
    MUST(upload_begin(f->all, TEAM, HASH(1), 2, &upload, &err));
    upload_drop(upload);
    upload_drop(NULL);
    assert_int_equal(files(f), 0);
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(1), LIMIT_UPLOAD_BYTES + 1, &upload, &err), ERR_LIMIT);
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(1), 0, &upload, &err), ERR_INVALID);
}

static void a_name_is_a_team_and_a_hash_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = { "", "abc", "../../etc/passwd",
                                       "0000000000000000000000000000000000000000000000000000000000000/./" };
    struct upload *upload;

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        MUST_FAIL(upload_begin(f->all, TEAM, str_from(bad[i]), 1, &upload, &err), ERR_INVALID);
        assert_false(upload_exists(f->all, TEAM, str_from(bad[i])));
    }
    MUST_FAIL(upload_begin(f->all, STR("../111111-2222-4333-8444-555555555555"), HASH(1), 1, &upload, &err),
              ERR_INVALID);
    MUST_FAIL(upload_begin(f->all, STR(""), HASH(1), 1, &upload, &err), ERR_INVALID);
}

static void a_start_removes_what_was_half_written(void **state)
{
    struct fixture *f = *state;
    char path[128];

    keep(f, TEAM, HASH(1), "abc");
    snprintf(path, sizeof path, "%s/.halfwritten", f->dir);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    assert_int_equal(files(f), 2);
    reopen(f);
    assert_int_equal(files(f), 1);
    assert_true(upload_exists(f->all, TEAM, HASH(1)));
}

static void what_was_not_used_for_long_goes(void **state)
{
    struct fixture *f = *state;

    keep(f, TEAM, HASH(1), "abc");
    keep(f, TEAM, HASH(2), "abc");
    keep(f, TEAM, HASH(3), "abc");
    age(f, TEAM, HASH(1), LIMIT_UPLOAD_KEPT_S + 60);
    age(f, TEAM, HASH(2), LIMIT_UPLOAD_KEPT_S - 60);
    reopen(f);
    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    assert_true(upload_exists(f->all, TEAM, HASH(2)));
    /* To be asked for is no use; to be read is one. */
    int fd;
    uint64_t size;
    assert_true(age_of(f, TEAM, HASH(2)) > LIMIT_UPLOAD_KEPT_S - 120);
    MUST(upload_open(f->all, TEAM, HASH(2), &fd, &size, &err));
    close(fd);
    assert_true(age_of(f, TEAM, HASH(2)) < 60);
    uploads_sweep(f->all);
    assert_int_equal(files(f), 2);
}

static void old_ones_make_room_and_new_ones_stay(void **state)
{
    struct fixture *f = *state;
    struct upload *upload, *second;

    f->caps = (struct upload_caps){ .bytes = 25, .bytes_of_team = 10 };
    reopen(f);
    keep(f, TEAM, HASH(1), "1234");
    keep(f, TEAM, HASH(2), "1234");
    keep(f, OTHER, HASH(3), "1234");
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(4), 4, &upload, &err), ERR_LIMIT);
    age(f, TEAM, HASH(1), LIMIT_UPLOAD_BUSY_S + 200);
    age(f, TEAM, HASH(2), LIMIT_UPLOAD_BUSY_S + 100);
    age(f, OTHER, HASH(3), LIMIT_UPLOAD_BUSY_S + 300);
    reopen(f);
    MUST(upload_begin(f->all, TEAM, HASH(4), 4, &upload, &err));
    /* The oldest of this team; what is promised counts. */
    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    MUST(upload_begin(f->all, TEAM, HASH(5), 6, &second, &err));
    assert_false(upload_exists(f->all, TEAM, HASH(2)));
    assert_true(upload_exists(f->all, OTHER, HASH(3)));
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(6), 1, &upload, &err), ERR_LIMIT);
    upload_drop(second);
    MUST(upload_begin(f->all, TEAM, HASH(6), 1, &second, &err));
    upload_drop(second);
    upload_drop(upload);
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(7), 11, &upload, &err), ERR_LIMIT);
}

static void the_server_has_a_cap_too(void **state)
{
    struct fixture *f = *state;
    struct upload *upload;

    f->caps = (struct upload_caps){ .bytes = 10, .bytes_of_team = 10 };
    reopen(f);
    keep(f, TEAM, HASH(1), "123456");
    MUST_FAIL(upload_begin(f->all, OTHER, HASH(2), 6, &upload, &err), ERR_LIMIT);
    age(f, TEAM, HASH(1), LIMIT_UPLOAD_BUSY_S + 10);
    reopen(f);
    MUST(upload_begin(f->all, OTHER, HASH(2), 6, &upload, &err));
    upload_drop(upload);
    assert_int_equal(files(f), 0);
}

static void a_team_has_so_many(void **state)
{
    struct fixture *f = *state;
    struct upload *upload, *second;

    f->caps = (struct upload_caps){ .count_of_team = 2 };
    reopen(f);
    keep(f, TEAM, HASH(1), "1");
    keep(f, OTHER, HASH(1), "1");
    MUST(upload_begin(f->all, TEAM, HASH(2), 1, &upload, &err));
    MUST_FAIL(upload_begin(f->all, TEAM, HASH(3), 1, &second, &err), ERR_LIMIT); /* what is promised counts */
    upload_drop(upload);
    keep(f, TEAM, HASH(2), "1");
    age(f, TEAM, HASH(1), LIMIT_UPLOAD_BUSY_S + 200);
    age(f, TEAM, HASH(2), LIMIT_UPLOAD_BUSY_S + 100);
    age(f, OTHER, HASH(1), LIMIT_UPLOAD_BUSY_S + 300);
    reopen(f);
    assert_true(upload_exists(f->all, TEAM, HASH(1))); /* a build is about to need it */
    MUST(upload_begin(f->all, TEAM, HASH(3), 1, &upload, &err));
    assert_true(upload_exists(f->all, TEAM, HASH(1)));
    assert_false(upload_exists(f->all, TEAM, HASH(2)));
    upload_drop(upload);
    /* For room on the server, too, a team's own go first. */
    f->caps = (struct upload_caps){ .bytes = 2 };
    reopen(f);
    MUST(upload_begin(f->all, TEAM, HASH(3), 1, &upload, &err));
    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    assert_true(upload_exists(f->all, OTHER, HASH(1)));
    upload_drop(upload);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static void a_prune_leaves_what_may_be_needed_soon(void **state)
{
    struct fixture *f = *state;

    keep(f, TEAM, HASH(1), "old");
    keep(f, TEAM, HASH(2), "asked for");
    keep(f, TEAM, HASH(3), "new");
    keep(f, OTHER, HASH(1), "theirs");
    age(f, TEAM, HASH(1), LIMIT_UPLOAD_BUSY_S + 10);
    age(f, TEAM, HASH(2), LIMIT_UPLOAD_BUSY_S + 10);
    age(f, OTHER, HASH(1), LIMIT_UPLOAD_BUSY_S + 10);
    reopen(f);
    assert_true(upload_exists(f->all, TEAM, HASH(2)));
    struct upload_total total = uploads_total(f->all, TEAM);
    assert_int_equal(total.count, 3);
    assert_int_equal(total.bytes, 3 + 9 + 3);
    assert_int_equal(uploads_total(f->all, STR("")).count, 4);
    for (int is_real = 0; is_real < 2; is_real++) {
        total = uploads_prune(f->all, TEAM, !is_real);
        assert_int_equal(total.count, 1);
        assert_int_equal(total.bytes, 3);
    }
    assert_false(upload_exists(f->all, TEAM, HASH(1)));
    assert_true(upload_exists(f->all, TEAM, HASH(2)) && upload_exists(f->all, TEAM, HASH(3)));
    total = uploads_prune(f->all, STR(""), false);
    assert_int_equal(total.count, 1);
    assert_int_equal(total.bytes, 6);
    assert_false(upload_exists(f->all, OTHER, HASH(1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_archive_is_there_for_its_team_when_it_is_whole),
        TEST(what_is_cut_short_or_too_long_leaves_nothing),
        TEST(a_name_is_a_team_and_a_hash_and_nothing_else),
        TEST(a_start_removes_what_was_half_written),
        TEST(what_was_not_used_for_long_goes),
        TEST(old_ones_make_room_and_new_ones_stay),
        TEST(the_server_has_a_cap_too),
        TEST(a_team_has_so_many),
        TEST(a_prune_leaves_what_may_be_needed_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
