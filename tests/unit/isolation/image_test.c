#include "isolation/native/image.h"

#include "test.h"

static struct image an_image(void)
{
    struct image image = { .origin = { "6.1 x86_64", "abc AMD", "0123", "4.2.1" }, .layer_count = 3 };
    struct err err;

    assert_true(image_add(&image, &(struct image_part){ .from = IMAGE_SOCKET, .number = 7 }, &err));
    assert_true(image_add(
        &image, &(struct image_part){ .from = IMAGE_MOUNT, .where = (char *)"/dev", .path = (char *)"/" }, &err));
    assert_true(image_add(&image,
                          &(struct image_part){ .from = IMAGE_FILE,
                                                .mount_id = 76,
                                                .inode = 42,
                                                .size = 9,
                                                .changed_ns = UINT64_MAX,
                                                .path = (char *)"/usr/bin/python3" },
                          &err));
    assert_true(
        image_add(&image, &(struct image_part){ .from = IMAGE_CGROUP, .mount_id = 5, .inode = 6, .number = 2 }, &err));
    return image;
}

static void what_is_printed_parses_to_the_same(void **state)
{
    (void)state;
    auto_image struct image image = an_image(), again = { 0 };
    auto_buf struct buf text = buf_make(NULL, 4096), other = buf_make(NULL, 4096);
    struct err err;

    image_print(&text, &image);
    assert_true(image_parse(buf_str(&text), &again, &err));
    assert_int_equal(again.count, 4);
    assert_int_equal(again.layer_count, 3);
    assert_int_equal(again.parts[2].size, 9);
    assert_true(again.parts[2].changed_ns == UINT64_MAX);
    assert_string_equal(again.parts[2].path, "/usr/bin/python3");
    assert_true(image_has_file(&again, 76, 42));
    assert_false(image_has_file(&again, 76, 43));
    image_print(&other, &again);
    assert_true(str_eq(buf_str(&text), buf_str(&other)));
}

static void paths_that_would_be_more_than_a_path_are_refused(void **state)
{
    (void)state;
    static const char *const paths[] = { "relative", "/a b", "/a\nsocket", "/a]:x", "/[" };
    auto_image struct image image = { 0 };
    struct err err;

    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct image_part part = { .from = IMAGE_FILE, .path = (char *)paths[i] };
        assert_false(image_add(&image, &part, &err));
        assert_int_equal(err.kind, ERR_INVALID);
    }
    assert_int_equal(image.count, 0);
}

static void damaged_text_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "cloister-image 9\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 129\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 1\nguestd 1 2 3 - -\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 1\nwhat 1 2 3 4 5 - -\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 1\nfile 1 2 3 4 5 - -\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 1\nguestd 1 2 x 4 5 - -\n",
        "cloister-image 2\nkernel a\ncpu b\nprogram c\ncriu d\nlayers 1\nmount 0 0 0 0 0 /dev\n",
    };
    auto_image struct image image = { 0 };
    struct err err;

    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_false(image_parse(str_from(texts[i]), &image, &err));
        assert_int_equal(err.kind, ERR_INVALID);
    }
}

static void an_image_fits_where_nothing_differs(void **state)
{
    (void)state;
    auto_image struct image image = an_image();
    struct image_origin here = image.origin;
    struct err err;

    assert_true(image_fits(&image.origin, &here, &err));
    here.criu[0] = '5';
    assert_false(image_fits(&image.origin, &here, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_non_null(strstr(err.message, "version of CRIU"));
    assert_non_null(strstr(err.message, "reboot"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_parses_to_the_same),
        cmocka_unit_test(paths_that_would_be_more_than_a_path_are_refused),
        cmocka_unit_test(damaged_text_is_refused),
        cmocka_unit_test(an_image_fits_where_nothing_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
