#include "image/layers.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/remove.h"
#include "temp_data.h"

static void write_text(int dir_fd, const char *name, const char *text)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static int make_tree(const char *name)
{
    char path[64];

    (void)snprintf(path, sizeof path, "tmp/%s", name);
    assert_int_equal(mkdirat(data_fd, path, 0755), 0);
    int fd = openat(data_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(mkdirat(fd, "etc", 0755), 0);
    write_text(fd, "etc/a", "one");
    write_text(fd, "etc/b", "two");
    assert_int_equal(symlinkat("a", fd, "etc/link"), 0);
    assert_int_equal(mkfifoat(fd, "pipe", 0600), 0);
    return fd;
}

static void digest(int fd, char out[LAYER_HEX_BYTES])
{
    struct err err;

    if (!layer_digest(fd, out, &err))
        fail_msg("%s", err_text(&err));
}

static void equal_trees_have_equal_names_whatever_their_times(void **state)
{
    (void)state;
    auto_close int one = make_tree("one");
    auto_close int two = make_tree("two");
    char a[LAYER_HEX_BYTES], b[LAYER_HEX_BYTES];
    const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 2 } };

    assert_int_equal(utimensat(two, "etc/a", times, 0), 0);
    digest(one, a);
    digest(two, b);
    assert_string_equal(a, b);
    assert_true(layer_hex_valid(a));
}

static void every_difference_counts(void **state)
{
    (void)state;
    auto_close int tree = make_tree("tree");
    char names[8][LAYER_HEX_BYTES];

    digest(tree, names[0]);
    write_text(tree, "etc/a", "eno");
    digest(tree, names[1]);
    assert_int_equal(fchmodat(tree, "etc/b", 0600, 0), 0);
    digest(tree, names[2]);
    assert_int_equal(renameat(tree, "etc/b", tree, "etc/c"), 0);
    digest(tree, names[3]);
    assert_int_equal(unlinkat(tree, "etc/link", 0), 0);
    assert_int_equal(symlinkat("c", tree, "etc/link"), 0);
    digest(tree, names[4]);
    assert_int_equal(renameat(tree, "etc/a", tree, "a"), 0);
    digest(tree, names[5]);
    assert_int_equal(mkdirat(tree, "empty", 0755), 0);
    digest(tree, names[6]);
    assert_int_equal(fchmodat(tree, ".", 0700, 0), 0);
    digest(tree, names[7]);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(names[i], names[j]);
}

static void a_sealed_layer_has_its_name_and_keeps_its_contents(void **state)
{
    (void)state;
    auto_close int tree = make_tree("tree");
    char hex[LAYER_HEX_BYTES], want[LAYER_HEX_BYTES], path[128];
    struct err err;

    digest(tree, want);
    assert_false(layer_exists(data_fd, want));
    assert_true(layer_seal(data_fd, "tree", hex, &err));
    assert_string_equal(hex, want);
    assert_true(layer_exists(data_fd, hex));
    (void)snprintf(path, sizeof path, "layers/%s/etc/a", hex);
    assert_int_equal(faccessat(data_fd, path, F_OK, 0), 0);
    assert_int_equal(faccessat(data_fd, "tmp/tree", F_OK, 0), -1);
    /* The same again: nothing is doubled, and the copy goes. */
    auto_close int again = make_tree("again");
    assert_true(again >= 0);
    assert_true(layer_seal(data_fd, "again", hex, &err));
    assert_string_equal(hex, want);
    assert_int_equal(faccessat(data_fd, "tmp/again", F_OK, 0), -1);
}

static void what_a_crash_left_half_made_is_swept(void **state)
{
    (void)state;
    auto_close int tree = make_tree("half");

    assert_true(tree >= 0);
    temp_data_prepare();
    assert_int_equal(faccessat(data_fd, "tmp/half", F_OK, 0), -1);
}

static void what_somebody_is_making_is_not_swept(void **state)
{
    (void)state;
    auto_close int lock_fd = -1;
    int second = -1;
    struct err err;

    assert_true(layers_prepare(data_fd, &lock_fd, &err));
    auto_close int tree = make_tree("in-the-making");
    assert_true(tree >= 0);
    assert_false(layers_prepare(data_fd, &second, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_int_equal(faccessat(data_fd, "tmp/in-the-making", F_OK, 0), 0);
}

static void a_layer_that_is_not_used_goes_to_the_trash(void **state)
{
    (void)state;
    auto_close int tree = make_tree("tree"), lock_fd = -1;
    char used_hex[LAYER_HEX_BYTES], unused_hex[LAYER_HEX_BYTES], path[128];
    struct map used;
    uint32_t count;
    struct err err;

    assert_true(tree >= 0);
    assert_true(layer_seal(data_fd, "tree", used_hex, &err));
    auto_close int other = make_tree("other");
    assert_int_equal(mkdirat(other, "more", 0755), 0);
    assert_true(layer_seal(data_fd, "other", unused_hex, &err));
    assert_int_equal(mkdirat(data_fd, "trash", 0700), 0);
    assert_int_equal(mkdirat(data_fd, "layers/being-copied", 0700), 0); /* by a person: not ours to judge */

    map_init(&used);
    (void)map_put(&used, str_from(used_hex), used_hex);
    assert_true(layers_lock(data_fd, &lock_fd, &err));
    assert_true(layers_sweep(data_fd, &used, &count, &err));
    assert_int_equal(count, 1);
    assert_true(layer_exists(data_fd, used_hex));
    assert_false(layer_exists(data_fd, unused_hex));
    (void)snprintf(path, sizeof path, "trash/%s/more", unused_hex);
    assert_int_equal(faccessat(data_fd, path, F_OK, 0), 0);
    assert_int_equal(faccessat(data_fd, "layers/being-copied", F_OK, 0), 0);
    assert_true(layers_sweep(data_fd, &used, &count, &err));
    assert_int_equal(count, 0);
    map_done(&used);
}

static void a_name_that_is_no_digest_does_not_exist(void **state)
{
    (void)state;
    assert_false(layer_exists(data_fd, "../tmp"));
    assert_false(layer_exists(data_fd, ""));
    assert_false(layer_hex_valid("ABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCD"));
}

#define LAYER_CASE(function) cmocka_unit_test_setup_teardown(function, prepare_again, NULL)

static int prepare_again(void **state)
{
    struct err err;

    (void)state;
    assert_true(remove_tree(data_fd, "layers", &err));
    temp_data_prepare();
    return 0;
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        LAYER_CASE(equal_trees_have_equal_names_whatever_their_times),
        LAYER_CASE(every_difference_counts),
        LAYER_CASE(a_sealed_layer_has_its_name_and_keeps_its_contents),
        LAYER_CASE(what_a_crash_left_half_made_is_swept),
        LAYER_CASE(what_somebody_is_making_is_not_swept),
        LAYER_CASE(a_layer_that_is_not_used_goes_to_the_trash),
        LAYER_CASE(a_name_that_is_no_digest_does_not_exist),
    };
    return cmocka_run_group_tests(cases, temp_data_set_up, temp_data_tear_down);
}
