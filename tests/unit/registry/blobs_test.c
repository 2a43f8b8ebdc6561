#include "registry/blobs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "registry/digest.h"
#include "test.h"

static struct {
    char dir[64];
    struct blobs blobs;
} rig;

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(rig.dir, sizeof rig.dir, "/tmp/cloister-blobs.XXXXXX");
    assert_non_null(mkdtemp(rig.dir));
    rig.blobs = (struct blobs){ .dir_fd = open(rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    return 0;
}

static int tear_down(void **state)
{
    char text[100];

    (void)state;
    fd_close(&rig.blobs.dir_fd);
    (void)snprintf(text, sizeof text, "rm -rf %s", rig.dir);
    return system(text);
}

static struct blob blob_of(const char *content)
{
    char hex[DIGEST_HEX_BYTES];
    struct blob blob;

    sha256_hex(str_from(content), hex);
    blob_init(&blob, STR("https://r/v2/a"), hex, strlen(content));
    return blob;
}

static void keep(const char *content)
{
    auto_close int fd = -1;
    struct blob blob = blob_of(content);
    struct err err;

    assert_true(blob_begin(&rig.blobs, &blob, &err));
    assert_true(blob_write(&blob, str_from(content), &err));
    assert_true(blob_finish(&rig.blobs, &blob, &fd, &err));
    blob_done(&blob);
}

static bool is_here(const char *content)
{
    auto_close int fd = -1;
    struct blob blob = blob_of(content);

    return blob_find(&rig.blobs, &blob, &fd);
}

/* Without the check of its digest, which makes it new. */
static bool is_there(const char *content)
{
    struct blob blob = blob_of(content);

    return faccessat(rig.blobs.dir_fd, blob.name, F_OK, 0) == 0;
}

static void a_download_goes_on_where_it_ended(void **state)
{
    auto_close int fd = -1;
    struct blob first = blob_of("hello world"), second = first, third = first;
    struct err err;

    (void)state;
    assert_true(blob_begin(&rig.blobs, &first, &err));
    assert_true(blob_write(&first, STR("hello "), &err));
    assert_false(blob_begin(&rig.blobs, &second, &err)); /* somebody is at work on it */
    assert_int_equal(err.kind, ERR_CONFLICT);
    blob_done(&first);
    assert_true(blob_begin(&rig.blobs, &third, &err));
    assert_int_equal(third.have, 6);
    assert_true(blob_write(&third, STR("world"), &err));
    assert_true(blob_finish(&rig.blobs, &third, &fd, &err));
    assert_int_equal(write(fd, "x", 1), -1); /* for reading only */
    blob_done(&third);
    assert_true(is_here("hello world"));
}

static void a_wrong_digest_leaves_nothing(void **state)
{
    auto_close int fd = -1;
    struct blob blob = blob_of("right"), again = blob;
    struct err err;

    (void)state;
    assert_true(blob_begin(&rig.blobs, &blob, &err));
    assert_true(blob_write(&blob, STR("wrong"), &err));
    assert_false(blob_finish(&rig.blobs, &blob, &fd, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    blob_done(&blob);
    assert_false(is_here("right"));
    assert_true(blob_begin(&rig.blobs, &again, &err));
    assert_int_equal(again.have, 0);
    blob_done(&again);
}

static void a_file_that_was_changed_is_not_used(void **state)
{
    struct blob blob = blob_of("content");

    (void)state;
    keep("content");
    auto_close int fd = openat(rig.blobs.dir_fd, blob.name, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "C", 1, 0), 1);
    assert_false(is_here("content"));
    assert_int_equal(faccessat(rig.blobs.dir_fd, blob.name, F_OK, 0), -1); /* and is gone */
}

/* Those who may not read a repository must not get at its layers by their digests. */
static void another_place_has_other_files(void **state)
{
    auto_close int fd = -1;
    struct blob blob = blob_of("secret"), other;

    (void)state;
    keep("secret");
    blob_init(&other, STR("https://r/v2/b"), blob.hex, blob.size);
    assert_false(blob_find(&rig.blobs, &other, &fd));
}

static void make_older(const char *content, int64_t seconds)
{
    struct blob blob = blob_of(content);
    struct timespec times[2] = { { .tv_sec = time(NULL) - seconds }, { .tv_sec = time(NULL) - seconds } };

    assert_int_equal(utimensat(rig.blobs.dir_fd, blob.name, times, 0), 0);
}

/* And gives the promise up again. */
static bool make_room(uint64_t bytes, struct err *err)
{
    struct blob_promise promise = { .fd = -1 };
    bool fine = blobs_make_room(&rig.blobs, bytes, &promise, err);

    blob_promise_done(&promise);
    return fine;
}

static void what_is_old_goes_first(void **state)
{
    struct err err;

    (void)state;
    keep("one");
    keep("two");
    keep("three");
    make_older("one", LIMIT_BLOB_AGE_S + 100);
    make_older("two", 500);
    assert_true(make_room(0, &err));
    assert_false(is_here("one")); /* by its age */
    assert_true(is_here("two"));
    make_older("two", 500);
    rig.blobs.bytes_most = 3 * 4096;
    assert_true(make_room(2 * 4096, &err));
    assert_false(is_here("two")); /* for the room */
    assert_true(is_here("three"));
    assert_false(make_room(4 * 4096, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_true(is_here("three")); /* it was not removed in vain */
    rig.blobs.bytes_most = UINT64_MAX / 2;
    assert_false(make_room(UINT64_C(1) << 60, &err)); /* no disk is so large */
    assert_int_equal(err.kind, ERR_FULL);
}

static void a_download_under_way_stays(void **state)
{
    struct blob blob = blob_of("unfinished");
    struct timespec long_ago[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    char name[BLOB_NAME_BYTES + 8];
    struct err err;

    (void)state;
    assert_true(blob_begin(&rig.blobs, &blob, &err));
    assert_true(blob_write(&blob, STR("unfin"), &err));
    (void)snprintf(name, sizeof name, "%s.part", blob.name);
    assert_int_equal(utimensat(rig.blobs.dir_fd, name, long_ago, 0), 0);
    assert_true(make_room(0, &err));
    assert_int_equal(faccessat(rig.blobs.dir_fd, name, F_OK, 0), 0);
    blob_done(&blob);
    assert_true(make_room(0, &err));
    assert_int_equal(faccessat(rig.blobs.dir_fd, name, F_OK, 0), -1);
}

static void what_others_were_promised_is_not_there_for_all(void **state)
{
    struct blob_promise one = { .fd = -1 }, other = { .fd = -1 };
    struct err err;

    (void)state;
    keep("kept");
    rig.blobs.bytes_most = 10 * 4096;
    assert_true(blobs_make_room(&rig.blobs, 6 * 4096, &one, &err));
    rig.blobs.owner = 1;
    assert_false(blobs_make_room(&rig.blobs, 6 * 4096, &other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(is_here("kept")); /* without it, there would not be room either */
    assert_true(blobs_make_room(&rig.blobs, 3 * 4096, &other, &err));
    assert_true(is_here("kept"));
    blob_promise_done(&other);
    blob_promise_less(&one, 3 * 4096);
    assert_true(blobs_make_room(&rig.blobs, 6 * 4096, &other, &err));
    assert_true(is_here("kept"));
    rig.blobs.owner = 2;
    assert_false(make_room(2 * 4096, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(make_room(4096, &err));
    assert_false(is_here("kept")); /* the only thing that could go */
    blob_promise_done(&one);
    blob_promise_done(&other);
    assert_true(make_room(10 * 4096, &err));
}

/* What has arrived of a download is part of what it was promised, and is not counted twice. */
static void a_download_under_way_counts_once(void **state)
{
    struct blob blob = blob_of("unfinished");
    struct blob_promise promise = { .fd = -1 };
    struct err err;

    (void)state;
    rig.blobs.bytes_most = 10 * 4096;
    assert_true(blobs_make_room(&rig.blobs, 5 * 4096, &promise, &err));
    assert_true(blob_begin(&rig.blobs, &blob, &err));
    assert_true(blob_write(&blob, STR("unfin"), &err));
    assert_true(make_room(5 * 4096, &err));
    assert_false(make_room(5 * 4096 + 1, &err));
    blob_promise_done(&promise);
    assert_false(make_room(10 * 4096, &err)); /* nobody promised it, and it is there */
    assert_int_equal(err.kind, ERR_CONFLICT);
    blob_done(&blob);
    assert_true(make_room(10 * 4096, &err));
}

static void a_promise_of_nobody_means_nothing(void **state)
{
    struct blob_promise promise = { .fd = -1 };
    char name[sizeof promise.name];
    struct err err;

    (void)state;
    rig.blobs.bytes_most = 10 * 4096;
    assert_true(blobs_make_room(&rig.blobs, 10 * 4096, &promise, &err));
    (void)snprintf(name, sizeof name, "%s", promise.name);
    assert_false(make_room(1, &err));
    fd_close(&promise.fd); /* as when a process is killed */
    assert_true(make_room(10 * 4096, &err));
    assert_int_equal(faccessat(rig.blobs.dir_fd, name, F_OK, 0), -1);
}

/* What a manifest says is not what comes: others lose their files to bytes, not to numbers. */
static void room_is_made_as_bytes_arrive(void **state)
{
    static const char *const names[] = { "one", "two", "three", "four" };
    struct blob_promise promise = { .fd = -1 };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        keep(names[i]);
        make_older(names[i], (int64_t)(1000 - i * 100));
    }
    rig.blobs.bytes_most = 10 * 4096 + 1;
    rig.blobs.step = 2 * 4096;
    assert_true(blobs_make_room(&rig.blobs, 10 * 4096, &promise, &err));
    assert_true(is_there("one"));
    assert_false(make_room(2, &err)); /* nobody else is promised anything */
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(blob_promise_use(&rig.blobs, &promise, 2 * 4096, &err));
    assert_true(is_there("one"));
    assert_true(blob_promise_use(&rig.blobs, &promise, 3 * 4096, &err)); /* five have arrived, room for seven */
    assert_false(is_there("one"));
    assert_true(is_there("two"));
    assert_true(blob_promise_use(&rig.blobs, &promise, 2 * 4096, &err)); /* seven: there is room */
    assert_true(is_there("two"));
    assert_true(blob_promise_use(&rig.blobs, &promise, 1, &err)); /* one more, room for nine */
    assert_false(is_there("two"));
    assert_false(is_there("three"));
    assert_true(is_there("four"));
    assert_true(blob_promise_use(&rig.blobs, &promise, 3 * 4096 - 1, &err)); /* …for ten, and no more */
    assert_false(is_there("four"));
    blob_promise_done(&promise);
}

/* Others make room for what has arrived and a step, and not for all that it was promised. */
static void a_promise_says_how_much_has_room(void **state)
{
    struct blob_promise promise = { .fd = -1 }, other = { .fd = -1 };
    struct err err;

    (void)state;
    keep("one");
    make_older("one", 500);
    keep("two");
    rig.blobs.bytes_most = 10 * 4096;
    rig.blobs.step = 2 * 4096;
    assert_true(blobs_make_room(&rig.blobs, 6 * 4096, &promise, &err));
    rig.blobs.owner = 1;
    assert_true(blobs_make_room(&rig.blobs, 4 * 4096, &other, &err));
    assert_true(blob_promise_use(&rig.blobs, &other, 4 * 4096, &err)); /* 2 + 4 + 2 kept */
    assert_true(is_there("one"));
    assert_true(blob_promise_use(&rig.blobs, &promise, 3 * 4096, &err)); /* 5 + 4 */
    assert_false(is_there("one"));
    assert_true(is_there("two"));
    blob_promise_less(&promise, 3 * 4096); /* a layer that is whole is one of those that are kept */
    keep("one");
    make_older("one", 500);
    assert_true(blob_promise_use(&rig.blobs, &promise, 2 * 4096 + 1, &err)); /* 3 + 4 */
    assert_true(is_there("one"));
    blob_promise_done(&promise);
    blob_promise_done(&other);
}

static void what_is_not_in_use_can_be_counted_and_removed(void **state)
{
    struct blob blob = blob_of("unfinished");
    uint64_t files, bytes;
    struct err err;

    (void)state;
    keep("one");
    keep("two");
    assert_true(blob_begin(&rig.blobs, &blob, &err)); /* under way */
    assert_true(blob_write(&blob, STR("unfin"), &err));
    assert_true(blobs_stock(&rig.blobs, false, &files, &bytes, &err));
    assert_int_equal(files, 2);
    assert_int_equal(bytes, 2 * 4096);
    assert_true(is_there("one") && is_there("two"));
    assert_true(blobs_stock(&rig.blobs, true, &files, &bytes, &err));
    assert_int_equal(files, 2);
    assert_false(is_there("one") || is_there("two"));
    assert_true(blob_write(&blob, STR("ished"), &err));
    auto_close int fd = -1;
    assert_true(blob_finish(&rig.blobs, &blob, &fd, &err));
    blob_done(&blob);
    assert_true(blobs_stock(&rig.blobs, true, &files, &bytes, &err));
    assert_int_equal(files, 1);
    assert_true(blobs_stock(&rig.blobs, false, &files, &bytes, &err));
    assert_int_equal(files + bytes, 0);
}

static void the_downloads_of_a_team_leave_half_to_others(void **state)
{
    struct blob_promise one = { .fd = -1 }, two = { .fd = -1 };
    struct err err;

    (void)state;
    rig.blobs.bytes_most = 10 * 4096;
    rig.blobs.step = 2 * 4096 - 1;
    rig.blobs.owner = blobs_owner(STR("a"));
    assert_true(blobs_make_room(&rig.blobs, 3 * 4096, &one, &err));
    assert_false(make_room(3 * 4096, &err)); /* both together have more than five */
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(blobs_make_room(&rig.blobs, 2 * 4096, &two, &err));
    rig.blobs.owner = blobs_owner(STR("b"));
    assert_true(make_room(5 * 4096, &err));
    blob_promise_done(&one);
    blob_promise_done(&two);
    assert_true(blobs_make_room(&rig.blobs, 9 * 4096, &one, &err)); /* one alone */
    rig.blobs.bytes_most = 20 * 4096;
    assert_false(make_room(2 * 4096, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(make_room(4096, &err)); /* a small one */
    rig.blobs.owner = blobs_owner(STR("a"));
    assert_true(make_room(11 * 4096, &err));
    blob_promise_done(&one);
}

int main(void)
{
#define BLOB_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        BLOB_CASE(a_download_goes_on_where_it_ended),
        BLOB_CASE(a_wrong_digest_leaves_nothing),
        BLOB_CASE(a_file_that_was_changed_is_not_used),
        BLOB_CASE(another_place_has_other_files),
        BLOB_CASE(what_is_old_goes_first),
        BLOB_CASE(a_download_under_way_stays),
        BLOB_CASE(what_others_were_promised_is_not_there_for_all),
        BLOB_CASE(a_download_under_way_counts_once),
        BLOB_CASE(a_promise_of_nobody_means_nothing),
        BLOB_CASE(room_is_made_as_bytes_arrive),
        BLOB_CASE(the_downloads_of_a_team_leave_half_to_others),
        BLOB_CASE(a_promise_says_how_much_has_room),
        BLOB_CASE(what_is_not_in_use_can_be_counted_and_removed),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
