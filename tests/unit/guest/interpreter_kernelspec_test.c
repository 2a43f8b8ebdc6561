/* Kernelspecs in the home of a user who tries to hold guestd up. */
#include "guest/interpreter/kernelspec.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "guest/interpreter/limits.h"
#include "test.h"

static char home[64];
static int kernels_fd = -1;
static struct user user;

static int set_up(void **state)
{
    static const char *const dirs[] = { ".local", ".local/share", ".local/share/jupyter",
                                        ".local/share/jupyter/kernels" };
    char path[128];

    (void)state;
    (void)snprintf(home, sizeof home, "/tmp/kernelspec_test.XXXXXX");
    assert_non_null(mkdtemp(home));
    for (size_t i = 0; i < COUNT_OF(dirs); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", home, dirs[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    kernels_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(kernels_fd >= 0);
    user = (struct user){ .name = STR("user"), .home = str_from(home) };
    return 0;
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    fd_close(&kernels_fd);
    return remove_tree(AT_FDCWD, home, &err) ? 0 : -1;
}

static void put(const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/kernel.json", name);
    assert_int_equal(mkdirat(kernels_fd, name, 0755), 0);
    auto_close int fd = openat(kernels_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    struct err err;
    assert_true(fd >= 0 && fd_write_all(fd, str_from(text), &err));
}

static void put_fifo(const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/kernel.json", name);
    assert_int_equal(mkdirat(kernels_fd, name, 0755), 0);
    assert_int_equal(mkfifoat(kernels_fd, path, 0666), 0); /* opening it for reading would block */
}

static void a_kernel_is_found_by_name_and_by_language(void **state)
{
    (void)state;
    put("cobol85", "{\"argv\": [\"cobol\", \"{connection_file}\"], \"language\": \"Cobol\"}");
    static const char *const names[] = { "cobol85", "cobol" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct kernelspec *spec = kernelspec_find_new(&user, names[i]);
        assert_non_null(spec);
        assert_int_equal(spec->argc, 2);
        assert_string_equal(spec->language, "cobol");
        kernelspec_free(spec);
    }
}

static void a_fifo_in_place_of_a_kernelspec_does_not_block(void **state)
{
    char list[256];

    (void)state;
    /* Two, so that one comes before the good one in any order of the directory. */
    put_fifo("aaa");
    put("mmm", "{\"argv\": [\"x\"], \"language\": \"cobol\"}");
    put_fifo("zzz");
    struct kernelspec *spec = kernelspec_find_new(&user, "cobol");
    assert_non_null(spec);
    kernelspec_free(spec);
    assert_null(kernelspec_find_new(&user, "zzz"));
    kernelspec_list(&user, NULL, list, sizeof list);
    assert_non_null(strstr(list, "cobol"));
}

static void each_language_is_listed_once(void **state)
{
    char list[256];

    (void)state;
    put("deno", "{\"argv\": [\"deno\"], \"language\": \"typescript\"}");
    put("tslab", "{\"argv\": [\"tslab\"], \"language\": \"typescript\"}");
    struct kernelspec *spec = kernelspec_find_new(&user, "javascript");
    assert_non_null(spec);
    kernelspec_free(spec);
    kernelspec_list(&user, NULL, list, sizeof list);
    assert_non_null(strstr(list, "typescript"));
    assert_non_null(strstr(list, "javascript"));
    put("jslab", "{\"argv\": [\"jslab\"], \"language\": \"javascript\"}");
    kernelspec_list(&user, NULL, list, sizeof list);
    const char *first = strstr(list, "javascript");
    assert_non_null(first);
    assert_null(strstr(first + 1, "javascript"));
}

static void a_malformed_kernelspec_is_ignored(void **state)
{
    (void)state;
    put("empty", "");
    put("array", "[]");
    put("bare", "{\"argv\": []}");
    put("numbers", "{\"argv\": [\"x\", 1]}");
    static const char *const names[] = { "empty", "array", "bare", "numbers", "nowhere" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_null(kernelspec_find_new(&user, names[i]));
}

static void the_number_of_kernelspecs_that_are_read_is_limited(void **state)
{
    char name[16], text[80];
    unsigned found = 0;

    (void)state;
    for (int i = 0; i < 2 * LIMIT_KERNELSPECS; i++) {
        (void)snprintf(name, sizeof name, "k%d", i);
        (void)snprintf(text, sizeof text, "{\"argv\": [\"x\"], \"language\": \"l%d\"}", i);
        put(name, text);
    }
    for (int i = 0; i < 2 * LIMIT_KERNELSPECS; i++) {
        (void)snprintf(name, sizeof name, "l%d", i);
        struct kernelspec *spec = kernelspec_find_new(&user, name);
        found += spec != NULL;
        kernelspec_free(spec);
    }
    assert_int_equal(found, LIMIT_KERNELSPECS);
}

int main(void)
{
#define SPEC_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        SPEC_CASE(a_kernel_is_found_by_name_and_by_language),
        SPEC_CASE(a_fifo_in_place_of_a_kernelspec_does_not_block),
        SPEC_CASE(each_language_is_listed_once),
        SPEC_CASE(a_malformed_kernelspec_is_ignored),
        SPEC_CASE(the_number_of_kernelspecs_that_are_read_is_limited),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
