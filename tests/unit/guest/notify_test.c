/*
 * What the kernel does rarely, done on purpose: its descriptors are numbers that it counts up and uses again, and its
 * queue overflows. Here it is a pipe, and says what the test has it say.
 */
#define inotify_init1 kernel_init
#define inotify_add_watch kernel_add
#define inotify_rm_watch kernel_remove
#include "guest/notify.c"

#include <fcntl.h>
#include <stdio.h>

#include "test.h"

static struct loop *loop;
static struct notify *notify;
static int kernel_fd = -1; /* where it writes */
static int next_wd, removed_wd, init_errno, add_errno;
static unsigned opened;
static bool goes_meanwhile; /* the directory that is added next */

static void kernel_says(int wd, uint32_t mask, const char *name);

int kernel_init(int flags)
{
    int fds[2];
    (void)flags;
    if (init_errno) {
        errno = init_errno;
        return -1;
    }
    opened++;
    fd_close(&kernel_fd);
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    kernel_fd = fds[1];
    return fds[0];
}

int kernel_add(int fd, const char *path, uint32_t mask)
{
    (void)fd;
    (void)path;
    (void)mask;
    errno = add_errno;
    if (add_errno)
        return -1;
    if (goes_meanwhile) {
        kernel_says(next_wd, IN_DELETE_SELF, "");
        kernel_says(next_wd, IN_IGNORED, "");
        add_errno = ENOENT;
    }
    return next_wd;
}

int kernel_remove(int fd, int wd)
{
    (void)fd;
    removed_wd = wd;
    return 0;
}

static void kernel_says(int wd, uint32_t mask, const char *name)
{
    enum { NAME_ROOM = 16 };
    _Alignas(struct inotify_event) char room[sizeof(struct inotify_event) + NAME_ROOM] = { 0 };
    struct inotify_event e = { .wd = wd, .mask = mask, .len = *name ? NAME_ROOM : 0 };
    memcpy(room, &e, sizeof e);
    (void)snprintf(room + sizeof e, NAME_ROOM, "%s", name);
    ssize_t len = (ssize_t)(sizeof e + e.len);
    assert_int_equal(write(kernel_fd, room, (size_t)len), len);
}

static void on_ready(void *context)
{
    (void)context;
}

static uint64_t join(struct notify_reader *reader, int wd)
{
    uint64_t dir;
    struct err err;
    next_wd = wd;
    assert_true(notify_join(reader, "/d", true, &dir, &err));
    return dir;
}

static void assert_next(struct notify_reader *reader, uint64_t dir, uint32_t mask, const char *name)
{
    const struct notify_record *record = notify_next(reader);
    assert_non_null(record);
    assert_int_equal(record->dir, dir);
    assert_int_equal(record->mask, mask);
    assert_string_equal(record->name, name);
}

static int set_up(void **state)
{
    (void)state;
    init_errno = add_errno = removed_wd = 0;
    opened = 0;
    goes_meanwhile = false;
    loop = loop_new();
    notify = notify_new(loop, on_ready, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    notify_free(notify);
    loop_free(loop);
    fd_close(&kernel_fd);
    return 0;
}

static void a_number_used_again_is_another_directory(void **state)
{
    (void)state;
    struct notify_reader a, b;
    notify_attach(notify, &a);
    notify_attach(notify, &b);
    uint64_t before = join(&a, 7);
    kernel_says(7, IN_CREATE, "old");
    kernel_says(7, IN_IGNORED, "");
    /* Gone, and nobody has read that; its number is given to the next. */
    uint64_t after = join(&b, 7);
    assert_int_not_equal(before, after);
    kernel_says(7, IN_CREATE, "new");
    notify_take_all(notify);
    assert_next(&a, before, IN_CREATE, "old");
    assert_next(&a, before, IN_IGNORED, "");
    assert_null(notify_next(&a));
    assert_next(&b, after, IN_CREATE, "new");
    assert_null(notify_next(&b));
    /* What a leaves now is not what b has. */
    notify_leave(&a, before);
    assert_int_equal(removed_wd, 0);
    notify_leave(&b, after);
    assert_int_equal(removed_wd, 7);
    notify_detach(&a);
    notify_detach(&b);
}

static void who_takes_over_a_number_does_not_hear_the_one_who_left(void **state)
{
    (void)state;
    struct notify_reader a;
    notify_attach(notify, &a);
    uint64_t before = join(&a, 7);
    kernel_says(7, IN_CREATE, "old");
    notify_leave(&a, before);
    assert_int_equal(removed_wd, 7);
    kernel_says(7, IN_MODIFY, "old");
    kernel_says(7, IN_IGNORED, "");
    uint64_t after = join(&a, 7);
    assert_int_not_equal(before, after);
    kernel_says(7, IN_CREATE, "new");
    notify_take_all(notify);
    assert_next(&a, after, IN_CREATE, "new");
    assert_null(notify_next(&a));
    notify_leave(&a, after);
    notify_detach(&a);
}

static void a_watch_goes_with_its_last_listener(void **state)
{
    (void)state;
    struct notify_reader a, b;
    notify_attach(notify, &a);
    notify_attach(notify, &b);
    uint64_t dir = join(&a, 1);
    assert_int_equal(join(&b, 1), dir);
    assert_int_equal(join(&b, 1), dir); /* once is enough */
    notify_leave(&b, dir);
    assert_int_equal(removed_wd, 0);
    kernel_says(1, IN_CREATE, "f");
    notify_take_all(notify);
    assert_next(&a, dir, IN_CREATE, "f");
    assert_null(notify_next(&b));
    notify_leave(&a, dir);
    assert_int_equal(removed_wd, 1);
    notify_detach(&a);
    notify_detach(&b);
}

static void what_the_kernel_would_have_merged_is_merged(void **state)
{
    (void)state;
    struct notify_reader a, b;
    notify_attach(notify, &a);
    notify_attach(notify, &b);
    uint64_t mine = join(&a, 1), other = join(&b, 2);
    /* In an instance of its own, a would have had these one after the other. */
    kernel_says(1, IN_MODIFY, "f");
    kernel_says(2, IN_MODIFY, "f");
    kernel_says(1, IN_MODIFY, "f");
    kernel_says(1, IN_MODIFY, "g");
    notify_take_all(notify);
    assert_int_equal(notify_waiting(&a), 2);
    assert_next(&a, mine, IN_MODIFY, "f");
    assert_next(&a, mine, IN_MODIFY, "g");
    assert_next(&b, other, IN_MODIFY, "f");
    notify_leave(&a, mine);
    notify_leave(&b, other);
    notify_detach(&a);
    notify_detach(&b);
}

static void when_the_kernel_loses_count_everybody_is_told_in_order(void **state)
{
    (void)state;
    struct notify_reader a, b;
    struct err err;
    uint64_t dir;
    notify_attach(notify, &a);
    notify_attach(notify, &b);
    uint64_t mine = join(&a, 1), other = join(&b, 2);
    kernel_says(1, IN_CREATE, "f");
    kernel_says(-1, IN_Q_OVERFLOW, "");
    kernel_says(2, IN_CREATE, "f");
    /* Whoever joins while that comes to light knows that it is not heard. */
    next_wd = 1;
    assert_false(notify_join(&b, "/d", true, &dir, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_next(&a, mine, IN_CREATE, "f");
    assert_next(&a, 0, IN_Q_OVERFLOW, "");
    assert_null(notify_next(&a));
    assert_next(&b, 0, IN_Q_OVERFLOW, "");
    assert_null(notify_next(&b));
    notify_leave(&a, mine);
    notify_leave(&b, other);
    notify_detach(&a);
    notify_detach(&b);
    /* And whoever comes next has a fresh instance. */
    notify_attach(notify, &a);
    dir = join(&a, 1);
    assert_int_equal(opened, 2);
    kernel_says(1, IN_CREATE, "g");
    notify_take_all(notify);
    assert_next(&a, dir, IN_CREATE, "g");
    notify_leave(&a, dir);
    notify_detach(&a);
}

static void fill(int wd, size_t count)
{
    char name[16];
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(name, sizeof name, "%zu", i);
        kernel_says(wd, IN_CREATE, name);
        notify_take_all(notify);
    }
}

static void a_slow_reader_loses_count_alone(void **state)
{
    (void)state;
    struct notify_reader slow, quick;
    size_t heard = 0;
    notify_attach(notify, &slow);
    notify_attach(notify, &quick);
    uint64_t dir = join(&slow, 1);
    assert_int_equal(join(&quick, 1), dir);
    for (size_t i = 0; i < 4; i++) {
        fill(1, LIMIT_WATCH_QUEUE / 4 + 1);
        while (notify_next(&quick))
            heard++;
    }
    assert_int_equal(heard, LIMIT_WATCH_QUEUE + 4);
    for (heard = 0; heard < LIMIT_WATCH_QUEUE; heard++)
        assert_int_equal(notify_next(&slow)->mask, IN_CREATE);
    assert_next(&slow, 0, IN_Q_OVERFLOW, "");
    fill(1, 1);
    assert_null(notify_next(&slow));
    assert_non_null(notify_next(&quick));
    notify_leave(&slow, dir);
    notify_leave(&quick, dir);
    notify_detach(&slow);
    notify_detach(&quick);
}

static void when_all_hold_too_much_the_one_with_most_loses_it(void **state)
{
    (void)state;
    enum { READERS = 400 };
    static struct notify_reader readers[READERS], small;
    size_t lost = 0;
    notify_attach(notify, &small);
    uint64_t dir = 0, lone = join(&small, 2);
    kernel_says(2, IN_CREATE, "f");
    for (size_t i = 0; i < READERS; i++) {
        notify_attach(notify, &readers[i]);
        dir = join(&readers[i], 1);
    }
    fill(1, LIMIT_WATCH_QUEUE_BYTES / READERS / sizeof(void *));
    assert_true(notify->held_bytes <= LIMIT_WATCH_QUEUE_BYTES);
    for (size_t i = 0; i < READERS; i++) {
        const struct notify_record *record = notify_next(&readers[i]);
        assert_non_null(record);
        lost += record->mask == IN_Q_OVERFLOW;
        notify_leave(&readers[i], dir);
        notify_detach(&readers[i]);
    }
    assert_true(lost > 0 && lost < READERS);
    assert_next(&small, lone, IN_CREATE, "f");
    notify_leave(&small, lone);
    notify_detach(&small);
    /* All of it came back. */
    assert_int_equal(notify->held_bytes, size_of(notify->overflow));
}

static void what_the_kernel_refuses_is_a_limit(void **state)
{
    (void)state;
    struct notify_reader a;
    struct err err;
    uint64_t dir;
    notify_attach(notify, &a);
    init_errno = EMFILE;
    assert_false(notify_join(&a, "/d", true, &dir, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    init_errno = 0;
    add_errno = ENOSPC;
    assert_false(notify_join(&a, "/d", true, &dir, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    add_errno = ENOENT;
    assert_false(notify_join(&a, "/d", true, &dir, &err));
    assert_int_equal(err.sys, ENOENT);
    add_errno = 0;
    dir = join(&a, 1);
    notify_leave(&a, dir);
    notify_detach(&a);
}

static void a_directory_that_goes_as_it_is_joined_is_not_there(void **state)
{
    (void)state;
    struct notify_reader a, b;
    uint64_t dir;
    struct err err;
    notify_attach(notify, &a);
    notify_attach(notify, &b);
    uint64_t first = join(&a, 1);
    goes_meanwhile = true;
    assert_false(notify_join(&b, "/d", true, &dir, &err));
    assert_int_equal(err.sys, ENOENT);
    assert_next(&a, first, IN_DELETE_SELF, "");
    assert_next(&a, first, IN_IGNORED, "");
    assert_int_equal(notify_waiting(&b), 0);
    notify_detach(&b);
    notify_detach(&a);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_number_used_again_is_another_directory),
        T(who_takes_over_a_number_does_not_hear_the_one_who_left),
        T(a_directory_that_goes_as_it_is_joined_is_not_there),
        T(a_watch_goes_with_its_last_listener),
        T(what_the_kernel_would_have_merged_is_merged),
        T(when_the_kernel_loses_count_everybody_is_told_in_order),
        T(a_slow_reader_loses_count_alone),
        T(when_all_hold_too_much_the_one_with_most_loses_it),
        T(what_the_kernel_refuses_is_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
