#include "isolation/native/zpages.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/remove.h"
#include "test.h"

enum { FIRST_BYTES = 3000000, SECOND_BYTES = 5000, LAST = 5 };
enum { HEAD_BYTES = 12 + 4 + 3 * 12 + 11 + 12 + 11 + 8, FRAME_HEAD_BYTES = 18 };

struct place {
    char path[40];
    int fd;
};

static void put(int dir_fd, const char *name, const char *bytes, size_t len)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct err err;

    assert_true(fd >= 0 && fd_write_all(fd, str_of(bytes, len), &err));
}

/* Half of it repeats, as memory does. */
static char *bytes_of(size_t len, char first)
{
    char *bytes = mem_new(len);

    random_bytes((unsigned char *)bytes, len / 2);
    memset(bytes + len / 2, first, len - len / 2);
    return bytes;
}

static void check_file(int dir_fd, const char *name, const char *bytes, size_t len)
{
    auto_free char *text = NULL;
    size_t got;
    struct err err;

    if (!fd_read_file(dir_fd, name, FIRST_BYTES + 1, &text, &got, &err))
        fail_msg("%s: %s", name, err_text(&err));
    assert_int_equal(got, len);
    assert_memory_equal(text, bytes, len);
}

static int set_up(void **state)
{
    struct place *place = NEW(struct place);

    (void)snprintf(place->path, sizeof place->path, "/tmp/cloister-zpages.XXXXXX");
    assert_non_null(mkdtemp(place->path));
    place->fd = open(place->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(place->fd >= 0);
    *state = place;
    return 0;
}

static int tear_down(void **state)
{
    struct place *place = *state;
    struct err err;

    assert_true(remove_inside(place->fd, &err));
    close(place->fd);
    assert_int_equal(rmdir(place->path), 0);
    free(place);
    return 0;
}

static void remove_raw(int fd)
{
    (void)unlinkat(fd, "pages-1.img", 0);
    (void)unlinkat(fd, "pages-2.img", 0);
    (void)unlinkat(fd, "pages-33.img", 0);
}

/* Three files, one of them empty; compressed, and the originals removed. */
static uint64_t compress(const struct place *place, const char *first, const char *second)
{
    auto_zpages struct zpages pages = { 0 };
    uint64_t bytes = 0;
    struct err err;

    put(place->fd, "pages-1.img", first, FIRST_BYTES);
    put(place->fd, "pages-33.img", second, SECOND_BYTES);
    put(place->fd, "pages-2.img", "", 0);
    put(place->fd, "pagemap-1.img", "not pages", 9);
    assert_true(zpages_list(place->fd, &pages, &err));
    assert_int_equal(pages.count, 3);
    assert_int_equal(zpages_bytes(&pages), FIRST_BYTES + SECOND_BYTES);
    if (!zpages_compress(place->fd, &pages, &bytes, &err))
        fail_msg("%s", err_text(&err));
    assert_int_equal(renameat(place->fd, ZPAGES_NEW, place->fd, ZPAGES), 0);
    remove_raw(place->fd);
    return bytes;
}

static void pages_come_back_as_they_were(void **state)
{
    const struct place *place = *state;
    auto_free char *first = bytes_of(FIRST_BYTES, 'a'), *second = bytes_of(SECOND_BYTES, 'b');
    uint64_t bytes = compress(place, first, second);
    struct stat st;
    struct err err;

    assert_true(bytes > FIRST_BYTES / 2 && bytes < FIRST_BYTES * 6 / 10);
    assert_int_equal(fstatat(place->fd, ZPAGES, &st, 0), 0);
    assert_int_equal(st.st_size, bytes);
    put(place->fd, "pages-33.img", "in the way", 10);
    mode_t before = umask(077);
    bool fine = zpages_expand(place->fd, &err);
    (void)umask(before);
    if (!fine)
        fail_msg("%s", err_text(&err));
    assert_int_equal(fstatat(place->fd, "pages-1.img", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0644); /* the sandbox's root reads it */
    check_file(place->fd, "pages-1.img", first, FIRST_BYTES);
    check_file(place->fd, "pages-2.img", "", 0);
    check_file(place->fd, "pages-33.img", second, SECOND_BYTES);
    check_file(place->fd, "pagemap-1.img", "not pages", 9);
}

static void check_refused(const struct place *place, const char *what)
{
    struct err err;

    if (zpages_expand(place->fd, &err))
        fail_msg("%s was not noticed", what);
    if (err.kind != ERR_INVALID)
        fail_msg("%s: %s", what, err_text(&err));
    remove_raw(place->fd);
}

static void damage_is_noticed(void **state)
{
    const struct place *place = *state;
    auto_free char *first = bytes_of(FIRST_BYTES, 'a'), *second = bytes_of(SECOND_BYTES, 'b'), *whole = NULL;
    char what[64];
    size_t len;
    struct err err;

    (void)compress(place, first, second);
    assert_true(fd_read_file(place->fd, ZPAGES, FIRST_BYTES, &whole, &len, &err));
    /* A bit anywhere: each byte of the head, and many of the contents. */
    for (size_t at = 0; at < len; at += at < 200 ? 1 : 49999) {
        whole[at] ^= 4;
        put(place->fd, ZPAGES, whole, len);
        whole[at] ^= 4;
        (void)snprintf(what, sizeof what, "a changed byte %zu", at);
        if (at >= HEAD_BYTES && at < HEAD_BYTES + FRAME_HEAD_BYTES && zpages_expand(place->fd, &err)) {
            /* zstd's window may be larger than it need be: what comes out counts. */
            check_file(place->fd, "pages-1.img", first, FIRST_BYTES);
            check_file(place->fd, "pages-33.img", second, SECOND_BYTES);
            remove_raw(place->fd);
        } else {
            check_refused(place, what);
        }
    }
    /* Cut short anywhere, also between two files; or longer. */
    for (size_t at = 0; at < len; at = at < 200 ? at + 1 : at < len - 60000 ? at + 49999 : MAX(at + 1, len - LAST)) {
        put(place->fd, ZPAGES, whole, at);
        (void)snprintf(what, sizeof what, "the end at byte %zu", at);
        check_refused(place, what);
    }
    auto_free char *longer = mem_new(len + 1);
    memcpy(longer, whole, len);
    put(place->fd, ZPAGES, longer, len + 1);
    check_refused(place, "a byte too many");
    put(place->fd, ZPAGES, whole, len);
    assert_true(zpages_expand(place->fd, &err));
}

static void parse_refused(const struct zpages_file *files, size_t count)
{
    auto_buf struct buf head = buf_make(NULL, LIMIT_PAGES_HEAD_BYTES);
    struct zpages pages = { .count = count, .files = (struct zpages_file *)files }, got;
    struct err err;

    zpages_print(&head, &pages);
    assert_false(head.overflowed);
    assert_false(zpages_parse(buf_str(&head), &got, &err));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void a_list_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    parse_refused(NULL, 0);
    parse_refused((const struct zpages_file[]){ { "core-1.img", 1 } }, 1);
    parse_refused((const struct zpages_file[]){ { "../pages-1.img", 1 } }, 1);
    parse_refused((const struct zpages_file[]){ { "pages-1.img", 1 }, { "pages-1.img", 1 } }, 2);
    parse_refused((const struct zpages_file[]){ { "pages-1.img", LIMIT_IMAGE_FILE_BYTES + 1 } }, 1);
}

static void names_of_pages_are_known(void **state)
{
    (void)state;
    assert_true(zpages_is_name("pages-1.img"));
    assert_true(zpages_is_name("pages-4294967295.img"));
    assert_false(zpages_is_name("pages-4294967296.img"));
    assert_false(zpages_is_name("pages-01.img"));
    assert_false(zpages_is_name("pages-.img"));
    assert_false(zpages_is_name("pages-x.img"));
    assert_false(zpages_is_name("pagemap-1.img"));
    assert_false(zpages_is_name("pages-1.img.new"));
}

static void what_was_cut_short_is_swept(void **state)
{
    const struct place *place = *state;
    struct err err;

    put(place->fd, ZPAGES_NEW, "half", 4);
    put(place->fd, "pages-1.img.new", "half", 4);
    put(place->fd, "pages-1.img", "whole", 5);
    put(place->fd, "core-1.img.new", "other", 5);
    assert_true(zpages_sweep(place->fd, &err));
    assert_int_equal(faccessat(place->fd, ZPAGES_NEW, F_OK, 0), -1);
    assert_int_equal(faccessat(place->fd, "pages-1.img.new", F_OK, 0), -1);
    check_file(place->fd, "pages-1.img", "whole", 5);
    check_file(place->fd, "core-1.img.new", "other", 5);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(pages_come_back_as_they_were, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_noticed, set_up, tear_down),
        CASE(a_list_that_makes_no_sense_is_refused),
        CASE(names_of_pages_are_known),
        cmocka_unit_test_setup_teardown(what_was_cut_short_is_swept, set_up, tear_down),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
