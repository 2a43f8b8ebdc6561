#include "guest/watch.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "test.h"

enum {
    DEEP = 2000,     /* levels; with names of one letter still a path that the kernel takes */
    TOO_DEEP = 2100, /* one that it does not */
    FEW_FILES = 200, /* descriptors: fewer than levels */
    MANY_FILES = 500,
};

static struct guest guest;
static char top[] = "/tmp/watch.XXXXXX";
static size_t created, other;
static char last[PATH_MAX];
static struct err failed;

static void on_event(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path)
{
    (void)watch;
    (void)path;
    *(type == WATCH_EVENT_CREATE ? &created : &other) += 1;
    (void)snprintf(last, sizeof last, "%s", name);
}

static void on_failed(struct dir_watch *watch, const struct err *err)
{
    (void)watch;
    failed = *err;
}

static struct dir_watch *watch_top(struct err *err)
{
    return dir_watch_new(
        guest.watchers,
        &(struct dir_watch_want){ .path = top, .is_recursive = true, .on_event = on_event, .on_failed = on_failed },
        err);
}

/* A chain of directories named d, made one level at a time: its path may be longer than any call takes. */
static void make_chain(const char *dir, int levels)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (int i = 0; i < levels; i++) {
        assert_int_equal(mkdirat(fd, "d", 0700), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        fd_close(&fd);
        fd = next;
    }
    fd_close(&fd);
}

static void put(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", top, name);
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(top, sizeof top, "/tmp/watch.XXXXXX");
    guest.loop = loop_new();
    guest.watchers = watchers_new(&guest);
    created = other = 0;
    last[0] = '\0';
    failed = (struct err){ 0 };
    return mkdtemp(top) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    watchers_free(guest.watchers);
    loop_free(guest.loop);
    (void)snprintf(command, sizeof command, "rm -rf %s", top);
    return system(command); /* NOLINT(cert-env33-c): rm knows how to go deep */
}

static void a_deep_tree_is_watched_with_few_descriptors(void **state)
{
    (void)state;
    struct rlimit before, few;
    struct err err;
    char path[PATH_MAX];
    make_chain(top, DEEP);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ .rlim_cur = FEW_FILES, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct dir_watch *w = watch_top(&err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(w);
    size_t len = (size_t)snprintf(path, sizeof path, "%s", top);
    for (int i = 0; i < DEEP; i++)
        len += (size_t)snprintf(path + len, sizeof path - len, "/d");
    (void)snprintf(path + len, sizeof path - len, "/f");
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    watchers_look(guest.watchers);
    assert_int_equal(created, 1);
    assert_string_equal(last, path + strlen(top) + 1);
}

static void a_path_that_does_not_fit_is_refused_and_not_cut(void **state)
{
    (void)state;
    struct err err;
    make_chain(top, TOO_DEEP);
    assert_null(watch_top(&err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_non_null(strstr(err.message, "cannot watch a path of more than"));
}

static void a_tree_that_grows_too_deep_ends_the_watch_with_a_reason(void **state)
{
    (void)state;
    struct err err;
    assert_non_null(watch_top(&err));
    make_chain(top, TOO_DEEP);
    watchers_look(guest.watchers);
    assert_int_equal(failed.kind, ERR_LIMIT);
}

static void running_out_of_descriptors_is_no_empty_directory(void **state)
{
    (void)state;
    struct rlimit before, none;
    struct err err;
    make_chain(top, 3);
    assert_non_null(watch_top(&err));
    char path[128];
    (void)snprintf(path, sizeof path, "%s/new", top);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    watchers_look(guest.watchers);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(failed.kind, ERR_LIMIT);
}

static void what_fills_a_new_directory_is_told_once(void **state)
{
    (void)state;
    struct err err;
    char name[64];
    assert_non_null(watch_top(&err));
    (void)snprintf(name, sizeof name, "%s/n", top);
    assert_int_equal(mkdir(name, 0700), 0);
    make_chain(name, 2);
    for (int i = 0; i < MANY_FILES; i++) {
        (void)snprintf(name, sizeof name, "n/d/%d", i);
        put(name);
    }
    watchers_look(guest.watchers);
    assert_int_equal(created, 3 + MANY_FILES);
    /* And what comes next is told by the kernel. */
    put("n/d/d/next");
    watchers_look(guest.watchers);
    assert_int_equal(created, 4 + MANY_FILES);
    assert_string_equal(last, "n/d/d/next");
}

static void a_directory_that_moves_takes_all_below_along(void **state)
{
    (void)state;
    struct err err;
    char from[64], to[64];
    (void)snprintf(from, sizeof from, "%s/a", top);
    (void)snprintf(to, sizeof to, "%s/ab", top);
    assert_int_equal(mkdir(from, 0700), 0);
    make_chain(from, 2);
    assert_non_null(watch_top(&err));
    assert_int_equal(rename(from, to), 0);
    watchers_look(guest.watchers);
    put("ab/d/d/f");
    watchers_look(guest.watchers);
    assert_string_equal(last, "ab/d/d/f");
}

static void watches_have_a_last_one_and_it_says_so(void **state)
{
    (void)state;
    struct dir_watch *watches[LIMIT_WATCHERS] = { 0 };
    struct err err = { 0 };
    size_t count = 0;
    make_chain(top, 3);
    /* The kernel may allow fewer than we do: 128 for one user by default. */
    while (count < LIMIT_WATCHERS && (watches[count] = watch_top(&err)))
        count++;
    assert_true(count > 0);
    assert_null(watch_top(&err));
    assert_int_equal(err.kind, ERR_LIMIT);
    put("d/f");
    watchers_look(guest.watchers);
    assert_int_equal(created, count);
    dir_watch_free(watches[0]);
    assert_non_null(watch_top(&err));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_deep_tree_is_watched_with_few_descriptors),
        T(a_path_that_does_not_fit_is_refused_and_not_cut),
        T(a_tree_that_grows_too_deep_ends_the_watch_with_a_reason),
        T(running_out_of_descriptors_is_no_empty_directory),
        T(what_fills_a_new_directory_is_told_once),
        T(a_directory_that_moves_takes_all_below_along),
        T(watches_have_a_last_one_and_it_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
