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

static size_t kernel_limit(const char *name)
{
    char path[64];
    size_t value = 0;
    (void)snprintf(path, sizeof path, "/proc/sys/fs/inotify/%s", name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &value), 1);
    (void)fclose(file);
    return value;
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

static void what_fills_a_new_directory_is_told_up_to_a_limit(void **state)
{
    (void)state;
    const int too_many = LIMIT_WATCH_TOLD_BYTES / 300; /* all of them one file, of which ext4 takes 65,000 links */
    struct err err;
    char name[NAME_MAX + 1];
    assert_non_null(watch_top(&err));
    (void)snprintf(name, sizeof name, "%s/n", top);
    assert_int_equal(mkdir(name, 0700), 0);
    auto_close int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put("n/f");
    for (int i = 0; i < too_many; i++) {
        (void)snprintf(name, sizeof name, "%0*d", NAME_MAX, i);
        assert_int_equal(linkat(fd, "f", fd, name, 0), 0);
    }
    watchers_look(guest.watchers);
    assert_int_equal(failed.kind, ERR_LIMIT);
    assert_true(created > 1 && created < (size_t)too_many);
    /* And it holds nothing that others could use. */
    created = 0;
    assert_non_null(watch_top(&err));
    (void)snprintf(name, sizeof name, "%s/m", top);
    assert_int_equal(mkdir(name, 0700), 0);
    put("m/f");
    watchers_look(guest.watchers);
    assert_int_equal(created, 2);
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
    static struct dir_watch *watches[LIMIT_WATCHERS];
    struct err err = { 0 };
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    /* Keeper raises both; by default the kernel allows a user 128 instances. */
    if (kernel_limit("max_user_instances") < LIMIT_WATCHERS + 64 || files.rlim_max < LIMIT_WATCHERS + 64)
        skip();
    make_chain(top, 3);
    for (size_t i = 0; i < LIMIT_WATCHERS; i++)
        assert_non_null(watches[i] = watch_top(&err));
    assert_null(watch_top(&err));
    assert_int_equal(err.kind, ERR_LIMIT);
    put("d/f");
    watchers_look(guest.watchers);
    assert_int_equal(created, LIMIT_WATCHERS);
    dir_watch_free(watches[0]);
    assert_non_null(watch_top(&err));
}

static void all_watches_together_have_so_many_directories(void **state)
{
    (void)state;
    struct err err = { 0 };
    size_t count = 0;
    make_chain(top, DEEP);
    while (count < LIMIT_WATCHERS && watch_top(&err))
        count++;
    /* 2,000 names of 2,000 bytes on average. */
    assert_in_range(count, 3, 8);
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_non_null(strstr(err.message, "all watches together"));
}

/* ---- several that watch the same ---- */

struct ear {
    struct dir_watch *watch;
    char heard[512];
    struct err failed;
};

static void hear(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path)
{
    static const char letters[] = "?cwdrm"; /* created, written, deleted, renamed, mode */
    struct ear *ear = dir_watch_owner(watch);
    size_t len = strlen(ear->heard);
    (void)path;
    (void)snprintf(ear->heard + len, sizeof ear->heard - len, "%c:%s ", letters[type], name);
}

static void hear_failed(struct dir_watch *watch, const struct err *err)
{
    struct ear *ear = dir_watch_owner(watch);
    ear->failed = *err;
}

static const char *below_top(const char *name)
{
    static char paths[2][128];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    (void)snprintf(path, sizeof paths[0], "%s/%s", top, name);
    return path;
}

static void listen_to(struct ear *ear, const char *name, bool is_recursive)
{
    struct err err;
    *ear = (struct ear){ 0 };
    ear->watch = dir_watch_new(guest.watchers,
                               &(struct dir_watch_want){ .path = below_top(name),
                                                         .is_recursive = is_recursive,
                                                         .on_event = hear,
                                                         .on_failed = hear_failed,
                                                         .owner = ear },
                               &err);
    assert_non_null(ear->watch);
}

/* What it has heard since it was last asked. */
static void assert_heard(struct ear *ear, const char *want)
{
    watchers_look(guest.watchers);
    assert_string_equal(ear->heard, want);
    ear->heard[0] = '\0';
}

static void make_dir(const char *name)
{
    assert_int_equal(mkdir(below_top(name), 0700), 0);
}

static void move(const char *from, const char *to)
{
    assert_int_equal(rename(below_top(from), below_top(to)), 0);
}

static void each_hears_the_same_directory_by_its_own_name(void **state)
{
    (void)state;
    struct ear tree, plain, link;
    make_dir("t");
    make_dir("t/d");
    assert_int_equal(symlink(below_top("t/d"), below_top("l")), 0);
    listen_to(&tree, "t", true);
    listen_to(&plain, "t/d", false);
    listen_to(&link, "l", true);
    put("t/d/f");
    assert_int_equal(unlink(below_top("t/d/f")), 0);
    assert_heard(&tree, "c:d/f d:d/f ");
    assert_heard(&plain, "c:f d:f ");
    assert_heard(&link, "c:f d:f ");
    /* Of the directory itself whoever watches it is told, and whoever watches its parent, once each. */
    assert_int_equal(chmod(below_top("t/d"), 0711), 0);
    assert_heard(&tree, "m:d ");
    assert_heard(&plain, "m:. ");
    make_dir("t/d/n");
    put("t/d/n/g");
    assert_heard(&tree, "c:d/n c:d/n/g ");
    assert_heard(&plain, "c:n ");
    put("t/d/n/h");
    assert_heard(&tree, "c:d/n/h ");
    assert_heard(&plain, "");
}

static void one_that_ends_takes_nothing_from_the_others(void **state)
{
    (void)state;
    struct ear goes, stays;
    make_dir("d");
    listen_to(&goes, "", true);
    listen_to(&stays, "d", false);
    put("d/f");
    dir_watch_free(goes.watch);
    assert_heard(&stays, "c:f ");
    assert_string_equal(goes.heard, "");
    put("d/g");
    assert_heard(&stays, "c:g ");
    /* And the other way round. */
    listen_to(&goes, "", true);
    dir_watch_stop(stays.watch);
    put("d/h");
    assert_heard(&goes, "c:d/h ");
    assert_heard(&stays, "");
}

static void a_newcomer_does_not_hear_what_was_before(void **state)
{
    (void)state;
    struct ear first, second;
    listen_to(&first, "", true);
    put("f");
    make_dir("d");
    put("d/g");
    listen_to(&second, "", true); /* nobody has looked yet */
    assert_heard(&first, "c:f c:d c:d/g ");
    assert_heard(&second, "");
    put("d/i");
    assert_heard(&first, "c:d/i ");
    assert_heard(&second, "c:d/i ");
}

static void a_directory_that_moves_is_renamed_for_each(void **state)
{
    (void)state;
    struct ear tree, inner;
    make_dir("t");
    make_dir("t/a");
    make_dir("t/a/b");
    listen_to(&tree, "t", true);
    listen_to(&inner, "t/a", true);
    move("t/a", "t/z");
    assert_heard(&tree, "r:a c:z ");
    assert_heard(&inner, "r:. ");
    put("t/z/b/f");
    assert_heard(&tree, "c:z/b/f ");
    assert_heard(&inner, "c:b/f ");
}

static void a_directory_that_moves_out_is_heard_by_who_still_watches_it(void **state)
{
    (void)state;
    struct ear tree, plain, inner;
    make_dir("t");
    make_dir("t/a");
    make_dir("t/a/b");
    listen_to(&tree, "t", true);
    listen_to(&plain, "t/a", false);
    listen_to(&inner, "t/a/b", true);
    move("t/a", "out");
    assert_heard(&tree, "r:a ");
    assert_heard(&plain, "r:. ");
    put("out/f");
    put("out/b/g");
    assert_heard(&tree, "");
    assert_heard(&plain, "c:f ");
    assert_heard(&inner, "c:g ");
    /* It comes back: to the tree that is something new, with what is in it. */
    move("out", "t/again");
    assert_heard(&tree, "c:again ");
    put("t/again/b/h");
    assert_heard(&tree, "c:again/b/h ");
    assert_heard(&inner, "c:h ");
    /* And the others may go without it being lost to this one. */
    dir_watch_free(plain.watch);
    dir_watch_free(inner.watch);
    put("t/again/b/i");
    assert_heard(&tree, "c:again/b/i ");
}

static void a_directory_that_goes_is_told_to_each_and_made_anew(void **state)
{
    (void)state;
    struct ear tree, plain;
    make_dir("t");
    make_dir("t/d");
    listen_to(&tree, "t", true);
    listen_to(&plain, "t/d", false);
    assert_int_equal(rmdir(below_top("t/d")), 0);
    make_dir("t/d");
    put("t/d/f");
    assert_heard(&tree, "d:d c:d c:d/f ");
    assert_heard(&plain, "d:. ");
    put("t/d/g");
    assert_heard(&tree, "c:d/g ");
    assert_heard(&plain, ""); /* it watched the one that has gone */
    listen_to(&plain, "t/d", false);
    put("t/d/h");
    assert_heard(&tree, "c:d/h ");
    assert_heard(&plain, "c:h ");
}

/* Changes that the kernel does not merge: two a file, and no longer than a moment in its queue. */
static void make_noise(const char *name, size_t files, bool look)
{
    for (size_t i = 0; i < files; i++) {
        put(name);
        assert_int_equal(unlink(below_top(name)), 0);
        if (look && i % 1000 == 0)
            watchers_look(guest.watchers);
    }
}

static void a_slow_watch_loses_count_alone(void **state)
{
    (void)state;
    struct ear slow, quick, quiet;
    size_t most = kernel_limit("max_queued_events");
    if (most > 100000)
        skip();
    make_dir("noisy");
    make_dir("quiet");
    listen_to(&slow, "noisy", false);
    listen_to(&quick, "noisy", true);
    listen_to(&quiet, "quiet", false);
    dir_watch_pause(slow.watch, true);
    make_noise("noisy/f", most / 2 + 1, true);
    put("quiet/f");
    assert_heard(&quiet, "c:f ");
    assert_int_equal(slow.failed.kind, ERR_NONE);
    dir_watch_pause(slow.watch, false);
    watchers_look(guest.watchers);
    assert_int_equal(slow.failed.kind, ERR_INTERNAL);
    assert_string_equal(slow.failed.message, WATCH_LOST);
    assert_int_equal(quick.failed.kind, ERR_NONE);
    quick.heard[0] = '\0';
    put("noisy/g");
    assert_heard(&quick, "c:g ");
}

static void a_watch_that_is_paused_goes_on_where_it_was(void **state)
{
    (void)state;
    struct ear slow;
    make_dir("d");
    listen_to(&slow, "d", true);
    dir_watch_pause(slow.watch, true);
    put("d/f");
    make_dir("d/n");
    put("d/n/g");
    assert_heard(&slow, "");
    dir_watch_pause(slow.watch, false);
    assert_heard(&slow, "c:f c:n c:n/g ");
    put("d/n/h");
    assert_heard(&slow, "c:n/h ");
}

static void what_the_kernel_lost_is_told_to_that_watch_alone(void **state)
{
    (void)state;
    struct ear noisy, quiet;
    size_t most = kernel_limit("max_queued_events");
    if (most > 100000)
        skip();
    make_dir("noisy");
    make_dir("quiet");
    listen_to(&noisy, "noisy", false);
    listen_to(&quiet, "quiet", true);
    put("quiet/f");
    make_noise("noisy/f", most / 2 + 1, false);
    put("quiet/g");
    assert_heard(&quiet, "c:f c:g ");
    assert_int_equal(quiet.failed.kind, ERR_NONE);
    assert_int_equal(noisy.failed.kind, ERR_INTERNAL);
    dir_watch_free(noisy.watch);
    listen_to(&noisy, "noisy", false);
    put("noisy/g");
    assert_heard(&noisy, "c:g ");
}

/* The kernel charges what it queues to guestd, for every watch anew. */
static void when_too_much_waits_the_slow_ones_lose_it(void **state)
{
    (void)state;
    enum { SLOW = 4, FILES = 5000, RECORD_BYTES = 272 }; /* two records a file, with a name of 240 bytes */
    struct ear slow[SLOW], quick;
    char name[300];
    assert_true(SLOW * 2 * FILES * RECORD_BYTES > LIMIT_WATCH_QUEUE_BYTES);
    if (kernel_limit("max_queued_events") < (size_t)2 * FILES)
        skip();
    make_dir("noisy");
    make_dir("quick");
    listen_to(&quick, "quick", false);
    for (size_t i = 0; i < SLOW; i++) {
        listen_to(&slow[i], "noisy", false);
        dir_watch_pause(slow[i].watch, true);
    }
    make_noise("quick/f", FILES, true);
    assert_int_equal(slow[0].failed.kind, ERR_NONE);
    auto_close int fd = open(below_top("noisy"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(name, sizeof name, "%0240d", i);
        assert_int_equal(mknodat(fd, name, S_IFREG | 0600, 0), 0);
        assert_int_equal(unlinkat(fd, name, 0), 0);
    }
    make_noise("quick/f", FILES, true);
    for (size_t i = 0; i < SLOW; i++)
        assert_string_equal(slow[i].failed.message, WATCH_LOST);
    watchers_look(guest.watchers);
    quick.heard[0] = '\0';
    put("quick/g");
    assert_heard(&quick, "c:g ");
    /* And what they held is free. */
    listen_to(&slow[0], "noisy", false);
    put("noisy/g");
    assert_heard(&slow[0], "c:g ");
}

static void an_instance_serves_the_next_watch_and_tells_it_nothing_old(void **state)
{
    (void)state;
    struct ear first, second;
    make_dir("d");
    listen_to(&first, "", true);
    dir_watch_pause(first.watch, true);
    put("d/f");
    int before = dup(0);
    (void)close(before);
    dir_watch_free(first.watch);
    listen_to(&second, "", true);
    int after = dup(0);
    (void)close(after);
    assert_int_equal(before, after); /* no new descriptor */
    assert_heard(&second, "");
    put("d/g");
    assert_heard(&second, "c:d/g ");
    assert_string_equal(first.heard, "");
}

static void what_the_kernel_refuses_is_a_limit(void **state)
{
    (void)state;
    struct rlimit before, none;
    struct err err;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct dir_watch *w = watch_top(&err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_null(w);
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_string_equal(err.message, "the system's limit of watches is reached");
}

static void a_suspended_watch_is_not_in_the_kernel_and_comes_back(void **state)
{
    (void)state;
    struct err err;
    make_dir("sub");
    struct dir_watch *w = watch_top(&err);
    assert_non_null(w);
    put("sub/before");
    watchers_suspend(guest.watchers);
    assert_int_equal(created, 1); /* what was queued is told first */
    put("sub/between");
    watchers_suspend(guest.watchers); /* twice is fine */
    watchers_look(guest.watchers);
    assert_int_equal(created, 1);
    watchers_resume(guest.watchers);
    watchers_look(guest.watchers);
    assert_int_equal(created, 1);
    put("sub/after");
    watchers_look(guest.watchers);
    assert_int_equal(created, 2);
    assert_string_equal(last, "sub/after");
    assert_int_equal(failed.kind, ERR_NONE);
    dir_watch_free(w);
}

static void a_slow_watch_that_is_suspended_loses_count(void **state)
{
    (void)state;
    struct err err;
    struct dir_watch *w = watch_top(&err);
    assert_non_null(w);
    dir_watch_pause(w, true);
    put("one");
    watchers_suspend(guest.watchers);
    assert_string_equal(failed.message, WATCH_LOST);
    watchers_resume(guest.watchers);
    dir_watch_free(w);
}

static void a_watch_may_be_freed_or_unpaused_while_it_is_suspended(void **state)
{
    (void)state;
    struct err err;
    struct dir_watch *w = watch_top(&err), *other_watch = watch_top(&err);
    assert_non_null(w);
    assert_non_null(other_watch);
    dir_watch_pause(other_watch, true);
    watchers_suspend(guest.watchers);
    dir_watch_free(w);
    dir_watch_pause(other_watch, false);
    watchers_resume(guest.watchers);
    put("one");
    watchers_look(guest.watchers);
    assert_int_equal(created, 1);
    dir_watch_free(other_watch);
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
        T(what_fills_a_new_directory_is_told_up_to_a_limit),
        T(a_directory_that_moves_takes_all_below_along),
        T(watches_have_a_last_one_and_it_says_so),
        T(all_watches_together_have_so_many_directories),
        T(each_hears_the_same_directory_by_its_own_name),
        T(one_that_ends_takes_nothing_from_the_others),
        T(a_newcomer_does_not_hear_what_was_before),
        T(a_directory_that_moves_is_renamed_for_each),
        T(a_directory_that_moves_out_is_heard_by_who_still_watches_it),
        T(a_directory_that_goes_is_told_to_each_and_made_anew),
        T(a_slow_watch_loses_count_alone),
        T(a_watch_that_is_paused_goes_on_where_it_was),
        T(what_the_kernel_lost_is_told_to_that_watch_alone),
        T(when_too_much_waits_the_slow_ones_lose_it),
        T(an_instance_serves_the_next_watch_and_tells_it_nothing_old),
        T(what_the_kernel_refuses_is_a_limit),
        T(a_suspended_watch_is_not_in_the_kernel_and_comes_back),
        T(a_slow_watch_that_is_suspended_loses_count),
        T(a_watch_may_be_freed_or_unpaused_while_it_is_suspended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
